/*
 * metapage.h
 *		The metapage, and the directory of lists.
 *
 * Functions that take a Page, or return a pointer into a page, leave locking
 * to the caller.  All other functions lock one page at a time, return with no
 * lock or pin, and must be called with no lock on a page.  If they find
 * damage, they raise an error.
 */
#ifndef IVFPQ_METAPAGE_H
#define IVFPQ_METAPAGE_H

#include "utils/rel.h"

#include "page/layout.h"

/* the contents of the metapage, made and laid out in memory */
extern void IvfpqMetaInit(IvfpqMetaData *meta, int metric, int dims,
						  const IvfpqKeyForm *keys);
extern BlockNumber IvfpqMetaPlace(IvfpqMetaData *meta, BlockNumber first);
extern BlockNumber IvfpqModelPages(const IvfpqMetaData *meta);
extern bool IvfpqIsFixedPage(const IvfpqMetaData *meta, BlockNumber blkno);
extern bool IvfpqMetaHasKeys(const IvfpqMetaData *meta,
							 const IvfpqKeyForm *keys);
extern bool IvfpqMetaIsInRange(const IvfpqMetaData *meta);

/* the metapage: creating, reading and changing it */
extern void IvfpqMetaCreate(Relation index, ForkNumber fork,
							const IvfpqMetaData *meta);
extern void IvfpqMetaRewrite(Relation index, const IvfpqMetaData *meta);
extern IvfpqMetaData *IvfpqMetaGet(Relation index, Page page);
extern void IvfpqMetaRead(Relation index, IvfpqMetaData *meta);
extern bool IvfpqIsOutdated(Relation index);
extern bool IvfpqMetaCalibrate(Relation index, const IvfpqMetaData *meta);
extern void IvfpqMetaSetRecall(Relation index, uint64 build_id,
							   const IvfpqFoundRecall *measured);

/* the directory, in which each list begins */
extern BlockNumber IvfpqDirectoryPage(const IvfpqMetaData *meta, uint32 list);
extern BlockNumber IvfpqDirectoryPages(const IvfpqMetaData *meta);
extern IvfpqDirEntry *IvfpqDirEntryGet(Page page, uint32 list);
extern void IvfpqDirEntryRead(Relation index, const IvfpqMetaData *meta,
							  uint32 list, IvfpqDirEntry *entry);
extern void IvfpqDirEntriesRead(Relation index, const IvfpqMetaData *meta,
								const uint64 *lists, int n,
								IvfpqDirEntry *entries);
extern bool IvfpqDirectoryHasVersion(Relation index,
									 const IvfpqMetaData *meta);
extern uint64 IvfpqDirectoryVersion(Relation index,
									const IvfpqMetaData *meta);

#endif							/* IVFPQ_METAPAGE_H */
