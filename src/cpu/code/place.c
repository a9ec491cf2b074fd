/*
 * place.c
 *		The lists of many vectors, through groups of lists (groups.c).
 *
 * Rows are compared with the centers of all groups, but only with the lists of
 * the nearest groups.  (row, group) pairs are sorted by group, so that a
 * group's lists are compared with all their rows in one blocked product.
 *
 * The second list of a row is chosen by the SOAR rule: among the nearest lists
 * it is the one that minimizes |r'|^2 + lambda (<r', r> / |r|)^2, where r and
 * r' are the residuals in the first list and in the other.  If the two
 * residuals are at right angles, the second list misleads for other queries
 * than the first does.  Source: Sun, Simcha, Dopson, Guo, Kumar, "SOAR:
 * Improved indexing for approximate nearest neighbor search", 2023.
 */
#include <string.h>

#include "cpu/code/gv_nearest.h"
#include "engine/gv_call.h"

#define LAMBDA		1.5
#define AHEAD		2			/* rows that are prefetched, or rows whose
								 * lists are, while one is processed */

/* State of one call.  The arrays are in the caller's scratch. */
typedef struct Placing
{
	const GvGroups *groups;
	const float *x;				/* [n][dims] */
	int64_t		n;
	int			tried;			/* groups that each row tries */
	GvNearest	centers;		/* groups near to GV_NEAREST_ROWS rows */
	GvNearest	lists;			/* lists near to each of all rows */
	int32_t    *groups_of;		/* [n][GV_TRIED_GROUPS] the nearest groups of
								 * each row; -1: none */
	int64_t    *starts;			/* [ngroups + 1] where each group's pairs
								 * begin */
	int32_t    *rows;			/* [n * tried] rows of the pairs, ordered by
								 * group */
	float	   *some;			/* [n or GV_NEAREST_ROWS][dims] rows' copies */
	GvPanel		panel;
	GvPoll		poll;
} Placing;

/*
 * Lays out the scratch and returns its size.  If `scratch` is NULL, only
 * computes the size.
 */
static size_t
carve(Placing *p, const GvGroups *groups, int64_t n, int32_t lists_per_row,
	  char *scratch)
{
	size_t		next = 0;
	size_t		groups_of;
	size_t		starts;
	size_t		rows;
	size_t		some;
	int64_t		at_once = n < GV_NEAREST_ROWS ? n : GV_NEAREST_ROWS;

	p->tried = groups->tried < groups->ngroups ? groups->tried :
		groups->ngroups;
	gv_nearest_carve(&p->centers, groups->dims, p->tried, at_once, scratch,
					 &next);
	gv_nearest_carve(&p->lists, groups->dims,
					 lists_per_row < 2 ? 1 : GV_SOAR_LISTS,
					 n, scratch, &next);
	groups_of = gv_carve(&next, sizeof(int32_t) * n * GV_TRIED_GROUPS);
	starts = gv_carve(&next, sizeof(int64_t) * ((size_t) groups->ngroups + 1));
	rows = gv_carve(&next, sizeof(int32_t) * n * p->tried);
	some = gv_carve(&next, sizeof(float) * at_once * groups->dims);
	gv_panel_carve(&p->panel, groups->dims, scratch, &next);
	if (scratch != NULL)
	{
		p->groups_of = (int32_t *) (scratch + groups_of);
		p->starts = (int64_t *) (scratch + starts);
		p->rows = (int32_t *) (scratch + rows);
		p->some = (float *) (scratch + some);
	}
	return next;
}

static bool
valid_groups(const GvGroups *groups, int64_t nrows, int32_t lists_per_row)
{
	return groups != NULL && gv_valid_dims(groups->dims) &&
		groups->nlists >= 1 && groups->ngroups >= 1 && groups->tried >= 1 &&
		groups->tried <= GV_TRIED_GROUPS && groups->centroids != NULL &&
		groups->centers != NULL && groups->starts != NULL &&
		groups->lists != NULL && nrows >= 1 && nrows <= INT32_MAX &&
		lists_per_row >= 1 && lists_per_row <= 2;
}

/* Returns 0 for invalid arguments. */
size_t
gv_place_scratch(const GvGroups *groups, int64_t n, int32_t lists_per_row)
{
	Placing		p;

	return valid_groups(groups, n, lists_per_row) ?
		carve(&p, groups, n, lists_per_row, NULL) : 0;
}

static const float *
row_of(const Placing *p, int64_t row)
{
	return p->x + (size_t) row * p->groups->dims;
}

/* Returns the lists of a group, to be offered to rows. */
static GvOffered
lists_of(const Placing *p, int32_t group)
{
	const GvGroups *groups = p->groups;
	int32_t		first = groups->starts[group];
	GvOffered	offered = {.centroids = groups->centroids,
		.n = groups->starts[group + 1] - first,
		.members = groups->lists + first, .others = groups->others + first,
	.tried = p->groups_of, .ntried = p->tried};

	return offered;
}

/*
 * Finds the nearest groups of rows first .. first + n - 1, n <=
 * GV_NEAREST_ROWS.
 */
static bool
find_groups(Placing *p, int64_t first, int n)
{
	GvOffered	all = {.centroids = p->groups->centers,
	.n = p->groups->ngroups};
	int32_t		rows[GV_NEAREST_ROWS];
	int			i;
	int			t;

	for (i = 0; i < n; i++)
		rows[i] = i;
	gv_nearest_begin(&p->centers, n);
	if (!gv_nearest_offer(&p->centers, row_of(p, first), rows, n, &all,
						  &p->panel, &p->poll))
		return false;
	for (i = 0; i < n; i++)
	{
		if (!gv_nearest_rescore(&p->centers, i, row_of(p, first + i),
								all.centroids))
		{
			if (gv_poll(&p->poll, (int64_t) all.n * p->groups->dims))
				return false;
			gv_nearest_rerank(&p->centers, i, row_of(p, first + i), &all);
		}
		for (t = 0; t < GV_TRIED_GROUPS; t++)
			p->groups_of[(first + i) * GV_TRIED_GROUPS + t] = t < p->tried ?
				gv_nearest_id(&p->centers, i, t) : -1;
	}
	return true;
}

/* Orders the (row, group) pairs by group, by a counting sort. */
static void
group_pairs(Placing *p)
{
	int32_t		ngroups = p->groups->ngroups;
	int64_t		npairs = p->n * GV_TRIED_GROUPS;
	int64_t		sum = 0;
	int64_t		i;
	int32_t		g;

	memset(p->starts, 0, sizeof(int64_t) * ((size_t) ngroups + 1));
	for (i = 0; i < npairs; i++)
		if (p->groups_of[i] >= 0)
			p->starts[p->groups_of[i]]++;
	for (g = 0; g <= ngroups; g++)
	{
		int64_t		count = g < ngroups ? p->starts[g] : 0;

		p->starts[g] = sum;
		sum += count;
	}
	for (i = 0; i < npairs; i++)
		if (p->groups_of[i] >= 0)
			p->rows[p->starts[p->groups_of[i]]++] =
				(int32_t) (i / GV_TRIED_GROUPS);
	for (g = ngroups; g > 0; g--)
		p->starts[g] = p->starts[g - 1];
	p->starts[0] = 0;
}

/*
 * Finds a row's nearest lists, after those of all its groups have been
 * offered.
 */
static bool
rescore_lists(Placing *p, int64_t row)
{
	const GvGroups *groups = p->groups;
	int			i;

	if (gv_nearest_rescore(&p->lists, row, row_of(p, row), groups->centroids))
		return true;
	for (i = 0; i < p->tried; i++)
	{
		GvOffered	offered = lists_of(p, p->groups_of[row * GV_TRIED_GROUPS + i]);

		if (gv_poll(&p->poll, (int64_t) offered.n * groups->dims))
			return false;
		gv_nearest_rerank(&p->lists, row, row_of(p, row), &offered);
	}
	return true;
}

/* Offers every row the lists of its groups, and finds its nearest lists. */
static bool
find_lists(Placing *p)
{
	size_t		bytes = sizeof(float) * p->groups->dims;
	int32_t		group;
	int64_t		row;

	gv_nearest_begin(&p->lists, p->n);
	for (group = 0; group < p->groups->ngroups; group++)
	{
		GvOffered	offered = lists_of(p, group);
		int64_t		at;

		for (at = p->starts[group]; at < p->starts[group + 1];
			 at += GV_NEAREST_ROWS)
		{
			int64_t		left = p->starts[group + 1] - at;
			int			n = left < GV_NEAREST_ROWS ? (int) left : GV_NEAREST_ROWS;
			int			i;

			for (i = 0; i < n; i++)
			{
				if (i + AHEAD < n)
					gv_nearest_fetch(row_of(p, p->rows[at + i + AHEAD]),
									 p->groups->dims);
				memcpy(p->some + (size_t) i * p->groups->dims,
					   row_of(p, p->rows[at + i]), bytes);
			}
			if (!gv_nearest_offer(&p->lists, p->some, p->rows + at, n,
								  &offered, &p->panel, &p->poll))
				return false;
		}
	}
	for (row = 0; row < p->n; row++)
	{
		if (row + AHEAD < p->n)
			gv_nearest_prepare(&p->lists, row + AHEAD,
							   p->groups->centroids);
		if (gv_poll(&p->poll, (int64_t) p->lists.kept * p->groups->dims) ||
			!rescore_lists(p, row))
			return false;
	}
	return true;
}

int32_t
gv_soar(int32_t dims, const float *x, const float *first,
		const float *const *others, int32_t n)
{
	double		square;
	double		least = 0.0;
	int32_t		best = -1;
	int32_t		i;

	if (!gv_valid_dims(dims) || n < 1)
		return -1;
	square = gv_cpu_sqdist(x, first, dims);
	for (i = 0; i < n; i++)
	{
		double		cost = gv_cpu_sqdist(x, others[i], dims);
		double		product = 0.0;
		float		sums[GV_CPU_LANES];
		int			l;

		gv_kernels->residual_products(x, others[i], first, dims, sums);
		for (l = 0; l < GV_CPU_LANES; l++)
			product += sums[l];
		if (square > 0.0)
			cost += LAMBDA * product * product / square;
		if (best < 0 || cost < least)
		{
			least = cost;
			best = i;
		}
	}
	return best;
}

/* Returns the second list of a row, or -1 if there is only one list. */
static int32_t
second_list(const Placing *p, int64_t row)
{
	const GvGroups *groups = p->groups;
	const float *others[GV_SOAR_LISTS];
	int32_t		n = 0;
	int32_t		best;

	while (n + 1 < p->lists.wanted && gv_nearest_id(&p->lists, row, n + 1) >= 0)
	{
		others[n] = groups->centroids +
			(size_t) gv_nearest_id(&p->lists, row, n + 1) * groups->dims;
		n++;
	}
	best = gv_soar(groups->dims, row_of(p, row), groups->centroids +
				   (size_t) gv_nearest_id(&p->lists, row, 0) * groups->dims,
				   others, n);
	return best < 0 ? -1 : gv_nearest_id(&p->lists, row, best + 1);
}

GvStatus
gv_place(const GvGroups *groups, const float *x, int64_t n,
		 int32_t lists_per_row,
		 int32_t *lists, void *scratch, const GvStop *stop)
{
	Placing		p = {.groups = groups, .x = x, .n = n, .poll = {stop, 0}};
	int64_t		row;

	GV_CALL(gv_engine_calls, valid_groups(groups, n, lists_per_row) &&
			x != NULL &&
			lists != NULL && gv_valid_scratch(scratch) &&
			gv_valid_stop(stop));
	(void) carve(&p, groups, n, lists_per_row, scratch);
	for (row = 0; row < n; row += GV_NEAREST_ROWS)
		if (!find_groups(&p, row, n - row < GV_NEAREST_ROWS ? (int) (n - row) :
						 GV_NEAREST_ROWS))
			return GV_CANCELED;
	group_pairs(&p);
	if (!find_lists(&p))
		return GV_CANCELED;
	for (row = 0; row < n; row++)
	{
		lists[row * lists_per_row] = gv_nearest_id(&p.lists, row, 0);
		if (lists_per_row < 2)
			continue;
		if (gv_poll(&p.poll, (int64_t) GV_SOAR_LISTS * 3 * groups->dims))
			return GV_CANCELED;
		lists[row * lists_per_row + 1] = second_list(&p, row);
	}
	return GV_OK;
}
