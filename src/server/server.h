/*
 * server.h
 *		gpuvecd from the inside: what its files share.
 *
 * One thread, the loop, waits for all sessions and answers their searches in
 * batches; each loader, builder and set has a thread of its own.  They meet in
 * the registries of mirrors (registry.c) and of builds (buildjob.c) only.  A
 * mirror lies on one device, numbered as in gv_mirror.h, or has members on
 * several; a batch has one; a build (buildjob.c) and a set (setjob.c)
 * may have several.
 *
 * Locks: the registries' mutexes, and those of builds and sets, are held for a
 * few instructions and never while another lock is waited for.  A builder is
 * waited for with none held.  A mirror's lock is held shared for a batch of
 * searches and exclusively for one change, by a thread that uses the mirror
 * (gv_mirrors_acquire), so that it cannot be freed meanwhile.  No lock is held
 * while a socket is waited for.
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
#include <sys/types.h>

#include "engine/gv_set.h"
#include "engine/mirror/gv_builder.h"
#include "protocol/gv_protocol.h"

#define GV_MAX_BATCH	1024	/* searches answered together */
#define GV_BATCH_SLOTS		2	/* batches of a device at a time, each with a
								 * searcher */
#define GV_MAX_EXTRAS	2		/* searchers of a device for messages of many
								 * searches */
#define GV_MAX_AT_ONCE	4096	/* searches of one message in a call of the
								 * engine */
#define GV_MAX_LOADERS	256		/* threads of all but sessions */

/* Exit statuses; users and the supervisor go by them. */
#define GV_EXIT_USAGE		2
#define GV_EXIT_NO_ENGINE	3	/* no device, or no CUDA in this program */
#define GV_EXIT_LOCKED		4	/* another gpuvecd runs in the folder */
#define GV_EXIT_FAILED		5	/* the engine broke, hangs, or could not begin
								 * now: restart me */
#define GV_EXIT_SYSTEM		6	/* the operating system refused something */

/* All threads may read this once the server runs; counters are atomic. */
typedef struct GvServer
{
	uint64_t	instance;
	int			pid;
	uid_t		owner;			/* who may connect */
	const char *release;
	const char *engine;
	char		device[128];	/* GvDevice.name, of all */
	int32_t		numbers[GV_MAX_DEVICES];	/* GvDevice.number of each */
	int			max_connections;
	int32_t		replicas;		/* of a mirror, where there is memory for them */
	int			patience_s;		/* with the engine; 0: without end */
	int			message_s;		/* that a message takes from its first byte to
								 * its last, at most */
	int32_t		at_once;		/* searches of one message in a call of the
								 * engine; then loaders have their turn, and
								 * the client may have canceled */
	double		least_task;		/* of a set, in products of numbers, that is
								 * worth another device */
	int64_t		worth_ns;		/* time that builds have to wait for a device
								 * before another one is worth it */
	int64_t		searches;
	int64_t		batches;
	int64_t		largest_batch;
	int64_t		sets;
	int64_t		refusals[GV_NREFUSALS];
	int64_t		received;
	int64_t		sent;
	int32_t		connections;	/* but the supervisor's */
	int32_t		loaders;
} GvServer;

extern GvServer gv_server;

#define gv_count(counter, n) \
	((void) __atomic_add_fetch(&gv_server.counter, (n), __ATOMIC_RELAXED))

/* gpuvecd.c: a line "LEVEL: text" */
extern void gv_log(const char *level, const char *format,...)
			__attribute__((format(printf, 2, 3)));

extern void gv_system_error(const char *format,...)
			__attribute__((format(printf, 1, 2), noreturn));

/* socketdir.c: where clients find us */
extern bool gv_folder_fits(const char *path);
extern bool gv_folder_user(const char *name, uid_t *uid);
extern void gv_folder_enter(const char *path, bool is_shared);
extern void gv_folder_note_incarnation(uint64_t incarnation);
extern int	gv_folder_listen(void);
extern void gv_folder_leave(void);
extern bool gv_folder_admits(int fd);

/* eventloop.c */
extern int	gv_loop_run(int listener);
extern void gv_loop_wake(void);
extern bool gv_loop_stops(void);
extern bool gv_loop_has_sessions(void);

/*
 * gpuvecd.c.  After GV_FAILED the process ends soon; gv_status_refusal sees to
 * that, in whatever thread.
 */
extern GvRefusalCode gv_status_refusal(GvStatus status);
extern bool gv_server_failed(void);

/*
 * clientconn.c: one client.  `in` holds a message, or the beginning of one,
 * `out` an answer that is made or partly sent.  A loader's message may lie
 * elsewhere.
 */
typedef struct GvConnection
{
	int			fd;
	uint32_t	role;			/* GvRole; 0 before HELLO */
	uint64_t	opened_ns;
	uint64_t	begun_ns;		/* when the message in `in` began to come, or,
								 * while it is writing, the answer to go */
	int			idle_ms;		/* it may be between messages; -1: for ever */
	uint64_t	number;			/* which, of all that there were */
	bool		surplus;		/* there are too many: refuse it */
	bool		ending;			/* close it once the answer is sent */
	bool		writing;		/* waits for its client to read */
	bool		asked;			/* its search waits or is under way: `in` is
								 * in use */
	int32_t		device;			/* that its search is to go to, or -1 */
	char	   *in;
	size_t		in_used;
	size_t		in_capacity;
	char	   *out;
	size_t		out_used;
	size_t		out_sent;
	size_t		out_capacity;
	uint64_t	whole_ns;		/* when the request was whole */
	int			passed_fd;		/* descriptor that came along, or -1 */
	char	   *shared;			/* [shared_bytes] the client's memory, or NULL */
	size_t		shared_bytes;
	char	   *place;			/* in it: the message at hand, header and all;
								 * NULL: that is in `in` */
	GvMessage	here;			/* its header, as it was checked */
	void	   *work;			/* its thread's: a loader's GvWorker, a build,
								 * many searches, work on a set */
	struct GvConnection *next;	/* the loop's list of its own */
	struct GvConnection *previous;
	struct GvConnection *next_supervisor;	/* socketdir.c's */
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

extern GvConnection *gv_connection_open(int fd, uint64_t number);
extern void gv_connection_close(GvConnection *connection);
extern GvReceived gv_connection_receive(GvConnection *connection, bool wait);
extern GvFlushed gv_connection_flush(GvConnection *connection, bool wait);
extern bool gv_loop_answer(GvConnection *connection);

extern bool gv_connection_is_gone(const GvConnection *connection);
extern bool gv_connection_is_stuck(const GvConnection *connection);

/* Ends the engine's work when its client goes, or when the engine failed. */
extern GvStop gv_connection_stop(GvConnection *connection);

/* socketdir.c: which incarnation of a cluster we serve. */
extern bool gv_incarnation_admits(GvConnection *connection,
								  const GvHello *hello);
extern void gv_incarnation_supervised(GvConnection *connection);
extern void gv_incarnation_unsupervised(GvConnection *connection);
extern bool gv_incarnation_is_over(void);
extern bool gv_restart_pass_on(int signal);
extern int	gv_restart(int home, char **argv);
extern void gv_restart_heed_signals(int how);

static inline const GvMessage *
gv_message(const GvConnection *connection)
{
	return connection->place != NULL ? &connection->here :
		(const GvMessage *) connection->in;
}

/* The bytes behind the message's header. */
static inline void *
gv_payload(const GvConnection *connection)
{
	return (connection->place != NULL ? connection->place : connection->in) +
		sizeof(GvMessage);
}

/*
 * Answers.  gv_reply allocates `length` bytes behind an OK and returns where
 * they go, or refuses and returns NULL; gv_reply_cut shortens them.
 */
extern void *gv_reply(GvConnection *connection, size_t length);
extern void gv_reply_cut(GvConnection *connection, size_t length);
extern void gv_refuse(GvConnection *connection, GvRefusalCode code,
					  const char *reason);

/*
 * clientconn.c: what clients may say, when, and which function answers it.
 */
typedef enum GvWhen
{
	GV_ANY_TIME,
	GV_BEFORE_WORK,				/* while the connection has no build */
	GV_DURING_WORK,				/* once it has one, or a set */
	GV_OWN_WORK					/* likewise, and has not joined it */
} GvWhen;

typedef struct GvMessageKind
{
	uint32_t	roles;			/* that send it, a bit each */
	uint32_t	least;			/* bytes behind the header */
	uint32_t	most;
	GvWhen		when;
	bool		in_memory;		/* it may lie in shared memory */
	void		(*answer) (GvConnection *connection);	/* NULL: HERE, which
														 * names another */
} GvMessageKind;

/* The kind that it is of; NULL: of none, or its length is wrong. */
extern const GvMessageKind *gv_message_kind(const GvMessage *message);

/* May it speak on before it is answered? */
static inline bool
gv_role_speaks_on(uint32_t role)
{
	return role == GV_ROLE_BUILDER || role == GV_ROLE_SET;
}

static inline bool
gv_role_sends(uint32_t role, const GvMessageKind *kind)
{
	return (kind->roles & (1U << role)) != 0;
}

/* Answer the message at hand, which has been checked. */
static inline void
gv_message_answer(GvConnection *connection)
{
	gv_message_kind(gv_message(connection))->answer(connection);
}

/* A member of a mirror, a shard or a replica, on one device. */
typedef struct GvMirrorMember
{
	int32_t		device;
	int64_t		reserved;		/* bytes it may take in any case */
	int64_t		charged;		/* bytes of the budget that are its */
	int64_t		bytes;			/* that it takes */
	bool		promised;		/* of shards: memory for searchers of the
								 * first member's device, until they exist */
} GvMirrorMember;

/*
 * registry.c: a mirror in the registry.  `lock` protects what stands between it
 * and `next`; the rest from there on is the registry's.  Members go, and
 * others move up, under both locks only, so who has either may read which
 * there are.
 */
typedef struct GvMirrorEntry
{
	GvMirrorKey key;
	GvMirrorSpec spec;			/* its device: see `members` */
	GvPlacementMode mode;
	uint64_t	owner;			/* the connection that began it */
	pthread_rwlock_t lock;
	GvMirror   *mirror;
	GvListState *states;		/* [nlists] */
	uint64_t	version;		/* of the directory that they are; 0: none */
	uint64_t	seen_by;		/* connection that asked for them, and no
								 * other has changed them since; 0: none */
	int64_t		nitems;			/* of all lists */
	int64_t		filled[GV_NARRAYS]; /* elements that came */
	int32_t		last_parent_offset;

	struct GvMirrorEntry *next;
	int			users;			/* threads that hold it */
	int			growing;		/* of them, those that free memory for it */
	bool		ready;
	int32_t		nmembers;
	GvMirrorMember members[GV_MAX_DEVICES]; /* [nparts] */
	int64_t		postings;		/* as nitems */
	int64_t		searches;
	int64_t		used_ms;		/* when it was last searched or changed */
} GvMirrorEntry;

/* Devices that were tried for something, a bit each. */
typedef uint32_t GvTriedDevices;

/* Where it was tried to place a mirror. */
typedef struct GvTriedPlaces
{
	GvTriedDevices whole;
	int32_t		shards;			/* the most so far */
} GvTriedPlaces;

extern void gv_mirrors_init(const GvDevice *devices, const int64_t *budgets,
							int32_t ndevices, int keep_s);
extern int32_t gv_mirrors_devices(const GvMirrorKey *key, int32_t *devices);
extern GvMirrorEntry *gv_mirrors_acquire(const GvMirrorKey *key,
										 uint64_t owner,
										 GvRefusalCode *refusal);
extern void gv_mirrors_release(GvMirrorEntry *entry, int64_t searches);
extern GvRefusalCode gv_mirrors_begin(const GvMirrorKey *key,
									  const GvMirrorSpec *spec,
									  uint64_t owner);
extern void gv_mirrors_ready(GvMirrorEntry *entry);
extern void gv_mirrors_drop(const GvMirrorKey *key);
extern void gv_mirrors_abandon(uint64_t owner);
extern int32_t gv_mirrors_status(GvStatusReply *reply,
								 GvMirrorStatus *mirrors, int32_t capacity);

/* registry.c: their members on devices. */
extern int32_t gv_mirrors_device(const GvMirrorEntry *entry, int32_t wanted);
extern bool gv_mirrors_grow(GvMirrorEntry *entry, const int64_t *growth);
extern void gv_mirrors_changed(GvMirrorEntry *entry, int64_t postings);
extern bool gv_mirrors_evict_for(GvMirrorEntry *entry,
								 const int64_t *growth);

/* registry.c: memory for them, and for builds and sets. */
extern bool gv_mirrors_evict(int32_t device);
extern bool gv_mirrors_reserve(int32_t device, int64_t bytes);
extern void gv_mirrors_unreserve(int32_t device, int64_t bytes);
extern GvStatus gv_mirrors_searcher(int32_t device, GvSearcher **searcher);
extern void gv_mirrors_searcher_drop(int32_t device, GvSearcher *searcher);
extern int32_t gv_mirrors_searchers_most(int32_t device);
extern bool gv_mirrors_place_work(int64_t bytes, int32_t *device,
								  GvTriedDevices *tried);
extern bool gv_mirrors_place_more(int64_t bytes, int32_t beside,
								  int32_t *device, GvTriedDevices *tried);
extern void gv_mirrors_end_work(GvTriedDevices devices);

static inline bool
gv_same_key(const GvMirrorKey *a, const GvMirrorKey *b)
{
	return a->database == b->database && a->tablespace == b->tablespace &&
		a->relation == b->relation && a->build_id == b->build_id;
}

/* The condition of a search; values are in its message. */
typedef struct GvAskedCondition
{
	GvCondition condition;
	GvKeyTest	tests[GV_MAX_TESTS];
} GvAskedCondition;

/*
 * session.c: the means to search a device's mirrors, and the batch under way.
 */
typedef struct GvWorker
{
	int32_t		device;
	bool		is_extra;		/* its searcher belongs to no batch slot */
	GvSearcher *searcher;
	GvMirrorEntry *entry;		/* whose lock is ours; NULL: nothing is under
								 * way */
	uint64_t	began_ns;
	int			n;				/* searches */
	int			nasked;			/* and those that could be none */
	GvConnection *askers[GV_MAX_BATCH]; /* [nasked] of the n first, then */
	GvSearch	searches[GV_MAX_BATCH]; /* [n] */
	GvAskedCondition conditions[GV_MAX_BATCH];	/* [n] */
} GvWorker;

extern GvStatus gv_worker_open(int32_t device, bool is_extra,
							   GvWorker **worker);
extern void gv_worker_close(GvWorker *worker);
extern void gv_session_hello(GvConnection *connection);
extern void gv_session_status(GvConnection *connection);
extern void gv_session_ping(GvConnection *connection);
extern void gv_session_search(GvConnection *connection);
extern GvMirrorEntry *gv_session_acquire(const GvConnection *asker,
										 GvRefusalCode *refusal);
extern bool gv_session_lock(GvMirrorEntry *entry, bool wait);
extern void gv_session_refuse(GvConnection **askers, int n,
							  GvRefusalCode code);
extern void gv_session_begin(GvWorker *worker, GvMirrorEntry *entry);
extern void gv_session_finish(GvWorker *worker);

/* eventloop.c: searches that wait, and batches that are under way. */
extern GvStatus gv_batches_open(void);
extern void gv_batches_close(void);
extern void gv_batches_add(GvConnection *connection);
extern void gv_batches_go_on(int clients);
extern bool gv_batches_busy(void);

/* clientconn.c: a thread takes the connection of all but a session over. */
extern bool gv_loader_start(GvConnection *connection);
extern bool gv_thread_start(void *(*main) (void *), void *arg,
							pthread_t *joined);
extern void gv_thread_serve(GvConnection *connection,
							void (*answer) (GvConnection *connection));

/* eventloop.c: how long the engine is at work, and the end of one that hangs. */
extern void gv_watchdog_round(bool begins);
extern int	gv_watchdog_bulk_begin(uint64_t began_ns);
extern void gv_watchdog_bulk_end(int number);
extern int64_t gv_watchdog_oldest_ms(void);

/* clientconn.c: memory that a loader or a set shares with us. */
extern void *gv_shared_at(const GvConnection *connection, int64_t offset,
						  int64_t bytes);

/* buildjob.c: what that thread does for a builder. */
extern void gv_build_serve(GvConnection *connection);
extern void gv_build_begin(GvConnection *connection);
extern void gv_build_join(GvConnection *connection);
extern void gv_build_rows(GvConnection *connection);
extern void gv_build_train(GvConnection *connection);
extern void gv_build_trained(GvConnection *connection);
extern void gv_build_encoded(GvConnection *connection);
extern void gv_build_sampled(GvConnection *connection);
extern void gv_build_calib_mirror(GvConnection *connection);
extern void gv_build_chunks(GvConnection *connection);
extern void gv_build_try(GvConnection *connection);

/* searchjob.c: what it does for who has many searches made at once. */
extern void gv_bulk_serve(GvConnection *connection);
extern void gv_bulk_search(GvConnection *connection);

/* setjob.c: a set on one device, or its tasks on several. */
typedef struct GvDividedSet GvDividedSet;


/* setjob.c: what it does for work on a set. */
extern void gv_setwork_serve(GvConnection *connection);
extern void gv_setwork_begin(GvConnection *connection);
extern void gv_setwork_put(GvConnection *connection);
extern void gv_setwork_run(GvConnection *connection);
extern void gv_setwork_get(GvConnection *connection);
extern void gv_setwork_ask(GvConnection *connection);

/*
 * buildjob.c: the mirror of an index that is being built, searched to calibrate
 * it.
 */
typedef struct GvCalibMirror
{
	GvMirrorSpec spec;
	GvMirror   *mirror;			/* NULL: there is none yet */
	int64_t		charged;		/* bytes of the budget */
	GvSearcher *searcher;
	int64_t		npostings;		/* that came */
	GvSearch	searches[GV_MAX_TRIES];
} GvCalibMirror;


/* A build's builder on a device: the first one trains, others are copies. */
typedef struct GvBuildPart
{
	GvBuilder  *builder;		/* NULL: there is none, or none any more */
	int32_t		device;
	int64_t		charged;		/* bytes of the budget */
	int64_t		nencoded;		/* rows */
	bool		taken;			/* a thread has it */
} GvBuildPart;

/*
 * buildjob.c: an index in the making.  `lock` is held for a few instructions,
 * and protects what stands between it and `trained`.  A builder is used by the
 * thread that has taken it; the thread that has taken the first builder may
 * use the fields from `trained` on.  `next` and users are the registry's.  id
 * and spec do not change once it has begun; spec.device is the first
 * builder's.
 */
typedef struct GvBuild
{
	uint64_t	id;
	GvBuilderSpec spec;
	uint64_t	begun_ns;		/* when the build was begun */
	pthread_mutex_t lock;
	pthread_cond_t given;		/* a builder was released, or the build is
								 * broken */
	GvBuildPart parts[GV_MAX_DEVICES];
	int			nparts;
	uint64_t	waited_ns;		/* by threads, since the last builder was
								 * added */
	uint64_t	extended_ns;	/* when that was */
	uint64_t	spent_ns[GV_MSG_OK];	/* on messages of each type */
	bool		is_trained;
	bool		is_broken;		/* out of memory: it can only be dropped */

	GvTrained	trained;
	int64_t		nrows[2];		/* that came, of each GvRows */
	GvTriedDevices tried;		/* for builders */
	GvCalibMirror calib_mirror;

	struct GvBuild *next;
	int			users;			/* connections */
} GvBuild;


/* buildjob.c: its builders, and who has which */

/*
 * mirrorload.c: the chunks that loaders bring; and what they share with
 * mirrorload.c.
 */
extern void gv_chunks_array(GvConnection *connection);
extern void gv_chunks_lists(GvConnection *connection);
extern void gv_chunks_refine(GvConnection *connection);
extern void gv_chunks_ready(GvConnection *connection);
extern void gv_chunks_current(GvConnection *connection);
extern void gv_chunks_conclude(GvConnection *connection, GvStatus status,
							   const char *wrong);
extern bool gv_chunks_check(const GvConnection *connection,
							const GvMirrorSpec *spec);
extern GvListChunk gv_chunks_open(const GvMirrorSpec *spec,
								  const GvChunk *chunk);

/* Bytes of a chunk of such a mirror. */
static inline int64_t
gv_chunks_bytes(const GvMirrorSpec *spec, const GvChunk *chunk)
{
	return gv_chunk_bytes(chunk, gv_code_bytes(spec->m),
						  gv_keys_bytes(&spec->keys));
}

/* Returns how many blocks a list of that many postings has. */
static inline int64_t
gv_blocks_of(uint32_t nitems)
{
	return ((int64_t) nitems + GV_BLOCK - 1) / GV_BLOCK;
}

/* mirrorload.c: what they read back. */
extern void gv_read_states(GvConnection *connection);
extern void gv_read_blocks(GvConnection *connection);
extern void gv_read_values(GvConnection *connection);
extern void gv_read_records(GvConnection *connection);

/* Monotonic time. */
extern uint64_t gv_now_ns(void);

#endif							/* GV_SERVER_H */
