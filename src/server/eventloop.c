/*
 * eventloop.c
 *		The thread that serves sessions: the loop waits for all sessions at
 *		once and answers their searches in batches.
 *
 * While a batch is searched, the loop reads the requests that will form the
 * next batch.  A search takes three system calls: a read, a write, and a wait,
 * which the whole batch shares; in a mailbox, a write to wake the session.
 * server/README, "The loop", says when a batch
 * begins, and when the loop waits for a device instead of polling it.  Only
 * the loop's thread uses the state of batches.
 *
 * A separate thread, the watchdog, ends the process if a device hangs, so that
 * one of the following takes too long: a round of the loop, the oldest batch of
 * a device, or a batch of many queries in one message, for which another thread
 * waits.
 */
#include "server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ACCEPTS			64		/* connections accepted at a time */
#define HELLO_MS		5000	/* within which a client has to say hello */
#define LOOK_MS			500		/* between checks for clients that are late,
								 * and whether connections can be accepted
								 * again */
#define MOST_REPLY		(64 * 1024 * 1024)	/* bytes of a batch's answers */
#define LOOKS			10		/* looks of the watchdog within
								 * batch_timeout_s */

/*
 * Number of looks at a batch for a message of many queries.  The batch may
 * have 4 times as many queries as a batch of sessions.
 */
#define MANY_LOOKS		(4 * LOOKS)

static struct
{
	int			epoll;
	int			listener;
	int			wake;			/* an eventfd */
	bool		paused;			/* not accepting, for lack of descriptors */
	bool		is_short;		/* the shortage of descriptors was logged */
	uint64_t	connections;	/* number of connections accepted so far */
	GvConnections list;			/* of the connections that the loop owns */
	int			connected;		/* number of these connections */
	uint64_t	look_ns;		/* when to check again (LOOK_MS) */
	GvConnection *attended[GV_MAX_BATCH];	/* [nattended], sessions that
											 * asked lately, whose mailboxes
											 * the loop looks at */
	int			nattended;
}			loop = {.wake = -1};

static struct
{
	GvBatchSlot (*slots)[GV_BATCH_SLOTS];	/* [ndevices] */
	int32_t		ndevices;
	GvBatchSlot *batches[GV_BATCH_SLOTS * GV_MAX_DEVICES];	/* [under_way], the
															 * oldest first */
	int			under_way;
	GvConnection *queue[GV_MAX_BATCH];	/* [queued], whose searches wait */
	int			queued;
	int			waiting[GV_MAX_DEVICES];	/* for each device, searches in
											 * the queue whose mirrors have a
											 * member on the device; set by
											 * count_waiting() */
	bool		changed;		/* a batch that had to wait in the last
								 * begin_batches() may be able to begin */
}			searches;

/* Something that must not take too long. */
typedef struct Watched
{
	uint64_t	began;			/* time from gv_now_ns(), or 0 if nothing is
								 * under way; atomic */
	uint64_t	seen;			/* the time that the watchdog saw last */
	int			looks;			/* its looks since then that saw that time */
} Watched;

static struct
{
	Watched		round;			/* the loop's current round */
	Watched		batches[GV_MAX_DEVICES];	/* each device's oldest batch */
	Watched		bulk[GV_MAX_CLIENT_THREADS];	/* batches of other threads,
												 * unordered */
}			watchdog;

/* Used by the signal handler, which runs in the loop's thread. */
static volatile sig_atomic_t stop_asked;
static volatile sig_atomic_t searching = 1; /* the engine is at work, or about
											 * to be; or the loop has not
											 * begun */

uint64_t
gv_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t) now.tv_sec * 1000000000 + (uint64_t) now.tv_nsec;
}

void
gv_loop_wake(void)
{
	uint64_t	one = 1;

	if (write(loop.wake, &one, sizeof(one)) < 0)
		return;					/* the counter is full, so the loop wakes */
}

void
gv_loop_on_signal(int signal)
{
	int			saved_errno = errno;

	stop_asked = 1;
	if (searching)
	{
		gv_folder_leave();
		_exit(0);
	}
	gv_loop_wake();
	errno = saved_errno;
}

/* ---- the watchdog */

static int64_t
age_ms(const Watched *watched, uint64_t now)
{
	uint64_t	began = __atomic_load_n(&watched->began, __ATOMIC_RELAXED);

	return began == 0 || began > now ? 0 : (int64_t) ((now - began) / 1000000);
}

void
gv_watchdog_round(bool begins)
{
	__atomic_store_n(&watchdog.round.began, begins ? gv_now_ns() : 0,
					 __ATOMIC_RELAXED);
}

/*
 * A client's thread has at most one batch under way, so there is a free
 * element.
 */
int
gv_watchdog_bulk_begin(uint64_t began_ns)
{
	uint64_t	none = 0;
	int			i = 0;

	while (!__atomic_compare_exchange_n(&watchdog.bulk[i].began, &none,
										began_ns, false, __ATOMIC_RELAXED,
										__ATOMIC_RELAXED))
	{
		none = 0;
		i++;
	}
	return i;
}

void
gv_watchdog_bulk_end(int number)
{
	__atomic_store_n(&watchdog.bulk[number].began, 0, __ATOMIC_RELAXED);
}

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
 * Returns whether the engine hangs, because the last `most` looks have seen
 * the same time.  We count looks and do not use the clock, because this
 * process may have been stopped meanwhile.
 */
static bool
hangs(Watched *watched, int most)
{
	uint64_t	began = __atomic_load_n(&watched->began, __ATOMIC_RELAXED);

	watched->looks = began != 0 && began == watched->seen ?
		watched->looks + 1 : 0;
	watched->seen = began;
	return watched->looks >= most;
}

/* Looks at all times of `watchdog`.  Logs and returns whether any hangs. */
static bool
look_around(void)
{
	int32_t		device;
	int			i;

	for (device = 0; device < gv_ndevices(); device++)
		if (hangs(&watchdog.batches[device], LOOKS))
		{
			gv_log("FATAL", "device %d has not finished a batch in %d s, so a new process is needed",
				   gv_server.numbers[device],
				   gv_server.batch_timeout_s);
			return true;
		}
	for (i = 0; i < GV_MAX_CLIENT_THREADS; i++)
		if (hangs(&watchdog.bulk[i], MANY_LOOKS))
		{
			gv_log("FATAL", "many searches have not finished in %d s, so a new process is needed",
				   gv_server.batch_timeout_s * (MANY_LOOKS / LOOKS));
			return true;
		}
	if (!hangs(&watchdog.round, LOOKS))
		return false;
	gv_log("FATAL", "engine has not returned in %d s, so a new process is needed",
		   gv_server.batch_timeout_s);
	return true;
}

/* Ends the process once something has taken longer than batch_timeout_s. */
static void *
watchdog_main(void *arg)
{
	int64_t		ms = (int64_t) gv_server.batch_timeout_s * 1000 / LOOKS;
	struct timespec pause = {ms / 1000, ms % 1000 * 1000000};

	while (!look_around())
		nanosleep(&pause, NULL);

	/*
	 * end without taking locks, because the thread that hangs may hold any
	 * lock
	 */
	gv_folder_leave();
	_exit(GV_EXIT_FAILED);
}

/* ---- batches */

GvStatus
gv_batches_open(void)
{
	GvStatus	status = GV_OK;
	int32_t		device;
	int			i;

	searches.ndevices = gv_ndevices();
	searches.slots = calloc((size_t) searches.ndevices,
							sizeof(*searches.slots));
	if (searches.slots == NULL)
		return GV_NO_MEMORY;
	for (device = 0; device < searches.ndevices; device++)
		for (i = 0; i < GV_BATCH_SLOTS && status == GV_OK; i++)
		{
			GvBatchSlot *slot = &searches.slots[device][i];

			slot->device = device;
			status = gv_searcher(device, &slot->searcher);
		}
	return status;
}

void
gv_batches_close(void)
{
	int32_t		device;
	int			i;

	for (device = 0; device < searches.ndevices; device++)
		for (i = 0; i < GV_BATCH_SLOTS; i++)
			gv_searcher_drop(searches.slots[device][i].searcher);
	free(searches.slots);
}

/*
 * The queue has room, because the loop takes at most as many events at a time
 * as the queue has room for searches, and looks at no mailbox without room.
 */
void
gv_batches_add(GvConnection *connection)
{
	connection->search_pending = true;
	searches.queue[searches.queued++] = connection;
	searches.changed = true;
}

/*
 * Takes a client's search out of the queue.  Returns false if the search is
 * not in the queue, because its batch is under way.
 */
static bool
batches_withdraw(GvConnection *connection)
{
	int			i = 0;

	while (i < searches.queued && searches.queue[i] != connection)
		i++;
	if (i == searches.queued)
		return false;
	searches.queued--;
	searches.changed = true;
	memmove(&searches.queue[i], &searches.queue[i + 1],
			(size_t) (searches.queued - i) * sizeof(searches.queue[0]));
	connection->search_pending = false;
	return true;
}

/*
 * Moves the i-th search of the queue to `askers`, and with it the later
 * searches of the same mirror, as long as all answers fit into MOST_REPLY
 * bytes.  Returns the number of searches moved.
 */
static int
take_batch(int i, GvConnection **askers)
{
	const GvSearchRequest *first = gv_payload(searches.queue[i]);
	int64_t		bytes = 0;
	int			left = i;
	int			n = 0;

	for (; i < searches.queued; i++)
	{
		const GvSearchRequest *request = gv_payload(searches.queue[i]);
		int64_t		more = gv_answer_most(request, true);

		if (gv_same_key(&request->key, &first->key) &&
			(n == 0 || bytes + more <= MOST_REPLY))
		{
			askers[n++] = searches.queue[i];
			bytes += more;
		}
		else
			searches.queue[left++] = searches.queue[i];
	}
	searches.queued = left;
	return n;
}

/* Sends the answers, as much of them as the clients take. */
static void
send_answers(GvConnection **askers, int n)
{
	int			i;

	searching = searches.under_way > 0;
	for (i = 0; i < n; i++)
	{
		askers[i]->search_pending = false;
		(void) gv_loop_answer(askers[i]);
	}
}

/*
 * Takes a batch's slots, or gives them back.  Tells the watchdog when the
 * oldest batch of each of its devices began.
 */
static void
count_batch(GvBatchSlot *batch, bool begins)
{
	int32_t		s;

	for (s = 0; s < batch->nslots; s++)
	{
		GvBatchSlot *slot = batch->slots[s];
		uint64_t	oldest_ns = 0;
		int			i;

		slot->batch = begins ? batch : NULL;
		for (i = 0; i < GV_BATCH_SLOTS; i++)
		{
			const GvBatchSlot *other = searches.slots[slot->device][i].batch;

			if (other != NULL &&
				(oldest_ns == 0 || other->began_ns < oldest_ns))
				oldest_ns = other->began_ns;
		}
		__atomic_store_n(&watchdog.batches[slot->device].began, oldest_ns,
						 __ATOMIC_RELAXED);
	}
}

/*
 * Ends the i-th batch under way and returns it.  The caller sends the answers
 * of the batch's askers.
 */
static GvBatchSlot *
end_batch(int i)
{
	GvBatchSlot *batch = searches.batches[i];

	gv_batch_finish(batch);
	count_batch(batch, false);
	searches.under_way--;
	memmove(&searches.batches[i], &searches.batches[i + 1],
			(size_t) (searches.under_way - i) * sizeof(searches.batches[0]));
	searches.changed = true;
	searching = searches.under_way > 0;
	return batch;
}

/* Sets searches.waiting. */
static void
count_waiting(void)
{
	const GvMirrorKey *last = NULL;
	GvDeviceSet devices = 1;
	int32_t		d;
	int			i;

	memset(searches.waiting, 0, sizeof(searches.waiting));
	for (i = 0; i < searches.queued; i++)
	{
		const GvSearchRequest *request = gv_payload(searches.queue[i]);

		/* searches of the same mirror mostly follow each other */
		if (searches.ndevices > 1 &&
			(last == NULL || !gv_same_key(last, &request->key)))
			devices = gv_mirrors_devices(&request->key);
		last = &request->key;
		for (d = 0; d < searches.ndevices; d++)
			searches.waiting[d] += (int) (devices >> d & 1);
	}
}

/* The batches that a device has under way. */
typedef struct DeviceLoad
{
	int			nbatches;
	int			asked;			/* searches in these batches */
	int			largest;		/* of the batches: its searches */
} DeviceLoad;

static DeviceLoad
device_load(int32_t device)
{
	DeviceLoad	load = {0};
	int			i;

	for (i = 0; i < GV_BATCH_SLOTS; i++)
	{
		const GvBatchSlot *batch = searches.slots[device][i].batch;

		if (batch == NULL)
			continue;
		load.nbatches++;
		load.asked += batch->nasked;
		if (batch->nasked > load.largest)
			load.largest = batch->nasked;
	}
	return load;
}

/*
 * Returns whether a device may begin another batch: it has a free slot, and at
 * least as many searches wait for the device as its largest batch has.
 */
static bool
may_begin(int32_t device, const DeviceLoad *load)
{
	return load->nbatches == 0 ||
		(load->nbatches < GV_BATCH_SLOTS &&
		 searches.waiting[device] >= load->largest);
}

/*
 * Chooses the replica for a batch: one whose devices all may begin a batch,
 * and none of whose devices is in *kept.  Of several such replicas chooses the
 * one with the fewest searches under way.  Returns the number of its first
 * member.  The caller has locked the mirror.
 *
 * If there is no such replica, returns -1 and, if *kept is empty, sets *kept
 * to the devices of the replica with the fewest batches under way.  While
 * these devices are kept, that number cannot rise, and it falls when one of
 * the batches ends.  So the search begins in the end if devices are kept for
 * it each time that it has to wait.
 */
static int32_t
choose_replica(const GvMirrorEntry *entry, GvDeviceSet *kept)
{
	int32_t		best = -1;
	int			best_asked = 0;
	GvDeviceSet keep = 0;
	int			fewest = 0;
	int32_t		first;
	int32_t		s;

	for (first = 0; first < entry->nmembers; first += entry->nshards)
	{
		GvDeviceSet devices = 0;
		bool		may = true;
		int			asked = 0;
		int			under_way = 0;

		for (s = 0; s < entry->nshards; s++)
		{
			int32_t		device = entry->members[first + s].device;
			DeviceLoad	load = device_load(device);

			devices |= 1u << device;
			may = may && may_begin(device, &load);
			asked += load.asked;
			under_way += load.nbatches;
		}
		if (may && (devices & *kept) == 0 && (best < 0 || asked < best_asked))
		{
			best = first;
			best_asked = asked;
		}
		if (keep == 0 || under_way < fewest)
		{
			keep = devices;
			fewest = under_way;
		}
	}
	if (best < 0 && *kept == 0)
		*kept = keep;
	return best;
}

/*
 * Begins a batch of the i-th search in the queue and of the later searches
 * that go with it (take_batch), or refuses these searches if their mirror
 * cannot be used.  Returns false if the searches have to stay in the queue,
 * because the batch has to wait for slots (choose_replica) or for another
 * thread that changes the mirror.  If `wait` is set, waits here for that
 * thread.
 */
static bool
begin_batch(int i, GvDeviceSet *kept, bool wait)
{
	GvRefusalCode refusal;
	const GvSearchRequest *request = gv_payload(searches.queue[i]);
	GvMirrorEntry *entry = gv_mirrors_acquire(&request->key,
											  searches.queue[i]->owner,
											  &refusal);
	GvBatchSlot *batch = NULL;
	int32_t		first;
	int32_t		s;

	if (entry == NULL)
	{
		GvConnection *askers[GV_MAX_BATCH];
		int			n = take_batch(i, askers);

		for (i = 0; i < n; i++)
			gv_refuse(askers[i], refusal, gv_refusal_name(refusal));
		send_answers(askers, n);
		return true;
	}
	searching = 1;

	/*
	 * While the loop holds locks of mirrors, it must not wait for a mirror's
	 * lock: it might wait behind a thread that wants to change the mirror and
	 * itself waits for the loop.
	 */
	if ((wait ? pthread_rwlock_rdlock(&entry->lock) :
		 pthread_rwlock_tryrdlock(&entry->lock)) != 0)
	{
		gv_mirrors_release(entry, 0);
		searches.changed = true;
		return false;
	}
	first = choose_replica(entry, kept);
	if (first < 0)
	{
		pthread_rwlock_unlock(&entry->lock);
		gv_mirrors_release(entry, 0);
		return false;
	}

	/* each device has a free slot; the first device's slot has the batch */
	for (s = 0; s < entry->nshards; s++)
	{
		GvBatchSlot *slot =
		searches.slots[entry->members[first + s].device];

		while (slot->batch != NULL)
			slot++;
		if (s == 0)
			batch = slot;
		batch->slots[s] = slot;
		batch->searchers[s] = slot->searcher;
	}
	batch->nslots = entry->nshards;
	batch->nasked = take_batch(i, batch->askers);
	gv_batch_begin(batch, entry);
	if (batch->entry != NULL)
	{
		searches.batches[searches.under_way++] = batch;
		count_batch(batch, true);
	}
	else
		send_answers(batch->askers, batch->nasked);
	return true;
}

/*
 * Begins all batches that may begin, the oldest search first.  If a search has
 * to wait for slots, later searches get no slots on the devices for which the
 * search waits.  Otherwise batches on single devices could for ever take the
 * slots that a batch needs on several devices at the same time.  A mirror
 * whose searches have to wait is tried once, however many they are.
 */
static void
begin_batches(void)
{
	const GvMirrorKey *waiting[GV_MAX_BATCH];
	GvDeviceSet kept = 0;
	int			nwaiting = 0;
	int			i = 0;

	if (!searches.changed)
		return;
	searches.changed = false;
	count_waiting();
	while (i < searches.queued)
	{
		const GvSearchRequest *request = gv_payload(searches.queue[i]);
		int			j = 0;

		/* from here on a signal ends the process at once */
		searching = 1;
		if (stop_asked)
			return;
		while (j < nwaiting && !gv_same_key(waiting[j], &request->key))
			j++;
		if (j < nwaiting)
			i++;
		else if (begin_batch(i, &kept, false))
			count_waiting();
		else
		{
			waiting[nwaiting++] = &request->key;
			i++;
		}
	}

	/*
	 * All slots are free, so the search can only be waiting for its mirror's
	 * lock.  There is nothing else to do, so wait for this lock.
	 */
	if (searches.under_way == 0 && searches.queued > 0)
		(void) begin_batch(0, &kept, true);
	searching = searches.under_way > 0;
}

void
gv_batches_go_on(int clients)
{
	GvConnection *askers[GV_MAX_BATCH];
	GvBatchSlot *batch;
	bool		wait;
	int			i = 0;
	int			n;

	begin_batches();
	wait = searches.under_way == 1 &&
		searches.batches[0]->nasked + searches.queued == clients;
	/* choose the oldest batch that is done or, if we wait, the only one */
	while (i < searches.under_way && !wait &&
		   !gv_mirror_done(searches.batches[i]->searcher))
		i++;
	if (i == searches.under_way)
		return;
	batch = end_batch(i);
	/* copy the askers, because begin_batches() may use the slot again */
	n = batch->nasked;
	memcpy(askers, batch->askers, n * sizeof(askers[0]));
	if (!gv_server_failed())
		begin_batches();
	send_answers(askers, n);
}

/* ---- the loop */

/* Makes epoll watch a descriptor for `events`, and return `what` with them. */
static bool
watch(int operation, int fd, uint32_t events, void *what)
{
	struct epoll_event event;

	memset(&event, 0, sizeof(event));
	event.events = events;
	event.data.ptr = what;
	return epoll_ctl(loop.epoll, operation, fd, &event) == 0;
}

static void
remember(GvConnection *connection)
{
	LIST_INSERT_HEAD(&loop.list, connection, link);
	loop.connected++;
}

static void
forget(GvConnection *connection)
{
	LIST_REMOVE(connection, link);
	loop.connected--;
}

/* Accepts connections again if that was paused. */
static void
listen_again(void)
{
	if (loop.paused)
		loop.paused = !watch(EPOLL_CTL_ADD, loop.listener, EPOLLIN,
							 &loop.listener);
}

/*
 * Looks at a session's mailbox from now on, unless there are too many.  Then
 * the session goes on sending LOOK.
 */
static void
attend(GvConnection *connection)
{
	if (connection->wake_fd < 0 || connection->attended ||
		loop.nattended == GV_MAX_BATCH)
		return;
	connection->attended = true;
	loop.attended[loop.nattended++] = connection;
	(void) gv_mail_change(gv_mailbox(connection), GV_MAIL_UNATTENDED,
						  GV_MAIL_ATTENDED);
}

/* Does not look at the mailbox of loop.attended[i] any more. */
static void
neglect(int i)
{
	loop.attended[i]->attended = false;
	loop.attended[i] = loop.attended[--loop.nattended];
}

/* Tells sessions that have not asked whether the loop looks at mailboxes. */
static void
tell_sessions(bool looks)
{
	int			i;

	for (i = 0; i < loop.nattended; i++)
		(void) gv_mail_change(gv_mailbox(loop.attended[i]),
							  looks ? GV_MAIL_UNATTENDED : GV_MAIL_ATTENDED,
							  looks ? GV_MAIL_ATTENDED : GV_MAIL_UNATTENDED);
}

static void
close_connection(GvConnection *connection)
{
	int			i = loop.nattended;

	while (--i >= 0)
		if (loop.attended[i] == connection)
			neglect(i);
	forget(connection);
	gv_connection_close(connection);
	listen_again();
}

bool
gv_loop_has_sessions(void)
{
	const GvConnection *connection;

	LIST_FOREACH(connection, &loop.list, link)
		if (connection->role == GV_ROLE_SESSION &&
			!gv_connection_is_gone(connection))
		return true;
	return false;
}

static void
accept_connections(void)
{
	int			i;

	for (i = 0; i < ACCEPTS; i++)
	{
		int			fd = accept4(loop.listener, NULL, NULL, SOCK_CLOEXEC);
		GvConnection *connection;

		if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
			continue;
		if (fd < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (fd < 0)
		{
			if (!loop.is_short)
				gv_log("WARNING", "could not accept a connection: %s",
					   strerror(errno));
			loop.is_short = true;
			/* the waiting connection would wake the loop again and again */
			loop.paused = watch(EPOLL_CTL_DEL, loop.listener, 0, NULL);
			return;
		}
		loop.is_short = false;
		connection = gv_folder_admits(fd) ?
			gv_connection_open(fd, ++loop.connections) : NULL;
		if (connection == NULL)
		{
			close(fd);
			continue;
		}
		remember(connection);
		connection->over_limit =
			gv_counted(connections) > gv_server.max_connections;
		if (!watch(EPOLL_CTL_ADD, fd, EPOLLIN, connection))
			close_connection(connection);
	}
}

bool
gv_loop_answer(GvConnection *connection)
{
	GvFlushed	flushed = gv_connection_flush(connection, false);
	bool		later = flushed == GV_FLUSH_LATER;

	if (flushed == GV_FLUSH_BROKEN ||
		(flushed == GV_FLUSHED && connection->close_after_send) ||
		(later != connection->writing &&
		 !watch(EPOLL_CTL_MOD, connection->fd, later ? EPOLLOUT : EPOLLIN,
				connection)))
	{
		close_connection(connection);
		return false;
	}
	if (later && !connection->writing)
		connection->begun_ns = gv_now_ns();
	connection->writing = later;
	return true;
}

/*
 * Sends the answer to a hello.  If the client was let in and is not a session,
 * starts a thread for the client.  The thread then owns the connection.
 */
static void
give_thread(GvConnection *connection)
{
	/* a client has no role yet if there was no memory to let it in */
	if (!gv_loop_answer(connection) || connection->role == 0 ||
		connection->role == GV_ROLE_SESSION)
		return;
	forget(connection);
	if (!watch(EPOLL_CTL_DEL, connection->fd, 0, NULL) ||
		!gv_client_start(connection))
	{
		gv_log("WARNING", "could not start a thread for a client");
		remember(connection);
		close_connection(connection);
	}
}

/*
 * Serves a client that has sent data, can take more of its answer, or is gone.
 * If there are no events, looks into a session's mailbox.
 */
static void
serve(GvConnection *connection, uint32_t events)
{
	bool		greets = connection->role == 0;

	if (connection->search_pending)
	{
		/* the search of a session that is gone must not delay others */
		if ((events & (EPOLLHUP | EPOLLERR)) != 0 &&
			batches_withdraw(connection))
			close_connection(connection);
		return;
	}
	if (connection->writing)
	{
		if (events != 0)
			gv_loop_answer(connection);
		return;
	}
	attend(connection);
	switch (events != 0 ? gv_connection_receive(connection, false) :
			gv_mailbox_take(connection))
	{
		case GV_RECEIVED_PART:
			break;
		case GV_RECEIVED_WHOLE:
			gv_message_answer(connection);
			if (greets)
				give_thread(connection);
			else if (!connection->search_pending)
				gv_loop_answer(connection);
			break;
		case GV_RECEIVED_WRONG:
			gv_loop_answer(connection);
			break;
		case GV_RECEIVED_END:
			close_connection(connection);
			break;
	}
}

/* Takes searches from mailboxes, as many as the queue has room for. */
static void
look_at_mailboxes(void)
{
	int			i;

	for (i = loop.nattended - 1; i >= 0 && searches.queued < GV_MAX_BATCH; i--)
		serve(loop.attended[i], 0);
}

/*
 * Closes connections of clients that did not say hello in time or are stuck,
 * since connections are limited.  A client may be idle for days between
 * messages, but its mailbox is not looked at for so long.  Accepts connections
 * again if that was paused.
 */
static void
look_at_clients(void)
{
	uint64_t	now = gv_now_ns();
	GvConnection *connection;
	GvConnection *next;
	int			i;

	if (now < loop.look_ns)
		return;
	loop.look_ns = now + LOOK_MS * UINT64_C(1000000);
	for (i = loop.nattended - 1; i >= 0; i--)
		if (now - loop.attended[i]->received_ns > LOOK_MS * UINT64_C(1000000) &&
			gv_mail_change(gv_mailbox(loop.attended[i]), GV_MAIL_ATTENDED,
						   GV_MAIL_UNATTENDED))
			neglect(i);
	for (connection = LIST_FIRST(&loop.list); connection != NULL;
		 connection = next)
	{
		next = LIST_NEXT(connection, link);
		if ((connection->role == 0 &&
			 now - connection->opened_ns >= HELLO_MS * UINT64_C(1000000)) ||
			(!connection->search_pending &&
			 gv_connection_is_stuck(connection)))
			close_connection(connection);
	}
	listen_again();
}

int
gv_loop_run(int listener)
{
	static struct epoll_event events[GV_MAX_BATCH];
	GvStatus	status = gv_batches_open();
	bool		mail_first = false;

	if (status != GV_OK)
	{
		gv_log("FATAL", "could not start engine (status %d)",
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
	if (gv_server.batch_timeout_s > 0 &&
		!gv_thread_start(watchdog_main, NULL, NULL))
	{
		gv_log("FATAL", "could not start a thread");
		return GV_EXIT_SYSTEM;
	}
	searching = 0;
	gv_log("LOG", "ready: engine %s on %s", gv_server.engine,
		   gv_server.device);
	while (!stop_asked && !gv_server_failed() && !gv_incarnation_is_over())
	{
		bool		rests = searches.under_way == 0 && searches.queued == 0;
		int			available;
		int			wait_ms;
		int			n;
		int			i;

		/*
		 * A session that asks before it is told this is seen here.  Mailboxes
		 * come before sockets every other time, too: sockets alone may fill
		 * the queue again and again.
		 */
		if (rests)
			tell_sessions(false);
		if (searches.queued < GV_MAX_BATCH)
			mail_first = !mail_first;
		if (rests || mail_first)
			look_at_mailboxes();

		/*
		 * take no more events than the queue has room for, because each event
		 * may be a search
		 */
		available = GV_MAX_BATCH - searches.queued;
		/* do not wait while there are searches; otherwise wait for a client */
		wait_ms = searches.under_way > 0 || searches.queued > 0 ? 0 :
			loop.connected > 0 || loop.paused ? LOOK_MS : -1;
		n = available == 0 ? 0 :
			epoll_wait(loop.epoll, events, available, wait_ms);
		if (rests)
			tell_sessions(true);
		gv_watchdog_round(true);
		for (i = 0; i < n; i++)
		{
			void	   *what = events[i].data.ptr;

			if (what == &loop.listener)
				accept_connections();
			else if (what != &loop.wake)
				serve(what, events[i].events);
		}
		look_at_mailboxes();
		if (n >= 0)
			gv_batches_go_on(loop.connected);
		look_at_clients();
		gv_watchdog_round(false);
	}
	/* a broken engine might never end the batches under way */
	if (gv_server_failed())
		return GV_EXIT_FAILED;
	/* the clients of the last incarnation have gone, so nobody waits */
	if (gv_incarnation_is_over() && !stop_asked)
		return GV_EXIT_INCARNATION;
	while (searches.under_way > 0)
	{
		GvBatchSlot *batch = end_batch(0);

		send_answers(batch->askers, batch->nasked);
	}
	while (!LIST_EMPTY(&loop.list))
		close_connection(LIST_FIRST(&loop.list));
	close(listener);
	return 0;
}
