/*
 * model.c
 *		The model of an index in memory, and the number of rows in an index.
 *
 * Training fixes the model.  Its small parts (metapage, mean, codebooks,
 * parent_offsets) are cached in the index's relcache entry.  Centroids and a
 * rotation stay on pages.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_index.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/model.h"
#include "page/array.h"
#include "page/metapage.h"
#include "page/pending.h"

StaticAssertDecl(IVFPQ_MAX_ROTATED == GV_MAX_ROTATED,
				 "what can be rotated can be stored");

/* Number of indexes for which a backend remembers the number of rows. */
#define NCOUNTED		64

/* A count of an index's rows, and the index's state when they were counted. */
typedef struct Counted
{
	Oid			index;
	float4		reltuples;
	int32		relpages;
	uint64		build_id;
	int64		rows_at_calibration;
	double		rows;
} Counted;

static Counted counted[NCOUNTED];

/*
 * Allocates a model for *meta, in one chunk, into which the model's pointers
 * point.  Copies the layout and the values from *from, unless `from` is NULL.
 */
static IvfpqModel *
make_model(MemoryContext context, const IvfpqMetaData *meta,
		   const IvfpqModel *from)
{
	Size		nvalues = 0;
	Size		bytes;
	IvfpqModel *model;

	if (meta->nlists > 0)
		nvalues = (Size) meta->dims * (1 + GV_CODEWORDS) + meta->nparents + 1;
	bytes = offsetof(IvfpqModel, values) + nvalues * sizeof(float);
	model = MemoryContextAllocHuge(context, bytes);
	if (from != NULL)
		memcpy(model, from, bytes);
	model->meta = *meta;
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
	return model;
}

/*
 * Reads the model that *meta describes into the current memory context.  The
 * metapage need not contain *meta yet.  Raises an error unless parent_offsets
 * divides all lists of the index, in order, among the parents, with at least
 * one list for each parent.
 */
IvfpqModel *
IvfpqModelLoad(Relation index, const IvfpqMetaData *meta)
{
	IvfpqModel *model = make_model(CurrentMemoryContext, meta, NULL);
	int			dims = meta->dims;
	int			nparents = meta->nparents;
	const int32 *offsets;

	if (meta->nlists == 0)
		return model;

	if (!IvfpqLayoutGet(&model->layout, meta))
		IvfpqCorrupted(index, IVFPQ_METAPAGE,
					   "its parameters are out of range");
	IvfpqArrayFetch(index, meta->mean, dims, 0, model->values);
	IvfpqArrayFetch(index, meta->codebooks, GV_CODEWORDS * dims, 0,
					model->values + dims);
	IvfpqArrayFetch(index, meta->parent_offsets, nparents + 1, 0,
					model->values + (Size) dims * (1 + GV_CODEWORDS));

	offsets = model->parent_offsets;
	for (int p = 0; p < nparents; p++)
		if (offsets[p] < 0 || offsets[p] >= offsets[p + 1])
			IvfpqCorrupted(index, meta->parent_offsets,
						   "parent %d has no lists of its own", p);
	if (offsets[0] != 0 || offsets[nparents] != meta->nlists)
		IvfpqCorrupted(index, meta->parent_offsets,
					   "parents have %d lists of %d", offsets[nparents],
					   meta->nlists);
	return model;
}

/*
 * Returns the current model of the index, in the current memory context.
 * Every call reads the metapage; mean, codebooks and parent_offsets are read
 * once for a build_id.  The result is a copy, because an invalidation may free
 * the cached model at any catalog access.
 */
IvfpqModel *
IvfpqModelGet(Relation index)
{
	IvfpqMetaData meta;
	IvfpqModel *cached = (IvfpqModel *) index->rd_amcache;
	IvfpqModel *model;

	IvfpqMetaRead(index, &meta);

	/*
	 * IvfpqMetaRead does not check the metric, as page/ does not interpret it
	 */
	if (meta.metric < GV_L2 || meta.metric > GV_COSINE)
		IvfpqCorrupted(index, IVFPQ_METAPAGE, "there is no metric %u",
					   meta.metric);
	if (cached == NULL || cached->meta.build_id != meta.build_id ||
		cached->meta.nlists != meta.nlists)
	{
		/*
		 * Read the model completely before it is cached: an error on the way
		 * must leave nothing in rd_indexcxt.
		 */
		model = IvfpqModelLoad(index, &meta);
		cached = make_model(index->rd_indexcxt, &meta, model);
		pfree(model);
		if (index->rd_amcache)
			pfree(index->rd_amcache);
		index->rd_amcache = cached;
	}
	return make_model(CurrentMemoryContext, &meta, cached);
}

/* Returns the rotation [dims][dims] of an index that has one, palloc'd. */
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
 * Transforms a raw vector [dims] into the engine's space.  If the index has a
 * rotation, reads it in place in shared buffers, because it is too large to be
 * copied for each query or kept by each backend.
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
 * Raises an error unless the blocks of the index have the keys of its columns.
 * Otherwise scans would read abbreviated keys where there are none.
 */
void
IvfpqModelCheckKeys(Relation index, const IvfpqModel *model,
					const IvfpqKeyForm *columns)
{
	if (!IvfpqMetaHasKeys(&model->meta, columns))
		IvfpqCorrupted(index, IVFPQ_METAPAGE,
					   "its keys are not those of its columns");
}

/* Sets *totals to the sums over all directory entries. */
void
IvfpqSumLists(Relation index, const IvfpqMetaData *meta,
			  IvfpqListTotals *totals)
{
	memset(totals, 0, sizeof(*totals));
	for (int list = 0; list < meta->nlists; list++)
	{
		IvfpqDirEntry entry;
		int64		live;

		CHECK_FOR_INTERRUPTS();
		IvfpqDirEntryRead(index, meta, list, &entry);
		live = (int64) entry.nitems - entry.ndead;
		totals->rows += entry.nfirst;
		totals->live += live;
		totals->dead += entry.ndead;
		totals->blocks += (entry.nitems + IVFPQ_BLOCK_POSTINGS - 1) /
			IVFPQ_BLOCK_POSTINGS;
		if (live > totals->longest)
		{
			totals->longest = live;
			totals->longest_list = list;
		}
	}
}

/* Returns the number of rows in lists, according to the directory. */
int64
IvfpqCountRows(Relation index, const IvfpqMetaData *meta)
{
	IvfpqListTotals totals;

	IvfpqSumLists(index, meta, &totals);
	return totals.rows;
}

/*
 * Returns the number of rows in lists.  A backend remembers the number, and
 * counts again when the model, the calibration or the figures in pg_class have
 * changed.  VACUUM changes these figures.  Rows that were inserted since the
 * last count are missing.
 */
static double
count_once(Relation index, const IvfpqMetaData *meta)
{
	Form_pg_class form = index->rd_rel;
	Counted    *memory = &counted[RelationGetRelid(index) % NCOUNTED];

	if (memory->index != RelationGetRelid(index) ||
		memory->build_id != meta->build_id ||
		memory->rows_at_calibration != meta->rows_at_calibration ||
		memory->reltuples != form->reltuples ||
		memory->relpages != form->relpages)
	{
		memory->index = InvalidOid; /* so that the entry is invalid if
									 * counting fails */
		memory->rows = IvfpqCountRows(index, meta);
		memory->build_id = meta->build_id;
		memory->rows_at_calibration = meta->rows_at_calibration;
		memory->reltuples = form->reltuples;
		memory->relpages = form->relpages;
		memory->index = RelationGetRelid(index);
	}
	return memory->rows;
}

/*
 * Estimates the number of rows in the index from the statistics or, if there
 * are none, from the number of rows at calibration.  If the statistics show
 * far fewer rows than at calibration, the rows are counted.  Either VACUUM has
 * removed many rows, or the statistics are older than the calibration.
 */
double
IvfpqRowsAbout(Relation index, const IvfpqMetaData *meta)
{
	double		rows = index->rd_rel->reltuples;	/* -1 = unknown */

	if (rows < 0)
		return (double) meta->rows_at_calibration;
	if (rows >= IVFPQ_ENOUGH_LEFT * meta->rows_at_calibration)
		return rows;
	return Max(rows, count_once(index, meta));
}

/*
 * Estimates the fraction of the index's rows that new snapshots see, from the
 * statistics of ANALYZE.  The other rows are deleted, but VACUUM has not
 * removed them yet.  Returns 1 if the deleted rows are too few to matter.
 */
double
IvfpqVisibleFraction(Relation index, const IvfpqMetaData *meta, Relation heap)
{
	Relation	rel = heap;		/* VACUUM's figure for an index includes dead
								 * rows */
	double		most = Max(meta->rows_at_calibration,
						   index->rd_rel->reltuples);
	double		growth;
	double		visible;
	double		fraction;

	if (!heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL))
		rel = index;
	if (rel->rd_rel->reltuples < 0 ||
		rel->rd_rel->reltuples >= IVFPQ_ENOUGH_LEFT * most)
		return 1;
	/* like the planner, assume that new pages are as full as older pages */
	growth = RelationGetNumberOfBlocks(rel) /
		(double) Max(rel->rd_rel->relpages, 1);
	visible = rel->rd_rel->reltuples * Max(growth, 1);
	fraction = Max(visible, 1) / Max(count_once(index, meta), 1);
	return fraction < IVFPQ_ENOUGH_LEFT ? fraction : 1;
}

/*
 * Returns whether the index has at least `rows` rows.  Counts the rows if the
 * statistics show fewer, because statistics may be old.
 */
bool
IvfpqHasRows(Relation index, const IvfpqMetaData *meta, double rows)
{
	double		reltuples = index->rd_rel->reltuples;

	return rows <= reltuples ||
		(reltuples < 0 && rows <= meta->rows_at_training) ||
		rows <= IvfpqCountRows(index, meta);
}

/* Counts the pending rows. */
int64
IvfpqCountPending(Relation index, const IvfpqMetaData *meta)
{
	IvfpqPendingReader reader;
	int64		total = 0;
	int			count;

	IvfpqPendingOpen(&reader, index, meta);
	while (IvfpqPendingNext(&reader, &count))
	{
		if (reader.restarted)
			total = 0;
		reader.restarted = false;
		total += count;
	}
	IvfpqPendingClose(&reader);
	return total;
}
