/*
 * copies.c
 *		Postings on their way from the engine to lists: put in any order,
 *		returned list by list.
 *
 * As long as postings fit into memory, their numbers are sorted by a counting
 * sort, and a list's postings come in the order in which they were put, which
 * is the heap's.  Beyond that all go through a tuplesort by (list, TID), on
 * disk.
 */
#include "postgres.h"

#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "am/build/copies.h"
#include "am/common/enginecall.h"
#include "pgcompat.h"

#define CHUNK_ITEMS		4096
#define PREFETCHED		8		/* items */

/* Columns of the sort. */
#define SORT_LIST		1
#define SORT_TID		2
#define SORT_ITEM		3

/* Sets *form to how postings with such codes and keys are stored. */
void
IvfpqStoredInit(IvfpqStoredForm *form, int code_bytes,
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
void
IvfpqStorePosting(const IvfpqStoredForm *form, IvfpqStoredPosting *item,
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
void
IvfpqTakePosting(const IvfpqStoredForm *form, const char *stored,
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
 * Begin; memory from the current context, about `limit` bytes at most: half of
 * them for postings in memory, half for a sort that takes these over, because
 * for a while both are there.
 */
void
IvfpqPostingsBegin(IvfpqPostings *postings, int nlists,
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

/* Item i of those in memory. */
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
 * There are too many postings for memory: from now on they go through a sort.
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
void
IvfpqPostingsPut(IvfpqPostings *postings, uint32 list,
				 const IvfpqPosting *posting)
{
	IvfpqStoredPosting *item;

	if (postings->sort == NULL &&
		postings->n == (int64) postings->nchunks * CHUNK_ITEMS)
		ensure_capacity(postings);
	item = postings->sort != NULL ?
		(IvfpqStoredPosting *) VARDATA(postings->item) :
		item_of(postings, postings->n);
	IvfpqStorePosting(&postings->form, item, list, posting);
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

/* All postings have been put: makes them ready for IvfpqPostingsNext. */
void
IvfpqPostingsSort(IvfpqPostings *postings)
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

/* The next item of the sort; in the slot, and not aligned. */
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

/* The next item in memory; a later one is prefetched. */
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
 * For IvfpqWriterList: returns the next posting, list by list.  Its code and
 * keys are valid until the next call.
 */
void
IvfpqPostingsNext(void *arg, IvfpqPosting *posting)
{
	IvfpqPostings *postings = arg;
	const char *found = postings->sort == NULL ? next_in_memory(postings) :
	next_sorted(postings);

	IvfpqTakePosting(&postings->form, found, posting, &postings->abbrevs);
}

/* Frees the sort, with its files. */
void
IvfpqPostingsEnd(IvfpqPostings *postings)
{
	if (postings->sort == NULL)
		return;
	ExecDropSingleTupleTableSlot(postings->slot);
	tuplesort_end(postings->sort);
}
