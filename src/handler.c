/*
 * handler.c
 *		The handler function of gpuivfpq: its capabilities, and a callback for
 *		every verb.
 */
#include "postgres.h"

#include "access/amapi.h"
#include "commands/progress.h"
#include "commands/vacuum.h"
#include "fmgr.h"

#include "am/am.h"
#include "am/build/build.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/maintain/maintain.h"
#include "am/scan/scan.h"
#include "am/types/keys.h"
#include "pgcompat.h"
#include "planner/planner.h"

PG_FUNCTION_INFO_V1(gpuivfpqhandler);

/* ambuildphasename: names for pg_stat_progress_create_index */
static char *
ivfpqbuildphasename(int64 phasenum)
{
	switch (phasenum)
	{
		case PROGRESS_CREATEIDX_SUBPHASE_INITIALIZE:
			return "initializing";
		case IVFPQ_PHASE_SAMPLING:
			return "sampling";
		case IVFPQ_PHASE_CLUSTERING:
			return "clustering";
		case IVFPQ_PHASE_CODES:
			return "training codes";
		case IVFPQ_PHASE_ASSIGNING:
			return "assigning";
		case IVFPQ_PHASE_WRITING:
			return "writing";
		case IVFPQ_PHASE_CALIBRATING:
			return "calibrating";
		default:
			return NULL;
	}
}

/*
 * amproperty: the first column, the vector, can be ordered by distance, and
 * the keys behind it can be searched by arrays, which core cannot know.  Core
 * answers for all other properties.
 */
static bool
ivfpqproperty(Oid index_oid, int attno, IndexAMProperty prop,
			  const char *propname, bool *res, bool *isnull)
{
	if (attno == 0)
		return false;
	switch (prop)
	{
		case AMPROP_DISTANCE_ORDERABLE:
			*res = (attno == 1);
			return true;
		case AMPROP_SEARCH_ARRAY:
			*res = (attno > 1);
			return true;
		default:
			return false;
	}
}

/* gpuivfpqhandler(internal) -> index_am_handler; the result is palloc'd. */
Datum
gpuivfpqhandler(PG_FUNCTION_ARGS)
{
	IndexAmRoutine *amroutine = makeNode(IndexAmRoutine);

	amroutine->amstrategies = IVFPQ_NKEY_STRATEGIES;
	amroutine->amsupport = IVFPQ_NPROCS;
	amroutine->amoptsprocnum = 0;
	amroutine->amcanorder = false;
	amroutine->amcanorderbyop = true;
	amroutine->amcanbackward = false;
	amroutine->amcanunique = false;
	amroutine->amcanmulticol = true;
	/* the first column is ordered by, not searched */
	amroutine->amoptionalkey = true;
	amroutine->amsearcharray = true;
	amroutine->amsearchnulls = true;
	amroutine->amstorage = false;
	amroutine->amclusterable = false;
	amroutine->ampredlocks = false;
	amroutine->amcanparallel = false;
	amroutine->amcaninclude = false;
	amroutine->amusemaintenanceworkmem = false;
	amroutine->amparallelvacuumoptions =
		VACUUM_OPTION_PARALLEL_BULKDEL | VACUUM_OPTION_PARALLEL_COND_CLEANUP;
	amroutine->amkeytype = InvalidOid;

	amroutine->ambuild = ivfpqbuild;
	amroutine->ambuildempty = ivfpqbuildempty;
	amroutine->aminsert = ivfpqinsert;
	amroutine->ambulkdelete = ivfpqbulkdelete;
	amroutine->amvacuumcleanup = ivfpqvacuumcleanup;
	amroutine->amcanreturn = NULL;
	amroutine->amcostestimate = ivfpqcostestimate;
	amroutine->amoptions = ivfpqoptions;
	amroutine->amproperty = ivfpqproperty;
	amroutine->ambuildphasename = ivfpqbuildphasename;
	amroutine->amvalidate = ivfpqvalidate;
	amroutine->amadjustmembers = ivfpqadjustmembers;
	amroutine->ambeginscan = ivfpqbeginscan;
	amroutine->amrescan = ivfpqrescan;
	amroutine->amgettuple = ivfpqgettuple;
	amroutine->amgetbitmap = NULL;
	amroutine->amendscan = ivfpqendscan;
	amroutine->ammarkpos = NULL;
	amroutine->amrestrpos = NULL;
	amroutine->amestimateparallelscan = NULL;
	amroutine->aminitparallelscan = NULL;
	amroutine->amparallelrescan = NULL;
	IvfpqFillVersionSlots(amroutine);

	PG_RETURN_POINTER(amroutine);
}
