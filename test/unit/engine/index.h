/*
 * index.h
 *		A random index for the tests of mirrors, and what searches of it must
 *		find, by sorting everything.
 */
#ifndef INDEX_H
#define INDEX_H

#include "keys.h"

#include "engine/mirror/gv_mirror.h"

typedef struct TestList
{
	uint32_t	gen;
	uint32_t	nitems;
	uint32_t	del_seq;
	int32_t		nblocks;
	uint32_t   *live;			/* as in GvListChunk */
	float	   *t;
	uint16_t   *rowids;
	char	   *keys;			/* or NULL */
	uint8_t    *codes;
} TestList;

typedef struct TestIndex
{
	GvMirrorSpec spec;
	GvModel		model;
	float	   *codebooks;
	float	   *parents;
	int32_t    *parent_offsets;
	float	   *centroids;
	TestList   *lists;			/* [spec.nlists] */
	bool		ties;			/* few different numbers */
} TestIndex;

/* A posting that a search sees. */
typedef struct Triple
{
	float		score;
	uint64_t	id;
	uint32_t	probe;
} Triple;

static inline float
index_float(bool ties)
{
	return ties ? (float) (unit_random() % 3) - 1.0f : unit_float();
}

static inline float *
index_floats(size_t n, bool ties)
{
	float	   *x = unit_alloc(n * sizeof(float));
	size_t		i;

	for (i = 0; i < n; i++)
		x[i] = index_float(ties);
	return x;
}

/* Fill blocks first .. nblocks - 1 of a list at random; nitems is set. */
static inline void
fill_list(const TestIndex *index, TestList *list, int32_t first)
{
	size_t		code_bytes = (size_t) gv_code_bytes(index->spec.m) * GV_BLOCK;
	size_t		keys_bytes = gv_keys_bytes(&index->spec.keys);
	int64_t		slot;
	size_t		i;
	int32_t		b;

	for (b = first; list->keys != NULL && b < list->nblocks; b++)
		unit_make_keys(&index->spec.keys, (int) (unit_random() % 4),
					   list->keys + b * keys_bytes);

	for (slot = (int64_t) first * GV_BLOCK;
		 slot < (int64_t) list->nblocks * GV_BLOCK; slot++)
	{
		list->t[slot] = index_float(index->ties);
		list->rowids[slot * 3] = (uint16_t) (unit_random() % 2 * 0x8000);
		list->rowids[slot * 3 + 1] = (uint16_t) (unit_random() % 40);
		list->rowids[slot * 3 + 2] = (uint16_t) (unit_random() % 10 * 6553);
		if (slot % GV_BLOCK == 0)
			list->live[slot / GV_BLOCK] =
				(uint32_t) (unit_random() | unit_random());
	}
	for (i = first * code_bytes; i < list->nblocks * code_bytes; i++)
		list->codes[i] = (uint8_t) unit_random();
	if (list->nitems % GV_BLOCK != 0)
		list->live[list->nblocks - 1] &=
			(UINT32_C(1) << list->nitems % GV_BLOCK) - 1;
}

static inline void
free_list(TestList *list)
{
	unit_free(list->live);
	unit_free(list->t);
	unit_free(list->rowids);
	if (list->keys != NULL)
		unit_free(list->keys);
	unit_free(list->codes);
}

/*
 * Gives a list nitems postings, of which it keeps the blocks before `first`,
 * as far as they are full.
 */
static inline void
resize_list(const TestIndex *index, TestList *list, uint32_t nitems,
			int32_t first)
{
	size_t		code_bytes = (size_t) gv_code_bytes(index->spec.m) * GV_BLOCK;
	size_t		keys_bytes = gv_keys_bytes(&index->spec.keys);
	int32_t		nblocks = (int32_t) ((nitems + GV_BLOCK - 1) / GV_BLOCK);
	TestList	made = *list;
	size_t		capacity = nblocks;

	made.nitems = nitems;
	made.nblocks = nblocks;
	made.live = unit_alloc(capacity * sizeof(uint32_t));
	made.t = unit_alloc(capacity * GV_BLOCK * sizeof(float));
	made.rowids = unit_alloc(capacity * GV_BLOCK * 3 * sizeof(uint16_t));
	made.keys = keys_bytes > 0 ? unit_alloc(capacity * keys_bytes) : NULL;
	made.codes = unit_alloc(capacity * code_bytes);
	if (first > 0 && made.keys != NULL)
		memcpy(made.keys, list->keys, first * keys_bytes);
	if (first > 0)
	{
		memcpy(made.live, list->live, first * sizeof(uint32_t));
		memcpy(made.t, list->t, first * GV_BLOCK * sizeof(float));
		memcpy(made.rowids, list->rowids,
			   first * GV_BLOCK * 3 * sizeof(uint16_t));
		memcpy(made.codes, list->codes, first * code_bytes);
	}
	fill_list(index, &made, first);
	if (list->live != NULL)
		free_list(list);
	*list = made;
}

/*
 * A random index.  Lists have 0 to 2 * mean postings, or, when mean is
 * negative, one list has -mean postings and the others none.
 */
static inline TestIndex
make_index(GvMetric metric, int32_t dims, int32_t m, int32_t nlists,
		   int32_t nparents, int32_t mean, bool ties)
{
	TestIndex	index = {.ties = ties};
	int32_t		full = (int32_t) (unit_random() % (uint64_t) nlists);
	int32_t		i;

	index.spec = (GvMirrorSpec) {.metric = metric,.dims = dims,.m = m,
	.nlists = nlists,.nparents = nparents};
	index.codebooks = index_floats((size_t) GV_CODEWORDS * dims, ties);
	index.parents = index_floats((size_t) nparents * dims, ties);
	index.centroids = index_floats((size_t) nlists * dims, ties);
	index.parent_offsets = unit_alloc(sizeof(int32_t) * (nparents + 1));
	/* each parent at least one list, the last one all that are left */
	for (i = 0; i < nparents; i++)
		index.parent_offsets[i] = (int32_t) ((int64_t) nlists * i / nparents);
	index.parent_offsets[nparents] = nlists;
	index.model = (GvModel) {.metric = metric,.dims = dims,.m = m,.scale = 1,
	.codebooks = index.codebooks};
	index.lists = calloc(nlists, sizeof(TestList));
	for (i = 0; i < nlists; i++)
	{
		uint32_t	nitems = mean >= 0 ?
			(uint32_t) (unit_random() % (uint64_t) (2 * mean + 1)) :
			(uint32_t) (i == full ? -mean : 0);

		index.lists[i].gen = (uint32_t) unit_random();
		index.lists[i].del_seq = (uint32_t) unit_random();
		resize_list(&index, &index.lists[i], nitems, 0);
		index.spec.postings += nitems;
	}
	return index;
}

/* Gives its postings keys. */
static inline void
give_form(TestIndex *index, GvKeyForm form)
{
	int32_t		i;

	index->spec.keys = form;
	for (i = 0; i < index->spec.nlists; i++)
		resize_list(index, &index->lists[i], index->lists[i].nitems, 0);
}

static inline void
give_keys(TestIndex *index, int nkeys)
{
	give_form(index, unit_form(nkeys));
}

static inline void
free_index(TestIndex *index)
{
	int32_t		i;

	unit_free(index->codebooks);
	unit_free(index->parents);
	unit_free(index->parent_offsets);
	unit_free(index->centroids);
	for (i = 0; i < index->spec.nlists; i++)
		free_list(&index->lists[i]);
	free(index->lists);
}

#define OwnIndex	UNIT_OWN(free_index) TestIndex

/* An array of the model, as put_array wants it. */
static inline const void *
index_array(const TestIndex *index, GvArray array, int64_t *n)
{
	const GvMirrorSpec *spec = &index->spec;

	switch (array)
	{
		case GV_CODEBOOKS:
			*n = (int64_t) GV_CODEWORDS * spec->dims;
			return index->codebooks;
		case GV_PARENTS:
			*n = (int64_t) spec->nparents * spec->dims;
			return index->parents;
		case GV_PARENT_OFFSETS:
			*n = spec->nparents + 1;
			return index->parent_offsets;
		default:
			*n = (int64_t) spec->nlists * spec->dims;
			return index->centroids;
	}
}

/* Blocks first .. first + nblocks - 1 of a list. */
static inline GvListChunk
index_chunk(const TestIndex *index, int32_t list, int32_t first,
			int32_t nblocks, bool live_only)
{
	const TestList *held = &index->lists[list];
	size_t		code_bytes = (size_t) gv_code_bytes(index->spec.m) * GV_BLOCK;
	GvListChunk chunk = {.list = list,.first = first,.nblocks = nblocks};

	chunk.live = held->live + first;
	if (live_only)
		return chunk;
	chunk.t = held->t + (size_t) first * GV_BLOCK;
	chunk.rowids = held->rowids + (size_t) first * GV_BLOCK * 3;
	if (held->keys != NULL)
		chunk.keys = held->keys + first * gv_keys_bytes(&index->spec.keys);
	chunk.codes = held->codes + first * code_bytes;
	return chunk;
}

static inline int
compare_triples(const void *a, const void *b)
{
	const Triple *x = a;
	const Triple *y = b;

	if (x->score != y->score)
		return x->score < y->score ? -1 : 1;
	if (x->id != y->id)
		return x->id < y->id ? -1 : 1;
	return x->probe < y->probe ? -1 : x->probe > y->probe;
}

/* Centroids' scores of rows first .. first + n - 1, into pairs. */
static inline int
score_rows(const TestIndex *index, const float *query, const float *rows,
		   int32_t first, int32_t n, Pair *pairs)
{
	int32_t		dims = index->spec.dims;
	bool		ip = index->spec.metric == GV_IP;
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		float		sum = lanes16(query, rows + (size_t) (first + i) * dims,
								  dims, ip);

		pairs[i].score = score_of(ip ? -sum : sum);
		pairs[i].id = (uint64_t) (first + i);
	}
	return n;
}

static inline int
compare_pair_ids(const void *a, const void *b)
{
	const Pair *x = a;
	const Pair *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

/* The lists to search, nearest first, into pairs [nlists]; their number. */
static inline int
expect_lists(const TestIndex *index, const float *query, int32_t probes,
			 int32_t compare, Pair *pairs)
{
	const GvMirrorSpec *spec = &index->spec;
	Pair	   *parents = malloc(sizeof(Pair) * spec->nparents);
	int			n = 0;
	int			i;

	if (spec->nparents == 1 || compare >= spec->nlists - spec->nparents)
		n = score_rows(index, query, index->centroids, 0, spec->nlists,
					   pairs);
	else
	{
		score_rows(index, query, index->parents, 0, spec->nparents, parents);
		qsort(parents, spec->nparents, sizeof(Pair), compare_pairs);
		for (i = 0; i < spec->nparents && n < compare; i++)
		{
			int32_t		first = index->parent_offsets[parents[i].id];

			n += score_rows(index, query, index->centroids, first,
							index->parent_offsets[parents[i].id + 1] - first,
							pairs + n);
		}
	}
	free(parents);
	qsort(pairs, n, sizeof(Pair), compare_pairs);
	return n < probes ? n : probes;
}

/*
 * Returns the live postings of a block that satisfy a condition, which may be
 * NULL.
 */
static inline uint32_t
index_matching(const TestIndex *index, const TestList *list, int32_t b,
			   const GvCondition *condition)
{
	return condition == NULL ? list->live[b] :
		list->live[b] & naive_match(condition, list->keys +
									b * gv_keys_bytes(&index->spec.keys));
}

/*
 * Returns how many live postings of the lists satisfy a condition, which may
 * be NULL.
 */
static inline int64_t
count_live(const TestIndex *index, const Pair *lists, int nlists,
		   const GvCondition *condition)
{
	int64_t		n = 0;
	int			p;
	int32_t		b;

	for (p = 0; p < nlists; p++)
		for (b = 0; b < index->lists[lists[p].id].nblocks; b++)
			n += __builtin_popcount(index_matching(index,
												   &index->lists[lists[p].id],
												   b, condition));
	return n;
}

/*
 * Scores and row ids of a block's postings `bits`, into a top with capacity
 * for all.
 */
static inline void
score_block(const TestIndex *index, const float *table, const TestList *list,
			float base, int32_t b, uint32_t bits, GvTopK *top)
{
	size_t		code_bytes = (size_t) gv_code_bytes(index->spec.m) * GV_BLOCK;
	GvBlock		block = {
		.codes = list->codes + b * code_bytes,
		.t = list->t + b * GV_BLOCK,
		.rowids = list->rowids + b * GV_BLOCK * 3,
		.live = bits
	};

	scan_blocks(&index->model, table, base, &block, 1, top);
}

/*
 * Every live posting of the lists that satisfies a condition, ascending; *n
 * and the caller's to free.
 */
static inline Triple *
expect_postings(const TestIndex *index, const float *query, const Pair *lists,
			  int nlists, const GvCondition *condition, int64_t *n)
{
	float	   *table = unit_alloc(gv_table_bytes(index->spec.m));
	Triple	   *triples = NULL;
	int			p;
	int32_t		b;
	int			i;

	(void) gv_table(&index->model, query, table);
	*n = 0;
	for (p = 0; p < nlists; p++)
	{
		const TestList *list = &index->lists[lists[p].id];

		triples = realloc(triples, sizeof(Triple) *
						  (*n + (int64_t) list->nblocks * GV_BLOCK + 1));
		for (b = 0; b < list->nblocks; b++)
		{
			float		scores[GV_BLOCK];
			uint64_t	ids[GV_BLOCK];
			GvTopK		top = {GV_BLOCK, 0, false, scores, ids};

			score_block(index, table, list, lists[p].score, b,
						index_matching(index, list, b, condition), &top);
			for (i = 0; i < top.count; i++)
				triples[(*n)++] = (Triple) {scores[i], ids[i], (uint32_t) p};
		}
	}
	if (*n > 0)
		qsort(triples, *n, sizeof(Triple), compare_triples);
	unit_free(table);
	return triples;
}

/* Does a search tell of the sample what it must?  Its hits are right. */
static inline bool
sample_is_right(const TestIndex *index, const GvSearch *found,
				const Pair *lists, int nlists)
{
	float	   *table = unit_alloc(gv_table_bytes(index->spec.m));
	bool		asked = found->rank > 0 &&
	(found->limited || found->nhits >= found->rank);
	float		limit = found->limited ? found->limit :
	asked ? found->hits[found->rank - 1].score : 0;
	int64_t		nearer = 0;
	int64_t		squares = 0;
	int			p;
	int32_t		b;
	int			i;

	(void) gv_table(&index->model, found->query, table);
	for (p = 0; asked && p < nlists; p++)
	{
		const TestList *list = &index->lists[lists[p].id];

		for (b = 0; b < list->nblocks; b++)
		{
			float		scores[GV_BLOCK];
			uint64_t	ids[GV_BLOCK];
			GvTopK		top = {GV_BLOCK, 0, false, scores, ids};
			int64_t		count = 0;

			if (!gv_sampled((uint32_t) lists[p].id, (uint32_t) b))
				continue;
			score_block(index, table, list, lists[p].score, b, list->live[b],
						&top);
			for (i = 0; i < top.count; i++)
				count += scores[i] <= limit;
			nearer += count;
			squares += count * count;
		}
	}
	unit_free(table);
	return found->nearer == nearer && found->nearer_squares == squares;
}

/*
 * Does a search's result hold what it must?  Its pairs are those that sort
 * first; each is a posting of its probe's list, and none is there twice.
 */
static inline bool
search_is_right(const TestIndex *index, const float *query, int32_t probes,
				int32_t compare, int32_t capacity, const GvSearch *found)
{
	Pair	   *lists = malloc(sizeof(Pair) * index->spec.nlists);
	int			nlists = expect_lists(index, query, probes, found->by_number ?
									  index->spec.nlists : compare, lists);
	int64_t		npostings;
	Triple	   *postings;
	int64_t		next = 0;
	bool		right;
	int32_t		i;

	if (found->by_number)
		qsort(lists, nlists, sizeof(Pair), compare_pair_ids);
	postings = expect_postings(index, query, lists, nlists,
							   found->condition, &npostings);
	right = found->nprobed == nlists &&
		found->postings == count_live(index, lists, nlists, NULL) &&
		(found->probed == NULL) == found->sums &&
		(found->matches == NULL) ==
		(found->condition == NULL || found->sums) &&
		found->matched == (found->condition == NULL ? 0 :
						   count_live(index, lists, nlists,
									  found->condition)) &&
		found->nhits == (npostings < capacity ? npostings : capacity);
	for (i = 0; right && i < nlists; i++)
		right = (found->sums ||
				 (found->probed[i].list == (int32_t) lists[i].id &&
				  found->probed[i].base == lists[i].score)) &&
			(found->matches == NULL ||
			 found->matches[i] == count_live(index, &lists[i], 1,
											 found->condition));
	for (i = 0; right && i < found->nhits; i++)
	{
		const GvHit *hit = &found->hits[i];
		uint64_t	id = (uint64_t) hit->rowid[0] << 32 |
			(uint64_t) hit->rowid[1] << 16 | hit->rowid[2];

		right = hit->score == postings[i].score && id == postings[i].id &&
			hit->unused == 0;
		/* within equal pairs, probes ascend among those that hold one */
		while (next < npostings && right &&
			   (postings[next].score != hit->score ||
				postings[next].id != id ||
				postings[next].probe != hit->probe))
			right = postings[next].score < hit->score ||
				(postings[next].score == hit->score &&
				 postings[next].id <= id),
				next++;
		right = right && next++ < npostings;
	}
	right = right && sample_is_right(index, found, lists, nlists);
	free(postings);
	free(lists);
	return right;
}

#endif							/* INDEX_H */
