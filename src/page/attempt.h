/*
 * attempt.h
 *		Running work whose errors do not abort the statement.
 */
#ifndef IVFPQ_ATTEMPT_H
#define IVFPQ_ATTEMPT_H

extern ErrorData *IvfpqAttempt(void (*work) (void *arg), void *arg);

#endif							/* IVFPQ_ATTEMPT_H */
