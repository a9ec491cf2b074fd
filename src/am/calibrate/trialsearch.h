/*
 * trialsearch.h
 *		The calibration mirror: an index that is being built, searched by
 *		gpuvecd (trialsearch.c).
 */
#ifndef IVFPQ_TRIALSEARCH_H
#define IVFPQ_TRIALSEARCH_H

#include "client/client.h"
#include "page/page.h"

typedef struct IvfpqCalibMirror
{
	Relation	index;
	IvfpqBuilder *builder;		/* NULL: there is no mirror */
	IvfpqSharing *sharing;		/* with other participants; or NULL */
	int			code_bytes;
	char	   *message;		/* [capacity] GvListsRequest and chunks */
	Size		capacity;
	Size		used;
	uint32	   *live;			/* where the arrays of the chunk at hand lie */
	float	   *t;
	ItemPointerData *tids;
	uint8	   *codes;
	uint32		count;			/* of its postings that are there */
} IvfpqCalibMirror;

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
extern bool IvfpqCalibMirrorSearch(IvfpqCalibMirror *mirror,
								   const float *queries, int n,
								   int dims, int probes, int compare, int capacity,
								   const int32 **nhits,
								   const ItemPointerData **tids);

#endif							/* IVFPQ_TRIALSEARCH_H */
