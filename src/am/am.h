/*
 * am.h
 *		Callbacks that concern operator classes (validate.c).
 */
#ifndef IVFPQ_AM_H
#define IVFPQ_AM_H

#include "access/amapi.h"

extern bool ivfpqvalidate(Oid opclassoid);
extern void ivfpqadjustmembers(Oid opfamilyoid, Oid opclassoid,
							   List *operators, List *functions);

#endif							/* IVFPQ_AM_H */
