/*
 * verifykeys.c
 *		gpuvec_verify_index: are the images in the index those of the table's
 *		keys?
 *
 * Copies in the index and rows that the snapshot sees are sorted together, by
 * TID and the row first: by places, TID * 2, and 1 for a copy.  What stands for
 * the images is their digest.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "am/common/tid.h"
#include "am/maintain/verifykeys.h"

/* Begin, for an index that may have keys; memory from the current context. */
void
IvfpqVerifyKeysBegin(IvfpqVerifyKeys *verify, Relation index)
{
	memset(verify, 0, sizeof(*verify));
	IvfpqKeysInit(&verify->keys, index);
	if (verify->keys.nkeys > 0)
		IvfpqPairSortBegin(&verify->sort);
}

/* The index holds this. */
void
IvfpqVerifyKeysPosting(IvfpqVerifyKeys *verify, const IvfpqFound *found)
{
	if (verify->keys.nkeys > 0 && found->place != IVFPQ_PENDING)
		IvfpqPairSortPut(&verify->sort, IvfpqTidToId(&found->tid) * 2 + 1,
						 found->keys);
}

/* The snapshot sees this row, with these values of the index's columns. */
void
IvfpqVerifyKeysRow(IvfpqVerifyKeys *verify, ItemPointer tid,
				   const Datum *values, const bool *isnull)
{
	IvfpqKeyAbbrevs abbrevs;

	if (verify->keys.nkeys == 0)
		return;
	IvfpqKeysMake(&verify->keys, values, isnull, &abbrevs);
	IvfpqPairSortPut(&verify->sort, IvfpqTidToId(tid) * 2,
					 IvfpqKeyAbbrevsDigest(&verify->keys.form, &abbrevs));
}

/* All are there: hand out each row that a copy has other keys of, once. */
void
IvfpqVerifyKeysCompare(IvfpqVerifyKeys *verify,
					   void (*report) (void *arg, uint64 id), void *arg)
{
	uint64		row = 0;
	uint64		expected = 0;
	uint64		place;
	uint64		digest;
	bool		seen = false;

	if (verify->keys.nkeys == 0)
		return;
	IvfpqPairSortPerform(&verify->sort);
	while (IvfpqPairSortNext(&verify->sort, &place, &digest))
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
	if (verify->keys.nkeys > 0)
		IvfpqPairSortEnd(&verify->sort);
}
