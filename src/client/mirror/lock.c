/*
 * lock.c
 *		An index under a loader's lock.
 *
 * A loader waits for no lock: a waiter would stand in the way of others.  It
 * tries, and tries again later.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/snapmgr.h"

#include "client/mirror/load.h"
#include "page/metapage.h"
#include "pgcompat.h"

/* How often, and how long, to try once a load is begun. */
#define RETRY_MS			50
#define MAX_TRIES			200

/*
 * No session wants to drop, rename or copy the database, for which sessions in
 * it have to end.  In a transaction.
 */
bool
IvfpqDatabaseIsFree(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, MyDatabaseId, 0);
	return LockAcquire(&tag, RowExclusiveLock, false, true) !=
		LOCKACQUIRE_NOT_AVAIL;
}

static void
nap(void)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 RETRY_MS, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/* Is the open relation the index that the mirror is to be of? */
static bool
is_the_one(IvfpqLoad *load)
{
	IvfpqStorage storage = IvfpqStorageOf(load->index);

	/* an OID may have been used again for anything */
	if (load->index->rd_rel->relkind != RELKIND_INDEX ||
		load->index->rd_rel->relam != get_index_am_oid("gpuivfpq", true) ||
		!load->index->rd_index->indisvalid ||
		storage.database != load->key.database ||
		storage.tablespace != load->key.tablespace ||
		storage.number != load->key.relation)
		return false;
	IvfpqMetaRead(load->index, &load->meta);
	if (load->meta.build_id != load->key.build_id ||
		!IvfpqCanMirror(load->index, &load->meta))
		return false;
	strlcpy(load->name, RelationGetRelationName(load->index),
			sizeof(load->name));
	return true;
}

/*
 * Begin a transaction and lock the index in it.  IVFPQ_LOAD_DONE: load->index
 * is open, load->meta as of now.  Otherwise no transaction is left.  Waits for
 * the lock only once the load has begun; before, a locked index would keep
 * other mirrors waiting.
 */
IvfpqLoadResult
IvfpqLoadLock(IvfpqLoad *load)
{
	for (int tries = 0; tries < MAX_TRIES; tries++)
	{
		if (tries > 0)
			nap();
		StartTransactionCommand();
		if (!IvfpqDatabaseIsFree())
		{
			CommitTransactionCommand();
			strlcpy(load->error, "the database is wanted by others",
					sizeof(load->error));
			return IVFPQ_LOAD_YIELD;
		}
		if (!ConditionalLockRelationOid(load->key.index, AccessShareLock))
		{
			CommitTransactionCommand();
			strlcpy(load->error, "the index is locked", sizeof(load->error));
			if (load->capacity == 0)
				return IVFPQ_LOAD_LOCKED;
			continue;
		}
		load->index = try_relation_open(load->key.index, NoLock);
		if (load->index != NULL && is_the_one(load))
		{
			/* pages need no snapshot, and VACUUM would spare what it sees */
			InvalidateCatalogSnapshot();
			load->reader.index = load->index;
			return IVFPQ_LOAD_DONE;
		}
		if (load->index != NULL)
			relation_close(load->index, NoLock);
		load->index = NULL;
		CommitTransactionCommand();
		strlcpy(load->error, "the index is not what it was",
				sizeof(load->error));
		return IVFPQ_LOAD_GONE;
	}
	return IVFPQ_LOAD_FAILED;
}

/* End the transaction, and unlock the index. */
void
IvfpqLoadUnlock(IvfpqLoad *load)
{
	relation_close(load->index, AccessShareLock);
	load->index = NULL;
	load->reader.index = NULL;
	CommitTransactionCommand();
}
