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
 * 1. One pass over the graph's table numbers the keys.  A key from 0 to about
 *    the number of keys, as sequences give them, is its own number.  All other
 *    keys get the numbers from there on, and are looked up in a hash table,
 *    which is freed afterwards.  All further steps work with numbers instead of
 *    keys, and use the numbers as indexes into arrays.  The pass puts edges
 *    into buckets by distance, as samplesort does; the buckets are on disk.
 * 2. By ascending distance, each bucket's edges join the trees that contain
 *    their ends, until source and target are in one tree.  A bucket's edges
 *    need no order, unless the bucket connects source and target.  That bucket
 *    is divided again, without the edges whose ends are in one tree, until its
 *    edges can be sorted in memory (Kruskal).  The distance of the edge that
 *    connects source and target is the path's largest step, the bottleneck.
 * 3. Edges that are not longer than the bottleneck, and are connected to
 *    source and target, go into an array of neighbors: each end of an edge
 *    becomes a neighbor of the other end.
 * 4. A breadth-first search from the target gives each key its number of steps
 *    to the target, until the search reaches the source.
 * 5. The path begins at the source.  Each step goes to the smallest neighbor
 *    that is one step nearer to the target.
 * 6. The edges are read once more, for the distances of the path's steps.
 *
 * Most of the time goes into random accesses to memory that no processor's cache
 * holds.  So loops over edges prefetch what later edges need.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/tableam.h"
#include "access/tupmacs.h"
#include "catalog/pg_type_d.h"
#include "common/hashfn.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "optimizer/plancat.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/logtape.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "pgcompat.h"
#include "set/set.h"

#define NO_KEY			(-1)
#define MAX_KEYS		PG_INT32_MAX

/* Number of rows from one report of progress to the next. */
#define PROGRESS_EVERY	4096

/* Edges whose keys are prefetched and numbered together. */
#define MAX_NEW			64

/* Edges that are in memory at a time, and of which splitters are a sample. */
#define MAX_EDGES		32768

#define NBUCKETS		64

/* Edges from a prefetch to the edge that needs it. */
#define AHEAD			16

enum
{
	COLUMN_KEY,
	COLUMN_NEIGHBOR,
	COLUMN_DISTANCE,
	NCOLUMNS
};

/* The names of the columns; the second of two is for arrays. */
static const char *const column_names[2][NCOLUMNS] = {
	{"key", "neighbor", "distance"},
	{"key", "neighbors", "distances"},
};

/* An entry of the hash table of keys. */
typedef struct NumberedKey
{
	int64		key;
	int32		number;
	char		status;			/* simplehash's */
} NumberedKey;

/* Allocates n elements of `size` bytes, which may be more than 1 GB. */
static void *
alloc_array(int64 n, Size size)
{
	void	   *items = MemoryContextAllocHuge(CurrentMemoryContext,
											   Max(n, 1) * size);

	IvfpqAdviseHugePages(items, n * size);
	return items;
}

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
#define SH_HASH_KEY(table, key)	hash_key(key)
#define SH_EQUAL(table, a, b)	((a) == (b))
#define SH_SCOPE		static inline
#define SH_USE_NONDEFAULT_ALLOCATOR
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static inline void *
keytable_allocate(keytable_hash *table, Size size)
{
	return memset(alloc_array(1, size), 0, size);
}

static inline void
keytable_free(keytable_hash *table, void *items)
{
	pfree(items);
}

/* An edge whose keys are not numbered yet. */
typedef struct NewEdge
{
	int64		key;
	int64		neighbor;
	int64		rank;
} NewEdge;

typedef struct Edge
{
	int32		ends[2];		/* numbers of two different keys */
	int64		rank;			/* ordered as distances are */
} Edge;

/*
 * Edges by distance.  Bucket i has the ranks that are greater than splitter
 * i - 1 and not greater than splitter i.  Splitters come in pairs of a
 * distance's rank minus 1 and the rank, so the edges in a bucket of odd number
 * are equally long.
 */
typedef struct EdgeBuckets
{
	LogicalTapeSet *set;		/* NULL while all edges are in `edges`; they
								 * count as bucket 0 */
	LogicalTape *tapes[NBUCKETS];	/* NULL if the bucket is empty */
	int64		splitters[NBUCKETS - 1];
	int64		counts[NBUCKETS];	/* edges in each bucket */
	Edge	   *edges;			/* [MAX_EDGES] the edges that were read last */
	int64		nleft;			/* edges of the bucket that is read */
	int64		nread;			/* edges read in this phase */
} EdgeBuckets;

/* State of the search for a path; keys are represented by their numbers. */
typedef struct PathGraph
{
	/* the table's columns; types and sizes are those of arrays' elements */
	bool		arrays;			/* a row has arrays of a key's neighbors */
	AttrNumber	columns[NCOLUMNS];
	Oid			types[NCOLUMNS];
	int			sizes[NCOLUMNS];

	/* numbers of keys: keys from 0 to ndirect - 1 are their own numbers */
	int32		ndirect;
	keytable_hash *table;		/* of all other keys, until all rows are read */
	int64	   *keys;			/* [nkeys - ndirect] the key that has each
								 * number from ndirect on */
	int32		nkeys;			/* all numbers are less */

	NewEdge    *waiting;		/* [MAX_NEW] edges of rows that were read */
	int			nwaiting;
	EdgeBuckets edges;
	int			bucket;			/* the bucket that is read */
	int			last;			/* the bucket of the bottleneck */

	int64		asked[2];		/* the keys source and target */
	bool		are_there[2];	/* whether a row has them */
	int32		source;
	int32		target;
	int64		bottleneck;		/* a rank */
	int32	   *parents;		/* [nkeys] each key's parent in its tree of
								 * joined keys; for a root, minus the number
								 * of keys in the tree */
	int32	   *saved;			/* [nkeys] parents before a bucket */
	int64	   *bounds;			/* [nkeys] the end of each key's neighbors in
								 * `neighbors`, which is also the beginning of
								 * the next key's neighbors */
	int32	   *neighbors;		/* [bounds[nkeys - 1]] */
	int32	   *levels;			/* [nkeys] steps to the target; -1 if the key
								 * was not reached */
	int32		nsteps;
	int32	   *path;			/* [nsteps + 1] the keys on the path */
	int64	   *ranks;			/* [nsteps + 1] element i is the rank of the
								 * distance from path[i - 1] to path[i] */
} PathGraph;

PG_FUNCTION_INFO_V1(gpuvec_smoothest_path);

/*
 * Returns a number whose order is PostgreSQL's order of distances, where NaN is
 * last and zeros of both signs are equal.
 */
static int64
distance_rank(double distance)
{
	int64		bits;

	/* adding 0 turns -0 into 0 */
	distance = isnan(distance) ? get_float8_nan() : distance + 0.0;
	memcpy(&bits, &distance, sizeof(bits));
	return bits < 0 ? bits ^ PG_INT64_MAX : bits;
}

/* Returns the distance that has a rank. */
static double
rank_distance(int64 rank)
{
	double		distance;

	rank = rank < 0 ? rank ^ PG_INT64_MAX : rank;
	memcpy(&distance, &rank, sizeof(distance));
	return distance;
}

/* Compares edges by their distances. */
static int
compare_edges(const void *a, const void *b)
{
	int64		one = ((const Edge *) a)->rank;
	int64		other = ((const Edge *) b)->rank;

	return (one > other) - (one < other);
}

static void
begin_buckets(EdgeBuckets *buckets)
{
	memset(buckets, 0, sizeof(*buckets));
	buckets->edges = palloc(MAX_EDGES * sizeof(Edge));
}

/* Puts an edge into its bucket on disk. */
static void
write_edge(EdgeBuckets *buckets, const Edge *edge)
{
	int			i = 0;

	for (int step = NBUCKETS / 2; step > 0; step /= 2)
		i += buckets->splitters[i + step - 1] < edge->rank ? step : 0;
	if (buckets->tapes[i] == NULL)
		buckets->tapes[i] = LogicalTapeCreate(buckets->set);
	LogicalTapeWrite(buckets->tapes[i], (void *) edge, sizeof(*edge));
	buckets->counts[i]++;
}

/*
 * Takes splitters from the n edges in memory, which it sorts, for buckets on
 * disk.
 */
static void
take_splitters(EdgeBuckets *buckets, int n)
{
	qsort(buckets->edges, n, sizeof(Edge), compare_edges);
	for (int i = 0; i < NBUCKETS - 2; i++)
		buckets->splitters[i] = i % 2 - 1 +
			buckets->edges[(i / 2 + 1) * n / (NBUCKETS / 2)].rank;
	buckets->splitters[NBUCKETS - 2] = PG_INT64_MAX;
	buckets->set = LogicalTapeSetCreate(true, NULL, -1);
}

/*
 * Adds an edge.  If memory has no room for it, first takes splitters from the
 * edges in memory, and moves these edges to disk.
 */
static void
add_edge(EdgeBuckets *buckets, const Edge *edge)
{
	Edge	   *edges = buckets->edges;

	if (buckets->set == NULL && buckets->counts[0] < MAX_EDGES)
	{
		edges[buckets->counts[0]++] = *edge;
		return;
	}
	if (buckets->set == NULL)
	{
		take_splitters(buckets, MAX_EDGES);
		buckets->counts[0] = 0;
		for (int i = 0; i < MAX_EDGES; i++)
			write_edge(buckets, &edges[i]);
	}
	write_edge(buckets, edge);
}

/* Prepares buckets, which have got their last edge, for reading. */
static void
finish_buckets(EdgeBuckets *buckets)
{
	for (int i = 0; i < NBUCKETS; i++)
		if (buckets->tapes[i] != NULL)
			LogicalTapeFreeze(buckets->tapes[i], NULL);
}

static void
end_buckets(EdgeBuckets *buckets)
{
	if (buckets->set != NULL)
		LogicalTapeSetClose(buckets->set);
	pfree(buckets->edges);
}

/* Begins to read a bucket. */
static void
rewind_bucket(EdgeBuckets *buckets, int i)
{
	if (buckets->tapes[i] != NULL)
		LogicalTapeRewindForRead(buckets->tapes[i], BLCKSZ);
	buckets->nleft = buckets->counts[i];
}

/* Reads up to MAX_EDGES edges of a bucket; returns how many there were. */
static int
read_bucket(EdgeBuckets *buckets, int i)
{
	int			n = Min(buckets->nleft, MAX_EDGES);
	Size		bytes = n * sizeof(Edge);

	CHECK_FOR_INTERRUPTS();
	if (buckets->set != NULL && n > 0 &&
		LogicalTapeRead(buckets->tapes[i], buckets->edges, bytes) != bytes)
		elog(ERROR, "unexpected end of a temporary file");
	buckets->nleft -= n;
	buckets->nread += n;
	IvfpqProgressDone(buckets->nread);
	return n;
}

static bool
is_direct(const PathGraph *graph, int64 key)
{
	return key >= 0 && key < graph->ndirect;
}

/*
 * Returns a key's number.  A key that is new in the hash table gets the next
 * number.
 */
static int32
number_key(PathGraph *graph, int64 key)
{
	NumberedKey *entry;
	bool		found;

	if (is_direct(graph, key))
		return key;
	entry = keytable_lookup(graph->table, key);
	if (entry != NULL)
		return entry->number;
	if ((int64) graph->table->members == MAX_KEYS - graph->ndirect)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a graph can have at most %d keys", MAX_KEYS)));
	entry = keytable_insert(graph->table, key, &found);
	return entry->number = graph->ndirect + graph->table->members - 1;
}

/* Returns the key that has a number. */
static int64
get_key(const PathGraph *graph, int32 number)
{
	return number < graph->ndirect ? number :
		graph->keys[number - graph->ndirect];
}

/* Prefetches a key's entry in the hash table, which is mostly one of three. */
static void
prefetch_key(const PathGraph *graph, int64 key)
{
	keytable_hash *table = graph->table;
	NumberedKey *entry;

	if (is_direct(graph, key))
		return;
	entry = &table->data[keytable_initial_bucket(table, hash_key(key))];
	__builtin_prefetch(entry);
	__builtin_prefetch(entry + 2);
}

/* Numbers the keys of the waiting edges, and puts the edges into buckets. */
static void
take_edges(PathGraph *graph)
{
	NewEdge    *edges = graph->waiting;
	Edge		numbered[MAX_NEW];

	CHECK_FOR_INTERRUPTS();
	for (int i = 0; i < graph->nwaiting; i++)
	{
		prefetch_key(graph, edges[i].neighbor);
		if (i == 0 || edges[i].key != edges[i - 1].key)
			prefetch_key(graph, edges[i].key);
	}
	for (int i = 0; i < graph->nwaiting; i++)
	{
		int32	   *ends = numbered[i].ends;

		ends[0] = i > 0 && edges[i].key == edges[i - 1].key ?
			numbered[i - 1].ends[0] : number_key(graph, edges[i].key);
		ends[1] = number_key(graph, edges[i].neighbor);
		numbered[i].rank = edges[i].rank;
		graph->nkeys = Max(graph->nkeys, Max(ends[0], ends[1]) + 1);
		for (int end = 0; end < 2; end++)
			graph->are_there[end] |= edges[i].key == graph->asked[end] ||
				edges[i].neighbor == graph->asked[end];
	}
	for (int i = 0; i < graph->nwaiting; i++)
		if (numbered[i].ends[0] != numbered[i].ends[1])
			add_edge(&graph->edges, &numbered[i]);
	graph->nwaiting = 0;
}

/* Adds an edge to the waiting ones. */
static void
new_edge(PathGraph *graph, int64 key, int64 neighbor, double distance)
{
	NewEdge    *edge = &graph->waiting[graph->nwaiting++];

	edge->key = key;
	edge->neighbor = neighbor;
	edge->rank = distance_rank(distance);
	if (graph->nwaiting == MAX_NEW)
		take_edges(graph);
}

static double
get_distance(const PathGraph *graph, Datum distance)
{
	return graph->types[COLUMN_DISTANCE] == FLOAT4OID ?
		DatumGetFloat4(distance) : DatumGetFloat8(distance);
}

/* Returns element i of an array that is in a column of the graph. */
static Datum
get_element(const PathGraph *graph, ArrayType *array, int i, int column)
{
	int			size = graph->sizes[column];

	return fetch_att(ARR_DATA_PTR(array) + (Size) i * size, true, size);
}

/*
 * Adds the edges of a row of arrays.  Returns false if an array contains a
 * NULL.
 */
static bool
new_edges(PathGraph *graph, int64 key, const Datum *values)
{
	ArrayType  *neighbors = DatumGetArrayTypeP(values[COLUMN_NEIGHBOR]);
	ArrayType  *distances = DatumGetArrayTypeP(values[COLUMN_DISTANCE]);
	int			n = ArrayGetNItems(ARR_NDIM(neighbors), ARR_DIMS(neighbors));
	int			ndistances = ArrayGetNItems(ARR_NDIM(distances),
											ARR_DIMS(distances));
	bool		any_null = array_contains_nulls(neighbors) ||
	array_contains_nulls(distances);

	if (n != ndistances)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("arrays of key %lld have different lengths, %d and %d",
						(long long) key, n, ndistances)));
	if (n == 0)
		new_edge(graph, key, key, 0);
	for (int i = 0; i < n && !any_null; i++)
		new_edge(graph, key,
				 IvfpqKeyNumber(get_element(graph, neighbors, i,
											COLUMN_NEIGHBOR),
								graph->types[COLUMN_NEIGHBOR]),
				 get_distance(graph, get_element(graph, distances, i,
												 COLUMN_DISTANCE)));
	if ((Pointer) neighbors != DatumGetPointer(values[COLUMN_NEIGHBOR]))
		pfree(neighbors);
	if ((Pointer) distances != DatumGetPointer(values[COLUMN_DISTANCE]))
		pfree(distances);
	return !any_null;
}

/*
 * Finds the columns of a graph.  Raises an ERROR if the table does not have
 * these columns.
 */
static void
find_columns(PathGraph *graph, Relation rel)
{
	Oid			relid = RelationGetRelid(rel);

	graph->arrays = get_attnum(relid, "neighbor") == InvalidAttrNumber &&
		get_attnum(relid, "neighbors") != InvalidAttrNumber;
	for (int i = 0; i < NCOLUMNS; i++)
	{
		const char *name = column_names[graph->arrays][i];
		Oid			type;
		Oid			item;

		graph->columns[i] = IvfpqTableColumn(rel, name, &type);
		item = graph->arrays && i != COLUMN_KEY ? get_element_type(type) : type;
		if (i != COLUMN_DISTANCE)
			IvfpqCheckKeyType(name, type, item);
		else if (item != FLOAT4OID && item != FLOAT8OID)
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("column \"%s\" of type %s cannot be used as a distance",
							name, format_type_be(type)),
					 type == item ?
					 errhint("Distances must be of type real or double precision.") :
					 errhint("Arrays of distances must be of type real[] or double precision[].")));
		graph->types[i] = item;
		graph->sizes[i] = get_typlen(item);
	}
}

/*
 * Numbers the keys of all rows, and puts the rows' edges into buckets.  Rows
 * with a NULL are left out, and a NOTICE says how many.  Edges from a key to
 * itself are left out, too, without a NOTICE.
 */
static void
read_rows(PathGraph *graph, Relation rel)
{
	TupleTableSlot *row = table_slot_create(rel, NULL);
	TableScanDesc scan = IvfpqTableBeginScan(rel, GetActiveSnapshot());
	int64		nrows = 0;
	int64		nskipped = 0;

	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_ROWS, 0);
	while (table_scan_getnextslot(scan, ForwardScanDirection, row))
	{
		Datum		values[NCOLUMNS];
		bool		any_null = false;
		int64		key;

		CHECK_FOR_INTERRUPTS();
		if (++nrows % PROGRESS_EVERY == 0)
			IvfpqProgressDone(nrows);
		for (int i = 0; i < NCOLUMNS; i++)
		{
			bool		isnull;

			values[i] = slot_getattr(row, graph->columns[i], &isnull);
			any_null |= isnull;
		}
		if (any_null)
		{
			nskipped++;
			continue;
		}
		key = IvfpqKeyNumber(values[COLUMN_KEY], graph->types[COLUMN_KEY]);
		if (!graph->arrays)
			new_edge(graph, key,
					 IvfpqKeyNumber(values[COLUMN_NEIGHBOR],
									graph->types[COLUMN_NEIGHBOR]),
					 get_distance(graph, values[COLUMN_DISTANCE]));
		else if (!new_edges(graph, key, values))
			nskipped++;
	}
	take_edges(graph);
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(row);
	if (nskipped != 0)
		ereport(NOTICE,
				(errmsg_plural("skipped %lld row of table \"%s\" with a NULL",
							   "skipped %lld rows of table \"%s\" with a NULL",
							   (unsigned long) nskipped, (long long) nskipped,
							   RelationGetRelationName(rel))));
}

/*
 * Reads the graph's table under the active snapshot, and numbers the keys
 * source and target.  Raises an ERROR if the relation is not a table, if it is
 * not a graph, if the caller may not read it, or if one of the two keys is in
 * no row.
 */
static void
read_graph(PathGraph *graph, Oid relid)
{
	Relation	rel = IvfpqTableRelation(relid);
	keytable_iterator iterator;
	NumberedKey *entry;
	BlockNumber npages;
	double		nrows;
	double		visible;

	find_columns(graph, rel);

	/*
	 * Numbers of keys that do not occur cost memory, so there should be few.
	 * A table of edges mostly has ten rows or more for a key.
	 */
	estimate_rel_size(rel, NULL, &npages, &nrows, &visible);
	graph->ndirect = Min(1000 + nrows * (graph->arrays ? 1.25 : 0.125),
						 MAX_KEYS / 2);
	graph->table = keytable_create(CurrentMemoryContext, 1024, NULL);
	graph->waiting = palloc(MAX_NEW * sizeof(NewEdge));
	begin_buckets(&graph->edges);
	read_rows(graph, rel);
	finish_buckets(&graph->edges);
	for (int end = 0; end < 2; end++)
		if (!graph->are_there[end])
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("key %lld not found in table \"%s\"",
							(long long) graph->asked[end],
							RelationGetRelationName(rel)),
					 errhint("Keys are the values of columns \"key\" and \"%s\" in rows without NULL.",
							 column_names[graph->arrays][COLUMN_NEIGHBOR])));
	graph->source = number_key(graph, graph->asked[0]);
	graph->target = number_key(graph, graph->asked[1]);
	relation_close(rel, NoLock);

	graph->keys = alloc_array(graph->table->members, sizeof(int64));
	keytable_start_iterate(graph->table, &iterator);
	while ((entry = keytable_iterate(graph->table, &iterator)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		graph->keys[entry->number - graph->ndirect] = entry->key;
	}
	keytable_destroy(graph->table);
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

/* Returns whether two keys are in one tree. */
static bool
are_joined(int32 *parents, int32 a, int32 b)
{
	return find_root(parents, a) == find_root(parents, b);
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
 * Joins the ends of a bucket's edges, and returns whether source and target get
 * joined.  If so, sets the bottleneck, and leaves out edges that are longer.
 * The bottleneck is right if the edges can be sorted, or are equally long.
 */
static bool
join_bucket(PathGraph *graph, EdgeBuckets *buckets, int bucket)
{
	const Edge *edges = buckets->edges;
	bool		joined = false;
	int			n;

	rewind_bucket(buckets, bucket);
	while ((n = read_bucket(buckets, bucket)) > 0)
	{
		if (buckets->counts[bucket] <= MAX_EDGES)
			qsort(buckets->edges, n, sizeof(Edge), compare_edges);
		for (int i = 0; i < n; i++)
		{
			const int32 *ahead = edges[Min(i + AHEAD, n - 1)].ends;

			if (joined && edges[i].rank > graph->bottleneck)
				return true;
			__builtin_prefetch(&graph->parents[ahead[0]]);
			__builtin_prefetch(&graph->parents[ahead[1]]);
			join_trees(graph->parents, edges[i].ends[0], edges[i].ends[1]);
			if (joined ||
				!are_joined(graph->parents, graph->source, graph->target))
				continue;
			joined = true;
			graph->bottleneck = edges[i].rank;
		}
	}
	return joined;
}

/*
 * Joins the ends of edges by ascending distance, until source and target are
 * joined, and sets the bottleneck.  Returns the number of the bucket that joins
 * them, or NBUCKETS if there is no path.
 */
static int
join_buckets(PathGraph *graph, EdgeBuckets *buckets)
{
	Size		bytes = graph->nkeys * sizeof(int32);
	int64		total = 0;
	EdgeBuckets parts;
	int			bucket;
	int			n;

	for (bucket = 0; bucket < NBUCKETS; bucket++)
		total += buckets->counts[bucket];
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_JOINING, total);
	for (bucket = 0; bucket < NBUCKETS; bucket++)
	{
		bool		exact = buckets->counts[bucket] <= MAX_EDGES ||
		bucket % 2 == 1;

		if (!exact)
			memcpy(graph->saved, graph->parents, bytes);
		if (!join_bucket(graph, buckets, bucket))
			continue;
		if (exact)
			return bucket;
		break;
	}
	if (bucket == NBUCKETS)
		return NBUCKETS;

	/*
	 * Divide the bucket, whose edges may be in any order.  So take splitters
	 * from edges in all of its parts.
	 */
	memcpy(graph->parents, graph->saved, bytes);
	begin_buckets(&parts);
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_JOINING,
						 2 * buckets->counts[bucket]);
	buckets->nread = 0;
	rewind_bucket(buckets, bucket);
	total = 0;
	for (int nsample = 0; (n = read_bucket(buckets, bucket)) > 0;)
	{
		int64		every = buckets->counts[bucket] / MAX_EDGES + 1;

		for (int i = (every - total % every) % every; i < n; i += every)
			parts.edges[nsample++] = buckets->edges[i];
		total += n;
		if (total == buckets->counts[bucket])
			take_splitters(&parts, nsample);
	}
	rewind_bucket(buckets, bucket);
	while ((n = read_bucket(buckets, bucket)) > 0)
		for (int i = 0; i < n; i++)
			if (!are_joined(graph->parents, buckets->edges[i].ends[0],
							buckets->edges[i].ends[1]))
				add_edge(&parts, &buckets->edges[i]);
	finish_buckets(&parts);
	join_buckets(graph, &parts);
	end_buckets(&parts);
	return bucket;
}

/*
 * Reads the next edges of the buckets that may have edges of the path; returns
 * how many there were, or 0 at the end.
 */
static int
next_edges(PathGraph *graph)
{
	int			n;

	while ((n = read_bucket(&graph->edges, graph->bucket)) == 0 &&
		   graph->bucket < graph->last)
		rewind_bucket(&graph->edges, ++graph->bucket);
	return n;
}

/* Reads the first of these edges. */
static int
first_edges(PathGraph *graph)
{
	graph->bucket = 0;
	rewind_bucket(&graph->edges, 0);
	return next_edges(graph);
}

/* Collects the neighbors of each key along edges that may be on the path. */
static void
collect_neighbors(PathGraph *graph)
{
	int32		root = find_root(graph->parents, graph->source);
	const Edge *edges = graph->edges.edges;
	int64	   *bounds = alloc_array(graph->nkeys, sizeof(int64));
	int32	   *neighbors = NULL;
	int64		total = 0;

	memset(bounds, 0, graph->nkeys * sizeof(int64));

	/*
	 * Count each key's neighbors, and set its bound to their beginning.  Then
	 * put each neighbor at its key's bound and advance the bound.  Afterwards
	 * the bound is the end of the key's neighbors.
	 */
	for (int pass = 0; pass < 2; pass++)
	{
		for (int n = first_edges(graph); n > 0; n = next_edges(graph))
			for (int i = 0; i < n; i++)
			{
				const int32 *ends = edges[i].ends;
				const int32 *ahead = edges[Min(i + AHEAD, n - 1)].ends;
				const int32 *far = edges[Min(i + 2 * AHEAD, n - 1)].ends;

				__builtin_prefetch(&graph->parents[far[0]]);
				for (int end = 0; end < 2; end++)
				{
					__builtin_prefetch(&bounds[far[end]], 1);
					if (neighbors != NULL)
						__builtin_prefetch(&neighbors[bounds[ahead[end]]], 1);
				}
				if (edges[i].rank > graph->bottleneck ||
					find_root(graph->parents, ends[0]) != root)
					continue;
				for (int end = 0; end < 2; end++)
				{
					int64		place = bounds[ends[end]]++;

					if (neighbors != NULL)
						neighbors[place] = ends[1 - end];
				}
			}
		if (neighbors != NULL)
			break;
		for (int32 i = 0; i < graph->nkeys; i++)
		{
			int64		count = bounds[i];

			bounds[i] = total;
			total += count;
		}
		neighbors = alloc_array(total, sizeof(int32));
	}
	graph->bounds = bounds;
	graph->neighbors = neighbors;
	pfree(graph->parents);
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
			__builtin_prefetch(&levels[neighbors[Min(i + AHEAD, count - 1)]]);
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
				 get_key(graph, neighbors[i]) < get_key(graph, best)))
				best = neighbors[i];
		}
		Assert(best != NO_KEY);
		graph->path[step + 1] = best;
	}
}

/*
 * Sets `ranks` for the path's steps.  If there are several edges between two
 * keys, we take the shortest one.
 */
static void
measure_steps(PathGraph *graph)
{
	/* each key's step on the path, or -1 if the path does not contain it */
	int32	   *steps = graph->levels;
	const Edge *edges = graph->edges.edges;

	graph->ranks = alloc_array((int64) graph->nsteps + 1, sizeof(int64));
	for (int32 i = 0; i < graph->nkeys; i++)
		steps[i] = -1;
	for (int32 i = 0; i <= graph->nsteps; i++)
	{
		steps[graph->path[i]] = i;
		graph->ranks[i] = PG_INT64_MAX;
	}
	for (int n = first_edges(graph); n > 0; n = next_edges(graph))
		for (int i = 0; i < n; i++)
		{
			const int32 *ahead = edges[Min(i + AHEAD, n - 1)].ends;
			int32		a = steps[edges[i].ends[0]];
			int32		b = a < 0 ? -1 : steps[edges[i].ends[1]];

			__builtin_prefetch(&steps[ahead[0]]);
			if (b >= 0 && abs(a - b) == 1)
				graph->ranks[Max(a, b)] = Min(graph->ranks[Max(a, b)],
											  edges[i].rank);
		}
}

/* Sets path and ranks.  Returns false if there is no path. */
static bool
find_path(PathGraph *graph)
{
	int64		total = 0;

	if (graph->source == graph->target)
	{
		walk_path(graph);
		return true;
	}
	graph->parents = alloc_numbers(graph->nkeys, -1);
	graph->saved = alloc_array(graph->nkeys, sizeof(int32));
	graph->last = join_buckets(graph, &graph->edges);
	pfree(graph->saved);
	if (graph->last == NBUCKETS)
		return false;
	for (int i = 0; i <= graph->last; i++)
		total += graph->edges.counts[i];
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_WALKING, 3 * total);
	graph->edges.nread = 0;
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
		values[1] = Int64GetDatum(get_key(graph, graph->path[i]));
		if (i == 0)
			nulls[2] = true;
		else
			values[2] = Float8GetDatum(rank_distance(graph->ranks[i]));
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
	PathGraph	graph = {.asked = {PG_GETARG_INT64(1), PG_GETARG_INT64(2)}};
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "gpuvec path",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old;

	InitMaterializedSRF(fcinfo, 0);
	old = MemoryContextSwitchTo(context);
	IvfpqProgressBegin(IVFPQ_PROGRESS_PATH, relid);
	read_graph(&graph, relid);
	if (find_path(&graph))
		return_path((ReturnSetInfo *) fcinfo->resultinfo, &graph);
	IvfpqProgressEnd();
	end_buckets(&graph.edges);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return (Datum) 0;
}
