/*
 * inspect.c
 *		gpuvec_index_info, which also gives advice, gpuvec_list_stats and
 *		gpuvec_prewarm, and a hook that reports if ALTER INDEX changes an
 *		option that has no effect before REINDEX.
 */
#include "postgres.h"

#include <math.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "am/build/calibrate.h"
#include "am/build/train.h"
#include "am/common/enginecall.h"
#include "am/common/identity.h"
#include "am/common/options.h"
#include "am/maintain/maintain.h"
#include "am/search/heaptids.h"
#include "am/search/rerank.h"
#include "client/client.h"
#include "inspect/doctortexts.h"
#include "inspect/inspect.h"
#include "page/array.h"
#include "page/attempt.h"
#include "page/listread.h"
#include "page/metapage.h"
#include "page/pending.h"
#include "pgcompat.h"

/* make_advice() reports a trained index with more pending rows than this. */
#define MAX_PENDING		1000

/* make_advice() reports a list that exceeds the mean length by this factor. */
#define MAX_LIST_IMBALANCE	8

/*
 * make_advice() reports a key whose signatures have at least FULL_SIGNATURE of
 * their 64 bits set, on average over one block of each of SIGNATURE_LISTS
 * lists.
 */
#define FULL_SIGNATURE	48
#define SIGNATURE_LISTS	50

#define DRAWN		500			/* postings drawn to find copies */
#define FEWEST		100			/* nothing is reported from fewer postings */

/*
 * A row counts as equal to its list's centroid if the squared norm of its
 * residual is at most CENTERED_SQUARE; the squared norm of the row itself is
 * about 1.  The rows are reported as copies of few vectors if more than
 * CENTERED_FRACTION of the rows drawn are equal to their lists' centroids.
 * The fraction is low because every second posting may be a secondary posting,
 * which is in the list of another centroid.
 */
#define CENTERED_SQUARE	1e-3
#define CENTERED_FRACTION	0.25

/* Columns of gpuvec_index_info, and the first one of the measured recall. */
#define INFO_RECALL		11
#define INFO_NCOLUMNS	18

/* A sample of the rows of a trained index, which shows copies of vectors. */
typedef struct Sample
{
	Relation	index;
	IvfpqType	type;
	const IvfpqModel *model;
	IvfpqRerank rows;			/* fetches the rows drawn */
	float	   *centroid;		/* [dims], of the list being read */
	int			drawn;			/* postings whose rows were judged */
	int			centered;		/* judged rows that are equal to their list's
								 * centroid */
} Sample;

/* An index whose options ALTER INDEX has just changed. */
typedef struct Altered
{
	Oid			oid;
	const IvfpqOptions *options;	/* the new options */
	char	   *waiting;		/* text about an option that has no effect
								 * before REINDEX, or NULL */
	int			dims;			/* dimensions of the index, if option dims
								 * differs from them; else 0 */
} Altered;

static object_access_hook_type previous_access = NULL;

PG_FUNCTION_INFO_V1(gpuvec_index_info);
PG_FUNCTION_INFO_V1(gpuvec_list_stats);
PG_FUNCTION_INFO_V1(gpuvec_prewarm);

/* Judges a row of the list being read, if the snapshot sees the row. */
static void
look_at_row(Sample *sample, const ItemPointerData *tid)
{
	const IvfpqModel *model = sample->model;
	MemoryContext oldcontext;
	int			dims;
	const float *raw = IvfpqRerankFetchVector(&sample->rows, &sample->type,
											  IvfpqTidToId(tid), &dims);

	if (raw == NULL)
		return;
	oldcontext = MemoryContextSwitchTo(sample->rows.context);
	if (dims == model->meta.dims)
	{
		float	   *vector = palloc(dims * sizeof(float));

		IvfpqTransform(sample->index, model, raw, vector);
		for (int d = 0; d < dims; d++)
			vector[d] -= sample->centroid[d];
		sample->drawn++;
		sample->centered += gv_square(vector, dims) <= CENTERED_SQUARE;
	}
	MemoryContextSwitchTo(oldcontext);
	IvfpqRerankDone(&sample->rows);
}

/*
 * Draws DRAWN live postings at random and judges their rows.  The live
 * postings of all lists are numbered from 0 to postings - 1.  Numbers are
 * drawn first.  Then one pass over the lists finds the postings with these
 * numbers.
 */
static void
look_at_lists(Sample *sample, int64 postings)
{
	const IvfpqMetaData *meta = &sample->model->meta;
	uint64		numbers[DRAWN]; /* of the postings drawn, ascending */
	IvfpqListReader reader;
	IvfpqBlockView view;
	int64		first = 0;		/* number of the first live posting of the
								 * list */
	int			done = 0;

	for (int i = 0; i < DRAWN; i++)
		numbers[i] = pg_prng_uint64_range(&pg_global_prng_state, 0,
										  postings - 1);
	IvfpqSortNumbers(numbers, DRAWN);
	IvfpqListReaderInit(&reader, sample->index, meta, &sample->model->layout,
						NULL);
	for (int list = 0; list < meta->nlists && done < DRAWN; list++)
	{
		IvfpqDirEntry entry;
		int64		next = first;	/* number of the next live posting */
		int			end = done;

		CHECK_FOR_INTERRUPTS();
		IvfpqDirEntryRead(sample->index, meta, list, &entry);
		first += entry.nitems - entry.ndead;
		while (end < DRAWN && numbers[end] < (uint64) first)
			end++;
		if (end == done)
			continue;
		IvfpqArrayFetch(sample->index, meta->centroids, meta->dims, list,
						sample->centroid);
		IvfpqListOpen(&reader, list);
		while (done < end && IvfpqListNext(&reader, &view))
			for (int i = 0; i < IVFPQ_BLOCK_POSTINGS; i++)
			{
				if ((view.live & (1U << i)) == 0)
					continue;
				for (; done < end && numbers[done] == (uint64) next; done++)
					look_at_row(sample, &view.tids[i]);
				next++;
			}
		done = end;
	}
	IvfpqListReaderFree(&reader);
}

/*
 * Returns whether many rows of a trained index with this many live postings
 * are copies of few vectors.  An inspection must not run code of the index's
 * owner, so the rows of an index on an expression are not judged.  The caller
 * has an active snapshot.
 */
static bool
has_copies(Relation heap, Relation index, int64 postings)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "gpuivfpq copies",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	Sample		sample = {.index = index, .model = IvfpqModelGet(index)};

	if (sample.model->meta.nlists > 0 && postings > 0 &&
		index->rd_index->indisvalid &&
		index->rd_index->indkey.values[0] != 0)
	{
		IvfpqTypeInit(&sample.type, index);
		sample.centroid = palloc(sample.model->meta.dims * sizeof(float));
		IvfpqRerankBegin(&sample.rows, heap, index, GetActiveSnapshot());
		look_at_lists(&sample, postings);
		IvfpqRerankEnd(&sample.rows);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	return sample.drawn >= FEWEST &&
		sample.centered > CENTERED_FRACTION * sample.drawn;
}

/*
 * Returns whether an index is probably untrained because nearly all of its
 * `pending` rows are equal.  Compares the hashes of a sample of the rows'
 * vectors.  Returns false for an index on an expression, whose rows are not
 * judged (has_copies).
 */
static bool
looks_equal(Relation heap, Relation index, int64 pending)
{
	MemoryContext context;
	MemoryContext oldcontext;
	uint64		hashes[DRAWN];
	uint64		most = 0;		/* the hash of more than half of the vectors,
								 * if there is such a hash */
	int			lead = 0;
	int			n = 0;
	int			others = 0;
	IvfpqType	type;
	IvfpqRerank rows;
	IvfpqMetaData meta;
	IvfpqPendingReader reader;
	int64		every = Max(pending / DRAWN, 1);
	int64		seen = 0;
	int			count;

	if (!index->rd_index->indisvalid || index->rd_index->indkey.values[0] == 0)
		return false;
	context = AllocSetContextCreate(CurrentMemoryContext,
									"gpuivfpq pending rows",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	IvfpqTypeInit(&type, index);
	IvfpqMetaRead(index, &meta);
	IvfpqRerankBegin(&rows, heap, index, GetActiveSnapshot());
	IvfpqPendingOpen(&reader, index, &meta);
	while (n < DRAWN && IvfpqPendingNext(&reader, &count))
		for (int i = 0; i < count && n < DRAWN; i++)
		{
			const float *vector;
			int			dims;

			if (seen++ % every != 0)
				continue;
			vector = IvfpqRerankFetchVector(&rows, &type,
											IvfpqTidToId(&reader.tids[i]),
											&dims);
			if (vector == NULL)
				continue;
			hashes[n++] = IvfpqVectorHash(vector, dims, 0);
			IvfpqRerankDone(&rows);
		}
	IvfpqPendingClose(&reader);
	IvfpqRerankEnd(&rows);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);

	/* majority vote by Boyer and Moore */
	for (int i = 0; i < n; i++)
	{
		if (lead == 0)
			most = hashes[i];
		lead += hashes[i] == most ? 1 : -1;
	}
	for (int i = 0; i < n; i++)
		others += hashes[i] != most;
	return n >= FEWEST &&
		IvfpqIsNearlyOne((double) others / n * pending, pending,
						 IvfpqLeastRows(index));
}

/*
 * Describes an option that has no effect before the next REINDEX, because the
 * index was built with another value.  Returns NULL if there is no such
 * option.  The option lists is not compared, because a build may make fewer
 * lists.
 */
static char *
waiting_option(const IvfpqOptions *options, const IvfpqMetaData *meta)
{
	static const char *const refine[] = {"none", "sq8", "half"};

	if (options->refine != (int) meta->refine)
		return psprintf("option \"refine\" is %s, but the index was built with %s",
						refine[options->refine], refine[meta->refine]);
	if (options->rotate != (meta->rotated != 0))
		return psprintf("option \"rotate\" is %s, but the index was trained %s it",
						options->rotate ? "on" : "off",
						meta->rotated ? "with" : "without");
	if (options->pq_dim > 0 && options->pq_dim != meta->pq_dim)
		return psprintf("option \"pq_dim\" is %d, but the index was built with %d",
						options->pq_dim, meta->pq_dim);
	if (options->spill >= 0 && options->spill + 1 != meta->lists_per_row)
		return psprintf("option \"spill\" is %d, but the index was built with %d",
						options->spill, meta->lists_per_row - 1);
	return NULL;
}

/*
 * Returns advice if the signatures of a key have nearly all of their bits set,
 * so that conditions on this key exclude hardly any rows.  Otherwise returns
 * NULL.  Reads one block of each of some lists.
 */
static char *
advise_on_signatures(Relation index, const IvfpqMetaData *meta)
{
	int64		nbits[IVFPQ_MAX_KEYS] = {0};
	int64		nsignatures[IVFPQ_MAX_KEYS] = {0};
	int			nlists = Min(meta->nlists, SIGNATURE_LISTS);
	IvfpqListReader reader;
	IvfpqKeyForm form;
	IvfpqBlockView view;

	if (!IvfpqKeyFormGet(meta, &form) ||
		memchr(form.kind, IVFPQ_KEY_SIGNATURE, form.nkeys) == NULL)
		return NULL;
	IvfpqListReaderInit(&reader, index, meta, NULL, NULL);
	for (int list = 0; list < nlists; list++)
	{
		CHECK_FOR_INTERRUPTS();
		IvfpqListOpen(&reader,
					  (uint32) ((int64) list * meta->nlists / nlists));
		if (!IvfpqListNext(&reader, &view))
			continue;
		for (int i = 0; i < IVFPQ_BLOCK_POSTINGS; i++)
		{
			IvfpqKeyAbbrevs abbrevs;

			if ((view.live & (1U << i)) == 0)
				continue;
			IvfpqKeyAbbrevsGet(&form, view.keys, i, &abbrevs);
			for (int k = 0; k < form.nkeys; k++)
			{
				if (form.kind[k] != IVFPQ_KEY_SIGNATURE ||
					(abbrevs.nulls & (1U << k)) != 0)
					continue;
				nbits[k] += pg_popcount64(abbrevs.abbrev[k]);
				nsignatures[k]++;
			}
		}
	}
	IvfpqListReaderFree(&reader);
	for (int k = 0; k < form.nkeys; k++)
	{
		Form_pg_attribute key = TupleDescAttr(RelationGetDescr(index), 1 + k);
		double		bits = (double) nbits[k] / Max(nsignatures[k], 1);
		bool		is_jsonb = index->rd_opcintype[1 + k] == JSONBOID;

		if (bits < FULL_SIGNATURE)
			continue;
		return psprintf(DOCTOR_FULL_SIGNATURES,
						quote_identifier(NameStr(key->attname)),
						is_jsonb ? "documents" : "arrays",
						is_jsonb ? "values" : "elements", bits,
						is_jsonb ?
						DOCTOR_USE_EXPRESSION_KEY :
						DOCTOR_USE_OTHER_KEY);
	}
	return NULL;
}

/*
 * Returns whether the index has so many pending rows that a background worker
 * trains it or moves the rows into lists, and this worker is running.
 */
static bool
has_worker(Relation index, const IvfpqMetaData *meta, int64 pending)
{
	return index->rd_rel->relpersistence != RELPERSISTENCE_TEMP &&
		pending >= (meta->nlists == 0 ? IvfpqTrainRows(index) :
					MAX_PENDING + 1) && IvfpqHasWorker(index);
}

/* Returns a sentence that says what to do about an index, or NULL. */
static char *
make_advice(Relation heap, Relation index, const IvfpqInspection *inspection)
{
	const IvfpqMetaData *meta = &inspection->meta;
	const IvfpqListTotals *totals = &inspection->totals;
	int64		pending = inspection->pending;
	const IvfpqOptions *options = IvfpqGetOptions(index);
	bool		for_rows = options->calibrated_for == IVFPQ_FOR_ROWS;
	bool		is_temporary =
	index->rd_rel->relpersistence == RELPERSISTENCE_TEMP;
	int64		rows = totals->rows + pending;
	const char *name = quote_qualified_identifier(get_namespace_name(RelationGetNamespace(index)),
												  RelationGetRelationName(index));
	const char *literal = quote_literal_cstr(name);
	const char *calibrate = psprintf(for_rows ? "gpuvec_calibrate(%s)" :
									 "gpuvec_calibrate(%s, queries => ...)",
									 literal);
	const char *waiting;

	/* an index with fewer rows should not be trained yet */
	if (meta->nlists == 0 && rows < (is_temporary ? IvfpqLeastRows(index) :
									 IvfpqTrainRows(index)))
		return NULL;
	if (meta->nlists == 0 && is_temporary)
		return psprintf(DOCTOR_TRAIN_TEMPORARY,
						(long long) rows, literal);
	if (meta->nlists == 0 && looks_equal(heap, index, pending))
		return DOCTOR_ROWS_EQUAL;
	if (meta->nlists == 0 && inspection->has_worker)
		return psprintf(DOCTOR_WAIT_FOR_TRAINING,
						(long long) rows);
	if (meta->nlists == 0)
		return psprintf(DOCTOR_TRAIN,
						(long long) rows, literal);
	if (IvfpqHasOutgrown(index, meta, totals->rows))
		return psprintf(DOCTOR_OUTGROWN,
						(long long) meta->rows_at_training, (long long) rows,
						for_rows && !is_temporary ? DOCTOR_PENDING_VACUUM :
						"Call", literal,
						for_rows ? "" : DOCTOR_THEN_CALIBRATE,
						for_rows ? "" : calibrate);
	/* before advice to calibrate, because REINDEX calibrates */
	waiting = waiting_option(options, meta);
	if (waiting != NULL)
		return psprintf(DOCTOR_OPTION_WAITS, waiting, name);
	if (meta->rows_at_calibration == 0 && IvfpqCalibrationQueries(rows) > 0)
		return psprintf(DOCTOR_NOT_CALIBRATED,
						calibrate);
	if (meta->rows_at_calibration > 0 && !for_rows &&
		meta->calibrated_for == IVFPQ_FOR_ROWS)
		return psprintf(DOCTOR_FOR_ROWS,
						calibrate);
	if (meta->measured.recall < meta->measured.target)
		return meta->calibrated_for == IVFPQ_FOR_QUERIES ?
			psprintf(DOCTOR_RECALL_UNREACHED, meta->measured.recall,
					 meta->measured.target, name) :
			psprintf(DOCTOR_RECALL_LOW, meta->measured.recall,
					 meta->measured.target, literal, literal);
	if (rows > 0 && rows < meta->rows_at_calibration / IVFPQ_MAX_SHRINKAGE)
		return IvfpqCalibrationQueries(rows) > 0 ?
			psprintf(DOCTOR_SHRUNK,
					 (long long) meta->rows_at_calibration, (long long) rows,
					 calibrate) :
			psprintf(DOCTOR_SHRUNK_MUCH,
					 (long long) meta->rows_at_calibration, (long long) rows,
					 name);
	if (pending > MAX_PENDING && inspection->has_worker)
		return psprintf(DOCTOR_WAIT_FOR_LISTS,
						(long long) pending);
	if (pending > MAX_PENDING)
		return psprintf(DOCTOR_PENDING,
						(long long) pending,
						is_temporary ? "Call" : DOCTOR_PENDING_VACUUM,
						literal);
	/* copies of one vector cannot be divided among lists */
	if (!inspection->has_copies &&
		totals->longest * meta->nlists > MAX_LIST_IMBALANCE * totals->live)
		return psprintf(DOCTOR_LONG_LIST,
						totals->longest_list, (long long) totals->longest,
						(double) totals->longest * meta->nlists / totals->live,
						name);
	return advise_on_signatures(index, meta);
}

/*
 * Inspects an index.  Raises an error if the index is not built, or if the
 * current user may not see its contents.
 */
void
IvfpqInspect(Relation heap, Relation index, IvfpqInspection *inspection)
{
	IvfpqMetaData *meta = &inspection->meta;
	IvfpqIdentity caller;
	ItemPointerData first = {0};
	int			dims = 0;
	int			first_dims = 0;
	int64		mismatched = 0;

	IvfpqCheckInspect(index);
	IvfpqCheckBuilt(index);

	IvfpqMetaRead(index, meta);
	inspection->pending = IvfpqCountPending(index, meta);
	IvfpqMetaRead(index, meta); /* training may have moved pending rows to
								 * lists meanwhile */
	IvfpqSumLists(index, meta, &inspection->totals);
	inspection->has_copies = has_copies(heap, index,
										inspection->totals.live);
	inspection->has_worker = has_worker(index, meta, inspection->pending);

	/*
	 * An error in a function of the index's owner must not end a statement in
	 * which a superuser inspects all indexes.  So functions that are not in C
	 * are called only for a member of the owner's role.
	 */
	if (is_member_of_role_nosuper(GetUserId(), heap->rd_rel->relowner) ||
		!IvfpqIsInterpreted(index, true))
	{
		IvfpqActAsOwner(&caller, heap);
		mismatched = IvfpqFindMismatched(heap, index, meta, &dims, &first,
										 &first_dims);
		IvfpqActAsCaller(&caller);
	}
	inspection->advice = mismatched > 0 ?
		psprintf(DOCTOR_MISMATCHED,
				 (long long) mismatched, ItemPointerGetBlockNumber(&first),
				 ItemPointerGetOffsetNumber(&first), first_dims, dims) :
		make_advice(heap, index, inspection);
}

/* Returns a recall of the metapage in double precision, without its noise. */
static Datum
decimal(float4 recall)
{
	return Float8GetDatum(rint(recall * 1e4) / 1e4);
}

/* gpuvec_index_info(index regclass) */
Datum
gpuvec_index_info(PG_FUNCTION_ARGS)
{
	Relation	heap;
	Relation	index = IvfpqOpenIndexTable(PG_GETARG_OID(0),
											AccessShareLock, NULL, &heap);
	IvfpqInspection inspection;
	const IvfpqMetaData *meta = &inspection.meta;
	IvfpqKeyForm keys;
	Datum		names[IVFPQ_MAX_KEYS];
	TupleDesc	desc;
	Datum		values[INFO_NCOLUMNS];
	bool		nulls[INFO_NCOLUMNS] = {false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	IvfpqInspect(heap, index, &inspection);

	values[0] = Int32GetDatum(meta->nlists);
	values[1] = Int32GetDatum(meta->dims);
	values[2] = Int32GetDatum(meta->pq_dim);
	values[3] = Int64GetDatum(inspection.totals.rows + inspection.pending);
	values[4] = Int64GetDatum(inspection.pending);
	values[5] = Int64GetDatum(inspection.totals.dead);
	values[6] = Int64GetDatum((int64) RelationGetNumberOfBlocks(index) * BLCKSZ);
	values[7] = Int64GetDatum(meta->rows_at_training);
	nulls[8] = inspection.advice == NULL;
	values[8] = inspection.advice ?
		CStringGetTextDatum(inspection.advice) : (Datum) 0;
	(void) IvfpqKeyFormGet(meta, &keys);
	keys.nkeys = Min(keys.nkeys,
					 IndexRelationGetNumberOfKeyAttributes(index) - 1);
	for (int k = 0; k < keys.nkeys; k++)
		names[k] = CStringGetTextDatum(NameStr(TupleDescAttr(RelationGetDescr(index),
															 1 + k)->attname));
	values[9] = PointerGetDatum(construct_array(names, keys.nkeys, TEXTOID, -1,
												false, TYPALIGN_INT));
	values[10] = Int64GetDatum(inspection.totals.blocks * IvfpqKeysBytes(&keys));
	if (meta->measured.at == 0)
		memset(nulls + INFO_RECALL, true, INFO_NCOLUMNS - INFO_RECALL);
	values[INFO_RECALL] = decimal(meta->measured.recall);
	values[INFO_RECALL + 1] = decimal(meta->measured.low);
	values[INFO_RECALL + 2] = decimal(meta->measured.high);
	values[INFO_RECALL + 3] = decimal(meta->measured.target);
	values[INFO_RECALL + 4] = Int32GetDatum(meta->measured.depth);
	values[INFO_RECALL + 5] = Int32GetDatum(meta->measured.nqueries);
	values[INFO_RECALL + 6] = TimestampTzGetDatum(meta->measured.at);
	relation_close(index, AccessShareLock);
	table_close(heap, AccessShareLock);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}

/* gpuvec_list_stats(index regclass) */
Datum
gpuvec_list_stats(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Relation	index = IvfpqOpenIndex(PG_GETARG_OID(0), AccessShareLock, NULL);
	IvfpqMetaData meta;

	IvfpqCheckInspect(index);
	IvfpqCheckBuilt(index);
	InitMaterializedSRF(fcinfo, 0);
	IvfpqMetaRead(index, &meta);
	for (int list = 0; list < meta.nlists; list++)
	{
		IvfpqDirEntry entry;
		Datum		values[5];
		bool		nulls[5] = {false};

		CHECK_FOR_INTERRUPTS();
		IvfpqDirEntryRead(index, &meta, list, &entry);
		values[0] = Int32GetDatum(list);
		values[1] = Int64GetDatum((int64) entry.nitems - entry.ndead);
		values[2] = Int64GetDatum((int64) entry.ndead);
		values[3] = Int64GetDatum(((int64) entry.nitems + IVFPQ_BLOCK_POSTINGS - 1) /
								  IVFPQ_BLOCK_POSTINGS);
		values[4] = Int64GetDatum((int64) entry.gen);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 nulls);
	}
	relation_close(index, AccessShareLock);
	return (Datum) 0;
}

/* gpuvec_prewarm(index regclass) */
Datum
gpuvec_prewarm(PG_FUNCTION_ARGS)
{
	Relation	index = IvfpqOpenIndex(PG_GETARG_OID(0), AccessShareLock, NULL);
	IvfpqMetaData meta;
	GvMirrorKey key;

	IvfpqCheckInspect(index);
	if (index->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot load temporary index \"%s\" into gpuvecd",
						RelationGetRelationName(index)),
				 errdetail("Only the session that created it can read it.")));
	if (IvfpqIsUncommitted(index))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot load index \"%s\" into gpuvecd in the transaction that built it",
						RelationGetRelationName(index)),
				 errhint("Retry after the transaction has committed.")));
	IvfpqCheckValid(index);
	IvfpqMetaRead(index, &meta);
	if (!IvfpqCanMirror(index, &meta))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is not trained",
						RelationGetRelationName(index)),
				 errhint("Call gpuvec_train, or run VACUUM when the table has more rows.")));
	key = IvfpqMirrorKey(index, &meta);

	/*
	 * Release the lock before waiting for the mirror, because the loader must
	 * lock the index, too.  If another session waits for a stronger lock, the
	 * loader waits behind that session, and that session waits for us.
	 */
	relation_close(index, AccessShareLock);
	PG_RETURN_INT64(IvfpqPrewarm(&key));
}

/*
 * IvfpqAttempt callback.  Compares an index's new options with its old ones
 * and with the metapage, and sets altered->dims or altered->waiting.
 */
static void
compare_options(void *arg)
{
	Altered    *altered = arg;
	Relation	index = index_open(altered->oid, AccessShareLock);
	const IvfpqOptions *before = IvfpqGetOptions(index);
	const IvfpqOptions *after = altered->options;
	IvfpqMetaData meta;

	if (index->rd_index->indisready)
	{
		IvfpqMetaRead(index, &meta);
		if (meta.nlists == 0)
			altered->waiting = NULL;
		else if (after->dims != before->dims && after->dims > 0 &&
				 after->dims != meta.dims)
			altered->dims = meta.dims;
		else if (after->refine != before->refine ||
				 after->rotate != before->rotate ||
				 after->pq_dim != before->pq_dim ||
				 after->spill != before->spill)
			altered->waiting = waiting_option(after, &meta);
		else if (after->lists > 0 && after->lists != before->lists &&
				 after->lists != meta.nlists)
			altered->waiting = psprintf("option \"lists\" is %d, but the index was built with %d",
										after->lists, meta.nlists);
	}
	index_close(index, AccessShareLock);
}

/*
 * Returns the options that this command has written to the index's tuple in
 * pg_class, or NULL if it has not changed the options of an index of ours.
 */
static IvfpqOptions *
changed_options(Oid oid)
{
	Relation	catalog = table_open(RelationRelationId, AccessShareLock);
	IvfpqOptions *options = NULL;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	after;
	HeapTuple	before = SearchSysCache1(RELOID, ObjectIdGetDatum(oid));

	ScanKeyInit(&key, Anum_pg_class_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(oid));
	scan = systable_beginscan(catalog, ClassOidIndexId, true, SnapshotSelf, 1,
							  &key);
	after = systable_getnext(scan);
	if (HeapTupleIsValid(before) && HeapTupleIsValid(after) &&
		((Form_pg_class) GETSTRUCT(after))->relkind == RELKIND_INDEX &&
		((Form_pg_class) GETSTRUCT(after))->relam ==
		get_am_oid("gpuivfpq", true))
	{
		bool		isnull[2];
		Datum		old = SysCacheGetAttr(RELOID, before,
										  Anum_pg_class_reloptions,
										  &isnull[0]);
		Datum		new = heap_getattr(after, Anum_pg_class_reloptions,
									   RelationGetDescr(catalog), &isnull[1]);

		if (isnull[0] != isnull[1] ||
			(!isnull[0] && !datumIsEqual(old, new, false, -1)))
			options = (IvfpqOptions *)
				ivfpqoptions(isnull[1] ? (Datum) 0 : new, false);
	}
	systable_endscan(scan);
	if (HeapTupleIsValid(before))
		ReleaseSysCache(before);
	table_close(catalog, AccessShareLock);
	return options;
}

/*
 * object_access_hook.  Sends a NOTICE if a changed option is read only by a
 * build and so has no effect before REINDEX.  Raises an error if the new
 * option dims differs from the index's dimensions, because no build could
 * succeed with it.  If the index cannot be read, the hook reports nothing and
 * the command succeeds.
 */
static void
tell_of_waiting(ObjectAccessType access, Oid class_oid, Oid oid, int column,
				void *arg)
{
	Altered		altered = {oid, NULL, NULL, 0};

	if (previous_access)
		previous_access(access, class_oid, oid, column, arg);
	if (access != OAT_POST_ALTER || class_oid != RelationRelationId ||
		column != 0)
		return;
	altered.options = changed_options(oid);
	if (altered.options == NULL)
		return;
	(void) IvfpqAttempt(compare_options, &altered);
	if (altered.dims > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("option \"dims\" is %d, but the index has vectors of %d dimensions",
						altered.options->dims, altered.dims),
				 errhint("Create a separate index for vectors of other dimensions.")));
	if (altered.waiting != NULL)
		ereport(NOTICE,
				(errmsg("%s", altered.waiting),
				 errdetail("The option takes effect at the next REINDEX."),
				 errhint("Run REINDEX INDEX CONCURRENTLY %s.",
						 quote_qualified_identifier(get_namespace_name(get_rel_namespace(oid)),
													get_rel_name(oid)))));
}

/* Installs the hook.  Called once in each process. */
void
IvfpqInitInspect(void)
{
	previous_access = object_access_hook;
	object_access_hook = tell_of_waiting;
}
