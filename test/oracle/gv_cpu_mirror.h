/*
 * gv_cpu_mirror.h
 *		What the files of the portable mirrors share.
 */
#ifndef GV_CPU_MIRROR_H
#define GV_CPU_MIRROR_H

#include "test/oracle/gv_oracle.h"

/*
 * A list's blocks in one allocation, `stride` bytes each, a multiple of 8:
 *		keys, float t [GV_BLOCK], uint16 rowids [GV_BLOCK][3],
 *		uint8 codes [code_bytes][GV_BLOCK], uint32 live, 4 bytes unused
 */
typedef struct GvCpuList
{
	int32_t		nblocks;
	int32_t		capacity;		/* blocks that the memory holds */
	char	   *blocks;
} GvCpuList;

/* A page of refine records or rows; 0 when nothing has come for it. */
typedef struct GvCpuPage
{
	char	   *items;			/* [nslots] */
	int32_t		nslots;
} GvCpuPage;

struct GvMirror
{
	GvMirrorSpec spec;
	GvModel		model;			/* its codebooks are the array's */
	size_t		stride;			/* bytes of a block */
	size_t		keys_bytes;		/* of that, of keys */
	void	   *arrays[GV_NARRAYS];
	bool		covered;		/* parent offsets are an ascending cover of
								 * lists */
	GvCpuList  *lists;			/* [nlists] */
	GvCpuPage **tables;			/* [GV_TABLE_PAGES][GV_TABLE_PAGES], or NULL,
								 * at both levels */
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

/* records.c: refine records or rows, by the two words of a page's number */
#define GV_TABLE_PAGES	65536

extern bool gv_cpu_records_create(GvMirror *mirror);
extern int64_t gv_cpu_records_size(const GvMirrorSpec *spec);
extern GvStatus gv_cpu_put_refine(GvMirror *mirror, const GvRefineItem *items,
								  int32_t n);
extern GvStatus gv_cpu_get_refine(GvMirror *mirror, const uint16_t *addresses,
								  int32_t n, GvRefineItem *items);
extern GvStatus gv_cpu_put_rows(GvMirror *mirror, const GvRowItem *items,
								int32_t n);
extern GvStatus gv_cpu_get_rows(GvMirror *mirror, const uint16_t *rowids,
								int32_t n, GvRowItem *items);
extern GvStatus gv_cpu_drop_rows(GvMirror *mirror);
extern void gv_cpu_drop_records(GvMirror *mirror);
extern GvStatus gv_cpu_bound_hits(const GvMirror *mirror, GvSearch *search);
extern GvStatus gv_cpu_measure_hits(const GvMirror *mirror, GvSearch *search);

/* search.c: functions of gv_cpu_mirrors */
extern GvStatus gv_cpu_searcher(int32_t device, GvSearcher **searcher);
extern void gv_cpu_searcher_drop(GvSearcher *searcher);
extern GvStatus gv_cpu_mirror_begin(GvSearcher *searcher, GvMirror *mirror,
									GvSearch *searches, int32_t n);
extern bool gv_cpu_mirror_done(GvSearcher *searcher);
extern GvStatus gv_cpu_mirror_finish(GvSearcher *searcher);

#endif							/* GV_CPU_MIRROR_H */
