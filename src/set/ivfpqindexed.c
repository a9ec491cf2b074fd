/*
 * ivfpqindexed.c
 *		Neighbours as a gpuivfpq index finds them, at the settings in force.
 *
 * Each query is an index scan under the snapshot of the table, as the executor
 * makes them.  What comes is measured by gv_set_distance, in double, and
 * ordered by that, so that distances are those of the exact method.
 */
#include "postgres.h"

#include <math.h>

#include "access/genam.h"
#include "access/skey.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "catalog/pg_type_d.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "set/ivfpqset.h"

struct IvfpqIndexed
{
	IvfpqTable *rows;
	GvSetMetric metric;
	int			k;
	Relation	index;
	IvfpqType	type;			/* of the index */
	StrategyNumber strategy;
	Oid			subtype;		/* of queries: its own, or real[] */
	bool		converts;		/* queries are stored as another type */
	Oid			distance;		/* the operator's function */
	IndexScanDesc scan;
	TupleTableSlot *slot;
	MemoryContext context;		/* of a converted query */
	MemoryContext row_context;	/* reset with every row */
	IvfpqMatch *found;			/* [k] */
};

/* Does the index hold all rows that the snapshot sees, of that column? */
static bool
HoldsColumn(Relation index, AttrNumber column)
{
	Form_pg_index form = index->rd_index;
	TransactionId xmin;

	if (index->rd_indam == NULL || index->rd_indam->ambuild != ivfpqbuild ||
		!form->indisvalid || form->indkey.values[0] != column ||
		RelationGetIndexPredicate(index) != NIL)
		return false;
	xmin = HeapTupleHeaderGetXmin(index->rd_indextuple->t_data);
	return !form->indcheckxmin ||
		TransactionIdPrecedes(xmin, TransactionXmin);
}

/* Open the index to use; ERROR if there is none. */
static void
FindIndex(IvfpqIndexed *indexed)
{
	IvfpqTable *rows = indexed->rows;
	List	   *oids = RelationGetIndexList(rows->rel);
	ListCell   *cell;

	foreach(cell, oids)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		if (HoldsColumn(index, rows->vector_column))
		{
			IvfpqTypeInit(&indexed->type, index);
			if ((int) indexed->type.metric == (int) indexed->metric)
			{
				indexed->index = index;
				list_free(oids);
				return;
			}
		}
		index_close(index, AccessShareLock);
	}
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("table \"%s\" has no gpuivfpq index for metric %s on column \"%s\"",
					RelationGetRelationName(rows->rel),
					IvfpqMetricName(indexed->metric),
					get_attname(RelationGetRelid(rows->rel),
								rows->vector_column, false)),
			 indexed->metric == GV_SET_PEARSON ?
			 errhint("No index orders by correlation; use method exact.") :
			 errhint("Create one, not partial, with the operator class of that metric, or use method exact.")));
}

/* The operator by which the index orders rows for queries of a type. */
static void
FindOperator(IvfpqIndexed *indexed, Oid query_type)
{
	Oid			family = indexed->index->rd_opfamily[0];
	Oid			operator = InvalidOid;

	indexed->converts = query_type != indexed->type.type;
	indexed->subtype = indexed->converts ? FLOAT4ARRAYOID : query_type;
	for (int strategy = 1; strategy <= IVFPQ_NSTRATEGIES; strategy++)
	{
		Oid			member = get_opfamily_member(family, indexed->type.type,
												 indexed->subtype, strategy);

		if (!OidIsValid(member))
			continue;
		operator = member;
		indexed->strategy = strategy;
	}
	if (!OidIsValid(operator))
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("index \"%s\" cannot be searched for vectors of type %s",
						RelationGetRelationName(indexed->index),
						format_type_be(query_type)),
				 errhint("Use method exact.")));
	indexed->distance = get_opcode(operator);
}

/*
 * Get ready to find k neighbours of each query in a table's index; query_type
 * is how queries are stored.  ERROR if no index serves.
 */
IvfpqIndexed *
IvfpqIndexedBegin(IvfpqTable *rows, Oid query_type, GvSetMetric metric, int k)
{
	IvfpqIndexed *indexed = palloc0(sizeof(IvfpqIndexed));

	indexed->rows = rows;
	indexed->metric = metric;
	indexed->k = k;
	FindIndex(indexed);
	FindOperator(indexed, query_type);
	indexed->slot = table_slot_create(rows->rel, NULL);
	indexed->context = AllocSetContextCreate(CurrentMemoryContext,
											 "gpuvec indexed query",
											 ALLOCSET_DEFAULT_SIZES);
	indexed->row_context = AllocSetContextCreate(CurrentMemoryContext,
												 "gpuvec indexed row",
												 ALLOCSET_DEFAULT_SIZES);
	indexed->found = palloc_extended(k * sizeof(IvfpqMatch),
									 MCXT_ALLOC_HUGE);
	indexed->scan = GvIndexBeginScan(rows->rel, indexed->index,
									 rows->snapshot);
	return indexed;
}

/* Begin the scan for one query, which must live as long as it does. */
static void
Rescan(IvfpqIndexed *indexed, Datum query, const float *vector)
{
	ScanKeyData key;

	if (indexed->converts)
	{
		MemoryContext old = MemoryContextSwitchTo(indexed->context);

		MemoryContextReset(indexed->context);
		query = IvfpqMakeArray(vector, indexed->rows->dims);
		MemoryContextSwitchTo(old);
	}
	ScanKeyEntryInitialize(&key, SK_ORDER_BY, 1, indexed->strategy,
						   indexed->subtype, indexed->type.collation,
						   indexed->distance, query);
	index_rescan(indexed->scan, NULL, 0, &key, 1);
}

/* What the row in the slot is to the query. */
static IvfpqMatch
MeasureRow(IvfpqIndexed *indexed, const float *query)
{
	IvfpqTable *rows = indexed->rows;
	MemoryContext old;
	IvfpqMatch	row;
	bool		isnull;
	Datum		value = slot_getattr(indexed->slot, rows->vector_column,
									 &isnull);
	const float *vector;
	int			dims;

	if (isnull)
		elog(ERROR, "index \"%s\" has a row without a vector",
			 RelationGetRelationName(indexed->index));
	MemoryContextReset(indexed->row_context);
	old = MemoryContextSwitchTo(indexed->row_context);
	vector = IvfpqValueFloats(&rows->type, value, &dims);
	IvfpqCheckDims(rows->dims, dims);
	row.distance = gv_set_distance(indexed->metric, query, vector, dims);
	row.key = IvfpqTableKey(rows, indexed->slot);
	row.tid = indexed->slot->tts_tid;
	MemoryContextSwitchTo(old);
	return row;
}

/* By distance, NaN last, then by place. */
static int
CompareFound(const void *a, const void *b)
{
	const IvfpqMatch *x = a;
	const IvfpqMatch *y = b;

	CHECK_FOR_INTERRUPTS();
	if (isnan(x->distance) != isnan(y->distance))
		return isnan(x->distance) ? 1 : -1;
	if (x->distance != y->distance && !isnan(x->distance))
		return x->distance < y->distance ? -1 : 1;
	return ItemPointerCompare((ItemPointer) &x->tid, (ItemPointer) &y->tid);
}

/*
 * The nearest rows that the index finds to a query, which is given as it is
 * stored and as floats; without the row at `self`, unless that is NULL.
 * Returns how many there are, k unless the index has not so many; none for a
 * query of zeros under cosine, which is near nothing.
 */
int
IvfpqIndexedFind(IvfpqIndexed *indexed, Datum query, const float *vector,
				 ItemPointer self, const IvfpqMatch **found)
{
	int			n = 0;

	*found = indexed->found;
	if (!IvfpqIsPlaceable(&indexed->type, vector, indexed->rows->dims))
		return 0;
	Rescan(indexed, query, vector);
	while (n < indexed->k &&
		   index_getnext_slot(indexed->scan, ForwardScanDirection,
							  indexed->slot))
	{
		CHECK_FOR_INTERRUPTS();
		if (self == NULL || !ItemPointerEquals(&indexed->slot->tts_tid, self))
			indexed->found[n++] = MeasureRow(indexed, vector);
	}
	qsort(indexed->found, n, sizeof(IvfpqMatch), CompareFound);
	return n;
}

void
IvfpqIndexedEnd(IvfpqIndexed *indexed)
{
	index_endscan(indexed->scan);
	ExecDropSingleTupleTableSlot(indexed->slot);
	index_close(indexed->index, NoLock);
	MemoryContextDelete(indexed->context);
	MemoryContextDelete(indexed->row_context);
}
