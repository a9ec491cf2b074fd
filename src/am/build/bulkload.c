/*
 * bulkload.c
 *		From rows to inverted lists, in bulk: have every row placed and
 *		encoded, write its refine record, gather the copies by list, write
 *		centroids, codebooks, directory and lists.
 *
 * CREATE INDEX feeds it from the table, training in place from the pending
 * list.  Until the caller writes the metapage nobody finds any of it.
 *
 * Every participant of a build has one, and calls what stands here.  Each
 * places the rows that it reads; when all are placed, lists are written in
 * ranges, by whoever has time for the next.
 */
#include "postgres.h"

#include "commands/progress.h"
#include "miscadmin.h"
#include "utils/backend_progress.h"
#include "utils/memutils.h"

#include "am/build/bulkload.h"
#include "am/calibrate/ladder.h"
#include "am/common/options.h"
#include "am/common/phase.h"
#include "am/common/tid.h"
#include "page/array.h"
#include "page/stoppoint.h"

/* Ranges of lists for each participant, so that none waits long for others. */
#define RANGES_EACH		4

/* Write the refine record of row i; returns its address. */
static ItemPointerData
write_record(IvfpqAssign *assign, const GvEncoded *encoded, int i, uint64 id)
{
	int			dims = assign->training->gv.dims;
	IvfpqRefineRecord *record = assign->record;
	ItemPointerData address;

	record->min = encoded->min[i];
	record->step = encoded->step[i];
	record->error = encoded->error[i];
	IvfpqIdToTid(id, &record->tid);
	memcpy(record->codes, encoded->records + (Size) i * dims, dims);
	IvfpqRefineBuilderAdd(&assign->refine, record, &address);
	return address;
}

/* A copy of a list is there. */
static void
put_copy(IvfpqAssign *assign, uint32 list, const IvfpqCopy *copy)
{
	if (assign->team->parallel)
		IvfpqExchangePut(&assign->exchange, list, copy);
	else
		IvfpqCopiesPut(&assign->copies, list, copy);
	assign->ncopies++;
}

/* IvfpqEncodedSink: rows [n] with these TIDs have been placed. */
static void
take_rows(void *arg, const uint64 *ids, const GvEncoded *encoded, int n)
{
	IvfpqAssign *assign = arg;
	int			ncopies = assign->training->copies;
	int			code_bytes = gv_code_bytes(assign->training->gv.m);

	for (int i = 0; i < n; i++)
	{
		IvfpqCopy	copy = {0};

		IvfpqIdToTid(ids[i], &copy.tid);
		if (assign->record != NULL)
			copy.refine = write_record(assign, encoded, i, ids[i]);
		for (int c = 0; c < ncopies; c++)
		{
			int			at = i * ncopies + c;

			if (encoded->lists[at] < 0)
				continue;
			copy.t = encoded->t[at];
			copy.code = encoded->codes + (Size) at * code_bytes;
			copy.second = c > 0;
			put_copy(assign, encoded->lists[at], &copy);
		}
	}
	IvfpqTeamDone(assign->team, n);
}

/* Bytes of memory for copies: this participant's share, after the lists. */
static Size
copies_limit(const IvfpqAssign *assign)
{
	const IvfpqTraining *training = assign->training;
	Size		limit = IvfpqMemoryLimit();
	Size		used = (Size) training->nlists * training->gv.dims *
		sizeof(float);

	return limit > used ? (limit - used) / assign->team->shared->nshares : 0;
}

/*
 * Begin; memory from the current context.  With `refine` records are written
 * as well, to an index that has none yet, and with `log` each of their pages
 * is logged when it is full, because the index as a whole will not be.
 */
void
IvfpqAssignBegin(IvfpqAssign *assign, Relation index,
				 const IvfpqTraining *training, IvfpqTeam *team, bool refine,
				 bool log)
{
	int			dims = training->gv.dims;
	int			code_bytes = gv_code_bytes(training->gv.m);

	memset(assign, 0, sizeof(*assign));
	assign->training = training;
	assign->team = team;
	if (refine)
	{
		assign->record = IvfpqRefineAlloc(dims);
		IvfpqRefineBuilderInit(&assign->refine, index, dims, log);
	}
	if (team->parallel)
		IvfpqExchangeBegin(&assign->exchange, &team->shared->files, team->me,
						   RANGES_EACH * team->shared->nshares,
						   training->nlists, code_bytes);
	else
		IvfpqCopiesBegin(&assign->copies, training->nlists, code_bytes,
						 copies_limit(assign));
	if (training->nqueries > 0)
		assign->calibration = IvfpqCalibrationBegin(&training->gv,
													training->nqueries,
													training->queries,
													training->query_ids);
	IvfpqPlacerBegin(&assign->placer, index, training, team->sharing,
					 assign->calibration, refine, take_rows, assign);
}

/* Let a raw vector [dims], of the row with this TID, wait for its batch. */
void
IvfpqAssignRow(IvfpqAssign *assign, const float *row, uint64 id)
{
	IvfpqPlacerAdd(&assign->placer, row, id);
}

/*
 * No more rows come from here: place what still waits, and leave to others
 * what is theirs.
 */
static void
finish_rows(IvfpqAssign *assign, Relation index)
{
	IvfpqTeam  *team = assign->team;
	IvfpqBuilder *builder = IvfpqPlacerEnd(&assign->placer);

	if (assign->record != NULL)
		IvfpqRefineBuilderFinish(&assign->refine, &team->shared->refine_head);
	if (team->parallel)
		IvfpqExchangeDone(&assign->exchange);
	if (assign->calibration && team->parallel)
		IvfpqTruthGive(assign->calibration, team);
	pg_atomic_fetch_add_u64(&team->shared->ncopies, assign->ncopies);
	IvfpqTrialJoin(&assign->trial, index,
				   assign->calibration ? builder : NULL, team->sharing,
				   gv_code_bytes(assign->training->gv.m));
}

/* All rows are placed: write what training fixed, and make *meta say so. */
static void
write_model(IvfpqAssign *assign, Relation index, IvfpqMetaData *meta,
			bool shared)
{
	const IvfpqTraining *training = assign->training;
	IvfpqTeamShared *team = assign->team->shared;
	int			dims = training->gv.dims;
	GvTree		tree = IvfpqTree(training);

	assign->rows = (int64) pg_atomic_read_u64(&team->done);
	meta->refine_head = pg_atomic_read_u32(&team->refine_head);
	meta->dims = dims;
	meta->pq_dim = training->gv.m;
	meta->nlists = training->nlists;
	meta->nparents = training->nparents;
	meta->copies = training->copies;
	meta->scale = training->gv.scale;
	meta->rows_at_training = assign->rows;
	IvfpqMetaPlace(meta, 0);
	IvfpqMetaPlace(meta, IvfpqReserve(index, IvfpqModelPages(meta), shared));

	IvfpqArrayWrite(index, meta->mean, training->mean, dims, shared);
	IvfpqArrayWrite(index, meta->codebooks, training->codebooks,
					(int64) GV_CODEWORDS * dims, shared);
	IvfpqArrayWrite(index, meta->parents, training->parents,
					(int64) training->nparents * dims, shared);
	IvfpqArrayWrite(index, meta->starts, (const float *) training->starts,
					training->nparents + 1, shared);
	IvfpqArrayWrite(index, meta->centroids, training->centroids,
					(int64) training->nlists * dims, shared);
	IvfpqCodedWrite(index, meta, &training->gv, &tree, shared);
}

/* The leader's work between placing rows and writing lists. */
static void
begin_writing(IvfpqAssign *assign, Relation index, IvfpqMetaData *meta,
			  bool shared)
{
	IvfpqTeamShared *team = assign->team->shared;

	if (assign->calibration && assign->team->parallel)
		IvfpqTruthTake(assign->calibration, assign->team);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_WRITING);
	write_model(assign, index, meta, shared);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_TOTAL,
								 assign->rows);
	IvfpqTrialAgree(&assign->trial);
	IvfpqTrialBegin(&assign->trial, pg_atomic_read_u64(&team->ncopies));
	team->meta = *meta;
}

/* The next copy for the pages, and for the trial. */
static void
next_copy(void *arg, IvfpqCopy *copy)
{
	IvfpqAssign *assign = arg;

	IvfpqCopiesNext(&assign->copies, copy);
	IvfpqTrialAdd(&assign->trial, copy);
}

/* Sort the copies, of lists from `first` on, and write these. */
static void
write_lists(IvfpqAssign *assign, Relation index, const IvfpqMetaData *meta,
			int first, bool shared)
{
	IvfpqCopies *copies = &assign->copies;
	const uint32 *counts = copies->counts;
	IvfpqWriter writer;

	IvfpqCopiesSort(copies);
	IvfpqWriterInit(&writer, index, meta, counts, copies->nlists, shared);
	for (int i = 0; i < copies->nlists; i++)
	{
		if (counts[i] == 0)
			continue;
		IvfpqTrialList(&assign->trial, first + i, counts[i]);
		IvfpqWriterList(&writer, first + i, counts[i], next_copy, assign,
						&assign->team->entries[first + i]);
		IvfpqTeamDone(assign->team, assign->team->entries[first + i].nfirst);
	}
	IvfpqWriterFinish(&writer);
	IvfpqCopiesEnd(copies);
}

/* Write ranges of lists that nobody else writes. */
static void
write_ranges(IvfpqAssign *assign, Relation index, const IvfpqMetaData *meta,
			 bool shared)
{
	IvfpqTeamShared *team = assign->team->shared;
	IvfpqExchange *exchange = &assign->exchange;
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "gpuivfpq range of lists",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	int64		range;

	while ((range = pg_atomic_fetch_add_u64(&team->next_range, 1)) <
		   exchange->nranges)
	{
		int			first = IvfpqExchangeFirst(exchange, range);

		IvfpqCopiesBegin(&assign->copies,
						 IvfpqExchangeFirst(exchange, range + 1) - first,
						 exchange->code_bytes, copies_limit(assign));
		IvfpqExchangeGet(exchange, team->size, range, &assign->copies);
		write_lists(assign, index, meta, first, shared);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
}

/*
 * Place what still waits and, when all participants have, write what training
 * fixed and the lists, to pages added for them.  With `shared` others use the
 * index meanwhile.  Fills in what *meta says of them; IvfpqAssignFinish does
 * the rest, when all participants have come so far.
 */
void
IvfpqAssignWrite(IvfpqAssign *assign, Relation index, IvfpqMetaData *meta,
				 bool shared)
{
	IvfpqTeam  *team = assign->team;

	finish_rows(assign, index);
	if (IvfpqTeamGather(team))
	{
		begin_writing(assign, index, meta, shared);
		IvfpqTeamRelease(team);
	}
	*meta = team->shared->meta;
	/* the leader may not have been able to begin it */
	IvfpqTrialAgree(&assign->trial);
	if (team->parallel)
		write_ranges(assign, index, meta, shared);
	else
		write_lists(assign, index, meta, 0, shared);
	IvfpqTrialFlush(&assign->trial);
	IvfpqFault("build: written");
}

/*
 * All lists are written: the leader writes the directory and calibrates, with
 * the others, who wait for the end of a round.  The caller writes *meta.
 */
void
IvfpqAssignFinish(IvfpqAssign *assign, Relation index, IvfpqMetaData *meta,
				  bool shared)
{
	IvfpqDirectoryWrite(index, meta, assign->team->entries, shared);
	IvfpqTrialAgree(&assign->trial);
	if (assign->calibration)
	{
		meta->rows_at_calibration = assign->rows;
		IvfpqCalibrationRun(assign->calibration, index, meta, &assign->trial,
							assign->team);
	}
	if (assign->placer.builder)
		IvfpqBuilderEnd(assign->placer.builder);
}

/* The leader has let go: the others help to calibrate, if they are to. */
void
IvfpqAssignHelp(IvfpqAssign *assign, Relation index)
{
	if (assign->team->shared->climb.nqueries == 0)
		return;
	IvfpqTruthTake(assign->calibration, assign->team);
	IvfpqLadderHelp(assign->calibration, index, assign->team);
}
