/*
 * ivfpqcluster.c
 *		Two levels of centroids from a sample of the table.
 *
 * Parents, about the square root of lists, come from the part of the sample
 * that fits in memory.  Then rows are sorted by parent, in half precision,
 * spilling to disk, and each parent's lists are trained from its own rows.
 * So memory is needed for one parent's rows at a time, and k-means takes the
 * square root of the work that it would take with all lists at once.
 *
 * Lists so trained end at the borders between parents.  A pass over all rows
 * that lets each go to the nearest list of any parent, and moves the
 * centroids to what came, mends that; then the centroids are grouped under
 * parents anew, which are means of centroids now.
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/tuplesort.h"

#include "am/ivfpqtrain.h"

#define POLISH_PASSES		2
#define POLISH_ROWS			1024	/* at once */

/* Below this many lists one level does. */
#define MIN_LISTS_FOR_PARENTS	256

/* Columns of the sort: parent, a random number, the row in half precision. */
#define SORT_PARENT			1
#define SORT_RANDOM			2
#define SORT_ROW			3

typedef struct Cluster
{
	IvfpqTraining *training;
	int			lists;			/* wanted */
	int64		nrows;			/* in the sort */
	int64	   *counts;			/* [nparents] rows of each parent */
	Tuplesortstate *sort;
	TupleDesc	desc;
	TupleTableSlot *slot;
	bytea	   *half;			/* one row */
	pg_prng_state prng;
} Cluster;

/* Memory that k-means on n rows holds at once, the rows included. */
Size
IvfpqTrainingSize(int64 n, int k, int dims)
{
	GvKmeans	spec = {.dims = dims,.n = n,.k = k,
	.iterations = IVFPQ_ITERATIONS,.max_share = IVFPQ_MAX_SHARE};

	return (Size) n * dims * sizeof(float) +
		(Size) k * dims * sizeof(float) + gv_kmeans_scratch(&spec);
}

void *
IvfpqAllocScratch(Size size, void **chunk)
{
	*chunk = palloc_extended(size + GV_ALIGN, MCXT_ALLOC_HUGE);
	return (void *) TYPEALIGN(GV_ALIGN, *chunk);
}

/* k-means; returns how many centroids were made. */
static int
run_kmeans(const float *rows, int64 n, int dims, int k, float *centroids)
{
	GvKmeans	spec = {.dims = dims,.n = n,.k = k,
		.iterations = IVFPQ_ITERATIONS,.max_share = IVFPQ_MAX_SHARE,
	.seed = IVFPQ_TRAINING_SEED};
	void	   *chunk;
	void	   *scratch = IvfpqAllocScratch(gv_kmeans_scratch(&spec), &chunk);
	int32		found;

	IvfpqCheckStatus(gv_kmeans(&spec, rows, centroids, &found, scratch,
							   &ivfpq_stop));
	pfree(chunk);
	return found;
}

/* Parents for so many lists. */
int
IvfpqParents(int lists)
{
	return lists < MIN_LISTS_FOR_PARENTS ? 1 : (int) rint(sqrt(lists));
}

static void
begin_sort(Cluster *cluster)
{
	int			dims = cluster->training->gv.dims;
	Size		bytes = VARHDRSZ + dims * sizeof(uint16);
	AttrNumber	columns[] = {SORT_PARENT, SORT_RANDOM};
	Oid			operators[] = {Int4LessOperator, Int4LessOperator};
	Oid			collations[] = {InvalidOid, InvalidOid};
	bool		nulls_first[] = {false, false};

	cluster->desc = CreateTemplateTupleDesc(SORT_ROW);
	TupleDescInitEntry(cluster->desc, SORT_PARENT, "parent", INT4OID, -1, 0);
	TupleDescInitEntry(cluster->desc, SORT_RANDOM, "random", INT4OID, -1, 0);
	TupleDescInitEntry(cluster->desc, SORT_ROW, "row", BYTEAOID, -1, 0);
	cluster->slot = MakeSingleTupleTableSlot(cluster->desc, &TTSOpsVirtual);
	cluster->sort = tuplesort_begin_heap(cluster->desc, 2, columns, operators,
										 collations, nulls_first,
										 Max(maintenance_work_mem / 4, 64),
										 NULL, TUPLESORT_RANDOMACCESS);
	cluster->half = palloc(bytes);
	SET_VARSIZE(cluster->half, bytes);
	cluster->counts = palloc0(cluster->training->nparents * sizeof(int64));
	pg_prng_seed(&cluster->prng, IVFPQ_TRAINING_SEED);
}

/* IvfpqRowSink: transformed rows [n][dims] go to their parents. */
static bool
take_rows(void *arg, const float *rows, const uint64 *ids, int n)
{
	Cluster    *cluster = arg;
	IvfpqTraining *training = cluster->training;
	int			dims = training->gv.dims;
	int32	   *parents = palloc(n * sizeof(int32));
	TupleTableSlot *slot = cluster->slot;

	IvfpqCheckStatus(gv_assign(dims, training->parents, training->nparents,
							   rows, n, parents, NULL, &ivfpq_stop));
	for (int i = 0; i < n; i++)
	{
		gv_to_half(rows + (Size) i * dims, dims,
				   (uint16_t *) VARDATA(cluster->half));
		ExecClearTuple(slot);
		slot->tts_values[SORT_PARENT - 1] = Int32GetDatum(parents[i]);
		slot->tts_values[SORT_RANDOM - 1] =
			Int32GetDatum((int32) pg_prng_uint32(&cluster->prng));
		slot->tts_values[SORT_ROW - 1] = PointerGetDatum(cluster->half);
		memset(slot->tts_isnull, 0, SORT_ROW * sizeof(bool));
		ExecStoreVirtualTuple(slot);
		tuplesort_puttupleslot(cluster->sort, slot);
		cluster->counts[parents[i]]++;
	}
	cluster->nrows += n;
	pfree(parents);
	return true;
}

/* Rows of one parent that its k lists are trained on: what fits. */
static int64
rows_to_train(int64 count, int k, int dims)
{
	int64		n = Min(count, Max((int64) k * IVFPQ_SAMPLES_PER_LIST, 256));

	while (n > k && IvfpqTrainingSize(n, k, dims) > IvfpqMemoryLimit() / 2)
		n -= (n + 9) / 10;
	return Max(n, 1);
}

/* Read `count` rows of the sort; the first n, decoded, go to rows. */
static void
read_rows(Cluster *cluster, int64 count, int64 n, float *rows)
{
	int			dims = cluster->training->gv.dims;

	for (int64 i = 0; i < count; i++)
	{
		const char *half;
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		if (!tuplesort_gettupleslot(cluster->sort, true, false, cluster->slot,
									NULL))
			elog(ERROR, "rows were lost while sorting by parent");
		if (i >= n)
			continue;
		half = VARDATA_ANY(DatumGetPointer(slot_getattr(cluster->slot,
														SORT_ROW, &isnull)));
		memcpy(VARDATA(cluster->half), half, dims * sizeof(uint16));
		gv_from_half((const uint16_t *) VARDATA(cluster->half), dims,
					 rows + i * dims);
	}
}

/* Train the lists of parent p from its rows, which come next in the sort. */
static void
train_children(Cluster *cluster, int p, int k)
{
	IvfpqTraining *training = cluster->training;
	int			dims = training->gv.dims;
	float	   *centroids = training->centroids +
		(Size) training->nlists * dims;
	int64		count = cluster->counts[p];
	int64		n;
	float	   *rows;

	if (count == 0)
	{
		memcpy(centroids, training->parents + (Size) p * dims,
			   dims * sizeof(float));
		training->nlists++;
		return;
	}
	n = rows_to_train(count, k, dims);
	rows = palloc_extended((Size) n * dims * sizeof(float), MCXT_ALLOC_HUGE);
	read_rows(cluster, count, n, rows);
	training->nlists += run_kmeans(rows, n, dims, (int) Min(k, n), centroids);
	pfree(rows);
}

/*
 * Add each row of the sort to the sum of the list that is nearest to it;
 * sums [nlists][dims] and counts [nlists] begin at 0.
 */
static void
sum_lists(Cluster *cluster, float *sums, int32 *counts)
{
	IvfpqTraining *training = cluster->training;
	int			dims = training->gv.dims;
	int			batch = (int) Min(POLISH_ROWS, cluster->nrows);
	float	   *rows = palloc((Size) batch * dims * sizeof(float));
	int32	   *lists = palloc(batch * sizeof(int32));
	GvTree		tree = IvfpqTree(training);
	void	   *chunk;
	void	   *scratch = IvfpqAllocScratch(gv_place_scratch(&tree, batch),
											&chunk);

	tuplesort_rescan(cluster->sort);
	for (int64 done = 0; done < cluster->nrows; done += batch)
	{
		int			n = (int) Min(batch, cluster->nrows - done);

		read_rows(cluster, n, n, rows);
		IvfpqCheckStatus(gv_place(&tree, rows, n, 1, lists, scratch,
								  &ivfpq_stop));
		for (int i = 0; i < n; i++)
		{
			float	   *sum = sums + (Size) lists[i] * dims;

			for (int d = 0; d < dims; d++)
				sum[d] += rows[(Size) i * dims + d];
			counts[lists[i]]++;
		}
	}
	pfree(chunk);
	pfree(lists);
	pfree(rows);
}

/*
 * Group centroids [nlists][dims] under parents of their own: k-means of the
 * centroids, which are copied to training->centroids parent by parent.
 */
static void
regroup(IvfpqTraining *training, const float *centroids)
{
	int			dims = training->gv.dims;
	int			nlists = training->nlists;
	int32	   *parents = palloc(nlists * sizeof(int32));
	int32	   *starts = training->starts;
	int			n;
	int			kept = 0;

	n = run_kmeans(centroids, nlists, dims, training->nparents,
				   training->parents);
	IvfpqCheckStatus(gv_assign(dims, training->parents, n, centroids, nlists,
							   parents, NULL, &ivfpq_stop));
	training->nlists = 0;
	for (int p = 0; p < n; p++)
	{
		int			first = training->nlists;

		for (int i = 0; i < nlists; i++)
			if (parents[i] == p)
				memcpy(training->centroids +
					   (Size) training->nlists++ * dims,
					   centroids + (Size) i * dims, dims * sizeof(float));
		if (training->nlists == first)
			continue;
		if (kept < p)			/* no parent without lists */
			memcpy(training->parents + (Size) kept * dims,
				   training->parents + (Size) p * dims, dims * sizeof(float));
		starts[kept++] = first;
	}
	starts[kept] = training->nlists;
	training->nparents = kept;
	pfree(parents);
}

/* One of Lloyd's iterations over all lists at once, and new parents. */
static void
polish(Cluster *cluster)
{
	IvfpqTraining *training = cluster->training;
	int			dims = training->gv.dims;
	int			nlists = training->nlists;
	float	   *sums = palloc_extended((Size) nlists * dims * sizeof(float),
									   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	int32	   *counts = palloc0(nlists * sizeof(int32));

	sum_lists(cluster, sums, counts);
	for (int list = 0; list < nlists; list++)
	{
		float	   *sum = sums + (Size) list * dims;

		if (counts[list] == 0)
			memcpy(sum, training->centroids + (Size) list * dims,
				   dims * sizeof(float));
		for (int d = 0; d < dims && counts[list] > 0; d++)
			sum[d] /= counts[list];
	}
	regroup(training, sums);
	pfree(counts);
	pfree(sums);
}

/* Every parent's lists, as many as its share of the rows asks for. */
static void
train_lists(Cluster *cluster)
{
	IvfpqTraining *training = cluster->training;
	int			dims = training->gv.dims;
	int64		nrows = Max(cluster->nrows, 1); /* all may be gone by now */
	int64		before = 0;

	tuplesort_performsort(cluster->sort);
	ExecDropSingleTupleTableSlot(cluster->slot);
	cluster->slot = MakeSingleTupleTableSlot(cluster->desc,
											 &TTSOpsMinimalTuple);
	training->centroids =
		palloc_extended((Size) (cluster->lists + training->nparents) * dims *
						sizeof(float), MCXT_ALLOC_HUGE);
	training->starts = palloc((training->nparents + 1) * sizeof(int32));
	for (int p = 0; p < training->nparents; p++)
	{
		int64		after = before + cluster->counts[p];
		int64		k = cluster->lists * after / nrows -
			cluster->lists * before / nrows;

		training->starts[p] = training->nlists;
		train_children(cluster, p, (int) Max(k, 1));
		before = after;
	}
	training->starts[training->nparents] = training->nlists;
	for (int pass = 0; pass < POLISH_PASSES && cluster->nrows > 0; pass++)
		polish(cluster);
	ExecDropSingleTupleTableSlot(cluster->slot);
	tuplesort_end(cluster->sort);
	pfree(cluster->counts);
	pfree(cluster->half);
}

/* One level: all lists from the rows in memory, under one parent. */
static void
train_flat(IvfpqTraining *training, const float *rows, int64 n, int lists)
{
	int			dims = training->gv.dims;

	training->centroids = palloc_extended((Size) lists * dims * sizeof(float),
										  MCXT_ALLOC_HUGE);
	training->nlists = run_kmeans(rows, n, dims, lists, training->centroids);
	training->nparents = 1;
	training->parents = palloc0(dims * sizeof(float));
	training->starts = palloc(2 * sizeof(int32));
	training->starts[0] = 0;
	training->starts[1] = training->nlists;
}

/*
 * Centroids for about `lists` lists: parents from the n transformed rows in
 * memory, lists from those that `read` passes to the sink it is given.
 */
void
IvfpqTrainLists(IvfpqTraining *training, const float *rows, int64 n,
				int lists, IvfpqRowSource read, void *arg)
{
	Cluster		cluster = {.training = training,.lists = lists};
	int			nparents = IvfpqParents(lists);

	training->nlists = 0;
	if (nparents == 1)
	{
		train_flat(training, rows, n, lists);
		return;
	}

	training->parents = palloc_extended((Size) nparents * training->gv.dims *
										sizeof(float), MCXT_ALLOC_HUGE);
	training->nparents = run_kmeans(rows,
									Min(n, (int64) nparents * 4 * IVFPQ_SAMPLES_PER_LIST),
									training->gv.dims, nparents,
									training->parents);
	begin_sort(&cluster);
	read(arg, take_rows, &cluster);
	train_lists(&cluster);
}
