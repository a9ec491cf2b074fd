/*
 * turns.c
 *		Searches that wait, and the batches that are under way.
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
#include "server/gv_server.h"

#include <signal.h>
#include <string.h>

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
bool
gv_batches_searching(void)
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
int
gv_batches_available(void)
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
bool
gv_batches_withdraw(GvConnection *connection)
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
	gv_watchdog_batch((int32_t) (dev - searches.devices),
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
void
gv_batches_end(void)
{
	int32_t		device;

	for (device = 0; device < searches.ndevices; device++)
		while (searches.devices[device].under_way > 0)
			finish_oldest(&searches.devices[device]);
}
