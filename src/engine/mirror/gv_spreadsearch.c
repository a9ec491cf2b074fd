/*
 * gv_spreadsearch.c
 *		Searches of mirrors on several devices, step by step (gv_spread.h).
 *
 * A searcher is a device's, and the engine's own for what that device has
 * whole.  For shards it makes searchers of other devices when it needs them
 * first.  A step ends, and the next one begins, when who waits asks whether
 * all is done: no shard is waited for but in finish.
 */
#include "engine/mirror/gv_spread.h"

#include <stdlib.h>
#include <string.h>

#include "engine/mirror/gv_crew.h"

#define LEAST_SHARED	1024	/* searches that are worth more threads than
								 * one */

typedef enum Step
{
	FOUND,
	COUNTED,
	BOUNDED,
	ENDED						/* or nothing is under way */
} Step;

typedef struct Searcher
{
	int32_t		device;
	GvSearcher *own[GV_MAX_DEVICES];	/* the engine's, by device; or NULL */
	bool		alone;			/* own[device] does it all */
	const GvPlacedMirror *mirror;	/* that is searched */
	GvSearch   *searches;		/* [n] */
	int32_t		n;
	Step		step;
	bool		wanted[GV_MAX_DEVICES]; /* by shard: this step, there */
	bool		begun[GV_MAX_DEVICES];	/* likewise */
	GvStatus	statuses[GV_MAX_DEVICES];	/* of begin, likewise */
	GvSearch   *asked;			/* [nparts][nasked] in this step */
	int32_t		nasked;
	size_t		asked_capacity;
	GvShardAnswers answers;
	GvStatus	status;			/* once it has ended */
} Searcher;

/* See gv_searcher. */
GvStatus
gv_devices_searcher(int32_t device, GvSearcher **searcher)
{
	Searcher   *made = calloc(1, sizeof(Searcher));
	GvStatus	status;

	if (made == NULL)
		return GV_NO_MEMORY;
	made->device = device;
	made->step = ENDED;
	status = gv_devices_engine->searcher(device, &made->own[device]);
	if (status != GV_OK)
	{
		free(made);
		return status;
	}
	*searcher = (GvSearcher *) made;
	return GV_OK;
}

void
gv_devices_searcher_drop(GvSearcher *opaque)
{
	Searcher   *searcher = (Searcher *) opaque;
	int			i;

	for (i = 0; i < GV_MAX_DEVICES; i++)
		if (searcher->own[i] != NULL)
			gv_devices_engine->searcher_drop(searcher->own[i]);
	free(searcher->asked);
	free(searcher->answers.ranges);
	free(searcher->answers.memory);
	free(searcher);
}

#ifdef GV_TEST_BUILD
GvSearcher *
gv_devices_own(GvSearcher *searcher, int32_t device)
{
	return gv_ndevices() > 1 ? ((Searcher *) searcher)->own[device] : searcher;
}
#endif

static GvSearcher *
searcher_of(const Searcher *searcher, int32_t member)
{
	return searcher->own[searcher->mirror->placement.devices[member]];
}

/* a device that is broken is not to be searched again because another is whole */
_Static_assert(GV_FAILED > GV_REJECTED && GV_REJECTED > GV_NO_MEMORY,
			   "the greatest status is reported");

/* Wait for what has begun, and say whether it failed. */
static GvStatus
end_step(Searcher *searcher)
{
	GvStatus	status = GV_OK;
	int32_t		p;

	for (p = 0; p < searcher->mirror->placement.ndevices; p++)
	{
		GvStatus	one;

		if (!searcher->begun[p])
			continue;
		searcher->begun[p] = false;
		one = gv_devices_engine->finish(searcher_of(searcher, p));
		if (one > status)
			status = one;
	}
	return status;
}

/* Begins this step on a shard, if that is asked anything. */
static void
begin_member(void *arg, int32_t p)
{
	Searcher   *searcher = arg;

	if (!searcher->wanted[p])
		return;
	searcher->statuses[p] = gv_devices_engine->begin
		(searcher_of(searcher, p), searcher->mirror->mirrors[p],
		 &searcher->asked[(size_t) p * (size_t) searcher->nasked],
		 searcher->nasked);
	searcher->begun[p] = searcher->statuses[p] == GV_OK;
}

/*
 * Begins a step on the shards that are asked anything: all, or nhits says so.
 * With thousands of searches a thread for each, because all queries go to each
 * device.
 */
static GvStatus
begin_step(Searcher *searcher, Step step, int32_t nasked,
		   const int64_t *nhits)
{
	int32_t		ndevices = searcher->mirror->placement.ndevices;
	GvStatus	status = GV_OK;
	int32_t		p;

	searcher->step = step;
	searcher->nasked = nasked;
	for (p = 0; p < ndevices; p++)
	{
		searcher->wanted[p] = nhits == NULL || nhits[p] > 0;
		searcher->statuses[p] = GV_OK;
	}
	gv_parallel_for(nasked < LEAST_SHARED ? 0 :
					gv_parallel_helpers(ndevices - 1),
					begin_member, searcher, ndevices);
	for (p = 0; p < ndevices; p++)
		if (searcher->statuses[p] > status)
			status = searcher->statuses[p];
	if (status != GV_OK)
		(void) end_step(searcher);
	return status;
}

/* Asks for the best postings. */
static GvStatus
begin_found(Searcher *searcher)
{
	int32_t		n = searcher->n;
	int32_t		p;
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		GvSearch   *one = &searcher->asked[i];

		*one = searcher->searches[i];
		one->bounded = false;
		if (!one->limited)
			one->rank = 0;
	}
	for (p = 1; p < searcher->mirror->placement.ndevices; p++)
		memcpy(&searcher->asked[(size_t) p * (size_t) n], searcher->asked,
			   (size_t) n * sizeof(GvSearch));
	return begin_step(searcher, FOUND, n, NULL);
}

/* Asks for bounds, if any are requested. */
static GvStatus
begin_bounded(Searcher *searcher)
{
	int64_t		nhits[GV_MAX_DEVICES];
	int32_t		i = 0;

	while (i < searcher->n && !searcher->searches[i].bounded)
		i++;
	if (i == searcher->n)
	{
		searcher->step = ENDED;
		return GV_OK;
	}
	gv_shards_ask_bounds(searcher->mirror, searcher->searches, searcher->n,
						 searcher->asked, &searcher->answers, nhits);
	return begin_step(searcher, BOUNDED, searcher->n, nhits);
}

/* Ask for the sample, if anybody wants it. */
static GvStatus
begin_counted(Searcher *searcher)
{
	int32_t		nasked = gv_shards_ask_nearer(searcher->mirror,
											  searcher->searches, searcher->n,
											  searcher->asked);

	return nasked == 0 ? begin_bounded(searcher) :
		begin_step(searcher, COUNTED, nasked, NULL);
}

/* End a step, for which it waits, and begin the next one. */
static void
go_on(Searcher *searcher)
{
	const GvPlacedMirror *mirror = searcher->mirror;
	GvStatus	status = end_step(searcher);

	if (status == GV_OK && searcher->step == FOUND)
	{
		status = gv_shards_merge(mirror, searcher->asked, searcher->searches,
								 searcher->n, &searcher->answers);
		if (status == GV_OK)
			status = begin_counted(searcher);
	}
	else if (status == GV_OK && searcher->step == COUNTED)
	{
		gv_shards_add_nearer(mirror, searcher->asked, searcher->searches,
							 searcher->n);
		status = begin_bounded(searcher);
	}
	else if (status == GV_OK)
	{
		gv_shards_take_bounds(mirror, searcher->asked, searcher->searches,
							  searcher->n, &searcher->answers);
		searcher->step = ENDED;
	}
	if (status != GV_OK)
		searcher->step = ENDED;
	searcher->status = status;
}

/* Memory and searchers for n searches of all shards. */
static GvStatus
prepare(Searcher *searcher, int32_t n)
{
	const GvPlacement *placement = &searcher->mirror->placement;
	size_t		bytes = (size_t) placement->ndevices * (size_t) n *
	sizeof(GvSearch);
	GvStatus	status = GV_OK;
	int32_t		p;

	if (bytes > searcher->asked_capacity)
	{
		free(searcher->asked);
		searcher->asked = malloc(bytes);
		searcher->asked_capacity = searcher->asked != NULL ? bytes : 0;
		if (searcher->asked == NULL)
			return GV_NO_MEMORY;
	}
	for (p = 0; p < placement->ndevices && status == GV_OK; p++)
	{
		GvSearcher **own = &searcher->own[placement->devices[p]];

		if (*own != NULL)
			continue;
		status = gv_devices_engine->searcher(placement->devices[p], own);
		if (status != GV_OK)
			*own = NULL;
	}
	return status;
}

/* Returns the member on the searcher's device; -1: there is none. */
static int32_t
own_member(const GvPlacedMirror *mirror, int32_t device)
{
	int32_t		i;

	for (i = 0; i < mirror->placement.ndevices; i++)
		if (mirror->placement.devices[i] == device)
			return i;
	return -1;
}

/* See gv_mirror_begin. */
GvStatus
gv_devices_begin(GvSearcher *opaque, GvMirror *opaque_mirror,
				 GvSearch *searches, int32_t n)
{
	Searcher   *searcher = (Searcher *) opaque;
	const GvPlacedMirror *mirror = (const GvPlacedMirror *) opaque_mirror;
	int32_t		member = own_member(mirror, searcher->device);
	GvStatus	status;
	int32_t		i;

	if (member < 0)
		return GV_INVALID;
	searcher->mirror = mirror;
	searcher->alone = !gv_has_shards(mirror);
	if (searcher->alone)
		return gv_devices_engine->begin(searcher->own[searcher->device],
										mirror->mirrors[member], searches, n);
	for (i = 0; i < n; i++)
		if (searches[i].bounded && mirror->spec.refine_slots == 0)
			return GV_INVALID;
	status = prepare(searcher, n);
	if (status != GV_OK)
		return status;
	searcher->searches = searches;
	searcher->n = n;
	searcher->status = GV_OK;
	if (!searches[0].given)
		status = begin_found(searcher);
	else
	{
		status = gv_shards_merge(mirror, searcher->asked, searches, n,
								 &searcher->answers);
		if (status == GV_OK)
			status = begin_bounded(searcher);
	}
	if (status != GV_OK)
		searcher->step = ENDED;
	return status;
}

/* Returns whether every shard has done what it was asked in this step. */
static bool
step_is_done(const Searcher *searcher)
{
	int32_t		p;

	for (p = 0; p < searcher->mirror->placement.ndevices; p++)
		if (searcher->begun[p] &&
			!gv_devices_engine->done(searcher_of(searcher, p)))
			return false;
	return true;
}

/* See gv_mirror_done. */
bool
gv_devices_done(GvSearcher *opaque)
{
	Searcher   *searcher = (Searcher *) opaque;

	if (searcher->alone)
		return gv_devices_engine->done(searcher->own[searcher->device]);
	while (searcher->step != ENDED)
	{
		if (!step_is_done(searcher))
			return false;
		go_on(searcher);
	}
	return true;
}

/* See gv_mirror_finish. */
GvStatus
gv_devices_finish(GvSearcher *opaque)
{
	Searcher   *searcher = (Searcher *) opaque;

	if (searcher->alone)
		return gv_devices_engine->finish(searcher->own[searcher->device]);
	while (searcher->step != ENDED)
		go_on(searcher);
	return searcher->status;
}
