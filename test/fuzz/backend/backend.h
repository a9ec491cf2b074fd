/*
 * backend.h
 *		As much of a PostgreSQL session, in memory, as page/ and what reads
 *		indexes ask for: pages and their locks (buffers.c), records (records.c),
 *		memory and errors (session.c).
 *
 * It is stricter than a server: a page that is locked twice by the session,
 * which there waits for itself without end, is a fault; so is an error that
 * no damage should raise, a request for more memory than any of these indexes
 * needs, a lock or pin that is left, and what reads pages without end.
 */
#ifndef BACKEND_H
#define BACKEND_H

#include "postgres.h"

#include "storage/buf.h"
#include "storage/bufpage.h"
#include "utils/rel.h"

#include "fuzz.h"

/* The server's are not linked. */
#undef printf
#undef fprintf
#undef snprintf
#undef vsnprintf
#undef qsort

/* Each page is memory of its own: what reads beyond it is seen. */
#define MOST_PAGES		512

/* An index of a session's own, and how many pages its table has. */
extern RelationData backend_index;
extern RelationData backend_table;
#define TABLE_PAGES		20

/* The files, as a test sees them. */
extern void *backend_pages[MOST_PAGES]; /* [backend_npages][BLCKSZ] */
extern BlockNumber backend_npages;
extern void backend_set_npages(BlockNumber n);
extern void backend_set_free_space(BlockNumber blkno, Size bytes);
extern void backend_clear(void);

/*
 * Do something as a statement would: false if it raised an error that a
 * damaged index may raise.  Its memory is freed.
 */
extern bool backend_keeps_nothing(void);
typedef void (*BackendAct) (void *arg);
extern char backend_error[512]; /* what was raised */
extern bool backend_try(const char *name, BackendAct act, void *arg);

/* what session.c and buffers.c tell each other */
extern bool backend_holds_nothing(void);
extern void backend_let_go(void);
extern int64 backend_reads;		/* of pages, by this act */
#define MOST_READS		200000

#endif							/* BACKEND_H */
