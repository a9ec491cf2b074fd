/*
 * check_faults_card.c
 *		What a device refuses: launches of threads side by side, and of graphs,
 *		have the shared memory that they were allowed; graphs are bounded.  On
 *		emulated threads also what one does wrong: a device that hangs keeps
 *		what was asked of it, and others go on; a launch that is refused is a
 *		request's failure, and no more; code for older devices waits for
 *		nothing, so nothing is launched early.
 */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "card.h"
#include "../engine/mirrors.h"

#include "engine/mirror/gv_multi.h"

/* gpu/search/search.h */
typedef struct GvGraphCounts
{
	int64_t		replayed;
	int64_t		made;
	int64_t		again;
	int64_t		launched;
} GvGraphCounts;

extern void gv_gpu_graph_counts(const GvSearcher *searcher,
								GvGraphCounts *counts);

#define NREPLAYS	64			/* graphs of a lane */
#define NMIRRORS	100			/* in turn */
#define NSEARCHES	3
#define MOST_LAUNCHES	60		/* of what is refused one after the other */
#define NTHREADS	2
#define NHEAVY		31			/* searches, more than a stream has memory
								 * for */
#define NROUNDS		30			/* of each thread */
#define MIXED_ROUNDS	10
#define LOOKS		200			/* at a search that is never done */
#define LOOK_US		100			/* from one to the next */

/* A mirror on one of two devices, searched. */
typedef struct Searched
{
	TestIndex	index;
	GvMirror   *mirror;
	GvSearcher *searcher;
	GvSearch	searches[NSEARCHES];
} Searched;

static void
begin_searches(Searched *searched, int32_t device, int32_t m)
{
	int			i;

	searched->index = make_index(GV_L2, m, m, 9, 3, 40, false);
	searched->index.spec.device = device;
	searched->mirror = make_mirror(&searched->index);
	for (i = 0; i < NSEARCHES; i++)
		searched->searches[i] = new_search(&searched->index, 1 + i, 9, 5);
	CHECK(gv_searcher(device, &searched->searcher) == GV_OK, "searcher");
}

/* All at once. */
static GvStatus
search_all(void *arg)
{
	Searched   *searched = arg;

	return gv_mirror_search(searched->searcher, searched->mirror,
							searched->searches, NSEARCHES);
}

static void
end_searches(Searched *searched)
{
	gv_searcher_drop(searched->searcher);
	gv_mirror_drop(searched->mirror);
	free_searches(searched->searches, NSEARCHES);
	free_index(&searched->index);
}

static bool
is_done_soon(Searched *searched)
{
	int			looks;

	for (looks = 0; looks < LOOKS; looks++)
	{
		if (gv_mirror_done(searched->searcher))
			return true;
		usleep(LOOK_US);		/* the stream is asked now and then only */
	}
	return false;
}

static void
test_hang(void)
{
	Searched	both[2];
	int			i;

	for (i = 0; i < 2; i++)
		begin_searches(&both[i], i, 8);
	gv_emulated_hung = 1 << 1;
	for (i = 1; i >= 0; i--)
		CHECK(gv_mirror_begin(both[i].searcher, both[i].mirror,
							  both[i].searches, NSEARCHES) == GV_OK,
			  "device %d: begin", i);
	CHECK(is_done_soon(&both[0]), "the other device waits, too");
	CHECK(!is_done_soon(&both[1]), "a device that hangs goes on");
	gv_emulated_hung = 0;
	CHECK(is_done_soon(&both[1]), "a device hangs for ever");
	for (i = 0; i < 2; i++)
	{
		CHECK(gv_mirror_finish(both[i].searcher) == GV_OK, "finish");
		check_answers(&both[i].index, both[i].searches, NSEARCHES, "hang");
		end_searches(&both[i]);
	}
}

/*
 * A graph's kernels were allowed more shared memory than the next mirror's
 * are, and are launched again.
 */
static void
test_allowed(void)
{
	Searched	both[2];
	int			i;

	begin_searches(&both[0], 0, 1200);
	begin_searches(&both[1], 0, 1000);
	for (i = 0; i < 4; i++)
	{
		CHECK(search_all(&both[i % 2]) == GV_OK, "turn %d", i);
		check_answers(&both[i % 2].index, both[i % 2].searches, NSEARCHES,
					  "another mirror's launch");
	}
	for (i = 0; i < 2; i++)
		end_searches(&both[i]);
}

#define LONG_QUERIES	2
#define LONG_ROWS	40
#define LONG_K		3
#define LONG_FOUND	(LONG_QUERIES * LONG_K)

/* Exact search of vectors so long that it takes more shared memory. */
typedef struct Long
{
	GvSetSpec	spec;
	SetInputs	inputs;
	int64_t		positions[LONG_FOUND];
	double		distances[LONG_FOUND];
	int			nfailed;		/* searches, or other results */
} Long;

static void
begin_long(Long *search, int32_t dims)
{
	search->spec = (GvSetSpec)
	{
		.kind = GV_SET_EXACT,.metric = GV_SET_L2,.dims = dims,.k = LONG_K,
		.nqueries = LONG_QUERIES,.nrows = LONG_ROWS
	};
	search->inputs = make_inputs(&search->spec, KIND_UNIFORM, LONG_ROWS);
	search->nfailed = 0;
	unit_sets = gv_cpu_sets;
	find_neighbors(&search->spec, &search->inputs, search->positions,
				   search->distances);
	unit_sets = gv_cuda_sets;
}

/* Counts no checks, since several threads do this side by side. */
static GvStatus
search_long(void *arg)
{
	Long	   *search = arg;
	const SetInputs *in = &search->inputs;
	int64_t		positions[LONG_FOUND];
	double		distances[LONG_FOUND];
	GvSetDone	done;
	GvSet	   *set = NULL;
	GvStatus	status = gv_set_create(&search->spec, &set);

	if (status == GV_OK)
		status = gv_set_put(set, GV_SET_QUERIES, in->queries, LONG_QUERIES,
							NULL);
	if (status == GV_OK)
		status = gv_set_put(set, GV_SET_ROWS, in->rows, LONG_ROWS, NULL);
	if (status == GV_OK)
		status = gv_set_run(set, &done, NULL);
	if (status == GV_OK)
		status = gv_set_get(set, GV_SET_POSITIONS, 0, LONG_FOUND, positions);
	if (status == GV_OK)
		status = gv_set_get(set, GV_SET_DISTANCES, 0, LONG_FOUND, distances);
	gv_set_drop(set);
	search->nfailed += status != GV_OK ||
		memcmp(positions, search->positions, sizeof(positions)) != 0 ||
		memcmp(distances, search->distances, sizeof(distances)) != 0;
	return status;
}

static void
end_long(Long *search)
{
	free_inputs(&search->inputs);
}

static void *
search_often(void *arg)
{
	int			i;

	for (i = 0; i < NROUNDS; i++)
		(void) search_long(arg);
	return NULL;
}

static void
test_threads(void)
{
	Long		searches[NTHREADS];
	pthread_t	threads[NTHREADS];
	int			i;

	for (i = 0; i < NTHREADS; i++)
		begin_long(&searches[i], 1700 + 900 * i);
	for (i = 0; i < NTHREADS; i++)
		OK(pthread_create(&threads[i], NULL, search_often, &searches[i]));
	for (i = 0; i < NTHREADS; i++)
	{
		(void) pthread_join(threads[i], NULL);
		CHECK(searches[i].nfailed == 0, "thread %d: %d of %d failed", i,
			  searches[i].nfailed, NROUNDS);
		end_long(&searches[i]);
	}
}

/* Launch after launch of a work is refused, until it needs no more. */
static int
refuse_launches(GvStatus (*work) (void *arg), void *arg)
{
	GvStatus	status = GV_REJECTED;
	int			n;

	for (n = 1; n < MOST_LAUNCHES && status == GV_REJECTED; n++)
	{
		gv_emulated_refusal = n;
		status = work(arg);
		gv_emulated_refusal = 0;
		CHECK(status == GV_OK || status == GV_REJECTED, "%d: %d", n, status);
	}
	CHECK(status == GV_OK && n > 6, "%d: %d", n, status);
	return n;
}

/* What comes then is as it was. */
static void
check_refused_searches(void)
{
	Searched	searched;
	char		text[200];

	begin_searches(&searched, 0, 8);
	refuse_launches(search_all, &searched);
	check_answers(&searched.index, searched.searches, NSEARCHES, "refused");
	gv_rejection(text, sizeof(text));
	CHECK(strstr(text, ".cu:") != NULL, "\"%s\" names no call", text);
	end_searches(&searched);
}

static void
test_refused_launches(void)
{
	Long		exact;
	int			n;

	check_refused_searches();
	gv_select_by = 3;			/* in two passes */
	gv_least_slice = 32;
	check_refused_searches();
	gv_select_by = -1;
	gv_least_slice = 0;

	begin_long(&exact, 100);
	n = refuse_launches(search_long, &exact);
	CHECK(search_long(&exact) == GV_OK && exact.nfailed == n - 2,
		  "%d of %d failed", exact.nfailed, n);
	end_long(&exact);
}

/*
 * More mirrors in turn than a stream has graphs: none is made twice, and most
 * are replayed.  Mirrors that come later get theirs when these are not used.
 */
static void
test_replays(void)
{
	OwnIndex	index = make_index(GV_L2, 4, 2, 3, 1, 20, false);
	GvSearch	search = new_search(&index, 2, 3, 4);
	GvMirror   *mirrors[NMIRRORS];
	OwnSearcher	searcher = NULL;
	GvGraphCounts counts;
	int			i;

	CHECK(gv_searcher(0, &searcher) == GV_OK, "searcher");
	for (i = 0; i < NMIRRORS; i++)
		mirrors[i] = make_mirror(&index);
	for (i = 0; i < 4 * NMIRRORS; i++)
	{
		CHECK(gv_mirror_search(searcher, mirrors[i % NMIRRORS], &search,
							   1) == GV_OK, "turn %d", i);
		check_answers(&index, &search, 1, "in turn");
	}
	gv_gpu_graph_counts(gv_devices_own(searcher), &counts);
	CHECK(counts.made == NREPLAYS && counts.again == 0 &&
		  counts.replayed == 3 * NREPLAYS &&
		  counts.launched == 4 * (NMIRRORS - NREPLAYS),
		  "%d made, %d again, %d replayed, %d launched", (int) counts.made,
		  (int) counts.again, (int) counts.replayed, (int) counts.launched);
	for (i = 0; i < 6 * NREPLAYS; i++)
		CHECK(gv_mirror_search(searcher, mirrors[NMIRRORS - 1 - i % 3],
							   &search, 1) == GV_OK, "turn %d", i);
	check_answers(&index, &search, 1, "new ones");
	gv_gpu_graph_counts(gv_devices_own(searcher), &counts);
	CHECK(counts.made == NREPLAYS + 3 && counts.again == 3,
		  "%d made, %d again", (int) counts.made, (int) counts.again);
	for (i = 0; i < NMIRRORS; i++)
		gv_mirror_drop(mirrors[i]);
	unit_free((void *) search.query);
}

/*
 * But not one of a change, of which the host has notes already: the list's old
 * room, where the device still looks, may be another one's by then.
 */
static void
test_refused_changes(void)
{
	OwnIndex	index = make_index(GV_L2, 8, 4, 3, 1, 100, false);
	OwnMirror	mirror = make_mirror(&index);
	GvListChunk chunk = index_chunk(&index, 0, 0, index.lists[0].nblocks,
									false);

	gv_emulated_refusal = 1;
	CHECK(gv_mirror_put_list(mirror, &chunk) == GV_FAILED,
		  "a list goes half its way");
	gv_emulated_refusal = 0;
}

/* A mirror of 80 lists, and a searcher, on a device with little memory. */
typedef struct Small
{
	TestIndex	index;
	GvMirror   *mirror;
	GvSearcher *searcher;
	size_t		memory;			/* the device's before */
} Small;

static void
begin_small(Small *small, int megabytes)
{
	small->index = make_index(GV_L2, 4, 2, 80, 1, 600, false);
	small->mirror = make_mirror(&small->index);
	small->memory = gv_emulated_memory;
	gv_emulated_memory = (size_t) megabytes << 20;
	small->searcher = NULL;
	CHECK(gv_searcher(0, &small->searcher) == GV_OK, "searcher");
}

static void
end_small(Small *small)
{
	gv_emulated_memory = small->memory;
	gv_searcher_drop(small->searcher);
	gv_mirror_drop(small->mirror);
	free_index(&small->index);
}

/* A quarter of a small device is enough for the streams of two searchers. */
static void
test_streams(void)
{
	GvSearch	searches[NHEAVY];
	Small		small;
	size_t		before;
	size_t		taken;
	int			i;

	begin_small(&small, 64);
	/* 33 of 80 lists become 40 in a graph, and a few more queries, too */
	for (i = 0; i < NHEAVY; i++)
		searches[i] = new_search(&small.index, 33, 9, 5);
	before = gv_emulated_used(0);
	OK(gv_mirror_search(small.searcher, small.mirror, searches, NHEAVY));
	taken = gv_emulated_used(0) - before;
	CHECK(taken <= gv_emulated_memory / 8, "two lanes have %zu bytes", taken);
	check_answers(&small.index, searches, NHEAVY, "heavy");
	free_searches(searches, NHEAVY);
	end_small(&small);
}

/*
 * Searches whose answers are looked for as they arrive, and behind one of
 * them, on its stream, one whose is not: a part of its own each.
 */
static void
test_mixed_parts(void)
{
	GvSearch	searches[3];
	Small		small;
	int			round;
	int			i;

	begin_small(&small, 16);
	for (round = 0; round < MIXED_ROUNDS; round++)
	{
		for (i = 0; i < 3; i++)
			searches[i] = new_search(&small.index, 80, 9, i < 2 ? 5 : 2049);
		OK(gv_mirror_search(small.searcher, small.mirror, searches, 3));
		check_answers(&small.index, searches, 3, "mixed");
		free_searches(searches, 3);
	}
	end_small(&small);
}

/* Compute capabilities of a device, and of the code that it runs. */
static void
test_capability(int device, int code)
{
	GvDevice	found[GV_MAX_DEVICES];
	int32_t		nfound;
	Searched	searched;
	Long		exact;
	int			its_capability = gv_emulated_capability;
	int			its_code = gv_emulated_code;
	int			i;

	gv_emulated_capability = device;
	gv_emulated_code = code;
	CHECK(UNIT_MIRRORS.open("", found, &nfound) == GV_OK,
		  "no engine: %s", found->name);
	begin_searches(&searched, 0, 8);
	begin_long(&exact, 100);
	for (i = 0; i < 5; i++)
	{
		/* other queries, as the memory of steps is the last ones' still */
		free_searches(searched.searches, NSEARCHES);
		for (int k = 0; k < NSEARCHES; k++)
			searched.searches[k] = new_search(&searched.index, 3 + k, 9, 5);
		CHECK(search_all(&searched) == GV_OK, "card %d, code %d", device,
			  code);
		check_answers(&searched.index, searched.searches, NSEARCHES,
					  "capability");
		(void) search_long(&exact);
	}
	CHECK(exact.nfailed == 0, "card %d, code %d: %d of %d exact searches",
		  device, code, exact.nfailed, i);
	end_long(&exact);
	end_searches(&searched);
	gv_emulated_capability = its_capability;
	gv_emulated_code = its_code;
	CHECK(UNIT_MIRRORS.open("", found, &nfound) == GV_OK,
		  "no engine: %s", found->name);
}

/* An engine was opened, on all devices. */
void
test_faults_card(void)
{
	test_allowed();
	test_threads();
	test_replays();
	if (!device_is_emulated())
		return;
	test_hang();
	test_refused_launches();
	test_refused_changes();
	test_streams();
	test_mixed_parts();
	test_capability(80, 80);
	test_capability(90, 80);	/* as PTX of older devices runs on newer
								 * ones */
	test_capability(90, 90);
}
