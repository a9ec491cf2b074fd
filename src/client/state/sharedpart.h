/*
 * sharedpart.h
 *		Parts of the main shared memory, while the library is preloaded
 *		(sharedpart.c).
 */
#ifndef IVFPQ_SHAREDPART_H
#define IVFPQ_SHAREDPART_H

#include "storage/lwlock.h"

typedef struct IvfpqSharedPart
{
	const char *name;			/* of the memory and of its lock's tranche */
	Size		size;
	void	  **address;		/* where each process finds it */
	/* called once, when all of it is zero; the lock is the part's */
	void		(*init) (void *memory, LWLock *lock);
} IvfpqSharedPart;

extern void IvfpqShare(const IvfpqSharedPart *part);

#endif							/* IVFPQ_SHAREDPART_H */
