/*
 * sample.c
 *		Random samples of the rows to index: one in memory, and a larger one
 *		that all participants read.
 *
 * PostgreSQL's block sampler and reservoir make the sample in memory.  Enough
 * blocks are drawn to fill the sample.  So a table that fits is read as a
 * whole, and its rows are counted rather than estimated.
 *
 * The lists of a large table need more rows than memory holds.  A reader
 * (IvfpqReader) reads all rows of random blocks, and passes them on in
 * batches.  The leader draws the blocks, and participants claim runs of them.
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
#define SPARING_ROWS			4	/* if sample->sparing is set: rows to read
									 * per row of the sample */
#define BLOCKS_TO_COUNT			64
#define ENOUGH_ROWS				((int64) 1 << 18)	/* number of rows sampled
													 * if the table is larger
													 * than memory */
#define MOST_BLOCKS				PG_INT32_MAX	/* maximum number of blocks
												 * that a sampler can draw */

#define CLAIM_BLOCKS	32		/* blocks that a participant claims at once */

/* The reader's state that all participants share (IVFPQ_PARALLEL_READER). */
typedef struct IvfpqReaderShared
{
	int			dims;
	bool		lenient;
	bool		transform;
	int64		nblocks;
	int64		nskip;
	uint64		skip[FLEXIBLE_ARRAY_MEMBER];	/* [nskip] TIDs of rows to
												 * skip, ascending */
	/* followed by the blocks to read, BlockNumber [nblocks], ascending */
} IvfpqReaderShared;

/* Returns the bytes of memory that a row of the sample takes. */
static Size
row_bytes(const IvfpqSample *sample)
{
	return sample->dims * sizeof(float) + sizeof(uint64);
}

/* Calls the callback for every row of n blocks. */
static void
scan_blocks(const IvfpqSample *sample, BlockNumber first, BlockNumber n,
			IndexBuildCallback callback, void *arg)
{
	CHECK_FOR_INTERRUPTS();
	IvfpqSnapshotRenew();
	table_index_build_range_scan(sample->heap, sample->index,
								 sample->indexInfo, false, false, false,
								 first, n, callback, arg, NULL);
}

/*
 * Puts a row into the sample.  If the sample is full, the row replaces another
 * row.  Memory is doubled as needed, so that small tables take little memory.
 */
static void
take_row(IvfpqSample *sample, const float *row, uint64 id)
{
	Size		bytes = sample->dims * sizeof(float);
	int64		at = sample->count;
	int64		n;

	if (at == sample->capacity)
		at = (int64) (sample->capacity *
					  sampler_random_fract(&sample->reservoir.randstate));
	else if (sample->rows == NULL)
	{
		n = Min(sample->capacity, 1024);
		sample->rows = palloc_extended(bytes * n, MCXT_ALLOC_HUGE);
		sample->ids = palloc(sizeof(uint64) * n);
	}
	else if (at >= 1024 && (at & (at - 1)) == 0)
	{
		n = Min(sample->capacity, 2 * at);
		sample->rows = repalloc_huge(sample->rows, bytes * n);
		sample->ids = repalloc_huge(sample->ids, sizeof(uint64) * n);
	}
	if (sample->count < sample->capacity)
		sample->count++;
	memcpy(sample->rows + at * sample->dims, row, bytes);
	sample->ids[at] = id;
}

/*
 * IndexBuildCallback for the sampled blocks.  Once the sample is full, the
 * reservoir skips rows, and the values of skipped rows are not read.
 */
static void
sample_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
				bool alive, void *arg)
{
	IvfpqSample *sample = arg;
	const float *row;

	IvfpqRowDone();
	if (isnull[0] || !alive)
		return;
	if (sample->count == sample->capacity)
	{
		if (sample->skip < 0)
			sample->skip = reservoir_get_next_S(&sample->reservoir,
												sample->seen,
												sample->capacity);
		sample->skip -= 1;
		if (sample->skip >= 0)
		{
			sample->seen += 1;
			return;
		}
	}
	row = IvfpqRowVector(sample->type, values[0], false, &sample->dims,
						 sample->lenient, sample->tmp);
	if (row == NULL)
		return;
	take_row(sample, row, IvfpqTidToId(tid));
	sample->seen += 1;
}

/* IndexBuildCallback that counts the rows of a few blocks. */
static void
count_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
			   bool alive, void *arg)
{
	IvfpqRowDone();
	*(int64 *) arg += !isnull[0] && alive;
}

/*
 * Returns the number of blocks to read.  If sample->sparing is set, these
 * blocks hold SPARING_ROWS times the rows that the sample takes.  Reading more
 * could take long, because long values are in the TOAST table.  A sample of
 * more than ENOUGH_ROWS rows that is not the whole table is reduced to
 * ENOUGH_ROWS rows, and its blocks are limited in the same way.
 */
static int
blocks_to_read(IvfpqSample *sample, BlockNumber nblocks)
{
	BlockSamplerData sampler;
	int64		rows = 0;
	int			n = 0;
	int			all = (int) Min(nblocks, sample->capacity);

	/* avoid counting rows, which computes the index's expressions again */
	if (!sample->sparing &&
		(sample->capacity <= ENOUGH_ROWS ||
		 sample->capacity >= (int64) nblocks * MaxHeapTuplesPerPage))
		return all;
	BlockSampler_Init(&sampler, nblocks, Min(nblocks, BLOCKS_TO_COUNT),
					  (uint32) IVFPQ_TRAINING_SEED);
	for (; BlockSampler_HasMore(&sampler); n++)
		scan_blocks(sample, BlockSampler_Next(&sampler), 1, count_callback,
					&rows);
	if (!sample->sparing)
	{
		if (rows * nblocks <= sample->capacity * n)
			return all;
		sample->capacity = ENOUGH_ROWS;
	}
	return (int) Min(nblocks, (sample->capacity * SPARING_ROWS * n) /
					 Max(rows, 1) + 1);
}

/* IndexBuildCallback.  Gets the dimensions of the first row with a vector. */
static void
peek_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
			  bool alive, void *arg)
{
	IvfpqSample *sample = arg;

	IvfpqRowDone();
	if (alive && sample->dims == 0)
		(void) IvfpqRowVector(sample->type, values[0], isnull[0],
							  &sample->dims, false, sample->tmp);
}

/*
 * Raises an error if memory is too small for the rows that the sample needs.
 * Called when the blocks that were read have fewer rows than the sample needs,
 * although the table has enough.  If memory is large enough, the reason is
 * that few rows of each block are in the index.
 */
static void
check_memory(const IvfpqSample *sample)
{
	Size		bytes = 4 * sample->least * row_bytes(sample);
	int			needed_kb = (int) ((bytes + 1023) / 1024);

	if (sample->capacity < sample->least)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("\"maintenance_work_mem\" is too low to train index \"%s\"",
						RelationGetRelationName(sample->index)),
				 errdetail("A sample of %d rows of %d dimensions requires %d kB.",
						   sample->least, sample->dims, needed_kb),
				 errhint("Set \"maintenance_work_mem\" to at least \"%dMB\".",
						 (needed_kb + 1023) / 1024)));
}

/*
 * Samples rows from n blocks of the table, and discards the sample taken
 * before.  Returns the number of blocks that were read.
 */
static int64
sample_blocks(IvfpqSample *sample, BlockNumber nblocks, int n)
{
	ReservoirStateData *reservoir = &sample->reservoir;
	BlockSamplerData sampler;
	int64		blocks = 0;

	sample->count = 0;
	sample->seen = 0;
	sample->skip = -1;
	reservoir_init_selection_state(reservoir, sample->capacity);
	/* fixed seeds for rows and blocks: the same table gives the same sample */
	sampler_random_init_state((uint32) IVFPQ_TRAINING_SEED,
							  &reservoir->randstate);
	reservoir->W = exp(-log(sampler_random_fract(&reservoir->randstate)) /
					   sample->capacity);
	BlockSampler_Init(&sampler, nblocks, n, (uint32) IVFPQ_TRAINING_SEED);
	for (; BlockSampler_HasMore(&sampler); blocks++)
		scan_blocks(sample, BlockSampler_Next(&sampler), 1, sample_callback,
					sample);
	return blocks;
}

/*
 * Samples the table into memory of the current context.  The caller has set
 * the sample's relations and type, and may have set dims, capacity, least,
 * lenient and sparing.  Returns an estimate of the number of rows to index.
 */
double
IvfpqSampleTake(IvfpqSample *sample)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(sample->heap);
	int			most = (int) Min(nblocks, MOST_BLOCKS);
	int64		blocks;

	sample->tmp = AllocSetContextCreate(CurrentMemoryContext,
										"gpuivfpq sample",
										ALLOCSET_DEFAULT_SIZES);
	for (BlockNumber blkno = 0; blkno < nblocks && sample->dims == 0; blkno++)
		scan_blocks(sample, blkno, 1, peek_callback, sample);
	if (sample->dims == 0)
		return 0;

	if (sample->capacity == 0)
		sample->capacity = Min(IvfpqMemoryLimit() / 4 / row_bytes(sample),
							   MAX_SAMPLES);
	sample->capacity = Max(sample->capacity, 1);
	blocks = sample_blocks(sample, nblocks, blocks_to_read(sample, nblocks));
	while (sample->seen < sample->least && blocks < most)
	{
		double		more = blocks * (1.2 * sample->least /
									 Max(sample->seen, 1) + 1);

		if (sample->seen / blocks * nblocks >= sample->least)
			check_memory(sample);
		blocks = sample_blocks(sample, nblocks, (int) Min(most, more));
	}
	sample->whole = blocks == nblocks && sample->count == sample->seen;
	MemoryContextDelete(sample->tmp);
	return blocks > 0 ? sample->seen / blocks * nblocks : 0;
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
 * Puts the rows into random order.  Without this, the rows of a sample that is
 * not full are in the order of the table.
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
 * Moves the first row of each set of equal rows to the front, keeping the
 * order of these rows.  Sets sample->ndistinct and sample->counts.  Returns
 * the fraction of the rows that equal the most frequent row.
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
		/* places are counted from 1; 0 is a free entry */
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

/* Transforms rows [n][dims] in place, and checks for interrupts. */
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

/* Passes the batch to the sink, and begins a new batch. */
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

/* IndexBuildCallback for the blocks of a reader.  Adds a row to the batch. */
static void
read_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
			  bool alive, void *arg)
{
	IvfpqReader *reader = arg;
	IvfpqSample *sample = reader->sample;
	uint64		id = IvfpqTidToId(tid);
	const float *row;

	IvfpqRowDone();

	/* a scan of blocks cannot be ended, so skip unneeded rows */
	if (reader->enough || !alive ||
		bsearch(&id, reader->shared->skip, reader->shared->nskip,
				sizeof(uint64), IvfpqCompareNumbers) != NULL)
		return;
	row = IvfpqRowVector(sample->type, values[0], isnull[0], &sample->dims,
						 sample->lenient, sample->tmp);
	if (row == NULL ||
		(reader->boundable &&
		 !IvfpqIsBoundable(sample->type, row, sample->dims)))
		return;
	reader->ids[reader->nbatch] = id;
	memcpy(reader->batch + (Size) reader->nbatch++ * sample->dims, row,
		   sample->dims * sizeof(float));
	if (reader->nbatch == IVFPQ_READ_ROWS)
		flush_reader(reader);
}

/*
 * Draws enough blocks for about reader->rows_needed rows, and shares the
 * blocks with all participants.  Also shares the TIDs of the rows to skip: the
 * rows that queries are made of, and the first nskip rows of the sample.  The
 * leader calls this while workers wait.  The caller frees
 * IVFPQ_PARALLEL_READER when all rows have been read.
 */
void
IvfpqReaderShare(IvfpqReader *reader, IvfpqParallel *parallel, int64 nskip)
{
	const IvfpqTraining *training = reader->training;
	const IvfpqSample *sample = reader->sample;
	BlockNumber all = RelationGetNumberOfBlocks(sample->heap);
	double		blocks_needed = ceil(all * (double) reader->rows_needed /
									 Max(training->rows, 1));
	int			n = (int) Max(Min(Min(all, blocks_needed), PG_INT32_MAX), 1);
	int			nqueries = training->nqueries;
	BlockSamplerData sampler;
	BlockNumber *blocks;
	IvfpqReaderShared *shared =
	IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_READER,
					   offsetof(IvfpqReaderShared, skip) +
					   (nqueries + nskip) * sizeof(uint64) +
					   n * sizeof(BlockNumber));

	shared->dims = sample->dims;
	shared->lenient = sample->lenient;
	shared->transform = reader->transform;
	shared->nskip = nqueries + nskip;
	if (nqueries > 0)
		memcpy(shared->skip, training->query_ids, nqueries * sizeof(uint64));
	if (nskip > 0)
		memcpy(shared->skip + nqueries, sample->ids, nskip * sizeof(uint64));
	IvfpqSortNumbers(shared->skip, shared->nskip);

	shared->nblocks = 0;
	blocks = (BlockNumber *) (shared->skip + shared->nskip);
	BlockSampler_Init(&sampler, all, n, (uint32) IVFPQ_TRAINING_SEED);
	while (BlockSampler_HasMore(&sampler))
		blocks[shared->nblocks++] = BlockSampler_Next(&sampler);
}

/*
 * Claims blocks that the leader has shared, and passes their rows to the sink,
 * until no blocks are left or the sink needs no more rows.  A worker's reader
 * must have a sample with relations and type, and a training if rows are
 * transformed.
 */
void
IvfpqReaderRun(IvfpqReader *reader, IvfpqParallel *parallel,
			   IvfpqRowSink sink, void *arg)
{
	const IvfpqReaderShared *shared =
	IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_READER);
	const BlockNumber *blocks =
	(const BlockNumber *) (shared->skip + shared->nskip);
	int64		nclaims = (shared->nblocks + CLAIM_BLOCKS - 1) / CLAIM_BLOCKS;
	IvfpqSample *sample = reader->sample;
	int64		claim;

	sample->dims = shared->dims;
	sample->lenient = shared->lenient;
	sample->tmp = AllocSetContextCreate(CurrentMemoryContext,
										"gpuivfpq sample",
										ALLOCSET_DEFAULT_SIZES);
	reader->transform = shared->transform;
	reader->shared = shared;

	/*
	 * skip rows whose distances no refine record can bound, because gpuvecd
	 * cannot detect such rows
	 */
	reader->boundable = !shared->transform &&
		IvfpqGetOptions(sample->index)->refine != IVFPQ_REFINE_NONE;
	reader->sink = sink;
	reader->sink_arg = arg;
	reader->enough = false;
	reader->batch = palloc(IVFPQ_READ_ROWS * sample->dims * sizeof(float));
	IvfpqSnapshotTake();
	while (!reader->enough && IvfpqParallelNext(parallel, nclaims, &claim))
	{
		int64		first = claim * CLAIM_BLOCKS;
		int64		end = Min(first + CLAIM_BLOCKS, shared->nblocks);

		/* read adjacent blocks in one scan */
		for (int64 at = first; at < end && !reader->enough; at++)
			if (at + 1 == end || blocks[at + 1] != blocks[at] + 1)
			{
				scan_blocks(sample, blocks[first],
							blocks[at] + 1 - blocks[first], read_callback,
							reader);
				first = at + 1;
			}
	}
	flush_reader(reader);
	IvfpqSnapshotDrop();
	pfree(reader->batch);
	MemoryContextDelete(sample->tmp);
}
