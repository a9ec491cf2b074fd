/*
 * setjob.c
 *		Work on sets of rows (engine/gv_set.h) for sessions: how a set is
 *		divided among devices, and the messages of its client.
 *
 * gv_setjob_open puts the operations in this file between gv_set.c and the
 * engine.  A set of ours has one or several tasks.  A task is a set of the
 * engine's on a device of its own, and its memory is charged to the device's
 * budget.  The outputs of all tasks together are those of one device, bit for
 * bit.
 *
 *		exact search	Each task has a range of the queries, and all rows and
 *						lists.  A query's result does not depend on others.
 *		k-means			Each task has a range of the rows, and all centroids
 *						(gv_set.h, "Parts").  Each run ends the pass here.
 *		selections		There is one task.
 *
 * All tasks take part in a call at the same time, one in the set's thread and
 * the others in helper threads.  When one task has failed, the others are told
 * to stop.
 */
#include "server/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gv_fault.h"

/* A task of a set, on one device. */
typedef struct Task
{
	GvSetSpec	spec;			/* with the task's device, queries and slices */
	int64_t		first;			/* number of the first query or, of k-means,
								 * of the first row that is the task's */
	int64_t		n;				/* number of queries or rows that are the
								 * task's */
	void	   *state;			/* the engine's set; NULL: not created yet */
	GvSetDone	done;			/* set by a run */
} Task;

/* A set, as the operations in this file keep it. */
typedef struct DividedSet
{
	GvSetSpec	spec;			/* of all tasks together */
	const GvSetOps *engine;		/* the engine's operations for this kind */
	int64_t		kept_bytes;		/* bytes charged for kept rows if the set
								 * began without queries, or 0 */
	GvJob		job;
	int			ntasks;
	Task		tasks[GV_MAX_DEVICES];	/* [ntasks] */

	/* the host's part of k-means by several tasks */
	double	   *sums;			/* [ntasks][sums_k][dims]; owns the memory of
								 * all these arrays, and is NULL for other
								 * work */
	int32_t		sums_k;			/* clusters whose means are computed at once */
	GvSetCluster *clusters;		/* [ntasks][k] of a pass; `farthest` is the
								 * task that has the row */
	GvSetReseed *reseeds;		/* [k] */
	int32_t    *order;			/* [k] see gv_set_end_pass */
	float	   *centroids;		/* [k][dims] */

	/* for the log */
	GvSetDone	done;			/* after the last run that succeeded */
	uint64_t	begun_ns;
	uint64_t	put_ns;			/* time spent on inputs */
	uint64_t	run_ns;			/* time spent on runs */
	int64_t		nrows;			/* rows that came */
} DividedSet;

/* A call in which all tasks take part. */
typedef struct Call
{
	DividedSet *set;
	GvStatus	(*act) (const struct Call *call, Task *task,
						const GvStop *stop);	/* does one task's part */
	const GvStop *client;		/* ends the call when the client is gone */
	bool		fails;			/* a task has failed; atomic */
	GvStatus	statuses[GV_MAX_DEVICES];	/* [ntasks] of the tasks' parts */

	GvSetInput	input;			/* of put */
	GvSetOutput output;			/* of get */
	char	   *items;			/* [n] of put or get, from number `first` on;
								 * first and n are also the clusters whose
								 * means are computed */
	int64_t		first;
	int64_t		n;
} Call;

/* The state of a client's thread. */
typedef struct Work
{
	GvSetSpec	spec;
	GvSet	   *set;			/* NULL: the client has none */
	GvSetDone	done;			/* after the last run */
} Work;

/* The engine to which the operations in this file pass calls on. */
static const GvSetBackend *engine;

#define SUMS		(1 << 23)	/* largest number of sums that a task gives to
								 * the host at once */
#define LEAST_ROWS	(1 << 19)	/* of a task of k-means: if there are fewer,
								 * the host takes as long as the device */

/* Tasks and devices */

/* Returns whether a set is k-means, whose rows are divided among tasks. */
static bool
is_kmeans(const GvSetSpec *spec)
{
	return spec->kind == GV_SET_KMEANS;
}

/*
 * Returns how many tasks a set should have (server/README, "Set work by
 * gpuvecd").
 */
static int
count_tasks(const GvSetSpec *spec)
{
	double		queries = (double) spec->nqueries;
	double		products = queries * (double) spec->nrows * spec->dims;
	double		most = (double) gv_ndevices();
	int			n = GV_SET_SLICES;

	if (is_kmeans(spec))
	{
		int64_t		least = gv_server.min_products_per_device > 0 &&
		spec->k < LEAST_ROWS ? LEAST_ROWS : spec->k;

		products = (double) spec->nrows * spec->k * spec->dims *
			(spec->iterations + 1);
		while (n > 1 && (n > most || spec->nrows / n < least ||
						 products < n * gv_server.min_products_per_device))
			n /= 2;
		return n;
	}
	if (spec->kind != GV_SET_EXACT)
		return 1;

	/*
	 * In a set with lists, each task would assign all rows to lists, so two
	 * tasks take as long as one.  Tests divide sets with lists nevertheless,
	 * with min_products_per_device = 0.
	 */
	if (spec->nlists > 0 && gv_server.min_products_per_device > 0)
		return 1;
	if (most > queries)
		most = queries;
	if (products < most * gv_server.min_products_per_device)
		most = products / gv_server.min_products_per_device;
	return most < 1 ? 1 : (int) most;
}

/* Drops all tasks, and gives their memory back. */
static void
drop_tasks(DividedSet *set)
{
	int			i;

	for (i = 0; i < set->ntasks; i++)
		if (set->tasks[i].state != NULL)
			set->engine->drop(set->tasks[i].state);
	gv_job_end(&set->job, GV_ALL_DEVICES);
	free(set->sums);
	set->sums = NULL;
	set->ntasks = 0;
	set->job.tried = 0;
}

/* Allocates the host's arrays for k-means by n tasks. */
static GvStatus
make_sums(DividedSet *set, int n)
{
	size_t		k = (size_t) set->spec.k;
	size_t		dims = (size_t) set->spec.dims;

	/* tests, which divide all sets, compute the means of few clusters at once */
	size_t		most = (gv_server.min_products_per_device > 0 ? SUMS : 16) / dims;
	size_t		some = most < 1 ? 1 : most < k ? most : k;
	size_t		nsums = (size_t) n * some * dims;

	set->sums = malloc(sizeof(double) * nsums + k *
					   (sizeof(GvSetCluster) * (size_t) n +
						sizeof(GvSetReseed) + sizeof(int32_t) +
						sizeof(float) * dims));
	if (set->sums == NULL)
		return GV_NO_MEMORY;
	set->sums_k = (int32_t) some;
	set->clusters = (GvSetCluster *) (set->sums + nsums);
	set->reseeds = (GvSetReseed *) (set->clusters + (size_t) n * k);
	set->order = (int32_t *) (set->reseeds + k);
	set->centroids = (float *) (set->order + k);
	return GV_OK;
}

/* Creates the engine's set of a task, for gv_job_create. */
static GvStatus
create_task(void *arg)
{
	Task	   *task = arg;
	GvStatus	status;

	return gv_fault_is_due(&gv_set_calls, &status) ? status :
		engine->kinds[task->spec.kind]->create(&task->spec, &task->state);
}

/* Makes n tasks.  If one of the tasks cannot be made, makes none. */
static GvStatus
make_tasks(DividedSet *set, int n)
{
	bool		kmeans = is_kmeans(&set->spec);
	int64_t		items = kmeans ? set->spec.nrows : set->spec.nqueries;
	GvStatus	status = kmeans && n > 1 ? make_sums(set, n) : GV_OK;

	while (set->ntasks < n && status == GV_OK)
	{
		int			i = set->ntasks++;
		Task	   *task = &set->tasks[i];

		*task = (Task)
		{
			.spec = set->spec,
				.first = items * i / n,
				.n = items * (i + 1) / n - items * i / n
		};
		if (!kmeans)
			task->spec.nqueries = task->n;
		else if (n > 1)
		{
			task->spec.nslices = (uint8_t) (GV_SET_SLICES / n);
			task->spec.first_slice = (uint8_t) (i * task->spec.nslices);
		}
		if (task->spec.own)
			task->spec.first += task->first;
		/* mirrors are evicted for the first task only */
		status = gv_job_create(&set->job, set->engine->size(&task->spec),
							   i == 0 ? -1 : set->tasks[0].spec.device,
							   &task->spec.device, create_task, task);
	}
	if (status != GV_OK)
		drop_tasks(set);
	return status;
}

/* Calls */

/*
 * A GvStop: returns whether the call is in vain, because the client is gone or
 * another task has failed.
 */
static bool
is_in_vain(void *arg)
{
	const Call *call = arg;

	return __atomic_load_n(&call->fails, __ATOMIC_RELAXED) ||
		(call->client != NULL && call->client->requested(call->client->arg));
}

/* Does the i-th task's part of a call in which several tasks take part. */
static void
do_part(void *arg, int32_t i)
{
	Call	   *call = arg;
	GvStop		stop = {is_in_vain, call};
	GvStatus	status;

	if (!gv_fault_is_due(&gv_set_calls, &status))
		status = call->act(call, &call->set->tasks[i], &stop);
	call->statuses[i] = status;
	if (status == GV_OK)
		return;
	__atomic_store_n(&call->fails, true, __ATOMIC_RELAXED);
	/* let the process end soon, because the other tasks may never end */
	if (status == GV_FAILED)
		(void) gv_status_refusal(GV_FAILED);
}

/*
 * Does all tasks' parts of a call, in parallel or one after another.  Returns
 * the greatest status of the parts, which is GV_OK if all parts succeeded.
 * GV_CANCELED is less than any failure, because other tasks are stopped after
 * a failure.  GV_FAILED and GV_REJECTED, which have to be logged, are greater
 * than GV_NO_MEMORY.
 */
static GvStatus
do_all(Call *call, bool parallel)
{
	DividedSet *set = call->set;
	GvStatus	status = GV_OK;
	int			i;

	if (set->ntasks == 1)
		return call->act(call, &set->tasks[0], call->client);
	gv_parallel_for(parallel ? set->ntasks - 1 : 0, do_part, call,
					set->ntasks);
	for (i = 0; i < set->ntasks; i++)
		if (call->statuses[i] > status)
			status = call->statuses[i];
	return status;
}

/* The operations of sets */

static int64_t
divided_size(const GvSetSpec *spec)
{
	return engine->kinds[spec->kind]->size(spec);
}

/*
 * Creates a set.  If memory is short, uses fewer devices than count_tasks()
 * returns.
 */
static GvStatus
divided_create(const GvSetSpec *spec, void **state)
{
	DividedSet *made = calloc(1, sizeof(*made));
	int			n = count_tasks(spec);
	GvStatus	status;

	if (made == NULL)
		return GV_NO_MEMORY;
	made->spec = *spec;
	made->engine = engine->kinds[spec->kind];
	made->begun_ns = gv_now_ns();
	do
		status = make_tasks(made, n);
	while (status == GV_NO_MEMORY &&
		   (n = is_kmeans(spec) ? n / 2 : n - 1) >= 1);
	if (status != GV_OK)
	{
		free(made);
		return status;
	}
	if (spec->kind == GV_SET_EXACT && spec->nqueries == 0)
		made->kept_bytes = made->job.charged[made->tasks[0].spec.device];
	*state = made;
	return GV_OK;
}

/*
 * Drops a set.  Logs which devices did the work, and how long inputs and runs
 * took.
 */
static void
divided_drop(void *state)
{
	DividedSet *set = state;
	char		devices[80];
	size_t		used = 0;
	int			i;

	for (i = 0; i < set->ntasks && used < sizeof(devices); i++)
		used += (size_t) snprintf(devices + used, sizeof(devices) - used,
								  "%s%d", i > 0 ? ", " :
								  set->ntasks > 1 ? "devices " : "device ",
								  gv_server.numbers
								  [set->tasks[i].spec.device]);
	gv_log("DEBUG", "job of kind %d: %lld rows, %s after %.3f s, of which %.3f s receiving, %.3f s in %d passes; %s",
		   set->spec.kind,
		   (long long) set->nrows,
		   set->done.finished ? "finished" : "given up",
		   (double) (gv_now_ns() - set->begun_ns) / 1e9,
		   (double) set->put_ns / 1e9, (double) set->run_ns / 1e9,
		   set->done.passes, devices);
	drop_tasks(set);
	free(set);
}

/*
 * Cuts a range of n items, which begins with *first, to the task's own items,
 * which are own_n items from own_first on.  Returns false if no items are
 * left.
 */
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

/* Returns whether the items of an input are divided among tasks. */
static bool
is_divided(const GvSetSpec *spec, GvSetInput input)
{
	return is_kmeans(spec) ? input == GV_SET_ROWS :
		input == GV_SET_QUERIES || input == GV_SET_SELF;
}

/* Puts the items that belong to a task. */
static GvStatus
put_part(const Call *call, Task *task, const GvStop *stop)
{
	int64_t		first = call->first;
	int64_t		n = call->n;
	bool		divided = is_divided(&task->spec, call->input);
	int64_t		own_first = divided ? task->first : 0;

	if (divided && !cut(&first, &n, own_first, task->n))
		return GV_OK;
	return call->set->engine->put(task->state, call->input, call->items +
								  (first - call->first) *
								  gv_set_input_bytes(&task->spec,
													 call->input),
								  first - own_first, n, stop);
}

/*
 * Passes an input to the tasks.  Items that are divided mostly go to one task,
 * so it does not pay to start threads for them.  Other items go to all tasks.
 */
static GvStatus
divided_put(void *state, GvSetInput input, const void *items, int64_t first,
			int64_t n, const GvStop *stop)
{
	DividedSet *set = state;
	Call		call = {.set = set, .act = put_part, .client = stop,
	.input = input, .items = (char *) items, .first = first, .n = n};
	uint64_t	begun_ns = gv_now_ns();
	GvStatus	status = do_all(&call, !is_divided(&set->spec, input));

	if (input == GV_SET_SEEDS && set->sums != NULL)
		memcpy(set->centroids + first * set->spec.dims, items,
			   sizeof(float) * (size_t) (n * set->spec.dims));
	set->put_ns += gv_now_ns() - begun_ns;
	if (input == GV_SET_ROWS)
		set->nrows += n;
	return status;
}

/* Runs a task and, of a part of k-means, gets its clusters. */
static GvStatus
run_part(const Call *call, Task *task, const GvStop *stop)
{
	DividedSet *set = call->set;
	int32_t		k = set->spec.k;
	int64_t		i = task - set->tasks;
	GvSetCluster *clusters;
	GvStatus	status = set->engine->run(task->state, &task->done, stop);

	if (status != GV_OK || set->sums == NULL)
		return status;
	clusters = set->clusters + i * k;
	status = set->engine->get(task->state, GV_SET_CLUSTERS, 0, k, clusters);
	for (int32_t c = 0; c < k; c++)
		clusters[c].farthest = (uint32_t) i;
	return status;
}

/* Gets a task's sums of the call's clusters. */
static GvStatus
sums_part(const Call *call, Task *task, const GvStop *stop)
{
	const DividedSet *set = call->set;

	return set->engine->get(task->state, GV_SET_SUMS, call->first, call->n,
							set->sums + (task - set->tasks) *
							((size_t) set->sums_k * set->spec.dims));
}

/* Computes the means of a task's share of the call's clusters. */
static GvStatus
means_part(const Call *call, Task *task, const GvStop *stop)
{
	const DividedSet *set = call->set;
	size_t		dims = (size_t) set->spec.dims;
	int64_t		i = call->n * (task - set->tasks) / set->ntasks;
	int64_t		end = call->n * (task - set->tasks + 1) / set->ntasks;

	for (; i < end; i++)
		if (set->clusters[call->first + i].size > 0)
			gv_set_mean(set->sums + i * dims, set->ntasks,
						set->sums_k * dims, set->clusters[call->first + i].size,
						set->spec.dims,
						set->centroids + (call->first + i) * dims);
	return GV_OK;
}

/*
 * Ends a pass of k-means by several tasks: computes the new centroids, unless
 * it was the last pass, and gives them to all tasks.
 */
static GvStatus
end_pass(Call *call)
{
	DividedSet *set = call->set;
	int64_t		k = set->spec.k;
	int32_t		nreseeds = gv_set_end_pass(&set->spec, set->clusters,
										   set->ntasks, set->reseeds,
										   set->order, &set->done);
	GvStatus	status = GV_OK;

	set->done.again = set->tasks[0].done.again;
	if (set->done.finished)
		return GV_OK;
	for (; call->first < k && status == GV_OK; call->first += call->n)
	{
		call->n = k - call->first < set->sums_k ? k - call->first :
			set->sums_k;
		call->act = sums_part;
		status = do_all(call, true);
		call->act = means_part;
		if (status == GV_OK)
			status = do_all(call, true);
	}
	for (int32_t i = 0; i < nreseeds && status == GV_OK; i++)
	{
		GvSetReseed reseed = set->reseeds[i];
		Task	   *task = &set->tasks[set->clusters[reseed.from].farthest];

		status = set->engine->get(task->state, GV_SET_FARTHEST, reseed.from, 1,
								  set->centroids +
								  (size_t) reseed.to * set->spec.dims);
	}
	call->act = put_part;
	call->input = GV_SET_SEEDS;
	call->items = (char *) set->centroids;
	call->first = 0;
	call->n = k;
	return status == GV_OK ? do_all(call, true) : status;
}

static GvStatus
divided_run(void *state, GvSetDone *done, const GvStop *stop)
{
	DividedSet *set = state;
	Call		call = {.set = set, .act = run_part, .client = stop};
	uint64_t	begun_ns = gv_now_ns();
	GvStatus	status = do_all(&call, true);

	if (status == GV_OK && set->sums != NULL)
		status = end_pass(&call);
	else if (status == GV_OK)
		set->done = set->tasks[0].done;
	set->run_ns += gv_now_ns() - begun_ns;
	if (status == GV_OK)
		*done = set->done;
	return status;
}

/*
 * Gets the items that belong to a task.  If exact search has several tasks, an
 * output has k items for each query.
 */
static GvStatus
get_part(const Call *call, Task *task, const GvStop *stop)
{
	int64_t		k = call->set->spec.k;
	int64_t		first = call->first;
	int64_t		n = call->n;

	if (call->set->ntasks > 1 &&
		!cut(&first, &n, task->first * k, task->spec.nqueries * k))
		return GV_OK;
	return call->set->engine->get(task->state, call->output,
								  first - task->first * k, n, call->items +
								  (first - call->first) *
								  gv_set_output_bytes(&task->spec,
													  call->output));
}

static GvStatus
divided_get(void *state, GvSetOutput output, int64_t first, int64_t n,
			void *items)
{
	DividedSet *set = state;
	Call		call = {.set = set, .act = get_part, .output = output,
	.items = items, .first = first, .n = n};

	if (set->sums == NULL)
		return do_all(&call, false);
	gv_set_copy(set->order + first, n, set->spec.dims, set->clusters,
				set->centroids, output, items);
	return GV_OK;
}

/*
 * Asks a set that began without queries, and so has one task.  Reserves memory
 * for the question in addition to the memory for the rows that the set keeps.
 */
static GvStatus
divided_ask(void *state, const GvSetSpec *spec)
{
	DividedSet *set = state;
	Task	   *task = &set->tasks[0];
	GvSetSpec	asked = *spec;
	int64_t		bytes = set->engine->size(spec);
	GvStatus	status;

	if (set->kept_bytes == 0)
		return GV_INVALID;
	/* the size of a set whose queries are rows includes the kept rows */
	if (!spec->own)
		bytes += set->kept_bytes;

	/*
	 * do not give memory back, because the engine may keep the memory that it
	 * had
	 */
	if (!gv_job_grow(&set->job, task->spec.device, bytes))
		return GV_NO_MEMORY;
	asked.device = task->spec.device;
	status = set->engine->ask(task->state, &asked);
	if (status == GV_OK)
	{
		set->spec = task->spec = asked;
		task->n = asked.nqueries;
		memset(&set->done, 0, sizeof(set->done));
	}
	return status;
}

static const GvSetOps divided = {
	.size = divided_size,
	.create = divided_create,
	.drop = divided_drop,
	.put = divided_put,
	.run = divided_run,
	.get = divided_get,
	.ask = divided_ask,
};

static const GvSetBackend divided_sets = {
	.name = "divided",
	.kinds = {&divided, &divided, &divided, &divided},
};

GvStatus
gv_setjob_open(const GvSetBackend *opened)
{
	engine = opened;
	return gv_sets_open(&divided_sets);
}

/* Messages */

static GvStatus
begin_set(GvConnection *connection, const char **wrong)
{
	Work	   *work = connection->job;

	gv_set_drop(work->set);
	*work = (Work)
	{
		.spec = *(const GvSetSpec *) gv_payload(connection)
	};
	*wrong = "a set out of range";
	/* the client does not choose the device */
	return work->spec.device != 0 ? GV_INVALID :
		gv_set_create(&work->spec, &work->set);
}

static GvStatus
ask_set(GvConnection *connection, const char **wrong)
{
	Work	   *work = connection->job;
	const GvSetSpec *spec = gv_payload(connection);
	GvStatus	status = gv_set_ask(work->set, spec);

	if (status == GV_OK)
	{
		work->spec = *spec;
		memset(&work->done, 0, sizeof(work->done));
	}
	*wrong = "nothing to ask, or not yet";
	return status;
}

/*
 * Answers GV_MSG_PUT.  gv_set_put checks whether the input may come at this
 * time, and whether its items are valid.
 */
static GvStatus
put_items(GvConnection *connection, const char **wrong)
{
	Work	   *work = connection->job;
	const GvPutRequest *request = gv_payload(connection);
	GvPutRequest told = *request;	/* the client may change *request */
	int64_t		bytes = (int64_t) gv_message(connection)->length -
	(int64_t) sizeof(*request);
	int64_t		item = 0;

	*wrong = "items malformed, out of turn, too many, or not finite";
	if (told.input >= 0 && told.input < GV_NSET_INPUTS)
		item = gv_set_input_bytes(&work->spec, (GvSetInput) told.input);
	if (item == 0 || told.unused != 0 || told.n < 1 ||
		told.n > bytes / item || told.n * item != bytes)
		return GV_INVALID;
	return gv_set_put(work->set, (GvSetInput) told.input, request + 1,
					  told.n, &connection->stop);
}

static GvStatus
run_set(GvConnection *connection, const char **wrong)
{
	Work	   *work = connection->job;
	GvStatus	status = gv_set_run(work->set, &work->done, &connection->stop);
	GvSetDone  *reply;

	*wrong = "not all is there, or it is finished";
	if (status != GV_OK)
		return status;
	if (work->done.finished)
		gv_count(sets, 1);
	reply = gv_reply(connection, sizeof(*reply));
	if (reply != NULL)
		*reply = work->done;
	return GV_OK;
}

/*
 * Answers GV_MSG_GET.  The items go to `offset` in the client's shared memory
 * or, if `offset` is -1, behind the answer's header.
 */
static GvStatus
get_items(GvConnection *connection, const char **wrong)
{
	Work	   *work = connection->job;
	const GvGetRequest *request = gv_payload(connection);
	GvSetOutput output = (GvSetOutput) request->output;
	int64_t		item = 0;
	int64_t		length = 0;
	void	   *items;

	*wrong = "an output, or a place in memory, out of range";
	if (work->done.finished && request->output >= 0 &&
		request->output < GV_NSET_OUTPUTS)
	{
		item = gv_set_output_bytes(&work->spec, output);
		length = gv_set_output_length(&work->spec, output, work->done.found);
	}
	if (item == 0 || request->unused != 0 || request->first < 0 ||
		request->n < 1 || request->n > GV_MAX_MESSAGE / item ||
		request->first > length - request->n)
		return GV_INVALID;
	if (request->offset == -1)
	{
		items = gv_reply(connection, (size_t) (request->n * item));
		if (items == NULL)
			return GV_OK;
	}
	else
	{
		items = gv_shared_at(connection, request->offset, request->n * item);
		if (items == NULL)
			return GV_INVALID;
		gv_count(sent, request->n * item);
	}
	return gv_set_get(work->set, output, request->first, request->n, items);
}

/* Answers the message at hand, or refuses it if it may not come now. */
static GvStatus
answer(GvConnection *connection, const char **wrong)
{
	const GvMessageKind *kind = gv_message_kind(gv_message(connection));
	const Work *work = connection->job;

	if (kind->phase != GV_DURING_JOB || work->set != NULL)
		return gv_message_act(connection, wrong);
	*wrong = "no set has begun";
	return GV_INVALID;
}

/* Serves a set until its connection ends. */
void
gv_setjob_serve(GvConnection *connection)
{
	Work		work = {.set = NULL};

	connection->job = &work;
	gv_thread_serve(connection, answer);
	gv_set_drop(work.set);
}

const GvMessageKind gv_set_messages[] = {
	{GV_MSG_SET, GV_BY(SET), GV_ONE(GvSetSpec), .answer = begin_set},
	{GV_MSG_PUT, GV_BY(SET), GV_BEYOND(GvPutRequest), .answer = put_items,
	.phase = GV_DURING_JOB, .in_memory = true},
	{GV_MSG_RUN, GV_BY(SET), 0, 0, .answer = run_set, .phase = GV_DURING_JOB},
	{GV_MSG_GET, GV_BY(SET), GV_ONE(GvGetRequest), .answer = get_items,
	.phase = GV_DURING_JOB},
	{GV_MSG_ASK, GV_BY(SET), GV_ONE(GvSetSpec), .answer = ask_set,
	.phase = GV_DURING_JOB},
	{0}
};
