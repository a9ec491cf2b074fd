/*
 * params.h
 *		Search parameters (params.c).
 */
#ifndef IVFPQ_PARAMS_H
#define IVFPQ_PARAMS_H

#include "page/page.h"

/* The highest recall for which every calibration finds search parameters. */
#define IVFPQ_SURE_RECALL		0.99

/*
 * Search parameters for recalls above IVFPQ_SURE_RECALL are extrapolated from
 * this target and the highest target that calibration reached.
 */
#define IVFPQ_LOWER_RECALL		0.95

/* The quota of the first batch of a scan whose limit is not known. */
#define IVFPQ_FIRST_ROWS		10

/*
 * A search for up to this many rows compares the lists of the nearest parents
 * only.  A search for more rows compares all lists.
 */
#define IVFPQ_PARENTS_ROWS	100

/* Smaller selectivities are raised to this value: we divide by them. */
#define IVFPQ_LEAST_SELECTIVITY		1e-9

/*
 * Times of one core in nanoseconds, by which the costs of different ways of
 * finding rows are compared.  They were measured with AVX-512, and with pages
 * that are in shared buffers but not in the processor's cache.
 */
#define IVFPQ_LOOKUP_NS			0.06	/* one sub-quantizer of a posting,
										 * including the time to read it */
#define IVFPQ_FETCH_NS			400.0	/* fetching a row of the heap */
#define IVFPQ_DIMENSION_NS		0.8 /* one dimension of that row's distance */
#define IVFPQ_RECORD_NS			300.0	/* reading a refine record instead of
										 * fetching a row */
#define IVFPQ_RECORD_DIMENSION_NS	0.4

typedef struct IvfpqSearchParams
{
	int			probes;
	int			candidates;
	int64		quota;			/* rows that the scan has returned by the end
								 * of this batch */
	bool		read_all;		/* read all lists and rerank all rows */
	bool		recall_unreached;	/* calibration did not reach the recall at
									 * this depth */
	bool		calibrated;		/* calibration reached the recall at this
								 * depth */
	bool		beyond_parents; /* the depth exceeds IVFPQ_PARENTS_ROWS */
} IvfpqSearchParams;

extern int	IvfpqFormulaProbes(const IvfpqMetaData *meta);
extern int	IvfpqFormulaCandidates(const IvfpqMetaData *meta);
extern double IvfpqSearchNs(const IvfpqMetaData *meta, double rows,
							double probes, double candidates, bool deep);
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

#endif							/* IVFPQ_PARAMS_H */
