/*
 * gv_set.h
 *		The engine API's part for sets: exact search, k-means and selection
 *		over all rows of a set, which come in batches.
 *
 * A set is one piece of work.  It is created for a GvSetSpec, gets its inputs,
 * is run, and then its outputs are read.  Unlike the operations of
 * gv_engine.h, and like those of gv_builder.h, these operations keep state and
 * take memory, from malloc or on a device.  They may report GV_NO_MEMORY,
 * after which the set can only be dropped, and GV_FAILED, which means that the
 * engine is beyond repair.  They never print, exit or jump out.  Backends call
 * them with gv_cpu_sets, and gpuvecd calls them with any engine.
 *
 * Threads: only one thread at a time may use a set.  Different threads may use
 * different sets at the same time.
 *
 * All inputs other than the rows have to be complete before the first row
 * comes: queries, their own positions, lists, ranks, seeds.  Rows are numbered
 * from 0 in the order in which they come; a row's number is its position.  All
 * numbers have to be finite, except for the values of selections.
 *
 * GV_SET_EXACT		the k nearest rows of each query, by (distance, position)
 *		inputs		QUERIES float [nqueries][dims]
 *					SELF int64 [nqueries], only if `self` is set: the row at
 *						that position is not a neighbor of the query
 *					If `own` is set, these two inputs do not come: the queries
 *						are the nqueries rows from position `first` on, and no
 *						query is a neighbor of itself.
 *					ROWS float [..][dims], at most nrows
 *		outputs		POSITIONS int64 [nqueries][k], -1 if there are fewer rows
 *					DISTANCES double [nqueries][k], NaN if there are fewer
 *		Distances are exact.  Every engine returns the distances that
 *		gv_set_distance computes in double, in the order of operations that is
 *		stated there.  A distance that is NaN comes last, and the bits of the
 *		NaN are unspecified.  An engine may compute in less precision only to
 *		discard rows, with a proven bound.  The search by blocks follows
 *		Johnson, Douze, Jegou, 2017, section 5.1.
 *
 *		If nlists > 0, a query is compared only with the rows of near lists:
 *		inputs		LISTS float [nlists][dims], centroids
 *		A vector belongs to the list whose centroid is nearest to the vector
 *		(for GV_SET_IP by GV_SET_L2).  The lists near a list are the `probes`
 *		lists whose centroids are nearest to its own centroid by the metric.
 *		Centroids are ordered by (distance, number), with exact distances as
 *		above.  So a list is near itself, unless `probes` other lists precede
 *		it.  A query's neighbors are the k nearest of the rows in lists near
 *		the query's list.  Everything else is as above, and the results are
 *		the same on every engine.
 *
 *		A set that is created with `own` keeps all its rows, which may take at
 *		most GV_SET_OWN_BYTES, and can be asked about the rows again
 *		(gv_set_ask).  If the set is created with nqueries = 0, it only keeps
 *		the rows, and gv_set_ask asks the first question after all rows have
 *		come.
 *
 * GV_SET_KMEANS	Lloyd's iterations, beginning with the centroids SEEDS
 *		inputs		SEEDS float [k][dims]
 *					ROWS float [nrows][dims], again in each pass
 *		outputs		CENTROIDS float [found][dims], SIZES int64 [found]
 *		Each call of gv_set_run is one pass over the rows.  A pass assigns the
 *		rows as gv_assign does.  For each cluster it adds up the rows, and
 *		gv_assign's squared distances (the cluster's error), in double.  The
 *		error of the pass is the sum of the clusters' errors, from the first to
 *		the last.  Then each centroid becomes the mean, sum / size rounded to
 *		fp32, and gv_set_end_pass replaces the centroids of clusters without
 *		rows.  After `iterations` of these passes one more pass only assigns
 *		the rows, so that the sizes and the last error belong to the centroids
 *		that are returned.  Centroids keep their order, and centroids without
 *		rows are not returned.  The result is the same on every engine, and on
 *		any number of devices, bit for bit.  Lloyd, "Least squares quantization
 *		in PCM", 1982.
 *
 *		Sums.  Slice i of the rows, i = 0 .. 7, has the rows from nrows i / 8
 *		to nrows (i + 1) / 8 - 1, rounded down.  A slice's sums are added from
 *		0 in the order of its rows, and the slices' sums pairwise:
 *			((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))
 *		So a part of 1, 2 or 4 slices that begins at a multiple of its number
 *		of slices has one sum, which is the same on every engine.
 *
 *		Parts.  gpuvecd divides a set among devices: if spec.nslices > 0, an
 *		engine has only the rows of nslices slices from first_slice on.  nrows
 *		is the number of all rows.  A part does not end its passes.  After a
 *		run the caller gets the outputs of a pass, which exist for parts only
 *		(SUMS not after the last run), calls gv_set_end_pass for all parts
 *		together, and puts the new centroids as SEEDS before the next pass:
 *		outputs		SUMS double [k][dims], CLUSTERS GvSetCluster [k],
 *					FARTHEST float [k][dims], the farthest rows of clusters
 *						whose far_distance is above 0
 *		gv_set_create refuses parts.
 *
 * GV_SET_SELECT	gv_select of one row of values, floats or doubles
 *		inputs		ROWS value [nrows]
 *		outputs		POSITIONS int64 [k], VALUES value [k]
 *
 * GV_SET_QUANTILES	gv_quantiles
 *		inputs		RANKS int64 [nqueries], 0 .. nrows - 1
 *					ROWS value [nrows]
 *		outputs		VALUES value [nqueries], RANK_ERRORS int64 [nqueries]
 *		Exact quantiles are the same on every engine.  Approximate ones differ
 *		between engines, but their rank errors are always exact.
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
#define GV_SET_OWN_BYTES	((int64_t) 64 << 30)
#define GV_SET_SLICES		8	/* of the rows, for sums of k-means */
#define GV_SET_LEVELS		3	/* of the pairwise sum of slices */

/*
 * The properties of a set.  A field whose comment begins with a kind of work
 * is 0 for the kinds that the comment does not name.
 */
typedef struct GvSetSpec
{
	int32_t		kind;			/* GvSetKind */
	int32_t		device;			/* as in GvMirrorSpec; 0 for processors */
	int32_t		metric;			/* EXACT: a GvSetMetric */
	int32_t		dims;			/* 1 .. GV_MAX_DIMS; for SELECT and QUANTILES
								 * the size of a value in floats: 1 if values
								 * are floats, 2 if they are doubles */
	int32_t		k;				/* number of neighbors (EXACT), clusters
								 * (KMEANS) or values (SELECT); 0 for
								 * QUANTILES */
	uint8_t		method;			/* SELECT: a GvSelectMethod */
	uint8_t		nslices;		/* KMEANS: number of slices of a part, or 0 if
								 * the set is no part */
	uint8_t		first_slice;	/* KMEANS: the part's first slice, a multiple
								 * of nslices; otherwise 0 */
	uint8_t		unused;			/* 0 */
	int32_t		iterations;		/* KMEANS: number of iterations, >= 0 */
	uint8_t		self;			/* EXACT: 1 if the input SELF comes, or 0 */
	uint8_t		balanced;		/* KMEANS: 1 if sizes are balanced, or 0 */
	uint8_t		approximate;	/* QUANTILES: 1 if errors are allowed, or 0 */
	uint8_t		own;			/* EXACT: 1 if the queries are rows of the
								 * set, or 0; if 1, `self` must be 0 */
	int32_t		nlists;			/* EXACT: number of lists, or 0 to compare
								 * each query with all rows */
	int32_t		probes;			/* number of lists near each list, 1 ..
								 * nlists; 0 if there are no lists */
	int64_t		nqueries;		/* EXACT: number of queries, 0 only if `own`
								 * is 1; QUANTILES: number of ranks */
	int64_t		nrows;			/* number of rows that will come; for EXACT,
								 * the largest number that may come */
	int64_t		first;			/* position of the first query if `own` is 1;
								 * otherwise 0 */
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
	GV_SET_SIZES,
	/* of the passes of a part */
	GV_SET_SUMS,
	GV_SET_CLUSTERS,
	GV_SET_FARTHEST
} GvSetOutput;

#define GV_NSET_OUTPUTS	(GV_SET_SIZES + 1)	/* of whole sets */

/* The outcome of a run. */
typedef struct GvSetDone
{
	double		error;			/* KMEANS: sum of the rows' squared distances
								 * to the centroids with which the pass began,
								 * of which some may have been reseeded */
	int32_t		passes;			/* passes so far */
	int32_t		found;			/* KMEANS, if finished: number of centroids */
	uint8_t		finished;		/* 1 if outputs can be read; 0 if gv_set_run
								 * must be called again */
	uint8_t		again;			/* 1 if all rows must be put again before the
								 * next run */
	uint8_t		unused[6];		/* 0 */
} GvSetDone;

/*
 * One kind of work, as one engine does it.  `state` belongs to the engine.
 * gv_set.c checks the arguments of each call before the engine is called.  So
 * an engine gets only inputs that this kind of work has, in order, and not
 * more items than the spec says, and outputs are read only after the set has
 * finished.  `first` is the number of the first item.  *done is what the run
 * before has set, or zeros.
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
	GvStatus	(*ask) (void *state, const GvSetSpec *spec);	/* EXACT */
} GvSetOps;

typedef struct GvSetBackend
{
	const char *name;
	const GvSetOps *kinds[GV_NSETS];
} GvSetBackend;

extern const GvSetBackend gv_cpu_sets;	/* for processors, and the oracle */
extern const GvSetBackend gv_cuda_sets; /* gpu/, in programs with CUDA */

/*
 * Selects the engine for the rest of the process.  Must be called only once,
 * and after gv_mirrors_open has selected the engine of the same name.  A
 * process that does not call gv_sets_open uses gv_cpu_sets.
 */
extern GvStatus gv_sets_open(const GvSetBackend *engine);

/*
 * Return the bytes of one item (a row, a query, a rank) of an input or output,
 * and how many items an output has.  Return 0 if this kind of work has no such
 * input or output.  `found` is GvSetDone.found, for KMEANS only.
 */
extern int64_t gv_set_input_bytes(const GvSetSpec *spec, GvSetInput input);
extern int64_t gv_set_output_bytes(const GvSetSpec *spec, GvSetOutput output);
extern int64_t gv_set_output_length(const GvSetSpec *spec,
									GvSetOutput output, int32_t found);

/* Returns about how many bytes a set takes, or 0 if the spec is invalid. */
extern int64_t gv_set_size(const GvSetSpec *spec);

extern GvStatus gv_set_create(const GvSetSpec *spec, GvSet **set);
extern void gv_set_drop(GvSet *set);

/*
 * Adds the next n items of an input.  The items need not outlive the call.
 * Returns GV_INVALID if this input may not come at this time, if there are too
 * many items, or if numbers are not finite.
 */
extern GvStatus gv_set_put(GvSet *set, GvSetInput input, const void *items,
						   int64_t n, const GvStop *stop);

/*
 * Works on the inputs, which must be complete.  The caller calls gv_set_run
 * again until done->finished is set.  Whenever done->again is set, the caller
 * puts all rows again before the next call.
 */
extern GvStatus gv_set_run(GvSet *set, GvSetDone *done, const GvStop *stop);

/* Copies items first .. first + n - 1 of an output of a finished set. */
extern GvStatus gv_set_get(GvSet *set, GvSetOutput output, int64_t first,
						   int64_t n, void *items);

/*
 * Asks a set about the rows that it keeps.  The set must have finished, or
 * must have been created without queries.  spec must have the device, dims and
 * nrows of the set.  After the call the set is like a new set of this spec
 * whose rows have come already: the caller puts the other inputs, runs the
 * set, and gets the outputs.
 */
extern GvStatus gv_set_ask(GvSet *set, const GvSetSpec *spec);

/*
 * Return the distance by which exact search orders rows: gv_set_distance for
 * any metric, gv_distance_pearson for Pearson's.  Pearson's distance is one
 * minus the correlation of two vectors, computed in double.  Each sum consists
 * of eight interleaved partial sums that are added pairwise, as in the other
 * distances:
 *		mean(x)		= sum of x_i / dims
 *		dot(x, y)	= sum of (x_i - mean(x)) (y_i - mean(y))
 *		correlation	= dot(a, b) / sqrt(dot(a, a) dot(b, b)), -1 .. 1
 * The distance is NaN if all elements of one of the vectors are equal.
 */
extern double gv_set_distance(GvSetMetric metric, const float *a,
							  const float *b, int32_t dims);
extern double gv_distance_pearson(const float *a, const float *b,
								  int32_t dims);

/*
 * Returns the number of slices of a set or of a part (KMEANS).
 */
static inline int32_t
gv_set_nslices(const GvSetSpec *spec)
{
	return spec->nslices > 0 ? spec->nslices : GV_SET_SLICES;
}

/*
 * Returns the number of the first row of the i-th slice of a set or of a part,
 * counted from the first row of the part.  With i = gv_set_nslices(spec) this
 * is the number of rows of the part.
 */
static inline int64_t
gv_set_slice(const GvSetSpec *spec, int32_t i)
{
	return spec->nrows * (spec->first_slice + i) / GV_SET_SLICES -
		spec->nrows * spec->first_slice / GV_SET_SLICES;
}

/*
 * A cluster after a pass of k-means.  gv_assign computes the distance of the
 * farthest row; the distance is 0 if no row has a distance above 0.  If several
 * rows are equally far, the first one is the farthest.
 */
typedef struct GvSetCluster
{
	double		error;
	int64_t		size;
	float		far_distance;	/* squared */
	uint32_t	farthest;		/* where the farthest row is: a number of the
								 * engine's, or a part */
} GvSetCluster;

/* The farthest row of a cluster becomes the centroid of another cluster. */
typedef struct GvSetReseed
{
	int32_t		from;
	int32_t		to;
} GvSetReseed;

/*
 * For engines and for those who divide sets: ends a pass of k-means.  Merges
 * the clusters [n][k] of n parts, n = 1, 2, 4 or 8, in the first k of them, and
 * sets *done except for done->again.
 *
 * After the last pass, order [found] are the clusters that have rows.  After
 * other passes, returns the number of reseeds, which give centroids to clusters
 * that have no rows or, in a balanced set, few rows.  The caller first moves
 * the centroids of clusters that have rows to their means (gv_set_mean), and
 * then reseeds.
 *
 * Some clusters take a row and others give one.  The i-th cluster that takes
 * gets the farthest row of the i-th cluster that gives as its centroid.  If
 * more clusters take than give, the last ones that take keep their centroids.
 * No cluster both takes and gives.
 *
 *	takes		a cluster without rows or, in a balanced set, with fewer rows
 *				than a quarter of the mean size, which is nrows / k.  Clusters
 *				take in ascending order of numbers.
 *	gives		a cluster whose farthest row has a distance above 0, and which,
 *				in a balanced set, has more rows than the mean size.  Clusters
 *				give in descending order of errors or, in a balanced set, of
 *				sizes; then in the order of numbers.
 *
 * reseeds [k], order [k]
 */
extern int32_t gv_set_end_pass(const GvSetSpec *spec, GvSetCluster *clusters,
							   int32_t n, GvSetReseed *reseeds, int32_t *order,
							   GvSetDone *done);

/*
 * Moves a centroid [dims] to the mean of its `size` rows, size > 0.  sums are
 * the sums [dims] of n parts, `stride` numbers apart, and are overwritten.
 */
extern void gv_set_mean(double *sums, int32_t n, size_t stride, int64_t size,
						int32_t dims, float *centroid);

/*
 * Copies n items of SIZES or CENTROIDS for clusters order [n] of clusters [k]
 * and centroids [k][dims].
 */
extern void gv_set_copy(const int32_t *order, int64_t n, int32_t dims,
						const GvSetCluster *clusters, const float *centroids,
						GvSetOutput output, void *items);

#ifdef GV_TEST_BUILD
/* Injects faults, like gv_mirror_fault. */
extern void gv_set_fault(int64_t n, GvStatus status);
#endif

#endif							/* GV_SET_H */
