/*
 * snapshot.h
 *		Snapshots under which a background worker reads rows (snapshot.c).
 */
#ifndef IVFPQ_SNAPSHOT_H
#define IVFPQ_SNAPSHOT_H

extern void IvfpqSnapshotsAreOurs(void);
extern void IvfpqSnapshotTake(void);
extern void IvfpqSnapshotDrop(void);
extern void IvfpqSnapshotForget(void);
extern void IvfpqSnapshotRenew(void);

#endif							/* IVFPQ_SNAPSHOT_H */
