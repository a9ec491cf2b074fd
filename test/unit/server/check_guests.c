/*
 * check_guests.c
 *		Searchers that shards bring to cards beside their first one, and what they
 *		take there from what mirrors have.
 *
 * Cards of 256 MB, of which a quarter is kept for searchers of their own; guests
 * take a quarter more.
 */
#include <stdlib.h>
#include <unistd.h>

#include "client.h"

/* Two such cards. */
static TestServer
start(void)
{
	static const char *const two[] = {"--devices", "0,1", NULL};
	TestServer	server;

	setenv("GPUVEC_EMULATED_MEMORY_MB", "256", 1);
	server_folder(&server);
	server_launch(&server, two);
	CHECK(server_ready(&server), "it does not start");
	return server;
}

static void
stop(TestServer *server)
{
	CHECK(server_stop(server) == 0, "SIGTERM");
	server_remove(server);
	unsetenv("GPUVEC_EMULATED_MEMORY_MB");
}

/* A mirror, of which nothing comes but what it is, of about so many MB and more. */
static int
begin_mirror(int fd, int number, TestIndex *index, int64_t megabytes)
{
	GvMirrorKey key = test_key(number);

	/* 16 bytes of codes, T, and a row id */
	index->spec.copies = (megabytes << 20) / 26;
	return load_begin(fd, &key, index);
}

/* Of two mirrors that one is in shards, the other whole on its first card. */
static void
check_placed(int fd, int sharded)
{
	GvStatusReply *status = load_status(fd);
	const GvMirrorStatus *mirrors = (const GvMirrorStatus *) (status + 1);

	CHECK(status->nmirrors == 2, "%d mirrors", status->nmirrors);
	if (status->nmirrors == 2)
		CHECK(mirrors[sharded].shards == 2 && mirrors[1 - sharded].shards == 1 &&
			  mirrors[0].device == mirrors[1].device,
			  "shards %d and %d, devices %d and %d", mirrors[0].shards,
			  mirrors[1].shards, mirrors[0].device, mirrors[1].device);
	free(status);
}

/* There is room for them beside the first card, or for a mirror; not for both. */
static void
check_beside(TestIndex *index)
{
	TestServer	server = start();
	int			loader = client_open(&server, GV_ROLE_LOADER);

	CHECK(begin_mirror(loader, 1, index, 170) == 0, "shards");
	CHECK(begin_mirror(loader, 2, index, 30) == 0, "beside the first one");
	check_placed(loader, 1);
	CHECK(begin_mirror(loader, 3, index, 30) == GV_REFUSED_NO_MEMORY,
		  "beside the other one");
	close(loader);
	stop(&server);
}

/* On one of the cards there is no room for them: it is the first one of shards. */
static void
check_first(TestIndex *index)
{
	TestServer	server = start();
	int			loader = client_open(&server, GV_ROLE_LOADER);

	CHECK(begin_mirror(loader, 1, index, 20) == 0, "whole");
	CHECK(begin_mirror(loader, 2, index, 180) == 0, "shards");
	check_placed(loader, 0);
	close(loader);
	stop(&server);
}

void
test_guests(void)
{
	TestIndex	index = make_index(GV_L2, 8, 4, 10, 1, 40, false);

	if (load_is_emulated())
	{
		check_beside(&index);
		check_first(&index);
	}
	free_index(&index);
}
