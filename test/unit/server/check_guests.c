/*
 * check_guests.c
 *		Searchers that shards need on devices beside their first one, and the
 *		memory that mirrors lose to them there.
 *
 * Devices of 256 MB, of which a quarter is kept for searchers of their own;
 * those of shards take a quarter more.
 */
#include <stdlib.h>
#include <unistd.h>

#include "client.h"

/* Two such devices. */
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

/*
 * A mirror, of which nothing comes but what it is, of about so many MB and
 * more.
 */
static int
begin_mirror(int fd, int number, TestIndex *index, int64_t megabytes)
{
	GvMirrorKey key = test_key(number);

	/* 16 bytes of codes, T, and a row id */
	index->spec.postings = (megabytes << 20) / 26;
	return load_begin(fd, &key, index);
}

/*
 * Of two mirrors that one is in shards, the other whole on its first device.
 */
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

/*
 * There is memory for them beside the first device, or for a mirror; not for
 * both.
 */
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

/*
 * On one of the devices there is no memory for them: it is the first one of
 * shards.
 */
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

/* MB that mirrors may have of both devices. */
static int
memory_of(int fd)
{
	GvStatusReply *status = load_status(fd);
	int			megabytes = (int) (status->memory >> 20);

	free(status);
	return megabytes;
}

/* Wait until a loader that has gone has left so many mirrors. */
static void
wait_for_mirrors(int fd, int n)
{
	int			found = -1;
	int			i;

	for (i = 0; i < 1000 && found != n; i++)
	{
		GvStatusReply *status = load_status(fd);

		found = status->nmirrors;
		free(status);
		if (found != n)
			usleep(10000);
	}
	CHECK(found == n, "%d mirrors", found);
}

/*
 * They come when shards are ready, and stay when these go.  Of shards that
 * never are ready none come, and what they would have taken is there for
 * others.
 */
static void
check_promise(TestIndex *index)
{
	TestServer	server = start();
	int			loader = client_open(&server, GV_ROLE_LOADER);
	int			other = client_open(&server, GV_ROLE_LOADER);
	GvMirrorKey key = test_key(4);
	int			memory = memory_of(loader);
	int			left;

	CHECK(begin_mirror(other, 1, index, 170) == 0, "shards");
	left = memory_of(loader);
	CHECK(left > memory - 70 && left < memory - 50, "%d of %d MB", left, memory);
	close(other);
	wait_for_mirrors(loader, 0);
	CHECK(memory_of(loader) == memory, "%d of %d MB", memory_of(loader), memory);
	CHECK(begin_mirror(loader, 2, index, 120) == 0, "a card");
	CHECK(begin_mirror(loader, 3, index, 120) == 0, "the other one");
	close(loader);
	loader = client_open(&server, GV_ROLE_LOADER);
	wait_for_mirrors(loader, 0);
	CHECK(begin_mirror(loader, 4, index, 170) == 0, "shards");
	CHECK(load_arrays(loader, &key, index) == 0 &&
		  load_ready(loader, &key) == 0 && load_drop(loader, &key) == 0,
		  "shards are ready, and go");
	CHECK(memory_of(loader) == left, "%d of %d MB", memory_of(loader), left);
	CHECK(begin_mirror(loader, 2, index, 120) == 0, "the first one");
	CHECK(begin_mirror(loader, 3, index, 120) == GV_REFUSED_NO_MEMORY,
		  "the one with guests");
	close(loader);
	stop(&server);
}

void
test_guests(void)
{
	TestIndex	index = make_index(GV_L2, 8, 4, 10, 1, 40, false);

	if (server_is_emulated())
	{
		check_beside(&index);
		check_first(&index);
		check_promise(&index);
	}
	free_index(&index);
}
