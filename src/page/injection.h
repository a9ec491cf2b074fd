/*
 * injection.h
 *		Injection points, at which tests stop a backend.
 *
 * An operation that takes many WAL records has named steps between the
 * records.  No page is locked at a step.  The test build (make TEST_BUILD=1)
 * has the setting gpuvec.fault, whose value is "ACTION N STEP".  At the N-th
 * step that has the name STEP, or at the N-th step of any name if STEP is '*',
 * the process performs ACTION:
 *		kill	dies as if by kill -9
 *		flush	flushes its last WAL record to disk, and then dies as above
 *		error	raises an error
 *		memory	raises the error for a lack of shared memory
 *		wait	waits for advisory lock (0, IVFPQ_INJECTION_POINT_LOCK)
 */
#ifndef IVFPQ_INJECTION_H
#define IVFPQ_INJECTION_H

#define IVFPQ_INJECTION_POINT_LOCK	26486

#ifdef GV_TEST_BUILD

/* The setting gpuvec.fault; NULL or empty = no fault. */
extern char *ivfpq_injection_point;

extern void IvfpqInjectionPointReset(void);
extern void IvfpqInjectionPointReached(const char *step);

#define IvfpqInjectionPoint(step) \
	do { \
		if (ivfpq_injection_point != NULL) \
			IvfpqInjectionPointReached(step); \
	} while (0)

#else
#define IvfpqInjectionPoint(step) ((void) 0)
#endif

#endif							/* IVFPQ_INJECTION_H */
