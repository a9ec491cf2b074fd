/*
 * scanner.c
 *		The list scanner alone: searches of a mirror in this process, one by one
 *		and in batches, without sockets or SQL.
 *
 * Copies a mirror from a running gpuvecd, so what is searched is an index that
 * PostgreSQL has built of real rows, into an engine of its own, and times that.
 *
 * usage: scanner DATADIR INDEX_OID PROBES CAPACITY [BATCH ...]
 *		Queries are rows of the index as their codes keep them, moved a little.
 *		PROBES and CAPACITY (candidates, twice that with second copies) for a
 *		recall are what gpuvec_calibration says.
 *
 * usage: scanner -q SET -r ROWS DATADIR INDEX_OID [RECALL ...]
 *		Queries are those of a set (data.c), and what refine records say is
 *		nearest is compared with their true neighbors.  For each RECALL (.95
 *		and .99) probes and candidates are sought that reach it soonest.
 *		ROWS says which row is which (bench_read_rows).
 *
 * build: make gpuvecd, then
 *		gcc -std=gnu99 -O2 -Isrc test/bench/scanner/?*.c src/engine/?*.o
 *			src/cpu/?*.o -lm -o build/scanner
 *		or, for a card: gcc -std=gnu99 -O2 -Isrc -DGV_HAVE_CUDA -c, and nvcc
 *			-cudart static ?*.o src/engine/?*.o src/cpu/?*.o gpu/?*.o
 */
#include "bench.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#define SECONDS		1.0			/* that each measurement takes, about */
#define SWEPT		1000		/* queries that settings are tried with */
#define ALONE		100			/* of these, one by one */
#define SPREAD		2			/* of k and probes in a mixed batch */

static const int batch_sizes[] = {1, 16, 64, 1024, 10000};
static const int candidate_steps[] = {12, 16, 20, 30, 40, 60, 80, 120, 160, 240};

#define NSTEPS	((int) (sizeof(candidate_steps) / sizeof(int)))
#define NSIZES	((int) (sizeof(batch_sizes) / sizeof(int)))

/* The parameters of a query. */
typedef struct Setting
{
	int			probes;
	int			candidates;
	double		recall;
	double		copies;			/* scored for a query */
	double		seconds;		/* a batch of SWEPT takes */
	double		alone;			/* seconds of a search by itself, median */
} Setting;

/* Searches for all queries. */
static GvSearch *
make_searches(const Bench *bench, int probes, int capacity)
{
	GvSearch   *searches = calloc((size_t) bench->nqueries, sizeof(GvSearch));
	int			i;

	for (i = 0; i < bench->nqueries; i++)
	{
		searches[i].query = bench->queries + (size_t) i * bench->spec.dims;
		searches[i].compare = bench->spec.nlists;
		searches[i].probes = probes;
		searches[i].capacity = capacity;
		searches[i].bounded = bench->nrecords > 0;
	}
	return searches;
}

/* The hits' bounds are of the mirror's records. */
static int
copies_a_row(const Bench *bench)
{
	return bench->status.postings > bench->nrecords ? 2 : 1;
}

static void
set_searches(const Bench *bench, GvSearch *searches, int probes,
			 int candidates)
{
	int			i;

	for (i = 0; i < bench->nqueries; i++)
	{
		searches[i].probes = probes;
		searches[i].capacity = candidates * copies_a_row(bench);
	}
}

/* Half, all or double of a setting, by turns, probes and k each on its own. */
static void
mix_searches(const Bench *bench, GvSearch *searches, const Setting *setting)
{
	int			i;

	for (i = 0; i < bench->nqueries; i++)
	{
		double		more = pow(SPREAD, i % 3 - 1);
		double		wider = pow(SPREAD, i / 3 % 3 - 1);
		int			probes = (int) ceil(setting->probes * wider);

		searches[i].probes = probes < bench->spec.nlists ? probes :
			bench->spec.nlists;
		searches[i].capacity = (int) ceil(setting->candidates * more) *
			copies_a_row(bench);
	}
}

static void
print_columns(void)
{
	printf("%12s  %10s  %10s  %12s  %10s\n", "batch", "p50 us", "p99 us",
		   "searches/s", "copies");
}

/* Batches of this size, one after another: their median, and the rate. */
static void
measure(Bench *bench, GvSearch *searches, int batch, const char *note)
{
	double	   *times = malloc(sizeof(double) * 1000000);
	double		began;
	double		total;
	double		copies = 0;
	int			n = 0;
	int			at = 0;

	if (batch > bench->nqueries)
		batch = bench->nqueries;
	CHECKED(gv_mirror_search(bench->searcher, bench->mirror, searches,
							 batch));	/* memory, first launches */
	began = bench_now();
	do
	{
		double		start = bench_now();
		int			i;

		if (at + batch > bench->nqueries)
			at = 0;
		CHECKED(gv_mirror_search(bench->searcher, bench->mirror,
								 searches + at, batch));
		times[n++] = bench_now() - start;
		for (i = 0; i < batch; i++)
			copies += (double) searches[at + i].postings;
		at += batch;
	} while (bench_now() - began < SECONDS && n < 1000000);
	total = bench_now() - began;
	bench_sort_times(times, n);
	printf("%6d%-6s  %10.1f  %10.1f  %12.0f  %10.0f\n", batch, note,
		   times[n / 2] * 1e6, times[n * 99 / 100] * 1e6,
		   n * (double) batch / total, copies / ((double) n * batch));
	fflush(stdout);
	free(times);
}

/* Each size of batch that there are queries for. */
static void
measure_sizes(Bench *bench, GvSearch *searches, const char *note)
{
	int			i;

	print_columns();
	for (i = 0; i < NSIZES; i++)
		if (i == 0 || batch_sizes[i - 1] < bench->nqueries)
			measure(bench, searches, batch_sizes[i], note);
}

static void
print_head(const Bench *bench, const char *device)
{
	printf("%s, %s: %lld copies x %d, %d sub-quantizers, %d lists, %d queries\n",
		   BENCH_ENGINE.name, device, (long long) bench->status.postings,
		   bench->spec.dims, bench->spec.m, bench->spec.nlists,
		   bench->nqueries);
}

/*
 * The BENCH_K nearest rows by their records, in rows; returns how many there
 * are.  A row's distance is taken to be its record's bound and error.
 */
static int
nearest_rows(const Bench *bench, const BenchTruth *truth,
			 const GvSearch *search, int32_t *rows)
{
	float		distances[BENCH_K];
	double		unit = 1.0;		/* of errors */
	int			count = 0;
	int			h;

	if (bench->spec.metric == GV_IP)
		unit = sqrt(-gv_distance_ip(search->query, search->query,
									bench->spec.dims));
	for (h = 0; h < search->nhits; h++)
	{
		const BenchRecord *record =
			bench_record(bench, bench_id(search->hits[h].rowid));
		int32_t		row = bench_row(truth, bench_id(search->bounds[h].rowid));
		float		distance;
		int			at;

		if (search->bounds[h].known == 0 || record == NULL)
			continue;
		distance = (float) (search->bounds[h].bound + record->error * unit);
		for (at = 0; at < count && rows[at] != row; at++)
			;
		if (at < count)			/* the row's other copy */
			continue;
		if (count == BENCH_K && distance >= distances[count - 1])
			continue;
		at = count < BENCH_K ? count++ : count - 1;
		for (; at > 0 && distances[at - 1] > distance; at--)
		{
			distances[at] = distances[at - 1];
			rows[at] = rows[at - 1];
		}
		distances[at] = distance;
		rows[at] = row;
	}
	return count;
}

/* The share of the first n queries' true neighbors that were found. */
static double
recall_of(const Bench *bench, const BenchTruth *truth,
		  const GvSearch *searches, int n)
{
	int64_t		right = 0;
	int			i;

	for (i = 0; i < n; i++)
	{
		const int32_t *wanted = truth->ground_truth + (size_t) i *
			truth->width;
		int32_t		rows[BENCH_K];
		int			found = nearest_rows(bench, truth, &searches[i], rows);
		int			a;
		int			b;

		for (a = 0; a < found; a++)
			for (b = 0; b < BENCH_K; b++)
				right += rows[a] == wanted[b];
	}
	return (double) right / ((double) n * BENCH_K);
}

/* The median time of the first queries, one by one. */
static double
time_alone(Bench *bench, GvSearch *searches)
{
	double		times[ALONE];
	int			n = bench->nqueries < ALONE ? bench->nqueries : ALONE;
	int			i;

	for (i = 0; i < n; i++)
	{
		double		began = bench_now();

		CHECKED(gv_mirror_search(bench->searcher, bench->mirror,
								 searches + i, 1));
		times[i] = bench_now() - began;
	}
	bench_sort_times(times, n);
	return times[n / 2];
}

/* Try a setting with the first queries. */
static void
try_setting(Bench *bench, const BenchTruth *truth, GvSearch *searches,
			Setting *setting)
{
	int			n = bench->nqueries < SWEPT ? bench->nqueries : SWEPT;
	double		began;
	int			i;

	set_searches(bench, searches, setting->probes, setting->candidates);
	CHECKED(gv_mirror_search(bench->searcher, bench->mirror, searches, n));
	setting->recall = recall_of(bench, truth, searches, n);
	setting->copies = 0;
	for (i = 0; i < n; i++)
		setting->copies += (double) searches[i].postings / n;
	began = bench_now();
	CHECKED(gv_mirror_search(bench->searcher, bench->mirror, searches, n));
	setting->seconds = bench_now() - began;
	setting->alone = time_alone(bench, searches);
}

/* The next number of probes worth trying: about a twelfth more. */
static int
more_probes(int probes, int most)
{
	int			next = probes + (probes + 11) / 12;

	return next < most ? next : most;
}

/* The fewest probes that reach a recall with so many candidates, by bisection. */
static bool
find_probes(Bench *bench, const BenchTruth *truth, GvSearch *searches,
			double recall, int most, Setting *setting)
{
	int			low = 0;
	Setting		high = {most, setting->candidates, 0, 0, 0, 0};

	try_setting(bench, truth, searches, &high);
	if (high.recall < recall)
		return false;
	while (more_probes(low, high.probes) < high.probes)
	{
		Setting		middle = {(int) sqrt((low + 1.0) * high.probes),
		setting->candidates, 0, 0, 0, 0};

		if (middle.probes <= low)
			middle.probes = low + 1;
		if (middle.probes >= high.probes)
			break;
		try_setting(bench, truth, searches, &middle);
		if (middle.recall < recall)
			low = middle.probes;
		else
			high = middle;
	}
	*setting = high;
	return true;
}

/*
 * The settings that reach a recall in the least time, in a batch and alone;
 * false if none does.
 */
static bool
find_setting(Bench *bench, const BenchTruth *truth, GvSearch *searches,
			 double recall, int most, Setting *best, Setting *alone)
{
	bool		found = false;
	int			i;

	printf("\nrecall %.2f: what reaches it, %d queries at once\n", recall,
		   bench->nqueries < SWEPT ? bench->nqueries : SWEPT);
	printf("%10s  %6s  %7s  %8s  %12s  %10s\n", "candidates", "probes",
		   "recall", "copies", "us a query", "us alone");
	for (i = 0; i < NSTEPS; i++)
	{
		Setting		setting = {0, candidate_steps[i], 0, 0, 0, 0};

		if (!find_probes(bench, truth, searches, recall, most, &setting))
			continue;
		printf("%10d  %6d  %7.4f  %8.0f  %12.3f  %10.1f\n",
			   setting.candidates, setting.probes, setting.recall,
			   setting.copies, setting.seconds * 1e6 /
			   (bench->nqueries < SWEPT ? bench->nqueries : SWEPT),
			   setting.alone * 1e6);
		fflush(stdout);
		if (!found || setting.seconds < best->seconds)
			*best = setting;
		if (!found || setting.alone < alone->alone)
			*alone = setting;
		found = true;
	}
	return found;
}

/* A setting's recall of all queries; sets all searches to it. */
static void
print_setting(Bench *bench, const BenchTruth *truth, GvSearch *searches,
			  const Setting *setting)
{
	set_searches(bench, searches, setting->probes, setting->candidates);
	CHECKED(gv_mirror_search(bench->searcher, bench->mirror, searches,
							 bench->nqueries));
	printf("%d probes, %d candidates: recall@%d of all queries %.4f, refine records alone\n",
		   setting->probes, setting->candidates, BENCH_K,
		   recall_of(bench, truth, searches, bench->nqueries));
}

/* Real queries at one recall: the setting, its recall of all, its times. */
static void
measure_recall(Bench *bench, const BenchTruth *truth, GvSearch *searches,
			   double recall, int most)
{
	Setting		setting;
	Setting		alone;

	if (!find_setting(bench, truth, searches, recall, most, &setting, &alone))
	{
		printf("recall %.2f is out of reach\n", recall);
		return;
	}
	if (alone.candidates != setting.candidates)
	{
		print_setting(bench, truth, searches, &alone);
		print_columns();
		measure(bench, searches, 1, "");
	}
	print_setting(bench, truth, searches, &setting);
	measure_sizes(bench, searches, "");
	mix_searches(bench, searches, &setting);
	measure_sizes(bench, searches, " mixed");
}

/* Queries of a set, at each recall. */
static void
run_set(Bench *bench, const char *device, const char *set, const char *rows,
		int nrecalls, char **recalls)
{
	static char *usual[] = {".95", ".99"};
	int			most = bench->spec.nlists < 1024 ? bench->spec.nlists : 1024;
	BenchTruth	truth = {0};
	GvSearch   *searches;
	int			i;

	bench_read_rows(&truth, rows);
	bench_read_queries(bench, &truth, set);
	print_head(bench, device);
	searches = make_searches(bench, 1, 1);
	if (nrecalls == 0)
	{
		nrecalls = 2;
		recalls = usual;
	}
	for (i = 0; i < nrecalls; i++)
		measure_recall(bench, &truth, searches, atof(recalls[i]), most);
}

/* Queries made of the index's rows: probes, hits wanted, sizes of batches. */
static void
run_made(Bench *bench, const char *device, int nnumbers, char **numbers)
{
	GvSearch   *searches = make_searches(bench, atoi(numbers[0]),
										 atoi(numbers[1]));
	int			i;

	print_head(bench, device);
	printf("%s probes, %s copies wanted\n", numbers[0], numbers[1]);
	if (nnumbers == 2)
		measure_sizes(bench, searches, "");
	else
		print_columns();
	for (i = 2; i < nnumbers; i++)
		measure(bench, searches, atoi(numbers[i]), "");
}

static int
usage(void)
{
	fprintf(stderr, "usage: scanner DATADIR INDEX_OID PROBES CAPACITY [BATCH ...]\n"
			"       scanner -q SET -r ROWS DATADIR INDEX_OID [RECALL ...]\n");
	return 2;
}

int
main(int argc, char **argv)
{
	Bench		bench = {0};
	GvDevice	devices[GV_MAX_DEVICES];
	int32_t		ndevices;
	const char *set = NULL;
	const char *rows = NULL;
	int			option;

	while ((option = getopt(argc, argv, "q:r:")) != -1)
		if (option == 'q')
			set = optarg;
		else if (option == 'r')
			rows = optarg;
		else
			return usage();
	argc -= optind;
	argv += optind;
	if ((set == NULL) != (rows == NULL) || argc < (set == NULL ? 4 : 2))
		return usage();
	bench_connect(argv[0]);
	CHECKED(gv_mirrors_open(&BENCH_ENGINE, "0", devices, &ndevices));
	CHECKED(gv_searcher(0, &bench.searcher));
	bench_copy(&bench, (uint32_t) strtoul(argv[1], NULL, 10));
	if (set != NULL)
		run_set(&bench, devices[0].name, set, rows, argc - 2, argv + 2);
	else
		run_made(&bench, devices[0].name, argc - 2, argv + 2);
	return 0;
}
