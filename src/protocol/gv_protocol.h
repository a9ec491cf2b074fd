/*
 * gv_protocol.h
 *		What backends and gpuvecd say to each other.
 *
 * A unix stream socket, for the user of the cluster only.  Both ends run on
 * one host, so numbers are in the host's own byte order, and structs travel as
 * they are, those of the engine among them: every field is aligned, nothing is
 * padding.  In the engine's the device is gpuvecd's to choose: clients leave
 * it 0.
 *
 * A client speaks first and waits for the answer before it speaks again; to
 * give up it closes.  Every message is a GvMessage and `length` bytes.  The
 * first is a GvHello, within 5 seconds, which names the cluster's incarnation
 * (server/socketdir.c) and the client's role:
 *
 *	supervisor	says which incarnation gpuvecd serves: PING, STATUS, DROP
 *	session		asks: GV_MSG_SEARCH, PING, STATUS
 *	loader		brings mirrors: GV_MSG_BEGIN, ARRAY, LISTS, REFINE, READY,
 *				CURRENT, STATES, BLOCKS, VALUES, RECORDS, DROP, and all that a
 *				session may
 *	builder		has an index made: GV_MSG_BUILD, ROWS, TRAIN, TRAINED, ENCODE,
 *				SAMPLED, CALIB_MIRROR, CHUNKS, TRY, PING; or helps with one: first GV_MSG_JOIN, then ROWS, ENCODE, SAMPLED, CHUNKS and PING
 *	bulk		many searches in one message: GV_MSG_SEARCHES, and PING
 *	set			has work on a set of rows done (engine/gv_set.h): GV_MSG_SET,
 *				PUT, RUN, GET, ASK, MEMORY, HERE, and PING
 *
 * Builders and sets may speak on before they are answered; answers come in the
 * order of the requests.  A refusal ends them.
 *
 * The server answers GV_MSG_OK and what stands beside the request below, or
 * GV_MSG_REFUSED with a GvRefusal.  After that other connections go on, except
 * for GV_REFUSED_PROTOCOL: who breaks the rules is cut off.
 *
 * Lengths are checked against what the type allows before anything is
 * allocated, contents before anything is done with them.
 */
#ifndef GV_PROTOCOL_H
#define GV_PROTOCOL_H

#include <stdint.h>

#include "engine/gv_set.h"
#include "engine/mirror/gv_builder.h"

#define GV_PROTOCOL_MAGIC	0x43507667	/* "gvPC" */
#define GV_PROTOCOL_VERSION 14

/*
 * In the data directory, or the folder of a gpuvecd that PostgreSQL does not
 * start.  Base backups skip names that begin so.  In the data directory paths
 * are relative, because sun_path has room for 107 bytes only.
 */
#define GV_SOCKET_PATH		"pgsql_tmp.gpuvec.sock"
#define GV_LOCK_PATH		"pgsql_tmp.gpuvec.lock"

/* The longest message of any kind, header not counted. */
#define GV_MAX_MESSAGE		(16 * 1024 * 1024)

/* The most memory that a loader or a set may share with gpuvecd. */
#define GV_MAX_SHARED		(64 * 1024 * 1024)

/* The most that a search may ask for. */
#define GV_MAX_PROBES		(1 << 18)
#define GV_MAX_HITS			(1 << 19)
#define GV_MAX_VALUES		(1 << 16)	/* of all sets of a condition */

/* Searches of one message, at most. */
#define GV_MAX_SEARCHES		(1 << 14)

/* The most queries in one GV_MSG_TRY. */
#define GV_MAX_TRIES		256
#define GV_MAX_TRIED_HITS	(1 << 21)

typedef enum GvMessageType
{
	GV_MSG_HELLO = 1,			/* GvHello; OK: GvWelcome */
	GV_MSG_PING,				/* nothing; OK: nothing */
	GV_MSG_STATUS,				/* nothing; OK: GvStatusReply and a
								 * GvMirrorStatus for each mirror */
	GV_MSG_SEARCH,				/* GvSearchRequest, GvTestRequest [ntests],
								 * uint64 values [nvalues] of their sets one
								 * after another, float [dims]; OK:
								 * GvSearchReply, unless it is brief
								 * GvProbeReply [nprobed], GvHit [nhits], if
								 * the mirror has refine records GvBound
								 * [nhits], and, if ntests is not 0 and it is
								 * not brief, int32 matches [nprobed] */

	GV_MSG_BEGIN,				/* GvBeginRequest; OK: nothing.  An unfinished
								 * mirror of the key is thrown away; one that
								 * is ready is refused (GV_REFUSED_EXISTS) */
	GV_MSG_ARRAY,				/* GvArrayRequest, values; OK: nothing */
	GV_MSG_LISTS,				/* GvListsRequest, then chunks, each a GvChunk
								 * and its arrays; OK: nothing */
	GV_MSG_READY,				/* GvKeyRequest; OK: nothing.  From now on it
								 * is searched */
	GV_MSG_CURRENT,				/* GvCurrentRequest; OK: nothing.  The
								 * mirror's lists are those of this version of
								 * the index's directory, until a chunk comes.
								 * Of no effect unless this connection asked
								 * for STATES from list 0 on, and no other has
								 * asked or sent a chunk since */
	GV_MSG_STATES,				/* GvRangeRequest; OK: GvListState [count] of
								 * lists first .. first + count - 1 */
	GV_MSG_BLOCKS,				/* GvRangeRequest: lists first .. first +
								 * count - 1; OK: chunks as in LISTS, of as
								 * many of these lists as fit, at least one.
								 * An answer with one chunk alone may have a
								 * part of the list; its rest begins behind
								 * the chunk */
	GV_MSG_REFINE,				/* GvListsRequest with npieces items, then
								 * GvRefineItems, gv_refine_stride apart; OK:
								 * nothing */
	GV_MSG_DROP,				/* GvKeyRequest; OK: nothing, even if there
								 * was no mirror */
	GV_MSG_VALUES,				/* GvArrayRequest; OK: the array's values */
	GV_MSG_RECORDS,				/* GvListsRequest with npieces addresses, then
								 * uint16 [npieces][3]; OK: a GvRefineItem for
								 * each, see gv_mirror_get_refine */
	GV_MSG_MEMORY,				/* GvMemoryRequest, and with it the descriptor
								 * of a memfd whose size is sealed; OK:
								 * nothing. Of several the last one counts */
	GV_MSG_HERE,				/* GvHereRequest: an ARRAY, LISTS or REFINE,
								 * of a set a PUT, header and all, lies in
								 * that memory, where it stays until it is
								 * answered; OK: nothing. GV_REFUSED_NO_MIRROR
								 * where this connection shares none */

	GV_MSG_BUILD,				/* GvBuilderSpec, float mean [dims]; OK:
								 * GvBuildReply.  Once a connection */
	GV_MSG_ROWS,				/* GvRowsRequest, float [n][dims]; OK:
								 * GvRowsReply */
	GV_MSG_TRAIN,				/* nothing; OK: GvTrainReply */
	GV_MSG_TRAINED,				/* GvTrainedRequest; OK: the array's values */
	GV_MSG_ENCODE,				/* GvRowsRequest, float [n][dims]; OK:
								 * GvEncodeReply and its arrays */
	GV_MSG_SAMPLED,				/* GvSampledRequest; OK: as ENCODE, of rows
								 * that came for the sample */
	GV_MSG_CALIB_MIRROR,		/* GvCalibMirrorRequest; OK: nothing.  From
								 * now on there is a mirror, with empty lists,
								 * of what was trained; once a build */
	GV_MSG_CHUNKS,				/* GvListsRequest, its key 0, then chunks of
								 * that mirror as in LISTS, each a whole list;
								 * OK: nothing */
	GV_MSG_TRY,					/* GvTryRequest, transformed queries float
								 * [n][dims]; OK: int32 nhits [n], then row
								 * ids uint16 [][3] of all hits, ascending by
								 * (S, row id) for each query */
	GV_MSG_JOIN,				/* GvJoinRequest; OK: nothing.  Instead of
								 * BUILD */

	GV_MSG_SET,					/* GvSetSpec; OK: nothing.  The set of an
								 * earlier one is given up */
	GV_MSG_PUT,					/* GvPutRequest, items of that input; OK:
								 * nothing */
	GV_MSG_RUN,					/* nothing; OK: GvSetDone */
	GV_MSG_GET,					/* GvGetRequest; OK: items of that output, or
								 * nothing: they are in shared memory */

	GV_MSG_SEARCHES,			/* GvSearchesRequest, transformed queries
								 * float [n][dims]; OK: n answers as of SEARCH
								 * without tests, each padded to 8 bytes */

	GV_MSG_ASK,					/* GvSetSpec; OK: nothing.  The next question
								 * to a set that began with no queries */

	GV_MSG_OK = 64,
	GV_MSG_REFUSED
} GvMessageType;

typedef struct GvMessage
{
	uint32_t	length;			/* of what follows */
	uint16_t	type;			/* GvMessageType */
	uint16_t	request;		/* in an answer: type of the request; else 0 */
} GvMessage;

typedef enum GvRole
{
	GV_ROLE_SESSION = 1,
	GV_ROLE_LOADER,
	GV_ROLE_BUILDER,
	GV_ROLE_SET,
	GV_ROLE_BULK,
	GV_ROLE_SUPERVISOR
} GvRole;

/* The first two stay what they are in every version. */
typedef struct GvHello
{
	uint32_t	magic;
	uint32_t	version;
	uint32_t	role;			/* GvRole */
	uint32_t	pid;
	uint64_t	incarnation;	/* of the client's cluster; not 0 */
} GvHello;

typedef struct GvWelcome
{
	uint64_t	instance;		/* random, of this run of the server */
	uint32_t	pid;
	uint32_t	unused;			/* 0 */
	char		engine[16];		/* "cpu", "cuda" */
	char		release[16];	/* of gpuvec */
} GvWelcome;

/* Why a request was refused.  Append; names are in gv_protocol.c. */
typedef enum GvRefusalCode
{
	GV_REFUSED_PROTOCOL = 1,	/* malformed, out of order, or not allowed */
	GV_REFUSED_VERSION,			/* another protocol version */
	GV_REFUSED_FULL,			/* too many connections */
	GV_REFUSED_NO_MIRROR,		/* there is none of that key */
	GV_REFUSED_LOADING,			/* there is, but it is not ready */
	GV_REFUSED_EXISTS,			/* a ready mirror of the key is there */
	GV_REFUSED_NO_MEMORY,		/* the engine or the budget has no memory */
	GV_REFUSED_FAILED,			/* the engine failed; the server will restart */
	GV_REFUSED_INCARNATION		/* it serves another, or none yet */
} GvRefusalCode;

#define GV_NREFUSALS	10		/* and 0, which is none */

typedef struct GvRefusal
{
	uint32_t	code;			/* GvRefusalCode */
	char		reason[252];	/* for the log; ends with 0 */
} GvRefusal;

/* Which index: its storage and what was built there. */
typedef struct GvMirrorKey
{
	uint32_t	database;
	uint32_t	tablespace;
	uint32_t	relation;		/* relfilenumber */
	uint32_t	index;			/* OID, to name it; not part of the key */
	uint64_t	build_id;
} GvMirrorKey;

/* As in the index's directory. */
typedef struct GvListState
{
	uint32_t	gen;
	uint32_t	nitems;
	uint32_t	del_seq;
} GvListState;

typedef struct GvSearchRequest
{
	GvMirrorKey key;
	int32_t		dims;
	int32_t		probes;			/* 1 .. GV_MAX_PROBES */
	int32_t		compare;
	int32_t		capacity;		/* 1 .. GV_MAX_HITS */
	int32_t		ntests;			/* 0 .. GV_MAX_TESTS, of the mirror's keys; 0:
								 * all postings match */
	int32_t		nvalues;		/* 0 .. GV_MAX_VALUES */
	uint64_t	version;		/* of the directory; where it is the mirror's,
								 * the answer is brief.  0: none */
	double		part;			/* 0 .. 1, below 1: lists [n] count less and
								 * less, the i-th (1 - part) ^ (i / n) */
	int32_t		rank;			/* as in GvSearch */
	int32_t		unused;			/* 0 */
} GvSearchRequest;

/*
 * n searches as in GvSearchRequest; n is at most gv_searches_most.  A client
 * in GV_ROLE_BULK that says nothing for GV_BULK_IDLE_MS is closed: it keeps a
 * thread and a device's memory.
 */
#define GV_BULK_IDLE_MS		2000

typedef struct GvSearchesRequest
{
	GvMirrorKey key;
	int32_t		n;				/* 1 or more */
	int32_t		dims;
	int32_t		probes;			/* 1 .. GV_MAX_PROBES */
	int32_t		compare;
	int32_t		capacity;		/* 1 .. GV_MAX_HITS */
	int32_t		unused;			/* 0 */
	uint64_t	version;		/* as in GvSearchRequest */
} GvSearchesRequest;

/* A GvKeyTest on its way. */
typedef struct GvTestRequest
{
	int32_t		key;
	int32_t		kind;			/* GvTestKind */
	uint64_t	low;
	uint64_t	high;
	int32_t		nvalues;		/* of GV_TEST_SET; else 0 */
	int32_t		unused;			/* 0 */
} GvTestRequest;

typedef struct GvSearchReply
{
	int32_t		nprobed;
	int32_t		nhits;
	int64_t		postings;		/* as in GvSearch */
	uint32_t	batch;			/* searches answered together with this one */
	uint32_t	queued_us;		/* from the whole request to the batch's begin */
	uint32_t	engine_us;		/* the batch */
	uint32_t	nbounds;		/* nhits, or 0 of a mirror without records */
	uint32_t	is_brief;		/* 0 or 1 */
	int32_t		nearest;		/* list, of those searched, or 0 */

	/* with a condition, of the lists searched; else 0 */
	int64_t		nitems;			/* postings that the mirror has of them */
	int64_t		matches;		/* those that satisfy the condition */
	double		weighted_nitems;	/* the same as each list counts */
	double		weighted_matches;
	int64_t		nearer;			/* as in GvSearch */
	int64_t		nearer_squares;
} GvSearchReply;

/* A list that was searched, and what of it the mirror had. */
typedef struct GvProbeReply
{
	int32_t		list;
	float		base;			/* its coarse score */
	GvListState state;
} GvProbeReply;

typedef struct GvBeginRequest
{
	GvMirrorKey key;
	GvMirrorSpec spec;
} GvBeginRequest;

typedef struct GvArrayRequest
{
	GvMirrorKey key;
	int32_t		array;			/* GvArray */
	int32_t		unused;			/* 0 */
	int64_t		first;			/* element */
	int64_t		count;			/* elements, 4 bytes each */
} GvArrayRequest;

typedef struct GvListsRequest
{
	GvMirrorKey key;
	int32_t		nchunks;
	int32_t		unused;			/* 0 */
} GvListsRequest;

/*
 * A GvListChunk on its way; behind it, each aligned to 4 bytes by nature:
 *		uint32 live [nblocks]
 *		float t [nblocks][32]						\
 *		uint16 rowids [nblocks][32][3]				 > unless GV_CHUNK_LIVE
 *		keys [nblocks], of a mirror that has them	 |
 *		uint8 codes [nblocks][code_bytes][32]		/
 * A list that is longer than a message comes in several chunks, ascending.
 * `state` is the list's once the chunk is in, its nitems the postings up to
 * the chunk's end.  A chunk with first > 0 must come to a list of the same gen
 * and del_seq, one with GV_CHUNK_LIVE to one of the same gen and nitems,
 * whole; bits of `live` beyond nitems must be 0.
 */
#define GV_CHUNK_LIVE	1		/* `live` only */

typedef struct GvChunk
{
	int32_t		list;
	int32_t		first;
	int32_t		nblocks;		/* may be 0: the list ends at `first` */
	uint32_t	flags;
	GvListState state;
} GvChunk;

typedef struct GvKeyRequest
{
	GvMirrorKey key;
} GvKeyRequest;

typedef struct GvCurrentRequest
{
	GvMirrorKey key;
	uint64_t	version;		/* not 0 */
} GvCurrentRequest;

typedef struct GvRangeRequest
{
	GvMirrorKey key;
	int32_t		first;			/* list */
	int32_t		count;
	int32_t		block;			/* of BLOCKS: of list `first`, its blocks from
								 * this one on; else 0 */
	int32_t		unused;			/* 0 */
} GvRangeRequest;

typedef struct GvMemoryRequest
{
	uint64_t	bytes;			/* .. GV_MAX_SHARED */
} GvMemoryRequest;

typedef struct GvHereRequest
{
	uint64_t	offset;			/* of the header; a multiple of 8 */
} GvHereRequest;

typedef struct GvBuildReply
{
	uint64_t	id;				/* random; who knows it may join */
} GvBuildReply;

typedef struct GvJoinRequest
{
	uint64_t	id;
} GvJoinRequest;

typedef struct GvRowsRequest
{
	int32_t		kind;			/* GvRows; 0 in GV_MSG_ENCODE */
	int32_t		n;				/* 1 or more; of GV_MSG_ENCODE at most
								 * batch_rows */
} GvRowsRequest;

typedef struct GvRowsReply
{
	int64_t		first;			/* number of the first of them, of its kind */
} GvRowsReply;

typedef struct GvSampledRequest
{
	int64_t		first;			/* row, as they came */
	int32_t		n;				/* 1 .. batch_rows */
	int32_t		unused;			/* 0 */
} GvSampledRequest;

typedef struct GvTrainReply
{
	int32_t		nlists;
	int32_t		nparents;
} GvTrainReply;

typedef struct GvTrainedRequest
{
	int32_t		array;			/* GvArray */
	int32_t		unused;			/* 0 */
	int64_t		first;			/* element */
	int64_t		count;
} GvTrainedRequest;

/*
 * A GvEncoded on its way; behind it, as gv_encoded_open finds them,
 *		int32 lists [n][copies]
 *		float t [n][copies]
 *		float min [n], step [n], error [n]			if there are refine records
 *		GvNeighbor neighbors [nneighbors]
 *		uint8 or uint16 records [n][dims]			likewise
 *		uint8 codes [n][copies][code_bytes]
 */
typedef struct GvEncodeReply
{
	int32_t		n;
	int32_t		nneighbors;
} GvEncodeReply;

typedef struct GvCalibMirrorRequest
{
	int64_t		postings;		/* no more are to come */
} GvCalibMirrorRequest;

/* n searches as in GvSearchRequest. */
typedef struct GvTryRequest
{
	int32_t		n;				/* 1 .. GV_MAX_TRIES */
	int32_t		probes;			/* 1 .. GV_MAX_PROBES */
	int32_t		compare;
	int32_t		capacity;		/* 1 .. GV_MAX_HITS; n times that is at most
								 * GV_MAX_TRIED_HITS */
} GvTryRequest;

typedef struct GvPutRequest
{
	int32_t		input;			/* GvSetInput */
	int32_t		unused;			/* 0 */
	int64_t		n;				/* items, 1 or more */
} GvPutRequest;

typedef struct GvGetRequest
{
	int32_t		output;			/* GvSetOutput */
	int32_t		unused;			/* 0 */
	int64_t		first;
	int64_t		n;				/* items, 1 or more, and at most what a
								 * message holds */
	int64_t		offset;			/* where they are written to in the memory
								 * that the connection shares, a multiple of
								 * 8; -1: they are the answer */
} GvGetRequest;

typedef struct GvStatusReply
{
	uint64_t	instance;
	char		device[128];
	int64_t		memory;			/* that mirrors may have of all devices,
								 * bytes: less where shards bring searchers */
	int64_t		most;			/* the same of the device that has most */
	int64_t		used;
	int64_t		searches;		/* answered with results */
	int64_t		batches;
	int64_t		largest_batch;
	int64_t		sets;			/* whose work was finished */
	int64_t		refusals[GV_NREFUSALS];
	int64_t		received;		/* bytes */
	int64_t		sent;
	int64_t		evictions;
	int64_t		oldest_ms;		/* that the oldest of the batches under way
								 * has taken so far */
	int32_t		connections;
	int32_t		nmirrors;
} GvStatusReply;

typedef struct GvMirrorStatus
{
	GvMirrorKey key;
	int32_t		ready;			/* 0 or 1 */
	int32_t		metric;			/* as in GvBeginRequest */
	int32_t		dims;
	int32_t		m;
	int32_t		nlists;
	int32_t		nparents;
	int32_t		refine_slots;
	int32_t		device;			/* the first, its number as GvDevice has it */
	int32_t		shards;			/* devices that it is divided among, or 1 */
	int32_t		replicas;		/* devices that have it whole, or 1 */
	int64_t		bytes;
	int64_t		postings;		/* it holds, dead ones included */
	int64_t		expected;		/* postings, when loading began */
	int64_t		searches;
	int64_t		idle_ms;		/* since it was last searched or changed */
} GvMirrorStatus;

extern const char *gv_refusal_name(uint32_t code);

/* Bytes of an answer among those of GV_MSG_SEARCHES. */
static inline int64_t
gv_answer_bytes(int64_t nprobed, int64_t nhits, int64_t nbounds)
{
	int64_t		bytes = (int64_t) sizeof(GvSearchReply) +
	nprobed * (int64_t) sizeof(GvProbeReply) +
	nhits * (int64_t) sizeof(GvHit) + nbounds * (int64_t) sizeof(GvBound);

	return (bytes + 7) / 8 * 8;
}

/*
 * Returns how many searches fit into a message, and their answers into one;
 * may be 0.
 */
static inline int32_t
gv_searches_most(int32_t dims, int32_t probes, int32_t capacity)
{
	int64_t		bytes = gv_answer_bytes(probes, capacity, capacity);
	int64_t		most;

	if (bytes < 4 * (int64_t) dims)
		bytes = 4 * (int64_t) dims;
	most = (GV_MAX_MESSAGE - (int64_t) sizeof(GvSearchesRequest)) / bytes;
	return (int32_t) (most < GV_MAX_SEARCHES ? most : GV_MAX_SEARCHES);
}

/*
 * Bytes of a chunk: header and arrays, for codes of code_bytes each, and keys
 * of keys_bytes a block.
 */
static inline int64_t
gv_chunk_bytes(const GvChunk *chunk, int32_t code_bytes, size_t keys_bytes)
{
	int64_t		block = 4;

	if ((chunk->flags & GV_CHUNK_LIVE) == 0)
		block += 32 * (4 + 6 + (int64_t) code_bytes) + (int64_t) keys_bytes;
	return (int64_t) sizeof(GvChunk) + chunk->nblocks * block;
}

#endif							/* GV_PROTOCOL_H */
