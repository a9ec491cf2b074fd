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

typedef struct GraphColumn
{
	AttrNumber	number;
	Oid			type;			/* the base type, if it is a domain */
} GraphColumn;

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

/* The edges of a graph in a table, which are read by ascending distance. */
typedef struct Edges
{
	int32		nkeys;
	int64	   *keys;			/* [nkeys] the key that has each number */
	int64		nedges;
	int64		nread;			/* edges read since the last rewind */
	Tuplesortstate *sort;		/* of (distance, numbers of both ends) */
	TupleTableSlot *slot;		/* for the sort's output */
} Edges;

/* State of the search for a path; keys are represented by their numbers. */
typedef struct PathGraph
{
	Edges		edges;
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
	int32	   *waiting;		/* [nkeys] at first, keys in the order in
								 * which they were reached; later, each key's
								 * step on the path, or -1 if the path does
								 * not contain the key */
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

/*
 * Opens the table and finds its columns.  Raises an ERROR if the table does
 * not have the columns of a graph.
 */
static Relation
open_graph(Oid relid, GraphColumn *columns)
{
	Relation	rel = IvfpqTableRelation(relid);

	for (int i = 0; i < NCOLUMNS; i++)
		columns[i].number = i == COLUMN_DISTANCE ?
			IvfpqTableColumn(rel, column_names[i], &columns[i].type) :
			IvfpqTableKeyColumn(rel, column_names[i], &columns[i].type);
	if (columns[COLUMN_DISTANCE].type != FLOAT4OID &&
		columns[COLUMN_DISTANCE].type != FLOAT8OID)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" has type %s, which is no distance",
						column_names[COLUMN_DISTANCE],
						format_type_be(columns[COLUMN_DISTANCE].type)),
				 errhint("Distances are of type real or double precision.")));
	return rel;
}

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

/* Puts an edge into the sort.  `in` is a slot of the sort's row type. */
static void
put_edge(Edges *edges, TupleTableSlot *in, int32 a, int32 b,
		 double distance)
{
	ExecClearTuple(in);
	in->tts_values[0] = Float8GetDatum(distance);
	in->tts_values[1] = Int64GetDatum((int64) a << 32 | b);
	in->tts_isnull[0] = in->tts_isnull[1] = false;
	ExecStoreVirtualTuple(in);
	tuplesort_puttupleslot(edges->sort, in);
	edges->nedges++;
}

/*
 * Numbers the keys of all rows, and puts the rows' edges into the sort.  Rows
 * with a NULL are left out, and a NOTICE says how many.  Edges from a key to
 * itself are left out, too, without a NOTICE.
 */
static void
read_rows(Edges *edges, keytable_hash *table, Relation rel,
		  const GraphColumn *columns)
{
	TupleTableSlot *row = table_slot_create(rel, NULL);
	TupleTableSlot *in =
	MakeSingleTupleTableSlot(edges->slot->tts_tupleDescriptor,
							 &TTSOpsVirtual);
	TableScanDesc scan = IvfpqTableBeginScan(rel, GetActiveSnapshot());
	int64		nrows = 0;
	int64		nskipped = 0;

	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_ROWS, 0);
	while (table_scan_getnextslot(scan, ForwardScanDirection, row))
	{
		Datum		values[NCOLUMNS];
		bool		any_null = false;
		double		distance;
		int32		a;
		int32		b;

		CHECK_FOR_INTERRUPTS();
		if (++nrows % PROGRESS_EVERY == 0)
			IvfpqProgressDone(nrows);
		for (int i = 0; i < NCOLUMNS; i++)
		{
			bool		isnull;

			values[i] = slot_getattr(row, columns[i].number, &isnull);
			any_null |= isnull;
		}
		if (any_null)
		{
			nskipped++;
			continue;
		}
		/* adding 0 turns -0 into 0, so that equal distances have equal bits */
		distance = (columns[COLUMN_DISTANCE].type == FLOAT4OID ?
					DatumGetFloat4(values[COLUMN_DISTANCE]) :
					DatumGetFloat8(values[COLUMN_DISTANCE])) + 0.0;
		a = number_key(table, IvfpqKeyNumber(values[COLUMN_KEY],
											 columns[COLUMN_KEY].type));
		b = number_key(table, IvfpqKeyNumber(values[COLUMN_NEIGHBOR],
											 columns[COLUMN_NEIGHBOR].type));
		if (a != b)
			put_edge(edges, in, a, b, distance);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(in);
	ExecDropSingleTupleTableSlot(row);
	if (nskipped != 0)
		ereport(NOTICE,
				(errmsg_plural("%lld row of table \"%s\" with a NULL was left out",
							   "%lld rows of table \"%s\" with a NULL were left out",
							   (unsigned long) nskipped, (long long) nskipped,
							   RelationGetRelationName(rel))));
}

/* Begins the sort, and makes the slot for the sort's output. */
static void
begin_sort(Edges *edges)
{
	TupleDesc	desc = CreateTemplateTupleDesc(2);
	AttrNumber	column = 1;
	Oid			operator = Float8LessOperator;
	Oid			collation = InvalidOid;
	bool		nulls_first = false;

	TupleDescInitEntry(desc, 1, "distance", FLOAT8OID, -1, 0);
	TupleDescInitEntry(desc, 2, "ends", INT8OID, -1, 0);
	IvfpqFinishTupleDesc(desc);
	edges->slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
	edges->sort = tuplesort_begin_heap(desc, 1, &column, &operator, &collation,
									   &nulls_first, maintenance_work_mem,
									   NULL, TUPLESORT_RANDOMACCESS);
}

/*
 * Reads the graph's table under the active snapshot.  Sets numbers [nwanted]
 * to the numbers of the keys wanted [nwanted], or to NO_KEY if no row has the
 * key.  Raises an ERROR if the relation is not a table, if it is not a graph,
 * or if the caller may not read it.
 */
static void
read_edges(Edges *edges, Oid relid, const int64 *wanted,
		   int32 *numbers, int nwanted)
{
	GraphColumn columns[NCOLUMNS];
	Relation	rel = open_graph(relid, columns);
	keytable_hash *table = keytable_create(CurrentMemoryContext, 1024, NULL);
	keytable_iterator iterator;
	NumberedKey *entry;

	begin_sort(edges);
	read_rows(edges, table, rel, columns);
	relation_close(rel, NoLock);

	for (int i = 0; i < nwanted; i++)
	{
		entry = keytable_lookup(table, wanted[i]);
		numbers[i] = entry ? entry->number : NO_KEY;
	}
	edges->nkeys = table->members;
	edges->keys = MemoryContextAllocHuge(CurrentMemoryContext,
										 sizeof(int64) *
										 Max(edges->nkeys, 1));
	keytable_start_iterate(table, &iterator);
	while ((entry = keytable_iterate(table, &iterator)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		edges->keys[entry->number] = entry->key;
	}
	keytable_destroy(table);
}

/*
 * Reads the next edge by ascending distance, in PostgreSQL's order, where NaN
 * is last.  Returns false after the last edge.
 */
static bool
next_edge(Edges *edges, Edge *edge)
{
	int64		ends;

	CHECK_FOR_INTERRUPTS();
	if (++edges->nread % PROGRESS_EVERY == 0)
		IvfpqProgressDone(edges->nread);
	if (!tuplesort_gettupleslot(edges->sort, true, false, edges->slot, NULL))
		return false;
	slot_getallattrs(edges->slot);
	edge->distance = DatumGetFloat8(edges->slot->tts_values[0]);
	ends = DatumGetInt64(edges->slot->tts_values[1]);
	edge->ends[0] = (int32) (ends >> 32);
	edge->ends[1] = (int32) (ends & PG_INT32_MAX);
	return true;
}

/* Makes next_edge() begin with the shortest edge again. */
static void
rewind_edges(Edges *edges)
{
	tuplesort_rescan(edges->sort);
	edges->nread = 0;
}

/* Allocates n elements of `size` bytes, which may be more than 1 GB. */
static void *
alloc_array(int64 n, Size size)
{
	return MemoryContextAllocHuge(CurrentMemoryContext, Max(n, 1) * size);
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

	graph->parents = alloc_numbers(graph->edges.nkeys, -1);
	graph->bounds = alloc_array(graph->edges.nkeys, sizeof(int64));
	memset(graph->bounds, 0, graph->edges.nkeys * sizeof(int64));
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_JOINING, graph->edges.nedges);
	while (next_edge(&graph->edges, &edge))
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
	for (int32 i = 0; i < graph->edges.nkeys; i++)
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
	rewind_edges(&graph->edges);
	while (next_edge(&graph->edges, &edge) &&
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
	int32	   *levels = alloc_numbers(graph->edges.nkeys, -1);
	int32	   *waiting = alloc_array(graph->edges.nkeys, sizeof(int32));
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
	graph->levels = levels;
	graph->waiting = waiting;
	graph->nsteps = levels[graph->source];
}

/*
 * Returns the smallest key among the neighbors of `from` that are one step
 * nearer to the target.
 */
static int32
next_on_path(const PathGraph *graph, int32 from)
{
	const int64 *keys = graph->edges.keys;
	const int32 *neighbors;
	int64		count = get_neighbors(graph, from, &neighbors);
	int32		best = NO_KEY;

	for (int64 i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (graph->levels[neighbors[i]] == graph->levels[from] - 1 &&
			(best == NO_KEY || keys[neighbors[i]] < keys[best]))
			best = neighbors[i];
	}
	Assert(best != NO_KEY);
	return best;
}

static void
walk_path(PathGraph *graph)
{
	graph->path = alloc_array((int64) graph->nsteps + 1, sizeof(int32));
	graph->path[0] = graph->source;
	for (int32 i = 0; i < graph->nsteps; i++)
		graph->path[i + 1] = next_on_path(graph, graph->path[i]);
}

/*
 * Sets `distances` to the distances of the path's steps.  If there are several
 * edges between two keys, we take the first one that is read, because it is
 * the shortest.
 */
static void
measure_steps(PathGraph *graph)
{
	int32	   *steps = graph->waiting;
	bool	   *known = alloc_array((int64) graph->nsteps + 1, sizeof(bool));
	int32		nknown = 0;
	Edge		edge;

	memset(known, 0, graph->nsteps + 1);
	graph->distances = alloc_array((int64) graph->nsteps + 1, sizeof(double));
	for (int32 i = 0; i < graph->edges.nkeys; i++)
		steps[i] = -1;
	for (int32 i = 0; i <= graph->nsteps; i++)
		steps[graph->path[i]] = i;
	rewind_edges(&graph->edges);
	while (nknown < graph->nsteps && next_edge(&graph->edges, &edge))
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
		graph->nsteps = 0;
		walk_path(graph);
		return true;
	}
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_SORTING, graph->edges.nedges);
	tuplesort_performsort(graph->edges.sort);
	if (!find_bottleneck(graph))
		return false;
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_WALKING, graph->edges.nread);
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
		values[1] = Int64GetDatum(graph->edges.keys[graph->path[i]]);
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
	int64		wanted[2] = {PG_GETARG_INT64(1), PG_GETARG_INT64(2)};
	int32		numbers[2];
	PathGraph	graph = {0};
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "gpuvec path",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old;

	InitMaterializedSRF(fcinfo, 0);
	old = MemoryContextSwitchTo(context);
	IvfpqProgressBegin(IVFPQ_PROGRESS_PATH, relid);
	read_edges(&graph.edges, relid, wanted, numbers, 2);
	for (int i = 0; i < 2; i++)
		if (numbers[i] == NO_KEY)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("key %lld is in no row of table \"%s\"",
							(long long) wanted[i], get_rel_name(relid)),
					 errhint("Keys are what the columns key and neighbor hold, in rows without a NULL.")));
	graph.source = numbers[0];
	graph.target = numbers[1];
	if (find_path(&graph))
		return_path((ReturnSetInfo *) fcinfo->resultinfo, &graph);
	IvfpqProgressEnd();
	ExecDropSingleTupleTableSlot(graph.edges.slot);
	tuplesort_end(graph.edges.sort);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return (Datum) 0;
}
