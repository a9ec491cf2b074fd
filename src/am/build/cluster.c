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

#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/tuplesort.h"

#include "am/build/train.h"
#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "page/injection.h"
#include "pgcompat.h"

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

/* Columns of the sort. */
#define SORT_ORDER			1
#define SORT_ID				2
#define SORT_ROW			3

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

/* A participant's view. */
typedef struct IvfpqCluster
{
	IvfpqParallel *parallel;
	IvfpqTraining *training;	/* centroids: [lists + nparents] */
	IvfpqReader *reader;		/* of rows */
	IvfpqClusterShared *shared;
	pg_atomic_uint64 *counts;	/* [nparents] rows of each parent */
	int32	   *found;			/* [nparents] lists of each parent */
	IvfpqTempFile rows;			/* IvfpqClusterRow, by ranges of parents */
} IvfpqCluster;

/* A row in a file; its dimensions in half precision follow. */
typedef struct IvfpqClusterRow
{
	int64		order;			/* by parent, then as good as random */
	int64		id;				/* IvfpqTidToId: orders rows of equal order */
} IvfpqClusterRow;

/* Rows on their way to their parents. */
typedef struct Taker
{
	IvfpqCluster *cluster;
	IvfpqClusterRow *item;		/* with memory for its dimensions */
} Taker;

/* A sort of the rows of a range of parents. */
typedef struct RowSort
{
	int			dims;
	Tuplesortstate *state;
	TupleTableSlot *slot;
	bytea	   *item;			/* one row */
} RowSort;

/*
 * The rows of a list, added up, on the way to the participant that moves the
 * list; [dims] sums follow.  A row adds less than 2^40 to each.
 */
typedef struct PartialSum
{
	int32		list;
	int32		count;			/* rows */
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

/* Runs k-means; returns how many centroids were made. */
static int
kmeans(const float *rows, int64 n, int dims, int k, float *centroids)
{
	GvKmeans	spec = {.dims = dims, .n = n, .k = k,
		.iterations = IVFPQ_ITERATIONS, .max_imbalance = IVFPQ_MAX_IMBALANCE,
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
	Taker	   *taker = arg;
	IvfpqCluster *cluster = taker->cluster;
	IvfpqTraining *training = cluster->training;
	int			dims = training->gv.dims;
	int32		parents[IVFPQ_READ_ROWS];

	IvfpqCheckStatus(gv_assign(dims, training->parents, training->nparents,
							   rows, n, parents, NULL, &ivfpq_stop));
	for (int i = 0; i < n; i++)
	{
		taker->item->order = order_of(parents[i], ids[i]);
		taker->item->id = (int64) ids[i];
		gv_to_half(rows + (Size) i * dims, dims,
				   (uint16_t *) (taker->item + 1));
		IvfpqTempFilePut(&cluster->rows,
						 IvfpqTempFileRange(&cluster->rows, parents[i],
											training->nparents),
						 taker->item,
						 sizeof(IvfpqClusterRow) + dims * sizeof(uint16));
		pg_atomic_fetch_add_u64(&cluster->counts[parents[i]], 1);
	}
	return true;
}

/* Reads rows of blocks that no other participant has claimed. */
static void
read_rows(IvfpqCluster *cluster)
{
	Taker		taker = {.cluster = cluster};

	taker.item = palloc(sizeof(IvfpqClusterRow) +
						cluster->training->gv.dims * sizeof(uint16));
	IvfpqTempFileBegin(&cluster->rows, cluster->parallel, "rows",
					   cluster->shared->nranges);
	cluster->reader->sink = take_rows;
	cluster->reader->sink_arg = &taker;
	IvfpqReaderRun(cluster->reader, cluster->parallel);
	IvfpqTempFileDone(&cluster->rows);
	pfree(taker.item);
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

/*
 * Begins a sort by parent in a trainer's fraction of a quarter of the memory.
 */
static void
begin_sort(RowSort *sort, IvfpqCluster *cluster)
{
	TupleDesc	desc = CreateTemplateTupleDesc(SORT_ROW);
	AttrNumber	columns[] = {SORT_ORDER, SORT_ID};
	Oid			operators[] = {Int8LessOperator, Int8LessOperator};
	Oid			collations[] = {InvalidOid, InvalidOid};
	bool		nulls_first[] = {false, false};
	Size		bytes;

	sort->dims = cluster->training->gv.dims;
	bytes = VARHDRSZ + sort->dims * sizeof(uint16);
	TupleDescInitEntry(desc, SORT_ORDER, "order", INT8OID, -1, 0);
	TupleDescInitEntry(desc, SORT_ID, "id", INT8OID, -1, 0);
	TupleDescInitEntry(desc, SORT_ROW, "row", BYTEAOID, -1, 0);
	IvfpqFinishTupleDesc(desc);
	sort->slot = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	sort->state = tuplesort_begin_heap(desc, 2, columns, operators,
									   collations, nulls_first,
									   Max(maintenance_work_mem / 4 /
										   cluster->shared->ntrainers, 64),
									   NULL, TUPLESORT_NONE);
	sort->item = palloc(bytes);
	SET_VARSIZE(sort->item, bytes);
}

/* Puts all rows of a file into the sort; *item has memory for one. */
static void
sort_file(RowSort *sort, BufFile *file, IvfpqClusterRow *item)
{
	Size		row = sort->dims * sizeof(uint16);
	TupleTableSlot *slot = sort->slot;

	while (IvfpqTempFileRead(file, item, sizeof(*item) + row))
	{
		CHECK_FOR_INTERRUPTS();
		memcpy(VARDATA(sort->item), item + 1, row);
		ExecClearTuple(slot);
		slot->tts_values[SORT_ORDER - 1] = Int64GetDatum(item->order);
		slot->tts_values[SORT_ID - 1] = Int64GetDatum(item->id);
		slot->tts_values[SORT_ROW - 1] = PointerGetDatum(sort->item);
		memset(slot->tts_isnull, 0, SORT_ROW * sizeof(bool));
		ExecStoreVirtualTuple(slot);
		tuplesort_puttupleslot(sort->state, slot);
	}
}

/* Sorts the rows that all have read for a range of parents. */
static void
sort_range(RowSort *sort, IvfpqCluster *cluster, int range)
{
	IvfpqClusterRow *item;
	TupleDesc	desc;

	begin_sort(sort, cluster);
	item = palloc(sizeof(IvfpqClusterRow) + sort->dims * sizeof(uint16));
	for (int from = 0; from < cluster->parallel->shared->size; from++)
	{
		BufFile    *file = IvfpqTempFileOpen(&cluster->rows, range, from);

		if (file == NULL)
			continue;
		sort_file(sort, file, item);
		IvfpqTempFileClose(&cluster->rows, file);
	}
	pfree(item);
	tuplesort_performsort(sort->state);
	desc = CreateTupleDescCopy(sort->slot->tts_tupleDescriptor);
	ExecDropSingleTupleTableSlot(sort->slot);
	sort->slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
}

static void
end_sort(RowSort *sort)
{
	ExecDropSingleTupleTableSlot(sort->slot);
	tuplesort_end(sort->state);
	pfree(sort->item);
}

/* Reads `count` rows of the sort; the first n, decoded, go to rows. */
static void
read_sorted(RowSort *sort, int64 count, int64 n, float *rows)
{
	for (int64 i = 0; i < count; i++)
	{
		const char *half;
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		if (!tuplesort_gettupleslot(sort->state, true, false, sort->slot,
									NULL))
			elog(ERROR, "rows were lost while sorting by parent");
		if (i >= n)
			continue;
		half = VARDATA_ANY(DatumGetPointer(slot_getattr(sort->slot, SORT_ROW,
														&isnull)));
		/* the row may not be aligned */
		memcpy(VARDATA(sort->item), half, sort->dims * sizeof(uint16));
		gv_from_half((const uint16_t *) VARDATA(sort->item), sort->dims,
					 rows + i * sort->dims);
	}
}

/* Trains the lists of parent p from its rows, which come next in the sort. */
static void
train_parent(IvfpqCluster *cluster, RowSort *sort, int p)
{
	IvfpqTraining *training = cluster->training;
	int			dims = training->gv.dims;
	float	   *centroids = training->centroids +
	(Size) training->parent_offsets[p] * dims;
	int			k = training->parent_offsets[p + 1] -
	training->parent_offsets[p];
	int64		count = pg_atomic_read_u64(&cluster->counts[p]);
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
	read_sorted(sort, count, n, rows);
	cluster->found[p] = kmeans(rows, n, dims, (int) Min(k, n),
							   centroids);
	pfree(rows);
}

/* Trains the lists of ranges of parents that no other participant takes. */
static void
train_children(IvfpqCluster *cluster)
{
	int			nparents = cluster->shared->nparents;
	int64		range;

	if (cluster->parallel->me >= cluster->shared->ntrainers)
		return;
	while (IvfpqParallelNext(cluster->parallel, cluster->rows.nranges, &range))
	{
		int			end = IvfpqTempFileFirst(&cluster->rows, (int) range + 1,
											 nparents);
		RowSort		sort;

		sort_range(&sort, cluster, (int) range);
		for (int p = IvfpqTempFileFirst(&cluster->rows, (int) range, nparents);
			 p < end; p++)
			train_parent(cluster, &sort, p);
		end_sort(&sort);
	}
}

/* The leader closes the gaps where a parent's rows made fewer lists. */
static void
close_gaps(IvfpqCluster *cluster)
{
	IvfpqTraining *training = cluster->training;
	Size		row = training->gv.dims * sizeof(float);

	training->nlists = 0;
	for (int p = 0; p < training->nparents; p++)
	{
		memmove((char *) training->centroids + training->nlists * row,
				(char *) training->centroids + training->parent_offsets[p] *
				row,
				cluster->found[p] * row);
		training->parent_offsets[p] = training->nlists;
		training->nlists += cluster->found[p];
	}
	training->parent_offsets[training->nparents] = training->nlists;
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

/* Begins sums, in a quarter of the participant's memory. */
static void
begin_sums(Sums *sums, IvfpqCluster *cluster, IvfpqTempFile *temp)
{
	Size		memory = IvfpqMemoryLimit() / 4 /
	cluster->parallel->shared->size;

	sums->temp = temp;
	sums->nlists = cluster->training->nlists;
	sums->dims = cluster->training->gv.dims;
	sums->item_bytes = sizeof(PartialSum) + sums->dims * sizeof(int64);
	sums->nitems = 0;
	sums->max_items = (int) Min(memory / sums->item_bytes,
								(Size) sums->nlists);
	sums->max_items = Max(sums->max_items, 1);
	sums->items = palloc_extended(sums->max_items * sums->item_bytes,
								  MCXT_ALLOC_HUGE);
	sums->places = palloc_extended(sums->nlists * sizeof(int32),
								   MCXT_ALLOC_HUGE);
	memset(sums->places, -1, sums->nlists * sizeof(int32));
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
	int64	   *sum;

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
	sum = (int64 *) (item + 1);
	for (int d = 0; d < sums->dims; d++)
		sum[d] += (int64) (row[d] * UNIT);
	item->count++;
}

/* Reads rows of a file, `most` at most, decoded; returns how many. */
static int
read_file(BufFile *file, int dims, IvfpqClusterRow *item, int most,
		  float *rows)
{
	Size		bytes = sizeof(IvfpqClusterRow) + dims * sizeof(uint16);
	int			n = 0;

	while (n < most && IvfpqTempFileRead(file, item, bytes))
		gv_from_half((const uint16_t *) (item + 1), dims,
					 rows + (Size) n++ * dims);
	return n;
}

/*
 * Places the rows of files that no other participant takes, and adds them up.
 */
static void
sum_rows(IvfpqCluster *cluster, IvfpqTempFile *temp)
{
	int			dims = cluster->training->gv.dims;
	int			nfrom = cluster->parallel->shared->size;
	GvGroups	groups;
	void	   *memory = IvfpqAllocGroups(cluster->training, &groups);
	IvfpqClusterRow *item = palloc(sizeof(IvfpqClusterRow) +
								   dims * sizeof(uint16));
	int			most = IvfpqRowsToPlace(&groups, IvfpqMemoryLimit() / 8 / nfrom);
	float	   *rows = palloc((Size) most * dims * sizeof(float));
	int32	   *lists = palloc(most * sizeof(int32));
	void	   *chunk;
	void	   *scratch;
	Sums		sums;
	int64		piece;

	scratch = IvfpqAllocScratch(gv_place_scratch(&groups, most, 1), &chunk);
	begin_sums(&sums, cluster, temp);
	while (IvfpqParallelNext(cluster->parallel, cluster->rows.nranges * nfrom,
							 &piece))
	{
		BufFile    *file = IvfpqTempFileOpen(&cluster->rows,
											 (int) piece / nfrom,
											 (int) piece % nfrom);
		int			n;

		if (file == NULL)
			continue;
		while ((n = read_file(file, dims, item, most, rows)) > 0)
		{
			IvfpqCheckStatus(gv_place(&groups, rows, n, 1, lists, scratch,
									  &ivfpq_stop));
			for (int i = 0; i < n; i++)
				add_row(&sums, lists[i], rows + (Size) i * dims);
			/* the engine does not check if a batch is little work */
			CHECK_FOR_INTERRUPTS();
		}
		IvfpqTempFileClose(&cluster->rows, file);
	}
	flush_sums(&sums);
	IvfpqTempFileDone(temp);
	pfree(sums.places);
	pfree(sums.items);
	pfree(chunk);
	pfree(memory);
	pfree(lists);
	pfree(rows);
	pfree(item);
}

/* Moves the centroids of a range of lists to the means of their rows. */
static void
move_range(IvfpqCluster *cluster, IvfpqTempFile *temp, int range,
		   PartialSum *item)
{
	IvfpqTraining *training = cluster->training;
	int			dims = training->gv.dims;
	Size		bytes = sizeof(PartialSum) + dims * sizeof(int64);
	int			first = IvfpqTempFileFirst(temp, range, training->nlists);
	int			end = IvfpqTempFileFirst(temp, range + 1, training->nlists);
	int			n = end - first;
	int64	   *sums = palloc_extended((Size) n * dims * sizeof(int64),
									   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	int64	   *counts = palloc0(n * sizeof(int64));

	for (int from = 0; from < cluster->parallel->shared->size; from++)
	{
		BufFile    *file = IvfpqTempFileOpen(temp, range, from);

		while (file != NULL && IvfpqTempFileRead(file, item, bytes))
		{
			const int64 *part = (const int64 *) (item + 1);
			int64	   *sum = sums + (Size) (item->list - first) * dims;

			CHECK_FOR_INTERRUPTS();
			for (int d = 0; d < dims; d++)
				sum[d] += part[d];
			counts[item->list - first] += item->count;
		}
		if (file != NULL)
			IvfpqTempFileClose(temp, file);
	}
	for (int i = 0; i < n; i++)
	{
		float	   *centroid = training->centroids + (Size) (first + i) * dims;

		for (int d = 0; d < dims && counts[i] > 0; d++)
			centroid[d] = (float) ((double) sums[(Size) i * dims + d] / UNIT /
								   (double) counts[i]);
	}
	pfree(counts);
	pfree(sums);
}

/* Moves the centroids of all ranges that no other participant takes. */
static void
move_lists(IvfpqCluster *cluster, IvfpqTempFile *temp)
{
	PartialSum *item = palloc(sizeof(PartialSum) +
							  cluster->training->gv.dims * sizeof(int64));
	int64		range;

	while (IvfpqParallelNext(cluster->parallel, temp->nranges, &range))
		move_range(cluster, temp, (int) range, item);
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
	n = kmeans(centroids, nlists, dims, training->nparents,
			   training->parents);
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
 * Does a participant's part of a final Lloyd pass.  Injection points are named
 * for the step before them.
 */
static void
final_lloyd_pass(IvfpqCluster *cluster)
{
	IvfpqTempFile temp;

	IvfpqTempFileBegin(&temp, cluster->parallel, "sums",
					   cluster->rows.nranges);
	sum_rows(cluster, &temp);
	IvfpqInjectionPoint("lists: placed");
	cluster_end_phase(cluster, NULL);
	move_lists(cluster, &temp);
	IvfpqInjectionPoint("lists: moved");
	cluster_end_phase(cluster, regroup);
	IvfpqTempFileEnd(&temp);
}

/*
 * Does a participant's part, from parents to lists.  Injection points are
 * named for the step before them.
 */
static void
work(IvfpqReader *reader, IvfpqParallel *parallel)
{
	IvfpqCluster cluster = {.parallel = parallel, .training = reader->training,
		.reader = reader,
		.shared = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_CLUSTER),
		.counts = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_COUNTS),
	.found = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_FOUND)};

	read_rows(&cluster);
	IvfpqInjectionPoint("lists: read");
	cluster_end_phase(&cluster, plan_children);
	train_children(&cluster);
	IvfpqInjectionPoint("lists: trained");
	cluster_end_phase(&cluster, close_gaps);
	for (int pass = 0; pass < FINAL_LLOYD_PASSES && cluster.shared->nrows > 0;
		 pass++)
		final_lloyd_pass(&cluster);
	IvfpqTempFileEnd(&cluster.rows);
}

/* The leader sets up the memory that all participants see. */
static void
share(const IvfpqTraining *training, IvfpqParallel *parallel, int lists)
{
	int			nparents = training->nparents;
	IvfpqClusterShared *shared =
	IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_CLUSTER,
					   sizeof(IvfpqClusterShared));
	pg_atomic_uint64 *counts =
	IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_COUNTS,
					   nparents * sizeof(*counts));

	memset(shared, 0, sizeof(*shared));
	shared->lists = lists;
	shared->nparents = nparents;
	shared->nranges = Min(nparents, RANGES_EACH * parallel->shared->nparts);
	for (int p = 0; p < nparents; p++)
		pg_atomic_init_u64(&counts[p], 0);
	(void) IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_FOUND,
							  nparents * sizeof(int32));
	IvfpqTrainingShare(training, parallel);
}

/* Allocates arrays for nparents parents and `lists` lists. */
static void
alloc_lists(IvfpqTraining *training, IvfpqParallel *parallel, int nparents,
			int lists)
{
	Size		row = training->gv.dims * sizeof(float);

	training->nparents = nparents;
	training->parents = IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_PARENTS,
										   nparents * row);
	training->parent_offsets =
		IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_PARENT_OFFSETS,
						   (nparents + 1) * sizeof(int32));
	training->centroids =
		IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_CENTROIDS,
						   lists * row);
}

/* Trains one level: all lists from the rows in memory, under one parent. */
static void
train_flat(IvfpqTraining *training, IvfpqParallel *parallel, const float *rows,
		   int64 n, int lists)
{
	int			dims = training->gv.dims;

	alloc_lists(training, parallel, 1, lists);
	training->nlists = kmeans(rows, n, dims, lists, training->centroids);
	memset(training->parents, 0, dims * sizeof(float));
	training->parent_offsets[0] = 0;
	training->parent_offsets[1] = training->nlists;
}

/*
 * Trains centroids for about `lists` lists: parents from the n transformed
 * rows in memory, lists from those that `reader` is to read, by all
 * participants.
 */
void
IvfpqTrainLists(IvfpqTraining *training, IvfpqParallel *parallel,
				const float *rows,
				int64 n, int lists, IvfpqReader *reader)
{
	int			nparents = IvfpqParents(lists);

	training->nlists = 0;
	if (nparents == 1)
	{
		train_flat(training, parallel, rows, n, lists);
		return;
	}

	/* parents that get no rows keep a list each */
	alloc_lists(training, parallel, nparents, lists + nparents);
	n = Min(n, (int64) nparents * 4 * IVFPQ_SAMPLES_PER_LIST);
	training->nparents = kmeans(rows, n, training->gv.dims, nparents,
								training->parents);
	share(training, parallel, lists);
	IvfpqReaderShare(reader, parallel);
	IvfpqParallelStartJob(parallel, IVFPQ_JOB_CLUSTER);
	work(reader, parallel);
	(void) IvfpqParallelEndPhase(parallel);
	IvfpqReaderEnd(parallel);
}

/* Does a worker's part of IvfpqTrainLists. */
void
IvfpqClusterHelp(IvfpqReader *reader, IvfpqParallel *parallel)
{
	IvfpqReaderJoin(reader, parallel);
	IvfpqTrainingOpen(reader->training, parallel);
	work(reader, parallel);
}
