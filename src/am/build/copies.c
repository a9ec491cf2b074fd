/*
 * copies.c
 *		Copies of rows on their way from the engine to lists: put in any order,
 *		handed out list by list.
 *
 * As long as they fit into memory, numbers of copies are sorted by counting,
 * and a list's copies come in the order in which they were put, which is the
 * heap's.  Beyond that all go through a tuplesort by (list, TID), on disk.
 */
#include "postgres.h"

#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "am/common/tid.h"
#include "am/build/copies.h"

#define CHUNK_ITEMS		4096
#define PREFETCHED		8		/* items */

/* Columns of the sort. */
#define SORT_LIST		1
#define SORT_TID		2
#define SORT_ITEM		3

/* How copies with such codes and keys are stored. */
void
IvfpqStoredInit(IvfpqStoredForm *form, int code_bytes,
				const IvfpqKeyForm *keys)
{
	form->code_bytes = code_bytes;
	form->keys = *keys;
	form->bytes = (int) sizeof(IvfpqStoredCopy) + code_bytes;
	if (keys->nkeys > 0)
		form->bytes++;
	for (int k = 0; k < keys->nkeys; k++)
		form->bytes += keys->width[k];
}

/* Store a copy in form->bytes. */
void
IvfpqStoreCopy(const IvfpqStoredForm *form, IvfpqStoredCopy *item,
			   uint32 list, const IvfpqCopy *copy)
{
	char	   *at = (char *) (item + 1);

	memset(item, 0, sizeof(*item));
	item->list = list;
	item->t = copy->t;
	item->tid = copy->tid;
	item->refine = copy->refine;
	item->second = copy->second;
	memcpy(at, copy->code, form->code_bytes);
	if (form->keys.nkeys == 0)
		return;
	at += form->code_bytes;
	*at++ = (char) copy->keys->nulls;
	for (int k = 0; k < form->keys.nkeys; at += form->keys.width[k++])
	{
		IvfpqKeyBytes bytes;

		memcpy(at, IvfpqKeyImageBytes(copy->keys->image[k],
									  form->keys.width[k], &bytes),
			   form->keys.width[k]);
	}
}

/*
 * What was stored, not aligned: its code where that is, the images of its keys
 * in *images.
 */
void
IvfpqTakeCopy(const IvfpqStoredForm *form, const char *stored,
			  IvfpqCopy *copy, IvfpqKeyImages *images)
{
	IvfpqStoredCopy item;
	const char *at = stored + sizeof(item);

	memcpy(&item, stored, sizeof(item));
	copy->t = item.t;
	copy->tid = item.tid;
	copy->refine = item.refine;
	copy->second = item.second;
	copy->code = (const uint8 *) at;
	copy->keys = NULL;
	if (form->keys.nkeys == 0)
		return;
	at += form->code_bytes;
	memset(images, 0, sizeof(*images));
	images->nulls = (uint8) *at++;
	for (int k = 0; k < form->keys.nkeys; at += form->keys.width[k++])
		images->image[k] = IvfpqKeyImageOf(at, form->keys.width[k]);
	copy->keys = images;
}

/*
 * Begin; memory from the current context, about `limit` bytes at most: half of
 * them for copies in memory, half for a sort that takes these over, because
 * for a while both are there.
 */
void
IvfpqCopiesBegin(IvfpqCopies *copies, int nlists, const IvfpqStoredForm *form,
				 Size limit)
{
	memset(copies, 0, sizeof(*copies));
	copies->nlists = nlists;
	copies->form = *form;
	copies->limit = limit / 2;
	copies->item_bytes = TYPEALIGN(sizeof(uint32), form->bytes);
	copies->counts = palloc0(nlists * sizeof(uint32));
}

/* Item i of those in memory. */
static inline IvfpqStoredCopy *
item_of(const IvfpqCopies *copies, int64 i)
{
	return (IvfpqStoredCopy *) (copies->chunks[i / CHUNK_ITEMS] +
								i % CHUNK_ITEMS * copies->item_bytes);
}

/* Put the item in copies->item into the sort. */
static void
sort_item(IvfpqCopies *copies)
{
	const IvfpqStoredCopy *item =
	(const IvfpqStoredCopy *) VARDATA(copies->item);
	TupleTableSlot *slot = copies->slot;

	ExecClearTuple(slot);
	slot->tts_values[SORT_LIST - 1] = Int32GetDatum(item->list);
	slot->tts_values[SORT_TID - 1] =
		Int64GetDatum((int64) IvfpqTidToId(&item->tid) * 2 + item->second);
	slot->tts_values[SORT_ITEM - 1] = PointerGetDatum(copies->item);
	memset(slot->tts_isnull, 0, SORT_ITEM * sizeof(bool));
	ExecStoreVirtualTuple(slot);
	tuplesort_puttupleslot(copies->sort, slot);
}

/* There are too many for memory: from now on they go through a sort. */
static void
begin_sort(IvfpqCopies *copies)
{
	TupleDesc	desc = CreateTemplateTupleDesc(SORT_ITEM);
	AttrNumber	columns[] = {SORT_LIST, SORT_TID};
	Oid			operators[] = {Int4LessOperator, Int8LessOperator};
	Oid			collations[] = {InvalidOid, InvalidOid};
	bool		nulls_first[] = {false, false};
	Size		bytes = VARHDRSZ + copies->form.bytes;

	TupleDescInitEntry(desc, SORT_LIST, "list", INT4OID, -1, 0);
	TupleDescInitEntry(desc, SORT_TID, "tid", INT8OID, -1, 0);
	TupleDescInitEntry(desc, SORT_ITEM, "item", BYTEAOID, -1, 0);
	copies->slot = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	copies->item = palloc(bytes);
	SET_VARSIZE(copies->item, bytes);
	copies->sort = tuplesort_begin_heap(desc, 2, columns, operators,
										collations, nulls_first,
										(int) Max(copies->limit / 1024, 64),
										NULL, TUPLESORT_NONE);
	for (int64 i = 0; i < copies->n; i++)
	{
		memcpy(VARDATA(copies->item), item_of(copies, i),
			   copies->form.bytes);
		sort_item(copies);
		/* one by one, so that the sort may take the memory that they give */
		if (i % CHUNK_ITEMS == CHUNK_ITEMS - 1)
			pfree(copies->chunks[i / CHUNK_ITEMS]);
	}
	copies->nchunks = 0;
}

/* Room in memory for one more item, or a sort. */
static void
make_room(IvfpqCopies *copies)
{
	Size		chunk = CHUNK_ITEMS * copies->item_bytes;
	Size		used = copies->nchunks * chunk +
	copies->n * sizeof(uint32);

	if (used + chunk > copies->limit || copies->n >= PG_INT32_MAX)
	{
		begin_sort(copies);
		return;
	}
	copies->chunks = copies->chunks == NULL ? palloc(sizeof(char *)) :
		repalloc(copies->chunks, (copies->nchunks + 1) * sizeof(char *));
	copies->chunks[copies->nchunks++] = palloc_extended(chunk,
														MCXT_ALLOC_HUGE);
}

/* Put a copy that belongs to a list. */
void
IvfpqCopiesPut(IvfpqCopies *copies, uint32 list, const IvfpqCopy *copy)
{
	IvfpqStoredCopy *item;

	if (copies->sort == NULL &&
		copies->n == (int64) copies->nchunks * CHUNK_ITEMS)
		make_room(copies);
	item = copies->sort != NULL ? (IvfpqStoredCopy *) VARDATA(copies->item) :
		item_of(copies, copies->n);
	IvfpqStoreCopy(&copies->form, item, list, copy);
	if (copies->sort != NULL)
		sort_item(copies);
	copies->counts[list]++;
	copies->n++;
}

/* Number the copies in memory list by list: a counting sort. */
static void
order_items(IvfpqCopies *copies)
{
	uint32	   *ends = palloc(copies->nlists * sizeof(uint32));
	uint32		next = 0;

	for (int list = 0; list < copies->nlists; list++)
	{
		ends[list] = next;
		next += copies->counts[list];
	}
	copies->order = palloc_extended(Max(copies->n, 1) * sizeof(uint32),
									MCXT_ALLOC_HUGE);
	for (int64 i = 0; i < copies->n; i++)
		copies->order[ends[item_of(copies, i)->list]++] = (uint32) i;
	pfree(ends);
}

/* All are there: make them ready to be handed out. */
void
IvfpqCopiesSort(IvfpqCopies *copies)
{
	TupleDesc	desc;

	if (copies->sort == NULL)
	{
		order_items(copies);
		return;
	}
	tuplesort_performsort(copies->sort);
	desc = CreateTupleDescCopy(copies->slot->tts_tupleDescriptor);
	ExecDropSingleTupleTableSlot(copies->slot);
	copies->slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
}

/* The next item of the sort; in the slot, and not aligned. */
static const char *
next_sorted(IvfpqCopies *copies)
{
	bool		isnull;

	if (!tuplesort_gettupleslot(copies->sort, true, false, copies->slot,
								NULL))
		elog(ERROR, "rows were lost while sorting by list");
	return VARDATA_ANY(DatumGetPointer(slot_getattr(copies->slot, SORT_ITEM,
													&isnull)));
}

/* The next item in memory; a later one is prefetched. */
static const char *
next_in_memory(IvfpqCopies *copies)
{
	if (copies->next + PREFETCHED < copies->n)
		__builtin_prefetch(item_of(copies,
								   copies->order[copies->next + PREFETCHED]));
	return (const char *) item_of(copies, copies->order[copies->next++]);
}

/*
 * For IvfpqWriterList: the next copy, list by list; its code and keys are good
 * until the one after it.
 */
void
IvfpqCopiesNext(void *arg, IvfpqCopy *copy)
{
	IvfpqCopies *copies = arg;
	const char *found = copies->sort == NULL ? next_in_memory(copies) :
	next_sorted(copies);

	IvfpqTakeCopy(&copies->form, found, copy, &copies->images);
}

/* Give back the sort, with its files. */
void
IvfpqCopiesEnd(IvfpqCopies *copies)
{
	if (copies->sort == NULL)
		return;
	ExecDropSingleTupleTableSlot(copies->slot);
	tuplesort_end(copies->sort);
}
