/*
 * gv_group.c
 *		Lists are put in order parent by parent.
 */
#include <string.h>

#include "engine/gv_engine.h"

/* See gv_engine.h: a counting sort. */
int32_t
gv_group_lists(int32_t dims, int32_t nlists, const float *centroids,
			   const int32_t *owners, int32_t nparents, float *parents,
			   int32_t *parent_offsets, float *grouped)
{
	size_t		bytes = sizeof(float) * (size_t) dims;
	int32_t		kept = 0;
	int32_t		next = 0;
	int32_t		i;
	int32_t		p;

	memset(parent_offsets, 0, sizeof(int32_t) * ((size_t) nparents + 1));
	for (i = 0; i < nlists; i++)
		parent_offsets[owners[i]]++;
	for (p = 0; p < nparents; p++)
	{
		int32_t		count = parent_offsets[p];

		parent_offsets[p] = next;
		next += count;
	}
	/* offset p becomes the end of p's lists, where p + 1's begin */
	for (i = 0; i < nlists; i++)
		memcpy(grouped + (size_t) parent_offsets[owners[i]]++ * (size_t) dims,
			   centroids + (size_t) i * (size_t) dims, bytes);
	for (p = 0; p < nparents; p++)
	{
		int32_t		begin = kept > 0 ? parent_offsets[kept - 1] : 0;

		if (parent_offsets[p] == begin)
			continue;
		if (kept < p)
			memcpy(parents + (size_t) kept * (size_t) dims,
				   parents + (size_t) p * (size_t) dims, bytes);
		parent_offsets[kept++] = parent_offsets[p];
	}
	memmove(parent_offsets + 1, parent_offsets,
			sizeof(int32_t) * (size_t) kept);
	parent_offsets[0] = 0;
	return kept;
}
