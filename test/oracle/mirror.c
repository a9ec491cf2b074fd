/*
 * mirror.c
 *		Mirrors in ordinary memory: a model's arrays and growing lists.
 *
 * Complete, always built, and the oracle of other engines' mirrors.  Lists
 * keep the blocks as they came; search.c reads them where they are.
 */
#include "test/oracle/gv_cpu_mirror.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A list that grows by an append gets a fifth more capacity than it needs. */
#define GROWTH	5

#define T_BYTES			(GV_BLOCK * sizeof(float))
#define ROWID_BYTES		(GV_BLOCK * 3 * sizeof(uint16_t))
#define LIVE_BYTES		sizeof(uint64_t)

static size_t
block_stride(const GvMirrorSpec *spec)
{
	return gv_keys_bytes(&spec->keys) + T_BYTES + ROWID_BYTES +
		(size_t) gv_code_bytes(spec->m) * GV_BLOCK + LIVE_BYTES;
}

/*
 * Returns the value of a line "name : value" of a /proc file; false without
 * one.
 */
static bool
proc_value(const char *path, const char *name, char *value, size_t size)
{
	FILE	   *file = fopen(path, "r");
	size_t		length = strlen(name);
	char		line[256];
	bool		found = false;

	if (file == NULL)
		return false;
	while (!found && fgets(line, sizeof(line), file) != NULL)
	{
		char	   *colon = strchr(line, ':');

		if (colon == NULL || strncmp(line, name, length) != 0)
			continue;
		colon += 1 + strspn(colon + 1, " \t");
		colon[strcspn(colon, "\n")] = '\0';
		snprintf(value, size, "%s", colon);
		found = true;
	}
	fclose(file);
	return found;
}

/*
 * A quarter of the machine's memory is for mirrors.  It is one device, or as
 * many as are named.
 */
static GvStatus
cpu_open(const char *devices, GvDevice *found, int32_t *nfound)
{
	int32_t		numbers[GV_MAX_DEVICES] = {0};
	int32_t		n = devices[0] != '\0' ? gv_parse_devices(devices, numbers) : 1;
	int64_t		memory = INT64_C(1) << 30;
	char		kilobytes[64];
	int32_t		i;

	if (n < 1)
	{
		strcpy(found->name, "malformed list of devices");
		return GV_INVALID;
	}
	if (proc_value("/proc/meminfo", "MemTotal", kilobytes, sizeof(kilobytes)))
		memory = strtoll(kilobytes, NULL, 10) * 1024 / 4;
	for (i = 0; i < n; i++)
	{
		GvDevice   *device = &found[i];

		if (!proc_value("/proc/cpuinfo", "model name", device->name,
						sizeof(device->name)))
			strcpy(device->name, "processor");
		device->number = numbers[i];
		device->memory = memory / n;
	}
	*nfound = n;
	return GV_OK;
}

static int64_t
cpu_size(const GvMirrorSpec *spec)
{
	int64_t		bytes = sizeof(GvMirror);
	int64_t		nblocks;
	int			i;

	for (i = 0; i < GV_NARRAYS; i++)
		bytes += gv_array_length(spec, (GvArray) i) * 4;
	bytes += (int64_t) spec->nlists * sizeof(GvCpuList);
	bytes += gv_cpu_records_size(spec);
	/* the last block of a list is half full, on an average */
	nblocks = (spec->postings + GV_BLOCK - 1) / GV_BLOCK;
	nblocks += spec->postings > 0 ? spec->nlists / 2 : 0;
	return bytes + nblocks * (int64_t) block_stride(spec);
}

static void
cpu_drop(GvMirror *mirror)
{
	int32_t		i;

	for (i = 0; i < GV_NARRAYS; i++)
		free(mirror->arrays[i]);
	for (i = 0; mirror->lists != NULL && i < mirror->spec.nlists; i++)
		free(mirror->lists[i].blocks);
	free(mirror->lists);
	gv_cpu_drop_records(mirror);
	free(mirror);
}

static GvStatus
cpu_create(const GvMirrorSpec *spec, GvMirror **mirror)
{
	GvMirror   *made = calloc(1, sizeof(GvMirror));
	bool		complete;
	int			i;

	if (made == NULL)
		return GV_NO_MEMORY;
	made->spec = *spec;
	made->stride = block_stride(spec);
	made->keys_bytes = gv_keys_bytes(&spec->keys);
	made->lists = calloc(spec->nlists, sizeof(GvCpuList));
	complete = made->lists != NULL && gv_cpu_records_create(made);
	made->bytes += sizeof(GvMirror) +
		(int64_t) spec->nlists * sizeof(GvCpuList);
	for (i = 0; i < GV_NARRAYS; i++)
	{
		int64_t		length = gv_array_length(spec, (GvArray) i);

		made->arrays[i] = calloc(length, 4);
		complete = complete && made->arrays[i] != NULL;
		made->bytes += length * 4;
	}
	if (!complete)
	{
		cpu_drop(made);
		return GV_NO_MEMORY;
	}
	made->model.metric = spec->metric;
	made->model.dims = spec->dims;
	made->model.m = spec->m;
	made->model.scale = 1.0f;
	made->model.codebooks = made->arrays[GV_CODEBOOKS];
	*mirror = made;
	return GV_OK;
}

static int64_t
cpu_bytes(const GvMirror *mirror)
{
	return mirror->bytes;
}

/* Does every parent own lists, one after another, and every list have one? */
static bool
offsets_cover_lists(const GvMirror *mirror)
{
	const int32_t *parent_offsets = mirror->arrays[GV_PARENT_OFFSETS];
	int32_t		nparents = mirror->spec.nparents;
	int32_t		i;

	for (i = 0; i < nparents; i++)
		if (parent_offsets[i] >= parent_offsets[i + 1])
			return false;
	return parent_offsets[0] == 0 &&
		parent_offsets[nparents] == mirror->spec.nlists;
}

static GvStatus
cpu_put_array(GvMirror *mirror, GvArray array, int64_t first, int64_t n,
			  const void *values)
{
	if (first + n > gv_array_length(&mirror->spec, array))
		return GV_INVALID;
	if (n > 0)
		memcpy((char *) mirror->arrays[array] + first * 4, values, n * 4);
	/* now, because searches share a mirror and must not write to it */
	if (array == GV_PARENT_OFFSETS)
		mirror->covered = offsets_cover_lists(mirror);
	return GV_OK;
}

static GvStatus
cpu_get_array(GvMirror *mirror, GvArray array, int64_t first, int64_t n,
			  void *values)
{
	if (first + n > gv_array_length(&mirror->spec, array))
		return GV_INVALID;
	if (n > 0)
		memcpy(values, (char *) mirror->arrays[array] + first * 4, n * 4);
	return GV_OK;
}

/* Gets capacity for nblocks blocks in a list that keeps its first `kept`. */
static GvStatus
ensure_capacity(GvMirror *mirror, GvCpuList *list, int32_t kept,
				int32_t nblocks)
{
	int64_t		capacity = nblocks;
	char	   *blocks;

	if (nblocks <= list->capacity && nblocks >= list->capacity / 2)
		return GV_OK;
	if (nblocks == 0)
	{
		mirror->bytes -= (int64_t) list->capacity * mirror->stride;
		free(list->blocks);
		memset(list, 0, sizeof(*list));
		return GV_OK;
	}
	if (kept > 0)
		capacity += nblocks / GROWTH;
	if (capacity > INT32_MAX || (size_t) capacity > SIZE_MAX / mirror->stride)
		return GV_NO_MEMORY;
	blocks = realloc(list->blocks, (size_t) capacity * mirror->stride);
	if (blocks == NULL)
		return GV_NO_MEMORY;
	mirror->bytes += (capacity - list->capacity) * (int64_t) mirror->stride;
	list->blocks = blocks;
	list->capacity = (int32_t) capacity;
	return GV_OK;
}

static void
put_live(const GvMirror *mirror, GvCpuList *list, const GvListChunk *chunk)
{
	size_t		offset = mirror->stride - LIVE_BYTES;
	int32_t		i;

	for (i = 0; i < chunk->nblocks; i++)
		memcpy(list->blocks + offset + mirror->stride * (chunk->first + i),
			   &chunk->live[i], sizeof(uint32_t));
}

static GvStatus
cpu_put_list(GvMirror *mirror, const GvListChunk *chunk)
{
	size_t		code_bytes = (size_t) gv_code_bytes(mirror->spec.m) * GV_BLOCK;
	GvCpuList  *list;
	GvStatus	status;
	size_t		i;

	if (chunk->list >= mirror->spec.nlists)
		return GV_INVALID;
	list = &mirror->lists[chunk->list];
	if (chunk->codes == NULL)
	{
		if (chunk->first + chunk->nblocks != list->nblocks)
			return GV_INVALID;
		put_live(mirror, list, chunk);
		return GV_OK;
	}
	if (chunk->first > list->nblocks ||
		(chunk->keys != NULL) != (mirror->keys_bytes > 0))
		return GV_INVALID;
	status = ensure_capacity(mirror, list, chunk->first,
							 chunk->first + chunk->nblocks);
	if (status != GV_OK)
		return status;
	for (i = 0; i < (size_t) chunk->nblocks; i++)
	{
		char	   *block = list->blocks +
		mirror->stride * ((size_t) chunk->first + i);

		if (mirror->keys_bytes > 0)
			memcpy(block, (const char *) chunk->keys + i * mirror->keys_bytes,
				   mirror->keys_bytes);
		block += mirror->keys_bytes;
		memcpy(block, chunk->t + i * GV_BLOCK, T_BYTES);
		memcpy(block + T_BYTES, chunk->rowids + i * GV_BLOCK * 3,
			   ROWID_BYTES);
		memcpy(block + T_BYTES + ROWID_BYTES, chunk->codes + i * code_bytes,
			   code_bytes);
	}
	put_live(mirror, list, chunk);
	list->nblocks = chunk->first + chunk->nblocks;
	return GV_OK;
}

GvBlock
gv_cpu_block(const GvMirror *mirror, const GvCpuList *list, int32_t b)
{
	const char *memory = list->blocks + mirror->stride * (size_t) b;
	GvBlock		block = {0};

	memcpy(&block.live, memory + mirror->stride - LIVE_BYTES,
		   sizeof(uint32_t));
	block.keys = mirror->keys_bytes > 0 ? memory : NULL;
	memory += mirror->keys_bytes;
	block.t = (const float *) memory;
	block.rowids = (const uint16_t *) (memory + T_BYTES);
	block.codes = (const uint8_t *) (memory + T_BYTES + ROWID_BYTES);
	return block;
}

static GvStatus
cpu_get_block(GvMirror *mirror, int32_t list, int32_t block, GvBlock *view)
{
	if (list >= mirror->spec.nlists ||
		block >= mirror->lists[list].nblocks)
		return GV_INVALID;
	*view = gv_cpu_block(mirror, &mirror->lists[list], block);
	return GV_OK;
}

const GvMirrorBackend gv_cpu_mirrors = {
	.name = "cpu",
	.open = cpu_open,
	.size = cpu_size,
	.create = cpu_create,
	.drop = cpu_drop,
	.bytes = cpu_bytes,
	.put_array = cpu_put_array,
	.put_list = cpu_put_list,
	.put_refine = gv_cpu_put_refine,
	.put_rows = gv_cpu_put_rows,
	.drop_rows = gv_cpu_drop_rows,
	.get_array = cpu_get_array,
	.get_block = cpu_get_block,
	.get_refine = gv_cpu_get_refine,
	.get_rows = gv_cpu_get_rows,
	.searcher = gv_cpu_searcher,
	.searcher_drop = gv_cpu_searcher_drop,
	.begin = gv_cpu_mirror_begin,
	.done = gv_cpu_mirror_done,
	.finish = gv_cpu_mirror_finish,
};
