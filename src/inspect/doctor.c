/*
 * doctor.c
 *		gpuvec_doctor(): how an installation is, and what to do about it.
 *
 * The doctor checks versions, gpuvecd, the machine, settings that contradict
 * each other, and each index of the database.  No index keeps it waiting, and
 * none ends it: a locked index is passed over, and an error, of a damaged page
 * for example, is reported as found.
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
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "optimizer/cost.h"
#include "postmaster/bgworker_internals.h"
#include "storage/bufmgr.h"
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "am/build/train.h"
#include "am/common/options.h"
#include "am/scan/scanstats.h"
#include "am/search/params.h"
#include "client/client.h"
#include "inspect/doctor.h"
#include "inspect/inspect.h"
#include "page/attempt.h"
#include "pgcompat.h"

/* Huge pages are worth a word from this many bytes of shared buffers on. */
#define MANY_BUFFERS	((Size) 4 * 1024 * 1024 * 1024)

/* Processes that a server with gpuvecd has: the supervisor, and loaders. */
#define SERVER_WORKERS	3

/*
 * Scans that are enough to judge by, and the fractions of them with a full
 * pass, and of rows out of order, that are reported.
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

PG_FUNCTION_INFO_V1(gpuvec_doctor);

/* Adds a row. */
void
IvfpqFind(IvfpqFindings *findings, const char *subject, const char *state,
		  const char *advice)
{
	Datum		values[3];
	bool		nulls[3] = {false};

	values[0] = CStringGetTextDatum(subject);
	values[1] = CStringGetTextDatum(state);
	nulls[2] = advice == NULL;
	values[2] = advice ? CStringGetTextDatum(advice) : (Datum) 0;
	tuplestore_putvalues(findings->result->setResult,
						 findings->result->setDesc, values, nulls);
	findings->n++;
}

/*
 * Returns the name of a table or index, with its schema if it is needed to
 * find it.
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

/* Adds an extension, as find_versions' query returns it. */
static void
find_version(IvfpqFindings *findings, const char *name, const char *files,
			 const char *installed)
{
	char	   *state = psprintf("version %s", installed);

	if (strncmp(name, "gpuvec", 6) != 0)
		IvfpqFind(findings, name, state, NULL);
	else if (strcmp(files, GPUVEC_RELEASE) != 0)
		IvfpqFind(findings, name,
				  psprintf("%s, files of %s are installed, but this session runs the library of %s",
						   state, files, GPUVEC_RELEASE),
				  "begin a new session or, where gpuvec is preloaded, restart the server");
	else if (strcmp(installed, files) != 0)
		IvfpqFind(findings, name,
				  psprintf("%s, the library is of %s", state, GPUVEC_RELEASE),
				  psprintf("ALTER EXTENSION %s UPDATE", name));
	else
		IvfpqFind(findings, name, state, NULL);
}

/*
 * Adds the extensions of this database, and whether their versions are the
 * library's.
 */
static void
find_versions(IvfpqFindings *findings)
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
		find_version(findings, SPI_getvalue(table->vals[i], table->tupdesc, 1),
					 SPI_getvalue(table->vals[i], table->tupdesc, 2),
					 SPI_getvalue(table->vals[i], table->tupdesc, 3));
	SPI_finish();
	IvfpqFind(findings, "formats",
			  psprintf("this gpuvec reads and writes format %d", IVFPQ_VERSION),
			  NULL);
}

/* Returns what to do about a gpuvecd that is not up and that others start. */
static const char *
external_advice(const IvfpqServerStatus *status)
{
	if (strcmp(status->state, "other version") == 0)
		return psprintf("have gpuvecd of the same version started: the library is of %s",
						GPUVEC_RELEASE);
	if (status->is_others)
		return "have another gpuvecd started for this cluster, in a folder of its own";
	if (strcmp(status->state, "down") == 0)
		return psprintf("start it with --socket %s; that folder, or what leads to it, has to belong to gpuvec.server_owner, by default PostgreSQL's user, or to root, and nobody else may write to it",
						ivfpq_server_directory);
	return NULL;
}

/* Returns what to do about a gpuvecd that is not up. */
static const char *
server_advice(const IvfpqServerStatus *status)
{
	if (status->is_external && strcmp(status->state, "suspended") != 0)
		return external_advice(status);
	if (strcmp(status->state, "starting") == 0)
		return "wait a moment, and look again";
	if (strcmp(status->state, "other version") == 0)
		return "restart the server: it was started before gpuvec was upgraded";
	if (strcmp(status->state, "suspended") == 0)
		return "sessions search themselves until it answers in time; look into the server's log, and at gpuvec_stat";
	if (strcmp(status->state, "down") == 0)
		return "look into the server's log, which says why it ended; sessions search themselves meanwhile";
	return NULL;				/* "off", "no card" */
}

/* Returns what gives gpuvecd more memory. */
static const char *
more_memory(const IvfpqServerStatus *status)
{
	return status->is_external ? "give gpuvecd a larger --memory" :
		"raise gpuvec.gpu_memory";
}

/* Adds gpuvecd and its mirrors. */
static void
find_server(IvfpqFindings *findings, const IvfpqServerStatus *status)
{
	if (!status->preloaded)
	{
		IvfpqFind(findings, "preloading",
				  "gpuvec is not preloaded: there is no gpuvecd, sessions search themselves",
				  status->preload_helps ?
				  "shared_preload_libraries = 'gpuvec', and restart the server" :
				  NULL);
		return;
	}
	IvfpqFind(findings, "preloading", "gpuvec is preloaded", NULL);
	if (status->pid == 0 || !status->up)
	{
		IvfpqFind(findings, "gpuvecd",
				  psprintf("it is %s%s%s", status->state,
						   status->problem[0] ? ": " : "", status->problem),
				  server_advice(status));
		return;
	}
	IvfpqFind(findings, "gpuvecd",
			  psprintf("it is %s, process %d on %s%s%s, started again %lld times",
					   status->state, status->pid, status->engine,
					   status->device[0] ? ": " : "", status->device,
					   (long long) status->restarts), NULL);
	IvfpqFind(findings, "mirrors",
			  psprintf("%d, they take %s of %s", status->nmirrors,
					   megabytes(status->used), megabytes(status->memory)),
			  status->memory > 0 && status->used > status->memory / 10 * 9 ?
			  psprintf("memory is nearly full, and mirrors searched longest ago give way: %s, if the card has more",
					   more_memory(status)) : NULL);
}

/* Returns the first word of a line that looks like a version, or NULL. */
static char *
version_in(char *line)
{
	for (char *word = strtok(line, " \t\n"); word != NULL;
		 word = strtok(NULL, " \t\n"))
	{
		if (isdigit((unsigned char) word[0]) && strchr(word, '.') != NULL)
			return word;
	}
	return NULL;
}

/*
 * Returns the version of the devices' driver, as the kernel says it; or NULL.
 */
static char *
driver_version(void)
{
	FILE	   *file = AllocateFile("/proc/driver/nvidia/version", "r");
	char		line[256];
	char	   *version = NULL;

	if (file == NULL)
		return NULL;
	if (fgets(line, sizeof(line), file) != NULL)
		version = version_in(line);
	FreeFile(file);
	return version ? pstrdup(version) : NULL;
}

static void
find_device(IvfpqFindings *findings, const IvfpqServerStatus *status)
{
	char	   *driver = driver_version();

	if (!status->has_device)
		IvfpqFind(findings, "card", "this machine shows none", NULL);
	else if (driver == NULL)
		IvfpqFind(findings, "card",
				  "this machine shows one; which driver it has is not to be seen",
				  NULL);
	else
		IvfpqFind(findings, "card",
				  psprintf("this machine shows one, of driver %s", driver),
				  NULL);
}

/* Returns whether a setting, which not all versions have, has this value. */
static bool
setting_is(const char *name, const char *value)
{
	const char *is = GetConfigOption(name, true, false);

	return is != NULL && strcmp(is, value) == 0;
}

static void
find_memory(IvfpqFindings *findings)
{
	Size		buffers = (Size) NBuffers * BLCKSZ;
	const char *wanted = GetConfigOption("huge_pages", true, false);
	const char *status = GetConfigOption("huge_pages_status", true, false);
	bool		lacks = setting_is("huge_pages", "off") ||
	setting_is("huge_pages_status", "off");

	IvfpqFind(findings, "memory",
			  psprintf("shared_buffers %s, maintenance_work_mem %s, work_mem %s",
					   megabytes(buffers),
					   megabytes((int64) maintenance_work_mem * 1024),
					   megabytes((int64) work_mem * 1024)), NULL);
	IvfpqFind(findings, "huge pages",
			  psprintf("huge_pages is %s%s%s", wanted ? wanted : "unknown",
					   status ? ", in force: " : "", status ? status : ""),
			  lacks && buffers >= MANY_BUFFERS ?
			  "set vm.nr_hugepages to what postgres -C shared_memory_size_in_huge_pages says, and huge_pages to on: searches of large indexes get faster" :
			  NULL);
}

static void
find_workers(IvfpqFindings *findings, const IvfpqServerStatus *status)
{
	bool		has_server = status->preloaded && ivfpq_server != IVFPQ_SERVER_OFF;
	int			wanted = (has_server ? SERVER_WORKERS : 0) +
	ivfpq_max_training_workers + max_parallel_maintenance_workers;

	IvfpqFind(findings, "workers",
			  psprintf("max_worker_processes is %d; gpuvec takes up to %d: %d for gpuvecd, %d that train, %d that help to build",
					   max_worker_processes, wanted,
					   has_server ? SERVER_WORKERS : 0,
					   ivfpq_max_training_workers,
					   max_parallel_maintenance_workers),
			  wanted > max_worker_processes ?
			  psprintf("raise max_worker_processes to %d and more",
					   wanted) : NULL);
}

/* Adds device, memory and processes. */
static void
find_machine(IvfpqFindings *findings, const IvfpqServerStatus *status)
{
	find_device(findings, status);
	find_memory(findings);
	find_workers(findings, status);
}

/* Appends a setting's name to those before, if it is set. */
static void
add_set(StringInfo names, bool is_set, const char *name)
{
	if (is_set)
		appendStringInfo(names, "%s%s", names->len > 0 ? ", " : "", name);
}

/*
 * Adds settings that have no effect because others start gpuvecd, or because
 * they do not.
 */
static void
find_without_effect(IvfpqFindings *findings, const IvfpqServerStatus *status)
{
	StringInfoData names;

	initStringInfo(&names);
	if (status->is_external)
	{
		add_set(&names, ivfpq_gpu_memory != 0, "gpuvec.gpu_memory");
		add_set(&names, ivfpq_devices[0] != '\0', "gpuvec.devices");
		add_set(&names, ivfpq_replicas != 1, "gpuvec.replicas");
		add_set(&names, ivfpq_matmul != IVFPQ_MATMUL_AUTO,
				"gpuvec.matmul");
		add_set(&names, ivfpq_server_path[0] != '\0', "gpuvec.server_path");
	}
	else
	{
		add_set(&names, ivfpq_server_directory[0] != '\0',
				"gpuvec.server_directory");
		add_set(&names, ivfpq_server_owner[0] != '\0', "gpuvec.server_owner");
	}
	if (names.len == 0)
		return;
	IvfpqFind(findings, "settings",
			  psprintf("set, and of no effect: gpuvec.server is %sexternal: %s",
					   status->is_external ? "" : "not ", names.data),
			  status->is_external ?
			  "give gpuvecd the options --memory, --devices, --replicas and --matmul instead, and reset them" :
			  "gpuvec.server = external, or reset them");
}

/* Adds settings of a gpuvecd that is not running. */
static void
find_without_server(IvfpqFindings *findings, const IvfpqServerStatus *status)
{
	const char *how = status->preloaded ?
	psprintf("gpuvecd is %s", status->state) : "gpuvec is not preloaded";

	if (!status->preloaded &&
		(ivfpq_server != IVFPQ_SERVER_AUTO || ivfpq_gpu_memory != 0 ||
		 (ivfpq_devices != NULL && ivfpq_devices[0] != '\0') ||
		 ivfpq_replicas != 1 || ivfpq_matmul != IVFPQ_MATMUL_AUTO))
		IvfpqFind(findings, "settings",
				  "gpuvec.server, gpuvec.gpu_memory, gpuvec.devices, gpuvec.replicas and gpuvec.matmul have no effect: gpuvec is not preloaded",
				  "shared_preload_libraries = 'gpuvec', and restart the server; or reset them");
	if (status->preloaded)
		find_without_effect(findings, status);
	if (!status->preloaded && ivfpq_keep_queries)
		IvfpqFind(findings, "settings",
				  "gpuvec.keep_queries has no effect: gpuvec is not preloaded",
				  "shared_preload_libraries = 'gpuvec', and restart the server; or turn it off");
	if (status->up || !IvfpqServerIsWanted())
		return;
	if (ivfpq_on_gpu_error == IVFPQ_ON_ERROR_ERROR)
		IvfpqFind(findings, "settings",
				  psprintf("gpuvec.on_gpu_error is error, and %s: searches of mirrored indexes fail",
						   how),
				  "SET gpuvec.on_gpu_error = fallback, or gpuvec.engine = cpu");
	else if (ivfpq_engine == IVFPQ_ENGINE_GPU)
		IvfpqFind(findings, "settings",
				  psprintf("gpuvec.engine is gpu, and %s: sessions search themselves",
						   how),
				  "SET gpuvec.engine = auto, or have gpuvecd started");
}

/* Adds settings of recall that get in each other's way. */
static void
find_about_recall(IvfpqFindings *findings)
{
	if (ivfpq_probes > 0)
		IvfpqFind(findings, "settings",
				  psprintf("gpuvec.probes is %d: gpuvec.recall (%g) has no say in how many lists are read",
						   ivfpq_probes, ivfpq_recall),
				  "RESET gpuvec.probes, unless it is for a measurement");
	if (ivfpq_candidates > 0)
		IvfpqFind(findings, "settings",
				  psprintf("gpuvec.candidates is %d: gpuvec.recall (%g) has no say in how many rows are measured",
						   ivfpq_candidates, ivfpq_recall),
				  "RESET gpuvec.candidates, unless it is for a measurement");
	if (ivfpq_max_probes > 0)
		IvfpqFind(findings, "settings",
				  psprintf("gpuvec.max_probes is %d: scans end there, whether they have reached gpuvec.recall (%g) and the rows that LIMIT asks for or not",
						   ivfpq_max_probes, ivfpq_recall),
				  "RESET gpuvec.max_probes, unless time matters more than rows");
	if (ivfpq_recall >= 1)
		IvfpqFind(findings, "settings",
				  "gpuvec.recall is 1: each search reads the whole index",
				  "SET gpuvec.recall = 0.99 or less, unless answers have to be exact");
}

/* Adds settings that take a plan from the planner, or work from the server. */
static void
find_turned_off(IvfpqFindings *findings)
{
	if (!enable_indexscan)
		IvfpqFind(findings, "settings",
				  "enable_indexscan is off: the planner avoids every index",
				  "SET enable_indexscan = on");
	if (ivfpq_use_index == IVFPQ_USE_NEVER)
		IvfpqFind(findings, "settings",
				  "gpuvec.use_index is never: no plan uses an index of gpuivfpq",
				  "RESET gpuvec.use_index, unless it is for a comparison");
	if (!ivfpq_enable_custom_scan)
		IvfpqFind(findings, "settings",
				  "gpuvec.enable_custom_scan is off: conditions are asked only of rows that were measured",
				  "SET gpuvec.enable_custom_scan = on");
	if (ivfpq_max_training_workers == 0)
		IvfpqFind(findings, "settings",
				  "gpuvec.max_training_workers is 0: no VACUUM has an index trained",
				  "raise it, or call gpuvec_train");
	if (ivfpq_simd == GV_SIMD_PORTABLE)
		IvfpqFind(findings, "settings",
				  "gpuvec.simd is portable: searches are slower than this processor allows",
				  "RESET gpuvec.simd, unless it is for a measurement");
	if (IvfpqServerIsWanted() && !ivfpq_auto_mirror)
		IvfpqFind(findings, "settings",
				  "gpuvec.auto_mirror is off: only gpuvec_prewarm brings mirrors to gpuvecd",
				  "SET gpuvec.auto_mirror = on, or prewarm what is searched");
}

/* Adds a row for each contradiction between settings. */
static void
find_contradictions(IvfpqFindings *findings,
					const IvfpqServerStatus *status)
{
	int			before = findings->n;

	find_without_server(findings, status);
	find_about_recall(findings);
	find_turned_off(findings);
	if (findings->n == before)
		IvfpqFind(findings, "settings", "they go together", NULL);
}

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
 * Reports an index that does not reach the recall that is asked for, at once
 * or beyond ten rows.  An index that has too few rows cannot be calibrated to
 * do so.
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

/* Reports an index whose searches show that something is wrong. */
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

/* Reports the state of its mirror, if sessions would ask gpuvecd. */
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
					  more_memory(status)) :
			 psprintf("search it, or SELECT gpuvec_prewarm(%s)",
					  patient->literal));
	else if (strcmp(state, "failed") == 0)
		find(patient,
			 psprintf("gpuvecd could not mirror it: %s", error),
			 status->memory > 0 && bytes > status->memory ?
			 psprintf("%s, if there is more; sessions search it meanwhile",
					  more_memory(status)) :
			 psprintf("look into %s log; sessions search it meanwhile",
					  status->is_external ? "gpuvecd's" : "the server's"));
	else
		find(patient, psprintf("its mirror is %s", state), NULL);
}

/*
 * Reports an index that got fewer lists than its rows call for, because memory
 * was short then or they were copies of few vectors.  If rows are such copies
 * still, there cannot be more lists, and if rows unlike those of training have
 * come, nobody knows what those were.
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

/* Reports all of an index that can be searched. */
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

/* Looks into an index, with both relations locked. */
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

/* Examines the index if it can be opened at once.  For IvfpqAttempt. */
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

/* Returns all indexes of the access method, the oldest first. */
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

/* Adds one or more rows for each index. */
static void
find_indexes(IvfpqFindings *findings, const IvfpqServerStatus *status)
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

/* gpuvec_doctor() */
Datum
gpuvec_doctor(PG_FUNCTION_ARGS)
{
	IvfpqFindings findings = {(ReturnSetInfo *) fcinfo->resultinfo, 0};
	IvfpqServerStatus status;

	InitMaterializedSRF(fcinfo, 0);
	IvfpqGetServerStatus(&status);
	find_versions(&findings);
	find_server(&findings, &status);
	find_machine(&findings, &status);
	find_contradictions(&findings, &status);
	find_indexes(&findings, &status);
	return (Datum) 0;
}
