/*
 * watch.c
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
#include "server/gv_server.h"

#include <time.h>
#include <unistd.h>

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
void
gv_watchdog_batch(int32_t device, uint64_t began_ns)
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
bool
gv_watchdog_start(int patience_s)
{
	watchdog.patience_s = patience_s;

	return patience_s == 0 || gv_thread_start(watchdog_main, NULL, NULL);
}
