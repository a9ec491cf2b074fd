/*
 * load.c
 *		A whole mirror, or what one lacks.
 *
 * While gpuvecd works on a message, the next one is being read: the answer is
 * awaited only before something else is sent.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "client/mirror/load.h"
#include "client/mirror/wanted.h"
#include "client/state/state.h"
#include "page/array.h"
#include "page/metapage.h"
#include "page/refinepage.h"

/*
 * How long gpuvecd may take for a message; shorter than DROP DATABASE waits.
 */
#define MESSAGE_US			INT64CONST(4000000)

/* Lists whose states are asked for together. */
#define STATES_RANGE		65536

/* Lists that are counted while the index is locked. */
#define COUNTED_LISTS		16384

/* Bytes of a message, if maintenance_work_mem allows for two. */
#define MESSAGE_BYTES		(4 * 1024 * 1024)

#define NSLOTS				2

/* The outcome of a request, as a result of the load. */
static IvfpqLoadResult
judge(IvfpqLoad *load)
{
	const IvfpqChannel *channel = load->channel;

	if (channel->served == IVFPQ_SERVED)
		return IVFPQ_LOAD_DONE;
	snprintf(load->error, sizeof(load->error), "gpuvecd: %s",
			 channel->reason);
	if (channel->served == IVFPQ_NOT_MIRRORED)
		return IVFPQ_LOAD_ABSENT;
	if (channel->refusal == GV_REFUSED_NO_MEMORY)
	{
		strlcpy(load->error, "gpuvecd has no room for it",
				sizeof(load->error));
		return IVFPQ_LOAD_NO_MEMORY;
	}
	return IVFPQ_LOAD_FAILED;
}

/* Give gpuvecd its time for what comes now. */
static void
start_clock(IvfpqLoad *load)
{
	load->channel->deadline = IvfpqNow() + MESSAGE_US;
}

/* Receive the answer to what was sent last. */
static IvfpqLoadResult
await_answer(IvfpqLoad *load)
{
	start_clock(load);
	return IvfpqRingAwait(&load->ring, 0) ? IVFPQ_LOAD_DONE : judge(load);
}

/*
 * Send `bytes` of load->message, behind a head, whose answer says nothing but
 * that it is done.  load->message is another's place then.
 */
IvfpqLoadResult
IvfpqLoadSend(IvfpqLoad *load, GvMessageType type, const void *head,
			  Size head_bytes, Size bytes)
{
	start_clock(load);
	if (!IvfpqRingSend(&load->ring, type, head, head_bytes, bytes, 0))
		return judge(load);
	load->message = IvfpqRingSlot(&load->ring, load->ring.filled);
	return IVFPQ_LOAD_DONE;
}

/* Send what lies elsewhere and receive its answer, of this length. */
IvfpqLoadResult
IvfpqLoadAsk(IvfpqLoad *load, GvMessageType type, const void *head,
			 Size head_bytes, const void *tail, Size tail_bytes,
			 uint32 length)
{
	IvfpqLoadResult result = await_answer(load);

	if (result != IVFPQ_LOAD_DONE)
		return result;
	start_clock(load);
	(void) IvfpqChannelExchange(load->channel, type, head, head_bytes, tail,
								tail_bytes, length);
	return judge(load);
}

/*
 * Send the chunks that are in the message, after the refine records of their
 * postings.
 */
static IvfpqLoadResult
send_chunks(IvfpqLoad *load)
{
	GvListsRequest *request = (GvListsRequest *) load->message;
	IvfpqLoadResult result = IvfpqRecordsSend(load);

	if (result != IVFPQ_LOAD_DONE || load->nchunks == 0)
		return result;
	request->key = load->key;
	request->nchunks = load->nchunks;
	request->unused = 0;
	return IvfpqLoadSend(load, GV_MSG_LISTS, NULL, 0, load->used);
}

/* Send an array of the model, `count` elements from page `first` on. */
static IvfpqLoadResult
send_array(IvfpqLoad *load, GvArray array, BlockNumber first, int64 count)
{
	int64		slice = load->capacity / sizeof(float);

	for (int64 done = 0; done < count; done += slice)
	{
		GvArrayRequest request = {load->key, array, 0, done,
		Min(slice, count - done)};
		IvfpqLoadResult result = IvfpqLoadLock(load);
		float	   *values = (float *) load->message;
		IvfpqArrayReader reader;
		int64		filled = 0;

		if (result != IVFPQ_LOAD_DONE)
			return result;
		/* as vectors of one element, so that any slice can be read */
		IvfpqArrayOpen(&reader, load->index, first, 1, done + request.count);
		reader.next = done;
		while (filled < request.count)
		{
			int			n;
			const float *run = IvfpqArrayNext(&reader, &n);

			memcpy(values + filled, run, n * sizeof(float));
			filled += n;
		}
		IvfpqArrayClose(&reader);
		IvfpqLoadUnlock(load);
		result = IvfpqLoadSend(load, GV_MSG_ARRAY, &request, sizeof(request),
							   request.count * sizeof(float));
		if (result != IVFPQ_LOAD_DONE)
			return result;
	}
	return IVFPQ_LOAD_DONE;
}

/* Send a list that no message holds. */
static IvfpqLoadResult
send_long_list(IvfpqLoad *load, int32 list)
{
	IvfpqLongList longlist = {.list = -1};
	IvfpqLoadResult result;

	do
	{
		result = IvfpqLoadLock(load);
		if (result != IVFPQ_LOAD_DONE)
			break;
		if (longlist.list < 0)
			IvfpqLongBegin(load, &longlist, list);
		if (!IvfpqLongNext(load, &longlist))
		{
			/* rewritten meanwhile: once more, from its first block */
			IvfpqLoadUnlock(load);
			pfree(longlist.addresses);
			longlist.list = -1;
			longlist.addresses = NULL;
			continue;
		}
		IvfpqRecordsRead(load);
		IvfpqLoadUnlock(load);
		result = send_chunks(load);
	} while (result == IVFPQ_LOAD_DONE &&
			 (longlist.list < 0 || longlist.next < longlist.nblocks));
	if (longlist.addresses)
		pfree(longlist.addresses);
	return result;
}

/*
 * Under one lock, read of lists *list to end - 1 as many as a message takes,
 * and send it.  have [end - *list]: what the mirror has of them.
 */
static IvfpqLoadResult
send_some_lists(IvfpqLoad *load, int32 *list, int32 end,
				const GvListState *have)
{
	int32		first = *list;
	IvfpqChunkResult chunk = IVFPQ_CHUNK_DONE;
	IvfpqLoadResult result = IvfpqLoadLock(load);

	if (result != IVFPQ_LOAD_DONE)
		return result;
	IvfpqMessageBegin(load);
	while (*list < end && chunk == IVFPQ_CHUNK_DONE)
	{
		chunk = IvfpqMessageAdd(load, *list, &have[*list - first]);
		if (chunk == IVFPQ_CHUNK_FULL && load->nchunks > 0)
			break;
		load->postings += load->reader.entry.nitems;
		(*list)++;
	}
	IvfpqRecordsRead(load);
	IvfpqLoadUnlock(load);

	if (chunk == IVFPQ_CHUNK_FULL && load->nchunks == 0)
		return send_long_list(load, *list - 1);
	return send_chunks(load);
}

/* The states that the mirror has lists first to first + count - 1 in. */
static IvfpqLoadResult
get_states(IvfpqLoad *load, int32 first, int32 count, GvListState *states)
{
	GvRangeRequest request = {load->key, first, count, 0, 0};
	uint32		bytes = count * sizeof(GvListState);
	IvfpqLoadResult result = IvfpqLoadAsk(load, GV_MSG_STATES, &request,
										  sizeof(request), NULL, 0, bytes);

	if (result == IVFPQ_LOAD_DONE)
		memcpy(states, IvfpqAnswerBody(load->channel), bytes);
	return result;
}

/*
 * Bring all lists to what they are; `fresh`: the mirror has nothing of them
 * yet.
 */
static IvfpqLoadResult
send_lists(IvfpqLoad *load, bool fresh)
{
	int32		nlists = load->meta.nlists;
	GvListState *have;
	IvfpqLoadResult result = IVFPQ_LOAD_DONE;

	have = MemoryContextAllocZero(load->context,
								  Min(nlists, STATES_RANGE) *
								  sizeof(GvListState));
	load->postings = 0;
	/* to a mirror that has nothing yet all records come at once */
	load->note_records = !fresh && IvfpqMirrorHasRecords(&load->meta);
	for (int32 first = 0; first < nlists && result == IVFPQ_LOAD_DONE;
		 first += STATES_RANGE)
	{
		int32		end = Min(nlists, first + STATES_RANGE);
		int32		list = first;

		if (!fresh)
			result = get_states(load, first, end - first, have);
		while (list < end && result == IVFPQ_LOAD_DONE)
		{
			result = send_some_lists(load, &list, end, have + (list - first));
			if (fresh)
				IvfpqMirrorRequestProgress(&load->key, load->postings,
										   load->expected);
		}
	}
	pfree(have);
	if (result == IVFPQ_LOAD_DONE)
		result = await_answer(load);
	return result;
}

/* Which version of the directory is there now? */
static IvfpqLoadResult
get_version(IvfpqLoad *load, uint64 *version)
{
	IvfpqLoadResult result = IvfpqLoadLock(load);

	if (result != IVFPQ_LOAD_DONE)
		return result;
	*version = IvfpqDirectoryVersion(load->index, &load->meta);
	IvfpqLoadUnlock(load);
	return IVFPQ_LOAD_DONE;
}

/*
 * Bring what the mirror lacks of lists.  If the directory is the same before
 * and behind, then all the time lists were what the mirror has now: say so.
 */
static IvfpqLoadResult
catch_up(IvfpqLoad *load)
{
	GvCurrentRequest request = {.key = load->key};
	uint64		version = 0;
	IvfpqLoadResult result = get_version(load, &request.version);

	if (result == IVFPQ_LOAD_DONE)
		result = send_lists(load, false);
	if (result == IVFPQ_LOAD_DONE)
		result = get_version(load, &version);
	if (result == IVFPQ_LOAD_DONE && version != 0 &&
		version == request.version)
		result = IvfpqLoadAsk(load, GV_MSG_CURRENT, &request, sizeof(request),
							  NULL, 0, 0);
	return result;
}

/*
 * Count the postings that the lists hold now.  The index is locked, and after
 * some lists each time unlocked for a moment; it is still locked if the result
 * is IVFPQ_LOAD_DONE.
 */
static IvfpqLoadResult
count_postings(IvfpqLoad *load)
{
	IvfpqLoadResult result = IVFPQ_LOAD_DONE;

	load->expected = 0;
	for (int list = 0; list < load->meta.nlists; list++)
	{
		IvfpqDirEntry entry;

		CHECK_FOR_INTERRUPTS();
		if (list > 0 && list % COUNTED_LISTS == 0)
		{
			IvfpqLoadUnlock(load);
			result = IvfpqLoadLock(load);
			if (result != IVFPQ_LOAD_DONE)
				break;
		}
		IvfpqDirEntryRead(load->index, &load->meta, list, &entry);
		load->expected += entry.nitems;
	}
	return result;
}

/* Begin a mirror, and bring its model.  *exists: there is one already. */
static IvfpqLoadResult
send_model(IvfpqLoad *load, bool *exists)
{
	const IvfpqMetaData *meta = &load->meta;
	GvBeginRequest request = {
		.key = load->key,
		.spec = {
			.metric = meta->metric,
			.dims = meta->dims,
			.m = meta->pq_dim,
			.nlists = meta->nlists,
			.nparents = meta->nparents,
			.postings = load->expected,
			.keys = IvfpqMirrorKeys(meta)
		}
	};
	IvfpqLoadResult result;

	if (IvfpqMirrorHasRecords(meta))
	{
		request.spec.refine_slots = IvfpqRecordSlots(meta->dims);
		request.spec.refine_records = load->expected / meta->lists_per_row;
	}
	result = IvfpqLoadAsk(load, GV_MSG_BEGIN, &request, sizeof(request),
						  NULL, 0, 0);
	*exists = load->channel->refusal == GV_REFUSED_EXISTS;
	if (*exists)
		return IVFPQ_LOAD_DONE;
	if (result == IVFPQ_LOAD_DONE)
		result = send_array(load, GV_CODEBOOKS, meta->codebooks,
							(int64) GV_CODEWORDS * meta->dims);
	if (result == IVFPQ_LOAD_DONE)
		result = send_array(load, GV_PARENTS, meta->parents,
							(int64) meta->nparents * meta->dims);
	if (result == IVFPQ_LOAD_DONE)
		result = send_array(load, GV_PARENT_OFFSETS, meta->parent_offsets,
							(int64) meta->nparents + 1);
	if (result == IVFPQ_LOAD_DONE)
		result = send_array(load, GV_CENTROIDS, meta->centroids,
							(int64) meta->nlists * meta->dims);
	return result;
}

/* A mirror that is not there yet; if it is, *exists. */
static IvfpqLoadResult
bring_all(IvfpqLoad *load, bool *exists)
{
	GvKeyRequest request = {load->key};
	IvfpqLoadResult result = send_model(load, exists);

	if (result != IVFPQ_LOAD_DONE || *exists)
		return result;
	result = send_lists(load, true);
	if (result == IVFPQ_LOAD_DONE && IvfpqMirrorHasRecords(&load->meta))
		result = IvfpqRecordsSendAll(load);
	/* what has changed meanwhile */
	if (result == IVFPQ_LOAD_DONE)
		result = catch_up(load);
	if (result == IVFPQ_LOAD_DONE)
		result = IvfpqLoadAsk(load, GV_MSG_READY, &request, sizeof(request),
							  NULL, 0, 0);
	return result;
}

/*
 * Let go of mirrors of the pages that the index had before, rather than when
 * the supervisor sees that their files have gone.
 */
static IvfpqLoadResult
drop_older(IvfpqLoad *load)
{
	IvfpqLoadResult result = IVFPQ_LOAD_DONE;
	GvKeyRequest request;

	while (result == IVFPQ_LOAD_DONE &&
		   IvfpqMirrorRequestOlder(&load->key, &request.key))
	{
		IvfpqMirrorRequestForget(&request.key);
		result = IvfpqLoadAsk(load, GV_MSG_DROP, &request, sizeof(request),
							  NULL, 0, 0);
	}
	return result;
}

/* Looks at the index for the first time; allocates memory for the rest. */
static IvfpqLoadResult
prepare(IvfpqLoad *load, bool whole)
{
	MemoryContext old;
	IvfpqLoadResult result = IvfpqLoadLock(load);

	if (result != IVFPQ_LOAD_DONE)
		return result;
	old = MemoryContextSwitchTo(load->context);
	load->strategy = GetAccessStrategy(BAS_BULKREAD);
	IvfpqListReaderInit(&load->reader, load->index, &load->meta, NULL,
						load->strategy);
	load->code_bytes = load->reader.layout.code_bytes;
	load->keys_bytes = IvfpqKeysBytes(&load->reader.layout.keys);
	load->capacity =
		Min(MESSAGE_BYTES, (Size) maintenance_work_mem * 1024 / 2);
	MemoryContextSwitchTo(old);
	if (whole)
		result = count_postings(load);
	if (result == IVFPQ_LOAD_DONE)
		IvfpqLoadUnlock(load);
	return result;
}

/*
 * Connect, and make memory for messages.  `share` is set for a whole mirror;
 * changes are too few for shared memory to pay.
 */
static IvfpqLoadResult
open_ring(IvfpqLoad *load, bool share)
{
	MemoryContext old = MemoryContextSwitchTo(load->context);
	bool		opened;

	load->channel = IvfpqConnect(GV_ROLE_LOADER, IvfpqNow() + MESSAGE_US);
	opened = IvfpqRingOpen(&load->ring, load->channel, NSLOTS, load->capacity,
						   share);
	MemoryContextSwitchTo(old);
	if (!opened)
		return judge(load);
	load->message = IvfpqRingSlot(&load->ring, 0);
	return IVFPQ_LOAD_DONE;
}

/*
 * Bring the mirror of load->key to gpuvecd; not `whole`: only what it lacks.
 * Everything it needs is in load->context, the caller's.  May throw.
 */
IvfpqLoadResult
IvfpqLoadMirror(IvfpqLoad *load, bool whole)
{
	IvfpqLoadResult result = prepare(load, whole);
	bool		exists = true;

	if (result == IVFPQ_LOAD_DONE)
		result = open_ring(load, whole);
	if (result == IVFPQ_LOAD_DONE && whole)
		result = drop_older(load);
	if (result == IVFPQ_LOAD_DONE && whole)
	{
		IvfpqMirrorRequestProgress(&load->key, 0, load->expected);
		result = bring_all(load, &exists);
	}
	if (result == IVFPQ_LOAD_DONE && exists)
		result = catch_up(load);
	load->fresh = !exists;
	return result;
}
