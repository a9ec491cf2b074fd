/*
 * attempt.c
 *		Running work whose errors do not abort the statement.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "page/attempt.h"

/*
 * Calls work(arg) in a subtransaction.  Returns NULL if no error was raised.
 * An error that cancels the statement is raised again.  Any other error is
 * returned, copied to the caller's memory context.  This function must not be
 * called in parallel mode.
 */
ErrorData *
IvfpqAttempt(void (*work) (void *arg), void *arg)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	ResourceOwner oldowner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(oldcontext);
	PG_TRY();
	{
		work(arg);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		/*
		 * The subtransaction must end before anything here can raise an
		 * error, such as out of memory.  Nobody else would end it, and the
		 * session would be left in a failed transaction block.
		 */
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(oldcontext);
		CurrentResourceOwner = oldowner;
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(oldcontext);
	CurrentResourceOwner = oldowner;
	if (error != NULL && error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		ReThrowError(error);
	return error;
}
