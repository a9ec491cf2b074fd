/*
 * check_groups.c
 *		Lists by groups, and what gv_place finds through them: by definition
 *		the nearest, on every level of instructions.  The second list.
 */
#include "cpu/simd/kernels.h"
#include "unit.h"

/* Data that make estimates useless, or distances equal. */
typedef enum Kind
{
	PLAIN,
	FAR,						/* from the origin */
	EQUAL,						/* a few centroids, many times each */
	HUGE_LISTS,					/* squares of some overflow */
	HUGE_ROWS,
	NKINDS
} Kind;

static float *
make_centroids(int32_t dims, int32_t n, Kind kind)
{
	float	   *x = unit_floats((size_t) n * dims, 1.0f);
	int32_t		i;
	int32_t		d;

	for (i = 0; i < n; i++)
		for (d = 0; d < dims; d++)
		{
			float	   *value = &x[(size_t) i * dims + d];

			if (kind == FAR)
				*value = 1000.0f + *value * 0.001f;
			else if (kind == EQUAL && i >= 7)
				*value = x[(size_t) (i % 7) * dims + d];
			else if (kind == HUGE_LISTS && i % 5 == 0)
				*value *= 1e25f;
		}
	return x;
}

/*
 * The k nearest of some centroids, of all n or of those that `numbers` names,
 * each once: sorts them all.
 */
static void
find_nearest(const float *x, const float *centroids, int32_t dims,
			 const int32_t *numbers, int32_t n, int k, int32_t *ids)
{
	FREED Pair *pairs = malloc(sizeof(Pair) * (n + 1));
	int			count = 0;
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		int32_t		id = numbers == NULL ? i : numbers[i];

		pairs[i].id = (uint64_t) id;
		pairs[i].score = gv_score(gv_cpu_sqdist(x, centroids +
												(size_t) id * dims, dims));
	}
	qsort(pairs, n, sizeof(Pair), compare_pairs);
	for (i = 0; i < n && count < k; i++)
		if (i == 0 || pairs[i].id != pairs[i - 1].id)
			ids[count++] = (int32_t) pairs[i].id;
	for (; count < k; count++)
		ids[count] = -1;
}

/* Every list is in its nearest groups, and in no other. */
static void
check_groups(const GvGroups *groups)
{
	int32_t		each = groups->starts[groups->ngroups] / groups->nlists;
	int32_t		owners[GV_LIST_GROUPS];
	OWN int32_t *seen = unit_alloc(sizeof(int32_t) * groups->nlists);
	int32_t		g;
	int32_t		i;

	memset(seen, 0, sizeof(int32_t) * groups->nlists);
	CHECK(groups->starts[0] == 0 &&
		  groups->starts[groups->ngroups] == each * groups->nlists, " ");
	for (g = 0; g < groups->ngroups; g++)
		for (i = groups->starts[g]; i < groups->starts[g + 1]; i++)
		{
			int32_t		list = groups->lists[i];
			int32_t		other;

			find_nearest(groups->centroids + (size_t) list * groups->dims,
						 groups->centers, groups->dims, NULL,
						 groups->ngroups, each, owners);
			other = owners[0] == g ? owners[each - 1] : owners[0];
			CHECK(owners[0] == g || owners[each - 1] == g,
				  "list %d in group %d", list, g);
			CHECK(groups->others[i] == (other < g ? other : -1), "list %d",
				  list);
			CHECK(i == groups->starts[g] || list > groups->lists[i - 1],
				  "list %d in group %d", list, g);
			seen[list]++;
		}
	for (i = 0; i < groups->nlists; i++)
		CHECK(seen[i] == each, "list %d", i);
}

/* The lists that a row has by definition. */
static void
expect_lists(const GvGroups *groups, const float *x, int32_t *lists)
{
	int32_t		tried[GV_TRIED_GROUPS];
	int32_t		near[GV_SOAR_LISTS];
	const float *others[GV_SOAR_LISTS];
	OWN int32_t *all = unit_alloc(sizeof(int32_t) * GV_LIST_GROUPS *
								 groups->nlists);
	int32_t		n = 0;
	int			count = 0;
	int			i;

	find_nearest(x, groups->centers, groups->dims, NULL, groups->ngroups,
				 groups->tried, tried);
	for (i = 0; i < groups->tried && tried[i] >= 0; i++)
	{
		int32_t		first = groups->starts[tried[i]];
		int32_t		end = groups->starts[tried[i] + 1];

		memcpy(all + n, groups->lists + first,
			   sizeof(int32_t) * (end - first));
		n += end - first;
	}
	find_nearest(x, groups->centroids, groups->dims, all, n, GV_SOAR_LISTS,
				 near);
	for (; count + 1 < GV_SOAR_LISTS && near[count + 1] >= 0; count++)
		others[count] = groups->centroids +
			(size_t) near[count + 1] * groups->dims;
	i = gv_soar(groups->dims, x, groups->centroids +
				(size_t) near[0] * groups->dims, others, count);
	lists[0] = near[0];
	lists[1] = i < 0 ? -1 : near[i + 1];
}

static void
check_placed(const GvGroups *groups, Kind kind, int64_t n)
{
	OWN float  *x = make_centroids(groups->dims, (int32_t) n,
								   kind == FAR ? FAR : PLAIN);
	OWN int32_t *one = unit_alloc(sizeof(int32_t) * n);
	OWN int32_t *two = unit_alloc(sizeof(int32_t) * n * 2);
	OWN void   *scratch = unit_alloc(gv_place_scratch(groups, n, 2));
	int64_t		row;
	int32_t		d;

	/* one that is a centroid, and perhaps one that is longer than all */
	memcpy(x, groups->centroids, sizeof(float) * groups->dims);
	for (d = 0; d < groups->dims && kind == HUGE_ROWS && n > 1; d++)
		x[groups->dims + d] *= 1e20f;
	CHECK(gv_place(groups, x, n, 1, one, scratch, NULL) == GV_OK, " ");
	CHECK(gv_place(groups, x, n, 2, two, scratch, NULL) == GV_OK, " ");
	for (row = 0; row < n; row++)
	{
		int32_t		want[2];

		expect_lists(groups, x + (size_t) row * groups->dims, want);
		CHECK(one[row] == want[0] && two[2 * row] == want[0] &&
			  two[2 * row + 1] == want[1],
			  "kind %d, %d lists, row %d: %d, %d, %d, not %d, %d", kind,
			  groups->nlists, (int) row, one[row], two[2 * row],
			  two[2 * row + 1], want[0], want[1]);
	}
}

static void
check_tree(int32_t dims, int32_t nparents, int32_t nlists, Kind kind)
{
	OWN float  *centroids = make_centroids(dims, nlists, kind);
	OWN int32_t *parent_offsets = unit_alloc(sizeof(int32_t) * (nparents + 1));
	GvTree		tree =
		{dims, nparents, nlists, centroids, parent_offsets, centroids};
	OWN void   *memory = NULL;
	GvGroups	groups;
	int32_t		p;

	for (p = 0; p <= nparents; p++)
		parent_offsets[p] = (int32_t) ((int64_t) nlists * p / nparents);
	memory = unit_groups(&tree, &groups);
	check_groups(&groups);
	check_placed(&groups, kind, 1);
	check_placed(&groups, kind, unit_small ? 150 : 700);
	if (groups.tried > 2)
		groups.tried = 2;
	check_placed(&groups, kind, 150);
}

/* The second list costs least, by a plain sum of what gv_engine.h says. */
static void
check_soar(int32_t dims)
{
	OWN float  *x = unit_floats(dims, 1.0f);
	OWN float  *lists = unit_floats((size_t) 9 * dims, 1.0f);
	const float *others[8];
	double		costs[8];
	double		square;
	int32_t		best;
	int32_t		d;
	int			i;

	if (dims % 3 == 0)			/* no residual */
		memcpy(x, lists, sizeof(float) * dims);
	square = naive_sqdist(x, lists, dims);
	for (i = 0; i < 8; i++)
	{
		double		product = 0.0;

		others[i] = lists + (size_t) (i + 1) * dims;
		for (d = 0; d < dims; d++)
			product += ((double) x[d] - lists[d]) *
				((double) x[d] - others[i][d]);
		costs[i] = naive_sqdist(x, others[i], dims) +
			(square > 0.0 ? 1.5 * product * product / square : 0.0);
	}
	best = gv_soar(dims, x, lists, others, 8);
	CHECK(best >= 0 && best < 8, "list %d of 8", best);
	for (i = 0; i < 8 && best >= 0; i++)
		CHECK(costs[best] <= costs[i] * 1.001 + 1e-4,
			  "list %d costs less than %d", i, best);
}

/* Rows that take a while, to be stopped. */
static void
check_canceled(void)
{
	OWN float  *centroids = make_centroids(384, 400, PLAIN);
	OWN float  *x = make_centroids(384, 300, PLAIN);
	OWN int32_t *parent_offsets = unit_alloc(sizeof(int32_t) * 21);
	OWN int32_t *lists = unit_alloc(sizeof(int32_t) * 2 * 300);
	GvTree		tree = {384, 20, 400, centroids, parent_offsets, centroids};
	GvStop		stop = {unit_stop_now, NULL};
	GvGroups	groups;
	OWN void   *memory = NULL;
	OWN void   *scratch = NULL;
	int			p;

	for (p = 0; p <= 20; p++)
		parent_offsets[p] = 20 * p;
	memory = unit_groups(&tree, &groups);
	scratch = unit_alloc(gv_place_scratch(&groups, 300, 2));
	CHECK(gv_place(&groups, x, 300, 2, lists, scratch, &stop) == GV_CANCELED,
		  "not canceled");
	INVALID(gv_place(NULL, x, 1, 1, lists, scratch, NULL));
	INVALID(gv_place(&groups, x, 0, 1, lists, scratch, NULL));
	INVALID(gv_place(&groups, x, 1, 3, lists, scratch, NULL));
	INVALID(gv_place(&groups, x, 1, 1, lists, NULL, NULL));
	CHECK(gv_place_scratch(&groups, 0, 1) == 0, "scratch of no rows");
	CHECK(gv_soar(3, x, x, NULL, 0) == -1, "one list");
}

static void
check_refused(void)
{
	float		x[2] = {0};
	int32_t		parent_offsets[] = {0, 2};
	GvTree		tree = {1, 1, 2, x, parent_offsets, x};
	OWN void   *memory = unit_alloc(gv_groups_bytes(&tree));
	OWN void   *scratch = unit_alloc(gv_groups_scratch(&tree));
	GvGroups	groups;

	INVALID(gv_groups_make(NULL, &groups, memory, scratch, NULL));
	INVALID(gv_groups_make(&tree, NULL, memory, scratch, NULL));
	INVALID(gv_groups_make(&tree, &groups, NULL, scratch, NULL));
	INVALID(gv_groups_make(&tree, &groups, memory, NULL, NULL));
	tree.nparents = 0;
	INVALID(gv_groups_make(&tree, &groups, memory, scratch, NULL));
	CHECK(gv_groups_bytes(&tree) == 0 && gv_groups_scratch(&tree) == 0, " ");
}

/*
 * The memory that stays: of each list two groups, and which other one it is
 * in; of each group its center.
 */
static void
check_bytes(void)
{
	int32_t		dims = 4;
	int32_t		nlists = 100000;
	OWN float  *x = unit_floats((size_t) nlists * dims, 1.0f);
	int32_t		parent_offsets[] = {0, 40000, 40001, 100000};
	GvTree		tree = {dims, 3, nlists, x, parent_offsets, x};
	GvGroups	groups;
	OWN void   *memory = unit_groups(&tree, &groups);

	CHECK(gv_groups_bytes(&tree) <= 16 * (size_t) nlists +
		  25 * (size_t) groups.ngroups + 5 * GV_ALIGN,
		  "%zu bytes, %d groups", gv_groups_bytes(&tree), groups.ngroups);
}

/*
 * Twelve parents whose lists lie on both sides of them, and are nearer to the
 * centers of others: a row between has a list all the same.
 */
static void
check_empty(void)
{
	float		lists[32];
	float		x[1] = {0};
	int32_t		parent_offsets[17];
	int32_t		found;
	GvTree		tree = {1, 16, 32, lists, parent_offsets, lists};
	GvGroups	groups;
	OWN void   *memory = NULL;
	OWN void   *scratch = NULL;
	int			p;

	for (p = 0; p < 16; p++)
	{
		float		away = 100.0f + (float) p;

		lists[2 * p] = p < 14 ? -away : away;
		lists[2 * p + 1] = p < 12 || p >= 14 ? away : -away;
		parent_offsets[p] = 2 * p;
	}
	parent_offsets[16] = 32;
	memory = unit_groups(&tree, &groups);
	for (p = 0; p < groups.ngroups; p++)
		CHECK(groups.starts[p] < groups.starts[p + 1], "group %d is empty", p);
	scratch = unit_alloc(gv_place_scratch(&groups, 1, 1));
	CHECK(gv_place(&groups, x, 1, 1, &found, scratch, NULL) == GV_OK, " ");
	CHECK(found >= 0, "no list");
}

void
test_groups(void)
{
	int			level;
	int			kind;
	int			i;

	check_refused();
	check_canceled();
	check_bytes();
	check_empty();
	for (level = GV_SIMD_PORTABLE; level < GV_NSIMD; level++)
	{
		if (!gv_simd_has(level))
			continue;
		gv_simd_use(level);
		for (i = 0; i < NDIMS; i++)
			check_soar(all_dims[i]);
		check_tree(1, 1, 1, PLAIN);
		check_tree(2, 1, 2, PLAIN);
		for (kind = 0; kind < NKINDS; kind++)
		{
			check_tree(3, 2, 5, kind);
			check_tree(70, 1, 100, kind);
			check_tree(16, 30, 900, kind);
			check_tree(129, 9, 1100, kind);
		}
	}
	gv_simd_use(unit_simd());
}
