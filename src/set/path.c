/*
 * path.c
 *		gpuvec_smoothest_path, which finds, among all paths between two keys of
 *		a graph, one whose largest step is as small as possible.
 *
 * The idea is that of Johnson, Douze, Jegou, "Billion-scale similarity search
 * with GPUs", 2017, section 6.6.  We make the result unique.  Among the paths
 * whose largest step is smallest, only paths with the fewest steps are
 * considered.  Of these we take the path whose first key is smallest; if first
 * keys are equal, the second key decides, and so on.
 *
 * 1. One pass over the graph's table numbers the keys from 0, in the order in
 *    which they occur.  The pass looks up keys in a hash table, which is freed
 *    afterwards.  For each edge the pass puts (distance, numbers of both ends)
 *    into a sort.  The sort stays within maintenance_work_mem, and goes to
 *    disk if it needs more.  All further steps work with numbers instead of
 *    keys, and use the numbers as indexes into arrays.
 * 2. By ascending distance, each edge joins the trees that contain its ends
 *    (Kruskal), until source and target are in one tree.  The distance of the
 *    last edge is the path's largest step, the bottleneck.
 * 3. Edges that are not longer than the bottleneck, and are connected to
 *    source and target, go into an array of neighbors: each end of an edge
 *    becomes a neighbor of the other end.
 * 4. A breadth-first search from the target gives each key its number of steps
 *    to the target, until the search reaches the source.
 * 5. The path begins at the source.  Each step goes to the smallest neighbor
 *    that is one step nearer to the target.
 * 6. The edges are read once more, for the distances of the path's steps.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/tableam.h"
#include "catalog/pg_operator_d.h"
#include "catalog/pg_type_d.h"
#include "common/hashfn.h"
#include "executor/executor.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplesort.h"
#include "utils/tuplestore.h"

#include "pgcompat.h"
#include "set/set.h"

#define NO_KEY			(-1)
#define MAX_KEYS		PG_INT32_MAX

/* Number of rows or edges from one report of progress to the next. */
#define PROGRESS_EVERY	4096

enum
{
	COLUMN_KEY,
	COLUMN_NEIGHBOR,
	COLUMN_DISTANCE,
	NCOLUMNS
};

static const char *const column_names[NCOLUMNS] = {
	[COLUMN_KEY] = "key",
	[COLUMN_NEIGHBOR] = "neighbor",
	[COLUMN_DISTANCE] = "distance",
};

/* An entry of the hash table of keys. */
typedef struct NumberedKey
{
	int64		key;
	int32		number;
	char		status;			/* simplehash's */
} NumberedKey;

typedef struct Edge
{
	int32		ends[2];		/* numbers of two different keys */
	double		distance;
} Edge;

/* State of the search for a path; keys are represented by their numbers. */
typedef struct PathGraph
{
	/* the edges in the table, which are read by ascending distance */
	int32		nkeys;
	int64	   *keys;			/* [nkeys] the key that has each number */
	int64		nedges;
	int64		nread;			/* edges read since the last rewind */
	Tuplesortstate *sort;		/* of (distance, numbers of both ends) */
	TupleTableSlot *slot;		/* for the sort's output */

	int32		source;
	int32		target;
	double		bottleneck;
	int32	   *parents;		/* [nkeys] each key's parent in its tree of
								 * joined keys; for a root, minus the number
								 * of keys in the tree */
	int64	   *bounds;			/* [nkeys] at first, the number of edges at
								 * each key; later, the end of each key's
								 * neighbors in `neighbors`, which is also the
								 * beginning of the next key's neighbors */
	int32	   *neighbors;		/* [bounds[nkeys - 1]] */
	int32	   *levels;			/* [nkeys] steps to the target; -1 if the key
								 * was not reached */
	int32		nsteps;
	int32	   *path;			/* [nsteps + 1] the keys on the path */
	double	   *distances;		/* [nsteps + 1] element i is the distance from
								 * path[i - 1] to path[i] */
} PathGraph;

#define SH_PREFIX		keytable
#define SH_ELEMENT_TYPE NumberedKey
#define SH_KEY_TYPE		int64
#define SH_KEY			key
#define SH_HASH_KEY(table, key) \
	hash_combine(murmurhash32((uint32) ((key) >> 32)), \
				 murmurhash32((uint32) (key)))
#define SH_EQUAL(table, a, b)	((a) == (b))
#define SH_SCOPE		static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

PG_FUNCTION_INFO_V1(gpuvec_smoothest_path);

/* Returns a key's number.  A key that is new gets the next number. */
static int32
number_key(keytable_hash *table, int64 key)
{
	bool		found;
	NumberedKey *entry = keytable_insert(table, key, &found);

	if (!found)
	{
		if (table->members > MAX_KEYS)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("a graph can have at most %d keys",
							MAX_KEYS)));
		entry->number = table->members - 1;
	}
	return entry->number;
}

/* Returns the number of a key.  Raises an ERROR if no row has the key. */
static int32
find_key(keytable_hash *table, int64 key, Relation rel)
{
	NumberedKey *entry = keytable_lookup(table, key);

	if (entry == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("key %lld not found in table \"%s\"",
						(long long) key, RelationGetRelationName(rel)),
				 errhint("Keys are the values of columns \"key\" and \"neighbor\" in rows without NULL.")));
	return entry->number;
}

/*
 * Numbers the keys of all rows, and puts the rows' edges into the sort.  Rows
 * with a NULL are left out, and a NOTICE says how many.  Edges from a key to
 * itself are left out, too, without a NOTICE.  Raises an ERROR if the table
 * does not have the columns of a graph.
 */
static void
read_rows(PathGraph *graph, keytable_hash *table, Relation rel)
{
	AttrNumber	columns[NCOLUMNS];
	Oid			types[NCOLUMNS];	/* base types, if they are domains */
	TupleTableSlot *row;
	TupleTableSlot *in;			/* of the sort's row type */
	TableScanDesc scan;
	int64		nrows = 0;
	int64		nskipped = 0;

	for (int i = 0; i < NCOLUMNS; i++)
		columns[i] = i == COLUMN_DISTANCE ?
			IvfpqTableColumn(rel, column_names[i], &types[i]) :
			IvfpqTableKeyColumn(rel, column_names[i], &types[i]);
	if (types[COLUMN_DISTANCE] != FLOAT4OID &&
		types[COLUMN_DISTANCE] != FLOAT8OID)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" of type %s cannot be used as a distance",
						column_names[COLUMN_DISTANCE],
						format_type_be(types[COLUMN_DISTANCE])),
				 errhint("Distances must be of type real or double precision.")));
	row = table_slot_create(rel, NULL);
	in = MakeSingleTupleTableSlot(graph->slot->tts_tupleDescriptor,
								  &TTSOpsVirtual);
	in->tts_isnull[0] = in->tts_isnull[1] = false;
	scan = IvfpqTableBeginScan(rel, GetActiveSnapshot());
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_ROWS, 0);
	while (table_scan_getnextslot(scan, ForwardScanDirection, row))
	{
		Datum		values[NCOLUMNS];
		bool		any_null = false;
		double		distance;
		int64		a;
		int64		b;

		CHECK_FOR_INTERRUPTS();
		if (++nrows % PROGRESS_EVERY == 0)
			IvfpqProgressDone(nrows);
		for (int i = 0; i < NCOLUMNS; i++)
		{
			bool		isnull;

			values[i] = slot_getattr(row, columns[i], &isnull);
			any_null |= isnull;
		}
		if (any_null)
		{
			nskipped++;
			continue;
		}
		/* adding 0 turns -0 into 0, so that equal distances have equal bits */
		distance = (types[COLUMN_DISTANCE] == FLOAT4OID ?
					DatumGetFloat4(values[COLUMN_DISTANCE]) :
					DatumGetFloat8(values[COLUMN_DISTANCE])) + 0.0;
		a = number_key(table, IvfpqKeyNumber(values[COLUMN_KEY],
											 types[COLUMN_KEY]));
		b = number_key(table, IvfpqKeyNumber(values[COLUMN_NEIGHBOR],
											 types[COLUMN_NEIGHBOR]));
		if (a == b)
			continue;
		ExecClearTuple(in);
		in->tts_values[0] = Float8GetDatum(distance);
		in->tts_values[1] = Int64GetDatum(a << 32 | b);
		ExecStoreVirtualTuple(in);
		tuplesort_puttupleslot(graph->sort, in);
		graph->nedges++;
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(in);
	ExecDropSingleTupleTableSlot(row);
	if (nskipped != 0)
		ereport(NOTICE,
				(errmsg_plural("skipped %lld row of table \"%s\" with a NULL",
							   "skipped %lld rows of table \"%s\" with a NULL",
							   (unsigned long) nskipped, (long long) nskipped,
							   RelationGetRelationName(rel))));
}

/* Begins the sort, and makes the slot for the sort's output. */
static void
begin_sort(PathGraph *graph)
{
	TupleDesc	desc = CreateTemplateTupleDesc(2);
	AttrNumber	column = 1;
	Oid			operator = Float8LessOperator;
	Oid			collation = InvalidOid;
	bool		nulls_first = false;

	TupleDescInitEntry(desc, 1, "distance", FLOAT8OID, -1, 0);
	TupleDescInitEntry(desc, 2, "ends", INT8OID, -1, 0);
	IvfpqFinishTupleDesc(desc);
	graph->slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
	graph->sort = tuplesort_begin_heap(desc, 1, &column, &operator, &collation,
									   &nulls_first, maintenance_work_mem,
									   NULL, TUPLESORT_RANDOMACCESS);
}

/* Allocates n elements of `size` bytes, which may be more than 1 GB. */
static void *
alloc_array(int64 n, Size size)
{
	return MemoryContextAllocHuge(CurrentMemoryContext, Max(n, 1) * size);
}

/*
 * Reads the graph's table under the active snapshot, and finds the numbers of
 * the keys source and target.  Raises an ERROR if the relation is not a table,
 * if it is not a graph, if the caller may not read it, or if one of the two
 * keys is in no row.
 */
static void
read_edges(PathGraph *graph, Oid relid, int64 source, int64 target)
{
	Relation	rel = IvfpqTableRelation(relid);
	keytable_hash *table = keytable_create(CurrentMemoryContext, 1024, NULL);
	keytable_iterator iterator;
	NumberedKey *entry;

	begin_sort(graph);
	read_rows(graph, table, rel);
	graph->source = find_key(table, source, rel);
	graph->target = find_key(table, target, rel);
	relation_close(rel, NoLock);

	graph->nkeys = table->members;
	graph->keys = alloc_array(graph->nkeys, sizeof(int64));
	keytable_start_iterate(table, &iterator);
	while ((entry = keytable_iterate(table, &iterator)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		graph->keys[entry->number] = entry->key;
	}
	keytable_destroy(table);
}

/*
 * Reads the next edge by ascending distance, in PostgreSQL's order, where NaN
 * is last.  Returns false after the last edge.
 */
static bool
next_edge(PathGraph *graph, Edge *edge)
{
	int64		ends;

	CHECK_FOR_INTERRUPTS();
	if (++graph->nread % PROGRESS_EVERY == 0)
		IvfpqProgressDone(graph->nread);
	if (!tuplesort_gettupleslot(graph->sort, true, false, graph->slot, NULL))
		return false;
	slot_getallattrs(graph->slot);
	edge->distance = DatumGetFloat8(graph->slot->tts_values[0]);
	ends = DatumGetInt64(graph->slot->tts_values[1]);
	edge->ends[0] = (int32) (ends >> 32);
	edge->ends[1] = (int32) (ends & PG_INT32_MAX);
	return true;
}

/* Allocates n numbers and sets all of them to `value`. */
static int32 *
alloc_numbers(int32 n, int32 value)
{
	int32	   *numbers = alloc_array(n, sizeof(int32));

	for (int32 i = 0; i < n; i++)
		numbers[i] = value;
	return numbers;
}

/*
 * Returns the root of a key's tree.  Halves the path from the key to the root
 * on the way, so that later calls are faster.
 */
static int32
find_root(int32 *parents, int32 i)
{
	while (parents[i] >= 0)
	{
		int32		up = parents[i];

		if (parents[up] >= 0)
			parents[i] = parents[up];
		i = up;
	}
	return i;
}

/* Joins the trees of two keys: the smaller tree gets the larger one's root. */
static void
join_trees(int32 *parents, int32 a, int32 b)
{
	int32		root = find_root(parents, a);
	int32		other = find_root(parents, b);

	if (root == other)
		return;
	if (parents[root] > parents[other])
	{
		int32		swap = root;

		root = other;
		other = swap;
	}
	parents[root] += parents[other];
	parents[other] = root;
}

/*
 * Joins the trees of each edge's two ends, by ascending distance, until source
 * and target are connected.  Then also joins the ends of further edges that
 * have the same distance.  Sets `bounds` to the number of joined edges at each
 * key.  Returns false if there is no path.
 */
static bool
find_bottleneck(PathGraph *graph)
{
	Edge		edge;
	bool		joined = false;

	graph->parents = alloc_numbers(graph->nkeys, -1);
	graph->bounds = alloc_array(graph->nkeys, sizeof(int64));
	memset(graph->bounds, 0, graph->nkeys * sizeof(int64));
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_JOINING, graph->nedges);
	while (next_edge(graph, &edge))
	{
		if (joined && float8_gt(edge.distance, graph->bottleneck))
			break;
		join_trees(graph->parents, edge.ends[0], edge.ends[1]);
		graph->bounds[edge.ends[0]]++;
		graph->bounds[edge.ends[1]]++;
		if (!joined && find_root(graph->parents, graph->source) ==
			find_root(graph->parents, graph->target))
		{
			joined = true;
			graph->bottleneck = edge.distance;
		}
	}
	return joined;
}

/* Collects the neighbors of each key along edges that may be on the path. */
static void
collect_neighbors(PathGraph *graph)
{
	int32		root = find_root(graph->parents, graph->source);
	int64	   *bounds = graph->bounds;
	int64		total = 0;
	Edge		edge;

	/*
	 * Set bounds to the beginning of each key's neighbors.  Keys that are not
	 * connected to the source get no neighbors.
	 */
	for (int32 i = 0; i < graph->nkeys; i++)
	{
		int64		count = bounds[i];

		CHECK_FOR_INTERRUPTS();
		bounds[i] = total;
		if (find_root(graph->parents, i) == root)
			total += count;
	}
	graph->neighbors = alloc_array(total, sizeof(int32));

	/*
	 * Put each neighbor at its key's bound and advance the bound.  Afterwards
	 * the bound is the end of the key's neighbors.
	 */
	tuplesort_rescan(graph->sort);
	graph->nread = 0;
	while (next_edge(graph, &edge) &&
		   !float8_gt(edge.distance, graph->bottleneck))
	{
		if (find_root(graph->parents, edge.ends[0]) != root)
			continue;
		graph->neighbors[bounds[edge.ends[0]]++] = edge.ends[1];
		graph->neighbors[bounds[edge.ends[1]]++] = edge.ends[0];
	}
}

/*
 * Sets *neighbors to the neighbors of key i, and returns how many there are.
 */
static int64
get_neighbors(const PathGraph *graph, int32 i, const int32 **neighbors)
{
	int64		begin = i == 0 ? 0 : graph->bounds[i - 1];

	*neighbors = graph->neighbors + begin;
	return graph->bounds[i] - begin;
}

/*
 * Sets `levels` to each key's number of steps to the target, until the source
 * is reached.
 */
static void
count_steps(PathGraph *graph)
{
	int32	   *levels = alloc_numbers(graph->nkeys, -1);
	int32	   *waiting = alloc_array(graph->nkeys, sizeof(int32));
	int32		nmet = 1;

	levels[graph->target] = 0;
	waiting[0] = graph->target;
	for (int32 next = 0; levels[graph->source] < 0; next++)
	{
		const int32 *neighbors;
		int64		count = get_neighbors(graph, waiting[next], &neighbors);

		for (int64 i = 0; i < count; i++)
		{
			CHECK_FOR_INTERRUPTS();
			if (levels[neighbors[i]] >= 0)
				continue;
			levels[neighbors[i]] = levels[waiting[next]] + 1;
			waiting[nmet++] = neighbors[i];
		}
	}
	pfree(waiting);
	graph->levels = levels;
	graph->nsteps = levels[graph->source];
}

/*
 * Sets `path`.  Each step goes to the smallest key among the neighbors that
 * are one step nearer to the target.
 */
static void
walk_path(PathGraph *graph)
{
	graph->path = alloc_array((int64) graph->nsteps + 1, sizeof(int32));
	graph->path[0] = graph->source;
	for (int32 step = 0; step < graph->nsteps; step++)
	{
		int32		from = graph->path[step];
		const int32 *neighbors;
		int64		count = get_neighbors(graph, from, &neighbors);
		int32		best = NO_KEY;

		for (int64 i = 0; i < count; i++)
		{
			CHECK_FOR_INTERRUPTS();
			if (graph->levels[neighbors[i]] == graph->levels[from] - 1 &&
				(best == NO_KEY ||
				 graph->keys[neighbors[i]] < graph->keys[best]))
				best = neighbors[i];
		}
		Assert(best != NO_KEY);
		graph->path[step + 1] = best;
	}
}

/*
 * Sets `distances` to the distances of the path's steps.  If there are several
 * edges between two keys, we take the first one that is read, because it is
 * the shortest.
 */
static void
measure_steps(PathGraph *graph)
{
	/* each key's step on the path, or -1 if the path does not contain it */
	int32	   *steps = alloc_numbers(graph->nkeys, -1);
	bool	   *known = alloc_array((int64) graph->nsteps + 1, sizeof(bool));
	int32		nknown = 0;
	Edge		edge;

	memset(known, 0, graph->nsteps + 1);
	graph->distances = alloc_array((int64) graph->nsteps + 1, sizeof(double));
	for (int32 i = 0; i <= graph->nsteps; i++)
		steps[graph->path[i]] = i;
	tuplesort_rescan(graph->sort);
	graph->nread = 0;
	while (nknown < graph->nsteps && next_edge(graph, &edge))
	{
		int32		a = steps[edge.ends[0]];
		int32		b = steps[edge.ends[1]];

		if (a < 0 || b < 0 || (a - b != 1 && b - a != 1) || known[Max(a, b)])
			continue;
		known[Max(a, b)] = true;
		graph->distances[Max(a, b)] = edge.distance;
		nknown++;
	}
}

/* Sets path and distances.  Returns false if there is no path. */
static bool
find_path(PathGraph *graph)
{
	if (graph->source == graph->target)
	{
		walk_path(graph);
		return true;
	}
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_SORTING, graph->nedges);
	tuplesort_performsort(graph->sort);
	if (!find_bottleneck(graph))
		return false;
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_WALKING, graph->nread);
	collect_neighbors(graph);
	count_steps(graph);
	walk_path(graph);
	measure_steps(graph);
	return true;
}

/* Returns a row (step, key, distance) for each key on the path. */
static void
return_path(ReturnSetInfo *rsinfo, const PathGraph *graph)
{
	for (int32 i = 0; i <= graph->nsteps; i++)
	{
		Datum		values[3] = {0};
		bool		nulls[3] = {false};

		CHECK_FOR_INTERRUPTS();
		values[0] = Int32GetDatum(i);
		values[1] = Int64GetDatum(graph->keys[graph->path[i]]);
		if (i == 0)
			nulls[2] = true;
		else
			values[2] = Float8GetDatum(graph->distances[i]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 nulls);
	}
}

/*
 * gpuvec_smoothest_path(graph regclass, source bigint, target bigint)
 *
 * Returns no rows if there is no path.  Raises an ERROR if no row has the
 * source, or if no row has the target.
 */
Datum
gpuvec_smoothest_path(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	PathGraph	graph = {0};
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "gpuvec path",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old;

	InitMaterializedSRF(fcinfo, 0);
	old = MemoryContextSwitchTo(context);
	IvfpqProgressBegin(IVFPQ_PROGRESS_PATH, relid);
	read_edges(&graph, relid, PG_GETARG_INT64(1), PG_GETARG_INT64(2));
	if (find_path(&graph))
		return_path((ReturnSetInfo *) fcinfo->resultinfo, &graph);
	IvfpqProgressEnd();
	ExecDropSingleTupleTableSlot(graph.slot);
	tuplesort_end(graph.sort);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return (Datum) 0;
}
