/*
 * check_mirror_lists.c
 *		The choice of the lists to search, for many queries in one call.
 *
 * An engine may discard most lists by approximate scores.  The choice must be
 * right also if centroids are nearly equal, huge, tiny or far from zero.
 */
#include "mirrors.h"

#include "engine/mirror/gv_multi.h"

#ifdef UNIT_CARD
/* gpu/search/search.h: how many queries of a searcher went each way */
enum
{
	RUNS, LEAST, ALL, EXACT, NWAYS
};
extern GvStatus gv_gpu_coarse_paths(GvSearcher *searcher,
										uint32_t ways[NWAYS]);
#endif

/* The distribution of centroids and queries. */
typedef enum Kind
{
	SPREAD,						/* evenly between -1 and 1 */
	CLUSTERED,					/* 40 neighboring lists are close */
	CLOSE,						/* rows differ by less than the rounding error
								 * of half precision */
	OFFSET,						/* far from zero */
	EQUAL,						/* all rows are equal */
	ZERO,
	TINY,						/* near the smallest half-precision number */
	HUGE_NUMBERS,				/* above the largest half-precision number */
	SCALES,						/* each row has another scale */
	FAR_QUERY,					/* every third query is huge */
	NKINDS
} Kind;

static float
element(Kind kind, const float *center, float scale)
{
	switch (kind)
	{
		case CLUSTERED:
			return *center + unit_float() * 0.05f;
		case CLOSE:
			return *center + unit_float() * 0.0003f;
		case OFFSET:
			return 40.0f + unit_float();
		case EQUAL:
			return *center;
		case ZERO:
			return 0.0f;
		case TINY:
			return unit_float() * 1e-7f;
		case HUGE_NUMBERS:
			return unit_float() * 1e6f;
		case SCALES:
			return unit_float() * scale;
		default:
			return unit_float();
	}
}

/* Makes a row.  In CLUSTERED, 40 consecutive rows have the same center. */
static void
make_row(Kind kind, const float *centers, int number, int32_t dims,
		 float *row)
{
	float		scale = ldexpf(1.0f, (int) (unit_random() % 24) - 16);
	int			center = kind == CLUSTERED ? number / 40 : 0;
	int32_t		d;

	for (d = 0; d < dims; d++)
		row[d] = element(kind, centers + (size_t) center * dims + d, scale);
}

static void
make_query(Kind kind, const float *centers, int number,
		   const TestIndex *index, float *query)
{
	bool		far = kind == FAR_QUERY && number % 3 == 0;
	int32_t		d;

	make_row(kind, centers, (int) (unit_random() % index->spec.nlists),
			 index->spec.dims, query);
	for (d = 0; d < index->spec.dims && far; d++)
		query[d] *= 1e7f;
}

/*
 * Checks the lists that n queries in one call choose, up to `probes` each.
 * Returns the searcher, which the caller must drop.
 */
static GvSearcher *
check_lists(GvMetric metric, Kind kind, int32_t dims, int32_t nlists,
			int32_t probes, int n)
{
	/*
	 * a device converts queries to half precision in parts, one for every 32
	 * sub-quantizers
	 */
	int32_t		m = dims < 40 ? 1 : dims < 1400 ? dims : 1400;
	OwnIndex	index = make_index(metric, dims, m, nlists, 1, 1, false);
	OWN float  *centers = unit_floats((size_t) dims * (nlists / 40 + 1), 1.0f);
	OWN GvSearch *searches = unit_alloc(sizeof(GvSearch) * n);
	GvSearcher *searcher = NULL;
	OwnMirror	mirror = NULL;
	int			nwrong = 0;
	int			i;

	for (i = 0; i < nlists; i++)
		make_row(kind, centers, i, dims, index.centroids + (size_t) i * dims);
	mirror = make_mirror(&index);
	for (i = 0; i < n; i++)
	{
		int32_t		some = i % 2 == 0 ? probes :
			1 + (int32_t) (unit_random() % (uint64_t) probes);

		searches[i] = new_search(&index, some, nlists, 1);
		make_query(kind, centers, i, &index, (float *) searches[i].query);
	}
	CHECK(gv_searcher(0, &searcher) == GV_OK &&
		  unit_search(searcher, mirror, searches, n) == GV_OK, "search");
	for (i = 0; i < n; i++)
		nwrong += !search_is_right(&index, searches[i].query,
								   searches[i].probes, nlists, 1,
								   &searches[i]);
	CHECK(nwrong == 0, "metric %d kind %d dims %d lists %d probes %d: "
		  "%d of %d queries", metric, kind, dims, nlists, probes, nwrong, n);
	free_searches(searches, n);
	return searcher;
}

/*
 * Sizes just below, at and above those of tiles, slices and runs, and so many
 * queries that they are searched in parts.
 */
static void
test_borders(void)
{
	static const int32_t shapes[][4] = {
		/* dims, lists, probes, queries */
		{1, 4, 1, 16}, {2, 31, 7, 17}, {15, 32, 8, 31}, {16, 33, 8, 32},
		{17, 64, 3, 33}, {31, 65, 16, 16}, {32, 127, 1, 20}, {33, 128, 2, 16},
		{50, 129, 32, 47}, {100, 200, 4, 16}, {8, 260, 5, 129},
		{384, 95, 9, 18}, {2000, 66, 5, 16}, {65, 257, 3, 130},
		/* batches of this many queries are not sifted at once */
		{16, 33, 8, 520}, {50, 129, 32, 521}, {8, 260, 5, 530},
		{6, 20, 3, 255}, {6, 20, 3, 256}, {6, 20, 3, 301}, {6, 20, 3, 1100}
	};
	int			i;

	for (i = 0; i < (unit_small ? 20 : 21); i++)
		gv_searcher_drop(check_lists(GV_L2 + i % 3, SPREAD, shapes[i][0],
									 shapes[i][1], shapes[i][2],
									 shapes[i][3]));
}

static void
test_kinds(void)
{
	int			kind;

	for (kind = 0; kind < NKINDS; kind++)
	{
		gv_searcher_drop(check_lists(GV_L2, (Kind) kind, 20, 300, 6, 16));
		gv_searcher_drop(check_lists(GV_IP, (Kind) kind, 48, 301, 70, 18));
		if (!unit_small)
			gv_searcher_drop(check_lists(GV_COSINE, (Kind) kind, 130, 1500, 9,
										 20));
	}
}

/* Each way of choosing lists is taken by the queries for which it is meant. */
static void
test_ways(void)
{
#ifdef UNIT_CARD
	static const struct
	{
		Kind		kind;
		int32_t		dims;
		int32_t		nlists;
		int32_t		probes;
		int			n;
		int			way;		/* expected; NWAYS: none of these ways */
		int64_t		from;		/* number of terms from which on scores are
								 * approximate; -1: the engine decides */
		int64_t		kept;		/* number of scores that go to memory; -1: the
								 * engine decides */
	}			cases[] = {
		{SPREAD, 24, 1100, 5, 16, ALL, 0, -1},
		{SPREAD, 24, 1100, 5, 520, RUNS, 0, -1},
		{CLUSTERED, 24, 1100, 5, 520, RUNS, 0, -1},
		{SPREAD, 10, 300, 8, 20, ALL, 60000, -1},
		{EQUAL, 3, 1200, 4, 16, EXACT, 0, -1},
		{HUGE_NUMBERS, 5, 100, 2, 16, EXACT, 0, -1},
		{SPREAD, 10, 300, 8, 11, NWAYS, 60000, -1},
		{SPREAD, 10, 100, 26, 16, NWAYS, 0, -1},
		{SPREAD, 10, 300, 8, 20, NWAYS, -1, -1},
		/* more than 32 MB of centroids, one query */
		{SPREAD, 8000, 1060, 4, 1, ALL, -1, -1},
		/* few of many lists, so scores need not go to memory */
		{SPREAD, 10, 1100, 2, 520, LEAST, 0, 0},
		{CLUSTERED, 24, 1100, 1, 9, LEAST, 0, 1100},
		{SPREAD, 10, 1100, 2, 3, ALL, 0, 4400},
		{SPREAD, 10, 1100, 3, 9, ALL, 0, 0},
		{EQUAL, 3, 1200, 2, 9, EXACT, 0, 0},
		{HUGE_NUMBERS, 17, 1099, 1, 9, EXACT, 0, 0},
		/* two runs that are not neighbors have one key */
		{SPREAD, 2, 131105, 5, 3, LEAST, 0, 0},
		{CLUSTERED, 8, 131105, 60, 4, LEAST, 0, 0},
		/* near runs have more close lists than the capacity */
		{CLUSTERED, 8, 100000, 192, 2, EXACT, 0, 0}
	};
	int			i;

	for (i = 0; i < (int) (sizeof(cases) / sizeof(cases[0])); i++)
	{
		uint32_t	ways[NWAYS];
		OwnSearcher	searcher = NULL;

		gv_coarse_filter_from = cases[i].from;
		gv_scores_kept = cases[i].kept;
		searcher = check_lists(GV_L2, cases[i].kind, cases[i].dims,
							   cases[i].nlists, cases[i].probes, cases[i].n);
		/* every other query may probe so few lists that RUNS is enough */
		CHECK(gv_gpu_coarse_paths(gv_devices_own(searcher),
									  ways) == GV_OK &&
			  ways[RUNS] + ways[LEAST] + ways[ALL] + ways[EXACT] ==
			  (cases[i].way == NWAYS ? 0 : (uint32_t) cases[i].n),
			  "case %d: %u, %u, %u, %u", i, ways[RUNS], ways[LEAST], ways[ALL],
			  ways[EXACT]);
		CHECK(cases[i].way == NWAYS ||
			  ways[cases[i].way] >= (uint32_t) cases[i].n / 2,
			  "case %d: %u, %u, %u, %u", i, ways[RUNS], ways[LEAST], ways[ALL],
			  ways[EXACT]);
	}
	gv_scores_kept = -1;
#endif
}

/* All kinds of lists, if no scores of lists go to memory. */
static void
test_least_alone(void)
{
	int			kind;

#ifdef UNIT_CARD
	gv_scores_kept = 0;
#endif
	for (kind = 0; kind < NKINDS; kind++)
	{
		gv_searcher_drop(check_lists(GV_L2, (Kind) kind, 20, 1100, 1, 9));
		gv_searcher_drop(check_lists(GV_IP, (Kind) kind, 48, 1601, 1, 5));
		gv_searcher_drop(check_lists(GV_COSINE, (Kind) kind, 9, 1605, 3, 9));
	}
#ifdef UNIT_CARD
	gv_scores_kept = -1;
#endif
}

GvSearcher *
check_some_lists(GvMetric metric, int32_t dims, int32_t nlists, int32_t probes,
				 int n)
{
	return check_lists(metric, SPREAD, dims, nlists, probes, n);
}

void
test_mirror_lists(void)
{
#ifdef UNIT_CARD
	gv_coarse_filter_from = 0;		/* as if there were many terms */
#endif
	test_borders();
	test_kinds();
	test_ways();
	test_least_alone();
#ifdef UNIT_CARD
	gv_coarse_filter_from = -1;
#endif
}
