/*
 * training.c
 *		What training made, as all participants see it.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "am/common/engine.h"
#include "am/train/train.h"

#define GROUP_ROWS		256		/* of a group, so that making its panels is
								 * little */
#define LEAST_ROWS		1024	/* at once, where groups are few */
#define PLACED_BYTES	768		/* of a row, for what gv_place finds, about */

/*
 * The leader, while workers wait: what *training says becomes what they see.
 * Its arrays are the team's already.
 */
void
IvfpqTrainingShare(const IvfpqTraining *training, IvfpqTeam *team)
{
	IvfpqTraining *shared = IvfpqTeamAlloc(team, IVFPQ_TEAM_TRAINING,
										   sizeof(IvfpqTraining));

	*shared = *training;
}

/* A participant sees it; a builder that it has stays. */
void
IvfpqTrainingOpen(IvfpqTraining *training, IvfpqTeam *team)
{
	IvfpqBuilder *builder = training->builder;

	*training = *(IvfpqTraining *) IvfpqTeamMemory(team, IVFPQ_TEAM_TRAINING);
	training->builder = builder;
	training->queries = IvfpqTeamMemory(team, IVFPQ_TEAM_QUERIES);
	training->held_out = IvfpqTeamMemory(team, IVFPQ_TEAM_HELD_OUT);
	training->query_ids = IvfpqTeamMemory(team, IVFPQ_TEAM_QUERY_IDS);
	training->mean = IvfpqTeamMemory(team, IVFPQ_TEAM_MEAN);
	training->rotation = IvfpqTeamMemory(team, IVFPQ_TEAM_ROTATION);
	training->parents = IvfpqTeamMemory(team, IVFPQ_TEAM_PARENTS);
	training->parent_offsets = IvfpqTeamMemory(team, IVFPQ_TEAM_STARTS);
	training->centroids = IvfpqTeamMemory(team, IVFPQ_TEAM_CENTROIDS);
	training->codebooks = IvfpqTeamMemory(team, IVFPQ_TEAM_CODEBOOKS);
	training->gv.mean = training->mean;
	training->gv.codebooks = training->codebooks;
	training->gv.rotation = training->rotation;
}

/*
 * The groups through which rows are placed, in memory of the current context,
 * which is the caller's to free.
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
 * Rows to place at once: enough that each group's lists meet GROUP_ROWS of
 * them, as far as there is memory for that.
 */
int
IvfpqRowsToPlace(const GvGroups *groups, Size memory)
{
	Size		row = groups->dims * sizeof(float) + PLACED_BYTES;
	int64		rows_needed = (int64) groups->ngroups * GROUP_ROWS / groups->tried;

	/* no array of them is beyond what palloc gives */
	memory = Min(memory, MaxAllocSize / 2);
	return (int) Max(16, Min(Max(rows_needed, LEAST_ROWS), (int64) (memory / row)));
}
