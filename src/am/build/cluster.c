/*
 * cluster.c
 *		Two levels of centroids, trained by all participants; and groups of
 *		lists, through which rows are placed.
 *
 * Parents, about the square root of lists, come from the part of the sample
 * that fits in memory.  Then rows are read, go to files by parent, in half
 * precision, and each parent's lists are trained from its own rows.  So memory
 * is needed for one parent's rows at a time, and k-means takes the square root
 * of the work that it would take with all lists at once.
 *
 * Lists that were trained parent by parent end at the borders between parents.
 * Final Lloyd passes, iterations of k-means over all rows and all lists,
 * repair that.  A pass places all rows in the nearest list of any parent, and
 * moves each centroid to the mean of its rows; then the centroids are grouped
 * under new parents, which are means of centroids.  Each participant places
 * the rows of the files that it takes, and adds them up by list; then each
 * adds up the sums that all have of the lists that it takes.
 *
 * The result does not depend on how work is divided among participants: the
 * blocks to read have been drawn before, and a parent's rows are put in an
 * order that their TIDs give.  Sums are in fixed point, in units of the
 * smallest number of half precision, so that they are exact in any order.  A
 * leader that is alone does the same without waiting.
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

/* Below this many lists one level is enough. */
#define MIN_LISTS_FOR_PARENTS	256

/*
 * Lists of one parent, times the mean.  The sample's parents have at most
 * twice the mean of its rows, but for one of equal rows: more lists would not
 * divide these, and k-means compares each of its rows with each of them.
 */
#define MOST_CHILDREN		8

/*
 * Files of rows that a participant may fill: enough for all participants to
 * get some in the end, and few enough for each file to have a buffer.
 */
#define RANGES_EACH			8

#define FINAL_LLOYD_PASSES		2

#define UNIT			16777216.0f /* 2^24; numbers of half precision are
									 * multiples of 1 / UNIT */

/* Bits of IvfpqClusterRow's order below the parent. */
#define ORDER_BITS			40

#define GROUP_ROWS		256		/* of a group, so that making its panels costs
								 * little */
#define LEAST_ROWS		1024	/* at once, where groups are few */
#define PLACED_BYTES	768		/* of a row, for gv_place's results, about */

/* The state that all participants share (IVFPQ_PARALLEL_CLUSTER). */
typedef struct IvfpqClusterShared
{
	int			lists;			/* requested */
	int			nparents;		/* that rows are sorted by */
	int			nranges;		/* of these parents */

	/* written by the leader while workers wait */
	int64		nrows;			/* that were read */
	int			ntrainers;		/* participants that may train at once */
} IvfpqClusterShared;

/* A row in a file. */
typedef struct IvfpqClusterRow
{
	int64		order;			/* by parent, then as good as random */
	int64		id;				/* IvfpqTidToId: orders rows of equal order */
	uint16		half[FLEXIBLE_ARRAY_MEMBER];	/* [dims] in half precision */
} IvfpqClusterRow;

/* A participant's view. */
typedef struct IvfpqCluster
{
	IvfpqParallel *parallel;
	IvfpqTraining *training;	/* centroids: [lists + nparents] */
	IvfpqClusterShared *shared;
	pg_atomic_uint64 *counts;	/* [nparents] rows of each parent */
	int32	   *found;			/* [nparents] lists of each parent */
	IvfpqTempFile rows;			/* IvfpqClusterRow, by ranges of parents */
	Size		row_bytes;		/* of an IvfpqClusterRow */
	IvfpqClusterRow *row;		/* one of them */
} IvfpqCluster;

/*
 * The rows of a list, added up, on the way to the participant that moves the
 * list.  A row adds less than 2^40 to each sum.
 */
typedef struct PartialSum
{
	int32		list;
	int32		count;			/* rows */
	int64		sum[FLEXIBLE_ARRAY_MEMBER]; /* [dims] */
} PartialSum;

/* The sums of lists in which this participant has placed rows. */
typedef struct Sums
{
	IvfpqTempFile *temp;		/* to other participants */
	int			nlists;
	int			dims;
	Size		item_bytes;
	int			nitems;
	int			max_items;
	char	   *items;			/* [max_items] PartialSum, with their sums */
	int32	   *places;			/* [nlists] in items, -1: not there */
} Sums;

/*
 * Allocates arrays for nparents parents and `lists` lists.  The leader calls
 * this while workers wait.
 */
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
 * The leader, while workers wait, has all participants see *training.  They
 * see its arrays already.
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
 * Sets *training to the leader's; a builder that the participant has stays.
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

/* Returns the number of parents for this number of lists. */
int
IvfpqParents(int lists)
{
	return lists < MIN_LISTS_FOR_PARENTS ? 1 : (int) rint(sqrt(lists));
}

/* Returns the memory that k-means on n rows holds at once, rows included. */
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
 * split.  Returns the number of centroids, which is below k if fewer rows
 * differ.
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
 * Returns a row's place in the order of its parent's rows: as good as random,
 * and known from its TID, whose bits are mixed by multiplications (the
 * finalizer of MurmurHash3).
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

/* IvfpqRowSink: sends transformed rows [n][dims] to their parents. */
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
 * Returns the number of a parent's rows that its k lists are trained on: those
 * that fit into memory, up to IVFPQ_SAMPLES_PER_LIST for a list, or 256 in
 * all.
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
 * The leader divides the lists among parents by their numbers of rows, and
 * limits the number of participants that train them so that memory holds the
 * largest parent for each.  So the rows that a parent's lists are trained on
 * do not depend on the number of participants.
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
	nrows = Max(shared->nrows, 1);	/* rows may all be deleted by now */
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

/* Trains the lists of parent p from its rows, which come next in the sort. */
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
 * Trains the lists of ranges of parents that no other participant takes.  Each
 * trainer sorts a range's rows, which all participants have read, by parent,
 * in its fraction of a quarter of the memory.
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

/* The leader closes the gaps where a parent's rows made fewer lists. */
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
 * Makes the groups through which rows are placed.  Returns their memory, of
 * the current context, which the caller frees.
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
 * Returns the number of rows to place at once: enough that each group's lists
 * are compared with GROUP_ROWS of them, as far as there is memory for that.
 */
int
IvfpqRowsToPlace(const GvGroups *groups, Size memory)
{
	Size		row = groups->dims * sizeof(float) + PLACED_BYTES;
	int64		rows_needed = (int64) groups->ngroups * GROUP_ROWS /
	groups->tried;

	/* no array of them exceeds palloc's limit */
	memory = Min(memory, MaxAllocSize / 2);
	return (int) Max(16,
					 Min(Max(rows_needed, LEAST_ROWS), (int64) (memory / row)));
}

static PartialSum *
item_of(const Sums *sums, int i)
{
	return (PartialSum *) (sums->items + i * sums->item_bytes);
}

/* Passes on the sums, and begins new ones. */
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

/* Adds a row to a list's sum. */
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
 * Places the rows of files that no other participant takes, and adds them up:
 * the assignment step of a Lloyd iteration.  Sums take a quarter of the
 * participant's memory.
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
			/* the engine does not check if a batch is little work */
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
 * Moves the centroids of lists, in ranges that no other participant takes, to
 * the means of their rows: the update step of a Lloyd iteration.
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
 * The leader groups the centroids under parents of their own: k-means of the
 * centroids, which are then stored parent by parent.
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
 * Ends a phase for this participant.  When all have come to its end, the
 * leader calls `between` (NULL: nothing), and all see its training so far.
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
 * Does a participant's part, from parents to lists.  Injection points are
 * named for the step before them.
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
 * Trains centroids for about `lists` lists from transformed rows: if they are
 * few, all from the n rows in memory, under one parent of zeros; else only
 * parents from these, and lists from the rows that `reader` is to read, by all
 * participants.
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

	/* parents that get no rows keep a list each */
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
