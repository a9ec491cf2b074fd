/*
 * breadth.c
 *		The coarse fraction: how many of the lists have to be compared with a
 *		query.
 *
 * A search through parents finds the nearest of the lists it compares: of all
 * lists in the order of their distance, those whose parent is among the first
 * ones.  So when a query's nearest lists, the order of its parents and the
 * lists that hold its exact neighbors are known, all fractions are answered at
 * once, and no code is looked at.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/memutils.h"

#include "am/calibrate/calibrate.h"
#include "am/common/enginecall.h"
#include "am/search/params.h"
#include "am/search/search.h"
#include "page/array.h"

/* Fraction of the exact neighbors that a search through parents may lose. */
#define MOST_LOSS		0.001
#define MAX_QUERIES		128
#define MIN_LISTS		512		/* fewer are compared at little cost */

/* Coarse fractions 1, 2^-1/2, 2^-1 .. 1/32. */
#define NFRACTIONS			11

/* Lists ranked for each that is probed: substitutes of those not found. */
#define RANKED			1.25

#define BATCH			256		/* centroids at a time */

/* An exact neighbor's place in the order of a query's lists. */
typedef struct Held
{
	int			neighbor;
	int			rank;			/* of a list with a posting of it */
} Held;

typedef struct CoarseFractions
{
	const IvfpqCalibration *calibration;
	const IvfpqModel *model;
	IvfpqListReader reader;
	int			nqueries;
	int			probes;
	GvTopK	   *lists;			/* [nqueries] nearest first */

	/* of the query at hand */
	IvfpqGroundTruth ground_truth;
	int			nneighbors;		/* of them, that count here */
	uint64		marks;			/* of their ids, see mark_of */
	int		   *before;			/* [ranked] lists compared before those of its
								 * parent */
	Held	   *held;			/* [held_capacity] in the order of ranks */
	int			nheld;
	int			held_capacity;

	int			least;			/* lists to compare, whatever the fraction */
	int			wanted[NFRACTIONS]; /* lists to compare */
	int64		found[NFRACTIONS];	/* exact neighbors, of all queries */
} CoarseFractions;

/* One of 64 bits, by which most rows are told from the neighbors. */
static inline uint64
mark_of(uint64 id)
{
	return UINT64CONST(1) << ((id ^ id >> 16) & 63);
}

/* Compare centroids [n], of lists `first` on, with all queries. */
static void
offer_lists(CoarseFractions *fractions, const float *centroids, int first,
			int n,
			uint64 *ids)
{
	const IvfpqModel *model = fractions->model;

	for (int i = 0; i < n; i++)
		ids[i] = first + i;
	IvfpqCheckStatus(gv_exact(model->gv.metric, model->meta.dims,
							  fractions->calibration->queries,
							  fractions->nqueries,
							  centroids, n, ids, fractions->lists,
							  &ivfpq_stop));
}

/* The lists nearest to every query, all lists compared. */
static void
rank_lists(CoarseFractions *fractions)
{
	const IvfpqMetaData *meta = &fractions->model->meta;
	int			dims = meta->dims;
	int			capacity = BATCH + IVFPQ_FLOATS_PER_PAGE / dims;
	float	   *batch = palloc((Size) capacity * dims * sizeof(float));
	uint64	   *ids = palloc(capacity * sizeof(uint64));
	IvfpqArrayReader reader;
	const float *run;
	int			first = 0;
	int			n = 0;
	int			count;

	IvfpqArrayOpen(&reader, fractions->reader.index, meta->centroids, dims,
				   meta->nlists);
	while ((run = IvfpqArrayNext(&reader, &count)) != NULL)
	{
		memcpy(batch + (Size) n * dims, run,
			   (Size) count * dims * sizeof(float));
		n += count;
		if (n < BATCH && first + n < meta->nlists)
			continue;
		offer_lists(fractions, batch, first, n, ids);
		first += n;
		n = 0;
	}
	IvfpqArrayClose(&reader);
	for (int q = 0; q < fractions->nqueries; q++)
		gv_topk_sort(&fractions->lists[q]);
}

/* Takes the rows that query q has to find. */
static void
take_neighbors(CoarseFractions *fractions, int q)
{
	IvfpqCalibrationGroundTruth(fractions->calibration, 0, q,
								&fractions->ground_truth);
	fractions->nneighbors =
		Min(fractions->ground_truth.nneighbors, IVFPQ_FIRST_ROWS);
	fractions->marks = 0;
	for (int i = 0; i < fractions->nneighbors; i++)
		fractions->marks |= mark_of(fractions->ground_truth.neighbors[i]);
}

/*
 * Counts the lists that are compared before each of the ranked lists of query
 * q.
 */
static void
count_before(CoarseFractions *fractions, int q)
{
	const IvfpqModel *model = fractions->model;
	int			nparents = model->meta.nparents;
	const GvTopK *lists = &fractions->lists[q];
	int		   *before = palloc(nparents * sizeof(int));
	int			seen = 0;
	GvTopK		parents;

	IvfpqSortParents(fractions->reader.index, model, &model->gv,
					 fractions->calibration->queries +
					 (Size) q * model->meta.dims, &parents);
	for (int i = 0; i < parents.count; i++)
	{
		int			p = (int) parents.ids[i];

		before[p] = seen;
		seen += model->parent_offsets[p + 1] - model->parent_offsets[p];
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

			if (model->parent_offsets[middle] <= list)
				low = middle;
			else
				high = middle;
		}
		fractions->before[i] = before[low];
	}
	pfree(parents.scores);
	pfree(parents.ids);
	pfree(before);
}

static void
note_held(CoarseFractions *fractions, uint64 id, int rank)
{
	for (int n = 0; n < fractions->nneighbors; n++)
	{
		if (fractions->ground_truth.neighbors[n] != id)
			continue;
		if (fractions->nheld == fractions->held_capacity)
		{
			fractions->held_capacity *= 2;
			fractions->held = repalloc(fractions->held,
									   fractions->held_capacity * sizeof(Held));
		}
		fractions->held[fractions->nheld].neighbor = n;
		fractions->held[fractions->nheld++].rank = rank;
	}
}

/* Finds which of query q's ranked lists hold its neighbors. */
static void
find_neighbors(CoarseFractions *fractions, int q)
{
	const GvTopK *lists = &fractions->lists[q];
	IvfpqBlockView view;

	fractions->nheld = 0;
	for (int rank = 0; rank < lists->count; rank++)
	{
		IvfpqListOpen(&fractions->reader, (uint32) lists->ids[rank]);
		while (IvfpqListNext(&fractions->reader, &view))
			for (uint32 live = view.live; live != 0; live &= live - 1)
			{
				int			i = pg_rightmost_one_pos32(live);
				uint64		id = IvfpqTidToId(&view.tids[i]);

				if (fractions->marks & mark_of(id))
					note_held(fractions, id, rank);
			}
	}
}

/*
 * Counts, for every fraction, the neighbors in the `probes` nearest of the
 * lists that are compared.
 */
static void
count_found(CoarseFractions *fractions)
{
	for (int s = 0; s < NFRACTIONS; s++)
	{
		uint32		found = 0;
		int			rank = 0;
		int			nprobed = 0;

		for (int i = 0; i < fractions->nheld; i++)
		{
			const Held *held = &fractions->held[i];

			for (; rank < held->rank; rank++)
				nprobed += fractions->before[rank] < fractions->wanted[s];
			if (nprobed < fractions->probes &&
				fractions->before[rank] < fractions->wanted[s])
				found |= 1U << held->neighbor;
		}
		fractions->found[s] += pg_popcount32(found);
	}
}

static void
begin(CoarseFractions *fractions, const IvfpqCalibration *calibration,
	  Relation index,
	  const IvfpqModel *model)
{
	IvfpqMetaData meta = model->meta;
	int			ranked;

	fractions->calibration = calibration;
	fractions->model = model;
	fractions->nqueries = Min(calibration->nqueries, MAX_QUERIES);
	fractions->probes = IvfpqFormulaProbes(&meta);
	ranked = (int) Min(fractions->probes * RANKED, meta.nlists);
	fractions->lists = palloc0(fractions->nqueries * sizeof(GvTopK));
	for (int q = 0; q < fractions->nqueries; q++)
		IvfpqTopKResize(&fractions->lists[q], ranked);
	fractions->before = palloc(ranked * sizeof(int));
	fractions->held_capacity = 4 * IVFPQ_FIRST_ROWS;
	fractions->held = palloc(fractions->held_capacity * sizeof(Held));
	for (int s = 0; s < NFRACTIONS; s++)
	{
		meta.coarse_fraction = pow(2, -s / 2.0);
		fractions->wanted[s] = IvfpqListsToCompare(&meta, fractions->probes,
												   false);
	}
	meta.coarse_fraction = FLT_MIN;
	fractions->least = IvfpqListsToCompare(&meta, fractions->probes, false);
	IvfpqListReaderInit(&fractions->reader, index, &model->meta, NULL);
}

/*
 * Returns the least coarse fraction that finds what comparing all lists does,
 * but for MOST_LOSS.  Every row was offered to the calibration.  The probes
 * tried here have some lists to compare whatever the fraction; fewer probes
 * have not.  So a fraction that leaves just these lists was not tested, and is
 * not taken.
 */
double
IvfpqFindCoarseFraction(const IvfpqCalibration *calibration, Relation index,
						const IvfpqModel *model)
{
	CoarseFractions fractions = {0};
	MemoryContext old;
	MemoryContext tmp;
	int			s = 0;

	if (model->meta.nparents == 1 || model->meta.nlists < MIN_LISTS)
		return 1;
	tmp = AllocSetContextCreate(CurrentMemoryContext,
								"gpuivfpq calibration of parents",
								ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(tmp);
	begin(&fractions, calibration, index, model);
	rank_lists(&fractions);
	for (int q = 0; q < fractions.nqueries; q++)
	{
		CHECK_FOR_INTERRUPTS();
		take_neighbors(&fractions, q);
		count_before(&fractions, q);
		find_neighbors(&fractions, q);
		count_found(&fractions);
	}
	while (s + 1 < NFRACTIONS && fractions.wanted[s + 1] > fractions.least &&
		   fractions.found[s + 1] >= fractions.found[0] * (1 - MOST_LOSS))
		s++;
	MemoryContextSwitchTo(old);
	MemoryContextDelete(tmp);
	return pow(2, -s / 2.0);
}
