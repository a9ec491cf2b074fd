/*
 * identity.h
 *		Lists and opens indexes, checks rights on them, and acts as the owner
 *		of an index's table (identity.c).
 */
#ifndef IVFPQ_IDENTITY_H
#define IVFPQ_IDENTITY_H

#include "nodes/execnodes.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"

/* State saved by IvfpqActAsOwner, to be restored by IvfpqActAsCaller. */
typedef struct IvfpqIdentity
{
	Oid			userid;
	int			sec_context;
	int			guc_level;
	ErrorContextCallback context;
} IvfpqIdentity;

extern List *IvfpqListIndexes(bool temporary);
extern Relation IvfpqOpenIndex(Oid relid, LOCKMODE lockmode,
							   const char *hint);
extern Relation IvfpqOpenIndexTable(Oid relid, LOCKMODE lockmode,
									const char *hint, Relation *table);
extern Relation IvfpqOpenToChange(Oid relid,
								  void (*check) (Relation table,
												 Relation index),
								  Relation *table);

/* These functions raise an error if the index or the user fails a check. */
extern void IvfpqCheckInspect(Relation index);
extern void IvfpqCheckSelect(Relation table, Relation index, int n);
extern void IvfpqCheckBuilt(Relation index);
extern void IvfpqCheckValid(Relation index);
extern bool IvfpqIsWhole(Relation index);
extern void IvfpqCheckActing(Relation table, Relation index);
extern void IvfpqCheckMeasurable(Relation table, Relation index,
								 const char *message, const char *hint);

extern void IvfpqActAsOwner(IvfpqIdentity *caller, Relation table);
extern void IvfpqActAsCaller(const IvfpqIdentity *caller);
extern void IvfpqRenewExpressions(IndexInfo *indexInfo, Relation index);
extern IndexInfo *IvfpqIndexInfo(Relation index);
extern bool IvfpqIsInterpreted(Relation index, bool predicate);
extern bool IvfpqIsParallelSafe(List *expressions, List *predicate);
extern bool IvfpqMayAct(Relation table, Relation index);

#endif							/* IVFPQ_IDENTITY_H */
