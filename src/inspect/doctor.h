/*
 * doctor.h
 *		gpuvec_doctor: its findings, and the reasons why a statement does not
 *		use an index.
 */
#ifndef IVFPQ_DOCTOR_H
#define IVFPQ_DOCTOR_H

#include "funcapi.h"
#include "nodes/pathnodes.h"
#include "nodes/primnodes.h"

/* A reason why an index or an index condition is not used, and advice. */
typedef struct IvfpqReason
{
	const char *state;			/* NULL if there is no reason */
	const char *advice;			/* NULL if there is no advice */
} IvfpqReason;

/*
 * The clause "left operator right" or, with `any`, "left operator ANY
 * (right)".
 */
typedef struct IvfpqComparison
{
	bool		any;
	Oid			operator;
	Oid			collation;
	Node	   *left;
	Node	   *right;
} IvfpqComparison;

/* doctor.c; advice may be NULL */
extern void IvfpqAddFinding(ReturnSetInfo *result, const char *subject,
							const char *state, const char *advice);
extern char *IvfpqRelationName(Oid relid);

/* keyrewrite.c */
extern bool IvfpqGetComparison(Expr *clause, IvfpqComparison *comparison);
extern Expr *IvfpqRewriteForKey(IndexOptInfo *info, int column, Expr *clause,
								bool *beside);

/* doctorreason.c */
extern bool IvfpqIsNoSearch(const PlannerInfo *root, const RelOptInfo *rel,
							IndexOptInfo *info);
extern bool IvfpqIsOrderedBy(PlannerInfo *root, const RelOptInfo *rel,
							 IndexOptInfo *info);
extern bool IvfpqIsPlainSelect(const Query *parse);
extern bool IvfpqWhyNoOrder(PlannerInfo *root, RelOptInfo *rel,
							IndexOptInfo *info, bool has_path,
							IvfpqReason *why);
extern OpExpr *IvfpqOrderedDistance(PlannerInfo *root, const RelOptInfo *rel,
									Var **column, char **class);
extern List *IvfpqWhyFilters(PlannerInfo *root, IndexOptInfo *info,
							 const IndexPath *path);

#endif							/* IVFPQ_DOCTOR_H */
