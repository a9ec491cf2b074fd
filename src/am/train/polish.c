/*
 * polish.c
 *		The final Lloyd passes: iterations of k-means over all lists at once.
 *
 * Lists that were trained parent by parent end at the borders between
 * parents.  A pass places all rows in the nearest list of any parent, and
 * moves each centroid to the mean of its rows; then the centroids are grouped
 * under parents anew, which are means of centroids now.
 *
 * Each participant places the rows of the files that it takes, and adds them
 * up by list; then each adds up the sums that all have of the lists that it
 * takes.  Sums are in fixed point, in units of the smallest number of half
 * precision, so that they are exact, and do not depend on which participant
 * placed which rows when.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "am/train/cluster.h"
#include "page/injection.h"

#define UNIT			16777216.0f /* 2^24; numbers of half precision are
									 * multiples of 1 / UNIT */

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

/* Passes on the sums, and begins anew. */
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

/* Add a row to a list's sum. */
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

/* Rows of a file, decoded, as many as there are and `most` at most. */
static int
read_rows(BufFile *file, int dims, IvfpqClusterRow *item, int most,
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
		while ((n = read_rows(file, dims, item, most, rows)) > 0)
		{
			IvfpqCheckStatus(gv_place(&groups, rows, n, 1, lists, scratch,
									  &ivfpq_stop));
			for (int i = 0; i < n; i++)
				add_row(&sums, lists[i], rows + (Size) i * dims);
			/* the engine does not ask where a batch is little work */
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

/* Move the centroids of a range of lists to the means of their rows. */
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
 * centroids, which are put in order parent by parent.
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
 * Does a participant's part of a final Lloyd pass.  Injection points are named
 * for what has been done.
 */
void
IvfpqFinalLloydPass(IvfpqCluster *cluster)
{
	IvfpqTempFile temp;

	IvfpqTempFileBegin(&temp, cluster->parallel, "sums",
					   cluster->rows.nranges);
	sum_rows(cluster, &temp);
	IvfpqInjectionPoint("lists: placed");
	IvfpqClusterEndPhase(cluster, NULL);
	move_lists(cluster, &temp);
	IvfpqInjectionPoint("lists: moved");
	IvfpqClusterEndPhase(cluster, regroup);
	IvfpqTempFileEnd(&temp);
}
