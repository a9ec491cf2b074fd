/*
 * truth.c
 *		Calibration's true neighbours: each participant of a build knows those
 *		among its own rows, and calibration needs those among all.
 */
#include "postgres.h"

#include "am/calibrate/calibrate.h"
#include "am/team/exchange.h"

/* The rows nearest to a query, in any order. */
static void
write_heap(BufFile *file, GvTopK *heap)
{
	BufFileWrite(file, &heap->count, sizeof(heap->count));
	BufFileWrite(file, heap->scores, heap->count * sizeof(float));
	BufFileWrite(file, heap->ids, heap->count * sizeof(uint64));
}

/* Write what was found here, for other participants. */
void
IvfpqTruthGive(const IvfpqCalibration *calibration, IvfpqTeam *team)
{
	BufFile    *file = IvfpqExchangeCreate(&team->shared->files, "truth", 0,
										   team->me);

	for (int q = 0; q < calibration->nqueries; q++)
		write_heap(file, &calibration->truth[q]);
	IvfpqExchangeClose(file);
}

/* Take what another participant has found. */
static void
take(IvfpqCalibration *calibration, BufFile *file)
{
	int			capacity = calibration->truth[0].capacity;
	float	   *scores = palloc(capacity * sizeof(float));
	uint64	   *ids = palloc(capacity * sizeof(uint64));

	for (int q = 0; q < calibration->nqueries; q++)
	{
		int32		count;

		if (!IvfpqExchangeRead(file, &count, sizeof(count)))
			elog(ERROR, "a temporary file of the build ends early");
		if (count == 0)
			continue;
		if (!IvfpqExchangeRead(file, scores, count * sizeof(float)) ||
			!IvfpqExchangeRead(file, ids, count * sizeof(uint64)))
			elog(ERROR, "a temporary file of the build ends early");
		for (int i = 0; i < count; i++)
			gv_topk_push(&calibration->truth[q], scores[i], ids[i]);
	}
	pfree(scores);
	pfree(ids);
}

/* Take what all others have found. */
void
IvfpqTruthTake(IvfpqCalibration *calibration, IvfpqTeam *team)
{
	for (int from = 0; from < team->shared->size; from++)
	{
		BufFile    *file;

		if (from == team->me)
			continue;
		file = IvfpqExchangeOpen(&team->shared->files, "truth", 0, from);
		if (file == NULL)
			elog(ERROR, "a temporary file of the build is not there");
		take(calibration, file);
		BufFileClose(file);
	}
}
