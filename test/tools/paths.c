/*
 * paths.c
 *		Which functions of an instrumented build run between two statements.
 *
 * gcc's -finstrument-functions has every function call those below.  The object
 * is linked into gpuvec's library and, since the same flags link it, into
 * gpuvecd, where nobody asks (test/tools/paths.py).  So it uses no function of
 * PostgreSQL's.
 */
#include "postgres.h"

#include <dlfcn.h>

#include "fmgr.h"

#undef snprintf

#define UNTRACED	__attribute__((no_instrument_function))
#define SLOTS		65536		/* more than twice the functions there are */
#define DIGITS		10			/* of an offset, and a space */

extern void __cyg_profile_func_enter(void *function, void *caller) UNTRACED;
extern void __cyg_profile_func_exit(void *function, void *caller) UNTRACED;

static void *seen[SLOTS];
static int	depth;
static int	deepest;
static bool traces;
static char offsets[SLOTS * DIGITS];

PG_FUNCTION_INFO_V1(paths_begin);
PG_FUNCTION_INFO_V1(paths_end);

void
__cyg_profile_func_enter(void *function, void *caller)
{
	uint32		slot = (uint32) (((uintptr_t) function >> 4) * 2654435761u) % SLOTS;

	if (!traces)
		return;
	if (++depth > deepest)
		deepest = depth;
	while (seen[slot] != NULL && seen[slot] != function)
		slot = (slot + 1) % SLOTS;
	seen[slot] = function;
}

void
__cyg_profile_func_exit(void *function, void *caller)
{
	if (traces && depth > 0)
		depth--;
}

/* From now on functions are noted. */
Datum
paths_begin(PG_FUNCTION_ARGS)
{
	memset(seen, 0, sizeof(seen));
	depth = deepest = 0;
	traces = true;
	PG_RETURN_VOID();
}

/* The deepest nesting, and the functions' offsets in their library: a cstring. */
Datum
paths_end(PG_FUNCTION_ARGS)
{
	int			length;

	traces = false;
	length = snprintf(offsets, sizeof(offsets), "%d", deepest);
	for (int i = 0; i < SLOTS; i++)
	{
		Dl_info		info;

		if (seen[i] != NULL && dladdr(seen[i], &info) != 0)
			length += snprintf(offsets + length, sizeof(offsets) - length, " %lx",
							   (unsigned long) ((char *) seen[i] -
												(char *) info.dli_fbase));
	}
	PG_RETURN_CSTRING(offsets);
}
