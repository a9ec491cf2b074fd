/*
 * check_trials.c
 *		An index in the making is searched by gpuvecd, which finds what is in
 *		the lists of the build, and nobody else finds them.
 */
#include <unistd.h>

#include "client.h"

#define DIMS	TEST_BUILD_DIMS
#define MANY	64000

static int
begin_mirror(int fd, int64_t postings)
{
	GvCalibMirrorRequest request = {postings};

	return ASK(fd, GV_MSG_CALIB_MIRROR, request);
}

/* An index of the model that was trained; its codes have no meaning. */
static TestIndex
make_trained(GvBuilder *own, const GvTrained *trained)
{
	TestIndex	index = make_index(GV_L2, DIMS, 3, trained->nlists,
								   trained->nparents, 20, false);
	int			array;

	for (array = 0; array < GV_NARRAYS; array++)
	{
		int64_t		n;
		const void *values = index_array(&index, (GvArray) array, &n);

		OK(gv_builder_get_array(own, (GvArray) array, 0, n, (void *) values));
	}
	return index;
}

/* The build's lists are searched; `helper` may be another that joined. */
void
check_calib_mirror(int fd, int helper, GvBuilder *own,
				   const GvTrained *trained, const float *queries)
{
	GvMirrorKey none = {0};
	OwnIndex	index = make_trained(own, trained);
	OwnSearch	search = make_search(&none, &index);
	int			round;
	int			i;

	search.request.n = 2;
	/* the second mirror is in place of the first */
	for (round = 0; round < 2; round++)
	{
		CHECK(begin_mirror(fd, index.spec.postings) == 0, "mirror");
		for (i = 0; i < index.spec.nlists; i++)
			OK(load_chunk(helper, &none, &index, i, 0, index.lists[i].nblocks,
						  0));
		for (i = 0; i < 10; i++)
			OK(search_check(fd, &none, &index));
		search_many(fd, fd, &search, queries);
	}
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
	/* a list of MANY postings */
	OwnIndex	index = make_index(GV_L2, DIMS, 3, 1, 1, -MANY, false);
	uint64_t	id = 0;
	GvMirrorKey keys[2] = {{0}, {0}};
	int64_t		before;
	int			i;

	CHECK(builder_prepare(fd, rows, &id) == 0 &&
		  builder_prepare(other, rows, NULL) == 0, "prepare");
	CHECK(begin_mirror(fd, 1) == 0, "mirror");
	before = load_totals(session).used;
	for (i = 0; i < 2; i++)
		OK(load_chunk(fd, &keys[0], &index, 0, 0, MANY / GV_BLOCK, 0));
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
		CHECK(load_chunk(loader, &keys[i], &index, 0, 0, MANY / GV_BLOCK,
						 0) == GV_REFUSED_NO_MIRROR, "another's lists");
	}
	CHECK(load_chunk(other, &keys[1], &index, 0, 0, MANY / GV_BLOCK, 0) ==
		  GV_REFUSED_NO_MIRROR && client_ended(other),
		  "lists of another build, none of its own");
	close(other);
	close(loader);
	close(session);
	close(fd);
	builder_unused(server, "a mirror with more than was announced");
}
