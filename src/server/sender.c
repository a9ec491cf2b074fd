/*
 * sender.c
 *		A thread that sends the answers of large batches.
 *
 * To send an answer, and so to wake who waits for it, takes as long as all else
 * that the loop does for a search.  So the loop gives a batch's answers away and
 * goes on; few it sends itself, for the thread has to be woken, too.
 *
 * What is given away is the thread's until `sending` is false again: the loop
 * neither reads from such a client nor closes it.  That takes as long as the
 * call does, for the thread does not wait for a client either: one that does not
 * take its answer, or is gone, comes back to the loop (gv_sender_back).
 */
#include "server/gv_server.h"

/* Answers that are worth the thread. */
#define LEAST	4

static struct
{
	pthread_mutex_t lock;
	pthread_cond_t given;		/* there is something to send */
	pthread_cond_t done;		/* all is sent */
	GvConnection *first;		/* to send, in order */
	GvConnection *last;
	GvConnection *back;			/* what did not go out */
	int			left;			/* connections that are not sent yet */
	bool		runs;
}			sender = {

	.lock = PTHREAD_MUTEX_INITIALIZER,
	.given = PTHREAD_COND_INITIALIZER,
	.done = PTHREAD_COND_INITIALIZER
};

/* Is its answer the thread's? */
bool
gv_sender_has(const GvConnection *connection)
{
	return __atomic_load_n(&connection->sending, __ATOMIC_ACQUIRE);
}

/* It is the loop's again, and may have the next request behind it. */
static void
let_go(GvConnection *connection)
{
	__atomic_store_n(&connection->sending, false, __ATOMIC_RELEASE);
}

/* All that was given; waits for some.  `lock` is held. */
static GvConnection *
take_given(void)
{
	GvConnection *first;

	while (sender.first == NULL)
		pthread_cond_wait(&sender.given, &sender.lock);
	first = sender.first;
	sender.first = sender.last = NULL;
	return first;
}

/* Send an answer; false if that is left to the loop. */
static bool
send_one(GvConnection *connection)
{
	if (gv_connection_flush(connection, false) != GV_FLUSHED)
		return false;
	let_go(connection);
	return true;
}

static void *
sender_main(void *arg)
{
	(void) arg;
	pthread_mutex_lock(&sender.lock);
	for (;;)
	{
		GvConnection *connection = take_given();
		GvConnection *next;
		GvConnection *back = NULL;
		int			n = 0;

		pthread_mutex_unlock(&sender.lock);
		for (; connection != NULL; connection = next)
		{
			n++;
			next = connection->next_given;
			if (send_one(connection))
				continue;
			connection->next_given = back;
			back = connection;
		}
		pthread_mutex_lock(&sender.lock);
		while (back != NULL)
		{
			next = back->next_given;
			back->next_given = sender.back;
			sender.back = back;
			back = next;
			gv_loop_wake();
		}
		sender.left -= n;
		if (sender.left == 0)
			pthread_cond_signal(&sender.done);
	}
	return NULL;
}

/* False: there is no such thread, and the loop sends all answers itself. */
bool
gv_sender_start(void)
{
	sender.runs = gv_thread_start(sender_main, NULL);
	return sender.runs;
}

/*
 * The answers [n] of a batch, which are made: false if the loop had better send
 * them.  One after which the client is cut off is the loop's.
 */
bool
gv_sender_give(GvConnection **askers, int n)
{
	int			i;

	if (!sender.runs || n < LEAST)
		return false;
	for (i = 0; i < n; i++)
		if (askers[i]->ending)
			return false;
	for (i = 0; i < n; i++)
	{
		__atomic_store_n(&askers[i]->sending, true, __ATOMIC_RELAXED);
		askers[i]->next_given = i + 1 < n ? askers[i + 1] : NULL;
	}
	pthread_mutex_lock(&sender.lock);
	if (sender.first == NULL)
		sender.first = askers[0];
	else
		sender.last->next_given = askers[0];
	sender.last = askers[n - 1];
	sender.left += n;
	pthread_cond_signal(&sender.given);
	pthread_mutex_unlock(&sender.lock);
	return true;
}

/*
 * One that the thread could not send wholly, which is the loop's again; NULL:
 * there is none.
 */
GvConnection *
gv_sender_back(void)
{
	GvConnection *connection;

	pthread_mutex_lock(&sender.lock);
	connection = sender.back;
	if (connection != NULL)
	{
		sender.back = connection->next_given;
		let_go(connection);
	}
	pthread_mutex_unlock(&sender.lock);
	return connection;
}

/* Wait until nothing is the thread's but what gv_sender_back gives. */
void
gv_sender_finish(void)
{
	pthread_mutex_lock(&sender.lock);
	while (sender.left > 0)
		pthread_cond_wait(&sender.done, &sender.lock);
	pthread_mutex_unlock(&sender.lock);
}
