/*
 * model.c
 *		The results of training, read from pages into memory.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "am/common/model.h"
#include "page/array.h"

static Size
model_size(const IvfpqMetaData *meta)
{
	Size		nvalues = 0;

	if (meta->nlists > 0)
		nvalues = (Size) meta->dims * (1 + GV_CODEWORDS) + meta->nparents + 1;
	return offsetof(IvfpqModel, values) + nvalues * sizeof(float);
}

/* Let the model's pointers point into its own chunk. */
static void
set_pointers(IvfpqModel *model)
{
	const IvfpqMetaData *meta = &model->meta;

	model->gv.metric = (GvMetric) meta->metric;
	model->gv.dims = meta->dims;
	model->gv.m = meta->pq_dim;
	model->gv.scale = meta->scale;
	model->gv.mean = model->values;
	model->gv.codebooks = model->values + meta->dims;
	model->gv.rotation = NULL;
	model->gv.rotation_error = meta->rotated ?
		gv_rotation_error(meta->dims) : 0;
	model->parent_offsets = (const int32 *) (model->values +
											 (Size) meta->dims * (1 + GV_CODEWORDS));
}

/* The lists of the parents must be those of the index, in order. */
static void
check_parent_offsets(Relation index, const IvfpqModel *model)
{
	const IvfpqMetaData *meta = &model->meta;
	const int32 *parent_offsets =
	(const int32 *) (model->values + (Size) meta->dims *
					 (1 + GV_CODEWORDS));

	for (int p = 0; p < meta->nparents; p++)
		if (parent_offsets[p] < 0 ||
			parent_offsets[p] >= parent_offsets[p + 1])
			IvfpqCorrupted(index, meta->parent_offsets,
						   "parent %d has no lists of its own", p);
	if (parent_offsets[0] != 0 ||
		parent_offsets[meta->nparents] != meta->nlists)
		IvfpqCorrupted(index, meta->parent_offsets,
					   "parents have %d lists of %d",
					   parent_offsets[meta->nparents], meta->nlists);
}

/*
 * Reads mean, codebooks and parent_offsets into a chunk of the current
 * context.
 */
static IvfpqModel *
load_model(Relation index, const IvfpqMetaData *meta)
{
	IvfpqModel *model;

	model = palloc_extended(model_size(meta), MCXT_ALLOC_HUGE);
	model->meta = *meta;
	if (meta->nlists > 0)
	{
		IvfpqArrayFetch(index, meta->mean, meta->dims, 0, model->values);
		IvfpqArrayFetch(index, meta->codebooks, GV_CODEWORDS * meta->dims, 0,
						model->values + meta->dims);
		IvfpqArrayFetch(index, meta->parent_offsets, meta->nparents + 1, 0,
						model->values + (Size) meta->dims * (1 + GV_CODEWORDS));
		check_parent_offsets(index, model);
	}
	return model;
}

/*
 * The index's model as of now, in the current memory context.  Every call
 * reads the metapage; mean and codebooks are read once for a build_id.  The
 * result is a copy, because an invalidation may free the cached one at any
 * catalog access.
 */
IvfpqModel *
IvfpqModelGet(Relation index)
{
	IvfpqMetaData meta;
	IvfpqModel *cached = (IvfpqModel *) index->rd_amcache;
	IvfpqModel *model;

	IvfpqMetaRead(index, &meta);
	/* page/ knows no metrics */
	if (meta.metric < GV_L2 || meta.metric > GV_COSINE)
		IvfpqCorrupted(index, IVFPQ_METAPAGE, "there is no metric %u",
					   meta.metric);
	if (cached == NULL || cached->meta.build_id != meta.build_id ||
		cached->meta.nlists != meta.nlists)
	{
		/* whole before it is kept: what an error left there would stay */
		model = load_model(index, &meta);
		cached = MemoryContextAllocHuge(index->rd_indexcxt, model_size(&meta));
		memcpy(cached, model, model_size(&meta));
		pfree(model);
		if (index->rd_amcache)
			pfree(index->rd_amcache);
		index->rd_amcache = cached;
	}

	model = palloc_extended(model_size(&meta), MCXT_ALLOC_HUGE);
	memcpy(model, cached, model_size(&meta));
	model->meta = meta;
	set_pointers(model);
	return model;
}

/*
 * The model that *meta describes, which the metapage need not show yet, in
 * the current memory context.
 */
IvfpqModel *
IvfpqModelLoad(Relation index, const IvfpqMetaData *meta)
{
	IvfpqModel *model = load_model(index, meta);

	set_pointers(model);
	return model;
}

StaticAssertDecl(IVFPQ_MAX_ROTATED == GV_MAX_ROTATED,
				 "what can be rotated can be stored");

/* The rotation [dims][dims] of an index that has one, in memory. */
float *
IvfpqRotationLoad(Relation index, const IvfpqMetaData *meta)
{
	int			dims = meta->dims;
	float	   *rotation = palloc_extended((Size) dims * dims * sizeof(float),
										   MCXT_ALLOC_HUGE);

	IvfpqArrayFetch(index, meta->rotation, dims * dims, 0, rotation);
	return rotation;
}

/*
 * Transforms a raw vector [dims] into the engine's space.  A rotation is read
 * where it lies in shared buffers: it is too large to be copied for each
 * query, or to be kept by each backend.
 */
void
IvfpqTransform(Relation index, const IvfpqModel *model, const float *raw,
			   float *vector)
{
	const IvfpqMetaData *meta = &model->meta;
	int			dims = meta->dims;
	float	   *placed = vector;
	IvfpqArrayReader reader;
	const float *rows;
	int			count;

	if (meta->rotated)
		placed = palloc(dims * sizeof(float));
	gv_transform(&model->gv, raw, 1, placed);
	if (!meta->rotated)
		return;
	IvfpqArrayOpen(&reader, index, meta->rotation, dims, dims);
	while ((rows = IvfpqArrayNext(&reader, &count)) != NULL)
	{
		gv_rotate(dims, rows, count, placed, vector);
		vector += count;
	}
	IvfpqArrayClose(&reader);
	pfree(placed);
}

/*
 * ERROR unless blocks have the keys of the index's columns: else abbreviated
 * keys would be read where none are.
 */
void
IvfpqModelCheckKeys(Relation index, const IvfpqModel *model,
					const IvfpqKeyForm *columns)
{
	if (!IvfpqMetaHasKeys(&model->meta, columns))
		IvfpqCorrupted(index, IVFPQ_METAPAGE,
					   "its keys are not those of its columns");
}
