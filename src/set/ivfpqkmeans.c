/*
 * ivfpqkmeans.c
 *		gpuvec_kmeans: clusters of a table's vectors.
 *
 * The table is read once, into a store, since every iteration reads all rows.
 *
 * Engines square distances in single precision.  Where these would overflow,
 * or be lost below its smallest numbers, rows go to the engine times a power
 * of two, and centroids come back without it.
 */
#include "postgres.h"

#include <math.h>

#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "set/ivfpqset.h"

/* Centroids are fetched from the engine so many at a time at most. */
#define RESULTS			4096

/*
 * Largest elements are below 2 to the power of this.  With MOST_EXPONENT, at
 * 16,000 dimensions, squared distances are less than 2^126; with
 * LEAST_EXPONENT those of elements that differ by the last bit of the largest
 * are 2^-126.
 */
#define MOST_EXPONENT	55
#define LEAST_EXPONENT	(-39)

PG_FUNCTION_INFO_V1(gpuvec_kmeans);

typedef struct KMeans
{
	ReturnSetInfo *rsinfo;
	GvSetSpec	spec;
	IvfpqStore *store;
	const int64 *starts;		/* [k] rows that are the first centroids */
	IvfpqWork  *work;
	float		largest;		/* of all elements, without their signs */
	int			exponent;		/* the engine gets rows times 2^exponent */
	float	   *scaled;			/* [a batch][dims] where it is not 0 */
	int			reported;		/* passes of which the error was told */
	int64		taken;			/* centroids that were returned */
} KMeans;

/* Remember the largest element, and so how to scale. */
static void
NoteLargest(KMeans *run, const float *vector, int dims)
{
	float		largest = run->largest;

	for (int i = 0; i < dims; i++)
		largest = Max(largest, fabsf(vector[i]));
	run->largest = largest;
}

/*
 * No more than is needed where rows are too large, because small elements lose
 * bits by it; those that are all small lose none.
 */
static void
ChooseScale(KMeans *run)
{
	int			exponent;

	(void) frexp(run->largest, &exponent);
	if (exponent > MOST_EXPONENT)
		run->exponent = MOST_EXPONENT - exponent;
	else if (exponent < LEAST_EXPONENT)
		run->exponent = -exponent;
	if (run->exponent != 0)
		run->scaled = palloc(Max(IVFPQ_BATCH_BYTES,
								 run->spec.dims * sizeof(float)));
}

/* n vectors of the store as the engine gets them, until the next ones. */
static const float *
Scale(const KMeans *run, const float *vectors, int64 n)
{
	double		factor = ldexp(1.0, run->exponent);

	if (run->exponent == 0)
		return vectors;
	for (int64 i = 0; i < n * run->spec.dims; i++)
		run->scaled[i] = (float) (vectors[i] * factor);
	return run->scaled;
}

/* Centroids [n], back from the engine. */
static void
Unscale(const KMeans *run, float *centroids, int64 n)
{
	double		factor = ldexp(1.0, -run->exponent);

	if (run->exponent == 0)
		return;
	for (int64 i = 0; i < n * run->spec.dims; i++)
		centroids[i] = (float) (centroids[i] * factor);
}

/* Read the table and choose first centroids. */
static void
ReadRows(KMeans *run, IvfpqTable *table, int seed)
{
	IvfpqStarts *starts = IvfpqStartsBegin(run->spec.k, seed);

	run->store = IvfpqStoreBegin();
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_ROWS, 0);
	while (IvfpqTableNext(table))
	{
		const float *vector = IvfpqTableFloats(table);

		NoteLargest(run, vector, table->dims);
		IvfpqStartsOffer(starts, table->next - 1, vector, table->dims);
		IvfpqStoreAdd(run->store, vector, table->dims);
		if (table->next % 4096 == 0)
			IvfpqProgressDone(table->next);
	}
	run->spec.dims = table->dims;
	run->spec.nrows = IvfpqStoreRows(run->store);
	if (run->spec.k > run->spec.nrows)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("k is %d, but table \"%s\" has %lld rows with a vector",
						run->spec.k, RelationGetRelationName(table->rel),
						(long long) run->spec.nrows),
				 errhint("There can be no more clusters than rows.")));
	run->starts = IvfpqStartsEnd(starts);
	ChooseScale(run);
}

static bool
PutStarts(KMeans *run)
{
	const float *vector;

	for (int i = 0; i < run->spec.k; i++)
	{
		IvfpqStoreRead(run->store, run->starts[i], 1, &vector);
		if (!IvfpqWorkPut(run->work, GV_SET_STARTS, Scale(run, vector, 1), 1))
			return false;
	}
	return true;
}

static bool
PutRows(KMeans *run, int passes)
{
	int64		nrows = run->spec.nrows;
	int64		n;

	for (int64 put = 0; put < nrows; put += n)
	{
		const float *vectors;

		n = IvfpqStoreRead(run->store, put, nrows - put, &vectors);
		if (!IvfpqWorkPut(run->work, GV_SET_ROWS, Scale(run, vectors, n), n))
			return false;
		IvfpqProgressDone(passes * nrows + put + n);
	}
	return true;
}

/* Tell the error of a pass, once also if gpuvecd failed and all began anew. */
static void
Report(KMeans *run, const GvSetDone *done)
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
RunPasses(KMeans *run, GvSetDone *done)
{
	memset(done, 0, sizeof(*done));
	done->again = true;
	while (!done->finished)
	{
		if (done->again && !PutRows(run, done->passes))
			return false;
		if (!IvfpqWorkRun(run->work, done))
			return false;
		Report(run, done);
	}
	return true;
}

/* Rows (centroid_id, centroid, size), of those not returned yet. */
static bool
TakeResults(KMeans *run, int found)
{
	int			dims = run->spec.dims;
	int64		room = Max(Min(IVFPQ_BATCH_BYTES / sizeof(float) / dims,
							   RESULTS), 1);
	float	   *centroids = palloc(room * dims * sizeof(float));
	int64	   *sizes = palloc(room * sizeof(int64));

	while (run->taken < found)
	{
		int64		n = Min(room, found - run->taken);

		if (!IvfpqWorkGet(run->work, GV_SET_CENTROIDS, run->taken, n,
						  centroids) ||
			!IvfpqWorkGet(run->work, GV_SET_SIZES, run->taken, n, sizes))
			return false;
		Unscale(run, centroids, n);
		for (int64 i = 0; i < n; i++)
		{
			Datum		values[3];
			bool		nulls[3] = {false};

			values[0] = Int32GetDatum((int32) ++run->taken);
			values[1] = IvfpqMakeArray(centroids + i * dims, dims);
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
TryToCluster(KMeans *run, IvfpqWorkPlace place)
{
	GvSetDone	done;
	bool		worked;

	run->work = IvfpqWorkBegin(&run->spec, place);
	worked = PutStarts(run) && RunPasses(run, &done) &&
		TakeResults(run, done.found);
	IvfpqWorkEnd(run->work);
	return worked;
}

static void
Cluster(KMeans *run)
{
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_CLUSTERING,
						 (run->spec.iterations + 1) * run->spec.nrows);
	if (!TryToCluster(run, IvfpqWorkChoose(&run->spec)))
		TryToCluster(run, IVFPQ_WORK_HERE);
	IvfpqStoreEnd(run->store);
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
	ReadRows(&run, &table, PG_GETARG_INT32(4));
	Cluster(&run);
	IvfpqProgressEnd();
	IvfpqTableClose(&table);
	return (Datum) 0;
}
