/*
 * check_trials.c
 *		An index in the making is searched by gpuvecd: what it finds is what
 *		the engine finds in a mirror of the same.
 */
#include <unistd.h>

#include "client.h"

#define ROWS	TEST_BUILD_ROWS
#define DIMS	TEST_BUILD_DIMS
#define MANY	64000

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
		GvChunkArrays to;
		int32_t		i;

		memcpy(next, &chunk, sizeof(chunk));
		to = gv_chunk_arrays((GvChunk *) next, 0);
		for (i = 0; i < sizes[p]; i++, row++)
		{
			to.live[i / GV_BLOCK] |= UINT32_C(1) << i % GV_BLOCK;
			to.t[i] = (float) (row * 37 % 11);
			to.rowids[3 * i + 2] = (uint16_t) row;
			to.codes[i / GV_BLOCK * 2 * GV_BLOCK + i % GV_BLOCK] =
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
		FREED void *values = malloc(4 * n);

		CHECK(gv_builder_get_array(own, (GvArray) array, 0, n,
								   values) == GV_OK &&
			  gv_mirror_put_array(mirror, (GvArray) array, 0, n,
								  values) == GV_OK, "own array");
	}
	for (p = 0; p < 2; p++)
	{
		const GvChunk *chunk = (const GvChunk *) next;
		GvListChunk open = gv_chunk_open(chunk, 0);

		CHECK(gv_mirror_put_list(mirror, &open) == GV_OK, "own list");
		next += gv_chunk_bytes(chunk, 2, 0);
	}
	return mirror;
}

/* Two queries at once find what the engine finds. */
static void
check_found(int fd, GvMirror *mirror, const float *queries, int32_t probes,
			int32_t capacity)
{
	GvSearchRequest request = {.n = 2,.dims = DIMS,.probes = probes,
	.compare = 1000,.capacity = capacity};
	void	   *payload = NULL;
	uint32_t	length = 0;
	GvSearchReply *head;
	GvSearcher *searcher;
	int			q;

	CHECK(client_ask(fd, GV_MSG_SEARCH, &request, sizeof(request), queries,
					 sizeof(float) * 2 * DIMS, &payload, &length) == 0 &&
		  payload != NULL, "search");
	if (payload == NULL)
		return;
	CHECK(gv_searcher(0, &searcher) == GV_OK, "searcher");
	head = payload;
	for (q = 0; q < 2; q++)
	{
		GvSearch	search = {.query = queries + q * DIMS,
			.probes = probes < 8 ? probes : 8,.compare = 1000,
		.capacity = capacity < ROWS ? capacity : ROWS};
		GvAnswerArrays found = gv_answer_arrays(head);

		OK(gv_mirror_search(searcher, mirror, &search, 1));
		CHECK(head->nhits == search.nhits && head->nprobed == search.nprobed &&
			  head->nbounds == 0 && !head->is_brief && head->batch == 2,
			  "%d hits of %d lists, not %d of %d", head->nhits, head->nprobed,
			  search.nhits, search.nprobed);
		CHECK(head->nhits == search.nhits &&
			  memcmp(found.hits, search.hits,
					 sizeof(GvHit) * (size_t) search.nhits) == 0, "hits");
		head = (GvSearchReply *) ((char *) head +
								  gv_answer_bytes(&request, head));
	}
	CHECK((char *) head == (char *) payload + length, "length");
	gv_searcher_drop(searcher);
	free(payload);
}

static int
begin_mirror(int fd, int64_t postings)
{
	GvCalibMirrorRequest request = {postings};

	return ASK(fd, GV_MSG_CALIB_MIRROR, request);
}

/* The build's lists are searched; `helper` may be another that joined. */
void
check_calib_mirror(int fd, int helper, GvBuilder *own,
				   const GvTrained *trained, const float *queries)
{
	size_t		bytes;
	FREED char *chunks = make_chunks(&bytes);
	GvMirror   *mirror = own_mirror(own, trained, chunks);
	int			round;

	/* the second mirror is in place of the first */
	for (round = 0; round < 2; round++)
	{
		CHECK(begin_mirror(fd, ROWS) == 0, "mirror");
		CHECK(client_ask(helper, GV_MSG_LISTS, chunks, bytes, NULL, 0, NULL,
						 NULL) == 0, "lists");
		check_found(fd, mirror, queries, 1, 10);
		check_found(fd, mirror, queries, 8, 1);
		check_found(fd, mirror, queries, GV_MAX_PROBES, ROWS + 500);
	}
	gv_mirror_drop(mirror);
}

/*
 * More postings than memory was reserved for count, as in any mirror, and go
 * with the build.  Nobody else sees the mirror, or can name it.
 */
void
check_crowded_calib_mirror(const TestServer *server, const float *rows)
{
	int			fd = client_open(server, GV_ROLE_BUILDER);
	int			other = client_open(server, GV_ROLE_BUILDER);
	int			session = client_open(server, GV_ROLE_SESSION);
	int			loader = client_open(server, GV_ROLE_LOADER);
	/* a list of MANY postings, all of the same code */
	GvChunk		chunk = {0, 0, MANY / GV_BLOCK, 0, {0, MANY, 0}};
	size_t		bytes = sizeof(GvListsRequest) +
	(size_t) gv_chunk_bytes(&chunk, 2, 0);
	char	   *chunks = calloc(1, bytes);
	GvListsRequest request = {.nchunks = 1};
	uint64_t	id = 0;
	GvMirrorKey keys[2] = {{0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}};
	int64_t		before;
	int			i;

	memcpy(chunks, &request, sizeof(request));
	memcpy(chunks + sizeof(request), &chunk, sizeof(chunk));
	CHECK(builder_prepare(fd, rows, &id) == 0 &&
		  builder_prepare(other, rows, NULL) == 0, "prepare");
	CHECK(begin_mirror(fd, 1) == 0, "mirror");
	before = load_totals(session).used;
	for (i = 0; i < 2; i++)
		OK(client_ask(fd, GV_MSG_LISTS, chunks, bytes, NULL, 0, NULL, NULL));
	CHECK(load_totals(session).used >= before + MANY * 12,
		  "%lld bytes, before %lld", (long long) load_totals(session).used,
		  (long long) before);
	CHECK(load_totals(session).nmirrors == 0, "%d mirrors",
		  load_totals(session).nmirrors);
	keys[1].build_id = id;
	for (i = 0; i < 2; i++)
	{
		GvSearchRequest search = {.key = keys[i],.n = 1,.dims = DIMS,
		.probes = 1,.compare = 1,.capacity = 1};

		CHECK(ASK_MORE(session, GV_MSG_SEARCH, search, rows, 4 * DIMS) ==
			  GV_REFUSED_NO_MIRROR, "another's mirror");
		memcpy(chunks, &keys[i], sizeof(keys[i]));
		CHECK(client_ask(loader, GV_MSG_LISTS, chunks, bytes, NULL, 0, NULL,
						 NULL) == GV_REFUSED_NO_MIRROR, "another's lists");
	}
	CHECK(client_ask(other, GV_MSG_LISTS, chunks, bytes, NULL, 0, NULL,
					 NULL) == GV_REFUSED_NO_MIRROR && client_ended(other),
		  "lists of another build, none of its own");
	close(other);
	close(loader);
	close(session);
	close(fd);
	free(chunks);
	builder_unused(server, "a mirror with more than was announced");
}

/*
 * A build that somebody else has joined, in a server whose n-th engine call
 * finds no memory: if that is one of the calibration mirror's, nothing of it
 * is left.  Returns the answer to the request for the calibration mirror.
 */
static int
begin_without_memory(int n, const float *rows)
{
	GvJoinRequest join = {0};
	char		fault[16];
	TestServer	server;
	int			owner;
	int			helper;
	int			session;
	int64_t		before;
	int			got;

	snprintf(fault, sizeof(fault), "%d:3", n);
	server = server_start("--fault", fault, NULL);
	owner = client_open(&server, GV_ROLE_BUILDER);
	helper = client_open(&server, GV_ROLE_BUILDER);
	session = client_open(&server, GV_ROLE_SESSION);
	CHECK(builder_prepare(owner, rows, &join.id) == 0 &&
		  ASK(helper, GV_MSG_JOIN, join) == 0, "prepare");
	before = load_totals(session).used;
	got = begin_mirror(owner, ROWS);
	CHECK(got == 0 || (got == GV_REFUSED_NO_MEMORY &&
					   load_totals(session).used == before),
		  "call %d: %d", n, got);
	close(owner);
	CHECK(builder_send(helper, GV_MSG_ENCODE_ROWS, 0, rows, 1) &&
		  client_receive(helper, GV_MSG_ENCODE_ROWS, NULL, NULL) == 0,
		  "the build goes on");
	close(helper);
	close(session);
	server_end(&server);
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
