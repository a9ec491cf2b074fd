/*
 * am.h
 *		The access method as PostgreSQL meets it: what the module's entry, the
 *		handler and the planner's hook have of each other.
 */
#ifndef IVFPQ_AM_H
#define IVFPQ_AM_H

#include "access/amapi.h"

/* unread.c */
extern void IvfpqInitPlanner(void);

/* validate.c */
extern bool ivfpqvalidate(Oid opclassoid);
extern void ivfpqadjustmembers(Oid opfamilyoid, Oid opclassoid,
							   List *operators, List *functions);

#endif							/* IVFPQ_AM_H */
