/*
 * eventloop.c
 *		The watchdog: how long the engine has been at one call, and the end of
 *		a process whose engine does not come back.
 *
 * A device may hang, and then a batch is never done, nor a call that waits for
 * it.  The loop says when it goes to work and when it is back, and of each
 * device when the batch that ends next was begun; a thread that does nothing
 * else looks at that.  With several devices the loop goes on while one hangs,
 * so each device is looked at by itself.  So is each batch of many searches in
 * one message, for which threads of their own wait.
 */
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

#include "server/server.h"

#define LOOKS	10				/* in the time after which we end */

/* Of batches of many searches, which may be four times as large. */
#define MANY_LOOKS	(4 * LOOKS)

/* The batch last seen, and how many times in a row. */
typedef struct Look
{
	uint64_t	began;
	int			n;
} Look;

/* Times as of gv_now_ns; 0: nothing is under way. */
static struct
{
	uint64_t	round;			/* since then the loop is at work */
	uint64_t	batches[GV_MAX_DEVICES];
	uint64_t	bulk[GV_MAX_LOADERS];	/* batches, of any devices */
	int			patience_s;
}			watchdog;

static void
store(uint64_t *time, uint64_t ns)
{
	__atomic_store_n(time, ns, __ATOMIC_RELAXED);
}

/* How long is that ago? */
static int64_t
age_ms(const uint64_t *time, uint64_t now)
{
	uint64_t	then = __atomic_load_n(time, __ATOMIC_RELAXED);

	return then == 0 || then > now ? 0 : (int64_t) ((now - then) / 1000000);
}

/* The loop goes to work, or is back. */
void
gv_watchdog_round(bool begins)
{
	store(&watchdog.round, begins ? gv_now_ns() : 0);
}

/* The batch of a device that ends next was begun then; 0: there is none. */
static void
watchdog_batch(int32_t device, uint64_t began_ns)
{
	store(&watchdog.batches[device], began_ns);
}

/*
 * A batch of many searches begins, and ends.  There are no more of them than
 * threads; returns what gv_watchdog_bulk_end is told.
 */
int
gv_watchdog_bulk_begin(uint64_t began_ns)
{
	int			i;

	for (i = 0; i < GV_MAX_LOADERS; i++)
	{
		uint64_t	none = 0;

		if (__atomic_compare_exchange_n(&watchdog.bulk[i], &none, began_ns,
										false,
										__ATOMIC_RELAXED, __ATOMIC_RELAXED))
			break;
	}
	return i;
}

void
gv_watchdog_bulk_end(int number)
{
	if (number < GV_MAX_LOADERS)
		store(&watchdog.bulk[number], 0);
}

/* How long the oldest of the loop's that is under way has been so. */
int64_t
gv_watchdog_oldest_ms(void)
{
	uint64_t	now = gv_now_ns();
	int64_t		oldest = age_ms(&watchdog.round, now);
	int32_t		device;

	for (device = 0; device < gv_ndevices(); device++)
	{
		int64_t		age = age_ms(&watchdog.batches[device], now);

		oldest = age > oldest ? age : oldest;
	}
	return oldest;
}

/*
 * Returns whether the engine hangs: as many observations as allowed have seen
 * the same call.  Observations are counted rather than time, in which this
 * process may have been stopped.
 */
static bool
hangs(const uint64_t *time, Look *look, int most)
{
	uint64_t	began = __atomic_load_n(time, __ATOMIC_RELAXED);

	look->n = began != 0 && began == look->began ? look->n + 1 : 0;
	look->began = began;
	return look->n >= most;
}

/* Look at everything, and say what hangs; true: something does. */
static bool
look_around(void)
{
	static Look round;
	static Look batches[GV_MAX_DEVICES];
	static Look bulk[GV_MAX_LOADERS];
	bool		found = false;
	int32_t		device;
	int			i;

	for (device = 0; device < gv_ndevices(); device++)
		if (hangs(&watchdog.batches[device], &batches[device], LOOKS))
		{
			found = true;
			gv_log("FATAL", "device %d has not finished a batch in %d s; "
				   "a new process is needed", gv_server.numbers[device],
				   watchdog.patience_s);
		}
	for (i = 0; i < GV_MAX_LOADERS; i++)
		if (hangs(&watchdog.bulk[i], &bulk[i], MANY_LOOKS) && !found)
		{
			found = true;
			gv_log("FATAL", "many searches have not ended in %d s; a new "
				   "process is needed",
				   watchdog.patience_s * (MANY_LOOKS / LOOKS));
		}
	if (hangs(&watchdog.round, &round, LOOKS) && !found)
	{
		found = true;
		gv_log("FATAL", "the engine has not come back in %d s; a new "
			   "process is needed", watchdog.patience_s);
	}
	return found;
}

static void *
watchdog_main(void *arg)
{
	int64_t		ms = (int64_t) watchdog.patience_s * 1000 / LOOKS;
	struct timespec pause = {ms / 1000, ms % 1000 * 1000000};

	while (!look_around())
		nanosleep(&pause, NULL);
	/* no other thread can: the one that hangs may hold any lock */
	gv_folder_leave();
	_exit(GV_EXIT_FAILED);
}

/* From now on end when something takes longer than this; 0: never. */
static bool
watchdog_start(int patience_s)
{
	watchdog.patience_s = patience_s;

	return patience_s == 0 || gv_thread_start(watchdog_main, NULL, NULL);
}

/* ----
 * Searches that wait, and the batches that are under way.
 *
 * While a device has a batch, requests are read, and wait: the more go
 * together, the less each of them takes.  As soon as the batch is done the
 * next begins, and only then answers are written.  A device has a second batch
 * slot, for when as many wait as are under way: no search waits for a batch
 * that is smaller than its own would be.  Batches end in the order in which
 * they began.  A search of a mirror that several devices have goes to the one
 * with the fewest searches.
 *
 * A batch is waited for only where it is the only one and no client is left
 * that could ask for more; else devices are asked whether they are done,
 * between which the loop serves clients.
 *
 * All this is the loop's thread.
 */

#define MOST_REPLY		(64 * 1024 * 1024)	/* bytes of a batch's answers */

typedef struct DeviceBatches
{
	GvWorker   *slots[GV_BATCH_SLOTS];
	int			oldest;			/* of the slots that are under way */
	int			under_way;
	int			asked;			/* searches in these */
	int			waiting;		/* searches in the queue */
} DeviceBatches;

static struct
{
	DeviceBatches devices[GV_MAX_DEVICES];
	int32_t		ndevices;
	int32_t		next;			/* device that is asked first */
	int			under_way;		/* batches, of all devices */
	int			asked;			/* searches in them */
	GvConnection *queue[GV_MAX_BATCH];	/* whose searches are to be done */
	int			queued;
}			searches;

/* For the signal handler, which runs in this thread. */
static volatile sig_atomic_t searching;

/* Is the engine at work, or about to be? */
static bool
batches_searching(void)
{
	return searching != 0;
}

/* Allocates memory for all batch slots of all devices. */
GvStatus
gv_batches_open(void)
{
	GvStatus	status = GV_OK;
	int32_t		device;
	int			i;

	searches.ndevices = gv_ndevices();

	for (device = 0; device < searches.ndevices; device++)
		for (i = 0; i < GV_BATCH_SLOTS && status == GV_OK; i++)
			status = gv_worker_open(device, false,
									&searches.devices[device].slots[i]);
	return status;
}

void
gv_batches_close(void)
{
	int32_t		device;
	int			i;

	for (device = 0; device < searches.ndevices; device++)
		for (i = 0; i < GV_BATCH_SLOTS; i++)
			gv_worker_close(searches.devices[device].slots[i]);
}

/* Does anything wait or run? */
bool
gv_batches_busy(void)
{
	return searches.under_way > 0 || searches.queued > 0;
}

/* How many more searches may wait. */
static int
batches_available(void)
{
	return GV_MAX_BATCH - searches.queued;
}

/*
 * Of the devices that have a mirror, the one with least to do; -1: none has.
 */
static int32_t
choose_device(const GvMirrorKey *key)
{
	int32_t		devices[GV_MAX_DEVICES];
	int32_t		n = gv_mirrors_devices(key, devices);
	int32_t		best = n > 0 ? devices[0] : -1;
	int32_t		i;

	for (i = 1; i < n; i++)
	{
		const DeviceBatches *dev = &searches.devices[devices[i]];

		if (dev->asked + dev->waiting <
			searches.devices[best].asked + searches.devices[best].waiting)
			best = devices[i];
	}
	return best;
}

/* Queues a client's search, for which there is memory. */
void
gv_batches_add(GvConnection *connection)
{
	const GvSearchRequest *request = gv_payload(connection);

	connection->whole_ns = gv_now_ns();
	connection->asked = true;
	connection->device = choose_device(&request->key);
	searches.queue[searches.queued++] = connection;

	if (connection->device >= 0)
		searches.devices[connection->device].waiting++;
}

/* Its search waits no more; false: it is under way. */
static bool
batches_withdraw(GvConnection *connection)
{
	int			i = 0;

	while (i < searches.queued && searches.queue[i] != connection)
		i++;
	if (i == searches.queued)
		return false;
	if (connection->device >= 0)
		searches.devices[connection->device].waiting--;
	searches.queued--;

	memmove(&searches.queue[i], &searches.queue[i + 1],
			(size_t) (searches.queued - i) * sizeof(searches.queue[0]));
	connection->asked = false;
	return true;
}

/* The most that a search's answer may need. */
static size_t
reply_bytes(const GvSearchRequest *request)
{
	return (size_t) request->probes *
		(sizeof(GvProbeReply) + (request->ntests > 0 ? sizeof(int32_t) : 0)) +
		(size_t) request->capacity * (sizeof(GvHit) + sizeof(GvBound));
}

/*
 * Out of the queue: its i-th search, and with it all behind it for the same
 * mirror and device whose answers fit into a reasonable amount of memory; how
 * many.
 */
static int
take_batch(int i, GvConnection **askers)
{
	const GvSearchRequest *first = gv_payload(searches.queue[i]);
	int32_t		device = searches.queue[i]->device;
	size_t		bytes = 0;
	int			left = i;
	int			n = 0;

	for (; i < searches.queued; i++)
	{
		const GvSearchRequest *request = gv_payload(searches.queue[i]);
		size_t		more = reply_bytes(request);

		if (gv_same_key(&request->key, &first->key) &&
			searches.queue[i]->device == device &&
			(n == 0 || bytes + more <= MOST_REPLY))
		{
			askers[n++] = searches.queue[i];

			bytes += more;
			if (searches.queue[i]->device >= 0)
				searches.devices[searches.queue[i]->device].waiting--;
		}
		else
			searches.queue[left++] = searches.queue[i];
	}
	searches.queued = left;

	return n;
}

/* The askers have their answers. */
static void
send_answers(GvConnection **askers, int n)
{
	int			i;

	for (i = 0; i < n; i++)
	{
		askers[i]->asked = false;
		(void) gv_loop_answer(askers[i]);
	}
}

/* Tells the watchdog since when a device's oldest batch is under way. */
static void
watchdog_oldest(const DeviceBatches *dev)
{
	watchdog_batch((int32_t) (dev - searches.devices),
					  dev->under_way == 0 ? 0 :
					  dev->slots[dev->oldest]->began_ns);
}

/*
 * Ends a device's oldest batch; returns its slot, whose askers wait for
 * answers.
 */
static GvWorker *
end_oldest(DeviceBatches *dev)
{
	GvWorker   *slot = dev->slots[dev->oldest];

	gv_session_finish(slot);
	dev->oldest = (dev->oldest + 1) % GV_BATCH_SLOTS;
	dev->under_way--;
	watchdog_oldest(dev);
	dev->asked -= slot->nasked;
	searches.asked -= slot->nasked;

	searching = --searches.under_way > 0;
	return slot;
}

static void
finish_oldest(DeviceBatches *dev)
{
	GvWorker   *slot = end_oldest(dev);

	send_answers(slot->askers, slot->nasked);
}

/* Refuses all searches of the mirror that the i-th in the queue asks for. */
static void
refuse_batch(int i, GvRefusalCode refusal)
{
	GvConnection *askers[GV_MAX_BATCH];
	int			n = take_batch(i, askers);

	searching = searches.under_way > 0;

	gv_session_refuse(askers, n, refusal);
	send_answers(askers, n);
}

/*
 * Begin the search that is i-th in the queue, and all that go with it; false
 * if another thread changes their mirror, or wants to, and we do not wait.
 */
static bool
begin_batch(int i, bool wait)
{
	GvRefusalCode refusal;
	GvMirrorEntry *entry = gv_session_acquire(searches.queue[i], &refusal);
	DeviceBatches *dev;
	GvWorker   *slot;

	if (entry == NULL)
	{
		refuse_batch(i, refusal);
		return true;
	}
	searching = 1;
	if (!gv_session_lock(entry, wait))
	{
		gv_mirrors_release(entry, 0);
		return false;
	}
	/* the mirror may be elsewhere than when the search came */
	dev = &searches.devices[gv_mirrors_device(entry,
											  searches.queue[i]->device)];
	if (dev->under_way == GV_BATCH_SLOTS)
	{
		finish_oldest(dev);
		searching = 1;
	}
	slot = dev->slots[(dev->oldest + dev->under_way) % GV_BATCH_SLOTS];
	slot->nasked = take_batch(i, slot->askers);
	gv_session_begin(slot, entry);
	if (slot->entry != NULL)
	{
		dev->under_way++;
		dev->asked += slot->nasked;
		watchdog_oldest(dev);
		searches.under_way++;
		searches.asked += slot->nasked;
	}
	else
	{
		searching = searches.under_way > 0;

		send_answers(slot->askers, slot->nasked);
	}
	return true;
}

/*
 * Is it time for another batch of a device?  Who asks for a mirror that is on
 * none hears that at once.
 */
static bool
may_begin(int32_t device)
{
	const DeviceBatches *dev;
	const GvWorker *newest;

	if (device < 0)
		return true;
	dev = &searches.devices[device];
	if (dev->under_way == 0)
		return true;
	newest = dev->slots[(dev->oldest + dev->under_way - 1) % GV_BATCH_SLOTS];
	return dev->under_way < GV_BATCH_SLOTS && dev->waiting >= newest->nasked;
}

/* Has this search to wait for one of the mirrors [n]? */
static bool
wants_one_of(const GvMirrorKey *const *mirrors, int n,
			 const GvSearchRequest *request)
{
	int			i;

	for (i = 0; i < n; i++)
		if (gv_same_key(mirrors[i], &request->key))
			return true;
	return false;
}

/*
 * Begin what may begin.  A mirror that is being changed is tried once, however
 * many wait for it.
 */
static void
begin_batches(void)
{
	const GvMirrorKey *locked[GV_MAX_BATCH];
	int			nlocked = 0;
	int			i = 0;

	while (i < searches.queued)
	{
		const GvSearchRequest *request = gv_payload(searches.queue[i]);

		/* a thread that stops us from here on does not wait for the engine */
		searching = 1;
		if (gv_loop_stops())
			return;
		if (!may_begin(searches.queue[i]->device) ||
			wants_one_of(locked, nlocked, request))
			i++;
		else if (!begin_batch(i, false))
		{
			locked[nlocked++] = &request->key;
			i++;
		}
	}
	/* there is nothing else to do than wait for who changes the mirror */
	if (searches.under_way == 0 && searches.queued > 0)
		(void) begin_batch(0, true);
	searching = searches.under_way > 0;
}

/*
 * The next device with a batch that is done or, with `wait`, has one at all.
 */
static DeviceBatches *
next_done(bool wait)
{
	int32_t		i;

	for (i = 0; i < searches.ndevices; i++)
	{
		int32_t		device = (searches.next + i) % searches.ndevices;
		DeviceBatches *dev = &searches.devices[device];

		if (dev->under_way > 0 &&
			(wait ||
			 gv_mirror_done(dev->slots[dev->oldest]->searcher)))
		{
			searches.next = (device + 1) % searches.ndevices;

			return dev;
		}
	}
	return NULL;
}

/*
 * Begin what may begin, and end a batch if one is done, or if there is nothing
 * to do but wait for the only one: `clients` are connected, and no others will
 * ask for anything.
 */
void
gv_batches_go_on(int clients)
{
	GvConnection *askers[GV_MAX_BATCH];
	DeviceBatches *dev;
	GvWorker   *slot;
	int			n;

	begin_batches();
	dev = next_done(searches.under_way == 1 &&
					searches.asked + searches.queued == clients);
	if (dev == NULL)
		return;
	slot = end_oldest(dev);
	/* a batch that begins now may take its slot */
	n = slot->nasked;
	memcpy(askers, slot->askers, n * sizeof(askers[0]));
	if (!gv_server_failed())
		begin_batches();
	send_answers(askers, n);
}

/* End all that is under way. */
static void
batches_end(void)
{
	int32_t		device;

	for (device = 0; device < searches.ndevices; device++)
		while (searches.devices[device].under_way > 0)
			finish_oldest(&searches.devices[device]);
}

/* ----
 * The thread that serves sessions: it waits for all of them at once, and
 * has the searches that it finds answered as a batch (eventloop.c).
 *
 * While a batch is searched requests are read, and the next one gathers; so
 * batches are as large as the load makes them, and an idle server adds
 * nothing.  A session costs three system calls a search: the wait (shared by a
 * batch), a read, a write.  A session that does not read its answer is not
 * read from, and delays no other.
 */

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
	if (batches_searching())
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
			batches_withdraw(connection))
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
	if (!watchdog_start(gv_server.patience_s))
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
		int			available = batches_available();
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
	batches_end();
	while (loop.first != NULL)
		close_connection(loop.first);
	close(listener);
	return 0;
}
