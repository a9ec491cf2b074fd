/*
 * metapage.c
 *		The metapage: block 0.
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
#include "page/page.h"
#include "page/refinepage.h"

/*
 * Contents of an untrained index.  A build draws a random build_id; the init
 * fork of an unlogged index keeps 0, which no mirror ever bears.
 */
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

/* Pages of an array of floats. */
static BlockNumber
array_pages(int64 nvalues)
{
	return (BlockNumber) ((nvalues + IVFPQ_FLOATS_PER_PAGE - 1) /
						  IVFPQ_FLOATS_PER_PAGE);
}

/*
 * Lay out what training writes, arrays and directory, one behind the other
 * from page `first` on; returns the page behind them.
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

/* How many pages of a trained index arrays and directory take. */
BlockNumber
IvfpqModelPages(const IvfpqMetaData *meta)
{
	return IvfpqDirectoryPage(meta, meta->nlists - 1) + 1 - meta->mean;
}

/*
 * Is the page the metapage, or one of arrays and directory?  All others are
 * slabs, pending or free.
 */
bool
IvfpqIsFixedPage(const IvfpqMetaData *meta, BlockNumber blkno)
{
	if (blkno == IVFPQ_METAPAGE)
		return true;
	return meta->nlists > 0 && blkno >= meta->mean &&
		blkno - meta->mean < IvfpqModelPages(meta);
}

/* Copy the contents into a page that is locked and, with init, made new. */
static void
write_meta(Buffer buf, const IvfpqMetaData *meta, bool init)
{
	Page		page = BufferGetPage(buf);

	if (init)
		IvfpqPageInit(page, IVFPQ_KIND_META);
	memcpy(PageGetContents(page), meta, sizeof(*meta));
	MarkBufferDirty(buf);
}

/*
 * Add the metapage to an empty fork.  That of the main fork is logged with
 * the rest of the build; that of an init fork at once, because no other
 * record will ever carry it.
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
	write_meta(buf, meta, true);
	if (fork == INIT_FORKNUM)
		log_newpage_buffer(buf, true);
	END_CRIT_SECTION();
	UnlockReleaseBuffer(buf);
}

/* Replace the contents during a build. */
void
IvfpqMetaRewrite(Relation index, const IvfpqMetaData *meta)
{
	Buffer		buf;

	buf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_EXCLUSIVE,
						IVFPQ_KIND_META, NULL);
	write_meta(buf, meta, false);
	UnlockReleaseBuffer(buf);
}

/* Are these the keys of the index? */
bool
IvfpqMetaHasKeys(const IvfpqMetaData *meta, const IvfpqKeyForm *keys)
{
	IvfpqKeyForm form;

	if (!IvfpqKeyFormGet(meta, &form) || form.nkeys != keys->nkeys)
		return false;
	return memcmp(form.kind, keys->kind, form.nkeys) == 0 &&
		memcmp(form.width, keys->width, form.nkeys) == 0;
}

/* Does a scan make sense of all targets [n]? */
static bool
are_targets(const IvfpqTarget *targets, int n)
{
	bool		result = true;

	for (int i = 0; i < n; i++)
		result &= targets[i].probes >= 0 && targets[i].candidates >= 0;
	return result;
}

/* Does every value that readers rely on make sense?  It is of this version. */
bool
IvfpqMetaIsInRange(const IvfpqMetaData *meta)
{
	IvfpqKeyForm keys;

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
		!are_targets(meta->targets[0], IVFPQ_DEPTHS * IVFPQ_TARGETS) ||
		!IvfpqKeyFormGet(meta, &keys))
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

/* The contents of a locked metapage, checked. */
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
				 errmsg("index \"%s\" has format version %u, this gpuvec reads %d",
						RelationGetRelationName(index), meta->version,
						IVFPQ_VERSION),
				 meta->version > IVFPQ_VERSION ?
				 errhint("Install the gpuvec that wrote it, or rebuild it with REINDEX INDEX %s.",
						 quote_identifier(RelationGetRelationName(index))) :
				 errhint("Rebuild it with REINDEX INDEX %s.",
						 quote_identifier(RelationGetRelationName(index)))));
	if (!IvfpqMetaIsInRange(meta))
		IvfpqCorrupted(index, IVFPQ_METAPAGE, "its parameters are out of range");
	return meta;
}

/* Copies the contents out under a share lock. */
void
IvfpqMetaRead(Relation index, IvfpqMetaData *meta)
{
	Buffer		buf;

	buf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_SHARE,
						IVFPQ_KIND_META, NULL);
	*meta = *IvfpqMetaGet(index, BufferGetPage(buf));
	UnlockReleaseBuffer(buf);
}

/* Returns whether the index has a format of before this one. */
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
 * Replaces the results of calibration, unless the index was trained anew since
 * *meta was read (false).  One record: the metapage.
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
		GenericXLogFinish(state);
	}
	else
		GenericXLogAbort(state);
	UnlockReleaseBuffer(buf);
	return same;
}

/* Note that a rebuild was advised with `rows` rows.  One record, one page. */
void
IvfpqMetaAdvised(Relation index, int64 rows)
{
	GenericXLogState *state;
	IvfpqMetaData *meta;
	Buffer		buf;

	buf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_EXCLUSIVE,
						IVFPQ_KIND_META, NULL);
	state = GenericXLogStart(index);
	meta = IvfpqMetaGet(index, GenericXLogRegisterBuffer(state, buf, 0));
	meta->rows_at_advice = rows;
	GenericXLogFinish(state);
	UnlockReleaseBuffer(buf);
}

/* ----
 * The directory: where lists begin.
 */

/* The directory page that holds a list's entry. */
BlockNumber
IvfpqDirectoryPage(const IvfpqMetaData *meta, uint32 list)
{
	return meta->directory + list / IVFPQ_ENTRIES_PER_PAGE;
}

/* A list's entry on its directory page. */
IvfpqDirEntry *
IvfpqDirEntryGet(Page page, uint32 list)
{
	return (IvfpqDirEntry *) PageGetContents(page) +
		list % IVFPQ_ENTRIES_PER_PAGE;
}

/*
 * Copy a list's entry from its locked page.  Counts that cannot be are not
 * handed on, for searches add them up.
 */
static void
copy_entry(Relation index, Buffer buf, uint32 list, IvfpqDirEntry *entry)
{
	*entry = *IvfpqDirEntryGet(BufferGetPage(buf), list);
	if (entry->ndead > entry->nitems)
		IvfpqCorrupted(index, BufferGetBlockNumber(buf),
					   "list %u has %u dead copies of %u", list,
					   entry->ndead, entry->nitems);
}

/* Copy a list's entry out. */
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
 * Copy the entries of lists [n] out, page by page, of which one at a time is
 * locked: near lists often have one parent, and so one page, which everybody
 * else who searches wants, too.
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

/* ----
 * Which version of its directory an index has: a number that another one
 * can be compared with.
 *
 * Every change of a directory page is logged, and leaves the record's place in
 * the log (LSN) on the page, under the page's exclusive lock.  LSNs ascend.  So
 * a page that has the LSN that it had is as it was, and a directory whose pages
 * have the LSNs that they had is.  A standby's replay leaves the same LSNs.
 */

/* More are not worth it, nor is it to look at more pages than lists. */
#define MOST_PAGES		128

/* The number of directory pages. */
BlockNumber
IvfpqDirectoryPages(const IvfpqMetaData *meta)
{
	return (meta->nlists + IVFPQ_ENTRIES_PER_PAGE - 1) /
		IVFPQ_ENTRIES_PER_PAGE;
}

/* Bijective in each of both, and each bit depends on all. */
static uint64
mix(uint64 version, XLogRecPtr lsn)
{
	version ^= lsn;
	version = (version ^ version >> 33) * UINT64CONST(0xFF51AFD7ED558CCD);
	version = (version ^ version >> 33) * UINT64CONST(0xC4CEB9FE1A85EC53);
	return version ^ version >> 33;
}

/*
 * The version of a trained index's directory, by the LSNs of its pages, of
 * which one at a time is share-locked, in order; 0: it has none.  Where changes
 * are not logged they leave no LSN.
 *
 * If it is the same twice, then at any time between, after the last page was
 * looked at for the first time and before the first one was for the second, the
 * entries of all lists were what they are.
 */
uint64
IvfpqDirectoryVersion(Relation index, const IvfpqMetaData *meta)
{
	BlockNumber npages = IvfpqDirectoryPages(meta);
	uint64		version = 0;

	if (!RelationNeedsWAL(index) || npages > MOST_PAGES)
		return 0;
	for (BlockNumber i = 0; i < npages; i++)
	{
		Buffer		buf = IvfpqReadPage(index, meta->directory + i,
										BUFFER_LOCK_SHARE,
										IVFPQ_KIND_DIRECTORY, NULL);

		version = mix(version, PageGetLSN(BufferGetPage(buf)));
		UnlockReleaseBuffer(buf);
		CHECK_FOR_INTERRUPTS();
	}
	return version != 0 ? version : 1;
}
