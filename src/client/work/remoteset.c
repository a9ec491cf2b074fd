/*
 * remoteset.c
 *		Work on a set of rows by gpuvecd (engine/gv_set.h): inputs go there,
 *		outputs come back.
 *
 * Items are gathered in slots, a ring of them, each a message.  A full slot is
 * on its way until it is answered, and the next one is filled meanwhile.  Where
 * there is much to bring the slots lie in memory that gpuvecd shares, else they
 * go through the socket.  Nothing is kept of what has been answered: after a
 * failure the caller begins anew.
 */
#include "postgres.h"

#include <sys/mman.h>
#include <unistd.h>

#include "storage/fd.h"
#include "utils/memutils.h"

#include "client/channel/link.h"
#include "client/channel/memory.h"
#include "client/state/state.h"
#include "client/work/remoteset.h"

#define NSLOTS			4
#define SLOT_BYTES		((Size) 4 << 20)	/* items of a slot, at most */

/* Before a slot's items: header and request, aligned. */
#define HEAD_BYTES		64

/* To bring less than this, memory to share is not worth while. */
#define LEAST_SHARED	((int64) 8 << 20)

/* Often enough that the socket, which holds some 200 kB, is never empty. */
#define MOVE_BYTES		((Size) 64 << 10)

StaticAssertDecl(sizeof(GvMessage) + sizeof(GvPutRequest) <= HEAD_BYTES,
				 "the head of a message fits");
StaticAssertDecl(NSLOTS * (HEAD_BYTES + SLOT_BYTES) <= GV_MAX_SHARED,
				 "gpuvecd takes so much");

struct IvfpqRemoteSet
{
	IvfpqLink	link;
	GvSetSpec	spec;
	int64		nrows;			/* given, in this pass */
	GvSetDone	done;
	bool		failed;

	/* the ring */
	char	   *slots;			/* [NSLOTS][HEAD_BYTES + room] */
	Size		room;			/* items of a slot, bytes */
	bool		is_shared;
	int			memory_fd;		/* of the slots, until they are shared; or -1 */
	IvfpqParcel parcels[NSLOTS];	/* of slots that are full */
	uint64		answered;		/* slots before this one are done with */
	uint64		sent;			/* ... are sent */
	uint64		filled;			/* ... are full; this one is being filled */
	GvSetInput	input;			/* what it holds */
	Size		used;			/* bytes of it */

	MemoryContextCallback callback;
};

/* Where a slot's items lie. */
static char *
items_of(const IvfpqRemoteSet *set, uint64 number)
{
	return set->slots + (number % NSLOTS) * (HEAD_BYTES + set->room) +
		HEAD_BYTES;
}

static void
close_memory_fd(IvfpqRemoteSet *set)
{
	if (set->memory_fd < 0)
		return;
	close(set->memory_fd);
	set->memory_fd = -1;
	ReleaseExternalFD();
}

/* What the memory context does not give back. */
static void
release(void *arg)
{
	IvfpqRemoteSet *set = arg;

	IvfpqLinkClose(&set->link, "the work ended");
	close_memory_fd(set);
	if (set->is_shared)
		(void) munmap(set->slots, NSLOTS * (HEAD_BYTES + set->room));
	set->is_shared = false;
	set->slots = NULL;
}

/* Why it failed. */
const char *
IvfpqRemoteSetReason(const IvfpqRemoteSet *set)
{
	return set->link.reason;
}

/* gpuvecd should have done the work and could not: as the user wants it. */
static void
complain(const char *reason)
{
	if (ivfpq_on_gpu_error == IVFPQ_ON_ERROR_ERROR)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("gpuvecd could not do the work: %s", reason),
				 errhint("%s", IvfpqUnservedHint())));
}

/* The end of a function: did it work?  If not, nothing else will. */
static bool
conclude(IvfpqRemoteSet *set, bool worked)
{
	if (worked)
		return true;
	if (ivfpq_shared && !set->failed)
		pg_atomic_fetch_add_u64(&ivfpq_shared->sets_failed, 1);
	set->failed = true;
	complain(set->link.reason);
	return false;
}

/* Bytes that are to be brought, in all passes. */
static int64
bytes_to_bring(const GvSetSpec *spec)
{
	int64		bytes = (int64) (spec->iterations + 1) * spec->nrows *
		gv_set_input_bytes(spec, GV_SET_ROWS);

	bytes += spec->nqueries * gv_set_input_bytes(spec, GV_SET_QUERIES);
	bytes += spec->nqueries * gv_set_input_bytes(spec, GV_SET_SELF);
	bytes += spec->nqueries * gv_set_input_bytes(spec, GV_SET_RANKS);
	bytes += spec->nlists * gv_set_input_bytes(spec, GV_SET_LISTS);
	return bytes + spec->k * gv_set_input_bytes(spec, GV_SET_STARTS);
}

/* Get memory for slots that can be shared; false: there is none. */
static bool
make_shared(IvfpqRemoteSet *set, Size bytes)
{
	void	   *memory;

	if (!AcquireExternalFD())
		return false;
	set->memory_fd = IvfpqMakeMemory(bytes);
	if (set->memory_fd < 0)
	{
		ReleaseExternalFD();
		return false;
	}
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_POPULATE, set->memory_fd, 0);
	if (memory == MAP_FAILED)
	{
		close_memory_fd(set);
		return false;
	}
	set->slots = memory;
	set->is_shared = true;
	return true;
}

/* Share the slots with gpuvecd; false: it failed. */
static bool
share(IvfpqRemoteSet *set, Size bytes)
{
	GvMemoryRequest request = {bytes};
	IvfpqParcel parcel;

	IvfpqLinkPack(&parcel, GV_MSG_MEMORY, &request, sizeof(request), NULL, 0);
	parcel.passed_fd = set->memory_fd;
	if (!IvfpqLinkExchange(&set->link, &parcel, 0))
		return false;
	IvfpqLinkTaken(&set->link);
	close_memory_fd(set);
	return true;
}

/* Memory for the ring; false: it failed. */
static bool
make_slots(IvfpqRemoteSet *set)
{
	int64		total = bytes_to_bring(&set->spec);
	Size		bytes;

	set->room = TYPEALIGN(HEAD_BYTES, Min((int64) SLOT_BYTES, total));
	bytes = NSLOTS * (HEAD_BYTES + set->room);
	if (total >= LEAST_SHARED && make_shared(set, bytes))
		return share(set, bytes);
	set->slots = palloc_extended(bytes, MCXT_ALLOC_NO_OOM);
	if (set->slots == NULL)
		IvfpqLinkClose(&set->link, "no memory for its inputs");
	return set->slots != NULL;
}

/* Say what is to be done; false: it failed. */
static bool
begin(IvfpqRemoteSet *set)
{
	const GvSetSpec *spec = &set->spec;
	GvSetRequest request = {
		.kind = spec->kind,
		.metric = spec->metric,
		.dims = spec->dims,
		.k = spec->k,
		.method = spec->method,
		.iterations = spec->iterations,
		.self = spec->self,
		.balanced = spec->balanced,
		.approximate = spec->approximate,
		.nlists = spec->nlists,
		.probes = spec->probes,
		.nqueries = spec->nqueries,
		.nrows = spec->nrows
	};
	IvfpqParcel parcel;

	IvfpqLinkPack(&parcel, GV_MSG_SET, &request, sizeof(request), NULL, 0);
	if (!IvfpqLinkExchange(&set->link, &parcel, 0))
		return false;
	IvfpqLinkTaken(&set->link);
	return true;
}

/* See remoteset.h. */
IvfpqRemoteSet *
IvfpqRemoteSetBegin(const GvSetSpec *spec)
{
	IvfpqRemoteSet *set;
	const char *reason;

	if (!IvfpqServerIsWanted())
		return NULL;
	if (!IvfpqLinkIsPossible(&reason))
	{
		complain(reason ? reason : "there is none");
		return NULL;
	}
	set = palloc0(sizeof(IvfpqRemoteSet));
	set->link.sock = PGINVALID_SOCKET;
	set->memory_fd = -1;
	set->spec = *spec;
	set->callback.func = release;
	set->callback.arg = set;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, &set->callback);
	if (conclude(set, IvfpqLinkOpen(&set->link, GV_ROLE_SET) && begin(set) &&
				 make_slots(set)))
		return set;
	IvfpqRemoteSetEnd(set);
	return NULL;
}

/* The work is over, or given up. */
void
IvfpqRemoteSetEnd(IvfpqRemoteSet *set)
{
	if (!set->is_shared && set->slots != NULL)
		pfree(set->slots);
	release(set);
	if (set->link.body != NULL)
		pfree(set->link.body);
	set->link.body = NULL;
	set->link.room = 0;
}

/* Move what can be moved without waiting; false: it failed. */
static bool
move(IvfpqRemoteSet *set)
{
	IvfpqLink  *link = &set->link;

	while (link->sock != PGINVALID_SOCKET && set->sent < set->filled &&
		   IvfpqLinkSend(link, &set->parcels[set->sent % NSLOTS]))
		set->sent++;
	while (link->sock != PGINVALID_SOCKET && set->answered < set->filled &&
		   IvfpqLinkReceive(link, 0))
	{
		const IvfpqParcel *parcel = &set->parcels[set->answered % NSLOTS];

		if (link->header.request != parcel->header.type)
			IvfpqLinkClose(link, "its answer makes no sense");
		set->answered++;
		IvfpqLinkTaken(link);
	}
	return link->sock != PGINVALID_SOCKET;
}

/* Wait until no more than `most` slots are on their way; false: it failed. */
static bool
await(IvfpqRemoteSet *set, uint64 most)
{
	while (move(set))
	{
		if (set->filled - set->answered <= most)
			return true;
		if (!IvfpqLinkWait(&set->link, set->sent < set->filled))
			return false;
	}
	return false;
}

/* The slot being filled goes on its way; false: it failed. */
static bool
dispatch(IvfpqRemoteSet *set)
{
	IvfpqParcel *parcel = &set->parcels[set->filled % NSLOTS];
	char	   *items = items_of(set, set->filled);
	GvPutRequest put = {set->input, 0, set->used /
	gv_set_input_bytes(&set->spec, set->input)};

	if (set->used == 0)
		return true;
	if (set->is_shared)
	{
		GvMessage	header = {sizeof(put) + set->used, GV_MSG_PUT, 0};
		char	   *head = items - sizeof(put) - sizeof(header);
		GvHereRequest here = {head - set->slots};

		memcpy(head, &header, sizeof(header));
		memcpy(head + sizeof(header), &put, sizeof(put));
		IvfpqLinkPack(parcel, GV_MSG_HERE, &here, sizeof(here), NULL, 0);
	}
	else
		IvfpqLinkPack(parcel, GV_MSG_PUT, &put, sizeof(put), items,
					  set->used);
	set->filled++;
	set->used = 0;
	/* the next one has to be free, to be filled */
	return await(set, NSLOTS - 1);
}

/* Put as many of n items into the slot being filled as go; -1: it failed. */
static int64
fill(IvfpqRemoteSet *set, const char *items, int64 n, int64 item)
{
	int64		most = Max((int64) MOVE_BYTES / item, 1);
	int64		free_items = (int64) (set->room - set->used) / item;
	int64		some = Min(n, Min(most, free_items));
	Size		before = set->used;

	if (some == 0)
		return dispatch(set) ? 0 : -1;
	memcpy(items_of(set, set->filled) + set->used, items, some * item);
	set->used += some * item;
	if (before / MOVE_BYTES != set->used / MOVE_BYTES &&
		set->answered < set->filled && !move(set))
		return -1;
	return some;
}

static bool
put(IvfpqRemoteSet *set, GvSetInput input, const char *items, int64 n)
{
	int64		item = gv_set_input_bytes(&set->spec, input);

	if (set->input != input && !dispatch(set))
		return false;
	set->input = input;
	while (n > 0)
	{
		int64		some = fill(set, items, n, item);

		if (some < 0)
			return false;
		items += some * item;
		n -= some;
	}
	return true;
}

/* Give it more items of an input; they may be on their way for a while. */
bool
IvfpqRemoteSetPut(IvfpqRemoteSet *set, GvSetInput input, const void *items,
				  int64 n)
{
	Assert(gv_set_input_bytes(&set->spec, input) > 0);
	if (input == GV_SET_ROWS)
		set->nrows += n;
	return conclude(set, set->link.sock != PGINVALID_SOCKET &&
					put(set, input, items, n));
}

/*
 * Does what a run is said to have come to make sense?  Each is a pass, and it
 * is known which is the last, or there might be no end.
 */
static bool
check_done(const IvfpqRemoteSet *set, const GvRunReply *reply)
{
	bool		is_last = set->done.passes == set->spec.iterations;
	bool		clusters = set->spec.kind == GV_SET_KMEANS && is_last;

	return reply->passes == set->done.passes + 1 &&
		reply->finished == is_last && reply->again <= 1 - reply->finished &&
		reply->found >= (clusters ? 1 : 0) &&
		reply->found <= (clusters ? set->spec.k : 0);
}

static bool
run(IvfpqRemoteSet *set)
{
	IvfpqParcel parcel;
	GvRunReply	reply;

	IvfpqLinkPack(&parcel, GV_MSG_RUN, NULL, 0, NULL, 0);
	if (!dispatch(set) || !await(set, 0) ||
		!IvfpqLinkExchange(&set->link, &parcel, sizeof(reply)))
		return false;
	memcpy(&reply, set->link.body, sizeof(reply));
	IvfpqLinkTaken(&set->link);
	if (!check_done(set, &reply))
	{
		IvfpqLinkClose(&set->link, "its answer makes no sense");
		return false;
	}
	set->done = (GvSetDone)
	{
		.error = reply.error,
		.passes = reply.passes,
		.found = reply.found,
		.finished = reply.finished,
		.again = reply.again
	};
	return true;
}

/* All is there: have it go on until it is finished, or wants rows again. */
bool
IvfpqRemoteSetRun(IvfpqRemoteSet *set, GvSetDone *done)
{
	if (!conclude(set, set->link.sock != PGINVALID_SOCKET && run(set)))
		return false;
	*done = set->done;
	if (done->again)
		set->nrows = 0;
	if (done->finished && ivfpq_shared)
		pg_atomic_fetch_add_u64(&ivfpq_shared->sets, 1);
	return true;
}

/*
 * Callers look things up by positions, add up sizes and go on with centroids:
 * are they such?
 */
static bool
check_items(const IvfpqRemoteSet *set, GvSetOutput output, const void *items,
			int64 n)
{
	const int64 *numbers = items;
	int64		least = 0;
	int64		most = set->nrows;

	if (output == GV_SET_CENTROIDS)
		return gv_is_finite(items, n * set->spec.dims);
	if (output == GV_SET_POSITIONS)
	{
		least = set->spec.kind == GV_SET_EXACT ? -1 : 0;
		most--;
	}
	else if (output != GV_SET_SIZES)
		return true;
	for (int64 i = 0; i < n; i++)
		if (numbers[i] < least || numbers[i] > most)
			return false;
	return true;
}

/* Get n items, no more than a message holds; false: it failed. */
static bool
get(IvfpqRemoteSet *set, GvSetOutput output, int64 first, int64 n, char *items)
{
	GvGetRequest request = {output, 0, first, n};
	Size		bytes = n * gv_set_output_bytes(&set->spec, output);
	IvfpqParcel parcel;

	IvfpqLinkPack(&parcel, GV_MSG_GET, &request, sizeof(request), NULL, 0);
	if (!IvfpqLinkExchange(&set->link, &parcel, (uint32) bytes))
		return false;
	memcpy(items, set->link.body, bytes);
	IvfpqLinkTaken(&set->link);
	if (check_items(set, output, set->link.body, n))
		return true;
	IvfpqLinkClose(&set->link, "its answer makes no sense");
	return false;
}

/* Get items first .. first + n - 1 of an output of work that is finished. */
bool
IvfpqRemoteSetGet(IvfpqRemoteSet *set, GvSetOutput output, int64 first,
				  int64 n, void *items)
{
	int64		item = gv_set_output_bytes(&set->spec, output);
	int64		most = GV_MAX_MESSAGE / item;
	bool		worked = set->link.sock != PGINVALID_SOCKET;

	for (int64 done = 0; worked && done < n; done += most)
		worked = get(set, output, first + done, Min(most, n - done),
					 (char *) items + done * item);
	return conclude(set, worked);
}
