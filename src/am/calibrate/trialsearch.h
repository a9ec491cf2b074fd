/*
 * trialsearch.h
 *		An index in the making, searched by gpuvecd (trialsearch.c).
 */
#ifndef IVFPQ_TRIALSEARCH_H
#define IVFPQ_TRIALSEARCH_H

#include "client/client.h"
#include "page/page.h"

typedef struct IvfpqTrial
{
	Relation	index;
	IvfpqBuilder *builder;		/* NULL: there is no trial */
	IvfpqSharing *sharing;		/* with other participants; or NULL */
	int			code_bytes;
	char	   *message;		/* [room] GvListsRequest and pieces */
	Size		room;
	Size		used;
	uint32	   *live;			/* where the arrays of the piece at hand lie */
	float	   *t;
	ItemPointerData *tids;
	uint8	   *codes;
	uint32		count;			/* of its copies that are there */
} IvfpqTrial;

extern void IvfpqTrialJoin(IvfpqTrial *trial, Relation index,
						   IvfpqBuilder *builder, IvfpqSharing *sharing,
						   int code_bytes);
extern void IvfpqTrialBegin(IvfpqTrial *trial, int64 postings);
extern void IvfpqTrialAgree(IvfpqTrial *trial);
extern void IvfpqTrialList(IvfpqTrial *trial, int list, uint32 npostings);
extern void IvfpqTrialAdd(IvfpqTrial *trial, const IvfpqPosting *posting);
extern void IvfpqTrialFlush(IvfpqTrial *trial);
extern bool IvfpqTrialSearch(IvfpqTrial *trial, const float *queries, int n,
							 int dims, int probes, int compare, int capacity,
							 const int32 **nhits,
							 const ItemPointerData **tids);

#endif							/* IVFPQ_TRIALSEARCH_H */
