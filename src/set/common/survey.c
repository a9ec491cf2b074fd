/*
 * survey.c
 *		What set functions know of a table's rows after they have read all of
 *		them once, and vectors by their positions.
 *
 * A table is read several times: for a sample, for queries, and for each tile
 * of queries.  To turn a value into floats takes most of it, where it is of
 * pgvector's types, so vectors are kept as far as the caller's memory goes, or
 * are sent to gpuvecd at once, which keeps them.  Of others it is known in
 * which block they are, about, so that a row here and there does not cost all
 * that are before it.
 */
#include "postgres.h"

#include <sys/mman.h>

#include "access/detoast.h"
#include "access/heapam.h"
#include "access/table.h"
#include "miscadmin.h"
#include "optimizer/plancat.h"
#include "storage/bufmgr.h"

#include "set/common/common.h"
#include "set/common/tablerows.h"

/* To send fewer bytes is not worth a connection. */
#define LEAST_SENT		(1 << 18)
#define SENT_ROWS		32		/* at a time */

/* Rows from one marked block to the next, at least. */
#define MARKED_ROWS		256

/* Of the usual processors. */
#define LARGE_PAGE		(2 * 1024 * 1024)

/* For qsort of int64; a long sort must end, too. */
int
IvfpqCompareSigned(const void *a, const void *b)
{
	int64		x = *(const int64 *) a;
	int64		y = *(const int64 *) b;

	CHECK_FOR_INTERRUPTS();
	return x < y ? -1 : x > y;
}

static void
report_key_twice(const IvfpqTable *table, int64 key)
{
	ereport(ERROR,
			(errcode(ERRCODE_CARDINALITY_VIOLATION),
			 errmsg("key %lld occurs more than once in table \"%s\"",
					(long long) key, RelationGetRelationName(table->rel)),
			 errhint("Name a column whose values are unique, such as the primary key.")));
}

/*
 * A bit for each key from the least to the greatest, in no more memory than to
 * sort them takes; false: they are too far from each other.
 */
static bool
check_close_keys(const IvfpqTable *table)
{
	int64		least = table->keys[0];
	int64		greatest = least;
	uint64		nwords;
	uint64	   *seen;

	for (int64 i = 1; i < table->nrows; i++)
	{
		CHECK_FOR_INTERRUPTS();
		least = Min(least, table->keys[i]);
		greatest = Max(greatest, table->keys[i]);
	}
	nwords = ((uint64) greatest - (uint64) least) / 64 + 1;
	if (nwords > (uint64) table->nrows)
		return false;
	seen = palloc_extended(nwords * sizeof(uint64),
						   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	for (int64 i = 0; i < table->nrows; i++)
	{
		uint64		at = (uint64) table->keys[i] - (uint64) least;
		uint64		bit = UINT64CONST(1) << at % 64;

		CHECK_FOR_INTERRUPTS();
		if (seen[at / 64] & bit)
			report_key_twice(table, table->keys[i]);
		seen[at / 64] |= bit;
	}
	pfree(seen);
	return true;
}

/* ERROR if two rows have the same key. */
static void
check_keys(const IvfpqTable *table)
{
	Size		bytes = table->nrows * sizeof(int64);
	int64	   *sorted;
	int64		i = 1;

	while (i < table->nrows && table->keys[i - 1] < table->keys[i])
		i++;
	/* they ascend, as they often do, or are close to each other */
	if (i >= table->nrows || check_close_keys(table))
		return;
	sorted = palloc_extended(bytes, MCXT_ALLOC_HUGE);
	memcpy(sorted, table->keys, bytes);
	qsort(sorted, table->nrows, sizeof(int64), IvfpqCompareSigned);
	for (i = 1; i < table->nrows; i++)
		if (sorted[i - 1] == sorted[i])
			report_key_twice(table, sorted[i]);
	pfree(sorted);
}

/*
 * Let the system give large pages to an array that is long: each that is
 * touched first costs it about the same, small or large, and what is looked up
 * anywhere in them is found sooner.
 */
static void *
in_large_pages(void *items, Size bytes)
{
#ifdef MADV_HUGEPAGE
	char	   *first = (char *) TYPEALIGN(LARGE_PAGE, items);
	char	   *end = (char *) TYPEALIGN_DOWN(LARGE_PAGE,
											  (char *) items + bytes);

	/* without them it is as good */
	if (end > first)
		(void) madvise(first, end - first, MADV_HUGEPAGE);
#endif
	return items;
}

/* An array of nrows items, which is full, grows. */
static void *
grow(void *items, int64 nrows, Size size)
{
	int64		capacity = nrows == 0 ? 1024 : 2 * nrows;

	if (nrows == 0)
		return palloc(capacity * size);
	return in_large_pages(repalloc_huge(items, capacity * size),
						  capacity * size);
}

/* Is an array of n items that grow() made full? */
static bool
is_full_at(int64 n)
{
	return n == 0 || (n >= 1024 && (n & (n - 1)) == 0);
}

static void
note_row(IvfpqTable *table)
{
	int64		i = table->nrows;
	bool		is_full = is_full_at(i);

	if (table->key_column != InvalidAttrNumber)
	{
		if (is_full)
			table->keys = grow(table->keys, i, sizeof(int64));
		table->keys[i] = IvfpqTableKey(table, table->slot);
	}
	else
	{
		if (is_full)
			table->tids = grow(table->tids, i, sizeof(ItemPointerData));
		table->tids[i] = table->slot->tts_tid;
	}
	table->nrows++;
}

/*
 * Mark the current row's block, if the row is the first of it and enough came
 * since the last mark.  Only a heap's reading can begin at a block.
 */
static void
note_mark(IvfpqTable *table, BlockNumber *block)
{
	int64		position = table->nrows;
	BlockNumber last = *block;
	IvfpqMark  *mark;

	*block = ItemPointerGetBlockNumber(&table->slot->tts_tid);
	if (*block == last ||
		(table->nmarks > 0 &&
		 position < table->marks[table->nmarks - 1].position + MARKED_ROWS))
		return;
	if (is_full_at(table->nmarks))
		table->marks = grow(table->marks, table->nmarks, sizeof(IvfpqMark));
	mark = &table->marks[table->nmarks++];
	mark->position = position;
	mark->block = *block;
}

/*
 * Allocates memory for vectors that are kept: first for as many as the table's
 * pages may hold, for most tables all, then twice as many; no more than
 * `most`.
 */
static void
ensure_capacity(IvfpqTable *table, int64 most)
{
	Size		bytes = table->dims * sizeof(float);
	int64		stored = (int64) RelationGetNumberOfBlocks(table->rel) *
	BLCKSZ / bytes;

	table->kept_capacity =
		Min(Max(Max(stored, 2 * table->kept_capacity), 1024), most);
	bytes *= table->kept_capacity;
	table->kept = in_large_pages(table->kept == NULL ?
								 palloc_extended(bytes, MCXT_ALLOC_HUGE) :
								 repalloc_huge(table->kept, bytes), bytes);
}

/* Keep one more vector; memory holds `most`. */
static void
keep(IvfpqTable *table, const float *vector, int64 most)
{
	if (table->nkept == table->kept_capacity)
		ensure_capacity(table, most);
	memcpy(table->kept + table->nkept * table->dims, vector,
		   table->dims * sizeof(float));
	table->nkept++;
}

/*
 * Estimates how many rows there may be: as many vectors of the first one's
 * stored size as the table's pages hold, but at most a quarter more than the
 * planner thinks.  If there are more, they are not sent.
 */
static int64
most_rows(const IvfpqTable *table)
{
	Oid			toast = table->rel->rd_rel->reltoastrelid;
	BlockNumber nblocks;
	BlockNumber npages;
	double		nrows;
	double		visible;
	double		fit;

	estimate_rel_size(table->rel, NULL, &npages, &nrows, &visible);
	nblocks = npages;
	if (VARATT_IS_EXTERNAL(DatumGetPointer(table->vector)) &&
		OidIsValid(toast))
	{
		Relation	rel = table_open(toast, AccessShareLock);

		nblocks = RelationGetNumberOfBlocks(rel);
		table_close(rel, AccessShareLock);
	}
	fit = (double) nblocks * BLCKSZ / toast_datum_size(table->vector);
	return (int64) Max(Min(fit, 1.25 * nrows + MARKED_ROWS), 1);
}

/* Have gpuvecd keep rows, if it can keep as many as there may be. */
static void
begin_to_send(IvfpqTable *table, int64 nrows)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT, .metric = GV_SET_L2,
	.dims = table->dims, .k = 1, .own = 1, .nrows = nrows};

	if (nrows * table->dims * (int64) sizeof(float) < LEAST_SENT ||
		!IvfpqWorkKeeps(nrows, table->dims))
		return;
	table->work = IvfpqWorkBegin(&spec, IVFPQ_WORK_SERVER);
	table->work_rows = nrows;
}

/* See tablerows.h. */
void
IvfpqTableStopAsking(IvfpqTable *table)
{
	if (table->work != NULL)
		IvfpqWorkEnd(table->work);
	table->work = NULL;
}

/* A first reading of all rows, and what becomes of their vectors. */
typedef struct Survey
{
	IvfpqTable *table;
	Size		keep_bytes;
	bool		send;
	int64		most;			/* to keep */
	float	   *batch;			/* [SENT_ROWS][dims] to send, */
	int			n;				/* rows in it */
} Survey;

/* Send what is gathered. */
static void
send_batch(Survey *survey)
{
	IvfpqTable *table = survey->table;

	if (survey->n > 0 && table->work != NULL &&
		(table->nrows > table->work_rows ||
		 !IvfpqWorkPut(table->work, GV_SET_ROWS, survey->batch, survey->n)))
		IvfpqTableStopAsking(table);
	survey->n = 0;
}

/* The first row says how long vectors are, and so what is to be done. */
static void
take_first(Survey *survey, const float *vector, int64 to_send)
{
	IvfpqTable *table = survey->table;
	Size		bytes = table->dims * sizeof(float);

	if (to_send > 0)
		begin_to_send(table, to_send);
	if (table->work != NULL)
	{
		survey->batch = palloc(SENT_ROWS * bytes);
		memcpy(survey->batch, vector, bytes);
		survey->n = 1;
		send_batch(survey);
	}
	if (table->work == NULL)
		survey->most = survey->keep_bytes / bytes;
	if (survey->most > 0)
		keep(table, vector, survey->most);
}

/* The current row's vector. */
static void
take_vector(Survey *survey)
{
	IvfpqTable *table = survey->table;
	int64		to_send = table->nrows == 1 && survey->send ?
	most_rows(table) : 0;
	const float *vector = IvfpqTableFloats(table);

	if (table->nrows == 1)
		take_first(survey, vector, to_send);
	else if (table->work == NULL)
		keep(table, vector, survey->most);
	else
	{
		memcpy(survey->batch + survey->n * table->dims, vector,
			   table->dims * sizeof(float));
		if (++survey->n == SENT_ROWS)
			send_batch(survey);
	}
}

/* Read all rows, see tablerows.h. */
void
IvfpqTableSurvey(IvfpqTable *table, Size keep_bytes, bool send)
{
	bool		is_heap = table->rel->rd_tableam == GetHeapamTableAmRoutine();
	BlockNumber block = InvalidBlockNumber;
	Survey		survey = {.table = table, .keep_bytes = keep_bytes,
	.send = send};

	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_KEYS, 0);
	while (IvfpqTableNext(table))
	{
		if (is_heap)
			note_mark(table, &block);
		note_row(table);
		if (table->nrows == 1 || table->nkept < survey.most ||
			table->work != NULL)
			take_vector(&survey);
		if (table->nrows % 4096 == 0)
			IvfpqProgressDone(table->nrows);
	}
	send_batch(&survey);
	if (survey.batch != NULL)
		pfree(survey.batch);
	if (table->key_column != InvalidAttrNumber)
		check_keys(table);
}

/* Give memory back, see tablerows.h. */
void
IvfpqTableForget(IvfpqTable *table)
{
	IvfpqTableStopAsking(table);
	if (table->kept != NULL)
		pfree(table->kept);
	table->kept = NULL;
	table->nkept = 0;
	table->kept_capacity = 0;
}

/* The last mark that is not behind a position; NULL: there is none. */
static const IvfpqMark *
mark_before(const IvfpqTable *table, int64 position)
{
	int64		low = 0;
	int64		high = table->nmarks;

	while (low < high)
	{
		int64		middle = low + (high - low) / 2;

		if (table->marks[middle].position <= position)
			low = middle + 1;
		else
			high = middle;
	}
	return low == 0 ? NULL : &table->marks[low - 1];
}

/* The row at a position, one that there is, becomes the current one. */
static void
go_to(IvfpqTable *table, int64 position)
{
	bool		is_behind = table->scan == NULL || position < table->next;

	if (is_behind || position > table->next + MARKED_ROWS)
	{
		const IvfpqMark *mark = mark_before(table, position);

		if (is_behind || (mark != NULL && mark->position > table->next))
			IvfpqTableBegin(table, mark);
	}
	do
		if (!IvfpqTableNext(table))
			elog(ERROR, "table \"%s\" has lost rows",
				 RelationGetRelationName(table->rel));
	while (table->next <= position);
}

/* The vector at a position, see tablerows.h. */
const float *
IvfpqTableVector(IvfpqTable *table, int64 position)
{
	if (position < table->nkept)
		return table->kept + position * table->dims;
	go_to(table, position);
	return IvfpqTableFloats(table);
}

/* Vectors from a position on, see tablerows.h. */
int
IvfpqTableRead(IvfpqTable *table, int64 first, int most, float *buffer,
			   const float **vectors)
{
	if (first < table->nkept)
	{
		*vectors = table->kept + first * table->dims;
		return (int) Min(most, table->nkept - first);
	}
	*vectors = buffer;
	for (int i = 0; i < most; i++)
	{
		go_to(table, first + i);
		memcpy(buffer + (Size) i * table->dims, IvfpqTableFloats(table),
			   table->dims * sizeof(float));
	}
	return most;
}

/* How many vectors make a batch. */
int
IvfpqTableBatch(const IvfpqTable *table)
{
	Size		bytes = table->dims * sizeof(float);

	return (int) Max(IVFPQ_BATCH_BYTES / bytes, 1);
}
