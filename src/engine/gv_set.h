/*
 * gv_set.h
 *		The engine API's part for sets: work on all rows of a set, which come
 *		one batch after the other: exact search, k-means, and selection where
 *		not everything comes at once.
 *
 * A set is one piece of work: made for a GvSetSpec, given its inputs, run, and
 * asked for its outputs.  Like those of gv_builder.h these operations keep
 * state and take memory (malloc, or a device's), may report GV_NO_MEMORY (the
 * set can only be dropped then) and GV_FAILED (the engine is beyond repair),
 * and never print, exit or jump out.  Backends call them with gv_cpu_sets,
 * gpuvecd with any engine.
 *
 * Threads: one at a time for each set; different sets may work side by side.
 *
 * Inputs go in whole before rows: queries, their own positions if need be,
 * lists, ranks, first centroids.  Rows are numbered from 0 as they come.
 * Numbers are finite, except that values of selections may be anything.
 *
 * GV_SET_EXACT		of each query the k nearest rows, by (distance, position)
 *		inputs		QUERIES float [nqueries][dims]
 *					SELF int64 [nqueries], only with `self`: the row at that
 *						position is none of the query's neighbors
 *					With `own` neither comes: queries are the rows from `first`
 *					on, and none is its own neighbor.
 *					ROWS float [..][dims], nrows at most
 *		outputs		POSITIONS int64 [nqueries][k], -1 where there are fewer
 *					DISTANCES double [nqueries][k], NaN there
 *		Exact: gv_set_distance, in double, in the order of operations stated
 *		there, on every engine; NaN comes last, its bits are any.  An engine
 *		may compute in less precision only to discard, with a proven bound.
 *		Source of the blocked form: Johnson, Douze, Jegou, 2017, section 5.1.
 *
 *		With nlists > 0 queries are compared only with the rows of near lists:
 *		inputs		LISTS float [nlists][dims], centroids
 *		A vector is of the list whose centroid is nearest to it (of GV_SET_IP
 *		by GV_SET_L2); near a list are the `probes` lists whose centroids are
 *		nearest to its own, by the metric, itself among them unless others come
 *		before it.  Both as above, exact, by (distance, number).  A
 *		query's neighbors are the k nearest of the rows of lists near its
 *		own; all else is as above, the same on every engine.
 *
 *		A set that was made with `own` keeps all its rows, GV_SET_OWN_BYTES at
 *		most, and may be asked again about them, gv_set_ask; made with
 *		nqueries 0 it is asked for the first time once they have come.
 *
 * GV_SET_KMEANS	Lloyd's iterations from the centroids given
 *		inputs		SEEDS float [k][dims]
 *					ROWS float [nrows][dims], in every pass
 *		outputs		CENTROIDS float [found][dims], SIZES int64 [found]
 *		One pass over the rows is one call of gv_set_run.  A pass assigns rows
 *		as gv_assign does, and sums up from 0, in double and in the order of
 *		rows, each cluster's rows and gv_assign's squared distances; its error
 *		is the sum of the clusters' errors, from the first to the last.  Then
 *		centroids become means, sum / size rounded to fp32; see gv_set_reseed
 *		for those without rows.  After `iterations` of
 *		that a last pass only assigns: sizes and the last error are of the
 *		centroids returned, in their old order without those of no rows.
 *		Bit for bit the same on every engine.  Lloyd, "Least squares
 *		quantization in PCM", 1982.
 *
 * GV_SET_SELECT	gv_select of one row of values
 *		inputs		ROWS float [nrows]
 *		outputs		POSITIONS int64 [k], VALUES float [k]
 *
 * GV_SET_QUANTILES	gv_quantiles
 *		inputs		RANKS int64 [nqueries], 0 .. nrows - 1
 *					ROWS float [nrows]
 *		outputs		VALUES float [nqueries], RANK_ERRORS int64 [nqueries]
 *		Exact ones are the same on every engine; of approximate ones it is
 *		only true on each that the error is what is reported.
 */
#ifndef GV_SET_H
#define GV_SET_H

#include "engine/gv_engine.h"
#include "engine/gv_select.h"

typedef struct GvSet GvSet;

typedef enum GvSetKind
{
	GV_SET_EXACT,
	GV_SET_KMEANS,
	GV_SET_SELECT,
	GV_SET_QUANTILES
} GvSetKind;

#define GV_NSETS		(GV_SET_QUANTILES + 1)

typedef enum GvSetMetric
{
	GV_SET_L2 = GV_L2,			/* gv_distance_l2 */
	GV_SET_IP = GV_IP,			/* gv_distance_ip */
	GV_SET_COSINE = GV_COSINE,	/* gv_distance_cosine */
	GV_SET_PEARSON				/* gv_distance_pearson */
} GvSetMetric;

#define GV_SET_MAX_K		(1 << 20)	/* neighbors of a query */
#define GV_SET_MAX_QUERIES	(1 << 26)
#define GV_SET_MAX_CLUSTERS	(1 << 24)
#define GV_SET_MAX_PASSES	1001
#define GV_SET_OWN_BYTES	((int64_t) 16 << 30)

typedef struct GvSetSpec
{
	int32_t		kind;			/* GvSetKind */
	int32_t		device;			/* as in GvMirrorSpec; 0 for processors */
	int32_t		metric;			/* GvSetMetric, of EXACT; else 0 */
	int32_t		dims;			/* 1 .. GV_MAX_DIMS; 1 of selections */
	int32_t		k;				/* neighbors, clusters, values; QUANTILES: 0 */
	int32_t		method;			/* GvSelectMethod, of SELECT; else 0 */
	int32_t		iterations;		/* of KMEANS, >= 0; else 0 */
	uint8_t		self;			/* EXACT: SELF comes; else 0 */
	uint8_t		balanced;		/* of KMEANS; else 0 */
	uint8_t		approximate;	/* of QUANTILES; else 0 */
	uint8_t		own;			/* EXACT: queries are rows, self is 0; else 0 */
	int32_t		nlists;			/* of EXACT; 0: all rows are compared; else 0 */
	int32_t		probes;			/* 1 .. nlists; 0 without lists */
	int64_t		nqueries;		/* EXACT: queries, with own 0 as well,
								 * QUANTILES: ranks; else 0 */
	int64_t		nrows;			/* that will come; of EXACT at most */
	int64_t		first;			/* with own: the first query's row; else 0 */
} GvSetSpec;

typedef enum GvSetInput
{
	GV_SET_ROWS,
	GV_SET_QUERIES,
	GV_SET_SELF,
	GV_SET_RANKS,
	GV_SET_SEEDS,
	GV_SET_LISTS
} GvSetInput;

#define GV_NSET_INPUTS	(GV_SET_LISTS + 1)

typedef enum GvSetOutput
{
	GV_SET_POSITIONS,
	GV_SET_DISTANCES,
	GV_SET_VALUES,
	GV_SET_RANK_ERRORS,
	GV_SET_CENTROIDS,
	GV_SET_SIZES
} GvSetOutput;

#define GV_NSET_OUTPUTS	(GV_SET_SIZES + 1)

/* The outcome of a run. */
typedef struct GvSetDone
{
	double		error;			/* of KMEANS: the sum of squared distances to
								 * the centroids that the pass began with,
								 * reseeded ones among them */
	int32_t		passes;			/* so far */
	int32_t		found;			/* of KMEANS once finished: centroids */
	uint8_t		finished;		/* outputs are there; else run again */
	uint8_t		again;			/* and before that bring all rows again */
	uint8_t		unused[6];		/* 0 */
} GvSetDone;

/*
 * One kind of work by one engine; state is the engine's.  Arguments are
 * checked: an input that there is, in order, no more of it than the spec says;
 * outputs of a set that has finished.
 */
typedef struct GvSetOps
{
	int64_t		(*size) (const GvSetSpec *spec);
	GvStatus	(*create) (const GvSetSpec *spec, void **state);
	void		(*drop) (void *state);
	GvStatus	(*put) (void *state, GvSetInput input, const void *items,
						int64_t first, int64_t n, const GvStop *stop);
	GvStatus	(*run) (void *state, GvSetDone *done, const GvStop *stop);
	GvStatus	(*get) (void *state, GvSetOutput output, int64_t first,
						int64_t n, void *items);
	GvStatus	(*ask) (void *state, const GvSetSpec *spec);	/* or NULL */
} GvSetOps;

typedef struct GvSetBackend
{
	const char *name;
	const GvSetOps *kinds[GV_NSETS];
} GvSetBackend;

extern const GvSetBackend gv_cpu_sets;	/* processors, the oracle */
extern const GvSetBackend gv_cuda_sets; /* gpu/, where it is built */

/*
 * gv_sets_open: take this engine from now on, once a process and after
 * gv_mirrors_open took the one of the same name.  Without it: gv_cpu_sets.
 */
extern GvStatus gv_sets_open(const GvSetBackend *engine);

/*
 * Bytes of one item of an input or output, a row or a query or a rank, and how
 * many of an output there are; 0 where the kind has none.  found counts for
 * KMEANS only.
 */
extern int64_t gv_set_input_bytes(const GvSetSpec *spec, GvSetInput input);
extern int64_t gv_set_output_bytes(const GvSetSpec *spec, GvSetOutput output);
extern int64_t gv_set_output_length(const GvSetSpec *spec,
									GvSetOutput output, int32_t found);

/* gv_set_size: about how many bytes a set takes; 0: invalid spec. */
extern int64_t gv_set_size(const GvSetSpec *spec);

extern GvStatus gv_set_create(const GvSetSpec *spec, GvSet **set);
extern void gv_set_drop(GvSet *set);

/*
 * gv_set_put: n more items of an input, in the order of their numbers; they
 * need not outlive the call.  GV_INVALID out of order, for too many, and for
 * numbers that are not finite.
 */
extern GvStatus gv_set_put(GvSet *set, GvSetInput input, const void *items,
						   int64_t n, const GvStop *stop);

/* gv_set_run: all is there: go on until done->finished or done->again. */
extern GvStatus gv_set_run(GvSet *set, GvSetDone *done, const GvStop *stop);

/* gv_set_get: items first .. first + n - 1 of an output. */
extern GvStatus gv_set_get(GvSet *set, GvSetOutput output, int64_t first,
						   int64_t n, void *items);

/*
 * gv_set_ask: ask a set that keeps its rows, which has finished or was asked
 * nothing yet, something else: with spec, of the same device, dims and nrows,
 * all else is as of a new set whose rows are there.
 */
extern GvStatus gv_set_ask(GvSet *set, const GvSetSpec *spec);

/*
 * The distance by which exact search orders.  Pearson's is one minus the
 * correlation of two vectors, all of it in double, sums being eight
 * interleaved partial sums added pairwise as in the other distances:
 *		mean(x)		= sum of x_i / dims
 *		dot(x, y)	= sum of (x_i - mean(x)) (y_i - mean(y))
 *		correlation	= dot(a, b) / sqrt(dot(a, a) dot(b, b)), -1 .. 1
 * It is NaN where one of the vectors does not vary.
 */
extern double gv_set_distance(GvSetMetric metric, const float *a,
							  const float *b, int32_t dims);
extern double gv_distance_pearson(const float *a, const float *b,
								  int32_t dims);

/*
 * For engines: reseeds clusters that have lost their rows, or in a balanced
 * set most of them.
 *
 * Between a pass and the next, with the clusters' sizes and errors [k] of that
 * pass and centroids [k][dims] that already are means (of no rows: as before).
 * Takers, ascending: clusters of no rows; of a balanced set those of fewer
 * than a quarter of the mean size, nrows / k.  Givers: in the order of
 * descending errors, or of descending sizes in a balanced set, ties by number,
 * those whose farthest row is at a distance above 0, and in a balanced set of
 * more than the mean size.
 * The i-th taker's centroid becomes the farthest row of the i-th giver,
 * farthest [k][dims] (the first of those equally far, by gv_assign's distance,
 * which is in far_distances [k]; 0 and any row where no row is farther);
 * takers beyond the givers stay as they are.  A cluster that takes does not
 * give.  Returns how many have taken.  order [k] is for its use.
 */
extern int32_t gv_set_reseed(const GvSetSpec *spec, const int64_t *sizes,
							 const double *errors, const float *far_distances,
							 const float *farthest, float *centroids,
							 int32_t *order);

#ifdef GV_TEST_BUILD
/* Fault injection, as gv_mirror_fault. */
extern void gv_set_fault(int64_t n, GvStatus status);
#endif

#endif							/* GV_SET_H */
