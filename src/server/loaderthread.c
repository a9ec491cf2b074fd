/*
 * loaderthread.c
 *		Threads with one client: a loader's reads, applies and answers one
 *		message at a time, and waits for nobody but its client.
 */
#include "server/gv_server.h"

#include <signal.h>
#include <string.h>

#define STACK_BYTES		(1024 * 1024)

static void
begin(GvConnection *connection)
{
	const GvBeginRequest *request = gv_payload(connection);
	GvRefusalCode refusal = GV_REFUSED_PROTOCOL;

	if (request->spec.device == 0 && request->spec.unused == 0)
		refusal = gv_mirrors_begin(&request->key, &request->spec,
								   connection->number);
	if (refusal != 0)
		gv_refuse(connection, refusal, gv_refusal_name(refusal));
	else
		gv_reply(connection, 0);
}

static void
drop(GvConnection *connection)
{
	const GvKeyRequest *request = gv_payload(connection);

	gv_mirrors_drop(&request->key);
	gv_reply(connection, 0);
}

/* Means to search on a device, the last ones if they are that device's. */
static GvStatus
need_worker(GvWorker **worker, int32_t device)
{
	if (*worker != NULL && (*worker)->device == device)
		return GV_OK;
	gv_worker_close(*worker);
	*worker = NULL;
	return gv_worker_open(device, worker);
}

/* A search by a loader has nobody to share a batch with. */
static void
search(GvConnection *connection, GvWorker **worker)
{
	GvRefusalCode refusal;
	GvHeldMirror *held;
	GvStatus	status;

	if (!gv_session_check(connection))
		return;
	connection->whole_ns = gv_now_ns();
	held = gv_session_acquire(connection, &refusal);
	if (held == NULL)
	{
		gv_session_refuse(&connection, 1, refusal);
		return;
	}
	status = need_worker(worker, held->spec.device);
	if (status == GV_OK)
	{
		(void) gv_session_lock(held, true);
		(*worker)->askers[0] = connection;
		(*worker)->nasked = 1;
		gv_session_begin(*worker, held);
		if ((*worker)->held != NULL)
			gv_session_finish(*worker);
	}
	else
	{
		gv_mirrors_release(held, 0);
		gv_refuse(connection, gv_status_refusal(status),
				  "no memory to search");
	}
}

static void
answer(GvConnection *connection, GvWorker **worker)
{
	if (gv_message(connection)->type == GV_MSG_HERE &&
		!gv_shared_open(connection))
		return;
	switch (gv_message(connection)->type)
	{
		case GV_MSG_BEGIN:
			begin(connection);
			break;
		case GV_MSG_ARRAY:
			gv_pieces_array(connection);
			break;
		case GV_MSG_LISTS:
			gv_pieces_lists(connection);
			break;
		case GV_MSG_REFINE:
			gv_pieces_refine(connection);
			break;
		case GV_MSG_READY:
			gv_pieces_ready(connection);
			break;
		case GV_MSG_STATES:
			gv_read_states(connection);
			break;
		case GV_MSG_BLOCKS:
			gv_read_blocks(connection);
			break;
		case GV_MSG_VALUES:
			gv_read_values(connection);
			break;
		case GV_MSG_RECORDS:
			gv_read_records(connection);
			break;
		case GV_MSG_MEMORY:
			gv_shared_take(connection);
			break;
		case GV_MSG_DROP:
			drop(connection);
			break;
		case GV_MSG_SEARCH:
			search(connection, worker);
			break;
		case GV_MSG_STATUS:
			gv_session_status(connection);
			break;
		default:
			gv_reply(connection, 0);	/* GV_MSG_PING */
			break;
	}
}

static void
serve(GvConnection *connection)
{
	GvWorker   *worker = NULL;
	GvReceived	received;

	do
	{
		received = gv_connection_receive(connection, true);
		if (received == GV_RECEIVED_END)
			break;
		if (received == GV_RECEIVED_WHOLE)
			answer(connection, &worker);
	} while (gv_connection_flush(connection, true) == GV_FLUSHED &&
			 !connection->ending);
	gv_mirrors_abandon(connection->number);
	gv_worker_close(worker);
}

static void *
thread_main(void *arg)
{
	GvConnection *connection = arg;

	if (connection->role == GV_ROLE_BUILDER)
		gv_builder_serve(connection);
	else if (connection->role == GV_ROLE_SET)
		gv_setwork_serve(connection);
	else
		serve(connection);
	gv_connection_close(connection);
	gv_count(connections, -1);
	gv_count(loaders, -1);
	return NULL;
}

/* A thread that nobody waits for; false: there is none. */
bool
gv_thread_start(void *(*main) (void *), void *arg)
{
	pthread_attr_t attr;
	pthread_t	thread;
	sigset_t	all;
	sigset_t	before;
	bool		started;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	/* signals are the loop's */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	started = pthread_create(&thread, &attr, main, arg) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return started;
}

/* Give a connection to a thread of its own; false: it is still ours. */
bool
gv_loader_start(GvConnection *connection)
{
	bool		started;

	gv_count(loaders, 1);
	started = gv_thread_start(thread_main, connection);
	if (!started)
		gv_count(loaders, -1);
	return started;
}
