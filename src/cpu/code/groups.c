/*
 * groups.c
 *		Groups of lists, through which rows are placed.
 *
 * The lists of each parent are clustered once more, into groups of about as
 * many lists as a panel of the blocked product has.  Then every list is put
 * into the two groups whose centers are nearest, so a row between two groups
 * finds the lists of both sides in either group.  Therefore a row has to try
 * only a few groups, however many there are.
 */
#include <math.h>
#include <string.h>

#include "cpu/code/gv_nearest.h"
#include "engine/gv_call.h"

#define GROUP_LISTS		48		/* lists in a group, on average, at least */
#define GROUP_FACTOR		0.25	/* the same number over the square root of
									 * the number of all lists, at least */
#define ITERATIONS		10
#define MAX_IMBALANCE		2.0
#define SEED			UINT64_C(0x67707576656331)

/*
 * State of one call.  The arrays are in the caller's memory, some of them in
 * scratch.
 */
typedef struct Grouping
{
	const GvTree *tree;
	GvGroups   *groups;
	int			each;			/* groups to which a list belongs */
	float	   *centers;		/* [most_groups][dims] */
	int32_t    *starts;			/* [most_groups + 1] */
	int32_t    *lists;			/* [GV_LIST_GROUPS * nlists] */
	int32_t    *others;			/* [GV_LIST_GROUPS * nlists] */
	int32_t    *owners;			/* [nlists][each] */
	void	   *scratch;		/* of k-means */
	GvNearest	nearest;		/* groups near to each of GV_NEAREST_ROWS
								 * lists */
	GvPanel		panel;
	GvPoll		poll;
} Grouping;

/* Returns the number of groups to make of n lists of one parent. */
static int32_t
groups_of(const GvTree *tree, int32_t n)
{
	double		size = fmax(GROUP_LISTS, GROUP_FACTOR * sqrt(tree->nlists));

	return n > size ? (int32_t) rint(n / size) : 1;
}

/*
 * Returns the number of groups that a row tries: 2 nlists^(1/5).  It grows
 * because, with more lists, a row's nearest lists are in more groups.
 * Computed in whole numbers, which are the same on all machines.
 */
static int
groups_to_try(int32_t nlists)
{
	int64_t		t = 2;

	while (t < GV_TRIED_GROUPS && t * t * t * t * t < 32 * (int64_t) nlists)
		t++;
	return (int) t;
}

static GvKmeans
spec_of(const GvTree *tree, int32_t n)
{
	GvKmeans	spec = {.dims = tree->dims, .n = n, .k = groups_of(tree, n),
	.iterations = ITERATIONS, .max_imbalance = MAX_IMBALANCE, .seed = SEED};

	return spec;
}

/* Returns the number of groups of all parents, at most. */
static size_t
most_groups(const GvTree *tree)
{
	size_t		n = 0;
	int32_t		p;

	for (p = 0; p < tree->nparents; p++)
		n += groups_of(tree,
					   tree->parent_offsets[p + 1] - tree->parent_offsets[p]);
	return n;
}

/*
 * Lays out the memory that stays, and returns its size.  If `memory` is NULL,
 * only computes the size.
 */
static size_t
carve_groups(Grouping *g, const GvTree *tree, char *memory)
{
	size_t		ngroups = most_groups(tree);
	size_t		next = 0;
	size_t		centers = gv_carve(&next, sizeof(float) * ngroups * tree->dims);
	size_t		starts = gv_carve(&next, sizeof(int32_t) * (ngroups + 1));
	size_t		lists = gv_carve(&next, sizeof(int32_t) * GV_LIST_GROUPS *
								 tree->nlists);
	size_t		others = gv_carve(&next, sizeof(int32_t) * GV_LIST_GROUPS *
								  tree->nlists);

	if (memory != NULL)
	{
		g->centers = (float *) (memory + centers);
		g->starts = (int32_t *) (memory + starts);
		g->lists = (int32_t *) (memory + lists);
		g->others = (int32_t *) (memory + others);
	}
	return next;
}

/*
 * Lays out the scratch of the call, and returns its size.  If `memory` is
 * NULL, only computes the size.
 */
static size_t
carve_scratch(Grouping *g, const GvTree *tree, char *memory)
{
	size_t		next = 0;
	size_t		most = 0;		/* bytes of scratch for k-means */
	size_t		owners = gv_carve(&next, sizeof(int32_t) * GV_LIST_GROUPS *
								  tree->nlists);
	size_t		scratch;
	int32_t		p;

	for (p = 0; p < tree->nparents; p++)
	{
		GvKmeans	spec = spec_of(tree, tree->parent_offsets[p + 1] - tree->parent_offsets[p]);
		size_t		bytes = gv_kmeans_scratch(&spec);

		most = bytes > most ? bytes : most;
	}
	scratch = gv_carve(&next, most);
	gv_nearest_carve(&g->nearest, tree->dims, GV_LIST_GROUPS, GV_NEAREST_ROWS,
					 memory, &next);
	gv_panel_carve(&g->panel, tree->dims, memory, &next);
	if (memory != NULL)
	{
		g->owners = (int32_t *) (memory + owners);
		g->scratch = memory + scratch;
	}
	return next;
}

/* Returns 0 for an invalid tree. */
size_t
gv_groups_bytes(const GvTree *tree)
{
	Grouping	g;

	return gv_valid_tree(tree) ? carve_groups(&g, tree, NULL) : 0;
}

/* Returns 0 for an invalid tree. */
size_t
gv_groups_scratch(const GvTree *tree)
{
	Grouping	g;

	return gv_valid_tree(tree) ? carve_scratch(&g, tree, NULL) : 0;
}

/* Finds the centers of the groups, parent by parent. */
static GvStatus
make_centers(Grouping *g)
{
	const GvTree *tree = g->tree;
	int32_t		p;

	g->groups->ngroups = 0;
	for (p = 0; p < tree->nparents; p++)
	{
		GvKmeans	spec = spec_of(tree, tree->parent_offsets[p + 1] - tree->parent_offsets[p]);
		int32_t		found;
		GvStatus	status;

		status = gv_kmeans(&spec, tree->centroids +
						   (size_t) tree->parent_offsets[p] * tree->dims,
						   g->centers +
						   (size_t) g->groups->ngroups * tree->dims, &found,
						   g->scratch, g->poll.stop);
		if (status != GV_OK)
			return status;
		g->groups->ngroups += found;
	}
	return GV_OK;
}

/*
 * Finds the groups to which each list belongs.  Returns false if the caller
 * must give up.
 */
static bool
find_owners(Grouping *g)
{
	const GvTree *tree = g->tree;
	GvOffered	all = {.centroids = g->centers, .n = g->groups->ngroups};
	int32_t		rows[GV_NEAREST_ROWS];
	int32_t		done;
	int			i;

	for (i = 0; i < GV_NEAREST_ROWS; i++)
		rows[i] = i;
	for (done = 0; done < tree->nlists; done += GV_NEAREST_ROWS)
	{
		const float *x = tree->centroids + (size_t) done * tree->dims;
		int			n = tree->nlists - done < GV_NEAREST_ROWS ?
		tree->nlists - done : GV_NEAREST_ROWS;

		gv_nearest_begin(&g->nearest, n);
		if (!gv_nearest_offer(&g->nearest, x, rows, n, &all, &g->panel,
							  &g->poll))
			return false;
		for (i = 0; i < n; i++)
		{
			const float *one = x + (size_t) i * tree->dims;

			if (!gv_nearest_rescore(&g->nearest, i, one, g->centers))
			{
				if (gv_poll(&g->poll, (int64_t) all.n * tree->dims))
					return false;
				gv_nearest_rerank(&g->nearest, i, one, &all);
			}
			memcpy(g->owners + (size_t) (done + i) * g->each,
				   &g->nearest.ids[i * GV_NEAREST_CAPACITY],
				   sizeof(int32_t) * g->each);
		}
	}
	return true;
}

/*
 * Removes groups without lists, because a row that tries only such groups
 * would find no list.
 */
static void
drop_empty(Grouping *g)
{
	size_t		bytes = sizeof(float) * g->tree->dims;
	int64_t		n = (int64_t) g->tree->nlists * g->each;
	int32_t		kept = 0;
	int64_t		i;
	int32_t		c;

	memset(g->starts, 0, sizeof(int32_t) * (size_t) g->groups->ngroups);
	for (i = 0; i < n; i++)
		g->starts[g->owners[i]] = 1;
	for (c = 0; c < g->groups->ngroups; c++)
	{
		if (g->starts[c] == 0)
			continue;
		memmove(g->centers + (size_t) kept * g->tree->dims,
				g->centers + (size_t) c * g->tree->dims, bytes);
		g->starts[c] = kept++;
	}
	for (i = 0; i < n; i++)
		g->owners[i] = g->starts[g->owners[i]];
	g->groups->ngroups = kept;
}

/* Returns the first group of list l with a number below `group`, or -1. */
static int32_t
group_before(const Grouping *g, int32_t l, int32_t group)
{
	int			i;

	for (i = 0; i < g->each; i++)
		if (g->owners[(size_t) l * g->each + i] < group)
			return g->owners[(size_t) l * g->each + i];
	return -1;
}

/* Collects the lists of each group, ascending, by a counting sort. */
static void
group_lists(Grouping *g)
{
	int32_t		ngroups = g->groups->ngroups;
	int64_t		n = (int64_t) g->tree->nlists * g->each;
	int64_t		i;
	int32_t		c;

	memset(g->starts, 0, sizeof(int32_t) * ((size_t) ngroups + 1));
	for (i = 0; i < n; i++)
		g->starts[g->owners[i] + 1]++;
	for (c = 0; c < ngroups; c++)
		g->starts[c + 1] += g->starts[c];
	for (i = 0; i < n; i++)
	{
		int32_t		at = g->starts[g->owners[i]]++;

		g->lists[at] = (int32_t) (i / g->each);
		g->others[at] = group_before(g, g->lists[at], g->owners[i]);
	}
	for (c = ngroups; c > 0; c--)
		g->starts[c] = g->starts[c - 1];
	g->starts[0] = 0;
}

GvStatus
gv_groups_make(const GvTree *tree, GvGroups *groups, void *memory,
			   void *scratch, const GvStop *stop)
{
	Grouping	g = {.tree = tree, .groups = groups, .poll = {stop, 0}};
	GvStatus	status;

	GV_CALL(gv_engine_calls, gv_valid_tree(tree) && groups != NULL &&
			gv_valid_scratch(memory) && gv_valid_scratch(scratch) &&
			gv_valid_stop(stop));
	(void) carve_groups(&g, tree, memory);
	(void) carve_scratch(&g, tree, scratch);
	status = make_centers(&g);
	if (status != GV_OK)
		return status;
	groups->tried = groups_to_try(tree->nlists);
	g.each = groups->ngroups <= groups->tried ? 1 : GV_LIST_GROUPS;
	if (!find_owners(&g))
		return GV_CANCELED;
	drop_empty(&g);
	group_lists(&g);
	groups->dims = tree->dims;
	groups->nlists = tree->nlists;
	groups->centroids = tree->centroids;
	groups->centers = g.centers;
	groups->starts = g.starts;
	groups->lists = g.lists;
	groups->others = g.others;
	return GV_OK;
}
