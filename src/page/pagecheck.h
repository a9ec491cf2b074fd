/*
 * pagecheck.h
 *		Looking for damage.
 *
 * Damage is reported through a callback, never raised, so that a check goes on
 * after it.  A state that an insert or VACUUM at work may be in is not damage.
 */
#ifndef IVFPQ_PAGECHECK_H
#define IVFPQ_PAGECHECK_H

#include "page/page.h"

/* Where the checker found a row. */
typedef enum IvfpqPlace
{
	IVFPQ_PENDING,
	IVFPQ_PRIMARY_POSTING,
	IVFPQ_SECONDARY_POSTING,
	IVFPQ_NO_RECORD				/* a posting whose refine record is another
								 * row's, or free */
} IvfpqPlace;

/* A pending row or a posting that is not dead. */
typedef struct IvfpqFound
{
	ItemPointerData tid;
	uint16		place;			/* IvfpqPlace */
	ItemPointerData refine;		/* record of a posting that has one */
	uint64		keys;			/* IvfpqKeyAbbrevsDigest, of a posting with
								 * keys */
} IvfpqFound;

/* The caller sets relations and callbacks; all else is zero at first. */
typedef struct IvfpqChecker
{
	Relation	index;
	Relation	heap;			/* TIDs must lie within it */
	void	   *arg;			/* for the callbacks */

	/* an error, or a warning; list may be IVFPQ_NO_LIST */
	void		(*report) (void *arg, bool error, BlockNumber blkno,
						   uint32 list, const char *problem);
	/* rows and postings that were found */
	void		(*take) (void *arg, const IvfpqFound *found, int64 nfound);
	/* forget all that was taken: it comes again */
	void		(*forget) (void *arg);
	/* a refine page with n slots, pages ascending, after all postings */
	void		(*records) (void *arg, BlockNumber blkno, Page page, int n);

	IvfpqMetaData meta;
	IvfpqLayout layout;
	BlockNumber nblocks;		/* of the index when the check began */
	BlockNumber heap_blocks;	/* at least */
	BufferAccessStrategy strategy;
	char	   *page;			/* [BLCKSZ] copy of a page */
	BlockNumber cached;			/* that page, while a chain is followed */
	char		message[256];	/* why a page cannot be read */
	char	   *body;			/* [body_bytes] block gathered from parts */
	struct IvfpqReading *reading;	/* of a chain, or NULL */
	uint8	   *reached;		/* a bit for every slot that a chain reaches */
	struct IvfpqLeftover *leftovers;	/* slots and pages not reached */
	int64		nleftovers;
	int64		max_leftovers;
} IvfpqChecker;

/* in this order; without a sound metapage nothing else can be checked */
extern bool IvfpqCheckMeta(IvfpqChecker *checker, int metric);
extern void IvfpqCheckModel(IvfpqChecker *checker);
extern void IvfpqCheckPending(IvfpqChecker *checker, bool silent);
extern bool IvfpqCheckList(IvfpqChecker *checker, uint32 list, bool silent);
extern void IvfpqCheckSlabs(IvfpqChecker *checker);
extern void IvfpqCheckRecordChain(IvfpqChecker *checker);

#endif							/* IVFPQ_PAGECHECK_H */
