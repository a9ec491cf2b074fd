/*
 * count.c
 *		How many rows an index has, in lists and pending.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_index.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "am/common/count.h"
#include "page/pending.h"

/* Indexes whose counted rows a backend remembers, at most. */
#define NCOUNTED		64

typedef struct Counted
{
	Oid			index;
	float4		reltuples;		/* what the catalog said then */
	int32		relpages;
	uint64		build_id;
	int64		rows_at_calibration;
	double		rows;
} Counted;

static Counted counted[NCOUNTED];

/* Sum up the directory. */
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

/* The rows in lists. */
int64
IvfpqCountRows(Relation index, const IvfpqMetaData *meta)
{
	IvfpqListTotals totals;

	IvfpqSumLists(index, meta, &totals);
	return totals.rows;
}

/*
 * Returns the rows in lists, counted once a backend until VACUUM changes what
 * the catalog says of them.  Rows that came since are missing.
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
		memory->index = InvalidOid; /* until it is whole */
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
 * Returns about how many rows the index has: by statistics, or those at
 * calibration.  Statistics may be older than that, so where they say far
 * fewer, as they do after VACUUM has removed many rows, rows are counted.
 */
double
IvfpqRowsAbout(Relation index, const IvfpqMetaData *meta)
{
	double		rows = index->rd_rel->reltuples;	/* -1: not known */

	if (rows < 0)
		return (double) meta->rows_at_calibration;
	if (rows >= IVFPQ_ENOUGH_LEFT * meta->rows_at_calibration)
		return rows;
	return Max(rows, count_once(index, meta));
}

/*
 * Returns the rows by statistics, as the planner reads them: pages that came
 * since count in proportion.
 */
static double
rows_by_statistics(Relation rel)
{
	double		rows = rel->rd_rel->reltuples;
	double		pages = Max(rel->rd_rel->relpages, 1);

	return rows * Max(RelationGetNumberOfBlocks(rel) / pages, 1);
}

/*
 * Returns the fraction of the index's rows that new snapshots see, as far as
 * ANALYZE knows: the others are deleted, and VACUUM has not removed them.  1
 * where these are too few to matter.
 */
double
IvfpqVisibleFraction(Relation index, const IvfpqMetaData *meta, Relation heap)
{
	Relation	rel = heap;		/* VACUUM counts an index's dead rows, too */
	double		most = Max(meta->rows_at_calibration,
						   index->rd_rel->reltuples);
	double		fraction;

	if (!heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL))
		rel = index;
	if (rel->rd_rel->reltuples < 0 ||
		rel->rd_rel->reltuples >= IVFPQ_ENOUGH_LEFT * most)
		return 1;
	fraction = Max(rows_by_statistics(rel), 1) /
		Max(count_once(index, meta), 1);
	return fraction < IVFPQ_ENOUGH_LEFT ? fraction : 1;
}

/*
 * Returns whether the index has at least that many rows.  Statistics may be
 * old, so they are not believed when they say no.
 */
bool
IvfpqHasRows(Relation index, const IvfpqMetaData *meta, double rows)
{
	double		reltuples = index->rd_rel->reltuples;

	return rows <= reltuples ||
		(reltuples < 0 && rows <= meta->rows_at_training) ||
		rows <= IvfpqCountRows(index, meta);
}

/* The pending rows, counted. */
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
