/*
 * gv_multi.c
 *		Mirrors on several devices: creation, changes and reads, by member.
 *
 * A change of arrays is applied to all members, and a change of lists or
 * records to their owner in each replica.  If a member cannot apply a change,
 * because it finds no memory or its device rejects a call, its replica is
 * dropped, so that all remaining replicas have the same contents.  The change
 * fails only if that happens in every replica.  Then no replica is dropped,
 * and none has the whole change.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/mirror/gv_multi.h"

const GvMirrorBackend *gv_devices_engine;

/*
 * A change of a list (chunk) or of records (items).  If chunk and items are
 * NULL, it is a change of an array.
 */
typedef struct Change
{
	GvArray		array;
	int64_t		first;			/* number of the first value */
	int64_t		n;				/* number of values or items */
	const void *values;
	const GvListChunk *chunk;
	const GvRefineItem *items;
} Change;

static GvStatus
apply(GvMirror *mirror, const Change *change)
{
	if (change->chunk != NULL)
		return gv_devices_engine->put_list(mirror, change->chunk);
	if (change->items != NULL)
		return gv_devices_engine->put_refine(mirror, change->items,
											 (int32_t) change->n);
	return gv_devices_engine->put_array(mirror, change->array, change->first,
										change->n, change->values);
}

/*
 * Returns the spec of a member.  If there are postings, engines reserve half a
 * block more for each list, because the last block of a list is seldom full.
 * A shard has only its own lists, so the half blocks of all other lists are
 * subtracted from its postings here.
 */
static GvMirrorSpec
member_spec(const GvMirrorSpec *spec, const GvPlacement *placement,
			int32_t member)
{
	GvMirrorSpec mine = *spec;
	int32_t		nshards = placement->nshards;

	mine.device = placement->devices[member];
	if (nshards > 1)
	{
		int64_t		others = spec->nlists - spec->nlists / nshards;

		mine.postings = (mine.postings + nshards - 1) / nshards;
		mine.postings -= others * GV_BLOCK / 2;
		if (mine.postings < 1)
			mine.postings = spec->postings > 0;
		mine.refine_records = (mine.refine_records + nshards - 1) / nshards;
	}
	return mine;
}

int64_t
gv_devices_size(const GvMirrorSpec *spec, const GvPlacement *placement,
				int32_t member)
{
	GvMirrorSpec mine = member_spec(spec, placement, member);

	return gv_devices_engine->size(&mine);
}

/* Drops the members of a replica.  Later replicas move up in its place. */
static void
drop_replica(GvPlacedMirror *mirror, int32_t replica)
{
	GvPlacement *placement = &mirror->placement;
	int32_t		first = replica * placement->nshards;
	int32_t		next = first + placement->nshards;
	size_t		nlater = (size_t) (gv_nmembers(placement) - next);
	int32_t		i;

	for (i = first; i < next; i++)
		gv_devices_engine->drop(mirror->mirrors[i]);
	memmove(&mirror->mirrors[first], &mirror->mirrors[next],
			nlater * sizeof(mirror->mirrors[0]));
	memmove(&placement->devices[first], &placement->devices[next],
			nlater * sizeof(placement->devices[0]));
	placement->nreplicas--;
}

static void
devices_drop(GvMirror *opaque)
{
	GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;

	while (mirror->placement.nreplicas > 0)
		drop_replica(mirror, mirror->placement.nreplicas - 1);
	free(mirror);
}

/*
 * Creates the replicas one by one.  If a member cannot be created, drops the
 * other members of its replica.
 */
GvStatus
gv_devices_create(const GvMirrorSpec *spec, const GvPlacement *placement,
				  GvMirror **mirror, uint32_t *lacking)
{
	GvPlacedMirror *made = calloc(1, sizeof(GvPlacedMirror));
	int32_t		nshards = placement->nshards;
	GvStatus	status = GV_OK;
	uint32_t	failed = 0;
	int32_t		r;
	int32_t		s;

	if (made == NULL)
		return GV_NO_MEMORY;
	made->spec = *spec;
	made->placement.nshards = nshards;
	for (r = 0; r < placement->nreplicas &&
		 (status == GV_OK || gv_is_survivable(status)); r++)
	{
		int32_t		first = gv_nmembers(&made->placement);
		GvStatus	one = GV_OK;

		for (s = 0; s < nshards; s++)
		{
			GvMirrorSpec mine = member_spec(spec, placement, r * nshards + s);

			made->placement.devices[first + s] = mine.device;
			one = gv_devices_engine->create(&mine, &made->mirrors[first + s]);
			if (one != GV_OK)
				break;
		}
		if (one == GV_OK)
		{
			made->placement.nreplicas++;
			continue;
		}
		failed |= UINT32_C(1) << (r * nshards + s);
		while (--s >= 0)
			gv_devices_engine->drop(made->mirrors[first + s]);
		/* report the greatest status, or one that ends the loop */
		if (one > status || !gv_is_survivable(one))
			status = one;
	}
	if (made->placement.nreplicas > 0 && gv_is_survivable(status))
		status = GV_OK;
	if (status != GV_OK)
	{
		if (lacking != NULL)
			*lacking = failed;
		devices_drop((GvMirror *) made);
		return status;
	}
	*mirror = (GvMirror *) made;
	return GV_OK;
}

static GvStatus
devices_create(const GvMirrorSpec *spec, GvMirror **mirror)
{
	GvPlacement alone = {1, 1, {spec->device}};

	return gv_devices_create(spec, &alone, mirror, NULL);
}

int32_t
gv_devices_usage(const GvMirror *opaque, GvDeviceUsage *usage)
{
	const GvPlacedMirror *mirror = (const GvPlacedMirror *) opaque;
	int32_t		i;

	for (i = 0; i < gv_nmembers(&mirror->placement); i++)
	{
		usage[i].device = mirror->placement.devices[i];
		usage[i].bytes = gv_devices_engine->bytes(mirror->mirrors[i]);
	}
	return gv_nmembers(&mirror->placement);
}

GvStatus
gv_devices_drop_replica(GvMirror *opaque, int32_t device)
{
	GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;
	int32_t		nmembers = gv_nmembers(&mirror->placement);
	int32_t		i = 0;

	while (i < nmembers && mirror->placement.devices[i] != device)
		i++;
	if (i == nmembers || mirror->placement.nreplicas == 1)
		return GV_INVALID;
	drop_replica(mirror, i / mirror->placement.nshards);
	return GV_OK;
}

static int64_t
devices_bytes(const GvMirror *opaque)
{
	const GvPlacedMirror *mirror = (const GvPlacedMirror *) opaque;
	int64_t		bytes = 0;
	int32_t		i;

	for (i = 0; i < gv_nmembers(&mirror->placement); i++)
		bytes += gv_devices_engine->bytes(mirror->mirrors[i]);
	return bytes;
}

/*
 * This value is used in place of an owner when an array is changed, because
 * all shards have all arrays.
 */
#define ALL_SHARDS	(-1)

/*
 * Applies a change to the shard `owner` of each replica.  Then drops the
 * replicas in which the change failed, unless it failed in all replicas.
 */
static GvStatus
change_replicas(GvPlacedMirror *mirror, int32_t owner, const Change *change)
{
	const GvPlacement *placement = &mirror->placement;
	bool		lack[GV_MAX_DEVICES] = {false};
	int32_t		nreplicas = placement->nreplicas;
	int32_t		nlack = 0;
	GvStatus	refused = GV_OK;
	int32_t		r;
	int32_t		s;

	for (r = 0; r < nreplicas; r++)
	{
		for (s = 0; s < placement->nshards && !lack[r]; s++)
		{
			GvStatus	status;

			if (owner != ALL_SHARDS && owner != s)
				continue;
			status = apply(mirror->mirrors[r * placement->nshards + s],
						   change);
			if (status == GV_OK)
				continue;
			if (!gv_is_survivable(status))
				return status;
			if (status > refused)
				refused = status;
			lack[r] = true;
			nlack++;
		}
	}
	if (nlack == nreplicas)
		return refused;
	for (r = nreplicas - 1; r >= 0; r--)
		if (lack[r])
			drop_replica(mirror, r);
	return GV_OK;
}

static GvStatus
devices_put_array(GvMirror *opaque, GvArray array, int64_t first, int64_t n,
				  const void *values)
{
	Change		change = {.array = array, .first = first, .n = n,
	.values = values};

	return change_replicas((GvPlacedMirror *) opaque, ALL_SHARDS, &change);
}

static GvStatus
devices_put_list(GvMirror *opaque, const GvListChunk *chunk)
{
	GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;
	Change		change = {.chunk = chunk};

	return change_replicas(mirror, gv_list_owner(mirror, chunk->list),
						   &change);
}

static GvStatus
devices_put_refine(GvMirror *opaque, const GvRefineItem *items, int32_t n)
{
	GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;
	int32_t		dims = mirror->spec.dims;
	Change		change = {.items = items, .n = n};
	GvStatus	status = GV_OK;
	int32_t		i;

	if (!gv_refine_items_valid(&mirror->spec, items, n))
		return GV_INVALID;
	for (i = 0; i < n && status == GV_OK; i += (int32_t) change.n)
	{
		int32_t		owner;

		change.items = gv_refine_item(items, dims, i);
		owner = gv_record_owner(mirror, change.items->address);
		change.n = 1;
		while (i + change.n < n &&
			   gv_record_owner(mirror, gv_refine_item
							   (items, dims, i + (int32_t) change.n)
							   ->address) == owner)
			change.n++;
		status = change_replicas(mirror, owner, &change);
	}
	return status;
}

static GvStatus
devices_get_array(GvMirror *opaque, GvArray array, int64_t first, int64_t n,
				  void *values)
{
	GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;

	return gv_devices_engine->get_array(mirror->mirrors[0], array, first, n,
										values);
}

static GvStatus
devices_get_block(GvMirror *opaque, int32_t list, int32_t block, GvBlock *view)
{
	GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;

	return gv_devices_engine->get_block
		(mirror->mirrors[gv_list_owner(mirror, list)], list, block, view);
}

static GvStatus
devices_get_refine(GvMirror *opaque, const uint16_t *addresses, int32_t n,
				   GvRefineItem *items)
{
	GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;
	size_t		stride = gv_refine_stride(mirror->spec.dims);
	GvStatus	status = GV_OK;
	int32_t		first;
	int32_t		end;

	for (first = 0; first < n && status == GV_OK; first = end)
	{
		int32_t		owner = gv_record_owner(mirror, addresses + 3 *
											(size_t) first);

		end = first + 1;
		while (end < n &&
			   gv_record_owner(mirror, addresses + 3 * (size_t) end) == owner)
			end++;
		status = gv_devices_engine->get_refine
			(mirror->mirrors[owner], addresses + 3 * (size_t) first,
			 end - first,
			 (GvRefineItem *) ((char *) items + stride * (size_t) first));
	}
	return status;
}

/*
 * The other functions of the table are NULL, because gv_mirror.c does not call
 * them: it calls open, size and rejection of the engine itself, and
 * gv_devices_begin in place of begin.
 */
const GvMirrorBackend gv_devices_mirrors = {
	.create = devices_create,
	.drop = devices_drop,
	.bytes = devices_bytes,
	.put_array = devices_put_array,
	.put_list = devices_put_list,
	.put_refine = devices_put_refine,
	.get_array = devices_get_array,
	.get_block = devices_get_block,
	.get_refine = devices_get_refine,
	.searcher = gv_devices_searcher,
	.searcher_drop = gv_devices_searcher_drop,
	.done = gv_devices_done,
	.finish = gv_devices_finish,
};
