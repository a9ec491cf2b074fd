/*
 * gv_builder.h
 *		The engine API's part for builds: an index under construction.
 *
 * gv_engine.h trains and encodes arrays that the caller passes in each call.
 * A device has to keep its arrays, so there are builders.  A builder holds a
 * sample of the rows to be indexed and, once trained, centroids and codebooks,
 * with which it encodes all rows.  gpuvecd calls this API; backends never do.
 *
 * Like the operations of gv_mirror.h, these operations keep state and allocate
 * memory.  They may report GV_NO_MEMORY, after which the builder can only be
 * dropped, and GV_FAILED, after which the process must be restarted because
 * the engine is beyond repair.  They never print, exit or jump out.
 *
 * Threads: one thread at a time may use a builder; different builders, and
 * mirrors, may be used concurrently.
 *
 * Exactness.  Rows are transformed as by gv_transform.  A row's first list is
 * the one with the nearest centroid, as gv_assign finds it.  The second list
 * is the one that gv_soar chooses among the next GV_SOAR_LISTS - 1 nearest
 * lists, ascending by (squared distance, list).  Codes, T and refine records
 * are gv_encode's, gv_refine_encode's and gv_half_encode's, and scores of
 * neighbors are gv_exact's.  All of these are the same on every engine, bit
 * for bit.  Training differs between engines, but has the quality of gv_kmeans
 * and gv_codebooks.  The same input in the same order gives the same centroids
 * again.
 *
 * Several devices.  One device trains a builder.  Copies of the builder on
 * other devices help to encode, and each of them gets other batches.  A row is
 * encoded to the same bits on all devices.  A copy finds the neighbors of the
 * queries among the rows that it has encoded.  So all copies together report
 * every row that one builder would have reported, and more, and the caller
 * must choose from them.
 */
#ifndef GV_BUILDER_H
#define GV_BUILDER_H

#include <string.h>

#include "engine/gv_call.h"
#include "engine/mirror/gv_mirror.h"

typedef struct GvBuilder GvBuilder;

#define GV_MAX_QUERIES		(1 << 14)
#define GV_MAX_DEPTH		512
#define GV_MAX_BATCH_ROWS	(1 << 16)

/* Number of rows of the sample whose residuals train the codebooks. */
#define GV_CODEBOOK_ROWS	8192

/* The properties of a builder that never change. */
typedef struct GvBuilderSpec
{
	int32_t		device;			/* as in GvMirrorSpec */
	GvMetric	metric;
	int32_t		dims;
	int32_t		m;				/* sub-quantizers */
	int32_t		lists_per_row;	/* 1 or 2 */
	int32_t		refine;			/* the kind of refine records to make, a
								 * GvRecords */
	int32_t		nlists;			/* requested, 1 .. 2^24 */
	int32_t		nparents;		/* requested, 1 .. nlists */
	int32_t		nqueries;		/* 0 .. GV_MAX_QUERIES; for each query the
								 * `depth` nearest rows are requested */
	int32_t		depth;			/* 1 .. GV_MAX_DEPTH, or 0 without queries */
	int32_t		batch_rows;		/* largest number of rows that one call
								 * encodes */
	int32_t		iterations;		/* this, max_imbalance and seed are as in
								 * GvKmeans */
	float		scale;			/* a power of two, see GvModel */
	int32_t		unused;			/* 0 */
	double		max_imbalance;
	uint64_t	seed;
	int64_t		sample_rows;	/* largest number of rows of the sample */
} GvBuilderSpec;

/* The purpose for which rows are added. */
typedef enum GvRows
{
	GV_SAMPLE,
	GV_QUERIES
} GvRows;

/* Times of the parts of training, in seconds. */
typedef struct GvTrainTimes
{
	double		lists;			/* k-means of the sample */
	double		splits;			/* the part of `lists` in which clusters that
								 * were too large were split; 0 if not timed */
	int32_t		passes;			/* passes of k-means over the whole sample; 0
								 * if not counted */
	double		parents;
	double		codebooks;
} GvTrainTimes;

/* Returns the seconds since *begun, and sets *begun to the current time. */
static inline double
gv_lap(double *begun)
{
	double		now = gv_seconds();
	double		lap = now - *begun;

	*begun = now;
	return lap;
}

/* The outcome of training. */
typedef struct GvTrained
{
	int32_t		nlists;
	int32_t		nparents;
	GvTrainTimes times;
} GvTrained;

/*
 * A row that is one of the `depth` rows nearest to a query, among all rows
 * that the builder has encoded so far.
 */
typedef struct GvNeighbor
{
	int32_t		query;
	int32_t		row;			/* number in the batch */
	float		score;			/* as gv_exact computes it */
} GvNeighbor;

/* The result of encoding n rows.  All arrays are the caller's. */
typedef struct GvEncoded
{
	int32_t    *lists;			/* [n][lists_per_row]; -1 if the row has no
								 * second list */
	float	   *t;				/* [n][lists_per_row]; 0 if there is no list */
	uint8_t    *codes;			/* [n][lists_per_row][gv_code_bytes(m)]; 0 if
								 * there is no list */
	float	   *min;			/* [n]; this and the next three arrays are the
								 * refine records; all four are NULL if no
								 * refine records are made */
	float	   *step;			/* [n]; min and step are 0 for records in half
								 * precision */
	float	   *error;			/* [n] */
	uint8_t    *records;		/* [n][dims] codes; for records in half
								 * precision, uint16_t [n][dims] values */
	GvNeighbor *neighbors;		/* [gv_builder_most_neighbors], ascending by
								 * query; the order within a query is
								 * undefined */
	int32_t		nneighbors;		/* out */
} GvEncoded;

/* Returns the largest number of neighbors that a batch of n rows can have. */
static inline int64_t
gv_builder_most_neighbors(const GvBuilderSpec *spec, int32_t n)
{
	return (int64_t) spec->nqueries * (n < spec->depth ? n : spec->depth);
}

/*
 * Returns the size of one block of memory, in bytes, for all arrays of a
 * GvEncoded of n rows.
 */
static inline uint64_t
gv_encoded_bytes(const GvBuilderSpec *spec, int32_t n, int64_t nneighbors)
{
	uint64_t	posting = 8 + (uint64_t) gv_code_bytes(spec->m);
	uint64_t	record = spec->refine == GV_RECORDS_NONE ? 0 :
	12 + gv_record_code_bytes((GvRecords) spec->refine, spec->dims);

	return (uint64_t) n * ((uint64_t) spec->lists_per_row * posting + record) +
		(uint64_t) nneighbors * sizeof(GvNeighbor);
}

/*
 * Points the arrays of *encoded into one block of memory.  Arrays of 4-byte
 * words come first, then 2-byte ones and bytes, so that all are aligned.
 */
static inline void
gv_encoded_open(const GvBuilderSpec *spec, void *memory, int32_t n,
				int64_t nneighbors, GvEncoded *encoded)
{
	size_t		postings = (size_t) n * (size_t) spec->lists_per_row;
	size_t		records = spec->refine != GV_RECORDS_NONE ? (size_t) n : 0;
	char	   *next = (char *) memory;

	memset(encoded, 0, sizeof(*encoded));
	encoded->lists = (int32_t *) next;
	next += postings * sizeof(int32_t);
	encoded->t = (float *) next;
	next += postings * sizeof(float);
	if (records > 0)
	{
		encoded->min = (float *) next;
		encoded->step = encoded->min + records;
		encoded->error = encoded->step + records;
		next += 3 * records * sizeof(float);
	}
	encoded->neighbors = (GvNeighbor *) next;
	next += (size_t) nneighbors * sizeof(GvNeighbor);
	if (records > 0)
	{
		encoded->records = (uint8_t *) next;
		next += records * gv_record_code_bytes((GvRecords) spec->refine,
											   spec->dims);
	}
	encoded->codes = (uint8_t *) next;
}

/*
 * Returns whether a builder, once trained, can encode n rows into these
 * arrays.
 */
static inline bool
gv_builder_can_encode(const GvBuilderSpec *spec, const GvTrained *trained,
					  int32_t n, const GvEncoded *encoded)
{
	return trained->nlists > 0 && n <= spec->batch_rows &&
		(spec->refine != GV_RECORDS_NONE) == (encoded->min != NULL);
}

/* Returns the number of elements of a trained builder's array. */
static inline int64_t
gv_builder_array_length(const GvBuilderSpec *spec, const GvTrained *trained,
						GvArray array)
{
	GvMirrorSpec mirror;

	memset(&mirror, 0, sizeof(mirror));
	mirror.dims = spec->dims;
	mirror.nlists = trained->nlists;
	mirror.nparents = trained->nparents;
	return gv_array_length(&mirror, array);
}

/* The functions of one engine; the functions below call them. */
typedef struct GvBuilderBackend
{
	const char *name;

	int64_t		(*size) (const GvBuilderSpec *spec);
	GvStatus	(*create) (const GvBuilderSpec *spec, const float *mean,
						   GvBuilder **builder);
	void		(*drop) (GvBuilder *builder);
	GvStatus	(*put_rows) (GvBuilder *builder, GvRows kind,
							 const float *rows, int32_t n);
	GvStatus	(*train) (GvBuilder *builder, GvTrained *trained,
						  const GvStop *stop);
	GvStatus	(*copy) (GvBuilder *builder, const GvBuilderSpec *spec,
						 GvBuilder **copy);
	GvStatus	(*get_array) (GvBuilder *builder, GvArray array,
							  int64_t first, int64_t n, void *values);
	GvStatus	(*encode) (GvBuilder *builder, const float *rows, int32_t n,
						   GvEncoded *encoded, const GvStop *stop);
	GvStatus	(*encode_sample) (GvBuilder *builder, int64_t first,
								  int32_t n, GvEncoded *encoded,
								  const GvStop *stop);
} GvBuilderBackend;

extern const GvBuilderBackend gv_cuda_builders; /* in gpu/, if it is built */

/*
 * Sets the engine that this process uses.  Must be called only once, and after
 * gv_mirrors_open was called with the engine of the same name.
 */
extern GvStatus gv_builders_open(const GvBuilderBackend *engine);

/* Returns about how many bytes a builder takes, or 0 for an invalid spec. */
extern int64_t gv_builder_size(const GvBuilderSpec *spec);

/* Creates a builder.  mean [dims] is the mean of the sample (see GvModel). */
extern GvStatus gv_builder_create(const GvBuilderSpec *spec,
								  const float *mean, GvBuilder **builder);
extern void gv_builder_drop(GvBuilder *builder);

/*
 * Adds raw rows [n][dims] to the sample, or to the queries.  Returns
 * GV_INVALID if a row is not finite, if there would be more rows than the spec
 * says, or if the builder is trained already.
 */
extern GvStatus gv_builder_put_rows(GvBuilder *builder, GvRows kind,
									const float *rows, int32_t n);

/*
 * Trains lists, grouped by parents, and codebooks from the sample.  Returns
 * GV_INVALID if there is no sample, if queries are missing, or if the builder
 * is trained already.
 */
extern GvStatus gv_builder_train(GvBuilder *builder, GvTrained *trained,
								 const GvStop *stop);

/*
 * Creates a copy of a builder on another device, or on the same one.  The copy
 * has the builder's trained arrays and queries, but none of its rows, so it
 * only encodes rows that are passed to it.  `spec` must come from
 * gv_builder_copy_spec.  Returns GV_INVALID if the builder is not trained.
 */
extern GvBuilderSpec gv_builder_copy_spec(const GvBuilderSpec *spec,
										  int32_t device);
extern GvStatus gv_builder_copy(GvBuilder *builder, const GvBuilderSpec *spec,
								GvBuilder **copy);

/* Copies elements first .. first + n - 1 of an array of a trained builder. */
extern GvStatus gv_builder_get_array(GvBuilder *builder, GvArray array,
									 int64_t first, int64_t n, void *values);

/*
 * Encodes raw rows [n][dims], n <= batch_rows, into *encoded (see GvEncoded).
 * Returns GV_INVALID if a row is not finite or the builder is not trained.
 */
extern GvStatus gv_builder_encode(GvBuilder *builder, const float *rows,
								  int32_t n, GvEncoded *encoded,
								  const GvStop *stop);

/*
 * Like gv_builder_encode, for rows first .. first + n - 1 of the sample,
 * numbered in the order in which they were added.  Returns GV_INVALID if the
 * sample does not have all of these rows.
 */
extern GvStatus gv_builder_encode_sample(GvBuilder *builder, int64_t first,
										 int32_t n, GvEncoded *encoded,
										 const GvStop *stop);

#ifdef GV_TEST_BUILD
/* Injects a fault, as gv_mirror_fault does. */
extern void gv_builder_fault(int64_t n, GvStatus status);
#endif

#endif							/* GV_BUILDER_H */
