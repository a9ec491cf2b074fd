/*
 * bulkload.c
 *		From rows to inverted lists, in bulk: places and encodes every row,
 *		writes its refine record, gathers the postings by list, writes
 *		centroids, codebooks, directory and lists.
 *
 * CREATE INDEX feeds it from the table, training in place from the pending
 * list.  Until the caller writes the metapage no reader finds any of it.
 *
 * Every participant of a build has an IvfpqBulkLoad, and places the rows that
 * it reads.  When all rows are placed, lists are written in ranges; a
 * participant that has written one range takes the next.
 *
 * Rows get lists, codes and refine records by gpuvecd or by the backend's own
 * engine.  When gpuvecd fails, the rows that it was sent and has not answered
 * are placed here, like all rows after them; centroids and codebooks are the
 * same.  gpuvecd has the rows of the sample, so a pass over the table may
 * leave them out (IvfpqSharing).  When it fails, another pass is needed for
 * those that it has not encoded.  Keys do not travel: they wait here for the
 * lists and codes of their rows, which come back in the order in which rows
 * were sent.
 *
 * As long as postings fit into memory, their numbers are sorted by a counting
 * sort, and a list's postings come in the order in which they were put, which
 * is the heap's.  Beyond that all go through a tuplesort by (list, TID), on
 * disk.
 */
#include "postgres.h"

#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "commands/progress.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/backend_progress.h"
#include "utils/float.h"
#include "utils/memutils.h"

#include "am/build/bulkload.h"
#include "am/build/calibrate.h"
#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/search/search.h"
#include "page/array.h"
#include "page/injection.h"
#include "page/listwrite.h"
#include "page/metapage.h"
#include "pgcompat.h"

/* Ranges of lists for each participant, so that none waits long for others. */
#define RANGES_EACH		4

/*
 * Memory for rows that are placed at once: BATCH_BYTES, or the limit divided
 * by BATCH_DIVISOR if that is more.
 */
#define BATCH_BYTES		(4 * 1024 * 1024)
#define BATCH_DIVISOR		32
#define SENT_ROWS		8192	/* capacity for waiting keys, at first */

#define CHUNK_ITEMS		4096
#define PREFETCHED		8		/* items ahead of the one returned */

/* Columns of the sort. */
#define SORT_LIST		1
#define SORT_TID		2
#define SORT_ITEM		3

/* Sets *form to the form of stored postings with these codes and keys. */
static void
stored_init(IvfpqStoredForm *form, int code_bytes,
			const IvfpqKeyForm *keys)
{
	form->code_bytes = code_bytes;
	form->keys = *keys;
	form->bytes = (int) sizeof(IvfpqStoredPosting) + code_bytes;
	if (keys->nkeys > 0)
		form->bytes++;
	for (int k = 0; k < keys->nkeys; k++)
		form->bytes += keys->width[k];
}

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
 * into it; its abbreviated keys are decoded to *abbrevs.
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
 * Begins without postings; memory from the current context, about `limit`
 * bytes at most: half of them for postings in memory, half for a sort that
 * takes these over, because for a while both are there.
 */
static void
postings_begin(IvfpqPostings *postings, int nlists,
			   const IvfpqStoredForm *form,
			   Size limit)
{
	memset(postings, 0, sizeof(*postings));
	postings->nlists = nlists;
	postings->form = *form;
	postings->limit = limit / 2;
	postings->item_bytes = TYPEALIGN(sizeof(uint32), form->bytes);
	postings->counts = palloc0(nlists * sizeof(uint32));
}

/* Returns item i of those in memory. */
static inline IvfpqStoredPosting *
item_of(const IvfpqPostings *postings, int64 i)
{
	return (IvfpqStoredPosting *) (postings->chunks[i / CHUNK_ITEMS] +
								   i % CHUNK_ITEMS * postings->item_bytes);
}

/* Puts the item in postings->item into the sort. */
static void
sort_item(IvfpqPostings *postings)
{
	const IvfpqStoredPosting *item =
	(const IvfpqStoredPosting *) VARDATA(postings->item);
	TupleTableSlot *slot = postings->slot;

	ExecClearTuple(slot);
	slot->tts_values[SORT_LIST - 1] = Int32GetDatum(item->list);
	slot->tts_values[SORT_TID - 1] =
		Int64GetDatum((int64) IvfpqTidToId(&item->tid) * 2 + item->secondary);
	slot->tts_values[SORT_ITEM - 1] = PointerGetDatum(postings->item);
	memset(slot->tts_isnull, 0, SORT_ITEM * sizeof(bool));
	ExecStoreVirtualTuple(slot);
	tuplesort_puttupleslot(postings->sort, slot);
}

/*
 * Moves the postings to a sort, through which all go from here on: they are
 * too many for memory.
 */
static void
begin_sort(IvfpqPostings *postings)
{
	TupleDesc	desc = CreateTemplateTupleDesc(SORT_ITEM);
	AttrNumber	columns[] = {SORT_LIST, SORT_TID};
	Oid			operators[] = {Int4LessOperator, Int8LessOperator};
	Oid			collations[] = {InvalidOid, InvalidOid};
	bool		nulls_first[] = {false, false};
	Size		bytes = VARHDRSZ + postings->form.bytes;

	TupleDescInitEntry(desc, SORT_LIST, "list", INT4OID, -1, 0);
	TupleDescInitEntry(desc, SORT_TID, "tid", INT8OID, -1, 0);
	TupleDescInitEntry(desc, SORT_ITEM, "item", BYTEAOID, -1, 0);
	IvfpqFinishTupleDesc(desc);
	postings->slot = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	postings->item = palloc(bytes);
	SET_VARSIZE(postings->item, bytes);
	postings->sort = tuplesort_begin_heap(desc, 2, columns, operators,
										  collations, nulls_first,
										  (int) Max(postings->limit / 1024, 64),
										  NULL, TUPLESORT_NONE);
	for (int64 i = 0; i < postings->n; i++)
	{
		memcpy(VARDATA(postings->item), item_of(postings, i),
			   postings->form.bytes);
		sort_item(postings);
		/* one by one, so that the sort may take the memory that they free */
		if (i % CHUNK_ITEMS == CHUNK_ITEMS - 1)
			pfree(postings->chunks[i / CHUNK_ITEMS]);
	}
	postings->nchunks = 0;
}

/* Makes capacity in memory for one more item, or begins a sort. */
static void
ensure_capacity(IvfpqPostings *postings)
{
	Size		chunk = CHUNK_ITEMS * postings->item_bytes;
	Size		used = postings->nchunks * chunk +
	postings->n * sizeof(uint32);

	if (used + chunk > postings->limit || postings->n >= PG_INT32_MAX)
	{
		begin_sort(postings);
		return;
	}
	postings->chunks = postings->chunks == NULL ? palloc(sizeof(char *)) :
		repalloc(postings->chunks, (postings->nchunks + 1) * sizeof(char *));
	postings->chunks[postings->nchunks++] = palloc_extended(chunk,
															MCXT_ALLOC_HUGE);
}

/* Puts a posting that belongs to a list. */
static void
postings_put(IvfpqPostings *postings, uint32 list,
			 const IvfpqPosting *posting)
{
	IvfpqStoredPosting *item;

	if (postings->sort == NULL &&
		postings->n == (int64) postings->nchunks * CHUNK_ITEMS)
		ensure_capacity(postings);
	item = postings->sort != NULL ?
		(IvfpqStoredPosting *) VARDATA(postings->item) :
		item_of(postings, postings->n);
	store_posting(&postings->form, item, list, posting);
	if (postings->sort != NULL)
		sort_item(postings);
	postings->counts[list]++;
	postings->n++;
}

/* Numbers the postings in memory list by list: a counting sort. */
static void
order_items(IvfpqPostings *postings)
{
	uint32	   *ends = palloc(postings->nlists * sizeof(uint32));
	uint32		next = 0;

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

/* All postings have been put: makes them ready for postings_next. */
static void
postings_sort(IvfpqPostings *postings)
{
	TupleDesc	desc;

	if (postings->sort == NULL)
	{
		order_items(postings);
		return;
	}
	tuplesort_performsort(postings->sort);
	desc = CreateTupleDescCopy(postings->slot->tts_tupleDescriptor);
	ExecDropSingleTupleTableSlot(postings->slot);
	postings->slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
}

/* Returns the next item of the sort, in the slot and not aligned. */
static const char *
next_sorted(IvfpqPostings *postings)
{
	bool		isnull;

	if (!tuplesort_gettupleslot(postings->sort, true, false, postings->slot,
								NULL))
		elog(ERROR, "rows were lost while sorting by list");
	return VARDATA_ANY(DatumGetPointer(slot_getattr(postings->slot, SORT_ITEM,
													&isnull)));
}

/* Returns the next item in memory, and prefetches a later one. */
static const char *
next_in_memory(IvfpqPostings *postings)
{
	if (postings->next + PREFETCHED < postings->n)
		__builtin_prefetch(item_of(postings,
								   postings->order[postings->next +
												   PREFETCHED]));
	return (const char *) item_of(postings, postings->order[postings->next++]);
}

/*
 * Sets *posting to the next one, list by list.  Its code and keys are valid
 * until the next call.
 */
static void
postings_next(void *arg, IvfpqPosting *posting)
{
	IvfpqPostings *postings = arg;
	const char *found = postings->sort == NULL ? next_in_memory(postings) :
	next_sorted(postings);

	take_posting(&postings->form, found, posting, &postings->abbrevs);
}

/* Frees the sort, with its files. */
static void
postings_end(IvfpqPostings *postings)
{
	if (postings->sort == NULL)
		return;
	ExecDropSingleTupleTableSlot(postings->slot);
	tuplesort_end(postings->sort);
}

/* IvfpqEncodedSink: takes rows that gpuvecd has encoded. */
static void
take_encoded(void *arg, const uint64 *ids, const GvEncoded *encoded, int n)
{
	IvfpqPlacer *placer = arg;

	if (placer->calibration)
		IvfpqCalibrationTake(placer->calibration, encoded->neighbors,
							 encoded->nneighbors, ids);
	if (placer->sent != NULL && placer->end_sent - placer->first_sent < n)
		elog(ERROR, "gpuvecd has encoded more rows than it was given");
	placer->sink(placer->sink_arg, ids, placer->sent == NULL ? NULL :
				 placer->sent + placer->first_sent, encoded, n);
	placer->first_sent += n;
	IvfpqInjectionPoint("build: encoded");
}

/* Keeps the keys of a row that goes to gpuvecd. */
static void
keep_sent(IvfpqPlacer *placer, const IvfpqKeyAbbrevs *keys)
{
	int64		n = placer->end_sent - placer->first_sent;

	if (placer->sent == NULL)
	{
		placer->max_sent = SENT_ROWS;
		placer->sent = MemoryContextAlloc(placer->context, placer->max_sent *
										  sizeof(IvfpqKeyAbbrevs));
	}
	else if (placer->end_sent == placer->max_sent)
	{
		if (n > placer->max_sent / 2)
		{
			placer->max_sent *= 2;
			placer->sent = repalloc_huge(placer->sent, placer->max_sent *
										 sizeof(IvfpqKeyAbbrevs));
		}
		memmove(placer->sent, placer->sent + placer->first_sent,
				n * sizeof(IvfpqKeyAbbrevs));
		placer->first_sent = 0;
		placer->end_sent = n;
	}
	placer->sent[placer->end_sent++] = *keys;
}

/*
 * Begins, with the builder that trained, or one that joined it, if there is
 * one; with `sharing` its sample is not added again.  Memory from the current
 * context.
 */
static void
placer_begin(IvfpqPlacer *placer, Relation index,
			 const IvfpqTraining *training, int nparts,
			 IvfpqSharing *sharing, IvfpqCalibration *calibration,
			 IvfpqRefine refine, IvfpqPlacedSink sink, void *sink_arg)
{
	memset(placer, 0, sizeof(*placer));
	placer->index = index;
	IvfpqTypeInit(&placer->type, index);
	placer->training = training;
	placer->nparts = nparts;
	placer->builder = training->builder;
	placer->sharing = sharing;
	placer->calibration = calibration;
	placer->refine = refine;
	placer->sink = sink;
	placer->sink_arg = sink_arg;
	placer->context = AllocSetContextCreate(CurrentMemoryContext,
											"gpuivfpq rows to place",
											ALLOCSET_DEFAULT_SIZES);
	if (placer->builder)
		IvfpqBuilderTo(placer->builder, take_encoded, placer);
}

/* Allocates memory for rows that are placed here, with or without keys. */
static void
make_batch(IvfpqPlacer *placer, bool keys)
{
	const IvfpqTraining *training = placer->training;
	MemoryContext oldcontext = MemoryContextSwitchTo(placer->context);
	int			dims = training->gv.dims;
	GvEncoded  *encoded = &placer->encoded;
	void	   *chunk;
	int			n;
	int			postings;

	(void) IvfpqAllocGroups(training, &placer->groups);
	n = IvfpqRowsToPlace(&placer->groups,
						 Max(BATCH_BYTES, IvfpqMemoryLimit() / BATCH_DIVISOR /
							 placer->nparts));
	postings = n * training->lists_per_row;
	placer->batch_rows = n;
	placer->batch = palloc((Size) n * dims * sizeof(float));
	placer->ids = palloc(n * sizeof(uint64));
	if (keys)
		placer->keys = palloc(n * sizeof(IvfpqKeyAbbrevs));
	placer->scratch = IvfpqAllocScratch(gv_place_scratch(&placer->groups, n,
														 training->lists_per_row),
										&chunk);
	encoded->lists = palloc(postings * sizeof(int32));
	encoded->t = palloc(postings * sizeof(float));
	encoded->codes = palloc((Size) postings * gv_code_bytes(training->gv.m));
	if (placer->refine != IVFPQ_REFINE_NONE)
	{
		encoded->min = palloc0(n * sizeof(float));
		encoded->step = palloc0(n * sizeof(float));
		encoded->error = palloc(n * sizeof(float));
		encoded->records = palloc((Size) n *
								  IvfpqRecordCodeBytes(placer->refine, dims));
		placer->boundable = palloc(n * sizeof(bool));
	}
	MemoryContextSwitchTo(oldcontext);
}

/* Encodes the refine records of the n rows that wait here, transformed. */
static void
encode_records(IvfpqPlacer *placer, int n)
{
	GvEncoded  *encoded = &placer->encoded;
	int			dims = placer->training->gv.dims;

	if (placer->refine == IVFPQ_REFINE_HALF)
		IvfpqCheckStatus(gv_half_encode(dims, placer->batch, n,
										(uint16 *) (void *) encoded->records,
										encoded->error));
	else
		IvfpqCheckStatus(gv_refine_encode(dims, placer->batch, n,
										  encoded->records, encoded->min,
										  encoded->step, encoded->error));
	IvfpqRecordAllow(&placer->training->gv, placer->batch, n, encoded->error);
	for (int i = 0; i < n; i++)
		if (!placer->boundable[i])
			encoded->error[i] = get_float4_infinity();
}

/* Places and encodes the rows that wait here. */
static void
flush_batch(IvfpqPlacer *placer)
{
	const IvfpqTraining *training = placer->training;
	GvEncoded  *encoded = &placer->encoded;
	int			lists_per_row = training->lists_per_row;
	int			n = placer->nbatch;

	if (n == 0)
		return;
	gv_transform(&training->gv, placer->batch, n, placer->batch);
	IvfpqCheckStatus(gv_place(&placer->groups, placer->batch, n, lists_per_row,
							  encoded->lists, placer->scratch, &ivfpq_stop));
	IvfpqCheckStatus(gv_encode(&training->gv, placer->batch,
							   training->centroids, encoded->lists, n,
							   lists_per_row,
							   encoded->codes, encoded->t));
	if (placer->refine != IVFPQ_REFINE_NONE)
		encode_records(placer, n);
	if (placer->calibration)
		IvfpqCalibrationOffer(placer->calibration, placer->batch, placer->ids,
							  n);
	placer->nbatch = 0;
	placer->sink(placer->sink_arg, placer->ids, placer->keys, encoded, n);
	CHECK_FOR_INTERRUPTS();
}

/* Lets a raw row [dims] wait for its batch here. */
static void
add_here(IvfpqPlacer *placer, const float *row, uint64 id,
		 const IvfpqKeyAbbrevs *keys)
{
	int			dims = placer->training->gv.dims;

	if (placer->batch_rows == 0)
		make_batch(placer, keys != NULL);
	memcpy(placer->batch + (Size) placer->nbatch * dims, row,
		   dims * sizeof(float));
	if (placer->refine != IVFPQ_REFINE_NONE)
		placer->boundable[placer->nbatch] =
			IvfpqIsBoundable(&placer->type, row, dims);
	if (keys != NULL)
		placer->keys[placer->nbatch] = *keys;
	placer->ids[placer->nbatch++] = id;
	if (placer->nbatch == placer->batch_rows)
		flush_batch(placer);
}

/*
 * gpuvecd has failed: places the rows here that it has not answered.  The
 * first participant of a build that finds the failure reports it.
 */
static void
take_over(IvfpqPlacer *placer)
{
	IvfpqBuilder *builder = placer->builder;
	IvfpqSharing *sharing = placer->sharing;
	int			dims = placer->training->gv.dims;
	const float *rows;
	const uint64 *ids;
	int			n;

	placer->builder = NULL;
	if (sharing == NULL || pg_atomic_exchange_u32(&sharing->failed, 1) == 0)
		IvfpqBuilderFailed(placer->index, IvfpqBuilderReason(builder), true);
	while (IvfpqBuilderUnanswered(builder, &rows, &ids, &n))
		for (int i = 0; i < n; i++)
			add_here(placer, rows + (Size) i * dims, ids[i],
					 placer->sent == NULL ? NULL :
					 &placer->sent[placer->first_sent++]);
	IvfpqBuilderEnd(builder);
}

/* Returns whether a row that a pass over the table finds is to be added. */
static bool
placer_wants(IvfpqPlacer *placer, uint64 id)
{
	return placer->sharing == NULL ||
		IvfpqSharingWants(placer->sharing, id, &placer->at);
}

/* Ends a pass over the table: waits until gpuvecd has answered all rows. */
void
IvfpqPlacerFlush(IvfpqPlacer *placer)
{
	if (placer->builder && !IvfpqBuilderFlush(placer->builder))
		take_over(placer);
	placer->at = 0;
}

/*
 * Sends a raw row [dims], with this TID and keys, or NULL, to be placed, or
 * lets it wait for its batch here.  gpuvecd cannot know which records must
 * bound nothing, so these are made here.
 */
static void
placer_add(IvfpqPlacer *placer, const float *row, uint64 id,
		   const IvfpqKeyAbbrevs *keys)
{
	if (placer->builder == NULL ||
		(placer->refine != IVFPQ_REFINE_NONE &&
		 !IvfpqIsBoundable(&placer->type, row, placer->training->gv.dims)))
	{
		add_here(placer, row, id, keys);
		return;
	}
	if (keys != NULL)
		keep_sent(placer, keys);
	if (!IvfpqBuilderAdd(placer->builder, row, id))
		take_over(placer);
}

/*
 * There are no more rows: places those that still wait, and frees the memory
 * for them, because writing lists uses all that is allowed.  Returns the
 * builder if it has answered all rows that it was sent, else NULL.
 */
static IvfpqBuilder *
placer_end(IvfpqPlacer *placer)
{
	IvfpqPlacerFlush(placer);
	if (placer->batch_rows > 0)
		flush_batch(placer);
	MemoryContextDelete(placer->context);
	placer->context = NULL;
	return placer->builder;
}

/* Writes the refine record of row i; returns its address. */
static ItemPointerData
write_record(IvfpqBulkLoad *load, const GvEncoded *encoded, int i, uint64 id)
{
	int			code_bytes = load->refine.code_bytes;
	IvfpqRecord *record = load->record;
	ItemPointerData address;

	record->min = encoded->min[i];
	record->step = encoded->step[i];
	record->error = encoded->error[i];
	IvfpqIdToTid(id, &record->tid);
	memcpy(record->codes, encoded->records + (Size) i * code_bytes,
		   code_bytes);
	IvfpqRecordBuilderAdd(&load->refine, record, &address);
	return address;
}

/* Adds a posting to a list. */
static void
put_posting(IvfpqBulkLoad *load, uint32 list, const IvfpqPosting *posting)
{
	if (load->parallel->has_workers)
	{
		store_posting(&load->form, load->item, list, posting);
		IvfpqTempFilePut(&load->ranges,
						 IvfpqTempFileRange(&load->ranges, (int) list,
											load->training->nlists),
						 load->item, load->form.bytes);
	}
	else
		postings_put(&load->postings, list, posting);
	load->npostings++;
}

/* IvfpqPlacedSink: adds rows [n], with these TIDs, that have been placed. */
static void
take_rows(void *arg, const uint64 *ids, const IvfpqKeyAbbrevs *keys,
		  const GvEncoded *encoded, int n)
{
	IvfpqBulkLoad *load = arg;
	int			lists_per_row = load->training->lists_per_row;
	int			code_bytes = gv_code_bytes(load->training->gv.m);

	for (int i = 0; i < n; i++)
	{
		IvfpqPosting posting = {.keys = keys == NULL ? NULL : &keys[i]};

		IvfpqIdToTid(ids[i], &posting.tid);
		if (load->record != NULL)
			posting.refine = write_record(load, encoded, i, ids[i]);
		for (int c = 0; c < lists_per_row; c++)
		{
			int			at = i * lists_per_row + c;

			if (encoded->lists[at] < 0)
				continue;
			posting.t = encoded->t[at];
			posting.code = encoded->codes + (Size) at * code_bytes;
			posting.secondary = c > 0;
			put_posting(load, encoded->lists[at], &posting);
		}
	}
	IvfpqParallelProgress(load->parallel, n);
}

/*
 * Returns the bytes of memory for this participant's postings: its fraction of
 * the limit, less the groups through which it places rows.  The lists'
 * centroids, which all share, are deducted before.
 */
static Size
postings_limit(const IvfpqBulkLoad *load)
{
	const IvfpqTraining *training = load->training;
	GvTree		tree = IvfpqTree(training);
	Size		used = (Size) training->nlists * training->gv.dims *
	sizeof(float);
	Size		limit = IvfpqMemoryLimit();
	Size		part = limit > used ? (limit - used) / load->parallel->shared->nparts : 0;

	used = gv_groups_bytes(&tree);
	return part > used ? part - used : 0;
}

/*
 * The leader allocates the entries of the directory before participants begin.
 */
void
IvfpqBulkLoadPrepare(IvfpqParallel *parallel, const IvfpqTraining *training)
{
	Size		bytes = training->nlists * sizeof(IvfpqDirEntry);

	memset(IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_ENTRIES, bytes), 0,
		   bytes);
}

/*
 * Begins; memory from the current context.  *meta says whether there are keys
 * and refine records; the index has no records yet.  With `log` each page of
 * records is logged when it is full, because the index is not logged as a
 * whole.
 */
void
IvfpqBulkLoadBegin(IvfpqBulkLoad *load, Relation index,
				   const IvfpqTraining *training, IvfpqParallel *parallel,
				   const IvfpqMetaData *meta, bool log)
{
	int			dims = training->gv.dims;
	IvfpqRefine refine = meta->refine;
	IvfpqKeyForm keys;

	memset(load, 0, sizeof(*load));
	(void) IvfpqKeyFormGet(meta, &keys);
	stored_init(&load->form, gv_code_bytes(training->gv.m), &keys);
	load->training = training;
	load->parallel = parallel;
	if (refine != IVFPQ_REFINE_NONE)
	{
		load->record = IvfpqRecordAlloc(refine, dims);
		IvfpqRecordBuilderInit(&load->refine, index,
							   IvfpqRecordCodeBytes(refine, dims), log);
	}
	if (parallel->has_workers)
	{
		IvfpqTempFileBegin(&load->ranges, parallel, "copies",
						   Min(RANGES_EACH * parallel->shared->nparts,
							   training->nlists));
		load->item = palloc(load->form.bytes);
	}
	else
		postings_begin(&load->postings, training->nlists, &load->form,
					   postings_limit(load));
	if (training->nqueries > 0)
		load->calibration = IvfpqCalibrationBegin(&training->gv,
												  training->nqueries,
												  training->queries,
												  training->held_out,
												  training->query_ids,
												  training->depth);
	placer_begin(&load->placer, index, training, parallel->shared->nparts,
				 IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_SHARING),
				 load->calibration, refine, take_rows, load);
}

/*
 * Returns how a row that a pass over the table finds is to be used.  gpuvecd
 * has the rows of the sample, so the first pass leaves them out; a second pass
 * is for those that it has lost.
 */
IvfpqRowUse
IvfpqBulkLoadWants(IvfpqBulkLoad *load, uint64 id)
{
	const IvfpqSharing *sharing = load->placer.sharing;
	int			use = IVFPQ_ROW_NONE;

	if (placer_wants(&load->placer, id))
		use |= IVFPQ_ROW_PLACED;
	if (load->calibration && (sharing == NULL || !sharing->recovering) &&
		IvfpqLevelHas(1, id))
		use |= IVFPQ_ROW_SAMPLED;
	return use;
}

/* Takes a raw vector [dims], of the row with this TID and these keys. */
void
IvfpqBulkLoadRow(IvfpqBulkLoad *load, const float *row, uint64 id,
				 const IvfpqKeyAbbrevs *keys, IvfpqRowUse use)
{
	if (use & IVFPQ_ROW_SAMPLED)
		IvfpqCalibrationSample(load->calibration, row, id);
	if (use & IVFPQ_ROW_PLACED)
		placer_add(&load->placer, row, id,
				   load->form.keys.nkeys > 0 ? keys : NULL);
}

/*
 * This participant has no more rows: places those that still wait, and passes
 * on what other participants take over.
 */
static void
finish_rows(IvfpqBulkLoad *load, Relation index)
{
	IvfpqParallel *parallel = load->parallel;
	IvfpqBuilder *builder = placer_end(&load->placer);

	if (load->record != NULL)
		IvfpqRecordBuilderFinish(&load->refine,
								 &parallel->shared->refine_head);
	if (parallel->has_workers)
		IvfpqTempFileDone(&load->ranges);
	if (load->calibration)
		IvfpqCalibrationFlush(load->calibration);
	if (load->calibration && parallel->has_workers)
		IvfpqGroundTruthExport(load->calibration, parallel);
	pg_atomic_fetch_add_u64(&parallel->shared->npostings, load->npostings);
	IvfpqCalibMirrorJoin(&load->calib_mirror, index,
						 load->calibration ? builder : NULL,
						 IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_SHARING),
						 gv_code_bytes(load->training->gv.m));
}

/* All rows are placed: writes the arrays of the model, and fills in *meta. */
static void
write_model(IvfpqBulkLoad *load, Relation index, IvfpqMetaData *meta,
			bool shared)
{
	const IvfpqTraining *training = load->training;
	IvfpqParallelShared *parallel = load->parallel->shared;
	int			dims = training->gv.dims;
	GvTree		tree = IvfpqTree(training);

	load->rows = (int64) pg_atomic_read_u64(&parallel->done);
	meta->refine_head = pg_atomic_read_u32(&parallel->refine_head);
	meta->dims = dims;
	meta->pq_dim = training->gv.m;
	meta->nlists = training->nlists;
	meta->nparents = training->nparents;
	meta->lists_per_row = training->lists_per_row;
	meta->scale = training->gv.scale;
	meta->rotated = training->rotation != NULL;
	meta->rows_at_training = load->rows;
	IvfpqMetaPlace(meta, 0);
	IvfpqMetaPlace(meta, IvfpqReserve(index, IvfpqModelPages(meta), shared));

	IvfpqArrayWrite(index, meta->mean, training->mean, dims, shared);
	IvfpqArrayWrite(index, meta->codebooks, training->codebooks,
					(int64) GV_CODEWORDS * dims, shared);
	IvfpqArrayWrite(index, meta->parents, training->parents,
					(int64) training->nparents * dims, shared);
	IvfpqArrayWrite(index, meta->parent_offsets,
					(const float *) training->parent_offsets,
					training->nparents + 1, shared);
	IvfpqArrayWrite(index, meta->centroids, training->centroids,
					(int64) training->nlists * dims, shared);
	IvfpqCodedWrite(index, meta, &training->gv, &tree, shared);
	if (meta->rotated)
		IvfpqArrayWrite(index, meta->rotation, training->rotation,
						(int64) dims * dims, shared);
}

/* Does the leader's work between placing rows and writing lists. */
static void
begin_writing(IvfpqBulkLoad *load, Relation index, IvfpqMetaData *meta,
			  bool shared)
{
	IvfpqParallelShared *parallel = load->parallel->shared;

	if (load->calibration && load->parallel->has_workers)
		IvfpqGroundTruthImport(load->calibration, load->parallel);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_WRITING);
	write_model(load, index, meta, shared);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_TOTAL,
								 load->rows);
	IvfpqCalibMirrorAgree(&load->calib_mirror);
	IvfpqCalibMirrorBegin(&load->calib_mirror,
						  pg_atomic_read_u64(&parallel->npostings));
	parallel->meta = *meta;
}

/*
 * For IvfpqWriterList: returns the next posting for the pages, and adds it to
 * the calibration mirror.
 */
static void
next_posting(void *arg, IvfpqPosting *posting)
{
	IvfpqBulkLoad *load = arg;

	postings_next(&load->postings, posting);
	IvfpqCalibMirrorAdd(&load->calib_mirror, posting);
}

/* Sorts the postings, of lists from `first` on, and writes these lists. */
static void
write_lists(IvfpqBulkLoad *load, Relation index, const IvfpqMetaData *meta,
			int first, bool shared)
{
	IvfpqPostings *postings = &load->postings;
	const uint32 *counts = postings->counts;
	IvfpqDirEntry *entries = IvfpqParallelMemory(load->parallel,
												 IVFPQ_PARALLEL_ENTRIES);
	IvfpqWriter writer;

	postings_sort(postings);
	IvfpqWriterInit(&writer, index, meta, counts, postings->nlists, shared);
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
	postings_end(postings);
}

/*
 * Gathers the postings that all participants have put for a range of lists,
 * from `first` on.
 */
static void
gather_range(IvfpqBulkLoad *load, int range, int first)
{
	for (int from = 0; from < load->parallel->shared->size; from++)
	{
		BufFile    *file = IvfpqTempFileOpen(&load->ranges, range, from);

		if (file == NULL)
			continue;
		while (IvfpqTempFileRead(file, load->item, load->form.bytes))
		{
			IvfpqPosting posting;
			IvfpqKeyAbbrevs keys;

			CHECK_FOR_INTERRUPTS();
			take_posting(&load->form, (const char *) load->item, &posting,
						 &keys);
			postings_put(&load->postings, load->item->list - first,
						 &posting);
		}
		IvfpqTempFileClose(&load->ranges, file);
	}
}

/* Writes ranges of lists that no other participant writes. */
static void
write_ranges(IvfpqBulkLoad *load, Relation index, const IvfpqMetaData *meta,
			 bool shared)
{
	const IvfpqTempFile *ranges = &load->ranges;
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

		postings_begin(&load->postings, end - first, &load->form,
					   postings_limit(load));
		gather_range(load, (int) range, first);
		write_lists(load, index, meta, first, shared);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
}

/*
 * Places the rows that still wait and, when all participants have done so,
 * writes the model's arrays and the lists to pages added for them.  With
 * `shared` others use the index meanwhile.  Fills in their places in *meta.
 * IvfpqBulkLoadFinish does the rest when all participants have returned from
 * here.
 */
void
IvfpqBulkLoadWrite(IvfpqBulkLoad *load, Relation index, IvfpqMetaData *meta,
				   bool shared)
{
	IvfpqParallel *parallel = load->parallel;

	finish_rows(load, index);
	if (IvfpqParallelEndPhase(parallel))
	{
		begin_writing(load, index, meta, shared);
		IvfpqParallelStartPhase(parallel);
	}
	*meta = parallel->shared->meta;
	/* the leader may not have been able to begin the mirror */
	IvfpqCalibMirrorAgree(&load->calib_mirror);
	if (parallel->has_workers)
		write_ranges(load, index, meta, shared);
	else
		write_lists(load, index, meta, 0, shared);
	IvfpqCalibMirrorFlush(&load->calib_mirror);
	IvfpqInjectionPoint("build: written");
}

/*
 * All lists are written: the leader writes the directory and calibrates, with
 * the workers, which wait for the end of a phase.  The caller writes *meta.
 */
void
IvfpqBulkLoadFinish(IvfpqBulkLoad *load, Relation index, IvfpqMetaData *meta,
					bool shared)
{
	IvfpqDirectoryWrite(index, meta,
						IvfpqParallelMemory(load->parallel,
											IVFPQ_PARALLEL_ENTRIES),
						shared);
	IvfpqCalibMirrorAgree(&load->calib_mirror);
	if (load->calibration)
	{
		meta->rows_at_calibration = load->rows;
		IvfpqCalibrationRun(load->calibration, index, meta,
							&load->calib_mirror,
							load->parallel);
	}
	if (load->placer.builder)
		IvfpqBuilderEnd(load->placer.builder);
}

/* A worker helps to calibrate, if the leader asks for it. */
void
IvfpqBulkLoadHelp(IvfpqBulkLoad *load, Relation index)
{
	if (load->parallel->shared->grid_spec.nqueries == 0)
		return;
	IvfpqGroundTruthImport(load->calibration, load->parallel);
	IvfpqRecallGridHelp(load->calibration, index, load->parallel);
}
