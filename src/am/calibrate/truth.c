/*
 * truth.c
 *		Calibration's true neighbours: each participant of a build knows those
 *		among its own rows, and calibration needs those among all.
 */
#include "postgres.h"

#include "am/calibrate/calibrate.h"
#include "am/team/tempfile.h"

/* The rows nearest to a query, in any order. */
static void
put_heap(IvfpqTempFile *file, GvTopK *heap)
{
	IvfpqTempFilePut(file, 0, &heap->count, sizeof(heap->count));
	IvfpqTempFilePut(file, 0, heap->scores, heap->count * sizeof(float));
	IvfpqTempFilePut(file, 0, heap->ids, heap->count * sizeof(uint64));
}

/* Write what was found here, for other participants. */
void
IvfpqTruthGive(const IvfpqCalibration *calibration, IvfpqTeam *team)
{
	IvfpqTempFile file;

	IvfpqTempFileBegin(&file, team, "truth", 1);
	for (int q = 0; q < calibration->nqueries; q++)
		put_heap(&file, &calibration->truth[q]);
	IvfpqTempFileDone(&file);
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

		if (!IvfpqTempFileRead(file, &count, sizeof(count)))
			elog(ERROR, "a temporary file of the build ends early");
		if (count == 0)
			continue;
		if (!IvfpqTempFileRead(file, scores, count * sizeof(float)) ||
			!IvfpqTempFileRead(file, ids, count * sizeof(uint64)))
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
	IvfpqTempFile files;

	IvfpqTempFileBegin(&files, team, "truth", 1);
	for (int from = 0; from < team->shared->size; from++)
	{
		BufFile    *file;

		if (from == team->me)
			continue;
		file = IvfpqTempFileOpen(&files, 0, from);
		if (file == NULL)
			elog(ERROR, "a temporary file of the build is not there");
		take(calibration, file);
		IvfpqTempFileClose(&files, file);
	}
}
