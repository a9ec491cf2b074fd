/*
 * injection.h
 *		Injection points, where tests stop a backend.
 *
 * Work that takes many WAL records names the steps between two of them.  No
 * lock on a page is held at a step.  The test build (make TEST_BUILD=1) has the
 * setting gpuvec.fault, "ACTION N STEP": at the N-th step of that name, or the
 * N-th of any name if STEP is '*', the process does one of these.
 *		kill	dies as by kill -9
 *		flush	dies likewise, when its last record is on disk
 *		error	raises an error
 *		memory	raises the error for a lack of shared memory
 *		wait	waits for advisory lock (0, IVFPQ_INJECTION_POINT_LOCK)
 */
#ifndef IVFPQ_INJECTION_H
#define IVFPQ_INJECTION_H

#define IVFPQ_INJECTION_POINT_LOCK	26486

#ifdef GV_TEST_BUILD

/* The setting; NULL or empty = no fault. */
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
