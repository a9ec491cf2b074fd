/*
 * gv_exactlists.h
 *		Exact search on the device that meets only the rows of near lists.
 *
 *	once	lists near each list, lists of queries: exact searches among
 *			centroids; queries in the order of lists (exactlists.cu)
 *	and for a batch of rows
 *		lists	of rows likewise; half copies in the order of lists
 *		units	the queries of a list, or a part of them, and the rows of its
 *				near lists, whose half copies come to lie side by side, the
 *				nearest list's first (units.cu)
 */
#ifndef GV_EXACTLISTS_H
#define GV_EXACTLISTS_H

#include "gpu/exact/gv_exactset.h"

#define GV_EXACT_STREAMS	3		/* units under way at once */

/* Vectors in the order of their lists, and in their own order in a list. */
struct GvExactGroups
{
	uint32_t   *d_order;		/* [n] numbers of vectors */
	uint32_t   *d_starts;		/* [nlists + 1] in d_order */
};

/* Queries of a list, few enough for what they find. */
struct GvExactListPart
{
	uint32_t	list;
	uint32_t	first;			/* in the queries' order */
	uint32_t	n;
};

/* Memory of a unit. */
struct GvExactStream
{
	GvExactWork work;
	GvExactRows unit;			/* [unit_capacity] */
	uint32_t   *d_order;		/* its order, to be written */
};

/* Where time goes, if it is watched. */
enum GvExactListStep
{
	GV_EXACT_NEAREST_LISTS,
	GV_EXACT_ASK,				/* lists of vectors */
	GV_EXACT_GROUP,
	GV_EXACT_TO_HALF,
	GV_EXACT_UNITS,				/* all that goes on in streams */
	GV_EXACT_OTHERS,			/* what needed another way */
	/* with steps watched one by one: GvExactStep's of the second */
	GV_EXACT_ASK_STEPS,
	GV_EXACT_GATHER = GV_EXACT_ASK_STEPS + GV_EXACT_STEPS,
	GV_EXACT_UNIT_STEPS,		/* steps of units */
	GV_EXACT_LIST_STEPS = GV_EXACT_UNIT_STEPS + GV_EXACT_STEPS
};

struct GvExactByList
{
	GvSetSpec	spec;
	int64_t		capacity;			/* rows of a batch, at most */
	int64_t		unit_capacity;		/* rows of a unit at once */
	GvExactSpace space;			/* of centroids, when they are asked */
	float	   *d_centroids;	/* [nlists][dims] */
	GvExactRows centroids;
	GvExactWork asking;
	int64_t		piece;			/* vectors that are asked for at once */
	GvExactQueries asked;		/* [piece], k 1 */
	GvExactQueries near;		/* [nlists], k probes: d_positions is what
								 * counts */
	uint32_t   *d_offsets;		/* [nlists][probes + 1] a batch's rows in the
								 * lists near a list, before each of these */
	uint32_t   *d_totals;		/* [nlists] ... in all of them */
	GvExactGroups queries;
	GvExactGroups rows;
	uint32_t   *d_keys;			/* [max of nqueries and room], like the next */
	uint32_t   *d_sorted;
	uint32_t   *d_numbers;
	void	   *d_sort;
	size_t		sort_bytes;
	GvExactLists others;		/* by parts: counts [nparts][2], queries where
								 * the part's are in their order */
	GvExactStream streams[GV_EXACT_STREAMS];
	char	   *d_memory;		/* of all arrays */
	GvExactListPart *parts;		/* [nparts] */
	int64_t		nparts;
	uint32_t   *starts;			/* [nlists + 1] of queries */
	uint32_t   *totals;			/* [nlists] */
	uint32_t   *counts;			/* [nparts][2] */
};

/*
 * listwork.cu: for a set and batches of so many rows; what is half made is
 * dropped.  _nearest_amount: what the search for near lists takes memory for,
 * which it has for itself.
 */
extern size_t gv_gpu_exact_lists_bytes(const GvSetSpec *spec, int64_t kept,
									   int64_t capacity);
extern GvStatus gv_gpu_exact_lists_create(const GvSetSpec *spec, int64_t kept,
										  int64_t capacity,
											GvExactByList **made);
extern void gv_gpu_exact_lists_drop(GvExactByList *lists);
extern GvExactAmount gv_gpu_exact_nearest_amount(const GvExactByList *lists);

/*
 * exactlists.cu.  _begin: all queries and centroids are there.  _rows: the
 * order of a batch's rows, before their halves are made.
 */
extern GvStatus gv_gpu_exact_lists_begin(GvExactByList *lists,
										 const GvExactQueries *queries,
										 const GvStop *stop);
extern GvStatus gv_gpu_exact_lists_rows(GvExactByList *lists,
										GvExactRows *rows,
										const GvStop *stop);

/* units.cu: the batch's rows, after `seen` of those before, for all. */
extern GvStatus gv_gpu_exact_units(GvExactByList *lists,
								   const GvExactSpace *space,
								   const GvExactRows *rows,
								   const GvExactQueries *queries, int64_t seen,
								   const GvStop *stop);

#ifdef GV_TEST_BUILD

/* Rows of a batch and of a unit, at most; 0: as is best. */
extern "C" void gv_gpu_exact_lists_force(int64_t batch, int64_t unit);
extern int64_t gv_gpu_exact_forced_batch(void);

/*
 * From now on add seconds to [GV_EXACT_LIST_STEPS], the host waiting behind
 * each step; with `each` behind those of each search, too.  NULL: no more.
 */
extern "C" void gv_gpu_exact_lists_watch(double *seconds, bool each);

#else
#define gv_gpu_exact_forced_batch() INT64_C(0)
#endif

/* A step was launched: if time is watched, wait for it. */
extern GvStatus gv_gpu_exact_lists_note(GvExactListStep step,
										cudaStream_t stream, double *since);

/* A search begins; it is over, and its steps are those from `first` on. */
extern void gv_gpu_exact_lists_measure(GvExactWork *work);
extern void gv_gpu_exact_lists_add(GvExactWork *work, int first);

#endif							/* GV_EXACTLISTS_H */
