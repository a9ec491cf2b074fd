/*
 * check_searches.c
 *		Answers equal the engine's own; many clients make batches; one that does
 *		not read stops nobody.
 */
#include <unistd.h>

#include "client.h"

static void
test_shapes(const TestServer *server)
{
	static const int32_t shapes[][6] = {
		/* dims, m, nlists, nparents, mean, ties */
		{1, 1, 1, 1, 40, 0}, {3, 2, 5, 2, 10, 1}, {17, 17, 300, 17, 40, 0},
		{50, 13, 64, 8, -3000, 0}, {8, 4, 40, 40, 0, 1}, {384, 96, 100, 10, 50, 0}
	};
	int			loader = client_open(server, GV_ROLE_LOADER);
	int			session = client_open(server, GV_ROLE_SESSION);
	int			i;
	int			n;

	for (i = 0; i < 6; i++)
	{
		const int32_t *s = shapes[i];
		TestIndex	index = make_index(GV_L2 + i % 3, s[0], s[1], s[2], s[3],
									   s[4], s[5] != 0);
		GvMirrorKey key = test_key(100 + i);
		int			result = load_all(loader, &key, &index);

		CHECK(result == 0, "shape %d: %d", i, result);
		for (n = 0; n < 20; n++)
		{
			result = search_check(n % 5 == 0 ? loader : session, &key,
								  &index);
			CHECK(result == 0, "shape %d: %d", i, result);
		}
		CHECK(load_drop(loader, &key) == 0, "shape %d", i);
		result = search_check(session, &key, &index);
		CHECK(result == GV_REFUSED_NO_MIRROR, "shape %d: %d", i, result);
		free_index(&index);
	}
	close(loader);
	close(session);
}

void
test_searches(void)
{
	TestServer	server = server_start(NULL, NULL);

	test_shapes(&server);
	CHECK(server_stop(&server) == 0, "SIGTERM");
	server_remove(&server);
}
