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
		const char *state = psprintf("version %s", installed);
		const char *advice = NULL;
		bool		is_ours = strncmp(name, "gpuvec", 6) == 0;

		if (is_ours && strcmp(files, GPUVEC_RELEASE) != 0)
		{
			state = psprintf("%s, files of %s are installed, but this session runs the library of %s",
							 state, files, GPUVEC_RELEASE);
			advice = "begin a new session or, where gpuvec is preloaded, restart the server";
		}
		else if (is_ours && strcmp(installed, files) != 0)
		{
			state = psprintf("%s, the library is of %s", state,
							 GPUVEC_RELEASE);
			advice = psprintf("ALTER EXTENSION %s UPDATE", name);
		}
		IvfpqAddFinding(result, name, state, advice);
	}
	SPI_finish();
	IvfpqAddFinding(result, "formats",
					psprintf("this gpuvec reads and writes format %d",
							 IVFPQ_VERSION),
					NULL);
}

/* Returns advice on a gpuvecd that is not up, or NULL if there is none. */
static const char *
server_advice(const IvfpqServerStatus *status)
{
	const char *suspended = "sessions search themselves until it answers in time; look into the server's log, and at gpuvec_stat";
	const char *others = status->is_external && status->is_others ?
	"have another gpuvecd started for this cluster, in a folder of its own" :
	NULL;
	const struct
	{
		const char *state;
		const char *ours;		/* advice if PostgreSQL starts gpuvecd */
		const char *external;	/* advice if somebody else starts it */
	}			states[] = {
		{"starting", "wait a moment, and look again", others},
		{"other version",
			"restart the server: it was started before gpuvec was upgraded",
			psprintf("have gpuvecd of the same version started: the library is of %s",
					 GPUVEC_RELEASE)},
		{"suspended", suspended, suspended},
		{"down",
			"look into the server's log, which says why it ended; sessions search themselves meanwhile",
			others ? others :
			psprintf("start it with --socket %s; that folder, or what leads to it, has to belong to gpuvec.server_owner, by default PostgreSQL's user, or to root, and nobody else may write to it",
					 ivfpq_server_directory)},
	};

	for (int i = 0; i < (int) lengthof(states); i++)
		if (strcmp(status->state, states[i].state) == 0)
			return status->is_external ? states[i].external : states[i].ours;
	return others;				/* the states "off" and "no card" */
}

/* Returns advice on how to give gpuvecd more memory. */
static const char *
more_memory(const IvfpqServerStatus *status)
{
	return status->is_external ? "give gpuvecd a larger --memory" :
		"raise gpuvec.gpu_memory";
}

/* Reports gpuvecd and its mirrors. */
static void
find_server(ReturnSetInfo *result, const IvfpqServerStatus *status)
{
	if (!status->preloaded)
	{
		IvfpqAddFinding(result, "preloading",
						"gpuvec is not preloaded: there is no gpuvecd, sessions search themselves",
						status->preload_helps ?
						"shared_preload_libraries = 'gpuvec', and restart the server" :
						NULL);
		return;
	}
	IvfpqAddFinding(result, "preloading", "gpuvec is preloaded", NULL);
	if (status->pid == 0 || !status->up)
	{
		IvfpqAddFinding(result, "gpuvecd",
						psprintf("it is %s%s%s", status->state,
								 status->problem[0] ? ": " : "",
								 status->problem),
						server_advice(status));
		return;
	}
	IvfpqAddFinding(result, "gpuvecd",
					psprintf("it is %s, process %d on %s%s%s, started again %lld times",
							 status->state, status->pid, status->engine,
							 status->device[0] ? ": " : "", status->device,
							 (long long) status->restarts),
					NULL);
	IvfpqAddFinding(result, "mirrors",
					psprintf("%d, they take %s of %s", status->nmirrors,
							 megabytes(status->used),
							 megabytes(status->memory)),
					status->memory > 0 &&
					status->used > status->memory / 10 * 9 ?
					psprintf("memory is nearly full, and mirrors searched longest ago give way: %s, if the card has more",
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

	IvfpqAddFinding(result, "card",
					!status->has_device ? "this machine shows none" :
					driver == NULL ?
					"this machine shows one; which driver it has is not to be seen" :
					psprintf("this machine shows one, of driver %s", driver),
					NULL);
	IvfpqAddFinding(result, "memory",
					psprintf("shared_buffers %s, maintenance_work_mem %s, work_mem %s",
							 megabytes(buffers),
							 megabytes((int64) maintenance_work_mem * 1024),
							 megabytes((int64) work_mem * 1024)),
					NULL);
	/* huge_pages_status does not exist in all versions of PostgreSQL */
	IvfpqAddFinding(result, "huge pages",
					psprintf("huge_pages is %s%s%s", huge ? huge : "unknown",
							 in_force ? ", in force: " : "",
							 in_force ? in_force : ""),
					lacks_huge && buffers >= MANY_BUFFERS ?
					"set vm.nr_hugepages to what postgres -C shared_memory_size_in_huge_pages says, and huge_pages to on: searches of large indexes get faster" :
					NULL);
	IvfpqAddFinding(result, "workers",
					psprintf("max_worker_processes is %d; gpuvec takes up to %d: %d for gpuvecd, %d that train, %d that help to build",
							 max_worker_processes, workers, server_workers,
							 ivfpq_max_training_workers,
							 max_parallel_maintenance_workers),
					workers > max_worker_processes ?
					psprintf("raise max_worker_processes to %d and more",
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
	psprintf("gpuvecd is %s", status->state) : "gpuvec is not preloaded";
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
			"gpuvec.server, gpuvec.gpu_memory, gpuvec.devices, gpuvec.replicas and gpuvec.matmul have no effect: gpuvec is not preloaded",
			"shared_preload_libraries = 'gpuvec', and restart the server; or reset them"
		},
		{status->preloaded && without_effect[0] != '\0',
			psprintf("set, and of no effect: gpuvec.server is %sexternal: %s",
					 status->is_external ? "" : "not ", without_effect),
			status->is_external ?
			"give gpuvecd the options --memory, --devices, --replicas and --matmul instead, and reset them" :
			"gpuvec.server = external, or reset them"
		},
		{!status->preloaded && ivfpq_keep_queries,
			"gpuvec.keep_queries has no effect: gpuvec is not preloaded",
			"shared_preload_libraries = 'gpuvec', and restart the server; or turn it off"
		},
		{lacks_server && ivfpq_on_gpu_error == IVFPQ_ON_ERROR_ERROR,
			psprintf("gpuvec.on_gpu_error is error, and %s: searches of mirrored indexes fail",
					 why_none),
			"SET gpuvec.on_gpu_error = fallback, or gpuvec.engine = cpu"
		},
		{lacks_server && ivfpq_on_gpu_error != IVFPQ_ON_ERROR_ERROR &&
			ivfpq_engine == IVFPQ_ENGINE_GPU,
			psprintf("gpuvec.engine is gpu, and %s: sessions search themselves",
					 why_none),
			"SET gpuvec.engine = auto, or have gpuvecd started"
		},

		/* settings that override gpuvec.recall, or make it costly */
		{ivfpq_probes > 0,
			psprintf("gpuvec.probes is %d: gpuvec.recall (%g) has no say in how many lists are read",
					 ivfpq_probes, ivfpq_recall),
			"RESET gpuvec.probes, unless it is for a measurement"
		},
		{ivfpq_candidates > 0,
			psprintf("gpuvec.candidates is %d: gpuvec.recall (%g) has no say in how many rows are measured",
					 ivfpq_candidates, ivfpq_recall),
			"RESET gpuvec.candidates, unless it is for a measurement"
		},
		{ivfpq_max_probes > 0,
			psprintf("gpuvec.max_probes is %d: scans end there, whether they have reached gpuvec.recall (%g) and the rows that LIMIT asks for or not",
					 ivfpq_max_probes, ivfpq_recall),
			"RESET gpuvec.max_probes, unless time matters more than rows"
		},
		{ivfpq_recall >= 1,
			"gpuvec.recall is 1: each search reads the whole index",
			"SET gpuvec.recall = 0.99 or less, unless answers have to be exact"
		},

		/* features that are turned off */
		{!enable_indexscan,
			"enable_indexscan is off: the planner avoids every index",
			"SET enable_indexscan = on"
		},
		{ivfpq_use_index == IVFPQ_USE_NEVER,
			"gpuvec.use_index is never: no plan uses an index of gpuivfpq",
			"RESET gpuvec.use_index, unless it is for a comparison"
		},
		{!ivfpq_enable_custom_scan,
			"gpuvec.enable_custom_scan is off: conditions are asked only of rows that were measured",
			"SET gpuvec.enable_custom_scan = on"
		},
		{ivfpq_max_training_workers == 0,
			"gpuvec.max_training_workers is 0: no VACUUM has an index trained",
			"raise it, or call gpuvec_train"
		},
		{ivfpq_simd == GV_SIMD_PORTABLE,
			"gpuvec.simd is portable: searches are slower than this processor allows",
			"RESET gpuvec.simd, unless it is for a measurement"
		},
		{IvfpqServerIsWanted() && !ivfpq_auto_mirror,
			"gpuvec.auto_mirror is off: only gpuvec_prewarm brings mirrors to gpuvecd",
			"SET gpuvec.auto_mirror = on, or prewarm what is searched"
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
		IvfpqAddFinding(result, "settings", "they go together", NULL);
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

	if (nlists == 0)
		return report->index->rd_rel->relpersistence == RELPERSISTENCE_TEMP ?
			psprintf("not trained, searches are exact; gpuvec_train trains it from %d on",
					 least_rows) :
			psprintf("not trained, searches are exact; VACUUM trains it when it holds %d, gpuvec_train from %d on",
					 IvfpqTrainRows(report->index), least_rows);
	if (params->read_all)
		return psprintf("a search at recall %g reads all of %d lists",
						ivfpq_recall, nlists);
	return psprintf("a search at recall %g begins with %d of %d lists and %d candidates",
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
			 psprintf("its option probes is %d: gpuvec.recall (%g) has no say in how many lists are read",
					  options->probes, ivfpq_recall),
			 psprintf("ALTER INDEX %s RESET (probes)", report->name));
	else if (ivfpq_recall < 1 && next.read_all)
		find(report,
			 psprintf(params->read_all ?
					  "recall %g is more than it is calibrated for: each search reads the whole index" :
					  "recall %g is more than it is calibrated for beyond ten rows: each search for more reads the whole index",
					  ivfpq_recall),
			 IvfpqCalibrationQueries(rows) > 0 ?
			 psprintf("SET gpuvec.recall to less, or SELECT * FROM gpuvec_calibrate(%s)",
					  report->literal) :
			 "SET gpuvec.recall to less");
}

/*
 * Reports an index that has fewer than half of the default number of lists.
 * Either maintenance_work_mem was too small when the index was trained, or its
 * training rows were copies of few vectors.  If many rows are copies now,
 * there cannot be more lists, so there is no advice.  If many rows are unlike
 * the training rows, we do not know whether the training rows were copies, so
 * nothing is reported.
 */
static void
find_few_lists(const IndexReport *report)
{
	const IvfpqMetaData *meta = &report->inspection.meta;
	int			wanted = IvfpqDefaultLists((double) meta->rows_at_training);
	Size		bytes = IvfpqMemoryForLists(wanted, meta->dims);

	if (meta->nlists == 0 || IvfpqGetOptions(report->index)->lists > 0 ||
		meta->nlists >= wanted / 2 || report->inspection.has_drifted)
		return;
	if (report->inspection.has_copies)
		find(report,
			 psprintf("it has %d lists, not %d as usual for its rows: many of these are equal",
					  meta->nlists, wanted),
			 NULL);
	else if (bytes <= IvfpqMemoryLimit())
		find(report,
			 psprintf("it has %d lists where its rows ask for %d: maintenance_work_mem was less when it was built, or its vectors were few different ones",
					  meta->nlists, wanted),
			 psprintf("REINDEX INDEX CONCURRENTLY %s", report->name));
	else
		find(report,
			 psprintf("it has %d lists where its rows ask for %d: maintenance_work_mem was too little",
					  meta->nlists, wanted),
			 psprintf("SET maintenance_work_mem = '%lld MB' and REINDEX INDEX CONCURRENTLY %s",
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
			 psprintf("%lld of %lld scans ended in a pass over the whole table",
					  (long long) counts[IVFPQ_COUNT_FULL_PASSES],
					  (long long) scans),
			 "give conditions that few rows fulfill an index of their own, or make their columns keys of this one");
	if (counts[IVFPQ_COUNT_OUT_OF_ORDER] > counts[IVFPQ_COUNT_RETURNED] *
		OUT_OF_ORDER_FRACTION)
		find(report,
			 psprintf("%lld rows came too late for their place, beside %lld given out",
					  (long long) counts[IVFPQ_COUNT_OUT_OF_ORDER],
					  (long long) counts[IVFPQ_COUNT_RETURNED]),
			 "raise gpuvec.recall, or SET gpuvec.scan_order = relaxed, where many rows are asked for");
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
			 state == NULL ? "gpuvecd has no mirror of it" :
			 "gpuvecd gave up its mirror for others",
			 is_too_large ?
			 psprintf("it takes about %lld MB and does not fit into %lld: %s, or leave it to sessions",
					  (long long) (bytes >> 20),
					  (long long) (status->memory >> 20),
					  more_memory(status)) :
			 psprintf("search it, or SELECT gpuvec_prewarm(%s)",
					  report->literal));
	else if (strcmp(state, "failed") == 0)
		find(report,
			 psprintf("gpuvecd could not mirror it: %s", error),
			 is_too_large ?
			 psprintf("%s, if there is more; sessions search it meanwhile",
					  more_memory(status)) :
			 psprintf("look into %s log; sessions search it meanwhile",
					  status->is_external ? "gpuvecd's" : "the server's"));
	else
		find(report, psprintf("its mirror is %s", state), NULL);
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
			 "not valid, so no query uses it: a build ended too early, or is under way" :
			 "not valid, and not kept up to date: a build failed, or is under way",
			 psprintf("if none is: REINDEX INDEX CONCURRENTLY %s, or drop it",
					  report->name));
		return;
	}
	if (RecoveryInProgress() && !RelationNeedsWAL(report->index))
	{
		find(report, "unlogged, so it is empty on a standby", NULL);
		return;
	}
	if (!IvfpqOwnsRelation(form->indrelid, GetUserId()) &&
		!has_privs_of_role(GetUserId(), ROLE_PG_MONITOR))
	{
		find(report,
			 "not looked into: that is for the table's owner and members of pg_monitor",
			 NULL);
		return;
	}
	IvfpqInspect(heap, report->index, &report->inspection);
	IvfpqParamsForBatch(&params, report->index, &inspection->meta,
						ivfpq_recall, 0);
	report->counted = IvfpqCountersGet(report->oid, &report->counts);
	find(report,
		 psprintf("format %d, %lld rows, %s%s", inspection->meta.version,
				  (long long) (inspection->totals.rows + inspection->pending),
				  describe_search(report, &params),
				  !report->counted || report->counts.since == 0 ? "" :
				  psprintf(", %lld scans, %lld passes over the table",
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
		find(report, "not looked into: its table is locked", NULL);
		return;
	}
	heap = try_relation_open(heapoid, NoLock);
	if (heap == NULL)
		return;
	if (!ConditionalLockRelationOid(report->oid, AccessShareLock))
		find(report, "not looked into: it is locked", NULL);
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
		return psprintf("REINDEX INDEX %s, which reads its table only; and look for what damaged it",
						report->name);
	if (OidIsValid(table) && is_file_of(table, error->message))
		return psprintf("this is table %s itself, and no REINDEX helps: restore it from a backup, and look for what damaged it",
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
		IvfpqAddFinding(result, "indexes", "this database has none of gpuivfpq",
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
