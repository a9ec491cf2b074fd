/*
 * pieces.c
 *		What loaders bring, checked and put into a mirror, and what they read
 *		back.
 *
 * A mirror is locked for one piece at a time, so that searches go on while it
 * is loaded and brought up to date.
 */
#include "server/gv_server.h"

#include <string.h>

/* Blocks of a list of so many copies. */
static int64_t
blocks_of(uint32_t nitems)
{
	return ((int64_t) nitems + GV_BLOCK - 1) / GV_BLOCK;
}

static GvHeldMirror *
acquire(GvConnection *connection, const GvMirrorKey *key)
{
	GvRefusalCode refusal;
	GvHeldMirror *held = gv_mirrors_acquire(key, connection->number,
											&refusal);

	if (held == NULL)
		gv_refuse(connection, refusal, gv_refusal_name(refusal));
	return held;
}

/* Say OK, or refuse; `wrong` for who broke the rules. */
static void
conclude(GvConnection *connection, GvStatus status, const char *wrong)
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

static int64_t
array_length(const GvMirrorSpec *spec, int32_t array)
{
	switch (array)
	{
		case GV_CODEBOOKS:
			return (int64_t) GV_CODEWORDS * spec->dims;
		case GV_PARENTS:
			return (int64_t) spec->nparents * spec->dims;
		case GV_STARTS:
			return (int64_t) spec->nparents + 1;
		default:
			return (int64_t) spec->nlists * spec->dims;
	}
}

/* Do the starts that came go on ascending, from 0 to the number of lists? */
static bool
check_starts(GvHeldMirror *held, int64_t first, int64_t n,
			 const int32_t *starts)
{
	int64_t		i;

	for (i = 0; i < n; i++)
	{
		if (first + i == 0 ? starts[i] != 0 : starts[i] <= held->last_start)
			return false;
		if (first + i == held->spec.nparents &&
			starts[i] != held->spec.nlists)
			return false;
		held->last_start = starts[i];
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
		request->count > array_length(&held->spec, request->array) -
		request->first)
		return "an array out of order";
	if (request->array == GV_STARTS &&
		!check_starts(held, request->first, request->count,
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
		conclude(connection, GV_OK, "a malformed array");
		return;
	}
	held = acquire(connection, &request->key);
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
	conclude(connection, status, wrong);
}

/* See GV_MSG_READY. */
void
gv_pieces_ready(GvConnection *connection)
{
	const GvKeyRequest *request = gv_payload(connection);
	GvHeldMirror *held = acquire(connection, &request->key);
	const char *wrong = NULL;
	int32_t		array;

	if (held == NULL)
		return;
	if (held->ready)
		wrong = "the mirror is ready already";
	for (array = 0; array < GV_NARRAYS; array++)
		if (held->filled[array] != array_length(&held->spec, array))
			wrong = "the mirror is not complete";
	if (wrong == NULL)
		gv_mirrors_ready(held);
	gv_mirrors_release(held, 0);
	conclude(connection, GV_OK, wrong);
}

/* Where the arrays of a piece are. */
static GvListPiece
open_piece(const GvPiece *piece)
{
	GvListPiece open = {
		.list = piece->list,
		.first = piece->first,
		.nblocks = piece->nblocks
	};
	size_t		copies = (size_t) piece->nblocks * GV_BLOCK;
	const char *next = (const char *) (piece + 1);

	open.live = (const uint32_t *) next;
	if ((piece->flags & GV_PIECE_LIVE) != 0)
		return open;
	next += (size_t) piece->nblocks * sizeof(uint32_t);
	open.t = (const float *) next;
	next += copies * sizeof(float);
	open.rowids = (const uint16_t *) next;
	next += copies * 3 * sizeof(uint16_t);
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
		last != blocks_of(piece->state.nitems))
		return false;
	if ((piece->flags & GV_PIECE_LIVE) != 0 && piece->first != 0)
		return false;
	/* what is in place already is full */
	if (piece->nblocks == 0)
		return tail == 0;
	return tail == 0 || live[piece->nblocks - 1] >> tail == 0;
}

/* Do npieces pieces fill the message to its last byte? */
static bool
check_pieces(const GvConnection *connection, const GvMirrorSpec *spec)
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
		bytes = gv_piece_bytes(piece, gv_code_bytes(spec->m));
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

/* Bytes that a list will grow by, about. */
static int64_t
piece_growth(GvHeldMirror *held, const GvPiece *piece)
{
	int64_t		blocks = (int64_t) piece->first + piece->nblocks;
	GvPiece		one = {.nblocks = 1};

	pthread_rwlock_rdlock(&held->lock);
	blocks -= blocks_of(held->states[piece->list].nitems);
	pthread_rwlock_unlock(&held->lock);
	if (blocks <= 0)
		return 0;
	return blocks * (gv_piece_bytes(&one, gv_code_bytes(held->spec.m)) -
					 (int64_t) sizeof(one));
}

/* Put a well-formed piece in; *wrong is told when it does not follow. */
static GvStatus
apply_piece(GvHeldMirror *held, const GvPiece *piece, const char **wrong)
{
	GvListPiece open = open_piece(piece);
	GvStatus	status = GV_OK;

	if (!gv_mirrors_room(held, piece_growth(held, piece)))
		return GV_NO_MEMORY;
	pthread_rwlock_wrlock(&held->lock);
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
	gv_mirrors_changed(held, gv_mirror_bytes(held->mirror), held->nitems);
	pthread_rwlock_unlock(&held->lock);
	return status;
}

/* See GV_MSG_LISTS. */
void
gv_pieces_lists(GvConnection *connection)
{
	const GvListsRequest *request = gv_payload(connection);
	GvHeldMirror *held = acquire(connection, &request->key);
	const char *next = (const char *) (request + 1);
	const char *wrong = NULL;
	GvStatus	status = GV_OK;
	int32_t		i;

	if (held == NULL)
		return;
	if (!check_pieces(connection, &held->spec))
		wrong = "malformed pieces";
	for (i = 0; wrong == NULL && status == GV_OK && i < request->npieces; i++)
	{
		const GvPiece *piece = (const GvPiece *) next;

		do
			status = apply_piece(held, piece, &wrong);
		while (status == GV_NO_MEMORY && gv_mirrors_evict());
		next += gv_piece_bytes(piece, gv_code_bytes(held->spec.m));
	}
	gv_mirrors_release(held, 0);
	conclude(connection, status, wrong);
}

/* A range of lists of a mirror; NULL: refused. */
static GvHeldMirror *
acquire_range(GvConnection *connection, int64_t most)
{
	const GvRangeRequest *request = gv_payload(connection);
	GvHeldMirror *held = acquire(connection, &request->key);

	if (held == NULL)
		return NULL;
	if (request->first >= 0 && request->count >= 1 &&
		request->count <= most &&
		(int64_t) request->first + request->count <= held->spec.nlists)
		return held;
	gv_mirrors_release(held, 0);
	gv_refuse(connection, GV_REFUSED_PROTOCOL, "lists out of range");
	return NULL;
}

/* See GV_MSG_STATES. */
void
gv_pieces_states(GvConnection *connection)
{
	const GvRangeRequest *request = gv_payload(connection);
	GvHeldMirror *held = acquire_range(connection,
									   GV_MAX_MESSAGE / sizeof(GvListState));
	GvListState *states;

	if (held == NULL)
		return;
	states = gv_reply(connection,
					  (size_t) request->count * sizeof(GvListState));
	if (states != NULL)
	{
		pthread_rwlock_rdlock(&held->lock);
		memcpy(states, held->states + request->first,
			   (size_t) request->count * sizeof(GvListState));
		pthread_rwlock_unlock(&held->lock);
	}
	gv_mirrors_release(held, 0);
}

/* Locked: a list's piece without its arrays, cut to at most `room` bytes. */
static GvPiece
piece_of(const GvHeldMirror *held, int32_t list, int64_t room)
{
	GvPiece		one = {.nblocks = 1};
	GvPiece		piece = {.list = list,.state = held->states[list]};
	int64_t		block = gv_piece_bytes(&one, gv_code_bytes(held->spec.m)) -
		(int64_t) sizeof(one);
	int64_t		most = (room - (int64_t) sizeof(piece)) / block;

	piece.nblocks = (int32_t) blocks_of(piece.state.nitems);
	if (piece.nblocks > most)
	{
		piece.nblocks = (int32_t) most;
		piece.state.nitems = (uint32_t) most * GV_BLOCK;
	}
	return piece;
}

/* Locked: copy a list's first n blocks to `next`, in a piece's order. */
static GvStatus
read_blocks(GvHeldMirror *held, int32_t list, size_t n, char *next)
{
	size_t		t_bytes = GV_BLOCK * sizeof(float);
	size_t		rowid_bytes = GV_BLOCK * 3 * sizeof(uint16_t);
	size_t		code_bytes = (size_t) gv_code_bytes(held->spec.m) * GV_BLOCK;
	char	   *t = next + n * sizeof(uint32_t);
	char	   *rowids = t + n * t_bytes;
	char	   *codes = rowids + n * rowid_bytes;
	size_t		i;

	for (i = 0; i < n; i++)
	{
		GvBlock		view;
		GvStatus	status = gv_mirror_get_block(held->mirror, list,
												 (int32_t) i, &view);

		if (status != GV_OK)
			return status;
		memcpy(next + i * sizeof(uint32_t), &view.live, sizeof(uint32_t));
		memcpy(t + i * t_bytes, view.t, t_bytes);
		memcpy(rowids + i * rowid_bytes, view.rowids, rowid_bytes);
		memcpy(codes + i * code_bytes, view.codes, code_bytes);
	}
	return GV_OK;
}

/*
 * Copy a list to `next` if it fits into `room` bytes, or is the first; *bytes
 * is 0 if not.  The lock is exclusive because get_block changes a mirror.
 */
static GvStatus
read_list(GvHeldMirror *held, int32_t list, bool first, char *next,
		  int64_t room, int64_t *bytes)
{
	GvStatus	status = GV_OK;
	GvPiece		piece;

	*bytes = 0;
	if (room < (int64_t) sizeof(piece))
		return GV_OK;
	pthread_rwlock_wrlock(&held->lock);
	piece = piece_of(held, list, room);
	if (first || piece.state.nitems == held->states[list].nitems)
	{
		memcpy(next, &piece, sizeof(piece));
		*bytes = gv_piece_bytes(&piece, gv_code_bytes(held->spec.m));
		status = read_blocks(held, list, (size_t) piece.nblocks,
							 next + sizeof(piece));
	}
	pthread_rwlock_unlock(&held->lock);
	return status;
}

/* Bytes of an answer with these lists, or with as many as fit. */
static int64_t
range_bytes(GvHeldMirror *held, const GvRangeRequest *request)
{
	int64_t		bytes = 0;
	int32_t		i;

	pthread_rwlock_rdlock(&held->lock);
	for (i = 0; i < request->count && bytes < GV_MAX_MESSAGE; i++)
	{
		GvPiece		piece = piece_of(held, request->first + i,
									 GV_MAX_MESSAGE);

		bytes += gv_piece_bytes(&piece, gv_code_bytes(held->spec.m));
	}
	pthread_rwlock_unlock(&held->lock);
	return bytes < GV_MAX_MESSAGE ? bytes : GV_MAX_MESSAGE;
}

/* See GV_MSG_BLOCKS. */
void
gv_pieces_blocks(GvConnection *connection)
{
	const GvRangeRequest *request = gv_payload(connection);
	GvHeldMirror *held = acquire_range(connection, INT32_MAX);
	GvStatus	status = GV_OK;
	int64_t		room;
	int64_t		used = 0;
	int64_t		bytes = 1;
	char	   *out;
	int32_t		i;

	if (held == NULL)
		return;
	room = range_bytes(held, request);
	out = gv_reply(connection, (size_t) room);
	if (out != NULL)
	{
		for (i = 0; i < request->count && bytes > 0 && status == GV_OK; i++)
		{
			status = read_list(held, request->first + i, i == 0, out + used,
							   room - used, &bytes);
			used += bytes;
		}
		gv_reply_cut(connection, (size_t) used);
	}
	gv_mirrors_release(held, 0);
	if (status != GV_OK)
		conclude(connection, status, NULL);
}
