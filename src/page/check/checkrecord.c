/*
 * checkrecord.c
 *		Looking for damage in refine pages, and in the chain of those with free
 *		slots.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"

#include "page/check/check.h"
#include "page/refinepage.h"

/* Readings of a chain that inserts and VACUUM keep changing. */
#define MAX_READINGS	10

static void problem(IvfpqChecker *checker, BlockNumber blkno,
					const char *fmt,...)
			__attribute__((format(printf, 3, 4)));

static void
problem(IvfpqChecker *checker, BlockNumber blkno, const char *fmt,...)
{
	char		message[256];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(message, sizeof(message), fmt, args);
	va_end(args);
	checker->report(checker->arg, true, blkno, IVFPQ_NO_LIST, message);
}

/*
 * Returns whether a refine record can be here.  Never in an index that has
 * none, whose postings have no such addresses.
 */
bool
IvfpqCheckAddress(IvfpqChecker *checker, const ItemPointerData *address)
{
	return checker->layout.refine && ItemPointerIsValid(address) &&
		ItemPointerGetOffsetNumberNoCheck(address) <=
		IvfpqRecordSlots(IvfpqRecordCodeBytes(checker->meta.refine,
											  checker->meta.dims)) &&
		IvfpqBlockExists(checker->index,
						 ItemPointerGetBlockNumberNoCheck(address));
}

/* Returns whether all half-precision values of a record are numbers. */
static bool
are_finite(const IvfpqRecord *record, int dims)
{
	for (int i = 0; i < dims; i++)
	{
		uint16		half;

		memcpy(&half, record->codes + i * sizeof(half), sizeof(half));
		if ((half & 0x7C00) == 0x7C00)
			return false;
	}
	return true;
}

/* A record's numbers; its row need not be there any more. */
static void
check_record(IvfpqChecker *checker, BlockNumber blkno, int slot,
			 const IvfpqRecord *record)
{
	if (!IvfpqCheckTid(checker, &record->tid))
		problem(checker, blkno,
				"refine record %d is of (%u,%u), which is not in the table",
				slot + 1, ItemPointerGetBlockNumberNoCheck(&record->tid),
				ItemPointerGetOffsetNumberNoCheck(&record->tid));
	if (!isfinite(record->min) || !(record->step >= 0) ||
		!isfinite(record->step) || !(record->error >= 0) ||
		(checker->meta.refine == IVFPQ_REFINE_HALF &&
		 (record->min != 0 || record->step != 0 ||
		  !are_finite(record, checker->meta.dims))))
		problem(checker, blkno, "numbers of refine record %d are out of range",
				slot + 1);
}

/* The refine page in checker->page; hands it on. */
void
IvfpqCheckRecordPage(IvfpqChecker *checker, BlockNumber blkno)
{
	int			code_bytes = IvfpqRecordCodeBytes(checker->meta.refine,
												  checker->meta.dims);
	int			nslots = IvfpqRecordSlots(code_bytes);
	int			nused = 0;
	int			counted;

	counted = IvfpqRecordPageHeader((Page) checker->page)->nused;
	for (int i = 0; i < nslots; i++)
	{
		const IvfpqRecord *record =
		IvfpqRecordGet((Page) checker->page, code_bytes, i);

		if (ItemPointerGetOffsetNumberNoCheck(&record->tid) ==
			InvalidOffsetNumber)
			continue;
		nused++;
		check_record(checker, blkno, i, record);
	}
	if (nused != counted)
		problem(checker, blkno, "%d refine records are in use, it counts %d",
				nused, counted);
	checker->records(checker->arg, blkno, (Page) checker->page, nslots);
}

/* Read the chain's head; false if the metapage cannot be had. */
static bool
read_head(IvfpqChecker *checker, BlockNumber *head)
{
	if (!IvfpqCheckCopyPage(checker, IVFPQ_METAPAGE) ||
		!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_META))
		return false;
	*head = ((IvfpqMetaData *)
			 PageGetContents((Page) checker->page))->refine_head;
	return true;
}

/*
 * Follow the chain from its head; InvalidBlockNumber if it is sound, else the
 * page that does not belong there.
 */
static BlockNumber
follow_chain(IvfpqChecker *checker, BlockNumber head)
{
	BlockNumber most = RelationGetNumberOfBlocks(checker->index);
	BlockNumber blkno = head;

	for (BlockNumber n = 0; blkno != InvalidBlockNumber; n++)
	{
		const IvfpqRecordHeader *header;

		if (n > most || !IvfpqCheckCopyPage(checker, blkno) ||
			!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_REFINE))
			return blkno;
		header = IvfpqRecordPageHeader((Page) checker->page);
		if (!header->chained)
			return blkno;
		blkno = header->next;
	}
	return InvalidBlockNumber;
}

/*
 * Check the chain of refine pages with free slots.  A problem counts only if
 * the head is the same at a second reading.
 */
void
IvfpqCheckRecordChain(IvfpqChecker *checker)
{
	BlockNumber last = InvalidBlockNumber;

	for (int i = 0; i < MAX_READINGS; i++)
	{
		BlockNumber head;
		BlockNumber wrong;

		CHECK_FOR_INTERRUPTS();
		if (!read_head(checker, &head))
			return;
		wrong = follow_chain(checker, head);
		if (wrong == InvalidBlockNumber)
			return;
		if (head == last)
		{
			problem(checker, wrong,
					"it is not the next of the refine pages with free slots");
			return;
		}
		last = head;
	}
}
