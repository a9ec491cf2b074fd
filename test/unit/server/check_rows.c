/*
 * check_rows.c
 *		Rows of tables in mirrors: who may bring them and when, what is read
 *		back and told of hits, and who loses them when memory is short.
 */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "client.h"

#define NCLIENTS	8
#define NPAGES		20
#define NSLOTS		7

/* Begins a mirror, and sets *form to the rows that it takes. */
static int
begin(int fd, const GvMirrorKey *key, const TestIndex *index, int32_t must,
	  int32_t *form)
{
	GvBeginRequest request = {.key = *key,.spec = index->spec,.must = must};
	FREED GvBeginReply *reply = NULL;
	uint32_t	length = 0;
	int			got = client_ask(fd, GV_MSG_BEGIN, &request, sizeof(request),
								 NULL, 0, (void **) &reply, &length);

	if (got == 0)
		CHECK(length == sizeof(*reply) && reply->unused == 0, "%u", length);
	*form = got == 0 ? reply->rows : -1;
	return got;
}

/* Test: a whole mirror is loaded, but its rows, and takes rows of this form. */
static void
check_load(int fd, const GvMirrorKey *key, const TestIndex *index,
		   int32_t must, GvRowForm expected, const char *what)
{
	int32_t		form;
	int			got = begin(fd, key, index, must, &form);

	CHECK(got == 0 && form == (int32_t) expected, "%s: %d, form %d", what, got,
		  form);
	CHECK(load_arrays(fd, key, index) == 0 && load_lists(fd, key, index) == 0 &&
		  load_ready(fd, key) == 0, "%s", what);
}

/* The connection looks at the states of lists from `first` on. */
static int
look(int fd, const GvMirrorKey *key, int32_t first)
{
	GvRangeRequest request = {*key, first, 1, 0, 0};

	return ASK(fd, GV_MSG_LIST_STATES, request);
}

static int
put(int fd, const GvMirrorKey *key, const void *items, int32_t n,
	size_t stride)
{
	GvListsRequest request = {*key, n, 0};

	return ASK_MORE(fd, GV_MSG_ROWS, request, items, stride * (size_t) n);
}

/* Puts some rows, drawn anew. */
static int
put_drawn(int fd, const GvMirrorKey *key, Rows *rows)
{
	int32_t		n;
	OWN char   *items = draw_rows(rows, rows->nslots, &n);

	return put(fd, key, items, n, rows->stride);
}

/* Puts a row in each slot of each page. */
static int
put_all(int fd, const GvMirrorKey *key, const Rows *rows)
{
	int32_t		n = rows->npages * rows->nslots;
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		draw_values(rows, row_at(rows, i));
		row_at(rows, i)->known = 1;
	}
	return put(fd, key, rows->items, n, rows->stride);
}

/* Puts as many rows as no device has memory for. */
static int
put_too_many(int fd, const GvMirrorKey *key, const Rows *rows)
{
	int32_t		n = (int32_t) ((15 << 20) / rows->stride);
	FREED char *items = calloc((size_t) n, rows->stride);
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		GvRowItem  *item = (GvRowItem *) (items + rows->stride * (size_t) i);

		item->rowid[1] = (uint16_t) (i / 100);
		item->rowid[2] = (uint16_t) (i % 100 + 1);
		item->known = 1;
	}
	return put(fd, key, items, n, rows->stride);
}

/* Test: all rows are read as they were put, or, if NULL, that there are none. */
static void
check_read(int fd, const GvMirrorKey *key, const Rows *rows, const char *what)
{
	int32_t		n = NPAGES * NSLOTS;
	GvListsRequest request = {*key, n, 0};
	OWN uint16_t *ids = unit_alloc((size_t) n * 6);
	FREED char *items = NULL;
	uint32_t	length = 0;
	int			nwrong = 0;
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		uint16_t	id[3] = {0, (uint16_t) (i / NSLOTS),
		(uint16_t) (i % NSLOTS + 1)};

		memcpy(ids + 3 * i, id, sizeof(id));
	}
	OK(client_ask(fd, GV_MSG_READ_ROWS, &request, sizeof(request), ids,
				  (size_t) n * 6, (void **) &items, &length));
	CHECK(length == (rows != NULL ? rows->stride * (size_t) n : 0),
		  "%s: %u bytes", what, length);
	for (i = 0; rows != NULL && items != NULL && i < n; i++)
	{
		const GvRowItem *item = (GvRowItem *) (items + rows->stride *
											   (size_t) i);
		const GvRowItem *right = row_of(rows, ids + 3 * i);

		nwrong += memcmp(item->rowid, ids + 3 * i, 6) != 0 ||
			item->known != (right != NULL) ||
			(right != NULL && memcmp(item->values, right->values,
									 gv_row_bytes(rows->spec->rows,
												  rows->spec->dims)) != 0);
	}
	CHECK(nwrong == 0, "%s: %d rows", what, nwrong);
}

/* Test: a search that asks, and one that does not, of these rows or of none. */
static void
check_distances(int fd, const GvMirrorKey *key, const TestIndex *index,
				const Rows *rows, bool there, const char *what)
{
	OwnSearch	search = make_search(key, index);
	int			got;

	search_ask(&search, rows);
	if (!there)
		search.rows = NULL;
	CHECK(search_send(fd, &search), "%s", what);
	got = search_receive(fd, index, &search);
	CHECK(got == 0, "%s: asked, %d", what, got);
	got = search_check(fd, key, index);
	CHECK(got == 0, "%s: not asked, %d", what, got);
}

/* Test: a mirror's rows, by its status. */
static void
check_form(int fd, const GvMirrorKey *key, int32_t form, const char *what)
{
	GvMirrorStatus told = load_told(fd, key);

	CHECK(told.ready && told.rows == form, "%s: ready %d, form %d", what,
		  told.ready, told.rows);
}

/* Many queries of one message, which ask. */
static void
check_bulk(const TestServer *server, int session, const GvMirrorKey *key,
		   const TestIndex *index, const Rows *rows)
{
	OwnFd		bulk = client_open(server, GV_ROLE_BULK);
	OwnSearch	search = make_search(key, index);
	int32_t		dims = index->spec.dims;
	OWN float  *queries = index_floats(30 * (size_t) dims, false);

	search.request.n = 30;
	search.request.asked = 1;
	search.asked = index_floats(30 * (size_t) dims, false);
	search.rows = rows;
	search_many(bulk, session, &search, queries);
}

/* Both forms and all metrics, with keys and without; rows change. */
static void
test_forms(const TestServer *server)
{
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	GvMirrorKey key = test_key(21);
	int			i;
	int			n;

	for (i = 0; i < 6; i++)
	{
		OwnIndex	index = make_index(GV_L2 + i % 3, 33, 5, 9, 3, 60, false);
		GvRowForm	form = GV_ROWS_FLOAT + i / 3;
		OwnRows		rows = {0};
		int			round;

		if (i % 2 > 0)
			give_keys(&index, 2);
		rows = make_rows(&index, form, NPAGES, NSLOTS);
		check_load(loader, &key, &index, i % 2, form, "load");
		check_form(loader, &key, form, "loaded");
		OK(look(loader, &key, 0));
		for (round = 0; round < 4; round++)
		{
			for (n = 0; n < 10; n++)
				check_distances(session, &key, &index, &rows, true, "round");
			check_bulk(server, session, &key, &index, &rows);
			check_read(loader, &key, &rows, "round");
			OK(put_drawn(loader, &key, &rows));
		}
		OK(load_drop(loader, &key));
	}
}

/*
 * Before a mirror is ready its owner brings rows, and nobody else; then only
 * the connection that was the last to look at the states from list 0 on.
 */
static void
test_last_loader(const TestServer *server)
{
	OwnIndex	index = make_index(GV_COSINE, 9, 3, 9, 3, 30, false);
	OwnRows		rows = make_rows(&index, GV_ROWS_HALF, NPAGES, NSLOTS);
	OwnRows		wrong = make_rows(&index, GV_ROWS_HALF, NPAGES, NSLOTS);
	GvMirrorKey key = test_key(22);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	int			first = client_open(server, GV_ROLE_LOADER);
	int			second = client_open(server, GV_ROLE_LOADER);
	int			third = client_open(server, GV_ROLE_LOADER);
	int32_t		form;
	int			got;

	CHECK(begin(first, &key, &index, 0, &form) == 0 && form == GV_ROWS_HALF,
		  "begin");
	got = put_drawn(second, &key, &wrong);
	CHECK(got == GV_REFUSED_LOADING, "another's mirror: %d", got);
	OK(put_drawn(first, &key, &rows));
	CHECK(load_arrays(first, &key, &index) == 0 &&
		  load_lists(first, &key, &index) == 0, "load");
	OK(put_drawn(first, &key, &rows));
	OK(load_ready(first, &key));
	client_cut(first, put_drawn(first, &key, &wrong), "who has not looked");
	OK(look(second, &key, 0));
	OK(put_drawn(second, &key, &rows));
	OK(look(third, &key, 1));
	OK(put_drawn(second, &key, &rows));
	OK(look(third, &key, 0));
	OK(put_drawn(third, &key, &rows));
	client_cut(second, put_drawn(second, &key, &wrong), "an older loader");
	OK(put_drawn(third, &key, &rows));
	check_read(third, &key, &rows, "the last loader's");
	check_distances(session, &key, &index, &rows, true, "the last loader's");
	OK(load_drop(third, &key));
	close(third);
}

/* Does a hit's row have a distance by which it can be left out? */
static bool
is_measured(const GvRowDistance *row)
{
	return row->known && !isnan(row->distance);
}

/*
 * Test: the nearest rows of an answer, with what it leaves out, are the whole
 * answer: `kept` is what the same search finds that asks for request->keep of
 * the first request->rows rows.  Returns whether anything was left out.
 */
static bool
check_kept(const GvSearchRequest *request, const GvSearchReply *whole,
		   const GvSearchReply *kept, const char *what)
{
	GvAnswerArrays all = gv_answer_arrays(whole, whole);
	GvAnswerArrays some = gv_answer_arrays(kept, kept);
	const GvOmitted *omitted = &kept->omitted;
	double		least = INFINITY;
	float		magnitude = 0;
	int			nrows = 0;
	int			nout = 0;
	int			nkept = 0;
	int			nmeasured = 0;
	int			i;
	int			j;

	CHECK(kept->nfound == whole->nhits && whole->omitted.n == 0 &&
		  whole->nfound == whole->nhits, "%s: found", what);
	if (omitted->n == 0)
	{
		CHECK(kept->nhits == whole->nhits &&
			  memcmp(some.hits, all.hits,
					 (size_t) kept->nhits * sizeof(GvHit)) == 0,
			  "%s: all", what);
		return false;
	}
	for (i = 0; i < whole->nhits && nrows < request->rows; i++)
	{
		const GvRowDistance *row = &all.distances[i];

		for (j = 0; j < i; j++)
			if (memcmp(all.hits[i].rowid, all.hits[j].rowid, 6) == 0)
				break;
		if (j < i)
			continue;
		nrows++;
		if (nkept < kept->nhits &&
			memcmp(&some.hits[nkept], &all.hits[i], sizeof(GvHit)) == 0 &&
			memcmp(&some.distances[nkept], row, sizeof(*row)) == 0)
		{
			nkept++;
			nmeasured += is_measured(row);
			CHECK(!is_measured(row) || row->distance <= omitted->distance,
				  "%s: %g is kept, %g not", what, row->distance,
				  omitted->distance);
			continue;
		}
		nout++;
		CHECK(is_measured(row), "%s: a row that is not known", what);
		least = fmin(least, row->distance);
		magnitude = fmaxf(magnitude, row->magnitude);
	}
	CHECK(nkept == kept->nhits && nout == omitted->n &&
		  least == omitted->distance && magnitude == omitted->magnitude &&
		  nmeasured >= request->keep, "%s: kept %d of %d, out %d of %d, %g and %g",
		  what, nkept, kept->nhits, nout, omitted->n, least,
		  omitted->distance);
	CHECK(request->ntests == 0 ||
		  (whole->nhits < request->capacity && nrows < request->rows),
		  "%s: a part of what satisfies a condition", what);
	return true;
}

/* Sessions that need some of the nearest rows get these, and what was omitted. */
static void
test_nearest(const TestServer *server)
{
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	GvMirrorKey key = test_key(29);
	int			ncut[2] = {0};
	int			i;
	int			n;

	for (i = 0; i < 6; i++)
	{
		OwnIndex	index = make_index(GV_L2 + i % 3, 9, 3, 9, 3, 200, i == 0);
		OwnRows		rows = {0};

		if (i >= 3)
			give_keys(&index, 2);
		rows = make_rows(&index, GV_ROWS_FLOAT, 10, 100);
		check_load(loader, &key, &index, 1, GV_ROWS_FLOAT, "load");
		OK(look(loader, &key, 0));
		OK(put_all(loader, &key, &rows));
		for (n = 0; n < 60; n++)
		{
			OwnSearch	search = make_search(&key, &index);
			FREED GvSearchReply *whole = NULL;
			FREED GvSearchReply *kept = NULL;
			uint32_t	length;

			search_ask(&search, &rows);
			search.request.capacity = 1 << (4 + n % 8);
			search.request.rank %= search.request.capacity;
			CHECK(search_send(session, &search), "send");
			OK(client_receive(session, GV_MSG_SEARCH, (void **) &whole,
							  &length));
			search.request.keep = 1 + (int32_t) (unit_random() % 100);
			search.request.rows = search.request.capacity / (1 + n % 3);
			CHECK(search_send(session, &search), "send");
			OK(client_receive(session, GV_MSG_SEARCH, (void **) &kept,
							  &length));
			CHECK(length == gv_answer_bytes(&search.request, kept), "length");
			ncut[i / 3] += check_kept(&search.request, whole, kept,
									  i < 3 ? "plain" : "keys");
		}
		OK(load_drop(loader, &key));
	}
	CHECK(ncut[0] > 10 && ncut[1] > 5, "%d and %d answers were cut", ncut[0],
		  ncut[1]);
}

/* Sessions that ask and others that do not are answered in one batch. */
static void
test_batch(const TestServer *server)
{
	OwnIndex	index = make_index(GV_IP, 8, 4, 9, 3, 60, false);
	OwnRows		rows = make_rows(&index, GV_ROWS_FLOAT, NPAGES, NSLOTS);
	GvMirrorKey key = test_key(23);
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnCrowd	crowd = crowd_open(server, GV_ROLE_SESSION, NCLIENTS);
	GvStatusReply before;
	int			got;
	int			i;

	check_load(loader, &key, &index, 0, GV_ROWS_FLOAT, "load");
	OK(look(loader, &key, 0));
	OK(put_drawn(loader, &key, &rows));
	before = load_totals(loader);
	server_freeze(server);
	for (i = 0; i < NCLIENTS; i++)
	{
		crowd.searches[i] = make_search(&key, &index);
		if (i % 2 == 0)
			search_ask(&crowd.searches[i], &rows);
		CHECK(search_send(crowd.fds[i], &crowd.searches[i]), "send");
	}
	server_thaw(server);
	for (i = 0; i < NCLIENTS; i++)
	{
		got = crowd_answer(&crowd, i, &index);
		CHECK(got == 0, "client %d: %d", i, got);
	}
	CHECK(load_totals(loader).batches == before.batches + 1, "batches");
	OK(load_drop(loader, &key));
}

/*
 * Rows for which there is no memory: the mirror drops all of its own, and
 * takes no more, and nobody else's go for them.
 */
static void
test_no_memory(void)
{
	TestServer	server = server_start("--memory", "5", "--keep", "0", NULL);
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	OwnFd		session = client_open(&server, GV_ROLE_SESSION);
	GvMirrorKey keys[2] = {test_key(1), test_key(2)};
	OwnIndex	index = make_index(GV_L2, 64, 4, 9, 3, 60, false);
	OwnRows		none = make_rows(&index, GV_ROWS_FLOAT, NPAGES, NSLOTS);
	OwnRows		rows = make_rows(&index, GV_ROWS_FLOAT, NPAGES, NSLOTS);
	int64_t		used;
	int			i;

	for (i = 0; i < 2; i++)
	{
		check_load(loader, &keys[i], &index, 0, GV_ROWS_FLOAT, "load");
		OK(look(loader, &keys[i], 0));
	}
	OK(put_drawn(loader, &keys[1], &rows));
	check_distances(session, &keys[1], &index, &rows, true, "before");
	used = load_totals(loader).used;
	OK(put_too_many(loader, &keys[1], &rows));
	check_form(loader, &keys[1], GV_ROWS_NONE, "too many rows");
	check_form(loader, &keys[0], GV_ROWS_FLOAT, "others' rows");
	CHECK(load_totals(loader).used < used, "dropped rows are counted");
	for (i = 0; i < 3; i++)
	{
		check_distances(session, &keys[1], &index, &rows, false, "without");
		check_bulk(&server, session, &keys[1], &index, NULL);
		check_read(loader, &keys[1], NULL, "without");
		/* ignored, whatever they are */
		OK(put_drawn(loader, &keys[1], &rows));
		OK(put(loader, &keys[1], NULL, 0, 0));
	}
	check_distances(session, &keys[0], &index, &none, true, "others' rows");
	OK(load_drop(loader, &keys[1]));
	check_load(loader, &keys[1], &index, 0, GV_ROWS_FLOAT, "begun again");
	CHECK(load_totals(loader).evictions == 0, "evictions");
	CHECK(server_stop(&server) == 0, "SIGTERM");
	server_check_log(&server, "LOG: dropped rows of the mirror of index 3: "
					 "out of memory to extend them");
	server_remove(&server);
}

/* The first n lists get 4,000 postings each. */
static void
grow(int fd, const GvMirrorKey *key, TestIndex *index, int32_t n)
{
	int32_t		list;

	for (list = 0; list < n; list++)
	{
		resize_list(index, &index->lists[list], 4000, 0);
		OK(load_chunk(fd, key, index, list, 0, index->lists[list].nblocks, 0));
	}
}

/* Lists that grow take the place of the mirror's own rows, too. */
static void
test_growth(void)
{
	TestServer	server = server_start("--memory", "4", "--keep", "1000", NULL);
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	OwnFd		session = client_open(&server, GV_ROLE_SESSION);
	GvMirrorKey key = test_key(1);
	OwnIndex	index = make_index(GV_L2, 64, 64, 40, 1, 0, false);
	OwnRows		rows = make_rows(&index, GV_ROWS_FLOAT, NPAGES, NSLOTS);

	check_load(loader, &key, &index, 0, GV_ROWS_FLOAT, "load");
	OK(look(loader, &key, 0));
	OK(put_drawn(loader, &key, &rows));
	grow(loader, &key, &index, 18);
	check_form(loader, &key, GV_ROWS_NONE, "lists have grown");
	check_distances(session, &key, &index, &rows, false, "lists have grown");
	server_end(&server);
}

/*
 * Rows do not go where that would not be enough, however much their mirror has
 * grown.
 */
static void
test_in_vain(void)
{
	TestServer	server = server_start("--memory", "5", "--keep", "1000", NULL);
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	GvMirrorKey key = test_key(1);
	GvMirrorKey other = test_key(2);
	OwnIndex	index = make_index(GV_L2, 64, 64, 40, 1, 0, false);
	OwnIndex	large = make_index(GV_L2, 32, 32, 2000, 7, 47, false);
	OwnRows		rows = make_rows(&index, GV_ROWS_FLOAT, NPAGES, NSLOTS);
	int32_t		form;
	int			got;

	check_load(loader, &key, &index, 0, GV_ROWS_FLOAT, "load");
	OK(look(loader, &key, 0));
	OK(put_drawn(loader, &key, &rows));
	grow(loader, &key, &index, 14);
	check_form(loader, &key, GV_ROWS_FLOAT, "grown");
	got = begin(loader, &other, &large, 0, &form);
	CHECK(got == GV_REFUSED_NO_MEMORY, "%d", got);
	check_form(loader, &key, GV_ROWS_FLOAT, "in vain");
	server_end(&server);
}

/* Tests: a mirror without rows, of 2 kB a list, is loaded. */
static void
check_bare(int fd, const GvMirrorKey *key, int32_t nlists, const char *what)
{
	OwnIndex	index = make_index(GV_L2, 32, 32, nlists, 7, 47, false);

	check_load(fd, key, &index, 0, GV_ROWS_NONE, what);
}

/* Tests: so many mirrors have been evicted. */
static void
check_evictions(int fd, int64_t expected, const char *what)
{
	GvStatusReply totals = load_totals(fd);

	CHECK(totals.evictions == expected && totals.used <= totals.memory,
		  "%s: %lld evictions, %lld of %lld bytes", what,
		  (long long) totals.evictions, (long long) totals.used,
		  (long long) totals.memory);
}

/*
 * A mirror takes the rows of the one that was searched least recently, then
 * other rows, then mirrors; its own rows are left out, or take mirrors, too.
 */
static void
test_eviction(void)
{
	TestServer	server = server_start("--memory", "6", "--keep", "1", NULL);
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	OwnFd		session = client_open(&server, GV_ROLE_SESSION);
	GvMirrorKey old = test_key(1);
	GvMirrorKey young = test_key(2);
	GvMirrorKey bare = test_key(3);
	GvMirrorKey other = test_key(4);
	OwnIndex	index = make_index(GV_L2, 8, 4, 9, 3, 60, false);
	OwnRows		rows = make_rows(&index, GV_ROWS_FLOAT, NPAGES, NSLOTS);
	int32_t		form;

	check_load(loader, &young, &index, 0, GV_ROWS_FLOAT, "young");
	OK(look(loader, &young, 0));
	OK(put_drawn(loader, &young, &rows));
	check_load(loader, &old, &index, 0, GV_ROWS_FLOAT, "old");
	OK(look(loader, &old, 0));
	OK(put_drawn(loader, &old, &rows));
	usleep(20000);
	OK(search_check(session, &young, &index));
	/* mirrors could go, too */
	usleep(1100000);
	check_bare(loader, &bare, 2000, "bare");
	check_form(loader, &old, GV_ROWS_NONE, "old");
	check_form(loader, &young, GV_ROWS_FLOAT, "young");
	check_bare(loader, &other, 1000, "other");
	check_form(loader, &young, GV_ROWS_NONE, "young");
	check_evictions(loader, 0, "rows");
	check_distances(session, &old, &index, &rows, false, "old");
	check_distances(session, &young, &index, &rows, false, "young");
	CHECK(load_drop(loader, &old) == 0 && load_drop(loader, &young) == 0,
		  "drop");

	/* all are in use, and then are not */
	check_load(loader, &old, &index, 1, GV_ROWS_NONE, "in use");
	OK(load_drop(loader, &old));
	usleep(1100000);
	check_load(loader, &old, &index, 0, GV_ROWS_NONE, "no free memory");
	check_evictions(loader, 0, "no rows");
	OK(load_drop(loader, &old));
	CHECK(begin(loader, &old, &index, 1, &form) == 0 && form == GV_ROWS_FLOAT,
		  "form %d", form);
	check_evictions(loader, 1, "rows that must be");
	CHECK(!load_told(loader, &bare).ready && load_told(loader, &other).ready,
		  "the mirror idle longest");
	server_end(&server);
}

/* Spare replicas go before rows. */
static void
test_spare(void)
{
	TestServer	server = server_start("--devices", "0,1", "--memory", "4",
									  "--keep", "1000", "--replicas", "2",
									  NULL);
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	OwnFd		session = client_open(&server, GV_ROLE_SESSION);
	GvMirrorKey key = test_key(1);
	GvMirrorKey bare[2] = {test_key(2), test_key(3)};
	OwnIndex	index = make_index(GV_IP, 8, 4, 9, 3, 60, false);
	OwnRows		rows = make_rows(&index, GV_ROWS_HALF, NPAGES, NSLOTS);
	int			i;

	check_load(loader, &key, &index, 0, GV_ROWS_HALF, "load");
	OK(look(loader, &key, 0));
	OK(put_drawn(loader, &key, &rows));
	for (i = 0; i < 3; i++)
	{
		GvMirrorStatus told;

		if (i > 0)
			check_bare(loader, &bare[i - 1], 1700, "bare");
		told = load_told(loader, &key);
		CHECK(told.ready && told.replicas == (i == 0 ? 2 : 1) &&
			  told.rows == (i < 2 ? GV_ROWS_HALF : GV_ROWS_NONE),
			  "%d: %d replicas, form %d", i, told.replicas, told.rows);
		check_distances(session, &key, &index, &rows, i < 2, "replicas");
	}
	check_evictions(loader, 1, "a replica");
	server_end(&server);
}

/* The engine's n-th call finds no memory.  Returns whether that was for rows. */
static bool
try_starved(int n, const TestIndex *index, Rows *rows)
{
	GvMirrorKey key = test_key(1);
	char		fault[16];
	TestServer	server;
	int			loader;
	int			session;
	bool		tried;

	snprintf(fault, sizeof(fault), "%d:3", n);
	server = server_start("--fault", fault, NULL);
	loader = client_open(&server, GV_ROLE_LOADER);
	session = client_open(&server, GV_ROLE_SESSION);
	tried = load_all(loader, &key, index) == 0 &&
		load_told(loader, &key).rows == rows->spec->rows &&
		look(loader, &key, 0) == 0 && put_drawn(loader, &key, rows) == 0 &&
		load_told(loader, &key).rows == GV_ROWS_NONE;
	if (tried)
	{
		check_read(loader, &key, NULL, "starved");
		check_distances(session, &key, index, rows, false, "starved");
		OK(put_drawn(loader, &key, rows));
	}
	close(session);
	close(loader);
	server_end(&server);
	return tried;
}

/* The engine has less memory than the budget. */
static void
test_starved_rows(void)
{
	OwnIndex	index = make_index(GV_L2, 8, 4, 2, 1, 60, false);
	OwnRows		rows = make_rows(&index, GV_ROWS_FLOAT, NPAGES, NSLOTS);
	/* with the first calls it does not start */
	int			n = 4;

	while (n < 60 && !try_starved(n, &index, &rows))
		n++;
	CHECK(n < 60, "no rows find no memory");
}

void
test_rows_sent(void)
{
	TestServer	server = server_start(NULL);

	test_forms(&server);
	test_last_loader(&server);
	test_nearest(&server);
	test_batch(&server);
	server_end(&server);
	if (test_device)
		return;
	test_no_memory();
	test_growth();
	test_in_vain();
	test_eviction();
	test_spare();
	test_starved_rows();
}
