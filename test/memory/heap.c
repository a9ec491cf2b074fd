/*
 * heap.c
 *		An n-th allocation that fails, as a test wants it (gv_fault.h).
 *
 * The linker's --wrap has what calls malloc and its kin in the objects that are
 * linked so come here: all of gpuvec.so and of gpuvecd in a test build, the
 * engine's of a unit program.  So an object's allocations count whatever
 * language it is in, no source knows of it, and those that the C library,
 * PostgreSQL, or the program that tests make for themselves do not count;
 * malloc in a library that is preloaded would see all of these, and could not
 * say which an object of ours asked for.
 *
 * The Makefiles find here which functions are wrapped: __wrap_NAME at the
 * beginning of a line.
 */
#include "engine/gv_fault.h"

#include <errno.h>
#include <stdlib.h>

extern void *__real_malloc(size_t bytes);
extern void *__real_calloc(size_t n, size_t bytes);
extern void *__real_realloc(void *old, size_t bytes);
extern int	__real_posix_memalign(void **memory, size_t align, size_t bytes);
extern void *__real_aligned_alloc(size_t align, size_t bytes);
extern void __real_free(void *memory);

extern void *__wrap_malloc(size_t bytes);
extern void *__wrap_calloc(size_t n, size_t bytes);
extern void *__wrap_realloc(void *old, size_t bytes);
extern int	__wrap_posix_memalign(void **memory, size_t align, size_t bytes);
extern void *__wrap_aligned_alloc(size_t align, size_t bytes);
extern void __wrap_free(void *memory);

/* It is there; NULL: it is not. */
static void *
count(void *memory)
{
	if (memory != NULL)
		__atomic_add_fetch(&gv_allocations.live, 1, __ATOMIC_RELAXED);
	return memory;
}

static void *
fail(void)
{
	errno = ENOMEM;
	return NULL;
}

void *
__wrap_malloc(size_t bytes)
{
	return gv_allocation_fails() ? fail() : count(__real_malloc(bytes));
}

void *
__wrap_calloc(size_t n, size_t bytes)
{
	return gv_allocation_fails() ? fail() : count(__real_calloc(n, bytes));
}

void *
__wrap_realloc(void *old, size_t bytes)
{
	void	   *memory;

	if (gv_allocation_fails())
		return fail();
	memory = __real_realloc(old, bytes);
	return old == NULL ? count(memory) : memory;
}

int
__wrap_posix_memalign(void **memory, size_t align, size_t bytes)
{
	int			error;

	if (gv_allocation_fails())
		return ENOMEM;
	error = __real_posix_memalign(memory, align, bytes);
	if (error == 0)
		(void) count(*memory);
	return error;
}

/* The memory of emulated devices. */
void *
__wrap_aligned_alloc(size_t align, size_t bytes)
{
	return gv_allocation_fails() ? fail() :
		count(__real_aligned_alloc(align, bytes));
}

void
__wrap_free(void *memory)
{
	if (memory != NULL)
		__atomic_sub_fetch(&gv_allocations.live, 1, __ATOMIC_RELAXED);
	__real_free(memory);
}
