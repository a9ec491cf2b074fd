/*
 * trialsearch.c
 *		The calibration mirror, which gpuvecd has of an index that is being
 *		built: postings go there as they go to pages, and calibration searches
 *		there.
 *
 * A calibration mirror has no refine records: rows are named by their TIDs.
 * When gpuvecd fails there is no mirror any more, and participants search the
 * index's pages.  That is no error whatever gpuvec.on_gpu_error says: by then
 * the index is built.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "am/calibrate/trialsearch.h"

#define MESSAGE_BYTES	((Size) 8 << 20)

static void
end(IvfpqCalibMirror *mirror)
{
	IvfpqBuilderEnd(mirror->builder);
	mirror->builder = NULL;
}

/* There will be no mirror; true: this participant is the first to say so. */
static bool
mark_failed(IvfpqCalibMirror *mirror)
{
	return mirror->sharing == NULL ||
		pg_atomic_exchange_u32(&mirror->sharing->failed, 1) == 0;
}

/*
 * gpuvecd has failed; the calibration mirror is the last that a build wants of
 * it.
 */
static void
give_up(IvfpqCalibMirror *mirror)
{
	if (mark_failed(mirror))
		ereport(NOTICE,
				(errmsg("gpuvecd could not calibrate index \"%s\": %s",
						RelationGetRelationName(mirror->index),
						IvfpqBuilderReason(mirror->builder)),
				 errdetail("It is calibrated without a card, which takes longer.")));
	end(mirror);
}

static void
begin_message(IvfpqCalibMirror *mirror)
{
	mirror->used = sizeof(GvListsRequest);
	memset(mirror->message, 0, mirror->used);
}

/*
 * Takes part in a mirror, if there is a builder; memory from the current
 * context.  Only the builder's owner begins the mirror.
 */
void
IvfpqCalibMirrorJoin(IvfpqCalibMirror *mirror, Relation index,
					 IvfpqBuilder *builder,
					 IvfpqSharing *sharing, int code_bytes)
{
	memset(mirror, 0, sizeof(*mirror));
	mirror->index = index;
	mirror->builder = builder;
	mirror->sharing = sharing;
	mirror->code_bytes = code_bytes;
	if (builder == NULL)
		return;
	mirror->capacity = MESSAGE_BYTES;
	mirror->message = palloc_extended(mirror->capacity, MCXT_ALLOC_HUGE);
	begin_message(mirror);
}

/* Begins the mirror, for `postings` postings and no more. */
void
IvfpqCalibMirrorBegin(IvfpqCalibMirror *mirror, int64 postings)
{
	if (mirror->builder != NULL &&
		!IvfpqBuilderCalibMirror(mirror->builder, postings))
		give_up(mirror);
}

/*
 * All participants have done their work of a phase.  If gpuvecd has failed one
 * of them, there is no mirror any more.
 */
void
IvfpqCalibMirrorAgree(IvfpqCalibMirror *mirror)
{
	if (mirror->builder != NULL && mirror->sharing != NULL &&
		pg_atomic_read_u32(&mirror->sharing->failed) != 0)
		end(mirror);
}

/* Sends the chunks that are there. */
void
IvfpqCalibMirrorFlush(IvfpqCalibMirror *mirror)
{
	if (mirror->builder == NULL || mirror->used == sizeof(GvListsRequest))
		return;
	if (IvfpqBuilderChunks(mirror->builder, mirror->message, mirror->used))
		begin_message(mirror);
	else
		give_up(mirror);
}

/*
 * A list of npostings postings follows; IvfpqCalibMirrorAdd for each of them.
 */
void
IvfpqCalibMirrorList(IvfpqCalibMirror *mirror, int list, uint32 npostings)
{
	int			nblocks = (npostings + GV_BLOCK - 1) / GV_BLOCK;
	GvChunk		chunk = {list, 0, nblocks, 0, {0, npostings, 0}};
	Size		bytes = gv_chunk_bytes(&chunk, mirror->code_bytes, 0);
	char	   *next;

	if (mirror->builder != NULL && mirror->used + bytes > mirror->capacity)
		IvfpqCalibMirrorFlush(mirror);
	if (mirror->builder == NULL)
		return;
	if (mirror->used + bytes > GV_MAX_MESSAGE)
	{
		/* only a list with most of the rows does not fit into a message */
		(void) mark_failed(mirror);
		end(mirror);
		return;
	}
	if (mirror->used + bytes > mirror->capacity)
	{
		mirror->capacity = GV_MAX_MESSAGE;
		mirror->message = repalloc_huge(mirror->message, mirror->capacity);
	}
	((GvListsRequest *) mirror->message)->nchunks++;
	next = mirror->message + mirror->used;
	mirror->used += bytes;
	memset(next, 0, bytes);
	memcpy(next, &chunk, sizeof(chunk));
	mirror->live = (uint32 *) (next + sizeof(chunk));
	mirror->t = (float *) (mirror->live + nblocks);
	mirror->tids = (ItemPointerData *) (mirror->t + (Size) nblocks * GV_BLOCK);
	mirror->codes = (uint8 *) (mirror->tids + (Size) nblocks * GV_BLOCK);
	mirror->count = 0;
}

/* Adds a posting to the list at hand. */
void
IvfpqCalibMirrorAdd(IvfpqCalibMirror *mirror, const IvfpqPosting *posting)
{
	uint32		i = mirror->count;
	uint8	   *codes;

	if (mirror->builder == NULL)
		return;
	codes = mirror->codes + (Size) (i / GV_BLOCK) * mirror->code_bytes *
		GV_BLOCK + i % GV_BLOCK;
	mirror->live[i / GV_BLOCK] |= UINT32_C(1) << i % GV_BLOCK;
	mirror->t[i] = posting->t;
	mirror->tids[i] = posting->tid;
	for (int b = 0; b < mirror->code_bytes; b++)
		codes[(Size) b * GV_BLOCK] = posting->code[b];
	mirror->count++;
}

/*
 * Searches for transformed queries [n][dims]: *nhits gets [n] counts and
 * *tids, side by side, the hits' TIDs, best first; both are valid until the
 * next search.  False: there is no mirror any more.
 */
bool
IvfpqCalibMirrorSearch(IvfpqCalibMirror *mirror, const float *queries, int n,
					   int dims,
					   int probes, int compare, int capacity, const int32 **nhits,
					   const ItemPointerData **tids)
{
	GvTryRequest request = {n, probes, compare, capacity};

	if (IvfpqBuilderTry(mirror->builder, &request, queries,
						n * dims * sizeof(float), nhits,
						(const char **) tids))
		return true;
	give_up(mirror);
	return false;
}
