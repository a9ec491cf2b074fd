/*
 * orphans.c
 *		The supervisor has gpuvecd let go of mirrors that nobody can search any
 *		more.
 */
#include "postgres.h"

#include <sys/stat.h>

#include "client/channel/channel.h"
#include "client/mirror/wanted.h"
#include "client/state/state.h"
#include "client/supervise/supervisor.h"
#include "pgcompat.h"

/* A mirror's index has gone, and its file with it. */
static bool
is_orphan(const GvMirrorKey *key)
{
	IvfpqStorage storage = {key->database, key->tablespace, key->relation};
	char		path[MAXPGPATH];
	struct stat st;

	IvfpqStoragePath(storage, path, sizeof(path));
	if (stat(path, &st) == 0)
		return st.st_size == 0;
	return errno == ENOENT || errno == ENOTDIR;
}

/* Let go of mirrors whose indexes were dropped, or have new files. */
void
IvfpqDropOrphans(const GvMirrorStatus *mirrors, int nmirrors,
				 int64 timeout_us)
{
	for (int i = 0; i < nmirrors; i++)
	{
		GvKeyRequest request = {mirrors[i].key};
		IvfpqChannel *channel;

		if (!is_orphan(&mirrors[i].key))
			continue;
		channel = IvfpqConnect(GV_ROLE_SUPERVISOR, IvfpqNow() + timeout_us);
		if (IvfpqChannelExchange(channel, GV_MSG_DROP, &request,
								 sizeof(request), NULL, 0, 0) != IVFPQ_SERVED)
			return;
		IvfpqMirrorRequestForget(&mirrors[i].key);
	}
}
