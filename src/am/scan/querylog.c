/*
 * querylog.c
 *		The query log: the last queries of each index, for gpuvec_live_queries
 *		and for automatic calibration.
 *
 * gpuvec.keep_queries has the last RING_QUERIES queries of each index kept.
 * For automatic calibration a sample is enough: the last SAMPLE_QUERIES that
 * differ, and the recall targets that scans asked for.  When enough of them
 * are new, the scan that logs the last one asks for a worker, which measures
 * the recall with the sample (am/maintain/autocalibrate.c).  So an index that
 * nobody searches costs nothing.
 *
 * The queries of an index are kept in a ring, which is a segment of dynamic
 * shared memory.  The first scan that finds no ring for its index makes one.
 * The main shared memory has a table of the rings.  If there are too many
 * rings, or if they take too much memory, the ring that was idle longest is
 * evicted, unless its queries may be measured soon.  If its segment has
 * the size of the new ring, the new ring takes the segment over, because a
 * freed segment stays in memory until all sessions detach from it, and a
 * session does so only at its next query.
 *
 * A scan never fails because of the query log, and never waits for a ring.  If
 * another session is writing or reading the ring, the query is not logged.  If
 * an error occurs while a ring is made or attached, the error goes to the log.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_index.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/dsm.h"
#include "storage/lwlock.h"
#include "utils/builtins.h"
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
#define SAMPLE_QUERIES	300		/* without gpuvec.keep_queries */
#define MAX_RINGS		64
#define MAX_BYTES		((Size) 256 * 1024 * 1024)	/* of all rings together */

/*
 * How long a session that failed to make a ring waits before it tries again.
 */
#define RETRY_MS		60000

/*
 * A ring that is idle this long may be evicted.  Another may be evicted by a
 * ring of the same size only, and if it collects queries for a measurement, not
 * for ivfpq_calibrate_interval.  So if more indexes are searched than can have
 * rings, each has one in its turn, and none is measured more often.
 */
#define LEAST_IDLE_MS	60000

/*
 * The sample of a dropped index is kept this long for an index with the same
 * definition, which REINDEX CONCURRENTLY has put in its place.
 */
#define ORPHAN_MS		3600000

/*
 * An index is measured when it has NEW_QUERIES new queries, and again after
 * ivfpq_calibrate_interval.  If the worker did not come or was canceled,
 * another worker is asked for after RETRY_MS.
 */
#define NEW_QUERIES		100

/* The queries of one index, in a segment of dynamic shared memory. */
typedef struct Ring
{
	LWLock		lock;			/* protects the fields below */
	int			dims;
	uint32		capacity;		/* RING_QUERIES or SAMPLE_QUERIES */
	uint64		nasked;			/* queries added so far; query i is at i %
								 * capacity */

	/* for automatic calibration: */
	uint64		build_id;		/* of the index when it was last searched; 0 =
								 * not searched yet */
	int			nnew;			/* queries added since the last measurement */
	uint32		targets;		/* asked for since then: a bit for each */
	bool		is_first;		/* there was no measurement yet */
	bool		is_due;			/* a worker was asked for */
	TimestampTz since;			/* of the last measurement, or the ring */
	TimestampTz retry_at;		/* no worker is asked for before this time */

	TimestampTz asked[RING_QUERIES];
	uint64		hashes[RING_QUERIES];	/* IvfpqVectorHash */
	float		queries[FLEXIBLE_ARRAY_MEMBER]; /* [capacity][dims] */
} Ring;

/* An entry of the table of rings. */
typedef struct RingSlot
{
	pg_atomic_uint64 ticket;	/* unique number of the ring, never used
								 * again; 0 = there is no ring */
	pg_atomic_uint64 used;		/* time of the last query, TimestampTz */
	TimestampTz since;			/* when it began to collect queries for a
								 * measurement; 0 = for none */
	Oid			database;
	Oid			table;
	Oid			index;
	uint64		definition;		/* hash of the index's columns, classes,
								 * expressions and predicate */
	Size		bytes;
	dsm_handle	handle;
} RingSlot;

typedef struct QueryLog
{
	LWLock	   *lock;			/* protects tickets and slots, but atomics may
								 * be read without it */
	uint64		tickets;		/* the last ticket issued */
	RingSlot	slots[MAX_RINGS];
} QueryLog;

/* A ring that this process is attached to. */
typedef struct Attached
{
	uint64		ticket;			/* ticket of the ring; 0 = not attached */
	Oid			index;
	dsm_segment *segment;
	Ring	   *ring;
} Attached;

/* Argument of open_ring(): the index whose ring is opened. */
typedef struct Opening
{
	Relation	index;
	int			dims;
	uint32		capacity;
	bool		is_measured;	/* by automatic calibration */
} Opening;

static QueryLog *shared = NULL; /* NULL if not preloaded */
static Attached attached[MAX_RINGS];	/* indexed by slot */
static TimestampTz retry_at = 0;

void		(*ivfpq_ask_for_calibration) (Relation index) = NULL;
#ifdef GV_TEST_BUILD
int			ivfpq_calibrate_interval = IVFPQ_CALIBRATE_INTERVAL;
#endif

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

/* Returns whether this process is attached to a slot's ring. */
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
 * Frees a slot's ring.  Processes attached to it see that its ticket is gone.
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

/* Returns the slot of an index's ring, or -1 if it has no ring. */
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
 * Returns a hash of what REINDEX CONCURRENTLY keeps of an index: its columns,
 * operator classes, expressions and predicate.
 */
static uint64
hash_definition(Relation index)
{
	static const AttrNumber stored[] = {
		Anum_pg_index_indkey, Anum_pg_index_indclass,
		Anum_pg_index_indexprs, Anum_pg_index_indpred
	};
	uint64		hash = 0;

	for (int i = 0; i < (int) lengthof(stored); i++)
	{
		bool		isnull;
		Datum		value = SysCacheGetAttr(INDEXRELID, index->rd_indextuple,
											stored[i], &isnull);
		struct varlena *bytes;

		if (isnull)
			continue;
		bytes = PG_DETOAST_DATUM_PACKED(value);
		hash = hash_bytes_extended((const unsigned char *) VARDATA_ANY(bytes),
								   VARSIZE_ANY_EXHDR(bytes), hash + i);
	}
	return hash;
}

/*
 * Frees the rings of dropped indexes of this database.  Returns the slot of a
 * dropped index of the same table with the same definition as this one, whose
 * sample this index takes over, or -1.  Sets *ticket to the ticket of that
 * ring.  Takes the lock, but does not hold it while reading the catalog.
 */
static int
free_dropped(Relation index, uint64 *ticket)
{
	TimestampTz now = GetCurrentStatementStartTimestamp();
	uint64		definition = hash_definition(index);
	uint64		tickets[MAX_RINGS];
	Oid			indexes[MAX_RINGS];
	Oid			tables[MAX_RINGS];
	int			heir = -1;

	LWLockAcquire(shared->lock, LW_SHARED);
	for (int i = 0; i < MAX_RINGS; i++)
	{
		tickets[i] = pg_atomic_read_u64(&shared->slots[i].ticket);
		indexes[i] = shared->slots[i].database == MyDatabaseId ?
			shared->slots[i].index : InvalidOid;
		tables[i] = shared->slots[i].table;
	}
	LWLockRelease(shared->lock);
	for (int i = 0; i < MAX_RINGS; i++)
	{
		RingSlot   *slot = &shared->slots[i];
		bool		has_table;

		if (!OidIsValid(indexes[i]) ||
			SearchSysCacheExists1(RELOID, ObjectIdGetDatum(indexes[i])))
			continue;
		has_table = SearchSysCacheExists1(RELOID, ObjectIdGetDatum(tables[i]));
		LWLockAcquire(shared->lock, LW_EXCLUSIVE);
		if (pg_atomic_read_u64(&slot->ticket) != tickets[i])
			;
		else if (!has_table ||
				 TimestampDifferenceExceeds((TimestampTz)
											pg_atomic_read_u64(&slot->used),
											now, ORPHAN_MS))
			free_slot(i);
		else if (slot->table == index->rd_index->indrelid &&
				 slot->definition == definition)
		{
			heir = i;
			*ticket = tickets[i];
		}
		LWLockRelease(shared->lock);
	}
	return heir;
}

/*
 * Returns the slot of the ring that was idle longest among rings of this size,
 * or among all rings if `bytes` is 0, that may be evicted.  Returns -1 if there
 * is no such ring.
 */
static int
find_idle(Size bytes)
{
	TimestampTz now = GetCurrentStatementStartTimestamp();
	int			idle = -1;

	for (int i = 0; i < MAX_RINGS; i++)
	{
		RingSlot   *slot = &shared->slots[i];

		if (pg_atomic_read_u64(&slot->ticket) != 0 &&
			(bytes == 0 || slot->bytes == bytes) &&
			((bytes != 0 &&
			  TimestampDifferenceExceeds(slot->since, now,
										 ivfpq_calibrate_interval)) ||
			 TimestampDifferenceExceeds((TimestampTz)
										pg_atomic_read_u64(&slot->used),
										now, LEAST_IDLE_MS)) &&
			(idle < 0 || pg_atomic_read_u64(&slot->used) <
			 pg_atomic_read_u64(&shared->slots[idle].used)))
			idle = i;
	}
	return idle;
}

/*
 * Notes that this process is attached to the ring of a slot, and keeps the
 * segment mapped until the process ends.
 */
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

/* Attaches this process to the ring of a slot. */
static void
attach_ring(int slot)
{
	dsm_segment *segment;

	if (is_attached(slot))
		return;
	detach_ring(slot);
	segment = dsm_attach(shared->slots[slot].handle);
	if (segment == NULL)
		elog(ERROR, "shared memory segment of live queries does not exist");
	keep_attached(slot, segment);
}

/*
 * Assigns a slot's ring to this index, and issues a new ticket for it.
 * `segment` is the segment of the ring.  This process stays attached to it.
 */
static void
give_ring(int slot, const Opening *opening, dsm_segment *segment)
{
	Relation	index = opening->index;
	RingSlot   *ring = &shared->slots[slot];
	TimestampTz now = GetCurrentStatementStartTimestamp();

	ring->database = MyDatabaseId;
	ring->table = index->rd_index->indrelid;
	ring->index = RelationGetRelid(index);
	ring->definition = hash_definition(index);
	pg_atomic_write_u64(&ring->used, (uint64) now);
	ring->since = opening->is_measured ? now : 0;
	pg_atomic_write_u64(&ring->ticket, ++shared->tickets);
	keep_attached(slot, segment);
}

/* Empties a ring, which no other process uses or which is locked. */
static void
clear_ring(Ring *ring, const Opening *opening)
{
	ring->dims = opening->dims;
	ring->capacity = opening->capacity;
	ring->nasked = 0;
	ring->build_id = 0;
	ring->nnew = 0;
	ring->targets = 0;
	ring->is_first = true;
	ring->is_due = false;
	ring->since = GetCurrentStatementStartTimestamp();
	ring->retry_at = 0;
}

/*
 * Makes a ring for an index, in a new segment or in one taken over from
 * another index.  Makes none if there is no room, and no ring may be evicted.
 */
static void
make_ring(const Opening *opening)
{
	Size		bytes = offsetof(Ring, queries) +
	(Size) opening->capacity * opening->dims * sizeof(float);
	int			slot;
	dsm_segment *segment;
	Ring	   *ring;

	for (;;)
	{
		Size		taken = bytes;
		int			idle;

		/* find a free slot, and see whether there is memory for the ring */
		slot = -1;
		for (int i = 0; i < MAX_RINGS; i++)
		{
			taken += shared->slots[i].bytes;
			if (pg_atomic_read_u64(&shared->slots[i].ticket) == 0)
				slot = i;
		}
		if (slot >= 0 && taken <= MAX_BYTES)
			break;

		/*
		 * Take over the ring of another index whose queries have the same
		 * dimensions.  A process that is about to add a query of the other
		 * index notices the change by the ticket, which it compares under the
		 * ring's lock.
		 */
		idle = find_idle(bytes);
		if (idle >= 0)
		{
			attach_ring(idle);
			ring = attached[idle].ring;
			LWLockAcquire(&ring->lock, LW_EXCLUSIVE);
			clear_ring(ring, opening);
			give_ring(idle, opening, attached[idle].segment);
			LWLockRelease(&ring->lock);
			return;
		}
		idle = find_idle(0);
		if (idle < 0)
			return;
		free_slot(idle);
	}
	segment = dsm_create(bytes, 0);
	ring = dsm_segment_address(segment);
	LWLockInitialize(&ring->lock, shared->lock->tranche);
	clear_ring(ring, opening);
	dsm_pin_segment(segment);
	detach_ring(slot);
	shared->slots[slot].bytes = bytes;
	shared->slots[slot].handle = dsm_segment_handle(segment);
	give_ring(slot, opening, segment);
}

/* Attaches to an index's ring, making it if needed.  `arg` is an Opening. */
static void
open_ring(void *arg)
{
	const Opening *opening = arg;
	Relation	index = opening->index;
	uint64		ticket;
	int			slot;
	int			heir;

	heir = free_dropped(index, &ticket);
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = find_slot(index);
	if (slot < 0 && heir >= 0 &&
		pg_atomic_read_u64(&shared->slots[heir].ticket) == ticket)
	{
		slot = heir;
		attach_ring(slot);
		give_ring(slot, opening, attached[slot].segment);
	}
	if (slot >= 0)
	{
		const Ring *ring;

		attach_ring(slot);
		ring = attached[slot].ring;
		if (ring->dims != opening->dims ||
			ring->capacity < opening->capacity)
		{
			free_slot(slot);
			slot = -1;
		}
	}
	if (slot < 0)
		make_ring(opening);
	LWLockRelease(shared->lock);
}

/*
 * Returns the slot of the index's ring if this process is attached to that
 * ring and the ring has the capacity, or -1.  Also detaches this process from
 * rings that other processes have freed.
 */
static int
find_attached(Oid index, int dims, uint32 capacity)
{
	int			found = -1;

	for (int i = 0; i < MAX_RINGS; i++)
	{
		if (attached[i].ticket == 0)
			continue;
		if (!is_attached(i))
			detach_ring(i);
		else if (attached[i].index == index &&
				 attached[i].ring->dims == dims &&
				 attached[i].ring->capacity >= capacity)
			found = i;
	}
	return found;
}

/*
 * Returns the bit of the recall target that a scan asks for: one of the lower
 * IVFPQ_TARGETS bits or, of a scan with conditions, one of the next.  Returns
 * 0 if calibration does not decide how deep the scan searches, or if automatic
 * calibration is off.
 */
static uint32
target_bit(Relation index, double recall, bool filtered)
{
	static const double recalls[IVFPQ_TARGETS] = IVFPQ_TARGET_RECALLS;
	const IvfpqOptions *options = IvfpqGetOptions(index);
	int			t = 0;

	if (!ivfpq_auto_calibrate || !options->auto_calibrate ||
		ivfpq_probes > 0 || ivfpq_candidates > 0 || ivfpq_max_probes > 0 ||
		options->probes > 0 || options->candidates > 0 ||
		index->rd_rel->relpersistence == RELPERSISTENCE_TEMP ||
		RecoveryInProgress())
		return 0;
	while (t < IVFPQ_TARGETS && recalls[t] < recall)
		t++;
	return t == IVFPQ_TARGETS ? 0 : 1U << (filtered ? t + IVFPQ_TARGETS : t);
}

/* Adds a query to a ring, which is locked. */
static void
add_query(Ring *ring, const IvfpqMetaData *meta, const float *query,
		  uint32 target)
{
	TimestampTz now = GetCurrentStatementStartTimestamp();
	uint64		hash = IvfpqVectorHash(query, ring->dims, 0);
	int			n = (int) Min(ring->nasked, ring->capacity);
	bool		known = false;
	int			place;

	ring->targets |= target;
	if (ring->build_id != 0 && ring->build_id != meta->build_id)
	{
		/* the index was built or trained anew, so its recall is not known */
		ring->nnew = n;
		ring->since = ring->retry_at = 0;
	}
	ring->build_id = meta->build_id;
	for (int i = 0; i < n; i++)
		known |= ring->hashes[i] == hash;
	if (known && !ivfpq_keep_queries)
		return;
	place = (int) (ring->nasked++ % ring->capacity);
	ring->asked[place] = now;
	ring->hashes[place] = hash;
	memcpy(ring->queries + (Size) place * ring->dims, query,
		   ring->dims * sizeof(float));
	ring->nnew += !known;
}

/*
 * Returns whether a ring has enough new queries to measure the recall now.
 * The first measurement does not wait for the interval if the sample is full.
 */
static bool
is_due(const Ring *ring)
{
	TimestampTz now = GetCurrentStatementStartTimestamp();

	return ring->targets != 0 && ring->nnew >= NEW_QUERIES &&
		now >= ring->retry_at &&
		(TimestampDifferenceExceeds(ring->since, now,
									ivfpq_calibrate_interval) ||
		 (ring->is_first && ring->nnew >= SAMPLE_QUERIES));
}

/* IvfpqAttempt callback.  Asks for a worker that calibrates an index. */
static void
ask_for_worker(void *index)
{
	ivfpq_ask_for_calibration((Relation) index);
}

void
IvfpqLogQuery(Relation index, const IvfpqMetaData *meta, const float *query,
			  double recall, bool filtered)
{
	uint32		target;
	Opening		opening = {.index = index, .dims = meta->dims,
	.capacity = SAMPLE_QUERIES};
	int			slot;
	Ring	   *ring;
	bool		due = false;
	ErrorData  *error;

	if (shared == NULL || InSecurityRestrictedOperation())
		return;
	target = target_bit(index, recall, filtered);
	if (ivfpq_keep_queries)
		opening.capacity = RING_QUERIES;
	else if (target == 0)
		return;
	opening.is_measured = target != 0;
	slot = find_attached(RelationGetRelid(index), meta->dims,
						 opening.capacity);

	/*
	 * Open the ring.  This may fail for lack of memory, so an error only goes
	 * to the log, unless it cancels the statement.  In parallel mode,
	 * subtransactions are not allowed.
	 */
	if (slot < 0 && !IsInParallelMode() &&
		GetCurrentStatementStartTimestamp() >= retry_at)
	{
		error = IvfpqAttempt(open_ring, &opening);
		if (error != NULL)
		{
			ereport(LOG,
					(errmsg("could not keep queries of index \"%s\": %s",
							RelationGetRelationName(index), error->message)));
			FreeErrorData(error);
		}
		slot = find_attached(RelationGetRelid(index), meta->dims,
							 opening.capacity);
		if (slot < 0)
			retry_at =
				TimestampTzPlusMilliseconds(GetCurrentStatementStartTimestamp(),
											RETRY_MS);
	}
	if (slot < 0)
		return;
	ring = attached[slot].ring;
	if (!LWLockConditionalAcquire(&ring->lock, LW_EXCLUSIVE))
		return;
	if (is_attached(slot))
	{
		add_query(ring, meta, query, target);
		pg_atomic_write_u64(&shared->slots[slot].used,
							(uint64) GetCurrentStatementStartTimestamp());
		due = !IsInParallelMode() && is_due(ring);
		if (due)
		{
			ring->is_due = true;
			ring->retry_at =
				TimestampTzPlusMilliseconds(GetCurrentStatementStartTimestamp(),
											RETRY_MS);
		}
	}
	LWLockRelease(&ring->lock);
	if (!due)
		return;
	error = IvfpqAttempt(ask_for_worker, index);
	if (error != NULL)
	{
		ereport(LOG,
				(errmsg("could not ask for calibration of index \"%s\": %s",
						RelationGetRelationName(index), error->message)));
		FreeErrorData(error);
	}
}

/*
 * Sets places [SAMPLE_QUERIES] to those of the last queries that differ, the
 * newest first, in a ring that is locked, and returns their number.  With
 * gpuvec.keep_queries, queries may be kept repeatedly.
 */
static int
find_sample(const Ring *ring, int *places)
{
	int			kept = (int) Min(ring->nasked, ring->capacity);
	int			n = 0;

	for (int i = 0; i < kept && n < SAMPLE_QUERIES; i++)
	{
		int			place = (int) ((ring->nasked - 1 - i) % ring->capacity);
		bool		known = false;

		for (int j = 0; j < n; j++)
			known |= ring->hashes[place] == ring->hashes[places[j]];
		if (!known)
			places[n++] = place;
	}
	return n;
}

static bool
was_asked_for(const Ring *ring)
{
	return ring->is_due;
}

static bool
has_sample(const Ring *ring)
{
	int			places[SAMPLE_QUERIES];

	return find_sample(ring, places) >= NEW_QUERIES;
}

/* Returns whether the index has a ring for which a function returns true. */
static bool
test_ring(Relation index, bool (*test) (const Ring *ring))
{
	bool		result = false;
	int			slot;

	if (shared == NULL)
		return false;
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = find_slot(index);
	if (slot >= 0)
	{
		Ring	   *ring;

		attach_ring(slot);
		ring = attached[slot].ring;
		LWLockAcquire(&ring->lock, LW_SHARED);
		result = test(ring);
		LWLockRelease(&ring->lock);
	}
	LWLockRelease(shared->lock);
	return result;
}

bool
IvfpqLogIsDue(Relation index)
{
	return test_ring(index, was_asked_for);
}

bool
IvfpqLogSuffices(Relation index)
{
	return ivfpq_auto_calibrate && IvfpqGetOptions(index)->auto_calibrate &&
		test_ring(index, has_sample);
}

bool
IvfpqLogTake(Relation index, IvfpqQueries *queries, uint32 *targets)
{
	IvfpqType	type;
	int			slot;

	memset(queries, 0, sizeof(*queries));
	IvfpqTypeInit(&type, index);
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = find_slot(index);
	if (slot >= 0)
	{
		Ring	   *ring;
		float	   *vectors;
		int			places[SAMPLE_QUERIES];
		int			n;

		attach_ring(slot);
		ring = attached[slot].ring;
		vectors = palloc((Size) SAMPLE_QUERIES * ring->dims * sizeof(float));
		LWLockAcquire(&ring->lock, LW_EXCLUSIVE);
		n = find_sample(ring, places);
		for (int i = 0; i < n; i++)
		{
			const float *query = ring->queries + (Size) places[i] * ring->dims;

			if (IvfpqIsPlaceable(&type, query, ring->dims))
				memcpy(vectors + (Size) queries->n++ * ring->dims, query,
					   ring->dims * sizeof(float));
		}
		queries->vectors = vectors;
		queries->dims = ring->dims;
		*targets = ring->targets;
		ring->is_due = false;
		LWLockRelease(&ring->lock);
	}
	LWLockRelease(shared->lock);
	return slot >= 0;
}

void
IvfpqLogDone(Relation index, int pause_ms)
{
	int			slot;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = find_slot(index);
	if (slot >= 0)
	{
		Ring	   *ring;

		attach_ring(slot);
		ring = attached[slot].ring;
		LWLockAcquire(&ring->lock, LW_EXCLUSIVE);
		ring->nnew = 0;
		ring->targets = 0;
		ring->is_first = false;
		ring->since = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												  pause_ms);
		ring->retry_at = 0;
		LWLockRelease(&ring->lock);
	}
	LWLockRelease(shared->lock);
}

/*
 * Opens an index and its table.  Raises an error unless the current user owns
 * the table, because only the owner may see the index's queries.
 */
static Relation
open_owned(Oid relid, Relation *table)
{
	Relation	index = IvfpqOpenIndexTable(relid, AccessShareLock, NULL, table);

	if (!IvfpqOwnsRelation(RelationGetRelid(*table), GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for index \"%s\"",
						RelationGetRelationName(index)),
				 errhint("Only the owner of the table may see the queries of the index.")));
	if (shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("live queries are not available"),
				 errhint("Add \"gpuvec\" to \"shared_preload_libraries\" and restart the server.")));
	return index;
}

/* gpuvec_live_queries(index regclass): returns the newest query first */
Datum
gpuvec_live_queries(PG_FUNCTION_ARGS)
{
	Relation	table;
	Relation	index = open_owned(PG_GETARG_OID(0), &table);
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Ring	   *ring = NULL;
	int			slot;

	InitMaterializedSRF(fcinfo, 0);

	/*
	 * Copy the ring.  During the copying, scans of the index do not log their
	 * queries.
	 */
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = find_slot(index);
	if (slot >= 0)
	{
		Size		bytes = shared->slots[slot].bytes;

		attach_ring(slot);
		ring = palloc(bytes);
		LWLockAcquire(&attached[slot].ring->lock, LW_SHARED);
		memcpy(ring, attached[slot].ring, bytes);
		LWLockRelease(&attached[slot].ring->lock);
	}
	LWLockRelease(shared->lock);

	for (uint64 i = 0; ring && i < Min(ring->nasked, ring->capacity); i++)
	{
		int			place = (int) ((ring->nasked - 1 - i) % ring->capacity);
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
	if (ring == NULL && !ivfpq_keep_queries && !ivfpq_auto_calibrate)
		ereport(NOTICE,
				(errmsg("no queries of index \"%s\" are kept",
						RelationGetRelationName(index)),
				 errhint("Ask a superuser to enable \"gpuvec.keep_queries\".")));
	relation_close(index, AccessShareLock);
	table_close(table, AccessShareLock);
	return (Datum) 0;
}

/*
 * gpuvec_forget_queries(index regclass): frees the index's ring, and returns
 * whether there was one
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
