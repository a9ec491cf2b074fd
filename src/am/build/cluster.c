/*
 * cluster.c
 *		Trains two levels of centroids, with all participants, and makes
 *		groups of lists, through which rows are placed.
 *
 * Parents are trained on the sample in memory (README, "Two Levels of Lists").
 * Then rows are read and go to files by parent, in half precision, and each
 * parent's lists are trained on the parent's own rows.  So memory is needed
 * for the rows of one parent at a time, and k-means compares a row only with
 * the lists of one parent, about the square root of the number of all lists.
 *
 * Lists that were trained parent by parent end at the borders between parents,
 * so searches need more probes.  To repair most of this, final Lloyd passes
 * follow, which are iterations of k-means over all rows and all lists.  Each
 * participant places the rows of the files that it takes, and adds up the rows
 * of each list.  Then each participant takes some lists, and adds up the sums
 * that all participants have for these lists.  The centroids move to the means
 * of their rows, and are grouped under new parents, which are means of
 * centroids.
 *
 * The result does not depend on how the work is divided among participants.
 * The blocks to read have been drawn before, and a parent's rows are sorted
 * into an order that follows from their TIDs.  Sums are in fixed point, in
 * units of the smallest number of half precision, so they are exact in any
 * order.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/memutils.h"

#include "am/build/train.h"
#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "page/injection.h"

/* With fewer lists than this, one level is enough. */
#define MIN_LISTS_FOR_PARENTS	256

/*
 * Largest number of lists of one parent, as a multiple of the mean.  k-means
 * splits a parent that has more than IVFPQ_MAX_IMBALANCE times the mean number
 * of the sample's rows, unless these rows are equal.  More lists would not
 * divide equal rows, but k-means would compare each row with each list.
 */
#define MOST_CHILDREN		8

/*
 * Number of ranges of parents per participant.  With several ranges, no
 * participant waits long for the other participants at the end.  With few
 * ranges, each participant can have a file with a buffer for every range.
 */
#define RANGES_EACH			8

#define FINAL_LLOYD_PASSES		2

#define UNIT			16777216.0f /* 2^24; numbers of half precision are
									 * multiples of 1 / UNIT */

/* Number of bits of IvfpqClusterRow.order below the parent's number. */
#define ORDER_BITS			40

#define GROUP_ROWS		256		/* rows compared with each group, enough that
								 * making the group's panels costs little */
#define LEAST_ROWS		1024	/* minimum number of rows placed at once */
#define PLACED_BYTES	768		/* about the size of gv_place's results per
								 * row */

/* The state that all participants share (IVFPQ_PARALLEL_CLUSTER). */
typedef struct IvfpqClusterShared
{
	int			lists;			/* number of lists requested */
	int			nparents;		/* parents that rows are sorted by */
	int			nranges;		/* number of ranges of parents */

	/* written by the leader while workers wait */
	int64		nrows;			/* rows that all participants have read */
	int			ntrainers;		/* participants that may train at once */
} IvfpqClusterShared;

/* A row in a file. */
typedef struct IvfpqClusterRow
{
	int64		order;			/* parent's number, then pseudorandom bits */
	int64		id;				/* IvfpqTidToId; sorts rows of equal `order` */
	uint16		half[FLEXIBLE_ARRAY_MEMBER];	/* [dims] in half precision */
} IvfpqClusterRow;

/* A participant's view of the shared state. */
typedef struct IvfpqCluster
{
	IvfpqParallel *parallel;
	IvfpqTraining *training;	/* has centroids [lists + nparents][dims] */
	IvfpqClusterShared *shared;
	pg_atomic_uint64 *counts;	/* [nparents] number of rows of each parent */
	int32	   *found;			/* [nparents] number of lists of each parent */
	IvfpqTempFile rows;			/* IvfpqClusterRow, by ranges of parents */
	Size		row_bytes;		/* size of an IvfpqClusterRow */
	IvfpqClusterRow *row;		/* row that is being written or read */
} IvfpqCluster;

/*
 * A sum over the rows that one participant has placed in a list.  It goes to
 * the participant that moves the list's centroid.  A row adds less than 2^40
 * to each element.
 */
typedef struct PartialSum
{
	int32		list;
	int32		count;			/* rows */
	int64		sum[FLEXIBLE_ARRAY_MEMBER]; /* [dims] */
} PartialSum;

/* The sums for lists in which this participant has placed rows. */
typedef struct Sums
{
	IvfpqTempFile *temp;		/* passes sums to other participants */
	int			nlists;
	int			dims;
	Size		item_bytes;
	int			nitems;
	int			max_items;
	char	   *items;			/* [max_items] PartialSum, item_bytes each */
	int32	   *places;			/* [nlists] position of the list's sum in
								 * `items`; -1 = none */
} Sums;

/* Allocates a training's arrays.  The leader calls this while workers wait. */
void
IvfpqTrainingAlloc(IvfpqTraining *training, IvfpqParallel *parallel,
				   int nparents, int lists)
{
	Size		row = training->gv.dims * sizeof(float);

	training->nparents = nparents;
	training->parents = IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_PARENTS,
										   nparents * row);
	training->parent_offsets =
		IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_PARENT_OFFSETS,
						   (nparents + 1) * sizeof(int32));
	training->centroids =
		IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_CENTROIDS, lists * row);
}

/*
 * Shares *training, whose arrays are shared already, with all participants.
 * The leader calls this while workers wait.
 */
void
IvfpqTrainingShare(const IvfpqTraining *training, IvfpqParallel *parallel)
{
	IvfpqTraining *shared =
	IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_TRAINING,
					   sizeof(IvfpqTraining));

	*shared = *training;
}

/*
 * Copies the leader's training to *training, with pointers to the arrays as
 * this participant sees them.  Keeps training->builder.
 */
void
IvfpqTrainingOpen(IvfpqTraining *training, IvfpqParallel *parallel)
{
	IvfpqBuilder *builder = training->builder;

	*training = *(IvfpqTraining *) IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_TRAINING);
	training->builder = builder;
	training->queries = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_QUERIES);
	training->held_out =
		IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_HELD_OUT);
	training->query_ids =
		IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_QUERY_IDS);
	training->mean = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_MEAN);
	training->rotation =
		IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_ROTATION);
	training->parents = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_PARENTS);
	training->parent_offsets =
		IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_PARENT_OFFSETS);
	training->centroids =
		IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_CENTROIDS);
	training->codebooks =
		IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_CODEBOOKS);
	training->gv.mean = training->mean;
	training->gv.codebooks = training->codebooks;
	training->gv.rotation = training->rotation;
}

int
IvfpqParents(int lists)
{
	return lists < MIN_LISTS_FOR_PARENTS ? 1 : (int) rint(sqrt(lists));
}

/* Returns the peak memory of k-means in bytes, including its n rows. */
static Size
training_size(int64 n, int k, int dims)
{
	GvKmeans	spec = {.dims = dims, .n = n, .k = k,
	.iterations = IVFPQ_ITERATIONS, .max_imbalance = IVFPQ_MAX_IMBALANCE};

	return (Size) n * dims * sizeof(float) +
		(Size) k * dims * sizeof(float) + gv_kmeans_scratch(&spec);
}

/*
 * Makes centroids [k][dims] of rows [n][dims] by k-means: Lloyd, "Least
 * squares quantization in PCM", 1982.  Each iteration assigns every row to its
 * nearest centroid, and moves each centroid to the mean of its rows.  A
 * cluster of more than IVFPQ_MAX_IMBALANCE times the mean number of rows is
 * split.  Returns the number of centroids, which is below k if there are fewer
 * than k different rows.
 */
int
IvfpqKmeans(const float *rows, int64 n, int dims, int k, int iterations,
			float *centroids)
{
	GvKmeans	spec = {.dims = dims, .n = n, .k = k,
		.iterations = iterations, .max_imbalance = IVFPQ_MAX_IMBALANCE,
	.seed = IVFPQ_TRAINING_SEED};
	void	   *chunk;
	void	   *scratch = IvfpqAllocScratch(gv_kmeans_scratch(&spec), &chunk);
	int32		found;

	IvfpqSnapshotForget();
	IvfpqCheckStatus(gv_kmeans(&spec, rows, centroids, &found, scratch,
							   &ivfpq_stop));
	pfree(chunk);
	return found;
}

/*
 * Returns IvfpqClusterRow.order for a row: the number of its parent, then bits
 * of a hash of its TID (the finalizer of MurmurHash3).
 */
static int64
order_of(int32 parent, uint64 id)
{
	id ^= id >> 33;
	id *= UINT64CONST(0xff51afd7ed558ccd);
	id ^= id >> 33;
	id *= UINT64CONST(0xc4ceb9fe1a85ec53);
	id ^= id >> 33;
	return (int64) parent << ORDER_BITS | (int64) (id >> (64 - ORDER_BITS));
}

/*
 * IvfpqRowSink.  Finds the nearest parent of each of the transformed rows
 * [n][dims], and puts the row into the file for that parent's range.
 */
static bool
take_rows(void *arg, const float *rows, const uint64 *ids, int n)
{
	IvfpqCluster *cluster = arg;
	IvfpqTraining *training = cluster->training;
	IvfpqClusterRow *row = cluster->row;
	int			dims = training->gv.dims;
	int32		parents[IVFPQ_READ_ROWS];

	IvfpqCheckStatus(gv_assign(dims, training->parents, training->nparents,
							   rows, n, parents, NULL, &ivfpq_stop));
	for (int i = 0; i < n; i++)
	{
		row->order = order_of(parents[i], ids[i]);
		row->id = (int64) ids[i];
		gv_to_half(rows + (Size) i * dims, dims, row->half);
		IvfpqTempFilePut(&cluster->rows,
						 IvfpqTempFileRange(&cluster->rows, parents[i],
											training->nparents),
						 row, cluster->row_bytes);
		pg_atomic_fetch_add_u64(&cluster->counts[parents[i]], 1);
	}
	return true;
}

/*
 * Returns the number of rows on which the k lists of a parent are trained:
 * max(k * IVFPQ_SAMPLES_PER_LIST, 256), limited by memory and by `count`, the
 * number of the parent's rows.
 */
static int64
rows_to_train(int64 count, int k, int dims)
{
	int64		n = Min(count, Max((int64) k * IVFPQ_SAMPLES_PER_LIST, 256));

	while (n > k && training_size(n, k, dims) > IvfpqMemoryLimit() / 2)
		n -= (n + 9) / 10;
	return Max(n, 1);
}

/*
 * Divides the lists among parents in proportion to the parents' rows.  Limits
 * the number of participants that train at once, so that each of them has
 * memory for the rows of the largest parent.  The number of these rows must
 * not depend on the number of participants.  The leader calls this.
 */
static void
plan_children(IvfpqCluster *cluster)
{
	IvfpqClusterShared *shared = cluster->shared;
	int32	   *parent_offsets = cluster->training->parent_offsets;
	int			dims = cluster->training->gv.dims;
	int64		most = MOST_CHILDREN * (int64) shared->lists /
	IvfpqParents(shared->lists);
	Size		largest = 1;
	int64		nrows;
	int64		before = 0;

	shared->nrows = 0;
	for (int p = 0; p < shared->nparents; p++)
		shared->nrows += pg_atomic_read_u64(&cluster->counts[p]);
	nrows = Max(shared->nrows, 1);	/* all rows may have been deleted */
	parent_offsets[0] = 0;
	for (int p = 0; p < shared->nparents; p++)
	{
		int64		count = pg_atomic_read_u64(&cluster->counts[p]);
		int64		k = shared->lists * (before + count) / nrows -
		shared->lists * before / nrows;

		k = Max(Min(k, most), 1);
		parent_offsets[p + 1] = parent_offsets[p] + (int32) k;
		largest = Max(largest,
					  training_size(rows_to_train(count, (int) k, dims),
									(int) k, dims));
		before += count;
	}
	shared->ntrainers = (int) Min(IvfpqMemoryLimit() / 2 / largest,
								  (Size) cluster->parallel->shared->size);
	shared->ntrainers = Max(shared->ntrainers, 1);
}

/* Trains the lists of parent p on its rows, which come next in the sort. */
static void
train_parent(IvfpqCluster *cluster, IvfpqSort *sort, int p)
{
	IvfpqTraining *training = cluster->training;
	int			dims = training->gv.dims;
	int			k = training->parent_offsets[p + 1] -
	training->parent_offsets[p];
	float	   *centroids = training->centroids +
	(Size) training->parent_offsets[p] * dims;
	int64		count = pg_atomic_read_u64(&cluster->counts[p]);
	uint16	   *half = cluster->row->half;
	int64		n;
	float	   *rows;

	if (count == 0)
	{
		memcpy(centroids, training->parents + (Size) p * dims,
			   dims * sizeof(float));
		cluster->found[p] = 1;
		return;
	}
	n = rows_to_train(count, k, dims);
	rows = palloc_extended((Size) n * dims * sizeof(float), MCXT_ALLOC_HUGE);
	for (int64 i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!IvfpqSortNext(sort))
			elog(ERROR, "rows were lost while sorting by parent");
		if (i >= n)
			continue;
		/* the payload is not aligned */
		memcpy(half, sort->payload, dims * sizeof(uint16));
		gv_from_half(half, dims, rows + i * dims);
	}
	cluster->found[p] = IvfpqKmeans(rows, n, dims, (int) Min(k, n),
									IVFPQ_ITERATIONS, centroids);
	pfree(rows);
}

/*
 * Takes one range of parents after another, and trains their lists.  Reads the
 * rows of a range from the files of all participants, and sorts them by
 * parent.  The sorts of all trainers together take a quarter of the memory.
 */
static void
train_children(IvfpqCluster *cluster)
{
	IvfpqTempFile *files = &cluster->rows;
	IvfpqClusterRow *row = cluster->row;
	int			nparents = cluster->shared->nparents;
	int			ntrainers = cluster->shared->ntrainers;
	IvfpqSort	sort;
	int64		range;

	if (cluster->parallel->me >= ntrainers)
		return;
	while (IvfpqParallelNext(cluster->parallel, files->nranges, &range))
	{
		int			first = IvfpqTempFileFirst(files, (int) range, nparents);
		int			end = IvfpqTempFileFirst(files, (int) range + 1, nparents);

		IvfpqSortBegin(&sort, INT8OID, INT8OID,
					   cluster->training->gv.dims * sizeof(uint16),
					   maintenance_work_mem / 4 / ntrainers);
		IvfpqTempFileOpen(files, (int) range, 0,
						  cluster->parallel->shared->size);
		while (IvfpqTempFileRead(files, row, cluster->row_bytes))
		{
			CHECK_FOR_INTERRUPTS();
			IvfpqSortPut(&sort, Int64GetDatum(row->order),
						 Int64GetDatum(row->id), row->half);
		}
		IvfpqSortPerform(&sort);
		for (int p = first; p < end; p++)
			train_parent(cluster, &sort, p);
		IvfpqSortEnd(&sort);
	}
}

/*
 * Closes the gaps in the array of centroids.  There is a gap where k-means
 * made fewer lists of a parent's rows than planned.  The leader calls this.
 */
static void
close_gaps(IvfpqCluster *cluster)
{
	IvfpqTraining *training = cluster->training;
	int32	   *parent_offsets = training->parent_offsets;
	Size		dims = training->gv.dims;

	training->nlists = 0;
	for (int p = 0; p < training->nparents; p++)
	{
		memmove(training->centroids + training->nlists * dims,
				training->centroids + parent_offsets[p] * dims,
				cluster->found[p] * dims * sizeof(float));
		parent_offsets[p] = training->nlists;
		training->nlists += cluster->found[p];
	}
	parent_offsets[training->nparents] = training->nlists;
}

/*
 * Makes the groups through which rows are placed.  Returns their memory, which
 * is allocated in the current context.  The caller frees it.
 */
void *
IvfpqAllocGroups(const IvfpqTraining *training, GvGroups *groups)
{
	GvTree		tree = IvfpqTree(training);
	void	   *chunk;
	void	   *memory = IvfpqAllocScratch(gv_groups_bytes(&tree), &chunk);
	void	   *used;
	void	   *scratch = IvfpqAllocScratch(gv_groups_scratch(&tree), &used);

	IvfpqCheckStatus(gv_groups_make(&tree, groups, memory, scratch,
									&ivfpq_stop));
	pfree(used);
	return chunk;
}

/*
 * Returns the number of rows to place at once: enough to compare GROUP_ROWS
 * rows with each group's lists, as far as memory allows.
 */
int
IvfpqRowsToPlace(const GvGroups *groups, Size memory)
{
	Size		row = groups->dims * sizeof(float) + PLACED_BYTES;
	int64		rows_needed = (int64) groups->ngroups * GROUP_ROWS /
	groups->tried;

	/* no array for these rows may exceed palloc's limit */
	memory = Min(memory, MaxAllocSize / 2);
	return (int) Max(16,
					 Min(Max(rows_needed, LEAST_ROWS), (int64) (memory / row)));
}

static PartialSum *
item_of(const Sums *sums, int i)
{
	return (PartialSum *) (sums->items + i * sums->item_bytes);
}

/* Passes the sums on to other participants, and begins new sums. */
static void
flush_sums(Sums *sums)
{
	for (int i = 0; i < sums->nitems; i++)
	{
		PartialSum *item = item_of(sums, i);

		IvfpqTempFilePut(sums->temp,
						 IvfpqTempFileRange(sums->temp, item->list,
											sums->nlists),
						 item, sums->item_bytes);
		sums->places[item->list] = -1;
	}
	sums->nitems = 0;
}

static void
add_row(Sums *sums, int32 list, const float *row)
{
	PartialSum *item;

	if (sums->places[list] < 0)
	{
		if (sums->nitems == sums->max_items)
			flush_sums(sums);
		sums->places[list] = sums->nitems++;
		item = item_of(sums, sums->places[list]);
		memset(item, 0, sums->item_bytes);
		item->list = list;
	}
	item = item_of(sums, sums->places[list]);
	for (int d = 0; d < sums->dims; d++)
		item->sum[d] += (int64) (row[d] * UNIT);
	item->count++;
}

/*
 * Takes one file of rows after another, places its rows, and adds up the rows
 * of each list.  This is the assignment step of a Lloyd iteration.  The sums
 * take a quarter of this participant's part of the memory.
 */
static void
sum_rows(IvfpqCluster *cluster, IvfpqTempFile *temp)
{
	const IvfpqTraining *training = cluster->training;
	IvfpqTempFile *files = &cluster->rows;
	int			dims = training->gv.dims;
	int			nfrom = cluster->parallel->shared->size;
	GvGroups	groups;
	void	   *memory = IvfpqAllocGroups(training, &groups);
	int			most = IvfpqRowsToPlace(&groups, IvfpqMemoryLimit() / 8 / nfrom);
	float	   *rows = palloc((Size) most * dims * sizeof(float));
	int32	   *lists = palloc(most * sizeof(int32));
	void	   *chunk;
	void	   *scratch = IvfpqAllocScratch(gv_place_scratch(&groups, most, 1),
											&chunk);
	Sums		sums = {.temp = temp, .nlists = training->nlists, .dims = dims};
	int64		piece;

	sums.item_bytes = offsetof(PartialSum, sum) + dims * sizeof(int64);
	sums.max_items = (int) Min(IvfpqMemoryLimit() / 4 / nfrom / sums.item_bytes,
							   (Size) sums.nlists);
	sums.max_items = Max(sums.max_items, 1);
	sums.items = palloc_extended(sums.max_items * sums.item_bytes,
								 MCXT_ALLOC_HUGE);
	sums.places = palloc_extended(sums.nlists * sizeof(int32),
								  MCXT_ALLOC_HUGE);
	memset(sums.places, -1, sums.nlists * sizeof(int32));
	while (IvfpqParallelNext(cluster->parallel, files->nranges * nfrom,
							 &piece))
	{
		int			from = (int) piece % nfrom;

		IvfpqTempFileOpen(files, (int) piece / nfrom, from, from + 1);
		for (;;)
		{
			int			n = 0;

			while (n < most && IvfpqTempFileRead(files, cluster->row,
												 cluster->row_bytes))
				gv_from_half(cluster->row->half, dims,
							 rows + (Size) n++ * dims);
			if (n == 0)
				break;
			IvfpqCheckStatus(gv_place(&groups, rows, n, 1, lists, scratch,
									  &ivfpq_stop));
			for (int i = 0; i < n; i++)
				add_row(&sums, lists[i], rows + (Size) i * dims);
			/* the engine does not check for interrupts in small batches */
			CHECK_FOR_INTERRUPTS();
		}
	}
	flush_sums(&sums);
	IvfpqTempFileDone(temp);
	pfree(sums.places);
	pfree(sums.items);
	pfree(chunk);
	pfree(memory);
	pfree(lists);
	pfree(rows);
}

/*
 * Takes one range of lists after another, and moves each list's centroid to
 * the mean of the list's rows.  This is the update step of a Lloyd iteration.
 */
static void
move_lists(IvfpqCluster *cluster, IvfpqTempFile *temp)
{
	IvfpqTraining *training = cluster->training;
	int			dims = training->gv.dims;
	Size		bytes = offsetof(PartialSum, sum) + dims * sizeof(int64);
	PartialSum *item = palloc(bytes);
	int64		range;

	while (IvfpqParallelNext(cluster->parallel, temp->nranges, &range))
	{
		int			first = IvfpqTempFileFirst(temp, (int) range,
											   training->nlists);
		int			n = IvfpqTempFileFirst(temp, (int) range + 1,
										   training->nlists) - first;
		int64	   *sums = palloc_extended((Size) n * dims * sizeof(int64),
										   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
		int64	   *counts = palloc0(n * sizeof(int64));

		IvfpqTempFileOpen(temp, (int) range, 0,
						  cluster->parallel->shared->size);
		while (IvfpqTempFileRead(temp, item, bytes))
		{
			int64	   *sum = sums + (Size) (item->list - first) * dims;

			CHECK_FOR_INTERRUPTS();
			for (int d = 0; d < dims; d++)
				sum[d] += item->sum[d];
			counts[item->list - first] += item->count;
		}
		for (int i = 0; i < n; i++)
		{
			float	   *centroid = training->centroids +
			(Size) (first + i) * dims;

			for (int d = 0; d < dims && counts[i] > 0; d++)
				centroid[d] = (float) ((double) sums[(Size) i * dims + d] /
									   UNIT / (double) counts[i]);
		}
		pfree(counts);
		pfree(sums);
	}
	pfree(item);
}

/*
 * Makes new parents by k-means of the centroids, and stores the centroids
 * parent by parent.  The leader calls this.
 */
static void
regroup(IvfpqCluster *cluster)
{
	IvfpqTraining *training = cluster->training;
	int			dims = training->gv.dims;
	int			nlists = training->nlists;
	Size		bytes = (Size) nlists * dims * sizeof(float);
	float	   *centroids = palloc_extended(bytes, MCXT_ALLOC_HUGE);
	int32	   *owners = palloc(nlists * sizeof(int32));
	int			n;

	memcpy(centroids, training->centroids, bytes);
	n = IvfpqKmeans(centroids, nlists, dims, training->nparents,
					IVFPQ_ITERATIONS, training->parents);
	IvfpqCheckStatus(gv_assign(dims, training->parents, n, centroids, nlists,
							   owners, NULL, &ivfpq_stop));
	training->nparents = gv_group_lists(dims, nlists, centroids, owners, n,
										training->parents,
										training->parent_offsets,
										training->centroids);
	pfree(owners);
	pfree(centroids);
}

/*
 * Ends a phase for this participant.  When all participants have ended the
 * phase, the leader calls `between`, if not NULL, and shares the training.
 */
static void
cluster_end_phase(IvfpqCluster *cluster,
				  void (*between) (IvfpqCluster *cluster))
{
	if (IvfpqParallelEndPhase(cluster->parallel))
	{
		if (between != NULL)
			between(cluster);
		IvfpqTrainingShare(cluster->training, cluster->parallel);
		IvfpqParallelStartPhase(cluster->parallel);
	}
	IvfpqTrainingOpen(cluster->training, cluster->parallel);
}

/*
 * Does this participant's part of training the lists, after the parents have
 * been trained.  Each injection point is named for the step before it.
 */
static void
work(IvfpqReader *reader, IvfpqParallel *parallel)
{
	IvfpqCluster cluster = {.parallel = parallel, .training = reader->training,
		.shared = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_CLUSTER),
		.counts = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_COUNTS),
	.found = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_FOUND)};
	int			nranges = cluster.shared->nranges;
	IvfpqTempFile sums;

	cluster.row_bytes = offsetof(IvfpqClusterRow, half) +
		cluster.training->gv.dims * sizeof(uint16);
	cluster.row = palloc(cluster.row_bytes);
	IvfpqTempFileBegin(&cluster.rows, parallel, "rows", nranges);
	IvfpqReaderRun(reader, parallel, take_rows, &cluster);
	IvfpqTempFileDone(&cluster.rows);
	IvfpqInjectionPoint("lists: read");
	cluster_end_phase(&cluster, plan_children);
	train_children(&cluster);
	IvfpqInjectionPoint("lists: trained");
	cluster_end_phase(&cluster, close_gaps);
	for (int pass = 0; pass < FINAL_LLOYD_PASSES && cluster.shared->nrows > 0;
		 pass++)
	{
		IvfpqTempFileBegin(&sums, parallel, "sums", nranges);
		sum_rows(&cluster, &sums);
		IvfpqInjectionPoint("lists: placed");
		cluster_end_phase(&cluster, NULL);
		move_lists(&cluster, &sums);
		IvfpqInjectionPoint("lists: moved");
		cluster_end_phase(&cluster, regroup);
		IvfpqTempFileEnd(&sums);
	}
	IvfpqTempFileEnd(&cluster.rows);
	pfree(cluster.row);
}

/*
 * Trains centroids for about `lists` lists. rows [n][dims] are transformed
 * rows in memory.  If IvfpqParents(lists) is 1, the lists are trained on these
 * rows, and the parent's centroid is zero.  Otherwise only the parents are
 * trained on these rows, and all participants train the lists, on the rows
 * that `reader` reads.
 */
void
IvfpqTrainLists(IvfpqTraining *training, IvfpqParallel *parallel,
				const float *rows, int64 n, int lists, IvfpqReader *reader)
{
	int			dims = training->gv.dims;
	int			nparents = IvfpqParents(lists);
	IvfpqClusterShared *shared;
	pg_atomic_uint64 *counts;

	training->nlists = 0;
	if (nparents == 1)
	{
		IvfpqTrainingAlloc(training, parallel, 1, lists);
		training->nlists = IvfpqKmeans(rows, n, dims, lists, IVFPQ_ITERATIONS,
									   training->centroids);
		memset(training->parents, 0, dims * sizeof(float));
		training->parent_offsets[0] = 0;
		training->parent_offsets[1] = training->nlists;
		return;
	}

	/* parents without rows keep one list each, in addition to `lists` */
	IvfpqTrainingAlloc(training, parallel, nparents, lists + nparents);
	n = Min(n, (int64) nparents * 4 * IVFPQ_SAMPLES_PER_LIST);
	nparents = IvfpqKmeans(rows, n, dims, nparents, IVFPQ_ITERATIONS,
						   training->parents);
	training->nparents = nparents;

	shared = IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_CLUSTER,
								sizeof(IvfpqClusterShared));
	memset(shared, 0, sizeof(*shared));
	shared->lists = lists;
	shared->nparents = nparents;
	shared->nranges = Min(nparents, RANGES_EACH * parallel->shared->nparts);
	counts = IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_COUNTS,
								nparents * sizeof(*counts));
	for (int p = 0; p < nparents; p++)
		pg_atomic_init_u64(&counts[p], 0);
	(void) IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_FOUND,
							  nparents * sizeof(int32));
	IvfpqTrainingShare(training, parallel);
	IvfpqReaderShare(reader, parallel, 0);
	IvfpqParallelStartJob(parallel, IVFPQ_JOB_CLUSTER);
	work(reader, parallel);
	(void) IvfpqParallelEndPhase(parallel);
	IvfpqParallelFree(parallel, IVFPQ_PARALLEL_READER);
}

/* Does a worker's part of IvfpqTrainLists. */
void
IvfpqClusterHelp(IvfpqReader *reader, IvfpqParallel *parallel)
{
	IvfpqTrainingOpen(reader->training, parallel);
	work(reader, parallel);
}
