/*
 * truth.c
 *		Ground truth of calibration queries: each participant of a build knows
 *		the neighbors among its own rows, and calibration needs those among
 *		all.
 */
#include "postgres.h"

#include "am/build/parallel.h"

#include "am/build/calibrate.h"

/* Writes the rows nearest to a query, in any order. */
static void
put_heap(IvfpqTempFile *file, GvTopK *heap)
{
	IvfpqTempFilePut(file, 0, &heap->count, sizeof(heap->count));
	IvfpqTempFilePut(file, 0, heap->scores, heap->count * sizeof(float));
	IvfpqTempFilePut(file, 0, heap->ids, heap->count * sizeof(uint64));
}

/* Writes what was found here, for other participants. */
void
IvfpqGroundTruthExport(IvfpqCalibration *calibration, IvfpqParallel *parallel)
{
	IvfpqTempFile file;

	IvfpqTempFileBegin(&file, parallel, "truth", 1);
	for (int level = 0; level < IVFPQ_LEVELS; level++)
		for (int q = 0; q < IvfpqLevelQueries(calibration, level); q++)
			put_heap(&file, &calibration->ground_truth[level][q]);
	IvfpqTempFileDone(&file);
}

/* Takes what another participant has found of a query. */
static void
take_heap(BufFile *file, GvTopK *heap)
{
	float		scores[GV_MAX_DEPTH];
	uint64		ids[GV_MAX_DEPTH];
	int32		count;

	if (!IvfpqTempFileRead(file, &count, sizeof(count)))
		elog(ERROR, "a temporary file of the build ends early");
	if (count == 0)
		return;
	if (count > GV_MAX_DEPTH ||
		!IvfpqTempFileRead(file, scores, count * sizeof(float)) ||
		!IvfpqTempFileRead(file, ids, count * sizeof(uint64)))
		elog(ERROR, "a temporary file of the build ends early");
	for (int i = 0; i < count; i++)
		gv_topk_push(heap, scores[i], ids[i]);
}

/* Takes what all other participants have found. */
void
IvfpqGroundTruthImport(IvfpqCalibration *calibration, IvfpqParallel *parallel)
{
	IvfpqTempFile files;

	IvfpqTempFileBegin(&files, parallel, "truth", 1);
	for (int from = 0; from < parallel->shared->size; from++)
	{
		BufFile    *file;

		if (from == parallel->me)
			continue;
		file = IvfpqTempFileOpen(&files, 0, from);
		if (file == NULL)
			elog(ERROR, "a temporary file of the build is not there");
		for (int level = 0; level < IVFPQ_LEVELS; level++)
			for (int q = 0; q < IvfpqLevelQueries(calibration, level); q++)
				take_heap(file, &calibration->ground_truth[level][q]);
		IvfpqTempFileClose(&files, file);
	}
}
