/*
 * turn.c
 *		Turns of workers that train: one background worker a database, and
 *		gpuvec.max_training_workers in all.
 *
 * Turns are locks in the server's lock table, so that nothing has to be
 * preloaded and a worker that dies gives its turn back.
 *
 * A process remembers how it compiled code that it ran (identity.c).  So a
 * worker runs the code of one owner, and another worker that of the next.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/rel.h"

#include "am/common/identity.h"
#include "am/common/options.h"
#include "am/maintain/maintain.h"

/*
 * Advisory locks that users cannot name: theirs have 1 and 2 in this field.
 * The database's has its OID; those of all databases have none, and a number.
 */
#define TURN_FIELD		0xFF91

static bool
lock_turn(Oid database, uint32 number, bool session)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, database, number, 0, TURN_FIELD);
	return LockAcquire(&tag, ExclusiveLock, session, true) !=
		LOCKACQUIRE_NOT_AVAIL;
}

static void
unlock_turn(Oid database, uint32 number, bool session)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, database, number, 0, TURN_FIELD);
	(void) LockRelease(&tag, ExclusiveLock, session);
}

/* Lock one of the turns that all databases share; -1: there is none. */
static int
lock_any(bool session)
{
	for (int i = 0; i < ivfpq_max_training_workers; i++)
		if (lock_turn(InvalidOid, i, session))
			return i;
	return -1;
}

/*
 * Lock both, until the transaction ends or the session does; returns which of
 * all databases' turns it is, or -1: other workers have them.
 */
static int
lock_both(bool session)
{
	int			number;

	if (!lock_turn(MyDatabaseId, 0, session))
		return -1;
	number = lock_any(session);
	if (number < 0)
		unlock_turn(MyDatabaseId, 0, session);
	return number;
}

static void
unlock_both(int number, bool session)
{
	unlock_turn(InvalidOid, number, session);
	unlock_turn(MyDatabaseId, 0, session);
}

/* A worker's turn, until it gives it back; -1: other workers have all. */
int
IvfpqTurnTake(void)
{
	return lock_both(true);
}

void
IvfpqTurnGiveBack(int turn)
{
	unlock_both(turn, true);
}

/* Would a worker for this database have its turn now?  In a transaction. */
IvfpqTurnState
IvfpqTurnLook(void)
{
	int			number;

	if (!lock_turn(MyDatabaseId, 0, false))
		return IVFPQ_TURN_OURS;
	number = lock_any(false);
	if (number >= 0)
		unlock_turn(InvalidOid, number, false);
	unlock_turn(MyDatabaseId, 0, false);
	return number >= 0 ? IVFPQ_TURN_FREE : IVFPQ_TURN_TAKEN;
}

/* Has this worker, or one before it, run code of that owner? */
static bool
has_run(const IvfpqWorkerOrder *order, Oid owner)
{
	for (int i = 0; i < order->nowners; i++)
		if (order->owners[i] == owner)
			return true;
	return false;
}

/*
 * May this worker serve the index, as far as the code that does that is
 * concerned?  If not, the next worker begins with it, unless one has had its
 * turn with that owner or there were too many.
 */
bool
IvfpqTurnIsFor(IvfpqWorkerOrder *order, Relation index)
{
	Oid			owner = index->rd_rel->relowner;

	if (!OidIsValid(order->owner) || order->owner == owner ||
		!IvfpqIsInterpreted(index, true))
		return true;
	if (!OidIsValid(order->next) && !has_run(order, owner) &&
		order->nowners < IVFPQ_WORKER_OWNERS)
		order->next = RelationGetRelid(index);
	return false;
}

/* The same; the worker is going to serve it if it may. */
bool
IvfpqTurnUse(IvfpqWorkerOrder *order, Relation index)
{
	if (!IvfpqTurnIsFor(order, index))
		return false;
	if (!OidIsValid(order->owner) && IvfpqIsInterpreted(index, true))
	{
		order->owner = index->rd_rel->relowner;
		if (order->nowners < IVFPQ_WORKER_OWNERS)
			order->owners[order->nowners++] = order->owner;
	}
	return true;
}
