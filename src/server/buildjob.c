/*
 * buildjob.c
 *		Builds: indexes that are trained, encoded and calibrated for sessions.
 *
 * A build has a thread for its owner, and one for each connection that has
 * joined the build to have more rows encoded (server/README, "Builds by
 * gpuvecd").  A build exists until all its connections have ended, so no
 * connection has to know about the others.
 *
 * A builder of the engine does one thing at a time, so a thread takes a
 * builder for each message and releases it afterwards.  The first builder
 * trains.  Copies of it encode on other devices.  Rows to encode go to any
 * free builder, preferably to a copy, because only the first builder has the
 * sample and does all other work.  If a copy fails, the build goes on.
 */
#include "server/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define ARRAY_VALUES	(1 << 20)	/* copied from the builder at once */

/*
 * A builder of a build, on one device.  The build's first builder trains, and
 * the others are copies of it.
 */
typedef struct BuildPart
{
	GvBuilder  *builder;		/* NULL if there is none or it was dropped */
	int32_t		device;
	int64_t		nencoded;		/* rows that it has encoded */
	bool		taken;			/* a thread has it, or it was dropped */
} BuildPart;

/*
 * A build of an index.  `lock` is held for a few instructions, and protects
 * the fields from `parts` to is_broken.  A builder is used only by the thread
 * that has taken it.  The thread that has taken the first builder may use
 * `trained` and `nrows`.  `mutex` protects `next` and `users`, and the
 * registry's mutex protects `job`.
 * `id` and `spec` do not change once the first builder has been created;
 * spec.device is that builder's device.
 */
typedef struct Build
{
	uint64_t	id;
	GvBuilderSpec spec;
	uint64_t	begun_ns;		/* when the build was begun */
	pthread_mutex_t lock;
	pthread_cond_t given;		/* signaled when a builder is released or the
								 * build breaks */
	BuildPart	parts[GV_MAX_DEVICES];
	int			nparts;
	uint64_t	waited_ns;		/* time that threads waited for builders since
								 * we last tried to add a builder */
	uint64_t	extended_ns;	/* when the last builder was added */
	uint64_t	spent_ns[GV_MSG_OK];	/* time spent on messages of each
										 * type, without waiting for builders */
	bool		is_trained;
	bool		is_broken;		/* the first builder cannot be used any more,
								 * so the build can only be dropped */

	GvTrained	trained;
	int64_t		nrows[2];		/* rows that have come of each GvRows */
	GvJob		job;

	struct Build *next;
	int			users;			/* connections */
} Build;

/* The state of a connection's thread. */
typedef struct Building
{
	Build	   *build;			/* NULL: not begun */
	bool		joined;			/* another client began the build */
	BuildPart  *part;			/* taken for the message at hand, or NULL */
	int64_t		nencoded;		/* rows encoded for that message */
} Building;

/* The builds under way. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Build *builds;

/* The builders of a build */

/* The arguments of create_builder. */
typedef struct NewBuilder
{
	GvBuilderSpec *spec;		/* with the builder's device */
	const float *mean;			/* of the rows; NULL: make a copy of `first` */
	GvBuilder  *first;
	GvBuilder  *builder;		/* the builder that was created */
} NewBuilder;

/* Creates a builder, for gv_job_create. */
static GvStatus
create_builder(void *arg)
{
	NewBuilder *new = arg;

	return new->mean != NULL ?
		gv_builder_create(new->spec, new->mean, &new->builder) :
		gv_builder_copy(new->first, new->spec, &new->builder);
}

/*
 * Returns a free builder: the first one or, if `any` is set, preferably a
 * copy.  Returns NULL if none is free.  The caller holds the build's lock.
 */
static BuildPart *
find_free(Build *build, bool any)
{
	int			i;

	for (i = any ? build->nparts - 1 : 0; i >= 0; i--)
		if (!build->parts[i].taken)
			return &build->parts[i];
	return NULL;
}

/*
 * Waits for the first builder or, if `any` is set, for any builder, and takes
 * it.  Returns NULL if the build is broken.
 */
static BuildPart *
build_acquire(Build *build, bool any)
{
	uint64_t	begun_ns = gv_now_ns();
	uint64_t	now_ns;
	BuildPart  *part = NULL;

	pthread_mutex_lock(&build->lock);
	while (!build->is_broken && (part = find_free(build, any)) == NULL)
		pthread_cond_wait(&build->given, &build->lock);
	if (part != NULL)
		part->taken = true;
	now_ns = gv_now_ns();
	/* the time spent on making another builder does not count as waiting */
	if (begun_ns < build->extended_ns)
		begun_ns = build->extended_ns;
	if (build->is_trained)
		build->waited_ns += now_ns - begun_ns;
	pthread_mutex_unlock(&build->lock);
	return part;
}

/*
 * Adds a copy of the first builder, which the caller has taken, if threads
 * have waited long enough for builders.  Returns whether a copy was added.
 */
static bool
build_extend(Build *build)
{
	GvBuilderSpec spec = gv_builder_copy_spec(&build->spec,
											  build->spec.device);
	NewBuilder	new = {.spec = &spec, .first = build->parts[0].builder};
	BuildPart	part = {0};
	double		begun = gv_seconds();
	bool		pays;
	GvStatus	status;

	pthread_mutex_lock(&build->lock);
	pays = build->is_trained && build->nparts < gv_ndevices() &&
		build->waited_ns >= (uint64_t) gv_server.copy_builder_after_ns;
	if (pays)
		build->waited_ns = 0;
	pthread_mutex_unlock(&build->lock);
	if (!pays)
		return false;
	status = gv_job_create(&build->job, gv_builder_size(&spec),
						   build->spec.device, &spec.device, create_builder,
						   &new);
	if (status == GV_FAILED)
		(void) gv_status_refusal(status);
	if (status != GV_OK)
		return false;
	part.builder = new.builder;
	part.device = spec.device;
	gv_log("DEBUG", "device %d joined a build after %.1f ms",
		   gv_server.numbers[part.device], 1000 * (gv_seconds() - begun));
	pthread_mutex_lock(&build->lock);
	build->parts[build->nparts++] = part;
	build->waited_ns = 0;
	build->extended_ns = gv_now_ns();
	pthread_cond_broadcast(&build->given);
	pthread_mutex_unlock(&build->lock);
	return true;
}

static double
seconds_spent(const Build *build, GvMessageType type)
{
	return (double) build->spent_ns[type] / 1e9;
}

/*
 * Logs the times of the phases after training, summed over all connections,
 * and how many rows each device has encoded, if there are several.
 */
static void
build_log(Build *build)
{
	char		devices[GV_MAX_DEVICES * 40] = "";
	size_t		used = 0;
	int64_t		n = 0;
	int			i;

	pthread_mutex_lock(&build->lock);
	for (i = 0; i < build->nparts; i++)
	{
		const BuildPart *part = &build->parts[i];

		n += part->nencoded;
		if (used < sizeof(devices) && build->nparts > 1)
			used += (size_t) snprintf(devices + used, sizeof(devices) - used,
									  ", %lld on device %d",
									  (long long) part->nencoded,
									  gv_server.numbers[part->device]);
	}
	if (build->is_trained)
		gv_log("DEBUG", "encoded %lld rows in %.2f s%s; calibration: lists %.2f s, searches %.2f s",
			   (long long) n,
			   seconds_spent(build, GV_MSG_ENCODE_ROWS) +
			   seconds_spent(build, GV_MSG_ENCODE_SAMPLE), devices,
			   seconds_spent(build, GV_MSG_CALIB_MIRROR) +
			   seconds_spent(build, GV_MSG_LISTS),
			   seconds_spent(build, GV_MSG_SEARCH));
	pthread_mutex_unlock(&build->lock);
}

/* Copies the builder's trained model to a mirror that the caller uses. */
static GvStatus
copy_model(GvBuilder *builder, GvMirrorEntry *entry)
{
	void	   *values = malloc(4 * (size_t) ARRAY_VALUES);
	GvStatus	status = values != NULL ? GV_OK : GV_NO_MEMORY;
	int			array;

	for (array = 0; array < GV_NARRAYS; array++)
	{
		int64_t		length = gv_array_length(&entry->spec, (GvArray) array);
		int64_t		first;

		for (first = 0; first < length && status == GV_OK;
			 first += ARRAY_VALUES)
		{
			int64_t		n = length - first < ARRAY_VALUES ? length - first :
			ARRAY_VALUES;

			status = gv_builder_get_array(builder, (GvArray) array, first, n,
										  values);
			if (status != GV_OK)
				break;
			pthread_rwlock_wrlock(&entry->lock);
			status = gv_mirror_put_array(entry->mirror, (GvArray) array,
										 first, n, values);
			pthread_rwlock_unlock(&entry->lock);
		}
	}
	free(values);
	return status;
}

/* Messages */

/*
 * Answers GV_MSG_BUILD: begins a build, whose owner is the client, and creates
 * the first builder, on a device that has the memory.
 */
static GvStatus
begin_build(GvConnection *connection, const char **wrong)
{
	Building   *building = connection->job;
	const GvBuilderSpec *spec = gv_payload(connection);
	size_t		length = gv_message(connection)->length;
	NewBuilder	new = {.mean = (const float *) (spec + 1)};
	Build	   *build;
	GvBuildReply *reply;
	GvStatus	status;

	*wrong = "a build out of range";
	if (spec->device != 0 || spec->unused != 0 ||
		gv_builder_size(spec) == 0 ||
		length != sizeof(*spec) + 4 * (size_t) spec->dims)
		return GV_INVALID;
	build = calloc(1, sizeof(*build));
	if (build == NULL || getrandom(&build->id, sizeof(build->id), 0) !=
		(ssize_t) sizeof(build->id))
	{
		free(build);
		return GV_NO_MEMORY;
	}
	pthread_mutex_init(&build->lock, NULL);
	pthread_cond_init(&build->given, NULL);
	build->spec = *spec;
	build->begun_ns = gv_now_ns();
	build->users = 1;
	pthread_mutex_lock(&mutex);
	build->next = builds;
	builds = build;
	pthread_mutex_unlock(&mutex);
	/* from here on gv_buildjob_serve drops the build */
	building->build = build;

	new.spec = &build->spec;
	status = gv_job_create(&build->job, gv_builder_size(spec), -1,
						   &build->spec.device, create_builder, &new);
	if (status != GV_OK)
		return status;
	build->parts[0].builder = new.builder;
	build->parts[0].device = build->spec.device;
	build->nparts = 1;
	/* other devices may have memory for a copy later */
	build->job.tried = build->job.devices;
	reply = gv_reply(connection, sizeof(*reply));
	if (reply != NULL)
		reply->id = connection->owner = build->id;
	return GV_OK;
}

static GvStatus
join_build(GvConnection *connection, const char **wrong)
{
	Building   *building = connection->job;
	const GvJoinRequest *request = gv_payload(connection);
	Build	   *build;

	pthread_mutex_lock(&mutex);
	for (build = builds; build != NULL && build->id != request->id;)
		build = build->next;
	if (build != NULL)
		build->users++;
	pthread_mutex_unlock(&mutex);
	building->joined = true;
	building->build = build;
	connection->owner = request->id;
	*wrong = "no such build";
	return build != NULL ? GV_OK : GV_INVALID;
}

/*
 * Returns whether the message's rows, which are rows to encode if `trained` is
 * set and otherwise rows to train on, may come now and fill the message.
 */
static bool
check_rows(const GvConnection *connection, bool trained)
{
	const Build *build = ((const Building *) connection->job)->build;
	const GvRowsRequest *request = gv_payload(connection);
	const GvBuilderSpec *spec = &build->spec;
	int64_t		bytes = (int64_t) gv_message(connection)->length -
	(int64_t) sizeof(*request);

	return build->is_trained == trained && request->n >= 1 &&
		bytes == (int64_t) request->n * spec->dims * 4 &&
		(!trained || (request->n <= spec->batch_rows && request->kind == 0));
}

static GvStatus
put_rows(GvConnection *connection, const char **wrong)
{
	Building   *building = connection->job;
	const GvRowsRequest *request = gv_payload(connection);
	Build	   *build = building->build;
	GvRowsReply *reply;
	GvStatus	status;

	*wrong = "malformed rows, or rows out of order";
	if (!check_rows(connection, false))
		return GV_INVALID;
	status = gv_builder_put_rows(building->part->builder,
								 (GvRows) request->kind,
								 (const float *) (request + 1), request->n);
	if (status != GV_OK)
		return status;
	reply = gv_reply(connection, sizeof(*reply));
	if (reply != NULL)
		reply->first = build->nrows[request->kind];
	build->nrows[request->kind] += request->n;
	return GV_OK;
}

static GvStatus
train(GvConnection *connection, const char **wrong)
{
	Building   *building = connection->job;
	Build	   *build = building->build;
	const GvTrainTimes *times = &build->trained.times;
	uint64_t	came_ns = gv_now_ns();	/* when all rows were there */
	GvTrainReply *reply;
	GvStatus	status;

	*wrong = "trained again, or without rows";
	if (build->is_trained)
		return GV_INVALID;
	status = gv_builder_train(building->part->builder, &build->trained,
							  &connection->stop);
	if (status != GV_OK)
		return status;
	pthread_mutex_lock(&build->lock);
	build->is_trained = true;
	pthread_mutex_unlock(&build->lock);
	gv_log("DEBUG", "trained %d lists on %lld rows of %d dimensions: rows received in %.2f s, of which %.2f s to store them; lists %.2f s in %d passes, of which splits %.2f s; parents %.2f s; codebooks %.2f s",
		   build->trained.nlists,
		   (long long) build->nrows[GV_SAMPLE], build->spec.dims,
		   (double) (came_ns - build->begun_ns) / 1e9,
		   seconds_spent(build, GV_MSG_TRAIN_ROWS), times->lists,
		   times->passes,
		   times->splits, times->parents, times->codebooks);
	reply = gv_reply(connection, sizeof(*reply));
	if (reply == NULL)
		return GV_OK;
	reply->nlists = build->trained.nlists;
	reply->nparents = build->trained.nparents;
	return GV_OK;
}

static GvStatus
get_model(GvConnection *connection, const char **wrong)
{
	Building   *building = connection->job;
	const GvGetModelRequest *request = gv_payload(connection);
	Build	   *build = building->build;
	GvArray		array = (GvArray) request->array;
	void	   *values;

	*wrong = "values out of range";
	if (!build->is_trained || request->array < 0 ||
		request->array >= GV_NARRAYS || request->unused != 0 ||
		request->first < 0 || request->count < 1 ||
		request->count > GV_MAX_MESSAGE / 4 ||
		request->first > gv_builder_array_length(&build->spec,
												 &build->trained, array) -
		request->count)
		return GV_INVALID;
	values = gv_reply(connection, 4 * (size_t) request->count);
	return values == NULL ? GV_OK :
		gv_builder_get_array(building->part->builder, array, request->first,
							 request->count, values);
}

/*
 * Encodes rows [n] or, if rows is NULL, n rows of the sample from number
 * `first` on.  Uses the builder that the thread has taken.  If the builder is
 * a copy that cannot encode, for lack of memory or because the device rejects
 * a call, drops the copy, and waits for another builder.
 */
static GvStatus
encode(GvConnection *connection, const float *rows, int64_t first, int32_t n,
	   GvEncoded *encoded)
{
	Building   *building = connection->job;
	Build	   *build = building->build;
	GvStatus	status = GV_NO_MEMORY;

	while (building->part != NULL)
	{
		BuildPart  *part = building->part;

		status = rows != NULL ?
			gv_builder_encode(part->builder, rows, n, encoded,
							  &connection->stop) :
			gv_builder_encode_sample(part->builder, first, n, encoded,
									 &connection->stop);
		if (!gv_is_survivable(status) || part == &build->parts[0])
			break;
		gv_builder_drop(part->builder);
		part->builder = NULL;	/* it stays taken, so no thread finds it */
		gv_job_end(&build->job, 1u << part->device);
		building->part = build_acquire(build, true);
	}
	return status;
}

/*
 * Encodes rows like encode(), and answers with the results.  The answer is
 * allocated for the maximum number of neighbors.  After encoding, the arrays
 * behind the neighbors are moved up.
 */
static GvStatus
give_encoded(GvConnection *connection, const float *rows, int64_t first,
			 int32_t n)
{
	Building   *building = connection->job;
	const GvBuilderSpec *spec = &building->build->spec;
	GvEncodeReply *reply;
	GvEncoded	encoded;
	GvEncoded	moved;
	const uint8_t *behind;		/* records, if any, and codes */
	int64_t		most;
	size_t		bytes;
	GvStatus	status;

	most = gv_builder_most_neighbors(spec, n);
	bytes = sizeof(*reply) + gv_encoded_bytes(spec, n, most);
	reply = gv_reply(connection, bytes);
	if (reply == NULL)
		return GV_OK;
	gv_encoded_open(spec, reply + 1, n, most, &encoded);
	status = encode(connection, rows, first, n, &encoded);
	if (status != GV_OK)
		return status;
	building->nencoded = n;
	reply->n = n;
	reply->nneighbors = encoded.nneighbors;
	gv_encoded_open(spec, reply + 1, n, encoded.nneighbors, &moved);
	behind = encoded.records != NULL ? encoded.records : encoded.codes;
	memmove(moved.records != NULL ? moved.records : moved.codes, behind,
			bytes - (size_t) (behind - (uint8_t *) reply));
	gv_reply_cut(connection, sizeof(*reply) +
				 gv_encoded_bytes(spec, n, encoded.nneighbors));
	return GV_OK;
}

static GvStatus
encode_rows(GvConnection *connection, const char **wrong)
{
	const GvRowsRequest *request = gv_payload(connection);

	if (check_rows(connection, true))
		return give_encoded(connection, (const float *) (request + 1), 0,
							request->n);
	*wrong = "malformed rows, or rows out of order";
	return GV_INVALID;
}

static GvStatus
encode_sample(GvConnection *connection, const char **wrong)
{
	const Build *build = ((const Building *) connection->job)->build;
	const GvEncodeSampleRequest *request = gv_payload(connection);

	if (build->is_trained && request->first >= 0 && request->n >= 1 &&
		request->n <= build->spec.batch_rows && request->unused == 0)
		return give_encoded(connection, NULL, request->first, request->n);
	*wrong = "rows out of range";
	return GV_INVALID;
}

/*
 * Answers GV_MSG_CALIB_MIRROR: begins the build's calibration mirror in place
 * of an earlier one.  A failure leaves no mirror behind.
 */
static GvStatus
begin_calib_mirror(GvConnection *connection, const char **wrong)
{
	Building   *building = connection->job;
	const GvCalibMirrorRequest *request = gv_payload(connection);
	Build	   *build = building->build;
	GvMirrorKey key = gv_calibration_key(build->id);
	GvMirrorSpec spec = {
		.metric = build->spec.metric,
		.dims = build->spec.dims,
		.m = build->spec.m,
		.nlists = build->trained.nlists,
		.nparents = build->trained.nparents,
		.postings = request->postings
	};
	GvMirrorEntry *entry = NULL;
	GvRefusalCode refusal = GV_REFUSED_PROTOCOL;

	gv_mirrors_drop(&key);
	if (build->is_trained)
		refusal = gv_mirrors_begin(&key, &spec, false, build->id);
	if (refusal == 0)
		entry = gv_mirrors_acquire(&key, build->id, &refusal);
	if (entry != NULL)
	{
		refusal = gv_status_refusal(copy_model(building->part->builder, entry));
		gv_mirrors_release(entry, 0);
	}
	if (refusal != 0)
	{
		gv_mirrors_drop(&key);
		gv_refuse(connection, refusal, gv_refusal_name(refusal));
	}
	return GV_OK;
}

/*
 * Returns whether a message is about the build's calibration mirror, for which
 * no builder is needed.
 */
static bool
is_of_mirror(uint16_t type)
{
	return type == GV_MSG_LISTS || type == GV_MSG_SEARCH;
}

/*
 * Answers a request about the build.  Takes a builder first if the request
 * needs one.  Counts the rows, and the time that the answer takes without the
 * wait for the builder.
 *
 * If the builder has run out of memory, or the device rejected one of its
 * calls, it is the first builder, because encode() drops a copy in these cases
 * and takes another builder.  The first builder cannot be used any more, so
 * the build is broken.
 */
static GvStatus
answer_with_build(GvConnection *connection, const char **wrong)
{
	Building   *building = connection->job;
	Build	   *build = building->build;
	uint16_t	type = gv_message(connection)->type;
	bool		is_alone = is_of_mirror(type);
	GvStatus	status = GV_NO_MEMORY;
	uint64_t	begun_ns;

	building->nencoded = 0;
	building->part = is_alone ? NULL :
		build_acquire(build, type == GV_MSG_ENCODE_ROWS);
	begun_ns = gv_now_ns();
	/* copies are made by the thread that has the first builder */
	if (type == GV_MSG_ENCODE_ROWS || type == GV_MSG_ENCODE_SAMPLE)
		while (building->part == &build->parts[0] && build_extend(build))
			;
	if (building->part != NULL || is_alone)
		status = gv_message_act(connection, wrong);
	pthread_mutex_lock(&build->lock);
	build->spent_ns[type] += gv_now_ns() - begun_ns;
	if (building->part != NULL)
	{
		building->part->nencoded += building->nencoded;
		building->part->taken = false;
		build->is_broken |= gv_is_survivable(status);
	}
	pthread_cond_broadcast(&build->given);
	pthread_mutex_unlock(&build->lock);
	return status;
}

/* Answers the message at hand, or refuses it if it may not come now. */
static GvStatus
answer(GvConnection *connection, const char **wrong)
{
	const Building *building = connection->job;
	uint16_t	type = gv_message(connection)->type;
	GvJobPhase	phase = gv_message_kind(gv_message(connection))->phase;

	if (phase == GV_BEFORE_JOB && building->build != NULL)
		*wrong = "a second build";
	else if (phase == GV_ANY_TIME || phase == GV_BEFORE_JOB)
		return gv_message_act(connection, wrong);
	else if (building->build == NULL)
		*wrong = "no build has begun";
	else if (building->joined && phase == GV_JOB_OWNER)
		*wrong = "this is for the build's owner";
	/* LISTS and SEARCH begin with a key */
	else if (is_of_mirror(type) && !gv_is_calibration(gv_payload(connection)))
		*wrong = "another mirror than the build's";
	else
		return answer_with_build(connection, wrong);
	return GV_INVALID;
}

/*
 * Serves a builder until its connection ends, which then leaves its build.
 * After the owner has left, nobody can join the build, even if others are
 * connected: otherwise joining would depend on when we notice their ends.  The
 * last connection that leaves frees the build.
 */
void
gv_buildjob_serve(GvConnection *connection)
{
	Building	building = {.build = NULL};
	Build	   *build;
	Build	  **link = &builds;
	GvMirrorKey key;
	bool		last;
	int			i;

	connection->job = &building;
	gv_thread_serve(connection, answer);
	build = building.build;
	if (build == NULL)
		return;
	if (!building.joined)
		build_log(build);
	pthread_mutex_lock(&mutex);
	if (!building.joined)
	{
		while (*link != build)
			link = &(*link)->next;
		*link = build->next;
	}
	last = --build->users == 0;
	pthread_mutex_unlock(&mutex);
	if (!last)
		return;
	key = gv_calibration_key(build->id);
	gv_mirrors_drop(&key);
	for (i = 0; i < build->nparts; i++)
		gv_builder_drop(build->parts[i].builder);
	gv_job_end(&build->job, GV_ALL_DEVICES);
	pthread_cond_destroy(&build->given);
	pthread_mutex_destroy(&build->lock);
	free(build);
}

/* A builder's specification, and a mean vector. */
#define BUILD	sizeof(GvBuilderSpec) + 1, sizeof(GvBuilderSpec) + 4 * GV_MAX_DIMS

const GvMessageKind gv_build_messages[] = {
	{GV_MSG_BUILD, GV_BY(BUILDER), BUILD, .answer = begin_build,
	.phase = GV_BEFORE_JOB},
	{GV_MSG_JOIN, GV_BY(BUILDER), GV_ONE(GvJoinRequest), .answer = join_build,
	.phase = GV_BEFORE_JOB},
	{GV_MSG_TRAIN_ROWS, GV_BY(BUILDER), GV_BEYOND(GvRowsRequest),
	.answer = put_rows, .phase = GV_DURING_JOB},
	{GV_MSG_TRAIN, GV_BY(BUILDER), 0, 0, .answer = train,
	.phase = GV_JOB_OWNER},
	{GV_MSG_GET_MODEL, GV_BY(BUILDER), GV_ONE(GvGetModelRequest),
	.answer = get_model, .phase = GV_JOB_OWNER},
	{GV_MSG_ENCODE_ROWS, GV_BY(BUILDER), GV_BEYOND(GvRowsRequest),
	.answer = encode_rows, .phase = GV_DURING_JOB},
	{GV_MSG_ENCODE_SAMPLE, GV_BY(BUILDER), GV_ONE(GvEncodeSampleRequest),
	.answer = encode_sample, .phase = GV_DURING_JOB},
	{GV_MSG_CALIB_MIRROR, GV_BY(BUILDER), GV_ONE(GvCalibMirrorRequest),
	.answer = begin_calib_mirror, .phase = GV_JOB_OWNER},
	{0}
};
