/*
 * server.h
 *		The declarations that the files of gpuvecd share, by file.
 *
 * server/README says which threads there are, what they share, and in which
 * order they take locks.
 */
#ifndef GV_SERVER_H
#define GV_SERVER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE				/* accept4, struct ucred */
#endif

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "engine/gv_set.h"
#include "engine/mirror/gv_builder.h"
#include "engine/mirror/gv_parallel.h"
#include "protocol/gv_protocol.h"

#define GV_MAX_BATCH	1024	/* searches in a batch */
#define GV_BATCH_SLOTS	2		/* batches that a device has at a time, each
								 * with a searcher */
#define GV_MAX_CLIENT_THREADS	256 /* threads of all clients but sessions */

/* Exit statuses; users and the supervisor go by them. */
#define GV_EXIT_USAGE		2
#define GV_EXIT_NO_ENGINE	3	/* no device, or no CUDA in this program */
#define GV_EXIT_LOCKED		4	/* another gpuvecd runs in the folder */
#define GV_EXIT_FAILED		5	/* the engine broke, hangs, or could not begin
								 * now, so restart gpuvecd */
#define GV_EXIT_SYSTEM		6	/* the operating system refused something */
#define GV_EXIT_INCARNATION 7	/* the cluster's next incarnation has come,
								 * for which a new process is needed */

/* ---- gpuvecd.c: the program */

/* All threads may read this once the server runs; counters are atomic. */
typedef struct GvServer
{
	uint64_t	instance;
	int			pid;			/* of the process that was started */
	uid_t		owner;			/* the user that may connect */
	const char *release;
	const char *engine;
	char		device[128];	/* GvDevice.name of all devices */
	int32_t		numbers[GV_MAX_DEVICES];	/* GvDevice.number of each */
	int			max_connections;
	int32_t		replicas;		/* of a mirror, where there is memory for them */
	int			batch_timeout_s;	/* time limit for the engine; 0: none */
	int			message_s;		/* time limit for a message, from its first
								 * byte to its last */
	int32_t		at_once;		/* queries of one message in one call of the
								 * engine; between calls loaders have their
								 * turn, and we notice cancels */

	/* when a set, and a build, uses another device */
	double		min_products_per_device;	/* of numbers */
	int64_t		copy_builder_after_ns;	/* that threads wait for builders */

	int64_t		searches;
	int64_t		batches;
	int64_t		largest_batch;
	int64_t		sets;
	int64_t		refusals[GV_NREFUSALS];
	int64_t		received;
	int64_t		sent;
	int32_t		connections;	/* without the supervisors' */
	int32_t		client_threads;
} GvServer;

extern GvServer gv_server;

#define gv_count(counter, n) \
	((void) __atomic_add_fetch(&gv_server.counter, (n), __ATOMIC_RELAXED))
#define gv_counted(counter) \
	__atomic_load_n(&gv_server.counter, __ATOMIC_RELAXED)

/* Prints a line "LEVEL: text" on standard error. */
extern void gv_log(const char *level, const char *format,...)
			__attribute__((format(printf, 2, 3)));

/* Logs "could not ...", with errno, and exits with GV_EXIT_SYSTEM. */
extern void gv_system_error(const char *format,...)
			__attribute__((format(printf, 1, 2), noreturn));

/*
 * Returns the code with which to refuse a request after this status of the
 * engine, or 0 for GV_OK.  After GV_FAILED in any thread, gv_server_failed
 * returns true, and the process ends soon.
 */
extern GvRefusalCode gv_status_refusal(GvStatus status);
extern bool gv_server_failed(void);

/* ---- registry.c: the mirrors, and who may use the devices' memory */

/* A member of a mirror: one shard of one replica, on one device. */
typedef struct GvMirrorMember
{
	int32_t		device;
	int64_t		reserved;		/* bytes that are charged at least */
	int64_t		charged;		/* bytes of the budget */
	int64_t		bytes;			/* that the engine takes for it */
} GvMirrorMember;

/*
 * A mirror in the registry.  `lock` protects the fields from `mirror` to
 * last_parent_offset.  The registry's mutex protects `owner` and the fields
 * from `next` on.  Once the mirror has been created, `nitems` and the members
 * change only under both locks, so a thread that holds one of the locks may
 * read `nitems`, and which members there are.
 */
typedef struct GvMirrorEntry
{
	GvMirrorKey key;
	GvMirrorSpec spec;			/* its device: see `members` */
	uint64_t	owner;			/* the connection or the build that began the
								 * mirror, or 0 until `mirror` has been
								 * created */
	pthread_rwlock_t lock;
	GvMirror   *mirror;
	GvListState *states;		/* [nlists] */
	uint64_t	version;		/* of the directory with these states, or 0 if
								 * not known */
	uint64_t	loader;			/* connection that was the last to read the
								 * states of all lists; it alone may put rows
								 * once the mirror is ready */
	uint64_t	seen_by;		/* connection that was the last to read the
								 * states, or 0 after a change by another
								 * connection */
	int64_t		filled[GV_NARRAYS]; /* elements that have come */
	int32_t		last_parent_offset;

	struct GvMirrorEntry *next;
	int			users;			/* number of threads that use it */
	int			growing;		/* of these, threads that free memory for it */
	bool		ready;
	int32_t		nshards;		/* of a replica */
	int32_t		nmembers;
	GvMirrorMember members[GV_MAX_DEVICES]; /* [nmembers], by replicas */
	int64_t		nitems;			/* postings in all lists */
	int64_t		searches;
	int64_t		used_ms;		/* when it was last searched or changed */
} GvMirrorEntry;

/* A set of devices, a bit each. */
typedef uint32_t GvDeviceSet;

#define GV_ALL_DEVICES	UINT32_MAX

/*
 * The account of a build or a set, which may have a part on each device.  A
 * zeroed struct is a job without parts.  The registry's mutex protects it.
 */
typedef struct GvJob
{
	GvDeviceSet devices;		/* that have a part */
	GvDeviceSet tried;			/* no part is created there */
	int64_t		charged[GV_MAX_DEVICES];	/* bytes of each device's budget */
} GvJob;

/* The devices of the replica that a thread searches, and their searchers. */
typedef struct GvTeam
{
	int32_t		nshards;
	int32_t		devices[GV_MAX_DEVICES];	/* [nshards] */
	GvSearcher *searchers[GV_MAX_DEVICES];	/* [nshards] */
} GvTeam;

/*
 * The first function returns the key of a build's calibration mirror.  The
 * second returns whether a key is the key of a calibration mirror.  The keys
 * of indexes differ from these, because no index has a file of number 0.
 */
static inline GvMirrorKey
gv_calibration_key(uint64_t build)
{
	return (GvMirrorKey)
	{
		0, 0, 0, 0, build
	};
}

static inline bool
gv_is_calibration(const GvMirrorKey *key)
{
	return key->relation == 0;
}

extern void gv_mirrors_init(const GvDevice *devices, const int64_t *budgets,
							int32_t ndevices, int keep_s);
extern GvMirrorEntry *gv_mirrors_acquire(const GvMirrorKey *key,
										 uint64_t owner,
										 GvRefusalCode *refusal);
extern GvDeviceSet gv_mirrors_devices(const GvMirrorKey *key);
extern void gv_mirrors_release(GvMirrorEntry *entry, int64_t searches);
extern GvRefusalCode gv_mirrors_begin(const GvMirrorKey *key,
									  GvMirrorSpec *spec, bool rows_must,
									  uint64_t owner);
extern void gv_mirrors_ready(GvMirrorEntry *entry);
extern void gv_mirrors_drop(const GvMirrorKey *key);
extern void gv_mirrors_abandon(uint64_t owner);
extern int32_t gv_mirrors_status(GvStatusReply *reply,
								 GvMirrorStatus *mirrors, int32_t capacity);

extern bool gv_mirrors_reserve_rows(GvMirrorEntry *entry,
									const int64_t *growth);
extern void gv_mirrors_drop_rows(GvMirrorEntry *entry);
extern bool gv_mirrors_reserve_growth(GvMirrorEntry *entry,
									  const int64_t *growth);
extern void gv_mirrors_changed(GvMirrorEntry *entry, int64_t more);
extern bool gv_mirrors_evict_for(GvMirrorEntry *entry,
								 const int64_t *growth);

extern GvStatus gv_job_create(GvJob *job, int64_t bytes, int32_t beside,
							  int32_t *device, GvStatus (*create) (void *),
							  void *arg);
extern bool gv_job_grow(GvJob *job, int32_t device, int64_t bytes);
extern void gv_job_end(GvJob *job, GvDeviceSet devices);

extern GvStatus gv_searchers_take(GvMirrorEntry *entry, const GvStop *stop,
								  GvTeam *team);
extern void gv_searchers_give(GvTeam *team);
extern void gv_searchers_count(int32_t more);

/* ---- clientconn.c: one client */

/* A list of connections, and a connection's place in a list. */
struct GvConnection;
typedef LIST_HEAD(GvConnections, GvConnection)
GvConnections;
typedef LIST_ENTRY(GvConnection)
GvConnectionLink;

/*
 * `in` holds a message or the beginning of a message.  `out` holds an answer,
 * which may be partly sent.  A loader's or set's message may be in shared
 * memory.
 */
typedef struct GvConnection
{
	int			fd;
	uint32_t	role;			/* GvRole; 0 before HELLO */
	uint64_t	opened_ns;
	uint64_t	begun_ns;		/* when the message in `in` began to come or,
								 * while `writing`, when we began to send */
	bool		pipelines;		/* the client may send before it is answered,
								 * because it is a builder, a set, or a bulk
								 * client or session that shares memory */
	uint64_t	number;			/* counts connections, from 1 */
	uint64_t	owner;			/* owner of the mirrors that the connection
								 * begins: `number`, or its build's id */
	bool		over_limit;		/* there are too many: refuse it */
	bool		close_after_send;	/* close it once the answer is sent */
	bool		writing;		/* waits for its client to read */
	bool		search_pending; /* a search waits or is under way, so `in` is
								 * in use */
	bool		searches;		/* its thread is counted (gv_searchers_count) */
	char	   *in;				/* [in_capacity] */
	size_t		in_used;
	size_t		in_capacity;
	char	   *out;			/* [out_capacity] */
	size_t		out_used;
	size_t		out_sent;
	size_t		out_capacity;
	uint64_t	received_ns;	/* when the request was complete */
	int			passed_fd;		/* descriptor that came along, or -1 */
	char	   *shm;			/* [shm_bytes] the client's memory, or NULL */
	size_t		shm_bytes;
	char	   *shm_message;	/* the message at hand in shared memory, or
								 * NULL if it is in `in` */
	GvMessage	shm_header;		/* checked copy of that message's header */
	bool		mailed;			/* `in` has a copy of a message in the mailbox */
	size_t		mailed_bytes;	/* of its answer in the memory, or 0 if the
								 * answer is in `out` */
	int			wake_fd;		/* a session's eventfd, or -1 */
	bool		attended;		/* the loop looks at its mailbox */
	void	   *job;			/* state of its thread: a build or a set */
	GvStop		stop;			/* ends the engine's work when the client goes
								 * or the engine has failed */
	GvConnectionLink link;		/* in the loop's list */
	GvConnectionLink supervisor;	/* in socketdir.c's */
} GvConnection;

typedef enum GvReceived
{
	GV_RECEIVED_PART,			/* wait for more */
	GV_RECEIVED_WHOLE,			/* a message is in `in` */
	GV_RECEIVED_WRONG,			/* refused, and ending: flush, then close */
	GV_RECEIVED_END				/* the client is gone */
} GvReceived;

typedef enum GvFlushed
{
	GV_FLUSHED,					/* all is sent */
	GV_FLUSH_LATER,				/* the client has to read first */
	GV_FLUSH_BROKEN				/* the client is gone */
} GvFlushed;

/* If there is no memory, returns NULL, and the caller keeps the socket. */
extern GvConnection *gv_connection_open(int fd, uint64_t number);
extern void gv_connection_close(GvConnection *connection);

/*
 * Reads until a message is whole or, without `wait`, until there is nothing to
 * read.  The last message must have been answered.
 */
extern GvReceived gv_connection_receive(GvConnection *connection, bool wait);

/* Returns the mailbox of a session, or NULL if it shares no memory. */
static inline GvMailbox *
gv_mailbox(const GvConnection *connection)
{
	return connection->role == GV_ROLE_SESSION ?
		(GvMailbox *) (void *) connection->shm : NULL;
}

/*
 * Copies a message from the mailbox, so that the session cannot change it any
 * more, and checks the copy.
 */
extern GvReceived gv_mailbox_take(GvConnection *connection);

/*
 * Sends the rest of the answer.  When the whole answer is sent, the request is
 * done, and the next request may come.
 */
extern GvFlushed gv_connection_flush(GvConnection *connection, bool wait);

/*
 * Returns whether the client has closed the socket, even if there are still
 * messages to read.
 */
extern bool gv_connection_is_gone(const GvConnection *connection);

/*
 * Logs and returns whether a client is too slow to send a message or read an
 * answer.
 */
extern bool gv_connection_is_stuck(const GvConnection *connection);

/* Returns the header of the message at hand. */
static inline const GvMessage *
gv_message(const GvConnection *connection)
{
	return connection->shm_message != NULL ? &connection->shm_header :
		(const GvMessage *) connection->in;
}

/* Returns the bytes after the message's header. */
static inline void *
gv_payload(const GvConnection *connection)
{
	return (connection->shm_message != NULL ? connection->shm_message :
			connection->in) +
		sizeof(GvMessage);
}

/*
 * Make answers.  gv_reply makes an OK, and returns the `length` bytes after
 * the OK for the caller to fill.  If there is no memory, it refuses and
 * returns NULL.  gv_reply_cut reduces the number of these bytes to `length`.
 * gv_refuse replaces any answer made so far, and ends the connection of a
 * client that broke the rules or cannot be served.
 */
extern void *gv_reply(GvConnection *connection, size_t length);
extern void gv_reply_cut(GvConnection *connection, size_t length);
extern void gv_refuse(GvConnection *connection, GvRefusalCode code,
					  const char *reason);

/* Refuses because of the engine's status, which is not GV_OK. */
extern void gv_refuse_status(GvConnection *connection, GvStatus status);

/*
 * Returns the bytes at an offset in the memory that a client shares.
 * Returns NULL if not all of the bytes are in this memory, or if no memory is
 * shared.
 */
extern void *gv_shared_at(const GvConnection *connection, int64_t offset,
						  int64_t bytes);

/*
 * When a builder or a set may send a message.  Other clients may send messages
 * at any time.
 */
typedef enum GvJobPhase
{
	GV_ANY_TIME,				/* the default in tables */
	GV_BEFORE_JOB,				/* while the connection has no build */
	GV_DURING_JOB,				/* once it has a build or a set */
	GV_JOB_OWNER				/* once it has begun (not joined) a build */
} GvJobPhase;

/*
 * Answers the message at hand.  Returns GV_OK if the message has its answer or
 * refusal, or an empty answer is enough, or no answer is due now.  Otherwise
 * returns the status because of which to refuse the message.  For GV_INVALID,
 * *wrong says how the client broke the rules, unless it is NULL.
 */
typedef GvStatus (*GvAnswer) (GvConnection *connection, const char **wrong);

/*
 * The rules for one type of message, and what answers it: a function for any
 * message or, if the message is about a mirror and so begins with the mirror's
 * key, a function that gets the mirror.  IN_SHM, which names another message,
 * has neither.
 */
typedef struct GvMessageKind
{
	uint16_t	type;			/* GvMessageType */
	uint32_t	roles;			/* that may send it, a bit each (GV_BY) */
	uint32_t	min;			/* bytes after the header */
	uint32_t	max;
	GvAnswer	answer;
	GvStatus	(*mirror) (GvConnection *connection, GvMirrorEntry *entry,
						   const char **wrong);
	GvJobPhase	phase;
	bool		in_memory;		/* it may lie in shared memory */
} GvMessageKind;

#define GV_BY(role)		(1U << GV_ROLE_##role)

/*
 * Values of GvMessageKind.min and max: for one struct alone, for a struct with
 * any amount of data behind it, and for a struct with at least one byte of
 * data behind it.
 */
#define GV_ONE(type)	sizeof(type), sizeof(type)
#define GV_FROM(type)	sizeof(type), GV_MAX_MESSAGE
#define GV_BEYOND(type)	sizeof(type) + 1, GV_MAX_MESSAGE

/*
 * The messages that searchjob.c, mirrorload.c, buildjob.c and setjob.c answer.
 * An element of type 0 ends a table.
 */
extern const GvMessageKind gv_search_messages[];
extern const GvMessageKind gv_mirror_messages[];
extern const GvMessageKind gv_build_messages[];
extern const GvMessageKind gv_set_messages[];

/* Returns a message's kind, or NULL if its type or length is not allowed. */
extern const GvMessageKind *gv_message_kind(const GvMessage *message);

/* The GvAnswer of any message: answers it by the function in its table. */
extern GvStatus gv_message_act(GvConnection *connection, const char **wrong);

/* Answers the message at hand, which has been checked. */
extern void gv_answer_by(GvConnection *connection, GvAnswer answer);

static inline void
gv_message_answer(GvConnection *connection)
{
	gv_answer_by(connection, gv_message_act);
}

/*
 * Starts a thread, which then owns the connection.  If the thread cannot be
 * started, returns false, and the caller still owns the connection.
 */
extern bool gv_client_start(GvConnection *connection);

/* Answers a client's messages in its own thread, until the client goes. */
extern void gv_thread_serve(GvConnection *connection, GvAnswer answer);

/* ---- socketdir.c: where clients find us, and whom we serve */

/* Makes the folder the current one and locks it, or exits. */
extern void gv_folder_enter(const char *path, bool is_shared);

/*
 * Returns the listening socket, in the folder that was entered.  If the socket
 * cannot be made, returns -1 and sets errno.
 */
extern int	gv_folder_listen(void);

/* Removes the socket.  Safe in any thread and signal handler, at any time. */
extern void gv_folder_leave(void);

/* Returns whether the peer of a socket is gv_server.owner. */
extern bool gv_folder_admits(int fd);

/*
 * Returns whether a client with this hello is admitted.  If not, the client
 * has been refused, or this process is about to end and does not answer the
 * client.  Called in the loop's thread.
 */
extern bool gv_incarnation_admits(GvConnection *connection,
								  const GvHello *hello);

/*
 * Note that a connection's client has turned out to be a supervisor, and that
 * such a client has gone.  Connections of supervisors are not counted.
 */
extern void gv_incarnation_supervised(GvConnection *connection);
extern void gv_incarnation_unsupervised(GvConnection *connection);

/* Returns whether another incarnation has come.  For the loop's thread. */
extern bool gv_incarnation_is_over(void);

/* ---- searchjob.c: searches */

/* The condition of a request.  The values of its tests stay in the message. */
typedef struct GvAskedCondition
{
	GvCondition condition;
	GvKeyTest	tests[GV_MAX_TESTS];
} GvAskedCondition;

/*
 * A batch slot of a device, with its searcher.  A batch has a slot on each
 * device of the replica that it searches.  The first of these slots holds the
 * batch: its fields from `nslots` on, which are large, belong to the batch.
 */
typedef struct GvBatchSlot
{
	int32_t		device;
	GvSearcher *searcher;
	struct GvBatchSlot *batch;	/* the batch that has this slot, or NULL if
								 * the slot is free */
	int32_t		nslots;
	struct GvBatchSlot *slots[GV_MAX_DEVICES];	/* [nslots], this one first */
	GvSearcher *searchers[GV_MAX_DEVICES];	/* [nslots], those of the slots */
	GvMirrorEntry *entry;		/* locked; NULL: no batch is under way */
	uint64_t	began_ns;
	int			n;				/* number of searches under way */
	int			nasked;			/* number of these searches, plus searches
								 * that were refused at once */
	GvConnection *askers[GV_MAX_BATCH]; /* [nasked], refused ones last */
	GvSearch	searches[GV_MAX_BATCH]; /* [n] */
	GvAskedCondition conditions[GV_MAX_BATCH];	/* [n] */
} GvBatchSlot;

/*
 * Begins the searches of batch->askers [nasked] in a mirror, on the replica
 * that is on the devices of batch->slots.  The caller has acquired and locked
 * the mirror, which stays locked until the searches end, so that the list
 * states in an answer are those of the lists searched.  If batch->entry is not
 * NULL afterwards, the caller has to call gv_batch_finish.  Otherwise all
 * askers have their answers, and the mirror is unlocked and released.
 */
extern void gv_batch_begin(GvBatchSlot *batch, GvMirrorEntry *entry);

/* Waits for the batch under way, and prepares the answers to its searches. */
extern void gv_batch_finish(GvBatchSlot *batch);

/*
 * keepnearest.c
 *
 * Chooses the hits of an answer to send to a session that needs the nearest
 * request->keep of the first request->rows different rows found.  Returns their numbers
 * [head->nhits], ascending, valid until the next call, and sets head->nhits,
 * ndistances and omitted (GvOmitted).  Returns NULL if all hits should be sent.
 * `head` is the head of an answer that has all.  For the loop's thread.
 */
extern const int32_t *gv_keep_nearest(const GvSearch *found,
									  const GvSearchRequest *request,
									  GvSearchReply *head);

/* ---- eventloop.c: the thread of sessions, and the watchdog */

/* Returns monotonic time. */
extern uint64_t gv_now_ns(void);

/*
 * Serves until a signal comes, the engine breaks, or another incarnation of
 * the cluster begins (gv_incarnation_is_over).  Returns the exit status.
 */
extern int	gv_loop_run(int listener);

/* Makes the loop run a round.  Safe in any thread and signal handler. */
extern void gv_loop_wake(void);

/*
 * Handles the signals that end gpuvecd.  Ends the process at once before the
 * loop runs, and while the engine searches: a search may take long, and nobody
 * needs its result.  Otherwise the loop ends.
 */
extern void gv_loop_on_signal(int signal);

/* Returns whether a session is connected.  For the loop's thread. */
extern bool gv_loop_has_sessions(void);

/*
 * Sends an answer, or as much of the answer as the client takes.  Returns
 * false if the connection is closed.
 */
extern bool gv_loop_answer(GvConnection *connection);

/* Opens all batch slots of all devices. */
extern GvStatus gv_batches_open(void);
extern void gv_batches_close(void);

/* Adds a client's search to the queue, which must have room for it. */
extern void gv_batches_add(GvConnection *connection);

/*
 * Begins all batches that may begin.  Ends the oldest batch that is done, if
 * any, begins the next batches, and sends the answers.  If only one batch is
 * under way and all `clients` connected clients wait for answers, waits until
 * that batch is done.
 */
extern void gv_batches_go_on(int clients);

/* Notes that a round of the loop begins or ends. */
extern void gv_watchdog_round(bool begins);

/*
 * Note that a batch for a message of many queries begins, and that the batch
 * ends.  The first function returns the number to pass to the second function.
 */
extern int	gv_watchdog_bulk_begin(uint64_t began_ns);
extern void gv_watchdog_bulk_end(int number);

/* Returns how long the oldest round or batch of the loop has taken so far. */
extern int64_t gv_watchdog_oldest_ms(void);

/* ---- buildjob.c: builds */

/* Serves a builder until its connection ends. */
extern void gv_buildjob_serve(GvConnection *connection);

/* ---- setjob.c: work on sets */

/* Like gv_sets_open, but divides sets among the devices. */
extern GvStatus gv_setjob_open(const GvSetBackend *opened);

/* Serves a set until its connection ends. */
extern void gv_setjob_serve(GvConnection *connection);

#endif							/* GV_SERVER_H */
