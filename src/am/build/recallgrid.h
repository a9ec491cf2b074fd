/*
 * recallgrid.h
 *		Recall grids: recall by lists and candidates, measured by the
 *		participants of a build or by gpuvecd (recallgrid.c).
 */
#ifndef IVFPQ_RECALLGRID_H
#define IVFPQ_RECALLGRID_H

#include "am/build/truth.h"
#include "am/common/model.h"
#include "client/client.h"
#include "page/page.h"

/* The mirror that gpuvecd has of an index that is being built. */
typedef struct IvfpqCalibMirror
{
	Relation	index;
	IvfpqBuilder *builder;		/* NULL: there is no mirror */
	IvfpqSharing *sharing;		/* with other participants; or NULL */
	int			code_bytes;
	char	   *message;		/* [capacity] GvListsRequest and chunks */
	Size		capacity;
	Size		used;			/* 0: no message is begun */
	uint32	   *live;			/* where the arrays of the last chunk lie */
	float	   *t;
	ItemPointerData *tids;
	uint8	   *codes;
	uint32		count;			/* postings of that chunk so far */
} IvfpqCalibMirror;

typedef struct IvfpqRecallGrid IvfpqRecallGrid;

extern void IvfpqCalibMirrorBegin(IvfpqCalibMirror *mirror, Relation index,
								  IvfpqBuilder *builder,
								  IvfpqParallel *parallel, int code_bytes);
extern void IvfpqCalibMirrorList(IvfpqCalibMirror *mirror, int list,
								 uint32 npostings);
extern void IvfpqCalibMirrorAdd(IvfpqCalibMirror *mirror,
								const IvfpqPosting *posting);
extern void IvfpqCalibMirrorFlush(IvfpqCalibMirror *mirror);

extern IvfpqRecallGrid *IvfpqRecallGridBegin(const IvfpqCalibration *calibration,
											 Relation index,
											 const IvfpqModel *model,
											 IvfpqCalibMirror *mirror,
											 IvfpqParallel *parallel);
extern int	IvfpqRecallGridMeasure(IvfpqRecallGrid *grid,
								   const IvfpqGridSpec *spec, double z,
								   IvfpqMetaData *meta);
extern void IvfpqRecallGridHelp(IvfpqCalibration *calibration, Relation index,
								IvfpqParallel *parallel);

#endif							/* IVFPQ_RECALLGRID_H */
