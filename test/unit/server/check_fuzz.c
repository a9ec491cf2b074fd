/*
 * check_fuzz.c
 *		Conversations in which one message has been damaged: whatever the
 *		server makes of it, others get right answers.
 */
#include <sys/socket.h>
#include <unistd.h>

#include "scripts.h"

#define HEALTHY_EVERY	50

/* Damage a message: numbers, bits, length; its header more than the rest. */
static void
damage(char *message, size_t *bytes)
{
	static const uint32_t numbers[] = {0, 1, 2, 31, 32, 33, 255, 65535,
	65536, 1 << 24, INT32_MAX, 0x80000000, UINT32_MAX};
	int			n = 1 + (int) (unit_random() % 3);

	while (n-- > 0)
	{
		size_t		reach = unit_random() % 3 == 0 ? *bytes :
		*bytes < 80 ? *bytes : 80;
		size_t		at = unit_random() % (reach == 0 ? 1 : reach);
		uint32_t	number = numbers[unit_random() % 13];

		switch (unit_random() % 6)
		{
			case 0:
				if (at < *bytes)
					message[at] ^= (char) (1 << unit_random() % 8);
				break;
			case 1:
				if (at < *bytes)
					message[at] = (char) unit_random();
				break;
			case 2:
				*bytes = at;	/* and the length is a lie */
				break;
			default:
				at = at / 4 * 4;
				if (unit_random() % 2 == 0 && at + 4 <= *bytes)
				{
					memcpy(&number, message + at, 4);
					number += (uint32_t) (unit_random() % 5) - 2;
				}
				if (at + 4 <= *bytes)
					memcpy(message + at, &number, 4);
				break;
		}
	}
}

/* Read whatever comes until the end. */
static void
drain(int fd)
{
	char		bytes[4096];

	shutdown(fd, SHUT_WR);
	while (recv(fd, bytes, sizeof(bytes), 0) > 0)
		;
}

/* Hold a conversation up to a message that is damaged. */
static void
converse(const TestServer *server, Script *script)
{
	int			worst = (int) (unit_random() % script->n);
	OwnFd		fd = client_socket(server);
	int			i;

	CHECK(fd >= 0, "nobody listens");
	/* the key may be in use: what another one left, or is loading */
	for (i = 0; i < worst && script_say(fd, script, i) >= 0; i++)
		;
	damage(script->messages[worst], &script->bytes[worst]);
	(void) client_send(fd, script->messages[worst], script->bytes[worst]);
	/* some go without a word */
	if (unit_random() % 4 != 0)
		drain(fd);
}

/* Half of the conversations are loaders' and sets'. */
static void
one_round(const TestServer *server, const GvMirrorKey *healthy,
		  const TestIndex *index)
{
	Script		script = {0};
	GvMirrorKey key = test_key(1000 + (uint32_t) (unit_random() % 3));
	int			which = (int) (unit_random() % 6);

	key.build_id = 77;
	if (which == SET_SCRIPT)
		which += (int) (unit_random() % TEST_SETS);
	else if (which > SET_SCRIPT)
		which = LOADER_SCRIPT;
	any_script(&script, which, healthy, &key, index);
	converse(server, &script);
	free_script(&script);
}

void
test_fuzz(void)
{
	TestServer	server = server_start("--memory", "64", "--keep", "3600",
									  NULL);
	OwnIndex	index = make_index(GV_L2, 5, 3, 4, 2, 30, true);
	GvMirrorKey healthy = test_key(1);
	int			rounds = unit_small ? 200 : !test_long || test_device ? 2000 : 100000;
	OwnFd		loader = client_open(&server, GV_ROLE_LOADER);
	OwnFd		session = client_open(&server, GV_ROLE_SESSION);
	int			i;
	int			got;

	give_keys(&index, 2);
	CHECK(load_all(loader, &healthy, &index) == 0, "load");
	for (i = 1; i <= rounds; i++)
	{
		one_round(&server, &healthy, &index);
		if (i % HEALTHY_EVERY != 0)
			continue;
		got = search_check(session, &healthy, &index);
		CHECK(got == 0, "a healthy client after %d conversations: %d", i,
			  got);
		got = load_chunk(loader, &healthy, &index, 0, 0,
						 index.lists[0].nblocks, 0);
		CHECK(got == 0, "a healthy loader after %d conversations: %d", i,
			  got);
	}
	server_end(&server);
}
