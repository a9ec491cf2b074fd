/*
 * identity.c
 *		Lists and opens indexes, checks the user's rights on them, and acts as
 *		the owner of an index's table.
 *
 * The expressions and the predicate of an index are code of the owner.  This
 * library evaluates them for another user, or on its own behalf, only between
 * IvfpqActAsOwner and IvfpqActAsCaller, and only with an IndexInfo from
 * IvfpqIndexInfo.  See am/README, "Rights".
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/stratnum.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "nodes/bitmapset.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "am/common/identity.h"
#include "am/common/options.h"
#include "pgcompat.h"

/* The search_path for the owner's code, which PostgreSQL 17 uses, too. */
#define SAFE_SEARCH_PATH	"pg_catalog, pg_temp"

/*
 * Returns the OIDs of the database's gpuivfpq indexes in ascending order, so
 * that older indexes usually come first.  If `temporary` is true, includes
 * indexes of temporary tables, also those of other sessions.
 */
List *
IvfpqListIndexes(bool temporary)
{
	Relation	classes = table_open(RelationRelationId, AccessShareLock);
	List	   *indexes = NIL;
	ScanKeyData key[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key[0], Anum_pg_class_relam, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(get_am_oid("gpuivfpq", true)));
	ScanKeyInit(&key[1], Anum_pg_class_relkind, BTEqualStrategyNumber,
				F_CHAREQ, CharGetDatum(RELKIND_INDEX));
	scan = systable_beginscan(classes, InvalidOid, false, NULL,
							  lengthof(key), key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class class = (Form_pg_class) GETSTRUCT(tuple);

		if (temporary || class->relpersistence != RELPERSISTENCE_TEMP)
			indexes = lappend_oid(indexes, class->oid);
	}
	systable_endscan(scan);
	table_close(classes, AccessShareLock);
	list_sort(indexes, list_oid_cmp);
	return indexes;
}

/*
 * Opens a gpuivfpq index, which the caller closes.  Raises an error if the OID
 * belongs to anything else, or if this session cannot read the index.  `hint` is
 * for an index of another access method; NULL is the hint of most functions.
 */
Relation
IvfpqOpenIndex(Oid relid, LOCKMODE lockmode, const char *hint)
{
	Relation	rel = try_relation_open(relid, lockmode);

	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_INDEX)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is a partitioned index",
						RelationGetRelationName(rel)),
				 errhint("Specify the index of a partition.")));
	if (rel->rd_rel->relkind != RELKIND_INDEX)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not an index",
						RelationGetRelationName(rel)),
				 errhint("Specify a gpuivfpq index, not its table.")));
	if (!IvfpqIsOurs(rel))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("index \"%s\" is not a gpuivfpq index",
						RelationGetRelationName(rel)),
				 errhint("%s", hint != NULL ? hint :
						 "This function supports only gpuivfpq indexes.")));
	if (RELATION_IS_OTHER_TEMP(rel))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot access temporary indexes of other sessions")));
	/* functions of an index can name it while it is built */
	if (ReindexIsProcessingIndex(relid) ||
		(rel->rd_createSubid != InvalidSubTransactionId &&
		 RelationGetNumberOfBlocks(rel) == 0))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("cannot access index \"%s\" while it is being built",
						RelationGetRelationName(rel)),
				 errhint("Functions of an index must not read it.")));
	if (RecoveryInProgress() && !RelationNeedsWAL(rel))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot access unlogged index \"%s\" during recovery",
						RelationGetRelationName(rel))));
	return rel;
}

/*
 * Opens a gpuivfpq index, like IvfpqOpenIndex, and its table.  Locks the table
 * first, because PostgreSQL takes locks in that order.  The caller closes both.
 */
Relation
IvfpqOpenIndexTable(Oid relid, LOCKMODE lockmode, const char *hint,
					Relation *table)
{
	Oid			tableid = IndexGetRelation(relid, true);
	Relation	index;

	*table = NULL;
	if (OidIsValid(tableid))
		*table = table_open(tableid, lockmode);
	index = IvfpqOpenIndex(relid, lockmode, hint);

	/* the index may have been dropped, and its OID reused, before we locked */
	if (*table == NULL || IndexGetRelation(relid, false) != tableid)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("could not open parent table of index \"%s\"",
						RelationGetRelationName(index))));
	return index;
}

/*
 * Opens an index and its table under ShareUpdateExclusiveLock, for work during
 * which VACUUM must not run.  The caller closes both.
 *
 * The function `check` raises an error unless the current user may do the
 * work.  It is called before ShareUpdateExclusiveLock is requested, because
 * autovacuum is canceled for any session that waits for that lock.  It is
 * called once more when the lock is held.
 */
Relation
IvfpqOpenToChange(Oid relid, void (*check) (Relation table, Relation index),
				  Relation *table)
{
	Relation	index = IvfpqOpenIndexTable(relid, AccessShareLock, NULL, table);

	check(*table, index);
	/* waiting for a stronger lock while holding this one could deadlock */
	relation_close(index, AccessShareLock);
	table_close(*table, AccessShareLock);

	index = IvfpqOpenIndexTable(relid, ShareUpdateExclusiveLock, NULL, table);
	check(*table, index);
	return index;
}

/* Raises an error unless the current user may see the index's contents. */
void
IvfpqCheckInspect(Relation index)
{
	if (IvfpqOwnsRelation(index->rd_index->indrelid, GetUserId()) ||
		has_privs_of_role(GetUserId(), ROLE_PG_MONITOR))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for index \"%s\"",
					RelationGetRelationName(index)),
			 errhint("Only the owner of the table and members of pg_monitor may inspect the index.")));
}

/*
 * Raises an error unless the current user may read all columns that the first
 * n columns of the index, its expressions and its predicate are computed from.
 */
void
IvfpqCheckSelect(Relation table, Relation index, int n)
{
	Oid			relid = RelationGetRelid(table);
	IndexInfo  *indexInfo;
	Bitmapset  *columns = NULL;
	int			i = -1;

	if (pg_class_aclcheck(relid, GetUserId(), ACL_SELECT) == ACLCHECK_OK)
		return;

	for (int k = 0; k < n; k++)
	{
		AttrNumber	column = index->rd_index->indkey.values[k];

		if (column != 0)
			columns = bms_add_member(columns, column -
									 FirstLowInvalidHeapAttributeNumber);
	}
	/* the relcache would run code to simplify the expressions */
	indexInfo = IvfpqIndexInfo(index);
	pull_varattnos((Node *) indexInfo->ii_Expressions, 1, &columns);
	pull_varattnos((Node *) indexInfo->ii_Predicate, 1, &columns);
	/* an index that reads no column still reveals that rows exist */
	if (bms_is_empty(columns) &&
		pg_attribute_aclcheck_all(relid, GetUserId(), ACL_SELECT,
								  ACLMASK_ANY) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_TABLE,
					   RelationGetRelationName(table));
	while ((i = bms_next_member(columns, i)) >= 0)
	{
		AttrNumber	column = i + FirstLowInvalidHeapAttributeNumber;
		AclResult	result;

		if (column == InvalidAttrNumber)	/* the whole row */
			result = pg_attribute_aclcheck_all(relid, GetUserId(), ACL_SELECT,
											   ACLMASK_ALL);
		else
			result = pg_attribute_aclcheck(relid, column, GetUserId(),
										   ACL_SELECT);
		if (result != ACLCHECK_OK)
			aclcheck_error(result, OBJECT_TABLE, RelationGetRelationName(table));
	}
}

/*
 * Raises an error if some or all pages of the index may be missing.  CREATE
 * INDEX CONCURRENTLY and REINDEX CONCURRENTLY make an index visible before
 * they build it, and leave it behind if the build fails.
 */
void
IvfpqCheckBuilt(Relation index)
{
	if (!index->rd_index->indisready)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is not valid",
						RelationGetRelationName(index)),
				 errdetail("Its build failed or is still running.")));
}

/* Raises an error if the index may lack rows, so that no query uses it. */
void
IvfpqCheckValid(Relation index)
{
	if (!index->rd_index->indisvalid)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is not valid",
						RelationGetRelationName(index)),
				 errhint("Rebuild the index with REINDEX.")));
}

/*
 * Returns whether the index has all rows that the transaction's snapshots see.
 * If the index was built after rows had changed in place, it has only the last
 * versions of these rows, and an older snapshot may see older versions.
 */
bool
IvfpqIsWhole(Relation index)
{
	return !index->rd_index->indcheckxmin ||
		TransactionIdPrecedes(HeapTupleHeaderGetXmin(index->rd_indextuple->t_data),
							  TransactionXmin);
}

/*
 * Error context callback.  If a name was not found, adds a hint to the error,
 * because the safe search_path may not contain the name's schema.
 */
static void
explain_path(void *arg)
{
	switch (geterrcode())
	{
		case ERRCODE_UNDEFINED_FUNCTION:	/* or operator */
		case ERRCODE_UNDEFINED_OBJECT:
		case ERRCODE_UNDEFINED_TABLE:
			errhint("Functions of indexes run with \"search_path\" set to %s.  Qualify the names in these functions, or use ALTER FUNCTION ... SET search_path.",
					SAFE_SEARCH_PATH);
	}
}

/*
 * Switches to the table's owner, to a security-restricted operation, and to a
 * search_path in which the caller's objects do not hide other objects.
 * PostgreSQL itself sets such a path from version 17 on; this function does so
 * on every version.  Parallel workers that are started before IvfpqActAsCaller
 * inherit the user, the operation and the path.  An error restores the
 * caller's state, too.  The struct *caller must live until IvfpqActAsCaller.
 */
void
IvfpqActAsOwner(IvfpqIdentity *caller, Relation table)
{
	GetUserIdAndSecContext(&caller->userid, &caller->sec_context);
	SetUserIdAndSecContext(table->rd_rel->relowner,
						   caller->sec_context | SECURITY_RESTRICTED_OPERATION);
	caller->guc_level = NewGUCNestLevel();
	(void) set_config_option("search_path", SAFE_SEARCH_PATH, PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	caller->context.callback = explain_path;
	caller->context.arg = NULL;
	caller->context.previous = error_context_stack;
	error_context_stack = &caller->context;
}

/* Undoes IvfpqActAsOwner. */
void
IvfpqActAsCaller(const IvfpqIdentity *caller)
{
	error_context_stack = caller->context.previous;
	AtEOXact_GUC(false, caller->guc_level);
	SetUserIdAndSecContext(caller->userid, caller->sec_context);
}

/* Returns the node tree in a column of the index's pg_index row, or NULL. */
static void *
stored_node(Relation index, AttrNumber column)
{
	bool		isnull;
	Datum		stored = SysCacheGetAttr(INDEXRELID, index->rd_indextuple,
										 column, &isnull);

	return isnull ? NULL : stringToNode(TextDatumGetCString(stored));
}

/*
 * Replaces the expressions and the predicate of an IndexInfo, which come from
 * the relcache, by those that pg_index stores.  The relcache simplifies
 * expressions: it replaces SQL functions by their bodies.  The names in these
 * bodies were looked up when this backend first needed the expressions,
 * perhaps as another user and with any search_path.
 *
 * The expressions may also be dummies, which are NULL constants of the right
 * types.  Dummies stay, because they run no code.
 */
void
IvfpqRenewExpressions(IndexInfo *indexInfo, Relation index)
{
	bool		dummies = true;
	ListCell   *lc;

	foreach(lc, indexInfo->ii_Expressions)
	{
		if (!IsA(lfirst(lc), Const) || !lfirst_node(Const, lc)->constisnull)
			dummies = false;
	}
	if (!dummies)
		indexInfo->ii_Expressions =
			stored_node(index, Anum_pg_index_indexprs);
	if (indexInfo->ii_Predicate != NIL)
		indexInfo->ii_Predicate =
			make_ands_implicit(stored_node(index, Anum_pg_index_indpred));
}

/*
 * Builds an IndexInfo like BuildIndexInfo, but takes the expressions and the
 * predicate as pg_index stores them, and runs no code to simplify them.
 */
IndexInfo *
IvfpqIndexInfo(Relation index)
{
	IndexInfo  *indexInfo = BuildDummyIndexInfo(index);

	indexInfo->ii_Expressions = stored_node(index, Anum_pg_index_indexprs);
	indexInfo->ii_Predicate =
		make_ands_implicit(stored_node(index, Anum_pg_index_indpred));
	return indexInfo;
}

/*
 * check_functions_in_node callback.  Returns whether a function is in a
 * language that looks names up when the function runs.
 */
static bool
is_interpreted(Oid funcid, void *context)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(funcid));
	Oid			language;

	if (!HeapTupleIsValid(tuple))
		return true;
	language = ((Form_pg_proc) GETSTRUCT(tuple))->prolang;
	ReleaseSysCache(tuple);
	return language != INTERNALlanguageId && language != ClanguageId;
}

/*
 * Expression walker.  Returns whether the expression calls a function for
 * which is_interpreted() is true.  Constraints of a domain may call such a
 * function, so returns true for an expression that checks them, or that may
 * convert JSON to a domain.
 */
static bool
has_interpreted(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, CoerceToDomain) &&
		IvfpqDomainHasConstraints(((CoerceToDomain *) node)->resulttype))
		return true;
	return IvfpqIsJsonExpr(node) ||
		check_functions_in_node(node, is_interpreted, context) ||
		expression_tree_walker(node, has_interpreted, context);
}

/*
 * Returns whether an index's stored expressions call functions in SQL,
 * PL/pgSQL or other such languages.  If `predicate` is true, examines the
 * index's predicate, too.
 *
 * By setting search_path, a session can make such a function use other objects
 * than its author intended.  The search_path matters when the function runs.
 * It also matters when PL/pgSQL compiles the function, because PL/pgSQL
 * remembers the objects that it found then.  Functions in C are created by
 * superusers and do not depend on search_path.
 */
bool
IvfpqIsInterpreted(Relation index, bool predicate)
{
	IndexInfo  *indexInfo = IvfpqIndexInfo(index);

	return has_interpreted((Node *) indexInfo->ii_Expressions, NULL) ||
		(predicate &&
		 has_interpreted((Node *) indexInfo->ii_Predicate, NULL));
}

/*
 * Returns whether a parallel worker may evaluate an index's expressions and
 * predicate.  The PlannerInfo of the statement cannot be used, because it
 * records only functions of the statement, and the index's functions may not
 * be among them.
 */
bool
IvfpqIsParallelSafe(List *expressions, List *predicate)
{
	PlannerInfo *root = makeNode(PlannerInfo);

	root->glob = makeNode(PlannerGlobal);
	return is_parallel_safe(root, (Node *) expressions) &&
		is_parallel_safe(root, (Node *) predicate);
}

/*
 * Returns whether the index's code may be run as the table's owner for the
 * current user.  For a user who is not the owner, it may be run only if it
 * calls no interpreted functions, because the user's session could change what
 * such functions do.
 */
bool
IvfpqMayAct(Relation table, Relation index)
{
	return IvfpqOwnsRelation(RelationGetRelid(table), GetUserId()) ||
		!IvfpqIsInterpreted(index, true);
}

/* Raises an error if IvfpqMayAct returns false. */
void
IvfpqCheckActing(Relation table, Relation index)
{
	if (IvfpqMayAct(table, index))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for index \"%s\"",
					RelationGetRelationName(index)),
			 errdetail("Its expressions or predicate call functions that are not written in C and would run as the owner of table \"%s\".",
					   RelationGetRelationName(table)),
			 errhint("Call the function as the owner of the table.")));
}

/*
 * Raises an error unless the current user may call a function that reads the
 * table's rows as its owner, to whom policies do not apply.  If policies hide
 * rows from the current user, raises an error with `message` and `hint`.
 */
void
IvfpqCheckMeasurable(Relation table, Relation index, const char *message,
					 const char *hint)
{
	IvfpqCheckSelect(table, index, 1);
	IvfpqCheckActing(table, index);
	if (check_enable_rls(RelationGetRelid(table), InvalidOid, true) ==
		RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s", message),
				 errdetail("Policies of table \"%s\" hide rows from the current user.",
						   RelationGetRelationName(table)),
				 errhint("%s", hint)));
}
