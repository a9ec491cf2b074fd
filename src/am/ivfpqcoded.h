/*
 * ivfpqcoded.h
 *		Centroids in 8 bits, kept by a backend; see ivfpqcoded.c.
 */
#ifndef IVFPQCODED_H
#define IVFPQCODED_H

#include "am/ivfpq.h"

typedef struct IvfpqCoded
{
	struct IvfpqCoded *next;
	Oid			index;
	uint64		build_id;
	int			nlists;
	bool		searched;		/* before */
	Size		bytes;			/* with what follows */
	char	   *memory;			/* of the arrays, or NULL: not coded yet */
	GvCoded		lists;			/* [nlists] */
	bool	   *is_coded;		/* [nparents] are its lists coded? */
} IvfpqCoded;

extern IvfpqCoded *IvfpqCodedGet(Relation index, const IvfpqMetaData *meta);
extern GvCoded IvfpqCodedParent(Relation index, const IvfpqModel *model,
								IvfpqCoded *coded, int parent);

#endif							/* IVFPQCODED_H */
