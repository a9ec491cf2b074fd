/*
 * copy.c
 *		Copies a mirror from a running gpuvecd into an engine of this process.
 */
#include "bench.h"

#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define NOISE		0.1			/* of a made query, as a share of a residual */
#define VALUES		(1 << 20)	/* of an array, asked for at once */
#define RECORDS		(1 << 13)	/* asked for at once */

static int	server;

void
bench_fail(const char *what)
{
	perror(what);
	exit(1);
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
			bench_fail("gpuvecd");
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

/* Of which life of the cluster gpuvecd's clients are; its lock file says it. */
static uint64_t
find_life(void)
{
	FILE	   *lock = fopen(GV_LOCK_PATH, "r");
	unsigned long long incarnation = 0;

	if (lock == NULL || fscanf(lock, "%*d %llx", &incarnation) != 1)
		bench_fail(GV_LOCK_PATH);
	fclose(lock);
	return incarnation;
}

/* Connect to the gpuvecd of a data directory, as a loader. */
void
bench_connect(const char *datadir)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	GvHello		hello = {GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION,
	GV_ROLE_LOADER, (uint32_t) getpid()};

	/* the socket is opened by its relative path, the rest by any */
	int			here = open(".", O_RDONLY | O_DIRECTORY);

	if (here < 0 || chdir(datadir) != 0)
		bench_fail(datadir);
	strcpy(address.sun_path, GV_SOCKET_PATH);
	hello.incarnation = find_life();
	server = socket(AF_UNIX, SOCK_STREAM, 0);
	if (connect(server, (struct sockaddr *) &address, sizeof(address)) != 0)
		bench_fail(GV_SOCKET_PATH);
	if (fchdir(here) != 0)
		bench_fail("chdir");
	close(here);
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

/* All of an array, put into the copy as well; the caller's to free. */
static float *
copy_array(Bench *bench, GvArray array)
{
	int64_t		n = gv_array_length(&bench->spec, array);
	float	   *values = malloc((size_t) n * 4);
	int64_t		done;

	for (done = 0; done < n; done += VALUES)
	{
		GvArrayRequest request = {bench->status.key, array, 0, done,
		n - done < VALUES ? n - done : VALUES};
		float	   *some = ask(GV_MSG_READ_ARRAY, &request, sizeof(request), NULL);

		memcpy(values + done, some, (size_t) request.count * 4);
		free(some);
	}
	CHECKED(gv_mirror_put_array(bench->mirror, array, 0, n, values));
	return values;
}

/* A copy of a row as its code keeps it, moved a little, becomes a query. */
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

/* Note the addresses of live copies; a row's copies name the same one. */
static void
note_records(Bench *bench, uint32_t live, const uint16_t *rowids)
{
	int			i;

	for (i = 0; i < GV_BLOCK; i++)
		if ((live >> i & 1) != 0)
			bench->records[bench->nrecords++].address =
				bench_id(rowids + 3 * i);
}

/* Put a piece into the mirror; now and then one of its copies is a query. */
static void
take_piece(Bench *bench, const GvChunk *piece, int every)
{
	size_t		n = (size_t) piece->nblocks;
	GvListChunk open = gv_chunk_open(piece, 0);
	size_t		code_bytes = (size_t) gv_code_bytes(bench->spec.m) * GV_BLOCK;
	size_t		b;

	CHECKED(gv_mirror_put_list(bench->mirror, &open));
	for (b = 0; b < n; b++)
	{
		if (bench->records != NULL)
			note_records(bench, open.live[b], open.rowids + b * GV_BLOCK * 3);
		if (rand() % every == 0 && (open.live[b] & 1) != 0 &&
			bench->nqueries < BENCH_QUERIES)
			make_query(bench, piece->list, open.codes + b * code_bytes, 0);
	}
}

static void
copy_lists(Bench *bench)
{
	const GvMirrorStatus *status = &bench->status;
	int			every = (int) (status->postings / GV_BLOCK / BENCH_QUERIES / 2 + 1);
	int32_t		list = 0;

	while (list < status->nlists)
	{
		GvRangeRequest request = {status->key, list, status->nlists - list, 0,
		0};
		size_t		length;
		char	   *pieces = ask(GV_MSG_READ_LISTS, &request, sizeof(request),
								 &length);
		size_t		at = 0;

		while (at < length)
		{
			const GvChunk *piece = (const GvChunk *) (pieces + at);

			take_piece(bench, piece, every);
			at += (size_t) gv_chunk_bytes(piece, gv_code_bytes(bench->spec.m), 0);
			list = piece->list + 1;
		}
		free(pieces);
	}
}

static int
compare_records(const void *a, const void *b)
{
	uint64_t	x = ((const BenchRecord *) a)->address;
	uint64_t	y = ((const BenchRecord *) b)->address;

	return (x > y) - (x < y);
}

/* gpuvecd's records of these; the caller's to free. */
static GvRefineItem *
read_records(const Bench *bench, const BenchRecord *records, int32_t n)
{
	size_t		bytes = sizeof(GvListsRequest) + (size_t) n * 6;
	GvListsRequest *request = calloc(1, bytes);
	uint16_t   *addresses = (uint16_t *) (request + 1);
	GvRefineItem *items;
	int32_t		i;

	request->key = bench->status.key;
	request->nchunks = n;
	for (i = 0; i < n; i++)
	{
		addresses[3 * i] = (uint16_t) (records[i].address >> 32);
		addresses[3 * i + 1] = (uint16_t) (records[i].address >> 16);
		addresses[3 * i + 2] = (uint16_t) records[i].address;
	}
	items = ask(GV_MSG_READ_REFINE, request, bytes, NULL);
	free(request);
	return items;
}

/* The records of all the copies that were noted, each once. */
static void
copy_records(Bench *bench)
{
	BenchRecord *records = bench->records;
	int64_t		n = 0;
	int64_t		i;

	qsort(records, (size_t) bench->nrecords, sizeof(*records),
		  compare_records);
	for (i = 0; i < bench->nrecords; i++)
		if (n == 0 || records[i].address != records[n - 1].address)
			records[n++] = records[i];
	bench->nrecords = n;
	for (i = 0; i < n; i += RECORDS)
	{
		int32_t		count = n - i < RECORDS ? (int32_t) (n - i) : RECORDS;
		GvRefineItem *items = read_records(bench, records + i, count);
		int32_t		j;

		CHECKED(gv_mirror_put_refine(bench->mirror, items, count));
		for (j = 0; j < count; j++)
		{
			const GvRefineItem *item = gv_refine_item(items, bench->spec.dims,
													  j);

			records[i + j].rowid = bench_id(item->rowid);
			records[i + j].error = item->error;
		}
		free(items);
	}
}

/* The vectors [n][dims] that records stand for; the caller's to free. */
float *
bench_decode(const Bench *bench, const BenchRecord *records, int32_t n)
{
	int32_t		dims = bench->spec.dims;
	float	   *x = malloc(sizeof(float) * (size_t) n * (size_t) dims);
	int32_t		done;

	for (done = 0; done < n; done += RECORDS)
	{
		int32_t		count = n - done < RECORDS ? n - done : RECORDS;
		GvRefineItem *items = read_records(bench, records + done, count);
		int32_t		i;

		for (i = 0; i < count; i++)
		{
			const GvRefineItem *item = gv_refine_item(items, dims, i);
			float	   *row = x + (size_t) (done + i) * (size_t) dims;
			int32_t		d;

			for (d = 0; d < dims; d++)
				row[d] = item->min + item->step * (float) item->codes[d];
		}
		free(items);
	}
	return x;
}

/* All of an index's mirror, and queries made of some of its copies. */
void
bench_copy(Bench *bench, uint32_t index)
{
	GvMirrorStatus *status = &bench->status;
	size_t		copies;

	*status = find_mirror(index);
	copies = (size_t) status->postings;
	bench->spec = (GvMirrorSpec) {
		.metric = (GvMetric) status->metric,.dims = status->dims,
		.m = status->m,.nlists = status->nlists,
		.nparents = status->nparents,.postings = status->postings,
		.refine_slots = status->refine_slots,
		.refine_records = status->refine_slots > 0 ? status->postings / 2 : 0
	};
	CHECKED(gv_mirror_create_on(&bench->spec, &(GvPlacement) {1, 1, {0}},
								&bench->mirror, NULL));
	bench->model = (GvModel) {.metric = bench->spec.metric,
		.dims = status->dims,.m = status->m,.scale = 1,
	.codebooks = copy_array(bench, GV_CODEBOOKS)};
	free(copy_array(bench, GV_PARENTS));
	free(copy_array(bench, GV_PARENT_OFFSETS));
	bench->centroids = copy_array(bench, GV_CENTROIDS);
	bench->queries = malloc(sizeof(float) * BENCH_QUERIES *
							(size_t) status->dims);
	if (status->refine_slots > 0)
		bench->records = calloc(copies, sizeof(BenchRecord));
	copy_lists(bench);
	if (bench->nqueries == 0)
	{
		fprintf(stderr, "the index has no rows\n");
		exit(1);
	}
	if (bench->records != NULL)
		copy_records(bench);
}
