/*
 * gv_mirror.c
 *		Mirrors: argument checks and dispatch to the engine.
 *
 * Operations on mirrors and searchers go to the engine that was passed to
 * gv_mirrors_open or, if there are several devices, to gv_devices_mirrors,
 * which calls that engine.  The engine itself checks arguments that depend on
 * a mirror's contents.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/gv_call.h"
#include "engine/mirror/gv_multi.h"

#define MAX_LISTS	(1 << 24)

/*
 * Set by gv_mirrors_open, and kept until the process ends.  Before the call,
 * and if it failed, mirrors is NULL and ndevices is 0.
 */
static const GvMirrorBackend *mirrors;
static int32_t ndevices;

static GvMatmulSetting matmul;

#ifdef GV_TEST_BUILD

static GvFault fault;
static GvSearcher *hung;		/* a searcher whose searches never end, or
								 * NULL; atomic */

void
gv_mirror_fault(int64_t n, GvStatus status)
{
	gv_fault_set(&fault, n, status);
}

int64_t
gv_mirror_bytes(const GvMirror *mirror)
{
	return mirror != NULL ? mirrors->bytes(mirror) : 0;
}

/* Returns whether a test made the searcher hang. */
static bool
is_hung(const GvSearcher *searcher)
{
	return __atomic_load_n(&hung, __ATOMIC_ACQUIRE) == searcher;
}

#else
#define is_hung(searcher) false
#endif

static bool
valid_spec(const GvMirrorSpec *spec)
{
	return spec != NULL &&
		spec->device >= 0 && spec->device < ndevices &&
		gv_valid_metric(spec->metric) && gv_valid_shape(spec->dims, spec->m) &&
		spec->nlists >= 1 && spec->nlists <= MAX_LISTS &&
		spec->nparents >= 1 && spec->nparents <= spec->nlists &&
		spec->postings >= 0 && spec->postings < INT64_C(1) << 48 &&
		spec->refine_slots >= 0 && spec->refine_slots <= UINT16_MAX &&
		gv_form_valid(&spec->keys) &&
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

static bool
valid_search(const GvSearch *search)
{
	if (search->given)
		return search->query != NULL && search->bounded &&
			search->nhits >= 0 && (search->hits != NULL || search->nhits == 0);
	return search->query != NULL && search->probes >= 1 &&
		(search->rank > 0 || !search->limited) &&
		search->compare >= 1 && search->capacity >= 1 &&
		search->rank >= 0 && search->rank <= search->capacity &&
		(search->condition != NULL ? gv_condition_valid(search->condition) :
		 search->rank == 0);
}

GvStatus
gv_mirrors_open(const GvMirrorBackend *engine, const char *devices,
				GvDevice *found, int32_t *nfound)
{
	GvStatus	status;

	if (engine == NULL || devices == NULL || found == NULL ||
		nfound == NULL || mirrors != NULL)
		return GV_INVALID;
	memset(found, 0, GV_MAX_DEVICES * sizeof(*found));
	if (gv_fault_is_due(&fault, &status))
	{
		strcpy(found->name, "injected fault");
		return status;
	}
	gv_devices_engine = engine;
	status = engine->open(devices, found, nfound);
	if (status == GV_OK)
	{
		mirrors = *nfound > 1 ? &gv_devices_mirrors : engine;
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
	return mirrors != NULL && valid_spec(spec) ?
		gv_devices_engine->size(spec) : 0;
}

#ifdef GV_TEST_BUILD
GvStatus
gv_mirror_create(const GvMirrorSpec *spec, GvMirror **mirror)
{
	GV_CALL(fault, mirrors != NULL && valid_spec(spec) && mirror != NULL);
	return mirrors->create(spec, mirror);
}
#endif

static bool
is_multi_device(void)
{
	return mirrors == &gv_devices_mirrors;
}

/*
 * Returns whether the devices of the placement exist and are all different.
 * Sets *placed to the spec, with the first of these devices as its device.
 */
static bool
valid_placement(const GvMirrorSpec *spec, const GvPlacement *placement,
				GvMirrorSpec *placed)
{
	uint32_t	seen = 0;
	int32_t		i;

	if (spec == NULL || placement == NULL ||
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
	*placed = *spec;
	placed->device = placement->devices[0];
	return valid_spec(placed);
}

int64_t
gv_mirror_member_size(const GvMirrorSpec *spec, const GvPlacement *placement,
					  int32_t member)
{
	GvMirrorSpec placed;

	if (mirrors == NULL || !valid_placement(spec, placement, &placed) ||
		member < 0 || member >= gv_nmembers(placement))
		return 0;
	return gv_devices_size(&placed, placement, member);
}

GvStatus
gv_mirror_create_on(const GvMirrorSpec *spec, const GvPlacement *placement,
					GvMirror **mirror, uint32_t *lacking)
{
	GvMirrorSpec placed;

	if (lacking != NULL)
		*lacking = UINT32_MAX;
	GV_CALL(fault, mirrors != NULL &&
			valid_placement(spec, placement, &placed) &&
			mirror != NULL);
	return is_multi_device() ?
		gv_devices_create(&placed, placement, mirror, lacking) :
		mirrors->create(&placed, mirror);
}

int32_t
gv_mirror_usage(const GvMirror *mirror, GvDeviceUsage *usage)
{
	if (is_multi_device())
		return gv_devices_usage(mirror, usage);
	usage[0].device = 0;
	usage[0].bytes = mirrors->bytes(mirror);
	return 1;
}

int32_t
gv_mirror_list_shard(const GvMirror *mirror, int32_t list)
{
	return is_multi_device() ?
		gv_list_owner((const GvPlacedMirror *) mirror, list) : 0;
}

int32_t
gv_mirror_record_shard(const GvMirror *mirror, const uint16_t *address)
{
	return is_multi_device() ?
		gv_record_owner((const GvPlacedMirror *) mirror, address) : 0;
}

GvStatus
gv_mirror_drop_replica(GvMirror *mirror, int32_t device)
{
	GV_CALL(fault, mirror != NULL);
	return is_multi_device() ? gv_devices_drop_replica(mirror, device) :
		GV_INVALID;
}

void
gv_mirror_drop(GvMirror *mirror)
{
	if (mirror != NULL)
		mirrors->drop(mirror);
}

GvStatus
gv_mirror_put_array(GvMirror *mirror, GvArray array, int64_t first,
					int64_t n, const void *values)
{
	GV_CALL(fault, mirror != NULL && gv_valid_values(array, first, n, values));
	return mirrors->put_array(mirror, array, first, n, values);
}

GvStatus
gv_mirror_put_list(GvMirror *mirror, const GvListChunk *chunk)
{
	GV_CALL(fault, mirror != NULL && valid_chunk(chunk));
	return mirrors->put_list(mirror, chunk);
}

bool
gv_refine_items_valid(const GvMirrorSpec *spec, const GvRefineItem *items,
					  int32_t n)
{
	uint64_t	last = 0;
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		const GvRefineItem *item = gv_refine_item(items, spec->dims, i);
		uint64_t	address = (uint64_t) item->address[0] << 32 |
		(uint64_t) item->address[1] << 16 | item->address[2];

		if (item->address[2] < 1 || item->address[2] > spec->refine_slots ||
			address <= last)
			return false;
		last = address;
	}
	return true;
}

GvStatus
gv_mirror_put_refine(GvMirror *mirror, const GvRefineItem *items, int32_t n)
{
	GV_CALL(fault, mirror != NULL && n >= 0 && (items != NULL || n == 0));
	return mirrors->put_refine(mirror, items, n);
}

GvStatus
gv_mirror_get_array(GvMirror *mirror, GvArray array, int64_t first,
					int64_t n, void *values)
{
	GV_CALL(fault, mirror != NULL && gv_valid_values(array, first, n, values));
	return mirrors->get_array(mirror, array, first, n, values);
}

GvStatus
gv_mirror_get_refine(GvMirror *mirror, const uint16_t *addresses, int32_t n,
					 GvRefineItem *items)
{
	GV_CALL(fault, mirror != NULL && n >= 0 &&
			((addresses != NULL && items != NULL) || n == 0));
	return mirrors->get_refine(mirror, addresses, n, items);
}

GvStatus
gv_mirror_get_block(GvMirror *mirror, int32_t list, int32_t block,
					GvBlock *view)
{
	GV_CALL(fault, mirror != NULL && list >= 0 && block >= 0 && view != NULL);
	return mirrors->get_block(mirror, list, block, view);
}

void
gv_rejection(char *reason, size_t size)
{
	reason[0] = '\0';
	if (mirrors != NULL && gv_devices_engine->rejection != NULL)
		gv_devices_engine->rejection(reason, size);
}

GvStatus
gv_searcher(int32_t device, GvSearcher **searcher)
{
	GV_CALL(fault, device >= 0 && device < ndevices && searcher != NULL);
	return mirrors->searcher(device, searcher);
}

void
gv_searcher_drop(GvSearcher *searcher)
{
	if (searcher != NULL)
		mirrors->searcher_drop(searcher);
}

GvStatus
gv_mirror_begin_shards(GvSearcher *const *searchers, int32_t nshards,
					   GvMirror *mirror, GvSearch *searches, int32_t n)
{
	int32_t		i;

#ifdef GV_TEST_BUILD
	GvStatus	status;

	if (gv_fault_strikes(&fault, &status))
	{
		if ((int) status != GV_HANGS)
			return status;
		__atomic_store_n(&hung, searchers[0], __ATOMIC_RELEASE);
		return GV_OK;
	}
#endif
	if (nshards < 1 || searchers[0] == NULL || mirror == NULL ||
		searches == NULL || n < 1)
		return GV_INVALID;
	for (i = 0; i < n; i++)
		if (!valid_search(&searches[i]) ||
			searches[i].given != searches[0].given)
			return GV_INVALID;
	if (is_multi_device())
		return gv_devices_begin(searchers, nshards, mirror, searches, n);
	return nshards == 1 ?
		mirrors->begin(searchers[0], mirror, searches, n) : GV_INVALID;
}

bool
gv_mirror_done(GvSearcher *searcher)
{
	return searcher == NULL || (!is_hung(searcher) && mirrors->done(searcher));
}

GvStatus
gv_mirror_finish(GvSearcher *searcher)
{
	GvStatus	injected = GV_OK;
	GvStatus	status;

	if (searcher == NULL)
		return GV_INVALID;
#ifdef GV_TEST_BUILD
	if (is_hung(searcher))
		gv_fault_hang();
#endif
	/* the search must be ended even if a test makes this call fail */
	(void) gv_fault_is_due(&fault, &injected);
	status = mirrors->finish(searcher);
	return injected != GV_OK ? injected : status;
}
