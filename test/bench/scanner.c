/*
 * scanner.c
 *		The list scanner alone: searches of a mirror in this process, one by one
 *		and in batches, without sockets or SQL.
 *
 * Copies a mirror from a running gpuvecd, so what is searched is an index that
 * PostgreSQL has built of real rows, into an engine of its own, and times that.
 * Queries are rows of the index as their codes keep them, moved a little.
 *
 * usage: scanner DATADIR INDEX_OID PROBES CAPACITY [BATCH ...]
 * build: make gpuvecd, then
 *		gcc -std=gnu99 -O2 -Isrc test/bench/scanner.c src/engine/?*.o src/cpu/?*.o
 *			-lm -o build/scanner
 *		or, for a card: gcc -std=gnu99 -O2 -Isrc -DGV_HAVE_CUDA -c, and nvcc
 *			-cudart static scanner.o src/engine/?*.o src/cpu/?*.o gpu/?*.o
 *
 *
 * PROBES and CAPACITY (candidates, twice that with second copies) for a recall
 * are what gpuvec_calibration says.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "engine/gv_mirror.h"
#include "server/gv_protocol.h"

#ifdef GV_HAVE_CUDA
#define ENGINE	gv_cuda_mirrors
#else
#define ENGINE	gv_cpu_mirrors
#endif

#define NQUERIES	10000
#define SECONDS		1.0			/* that each measurement takes, about */
#define NOISE		0.1			/* of a query, as a share of a row's residual */

static int	server;

static void
fail(const char *what)
{
	perror(what);
	exit(1);
}

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double) t.tv_sec + (double) t.tv_nsec * 1e-9;
}

static void
transfer(void *bytes, size_t n, bool sending)
{
	char	   *next = bytes;

	while (n > 0)
	{
		ssize_t		done = sending ? send(server, next, n, MSG_NOSIGNAL) :
			recv(server, next, n, 0);

		if (done <= 0)
			fail("gpuvecd");
		next += done;
		n -= (size_t) done;
	}
}

/* Ask gpuvecd; the answer's payload, the caller's to free. */
static void *
ask(GvMessageType type, void *request, size_t bytes, size_t *length)
{
	GvMessage	header = {(uint32_t) bytes, (uint16_t) type, 0};
	char	   *payload;

	transfer(&header, sizeof(header), true);
	transfer(request, bytes, true);
	transfer(&header, sizeof(header), false);
	payload = malloc(header.length + 1);
	transfer(payload, header.length, false);
	if (header.type != GV_MSG_OK)
	{
		fprintf(stderr, "gpuvecd refuses: %s\n",
				((GvRefusal *) payload)->reason);
		exit(1);
	}
	if (length != NULL)
		*length = header.length;
	return payload;
}

static void
connect_to(const char *folder)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	GvHello		hello = {GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION,
	GV_ROLE_LOADER, (uint32_t) getpid()};

	if (chdir(folder) != 0)
		fail(folder);
	strcpy(address.sun_path, GV_SOCKET_PATH);
	server = socket(AF_UNIX, SOCK_STREAM, 0);
	if (connect(server, (struct sockaddr *) &address, sizeof(address)) != 0)
		fail(GV_SOCKET_PATH);
	free(ask(GV_MSG_HELLO, &hello, sizeof(hello), NULL));
}

/* The mirror of an index. */
static GvMirrorStatus
find_mirror(uint32_t oid)
{
	GvStatusReply *reply = ask(GV_MSG_STATUS, NULL, 0, NULL);
	GvMirrorStatus *mirrors = (GvMirrorStatus *) (reply + 1);
	int			i;

	for (i = 0; i < reply->nmirrors; i++)
		if (mirrors[i].key.index == oid && mirrors[i].ready)
		{
			GvMirrorStatus found = mirrors[i];

			free(reply);
			return found;
		}
	fprintf(stderr, "no mirror of index %u: call gpuvec_prewarm\n", oid);
	exit(1);
}

/* All of an array of n elements. */
static float *
read_array(const GvMirrorKey *key, GvArray array, int64_t n)
{
	float	   *values = malloc((size_t) n * 4);
	int64_t		done;

	for (done = 0; done < n; done += 1 << 20)
	{
		GvArrayRequest request = {*key, array, 0, done,
		n - done < 1 << 20 ? n - done : 1 << 20};
		float	   *some = ask(GV_MSG_VALUES, &request, sizeof(request), NULL);

		memcpy(values + done, some, (size_t) request.count * 4);
		free(some);
	}
	return values;
}

#define CHECKED(call) \
	do { \
		if ((call) != GV_OK) \
		{ \
			fprintf(stderr, "%s failed\n", #call); \
			exit(1); \
		} \
	} while (0)

/* What is measured. */
typedef struct Bench
{
	GvMirrorSpec spec;
	GvMirror   *mirror;
	GvSearcher *searcher;
	GvModel		model;
	float	   *centroids;
	float	   *queries;		/* [NQUERIES][dims] */
	int32_t		nqueries;
	GvSearch   *searches;		/* [NQUERIES] */
} Bench;

/* A row as its code keeps it, moved a little, becomes a query. */
static void
make_query(Bench *bench, int32_t list, const uint8_t *codes, int copy)
{
	const GvModel *model = &bench->model;
	float	   *query = bench->queries +
		(size_t) bench->nqueries++ * model->dims;
	int32_t		j;

	for (j = 0; j < model->m; j++)
	{
		int32_t		start = gv_sub_start(model, j);
		int32_t		dims = gv_sub_start(model, j + 1) - start;
		int			code = codes[j / 2 * GV_BLOCK + copy] >> j % 2 * 4 & 15;
		const float *word = model->codebooks +
			(size_t) GV_CODEWORDS * start + (size_t) code * dims;
		int32_t		d;

		for (d = 0; d < dims; d++)
		{
			float		noise = (float) rand() / (float) RAND_MAX * 2 - 1;

			query[start + d] = word[d] * (float) (1 + NOISE * noise) +
				bench->centroids[(size_t) list * model->dims + start + d];
		}
	}
}

/* Put a piece into the mirror; now and then one of its copies is a query. */
static void
take_piece(Bench *bench, const GvPiece *piece, int every)
{
	size_t		n = (size_t) piece->nblocks;
	const char *next = (const char *) (piece + 1);
	GvListPiece open = {.list = piece->list,.first = piece->first,
	.nblocks = piece->nblocks};
	size_t		code_bytes = (size_t) gv_code_bytes(bench->spec.m) * GV_BLOCK;
	size_t		b;

	open.live = (const uint32_t *) next;
	open.t = (const float *) (next + n * 4);
	open.rowids = (const uint16_t *) (next + n * (4 + 4 * GV_BLOCK));
	open.codes = (const uint8_t *) (next + n * (4 + 10 * GV_BLOCK));
	CHECKED(gv_mirror_put_list(bench->mirror, &open));
	for (b = 0; b < n; b++)
		if (rand() % every == 0 && (open.live[b] & 1) != 0 &&
			bench->nqueries < NQUERIES)
			make_query(bench, piece->list, open.codes + b * code_bytes, 0);
}

static void
copy_lists(Bench *bench, const GvMirrorStatus *status)
{
	int			every = (int) (status->copies / GV_BLOCK / NQUERIES / 2 + 1);
	int32_t		list = 0;

	while (list < status->nlists)
	{
		GvRangeRequest request = {status->key, list, status->nlists - list};
		size_t		length;
		char	   *pieces = ask(GV_MSG_BLOCKS, &request, sizeof(request),
								 &length);
		size_t		at = 0;

		while (at < length)
		{
			const GvPiece *piece = (const GvPiece *) (pieces + at);

			take_piece(bench, piece, every);
			at += (size_t) gv_piece_bytes(piece, gv_code_bytes(bench->spec.m));
			list = piece->list + 1;
		}
		free(pieces);
	}
}

/* Everything but refine records, which scanning does not touch. */
static void
copy_mirror(Bench *bench, const GvMirrorStatus *status)
{
	const GvMirrorSpec *spec = &bench->spec;
	float	   *values;

	bench->spec = (GvMirrorSpec) {
		.metric = (GvMetric) status->metric,.dims = status->dims,
		.m = status->m,.nlists = status->nlists,
		.nparents = status->nparents,.copies = status->copies
	};
	CHECKED(gv_mirror_create(spec, &bench->mirror));
	values = read_array(&status->key, GV_CODEBOOKS,
						(int64_t) GV_CODEWORDS * spec->dims);
	CHECKED(gv_mirror_put_array(bench->mirror, GV_CODEBOOKS, 0,
								(int64_t) GV_CODEWORDS * spec->dims, values));
	bench->model = (GvModel) {spec->metric, spec->dims, spec->m, 1.0f, NULL,
	values};
	values = read_array(&status->key, GV_PARENTS,
						(int64_t) spec->nparents * spec->dims);
	CHECKED(gv_mirror_put_array(bench->mirror, GV_PARENTS, 0,
								(int64_t) spec->nparents * spec->dims,
								values));
	free(values);
	values = read_array(&status->key, GV_STARTS, spec->nparents + 1);
	CHECKED(gv_mirror_put_array(bench->mirror, GV_STARTS, 0,
								spec->nparents + 1, values));
	free(values);
	bench->centroids = read_array(&status->key, GV_CENTROIDS,
								  (int64_t) spec->nlists * spec->dims);
	CHECKED(gv_mirror_put_array(bench->mirror, GV_CENTROIDS, 0,
								(int64_t) spec->nlists * spec->dims,
								bench->centroids));
	bench->queries = malloc(sizeof(float) * NQUERIES * (size_t) spec->dims);
	copy_lists(bench, status);
	if (bench->nqueries == 0)
	{
		fprintf(stderr, "the index has no rows\n");
		exit(1);
	}
}

static void
make_searches(Bench *bench, int32_t probes, int32_t capacity)
{
	int			i;

	bench->searches = calloc((size_t) bench->nqueries, sizeof(GvSearch));
	for (i = 0; i < bench->nqueries; i++)
	{
		GvSearch   *search = &bench->searches[i];

		search->query = bench->queries + (size_t) i * bench->spec.dims;
		search->probes = probes;
		search->compare = bench->spec.nlists;
		search->capacity = capacity;
	}
}

static int
compare_doubles(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

/* Batches of this size, one after another: their median, and the rate. */
static void
measure(Bench *bench, int batch)
{
	double	   *times = malloc(sizeof(double) * 1000000);
	double		began;
	double		total;
	double		copies = 0;
	int			n = 0;
	int			at = 0;

	if (batch > bench->nqueries)
		batch = bench->nqueries;
	CHECKED(gv_mirror_search(bench->searcher, bench->mirror, bench->searches,
							 batch));	/* memory, first launches */
	began = now();
	do
	{
		double		start = now();
		int			i;

		if (at + batch > bench->nqueries)
			at = 0;
		CHECKED(gv_mirror_search(bench->searcher, bench->mirror,
								 bench->searches + at, batch));
		times[n++] = now() - start;
		for (i = 0; i < batch; i++)
			copies += (double) bench->searches[at + i].copies;
		at += batch;
	} while (now() - began < SECONDS && n < 1000000);
	total = now() - began;
	qsort(times, (size_t) n, sizeof(double), compare_doubles);
	printf("%6d  %10.1f  %10.1f  %12.0f  %10.0f\n", batch, times[n / 2] * 1e6,
		   times[n * 99 / 100] * 1e6, n * (double) batch / total,
		   copies / ((double) n * batch));
	free(times);
}

int
main(int argc, char **argv)
{
	static const int sizes[] = {1, 16, 64, 1024, 10000};
	Bench		bench = {0};
	GvMirrorStatus status;
	GvDevice	device;
	int			i;

	if (argc < 5)
	{
		fprintf(stderr, "usage: scanner DATADIR INDEX_OID PROBES CAPACITY [BATCH ...]\n");
		return 2;
	}
	connect_to(argv[1]);
	status = find_mirror((uint32_t) strtoul(argv[2], NULL, 10));
	CHECKED(gv_mirrors_open(&ENGINE, "", &device));
	CHECKED(gv_searcher(&bench.searcher));
	copy_mirror(&bench, &status);
	make_searches(&bench, atoi(argv[3]), atoi(argv[4]));
	printf("%s, %s: %lld copies x %d, %d lists, %s probes, %s copies wanted\n",
		   ENGINE.name, device.name, (long long) status.copies,
		   status.dims, status.nlists, argv[3], argv[4]);
	printf("%6s  %10s  %10s  %12s  %10s\n", "batch", "p50 us", "p99 us",
		   "searches/s", "copies");
	if (argc == 5)
		for (i = 0; i < 5; i++)
			measure(&bench, sizes[i]);
	for (i = 5; i < argc; i++)
		measure(&bench, atoi(argv[i]));
	return 0;
}
