/*
 * injection.c
 *		Injection points, at which tests make a backend stop (injection.h).
 */
#include "postgres.h"

#include <signal.h>
#include <unistd.h>

#include "access/xlog.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "page/injection.h"

char	   *ivfpq_injection_point = NULL;

/* Steps that matched since the setting changed. */
static int	nhits = 0;

/* The setting has changed: count anew. */
void
IvfpqInjectionPointReset(void)
{
	nhits = 0;
}

/* Wait until the lock is free, and go on. */
static void
wait_for_lock(void)
{
	Datum		zero = Int32GetDatum(0);
	Datum		key = Int32GetDatum(IVFPQ_INJECTION_POINT_LOCK);

	DirectFunctionCall2(pg_advisory_lock_int4, zero, key);
	DirectFunctionCall2(pg_advisory_unlock_int4, zero, key);
}

/* Stop if this is the step that the setting names. */
void
IvfpqInjectionPointReached(const char *step)
{
	char		action[16];
	int			n;
	int			at;

	if (sscanf(ivfpq_injection_point, "%15s %d %n", action, &n, &at) != 2 ||
		(strcmp(ivfpq_injection_point + at, "*") != 0 &&
		 strcmp(ivfpq_injection_point + at, step) != 0) ||
		++nhits != n)
		return;

	ereport(LOG,
			(errmsg_internal("gpuvec.fault: %s at step \"%s\"", action, step)));
	if (strcmp(action, "flush") == 0)
		XLogFlush(XactLastRecEnd);
	if (strcmp(action, "kill") == 0 || strcmp(action, "flush") == 0)
		kill(MyProcPid, SIGKILL);
	else if (strcmp(action, "wait") == 0)
		wait_for_lock();
	else if (strcmp(action, "memory") == 0)
		ereport(ERROR,
				(errcode(ERRCODE_DISK_FULL),
				 errmsg("could not resize shared memory segment")));
	else
		elog(ERROR, "gpuvec.fault: stopped at step \"%s\"", step);
}
