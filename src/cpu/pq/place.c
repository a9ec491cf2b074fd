/*
 * place.c
 *		Finds the lists of many vectors, through groups of lists.
 *
 * Rows are compared with the centers of all groups, but only with the lists of
 * the nearest groups.  Pairs of a row and a group are sorted by group, so that
 * the lists of a group are compared with all rows of the group's pairs in one
 * blocked product.
 *
 * The second list of a row is chosen by the SOAR rule: among the nearest lists
 * it is the one that minimizes |r'|^2 + lambda (<r', r> / |r|)^2, where r and
 * r' are the row's residuals in the first list and in the second.  If the two
 * residuals are at right angles, the second list misleads for other queries
 * than the first does.  Source: Sun, Simcha, Dopson, Guo, Kumar, "SOAR:
 * Improved indexing for approximate nearest neighbor search", 2023.
 */
#include <math.h>
#include <string.h>

#include "cpu/pq/assign.h"
#include "engine/gv_call.h"

#define TILE_ROWS	GV_CPU_TILE_ROWS
#define TILE_CENTS	GV_CPU_TILE_CENTS
#define SLICE		GV_CPU_SLICE_DIMS
#define BATCH_ROWS	(4 * TILE_ROWS) /* vectors to which centroids are offered
									 * at a time */
#define FETCHED		512			/* bytes of a vector that are prefetched */
#define CAPACITY	GV_CPU_COMPARED /* maximum number of centroids that a row
									 * keeps */
#define AHEAD		2			/* rows to prefetch ahead */
#define SPARE		3			/* centroids that a row keeps in addition to
								 * 5/4 of the centroids needed */

/* ----
 * Finds, for each of many vectors, the t nearest of the centroids that are
 * offered to the vector.
 *
 * Centroids are offered to a vector panel by panel.  The vector keeps the
 * centroids whose estimates are the least so far, somewhat more than t.  In
 * the end the kept centroids are rescored, and the proof below shows that no
 * other centroid is nearer.  So the answer consists of the centroids with the
 * least gv_cpu_sqdist, ties to the smaller number, whatever the order of the
 * offers.  The proof fails for a vector if too many centroids are equally
 * near.  Then all centroids that were offered to the vector must be rescored.
 *
 * The proof.  Let E be the greatest estimate that is kept.  A centroid that
 * was not kept, or was dropped later, has an estimate of at least E, because
 * the kept estimates only fall.  Let `best` be the t-th least squared distance
 * after rescoring.  By kmeans.c a centroid is farther than that if
 *	|c|^2 (1 - 2 slack) - 2 <x, c>  >
 *		best (1 + 2 slack) - |x|^2 (1 - 2 slack) + (something denormal)
 * The left side is the estimate, so it is enough that E is above the right
 * side.  Estimates differ between levels of instructions, and so may the
 * centroids that are kept; the nearest centroids do not differ.
 */

/* State of n vectors.  The arrays are in the caller's scratch. */
typedef struct Nearest
{
	int32_t		dims;
	int			wanted;			/* t, the number of centroids needed */
	int			kept;			/* number of centroids that a row keeps,
								 * somewhat more than t */
	int32_t    *counts;			/* [n] centroids that each row has now */
	float	   *limits;			/* [n] a centroid is kept only if its estimate
								 * is below this */
	float	   *values;			/* [n][CAPACITY] estimates of squared
								 * distances, without |x|^2; after rescoring,
								 * squared distances */
	int32_t    *ids;			/* [n][CAPACITY] centroids; after rescoring,
								 * by distance, and -1 after the last */
	float	   *some;			/* [TILE_CENTS][dims] centroids of a panel */
	float	   *panel;			/* [gv_cpu_panel(dims)] */
} Nearest;

/*
 * Centroids that are offered to rows: centroids 0 .. n - 1 or, if `members` is
 * not NULL, centroids members [n].  A centroid may belong to two groups, which
 * are offered at different times.  others[i] is the other group of the i-th
 * centroid if the other group is offered first, else -1.  The centroid is then
 * not offered again to rows that try both groups.
 */
typedef struct Offered
{
	const float *centroids;		/* [..][dims] */
	int32_t		n;
	const int32_t *members;		/* [n], or NULL: 0 .. n - 1 */
	const int32_t *others;		/* [n]; -1: none.  NULL: all are -1 */
	const int32_t *tried;		/* [..][GV_TRIED_GROUPS] groups that each row
								 * tries, and -1 after the last */
	int			ntried;			/* maximum number of groups that a row tries */
} Offered;

/*
 * Prefetches the first bytes of a vector.  The processor prefetches the rest
 * by itself, because the bytes are read in order.
 */
static inline void
nearest_fetch(const float *x, int32_t dims)
{
	const uint8_t *at = (const uint8_t *) x;
	size_t		bytes = sizeof(float) * dims;
	size_t		byte;

	for (byte = 0; byte < bytes && byte < FETCHED; byte += GV_FETCHED)
		gv_fetch(at + byte);
}

/* Returns the i-th nearest centroid of a row. */
static inline int32_t
nearest_id(const Nearest *nearest, int64_t row, int i)
{
	return nearest->ids[row * CAPACITY + i];
}

/* Lays out the memory of a Nearest for n rows, like gv_carve. */
static void
nearest_carve(Nearest *nearest, int32_t dims, int wanted, int64_t n,
			  char *scratch, size_t *next)
{
	nearest->dims = dims;
	nearest->wanted = wanted;
	nearest->kept = wanted + wanted / 4 + SPARE;
	nearest->counts = gv_carve(scratch, next, sizeof(int32_t) * n);
	nearest->limits = gv_carve(scratch, next, sizeof(float) * n);
	nearest->values = gv_carve(scratch, next, sizeof(float) * n * CAPACITY);
	nearest->ids = gv_carve(scratch, next, sizeof(int32_t) * n * CAPACITY);
	nearest->some = gv_carve(scratch, next, sizeof(float) * TILE_CENTS * dims);
	nearest->panel = gv_carve(scratch, next,
							  sizeof(float) * gv_cpu_panel(dims));
}

/* Begins with n rows, which have no centroids yet. */
static void
nearest_begin(Nearest *nearest, int64_t n)
{
	int64_t		row;

	for (row = 0; row < n; row++)
	{
		nearest->counts[row] = 0;
		nearest->limits[row] = HUGE_VALF;
	}
}

/*
 * Reduces the centroids that a row keeps to the nearest->kept centroids with
 * the least estimates.  The greatest of these estimates becomes the row's
 * limit, because no dropped estimate is less.  The algorithm is quickselect on
 * sets of bits.
 */
static void
cut(Nearest *nearest, int64_t row)
{
	float	   *values = nearest->values + row * CAPACITY;
	int32_t    *ids = nearest->ids + row * CAPACITY;
	int			n = nearest->counts[row];
	int			missing = nearest->kept;
	uint64_t	open = n < CAPACITY ? (UINT64_C(1) << n) - 1 : ~UINT64_C(0);
	uint64_t	taken = 0;
	int			i;

	while (missing > 0)
	{
		int			at = __builtin_ctzll(open);
		uint64_t	less = gv_kernels->below(values, values[at]) & open;
		int			nless = __builtin_popcountll(less);

		if (nless >= missing)
		{
			open = less;
			continue;
		}
		less |= UINT64_C(1) << at;
		taken |= less;
		open &= ~less;
		missing -= nless + 1;
		nearest->limits[row] = values[at];
	}
	for (i = 0; taken != 0; taken &= taken - 1, i++)
	{
		int			from = __builtin_ctzll(taken);

		values[i] = values[from];
		ids[i] = ids[from];
	}
	nearest->counts[row] = nearest->kept;
}

/*
 * Returns whether a centroid whose other group is `other` was offered before
 * to a row that tries the groups `tried`.  Compares four groups at a time,
 * because all processors have vector instructions for that.
 */
static inline bool
is_again(int32_t other, const int32_t *tried /* [GV_TRIED_GROUPS] */ ,
		 int ntried)
{
	uint32_t	again[4] = {0};
	int			first;
	int			i;

	if (other < 0)
		return false;
	for (first = 0; first < ntried; first += 4)
		for (i = 0; i < 4; i++)
			again[i] |= -(uint32_t) (tried[first + i] == other);
	return (again[0] | again[1] | again[2] | again[3]) != 0;
}

/*
 * Prefetches the state of a row.  Callers do this some rows before they offer
 * more centroids to the row.
 */
static inline void
fetch_state(const Nearest *nearest, int64_t row, const Offered *offered)
{
	__builtin_prefetch(&nearest->counts[row], 0);
	__builtin_prefetch(&nearest->limits[row], 0);
	if (offered->others == NULL)
		return;
	__builtin_prefetch(offered->tried + row * GV_TRIED_GROUPS, 0);
	__builtin_prefetch(offered->tried + row * GV_TRIED_GROUPS + 16, 0);
}

static inline void
fetch_kept(const Nearest *nearest, int64_t row)
{
	__builtin_prefetch(nearest->values + row * CAPACITY + nearest->counts[row],
					   1);
	__builtin_prefetch(nearest->ids + row * CAPACITY + nearest->counts[row],
					   1);
}

/*
 * Offers centroids first .. first + n - 1, n <= TILE_CENTS, to a row, whose
 * products with these centroids are in `products`.
 */
static inline void
keep_nearer(Nearest *nearest, int64_t row, const Offered *offered,
			int32_t first, int n, const float *squares, const float *products)
{
	float	   *values = nearest->values + row * CAPACITY;
	int32_t    *ids = nearest->ids + row * CAPACITY;
	int			count = nearest->counts[row];
	float		limit = nearest->limits[row];
	uint64_t	hits = gv_kernels->within(squares, products, limit);

	if (n < TILE_CENTS)
		hits &= (UINT64_C(1) << n) - 1;
	for (; hits != 0; hits &= hits - 1)
	{
		int			c = __builtin_ctzll(hits);
		float		value = squares[c] - 2.0f * products[c];

		if (value != value)
			value = -HUGE_VALF; /* after an overflow the centroid might be
								 * near */
		if (!(value < limit) ||
			(offered->others != NULL &&
			 is_again(offered->others[first + c],
					  offered->tried + row * GV_TRIED_GROUPS,
					  offered->ntried)))
			continue;
		values[count] = value;
		ids[count] = offered->members == NULL ? first + c :
			offered->members[first + c];
		if (++count == CAPACITY)
		{
			nearest->counts[row] = count;
			cut(nearest, row);
			count = nearest->counts[row];
			limit = nearest->limits[row];
		}
	}
	nearest->counts[row] = count;
}

/*
 * Makes a panel of the offered centroids first .. first + n - 1, and computes
 * their lowered squares.
 */
static void
make_panel(Nearest *nearest, const Offered *offered, int32_t first, int n,
		   float *squares)
{
	int32_t		dims = nearest->dims;
	const float *some = offered->centroids + (size_t) first * dims;
	int			i;

	if (offered->members != NULL)
	{
		for (i = 0; i < n; i++)
			memcpy(nearest->some + (size_t) i * dims, offered->centroids +
				   (size_t) offered->members[first + i] * dims,
				   sizeof(float) * dims);
		some = nearest->some;
	}
	gv_cpu_lower_squares(some, n, dims, squares);
	gv_cpu_pack(some, dims, n, nearest->panel);
}

/*
 * Offers centroids to the vectors x [nrows][dims], nrows <= BATCH_ROWS.  The
 * numbers of these vectors in the Nearest are rows [nrows].
 */
static bool
nearest_offer(Nearest *nearest, const float *x, const int32_t *rows,
			  int nrows, const Offered *offered, GvPoll *poll)
{
	float		products[TILE_ROWS * TILE_CENTS];
	float		squares[TILE_CENTS];
	int32_t		dims = nearest->dims;
	int32_t		first;
	int			done;
	int			i;

	for (first = 0; first < offered->n; first += TILE_CENTS)
	{
		int			n = gv_at_most(offered->n - first, TILE_CENTS);

		if (gv_poll(poll, (int64_t) nrows * n * dims))
			return false;
		make_panel(nearest, offered, first, n, squares);
		for (done = 0; done < nrows; done += TILE_ROWS)
		{
			const int32_t *tile = rows + done;
			int			ntile = gv_at_most(nrows - done, TILE_ROWS);

			gv_cpu_multiply(x + (size_t) done * dims, dims, ntile,
							nearest->panel, products);
			for (i = 0; i < ntile; i++)
			{
				if (i + 2 * AHEAD < ntile)
					fetch_state(nearest, tile[i + 2 * AHEAD], offered);
				if (i + AHEAD < ntile)
					fetch_kept(nearest, tile[i + AHEAD]);
				keep_nearer(nearest, tile[i], offered, first, n, squares,
							products + i * TILE_CENTS);
			}
		}
	}
	return true;
}

/*
 * Inserts a rescored centroid at its place among the nearest centroids of a
 * row, unless the centroid is among them already or is farther than all of
 * them.
 */
static void
insert(Nearest *nearest, int64_t row, float value, int32_t id)
{
	float	   *values = nearest->values + row * CAPACITY;
	int32_t    *ids = nearest->ids + row * CAPACITY;
	int			n = nearest->counts[row];
	int			i;

	for (i = 0; i < n; i++)
		if (ids[i] == id)
			return;
	if (n == nearest->wanted)
	{
		n--;
		if (value > values[n] || (value == values[n] && id > ids[n]))
			return;
	}
	for (i = n; i > 0 && (value < values[i - 1] ||
						  (value == values[i - 1] && id < ids[i - 1])); i--)
	{
		values[i] = values[i - 1];
		ids[i] = ids[i - 1];
	}
	values[i] = value;
	ids[i] = id;
	nearest->counts[row] = n + 1;
}

/*
 * Rescores n centroids for a row: centroids ids [n] or, if `ids` is NULL,
 * centroids 0 .. n - 1.
 */
static void
rerank(Nearest *nearest, int64_t row, const float *x,
	   const float *centroids, const int32_t *ids, int32_t n)
{
	int32_t		dims = nearest->dims;
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		int32_t		id = ids == NULL ? i : ids[i];
		const float *centroid = centroids + (size_t) id * dims;

		insert(nearest, row, gv_score(gv_cpu_sqdist(x, centroid, dims)), id);
	}
	for (i = nearest->counts[row]; i < nearest->wanted; i++)
		nearest->ids[row * CAPACITY + i] = -1;
}

/*
 * Prepares to rescore a row after all centroids have been offered to it, and
 * prefetches the centroids that the row has kept.  Callers do this some rows
 * ahead, so that the centroids are in the cache when the row is rescored.
 */
static void
nearest_prepare(Nearest *nearest, int64_t row, const float *centroids)
{
	const int32_t *ids = nearest->ids + row * CAPACITY;
	int			i;

	if (nearest->counts[row] > nearest->kept)
		cut(nearest, row);
	for (i = 0; i < nearest->counts[row]; i++)
		nearest_fetch(centroids + (size_t) ids[i] * nearest->dims,
					  nearest->dims);
}

/*
 * Rescores the centroids that a row has kept, after all centroids have been
 * offered to it.  x [dims] is the row's vector.  Returns false if the kept
 * centroids may not include the nearest ones.  Then the row has no centroids,
 * and the caller must rescore all centroids that were offered to the row.
 */
static bool
nearest_rescore(Nearest *nearest, int64_t row, const float *x,
				const float *centroids)
{
	double		slack = gv_cpu_slack(nearest->dims);
	double		square = gv_square(x, nearest->dims);
	double		best;
	int32_t		ids[CAPACITY];
	int			n;

	if (nearest->counts[row] > nearest->kept)
		cut(nearest, row);
	n = nearest->counts[row];
	memcpy(ids, nearest->ids + row * CAPACITY, sizeof(int32_t) * n);
	nearest->counts[row] = 0;

	/*
	 * if the square is larger, estimates may have been infinite, and their
	 * centroids were not kept
	 */
	if (square < GV_CPU_HUGE_SQUARE)
	{
		rerank(nearest, row, x, centroids, ids, n);
		if (nearest->limits[row] == HUGE_VALF)
			return true;		/* the row has kept all centroids */
		best = nearest->values[row * CAPACITY + nearest->wanted - 1];
		if (nearest->limits[row] > gv_cpu_limit(best, square, slack))
			return true;
		nearest->counts[row] = 0;
	}
	return false;
}

/*
 * Finds the centroids of `all` that are nearest to each of the vectors x
 * [n][dims], n <= BATCH_ROWS.
 */
static bool
nearest_of_all(Nearest *nearest, const float *x, int n, const Offered *all,
			   GvPoll *poll)
{
	int32_t		rows[BATCH_ROWS];
	int			i;

	for (i = 0; i < BATCH_ROWS; i++)
		rows[i] = i;
	nearest_begin(nearest, n);
	if (!nearest_offer(nearest, x, rows, n, all, poll))
		return false;
	for (i = 0; i < n; i++)
	{
		const float *one = x + (size_t) i * nearest->dims;

		if (nearest_rescore(nearest, i, one, all->centroids))
			continue;
		if (gv_poll(poll, (int64_t) all->n * nearest->dims))
			return false;
		rerank(nearest, i, one, all->centroids, all->members, all->n);
	}
	return true;
}

/* ----
 * Groups of lists, through which rows are placed.
 *
 * The lists of each parent are clustered once more.  A group's lists about fill
 * a panel of centroids of the blocked product.  Then
 * every list is put into the two groups whose centers are nearest, so a row
 * between two groups finds the lists of both sides in either group.  Therefore
 * a row has to try only a few groups, however many there are.
 */

#define GROUP_LISTS		48		/* least average number of lists in a group */
#define GROUP_FACTOR		0.25	/* least average number of lists in a
									 * group, divided by the square root of
									 * the number of all lists */
#define ITERATIONS		10
#define MAX_IMBALANCE		2.0
#define SEED			UINT64_C(0x67707576656331)

/*
 * State of one call of gv_groups_make.  The arrays are in the caller's memory,
 * some of them in scratch.
 */
typedef struct Grouping
{
	const GvTree *tree;
	GvGroups   *groups;
	int			each;			/* groups to which a list belongs */
	float	   *centers;		/* [ngroups at most][dims] */
	int32_t    *starts;			/* [ngroups at most + 1] */
	int32_t    *lists;			/* [GV_LIST_GROUPS * nlists] */
	int32_t    *others;			/* [GV_LIST_GROUPS * nlists] */
	int32_t    *owners;			/* [nlists][each] */
	void	   *scratch;		/* of k-means */
	Nearest		nearest;		/* groups near to each of BATCH_ROWS lists */
	GvPoll		poll;
} Grouping;

/*
 * Returns the number of groups that a row tries: 2 nlists^(1/5), rounded up,
 * and at most GV_TRIED_GROUPS.  The number grows because, with more lists, a
 * row's nearest lists are in more groups.  It is computed in integers, so that
 * all machines compute the same number.
 */
static int
groups_to_try(int32_t nlists)
{
	int64_t		t = 2;

	while (t < GV_TRIED_GROUPS && t * t * t * t * t < 32 * (int64_t) nlists)
		t++;
	return (int) t;
}

/*
 * Returns the spec of the k-means that makes groups of the lists of parent p.
 */
static GvKmeans
spec_of(const GvTree *tree, int32_t p)
{
	int32_t		n = tree->parent_offsets[p + 1] - tree->parent_offsets[p];
	double		size = fmax(GROUP_LISTS, GROUP_FACTOR * sqrt(tree->nlists));
	GvKmeans	spec = {.dims = tree->dims, .n = n,
		.k = n > size ? (int32_t) rint(n / size) : 1,
	.iterations = ITERATIONS, .max_imbalance = MAX_IMBALANCE, .seed = SEED};

	return spec;
}

/* Lays out the memory that the groups keep, and returns its size. */
static size_t
carve_groups(Grouping *g, const GvTree *tree, char *memory)
{
	size_t		ngroups = 0;	/* of all parents, at most */
	size_t		bytes = sizeof(int32_t) * GV_LIST_GROUPS * tree->nlists;
	size_t		next = 0;
	int32_t		p;

	for (p = 0; p < tree->nparents; p++)
		ngroups += spec_of(tree, p).k;
	g->centers = gv_carve(memory, &next, sizeof(float) * ngroups * tree->dims);
	g->starts = gv_carve(memory, &next, sizeof(int32_t) * (ngroups + 1));
	g->lists = gv_carve(memory, &next, bytes);
	g->others = gv_carve(memory, &next, bytes);
	return next;
}

/* Lays out the scratch of the call, and returns its size. */
static size_t
carve_scratch(Grouping *g, const GvTree *tree, char *memory)
{
	size_t		next = 0;
	size_t		most = 0;		/* bytes of scratch for k-means */
	int32_t		p;

	g->owners = gv_carve(memory, &next, sizeof(int32_t) * GV_LIST_GROUPS *
						 tree->nlists);
	for (p = 0; p < tree->nparents; p++)
	{
		GvKmeans	spec = spec_of(tree, p);
		size_t		bytes = gv_kmeans_scratch(&spec);

		most = bytes > most ? bytes : most;
	}
	g->scratch = gv_carve(memory, &next, most);
	nearest_carve(&g->nearest, tree->dims, GV_LIST_GROUPS, BATCH_ROWS, memory,
				  &next);
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
		GvKmeans	spec = spec_of(tree, p);
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

/* Finds the groups to which each list belongs. */
static bool
find_owners(Grouping *g)
{
	const GvTree *tree = g->tree;
	Offered		all = {.centroids = g->centers, .n = g->groups->ngroups};
	int32_t		done;
	int			i;

	for (done = 0; done < tree->nlists; done += BATCH_ROWS)
	{
		int			n = gv_at_most(tree->nlists - done, BATCH_ROWS);

		if (!nearest_of_all(&g->nearest, tree->centroids +
							(size_t) done * tree->dims, n, &all, &g->poll))
			return false;
		for (i = 0; i < n; i++)
			memcpy(g->owners + (size_t) (done + i) * g->each,
				   &g->nearest.ids[i * CAPACITY], sizeof(int32_t) * g->each);
	}
	return true;
}

/*
 * Removes groups without lists, because a row that tries only groups without
 * lists would find no list.
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

/*
 * Returns the first group of list l whose number is below `group`, or -1 if
 * there is none.
 */
static int32_t
group_before(const Grouping *g, int32_t l, int32_t group)
{
	int			i;

	for (i = 0; i < g->each; i++)
		if (g->owners[(size_t) l * g->each + i] < group)
			return g->owners[(size_t) l * g->each + i];
	return -1;
}

/* Collects the lists of each group, in ascending order, by a counting sort. */
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
	/* each start has become the end of its group */
	memmove(g->starts + 1, g->starts, sizeof(int32_t) * (size_t) ngroups);
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

/* ---- placing ---- */

#define LAMBDA		1.5

/* State of one call of gv_place.  The arrays are in the caller's scratch. */
typedef struct Placing
{
	const GvGroups *groups;
	const float *x;				/* [n][dims] */
	int64_t		n;
	int			tried;			/* groups that each row tries */
	Nearest		centers;		/* groups near to BATCH_ROWS rows */
	Nearest		lists;			/* lists near to each of all rows */
	int32_t    *groups_of;		/* [n][GV_TRIED_GROUPS] the nearest groups of
								 * each row, and -1 after the last */
	int64_t    *starts;			/* [ngroups + 1] where each group's pairs
								 * begin */
	int32_t    *rows;			/* [n * tried] rows of the pairs, ordered by
								 * group */
	float	   *some;			/* [n or BATCH_ROWS][dims] rows' copies */
	GvPoll		poll;
} Placing;

/* Lays out the scratch, and returns its size. */
static size_t
carve(Placing *p, const GvGroups *groups, int64_t n, int32_t lists_per_row,
	  char *scratch)
{
	size_t		next = 0;
	int			at_once = gv_at_most(n, BATCH_ROWS);

	p->tried = gv_at_most(groups->ngroups, groups->tried);
	nearest_carve(&p->centers, groups->dims, p->tried, at_once, scratch,
				  &next);
	nearest_carve(&p->lists, groups->dims,
				  lists_per_row < 2 ? 1 : GV_SOAR_LISTS, n, scratch, &next);
	p->groups_of = gv_carve(scratch, &next,
							sizeof(int32_t) * n * GV_TRIED_GROUPS);
	p->starts = gv_carve(scratch, &next, sizeof(int64_t) *
						 ((size_t) groups->ngroups + 1));
	p->rows = gv_carve(scratch, &next, sizeof(int32_t) * n * p->tried);
	p->some = gv_carve(scratch, &next, sizeof(float) * at_once * groups->dims);
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
static Offered
lists_of(const Placing *p, int32_t group)
{
	const GvGroups *groups = p->groups;
	int32_t		first = groups->starts[group];
	Offered		offered = {.centroids = groups->centroids,
		.n = groups->starts[group + 1] - first,
		.members = groups->lists + first, .others = groups->others + first,
	.tried = p->groups_of, .ntried = p->tried};

	return offered;
}

/*
 * Finds the nearest groups of rows first .. first + n - 1, n <= BATCH_ROWS.
 */
static bool
find_groups(Placing *p, int64_t first, int n)
{
	Offered		all = {.centroids = p->groups->centers,
	.n = p->groups->ngroups};
	int			i;
	int			t;

	if (!nearest_of_all(&p->centers, row_of(p, first), n, &all, &p->poll))
		return false;
	for (i = 0; i < n; i++)
		for (t = 0; t < GV_TRIED_GROUPS; t++)
			p->groups_of[(first + i) * GV_TRIED_GROUPS + t] = t < p->tried ?
				nearest_id(&p->centers, i, t) : -1;
	return true;
}

/* Orders the (row, group) pairs by group, by a counting sort. */
static void
group_pairs(Placing *p)
{
	size_t		ngroups = (size_t) p->groups->ngroups;
	int64_t		npairs = p->n * GV_TRIED_GROUPS;
	int64_t		i;
	size_t		g;

	memset(p->starts, 0, sizeof(int64_t) * (ngroups + 1));
	for (i = 0; i < npairs; i++)
		if (p->groups_of[i] >= 0)
			p->starts[p->groups_of[i] + 1]++;
	for (g = 0; g < ngroups; g++)
		p->starts[g + 1] += p->starts[g];
	for (i = 0; i < npairs; i++)
		if (p->groups_of[i] >= 0)
			p->rows[p->starts[p->groups_of[i]]++] =
				(int32_t) (i / GV_TRIED_GROUPS);
	memmove(p->starts + 1, p->starts, sizeof(int64_t) * ngroups);
	p->starts[0] = 0;
}

/*
 * Finds the nearest lists of every row among the lists of the row's groups.
 */
static bool
find_lists(Placing *p)
{
	int32_t		dims = p->groups->dims;
	const float *centroids = p->groups->centroids;
	int32_t		group;
	int64_t		row;
	int			i;

	nearest_begin(&p->lists, p->n);
	for (group = 0; group < p->groups->ngroups; group++)
	{
		Offered		offered = lists_of(p, group);
		int64_t		at;

		for (at = p->starts[group]; at < p->starts[group + 1];
			 at += BATCH_ROWS)
		{
			int			n = gv_at_most(p->starts[group + 1] - at, BATCH_ROWS);

			for (i = 0; i < n; i++)
			{
				if (i + AHEAD < n)
					nearest_fetch(row_of(p, p->rows[at + i + AHEAD]), dims);
				memcpy(p->some + (size_t) i * dims, row_of(p, p->rows[at + i]),
					   sizeof(float) * dims);
			}
			if (!nearest_offer(&p->lists, p->some, p->rows + at, n, &offered,
							   &p->poll))
				return false;
		}
	}
	for (row = 0; row < p->n; row++)
	{
		if (row + AHEAD < p->n)
			nearest_prepare(&p->lists, row + AHEAD, centroids);
		if (gv_poll(&p->poll, (int64_t) p->lists.kept * dims))
			return false;
		if (nearest_rescore(&p->lists, row, row_of(p, row), centroids))
			continue;
		for (i = 0; i < p->tried; i++)
		{
			Offered		offered = lists_of(p, p->groups_of[row *
														   GV_TRIED_GROUPS + i]);

			if (gv_poll(&p->poll, (int64_t) offered.n * dims))
				return false;
			rerank(&p->lists, row, row_of(p, row), centroids, offered.members,
				   offered.n);
		}
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

	while (n + 1 < p->lists.wanted && nearest_id(&p->lists, row, n + 1) >= 0)
	{
		others[n] = groups->centroids +
			(size_t) nearest_id(&p->lists, row, n + 1) * groups->dims;
		n++;
	}
	best = gv_soar(groups->dims, row_of(p, row), groups->centroids +
				   (size_t) nearest_id(&p->lists, row, 0) * groups->dims,
				   others, n);
	return best < 0 ? -1 : nearest_id(&p->lists, row, best + 1);
}

GvStatus
gv_place(const GvGroups *groups, const float *x, int64_t n,
		 int32_t lists_per_row, int32_t *lists, void *scratch,
		 const GvStop *stop)
{
	Placing		p = {.groups = groups, .x = x, .n = n, .poll = {stop, 0}};
	int64_t		row;

	GV_CALL(gv_engine_calls, valid_groups(groups, n, lists_per_row) &&
			x != NULL && lists != NULL && gv_valid_scratch(scratch) &&
			gv_valid_stop(stop));
	(void) carve(&p, groups, n, lists_per_row, scratch);
	for (row = 0; row < n; row += BATCH_ROWS)
		if (!find_groups(&p, row, gv_at_most(n - row, BATCH_ROWS)))
			return GV_CANCELED;
	group_pairs(&p);
	if (!find_lists(&p))
		return GV_CANCELED;
	for (row = 0; row < n; row++)
	{
		lists[row * lists_per_row] = nearest_id(&p.lists, row, 0);
		if (lists_per_row < 2)
			continue;
		if (gv_poll(&p.poll, (int64_t) GV_SOAR_LISTS * 3 * groups->dims))
			return GV_CANCELED;
		lists[row * lists_per_row + 1] = second_list(&p, row);
	}
	return GV_OK;
}
