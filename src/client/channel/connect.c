/*
 * connect.c
 *		A channel is connected; and the one that each process has.
 *
 * Where the socket is: state/socketplace.c.  The channel of a process, for one
 * request at a time, stays open between requests.  Another one is opened when
 * it is not fit for the next: in another role, in the midst of a request that
 * an error ended, or to a gpuvecd that has been replaced.
 */
#include "postgres.h"

#include <sys/socket.h>
#include <unistd.h>

#include "miscadmin.h"
#include "port.h"
#include "storage/fd.h"
#include "utils/memutils.h"

#include "client/channel/channel.h"
#include "client/state/socketplace.h"
#include "client/state/state.h"
#include "pgcompat.h"

/* The time after a failure to connect in which there is no other try, */
#define HOLD_OFF_US			100000

/* and the time after gpuvecd refused. */
#define REFUSED_HOLD_OFF_US 1000000

/* Bytes of the memory for answers that are kept between requests. */
#define KEPT_CAPACITY			(256 * 1024)

/* Say why it is not open. */
static void
stay_closed(IvfpqChannel *channel, IvfpqServed served, const char *reason)
{
	channel->served = served;
	channel->refusal = 0;
	strlcpy(channel->reason, reason, sizeof(channel->reason));
}

/* A socket to gpuvecd that does not block; PGINVALID_SOCKET, and why. */
static pgsocket
open_socket(const char **reason)
{
	struct sockaddr_un address;
	pgsocket	sock;
	uid_t		uid;
	gid_t		gid;

	if (!IvfpqFindSocket(&address, reason))
		return PGINVALID_SOCKET;
	*reason = "no file descriptor is free";
	if (!AcquireExternalFD())
		return PGINVALID_SOCKET;
	*reason = "there is no socket for it";
	sock = socket(AF_UNIX, SOCK_STREAM, 0);
	if (sock == PGINVALID_SOCKET)
	{
		ReleaseExternalFD();
		return PGINVALID_SOCKET;
	}
	(void) fcntl(sock, F_SETFD, FD_CLOEXEC);
	if (pg_set_noblock(sock) &&
		connect(sock, (struct sockaddr *) &address, sizeof(address)) == 0)
	{
		*reason = "it is another user's";
		if (getpeereid(sock, &uid, &gid) == 0 && IvfpqIsServerOwner(uid))
			return sock;
	}
	else
		*reason = IvfpqConnectProblem(errno);
	closesocket(sock);
	ReleaseExternalFD();
	return PGINVALID_SOCKET;
}

/* The things to wait for; an error closes the channel. */
static void
make_events(IvfpqChannel *channel)
{
	PG_TRY();
	{
		channel->events = IvfpqCreateWaitEventSet(3);
		AddWaitEventToSet(channel->events, WL_LATCH_SET, PGINVALID_SOCKET,
						  MyLatch, NULL);
		AddWaitEventToSet(channel->events, WL_EXIT_ON_PM_DEATH,
						  PGINVALID_SOCKET, NULL, NULL);
		AddWaitEventToSet(channel->events, WL_SOCKET_READABLE, channel->sock,
						  NULL, NULL);
	}
	PG_CATCH();
	{
		IvfpqChannelClose(channel, IVFPQ_DOWN, "it cannot be waited for");
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/* Say who we are, and hear who that is. */
static bool
greet(IvfpqChannel *channel)
{
	GvHello		hello = {GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION,
		channel->role, (uint32) MyProcPid,
	ivfpq_shared ? ivfpq_shared->incarnation : 0};
	GvWelcome  *welcome = &channel->welcome;

	if (IvfpqChannelExchange(channel, GV_MSG_HELLO, &hello, sizeof(hello),
							 NULL, 0, sizeof(*welcome)) != IVFPQ_SERVED)
	{
		IvfpqChannelClose(channel, channel->served, channel->reason);
		return false;
	}
	memcpy(welcome, IvfpqAnswerBody(channel), sizeof(*welcome));
	welcome->engine[sizeof(welcome->engine) - 1] = '\0';
	welcome->release[sizeof(welcome->release) - 1] = '\0';
	return true;
}

/* Connect a closed channel and say hello; false: it is closed. */
bool
IvfpqChannelOpen(IvfpqChannel *channel, GvRole role)
{
	const char *reason = "no memory for its answers";

	channel->pid = MyProcPid;
	channel->role = role;
	channel->most = role == GV_ROLE_BUILDER || role == GV_ROLE_SET ?
		IVFPQ_MAX_REQUESTS : 1;
	channel->refusal = 0;
	if (IvfpqChannelReserve(channel, IVFPQ_LEAST_CAPACITY))
		channel->sock = open_socket(&reason);
	if (!IvfpqChannelIsOpen(channel))
	{
		stay_closed(channel, IVFPQ_DOWN, reason);
		return false;
	}
	make_events(channel);
	return greet(channel);
}

/* ---- the channel of this process */

static IvfpqChannel own = {.sock = PGINVALID_SOCKET, .passed_fd = -1};

/* Not connected, and not again before this */
static int64 not_before;
static uint64 hold_instance;	/* unless this is not the server's any more */
static struct
{
	IvfpqServed served;
	uint32		refusal;
	char		reason[sizeof(own.reason)];
}			held;				/* why */

/* Close it, if it is open. */
void
IvfpqDisconnect(void)
{
	IvfpqChannelClose(&own, IVFPQ_DOWN, "it was left");
}

/* The socket to wait for, between requests, to notice the channel's end. */
pgsocket
IvfpqOwnSocket(void)
{
	return own.sock;
}

static uint64
server_instance(void)
{
	return ivfpq_shared ? pg_atomic_read_u64(&ivfpq_shared->instance) : 0;
}

/* Can the next request go through it as it is? */
static bool
is_fit(GvRole role, uint64 instance)
{
	return IvfpqChannelIsOpen(&own) &&
		own.made == own.answered &&
		own.pid == MyProcPid && own.role == role &&
		(instance == 0 || own.welcome.instance == instance);
}

/* Answers need not all be as long as the last one; false: no memory. */
static bool
shrink(void)
{
	if (own.capacity <= KEPT_CAPACITY)
		return true;
	pfree(own.in);
	own.in = NULL;
	own.capacity = 0;
	return IvfpqChannelReserve(&own, IVFPQ_LEAST_CAPACITY);
}

/* There was no connecting: do not try again for a while. */
static void
hold_off(int64 us, uint64 instance)
{
	held.served = own.served;
	held.refusal = own.refusal;
	strlcpy(held.reason, own.reason, sizeof(held.reason));
	not_before = IvfpqNow() + us;
	hold_instance = instance;
}

/*
 * The channel of this process, to be used until then.  It is closed when
 * gpuvecd cannot be reached, and whatever is asked tells why.
 */
IvfpqChannel *
IvfpqConnect(GvRole role, int64 deadline)
{
	uint64		instance = server_instance();

	own.context = TopMemoryContext;
	own.deadline = deadline;
	if (is_fit(role, instance) && shrink())
		return &own;
	IvfpqDisconnect();
	if (IvfpqNow() < not_before && hold_instance == instance)
	{
		stay_closed(&own, held.served, held.reason);
		own.refusal = held.refusal;
	}
	else if (!IvfpqChannelOpen(&own, role))
	{
		if (own.refusal != 0)
			hold_off(REFUSED_HOLD_OFF_US, instance);
		else if (own.served == IVFPQ_DOWN)
			hold_off(HOLD_OFF_US, instance);
	}
	return &own;
}

/*
 * Is gpuvecd there, for work that may take long?  If not, why, or NULL if
 * it is not to be started.
 */
bool
IvfpqServerAnswers(const char **reason)
{
	IvfpqServerState state = IvfpqSharedState();

	*reason = NULL;
	if (state == IVFPQ_STATE_UP)
	{
		if (pg_atomic_read_u32(&ivfpq_shared->suspended) == 0)
			return true;
		*reason = "it does not answer";
	}
	else if (state != IVFPQ_STATE_OFF)
		*reason = "it is not running";
	return false;
}
