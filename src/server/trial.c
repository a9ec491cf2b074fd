/*
 * trial.c
 *		An index in the making is searched, to find out what recall takes: a
 *		mirror that no search sees, of what was trained, filled with lists as
 *		their pages are written.
 */
#include "server/gv_server.h"

#include <stdlib.h>
#include <string.h>

#define ARRAY_VALUES	(1 << 20)	/* brought over at once */

/* Bring an array from the builder to the mirror. */
static GvStatus
copy_array(GvTrial *trial, GvBuilder *builder, GvArray array, void *values)
{
	int64_t		length = gv_array_length(&trial->spec, array);
	GvStatus	status = GV_OK;
	int64_t		first;

	for (first = 0; first < length && status == GV_OK; first += ARRAY_VALUES)
	{
		int64_t		n = length - first < ARRAY_VALUES ? length - first :
		ARRAY_VALUES;

		status = gv_builder_get_array(builder, array, first, n, values);
		if (status == GV_OK)
			status = gv_mirror_put_array(trial->mirror, array, first, n,
										 values);
	}
	return status;
}

static GvStatus
copy_arrays(GvTrial *trial, GvBuilder *builder)
{
	void	   *values = malloc(4 * (size_t) ARRAY_VALUES);
	GvStatus	status = values != NULL ? GV_OK : GV_NO_MEMORY;
	int			array;

	for (array = 0; array < GV_NARRAYS && status == GV_OK; array++)
		status = copy_array(trial, builder, (GvArray) array, values);
	free(values);
	return status;
}

/* The mirror with all that was trained, and means to search it. */
static GvStatus
make(GvTrial *trial, GvBuilder *builder)
{
	GvStatus	status;

	do
		status = gv_mirror_create(&trial->spec, &trial->mirror);
	while (status == GV_NO_MEMORY && gv_mirrors_evict(trial->spec.device));
	if (status != GV_OK)
	{
		trial->mirror = NULL;
		return status;
	}
	status = copy_arrays(trial, builder);
	if (status == GV_OK)
		status = gv_mirrors_searcher(trial->spec.device, &trial->searcher);
	return status;
}

/*
 * Begin, where there is none yet; GV_INVALID when there is.  What fails leaves
 * nothing behind.
 */
GvStatus
gv_trial_begin(GvTrial *trial, const GvBuilderSpec *spec,
			   const GvTrained *trained, GvBuilder *builder, int64_t postings)
{
	int64_t		bytes;
	GvStatus	status;

	if (trial->mirror != NULL)
		return GV_INVALID;
	memset(&trial->spec, 0, sizeof(trial->spec));
	trial->spec.device = spec->device;
	trial->spec.metric = spec->metric;
	trial->spec.dims = spec->dims;
	trial->spec.m = spec->m;
	trial->spec.nlists = trained->nlists;
	trial->spec.nparents = trained->nparents;
	trial->spec.postings = postings;
	bytes = gv_mirror_size(&trial->spec);
	if (bytes == 0)
		return GV_INVALID;
	if (!gv_mirrors_reserve(spec->device, bytes))
		return GV_NO_MEMORY;
	trial->charged = bytes;
	status = make(trial, builder);
	if (status != GV_OK)
		gv_trial_end(trial);
	return status;
}

/* See GV_MSG_CHUNKS. */
void
gv_trial_pieces(GvTrial *trial, GvConnection *connection)
{
	const GvListsRequest *request = gv_payload(connection);
	const char *next = (const char *) (request + 1);
	const char *wrong = NULL;
	GvStatus	status = GV_OK;
	int32_t		i;

	if (trial->searcher == NULL || !gv_chunks_check(connection, &trial->spec))
		wrong = "malformed pieces, or no trial";
	for (i = 0; wrong == NULL && status == GV_OK && i < request->nchunks; i++)
	{
		const GvChunk *chunk = (const GvChunk *) next;
		GvListChunk open = gv_chunks_open(&trial->spec, chunk);

		if (chunk->first != 0 || chunk->flags != 0)
			wrong = "a piece that is no whole list";
		else if (chunk->state.nitems > trial->spec.postings - trial->npostings)
			wrong = "more copies than there was room made for";
		else
			status = gv_mirror_put_list(trial->mirror, &open);
		trial->npostings += chunk->state.nitems;
		next += gv_chunks_bytes(&trial->spec, chunk);
	}
	gv_chunks_conclude(connection, status, wrong);
}

/* May n queries be searched for so?  They fill the message. */
static bool
check_tries(const GvTrial *trial, const GvConnection *connection)
{
	const GvTryRequest *request = gv_payload(connection);
	int64_t		bytes = (int64_t) gv_message(connection)->length -
	(int64_t) sizeof(*request);

	return trial->searcher != NULL &&
		request->n >= 1 && request->n <= GV_MAX_TRIES &&
		request->probes >= 1 && request->probes <= GV_MAX_PROBES &&
		request->compare >= 1 &&
		request->capacity >= 1 && request->capacity <= GV_MAX_HITS &&
		(int64_t) request->n * request->capacity <= GV_MAX_TRIED_HITS &&
		bytes == (int64_t) request->n * trial->spec.dims * 4;
}

/* Search for all queries. */
static GvStatus
search(GvTrial *trial, const GvTryRequest *request)
{
	const float *queries = (const float *) (request + 1);
	int32_t		capacity = request->capacity;
	int32_t		i;

	/* no more come back than there are */
	if (capacity > trial->npostings)
		capacity = trial->npostings > 0 ? (int32_t) trial->npostings : 1;

	for (i = 0; i < request->n; i++)
	{
		GvSearch   *one = &trial->searches[i];

		memset(one, 0, sizeof(*one));
		one->query = queries + (size_t) i * (size_t) trial->spec.dims;
		one->probes = request->probes < trial->spec.nlists ?
			request->probes : trial->spec.nlists;
		one->compare = request->compare;
		one->capacity = capacity;
	}
	return gv_mirror_search(trial->searcher, trial->mirror, trial->searches,
							request->n);
}

/* Make the answer of what was found. */
static void
give_hits(const GvTrial *trial, GvConnection *connection, int32_t n)
{
	int64_t		total = 0;
	int32_t    *nhits;
	uint16_t   *rowids;
	int32_t		i;
	int32_t		j;

	for (i = 0; i < n; i++)
		total += trial->searches[i].nhits;
	nhits = gv_reply(connection, 4 * (size_t) n + 6 * (size_t) total);
	if (nhits == NULL)
		return;
	rowids = (uint16_t *) (nhits + n);
	for (i = 0; i < n; i++)
	{
		const GvSearch *one = &trial->searches[i];

		nhits[i] = one->nhits;
		for (j = 0; j < one->nhits; j++, rowids += 3)
			memcpy(rowids, one->hits[j].rowid, 6);
	}
}

/* See GV_MSG_TRY. */
void
gv_trial_search(GvTrial *trial, GvConnection *connection)
{
	const GvTryRequest *request = gv_payload(connection);
	GvStatus	status;

	if (!check_tries(trial, connection))
	{
		gv_chunks_conclude(connection, GV_OK, "a search out of range");
		return;
	}
	status = search(trial, request);
	if (status == GV_OK)
		give_hits(trial, connection, request->n);
	else
		gv_chunks_conclude(connection, status, NULL);
}

/* Give back what the trial has, if there is one. */
void
gv_trial_end(GvTrial *trial)
{
	if (trial->searcher != NULL)
		gv_mirrors_searcher_drop(trial->spec.device, trial->searcher);
	trial->searcher = NULL;
	gv_mirror_drop(trial->mirror);
	trial->mirror = NULL;
	gv_mirrors_unreserve(trial->spec.device, trial->charged);
	trial->charged = 0;
}
