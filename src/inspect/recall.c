/*
 * recall.c
 *		gpuvec_recall: measures how many of the k nearest rows the index finds.
 *
 * The queries are given by the caller, or a first pass draws rows of the table
 * as queries.  This pass reads the whole table, because only a full pass gives
 * each distinct vector the same chance, however many rows have it.  Another
 * pass computes the distance of every row from every query, to find the
 * distance of each query's k-th nearest row.  Then an index scan, set up as by
 * the executor, searches for each query with the settings in force.  All
 * passes and scans use the same snapshot.
 */
#include "postgres.h"

#include <math.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "common/pg_prng.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/binaryheap.h"
#include "miscadmin.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "am/build/calibrate.h"
#include "am/common/enginecall.h"
#include "am/common/identity.h"
#include "am/search/heaptids.h"
#include "am/types/queries.h"
#include "am/types/sqldistance.h"
#include "page/metapage.h"
#include "pgcompat.h"

#define MAX_K			10000
#define MAX_SAMPLES		100000

/* A row that may be drawn as a query. */
typedef struct Drawn
{
	uint64		hash;			/* hash of the row's vector, with a random
								 * seed for each call of gpuvec_recall */
	ItemPointerData tid;
} Drawn;

typedef struct RecallQuery
{
	Datum		value;
	binaryheap *nearest;		/* heap of the k least distances found, with
								 * the largest first */
} RecallQuery;

typedef struct Recall
{
	Relation	heap;
	Relation	index;
	Snapshot	snapshot;
	int			k;
	int			samples;
	IvfpqType	type;
	int			dims;			/* of the index's rows; 0 = no rows */
	int			strategy;
	Oid			distance_oid;
	FmgrInfo	distance;
	IndexInfo  *indexInfo;
	EState	   *estate;
	ExprState  *predicate;
	TupleTableSlot *slot;
	MemoryContext row;			/* reset before every row */
	MemoryContext batch;		/* for the queries; reset before every batch */

	bool		has_given;
	IvfpqQueries given;			/* the caller's queries, if has_given */
	ItemPointerData *tids;		/* [nasked] rows drawn, if not has_given */
	int			nasked;
	RecallQuery *queries;		/* [nqueries], the batch being measured */
	int			nqueries;

	/* sums over the queries measured: those that have at least one neighbor */
	IvfpqRecallSums sums;
	int64		hits;
	int64		possible;
} Recall;

PG_FUNCTION_INFO_V1(gpuvec_recall);

/*
 * Gets the indexed value of the row in recall->slot, detoasted.  The value is
 * valid until the next call, as long as the slot holds the row.  Returns false
 * if the index has no entry for the row, because the value is NULL, the row
 * does not satisfy the index's predicate, or the vector is a zero vector under
 * cosine distance or has other dimensions (IvfpqHasPlace).
 */
static bool
row_value(Recall *recall, Datum *value)
{
	ExprContext *context = GetPerTupleExprContext(recall->estate);
	MemoryContext oldcontext;
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	bool		found = false;

	MemoryContextReset(recall->row);
	ResetExprContext(context);
	oldcontext = MemoryContextSwitchTo(recall->row);
	context->ecxt_scantuple = recall->slot;
	if (recall->predicate == NULL || ExecQual(recall->predicate, context))
	{
		FormIndexDatum(recall->indexInfo, recall->slot, recall->estate,
					   values, isnull);
		if (!isnull[0])
		{
			*value = PointerGetDatum(PG_DETOAST_DATUM(values[0]));
			found = IvfpqHasPlace(&recall->type, *value, recall->dims);
		}
	}
	MemoryContextSwitchTo(oldcontext);
	return found;
}

static double
row_distance(Recall *recall, Datum value, Datum query)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(recall->row);
	Datum		distance = FunctionCall2Coll(&recall->distance,
											 recall->type.collation,
											 value, query);

	MemoryContextSwitchTo(oldcontext);
	return DatumGetFloat8(distance);
}

static int
compare_hashes(const void *a, const void *b)
{
	uint64		x = ((const Drawn *) a)->hash;
	uint64		y = ((const Drawn *) b)->hash;

	return x < y ? -1 : x > y;
}

static int
compare_tids(const void *a, const void *b)
{
	return ItemPointerCompare(&unconstify(Drawn *, (const Drawn *) a)->tid,
							  &unconstify(Drawn *, (const Drawn *) b)->tid);
}

/*
 * Sorts the rows by hash, and moves those with the least hashes to the start
 * of the array: one row for each hash, and at most `most` rows.  Returns the
 * number of rows kept.
 */
static int
keep_least(Drawn *drawn, int n, int most)
{
	int			kept = 0;

	qsort(drawn, n, sizeof(Drawn), compare_hashes);
	for (int i = 0; i < n && kept < most; i++)
		if (i == 0 || drawn[i].hash != drawn[i - 1].hash)
			drawn[kept++] = drawn[i];
	return kept;
}

/*
 * Draws rows of the index as queries: the rows whose vectors have the least
 * hashes.  So each distinct vector has the same chance, however many rows have
 * it.
 */
static void
draw_rows(Recall *recall)
{
	TableScanDesc scan = IvfpqTableBeginScan(recall->heap, recall->snapshot);
	uint64		seed = pg_prng_uint64(&pg_global_prng_state);
	uint64		limit = PG_UINT64_MAX;
	Drawn	   *drawn = palloc_extended(2 * recall->samples * sizeof(Drawn),
										MCXT_ALLOC_HUGE);
	int			n = 0;

	while (table_scan_getnextslot(scan, ForwardScanDirection, recall->slot))
	{
		MemoryContext oldcontext;
		Datum		value;
		const float *vector;
		int			dims;

		CHECK_FOR_INTERRUPTS();
		if (!row_value(recall, &value))
			continue;
		oldcontext = MemoryContextSwitchTo(recall->row);
		vector = IvfpqValueFloats(&recall->type, value, &dims);
		MemoryContextSwitchTo(oldcontext);
		drawn[n].hash = IvfpqVectorHash(vector, dims, seed);
		drawn[n].tid = recall->slot->tts_tid;
		n += drawn[n].hash < limit;
		if (n == 2 * recall->samples)
		{
			n = keep_least(drawn, n, recall->samples);
			if (n == recall->samples)
				limit = drawn[n - 1].hash;
		}
	}
	table_endscan(scan);
	recall->nasked = keep_least(drawn, n, recall->samples);
	qsort(drawn, recall->nasked, sizeof(Drawn), compare_tids);
	recall->tids = palloc_extended(recall->nasked * sizeof(ItemPointerData) +
								   1, MCXT_ALLOC_HUGE);
	for (int i = 0; i < recall->nasked; i++)
		recall->tids[i] = drawn[i].tid;
	pfree(drawn);
}

/* A binaryheap_comparator. */
static int
compare_distances(Datum a, Datum b, void *arg)
{
	double		x = DatumGetFloat8(a);
	double		y = DatumGetFloat8(b);

	return x < y ? -1 : x > y;
}

/*
 * Begins a batch with query number `first`, and adds the queries that follow
 * until work_mem is used up.  Returns the number of the next batch's first
 * query.
 */
static int
begin_batch(Recall *recall, int first)
{
	const IvfpqQueries *given = &recall->given;
	Size		limit = (Size) work_mem * 1024;
	Size		used = 0;
	int			next;

	MemoryContextReset(recall->batch);
	recall->queries = MemoryContextAllocHuge(recall->batch,
											 (recall->nasked - first) *
											 sizeof(RecallQuery));
	recall->nqueries = 0;
	for (next = first; next < recall->nasked && used < limit; next++)
	{
		MemoryContext oldcontext;
		RecallQuery *query;
		Datum		value;

		CHECK_FOR_INTERRUPTS();
		if (recall->has_given)
		{
			MemoryContextReset(recall->row);
			oldcontext = MemoryContextSwitchTo(recall->row);
			value = IvfpqCastReal(recall->type.type, given->vectors +
								  (Size) next * given->dims, given->dims);
			MemoryContextSwitchTo(oldcontext);
		}
		else if (!table_tuple_fetch_row_version(recall->heap,
												&recall->tids[next],
												recall->snapshot,
												recall->slot) ||
				 !row_value(recall, &value))
			continue;
		query = &recall->queries[recall->nqueries++];
		oldcontext = MemoryContextSwitchTo(recall->batch);
		query->value = datumCopy(value, false, -1);
		query->nearest = binaryheap_allocate(recall->k, compare_distances,
											 NULL);
		MemoryContextSwitchTo(oldcontext);
		used += VARSIZE_ANY(DatumGetPointer(value)) +
			recall->k * sizeof(Datum);
	}
	ExecClearTuple(recall->slot);
	return next;
}

/*
 * Returns whether a row, at this distance from a query, is the row from which
 * the query was drawn, or is equal to that row.  Any search finds such rows,
 * so they say nothing about the recall and are not counted.  If the caller
 * gave the queries, all rows are counted, because the user looks for equal
 * rows, too.
 */
static bool
is_own(const Recall *recall, const RecallQuery *query, Datum value,
	   double distance)
{
	if (recall->has_given)
		return false;
	if (distance == 0 && recall->strategy != IVFPQ_IP_STRATEGY)
		return true;
	return VARSIZE(DatumGetPointer(value)) ==
		VARSIZE(DatumGetPointer(query->value)) &&
		memcmp(DatumGetPointer(value), DatumGetPointer(query->value),
			   VARSIZE(DatumGetPointer(value))) == 0;
}

/* Finds the exact neighbors of every query in one pass over the table. */
static void
find_ground_truth(Recall *recall)
{
	TableScanDesc scan = IvfpqTableBeginScan(recall->heap, recall->snapshot);

	while (table_scan_getnextslot(scan, ForwardScanDirection, recall->slot))
	{
		Datum		value;

		CHECK_FOR_INTERRUPTS();
		if (!row_value(recall, &value))
			continue;
		for (int i = 0; i < recall->nqueries; i++)
		{
			RecallQuery *query = &recall->queries[i];
			binaryheap *nearest = query->nearest;
			double		distance = row_distance(recall, value, query->value);

			CHECK_FOR_INTERRUPTS();
			if (isnan(distance) || is_own(recall, query, value, distance))
				continue;
			if (nearest->bh_size < recall->k)
				binaryheap_add(nearest, Float8GetDatum(distance));
			else if (distance < DatumGetFloat8(binaryheap_first(nearest)))
				binaryheap_replace_first(nearest, Float8GetDatum(distance));
		}
	}
	table_endscan(scan);
}

/*
 * Scans the index for a query until the scan has found as many rows as the
 * query has exact neighbors.  Returns how many of the rows found are no
 * farther than the farthest of these neighbors.
 */
static int
count_hits(Recall *recall, IndexScanDesc scan, RecallQuery *query)
{
	double		farthest = DatumGetFloat8(binaryheap_first(query->nearest));
	ScanKeyData key;
	int			hits = 0;
	int			found = 0;

	ScanKeyEntryInitialize(&key, SK_ORDER_BY, 1, recall->strategy,
						   recall->type.type, recall->type.collation,
						   recall->distance_oid, query->value);
	index_rescan(scan, NULL, 0, &key, 1);
	while (found < query->nearest->bh_size &&
		   index_getnext_slot(scan, ForwardScanDirection, recall->slot))
	{
		Datum		value;
		double		distance;

		if (!row_value(recall, &value))
		{
			found++;
			continue;
		}
		distance = row_distance(recall, value, query->value);
		if (is_own(recall, query, value, distance))
			continue;
		found++;
		hits += distance <= farthest;
	}
	return hits;
}

/* Searches every query of the batch in the index, and adds up the results. */
static void
scan_index(Recall *recall)
{
	IndexScanDesc scan = IvfpqIndexBeginScan(recall->heap, recall->index,
											 recall->snapshot);

	for (int i = 0; i < recall->nqueries; i++)
	{
		RecallQuery *query = &recall->queries[i];
		int			count = query->nearest->bh_size;
		double		fraction;
		int			hits;

		CHECK_FOR_INTERRUPTS();
		if (count == 0)
			continue;
		hits = count_hits(recall, scan, query);
		fraction = (double) hits / count;
		recall->hits += hits;
		recall->possible += count;
		recall->sums.sum += fraction;
		recall->sums.sum_squares += fraction * fraction;
		recall->sums.n++;
	}
	index_endscan(scan);
}

/* Measures the recall, in batches.  The caller acts as the table's owner. */
static void
run_recall(Recall *recall)
{
	Relation	index = recall->index;
	IvfpqMetaData meta;

	recall->snapshot = RegisterSnapshot(GetLatestSnapshot());
	IvfpqTypeInit(&recall->type, index);
	IvfpqMetaRead(index, &meta);
	recall->dims = IvfpqRowDims(recall->heap, index, &meta);
	recall->distance_oid =
		get_opcode(IvfpqDistanceOperator(index->rd_opfamily[0],
										 recall->type.type,
										 &recall->strategy));
	fmgr_info(recall->distance_oid, &recall->distance);
	recall->indexInfo = IvfpqIndexInfo(index);
	recall->estate = CreateExecutorState();
	recall->predicate = ExecPrepareQual(recall->indexInfo->ii_Predicate,
										recall->estate);
	recall->slot = table_slot_create(recall->heap, NULL);
	recall->row = AllocSetContextCreate(CurrentMemoryContext,
										"gpuivfpq recall row",
										ALLOCSET_DEFAULT_SIZES);
	recall->batch = AllocSetContextCreate(CurrentMemoryContext,
										  "gpuivfpq recall queries",
										  ALLOCSET_DEFAULT_SIZES);

	if (recall->has_given)
	{
		IvfpqQueriesFit(&recall->given, &recall->type, recall->dims);
		recall->nasked = recall->given.n;
	}
	else
		draw_rows(recall);
	for (int next = 0; next < recall->nasked;)
	{
		next = begin_batch(recall, next);
		if (recall->nqueries == 0)
			continue;
		find_ground_truth(recall);
		scan_index(recall);
	}

	ExecDropSingleTupleTableSlot(recall->slot);
	FreeExecutorState(recall->estate);
	UnregisterSnapshot(recall->snapshot);
}

/* Raises an error unless an argument is in its range. */
static void
check_range(const char *name, int value, int max)
{
	if (value < 1 || value > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" must be between 1 and %d, not %d", name, max,
						value)));
}

/*
 * gpuvec_recall(index regclass, k int, samples int, queries real[],
 *		queries_table regclass, queries_column name)
 */
Datum
gpuvec_recall(PG_FUNCTION_ARGS)
{
	Recall		recall = {0};
	IvfpqIdentity caller;
	TupleDesc	desc;
	Datum		values[3] = {0};
	bool		nulls[3] = {true, true, true};

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1) || PG_ARGISNULL(2))
		PG_RETURN_NULL();
	recall.k = PG_GETARG_INT32(1);
	recall.samples = PG_GETARG_INT32(2);
	check_range("k", recall.k, MAX_K);
	check_range("samples", recall.samples, MAX_SAMPLES);
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	recall.has_given = IvfpqQueriesArgument(fcinfo, 3, recall.samples,
											&recall.given);
	recall.index = IvfpqOpenIndexTable(PG_GETARG_OID(0), AccessShareLock,
									   "To compare with another index, run make bench BENCH='table DATABASE TABLE COLUMN'.",
									   &recall.heap);
	IvfpqCheckMeasurable(recall.heap, recall.index,
						 "cannot measure recall under row-level security",
						 recall.heap->rd_rel->relforcerowsecurity ?
						 "Call the function as a role with BYPASSRLS." :
						 "Call the function as the owner of the table or as a role with BYPASSRLS.");
	IvfpqCheckValid(recall.index);

	IvfpqActAsOwner(&caller, recall.heap);
	run_recall(&recall);
	IvfpqActAsCaller(&caller);

	relation_close(recall.index, AccessShareLock);
	table_close(recall.heap, AccessShareLock);
	if (recall.sums.n > 0)
	{
		double		low;
		double		high;

		IvfpqRecallInterval(&recall.sums, &low, &high);
		values[0] = Float8GetDatum((double) recall.hits / recall.possible);
		values[1] = Float8GetDatum(low);
		values[2] = Float8GetDatum(high);
		memset(nulls, false, sizeof(nulls));
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}
