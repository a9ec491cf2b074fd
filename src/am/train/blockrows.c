/*
 * blockrows.c
 *		Rows to train lists on, besides the sample in memory: those of random
 *		blocks, read as they lie.
 */
#include "postgres.h"

#include <math.h>

#include "access/tableam.h"
#include "catalog/index.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/search/params.h"
#include "am/train/train.h"

#define CLAIM_BLOCKS	32

/* The reader's state that all participants share (IVFPQ_PARALLEL_READER). */
typedef struct Shared
{
	int			dims;
	bool		lenient;
	bool		transform;
	int64		nblocks;
	int64		nskip;
} Shared;

/* Move rows [n][dims] by mean and scale. */
void
IvfpqTransformRows(const IvfpqTraining *training, float *rows, int64 n)
{
	int			dims = training->gv.dims;

	for (int64 i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		gv_transform(&training->gv, rows + i * dims, 1, rows + i * dims);
	}
}

/* Leave these rows out, too. */
void
IvfpqReaderSkip(IvfpqReader *reader, const uint64 *ids, int64 n)
{
	uint64	   *skip = palloc_extended((reader->nskip + n) * sizeof(uint64),
									   MCXT_ALLOC_HUGE);

	if (reader->nskip > 0)
		memcpy(skip, reader->skip, reader->nskip * sizeof(uint64));
	if (n > 0)
		memcpy(skip + reader->nskip, ids, n * sizeof(uint64));
	reader->skip = skip;
	reader->nskip += n;
	IvfpqSortNumbers(skip, reader->nskip);
}

static bool
is_skipped(const IvfpqReader *reader, uint64 id)
{
	return reader->nskip > 0 &&
		bsearch(&id, reader->skip, reader->nskip, sizeof(uint64),
				IvfpqCompareNumbers) != NULL;
}

static void
flush_reader(IvfpqReader *reader)
{
	if (reader->transform)
		IvfpqTransformRows(reader->training, reader->batch, reader->nbatch);
	if (reader->nbatch > 0 &&
		!reader->sink(reader->sink_arg, reader->batch, reader->ids,
					  reader->nbatch))
		reader->enough = true;
	reader->nbatch = 0;
	CHECK_FOR_INTERRUPTS();
}

/*
 * Returns whether a raw row may go to gpuvecd, if rows are read for that:
 * gpuvecd cannot know which records must bound nothing.
 */
bool
IvfpqMaySend(const IvfpqReader *reader, const float *row)
{
	const IvfpqSample *sample = reader->sample;

	return reader->transform ||
		IvfpqGetOptions(reader->index)->refine == IVFPQ_REFINE_NONE ||
		IvfpqIsBoundable(sample->type, row, sample->dims);
}

/* Called for every row of the blocks. */
static void
read_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
			  bool alive, void *arg)
{
	IvfpqReader *reader = arg;
	IvfpqSample *sample = reader->sample;
	uint64		id = IvfpqTidToId(tid);
	MemoryContext oldcontext;
	const float *row;
	int			dims;

	IvfpqRowDone();
	/* a scan of blocks cannot be ended: the rest is skipped */
	if (reader->enough || isnull[0] || !alive || is_skipped(reader, id))
		return;

	oldcontext = MemoryContextSwitchTo(sample->tmp);
	row = IvfpqValueFloats(sample->type, values[0], &dims);
	MemoryContextSwitchTo(oldcontext);
	if (!sample->lenient)
		IvfpqCheckDims(sample->dims, dims);
	if (dims == sample->dims && IvfpqIsPlaceable(sample->type, row, dims) &&
		IvfpqMaySend(reader, row))
	{
		reader->ids[reader->nbatch] = id;
		memcpy(reader->batch + (Size) reader->nbatch++ * dims, row,
			   dims * sizeof(float));
	}
	MemoryContextReset(sample->tmp);
	if (reader->nbatch == IVFPQ_READ_ROWS)
		flush_reader(reader);
}

/* Read the rows of blocks first .. end - 1. */
static void
read_blocks(IvfpqReader *reader, BlockNumber first, BlockNumber end)
{
	if (end <= first)
		return;
	IvfpqSnapshotRenew();
	table_index_build_range_scan(reader->heap, reader->index,
								 reader->indexInfo, false, false, false,
								 first, end - first, read_callback, reader,
								 NULL);
}

/* Draws blocks, ascending, that hold about as many rows as are needed. */
static void
draw_blocks(IvfpqReader *reader, IvfpqParallel *parallel)
{
	BlockNumber all = RelationGetNumberOfBlocks(reader->heap);
	double		blocks_needed = ceil(all * (double) reader->rows_needed /
									 Max(reader->training->rows, 1));
	int			n = (int) Max(Min(Min(all, blocks_needed), PG_INT32_MAX), 1);
	BlockSamplerData sampler;

	reader->blocks = IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_BLOCKS,
										n * sizeof(BlockNumber));
	reader->nblocks = 0;
	BlockSampler_Init(&sampler, all, n, (uint32) IVFPQ_TRAINING_SEED);
	while (BlockSampler_HasMore(&sampler))
		reader->blocks[reader->nblocks++] = BlockSampler_Next(&sampler);
}

/* The leader, while workers wait, tells all participants what to read. */
void
IvfpqReaderShare(IvfpqReader *reader, IvfpqParallel *parallel)
{
	Shared	   *shared = IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_READER,
											sizeof(Shared));
	Size		bytes = reader->nskip * sizeof(uint64);

	draw_blocks(reader, parallel);
	if (bytes > 0)
		memcpy(IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_SKIP, bytes),
			   reader->skip,
			   bytes);
	shared->dims = reader->sample->dims;
	shared->lenient = reader->sample->lenient;
	shared->transform = reader->transform;
	shared->nblocks = reader->nblocks;
	shared->nskip = reader->nskip;
}

/* A worker, whose reader has relations, type and a training, joins. */
void
IvfpqReaderJoin(IvfpqReader *reader, IvfpqParallel *parallel)
{
	const Shared *shared =
	IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_READER);

	reader->sample->dims = shared->dims;
	reader->sample->lenient = shared->lenient;
	reader->transform = shared->transform;
	reader->blocks = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_BLOCKS);
	reader->nblocks = shared->nblocks;
	reader->skip = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_SKIP);
	reader->nskip = shared->nskip;
}

/* The leader, while workers wait: all has been read. */
void
IvfpqReaderEnd(IvfpqParallel *parallel)
{
	IvfpqParallelFree(parallel, IVFPQ_PARALLEL_READER);
	IvfpqParallelFree(parallel, IVFPQ_PARALLEL_BLOCKS);
	IvfpqParallelFree(parallel, IVFPQ_PARALLEL_SKIP);
}

/* Reads blocks first .. end - 1 of those to read, adjacent ones at once. */
static void
read_claimed(IvfpqReader *reader, int64 first, int64 end)
{
	const BlockNumber *blocks = reader->blocks;

	for (int64 at = first; at < end && !reader->enough; at++)
		if (at + 1 == end || blocks[at + 1] != blocks[at] + 1)
		{
			read_blocks(reader, blocks[first], blocks[at] + 1);
			first = at + 1;
		}
}

/*
 * Reads blocks that no other participant has claimed, until the sink needs no
 * more rows.
 */
void
IvfpqReaderRun(IvfpqReader *reader, IvfpqParallel *parallel)
{
	IvfpqSample *sample = reader->sample;
	int64		nclaims = (reader->nblocks + CLAIM_BLOCKS - 1) / CLAIM_BLOCKS;
	int64		claim;

	IvfpqSnapshotTake();
	reader->enough = false;
	reader->batch = palloc(IVFPQ_READ_ROWS * sample->dims * sizeof(float));
	sample->tmp = AllocSetContextCreate(CurrentMemoryContext,
										"gpuivfpq sample",
										ALLOCSET_DEFAULT_SIZES);
	while (!reader->enough && IvfpqParallelNext(parallel, nclaims, &claim))
		read_claimed(reader, claim * CLAIM_BLOCKS,
					 Min((claim + 1) * CLAIM_BLOCKS, reader->nblocks));
	flush_reader(reader);
	pfree(reader->batch);
	MemoryContextDelete(sample->tmp);
	IvfpqSnapshotDrop();
}
