/*
 * setjob.c
 *		A set on one device, or an exact search whose queries are divided among
 *		several.
 *
 * Each device has a task: the queries from one position to another, and all
 * rows and lists.  A query's result depends on no other query, so outputs,
 * joined by position, are those of one device, bit for bit.  The other kinds
 * of sets stay whole: sums are made in the order of rows.
 *
 * The caller does the first task's part of a call.  Each further one has a
 * thread, which does its part meanwhile, and the caller waits for all of them.
 * Once one has failed the others are told to stop.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/server.h"

static void divided_end(GvDividedSet *divided);

/* A task: a set on a device, and the thread that works on it. */
typedef struct Task
{
	GvDividedSet *whole;
	GvSetSpec	spec;			/* device, and how many queries */
	int64_t		first;			/* number of the first of them */
	GvSet	   *set;			/* NULL: there is none */
	int64_t		charged;		/* bytes of the budget */
	GvSetDone	done;
	GvStatus	status;			/* of its part of the last call */
	pthread_t	thread;			/* but the first's */
	bool		has_thread;
	uint64_t	ncalls;			/* that its thread has seen */
} Task;

/* The call that all tasks do, each its part. */
typedef struct Call
{
	GvStatus	(*act) (Task *task, const GvStop *stop);
	const GvStop *client;
	GvSetInput	input;			/* these four of a put */
	const char *items;
	int64_t		first;			/* the number of the first item */
	int64_t		n;
} Call;

/*
 * `mutex` protects ncalls, nleft and ends; the call at hand is written when
 * nobody works on one.
 */
struct GvDividedSet
{
	GvSetSpec	spec;
	int64_t		kept;			/* bytes of rows, where nothing was asked at
								 * first */
	int64_t		came[GV_NSET_INPUTS];	/* items */
	Call		call;
	bool		fails;			/* a task has failed; atomic */
	pthread_mutex_t mutex;
	pthread_cond_t begun;		/* a call, or the end */
	pthread_cond_t over;		/* all threads have done their parts */
	uint64_t	ncalls;
	int			nleft;			/* threads that have not */
	bool		ends;
	int			n;				/* tasks */
	Task		tasks[GV_MAX_DEVICES];
};

/* GvStop: the client is gone, or what others do is in vain. */
static bool
is_in_vain(void *arg)
{
	const GvDividedSet *divided = arg;
	const GvStop *client = divided->call.client;

	return __atomic_load_n(&divided->fails, __ATOMIC_RELAXED) ||
		client->requested(client->arg);
}

/* A task's part of the call at hand. */
static void
do_part(Task *task)
{
	GvDividedSet *divided = task->whole;
	GvStop		stop = {is_in_vain, divided};

	task->status = divided->call.act(task, &stop);
	if (task->status == GV_OK)
		return;
	__atomic_store_n(&divided->fails, true, __ATOMIC_RELAXED);
	/* the process has to end even if other tasks never do */
	if (task->status == GV_FAILED)
		(void) gv_status_refusal(GV_FAILED);
}

/* The thread of a task. */
static void *
task_main(void *arg)
{
	Task	   *task = arg;
	GvDividedSet *divided = task->whole;

	pthread_mutex_lock(&divided->mutex);
	for (;;)
	{
		while (task->ncalls == divided->ncalls && !divided->ends)
			pthread_cond_wait(&divided->begun, &divided->mutex);
		if (divided->ends)
			break;
		task->ncalls = divided->ncalls;
		pthread_mutex_unlock(&divided->mutex);
		do_part(task);
		pthread_mutex_lock(&divided->mutex);
		if (--divided->nleft == 0)
			pthread_cond_signal(&divided->over);
	}
	pthread_mutex_unlock(&divided->mutex);
	return NULL;
}

/*
 * Returns the status of the call: that other tasks were stopped tells the
 * least.
 */
static GvStatus
conclude(const GvDividedSet *divided)
{
	GvStatus	status = GV_OK;
	int			i;

	for (i = 0; i < divided->n; i++)
	{
		GvStatus	one = divided->tasks[i].status;

		if (one == GV_FAILED)
			return GV_FAILED;
		if (one != GV_OK && (status == GV_OK || status == GV_CANCELED))
			status = one;
	}
	return status;
}

/* Have all tasks do a call. */
static GvStatus
do_all(GvDividedSet *divided, const Call *call)
{
	divided->call = *call;
	if (divided->n > 1)
	{
		pthread_mutex_lock(&divided->mutex);
		divided->ncalls++;
		divided->nleft = divided->n - 1;
		pthread_cond_broadcast(&divided->begun);
		pthread_mutex_unlock(&divided->mutex);
	}
	do_part(&divided->tasks[0]);
	if (divided->n > 1)
	{
		pthread_mutex_lock(&divided->mutex);
		while (divided->nleft > 0)
			pthread_cond_wait(&divided->over, &divided->mutex);
		pthread_mutex_unlock(&divided->mutex);
	}
	return conclude(divided);
}

/* ---- which devices */

/*
 * How many tasks of a set are worth a device each.  Another device takes
 * memory for a batch of rows, and all rows are copied to it, beside the
 * first's copies; it saves its fraction of the products of queries with rows,
 * or with centroids.
 */
static int
count_tasks(const GvSetSpec *spec)
{
	double		queries = (double) spec->nqueries;
	double		met = (double) spec->nrows;
	double		most = (double) gv_ndevices();
	double		products;

	if (spec->kind != GV_SET_EXACT)
		return 1;
	/* each would assign all rows to lists: two take as long as one */
	if (spec->nlists > 0 && gv_server.least_task > 0)
		return 1;
	if (spec->nlists > 0)
		met = met * spec->probes / spec->nlists + spec->nlists;
	products = queries * met * spec->dims;
	if (most > queries)
		most = queries;
	if (products < most * gv_server.least_task)
		most = products / gv_server.least_task;
	return most < 1 ? 1 : (int) most;
}

/* Give up all tasks, and the memory that they have. */
static void
drop_tasks(GvDividedSet *divided)
{
	GvTriedDevices devices = 0;
	int			i;

	pthread_mutex_lock(&divided->mutex);
	divided->ends = true;
	pthread_cond_broadcast(&divided->begun);
	pthread_mutex_unlock(&divided->mutex);
	for (i = 0; i < divided->n; i++)
		if (divided->tasks[i].set != NULL)
			devices |= 1u << divided->tasks[i].spec.device;
	gv_mirrors_end_work(devices);
	for (i = 0; i < divided->n; i++)
	{
		Task	   *task = &divided->tasks[i];

		if (task->has_thread)
			pthread_join(task->thread, NULL);
		if (task->set == NULL)
			continue;
		gv_set_drop(task->set);
		gv_mirrors_unreserve(task->spec.device, task->charged);
	}
	divided->n = 0;
	divided->ends = false;
}

/*
 * Makes the engine's set of a task, on a device that has the memory; for the
 * first task mirrors may be evicted.
 */
static GvStatus
make_set(Task *task, GvTriedDevices *tried)
{
	const Task *first = task->whole->tasks;
	GvStatus	status = GV_NO_MEMORY;
	int32_t    *device = &task->spec.device;
	int64_t		bytes = gv_set_size(&task->spec);

	while (status == GV_NO_MEMORY &&
		   (task == first ? gv_mirrors_place_work(bytes, device, tried) :
			gv_mirrors_place_more(bytes, first->spec.device, device, tried)))
	{
		do
			status = gv_set_create(&task->spec, &task->set);
		while (status == GV_NO_MEMORY && task == first &&
			   gv_mirrors_evict(*device));
		if (status == GV_OK)
			break;
		gv_mirrors_end_work(1u << *device);
		gv_mirrors_unreserve(*device, bytes);
	}
	task->charged = bytes;
	return status;
}

/* Make n tasks, all or none. */
static GvStatus
make_tasks(GvDividedSet *divided, int n)
{
	int64_t		nqueries = divided->spec.nqueries;
	GvTriedDevices tried = 0;
	GvStatus	status = GV_OK;

	while (divided->n < n && status == GV_OK)
	{
		int			i = divided->n++;
		Task	   *task = &divided->tasks[i];

		*task = (Task)
		{
			.whole = divided,
				.spec = divided->spec,
				.first = nqueries * i / n,
				.ncalls = divided->ncalls
		};
		task->spec.nqueries = nqueries * (i + 1) / n - task->first;
		if (task->spec.own)
			task->spec.first += task->first;
		status = make_set(task, &tried);
		if (status == GV_OK && i > 0)
		{
			task->has_thread = gv_thread_start(task_main, task,
											   &task->thread);
			status = task->has_thread ? GV_OK : GV_NO_MEMORY;
		}
	}
	if (status != GV_OK)
		drop_tasks(divided);
	return status;
}

/* Begins a set, on fewer devices than it is worth where memory is short. */
static GvStatus
divided_begin(const GvSetSpec *spec, GvDividedSet **divided)
{
	GvDividedSet *made = calloc(1, sizeof(*made));
	int			n = count_tasks(spec);
	GvStatus	status;

	if (made == NULL)
		return GV_NO_MEMORY;
	made->spec = *spec;
	pthread_mutex_init(&made->mutex, NULL);
	pthread_cond_init(&made->begun, NULL);
	pthread_cond_init(&made->over, NULL);
	do
		status = make_tasks(made, n);
	while (status == GV_NO_MEMORY && --n >= 1);
	if (status == GV_OK && spec->kind == GV_SET_EXACT && spec->nqueries == 0)
		made->kept = made->tasks[0].charged;
	if (status == GV_OK)
		*divided = made;
	else
		divided_end(made);
	return status;
}

/*
 * Ask a set that began with no queries, and so has one task.  The rows that it
 * keeps count in its memory.
 */
static GvStatus
divided_ask(GvDividedSet *divided, const GvSetSpec *spec)
{
	Task	   *task = &divided->tasks[0];
	GvSetSpec	asked = *spec;
	int64_t		bytes = gv_set_size(spec);
	int64_t		more;
	GvStatus	status;

	if (divided->kept == 0 || bytes == 0)
		return GV_INVALID;
	if (!spec->own)
		bytes += divided->kept;
	more = bytes - task->charged;
	if (more > 0 && !gv_mirrors_reserve(task->spec.device, more))
		return GV_NO_MEMORY;
	/* an engine need not give back what the question before took */
	if (more > 0)
		task->charged = bytes;
	asked.device = task->spec.device;
	status = gv_set_ask(task->set, &asked);
	if (status == GV_OK)
	{
		divided->spec = task->spec = asked;
		memset(divided->came, 0, sizeof(divided->came));
	}
	return status;
}

static void
divided_end(GvDividedSet *divided)
{
	drop_tasks(divided);
	pthread_cond_destroy(&divided->over);
	pthread_cond_destroy(&divided->begun);
	pthread_mutex_destroy(&divided->mutex);
	free(divided);
}

/* "device 0", or "devices 0, 1": their numbers. */
static void
divided_devices(const GvDividedSet *divided, char *line, size_t size)
{
	size_t		used = 0;
	int			i;

	for (i = 0; i < divided->n && used < size; i++)
		used += (size_t) snprintf(line + used, size - used, "%s%d",
								  i > 0 ? ", " : divided->n > 1 ? "devices " :
								  "device ", gv_server.numbers
								  [divided->tasks[i].spec.device]);
}

/* ---- calls */

/* Cut a range of a whole's items to those that a task has. */
static bool
cut(int64_t *first, int64_t *n, int64_t own_first, int64_t own_n)
{
	int64_t		end = *first + *n;

	if (*first < own_first)
		*first = own_first;
	if (end > own_first + own_n)
		end = own_first + own_n;
	*n = end - *first;
	return *n > 0;
}

static GvStatus
put_part(Task *task, const GvStop *stop)
{
	const Call *call = &task->whole->call;
	int64_t		first = call->first;
	int64_t		n = call->n;

	if ((call->input == GV_SET_QUERIES || call->input == GV_SET_SELF) &&
		!cut(&first, &n, task->first, task->spec.nqueries))
		return GV_OK;
	return gv_set_put(task->set, call->input, call->items +
					  (first - call->first) *
					  gv_set_input_bytes(&task->spec, call->input), n,
					  stop);
}

/* See gv_set_put. */
static GvStatus
divided_put(GvDividedSet *divided, GvSetInput input, const void *items,
			   int64_t n, const GvStop *stop)
{
	Call		call = {put_part, stop, input, items, divided->came[input], n};

	/* those beyond the last are no task's */
	if ((input == GV_SET_QUERIES || input == GV_SET_SELF) &&
		n > divided->spec.nqueries - divided->came[input])
		return GV_INVALID;
	divided->came[input] += n;
	return do_all(divided, &call);
}

static GvStatus
run_part(Task *task, const GvStop *stop)
{
	return gv_set_run(task->set, &task->done, stop);
}

/* See gv_set_run. */
static GvStatus
divided_run(GvDividedSet *divided, GvSetDone *done, const GvStop *stop)
{
	Call		call = {run_part, stop, 0, NULL, 0, 0};
	GvStatus	status = do_all(divided, &call);

	if (status == GV_OK)
		*done = divided->tasks[0].done;
	return status;
}

/* See gv_set_get.  Outputs of a set that is divided are k for each query. */
static GvStatus
divided_get(GvDividedSet *divided, GvSetOutput output, int64_t first,
			   int64_t n, void *items)
{
	int64_t		item = gv_set_output_bytes(&divided->spec, output);
	int64_t		k = divided->spec.k;
	GvStatus	status = GV_OK;
	int			i;

	if (divided->n == 1)
		return gv_set_get(divided->tasks[0].set, output, first, n, items);
	for (i = 0; i < divided->n && status == GV_OK; i++)
	{
		const Task *task = &divided->tasks[i];
		int64_t		own = first;
		int64_t		some = n;

		if (cut(&own, &some, task->first * k, task->spec.nqueries * k))
			status = gv_set_get(task->set, output,
								own - task->first * k, some,
								(char *) items + (own - first) * item);
	}
	return status;
}

/* ----
 * A set's thread: it has work on a set of rows done (engine/gv_set.h),
 * one message at a time.
 *
 * Its client sends on meanwhile, so the next rows wait in the socket, or in
 * memory that it shares, to which results may go, too.  The engine's memory
 * comes out of the budgets of mirrors.  Different sets have nothing in common:
 * their threads work side by side.  Which devices do the work: setjob.c.
 */

/* The state of a set's thread. */
typedef struct Work
{
	GvConnection *connection;
	GvSetSpec	spec;
	GvDividedSet *set;			/* NULL: there is none */
	GvSetDone	done;			/* what its last run has come to */
	int64_t		nrows;			/* that came */
	uint64_t	begun_ns;
	uint64_t	spent_ns[GV_MSG_OK];	/* on messages of each type */
} Work;

/* Give up the set, if there is one. */
static void
drop(Work *work)
{
	if (work->set != NULL)
		divided_end(work->set);
	work->set = NULL;
}

/* See GV_MSG_SET. */
void
gv_setwork_begin(GvConnection *connection)
{
	Work	   *work = connection->work;
	const GvSetSpec *spec = gv_payload(work->connection);

	drop(work);
	*work = (Work)
	{
		.connection = connection,
			.spec = *spec,
			.begun_ns = gv_now_ns()
	};
	if (spec->device != 0 || gv_set_size(&work->spec) <= 0)
		gv_chunks_conclude(connection, GV_OK, "a set out of range");
	else
		gv_chunks_conclude(connection,
						   divided_begin(&work->spec, &work->set), NULL);
}

/* See GV_MSG_ASK. */
void
gv_setwork_ask(GvConnection *connection)
{
	Work	   *work = connection->work;
	const GvSetSpec *spec = gv_payload(connection);
	GvStatus	status = spec->device == 0 ?
	divided_ask(work->set, spec) : GV_INVALID;

	if (status == GV_OK)
	{
		work->spec = *spec;
		work->done = (GvSetDone)
		{
			0
		};
	}
	gv_chunks_conclude(connection, status, status == GV_INVALID ?
					   "nothing to ask, or not yet" : NULL);
}

/*
 * See GV_MSG_PUT.  Whether it is the input's turn, and whether items are good,
 * is the engine's to say.
 */
void
gv_setwork_put(GvConnection *connection)
{
	Work	   *work = connection->work;
	const GvPutRequest *request = gv_payload(work->connection);
	GvPutRequest told = *request;	/* the client can still write there */
	GvStop		stop = gv_connection_stop(work->connection);
	int64_t		bytes = (int64_t) gv_message(work->connection)->length -
	(int64_t) sizeof(*request);
	int64_t		item = 0;
	GvStatus	status;

	if (told.input >= 0 && told.input < GV_NSET_INPUTS)
		item = gv_set_input_bytes(&work->spec, (GvSetInput) told.input);
	if (item == 0 || told.unused != 0 || told.n < 1 ||
		told.n > bytes / item || told.n * item != bytes)
	{
		gv_chunks_conclude(work->connection, GV_OK, "malformed items");
		return;
	}
	status = divided_put(work->set, (GvSetInput) told.input, request + 1,
							told.n, &stop);
	gv_chunks_conclude(work->connection, status, status == GV_INVALID ?
					   "items out of turn, too many, or not finite" : NULL);
	if (told.input == GV_SET_ROWS)
		work->nrows += told.n;
}

/* See GV_MSG_RUN. */
void
gv_setwork_run(GvConnection *connection)
{
	Work	   *work = connection->work;
	GvStop		stop = gv_connection_stop(work->connection);
	GvStatus	status = divided_run(work->set, &work->done, &stop);
	GvSetDone  *reply;

	if (status != GV_OK)
	{
		gv_chunks_conclude(work->connection, status, status == GV_INVALID ?
						   "not all is there, or it is finished" : NULL);
		return;
	}
	if (work->done.finished)
		gv_count(sets, 1);
	reply = gv_reply(work->connection, sizeof(*reply));
	if (reply != NULL)
		*reply = work->done;
}

/*
 * Where the answer's items go, in the client's memory or behind an OK, which
 * is made; NULL: nowhere, the request has been refused.
 */
static void *
place_for(GvConnection *connection, int64_t offset, int64_t bytes)
{
	void	   *items;

	if (offset == -1)
		return gv_reply(connection, (size_t) bytes);
	items = gv_shared_at(connection, offset, bytes);
	if (items == NULL)
		gv_chunks_conclude(connection, GV_OK, "a place outside the memory");
	else
	{
		gv_count(sent, bytes);
		gv_reply(connection, 0);
	}
	return items;
}

/* See GV_MSG_GET. */
void
gv_setwork_get(GvConnection *connection)
{
	Work	   *work = connection->work;
	const GvGetRequest *request = gv_payload(work->connection);
	GvSetOutput output = (GvSetOutput) request->output;
	int64_t		item = 0;
	int64_t		length = 0;
	void	   *items;
	GvStatus	status;

	if (work->done.finished && request->output >= 0 &&
		request->output < GV_NSET_OUTPUTS)
	{
		item = gv_set_output_bytes(&work->spec, output);
		length = gv_set_output_length(&work->spec, output, work->done.found);
	}
	if (item == 0 || request->unused != 0 || request->first < 0 ||
		request->n < 1 || request->n > GV_MAX_MESSAGE / item ||
		request->first > length - request->n)
	{
		gv_chunks_conclude(work->connection, GV_OK, "an output out of range");
		return;
	}
	items = place_for(connection, request->offset, request->n * item);
	if (items == NULL)
		return;
	status = divided_get(work->set, output, request->first, request->n,
							items);
	if (status != GV_OK)
		gv_chunks_conclude(work->connection, status, NULL);
}

/* Answer a request; its time is noted. */
static void
answer(GvConnection *connection)
{
	const GvMessageKind *kind = gv_message_kind(gv_message(connection));
	uint16_t	type = gv_message(connection)->type;
	Work	   *work = connection->work;
	uint64_t	begun_ns = gv_now_ns();

	if (kind->when == GV_DURING_WORK && work->set == NULL)
		gv_chunks_conclude(connection, GV_OK, "no set has begun");
	else
		kind->answer(connection);
	work->spent_ns[type] += gv_now_ns() - begun_ns;
}

/* For who asks where such work is done, and where its time goes. */
static void
log_work(const Work *work)
{
	char		devices[80];

	if (work->set == NULL)
		return;
	divided_devices(work->set, devices, sizeof(devices));
	gv_log("DEBUG", "set work of kind %d: %lld rows, %s after %.3f s, of "
		   "them %.3f taking in, %.3f in %d passes; %s", work->spec.kind,
		   (long long) work->nrows,
		   work->done.finished ? "finished" : "given up",
		   (double) (gv_now_ns() - work->begun_ns) / 1e9,
		   (double) work->spent_ns[GV_MSG_PUT] / 1e9,
		   (double) work->spent_ns[GV_MSG_RUN] / 1e9, work->done.passes,
		   devices);
}

/* Serve a set until its connection ends. */
void
gv_setwork_serve(GvConnection *connection)
{
	Work		work = {.connection = connection};

	connection->work = &work;
	gv_thread_serve(connection, answer);
	log_work(&work);
	drop(&work);
}
