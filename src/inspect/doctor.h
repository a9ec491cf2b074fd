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

/* doctor.c: what holds for all indexes */

/* doctor.c: settings that do not go together */

/* doctor.c: each index of this database */

/* Why something is not as it should be, and what to do about it. */
typedef struct IvfpqReason
{
	char	   *state;			/* NULL: there is no reason */
	char	   *advice;			/* or NULL */
} IvfpqReason;

/* doctorquery.c: what keeps a table's index from bringing a statement's order */

/*
 * doctorquery.c: what keeps a foreign table's server from returning rows in that
 * order
 */

/* doctorquery.c: why conditions on keys are filters, or joins */

/* keyrewrite.c: conditions that keys answer, in place of others */
extern Expr *IvfpqRewriteForKey(IndexOptInfo *info, int column, Expr *clause,
								bool *beside);

/* doctorquery.c: how a finished plan reads a table */

#endif							/* IVFPQ_DOCTOR_H */
