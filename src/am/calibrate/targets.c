/*
 * targets.c
 *		Calibration of an index in use, and its targets, for SQL.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "commands/event_trigger.h"
#include "commands/tablecmds.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/tuplestore.h"

#include "am/calibrate/calibrate.h"
#include "am/common/enginecall.h"
#include "am/common/identity.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/search/params.h"
#include "am/train/train.h"
#include "pgcompat.h"

#define BATCH_ROWS	256			/* offered at once */
#define BLOCKS_A_SNAPSHOT	1024	/* read by the same snapshot */

/*
 * Queries that a user gives: the fewest; enough for intervals as narrow as a
 * build's; and the most that are used.
 */
#define LEAST_GIVEN			100
#define ENOUGH_GIVEN		200
#define MOST_GIVEN			1000

/* Columns of the results. */
#define TARGET_K			0
#define TARGET_RECALL		1
#define TARGET_PROBES		2
#define TARGET_CANDIDATES	3
#define TARGET_FOR			4
#define TARGET_NCOLUMNS		5

/* State of the pass that finds the ground truth. */
typedef struct Pass
{
	IvfpqType  *type;
	const IvfpqModel *model;
	IvfpqCalibration *calibration;
	MemoryContext tmp;			/* reset after every row */
	int			nbatch;
	float	   *batch;			/* [BATCH_ROWS][dims] */
	uint64		ids[BATCH_ROWS];
	int64		rows;
} Pass;

PG_FUNCTION_INFO_V1(gpuvec_calibrate);
PG_FUNCTION_INFO_V1(gpuvec_calibration);

static void
flush_batch(Pass *pass)
{
	if (pass->nbatch > 0)
		IvfpqCalibrationOffer(pass->calibration, pass->batch, pass->ids,
							  pass->nbatch);
	pass->rows += pass->nbatch;
	pass->nbatch = 0;
	CHECK_FOR_INTERRUPTS();
}

/* Called for every row of the table that a snapshot sees. */
static void
offer_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
			   bool alive, void *arg)
{
	Pass	   *pass = arg;
	MemoryContext oldcontext;
	const float *row;
	int			dims;

	IvfpqRowDone();
	if (isnull[0])
		return;
	oldcontext = MemoryContextSwitchTo(pass->tmp);
	row = IvfpqValueFloats(pass->type, values[0], &dims);
	MemoryContextSwitchTo(oldcontext);
	/* one of another length is pending for ever: no neighbor of any query */
	if (dims == pass->model->meta.dims &&
		IvfpqIsPlaceable(pass->type, row, dims))
	{
		uint64		id = IvfpqTidToId(tid);

		gv_transform(&pass->model->gv, row, 1,
					 pass->batch + (Size) pass->nbatch * dims);
		pass->ids[pass->nbatch++] = id;
		if (IvfpqLevelHas(1, id))
			IvfpqCalibrationSample(pass->calibration, row, id);
	}
	MemoryContextReset(pass->tmp);
	if (pass->nbatch == BATCH_ROWS)
		flush_batch(pass);
}

/* Offers all rows of the table, those of some blocks by one snapshot. */
static void
read_table(Pass *pass, Relation heap, Relation index, IndexInfo *indexInfo)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(heap);

	for (int64 first = 0; first < nblocks; first += BLOCKS_A_SNAPSHOT)
	{
		IvfpqSnapshotRenew();
		(void) table_index_build_range_scan(heap, index, indexInfo, false,
											false, false,
											(BlockNumber) first,
											Min(BLOCKS_A_SNAPSHOT,
												nblocks - first),
											offer_callback, pass, NULL);
		flush_batch(pass);
	}
}

/*
 * Draws rows and makes calibration queries of them, transformed; fewer than
 * are needed when the table is small.  Where too few of the rows drawn are
 * different, draws again as many as memory holds.
 */
static int
draw_queries(IvfpqSample *sample, const IvfpqModel *model, Relation heap,
			 Relation index, IndexInfo *indexInfo, float **held_out,
			 int *depth)
{
	IvfpqHeldOut held;
	double		rows;
	Size		values;
	float	   *queries;
	uint64	   *ids;
	bool		more = true;
	int			n;

	sample->dims = model->meta.dims;
	sample->lenient = true;
	sample->capacity = IvfpqCalibrationQueries(get_float8_infinity()) +
		IvfpqRowsAround(sample->dims);
	for (;;)
	{
		sample->least = sample->capacity;
		IvfpqSampleTake(sample, heap, index, indexInfo, &rows);
		IvfpqSampleShuffle(sample);
		(void) IvfpqSampleDistinct(sample);
		n = (int) Min(IvfpqCalibrationQueries(rows), sample->count);
		if (n == 0)
			return 0;
		if (!more || sample->ndistinct >= n || sample->whole)
			break;
		more = false;
		pfree(sample->counts);
		pfree(sample->rows);
		pfree(sample->ids);
		sample->rows = NULL;
		sample->capacity = 0;
	}
	IvfpqHoldOut(sample, n, rows, &held);
	values = (Size) held.n * sample->dims;
	queries = palloc_extended(values * sizeof(float), MCXT_ALLOC_HUGE);
	*held_out = palloc_extended(values * sizeof(float), MCXT_ALLOC_HUGE);
	ids = palloc(held.n * sizeof(uint64));
	IvfpqMakeCalibrationQueries(sample, &held, queries, *held_out, ids);
	gv_transform(&model->gv, *held_out, held.n, *held_out);
	gv_transform(&model->gv, queries, held.n, queries);
	sample->rows = queries;
	sample->ids = ids;
	*depth = held.depth;
	return held.n;
}

/*
 * Makes a user's queries those of a sample, in random order, because later
 * levels take the first ones.
 */
static int
take_given(IvfpqSample *sample, IvfpqQueries *given, const IvfpqModel *model)
{
	IvfpqQueriesFit(given, sample->type, model->meta.dims);
	if (given->n < LEAST_GIVEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%d queries are too few to calibrate with", given->n),
				 errhint("Give at least %d; with %d to %d targets are told well.",
						 LEAST_GIVEN, ENOUGH_GIVEN, MOST_GIVEN)));
	if (given->n < ENOUGH_GIVEN)
		ereport(NOTICE,
				(errmsg("%d queries tell little", given->n),
				 errdetail("Intervals are wide, so targets take more than they would with %d to %d, and high ones are not told.",
						   ENOUGH_GIVEN, MOST_GIVEN)));
	IvfpqQueriesDraw(given, MOST_GIVEN);
	sample->rows = palloc_extended((Size) given->n * given->dims *
								   sizeof(float), MCXT_ALLOC_HUGE);
	gv_transform(&model->gv, given->vectors, given->n, sample->rows);
	sample->ids = palloc(given->n * sizeof(uint64));
	for (int i = 0; i < given->n; i++)
		sample->ids[i] = IVFPQ_NO_ROW;
	return given->n;
}

/*
 * Measures what each recall takes on a trained index, and stores it; with the
 * queries in *given, or with rows of the table if that is NULL.  Returns false
 * when the index is untrained, has too few rows, or was trained anew
 * meanwhile.  The caller acts as the table's owner and keeps others from
 * training.
 */
bool
IvfpqCalibrateIndex(Relation heap, Relation index, IvfpqQueries *given)
{
	IndexInfo  *indexInfo = IvfpqIndexInfo(index);
	IvfpqModel *model = IvfpqModelGet(index);
	IvfpqType	type;
	IvfpqSample sample = {.type = &type};
	Pass		pass = {.type = &type, .model = model};
	IvfpqParallel parallel;
	float	   *held_out = NULL;
	int			depth = IVFPQ_GROUND_TRUTH_ROWS + 1;
	int			n;

	IvfpqTypeInit(&type, index);
	indexInfo->ii_Concurrent = true;	/* rows that a snapshot sees */
	if (model->meta.nlists == 0)
		return false;
	if (model->meta.rotated)
		model->gv.rotation = IvfpqRotationLoad(index, &model->meta);
	n = given ? take_given(&sample, given, model) :
		draw_queries(&sample, model, heap, index, indexInfo, &held_out,
					 &depth);
	if (n == 0)
		return false;

	pass.tmp = AllocSetContextCreate(CurrentMemoryContext,
									 "gpuivfpq calibration row",
									 ALLOCSET_DEFAULT_SIZES);
	pass.batch = palloc((Size) BATCH_ROWS * model->meta.dims * sizeof(float));
	pass.calibration = IvfpqCalibrationBegin(&model->gv, n, sample.rows,
											 given ? sample.rows : held_out,
											 sample.ids, depth);
	read_table(&pass, heap, index, indexInfo);
	IvfpqCalibrationFlush(pass.calibration);
	if (IvfpqCalibrationQueries(pass.rows) == 0)
		return false;
	model->meta.rows_at_calibration = pass.rows;
	model->meta.calibrated_for = given ? IVFPQ_FOR_QUERIES : IVFPQ_FOR_ROWS;
	IvfpqParallelInitSerial(&parallel);
	IvfpqSnapshotDrop();
	IvfpqCalibrationRun(pass.calibration, index, &model->meta, NULL,
						&parallel);
	IvfpqSnapshotTake();
	return IvfpqMetaCalibrate(index, &model->meta);
}

/*
 * Has the index's option say which queries its targets are for.  The metapage
 * says so, too, but REINDEX, which calibrates with rows, and a restore make it
 * anew; the option stays and tells that something is to be done.
 */
static void
set_calibrated_for(Relation index, IvfpqCalibratedFor what)
{
	AlterTableStmt *statement = makeNode(AlterTableStmt);
	AlterTableCmd *command = makeNode(AlterTableCmd);
	Node	   *value = NULL;

	if (IvfpqGetOptions(index)->calibrated_for == (int) what)
		return;
	if (what == IVFPQ_FOR_QUERIES)
		value = (Node *) makeString(pstrdup("queries"));
	command->subtype = value ? AT_SetRelOptions : AT_ResetRelOptions;
	command->def = (Node *) list_make1(makeDefElem("calibrated_for", value, -1));
	statement->relation = makeRangeVar(get_namespace_name(RelationGetNamespace(index)),
									   pstrdup(RelationGetRelationName(index)),
									   -1);
	statement->cmds = list_make1(command);
	statement->objtype = OBJECT_INDEX;

	/* within another command its event triggers learn of this one, too */
	EventTriggerAlterTableStart((Node *) statement);
	AlterTableInternal(RelationGetRelid(index), statement->cmds, false);
	EventTriggerAlterTableEnd();
}

/* Returns the metapage's targets as rows of the function's result. */
static void
put_targets(FunctionCallInfo fcinfo, Relation index)
{
	static const double recalls[IVFPQ_TARGETS] = IVFPQ_TARGET_RECALLS;
	static const int depths[IVFPQ_DEPTHS] = IVFPQ_DEPTH_ROWS;
	static const char *const queries[] = {
		[IVFPQ_FOR_ROWS] = "rows",
		[IVFPQ_FOR_QUERIES] = "queries"
	};
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	IvfpqMetaData meta;

	IvfpqMetaRead(index, &meta);
	if (meta.nlists == 0 || meta.rows_at_calibration == 0)
		return;
	for (int d = 0; d < meta.calibrated_depths; d++)
		for (int t = 0; t < IVFPQ_TARGETS; t++)
		{
			const IvfpqTarget *target = &meta.targets[d][t];
			Datum		values[TARGET_NCOLUMNS];
			bool		nulls[TARGET_NCOLUMNS] = {false};

			/* not proven: more than that of .99 is taken */
			if (target->candidates == 0 && recalls[t] > IVFPQ_SURE_RECALL)
				continue;
			values[TARGET_K] = Int32GetDatum(depths[d]);
			values[TARGET_RECALL] = Float8GetDatum(recalls[t]);
			values[TARGET_PROBES] = Int32GetDatum(target->probes);
			values[TARGET_CANDIDATES] = Int32GetDatum(target->candidates);
			values[TARGET_FOR] =
				CStringGetTextDatum(queries[meta.calibrated_for]);
			/* out of reach: everything is read */
			nulls[TARGET_PROBES] = target->candidates == 0;
			nulls[TARGET_CANDIDATES] = target->candidates == 0;
			tuplestore_putvalues(result->setResult, result->setDesc, values,
								 nulls);
		}
}

/* ERROR unless the current user may calibrate the index. */
static void
check_owner(Relation heap, Relation index)
{
	if (!IvfpqOwnsRelation(RelationGetRelid(heap), GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_INDEX,
					   RelationGetRelationName(index));
}

/*
 * gpuvec_calibrate(index regclass, queries real[], queries_table regclass,
 *		queries_column name)
 */
Datum
gpuvec_calibrate(PG_FUNCTION_ARGS)
{
	Relation	heap;
	Relation	index;
	IvfpqIdentity caller;
	MemoryContext context;
	MemoryContext oldcontext;
	IvfpqQueries given;
	bool		has_given;
	bool		done;

	InitMaterializedSRF(fcinfo, 0);
	if (PG_ARGISNULL(0))
		return (Datum) 0;
	PreventCommandDuringRecovery("gpuvec_calibrate()");
	has_given = IvfpqQueriesArgument(fcinfo, 1, MOST_GIVEN, &given);
	index = IvfpqOpenToChange(PG_GETARG_OID(0), check_owner, &heap);
	IvfpqCheckBuilt(index);

	context = AllocSetContextCreate(CurrentMemoryContext,
									"gpuivfpq calibration",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	IvfpqActAsOwner(&caller, heap);
	done = IvfpqCalibrateIndex(heap, index, has_given ? &given : NULL);
	IvfpqActAsCaller(&caller);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);

	if (done)
	{
		set_calibrated_for(index, has_given ? IVFPQ_FOR_QUERIES : IVFPQ_FOR_ROWS);
		put_targets(fcinfo, index);
	}
	else
		ereport(NOTICE,
				(errmsg("index \"%s\" was not calibrated",
						RelationGetRelationName(index)),
				 errdetail("It is not trained, or the table has too few rows.")));
	relation_close(index, NoLock);
	table_close(heap, NoLock);
	return (Datum) 0;
}

/* gpuvec_calibration(index regclass) */
Datum
gpuvec_calibration(PG_FUNCTION_ARGS)
{
	Relation	index = IvfpqOpenIndex(PG_GETARG_OID(0), AccessShareLock);

	IvfpqCheckInspect(index);
	IvfpqCheckBuilt(index);
	InitMaterializedSRF(fcinfo, 0);
	put_targets(fcinfo, index);
	relation_close(index, AccessShareLock);
	return (Datum) 0;
}
