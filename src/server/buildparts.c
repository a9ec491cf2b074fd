/*
 * buildparts.c
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
#include "server/gv_server.h"

#include <stdio.h>

/* Make the engine's first builder, on a device that has the memory. */
GvStatus
gv_build_make(GvBuild *build, const float *mean)
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
void
gv_build_trained_now(GvBuild *build)
{
	pthread_mutex_lock(&build->lock);
	build->is_trained = true;
	pthread_mutex_unlock(&build->lock);
}

/* The first builder is out of memory: nobody can use the build any more. */
void
gv_build_break(GvBuild *build)
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
GvBuildPart *
gv_build_take(GvBuild *build, bool any)
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
void
gv_build_extend(GvBuild *build, const GvBuildPart *part)
{
	while (part == &build->parts[0] && wants_more(build))
		if (!add_part(build))
			break;
}

/*
 * A copy turns out to have no memory to encode with: gives it up, and takes
 * another builder; see gv_build_take.
 */
GvBuildPart *
gv_build_lose(GvBuild *build, GvBuildPart *part)
{
	gv_builder_drop(part->builder);
	part->builder = NULL;		/* and is never given back */
	gv_mirrors_end_work(1u << part->device);
	gv_mirrors_unreserve(part->device, part->charged);
	return gv_build_take(build, true);
}

/* Releases a builder, if any, after a message of that type. */
void
gv_build_give(GvBuild *build, GvBuildPart *part, uint16_t type,
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
void
gv_build_log(GvBuild *build)
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
void
gv_build_end(GvBuild *build)
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
