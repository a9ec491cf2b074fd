/*
 * gv_multi.c
 *		Mirrors on several devices: made, changed and read, member by member.
 *
 * A change of what all members have goes to all.  A replica that finds no
 * memory is given up, so that all that are left have the same; only when none
 * of them has any the change is refused, and it may have reached none.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/mirror/gv_multi.h"

const GvMirrorBackend *gv_devices_engine;

/* One change of a member; the others are NULL. */
typedef struct Change
{
	GvArray		array;
	int64_t		first;
	int64_t		n;				/* values, or items */
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
 * The specification of a member.  Engines expect half a block for the end of
 * each list, where there are postings, and a shard has such ends of its own
 * lists only.
 */
static GvMirrorSpec
member_spec(const GvMirrorSpec *spec, const GvPlacement *placement,
			int32_t member)
{
	GvMirrorSpec mine = *spec;

	mine.device = placement->devices[member];
	if (placement->mode == GV_SHARDS)
	{
		int64_t		others = spec->nlists - spec->nlists / placement->ndevices;

		mine.postings = (mine.postings + placement->ndevices - 1) /
			placement->ndevices;
		mine.postings -= others * GV_BLOCK / 2;
		if (mine.postings < 1)
			mine.postings = spec->postings > 0;
		mine.refine_records = (mine.refine_records + placement->ndevices - 1) /
			placement->ndevices;
	}
	return mine;
}

/* See gv_mirror_member_size. */
int64_t
gv_devices_size(const GvMirrorSpec *spec, const GvPlacement *placement,
				int32_t member)
{
	GvMirrorSpec mine = member_spec(spec, placement, member);

	return gv_devices_engine->size(&mine);
}

/* Drops a member; those behind it move up. */
static void
drop_member(GvPlacedMirror *mirror, int32_t member)
{
	GvPlacement *placement = &mirror->placement;
	size_t		behind = (size_t) (--placement->ndevices - member);

	gv_devices_engine->drop(mirror->mirrors[member]);
	memmove(&mirror->mirrors[member], &mirror->mirrors[member + 1],
			behind * sizeof(mirror->mirrors[0]));
	memmove(&placement->devices[member], &placement->devices[member + 1],
			behind * sizeof(placement->devices[0]));
}

static void
devices_drop(GvMirror *opaque)
{
	GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;

	while (mirror->placement.ndevices > 0)
		drop_member(mirror, mirror->placement.ndevices - 1);
	free(mirror);
}

/* See gv_mirror_create_on. */
GvStatus
gv_devices_create(const GvMirrorSpec *spec, const GvPlacement *placement,
				  GvMirror **mirror, int32_t *lacking)
{
	GvPlacedMirror *made = calloc(1, sizeof(GvPlacedMirror));
	GvStatus	status = GV_OK;
	int32_t		i;

	if (made == NULL)
		return GV_NO_MEMORY;
	made->spec = *spec;
	made->placement.mode = placement->mode;
	for (i = 0; i < placement->ndevices; i++)
	{
		GvMirrorSpec mine = member_spec(spec, placement, i);
		int32_t    *n = &made->placement.ndevices;
		GvStatus	one = gv_devices_engine->create(&mine, &made->mirrors[*n]);

		if (one == GV_OK)
			made->placement.devices[(*n)++] = mine.device;
		else
			status = one;
		if (one != GV_OK &&
			(placement->mode == GV_SHARDS || !gv_is_survivable(one)))
		{
			if (lacking != NULL && placement->ndevices > 1)
				*lacking = i;
			break;
		}
	}
	if (made->placement.ndevices > 0 && placement->mode == GV_REPLICAS &&
		gv_is_survivable(status))
		status = GV_OK;
	if (status != GV_OK)
	{
		devices_drop((GvMirror *) made);
		return status;
	}
	*mirror = (GvMirror *) made;
	return GV_OK;
}

static GvStatus
devices_create(const GvMirrorSpec *spec, GvMirror **mirror)
{
	GvPlacement alone = {GV_SHARDS, 1, {spec->device}};

	return gv_devices_create(spec, &alone, mirror, NULL);
}

/* See gv_mirror_usage. */
int32_t
gv_devices_usage(const GvMirror *opaque, GvDeviceUsage *usage)
{
	const GvPlacedMirror *mirror = (const GvPlacedMirror *) opaque;
	int32_t		i;

	for (i = 0; i < mirror->placement.ndevices; i++)
	{
		usage[i].device = mirror->placement.devices[i];
		usage[i].bytes = gv_devices_engine->bytes(mirror->mirrors[i]);
	}
	return mirror->placement.ndevices;
}

/* See gv_mirror_drop_replica. */
GvStatus
gv_devices_drop_replica(GvMirror *opaque, int32_t device)
{
	GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;
	int32_t		i = 0;

	while (i < mirror->placement.ndevices &&
		   mirror->placement.devices[i] != device)
		i++;
	if (mirror->placement.ndevices == 1 || i == mirror->placement.ndevices ||
		gv_has_shards(mirror))
		return GV_INVALID;
	drop_member(mirror, i);
	return GV_OK;
}

static int64_t
devices_size(const GvMirrorSpec *spec)
{
	return gv_devices_engine->size(spec);
}

static int64_t
devices_bytes(const GvMirror *opaque)
{
	const GvPlacedMirror *mirror = (const GvPlacedMirror *) opaque;
	int64_t		bytes = 0;
	int32_t		i;

	for (i = 0; i < mirror->placement.ndevices; i++)
		bytes += gv_devices_engine->bytes(mirror->mirrors[i]);
	return bytes;
}

/* Makes a change in all members. */
static GvStatus
change_all(GvPlacedMirror *mirror, const Change *change)
{
	bool		lack[GV_MAX_DEVICES] = {false};
	int32_t		ndevices = mirror->placement.ndevices;
	int32_t		nlack = 0;
	GvStatus	status = GV_OK;
	int32_t		i;

	for (i = 0; i < ndevices; i++)
	{
		status = apply(mirror->mirrors[i], change);
		lack[i] = gv_is_survivable(status);
		if (status != GV_OK && (!lack[i] || gv_has_shards(mirror)))
			return status;
		nlack += lack[i];
	}
	if (nlack == ndevices)
		return status;
	for (i = ndevices - 1; i >= 0; i--)
		if (lack[i])
			drop_member(mirror, i);
	return GV_OK;
}

static GvStatus
devices_put_array(GvMirror *opaque, GvArray array, int64_t first, int64_t n,
				  const void *values)
{
	Change		change = {.array = array, .first = first, .n = n,
	.values = values};

	return change_all((GvPlacedMirror *) opaque, &change);
}

static GvStatus
devices_put_list(GvMirror *opaque, const GvListChunk *chunk)
{
	GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;
	Change		change = {.chunk = chunk};

	if (gv_has_shards(mirror))
		return apply(mirror->mirrors[gv_list_owner(mirror, chunk->list)],
					 &change);
	return change_all(mirror, &change);
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
	if (n == 0)
		return GV_OK;
	if (!gv_has_shards(mirror))
		return change_all(mirror, &change);
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
		status = apply(mirror->mirrors[owner], &change);
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

	return gv_devices_engine->get_block(mirror->mirrors[gv_list_owner(mirror,
																	  list)],
										list, block, view);
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

static GvStatus
devices_open(const char *devices, GvDevice *found, int32_t *nfound)
{
	return gv_devices_engine->open(devices, found, nfound);
}

static void
devices_rejection(char *text, size_t size)
{
	if (gv_devices_engine->rejection != NULL)
		gv_devices_engine->rejection(text, size);
}

const GvMirrorBackend gv_devices_mirrors = {
	.name = "spread",
	.open = devices_open,
	.size = devices_size,
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
	.begin = gv_devices_begin,
	.done = gv_devices_done,
	.finish = gv_devices_finish,
	.rejection = devices_rejection,
};
