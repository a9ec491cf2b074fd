/*
 * check_loading.c
 *		Loaders: what they may not bring, how mirrors follow an index, and
 *		searches meanwhile.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

/* Wait until there are n mirrors, as after the end of a connection. */
static bool
mirrors_become(int fd, int n)
{
	int			i;

	for (i = 0; i < 2000; i++)
	{
		GvStatusReply *status = load_status(fd);
		bool		done = status != NULL && status->nmirrors == n;

		free(status);
		if (done)
			return true;
		usleep(5000);
	}
	return false;
}

/* Send LISTS with these pieces, whatever they are. */
static int
send_lists(int fd, const GvMirrorKey *key, int32_t npieces, int32_t unused,
		   const void *pieces, size_t bytes)
{
	GvListsRequest request = {*key, npieces, unused};

	return client_ask(fd, GV_MSG_LISTS, &request, sizeof(request), pieces,
					  bytes, NULL, NULL);
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

static void
check_cut(int fd, int got, const char *what)
{
	CHECK(got == GV_REFUSED_PROTOCOL, "%s: %d", what, got);
	CHECK(client_ended(fd), "%s", what);
	close(fd);
}

/* What is wrong with a piece, and where. */
typedef struct WrongPiece
{
	const char *what;
	size_t		offset;			/* of a 4-byte number in the message */
	uint32_t	value;
} WrongPiece;

/* Pieces that nothing could make right. */
static void
test_malformed(const TestServer *server, const TestIndex *index)
{
	static const WrongPiece wrongs[] = {
		{"list -1", offsetof(GvPiece, list), (uint32_t) -1},
		{"list too large", offsetof(GvPiece, list), 1000},
		{"first -1", offsetof(GvPiece, first), (uint32_t) -1},
		{"a gap", offsetof(GvPiece, first), 1},
		{"first too large", offsetof(GvPiece, first), INT32_MAX},
		{"nblocks -1", offsetof(GvPiece, nblocks), (uint32_t) -1},
		{"nblocks less", offsetof(GvPiece, nblocks), 2},
		{"nblocks more", offsetof(GvPiece, nblocks), 4},
		{"nblocks too large", offsetof(GvPiece, nblocks), INT32_MAX},
		{"flags", offsetof(GvPiece, flags), 2},
		{"live only", offsetof(GvPiece, flags), GV_PIECE_LIVE},
		{"nitems 0", offsetof(GvPiece, state.nitems), 0},
		{"nitems less", offsetof(GvPiece, state.nitems), 64},
		{"nitems more", offsetof(GvPiece, state.nitems), 97},
		{"nitems too large", offsetof(GvPiece, state.nitems), UINT32_MAX},
		{"live beyond nitems", sizeof(GvPiece) + 8, 1 << 20}
	};
	GvMirrorKey key = test_key(10);
	size_t		i;

	for (i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++)
	{
		int			fd = open_begun(server, &key, index);
		size_t		bytes;
		char	   *piece = piece_bytes(index, 0, 0, 3, 0, &bytes);

		memcpy(piece + wrongs[i].offset, &wrongs[i].value, 4);
		check_cut(fd, send_lists(fd, &key, 1, 0, piece, bytes),
				  wrongs[i].what);
		free(piece);
	}
}

static void
test_lengths(const TestServer *server, const TestIndex *index)
{
	GvMirrorKey key = test_key(10);
	size_t		bytes;
	char	   *piece = piece_bytes(index, 0, 0, 3, 0, &bytes);
	int			fd = open_begun(server, &key, index);

	check_cut(fd, send_lists(fd, &key, 1, 0, piece, bytes - 4), "short");
	fd = open_begun(server, &key, index);
	check_cut(fd, send_lists(fd, &key, 1, 0, piece, 5), "very short");
	fd = open_begun(server, &key, index);
	check_cut(fd, send_lists(fd, &key, 2, 0, piece, bytes), "two");
	fd = open_begun(server, &key, index);
	check_cut(fd, send_lists(fd, &key, 0, 0, piece, bytes), "none");
	fd = open_begun(server, &key, index);
	check_cut(fd, send_lists(fd, &key, -1, 0, piece, bytes), "-1");
	fd = open_begun(server, &key, index);
	check_cut(fd, send_lists(fd, &key, 1, 1, piece, bytes), "unused");
	fd = open_begun(server, &key, index);
	CHECK(send_lists(fd, &key, 0, 0, NULL, 0) == 0, "no pieces");
	CHECK(send_lists(fd, &key, 1, 0, piece, bytes) == 0, "a right piece");
	close(fd);
	free(piece);
}

/* Pieces that do not follow what the list holds. */
static void
test_following(const TestServer *server, TestIndex *index)
{
	TestList   *list = &index->lists[0];
	GvMirrorKey key = test_key(11);
	int			fd = open_begun(server, &key, index);
	int			i;

	check_cut(fd, load_piece(fd, &key, index, 0, 1, 2, 0), "the end first");
	for (i = 0; i < 5; i++)
	{
		int			refusal;

		fd = open_begun(server, &key, index);
		refusal = load_piece(fd, &key, index, 0, 0, 2, 0);
		CHECK(refusal == 0, "the beginning: %d", refusal);
		list->gen += i == 1 || i == 4;
		list->del_seq += i == 2;
		refusal = i < 3 ? load_piece(fd, &key, index, 0, 2, 1, 0) :
			load_piece(fd, &key, index, 0, 0, i == 3 ? 3 : 2, GV_PIECE_LIVE);
		list->gen -= i == 1 || i == 4;
		list->del_seq -= i == 2;
		if (i == 0)
		{
			CHECK(refusal == 0, "the end: %d", refusal);
			close(fd);
		}
		else
			check_cut(fd, refusal, i < 3 ? "another gen or del_seq" :
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
		check_cut(fd, client_ask(fd, GV_MSG_ARRAY, &request, sizeof(request),
								 &one, 4, NULL, NULL), "array");
	}
	fd = client_open(server, GV_ROLE_LOADER);
	CHECK(load_begin(fd, &key, index) == 0, "begin");
	check_cut(fd, load_array(fd, &key, GV_STARTS, 0, 4, wrong), "starts");
	wrong[0] = 1;
	fd = client_open(server, GV_ROLE_LOADER);
	CHECK(load_begin(fd, &key, index) == 0, "begin");
	check_cut(fd, load_array(fd, &key, GV_STARTS, 0, 1, wrong), "starts");
	wrong[0] = 0;
	wrong[2] = 3;
	wrong[3] = 6;
	fd = client_open(server, GV_ROLE_LOADER);
	CHECK(load_begin(fd, &key, index) == 0, "begin");
	CHECK(load_array(fd, &key, GV_STARTS, 0, 2, wrong) == 0, "starts");
	check_cut(fd, load_array(fd, &key, GV_STARTS, 2, 2, wrong), "starts");
	fd = open_begun(server, &key, index);
	check_cut(fd, load_array(fd, &key, GV_STARTS, 0, 4, index->starts),
			  "starts again");
	fd = client_open(server, GV_ROLE_LOADER);
	CHECK(load_begin(fd, &key, index) == 0, "begin");
	check_cut(fd, load_ready(fd, &key), "ready without arrays");
}

static void
test_begin(const TestServer *server, const TestIndex *index)
{
	GvMirrorKey key = test_key(13);
	TestIndex	wrong;
	GvBeginRequest request = {key, GV_L2, 4, 2, 5, 3, -1, 100, 0};
	int			fd;
	int			i;

	for (i = 0; i < 9; i++)
	{
		wrong = *index;
		*(i < 2 ? &wrong.spec.dims : i < 4 ? &wrong.spec.m :
		  i < 6 ? &wrong.spec.nlists : &wrong.spec.nparents) =
			i % 2 == 0 ? 0 : i == 5 ? (1 << 24) + 1 : 20000;
		if (i == 8)
		{
			wrong = *index;
			wrong.spec.metric = (GvMetric) 4;
		}
		fd = client_open(server, GV_ROLE_LOADER);
		check_cut(fd, load_begin(fd, &key, &wrong), "spec");
	}
	fd = client_open(server, GV_ROLE_LOADER);
	check_cut(fd, client_ask(fd, GV_MSG_BEGIN, &request, sizeof(request),
							 NULL, 0, NULL, NULL), "unused");
}

/* Two loaders of one key, loaders that die, mirrors that are there. */
static void
test_owners(const TestServer *server, const TestIndex *index)
{
	GvMirrorKey key = test_key(14);
	int			session = client_open(server, GV_ROLE_SESSION);
	int			first = open_begun(server, &key, index);
	int			second;
	int			got = search_check(session, &key, index);

	CHECK(got == GV_REFUSED_LOADING, "search while loading: %d", got);
	got = search_check(first, &key, index);
	CHECK(got == GV_REFUSED_LOADING, "its loader's search: %d", got);
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
	check_cut(first, load_ready(first, &key), "ready twice");
	CHECK(search_check(session, &key, index) == 0, "its loader is gone");
	first = client_open(server, GV_ROLE_LOADER);
	check_cut(first, load_array(first, &key, GV_PARENTS, 0, 1,
								index->parents), "an array of a ready one");
	first = client_open(server, GV_ROLE_LOADER);
	CHECK(load_drop(first, &key) == 0, "drop");
	CHECK(load_drop(first, &key) == 0, "drop again");
	got = load_lists(first, &key, index);
	CHECK(got == GV_REFUSED_NO_MIRROR, "nobody's mirror: %d", got);
	close(first);
	close(session);
}

/* All pieces of a range of lists as they should come back; the server's. */
static void
check_range(int fd, const GvMirrorKey *key, const TestIndex *index,
			int32_t first, int32_t count)
{
	GvRangeRequest request = {*key, first, count};
	void	   *payload = NULL;
	uint32_t	length = 0;
	size_t		used = 0;
	int32_t		i;

	CHECK(client_ask(fd, GV_MSG_STATES, &request, sizeof(request), NULL, 0,
					 &payload, &length) == 0 &&
		  length == count * sizeof(GvListState), "states");
	for (i = 0; payload != NULL && i < count; i++)
	{
		const TestList *list = &index->lists[first + i];
		GvListState state = {list->gen, list->nitems, list->del_seq};

		CHECK(memcmp((GvListState *) payload + i, &state,
					 sizeof(state)) == 0, "state of list %d", first + i);
	}
	free(payload);
	payload = NULL;
	CHECK(client_ask(fd, GV_MSG_BLOCKS, &request, sizeof(request), NULL, 0,
					 &payload, &length) == 0, "blocks");
	for (i = 0; payload != NULL && i < count; i++)
	{
		size_t		bytes;
		char	   *piece = piece_bytes(index, first + i, 0,
										index->lists[first + i].nblocks, 0,
										&bytes);

		CHECK(used + bytes <= length &&
			  memcmp((char *) payload + used, piece, bytes) == 0,
			  "list %d", first + i);
		used += bytes;
		free(piece);
	}
	CHECK(used == length, "%zu of %u", used, length);
	free(payload);
}

/* What an index goes through, and its mirror after it. */
static void
change(int fd, const GvMirrorKey *key, TestIndex *index)
{
	int32_t		number = (int32_t) (unit_random() % index->spec.nlists);
	TestList   *list = &index->lists[number];
	int32_t		first = 0;
	uint32_t	flags = 0;
	int32_t		i;
	int			got;

	switch (unit_random() % 3)
	{
		case 0:
			for (i = 0; i < list->nblocks; i++)
				list->live[i] &= (uint32_t) unit_random();
			list->del_seq++;
			flags = GV_PIECE_LIVE;
			break;
		case 1:
			resize_list(index, list, (uint32_t) (unit_random() % 150), 0);
			list->gen++;
			break;
		default:
			first = (int32_t) (list->nitems / GV_BLOCK);
			resize_list(index, list,
						list->nitems + (uint32_t) (unit_random() % 150),
						first);
			break;
	}
	got = load_piece(fd, key, index, number, first, list->nblocks - first,
					 flags);
	CHECK(got == 0, "list %d, first %d, flags %u: %d", number, first, flags,
		  got);
}

static void
test_changes(const TestServer *server)
{
	TestIndex	index = make_index(GV_COSINE, 9, 5, 20, 4, 40, true);
	GvMirrorKey key = test_key(15);
	GvRangeRequest wrong = {key, 0, 21};
	int			loader = client_open(server, GV_ROLE_LOADER);
	int			session = client_open(server, GV_ROLE_SESSION);
	GvStatusReply *status;
	int64_t		copies = 0;
	int			round;
	int			i;
	int			got;

	CHECK(load_all(loader, &key, &index) == 0, "load");
	check_range(loader, &key, &index, 0, 20);
	for (round = 0; round < (unit_small ? 3 : 30); round++)
	{
		for (i = 0; i < 8; i++)
			change(loader, &key, &index);
		got = search_check(session, &key, &index);
		CHECK(got == 0, "changed: %d", got);
		check_range(loader, &key, &index, round % 20, 20 - round % 20);
	}
	status = load_status(session);
	for (i = 0; i < index.spec.nlists; i++)
		copies += index.lists[i].nitems;
	CHECK(((GvMirrorStatus *) (status + 1))->copies == copies &&
		  ((GvMirrorStatus *) (status + 1))->ready == 1 &&
		  ((GvMirrorStatus *) (status + 1))->searches == round, "status");
	free(status);
	for (i = 0; i < 4; i++)
	{
		wrong.first = i == 0 ? -1 : i == 1 ? 20 : 0;
		wrong.count = i == 2 ? 0 : i == 3 ? 21 : 1;
		close(loader);
		loader = client_open(server, GV_ROLE_LOADER);
		check_cut(loader, client_ask(loader, i % 2 == 0 ? GV_MSG_STATES :
									 GV_MSG_BLOCKS, &wrong, sizeof(wrong),
									 NULL, 0, NULL, NULL), "range");
		loader = client_open(server, GV_ROLE_LOADER);
	}
	CHECK(load_drop(loader, &key) == 0, "drop");
	close(loader);
	close(session);
	free_index(&index);
}

/* Lists of more than a message: as many come back as fit, or a part of one. */
static void
test_large(const TestServer *server)
{
	TestIndex	index = make_index(GV_L2, 800, 800, 2, 1, 0, false);
	GvMirrorKey key = test_key(16);
	GvRangeRequest request = {key, 0, 2};
	int			loader = client_open(server, GV_ROLE_LOADER);
	void	   *payload = NULL;
	uint32_t	length = 0;
	int32_t		i;

	for (i = 0; i < 2; i++)
		resize_list(&index, &index.lists[i], i == 0 ? 100 : 45000, 0);
	CHECK(load_begin(loader, &key, &index) == 0, "begin");
	CHECK(load_piece(loader, &key, &index, 0, 0, index.lists[0].nblocks,
					 0) == 0, "short list");
	for (i = 0; i < index.lists[1].nblocks; i += 500)
	{
		int32_t		left = index.lists[1].nblocks - i;

		CHECK(load_piece(loader, &key, &index, 1, i, left < 500 ? left : 500,
						 0) == 0, "long list");
	}
	CHECK(client_ask(loader, GV_MSG_BLOCKS, &request, sizeof(request), NULL,
					 0, &payload, &length) == 0, "both");
	CHECK(payload != NULL && length == (uint32_t)
		  gv_piece_bytes(payload, gv_code_bytes(800)), "the first only");
	free(payload);
	payload = NULL;
	request.first = 1;
	request.count = 1;
	CHECK(client_ask(loader, GV_MSG_BLOCKS, &request, sizeof(request), NULL,
					 0, &payload, &length) == 0, "the long one");
	if (payload != NULL)
	{
		GvPiece    *piece = payload;

		CHECK(length <= GV_MAX_MESSAGE && length > GV_MAX_MESSAGE - 20000 &&
			  (int64_t) length == gv_piece_bytes(piece, 400) &&
			  piece->state.nitems == (uint32_t) piece->nblocks * GV_BLOCK &&
			  piece->nblocks < index.lists[1].nblocks, "a part");
		free(payload);
	}
	close(loader);
	free_index(&index);
}

/*
 * Searches while lists change back and forth between two versions: what an
 * answer says of its lists' states is what it searched.
 */
static int
search_versions(int fd, const GvMirrorKey *key, const TestIndex *versions)
{
	TestIndex	seen = versions[0];
	TestSearch	search = make_search(key, &versions[0]);
	GvMessage	header;
	GvSearchReply *reply;
	int			wrong = 1;
	GvSearch	found = {0};
	int32_t		i;

	seen.lists = malloc(sizeof(TestList) * seen.spec.nlists);
	memcpy(seen.lists, versions[0].lists,
		   sizeof(TestList) * seen.spec.nlists);
	search.request.probes = seen.spec.nlists;
	found.probed = calloc(seen.spec.nlists, sizeof(GvProbe));
	reply = search_send(fd, &search) ? client_answer(fd, &header) : NULL;
	if (reply != NULL && header.type == GV_MSG_OK)
	{
		GvProbeReply *probed = (GvProbeReply *) (reply + 1);

		for (i = 0; i < reply->nprobed; i++)
		{
			int			version = probed[i].state.gen == 2;

			seen.lists[probed[i].list] =
				versions[version].lists[probed[i].list];
			found.probed[i] = (GvProbe) {probed[i].list, probed[i].base};
		}
		found.nprobed = reply->nprobed;
		found.nhits = reply->nhits;
		found.copies = reply->copies;
		found.hits = (GvHit *) (probed + reply->nprobed);
		wrong = !search_is_right(&seen, search.query, search.request.probes,
								 search.request.compare,
								 search.request.capacity, &found);
	}
	free(reply);
	free(found.probed);
	free(seen.lists);
	free_search(&search);
	return wrong;
}

static void
test_meanwhile(const TestServer *server)
{
	int			loader = client_open(server, GV_ROLE_LOADER);
	GvMirrorKey key = test_key(17);
	TestIndex	versions[2];
	int			rounds = unit_small ? 10 : 150;
	int			status;
	int			i;
	int			n;

	versions[0] = make_index(GV_L2, 6, 3, 10, 1, 60, false);
	versions[1] = versions[0];
	versions[1].lists = calloc(10, sizeof(TestList));
	for (i = 0; i < 10; i++)
	{
		versions[0].lists[i].gen = 1;
		versions[1].lists[i].gen = 2;
		resize_list(&versions[1], &versions[1].lists[i],
					(uint32_t) (unit_random() % 100), 0);
	}
	CHECK(load_all(loader, &key, &versions[0]) == 0, "load");
	for (i = 0; i < 3; i++)
		if (fork() == 0)
		{
			int			session = client_open(server, GV_ROLE_SESSION);
			int			wrong = 0;

			unit_seed += (uint64_t) i * 1000003;
			while (rounds-- > 0)
				wrong += search_versions(session, &key, versions);
			_exit(wrong > 0);
		}
	for (n = 0, i = 0; i < 3; n++)
	{
		int			done = waitpid(-1, &status, WNOHANG) > 0;

		i += done;
		CHECK(!done || status == 0, "wrong answers: %d", status);
		if (load_piece(loader, &key, &versions[n / 10 % 2 == 0], n % 10, 0,
					   versions[n / 10 % 2 == 0].lists[n % 10].nblocks,
					   0) != 0)
			CHECK(false, "change %d", n);
	}
	CHECK(load_drop(loader, &key) == 0, "drop");
	close(loader);
	for (i = 0; i < 10; i++)
		free_list(&versions[1].lists[i]);
	free(versions[1].lists);
	free_index(&versions[0]);
}

void
test_loading(void)
{
	TestServer	server = server_start(NULL, NULL);
	TestIndex	index = make_index(GV_L2, 4, 2, 5, 3, 0, false);
	int			session = client_open(&server, GV_ROLE_SESSION);

	/* list 0: three blocks, the last with 16 copies */
	resize_list(&index, &index.lists[0], 80, 0);
	test_malformed(&server, &index);
	test_lengths(&server, &index);
	test_following(&server, &index);
	test_arrays(&server, &index);
	test_begin(&server, &index);
	CHECK(mirrors_become(session, 0), "mirrors of who was cut off");
	test_owners(&server, &index);
	test_changes(&server);
	test_large(&server);
	CHECK(mirrors_become(session, 0), "at the end");
	test_meanwhile(&server);
	close(session);
	free_index(&index);
	CHECK(server_stop(&server) == 0, "SIGTERM");
	server_remove(&server);
}
