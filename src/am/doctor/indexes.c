/*
 * indexes.c
 *		The doctor's check of each index of this database.
 *
 * No index keeps the doctor waiting, and none ends it: one that is locked is
 * passed over, and an error, of a damaged page say, is reported as found.
 */
#include "postgres.h"

#include <ctype.h>

#include "access/genam.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "am/build/train.h"
#include "am/common/options.h"
#include "am/doctor/doctor.h"
#include "am/scan/scanstats.h"
#include "am/search/params.h"
#include "am/sql/inspect.h"
#include "page/attempt.h"
#include "pgcompat.h"

/*
 * Scans that are enough to judge by, and the fraction of them with a full pass
 * that is reported.
 */
#define MANY_SCANS		100
#define FULL_PASSES_FRACTION	0.5
#define OUT_OF_ORDER_FRACTION		0.05

/* An index that is checked. */
typedef struct Patient
{
	IvfpqFindings *findings;
	const IvfpqServerStatus *status;
	Oid			oid;
	char	   *name;
	char	   *literal;		/* the name as an argument */
	Relation	index;
	IvfpqInspection inspection;
	IvfpqCounts counts;
	bool		counted;
} Patient;

static void
find(const Patient *patient, const char *state, const char *advice)
{
	IvfpqFind(patient->findings, patient->name, state, advice);
}

/* Describes the search parameters of a first batch. */
static char *
describe_params(const Patient *patient, const IvfpqSearchParams *params)
{
	if (patient->inspection.meta.nlists == 0 &&
		patient->index->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
		return psprintf("not trained, searches are exact; gpuvec_train trains it from %d on",
						IvfpqLeastRows(patient->index));
	if (patient->inspection.meta.nlists == 0)
		return psprintf("not trained, searches are exact; VACUUM trains it when it holds %d, gpuvec_train from %d on",
						IvfpqTrainRows(patient->index),
						IvfpqLeastRows(patient->index));
	if (params->read_all)
		return psprintf("a search at recall %g reads all of %d lists",
						ivfpq_recall, patient->inspection.meta.nlists);
	return psprintf("a search at recall %g begins with %d of %d lists and %d candidates",
					ivfpq_recall, params->probes,
					patient->inspection.meta.nlists, params->candidates);
}

static char *
describe_counts(const Patient *patient)
{
	const int64 *counts = patient->counts.counts;

	if (!patient->counted || patient->counts.since == 0)
		return "";
	return psprintf(", %lld scans, %lld passes over the table",
					(long long) counts[IVFPQ_COUNT_SCANS],
					(long long) counts[IVFPQ_COUNT_FULL_PASSES]);
}

/*
 * Does the index reach the recall that is asked for, at once and behind ten
 * rows?  An index that has too few rows cannot be calibrated to do so.
 */
static void
find_recall(const Patient *patient, const IvfpqSearchParams *params)
{
	const IvfpqMetaData *meta = &patient->inspection.meta;
	const IvfpqOptions *options = IvfpqGetOptions(patient->index);
	int64		rows = patient->inspection.totals.rows +
	patient->inspection.pending;
	IvfpqSearchParams next;

	if (meta->nlists == 0)
		return;
	IvfpqParamsForBatch(&next, patient->index, meta, ivfpq_recall, 1);
	if (options->probes > 0 && ivfpq_probes == 0)
		find(patient,
			 psprintf("its option probes is %d: gpuvec.recall (%g) has no say in how many lists are read",
					  options->probes, ivfpq_recall),
			 psprintf("ALTER INDEX %s RESET (probes)", patient->name));
	else if (ivfpq_recall < 1 && next.read_all)
		find(patient,
			 psprintf(params->read_all ?
					  "recall %g is more than it is calibrated for: each search reads the whole index" :
					  "recall %g is more than it is calibrated for beyond ten rows: each search for more reads the whole index",
					  ivfpq_recall),
			 IvfpqCalibrationQueries(rows) > 0 ?
			 psprintf("SET gpuvec.recall to less, or SELECT * FROM gpuvec_calibrate(%s)",
					  patient->literal) :
			 "SET gpuvec.recall to less");
}

/* Do its searches show that something is wrong? */
static void
find_in_counts(const Patient *patient)
{
	const int64 *counts = patient->counts.counts;
	int64		scans = counts[IVFPQ_COUNT_SCANS];

	if (!patient->counted || scans < MANY_SCANS ||
		patient->inspection.meta.nlists == 0)
		return;
	if (counts[IVFPQ_COUNT_FULL_PASSES] > scans * FULL_PASSES_FRACTION)
		find(patient,
			 psprintf("%lld of %lld scans ended in a pass over the whole table",
					  (long long) counts[IVFPQ_COUNT_FULL_PASSES],
					  (long long) scans),
			 "give conditions that few rows fulfill an index of their own, or make their columns keys of this one");
	if (counts[IVFPQ_COUNT_OUT_OF_ORDER] > counts[IVFPQ_COUNT_RETURNED] *
		OUT_OF_ORDER_FRACTION)
		find(patient,
			 psprintf("%lld rows came too late for their place, beside %lld given out",
					  (long long) counts[IVFPQ_COUNT_OUT_OF_ORDER],
					  (long long) counts[IVFPQ_COUNT_RETURNED]),
			 "raise gpuvec.recall, or SET gpuvec.scan_order = relaxed, where many rows are asked for");
}

/* Reports the state of its mirror, where sessions would ask gpuvecd. */
static void
find_mirror(const Patient *patient)
{
	const IvfpqServerStatus *status = patient->status;
	const IvfpqMetaData *meta = &patient->inspection.meta;
	int64		bytes = (int64) RelationGetNumberOfBlocks(patient->index) *
	BLCKSZ;
	GvMirrorKey key;
	const char *state;
	char	   *error;

	if (!status->up || !IvfpqServerIsWanted() ||
		!IvfpqCanMirror(patient->index, meta))
		return;
	key = IvfpqMirrorKey(patient->index, meta);
	state = IvfpqGetMirrorState(status, &key, &error);
	if (state == NULL || strcmp(state, "evicted") == 0)
		find(patient,
			 state == NULL ? "gpuvecd has no mirror of it" :
			 "gpuvecd gave up its mirror for others",
			 bytes > status->memory && status->memory > 0 ?
			 psprintf("it takes about %lld MB and does not fit into %lld: %s, or leave it to sessions",
					  (long long) (bytes >> 20),
					  (long long) (status->memory >> 20),
					  IvfpqMoreMemory(status)) :
			 psprintf("search it, or SELECT gpuvec_prewarm(%s)",
					  patient->literal));
	else if (strcmp(state, "failed") == 0)
		find(patient,
			 psprintf("gpuvecd could not mirror it: %s", error),
			 status->memory > 0 && bytes > status->memory ?
			 psprintf("%s, if there is more; sessions search it meanwhile",
					  IvfpqMoreMemory(status)) :
			 psprintf("look into %s log; sessions search it meanwhile",
					  status->is_external ? "gpuvecd's" : "the server's"));
	else
		find(patient, psprintf("its mirror is %s", state), NULL);
}

/*
 * Reports an index that got fewer lists than its rows call for, for lack of
 * memory then or since they were copies of few vectors.  Where rows are such
 * copies still, there cannot be more lists, and where rows unlike those of
 * training have come, nobody knows what those were.
 */
static void
find_few_lists(const Patient *patient)
{
	const IvfpqMetaData *meta = &patient->inspection.meta;
	int			wanted = IvfpqDefaultLists((double) meta->rows_at_training);
	Size		bytes = IvfpqMemoryForLists(wanted, meta->dims);

	if (meta->nlists == 0 || IvfpqGetOptions(patient->index)->lists > 0 ||
		meta->nlists >= wanted / 2 || patient->inspection.has_drifted)
		return;
	if (patient->inspection.has_copies)
		find(patient,
			 psprintf("it has %d lists, not %d as usual for its rows: many of these are equal",
					  meta->nlists, wanted),
			 NULL);
	else if (bytes <= IvfpqMemoryLimit())
		find(patient,
			 psprintf("it has %d lists where its rows ask for %d: maintenance_work_mem was less when it was built, or its vectors were few different ones",
					  meta->nlists, wanted),
			 psprintf("REINDEX INDEX CONCURRENTLY %s", patient->name));
	else
		find(patient,
			 psprintf("it has %d lists where its rows ask for %d: maintenance_work_mem was too little",
					  meta->nlists, wanted),
			 psprintf("SET maintenance_work_mem = '%lld MB' and REINDEX INDEX CONCURRENTLY %s",
					  (long long) (bytes >> 20) + 1, patient->name));
}

/* All of an index that can be searched. */
static void
examine(Patient *patient, Relation heap)
{
	IvfpqSearchParams params;

	IvfpqInspect(heap, patient->index, &patient->inspection);
	IvfpqParamsForBatch(&params, patient->index, &patient->inspection.meta,
						ivfpq_recall, 0);
	patient->counted = IvfpqCountersGet(patient->oid, &patient->counts);
	find(patient,
		 psprintf("format %d, %lld rows, %s%s",
				  patient->inspection.meta.version,
				  (long long) (patient->inspection.totals.rows +
							   patient->inspection.pending),
				  describe_params(patient, &params),
				  describe_counts(patient)),
		 patient->inspection.advice);
	find_recall(patient, &params);
	find_few_lists(patient);
	find_in_counts(patient);
	find_mirror(patient);
}

/* Look into an index, both relations being locked. */
static void
look_into(Patient *patient, Relation heap)
{
	Form_pg_index form = patient->index->rd_index;

	if (!form->indisvalid)
		find(patient, form->indisready ?
			 "not valid, so no query uses it: a build ended too early, or is under way" :
			 "not valid, and not kept up to date: a build failed, or is under way",
			 psprintf("if none is: REINDEX INDEX CONCURRENTLY %s, or drop it",
					  patient->name));
	else if (RecoveryInProgress() && !RelationNeedsWAL(patient->index))
		find(patient, "unlogged, so it is empty on a standby", NULL);
	else if (!IvfpqOwnsRelation(form->indrelid, GetUserId()) &&
			 !has_privs_of_role(GetUserId(), ROLE_PG_MONITOR))
		find(patient,
			 "not looked into: that is for the table's owner and members of pg_monitor",
			 NULL);
	else
		examine(patient, heap);
}

/* Examine the index if it can be opened at once.  For IvfpqAttempt. */
static void
visit(void *arg)
{
	Patient    *patient = arg;
	Oid			heapoid = IndexGetRelation(patient->oid, true);
	Relation	heap;

	if (!OidIsValid(heapoid))
		return;
	if (!ConditionalLockRelationOid(heapoid, AccessShareLock))
	{
		find(patient, "not looked into: its table is locked", NULL);
		return;
	}
	heap = try_relation_open(heapoid, NoLock);
	if (heap == NULL)
		return;
	if (!ConditionalLockRelationOid(patient->oid, AccessShareLock))
		find(patient, "not looked into: it is locked", NULL);
	else
	{
		patient->index = try_relation_open(patient->oid, NoLock);
		if (patient->index != NULL &&
			!RELATION_IS_OTHER_TEMP(patient->index))
			look_into(patient, heap);
		if (patient->index != NULL)
			relation_close(patient->index, AccessShareLock);
	}
	relation_close(heap, AccessShareLock);
}

/* All indexes of the access method, the oldest first. */
static List *
list_indexes(void)
{
	Oid			am = get_am_oid("gpuivfpq", true);
	Relation	catalog = table_open(RelationRelationId, AccessShareLock);
	List	   *oids = NIL;
	ScanKeyData key[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key[0], Anum_pg_class_relam, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(am));
	ScanKeyInit(&key[1], Anum_pg_class_relkind, BTEqualStrategyNumber,
				F_CHAREQ, CharGetDatum(RELKIND_INDEX));
	scan = systable_beginscan(catalog, InvalidOid, false, NULL, 2, key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		oids = lappend_oid(oids, ((Form_pg_class) GETSTRUCT(tuple))->oid);
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	list_sort(oids, list_oid_cmp);
	return oids;
}

/* Returns whether an error names the relation's file. */
static bool
is_file_of(Oid relid, const char *message)
{
	LOCAL_FCINFO(fcinfo, 1);
	Datum		path;
	char	   *name;
	const char *found;

	InitFunctionCallInfoData(*fcinfo, NULL, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = ObjectIdGetDatum(relid);
	fcinfo->args[0].isnull = false;
	path = pg_relation_filepath(fcinfo);
	if (fcinfo->isnull)			/* it was dropped meanwhile */
		return false;
	name = text_to_cstring(DatumGetTextPP(path));
	found = strstr(message, name);
	return found != NULL && !isdigit((unsigned char) found[strlen(name)]);
}

/*
 * Returns what to do about an error: its hint, or advice on a page that cannot
 * be read, for which PostgreSQL has no hint.
 */
static const char *
advise_on_error(const Patient *patient, const ErrorData *error)
{
	Oid			table = IndexGetRelation(patient->oid, true);

	if (error->hint != NULL ||
		(error->sqlerrcode != ERRCODE_DATA_CORRUPTED &&
		 error->sqlerrcode != ERRCODE_IO_ERROR &&
		 error->sqlerrcode != ERRCODE_UNDEFINED_FILE))
		return error->hint;
	if (is_file_of(patient->oid, error->message))
		return psprintf("REINDEX INDEX %s, which reads its table only; and look for what damaged it",
						patient->name);
	if (OidIsValid(table) && is_file_of(table, error->message))
		return psprintf("this is table %s itself, and no REINDEX helps: restore it from a backup, and look for what damaged it",
						IvfpqRelationName(table));
	return NULL;
}

/* A row or more for each index. */
void
IvfpqFindIndexes(IvfpqFindings *findings, const IvfpqServerStatus *status)
{
	List	   *oids = list_indexes();
	ListCell   *lc;

	foreach(lc, oids)
	{
		Patient		patient = {
			.findings = findings, .status = status, .oid = lfirst_oid(lc)
		};
		ErrorData  *error;

		CHECK_FOR_INTERRUPTS();
		if (get_rel_name(patient.oid) == NULL)
			continue;
		patient.name = IvfpqRelationName(patient.oid);
		patient.literal = quote_literal_cstr(patient.name);
		error = IvfpqAttempt(visit, &patient);
		if (error == NULL)
			continue;
		find(&patient, error->message, advise_on_error(&patient, error));
		FreeErrorData(error);
	}
	if (oids == NIL)
		IvfpqFind(findings, "indexes", "this database has none of gpuivfpq",
				  NULL);
}
