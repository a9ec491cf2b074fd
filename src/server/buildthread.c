/*
 * buildthread.c
 *		A builder's thread: it has an index trained and its rows encoded, one
 *		message at a time.
 *
 * Its client sends on meanwhile, so the next rows wait in the socket.  What
 * the engine takes for it comes out of the budgets of mirrors.  A build has
 * such a thread for its owner and for each connection that joined it; while
 * one has rows encoded by a device, the others have theirs by another one
 * (buildparts.c), or receive and send.
 */
#include "server/gv_server.h"

#include <string.h>

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
		gv_build_break(building->build);
	gv_chunks_conclude(building->connection, status, NULL);
}

/* Create the engine's builder and answer. */
static void
create(Building *building, const float *mean)
{
	GvBuild    *build = building->build;
	GvStatus	status = gv_build_make(build, mean);
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
	building->build = gv_builds_begin(spec);
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
	building->build = gv_builds_join(request->id);
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
seconds_spent(const GvBuild *build, GvMessageType type)
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
		   seconds_spent(build, GV_MSG_ROWS), times->lists, times->passes,
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
	gv_build_trained_now(build);
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
		building->part = gv_build_lose(build, building->part);
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
						   gv_calib_mirror_begin(&build->calib_mirror,
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

	gv_calib_mirror_chunks(&building->build->calib_mirror, connection);
}

/* See GV_MSG_TRY. */
void
gv_build_try(GvConnection *connection)
{
	Building   *building = connection->work;

	gv_calib_mirror_search(&building->build->calib_mirror, connection);
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
	building->part = gv_build_take(build, type == GV_MSG_ENCODE);
	begun_ns = gv_now_ns();
	if (building->part == NULL)
		gv_chunks_conclude(connection, GV_NO_MEMORY, NULL);
	else
	{
		if (type == GV_MSG_ENCODE || type == GV_MSG_SAMPLED)
			gv_build_extend(build, building->part);
		gv_message_answer(connection);
	}
	gv_build_give(build, building->part, type, gv_now_ns() - begun_ns,
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
		gv_build_log(building.build);
	gv_builds_leave(building.build, building.joined);
}
