/*
 * snapshot.c
 *		The snapshot under which a background worker reads rows.
 *
 * Reading takes an active snapshot, for values out of line and for the
 * functions of an index.  In a session that is the statement's, and stays.  A
 * worker runs no statement: it takes newer snapshots as it goes on, and has
 * none while it computes.  VACUUM, of any table, spares what the oldest
 * snapshot sees, and clustering may take hours.
 */
#include "postgres.h"

#include "utils/snapmgr.h"

#include "am/common/snapshot.h"

/* Is this a worker, on whose active snapshot no caller relies? */
static bool ours = false;

/* From here on this process may be without a snapshot. */
void
IvfpqSnapshotsAreOurs(void)
{
	ours = true;
}

/*
 * Rows are going to be read.  At READ COMMITTED this is a new snapshot, in
 * parallel mode, too.
 */
void
IvfpqSnapshotTake(void)
{
	if (ours)
		PushActiveSnapshot(GetTransactionSnapshot());
}

/* No more rows are read for a while. */
void
IvfpqSnapshotDrop(void)
{
	if (ours)
		PopActiveSnapshot();
	IvfpqSnapshotForget();
}

/* Catalogs may have been read, which leaves a snapshot, too. */
void
IvfpqSnapshotForget(void)
{
	if (ours)
		InvalidateCatalogSnapshot();
}

/* So far rows have been read; more will be. */
void
IvfpqSnapshotRenew(void)
{
	IvfpqSnapshotDrop();
	IvfpqSnapshotTake();
}
