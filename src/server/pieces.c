/*
 * pieces.c
 *		What loaders bring, checked and put into a mirror.
 *
 * A mirror is locked for one piece at a time, so that searches go on while it
 * is loaded and brought up to date.
 */
#include "server/gv_server.h"

#include <string.h>

/* The mirror that a loader names, or NULL: refused. */
GvHeldMirror *
gv_pieces_acquire(GvConnection *connection, const GvMirrorKey *key)
{
	GvRefusalCode refusal;
	GvHeldMirror *held = gv_mirrors_acquire(key, connection->number,
											&refusal);

	if (held == NULL)
		gv_refuse(connection, refusal, gv_refusal_name(refusal));
	return held;
}

/* Say OK, or refuse; `wrong` for who broke the rules. */
void
gv_pieces_conclude(GvConnection *connection, GvStatus status, const char *wrong)
{
	GvRefusalCode refusal;

	if (wrong != NULL)
		gv_refuse(connection, GV_REFUSED_PROTOCOL, wrong);
	else if (status == GV_OK)
		gv_reply(connection, 0);
	else
	{
		refusal = gv_status_refusal(status);
		gv_refuse(connection, refusal, gv_refusal_name(refusal));
	}
}

/* Do the starts that came go on ascending, from 0 to the number of lists? */
static bool
check_parent_offsets(GvHeldMirror *held, int64_t first, int64_t n,
			 const int32_t *parent_offsets)
{
	int64_t		i;

	for (i = 0; i < n; i++)
	{
		if (first + i == 0 ? parent_offsets[i] != 0 : parent_offsets[i] <= held->last_parent_offset)
			return false;
		if (first + i == held->spec.nparents &&
			parent_offsets[i] != held->spec.nlists)
			return false;
		held->last_parent_offset = parent_offsets[i];
	}
	return true;
}

/* Elements come one after another, once, while the mirror is not ready. */
static const char *
check_array(GvHeldMirror *held, const GvArrayRequest *request)
{
	if (held->ready)
		return "the mirror has its arrays";
	if (request->first != held->filled[request->array] ||
		request->count > gv_array_length(&held->spec, (GvArray) request->array) -
		request->first)
		return "an array out of order";
	if (request->array == GV_PARENT_OFFSETS &&
		!check_parent_offsets(held, request->first, request->count,
					  (const int32_t *) (request + 1)))
		return "the parents' lists do not follow each other";
	return NULL;
}

/* See GV_MSG_ARRAY. */
void
gv_pieces_array(GvConnection *connection)
{
	const GvArrayRequest *request = gv_payload(connection);
	int64_t		bytes = (int64_t) gv_message(connection)->length -
	(int64_t) sizeof(*request);
	GvHeldMirror *held;
	const char *wrong = NULL;
	GvStatus	status = GV_OK;

	if (request->array < 0 || request->array >= GV_NARRAYS ||
		request->unused != 0 || request->count < 1 || bytes % 4 != 0 ||
		request->count != bytes / 4)
	{
		gv_pieces_conclude(connection, GV_OK, "a malformed array");
		return;
	}
	held = gv_pieces_acquire(connection, &request->key);
	if (held == NULL)
		return;
	pthread_rwlock_wrlock(&held->lock);
	wrong = check_array(held, request);
	if (wrong == NULL)
		status = gv_mirror_put_array(held->mirror, (GvArray) request->array,
									 request->first, request->count,
									 request + 1);
	if (wrong == NULL && status == GV_OK)
		held->filled[request->array] += request->count;
	pthread_rwlock_unlock(&held->lock);
	gv_mirrors_release(held, 0);
	gv_pieces_conclude(connection, status, wrong);
}

/* See GV_MSG_READY. */
void
gv_pieces_ready(GvConnection *connection)
{
	const GvKeyRequest *request = gv_payload(connection);
	GvHeldMirror *held = gv_pieces_acquire(connection, &request->key);
	const char *wrong = NULL;
	int32_t		array;

	if (held == NULL)
		return;
	if (held->ready)
		wrong = "the mirror is ready already";
	for (array = 0; array < GV_NARRAYS; array++)
		if (held->filled[array] != gv_array_length(&held->spec, (GvArray) array))
			wrong = "the mirror is not complete";
	if (wrong == NULL)
		gv_mirrors_ready(held);
	gv_mirrors_release(held, 0);
	gv_pieces_conclude(connection, GV_OK, wrong);
}

/* See GV_MSG_CURRENT. */
void
gv_pieces_current(GvConnection *connection)
{
	const GvCurrentRequest *request = gv_payload(connection);
	GvHeldMirror *held;

	if (request->version == 0)
	{
		gv_pieces_conclude(connection, GV_OK, "no version");
		return;
	}
	held = gv_pieces_acquire(connection, &request->key);
	if (held == NULL)
		return;
	pthread_rwlock_wrlock(&held->lock);
	if (held->seen_by == connection->number)
		held->version = request->version;
	pthread_rwlock_unlock(&held->lock);
	gv_mirrors_release(held, 0);
	gv_pieces_conclude(connection, GV_OK, NULL);
}

/* Where the arrays of a piece of such a mirror are. */
GvListPiece
gv_pieces_open(const GvMirrorSpec *spec, const GvPiece *piece)
{
	GvListPiece open = {
		.list = piece->list,
		.first = piece->first,
		.nblocks = piece->nblocks
	};
	size_t		postings = (size_t) piece->nblocks * GV_BLOCK;
	size_t		keys_bytes = gv_keys_bytes(&spec->keys);
	const char *next = (const char *) (piece + 1);

	open.live = (const uint32_t *) next;
	if ((piece->flags & GV_PIECE_LIVE) != 0)
		return open;
	next += (size_t) piece->nblocks * sizeof(uint32_t);
	open.t = (const float *) next;
	next += postings * sizeof(float);
	open.rowids = (const uint16_t *) next;
	next += postings * 3 * sizeof(uint16_t);
	if (keys_bytes > 0)
		open.keys = next;
	next += (size_t) piece->nblocks * keys_bytes;
	open.codes = (const uint8_t *) next;
	return open;
}

/* Is a piece well-formed, whatever the list holds?  It is all there. */
static bool
check_piece(const GvMirrorSpec *spec, const GvPiece *piece)
{
	const uint32_t *live = (const uint32_t *) (piece + 1);
	int64_t		last = (int64_t) piece->first + piece->nblocks;
	uint32_t	tail = piece->state.nitems % GV_BLOCK;

	if (piece->list < 0 || piece->list >= spec->nlists || piece->first < 0 ||
		last > INT32_MAX || (piece->flags & ~(uint32_t) GV_PIECE_LIVE) != 0 ||
		last != gv_blocks_of(piece->state.nitems))
		return false;
	if ((piece->flags & GV_PIECE_LIVE) != 0 && piece->first != 0)
		return false;
	/* what is in place already is full */
	if (piece->nblocks == 0)
		return tail == 0;
	return tail == 0 || live[piece->nblocks - 1] >> tail == 0;
}

/* Do npieces pieces fill the message to its last byte? */
bool
gv_pieces_check(const GvConnection *connection, const GvMirrorSpec *spec)
{
	const GvListsRequest *request = gv_payload(connection);
	const char *next = (const char *) (request + 1);
	int64_t		left = (int64_t) gv_message(connection)->length -
	(int64_t) sizeof(*request);
	int32_t		i;

	if (request->unused != 0 || request->npieces < 0)
		return false;
	for (i = 0; i < request->npieces; i++)
	{
		const GvPiece *piece = (const GvPiece *) next;
		int64_t		bytes;

		if (left < (int64_t) sizeof(*piece) || piece->nblocks < 0)
			return false;
		bytes = gv_pieces_bytes(spec, piece);
		if (bytes > left || !check_piece(spec, piece))
			return false;
		next += bytes;
		left -= bytes;
	}
	return left == 0;
}

/* Locked: does the piece fit to what the list holds? */
static bool
piece_follows(const GvHeldMirror *held, const GvPiece *piece)
{
	const GvListState *old = &held->states[piece->list];

	if ((piece->flags & GV_PIECE_LIVE) != 0)
		return piece->state.gen == old->gen &&
			piece->state.nitems == old->nitems;
	if (piece->first == 0)
		return true;
	return piece->state.gen == old->gen &&
		piece->state.del_seq == old->del_seq &&
		(int64_t) piece->first * GV_BLOCK <= (int64_t) old->nitems;
}

/*
 * Bytes that each part of a mirror will grow by with a piece, about, into growth
 * [GV_MAX_DEVICES].
 */
static void
piece_growth(GvHeldMirror *held, const GvPiece *piece, int64_t *growth)
{
	int32_t		part = gv_mirror_list_part(held->mirror, piece->list);
	int64_t		blocks = (int64_t) piece->first + piece->nblocks;
	GvPiece		one = {.nblocks = 1};
	int32_t		i;

	pthread_rwlock_rdlock(&held->lock);
	blocks -= gv_blocks_of(held->states[piece->list].nitems);
	pthread_rwlock_unlock(&held->lock);
	if (blocks < 0)
		blocks = 0;
	for (i = 0; i < GV_MAX_DEVICES; i++)
		growth[i] = part >= 0 && part != i ? 0 : blocks *
			(gv_pieces_bytes(&held->spec, &one) - (int64_t) sizeof(one));
}

/* The same of n items. */
static void
items_growth(const GvHeldMirror *held, const GvRefineItem *items, int32_t n,
			 int64_t *growth)
{
	int64_t		stride = (int64_t) gv_refine_stride(held->spec.dims);
	int32_t		i;
	int32_t		p;

	memset(growth, 0, GV_MAX_DEVICES * sizeof(*growth));
	for (i = 0; i < n; i++)
	{
		int32_t		part = gv_mirror_record_part
		(held->mirror, gv_refine_item(items, held->spec.dims, i)->address);

		for (p = 0; p < GV_MAX_DEVICES; p++)
			growth[p] += part >= 0 && part != p ? 0 : stride;
	}
}

/*
 * Put a well-formed piece in, which a connection has sent and for which there is
 * room; *wrong is told when it does not follow.
 */
static GvStatus
apply_piece(GvHeldMirror *held, uint64_t sender, const GvPiece *piece,
			const char **wrong)
{
	GvListPiece open = gv_pieces_open(&held->spec, piece);
	GvStatus	status = GV_OK;

	pthread_rwlock_wrlock(&held->lock);
	held->version = 0;
	if (held->seen_by != sender)
		held->seen_by = 0;
	if (!piece_follows(held, piece))
		*wrong = "a piece that does not follow what the list holds";
	else
		status = gv_mirror_put_list(held->mirror, &open);
	if (*wrong == NULL && status == GV_OK)
	{
		held->nitems += (int64_t) piece->state.nitems -
			(int64_t) held->states[piece->list].nitems;
		held->states[piece->list] = piece->state;
	}
	/* in here, because others who change the mirror report too */
	gv_mirrors_changed(held, held->nitems);
	pthread_rwlock_unlock(&held->lock);
	return status;
}

/* See GV_MSG_LISTS. */
void
gv_pieces_lists(GvConnection *connection)
{
	const GvListsRequest *request = gv_payload(connection);
	GvHeldMirror *held = gv_pieces_acquire(connection, &request->key);
	const char *next = (const char *) (request + 1);
	const char *wrong = NULL;
	GvStatus	status = GV_OK;
	bool		fits;			/* else others would be evicted in vain */
	int32_t		i;

	if (held == NULL)
		return;
	if (!gv_pieces_check(connection, &held->spec))
		wrong = "malformed pieces";
	for (i = 0; wrong == NULL && status == GV_OK && i < request->npieces; i++)
	{
		const GvPiece *piece = (const GvPiece *) next;
		int64_t		growth[GV_MAX_DEVICES];

		do
		{
			piece_growth(held, piece, growth);
			fits = gv_mirrors_room(held, growth);
			status = fits ? apply_piece(held, connection->number, piece,
										&wrong) : GV_NO_MEMORY;
		} while (fits && status == GV_NO_MEMORY &&
				 gv_mirrors_evict_for(held, growth));
		next += gv_pieces_bytes(&held->spec, piece);
	}
	gv_mirrors_release(held, 0);
	gv_pieces_conclude(connection, status, wrong);
}

/* Put items in, for which there is room. */
static GvStatus
apply_items(GvHeldMirror *held, const GvRefineItem *items, int32_t n)
{
	GvStatus	status;

	pthread_rwlock_wrlock(&held->lock);
	status = gv_mirror_put_refine(held->mirror, items, n);
	gv_mirrors_changed(held, held->nitems);
	pthread_rwlock_unlock(&held->lock);
	return status;
}

/* See GV_MSG_REFINE. */
void
gv_pieces_refine(GvConnection *connection)
{
	const GvListsRequest *request = gv_payload(connection);
	GvHeldMirror *held = gv_pieces_acquire(connection, &request->key);
	int64_t		bytes = (int64_t) gv_message(connection)->length -
	(int64_t) sizeof(*request);
	const char *wrong = NULL;
	GvStatus	status = GV_OK;
	const GvRefineItem *items = (const GvRefineItem *) (request + 1);
	int64_t		growth[GV_MAX_DEVICES];
	bool		fits;			/* as above */

	if (held == NULL)
		return;
	if (request->unused != 0 || request->npieces < 0 ||
		held->spec.refine_slots == 0 ||
		bytes != request->npieces *
		(int64_t) gv_refine_stride(held->spec.dims))
		wrong = "malformed refine records";
	else
		do
		{
			items_growth(held, items, request->npieces, growth);
			fits = gv_mirrors_room(held, growth);
			status = fits ? apply_items(held, items, request->npieces) :
				GV_NO_MEMORY;
		} while (fits && status == GV_NO_MEMORY && gv_mirrors_evict_for(held, growth));
	gv_mirrors_release(held, 0);
	gv_pieces_conclude(connection, status, wrong);
}
