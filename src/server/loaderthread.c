/*
 * loaderthread.c
 *		Threads with one client: a loader's reads, applies and answers one
 *		message at a time, and waits for its client only.
 */
#include "server/gv_server.h"

#include <signal.h>
#include <string.h>

#define STACK_BYTES		(1024 * 1024)

/* See GV_MSG_BEGIN. */
void
gv_loader_begin(GvConnection *connection)
{
	const GvBeginRequest *request = gv_payload(connection);
	GvRefusalCode refusal = GV_REFUSED_PROTOCOL;

	if (request->spec.device == 0)
		refusal = gv_mirrors_begin(&request->key, &request->spec,
								   connection->number);
	if (refusal != 0)
		gv_refuse(connection, refusal, gv_refusal_name(refusal));
	else
		gv_reply(connection, 0);
}

/* See GV_MSG_DROP. */
void
gv_loader_drop(GvConnection *connection)
{
	const GvKeyRequest *request = gv_payload(connection);

	gv_mirrors_drop(&request->key);
	gv_reply(connection, 0);
}

/*
 * Have a client's messages answered until it goes.  After a refusal a builder
 * or a set has nothing more to say, and what it sent already is not read.
 */
void
gv_thread_serve(GvConnection *connection,
				void (*answer) (GvConnection *connection))
{
	bool		speaks_on = gv_role_speaks_on(connection->role);
	GvReceived	received;

	do
	{
		received = gv_connection_receive(connection, true);
		if (received == GV_RECEIVED_END)
			break;
		if (received == GV_RECEIVED_WHOLE &&
			(gv_message(connection)->type != GV_MSG_HERE ||
			 gv_shared_open(connection)))
			answer(connection);
		if (speaks_on &&
			((const GvMessage *) connection->out)->type == GV_MSG_REFUSED)
			connection->ending = true;
	} while (gv_connection_flush(connection, true) == GV_FLUSHED &&
			 !connection->ending);
}

static void
serve_loader(GvConnection *connection)
{
	gv_thread_serve(connection, gv_message_answer);
	gv_mirrors_abandon(connection->number);
	gv_worker_close(connection->work);
}

static void *
thread_main(void *arg)
{
	GvConnection *connection = arg;

	if (connection->role == GV_ROLE_BUILDER)
		gv_build_serve(connection);
	else if (connection->role == GV_ROLE_SET)
		gv_setwork_serve(connection);
	else if (connection->role == GV_ROLE_BULK)
		gv_bulk_serve(connection);
	else
		serve_loader(connection);
	gv_connection_close(connection);
	gv_count(loaders, -1);
	return NULL;
}

/*
 * A thread, which is to be joined, or with NULL one that is not waited for;
 * false: there is none.
 */
bool
gv_thread_start(void *(*main) (void *), void *arg, pthread_t *joined)
{
	pthread_attr_t attr;
	pthread_t	thread;
	sigset_t	all;
	sigset_t	before;
	bool		started;

	pthread_attr_init(&attr);
	if (joined == NULL)
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	/* signals are the loop's */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	started = pthread_create(joined != NULL ? joined : &thread, &attr, main,
							 arg) == 0;
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
	started = gv_thread_start(thread_main, connection, NULL);
	if (!started)
		gv_count(loaders, -1);
	return started;
}
