/*
 * clustering.c
 *		Vectors that are read again and again.
 */
#include "postgres.h"

#include <math.h>

#include "common/hashfn.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "set/setargs.h"
#include "set/settable.h"
#include "storage/buffile.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "am/types/sqldistance.h"
#include "set/set.h"

struct IvfpqStore
{
	int			dims;			/* 0: nothing came */
	int64		nrows;
	int64		capacity;		/* rows that memory holds; of a file: of a
								 * batch */
	float	   *vectors;		/* [capacity][dims] */
	BufFile    *file;			/* with all rows, or NULL */
};

static IvfpqStore *
store_begin(void)
{
	return palloc0(sizeof(IvfpqStore));
}

static Size
row_bytes(const IvfpqStore *store)
{
	return store->dims * sizeof(float);
}

/* Moves the rows in memory to a file, to which later rows go, too. */
static void
spill(IvfpqStore *store)
{
	store->file = BufFileCreateTemp(false);
	for (int64 i = 0; i < store->nrows; i++)
	{
		CHECK_FOR_INTERRUPTS();
		BufFileWrite(store->file, store->vectors + i * store->dims,
					 row_bytes(store));
	}
	pfree(store->vectors);
	store->capacity = Max(IVFPQ_BATCH_BYTES / row_bytes(store), 1);
	store->vectors = palloc(store->capacity * row_bytes(store));
}

/* Room for a row more: twice as much memory, or a file. */
static void
ensure_capacity(IvfpqStore *store)
{
	Size		limit = (Size) maintenance_work_mem * 1024;
	int64		most = Max(limit / row_bytes(store), 1);

	if (store->nrows == most)
		spill(store);
	else
	{
		store->capacity = Min(2 * store->capacity, most);
		store->vectors = repalloc_huge(store->vectors,
									   store->capacity * row_bytes(store));
	}
}

/* All vectors have the same number of dimensions. */
static void
store_add(IvfpqStore *store, const float *vector, int dims)
{
	if (store->dims == 0)
	{
		store->dims = dims;
		store->capacity = 1;
		store->vectors = palloc(row_bytes(store));
	}
	if (store->file == NULL && store->nrows == store->capacity)
		ensure_capacity(store);
	if (store->file != NULL)
	{
		memcpy(store->vectors, vector, row_bytes(store));
		BufFileWrite(store->file, store->vectors, row_bytes(store));
	}
	else
		memcpy(store->vectors + store->nrows * dims, vector, row_bytes(store));
	store->nrows++;
}

static int64
store_rows(const IvfpqStore *store)
{
	return store->nrows;
}

/*
 * Up to n rows from number `first` on; returns how many there are at *vectors,
 * at least one, until the next reading.
 */
static int
store_read(IvfpqStore *store, int64 first, int64 n, const float **vectors)
{
	int64		most = Max(IVFPQ_BATCH_BYTES / row_bytes(store), 1);

	CHECK_FOR_INTERRUPTS();
	n = Min(Min(n, most), store->nrows - first);
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
				 errmsg("could not read rows from a temporary file")));
	*vectors = store->vectors;
	return (int) n;
}

static void
store_end(IvfpqStore *store)
{
	if (store->file != NULL)
		BufFileClose(store->file);
	if (store->vectors != NULL)
		pfree(store->vectors);
	pfree(store);
}

/* ----
 * The seeds of k-means, its first centroids.
 *
 * A row's rank is a hash of its vector and the seed, and those of the k
 * smallest ranks are taken: k rows drawn at random without replacement, which
 * are different vectors, since equal ones have the same rank.  So the choice
 * hangs on the seed and on what the rows are, and one reading is enough.
 */

typedef struct SeedRow
{
	uint64		rank;
	int64		position;
} SeedRow;

struct IvfpqKmeansSeeds
{
	int			k;
	uint64		seed;
	uint64		limit;			/* larger ranks are none of the k smallest */
	SeedRow    *rows;			/* [capacity] the smallest so far, and others */
	int64		n;
	int64		capacity;		/* 2k at least */
};

IvfpqKmeansSeeds *
IvfpqKmeansSeedsBegin(int k, int seed)
{
	IvfpqKmeansSeeds *seeds = palloc0(sizeof(IvfpqKmeansSeeds));

	seeds->k = k;
	seeds->seed = (uint32) seed;
	seeds->limit = PG_UINT64_MAX;
	seeds->capacity = Max(2 * (int64) k, 1024);
	seeds->rows = palloc_extended(seeds->capacity * sizeof(SeedRow),
								  MCXT_ALLOC_HUGE);
	return seeds;
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

/* Keep the k smallest ranks, of equal ones the first row. */
static void
compact(IvfpqKmeansSeeds *seeds)
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

/* The row at that position has that vector. */
void
IvfpqKmeansSeedsOffer(IvfpqKmeansSeeds *seeds, int64 position,
					  const float *vector,
					  int dims)
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
 * All rows were offered: the positions [k] of those taken, ascending.  Where
 * there are fewer different vectors, some come again.
 */
const int64 *
IvfpqKmeansSeedsEnd(IvfpqKmeansSeeds *seeds)
{
	int64	   *positions = palloc_extended(seeds->k * sizeof(int64),
											MCXT_ALLOC_HUGE);

	compact(seeds);
	for (int i = 0; i < seeds->k; i++)
		positions[i] = seeds->rows[i % seeds->n].position;
	qsort(positions, seeds->k, sizeof(int64), IvfpqCompareSigned);
	pfree(seeds->rows);
	pfree(seeds);
	return positions;
}

/* ----
 * Vectors whose squared distances single precision cannot hold.
 *
 * k-means squares distances in single precision.  Where these would overflow,
 * or be lost below its smallest numbers, vectors go to the engine times a
 * power of two, and centroids come back without it.
 */

/*
 * Elements should be below 2 to the power of this: with MOST_EXPONENT, at
 * 16,000 dimensions, squared distances are less than 2^126.  With
 * LEAST_EXPONENT those of elements that differ by the last bit are 2^-126.
 */
#define MOST_EXPONENT	55
#define LEAST_EXPONENT	(-39)

/* Note one more vector. */
void
IvfpqMagnitudeNote(IvfpqMagnitude *magnitude, const float *vector, int dims)
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
 * The exponent of the power of two for such vectors, mostly 0.  Too large ones
 * become no smaller than is needed, for small elements lose bits by it, nor so
 * small that an average vector is lost; then the largest ones overflow.  Too
 * small ones grow, as long as the largest allows.
 */
int
IvfpqMagnitudeScale(const IvfpqMagnitude *magnitude)
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

/* n numbers times a power of two; to may be from, which costs nothing by 1. */
void
IvfpqScale(const float *from, int64 n, int exponent, float *to)
{
	double		factor = ldexp(1.0, exponent);

	if (exponent == 0 && to == from)
		return;
	for (int64 i = 0; i < n; i++)
		to[i] = (float) (from[i] * factor);
}

/* ----
 * gpuvec_kmeans: clusters of a table's vectors.
 *
 * The table is read once, into a store, since every iteration reads all rows.
 */

/* Centroids that are fetched from the engine at a time, at most. */
#define RESULTS			4096

PG_FUNCTION_INFO_V1(gpuvec_kmeans);

typedef struct KMeans
{
	ReturnSetInfo *rsinfo;
	GvSetSpec	spec;
	IvfpqStore *store;
	const int64 *seeds;			/* [k] rows that are the first centroids */
	IvfpqWork  *work;
	int			exponent;		/* the engine gets rows times 2^exponent */
	float	   *scaled;			/* [a batch][dims] where it is not 0 */
	int			reported;		/* passes of which the error was told */
	int64		taken;			/* centroids that were returned */
} KMeans;

/* n vectors of the store as the engine gets them, until the next ones. */
static const float *
scale(const KMeans *run, const float *vectors, int64 n)
{
	if (run->exponent == 0)
		return vectors;
	IvfpqScale(vectors, n * run->spec.dims, run->exponent, run->scaled);
	return run->scaled;
}

/* Read the table and choose first centroids. */
static void
read_rows(KMeans *run, IvfpqTable *table, int seed)
{
	IvfpqKmeansSeeds *seeds = IvfpqKmeansSeedsBegin(run->spec.k, seed);
	IvfpqMagnitude magnitude = {0};

	run->store = store_begin();
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_ROWS, 0);
	while (IvfpqTableNext(table))
	{
		const float *vector = IvfpqTableFloats(table);

		IvfpqMagnitudeNote(&magnitude, vector, table->dims);
		IvfpqKmeansSeedsOffer(seeds, table->next - 1, vector, table->dims);
		store_add(run->store, vector, table->dims);
		if (table->next % 4096 == 0)
			IvfpqProgressDone(table->next);
	}
	run->spec.dims = table->dims;
	run->spec.nrows = store_rows(run->store);
	if (run->spec.k > run->spec.nrows)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("k is %d, but table \"%s\" has %lld rows with a vector",
						run->spec.k, RelationGetRelationName(table->rel),
						(long long) run->spec.nrows),
				 errhint("There can be no more clusters than rows.")));
	run->seeds = IvfpqKmeansSeedsEnd(seeds);
	run->exponent = IvfpqMagnitudeScale(&magnitude);
	if (run->exponent != 0)
		run->scaled = palloc(IVFPQ_BATCH_BYTES);
}

static bool
put_seeds(KMeans *run)
{
	const float *vector;

	for (int i = 0; i < run->spec.k; i++)
	{
		store_read(run->store, run->seeds[i], 1, &vector);
		if (!IvfpqWorkPut(run->work, GV_SET_SEEDS, scale(run, vector, 1), 1))
			return false;
	}
	return true;
}

static bool
put_rows(KMeans *run, int passes)
{
	int64		nrows = run->spec.nrows;
	int64		n;

	for (int64 put = 0; put < nrows; put += n)
	{
		const float *vectors;

		n = store_read(run->store, put, nrows - put, &vectors);
		if (!IvfpqWorkPut(run->work, GV_SET_ROWS, scale(run, vectors, n), n))
			return false;
		IvfpqProgressDone(passes * nrows + put + n);
	}
	return true;
}

/* Tell the error of a pass, once also if gpuvecd failed and all began anew. */
static void
report(KMeans *run, const GvSetDone *done)
{
	IvfpqProgressDone(done->passes * run->spec.nrows);
	if (done->passes <= run->reported)
		return;
	run->reported = done->passes;
	ereport(NOTICE,
			(errmsg_plural("error after %d iteration: %g",
						   "error after %d iterations: %g",
						   (unsigned long) done->passes - 1,
						   done->passes - 1,
						   ldexp(done->error, -2 * run->exponent))));
}

static bool
run_passes(KMeans *run, GvSetDone *done)
{
	memset(done, 0, sizeof(*done));
	done->again = true;
	while (!done->finished)
	{
		if (done->again && !put_rows(run, done->passes))
			return false;
		if (!IvfpqWorkRun(run->work, done))
			return false;
		report(run, done);
	}
	return true;
}

/* Rows (centroid_id, centroid, size), of those not returned yet. */
static bool
take_results(KMeans *run, int found)
{
	int			dims = run->spec.dims;
	int64		batch = Max(Min(IVFPQ_BATCH_BYTES / sizeof(float) / dims,
								RESULTS), 1);
	float	   *centroids = palloc(batch * dims * sizeof(float));
	int64	   *sizes = palloc(batch * sizeof(int64));

	while (run->taken < found)
	{
		int64		n = Min(batch, found - run->taken);

		if (!IvfpqWorkGet(run->work, GV_SET_CENTROIDS, run->taken, n,
						  centroids) ||
			!IvfpqWorkGet(run->work, GV_SET_SIZES, run->taken, n, sizes))
			return false;
		IvfpqScale(centroids, n * dims, -run->exponent, centroids);
		for (int64 i = 0; i < n; i++)
		{
			Datum		values[3];
			bool		nulls[3] = {false};

			values[0] = Int32GetDatum((int32) ++run->taken);
			values[1] = PointerGetDatum(IvfpqMakeReal(centroids + i * dims, dims));
			values[2] = Int64GetDatum(sizes[i]);
			tuplestore_putvalues(run->rsinfo->setResult, run->rsinfo->setDesc,
								 values, nulls);
			pfree(DatumGetPointer(values[1]));
		}
	}
	return true;
}

/* Do it all; false: gpuvecd failed. */
static bool
try_to_cluster(KMeans *run, IvfpqWorkPlace place)
{
	GvSetDone	done;
	bool		worked;

	run->work = IvfpqWorkBegin(&run->spec, place);
	worked = put_seeds(run) && run_passes(run, &done) &&
		take_results(run, done.found);
	IvfpqWorkEnd(run->work);
	return worked;
}

static void
cluster(KMeans *run)
{
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_CLUSTERING,
						 (run->spec.iterations + 1) * run->spec.nrows);
	if (!try_to_cluster(run, IvfpqWorkChoose(&run->spec)))
		try_to_cluster(run, IVFPQ_WORK_HERE);
	store_end(run->store);
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
					"k is how many clusters are wanted.");
	IvfpqCheckRange("iterations", run.spec.iterations, 0,
					GV_SET_MAX_PASSES - 1,
					"Twenty are enough for most sets of vectors.");
	InitMaterializedSRF(fcinfo, 0);
	IvfpqTableOpen(&table, relid, NULL, NameStr(*PG_GETARG_NAME(1)));
	IvfpqProgressBegin(IVFPQ_PROGRESS_KMEANS, relid);
	read_rows(&run, &table, PG_GETARG_INT32(4));
	cluster(&run);
	IvfpqProgressEnd();
	IvfpqTableClose(&table);
	return (Datum) 0;
}
