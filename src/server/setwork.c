/*
 * setwork.c
 *		A set's thread: it has work on a set of rows done (engine/gv_set.h),
 *		one message at a time.
 *
 * Its client sends on meanwhile, so the next rows wait in the socket, or in
 * memory that it shares, to which results may go, too.  The engine's memory
 * comes out of the budgets of mirrors.  Different sets have nothing in common:
 * their threads work side by side.  Which devices do the work: dividedset.c.
 */
#include "server/gv_server.h"

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
		gv_divided_end(work->set);
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
						   gv_divided_begin(&work->spec, &work->set), NULL);
}

/* See GV_MSG_ASK. */
void
gv_setwork_ask(GvConnection *connection)
{
	Work	   *work = connection->work;
	const GvSetSpec *spec = gv_payload(connection);
	GvStatus	status = spec->device == 0 ?
	gv_divided_ask(work->set, spec) : GV_INVALID;

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
	status = gv_divided_put(work->set, (GvSetInput) told.input, request + 1,
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
	GvStatus	status = gv_divided_run(work->set, &work->done, &stop);
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
	status = gv_divided_get(work->set, output, request->first, request->n,
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
	gv_divided_devices(work->set, devices, sizeof(devices));
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
