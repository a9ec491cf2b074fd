/*
 * inspect.c
 *		Functions that look into an index: gpuvec_index_info, with advice,
 *		gpuvec_list_stats, and gpuvec_prewarm; and the hook that tells who
 *		alters an index of options that wait for REINDEX.
 *
 * Part of the advice is whether an index's codes still reach the rows that it
 * holds.  A code stands for a row's residual r by the mean r^ of training's
 * residuals nearest to it.  So over rows like those of training <r, r^> is
 * |r^|^2, on average and however coarse codes are.  A row that lies beyond all
 * codewords has a multiple of that: as far as its code tells, it lies much
 * nearer to its centroid than it does, and all such rows look equally near.
 * Inner product suffers most: rows that became longer are the nearest to every
 * query, and their lengths are what codes do not tell.
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
#include "inspect/inspect.h"
#include "page/array.h"
#include "page/attempt.h"
#include "page/listread.h"
#include "page/metapage.h"
#include "page/pending.h"
#include "pgcompat.h"

/* Advice: more pending rows than this in a trained index. */
#define MAX_PENDING		1000

/* Advice: at calibration the index had more than this many times its rows. */
#define MOST_GONE		2

/* Advice: a list longer than this many times the mean. */
#define MAX_LIST_IMBALANCE	8

/* Advice: signatures have more bits set than this, in a sample of lists. */
#define FULL_SIGNATURE	48
#define SIGNATURE_LISTS	50

#define DRAWN		500			/* postings drawn to judge codes */
#define FEWEST		100			/* with fewer no drift is reported, */
#define FEWEST_DIMS		8		/* nor of fewer dimensions, which do not even
								 * out: a new index of 3 had a tenth of its
								 * rows beyond reach */

/*
 * A row is beyond reach when it is this many times as far as its code: more
 * where the code tells less, because its sub-quantizers have many dimensions
 * each, and where sub-quantizers are few, so that they do not even out.
 */
#define REACH		1.1
#define REACH_OF_DIMENSIONS	0.15	/* of a sub-quantizer */
#define REACH_OF_ONE	1.0

/*
 * Codes do not fit when this fraction of rows is beyond reach.  Of rows like
 * those of training a tenth of that is, also where lengths vary a lot.
 */
#define FAR_FRACTION	0.015

/*
 * A row lies at its centroid when its residual's square is at most this; a
 * row's own square is about 1.  Rows are copies of few vectors when this
 * fraction of the postings lie there; every second posting may be a secondary
 * one.
 */
#define CENTERED_SQUARE	1e-3
#define CENTERED_FRACTION	0.25

#define SAME_SQUARE		1e-12	/* the same where a codebook is zeros, as a
								 * fraction of the row's own square */

/*
 * Rows drawn from a trained index: codes that do not fit them any more, and
 * rows that are copies of others.
 */
typedef struct Drift
{
	Relation	index;
	IvfpqType	type;
	const IvfpqModel *model;
	IvfpqRerank rows;			/* fetches them */
	float	   *centroid;		/* [dims] of the list at hand */
	uint8	   *code;
	double		reach;
	bool		zeros;			/* all codewords are */

	/* results */
	int			drawn;			/* postings whose rows were judged */
	int			far;			/* of these are beyond what codes reach */
	int			centered;		/* lie at their list's centroid */
	bool		has_drifted;
	bool		has_copies;
} Drift;

/* An index of ours whose options have just been changed. */
typedef struct Altered
{
	Oid			oid;
	const IvfpqOptions *options;	/* the new ones */
	char	   *waiting;		/* an option that waits for REINDEX, or NULL */
	int			dims;			/* the index's, if the option says others */
} Altered;

static object_access_hook_type previous_access = NULL;

PG_FUNCTION_INFO_V1(gpuvec_index_info);
PG_FUNCTION_INFO_V1(gpuvec_list_stats);
PG_FUNCTION_INFO_V1(gpuvec_prewarm);

/*
 * Judges a transformed vector [dims].  Codebooks of zeros reach nothing but
 * the centroid, where all rows of training were, as when they were equal.
 */
static void
judge(Drift *drift, const float *vector)
{
	static const int32 list = 0;
	const GvModel *gv = &drift->model->gv;
	double		product = 0;
	double		square = 0;
	double		residual_square = 0;
	float		t;

	IvfpqCheckStatus(gv_encode(gv, vector, drift->centroid, &list, 1, 1,
							   drift->code, &t));
	for (int j = 0; j < gv->m; j++)
	{
		int			start = gv_sub_start(gv, j);
		int			dims = gv_sub_start(gv, j + 1) - start;
		int			code = drift->code[j / 2] >> (j % 2 * 4) & 0xF;
		const float *word = gv->codebooks +
		(Size) GV_CODEWORDS * start + code * dims;

		for (int d = 0; d < dims; d++)
		{
			double		residual = (double) vector[start + d] -
			drift->centroid[start + d];

			product += residual * word[d];
			square += (double) word[d] * word[d];
			residual_square += residual * residual;
		}
	}
	drift->drawn++;
	if (drift->zeros)
		drift->far += residual_square >
			SAME_SQUARE * gv_square(vector, gv->dims);
	else if (gv->dims >= FEWEST_DIMS && square > 0)
		drift->far += product / square > drift->reach;
	drift->centered += residual_square <= CENTERED_SQUARE;
}

/* Judges a row of the list at hand, if the snapshot sees it. */
static void
look_at_row(Drift *drift, const ItemPointerData *tid)
{
	const IvfpqModel *model = drift->model;
	MemoryContext oldcontext;
	int			dims;
	const float *raw = IvfpqRerankFetchVector(&drift->rows, &drift->type,
											  IvfpqTidToId(tid), &dims);

	if (raw == NULL)
		return;
	oldcontext = MemoryContextSwitchTo(drift->rows.context);
	if (dims == model->meta.dims)
	{
		float	   *vector = palloc(dims * sizeof(float));

		IvfpqTransform(drift->index, model, raw, vector);
		judge(drift, vector);
	}
	MemoryContextSwitchTo(oldcontext);
	IvfpqRerankDone(&drift->rows);
}

/*
 * Draws from all live postings, `postings` of them, and judges the rows in
 * their order.
 */
static void
look_at_lists(Drift *drift, int64 postings)
{
	const IvfpqMetaData *meta = &drift->model->meta;
	uint64		numbers[DRAWN]; /* of postings drawn, ascending */
	IvfpqListReader reader;
	IvfpqBlockView view;
	int64		first = 0;		/* number of the list's first live posting */
	int			done = 0;

	for (int i = 0; i < DRAWN; i++)
		numbers[i] = pg_prng_uint64_range(&pg_global_prng_state, 0,
										  postings - 1);
	IvfpqSortNumbers(numbers, DRAWN);
	IvfpqListReaderInit(&reader, drift->index, meta, &drift->model->layout,
						NULL);
	for (int list = 0; list < meta->nlists && done < DRAWN; list++)
	{
		IvfpqDirEntry entry;
		int64		next = first;	/* number of the next live posting */
		int			end = done;

		CHECK_FOR_INTERRUPTS();
		IvfpqDirEntryRead(drift->index, meta, list, &entry);
		first += entry.nitems - entry.ndead;
		while (end < DRAWN && numbers[end] < (uint64) first)
			end++;
		if (end == done)
			continue;
		IvfpqArrayFetch(drift->index, meta->centroids, meta->dims, list,
						drift->centroid);
		IvfpqListOpen(&reader, list);
		while (done < end && IvfpqListNext(&reader, &view))
			for (int i = 0; i < IVFPQ_BLOCK_POSTINGS; i++)
			{
				if ((view.live & (1U << i)) == 0)
					continue;
				for (; done < end && numbers[done] == (uint64) next; done++)
					look_at_row(drift, &view.tids[i]);
				next++;
			}
		done = end;
	}
	IvfpqListReaderFree(&reader);
}

/*
 * Sets *drift to whether rows of a trained index with this many live postings
 * lie beyond what its codes reach.  An inspection of an index must not run its
 * owner's code, so indexes of expressions are left out.  The caller has an
 * active snapshot.
 */
static void
look_for_drift(Relation heap, Relation index, int64 postings, Drift *drift)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "gpuivfpq drift",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	const IvfpqModel *model = IvfpqModelGet(index);

	memset(drift, 0, sizeof(*drift));
	if (model->meta.nlists > 0 && postings > 0 &&
		index->rd_index->indisvalid &&
		index->rd_index->indkey.values[0] != 0)
	{
		drift->index = index;
		drift->model = model;
		IvfpqTypeInit(&drift->type, index);
		drift->reach = REACH +
			REACH_OF_DIMENSIONS * model->gv.dims / model->gv.m +
			REACH_OF_ONE / sqrt(model->gv.m);
		drift->zeros = gv_square(model->gv.codebooks,
								 GV_CODEWORDS * model->gv.dims) == 0;
		drift->centroid = palloc(model->meta.dims * sizeof(float));
		drift->code = palloc(gv_code_bytes(model->gv.m));
		IvfpqRerankBegin(&drift->rows, heap, index, GetActiveSnapshot());
		look_at_lists(drift, postings);
		IvfpqRerankEnd(&drift->rows);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	drift->has_drifted = drift->drawn >= FEWEST &&
		drift->far > FAR_FRACTION * drift->drawn;
	drift->has_copies = drift->drawn >= FEWEST &&
		drift->centered > CENTERED_FRACTION * drift->drawn;
}

/*
 * Returns whether an untrained index with this many pending rows seems to wait
 * because nearly all rows are equal: one hash is that of all vectors but few.
 * Indexes of expressions are left out as above.
 */
static bool
looks_equal(Relation heap, Relation index, int64 pending)
{
	MemoryContext context;
	MemoryContext oldcontext;
	uint64		hashes[DRAWN];
	uint64		most = 0;		/* the hash of more than half, if there is one */
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

	/* Boyer and Moore's vote */
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
 * Describes an option that the index has from its next REINDEX on, and was not
 * built with.  Returns NULL if there is none.  `lists` is left out: a build
 * may make fewer.
 */
static char *
waiting_option(const IvfpqOptions *options, const IvfpqMetaData *meta)
{
	static const char *const refine[] = {"none", "sq8", "half"};

	if (options->refine != (int) meta->refine)
		return psprintf("option refine is %s, but the index was built with %s",
						refine[options->refine], refine[meta->refine]);
	if (options->rotate != (meta->rotated != 0))
		return psprintf("option rotate is %s, but the index was trained %s it",
						options->rotate ? "on" : "off",
						meta->rotated ? "with" : "without");
	if (options->pq_dim > 0 && options->pq_dim != meta->pq_dim)
		return psprintf("option pq_dim is %d, but the index was built with %d",
						options->pq_dim, meta->pq_dim);
	if (options->spill >= 0 && options->spill + 1 != meta->lists_per_row)
		return psprintf("option spill is %d, but the index was built with %d",
						options->spill, meta->lists_per_row - 1);
	return NULL;
}

/*
 * Returns advice if a key's signatures have nearly all of their bits set, so
 * that conditions on it skip hardly a row; or NULL.  Reads a block of each of
 * some lists.
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
		return psprintf("key %s tells hardly any rows apart: its %s have so many %s that %.0f of the 64 bits of their signatures are set; %s",
						quote_identifier(NameStr(key->attname)),
						is_jsonb ? "documents" : "arrays",
						is_jsonb ? "values" : "elements", bits,
						is_jsonb ?
						"create the index with what conditions ask for as the key, an expression such as (document ->> 'name')" :
						"create the index without it, or with what conditions ask for as a key of its own");
	}
	return NULL;
}

/* Returns a sentence about what should be done, or NULL if nothing should. */
static char *
make_advice(Relation heap, Relation index, const IvfpqMetaData *meta,
			const IvfpqListTotals *totals, int64 pending,
			const Drift *drift)
{
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

	/* with fewer rows it should not be trained */
	if (meta->nlists == 0 && rows < (is_temporary ? IvfpqLeastRows(index) :
									 IvfpqTrainRows(index)))
		return NULL;
	if (meta->nlists == 0 && is_temporary)
		return psprintf("not trained, holds %lld rows: call gpuvec_train(%s), VACUUM does not train it, since it is temporary",
						(long long) rows, literal);
	if (meta->nlists == 0 && looks_equal(heap, index, pending))
		return "not trained, nearly all of its rows are equal: a partial index leaves them out, or it trains itself when they are not equal any more";
	if (meta->nlists == 0)
		return psprintf("not trained, holds %lld rows: VACUUM its table or call gpuvec_train(%s)",
						(long long) rows, literal);
	if (rows > IVFPQ_MAX_GROWTH * Max(meta->rows_at_training, 1))
		return psprintf("trained on %lld rows, holds %lld: REINDEX INDEX CONCURRENTLY %s%s%s",
						(long long) meta->rows_at_training, (long long) rows,
						name, for_rows ? "" : ", then ",
						for_rows ? "" : calibrate);
	if (drift->has_drifted)
		return psprintf("codes of %d of %d rows drawn fall short, they are unlike those of training: REINDEX INDEX CONCURRENTLY %s, and until then %s",
						drift->far, drift->drawn, name, calibrate);
	if (meta->rows_at_calibration == 0 && IvfpqCalibrationQueries(rows) > 0)
		return psprintf("not calibrated, so what a recall takes is a guess: %s",
						calibrate);
	if (meta->rows_at_calibration > 0 && !for_rows &&
		meta->calibrated_for == IVFPQ_FOR_ROWS)
		return psprintf("its targets are for rows of the table, not for queries of yours: %s",
						calibrate);
	if (rows > 0 && rows < meta->rows_at_calibration / MOST_GONE)
		return IvfpqCalibrationQueries(rows) > 0 ?
			psprintf("calibrated with %lld rows, holds %lld, so searches take more than they need: %s",
					 (long long) meta->rows_at_calibration, (long long) rows,
					 calibrate) :
			psprintf("calibrated with %lld rows, holds %lld, too few to calibrate it: REINDEX INDEX CONCURRENTLY %s",
					 (long long) meta->rows_at_calibration, (long long) rows,
					 name);
	waiting = waiting_option(options, meta);
	if (waiting != NULL)
		return psprintf("%s: REINDEX INDEX CONCURRENTLY %s", waiting, name);
	if (pending > MAX_PENDING)
		return psprintf("%lld rows are in no list: %scall gpuvec_train(%s)",
						(long long) pending,
						is_temporary ? "" : "VACUUM its table or ",
						literal);
	/* copies of a vector cannot be divided */
	if (!drift->has_copies &&
		totals->longest * meta->nlists > MAX_LIST_IMBALANCE * totals->live)
		return psprintf("list %d holds %lld rows, %.0f times the mean: REINDEX INDEX CONCURRENTLY %s, unless many rows are equal",
						totals->longest_list, (long long) totals->longest,
						(double) totals->longest * meta->nlists / totals->live,
						name);
	return advise_on_signatures(index, meta);
}

/*
 * Inspects an index.  Raises an error unless the current user may see what is
 * in the index, and it is built.
 */
void
IvfpqInspect(Relation heap, Relation index, IvfpqInspection *inspection)
{
	IvfpqMetaData *meta = &inspection->meta;
	IvfpqIdentity caller;
	Drift		drift;
	ItemPointerData first = {0};
	int			dims = 0;
	int			first_dims = 0;
	int64		mismatched = 0;

	IvfpqCheckInspect(index);
	IvfpqCheckBuilt(index);

	IvfpqMetaRead(index, meta);
	inspection->pending = IvfpqCountPending(index, meta);
	IvfpqMetaRead(index, meta); /* training may have moved them to lists */
	IvfpqSumLists(index, meta, &inspection->totals);
	look_for_drift(heap, index, inspection->totals.live, &drift);
	inspection->has_copies = drift.has_copies;
	inspection->has_drifted = drift.has_drifted;
	/* the owner's code must not end what a superuser asks of all indexes */
	if (is_member_of_role_nosuper(GetUserId(), heap->rd_rel->relowner) ||
		!IvfpqIsInterpreted(index, true))
	{
		IvfpqActAsOwner(&caller, heap);
		mismatched = IvfpqFindMismatched(heap, index, meta, &dims, &first,
										 &first_dims);
		IvfpqActAsCaller(&caller);
	}
	inspection->advice = mismatched > 0 ?
		psprintf("%lld rows, the first (%u,%u) with %d dimensions, do not have the %d of the others and are left out: delete or update them",
				 (long long) mismatched, ItemPointerGetBlockNumber(&first),
				 ItemPointerGetOffsetNumber(&first), first_dims, dims) :
		make_advice(heap, index, meta, &inspection->totals,
					inspection->pending, &drift);
}

/* gpuvec_index_info(index regclass) */
Datum
gpuvec_index_info(PG_FUNCTION_ARGS)
{
	Relation	heap;
	Relation	index = IvfpqOpenIndexTable(PG_GETARG_OID(0),
											AccessShareLock, &heap);
	IvfpqInspection inspection;
	const IvfpqMetaData *meta = &inspection.meta;
	IvfpqKeyForm keys;
	Datum		names[IVFPQ_MAX_KEYS];
	TupleDesc	desc;
	Datum		values[11];
	bool		nulls[11] = {false};

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
	Relation	index = IvfpqOpenIndex(PG_GETARG_OID(0), AccessShareLock);
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
	Relation	index = IvfpqOpenIndex(PG_GETARG_OID(0), AccessShareLock);
	IvfpqMetaData meta;
	GvMirrorKey key;

	IvfpqCheckInspect(index);
	if (index->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("index \"%s\" is temporary",
						RelationGetRelationName(index)),
				 errhint("Only its own session can read it.")));
	if (IvfpqIsUncommitted(index))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" was built in this transaction",
						RelationGetRelationName(index)),
				 errhint("Others can read it after COMMIT.")));
	IvfpqCheckValid(index);
	IvfpqMetaRead(index, &meta);
	if (!IvfpqCanMirror(index, &meta))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is not trained",
						RelationGetRelationName(index)),
				 errhint("Call gpuvec_train, or VACUUM its table when it has more rows.")));
	key = IvfpqMirrorKey(index, &meta);

	/*
	 * With the lock held, a loader could not lock the index while another
	 * session waits for its lock.
	 */
	relation_close(index, AccessShareLock);
	PG_RETURN_INT64(IvfpqPrewarm(&key));
}

/* Finds out whether one of the new options waits.  For IvfpqAttempt. */
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
			altered->waiting = psprintf("option lists is %d, but the index was built with %d",
										after->lists, meta.nlists);
	}
	index_close(index, AccessShareLock);
}

/*
 * Returns the options in the tuple of pg_class as this command has left it.
 * Returns NULL if they have not changed, or it is no index of ours.
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
 * object_access_hook: tells the user who changes an option that only a build
 * reads, and makes dims that no build could give an error.  An index that
 * cannot be read is altered without a word.
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
				 errmsg("option dims is %d, but the index has vectors of %d dimensions",
						altered.options->dims, altered.dims),
				 errhint("Vectors of other dimensions take an index of their own.")));
	if (altered.waiting != NULL)
		ereport(NOTICE,
				(errmsg("%s", altered.waiting),
				 errdetail("It waits for the next REINDEX."),
				 errhint("REINDEX INDEX CONCURRENTLY %s;",
						 quote_qualified_identifier(get_namespace_name(get_rel_namespace(oid)),
													get_rel_name(oid)))));
}

/* Call once a process. */
void
IvfpqInitInspect(void)
{
	previous_access = object_access_hook;
	object_access_hook = tell_of_waiting;
}
