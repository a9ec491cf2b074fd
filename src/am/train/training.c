/*
 * training.c
 *		What training made, as all participants see it.
 */
#include "postgres.h"

#include "am/train/train.h"

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
	training->starts = IvfpqTeamMemory(team, IVFPQ_TEAM_STARTS);
	training->centroids = IvfpqTeamMemory(team, IVFPQ_TEAM_CENTROIDS);
	training->codebooks = IvfpqTeamMemory(team, IVFPQ_TEAM_CODEBOOKS);
	training->gv.mean = training->mean;
	training->gv.codebooks = training->codebooks;
	training->gv.rotation = training->rotation;
}
