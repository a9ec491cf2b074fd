/*
 * drain.c
 *		Flushes pending rows of a trained index to lists, one by one: rows that
 *		came while it was trained, and rows that training could not see.
 *
 * One WAL record takes a row from the pending list and appends its first
 * posting to a list, a second record appends the secondary posting.  A crash
 * in between leaves the row with one posting, which is legal.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "am/common/enginecall.h"
#include "am/common/identity.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/maintain/maintain.h"
#include "am/search/rerank.h"
#include "am/types/keys.h"
#include "page/pending.h"
#include "pgcompat.h"

typedef struct Flush
{
	Relation	heap;
	Relation	index;
	IvfpqType	type;
	IvfpqKeys	keys;
	const IvfpqModel *model;
	IvfpqRerank rows;			/* fetches them */
	MemoryContext context;		/* reset after every row */
	IvfpqTrainResult *result;
} Flush;

PG_FUNCTION_INFO_V1(gpuvec_train);

/* Appends a row to its lists if the snapshot sees it. */
static void
flush_row(Flush *flush, ItemPointer tid, const IvfpqPendingPlace *place)
{
	const IvfpqModel *model = flush->model;
	MemoryContext oldcontext;
	IvfpqKeyAbbrevs keys;
	const float *raw;
	float	   *vector;
	Datum		value;
	int			dims;

	if (!IvfpqRerankFetch(&flush->rows, IvfpqTidToId(tid), &value))
	{
		flush->result->kept++;
		return;
	}
	oldcontext = MemoryContextSwitchTo(flush->context);
	raw = IvfpqValueFloats(&flush->type, value, &dims);
	if (dims == model->meta.dims && IvfpqIsPlaceable(&flush->type, raw, dims))
	{
		vector = palloc(dims * sizeof(float));
		IvfpqTransform(flush->index, model, raw, vector);
		IvfpqFetchedKeys(&flush->keys, &flush->rows, &keys);
		IvfpqInsertPostings(flush->index, model, vector,
							IvfpqIsBoundable(&flush->type, raw, dims), tid,
							&keys, place);
		flush->result->moved++;
	}
	else
		flush->result->mismatched++;
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(flush->context);
	IvfpqRerankDone(&flush->rows);
}

/* The rows of one page, by a snapshot of their own. */
static void
flush_page(Flush *flush, IvfpqPendingReader *reader, int count)
{
	int64		mismatched = flush->result->mismatched;
	int64		kept = flush->result->kept;

	PushActiveSnapshot(GetLatestSnapshot());
	IvfpqRerankBegin(&flush->rows, flush->heap, flush->index,
					 GetActiveSnapshot());
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		flush_row(flush, &reader->tids[i], &reader->place);
	}
	IvfpqRerankEnd(&flush->rows);
	PopActiveSnapshot();
	IvfpqSnapshotForget();
	mismatched = flush->result->mismatched - mismatched;
	/* so that the next VACUUM asks no worker to read them again */
	if (mismatched > 0 && flush->result->kept == kept && !reader->mismatched)
		IvfpqPendingSetMismatched(flush->index, &reader->place,
								  (int) mismatched);
}

/*
 * Flushes the pending list of a trained index.  The caller holds
 * ShareUpdateExclusiveLock on the table and acts as its owner.
 */
void
IvfpqFlushPending(Relation heap, Relation index, IvfpqTrainResult *result)
{
	Flush		flush = {.heap = heap, .index = index, .result = result};
	IvfpqPendingReader reader;
	MemoryContext context;
	MemoryContext oldcontext;
	int			count;

	context = AllocSetContextCreate(CurrentMemoryContext, "gpuivfpq drain",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	flush.context = AllocSetContextCreate(context, "gpuivfpq drain row",
										  ALLOCSET_DEFAULT_SIZES);
	IvfpqTypeInit(&flush.type, index);
	IvfpqKeysInit(&flush.keys, index);
	flush.model = IvfpqModelGet(index);
	IvfpqModelCheckKeys(index, flush.model, &flush.keys.form);
	IvfpqPendingOpen(&reader, index, &flush.model->meta);
	while (IvfpqPendingNext(&reader, &count))
		flush_page(&flush, &reader, count);
	IvfpqPendingClose(&reader);
	(void) IvfpqPendingTrim(index);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
}

/*
 * Trains the index if it needs that, then flushes its pending rows.  The
 * caller holds ShareUpdateExclusiveLock on the table, acts as its owner and
 * has an active snapshot.
 */
void
IvfpqTrainOrFlush(Relation heap, Relation index, IvfpqTrainResult *result)
{
	IvfpqMetaData meta;

	memset(result, 0, sizeof(*result));
	IvfpqMetaRead(index, &meta);
	if (meta.nlists == 0)
		IvfpqTrainInPlace(heap, index, result);
	IvfpqMetaRead(index, &meta);
	result->nlists = meta.nlists;
	IvfpqSnapshotDrop();
	if (meta.nlists > 0)
		IvfpqFlushPending(heap, index, result);
	IvfpqSnapshotTake();
}

/* ERROR unless the current user may train this index here and now. */
static void
check_may_train(Relation heap, Relation index)
{
	if (!IvfpqOwnsRelation(RelationGetRelid(heap), GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of table \"%s\" to train index \"%s\"",
						RelationGetRelationName(heap),
						RelationGetRelationName(index))));
	IvfpqCheckValid(index);
}

/* Say why no row was moved, or not every one. */
static void
report_result(Relation index, const IvfpqTrainResult *result)
{
	const char *name = RelationGetRelationName(index);

	if (result->nlists == 0 && result->waits)
		ereport(NOTICE,
				(errmsg("index \"%s\" is not trained, nearly all of its %.0f rows are equal",
						name, result->rows),
				 errhint("Call gpuvec_train when one of a hundred rows, or %d in all, differ from the others.",
						 IvfpqLeastRows(index))));
	else if (result->nlists == 0)
		ereport(NOTICE,
				(errmsg("index \"%s\" is not trained, the table has only %.0f rows to index",
						name, result->rows),
				 errhint("Training needs %d.", IvfpqLeastRows(index))));
	else if (result->mismatched > 0)
		ereport(WARNING,
				(errmsg("%lld rows of index \"%s\" stay pending, they do not have its dimensions",
						(long long) result->mismatched, name)));
	else if (result->moved == 0)
		ereport(NOTICE,
				(errmsg("index \"%s\" is trained and has no pending row to put into a list",
						name)));
}

/*
 * gpuvec_train(index regclass): trains an untrained index, or flushes the
 * pending rows of a trained one.  Returns how many rows went to lists.
 */
Datum
gpuvec_train(PG_FUNCTION_ARGS)
{
	Relation	heap;
	Relation	index;
	IvfpqIdentity caller;
	IvfpqTrainResult result;

	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("recovery is in progress"),
				 errhint("Indexes are trained on the primary.")));
	index = IvfpqOpenToChange(PG_GETARG_OID(0), check_may_train, &heap);

	IvfpqActAsOwner(&caller, heap);
	IvfpqTrainOrFlush(heap, index, &result);
	IvfpqActAsCaller(&caller);
	report_result(index, &result);

	/* the locks stay until the end of the transaction */
	relation_close(index, NoLock);
	table_close(heap, NoLock);
	PG_RETURN_INT64(result.moved);
}
