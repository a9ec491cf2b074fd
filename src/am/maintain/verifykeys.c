/*
 * verifykeys.c
 *		gpuvec_verify_index: are the abbreviated keys in the index those of the
 *		table's rows?
 *
 * Postings in the index and rows that the snapshot sees are sorted together,
 * by TID and the row first: by places, TID * 2, and 1 more for a posting.  A
 * digest stands for the abbreviated keys.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "am/common/enginecall.h"
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

/* Adds a posting of the index. */
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

/*
 * Reports each row, once, of which a posting has other keys.  Call when all
 * postings and rows were added.
 */
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
