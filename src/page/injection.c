/*
 * injection.c
 *		Injection points, at which tests stop a backend; test build only.
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

/* Number of steps that matched the setting since it was last changed. */
static int	nhits = 0;

/* Begins to count steps from 0 again, because the setting has changed. */
void
IvfpqInjectionPointReset(void)
{
	nhits = 0;
}

/* Performs the setting's action if this is the step that the setting names. */
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
	{
		Datum		zero = Int32GetDatum(0);
		Datum		key = Int32GetDatum(IVFPQ_INJECTION_POINT_LOCK);

		DirectFunctionCall2(pg_advisory_lock_int4, zero, key);
		DirectFunctionCall2(pg_advisory_unlock_int4, zero, key);
	}
	else if (strcmp(action, "memory") == 0)
		ereport(ERROR,
				(errcode(ERRCODE_DISK_FULL),
				 errmsg("could not resize shared memory segment")));
	else
		elog(ERROR, "gpuvec.fault: stopped at step \"%s\"", step);
}
