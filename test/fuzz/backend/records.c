/*
 * records.c
 *		Changes of pages, as generic records make them, without a log.
 */
#include "backend.h"

#include "access/generic_xlog.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "storage/bufmgr.h"

/* PostgreSQL's */
volatile uint32 CritSectionCount;
int			wal_level;
XLogRecPtr	XactLastRecEnd;

struct GenericXLogState
{
	Buffer		buffers[MAX_GENERIC_XLOG_PAGES];
	char	   *images[MAX_GENERIC_XLOG_PAGES]; /* [BLCKSZ] */
	int			n;
};

GenericXLogState *
GenericXLogStart(Relation relation)
{
	return palloc0(sizeof(GenericXLogState));
}

Page
GenericXLogRegisterBuffer(GenericXLogState *state, Buffer buffer, int flags)
{
	for (int i = 0; i < state->n; i++)
		if (state->buffers[i] == buffer)
			return state->images[i];
	if (state->n == MAX_GENERIC_XLOG_PAGES)
		FAULT("a record of too many pages");
	state->buffers[state->n] = buffer;
	state->images[state->n] = palloc(BLCKSZ);
	memcpy(state->images[state->n], BufferGetPage(buffer), BLCKSZ);
	return state->images[state->n++];
}

/* A page loses what is between pd_lower and pd_upper. */
XLogRecPtr
GenericXLogFinish(GenericXLogState *state)
{
	for (int i = 0; i < state->n; i++)
	{
		PageHeader	header = (PageHeader) state->images[i];

		MarkBufferDirty(state->buffers[i]);
		memset(state->images[i] + header->pd_lower, 0,
			   header->pd_upper - header->pd_lower);
		memcpy(BufferGetPage(state->buffers[i]), state->images[i], BLCKSZ);
	}
	GenericXLogAbort(state);
	return 0;
}

void
GenericXLogAbort(GenericXLogState *state)
{
	for (int i = 0; i < state->n; i++)
		pfree(state->images[i]);
	pfree(state);
}

/* As PostgreSQL does. */
void
PageInit(Page page, Size page_bytes, Size special_bytes)
{
	PageHeader	header = (PageHeader) page;

	special_bytes = MAXALIGN(special_bytes);
	memset(page, 0, page_bytes);
	header->pd_lower = SizeOfPageHeaderData;
	header->pd_upper = page_bytes - special_bytes;
	header->pd_special = page_bytes - special_bytes;
	PageSetPageSizeAndVersion(page, page_bytes, PG_PAGE_LAYOUT_VERSION);
}

XLogRecPtr
log_newpage_buffer(Buffer buffer, bool standard)
{
	return 0;
}

NO_OP(void log_newpage_range(Relation rel, ForkNumber fork, BlockNumber start,
							 BlockNumber end, bool standard))
NO_OP(void XLogFlush(XLogRecPtr record))

FullTransactionId
ReadNextFullTransactionId(void)
{
	return FullTransactionIdFromU64(1000);
}

bool
RecoveryInProgress(void)
{
	return false;
}
