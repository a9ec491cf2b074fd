/*
 * loop.c
 *		The thread that serves sessions: it waits for all of them at once, and
 *		has the searches that it finds answered as a batch (turns.c).
 *
 * While a batch is searched requests are read, and the next one gathers; so
 * batches are as large as the load makes them, and an idle server adds
 * nothing.  A session costs three system calls a search: the wait (shared by a
 * batch), a read, a write.  A session that does not read its answer is not
 * read from, and delays no other.
 */
#include "server/gv_server.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ACCEPTS			64		/* at a time */
#define PAUSE_MS		200		/* when no connection can be accepted */
#define HELLO_MS		5000	/* that a client has to say who it is */
#define LOOK_MS			500		/* how often we look for those who did not */

static struct
{
	int			epoll;
	int			listener;
	int			wake;			/* an eventfd */
	bool		paused;			/* not listening, for want of descriptors, */
	uint64_t	paused_until;	/* before this, if none gets free */
	bool		is_short;		/* of these, and has said so */
	uint64_t	connections;	/* there were */
	GvConnection *first;		/* of those that are here */
	int			connected;		/* how many these are */
	int			strangers;		/* of these, that said no hello yet */
	bool		partial;		/* some may be within a message or an answer */
	uint64_t	look_ns;		/* when to look for both next */
}			loop = {.wake = -1};

/* For the signal handler, which runs in this thread. */
static volatile sig_atomic_t stop_asked;

uint64_t
gv_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t) now.tv_sec * 1000000000 + (uint64_t) now.tv_nsec;
}

/* Make the loop look around; from any thread, or a signal handler. */
void
gv_loop_wake(void)
{
	uint64_t	one = 1;

	if (write(loop.wake, &one, sizeof(one)) < 0)
		return;					/* it is full of ones, which will do */
}

/* A search may take long; its result is not needed any more. */
static void
on_stop(int signal)
{
	int			saved_errno = errno;

	stop_asked = 1;
	(void) gv_restart_pass_on(signal);
	if (gv_batches_searching())
	{
		gv_folder_leave();
		_exit(0);
	}
	gv_loop_wake();
	errno = saved_errno;
}

/* Is the end near? */
bool
gv_loop_stops(void)
{
	return stop_asked != 0;
}

static void
set_signals(void)
{
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	sigemptyset(&action.sa_mask);
	action.sa_handler = on_stop;
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	action.sa_handler = SIG_IGN;
	sigaction(SIGHUP, &action, NULL);
	sigaction(SIGPIPE, &action, NULL);
}

/* Watch a descriptor for `events`; `what` comes back with them. */
static bool
watch(int operation, int fd, uint32_t events, void *what)
{
	struct epoll_event event;

	memset(&event, 0, sizeof(event));
	event.events = events;
	event.data.ptr = what;
	return epoll_ctl(loop.epoll, operation, fd, &event) == 0;
}

/* Put a connection into the loop's list. */
static void
remember(GvConnection *connection)
{
	connection->previous = NULL;
	connection->next = loop.first;
	if (loop.first != NULL)
		loop.first->previous = connection;
	loop.first = connection;
	loop.connected++;
}

/* Take a connection out of the loop's list. */
static void
forget(GvConnection *connection)
{
	if (connection->next != NULL)
		connection->next->previous = connection->previous;
	if (connection->previous != NULL)
		connection->previous->next = connection->next;
	else
		loop.first = connection->next;
	loop.connected--;
}

/* The pause is over. */
static void
listen_again(void)
{
	if (loop.paused)
		loop.paused = !watch(EPOLL_CTL_ADD, loop.listener, EPOLLIN,
							 &loop.listener);
}

static void
close_connection(GvConnection *connection)
{
	forget(connection);
	if (connection->role == 0)
		loop.strangers--;
	gv_connection_close(connection);
	listen_again();
}

/* Has a session that was let in not gone yet?  In this thread. */
bool
gv_loop_has_sessions(void)
{
	const GvConnection *connection;

	for (connection = loop.first; connection != NULL;
		 connection = connection->next)
		if (connection->role == GV_ROLE_SESSION &&
			!gv_connection_is_gone(connection))
			return true;
	return false;
}

static void
add_connection(int fd)
{
	GvConnection *connection;

	connection = gv_folder_admits(fd) ?
		gv_connection_open(fd, ++loop.connections) : NULL;
	if (connection == NULL)
	{
		close(fd);
		return;
	}
	remember(connection);
	loop.strangers++;
	connection->surplus =
		__atomic_load_n(&gv_server.connections, __ATOMIC_RELAXED) >
		gv_server.max_connections;
	if (!watch(EPOLL_CTL_ADD, fd, EPOLLIN, connection))
		close_connection(connection);
}

static void
accept_connections(void)
{
	int			i;

	for (i = 0; i < ACCEPTS; i++)
	{
		int			fd = accept4(loop.listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd >= 0)
		{
			loop.is_short = false;
			add_connection(fd);
		}
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
			return;
		else if (errno != EINTR && errno != ECONNABORTED)
		{
			if (!loop.is_short)
				gv_log("WARNING", "could not accept a connection: %s",
					   strerror(errno));
			loop.is_short = true;
			/* it would wake us at once, again and again */
			loop.paused = watch(EPOLL_CTL_DEL, loop.listener, 0, NULL);

			loop.paused_until = gv_now_ns() + PAUSE_MS * UINT64_C(1000000);
			return;
		}
	}
}

/* Send an answer, or as much as the client takes; false: it is gone. */
bool
gv_loop_answer(GvConnection *connection)
{
	GvFlushed	flushed = gv_connection_flush(connection, false);
	bool		later = flushed == GV_FLUSH_LATER;

	if (flushed == GV_FLUSH_BROKEN ||
		(flushed == GV_FLUSHED && connection->ending) ||
		(later != connection->writing &&
		 !watch(EPOLL_CTL_MOD, connection->fd, later ? EPOLLOUT : EPOLLIN,
				connection)))
	{
		close_connection(connection);
		return false;
	}
	if (later && !connection->writing)
	{
		connection->begun_ns = gv_now_ns();
		loop.partial = true;
	}
	connection->writing = later;
	return true;
}

/*
 * A client has been greeted; all but sessions go on with a thread of their
 * own.
 */
static void
give_thread(GvConnection *connection)
{
	if (connection->role != 0)
		loop.strangers--;
	if (!gv_loop_answer(connection) || connection->role == GV_ROLE_SESSION)
		return;
	/* from its start on the thread owns the connection */
	forget(connection);
	if (!watch(EPOLL_CTL_DEL, connection->fd, 0, NULL) ||
		!gv_loader_start(connection))
	{
		gv_log("WARNING", "could not start a thread for a client");
		remember(connection);
		close_connection(connection);
	}
}

/* Answer a message, or put it in the queue of searches. */
static void
take_message(GvConnection *connection)
{
	bool		greeted = connection->role == 0;

	gv_message_answer(connection);
	if (greeted)
		give_thread(connection);
	else if (!connection->asked)
		gv_loop_answer(connection);
}

/* A client wrote, or reads at last, or is gone. */
static void
serve(GvConnection *connection, uint32_t events)
{
	if (connection->asked)
	{
		/* a session that gave up waiting shall not keep others waiting */
		if ((events & (EPOLLHUP | EPOLLERR)) != 0 &&
			gv_batches_withdraw(connection))
			close_connection(connection);
		return;
	}
	if (connection->writing)
	{
		gv_loop_answer(connection);
		return;
	}
	switch (gv_connection_receive(connection, false))
	{
		case GV_RECEIVED_PART:
			loop.partial |= connection->in_used > 0;
			break;
		case GV_RECEIVED_WHOLE:
			take_message(connection);
			break;
		case GV_RECEIVED_WRONG:
			gv_loop_answer(connection);
			break;
		case GV_RECEIVED_END:
			close_connection(connection);
			break;
	}
}

/* Is a client within a message, or an answer, and has been for too long? */
static bool
is_stuck(const GvConnection *connection)
{
	if (connection->asked || connection->in_used == 0)
		return false;
	loop.partial = true;
	if (!gv_connection_is_stuck(connection))
		return false;
	gv_log("LOG", "closed a connection whose client had not %s in %d s",
		   connection->writing ? "read an answer" : "ended a message",
		   gv_server.message_s);
	return true;
}

/*
 * A client takes one of a limited number of places, and is to say soon what
 * for; after that it may be idle for days, but not within a message.
 */
static void
drop_strangers(void)
{
	uint64_t	now;
	GvConnection *connection;
	GvConnection *next;

	if ((loop.strangers == 0 && !loop.partial) ||
		(now = gv_now_ns()) < loop.look_ns)
		return;
	loop.look_ns = now + LOOK_MS * UINT64_C(1000000);
	loop.partial = false;
	for (connection = loop.first; connection != NULL; connection = next)
	{
		next = connection->next;
		if ((connection->role == 0 &&
			 now - connection->opened_ns >= HELLO_MS * UINT64_C(1000000)) ||
			is_stuck(connection))
			close_connection(connection);
	}
}

/* How long to wait for clients, ms; -1: until one comes. */
static int
patience(void)
{
	if (gv_batches_busy())
		return 0;
	if (loop.paused)
		return PAUSE_MS;
	return loop.strangers > 0 || loop.partial ? LOOK_MS : -1;
}

/* A round: what clients want, and what the engine has done. */
static void
serve_events(const struct epoll_event *events, int n)
{
	int			i;

	for (i = 0; i < n; i++)
	{
		void	   *what = events[i].data.ptr;

		if (what == &loop.listener)
			accept_connections();
		else if (what != &loop.wake)
			serve(what, events[i].events);
	}
	gv_batches_go_on(loop.connected);
	drop_strangers();
	if (loop.paused && gv_now_ns() >= loop.paused_until)
		listen_again();
}

/*
 * Serve until a signal comes, the engine breaks, or another incarnation of the
 * cluster begins (gv_incarnation_is_over); the exit status.
 */
int
gv_loop_run(int listener)
{
	static struct epoll_event events[GV_MAX_BATCH];
	GvStatus	status = gv_batches_open();

	if (status != GV_OK)
	{
		gv_log("FATAL", "the engine could not begin to work (status %d)",
			   status);
		return GV_EXIT_FAILED;
	}
	loop.listener = listener;
	loop.epoll = epoll_create1(EPOLL_CLOEXEC);
	loop.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (loop.epoll < 0 || loop.wake < 0 ||
		!watch(EPOLL_CTL_ADD, listener, EPOLLIN, &loop.listener) ||
		!watch(EPOLL_CTL_ADD, loop.wake, EPOLLIN, &loop.wake))
	{
		gv_log("FATAL", "could not wait for events: %s", strerror(errno));
		return GV_EXIT_SYSTEM;
	}
	if (!gv_watchdog_start(gv_server.patience_s))
	{
		gv_log("FATAL", "could not start a thread");
		return GV_EXIT_SYSTEM;
	}
	set_signals();
	gv_log("LOG", "ready: engine %s on %s", gv_server.engine,
		   gv_server.device);
	while (!stop_asked && !gv_server_failed() && !gv_incarnation_is_over())
	{
		/* no more events than searches that may wait */
		int			available = gv_batches_available();
		int			n = available == 0 ? 0 :
		epoll_wait(loop.epoll, events, available, patience());

		gv_watchdog_round(true);
		if (n >= 0)
			serve_events(events, n);
		gv_watchdog_round(false);
	}
	/* a broken engine might never end what it has begun */
	if (gv_server_failed())
		return GV_EXIT_FAILED;
	/* nor is anybody left whom it is for */
	if (gv_incarnation_is_over())
		return 0;
	gv_batches_end();
	while (loop.first != NULL)
		close_connection(loop.first);
	close(listener);
	return 0;
}
