/*
 * querylog.c
 *		The query log: the last queries of each index, for gpuvec_live_queries.
 *
 * Each index has a ring of them in a segment of dynamic shared memory, which
 * the first scan that finds none makes; the main shared memory has a table of
 * rings.  If there are too many rings, or they take too much memory, the one
 * that was idle longest is evicted.  Its segment is taken over if it is as
 * large, because a segment that is freed stays as long as a session that was
 * attached to it asks nothing.
 *
 * A scan never fails for this, and never waits: a ring that another session
 * writes or reads is passed over, and an error while a ring is made or
 * attached goes to the log.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/dsm.h"
#include "storage/lwlock.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "am/common/identity.h"
#include "am/common/options.h"
#include "am/scan/querylog.h"
#include "am/types/vector.h"
#include "client/client.h"
#include "page/attempt.h"
#include "pgcompat.h"

#define RING_QUERIES	1000
#define MAX_RINGS		64
#define MAX_BYTES		((Size) 256 * 1024 * 1024)	/* of all rings */

/* How long a session waits after it could not make a ring. */
#define RETRY_MS		60000

/* A ring of other dimensions is evicted when it was idle for this long. */
#define LEAST_IDLE_MS	60000

/* A segment. */
typedef struct Ring
{
	LWLock		lock;			/* of what follows */
	int			dims;
	uint64		nasked;			/* ever; query i is at i % RING_QUERIES */
	TimestampTz asked[RING_QUERIES];
	float		queries[FLEXIBLE_ARRAY_MEMBER]; /* [RING_QUERIES][dims] */
} Ring;

/* An entry of the table. */
typedef struct RingSlot
{
	pg_atomic_uint64 ticket;	/* of the ring, unique for ever; 0 = none */
	pg_atomic_uint64 used;		/* when it was asked last, TimestampTz */
	Oid			database;
	Oid			table;
	Oid			index;
	Size		bytes;
	dsm_handle	handle;
} RingSlot;

typedef struct QueryLog
{
	LWLock	   *lock;			/* of tickets and slots, but atomics can be
								 * read without */
	uint64		tickets;		/* the last one */
	RingSlot	slots[MAX_RINGS];
} QueryLog;

/* A ring that this process is attached to. */
typedef struct Attached
{
	uint64		ticket;			/* 0 = none */
	Oid			index;
	dsm_segment *segment;
	Ring	   *ring;
} Attached;

/* The index that a ring is to be opened for. */
typedef struct Opening
{
	Relation	index;
	int			dims;
} Opening;

static QueryLog *shared = NULL; /* NULL without preloading */
static Attached attached[MAX_RINGS];	/* by slot */
static TimestampTz retry_at = 0;

PG_FUNCTION_INFO_V1(gpuvec_live_queries);
PG_FUNCTION_INFO_V1(gpuvec_forget_queries);

static void
init_shared(void *memory, LWLock *lock)
{
	QueryLog   *queries = memory;

	queries->lock = lock;
	for (int i = 0; i < MAX_RINGS; i++)
	{
		pg_atomic_init_u64(&queries->slots[i].ticket, 0);
		pg_atomic_init_u64(&queries->slots[i].used, 0);
	}
}

static const IvfpqSharedPart part = {
	.name = "gpuvec queries",
	.size = sizeof(QueryLog),
	.address = (void **) &shared,
	.init = init_shared
};

void
IvfpqQueryLogInit(void)
{
	IvfpqShare(&part);
}

/* Returns whether this process is attached to the ring that a slot has now. */
static bool
is_attached(int slot)
{
	return attached[slot].ticket != 0 &&
		attached[slot].ticket ==
		pg_atomic_read_u64(&shared->slots[slot].ticket);
}

static void
detach_ring(int slot)
{
	if (attached[slot].ticket != 0)
		dsm_detach(attached[slot].segment);
	memset(&attached[slot], 0, sizeof(attached[slot]));
}

/*
 * Frees the ring that a slot has; processes that are attached to it find out.
 */
static void
free_slot(int slot)
{
	RingSlot   *ring = &shared->slots[slot];

	Assert(pg_atomic_read_u64(&ring->ticket) != 0);
	pg_atomic_write_u64(&ring->ticket, 0);
	ring->index = InvalidOid;
	ring->bytes = 0;
	dsm_unpin_segment(ring->handle);
	detach_ring(slot);
}

/* Returns the slot of an index's ring, or -1. */
static int
find_slot(Relation index)
{
	for (int i = 0; i < MAX_RINGS; i++)
	{
		const RingSlot *slot = &shared->slots[i];

		if (slot->index == RelationGetRelid(index) &&
			slot->database == MyDatabaseId &&
			slot->table == index->rd_index->indrelid)
			return i;
	}
	return -1;
}

/*
 * Frees rings of indexes of this database that were dropped.  Takes the lock,
 * but reads the catalog without it.
 */
static void
free_dropped(void)
{
	uint64		tickets[MAX_RINGS];
	Oid			indexes[MAX_RINGS];

	LWLockAcquire(shared->lock, LW_SHARED);
	for (int i = 0; i < MAX_RINGS; i++)
	{
		tickets[i] = pg_atomic_read_u64(&shared->slots[i].ticket);
		indexes[i] = shared->slots[i].database == MyDatabaseId ?
			shared->slots[i].index : InvalidOid;
	}
	LWLockRelease(shared->lock);
	for (int i = 0; i < MAX_RINGS; i++)
	{
		if (!OidIsValid(indexes[i]) ||
			SearchSysCacheExists1(RELOID, ObjectIdGetDatum(indexes[i])))
			continue;
		LWLockAcquire(shared->lock, LW_EXCLUSIVE);
		if (pg_atomic_read_u64(&shared->slots[i].ticket) == tickets[i])
			free_slot(i);
		LWLockRelease(shared->lock);
	}
}

/*
 * Sets *free to a free slot, or -1.  Returns whether there is one, and memory
 * for this number of bytes.
 */
static bool
has_memory(Size bytes, int *free)
{
	Size		taken = bytes;

	*free = -1;
	for (int i = 0; i < MAX_RINGS; i++)
	{
		taken += shared->slots[i].bytes;
		if (pg_atomic_read_u64(&shared->slots[i].ticket) == 0)
			*free = i;
	}
	return *free >= 0 && taken <= MAX_BYTES;
}

/*
 * Returns the slot whose ring was idle longest, of rings of this size (0: of
 * any); or -1.
 */
static int
find_idle(Size bytes)
{
	int			idle = -1;

	for (int i = 0; i < MAX_RINGS; i++)
	{
		RingSlot   *slot = &shared->slots[i];

		if (pg_atomic_read_u64(&slot->ticket) != 0 &&
			(bytes == 0 || slot->bytes == bytes) &&
			(idle < 0 || pg_atomic_read_u64(&slot->used) <
			 pg_atomic_read_u64(&shared->slots[idle].used)))
			idle = i;
	}
	return idle;
}

/* Notes that this process is attached to a slot's ring, until it ends. */
static void
keep_attached(int slot, dsm_segment *segment)
{
	dsm_pin_mapping(segment);
	attached[slot].ticket =
		pg_atomic_read_u64(&shared->slots[slot].ticket);
	attached[slot].index = shared->slots[slot].index;
	attached[slot].segment = segment;
	attached[slot].ring = dsm_segment_address(segment);
}

/* Attaches to the ring in a slot. */
static void
attach_ring(int slot)
{
	dsm_segment *segment;

	if (is_attached(slot))
		return;
	detach_ring(slot);
	segment = dsm_attach(shared->slots[slot].handle);
	if (segment == NULL)
		elog(ERROR, "segment of live queries is gone");
	keep_attached(slot, segment);
}

/*
 * Gives a slot's ring, in this segment, to an index by a new ticket.  This
 * process stays attached to it.
 */
static void
give_ring(int slot, Relation index, dsm_segment *segment)
{
	RingSlot   *ring = &shared->slots[slot];

	ring->database = MyDatabaseId;
	ring->table = index->rd_index->indrelid;
	ring->index = RelationGetRelid(index);
	pg_atomic_write_u64(&ring->used,
						(uint64) GetCurrentStatementStartTimestamp());
	pg_atomic_write_u64(&ring->ticket, ++shared->tickets);
	keep_attached(slot, segment);
}

/*
 * Gives another index's ring, of as many dimensions, to this index.  A process
 * that is about to write to it finds out under the ring's lock.
 */
static void
take_over(int slot, Relation index)
{
	Ring	   *ring;

	attach_ring(slot);
	ring = attached[slot].ring;
	LWLockAcquire(&ring->lock, LW_EXCLUSIVE);
	ring->nasked = 0;
	give_ring(slot, index, attached[slot].segment);
	LWLockRelease(&ring->lock);
}

/*
 * Makes the ring of an index: a new one, or one that was another's.  Raises an
 * error if no ring was idle for long enough to be evicted.
 */
static void
make_ring(Relation index, int dims)
{
	Size		bytes = offsetof(Ring, queries) +
	(Size) RING_QUERIES * dims * sizeof(float);
	int			slot;
	dsm_segment *segment;
	Ring	   *ring;

	while (!has_memory(bytes, &slot))
	{
		int			idle = find_idle(bytes);

		if (idle >= 0)
		{
			take_over(idle, index);
			return;
		}
		idle = find_idle(0);
		if (!TimestampDifferenceExceeds((TimestampTz)
										pg_atomic_read_u64(&shared->slots[idle].used),
										GetCurrentStatementStartTimestamp(),
										LEAST_IDLE_MS))
			ereport(ERROR,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("there is no room beside those of other indexes")));
		free_slot(idle);
	}
	segment = dsm_create(bytes, 0);
	ring = dsm_segment_address(segment);
	memset(ring, 0, offsetof(Ring, queries));
	LWLockInitialize(&ring->lock, shared->lock->tranche);
	ring->dims = dims;
	dsm_pin_segment(segment);
	detach_ring(slot);
	shared->slots[slot].bytes = bytes;
	shared->slots[slot].handle = dsm_segment_handle(segment);
	give_ring(slot, index, segment);
}

/*
 * Attaches to the ring of an index, which may have to be made; *arg is an
 * Opening.
 */
static void
open_ring(void *arg)
{
	const Opening *opening = arg;
	Relation	index = opening->index;
	int			slot;

	free_dropped();
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = find_slot(index);
	if (slot >= 0)
	{
		attach_ring(slot);
		if (attached[slot].ring->dims != opening->dims)
		{
			free_slot(slot);
			slot = -1;
		}
	}
	if (slot < 0)
		make_ring(index, opening->dims);
	LWLockRelease(shared->lock);
}

/*
 * Opens the ring of an index, but an error goes to the log only, unless the
 * statement was to end anyway: there may be no memory.  Does nothing in
 * parallel mode, which has no subtransactions.
 */
static void
try_ring(Relation index, int dims)
{
	Opening		opening = {index, dims};
	ErrorData  *error;

	if (IsInParallelMode() || GetCurrentStatementStartTimestamp() < retry_at)
		return;
	error = IvfpqAttempt(open_ring, &opening);
	if (error == NULL)
		return;
	retry_at = TimestampTzPlusMilliseconds(GetCurrentStatementStartTimestamp(),
										   RETRY_MS);
	ereport(LOG,
			(errmsg("gpuvec: queries of index \"%s\" are not kept: %s",
					RelationGetRelationName(index), error->message)));
	FreeErrorData(error);
}

/*
 * Returns the slot of the index's ring, if this process is attached to it, or
 * -1.  Detaches it from rings that others have freed.
 */
static int
find_attached(Oid index, int dims)
{
	int			found = -1;

	for (int i = 0; i < MAX_RINGS; i++)
	{
		if (attached[i].ticket == 0)
			continue;
		if (!is_attached(i))
			detach_ring(i);
		else if (attached[i].index == index && attached[i].ring->dims == dims)
			found = i;
	}
	return found;
}

void
IvfpqLogQuery(Relation index, const float *query, int dims)
{
	int			slot;
	Ring	   *ring;
	int			place;

	if (shared == NULL || InSecurityRestrictedOperation())
		return;
	slot = find_attached(RelationGetRelid(index), dims);
	if (slot < 0)
	{
		try_ring(index, dims);
		slot = find_attached(RelationGetRelid(index), dims);
	}
	if (slot < 0)
		return;
	ring = attached[slot].ring;
	if (!LWLockConditionalAcquire(&ring->lock, LW_EXCLUSIVE))
		return;
	if (is_attached(slot))
	{
		place = (int) (ring->nasked++ % RING_QUERIES);
		ring->asked[place] = GetCurrentStatementStartTimestamp();
		memcpy(ring->queries + (Size) place * dims, query,
			   dims * sizeof(float));
		pg_atomic_write_u64(&shared->slots[slot].used,
							(uint64) GetCurrentStatementStartTimestamp());
	}
	LWLockRelease(&ring->lock);
}

/*
 * Returns a copy of the ring of an index, or NULL.  Scans pass the ring over
 * meanwhile.
 */
static Ring *
copy_ring(Relation index)
{
	Ring	   *copy = NULL;
	int			slot;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = find_slot(index);
	if (slot >= 0)
	{
		Size		bytes = shared->slots[slot].bytes;

		attach_ring(slot);
		copy = palloc(bytes);
		LWLockAcquire(&attached[slot].ring->lock, LW_SHARED);
		memcpy(copy, attached[slot].ring, bytes);
		LWLockRelease(&attached[slot].ring->lock);
	}
	LWLockRelease(shared->lock);
	return copy;
}

/* Opens an index and its table; ERROR unless the user may see its queries. */
static Relation
open_owned(Oid relid, Relation *table)
{
	Relation	index = IvfpqOpenIndexTable(relid, AccessShareLock, table);

	if (!IvfpqOwnsRelation(RelationGetRelid(*table), GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for index \"%s\"",
						RelationGetRelationName(index)),
				 errhint("Only the owner of the table may see what its index was asked.")));
	if (shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("queries are not kept"),
				 errhint("Add gpuvec to shared_preload_libraries and restart the server.")));
	return index;
}

/* gpuvec_live_queries(index regclass): the last query first */
Datum
gpuvec_live_queries(PG_FUNCTION_ARGS)
{
	Relation	table;
	Relation	index = open_owned(PG_GETARG_OID(0), &table);
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Ring	   *ring;

	InitMaterializedSRF(fcinfo, 0);
	ring = copy_ring(index);
	for (uint64 i = 0; ring && i < Min(ring->nasked, RING_QUERIES); i++)
	{
		int			place = (int) ((ring->nasked - 1 - i) % RING_QUERIES);
		const float *query = ring->queries + (Size) place * ring->dims;
		Datum		values[2];
		bool		nulls[2] = {false};

		CHECK_FOR_INTERRUPTS();
		values[0] = TimestampTzGetDatum(ring->asked[place]);
		values[1] = PointerGetDatum(IvfpqMakeReal(query, ring->dims));
		tuplestore_putvalues(result->setResult, result->setDesc, values,
							 nulls);
		pfree(DatumGetPointer(values[1]));
	}
	if (ring == NULL && !ivfpq_keep_queries)
		ereport(NOTICE,
				(errmsg("queries of index \"%s\" are not kept",
						RelationGetRelationName(index)),
				 errhint("Have a superuser set gpuvec.keep_queries.")));
	relation_close(index, AccessShareLock);
	table_close(table, AccessShareLock);
	return (Datum) 0;
}

/*
 * gpuvec_forget_queries(index regclass): returns whether there was anything to
 * forget
 */
Datum
gpuvec_forget_queries(PG_FUNCTION_ARGS)
{
	Relation	table;
	Relation	index = open_owned(PG_GETARG_OID(0), &table);
	int			slot;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = find_slot(index);
	if (slot >= 0)
		free_slot(slot);
	LWLockRelease(shared->lock);
	relation_close(index, AccessShareLock);
	table_close(table, AccessShareLock);
	PG_RETURN_BOOL(slot >= 0);
}
