/*
 * recallgrid.h
 *		Recall grids: the recall for each number of lists and candidates, as
 *		the participants of a build or gpuvecd measure it (recallgrid.c).
 */
#ifndef IVFPQ_RECALLGRID_H
#define IVFPQ_RECALLGRID_H

#include "am/build/truth.h"
#include "am/common/model.h"
#include "client/client.h"
#include "page/page.h"

/* The calibration mirror: gpuvecd's mirror of an index that is being built. */
typedef struct IvfpqCalibMirror
{
	Relation	index;
	IvfpqBuilder *builder;		/* NULL: there is no mirror */
	IvfpqBuildShared *sharing;	/* state shared with other participants; or
								 * NULL */
	int			code_bytes;
	char	   *chunks;			/* [capacity] of lists, to be sent together */
	Size		capacity;
	Size		used;			/* bytes used of `chunks` */
	int			nchunks;
	GvChunkArrays arrays;		/* the last chunk's arrays */
	uint32		count;			/* postings added to this chunk */
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
extern bool IvfpqCalibMirrorRank(IvfpqCalibMirror *mirror,
								 const IvfpqMetaData *meta,
								 const float *queries, int n, int ranked,
								 GvTopK *lists);

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
