/*
 * inspect.h
 *		The contents of an index, and advice on it.
 */
#ifndef IVFPQ_INSPECT_H
#define IVFPQ_INSPECT_H

#include "utils/relcache.h"

#include "am/common/model.h"
#include "page/page.h"

/* The result of IvfpqInspect. */
typedef struct IvfpqInspection
{
	IvfpqMetaData meta;
	IvfpqListTotals totals;
	int64		pending;
	bool		has_copies;		/* many rows are copies of few vectors */
	bool		has_worker;		/* has rows to train on or to move into lists,
								 * and a background worker that does so now or
								 * next */
	char	   *advice;			/* a sentence, or NULL if nothing should be
								 * done */
} IvfpqInspection;

extern void IvfpqInspect(Relation heap, Relation index,
						 IvfpqInspection *inspection);
extern void IvfpqInitInspect(void);

#endif							/* IVFPQ_INSPECT_H */
