/*
 * attempt.h
 *		Work that may fail without the statement (attempt.c).
 */
#ifndef IVFPQ_ATTEMPT_H
#define IVFPQ_ATTEMPT_H

/*
 * Do something in a subtransaction.  NULL, or the error that ended it, in the
 * caller's memory; a canceled statement is canceled.  Not in parallel mode.
 */
extern ErrorData *IvfpqAttempt(void (*work) (void *arg), void *arg);

#endif							/* IVFPQ_ATTEMPT_H */
