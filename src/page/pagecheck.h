/*
 * pagecheck.h
 *		Looking for damage: the fixed pages and slabs (pagecheck.c), lists and the
 *		pending list (pagecheck.c), refine records (pagecheck.c).
 */
#ifndef IVFPQ_PAGECHECK_H
#define IVFPQ_PAGECHECK_H

#include "page/page.h"

/*
 * pagecheck.c, pagecheck.c, pagecheck.c: looking for damage.  Damage is reported
 * through a callback, never raised, so that a check goes on behind it; what an
 * insert or VACUUM may be doing at the moment is not damage.
 */
typedef struct IvfpqFound
{
	ItemPointerData tid;
	uint16		place;			/* IvfpqPlace */
	ItemPointerData refine;		/* record of a posting that has one */
	uint64		keys;			/* IvfpqKeyAbbrevsDigest, of a posting with
								 * keys */
} IvfpqFound;

typedef enum IvfpqPlace
{
	IVFPQ_PENDING,
	IVFPQ_PRIMARY_POSTING,
	IVFPQ_SECONDARY_POSTING,
	IVFPQ_NO_RECORD				/* a posting, but its refine record is not its */
} IvfpqPlace;

typedef struct IvfpqChecker
{
	Relation	index;
	Relation	heap;			/* TIDs must lie within it */
	void	   *arg;			/* for the callbacks */

	/* list may be IVFPQ_NO_LIST, not error is a warning */
	void		(*report) (void *arg, bool error, BlockNumber blkno,
						   uint32 list, const char *problem);
	/* entries that are not dead */
	void		(*take) (void *arg, const IvfpqFound *found, int64 nfound);
	/* forget what was taken: it comes again */
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
	char	   *body;			/* [body_bytes] block gathered from parts */
	uint8	   *reached;		/* a bit for every slot that a chain reaches */
	struct IvfpqLeftover *leftovers;	/* slots and pages not reached */
	int64		nleftovers;
	int64		max_leftovers;
	char		message[256];	/* why a page cannot be read */
} IvfpqChecker;

extern bool IvfpqCheckMeta(IvfpqChecker *checker, int metric);
extern void IvfpqCheckModel(IvfpqChecker *checker);
extern void IvfpqCheckSlabs(IvfpqChecker *checker);

extern bool IvfpqCheckList(IvfpqChecker *checker, uint32 list, bool silent);
extern void IvfpqCheckPending(IvfpqChecker *checker, bool silent);
extern void IvfpqCheckRecordChain(IvfpqChecker *checker);

#endif							/* IVFPQ_PAGECHECK_H */
