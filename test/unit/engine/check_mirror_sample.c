/*
 * check_mirror_sample.c
 *		Searches of mirrors count the sample right: for lists of many blocks,
 *		of which some are in the sample, all kinds of ranks, and batches of
 *		every size.
 */
#include "mirrors.h"

/* Returns how many blocks of all lists are in the sample. */
static int
count_sampled(const TestIndex *index)
{
	int			n = 0;
	int32_t		list;
	int32_t		b;

	for (list = 0; list < index->spec.nlists; list++)
		for (b = 0; b < index->lists[list].nblocks; b++)
			n += gv_sampled((uint32_t) list, (uint32_t) b);
	return n;
}

/*
 * Checks n searches in one call.  Repeats the call, so that a device replays
 * the steps that it recorded in the first call.  Then repeats it with other
 * ranks, of which some have limits, and without ranks.
 */
static void
check_ranks(GvSearcher *searcher, GvMirror *mirror, const TestIndex *index,
			int n, int32_t probes, int32_t capacity)
{
	OWN GvSearch *searches = unit_alloc(sizeof(GvSearch) * n);
	int64_t		nearer = 0;
	int			round;
	int			i;

	for (i = 0; i < n; i++)
	{
		searches[i] = new_search(index, probes, index->spec.nlists, capacity);
		searches[i].bounded = index->spec.refine_slots > 0 &&
			unit_random() % 2 > 0;
	}
	for (round = 0; round < 4; round++)
	{
		check_call(searcher, mirror, index, searches, n, "sample");
		for (i = 0; i < n; i++)
		{
			nearer += searches[i].nearer;
			if (searches[i].condition == NULL || round == 0)
				continue;
			/* some of the next searches get a limit in place of the rank */
			if (searches[i].nhits > 0)
				searches[i].limit = searches[i].hits[searches[i].nhits / 2].score;
			searches[i].rank = round == 2 ? 0 :
				1 + (int32_t) (unit_random() % capacity);
			searches[i].limited = searches[i].rank > 0 &&
				unit_random() % 3 == 0;
		}
	}
	CHECK(nearer > 0 || n < 40, "%d searches, and nothing was near", n);
	free_searches(searches, n);
}

/* Marks postings dead and empties lists; the sample has the same blocks. */
static void
thin_out(GvMirror *mirror, TestIndex *index)
{
	int32_t		list;
	int32_t		b;

	for (list = 0; list < index->spec.nlists; list++)
	{
		TestList   *held = &index->lists[list];
		GvListChunk chunk;

		if (unit_random() % 8 == 0)
			resize_list(index, held, 0, 0);
		for (b = 0; b < held->nblocks; b++)
			held->live[b] &= unit_random() % 4 == 0 ? 0 :
				(uint32_t) unit_random();
		chunk = index_chunk(index, list, 0, held->nblocks,
							held->nblocks > 0);
		CHECK(gv_mirror_put_list(mirror, &chunk) == GV_OK, "thinned out");
	}
}

void
test_mirror_sample(GvSearcher *searcher)
{
	static const int32_t shapes[][6] = {
		/* dims, m, nlists, mean, ties, refine slots */
		{3, 2, 40, 160, 1, 0}, {5, 3, 40, 160, 0, 4}, {40, 34, 30, 250, 0, 0},
		{2, 1, 90, 60, 1, 3}, {4, 2, 300, 40, 0, 0}
	};
	int			i;

	for (i = 0; i < 5; i++)
	{
		const int32_t *s = shapes[i];
		int32_t		nlists = s[2];
		OwnIndex	index = make_index(GV_L2 + i % 3, s[0], s[1], nlists, 3,
									   s[3], s[4] != 0);
		OwnMirror	mirror = NULL;

		index.spec.refine_slots = s[5];
		give_keys(&index, 1 + i % 3);
		CHECK(count_sampled(&index) > 1, "shape %d has no sample", i);
		mirror = make_mirror(&index);
		check_ranks(searcher, mirror, &index, 1, nlists, 100);
		check_ranks(searcher, mirror, &index, 5, nlists / 2, 300);
		check_ranks(searcher, mirror, &index, 40, 9, 20);
		if (i < (unit_small ? 1 : 5))
		{
			check_ranks(searcher, mirror, &index, 150, 5, 7);
			check_ranks(searcher, mirror, &index, 2, nlists, 3000);
		}
		thin_out(mirror, &index);
		check_ranks(searcher, mirror, &index, 10, nlists, 50);
	}
}
