/*
 * breadth.c
 *		What share of the lists a session has to compare with a query.
 *
 * A search through parents finds the nearest of the lists it compares: of all
 * lists in the order of their distance, those whose parent is among the first
 * ones.  So when a query's nearest lists, the order of its parents and the
 * lists that hold its true neighbors are known, all shares are answered at
 * once, and no code is looked at.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/memutils.h"

#include "am/calibrate/calibrate.h"
#include "am/common/engine.h"
#include "am/common/tid.h"
#include "am/search/effort.h"
#include "am/search/search.h"
#include "page/array.h"

/* Share of the true neighbors that a search through parents may lose. */
#define MOST_LOSS		0.001
#define MAX_QUERIES		128
#define MIN_LISTS		512		/* fewer are compared at little cost */

/* Shares 1, 2^-1/2, 2^-1 .. 1/32. */
#define NSHARES			11

/* Lists ranked for each that is probed: substitutes of those not found. */
#define RANKED			1.25

#define BATCH			256		/* centroids at a time */

/* A true neighbor's place in the order of a query's lists. */
typedef struct Held
{
	int			neighbor;
	int			rank;			/* of a list that holds a copy of it */
} Held;

typedef struct Shares
{
	const IvfpqCalibration *calibration;
	const IvfpqModel *model;
	IvfpqListReader reader;
	int			nqueries;
	int			probes;
	GvTopK	   *lists;			/* [nqueries] nearest first */

	/* of the query at hand */
	IvfpqTruth	truth;
	int			nneighbors;		/* of them, that count here */
	uint64		marks;			/* of their ids, see mark_of */
	int		   *before;			/* [ranked] lists compared before those of its
								 * parent */
	Held	   *held;			/* [held_room] in the order of ranks */
	int			nheld;
	int			held_room;

	int			least;			/* lists to compare, whatever the share */
	int			wanted[NSHARES];	/* lists to compare */
	int64		found[NSHARES]; /* true neighbors, of all queries */
} Shares;

/* One of 64 bits, by which most rows are told from the neighbors. */
static inline uint64
mark_of(uint64 id)
{
	return UINT64CONST(1) << ((id ^ id >> 16) & 63);
}

/* Compare centroids [n], of lists `first` on, with all queries. */
static void
offer_lists(Shares *shares, const float *centroids, int first, int n,
			uint64 *ids)
{
	const IvfpqModel *model = shares->model;

	for (int i = 0; i < n; i++)
		ids[i] = first + i;
	IvfpqCheckStatus(gv_exact(model->gv.metric, model->meta.dims,
							  shares->calibration->queries, shares->nqueries,
							  centroids, n, ids, shares->lists,
							  &ivfpq_stop));
}

/* The lists nearest to every query, all lists compared. */
static void
rank_lists(Shares *shares)
{
	const IvfpqMetaData *meta = &shares->model->meta;
	int			dims = meta->dims;
	int			room = BATCH + IVFPQ_FLOATS_PER_PAGE / dims;
	float	   *batch = palloc((Size) room * dims * sizeof(float));
	uint64	   *ids = palloc(room * sizeof(uint64));
	IvfpqArrayReader reader;
	const float *run;
	int			first = 0;
	int			n = 0;
	int			count;

	IvfpqArrayOpen(&reader, shares->reader.index, meta->centroids, dims,
				   meta->nlists);
	while ((run = IvfpqArrayNext(&reader, &count)) != NULL)
	{
		memcpy(batch + (Size) n * dims, run,
			   (Size) count * dims * sizeof(float));
		n += count;
		if (n < BATCH && first + n < meta->nlists)
			continue;
		offer_lists(shares, batch, first, n, ids);
		first += n;
		n = 0;
	}
	IvfpqArrayClose(&reader);
	for (int q = 0; q < shares->nqueries; q++)
		gv_topk_sort(&shares->lists[q]);
}

/* The rows that query q has to find. */
static void
take_neighbors(Shares *shares, int q)
{
	IvfpqCalibrationTruth(shares->calibration, 0, q, &shares->truth);
	shares->nneighbors = Min(shares->truth.nneighbors, IVFPQ_FIRST_ROWS);
	shares->marks = 0;
	for (int i = 0; i < shares->nneighbors; i++)
		shares->marks |= mark_of(shares->truth.neighbors[i]);
}

/* How many lists are compared before each of the ranked lists of query q. */
static void
count_before(Shares *shares, int q)
{
	const IvfpqModel *model = shares->model;
	int			nparents = model->meta.nparents;
	const GvTopK *lists = &shares->lists[q];
	int		   *before = palloc(nparents * sizeof(int));
	int			seen = 0;
	GvTopK		parents;

	IvfpqSortParents(shares->reader.index, model, &model->gv,
					 shares->calibration->queries +
					 (Size) q * model->meta.dims, &parents);
	for (int i = 0; i < parents.count; i++)
	{
		int			p = (int) parents.ids[i];

		before[p] = seen;
		seen += model->starts[p + 1] - model->starts[p];
	}
	for (int i = 0; i < lists->count; i++)
	{
		int			list = (int) lists->ids[i];
		int			low = 0;
		int			high = nparents;

		/* the parent whose lists begin last, not behind this one */
		while (high - low > 1)
		{
			int			middle = (low + high) / 2;

			if (model->starts[middle] <= list)
				low = middle;
			else
				high = middle;
		}
		shares->before[i] = before[low];
	}
	pfree(parents.scores);
	pfree(parents.ids);
	pfree(before);
}

static void
note_held(Shares *shares, uint64 id, int rank)
{
	for (int n = 0; n < shares->nneighbors; n++)
	{
		if (shares->truth.neighbors[n] != id)
			continue;
		if (shares->nheld == shares->held_room)
		{
			shares->held_room *= 2;
			shares->held = repalloc(shares->held,
									shares->held_room * sizeof(Held));
		}
		shares->held[shares->nheld].neighbor = n;
		shares->held[shares->nheld++].rank = rank;
	}
}

/* Which of query q's ranked lists hold its neighbors? */
static void
find_neighbors(Shares *shares, int q)
{
	const GvTopK *lists = &shares->lists[q];
	IvfpqBlockView view;

	shares->nheld = 0;
	for (int rank = 0; rank < lists->count; rank++)
	{
		IvfpqListOpen(&shares->reader, (uint32) lists->ids[rank]);
		while (IvfpqListNext(&shares->reader, &view))
			for (uint32 live = view.live; live != 0; live &= live - 1)
			{
				int			i = pg_rightmost_one_pos32(live);
				uint64		id = IvfpqTidToId(&view.tids[i]);

				if (shares->marks & mark_of(id))
					note_held(shares, id, rank);
			}
	}
}

/*
 * Count which neighbors are in the `probes` nearest of the lists that are
 * compared, for every share.
 */
static void
count_found(Shares *shares)
{
	for (int s = 0; s < NSHARES; s++)
	{
		uint32		found = 0;
		int			rank = 0;
		int			nprobed = 0;

		for (int i = 0; i < shares->nheld; i++)
		{
			const Held *held = &shares->held[i];

			for (; rank < held->rank; rank++)
				nprobed += shares->before[rank] < shares->wanted[s];
			if (nprobed < shares->probes &&
				shares->before[rank] < shares->wanted[s])
				found |= 1U << held->neighbor;
		}
		shares->found[s] += pg_popcount32(found);
	}
}

static void
begin(Shares *shares, const IvfpqCalibration *calibration, Relation index,
	  const IvfpqModel *model)
{
	IvfpqMetaData meta = model->meta;
	int			ranked;

	shares->calibration = calibration;
	shares->model = model;
	shares->nqueries = Min(calibration->nqueries, MAX_QUERIES);
	shares->probes = IvfpqFormulaProbes(&meta);
	ranked = (int) Min(shares->probes * RANKED, meta.nlists);
	shares->lists = palloc0(shares->nqueries * sizeof(GvTopK));
	for (int q = 0; q < shares->nqueries; q++)
		IvfpqTopKResize(&shares->lists[q], ranked);
	shares->before = palloc(ranked * sizeof(int));
	shares->held_room = 4 * IVFPQ_FIRST_ROWS;
	shares->held = palloc(shares->held_room * sizeof(Held));
	for (int s = 0; s < NSHARES; s++)
	{
		meta.coarse_share = pow(2, -s / 2.0);
		shares->wanted[s] = IvfpqListsToCompare(&meta, shares->probes,
												false);
	}
	meta.coarse_share = FLT_MIN;
	shares->least = IvfpqListsToCompare(&meta, shares->probes, false);
	IvfpqListReaderInit(&shares->reader, index, &model->meta, NULL);
}

/*
 * The least share of the lists to compare with a query that finds what
 * comparing all of them does, but for MOST_LOSS.  Every row was offered to
 * the calibration.  So many probes have some lists to compare whatever the
 * share, fewer have not: a share that did not matter was not tried.
 */
double
IvfpqBreadthFind(const IvfpqCalibration *calibration, Relation index,
				 const IvfpqModel *model)
{
	Shares		shares = {0};
	MemoryContext old;
	MemoryContext tmp;
	int			s = 0;

	if (model->meta.nparents == 1 || model->meta.nlists < MIN_LISTS)
		return 1;
	tmp = AllocSetContextCreate(CurrentMemoryContext,
								"gpuivfpq calibration of parents",
								ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(tmp);
	begin(&shares, calibration, index, model);
	rank_lists(&shares);
	for (int q = 0; q < shares.nqueries; q++)
	{
		CHECK_FOR_INTERRUPTS();
		take_neighbors(&shares, q);
		count_before(&shares, q);
		find_neighbors(&shares, q);
		count_found(&shares);
	}
	while (s + 1 < NSHARES && shares.wanted[s + 1] > shares.least &&
		   shares.found[s + 1] >= shares.found[0] * (1 - MOST_LOSS))
		s++;
	MemoryContextSwitchTo(old);
	MemoryContextDelete(tmp);
	return pow(2, -s / 2.0);
}
