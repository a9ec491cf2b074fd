/*
 * buildjob.c
 *		The builders of a build: one that trains, and copies of it that encode
 *		on other devices.
 *
 * An engine's builder does one thing at a time.  So a thread takes a builder
 * for each message, and releases it afterwards.  Batches of rows go to any
 * builder that is free, a copy before the first one, which alone has the
 * sample and does all the rest.
 *
 * A copy is made once threads have waited for builders as long as it takes to
 * make one: a build of few rows never waits so long, and of many it does not
 * matter when it begins.  Nothing fails for the sake of a copy.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "server/server.h"

static GvStatus calib_mirror_begin(GvCalibMirror *calib,
									  const GvBuilderSpec *spec,
									  const GvTrained *trained, GvBuilder *builder,
									  int64_t postings);
static void calib_mirror_chunks(GvCalibMirror *calib,
								   GvConnection *connection);
static void calib_mirror_search(GvCalibMirror *calib,
								   GvConnection *connection);
static void calib_mirror_end(GvCalibMirror *calib);

/* Make the engine's first builder, on a device that has the memory. */
static GvStatus
build_make(GvBuild *build, const float *mean)
{
	GvBuildPart *part = &build->parts[0];
	GvTriedDevices tried = 0;
	GvStatus	status = GV_NO_MEMORY;
	int64_t		bytes = gv_builder_size(&build->spec);

	while (status == GV_NO_MEMORY &&
		   gv_mirrors_place_work(bytes, &build->spec.device, &tried))
	{
		do
			status = gv_builder_create(&build->spec, mean, &part->builder);
		while (status == GV_NO_MEMORY &&
			   gv_mirrors_evict(build->spec.device));
		if (status == GV_OK)
			break;
		gv_mirrors_end_work(1u << build->spec.device);
		gv_mirrors_unreserve(build->spec.device, bytes);
	}
	if (status != GV_OK)
		return status;
	part->device = build->spec.device;
	part->charged = bytes;
	build->tried = 1u << part->device;
	build->nparts = 1;
	return GV_OK;
}

/* The thread that has the first builder has trained it. */
static void
build_trained_now(GvBuild *build)
{
	pthread_mutex_lock(&build->lock);
	build->is_trained = true;
	pthread_mutex_unlock(&build->lock);
}

/* The first builder is out of memory: nobody can use the build any more. */
static void
build_break(GvBuild *build)
{
	pthread_mutex_lock(&build->lock);
	build->is_broken = true;
	pthread_cond_broadcast(&build->given);
	pthread_mutex_unlock(&build->lock);
}

/* Locked: takes the first builder, or any, if it is free. */
static GvBuildPart *
find_free(GvBuild *build, bool any)
{
	int			i;

	for (i = any ? build->nparts - 1 : 0; i >= 0; i--)
		if (!build->parts[i].taken)
			return &build->parts[i];
	return NULL;
}

/* Takes the first builder, or any one; NULL: the build is broken. */
static GvBuildPart *
build_take(GvBuild *build, bool any)
{
	uint64_t	begun_ns = gv_now_ns();
	uint64_t	now_ns;
	GvBuildPart *part = NULL;

	pthread_mutex_lock(&build->lock);
	while (!build->is_broken && (part = find_free(build, any)) == NULL)
		pthread_cond_wait(&build->given, &build->lock);
	if (part != NULL)
		part->taken = true;
	now_ns = gv_now_ns();
	/* time spent making another builder is no waiting for one */
	if (begun_ns < build->extended_ns)
		begun_ns = build->extended_ns;
	if (build->is_trained)
		build->waited_ns += now_ns - begun_ns;
	pthread_mutex_unlock(&build->lock);
	return part;
}

/*
 * Returns whether another builder is worth while now; if so, its caller makes
 * one.
 */
static bool
wants_more(GvBuild *build)
{
	bool		wanted;

	pthread_mutex_lock(&build->lock);
	wanted = build->is_trained && build->nparts < gv_ndevices() &&
		build->waited_ns >= (uint64_t) gv_server.worth_ns;
	if (wanted)
		build->waited_ns = 0;
	pthread_mutex_unlock(&build->lock);
	return wanted;
}

/* Make a copy of the first builder; false: there is no memory for one. */
static bool
add_part(GvBuild *build)
{
	GvBuilderSpec spec = gv_builder_copy_spec(&build->spec,
											  build->spec.device);
	GvBuildPart part = {.charged = gv_builder_size(&spec)};
	double		begun = gv_seconds();
	GvStatus	status;

	if (!gv_mirrors_place_more(part.charged, build->spec.device, &part.device,
							   &build->tried))
		return false;
	spec.device = part.device;
	status = gv_builder_copy(build->parts[0].builder, &spec, &part.builder);
	if (status != GV_OK)
	{
		gv_mirrors_end_work(1u << part.device);
		gv_mirrors_unreserve(part.device, part.charged);
		if (status == GV_FAILED)
			(void) gv_status_refusal(status);
		return false;
	}
	gv_log("DEBUG", "device %d takes part in a build after %.1f ms",
		   gv_server.numbers[part.device], 1000 * (gv_seconds() - begun));
	pthread_mutex_lock(&build->lock);
	build->parts[build->nparts++] = part;
	build->waited_ns = 0;
	build->extended_ns = gv_now_ns();
	pthread_cond_broadcast(&build->given);
	pthread_mutex_unlock(&build->lock);
	return true;
}

/* Takes a builder to encode rows; after the first one copies may be made. */
static void
build_extend(GvBuild *build, const GvBuildPart *part)
{
	while (part == &build->parts[0] && wants_more(build))
		if (!add_part(build))
			break;
}

/*
 * A copy turns out to have no memory to encode with: gives it up, and takes
 * another builder; see build_take.
 */
static GvBuildPart *
build_lose(GvBuild *build, GvBuildPart *part)
{
	gv_builder_drop(part->builder);
	part->builder = NULL;		/* and is never given back */
	gv_mirrors_end_work(1u << part->device);
	gv_mirrors_unreserve(part->device, part->charged);
	return build_take(build, true);
}

/* Releases a builder, if any, after a message of that type. */
static void
build_give(GvBuild *build, GvBuildPart *part, uint16_t type,
			  uint64_t spent_ns, int64_t nencoded)
{
	pthread_mutex_lock(&build->lock);
	build->spent_ns[type] += spent_ns;
	if (part != NULL)
	{
		part->nencoded += nencoded;
		part->taken = false;
	}
	pthread_cond_broadcast(&build->given);
	pthread_mutex_unlock(&build->lock);
}

static double
seconds_spent(const GvBuild *build, GvMessageType type)
{
	return (double) build->spent_ns[type] / 1e9;
}

/*
 * Locked: ", 5000 on device 0" of each builder, where there are several;
 * returns how many in all.
 */
static int64_t
name_parts(const GvBuild *build, char *line, size_t size)
{
	size_t		used = 0;
	int64_t		n = 0;
	int			i;

	line[0] = '\0';

	for (i = 0; i < build->nparts; i++)
	{
		const GvBuildPart *part = &build->parts[i];

		n += part->nencoded;
		if (used < size && build->nparts > 1)
			used += (size_t) snprintf(line + used, size - used,
									  ", %lld on device %d",
									  (long long) part->nencoded,
									  gv_server.numbers[part->device]);
	}
	return n;
}

/* Logs the time of the phases after training, of all connections so far. */
static void
build_log(GvBuild *build)
{
	char		parts[GV_MAX_DEVICES * 40];
	int64_t		n;

	pthread_mutex_lock(&build->lock);
	if (build->is_trained)
	{
		n = name_parts(build, parts, sizeof(parts));
		gv_log("DEBUG", "encoded %lld rows in %.2f s%s; trial: lists %.2f s, "
			   "searches %.2f", (long long) n,
			   seconds_spent(build, GV_MSG_ENCODE) +
			   seconds_spent(build, GV_MSG_SAMPLED), parts,
			   seconds_spent(build, GV_MSG_CALIB_MIRROR) +
			   seconds_spent(build, GV_MSG_CHUNKS),
			   seconds_spent(build, GV_MSG_TRY));
	}
	pthread_mutex_unlock(&build->lock);
}

/* Nobody uses it any more: give back what it has. */
static void
build_end(GvBuild *build)
{
	GvTriedDevices devices = 0;
	int			i;

	for (i = 0; i < build->nparts; i++)
		if (build->parts[i].builder != NULL)
			devices |= 1u << build->parts[i].device;
	gv_mirrors_end_work(devices);
	for (i = 0; i < build->nparts; i++)
	{
		GvBuildPart *part = &build->parts[i];

		if (part->builder == NULL)
			continue;
		gv_builder_drop(part->builder);
		gv_mirrors_unreserve(part->device, part->charged);
	}
}

/* ----
 * Builds that are under way, by their ids: each has an owner, and others
 * may join it to have rows encoded.
 *
 * A build lives until all of them are gone, so none of them has to know what
 * becomes of the others.  But it cannot be joined any more once its owner is
 * gone: that does not hang on when a helper's end is noticed.
 */

/* The builds, and under the same mutex their users. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static GvBuild *builds;

/* A build of this spec with one user, its owner; NULL: there is no memory. */
static GvBuild *
builds_begin(const GvBuilderSpec *spec)
{
	GvBuild    *build = calloc(1, sizeof(GvBuild));

	if (build == NULL)
		return NULL;
	if (getrandom(&build->id, sizeof(build->id), 0) !=
		(ssize_t) sizeof(build->id))
	{
		free(build);
		return NULL;
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
	return build;
}

/* Use a build; NULL: there is none of that id. */
static GvBuild *
builds_join(uint64_t id)
{
	GvBuild    *build;

	pthread_mutex_lock(&mutex);
	for (build = builds; build != NULL && build->id != id;)
		build = build->next;
	if (build != NULL)
		build->users++;
	pthread_mutex_unlock(&mutex);
	return build;
}

/* Take the owner's build off the list, where others find it. */
static void
forget(GvBuild *build)
{
	GvBuild   **link = &builds;

	while (*link != build)
		link = &(*link)->next;
	*link = build->next;
}

/* Use it no more; the last one gives back what it has. */
static void
builds_leave(GvBuild *build, bool joined)
{
	bool		last;

	pthread_mutex_lock(&mutex);
	if (!joined)
		forget(build);
	last = --build->users == 0;
	pthread_mutex_unlock(&mutex);
	if (!last)
		return;
	calib_mirror_end(&build->calib_mirror);
	build_end(build);
	pthread_cond_destroy(&build->given);
	pthread_mutex_destroy(&build->lock);
	free(build);
}

/* ----
 * A builder's thread: it has an index trained and its rows encoded, one
 * message at a time.
 *
 * Its client sends on meanwhile, so the next rows wait in the socket.  What
 * the engine takes for it comes out of the budgets of mirrors.  A build has
 * such a thread for its owner and for each connection that joined it; while
 * one has rows encoded by a device, the others have theirs by another one
 * (buildjob.c), or receive and send.
 */

/* The state of a builder's thread. */
typedef struct Building
{
	GvConnection *connection;
	GvBuild    *build;			/* NULL: not begun */
	bool		joined;			/* another client began it */
	GvBuildPart *part;			/* taken for the message at hand, or NULL */
	int64_t		nencoded;		/* rows of that message */
} Building;

static void
break_rules(Building *building, const char *wrong)
{
	gv_chunks_conclude(building->connection, GV_OK, wrong);
}

/* Answer nothing but what became of it. */
static void
conclude(Building *building, GvStatus status)
{
	if (gv_is_survivable(status))
		build_break(building->build);
	gv_chunks_conclude(building->connection, status, NULL);
}

/* Create the engine's builder and answer. */
static void
create(Building *building, const float *mean)
{
	GvBuild    *build = building->build;
	GvStatus	status = build_make(build, mean);
	GvBuildReply *reply;

	if (status != GV_OK)
	{
		gv_chunks_conclude(building->connection, status, NULL);
		return;
	}
	reply = gv_reply(building->connection, sizeof(*reply));
	if (reply != NULL)
		reply->id = build->id;
}

/* See GV_MSG_BUILD. */
void
gv_build_begin(GvConnection *connection)
{
	Building   *building = connection->work;
	const GvBuilderSpec *spec = gv_payload(building->connection);
	size_t		length = gv_message(building->connection)->length;

	if (spec->device != 0 || spec->unused != 0 ||
		gv_builder_size(spec) == 0 ||
		length != sizeof(*spec) + 4 * (size_t) spec->dims)
	{
		break_rules(building, "a build out of range");
		return;
	}
	building->build = builds_begin(spec);
	if (building->build != NULL)
		create(building, (const float *) (spec + 1));
	else
		gv_chunks_conclude(building->connection, GV_NO_MEMORY, NULL);
}

/* See GV_MSG_JOIN. */
void
gv_build_join(GvConnection *connection)
{
	Building   *building = connection->work;
	const GvJoinRequest *request = gv_payload(building->connection);

	building->joined = true;
	building->build = builds_join(request->id);
	gv_chunks_conclude(building->connection, GV_OK,
					   building->build == NULL ? "no such build" : NULL);
}

/* Do n rows fill the rest of the message?  If not, it has been refused. */
static const float *
rows_of(Building *building, bool trained)
{
	const GvRowsRequest *request = gv_payload(building->connection);
	const GvBuilderSpec *spec = &building->build->spec;
	int64_t		bytes = (int64_t) gv_message(building->connection)->length -
	(int64_t) sizeof(*request);
	const char *wrong = NULL;

	if (building->build->is_trained != trained)
		wrong = "rows out of order";
	else if (request->n < 1 ||
			 bytes != (int64_t) request->n * spec->dims * 4 ||
			 (trained && (request->n > spec->batch_rows ||
						  request->kind != 0)))
		wrong = "malformed rows";
	if (wrong == NULL)
		return (const float *) (request + 1);
	break_rules(building, wrong);
	return NULL;
}

/* See GV_MSG_ROWS. */
void
gv_build_rows(GvConnection *connection)
{
	Building   *building = connection->work;
	const GvRowsRequest *request = gv_payload(building->connection);
	const float *rows = rows_of(building, false);
	GvBuild    *build = building->build;
	GvRowsReply *reply;
	GvStatus	status;

	if (rows == NULL)
		return;
	status = gv_builder_put_rows(building->part->builder, (GvRows) request->kind, rows,
								 request->n);
	if (status != GV_OK)
	{
		conclude(building, status);
		return;
	}
	reply = gv_reply(building->connection, sizeof(*reply));
	if (reply != NULL)
		reply->first = build->nrows[request->kind];
	build->nrows[request->kind] += request->n;
}

static double
thread_seconds_spent(const GvBuild *build, GvMessageType type)
{
	return (double) build->spent_ns[type] / 1e9;
}

/* For who asks where the time of a build goes. */
static void
log_training(const GvBuild *build, uint64_t came_ns)
{
	const GvTrainTimes *times = &build->trained.times;

	gv_log("DEBUG", "trained %d lists on %lld rows of %d dimensions: "
		   "rows came in %.2f s, %.2f of them spent on taking them in; "
		   "lists %.2f s in %d passes, of it splits %.2f; parents %.2f; "
		   "codebooks %.2f", build->trained.nlists,
		   (long long) build->nrows[GV_SAMPLE], build->spec.dims,
		   (double) (came_ns - build->begun_ns) / 1e9,
		   thread_seconds_spent(build, GV_MSG_ROWS), times->lists, times->passes,
		   times->splits, times->parents, times->codebooks);
}

/* See GV_MSG_TRAIN. */
void
gv_build_train(GvConnection *connection)
{
	Building   *building = connection->work;
	GvBuild    *build = building->build;
	GvStop		stop = gv_connection_stop(building->connection);
	uint64_t	came_ns = gv_now_ns();
	GvTrainReply *reply;
	GvStatus	status;

	if (build->is_trained)
	{
		break_rules(building, "trained again");
		return;
	}
	status = gv_builder_train(building->part->builder, &build->trained, &stop);
	if (status != GV_OK)
	{
		conclude(building, status);
		return;
	}
	build_trained_now(build);
	log_training(build, came_ns);
	reply = gv_reply(building->connection, sizeof(*reply));
	if (reply == NULL)
		return;
	reply->nlists = build->trained.nlists;
	reply->nparents = build->trained.nparents;
}

/* See GV_MSG_TRAINED. */
void
gv_build_trained(GvConnection *connection)
{
	Building   *building = connection->work;
	const GvTrainedRequest *request = gv_payload(building->connection);
	GvBuild    *build = building->build;
	GvArray		array = (GvArray) request->array;
	void	   *values;
	GvStatus	status;

	if (!build->is_trained || request->array < 0 ||
		request->array >= GV_NARRAYS || request->unused != 0 ||
		request->first < 0 || request->count < 1 ||
		request->count > GV_MAX_MESSAGE / 4 ||
		request->first > gv_builder_array_length(&build->spec,
												 &build->trained, array) -
		request->count)
	{
		break_rules(building, "values out of range");
		return;
	}
	values = gv_reply(building->connection, 4 * (size_t) request->count);
	if (values == NULL)
		return;
	status = gv_builder_get_array(building->part->builder, array, request->first,
								  request->count, values);
	if (status != GV_OK)
		conclude(building, status);
}

/*
 * Encodes with the builder that we have, or with another one if a copy has no
 * memory for it.
 */
static GvStatus
encode(Building *building, const float *rows, int64_t first, int32_t n,
	   GvEncoded *encoded)
{
	GvBuild    *build = building->build;
	GvStop		stop = gv_connection_stop(building->connection);
	GvStatus	status = GV_NO_MEMORY;

	while (building->part != NULL)
	{
		GvBuilder  *builder = building->part->builder;

		status = rows != NULL ?
			gv_builder_encode(builder, rows, n, encoded, &stop) :
			gv_builder_encode_sample(builder, first, n, encoded, &stop);
		if (!gv_is_survivable(status) || building->part == &build->parts[0])
			break;
		building->part = build_lose(build, building->part);
	}
	return status;
}

/*
 * Encode rows [n] that came, or with NULL those of the sample from number
 * `first` on.  The engine fills an answer allocated for the most neighbors
 * possible; then the arrays behind them move up.
 */
static void
give_encoded(Building *building, const float *rows, int64_t first, int32_t n)
{
	const GvBuilderSpec *spec = &building->build->spec;
	GvEncodeReply *reply;
	GvEncoded	encoded;
	GvEncoded	moved;
	const uint8_t *behind;		/* neighbors: records, if any, and codes */
	int64_t		most;
	size_t		bytes;
	GvStatus	status;

	most = gv_builder_most_neighbors(spec, n);
	bytes = sizeof(*reply) + gv_encoded_bytes(spec, n, most);
	reply = gv_reply(building->connection, bytes);
	if (reply == NULL)
		return;
	gv_encoded_open(spec, reply + 1, n, most, &encoded);
	status = encode(building, rows, first, n, &encoded);
	if (status != GV_OK)
	{
		conclude(building, status);
		return;
	}
	building->nencoded = n;
	reply->n = n;
	reply->nneighbors = encoded.nneighbors;
	gv_encoded_open(spec, reply + 1, n, encoded.nneighbors, &moved);
	behind = encoded.records != NULL ? encoded.records : encoded.codes;
	memmove(moved.records != NULL ? moved.records : moved.codes, behind,
			bytes - (size_t) (behind - (uint8_t *) reply));
	gv_reply_cut(building->connection, sizeof(*reply) +
				 gv_encoded_bytes(spec, n, encoded.nneighbors));
}

/* See GV_MSG_ENCODE. */
void
gv_build_encoded(GvConnection *connection)
{
	Building   *building = connection->work;
	const GvRowsRequest *request = gv_payload(building->connection);
	const float *rows = rows_of(building, true);

	if (rows != NULL)
		give_encoded(building, rows, 0, request->n);
}

/* See GV_MSG_SAMPLED. */
void
gv_build_sampled(GvConnection *connection)
{
	Building   *building = connection->work;
	const GvSampledRequest *request = gv_payload(building->connection);
	const GvBuild *build = building->build;

	if (!build->is_trained || request->first < 0 || request->n < 1 ||
		request->n > build->spec.batch_rows || request->unused != 0)
		break_rules(building, "rows out of range");
	else
		give_encoded(building, NULL, request->first, request->n);
}

/* See GV_MSG_CALIB_MIRROR. */
void
gv_build_calib_mirror(GvConnection *connection)
{
	Building   *building = connection->work;
	const GvCalibMirrorRequest *request = gv_payload(building->connection);
	GvBuild    *build = building->build;

	if (!build->is_trained || build->calib_mirror.mirror != NULL)
		break_rules(building, "nothing to try, or again");
	else
		gv_chunks_conclude(building->connection,
						   calib_mirror_begin(&build->calib_mirror,
												 &build->spec,
												 &build->trained,
												 building->part->builder,
												 request->postings), NULL);
}

/* See GV_MSG_CHUNKS. */
void
gv_build_chunks(GvConnection *connection)
{
	Building   *building = connection->work;

	calib_mirror_chunks(&building->build->calib_mirror, connection);
}

/* See GV_MSG_TRY. */
void
gv_build_try(GvConnection *connection)
{
	Building   *building = connection->work;

	calib_mirror_search(&building->build->calib_mirror, connection);
}

/* Is it the turn of such a message?  If not, it has been refused. */
static bool
check_order(Building *building, GvWhen when)
{
	const char *wrong = NULL;

	if (when == GV_ANY_TIME)
		return true;
	if ((when == GV_BEFORE_WORK) != (building->build == NULL))
		wrong = when == GV_BEFORE_WORK ? "a second build" :
			"no build has begun";
	else if (building->joined && when == GV_OWN_WORK)
		wrong = "this is for the build's owner";
	if (wrong != NULL)
		break_rules(building, wrong);
	return wrong == NULL;
}

/*
 * Answers a request about the build with a builder of it; notes how long that
 * takes, waiting not included.
 */
static void
answer_with_part(Building *building)
{
	GvConnection *connection = building->connection;
	GvBuild    *build = building->build;
	uint16_t	type = gv_message(connection)->type;
	uint64_t	begun_ns;

	building->nencoded = 0;
	building->part = build_take(build, type == GV_MSG_ENCODE);
	begun_ns = gv_now_ns();
	if (building->part == NULL)
		gv_chunks_conclude(connection, GV_NO_MEMORY, NULL);
	else
	{
		if (type == GV_MSG_ENCODE || type == GV_MSG_SAMPLED)
			build_extend(build, building->part);
		gv_message_answer(connection);
	}
	build_give(build, building->part, type, gv_now_ns() - begun_ns,
				  building->nencoded);
}

static void
answer(GvConnection *connection)
{
	Building   *building = connection->work;
	GvWhen		when = gv_message_kind(gv_message(connection))->when;

	if (!check_order(building, when))
		return;
	if (when == GV_DURING_WORK || when == GV_OWN_WORK)
		answer_with_part(building);
	else
		gv_message_answer(connection);
}

/* Serve a builder until its connection ends. */
void
gv_build_serve(GvConnection *connection)
{
	Building	building = {.connection = connection};

	connection->work = &building;
	gv_thread_serve(connection, answer);
	if (building.build == NULL)
		return;
	if (!building.joined)
		build_log(building.build);
	builds_leave(building.build, building.joined);
}

/* ----
 * Calibration mirrors.  An index that is being built is searched to
 * calibrate it: in a mirror that no session sees, of the trained model,
 * filled with lists as their pages are written.
 */

#define ARRAY_VALUES	(1 << 20)	/* brought over at once */

/* Bring an array from the builder to the mirror. */
static GvStatus
copy_array(GvCalibMirror *calib, GvBuilder *builder, GvArray array,
		   void *values)
{
	int64_t		length = gv_array_length(&calib->spec, array);
	GvStatus	status = GV_OK;
	int64_t		first;

	for (first = 0; first < length && status == GV_OK; first += ARRAY_VALUES)
	{
		int64_t		n = length - first < ARRAY_VALUES ? length - first :
		ARRAY_VALUES;

		status = gv_builder_get_array(builder, array, first, n, values);
		if (status == GV_OK)
			status = gv_mirror_put_array(calib->mirror, array, first, n,
										 values);
	}
	return status;
}

static GvStatus
copy_arrays(GvCalibMirror *calib, GvBuilder *builder)
{
	void	   *values = malloc(4 * (size_t) ARRAY_VALUES);
	GvStatus	status = values != NULL ? GV_OK : GV_NO_MEMORY;
	int			array;

	for (array = 0; array < GV_NARRAYS && status == GV_OK; array++)
		status = copy_array(calib, builder, (GvArray) array, values);
	free(values);
	return status;
}

/* The mirror with all that was trained, and means to search it. */
static GvStatus
make(GvCalibMirror *calib, GvBuilder *builder)
{
	GvStatus	status;

	do
		status = gv_mirror_create(&calib->spec, &calib->mirror);
	while (status == GV_NO_MEMORY && gv_mirrors_evict(calib->spec.device));
	if (status != GV_OK)
	{
		calib->mirror = NULL;
		return status;
	}
	status = copy_arrays(calib, builder);
	if (status == GV_OK)
		status = gv_mirrors_searcher(calib->spec.device, &calib->searcher);
	return status;
}

/*
 * Begin, where there is none yet; GV_INVALID when there is.  A failure leaves
 * nothing behind.
 */
static GvStatus
calib_mirror_begin(GvCalibMirror *calib, const GvBuilderSpec *spec,
					  const GvTrained *trained, GvBuilder *builder, int64_t postings)
{
	int64_t		bytes;
	GvStatus	status;

	if (calib->mirror != NULL)
		return GV_INVALID;
	memset(&calib->spec, 0, sizeof(calib->spec));
	calib->spec.device = spec->device;
	calib->spec.metric = spec->metric;
	calib->spec.dims = spec->dims;
	calib->spec.m = spec->m;
	calib->spec.nlists = trained->nlists;
	calib->spec.nparents = trained->nparents;
	calib->spec.postings = postings;
	bytes = gv_mirror_size(&calib->spec);
	if (bytes == 0)
		return GV_INVALID;
	if (!gv_mirrors_reserve(spec->device, bytes))
		return GV_NO_MEMORY;
	calib->charged = bytes;
	status = make(calib, builder);
	if (status != GV_OK)
		calib_mirror_end(calib);
	return status;
}

/* See GV_MSG_CHUNKS. */
static void
calib_mirror_chunks(GvCalibMirror *calib, GvConnection *connection)
{
	const GvListsRequest *request = gv_payload(connection);
	const char *next = (const char *) (request + 1);
	const char *wrong = NULL;
	GvStatus	status = GV_OK;
	int32_t		i;

	if (calib->searcher == NULL || !gv_chunks_check(connection, &calib->spec))
		wrong = "malformed pieces, or no trial";
	for (i = 0; wrong == NULL && status == GV_OK && i < request->nchunks; i++)
	{
		const GvChunk *chunk = (const GvChunk *) next;
		GvListChunk open = gv_chunks_open(&calib->spec, chunk);

		if (chunk->first != 0 || chunk->flags != 0)
			wrong = "a piece that is no whole list";
		else if (chunk->state.nitems > calib->spec.postings - calib->npostings)
			wrong = "more copies than there was room made for";
		else
			status = gv_mirror_put_list(calib->mirror, &open);
		calib->npostings += chunk->state.nitems;
		next += gv_chunks_bytes(&calib->spec, chunk);
	}
	gv_chunks_conclude(connection, status, wrong);
}

/* May n queries be searched for so?  They fill the message. */
static bool
check_tries(const GvCalibMirror *calib, const GvConnection *connection)
{
	const GvTryRequest *request = gv_payload(connection);
	int64_t		bytes = (int64_t) gv_message(connection)->length -
	(int64_t) sizeof(*request);

	return calib->searcher != NULL &&
		request->n >= 1 && request->n <= GV_MAX_TRIES &&
		request->probes >= 1 && request->probes <= GV_MAX_PROBES &&
		request->compare >= 1 &&
		request->capacity >= 1 && request->capacity <= GV_MAX_HITS &&
		(int64_t) request->n * request->capacity <= GV_MAX_TRIED_HITS &&
		bytes == (int64_t) request->n * calib->spec.dims * 4;
}

/* Search for all queries. */
static GvStatus
search(GvCalibMirror *calib, const GvTryRequest *request)
{
	const float *queries = (const float *) (request + 1);
	int32_t		capacity = request->capacity;
	int32_t		i;

	/* no more come back than there are */
	if (capacity > calib->npostings)
		capacity = calib->npostings > 0 ? (int32_t) calib->npostings : 1;

	for (i = 0; i < request->n; i++)
	{
		GvSearch   *one = &calib->searches[i];

		memset(one, 0, sizeof(*one));
		one->query = queries + (size_t) i * (size_t) calib->spec.dims;
		one->probes = request->probes < calib->spec.nlists ?
			request->probes : calib->spec.nlists;
		one->compare = request->compare;
		one->capacity = capacity;
	}
	return gv_mirror_search(calib->searcher, calib->mirror, calib->searches,
							request->n);
}

/* Make the answer of what was found. */
static void
give_hits(const GvCalibMirror *calib, GvConnection *connection, int32_t n)
{
	int64_t		total = 0;
	int32_t    *nhits;
	uint16_t   *rowids;
	int32_t		i;
	int32_t		j;

	for (i = 0; i < n; i++)
		total += calib->searches[i].nhits;
	nhits = gv_reply(connection, 4 * (size_t) n + 6 * (size_t) total);
	if (nhits == NULL)
		return;
	rowids = (uint16_t *) (nhits + n);
	for (i = 0; i < n; i++)
	{
		const GvSearch *one = &calib->searches[i];

		nhits[i] = one->nhits;
		for (j = 0; j < one->nhits; j++, rowids += 3)
			memcpy(rowids, one->hits[j].rowid, 6);
	}
}

/* See GV_MSG_TRY. */
static void
calib_mirror_search(GvCalibMirror *calib, GvConnection *connection)
{
	const GvTryRequest *request = gv_payload(connection);
	GvStatus	status;

	if (!check_tries(calib, connection))
	{
		gv_chunks_conclude(connection, GV_OK, "a search out of range");
		return;
	}
	status = search(calib, request);
	if (status == GV_OK)
		give_hits(calib, connection, request->n);
	else
		gv_chunks_conclude(connection, status, NULL);
}

/* Frees the calibration mirror, if there is one. */
static void
calib_mirror_end(GvCalibMirror *calib)
{
	if (calib->searcher != NULL)
		gv_mirrors_searcher_drop(calib->spec.device, calib->searcher);
	calib->searcher = NULL;
	gv_mirror_drop(calib->mirror);
	calib->mirror = NULL;
	gv_mirrors_unreserve(calib->spec.device, calib->charged);
	calib->charged = 0;
}
