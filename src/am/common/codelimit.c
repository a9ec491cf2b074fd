/*
 * codelimit.c
 *		The limit on an index owner's code that a worker runs.
 *
 * A function of an index may wait for ever, and may catch a cancellation.  So
 * the process ends itself, as pg_terminate_backend would have it end: no code
 * can catch that.  A timer checks whether a row was finished since its last
 * check.  Only who reads rows has a snapshot (util.c), so the time that a
 * worker clusters or writes does not count.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "am/common/codelimit.h"

/* How often the timer checks, and how long a cancellation may be unheeded. */
#define LOOK_MS			200
#define CANCEL_MS		1000

int			ivfpq_training_timeout = 60000;
volatile uint32 ivfpq_rows_done = 0;

static TimeoutId timer;
static int	timeout_ms;			/* 0: none */
static uint32 rows_seen;		/* at the last check */
static TimestampTz row_since;	/* the row at hand is computed */
static TimestampTz cancel_since;	/* a cancel is known; 0: there is none */
static volatile sig_atomic_t canceled = false;
static volatile IvfpqLimitHit hit = IVFPQ_LIMIT_NONE;

/* The timer's check, in a signal handler. */
static void
look(void)
{
	TimestampTz now = GetCurrentTimestamp();

	if (rows_seen != ivfpq_rows_done || !ActiveSnapshotSet())
		row_since = now;
	rows_seen = ivfpq_rows_done;
	if (canceled && cancel_since == 0)
		cancel_since = now;
	if (canceled &&
		TimestampDifferenceExceeds(cancel_since, now, CANCEL_MS))
		hit = IVFPQ_LIMIT_CANCEL;
	else if (timeout_ms > 0 &&
			 TimestampDifferenceExceeds(row_since, now, timeout_ms))
		hit = IVFPQ_LIMIT_ROW;
	else
		return;
	/* as die() does */
	InterruptPending = true;
	ProcDiePending = true;
	SetLatch(MyLatch);
}

/* Once in a process, before the others. */
void
IvfpqLimitInit(void)
{
	timer = RegisterTimeout(USER_TIMEOUT, look);
}

/*
 * From here on each row has to be finished within gpuvec.training_timeout, and
 * a cancellation heeded within CANCEL_MS.
 */
void
IvfpqLimitBegin(void)
{
	timeout_ms = ivfpq_training_timeout;
	rows_seen = ivfpq_rows_done;
	row_since = GetCurrentTimestamp();
	cancel_since = 0;
	canceled = false;
	enable_timeout_every(timer,
						 TimestampTzPlusMilliseconds(row_since, LOOK_MS),
						 LOOK_MS);
}

/* A cancellation has come; in a signal handler. */
void
IvfpqLimitCancel(void)
{
	canceled = true;
}

/* No more of that code is run, or it has ended. */
void
IvfpqLimitEnd(void)
{
	disable_timeout(timer, false);
}

/* Does the process end because of the limit? */
IvfpqLimitHit
IvfpqLimitIsHit(void)
{
	return hit;
}
