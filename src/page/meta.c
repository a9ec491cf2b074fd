/*
 * meta.c
 *		The metapage: block 0.
 */
#include "postgres.h"

#include <math.h>

#include "access/xloginsert.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "page/array.h"
#include "page/record.h"

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
