/*
 * verifykeys.c
 *		gpuvec_verify_index: are the images in the index those of the table's
 *		keys?
 *
 * Copies in the index and rows that the snapshot sees are sorted together, by
 * TID and the row first.  What stands for the images is their digest.
 */
#include "postgres.h"

#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/tuplesort.h"

#include "am/common/tid.h"
#include "am/maintain/verifykeys.h"
#include "pgcompat.h"

/* Columns of the sort. */
#define SORT_PLACE		1		/* TID * 2, and 1 for a copy */
#define SORT_DIGEST		2

static void
begin_sort(IvfpqVerifyKeys *verify)
{
	TupleDesc	desc = CreateTemplateTupleDesc(SORT_DIGEST);
	AttrNumber	columns[] = {SORT_PLACE};
	Oid			operators[] = {Int8LessOperator};
	Oid			collations[] = {InvalidOid};
	bool		nulls_first[] = {false};

	TupleDescInitEntry(desc, SORT_PLACE, "place", INT8OID, -1, 0);
	TupleDescInitEntry(desc, SORT_DIGEST, "digest", INT8OID, -1, 0);
	verify->sort =
		tuplesort_begin_heap(desc, SORT_PLACE, columns, operators, collations,
							 nulls_first, Max(maintenance_work_mem / 2, 64),
							 NULL, TUPLESORT_NONE);
	verify->slot = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
}

/* Begin, for an index that may have keys; memory from the current context. */
void
IvfpqVerifyKeysBegin(IvfpqVerifyKeys *verify, Relation index)
{
	memset(verify, 0, sizeof(*verify));
	IvfpqKeysInit(&verify->keys, index);
	if (verify->keys.nkeys > 0)
		begin_sort(verify);
}

static void
put(IvfpqVerifyKeys *verify, uint64 place, uint64 digest)
{
	TupleTableSlot *slot = verify->slot;

	ExecClearTuple(slot);
	slot->tts_values[SORT_PLACE - 1] = Int64GetDatum((int64) place);
	slot->tts_values[SORT_DIGEST - 1] = Int64GetDatum((int64) digest);
	memset(slot->tts_isnull, 0, SORT_DIGEST * sizeof(bool));
	ExecStoreVirtualTuple(slot);
	tuplesort_puttupleslot(verify->sort, slot);
}

/* The index holds this. */
void
IvfpqVerifyKeysCopy(IvfpqVerifyKeys *verify, const IvfpqFound *found)
{
	if (verify->keys.nkeys > 0 && found->place != IVFPQ_PENDING)
		put(verify, IvfpqTidToId(&found->tid) * 2 + 1, found->keys);
}

/* The snapshot sees this row, with these values of the index's columns. */
void
IvfpqVerifyKeysRow(IvfpqVerifyKeys *verify, ItemPointer tid,
				   const Datum *values, const bool *isnull)
{
	IvfpqKeyImages images;

	if (verify->keys.nkeys == 0)
		return;
	IvfpqKeysMake(&verify->keys, values, isnull, &images);
	put(verify, IvfpqTidToId(tid) * 2,
		IvfpqKeyImagesDigest(&verify->keys.form, &images));
}

/* The next of the sort; false at the end. */
static bool
next(IvfpqVerifyKeys *verify, uint64 *place, uint64 *digest)
{
	bool		isnull;

	if (!tuplesort_gettupleslot(verify->sort, true, false, verify->slot, NULL))
		return false;
	*place = (uint64) DatumGetInt64(slot_getattr(verify->slot, SORT_PLACE,
												 &isnull));
	*digest = (uint64) DatumGetInt64(slot_getattr(verify->slot, SORT_DIGEST,
												  &isnull));
	return true;
}

/* All are there: hand out each row that a copy has other keys of, once. */
void
IvfpqVerifyKeysCompare(IvfpqVerifyKeys *verify,
					   void (*report) (void *arg, uint64 id), void *arg)
{
	TupleDesc	desc;
	uint64		row = 0;
	uint64		expected = 0;
	uint64		place;
	uint64		digest;
	bool		seen = false;

	if (verify->keys.nkeys == 0)
		return;
	desc = verify->slot->tts_tupleDescriptor;
	tuplesort_performsort(verify->sort);
	ExecDropSingleTupleTableSlot(verify->slot);
	verify->slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
	while (next(verify, &place, &digest))
	{
		CHECK_FOR_INTERRUPTS();
		if (place % 2 == 0)
		{
			row = place / 2;
			expected = digest;
			seen = true;
		}
		else if (seen && place / 2 == row && digest != expected)
		{
			report(arg, row);
			seen = false;
		}
	}
}

/* Let go of everything. */
void
IvfpqVerifyKeysEnd(IvfpqVerifyKeys *verify)
{
	if (verify->keys.nkeys == 0)
		return;
	ExecDropSingleTupleTableSlot(verify->slot);
	tuplesort_end(verify->sort);
}
