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

/* Rows of the result. */
typedef struct IvfpqFindings
{
	ReturnSetInfo *result;
	int			n;				/* so far */
} IvfpqFindings;

/* Why something is not as it should be, and what to do about it. */
typedef struct IvfpqReason
{
	char	   *state;			/* NULL: there is no reason */
	char	   *advice;			/* or NULL */
} IvfpqReason;

/* doctor.c; advice may be NULL */
extern void IvfpqFind(IvfpqFindings *findings, const char *subject,
					  const char *state, const char *advice);
extern char *IvfpqRelationName(Oid relid);

/* keyrewrite.c */
extern Expr *IvfpqRewriteForKey(IndexOptInfo *info, int column, Expr *clause,
								bool *beside);

/* doctorreason.c */
extern bool IvfpqIsNoSearch(const PlannerInfo *root, const RelOptInfo *rel,
							IndexOptInfo *info);
extern bool IvfpqIsOrderedBy(PlannerInfo *root, const RelOptInfo *rel,
							 IndexOptInfo *info);
extern IvfpqReason IvfpqWhyNoOrder(PlannerInfo *root, RelOptInfo *rel,
								   IndexOptInfo *info, bool has_path);
extern OpExpr *IvfpqOrderedDistance(PlannerInfo *root, RelOptInfo *rel,
									Var **column, char **class);
extern IvfpqReason IvfpqWhyNoIndex(PlannerInfo *root, RelOptInfo *rel);
extern void IvfpqWhyFilters(PlannerInfo *root, IndexOptInfo *info,
							const IndexPath *path, List **reasons);
extern void IvfpqWhyJoins(PlannerInfo *root, IndexOptInfo *info,
						  List **reasons);

#endif							/* IVFPQ_DOCTOR_H */
