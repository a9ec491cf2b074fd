/*
 * installation.c
 *		The doctor's check of what holds for all indexes: versions, gpuvecd,
 *		the machine.
 */
#include "postgres.h"

#include <ctype.h>

#include "executor/spi.h"
#include "miscadmin.h"
#include "postmaster/bgworker_internals.h"
#include "storage/bufmgr.h"
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "am/common/options.h"
#include "am/doctor/doctor.h"

/* Shared buffers of which huge pages are worth a word. */
#define MANY_BUFFERS	((Size) 4 * 1024 * 1024 * 1024)

/* Processes that a server with gpuvecd has: the supervisor, and loaders. */
#define SERVER_WORKERS	3

static char *
megabytes(int64 bytes)
{
	return psprintf("%lld MB", (long long) (bytes / (1024 * 1024)));
}

/* ---- versions */

/* One row of IvfpqFindVersions' query. */
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
 * Extensions of this database, and whether their versions are the library's.
 */
void
IvfpqFindVersions(IvfpqFindings *findings)
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

/* ---- gpuvecd */

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
const char *
IvfpqMoreMemory(const IvfpqServerStatus *status)
{
	return status->is_external ? "give gpuvecd a larger --memory" :
		"raise gpuvec.gpu_memory";
}

/* gpuvecd, and what it has. */
void
IvfpqFindServer(IvfpqFindings *findings, const IvfpqServerStatus *status)
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
					   IvfpqMoreMemory(status)) : NULL);
}

/* ---- the machine */

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

/* Does the setting, in some version only, say so? */
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

/* Card, memory, processes. */
void
IvfpqFindMachine(IvfpqFindings *findings, const IvfpqServerStatus *status)
{
	find_device(findings, status);
	find_memory(findings);
	find_workers(findings, status);
}
