/*
 * training.c
 *		What training made, as all participants see it.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "am/common/enginecall.h"
#include "am/train/train.h"

#define GROUP_ROWS		256		/* of a group, so that making its panels costs
								 * little */
#define LEAST_ROWS		1024	/* at once, where groups are few */
#define PLACED_BYTES	768		/* of a row, for what gv_place finds, about */

/*
 * The leader, while workers wait, has all participants see *training.  They
 * see its arrays already.
 */
void
IvfpqTrainingShare(const IvfpqTraining *training, IvfpqParallel *parallel)
{
	IvfpqTraining *shared =
	IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_TRAINING,
					   sizeof(IvfpqTraining));

	*shared = *training;
}

/* A participant takes what the leader shared; a builder that it has stays. */
void
IvfpqTrainingOpen(IvfpqTraining *training, IvfpqParallel *parallel)
{
	IvfpqBuilder *builder = training->builder;

	*training = *(IvfpqTraining *) IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_TRAINING);
	training->builder = builder;
	training->queries = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_QUERIES);
	training->held_out =
		IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_HELD_OUT);
	training->query_ids =
		IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_QUERY_IDS);
	training->mean = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_MEAN);
	training->rotation =
		IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_ROTATION);
	training->parents = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_PARENTS);
	training->parent_offsets =
		IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_PARENT_OFFSETS);
	training->centroids =
		IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_CENTROIDS);
	training->codebooks =
		IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_CODEBOOKS);
	training->gv.mean = training->mean;
	training->gv.codebooks = training->codebooks;
	training->gv.rotation = training->rotation;
}

/*
 * Makes the groups through which rows are placed.  Returns their memory, of
 * the current context, which the caller frees.
 */
void *
IvfpqAllocGroups(const IvfpqTraining *training, GvGroups *groups)
{
	GvTree		tree = IvfpqTree(training);
	void	   *chunk;
	void	   *memory = IvfpqAllocScratch(gv_groups_bytes(&tree), &chunk);
	void	   *used;
	void	   *scratch = IvfpqAllocScratch(gv_groups_scratch(&tree), &used);

	IvfpqCheckStatus(gv_groups_make(&tree, groups, memory, scratch,
									&ivfpq_stop));
	pfree(used);
	return chunk;
}

/*
 * Returns the number of rows to place at once: enough that each group's lists
 * are compared with GROUP_ROWS of them, as far as there is memory for that.
 */
int
IvfpqRowsToPlace(const GvGroups *groups, Size memory)
{
	Size		row = groups->dims * sizeof(float) + PLACED_BYTES;
	int64		rows_needed = (int64) groups->ngroups * GROUP_ROWS /
	groups->tried;

	/* no array of them is beyond what palloc gives */
	memory = Min(memory, MaxAllocSize / 2);
	return (int) Max(16,
					 Min(Max(rows_needed, LEAST_ROWS), (int64) (memory / row)));
}
