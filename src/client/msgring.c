/*
 * msgring.c
 *		A ring of slots for messages, in memory that may be shared with
 *		gpuvecd.
 *
 * A slot has HEAD_BYTES for the header and the head of its message, then the
 * payload.  Header and head end where the payload begins, so that in shared
 * memory the whole message is contiguous.
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "storage/fd.h"

#include "client/msgring.h"

#define HEAD_BYTES		64		/* a multiple of 8 */

StaticAssertDecl(sizeof(GvMessage) + sizeof(GvArrayRequest) <= HEAD_BYTES &&
				 sizeof(GvMessage) + sizeof(GvPutRequest) <= HEAD_BYTES,
				 "the longest head fits");

static Size
slot_bytes(const IvfpqRing *ring)
{
	return HEAD_BYTES + TYPEALIGN(HEAD_BYTES, ring->payload_bytes);
}

/* Returns the payload of a slot. */
char *
IvfpqRingSlot(const IvfpqRing *ring, uint64 number)
{
	return ring->slots + (number % ring->nslots) * slot_bytes(ring) +
		HEAD_BYTES;
}

/*
 * Returns the payload's offset in shared memory, or -1 if no memory is shared.
 */
int64
IvfpqRingOffset(const IvfpqRing *ring, uint64 number)
{
	return ring->is_shared ? IvfpqRingSlot(ring, number) - ring->slots : -1;
}

/* Closes the descriptor of the slots' memory, which stays mapped. */
static void
close_fd(IvfpqRing *ring)
{
	if (ring->memory_fd < 0)
		return;
	close(ring->memory_fd);
	ring->memory_fd = -1;
	ReleaseExternalFD();
}

/*
 * Allocates the slots in memory of fixed size that can be shared.  On failure
 * does nothing.
 */
static void
make_shared(IvfpqRing *ring)
{
	Size		bytes = ring->nslots * slot_bytes(ring);
	void	   *memory = MAP_FAILED;

	if (!AcquireExternalFD())
		return;
	ring->memory_fd = memfd_create("gpuvec", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (ring->memory_fd < 0)
	{
		ReleaseExternalFD();
		return;
	}

	/*
	 * allocate all memory now, because a page that is missing later raises
	 * SIGBUS
	 */
	if (posix_fallocate(ring->memory_fd, 0, (off_t) bytes) == 0 &&
		fcntl(ring->memory_fd, F_ADD_SEALS,
			  F_SEAL_SHRINK | F_SEAL_GROW) == 0)
		memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
					  MAP_SHARED | MAP_POPULATE, ring->memory_fd, 0);
	if (memory == MAP_FAILED)
	{
		close_fd(ring);
		return;
	}
	ring->slots = memory;
	ring->is_shared = true;
}

/* Shares the slots with gpuvecd, or frees them and returns false. */
static bool
share_memory(IvfpqRing *ring)
{
	GvAttachShmRequest request = {ring->nslots * slot_bytes(ring)};

	/*
	 * If the channel is closed, do not give it the descriptor: the channel
	 * would keep the descriptor, and send it with the first message after
	 * being opened again.
	 */
	if (IvfpqChannelIsOpen(ring->channel))
		ring->channel->passed_fd = ring->memory_fd;
	if (!IvfpqChannelExchange(ring->channel, GV_MSG_ATTACH_SHM, &request,
							  sizeof(request), NULL, 0, 0))
	{
		IvfpqRingClose(ring);
		return false;
	}
	close_fd(ring);
	return true;
}

/*
 * Closes the descriptor and unmaps the shared memory, which the memory context
 * does not free.  Does nothing for a zeroed ring.
 */
void
IvfpqRingClose(IvfpqRing *ring)
{
	if (ring->nslots == 0)
		return;
	close_fd(ring);
	if (!ring->is_shared)
		return;
	(void) munmap(ring->slots, ring->nslots * slot_bytes(ring));
	ring->is_shared = false;
	ring->slots = NULL;
}

/*
 * Allocates the slots.  If `share` is set and sharing is possible, the slots
 * are shared with gpuvecd.  Otherwise they are in the current memory context,
 * even if the channel is closed.  Returns false if the channel has failed.  If
 * there is no memory, closes the channel and returns false.
 */
bool
IvfpqRingOpen(IvfpqRing *ring, IvfpqChannel *channel, int nslots,
			  Size payload_bytes, bool share)
{
	memset(ring, 0, sizeof(*ring));
	ring->memory_fd = -1;
	ring->channel = channel;
	ring->nslots = nslots;
	ring->payload_bytes = payload_bytes;
	if (share)
		make_shared(ring);
	/* if gpuvecd only refused to map the memory, the work can still go on */
	if (ring->is_shared && !share_memory(ring) &&
		(channel->served != IVFPQ_REFUSED || !IvfpqChannelIsOpen(channel)))
		return false;
	if (ring->is_shared)
		return true;
	ring->slots = palloc_extended(nslots * slot_bytes(ring),
								  MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
	if (ring->slots == NULL)
		IvfpqChannelClose(channel, IVFPQ_BROKEN, "out of memory for the inputs");
	return ring->slots != NULL;
}

/* Processes the answer to the oldest slot (IvfpqAnswered). */
static bool
ring_take(void *arg, const IvfpqRequest *request)
{
	IvfpqRing  *ring = arg;

	if (ring->take && !ring->take(ring->take_arg, request))
		return false;
	ring->answered++;
	return true;
}

/*
 * Processes all answers that have come, and waits until no more than `most`
 * slots are unanswered and, in a channel for one request at a time, all
 * messages are sent.  Returns false after a refusal, or if the channel is
 * closed.
 */
bool
IvfpqRingAwait(IvfpqRing *ring, uint64 most)
{
	return IvfpqChannelMove(ring->channel) &&
		IvfpqChannelAwait(ring->channel, most);
}

/*
 * Sends a message of the head and the first `bytes` bytes of the slot being
 * filled.  The answer may have at most max_length bytes.  After sending, waits
 * until the next slot can be filled.  Returns false on failure.
 */
bool
IvfpqRingSend(IvfpqRing *ring, GvMessageType type,
			  const void *head, Size head_bytes, Size bytes,
			  uint32 max_length)
{
	char	   *slot = IvfpqRingSlot(ring, ring->filled);
	IvfpqRequest *request;

	if (ring->is_shared)
	{
		GvMessage	header = {(uint32) (head_bytes + bytes), type, 0};
		char	   *start = slot - head_bytes - sizeof(header);
		GvInShmRequest here = {start - ring->slots};

		memcpy(start, &header, sizeof(header));
		if (head_bytes > 0)
			memcpy(start + sizeof(header), head, head_bytes);
		request = IvfpqChannelAdd(ring->channel, GV_MSG_IN_SHM, &here,
								  sizeof(here), NULL, 0, max_length);
	}
	else
		request = IvfpqChannelAdd(ring->channel, type, head, head_bytes, slot,
								  bytes, max_length);
	ring->filled++;
	if (request == NULL)
		return false;
	request->take = ring_take;
	request->take_arg = ring;
	return IvfpqRingAwait(ring, ring->nslots - 1);
}
