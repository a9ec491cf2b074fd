/*
 * pathedges.c
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
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

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

void
IvfpqReadEdges(IvfpqEdges *edges, Oid relid, const int64 *wanted,
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

void
IvfpqSortEdges(IvfpqEdges *edges)
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

void
IvfpqRewindEdges(IvfpqEdges *edges)
{
	tuplesort_rescan(edges->sort);
	edges->nread = 0;
}

void
IvfpqEndEdges(IvfpqEdges *edges)
{
	ExecDropSingleTupleTableSlot(edges->slot);
	tuplesort_end(edges->sort);
}
