/*
 * coded.c
 *		Centroids in codes: which lists are likely to be the nearest.
 *
 * To compare a query with all centroids takes reading them, 1.5 kB each at
 * d = 384.  So each of them is there a second time, as if it were a posting in
 * its parent's list: T and a code of the index's own codebooks, 78 bytes,
 * which the scanner of lists takes, with the look-up table that the query
 * needs anyway.  Only lists that are near by their codes are compared by their
 * centroids.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "am/common/enginecall.h"
#include "am/search/search.h"
#include "page/array.h"

/* Put the codes and T of some of a parent's centroids, [n], into a block. */
static void
fill_block(float *block, const uint8 *codes, const float *t, int n,
		   int code_bytes)
{
	uint8	   *bytes = (uint8 *) (block + GV_BLOCK);

	for (int i = 0; i < n; i++)
	{
		block[i] = t[i];
		for (int p = 0; p < code_bytes; p++)
			bytes[p * GV_BLOCK + i] = codes[i * code_bytes + p];
	}
}

/* Encode centroids [n], up to a block of them, of a parent. */
static void
encode_block(const GvModel *model, const GvTree *tree, int parent, int first,
			 int n, float *block)
{
	int			code_bytes = gv_code_bytes(model->m);
	uint8	   *codes = palloc(GV_BLOCK * code_bytes);
	float		t[GV_BLOCK];
	int32		parents[GV_BLOCK];

	for (int i = 0; i < n; i++)
		parents[i] = parent;
	IvfpqCheckStatus(gv_encode(model, tree->centroids +
							   (Size) first * model->dims, tree->parents,
							   parents, n, 1, codes, t));
	fill_block(block, codes, t, n, code_bytes);
	pfree(codes);
}

/*
 * Write the codes of a tree's centroids, to where *meta says.  T is that of
 * L2 also where the metric is the inner product, because inserts look for
 * the nearest lists by L2.
 */
void
IvfpqCodedWrite(Relation index, const IvfpqMetaData *meta,
				const GvModel *model, const GvTree *tree, bool shared)
{
	int			floats = IvfpqCodeBlockFloats(meta);
	int64		nvalues = IvfpqCodeBlocks(meta) * floats;
	float	   *blocks = palloc_extended(nvalues * sizeof(float),
										 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	GvModel		gv = *model;

	gv.metric = GV_L2;
	for (int p = 0; p < tree->nparents; p++)
	{
		int			list = tree->parent_offsets[p];
		int			end = tree->parent_offsets[p + 1];
		float	   *block = blocks + IvfpqCodeBlock(p, list) * floats;

		CHECK_FOR_INTERRUPTS();
		for (; list < end; list += GV_BLOCK, block += floats)
			encode_block(&gv, tree, p, list, Min(GV_BLOCK, end - list),
						 block);
	}
	IvfpqArrayWrite(index, meta->codes, blocks, nvalues, shared);
	pfree(blocks);
}

/* Offer a parent's lists, given its score, to the scan. */
static void
offer_parent(IvfpqArrayReader *reader, const IvfpqModel *model, GvScan *scan,
			 int parent, float score)
{
	static const float no_t[GV_BLOCK] = {0};
	int			list = model->parent_offsets[parent];
	int			end = model->parent_offsets[parent + 1];
	const float *run;
	int			count;

	reader->next = IvfpqCodeBlock(parent, list);
	reader->nvectors = reader->next + (end - list + GV_BLOCK - 1) / GV_BLOCK;
	while ((run = IvfpqArrayNext(reader, &count)) != NULL)
		for (; count > 0; count--, list += GV_BLOCK, run += reader->dims)
		{
			int			n = Min(GV_BLOCK, end - list);
			GvBlock		block = {
				.codes = (const uint8 *) (run + GV_BLOCK),
				.t = scan->model->metric == GV_IP ? no_t : run,
				.first_id = list,
				.live = UINT32_MAX >> (GV_BLOCK - n)
			};

			IvfpqCheckStatus(gv_scan(scan, score, &block, 1));
		}
}

/*
 * Offer the lists of the parents [nparents] of *parents, nearest first, by
 * what their codes say their scores are.
 */
void
IvfpqCodedOffer(Relation index, const IvfpqModel *model, IvfpqQuery *query,
				const GvTopK *parents, int nparents, GvTopK *lists)
{
	const IvfpqMetaData *meta = &model->meta;
	char	   *memory = palloc_extended(gv_scan_scratch(query->gv.m,
														 lists->capacity) +
										 GV_ALIGN, MCXT_ALLOC_HUGE);
	GvScan		scan = {
		.model = &query->gv,
		.table = IvfpqQueryTable(query),
		.best = lists,
		.reach = GV_SCORE_MAX,
		.scratch = (void *) TYPEALIGN(GV_ALIGN, memory)
	};
	IvfpqArrayReader reader;

	IvfpqArrayOpen(&reader, index, meta->codes, IvfpqCodeBlockFloats(meta), 0);
	IvfpqCheckStatus(gv_scan_begin(&scan));
	for (int i = 0; i < nparents; i++)
		offer_parent(&reader, model, &scan, (int) parents->ids[i],
					 parents->scores[i]);
	IvfpqCheckStatus(gv_scan_finish(&scan));
	IvfpqArrayClose(&reader);
	pfree(memory);
}
