/*
 * verify.c
 *		gpuvec_verify_index: checks the pages of an index, and that it has
 *		every row.
 *
 * First the pages are checked, and all TIDs on them are collected.  Then the
 * table is read under a snapshot that was taken before the pages were checked.
 * Every row that this snapshot sees must be among the TIDs, because an insert
 * makes its index entry before it commits, and VACUUM does not remove the
 * entry of a row that a snapshot sees.  The TIDs of the index and those of the
 * table are sorted and merged.  Inserts, deletes and VACUUM go on during the
 * check.
 *
 * Digests of the abbreviated keys are compared by a sort, too.  A row that the
 * snapshot sees is sorted as (TID * 2, digest of its keys), and a posting as
 * (TID * 2 + 1, digest of its keys).  So each row comes directly before its
 * postings.
 *
 * A refine record must give correct bounds for the distances of its row.  A
 * scan in strict order returns a row as soon as bounds prove that no other row
 * can come before it.  If the numbers in a record are changed to other valid
 * numbers, no other check finds the damage, and scans return rows in a wrong
 * order.  So the row of each record is fetched, and the record's lower bound
 * for the distance between the row and itself must be 0.  This lower bound is
 * 0 if the record's approximation x^ is no farther from the row than the
 * record's error.  Then the bounds of all distances are correct, because they
 * are computed from x^ and the error.  The bounds also depend on the rotation,
 * so the rotation is checked to be orthogonal.
 *
 * If the snapshot sees the row at a record's TID, the record belongs to that
 * row: the snapshot is older than the copy of the record's page, and VACUUM
 * frees the records of dead rows before their TIDs are used again.
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

/* State of the check of refine records. */
typedef struct VerifyRecords
{
	IvfpqSort	postings;		/* (refine address, TID) of all postings */
	bool		more;			/* there is a next posting, which has
								 * `address` and `tid` */
	uint64		address;
	uint64		tid;

	/* comparison of records with their rows */
	bool		compares;
	IvfpqModel *model;
	IvfpqRerank rows;			/* fetches the rows */
	float	   *vector;			/* [dims] transformed vector of one row */
} VerifyRecords;

typedef struct Verify
{
	Relation	heap;
	Relation	index;
	ReturnSetInfo *result;
	bool		valid;			/* the index was valid when the check began */
	IvfpqType	type;
	IvfpqKeys	keys;

	/* pages */
	IvfpqMetaData meta;			/* the metapage that was checked */
	int			lists_per_row;	/* number of lists that should hold each row */
	bool		damaged;		/* an error was reported */
	bool		pending_damaged;	/* the pending list cannot be read to its
									 * end */
	VerifyRecords records;

	/* the table's rows */
	int			dims;			/* dimensions that rows should have; 0 = any */
	bool		dims_checked;	/* the dimensions of all rows were checked at
								 * insertion */
	MemoryContext tmp;			/* reset after every row */

	/* the sorts that are compared */
	IvfpqSort	entries;		/* TID * 4 + IvfpqPlace of all index entries */
	IvfpqSort	rows;			/* TIDs of rows that the index should have */
	IvfpqSort	digests;		/* if the index has keys: (TID * 2, digest) of
								 * rows, (TID * 2 + 1, digest) of postings */
	IvfpqSort	pending;		/* TIDs pending after all pages were read;
								 * filled by is_still_pending */
	bool		more_pending;	/* there is a next pending TID, pending_id */
	uint64		pending_id;
} Verify;

PG_FUNCTION_INFO_V1(gpuvec_verify_index);

static void report_row(Verify *verify, bool error, uint64 id,
					   const char *fmt,...) pg_attribute_printf(4, 5);

/* IvfpqChecker.report and IvfpqProblem callback.  Adds a row to the result. */
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
 * Reports a problem of one row of the table.  The message names the row and
 * continues with the formatted text.
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

/* Begins a sort of int8 values, or of pairs of them if `second` is true. */
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

/* Reads the next posting in the order of refine addresses. */
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
 * Returns whether a record gives correct bounds for the distances of its row.
 * Also returns true if the snapshot does not see the row.  If the snapshot
 * sees a row that cannot be indexed, the TID in the record is wrong.  The
 * result is true then, too, because check_row reports the row whose record
 * this should be.
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
 * IvfpqChecker.records callback, called for refine pages in ascending order.
 * Collects the postings that have no record.  The address of such a posting is
 * on an earlier page, which is not a refine page, or is a slot of this page
 * that is free or has the record of another row.  Whether a missing record is
 * an error depends on whether the posting's row is visible, which is not known
 * yet.  Then compares the page's records with their rows.
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
		/* a TID beyond the end of the table has already been reported */
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
 * Returns whether the rotation of an index is orthogonal, as every rotation is
 * when it is written.  The pages of the rotation must be undamaged.
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
 * Checks the metapage, the arrays and the pending list.  Returns false if the
 * metapage is so damaged that nothing else can be checked.  The pending list
 * is read before the lists, because in the opposite order a row that moves to
 * lists could be missed.  If the index was trained meanwhile, rows may have
 * moved to other lists, so everything is read again.
 */
static bool
check_model(IvfpqChecker *checker)
{
	Verify	   *verify = checker->arg;

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
		if (IvfpqPendingWasRead(checker->index, &checker->meta))
			return true;
	}
}

/*
 * Checks all pages.  Returns false if the metapage is so damaged that rows
 * cannot be compared.  Refine records of a valid index are compared with the
 * rows that the snapshot sees.
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

	/* bounds depend only on the model, so damaged lists do not matter */
	records->compares = verify->valid && !verify->damaged &&
		meta->nlists > 0 && meta->refine != IVFPQ_REFINE_NONE;
	for (int list = 0; list < meta->nlists; list++)
		(void) IvfpqCheckList(&checker, list, false);

	/* all postings are collected; now their records are checked */
	IvfpqSortPerform(&records->postings);
	next_posting(records);
	if (records->compares)
	{
		records->model = IvfpqModelLoad(index, meta);
		records->vector = palloc(records->model->meta.dims * sizeof(float));
		IvfpqRerankBegin(&records->rows, verify->heap, index, snapshot);
	}
	IvfpqCheckSlabs(&checker);
	if (records->compares)
		IvfpqRerankEnd(&records->rows);
	/* pages that were added after the check began are not checked */
	for (; records->more; next_posting(records))
		if (records->address >> 16 < checker.nblocks)
			put(&verify->entries, records->tid * 4 + IVFPQ_NO_RECORD, 0);
	if (meta->refine != IVFPQ_REFINE_NONE)
		IvfpqCheckRecordChain(&checker);
	return true;
}

/*
 * Called for every visible row that satisfies the index's predicate.  Collects
 * the row's TID and the digest of its keys.
 *
 * Reports a row that has other dimensions than the index.  This is a warning
 * if queries skip such a row.  It is an error if the metapage says that the
 * dimensions of all rows were checked, because then queries fail on such a
 * row.
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
				   "has %d dimensions, but the index has %d", dims, verify->dims);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(verify->tmp);
}

/*
 * Returns whether a row is still pending after the lists were read.  Callers
 * must ask about rows in ascending order.
 *
 * The pending list is read again only once, at the first call, when all lists
 * have been read.  This is enough for all rows: unless the index is damaged, a
 * row that was found in a list had left the pending list before, and no row
 * returns to the pending list, unless the index was trained anew.
 */
static bool
is_still_pending(Verify *verify, uint64 id)
{
	if (verify->pending_damaged)
		return true;			/* the pending list cannot be read again */
	if (verify->pending.state == NULL)
	{
		IvfpqFrozen whole = {.tail = InvalidBlockNumber};
		IvfpqMetaData meta;

		IvfpqMetaRead(verify->index, &meta);
		if (meta.build_id != verify->meta.build_id)
			return false;
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
 * Reports a row unless the index holds it as it should: either pending once,
 * or with one posting in each list that should hold it.  count [4] says how
 * many times the row was found in each IvfpqPlace.
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
		/* the row moved meanwhile, perhaps after we read its second list */
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
				   "is pending %lld times, and in the index %lld times as primary and %lld times as secondary posting",
				   (long long) pending, (long long) first,
				   (long long) secondary);
	if (count[IVFPQ_NO_RECORD] > 0)
		report_row(verify, true, id,
				   "is in the index without its refine record");
}

/*
 * Compares the rows of the table with the entries of the index.  Every row
 * must have an entry.  Entries without a row belong to dead rows.
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

/*
 * Reports each row that has a posting whose keys differ from the row's keys.
 * A row with two such postings is reported only once.
 */
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
 * gpuvec_verify_index(index regclass, mirror boolean): verifies pages, rows
 * and, if `mirror` is true, gpuvecd's mirror, all as the table's owner.
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

	index = IvfpqOpenIndexTable(PG_GETARG_OID(0), AccessShareLock, NULL,
								&heap);
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
			   "the index is not valid, so its rows were not compared with those of the table");

	/* skip the pages of a build that is in progress or has failed */
	if (index->rd_index->indisready && check_pages(&verify, snapshot) &&
		verify.valid)
	{
		IndexInfo  *indexInfo = IvfpqIndexInfo(index);
		IvfpqMetaData meta;

		IvfpqMetaRead(index, &meta);
		verify.dims_checked = (meta.dims_flags & IVFPQ_DIMS_CHECKED) != 0;
		verify.dims = verify.dims_checked ? meta.dims :
			IvfpqRowDims(heap, index, &meta);

		/* read the visible rows, with the TIDs of their index entries */
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
