/*
 * contexts.c
 *		PostgreSQL's allocations in the module, the n-th of which fails as that
 *		of heap.c does, which says how calls come here: with PostgreSQL's error,
 *		or as the caller wants it.
 *
 * Memory that PostgreSQL's own functions take for us does not count by itself.
 * A call counts of those that make lists, contexts and segments, and of some that
 * open, copy or begin something, in the midst of which an error may come.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/parallel.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "nodes/pg_list.h"
#include "storage/dsm.h"
#include "utils/dsa.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "engine/gv_fault.h"

/* A function of PostgreSQL's: what it returns when it fails is `failed`. */
#define WRAP(type, name, params, args, failed) \
	extern type __real_##name params; \
	extern type __wrap_##name params; \
	type __wrap_##name params { return fails() ? failed : __real_##name args; }

/* Does this allocation fail?  One below 0 is for parallel workers. */
static bool
fails(void)
{
	if (gv_allocations.due < 0 && IsParallelWorker())
		gv_allocations.due = -gv_allocations.due;
	return gv_allocation_fails();
}

/* The error; never returns. */
static void *
out_of_memory(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("out of memory"),
			 errdetail("A test had the allocation fail.")));
	return NULL;
}

/* The error, or NULL for who wants that. */
static void *
without_memory(int flags)
{
	return (flags & MCXT_ALLOC_NO_OOM) != 0 ? NULL : out_of_memory();
}

static dsa_pointer
without_area(int flags)
{
	if ((flags & DSA_ALLOC_NO_OOM) == 0)
		(void) out_of_memory();
	return InvalidDsaPointer;
}

WRAP(void *, palloc, (Size size), (size), out_of_memory())
WRAP(void *, palloc0, (Size size), (size), out_of_memory())
WRAP(void *, palloc_extended, (Size size, int flags), (size, flags),
	 without_memory(flags))
WRAP(void *, repalloc, (void *old, Size size), (old, size), out_of_memory())
WRAP(void *, repalloc_huge, (void *old, Size size), (old, size),
	 out_of_memory())
WRAP(void *, MemoryContextAlloc, (MemoryContext context, Size size),
	 (context, size), out_of_memory())
WRAP(void *, MemoryContextAllocZero, (MemoryContext context, Size size),
	 (context, size), out_of_memory())
WRAP(void *, MemoryContextAllocHuge, (MemoryContext context, Size size),
	 (context, size), out_of_memory())
WRAP(void *, MemoryContextAllocExtended,
	 (MemoryContext context, Size size, int flags), (context, size, flags),
	 without_memory(flags))
WRAP(char *, pstrdup, (const char *text), (text), out_of_memory())
WRAP(char *, MemoryContextStrdup, (MemoryContext context, const char *text),
	 (context, text), out_of_memory())
WRAP(MemoryContext, AllocSetContextCreateInternal,
	 (MemoryContext parent, const char *name, Size least, Size first,
	  Size most), (parent, name, least, first, most), out_of_memory())
WRAP(List *, lappend, (List *list, void *datum), (list, datum),
	 out_of_memory())
WRAP(List *, lappend_oid, (List *list, Oid oid), (list, oid),
	 out_of_memory())
WRAP(List *, lcons, (void *datum, List *list), (datum, list),
	 out_of_memory())
WRAP(List *, list_make1_impl, (NodeTag tag, ListCell cell), (tag, cell),
	 out_of_memory())
WRAP(List *, list_copy, (const List *list), (list), out_of_memory())
WRAP(dsm_segment *, dsm_create, (Size size, int flags), (size, flags),
	 out_of_memory())
WRAP(dsm_segment *, dsm_attach, (dsm_handle handle), (handle),
	 out_of_memory())
WRAP(dsa_area *, dsa_attach, (dsa_handle handle), (handle), out_of_memory())
WRAP(dsa_pointer, dsa_allocate_extended,
	 (dsa_area *area, size_t size, int flags), (area, size, flags),
	 without_area(flags))
WRAP(void *, copyObjectImpl, (const void *from), (from), out_of_memory())
WRAP(ErrorData *, CopyErrorData, (void), (), out_of_memory())
WRAP(EState *, CreateExecutorState, (void), (), out_of_memory())
WRAP(Snapshot, RegisterSnapshot, (Snapshot snapshot), (snapshot),
	 out_of_memory())
WRAP(Tuplestorestate *, tuplestore_begin_heap, (bool random, bool files, int kb),
	 (random, files, kb), out_of_memory())
WRAP(TupleDesc, CreateTupleDescCopy, (TupleDesc desc), (desc),
	 out_of_memory())
WRAP(Relation, table_open, (Oid oid, LOCKMODE lock), (oid, lock),
	 out_of_memory())
WRAP(Relation, index_open, (Oid oid, LOCKMODE lock), (oid, lock),
	 out_of_memory())
WRAP(List *, RelationGetIndexList, (Relation table), (table),
	 out_of_memory())
WRAP(IndexInfo *, BuildIndexInfo, (Relation index), (index), out_of_memory())
WRAP(ParallelContext *, CreateParallelContext,
	 (const char *library, const char *entry, int nworkers),
	 (library, entry, nworkers), out_of_memory())
