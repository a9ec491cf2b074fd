/*
 * builder.c
 *		A builder's thread: it has an index trained and its rows encoded, one
 *		message at a time.
 *
 * Its client sends on meanwhile, so the next rows wait in the socket.  What
 * the engine takes for it comes out of the budget of mirrors.
 */
#include "server/gv_server.h"

#include <poll.h>
#include <string.h>

/* What a builder's thread has. */
typedef struct Building
{
	GvConnection *connection;
	GvBuilderSpec spec;
	GvBuilder  *builder;		/* NULL: not begun */
	int64_t		charged;		/* bytes of the budget */
	int64_t		nsample;		/* rows that came for it */
	uint64_t	begun_ns;		/* when the build was begun */
	int64_t		nencoded;		/* rows */
	uint64_t	spent_ns[GV_MSG_OK];	/* on messages of each type */
	bool		is_trained;
	GvTrained	trained;
	GvTrial		trial;
} Building;

/* GvStop: nobody waits for the result any more. */
static bool
is_abandoned(void *arg)
{
	const GvConnection *connection = arg;
	struct pollfd client = {.fd = connection->fd,.events = POLLRDHUP};

	return gv_server_failed() ||
		(poll(&client, 1, 0) > 0 &&
		 (client.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0);
}

static GvStop
stop_of(Building *building)
{
	GvStop		stop = {is_abandoned, building->connection};

	return stop;
}

static void
break_rules(Building *building, const char *wrong)
{
	gv_pieces_conclude(building->connection, GV_OK, wrong);
}

static GvBuilderSpec
spec_of(const GvBuildRequest *request)
{
	GvBuilderSpec spec = {
		.metric = (GvMetric) request->metric,
		.dims = request->dims,
		.m = request->m,
		.copies = request->copies,
		.refine = request->refine,
		.nlists = request->nlists,
		.nparents = request->nparents,
		.nqueries = request->nqueries,
		.depth = request->depth,
		.batch_rows = request->batch_rows,
		.iterations = request->iterations,
		.scale = request->scale,
		.max_share = request->max_share,
		.seed = request->seed,
		.sample_rows = request->sample_rows
	};

	return spec;
}

/* See GV_MSG_BUILD. */
static void
begin(Building *building)
{
	const GvBuildRequest *request = gv_payload(building->connection);
	size_t		length = gv_message(building->connection)->length;
	GvBuilderSpec spec = spec_of(request);
	int64_t		bytes = gv_builder_size(&spec);
	GvStatus	status = GV_NO_MEMORY;

	if (building->builder != NULL || bytes == 0 ||
		length != sizeof(*request) + 4 * (size_t) spec.dims)
	{
		break_rules(building, building->builder != NULL ?
					"a second build" : "a build out of range");
		return;
	}
	if (gv_mirrors_reserve(bytes))
	{
		building->charged = bytes;
		do
			status = gv_builder_create(&spec, (const float *) (request + 1),
									   &building->builder);
		while (status == GV_NO_MEMORY && gv_mirrors_evict());
	}
	building->spec = spec;
	building->begun_ns = gv_now_ns();
	gv_pieces_conclude(building->connection, status, NULL);
}

/* Do n rows fill the rest of the message?  If not, it has been refused. */
static const float *
rows_of(Building *building, bool trained)
{
	const GvRowsRequest *request = gv_payload(building->connection);
	int64_t		bytes = (int64_t) gv_message(building->connection)->length -
		(int64_t) sizeof(*request);
	const char *wrong = NULL;

	if (building->builder == NULL || building->is_trained != trained)
		wrong = "rows out of order";
	else if (request->n < 1 ||
			 bytes != (int64_t) request->n * building->spec.dims * 4 ||
			 (trained && (request->n > building->spec.batch_rows ||
						  request->kind != 0)))
		wrong = "malformed rows";
	if (wrong == NULL)
		return (const float *) (request + 1);
	break_rules(building, wrong);
	return NULL;
}

/* See GV_MSG_ROWS. */
static void
put_rows(Building *building)
{
	const GvRowsRequest *request = gv_payload(building->connection);
	const float *rows = rows_of(building, false);

	if (rows == NULL)
		return;
	gv_pieces_conclude(building->connection,
					   gv_builder_put_rows(building->builder,
										   (GvRows) request->kind, rows,
										   request->n), NULL);
	building->nsample += request->kind == GV_SAMPLE ? request->n : 0;
}

static double
seconds_spent(const Building *building, GvMessageType type)
{
	return (double) building->spent_ns[type] / 1e9;
}

/* For who asks where the time of a build goes. */
static void
log_training(const Building *building, uint64_t came_ns)
{
	const GvTrainTimes *times = &building->trained.times;

	gv_log("DEBUG", "trained %d lists on %lld rows of %d dimensions: "
		   "rows came in %.2f s, %.2f of them spent on taking them in; "
		   "lists %.2f s in %d passes, of it splits %.2f; parents %.2f; "
		   "codebooks %.2f", building->trained.nlists,
		   (long long) building->nsample, building->spec.dims,
		   (double) (came_ns - building->begun_ns) / 1e9,
		   seconds_spent(building, GV_MSG_ROWS), times->lists, times->passes,
		   times->splits, times->parents, times->codebooks);
}

/* See GV_MSG_TRAIN. */
static void
train(Building *building)
{
	GvStop		stop = stop_of(building);
	uint64_t	came_ns = gv_now_ns();
	GvTrainReply *reply;
	GvStatus	status;

	if (building->builder == NULL || building->is_trained)
	{
		break_rules(building, "nothing to train, or again");
		return;
	}
	status = gv_builder_train(building->builder, &building->trained, &stop);
	if (status != GV_OK)
	{
		gv_pieces_conclude(building->connection, status, NULL);
		return;
	}
	building->is_trained = true;
	log_training(building, came_ns);
	reply = gv_reply(building->connection, sizeof(*reply));
	if (reply == NULL)
		return;
	reply->nlists = building->trained.nlists;
	reply->nparents = building->trained.nparents;
}

/* See GV_MSG_TRAINED. */
static void
give_array(Building *building)
{
	const GvTrainedRequest *request = gv_payload(building->connection);
	GvArray		array = (GvArray) request->array;
	void	   *values;
	GvStatus	status;

	if (!building->is_trained || request->array < 0 ||
		request->array >= GV_NARRAYS || request->unused != 0 ||
		request->first < 0 || request->count < 1 ||
		request->count > GV_MAX_MESSAGE / 4 ||
		request->first > gv_builder_array_length(&building->spec,
												 &building->trained, array) -
		request->count)
	{
		break_rules(building, "values out of range");
		return;
	}
	values = gv_reply(building->connection, 4 * (size_t) request->count);
	if (values == NULL)
		return;
	status = gv_builder_get_array(building->builder, array, request->first,
								  request->count, values);
	if (status != GV_OK)
		gv_pieces_conclude(building->connection, status, NULL);
}

/*
 * Encode rows [n] that came, or with NULL those of the sample from number
 * `first` on.  The engine fills an answer that has room for all neighbours
 * there might be; then what follows them moves up.
 */
static void
give_encoded(Building *building, const float *rows, int64_t first, int32_t n)
{
	const GvBuilderSpec *spec = &building->spec;
	GvStop		stop = stop_of(building);
	GvEncodeReply *reply;
	GvEncoded	encoded;
	GvEncoded	moved;
	int64_t		most;
	size_t		bytes;
	GvStatus	status;

	most = gv_builder_most_neighbours(spec, n);
	bytes = sizeof(*reply) + gv_encoded_bytes(spec, n, most);
	reply = gv_reply(building->connection, bytes);
	if (reply == NULL)
		return;
	gv_encoded_open(spec, reply + 1, n, most, &encoded);
	status = rows != NULL ?
		gv_builder_encode(building->builder, rows, n, &encoded, &stop) :
		gv_builder_encode_sample(building->builder, first, n, &encoded,
								 &stop);
	if (status != GV_OK)
	{
		gv_pieces_conclude(building->connection, status, NULL);
		return;
	}
	building->nencoded += n;
	reply->n = n;
	reply->nneighbours = encoded.nneighbours;
	gv_encoded_open(spec, reply + 1, n, encoded.nneighbours, &moved);
	memmove(moved.codes, encoded.codes,
			bytes - (size_t) (encoded.codes - (uint8_t *) reply));
	gv_reply_cut(building->connection, sizeof(*reply) +
				 gv_encoded_bytes(spec, n, encoded.nneighbours));
}

/* See GV_MSG_ENCODE. */
static void
encode(Building *building)
{
	const GvRowsRequest *request = gv_payload(building->connection);
	const float *rows = rows_of(building, true);

	if (rows != NULL)
		give_encoded(building, rows, 0, request->n);
}

/* See GV_MSG_SAMPLED. */
static void
encode_sampled(Building *building)
{
	const GvSampledRequest *request = gv_payload(building->connection);

	if (!building->is_trained || request->first < 0 || request->n < 1 ||
		request->n > building->spec.batch_rows || request->unused != 0)
		break_rules(building, "rows out of range");
	else
		give_encoded(building, NULL, request->first, request->n);
}

/* See GV_MSG_TRIAL. */
static void
begin_trial(Building *building)
{
	const GvTrialRequest *request = gv_payload(building->connection);

	if (!building->is_trained || building->trial.mirror != NULL)
		break_rules(building, "nothing to try, or again");
	else
		gv_pieces_conclude(building->connection,
						   gv_trial_begin(&building->trial, &building->spec,
										  &building->trained,
										  building->builder,
										  request->copies), NULL);
}

static void
answer(Building *building)
{
	switch (gv_message(building->connection)->type)
	{
		case GV_MSG_BUILD:
			begin(building);
			break;
		case GV_MSG_ROWS:
			put_rows(building);
			break;
		case GV_MSG_TRAIN:
			train(building);
			break;
		case GV_MSG_TRAINED:
			give_array(building);
			break;
		case GV_MSG_ENCODE:
			encode(building);
			break;
		case GV_MSG_SAMPLED:
			encode_sampled(building);
			break;
		case GV_MSG_TRIAL:
			begin_trial(building);
			break;
		case GV_MSG_PIECES:
			gv_trial_pieces(&building->trial, building->connection);
			break;
		case GV_MSG_TRY:
			gv_trial_search(&building->trial, building->connection);
			break;
		default:
			gv_reply(building->connection, 0);	/* GV_MSG_PING */
			break;
	}
}

/* The same of what came after training; waiting for messages is not in it. */
static void
log_building(const Building *building)
{
	if (building->is_trained)
		gv_log("DEBUG", "encoded %lld rows in %.2f s; trial: lists %.2f s, "
			   "searches %.2f", (long long) building->nencoded,
			   seconds_spent(building, GV_MSG_ENCODE) +
			   seconds_spent(building, GV_MSG_SAMPLED),
			   seconds_spent(building, GV_MSG_TRIAL) +
			   seconds_spent(building, GV_MSG_PIECES),
			   seconds_spent(building, GV_MSG_TRY));
}

/*
 * Serve a builder until its connection ends.  After a refusal it has nothing
 * more to say, and what it sent already is not read.
 */
void
gv_builder_serve(GvConnection *connection)
{
	Building	building = {.connection = connection};
	GvReceived	received;

	do
	{
		uint64_t	begun;

		received = gv_connection_receive(connection, true);
		if (received == GV_RECEIVED_END)
			break;
		begun = gv_now_ns();
		if (received == GV_RECEIVED_WHOLE)
		{
			answer(&building);
			building.spent_ns[gv_message(connection)->type] +=
				gv_now_ns() - begun;
		}
		if (((const GvMessage *) connection->out)->type == GV_MSG_REFUSED)
			connection->ending = true;
	} while (gv_connection_flush(connection, true) == GV_FLUSHED &&
			 !connection->ending);
	log_building(&building);
	gv_trial_end(&building.trial);
	gv_builder_drop(building.builder);
	gv_mirrors_unreserve(building.charged);
}
