/*
 * samples.c
 *		Small indexes of every layout, written by page/ itself: no pages of
 *		theirs need to be kept.
 */
#include "samples.h"

#include "am/common/enginecall.h"
#include "am/maintain/maintain.h"
#include "am/search/search.h"
#include "page/array.h"
#include "page/listwrite.h"
#include "page/metapage.h"
#include "page/pending.h"

const SampleKind sample_kinds[NSAMPLES] = {
	{"pending", 6, 0, 0, 0, 1, 0, 0, 3000, {0}},
	{"lists", 6, 5, 4, 2, 2, 0, 300, 10, {0}},
	{"refined", 6, 5, 4, 2, 2, 1, 300, 10, {0}},
	{"parts", 500, 490, 2, 1, 1, 0, 80, 0, {0}},
	{"refined parts", 600, 500, 3, 2, 2, 1, 60, 3, {0}},
	{"one copy", 9, 6, 5, 2, 1, 0, 200, 0, {0}},
	{"keys", 6, 5, 4, 2, 2, 0, 300, 10, {3,
		{IVFPQ_KEY_ORDERED, IVFPQ_KEY_HASH, IVFPQ_KEY_SIGNATURE}, {2, 4, 8}}},
	{"refined parts with keys", 500, 450, 3, 2, 2, 1, 60, 3, {2,
		{IVFPQ_KEY_ORDERED, IVFPQ_KEY_ORDERED}, {8, 1}}},
	{"halves", 6, 5, 4, 2, 2, IVFPQ_REFINE_HALF, 300, 10, {0}},
};

/* A sample's pages. */
static struct
{
	BlockNumber npages;
	char	   *pages;			/* [npages][BLCKSZ] */
}			samples[NSAMPLES];

/* A row's keys: one of them may be NULL, and several rows have the same. */
void
sample_abbrevs(const IvfpqKeyForm *form, int row, IvfpqKeyAbbrevs *abbrevs)
{
	uint64		number = (uint64) row % 50;

	memset(abbrevs, 0, sizeof(*abbrevs));
	for (int k = 0; k < form->nkeys; k++)
	{
		if (row % 7 == k)
			abbrevs->nulls |= 1U << k;
		else if (form->kind[k] == IVFPQ_KEY_ORDERED)
			abbrevs->abbrev[k] = number << (8 * form->width[k] - 6);
		else if (form->kind[k] == IVFPQ_KEY_HASH)
			abbrevs->abbrev[k] = (uint32) number * 2654435761u;
		else
			abbrevs->abbrev[k] = UINT64CONST(1) << number |
				UINT64CONST(1) << 60;
	}
}

/* Some of 20 clusters. */
void
sample_vector(int dims, int row, float *vector)
{
	uint32		seed = (uint32) row * 2654435761u;

	for (int i = 0; i < dims; i++)
	{
		seed = seed * 1664525 + 1013904223;
		vector[i] = (float) (row % 20 * (i % 7)) / 10 +
			(float) (seed >> 8) / (1 << 24);
	}
}

ItemPointerData
sample_tid(int row)
{
	ItemPointerData tid;

	ItemPointerSet(&tid, row / 200, row % 200 + 1);
	return tid;
}

/* The row, or a number that is none's. */
int
sample_row(const ItemPointerData *tid)
{
	BlockNumber blkno = ItemPointerGetBlockNumberNoCheck(tid);
	int			offset = ItemPointerGetOffsetNumberNoCheck(tid);

	return offset >= 1 && offset <= 200 && blkno < TABLE_PAGES ?
		(int) blkno * 200 + offset - 1 : PG_INT32_MAX;
}

/* Vectors [n][dims] of rows far apart. */
static float *
vectors(int dims, int n)
{
	float	   *all = palloc0(Max(n, 1) * dims * sizeof(float));

	for (int i = 0; i < n; i++)
		sample_vector(dims, 3 * i, all + i * dims);
	return all;
}

/* Arrays and an empty directory. */
static void
write_model(IvfpqMetaData *meta, const SampleKind *kind)
{
	int			dims = kind->dims;
	float	   *mean = palloc0(dims * sizeof(float));
	float	   *codebooks = vectors(dims, GV_CODEWORDS);
	float	   *centroids = vectors(dims, kind->nlists);
	int32	   *parent_offsets = palloc((kind->nparents + 1) * sizeof(int32));
	IvfpqDirEntry *entries = palloc0(kind->nlists * sizeof(IvfpqDirEntry));
	GvModel		gv = {.metric = GV_L2,.dims = dims,.m = kind->pq_dim,.scale = 1,
	.mean = mean,.codebooks = codebooks};
	GvTree		tree =
		{dims, kind->nparents, kind->nlists, centroids, parent_offsets,
	centroids};

	for (int p = 0; p <= kind->nparents; p++)
		parent_offsets[p] = kind->nlists * p / kind->nparents;
	IvfpqMetaPlace(meta, 0);
	IvfpqMetaPlace(meta, IvfpqReserve(&backend_index, IvfpqModelPages(meta),
									  false));
	IvfpqArrayWrite(&backend_index, meta, meta->mean, mean, dims, false);
	IvfpqArrayWrite(&backend_index, meta, meta->codebooks, codebooks,
					GV_CODEWORDS * dims, false);
	IvfpqArrayWrite(&backend_index, meta, meta->parents, centroids,
					kind->nparents * dims, false);
	IvfpqArrayWrite(&backend_index, meta, meta->parent_offsets,
					(const float *) parent_offsets,
					kind->nparents + 1, false);
	IvfpqArrayWrite(&backend_index, meta, meta->centroids, centroids,
					kind->nlists * dims, false);
	IvfpqCodedWrite(&backend_index, meta, &gv, &tree, false);
	IvfpqDirectoryWrite(&backend_index, meta, entries, false);
}

/* Fill in the results of training and calibration. */
static void
fill_meta(IvfpqMetaData *meta, const SampleKind *kind)
{
	meta->pq_dim = kind->pq_dim;
	meta->nlists = kind->nlists;
	meta->nparents = kind->nparents;
	meta->lists_per_row = kind->lists_per_row;
	meta->refine = kind->refine;
	meta->rows_at_training = kind->nrows;
	meta->rows_at_calibration = kind->nrows;
	meta->calibrated_depths = 2;
	for (int d = 0; d < 2; d++)
		for (int t = 0; t < IVFPQ_TARGETS; t++)
			meta->targets[d][t] = (IvfpqTarget)
		{
			1 + d, 20 + t
		};
}

/* BackendAct: write the index of a kind. */
static void
write_index(void *arg)
{
	const SampleKind *kind = arg;
	IvfpqMetaData meta;

	IvfpqMetaInit(&meta, GV_L2, kind->dims, &kind->keys);
	IvfpqMetaCreate(&backend_index, MAIN_FORKNUM, &meta);
	/* pending rows come before the index is trained */
	for (int row = 0; row < kind->npending; row++)
	{
		ItemPointerData tid = sample_tid(kind->nrows + row);

		(void) IvfpqPendingAppend(&backend_index, &tid, kind->dims);
	}
	IvfpqMetaRead(&backend_index, &meta);
	if (kind->nlists > 0)
	{
		IvfpqModel *model;

		fill_meta(&meta, kind);
		write_model(&meta, kind);
		IvfpqMetaRewrite(&backend_index, &meta);
		model = IvfpqModelGet(&backend_index);
		for (int row = 0; row < kind->nrows; row++)
		{
			float	   *vector = vectors(kind->dims, 1);
			ItemPointerData tid = sample_tid(row);
			IvfpqKeyAbbrevs abbrevs;

			sample_vector(kind->dims, row, vector);
			sample_abbrevs(&kind->keys, row, &abbrevs);
			IvfpqInsertPostings(&backend_index, model, vector, true, &tid,
							  &abbrevs, NULL, NULL);
		}
	}
}

/* No pages, and nothing that the session knows of earlier ones. */
void
sample_close(void)
{
	backend_clear();
	if (backend_index.rd_amcache != NULL)
		pfree(backend_index.rd_amcache);
	backend_index.rd_amcache = NULL;
	if (!backend_keeps_nothing())
		FAULT("memory is left that nothing leads to");
}

static void
make_sample(int sample)
{
	sample_close();
	if (!backend_try("making a sample", write_index,
					 (void *) &sample_kinds[sample]))
		FAULT("sample %s cannot be made", sample_kinds[sample].name);
	samples[sample].npages = backend_npages;
	samples[sample].pages = malloc((size_t) backend_npages * BLCKSZ);
	for (BlockNumber i = 0; i < backend_npages; i++)
		memcpy(samples[sample].pages + (size_t) i * BLCKSZ, backend_pages[i],
			   BLCKSZ);
}

void
sample_open(int sample)
{
	if (samples[sample].pages == NULL)
		make_sample(sample);
	sample_close();
	backend_set_npages(samples[sample].npages);
	for (BlockNumber i = 0; i < samples[sample].npages; i++)
		memcpy(backend_pages[i], samples[sample].pages + (size_t) i * BLCKSZ,
			   BLCKSZ);
}
