/*
 * gv_mirror.c
 *		Mirrors: argument checks, and the routing of calls to the engine's
 *		mirrors on one or several devices (gv_multi.h).
 *
 * A change of arrays is applied to all members, and a change of lists, records
 * or rows to their owner in each replica.  A replica that cannot apply the
 * whole change is dropped (gv_mirror_create_on), so that all remaining
 * replicas have the same contents.
 *
 * The engine itself checks arguments that depend on a mirror's contents.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/mirror/gv_multi.h"

#define MAX_LISTS	(1 << 24)

const GvMirrorBackend *gv_mirrors_engine;

/* Set by gv_mirrors_open; 0 before the call, and if it failed. */
static int32_t ndevices;

static GvMatmulSetting matmul;

#ifdef GV_TEST_BUILD
GvFault		gv_mirror_calls;

void
gv_mirror_fault(int64_t n, GvStatus status)
{
	gv_fault_set(&gv_mirror_calls, n, status);
}
#endif

/* Returns whether the spec, without its device, is valid. */
static bool
valid_spec(const GvMirrorSpec *spec)
{
	return spec != NULL &&
		gv_valid_metric(spec->metric) && gv_valid_shape(spec->dims, spec->m) &&
		spec->nlists >= 1 && spec->nlists <= MAX_LISTS &&
		spec->nparents >= 1 && spec->nparents <= spec->nlists &&
		spec->postings >= 0 && spec->postings < INT64_C(1) << 48 &&
		spec->refine_slots >= 0 && spec->refine_slots <= UINT16_MAX &&
		gv_form_valid(&spec->keys) &&
		(spec->rows == GV_ROWS_NONE ||
		 ((spec->rows == GV_ROWS_FLOAT || spec->rows == GV_ROWS_HALF) &&
		  spec->refine_slots == 0)) &&
		spec->refine_records >= 0 &&
		spec->refine_records < INT64_C(1) << 48;
}

/*
 * Returns whether the chunk has all arrays of its blocks or, if only the live
 * bits change, none except `live`.
 */
static bool
valid_chunk(const GvListChunk *chunk)
{
	bool		bare;

	if (chunk == NULL || chunk->list < 0 || chunk->first < 0 ||
		chunk->nblocks < 0 || chunk->first > INT32_MAX - chunk->nblocks ||
		(chunk->live == NULL && chunk->nblocks > 0))
		return false;
	bare = chunk->codes == NULL;
	return (chunk->t == NULL) == bare && (chunk->rowids == NULL) == bare &&
		!(bare && chunk->keys != NULL);
}

GvStatus
gv_mirrors_open(const GvMirrorBackend *engine, const char *devices,
				GvDevice *found, int32_t *nfound)
{
	GvStatus	status;

	if (engine == NULL || devices == NULL || found == NULL ||
		nfound == NULL || gv_mirrors_engine != NULL)
		return GV_INVALID;
	memset(found, 0, GV_MAX_DEVICES * sizeof(*found));
	if (gv_fault_is_due(&gv_mirror_calls, &status))
	{
		strcpy(found->name, "injected fault");
		return status;
	}
	status = engine->open(devices, found, nfound);
	if (status == GV_OK)
	{
		gv_mirrors_engine = engine;
		ndevices = *nfound;
	}
	return status;
}

void
gv_matmul_use(GvMatmulSetting setting)
{
	matmul = setting;
}

GvMatmulSetting
gv_matmul_used(void)
{
	return matmul;
}

int32_t
gv_ndevices(void)
{
	return ndevices;
}

int32_t
gv_parse_devices(const char *devices, int32_t *numbers)
{
	const char *next = devices;
	int32_t		n = 0;
	int32_t		i;

	while (*next != '\0')
	{
		char	   *end;
		long		number = strtol(next, &end, 10);

		if (end == next || number < 0 || number > INT32_MAX ||
			n == GV_MAX_DEVICES)
			return -1;
		for (i = 0; i < n; i++)
			if (numbers[i] == (int32_t) number)
				return -1;
		numbers[n++] = (int32_t) number;
		end += strspn(end, " ");
		if (*end == ',' && end[1] != '\0')
			end++;
		else if (*end != '\0')
			return -1;
		next = end;
	}
	return n;
}

int64_t
gv_mirror_size(const GvMirrorSpec *spec)
{
	return valid_spec(spec) && spec->device >= 0 && spec->device < ndevices ?
		gv_mirrors_engine->size(spec) : 0;
}

/*
 * Returns whether the spec is valid, and whether the devices of the placement
 * exist and are all different.
 */
static bool
valid_placement(const GvMirrorSpec *spec, const GvPlacement *placement)
{
	uint32_t	seen = 0;
	int32_t		i;

	if (!valid_spec(spec) || placement == NULL ||
		placement->nshards < 1 || placement->nshards > ndevices ||
		placement->nreplicas < 1 ||
		placement->nreplicas > ndevices / placement->nshards)
		return false;
	for (i = 0; i < gv_nmembers(placement); i++)
	{
		int32_t		device = placement->devices[i];

		if (device < 0 || device >= ndevices || (seen >> device & 1) != 0)
			return false;
		seen |= UINT32_C(1) << device;
	}
	return true;
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
gv_mirror_member_size(const GvMirrorSpec *spec, const GvPlacement *placement,
					  int32_t member)
{
	GvMirrorSpec mine;

	if (!valid_placement(spec, placement) || member < 0 ||
		member >= gv_nmembers(placement))
		return 0;
	mine = member_spec(spec, placement, member);
	return gv_mirrors_engine->size(&mine);
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
		gv_mirrors_engine->drop(mirror->mirrors[i]);
	memmove(&mirror->mirrors[first], &mirror->mirrors[next],
			nlater * sizeof(mirror->mirrors[0]));
	memmove(&placement->devices[first], &placement->devices[next],
			nlater * sizeof(placement->devices[0]));
	placement->nreplicas--;
}

void
gv_mirror_drop(GvMirror *opaque)
{
	GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;

	while (mirror != NULL && mirror->placement.nreplicas > 0)
		drop_replica(mirror, mirror->placement.nreplicas - 1);
	free(mirror);
}

/*
 * Creates the replicas one by one.  If a member cannot be created, drops the
 * other members of its replica.
 */
GvStatus
gv_mirror_create_on(const GvMirrorSpec *spec, const GvPlacement *placement,
					GvMirror **mirror, uint32_t *lacking)
{
	GvPlacedMirror *made;
	int32_t		nshards;
	GvStatus	status = GV_OK;
	uint32_t	failed = 0;
	int32_t		r;
	int32_t		s;

	if (lacking != NULL)
		*lacking = UINT32_MAX;
	GV_CALL(gv_mirror_calls, valid_placement(spec, placement) &&
			mirror != NULL);
	made = calloc(1, sizeof(GvPlacedMirror));
	if (made == NULL)
		return GV_NO_MEMORY;
	nshards = placement->nshards;
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
			one = gv_mirrors_engine->create(&mine, &made->mirrors[first + s]);
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
			gv_mirrors_engine->drop(made->mirrors[first + s]);
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
		gv_mirror_drop((GvMirror *) made);
		return status;
	}
	*mirror = (GvMirror *) made;
	return GV_OK;
}

#ifdef GV_TEST_BUILD

GvStatus
gv_mirror_create(const GvMirrorSpec *spec, GvMirror **mirror)
{
	GvPlacement alone = {1, 1, {spec != NULL ? spec->device : 0}};

	return gv_mirror_create_on(spec, &alone, mirror, NULL);
}

int64_t
gv_mirror_bytes(const GvMirror *mirror)
{
	GvDeviceUsage usage[GV_MAX_DEVICES];
	int32_t		n = mirror != NULL ? gv_mirror_usage(mirror, usage) : 0;
	int64_t		bytes = 0;

	while (--n >= 0)
		bytes += usage[n].bytes;
	return bytes;
}

#endif

int32_t
gv_mirror_usage(const GvMirror *opaque, GvDeviceUsage *usage)
{
	const GvPlacedMirror *mirror = (const GvPlacedMirror *) opaque;
	int32_t		i;

	for (i = 0; i < gv_nmembers(&mirror->placement); i++)
	{
		usage[i].device = mirror->placement.devices[i];
		usage[i].bytes = gv_mirrors_engine->bytes(mirror->mirrors[i]);
	}
	return gv_nmembers(&mirror->placement);
}

/*
 * Returns the shard that has the blocks of a list.  Lists near each other have
 * adjacent numbers, so this spreads a search's probes over all shards.
 */
int32_t
gv_mirror_list_shard(const GvMirror *mirror, int32_t list)
{
	return list % ((const GvPlacedMirror *) mirror)->placement.nshards;
}

int32_t
gv_mirror_record_shard(const GvMirror *mirror, const uint16_t *address)
{
	return gv_record_owner((const GvPlacedMirror *) mirror, address);
}

GvStatus
gv_mirror_drop_replica(GvMirror *opaque, int32_t device)
{
	GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;
	int32_t		nmembers;
	int32_t		i = 0;

	GV_CALL(gv_mirror_calls, mirror != NULL);
	nmembers = gv_nmembers(&mirror->placement);
	while (i < nmembers && mirror->placement.devices[i] != device)
		i++;
	if (i == nmembers || mirror->placement.nreplicas == 1)
		return GV_INVALID;
	drop_replica(mirror, i / mirror->placement.nshards);
	return GV_OK;
}

/*
 * A change of a list (chunk), of records (items) or of rows.  If these three
 * are NULL, it is a change of an array.
 */
typedef struct Change
{
	GvArray		array;
	int64_t		first;			/* number of the first value */
	int64_t		n;				/* number of values, items or rows */
	const void *values;
	const GvListChunk *chunk;
	const GvRefineItem *items;
	const GvRowItem *rows;
} Change;

static GvStatus
apply(GvMirror *mirror, const Change *change)
{
	if (change->chunk != NULL)
		return gv_mirrors_engine->put_list(mirror, change->chunk);
	if (change->items != NULL)
		return gv_mirrors_engine->put_refine(mirror, change->items,
											 (int32_t) change->n);
	if (change->rows != NULL)
		return gv_mirrors_engine->put_rows(mirror, change->rows,
										   (int32_t) change->n);
	return gv_mirrors_engine->put_array(mirror, change->array, change->first,
										change->n, change->values);
}

/*
 * This value is used in place of an owner when an array is changed, because
 * all shards have all arrays.
 */
#define ALL_SHARDS	(-1)

/*
 * Applies a change to the shard `owner` of each replica.  Then drops the
 * replicas in which the change failed, unless it failed in all replicas.  A
 * replica without memory for rows is not dropped, because the caller drops the
 * rows of all replicas instead.
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
			if (!gv_is_survivable(status) ||
				(change->rows != NULL && status == GV_NO_MEMORY))
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

GvStatus
gv_mirror_put_array(GvMirror *mirror, GvArray array, int64_t first,
					int64_t n, const void *values)
{
	Change		change = {.array = array, .first = first, .n = n,
	.values = values};

	GV_CALL(gv_mirror_calls, mirror != NULL &&
			gv_valid_values(array, first, n, values));
	return change_replicas((GvPlacedMirror *) mirror, ALL_SHARDS, &change);
}

GvStatus
gv_mirror_put_list(GvMirror *mirror, const GvListChunk *chunk)
{
	Change		change = {.chunk = chunk};

	GV_CALL(gv_mirror_calls, mirror != NULL && valid_chunk(chunk));
	return change_replicas((GvPlacedMirror *) mirror,
						   gv_mirror_list_shard(mirror, chunk->list), &change);
}

/*
 * Returns whether the addresses of items [n], which are `stride` bytes apart,
 * ascend, and their slots are 1 to most_slot.
 */
static bool
addresses_valid(const void *items, size_t stride, int32_t n,
				int32_t most_slot)
{
	const char *next = items;
	uint64_t	last = 0;
	int32_t		i;

	for (i = 0; i < n; i++, next += stride)
	{
		const uint16_t *words = (const uint16_t *) next;
		uint64_t	address = (uint64_t) words[0] << 32 |
		(uint64_t) words[1] << 16 | words[2];

		if (words[2] < 1 || words[2] > most_slot || address <= last)
			return false;
		last = address;
	}
	return true;
}

bool
gv_refine_items_valid(const GvMirrorSpec *spec, const GvRefineItem *items,
					  int32_t n)
{
	return addresses_valid(items, gv_refine_stride(spec->dims), n,
						   spec->refine_slots);
}

bool
gv_row_items_valid(const GvMirrorSpec *spec, const GvRowItem *items,
				   int32_t n)
{
	return spec->rows == GV_ROWS_NONE ? n == 0 :
		addresses_valid(items, gv_row_stride(spec->rows, spec->dims), n,
						UINT16_MAX);
}

/*
 * Sets *owner to the shard of the record whose address has number `first`, and
 * returns the number of the next address that is on another shard, or n.  The
 * addresses [n] are `stride` bytes apart.
 */
static int32_t
run_end(const GvPlacedMirror *mirror, const void *addresses, size_t stride,
		int32_t first, int32_t n, int32_t *owner)
{
	const char *next = (const char *) addresses + stride * (size_t) first;
	int32_t		end = first + 1;

	*owner = gv_record_owner(mirror, (const uint16_t *) next);
	for (next += stride; end < n; next += stride, end++)
		if (gv_record_owner(mirror, (const uint16_t *) next) != *owner)
			break;
	return end;
}

/*
 * Gives items [n], which are `stride` bytes apart, to the shards that have
 * their addresses.  They are rows or refine items.
 */
static GvStatus
put_items(GvPlacedMirror *mirror, const void *items, size_t stride, int32_t n,
		  bool rows)
{
	GvStatus	status = GV_OK;
	int32_t		first;
	int32_t		end;

	for (first = 0; first < n && status == GV_OK; first = end)
	{
		const void *run = (const char *) items + stride * (size_t) first;
		Change		change = {.items = rows ? NULL : run,
		.rows = rows ? run : NULL};
		int32_t		owner;

		end = run_end(mirror, items, stride, first, n, &owner);
		change.n = end - first;
		status = change_replicas(mirror, owner, &change);
	}
	return status;
}

/*
 * The items are checked together, because an engine gets only those that are
 * on the same shard.
 */
GvStatus
gv_mirror_put_refine(GvMirror *opaque, const GvRefineItem *items, int32_t n)
{
	GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;

	GV_CALL(gv_mirror_calls, mirror != NULL && n >= 0 &&
			(items != NULL || n == 0));
	if (!gv_refine_items_valid(&mirror->spec, items, n))
		return GV_INVALID;
	return put_items(mirror, items, gv_refine_stride(mirror->spec.dims), n,
					 false);
}

GvStatus
gv_mirror_put_rows(GvMirror *opaque, const GvRowItem *items, int32_t n)
{
	GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;

	GV_CALL(gv_mirror_calls, mirror != NULL && n >= 0 &&
			(items != NULL || n == 0));
	if (!gv_row_items_valid(&mirror->spec, items, n))
		return GV_INVALID;
	return put_items(mirror, items,
					 gv_row_stride(mirror->spec.rows, mirror->spec.dims),
					 n, true);
}

GvStatus
gv_mirror_drop_rows(GvMirror *opaque)
{
	GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;
	GvStatus	status = GV_OK;
	int32_t		i;

	GV_CALL(gv_mirror_calls, mirror != NULL);
	for (i = 0; i < gv_nmembers(&mirror->placement) && status == GV_OK; i++)
		status = gv_mirrors_engine->drop_rows(mirror->mirrors[i]);
	if (status == GV_OK)
		mirror->spec.rows = GV_ROWS_NONE;
	return status;
}

GvStatus
gv_mirror_get_array(GvMirror *opaque, GvArray array, int64_t first,
					int64_t n, void *values)
{
	GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;

	GV_CALL(gv_mirror_calls, mirror != NULL &&
			gv_valid_values(array, first, n, values));
	return gv_mirrors_engine->get_array(mirror->mirrors[0], array, first, n,
										values);
}

/* Gets items, which will be `stride` bytes apart, like put_items. */
static GvStatus
get_items(const GvPlacedMirror *mirror, const uint16_t *addresses, int32_t n,
		  void *items, size_t stride, bool rows)
{
	GvStatus	status = GV_OK;
	int32_t		first;
	int32_t		end;

	for (first = 0; first < n && status == GV_OK; first = end)
	{
		const uint16_t *from = addresses + 3 * (size_t) first;
		void	   *to = (char *) items + stride * (size_t) first;
		GvMirror   *shard;
		int32_t		owner;

		end = run_end(mirror, addresses, 3 * sizeof(*addresses), first, n,
					  &owner);
		shard = mirror->mirrors[owner];
		status = rows ?
			gv_mirrors_engine->get_rows(shard, from, end - first, to) :
			gv_mirrors_engine->get_refine(shard, from, end - first, to);
	}
	return status;
}

GvStatus
gv_mirror_get_refine(GvMirror *opaque, const uint16_t *addresses, int32_t n,
					 GvRefineItem *items)
{
	const GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;

	GV_CALL(gv_mirror_calls, mirror != NULL && n >= 0 &&
			((addresses != NULL && items != NULL) || n == 0));
	return get_items(mirror, addresses, n, items,
					 gv_refine_stride(mirror->spec.dims), false);
}

GvStatus
gv_mirror_get_rows(GvMirror *opaque, const uint16_t *rowids, int32_t n,
				   GvRowItem *items)
{
	const GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;

	GV_CALL(gv_mirror_calls, mirror != NULL && n >= 0 &&
			((rowids != NULL && items != NULL) || n == 0));
	if (mirror->spec.rows == GV_ROWS_NONE)
		return GV_INVALID;
	return get_items(mirror, rowids, n, items,
					 gv_row_stride(mirror->spec.rows, mirror->spec.dims), true);
}

GvStatus
gv_mirror_get_block(GvMirror *opaque, int32_t list, int32_t block,
					GvBlock *view)
{
	GvPlacedMirror *mirror = (GvPlacedMirror *) opaque;

	GV_CALL(gv_mirror_calls, mirror != NULL && list >= 0 && block >= 0 &&
			view != NULL);
	return gv_mirrors_engine->get_block
		(mirror->mirrors[gv_mirror_list_shard(opaque, list)], list, block,
		 view);
}

void
gv_rejection(char *reason, size_t size)
{
	reason[0] = '\0';
	if (gv_mirrors_engine != NULL && gv_mirrors_engine->rejection != NULL)
		gv_mirrors_engine->rejection(reason, size);
}
