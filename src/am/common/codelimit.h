/*
 * codelimit.h
 *		The limit on an index owner's code that a worker runs (codelimit.c).
 */
#ifndef IVFPQ_CODELIMIT_H
#define IVFPQ_CODELIMIT_H

extern int	ivfpq_training_timeout;

/* Rows that this process has read; for IvfpqRowDone only. */
extern volatile uint32 ivfpq_rows_done;

/* A row was read: what the index has of it is computed. */
static inline void
IvfpqRowDone(void)
{
	ivfpq_rows_done++;
}

/* Why the process ends. */
typedef enum IvfpqLimitHit
{
	IVFPQ_LIMIT_NONE,
	IVFPQ_LIMIT_ROW,			/* no row was read for too long */
	IVFPQ_LIMIT_CANCEL			/* a cancellation was not heeded */
} IvfpqLimitHit;

extern void IvfpqLimitInit(void);
extern void IvfpqLimitBegin(void);
extern void IvfpqLimitCancel(void);
extern void IvfpqLimitEnd(void);
extern IvfpqLimitHit IvfpqLimitIsHit(void);

#endif							/* IVFPQ_CODELIMIT_H */
