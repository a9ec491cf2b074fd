/*
 * calibrate.c
 *		Calibration, which measures how many probes and candidates a search
 *		needs to reach each recall.
 *
 * A build calibrates at its end, and gpuvec_calibrate calibrates an index in
 * use.  A pass over the table finds the ground truth of the queries (truth.c).
 * In a build, this is the pass that places the rows.  Then we search for each
 * query with ever more lists, which makes a recall grid.  Of all pairs
 * (probes, candidates) that reach a target, the cheapest pair is kept
 * (recallgrid.c).
 *
 * Before the grid, we find the coarse fraction: the fraction of the lists that
 * a search through parents has to compare with a query.  Such a search
 * compares the lists of the parents nearest to the query, and probes the
 * nearest lists among those compared.  From the ranks of lists and parents,
 * and the lists that hold the exact neighbors, we compute which neighbors a
 * search with each fraction finds.
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
 * A depth of n rows is calibrated if the table has at least ROWS_A_RANK * n
 * rows.  The first two depths are calibrated in every table.
 */
#define ROWS_A_RANK		10

#define FEW_QUERIES		48		/* queries of the first grids, which show how
								 * many lists are needed */
#define FEWER			5		/* divisor of the smallest number of lists, if
								 * this number reaches a target */
#define MORE_PROBES		1.5		/* largest number of lists of the next grid,
								 * as a multiple of the probes found: a margin
								 * for confidence intervals and chance */
#define USUAL_WIDTH		1000
#define MOST_WIDTH		20000

/* Like FEW_QUERIES and MORE_PROBES, but for later, more costly levels. */
#define FEW_DEEP		16
#define MORE_DEEP		1.3		/* like MORE_PROBES */
#define MORE_WIDTH		2		/* largest number of candidates of the next
								 * grid, as a multiple of the candidates
								 * found: candidates cost little */
#define DEEPER			3.0		/* largest number of lists of the first grid,
								 * as a multiple of the previous level's
								 * largest probes */
#define USUAL_EXCESS	6		/* candidates of the first grid, as a multiple
								 * of the largest depth */
#define MOST_FRACTION		0.05	/* largest number of candidates, per row
									 * of the table; a scan that needs more
									 * makes a full pass (am/scan/depth.c) */
#define MOST_DEEP_WIDTH	60000

/* Fraction of the neighbors that a search through parents may miss. */
#define MOST_LOSS		0.001
#define FRACTION_QUERIES	128
#define MIN_LISTS		512		/* comparing fewer lists costs little */

/* Number of coarse fractions to try: 1, 2^-1/2, 2^-1 .. 2^-5. */
#define NFRACTIONS			11

/*
 * Number of lists to rank per probe.  If a search does not compare some of the
 * nearest lists, it probes farther lists instead.
 */
#define RANKED			1.25

/*
 * Queries and targets (to 0.95) with which the codes of centroids are tried,
 * and the share of the lists that they may miss.
 */
#define CODE_QUERIES	100
#define CODE_TARGETS	3
#define MOST_MISSED		.05

#define BATCH_LISTS		256		/* centroids compared at a time */

#define BATCH_ROWS	256			/* rows offered at once */
#define BLOCKS_A_SNAPSHOT	1024	/* blocks read with the same snapshot */

/*
 * A user must give at least LEAST_GIVEN queries.  ENOUGH_GIVEN queries make
 * intervals as narrow as in a build.  At most MOST_GIVEN queries are used.
 */
#define LEAST_GIVEN			100
#define ENOUGH_GIVEN		200
#define MOST_GIVEN			1000

/* Columns of the results of gpuvec_calibrate and gpuvec_calibration. */
#define TARGET_K			0
#define TARGET_RECALL		1
#define TARGET_PROBES		2
#define TARGET_CANDIDATES	3
#define TARGET_FOR			4
#define TARGET_NCOLUMNS		5

/* State of the pass that finds the ground truth. */
typedef struct Pass
{
	IvfpqRemeasure *into;
	MemoryContext tmp;			/* holds the row that was read last */
	bool		at_server;		/* gpuvecd compares rows with queries */
	bool		failed;			/* gpuvecd has failed */
	int			nbatch;
	float	   *batch;			/* [BATCH_ROWS][dims] */
	uint64		ids[BATCH_ROWS];
} Pass;

PG_FUNCTION_INFO_V1(gpuvec_calibrate);
PG_FUNCTION_INFO_V1(gpuvec_calibration);

/*
 * Returns one of 64 bits, chosen by a row's id.  Most rows have a bit that no
 * neighbor has, so their ids need not be compared with the neighbors' ids.
 */
static inline uint64
mark_of(uint64 id)
{
	return UINT64CONST(1) << ((id ^ id >> 16) & 63);
}

/*
 * Finds the `ranked` lists nearest to each of queries [n][dims] by comparing
 * all lists, in gpuvecd if it has the calibration mirror.  Returns an array [n]
 * of these lists, nearest first.
 */
static GvTopK *
rank_lists(Relation index, const IvfpqModel *model, const float *queries,
		   int n, int ranked, IvfpqCalibMirror *mirror)
{
	const IvfpqMetaData *meta = &model->meta;
	int			dims = meta->dims;
	int			capacity = BATCH_LISTS + IVFPQ_FLOATS_PER_PAGE / dims;
	GvTopK	   *lists = palloc0(n * sizeof(GvTopK));
	float	   *batch = palloc((Size) capacity * dims * sizeof(float));
	uint64	   *ids = palloc(capacity * sizeof(uint64));
	IvfpqArrayReader reader;
	const float *run;
	int			first = 0;
	int			nbatch = 0;
	int			count;

	for (int q = 0; q < n; q++)
		IvfpqTopKResize(&lists[q], ranked);
	if (IvfpqCalibMirrorRank(mirror, meta, queries, n, ranked, lists))
		return lists;
	IvfpqArrayOpen(&reader, index, meta->centroids, dims, meta->nlists);
	while ((run = IvfpqArrayNext(&reader, &count)) != NULL)
	{
		memcpy(batch + (Size) nbatch * dims, run,
			   (Size) count * dims * sizeof(float));
		for (; count > 0; count--, nbatch++)
			ids[nbatch] = first + nbatch;
		if (nbatch < BATCH_LISTS && first + nbatch < meta->nlists)
			continue;
		IvfpqCheckStatus(gv_exact(model->gv.metric, dims, queries, n, batch,
								  nbatch, ids, lists, &ivfpq_stop));
		first += nbatch;
		nbatch = 0;
	}
	IvfpqArrayClose(&reader);
	for (int q = 0; q < n; q++)
		gv_topk_sort(&lists[q]);
	return lists;
}

/*
 * Sets before[i], for each list i, to the number of lists that a search for
 * the query compares before it comes to the parent of list i.
 */
static void
count_before(Relation index, const IvfpqModel *model, const float *query,
			 int *before)
{
	GvTopK		parents;
	int			seen = 0;

	IvfpqSortParents(index, model, &model->gv, query, &parents);
	for (int i = 0; i < parents.count; i++)
	{
		int			list = model->parent_offsets[parents.ids[i]];
		int			end = model->parent_offsets[parents.ids[i] + 1];
		int			n = end - list;

		for (; list < end; list++)
			before[list] = seen;
		seen += n;
	}
	pfree(parents.scores);
	pfree(parents.ids);
}

/*
 * Returns the smallest coarse fraction with which a search misses at most the
 * fraction MOST_LOSS of the neighbors that it finds by comparing all lists.
 * Every row has been offered to the calibration.
 *
 * Whatever the coarse fraction, a search compares a minimum number of lists
 * for each probe.  Fractions so small that this minimum applies are not
 * considered, because they would not be tested here.  Such a fraction could
 * miss neighbors in a search with fewer probes, for which the minimum is
 * smaller.
 */
static double
find_coarse_fraction(const IvfpqCalibration *calibration, Relation index,
					 const IvfpqModel *model, IvfpqCalibMirror *mirror)
{
	const float *queries = calibration->levels[0].queries;
	int			nqueries = Min(calibration->levels[0].nqueries,
							   FRACTION_QUERIES);
	IvfpqMetaData meta = model->meta;
	int			probes = IvfpqFormulaProbes(&meta);
	int			compared[NFRACTIONS];	/* [f] number of lists compared */
	int			least;			/* minimum number of lists compared */
	int64		found[NFRACTIONS] = {0};	/* [f] neighbors found, over all
											 * queries */
	IvfpqListReader reader;
	GvTopK	   *lists;			/* [nqueries] nearest lists, in order */
	int		   *before;			/* [nlists] count_before of this query */
	MemoryContext oldcontext;
	MemoryContext tmp;
	int			s = 0;

	if (meta.nparents == 1 || meta.nlists < MIN_LISTS)
		return 1;
	tmp = AllocSetContextCreate(CurrentMemoryContext,
								"gpuivfpq calibration of parents",
								ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(tmp);
	for (int f = 0; f < NFRACTIONS; f++)
	{
		meta.coarse_fraction = pow(2, -f / 2.0);
		compared[f] = IvfpqListsToCompare(&meta, probes, false);
	}
	meta.coarse_fraction = FLT_MIN;
	least = IvfpqListsToCompare(&meta, probes, false);
	lists = rank_lists(index, model, queries, nqueries,
					   (int) Min(probes * RANKED, meta.nlists), mirror);
	before = palloc(meta.nlists * sizeof(int));
	IvfpqListReaderInit(&reader, index, &model->meta, &model->layout, NULL);

	for (int q = 0; q < nqueries; q++)
	{
		IvfpqGroundTruth truth;
		int			n = IvfpqCalibrationGroundTruth(calibration, 0, q, &truth);
		uint64		marks = 0;	/* mark_of the first n neighbors */
		uint32		hits[NFRACTIONS] = {0}; /* bit i: the fraction finds
											 * neighbor i */
		int			nprobed[NFRACTIONS] = {0};

		CHECK_FOR_INTERRUPTS();
		n = Min(n, IVFPQ_FIRST_ROWS);
		for (int i = 0; i < n; i++)
			marks |= mark_of(truth.neighbors[i]);
		count_before(index, model, queries + (Size) q * meta.dims, before);

		for (int rank = 0; rank < lists[q].count; rank++)
		{
			uint32		list = (uint32) lists[q].ids[rank];
			uint32		held = 0;	/* bit i: the list holds neighbor i */
			IvfpqBlockView view;

			IvfpqListOpen(&reader, list);
			while (IvfpqListNext(&reader, &view))
				for (uint32 live = view.live; live != 0; live &= live - 1)
				{
					uint64		id =
					IvfpqTidToId(&view.tids[pg_rightmost_one_pos32(live)]);

					if (!(marks & mark_of(id)))
						continue;
					for (int i = 0; i < n; i++)
						if (truth.neighbors[i] == id)
							held |= 1U << i;
				}

			/* a search probes the nearest lists among those compared */
			for (int f = 0; f < NFRACTIONS; f++)
				if (before[list] < compared[f] && nprobed[f]++ < probes)
					hits[f] |= held;
		}
		for (int f = 0; f < NFRACTIONS; f++)
			found[f] += pg_popcount32(hits[f]);
	}

	while (s + 1 < NFRACTIONS && compared[s + 1] > least &&
		   found[s + 1] >= found[0] * (1 - MOST_LOSS))
		s++;
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(tmp);
	return pow(2, -s / 2.0);
}

/*
 * Returns the number of a level's targets that every calibration determines:
 * the targets for recalls up to IVFPQ_SURE_RECALL.
 */
static int
count_sure(const IvfpqMetaData *meta, int level)
{
	int			n = 0;

	for (int t = 0; t < IVFPQ_TARGETS; t++)
		n += ivfpq_recalls[t] <= IVFPQ_SURE_RECALL;
	return n * (IvfpqLevelEnd(meta, level) - ivfpq_levels[level].first);
}

/*
 * Returns the maximum probes and the maximum candidates of the targets that
 * count_sure() counts.  Targets out of reach are zero, so they do not matter.
 */
static IvfpqTarget
most_of(const IvfpqMetaData *meta, int level)
{
	IvfpqTarget most = {1, 1};

	for (int d = ivfpq_levels[level].first; d < IvfpqLevelEnd(meta, level); d++)
		for (int t = 0; t < IVFPQ_TARGETS; t++)
			if (ivfpq_recalls[t] <= IVFPQ_SURE_RECALL)
			{
				const IvfpqTarget *target = &meta->targets[d][t];

				most.probes = Max(most.probes, target->probes);
				most.candidates = Max(most.candidates, target->candidates);
			}
	return most;
}

/*
 * Returns the minimum probes of a depth's targets.  The target for the lowest
 * recall need not have the minimum, because it may have more probes and fewer
 * candidates than other targets.
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

/*
 * Measures grids, each with more lists or candidates than the previous grid,
 * until a grid reaches `needed` targets or cannot grow.  Sets *spec to the
 * size of the last grid, and returns how many targets this grid reaches.
 */
static int
measure_until(IvfpqRecallGrid *grid, IvfpqGridSpec *spec, int most_width,
			  double z, int needed, IvfpqMetaData *meta)
{
	for (;;)
	{
		int			reached = IvfpqRecallGridMeasure(grid, spec, z, meta);

		if (reached >= needed ||
			(spec->most == meta->nlists && spec->most_width >= most_width))
			return reached;
		if (spec->most == meta->nlists)
			spec->most_width = Min(4 * spec->most_width, most_width);
		spec->most = Min(3 * spec->most, meta->nlists);
	}
}

/* Finds the targets for the first 10 and the first 100 rows. */
static void
measure_first_level(IvfpqRecallGrid *grid, int nqueries, IvfpqMetaData *meta)
{
	int			most_width = Min(meta->rows_at_calibration, MOST_WIDTH);
	IvfpqGridSpec spec = {
		.nqueries = Min(FEW_QUERIES, nqueries),
		.least = Max(1, IvfpqFormulaProbes(meta) / 10),
		.most = Min(7.5 * IvfpqFormulaProbes(meta), meta->nlists),
		.most_width = Max(USUAL_WIDTH, 4 * IvfpqFormulaCandidates(meta))
	};
	int			all = count_sure(meta, 0);
	int			reached;

	/* a few queries show whether far more or far fewer lists are needed */
	for (;;)
	{
		reached = measure_until(grid, &spec, most_width, 0, all, meta);
		if (spec.least == 1 || least_of(meta, 0) > spec.least)
			break;
		spec.least = Max(1, spec.least / FEWER);
	}
	if (reached == all)
		spec.most = Min(MORE_PROBES * most_of(meta, 0).probes, meta->nlists);
	spec.nqueries = nqueries;
	(void) measure_until(grid, &spec, most_width, IVFPQ_Z_95, all, meta);
}

/*
 * Finds the targets of a later level.  The size of the level's first grid
 * follows from the targets of the previous level.
 */
static void
measure_later_level(IvfpqRecallGrid *grid, int nqueries, int level,
					IvfpqMetaData *meta)
{
	int			first = ivfpq_levels[level].first;
	int			end = IvfpqLevelEnd(meta, level);
	int			most_width = (int)
	Min(meta->rows_at_calibration,
		Max(MOST_WIDTH, Min(MOST_DEEP_WIDTH,
							meta->rows_at_calibration * MOST_FRACTION)));
	IvfpqGridSpec spec = {
		.level = level,
		.nqueries = Min(FEW_DEEP, nqueries),
		.least = least_of(meta, first - 1),
		.most = Min(DEEPER * most_of(meta, level - 1).probes, meta->nlists),
		.most_width = Min(USUAL_EXCESS * ivfpq_depths[end - 1], most_width)
	};
	int			reached = measure_until(grid, &spec, most_width, 0,
										count_sure(meta, level), meta);
	IvfpqTarget most = most_of(meta, level);

	if (reached == 0)
		return;

	/* with all queries, try only the targets that the few queries reached */
	spec.most = Min(MORE_DEEP * most.probes, meta->nlists);
	spec.most_width = Min(MORE_WIDTH * most.candidates, most_width);
	spec.nqueries = nqueries;
	(void) measure_until(grid, &spec, most_width, IVFPQ_Z_95, reached, meta);
}

/*
 * Has searches choose lists by the centroids' codes only if the codes hardly
 * miss lists.  The grid found its lists without codes, because it asks for many
 * at a time.
 */
static void
try_codes(const IvfpqCalibration *calibration, Relation index,
		  IvfpqModel *model, IvfpqMetaData *meta)
{
	int			nqueries = Min(calibration->levels[0].nqueries, CODE_QUERIES);
	int			probes = meta->lists_per_row;	/* as inserts do */
	double		missed;

	model->meta.codes_unused = false;
	missed = IvfpqCodesMiss(index, model, calibration->levels[0].queries,
							nqueries, probes);
	for (int t = 0; t < CODE_TARGETS; t++)
	{
		if (meta->targets[0][t].probes <= probes)
			continue;
		probes = meta->targets[0][t].probes;
		missed = Max(missed,
					 IvfpqCodesMiss(index, model,
									calibration->levels[0].queries, nqueries,
									probes));
	}
	meta->codes_unused = missed > MOST_MISSED;
	model->meta.codes_unused = meta->codes_unused;
	ereport(DEBUG1,
			(errmsg_internal("gpuivfpq codes of centroids miss %.4f of the lists",
							 missed)));
}

/*
 * Calibrates an index: sets the targets and the coarse fraction in *meta,
 * which describes the index's pages.  All pages are written, though the
 * metapage may not show them yet.  Every row has been offered to the
 * calibration.  gpuvecd does most of the work if it has the calibration
 * mirror, otherwise all participants do it.  The leader calls this while
 * workers wait for the next phase.
 */
void
IvfpqCalibrationRun(IvfpqCalibration *calibration, Relation index,
					IvfpqMetaData *meta, IvfpqCalibMirror *mirror,
					IvfpqParallel *parallel)
{
	IvfpqModel *model = IvfpqModelLoad(index, meta);
	int			ndepths = ivfpq_levels[0].end;
	TimestampTz begun = GetCurrentTimestamp();
	TimestampTz shared;
	TimestampTz deeper;
	IvfpqRecallGrid *grid;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_CALIBRATING);
	IvfpqCalibrationSettle(calibration, parallel);
	meta->coarse_fraction = find_coarse_fraction(calibration, index, model,
												 mirror);
	shared = GetCurrentTimestamp();
	model->meta.coarse_fraction = meta->coarse_fraction;
	meta->calibration_queries = calibration->training->nqueries;
	memset(meta->targets, 0, sizeof(meta->targets));
	while (ndepths < IVFPQ_DEPTHS && meta->rows_at_calibration >=
		   (int64) ivfpq_depths[ndepths] * ROWS_A_RANK)
		ndepths++;
	meta->calibrated_depths = ndepths;

	grid = IvfpqRecallGridBegin(calibration, index, model, mirror, parallel);
	measure_first_level(grid, calibration->levels[0].nqueries, meta);
	try_codes(calibration, index, model, meta);
	deeper = GetCurrentTimestamp();
	for (int level = 1; level < IVFPQ_LEVELS; level++)
		if (ivfpq_levels[level].first < ndepths)
			measure_later_level(grid, calibration->levels[level].nqueries,
								level, meta);
	ereport(DEBUG1,
			(errmsg_internal("gpuivfpq calibrated with %d queries in %.0f ms, %.0f ms of them for more than 100 rows; searches compare %g of the lists, which took %.0f ms to find",
							 calibration->training->nqueries,
							 (GetCurrentTimestamp() - begun) / 1000.0,
							 (GetCurrentTimestamp() - deeper) / 1000.0,
							 meta->coarse_fraction,
							 (shared - begun) / 1000.0)));
}

static void
flush_batch(Pass *pass)
{
	if (pass->nbatch > 0 && !pass->at_server)
		IvfpqCalibrationOffer(pass->into->calibration, 0, pass->batch,
							  pass->ids, pass->nbatch);
	else if (pass->nbatch > 0 && !pass->failed)
		pass->failed = !IvfpqCalibrationSend(pass->into->calibration,
											 pass->batch, pass->ids,
											 pass->nbatch);
	pass->into->rows += pass->nbatch;
	pass->nbatch = 0;
	CHECK_FOR_INTERRUPTS();
}

/* IndexBuildCallback.  Offers a visible row to the calibration. */
static void
offer_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
			   bool alive, void *arg)
{
	Pass	   *pass = arg;
	const GvModel *gv = &pass->into->training.gv;
	uint64		id = IvfpqTidToId(tid);
	int			dims = gv->dims;
	const float *row;

	IvfpqRowDone();
	/* a row of other dimensions stays pending, so it cannot be a neighbor */
	row = IvfpqRowVector(&pass->into->type, values[0], isnull[0], &dims, true,
						 pass->tmp);
	if (row == NULL)
		return;
	gv_transform(gv, row, 1, pass->batch + (Size) pass->nbatch * dims);
	pass->ids[pass->nbatch++] = id;
	if (IvfpqLevelHas(1, id))
		IvfpqCalibrationSample(pass->into->calibration, row, id);
	if (pass->nbatch == BATCH_ROWS)
		flush_batch(pass);
}

/*
 * Draws rows of the table and makes transformed calibration queries of them.
 * A small table gives fewer queries than are needed, and an empty table gives
 * none.  If too few of the rows drawn are different, draws a second sample, as
 * large as memory holds.
 */
static void
draw_queries(IvfpqSample *sample, IvfpqTraining *training)
{
	const GvModel *gv = &training->gv;
	IvfpqHeldOut held;
	double		rows;
	Size		values;
	int			n;

	sample->dims = gv->dims;
	sample->lenient = true;
	sample->capacity = IvfpqCalibrationQueries(get_float8_infinity()) +
		IvfpqRowsAround(sample->dims);
	for (bool again = false;; again = true)
	{
		sample->least = sample->capacity;
		rows = IvfpqSampleTake(sample);
		IvfpqSampleShuffle(sample);
		(void) IvfpqSampleDistinct(sample);
		n = (int) Min(IvfpqCalibrationQueries(rows), sample->count);
		if (n == 0)
			return;
		if (again || sample->ndistinct >= n || sample->whole)
			break;
		pfree(sample->counts);
		pfree(sample->rows);
		pfree(sample->ids);
		sample->rows = NULL;
		sample->capacity = 0;
	}
	IvfpqHoldOut(sample, n, rows, &held);
	values = (Size) held.n * sample->dims;
	training->nqueries = held.n;
	training->depth = held.depth;
	training->queries = palloc_extended(values * sizeof(float),
										MCXT_ALLOC_HUGE);
	training->held_out = palloc_extended(values * sizeof(float),
										 MCXT_ALLOC_HUGE);
	training->query_ids = palloc(held.n * sizeof(uint64));
	IvfpqMakeCalibrationQueries(sample, &held, training->queries,
								training->held_out, training->query_ids);
	gv_transform(gv, training->held_out, held.n, training->held_out);
	gv_transform(gv, training->queries, held.n, training->queries);
}

/*
 * Takes a user's queries for calibration.  Puts them into random order,
 * because later levels use only the first queries.
 */
static void
take_given(IvfpqTraining *training, IvfpqQueries *given, IvfpqType *type)
{
	IvfpqQueriesFit(given, type, training->gv.dims);
	if (given->n < LEAST_GIVEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("too few queries for calibration: %d", given->n),
				 errhint("Specify at least %d queries.  For reliable targets, specify %d to %d.",
						 LEAST_GIVEN, ENOUGH_GIVEN, MOST_GIVEN)));
	if (given->n < ENOUGH_GIVEN)
		ereport(NOTICE,
				(errmsg("only %d queries given for calibration", given->n),
				 errdetail("With fewer than %d queries, searches do more work than necessary and high recall levels are not available.",
						   ENOUGH_GIVEN)));
	IvfpqQueriesDraw(given, MOST_GIVEN);
	training->nqueries = given->n;
	training->depth = IVFPQ_GROUND_TRUTH_ROWS + 1;
	training->queries = palloc_extended((Size) given->n * given->dims *
										sizeof(float), MCXT_ALLOC_HUGE);
	training->held_out = training->queries;
	gv_transform(&training->gv, given->vectors, given->n, training->queries);
	training->query_ids = palloc(given->n * sizeof(uint64));
	for (int i = 0; i < given->n; i++)
		training->query_ids[i] = IVFPQ_NO_ROW;
}

/*
 * Offers all rows to a new calibration, and takes a newer snapshot after some
 * blocks.  Returns false if gpuvecd failed.
 */
static bool
offer_rows(Pass *pass, Relation heap, Relation index, IndexInfo *indexInfo)
{
	IvfpqRemeasure *into = pass->into;
	BlockNumber nblocks = RelationGetNumberOfBlocks(heap);

	into->calibration = IvfpqCalibrationBegin(&into->training);
	into->rows = 0;
	for (int64 first = 0; first < nblocks && !pass->failed;
		 first += BLOCKS_A_SNAPSHOT)
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
	return !pass->failed && IvfpqCalibrationSent(into->calibration);
}

/*
 * Finds the ground truth of the queries in *given or, if `given` is NULL, of
 * queries made of rows, for an index in use.  Returns NULL if the index is
 * untrained or has too few rows.  The caller acts as the table's owner and
 * keeps other sessions from training the index.
 *
 * If gpuvecd is the chosen engine, it compares the given queries with the
 * rows.  If it fails, this session does so, unless must_serve is set, which
 * makes the failure an ERROR.
 */
IvfpqRemeasure *
IvfpqRemeasureBegin(Relation heap, Relation index, IvfpqQueries *given,
					bool must_serve)
{
	IndexInfo  *indexInfo = IvfpqIndexInfo(index);
	IvfpqRemeasure *into = palloc0(sizeof(IvfpqRemeasure));
	IvfpqTraining *training = &into->training;
	Pass		pass = {.into = into};
	IvfpqSample sample = {.heap = heap, .index = index,
	.indexInfo = indexInfo, .type = &into->type};
	IvfpqParallel parallel;

	into->model = IvfpqModelGet(index);
	into->given = given;
	IvfpqTypeInit(&into->type, index);
	indexInfo->ii_Concurrent = true;	/* read rows that a snapshot sees */
	if (into->model->meta.nlists == 0)
		return NULL;
	training->gv = into->model->gv;
	if (into->model->meta.rotated)
		training->gv.rotation = IvfpqRotationLoad(index, &into->model->meta);
	if (given)
		take_given(training, given, &into->type);
	else
		draw_queries(&sample, training);
	if (training->nqueries == 0)
		return NULL;

	pass.tmp = AllocSetContextCreate(CurrentMemoryContext,
									 "gpuivfpq calibration row",
									 ALLOCSET_DEFAULT_SIZES);
	pass.batch = palloc((Size) BATCH_ROWS * into->model->meta.dims *
						sizeof(float));
	pass.at_server = given != NULL && IvfpqServerIsWanted();
	if (!offer_rows(&pass, heap, index, indexInfo))
	{
		if (must_serve)
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("gpuvecd could not compare queries with rows")));
		pass.at_server = pass.failed = false;
		(void) offer_rows(&pass, heap, index, indexInfo);
	}
	IvfpqParallelInitSerial(&parallel);
	IvfpqCalibrationFlush(into->calibration, &parallel);
	return IvfpqCalibrationQueries(into->rows) == 0 ? NULL : into;
}

/*
 * Measures the cost of each recall, and stores it in the metapage.  Returns
 * false if the index was trained again meanwhile.
 */
bool
IvfpqRemeasureStore(IvfpqRemeasure *remeasure, Relation index)
{
	IvfpqMetaData *meta = &remeasure->model->meta;
	IvfpqParallel parallel;

	IvfpqParallelInitSerial(&parallel);
	meta->rows_at_calibration = remeasure->rows;
	meta->calibrated_for = remeasure->given ? IVFPQ_FOR_QUERIES :
		IVFPQ_FOR_ROWS;
	IvfpqSnapshotDrop();
	IvfpqCalibrationRun(remeasure->calibration, index, meta, NULL, &parallel);
	IvfpqSnapshotTake();
	return IvfpqMetaCalibrate(index, meta);
}

/*
 * Measures the cost of each recall on a trained index, and stores it in the
 * metapage.  Returns false if it could not (IvfpqRemeasureBegin).
 */
bool
IvfpqCalibrateIndex(Relation heap, Relation index, IvfpqQueries *given)
{
	IvfpqRemeasure *remeasure = IvfpqRemeasureBegin(heap, index, given,
													false);

	return remeasure != NULL && IvfpqRemeasureStore(remeasure, index);
}

/*
 * Computes the 95 % confidence interval of the mean recall over all queries,
 * or Wilson's interval if the recalls of all queries are equal, because their
 * variance then says nothing.
 */
void
IvfpqRecallInterval(const IvfpqRecallSums *sums, double *low, double *high)
{
	double		n = (double) sums->n;
	double		mean = sums->sum / n;
	double		variance = 0;
	double		half;

	if (sums->n > 1)
		variance = (sums->sum_squares - n * mean * mean) / (n - 1);
	if (variance > 1e-12)
		half = IVFPQ_Z_95 * sqrt(variance / n);
	else
	{
		double		z2 = IVFPQ_Z_95 * IVFPQ_Z_95;

		half = IVFPQ_Z_95 / (1 + z2 / n) *
			sqrt(mean * (1 - mean) / n + z2 / (4 * n * n));
		mean = (mean + z2 / (2 * n)) / (1 + z2 / n);
	}
	/* rounding may miss 0 and 1, so set them exactly */
	*low = sums->sum == 0 ? 0.0 : Max(mean - half, 0.0);
	*high = sums->sum == n ? 1.0 : Min(mean + half, 1.0);
}

/*
 * Sets the index's option calibrated_for, which says whether the targets are
 * for rows or for a user's queries.  The metapage says so, too, but REINDEX
 * and a restore replace the metapage, and REINDEX calibrates with rows.  Both
 * keep the option, so that gpuvec_index_info can advise to calibrate.
 */
void
IvfpqSetCalibratedFor(Relation index, IvfpqCalibratedFor what)
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

	/* event triggers of the calling command must see this ALTER INDEX, too */
	EventTriggerAlterTableStart((Node *) statement);
	AlterTableInternal(RelationGetRelid(index), statement->cmds, false);
	EventTriggerAlterTableEnd();
}

/* Adds the targets in the metapage to the result of the SQL function. */
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

			/* no target for this recall: scans extrapolate parameters */
			if (target->candidates == 0 && ivfpq_recalls[t] > IVFPQ_SURE_RECALL)
				continue;
			values[TARGET_K] = Int32GetDatum(ivfpq_depths[d]);
			values[TARGET_RECALL] = Float8GetDatum(ivfpq_recalls[t]);
			values[TARGET_PROBES] = Int32GetDatum(target->probes);
			values[TARGET_CANDIDATES] = Int32GetDatum(target->candidates);
			values[TARGET_FOR] =
				CStringGetTextDatum(queries[meta.calibrated_for]);
			/* nothing reached this recall, so a scan reads everything */
			nulls[TARGET_PROBES] = target->candidates == 0;
			nulls[TARGET_CANDIDATES] = target->candidates == 0;
			tuplestore_putvalues(result->setResult, result->setDesc, values,
								 nulls);
		}
}

/* Raises an error if the current user may not calibrate the index. */
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
	PreventCommandIfParallelMode("gpuvec_calibrate()");
	has_given = IvfpqQueriesArgument(fcinfo, 1, MOST_GIVEN, &given);
	index = IvfpqOpenToChange(PG_GETARG_OID(0), check_owner, &heap);
	IvfpqCheckBuilt(index);
	/* a dump has the option */
	if (IvfpqGetOptions(index)->calibrated_for != (int)
		(has_given ? IVFPQ_FOR_QUERIES : IVFPQ_FOR_ROWS))
		PreventCommandIfReadOnly("gpuvec_calibrate()");

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
		IvfpqSetCalibratedFor(index, has_given ? IVFPQ_FOR_QUERIES :
							  IVFPQ_FOR_ROWS);
		put_targets(fcinfo, index);
	}
	else
	{
		IvfpqMetaData meta;

		IvfpqMetaRead(index, &meta);
		ereport(NOTICE,
				(errmsg("index \"%s\" was not calibrated",
						RelationGetRelationName(index)),
				 meta.nlists == 0 ?
				 errdetail("The index is not trained.") :
				 errdetail("The table has too few rows.")));
	}
	relation_close(index, NoLock);
	table_close(heap, NoLock);
	return (Datum) 0;
}

/* gpuvec_calibration(index regclass) */
Datum
gpuvec_calibration(PG_FUNCTION_ARGS)
{
	Relation	index = IvfpqOpenIndex(PG_GETARG_OID(0), AccessShareLock, NULL);

	IvfpqCheckInspect(index);
	IvfpqCheckBuilt(index);
	InitMaterializedSRF(fcinfo, 0);
	put_targets(fcinfo, index);
	relation_close(index, AccessShareLock);
	return (Datum) 0;
}
