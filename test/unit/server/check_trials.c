/*
 * check_trials.c
 *		An index in the making is searched by gpuvecd: what it finds is what
 *		the engine finds in a mirror of the same.
 */
#include <unistd.h>

#include "client.h"

#define ROWS	TEST_BUILD_ROWS
#define DIMS	TEST_BUILD_DIMS

/*
 * Rows 1 .. ROWS, each once, in one chunk for list 0 and one for list 1; the
 * codes are of no meaning.  Caller frees.
 */
static char *
make_chunks(size_t *bytes)
{
	GvListsRequest request = {.nchunks = 2};
	int32_t		sizes[2] = {ROWS - 40, 40};
	char	   *message = calloc(1, 1 << 16);
	char	   *next = message + sizeof(request);
	int			row = 1;
	int			p;

	memcpy(message, &request, sizeof(request));
	for (p = 0; p < 2; p++)
	{
		int32_t		nblocks = (sizes[p] + GV_BLOCK - 1) / GV_BLOCK;
		GvChunk		chunk = {p, 0, nblocks, 0, {0, (uint32_t) sizes[p], 0}};
		uint32_t   *live = (uint32_t *) (next + sizeof(chunk));
		float	   *t = (float *) (live + nblocks);
		uint16_t   *rowids = (uint16_t *) (t + nblocks * GV_BLOCK);
		uint8_t    *codes = (uint8_t *) (rowids + 3 * nblocks * GV_BLOCK);
		int32_t		i;

		memcpy(next, &chunk, sizeof(chunk));
		for (i = 0; i < sizes[p]; i++, row++)
		{
			live[i / GV_BLOCK] |= UINT32_C(1) << i % GV_BLOCK;
			t[i] = (float) (row * 37 % 11);
			rowids[3 * i + 2] = (uint16_t) row;
			codes[i / GV_BLOCK * 2 * GV_BLOCK + i % GV_BLOCK] =
				(uint8_t) (row * 7);
		}
		next += gv_chunk_bytes(&chunk, 2, 0);
	}
	*bytes = (size_t) (next - message);
	return message;
}

/* The mirror that the calibration mirror must equal. */
static GvMirror *
own_mirror(GvBuilder *own, const GvTrained *trained, const char *chunks)
{
	GvMirrorSpec spec = {.metric = GV_L2,.dims = DIMS,.m = 3,
	.nlists = trained->nlists,.nparents = trained->nparents,.postings = ROWS};
	const char *next = chunks + sizeof(GvListsRequest);
	GvMirror   *mirror;
	int			array;
	int			p;

	CHECK(gv_mirror_create(&spec, &mirror) == GV_OK, "own mirror");
	for (array = 0; array < GV_NARRAYS; array++)
	{
		int64_t		n = gv_array_length(&spec, (GvArray) array);
		void	   *values = malloc(4 * n);

		CHECK(gv_builder_get_array(own, (GvArray) array, 0, n,
								   values) == GV_OK &&
			  gv_mirror_put_array(mirror, (GvArray) array, 0, n,
								  values) == GV_OK, "own array");
		free(values);
	}
	for (p = 0; p < 2; p++)
	{
		const GvChunk *chunk = (const GvChunk *) next;
		size_t		postings = (size_t) chunk->nblocks * GV_BLOCK;
		GvListChunk open = {.list = chunk->list,.nblocks = chunk->nblocks};

		open.live = (const uint32_t *) (chunk + 1);
		open.t = (const float *) (open.live + chunk->nblocks);
		open.rowids = (const uint16_t *) (open.t + postings);
		open.codes = (const uint8_t *) (open.rowids + 3 * postings);
		CHECK(gv_mirror_put_list(mirror, &open) == GV_OK, "own list");
		next += gv_chunk_bytes(chunk, 2, 0);
	}
	return mirror;
}

/* Two queries at once find what the engine finds. */
static void
check_tries(int fd, GvMirror *mirror, const float *queries, int32_t probes,
			int32_t capacity)
{
	GvTryRequest request = {2, probes, 1000, capacity};
	void	   *payload = NULL;
	uint32_t	length = 0;
	const uint16_t *rowids;
	const int32_t *nhits;
	GvSearcher *searcher;
	int			q;

	CHECK(client_ask(fd, GV_MSG_TRY, &request, sizeof(request), queries,
					 sizeof(float) * 2 * DIMS, &payload, &length) == 0 &&
		  payload != NULL, "try");
	if (payload == NULL)
		return;
	CHECK(gv_searcher(0, &searcher) == GV_OK, "searcher");
	nhits = payload;
	rowids = (const uint16_t *) (nhits + 2);
	for (q = 0; q < 2; q++)
	{
		GvSearch	search = {.query = queries + q * DIMS,
			.probes = probes < 8 ? probes : 8,.compare = 1000,
		.capacity = capacity < ROWS ? capacity : ROWS};
		int			wrong = 0;
		int32_t		i;

		CHECK(gv_mirror_search(searcher, mirror, &search, 1) == GV_OK,
			  "own search");
		CHECK(nhits[q] == search.nhits, "%d hits, not %d", nhits[q],
			  search.nhits);
		for (i = 0; i < nhits[q] && i < search.nhits; i++, rowids += 3)
			wrong += memcmp(rowids, search.hits[i].rowid, 6) != 0;
		CHECK(wrong == 0, "%d wrong hits", wrong);
	}
	CHECK((const char *) rowids == (const char *) payload + length, "length");
	gv_searcher_drop(searcher);
	free(payload);
}

/* The build's lists are searched; `helper` may be another that joined. */
void
check_calib_mirror(int fd, int helper, GvBuilder *own,
				   const GvTrained *trained,
			const float *queries)
{
	GvCalibMirrorRequest request = {ROWS};
	size_t		bytes;
	char	   *chunks = make_chunks(&bytes);
	GvMirror   *mirror = own_mirror(own, trained, chunks);

	CHECK(client_ask(fd, GV_MSG_CALIB_MIRROR, &request, sizeof(request), NULL,
					 0,
					 NULL, NULL) == 0, "trial");
	CHECK(client_ask(helper, GV_MSG_CHUNKS, chunks, bytes, NULL, 0, NULL,
					 NULL) == 0, "pieces");
	check_tries(fd, mirror, queries, 1, 10);
	check_tries(fd, mirror, queries, 8, 1);
	check_tries(fd, mirror, queries, GV_MAX_PROBES, ROWS + 500);
	gv_mirror_drop(mirror);
	free(chunks);
}

/* More postings than memory was reserved for. */
void
check_crowded_calib_mirror(const TestServer *server, const float *rows)
{
	GvCalibMirrorRequest request = {ROWS - 1};
	int			fd = client_open(server, GV_ROLE_BUILDER);
	size_t		bytes;
	char	   *chunks = make_chunks(&bytes);

	CHECK(builder_prepare(fd, rows, NULL) == 0, "prepare");
	CHECK(client_ask(fd, GV_MSG_CALIB_MIRROR, &request, sizeof(request), NULL,
					 0,
					 NULL, NULL) == 0, "trial");
	client_cut(fd, client_ask(fd, GV_MSG_CHUNKS, chunks, bytes, NULL, 0,
							  NULL, NULL), "too many copies");
	free(chunks);
}

static int64_t
used_bytes(int fd)
{
	GvStatusReply *status = load_status(fd);
	int64_t		bytes = status->used;

	free(status);
	return bytes;
}

/*
 * A build that somebody else has joined, in a server whose n-th engine call
 * finds no memory: if that is one of the calibration mirror's, nothing of it
 * is left.  Returns the answer to the request for the calibration mirror.
 */
static int
begin_without_memory(int n, const float *rows)
{
	GvCalibMirrorRequest request = {ROWS};
	GvJoinRequest join = {0};
	char		fault[16];
	TestServer	server;
	int			owner;
	int			helper;
	int			session;
	int64_t		before;
	int			got;

	snprintf(fault, sizeof(fault), "%d:3", n);
	server = server_start("--fault", fault);
	owner = client_open(&server, GV_ROLE_BUILDER);
	helper = client_open(&server, GV_ROLE_BUILDER);
	session = client_open(&server, GV_ROLE_SESSION);
	CHECK(builder_prepare(owner, rows, &join.id) == 0 &&
		  client_ask(helper, GV_MSG_JOIN, &join, sizeof(join), NULL, 0, NULL,
					 NULL) == 0, "prepare");
	before = used_bytes(session);
	got = client_ask(owner, GV_MSG_CALIB_MIRROR, &request, sizeof(request),
					 NULL, 0,
					 NULL, NULL);
	CHECK(got == 0 || (got == GV_REFUSED_NO_MEMORY &&
					   used_bytes(session) == before), "call %d: %d", n, got);
	close(owner);
	CHECK(builder_send(helper, GV_MSG_ENCODE, 0, rows, 1) &&
		  builder_receive(helper, GV_MSG_ENCODE, NULL, NULL) == 0,
		  "the build goes on");
	close(helper);
	close(session);
	CHECK(server_stop(&server) == 0, "stop");
	server_remove(&server);
	return got;
}

/* Each call that a calibration mirror's beginning makes fails once. */
void
check_failed_calib_mirrors(const float *rows)
{
	/* the first three are before it listens */
	int			first = 4;
	int			n = first;

	while (n < first + 20 && begin_without_memory(n, rows) != 0)
		n++;
	CHECK(n >= first + 3 && n < first + 20, "%d calls", n - first);
}
