/*
 * bulkload.c
 *		From rows to inverted lists, in bulk: places and encodes every row,
 *		writes its refine record, gathers the postings by list, and writes
 *		centroids, codebooks, directory and lists.
 *
 * CREATE INDEX takes the rows from the table, and training in place takes them
 * from the pending list.  No reader finds the written pages until the caller
 * writes the metapage.
 *
 * Every participant of a build has an IvfpqBulkLoad, and places the rows that
 * it reads.  When all rows are placed, the participants write the lists, each
 * taking one range of lists after another.
 *
 * Rows get their lists, codes and refine records from gpuvecd or from the
 * backend's own engine.  If gpuvecd fails, this file places the rows that were
 * sent to gpuvecd and did not come back, and all rows after them, with the
 * same centroids and codebooks.  gpuvecd has the rows of the sample from
 * training, so a pass over the table may leave these rows out
 * (IvfpqBuildShared).  If gpuvecd fails, another pass is needed for the rows
 * of the sample that gpuvecd has not encoded.  Keys are not sent to gpuvecd.
 * They are kept here until their rows come back, in the order in which the
 * rows were sent.
 *
 * As long as postings fit into memory, a counting sort orders their positions
 * by list, and the postings of a list stay in heap order.  Otherwise all
 * postings go through a tuplesort by (list, TID), which uses the disk.
 */
#include "postgres.h"

#include "commands/progress.h"
#include "miscadmin.h"
#include "utils/backend_progress.h"
#include "utils/float.h"
#include "utils/memutils.h"

#include "am/build/bulkload.h"
#include "am/build/calibrate.h"
#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "am/search/search.h"
#include "page/array.h"
#include "page/injection.h"
#include "page/listwrite.h"
#include "page/metapage.h"

/*
 * Number of ranges of lists per participant.  With several ranges, no
 * participant waits long for the other participants at the end.
 */
#define RANGES_EACH		4

/*
 * A participant places as many rows at once as fit into max(BATCH_BYTES,
 * maintenance_work_mem / participants / BATCH_DIVISOR).
 */
#define BATCH_BYTES		(4 * 1024 * 1024)
#define BATCH_DIVISOR		32

#define CHUNK_ITEMS		4096
#define PREFETCHED		8		/* postings to prefetch ahead */

/* Stores a posting in form->bytes bytes. */
static void
store_posting(const IvfpqStoredForm *form, IvfpqStoredPosting *item,
			  uint32 list, const IvfpqPosting *posting)
{
	char	   *at = (char *) (item + 1);

	memset(item, 0, sizeof(*item));
	item->list = list;
	item->t = posting->t;
	item->tid = posting->tid;
	item->refine = posting->refine;
	item->secondary = posting->secondary;
	memcpy(at, posting->code, form->code_bytes);
	if (form->keys.nkeys == 0)
		return;
	at += form->code_bytes;
	*at++ = (char) posting->keys->nulls;
	for (int k = 0; k < form->keys.nkeys; at += form->keys.width[k++])
	{
		IvfpqKeyBytes bytes;

		memcpy(at, IvfpqKeyAbbrevBytes(posting->keys->abbrev[k],
									   form->keys.width[k], &bytes),
			   form->keys.width[k]);
	}
}

/*
 * Reads a stored posting, which need not be aligned.  posting->code points
 * into `stored`.  Decodes the abbreviated keys to *abbrevs.
 */
static void
take_posting(const IvfpqStoredForm *form, const char *stored,
			 IvfpqPosting *posting, IvfpqKeyAbbrevs *abbrevs)
{
	IvfpqStoredPosting item;
	const char *at = stored + sizeof(item);

	memcpy(&item, stored, sizeof(item));
	posting->t = item.t;
	posting->tid = item.tid;
	posting->refine = item.refine;
	posting->secondary = item.secondary;
	posting->code = (const uint8 *) at;
	posting->keys = NULL;
	if (form->keys.nkeys == 0)
		return;
	at += form->code_bytes;
	memset(abbrevs, 0, sizeof(*abbrevs));
	abbrevs->nulls = (uint8) *at++;
	for (int k = 0; k < form->keys.nkeys; at += form->keys.width[k++])
		abbrevs->abbrev[k] = IvfpqKeyAbbrevOf(at, form->keys.width[k]);
	posting->keys = abbrevs;
}

/*
 * Initializes load->postings, with no postings, for nlists lists.  Memory
 * comes from the current context.
 *
 * Postings in memory may take
 *
 *		((memory limit - centroids) / participants - groups) / 2
 *
 * All participants share the centroids, but each participant has its own
 * groups, through which it places rows.  The other half is left for a sort,
 * because begin_sort() needs memory for the postings and the sort together.
 */
static void
begin_postings(IvfpqBulkLoad *load, int nlists)
{
	const IvfpqTraining *training = load->training;
	IvfpqPostings *postings = &load->postings;
	GvTree		tree = IvfpqTree(training);
	Size		used = (Size) training->nlists * training->gv.dims *
	sizeof(float);
	Size		groups = gv_groups_bytes(&tree);
	Size		limit = IvfpqMemoryLimit();

	limit = limit > used ? (limit - used) / load->parallel->shared->nparts : 0;
	memset(postings, 0, sizeof(*postings));
	postings->nlists = nlists;
	postings->limit = (limit > groups ? limit - groups : 0) / 2;
	postings->item_bytes = TYPEALIGN(sizeof(uint32), load->form.bytes);
	postings->counts = palloc0(nlists * sizeof(uint32));
}

/* Returns the posting at position i in memory. */
static inline IvfpqStoredPosting *
item_of(const IvfpqPostings *postings, int64 i)
{
	return (IvfpqStoredPosting *) (postings->chunks[i / CHUNK_ITEMS] +
								   i % CHUNK_ITEMS * postings->item_bytes);
}

/* Puts a posting into the sort. */
static void
sort_item(IvfpqPostings *postings, const IvfpqStoredPosting *item)
{
	IvfpqSortPut(&postings->sort, Int64GetDatum(item->list),
				 Int64GetDatum((int64) IvfpqTidToId(&item->tid) * 2 +
							   item->secondary), item);
}

/*
 * Moves the postings from memory to a sort, because memory cannot hold more.
 * All later postings go to the sort, too.
 */
static void
begin_sort(IvfpqPostings *postings, int bytes)
{
	IvfpqSortBegin(&postings->sort, INT8OID, INT8OID, bytes,
				   (int) (postings->limit / 1024));
	for (int64 i = 0; i < postings->n; i++)
	{
		sort_item(postings, item_of(postings, i));
		/* free chunks one by one, so that the sort can use their memory */
		if (i % CHUNK_ITEMS == CHUNK_ITEMS - 1)
			pfree(postings->chunks[i / CHUNK_ITEMS]);
	}
	postings->nchunks = 0;
}

/*
 * Puts the posting in load->item into load->postings.  load->item->list must
 * be below load->postings.nlists.
 */
static void
put_item(IvfpqBulkLoad *load)
{
	IvfpqPostings *postings = &load->postings;
	Size		chunk = CHUNK_ITEMS * postings->item_bytes;

	if (postings->sort.state == NULL &&
		postings->n == (int64) postings->nchunks * CHUNK_ITEMS)
	{
		if ((postings->nchunks + 1) * chunk + postings->n * sizeof(uint32) >
			postings->limit || postings->n >= PG_INT32_MAX)
			begin_sort(postings, load->form.bytes);
		else
		{
			IvfpqGrow(postings->chunks, postings->nchunks,
					  postings->max_chunks);
			postings->chunks[postings->nchunks++] =
				palloc_extended(chunk, MCXT_ALLOC_HUGE);
		}
	}
	if (postings->sort.state != NULL)
		sort_item(postings, load->item);
	else
		memcpy(item_of(postings, postings->n), load->item, load->form.bytes);
	postings->counts[load->item->list]++;
	postings->n++;
}

/*
 * Sorts the postings by list.  Called when all postings have been added.  If
 * the postings are in memory, a counting sort orders only their positions.
 */
static void
sort_postings(IvfpqPostings *postings)
{
	uint32	   *ends;
	uint32		next = 0;

	if (postings->sort.state != NULL)
	{
		IvfpqSortPerform(&postings->sort);
		return;
	}
	ends = palloc(postings->nlists * sizeof(uint32));
	for (int list = 0; list < postings->nlists; list++)
	{
		ends[list] = next;
		next += postings->counts[list];
	}
	postings->order = palloc_extended(Max(postings->n, 1) * sizeof(uint32),
									  MCXT_ALLOC_HUGE);
	for (int64 i = 0; i < postings->n; i++)
		postings->order[ends[item_of(postings, i)->list]++] = (uint32) i;
	pfree(ends);
}

/*
 * Callback of IvfpqWriterList.  Sets *posting to the next posting, in the
 * order of lists, and adds it to the calibration mirror.  The code and keys of
 * *posting are valid until the next call.
 */
static void
next_posting(void *arg, IvfpqPosting *posting)
{
	IvfpqBulkLoad *load = arg;
	IvfpqPostings *postings = &load->postings;
	const char *item;

	if (postings->sort.state != NULL)
	{
		if (!IvfpqSortNext(&postings->sort))
			elog(ERROR, "rows were lost while sorting by list");
		item = postings->sort.payload;
	}
	else
	{
		if (postings->next + PREFETCHED < postings->n)
			__builtin_prefetch(item_of(postings,
									   postings->order[postings->next +
													   PREFETCHED]));
		item = (const char *) item_of(postings,
									  postings->order[postings->next++]);
	}
	take_posting(&load->form, item, posting, &postings->abbrevs);
	IvfpqCalibMirrorAdd(&load->calib_mirror, posting);
}

/*
 * Writes the refine records of n rows that have been placed and encoded, and
 * adds the rows' postings.  ids [n] are the rows' TIDs.  keys [n] are the
 * rows' keys, or NULL if the index has no keys.
 */
static void
take_rows(IvfpqBulkLoad *load, const uint64 *ids, const IvfpqKeyAbbrevs *keys,
		  const GvEncoded *encoded, int n)
{
	const IvfpqTraining *training = load->training;
	int			lists_per_row = training->lists_per_row;
	int			code_bytes = load->form.code_bytes;

	for (int i = 0; i < n; i++)
	{
		IvfpqPosting posting = {.keys = keys == NULL ? NULL : &keys[i]};

		IvfpqIdToTid(ids[i], &posting.tid);
		if (load->record != NULL)
		{
			IvfpqRecord *record = load->record;
			int			bytes = load->records.code_bytes;

			record->min = encoded->min[i];
			record->step = encoded->step[i];
			record->error = encoded->error[i];
			record->tid = posting.tid;
			memcpy(record->codes, encoded->records + (Size) i * bytes, bytes);
			IvfpqRecordBuilderAdd(&load->records, record, &posting.refine);
		}
		for (int at = i * lists_per_row; at < (i + 1) * lists_per_row; at++)
		{
			int			list = encoded->lists[at];

			if (list < 0)
				continue;
			posting.t = encoded->t[at];
			posting.code = encoded->codes + (Size) at * code_bytes;
			posting.secondary = at > i * lists_per_row;
			store_posting(&load->form, load->item, list, &posting);
			if (load->parallel->has_workers)
				IvfpqTempFilePut(&load->ranges,
								 IvfpqTempFileRange(&load->ranges, list,
													training->nlists),
								 load->item, load->form.bytes);
			else
				put_item(load);
			load->npostings++;
		}
	}
	IvfpqParallelProgress(load->parallel, n);
}

/*
 * IvfpqEncodedSink.  Takes rows that gpuvecd has encoded.  If the index has a
 * rotation and refine records, `rows` is never NULL (share_build).
 */
static void
take_encoded(void *arg, const float *rows, const uint64 *ids,
			 const GvEncoded *encoded, int n)
{
	IvfpqBulkLoad *load = arg;
	const IvfpqKeyAbbrevs *keys = NULL;

	if (load->calibration)
		IvfpqCalibrationTake(load->calibration, encoded->neighbors,
							 encoded->nneighbors, ids);
	if (load->form.keys.nkeys > 0)
	{
		if (load->end_sent - load->first_sent < n)
			elog(ERROR, "gpuvecd encoded more rows than it received");
		keys = load->sent + load->first_sent;
		load->first_sent += n;
	}
	if (load->refine != IVFPQ_REFINE_NONE)
		IvfpqRecordAllow(&load->training->gv, rows, n, encoded->error);
	take_rows(load, ids, keys, encoded, n);
	IvfpqInjectionPoint("build: encoded");
}

/* Keeps the keys of a row that is sent to gpuvecd until the row comes back. */
static void
keep_keys(IvfpqBulkLoad *load, const IvfpqKeyAbbrevs *keys)
{
	int64		n = load->end_sent - load->first_sent;

	if (load->end_sent == load->max_sent && n < load->end_sent / 2)
	{
		memmove(load->sent, load->sent + load->first_sent,
				n * sizeof(IvfpqKeyAbbrevs));
		load->first_sent = 0;
		load->end_sent = n;
	}
	else
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(load->placing);

		IvfpqGrow(load->sent, load->end_sent, load->max_sent);
		MemoryContextSwitchTo(oldcontext);
	}
	load->sent[load->end_sent++] = *keys;
}

/* Allocates memory for the rows that this backend places itself. */
static void
make_batch(IvfpqBulkLoad *load)
{
	const IvfpqTraining *training = load->training;
	MemoryContext oldcontext = MemoryContextSwitchTo(load->placing);
	int			dims = training->gv.dims;
	GvEncoded  *encoded = &load->encoded;
	void	   *chunk;
	int			n;
	int			postings;

	(void) IvfpqAllocGroups(training, &load->groups);
	n = IvfpqRowsToPlace(&load->groups,
						 Max(BATCH_BYTES, IvfpqMemoryLimit() / BATCH_DIVISOR /
							 load->parallel->shared->nparts));
	postings = n * training->lists_per_row;
	load->batch_rows = n;
	load->batch = palloc((Size) n * dims * sizeof(float));
	load->ids = palloc(n * sizeof(uint64));
	if (load->form.keys.nkeys > 0)
		load->keys = palloc(n * sizeof(IvfpqKeyAbbrevs));
	load->scratch = IvfpqAllocScratch(gv_place_scratch(&load->groups, n,
													   training->lists_per_row),
									  &chunk);
	encoded->lists = palloc(postings * sizeof(int32));
	encoded->t = palloc(postings * sizeof(float));
	encoded->codes = palloc((Size) postings * load->form.code_bytes);
	if (load->refine != IVFPQ_REFINE_NONE)
	{
		encoded->min = palloc0(n * sizeof(float));
		encoded->step = palloc0(n * sizeof(float));
		encoded->error = palloc(n * sizeof(float));
		encoded->records = palloc((Size) n * load->records.code_bytes);
		load->boundable = palloc(n * sizeof(bool));
	}
	MemoryContextSwitchTo(oldcontext);
}

/* Places and encodes the rows of the batch. */
static void
flush_batch(IvfpqBulkLoad *load)
{
	const IvfpqTraining *training = load->training;
	const GvModel *gv = &training->gv;
	GvEncoded  *encoded = &load->encoded;
	float	   *rows = load->batch;
	int			lists_per_row = training->lists_per_row;
	int			n = load->nbatch;

	if (n == 0)
		return;
	load->nbatch = 0;
	IvfpqCheckStatus(gv_place(&load->groups, rows, n, lists_per_row,
							  encoded->lists, load->scratch, &ivfpq_stop));
	IvfpqCheckStatus(gv_encode(gv, rows, training->centroids, encoded->lists,
							   n, lists_per_row, encoded->codes, encoded->t));
	if (load->refine != IVFPQ_REFINE_NONE)
	{
		if (load->refine == IVFPQ_REFINE_HALF)
			IvfpqCheckStatus(gv_half_encode(gv->dims, rows, n,
											(uint16 *) (void *) encoded->records,
											encoded->error));
		else
			IvfpqCheckStatus(gv_refine_encode(gv->dims, rows, n,
											  encoded->records, encoded->min,
											  encoded->step, encoded->error));
		IvfpqRecordAllow(gv, rows, n, encoded->error);
		for (int i = 0; i < n; i++)
			if (!load->boundable[i])
				encoded->error[i] = get_float4_infinity();
	}
	if (load->calibration)
		IvfpqCalibrationOffer(load->calibration, 0, rows, load->ids, n);
	take_rows(load, load->ids, load->keys, encoded, n);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Adds a row [dims] to the batch of rows that this backend places itself.  The
 * row is raw or, if it was sent to gpuvecd, as IvfpqBuilderUnanswered returns
 * it.  keys is NULL if the index has no keys.
 */
static void
add_here(IvfpqBulkLoad *load, const float *row, uint64 id,
		 const IvfpqKeyAbbrevs *keys, bool sent)
{
	const GvModel *gv = &load->training->gv;
	float	   *to;

	if (load->batch_rows == 0)
		make_batch(load);
	to = load->batch + (Size) load->nbatch * gv->dims;
	if (sent && gv->rotation != NULL)
		memcpy(to, row, gv->dims * sizeof(float));
	else
		(void) gv_transform(gv, row, 1, to);
	if (load->refine != IVFPQ_REFINE_NONE)
		load->boundable[load->nbatch] =
			sent || IvfpqIsBoundable(&load->type, row, gv->dims);
	if (keys != NULL)
		load->keys[load->nbatch] = *keys;
	load->ids[load->nbatch++] = id;
	if (load->nbatch == load->batch_rows)
		flush_batch(load);
}

/*
 * Takes over after gpuvecd has failed: places the rows that were sent to
 * gpuvecd and did not come back.  The first participant of a build that finds
 * the failure reports it.
 */
static void
take_over(IvfpqBulkLoad *load)
{
	IvfpqBuilder *builder = load->builder;
	IvfpqBuildShared *sharing = load->sharing;
	int			dims = load->training->gv.dims;
	const float *rows;
	const uint64 *ids;
	int			n;

	load->builder = NULL;
	if (sharing == NULL || pg_atomic_exchange_u32(&sharing->failed, 1) == 0)
		IvfpqBuilderFailed(load->index, IvfpqBuilderReason(builder), true);
	while (IvfpqBuilderUnanswered(builder, &rows, &ids, &n))
		for (int i = 0; i < n; i++)
			add_here(load, rows + (Size) i * dims, ids[i],
					 load->form.keys.nkeys == 0 ? NULL :
					 &load->sent[load->first_sent++], true);
	IvfpqBuilderEnd(builder);
}

/*
 * Initializes *load.  Memory comes from the current context.  *meta says which
 * keys and which kind of refine records the index will have.  If `shared` is
 * true, other sessions use the index while it is written, and each page is
 * logged as it is written, because the index is not logged as a whole.
 */
void
IvfpqBulkLoadBegin(IvfpqBulkLoad *load, Relation index,
				   const IvfpqTraining *training, IvfpqParallel *parallel,
				   IvfpqMetaData *meta, bool shared)
{
	int			dims = training->gv.dims;
	IvfpqStoredForm *form = &load->form;

	memset(load, 0, sizeof(*load));
	load->index = index;
	load->training = training;
	load->parallel = parallel;
	load->meta = meta;
	load->shared = shared;

	IvfpqTypeInit(&load->type, index);
	load->refine = meta->refine;
	load->builder = training->builder;
	if (load->builder)
		IvfpqBuilderTo(load->builder, take_encoded, load);
	load->sharing = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_SHARING);
	if (training->nqueries > 0)
		load->calibration = IvfpqCalibrationBegin(training);
	load->placing = AllocSetContextCreate(CurrentMemoryContext,
										  "gpuivfpq rows to place",
										  ALLOCSET_DEFAULT_SIZES);
	if (load->refine != IVFPQ_REFINE_NONE)
	{
		load->record = IvfpqRecordAlloc(load->refine, dims);
		IvfpqRecordBuilderInit(&load->records, index, meta->training,
							   IvfpqRecordCodeBytes(load->refine, dims),
							   shared);
	}

	(void) IvfpqKeyFormGet(meta, &form->keys);
	form->code_bytes = gv_code_bytes(training->gv.m);
	form->bytes = (int) sizeof(IvfpqStoredPosting) + form->code_bytes;
	if (form->keys.nkeys > 0)
		form->bytes++;
	for (int k = 0; k < form->keys.nkeys; k++)
		form->bytes += form->keys.width[k];
	load->item = palloc(form->bytes);
	if (parallel->me == 0)
	{
		/*
		 * allocate this now, because it is better to run out of memory before
		 * the rows are placed than after
		 */
		Size		bytes = training->nlists * sizeof(IvfpqDirEntry);

		memset(IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_ENTRIES, bytes), 0,
			   bytes);
	}
	if (parallel->has_workers)
		IvfpqTempFileBegin(&load->ranges, parallel, "copies",
						   Min(RANGES_EACH * parallel->shared->nparts,
							   training->nlists));
	else
		begin_postings(load, training->nlists);
}

/*
 * Returns how to use a row that a pass over the table reads.  The first pass
 * does not place the rows of the sample that gpuvecd has already.  A second
 * pass places only the rows of the sample that gpuvecd has lost.
 */
IvfpqRowUse
IvfpqBulkLoadWants(IvfpqBulkLoad *load, uint64 id)
{
	const IvfpqBuildShared *sharing = load->sharing;
	int			use = IVFPQ_ROW_NONE;

	if (sharing == NULL || IvfpqSharingWants(sharing, id, &load->at))
		use |= IVFPQ_ROW_PLACED;
	if (load->calibration && (sharing == NULL || !sharing->recovering) &&
		IvfpqLevelHas(1, id))
		use |= IVFPQ_ROW_SAMPLED;
	return use;
}

/*
 * Adds a row: its raw vector [dims], its TID and its keys.  The row is sent to
 * gpuvecd, or is put into the batch that this backend places itself.
 */
void
IvfpqBulkLoadRow(IvfpqBulkLoad *load, const float *row, uint64 id,
				 const IvfpqKeyAbbrevs *keys, IvfpqRowUse use)
{
	if (load->form.keys.nkeys == 0)
		keys = NULL;
	if (use & IVFPQ_ROW_SAMPLED)
		IvfpqCalibrationSample(load->calibration, row, id);
	if (!(use & IVFPQ_ROW_PLACED))
		return;

	/*
	 * gpuvecd cannot detect rows whose distances no refine record can bound,
	 * so we place these rows here
	 */
	if (load->builder == NULL ||
		(load->refine != IVFPQ_REFINE_NONE &&
		 !IvfpqIsBoundable(&load->type, row, load->training->gv.dims)))
	{
		add_here(load, row, id, keys, false);
		return;
	}
	if (keys != NULL)
		keep_keys(load, keys);
	if (!IvfpqBuilderAdd(load->builder, row, id))
		take_over(load);
}

/* Ends a pass over the table.  Waits until gpuvecd has returned all rows. */
void
IvfpqBulkLoadEndPass(IvfpqBulkLoad *load)
{
	if (load->builder && !IvfpqBuilderFlush(load->builder))
		take_over(load);
	load->at = 0;
}

/*
 * Writes the arrays of the model to pages that are reserved for them, and
 * completes *load->meta.  The leader calls this when all rows are placed.
 */
static void
write_model(IvfpqBulkLoad *load)
{
	const IvfpqTraining *training = load->training;
	Relation	index = load->index;
	IvfpqMetaData *meta = load->meta;
	bool		shared = load->shared;
	int			dims = training->gv.dims;
	GvTree		tree = IvfpqTree(training);
	BlockNumber npages;
	BlockNumber first;

	meta->refine_head =
		pg_atomic_read_u32(&load->parallel->shared->refine_head);
	meta->dims = dims;
	meta->pq_dim = training->gv.m;
	meta->nlists = training->nlists;
	meta->nparents = training->nparents;
	meta->lists_per_row = training->lists_per_row;
	meta->scale = training->gv.scale;
	meta->rotated = training->rotation != NULL;
	meta->rows_at_training = load->rows;
	IvfpqMetaPlace(meta, 0);
	npages = IvfpqModelPages(meta);
	first = shared ? IvfpqTakeRun(index, npages) : InvalidBlockNumber;
	if (first == InvalidBlockNumber)
		first = IvfpqReserve(index, npages, shared);
	IvfpqMetaPlace(meta, first);

	IvfpqArrayWrite(index, meta, meta->mean, training->mean, dims, shared);
	IvfpqArrayWrite(index, meta, meta->codebooks, training->codebooks,
					(int64) GV_CODEWORDS * dims, shared);
	IvfpqArrayWrite(index, meta, meta->parents, training->parents,
					(int64) training->nparents * dims, shared);
	IvfpqArrayWrite(index, meta, meta->parent_offsets,
					(const float *) training->parent_offsets,
					training->nparents + 1, shared);
	IvfpqArrayWrite(index, meta, meta->centroids, training->centroids,
					(int64) training->nlists * dims, shared);
	IvfpqCodedWrite(index, meta, &training->gv, &tree, shared);
	if (meta->rotated)
		IvfpqArrayWrite(index, meta, meta->rotation, training->rotation,
						(int64) dims * dims, shared);
}

/*
 * Sorts load->postings and writes them to lists.  List i of load->postings
 * becomes list first + i of the index.
 */
static void
write_lists(IvfpqBulkLoad *load, int first)
{
	IvfpqPostings *postings = &load->postings;
	const uint32 *counts = postings->counts;
	IvfpqDirEntry *entries = IvfpqParallelMemory(load->parallel,
												 IVFPQ_PARALLEL_ENTRIES);
	IvfpqWriter writer;

	sort_postings(postings);
	IvfpqWriterInit(&writer, load->index, load->meta, counts,
					postings->nlists, load->shared);
	for (int i = 0; i < postings->nlists; i++)
	{
		if (counts[i] == 0)
			continue;
		IvfpqCalibMirrorList(&load->calib_mirror, first + i, counts[i]);
		IvfpqWriterList(&writer, first + i, counts[i], next_posting, load,
						&entries[first + i]);
		IvfpqParallelProgress(load->parallel, entries[first + i].nfirst);
	}
	IvfpqWriterFinish(&writer);
	IvfpqSortEnd(&postings->sort);
}

/*
 * Takes one range of lists after another, and writes the lists of the range
 * from the postings that all participants have added.
 */
static void
write_ranges(IvfpqBulkLoad *load)
{
	IvfpqTempFile *ranges = &load->ranges;
	int			nlists = load->training->nlists;
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "gpuivfpq range of lists",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	int64		range;

	while (IvfpqParallelNext(load->parallel, ranges->nranges, &range))
	{
		int			first = IvfpqTempFileFirst(ranges, (int) range, nlists);
		int			end = IvfpqTempFileFirst(ranges, (int) range + 1, nlists);

		begin_postings(load, end - first);
		IvfpqTempFileOpen(ranges, (int) range, 0,
						  load->parallel->shared->size);
		while (IvfpqTempFileRead(ranges, load->item, load->form.bytes))
		{
			CHECK_FOR_INTERRUPTS();
			load->item->list -= first;
			put_item(load);
		}
		write_lists(load, first);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
}

/*
 * Writes the lists.  Called when this participant has read all its rows.
 *
 * First places the rows that are left in the batch, and closes the files that
 * other participants will read.  When all participants have done this, the
 * leader writes the arrays of the model, and then all participants write
 * lists, to pages added for them.  Sets the places of the arrays in
 * *load->meta.  When all participants have returned from here,
 * IvfpqBulkLoadFinish does the rest.
 */
void
IvfpqBulkLoadWrite(IvfpqBulkLoad *load)
{
	IvfpqParallel *parallel = load->parallel;
	IvfpqParallelShared *shared = parallel->shared;
	bool		is_leader;

	IvfpqBulkLoadEndPass(load);
	flush_batch(load);
	/* free this, because writing lists uses all the memory that is allowed */
	MemoryContextDelete(load->placing);
	if (load->record != NULL)
		IvfpqRecordBuilderFinish(&load->records, &shared->refine_head);
	if (parallel->has_workers)
		IvfpqTempFileDone(&load->ranges);
	if (load->calibration)
		IvfpqCalibrationFlush(load->calibration, parallel);
	pg_atomic_fetch_add_u64(&shared->npostings, load->npostings);

	is_leader = IvfpqParallelEndPhase(parallel);
	if (is_leader)
	{
		load->rows = (int64) pg_atomic_read_u64(&shared->done);
		pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
									 IVFPQ_PHASE_WRITING);
		write_model(load);
		pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_TOTAL,
									 load->rows);
		shared->meta = *load->meta;
	}
	else
		*load->meta = shared->meta;
	IvfpqCalibMirrorBegin(&load->calib_mirror, load->index,
						  load->calibration ? load->builder : NULL, parallel,
						  load->form.code_bytes);
	if (is_leader)
		IvfpqParallelStartPhase(parallel);

	if (parallel->has_workers)
		write_ranges(load);
	else
		write_lists(load, 0);
	IvfpqCalibMirrorFlush(&load->calib_mirror);
	IvfpqInjectionPoint("build: written");
}

/*
 * Writes the directory and calibrates.  The leader calls this when all lists
 * are written.  Workers wait for the next phase, in which they may help to
 * calibrate.  The caller writes *load->meta to the metapage.
 */
void
IvfpqBulkLoadFinish(IvfpqBulkLoad *load)
{
	IvfpqDirectoryWrite(load->index, load->meta,
						IvfpqParallelMemory(load->parallel,
											IVFPQ_PARALLEL_ENTRIES),
						load->shared);
	if (load->calibration)
	{
		load->meta->rows_at_calibration = load->rows;
		IvfpqCalibrationRun(load->calibration, load->index, load->meta,
							&load->calib_mirror, load->parallel);
	}
	if (load->builder)
		IvfpqBuilderEnd(load->builder);
}

/* Helps to calibrate, if the leader asks for it.  A worker calls this. */
void
IvfpqBulkLoadHelp(IvfpqBulkLoad *load)
{
	if (load->parallel->shared->grid_spec.nqueries > 0)
		IvfpqRecallGridHelp(load->calibration, load->index, load->parallel);
}
