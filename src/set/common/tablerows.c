/*
 * tablerows.c
 *		Opening tables for set functions, and reading them row by row.
 *
 * A role that may SELECT the columns from the table may have them read here,
 * no other: so views, whose rows are not stored, partitioned tables, and
 * tables of which policies hide rows are refused.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type_d.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "parser/parse_coerce.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"

#include "set/common/common.h"
#include "set/common/tablerows.h"

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

/* Open what has rows that the caller may read, see tablerows.h. */
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

/* The column of that name, see tablerows.h. */
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

/* The same for a key's, see tablerows.h. */
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

/* A key as a number, see tablerows.h. */
int64
IvfpqKeyNumber(Datum key, Oid type)
{
	if (type == INT2OID)
		return DatumGetInt16(key);
	if (type == INT4OID)
		return DatumGetInt32(key);
	return DatumGetInt64(key);
}

/* Open a table, see tablerows.h. */
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
void
IvfpqTableBegin(IvfpqTable *table, const IvfpqMark *mark)
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
 * The next row that has a vector, see tablerows.h.  One that is stored out of
 * line is not fetched yet.
 */
bool
IvfpqTableNext(IvfpqTable *table)
{
	if (table->scan == NULL)
		IvfpqTableBegin(table, NULL);
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

/* The current row's vector, see tablerows.h. */
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

/* The key in a slot, see tablerows.h. */
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

/* Done with the table, see tablerows.h. */
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
