/*
 * sharedpart.c
 *		The one place that asks for main shared memory.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#include "client/state/sharedpart.h"

#define MAX_PARTS	3

static const IvfpqSharedPart *parts[MAX_PARTS];
static int	nparts = 0;

static shmem_request_hook_type prev_shmem_request = NULL;
static shmem_startup_hook_type prev_shmem_startup = NULL;

static void
request_memory(void)
{
	if (prev_shmem_request)
		prev_shmem_request();
	for (int i = 0; i < nparts; i++)
	{
		RequestAddinShmemSpace(MAXALIGN(parts[i]->size));
		RequestNamedLWLockTranche(parts[i]->name, 1);
	}
}

static void
attach_memory(void)
{
	if (prev_shmem_startup)
		prev_shmem_startup();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	for (int i = 0; i < nparts; i++)
	{
		const IvfpqSharedPart *part = parts[i];
		bool		found;

		*part->address = ShmemInitStruct(part->name, part->size, &found);
		if (!found)
		{
			memset(*part->address, 0, part->size);
			part->init(*part->address,
					   &GetNamedLWLockTranche(part->name)->lock);
		}
	}
	LWLockRelease(AddinShmemInitLock);
}

/* While the library is preloaded: have a part made. */
void
IvfpqShare(const IvfpqSharedPart *part)
{
	Assert(process_shared_preload_libraries_in_progress);
	if (nparts == 0)
	{
		prev_shmem_request = shmem_request_hook;
		shmem_request_hook = request_memory;
		prev_shmem_startup = shmem_startup_hook;
		shmem_startup_hook = attach_memory;
	}
	Assert(nparts < MAX_PARTS);
	parts[nparts++] = part;
}
