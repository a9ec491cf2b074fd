/*
 * clustering.c
 *		gpuvec_kmeans, which clusters the vectors of a table, and k-means of
 *		vectors in memory.
 *
 * Every iteration needs all rows.  So the table is read once, and its vectors
 * are kept in a store, which is a file if they do not fit into memory.
 *
 * The initial centroids (seeds) are k rows drawn at random without
 * replacement.  A row's rank is a hash of its vector and of the user's seed
 * number, and the rows with the k smallest ranks are chosen.  Equal vectors
 * have equal ranks, and of rows with equal ranks only one is chosen, so the
 * seeds are different vectors.  The choice depends only on the seed number and
 * the rows, and requires only one reading of the table.
 *
 * The engine squares distances in single precision.  If squares would overflow
 * or underflow, all vectors are multiplied by a power of two before the engine
 * gets them, and the centroids that the engine returns are divided by that
 * power.
 */
#include "postgres.h"

#include <math.h>

#include "common/hashfn.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/buffile.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "am/types/sqldistance.h"
#include "page/sort.h"
#include "set/set.h"

/*
 * Elements should be less than 2^MOST_EXPONENT.  Then squared distances are
 * less than 2^126, with up to 16,000 dimensions.  If two elements of about
 * 2^LEAST_EXPONENT differ in the last bit, their squared distance is 2^-126,
 * so elements should not be smaller.
 */
#define MOST_EXPONENT	55
#define LEAST_EXPONENT	(-39)

/* Largest number of centroids that are fetched from a set at a time. */
#define RESULTS			4096

/*
 * Vectors that are read repeatedly.  They are in memory or, if they need more
 * than maintenance_work_mem, in a temporary file.
 */
typedef struct VectorStore
{
	int			dims;			/* 0: the store is empty */
	int64		nrows;
	int64		capacity;		/* number of rows that `vectors` can hold */
	float	   *vectors;		/* [capacity][dims] all rows or, if there is a
								 * file, a buffer */
	BufFile    *file;			/* has all rows, if not NULL */
} VectorStore;

/* A row that may become a seed. */
typedef struct SeedRow
{
	uint64		rank;
	int64		position;
} SeedRow;

/* The choice of k seeds among rows that come one by one. */
typedef struct Seeds
{
	int			k;
	uint64		seed;			/* the user's seed number */
	uint64		limit;			/* ranks above this are not among the k
								 * smallest */
	SeedRow    *rows;			/* [capacity] the rows with the k smallest
								 * ranks so far, and some rows with larger
								 * ranks */
	int64		n;
	int64		capacity;		/* at least 2k */
} Seeds;

/* The magnitude of vectors, from which their scale is computed. */
typedef struct Magnitude
{
	int			most;			/* largest exponent of all elements */
	int64		sum;			/* sum of each vector's largest exponent */
	int64		n;				/* vectors that are not 0 */
} Magnitude;

/* A clustering of the rows of a table, or of vectors in memory. */
typedef struct KMeans
{
	GvSetSpec	spec;
	VectorStore store;
	const int64 *seeds;			/* [k] positions of the seeds in the store */
	IvfpqLocalSet *work;
	int			exponent;		/* the engine gets rows times 2^exponent */
	float	   *scaled;			/* [a batch][dims] buffer for scaled rows, if
								 * the exponent is not 0 */
	GvSetDone	done;			/* after the last pass */

	/* of a table: the function's result */
	ReturnSetInfo *rsinfo;		/* NULL: the vectors were in memory */
	int			reported;		/* number of passes whose error was reported */
	int64		taken;			/* number of centroids that were returned */

	/* of vectors in memory: the result */
	float	   *centroids;		/* [k][dims] */
} KMeans;

PG_FUNCTION_INFO_V1(gpuvec_kmeans);

static Size
row_bytes(const VectorStore *store)
{
	return store->dims * sizeof(float);
}

/*
 * Moves the store's rows to a temporary file.  Rows that are added later go to
 * the file, too.
 */
static void
spill(VectorStore *store)
{
	store->file = BufFileCreateTemp(false);
	for (int64 i = 0; i < store->nrows; i++)
	{
		CHECK_FOR_INTERRUPTS();
		BufFileWrite(store->file, store->vectors + i * store->dims,
					 row_bytes(store));
	}
	pfree(store->vectors);
	store->capacity = IvfpqRowsAtATime(store->dims);
	store->vectors = palloc(store->capacity * row_bytes(store));
}

/* Adds a vector.  All vectors have the same number of dimensions. */
static void
store_add(VectorStore *store, const float *vector, int dims)
{
	if (store->dims == 0)
	{
		store->dims = dims;
		store->capacity = 1;
		store->vectors = palloc(row_bytes(store));
	}
	if (store->file == NULL && store->nrows == store->capacity)
	{
		int64		most = Max((Size) maintenance_work_mem * 1024 /
							   row_bytes(store), 1);

		if (store->nrows == most)
			spill(store);
		else
		{
			store->capacity = Min(2 * store->capacity, most);
			store->vectors = repalloc_huge(store->vectors,
										   store->capacity * row_bytes(store));
		}
	}
	if (store->file != NULL)
		BufFileWrite(store->file, unconstify(float *, vector),
					 row_bytes(store));
	else
		memcpy(store->vectors + store->nrows * dims, vector, row_bytes(store));
	store->nrows++;
}

/*
 * Reads at most n rows, beginning with row number `first`, and sets *vectors
 * to them.  Returns the number of rows that were read, which is at least one.
 * *vectors is valid until the next call.
 */
static int
store_read(VectorStore *store, int64 first, int64 n, const float **vectors)
{
	CHECK_FOR_INTERRUPTS();
	n = Min(Min(n, IvfpqRowsAtATime(store->dims)), store->nrows - first);
	Assert(n > 0);
	if (store->file == NULL)
	{
		*vectors = store->vectors + first * store->dims;
		return (int) n;
	}
	if (BufFileSeek(store->file, 0, first * row_bytes(store), SEEK_SET) != 0 ||
		BufFileRead(store->file, store->vectors, n * row_bytes(store)) !=
		n * row_bytes(store))
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read rows from temporary file")));
	*vectors = store->vectors;
	return (int) n;
}

static void
store_end(VectorStore *store)
{
	if (store->file != NULL)
		BufFileClose(store->file);
	if (store->vectors != NULL)
		pfree(store->vectors);
}

static void
begin_seeds(Seeds *seeds, int k, int seed)
{
	memset(seeds, 0, sizeof(*seeds));
	seeds->k = k;
	seeds->seed = (uint32) seed;
	seeds->limit = PG_UINT64_MAX;
	seeds->capacity = Max(2 * (int64) k, 1024);
	seeds->rows = palloc_extended(seeds->capacity * sizeof(SeedRow),
								  MCXT_ALLOC_HUGE);
}

static int
compare_ranks(const void *a, const void *b)
{
	const SeedRow *x = a;
	const SeedRow *y = b;

	CHECK_FOR_INTERRUPTS();
	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return x->position < y->position ? -1 : x->position > y->position;
}

/*
 * Keeps only the rows with the k smallest ranks.  Of rows with equal ranks,
 * keeps only the first one.
 */
static void
compact(Seeds *seeds)
{
	int64		kept = 0;

	qsort(seeds->rows, seeds->n, sizeof(SeedRow), compare_ranks);
	for (int64 i = 0; i < seeds->n && kept < seeds->k; i++)
		if (kept == 0 ||
			seeds->rows[kept - 1].rank != seeds->rows[i].rank)
			seeds->rows[kept++] = seeds->rows[i];
	seeds->n = kept;
	if (kept == seeds->k)
		seeds->limit = seeds->rows[kept - 1].rank;
}

/*
 * Makes the row at a position, which has this vector, a candidate for a seed,
 * unless its rank is too large.
 */
static void
offer_seed(Seeds *seeds, int64 position, const float *vector, int dims)
{
	uint64		rank = hash_bytes_extended((const unsigned char *) vector,
										   dims * (int) sizeof(float),
										   seeds->seed);

	if (rank > seeds->limit)
		return;
	if (seeds->n == seeds->capacity)
		compact(seeds);
	seeds->rows[seeds->n].rank = rank;
	seeds->rows[seeds->n].position = position;
	seeds->n++;
}

/*
 * Returns the positions [k] of the chosen rows, ascending.  If there are fewer
 * than k different vectors, some positions occur more than once.
 */
static const int64 *
end_seeds(Seeds *seeds)
{
	int64	   *positions = palloc_extended(seeds->k * sizeof(int64),
											MCXT_ALLOC_HUGE);

	compact(seeds);
	for (int i = 0; i < seeds->k; i++)
		positions[i] = seeds->rows[i % seeds->n].position;
	IvfpqSortNumbers((uint64 *) positions, seeds->k);
	pfree(seeds->rows);
	return positions;
}

static void
note_magnitude(Magnitude *magnitude, const float *vector, int dims)
{
	float		largest = 0.0f;
	int			exponent;

	for (int i = 0; i < dims; i++)
		largest = Max(largest, fabsf(vector[i]));
	if (largest == 0.0f)
		return;
	(void) frexp(largest, &exponent);
	magnitude->most = magnitude->n == 0 ? exponent :
		Max(magnitude->most, exponent);
	magnitude->sum += exponent;
	magnitude->n++;
}

/*
 * Returns the exponent of the power of two by which vectors are multiplied.
 * For most tables the exponent is 0.  If vectors are too large, they are made
 * no smaller than is necessary, because small elements lose bits.  They are
 * never made so small that an average vector would underflow, even if the
 * largest vectors then still overflow.  If vectors are too small, they are
 * made larger, as far as the largest vector allows.
 */
static int
exponent_for(const Magnitude *magnitude)
{
	int			headroom = MOST_EXPONENT - magnitude->most;
	int			average;

	if (magnitude->n == 0)
		return 0;
	average = (int) (magnitude->sum / magnitude->n);
	if (headroom < 0)
		return Max(headroom, Min(LEAST_EXPONENT - average, 0));
	if (average < LEAST_EXPONENT)
		return Min(-average, headroom);
	return 0;
}

/* Multiplies n numbers by 2^exponent.  `to` may be the same as `from`. */
static void
scale(const float *from, int64 n, int exponent, float *to)
{
	double		factor = ldexp(1.0, exponent);

	if (exponent == 0 && to == from)
		return;
	for (int64 i = 0; i < n; i++)
		to[i] = (float) (from[i] * factor);
}

/* Reads the table into the store, and chooses the seeds and the scale. */
static void
read_rows(KMeans *run, IvfpqTable *table, int seed)
{
	Seeds		seeds;
	Magnitude	magnitude = {0};

	begin_seeds(&seeds, run->spec.k, seed);
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_ROWS, 0);
	while (IvfpqTableNext(table))
	{
		const float *vector = IvfpqTableFloats(table);

		note_magnitude(&magnitude, vector, table->dims);
		offer_seed(&seeds, table->next - 1, vector, table->dims);
		store_add(&run->store, vector, table->dims);
		if (table->next % 4096 == 0)
			IvfpqProgressDone(table->next);
	}
	run->spec.dims = table->dims;
	run->spec.nrows = run->store.nrows;
	if (run->spec.k > run->spec.nrows)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"k\" must not exceed the number of rows"),
				 errdetail("Table \"%s\" has %lld rows with a vector.",
						   RelationGetRelationName(table->rel),
						   (long long) run->spec.nrows)));
	run->seeds = end_seeds(&seeds);
	run->exponent = exponent_for(&magnitude);
	if (run->exponent != 0)
		run->scaled = palloc(IVFPQ_BATCH_BYTES);
}

/*
 * Passes at most n vectors of the store, beginning with number `first`, to the
 * set, multiplied by the scale for the engine.  Returns the number of vectors
 * that were passed, or 0 if gpuvecd failed.
 */
static int64
put_vectors(KMeans *run, GvSetInput input, int64 first, int64 n)
{
	const float *vectors;

	n = store_read(&run->store, first, n, &vectors);
	if (run->exponent != 0)
	{
		scale(vectors, n * run->spec.dims, run->exponent, run->scaled);
		vectors = run->scaled;
	}
	return IvfpqLocalSetPut(run->work, input, vectors, n) ? n : 0;
}

/* Passes the seeds to the set.  Returns false if gpuvecd failed. */
static bool
put_seeds(KMeans *run)
{
	for (int i = 0; i < run->spec.k; i++)
		if (put_vectors(run, GV_SET_SEEDS, run->seeds[i], 1) == 0)
			return false;
	return true;
}

/*
 * Passes all rows to the set, for the next pass.  Returns false if gpuvecd
 * failed.
 */
static bool
put_rows(KMeans *run)
{
	int64		nrows = run->spec.nrows;
	int64		put = 0;

	while (put < nrows)
	{
		int64		n = put_vectors(run, GV_SET_ROWS, put, nrows - put);

		if (n == 0)
			return false;
		put += n;
		IvfpqProgressDone(run->done.passes * nrows + put);
	}
	return true;
}

/*
 * Reports the error of the last pass to the user.  If gpuvecd failed, this
 * session does the passes again, but does not report their errors again.
 */
static void
report(KMeans *run)
{
	const GvSetDone *done = &run->done;

	IvfpqProgressDone(done->passes * run->spec.nrows);
	if (run->rsinfo == NULL || done->passes <= run->reported)
		return;
	run->reported = done->passes;
	ereport(NOTICE,
			(errmsg_plural("error after %d iteration: %g",
						   "error after %d iterations: %g",
						   (unsigned long) done->passes - 1,
						   done->passes - 1,
						   ldexp(done->error, -2 * run->exponent))));
}

/* Does all passes over the rows.  Returns false if gpuvecd failed. */
static bool
run_passes(KMeans *run)
{
	memset(&run->done, 0, sizeof(run->done));
	while (!run->done.finished)
	{
		if (((run->done.passes == 0 || run->done.again) && !put_rows(run)) ||
			!IvfpqLocalSetRun(run->work, &run->done))
			return false;
		report(run);
	}
	return true;
}

/*
 * Adds a row (centroid_id, centroid, size) to the result of the SQL function
 * for each centroid that was not returned yet.  Returns false if gpuvecd
 * failed.
 */
static bool
take_results(KMeans *run)
{
	int			dims = run->spec.dims;
	int			found = run->done.found;
	int64		batch = Min(IvfpqRowsAtATime(dims), RESULTS);
	float	   *centroids = palloc(batch * dims * sizeof(float));
	int64	   *sizes = palloc(batch * sizeof(int64));

	while (run->taken < found)
	{
		int64		n = Min(batch, found - run->taken);

		if (!IvfpqLocalSetGet(run->work, GV_SET_CENTROIDS, run->taken, n,
							  centroids) ||
			!IvfpqLocalSetGet(run->work, GV_SET_SIZES, run->taken, n, sizes))
			return false;
		scale(centroids, n * dims, -run->exponent, centroids);
		for (int64 i = 0; i < n; i++)
		{
			Datum		values[3];
			bool		nulls[3] = {false};

			values[0] = Int32GetDatum((int32) ++run->taken);
			values[1] = PointerGetDatum(IvfpqMakeReal(centroids + i * dims,
													  dims));
			values[2] = Int64GetDatum(sizes[i]);
			tuplestore_putvalues(run->rsinfo->setResult, run->rsinfo->setDesc,
								 values, nulls);
			pfree(DatumGetPointer(values[1]));
		}
	}
	return true;
}

/*
 * Clusters the rows at gpuvecd or in this session.  Returns false if gpuvecd
 * failed.
 */
static bool
try_to_cluster(KMeans *run, IvfpqLocalSetPlace place)
{
	bool		worked;

	run->work = IvfpqLocalSetBegin(&run->spec, place);
	worked = put_seeds(run) && run_passes(run) &&
		(run->rsinfo != NULL ? take_results(run) :
		 IvfpqLocalSetGet(run->work, GV_SET_CENTROIDS, 0, run->done.found,
						  run->centroids));
	IvfpqLocalSetEnd(run->work);
	return worked;
}

/*
 * Clusters the rows at gpuvecd if that is worthwhile.  Otherwise, or if
 * gpuvecd fails, clusters the rows in this session.
 */
static void
cluster(KMeans *run)
{
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_CLUSTERING,
						 (run->spec.iterations + 1) * run->spec.nrows);
	if (!try_to_cluster(run, IvfpqLocalSetChoose(&run->spec)))
		(void) try_to_cluster(run, IVFPQ_WORK_HERE);
}

int
IvfpqCluster (float *vectors, int n, int dims, int k, int iterations, int seed,
			  float *centroids)
{
	KMeans		run = {
		.spec = {.kind = GV_SET_KMEANS, .dims = dims, .k = k,
		.iterations = iterations, .nrows = n},
		.store = {.dims = dims, .nrows = n, .vectors = vectors},
		.centroids = centroids
	};
	Magnitude	magnitude = {0};
	Seeds		seeds;
	int			exponent;

	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		note_magnitude(&magnitude, vectors + (Size) i * dims, dims);
	}
	exponent = exponent_for(&magnitude);
	scale(vectors, (int64) n * dims, exponent, vectors);
	begin_seeds(&seeds, k, seed);
	for (int i = 0; i < n; i++)
		offer_seed(&seeds, i, vectors + (Size) i * dims, dims);
	run.seeds = end_seeds(&seeds);
	cluster(&run);
	scale(centroids, (int64) run.done.found * dims, -exponent, centroids);
	return run.done.found;
}

/*
 * gpuvec_kmeans(rel regclass, vector_column name, k integer,
 *		iterations integer, seed integer, balanced boolean)
 */
Datum
gpuvec_kmeans(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	KMeans		run = {.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo};
	IvfpqTable	table;

	run.spec.kind = GV_SET_KMEANS;
	run.spec.k = PG_GETARG_INT32(2);
	run.spec.iterations = PG_GETARG_INT32(3);
	run.spec.balanced = PG_GETARG_BOOL(5);
	IvfpqCheckRange("k", run.spec.k, 1, GV_SET_MAX_CLUSTERS,
					"\"k\" is the number of clusters.");
	IvfpqCheckRange("iterations", run.spec.iterations, 0,
					GV_SET_MAX_PASSES - 1,
					"For most tables, 20 iterations are enough.");
	InitMaterializedSRF(fcinfo, 0);
	IvfpqTableOpen(&table, relid, NULL, NameStr(*PG_GETARG_NAME(1)));
	IvfpqProgressBegin(IVFPQ_PROGRESS_KMEANS, relid);
	read_rows(&run, &table, PG_GETARG_INT32(4));
	cluster(&run);
	store_end(&run.store);
	IvfpqProgressEnd();
	IvfpqTableClose(&table);
	return (Datum) 0;
}
