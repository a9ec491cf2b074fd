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
	Size		used;
	uint32	   *live;			/* where the arrays of the last chunk lie */
	float	   *t;
	ItemPointerData *tids;
	uint8	   *codes;
	uint32		count;			/* postings of that chunk so far */
} IvfpqCalibMirror;

typedef struct IvfpqRecallGrid IvfpqRecallGrid;

extern void IvfpqCalibMirrorJoin(IvfpqCalibMirror *mirror, Relation index,
								 IvfpqBuilder *builder, IvfpqSharing *sharing,
								 int code_bytes);
extern void IvfpqCalibMirrorBegin(IvfpqCalibMirror *mirror, int64 postings);
extern void IvfpqCalibMirrorAgree(IvfpqCalibMirror *mirror);
extern void IvfpqCalibMirrorList(IvfpqCalibMirror *mirror, int list,
								 uint32 npostings);
extern void IvfpqCalibMirrorAdd(IvfpqCalibMirror *mirror,
								const IvfpqPosting *posting);
extern void IvfpqCalibMirrorFlush(IvfpqCalibMirror *mirror);

extern IvfpqRecallGrid *IvfpqRecallGridBegin(IvfpqCalibration *calibration,
											 Relation index, const IvfpqModel *model,
											 IvfpqParallel *parallel);
extern void IvfpqRecallGridMeasure(IvfpqRecallGrid *grid,
								   IvfpqCalibMirror *mirror,
								   const IvfpqGridSpec *spec);
extern void IvfpqRecallGridHelp(IvfpqCalibration *calibration, Relation index,
								IvfpqParallel *parallel);
extern void IvfpqRecallGridEnd(IvfpqRecallGrid *grid);
extern int	IvfpqCheapest(const IvfpqRecallGrid *grid, double z,
						  IvfpqMetaData *meta);

#endif							/* IVFPQ_RECALLGRID_H */
