/*
 * gv_cpu_mirror.h
 *		What the files of the portable mirrors share.
 */
#ifndef GV_CPU_MIRROR_H
#define GV_CPU_MIRROR_H

#include "engine/gv_mirror.h"

/*
 * A list's blocks in one piece of memory, `stride` bytes each:
 *		float t [GV_BLOCK], uint16 rowids [GV_BLOCK][3],
 *		uint8 codes [code_bytes][GV_BLOCK], uint32 live
 */
typedef struct GvCpuList
{
	int32_t		nblocks;
	int32_t		room;			/* blocks that the memory holds */
	char	   *blocks;
} GvCpuList;

struct GvMirror
{
	GvMirrorSpec spec;
	GvModel		model;			/* its codebooks are the array's */
	size_t		stride;			/* bytes of a block */
	void	   *arrays[GV_NARRAYS];
	int64_t		lengths[GV_NARRAYS];	/* elements */
	bool		covered;		/* starts are an ascending cover of lists */
	GvCpuList  *lists;			/* [nlists] */
	int64_t		bytes;
};

/* Block b of a list, as gv_scan wants it. */
extern GvBlock gv_cpu_block(const GvMirror *mirror, const GvCpuList *list,
							int32_t b);

/* hits.c: search->hits as a heap until it is sorted. */
extern void gv_cpu_hit(GvSearch *search, float score, uint64_t id,
					   uint32_t probe);
extern void gv_cpu_worst_hit(const GvSearch *search, float *score,
							 uint64_t *id);
extern void gv_cpu_sort_hits(GvSearch *search);

/* search.c: slots of gv_cpu_mirrors. */
extern GvStatus gv_cpu_searcher(GvSearcher **searcher);
extern void gv_cpu_searcher_drop(GvSearcher *searcher);
extern GvStatus gv_cpu_mirror_search(GvSearcher *searcher, GvMirror *mirror,
									 GvSearch *searches, int32_t n);

#endif							/* GV_CPU_MIRROR_H */
