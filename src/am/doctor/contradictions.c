/*
 * contradictions.c
 *		The doctor's check for settings that do not go together.
 */
#include "postgres.h"

#include "optimizer/cost.h"

#include "am/common/options.h"
#include "am/doctor/doctor.h"

/* Adds the setting's name to those before, if it is set. */
static void
add_set(StringInfo names, bool is_set, const char *name)
{
	if (is_set)
		appendStringInfo(names, "%s%s", names->len > 0 ? ", " : "", name);
}

/* Settings of a gpuvecd that others start, or of one that they do not. */
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

/* Settings of a gpuvecd that there cannot be. */
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

/* Settings of recall that are in each other's way. */
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

/* Settings that take a way from the planner, or work from the server. */
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

/* A row for each. */
void
IvfpqFindContradictions(IvfpqFindings *findings,
						const IvfpqServerStatus *status)
{
	int			before = findings->n;

	find_without_server(findings, status);
	find_about_recall(findings);
	find_turned_off(findings);
	if (findings->n == before)
		IvfpqFind(findings, "settings", "they go together", NULL);
}
