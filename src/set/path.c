/*
 * path.c
 *		The edges of a graph that is in a table (path.h).
 *
 * One pass over the table gives each key a number, by a hash table that is
 * gone afterwards, and puts (distance, two numbers) into a sort.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/tableam.h"
#include "catalog/pg_operator_d.h"
#include "catalog/pg_type_d.h"
#include "common/hashfn.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "set/path.h"
#include "set/set.h"

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
	Oid			type;			/* of a domain: what it is over */
} GraphColumn;

typedef struct NumberedKey
{
	int64		key;
	int32		number;
	char		status;
} NumberedKey;

static inline uint32
hash_key(int64 key)
{
	return hash_combine(murmurhash32((uint32) (key >> 32)),
						murmurhash32((uint32) key));
}

#define SH_PREFIX		keytable
#define SH_ELEMENT_TYPE NumberedKey
#define SH_KEY_TYPE		int64
#define SH_KEY			key
#define SH_HASH_KEY(table, key) hash_key(key)
#define SH_EQUAL(table, a, b)	((a) == (b))
#define SH_SCOPE		static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"
#include "pgcompat.h"

/* Open the table and find its columns; ERROR if it is no graph. */
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

/* Without a sign of zero, so that equal distances look alike. */
static double
get_distance(Datum value, Oid type)
{
	if (type == FLOAT4OID)
		return DatumGetFloat4(value) + 0.0;
	return DatumGetFloat8(value) + 0.0;
}

static int32
number_key(keytable_hash *table, int64 key)
{
	bool		found;
	NumberedKey *entry = keytable_insert(table, key, &found);

	if (!found)
	{
		if (table->members > IVFPQ_MAX_KEYS)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("a graph can have at most %d keys",
							IVFPQ_MAX_KEYS)));
		entry->number = table->members - 1;
	}
	return entry->number;
}

/* Put an edge into the sort; in is a slot of its row type. */
static void
put_edge(IvfpqEdges *edges, TupleTableSlot *in, int32 a, int32 b,
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

/* Number the keys of all rows and put their edges into the sort. */
static void
read_rows(IvfpqEdges *edges, keytable_hash *table, Relation rel,
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
		a = number_key(table, IvfpqKeyNumber(values[COLUMN_KEY],
											 columns[COLUMN_KEY].type));
		b = number_key(table, IvfpqKeyNumber(values[COLUMN_NEIGHBOR],
											 columns[COLUMN_NEIGHBOR].type));
		if (a != b)
			put_edge(edges, in, a, b,
					 get_distance(values[COLUMN_DISTANCE],
								  columns[COLUMN_DISTANCE].type));
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

/* The sort, and the slot that shows what comes out of it. */
static void
begin_sort(IvfpqEdges *edges)
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

static void
read_edges(IvfpqEdges *edges, Oid relid, const int64 *wanted,
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
		numbers[i] = entry ? entry->number : IVFPQ_NO_KEY;
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

static void
sort_edges(IvfpqEdges *edges)
{
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_SORTING, edges->nedges);
	tuplesort_performsort(edges->sort);
}

bool
IvfpqNextEdge(IvfpqEdges *edges, IvfpqEdge *edge)
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

static void
rewind_edges(IvfpqEdges *edges)
{
	tuplesort_rescan(edges->sort);
	edges->nread = 0;
}

static void
end_edges(IvfpqEdges *edges)
{
	ExecDropSingleTupleTableSlot(edges->slot);
	tuplesort_end(edges->sort);
}

/* ----
 * gpuvec_smoothest_path: the path between two keys of a graph whose
 * largest step is smallest.
 *
 * After Johnson, Douze, Jegou, "Billion-scale similarity search with GPUs",
 * 2017, section 6.6, made unique: of the paths whose largest step is smallest
 * those of the fewest steps, of these the one whose first key is smallest,
 * then the second, and so on.
 *
 * 1. Edges join their ends by ascending distance (Kruskal) until source and
 *    target are one: that edge's distance is the largest step, the bottleneck.
 * 2. Edges no longer than that, of the part with source and target in it, go
 *    into an array, each at both its ends.
 * 3. A search in breadth from the target gives each key its steps from there,
 *    until the source is met.
 * 4. From the source on, the path goes to the smallest key that is a step
 *    nearer to the target.
 * 5. Edges are read once more for the distances of the steps.
 */

typedef struct PathGraph
{
	IvfpqEdges	edges;
	int32		source;
	int32		target;
	double		bottleneck;
	int32	   *parents;		/* [nkeys] joined keys as trees: towards the
								 * root, which has minus the number of keys */
	int64	   *bounds;			/* [nkeys] edges at a key; then where the
								 * key's neighbors end; they begin where those
								 * of the number before end */
	int32	   *neighbors;		/* [bounds[nkeys - 1]] */
	int32	   *levels;			/* [nkeys] steps to the target, -1: not met */
	int32	   *waiting;		/* [nkeys] numbers in the order they are met;
								 * then each one's step on the path, or -1 */
	int32		nsteps;
	int32	   *path;			/* [nsteps + 1] numbers */
	double	   *distances;		/* [nsteps + 1] of step i from i - 1 to i */
} PathGraph;

PG_FUNCTION_INFO_V1(gpuvec_smoothest_path);

/* n elements of that size; more than 1 GB if need be. */
static void *
alloc_array(int64 n, Size size)
{
	return MemoryContextAllocHuge(CurrentMemoryContext, Max(n, 1) * size);
}

static int32 *
alloc_numbers(int32 n, int32 value)
{
	int32	   *numbers = alloc_array(n, sizeof(int32));

	for (int32 i = 0; i < n; i++)
		numbers[i] = value;
	return numbers;
}

/* The root of the tree that a key is in; halves the way there. */
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

/* Make one tree of two keys' trees. */
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
 * Join edges until there is a path, and all others of the same distance;
 * counts edges at each key.  False if there is no path.
 */
static bool
find_bottleneck(PathGraph *graph)
{
	IvfpqEdge	edge;
	bool		joined = false;

	graph->parents = alloc_numbers(graph->edges.nkeys, -1);
	graph->bounds = alloc_array(graph->edges.nkeys, sizeof(int64));
	memset(graph->bounds, 0, graph->edges.nkeys * sizeof(int64));
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_JOINING, graph->edges.nedges);
	while (IvfpqNextEdge(&graph->edges, &edge))
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

/* Note both ends' neighbors of each edge that may be on the path. */
static void
collect_neighbors(PathGraph *graph)
{
	int32		root = find_root(graph->parents, graph->source);
	int64	   *bounds = graph->bounds;
	int64		total = 0;
	IvfpqEdge	edge;

	/* where each key's neighbors begin; none outside this part */
	for (int32 i = 0; i < graph->edges.nkeys; i++)
	{
		int64		count = bounds[i];

		CHECK_FOR_INTERRUPTS();
		bounds[i] = total;
		if (find_root(graph->parents, i) == root)
			total += count;
	}
	graph->neighbors = alloc_array(total, sizeof(int32));

	/* each goes to its key's beginning, which thereby moves to the end */
	rewind_edges(&graph->edges);
	while (IvfpqNextEdge(&graph->edges, &edge) &&
		   !float8_gt(edge.distance, graph->bottleneck))
	{
		if (find_root(graph->parents, edge.ends[0]) != root)
			continue;
		graph->neighbors[bounds[edge.ends[0]]++] = edge.ends[1];
		graph->neighbors[bounds[edge.ends[1]]++] = edge.ends[0];
	}
}

/* How many neighbors a key has, and where they are. */
static int64
get_neighbors(const PathGraph *graph, int32 i, const int32 **neighbors)
{
	int64		begin = i == 0 ? 0 : graph->bounds[i - 1];

	*neighbors = graph->neighbors + begin;
	return graph->bounds[i] - begin;
}

/* Count steps from the target until the source is met. */
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

/* Of the keys that are a step nearer to the target, the smallest. */
static int32
next_on_path(const PathGraph *graph, int32 from)
{
	const int64 *keys = graph->edges.keys;
	const int32 *neighbors;
	int64		count = get_neighbors(graph, from, &neighbors);
	int32		best = IVFPQ_NO_KEY;

	for (int64 i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (graph->levels[neighbors[i]] == graph->levels[from] - 1 &&
			(best == IVFPQ_NO_KEY || keys[neighbors[i]] < keys[best]))
			best = neighbors[i];
	}
	Assert(best != IVFPQ_NO_KEY);
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
 * Distances of the path's steps: of several edges between two keys the first,
 * which is the shortest.
 */
static void
measure_steps(PathGraph *graph)
{
	int32	   *steps = graph->waiting;
	bool	   *known = alloc_array((int64) graph->nsteps + 1, sizeof(bool));
	int32		nknown = 0;
	IvfpqEdge	edge;

	memset(known, 0, graph->nsteps + 1);
	graph->distances = alloc_array((int64) graph->nsteps + 1, sizeof(double));
	for (int32 i = 0; i < graph->edges.nkeys; i++)
		steps[i] = -1;
	for (int32 i = 0; i <= graph->nsteps; i++)
		steps[graph->path[i]] = i;
	rewind_edges(&graph->edges);
	while (nknown < graph->nsteps && IvfpqNextEdge(&graph->edges, &edge))
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

/* Fill path and distances; false if there is no path. */
static bool
find_path(PathGraph *graph)
{
	if (graph->source == graph->target)
	{
		graph->nsteps = 0;
		walk_path(graph);
		return true;
	}
	sort_edges(&graph->edges);
	if (!find_bottleneck(graph))
		return false;
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_WALKING, graph->edges.nread);
	collect_neighbors(graph);
	count_steps(graph);
	walk_path(graph);
	measure_steps(graph);
	return true;
}

/* Rows (step, key, distance). */
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
 * No rows where no path is; ERROR for a key that no row has.
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
		if (numbers[i] == IVFPQ_NO_KEY)
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
	end_edges(&graph.edges);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return (Datum) 0;
}
