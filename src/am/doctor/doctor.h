/*
 * doctor.h
 *		gpuvec_doctor: what is found, and the files that find it (doctor.c).
 */
#ifndef IVFPQ_DOCTOR_H
#define IVFPQ_DOCTOR_H

#include "funcapi.h"
#include "nodes/pathnodes.h"
#include "nodes/plannodes.h"

#include "client/client.h"

/* Rows of the result. */
typedef struct IvfpqFindings
{
	ReturnSetInfo *result;
	int			n;				/* so far */
} IvfpqFindings;

/* doctor.c; advice may be NULL */
extern void IvfpqFind(IvfpqFindings *findings, const char *subject,
					  const char *state, const char *advice);
extern char *IvfpqRelationName(Oid relid);

/* installation.c: what holds for all indexes */
extern void IvfpqFindVersions(IvfpqFindings *findings);
extern void IvfpqFindServer(IvfpqFindings *findings,
							const IvfpqServerStatus *status);
extern const char *IvfpqMoreMemory(const IvfpqServerStatus *status);
extern void IvfpqFindMachine(IvfpqFindings *findings,
							 const IvfpqServerStatus *status);

/* contradictions.c: settings that do not go together */
extern void IvfpqFindContradictions(IvfpqFindings *findings,
									const IvfpqServerStatus *status);

/* indexes.c: each index of this database */
extern void IvfpqFindIndexes(IvfpqFindings *findings,
							 const IvfpqServerStatus *status);

/* Why something is not as it should be, and what to do about it. */
typedef struct IvfpqReason
{
	char	   *state;			/* NULL: there is no reason */
	char	   *advice;			/* or NULL */
} IvfpqReason;

/* order.c: what keeps a table's index from bringing a statement's order */
extern char *IvfpqIndexColumn(const IndexOptInfo *info, int column);
extern Node *IvfpqInColumnsOf(PlannerInfo *root, const RelOptInfo *rel,
							  Node *expr);
extern bool IvfpqIsOrderedBy(PlannerInfo *root, const RelOptInfo *rel,
							 IndexOptInfo *info);
extern bool IvfpqIsNoSearch(const PlannerInfo *root, const RelOptInfo *rel,
							IndexOptInfo *info);
extern IvfpqReason IvfpqWhyNoOrder(PlannerInfo *root, RelOptInfo *rel,
								   IndexOptInfo *info, bool has_path);
extern IvfpqReason IvfpqWhyNoIndex(PlannerInfo *root, RelOptInfo *rel);
extern OpExpr *IvfpqOrderedDistance(PlannerInfo *root, RelOptInfo *rel,
									Var **column, char **class);

/*
 * foreign.c: what keeps a foreign table's server from returning rows in that
 * order
 */
extern bool IvfpqIsOrderSent(const PlannerInfo *root, const RelOptInfo *rel);
extern IvfpqReason IvfpqWhyNotSent(Oid table, Oid operator);

/* keyreasons.c: why conditions on keys are filters, or joins */
extern void IvfpqWhyFilters(PlannerInfo *root, IndexOptInfo *info,
							const IndexPath *path, List **reasons);
extern void IvfpqWhyJoins(PlannerInfo *root, IndexOptInfo *info,
						  List **reasons);

/* keyrewrite.c: conditions that keys answer, in place of others */
extern Expr *IvfpqRewriteForKey(IndexOptInfo *info, int column, Expr *clause,
								bool *beside);

/* planscans.c: how a finished plan reads a table */
extern Plan *IvfpqScanInPlan(const PlannedStmt *stmt, Oid table, Oid index);
extern bool IvfpqIsSortedInPlan(const PlannedStmt *stmt, Oid table);
extern char *IvfpqNameScan(const Plan *plan);

#endif							/* IVFPQ_DOCTOR_H */
