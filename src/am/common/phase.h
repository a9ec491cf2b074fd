/*
 * phase.h
 *		Build phases for pg_stat_progress_create_index; core owns
 *		PROGRESS_CREATEIDX_SUBPHASE_INITIALIZE = 1.
 */
#ifndef IVFPQ_PHASE_H
#define IVFPQ_PHASE_H

#define IVFPQ_PHASE_SAMPLING	2
#define IVFPQ_PHASE_CLUSTERING	3
#define IVFPQ_PHASE_CODES		4
#define IVFPQ_PHASE_ASSIGNING	5
#define IVFPQ_PHASE_WRITING		6
#define IVFPQ_PHASE_CALIBRATING	7

#endif							/* IVFPQ_PHASE_H */
