/*
 * loadrecords.c
 *		Refine records on their way to a mirror.
 *
 * A record is written before the postings that name it, and read here after
 * them; so what goes to gpuvecd ahead of its postings is the record they were
 * written for, or that of a later row.  A mirror may keep the record of a row
 * that is dead by now, whose slot another row has: the postings that lead
 * there are the dead row's, and before its TID can belong to another row
 * VACUUM has marked them, which a scan sees by their list's del_seq.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/rel.h"

#include "client/mirror/load.h"
#include "page/metapage.h"
#include "page/refinepage.h"

/* Records read from pages at once. */
#define CHUNK			64

StaticAssertDecl(sizeof(ItemPointerData) ==
				 sizeof(((GvRefineItem *) NULL)->address),
				 "an address is three 16-bit words");

/* Bring a record into the form that travels; zeroed memory. */
static void
make_item(GvRefineItem *item, const ItemPointerData *address,
		  const IvfpqRecord *record, int dims)
{
	memcpy(item->address, address, sizeof(item->address));
	memcpy(item->rowid, &record->tid, sizeof(item->rowid));
	item->min = record->min;
	item->step = record->step;
	item->error = record->error;
	memcpy(item->codes, record->codes, dims);
}

/* Remember whose records have to go with a block's live postings. */
void
IvfpqRecordsNote(IvfpqLoad *load, const IvfpqBlockView *view)
{
	if (!load->note_records || view->refine == NULL)
		return;
	if (load->naddresses + GV_BLOCK > load->addresses_capacity)
	{
		int64		capacity = load->addresses_capacity * 2 + 1024;
		ItemPointerData *addresses =
		MemoryContextAllocHuge(load->context,
							   capacity * sizeof(ItemPointerData));

		if (load->naddresses > 0)
			memcpy(addresses, load->addresses,
				   load->naddresses * sizeof(ItemPointerData));
		if (load->addresses)
			pfree(load->addresses);
		load->addresses = addresses;
		load->addresses_capacity = capacity;
	}
	for (int i = 0; i < GV_BLOCK; i++)
		if ((view->live & (1U << i)) != 0)
			load->addresses[load->naddresses++] = view->refine[i];
}

static int
compare_addresses(const void *a, const void *b)
{
	return ItemPointerCompare((ItemPointer) a, (ItemPointer) b);
}

/* Sort what is noted; each once. */
static void
sort_addresses(IvfpqLoad *load)
{
	int64		n = 0;

	qsort(load->addresses, load->naddresses, sizeof(ItemPointerData),
		  compare_addresses);
	for (int64 i = 0; i < load->naddresses; i++)
		if (i == 0 || compare_addresses(&load->addresses[i],
										&load->addresses[n - 1]) != 0)
			load->addresses[n++] = load->addresses[i];
	load->naddresses = n;
}

/* Read the records that are noted.  The index is locked. */
void
IvfpqRecordsRead(IvfpqLoad *load)
{
	int			dims = load->meta.dims;
	Size		stride = gv_refine_stride(dims);
	Size		slot_bytes;
	char	   *slots;

	if (load->naddresses == 0)
		return;
	sort_addresses(load);
	slot_bytes = IvfpqRecordSlotBytes(dims);
	slots = palloc(CHUNK * slot_bytes);
	load->records = MemoryContextAllocExtended(load->context,
											   load->naddresses * stride,
											   MCXT_ALLOC_HUGE |
											   MCXT_ALLOC_ZERO);
	for (int64 done = 0; done < load->naddresses; done += CHUNK)
	{
		int			n = (int) Min(CHUNK, load->naddresses - done);

		CHECK_FOR_INTERRUPTS();
		IvfpqRecordRead(load->index, dims, load->addresses + done, n, slots,
						NULL);
		for (int i = 0; i < n; i++)
			make_item((GvRefineItem *) (load->records + (done + i) * stride),
					  &load->addresses[done + i],
					  (IvfpqRecord *) (slots + i * slot_bytes), dims);
	}
	pfree(slots);
}

/* Send what was read, and forget it. */
IvfpqLoadResult
IvfpqRecordsSend(IvfpqLoad *load)
{
	Size		stride = gv_refine_stride(load->meta.dims);
	int64		slice = (load->capacity - sizeof(GvListsRequest)) / stride;
	IvfpqLoadResult result = IVFPQ_LOAD_DONE;

	for (int64 done = 0; done < load->naddresses && result == IVFPQ_LOAD_DONE;
		 done += slice)
	{
		int64		n = Min(slice, load->naddresses - done);
		GvListsRequest request = {load->key, (int32) n, 0};

		result = IvfpqLoadAsk(load, GV_MSG_REFINE, &request, sizeof(request),
							  load->records + done * stride, n * stride, 0);
	}
	if (load->records)
		pfree(load->records);
	load->records = NULL;
	load->naddresses = 0;
	return result;
}

/* Add the records of a page to the message; false when it is full. */
static bool
add_page(IvfpqLoad *load, BlockNumber blkno, Page page, int64 *n)
{
	int			dims = load->meta.dims;
	int			nslots = IvfpqRecordSlots(dims);
	Size		stride = gv_refine_stride(dims);

	if ((*n + nslots) * stride > load->capacity - sizeof(GvListsRequest))
		return false;
	for (int slot = 0; slot < nslots; slot++)
	{
		const IvfpqRecord *record = IvfpqRecordGet(page, dims, slot);
		GvRefineItem *item = (GvRefineItem *) (load->message + *n * stride);
		ItemPointerData address;

		if (!ItemPointerIsValid(&record->tid))
			continue;
		ItemPointerSet(&address, blkno, slot + 1);
		memset(item, 0, stride);
		make_item(item, &address, record, dims);
		(*n)++;
	}
	return true;
}

/*
 * Under one lock, read refine pages from *blkno on until a message is full,
 * and send it; *blkno becomes InvalidBlockNumber after the last one.
 */
static IvfpqLoadResult
send_some_pages(IvfpqLoad *load, BlockNumber *blkno, char *page)
{
	IvfpqLoadResult result = IvfpqLoadLock(load);
	GvListsRequest request = {.key = load->key};
	BlockNumber nblocks;
	int64		n = 0;

	if (result != IVFPQ_LOAD_DONE)
		return result;
	nblocks = RelationGetNumberOfBlocks(load->index);
	for (; *blkno < nblocks; (*blkno)++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!IvfpqIsFixedPage(&load->meta, *blkno) &&
			IvfpqRecordPageCopy(load->index, *blkno, load->strategy, page) &&
			!add_page(load, *blkno, (Page) page, &n))
			break;
	}
	if (*blkno >= nblocks)
		*blkno = InvalidBlockNumber;
	IvfpqLoadUnlock(load);
	if (n == 0)
		return IVFPQ_LOAD_DONE;
	request.nchunks = (int32) n;
	return IvfpqLoadSend(load, GV_MSG_REFINE, &request, sizeof(request),
						 n * gv_refine_stride(load->meta.dims));
}

/* Send all records there are. */
IvfpqLoadResult
IvfpqRecordsSendAll(IvfpqLoad *load)
{
	BlockNumber blkno = 0;
	IvfpqLoadResult result = IVFPQ_LOAD_DONE;
	char	   *page = MemoryContextAlloc(load->context, BLCKSZ);

	while (result == IVFPQ_LOAD_DONE && blkno != InvalidBlockNumber)
		result = send_some_pages(load, &blkno, page);
	pfree(page);
	return result;
}
