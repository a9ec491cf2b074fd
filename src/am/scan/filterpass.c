/*
 * filterpass.c
 *		The full pass of a filtered scan: over the table, or over those of its
 *		rows that another index names.  The condition comes first, and only
 *		rows that match are reranked.
 *
 * Rows are named by where they are.  An entry of an index may name the head of
 * a HOT chain instead, so the scan notes where the rows are that it returns.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "miscadmin.h"
#include "utils/rel.h"

#include "am/common/enginecall.h"
#include "am/scan/scan.h"
#include "am/search/rerank.h"
#include "pgcompat.h"

/*
 * A row of the rest.  The predicate comes first: it may stand for a policy,
 * whose condition it proves, and no other may be asked of rows that that
 * hides.
 */
static void
offer_row(IvfpqScan *state, TupleTableSlot *row,
		  void (*take) (IvfpqScan *state, uint64 id, double distance))
{
	IvfpqFilter *filter = state->filter;
	uint64		id;
	double		distance;

	CHECK_FOR_INTERRUPTS();
	if (!IvfpqRerankAdmits(state->rerank, row))
		return;
	if ((state->asks_keys && !IvfpqRerankMatches(state->rerank, row, true)) ||
		!filter->satisfies(filter->arg, row))
	{
		state->report.filter.rejected++;
		return;
	}
	id = IvfpqTidToId(&row->tts_tid);
	if (state->returned_tids != NULL &&
		tidset_lookup(state->returned_tids, id) != NULL)
		return;
	state->report.reranked++;
	if (IvfpqRerankOther(state->rerank, row, &distance) &&
		!IvfpqIsOutside(state, distance))
		take(state, id, distance);
}

/*
 * Give every row that passes and has not been returned to `take`, named by
 * where it is; state->report says by which way.
 */
void
IvfpqFilterFullPass(IvfpqScan *state,
					void (*take) (IvfpqScan *state, uint64 id, double distance))
{
	IvfpqFilter *filter = state->filter;
	IvfpqRerank *rerank = state->rerank;
	TupleTableSlot *row;
	TableScanDesc scan;
	IvfpqPrefetchPage pages;

	IvfpqRerankOthers(rerank);
	if (state->report.filter.rest == IVFPQ_REST_MATCHES)
	{
		while ((row = filter->next_match(filter->arg)) != NULL)
			offer_row(state, row, take);
		return;
	}
	IvfpqPrefetchPageBegin(&pages, rerank->heap);
	scan = IvfpqTableBeginScan(rerank->heap, rerank->snapshot);
	row = rerank->slot;
	while (table_scan_getnextslot(scan, ForwardScanDirection, row))
	{
		IvfpqPrefetchPageTo(&pages,
							ItemPointerGetBlockNumber(&row->tts_tid));
		offer_row(state, row, take);
	}
	ExecClearTuple(row);
	table_endscan(scan);
	IvfpqPrefetchPageEnd(&pages);
}

/*
 * Fetch the row that comes up into the filter's slot, and note where it is.
 * id is an entry's or, of the rest, says where the row is.  False if it has
 * vanished, which a snapshot does not allow.
 */
bool
IvfpqFilterFetch(IndexScanDesc scan, uint64 id)
{
	IvfpqScan  *state = (IvfpqScan *) scan->opaque;
	TupleTableSlot *row = state->filter->row;
	bool		found;

	IvfpqIdToTid(id, &scan->xs_heaptid);
	if (state->in_full_pass && state->report.filter.rest != IVFPQ_REST_LISTS)
		return table_tuple_fetch_row_version(scan->heapRelation,
											 &scan->xs_heaptid,
											 scan->xs_snapshot, row);
	if (!index_fetch_heap(scan, row))
		return false;
	if (state->returned_tids == NULL)
		state->returned_tids = tidset_create(state->context, 16, NULL);
	tidset_insert(state->returned_tids, IvfpqTidToId(&row->tts_tid), &found);
	return true;
}
