/*
 * metapage.c
 *		The metapage, block 0, and the directory, in which lists begin.
 *
 * The metapage says what an index is and where everything else begins.
 * Readers copy its contents under a share lock.  They may then use without a
 * lock whatever does not change in a trained index (format.h).
 *
 * The directory has an entry for each list, IVFPQ_ENTRIES_PER_PAGE of them on
 * a page.  A directory page is share-locked while entries are copied, and
 * exclusively locked during each change of a list whose entry is on the page.
 *
 * A directory has a version, a number by which callers see whether the
 * directory has changed since their last call.  Every change of a directory
 * page is WAL-logged, and leaves the LSN of the WAL record on the page, under
 * the page's exclusive lock.  LSNs ascend, so if all pages have the same LSNs
 * as before, the directory has not changed.  Redo on a standby leaves the same
 * LSNs.
 */
#include "postgres.h"

#include <math.h>

#include "access/xloginsert.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "page/array.h"
#include "page/bufcache.h"
#include "page/metapage.h"
#include "page/page.h"

/*
 * A directory with more pages than this has no version, because to look at all
 * pages would cost more than a version saves.  For the same reason a single
 * search computes the version only if it reads many lists for each page
 * (am/search/remote.c).
 */
#define MOST_PAGES		128

/* Initializes the contents for an untrained index, with a random build_id. */
void
IvfpqMetaInit(IvfpqMetaData *meta, int metric, int dims,
			  const IvfpqKeyForm *keys)
{
	memset(meta, 0, sizeof(*meta));
	meta->magic = IVFPQ_MAGIC;
	meta->version = IVFPQ_VERSION;
	meta->metric = metric;
	meta->code_bits = 4;
	meta->build_id = pg_prng_uint64(&pg_global_prng_state);
	meta->dims = dims;
	meta->dims_flags = IVFPQ_DIMS_CHECKED;
	meta->lists_per_row = 1;
	meta->scale = 1.0f;
	meta->mean = InvalidBlockNumber;
	meta->codebooks = InvalidBlockNumber;
	meta->parents = InvalidBlockNumber;
	meta->parent_offsets = InvalidBlockNumber;
	meta->centroids = InvalidBlockNumber;
	meta->codes = InvalidBlockNumber;
	meta->directory = InvalidBlockNumber;
	meta->rotation = InvalidBlockNumber;
	meta->pending_head = InvalidBlockNumber;
	meta->pending_tail = InvalidBlockNumber;
	meta->pending_head_seq = 1;
	meta->refine_head = InvalidBlockNumber;
	for (int k = 0; k < keys->nkeys; k++)
	{
		meta->key_kinds[k] = keys->kind[k];
		meta->key_widths[k] = keys->width[k];
	}
}

/* Returns the number of pages that an array of floats takes. */
static BlockNumber
array_pages(int64 nvalues)
{
	return (BlockNumber) ((nvalues + IVFPQ_FLOATS_PER_PAGE - 1) /
						  IVFPQ_FLOATS_PER_PAGE);
}

/*
 * Assigns pages to the arrays and the directory that training writes, one
 * after the other from page `first` on.  Returns the page after the directory.
 */
BlockNumber
IvfpqMetaPlace(IvfpqMetaData *meta, BlockNumber first)
{
	int64		dims = meta->dims;

	meta->mean = first;
	meta->codebooks = meta->mean + array_pages(dims);
	meta->parents = meta->codebooks + array_pages(16 * dims);
	meta->parent_offsets = meta->parents + array_pages(meta->nparents * dims);
	meta->centroids = meta->parent_offsets + array_pages(meta->nparents + 1);
	meta->codes = meta->centroids + array_pages(meta->nlists * dims);
	meta->directory = meta->codes + array_pages(IvfpqCodeBlocks(meta) *
												IvfpqCodeBlockFloats(meta));
	if (meta->rotated)
	{
		meta->rotation = meta->directory;
		meta->directory += array_pages(dims * dims);
	}
	return IvfpqDirectoryPage(meta, meta->nlists - 1) + 1;
}

/* Returns the number of pages of a trained index's arrays and directory. */
BlockNumber
IvfpqModelPages(const IvfpqMetaData *meta)
{
	return IvfpqDirectoryPage(meta, meta->nlists - 1) + 1 - meta->mean;
}

/*
 * Returns whether the page is the metapage or a page of the arrays or the
 * directory.  Of all other pages, only the refine pages of a trained index
 * never change their kind.
 */
bool
IvfpqIsFixedPage(const IvfpqMetaData *meta, BlockNumber blkno)
{
	if (blkno == IVFPQ_METAPAGE)
		return true;
	return meta->nlists > 0 && blkno >= meta->mean &&
		blkno - meta->mean < IvfpqModelPages(meta);
}

/* Returns whether the index has exactly these keys. */
bool
IvfpqMetaHasKeys(const IvfpqMetaData *meta, const IvfpqKeyForm *keys)
{
	IvfpqKeyForm form;

	if (!IvfpqKeyFormGet(meta, &form) || form.nkeys != keys->nkeys)
		return false;
	return memcmp(form.kind, keys->kind, form.nkeys) == 0 &&
		memcmp(form.width, keys->width, form.nkeys) == 0;
}

/*
 * Returns whether all values on which readers rely are in range.  The caller
 * has checked the version.
 */
bool
IvfpqMetaIsInRange(const IvfpqMetaData *meta)
{
	const IvfpqTarget *targets = meta->targets[0];
	bool		are_targets = true;
	IvfpqKeyForm keys;

	for (int i = 0; i < IVFPQ_DEPTHS * IVFPQ_TARGETS; i++)
		are_targets &= targets[i].probes >= 0 && targets[i].candidates >= 0;
	if (meta->dims < 0 || meta->dims > IVFPQ_MAX_DIMS ||
		meta->nlists < 0 || meta->nlists > IVFPQ_MAX_LISTS ||
		meta->code_bits != 4 || meta->lists_per_row < 1 ||
		meta->lists_per_row > 2 ||
		meta->refine < IVFPQ_REFINE_NONE ||
		meta->refine > IVFPQ_REFINE_HALF ||
		meta->rotated < 0 || meta->rotated > 1 ||
		meta->rows_at_training < 0 || meta->rows_at_calibration < 0 ||
		meta->calibrated_depths < 0 ||
		meta->calibrated_depths > IVFPQ_DEPTHS ||
		(meta->rows_at_calibration > 0 && meta->calibrated_depths == 0) ||
		meta->calibrated_for < IVFPQ_FOR_ROWS ||
		meta->calibrated_for > IVFPQ_FOR_QUERIES ||
		!are_targets || !IvfpqKeyFormGet(meta, &keys))
		return false;
	return meta->nlists == 0 ||
		(meta->dims > 0 && meta->nparents >= 1 &&
		 meta->nparents <= meta->nlists && meta->pq_dim >= 1 &&
		 meta->pq_dim <= meta->dims && meta->pq_dim <= IvfpqMaxPqDim(&keys) &&
		 (meta->refine == IVFPQ_REFINE_NONE ||
		  meta->dims <= IvfpqRecordMaxDims(meta->refine)) &&
		 (!meta->rotated || meta->dims <= IVFPQ_MAX_ROTATED) &&
		 isfinite(meta->scale) && meta->scale > 0);
}

/*
 * Adds the metapage to an empty fork.  The metapage of the main fork is
 * WAL-logged later, with the rest of the build.  The metapage of an init fork
 * is logged here, because no other WAL record ever covers it.
 */
void
IvfpqMetaCreate(Relation index, ForkNumber fork, const IvfpqMetaData *meta)
{
	Buffer		buf;

	buf = ReadBufferExtended(index, fork, P_NEW, RBM_ZERO_AND_LOCK, NULL);
	if (BufferGetBlockNumber(buf) != IVFPQ_METAPAGE)
		elog(ERROR, "metapage of index \"%s\" would not be block 0",
			 RelationGetRelationName(index));

	START_CRIT_SECTION();
	IvfpqPageInit(BufferGetPage(buf), IVFPQ_KIND_META);
	memcpy(PageGetContents(BufferGetPage(buf)), meta, sizeof(*meta));
	MarkBufferDirty(buf);
	if (fork == INIT_FORKNUM)
		log_newpage_buffer(buf, true);
	END_CRIT_SECTION();
	UnlockReleaseBuffer(buf);
}

/* Replaces the contents during a build, which logs all pages at its end. */
void
IvfpqMetaRewrite(Relation index, const IvfpqMetaData *meta)
{
	Buffer		buf;

	buf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_EXCLUSIVE,
						IVFPQ_KIND_META, NULL);
	memcpy(PageGetContents(BufferGetPage(buf)), meta, sizeof(*meta));
	MarkBufferDirty(buf);
	UnlockReleaseBuffer(buf);
}

/*
 * Returns the contents of a metapage that the caller has locked, or of a copy
 * of the page in a WAL record under construction.  Raises an error if the
 * contents are damaged or have another version.
 */
IvfpqMetaData *
IvfpqMetaGet(Relation index, Page page)
{
	IvfpqMetaData *meta = (IvfpqMetaData *) PageGetContents(page);

	if (meta->magic != IVFPQ_MAGIC)
		IvfpqCorrupted(index, IVFPQ_METAPAGE, "bad magic number 0x%08X",
					   meta->magic);
	if (meta->version != IVFPQ_VERSION)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" has format version %u, but this version of gpuvec supports only %d",
						RelationGetRelationName(index), meta->version,
						IVFPQ_VERSION),
				 meta->version > IVFPQ_VERSION ?
				 errhint("Install a newer version of gpuvec, or rebuild the index with REINDEX INDEX %s.",
						 quote_identifier(RelationGetRelationName(index))) :
				 errhint("Rebuild the index with REINDEX INDEX %s.",
						 quote_identifier(RelationGetRelationName(index)))));
	if (!IvfpqMetaIsInRange(meta))
		IvfpqCorrupted(index, IVFPQ_METAPAGE, "its parameters are out of range");
	return meta;
}

/* Copies the metapage's contents to *meta under a share lock. */
void
IvfpqMetaRead(Relation index, IvfpqMetaData *meta)
{
	Buffer		buf;

	buf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_SHARE,
						IVFPQ_KIND_META, NULL);
	*meta = *IvfpqMetaGet(index, BufferGetPage(buf));
	UnlockReleaseBuffer(buf);
}

/* Returns whether the index has an older format than IVFPQ_VERSION. */
bool
IvfpqIsOutdated(Relation index)
{
	Buffer		buf;
	const IvfpqMetaData *meta;
	bool		result;

	buf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_SHARE,
						IVFPQ_KIND_META, NULL);
	meta = (const IvfpqMetaData *) PageGetContents(BufferGetPage(buf));
	result = meta->magic == IVFPQ_MAGIC && meta->version < IVFPQ_VERSION;
	UnlockReleaseBuffer(buf);
	return result;
}

/*
 * Replaces the results of calibration by those in *meta.  If the index was
 * trained again since *meta was read, changes nothing and returns false.
 * Writes one WAL record, which covers the metapage only.
 */
bool
IvfpqMetaCalibrate(Relation index, const IvfpqMetaData *meta)
{
	Buffer		buf;
	GenericXLogState *state;
	IvfpqMetaData *now;
	bool		same;

	buf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_EXCLUSIVE,
						IVFPQ_KIND_META, NULL);
	state = GenericXLogStart(index);
	now = IvfpqMetaGet(index, GenericXLogRegisterBuffer(state, buf, 0));
	same = now->build_id == meta->build_id;
	if (same)
	{
		memcpy(now->targets, meta->targets, sizeof(now->targets));
		now->calibrated_depths = meta->calibrated_depths;
		now->calibrated_for = meta->calibrated_for;
		now->rows_at_calibration = meta->rows_at_calibration;
		now->calibration_queries = meta->calibration_queries;
		now->coarse_fraction = meta->coarse_fraction;
		now->codes_unused = meta->codes_unused;
		memset(&now->measured, 0, sizeof(now->measured));
		GenericXLogFinish(state);
	}
	else
		GenericXLogAbort(state);
	UnlockReleaseBuffer(buf);
	return same;
}

/*
 * Stores the recall measured, unless the index was trained anew meanwhile.
 * Writes one WAL record, which covers the metapage only.
 */
void
IvfpqMetaSetRecall(Relation index, uint64 build_id,
				   const IvfpqFoundRecall *measured)
{
	GenericXLogState *state;
	IvfpqMetaData *meta;
	Buffer		buf;

	buf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_EXCLUSIVE,
						IVFPQ_KIND_META, NULL);
	state = GenericXLogStart(index);
	meta = IvfpqMetaGet(index, GenericXLogRegisterBuffer(state, buf, 0));
	if (meta->build_id == build_id)
	{
		meta->measured = *measured;
		GenericXLogFinish(state);
	}
	else
		GenericXLogAbort(state);
	UnlockReleaseBuffer(buf);
}

/* Returns the directory page that has a list's entry. */
BlockNumber
IvfpqDirectoryPage(const IvfpqMetaData *meta, uint32 list)
{
	return meta->directory + list / IVFPQ_ENTRIES_PER_PAGE;
}

/* Returns the number of directory pages. */
BlockNumber
IvfpqDirectoryPages(const IvfpqMetaData *meta)
{
	return (meta->nlists + IVFPQ_ENTRIES_PER_PAGE - 1) /
		IVFPQ_ENTRIES_PER_PAGE;
}

/* Returns a list's entry on its directory page. */
IvfpqDirEntry *
IvfpqDirEntryGet(Page page, uint32 list)
{
	return (IvfpqDirEntry *) PageGetContents(page) +
		list % IVFPQ_ENTRIES_PER_PAGE;
}

/*
 * Copies a list's entry from its directory page, which the caller has locked.
 * Raises an error for impossible counts, because searches add the counts up.
 */
static void
copy_entry(Relation index, Buffer buf, uint32 list, IvfpqDirEntry *entry)
{
	*entry = *IvfpqDirEntryGet(BufferGetPage(buf), list);
	if (entry->ndead > entry->nitems)
		IvfpqCorrupted(index, BufferGetBlockNumber(buf),
					   "list %u has %u dead postings of %u", list,
					   entry->ndead, entry->nitems);
}

/* Copies a list's entry to *entry, under a share lock. */
void
IvfpqDirEntryRead(Relation index, const IvfpqMetaData *meta, uint32 list,
				  IvfpqDirEntry *entry)
{
	Buffer		buf;

	buf = IvfpqReadPage(index, IvfpqDirectoryPage(meta, list),
						BUFFER_LOCK_SHARE, IVFPQ_KIND_DIRECTORY, NULL);
	copy_entry(index, buf, list, entry);
	UnlockReleaseBuffer(buf);
}

/*
 * Copies the entries of lists [n] to entries [n].  Locks each directory page
 * only once, because the nearest lists often have the same parent, and their
 * entries are then on the same page.  Locks one page at a time, because other
 * searches need the same pages.
 */
void
IvfpqDirEntriesRead(Relation index, const IvfpqMetaData *meta,
					const uint64 *lists, int n, IvfpqDirEntry *entries)
{
	uint64	   *places = palloc_extended(Max(n, 1) * sizeof(uint64),
										 MCXT_ALLOC_HUGE);
	BlockNumber blkno = InvalidBlockNumber;
	Buffer		buf = InvalidBuffer;
	IvfpqPrefetch prefetch;

	for (int i = 0; i < n; i++)
		places[i] = (uint64) IvfpqDirectoryPage(meta, (uint32) lists[i]) << 32 |
			(uint32) i;
	IvfpqSortNumbers(places, n);
	IvfpqPrefetchBegin(&prefetch, index, places, n, 32);
	for (int j = 0; j < n; j++)
	{
		BlockNumber wanted = (BlockNumber) (places[j] >> 32);
		uint32		i = (uint32) places[j];

		if (wanted != blkno)
		{
			if (BufferIsValid(buf))
				UnlockReleaseBuffer(buf);
			CHECK_FOR_INTERRUPTS();
			IvfpqPrefetchTo(&prefetch, wanted);
			buf = IvfpqReadPage(index, wanted, BUFFER_LOCK_SHARE,
								IVFPQ_KIND_DIRECTORY, NULL);
			blkno = wanted;
		}
		copy_entry(index, buf, (uint32) lists[i], &entries[i]);
	}
	if (BufferIsValid(buf))
		UnlockReleaseBuffer(buf);
	IvfpqPrefetchEnd(&prefetch);
	pfree(places);
}

/*
 * Returns whether the directory has a version.  It has none if it has too many
 * pages, or if changes are not WAL-logged and so leave no LSN.
 */
bool
IvfpqDirectoryHasVersion(Relation index, const IvfpqMetaData *meta)
{
	return RelationNeedsWAL(index) && IvfpqDirectoryPages(meta) <= MOST_PAGES;
}

/*
 * Returns the version of a trained index's directory, which is computed from
 * the LSNs of the directory's pages.  Share-locks the pages one at a time, in
 * order.  Returns 0 if the directory has no version.
 *
 * If two calls return the same version, then no list's entry changed between
 * the end of the first call and the start of the second.
 */
uint64
IvfpqDirectoryVersion(Relation index, const IvfpqMetaData *meta)
{
	BlockNumber npages = IvfpqDirectoryPages(meta);
	uint64		version = 0;

	if (!IvfpqDirectoryHasVersion(index, meta))
		return 0;
	for (BlockNumber i = 0; i < npages; i++)
	{
		Buffer		buf = IvfpqReadPage(index, meta->directory + i,
										BUFFER_LOCK_SHARE,
										IVFPQ_KIND_DIRECTORY, NULL);

		/*
		 * Different versions mixed with the same LSN give different results,
		 * and so do different LSNs mixed with the same version.  Each bit of
		 * the result depends on all bits of both.
		 */
		version ^= PageGetLSN(BufferGetPage(buf));
		version = (version ^ version >> 33) * UINT64CONST(0xFF51AFD7ED558CCD);
		version = (version ^ version >> 33) * UINT64CONST(0xC4CEB9FE1A85EC53);
		version ^= version >> 33;
		UnlockReleaseBuffer(buf);
		CHECK_FOR_INTERRUPTS();
	}
	return version != 0 ? version : 1;
}
