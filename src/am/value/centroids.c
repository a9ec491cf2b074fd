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

/* The inverse [dims][dims] of an index's rotation, which is its transpose. */
static float *
load_inverse(Relation index, const IvfpqMetaData *meta)
{
	int			dims = meta->dims;
	float	   *inverse = IvfpqRotationLoad(index, meta);

	for (int i = 0; i < dims; i++)
		for (int j = 0; j < i; j++)
		{
			float		value = inverse[(Size) i * dims + j];

			inverse[(Size) i * dims + j] = inverse[(Size) j * dims + i];
			inverse[(Size) j * dims + i] = value;
		}
	return inverse;
}

/*
 * A centroid as pages have it, back from the engine's space; back [dims][dims]
 * undoes the rotation, or is NULL.
 */
static void
untransform(const GvModel *model, const float *back, float *turned,
			const float *centroid, float *to)
{
	if (back != NULL)
	{
		gv_rotate(model->dims, back, model->dims, centroid, turned);
		centroid = turned;
	}
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
	float	   *back = NULL;
	float	   *turned;
	int			count;
	Size		read = 0;

	*n = meta->nlists;
	if (meta->nlists == 0)
		return NULL;
	IvfpqCheckDims(meta->dims, dims);
	centroids = palloc_extended((Size) meta->nlists * dims * sizeof(float),
								MCXT_ALLOC_HUGE);
	turned = palloc(dims * sizeof(float));
	if (meta->rotated)
		back = load_inverse(index, meta);
	IvfpqArrayOpen(&reader, index, meta->centroids, dims, meta->nlists);
	while ((run = IvfpqArrayNext(&reader, &count)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < count; i++)
			untransform(&model->gv, back, turned, run + (Size) i * dims,
						centroids + read++ * dims);
	}
	IvfpqArrayClose(&reader);
	if (back != NULL)
		pfree(back);
	pfree(turned);
	pfree(model);
	return centroids;
}
