/*
 * msgring.c
 *		A ring of slots for messages, in memory that gpuvecd shares or not; in
 *		slots that it shares answers may lie, too.
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "storage/fd.h"

#include "client/msgring.h"

/* Before a slot's bytes: header and head, aligned. */
#define HEAD_BYTES		64

StaticAssertDecl(sizeof(GvMessage) + sizeof(GvArrayRequest) <= HEAD_BYTES &&
				 sizeof(GvMessage) + sizeof(GvPutRequest) <= HEAD_BYTES,
				 "the longest head fits");

static Size
slot_bytes(const IvfpqRing *ring)
{
	return HEAD_BYTES + TYPEALIGN(HEAD_BYTES, ring->payload_bytes);
}

/* Where a slot's bytes lie. */
char *
IvfpqRingSlot(const IvfpqRing *ring, uint64 number)
{
	return ring->slots + (number % ring->nslots) * slot_bytes(ring) +
		HEAD_BYTES;
}

/* Where gpuvecd finds that in the memory shared with it, or -1. */
int64
IvfpqRingOffset(const IvfpqRing *ring, uint64 number)
{
	return ring->is_shared ? IvfpqRingSlot(ring, number) - ring->slots : -1;
}

/* ---- memory */

/* Memory of a size that cannot change; its descriptor, or -1. */
static int
make_memory(Size bytes)
{
	int			fd = memfd_create("gpuvec",
								  MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -1;
	/* all of it now, because who has none later gets a signal */
	if (posix_fallocate(fd, 0, (off_t) bytes) == 0 &&
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
		return fd;
	close(fd);
	return -1;
}

/* The memory's descriptor, which is not needed once it is shared. */
static void
close_fd(IvfpqRing *ring)
{
	if (ring->memory_fd < 0)
		return;
	close(ring->memory_fd);
	ring->memory_fd = -1;
	ReleaseExternalFD();
}

/* Get memory for slots that can be shared, if there is such memory. */
static void
make_shared(IvfpqRing *ring)
{
	Size		bytes = ring->nslots * slot_bytes(ring);
	void	   *memory;

	if (!AcquireExternalFD())
		return;
	ring->memory_fd = make_memory(bytes);
	if (ring->memory_fd < 0)
	{
		ReleaseExternalFD();
		return;
	}
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

/* Share the slots with gpuvecd; false: they are not, and given back. */
static bool
share_memory(IvfpqRing *ring)
{
	GvMemoryRequest request = {ring->nslots * slot_bytes(ring)};

	/* what no message takes along would go with another channel's first */
	if (IvfpqChannelIsOpen(ring->channel))
		ring->channel->passed_fd = ring->memory_fd;
	if (IvfpqChannelExchange(ring->channel, GV_MSG_MEMORY, &request,
							 sizeof(request), NULL, 0, 0) != IVFPQ_SERVED)
	{
		IvfpqRingClose(ring);
		return false;
	}
	close_fd(ring);
	return true;
}

/* Give back what the memory context would not; of a zeroed ring nothing. */
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
 * Make the slots, shared if that is wanted and can be; a channel that is
 * closed gets them, too, in the current context.  False: the channel failed,
 * or it is closed because there is no memory.
 */
bool
IvfpqRingOpen(IvfpqRing *ring, IvfpqChannel *channel, int nslots,
			  Size payload_bytes,
			  bool share)
{
	memset(ring, 0, sizeof(*ring));
	ring->memory_fd = -1;
	ring->channel = channel;
	ring->nslots = nslots;
	ring->payload_bytes = payload_bytes;
	if (share)
		make_shared(ring);
	/* gpuvecd may have no memory for this, but perhaps for the rest */
	if (ring->is_shared && !share_memory(ring) &&
		(channel->served != IVFPQ_REFUSED || !IvfpqChannelIsOpen(channel)))
		return false;
	if (ring->is_shared)
		return true;
	ring->slots = palloc_extended(nslots * slot_bytes(ring),
								  MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
	if (ring->slots == NULL)
		IvfpqChannelClose(channel, IVFPQ_BROKEN, "no memory for its inputs");
	return ring->slots != NULL;
}

/* ---- messages */

/* Move what can be moved without waiting; false: it failed. */
bool
IvfpqRingMove(IvfpqRing *ring)
{
	IvfpqChannel *channel = ring->channel;

	while (IvfpqChannelMove(channel))
	{
		const IvfpqRequest *request =
		&channel->requests[channel->answered % IVFPQ_MAX_REQUESTS];

		if (channel->served != IVFPQ_SERVED)
			return false;
		if (ring->take && !ring->take(ring->take_arg, ring->answered, request))
		{
			(void) IvfpqChannelReject(channel);
			return false;
		}
		ring->answered++;
		IvfpqChannelTaken(channel);
	}
	return IvfpqChannelIsOpen(channel);
}

/*
 * Wait until no more than `most` slots are on their way, and, where only one
 * may be, until it is out; false: it failed.
 */
bool
IvfpqRingAwait(IvfpqRing *ring, uint64 most)
{
	const IvfpqChannel *channel = ring->channel;

	while (IvfpqRingMove(ring))
	{
		if (ring->filled - ring->answered <= most &&
			(channel->most > 1 || channel->sent == channel->made))
			return true;
		if (IvfpqChannelWait(ring->channel) == 0)
			return false;
	}
	return false;
}

/*
 * The slot being filled goes on its way: `bytes` of it, behind the head, in a
 * message whose answer has at most this length.  The next one is free then, to
 * be filled; false: it failed.
 */
bool
IvfpqRingSend(IvfpqRing *ring, GvMessageType type,
			  const void *head, Size head_bytes, Size bytes,
			  uint32 max_length)
{
	char	   *slot = IvfpqRingSlot(ring, ring->filled);

	if (ring->is_shared)
	{
		GvMessage	header = {(uint32) (head_bytes + bytes), type, 0};
		char	   *start = slot - head_bytes - sizeof(header);
		GvHereRequest here = {start - ring->slots};

		memcpy(start, &header, sizeof(header));
		if (head_bytes > 0)
			memcpy(start + sizeof(header), head, head_bytes);
		(void) IvfpqChannelAdd(ring->channel, GV_MSG_HERE, &here, sizeof(here),
							   NULL, 0, max_length);
	}
	else
		(void) IvfpqChannelAdd(ring->channel, type, head, head_bytes, slot,
							   bytes, max_length);
	ring->filled++;
	return IvfpqRingAwait(ring, ring->nslots - 1);
}
