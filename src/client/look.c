/*
 * look.c
 *		The status of gpuvecd and of its mirrors.
 */
#include "postgres.h"

#include "client/channel/channel.h"
#include "client/look.h"
#include "client/mirror/wanted.h"
#include "client/state/socketplace.h"
#include "client/state/state.h"

/* How long gpuvecd may take to tell. */
#define STATUS_US			1000000

/*
 * Asks gpuvecd for its status; false when it does not answer, and then *reply
 * is all 0 and there are no mirrors.  With ivfpq_shared only.
 */
bool
IvfpqAskHow(GvStatusReply *status, GvMirrorStatus **mirrors)
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
	status->up = IvfpqAskHow(&reply, &status->mirrors);
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
