/*
 * handler.c
 *		The access method's description of itself, and its index options.
 */
#include "postgres.h"

#include "access/amapi.h"
#include "access/reloptions.h"
#include "commands/progress.h"
#include "commands/vacuum.h"
#include "fmgr.h"
#include "storage/lockdefs.h"

#include "am/ivfpq.h"

/* An entry of the table of options, named like its field. */
#define INT_OPTION(name) \
	{.optname = #name, .opttype = RELOPT_TYPE_INT, \
	 .offset = offsetof(IvfpqOptions, name)}

static relopt_kind ivfpq_relopt_kind;

static relopt_enum_elt_def refine_values[] = {
	{"none", IVFPQ_REFINE_NONE},
	{"sq8", IVFPQ_REFINE_SQ8},
	{NULL, 0}
};

PG_FUNCTION_INFO_V1(gpuivfpqhandler);

/*
 * Make the options of CREATE INDEX known.  Call once a process.  Options
 * that only scans read can be changed beside running queries.
 */
void
IvfpqInitOptions(void)
{
	ivfpq_relopt_kind = add_reloption_kind();

	add_int_reloption(ivfpq_relopt_kind, "lists",
					  "Number of inverted lists, 0 = from the row count",
					  0, 0, IVFPQ_MAX_LISTS, AccessExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "pq_dim",
					  "Number of sub-quantizers, 0 = from the dimension",
					  0, 0, IVFPQ_MAX_DIMS, AccessExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "probes",
					  "Lists that a scan reads first, 0 = default",
					  0, 0, IVFPQ_MAX_LISTS, ShareUpdateExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "candidates",
					  "Rows whose exact distance a scan computes first, "
					  "0 = default",
					  0, 0, IVFPQ_MAX_CANDIDATES, ShareUpdateExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "dims",
					  "Dimensions of the vectors, 0 = from type or rows",
					  0, 0, IVFPQ_MAX_DIMS, AccessExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "spill",
					  "Second copies of rows, in a list that makes up for "
					  "the first, -1 = default",
					  -1, -1, 1, AccessExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "train_rows",
					  "Rows with which an untrained index trains itself",
					  IVFPQ_TRAIN_ROWS, 1, PG_INT32_MAX,
					  ShareUpdateExclusiveLock);
	add_enum_reloption(ivfpq_relopt_kind, "refine",
					   "Compact copies of rows, by which a scan knows which "
					   "rows it need not fetch",
					   refine_values, IVFPQ_REFINE_NONE,
					   "Valid values are \"none\" and \"sq8\".",
					   AccessExclusiveLock);
}

/*
 * amoptions: parse and, if validate, check.  Ranges are checked by core;
 * what is left is how options go together.
 */
bytea *
ivfpqoptions(Datum reloptions, bool validate)
{
	static const relopt_parse_elt table[] = {
		INT_OPTION(lists),
		INT_OPTION(pq_dim),
		INT_OPTION(probes),
		INT_OPTION(candidates),
		INT_OPTION(dims),
		INT_OPTION(spill),
		INT_OPTION(train_rows),
		{.optname = "refine", .opttype = RELOPT_TYPE_ENUM,
		.offset = offsetof(IvfpqOptions, refine)},
	};
	IvfpqOptions *options;

	options = build_reloptions(reloptions, validate, ivfpq_relopt_kind,
							   sizeof(IvfpqOptions), table, lengthof(table));

	if (validate && options != NULL && options->dims > 0 &&
		options->pq_dim > options->dims)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("pq_dim %d is larger than dims %d",
						options->pq_dim, options->dims),
				 errhint("A sub-quantizer needs at least one dimension; "
						 "leave pq_dim out to have it chosen.")));
	return (bytea *) options;
}

/* ambuildphasename: names for pg_stat_progress_create_index */
char *
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
 * amproperty: every column can be ordered by distance, which core cannot
 * know; all else it answers itself.
 */
static bool
ivfpqproperty(Oid index_oid, int attno, IndexAMProperty prop,
			  const char *propname, bool *res, bool *isnull)
{
	if (prop != AMPROP_DISTANCE_ORDERABLE || attno == 0)
		return false;
	*res = true;
	return true;
}

/* What the access method can do. */
static void
FillCapabilities(IndexAmRoutine *amroutine)
{
	amroutine->amstrategies = IVFPQ_NSTRATEGIES;
	amroutine->amsupport = IVFPQ_NPROCS;
	amroutine->amoptsprocnum = 0;
	amroutine->amcanorder = false;
	amroutine->amcanorderbyop = true;
	amroutine->amcanbackward = false;
	amroutine->amcanunique = false;
	amroutine->amcanmulticol = false;
	/* no WHERE clause is ever indexable, so none can be required */
	amroutine->amoptionalkey = true;
	amroutine->amsearcharray = false;
	amroutine->amsearchnulls = false;
	amroutine->amstorage = false;
	amroutine->amclusterable = false;
	amroutine->ampredlocks = false;
	amroutine->amcanparallel = false;
	amroutine->amcaninclude = false;
	amroutine->amusemaintenanceworkmem = false;
	amroutine->amparallelvacuumoptions =
		VACUUM_OPTION_PARALLEL_BULKDEL | VACUUM_OPTION_PARALLEL_COND_CLEANUP;
	amroutine->amkeytype = InvalidOid;
}

/* How it does it. */
static void
FillCallbacks(IndexAmRoutine *amroutine)
{
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
}

/* gpuivfpqhandler(internal) -> index_am_handler; the result is palloc'd. */
Datum
gpuivfpqhandler(PG_FUNCTION_ARGS)
{
	IndexAmRoutine *amroutine = makeNode(IndexAmRoutine);

	FillCapabilities(amroutine);
	FillCallbacks(amroutine);
	IvfpqFillVersionSlots(amroutine);
	PG_RETURN_POINTER(amroutine);
}
