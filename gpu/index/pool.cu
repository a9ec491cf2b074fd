/*
 * pool.cu
 *		The device's memory for blocks of lists.
 *
 * Lists grow, shrink and vanish; cudaMalloc for each would synchronize the
 * device.  The pool takes memory in large segments and hands out extents of
 * whole blocks.  An extent given back waits for a taker of the same capacity;
 * capacities are few (eight to every power of two), so takers come.  Segments
 * go back with the mirror.
 *
 * A segment is an eighth of what is expected, and the last no more than what
 * is left of that; a list too many then takes a quarter of a segment, not a
 * whole one.
 */
#include <stdlib.h>

#include "gpu/index/gv_index.h"

#define STEPS			8		/* capacities to every power of two */
#define NCAPACITIES		(STEPS * 30)
/*
 * A budget may be exceeded by one: only what a list grows by is charged
 * before.
 */
#define MIN_SEGMENT		(INT64_C(4) << 20)
#define MAX_SEGMENT		(INT64_C(256) << 20)

struct Segment
{
	Segment    *next;
	uint8_t    *d_memory;
};

/* An extent that waits; the host's note of it. */
struct Extent
{
	Extent	   *next;
	uint8_t    *d_blocks;
};

struct GvPool
{
	int64_t		block_bytes;
	int64_t		segment_blocks; /* of an ordinary segment */
	int64_t		expected;		/* blocks that are to come, beyond segments */
	int64_t		bytes;			/* of all segments */
	Segment    *segments;
	uint8_t    *d_free;			/* rest of the newest segment */
	int64_t		nfree;			/* its blocks */
	Extent	   *waiting[NCAPACITIES];
	Extent	   *spare;			/* notes without an extent */
};

/* The number of the least capacity that holds nblocks, and that capacity. */
static int
capacity_for(uint32_t nblocks, uint32_t *capacity)
{
	uint64_t	base = 1;
	int			number = 0;

	if (nblocks <= STEPS)
	{
		*capacity = nblocks;
		return (int) nblocks;
	}
	while (base * STEPS * 2 < nblocks)
	{
		base *= 2;
		number += STEPS;
	}
	/* base * 8 < nblocks <= base * 16, in steps of base */
	*capacity = (uint32_t) ((nblocks + base - 1) / base * base);
	return number + (int) (*capacity / base);
}

/* Make a pool for blocks of a size; takes no memory of the device yet. */
GvStatus
gv_pool_create(int64_t block_bytes, int64_t expected_blocks, GvPool **pool)
{
	GvPool	   *made = (GvPool *) calloc(1, sizeof(GvPool));
	int64_t		bytes = expected_blocks * block_bytes / 8;

	if (made == NULL)
		return GV_NO_MEMORY;
	if (bytes < MIN_SEGMENT)
		bytes = MIN_SEGMENT;
	if (bytes > MAX_SEGMENT)
		bytes = MAX_SEGMENT;
	made->block_bytes = block_bytes;
	made->segment_blocks = bytes / block_bytes + 1;
	made->expected = expected_blocks;
	*pool = made;
	return GV_OK;
}

/* Give all memory back. */
void
gv_pool_drop(GvPool *pool)
{
	if (pool == NULL)
		return;
	for (Segment *segment = pool->segments; segment != NULL;)
	{
		Segment    *next = segment->next;

		(void) cudaFree(segment->d_memory);
		free(segment);
		segment = next;
	}
	for (int i = 0; i <= NCAPACITIES; i++)
	{
		Extent	   *extent = i < NCAPACITIES ? pool->waiting[i] : pool->spare;

		while (extent != NULL)
		{
			Extent	   *next = extent->next;

			free(extent);
			extent = next;
		}
	}
	free(pool);
}

/* Add a segment of at least nblocks; what is left of the last one is lost. */
static GvStatus
add_segment(GvPool *pool, int64_t nblocks)
{
	Segment    *segment = (Segment *) malloc(sizeof(Segment));
	int64_t		wanted = pool->expected;
	GvStatus	status;

	if (segment == NULL)
		return GV_NO_MEMORY;
	if (wanted < pool->segment_blocks / 4)
		wanted = pool->segment_blocks / 4;
	if (wanted > pool->segment_blocks)
		wanted = pool->segment_blocks;
	if (nblocks < wanted)
		nblocks = wanted;
	status = gv_cuda_status(cudaMalloc((void **) &segment->d_memory,
									   nblocks * pool->block_bytes));
	if (status != GV_OK)
	{
		free(segment);
		return status;
	}
	segment->next = pool->segments;
	pool->segments = segment;
	pool->bytes += nblocks * pool->block_bytes;
	pool->expected -= nblocks;
	pool->d_free = segment->d_memory;
	pool->nfree = nblocks;
	return GV_OK;
}

/* Memory for nblocks > 0 blocks, or some more. */
GvStatus
gv_pool_take(GvPool *pool, uint32_t nblocks, uint8_t **blocks,
			 uint32_t *capacity)
{
	int			number = capacity_for(nblocks, capacity);
	Extent	   *extent = pool->waiting[number];

	if (extent != NULL)
	{
		pool->waiting[number] = extent->next;
		*blocks = extent->d_blocks;
		extent->next = pool->spare;
		pool->spare = extent;
		return GV_OK;
	}
	if (*capacity > pool->nfree)
		GV_TRY(add_segment(pool, *capacity));
	*blocks = pool->d_free;
	pool->d_free += *capacity * pool->block_bytes;
	pool->nfree -= *capacity;
	return GV_OK;
}

/* Give an extent back; without memory for the note it is lost until drop. */
void
gv_pool_give(GvPool *pool, uint8_t *blocks, uint32_t capacity)
{
	uint32_t	same;
	int			number = capacity_for(capacity, &same);
	Extent	   *extent = pool->spare;

	if (extent != NULL)
		pool->spare = extent->next;
	else if ((extent = (Extent *) malloc(sizeof(Extent))) == NULL)
		return;
	extent->d_blocks = blocks;
	extent->next = pool->waiting[number];
	pool->waiting[number] = extent;
}

/* Bytes of the device that it holds. */
int64_t
gv_pool_bytes(const GvPool *pool)
{
	return pool->bytes;
}
