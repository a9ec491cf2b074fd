/*
 * settable.c
 *		Opening tables for set functions, and reading them row by row.
 *
 * A role that may SELECT the columns from the table may have them read here,
 * no other: so views, whose rows are not stored, partitioned tables, and
 * tables of which policies hide rows are refused.
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
#include "set/setargs.h"
#include "storage/bufmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"

#include "set/settable.h"

/* The hint for a relation of another kind. */
static const char *
kind_hint(char relkind)
{
	switch (relkind)
	{
		case RELKIND_PARTITIONED_TABLE:
			return "Name one partition, or make a materialized view of all.";
		case RELKIND_VIEW:
			return "Name the table under it, or make a materialized view.";
		case RELKIND_FOREIGN_TABLE:
			return "Make a materialized view of it.";
		default:
			return "Name a table or a materialized view.";
	}
}

/* ERROR unless all rows of a relation may be seen; by FORCE, not by owners. */
static void
check_policies(Relation rel)
{
	if (check_enable_rls(RelationGetRelid(rel), InvalidOid, true) !=
		RLS_ENABLED)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("table \"%s\" cannot be read under row-level security",
					RelationGetRelationName(rel)),
			 errdetail("Its policies hide rows from the current user."),
			 rel->rd_rel->relforcerowsecurity ?
			 errhint("Run it as a role with BYPASSRLS, or on a materialized view of the rows.") :
			 errhint("Run it as the table's owner or as a role with BYPASSRLS.")));
}

/* ERROR unless the relation's rows can be read as they are stored. */
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

/* Open what has rows that the caller may read, see settable.h. */
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

/* The column of that name, see settable.h. */
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
	/* a column of 18 that is computed when it is read */
	if (column > 0 &&
		TupleDescAttr(RelationGetDescr(rel), column - 1)->attgenerated == 'v')
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("column \"%s\" is a virtual generated column", name),
				 errhint("Make it a stored one.")));
	*type = getBaseType(get_atttype(relid, column));
	return column;
}

/*
 * Can vectors of this type be read, and how?  Besides real[] these are types
 * of extensions that a function of pgvector's form casts to it.  Types that
 * users make do not count, or a table could run its owner's code; arrays of
 * those are base types, too.
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

static void
find_vector_column(IvfpqTable *table, const char *name)
{
	Oid			type;

	table->vector_column = IvfpqTableColumn(table->rel, name, &type);
	if (!find_vector_type(type, &table->type))
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" has type %s, which is no vector", name,
						format_type_be(type)),
				 errhint("Vectors are of type real[], vector or halfvec.")));
}

/* The same for a key's, see settable.h. */
AttrNumber
IvfpqTableKeyColumn(Relation rel, const char *name, Oid *type)
{
	AttrNumber	column = IvfpqTableColumn(rel, name, type);

	if (*type != INT2OID && *type != INT4OID && *type != INT8OID)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" has type %s, which is no key", name,
						format_type_be(*type)),
				 errhint("Keys are of type smallint, integer or bigint.")));
	return column;
}

/* A key as a number, see settable.h. */
int64
IvfpqKeyNumber(Datum key, Oid type)
{
	if (type == INT2OID)
		return DatumGetInt16(key);
	if (type == INT4OID)
		return DatumGetInt32(key);
	return DatumGetInt64(key);
}

/* Open a table, see settable.h. */
void
IvfpqTableOpen(IvfpqTable *table, Oid relid, const char *key,
			   const char *vector)
{
	memset(table, 0, sizeof(*table));
	table->rel = IvfpqTableRelation(relid);
	if (key != NULL)
		table->key_column = IvfpqTableKeyColumn(table->rel, key,
												&table->key_type);
	find_vector_column(table, vector);
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
 * Begin at a mark or, for NULL, at the table's first page, wherever other
 * scans are.  The caller's memory context may end before the scan does.
 */
static void
table_begin(IvfpqTable *table, const IvfpqMark *mark)
{
	MemoryContext old = MemoryContextSwitchTo(table->home);

	/* a scan has a ring of buffers of its own: it is kept from mark to mark */
	if (table->scan != NULL)
		table_rescan(table->scan, NULL);
	else
		table->scan = table_beginscan_strat(table->rel, table->snapshot, 0,
											NULL, true, false);
	table->next = mark != NULL ? mark->position : 0;
	table->nulls = 0;
	if (table->rel->rd_tableam == GetHeapamTableAmRoutine())
	{
		/* once more is from the block that it began with, if nobody says so */
		BlockNumber first = mark != NULL ? mark->block : 0;
		BlockNumber nblocks = ((HeapScanDesc) table->scan)->rs_nblocks;

		/* to the last page, for it would go on with the first */
		heap_setscanlimits(table->scan, first, nblocks - first);
	}
	MemoryContextSwitchTo(old);
}

/*
 * The next row that has a vector, see settable.h.  One that is stored out of
 * line is not fetched yet.
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
	/* one that began at a mark has not seen all of them */
	table->nskipped = Max(table->nskipped, table->nulls);
	end_scan(table);
	return false;
}

/* Of an error in a vector: which row has it. */
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

/* The current row's vector, see settable.h. */
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

/* The key in a slot, see settable.h. */
int64
IvfpqTableKey(const IvfpqTable *table, TupleTableSlot *slot)
{
	bool		isnull;
	Datum		key = slot_getattr(slot, table->key_column, &isnull);

	if (isnull)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("a row of table \"%s\" has a vector but no key",
						RelationGetRelationName(table->rel)),
				 errhint("Name a column that is NOT NULL, such as the primary key.")));
	return IvfpqKeyNumber(key, table->key_type);
}

/* Done with the table, see settable.h. */
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
				(errmsg_plural("%lld row of table \"%s\" without a vector was left out",
							   "%lld rows of table \"%s\" without a vector were left out",
							   (unsigned long) table->nskipped,
							   (long long) table->nskipped,
							   RelationGetRelationName(table->rel))));
	relation_close(table->rel, NoLock);
}

/* ----
 * What set functions know of a table's rows after they have read all of
 * them once, and vectors by their positions.
 *
 * A table is read several times: for a sample, for queries, and for each tile
 * of queries.  To turn a value into floats takes most of it, where it is of
 * pgvector's types, so vectors are kept as far as the caller's memory goes, or
 * are sent to gpuvecd at once, which keeps them.  Of others it is known in
 * which block they are, about, so that a row here and there does not cost all
 * that are before it.
 */

/* To send fewer bytes is not worth a connection. */
#define LEAST_SENT		(1 << 18)
#define SENT_ROWS		32		/* at a time */

/* Rows from one marked block to the next, at least. */
#define MARKED_ROWS		256

/* Of the usual processors. */
#define LARGE_PAGE		(2 * 1024 * 1024)

/* For qsort of int64; a long sort must end, too. */
int
IvfpqCompareSigned(const void *a, const void *b)
{
	int64		x = *(const int64 *) a;
	int64		y = *(const int64 *) b;

	CHECK_FOR_INTERRUPTS();
	return x < y ? -1 : x > y;
}

static void
report_key_twice(const IvfpqTable *table, int64 key)
{
	ereport(ERROR,
			(errcode(ERRCODE_CARDINALITY_VIOLATION),
			 errmsg("key %lld occurs more than once in table \"%s\"",
					(long long) key, RelationGetRelationName(table->rel)),
			 errhint("Name a column whose values are unique, such as the primary key.")));
}

/*
 * A bit for each key from the least to the greatest, in no more memory than to
 * sort them takes; false: they are too far from each other.
 */
static bool
check_close_keys(const IvfpqTable *table)
{
	int64		least = table->keys[0];
	int64		greatest = least;
	uint64		nwords;
	uint64	   *seen;

	for (int64 i = 1; i < table->nrows; i++)
	{
		CHECK_FOR_INTERRUPTS();
		least = Min(least, table->keys[i]);
		greatest = Max(greatest, table->keys[i]);
	}
	nwords = ((uint64) greatest - (uint64) least) / 64 + 1;
	if (nwords > (uint64) table->nrows)
		return false;
	seen = palloc_extended(nwords * sizeof(uint64),
						   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	for (int64 i = 0; i < table->nrows; i++)
	{
		uint64		at = (uint64) table->keys[i] - (uint64) least;
		uint64		bit = UINT64CONST(1) << at % 64;

		CHECK_FOR_INTERRUPTS();
		if (seen[at / 64] & bit)
			report_key_twice(table, table->keys[i]);
		seen[at / 64] |= bit;
	}
	pfree(seen);
	return true;
}

/* ERROR if two rows have the same key. */
static void
check_keys(const IvfpqTable *table)
{
	Size		bytes = table->nrows * sizeof(int64);
	int64	   *sorted;
	int64		i = 1;

	while (i < table->nrows && table->keys[i - 1] < table->keys[i])
		i++;
	/* they ascend, as they often do, or are close to each other */
	if (i >= table->nrows || check_close_keys(table))
		return;
	sorted = palloc_extended(bytes, MCXT_ALLOC_HUGE);
	memcpy(sorted, table->keys, bytes);
	qsort(sorted, table->nrows, sizeof(int64), IvfpqCompareSigned);
	for (i = 1; i < table->nrows; i++)
		if (sorted[i - 1] == sorted[i])
			report_key_twice(table, sorted[i]);
	pfree(sorted);
}

/*
 * Let the system give large pages to an array that is long: each that is
 * touched first costs it about the same, small or large, and what is looked up
 * anywhere in them is found sooner.
 */
static void *
in_large_pages(void *items, Size bytes)
{
#ifdef MADV_HUGEPAGE
	char	   *first = (char *) TYPEALIGN(LARGE_PAGE, items);
	char	   *end = (char *) TYPEALIGN_DOWN(LARGE_PAGE,
											  (char *) items + bytes);

	/* without them it is as good */
	if (end > first)
		(void) madvise(first, end - first, MADV_HUGEPAGE);
#endif
	return items;
}

/* An array of nrows items, which is full, grows. */
static void *
grow(void *items, int64 nrows, Size size)
{
	int64		capacity = nrows == 0 ? 1024 : 2 * nrows;

	if (nrows == 0)
		return palloc(capacity * size);
	return in_large_pages(repalloc_huge(items, capacity * size),
						  capacity * size);
}

/* Is an array of n items that grow() made full? */
static bool
is_full_at(int64 n)
{
	return n == 0 || (n >= 1024 && (n & (n - 1)) == 0);
}

static void
note_row(IvfpqTable *table)
{
	int64		i = table->nrows;
	bool		is_full = is_full_at(i);

	if (table->key_column != InvalidAttrNumber)
	{
		if (is_full)
			table->keys = grow(table->keys, i, sizeof(int64));
		table->keys[i] = IvfpqTableKey(table, table->slot);
	}
	else
	{
		if (is_full)
			table->tids = grow(table->tids, i, sizeof(ItemPointerData));
		table->tids[i] = table->slot->tts_tid;
	}
	table->nrows++;
}

/*
 * Mark the current row's block, if the row is the first of it and enough came
 * since the last mark.  Only a heap's reading can begin at a block.
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
	if (is_full_at(table->nmarks))
		table->marks = grow(table->marks, table->nmarks, sizeof(IvfpqMark));
	mark = &table->marks[table->nmarks++];
	mark->position = position;
	mark->block = *block;
}

/*
 * Allocates memory for vectors that are kept: first for as many as the table's
 * pages may hold, for most tables all, then twice as many; no more than
 * `most`.
 */
static void
ensure_capacity(IvfpqTable *table, int64 most)
{
	Size		bytes = table->dims * sizeof(float);
	int64		stored = (int64) RelationGetNumberOfBlocks(table->rel) *
	BLCKSZ / bytes;

	table->kept_capacity =
		Min(Max(Max(stored, 2 * table->kept_capacity), 1024), most);
	bytes *= table->kept_capacity;
	table->kept = in_large_pages(table->kept == NULL ?
								 palloc_extended(bytes, MCXT_ALLOC_HUGE) :
								 repalloc_huge(table->kept, bytes), bytes);
}

/* Keep one more vector; memory holds `most`. */
static void
keep(IvfpqTable *table, const float *vector, int64 most)
{
	if (table->nkept == table->kept_capacity)
		ensure_capacity(table, most);
	memcpy(table->kept + table->nkept * table->dims, vector,
		   table->dims * sizeof(float));
	table->nkept++;
}

/*
 * Estimates how many rows there may be: as many vectors of the first one's
 * stored size as the table's pages hold, but at most a quarter more than the
 * planner thinks.  If there are more, they are not sent.
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

	estimate_rel_size(table->rel, NULL, &npages, &nrows, &visible);
	nblocks = npages;
	if (VARATT_IS_EXTERNAL(DatumGetPointer(table->vector)) &&
		OidIsValid(toast))
	{
		Relation	rel = table_open(toast, AccessShareLock);

		nblocks = RelationGetNumberOfBlocks(rel);
		table_close(rel, AccessShareLock);
	}
	fit = (double) nblocks * BLCKSZ / toast_datum_size(table->vector);
	return (int64) Max(Min(fit, 1.25 * nrows + MARKED_ROWS), 1);
}

/* Have gpuvecd keep rows, if it can keep as many as there may be. */
static void
begin_to_send(IvfpqTable *table, int64 nrows)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT, .metric = GV_SET_L2,
	.dims = table->dims, .k = 1, .own = 1, .nrows = nrows};

	if (nrows * table->dims * (int64) sizeof(float) < LEAST_SENT ||
		!IvfpqWorkKeeps(nrows, table->dims))
		return;
	table->work = IvfpqWorkBegin(&spec, IVFPQ_WORK_SERVER);
	table->work_rows = nrows;
}

/* See settable.h. */
void
IvfpqTableStopAsking(IvfpqTable *table)
{
	if (table->work != NULL)
		IvfpqWorkEnd(table->work);
	table->work = NULL;
}

/* A first reading of all rows, and what becomes of their vectors. */
typedef struct Survey
{
	IvfpqTable *table;
	Size		keep_bytes;
	bool		send;
	int64		most;			/* to keep */
	float	   *batch;			/* [SENT_ROWS][dims] to send, */
	int			n;				/* rows in it */
} Survey;

/* Send what is gathered. */
static void
send_batch(Survey *survey)
{
	IvfpqTable *table = survey->table;

	if (survey->n > 0 && table->work != NULL &&
		(table->nrows > table->work_rows ||
		 !IvfpqWorkPut(table->work, GV_SET_ROWS, survey->batch, survey->n)))
		IvfpqTableStopAsking(table);
	survey->n = 0;
}

/* The first row says how long vectors are, and so what is to be done. */
static void
take_first(Survey *survey, const float *vector, int64 to_send)
{
	IvfpqTable *table = survey->table;
	Size		bytes = table->dims * sizeof(float);

	if (to_send > 0)
		begin_to_send(table, to_send);
	if (table->work != NULL)
	{
		survey->batch = palloc(SENT_ROWS * bytes);
		memcpy(survey->batch, vector, bytes);
		survey->n = 1;
		send_batch(survey);
	}
	if (table->work == NULL)
		survey->most = survey->keep_bytes / bytes;
	if (survey->most > 0)
		keep(table, vector, survey->most);
}

/* The current row's vector. */
static void
take_vector(Survey *survey)
{
	IvfpqTable *table = survey->table;
	int64		to_send = table->nrows == 1 && survey->send ?
	most_rows(table) : 0;
	const float *vector = IvfpqTableFloats(table);

	if (table->nrows == 1)
		take_first(survey, vector, to_send);
	else if (table->work == NULL)
		keep(table, vector, survey->most);
	else
	{
		memcpy(survey->batch + survey->n * table->dims, vector,
			   table->dims * sizeof(float));
		if (++survey->n == SENT_ROWS)
			send_batch(survey);
	}
}

/* Read all rows, see settable.h. */
void
IvfpqTableSurvey(IvfpqTable *table, Size keep_bytes, bool send)
{
	bool		is_heap = table->rel->rd_tableam == GetHeapamTableAmRoutine();
	BlockNumber block = InvalidBlockNumber;
	Survey		survey = {.table = table, .keep_bytes = keep_bytes,
	.send = send};

	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_KEYS, 0);
	while (IvfpqTableNext(table))
	{
		if (is_heap)
			note_mark(table, &block);
		note_row(table);
		if (table->nrows == 1 || table->nkept < survey.most ||
			table->work != NULL)
			take_vector(&survey);
		if (table->nrows % 4096 == 0)
			IvfpqProgressDone(table->nrows);
	}
	send_batch(&survey);
	if (survey.batch != NULL)
		pfree(survey.batch);
	if (table->key_column != InvalidAttrNumber)
		check_keys(table);
}

/* Give memory back, see settable.h. */
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

/* The last mark that is not behind a position; NULL: there is none. */
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

/* The row at a position, one that there is, becomes the current one. */
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

/* The vector at a position, see settable.h. */
const float *
IvfpqTableVector(IvfpqTable *table, int64 position)
{
	if (position < table->nkept)
		return table->kept + position * table->dims;
	go_to(table, position);
	return IvfpqTableFloats(table);
}

/* Vectors from a position on, see settable.h. */
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

/* How many vectors make a batch. */
int
IvfpqTableBatch(const IvfpqTable *table)
{
	Size		bytes = table->dims * sizeof(float);

	return (int) Max(IVFPQ_BATCH_BYTES / bytes, 1);
}
