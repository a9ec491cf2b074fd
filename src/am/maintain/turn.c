/*
 * turn.c
 *		Worker slots, the right to train: gpuvec.max_training_workers in all,
 *		of which a database has one, and each owner of interpreted code one
 *		more.
 *
 * A process remembers how it compiled code that it ran (identity.c), and code
 * may run for long.  So a worker runs the code of one owner, and an owner's
 * code has one worker.
 *
 * Worker slots are locks in the server's lock table, so that nothing has to be
 * preloaded and a worker that dies releases its slot.  They are locks of the
 * default method, because a function of an index may release all advisory
 * locks of its session.  An abort releases them, also those of the session.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "utils/rel.h"

#include "am/common/identity.h"
#include "am/common/options.h"
#include "am/maintain/maintain.h"

/* Databases and roles have no such sub-object: nobody else locks it. */
#define SLOT_PART		0xFF91

static bool
lock_slot(Oid database, Oid class, Oid object, bool session)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, database, class, object, SLOT_PART);
	return LockAcquire(&tag, ExclusiveLock, session, true) !=
		LOCKACQUIRE_NOT_AVAIL;
}

static void
unlock_slot(Oid database, Oid class, Oid object, bool session)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, database, class, object, SLOT_PART);
	(void) LockRelease(&tag, ExclusiveLock, session);
}

/*
 * Takes the three locks of a worker slot, until the transaction ends or the
 * session does: the owner's in this database (no owner: the database's own),
 * the owner's in all databases, and one of max_training_workers, whose number
 * *number gets.
 */
static IvfpqWorkerSlotState
lock_all(Oid owner, bool session, int *number)
{
	IvfpqWorkerSlotState state = IVFPQ_SLOT_TAKEN;

	if (!lock_slot(MyDatabaseId, AuthIdRelationId, owner, session))
		return IVFPQ_SLOT_OURS;
	if (OidIsValid(owner) &&
		!lock_slot(InvalidOid, AuthIdRelationId, owner, session))
		state = IVFPQ_SLOT_OWNERS;
	else
	{
		for (int i = 0; i < ivfpq_max_training_workers; i++)
			if (lock_slot(InvalidOid, DatabaseRelationId, i, session))
			{
				*number = i;
				return IVFPQ_SLOT_FREE;
			}
		if (OidIsValid(owner))
			unlock_slot(InvalidOid, AuthIdRelationId, owner, session);
	}
	unlock_slot(MyDatabaseId, AuthIdRelationId, owner, session);
	return state;
}

static void
unlock_all(Oid owner, bool session, int number)
{
	unlock_slot(InvalidOid, DatabaseRelationId, number, session);
	if (OidIsValid(owner))
		unlock_slot(InvalidOid, AuthIdRelationId, owner, session);
	unlock_slot(MyDatabaseId, AuthIdRelationId, owner, session);
}

/*
 * A process that ends between transactions would leave its locks behind:
 * PostgreSQL releases them with a transaction.
 */
static void
release_at_exit(int code, Datum arg)
{
	AbortOutOfAnyTransaction();
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
}

/* Called once in a worker, before it acquires a slot. */
void
IvfpqWorkerSlotInit(void)
{
	before_shmem_exit(release_at_exit, (Datum) 0);
}

/*
 * Acquires a worker slot, which lasts until it is released or a transaction
 * aborts.  Returns its number, or -1 if there is none now.
 */
int
IvfpqWorkerSlotAcquire(Oid owner)
{
	int			slot = -1;

	(void) lock_all(owner, true, &slot);
	return slot;
}

void
IvfpqWorkerSlotRelease(Oid owner, int slot)
{
	unlock_all(owner, true, slot);
}

/*
 * Returns whether a worker for that owner would get a slot now.  Call in a
 * transaction.
 */
IvfpqWorkerSlotState
IvfpqWorkerSlotCheck(Oid owner)
{
	int			number;
	IvfpqWorkerSlotState state = lock_all(owner, false, &number);

	if (state == IVFPQ_SLOT_FREE)
		unlock_all(owner, false, number);
	return state;
}

/*
 * Returns whose worker slot serves an index: its owner's, if it calls
 * interpreted code.
 */
Oid
IvfpqWorkerSlotOwner(Relation index)
{
	return IvfpqIsInterpreted(index, true) ? index->rd_rel->relowner :
		InvalidOid;
}

/*
 * Returns whether there was a worker for that owner, this one or one before
 * it.
 */
static bool
has_run(const IvfpqWorkerOrder *order, Oid owner)
{
	for (int i = 0; i < order->nowners; i++)
		if (order->owners[i] == owner)
			return true;
	return false;
}

/*
 * Returns whether this worker may serve the index.  If not, the next worker
 * begins with it, unless there is one for its owner, or was, or there were too
 * many.
 */
bool
IvfpqWorkerSlotIsFor(IvfpqWorkerOrder *order, Relation index)
{
	Oid			owner = IvfpqWorkerSlotOwner(index);

	if (order->owner == owner)
		return true;
	if (!OidIsValid(order->next) && !has_run(order, owner) &&
		order->nowners < IVFPQ_WORKER_OWNERS &&
		IvfpqWorkerSlotCheck(owner) == IVFPQ_SLOT_FREE)
	{
		order->next = RelationGetRelid(index);
		order->next_owner = owner;
	}
	return false;
}
