/*
 * centroids.c
 *		The centroids of an index, as vectors in the space of its rows.
 */
#include "postgres.h"

#include <float.h>

#include "miscadmin.h"
#include "utils/memutils.h"

#include "am/common/model.h"
#include "am/value/value.h"
#include "page/array.h"

/* A centroid as pages have it, back from the engine's space. */
static void
untransform(const GvModel *model, const float *centroid, float *to)
{
	for (int i = 0; i < model->dims; i++)
	{
		double		value = centroid[i] / (double) model->scale +
		model->mean[i];

		to[i] = (float) Max(Min(value, FLT_MAX), -FLT_MAX);
	}
}

/*
 * All centroids [*n][dims], in memory of the current context; by cosine they
 * are means of vectors of length 1.  NULL and 0 before the index is trained;
 * ERROR if its vectors have another number of dimensions.
 */
float *
IvfpqCentroids(Relation index, int dims, int *n)
{
	IvfpqModel *model = IvfpqModelGet(index);
	const IvfpqMetaData *meta = &model->meta;
	IvfpqArrayReader reader;
	const float *run;
	float	   *centroids;
	int			count;
	Size		read = 0;

	*n = meta->nlists;
	if (meta->nlists == 0)
		return NULL;
	IvfpqCheckDims(meta->dims, dims);
	centroids = palloc_extended((Size) meta->nlists * dims * sizeof(float),
								MCXT_ALLOC_HUGE);
	IvfpqArrayOpen(&reader, index, meta->centroids, dims, meta->nlists);
	while ((run = IvfpqArrayNext(&reader, &count)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < count; i++)
			untransform(&model->gv, run + (Size) i * dims,
						centroids + read++ * dims);
	}
	IvfpqArrayClose(&reader);
	pfree(model);
	return centroids;
}
