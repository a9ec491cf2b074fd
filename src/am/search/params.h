/*
 * params.h
 *		Search parameters, and the limit on an index owner's code (params.c).
 */
#ifndef IVFPQ_PARAMS_H
#define IVFPQ_PARAMS_H

#include "page/page.h"

/* The highest recall that every calibration tells. */
#define IVFPQ_SURE_RECALL		0.99

/* Parameters for recalls beyond that are extrapolated from it and this one. */
#define IVFPQ_LOWER_RECALL		0.95

/* The quota of the first batch of a scan that knows no limit. */
#define IVFPQ_FIRST_ROWS		10

/*
 * A search for up to this many rows goes through parents; for more all lists
 * are compared.
 */
#define IVFPQ_PARENTS_ROWS	100

/* The least selectivity that is told from zero. */
#define IVFPQ_LEAST_SELECTIVITY		1e-9

/*
 * Nanoseconds of one core, for weighing one way against another: with AVX-512,
 * pages in shared buffers but not in the processor's cache.
 */
#define IVFPQ_LOOKUP_NS			0.06	/* a sub-quantizer of a posting,
										 * reading it, too */
#define IVFPQ_FETCH_NS			400.0	/* a row of the heap */
#define IVFPQ_DIMENSION_NS		0.8 /* of that row's distance */
#define IVFPQ_RECORD_NS			300.0	/* a refine record instead */
#define IVFPQ_RECORD_DIMENSION_NS	0.4

typedef struct IvfpqSearchParams
{
	int			probes;
	int			candidates;
	int64		quota;			/* rows returned by the end of the batch */
	bool		read_all;		/* read all lists and rerank all rows */
	bool		recall_unreached;	/* calibration did not reach the recall at
									 * this depth */
	bool		calibrated;		/* calibration reached the recall at it */
	bool		beyond_parents; /* the depth exceeds IVFPQ_PARENTS_ROWS */
} IvfpqSearchParams;

extern int	IvfpqFormulaProbes(const IvfpqMetaData *meta);
extern int	IvfpqFormulaCandidates(const IvfpqMetaData *meta);
extern double IvfpqBeyondTargets(double recall, double known, double lower,
								 double upper);
extern void IvfpqParamsForRows(IvfpqSearchParams *params, Relation index,
							   const IvfpqMetaData *meta, double recall,
							   double rows);
extern void IvfpqParamsForMatches(IvfpqSearchParams *params, Relation index,
								  const IvfpqMetaData *meta, double recall,
								  double rows, double spread);
extern double IvfpqSpreadRows(double rows, bool by_keys);
extern int	IvfpqKeyCandidates(int candidates, double selectivity);
extern double IvfpqKnownRows(const IvfpqMetaData *meta, double recall);
extern double IvfpqBatchRows(Relation index, const IvfpqMetaData *meta,
							 double rows_needed);
extern void IvfpqParamsForBatch(IvfpqSearchParams *params, Relation index,
								const IvfpqMetaData *meta, double recall,
								int batch);

/* setting gpuvec.training_timeout, milliseconds; 0 = none */
extern int	ivfpq_training_timeout;

/* Rows that this process has read; for IvfpqRowDone only. */
extern volatile uint32 ivfpq_rows_done;

/* Notes that a row was read, and what the index has of it was computed. */
static inline void
IvfpqRowDone(void)
{
	ivfpq_rows_done++;
}

/* The limit for which the process ends. */
typedef enum IvfpqLimitHit
{
	IVFPQ_LIMIT_NONE,
	IVFPQ_LIMIT_ROW,			/* no row was read for too long */
	IVFPQ_LIMIT_CANCEL			/* a cancellation was not heeded in time */
} IvfpqLimitHit;

extern void IvfpqLimitInit(void);
extern void IvfpqLimitBegin(void);
extern void IvfpqLimitCancel(void);
extern void IvfpqLimitEnd(void);
extern IvfpqLimitHit IvfpqLimitIsHit(void);

#endif							/* IVFPQ_PARAMS_H */
