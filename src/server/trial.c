/*
 * trial.c
 *		Calibration mirrors.  An index that is being built is searched to
 *		calibrate it: in a mirror that no session sees, of the trained model,
 *		filled with lists as their pages are written.
 */
#include "server/gv_server.h"

#include <stdlib.h>
#include <string.h>

#define ARRAY_VALUES	(1 << 20)	/* brought over at once */

/* Bring an array from the builder to the mirror. */
static GvStatus
copy_array(GvCalibMirror *calib, GvBuilder *builder, GvArray array,
		   void *values)
{
	int64_t		length = gv_array_length(&calib->spec, array);
	GvStatus	status = GV_OK;
	int64_t		first;

	for (first = 0; first < length && status == GV_OK; first += ARRAY_VALUES)
	{
		int64_t		n = length - first < ARRAY_VALUES ? length - first :
		ARRAY_VALUES;

		status = gv_builder_get_array(builder, array, first, n, values);
		if (status == GV_OK)
			status = gv_mirror_put_array(calib->mirror, array, first, n,
										 values);
	}
	return status;
}

static GvStatus
copy_arrays(GvCalibMirror *calib, GvBuilder *builder)
{
	void	   *values = malloc(4 * (size_t) ARRAY_VALUES);
	GvStatus	status = values != NULL ? GV_OK : GV_NO_MEMORY;
	int			array;

	for (array = 0; array < GV_NARRAYS && status == GV_OK; array++)
		status = copy_array(calib, builder, (GvArray) array, values);
	free(values);
	return status;
}

/* The mirror with all that was trained, and means to search it. */
static GvStatus
make(GvCalibMirror *calib, GvBuilder *builder)
{
	GvStatus	status;

	do
		status = gv_mirror_create(&calib->spec, &calib->mirror);
	while (status == GV_NO_MEMORY && gv_mirrors_evict(calib->spec.device));
	if (status != GV_OK)
	{
		calib->mirror = NULL;
		return status;
	}
	status = copy_arrays(calib, builder);
	if (status == GV_OK)
		status = gv_mirrors_searcher(calib->spec.device, &calib->searcher);
	return status;
}

/*
 * Begin, where there is none yet; GV_INVALID when there is.  A failure leaves
 * nothing behind.
 */
GvStatus
gv_calib_mirror_begin(GvCalibMirror *calib, const GvBuilderSpec *spec,
					  const GvTrained *trained, GvBuilder *builder, int64_t postings)
{
	int64_t		bytes;
	GvStatus	status;

	if (calib->mirror != NULL)
		return GV_INVALID;
	memset(&calib->spec, 0, sizeof(calib->spec));
	calib->spec.device = spec->device;
	calib->spec.metric = spec->metric;
	calib->spec.dims = spec->dims;
	calib->spec.m = spec->m;
	calib->spec.nlists = trained->nlists;
	calib->spec.nparents = trained->nparents;
	calib->spec.postings = postings;
	bytes = gv_mirror_size(&calib->spec);
	if (bytes == 0)
		return GV_INVALID;
	if (!gv_mirrors_reserve(spec->device, bytes))
		return GV_NO_MEMORY;
	calib->charged = bytes;
	status = make(calib, builder);
	if (status != GV_OK)
		gv_calib_mirror_end(calib);
	return status;
}

/* See GV_MSG_CHUNKS. */
void
gv_calib_mirror_chunks(GvCalibMirror *calib, GvConnection *connection)
{
	const GvListsRequest *request = gv_payload(connection);
	const char *next = (const char *) (request + 1);
	const char *wrong = NULL;
	GvStatus	status = GV_OK;
	int32_t		i;

	if (calib->searcher == NULL || !gv_chunks_check(connection, &calib->spec))
		wrong = "malformed pieces, or no trial";
	for (i = 0; wrong == NULL && status == GV_OK && i < request->nchunks; i++)
	{
		const GvChunk *chunk = (const GvChunk *) next;
		GvListChunk open = gv_chunks_open(&calib->spec, chunk);

		if (chunk->first != 0 || chunk->flags != 0)
			wrong = "a piece that is no whole list";
		else if (chunk->state.nitems > calib->spec.postings - calib->npostings)
			wrong = "more copies than there was room made for";
		else
			status = gv_mirror_put_list(calib->mirror, &open);
		calib->npostings += chunk->state.nitems;
		next += gv_chunks_bytes(&calib->spec, chunk);
	}
	gv_chunks_conclude(connection, status, wrong);
}

/* May n queries be searched for so?  They fill the message. */
static bool
check_tries(const GvCalibMirror *calib, const GvConnection *connection)
{
	const GvTryRequest *request = gv_payload(connection);
	int64_t		bytes = (int64_t) gv_message(connection)->length -
	(int64_t) sizeof(*request);

	return calib->searcher != NULL &&
		request->n >= 1 && request->n <= GV_MAX_TRIES &&
		request->probes >= 1 && request->probes <= GV_MAX_PROBES &&
		request->compare >= 1 &&
		request->capacity >= 1 && request->capacity <= GV_MAX_HITS &&
		(int64_t) request->n * request->capacity <= GV_MAX_TRIED_HITS &&
		bytes == (int64_t) request->n * calib->spec.dims * 4;
}

/* Search for all queries. */
static GvStatus
search(GvCalibMirror *calib, const GvTryRequest *request)
{
	const float *queries = (const float *) (request + 1);
	int32_t		capacity = request->capacity;
	int32_t		i;

	/* no more come back than there are */
	if (capacity > calib->npostings)
		capacity = calib->npostings > 0 ? (int32_t) calib->npostings : 1;

	for (i = 0; i < request->n; i++)
	{
		GvSearch   *one = &calib->searches[i];

		memset(one, 0, sizeof(*one));
		one->query = queries + (size_t) i * (size_t) calib->spec.dims;
		one->probes = request->probes < calib->spec.nlists ?
			request->probes : calib->spec.nlists;
		one->compare = request->compare;
		one->capacity = capacity;
	}
	return gv_mirror_search(calib->searcher, calib->mirror, calib->searches,
							request->n);
}

/* Make the answer of what was found. */
static void
give_hits(const GvCalibMirror *calib, GvConnection *connection, int32_t n)
{
	int64_t		total = 0;
	int32_t    *nhits;
	uint16_t   *rowids;
	int32_t		i;
	int32_t		j;

	for (i = 0; i < n; i++)
		total += calib->searches[i].nhits;
	nhits = gv_reply(connection, 4 * (size_t) n + 6 * (size_t) total);
	if (nhits == NULL)
		return;
	rowids = (uint16_t *) (nhits + n);
	for (i = 0; i < n; i++)
	{
		const GvSearch *one = &calib->searches[i];

		nhits[i] = one->nhits;
		for (j = 0; j < one->nhits; j++, rowids += 3)
			memcpy(rowids, one->hits[j].rowid, 6);
	}
}

/* See GV_MSG_TRY. */
void
gv_calib_mirror_search(GvCalibMirror *calib, GvConnection *connection)
{
	const GvTryRequest *request = gv_payload(connection);
	GvStatus	status;

	if (!check_tries(calib, connection))
	{
		gv_chunks_conclude(connection, GV_OK, "a search out of range");
		return;
	}
	status = search(calib, request);
	if (status == GV_OK)
		give_hits(calib, connection, request->n);
	else
		gv_chunks_conclude(connection, status, NULL);
}

/* Frees the calibration mirror, if there is one. */
void
gv_calib_mirror_end(GvCalibMirror *calib)
{
	if (calib->searcher != NULL)
		gv_mirrors_searcher_drop(calib->spec.device, calib->searcher);
	calib->searcher = NULL;
	gv_mirror_drop(calib->mirror);
	calib->mirror = NULL;
	gv_mirrors_unreserve(calib->spec.device, calib->charged);
	calib->charged = 0;
}
