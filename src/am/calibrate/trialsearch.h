/*
 * trialsearch.h
 *		An index in the making, searched by gpuvecd (trialsearch.c).
 */
#ifndef IVFPQ_TRIALSEARCH_H
#define IVFPQ_TRIALSEARCH_H

#include "client/client.h"
#include "page/page.h"

typedef struct IvfpqCalibMirror
{
	Relation	index;
	IvfpqBuilder *builder;		/* NULL: there is no trial */
	IvfpqSharing *sharing;		/* with other participants; or NULL */
	int			code_bytes;
	char	   *message;		/* [room] GvListsRequest and pieces */
	Size		capacity;
	Size		used;
	uint32	   *live;			/* where the arrays of the piece at hand lie */
	float	   *t;
	ItemPointerData *tids;
	uint8	   *codes;
	uint32		count;			/* of its copies that are there */
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
