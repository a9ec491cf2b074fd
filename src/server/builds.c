/*
 * builds.c
 *		Builds that are under way, by their ids: each has an owner, and others
 *		may join it to have rows encoded.
 *
 * A build lives until all of them are gone, so none of them has to know what
 * becomes of the others.  But it cannot be joined any more once its owner is
 * gone: that does not hang on when a helper's end is noticed.
 */
#include "server/gv_server.h"

#include <stdlib.h>
#include <sys/random.h>

/* The builds, and under the same mutex their users. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static GvBuild *builds;

/* A build of this spec with one user, its owner; NULL: there is no memory. */
GvBuild *
gv_builds_begin(const GvBuilderSpec *spec)
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
GvBuild *
gv_builds_join(uint64_t id)
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
void
gv_builds_leave(GvBuild *build, bool joined)
{
	bool		last;

	pthread_mutex_lock(&mutex);
	if (!joined)
		forget(build);
	last = --build->users == 0;
	pthread_mutex_unlock(&mutex);
	if (!last)
		return;
	gv_calib_mirror_end(&build->calib_mirror);
	gv_build_end(build);
	pthread_cond_destroy(&build->given);
	pthread_mutex_destroy(&build->lock);
	free(build);
}
