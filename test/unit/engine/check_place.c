/*
 * check_place.c
 *		Lists of vectors through two levels, the second list, half precision.
 */
#include "unit.h"

/* A tree of random centroids; the caller frees its arrays. */
static GvTree
random_tree(int32_t dims, int32_t nparents, int32_t nlists)
{
	GvTree		tree = {.dims = dims,.nparents = nparents,.nlists = nlists};
	float	   *parents = unit_floats((size_t) nparents * dims, 1.0f);
	float	   *centroids = unit_alloc(sizeof(float) * nlists * dims);
	int32_t    *parent_offsets = unit_alloc(sizeof(int32_t) * (nparents + 1));
	int32_t		p;

	for (p = 0; p <= nparents; p++)
		parent_offsets[p] = (int32_t) ((int64_t) nlists * p / nparents);
	for (p = 0; p < nparents; p++)
	{
		int32_t		l;
		int32_t		d;

		for (l = parent_offsets[p]; l < parent_offsets[p + 1]; l++)
			for (d = 0; d < dims; d++)
				centroids[l * dims + d] = parents[p * dims + d] +
					unit_float() * 0.3f;
	}
	tree.parents = parents;
	tree.centroids = centroids;
	tree.parent_offsets = parent_offsets;
	return tree;
}

static void
free_tree(GvTree *tree)
{
	unit_free((void *) tree->parents);
	unit_free((void *) tree->centroids);
	unit_free((void *) tree->parent_offsets);
}

/* The SOAR cost of a list for a row whose first list is `first`. */
static double
soar_cost(const GvTree *tree, const float *x, int32_t first, int32_t other)
{
	const float *a = tree->centroids + (size_t) first * tree->dims;
	const float *b = tree->centroids + (size_t) other * tree->dims;
	double		product = 0.0;
	double		square = naive_sqdist(x, a, tree->dims);
	int32_t		d;

	for (d = 0; d < tree->dims; d++)
		product += ((double) x[d] - a[d]) * ((double) x[d] - b[d]);
	return naive_sqdist(x, b, tree->dims) +
		(square > 0.0 ? 1.5 * product * product / square : 0.0);
}

/* Check one row's lists; `exact` when every parent was tried. */
static void
check_row(const GvTree *tree, const float *x, const int32_t *lists,
		  int32_t lists_per_row, bool exact)
{
	int32_t		dims = tree->dims;
	double		mine;
	double		best = HUGE_VAL;
	int32_t		l;

	CHECK(lists[0] >= 0 && lists[0] < tree->nlists, "list %d", lists[0]);
	mine = naive_sqdist(x, tree->centroids + (size_t) lists[0] * dims, dims);
	for (l = 0; l < tree->nlists; l++)
		best = fmin(best, naive_sqdist(x, tree->centroids + (size_t) l * dims,
									   dims));
	if (exact)
		CHECK(mine <= best * 1.0001 + 1e-4, "%g is not %g", mine, best);
	if (lists_per_row < 2)
		return;
	if (tree->nlists == 1)
	{
		CHECK(lists[1] == -1, "second list %d of one", lists[1]);
		return;
	}
	CHECK(lists[1] >= 0 && lists[1] < tree->nlists && lists[1] != lists[0],
		  "second list %d, first %d", lists[1], lists[0]);
	if (!exact || tree->nlists > GV_SOAR_LISTS)
		return;
	mine = soar_cost(tree, x, lists[0], lists[1]);
	for (l = 0; l < tree->nlists; l++)
		if (l != lists[0])
			CHECK(mine <= soar_cost(tree, x, lists[0], l) * 1.001 + 1e-4,
				  "list %d costs less than %d", l, lists[1]);
}

static bool
always(void *arg)
{
	return true;
}

static void
check_place(int32_t dims, int32_t nparents, int32_t nlists, int64_t n,
			int32_t lists_per_row)
{
	GvTree		tree = random_tree(dims, nparents, nlists);
	float	   *x = unit_floats((size_t) n * dims, 1.0f);
	int32_t    *lists = unit_alloc(sizeof(int32_t) * n * lists_per_row);
	int32_t    *again = unit_alloc(sizeof(int32_t) * n * lists_per_row);
	GvGroups	groups;
	void	   *memory = unit_groups(&tree, &groups);
	void	   *scratch;
	GvStop		stop = {always, NULL};
	int64_t		row;

	scratch = unit_alloc(gv_place_scratch(&groups, n, lists_per_row));
	memcpy(x, tree.centroids, sizeof(float) * dims);	/* residual zero */
	CHECK(gv_place(&groups, x, n, lists_per_row, lists, scratch, NULL) ==
		  GV_OK, " ");
	CHECK(gv_place(&groups, x, n, lists_per_row, again, scratch, NULL) ==
		  GV_OK, " ");
	CHECK(memcmp(lists, again, sizeof(int32_t) * n * lists_per_row) == 0,
		  "differs");
	for (row = 0; row < n; row++)
		check_row(&tree, x + row * dims, lists + row * lists_per_row,
				  lists_per_row,
				  groups.ngroups <= groups.tried);
	if (n * nlists * dims > 20000000)
		CHECK(gv_place(&groups, x, n, lists_per_row, lists, scratch, &stop) ==
			  GV_CANCELED, "not canceled");
	unit_free(scratch);
	unit_free(memory);
	unit_free(lists);
	unit_free(again);
	unit_free(x);
	free_tree(&tree);
}

/* gv_place and gv_soar must refuse these. */
static void
check_refused(void)
{
	GvTree		tree = random_tree(3, 2, 4);
	float		x[3] = {0};
	int32_t		lists[2];
	GvGroups	groups;
	void	   *memory = unit_groups(&tree, &groups);
	void	   *scratch;

	scratch = unit_alloc(gv_place_scratch(&groups, 1, 2));
	CHECK(gv_place(NULL, x, 1, 1, lists, scratch, NULL) == GV_INVALID, " ");
	CHECK(gv_place(&groups, x, 0, 1, lists, scratch, NULL) == GV_INVALID, " ");
	CHECK(gv_place(&groups, x, 1, 3, lists, scratch, NULL) == GV_INVALID, " ");
	CHECK(gv_place(&groups, x, 1, 1, lists, NULL, NULL) == GV_INVALID, " ");
	CHECK(gv_place_scratch(&groups, 0, 1) == 0, " ");
	CHECK(gv_soar(3, x, x, NULL, 0) == -1, " ");
	unit_free(scratch);
	unit_free(memory);
	free_tree(&tree);
}

/* The value of a finite half, by definition. */
static double
half_value(uint16_t half)
{
	int			exponent = half >> 10 & 31;
	double		mantissa = half & 1023;
	double		value = exponent == 0 ? ldexp(mantissa, -24) :
		ldexp(1024 + mantissa, exponent - 25);

	return half & 0x8000 ? -value : value;
}

static void
check_half(void)
{
	long		nwrong = 0;
	int			i;

	for (i = 0; i < 65536; i++)
	{
		uint16_t	half = (uint16_t) i;
		uint16_t	back;
		float		x;

		if ((half & 0x7C00) == 0x7C00)
			continue;
		gv_from_half(&half, 1, &x);
		gv_to_half(&x, 1, &back);
		nwrong += x != half_value(half) || back != half;
	}
	for (i = 0; i < 100000; i++)
	{
		float		x = unit_float() * ldexpf(1.0f, (int) (unit_random() % 48) - 30);
		uint16_t	half;
		uint16_t	up;
		uint16_t	down;
		double		error;

		gv_to_half(&x, 1, &half);
		up = (uint16_t) (half + 1);
		down = (uint16_t) (half - 1);
		error = fabs(half_value(half) - x);
		if (fabsf(x) > 65504.0f)
			nwrong += (half & 0x7FFF) != 0x7BFF;
		else
			nwrong += ((half & 0x7FFF) < 0x7BFF &&
					   fabs(half_value(up) - x) < error) ||
				((half & 0x7FFF) > 0 && fabs(half_value(down) - x) < error);
	}
	CHECK(nwrong == 0, "%ld halves", nwrong);
}

void
test_place(void)
{
	static const int32_t shapes[][3] = {{1, 1, 1}, {2, 1, 2}, {3, 2, 5},
	{16, 4, 16}, {17, 5, 16}, {50, 1, 70}, {100, 6, 130}, {384, 20, 400},
	{1025, 3, 9}};
	int			i;

	for (i = 0; i < (int) (sizeof(shapes) / sizeof(shapes[0])); i++)
		for (int32_t lists_per_row = 1; lists_per_row <= 2; lists_per_row++)
		{
			check_place(shapes[i][0], shapes[i][1], shapes[i][2], 1,
						lists_per_row);
			check_place(shapes[i][0], shapes[i][1], shapes[i][2], 300,
						lists_per_row);
		}
	check_refused();
	check_half();
}
