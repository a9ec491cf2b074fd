/*
 * check_placements.c
 *		Mirrors on R replicas of S shards each answer alike, bit for bit: what
 *		each placement answers to sessions and to bulk clients, and what can be
 *		read back from it, is compared with the bytes of a mirror on one
 *		device, before and after its lists and records have changed.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

#define NCLIENTS	12
#define NLISTS		4000		/* 2 kB each */
#define PAGES		200			/* of refine records */
#define SLOTS		9
#define QUERIES		20			/* of a bulk client's message */

/* A placement, and what makes the server choose it. */
typedef struct Shape
{
	int32_t		shards;
	int32_t		replicas;
	const char *devices;
	const char *megabytes;		/* of each */
} Shape;

static const Shape shapes[] = {
	{1, 1, "0", "16"},			/* the others are compared with this one */
	{1, 3, "0,1,2", "16"},
	{3, 1, "0,1,2", "5"},
	{4, 1, "0,1,2,3", "4"},
	{2, 2, "0,1,2,3", "6"},
	{2, 3, "0,1,2,3,4,5", "6"},
	{3, 2, "0,1,2,3,4,5", "5"},
};

#define NSHAPES		((int) (sizeof(shapes) / sizeof(shapes[0])))

/* All bytes that a server said, one answer after another. */
typedef struct Said
{
	char	   *bytes;
	size_t		used;
	size_t		capacity;
} Said;

static void
add(Said *said, const void *bytes, size_t n)
{
	if (said->used + n > said->capacity)
	{
		said->capacity = 2 * (said->used + n);
		said->bytes = realloc(said->bytes, said->capacity);
	}
	memcpy(said->bytes + said->used, bytes, n);
	said->used += n;
}

/* Adds the next answer, which must be no refusal, to what was said. */
static void
add_answer(Said *said, int fd, const GvSearchRequest *search)
{
	GvMessage	header;
	FREED char *payload = client_answer(fd, &header);
	size_t		at = 0;

	CHECK(payload != NULL && header.type == GV_MSG_OK, "no answer");
	while (search != NULL && payload != NULL && at < header.length)
	{
		GvSearchReply *head = (GvSearchReply *) (payload + at);

		/* how it was searched for, and how long that took */
		head->batch = head->queued_us = head->engine_us = 0;
		at += (size_t) gv_answer_bytes(search, head);
	}
	if (payload != NULL)
		add(said, payload, header.length);
}

/* Sessions ask all at once, so that all replicas have something to do. */
static void
ask_sessions(Said *said, const TestServer *server, const GvMirrorKey *key,
			 const TestIndex *index, const Records *records)
{
	OwnCrowd	crowd = crowd_open(server, GV_ROLE_SESSION, NCLIENTS);
	int			round;
	int			i;

	for (round = 0; round < (unit_small ? 3 : 20); round++)
	{
		for (i = 0; i < NCLIENTS; i++)
			crowd_ask(&crowd, i, key, index, records);
		for (i = 0; i < NCLIENTS; i++)
		{
			add_answer(said, crowd.fds[i], &crowd.searches[i].request);
			free_search(&crowd.searches[i]);
		}
	}
	/* the first placement is compared with sorting everything */
	for (i = 0; i < NCLIENTS; i++)
	{
		crowd_ask(&crowd, i, key, index, records);
		OK(crowd_answer(&crowd, i, index));
	}
}

/* Bulk clients ask beside each other, with a condition. */
static void
ask_in_bulk(Said *said, const TestServer *server, const GvMirrorKey *key,
			const TestIndex *index)
{
	OwnSearch	search = make_search(key, index);
	int			fds[3];
	int			i;

	unit_free(search.query);
	search.query = index_floats((size_t) QUERIES * index->spec.dims, false);
	search.request.n = QUERIES;
	for (i = 0; i < 3; i++)
	{
		fds[i] = client_open(server, GV_ROLE_BULK);
		CHECK(search_send(fds[i], &search), "send");
	}
	for (i = 0; i < 3; i++)
	{
		add_answer(said, fds[i], &search.request);
		close(fds[i]);
	}
}

/* All that a loader can read: lists, arrays and records. */
static void
read_back(Said *said, int loader, const GvMirrorKey *key,
		  const TestIndex *index, const Records *records)
{
	GvRangeRequest lists = {*key, 0, index->spec.nlists, 0, 0};
	int32_t		n = records->npages * records->nslots;
	GvListsRequest items = {*key, n, 0};
	OWN uint16_t *addresses = record_addresses(records);
	int			array;

	CHECK(client_message(loader, GV_MSG_READ_LISTS, &lists, sizeof(lists), NULL,
						 0), "send");
	add_answer(said, loader, NULL);
	for (array = 0; array < GV_NARRAYS; array++)
	{
		GvArrayRequest values = {*key, array, 0, 0, 0};

		(void) index_array(index, (GvArray) array, &values.count);
		CHECK(client_message(loader, GV_MSG_READ_ARRAY, &values, sizeof(values),
							 NULL, 0), "send");
		add_answer(said, loader, NULL);
	}
	CHECK(client_message(loader, GV_MSG_READ_REFINE, &items, sizeof(items),
						 addresses, (size_t) n * 6), "send");
	add_answer(said, loader, NULL);
}

/* Some lists are rewritten, grow, shrink or lose postings. */
static void
change_lists(int loader, const GvMirrorKey *key, TestIndex *index,
			 const Records *records)
{
	int			i;

	for (i = 0; i < 60; i++)
	{
		TestList   *list = &index->lists[unit_random() %
										 (uint64_t) index->spec.nlists];

		if (i % 3 == 0 && list->nblocks > 0)
			list->live[0] &= (uint32_t) unit_random();
		else
			resize_list(index, list, (uint32_t) (unit_random() % 90), 0);
		list->gen++;
	}
	make_addresses(index, records);
	CHECK(load_lists(loader, key, index) == 0, "lists");
}

static void
check_status(int loader, const Shape *shape)
{
	FREED GvStatusReply *status = load_status(loader);
	const GvMirrorStatus *told = (const GvMirrorStatus *) (status + 1);

	CHECK(status->nmirrors == 1 && told->ready &&
		  told->shards == shape->shards && told->replicas == shape->replicas,
		  "%d x %d, %lld bytes, in the place of %d x %d", told->shards,
		  told->replicas, (long long) told->bytes, shape->shards,
		  shape->replicas);
}

/* Returns what a placement says. */
static Said
say(const Shape *shape)
{
	GvMirrorKey key = test_key(1);
	Said		said = {NULL};
	TestServer	server;
	OwnIndex	index;
	OwnRecords	records;
	int			loader;
	int			round;

	unit_seed = 77;				/* whichever placement it is */
	index = make_index(GV_L2, 32, 32, NLISTS, 7, 47, false);
	give_form(&index, (GvKeyForm) {1, {GV_KEY_ORDERED}, {4}});
	records = make_records(&index, PAGES, SLOTS);
	server = server_start("--devices", shape->devices, "--memory",
						  shape->megabytes, "--replicas", "3", NULL);
	loader = client_open(&server, GV_ROLE_LOADER);
	CHECK(load_all(loader, &key, &index) == 0, "load");
	CHECK(load_records(loader, &key, &records) == 0, "records");
	for (round = 0; round < 2; round++)
	{
		check_status(loader, shape);
		ask_sessions(&said, &server, &key, &index, &records);
		ask_in_bulk(&said, &server, &key, &index);
		read_back(&said, loader, &key, &index, &records);
		if (round == 0)
		{
			change_lists(loader, &key, &index, &records);
			CHECK(load_records(loader, &key, &records) == 0, "records");
		}
	}
	CHECK(load_drop(loader, &key) == 0 && load_totals(loader).used == 0,
		  "%lld bytes are left", (long long) load_totals(loader).used);
	close(loader);
	server_end(&server);
	return said;
}

void
test_placements(void)
{
	Said		one = say(&shapes[0]);
	int			i;

	CHECK(one.used > 10 << 20, "only %zu bytes", one.used);
	for (i = 1; i < NSHAPES; i++)
	{
		Said		other = say(&shapes[i]);

		CHECK(other.used == one.used &&
			  memcmp(other.bytes, one.bytes, one.used) == 0,
			  "%d x %d says something else", shapes[i].shards,
			  shapes[i].replicas);
		free(other.bytes);
	}
	free(one.bytes);
}
