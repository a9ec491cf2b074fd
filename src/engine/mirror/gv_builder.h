/*
 * gv_builder.h
 *		The engine API's part for builds: an index in the making.
 *
 * gv_engine.h trains and encodes arrays that the caller brings each time.  A
 * device has to keep them: a builder holds a sample of the rows to come and,
 * once trained, centroids and codebooks, with which it encodes all rows that
 * pass by.  gpuvecd calls this; backends never do.
 *
 * Like those of gv_mirror.h these operations keep state and take memory, and
 * may report GV_NO_MEMORY (the builder can only be dropped then) and GV_FAILED
 * (the engine is beyond repair: the process must be restarted).  They never
 * print, exit or jump out.
 *
 * Threads: one at a time for each builder; different builders, and mirrors,
 * may work side by side.
 *
 * Exactness.  Rows are transformed as by gv_transform.  A row's first list
 * is the nearest centroid, as gv_assign finds it; its second the one that
 * gv_soar takes of the next GV_SOAR_LISTS - 1 nearest ones, ascending by
 * (squared distance, list).  Codes, T and refine records are gv_encode's,
 * gv_refine_encode's and gv_half_encode's, scores of neighbors gv_exact's.
 * All this bit for bit, on every engine.  Training is an engine's own, of the
 * quality of gv_kmeans and gv_codebooks; the same input in the same order
 * gives the same centroids again.
 *
 * Several devices.  One trains; copies of its builder on others encode, each
 * its own batches.  A row is encoded to the same bits on all of them.  Which
 * rows are near to queries a copy says of its own rows only: they are all of
 * those that one builder would have named, and more, for the caller to choose
 * from.
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

/* Rows of the sample whose residuals train the codebooks. */
#define GV_CODEBOOK_ROWS	8192

/* The properties of a builder that never change. */
typedef struct GvBuilderSpec
{
	int32_t		device;			/* as in GvMirrorSpec */
	GvMetric	metric;
	int32_t		dims;
	int32_t		m;				/* sub-quantizers */
	int32_t		lists_per_row;	/* lists of a row, 1 or 2 */
	int32_t		refine;			/* GvRecords that are made as well */
	int32_t		nlists;			/* requested, 1 .. 2^24 */
	int32_t		nparents;		/* requested, 1 .. nlists */
	int32_t		nqueries;		/* 0 .. GV_MAX_QUERIES, whose `depth` nearest
								 * rows are looked for */
	int32_t		depth;			/* 1 .. GV_MAX_DEPTH, or 0 without queries */
	int32_t		batch_rows;		/* encoded at once, at most */
	int32_t		iterations;		/* these three as in GvKmeans */
	float		scale;			/* a power of two, see GvModel */
	int32_t		unused;			/* 0 */
	double		max_imbalance;
	uint64_t	seed;
	int64_t		sample_rows;	/* at most */
} GvBuilderSpec;

/* The use of rows. */
typedef enum GvRows
{
	GV_SAMPLE,
	GV_QUERIES
} GvRows;

/* Where the time of training went, in seconds. */
typedef struct GvTrainTimes
{
	double		lists;			/* k-means of the sample */
	double		splits;			/* of that, dividing clusters that are too
								 * big; 0 where it is not timed */
	int32_t		passes;			/* over the whole sample; likewise */
	double		parents;
	double		codebooks;
} GvTrainTimes;

/* Seconds since *begun, which becomes now. */
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

/* A row that is among the nearest to a query of all rows encoded so far. */
typedef struct GvNeighbor
{
	int32_t		query;
	int32_t		row;			/* of the batch */
	float		score;			/* as of gv_exact */
} GvNeighbor;

/* n rows encoded; all arrays are the caller's. */
typedef struct GvEncoded
{
	int32_t    *lists;			/* [n][lists_per_row], -1: there is no second
								 * one */
	float	   *t;				/* [n][lists_per_row], 0 where there is no
								 * list */
	uint8_t    *codes;			/* [n][lists_per_row][gv_code_bytes(m)],
								 * likewise */
	float	   *min;			/* [n] refine records; or NULL, all four */
	float	   *step;			/* [n], both 0 in half precision */
	float	   *error;
	uint8_t    *records;		/* [n][dims] their codes, or uint16_t
								 * [n][dims] */
	GvNeighbor *neighbors;		/* [gv_builder_most_neighbors], queries
								 * ascending; those of one query in any order */
	int32_t		nneighbors;		/* out */
} GvEncoded;

/* Neighbors that a batch of n rows has at most. */
static inline int64_t
gv_builder_most_neighbors(const GvBuilderSpec *spec, int32_t n)
{
	return (int64_t) spec->nqueries * (n < spec->depth ? n : spec->depth);
}

/* Bytes of a GvEncoded of n rows in one block of memory. */
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
 * Points it there: 4-byte words first, then 2-byte ones and bytes, so all are
 * aligned.
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

/* May a builder that was trained so encode n rows into these arrays? */
static inline bool
gv_builder_can_encode(const GvBuilderSpec *spec, const GvTrained *trained,
					  int32_t n, const GvEncoded *encoded)
{
	return trained->nlists > 0 && n <= spec->batch_rows &&
		(spec->refine != GV_RECORDS_NONE) == (encoded->min != NULL);
}

/* Elements of an array of a trained builder. */
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

/* One engine, complete; the functions below call it. */
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

extern const GvBuilderBackend gv_cuda_builders; /* gpu/, where it is built */

/*
 * gv_builders_open: take this engine from now on, once a process and after
 * gv_mirrors_open took the one of the same name.
 */
extern GvStatus gv_builders_open(const GvBuilderBackend *engine);

/* gv_builder_size: bytes that a builder takes, about; 0: invalid spec. */
extern int64_t gv_builder_size(const GvBuilderSpec *spec);

/* gv_builder_create: mean [dims] of the sample, see GvModel. */
extern GvStatus gv_builder_create(const GvBuilderSpec *spec,
								  const float *mean, GvBuilder **builder);
extern void gv_builder_drop(GvBuilder *builder);

/*
 * gv_builder_put_rows: add raw rows [n][dims] to the sample, or to the
 * queries.  GV_INVALID when one is not finite, there are more than the spec
 * says, or the builder is trained.
 */
extern GvStatus gv_builder_put_rows(GvBuilder *builder, GvRows kind,
									const float *rows, int32_t n);

/*
 * gv_builder_train: lists from the sample, grouped by parents, and codebooks.
 * GV_INVALID without a sample, without all queries, or the second time.
 */
extern GvStatus gv_builder_train(GvBuilder *builder, GvTrained *trained,
								 const GvStop *stop);

/*
 * gv_builder_copy: a builder on another device, or this one, that has what
 * this one was trained to, and its queries, but none of its rows.  spec is
 * that of gv_builder_copy_spec.  GV_INVALID when nothing is trained.
 */
extern GvBuilderSpec gv_builder_copy_spec(const GvBuilderSpec *spec,
										  int32_t device);
extern GvStatus gv_builder_copy(GvBuilder *builder, const GvBuilderSpec *spec,
								GvBuilder **copy);

/* gv_builder_get_array: elements first .. first + n - 1, once trained. */
extern GvStatus gv_builder_get_array(GvBuilder *builder, GvArray array,
									 int64_t first, int64_t n, void *values);

/*
 * gv_builder_encode: raw rows [n][dims], n <= batch_rows; see GvEncoded.
 * GV_INVALID when one is not finite or nothing is trained.
 */
extern GvStatus gv_builder_encode(GvBuilder *builder, const float *rows,
								  int32_t n, GvEncoded *encoded,
								  const GvStop *stop);

/*
 * gv_builder_encode_sample: the same for rows first .. first + n - 1 of the
 * sample, numbered as they were put in.  GV_INVALID when there are no such.
 */
extern GvStatus gv_builder_encode_sample(GvBuilder *builder, int64_t first,
										 int32_t n, GvEncoded *encoded,
										 const GvStop *stop);

#ifdef GV_TEST_BUILD
/* Fault injection, as gv_mirror_fault. */
extern void gv_builder_fault(int64_t n, GvStatus status);
#endif

#endif							/* GV_BUILDER_H */
