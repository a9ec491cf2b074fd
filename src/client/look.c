/*
 * look.c
 *		How gpuvecd is, and its mirrors.
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
 * What gpuvecd says; false when it does not, and then *status is all 0 and
 * there are no mirrors.  With ivfpq_shared only.
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

/* Fill *look; memory from the current context. */
void
IvfpqLookAt(IvfpqLook *look)
{
	IvfpqServerInfo server;
	GvStatusReply status;

	memset(look, 0, sizeof(*look));
	look->preloaded = ivfpq_shared != NULL;
	look->preload_helps = IvfpqPreloadHelps();
	look->has_device = IvfpqSeesDevice();
	look->state = IvfpqStateName();
	look->is_external = IvfpqServerIsExternal();
	look->engine = look->device = look->problem = "";
	if (!look->preloaded)
		return;
	look->up = IvfpqAskHow(&status, &look->mirrors);
	look->nmirrors = look->up ? status.nmirrors : 0;
	IvfpqSharedGetServer(&server);
	look->problem = pstrdup(server.problem);
	look->is_others = server.is_others;
	look->pid = server.pid;
	look->engine = pstrdup(server.engine);
	look->device = pstrdup(server.device);
	look->restarts = server.restarts;
	look->memory = server.memory;
	look->used = look->up ? (int64) status.used : server.used;
}

/*
 * How the mirror of an index is: "ready", "loading", "waiting", "failed" (why
 * is in *error), "evicted", or NULL: there is none, and none is asked for.
 */
const char *
IvfpqLookForMirror(const IvfpqLook *look, const GvMirrorKey *key, char **error)
{
	IvfpqMirrorRequest request;

	*error = NULL;
	for (int i = 0; i < look->nmirrors; i++)
		if (IvfpqSameKey(&look->mirrors[i].key, key))
			return look->mirrors[i].ready ? "ready" : "loading";
	if (!look->preloaded || !IvfpqMirrorRequestGet(key, &request))
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
