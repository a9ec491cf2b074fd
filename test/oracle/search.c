/*
 * search.c
 *		A query through a mirror: nearest lists, one look-up table, a scan of
 *		the lists, the best postings.
 *
 * The steps and their order are those of src/am (nearestlists.c,
 * candidates.c), so that a backend that searches pages itself reads the same
 * lists and finds the same pairs.
 */
#include "test/oracle/gv_cpu_mirror.h"

#include <stdlib.h>
#include <string.h>

/* Blocks that one gv_scan reads. */
#define BLOCKS		64

struct GvSearcher
{
	int32_t		device;			/* whose mirrors it searches */
	char	   *answers;		/* what searches return */
	size_t		answers_capacity;
	float	   *table;			/* gv_table's */
	size_t		table_bytes;	/* bytes */
	GvTopK		parents;		/* capacity is what there is memory for */
	GvTopK		lists;
	GvTopK		postings;		/* of one list */
	void	   *scratch;		/* gv_scan's */
	size_t		scratch_bytes;	/* bytes */
};

/* See gv_searcher. */
GvStatus
gv_cpu_searcher(int32_t device, GvSearcher **searcher)
{
	*searcher = calloc(1, sizeof(GvSearcher));
	if (*searcher == NULL)
		return GV_NO_MEMORY;
	(*searcher)->device = device;
	return GV_OK;
}

void
gv_cpu_searcher_drop(GvSearcher *searcher)
{
	free(searcher->answers);
	free(searcher->table);
	free(searcher->parents.scores);
	free(searcher->parents.ids);
	free(searcher->lists.scores);
	free(searcher->lists.ids);
	free(searcher->postings.scores);
	free(searcher->postings.ids);
	free(searcher->scratch);
	free(searcher);
}

/* The most lists that a search may probe. */
static size_t
most_probes(const GvMirrorSpec *spec, const GvSearch *search)
{
	return (size_t) (search->probes < spec->nlists ? search->probes :
					 spec->nlists);
}

/* Memory of so many bytes for answers. */
static GvStatus
need_answers(GvSearcher *searcher, size_t bytes)
{
	if (bytes <= searcher->answers_capacity)
		return GV_OK;
	free(searcher->answers);
	searcher->answers = malloc(bytes);
	searcher->answers_capacity = searcher->answers != NULL ? bytes : 0;
	return searcher->answers != NULL ? GV_OK : GV_NO_MEMORY;
}

/*
 * Memory for the answers of n searches; all of it is of 4-byte elements, but
 * for distances, which come first.
 */
static GvStatus
place_answers(GvSearcher *searcher, const GvMirrorSpec *spec,
			  GvSearch *searches, int32_t n)
{
	size_t		bytes = 0;
	GvStatus	status;
	GvRowDistance *distances;
	char	   *next;
	int32_t		i;

	for (i = 0; i < n; i++)
		bytes += most_probes(spec, &searches[i]) *
			(sizeof(GvProbe) +
			 (searches[i].condition != NULL ? sizeof(int32_t) : 0)) +
			(size_t) searches[i].capacity *
			(sizeof(GvHit) + (searches[i].bounded ? sizeof(GvBound) : 0) +
			 (searches[i].asked != NULL ? sizeof(GvRowDistance) : 0));
	status = need_answers(searcher, bytes);
	if (status != GV_OK)
		return status;
	distances = (GvRowDistance *) searcher->answers;
	for (i = 0; i < n; i++)
	{
		searches[i].distances = searches[i].asked != NULL ? distances : NULL;
		distances += searches[i].asked != NULL ? searches[i].capacity : 0;
	}
	next = (char *) distances;
	for (i = 0; i < n; i++)
	{
		GvSearch   *search = &searches[i];
		size_t		capacity = (size_t) search->capacity;

		if (search->steps == GV_STEPS_SCAN)
			memcpy(next, search->probed,
				   (size_t) search->nprobed * sizeof(GvProbe));
		search->probed = (GvProbe *) next;
		search->hits = (GvHit *) (search->probed + most_probes(spec, search));
		next = (char *) (search->hits + capacity);
		search->bounds = search->bounded ? (GvBound *) next : NULL;
		if (search->bounded)
			next = (char *) (search->bounds + capacity);
		search->matches = search->condition != NULL ? (int32_t *) next : NULL;
		if (search->condition != NULL)
			next = (char *) (search->matches + most_probes(spec, search));
	}
	return GV_OK;
}

/* An empty top of `capacity` in the memory of `kept`, which grows. */
static GvStatus
open_topk(GvTopK *kept, int32_t capacity, GvTopK *top)
{
	if (capacity > kept->capacity)
	{
		float	   *scores = malloc(sizeof(float) * (size_t) capacity);
		uint64_t   *ids = malloc(sizeof(uint64_t) * (size_t) capacity);

		if (scores == NULL || ids == NULL)
		{
			free(scores);
			free(ids);
			return GV_NO_MEMORY;
		}
		free(kept->scores);
		free(kept->ids);
		kept->scores = scores;
		kept->ids = ids;
		kept->capacity = capacity;
	}
	*top = *kept;
	top->capacity = capacity;
	gv_topk_reset(top);
	return GV_OK;
}

/* Offer lists first .. first + n - 1 to `best`. */
static GvStatus
compare_lists(const GvMirror *mirror, const float *query, int32_t first,
			  int32_t n, GvTopK *best)
{
	const float *centroids = mirror->arrays[GV_CENTROIDS];

	return gv_coarse(&mirror->model, query,
					 centroids + (size_t) first * mirror->spec.dims, n,
					 (uint64_t) first, best);
}

/* Offer the lists of the nearest parents, until search->compare were seen. */
static GvStatus
compare_children(GvSearcher *searcher, const GvMirror *mirror,
				 const GvSearch *search, GvTopK *best)
{
	const int32_t *parent_offsets = mirror->arrays[GV_PARENT_OFFSETS];
	int32_t		seen = 0;
	GvTopK		parents;
	GvStatus	status;
	int32_t		i;

	status = open_topk(&searcher->parents, mirror->spec.nparents, &parents);
	if (status != GV_OK)
		return status;
	status = gv_coarse(&mirror->model, search->query,
					   mirror->arrays[GV_PARENTS], mirror->spec.nparents, 0,
					   &parents);
	gv_topk_sort(&parents);
	for (i = 0; status == GV_OK && i < parents.count &&
		 seen < search->compare; i++)
	{
		int32_t		first = parent_offsets[parents.ids[i]];
		int32_t		n = parent_offsets[parents.ids[i] + 1] - first;

		status = compare_lists(mirror, search->query, first, n, best);
		seen += n;
	}
	return status;
}

/* The lists to search into search->probed. */
static GvStatus
find_lists(GvSearcher *searcher, const GvMirror *mirror, GvSearch *search)
{
	const GvMirrorSpec *spec = &mirror->spec;
	GvTopK		best;
	GvStatus	status;
	int32_t		i;

	status = open_topk(&searcher->lists, (int32_t) most_probes(spec, search),
					   &best);
	if (status != GV_OK)
		return status;
	if (spec->nparents == 1 || search->by_number ||
		(int64_t) search->compare + spec->nparents >= spec->nlists)
		status = compare_lists(mirror, search->query, 0, spec->nlists, &best);
	else
		status = compare_children(searcher, mirror, search, &best);
	gv_topk_sort(&best);
	search->nprobed = best.count;
	for (i = 0; i < best.count; i++)
	{
		int32_t		list = (int32_t) best.ids[i];

		search->probed[search->by_number ? list : i] = (GvProbe)
		{
			list, best.scores[i]
		};
	}
	return status;
}

/* Offers the live postings of a probed list to a scan. */
static GvStatus
scan_blocks(const GvMirror *mirror, GvSearch *search, uint32_t probe,
			GvScan *scan)
{
	const GvCpuList *list = &mirror->lists[search->probed[probe].list];
	GvStatus	status = GV_OK;
	int32_t		first;

	for (first = 0; status == GV_OK && first < list->nblocks; first += BLOCKS)
	{
		GvBlock		blocks[BLOCKS];
		int32_t		n = list->nblocks - first;
		int32_t		i;

		if (n > BLOCKS)
			n = BLOCKS;
		for (i = 0; i < n; i++)
		{
			blocks[i] = gv_cpu_block(mirror, list, first + i);
			search->postings += __builtin_popcount(blocks[i].live);
		}
		status = gv_scan(scan, search->probed[probe].base, blocks, n);
	}
	return status;
}

/*
 * Offers a probed list's best postings to the hits, with the number of the
 * probe, which a scan does not store; hence a scan for each list, told what
 * the hits have no use for.
 */
static GvStatus
scan_list(const GvMirror *mirror, GvSearch *search, uint32_t probe,
		  GvScan *scan)
{
	GvTopK	   *best = scan->best;
	uint64_t	id;
	GvStatus	status;
	int32_t		i;

	gv_topk_reset(best);
	if (search->nhits == search->capacity)
		gv_cpu_worst_hit(search, &scan->reach, &id);
	status = gv_scan_begin(scan);
	if (status == GV_OK)
		status = scan_blocks(mirror, search, probe, scan);
	if (status == GV_OK)
		status = gv_scan_finish(scan);
	if (search->condition != NULL)
	{
		search->matches[probe] = (int32_t) scan->matched;
		search->matched += scan->matched;
	}
	for (i = 0; status == GV_OK && i < best->count; i++)
		gv_cpu_hit(search, best->scores[i], best->ids[i], probe);
	return status;
}

/* Memory for what a scan of `capacity` postings needs. */
static GvStatus
open_scratch(GvSearcher *searcher, int32_t m, int32_t capacity)
{
	size_t		bytes = gv_scan_scratch(m, capacity);

	if (bytes <= searcher->scratch_bytes)
		return GV_OK;
	free(searcher->scratch);
	searcher->scratch_bytes = 0;
	if (posix_memalign(&searcher->scratch, GV_ALIGN, bytes) != 0)
	{
		searcher->scratch = NULL;
		return GV_NO_MEMORY;
	}
	searcher->scratch_bytes = bytes;
	return GV_OK;
}

static GvStatus
make_table(GvSearcher *searcher, const GvMirror *mirror, const float *query)
{
	size_t		bytes = gv_table_bytes(mirror->spec.m);

	if (bytes > searcher->table_bytes)
	{
		float	   *table = malloc(bytes);

		if (table == NULL)
			return GV_NO_MEMORY;
		free(searcher->table);
		searcher->table = table;
		searcher->table_bytes = bytes;
	}
	return gv_table(&mirror->model, query, searcher->table);
}

/* Search the lists in search->probed. */
static GvStatus
scan_lists(GvSearcher *searcher, const GvMirror *mirror, GvSearch *search)
{
	GvTopK		best;
	GvScan		scan = {.model = &mirror->model, .table = searcher->table,
	.best = &best, .reach = GV_SCORE_MAX, .condition = search->condition};
	GvStatus	status =
	open_topk(&searcher->postings, search->capacity, &best);
	int32_t		p;

	if (status == GV_OK)
		status = open_scratch(searcher, mirror->spec.m, search->capacity);
	scan.scratch = searcher->scratch;
	for (p = 0; status == GV_OK && p < search->nprobed; p++)
		status = scan_list(mirror, search, (uint32_t) p, &scan);
	return status;
}

/*
 * Returns how many live postings of a block are not beyond `last`. All of a
 * block is scored as a scan of its own, which has capacity for all.
 */
static GvStatus
count_block(GvScan *scan, float base, GvBlock block, float last,
			int64_t *count)
{
	GvStatus	status;
	int32_t		i;

	block.rowids = NULL;
	block.first_id = 0;
	gv_topk_reset(scan->best);
	status = gv_scan_begin(scan);
	if (status == GV_OK)
		status = gv_scan(scan, base, &block, 1);
	if (status == GV_OK)
		status = gv_scan_finish(scan);
	*count = 0;
	for (i = 0; i < scan->best->count; i++)
		*count += scan->best->scores[i] <= last;
	return status;
}

/* search->nearer and nearer_squares; its hits, if they count, are sorted. */
static GvStatus
count_nearer(GvSearcher *searcher, const GvMirror *mirror, GvSearch *search)
{
	GvTopK		best;
	GvScan		scan = {.model = &mirror->model, .table = searcher->table,
	.best = &best, .reach = GV_SCORE_MAX};
	float		limit = search->limit;
	GvStatus	status;
	int32_t		p;
	int32_t		b;

	if (search->rank == 0 ||
		(!search->limited && search->nhits < search->rank))
		return GV_OK;
	if (!search->limited)
		limit = search->hits[search->rank - 1].score;
	status = open_topk(&searcher->postings, GV_BLOCK, &best);
	if (status == GV_OK)
		status = open_scratch(searcher, mirror->spec.m, GV_BLOCK);
	scan.scratch = searcher->scratch;
	for (p = 0; p < search->nprobed; p++)
	{
		const GvProbe *probe = &search->probed[p];
		const GvCpuList *list = &mirror->lists[probe->list];

		for (b = 0; status == GV_OK && b < list->nblocks; b++)
		{
			int64_t		count;

			if (!gv_sampled((uint32_t) probe->list, (uint32_t) b))
				continue;
			status = count_block(&scan, probe->base,
								 gv_cpu_block(mirror, list, b), limit,
								 &count);
			search->nearer += count;
			search->nearer_squares += count * count;
		}
	}
	return status;
}

/* The bounds or distances of hits that are given. */
static GvStatus
measure_given(GvSearcher *searcher, const GvMirror *mirror, GvSearch *searches,
			  int32_t n)
{
	size_t		nhits = 0;
	bool		asked = searches[0].asked != NULL;
	GvStatus	status;
	int32_t		i;

	for (i = 0; i < n; i++)
		nhits += (size_t) searches[i].nhits;
	status = need_answers(searcher, (nhits + 1) *
						  (asked ? sizeof(GvRowDistance) : sizeof(GvBound)));
	for (i = 0, nhits = 0; status == GV_OK && i < n; i++)
	{
		GvSearch   *search = &searches[i];

		search->bounds = asked ? NULL :
			(GvBound *) searcher->answers + nhits;
		search->distances = !asked ? NULL :
			(GvRowDistance *) searcher->answers + nhits;
		nhits += (size_t) search->nhits;
		status = asked ? gv_cpu_measure_hits(mirror, search) :
			gv_cpu_bound_hits(mirror, search);
	}
	return status;
}

/* What follows the choice of lists. */
static GvStatus
search_lists(GvSearcher *searcher, const GvMirror *mirror, GvSearch *search)
{
	GvStatus	status = make_table(searcher, mirror, search->query);

	if (status == GV_OK)
		status = scan_lists(searcher, mirror, search);
	gv_cpu_sort_hits(search);
	if (status == GV_OK)
		status = count_nearer(searcher, mirror, search);
	if (status == GV_OK && search->bounded)
		status = gv_cpu_bound_hits(mirror, search);
	if (status == GV_OK && search->asked != NULL)
		status = gv_cpu_measure_hits(mirror, search);
	return status;
}

/* See gv_mirror_search. */
GvStatus
gv_cpu_mirror_begin(GvSearcher *searcher, GvMirror *mirror,
					GvSearch *searches, int32_t n)
{
	GvStatus	status;
	int32_t		i;

	if (!mirror->covered || mirror->spec.device != searcher->device)
		return GV_INVALID;
	for (i = 0; i < n; i++)
		if ((searches[i].bounded && mirror->spec.refine_slots == 0) ||
			(searches[i].asked != NULL && mirror->spec.rows == GV_ROWS_NONE) ||
			(searches[i].condition != NULL &&
			 !gv_same_form(&searches[i].condition->form, &mirror->spec.keys)))
			return GV_INVALID;
	if (searches[0].steps == GV_STEPS_LAST)
		return measure_given(searcher, mirror, searches, n);
	status = place_answers(searcher, &mirror->spec, searches, n);
	for (i = 0; status == GV_OK && i < n; i++)
	{
		GvSearch   *search = &searches[i];

		search->nhits = 0;
		search->postings = 0;
		search->matched = 0;
		search->nearer = 0;
		search->nearer_squares = 0;
		if (search->steps != GV_STEPS_SCAN)
			status = find_lists(searcher, mirror, search);
		if (status == GV_OK && search->steps != GV_STEPS_LISTS)
			status = search_lists(searcher, mirror, search);
		if (search->sums)
		{
			search->probed = NULL;
			search->matches = NULL;
		}
	}
	return status;
}

/* See gv_mirror_done and gv_mirror_finish: all was done at once. */
bool
gv_cpu_mirror_done(GvSearcher *searcher)
{
	return true;
}

GvStatus
gv_cpu_mirror_finish(GvSearcher *searcher)
{
	return GV_OK;
}
