/*
 * sample.c
 *		Random samples of the rows to index: one in memory, and a larger one
 *		that is read by all participants.
 *
 * The sample in memory is made by PostgreSQL's block sampler and reservoir.
 * Blocks are drawn until they could fill the sample, so a table that fits is
 * read whole, and its rows are counted rather than estimated.  Blocks and rows
 * are drawn by a fixed seed, so that the same table gives the same sample.
 *
 * Lists of a large table need more rows than memory holds.  A reader
 * (IvfpqReader) reads the rows of random blocks as they lie, and passes them
 * on in batches.  The leader draws the blocks; participants claim runs of
 * them.
 */
#include "postgres.h"

#include <math.h>

#include "access/htup_details.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/build/train.h"
#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/search/params.h"

#define MAX_SAMPLES				((int64) 1 << 24)
#define SPARING_ROWS			4	/* read for each one that is taken */
#define BLOCKS_TO_COUNT			64
#define ENOUGH_ROWS				((int64) 1 << 18)	/* of a table that is
													 * larger than memory */
#define MOST_BLOCKS				PG_INT32_MAX	/* that a sampler draws */

#define CLAIM_BLOCKS	32		/* that a participant claims at once */

/* The reader's state that all participants share (IVFPQ_PARALLEL_READER). */
typedef struct Shared
{
	int			dims;
	bool		lenient;
	bool		transform;
	int64		nblocks;
	int64		nskip;
} Shared;

/* Returns the bytes of a row in memory. */
static Size
row_bytes(const IvfpqSample *sample)
{
	return sample->dims * sizeof(float) + sizeof(uint64);
}

/* Begins the sample, or begins it again. */
static void
begin_sample(IvfpqSample *sample)
{
	sample->count = 0;
	sample->seen = 0;
	sample->skip = -1;
	reservoir_init_selection_state(&sample->reservoir, sample->capacity);
	/* by a fixed seed, so that the same table gives the same sample */
	sampler_random_init_state((uint32) IVFPQ_TRAINING_SEED,
							  &sample->reservoir.randstate);
	sample->reservoir.W =
		exp(-log(sampler_random_fract(&sample->reservoir.randstate)) /
			sample->capacity);
}

/*
 * Makes capacity for one more row, doubled as needed, so that small tables
 * take little.
 */
static void
grow_sample(IvfpqSample *sample)
{
	Size		row = sample->dims * sizeof(float);
	int64		n = sample->count;

	if (sample->rows == NULL)
	{
		n = Min(sample->capacity, 1024);
		sample->rows = palloc_extended(row * n, MCXT_ALLOC_HUGE);
		sample->ids = palloc(sizeof(uint64) * n);
	}
	else if (n >= 1024 && (n & (n - 1)) == 0)
	{
		n = Min(sample->capacity, 2 * n);
		sample->rows = repalloc_huge(sample->rows, row * n);
		sample->ids = repalloc_huge(sample->ids, sizeof(uint64) * n);
	}
}

/*
 * Returns whether the next row is to be skipped; its value need not be read
 * then.
 */
static bool
pass_over(IvfpqSample *sample)
{
	if (sample->count < sample->capacity)
		return false;
	if (sample->skip < 0)
		sample->skip = reservoir_get_next_S(&sample->reservoir, sample->seen,
											sample->capacity);
	sample->skip -= 1;
	return sample->skip >= 0;
}

/* Puts a row into the sample, or in place of another. */
static void
take_row(IvfpqSample *sample, const float *row, uint64 id)
{
	int64		at;

	if (sample->count < sample->capacity)
	{
		grow_sample(sample);
		at = sample->count++;
	}
	else
		at = (int64) (sample->capacity *
					  sampler_random_fract(&sample->reservoir.randstate));
	memcpy(sample->rows + at * sample->dims, row,
		   sample->dims * sizeof(float));
	sample->ids[at] = id;
}

/* Called for every row of the sampled blocks. */
static void
sample_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
				bool alive, void *arg)
{
	IvfpqSample *sample = arg;
	MemoryContext oldcontext;
	const float *row;
	int			dims;

	IvfpqRowDone();
	if (isnull[0] || !alive)
		return;
	if (pass_over(sample))
	{
		sample->seen += 1;
		return;
	}

	oldcontext = MemoryContextSwitchTo(sample->tmp);
	row = IvfpqValueFloats(sample->type, values[0], &dims);
	MemoryContextSwitchTo(oldcontext);

	if (!sample->lenient)
		IvfpqCheckDims(sample->dims, dims);
	if (dims == sample->dims && IvfpqIsPlaceable(sample->type, row, dims))
	{
		take_row(sample, row, IvfpqTidToId(tid));
		sample->seen += 1;
	}
	MemoryContextReset(sample->tmp);
}

/* Called for rows of a few blocks, to count them. */
static void
count_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
			   bool alive, void *arg)
{
	IvfpqRowDone();
	*(int64 *) arg += !isnull[0] && alive;
}

/*
 * Returns the number of blocks that hold several times the rows that a sparing
 * sample takes: values may be long and out of line, so that reading them all
 * would take long.  A sample as large as memory holds becomes a sparing one
 * where it is not the whole table.
 */
static int
blocks_to_read(IvfpqSample *sample, Relation heap, Relation index,
			   IndexInfo *indexInfo, BlockNumber nblocks)
{
	BlockSamplerData sampler;
	int64		rows = 0;
	int			n = 0;
	int			all = (int) Min(nblocks, sample->capacity);

	/* counting computes an index's expressions once more */
	if (!sample->sparing &&
		(sample->capacity <= ENOUGH_ROWS ||
		 sample->capacity >= (int64) nblocks * MaxHeapTuplesPerPage))
		return all;
	BlockSampler_Init(&sampler, nblocks, Min(nblocks, BLOCKS_TO_COUNT),
					  (uint32) IVFPQ_TRAINING_SEED);
	for (; BlockSampler_HasMore(&sampler); n++)
	{
		IvfpqSnapshotRenew();
		table_index_build_range_scan(heap, index, indexInfo, false, false,
									 false, BlockSampler_Next(&sampler), 1,
									 count_callback, &rows, NULL);
	}
	if (!sample->sparing)
	{
		if (rows * nblocks <= sample->capacity * n)
			return all;
		sample->capacity = ENOUGH_ROWS;
	}
	return (int) Min(nblocks, (sample->capacity * SPARING_ROWS * n) /
					 Max(rows, 1) + 1);
}

/* Called for rows of the first blocks until one gives the dimension. */
static void
peek_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
			  bool alive, void *arg)
{
	IvfpqSample *sample = arg;
	MemoryContext oldcontext;

	IvfpqRowDone();
	if (isnull[0] || !alive || sample->dims > 0)
		return;
	oldcontext = MemoryContextSwitchTo(sample->tmp);
	(void) IvfpqValueFloats(sample->type, values[0], &sample->dims);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(sample->tmp);
}

/* Reads the first blocks until a row gives the dimension. */
static void
find_dims(IvfpqSample *sample, Relation heap, Relation index,
		  IndexInfo *indexInfo, BlockNumber nblocks)
{
	for (BlockNumber blkno = 0; blkno < nblocks && sample->dims == 0; blkno++)
	{
		CHECK_FOR_INTERRUPTS();
		IvfpqSnapshotRenew();
		table_index_build_range_scan(heap, index, indexInfo, false, false,
									 false, blkno, 1, peek_callback, sample,
									 NULL);
	}
}

/*
 * The blocks that were read have fewer rows than the sample needs, and there
 * are more blocks.  Either memory is short, which is an error, or few rows of
 * a block are in the index.
 */
static void
check_memory(const IvfpqSample *sample, Relation index)
{
	Size		bytes = 4 * sample->least * row_bytes(sample);
	int			needed_kb = (int) ((bytes + 1023) / 1024);

	if (sample->capacity < sample->least)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("training index \"%s\" of %d dimensions needs %d kB, maintenance_work_mem is %d kB",
						RelationGetRelationName(index), sample->dims,
						needed_kb, maintenance_work_mem),
				 errdetail("A sample of %d rows is to fit in a quarter of it.",
						   sample->least),
				 errhint("Set maintenance_work_mem to \"%dMB\" or more.",
						 (needed_kb + 1023) / 1024)));
}

/* Samples rows of n of the table's blocks; returns how many were read. */
static int64
sample_blocks(IvfpqSample *sample, Relation heap, Relation index,
			  IndexInfo *indexInfo, BlockNumber nblocks, int n)
{
	BlockSamplerData sampler;
	int64		blocks = 0;

	begin_sample(sample);
	BlockSampler_Init(&sampler, nblocks, n, (uint32) IVFPQ_TRAINING_SEED);
	while (BlockSampler_HasMore(&sampler))
	{
		BlockNumber blkno = BlockSampler_Next(&sampler);

		CHECK_FOR_INTERRUPTS();
		IvfpqSnapshotRenew();
		table_index_build_range_scan(heap, index, indexInfo, false, false,
									 false, blkno, 1, sample_callback, sample,
									 NULL);
		blocks++;
	}
	return blocks;
}

/*
 * Samples the table into memory of the current context.  sample->type is set;
 * dims, capacity, least, lenient and sparing may be.  Sets *rows to an
 * estimate of the rows to index.
 */
void
IvfpqSampleTake(IvfpqSample *sample, Relation heap, Relation index,
				IndexInfo *indexInfo, double *rows)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(heap);
	int			most = (int) Min(nblocks, MOST_BLOCKS);
	int64		blocks;

	sample->tmp = AllocSetContextCreate(CurrentMemoryContext,
										"gpuivfpq sample",
										ALLOCSET_DEFAULT_SIZES);
	find_dims(sample, heap, index, indexInfo, nblocks);
	if (sample->dims == 0)
	{
		*rows = 0;
		return;
	}

	if (sample->capacity == 0)
		sample->capacity = Min(IvfpqMemoryLimit() / 4 / row_bytes(sample),
							   MAX_SAMPLES);
	sample->capacity = Max(sample->capacity, 1);
	blocks = sample_blocks(sample, heap, index, indexInfo, nblocks,
						   blocks_to_read(sample, heap, index, indexInfo,
										  nblocks));
	while (sample->seen < sample->least && blocks < most)
	{
		double		more = blocks * (1.2 * sample->least /
									 Max(sample->seen, 1) + 1);

		if (sample->seen / blocks * nblocks >= sample->least)
			check_memory(sample, index);
		blocks = sample_blocks(sample, heap, index, indexInfo, nblocks,
							   (int) Min(most, more));
	}
	*rows = blocks > 0 ? sample->seen / blocks * nblocks : 0;
	sample->whole = blocks == nblocks && sample->count == sample->seen;
	MemoryContextDelete(sample->tmp);
}

/* Exchanges rows i and j; swap [dims] is scratch memory. */
static void
swap_rows(IvfpqSample *sample, int64 i, int64 j, float *swap)
{
	Size		row = sample->dims * sizeof(float);
	float	   *a = sample->rows + i * sample->dims;
	float	   *b = sample->rows + j * sample->dims;
	uint64		id = sample->ids[i];

	memcpy(swap, a, row);
	memcpy(a, b, row);
	memcpy(b, swap, row);
	sample->ids[i] = sample->ids[j];
	sample->ids[j] = id;
}

/*
 * Puts the rows into random order.  A sample that is not full has them in the
 * table's.
 */
void
IvfpqSampleShuffle(IvfpqSample *sample)
{
	pg_prng_state prng;
	float	   *swap = palloc(sample->dims * sizeof(float));

	pg_prng_seed(&prng, IVFPQ_TRAINING_SEED);
	for (int64 i = 0; i < sample->count - 1; i++)
	{
		int64		j = pg_prng_uint64_range(&prng, i, sample->count - 1);

		CHECK_FOR_INTERRUPTS();
		swap_rows(sample, i, j, swap);
	}
	pfree(swap);
}

/*
 * Puts the first of equal rows before all that repeat one; else rows stay in
 * their order.  Returns the fraction of the rows that equal the most frequent
 * one.
 */
double
IvfpqSampleDistinct(IvfpqSample *sample)
{
	uint64		mask = pg_nextpower2_64(2 * Max(sample->count, 1)) - 1;
	int32	   *places = palloc_extended((mask + 1) * sizeof(int32),
										 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	uint64	   *hashes = palloc_extended(sample->count * sizeof(uint64) + 1,
										 MCXT_ALLOC_HUGE);
	float	   *swap = palloc(sample->dims * sizeof(float));
	int32		most = 0;

	sample->ndistinct = 0;
	sample->counts = palloc_extended(sample->count * sizeof(int32) + 1,
									 MCXT_ALLOC_HUGE);
	for (int64 i = 0; i < sample->count; i++)
	{
		uint64		hash = IvfpqVectorHash(sample->rows + i * sample->dims,
										   sample->dims, 0);
		uint64		at = hash & mask;
		int64		n = sample->ndistinct;

		CHECK_FOR_INTERRUPTS();
		/* places are counted from 1, and 0 is a free entry */
		while (places[at] != 0 && hashes[places[at] - 1] != hash)
			at = (at + 1) & mask;
		if (places[at] == 0)
		{
			if (i != n)
				swap_rows(sample, i, n, swap);
			hashes[n] = hash;
			sample->counts[n] = 0;
			places[at] = (int32) ++sample->ndistinct;
		}
		sample->counts[places[at] - 1]++;
		most = Max(most, sample->counts[places[at] - 1]);
	}
	pfree(swap);
	pfree(hashes);
	pfree(places);
	return (double) most / Max(sample->count, 1);
}

/* Transforms rows [n][dims] in place. */
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

/* Adds rows that the reader leaves out. */
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

/* Passes on the batch, and begins the next. */
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

/* Reads the rows of blocks first .. end - 1. */
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

/* Draws blocks, ascending, that hold about the rows needed. */
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

/* The leader, while workers wait, has all participants see the reader. */
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

/* Joins, as a worker whose reader has relations, type and a training. */
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

/*
 * The leader, while workers wait, frees what it shared: all has been read.
 */
void
IvfpqReaderEnd(IvfpqParallel *parallel)
{
	IvfpqParallelFree(parallel, IVFPQ_PARALLEL_READER);
	IvfpqParallelFree(parallel, IVFPQ_PARALLEL_BLOCKS);
	IvfpqParallelFree(parallel, IVFPQ_PARALLEL_SKIP);
}
