/*
 * views.c
 *		The status of gpuvecd and of its mirrors, and the functions gpuvec_stat
 *		and gpuvec_mirrors, which show it to users.
 *
 * If gpuvecd does not answer, the functions show only what is in shared
 * memory. gpuvec_stat is for everyone.  A mirror is shown to members of
 * pg_read_all_stats and, in its own database, to the owner of its table.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "client/mirrorqueue.h"
#include "client/serverconn.h"
#include "client/servershared.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "client/views.h"
#include "page/attempt.h"
#include "page/metapage.h"
#include "pgcompat.h"

/* How long gpuvecd may take to answer. */
#define STATUS_US			1000000

#define STAT_COLUMNS		33
#define MIRROR_COLUMNS		15

/* A row under construction; gpuvec_stat has the most columns. */
typedef struct Row
{
	int			n;
	Datum		values[STAT_COLUMNS];
	bool		nulls[STAT_COLUMNS];
} Row;

/* A mirror that gpuvecd has, or that is requested, or both. */
typedef struct Mirror
{
	const GvMirrorKey *key;
	const GvMirrorStatus *status;	/* NULL: gpuvecd does not have it */
	const IvfpqMirrorRequest *request;	/* NULL: it is not requested */
	Relation	index;			/* NULL: not of this database, or locked */
	int64		behind;			/* postings that the index has and the mirror
								 * lacks, or -1 if unknown */
} Mirror;

PG_FUNCTION_INFO_V1(gpuvec_stat);
PG_FUNCTION_INFO_V1(gpuvec_mirrors);

/*
 * Asks gpuvecd for its status.  If gpuvecd does not answer, returns false,
 * with *status all zero and no mirrors.  ivfpq_shared must not be NULL.
 */
static bool
ask_status(GvStatusReply *status, GvMirrorStatus **mirrors)
{
	memset(status, 0, sizeof(*status));
	*mirrors = NULL;
	if (IvfpqSharedState() != IVFPQ_STATE_UP ||
		pg_atomic_read_u32(&ivfpq_shared->suspended) != 0)
		return false;
	if (IvfpqFetchStatus(IvfpqConnect(GV_ROLE_SESSION, STATUS_US), status,
						 mirrors) == IVFPQ_ANSWERED)
		return true;
	memset(status, 0, sizeof(*status));
	return false;
}

/* Sets *status, whose strings and array are in the current memory context. */
void
IvfpqGetServerStatus(IvfpqServerStatus *status)
{
	IvfpqServerInfo server;
	GvStatusReply reply;

	memset(status, 0, sizeof(*status));
	status->preloaded = ivfpq_shared != NULL;
	status->preload_helps = IvfpqPreloadHelps();
	status->has_device = IvfpqSeesDevice();
	status->state = IvfpqStateName();
	status->is_external = IvfpqServerIsExternal();
	status->engine = status->device = status->problem = "";
	if (!status->preloaded)
		return;
	status->up = ask_status(&reply, &status->mirrors);
	status->searches = reply.searches;
	status->batches = reply.batches;
	status->nmirrors = reply.nmirrors;
	IvfpqSharedGetServer(&server);
	status->problem = pstrdup(server.problem);
	status->is_others = server.is_others;
	status->pid = server.pid;
	status->engine = pstrdup(server.engine);
	status->device = pstrdup(server.device);
	status->restarts = server.restarts;
	status->memory = server.memory;
	status->used = status->up ? (int64) reply.used : server.used;
}

/* Returns the name of a mirror's state; NULL if it has none. */
static const char *
state_name(const GvMirrorStatus *status, const IvfpqMirrorRequest *request)
{
	static const char *const names[] = {
		[IVFPQ_REQUEST_WAITING] = "waiting",
		[IVFPQ_REQUEST_LOADING] = "loading",
		[IVFPQ_REQUEST_READY] = NULL,
		[IVFPQ_REQUEST_FAILED] = "failed",
		[IVFPQ_REQUEST_EVICTED] = "evicted"
	};

	if (status != NULL)
		return status->ready ? "ready" : "loading";
	return names[request->state];
}

/*
 * Returns the state of an index's mirror: "ready", "loading", "waiting",
 * "failed" (*error says why) or "evicted".  Returns NULL if there is neither a
 * mirror nor a request.
 */
const char *
IvfpqGetMirrorState(const IvfpqServerStatus *status, const GvMirrorKey *key,
					char **error)
{
	IvfpqMirrorRequest request;

	*error = NULL;
	for (int i = 0; i < status->nmirrors; i++)
		if (gv_same_key(&status->mirrors[i].key, key))
			return state_name(&status->mirrors[i], NULL);
	if (!status->preloaded || !IvfpqMirrorRequestGet(key, &request))
		return NULL;
	if (request.state == IVFPQ_REQUEST_FAILED)
		*error = pstrdup(request.error);
	return state_name(NULL, &request);
}

/* Returns whether the library is preloaded; if not, raises a notice. */
static bool
is_preloaded(void)
{
	if (ivfpq_shared != NULL)
		return true;
	ereport(NOTICE,
			(errmsg("gpuvecd is not available"),
			 IvfpqPreloadHelps() ?
			 errhint("Add \"gpuvec\" to \"shared_preload_libraries\" and restart the server.  Otherwise \"gpuvec.server\", \"gpuvec.gpu_memory\", \"gpuvec.devices\" and \"gpuvec.replicas\" have no effect.") :
			 ivfpq_server == IVFPQ_SERVER_AUTO ?
			 errdetail("The machine has no usable GPU.") :
			 errdetail("\"gpuvec.server\" is set to \"off\".")));
	return false;
}

/* Adds a value to the row, or null if the value is not known. */
static void
put(Row *row, bool known, Datum value)
{
	row->nulls[row->n] = !known;
	row->values[row->n++] = value;
}

static void
put_text(Row *row, const char *text)
{
	put(row, text[0] != '\0', CStringGetTextDatum(text));
}

static void
put_counter(Row *row, pg_atomic_uint64 *counter)
{
	put(row, true, Int64GetDatum((int64) pg_atomic_read_u64(counter)));
}

/*
 * Adds to the row the number of searches by gpuvecd, the number of searches by
 * sessions, and how many of the latter were done because gpuvecd could not
 * search, in all and for each cause.
 */
static void
put_searches(Row *row)
{
	static const IvfpqOutcome causes[] = {
		IVFPQ_DOWN, IVFPQ_SUSPENDED, IVFPQ_NOT_MIRRORED, IVFPQ_LOADING,
		IVFPQ_TIMED_OUT, IVFPQ_BROKEN, IVFPQ_REFUSED, IVFPQ_ENGINE_FAILED,
		IVFPQ_STALE
	};
	int64		counts[IVFPQ_NOUTCOMES];
	int64		fallbacks = 0;

	for (int i = 0; i < IVFPQ_NOUTCOMES; i++)
		counts[i] = (int64) pg_atomic_read_u64(&ivfpq_shared->served[i]);
	for (int i = 0; i < (int) lengthof(causes); i++)
		fallbacks += counts[causes[i]];
	put(row, true, Int64GetDatum(counts[IVFPQ_ANSWERED]));
	put(row, true, Int64GetDatum(counts[IVFPQ_NOT_ASKED] + fallbacks));
	put(row, true, Int64GetDatum(fallbacks));
	for (int i = 0; i < (int) lengthof(causes); i++)
		put(row, true, Int64GetDatum(counts[causes[i]]));
}

/* gpuvec_stat() */
Datum
gpuvec_stat(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Row			row = {0};
	IvfpqServerInfo server;
	GvStatusReply status;
	GvMirrorStatus *mirrors;
	bool		known;
	double		p50;

	InitMaterializedSRF(fcinfo, 0);
	if (!is_preloaded())
		return (Datum) 0;
	known = ask_status(&status, &mirrors);
	IvfpqSharedGetServer(&server);
	p50 = IvfpqLatencyQuantile(0.5);

	put(&row, server.pid != 0, Int32GetDatum(server.pid));
	put_text(&row, IvfpqStateName());
	put_text(&row, server.engine);
	put_text(&row, server.device);
	put(&row, server.started != 0, TimestampTzGetDatum(server.started));
	put(&row, true, Int64GetDatum(server.restarts));
	put_searches(&row);
	put(&row, known, Int64GetDatum(status.batches));
	put(&row, known && status.batches > 0,
		Float8GetDatum((double) status.searches / Max(status.batches, 1)));
	put(&row, known, Int64GetDatum(status.largest_batch));
	put_counter(&row, &ivfpq_shared->sent);
	put_counter(&row, &ivfpq_shared->received);
	put(&row, known, Int64GetDatum(status.nmirrors));
	put(&row, known, Int64GetDatum(status.used));
	put(&row, server.memory > 0, Int64GetDatum(server.memory));
	put(&row, p50 >= 0, Float8GetDatum(p50));
	put(&row, p50 >= 0, Float8GetDatum(IvfpqLatencyQuantile(0.99)));
	put_counter(&row, &ivfpq_shared->sets);
	put_counter(&row, &ivfpq_shared->sets_failed);
	put_counter(&row, &ivfpq_shared->scans);
	put_counter(&row, &ivfpq_shared->out_of_order);
	put_counter(&row, &ivfpq_shared->full_passes);
	Assert(row.n == STAT_COLUMNS);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values,
						 row.nulls);
	return (Datum) 0;
}

static bool
may_see(const Mirror *mirror)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
		(mirror->index != NULL &&
		 IvfpqOwnsRelation(mirror->index->rd_index->indrelid, GetUserId()));
}

/*
 * Sets mirror->behind, if the index and the mirror are from the same build.
 * Callback of IvfpqAttempt.
 */
static void
count_behind(void *arg)
{
	Mirror	   *mirror = arg;
	IvfpqMetaData meta;
	int64		behind = 0;

	IvfpqMetaRead(mirror->index, &meta);
	if (meta.build_id != mirror->key->build_id)
		return;
	for (int list = 0; list < meta.nlists; list++)
	{
		IvfpqDirEntry entry;

		CHECK_FOR_INTERRUPTS();
		IvfpqDirEntryRead(mirror->index, &meta, list, &entry);
		behind += entry.nitems;
	}
	mirror->behind = Max(behind - mirror->status->postings, 0);
}

/*
 * Sets mirror->behind, to -1 if the number cannot be known.  A damaged index
 * must not hide the mirrors of other indexes, so an error is caught, except in
 * parallel mode, which has no subtransactions.
 */
static void
try_behind(Mirror *mirror)
{
	mirror->behind = -1;
	if (mirror->index == NULL || mirror->status == NULL ||
		!mirror->status->ready)
		return;
	if (IsInParallelMode())
		count_behind(mirror);
	else
		(void) IvfpqAttempt(count_behind, mirror);
}

static void
put_mirror(Row *row, const Mirror *mirror)
{
	static const GvMirrorStatus none = {0};
	bool		known = mirror->status != NULL;
	const GvMirrorStatus *status = known ? mirror->status : &none;
	const char *state = state_name(mirror->status, mirror->request);
	char	   *database = get_database_name(mirror->key->database);

	put(row, database != NULL,
		database ? DirectFunctionCall1(namein, CStringGetDatum(database)) : 0);
	put(row, mirror->key->database == MyDatabaseId,
		ObjectIdGetDatum(mirror->key->index));
	put_text(row, state ? state : "waiting");
	put(row, known, Int32GetDatum(status->device));
	put(row, known, Int64GetDatum(status->bytes));
	put(row, known, Int32GetDatum(status->nlists));
	put(row, known, Int64GetDatum(status->postings));
	put(row, mirror->behind >= 0, Int64GetDatum(mirror->behind));
	put(row, true, Float8GetDatum(status->ready ? 100 :
								  Min(100.0 * status->postings /
									  Max(status->expected, 1), 100)));
	put(row, known, Int64GetDatum(status->searches));
	put(row, known, TimestampTzGetDatum(GetCurrentTimestamp() -
										status->idle_ms * 1000));
	put_text(row, mirror->request ? mirror->request->error : "");
	put(row, known, Int32GetDatum(status->shards));
	put(row, known, Int32GetDatum(status->replicas));
	put(row, known, BoolGetDatum(status->rows != GV_ROWS_NONE));
	Assert(row->n == MIRROR_COLUMNS);
}

/* Adds a mirror's row, if the user may see it. */
static void
show_mirror(ReturnSetInfo *rsinfo, Mirror *mirror)
{
	Row			row = {0};

	if (mirror->key->database == MyDatabaseId)
		(void) IvfpqMirrorIndexOpen(mirror->key, &mirror->index);
	if (may_see(mirror))
	{
		try_behind(mirror);
		put_mirror(&row, mirror);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values,
							 row.nulls);
	}
	if (mirror->index)
		relation_close(mirror->index, AccessShareLock);
}

/* gpuvec_mirrors() */
Datum
gpuvec_mirrors(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	GvStatusReply status;
	GvMirrorStatus *mirrors;
	IvfpqMirrorRequest *requests;
	bool	   *shown;
	int			nrequests;

	InitMaterializedSRF(fcinfo, 0);
	if (!is_preloaded())
		return (Datum) 0;
	(void) ask_status(&status, &mirrors);
	requests = palloc(IVFPQ_NREQUESTS * sizeof(IvfpqMirrorRequest));
	nrequests = IvfpqMirrorRequestsCopy(requests);
	shown = palloc0(IVFPQ_NREQUESTS * sizeof(bool));

	for (int i = 0; i < status.nmirrors; i++)
	{
		Mirror		mirror = {.key = &mirrors[i].key, .status = &mirrors[i]};

		for (int j = 0; j < nrequests; j++)
			if (gv_same_key(&requests[j].key, &mirrors[i].key))
			{
				mirror.request = &requests[j];
				shown[j] = true;
			}
		show_mirror(rsinfo, &mirror);
	}
	for (int j = 0; j < nrequests; j++)
	{
		Mirror		mirror =
		{.key = &requests[j].key, .request = &requests[j]};

		if (!shown[j] && requests[j].state != IVFPQ_REQUEST_EVICTED)
			show_mirror(rsinfo, &mirror);
	}
	return (Datum) 0;
}
