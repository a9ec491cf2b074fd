/*
 * views.c
 *		The status of gpuvecd and of its mirrors.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "client/mirrorqueue.h"
#include "client/serverconn.h"
#include "client/servershared.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "client/views.h"
#include "page/attempt.h"
#include "page/metapage.h"
#include "pgcompat.h"

/* How long gpuvecd may take to tell. */
#define STATUS_US			1000000

/*
 * Asks gpuvecd for its status; false when it does not answer, and then *reply
 * is all 0 and there are no mirrors.  With ivfpq_shared only.
 */
static bool
ask_how(GvStatusReply *status, GvMirrorStatus **mirrors)
{
	uint64		before = IvfpqCountServed();
	int64		begun = IvfpqNow();
	IvfpqServed served;

	memset(status, 0, sizeof(*status));
	*mirrors = NULL;
	if (IvfpqSharedState() != IVFPQ_STATE_UP ||
		pg_atomic_read_u32(&ivfpq_shared->suspended) != 0)
		return false;
	served = IvfpqAskStatus(IvfpqConnect(GV_ROLE_SESSION, begun + STATUS_US),
							status, mirrors);
	if (served == IVFPQ_TIMED_OUT)
		IvfpqNoteSilence(begun, before);
	if (served != IVFPQ_SERVED)
		memset(status, 0, sizeof(*status));
	return served == IVFPQ_SERVED;
}

/* Fills *status; memory from the current context. */
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
	status->up = ask_how(&reply, &status->mirrors);
	status->nmirrors = status->up ? reply.nmirrors : 0;
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

/*
 * How the mirror of an index is: "ready", "loading", "waiting", "failed" (why
 * is in *error), "evicted", or NULL: there is none, and none is asked for.
 */
const char *
IvfpqGetMirrorState(const IvfpqServerStatus *status, const GvMirrorKey *key,
					char **error)
{
	IvfpqMirrorRequest request;

	*error = NULL;
	for (int i = 0; i < status->nmirrors; i++)
		if (IvfpqSameKey(&status->mirrors[i].key, key))
			return status->mirrors[i].ready ? "ready" : "loading";
	if (!status->preloaded || !IvfpqMirrorRequestGet(key, &request))
		return NULL;
	switch (request.state)
	{
		case IVFPQ_REQUEST_WAITING:
			return "waiting";
		case IVFPQ_REQUEST_LOADING:
			return "loading";
		case IVFPQ_REQUEST_FAILED:
			*error = pstrdup(request.error);
			return "failed";
		case IVFPQ_REQUEST_EVICTED:
			return "evicted";
		default:
			return NULL;
	}
}

/* ----
 * gpuvec_stat and gpuvec_mirrors: what users see of gpuvecd.
 *
 * When gpuvecd does not answer they show what shared memory knows.  Numbers
 * of gpuvec_stat are for everyone; a mirror is shown to members of
 * pg_read_all_stats and, in its own database, to the owner of its table.
 */

#define STAT_COLUMNS		33
#define MIRROR_COLUMNS		14

PG_FUNCTION_INFO_V1(gpuvec_stat);
PG_FUNCTION_INFO_V1(gpuvec_mirrors);

/* Without preloading there is nothing to see. */
static bool
is_preloaded(void)
{
	if (ivfpq_shared != NULL)
		return true;
	ereport(NOTICE,
			(errmsg("gpuvecd is not used"),
			 IvfpqPreloadHelps() ?
			 errhint("Add gpuvec to shared_preload_libraries and restart the server; gpuvec.server, gpuvec.gpu_memory, gpuvec.devices and gpuvec.replicas have no effect without.") :
			 ivfpq_server == IVFPQ_SERVER_AUTO ?
			 errdetail("This machine shows no card that it could use.") :
			 errdetail("It is turned off by gpuvec.server.")));
	return false;
}

/* ---- gpuvec_stat */

/* A row under construction. */
typedef struct Row
{
	int			n;
	Datum		values[STAT_COLUMNS];
	bool		nulls[STAT_COLUMNS];
} Row;

static void
put(Row *row, Datum value)
{
	row->nulls[row->n] = false;
	row->values[row->n++] = value;
}

static void
put_null(Row *row)
{
	row->nulls[row->n] = true;
	row->values[row->n++] = (Datum) 0;
}

static void
put_text(Row *row, const char *text)
{
	if (text[0] == '\0')
		put_null(row);
	else
		put(row, CStringGetTextDatum(text));
}

/* A number that is known only if `known`. */
static void
put_known(Row *row, bool known, int64 value)
{
	if (known)
		put(row, Int64GetDatum(value));
	else
		put_null(row);
}

static void
put_double(Row *row, bool known, double value)
{
	if (known)
		put(row, Float8GetDatum(value));
	else
		put_null(row);
}

static void
put_server(Row *row, const IvfpqServerInfo *server)
{
	if (server->pid != 0)
		put(row, Int32GetDatum(server->pid));
	else
		put_null(row);
	put_text(row, IvfpqStateName());
	put_text(row, server->engine);
	put_text(row, server->device);
	if (server->started != 0)
		put(row, TimestampTzGetDatum(server->started));
	else
		put_null(row);
	put(row, Int64GetDatum(server->restarts));
}

/* Searches by who answered them, and why it was not gpuvecd. */
static void
put_searches(Row *row)
{
	static const IvfpqServed causes[] = {
		IVFPQ_DOWN, IVFPQ_SUSPENDED, IVFPQ_NOT_MIRRORED, IVFPQ_LOADING,
		IVFPQ_TIMED_OUT, IVFPQ_BROKEN, IVFPQ_REFUSED, IVFPQ_ENGINE_FAILED,
		IVFPQ_STALE
	};
	int64		counts[IVFPQ_NSERVED];
	int64		fallbacks = 0;

	for (int i = 0; i < IVFPQ_NSERVED; i++)
		counts[i] = (int64) pg_atomic_read_u64(&ivfpq_shared->served[i]);
	for (int i = 0; i < (int) lengthof(causes); i++)
		fallbacks += counts[causes[i]];
	put(row, Int64GetDatum(counts[IVFPQ_SERVED]));
	put(row, Int64GetDatum(counts[IVFPQ_NOT_ASKED] + fallbacks));
	put(row, Int64GetDatum(fallbacks));
	for (int i = 0; i < (int) lengthof(causes); i++)
		put(row, Int64GetDatum(counts[causes[i]]));
}

/* Scans of indexes, and what of them has to do with recall and time. */
static void
put_scans(Row *row)
{
	put(row, Int64GetDatum((int64) pg_atomic_read_u64(&ivfpq_shared->scans)));
	put(row,
		Int64GetDatum((int64) pg_atomic_read_u64(&ivfpq_shared->out_of_order)));
	put(row, Int64GetDatum((int64) pg_atomic_read_u64(&ivfpq_shared->full_passes)));
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
	known = ask_how(&status, &mirrors);
	IvfpqSharedGetServer(&server);
	p50 = IvfpqLatencyQuantile(0.5);

	put_server(&row, &server);
	put_searches(&row);
	put_known(&row, known, status.batches);
	put_double(&row, known && status.batches > 0,
			   (double) status.searches / Max(status.batches, 1));
	put_known(&row, known, status.largest_batch);
	put(&row, Int64GetDatum((int64) pg_atomic_read_u64(&ivfpq_shared->sent)));
	put(&row,
		Int64GetDatum((int64) pg_atomic_read_u64(&ivfpq_shared->received)));
	put_known(&row, known, status.nmirrors);
	put_known(&row, known, status.used);
	put_known(&row, server.memory > 0, server.memory);
	put_double(&row, p50 >= 0, p50);
	put_double(&row, p50 >= 0, IvfpqLatencyQuantile(0.99));
	put(&row, Int64GetDatum((int64) pg_atomic_read_u64(&ivfpq_shared->sets)));
	put(&row,
		Int64GetDatum((int64) pg_atomic_read_u64(&ivfpq_shared->sets_failed)));
	put_scans(&row);
	Assert(row.n == STAT_COLUMNS);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values,
						 row.nulls);
	return (Datum) 0;
}

/* ---- gpuvec_mirrors */

/* A mirror as gpuvecd has it, or as it is requested, or both. */
typedef struct Mirror
{
	const GvMirrorKey *key;
	const GvMirrorStatus *status;	/* NULL: gpuvecd does not have it */
	const IvfpqMirrorRequest *request;	/* NULL: it is not asked for now */
	Relation	index;			/* NULL: not of this database, or locked */
	int64		behind;			/* postings that the index has and the mirror
								 * has not; -1: not known */
} Mirror;

/* The mirror's index, locked; NULL if that is not possible at once. */
static Relation
open_index(const GvMirrorKey *key)
{
	Relation	index;
	IvfpqStorage storage;

	if (key->database != MyDatabaseId ||
		!ConditionalLockRelationOid(key->index, AccessShareLock))
		return NULL;
	index = try_relation_open(key->index, NoLock);
	if (index == NULL)
	{
		UnlockRelationOid(key->index, AccessShareLock);
		return NULL;
	}
	storage = IvfpqStorageOf(index);
	if (index->rd_rel->relkind == RELKIND_INDEX &&
		index->rd_rel->relam == get_index_am_oid("gpuivfpq", true) &&
		storage.tablespace == key->tablespace &&
		storage.number == key->relation)
		return index;
	relation_close(index, AccessShareLock);
	return NULL;
}

static bool
may_see(const Mirror *mirror)
{
	if (has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS))
		return true;
	return mirror->index != NULL &&
		IvfpqOwnsRelation(mirror->index->rd_index->indrelid, GetUserId());
}

static const char *
state_name(const Mirror *mirror)
{
	if (mirror->status != NULL)
		return mirror->status->ready ? "ready" : "loading";
	switch (mirror->request->state)
	{
		case IVFPQ_REQUEST_LOADING:
			return "loading";
		case IVFPQ_REQUEST_FAILED:
			return "failed";
		default:
			return "waiting";
	}
}

/*
 * Set mirror->behind, if index and mirror are of one build.  For IvfpqAttempt.
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
 * The same, if it can be known.  An index that is damaged must not hide the
 * others' mirrors.  Parallel mode has no subtransactions.
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

static double
count_percent(const Mirror *mirror)
{
	int64		postings;
	int64		expected;

	if (mirror->status == NULL)
	{
		postings = mirror->request->postings;
		expected = mirror->request->expected;
	}
	else if (mirror->status->ready)
		return 100;
	else
	{
		postings = mirror->status->postings;
		expected = mirror->status->expected;
	}
	return expected > 0 ? Min(100.0 * postings / expected, 100) : 0;
}

static void
put_mirror(Row *row, const Mirror *mirror)
{
	const GvMirrorStatus *status = mirror->status;
	char	   *database = get_database_name(mirror->key->database);

	row->n = 0;
	if (database)
		put(row, DirectFunctionCall1(namein, CStringGetDatum(database)));
	else
		put_null(row);
	if (mirror->key->database == MyDatabaseId)
		put(row, ObjectIdGetDatum(mirror->key->index));
	else
		put_null(row);
	put_text(row, state_name(mirror));
	if (status)
		put(row, Int32GetDatum(status->device));
	else
		put_null(row);
	put_known(row, status, status ? status->bytes : 0);
	if (status)
		put(row, Int32GetDatum(status->nlists));
	else
		put_null(row);
	put_known(row, status, status ? status->postings : 0);
	put_known(row, mirror->behind >= 0, mirror->behind);
	put(row, Float8GetDatum(count_percent(mirror)));
	put_known(row, status, status ? status->searches : 0);
	if (status)
		put(row, TimestampTzGetDatum(GetCurrentTimestamp() -
									 status->idle_ms * 1000));
	else
		put_null(row);
	put_text(row, mirror->request ? mirror->request->error : "");
	for (int i = 0; i < 2; i++)
		if (status)
			put(row, Int32GetDatum(i == 0 ? status->shards :
								   status->replicas));
		else
			put_null(row);
	Assert(row->n == MIRROR_COLUMNS);
}

/* Add a mirror's row, if the user may see it. */
static void
show_mirror(ReturnSetInfo *rsinfo, Mirror *mirror)
{
	Row			row;

	mirror->index = open_index(mirror->key);
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
	(void) ask_how(&status, &mirrors);
	requests = palloc(IVFPQ_NREQUESTS * sizeof(IvfpqMirrorRequest));
	nrequests = IvfpqMirrorRequestsCopy(requests);
	shown = palloc0(IVFPQ_NREQUESTS * sizeof(bool));

	for (int i = 0; i < status.nmirrors; i++)
	{
		Mirror		mirror = {.key = &mirrors[i].key, .status = &mirrors[i]};

		for (int j = 0; j < nrequests; j++)
			if (IvfpqSameKey(&requests[j].key, &mirrors[i].key))
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
