/*
 * options.h
 *		Options of CREATE INDEX, and settings of scans, plans and training
 *		(options.c, planner/custompath.c).
 */
#ifndef IVFPQ_OPTIONS_H
#define IVFPQ_OPTIONS_H

#include "utils/relcache.h"

/* Maximum of option and setting `candidates`. */
#define IVFPQ_MAX_CANDIDATES	1000000

/* Options of CREATE INDEX; 0 = not given, unless stated otherwise. */
typedef struct IvfpqOptions
{
	int32		vl_len_;		/* varlena header (do not touch directly!) */
	int			lists;
	int			pq_dim;
	int			probes;
	int			candidates;
	int			dims;
	int			spill;			/* -1 = not given */
	int			train_rows;
	int			refine;			/* IvfpqRefine */
	int			calibrated_for; /* IvfpqCalibratedFor */
	bool		rotate;
	bool		auto_calibrate;
} IvfpqOptions;

typedef enum IvfpqOrder
{
	IVFPQ_ORDER_STRICT,
	IVFPQ_ORDER_RELAXED
} IvfpqOrder;

typedef enum IvfpqUseIndex
{
	IVFPQ_USE_AUTO,				/* use the index where it costs least */
	IVFPQ_USE_ALWAYS,			/* use it in place of other methods' indexes */
	IVFPQ_USE_NEVER
} IvfpqUseIndex;

/* Settings.  For probes, candidates and max_probes, 0 means not set. */
extern int	ivfpq_probes;
extern int	ivfpq_candidates;
extern int	ivfpq_order;
extern int	ivfpq_use_index;
extern int	ivfpq_max_probes;
extern double ivfpq_recall;
extern double ivfpq_radius_recall;
extern int	ivfpq_max_training_workers;
extern bool ivfpq_enable_custom_scan;
extern bool ivfpq_keep_queries;
extern bool ivfpq_auto_calibrate;

extern void IvfpqInitOptions(void);
extern bytea *ivfpqoptions(Datum reloptions, bool validate);
extern bool IvfpqIsOurs(Relation index);
extern bool IvfpqIsOursByOid(Oid indexoid);
extern const IvfpqOptions *IvfpqGetOptions(Relation index);
extern int	IvfpqLeastRows(Relation index);
extern int	IvfpqTrainRows(Relation index);
extern int	IvfpqDefaultLists(double rows);
extern Size IvfpqMemoryLimit(void);

#endif							/* IVFPQ_OPTIONS_H */
