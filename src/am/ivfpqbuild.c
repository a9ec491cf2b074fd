/*
 * ivfpqbuild.c
 *		CREATE INDEX: train, then assign every row; or keep all rows pending.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "catalog/index.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "utils/backend_progress.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/ivfpqassign.h"

/* State of one build. */
typedef struct Build
{
	Relation	heap;
	Relation	index;
	IndexInfo  *indexInfo;
	IvfpqType	type;
	IvfpqMetaData meta;
	IvfpqTraining training;
	IvfpqAssign assign;			/* when trained */
	MemoryContext tmp;			/* reset after every row */
	double		heap_tuples;
	double		index_tuples;

	/* rows that only older snapshots see and whose dimension is another */
	uint64	   *odd_ids;
	int64		nodd;
	int64		max_odd;
} Build;

/* Keep the TID of a row that no list can hold, for the pending list. */
static void
keep_odd(Build *build, ItemPointer tid)
{
	if (build->nodd == build->max_odd)
	{
		build->max_odd = Max(64, 2 * build->max_odd);
		build->odd_ids = build->odd_ids == NULL ?
			palloc(build->max_odd * sizeof(uint64)) :
			repalloc_huge(build->odd_ids, build->max_odd * sizeof(uint64));
	}
	build->odd_ids[build->nodd++] = IvfpqTidToId(tid);
}

/* Called for every row of the table. */
static void
assign_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
				bool alive, void *arg)
{
	Build	   *build = arg;
	MemoryContext oldcontext;
	const float *row;
	int			dims;

	if (isnull[0] ||
		!IvfpqPlacerWants(&build->assign.placer, IvfpqTidToId(tid)))
		return;

	oldcontext = MemoryContextSwitchTo(build->tmp);
	row = IvfpqValueFloats(&build->type, values[0], &dims);
	MemoryContextSwitchTo(oldcontext);
	if (dims != build->training.gv.dims && !alive)
		keep_odd(build, tid);
	else
	{
		IvfpqCheckDims(build->training.gv.dims, dims);
		if (IvfpqIsPlaceable(&build->type, row, dims))
			IvfpqAssignRow(&build->assign, row, IvfpqTidToId(tid));
	}
	MemoryContextReset(build->tmp);
}

/* Called for every row when there is no training: it is pending. */
static void
pending_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
				 bool alive, void *arg)
{
	Build	   *build = arg;
	MemoryContext oldcontext;
	const float *row;
	int			dims;

	if (isnull[0])
		return;

	oldcontext = MemoryContextSwitchTo(build->tmp);
	row = IvfpqValueFloats(&build->type, values[0], &dims);
	if (build->meta.dims > 0 && alive)
		IvfpqCheckDims(build->meta.dims, dims);
	if (IvfpqIsPlaceable(&build->type, row, dims))
	{
		IvfpqPendingAppend(index, tid);
		build->index_tuples += 1;
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(build->tmp);
}

/* A trained index: everything but the metapage, then that, then WAL. */
static void
build_trained(Build *build)
{
	Relation	index = build->index;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_ASSIGNING);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_TOTAL,
								 (int64) build->training.rows);
	IvfpqAssignBegin(&build->assign, index, &build->training,
					 build->meta.refine != IVFPQ_REFINE_NONE, false);
	IvfpqPlacerReuse(&build->assign.placer);
	build->heap_tuples =
		table_index_build_scan(build->heap, index, build->indexInfo, true,
							   true, assign_callback, build, NULL);
	if (IvfpqPlacerRecover(&build->assign.placer))
		(void) table_index_build_scan(build->heap, index, build->indexInfo,
									  true, false, assign_callback, build,
									  NULL);
	IvfpqAssignWrite(&build->assign, index, &build->meta, false);
	IvfpqMetaRewrite(index, &build->meta);
	IvfpqLogBuild(index);

	for (int64 i = 0; i < build->nodd; i++)
	{
		ItemPointerData tid;

		IvfpqIdToTid(build->odd_ids[i], &tid);
		IvfpqPendingAppend(index, &tid);
	}
	build->index_tuples = (double) (build->assign.rows + build->nodd);
}

/* An index on a small table: every row is pending. */
static void
build_untrained(Build *build)
{
	IvfpqLogBuild(build->index);
	build->heap_tuples =
		table_index_build_scan(build->heap, build->index, build->indexInfo,
							   true, true, pending_callback, build, NULL);
	ereport(NOTICE,
			(errmsg("index \"%s\" is not trained, the table has only %.0f rows to index",
					RelationGetRelationName(build->index),
					build->index_tuples),
			 errdetail("Queries are answered exactly, from the table."),
			 build->index->rd_rel->relpersistence == RELPERSISTENCE_TEMP ?
			 errhint("Call gpuvec_train when the table has its rows.") :
			 errhint("Once VACUUM or autovacuum finds %d rows in it, it trains itself; gpuvec_train does that at once.",
					 IvfpqTrainRows(build->index))));
}

/*
 * ambuild.  The index belongs to us alone until the transaction commits.
 */
IndexBuildResult *
ivfpqbuild(Relation heap, Relation index, IndexInfo *indexInfo)
{
	IndexBuildResult *result;
	MemoryContext context;
	MemoryContext oldcontext;
	Build		build = {.heap = heap,.index = index,.indexInfo = indexInfo};

	if (RelationGetNumberOfBlocks(index) != 0)
		elog(ERROR, "index \"%s\" already contains data",
			 RelationGetRelationName(index));

	context = AllocSetContextCreate(CurrentMemoryContext, "gpuivfpq build",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	build.tmp = AllocSetContextCreate(context, "gpuivfpq build row",
									  ALLOCSET_DEFAULT_SIZES);

	IvfpqTypeInit(&build.type, index);
	IvfpqMetaInit(&build.meta, build.type.metric,
				  IvfpqIndexDims(index, &build.type));
	build.meta.refine = IvfpqRefineOption(index);
	IvfpqTrain(&build.training, heap, index, indexInfo, &build.type);
	IvfpqMetaCreate(index, MAIN_FORKNUM, &build.meta);
	if (build.training.nlists > 0)
		build_trained(&build);
	else
		build_untrained(&build);

	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);

	result = palloc(sizeof(IndexBuildResult));
	result->heap_tuples = build.heap_tuples;
	result->index_tuples = build.index_tuples;
	return result;
}

/* ambuildempty: the init fork of an unlogged index. */
void
ivfpqbuildempty(Relation index)
{
	IvfpqMetaData meta;
	IvfpqType	type;

	IvfpqTypeInit(&type, index);
	IvfpqMetaInit(&meta, type.metric, IvfpqIndexDims(index, &type));
	meta.build_id = 0;
	meta.refine = IvfpqRefineOption(index);
	IvfpqMetaCreate(index, INIT_FORKNUM, &meta);
}
