/*
 * clustering.c
 *		gpuvec_kmeans: clusters of a table's vectors.
 *
 * The table is read once, into a store, since every iteration reads all rows.
 */
#include "postgres.h"

#include <math.h>

#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "am/types/sqldistance.h"
#include "set/set.h"

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

	run->store = IvfpqStoreBegin();
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_ROWS, 0);
	while (IvfpqTableNext(table))
	{
		const float *vector = IvfpqTableFloats(table);

		IvfpqMagnitudeNote(&magnitude, vector, table->dims);
		IvfpqKmeansSeedsOffer(seeds, table->next - 1, vector, table->dims);
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
		IvfpqStoreRead(run->store, run->seeds[i], 1, &vector);
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

		n = IvfpqStoreRead(run->store, put, nrows - put, &vectors);
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
	read_rows(&run, &table, PG_GETARG_INT32(4));
	cluster(&run);
	IvfpqProgressEnd();
	IvfpqTableClose(&table);
	return (Datum) 0;
}
