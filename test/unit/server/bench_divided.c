/*
 * bench_divided.c
 *		Work of one client by one device and by several: rows encoded a second,
 *		and seconds of graphs, of all rows and among near lists; or, if the
 *		first argument is kmeans, of k-means of Johnson, Douze, Jegou, 2017,
 *		section 6.2, of made rows.
 *
 * Each other argument is a list of devices for a gpuvecd of its own; the same
 * twice, in turns, says what times are worth.  The results have to be the same
 * each time.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"
#include "engine/mirror/gv_parallel.h"

#define CLIENTS		8			/* of a build, a process each */
#define SLOT_BYTES	(4 << 20)	/* of a message, at most */
#define CENTERS		4096
#define MAKERS		16			/* threads that make rows */
#define K			10
#define GOT			100000		/* places of a graph that are compared */

/* Sizes of the sets measured: on a GPU, or small. */
typedef struct Sizes
{
	int64_t		graph_rows;
	int32_t		graph_dims;
	int64_t		near_rows;		/* among near lists */
	int32_t		near_dims;
	int32_t		near_lists;
	int32_t		nlists;			/* of a build */
	int32_t		build_dims;
	int32_t		batches;		/* of each client */
	int64_t		kmeans_rows;
	int32_t		kmeans_dims;
	int32_t		clusters[2];
} Sizes;

static const Sizes large = {1000000, 128, 4000000, 96, 4096, 8192, 384, 100,
8100000, 784, {256, 4096}};
static const Sizes small = {20000, 64, 20000, 32, 64, 512, 64, 4,
20000, 32, {8, 64}};

static double
now(void)
{
	return (double) client_now_ms() / 1000;
}

/* Rows around centers, which threads make. */
typedef struct Making
{
	int64_t		n;
	int32_t		dims;
	float	   *centers;		/* [CENTERS][dims] */
	float	   *noise;			/* [CENTERS][dims] */
	float	   *rows;			/* [n][dims] */
} Making;

static void
make_part(void *arg, int32_t part)
{
	const Making *m = arg;
	int64_t		end = m->n * (part + 1) / MAKERS;
	int64_t		i;
	int32_t		d;

	for (i = m->n * part / MAKERS; i < end; i++)
	{
		uint64_t	random = ((uint64_t) i + 1) * UINT64_C(0x9E3779B97F4A7C15);
		const float *center;
		const float *other;
		float		along;

		random = (random ^ random >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
		random = (random ^ random >> 27) * UINT64_C(0x94D049BB133111EB);
		center = m->centers + random % CENTERS * m->dims;
		other = m->noise + random / CENTERS % CENTERS * m->dims;
		along = (float) (random >> 40) / 8388608.0f - 1.0f;
		for (d = 0; d < m->dims; d++)
			m->rows[i * m->dims + d] = center[d] + other[d] +
				along * other[m->dims - 1 - d];
	}
}

static float *
make_vectors(int64_t n, int32_t dims)
{
	OWN float  *centers = unit_floats((size_t) CENTERS * dims, 1.0f);
	OWN float  *noise = unit_floats((size_t) CENTERS * dims, 0.3f);
	Making		making = {n, dims, centers, noise,
	malloc((size_t) n * dims * sizeof(float))};

	gv_parallel_for(MAKERS - 1, make_part, &making, MAKERS);
	return making.rows;
}

/* FNV-1a. */
static uint64_t
hash(uint64_t h, const void *bytes, size_t n)
{
	const unsigned char *next = bytes;

	while (n-- > 0)
		h = (h ^ *next++) * UINT64_C(1099511628211);
	return h;
}

/* ---- graphs */

static void
bring(int fd, const TestSet *set, GvSetInput input)
{
	int64_t		step = SLOT_BYTES / gv_set_input_bytes(&set->spec, input);
	int64_t		first;
	int64_t		n = set->n[input];

	for (first = 0; first < n; first += step)
		CHECK(set_send(fd, set, input, first,
					   step < n - first ? step : n - first) &&
			  client_receive(fd, GV_MSG_PUT, NULL, NULL) == 0, "put");
}

/* Of the first and the last places. */
static uint64_t
hash_graph(int fd, int64_t places)
{
	uint64_t	h = 0;
	int			part;

	for (part = 0; part < 4; part++)
	{
		GvGetRequest request = {part % 2 ? GV_SET_POSITIONS :
		GV_SET_DISTANCES, 0, part < 2 ? 0 : places - GOT, GOT, -1};
		FREED void *payload = NULL;
		uint32_t	length = 0;

		CHECK(client_ask(fd, GV_MSG_GET, &request, sizeof(request), NULL, 0,
						 &payload, &length) == 0, "get");
		h = hash(h, payload, length);
	}
	return h;
}

/*
 * A graph of all rows, or with lists of near ones; prints, returns its hash.
 */
static uint64_t
bench_graph(const TestServer *server, float *rows, int64_t n, int32_t dims,
			int32_t nlists)
{
	OwnFd		fd = client_open(server, GV_ROLE_SET);
	TestSet		set = {.spec = {.kind = GV_SET_EXACT,.metric = GV_SET_L2,
		.dims = dims,.k = K,.nqueries = n,.nrows = n,.nlists = nlists,
		.probes = nlists > 0 ? 24 : 0},
	.n = {n, n, 0, 0, 0, nlists},.items = {rows, rows, NULL, NULL, NULL, rows}};
	double		begun = now();
	double		ran;
	GvSetDone	done;
	uint64_t	h;

	CHECK(set_begin(fd, &set.spec) == 0, "begin");
	bring(fd, &set, GV_SET_QUERIES);
	if (nlists > 0)
		bring(fd, &set, GV_SET_LISTS);
	bring(fd, &set, GV_SET_ROWS);
	ran = now();
	CHECK(set_run(fd, &done) == 0 && done.finished, "run");
	printf("graph of %lld x %d, %d lists: %.3f s, of them %.3f once all was "
		   "there\n", (long long) n, dims, nlists, now() - begun, now() - ran);
	h = hash_graph(fd, n * K);
	return h;
}

/*
 * k-means of 20 iterations and the last pass; prints, returns a hash of the
 * error and of the first centroids.
 */
static uint64_t
bench_kmeans(const TestServer *server, float *rows, int64_t n, int32_t dims,
			 int32_t k)
{
	OwnFd		fd = client_open(server, GV_ROLE_SET);
	TestSet		set = {.spec = {.kind = GV_SET_KMEANS,.dims = dims,.k = k,
		.iterations = 20,.nrows = n}};
	GvGetRequest request = {GV_SET_CENTROIDS, 0, 0, 256, -1};
	GvSetDone	done = {.again = 0};
	double		begun = now();
	double		ran = 0.0;
	FREED void *payload = NULL;
	uint32_t	length = 0;

	set.n[GV_SET_SEEDS] = k;
	set.n[GV_SET_ROWS] = n;
	set.items[GV_SET_SEEDS] = set.items[GV_SET_ROWS] = rows;
	CHECK(set_begin(fd, &set.spec) == 0, "begin");
	bring(fd, &set, GV_SET_SEEDS);
	while (!done.finished)
	{
		if (done.passes == 0 || done.again)
			bring(fd, &set, GV_SET_ROWS);
		ran -= now();
		if (set_run(fd, &done) != 0)
			break;
		ran += now();
	}
	CHECK(done.finished, "run");
	printf("k-means of %lld x %d, %d clusters: %.3f s, of them %.3f in %d "
		   "passes\n", (long long) n, dims, k, now() - begun, ran,
		   done.passes);
	if (request.n > done.found)
		request.n = done.found;
	CHECK(client_ask(fd, GV_MSG_GET, &request, sizeof(request), NULL, 0,
					 &payload, &length) == 0, "get");
	return hash(hash(0, &done.error, sizeof(done.error)), payload, length);
}

/* ---- builds */

/* The sample comes, and is trained on. */
static void
train(int fd, const GvBuilderSpec *spec, const float *rows, uint64_t *id)
{
	FREED float *mean = calloc(spec->dims, sizeof(float));
	FREED void *payload = NULL;
	uint32_t	length;
	int64_t		done;

	OK(client_ask(fd, GV_MSG_BUILD, spec, sizeof(*spec), mean, spec->dims *
				  sizeof(float), &payload, &length));
	*id = ((GvBuildReply *) payload)->id;
	for (done = 0; done < spec->sample_rows; done += spec->batch_rows)
	{
		int64_t		left = spec->sample_rows - done;
		GvRowsRequest request = {GV_SAMPLE, left < spec->batch_rows ?
		(int32_t) left : spec->batch_rows};

		OK(ASK_MORE(fd, GV_MSG_TRAIN_ROWS, request, rows + done * spec->dims,
					(size_t) request.n * spec->dims * 4));
	}
	CHECK(ASK_PLAIN(fd, GV_MSG_TRAIN) == 0, "train");
}

/* A client's process: exit status 0 once all its batches are encoded. */
static void
encode(const TestServer *server, const GvBuilderSpec *spec, const float *rows,
	   uint64_t id, int batches)
{
	int			fd = client_open(server, GV_ROLE_BUILDER);
	GvJoinRequest join = {id};
	GvRowsRequest request = {0, spec->batch_rows};
	int64_t		most = spec->sample_rows / spec->batch_rows;
	int			got = ASK(fd, GV_MSG_JOIN, join);
	int			b;

	for (b = 0; b < batches && got == 0; b++)
		got = ASK_MORE(fd, GV_MSG_ENCODE_ROWS, request,
					   rows + b % most * spec->batch_rows * spec->dims,
					   (size_t) spec->batch_rows * spec->dims * 4);
	_exit(got != 0);
}

/* The codes of a batch, whichever device makes them. */
static uint64_t
hash_codes(int fd, const GvBuilderSpec *spec, const float *rows)
{
	GvRowsRequest request = {0, spec->batch_rows};
	FREED void *payload = NULL;
	uint32_t	length = 0;
	uint64_t	h;

	CHECK(client_ask(fd, GV_MSG_ENCODE_ROWS, &request, sizeof(request), rows,
					 (size_t) spec->batch_rows * spec->dims * 4, &payload,
					 &length) == 0, "encode");
	h = hash(0, payload, length);
	return h;
}

static uint64_t
bench_build(const TestServer *server, const Sizes *sizes, const float *rows)
{
	GvBuilderSpec spec = {.metric = GV_L2,.dims = sizes->build_dims,
		.m = sizes->build_dims / 2,.lists_per_row = 2,.nlists = sizes->nlists,
		.nparents = 1,.iterations = 6,.scale = 1.0f,.max_imbalance = 2.0,
	.seed = 1,.sample_rows = 32 * (int64_t) sizes->nlists};
	OwnFd		fd = client_open(server, GV_ROLE_BUILDER);
	uint64_t	id;
	uint64_t	h;
	double		begun;
	int			i;

	spec.batch_rows = SLOT_BYTES / (4 * spec.dims);
	if (spec.batch_rows > 8192)
		spec.batch_rows = 8192;
	train(fd, &spec, rows, &id);
	fflush(stdout);
	begun = now();
	for (i = 0; i < CLIENTS; i++)
		if (fork() == 0)
			encode(server, &spec, rows, id, sizes->batches);
	for (i = 0; i < CLIENTS; i++)
	{
		int			status = 1;

		CHECK(wait(&status) > 0 && status == 0, "a client");
	}
	printf("%d lists of %d dimensions, %d clients: %.0f rows/s encoded\n",
		   spec.nlists, spec.dims, CLIENTS, (double) CLIENTS *
		   sizes->batches * spec.batch_rows / (now() - begun));
	h = hash_codes(fd, &spec, rows);
	return h;
}

/* ---- all of it */

void
bench_divided(int n, char **devices)
{
	const Sizes *sizes = unit_small ? &small : &large;
	int			kmeans = strcmp(devices[0], "kmeans") == 0;
	FREED float *rows = kmeans ?
		make_vectors(sizes->kmeans_rows, sizes->kmeans_dims) :
		make_vectors(sizes->graph_rows, sizes->graph_dims);
	FREED float *near = make_vectors(kmeans ? 0 : sizes->near_rows,
									 sizes->near_dims);
	FREED float *sample = make_vectors(kmeans ? 0 : 32 * sizes->nlists,
									   sizes->build_dims);
	uint64_t	first[3];
	int			i;

	for (i = kmeans; i < n; i++)
	{
		TestServer	server = server_start("--devices", devices[i], NULL);
		uint64_t	made[3] = {0};

		printf("devices %s\n", devices[i]);
		if (kmeans)
		{
			for (int c = 0; c < 2; c++)
				made[c] = bench_kmeans(&server, rows, sizes->kmeans_rows,
									   sizes->kmeans_dims,
									   sizes->clusters[c]);
		}
		else
		{
			made[0] = bench_graph(&server, rows, sizes->graph_rows,
								  sizes->graph_dims, 0);
			made[1] = bench_graph(&server, near, sizes->near_rows,
								  sizes->near_dims, sizes->near_lists);
			made[2] = bench_build(&server, sizes, sample);
		}
		if (i == kmeans)
			memcpy(first, made, sizeof(first));
		CHECK(memcmp(first, made, sizeof(first)) == 0, "%s makes others",
			  devices[i]);
		server_end(&server);
	}
}
