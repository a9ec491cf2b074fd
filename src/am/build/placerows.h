/*
 * placerows.h
 *		Rows get lists, codes and refine records, in batches (placerows.c).
 */
#ifndef IVFPQ_PLACEROWS_H
#define IVFPQ_PLACEROWS_H

#include "am/calibrate/calibrate.h"
#include "am/train/train.h"
#include "am/types/vector.h"
#include "client/client.h"

/* Takes rows [n] with their lists and codes; keys [n] or NULL. */
typedef void (*IvfpqPlacedSink) (void *arg, const uint64 *ids,
								 const IvfpqKeyAbbrevs *keys,
								 const GvEncoded *encoded, int n);

typedef struct IvfpqPlacer
{
	Relation	index;
	IvfpqType	type;
	const IvfpqTraining *training;
	IvfpqBuilder *builder;		/* of gpuvecd; NULL: rows are placed here */
	IvfpqSharing *sharing;		/* rows that it has from training; or NULL */
	int64		at;				/* place of these in a pass over the table */
	IvfpqCalibration *calibration;	/* NULL: too few rows */
	IvfpqRefine refine;
	IvfpqPlacedSink sink;
	void	   *sink_arg;

	/* keys of rows that gpuvecd has, in the order in which they come back */
	IvfpqKeyAbbrevs *sent;		/* [max_sent], of which first_sent .. end_sent
								 * - 1 */
	int64		first_sent;
	int64		end_sent;
	int64		max_sent;

	/* rows that wait to be placed here */
	int			batch_rows;		/* capacity; 0 = nothing is allocated */
	int			nbatch;
	float	   *batch;			/* [batch_rows][dims] */
	uint64	   *ids;			/* [batch_rows] */
	IvfpqKeyAbbrevs *keys;		/* [batch_rows], if there are keys */
	bool	   *boundable;		/* [batch_rows], if refine */
	int			nparts;			/* participants that share the memory */
	GvGroups	groups;
	void	   *scratch;		/* of gv_place */
	GvEncoded	encoded;		/* arrays for batch_rows rows */
	MemoryContext context;		/* that has all this */
} IvfpqPlacer;

extern void IvfpqPlacerBegin(IvfpqPlacer *placer, Relation index,
							 const IvfpqTraining *training, int nparts,
							 IvfpqSharing *sharing,
							 IvfpqCalibration *calibration, IvfpqRefine refine,
							 IvfpqPlacedSink sink, void *sink_arg);
extern bool IvfpqPlacerWants(IvfpqPlacer *placer, uint64 id);
extern void IvfpqPlacerFlush(IvfpqPlacer *placer);
extern void IvfpqPlacerAdd(IvfpqPlacer *placer, const float *row, uint64 id,
						   const IvfpqKeyAbbrevs *keys);
extern IvfpqBuilder *IvfpqPlacerEnd(IvfpqPlacer *placer);

#endif							/* IVFPQ_PLACEROWS_H */
