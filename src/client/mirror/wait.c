/*
 * wait.c
 *		Have an index mirrored, and wait for it.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "client/mirror/wanted.h"
#include "client/state/state.h"
#include "pgcompat.h"

/* How often to look whether gpuvecd is still there. */
#define LOOK_MS				200

/* How long it may take gpuvecd to come up. */
#define START_US			INT64CONST(30000000)

/* ERROR unless there can be mirrors. */
static void
check_server(void)
{
	IvfpqServerState state = IvfpqSharedState();

	if (ivfpq_shared == NULL || state == IVFPQ_STATE_OFF)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("there is no gpuvecd"),
				 ivfpq_shared == NULL && !IvfpqPreloadHelps() &&
				 ivfpq_server == IVFPQ_SERVER_AUTO ?
				 errdetail("This machine shows no card that it could use.") :
				 ivfpq_shared == NULL && ivfpq_server != IVFPQ_SERVER_OFF ?
				 errhint("Add gpuvec to shared_preload_libraries and restart the server.") :
				 errhint("It is turned off by gpuvec.server.")));
	if (state != IVFPQ_STATE_UP && state != IVFPQ_STATE_STARTING)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("gpuvecd is not running"),
				 errdetail("State is \"%s\".", IvfpqStateName()),
				 errhint("Look into the server's log.")));
}

/* Wait until it is up; ERROR if it is not to be. */
static void
wait_for_server(void)
{
	int64		deadline = IvfpqNow() + START_US;

	check_server();
	while (IvfpqSharedState() != IVFPQ_STATE_UP)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT |
						 WL_EXIT_ON_PM_DEATH, LOOK_MS, IvfpqWaitEvent());
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		check_server();
		if (IvfpqNow() > deadline)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("gpuvecd does not come up"),
					 errhint("Look into the server's log.")));
	}
}

/*
 * Is the request fulfilled?  ERROR if it failed.
 */
static bool
is_done(const GvMirrorKey *key, uint64 ticket, int64 *postings)
{
	IvfpqMirrorRequest request;

	if (!IvfpqMirrorRequestGet(key, &request))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the index was changed while it was mirrored"),
				 errhint("Try again.")));
	*postings = request.postings;
	if (request.done >= ticket)
		return true;
	if (request.refused >= ticket)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not mirror the index: %s", request.error)));
	return false;
}

/*
 * Have a mirror brought, or brought up to date, and wait for that; returns
 * the postings that it holds.  ERROR if it cannot be.  No loader brings the
 * mirror of an index that the caller has locked exclusively.
 */
int64
IvfpqPrewarm(const GvMirrorKey *key)
{
	uint64		ticket;
	int64		postings;

	wait_for_server();
	ticket = IvfpqRequestMirror(key, true, true);
	if (ticket == 0)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many indexes are being mirrored"),
				 errhint("Try again later.")));
	ConditionVariablePrepareToSleep(&ivfpq_shared->changed);
	while (!is_done(key, ticket, &postings))
	{
		(void) ConditionVariableTimedSleep(&ivfpq_shared->changed, LOOK_MS,
										   IvfpqWaitEvent());
		check_server();
	}
	ConditionVariableCancelSleep();
	return postings;
}
