/*
 * recall.c
 *		gpuvec_recall: how many of the k nearest rows the index finds.
 *
 * The caller gives queries, or rows of the table serve as such.  A first pass
 * draws these: a pass over everything, because only that gives every vector,
 * of one row or of many, the same chance.  A second pass computes the distance
 * of every row from every query, to learn that of the k-th nearest row.  Then
 * each query goes through an index scan as the executor makes it, at the
 * settings in force.  All under one snapshot.
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
#include "miscadmin.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rls.h"
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

/* A row drawn, or that may be. */
typedef struct Drawn
{
	uint64		hash;			/* of its vector, with a seed of its own */
	ItemPointerData tid;
} Drawn;

typedef struct RecallQuery
{
	Datum		value;
	double	   *nearest;		/* [k] distances, a max-heap */
	int			count;			/* distances in it */
} RecallQuery;

typedef struct Recall
{
	Relation	heap;
	Relation	index;
	Snapshot	snapshot;
	int			k;
	int			samples;
	IvfpqType	type;
	int			dims;			/* of the index's rows; 0 = there are none */
	StrategyNumber strategy;
	Oid			distance_oid;
	FmgrInfo	distance;
	IndexInfo  *indexInfo;
	EState	   *estate;
	ExprState  *predicate;
	TupleTableSlot *slot;
	MemoryContext tmp;			/* reset after every row */
	MemoryContext batch;		/* of the queries; reset after every batch */

	bool		has_given;
	IvfpqQueries given;			/* if it has */
	ItemPointerData *tids;		/* [nasked] else: rows drawn */
	int			nasked;
	RecallQuery *queries;		/* [nqueries] of the batch */
	int			nqueries;

	/* results, over all queries that have a neighbor */
	int64		nmeasured;
	int64		hits;
	int64		possible;
	double		sum;			/* of the queries' own recalls */
	double		sum_squares;
} Recall;

PG_FUNCTION_INFO_V1(gpuvec_recall);

/* Raises an error unless recall can and may be measured on this index. */
static void
check_usable(Relation heap, Relation index)
{
	IvfpqCheckSelect(heap, index);
	IvfpqCheckActing(heap, index);
	if (check_enable_rls(RelationGetRelid(heap), InvalidOid, true) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("recall cannot be measured under row-level security"),
				 errdetail("Policies of table \"%s\" hide rows from the current user.",
						   RelationGetRelationName(heap)),
				 heap->rd_rel->relforcerowsecurity ?
				 errhint("Run it as a role with BYPASSRLS.") :
				 errhint("Run it as the table's owner or as a role with BYPASSRLS.")));
	IvfpqCheckValid(index);
}

/* Looks up the operator that the index serves, and prepares to read rows. */
static void
begin_recall(Recall *recall)
{
	Relation	index = recall->index;
	IvfpqMetaData meta;
	Oid			operator = InvalidOid;

	IvfpqTypeInit(&recall->type, index);
	IvfpqMetaRead(index, &meta);
	recall->dims = IvfpqRowDims(recall->heap, index, &meta);
	for (int strategy = 1; strategy <= IVFPQ_NSTRATEGIES; strategy++)
	{
		Oid			member = get_opfamily_member(index->rd_opfamily[0],
												 recall->type.type,
												 recall->type.type, strategy);

		if (OidIsValid(member))
		{
			operator = member;
			recall->strategy = strategy;
		}
	}
	recall->distance_oid = get_opcode(operator);
	fmgr_info(recall->distance_oid, &recall->distance);

	recall->indexInfo = IvfpqIndexInfo(index);
	recall->estate = CreateExecutorState();
	recall->predicate = ExecPrepareQual(recall->indexInfo->ii_Predicate,
										recall->estate);
	recall->slot = table_slot_create(recall->heap, NULL);
	recall->tmp = AllocSetContextCreate(CurrentMemoryContext,
										"gpuivfpq recall row",
										ALLOCSET_DEFAULT_SIZES);
	recall->batch = AllocSetContextCreate(CurrentMemoryContext,
										  "gpuivfpq recall queries",
										  ALLOCSET_DEFAULT_SIZES);
}

static void
end_recall(Recall *recall)
{
	ExecDropSingleTupleTableSlot(recall->slot);
	FreeExecutorState(recall->estate);
}

/*
 * Gets the indexed value of the row in recall->slot.  Returns false if the
 * index has no entry for the row (but see IvfpqHasPlace).  Call in
 * recall->tmp.
 */
static bool
indexed_value(Recall *recall, Datum *value)
{
	ExprContext *context = GetPerTupleExprContext(recall->estate);
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];

	context->ecxt_scantuple = recall->slot;
	if (recall->predicate && !ExecQual(recall->predicate, context))
		return false;
	FormIndexDatum(recall->indexInfo, recall->slot, recall->estate,
				   values, isnull);
	*value = values[0];
	return !isnull[0];
}

/*
 * Gets the same value detoasted.  Returns false also for a zero vector, and
 * for one of other dimensions than the index's.
 */
static bool
whole_value(Recall *recall, Datum *value)
{
	if (!indexed_value(recall, value))
		return false;
	*value = PointerGetDatum(PG_DETOAST_DATUM(*value));
	return IvfpqHasPlace(&recall->type, *value, recall->dims);
}

/* Frees the memory of a row. */
static void
reset_row(Recall *recall)
{
	MemoryContextReset(recall->tmp);
	ResetPerTupleExprContext(recall->estate);
}

static double
row_distance(Recall *recall, Datum value, Datum query)
{
	return DatumGetFloat8(FunctionCall2Coll(&recall->distance,
											recall->type.collation,
											value, query));
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

/* Keeps the rows with the least hashes, one for each; returns their number. */
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
 * Draws rows of the index: every vector, whether one row has it or many, with
 * equal chance.  Therefore the rows whose vectors have the least hashes are
 * drawn.
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
		MemoryContext oldcontext = MemoryContextSwitchTo(recall->tmp);
		Datum		value;

		CHECK_FOR_INTERRUPTS();
		if (whole_value(recall, &value))
		{
			int			dims;
			const float *vector = IvfpqValueFloats(&recall->type, value,
												   &dims);

			drawn[n].hash = IvfpqVectorHash(vector, dims, seed);
			drawn[n].tid = recall->slot->tts_tid;
			n += drawn[n].hash < limit;
		}
		MemoryContextSwitchTo(oldcontext);
		reset_row(recall);
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

/* Adds a query to the batch; returns the memory that it takes. */
static Size
add_query(Recall *recall, Datum value)
{
	RecallQuery *query = &recall->queries[recall->nqueries++];
	MemoryContext oldcontext = MemoryContextSwitchTo(recall->batch);

	query->value = datumCopy(value, false, -1);
	query->nearest = palloc(recall->k * sizeof(double));
	query->count = 0;
	MemoryContextSwitchTo(oldcontext);
	return VARSIZE_ANY(DatumGetPointer(value)) + recall->k * sizeof(double);
}

/* Adds the row at recall->tids[i]; returns the memory that it takes. */
static Size
add_row(Recall *recall, int i)
{
	MemoryContext oldcontext;
	Datum		value;
	Size		size = 0;

	if (!table_tuple_fetch_row_version(recall->heap, &recall->tids[i],
									   recall->snapshot, recall->slot))
		return 0;
	oldcontext = MemoryContextSwitchTo(recall->tmp);
	if (whole_value(recall, &value))
		size = add_query(recall, value);
	MemoryContextSwitchTo(oldcontext);
	reset_row(recall);
	ExecClearTuple(recall->slot);
	return size;
}

/* Adds the i-th query given; returns the memory that it takes. */
static Size
add_given(Recall *recall, int i)
{
	const IvfpqQueries *given = &recall->given;
	MemoryContext oldcontext = MemoryContextSwitchTo(recall->tmp);
	Size		size;

	size = add_query(recall,
					 IvfpqCastReal(recall->type.type, given->vectors +
								   (Size) i * given->dims, given->dims));
	MemoryContextSwitchTo(oldcontext);
	reset_row(recall);
	return size;
}

/*
 * Adds queries from the one numbered `first` on, until work_mem is used up;
 * returns the number of the next one.
 */
static int
begin_batch(Recall *recall, int first)
{
	Size		limit = (Size) work_mem * 1024;
	Size		used = 0;
	int			i;

	MemoryContextReset(recall->batch);
	recall->queries = MemoryContextAllocHuge(recall->batch,
											 (recall->nasked - first) *
											 sizeof(RecallQuery));
	recall->nqueries = 0;
	for (i = first; i < recall->nasked && used < limit; i++)
	{
		CHECK_FOR_INTERRUPTS();
		used += recall->has_given ? add_given(recall, i) :
			add_row(recall, i);
	}
	return i;
}

/* Moves the top of a max-heap of n distances down to its place. */
static void
sink(double *heap, int n)
{
	double		top = heap[0];
	int			at = 0;

	for (;;)
	{
		int			child = 2 * at + 1;

		if (child + 1 < n && heap[child + 1] > heap[child])
			child++;
		if (child >= n || heap[child] <= top)
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = top;
}

/* Keeps the k smallest distances of a query. */
static void
keep_distance(RecallQuery *query, int k, double distance)
{
	double	   *heap = query->nearest;
	int			at = query->count;

	if (isnan(distance))
		return;
	if (query->count == k)
	{
		if (distance < heap[0])
		{
			heap[0] = distance;
			sink(heap, k);
		}
		return;
	}
	query->count++;
	for (; at > 0 && heap[(at - 1) / 2] < distance; at = (at - 1) / 2)
		heap[at] = heap[(at - 1) / 2];
	heap[at] = distance;
}

/*
 * Returns whether a row at that distance is the query itself, or equals it.
 * Any search finds such rows, and they tell nothing of others; but those that
 * equal a query of the caller are what its user searches for.
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
		MemoryContext oldcontext = MemoryContextSwitchTo(recall->tmp);
		Datum		value;

		CHECK_FOR_INTERRUPTS();
		if (whole_value(recall, &value))
		{
			for (int i = 0; i < recall->nqueries; i++)
			{
				RecallQuery *query = &recall->queries[i];
				double		distance =
				row_distance(recall, value, query->value);

				CHECK_FOR_INTERRUPTS();
				if (!is_own(recall, query, value, distance))
					keep_distance(query, recall->k, distance);
			}
		}
		MemoryContextSwitchTo(oldcontext);
		reset_row(recall);
	}
	table_endscan(scan);
}

/*
 * Returns how many of the rows that the index finds first are among the
 * nearest.
 */
static int
count_hits(Recall *recall, IndexScanDesc scan, RecallQuery *query)
{
	ScanKeyData key;
	int			hits = 0;
	int			found = 0;

	ScanKeyEntryInitialize(&key, SK_ORDER_BY, 1, recall->strategy,
						   recall->type.type, recall->type.collation,
						   recall->distance_oid, query->value);
	index_rescan(scan, NULL, 0, &key, 1);
	while (found < query->count &&
		   index_getnext_slot(scan, ForwardScanDirection, recall->slot))
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(recall->tmp);
		Datum		value;
		double		distance;

		if (!whole_value(recall, &value))
			found++;
		else
		{
			distance = row_distance(recall, value, query->value);
			if (!is_own(recall, query, value, distance))
			{
				found++;
				hits += distance <= query->nearest[0];
			}
		}
		MemoryContextSwitchTo(oldcontext);
		reset_row(recall);
	}
	return hits;
}

/* Puts every query of the batch through the index. */
static void
scan_index(Recall *recall)
{
	IndexScanDesc scan = IvfpqIndexBeginScan(recall->heap, recall->index,
											 recall->snapshot);

	for (int i = 0; i < recall->nqueries; i++)
	{
		RecallQuery *query = &recall->queries[i];
		double		fraction;
		int			hits;

		CHECK_FOR_INTERRUPTS();
		if (query->count == 0)
			continue;
		hits = count_hits(recall, scan, query);
		fraction = (double) hits / query->count;
		recall->hits += hits;
		recall->possible += query->count;
		recall->sum += fraction;
		recall->sum_squares += fraction * fraction;
		recall->nmeasured++;
	}
	index_endscan(scan);
}

/*
 * Draws queries, finds their exact neighbors, and compares; as the table's
 * owner.
 */
static void
run_recall(Recall *recall)
{
	recall->snapshot = RegisterSnapshot(GetLatestSnapshot());
	begin_recall(recall);
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
	end_recall(recall);
	UnregisterSnapshot(recall->snapshot);
}

/*
 * Computes the 95 % interval of the mean over queries; Wilson's if all queries
 * came out alike and so tell nothing of their variance.
 */
static void
confidence(const Recall *recall, double *low, double *high)
{
	double		n = (double) recall->nmeasured;
	double		mean = recall->sum / n;
	double		variance = 0;
	double		half;

	if (recall->nmeasured > 1)
		variance = (recall->sum_squares - n * mean * mean) / (n - 1);
	if (variance > 1e-12)
		half = IVFPQ_Z_95 * sqrt(variance / n);
	else
	{
		double		z2 = IVFPQ_Z_95 * IVFPQ_Z_95;

		half = IVFPQ_Z_95 / (1 + z2 / n) *
			sqrt(mean * (1 - mean) / n + z2 / (4 * n * n));
		mean = (mean + z2 / (2 * n)) / (1 + z2 / n);
	}
	/* exactly 0 and 1 where rounding would miss them */
	*low = recall->hits == 0 ? 0.0 : Max(mean - half, 0.0);
	*high = recall->hits == recall->possible ? 1.0 : Min(mean + half, 1.0);
}

/* Raises an error unless an argument is in its range. */
static void
check_range(const char *name, int value, int max)
{
	if (value < 1 || value > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be between 1 and %d, not %d", name, max,
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
									   &recall.heap);
	check_usable(recall.heap, recall.index);

	IvfpqActAsOwner(&caller, recall.heap);
	run_recall(&recall);
	IvfpqActAsCaller(&caller);

	relation_close(recall.index, AccessShareLock);
	table_close(recall.heap, AccessShareLock);
	if (recall.nmeasured > 0)
	{
		double		low;
		double		high;

		confidence(&recall, &low, &high);
		values[0] = Float8GetDatum((double) recall.hits / recall.possible);
		values[1] = Float8GetDatum(low);
		values[2] = Float8GetDatum(high);
		memset(nulls, false, sizeof(nulls));
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}
