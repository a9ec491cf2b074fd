/*
 * ivfpqcoded.c
 *		Centroids in 8 bits, kept by a backend that searches an index again and
 *		again.
 *
 * They are made of the pages' centroids, which never change under a build_id,
 * parent by parent, when a parent's lists are first compared after the first
 * search: who searches once has no use for them.  All of a backend's together
 * take MOST_BYTES at most; what was used longest ago gives way.
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/ivfpqcoded.h"

#define MOST_BYTES		(8 * 1024 * 1024)

/* Rows of fewer dimensions are compared as quickly as they are. */
#define LEAST_DIMS		128

/* The backend's, the last used first. */
static IvfpqCoded *all_coded = NULL;

static Size
coded_bytes(const IvfpqMetaData *meta)
{
	return sizeof(IvfpqCoded) + meta->nparents * sizeof(bool) +
		(Size) meta->nlists * (meta->dims + 3 * sizeof(float));
}

static void
free_coded(IvfpqCoded *coded)
{
	if (coded->memory)
		pfree(coded->memory);
	pfree(coded);
}

/* Make room for `wanted` bytes. */
static void
evict(Size wanted)
{
	IvfpqCoded **link = &all_coded;
	Size		kept = 0;

	while (*link != NULL)
	{
		IvfpqCoded *coded = *link;

		if (kept + coded->bytes + wanted <= MOST_BYTES)
		{
			kept += coded->bytes;
			link = &coded->next;
			continue;
		}
		*link = coded->next;
		free_coded(coded);
	}
}

/* Take an index's entry out of the chain, or make one. */
static IvfpqCoded *
take_coded(Relation index, const IvfpqMetaData *meta)
{
	IvfpqCoded **link = &all_coded;
	IvfpqCoded *coded;

	for (; (coded = *link) != NULL; link = &coded->next)
	{
		if (coded->index != RelationGetRelid(index))
			continue;
		*link = coded->next;
		if (coded->build_id == meta->build_id &&
			coded->nlists == meta->nlists)
			return coded;
		free_coded(coded);
		break;
	}
	evict(sizeof(IvfpqCoded));
	coded = MemoryContextAllocZero(CacheMemoryContext, sizeof(IvfpqCoded));
	coded->index = RelationGetRelid(index);
	coded->build_id = meta->build_id;
	coded->nlists = meta->nlists;
	coded->bytes = sizeof(IvfpqCoded);
	return coded;
}

/*
 * The index's centroids in 8 bits, of parents that were coded; NULL where they
 * are of no use.  Good until the next call.
 */
IvfpqCoded *
IvfpqCodedGet(Relation index, const IvfpqMetaData *meta)
{
	Size		bytes = coded_bytes(meta);
	IvfpqCoded *coded;

	if (meta->dims < LEAST_DIMS || bytes > MOST_BYTES)
		return NULL;
	coded = take_coded(index, meta);
	if (coded->searched && coded->memory == NULL)
	{
		char	   *memory;

		evict(bytes);
		memory = MemoryContextAllocExtended(CacheMemoryContext, bytes,
											MCXT_ALLOC_NO_OOM);
		if (memory != NULL)
		{
			coded->memory = memory;
			coded->bytes = bytes;
			coded->lists.steps = (float *) memory;
			coded->lists.lengths = coded->lists.steps + meta->nlists;
			coded->lists.errors = coded->lists.lengths + meta->nlists;
			coded->lists.codes = (int8 *) (coded->lists.errors + meta->nlists);
			coded->is_coded = (bool *) (coded->lists.codes +
										(Size) meta->nlists * meta->dims);
			memset(coded->is_coded, 0, meta->nparents * sizeof(bool));
		}
	}
	coded->searched = true;
	coded->next = all_coded;
	all_coded = coded;
	return coded->memory != NULL ? coded : NULL;
}

/* The numbers of lists from `list` on. */
static GvCoded
from_list(const IvfpqCoded *coded, int dims, int list)
{
	GvCoded		lists = coded->lists;

	lists.codes += (Size) list * dims;
	lists.steps += list;
	lists.lengths += list;
	lists.errors += list;
	return lists;
}

/* A parent's lists, coded now unless that was done. */
GvCoded
IvfpqCodedParent(Relation index, const IvfpqModel *model, IvfpqCoded *coded,
				 int parent)
{
	const IvfpqMetaData *meta = &model->meta;
	int			first = model->starts[parent];
	IvfpqArrayReader reader;
	const float *run;
	int			list = first;
	int			count;

	if (!coded->is_coded[parent])
	{
		IvfpqArrayOpen(&reader, index, meta->centroids, meta->dims,
					   model->starts[parent + 1]);
		reader.next = first;
		while ((run = IvfpqArrayNext(&reader, &count)) != NULL)
		{
			GvCoded		lists = from_list(coded, meta->dims, list);

			IvfpqCheckStatus(gv_coarse_encode(meta->dims, run, count,
											  &lists));
			list += count;
		}
		IvfpqArrayClose(&reader);
		coded->is_coded[parent] = true;
	}
	return from_list(coded, meta->dims, first);
}
