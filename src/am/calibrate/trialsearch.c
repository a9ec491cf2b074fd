/*
 * trialsearch.c
 *		An index in the making, searched by gpuvecd: its copies go there as
 *		they go to pages, and calibration asks there what it finds.
 *
 * A trial has no refine records: rows are named by their TIDs.  When gpuvecd
 * fails there is no trial any more, and the session searches its pages.  That
 * is no error whatever gpuvec.on_gpu_error says: by then the index is built.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "am/calibrate/trialsearch.h"

#define MESSAGE_BYTES	((Size) 8 << 20)

static void
end(IvfpqTrial *trial)
{
	IvfpqBuilderEnd(trial->builder);
	trial->builder = NULL;
}

/* There will be no trial; true: this participant is the first to say so. */
static bool
mark_failed(IvfpqTrial *trial)
{
	return trial->sharing == NULL ||
		pg_atomic_exchange_u32(&trial->sharing->failed, 1) == 0;
}

/* gpuvecd has failed; the trial is the last that a build wants of it. */
static void
give_up(IvfpqTrial *trial)
{
	if (mark_failed(trial))
		ereport(NOTICE,
				(errmsg("gpuvecd could not calibrate index \"%s\": %s",
						RelationGetRelationName(trial->index),
						IvfpqBuilderReason(trial->builder)),
				 errdetail("It is calibrated without a card, which takes longer.")));
	end(trial);
}

static void
begin_message(IvfpqTrial *trial)
{
	trial->used = sizeof(GvListsRequest);
	memset(trial->message, 0, trial->used);
}

/*
 * Take part in one, if there is a builder; memory from the current context.
 * Only the builder's owner begins it.
 */
void
IvfpqTrialJoin(IvfpqTrial *trial, Relation index, IvfpqBuilder *builder,
			   IvfpqSharing *sharing, int code_bytes)
{
	memset(trial, 0, sizeof(*trial));
	trial->index = index;
	trial->builder = builder;
	trial->sharing = sharing;
	trial->code_bytes = code_bytes;
	if (builder == NULL)
		return;
	trial->room = MESSAGE_BYTES;
	trial->message = palloc_extended(trial->room, MCXT_ALLOC_HUGE);
	begin_message(trial);
}

/* Begin it, for so many copies and no more. */
void
IvfpqTrialBegin(IvfpqTrial *trial, int64 postings)
{
	if (trial->builder != NULL && !IvfpqBuilderTrial(trial->builder, postings))
		give_up(trial);
}

/*
 * All participants have done their work of a round.  If gpuvecd has failed one
 * of them, there is no trial any more.
 */
void
IvfpqTrialAgree(IvfpqTrial *trial)
{
	if (trial->builder != NULL && trial->sharing != NULL &&
		pg_atomic_read_u32(&trial->sharing->failed) != 0)
		end(trial);
}

/* Send the pieces that are there. */
void
IvfpqTrialFlush(IvfpqTrial *trial)
{
	if (trial->builder == NULL || trial->used == sizeof(GvListsRequest))
		return;
	if (IvfpqBuilderChunks(trial->builder, trial->message, trial->used))
		begin_message(trial);
	else
		give_up(trial);
}

/* A list of so many copies follows; IvfpqTrialAdd for each of them. */
void
IvfpqTrialList(IvfpqTrial *trial, int list, uint32 npostings)
{
	int			nblocks = (npostings + GV_BLOCK - 1) / GV_BLOCK;
	GvChunk		chunk = {list, 0, nblocks, 0, {0, npostings, 0}};
	Size		bytes = gv_chunk_bytes(&chunk, trial->code_bytes, 0);
	char	   *next;

	if (trial->builder != NULL && trial->used + bytes > trial->room)
		IvfpqTrialFlush(trial);
	if (trial->builder == NULL)
		return;
	if (trial->used + bytes > GV_MAX_MESSAGE)
	{
		/* what a message cannot hold is a list with most of the rows */
		(void) mark_failed(trial);
		end(trial);
		return;
	}
	if (trial->used + bytes > trial->room)
	{
		trial->room = GV_MAX_MESSAGE;
		trial->message = repalloc_huge(trial->message, trial->room);
	}
	((GvListsRequest *) trial->message)->nchunks++;
	next = trial->message + trial->used;
	trial->used += bytes;
	memset(next, 0, bytes);
	memcpy(next, &chunk, sizeof(chunk));
	trial->live = (uint32 *) (next + sizeof(chunk));
	trial->t = (float *) (trial->live + nblocks);
	trial->tids = (ItemPointerData *) (trial->t + (Size) nblocks * GV_BLOCK);
	trial->codes = (uint8 *) (trial->tids + (Size) nblocks * GV_BLOCK);
	trial->count = 0;
}

/* Add a copy to the list at hand. */
void
IvfpqTrialAdd(IvfpqTrial *trial, const IvfpqPosting *posting)
{
	uint32		i = trial->count;
	uint8	   *codes;

	if (trial->builder == NULL)
		return;
	codes = trial->codes + (Size) (i / GV_BLOCK) * trial->code_bytes *
		GV_BLOCK + i % GV_BLOCK;
	trial->live[i / GV_BLOCK] |= UINT32_C(1) << i % GV_BLOCK;
	trial->t[i] = posting->t;
	trial->tids[i] = posting->tid;
	for (int b = 0; b < trial->code_bytes; b++)
		codes[(Size) b * GV_BLOCK] = posting->code[b];
	trial->count++;
}

/*
 * Search for transformed queries [n][dims]: nhits [n] of them and, side by
 * side, the hits' TIDs, best first; false: there is no trial any more.  Good
 * until the next search.
 */
bool
IvfpqTrialSearch(IvfpqTrial *trial, const float *queries, int n, int dims,
				 int probes, int compare, int capacity, const int32 **nhits,
				 const ItemPointerData **tids)
{
	GvTryRequest request = {n, probes, compare, capacity};

	if (IvfpqBuilderTry(trial->builder, &request, queries,
						n * dims * sizeof(float), nhits,
						(const char **) tids))
		return true;
	give_up(trial);
	return false;
}
