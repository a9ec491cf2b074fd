/*
 * upkeep.c
 *		What an index needs of the background worker, and doing it.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "am/build/calibrate.h"
#include "am/common/model.h"
#include "am/common/options.h"
#include "am/maintain/maintain.h"
#include "page/pending.h"

/* Returns whether the index has many times the rows it was trained on. */
static bool
has_outgrown(Relation index, const IvfpqMetaData *meta, int64 *rows)
{
	int64		limit = Max(IVFPQ_MAX_GROWTH * Max(meta->rows_at_training, 1),
							2 * meta->rows_at_advice);

	*rows = IvfpqCountRows(index, meta);
	return *rows > limit;
}

/*
 * Returns whether the index has work.  The estimate of pending rows is an
 * upper bound that saves reading them; so is table_rows, unless negative, of
 * all rows.
 */
bool
IvfpqHasWork(Relation index, double table_rows)
{
	IvfpqMetaData meta;
	int64		pending = IvfpqPendingEstimate(index);
	int64		rows;

	IvfpqMetaRead(index, &meta);
	if (meta.nlists == 0)
		return pending >= IvfpqTrainRows(index) &&
			IvfpqCountPending(index, &meta) >= IvfpqTrainRows(index);
	if (pending > 0 && IvfpqPendingMayLeave(index, &meta))
		return true;
	return (table_rows < 0 ||
			table_rows > IVFPQ_MAX_GROWTH * meta.rows_at_training) &&
		has_outgrown(index, &meta, &rows);
}

/* One line for the log about what was done; it names the index itself. */
static void
log_result(const char *name, const IvfpqTrainResult *result,
		   TimestampTz begun)
{
	long		ms = TimestampDifferenceMilliseconds(begun,
													 GetCurrentTimestamp());

	if (result->mismatched > 0)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("gpuvec: %lld rows of index \"%s\" stay pending, they do not have its dimensions",
						(long long) result->mismatched, name)));
	if (result->nlists == 0 && result->waits)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("gpuvec: index \"%s\" is not trained, nearly all of its %.0f rows are equal",
						name, result->rows)));
	else if (result->nlists == 0)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("gpuvec: index \"%s\" is not trained, the table has only %.0f rows to index",
						name, result->rows)));
	else if (result->trained)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("gpuvec: trained index \"%s\": %lld rows in %d lists, %lld stay pending, %ld ms",
						name, (long long) result->moved, result->nlists,
						(long long) result->kept, ms)));
	else if (result->moved > 0)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("gpuvec: put %lld pending rows of index \"%s\" into lists, %lld stay pending, %ld ms",
						(long long) result->moved, name,
						(long long) result->kept, ms)));
}

/*
 * The index has outgrown its training: say so, once and again when it has
 * doubled, and calibrate it anew.  Targets for queries which only a user can
 * name are left alone.
 */
static void
advise_rebuild(Relation heap, Relation index, const char *name)
{
	IvfpqMetaData meta;
	int64		rows;

	IvfpqMetaRead(index, &meta);
	if (meta.nlists == 0 || !has_outgrown(index, &meta, &rows))
		return;
	ereport(LOG,
			(errhidecontext(true),
			 errmsg("gpuvec: index \"%s\" was trained on %lld rows and holds %lld",
					name, (long long) meta.rows_at_training,
					(long long) rows),
			 meta.calibrated_for == IVFPQ_FOR_ROWS ?
			 errhint("REINDEX INDEX CONCURRENTLY makes queries faster.") :
			 errhint("REINDEX INDEX CONCURRENTLY makes queries faster.  Then calibrate it with your queries again.")));
	if (meta.calibrated_for == IVFPQ_FOR_ROWS)
		(void) IvfpqCalibrateIndex(heap, index, NULL);
	IvfpqMetaAdvised(index, rows);
}

/*
 * Trains the index or flushes its pending rows, calibrates one that has
 * outgrown its training, and says so in the log.  The caller acts as the owner
 * of the table, which is locked.
 */
void
IvfpqDoWork(Relation heap, Relation index, const char *name)
{
	TimestampTz begun = GetCurrentTimestamp();
	IvfpqTrainResult result;

	IvfpqTrainOrFlush(heap, index, &result);
	log_result(name, &result, begun);
	advise_rebuild(heap, index, name);
}
