/*
 * billion.cu
 *		An index of a billion rows, without PostgreSQL: its build, its mirror,
 *		searches and their recall.
 *
 * usage: billion [-d SHARDS] [-l LANES] ROWS DIMS LISTS M POSTINGS
 *				  PROBES:CANDIDATES...
 *	-d	the mirror is divided among so many devices, which all encode
 *	-l	so many batches of searches are under way at a time
 *	POSTINGS	of a row, 1 or 2
 *	PROBES:CANDIDATES	lists that a search probes, and rows that it returns
 *
 * Lists are trained and rows encoded as CREATE INDEX has gpuvecd do it, and
 * the exact neighbors of the first queries are found on the way, as are those
 * of its calibration queries.  No row is kept: each is computed from its number
 * on a device, and queries are the rows behind the last one.  Until postings
 * are in the mirror they are in the host's memory in the order of rows, where
 * each takes 12 bytes beside its code.
 *
 * Recall of codes is R@1, R@10, R@100: the share of queries whose nearest row
 * is among so many rows returned first (Jegou, Douze, Schmid, 2011).  Recall@10
 * after reranking is the share of the 10 nearest rows that are among those
 * returned, of which exact distances put them first.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/device/device.h"

extern "C"
{
#include "engine/mirror/gv_builder.h"
#include "driver.h"
}

#ifdef GV_HAVE_CUDA
#define BUILDERS		gv_cuda_builders
#else
#define BUILDERS		gv_cpu_builders
#endif

#define NTRUTH			1000	/* queries whose neighbors are found */
#define K				10		/* neighbors */
#define BATCH			(1 << 16)	/* rows made and encoded at once */
#define FIT_ROWS		12288	/* for mean and scale, as in CREATE INDEX */
#define SAMPLES_PER_LIST	32	/* likewise */
#define MOST_DEVICES	8
#define MOST_ENCODERS	8		/* of a device */
#define PAGE_ROWS		20		/* rows on a page of the table */
#define AHEAD			16		/* postings that are prefetched */

static int64_t nrows;
static GvBuilderSpec spec;		/* with the lists and parents that there are */
static GvPlacement spread = {1, 1, {0, 1, 2, 3, 4, 5, 6, 7}};
static int	nthreads;			/* of the host */
static float *queries;			/* [NQUERIES][dims] transformed */
static GvTopK truth[NTRUTH];	/* K nearest rows */

/* Postings in the order of rows. */
static int32_t *lists;			/* [nrows][lists_per_row] */
static float *terms;			/* [nrows][lists_per_row] T */
static uint8_t *codes;			/* [nrows][lists_per_row][code_bytes] */

/* Their numbers in the order of lists. */
static std::vector<uint32_t> starts;	/* [nlists + 1] */
static uint32_t *order;

/* Zeros, which take memory when they are first written. */
template <typename T>
static T *
reserve(int64_t n)
{
	void	   *memory = mmap(NULL, n * sizeof(T), PROT_READ | PROT_WRITE,
							  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
							  -1, 0);

	CHECKED(memory == MAP_FAILED ? GV_NO_MEMORY : GV_OK);
	(void) madvise(memory, n * sizeof(T), MADV_HUGEPAGE);
	return (T *) memory;
}

/* Calls work(i) for each i below n, all at the same time. */
template <typename Work>
static void
in_threads(int n, const Work &work)
{
	std::vector<std::thread> threads;

	for (int i = 0; i < n; i++)
		threads.emplace_back(work, i);
	for (std::thread &thread : threads)
		thread.join();
}

static void
report(const char *what, double *begun)
{
	printf("%-8s %8.2f s\n", what, gv_lap(begun));
	fflush(stdout);
}

/* ----
 * Rows, as data.py makes those of synthetic sets: a point near one of 4,096
 * centers in 24 dimensions, spread over all, and noise.
 */

#define LATENT			24
#define CENTERS			4096
#define THREADS			256

/* Numbers of draws; a row has those from row << ROW_BITS on. */
#define SPREAD			(UINT64_C(1) << 56)
#define CENTER			(UINT64_C(2) << 56)
#define ROW_BITS		15

/* Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014. */
static __device__ uint64_t
random_of(uint64_t i)
{
	uint64_t	z = (i + 1) * UINT64_C(0x9E3779B97F4A7C15);

	z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
	return z ^ z >> 31;
}

/* Box, Muller, "A note on the generation of random normal deviates", 1958. */
static __device__ float
normal_of(uint64_t i)
{
	uint64_t	bits = random_of(i);
	float		u = (float) ((bits >> 40) + 1) * 0x1p-24f;
	float		v = (float) (bits & 0xFFFFFF) * 0x1p-24f;

	return sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * v);
}

/*
 * A thread makes one of the rows [n][dims] from number `first` on.  Shared: the
 * matrix [LATENT][dims] that spreads points.
 */
static __global__ void __launch_bounds__(THREADS)
rows_kernel(uint64_t first, int n, int dims, float *rows)
{
	GV_SHARED(shared);
	float	   *matrix = (float *) shared;
	int			i = blockIdx.x * THREADS + threadIdx.x;
	uint64_t	draws = (first + i) << ROW_BITS;
	uint64_t	center = random_of(draws) % CENTERS * LATENT;
	float		point[LATENT];

	for (int v = threadIdx.x; v < LATENT * dims; v += THREADS)
		matrix[v] = normal_of(SPREAD + v) / sqrtf(LATENT);
	__syncthreads();
	if (i >= n)
		return;
#pragma unroll
	for (int l = 0; l < LATENT; l++)
		point[l] = normal_of(CENTER + center + l) +
			0.5f * normal_of(draws + 1 + l);
	for (int d = 0; d < dims; d++)
	{
		float		value = 0.1f * normal_of(draws + 1 + LATENT + d);

#pragma unroll
		for (int l = 0; l < LATENT; l++)
			value += point[l] * matrix[l * dims + d];
		rows[(int64_t) i * dims + d] = value;
	}
}

/* Makes rows on a device, for one thread. */
struct Maker
{
	cudaStream_t stream;
	float	   *d_rows;			/* [BATCH][dims] */
	float	   *rows;			/* [BATCH][dims] pinned */

	Maker(int32_t device)
	{
		CHECKED(gv_choose_device(device));
		CHECKED(gv_gpu_low_stream(&stream));
		CHECKED(gv_device_alloc(&d_rows, BATCH * spec.dims));
		CHECKED(cudaMallocHost((void **) &rows, (size_t) BATCH * spec.dims *
							   sizeof(float)));
	}

	/* Sets the first n of `rows` to rows from number `first` on. */
	void
	make(int64_t first, int n)
	{
		CHECKED(gv_launch(rows_kernel, gv_blocks_for(n, THREADS), THREADS,
						  LATENT * spec.dims * sizeof(float), stream,
						  (uint64_t) first, n, spec.dims, d_rows));
		CHECKED(gv_download(rows, d_rows, (int64_t) n * spec.dims, stream));
		CHECKED(cudaStreamSynchronize(stream));
	}
};

/* ----
 * The build: training, encoding, and postings sorted by list.
 */

/* Trains lists on the first rows, and makes the queries. */
static GvBuilder *
train()
{
	std::vector<float> mean(spec.dims);
	Maker		maker(0);
	GvBuilder  *builder;
	GvTrained	trained;

	maker.make(0, FIT_ROWS);
	gv_fit_transform(spec.metric, spec.dims, maker.rows, FIT_ROWS, mean.data(),
					 &spec.scale);
	CHECKED(gv_builder_create(&spec, mean.data(), &builder));
	for (int64_t at = 0; at < spec.sample_rows; at += BATCH)
	{
		int			n = (int) std::min<int64_t>(BATCH, spec.sample_rows - at);

		maker.make(at, n);
		CHECKED(gv_builder_put_rows(builder, GV_SAMPLE, maker.rows, n));
	}

	GvModel		model = {spec.metric, spec.dims, spec.m, spec.scale,
		mean.data(), NULL, NULL, 0.0f};

	maker.make(nrows, NQUERIES);
	CHECKED(gv_builder_put_rows(builder, GV_QUERIES, maker.rows, NTRUTH));
	(void) gv_transform(&model, maker.rows, NQUERIES, queries);
	CHECKED(gv_builder_train(builder, &trained, NULL));
	spec.nlists = trained.nlists;
	spec.nparents = trained.nparents;
	printf("lists %.2f s, parents %.2f, codebooks %.2f\n",
		   trained.times.lists, trained.times.parents,
		   trained.times.codebooks);
	return builder;
}

/* Encodes all rows, and finds the neighbors of queries. */
static void
encode(GvBuilder *trained)
{
	int			nencoders = std::clamp(nthreads / spread.nshards, 1,
									   MOST_ENCODERS) * spread.nshards;
	std::atomic<int64_t> next(0);
	std::mutex	mutex;			/* of `trained`, truth and `done` */
	int64_t		done = 0;
	double		begun = bench_now();

	in_threads(nencoders, [&](int i)
	{
		GvBuilderSpec copied = gv_builder_copy_spec(&spec, i % spread.nshards);
		Maker		maker(copied.device);
		std::vector<GvNeighbor> near(NTRUTH * K);
		std::unique_lock<std::mutex> lock(mutex);
		GvBuilder  *builder;

		CHECKED(gv_builder_copy(trained, &copied, &builder));
		lock.unlock();
		for (int64_t at; (at = next.fetch_add(BATCH)) < nrows;)
		{
			int			n = (int) std::min<int64_t>(BATCH, nrows - at);
			int64_t		first = at * spec.lists_per_row;
			GvEncoded	encoded = {};

			encoded.lists = lists + first;
			encoded.t = terms + first;
			encoded.codes = codes + first * gv_code_bytes(spec.m);
			encoded.neighbors = near.data();
			maker.make(at, n);
			CHECKED(gv_builder_encode(builder, maker.rows, n, &encoded, NULL));
			lock.lock();
			for (int j = 0; j < encoded.nneighbors; j++)
				gv_topk_push(&truth[near[j].query], near[j].score,
							 at + near[j].row);
			done += n;
			if (done * 10 / nrows > (done - n) * 10 / nrows)
				printf("  %.0f %% by %.0f rows/s\n", 100.0 * done / nrows,
					   done / (bench_now() - begun));
			fflush(stdout);
			lock.unlock();
		}
		gv_builder_drop(builder);
	});
	for (GvTopK &best : truth)
		gv_topk_sort(&best);
}

/* A counting sort, in which each thread has a range of postings. */
static void
group()
{
	std::vector<std::vector<uint32_t>> counts(nthreads);
	uint32_t	at = 0;
	const auto	for_each = [&](int i, auto visit)
	{
		int64_t		n = nrows * spec.lists_per_row;

		for (int64_t p = n * i / nthreads; p < n * (i + 1) / nthreads; p++)
			if (lists[p] >= 0)
				visit(p);
	};

	in_threads(nthreads, [&](int i)
	{
		counts[i].resize(spec.nlists);
		for_each(i, [&](int64_t p) { counts[i][lists[p]]++; });
	});
	for (int32_t list = 0; list < spec.nlists; list++)
	{
		starts.push_back(at);
		for (std::vector<uint32_t> &count : counts)
			at += std::exchange(count[list], at);
	}
	starts.push_back(at);
	order = reserve<uint32_t>(at);
	in_threads(nthreads, [&](int i)
	{
		for_each(i, [&](int64_t p)
		{
			order[counts[i][lists[p]]++] = (uint32_t) p;
		});
	});
}

/* ----
 * The mirror.
 */

static GvMirror *
create_mirror(GvBuilder *builder)
{
	GvMirrorSpec made = {0, spec.metric, spec.dims, spec.m, spec.nlists,
		spec.nparents, nrows * spec.lists_per_row, 0, {}, 0, 0, 0};
	GvMirror   *mirror;

	CHECKED(gv_mirror_create_on(&made, &spread, &mirror, NULL));
	for (int i = 0; i < GV_NARRAYS; i++)
	{
		int64_t		n = gv_array_length(&made, (GvArray) i);
		std::vector<float> values(n);

		CHECKED(gv_builder_get_array(builder, (GvArray) i, 0, n,
									 values.data()));
		CHECKED(gv_mirror_put_array(mirror, (GvArray) i, 0, n, values.data()));
	}
	return mirror;
}

/* Threads make the chunks of lists, and one at a time puts its own. */
static void
put_lists(GvMirror *mirror)
{
	int			code_bytes = gv_code_bytes(spec.m);
	std::atomic<int32_t> next(0);
	std::mutex	mutex;			/* of the mirror */

	in_threads(nthreads, [&](int)
	{
		std::vector<uint32_t> live;
		std::vector<float> t;
		std::vector<uint16_t> rowids;
		std::vector<uint8_t> bytes;

		for (int32_t list; (list = next++) < spec.nlists;)
		{
			const uint32_t *mine = order + starts[list];
			int64_t		n = starts[list + 1] - starts[list];
			int64_t		nblocks = (n + GV_BLOCK - 1) / GV_BLOCK;

			live.assign(nblocks, ~0u);
			t.assign(nblocks * GV_BLOCK, 0.0f);
			rowids.assign(nblocks * GV_BLOCK * 3, 0);
			bytes.assign(nblocks * GV_BLOCK * code_bytes, 0);
			for (int64_t i = 0; i < n; i++)
			{
				int64_t		ahead = mine[std::min(i + AHEAD, n - 1)];
				int64_t		row = mine[i] / spec.lists_per_row;
				const uint8_t *from = codes + (int64_t) mine[i] * code_bytes;
				uint8_t    *to = &bytes[i / GV_BLOCK * GV_BLOCK * code_bytes +
										i % GV_BLOCK];

				__builtin_prefetch(terms + ahead);
				__builtin_prefetch(codes + ahead * code_bytes);
				t[i] = terms[mine[i]];
				rowids[3 * i] = (uint16_t) (row / PAGE_ROWS >> 16);
				rowids[3 * i + 1] = (uint16_t) (row / PAGE_ROWS);
				rowids[3 * i + 2] = (uint16_t) (row % PAGE_ROWS + 1);
				for (int p = 0; p < code_bytes; p++)
					to[p * GV_BLOCK] = from[p];
			}
			if (n % GV_BLOCK > 0)
				live[nblocks - 1] = (1u << n % GV_BLOCK) - 1;

			GvListChunk chunk = {list, 0, (int32_t) nblocks, live.data(),
				t.data(), rowids.data(), NULL, bytes.data()};
			std::lock_guard<std::mutex> lock(mutex);

			CHECKED(gv_mirror_put_list(mirror, &chunk));
		}
	});
}

/* ----
 * Searches.
 */

/* Recall and times of searches that probe and return so much. */
static void
measure_searches(Driver *driver, int32_t probes, int32_t candidates)
{
	const size_t limits[] = {1, 10, 100};
	double		within[3] = {}; /* nearest rows that so many rows begin with */
	double		found = 0;		/* neighbors */

	for (GvSearch *search = driver->searches;
		 search < driver->searches + NQUERIES; search++)
	{
		search->probes = probes;
		search->capacity = candidates * spec.lists_per_row;
	}
	search_once(driver, 0, NTRUTH);
	for (int q = 0; q < NTRUTH; q++)
	{
		const GvSearch *search = &driver->searches[q];
		const uint64_t *nearest = truth[q].ids;
		std::vector<uint64_t> rows; /* each once */

		for (int i = 0; i < search->nhits &&
			 rows.size() < (size_t) candidates; i++)
		{
			const uint16_t *id = search->hits[i].rowid;
			uint64_t	row = (id[0] * UINT64_C(65536) + id[1]) * PAGE_ROWS +
				id[2] - 1;

			if (std::count(rows.begin(), rows.end(), row) > 0)
				continue;
			rows.push_back(row);
			found += std::count(nearest, nearest + K, row);
			for (int r = 0; r < 3; r++)
				within[r] += row == nearest[0] && rows.size() <= limits[r];
		}
	}
	printf("%d lists probed, %d rows returned: R@1 %.3f, R@10 %.3f, R@100 "
		   "%.3f, recall@10 after reranking %.4f\n", probes, candidates,
		   within[0] / NTRUTH, within[1] / NTRUTH, within[2] / NTRUTH,
		   found / (NTRUTH * K));
	print_columns();
	for (int n : {1, 16, NQUERIES})
		measure(driver, n);
}

static int
usage()
{
	fprintf(stderr, "usage: billion [-d SHARDS] [-l LANES] ROWS DIMS LISTS M "
			"POSTINGS PROBES:CANDIDATES...\n");
	return 2;
}

int
main(int argc, char **argv)
{
	static Driver driver;
	static GvDevice devices[GV_MAX_DEVICES];
	static GvDeviceUsage parts[GV_MAX_DEVICES];
	char		numbers[] = "0,1,2,3,4,5,6,7";
	double		begun = gv_seconds();
	double		all = begun;
	int			nlanes = 1;
	int32_t		ndevices;
	int			option;

	while ((option = getopt(argc, argv, "+d:l:")) != -1)
		if (option == 'd')
			spread.nshards = atoi(optarg);
		else if (option == 'l')
			nlanes = atoi(optarg);
		else
			return usage();
	argv += optind;
	if (argc - optind < 6 || spread.nshards < 1 ||
		spread.nshards > MOST_DEVICES || nlanes < 1 || nlanes > MOST_LANES)
		return usage();
	nrows = atoll(argv[0]);
	spec = {.device = 0, .metric = GV_L2, .dims = atoi(argv[1]),
		.m = atoi(argv[3]), .lists_per_row = atoi(argv[4]),
		.refine = GV_RECORDS_NONE, .nlists = atoi(argv[2]),
		.nparents = (int32_t) sqrt(atof(argv[2])), .nqueries = NTRUTH,
		.depth = K, .batch_rows = BATCH, .iterations = 10, .scale = 1.0f,
		.unused = 0, .max_imbalance = 2.0, .seed = 1, .sample_rows =
		std::min<int64_t>(nrows, atoll(argv[2]) * SAMPLES_PER_LIST)};
	int64_t		npostings = nrows * spec.lists_per_row;

	if (nrows < FIT_ROWS || npostings > UINT32_MAX)
		return usage();
	numbers[2 * spread.nshards - 1] = '\0';
	nthreads = (int) sysconf(_SC_NPROCESSORS_ONLN);
	gv_simd_use(GV_SIMD_AUTO);
	CHECKED(gv_mirrors_open(&BENCH_ENGINE, numbers, devices, &ndevices));
	CHECKED(gv_builders_open(&BUILDERS));
	printf("%s, %d x %s, %d processors: %s rows x %s, %s lists, m %s, %s "
		   "postings a row\n", BENCH_ENGINE.name, spread.nshards,
		   devices[0].name, nthreads, argv[0], argv[1], argv[2], argv[3],
		   argv[4]);
	report("open", &begun);

	queries = reserve<float>((int64_t) NQUERIES * spec.dims);
	for (GvTopK &best : truth)
		best = {K, 0, false, reserve<float>(K), reserve<uint64_t>(K)};

	GvBuilder  *builder = train();

	report("train", &begun);
	lists = reserve<int32_t>(npostings);
	terms = reserve<float>(npostings);
	codes = reserve<uint8_t>(npostings * gv_code_bytes(spec.m));
	encode(builder);
	report("encode", &begun);
	group();
	report("group", &begun);

	GvMirror   *mirror = create_mirror(builder);
	GvSearch   *searches = reserve<GvSearch>(NQUERIES);

	gv_builder_drop(builder);
	for (int i = 0; i < NQUERIES; i++)
	{
		searches[i].query = queries + (int64_t) i * spec.dims;
		searches[i].compare = spec.nlists;
		searches[i].probes = searches[i].capacity = K;
	}
	open_driver(&driver, mirror, &spread, 0, nlanes, searches);
	report("create", &begun);
	printf("%d lists chosen, while all are empty:\n", K);
	print_columns();
	measure(&driver, NQUERIES);
	report("choose", &begun);
	put_lists(mirror);
	search_once(&driver, 0, 1);
	report("put", &begun);
	for (int i = 0; i < gv_mirror_usage(mirror, parts); i++)
		printf("device %d: mirror of %.1f MB\n", parts[i].device,
			   parts[i].bytes / 1e6);
	for (int i = 5, probes, candidates; i < argc - optind; i++)
	{
		if (sscanf(argv[i], "%d:%d", &probes, &candidates) != 2)
			return usage();
		measure_searches(&driver, probes, candidates);
	}
	report("search", &begun);
	report("all", &all);
	return 0;
}
