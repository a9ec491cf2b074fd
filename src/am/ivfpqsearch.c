/*
 * ivfpqsearch.c
 *		From a query to candidates: nearest lists, one look-up table, a scan of
 *		the probed lists.  Joins pages and engine; no lock is held while the
 *		engine works.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"

#include "am/ivfpq.h"
#include "am/ivfpqtidset.h"

/*
 * Lists for a table of that many rows.  Here and below: src/README,
 * "Defaults".
 */
int
IvfpqDefaultLists(double rows)
{
	return (int) Max(1, Min(rows / 100.0, IVFPQ_MAX_LISTS));
}

/*
 * Lists to probe: the setting, else the index's option, else what reaches
 * recall@10 of .95 on real embeddings.
 */
int
IvfpqProbes(Relation index, const IvfpqMetaData *meta)
{
	IvfpqOptions *options = (IvfpqOptions *) index->rd_options;
	int			probes;

	if (ivfpq_probes > 0)
		probes = ivfpq_probes;
	else if (options && options->probes > 0)
		probes = options->probes;
	else
		probes = (int) ceil((meta->copies > 1 ? 1.8 : 4.5) *
							pow(meta->nlists, 0.45));
	return Max(1, Min(probes, meta->nlists));
}

/*
 * Candidates to re-rank, by the same precedence.  The more dimensions share a
 * sub-quantizer, the less the score tells.
 */
int
IvfpqCandidates(Relation index, const IvfpqMetaData *meta)
{
	IvfpqOptions *options = (IvfpqOptions *) index->rd_options;
	double		width = (double) meta->dims / meta->pq_dim;

	if (ivfpq_candidates > 0)
		return ivfpq_candidates;
	if (options && options->candidates > 0)
		return options->candidates;
	return (int) Min(1000, Max(60, ceil(20 + 10 * width * width)));
}

/* Memory for the k nearest of something. */
static void
topk_resize(GvTopK *top, int capacity)
{
	if (capacity > top->capacity)
	{
		if (top->scores)
		{
			pfree(top->scores);
			pfree(top->ids);
		}
		top->scores = palloc_extended(capacity * sizeof(float),
									  MCXT_ALLOC_HUGE);
		top->ids = palloc_extended(capacity * sizeof(uint64_t),
								   MCXT_ALLOC_HUGE);
	}
	top->capacity = capacity;
	gv_topk_reset(top);
}

/*
 * Prepare to search a trained index for a raw query vector [dims]; memory
 * from the current context.
 */
void
IvfpqSearchInit(IvfpqSearch *search, Relation index, const IvfpqModel *model,
				const float *vector)
{
	memset(search, 0, sizeof(*search));
	search->index = index;
	search->model = model;
	search->query = palloc(model->meta.dims * sizeof(float));
	search->table = palloc((Size) model->gv.m * GV_CODEWORDS * sizeof(float));
	gv_transform(&model->gv, vector, 1, search->query);
	IvfpqCheckStatus(gv_table(&model->gv, search->query, search->table));
	IvfpqListReaderInit(&search->reader, index, &model->meta, NULL);
}

/* Score every copy of a list. */
static void
scan_list(IvfpqSearch *search, uint32 list, float base)
{
	IvfpqBlockView view;

	search->candidates.unique = false;
	IvfpqListOpen(&search->reader, list);
	while (IvfpqListNext(&search->reader, &view))
	{
		GvBlock		block = {
			.codes = view.codes,
			.t = view.t,
			.rowids = (const uint16_t *) (view.refine ? view.refine :
										  view.tids),
			.live = view.live
		};

		search->candidates.unique = search->reader.reread;
		IvfpqCheckStatus(gv_scan(&search->model->gv, search->table, base,
								 &block, 1, &search->candidates));
	}
}

/* Keep a row's better copy only, and no more than n rows. */
static void
keep_distinct(GvTopK *candidates, int n)
{
	tidset_hash *seen = tidset_create(CurrentMemoryContext, 2 * n, NULL);
	int			kept = 0;

	for (int i = 0; i < candidates->count && kept < n; i++)
	{
		bool		found;

		tidset_insert(seen, candidates->ids[i], &found);
		if (found)
			continue;
		candidates->scores[kept] = candidates->scores[i];
		candidates->ids[kept++] = candidates->ids[i];
	}
	candidates->count = kept;
	tidset_destroy(seen);
}

/*
 * Fill search->candidates with the best rows of the `probes` nearest lists,
 * by the score of their better copy, ties by id.  All copies of a row carry
 * the same address, so that it names the row as well as its TID does.
 */
void
IvfpqSearchRun(IvfpqSearch *search, int probes, int candidates)
{
	const IvfpqModel *model = search->model;

	topk_resize(&search->lists, probes);
	IvfpqNearestLists(search->index, model, model->gv.metric, search->query,
					  &search->lists);
	topk_resize(&search->candidates, candidates * model->meta.copies);
	for (int i = 0; i < search->lists.count; i++)
		scan_list(search, (uint32) search->lists.ids[i],
				  search->lists.scores[i]);
	gv_topk_sort(&search->candidates);
	if (model->meta.copies > 1)
		keep_distinct(&search->candidates, candidates);
}
