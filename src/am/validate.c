/*
 * validate.c
 *		Checks whether an operator class and its family are fit for gpuivfpq.
 *
 * A family of vectors serves one type and one metric.  All of its ordering
 * operators have this type on their left and the strategy number of the
 * metric.  One of them also has the type on its right.  Support function 1
 * converts the type to real[]; a family for real[] itself has no support
 * function.
 *
 * A family of keys (types/keys.h) serves types that can be compared with each
 * other, and has search operators.  Without support functions, the types must
 * be among those that types/keys.c supports, and the operators must be those
 * of btree.  With support function 2, there is only an equality operator.
 * With support function 3, there are only operators of sets.
 */
#include "postgres.h"

#include "access/amvalidate.h"
#include "access/htup_details.h"
#include "catalog/pg_amop.h"
#include "catalog/pg_amproc.h"
#include "catalog/pg_opclass.h"
#include "catalog/pg_opfamily.h"
#include "catalog/pg_type_d.h"
#include "parser/parse_coerce.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "am/am.h"
#include "am/types/keys.h"
#include "am/types/vector.h"

/* The operator class to examine, and the findings so far about its family. */
typedef struct Examined
{
	Oid			family;
	Oid			type;			/* the class's input type */
	char	   *class_name;
	char	   *family_name;
	uint32		strategies;		/* bit s: some operator has strategy s */
	bool		has_operator;	/* there is an operator for (type, type) */
	bool		has_function[1 + IVFPQ_NPROCS]; /* [n]: there is support
												 * function n for type */
	bool		valid;
} Examined;

/* Reports a fault, as core's access methods do. */
#define FAULT(examined, ...) \
	do { \
		ereport(INFO, \
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION), \
				 errmsg(__VA_ARGS__))); \
		(examined)->valid = false; \
	} while (0)

/* Initializes *x for a class, which counts as valid until a fault is found. */
static void
examine_class(Oid opclassoid, Examined *x)
{
	HeapTuple	tuple;
	Form_pg_opclass opclass;

	memset(x, 0, sizeof(*x));
	x->valid = true;

	tuple = SearchSysCache1(CLAOID, ObjectIdGetDatum(opclassoid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for operator class %u", opclassoid);
	opclass = (Form_pg_opclass) GETSTRUCT(tuple);
	x->family = opclass->opcfamily;
	x->type = opclass->opcintype;
	x->class_name = pstrdup(NameStr(opclass->opcname));
	ReleaseSysCache(tuple);

	tuple = SearchSysCache1(OPFAMILYOID, ObjectIdGetDatum(x->family));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for operator family %u", x->family);
	x->family_name =
		pstrdup(NameStr(((Form_pg_opfamily) GETSTRUCT(tuple))->opfname));
	ReleaseSysCache(tuple);
}

/* Returns whether the family is one of vectors. */
static bool
is_of_vectors(const Examined *x, CatCList *procs, CatCList *ops)
{
	for (int i = 0; i < procs->n_members; i++)
		if (((Form_pg_amproc)
			 GETSTRUCT(&procs->members[i]->tuple))->amprocnum ==
			IVFPQ_TOREAL_PROC)
			return true;
	for (int i = 0; i < ops->n_members; i++)
		if (((Form_pg_amop)
			 GETSTRUCT(&ops->members[i]->tuple))->amoppurpose == AMOP_ORDER)
			return true;
	return x->type == FLOAT4ARRAYOID;
}

/* Examines a support function of a family of vectors. */
static void
examine_function(Form_pg_amproc proc, Examined *x)
{
	if (proc->amproclefttype != proc->amprocrighttype)
		FAULT(x, "operator family \"%s\" of access method %s contains support function %s with different left and right input types",
			  x->family_name, "gpuivfpq", format_procedure(proc->amproc));

	if (proc->amprocnum != IVFPQ_TOREAL_PROC)
	{
		FAULT(x, "operator family \"%s\" of access method %s contains function %s with invalid support number %d",
			  x->family_name, "gpuivfpq", format_procedure(proc->amproc),
			  proc->amprocnum);
		return;
	}
	if (proc->amproclefttype != x->type)
		FAULT(x, "operator family \"%s\" of access method %s contains support function %s for type %s, which is not the input type %s of operator class \"%s\"",
			  x->family_name, "gpuivfpq", format_procedure(proc->amproc),
			  format_type_be(proc->amproclefttype), format_type_be(x->type),
			  x->class_name);
	else
		x->has_function[IVFPQ_TOREAL_PROC] = true;

	if (!check_amproc_signature(proc->amproc, FLOAT4ARRAYOID, true, 3, 3,
								proc->amproclefttype, INT4OID, BOOLOID))
		FAULT(x, "operator family \"%s\" of access method %s contains function %s with wrong signature for support number %d",
			  x->family_name, "gpuivfpq", format_procedure(proc->amproc),
			  proc->amprocnum);
}

/* Examines an operator of a family of vectors. */
static void
examine_operator(Form_pg_amop op, Examined *x)
{
	char	   *name = format_operator(op->amopopr);

	if (op->amopstrategy < 1 || op->amopstrategy > IVFPQ_NSTRATEGIES)
		FAULT(x, "operator family \"%s\" of access method %s contains operator %s with invalid strategy number %d",
			  x->family_name, "gpuivfpq", name, op->amopstrategy);
	else
		x->strategies |= 1U << op->amopstrategy;

	if (op->amoppurpose != AMOP_ORDER)
		FAULT(x, "operator family \"%s\" of access method %s contains operator %s that is not an ordering operator",
			  x->family_name, "gpuivfpq", name);
	else if (!opfamily_can_sort_type(op->amopsortfamily, FLOAT8OID))
		FAULT(x, "operator family \"%s\" of access method %s contains incorrect ORDER BY operator family specification for operator %s",
			  x->family_name, "gpuivfpq", name);

	if (!check_amop_signature(op->amopopr, FLOAT8OID,
							  op->amoplefttype, op->amoprighttype))
		FAULT(x, "operator family \"%s\" of access method %s contains operator %s with wrong signature",
			  x->family_name, "gpuivfpq", name);

	if (op->amoplefttype != x->type)
		FAULT(x, "operator family \"%s\" of access method %s contains operator %s whose left type is not the input type %s of operator class \"%s\"",
			  x->family_name, "gpuivfpq", name, format_type_be(x->type),
			  x->class_name);
	else if (op->amoprighttype == x->type)
		x->has_operator = true;
}

/* Examines a family of vectors as a whole, after its members. */
static void
examine_whole(Examined *x)
{
	bool		has_toreal = x->has_function[IVFPQ_TOREAL_PROC];

	/* more than one bit is set */
	if ((x->strategies & (x->strategies - 1)) != 0)
		FAULT(x, "operator family \"%s\" of access method %s contains operators of more than one metric",
			  x->family_name, "gpuivfpq");

	if (!x->has_operator)
		FAULT(x, "operator class \"%s\" of access method %s is missing an ordering operator for types %s and %s",
			  x->class_name, "gpuivfpq", format_type_be(x->type),
			  format_type_be(x->type));

	if (x->type == FLOAT4ARRAYOID && has_toreal)
		FAULT(x, "operator class \"%s\" of access method %s has support function %d, which type %s does not need",
			  x->class_name, "gpuivfpq", IVFPQ_TOREAL_PROC,
			  format_type_be(x->type));
	if (x->type != FLOAT4ARRAYOID && !has_toreal)
		FAULT(x, "operator class \"%s\" of access method %s is missing support function %d",
			  x->class_name, "gpuivfpq", IVFPQ_TOREAL_PROC);
}

/* Examines a support function of a family of keys. */
static void
examine_key_function(Form_pg_amproc proc, Examined *x)
{
	bool		is_hash = proc->amprocnum == IVFPQ_HASH_PROC;

	if (proc->amproclefttype != proc->amprocrighttype)
		FAULT(x, "operator family \"%s\" of access method %s contains support function %s with different left and right input types",
			  x->family_name, "gpuivfpq", format_procedure(proc->amproc));
	if (proc->amproclefttype == x->type)
		x->has_function[proc->amprocnum] = true;

	/* core declares hashvarlena with an argument of type internal */
	if (is_hash && proc->amproc == F_HASHVARLENA)
		return;
	if (!check_amproc_signature(proc->amproc, is_hash ? INT4OID : INT8OID,
								false, 1, 1, proc->amproclefttype))
		FAULT(x, "operator family \"%s\" of access method %s contains function %s with wrong signature for support number %d",
			  x->family_name, "gpuivfpq", format_procedure(proc->amproc),
			  proc->amprocnum);
}

/* Returns whether an operator of the class may have this strategy. */
static bool
is_key_strategy(const Examined *x, int strategy)
{
	if (x->has_function[IVFPQ_HASH_PROC])
		return strategy == BTEqualStrategyNumber;
	if (x->has_function[IVFPQ_SIGNATURE_PROC])
		return strategy == IVFPQ_OVERLAP_STRATEGY ||
			strategy == IVFPQ_CONTAINS_STRATEGY;
	return strategy >= 1 && strategy <= BTMaxStrategyNumber;
}

/* Examines an operator of a family of keys, after the support functions. */
static void
examine_key_operator(Form_pg_amop op, Examined *x)
{
	char	   *name = format_operator(op->amopopr);

	if (!is_key_strategy(x, op->amopstrategy))
		FAULT(x, "operator family \"%s\" of access method %s contains operator %s with invalid strategy number %d",
			  x->family_name, "gpuivfpq", name, op->amopstrategy);
	else if (!x->has_function[IVFPQ_HASH_PROC] &&
			 !x->has_function[IVFPQ_SIGNATURE_PROC])
	{
		TypeCacheEntry *type = lookup_type_cache(op->amoplefttype,
												 TYPECACHE_BTREE_OPFAMILY);

		if (get_op_opfamily_strategy(op->amopopr, type->btree_opf) !=
			op->amopstrategy)
			FAULT(x, "operator family \"%s\" of access method %s contains operator %s, which is not btree's operator %d of type %s",
				  x->family_name, "gpuivfpq", name, op->amopstrategy,
				  format_type_be(op->amoplefttype));
	}

	if (!check_amop_signature(op->amopopr, BOOLOID,
							  op->amoplefttype, op->amoprighttype))
		FAULT(x, "operator family \"%s\" of access method %s contains operator %s with wrong signature",
			  x->family_name, "gpuivfpq", name);

	/* the operators of arrays take anyarray */
	if (IsBinaryCoercible(x->type, op->amoplefttype) &&
		IsBinaryCoercible(x->type, op->amoprighttype))
		x->has_operator = true;
}

/* Examines a family of keys as a whole, after its members. */
static void
examine_key_whole(Examined *x)
{
	bool		has_hash = x->has_function[IVFPQ_HASH_PROC];
	bool		has_signature = x->has_function[IVFPQ_SIGNATURE_PROC];

	if (!x->has_operator)
		FAULT(x, "operator class \"%s\" of access method %s is missing a search operator for types %s and %s",
			  x->class_name, "gpuivfpq", format_type_be(x->type),
			  format_type_be(x->type));
	if (has_hash && has_signature)
		FAULT(x, "operator class \"%s\" of access method %s has support functions %d and %d, of which a class can have one",
			  x->class_name, "gpuivfpq", IVFPQ_HASH_PROC,
			  IVFPQ_SIGNATURE_PROC);
	if (!has_hash && !has_signature && !IvfpqIsOrderedKey(x->type))
		FAULT(x, "operator class \"%s\" of access method %s is missing support function %d or %d",
			  x->class_name, "gpuivfpq", IVFPQ_HASH_PROC,
			  IVFPQ_SIGNATURE_PROC);
}

/*
 * amvalidate callback.  Returns whether the class is fit for gpuivfpq.
 * Reports everything that is wrong with the class or its family at level INFO.
 */
bool
ivfpqvalidate(Oid opclassoid)
{
	Examined	x;
	CatCList   *procs;
	CatCList   *ops;
	bool		of_vectors;

	examine_class(opclassoid, &x);
	procs = SearchSysCacheList1(AMPROCNUM, ObjectIdGetDatum(x.family));
	ops = SearchSysCacheList1(AMOPSTRATEGY, ObjectIdGetDatum(x.family));
	of_vectors = is_of_vectors(&x, procs, ops);

	for (int i = 0; i < procs->n_members; i++)
	{
		Form_pg_amproc proc = (Form_pg_amproc)
		GETSTRUCT(&procs->members[i]->tuple);

		if (of_vectors)
			examine_function(proc, &x);
		else
			examine_key_function(proc, &x);
	}
	for (int i = 0; i < ops->n_members; i++)
	{
		Form_pg_amop op = (Form_pg_amop) GETSTRUCT(&ops->members[i]->tuple);

		if (of_vectors)
			examine_operator(op, &x);
		else
			examine_key_operator(op, &x);
	}
	ReleaseCatCacheList(procs);
	ReleaseCatCacheList(ops);

	if (of_vectors)
		examine_whole(&x);
	else
		examine_key_whole(&x);
	return x.valid;
}

/*
 * amadjustmembers callback.  Makes the members that the class requires depend
 * on the class: its own operators and its support function.  Other members,
 * such as operators with another type on the right, are loose members of the
 * family.
 */
void
ivfpqadjustmembers(Oid opfamilyoid, Oid opclassoid,
				   List *operators, List *functions)
{
	List	   *lists[2] = {operators, functions};
	ListCell   *lc;

	for (int i = 0; i < 2; i++)
	{
		foreach(lc, lists[i])
		{
			OpFamilyMember *member = (OpFamilyMember *) lfirst(lc);
			bool		essential = OidIsValid(opclassoid) &&
			member->lefttype == member->righttype;

			member->ref_is_hard = essential;
			member->ref_is_family = !essential;
			member->refobjid = essential ? opclassoid : opfamilyoid;
		}
	}
}
