/*
 * gv_spread.c
 *		Mirrors on several devices: made, changed and read, part by part.
 *
 * A change of what all parts have goes to all.  A replica that finds no memory
 * is given up, so that all that are left hold the same; only when none of them
 * has any the change is refused, and it may have reached none.
 */
#include "engine/mirror/gv_spread.h"

#include <stdlib.h>
#include <string.h>

const GvMirrorBackend *gv_spread_engine;

/* One of the things that a part can be given; the others are NULL. */
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
apply(GvMirror *part, const Change *change)
{
	if (change->chunk != NULL)
		return gv_spread_engine->put_list(part, change->chunk);
	if (change->items != NULL)
		return gv_spread_engine->put_refine(part, change->items,
											(int32_t) change->n);
	return gv_spread_engine->put_array(part, change->array, change->first,
									   change->n, change->values);
}

/*
 * The specification of a part.  Engines expect half a block for the end of each
 * list, where there are copies, and a shard has such ends of its own lists only.
 */
static GvMirrorSpec
part_spec(const GvMirrorSpec *spec, const GvSpread *spread, int32_t part)
{
	GvMirrorSpec mine = *spec;

	mine.device = spread->devices[part];
	if (spread->kind == GV_SHARDS)
	{
		int64_t		others = spec->nlists - spec->nlists / spread->nparts;

		mine.postings = (mine.postings + spread->nparts - 1) / spread->nparts;
		mine.postings -= others * GV_BLOCK / 2;
		if (mine.postings < 1)
			mine.postings = spec->postings > 0;
		mine.refine_records = (mine.refine_records + spread->nparts - 1) /
			spread->nparts;
	}
	return mine;
}

/* See gv_mirror_part_size. */
int64_t
gv_spread_size(const GvMirrorSpec *spec, const GvSpread *spread, int32_t part)
{
	GvMirrorSpec mine = part_spec(spec, spread, part);

	return gv_spread_engine->size(&mine);
}

/* Drop a part; those behind it move up. */
static void
drop_part(GvSpreadMirror *mirror, int32_t part)
{
	GvSpread   *spread = &mirror->spread;
	size_t		behind = (size_t) (--spread->nparts - part);

	gv_spread_engine->drop(mirror->parts[part]);
	memmove(&mirror->parts[part], &mirror->parts[part + 1],
			behind * sizeof(mirror->parts[0]));
	memmove(&spread->devices[part], &spread->devices[part + 1],
			behind * sizeof(spread->devices[0]));
}

static void
spread_drop(GvMirror *opaque)
{
	GvSpreadMirror *mirror = (GvSpreadMirror *) opaque;

	while (mirror->spread.nparts > 0)
		drop_part(mirror, mirror->spread.nparts - 1);
	free(mirror);
}

/* See gv_mirror_create_on. */
GvStatus
gv_spread_create(const GvMirrorSpec *spec, const GvSpread *spread,
				 GvMirror **mirror, int32_t *lacking)
{
	GvSpreadMirror *made = calloc(1, sizeof(GvSpreadMirror));
	GvStatus	status = GV_OK;
	int32_t		i;

	if (made == NULL)
		return GV_NO_MEMORY;
	made->spec = *spec;
	made->spread.kind = spread->kind;
	for (i = 0; i < spread->nparts; i++)
	{
		GvMirrorSpec mine = part_spec(spec, spread, i);
		int32_t    *n = &made->spread.nparts;
		GvStatus	one = gv_spread_engine->create(&mine, &made->parts[*n]);

		if (one == GV_OK)
			made->spread.devices[(*n)++] = mine.device;
		else
			status = one;
		if (one != GV_OK &&
			(spread->kind == GV_SHARDS || !gv_is_survivable(one)))
		{
			if (lacking != NULL && spread->nparts > 1)
				*lacking = i;
			break;
		}
	}
	if (made->spread.nparts > 0 && spread->kind == GV_REPLICAS &&
		gv_is_survivable(status))
		status = GV_OK;
	if (status != GV_OK)
	{
		spread_drop((GvMirror *) made);
		return status;
	}
	*mirror = (GvMirror *) made;
	return GV_OK;
}

static GvStatus
spread_create(const GvMirrorSpec *spec, GvMirror **mirror)
{
	GvSpread	alone = {GV_SHARDS, 1, {spec->device}};

	return gv_spread_create(spec, &alone, mirror, NULL);
}

/* See gv_mirror_parts. */
int32_t
gv_spread_parts(const GvMirror *opaque, GvPart *parts)
{
	const GvSpreadMirror *mirror = (const GvSpreadMirror *) opaque;
	int32_t		i;

	for (i = 0; i < mirror->spread.nparts; i++)
	{
		parts[i].device = mirror->spread.devices[i];
		parts[i].bytes = gv_spread_engine->bytes(mirror->parts[i]);
	}
	return mirror->spread.nparts;
}

/* See gv_mirror_drop_part. */
GvStatus
gv_spread_drop_part(GvMirror *opaque, int32_t device)
{
	GvSpreadMirror *mirror = (GvSpreadMirror *) opaque;
	int32_t		i = 0;

	while (i < mirror->spread.nparts && mirror->spread.devices[i] != device)
		i++;
	if (mirror->spread.nparts == 1 || i == mirror->spread.nparts ||
		gv_has_shards(mirror))
		return GV_INVALID;
	drop_part(mirror, i);
	return GV_OK;
}

static int64_t
spread_size(const GvMirrorSpec *spec)
{
	return gv_spread_engine->size(spec);
}

static int64_t
spread_bytes(const GvMirror *opaque)
{
	const GvSpreadMirror *mirror = (const GvSpreadMirror *) opaque;
	int64_t		bytes = 0;
	int32_t		i;

	for (i = 0; i < mirror->spread.nparts; i++)
		bytes += gv_spread_engine->bytes(mirror->parts[i]);
	return bytes;
}

/* Give all parts the same. */
static GvStatus
change_all(GvSpreadMirror *mirror, const Change *change)
{
	bool		lack[GV_MAX_DEVICES] = {false};
	int32_t		nparts = mirror->spread.nparts;
	int32_t		nlack = 0;
	GvStatus	status = GV_OK;
	int32_t		i;

	for (i = 0; i < nparts; i++)
	{
		status = apply(mirror->parts[i], change);
		lack[i] = gv_is_survivable(status);
		if (status != GV_OK && (!lack[i] || gv_has_shards(mirror)))
			return status;
		nlack += lack[i];
	}
	if (nlack == nparts)
		return status;
	for (i = nparts - 1; i >= 0; i--)
		if (lack[i])
			drop_part(mirror, i);
	return GV_OK;
}

static GvStatus
spread_put_array(GvMirror *opaque, GvArray array, int64_t first, int64_t n,
				 const void *values)
{
	Change		change = {.array = array, .first = first, .n = n,
	.values = values};

	return change_all((GvSpreadMirror *) opaque, &change);
}

static GvStatus
spread_put_list(GvMirror *opaque, const GvListChunk *chunk)
{
	GvSpreadMirror *mirror = (GvSpreadMirror *) opaque;
	Change		change = {.chunk = chunk};

	if (gv_has_shards(mirror))
		return apply(mirror->parts[gv_list_owner(mirror, chunk->list)],
					 &change);
	return change_all(mirror, &change);
}

static GvStatus
spread_put_refine(GvMirror *opaque, const GvRefineItem *items, int32_t n)
{
	GvSpreadMirror *mirror = (GvSpreadMirror *) opaque;
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
		status = apply(mirror->parts[owner], &change);
	}
	return status;
}

static GvStatus
spread_get_array(GvMirror *opaque, GvArray array, int64_t first, int64_t n,
				 void *values)
{
	GvSpreadMirror *mirror = (GvSpreadMirror *) opaque;

	return gv_spread_engine->get_array(mirror->parts[0], array, first, n,
									   values);
}

static GvStatus
spread_get_block(GvMirror *opaque, int32_t list, int32_t block, GvBlock *view)
{
	GvSpreadMirror *mirror = (GvSpreadMirror *) opaque;

	return gv_spread_engine->get_block(mirror->parts[gv_list_owner(mirror,
																   list)],
									   list, block, view);
}

static GvStatus
spread_get_refine(GvMirror *opaque, const uint16_t *addresses, int32_t n,
				  GvRefineItem *items)
{
	GvSpreadMirror *mirror = (GvSpreadMirror *) opaque;
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
		status = gv_spread_engine->get_refine
			(mirror->parts[owner], addresses + 3 * (size_t) first, end - first,
			 (GvRefineItem *) ((char *) items + stride * (size_t) first));
	}
	return status;
}

static GvStatus
spread_open(const char *devices, GvDevice *found, int32_t *nfound)
{
	return gv_spread_engine->open(devices, found, nfound);
}

static void
spread_rejection(char *text, size_t size)
{
	if (gv_spread_engine->rejection != NULL)
		gv_spread_engine->rejection(text, size);
}

const GvMirrorBackend gv_spread_mirrors = {
	.name = "spread",
	.open = spread_open,
	.size = spread_size,
	.create = spread_create,
	.drop = spread_drop,
	.bytes = spread_bytes,
	.put_array = spread_put_array,
	.put_list = spread_put_list,
	.put_refine = spread_put_refine,
	.get_array = spread_get_array,
	.get_block = spread_get_block,
	.get_refine = spread_get_refine,
	.searcher = gv_spread_searcher,
	.searcher_drop = gv_spread_searcher_drop,
	.begin = gv_spread_begin,
	.done = gv_spread_done,
	.finish = gv_spread_finish,
	.rejection = spread_rejection,
};
