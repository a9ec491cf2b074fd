/*
 * targets.c
 *		Calibration of an index in use, and what it found, for SQL.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/calibrate/calibrate.h"
#include "am/common/identity.h"
#include "am/common/snapshot.h"
#include "am/common/tid.h"
#include "am/scan/effort.h"
#include "am/train/train.h"
#include "pgcompat.h"

#define BATCH_ROWS	256			/* offered at once */
#define BLOCKS_A_SNAPSHOT	1024	/* read by the same snapshot */

/* Columns of the results. */
#define TARGET_K			0
#define TARGET_RECALL		1
#define TARGET_PROBES		2
#define TARGET_CANDIDATES	3
#define TARGET_NCOLUMNS		4

/* State of the pass that finds the true neighbours. */
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

	if (isnull[0])
		return;
	oldcontext = MemoryContextSwitchTo(pass->tmp);
	row = IvfpqValueFloats(pass->type, values[0], &dims);
	MemoryContextSwitchTo(oldcontext);
	/* one of another length is pending for ever: no neighbour of any query */
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

/* Offer all rows of the table, those of some blocks by one snapshot. */
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
 * Draw rows and make points beside them queries, transformed; fewer than are
 * needed when the table is small.
 */
static int
draw_queries(IvfpqSample *sample, const IvfpqModel *model, Relation heap,
			 Relation index, IndexInfo *indexInfo)
{
	double		rows;
	int			n;

	sample->dims = model->meta.dims;
	sample->lenient = true;
	sample->capacity = IvfpqCalibrationQueries(get_float8_infinity()) +
		IvfpqRowsAround(sample->dims);
	sample->least = sample->capacity;
	IvfpqSampleTake(sample, heap, index, indexInfo, &rows);
	IvfpqSampleShuffle(sample);
	n = (int) Min(IvfpqCalibrationQueries(rows), sample->count);
	if (n > 0)
	{
		IvfpqMoveBeside(sample->type->metric, sample->dims, sample->rows, n,
						sample->rows + (Size) n * sample->dims,
						sample->count - n);
		gv_transform(&model->gv, sample->rows, n, sample->rows);
	}
	return n;
}

/*
 * Measure what each recall takes on a trained index, and store it.  False
 * when it is untrained, has too few rows, or was trained anew meanwhile.  The
 * caller acts as the table's owner and keeps others from training.
 */
bool
IvfpqCalibrateIndex(Relation heap, Relation index)
{
	IndexInfo  *indexInfo = IvfpqIndexInfo(index);
	IvfpqModel *model = IvfpqModelGet(index);
	IvfpqType	type;
	IvfpqSample sample = {.type = &type};
	Pass		pass = {.type = &type, .model = model};
	IvfpqTeam	team;
	int			n;

	IvfpqTypeInit(&type, index);
	indexInfo->ii_Concurrent = true;	/* rows that a snapshot sees */
	if (model->meta.nlists == 0)
		return false;
	n = draw_queries(&sample, model, heap, index, indexInfo);
	if (n == 0)
		return false;

	pass.tmp = AllocSetContextCreate(CurrentMemoryContext,
									 "gpuivfpq calibration row",
									 ALLOCSET_DEFAULT_SIZES);
	pass.batch = palloc((Size) BATCH_ROWS * model->meta.dims * sizeof(float));
	pass.calibration = IvfpqCalibrationBegin(&model->gv, n, sample.rows,
											 sample.ids);
	read_table(&pass, heap, index, indexInfo);
	IvfpqCalibrationFlush(pass.calibration);
	model->meta.rows_at_calibration = pass.rows;
	IvfpqTeamAlone(&team);
	IvfpqSnapshotDrop();
	IvfpqCalibrationRun(pass.calibration, index, &model->meta, NULL, &team);
	IvfpqSnapshotTake();
	return IvfpqMetaCalibrate(index, &model->meta);
}

/* What the metapage says, as rows of the function's result. */
static void
put_targets(FunctionCallInfo fcinfo, Relation index)
{
	static const double recalls[IVFPQ_TARGETS] = IVFPQ_TARGET_RECALLS;
	static const int depths[IVFPQ_DEPTHS] = IVFPQ_DEPTH_ROWS;
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

/* gpuvec_calibrate(index regclass) */
Datum
gpuvec_calibrate(PG_FUNCTION_ARGS)
{
	Relation	heap;
	Relation	index;
	IvfpqIdentity caller;
	MemoryContext context;
	MemoryContext oldcontext;
	bool		done;

	PreventCommandDuringRecovery("gpuvec_calibrate()");
	index = IvfpqOpenToChange(PG_GETARG_OID(0), check_owner, &heap);
	InitMaterializedSRF(fcinfo, 0);

	context = AllocSetContextCreate(CurrentMemoryContext,
									"gpuivfpq calibration",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	IvfpqActAsOwner(&caller, heap);
	done = IvfpqCalibrateIndex(heap, index);
	IvfpqActAsCaller(&caller);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);

	if (done)
		put_targets(fcinfo, index);
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
	InitMaterializedSRF(fcinfo, 0);
	put_targets(fcinfo, index);
	relation_close(index, AccessShareLock);
	return (Datum) 0;
}
