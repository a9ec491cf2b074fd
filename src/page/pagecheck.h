/*
 * pagecheck.h
 *		Looking for damage.
 *
 * Damage is reported through a callback and never raised as an error, so that
 * the check can continue.  A running insert or VACUUM may leave the index in
 * intermediate states, which are not damage.
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
	IVFPQ_NO_RECORD				/* the slot of the posting's record is free or
								 * has the record of another row */
} IvfpqPlace;

/* A pending row or a posting that is not dead. */
typedef struct IvfpqFound
{
	ItemPointerData tid;
	uint16		place;			/* IvfpqPlace */
	ItemPointerData refine;		/* address of a posting's refine record */
	uint64		keys;			/* IvfpqKeyAbbrevsDigest, if there are keys */
} IvfpqFound;

/*
 * State of a check.  The caller sets all before `meta`, and zeroes the rest.
 */
typedef struct IvfpqChecker
{
	Relation	index;
	Relation	heap;			/* table; TIDs must lie within it */
	void	   *arg;			/* first argument of the callbacks */

	/*
	 * reports an error or, if `error` is false, a warning; list may be
	 * IVFPQ_NO_LIST
	 */
	void		(*report) (void *arg, bool error, BlockNumber blkno,
						   uint32 list, const char *problem);
	/* takes rows and postings that were found */
	void		(*take) (void *arg, const IvfpqFound *found, int64 nfound);
	/* discards all rows and postings taken; they will be passed again */
	void		(*forget) (void *arg);

	/*
	 * gets each refine page, with the number n of its slots, in ascending
	 * order of blkno; called after all postings were found
	 */
	void		(*records) (void *arg, BlockNumber blkno, Page page, int n);

	IvfpqMetaData meta;
	IvfpqLayout layout;
	BlockNumber nblocks;		/* size of the index when the check began */
	BlockNumber heap_blocks;	/* the table has at least this many */
	BufferAccessStrategy strategy;
	char	   *page;			/* [BLCKSZ] copy of a page */
	BlockNumber cached;			/* block copied, or InvalidBlockNumber */
	char		message[256];	/* why a page cannot be read */
	char	   *body;			/* [nparts][part_bytes] the parts of a block */
	struct IvfpqReading *reading;	/* reading of a chain, or NULL */
	uint8	   *reached;		/* [nblocks][slots_per_page] bits: a chain
								 * reaches the slot */
	struct IvfpqLeftover *leftovers;	/* slots and pages no chain reaches */
	int64		nleftovers;
	int64		max_leftovers;
} IvfpqChecker;

/* Call these in this order, and stop if IvfpqCheckMeta returns false. */
extern bool IvfpqCheckMeta(IvfpqChecker *checker, int metric);
extern void IvfpqCheckModel(IvfpqChecker *checker);
extern void IvfpqCheckPending(IvfpqChecker *checker, bool silent);
extern bool IvfpqCheckList(IvfpqChecker *checker, uint32 list, bool silent);
extern void IvfpqCheckSlabs(IvfpqChecker *checker);
extern void IvfpqCheckRecordChain(IvfpqChecker *checker);

#endif							/* IVFPQ_PAGECHECK_H */
