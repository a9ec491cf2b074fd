/*
 * inspect.c
 *		Looking into an index: its statistics, and advice.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "am/calibrate/calibrate.h"
#include "am/common/identity.h"
#include "am/common/options.h"
#include "am/heap/dims.h"
#include "am/maintain/maintain.h"
#include "am/sql/inspect.h"
#include "am/train/train.h"

/* Advice: more pending rows than this in a trained index. */
#define MAX_PENDING		1000

/* Advice: at calibration the index had more than so many times its rows. */
#define MOST_GONE		2

/* Advice: a list longer than this many times the mean. */
#define MAX_LIST_SHARE	8

static const int depths[IVFPQ_DEPTHS] = IVFPQ_DEPTH_ROWS;

PG_FUNCTION_INFO_V1(gpuvec_index_info);
PG_FUNCTION_INFO_V1(gpuvec_list_stats);

/* Advice if there are rows of other dimensions than the index, or NULL. */
static char *
advise_odd(Relation heap, Relation index, const IvfpqMetaData *meta)
{
	ItemPointerData first;
	int			dims;
	int			first_dims;
	int64		count = IvfpqFindOdd(heap, index, meta, &dims, &first,
									 &first_dims);

	if (count == 0)
		return NULL;
	return psprintf("%lld rows, the first (%u,%u) with %d dimensions, do not have the %d of the others and are left out: delete or update them",
					(long long) count, ItemPointerGetBlockNumber(&first),
					ItemPointerGetOffsetNumber(&first), first_dims, dims);
}

/* The statement that calibrates an index for what its targets are to be for. */
static char *
calibrate_call(Relation index, const char *name)
{
	return psprintf(IvfpqGetOptions(index)->targets_for == IVFPQ_FOR_ROWS ?
					"gpuvec_calibrate(%s)" :
					"gpuvec_calibrate(%s, queries => ...)",
					quote_literal_cstr(name));
}

/* One sentence about what should be done, or NULL when nothing should. */
static char *
make_advice(Relation heap, Relation index, const IvfpqMetaData *meta,
			const IvfpqListTotals *totals, int64 pending,
			const IvfpqDrift *drift)
{
	bool		for_rows = IvfpqGetOptions(index)->targets_for == IVFPQ_FOR_ROWS;
	bool		is_temporary =
	index->rd_rel->relpersistence == RELPERSISTENCE_TEMP;
	char	   *name;
	char	   *calibrate;
	int64		rows = totals->rows + pending;

	name = quote_qualified_identifier(get_namespace_name(RelationGetNamespace(index)),
									  RelationGetRelationName(index));
	calibrate = calibrate_call(index, name);
	if (meta->nlists == 0 && rows >= IvfpqLeastRows(index) &&
		IvfpqLooksEqual(heap, index, pending))
		return "not trained, nearly all of its rows are equal: a partial index leaves them out, or it trains itself when they are not equal any more";
	if (meta->nlists == 0 && is_temporary)
		return psprintf("not trained, holds %lld rows: gpuvec_train(%s) trains it from %d on, VACUUM does not, since it is temporary",
						(long long) rows, quote_literal_cstr(name),
						IvfpqLeastRows(index));
	if (meta->nlists == 0 && rows < IvfpqTrainRows(index))
		return psprintf("not trained: VACUUM trains it when it holds %d rows, gpuvec_train(%s) from %d on",
						IvfpqTrainRows(index), quote_literal_cstr(name),
						IvfpqLeastRows(index));
	if (meta->nlists == 0)
		return psprintf("not trained, holds %lld rows: VACUUM its table or call gpuvec_train(%s)",
						(long long) rows, quote_literal_cstr(name));
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
	if (meta->rows_at_calibration > 0 &&
		meta->calibrated_depths < IvfpqCalibrationDepths(meta->rows_at_calibration))
		return psprintf("calibrated for the first %d rows only, by an older gpuvec: %s, for queries that read on",
						depths[meta->calibrated_depths - 1], calibrate);
	if (meta->rows_at_calibration > 0 && !for_rows &&
		meta->targets_for == IVFPQ_FOR_ROWS)
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
	if (IvfpqGetOptions(index)->rotate != (meta->rotated != 0))
		return psprintf("option rotate is %s, but the index was trained %s it: REINDEX INDEX CONCURRENTLY %s",
						meta->rotated ? "off" : "on",
						meta->rotated ? "with" : "without", name);
	if (pending > MAX_PENDING)
		return psprintf("%lld rows are in no list: %scall gpuvec_train(%s)",
						(long long) pending,
						is_temporary ? "" : "VACUUM its table or ",
						quote_literal_cstr(name));
	/* copies of a vector cannot be divided */
	if (!drift->has_copies &&
		totals->longest * meta->nlists > MAX_LIST_SHARE * totals->live)
		return psprintf("list %d holds %lld rows, %.0f times the mean: REINDEX INDEX CONCURRENTLY %s, unless many rows are equal",
						totals->longest_list, (long long) totals->longest,
						(double) totals->longest * meta->nlists / totals->live,
						name);
	return NULL;
}

/* The names of an index's keys, text[]. */
static Datum
name_keys(Relation index, int nkeys)
{
	Datum		names[IVFPQ_MAX_KEYS];

	for (int k = 0; k < nkeys; k++)
		names[k] = CStringGetTextDatum(NameStr(TupleDescAttr(RelationGetDescr(index),
															 1 + k)->attname));
	return PointerGetDatum(construct_array(names, nkeys, TEXTOID, -1, false,
										   TYPALIGN_INT));
}

/* ERROR unless the current user may see what is in the index, and it is built. */
void
IvfpqInspect(Relation heap, Relation index, IvfpqInspection *inspection)
{
	IvfpqMetaData *meta = &inspection->meta;
	IvfpqIdentity caller;
	IvfpqDrift	drift;

	IvfpqCheckInspect(index);
	IvfpqCheckBuilt(index);

	IvfpqMetaRead(index, meta);
	inspection->pending = IvfpqCountPending(index, meta);
	IvfpqMetaRead(index, meta); /* training may have moved them to lists */
	IvfpqSumLists(index, meta, &inspection->totals);
	IvfpqLookForDrift(heap, index, inspection->totals.live, &drift);
	inspection->has_copies = drift.has_copies;
	inspection->advice = NULL;
	/* the owner's code is not to end what a superuser asks of all indexes */
	if (is_member_of_role_nosuper(GetUserId(), heap->rd_rel->relowner) ||
		!IvfpqIsInterpreted(index, true))
	{
		IvfpqActAsOwner(&caller, heap);
		inspection->advice = advise_odd(heap, index, meta);
		IvfpqActAsCaller(&caller);
	}
	if (inspection->advice == NULL)
		inspection->advice = make_advice(heap, index, meta,
										 &inspection->totals,
										 inspection->pending, &drift);
}

/* gpuvec_index_info(index regclass), before 0.5.0 without the last columns */
Datum
gpuvec_index_info(PG_FUNCTION_ARGS)
{
	Relation	heap;
	Relation	index = IvfpqOpenIndexTable(PG_GETARG_OID(0),
											AccessShareLock, &heap);
	IvfpqInspection inspection;
	const IvfpqMetaData *meta = &inspection.meta;
	IvfpqKeyForm keys;
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
	values[9] = name_keys(index, keys.nkeys);
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
		IvfpqListEntry entry;
		Datum		values[5];
		bool		nulls[5] = {false};

		CHECK_FOR_INTERRUPTS();
		IvfpqListEntryRead(index, &meta, list, &entry);
		values[0] = Int32GetDatum(list);
		values[1] = Int64GetDatum((int64) entry.nitems - entry.ndead);
		values[2] = Int64GetDatum((int64) entry.ndead);
		values[3] = Int64GetDatum(((int64) entry.nitems + IVFPQ_BLOCK_COPIES - 1) /
								  IVFPQ_BLOCK_COPIES);
		values[4] = Int64GetDatum((int64) entry.gen);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 nulls);
	}
	relation_close(index, AccessShareLock);
	return (Datum) 0;
}
