/*
 * injection.h
 *		Injection points, at which tests make a backend stop.
 *
 * Work that is many records long names the places between two of them; no lock
 * on a page is held there.  The test build (make TEST_BUILD=1) has the setting
 * gpuvec.fault, "ACTION N STEP": at the N-th step of that name (any, if STEP
 * is '*')
 *		kill	the process dies, as by kill -9
 *		flush	the same, when its last record is on disk
 *		error	an error is raised
 *		memory	one that says that shared memory is not to be had
 *		wait	the process waits for advisory lock (0, IVFPQ_INJECTION_POINT_LOCK)
 */
#ifndef IVFPQ_INJECTION_H
#define IVFPQ_INJECTION_H

#define IVFPQ_INJECTION_POINT_LOCK	26486

#ifdef GV_TEST_BUILD

/* NULL or empty: no fault. */
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
