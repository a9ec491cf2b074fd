/*
 * check_loading.c
 *		Loaders: whose a mirror is, and what is read back from it.  What they
 *		may not bring is in check_wrong.c.
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

/* Read a part of each array back, and all records. */
static void
check_readback(int loader, const GvMirrorKey *key, const TestIndex *index,
			   const Records *records)
{
	int32_t		n = records->npages * records->nslots;
	GvListsRequest request = {*key, n, 0};
	OWN uint16_t *addresses = record_addresses(records);
	FREED void *payload = NULL;
	uint32_t	length;
	int			nwrong = 0;
	int32_t		i;

	for (i = 0; i < GV_NARRAYS; i++)
	{
		GvArrayRequest part = {*key, i, 0, 1, 2};
		FREED void *values = NULL;
		int64_t		all;

		CHECK(client_ask(loader, GV_MSG_READ_ARRAY, &part, sizeof(part), NULL,
						 0, &values, &length) == 0 && length == 8 &&
			  memcmp(values, (const char *)
					 index_array(index, (GvArray) i, &all) + 4, 8) == 0,
			  "array %d", i);
	}
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
}

/* Refine records, which change while there are searches. */
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
		CHECK(load_records(loader, &key, &records) == 0, "records");
		for (i = 0; i < 20; i++)
		{
			OwnSearch	search = make_search(&key, &index);

			search.records = &records;
			CHECK(search_send(session, &search) &&
				  search_receive(session, &index, &search) == 0, "bounds");
		}
		check_readback(loader, &key, &index, &records);
	}
	CHECK(load_drop(loader, &key) == 0, "drop");
}

/* Two loaders of one key, loaders that die, mirrors that are there. */
static void
test_owners(const TestServer *server, const TestIndex *index)
{
	GvMirrorKey key = test_key(14);
	OwnFd		session = client_open(server, GV_ROLE_SESSION);
	int			first = client_open(server, GV_ROLE_LOADER);
	int			second;
	int			got;

	CHECK(load_begin(first, &key, index) == 0 &&
		  load_arrays(first, &key, index) == 0, "begin");
	got = search_check(session, &key, index);
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
	close(first);
	CHECK(search_check(session, &key, index) == 0, "its loader is gone");
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
	OwnIndex	index = make_index(GV_L2, 4, 2, 5, 3, 20, false);
	OwnFd		session = client_open(&server, GV_ROLE_SESSION);

	test_items(&server);
	test_owners(&server, &index);
	CHECK(mirrors_become(session, 0), "at the end");
	server_end(&server);
}
