/*
 * fuzz_page.c
 *		Damaged indexes: everything that reads or changes pages meets them.
 *
 * An input is a byte that names a sample and then damages to it, 8 bytes
 * each (samples.h).  Whatever they are, each act on the index comes to its
 * end or raises an error that tells of damage (backend/backend.h), and what
 * the checker calls sound has every row, in lists that can be read.
 */
#include "samples.h"

#include "utils/memutils.h"

#include "am/common/enginecall.h"
#include "am/common/model.h"
#include "am/maintain/maintain.h"
#include "am/search/params.h"
#include "am/search/search.h"
#include "page/metapage.h"
#include "page/pagecheck.h"
#include "page/pending.h"
#include "page/refinepage.h"

/* Rows of all samples have smaller numbers. */
#define NEW_ROW		3900

/* Beyond these a scan asks how many copies there are. */
#define MOST_CANDIDATES 1000

static int	sample;
static bool found_error;

/* Of what was read, so that it is. */
static volatile uint64 sum;

/* ---- the checker */

static void
note_problem(void *arg, bool error, BlockNumber blkno, uint32 list,
			 const char *problem)
{
	found_error |= error;
	if (strlen(problem) > 400)
		FAULT("a problem of %zu letters", strlen(problem));
}

/* The facts that am/maintain/verify.c gets of rows, postings and records. */
static struct
{
	uint8		places[NEW_ROW][3]; /* times in each IvfpqPlace */
	IvfpqFound	postings[4 * NEW_ROW];	/* that have records */
	int			npostings;
	ItemPointerData records[MOST_PAGES][BLCKSZ / 18];
	int			nrecords[MOST_PAGES];
	bool		other_keys;		/* than the row's, of some copy */
}			told;

/* IvfpqFound.keys of a row's postings. */
static uint64
keys_of_row(int row)
{
	const IvfpqKeyForm *form = &sample_kinds[sample].keys;
	IvfpqKeyAbbrevs abbrevs;

	sample_abbrevs(form, row, &abbrevs);
	return form->nkeys > 0 ? IvfpqKeyAbbrevsDigest(form, &abbrevs) : 0;
}

static void
note_entries(void *arg, const IvfpqFound *found, int64 n)
{
	for (int64 i = 0; i < n; i++)
	{
		int			row = sample_row(&found[i].tid);

		if (row < NEW_ROW)
		{
			told.places[row][found[i].place]++;
			told.other_keys |= found[i].place != IVFPQ_PENDING &&
				found[i].keys != keys_of_row(row);
		}
		if (ItemPointerIsValid(&found[i].refine) &&
			told.npostings < (int) lengthof(told.postings))
			told.postings[told.npostings++] = found[i];
	}
}

static void
forget_entries(void *arg)
{
	memset(&told, 0, sizeof(told));
}

static void
note_records(void *arg, BlockNumber blkno, Page page, int n)
{
	IvfpqMetaData meta;

	IvfpqMetaRead(&backend_index, &meta);
	for (int i = 0; i < n; i++)
		told.records[blkno][i] =
			IvfpqRecordGet(page, IvfpqRecordCodeBytes(meta.refine, meta.dims),
						   i)->tid;
	told.nrecords[blkno] = n;
}

/* Does every copy lead to its row's record? */
static bool
records_are_whole(void)
{
	for (int i = 0; i < told.npostings; i++)
	{
		BlockNumber blkno =
		ItemPointerGetBlockNumberNoCheck(&told.postings[i].refine);
		int			slot =
		ItemPointerGetOffsetNumberNoCheck(&told.postings[i].refine);

		if (blkno >= MOST_PAGES || slot > told.nrecords[blkno] ||
			memcmp(&told.records[blkno][slot - 1], &told.postings[i].tid,
				   sizeof(ItemPointerData)) != 0)
			return false;
	}
	return true;
}

/* Is each of the first `nrows` rows in the index as it should be? */
static bool
rows_are_whole(int nrows, int lists_per_row)
{
	for (int row = 0; row < nrows; row++)
	{
		const uint8 *places = told.places[row];

		if (places[IVFPQ_PENDING] + places[IVFPQ_PRIMARY_POSTING] != 1 ||
			places[IVFPQ_SECONDARY_POSTING] !=
			(places[IVFPQ_PENDING] ? 0 : lists_per_row - 1))
			return false;
	}
	return true;
}

/* BackendAct: what gpuvec_verify_index does; arg: how many rows are there. */
static void
check_index(void *arg)
{
	const int  *nrows = arg;
	IvfpqChecker checker = {.index = &backend_index, .heap = &backend_table,
		.report = note_problem, .take = note_entries, .forget = forget_entries,
	.records = note_records};
	IvfpqMetaData meta;

	found_error = false;
	if (!IvfpqCheckMeta(&checker, GV_L2))
		return;
	IvfpqCheckModel(&checker);
	found_error |= !IvfpqMetaHasKeys(&checker.meta,
									 &sample_kinds[sample].keys);
	IvfpqCheckPending(&checker, false);
	for (int list = 0; list < checker.meta.nlists; list++)
		(void) IvfpqCheckList(&checker, list, false);
	IvfpqCheckSlabs(&checker);
	if (checker.meta.refine != IVFPQ_REFINE_NONE)
		IvfpqCheckRecordChain(&checker);
	IvfpqMetaRead(&backend_index, &meta);
	found_error |= !rows_are_whole(*nrows, checker.meta.lists_per_row) ||
		!records_are_whole() || told.other_keys;
}

/* ---- readers */

/* BackendAct */
static void
read_pending(void *arg)
{
	IvfpqMetaData meta;
	IvfpqPendingReader reader;
	int			count;

	IvfpqMetaRead(&backend_index, &meta);
	(void) IvfpqPendingEstimate(&backend_index);
	IvfpqPendingOpen(&reader, &backend_index, &meta);
	while (IvfpqPendingNext(&reader, &count))
		for (int i = 0; i < count; i++)
			sum += reader.tids[i].ip_posid;
	IvfpqPendingClose(&reader);
}

/* BackendAct: every list, one by one. */
static void
read_lists(void *arg)
{
	IvfpqMetaData meta;
	IvfpqListReader reader;
	IvfpqBlockView view;

	IvfpqMetaRead(&backend_index, &meta);
	if (meta.nlists == 0)
		return;
	IvfpqListReaderInit(&reader, &backend_index, &meta, NULL, NULL);
	for (int list = 0; list < Min(meta.nlists, 100); list++)
	{
		IvfpqListOpen(&reader, list);
		while (IvfpqListNext(&reader, &view))
			for (int i = 0; i < IVFPQ_BLOCK_POSTINGS; i++)
				sum += view.tids[i].ip_posid + view.codes[i];
	}
	IvfpqListReaderFree(&reader);
}

/* BackendAct: as scans search, in batches. */
static void
search_index(void *arg)
{
	IvfpqModel *model = IvfpqModelGet(&backend_index);
	int			dims = model->meta.dims;
	IvfpqSearch search;
	float	   *query;

	if (model->meta.nlists == 0)
		return;
	query = palloc(dims * sizeof(float));
	sample_vector(dims, 77, query);
	IvfpqSearchInit(&search, &backend_index, model);
	search.addresses = model->meta.refine != IVFPQ_REFINE_NONE;
	IvfpqSearchQuery(&search, query);
	for (int batch = 0; batch < 3; batch++)
	{
		IvfpqSearchParams params;
		IvfpqRowBounds *bounds;

		IvfpqParamsForBatch(&params, &backend_index, &model->meta, 0.95,
							batch);
		if (params.candidates > MOST_CANDIDATES)
			params.candidates = (int) Min(MOST_CANDIDATES,
										  IvfpqSearchCount(&search,
														   params.probes) + 1);
		IvfpqSearchRun(&search, params.probes, params.candidates);
		bounds = palloc(Max(search.candidates.count, 1) *
						sizeof(IvfpqRowBounds));
		if (search.addresses)
			(void) IvfpqRecordBounds(&search, query, search.candidates.ids,
									 search.candidates.count, bounds);
	}
	IvfpqListReaderFree(&search.reader);
}

/* BackendAct: as many queries at once are searched for. */
static void
search_together(void *arg)
{
	IvfpqModel *model = IvfpqModelGet(&backend_index);
	int			dims = model->meta.dims;
	IvfpqSearch searches[3];
	const float *vectors[3];
	GvTopK		lists[3] = {{0}};
	IvfpqSearchParams params;

	if (model->meta.nlists == 0)
		return;
	IvfpqParamsForBatch(&params, &backend_index, &model->meta, 0.95, 0);
	for (int s = 0; s < (int) lengthof(searches); s++)
	{
		float	   *query = palloc(dims * sizeof(float));

		sample_vector(dims, 77 + s, query);
		vectors[s] = query;
		IvfpqSearchInit(&searches[s], &backend_index, model);
		searches[s].addresses = model->meta.refine != IVFPQ_REFINE_NONE;
		IvfpqTopKResize(&lists[s], params.probes);
	}
	IvfpqNearestLists(&backend_index, model, &searches[0].query, vectors,
					  lengthof(searches), lists);
	for (int s = 0; s < (int) lengthof(searches); s++)
	{
		IvfpqSearchQuery(&searches[s], vectors[s]);
		searches[s].lists = lists[s];
	}
	IvfpqSearchTogether(searches, lengthof(searches),
						Min(params.candidates, MOST_CANDIDATES));
	for (int s = 0; s < (int) lengthof(searches); s++)
		IvfpqListReaderFree(&searches[s].reader);
}

/* ---- writers */

/* BackendAct: a row with a list, as INSERT and draining bring it. */
static void
insert_row(void *arg)
{
	const IvfpqPendingPlace *place = arg;
	IvfpqModel *model = IvfpqModelGet(&backend_index);
	int			dims = model->meta.dims;
	ItemPointerData tid = sample_tid(NEW_ROW);
	float	   *vector = palloc(Max(dims, 1) * sizeof(float));
	IvfpqKeyAbbrevs abbrevs;

	if (model->meta.nlists == 0)
	{
		(void) IvfpqPendingAppend(&backend_index, &tid, Max(dims, 1));
		return;
	}
	sample_vector(dims, NEW_ROW, vector);
	sample_abbrevs(&sample_kinds[sample].keys, NEW_ROW, &abbrevs);
	IvfpqInsertPostings(&backend_index, model, vector, true, &tid, &abbrevs, place,
						NULL);
}

/* BackendAct: the pending rows that come first go to lists. */
static void
flush_row(void *arg)
{
	IvfpqMetaData meta;
	IvfpqPendingReader reader;
	IvfpqModel *model;
	IvfpqKeyAbbrevs abbrevs;
	float	   *vector;
	int			count;

	IvfpqMetaRead(&backend_index, &meta);
	IvfpqPendingOpen(&reader, &backend_index, &meta);
	if (meta.nlists > 0 && IvfpqPendingNext(&reader, &count) && count > 0)
	{
		model = IvfpqModelGet(&backend_index);
		vector = palloc(meta.dims * sizeof(float));
		sample_vector(meta.dims, NEW_ROW, vector);
		sample_abbrevs(&sample_kinds[sample].keys,
					   sample_row(&reader.tids[0]), &abbrevs);
		IvfpqInsertPostings(&backend_index, model, vector, true,
						  &reader.tids[0], &abbrevs, &reader.place, NULL);
		IvfpqPendingSetMismatched(&backend_index, &reader.place, count - 1);
	}
	IvfpqPendingClose(&reader);
}

/* IndexBulkDeleteCallback: a quarter of the rows is dead. */
static bool
is_dead(ItemPointer tid, void *arg)
{
	return ItemPointerGetOffsetNumber(tid) % 4 == 0;
}

/* BackendAct */
static void
vacuum_index(void *arg)
{
	IndexVacuumInfo info = {.index = &backend_index};
	IndexBulkDeleteResult *stats;

	stats = ivfpqbulkdelete(&info, NULL, is_dead, NULL);
	(void) ivfpqvacuumcleanup(&info, stats);
}

/* BackendAct */
static void
compact_pending(void *arg)
{
	IvfpqPendingCompact(&backend_index);
}

/* BackendAct: what training does with pending rows. */
static void
freeze_pending(void *arg)
{
	IvfpqMetaData meta;
	IvfpqMetaData old;
	IvfpqFrozen	frozen;
	ItemPointerData tids[3];

	for (int i = 0; i < 3; i++)
		tids[i] = sample_tid(NEW_ROW + i);
	IvfpqMetaRead(&backend_index, &meta);
	old = meta;
	if (meta.nlists > 0 ||
		!IvfpqPendingFreeze(&backend_index, &frozen, false, 0) ||
		frozen.head == frozen.tail)
		return;
	IvfpqPendingKeep(&backend_index, &frozen, tids, 3, &meta);
	IvfpqPendingPublish(&backend_index, &old, &meta);
	IvfpqPendingFree(&backend_index, &frozen);
}

/* ---- the target */

/* An act that must not fail on an index that the checker calls sound. */
static void
act(const char *name, bool sound, const char *what, BackendAct act)
{
	if (!backend_try(what, act, NULL) && sound)
		FAULT("%s: sound, but %s fails: %s", name, what, backend_error);
}

/* Is the index sound, as far as gpuvec_verify_index can tell? */
static bool
is_sound(int nrows)
{
	found_error = true;
	forget_entries(NULL);
	if (!backend_try("check", check_index, &nrows))
		FAULT("the check itself fails: %s", backend_error);
	return !found_error;
}

/* Everything, in an order in which little of the damage is mended before. */
static void
meet(const char *name, int nrows)
{
	bool		sound = is_sound(nrows);
	Conditions	conditions = {sample, sound};

	act(name, sound, "reading pending rows", read_pending);
	act(name, sound, "reading lists", read_lists);
	act(name, sound, "search", search_index);
	act(name, sound, "search together", search_together);
	if (!backend_try("search under conditions", search_conditions,
					 &conditions) && sound)
		FAULT("%s: sound, but conditions fail: %s", name, backend_error);
	act(name, sound, "insert", insert_row);
	act(name, sound, "drain", flush_row);
	act(name, sound, "vacuum", vacuum_index);
	if (!is_sound(0) && sound)
		FAULT("%s: sound no more after insert and VACUUM", name);
	/* a block and one more, where that does not take long */
	for (int i = 0; i < (backend_npages < 20 ? 40 : 2); i++)
		act(name, sound, "insert", insert_row);
	act(name, sound, "compaction", compact_pending);
	act(name, sound, "cut", freeze_pending);
	act(name, sound, "reading lists", read_lists);
	act(name, sound, "vacuum", vacuum_index);
}

static void
set_up(void)
{
	static FormData_pg_class index_class =
	{
		.relkind = RELKIND_INDEX,
			.relpersistence = RELPERSISTENCE_TEMP
	};
	static FormData_pg_class table_class =
	{
		.relkind = RELKIND_RELATION,
			.relpersistence = RELPERSISTENCE_TEMP
	};

	strcpy(NameStr(index_class.relname), "fuzzed");
	backend_index.rd_rel = &index_class;
	backend_index.rd_id = 4711;
	backend_index.rd_indexcxt = TopMemoryContext;
	backend_table.rd_rel = &table_class;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Damage		damages[MOST_DAMAGES];
	int			nrows;
	int			n;

	if (size == 0)
		return 0;
	if (backend_index.rd_rel == NULL)
		set_up();
	sample = data[0] % NSAMPLES;
	nrows = sample_kinds[sample].nrows + sample_kinds[sample].npending;
	n = (int) Min((size - 1) / sizeof(Damage), MOST_DAMAGES);
	memcpy(damages, data + 1, n * sizeof(Damage));
	sample_open(sample);
	damage_index(damages, n);
	if (n == 0 && !is_sound(nrows))
		FAULT("sample %s is not sound", sample_kinds[sample].name);
	meet(sample_kinds[sample].name, nrows);
	sample_close();
	return 0;
}

int
fuzz_taken(void)
{
	return 1;
}

/* Every kind of damage to every page of every sample, a few at a time. */
void
fuzz_seeds(FuzzKeep keep)
{
	for (sample = 0; sample < NSAMPLES; sample++)
	{
		uint8		input[1 + NDAMAGES * sizeof(Damage)];
		char		name[32];

		snprintf(name, sizeof(name), "sound-%d", sample);
		input[0] = (uint8) sample;
		keep(name, input, 1);
		for (int page = 0; page < 12; page++)
		{
			Damage		damage = {(uint8) page, (uint8) (page % NDAMAGES),
			(uint16) (24 + 4 * page), (uint32) page + 1};

			memcpy(input + 1, &damage, sizeof(damage));
			snprintf(name, sizeof(name), "damage-%d-%d", sample, page);
			keep(name, input, 1 + sizeof(damage));
		}
	}
}
