/*
 * doctor.c
 *		gpuvec_doctor(): reports the state of an installation, with advice.
 *
 * The doctor checks versions, gpuvecd, the machine, settings that contradict
 * each other, and each index of the database.  It never waits for the lock of
 * an index: a locked index is reported as not checked.  If the check of an
 * index raises an error, for example because a page is damaged, the error is
 * reported as the finding on this index, and the doctor continues with the
 * next index.
 */
#include "postgres.h"

#include <ctype.h>

#include "access/relation.h"
#include "catalog/index.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "optimizer/cost.h"
#include "postmaster/bgworker_internals.h"
#include "storage/bufmgr.h"
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "am/build/train.h"
#include "am/common/identity.h"
#include "am/common/options.h"
#include "am/scan/scanstats.h"
#include "am/search/params.h"
#include "client/client.h"
#include "inspect/doctor.h"
#include "inspect/doctortexts.h"
#include "inspect/inspect.h"
#include "page/attempt.h"
#include "pgcompat.h"

/*
 * The doctor recommends huge pages for shared buffers of at least this size.
 */
#define MANY_BUFFERS	((Size) 4 * 1024 * 1024 * 1024)

/*
 * Background workers for gpuvecd: the supervisor and IVFPQ_MAX_LOADERS
 * loaders.
 */
#define SERVER_WORKERS	3

/*
 * After at least MANY_SCANS scans the doctor reports an index if more than
 * FULL_PASSES_FRACTION of the scans ended in a full pass, or if the ratio of
 * rows out of order to rows returned exceeds OUT_OF_ORDER_FRACTION.
 */
#define MANY_SCANS		100
#define FULL_PASSES_FRACTION	0.5
#define OUT_OF_ORDER_FRACTION		0.05

/* The index that is being checked. */
typedef struct IndexReport
{
	ReturnSetInfo *result;
	const IvfpqServerStatus *status;
	Oid			oid;
	char	   *name;
	char	   *literal;		/* the name, quoted as an SQL string */
	Relation	index;
	IvfpqInspection inspection;
	IvfpqCounts counts;
	bool		counted;
} IndexReport;

PG_FUNCTION_INFO_V1(gpuvec_doctor);

/* Adds a finding, which is a row of the function's result. */
void
IvfpqAddFinding(ReturnSetInfo *result, const char *subject,
				const char *state, const char *advice)
{
	Datum		values[3];
	bool		nulls[3] = {false, false, advice == NULL};

	values[0] = CStringGetTextDatum(subject);
	values[1] = CStringGetTextDatum(state);
	values[2] = advice ? CStringGetTextDatum(advice) : (Datum) 0;
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/*
 * Returns the name of a table or index, qualified by the schema if the
 * search_path does not find it otherwise.
 */
char *
IvfpqRelationName(Oid relid)
{
	return DatumGetCString(DirectFunctionCall1(regclassout,
											   ObjectIdGetDatum(relid)));
}

static char *
megabytes(int64 bytes)
{
	return psprintf("%lld MB", (long long) (bytes / (1024 * 1024)));
}

/* Reports this database's extensions, and whether they match the library. */
static void
find_versions(ReturnSetInfo *result)
{
	SPITupleTable *table;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute("SELECT e.extname::pg_catalog.text, a.default_version, e.extversion"
					" FROM pg_catalog.pg_extension AS e JOIN pg_catalog.pg_available_extensions() AS a"
					" ON a.name OPERATOR(pg_catalog.=) e.extname"
					" WHERE e.extname OPERATOR(pg_catalog.=) ANY ('{gpuvec,gpuvec_pgvector,vector}'::pg_catalog.name[])"
					" ORDER BY 1", true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read versions of extensions");
	table = SPI_tuptable;
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		const char *name = SPI_getvalue(table->vals[i], table->tupdesc, 1);
		const char *files = SPI_getvalue(table->vals[i], table->tupdesc, 2);
		const char *installed = SPI_getvalue(table->vals[i], table->tupdesc, 3);
		const char *state = psprintf(DOCTOR_VERSION, installed);
		const char *advice = NULL;
		bool		is_ours = strncmp(name, "gpuvec", 6) == 0;

		if (is_ours && strcmp(files, GPUVEC_RELEASE) != 0)
		{
			state = psprintf(DOCTOR_OLD_LIBRARY,
							 state, files, GPUVEC_RELEASE);
			advice = DOCTOR_RECONNECT;
		}
		else if (is_ours && strcmp(installed, files) != 0)
		{
			state = psprintf(DOCTOR_OLD_EXTENSION, state,
							 GPUVEC_RELEASE);
			advice = psprintf(DOCTOR_UPDATE_EXTENSION, name);
		}
		IvfpqAddFinding(result, name, state, advice);
	}
	SPI_finish();
	IvfpqAddFinding(result, "formats",
					psprintf(DOCTOR_FORMAT,
							 IVFPQ_VERSION),
					NULL);
}

/* Returns advice on a gpuvecd that is not up, or NULL if there is none. */
static const char *
server_advice(const IvfpqServerStatus *status)
{
	const char *suspended = DOCTOR_SERVER_SUSPENDED;
	const char *others = status->is_external && status->is_others ?
	DOCTOR_OTHERS_SERVER :
	NULL;
	const struct
	{
		const char *state;
		const char *ours;		/* advice if PostgreSQL starts gpuvecd */
		const char *external;	/* advice if somebody else starts it */
	}			states[] = {
		{"starting", DOCTOR_SERVER_STARTING, others},
		{"other version",
			DOCTOR_SERVER_VERSION,
			psprintf(DOCTOR_SERVER_VERSION_EXTERNAL,
					 GPUVEC_RELEASE)},
		{"suspended", suspended, suspended},
		{"down",
			DOCTOR_SERVER_DOWN,
			others ? others :
			psprintf(DOCTOR_SERVER_DOWN_EXTERNAL,
					 ivfpq_server_directory)},
	};

	for (int i = 0; i < (int) lengthof(states); i++)
		if (strcmp(status->state, states[i].state) == 0)
			return status->is_external ? states[i].external : states[i].ours;
	return others;				/* the states "off" and "no GPU" */
}

/* Returns advice on how to give gpuvecd more memory. */
static const char *
more_memory(const IvfpqServerStatus *status)
{
	return status->is_external ? DOCTOR_MORE_MEMORY_EXTERNAL :
		DOCTOR_MORE_MEMORY;
}

/* Reports gpuvecd and its mirrors. */
static void
find_server(ReturnSetInfo *result, const IvfpqServerStatus *status)
{
	if (!status->preloaded)
	{
		IvfpqAddFinding(result, "preloading",
						DOCTOR_NOT_PRELOADED,
						status->preload_helps ?
						DOCTOR_PRELOAD :
						NULL);
		return;
	}
	IvfpqAddFinding(result, "preloading", DOCTOR_PRELOADED, NULL);
	if (status->pid == 0 || !status->up)
	{
		IvfpqAddFinding(result, "gpuvecd",
						psprintf(DOCTOR_SERVER_NOT_UP, status->state,
								 status->problem[0] ? ": " : "",
								 status->problem),
						server_advice(status));
		return;
	}
	IvfpqAddFinding(result, "gpuvecd",
					psprintf(DOCTOR_SERVER_UP,
							 status->state, status->pid, status->engine,
							 status->device[0] ? ": " : "", status->device,
							 (long long) status->restarts),
					NULL);
	IvfpqAddFinding(result, "mirrors",
					psprintf(DOCTOR_MIRRORS, status->nmirrors,
							 megabytes(status->used),
							 megabytes(status->memory)),
					status->memory > 0 &&
					status->used > status->memory / 10 * 9 ?
					psprintf(DOCTOR_MEMORY_FULL,
							 more_memory(status)) : NULL);
}

/*
 * Returns the version of the NVIDIA driver, or NULL.  The version is the first
 * word in the kernel's description of the driver that begins with a digit and
 * contains a dot.
 */
static char *
driver_version(void)
{
	FILE	   *file = AllocateFile("/proc/driver/nvidia/version", "r");
	char		line[256];
	char	   *word = NULL;

	if (file == NULL)
		return NULL;
	if (fgets(line, sizeof(line), file) != NULL)
	{
		word = strtok(line, " \t\n");
		while (word != NULL &&
			   (!isdigit((unsigned char) word[0]) || strchr(word, '.') == NULL))
			word = strtok(NULL, " \t\n");
	}
	FreeFile(file);
	return word ? pstrdup(word) : NULL;
}

/* Reports the device, memory, huge pages and background workers. */
static void
find_machine(ReturnSetInfo *result, const IvfpqServerStatus *status)
{
	const char *driver = driver_version();
	Size		buffers = (Size) NBuffers * BLCKSZ;
	const char *huge = GetConfigOption("huge_pages", true, false);
	const char *in_force = GetConfigOption("huge_pages_status", true, false);
	bool		lacks_huge = (huge != NULL && strcmp(huge, "off") == 0) ||
	(in_force != NULL && strcmp(in_force, "off") == 0);
	int			server_workers =
	status->preloaded && ivfpq_server != IVFPQ_SERVER_OFF ?
	SERVER_WORKERS : 0;
	int			workers = server_workers + ivfpq_max_training_workers +
	max_parallel_maintenance_workers;

	IvfpqAddFinding(result, "GPU",
					!status->has_device ? DOCTOR_NO_DEVICE :
					driver == NULL ?
					DOCTOR_DEVICE_WITHOUT_DRIVER :
					psprintf(DOCTOR_DEVICE, driver),
					NULL);
	IvfpqAddFinding(result, "memory",
					psprintf(DOCTOR_MACHINE_MEMORY,
							 megabytes(buffers),
							 megabytes((int64) maintenance_work_mem * 1024),
							 megabytes((int64) work_mem * 1024)),
					NULL);
	/* huge_pages_status does not exist in all versions of PostgreSQL */
	IvfpqAddFinding(result, "huge pages",
					psprintf(DOCTOR_HUGE_PAGES, huge ? huge : "unknown",
							 in_force ? DOCTOR_HUGE_PAGES_IN_FORCE : "",
							 in_force ? in_force : ""),
					lacks_huge && buffers >= MANY_BUFFERS ?
					DOCTOR_USE_HUGE_PAGES :
					NULL);
	IvfpqAddFinding(result, "workers",
					psprintf(DOCTOR_WORKERS,
							 max_worker_processes, workers, server_workers,
							 ivfpq_max_training_workers,
							 max_parallel_maintenance_workers),
					workers > max_worker_processes ?
					psprintf(DOCTOR_MORE_WORKERS,
							 workers) : NULL);
}

/*
 * Returns the names of settings that are set but have no effect.  If
 * gpuvec.server is external, PostgreSQL does not start gpuvecd, so some
 * settings have no effect.  Other settings have an effect only in this case.
 */
static char *
name_without_effect(const IvfpqServerStatus *status)
{
	const struct
	{
		bool		is_external;	/* true: has no effect if gpuvec.server is
									 * external; false: has no effect
									 * otherwise */
		bool		is_set;
		const char *name;
	}			settings[] = {
		{true, ivfpq_gpu_memory != 0, "gpuvec.gpu_memory"},
		{true, ivfpq_devices[0] != '\0', "gpuvec.devices"},
		{true, ivfpq_replicas != 1, "gpuvec.replicas"},
		{true, ivfpq_matmul != IVFPQ_MATMUL_AUTO, "gpuvec.matmul"},
		{true, ivfpq_server_path[0] != '\0', "gpuvec.server_path"},
		{false, ivfpq_server_directory[0] != '\0', "gpuvec.server_directory"},
		{false, ivfpq_server_owner[0] != '\0', "gpuvec.server_owner"},
	};
	StringInfoData names;

	initStringInfo(&names);
	for (int i = 0; i < (int) lengthof(settings); i++)
		if (settings[i].is_set &&
			settings[i].is_external == status->is_external)
			appendStringInfo(&names, "%s%s", names.len > 0 ? ", " : "",
							 settings[i].name);
	return names.data;
}

/*
 * Reports settings that contradict each other, have no effect, lower the
 * recall, turn a feature off, or make searches slow.
 */
static void
find_settings(ReturnSetInfo *result, const IvfpqServerStatus *status)
{
	const char *without_effect = name_without_effect(status);
	bool		lacks_server = !status->up && IvfpqServerIsWanted();
	const char *why_none = status->preloaded ?
	psprintf("the state of gpuvecd is %s", status->state) : "gpuvec is not preloaded";
	const struct
	{
		bool		holds;
		const char *state;
		const char *advice;
	}			findings[] = {
		{!status->preloaded &&
			(ivfpq_server != IVFPQ_SERVER_AUTO || ivfpq_gpu_memory != 0 ||
			 ivfpq_devices[0] != '\0' || ivfpq_replicas != 1 ||
			 ivfpq_matmul != IVFPQ_MATMUL_AUTO),
			DOCTOR_SERVER_SETTINGS_WITHOUT_EFFECT,
			DOCTOR_PRELOAD_OR_RESET
		},
		{status->preloaded && without_effect[0] != '\0',
			psprintf(DOCTOR_WITHOUT_EFFECT,
					 status->is_external ? "" : "not ", without_effect),
			status->is_external ?
			DOCTOR_USE_SERVER_OPTIONS :
			DOCTOR_USE_EXTERNAL
		},
		{!status->preloaded && ivfpq_keep_queries,
			DOCTOR_QUERIES_NOT_KEPT,
			DOCTOR_PRELOAD_OR_TURN_OFF
		},
		{lacks_server && ivfpq_on_gpu_error == IVFPQ_ON_ERROR_ERROR,
			psprintf(DOCTOR_SEARCHES_FAIL,
					 why_none),
			DOCTOR_USE_FALLBACK
		},
		{lacks_server && ivfpq_on_gpu_error != IVFPQ_ON_ERROR_ERROR &&
			ivfpq_engine == IVFPQ_ENGINE_GPU,
			psprintf(DOCTOR_ENGINE_MISSING,
					 why_none),
			DOCTOR_USE_AUTO_ENGINE
		},

		/* settings that override gpuvec.recall, or make it costly */
		{ivfpq_probes > 0,
			psprintf(DOCTOR_PROBES_SET,
					 ivfpq_probes, ivfpq_recall),
			DOCTOR_RESET_PROBES
		},
		{ivfpq_candidates > 0,
			psprintf(DOCTOR_CANDIDATES_SET,
					 ivfpq_candidates, ivfpq_recall),
			DOCTOR_RESET_CANDIDATES
		},
		{ivfpq_max_probes > 0,
			psprintf(DOCTOR_MAX_PROBES_SET,
					 ivfpq_max_probes, ivfpq_recall),
			DOCTOR_RESET_MAX_PROBES
		},
		{ivfpq_recall >= 1,
			DOCTOR_RECALL_IS_1,
			DOCTOR_LESS_THAN_1
		},

		/* features that are turned off */
		{!enable_indexscan,
			DOCTOR_INDEXSCAN_OFF_SETTING,
			DOCTOR_ENABLE_INDEXSCAN
		},
		{ivfpq_use_index == IVFPQ_USE_NEVER,
			DOCTOR_USE_INDEX_NEVER_SETTING,
			DOCTOR_RESET_USE_INDEX
		},
		{!ivfpq_enable_custom_scan,
			DOCTOR_CUSTOM_SCAN_OFF,
			DOCTOR_ENABLE_CUSTOM_SCAN
		},
		{ivfpq_max_training_workers == 0,
			DOCTOR_NO_TRAINING_WORKERS,
			DOCTOR_MORE_TRAINING_WORKERS
		},
		{ivfpq_simd == GV_SIMD_PORTABLE,
			DOCTOR_PORTABLE,
			DOCTOR_RESET_SIMD
		},
		{IvfpqServerIsWanted() && !ivfpq_auto_mirror,
			DOCTOR_AUTO_MIRROR_OFF,
			DOCTOR_ENABLE_AUTO_MIRROR
		},
	};
	bool		found = false;

	for (int i = 0; i < (int) lengthof(findings); i++)
	{
		if (!findings[i].holds)
			continue;
		found = true;
		IvfpqAddFinding(result, "settings", findings[i].state,
						findings[i].advice);
	}
	if (!found)
		IvfpqAddFinding(result, "settings", DOCTOR_SETTINGS_AGREE, NULL);
}

static void
find(const IndexReport *report, const char *state, const char *advice)
{
	IvfpqAddFinding(report->result, report->name, state, advice);
}

/* Describes a search of the index whose first batch has these parameters. */
static const char *
describe_search(const IndexReport *report, const IvfpqSearchParams *params)
{
	int			nlists = report->inspection.meta.nlists;
	int			least_rows = IvfpqLeastRows(report->index);

	if (nlists == 0 && report->inspection.has_worker)
		return DOCTOR_TRAINING;
	if (nlists == 0)
		return report->index->rd_rel->relpersistence == RELPERSISTENCE_TEMP ?
			psprintf(DOCTOR_UNTRAINED_TEMPORARY,
					 least_rows) :
			psprintf(DOCTOR_UNTRAINED,
					 IvfpqTrainRows(report->index), least_rows);
	if (params->read_all)
		return psprintf(DOCTOR_READS_ALL,
						ivfpq_recall, nlists);
	return psprintf(DOCTOR_FIRST_BATCH,
					ivfpq_recall, params->probes, nlists, params->candidates);
}

/*
 * Reports an index whose searches cannot follow gpuvec.recall, because its
 * option probes is set or because it is not calibrated for a recall as high as
 * gpuvec.recall.  Some indexes are calibrated for gpuvec.recall in the first
 * batch of a search (ten rows) but not in the second batch, so both batches
 * are checked.  If the index has too few rows to be calibrated, the advice
 * does not name gpuvec_calibrate.
 */
static void
find_recall(const IndexReport *report, const IvfpqSearchParams *params)
{
	const IvfpqMetaData *meta = &report->inspection.meta;
	const IvfpqOptions *options = IvfpqGetOptions(report->index);
	int64		rows = report->inspection.totals.rows +
	report->inspection.pending;
	IvfpqSearchParams next;

	if (meta->nlists == 0)
		return;
	IvfpqParamsForBatch(&next, report->index, meta, ivfpq_recall, 1);
	if (options->probes > 0 && ivfpq_probes == 0)
		find(report,
			 psprintf(DOCTOR_PROBES_OPTION,
					  options->probes, ivfpq_recall),
			 psprintf(DOCTOR_RESET_PROBES_OPTION, report->name));
	else if (ivfpq_recall < 1 && next.read_all)
		find(report,
			 psprintf(params->read_all ?
					  DOCTOR_BEYOND_CALIBRATION :
					  DOCTOR_BEYOND_CALIBRATION_OF_10,
					  ivfpq_recall),
			 IvfpqCalibrationQueries(rows) > 0 ?
			 psprintf(DOCTOR_RECALIBRATE,
					  report->literal) :
			 DOCTOR_LESS_RECALL);
}

/*
 * Reports an index that has fewer than half of the default number of lists.
 * Either maintenance_work_mem was too small when the index was trained, or its
 * training rows were copies of few vectors.  If many rows are copies now,
 * there cannot be more lists, so there is no advice.
 */
static void
find_few_lists(const IndexReport *report)
{
	const IvfpqMetaData *meta = &report->inspection.meta;
	int			wanted = IvfpqDefaultLists((double) meta->rows_at_training);
	Size		bytes = IvfpqMemoryForLists(wanted, meta->dims);

	if (meta->nlists == 0 || IvfpqGetOptions(report->index)->lists > 0 ||
		meta->nlists >= wanted / 2)
		return;
	if (report->inspection.has_copies)
		find(report,
			 psprintf(DOCTOR_FEW_LISTS_OF_COPIES,
					  meta->nlists, wanted),
			 NULL);
	else if (bytes <= IvfpqMemoryLimit())
		find(report,
			 psprintf(DOCTOR_FEW_LISTS,
					  meta->nlists, wanted),
			 psprintf(DOCTOR_REINDEX, report->name));
	else
		find(report,
			 psprintf(DOCTOR_FEW_LISTS_OF_MEMORY,
					  meta->nlists, wanted),
			 psprintf(DOCTOR_REINDEX_WITH_MEMORY,
					  (long long) (bytes >> 20) + 1, report->name));
}

/* Reports the problems that the counts of an index's scans show. */
static void
find_in_counts(const IndexReport *report)
{
	const int64 *counts = report->counts.counts;
	int64		scans = counts[IVFPQ_COUNT_SCANS];

	if (!report->counted || scans < MANY_SCANS ||
		report->inspection.meta.nlists == 0)
		return;
	if (counts[IVFPQ_COUNT_FULL_PASSES] > scans * FULL_PASSES_FRACTION)
		find(report,
			 psprintf(DOCTOR_FULL_PASSES,
					  (long long) counts[IVFPQ_COUNT_FULL_PASSES],
					  (long long) scans),
			 DOCTOR_INDEX_CONDITIONS);
	if (counts[IVFPQ_COUNT_OUT_OF_ORDER] > counts[IVFPQ_COUNT_RETURNED] *
		OUT_OF_ORDER_FRACTION)
		find(report,
			 psprintf(DOCTOR_OUT_OF_ORDER,
					  (long long) counts[IVFPQ_COUNT_OUT_OF_ORDER],
					  (long long) counts[IVFPQ_COUNT_RETURNED]),
			 DOCTOR_ALLOW_OUT_OF_ORDER);
}

/* Reports the state of an index's mirror, if gpuvecd should have one. */
static void
find_mirror(const IndexReport *report)
{
	const IvfpqServerStatus *status = report->status;
	const IvfpqMetaData *meta = &report->inspection.meta;
	int64		bytes = (int64) RelationGetNumberOfBlocks(report->index) *
	BLCKSZ;
	bool		is_too_large = status->memory > 0 && bytes > status->memory;
	GvMirrorKey key;
	const char *state;
	char	   *error;

	if (!status->up || !IvfpqServerIsWanted() ||
		!IvfpqCanMirror(report->index, meta))
		return;
	key = IvfpqMirrorKey(report->index, meta);
	state = IvfpqGetMirrorState(status, &key, &error);
	if (state == NULL || strcmp(state, "evicted") == 0)
		find(report,
			 state == NULL ? DOCTOR_NOT_MIRRORED :
			 DOCTOR_EVICTED,
			 is_too_large ?
			 psprintf(DOCTOR_MIRROR_TOO_LARGE,
					  more_memory(status), (long long) (bytes >> 20),
					  (long long) (status->memory >> 20)) :
			 psprintf(DOCTOR_PREWARM,
					  report->literal));
	else if (strcmp(state, "failed") == 0)
		find(report,
			 psprintf(DOCTOR_MIRROR_FAILED, error),
			 is_too_large ?
			 psprintf(DOCTOR_MIRROR_FAILED_MEMORY,
					  more_memory(status)) :
			 psprintf(DOCTOR_MIRROR_FAILED_LOG,
					  status->is_external ? "gpuvecd's" : "the server's"));
	else
		find(report, psprintf(DOCTOR_MIRROR_STATE, state), NULL);
}

/* Reports the findings on an index.  The index and its table are locked. */
static void
look_into(IndexReport *report, Relation heap)
{
	Form_pg_index form = report->index->rd_index;
	const IvfpqInspection *inspection = &report->inspection;
	const int64 *counts = report->counts.counts;
	IvfpqSearchParams params;

	if (!form->indisvalid)
	{
		find(report, form->indisready ?
			 DOCTOR_NOT_VALID :
			 DOCTOR_NOT_READY,
			 psprintf(DOCTOR_REINDEX_OR_DROP,
					  report->name));
		return;
	}
	if (RecoveryInProgress() && !RelationNeedsWAL(report->index))
	{
		find(report, DOCTOR_UNLOGGED, NULL);
		return;
	}
	if (!IvfpqOwnsRelation(form->indrelid, GetUserId()) &&
		!has_privs_of_role(GetUserId(), ROLE_PG_MONITOR))
	{
		find(report,
			 DOCTOR_NO_RIGHTS,
			 NULL);
		return;
	}
	IvfpqInspect(heap, report->index, &report->inspection);
	IvfpqParamsForBatch(&params, report->index, &inspection->meta,
						ivfpq_recall, 0);
	report->counted = IvfpqCountersGet(report->oid, &report->counts);
	find(report,
		 psprintf(DOCTOR_INDEX_STATE, inspection->meta.version,
				  (long long) (inspection->totals.rows + inspection->pending),
				  describe_search(report, &params),
				  !report->counted || report->counts.since == 0 ? "" :
				  psprintf(DOCTOR_INDEX_SCANS,
						   (long long) counts[IVFPQ_COUNT_SCANS],
						   (long long) counts[IVFPQ_COUNT_FULL_PASSES])),
		 inspection->advice);
	find_recall(report, &params);
	find_few_lists(report);
	find_in_counts(report);
	find_mirror(report);
}

/*
 * IvfpqAttempt callback.  Checks an index, if the index and its table can be
 * locked without waiting.
 */
static void
visit(void *arg)
{
	IndexReport *report = arg;
	Oid			heapoid = IndexGetRelation(report->oid, true);
	Relation	heap;

	if (!OidIsValid(heapoid))
		return;
	if (!ConditionalLockRelationOid(heapoid, AccessShareLock))
	{
		find(report, DOCTOR_TABLE_LOCKED, NULL);
		return;
	}
	heap = try_relation_open(heapoid, NoLock);
	if (heap == NULL)
		return;
	if (!ConditionalLockRelationOid(report->oid, AccessShareLock))
		find(report, DOCTOR_INDEX_LOCKED, NULL);
	else
	{
		report->index = try_relation_open(report->oid, NoLock);
		if (report->index != NULL &&
			!RELATION_IS_OTHER_TEMP(report->index))
			look_into(report, heap);
		if (report->index != NULL)
			relation_close(report->index, AccessShareLock);
	}
	relation_close(heap, AccessShareLock);
}

/* Returns whether an error message names the relation's file. */
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
	if (fcinfo->isnull)			/* the relation was dropped meanwhile */
		return false;
	name = text_to_cstring(DatumGetTextPP(path));
	found = strstr(message, name);
	return found != NULL && !isdigit((unsigned char) found[strlen(name)]);
}

/*
 * Returns advice on an error that ended the check of an index: the error's
 * hint, if it has one.  PostgreSQL gives no hint if a page cannot be read.  In
 * that case the advice depends on the file that the message names.
 */
static const char *
advise_on_error(const IndexReport *report, const ErrorData *error)
{
	Oid			table = IndexGetRelation(report->oid, true);

	if (error->hint != NULL ||
		(error->sqlerrcode != ERRCODE_DATA_CORRUPTED &&
		 error->sqlerrcode != ERRCODE_IO_ERROR &&
		 error->sqlerrcode != ERRCODE_UNDEFINED_FILE))
		return error->hint;
	if (is_file_of(report->oid, error->message))
		return psprintf(DOCTOR_DAMAGED_INDEX,
						report->name);
	if (OidIsValid(table) && is_file_of(table, error->message))
		return psprintf(DOCTOR_DAMAGED_TABLE,
						IvfpqRelationName(table));
	return NULL;
}

/* Reports each index of the database, in one or more rows. */
static void
find_indexes(ReturnSetInfo *result, const IvfpqServerStatus *status)
{
	List	   *oids = IvfpqListIndexes(true);
	ListCell   *lc;

	foreach(lc, oids)
	{
		IndexReport report = {
			.result = result, .status = status, .oid = lfirst_oid(lc)
		};
		ErrorData  *error;

		CHECK_FOR_INTERRUPTS();
		if (get_rel_name(report.oid) == NULL)
			continue;
		report.name = IvfpqRelationName(report.oid);
		report.literal = quote_literal_cstr(report.name);
		error = IvfpqAttempt(visit, &report);
		if (error == NULL)
			continue;
		find(&report, error->message, advise_on_error(&report, error));
		FreeErrorData(error);
	}
	if (oids == NIL)
		IvfpqAddFinding(result, "indexes", DOCTOR_NO_INDEXES,
						NULL);
}

/* gpuvec_doctor() */
Datum
gpuvec_doctor(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	IvfpqServerStatus status;

	InitMaterializedSRF(fcinfo, 0);
	IvfpqGetServerStatus(&status);
	find_versions(result);
	find_server(result, &status);
	find_machine(result, &status);
	find_settings(result, &status);
	find_indexes(result, &status);
	return (Datum) 0;
}
