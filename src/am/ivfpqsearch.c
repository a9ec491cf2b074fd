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

/*
 * Lists for a table of that many rows: 100 rows each, or fewer lists when
 * comparing the query with all centroids would take longer than reading
 * longer lists.  Here and below: src/README, "Defaults".
 */
int
IvfpqDefaultLists(double rows)
{
	double		lists = Min(rows / 100.0, 0.46 * pow(rows, 2.0 / 3.0));

	return (int) Max(1, Min(lists, IVFPQ_MAX_LISTS));
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
		probes = (int) ceil(4.5 * pow(meta->nlists, 0.45));
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

/* The `probes` nearest lists into search->lists, nearest first. */
static void
nearest_lists(IvfpqSearch *search, int probes)
{
	const IvfpqMetaData *meta = &search->model->meta;
	IvfpqArrayReader reader;
	const float *run;
	int			first = 0;
	int			count;

	topk_resize(&search->lists, probes);
	IvfpqArrayOpen(&reader, search->index, meta->centroids, meta->dims,
				   meta->nlists);
	while ((run = IvfpqArrayNext(&reader, &count)) != NULL)
	{
		IvfpqCheckStatus(gv_coarse(&search->model->gv, search->query, run,
								   count, first, &search->lists));
		first += count;
	}
	IvfpqArrayClose(&reader);
	gv_topk_sort(&search->lists);
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
			.rowids = (const uint16_t *) view.tids,
			.live = view.live
		};

		search->candidates.unique = search->reader.reread;
		IvfpqCheckStatus(gv_scan(&search->model->gv, search->table, base,
								 &block, 1, &search->candidates));
	}
}

/*
 * Fill search->candidates with the best copies of the `probes` nearest lists,
 * by score, ties by TID.
 */
void
IvfpqSearchRun(IvfpqSearch *search, int probes, int candidates)
{
	nearest_lists(search, probes);
	topk_resize(&search->candidates, candidates);
	for (int i = 0; i < search->lists.count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		scan_list(search, (uint32) search->lists.ids[i],
				  search->lists.scores[i]);
	}
	gv_topk_sort(&search->candidates);
}
