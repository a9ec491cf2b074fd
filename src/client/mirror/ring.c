/*
 * ring.c
 *		Where a loader makes its messages: two slots of memory that gpuvecd
 *		shares, so that they are not copied through the socket, and one is
 *		filled while gpuvecd takes in the other.
 *
 * Where such memory is not to be had there is one slot, and the socket.
 */
#include "postgres.h"

#include <sys/mman.h>
#include <unistd.h>

#include "storage/fd.h"
#include "utils/memutils.h"

#include "client/channel/memory.h"
#include "client/mirror/load.h"

/* Before load->message: the header, and a request that is made elsewhere. */
#define HEAD_BYTES		64

StaticAssertDecl(sizeof(GvMessage) + sizeof(GvArrayRequest) <= HEAD_BYTES,
				 "the longest head fits");

static Size
slot_bytes(const IvfpqLoad *load)
{
	return HEAD_BYTES + TYPEALIGN(64, load->room);
}

static void
use_slot(IvfpqLoad *load, int slot)
{
	load->slot = slot;
	load->message = load->slots + slot * slot_bytes(load) + HEAD_BYTES;
}

/* The memory's descriptor, which nobody needs once it is shared. */
static void
close_fd(IvfpqLoad *load)
{
	if (load->passed_fd < 0)
		return;
	close(load->passed_fd);
	load->passed_fd = -1;
	ReleaseExternalFD();
}

/*
 * Map the memory and share it with gpuvecd.  What there is of it is noted, so
 * that whoever catches an error gives it back by IvfpqSlotsClose.
 */
static IvfpqServed
share_memory(IvfpqLoad *load, Size bytes, int64 deadline, IvfpqReply *reply)
{
	int			fd = load->passed_fd;
	GvMemoryRequest request = {bytes};
	IvfpqServed served;
	char	   *memory;

	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_POPULATE, fd, 0);
	if (memory == MAP_FAILED)
		return IVFPQ_SERVED;
	load->slots = memory;
	served = IvfpqPass(GV_ROLE_LOADER, GV_MSG_MEMORY, &request,
					   sizeof(request), fd, deadline, reply);
	if (served != IVFPQ_SERVED)
	{
		IvfpqSlotsClose(load);
		/* it has no memory for this, but perhaps for the mirror */
		return served == IVFPQ_REFUSED ? IVFPQ_SERVED : served;
	}
	use_slot(load, 0);
	return IVFPQ_SERVED;
}

/*
 * Get memory for messages of load->room bytes, shared if that is wanted and
 * to be had; else why gpuvecd cannot be spoken to.
 */
IvfpqServed
IvfpqSlotsOpen(IvfpqLoad *load, bool share, int64 deadline,
			   IvfpqReply *reply)
{
	Size		bytes = 2 * slot_bytes(load);
	IvfpqServed served = IVFPQ_SERVED;
	int			fd;

	if (share && AcquireExternalFD())
	{
		fd = IvfpqMakeMemory(bytes);
		if (fd >= 0)
		{
			load->passed_fd = fd;
			served = share_memory(load, bytes, deadline, reply);
			close_fd(load);
		}
		else
			ReleaseExternalFD();
	}
	if (load->slots == NULL)
		load->message = MemoryContextAlloc(load->context, load->room);
	return served;
}

/* Give shared memory back; memory of a context goes with that. */
void
IvfpqSlotsClose(IvfpqLoad *load)
{
	if (load->slots != NULL)
		(void) munmap(load->slots, 2 * slot_bytes(load));
	load->slots = NULL;
	load->message = NULL;
	close_fd(load);
}

/*
 * A request, its values behind it, as a message that lies in the slot at hand;
 * false when it does not.  The other slot is at hand then: what was there has
 * been answered.
 */
bool
IvfpqSlotsHand(IvfpqLoad *load, GvMessageType type, const void *request,
			   Size request_bytes, const void *values, Size bytes,
			   GvHereRequest *here)
{
	GvMessage	header = {(uint32) (request_bytes + bytes), type, 0};
	char	   *head = load->message;

	if (load->slots == NULL ||
		(bytes > 0 ? values != (void *) load->message :
		 request != (void *) load->message))
		return false;
	if (bytes > 0)
	{
		head -= request_bytes;
		memcpy(head, request, request_bytes);
	}
	head -= sizeof(header);
	memcpy(head, &header, sizeof(header));
	here->offset = head - load->slots;
	use_slot(load, 1 - load->slot);
	return true;
}
