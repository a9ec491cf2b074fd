/*
 * verify.c
 *		gpuvec_verify_index: checks the pages of an index, and that it has
 *		every row.
 *
 * First the pages are checked, with all TIDs on the way; then the table is
 * read under a snapshot that was taken before.  So every row that the snapshot
 * shows must be among the TIDs: an insert makes its entry before it commits,
 * and VACUUM removes no entry of a row that a snapshot sees.  Both streams are
 * sorted and merged.  Nothing here keeps inserts, deletes or VACUUM from going
 * on.
 *
 * Abbreviated keys are compared the same way.  Postings in the index and rows
 * that the snapshot sees are sorted together, by TID and the row first.  The
 * first number of each pair is TID * 2 for a row, and 1 more for a posting;
 * the second is a digest that stands for the abbreviated keys.
 *
 * Refine records must bound their rows.  A scan in strict order returns a row
 * when bounds prove that no other can come before it.  A record whose numbers
 * are changed, but are numbers, is noticed by nothing else, and rows are
 * returned in a wrong order.  So the row of each record is fetched: the lower
 * bound of its distance from itself must be 0.  That is so where x^ is no
 * farther away than the error, from which both bounds follow.  The bounds rest
 * on the rotation, which must be orthogonal.
 *
 * A record's TID is its row's as long as a snapshot that is older than the
 * page's copy sees the row: VACUUM frees records before TIDs are used again.
 */
#include "postgres.h"

#include <math.h>

#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "am/common/enginecall.h"
#include "am/common/identity.h"
#include "am/common/model.h"
#include "am/common/util.h"
#include "am/maintain/maintain.h"
#include "am/search/heaptids.h"
#include "am/search/rerank.h"
#include "am/search/search.h"
#include "am/types/vector.h"
#include "page/injection.h"
#include "page/metapage.h"
#include "page/pagecheck.h"
#include "page/pending.h"
#include "page/refinepage.h"

/* Columns of the result. */
#define VERIFY_SEVERITY		0
#define VERIFY_BLOCK		1
#define VERIFY_LIST			2
#define VERIFY_PROBLEM		3
#define VERIFY_NCOLUMNS		4

/* Refine records, and what leads to them. */
typedef struct VerifyRecords
{
	IvfpqSort	postings;		/* refine address; TID */
	bool		more;			/* the next one in it is this: */
	uint64		address;
	uint64		tid;

	/* comparing records with their rows */
	bool		compares;
	IvfpqModel *model;
	IvfpqRerank rows;			/* fetches them */
	float	   *vector;			/* [dims] of one */
} VerifyRecords;

typedef struct Verify
{
	Relation	heap;
	Relation	index;
	ReturnSetInfo *result;
	bool		valid;			/* the index, when the check began */
	IvfpqType	type;
	IvfpqKeys	keys;

	/* pages */
	IvfpqMetaData meta;			/* as it was checked */
	int			lists_per_row;	/* lists that should hold a row */
	bool		damaged;		/* an error was reported */
	bool		pending_damaged;	/* the pending list cannot be read to its
									 * end */
	VerifyRecords records;

	/* the table's rows */
	int			dims;			/* that all should have; 0 = any */
	bool		dims_checked;	/* of all rows, when they were inserted */
	MemoryContext tmp;			/* reset after every row */

	/* what is compared */
	IvfpqSort	entries;		/* TIDs in the index * 4 + IvfpqPlace */
	IvfpqSort	rows;			/* TIDs of rows to be found there */
	IvfpqSort	digests;		/* if there are keys: TID * 2, and 1 for a
								 * posting; digest */
	IvfpqSort	pending;		/* TIDs pending when all was read; none until
								 * a row asks */
	bool		more_pending;	/* the next one in it is this: */
	uint64		pending_id;
} Verify;

PG_FUNCTION_INFO_V1(gpuvec_verify_index);

static void report_row(Verify *verify, bool error, uint64 id,
					   const char *fmt,...) pg_attribute_printf(4, 5);

/* IvfpqChecker.report, and IvfpqProblem: adds one row to the result. */
static void
report(void *arg, bool error, BlockNumber blkno, uint32 list,
	   const char *problem)
{
	Verify	   *verify = arg;
	Datum		values[VERIFY_NCOLUMNS];
	bool		nulls[VERIFY_NCOLUMNS] = {false};

	verify->damaged |= error;
	values[VERIFY_SEVERITY] = CStringGetTextDatum(error ? "error" : "warning");
	values[VERIFY_BLOCK] = Int64GetDatum((int64) blkno);
	nulls[VERIFY_BLOCK] = blkno == InvalidBlockNumber;
	values[VERIFY_LIST] = Int32GetDatum((int32) list);
	nulls[VERIFY_LIST] = list == IVFPQ_NO_LIST;
	values[VERIFY_PROBLEM] = CStringGetTextDatum(problem);
	tuplestore_putvalues(verify->result->setResult, verify->result->setDesc,
						 values, nulls);
}

/*
 * Reports a problem of a row of the table.  The text goes on after the row's
 * name.
 */
static void
report_row(Verify *verify, bool error, uint64 id, const char *fmt,...)
{
	char		defect[192];
	char	   *problem;
	ItemPointerData tid;
	va_list		args;

	va_start(args, fmt);
	vsnprintf(defect, sizeof(defect), fmt, args);
	va_end(args);
	IvfpqIdToTid(id, &tid);
	problem = psprintf("row (%u,%u) of table \"%s\" %s",
					   ItemPointerGetBlockNumberNoCheck(&tid),
					   ItemPointerGetOffsetNumberNoCheck(&tid),
					   RelationGetRelationName(verify->heap), defect);
	report(verify, error, InvalidBlockNumber, IVFPQ_NO_LIST, problem);
	pfree(problem);
}

/* Begins a sort by one int8 or, with `second`, by two. */
static void
begin_sort(IvfpqSort *sort, bool second)
{
	IvfpqSortBegin(sort, INT8OID, second ? INT8OID : InvalidOid, 0,
				   maintenance_work_mem / 2);
}

static void
put(IvfpqSort *sort, uint64 first, uint64 second)
{
	IvfpqSortPut(sort, UInt64GetDatum(first), UInt64GetDatum(second), NULL);
}

/* IvfpqChecker.take */
static void
take_entries(void *arg, const IvfpqFound *found, int64 nfound)
{
	Verify	   *verify = arg;

	for (int64 i = 0; i < nfound; i++)
	{
		uint64		id = IvfpqTidToId(&found[i].tid);

		put(&verify->entries, id * 4 + found[i].place, 0);
		if (verify->keys.nkeys > 0 && found[i].place != IVFPQ_PENDING)
			put(&verify->digests, id * 2 + 1, found[i].keys);
		if (ItemPointerIsValid(&found[i].refine))
			put(&verify->records.postings, IvfpqTidToId(&found[i].refine), id);
	}
}

/* IvfpqChecker.forget */
static void
forget_entries(void *arg)
{
	Verify	   *verify = arg;

	IvfpqSortEnd(&verify->entries);
	begin_sort(&verify->entries, false);
}

/* Reads the next posting by refine record. */
static void
next_posting(VerifyRecords *records)
{
	records->more = IvfpqSortNext(&records->postings);
	if (records->more)
	{
		records->address = DatumGetUInt64(records->postings.keys[0]);
		records->tid = DatumGetUInt64(records->postings.keys[1]);
	}
}

/*
 * Returns whether a record bounds distances of its row.  A record does not
 * matter if the snapshot does not see the row, or if the row has no place in
 * lists: then the record is another row's, which is noticed elsewhere.
 */
static bool
bounds_row(Verify *verify, const IvfpqRecord *record)
{
	IvfpqModel *model = verify->records.model;
	IvfpqRerank *rows = &verify->records.rows;
	float	   *vector = verify->records.vector;
	GvRefine	refine = {record->min, record->step, record->error,
	record->codes};
	GvHalfRecord half_record = IvfpqHalfRecord(record);
	GvRange		range = {0, 0};
	MemoryContext oldcontext;
	const float *raw;
	int			dims;
	bool		bounds = true;

	raw = IvfpqRerankFetchVector(rows, &verify->type,
								 IvfpqTidToId(&record->tid), &dims);
	if (raw == NULL)
		return true;
	oldcontext = MemoryContextSwitchTo(rows->context);
	if (dims == model->gv.dims && IvfpqIsPlaceable(&verify->type, raw, dims))
	{
		if (!IvfpqIsBoundable(&verify->type, raw, dims))
			bounds = isinf(record->error);
		else
		{
			IvfpqTransform(verify->index, model, raw, vector);
			if (model->meta.refine == IVFPQ_REFINE_HALF)
				IvfpqCheckStatus(gv_half_range(GV_L2, dims, vector,
											   &half_record, 1, &range));
			else
				IvfpqCheckStatus(gv_refine_bound(GV_L2, dims, vector, &refine,
												 1, &range.least));
			bounds = range.least <= 0;
		}
	}
	MemoryContextSwitchTo(oldcontext);
	IvfpqRerankDone(rows);
	return bounds;
}

/*
 * IvfpqChecker.records.  Notes postings that point to an earlier page, which
 * is no refine page, or to the record of another row.  Whether that is wrong
 * depends on whether the row is visible, which is not known yet.  Then
 * compares the page's records with their rows.
 */
static void
take_records(void *arg, BlockNumber blkno, Page page, int n)
{
	Verify	   *verify = arg;
	VerifyRecords *records = &verify->records;
	int			code_bytes = IvfpqRecordCodeBytes(verify->meta.refine,
												  verify->meta.dims);
	BlockNumber heap_blocks;

	for (; records->more && records->address >> 16 <= blkno;
		 next_posting(records))
	{
		uint64		slot = records->address & 0xFFFF;

		if (records->address >> 16 != blkno || slot > (uint64) n ||
			IvfpqTidToId(&IvfpqRecordGet(page, code_bytes, slot - 1)->tid) !=
			records->tid)
			put(&verify->entries, records->tid * 4 + IVFPQ_NO_RECORD, 0);
	}
	if (!records->compares)
		return;
	heap_blocks = RelationGetNumberOfBlocks(verify->heap);
	for (int i = 0; i < n; i++)
	{
		const IvfpqRecord *record = IvfpqRecordGet(page, code_bytes, i);
		char	   *problem;

		CHECK_FOR_INTERRUPTS();
		/* what lies beyond the table is reported already */
		if (!ItemPointerIsValid(&record->tid) ||
			ItemPointerGetBlockNumber(&record->tid) >= heap_blocks ||
			bounds_row(verify, record))
			continue;
		problem = psprintf("refine record %d does not bound row (%u,%u) of table \"%s\"",
						   i + 1, ItemPointerGetBlockNumber(&record->tid),
						   ItemPointerGetOffsetNumber(&record->tid),
						   RelationGetRelationName(verify->heap));
		report(verify, true, blkno, IVFPQ_NO_LIST, problem);
		pfree(problem);
	}
}

/*
 * Returns whether the rotation of an index, whose pages are sound, is
 * orthogonal, as it was written.
 */
static bool
is_orthogonal(Relation index, const IvfpqMetaData *meta)
{
	float	   *rotation = IvfpqRotationLoad(index, meta);
	double		defect = 0;

	for (int i = 0; i < meta->dims; i++)
	{
		CHECK_FOR_INTERRUPTS();
		defect += gv_rotation_defect(meta->dims, rotation, i);
	}
	pfree(rotation);
	return gv_is_rotation(meta->dims, defect);
}

/*
 * Checks metapage, arrays and the pending list.  Returns false if not even the
 * metapage makes sense.  Pending rows come before lists, because a row may
 * move from there to a list.  If the index was trained meanwhile, all rows
 * did, so everything is read again.
 */
static bool
check_model(IvfpqChecker *checker)
{
	Verify	   *verify = checker->arg;
	IvfpqMetaData meta;

	for (;;)
	{
		bool		damaged;

		if (!IvfpqCheckMeta(checker, verify->type.metric))
			return false;
		IvfpqCheckModel(checker);
		damaged = verify->damaged;
		verify->damaged = false;
		IvfpqCheckPending(checker, false);
		verify->pending_damaged = verify->damaged;
		verify->damaged |= damaged;
		IvfpqInjectionPoint("verify: pending");
		if (checker->meta.nlists > 0)
			return true;
		IvfpqMetaRead(checker->index, &meta);
		if (meta.nlists == 0)
			return true;
	}
}

/*
 * Checks all pages.  Returns false if the metapage makes no sense.  Refine
 * records of a valid index are compared with rows that the snapshot sees.
 */
static bool
check_pages(Verify *verify, Snapshot snapshot)
{
	Relation	index = verify->index;
	const IvfpqMetaData *meta = &verify->meta;
	VerifyRecords *records = &verify->records;
	IvfpqChecker checker = {
		.index = index,
		.heap = verify->heap,
		.arg = verify,
		.report = report,
		.take = take_entries,
		.forget = forget_entries,
		.records = take_records
	};

	if (!check_model(&checker))
		return false;
	if (!IvfpqMetaHasKeys(&checker.meta, &verify->keys.form))
	{
		report(verify, true, IVFPQ_METAPAGE, IVFPQ_NO_LIST,
			   "its keys are not those of its columns");
		return false;
	}
	verify->meta = checker.meta;
	verify->lists_per_row = meta->nlists > 1 ? meta->lists_per_row : 1;
	if (meta->rotated && meta->nlists > 0 && !verify->damaged &&
		!is_orthogonal(index, meta))
		report(verify, true, meta->rotation, IVFPQ_NO_LIST,
			   "the rotation is not orthogonal");
	/* lists may be damaged, but the model that bounds rest on is sound */
	records->compares = verify->valid && !verify->damaged &&
		meta->nlists > 0 && meta->refine != IVFPQ_REFINE_NONE;
	for (int list = 0; list < meta->nlists; list++)
		(void) IvfpqCheckList(&checker, list, false);

	/* all postings are taken; from here on their records come */
	IvfpqSortPerform(&records->postings);
	next_posting(records);
	if (records->compares)
	{
		records->model = IvfpqModelGet(index);
		records->vector = palloc(records->model->meta.dims * sizeof(float));
		IvfpqRerankBegin(&records->rows, verify->heap, index, snapshot);
	}
	IvfpqCheckSlabs(&checker);
	if (records->compares)
		IvfpqRerankEnd(&records->rows);
	/* records on pages younger than the check have not come */
	for (; records->more; next_posting(records))
		if (records->address >> 16 < checker.nblocks)
			put(&verify->entries, records->tid * 4 + IVFPQ_NO_RECORD, 0);
	if (meta->refine != IVFPQ_REFINE_NONE)
		IvfpqCheckRecordChain(&checker);
	return true;
}

/*
 * Called for every visible row that the index's predicate admits.  Reports a
 * row that has other dimensions than the index: queries leave it out, or fail
 * where the metapage says that there is none.
 */
static void
row_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
			 bool alive, void *arg)
{
	Verify	   *verify = arg;
	uint64		id = IvfpqTidToId(tid);
	MemoryContext oldcontext;

	if (isnull[0])
		return;
	oldcontext = MemoryContextSwitchTo(verify->tmp);
	if (IvfpqHasPlace(&verify->type, values[0], verify->dims))
	{
		put(&verify->rows, id, 0);
		if (verify->keys.nkeys > 0)
		{
			IvfpqKeyAbbrevs abbrevs;

			IvfpqKeysMake(&verify->keys, values, isnull, &abbrevs);
			put(&verify->digests, id * 2,
				IvfpqKeyAbbrevsDigest(&verify->keys.form, &abbrevs));
		}
	}
	else if (!IvfpqHasDims(&verify->type, values[0], verify->dims))
	{
		int			dims;

		(void) IvfpqValueFloats(&verify->type, values[0], &dims);
		report_row(verify, verify->dims_checked, id,
				   "has %d dimensions, the index %d", dims, verify->dims);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(verify->tmp);
}

/*
 * Returns whether a row is still pending after lists were read.  Rows are
 * asked about in ascending order.  One that is found in a list has left the
 * pending list before, and none comes back, so one reading of the pending list
 * after that serves all rows.
 */
static bool
is_still_pending(Verify *verify, uint64 id)
{
	if (verify->pending_damaged)
		return true;			/* as it was when it was checked */
	if (verify->pending.state == NULL)
	{
		IvfpqFrozen whole = {.tail = InvalidBlockNumber};
		IvfpqMetaData meta;

		IvfpqMetaRead(verify->index, &meta);
		whole.head = meta.pending_head;
		whole.head_seq = meta.pending_head_seq;
		IvfpqSortFrozen(&verify->pending, verify->index, &whole,
						maintenance_work_mem / 2);
		verify->more_pending = true;
	}
	while (verify->more_pending && verify->pending_id < id)
		verify->more_pending = IvfpqNextTid(&verify->pending,
											&verify->pending_id);
	return verify->more_pending && verify->pending_id == id;
}

/*
 * Reports a row unless the index holds it as it should: once pending, or once
 * in every list that is to hold it.  count [4] by IvfpqPlace.
 */
static void
check_row(Verify *verify, uint64 id, const int64 *count)
{
	int64		pending = count[IVFPQ_PENDING];
	int64		first = count[IVFPQ_PRIMARY_POSTING];
	int64		secondary = count[IVFPQ_SECONDARY_POSTING];
	bool		missing = pending + first + secondary == 0;
	bool		sound;

	if (pending == 1 && first == 1 && !is_still_pending(verify, id))
	{
		/* it moved while we read; its second list may have been read before */
		sound = secondary <= verify->lists_per_row - 1;
		pending = 0;
	}
	else if (secondary == verify->lists_per_row - 1)
		sound = pending + first == 1;
	else
		sound = pending == 1 && first + secondary == 0;

	if (missing)
		report_row(verify, true, id, "is not in the index");
	else if (!sound && verify->lists_per_row == 1)
		report_row(verify, false, id, "is in the index %lld times",
				   (long long) (pending + first + secondary));
	else if (!sound)
		report_row(verify, false, id,
				   "is pending %lld times, in the index %lld times as first and %lld times as second copy",
				   (long long) pending, (long long) first,
				   (long long) secondary);
	if (count[IVFPQ_NO_RECORD] > 0)
		report_row(verify, true, id,
				   "is in the index without its refine record");
}

/*
 * Compares rows with entries.  Every row must be among the entries; other
 * entries are of dead rows.
 */
static void
compare_rows(Verify *verify)
{
	IvfpqSort  *entries = &verify->entries;
	IvfpqSort  *rows = &verify->rows;
	bool		more;

	IvfpqSortPerform(entries);
	IvfpqSortPerform(rows);
	more = IvfpqSortNext(entries);
	while (IvfpqSortNext(rows))
	{
		uint64		id = DatumGetUInt64(rows->keys[0]);
		int64		count[4] = {0};

		CHECK_FOR_INTERRUPTS();
		for (; more; more = IvfpqSortNext(entries))
		{
			uint64		entry = DatumGetUInt64(entries->keys[0]);

			if (entry / 4 > id)
				break;
			if (entry / 4 == id)
				count[entry % 4]++;
		}
		check_row(verify, id, count);
	}
}

/* Reports each row, once, of which a posting has other keys. */
static void
compare_keys(Verify *verify)
{
	IvfpqSort  *digests = &verify->digests;
	uint64		row = 0;
	uint64		expected = 0;
	bool		seen = false;

	IvfpqSortPerform(digests);
	while (IvfpqSortNext(digests))
	{
		uint64		place = DatumGetUInt64(digests->keys[0]);
		uint64		digest = DatumGetUInt64(digests->keys[1]);

		CHECK_FOR_INTERRUPTS();
		if (place % 2 == 0)
		{
			row = place / 2;
			expected = digest;
			seen = true;
		}
		else if (seen && place / 2 == row && digest != expected)
		{
			report_row(verify, true, row, "is in the index with other keys");
			seen = false;
		}
	}
}

/*
 * gpuvec_verify_index(index regclass, mirror boolean): verifies pages, then
 * rows, all as the table's owner.
 */
Datum
gpuvec_verify_index(PG_FUNCTION_ARGS)
{
	Verify		verify = {.result = (ReturnSetInfo *) fcinfo->resultinfo};
	bool		mirror = PG_GETARG_BOOL(1);
	Relation	heap;
	Relation	index;
	IvfpqIdentity caller;
	Snapshot	snapshot;

	index = IvfpqOpenIndexTable(PG_GETARG_OID(0), AccessShareLock, &heap);
	IvfpqCheckInspect(index);
	IvfpqCheckActing(heap, index);
	InitMaterializedSRF(fcinfo, 0);

	IvfpqActAsOwner(&caller, heap);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	verify.heap = heap;
	verify.index = index;
	verify.valid = index->rd_index->indisvalid;
	IvfpqTypeInit(&verify.type, index);
	IvfpqKeysInit(&verify.keys, index);
	verify.tmp = AllocSetContextCreate(CurrentMemoryContext,
									   "gpuivfpq verify row",
									   ALLOCSET_DEFAULT_SIZES);
	begin_sort(&verify.entries, false);
	begin_sort(&verify.rows, false);
	begin_sort(&verify.records.postings, true);
	if (verify.keys.nkeys > 0)
		begin_sort(&verify.digests, true);
	if (!verify.valid)
		report(&verify, false, InvalidBlockNumber, IVFPQ_NO_LIST,
			   "the index is not valid, its rows are not compared with the table's");

	/* what a build has written so far, or had when it failed, is no index */
	if (index->rd_index->indisready && check_pages(&verify, snapshot) &&
		verify.valid)
	{
		IndexInfo  *indexInfo = IvfpqIndexInfo(index);
		IvfpqMetaData meta;

		IvfpqMetaRead(index, &meta);
		verify.dims_checked = (meta.dims_flags & IVFPQ_DIMS_CHECKED) != 0;
		verify.dims = verify.dims_checked ? meta.dims :
			IvfpqRowDims(heap, index, &meta);

		/* rows as the snapshot sees them, with the TIDs that indexes know */
		indexInfo->ii_Concurrent = true;
		table_index_build_scan(heap, index, indexInfo, true, false,
							   row_callback, &verify,
							   table_beginscan_strat(heap, snapshot, 0, NULL,
													 true, true));
		compare_rows(&verify);
		if (verify.keys.nkeys > 0)
			compare_keys(&verify);
		if (mirror)
			IvfpqVerifyMirror(index, report, &verify);
	}
	IvfpqSortEnd(&verify.entries);
	IvfpqSortEnd(&verify.rows);
	IvfpqSortEnd(&verify.digests);
	IvfpqSortEnd(&verify.pending);
	IvfpqSortEnd(&verify.records.postings);
	UnregisterSnapshot(snapshot);
	IvfpqActAsCaller(&caller);

	relation_close(index, AccessShareLock);
	table_close(heap, AccessShareLock);
	return (Datum) 0;
}
