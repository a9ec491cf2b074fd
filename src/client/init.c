/*
 * init.c
 *		What happens while the library is preloaded.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "client/client.h"
#include "client/state/state.h"
#include "client/supervise/supervisor.h"

/* Ask for shared memory and for the supervisor. */
void
IvfpqClientInit(void)
{
	IvfpqStateInit();
	if (ivfpq_server != IVFPQ_SERVER_OFF && !IsBinaryUpgrade)
		IvfpqSupervisorRegister();
}
