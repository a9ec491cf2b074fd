/*
 * gv_protocol.h
 *		The messages between backends and gpuvecd.
 *
 * Messages go through a unix stream socket, which only the cluster's user may
 * use.  Both ends run on one host, so numbers are in the host's byte order,
 * and structs, including those of the engine, are sent as they are in memory:
 * every field is aligned, and there is no padding.  In the engine's structs,
 * clients set the device to 0, because gpuvecd chooses it.
 *
 * A client sends a request and waits for the answer before it sends the next
 * one; to give up, it closes the connection.  Every message is a GvMessage and
 * `length` bytes.  The first message has to come within 5 seconds.  It is a
 * GvHello, which names the cluster's incarnation (server/socketdir.c) and the
 * client's role:
 *
 *	supervisor	names the incarnation that gpuvecd serves: PING, STATUS, DROP
 *	session		searches for one query at a time: SEARCH, ATTACH_SHM, LOOK, PING,
 *				STATUS
 *	loader		loads mirrors: BEGIN, ARRAY, LISTS, REFINE, ROWS,
 *				READY, MARK_CURRENT, LIST_STATES, READ_LISTS, READ_ARRAY,
 *				READ_REFINE, READ_ROWS, ATTACH_SHM, IN_SHM, DROP, PING, STATUS
 *	builder		builds an index: BUILD, TRAIN_ROWS, TRAIN, GET_MODEL,
 *				ENCODE_ROWS, ENCODE_SAMPLE, CALIB_MIRROR, then LISTS and
 *				SEARCH of that mirror, and PING; or joins a build: first JOIN,
 *				then TRAIN_ROWS, ENCODE_ROWS, ENCODE_SAMPLE, LISTS and PING
 *	bulk		searches for many queries at a time: SEARCH, ATTACH_SHM, PING
 *	set			requests work on a set of rows (engine/gv_set.h): SET, PUT,
 *				RUN, GET, ASK, ATTACH_SHM, IN_SHM, and PING
 *
 * Builders, sets, and bulk clients that share memory may send requests before
 * earlier ones are answered; answers come in the order of the requests.  A
 * refusal ends their connection.
 *
 * gpuvecd answers with GV_MSG_OK and the data that is listed below after
 * "OK:", or with GV_MSG_REFUSED and a GvRefusal.  After a refusal, the
 * connection goes on, unless the client broke the rules (GV_REFUSED_PROTOCOL)
 * or was not let in.  Other connections are not affected.
 *
 * gpuvecd checks a message's length before it allocates memory for the
 * message, and the contents before it uses them.
 */
#ifndef GV_PROTOCOL_H
#define GV_PROTOCOL_H

#include <stdint.h>
#include <string.h>

#include "engine/gv_set.h"
#include "engine/mirror/gv_builder.h"

#define GV_PROTOCOL_MAGIC	0x43507667	/* "gvPC" */
#define GV_PROTOCOL_VERSION 18

/*
 * These files are in the data directory, or in the folder of a gpuvecd that
 * PostgreSQL does not start.  Base backups skip files whose names have this
 * prefix.  In the data directory, the paths are relative, because sun_path
 * holds only 107 bytes.
 */
#define GV_SOCKET_PATH		"pgsql_tmp.gpuvec.sock"
#define GV_LOCK_PATH		"pgsql_tmp.gpuvec.lock"

/*
 * The longest message of any type, without its header.  Only the answer to a
 * request of one query may be longer.
 */
#define GV_MAX_MESSAGE		(16 * 1024 * 1024)

/* Maximum bytes of memory that a client may share with gpuvecd. */
#define GV_MAX_SHARED		(64 * 1024 * 1024)

/* Limits of a search. */
#define GV_MAX_PROBES		(1 << 18)
#define GV_MAX_HITS			(1 << 19)
#define GV_MAX_VALUES		(1 << 16)	/* of all sets of a condition */

/* Maximum number of queries in one GV_MSG_SEARCH. */
#define GV_MAX_QUERIES		(1 << 14)

typedef enum GvMessageType
{
	GV_MSG_HELLO = 1,			/* GvHello; OK: GvWelcome */
	GV_MSG_PING,				/* nothing; OK: nothing */
	GV_MSG_STATUS,				/* nothing; OK: GvStatusReply and a
								 * GvMirrorStatus for each mirror */
	GV_MSG_SEARCH,				/* GvSearchRequest, GvTestRequest [ntests],
								 * uint64 [nvalues] with the values of their
								 * sets one after another, float [n][dims]
								 * with transformed queries and, if `asked` is
								 * set, float [n][dims] with the queries as
								 * they were asked; OK: n answers, each a
								 * GvSearchReply and its arrays
								 * (gv_answer_arrays).  If `shared` is set,
								 * the queries are in the memory that the
								 * client shares, the answers are put there,
								 * and OK has nothing.  The client must not
								 * change the queries before the OK */

	GV_MSG_BEGIN,				/* GvBeginRequest; OK: GvBeginReply.  An
								 * unfinished mirror of the key is dropped; if
								 * there is a ready one, the request is
								 * refused (GV_REFUSED_EXISTS) */
	GV_MSG_ARRAY,				/* GvArrayRequest, values; OK: nothing */
	GV_MSG_LISTS,				/* GvListsRequest, then chunks, each a GvChunk
								 * and its arrays (gv_chunk_arrays); OK:
								 * nothing */
	GV_MSG_READY,				/* GvKeyRequest; OK: nothing.  Opens the
								 * mirror to searches */
	GV_MSG_MARK_CURRENT,		/* GvCurrentRequest; OK: nothing.  Says that
								 * the mirror has the lists of this version of
								 * the directory, until a chunk comes.  Has no
								 * effect unless this connection has asked for
								 * LIST_STATES from list 0 on and, since then,
								 * no other connection has asked for
								 * LIST_STATES from list 0 on or sent a chunk */
	GV_MSG_LIST_STATES,			/* GvRangeRequest; OK: GvListState [count] of
								 * lists first .. first + count - 1 */
	GV_MSG_READ_LISTS,			/* GvRangeRequest: lists first .. first +
								 * count - 1; OK: chunks as in LISTS, of as
								 * many lists as fit, at least one.  A single
								 * chunk may be only a part of its list; the
								 * rest of the list begins after the chunk's
								 * last block */
	GV_MSG_REFINE,				/* GvListsRequest, whose nchunks is the number
								 * of items, then GvRefineItems,
								 * gv_refine_stride apart; OK: nothing */
	GV_MSG_ROWS,				/* GvListsRequest, whose nchunks is the number
								 * of items, then GvRowItems, gv_row_stride
								 * apart; OK: nothing.  If there is no memory
								 * for them, the mirror drops all its rows,
								 * and ignores further ones */
	GV_MSG_DROP,				/* GvKeyRequest; OK: nothing, even if there
								 * was no mirror */
	GV_MSG_READ_ARRAY,			/* GvArrayRequest; OK: the array's values */
	GV_MSG_READ_REFINE,			/* GvListsRequest, whose nchunks is the number
								 * of addresses, then addresses uint16
								 * [nchunks][3]; OK: a GvRefineItem for each
								 * address (gv_mirror_get_refine) */
	GV_MSG_READ_ROWS,			/* GvListsRequest, whose nchunks is the number
								 * of row ids, then row ids uint16
								 * [nchunks][3]; OK: a GvRowItem for each
								 * (gv_mirror_get_rows) */
	GV_MSG_ATTACH_SHM,			/* GvAttachShmRequest, and with it the
								 * descriptor of a memfd whose size is sealed;
								 * OK: nothing.  The memory replaces that of
								 * an earlier message.  The first 8 bytes of a
								 * bulk client's memory are not 0 while it may
								 * still take answers from it.  A session's is
								 * a GvMailbox, zeroed, and not replaced */
	GV_MSG_IN_SHM,				/* GvInShmRequest: a loader's ARRAY, LISTS or
								 * REFINE, or a set's PUT, is in the shared
								 * memory, including its header.  The client
								 * must not change the message before the
								 * answer; OK: nothing.  Refused with
								 * GV_REFUSED_NO_MIRROR if this connection
								 * shares no memory */

	GV_MSG_BUILD,				/* GvBuilderSpec, float mean [dims]; OK:
								 * GvBuildReply.  May be sent only once in a
								 * connection */
	GV_MSG_TRAIN_ROWS,			/* GvRowsRequest, float [n][dims]; OK:
								 * GvRowsReply */
	GV_MSG_TRAIN,				/* nothing; OK: GvTrainReply */
	GV_MSG_GET_MODEL,			/* GvGetModelRequest; OK: the array's values */
	GV_MSG_ENCODE_ROWS,			/* GvRowsRequest, float [n][dims]; OK:
								 * GvEncodeReply and its arrays */
	GV_MSG_ENCODE_SAMPLE,		/* GvEncodeSampleRequest; OK: as for
								 * ENCODE_ROWS.  Encodes rows that came for
								 * the sample */
	GV_MSG_CALIB_MIRROR,		/* GvCalibMirrorRequest; OK: nothing.  Creates
								 * a mirror with the trained model and empty
								 * lists, in place of the build's earlier
								 * calibration mirror.  Only the build can use
								 * this mirror: in a builder's LISTS and
								 * SEARCH the key is 0 */
	GV_MSG_JOIN,				/* GvJoinRequest; OK: nothing.  Comes instead
								 * of BUILD */

	GV_MSG_SET,					/* GvSetSpec; OK: nothing.  Begins a set, and
								 * drops the set of an earlier SET */
	GV_MSG_PUT,					/* GvPutRequest, items of that input; OK:
								 * nothing */
	GV_MSG_RUN,					/* nothing; OK: GvSetDone */
	GV_MSG_GET,					/* GvGetRequest; OK: items of the output, or
								 * nothing, if the items are in shared memory */

	GV_MSG_ASK,					/* GvSetSpec; OK: nothing.  Asks a question
								 * about the rows that the set keeps
								 * (gv_set_ask) */

	GV_MSG_LOOK,				/* nothing.  A search is in the session's
								 * GvMailbox, which says how it is answered.
								 * The first LOOK comes with an eventfd */

	GV_MSG_OK = 64,
	GV_MSG_REFUSED
} GvMessageType;

typedef struct GvMessage
{
	uint32_t	length;			/* bytes that follow */
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

/* The first two fields stay the same in every version. */
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
	uint64_t	instance;		/* random number of this run of gpuvecd */
	uint32_t	pid;
	uint32_t	unused;			/* 0 */
	char		engine[16];		/* "cpu", "cuda" */
	char		release[16];	/* version of gpuvec */
} GvWelcome;

/* Reasons for refusals; new ones are appended.  Names: gv_refusal_name. */
typedef enum GvRefusalCode
{
	GV_REFUSED_PROTOCOL = 1,	/* malformed, out of order, or not allowed */
	GV_REFUSED_VERSION,			/* another protocol version */
	GV_REFUSED_FULL,			/* too many connections */
	GV_REFUSED_NO_MIRROR,		/* there is no mirror of that key */
	GV_REFUSED_LOADING,			/* the mirror is not ready */
	GV_REFUSED_EXISTS,			/* a ready mirror of the key is there */
	GV_REFUSED_NO_MEMORY,		/* the engine or the budget has no memory */
	GV_REFUSED_FAILED,			/* the engine failed; the server will restart */
	GV_REFUSED_INCARNATION		/* not the one that gpuvecd serves */
} GvRefusalCode;

#define GV_NREFUSALS	10		/* including 0, which is none */

typedef struct GvRefusal
{
	uint32_t	code;			/* GvRefusalCode */
	char		reason[252];	/* for the log; ends with 0 */
} GvRefusal;

/* The identity of an index: its storage, and the build in that storage. */
typedef struct GvMirrorKey
{
	uint32_t	database;
	uint32_t	tablespace;
	uint32_t	relation;		/* relfilenumber */
	uint32_t	index;			/* OID, to name it; not part of the key */
	uint64_t	build_id;
} GvMirrorKey;

/* The state of a list, as in the index's directory. */
typedef struct GvListState
{
	uint32_t	gen;
	uint32_t	nitems;
	uint32_t	del_seq;
} GvListState;

/*
 * n searches of one mirror, which differ only in the query.  n is at most
 * gv_queries_most(), and 1 from a session.  A bulk client that sends nothing for
 * GV_BULK_IDLE_MS is disconnected, because it occupies a thread and device
 * memory.
 *
 * If `shared` is set, gv_shared_queries_bytes() from `offset` on are the
 * queries, and the answers are put behind them, where there must be room for
 * n times gv_answer_most() bytes.
 */
#define GV_BULK_IDLE_MS		2000

typedef struct GvSearchRequest
{
	GvMirrorKey key;
	int32_t		n;				/* queries */
	int32_t		dims;
	int32_t		probes;			/* 1 .. GV_MAX_PROBES */
	int32_t		compare;		/* as in GvSearch */
	int32_t		capacity;		/* 1 .. GV_MAX_HITS */
	int32_t		ntests;			/* number of tests of the mirror's keys, 0 ..
								 * GV_MAX_TESTS; without tests, all postings
								 * match */
	int32_t		nvalues;		/* 0 .. GV_MAX_VALUES */
	int32_t		rank;			/* as in GvSearch */
	uint64_t	version;		/* if the mirror has this version of the
								 * directory, the answer is brief; with 0, the
								 * answer is never brief */
	double		part;			/* 0 <= part < 1: weighted sums multiply the
								 * i-th of n lists by (1 - part) ^ (i / n). If
								 * it is 0, and a search with tests is for all
								 * lists, the lists in the answer ascend by
								 * number, otherwise by distance */
	int32_t		keep;			/* 0, or how many of the nearest rows a
								 * session needs: the answer may leave out
								 * other hits, see GvOmitted */
	int32_t		rows;			/* if keep > 0: only hits of the first `rows`
								 * different rows count */
	int32_t		asked;			/* 1 if the queries come as they were asked,
								 * too, so that the answer has distances if
								 * the mirror has rows; otherwise 0 */
	int32_t		shared;			/* 0 or 1 */
	int64_t		offset;			/* in the shared memory, a multiple of 8;
								 * ignored unless `shared` is set */
} GvSearchRequest;

/* A GvKeyTest in a message. */
typedef struct GvTestRequest
{
	int32_t		key;
	int32_t		kind;			/* GvTestKind */
	uint64_t	low;
	uint64_t	high;
	int32_t		nvalues;		/* of GV_TEST_SET; others: 0 */
	int32_t		unused;			/* 0 */
} GvTestRequest;

/*
 * The rows that an answer leaves out, of the first `rows` rows found, if the
 * request has `keep`.  If n > 0, the answer has one hit, the best, of each other
 * row.  No row that is left out is nearer than `distance`.  If the request has
 * tests, the answer and these rows together are all rows that satisfy the tests
 * in the lists searched.
 */
typedef struct GvOmitted
{
	double		distance;		/* the least distance of these rows */
	float		magnitude;		/* the largest GvRowDistance.magnitude */
	int32_t		n;
} GvOmitted;

typedef struct GvSearchReply
{
	int32_t		nprobed;
	int32_t		nhits;
	int64_t		postings;		/* as in GvSearch */
	uint32_t	batch;			/* queries answered together, this one
								 * included */
	uint32_t	queued_us;		/* time that the request waited */
	uint32_t	engine_us;		/* time that the batch took */
	uint32_t	nbounds;		/* nhits, or 0 if the mirror has no records */
	uint32_t	is_brief;		/* 0 or 1 */
	int32_t		nearest;		/* nearest list searched; 0 if there is none,
								 * or if lists ascend by number */
	uint32_t	ndistances;		/* nhits, or 0 if the request did not ask for
								 * distances or the mirror has no rows */
	int32_t		nfound;			/* hits, if none were left out */
	GvOmitted	omitted;

	/* sums over the lists searched, or 0 if the search has no condition */
	int64_t		nitems;			/* postings in the mirror */
	int64_t		matches;		/* postings that satisfy the condition */
	double		weighted_nitems;	/* nitems of each list, weighted (part) */
	double		weighted_matches;	/* likewise matches */
	int64_t		nearer;			/* as in GvSearch */
	int64_t		nearer_squares;
} GvSearchReply;

/* A list that was searched, and its state in the mirror. */
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
	int32_t		must;			/* 1 if the mirror's rows may take the memory
								 * of other mirrors; 0: they are left out if
								 * there is not enough free memory */
	int32_t		unused;			/* 0 */
} GvBeginRequest;

typedef struct GvBeginReply
{
	int32_t		rows;			/* GvRowForm: the rows that the mirror takes */
	int32_t		unused;			/* 0 */
} GvBeginReply;

typedef struct GvArrayRequest
{
	GvMirrorKey key;
	int32_t		array;			/* GvArray */
	int32_t		unused;			/* 0 */
	int64_t		first;			/* first element */
	int64_t		count;			/* elements, 4 bytes each */
} GvArrayRequest;

typedef struct GvListsRequest
{
	GvMirrorKey key;
	int32_t		nchunks;
	int32_t		unused;			/* 0 */
} GvListsRequest;

/*
 * The header of a chunk of a list.  Its arrays follow, all aligned to 4 bytes,
 * as gv_chunk_arrays finds them:
 *		uint32 live [nblocks]
 *		float t [nblocks][32]						\
 *		uint16 rowids [nblocks][32][3]				 > unless GV_CHUNK_LIVE
 *		keys [nblocks], of a mirror that has them	 |
 *		uint8 codes [nblocks][code_bytes][32]		/
 * A list that is longer than a message comes in several chunks, ascending.
 * `state` is the state of the list after the chunk is added; its nitems is the
 * number of postings up to the chunk's end.  If first > 0, the list must have
 * the same gen and del_seq before.  With GV_CHUNK_LIVE, the chunk must be of
 * the whole list, which must have the same gen and nitems before.  Bits of
 * `live` beyond nitems must be 0.
 */
#define GV_CHUNK_LIVE	1		/* `live` only */

typedef struct GvChunk
{
	int32_t		list;
	int32_t		first;			/* number of the first block */
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
	int32_t		first;			/* first list */
	int32_t		count;
	int32_t		block;			/* in READ_LISTS, the first block to read of
								 * list `first`; in other messages 0 */
	int32_t		unused;			/* 0 */
} GvRangeRequest;

typedef struct GvAttachShmRequest
{
	uint64_t	bytes;			/* up to GV_MAX_SHARED */
} GvAttachShmRequest;

typedef struct GvInShmRequest
{
	uint64_t	offset;			/* of the header; a multiple of 8 */
} GvInShmRequest;

/*
 * A session's shared memory, for one search at a time, so that neither end
 * makes a system call for it unless the other one sleeps.  The session puts a
 * SEARCH, including its header, into `request`, and sets the state.  gpuvecd
 * looks at the state in each round of its loop.  Before it sleeps it changes
 * the state to GV_MAIL_UNATTENDED; a session that finds this state when it asks
 * has to send LOOK.  gpuvecd puts the answer, including its header, behind the
 * mailbox, and sets the state; if it finds GV_MAIL_WAITING, it writes to the
 * session's eventfd.  A refusal, and an answer that is too long for the memory,
 * comes through the socket instead, and the header behind the mailbox has
 * type 0.  All these answers name LOOK as their request.
 *
 * The state is only exchanged, or compared and exchanged, so each end learns
 * whether the other one sleeps.
 */
typedef enum GvMailState
{
	GV_MAIL_UNATTENDED,			/* nothing is asked, nobody looks here */
	GV_MAIL_ASKED,				/* the session looks here for the answer */
	GV_MAIL_WAITING,			/* asked, and the session sleeps */
	GV_MAIL_ATTENDED			/* nothing is asked, and gpuvecd looks here */
} GvMailState;

typedef struct GvMailbox
{
	uint32_t	state;			/* GvMailState; atomic */
	uint32_t	unused[15];
	char		request[16384];
} GvMailbox;

static inline uint32_t
gv_mail_state(const GvMailbox *mailbox)
{
	return __atomic_load_n(&mailbox->state, __ATOMIC_ACQUIRE);
}

/* Sets the state of a mailbox, and returns the state before. */
static inline uint32_t
gv_mail_exchange(GvMailbox *mailbox, GvMailState state)
{
	return __atomic_exchange_n(&mailbox->state, (uint32_t) state,
							   __ATOMIC_SEQ_CST);
}

/* Changes the state, or returns false if it is not `from`. */
static inline bool
gv_mail_change(GvMailbox *mailbox, GvMailState from, GvMailState to)
{
	uint32_t	found = from;

	return __atomic_compare_exchange_n(&mailbox->state, &found,
									   (uint32_t) to, false,
									   __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

typedef struct GvBuildReply
{
	uint64_t	id;				/* random; whoever knows it may join */
} GvBuildReply;

typedef GvBuildReply GvJoinRequest;

typedef struct GvRowsRequest
{
	int32_t		kind;			/* GvRows; 0 in GV_MSG_ENCODE_ROWS */
	int32_t		n;				/* 1 or more; of GV_MSG_ENCODE_ROWS at most
								 * batch_rows */
} GvRowsRequest;

typedef struct GvRowsReply
{
	int64_t		first;			/* number of the first row among its kind */
} GvRowsReply;

typedef struct GvEncodeSampleRequest
{
	int64_t		first;			/* number of the first row in the sample */
	int32_t		n;				/* 1 .. batch_rows */
	int32_t		unused;			/* 0 */
} GvEncodeSampleRequest;

typedef struct GvTrainReply
{
	int32_t		nlists;
	int32_t		nparents;
} GvTrainReply;

typedef struct GvGetModelRequest
{
	int32_t		array;			/* GvArray */
	int32_t		unused;			/* 0 */
	int64_t		first;			/* first element */
	int64_t		count;
} GvGetModelRequest;

/*
 * The header of a GvEncoded; its arrays follow as gv_encoded_open finds them:
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
	int64_t		postings;		/* maximum number that will come */
} GvCalibMirrorRequest;

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
	int64_t		offset;			/* where in the memory that the connection
								 * shares to put the items, a multiple of 8;
								 * -1 to put the items into the answer */
} GvGetRequest;

typedef struct GvStatusReply
{
	uint64_t	instance;
	char		device[128];
	int64_t		memory;			/* bytes that mirrors may have on all devices */
	int64_t		most;			/* likewise, on the device that has most */
	int64_t		used;
	int64_t		searches;		/* answered with results */
	int64_t		batches;
	int64_t		largest_batch;
	int64_t		sets;			/* finished sets */
	int64_t		refusals[GV_NREFUSALS];
	int64_t		received;		/* bytes */
	int64_t		sent;
	int64_t		evictions;
	int64_t		oldest_ms;		/* how long the oldest of the batches under
								 * way has taken */
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
	int32_t		device;			/* GvDevice.number of the first */
	int32_t		shards;			/* devices that a replica is divided among */
	int32_t		replicas;
	int64_t		bytes;
	int64_t		postings;		/* in it, including dead ones */
	int64_t		expected;		/* postings, as estimated when loading began */
	int64_t		searches;
	int64_t		idle_ms;		/* since it was last searched or changed */
	int32_t		rows;			/* GvRowForm */
	int32_t		unused;			/* 0 */
} GvMirrorStatus;

extern const char *gv_refusal_name(uint32_t code);

/*
 * Returns whether both keys name the same mirror.  The OID of the index is not
 * compared, because ALTER TABLE may give an index another OID and keep its
 * pages.
 */
static inline bool
gv_same_key(const GvMirrorKey *a, const GvMirrorKey *b)
{
	return a->relation == b->relation && a->database == b->database &&
		a->tablespace == b->tablespace && a->build_id == b->build_id;
}

/* Returns the bytes of a request's tests and their values. */
static inline size_t
gv_tests_bytes(const GvSearchRequest *request)
{
	return (size_t) request->ntests * sizeof(GvTestRequest) +
		(size_t) request->nvalues * sizeof(uint64_t);
}

/* Returns the bytes of a request's queries, also of those as asked. */
static inline size_t
gv_queries_bytes(const GvSearchRequest *request)
{
	return (size_t) request->n * (size_t) request->dims * sizeof(float) *
		(size_t) (1 + request->asked);
}

/* The same, rounded up, so that what follows is aligned. */
static inline size_t
gv_shared_queries_bytes(const GvSearchRequest *request)
{
	return (gv_queries_bytes(request) + 7) / 8 * 8;
}

/*
 * Returns the bytes of an answer with this head, a multiple of 8.  A brief
 * answer has neither lists nor matches.  Without tests there are no matches.
 */
static inline int64_t
gv_answer_bytes(const GvSearchRequest *request, const GvSearchReply *head)
{
	int64_t		nlists = head->is_brief ? 0 : head->nprobed;
	int64_t		bytes = (int64_t) sizeof(*head) +
	nlists * (int64_t) sizeof(GvProbeReply) +
	head->nhits * (int64_t) sizeof(GvHit) +
	head->nbounds * (int64_t) sizeof(GvBound) +
	head->ndistances * (int64_t) sizeof(GvRowDistance) +
	(request->ntests > 0 ? nlists * (int64_t) sizeof(int32_t) : 0);

	return (bytes + 7) / 8 * 8;
}

/* The arrays of an answer, in their order. */
typedef struct GvAnswerArrays
{
	GvRowDistance *distances;	/* [ndistances]; first, for its alignment */
	GvProbeReply *probed;		/* [nprobed] */
	GvHit	   *hits;			/* [nhits] */
	GvBound    *bounds;			/* [nbounds] */
	int32_t    *matches;		/* [nprobed] */
} GvAnswerArrays;

/*
 * Returns the arrays of an answer that begins at `answer`.  `head` is its head,
 * or a copy of the head, which nobody else can change.
 */
static inline GvAnswerArrays
gv_answer_arrays(const GvSearchReply *head, const void *answer)
{
	GvAnswerArrays arrays;

	arrays.distances = (GvRowDistance *) ((const GvSearchReply *) answer + 1);
	arrays.probed = (GvProbeReply *) (arrays.distances + head->ndistances);
	arrays.hits = (GvHit *) (arrays.probed +
							 (head->is_brief ? 0 : head->nprobed));
	arrays.bounds = (GvBound *) (arrays.hits + head->nhits);
	arrays.matches = (int32_t *) (arrays.bounds + head->nbounds);
	return arrays;
}

/*
 * Returns the maximum bytes of an answer to one query.  has_records says
 * whether the mirror has refine records; if so, the answer has bounds.
 */
static inline int64_t
gv_answer_most(const GvSearchRequest *request, bool has_records)
{
	GvSearchReply head = {
		.nprobed = request->probes,
		.nhits = request->capacity,
		.nbounds = has_records ? (uint32_t) request->capacity : 0,
		.ndistances = request->asked ? (uint32_t) request->capacity : 0
	};

	return gv_answer_bytes(request, &head);
}

/*
 * Returns how many queries a request like this one may have so that both the
 * request and its answer fit into a message.  Returns at least 1.
 */
static inline int32_t
gv_queries_most(const GvSearchRequest *request, bool has_records)
{
	int64_t		query = 4 * (int64_t) request->dims * (1 + request->asked);
	int64_t		answer = gv_answer_most(request, has_records);
	int64_t		most = (GV_MAX_MESSAGE - (int64_t) sizeof(*request) -
						(int64_t) gv_tests_bytes(request)) /
	(answer > query ? answer : query);

	if (most > GV_MAX_QUERIES)
		most = GV_MAX_QUERIES;
	return most > 1 ? (int32_t) most : 1;
}

/* Returns how many blocks a list of nitems postings has. */
static inline int64_t
gv_blocks_of(uint32_t nitems)
{
	return ((int64_t) nitems + GV_BLOCK - 1) / GV_BLOCK;
}

/*
 * Returns the bytes of a chunk with its arrays, for code_bytes per code and
 * keys_bytes per block for keys.
 */
static inline int64_t
gv_chunk_bytes(const GvChunk *chunk, int32_t code_bytes, size_t keys_bytes)
{
	int64_t		block = sizeof(uint32_t);

	if ((chunk->flags & GV_CHUNK_LIVE) == 0)
		block += (int64_t) (GV_BLOCK * (sizeof(float) + 3 * sizeof(uint16_t) +
										(size_t) code_bytes) + keys_bytes);
	return (int64_t) sizeof(GvChunk) + chunk->nblocks * block;
}

/* The arrays of a chunk, in their order. */
typedef struct GvChunkArrays
{
	uint32_t   *live;
	float	   *t;				/* t and the next: NULL with GV_CHUNK_LIVE */
	uint16_t   *rowids;
	char	   *keys;			/* NULL if the index has none */
	uint8_t    *codes;
} GvChunkArrays;

static inline GvChunkArrays
gv_chunk_arrays(GvChunk *chunk, size_t keys_bytes)
{
	size_t		nblocks = (size_t) chunk->nblocks;
	GvChunkArrays arrays = {.live = (uint32_t *) (chunk + 1)};
	char	   *keys;

	if ((chunk->flags & GV_CHUNK_LIVE) != 0)
		return arrays;
	arrays.t = (float *) (arrays.live + nblocks);
	arrays.rowids = (uint16_t *) (arrays.t + nblocks * GV_BLOCK);
	keys = (char *) (arrays.rowids + nblocks * GV_BLOCK * 3);
	arrays.keys = keys_bytes > 0 ? keys : NULL;
	arrays.codes = (uint8_t *) keys + nblocks * keys_bytes;
	return arrays;
}

/* Returns a chunk as the engine reads it. */
static inline GvListChunk
gv_chunk_open(const GvChunk *chunk, size_t keys_bytes)
{
	GvChunkArrays arrays = gv_chunk_arrays((GvChunk *) chunk, keys_bytes);

	return (GvListChunk)
	{
		chunk->list, chunk->first, chunk->nblocks, arrays.live, arrays.t,
			arrays.rowids, arrays.keys, arrays.codes
	};
}

/* Copies a block to the chunk, as the chunk's i-th block. */
static inline void
gv_chunk_put(GvChunk *chunk, int32_t code_bytes, size_t keys_bytes, size_t i,
			 const GvBlock *block)
{
	GvChunkArrays arrays = gv_chunk_arrays(chunk, keys_bytes);
	size_t		bytes = GV_BLOCK * (size_t) code_bytes;

	arrays.live[i] = block->live;
	memcpy(arrays.t + i * GV_BLOCK, block->t, GV_BLOCK * sizeof(float));
	memcpy(arrays.rowids + i * GV_BLOCK * 3, block->rowids,
		   GV_BLOCK * 3 * sizeof(uint16_t));
	if (keys_bytes > 0)
		memcpy(arrays.keys + i * keys_bytes, block->keys, keys_bytes);
	memcpy(arrays.codes + i * bytes, block->codes, bytes);
}

#endif							/* GV_PROTOCOL_H */
