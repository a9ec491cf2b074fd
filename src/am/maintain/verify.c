/*
 * verify.c
 *		gpuvec_verify_index: is the index sound, and does it find every row?
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
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplesort.h"
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
#include "pgcompat.h"

/* Columns of the result. */
#define VERIFY_SEVERITY		0
#define VERIFY_BLOCK		1
#define VERIFY_LIST			2
#define VERIFY_PROBLEM		3
#define VERIFY_NCOLUMNS		4

/* Compares abbreviated keys in the index with the table's values. */
typedef struct VerifyKeys
{
	IvfpqKeys	keys;			/* if there are none, all calls do nothing */
	IvfpqPairSort sort;			/* TID * 2, and 1 for a posting; digest */
} VerifyKeys;

/* Compares refine records with their rows. */
typedef struct VerifyRecords
{
	Relation	index;
	IvfpqModel *model;
	IvfpqType	type;
	IvfpqRerank rows;			/* fetches them */
	float	   *vector;			/* [dims] of one */
} VerifyRecords;

typedef struct Verify
{
	Relation	heap;
	Relation	index;
	ReturnSetInfo *result;
	IvfpqType	type;
	int			dims;			/* that all rows should have; 0 = any */
	bool		dims_checked;	/* of all rows, when they were inserted */
	bool		mirror;			/* compare gpuvecd's mirror, too */
	IvfpqMetaData meta;			/* as it was checked */
	bool		damaged;		/* an error was reported */
	bool		compares_records;	/* compare refine records with rows */
	VerifyRecords records;
	int			lists_per_row;	/* lists that should hold a row */
	Tuplesortstate *entries;	/* int8: TIDs in the index * 4 + IvfpqPlace */
	Tuplesortstate *rows;		/* int8: TIDs of rows to be found there */
	Tuplesortstate *pending;	/* int8: TIDs pending when all was read; NULL
								 * until a row asks */
	bool		more_pending;	/* the next one in it is this: */
	uint64		pending_id;
	bool		pending_damaged;	/* it cannot be read to its end */
	IvfpqPairSort postings_by_record;	/* refine address, TID */
	bool		more;			/* the next one in it is this: */
	uint64		address;
	uint64		tid;
	VerifyKeys	keys;
	MemoryContext tmp;			/* reset after every row */
} Verify;

PG_FUNCTION_INFO_V1(gpuvec_verify_index);

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

/* Reports an error of a row that the index holds. */
static void
report_entry(Verify *verify, uint64 id, const char *defect)
{
	ItemPointerData tid;
	char	   *problem;

	IvfpqIdToTid(id, &tid);
	problem = psprintf("row (%u,%u) of table \"%s\" is in the index %s",
					   ItemPointerGetBlockNumberNoCheck(&tid),
					   ItemPointerGetOffsetNumberNoCheck(&tid),
					   RelationGetRelationName(verify->heap), defect);
	report(verify, true, InvalidBlockNumber, IVFPQ_NO_LIST, problem);
	pfree(problem);
}

/*
 * Begins to compare keys, of an index that may have some; memory from the
 * current context.
 */
static void
verify_keys_begin(VerifyKeys *verify, Relation index)
{
	memset(verify, 0, sizeof(*verify));
	IvfpqKeysInit(&verify->keys, index);
	if (verify->keys.nkeys > 0)
		IvfpqPairSortBegin(&verify->sort);
}

/* Adds a posting of the index. */
static void
verify_keys_posting(VerifyKeys *verify, const IvfpqFound *found)
{
	if (verify->keys.nkeys > 0 && found->place != IVFPQ_PENDING)
		IvfpqPairSortPut(&verify->sort, IvfpqTidToId(&found->tid) * 2 + 1,
						 found->keys);
}

/* Adds a row that the snapshot sees, with the values of the index's columns. */
static void
verify_keys_row(VerifyKeys *verify, ItemPointer tid,
				const Datum *values, const bool *isnull)
{
	IvfpqKeyAbbrevs abbrevs;

	if (verify->keys.nkeys == 0)
		return;
	IvfpqKeysMake(&verify->keys, values, isnull, &abbrevs);
	IvfpqPairSortPut(&verify->sort, IvfpqTidToId(tid) * 2,
					 IvfpqKeyAbbrevsDigest(&verify->keys.form, &abbrevs));
}

/*
 * Reports each row, once, of which a posting has other keys.  Call when all
 * postings and rows were added.
 */
static void
verify_keys_compare(Verify *verify)
{
	VerifyKeys *keys = &verify->keys;
	uint64		row = 0;
	uint64		expected = 0;
	uint64		place;
	uint64		digest;
	bool		seen = false;

	if (keys->keys.nkeys == 0)
		return;
	IvfpqPairSortPerform(&keys->sort);
	while (IvfpqPairSortNext(&keys->sort, &place, &digest))
	{
		CHECK_FOR_INTERRUPTS();
		if (place % 2 == 0)
		{
			row = place / 2;
			expected = digest;
			seen = true;
		}
		else if (seen && place / 2 == row && digest != expected)
		{
			report_entry(verify, row, "with other keys");
			seen = false;
		}
	}
}

static void
verify_keys_end(VerifyKeys *verify)
{
	if (verify->keys.nkeys > 0)
		IvfpqPairSortEnd(&verify->sort);
}

/* Begins to compare the records of a trained index, whose model is sound. */
static void
verify_records_begin(VerifyRecords *verify, Relation heap,
					 Relation index, Snapshot snapshot)
{
	verify->index = index;
	verify->model = IvfpqModelGet(index);
	verify->vector = palloc(verify->model->meta.dims * sizeof(float));
	IvfpqTypeInit(&verify->type, index);
	IvfpqRerankBegin(&verify->rows, heap, index, snapshot);
}

static void
verify_records_end(VerifyRecords *verify)
{
	IvfpqRerankEnd(&verify->rows);
	pfree(verify->vector);
	pfree(verify->model);
}

/* Returns whether the record bounds distances of a row with this value. */
static bool
bounds_value(VerifyRecords *verify, const IvfpqRecord *record,
			 Datum value)
{
	const GvModel *gv = &verify->model->gv;
	GvRefine	refine = {record->min, record->step, record->error,
	record->codes};
	GvHalfRecord half_record = IvfpqHalfRecord(record);
	GvRange		range = {0, 0};
	const float *raw;
	int			dims;

	raw = IvfpqValueFloats(&verify->type, value, &dims);
	if (dims != gv->dims || !IvfpqIsPlaceable(&verify->type, raw, dims))
		return true;			/* another row's: that is compared elsewhere */
	if (!IvfpqIsBoundable(&verify->type, raw, dims))
		return isinf(record->error);
	IvfpqTransform(verify->index, verify->model, raw, verify->vector);
	if (verify->model->meta.refine == IVFPQ_REFINE_HALF)
		IvfpqCheckStatus(gv_half_range(GV_L2, dims, verify->vector,
									   &half_record,
									   1, &range));
	else
		IvfpqCheckStatus(gv_refine_bound(GV_L2, dims, verify->vector, &refine,
										 1, &range.least));
	return range.least <= 0;
}

/*
 * Returns whether a record bounds its row.  The record of a row that the
 * snapshot does not see does not matter.
 */
static bool
verify_record(VerifyRecords *verify, const IvfpqRecord *record)
{
	MemoryContext oldcontext;
	Datum		value;
	bool		bounds;

	if (!IvfpqRerankFetch(&verify->rows, IvfpqTidToId(&record->tid), &value))
		return true;
	oldcontext = MemoryContextSwitchTo(verify->rows.context);
	bounds = bounds_value(verify, record, value);
	MemoryContextSwitchTo(oldcontext);
	IvfpqRerankDone(&verify->rows);
	return bounds;
}

/*
 * Returns whether the rotation of an index, whose pages are sound, is
 * orthogonal, as it was written.
 */
static bool
verify_rotation(Relation index, const IvfpqMetaData *meta)
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

static Tuplesortstate *
begin_sort(void)
{
	return tuplesort_begin_datum(INT8OID, Int8LessOperator, InvalidOid, false,
								 Max(maintenance_work_mem / 2, 64), NULL,
								 TUPLESORT_NONE);
}

/* IvfpqChecker.forget */
static void
forget_entries(void *arg)
{
	Verify	   *verify = arg;

	tuplesort_end(verify->entries);
	verify->entries = begin_sort();
}

static void
put_entry(Verify *verify, uint64 id, IvfpqPlace place)
{
	tuplesort_putdatum(verify->entries,
					   Int64GetDatum((int64) (id * 4 + place)), false);
}

/* IvfpqChecker.take */
static void
take_entries(void *arg, const IvfpqFound *found, int64 nfound)
{
	Verify	   *verify = arg;

	for (int64 i = 0; i < nfound; i++)
	{
		put_entry(verify, IvfpqTidToId(&found[i].tid), found[i].place);
		verify_keys_posting(&verify->keys, &found[i]);
		if (ItemPointerIsValid(&found[i].refine))
			IvfpqPairSortPut(&verify->postings_by_record,
							 IvfpqTidToId(&found[i].refine),
							 IvfpqTidToId(&found[i].tid));
	}
}

/* Reads the next posting by refine record. */
static void
next_posting(Verify *verify)
{
	verify->more = IvfpqPairSortNext(&verify->postings_by_record,
									 &verify->address, &verify->tid);
}

/* Compares the records of a page with their rows. */
static void
compare_records(Verify *verify, BlockNumber blkno, Page page, int n)
{
	BlockNumber heap_blocks = RelationGetNumberOfBlocks(verify->heap);
	int			code_bytes = IvfpqRecordCodeBytes(verify->meta.refine,
												  verify->meta.dims);

	for (int i = 0; i < n; i++)
	{
		const IvfpqRecord *record = IvfpqRecordGet(page, code_bytes, i);
		char	   *problem;

		CHECK_FOR_INTERRUPTS();
		/* what lies beyond the table is reported already */
		if (!ItemPointerIsValid(&record->tid) ||
			ItemPointerGetBlockNumber(&record->tid) >= heap_blocks ||
			verify_record(&verify->records, record))
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
 * IvfpqChecker.records.  Notes postings that point to an earlier page, which
 * is no refine page, or to the record of another row.  Whether that is wrong
 * depends on whether the row is visible, which is not known yet.
 */
static void
take_records(void *arg, BlockNumber blkno, Page page, int n)
{
	Verify	   *verify = arg;
	int			code_bytes = IvfpqRecordCodeBytes(verify->meta.refine,
												  verify->meta.dims);

	for (; verify->more &&
		 verify->address >> 16 <= blkno; next_posting(verify))
	{
		uint64		slot = verify->address & 0xFFFF;

		if (verify->address >> 16 != blkno || slot > (uint64) n ||
			IvfpqTidToId(&IvfpqRecordGet(page, code_bytes, slot - 1)->tid) !=
			verify->tid)
			put_entry(verify, verify->tid, IVFPQ_NO_RECORD);
	}
	if (verify->compares_records)
		compare_records(verify, blkno, page, n);
}

/*
 * Checks metapage, arrays and the pending list.  Returns false if not even the
 * metapage makes sense.  Pending rows come before lists, because a row may
 * move from there to a list.  If the index was trained meanwhile, all rows
 * did, so everything is read again.
 */
static bool
check_model(IvfpqChecker *checker, GvMetric metric)
{
	Verify	   *verify = checker->arg;
	IvfpqMetaData meta;

	for (;;)
	{
		bool		damaged;

		if (!IvfpqCheckMeta(checker, metric))
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
check_pages(Verify *verify, Snapshot snapshot, bool valid)
{
	IvfpqChecker checker = {
		.index = verify->index,
		.heap = verify->heap,
		.arg = verify,
		.report = report,
		.take = take_entries,
		.forget = forget_entries,
		.records = take_records
	};

	if (!check_model(&checker, verify->type.metric))
		return false;
	if (!IvfpqMetaHasKeys(&checker.meta, &verify->keys.keys.form))
	{
		report(verify, true, IVFPQ_METAPAGE, IVFPQ_NO_LIST,
			   "its keys are not those of its columns");
		return false;
	}
	verify->meta = checker.meta;
	if (verify->meta.rotated && verify->meta.nlists > 0 && !verify->damaged &&
		!verify_rotation(verify->index, &verify->meta))
		report(verify, true, verify->meta.rotation, IVFPQ_NO_LIST,
			   "the rotation is not orthogonal");
	verify->compares_records = valid && !verify->damaged &&
		verify->meta.nlists > 0 && verify->meta.refine != IVFPQ_REFINE_NONE;
	for (int list = 0; list < checker.meta.nlists; list++)
		(void) IvfpqCheckList(&checker, list, false);
	/* all postings are taken; from now on their records come */
	IvfpqPairSortPerform(&verify->postings_by_record);
	next_posting(verify);
	if (verify->compares_records)
		verify_records_begin(&verify->records, verify->heap, verify->index,
							 snapshot);
	IvfpqCheckSlabs(&checker);
	if (verify->compares_records)
		verify_records_end(&verify->records);
	/* records on pages younger than the check have not come */
	for (; verify->more; next_posting(verify))
		if (verify->address >> 16 < checker.nblocks)
			put_entry(verify, verify->tid, IVFPQ_NO_RECORD);
	if (checker.meta.refine != IVFPQ_REFINE_NONE)
		IvfpqCheckRecordChain(&checker);
	verify->lists_per_row = checker.meta.nlists > 1 ?
		checker.meta.lists_per_row : 1;
	return true;
}

/*
 * Reports a row that has other dimensions than the index: queries leave it
 * out, or fail where the metapage says that there is none.
 */
static void
report_dims(Verify *verify, Datum value, ItemPointer tid)
{
	int			dims;
	char	   *problem;

	(void) IvfpqValueFloats(&verify->type, value, &dims);
	problem = psprintf("row (%u,%u) of table \"%s\" has %d dimensions, the index %d",
					   ItemPointerGetBlockNumber(tid),
					   ItemPointerGetOffsetNumber(tid),
					   RelationGetRelationName(verify->heap), dims,
					   verify->dims);
	report(verify, verify->dims_checked, InvalidBlockNumber, IVFPQ_NO_LIST,
		   problem);
}

/* Called for every visible row that the index's predicate admits. */
static void
row_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
			 bool alive, void *arg)
{
	Verify	   *verify = arg;
	MemoryContext oldcontext;
	bool		wanted;

	if (isnull[0])
		return;
	oldcontext = MemoryContextSwitchTo(verify->tmp);
	if (!IvfpqHasDims(&verify->type, values[0], verify->dims))
		report_dims(verify, values[0], tid);
	wanted = IvfpqHasPlace(&verify->type, values[0], verify->dims);
	if (wanted)
		verify_keys_row(&verify->keys, tid, values, isnull);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(verify->tmp);
	if (wanted)
		tuplesort_putdatum(verify->rows,
						   Int64GetDatum((int64) IvfpqTidToId(tid)), false);
}

/* Sorts the TIDs of the rows that the index has to find. */
static void
read_table(Verify *verify, Snapshot snapshot)
{
	IndexInfo  *indexInfo = IvfpqIndexInfo(verify->index);
	TableScanDesc scan = table_beginscan_strat(verify->heap, snapshot, 0, NULL,
											   true, true);

	/* rows as the snapshot sees them, with the TIDs that indexes know */
	indexInfo->ii_Concurrent = true;
	table_index_build_scan(verify->heap, verify->index, indexInfo, true, false,
						   row_callback, verify, scan);
}

/* Reads the next TID of a sort.  Returns false at the end. */
static bool
next_id(Tuplesortstate *sort, uint64 *id)
{
	Datum		value;
	bool		isnull;

	if (!IvfpqTuplesortGetDatum(sort, &value, &isnull))
		return false;
	*id = (uint64) DatumGetInt64(value);
	return true;
}

/* Sorts the TIDs that are pending now; those that a restart repeats, too. */
static void
read_pending(Verify *verify)
{
	IvfpqPendingReader reader;
	IvfpqMetaData meta;
	int			count;

	verify->pending = begin_sort();
	IvfpqMetaRead(verify->index, &meta);
	IvfpqPendingOpen(&reader, verify->index, &meta);
	while (IvfpqPendingNext(&reader, &count))
		for (int i = 0; i < count; i++)
			tuplesort_putdatum(verify->pending,
							   Int64GetDatum((int64) IvfpqTidToId(&reader.tids[i])),
							   false);
	IvfpqPendingClose(&reader);
	tuplesort_performsort(verify->pending);
	verify->more_pending = next_id(verify->pending, &verify->pending_id);
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
	if (verify->pending == NULL)
		read_pending(verify);
	while (verify->more_pending && verify->pending_id < id)
		verify->more_pending = next_id(verify->pending, &verify->pending_id);
	return verify->more_pending && verify->pending_id == id;
}

/*
 * Reports a row unless the index holds it as it should: once pending, or once
 * in every list that is to hold it.  count [3] by IvfpqPlace.
 */
static void
report_row(Verify *verify, uint64 id, const int64 *count)
{
	int64		pending = count[IVFPQ_PENDING];
	int64		first = count[IVFPQ_PRIMARY_POSTING];
	int64		secondary = count[IVFPQ_SECONDARY_POSTING];
	bool		missing = pending + first + secondary == 0;
	ItemPointerData tid;
	StringInfoData problem;

	if (pending == 1 && first == 1 && !is_still_pending(verify, id))
	{
		/* it moved while we read; its second list may have been read before */
		if (secondary <= verify->lists_per_row - 1)
			return;
		pending = 0;
	}
	if (secondary == verify->lists_per_row - 1 ? pending + first == 1 :
		pending == 1 && first + secondary == 0)
		return;

	IvfpqIdToTid(id, &tid);
	initStringInfo(&problem);
	appendStringInfo(&problem, "row (%u,%u) of table \"%s\" is ",
					 ItemPointerGetBlockNumberNoCheck(&tid),
					 ItemPointerGetOffsetNumberNoCheck(&tid),
					 RelationGetRelationName(verify->heap));
	if (missing)
		appendStringInfoString(&problem, "not in the index");
	else if (verify->lists_per_row == 1)
		appendStringInfo(&problem, "in the index %lld times",
						 (long long) (pending + first + secondary));
	else
		appendStringInfo(&problem,
						 "pending %lld times, in the index %lld times as first and %lld times as second copy",
						 (long long) pending, (long long) first,
						 (long long) secondary);
	report(verify, missing, InvalidBlockNumber, IVFPQ_NO_LIST, problem.data);
	pfree(problem.data);
}

/* Every row must be among the entries; other entries are of dead rows. */
static void
compare_rows(Verify *verify)
{
	uint64		row;
	uint64		entry = 0;
	bool		more;

	tuplesort_performsort(verify->entries);
	tuplesort_performsort(verify->rows);
	more = next_id(verify->entries, &entry);
	while (next_id(verify->rows, &row))
	{
		int64		count[4] = {0};

		CHECK_FOR_INTERRUPTS();
		while (more && entry / 4 <= row)
		{
			if (entry / 4 == row)
				count[entry % 4]++;
			more = next_id(verify->entries, &entry);
		}
		report_row(verify, row, count);
		if (count[IVFPQ_NO_RECORD] > 0)
			report_entry(verify, row, "without its refine record");
	}
}

/* Verifies pages, then rows, all as the table's owner. */
static void
verify_index(Verify *verify)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	bool		valid = verify->index->rd_index->indisvalid;
	IvfpqMetaData meta;

	IvfpqTypeInit(&verify->type, verify->index);
	verify->tmp = AllocSetContextCreate(CurrentMemoryContext,
										"gpuivfpq verify row",
										ALLOCSET_DEFAULT_SIZES);
	verify->entries = begin_sort();
	verify->rows = begin_sort();
	IvfpqPairSortBegin(&verify->postings_by_record);
	verify_keys_begin(&verify->keys, verify->index);
	if (!valid)
		report(verify, false, InvalidBlockNumber, IVFPQ_NO_LIST,
			   "the index is not valid, its rows are not compared with the table's");

	/* what a build has written so far, or had when it failed, is no index */
	if (verify->index->rd_index->indisready &&
		check_pages(verify, snapshot, valid) && valid)
	{
		IvfpqMetaRead(verify->index, &meta);
		verify->dims_checked = (meta.dims_flags & IVFPQ_DIMS_CHECKED) != 0;
		verify->dims = verify->dims_checked ? meta.dims :
			IvfpqRowDims(verify->heap, verify->index, &meta);
		read_table(verify, snapshot);
		compare_rows(verify);
		verify_keys_compare(verify);
		if (verify->mirror)
			IvfpqVerifyMirror(verify->index, report, verify);
	}
	tuplesort_end(verify->entries);
	tuplesort_end(verify->rows);
	if (verify->pending != NULL)
		tuplesort_end(verify->pending);
	IvfpqPairSortEnd(&verify->postings_by_record);
	verify_keys_end(&verify->keys);
	UnregisterSnapshot(snapshot);
}

/* gpuvec_verify_index(index regclass, mirror boolean) */
Datum
gpuvec_verify_index(PG_FUNCTION_ARGS)
{
	Verify		verify = {.result = (ReturnSetInfo *) fcinfo->resultinfo};
	IvfpqIdentity caller;

	verify.mirror = PG_GETARG_BOOL(1);
	verify.index = IvfpqOpenIndexTable(PG_GETARG_OID(0), AccessShareLock,
									   &verify.heap);
	IvfpqCheckInspect(verify.index);
	IvfpqCheckActing(verify.heap, verify.index);
	InitMaterializedSRF(fcinfo, 0);

	IvfpqActAsOwner(&caller, verify.heap);
	verify_index(&verify);
	IvfpqActAsCaller(&caller);

	relation_close(verify.index, AccessShareLock);
	table_close(verify.heap, AccessShareLock);
	return (Datum) 0;
}
