/*
 * size.c
 *		How much a round of many queries takes: lists, candidates, memory.
 */
#include "postgres.h"

#include "am/common/model.h"
#include "am/common/options.h"
#include "am/many/many.h"
#include "client/client.h"

/* Tables, or scratch, of the searches that are under way together. */
#define TOGETHER_BYTES	((Size) 8 * 1024 * 1024)

/*
 * Returns whether a scan would make a full pass rather than search with these
 * parameters.  See batch.c.
 */
static bool
full_pass_is_better(const IvfpqBulk *bulk, const IvfpqSearchParams *params)
{
	if (params->recall_unreached)
		return true;
	if (params->candidates > IVFPQ_MIN_RERANKED &&
		!IvfpqHasRows(bulk->index, &bulk->model->meta,
					  params->candidates / IVFPQ_RERANKED_FRACTION))
		return true;
	return ivfpq_order == IVFPQ_ORDER_STRICT && !params->calibrated &&
		params->quota > IVFPQ_BULK_SECOND &&
		!IvfpqHasRows(bulk->index, &bulk->model->meta,
					  params->quota / (1 - ivfpq_recall));
}

/* Returns the postings that the lists have now, dead ones included. */
static double
count_postings(IvfpqBulk *bulk)
{
	IvfpqListTotals totals;

	IvfpqSumLists(bulk->index, &bulk->model->meta, &totals);
	return totals.live + totals.dead;
}

/*
 * Sets *params to what a round for that many rows takes; false: all rows had
 * better be reranked.  Where all rows of `drained` lists were candidates
 * already, the round needs more lists.  Sets *is_last if it reads all lists
 * that may be read.
 */
bool
IvfpqBulkParams(IvfpqBulk *bulk, double rows, int drained,
				IvfpqSearchParams *params,
				bool *is_last)
{
	const IvfpqMetaData *meta = &bulk->model->meta;
	int			most = meta->nlists;
	IvfpqSearchParams first;

	if (bulk->everything)
		return false;
	IvfpqParamsForRows(params, bulk->index, meta, ivfpq_recall,
					   Min(rows, PG_INT32_MAX));
	if (params->read_all)
		return false;
	if (ivfpq_max_probes > 0)
	{
		IvfpqParamsForBatch(&first, bulk->index, meta, ivfpq_recall, 0);
		most = Min(most, Max(ivfpq_max_probes, first.probes));
	}
	if (full_pass_is_better(bulk, params))
	{
		if (ivfpq_max_probes == 0)
			return false;
		params->probes = most;
		params->candidates = PG_INT32_MAX / 4;
	}
	if (params->probes <= drained)
		params->probes = 2 * drained;
	params->probes = Min(params->probes, most);
	*is_last = params->probes == most;

	/*
	 * The search asks for one more than there are.  That one is not found,
	 * which tells that there is none.  Where others have inserted so many
	 * meanwhile that it is found, the next round counts again.
	 */
	if (params->candidates > IVFPQ_FEW_CANDIDATES)
		params->candidates = (int) Min(params->candidates,
									   count_postings(bulk) + 1);
	return true;
}

/* Bytes that a query takes in a slice of a round. */
Size
IvfpqBulkSliceBytes(const IvfpqBulk *bulk, const IvfpqSearchParams *params)
{
	Size		candidate = 2 * sizeof(uint64); /* keys, and to sort them */

	if (bulk->model->meta.refine != IVFPQ_REFINE_NONE)
		candidate += sizeof(IvfpqBulkBound);
	else
		candidate += sizeof(uint64);
	if (IvfpqServerIsWanted())
		candidate += (Size) bulk->model->meta.lists_per_row *
			(sizeof(GvHit) + sizeof(GvBound));
	return (Size) params->candidates * candidate + 2 * sizeof(uint64) +
		(Size) params->probes * (sizeof(uint64) + sizeof(float));
}

/* Bytes that a search takes. */
static Size
search_bytes(const IvfpqBulk *bulk, const IvfpqSearchParams *params)
{
	int64		capacity = (int64) params->candidates *
	bulk->model->meta.lists_per_row;

	return gv_scan_scratch(bulk->model->gv.m,
						   (int32) Min(capacity, PG_INT32_MAX)) +
		capacity * (sizeof(float) + sizeof(uint64));
}

/* Searches to have memory for: their tables are as long as vectors. */
int
IvfpqBulkSearches(const IvfpqBulk *bulk)
{
	Size		bytes = gv_table_bytes(bulk->model->gv.m) +
	bulk->model->meta.dims * sizeof(float);
	int			most = (int) Max(Min(IVFPQ_TOGETHER, TOGETHER_BYTES / bytes), 1);

	return Min(bulk->queries.n, most);
}

/* Searches to have under way at once. */
int
IvfpqBulkTogether(const IvfpqBulk *bulk, const IvfpqSearchParams *params)
{
	return (int) Max(1, Min((Size) bulk->nsearches, TOGETHER_BYTES /
							search_bytes(bulk, params)));
}

/*
 * Returns whether a round for one query fits in memory.  As in a scan, a small
 * one always does.
 */
bool
IvfpqBulkFits(const IvfpqBulk *bulk, const IvfpqSearchParams *params)
{
	return params->candidates <= IVFPQ_FEW_CANDIDATES ||
		IvfpqBulkSliceBytes(bulk, params) + search_bytes(bulk, params) <=
		IvfpqMemoryLimit();
}

/* Returns how many queries make a portion. */
int
IvfpqBulkPortion(IvfpqBulk *bulk)
{
	Size		bytes = sizeof(IvfpqBulkQuery) + sizeof(int) +
	2 * sizeof(double) + bulk->k * sizeof(IvfpqBulkRow) +
	(Size) bulk->queries.dims * 2 * sizeof(float);
	IvfpqSearchParams params;
	bool		is_last;

	if (bulk->model->meta.nlists > 0 &&
		IvfpqBulkParams(bulk, Max(bulk->k, IVFPQ_FIRST_ROWS), 0, &params,
						&is_last))
		bytes += IvfpqBulkSliceBytes(bulk, &params);
	return (int) Max(1, Min(IvfpqMemoryLimit() / bytes, IVFPQ_BULK_PORTION));
}
