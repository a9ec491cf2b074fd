/*
 * settable.c
 *		Tables that whole-table functions read: opening a table, the first
 *		reading of all its rows (the survey), and reading vectors by their
 *		positions.
 *
 * We read rows as they are stored, so we have to check the caller's rights
 * here.  The caller needs the right to SELECT the columns.  Views and
 * partitioned tables store no rows, so they are refused, and so are tables
 * whose policies hide rows from the caller.
 *
 * Most of the time of a reading goes into converting vectors of pgvector's
 * types to floats.  So the survey keeps vectors, as many as the caller's memory
 * holds, or sends them to gpuvecd, which keeps them.  For vectors that are not
 * kept the survey marks blocks, so that a single row can be read without
 * reading all rows before it.
 */
#include "postgres.h"

#include <sys/mman.h>

#include "access/detoast.h"
#include "access/heapam.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type_d.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "optimizer/plancat.h"
#include "parser/parse_coerce.h"
#include "storage/bufmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"

#include "am/common/util.h"
#include "page/sort.h"
#include "set/set.h"

/*
 * Rows that have fewer bytes than this are not worth a connection to gpuvecd.
 */
#define LEAST_SENT		(1 << 18)

/* Least number of rows from one marked block to the next. */
#define MARKED_ROWS		256

/* Bytes of a huge page on common processors. */
#define LARGE_PAGE		(2 * 1024 * 1024)

/* Returns the hint for a kind of relation that is refused. */
static const char *
kind_hint(char relkind)
{
	switch (relkind)
	{
		case RELKIND_PARTITIONED_TABLE:
			return "Specify a partition, or create a materialized view of all partitions.";
		case RELKIND_VIEW:
			return "Specify the underlying table, or create a materialized view.";
		case RELKIND_FOREIGN_TABLE:
			return "Create a materialized view of it.";
		default:
			return "Specify a table or a materialized view.";
	}
}

/*
 * Raises an ERROR if policies hide rows of the relation from the current user.
 * If row-level security is forced, policies may hide rows from the owner, too.
 */
static void
check_policies(Relation rel)
{
	if (check_enable_rls(RelationGetRelid(rel), InvalidOid, true) !=
		RLS_ENABLED)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot read table \"%s\" under row-level security",
					RelationGetRelationName(rel)),
			 errdetail("Its policies hide rows from the current user."),
			 rel->rd_rel->relforcerowsecurity ?
			 errhint("Call the function as a role with BYPASSRLS, or use a materialized view of the rows.") :
			 errhint("Call the function as the owner of the table or as a role with BYPASSRLS.")));
}

/*
 * Raises an ERROR unless the relation's rows can be read as they are stored.
 */
static void
check_relation(Relation rel)
{
	char		relkind = rel->rd_rel->relkind;
	const char *name = RelationGetRelationName(rel);

	if (relkind != RELKIND_RELATION && relkind != RELKIND_MATVIEW)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a table or materialized view", name),
				 errdetail_relkind_not_supported(relkind),
				 errhint("%s", kind_hint(relkind))));
	if (RELATION_IS_OTHER_TEMP(rel))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot access temporary tables of other sessions")));
	if (RecoveryInProgress() && !RelationIsPermanent(rel))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot access temporary or unlogged relations during recovery")));
	if (!RelationIsPopulated(rel))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("materialized view \"%s\" has not been populated",
						name),
				 errhint("Use the REFRESH MATERIALIZED VIEW command.")));
	check_policies(rel);
}

Relation
IvfpqTableRelation(Oid relid)
{
	Relation	rel = try_relation_open(relid, AccessShareLock);

	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	check_relation(rel);
	return rel;
}

AttrNumber
IvfpqTableColumn(Relation rel, const char *name, Oid *type)
{
	Oid			relid = RelationGetRelid(rel);
	AttrNumber	column = get_attnum(relid, name);
	AclResult	result;

	if (column == InvalidAttrNumber)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of relation \"%s\" does not exist", name,
						RelationGetRelationName(rel))));
	result = pg_class_aclcheck(relid, GetUserId(), ACL_SELECT);
	if (result != ACLCHECK_OK)
		result = pg_attribute_aclcheck(relid, column, GetUserId(), ACL_SELECT);
	if (result != ACLCHECK_OK)
		aclcheck_error(result, get_relkind_objtype(rel->rd_rel->relkind),
					   RelationGetRelationName(rel));

	/*
	 * A virtual generated column, which PostgreSQL 18 introduced, is not
	 * stored, but computed when the column is read.
	 */
	if (column > 0 &&
		TupleDescAttr(RelationGetDescr(rel), column - 1)->attgenerated == 'v')
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("column \"%s\" is a virtual generated column", name),
				 errhint("Use a stored generated column.")));
	*type = getBaseType(get_atttype(relid, column));
	return column;
}

/*
 * Returns whether vectors of this type can be read, and describes the type in
 * *found.  Besides real[], we can read base types that have a cast to real[]
 * by a function with pgvector's arguments.  Only a superuser can create a base
 * type.  Types that any user can create are refused, because the cast could
 * run the code of the table's owner.  An array of a type that any user can
 * create counts as a base type, so all other arrays are refused as well.
 */
static bool
find_vector_type(Oid type, IvfpqType *found)
{
	Oid			function;

	memset(found, 0, sizeof(*found));
	found->type = type;
	found->has_toreal = (type != FLOAT4ARRAYOID);
	if (!found->has_toreal)
		return true;
	if (get_typtype(type) != TYPTYPE_BASE || get_typlen(type) != -1 ||
		OidIsValid(get_element_type(type)) ||
		find_coercion_pathway(FLOAT4ARRAYOID, type, COERCION_EXPLICIT,
							  &function) != COERCION_PATH_FUNC ||
		get_func_nargs(function) != 3)
		return false;
	fmgr_info(function, &found->toreal);
	IvfpqTypeStudy(found);
	return true;
}

void
IvfpqCheckKeyType(const char *name, Oid type, Oid key_type)
{
	if (key_type != INT2OID && key_type != INT4OID && key_type != INT8OID)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" of type %s cannot be used as a key", name,
						format_type_be(type)),
				 type == key_type ?
				 errhint("Keys must be of type smallint, integer or bigint.") :
				 errhint("Arrays of keys must be of type smallint[], integer[] or bigint[].")));
}

int64
IvfpqKeyNumber(Datum key, Oid type)
{
	if (type == INT2OID)
		return DatumGetInt16(key);
	if (type == INT4OID)
		return DatumGetInt32(key);
	return DatumGetInt64(key);
}

void
IvfpqTableOpen(IvfpqTable *table, Oid relid, const char *key,
			   const char *vector)
{
	Oid			type;

	memset(table, 0, sizeof(*table));
	table->rel = IvfpqTableRelation(relid);
	if (key != NULL)
	{
		table->key_column = IvfpqTableColumn(table->rel, key, &table->key_type);
		IvfpqCheckKeyType(key, table->key_type, table->key_type);
	}
	table->vector_column = IvfpqTableColumn(table->rel, vector, &type);
	if (!find_vector_type(type, &table->type))
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" of type %s cannot be used as a vector",
						vector, format_type_be(type)),
				 errhint("Vectors must be of type real[], vector or halfvec.")));
	table->snapshot = RegisterSnapshot(GetActiveSnapshot());
	table->slot = table_slot_create(table->rel, NULL);
	table->home = CurrentMemoryContext;
	table->context = AllocSetContextCreate(CurrentMemoryContext,
										   "gpuvec set row",
										   ALLOCSET_DEFAULT_SIZES);
}

static void
end_scan(IvfpqTable *table)
{
	if (table->scan != NULL)
		table_endscan(table->scan);
	table->scan = NULL;
	table->next = 0;
	table->nulls = 0;
}

/*
 * Begins a reading at a mark or, if mark is NULL, at the table's first page.
 * The reading is not synchronized with other scans, because it has to begin at
 * the given block.  The scan lives in table->home, because the caller's memory
 * context may end before the scan does.
 */
static void
table_begin(IvfpqTable *table, const IvfpqMark *mark)
{
	MemoryContext old = MemoryContextSwitchTo(table->home);

	/* a rescan keeps the scan's ring of buffers */
	if (table->scan != NULL)
		table_rescan(table->scan, NULL);
	else
		table->scan = table_beginscan_strat(table->rel, table->snapshot, 0,
											NULL, true, false);
	table->next = mark != NULL ? mark->position : 0;
	table->nulls = 0;
	if (table->rel->rd_tableam == GetHeapamTableAmRoutine())
	{
		/* set the first block even if it is 0: a rescan keeps the old one */
		BlockNumber first = mark != NULL ? mark->block : 0;
		BlockNumber nblocks = ((HeapScanDesc) table->scan)->rs_nblocks;

		/* stop at the last page; otherwise the scan would wrap around */
		heap_setscanlimits(table->scan, first, nblocks - first);
	}
	MemoryContextSwitchTo(old);
}

/*
 * See set.h.  A vector that is stored out of line is fetched only by
 * IvfpqTableFloats.
 */
bool
IvfpqTableNext(IvfpqTable *table)
{
	if (table->scan == NULL)
		table_begin(table, NULL);
	while (table_scan_getnextslot(table->scan, ForwardScanDirection,
								  table->slot))
	{
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		table->vector = slot_getattr(table->slot, table->vector_column,
									 &isnull);
		if (!isnull)
		{
			table->next++;
			return true;
		}
		table->nulls++;
	}
	/* a reading that began at a mark has not seen all rows */
	table->nskipped = Max(table->nskipped, table->nulls);
	end_scan(table);
	return false;
}

/* Error context callback: names the row whose vector is being read. */
static void
tell_row(void *arg)
{
	const IvfpqTable *table = arg;
	const ItemPointerData *tid = &table->slot->tts_tid;

	errcontext("row (%u,%u) of table \"%s\"",
			   ItemPointerGetBlockNumberNoCheck(tid),
			   ItemPointerGetOffsetNumberNoCheck(tid),
			   RelationGetRelationName(table->rel));
}

const float *
IvfpqTableFloats(IvfpqTable *table)
{
	MemoryContext old = CurrentMemoryContext;
	ErrorContextCallback teller = {error_context_stack, tell_row, table};
	const float *vector;
	int			dims;

	error_context_stack = &teller;
	MemoryContextReset(table->context);
	MemoryContextSwitchTo(table->context);
	table->vector = PointerGetDatum(PG_DETOAST_DATUM(table->vector));
	vector = IvfpqValueFloats(&table->type, table->vector, &dims);
	MemoryContextSwitchTo(old);
	if (table->dims == 0)
		table->dims = dims;
	if (dims != table->dims)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("vectors of table \"%s\" have %d and %d dimensions",
						RelationGetRelationName(table->rel), table->dims,
						dims),
				 errhint("All vectors must have the same number of dimensions.")));
	error_context_stack = teller.previous;
	return vector;
}

int64
IvfpqTableKey(const IvfpqTable *table, TupleTableSlot *slot)
{
	bool		isnull;
	Datum		key = slot_getattr(slot, table->key_column, &isnull);

	if (isnull)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("table \"%s\" has a row with a vector but without a key",
						RelationGetRelationName(table->rel)),
				 errhint("Specify a column that is NOT NULL, such as the primary key.")));
	return IvfpqKeyNumber(key, table->key_type);
}

/* Raises an ERROR if two rows have the same key. */
static void
check_keys(const IvfpqTable *table)
{
	int64		n = table->nrows;
	uint64	   *sorted;
	int64		i = 1;

	/* keys often ascend, and then no two of them are equal */
	while (i < n && table->keys[i - 1] < table->keys[i])
		i++;
	if (i >= n)
		return;

	/* sort them as unsigned numbers: only equal keys matter */
	sorted = palloc_extended(2 * n * sizeof(uint64), MCXT_ALLOC_HUGE);
	memcpy(sorted, table->keys, n * sizeof(uint64));
	IvfpqSortBits(sorted, sorted + n, n, 0);
	CHECK_FOR_INTERRUPTS();
	for (i = 1; i < n; i++)
		if (sorted[i - 1] == sorted[i])
			ereport(ERROR,
					(errcode(ERRCODE_CARDINALITY_VIOLATION),
					 errmsg("key %lld occurs more than once in table \"%s\"",
							(long long) sorted[i],
							RelationGetRelationName(table->rel)),
					 errhint("Specify a column with unique values, such as the primary key.")));
	pfree(sorted);
}

void
IvfpqAdviseHugePages(void *items, Size bytes)
{
#ifdef MADV_HUGEPAGE
	char	   *first = (char *) TYPEALIGN(LARGE_PAGE, items);
	char	   *end = (char *) TYPEALIGN_DOWN(LARGE_PAGE,
											  (char *) items + bytes);

	/* ignore failures: the array works with small pages, too */
	if (end > first)
		(void) madvise(first, end - first, MADV_HUGEPAGE);
#endif
}

/* Appends the current row's key or TID. */
static void
note_row(IvfpqTable *table)
{
	int64		i = table->nrows;
	bool		is_full = i == table->capacity;

	if (table->key_column != InvalidAttrNumber)
	{
		IvfpqGrow(table->keys, i, table->capacity);
		if (is_full)
			IvfpqAdviseHugePages(table->keys, table->capacity * sizeof(int64));
		table->keys[i] = IvfpqTableKey(table, table->slot);
	}
	else
	{
		IvfpqGrow(table->tids, i, table->capacity);
		if (is_full)
			IvfpqAdviseHugePages(table->tids,
								 table->capacity * sizeof(ItemPointerData));
		table->tids[i] = table->slot->tts_tid;
	}
	table->nrows++;
}

/*
 * Marks the current row's block if the row is the first of its block, and
 * there were enough rows since the last mark.  *block must be the previous
 * row's block, and is set to the current row's block.  Must be called for
 * heaps only, because only the reading of a heap can begin at a block.
 */
static void
note_mark(IvfpqTable *table, BlockNumber *block)
{
	int64		position = table->nrows;
	BlockNumber last = *block;
	IvfpqMark  *mark;

	*block = ItemPointerGetBlockNumber(&table->slot->tts_tid);
	if (*block == last ||
		(table->nmarks > 0 &&
		 position < table->marks[table->nmarks - 1].position + MARKED_ROWS))
		return;
	IvfpqGrow(table->marks, table->nmarks, table->marks_capacity);
	mark = &table->marks[table->nmarks++];
	mark->position = position;
	mark->block = *block;
}

/*
 * Adds a vector to the kept ones.  `most` is the largest number of vectors to
 * keep.  Memory is first allocated for as many vectors as the table's pages
 * can hold, which is enough for most tables, and is doubled whenever it is
 * full.
 */
static void
keep(IvfpqTable *table, const float *vector, int64 most)
{
	Size		bytes = table->dims * sizeof(float);

	if (table->nkept == table->kept_capacity)
	{
		int64		stored = (int64) RelationGetNumberOfBlocks(table->rel) *
		BLCKSZ / bytes;
		Size		size;

		table->kept_capacity =
			Min(Max(Max(stored, 2 * table->kept_capacity), 1024), most);
		size = table->kept_capacity * bytes;
		table->kept = table->kept == NULL ?
			palloc_extended(size, MCXT_ALLOC_HUGE) :
			repalloc_huge(table->kept, size);
		IvfpqAdviseHugePages(table->kept, size);
	}
	memcpy(table->kept + table->nkept * table->dims, vector, bytes);
	table->nkept++;
}

/*
 * Estimates the largest number of rows that the table may have, so that
 * gpuvecd can reserve memory for the rows.  The estimate is the number of
 * vectors of the current vector's size that the table's pages can hold, but at
 * most 1.25 times the planner's estimate.  If the table turns out to have more
 * rows, gpuvecd's set cannot be used.
 */
static int64
most_rows(const IvfpqTable *table)
{
	Oid			toast = table->rel->rd_rel->reltoastrelid;
	BlockNumber nblocks;
	BlockNumber npages;
	double		nrows;
	double		visible;
	double		fit;
	Size		bytes;			/* least bytes of a row in these pages */

	estimate_rel_size(table->rel, NULL, &npages, &nrows, &visible);
	nblocks = npages;
	if (VARATT_IS_EXTERNAL(DatumGetPointer(table->vector)) &&
		OidIsValid(toast))
	{
		Relation	rel = table_open(toast, AccessShareLock);

		nblocks = RelationGetNumberOfBlocks(rel);
		table_close(rel, AccessShareLock);
	}
	bytes = toast_datum_size(table->vector);
	if (!VARATT_IS_EXTERNAL(DatumGetPointer(table->vector)))
		bytes += MAXALIGN(SizeofHeapTupleHeader) + sizeof(ItemIdData);
	fit = (double) nblocks * BLCKSZ / bytes;
	return (int64) Max(Min(fit, 1.25 * nrows + MARKED_ROWS), 1);
}

/*
 * Begins a set at gpuvecd that keeps work_rows rows, if gpuvecd can keep that
 * many rows and the rows are worth a connection.
 */
static void
begin_to_send(IvfpqTable *table)
{
	int64		nrows = table->work_rows;
	GvSetSpec	spec = {.kind = GV_SET_EXACT, .metric = GV_SET_L2,
	.dims = table->dims, .k = 1, .own = 1, .nrows = nrows};

	if (nrows * table->dims * (int64) sizeof(float) >= LEAST_SENT &&
		IvfpqLocalSetKeeps(nrows, table->dims))
		table->work = IvfpqLocalSetBegin(&spec, IVFPQ_WORK_SERVER);
}

void
IvfpqTableStopAsking(IvfpqTable *table)
{
	if (table->work != NULL)
		IvfpqLocalSetEnd(table->work);
	table->work = NULL;
}

/*
 * See set.h.  Vectors are either sent or kept.  The choice is made at the
 * first row, because only then the length of vectors is known.
 */
void
IvfpqTableSurvey(IvfpqTable *table, Size keep_bytes, bool send)
{
	bool		is_heap = table->rel->rd_tableam == GetHeapamTableAmRoutine();
	BlockNumber block = InvalidBlockNumber;
	int64		most = 0;		/* number of vectors to keep */

	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_KEYS, 0);
	while (IvfpqTableNext(table))
	{
		bool		is_first = table->nrows == 0;
		const float *vector;

		if (is_heap)
			note_mark(table, &block);
		note_row(table);
		if (table->nrows % 4096 == 0)
			IvfpqProgressDone(table->nrows);
		if (!is_first && table->nkept >= most && table->work == NULL)
			continue;
		/* the estimate needs the vector as it is stored */
		if (is_first && send)
			table->work_rows = most_rows(table);
		vector = IvfpqTableFloats(table);
		if (is_first && send)
			begin_to_send(table);
		if (table->work != NULL &&
			(table->nrows > table->work_rows ||
			 !IvfpqLocalSetPut(table->work, GV_SET_ROWS, vector, 1)))
			IvfpqTableStopAsking(table);
		if (is_first && table->work == NULL)
			most = keep_bytes / (table->dims * sizeof(float));
		if (table->nkept < most)
			keep(table, vector, most);
	}
	if (table->key_column != InvalidAttrNumber)
		check_keys(table);
}

void
IvfpqTableForget(IvfpqTable *table)
{
	IvfpqTableStopAsking(table);
	if (table->kept != NULL)
		pfree(table->kept);
	table->kept = NULL;
	table->nkept = 0;
	table->kept_capacity = 0;
}

/* Returns the last mark at or before a position, or NULL if there is none. */
static const IvfpqMark *
mark_before(const IvfpqTable *table, int64 position)
{
	int64		low = 0;
	int64		high = table->nmarks;

	while (low < high)
	{
		int64		middle = low + (high - low) / 2;

		if (table->marks[middle].position <= position)
			low = middle + 1;
		else
			high = middle;
	}
	return low == 0 ? NULL : &table->marks[low - 1];
}

/*
 * Makes the row at a position the current row.  The table must have a row at
 * this position.  If the row follows shortly after the current row, reads on
 * to it; otherwise begins a reading at the last mark before the row, if that
 * is nearer.
 */
static void
go_to(IvfpqTable *table, int64 position)
{
	bool		is_behind = table->scan == NULL || position < table->next;

	if (is_behind || position > table->next + MARKED_ROWS)
	{
		const IvfpqMark *mark = mark_before(table, position);

		if (is_behind || (mark != NULL && mark->position > table->next))
			table_begin(table, mark);
	}
	do
		if (!IvfpqTableNext(table))
			elog(ERROR, "table \"%s\" has lost rows",
				 RelationGetRelationName(table->rel));
	while (table->next <= position);
}

const float *
IvfpqTableVector(IvfpqTable *table, int64 position)
{
	if (position < table->nkept)
		return table->kept + position * table->dims;
	go_to(table, position);
	return IvfpqTableFloats(table);
}

int
IvfpqTableRead(IvfpqTable *table, int64 first, int most, float *buffer,
			   const float **vectors)
{
	if (first < table->nkept)
	{
		*vectors = table->kept + first * table->dims;
		return (int) Min(most, table->nkept - first);
	}
	*vectors = buffer;
	for (int i = 0; i < most; i++)
	{
		go_to(table, first + i);
		memcpy(buffer + (Size) i * table->dims, IvfpqTableFloats(table),
			   table->dims * sizeof(float));
	}
	return most;
}

void
IvfpqTableClose(IvfpqTable *table)
{
	IvfpqTableForget(table);
	end_scan(table);
	ExecDropSingleTupleTableSlot(table->slot);
	UnregisterSnapshot(table->snapshot);
	MemoryContextDelete(table->context);
	if (table->nskipped > 0)
		ereport(NOTICE,
				(errmsg_plural("skipped %lld row of table \"%s\" without a vector",
							   "skipped %lld rows of table \"%s\" without a vector",
							   (unsigned long) table->nskipped,
							   (long long) table->nskipped,
							   RelationGetRelationName(table->rel))));
	relation_close(table->rel, NoLock);
}
