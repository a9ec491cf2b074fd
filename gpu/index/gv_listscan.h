/*
 * gv_listscan.h
 *		Large batches, scanned list by list: what the kernels of that hand each
 *		other, and their launchers.
 *
 * Parts of a batch are gathered (gather.cu).  Of each part, when its lists are
 * chosen: its queries in 8 bits, their margins, a limit of each from its
 * nearest lists, and how many queries meet each list (rough.cu).
 * Of all of them together: who meets which list (meet.cu), and postings that
 * may be among the best, list by list, from approximate scores (listscan.cu).
 * Then of each part again: exact scores of these (rescore.cu), and what
 * follows any scan.
 */
#ifndef GV_LISTSCAN_H
#define GV_LISTSCAN_H

#include "gpu/common/gv_batch.h"

#define GV_ROUGH_SUBS		8	/* sub-quantizers of a step of products */
#define GV_ROUGH_DIMS		4	/* dimensions of one, at most */
#define GV_ROUGH_CHUNKS		8	/* of a posting's codes, at most */
#define GV_PAIRS_TOGETHER		32	/* queries that a list is scanned for at
									 * once */
#define GV_NEAR_CAPACITY		2048	/* postings of a query that may be
										 * among the best */

/* How far a query's approximate scores can be trusted; see rough.cu. */
struct GvAim
{
	float		scale;			/* of a sum of products of 8 bits */
	float		margin;			/* infinite: they cannot be */
	float		most;			/* they cannot be where T, a list's score, or
								 * the limit is larger */
	float		limit;			/* no larger S is among the best; infinite:
								 * unknown */
};

/* A posting that may be among a query's best. */
struct GvNearScore
{
	float		score;			/* approximate */
	uint32_t	place;			/* its number among the query's postings */
};

/* A query meets a list. */
struct alignas(16) GvPairing
{
	float		scale;			/* GvAim's */
	float		limit;			/* of a posting's sum, scaled, and T */
	float		base;			/* the list's score */
	float		most;			/* of T; negative: nothing is known */
	uint32_t	query;			/* of all that are gathered */
	uint32_t	first;			/* number of the list's first posting among its
								 * own */
	uint32_t	unused[2];
};

/* Some queries that meet a list, up to GV_PAIRS_TOGETHER. */
struct GvPairGroup
{
	uint32_t	list;
	uint32_t	first;			/* of d_pairs */
	uint32_t	n;
	uint32_t	unused;
};

/*
 * Arrays of queries are those of all that are gathered, or, given to a step of
 * a part, the part's.
 */
struct GvListScan
{
	int32_t		steps;			/* of products: GV_ROUGH_SUBS each */
	int32_t		first;			/* the part's first query */
	int32_t		most_groups;		/* room in d_groups */
	uint32_t   *d_words;		/* [steps][8][16] codewords in 8 bits: that of
								 * sub-quantizer 8s + 2t + h is [s][4h + t] */
	float	   *d_units;		/* [8 * steps] what 1 of them stands for */
	uint32_t   *d_queries;		/* [n][8 * steps] in 8 bits */
	GvAim	   *d_aims;			/* [n] */
	uint32_t   *d_counts;		/* [n] postings near enough; more than there is
								 * room for: unknown */
	uint32_t   *d_whole;		/* [n] GvBatch's */
	GvNearScore *d_near;		/* [n][GV_NEAR_CAPACITY] */
	uint32_t   *d_starts;		/* [nlists] first how many meet each list,
								 * then where they are entered next */
	GvPairing  *d_pairs;		/* [n * probes] by list */
	GvPairGroup	   *d_groups;
	unsigned long long *d_totals;	/* pairs that have a place in d_pairs, and
									 * times 2^32 groups that have one */
};

/* rough.cu */
extern GvStatus gv_gpu_rough_words(const GvDeviceModel *model,
								   const GvListScan *lists,
								   cudaStream_t stream);
extern GvStatus gv_gpu_aim(const GvDeviceModel *model, const GvBatch *batch,
						   const GvListScan *lists, cudaStream_t stream);

/* meet.cu */
extern GvStatus gv_gpu_order_pairs(const GvDeviceModel *model,
							const GvListScan *lists, cudaStream_t stream);
extern GvStatus gv_gpu_enter(const GvBatch *batch, const GvListScan *lists,
							 cudaStream_t stream);

/* listscan.cu */
extern GvStatus gv_gpu_list_scan(const GvDeviceModel *model,
								 const GvListScan *lists, cudaStream_t stream);

/* rescore.cu */
extern GvStatus gv_gpu_rescore(const GvDeviceModel *model,
							   const GvBatch *batch,
							   const GvListScan *lists, cudaStream_t stream);

#endif							/* GV_LISTSCAN_H */
