/*
 * init.c
 *		What happens while the library is preloaded.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "postmaster/bgworker.h"

#include "client/client.h"
#include "client/state/socketplace.h"
#include "client/state/state.h"

/* The postmaster starts the supervisor, and again when it ends. */
static void
register_supervisor(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_PostmasterStart;
	worker.bgw_restart_time = 5;
	strlcpy(worker.bgw_library_name, "gpuvec",
			sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "gpuvec_supervisor_main",
			sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, "gpuvec supervisor", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "gpuvec supervisor", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

/* Ask for shared memory and for the supervisor. */
void
IvfpqClientInit(void)
{
	IvfpqPlaceInit();
	IvfpqStateInit();
	if (ivfpq_server != IVFPQ_SERVER_OFF && !IsBinaryUpgrade)
		register_supervisor();
}
