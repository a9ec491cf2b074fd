/*
 * check_loading.c
 *		Loaders: what they may not bring, and whose a mirror is.
 */
#include <unistd.h>

#include "client.h"

/* Wait until there are n mirrors, as after the end of a connection. */
static bool
mirrors_become(int fd, int n)
{
	int			i;

	for (i = 0; i < 2000 && load_totals(fd).nmirrors != n; i++)
		usleep(5000);
	return i < 2000;
}

/* Send LISTS with these chunks, whatever they are. */
static int
send_lists(int fd, const GvMirrorKey *key, int32_t nchunks, int32_t unused,
		   const void *chunks, size_t bytes)
{
	GvListsRequest request = {*key, nchunks, unused};

	return ASK_MORE(fd, GV_MSG_LISTS, request, chunks, bytes);
}

/*
 * A loader that has begun a mirror, with its arrays; what it does next is
 * wrong, so that it and its mirror are lost.
 */
static int
open_begun(const TestServer *server, const GvMirrorKey *key,
		   const TestIndex *index)
{
	int			fd = client_open(server, GV_ROLE_LOADER);

	CHECK(load_begin(fd, key, index) == 0, "begin");
	CHECK(load_arrays(fd, key, index) == 0, "arrays");
	return fd;
}

/* An error in a chunk, and where it is. */
typedef struct WrongChunk
{
	const char *what;
	size_t		offset;			/* of a 4-byte number in the message */
	uint32_t	value;
} WrongChunk;

/* Pieces that nothing could make right. */
static void
test_malformed(const TestServer *server, const TestIndex *index)
{
	static const WrongChunk wrongs[] = {
		{"list -1", offsetof(GvChunk, list), (uint32_t) -1},
		{"list too large", offsetof(GvChunk, list), 1000},
		{"first -1", offsetof(GvChunk, first), (uint32_t) -1},
		{"a gap", offsetof(GvChunk, first), 1},
		{"first too large", offsetof(GvChunk, first), INT32_MAX},
		{"nblocks -1", offsetof(GvChunk, nblocks), (uint32_t) -1},
		{"nblocks less", offsetof(GvChunk, nblocks), 2},
		{"nblocks more", offsetof(GvChunk, nblocks), 4},
		{"nblocks too large", offsetof(GvChunk, nblocks), INT32_MAX},
		{"flags", offsetof(GvChunk, flags), 2},
		{"live only", offsetof(GvChunk, flags), GV_CHUNK_LIVE},
		{"nitems 0", offsetof(GvChunk, state.nitems), 0},
		{"nitems less", offsetof(GvChunk, state.nitems), 64},
		{"nitems more", offsetof(GvChunk, state.nitems), 97},
		{"nitems too large", offsetof(GvChunk, state.nitems), UINT32_MAX},
		{"live beyond nitems", sizeof(GvChunk) + 8, 1 << 20}
	};
	GvMirrorKey key = test_key(10);
	size_t		i;

	for (i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++)
	{
		int			fd = open_begun(server, &key, index);
		size_t		bytes;
		FREED char *chunk = chunk_bytes(index, 0, 0, 3, 0, &bytes);

		memcpy(chunk + wrongs[i].offset, &wrongs[i].value, 4);
		client_cut(fd, send_lists(fd, &key, 1, 0, chunk, bytes),
				  wrongs[i].what);
	}
}

static void
test_lengths(const TestServer *server, const TestIndex *index)
{
	GvMirrorKey key = test_key(10);
	size_t		bytes;
	FREED char *chunk = chunk_bytes(index, 0, 0, 3, 0, &bytes);
	int			fd;
	int			i;

	/* too few or too many pieces or bytes, and what is to be 0 */
	for (i = 0; i < 6; i++)
	{
		fd = open_begun(server, &key, index);
		client_cut(fd, send_lists(fd, &key, i < 3 ? i : i == 3 ? -1 : 1,
								  i == 5, chunk, i == 1 ? bytes - 4 :
								  i == 4 ? 5 : bytes), "pieces");
	}
	fd = open_begun(server, &key, index);
	CHECK(send_lists(fd, &key, 0, 0, NULL, 0) == 0, "no pieces");
	CHECK(send_lists(fd, &key, 1, 0, chunk, bytes) == 0, "a right piece");
	close(fd);
}

/* Pieces that do not follow what the list holds. */
static void
test_order(const TestServer *server, TestIndex *index)
{
	TestList   *list = &index->lists[0];
	GvMirrorKey key = test_key(11);
	int			fd = open_begun(server, &key, index);
	int			i;

	client_cut(fd, load_chunk(fd, &key, index, 0, 1, 2, 0), "the end first");
	for (i = 0; i < 5; i++)
	{
		int			refusal;

		fd = open_begun(server, &key, index);
		refusal = load_chunk(fd, &key, index, 0, 0, 2, 0);
		CHECK(refusal == 0, "the beginning: %d", refusal);
		list->gen += i == 1 || i == 4;
		list->del_seq += i == 2;
		refusal = i < 3 ? load_chunk(fd, &key, index, 0, 2, 1, 0) :
			load_chunk(fd, &key, index, 0, 0, i == 3 ? 3 : 2, GV_CHUNK_LIVE);
		list->gen -= i == 1 || i == 4;
		list->del_seq -= i == 2;
		if (i == 0)
		{
			CHECK(refusal == 0, "the end: %d", refusal);
			close(fd);
		}
		else
			client_cut(fd, refusal, i < 3 ? "another gen or del_seq" :
					  "live only, of another list");
	}
}

static void
test_arrays(const TestServer *server, const TestIndex *index)
{
	GvMirrorKey key = test_key(12);
	GvArrayRequest request = {key, GV_PARENTS, 0, 0, 1};
	int32_t		wrong[4] = {0, 2, 2, 5};
	float		one = 1.0f;
	int			fd;
	int			i;

	for (i = 0; i < 8; i++)
	{
		request = (GvArrayRequest) {key, GV_PARENTS, 0, 0, 1};
		request.array = i == 0 ? -1 : i == 1 ? GV_NARRAYS : GV_PARENTS;
		request.unused = i == 2;
		request.first = i == 3 ? -1 : i == 4 ? 1 : i == 5 ? INT64_MAX : 0;
		request.count = i == 6 ? 2 : i == 7 ? INT64_MAX : 1;
		fd = client_open(server, GV_ROLE_LOADER);
		CHECK(load_begin(fd, &key, index) == 0, "begin");
		client_cut(fd, ASK_MORE(fd, GV_MSG_ARRAY, request, &one, 4), "array");
	}
	fd = client_open(server, GV_ROLE_LOADER);
	CHECK(load_begin(fd, &key, index) == 0, "begin");
	client_cut(fd, load_array(fd, &key, GV_PARENT_OFFSETS, 0, 4, wrong),
			   "starts");
	wrong[0] = 1;
	fd = client_open(server, GV_ROLE_LOADER);
	CHECK(load_begin(fd, &key, index) == 0, "begin");
	client_cut(fd, load_array(fd, &key, GV_PARENT_OFFSETS, 0, 1, wrong),
			   "starts");
	wrong[0] = 0;
	wrong[2] = 3;
	wrong[3] = 6;
	fd = client_open(server, GV_ROLE_LOADER);
	CHECK(load_begin(fd, &key, index) == 0, "begin");
	CHECK(load_array(fd, &key, GV_PARENT_OFFSETS, 0, 2, wrong) == 0, "starts");
	client_cut(fd, load_array(fd, &key, GV_PARENT_OFFSETS, 2, 2, wrong),
			   "starts");
	fd = open_begun(server, &key, index);
	client_cut(fd,
			   load_array(fd, &key, GV_PARENT_OFFSETS, 0, 4, index->parent_offsets),
			  "starts again");
	fd = client_open(server, GV_ROLE_LOADER);
	CHECK(load_begin(fd, &key, index) == 0, "begin");
	client_cut(fd, load_ready(fd, &key), "ready without arrays");
}

/* Send REFINE with these items, whatever they are. */
static int
send_items(int fd, const GvMirrorKey *key, int32_t n, int32_t unused,
		   const void *items, size_t bytes)
{
	GvListsRequest request = {*key, n, unused};

	return ASK_MORE(fd, GV_MSG_REFINE, request, items, bytes);
}

/* Ask for these values, whatever they are, and compare them. */
static int
get_values(int fd, const GvMirrorKey *key, const TestIndex *index,
		   int32_t array, int64_t first, int64_t count)
{
	GvArrayRequest request = {*key, array, 0, first, count};
	FREED void *payload = NULL;
	uint32_t	length;
	int			got = client_ask(fd, GV_MSG_READ_ARRAY, &request, sizeof(request),
								 NULL, 0, &payload, &length);
	int64_t		n;

	if (got == 0)
		CHECK(length == count * 4 &&
			  memcmp(payload, (const char *)
					 index_array(index, (GvArray) array, &n) + first * 4,
					 length) == 0, "values");
	return got;
}

/* Read arrays and records back; and what cannot be read. */
static void
check_readback(const TestServer *server, int loader, const GvMirrorKey *key,
			   const TestIndex *index, const Records *records)
{
	int32_t		n = records->npages * records->nslots;
	GvListsRequest request = {*key, n, 0};
	OWN uint16_t *addresses = record_addresses(records);
	void	   *payload = NULL;
	uint32_t	length;
	int			nwrong = 0;
	int			fd;
	int32_t		i;

	for (i = 0; i < GV_NARRAYS; i++)
		CHECK(get_values(loader, key, index, i, 1, 2) == 0, "array %d", i);
	fd = client_open(server, GV_ROLE_LOADER);
	client_cut(fd, get_values(fd, key, index, 4, 0, 1), "array 4");
	fd = client_open(server, GV_ROLE_LOADER);
	client_cut(fd, get_values(fd, key, index, GV_PARENT_OFFSETS, 1, 4),
			   "too many");
	fd = client_open(server, GV_ROLE_LOADER);
	client_cut(fd, get_values(fd, key, index, GV_PARENT_OFFSETS, 0, -1), "-1");
	CHECK(client_ask(loader, GV_MSG_READ_REFINE, &request, sizeof(request),
					 addresses, (size_t) n * 6, &payload, &length) == 0 &&
		  length == n * records->stride, "records");
	for (i = 0; i < n && payload != NULL; i++)
	{
		const GvRefineItem *item = (GvRefineItem *)
			((char *) payload + records->stride * (size_t) i);

		nwrong += records->there[i] ?
			memcmp(item, record_at(records, i), records->stride) != 0 :
			item->rowid[2] != 0;
	}
	CHECK(nwrong == 0, "%d records", nwrong);
	free(payload);
	fd = client_open(server, GV_ROLE_LOADER);
	client_cut(fd, ASK_MORE(fd, GV_MSG_READ_REFINE, request, addresses,
							(size_t) n * 6 - 6), "short");
}

/* Refine records, which change while there are searches, and wrong ones. */
static void
test_items(const TestServer *server)
{
	OwnIndex	index = make_index(GV_L2, 33, 5, 9, 3, 60, false);
	OwnRecords	records = make_records(&index, 20, 7);
	GvMirrorKey key = test_key(17);
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	int			round;
	int			i;

	CHECK(load_all(loader, &key, &index) == 0, "load");
	for (round = 0; round < 5; round++)
	{
		int32_t		n;
		OWN char   *items = draw_records(&records, &n);
		size_t		bytes = records.stride * (size_t) n;
		GvRefineItem *last = (GvRefineItem *) (items + bytes - records.stride);
		int			fd;

		CHECK(send_items(loader, &key, n, 0, items, bytes) == 0, "records");
		for (i = 0; i < 20; i++)
		{
			OwnSearch	search = make_search(&key, &index);

			search.records = &records;
			CHECK(search_send(session, &search) &&
				  search_receive(session, &index, &search) == 0, "bounds");
		}
		check_readback(server, loader, &key, &index, &records);
		for (i = 0; i < 5; i++)
		{
			fd = client_open(server, i < 4 ? GV_ROLE_LOADER : GV_ROLE_SESSION);
			if (i == 3)
				last->address[2] = 8;	/* no such slot */
			client_cut(fd, send_items(fd, &key, i == 1 ? n - 1 :
									  i == 2 ? -1 : n, i == 0, items, bytes),
					   "items");
		}
	}
	CHECK(load_drop(loader, &key) == 0, "drop");
}

/* The engine refuses what a mirror cannot have (check_mirror.c). */
static void
test_begin(const TestServer *server, const TestIndex *index)
{
	int			i;

	for (i = 0; i < 5; i++)
	{
		OwnFd		fd = client_open(server, GV_ROLE_LOADER);
		GvBeginRequest request = {test_key(13), index->spec};

		if (i == 0)
			request.spec.dims = 0;
		else if (i == 1)
			request.spec.nlists = (1 << 24) + 1;
		else if (i == 2)
			request.spec.metric = (GvMetric) 4;
		else if (i == 3)
			request.spec.refine_slots = -1;
		else
			request.key.relation = 0;	/* as builds have it */
		CHECK(ASK(fd, GV_MSG_BEGIN, request) == GV_REFUSED_PROTOCOL &&
			  client_ended(fd), "begin, %d", i);
	}
}

/* Two loaders of one key, loaders that die, mirrors that are there. */
static void
test_owners(const TestServer *server, const TestIndex *index)
{
	GvMirrorKey key = test_key(14);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	int			first = open_begun(server, &key, index);
	int			second;
	int			got = search_check(session, &key, index);

	CHECK(got == GV_REFUSED_LOADING, "search while loading: %d", got);
	second = client_open(server, GV_ROLE_LOADER);
	got = load_lists(second, &key, index);
	CHECK(got == GV_REFUSED_LOADING, "another's mirror: %d", got);
	got = load_ready(second, &key);
	CHECK(got == GV_REFUSED_LOADING, "another's mirror: %d", got);
	CHECK(load_begin(second, &key, index) == 0, "begin anew");
	got = load_lists(first, &key, index);
	CHECK(got == GV_REFUSED_LOADING, "thrown away: %d", got);
	CHECK(load_arrays(second, &key, index) == 0, "arrays");
	close(first);
	CHECK(mirrors_become(session, 1), "the second's is there");
	close(second);
	CHECK(mirrors_become(session, 0), "a dead loader's mirror");
	first = client_open(server, GV_ROLE_LOADER);
	CHECK(load_all(first, &key, index) == 0, "load");
	got = load_begin(first, &key, index);
	CHECK(got == GV_REFUSED_EXISTS, "begin: %d", got);
	client_cut(first, load_ready(first, &key), "ready twice");
	CHECK(search_check(session, &key, index) == 0, "its loader is gone");
	first = client_open(server, GV_ROLE_LOADER);
	client_cut(first, load_array(first, &key, GV_PARENTS, 0, 1,
								index->parents), "an array of a ready one");
	first = client_open(server, GV_ROLE_LOADER);
	CHECK(load_drop(first, &key) == 0, "drop");
	CHECK(load_drop(first, &key) == 0, "drop again");
	got = load_lists(first, &key, index);
	CHECK(got == GV_REFUSED_NO_MIRROR, "nobody's mirror: %d", got);
	close(first);
}

void
test_loading(void)
{
	TestServer	server = server_start(NULL);
	OwnIndex	index = make_index(GV_L2, 4, 2, 5, 3, 0, false);
	OwnFd		session = client_open(&server, GV_ROLE_SESSION);

	/* list 0: three blocks, the last with 16 postings */
	resize_list(&index, &index.lists[0], 80, 0);
	test_malformed(&server, &index);
	test_lengths(&server, &index);
	test_order(&server, &index);
	test_arrays(&server, &index);
	test_begin(&server, &index);
	test_items(&server);
	CHECK(mirrors_become(session, 0), "mirrors of who was cut off");
	test_owners(&server, &index);
	CHECK(mirrors_become(session, 0), "at the end");
	server_end(&server);
}
