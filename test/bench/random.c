/*
 * random.c
 *		The list scanner alone, on random data of any size: nothing but an
 *		engine is needed, so that a profiler can look at it, too.
 *
 * usage: random [-c] [-l LANES] [-k SHARE] [-d SHARDS] [-r REPLICAS]
 *				 ROWS DIMS LISTS M PROBES CAPACITY BATCH...
 *	-c	cuBLAS multiplies, whatever is best
 *	-l	so many batches are under way at a time, as gpuvecd has two
 *	-k	copies have a random key of 4 bytes; after each batch one whose queries
 *		ask a range of it, each its own, that this share of the copies is in
 *	-d	each replica of the mirror is divided among so many devices: answers have
 *		to be those of one, so the last column is the same without
 *	-r	so many replicas: also, how many queries one of them does alone, and all
 *		of them side by side, a thread each with LANES batches under way
 *
 * Each row has two copies, in random lists, and a refine record.  Queries lie
 * near centroids.  Answers mean nothing, but take as long as any to find: lists
 * are between half and one and a half times as long as the mean, and scores
 * vary as much as real ones.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

#define MOST_DEVICES	8
#define TURNS			3		/* of one replica, and of all, in turn */
#define RECORDS			4096	/* sent at once */
#define FIRST_PAGE		1000	/* of refine records */
#define PAGE_BYTES		8000

typedef struct Bench
{
	GvMirrorSpec spec;
	GvMirror   *mirror;
	GvPlacement	spread;			/* its devices */
	int			nlanes;
	float	   *centroids;		/* [nlists][dims] */
	float	   *queries;		/* [NQUERIES][dims] */
	GvSearch   *searches;		/* [NQUERIES] */
	double		selectivity;			/* of copies that conditions let pass; 0: none */
	GvKeyTest  *tests;			/* [NQUERIES] */
	GvCondition *conditions;	/* [NQUERIES] */
} Bench;

static uint64_t seed = 88172645463325252u;

/* Marsaglia, "Xorshift RNGs", 2003: 32 of the 64 bits. */
static uint32_t
draw(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t) (seed >> 32);
}

/* Between -limit and limit. */
static float
draw_float(float limit)
{
	return ((float) (draw() >> 8) / 8388608.0f - 1.0f) * limit;
}

static float *
draw_floats(int64_t n, float limit)
{
	float	   *values = need((size_t) n * sizeof(float));

	for (int64_t i = 0; i < n; i++)
		values[i] = draw_float(limit);
	return values;
}

/* A row's id where `slots` lie on a page, the first of them 1. */
static void
put_address(uint16_t *words, uint64_t row, int slots)
{
	uint64_t	page = FIRST_PAGE + row / (uint64_t) slots;

	words[0] = (uint16_t) (page >> 16);
	words[1] = (uint16_t) page;
	words[2] = (uint16_t) (row % (uint64_t) slots + 1);
}

static void
put_model(Bench *bench)
{
	const GvMirrorSpec *spec = &bench->spec;
	int64_t		n = gv_array_length(spec, GV_CENTROIDS);
	int32_t		starts[2] = {0, spec->nlists};
	float	   *codebooks = draw_floats(gv_array_length(spec, GV_CODEBOOKS),
										0.7f);
	float	   *parent = need((size_t) spec->dims * sizeof(float));

	bench->centroids = draw_floats(n, 1.2f);
	CHECKED(gv_mirror_put_array(bench->mirror, GV_CODEBOOKS, 0,
								gv_array_length(spec, GV_CODEBOOKS),
								codebooks));
	CHECKED(gv_mirror_put_array(bench->mirror, GV_PARENTS, 0, spec->dims,
								parent));
	CHECKED(gv_mirror_put_array(bench->mirror, GV_PARENT_OFFSETS, 0, 2,
								starts));
	CHECKED(gv_mirror_put_array(bench->mirror, GV_CENTROIDS, 0, n,
								bench->centroids));
	free(codebooks);
	free(parent);
}

/* Keys of nblocks blocks, whose heads tell nothing. */
static void
draw_keys(const GvKeyForm *form, int nblocks, char *keys)
{
	size_t		bytes = gv_keys_bytes(form);

	for (int b = 0; b < nblocks && bytes > 0; b++)
	{
		GvKeyHead  *head = (GvKeyHead *) (keys + bytes * (size_t) b);

		head->high = UINT32_MAX;
		for (int i = 0; i < GV_BLOCK; i++)
			((uint32_t *) (head + 1))[i] = draw();
	}
}

/* Lists of random copies, each a random row's. */
static void
put_lists(Bench *bench)
{
	const GvMirrorSpec *spec = &bench->spec;
	int			mean = (int) (spec->postings / spec->nlists);
	int			most = mean * 3 / 2 / GV_BLOCK + 2;
	int			code_bytes = gv_code_bytes(spec->m);
	size_t		bytes = (size_t) most * (size_t) code_bytes * GV_BLOCK;
	uint32_t   *live = need((size_t) most * sizeof(uint32_t));
	float	   *t = need((size_t) most * GV_BLOCK * sizeof(float));
	uint16_t   *ids = need((size_t) most * GV_BLOCK * 3 * sizeof(uint16_t));
	uint8_t    *codes = need(bytes);
	char	   *keys = need(gv_keys_bytes(&spec->keys) * (size_t) most);

	for (int32_t list = 0; list < spec->nlists; list++)
	{
		int			n = mean / 2 + 1 + (int) (draw() % (unsigned) (mean + 1));
		int			nblocks = (n + GV_BLOCK - 1) / GV_BLOCK;
		GvListChunk piece = {list, 0, nblocks, live, t, ids,
		bench->selectivity > 0 ? keys : NULL, codes};

		for (int b = 0; b < nblocks; b++)
			live[b] = b == nblocks - 1 && n % GV_BLOCK ?
				(1u << n % GV_BLOCK) - 1 : ~0u;
		for (int i = 0; i < nblocks * GV_BLOCK; i++)
		{
			t[i] = draw_float(3.0f);
			put_address(ids + 3 * i, draw() % (uint64_t) spec->refine_records,
						spec->refine_slots);
		}
		draw_keys(&spec->keys, nblocks, keys);
		for (size_t i = 0; i < bytes; i++)
			codes[i] = (uint8_t) draw();
		/* an odd number of codes leaves half a byte unused */
		for (int b = 0; b < nblocks && spec->m % 2; b++)
			for (int i = 0; i < GV_BLOCK; i++)
				codes[((b + 1) * code_bytes - 1) * GV_BLOCK + i] &= 15;
		CHECKED(gv_mirror_put_list(bench->mirror, &piece));
	}
	free(live);
	free(t);
	free(ids);
	free(keys);
	free(codes);
}

static void
put_records(Bench *bench)
{
	const GvMirrorSpec *spec = &bench->spec;
	size_t		stride = gv_refine_stride(spec->dims);
	char	   *items = need(RECORDS * stride);

	for (int64_t first = 0; first < spec->refine_records; first += RECORDS)
	{
		int64_t		left = spec->refine_records - first;
		int			n = left < RECORDS ? (int) left : RECORDS;

		for (int i = 0; i < n; i++)
		{
			GvRefineItem *item = (GvRefineItem *) (items + stride * (size_t) i);
			uint64_t	row = (uint64_t) (first + i);

			put_address(item->address, row, spec->refine_slots);
			put_address(item->rowid, row, 20);
			item->min = -2.0f;
			item->step = 4.0f / 255.0f;
			item->error = 0.1f;
			for (int d = 0; d < spec->dims; d++)
				item->codes[d] = (uint8_t) draw();
		}
		CHECKED(gv_mirror_put_refine(bench->mirror,
									 (const GvRefineItem *) items, n));
	}
	free(items);
}

static void
make_queries(Bench *bench, int probes, int capacity)
{
	int			dims = bench->spec.dims;

	bench->queries = need((size_t) NQUERIES * (size_t) dims * sizeof(float));
	bench->searches = need(NQUERIES * sizeof(GvSearch));
	for (int i = 0; i < NQUERIES; i++)
	{
		float	   *query = bench->queries + (size_t) i * (size_t) dims;
		const float *near = bench->centroids + (size_t) dims *
			(draw() % (uint32_t) bench->spec.nlists);

		for (int d = 0; d < dims; d++)
			query[d] = near[d] + draw_float(0.8f);
		bench->searches[i].query = query;
		bench->searches[i].probes = probes;
		bench->searches[i].compare = bench->spec.nlists;
		bench->searches[i].capacity = capacity;
		bench->searches[i].bounded = true;
	}
}

/* A range of the key for each query. */
static void
make_conditions(Bench *bench)
{
	uint32_t	width = (uint32_t) (bench->selectivity * UINT32_MAX);

	bench->tests = need(NQUERIES * sizeof(GvKeyTest));
	bench->conditions = need(NQUERIES * sizeof(GvCondition));
	for (int i = 0; i < NQUERIES; i++)
	{
		GvKeyTest  *test = &bench->tests[i];

		test->kind = GV_TEST_RANGE;
		test->low = draw() % (UINT32_MAX - width + 1u);
		test->high = test->low + width;
		bench->conditions[i].form = bench->spec.keys;
		bench->conditions[i].ntests = 1;
		bench->conditions[i].tests = test;
	}
}

/* Have all queries ask their conditions, or none. */
static void
set_conditions(Bench *bench, bool asks)
{
	for (int i = 0; i < NQUERIES; i++)
		bench->searches[i].condition = asks ? &bench->conditions[i] : NULL;
}

/* Queries a second of the first ndrivers together. */
static double
drive_all(Driver *drivers, int ndrivers)
{
	pthread_t	threads[GV_MAX_DEVICES];
	double		queries = 0;
	double		start = bench_now();

	for (int i = 0; i < ndrivers; i++)
		if (pthread_create(&threads[i], NULL, drive, &drivers[i]) != 0)
			exit(1);
	for (int i = 0; i < ndrivers; i++)
	{
		(void) pthread_join(threads[i], NULL);
		queries += (double) drivers[i].nbatches * drivers[i].n;
	}
	return queries / (bench_now() - start);
}

/* A batch size: one replica alone, and all, in turn. */
static void
measure_replicas(Driver *drivers, int nreplicas, int n)
{
	double		one[TURNS];
	double		all[TURNS];

	for (int i = 0; i < nreplicas; i++)
	{
		drivers[i].n = n;
		if (i > 0)
			memcpy(drivers[i].searches, drivers[0].searches,
				   NQUERIES * sizeof(GvSearch));
		for (int lane = 0; lane < drivers[i].nlanes; lane++)
			search_once(&drivers[i], lane, n);
	}
	for (int turn = 0; turn < TURNS; turn++)
	{
		one[turn] = drive_all(drivers, 1);
		all[turn] = drive_all(drivers, nreplicas);
	}
	bench_sort_times(one, TURNS);
	bench_sort_times(all, TURNS);
	printf("  %d replicas: one does %.0f queries/s, all %.0f: %.2f times\n",
		   nreplicas, one[TURNS / 2], all[TURNS / 2],
		   all[TURNS / 2] / one[TURNS / 2]);
}

/* Are these numbers of a batch each that there are queries for? */
static bool
are_batches(char **args, int nargs)
{
	for (int i = 0; i < nargs; i++)
		if (atoi(args[i]) < 1 || atoi(args[i]) > NQUERIES)
			return false;
	return true;
}

static int
usage(void)
{
	fprintf(stderr, "usage: random [-c] [-l LANES] [-k SHARE] "
			"[-d SHARDS] [-r REPLICAS] ROWS DIMS LISTS M PROBES CAPACITY BATCH...\n");
	return 2;
}

int
main(int argc, char **argv)
{
	Bench		bench = {.spec = {.metric = GV_L2,.nparents = 1},.nlanes = 1,
	.spread = {1, 1, {0}}};
	static Driver drivers[GV_MAX_DEVICES];
	GvDevice	found[GV_MAX_DEVICES];
	GvDeviceUsage		parts[GV_MAX_DEVICES];
	char		devices[] = "0,1,2,3,4,5,6,7";
	int32_t		nfound;
	char	  **args;
	int			nargs;
	int			option;

	while ((option = getopt(argc, argv, "+cl:k:d:r:")) != -1)
		if (option == 'c')
			gv_matmul_use(GV_MATMUL_CUBLAS);
		else if (option == 'l')
			bench.nlanes = atoi(optarg);
		else if (option == 'k')
		{
			bench.selectivity = atof(optarg);
			bench.spec.keys = (GvKeyForm) {1, {GV_KEY_ORDERED}, {4}};
			if (!(bench.selectivity > 0 && bench.selectivity < 1))
				return usage();
		}
		else if (option == 'd')
			bench.spread.nshards = atoi(optarg);
		else if (option == 'r')
			bench.spread.nreplicas = atoi(optarg);
		else
			return usage();
	args = argv + optind;
	nargs = argc - optind;
	if (bench.spread.nshards < 1 || bench.spread.nreplicas < 1 ||
		bench.spread.nshards > MOST_DEVICES / bench.spread.nreplicas)
		return usage();
	for (int i = 0; i < gv_nmembers(&bench.spread); i++)
		bench.spread.devices[i] = i;
	if (nargs < 7 || bench.nlanes < 1 || bench.nlanes > MOST_LANES ||
		!are_batches(args + 6, nargs - 6))
		return usage();
	bench.spec.refine_records = atoll(args[0]);
	bench.spec.postings = 2 * bench.spec.refine_records;
	bench.spec.dims = atoi(args[1]);
	bench.spec.nlists = atoi(args[2]);
	bench.spec.m = atoi(args[3]);
	bench.spec.refine_slots = PAGE_BYTES / (bench.spec.dims + 32);
	if (bench.spec.refine_records < 1 || bench.spec.nlists < 1 ||
		bench.spec.dims < 1 || bench.spec.refine_slots < 1)
		return usage();
	/* with one device nothing is between its engine and us */
	devices[2 * gv_nmembers(&bench.spread) - 1] = '\0';
	CHECKED(gv_mirrors_open(&BENCH_ENGINE, devices, found, &nfound));
	CHECKED(gv_mirror_create_on(&bench.spec, &bench.spread, &bench.mirror,
								NULL));
	if (gv_mirror_usage(bench.mirror, parts) != gv_nmembers(&bench.spread))
		return usage();
	put_model(&bench);
	put_lists(&bench);
	put_records(&bench);
	make_queries(&bench, atoi(args[4]), atoi(args[5]));
	for (int i = 0; i < bench.spread.nreplicas; i++)
		open_driver(&drivers[i], bench.mirror, &bench.spread,
					i * bench.spread.nshards, bench.nlanes, i == 0 ?
					bench.searches : need(NQUERIES * sizeof(GvSearch)));
	printf("%s, %s, %d x %d: %s rows x %s, %s lists, m %s, %s probes, %s copies back\n",
		   BENCH_ENGINE.name, found[0].name, bench.spread.nshards,
		   bench.spread.nreplicas, args[0], args[1], args[2],
		   args[3], args[4], args[5]);
	print_columns();
	if (bench.selectivity > 0)
		make_conditions(&bench);
	for (int i = 6; i < nargs; i++)
	{
		set_conditions(&bench, false);
		measure(drivers, atoi(args[i]));
		if (bench.spread.nreplicas > 1)
			measure_replicas(drivers, bench.spread.nreplicas, atoi(args[i]));
		if (bench.selectivity == 0)
			continue;
		set_conditions(&bench, true);
		printf("  with a condition that lets %g of the copies pass:\n",
			   bench.selectivity);
		measure(drivers, atoi(args[i]));
	}
	return 0;
}
