/*
 * calibrate.c
 *		Calibration: the probes and candidates that each recall takes on an
 *		index, measured.
 *
 * A build calibrates at its end, gpuvec_calibrate an index in use.  The pass
 * that places the rows, or one of gpuvec_calibrate, finds the ground truth of
 * the queries (truth.c).  Then each query is searched with ever more lists,
 * which makes a recall grid, and of all pairs (probes, candidates) that reach
 * a target the cheapest is kept (recallgrid.c).
 *
 * The coarse fraction, of the lists that have to be compared with a query, is
 * found before that.  A search through parents finds the nearest of the lists
 * it compares: of all lists in the order of their distance, those whose parent
 * is among the first ones.  So when a query's nearest lists, the order of its
 * parents and the lists that hold its exact neighbors are known, all fractions
 * are answered at once, and no code is looked at.
 */
#include "postgres.h"

#include <float.h>
#include <math.h>

#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "commands/event_trigger.h"
#include "commands/progress.h"
#include "commands/tablecmds.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "port/pg_bitutils.h"
#include "utils/acl.h"
#include "utils/backend_progress.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "am/build/calibrate.h"
#include "am/build/train.h"
#include "am/common/enginecall.h"
#include "am/common/identity.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/search/params.h"
#include "am/search/search.h"
#include "page/array.h"
#include "page/metapage.h"
#include "pgcompat.h"

/*
 * A depth of n rows is calibrated in tables of at least this many times n
 * rows; the first two depths in all.
 */
#define ROWS_A_RANK		10

#define FEW_QUERIES		48		/* find the lists that the others need */
#define FEWER			5		/* times, where the least are enough */
#define MORE_PROBES		1.5		/* for their intervals, and for chance */
#define USUAL_WIDTH		500
#define MOST_WIDTH		20000

/* The same of later levels, whose queries cost more. */
#define FEW_DEEP		16
#define MORE_DEEP		1.3		/* of lists and candidates */
#define DEEPER			3.0		/* lists for those of the level before, to
								 * begin with */
#define USUAL_EXCESS	3		/* candidates for each row, likewise */
#define MOST_FRACTION		0.05	/* of the rows, see depth.c */
#define MOST_DEEP_WIDTH	60000

/* Fraction of the exact neighbors that a search through parents may lose. */
#define MOST_LOSS		0.001
#define FRACTION_QUERIES	128
#define MIN_LISTS		512		/* fewer are compared at little cost */

/* Coarse fractions 1, 2^-1/2, 2^-1 .. 1/32. */
#define NFRACTIONS			11

/* Lists ranked for each that is probed: substitutes of those not found. */
#define RANKED			1.25

#define BATCH_LISTS		256		/* centroids at a time */

#define BATCH_ROWS	256			/* offered at once */
#define BLOCKS_A_SNAPSHOT	1024	/* read by the same snapshot */

/*
 * Queries that a user gives: the fewest; enough for intervals as narrow as a
 * build's; and the most that are used.
 */
#define LEAST_GIVEN			100
#define ENOUGH_GIVEN		200
#define MOST_GIVEN			1000

/* Columns of the results. */
#define TARGET_K			0
#define TARGET_RECALL		1
#define TARGET_PROBES		2
#define TARGET_CANDIDATES	3
#define TARGET_FOR			4
#define TARGET_NCOLUMNS		5

static const int depths[IVFPQ_DEPTHS] = IVFPQ_DEPTH_ROWS;
static const double recalls[IVFPQ_TARGETS] = IVFPQ_TARGET_RECALLS;

/* An exact neighbor's place in the order of a query's lists. */
typedef struct Held
{
	int			neighbor;
	int			rank;			/* of a list with a posting of it */
} Held;

/* The state of the search for the coarse fraction. */
typedef struct CoarseFractions
{
	const IvfpqCalibration *calibration;
	const IvfpqModel *model;
	IvfpqListReader reader;
	int			nqueries;
	int			probes;
	GvTopK	   *lists;			/* [nqueries] nearest first */

	/* of the current query */
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

/* State of the pass that finds the ground truth. */
typedef struct Pass
{
	IvfpqType  *type;
	const IvfpqModel *model;
	IvfpqCalibration *calibration;
	MemoryContext tmp;			/* reset after every row */
	int			nbatch;
	float	   *batch;			/* [BATCH_ROWS][dims] */
	uint64		ids[BATCH_ROWS];
	int64		rows;
} Pass;

PG_FUNCTION_INFO_V1(gpuvec_calibrate);
PG_FUNCTION_INFO_V1(gpuvec_calibration);

/* Returns one of 64 bits, by which most rows differ from the neighbors. */
static inline uint64
mark_of(uint64 id)
{
	return UINT64CONST(1) << ((id ^ id >> 16) & 63);
}

/* Compares centroids [n], of lists `first` on, with all queries. */
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

/* Finds the lists nearest to every query, all lists compared. */
static void
rank_lists(CoarseFractions *fractions)
{
	const IvfpqMetaData *meta = &fractions->model->meta;
	int			dims = meta->dims;
	int			capacity = BATCH_LISTS + IVFPQ_FLOATS_PER_PAGE / dims;
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
		if (n < BATCH_LISTS && first + n < meta->nlists)
			continue;
		offer_lists(fractions, batch, first, n, ids);
		first += n;
		n = 0;
	}
	IvfpqArrayClose(&reader);
	for (int q = 0; q < fractions->nqueries; q++)
		gv_topk_sort(&fractions->lists[q]);
}

/* Sets the neighbors that query q has to find. */
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

		/* the last parent whose lists do not begin after this one */
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

/* Notes that a list of this rank holds a row, if that is a neighbor. */
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
begin_fractions(CoarseFractions *fractions, const IvfpqCalibration *calibration,
				Relation index,
				const IvfpqModel *model)
{
	IvfpqMetaData meta = model->meta;
	int			ranked;

	fractions->calibration = calibration;
	fractions->model = model;
	fractions->nqueries = Min(calibration->nqueries, FRACTION_QUERIES);
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
	IvfpqListReaderInit(&fractions->reader, index, &model->meta,
						&model->layout, NULL);
}

/*
 * Returns the least coarse fraction that finds what comparing all lists does,
 * but for MOST_LOSS.  Every row was offered to the calibration.  Whatever the
 * fraction, the probes tried here have some lists to compare, and fewer probes
 * have not.  So a fraction that leaves just these lists was not tested, and is
 * not taken.
 */
static double
find_coarse_fraction(const IvfpqCalibration *calibration, Relation index,
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
	begin_fractions(&fractions, calibration, index, model);
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

/*
 * Returns the number of depths that calibration looks at in a table of `rows`.
 */
static int
depths_for(int64 rows)
{
	int			n = ivfpq_levels[0].end;

	while (n < IVFPQ_DEPTHS && rows >= (int64) depths[n] * ROWS_A_RANK)
		n++;
	return n;
}

/*
 * Returns the number of targets of a level that every calibration determines.
 */
static int
count_sure(const IvfpqMetaData *meta, int level)
{
	int			end = Min(ivfpq_levels[level].end, meta->calibrated_depths);
	int			n = 0;

	for (int t = 0; t < IVFPQ_TARGETS; t++)
		n += recalls[t] <= IVFPQ_SURE_RECALL;
	return n * (end - ivfpq_levels[level].first);
}

/*
 * Measures grids, each with more lists and candidates than the one before,
 * until `wanted` targets are within reach; *spec says how far the last grid
 * went.  Returns how many are within reach.
 */
static int
measure_until(IvfpqRecallGrid *grid, IvfpqCalibMirror *mirror,
			  IvfpqGridSpec *spec,
			  int most_width, double z, int wanted, IvfpqMetaData *meta)
{
	for (;;)
	{
		int			reached;

		IvfpqRecallGridMeasure(grid, mirror, spec);
		reached = IvfpqCheapest(grid, z, meta);
		if (reached >= wanted ||
			(spec->most == meta->nlists && spec->most_width >= most_width))
			return reached;
		if (spec->most == meta->nlists)
			spec->most_width = Min(4 * spec->most_width, most_width);
		spec->most = Min(3 * spec->most, meta->nlists);
	}
}

/*
 * Returns the most lists and candidates that a target of a level takes, of
 * those that every level determines and that are within reach.
 */
static void
most_of(const IvfpqMetaData *meta, int level, int *probes, int *candidates)
{
	*probes = *candidates = 1;
	for (int d = ivfpq_levels[level].first; d < ivfpq_levels[level].end; d++)
		for (int t = 0; t < IVFPQ_TARGETS; t++)
		{
			const IvfpqTarget *target = &meta->targets[d][t];

			if (d >= meta->calibrated_depths ||
				recalls[t] > IVFPQ_SURE_RECALL)
				continue;
			*probes = Max(*probes, target->probes);
			*candidates = Max(*candidates, target->candidates);
		}
}

/*
 * Returns the least number of lists that a target of a depth takes: a target
 * for a lower recall may take more lists, and fewer candidates.
 */
static int
least_of(const IvfpqMetaData *meta, int depth)
{
	int			probes = meta->nlists;

	for (int t = 0; t < IVFPQ_TARGETS; t++)
		if (meta->targets[depth][t].candidates > 0)
			probes = Min(probes, meta->targets[depth][t].probes);
	return probes;
}

/* Finds the targets of the first 10 and the first 100 rows. */
static void
measure_first_level(IvfpqRecallGrid *grid,
					const IvfpqCalibration *calibration, IvfpqCalibMirror *mirror,
					IvfpqMetaData *meta)
{
	int			nqueries = calibration->nqueries;
	int			most_width = Min(meta->rows_at_calibration, MOST_WIDTH);
	IvfpqGridSpec spec = {
		.nqueries = Min(FEW_QUERIES, nqueries),
		.least = Max(1, IvfpqFormulaProbes(meta) / 10),
		.most = Min(2.5 * IvfpqFormulaProbes(meta), meta->nlists),
		.most_width = Max(USUAL_WIDTH, 4 * IvfpqFormulaCandidates(meta))
	};
	int			all = count_sure(meta, 0);
	int			reached;
	int			probes;
	int			candidates;

	/* a few queries find out whether far more lists are needed, or fewer */
	for (;;)
	{
		reached = measure_until(grid, mirror, &spec, most_width, 0, all, meta);
		if (spec.least == 1 || least_of(meta, 0) > spec.least)
			break;
		spec.least = Max(1, spec.least / FEWER);
	}
	if (reached == all)
	{
		most_of(meta, 0, &probes, &candidates);
		spec.most = Min(MORE_PROBES * probes, meta->nlists);
	}
	spec.nqueries = nqueries;
	(void) measure_until(grid, mirror, &spec, most_width, IVFPQ_Z_95, all, meta);
}

/*
 * Finds the targets of a later level; its grid begins from those of the level
 * before.
 */
static void
measure_later_level(IvfpqRecallGrid *grid,
					const IvfpqCalibration *calibration, IvfpqCalibMirror *mirror,
					int level,
					IvfpqMetaData *meta)
{
	int			first = ivfpq_levels[level].first;
	int			end = Min(ivfpq_levels[level].end, meta->calibrated_depths);
	int			nqueries = IvfpqLevelQueries(calibration, level);
	int			most_width = (int)
	Min(meta->rows_at_calibration,
		Max(MOST_WIDTH, Min(MOST_DEEP_WIDTH,
							meta->rows_at_calibration * MOST_FRACTION)));
	IvfpqGridSpec spec = {
		.level = level,
		.nqueries = Min(FEW_DEEP, nqueries),
		.least = least_of(meta, first - 1),
		.most_width = Min(USUAL_EXCESS * depths[end - 1], most_width)
	};
	int			reached;
	int			probes;
	int			candidates;

	most_of(meta, level - 1, &probes, &candidates);
	spec.most = Min(DEEPER * probes, meta->nlists);
	reached = measure_until(grid, mirror, &spec, most_width, 0,
							count_sure(meta, level), meta);
	if (reached == 0)
		return;
	/* targets that these do not reach are not tried with all queries */
	most_of(meta, level, &probes, &candidates);
	spec.most = Min(MORE_DEEP * probes, meta->nlists);
	spec.most_width = Min(MORE_DEEP * candidates, most_width);
	spec.nqueries = nqueries;
	(void) measure_until(grid, mirror, &spec, most_width, IVFPQ_Z_95, reached,
						 meta);
}

/*
 * Calibrates an index whose pages are all written, though the metapage may not
 * show them yet: sets the targets and the coarse fraction in *meta, which
 * describes these pages.  Every row was offered.  gpuvecd, which has the
 * calibration mirror of the same index, does most of the work; if mirror is
 * NULL, all participants do it.  The leader calls this while workers wait for
 * the end of a phase.
 */
void
IvfpqCalibrationRun(IvfpqCalibration *calibration, Relation index,
					IvfpqMetaData *meta, IvfpqCalibMirror *mirror,
					IvfpqParallel *parallel)
{
	IvfpqModel *model = IvfpqModelLoad(index, meta);
	TimestampTz begun = GetCurrentTimestamp();
	TimestampTz shared;
	TimestampTz deeper;
	IvfpqRecallGrid *grid;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_CALIBRATING);
	IvfpqCalibrationSettle(calibration);
	meta->coarse_fraction = find_coarse_fraction(calibration, index, model);
	shared = GetCurrentTimestamp();
	model->meta.coarse_fraction = meta->coarse_fraction;
	meta->calibration_queries = calibration->nqueries;
	memset(meta->targets, 0, sizeof(meta->targets));
	meta->calibrated_depths = depths_for(meta->rows_at_calibration);

	grid = IvfpqRecallGridBegin(calibration, index, model, parallel);
	measure_first_level(grid, calibration, mirror, meta);
	deeper = GetCurrentTimestamp();
	for (int level = 1; level < IVFPQ_LEVELS; level++)
		if (ivfpq_levels[level].first < meta->calibrated_depths)
			measure_later_level(grid, calibration, mirror, level, meta);
	IvfpqRecallGridEnd(grid);
	ereport(DEBUG1,
			(errmsg_internal("gpuivfpq calibrated with %d queries in %.0f ms, %.0f ms of them for more than 100 rows; searches compare %g of the lists, which took %.0f ms to find",
							 calibration->nqueries,
							 (GetCurrentTimestamp() - begun) / 1000.0,
							 (GetCurrentTimestamp() - deeper) / 1000.0,
							 meta->coarse_fraction,
							 (shared - begun) / 1000.0)));
}

static void
flush_batch(Pass *pass)
{
	if (pass->nbatch > 0)
		IvfpqCalibrationOffer(pass->calibration, pass->batch, pass->ids,
							  pass->nbatch);
	pass->rows += pass->nbatch;
	pass->nbatch = 0;
	CHECK_FOR_INTERRUPTS();
}

/* Called for every row of the table that a snapshot sees. */
static void
offer_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
			   bool alive, void *arg)
{
	Pass	   *pass = arg;
	MemoryContext oldcontext;
	const float *row;
	int			dims;

	IvfpqRowDone();
	if (isnull[0])
		return;
	oldcontext = MemoryContextSwitchTo(pass->tmp);
	row = IvfpqValueFloats(pass->type, values[0], &dims);
	MemoryContextSwitchTo(oldcontext);
	/* a row of other dims stays pending: no neighbor of any query */
	if (dims == pass->model->meta.dims &&
		IvfpqIsPlaceable(pass->type, row, dims))
	{
		uint64		id = IvfpqTidToId(tid);

		gv_transform(&pass->model->gv, row, 1,
					 pass->batch + (Size) pass->nbatch * dims);
		pass->ids[pass->nbatch++] = id;
		if (IvfpqLevelHas(1, id))
			IvfpqCalibrationSample(pass->calibration, row, id);
	}
	MemoryContextReset(pass->tmp);
	if (pass->nbatch == BATCH_ROWS)
		flush_batch(pass);
}

/* Offers all rows of the table, those of some blocks by one snapshot. */
static void
read_table(Pass *pass, Relation heap, Relation index, IndexInfo *indexInfo)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(heap);

	for (int64 first = 0; first < nblocks; first += BLOCKS_A_SNAPSHOT)
	{
		IvfpqSnapshotRenew();
		(void) table_index_build_range_scan(heap, index, indexInfo, false,
											false, false,
											(BlockNumber) first,
											Min(BLOCKS_A_SNAPSHOT,
												nblocks - first),
											offer_callback, pass, NULL);
		flush_batch(pass);
	}
}

/*
 * Draws rows and makes calibration queries of them, transformed; fewer than
 * are needed when the table is small.  Where too few of the rows drawn are
 * different, draws again, a sample as large as memory holds.
 */
static int
draw_queries(IvfpqSample *sample, const IvfpqModel *model, Relation heap,
			 Relation index, IndexInfo *indexInfo, float **held_out,
			 int *depth)
{
	IvfpqHeldOut held;
	double		rows;
	Size		values;
	float	   *queries;
	uint64	   *ids;
	bool		more = true;
	int			n;

	sample->dims = model->meta.dims;
	sample->lenient = true;
	sample->capacity = IvfpqCalibrationQueries(get_float8_infinity()) +
		IvfpqRowsAround(sample->dims);
	for (;;)
	{
		sample->least = sample->capacity;
		IvfpqSampleTake(sample, heap, index, indexInfo, &rows);
		IvfpqSampleShuffle(sample);
		(void) IvfpqSampleDistinct(sample);
		n = (int) Min(IvfpqCalibrationQueries(rows), sample->count);
		if (n == 0)
			return 0;
		if (!more || sample->ndistinct >= n || sample->whole)
			break;
		more = false;
		pfree(sample->counts);
		pfree(sample->rows);
		pfree(sample->ids);
		sample->rows = NULL;
		sample->capacity = 0;
	}
	IvfpqHoldOut(sample, n, rows, &held);
	values = (Size) held.n * sample->dims;
	queries = palloc_extended(values * sizeof(float), MCXT_ALLOC_HUGE);
	*held_out = palloc_extended(values * sizeof(float), MCXT_ALLOC_HUGE);
	ids = palloc(held.n * sizeof(uint64));
	IvfpqMakeCalibrationQueries(sample, &held, queries, *held_out, ids);
	gv_transform(&model->gv, *held_out, held.n, *held_out);
	gv_transform(&model->gv, queries, held.n, queries);
	sample->rows = queries;
	sample->ids = ids;
	*depth = held.depth;
	return held.n;
}

/*
 * Makes a user's queries those of a sample, in random order, because later
 * levels take the first ones.
 */
static int
take_given(IvfpqSample *sample, IvfpqQueries *given, const IvfpqModel *model)
{
	IvfpqQueriesFit(given, sample->type, model->meta.dims);
	if (given->n < LEAST_GIVEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%d queries are too few to calibrate with", given->n),
				 errhint("Give at least %d; with %d to %d targets are told well.",
						 LEAST_GIVEN, ENOUGH_GIVEN, MOST_GIVEN)));
	if (given->n < ENOUGH_GIVEN)
		ereport(NOTICE,
				(errmsg("%d queries tell little", given->n),
				 errdetail("Intervals are wide, so targets take more than they would with %d to %d, and high ones are not told.",
						   ENOUGH_GIVEN, MOST_GIVEN)));
	IvfpqQueriesDraw(given, MOST_GIVEN);
	sample->rows = palloc_extended((Size) given->n * given->dims *
								   sizeof(float), MCXT_ALLOC_HUGE);
	gv_transform(&model->gv, given->vectors, given->n, sample->rows);
	sample->ids = palloc(given->n * sizeof(uint64));
	for (int i = 0; i < given->n; i++)
		sample->ids[i] = IVFPQ_NO_ROW;
	return given->n;
}

/*
 * Measures the cost of each recall on a trained index, and stores it; with the
 * queries in *given, or with rows of the table if that is NULL.  Returns false
 * when the index is untrained, has too few rows, or was trained again
 * meanwhile.  The caller acts as the table's owner and keeps others from
 * training.
 */
bool
IvfpqCalibrateIndex(Relation heap, Relation index, IvfpqQueries *given)
{
	IndexInfo  *indexInfo = IvfpqIndexInfo(index);
	IvfpqModel *model = IvfpqModelGet(index);
	IvfpqType	type;
	IvfpqSample sample = {.type = &type};
	Pass		pass = {.type = &type, .model = model};
	IvfpqParallel parallel;
	float	   *held_out = NULL;
	int			depth = IVFPQ_GROUND_TRUTH_ROWS + 1;
	int			n;

	IvfpqTypeInit(&type, index);
	indexInfo->ii_Concurrent = true;	/* rows that a snapshot sees */
	if (model->meta.nlists == 0)
		return false;
	if (model->meta.rotated)
		model->gv.rotation = IvfpqRotationLoad(index, &model->meta);
	n = given ? take_given(&sample, given, model) :
		draw_queries(&sample, model, heap, index, indexInfo, &held_out,
					 &depth);
	if (n == 0)
		return false;

	pass.tmp = AllocSetContextCreate(CurrentMemoryContext,
									 "gpuivfpq calibration row",
									 ALLOCSET_DEFAULT_SIZES);
	pass.batch = palloc((Size) BATCH_ROWS * model->meta.dims * sizeof(float));
	pass.calibration = IvfpqCalibrationBegin(&model->gv, n, sample.rows,
											 given ? sample.rows : held_out,
											 sample.ids, depth);
	read_table(&pass, heap, index, indexInfo);
	IvfpqCalibrationFlush(pass.calibration);
	if (IvfpqCalibrationQueries(pass.rows) == 0)
		return false;
	model->meta.rows_at_calibration = pass.rows;
	model->meta.calibrated_for = given ? IVFPQ_FOR_QUERIES : IVFPQ_FOR_ROWS;
	IvfpqParallelInitSerial(&parallel);
	IvfpqSnapshotDrop();
	IvfpqCalibrationRun(pass.calibration, index, &model->meta, NULL,
						&parallel);
	IvfpqSnapshotTake();
	return IvfpqMetaCalibrate(index, &model->meta);
}

/*
 * Sets the index's option that says which queries its targets are for.  The
 * metapage says so, too, but REINDEX, which calibrates with rows, and a
 * restore replace it.  The option stays, so gpuvec_index_info can advise to
 * calibrate.
 */
static void
set_calibrated_for(Relation index, IvfpqCalibratedFor what)
{
	AlterTableStmt *statement = makeNode(AlterTableStmt);
	AlterTableCmd *command = makeNode(AlterTableCmd);
	Node	   *value = NULL;

	if (IvfpqGetOptions(index)->calibrated_for == (int) what)
		return;
	if (what == IVFPQ_FOR_QUERIES)
		value = (Node *) makeString(pstrdup("queries"));
	command->subtype = value ? AT_SetRelOptions : AT_ResetRelOptions;
	command->def = (Node *) list_make1(makeDefElem("calibrated_for", value, -1));
	statement->relation = makeRangeVar(get_namespace_name(RelationGetNamespace(index)),
									   pstrdup(RelationGetRelationName(index)),
									   -1);
	statement->cmds = list_make1(command);
	statement->objtype = OBJECT_INDEX;

	/* within another command its event triggers learn of this one, too */
	EventTriggerAlterTableStart((Node *) statement);
	AlterTableInternal(RelationGetRelid(index), statement->cmds, false);
	EventTriggerAlterTableEnd();
}

/* Returns the metapage's targets as rows of the function's result. */
static void
put_targets(FunctionCallInfo fcinfo, Relation index)
{
	static const char *const queries[] = {
		[IVFPQ_FOR_ROWS] = "rows",
		[IVFPQ_FOR_QUERIES] = "queries"
	};
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	IvfpqMetaData meta;

	IvfpqMetaRead(index, &meta);
	if (meta.nlists == 0 || meta.rows_at_calibration == 0)
		return;
	for (int d = 0; d < meta.calibrated_depths; d++)
		for (int t = 0; t < IVFPQ_TARGETS; t++)
		{
			const IvfpqTarget *target = &meta.targets[d][t];
			Datum		values[TARGET_NCOLUMNS];
			bool		nulls[TARGET_NCOLUMNS] = {false};

			/* not proven: a scan takes more than for .99 */
			if (target->candidates == 0 && recalls[t] > IVFPQ_SURE_RECALL)
				continue;
			values[TARGET_K] = Int32GetDatum(depths[d]);
			values[TARGET_RECALL] = Float8GetDatum(recalls[t]);
			values[TARGET_PROBES] = Int32GetDatum(target->probes);
			values[TARGET_CANDIDATES] = Int32GetDatum(target->candidates);
			values[TARGET_FOR] =
				CStringGetTextDatum(queries[meta.calibrated_for]);
			/* out of reach: everything is read */
			nulls[TARGET_PROBES] = target->candidates == 0;
			nulls[TARGET_CANDIDATES] = target->candidates == 0;
			tuplestore_putvalues(result->setResult, result->setDesc, values,
								 nulls);
		}
}

/* Raises an error unless the current user may calibrate the index. */
static void
check_owner(Relation heap, Relation index)
{
	if (!IvfpqOwnsRelation(RelationGetRelid(heap), GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_INDEX,
					   RelationGetRelationName(index));
}

/*
 * gpuvec_calibrate(index regclass, queries real[], queries_table regclass,
 *		queries_column name)
 */
Datum
gpuvec_calibrate(PG_FUNCTION_ARGS)
{
	Relation	heap;
	Relation	index;
	IvfpqIdentity caller;
	MemoryContext context;
	MemoryContext oldcontext;
	IvfpqQueries given;
	bool		has_given;
	bool		done;

	InitMaterializedSRF(fcinfo, 0);
	if (PG_ARGISNULL(0))
		return (Datum) 0;
	PreventCommandDuringRecovery("gpuvec_calibrate()");
	has_given = IvfpqQueriesArgument(fcinfo, 1, MOST_GIVEN, &given);
	index = IvfpqOpenToChange(PG_GETARG_OID(0), check_owner, &heap);
	IvfpqCheckBuilt(index);

	context = AllocSetContextCreate(CurrentMemoryContext,
									"gpuivfpq calibration",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	IvfpqActAsOwner(&caller, heap);
	done = IvfpqCalibrateIndex(heap, index, has_given ? &given : NULL);
	IvfpqActAsCaller(&caller);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);

	if (done)
	{
		set_calibrated_for(index, has_given ? IVFPQ_FOR_QUERIES : IVFPQ_FOR_ROWS);
		put_targets(fcinfo, index);
	}
	else
		ereport(NOTICE,
				(errmsg("index \"%s\" was not calibrated",
						RelationGetRelationName(index)),
				 errdetail("It is not trained, or the table has too few rows.")));
	relation_close(index, NoLock);
	table_close(heap, NoLock);
	return (Datum) 0;
}

/* gpuvec_calibration(index regclass) */
Datum
gpuvec_calibration(PG_FUNCTION_ARGS)
{
	Relation	index = IvfpqOpenIndex(PG_GETARG_OID(0), AccessShareLock);

	IvfpqCheckInspect(index);
	IvfpqCheckBuilt(index);
	InitMaterializedSRF(fcinfo, 0);
	put_targets(fcinfo, index);
	relation_close(index, AccessShareLock);
	return (Datum) 0;
}
