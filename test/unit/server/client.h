/*
 * client.h
 *		A server of one's own and clients of it, for the tests of gpuvecd.
 */
#ifndef CLIENT_H
#define CLIENT_H

#include "engine/mirror/gv_builder.h"
#include "engine/gv_set.h"
#include "engine/records.h"
#include "engine/rows.h"
#include "protocol/gv_protocol.h"

/* Set by GPUVEC_TEST_LONG. */
extern bool test_long;

/* The engine of servers; is it another than the portable one? */
extern const char *test_engine;
extern bool test_device;

/* Of whose cluster our clients are. */
#define TEST_INCARNATION	UINT64_C(0x1122334455667788)

/* A gpuvecd in a folder of its own. */
typedef struct TestServer
{
	int			pid;
	int			log;			/* reads what it prints */
	int			supervisor;		/* a connection; 0: there is none */
	int			files;			/* may be open, unless 0 */
	uid_t		user;			/* who runs it, unless 0: who we are */
	char		folder[64];
} TestServer;

/* server.c: start with these options (NULL at the end), and end, gpuvecd. */
extern void server_folder(TestServer *server);
extern void server_launch(TestServer *server, const char *const *options);
extern void server_run(TestServer *server, const char *const *options);
extern bool server_listens(TestServer *server);
extern int	server_child(const TestServer *server);
extern bool server_ready(TestServer *server);
extern int	server_supervise(const TestServer *server, uint64_t incarnation);
extern TestServer server_start(const char *option, ...);
extern int	server_wait(TestServer *server);
extern int	server_stop(TestServer *server);
extern void server_remove(TestServer *server);
extern void server_end(TestServer *server);
extern void server_freeze(const TestServer *server);
extern void server_thaw(const TestServer *server);
extern bool server_is_emulated(void);
extern char *server_log(TestServer *server);
extern void server_check_log(TestServer *server, const char *text);

/* client.c: milliseconds of a clock that only goes on, gpuvecd's, too. */
extern int64_t client_now_ms(void);

/* Connections; -1 where there is none. */
extern int	client_socket(const TestServer *server);
extern int	client_open(const TestServer *server, GvRole role);
extern int	client_hello(int fd, GvRole role, uint64_t incarnation);

/*
 * Send bytes, or a message in parts; false: the connection is gone.
 * client_answer returns an answer's payload, the caller's to free, or NULL at
 * the connection's end; a GvRefusal when *type says so.
 */
extern bool client_send(int fd, const void *bytes, size_t n);
extern bool client_message(int fd, GvMessageType type, const void *head,
						   size_t head_bytes, const void *tail,
						   size_t tail_bytes);
extern void *client_answer(int fd, GvMessage *header);

/*
 * Take an answer, or ask for one: 0 for OK, a GvRefusalCode, or -1 at the
 * connection's end.  The answer goes to *payload, if that is wanted, the
 * caller's to free.
 */
extern int	client_receive(int fd, GvMessageType type, void **payload,
						   uint32_t *length);
extern int	client_ask(int fd, GvMessageType type, const void *head,
					   size_t head_bytes, const void *tail, size_t tail_bytes,
					   void **payload, uint32_t *length);
extern int	client_ping(int fd);
extern bool client_ended(int fd);
extern void client_cut(int fd, int got, const char *what);


/* Ask, with a head alone or with a tail, and without a look at the answer. */
#define ASK_MORE(fd, type, head, tail, bytes) \
	client_ask(fd, type, &(head), sizeof(head), tail, bytes, NULL, NULL)
#define ASK(fd, type, head)	ASK_MORE(fd, type, head, NULL, 0)
#define ASK_PLAIN(fd, type)	client_ask(fd, type, NULL, 0, NULL, 0, NULL, NULL)

/* Connections that end with their scope. */
#define OwnFd		UNIT_OWN(client_close) int
extern void client_close(const int *fd);

/*
 * Processes that ask until all their rounds are over, or an answer is wrong;
 * exit status 0: all answers were right.
 */
typedef bool (*ClientRound) (int session, const void *arg);
extern int	client_fork(const TestServer *server, int i, int rounds,
						ClientRound round, const void *arg);

/* memory.c: memory that a client shares with gpuvecd. */
#define MEMORY_BYTES	((size_t) 1 << 20)

typedef struct TestMemory
{
	int			fd;
	char	   *bytes;			/* [MEMORY_BYTES] */
} TestMemory;

extern TestMemory memory_make(int seals);
extern void memory_free(TestMemory *memory);
#define OwnMemory	UNIT_OWN(memory_free) TestMemory
extern int	memory_pass(int fd, uint64_t bytes, const int *fds, int n);
extern int	memory_ask(int fd, const TestMemory *memory, uint64_t offset,
					   GvMessage header, const void *head, size_t head_bytes,
					   const void *tail, size_t tail_bytes);

typedef struct TestMailbox
{
	int			fd;				/* the session's connection */
	int			wake;			/* its eventfd */
	GvMailbox  *box;
} TestMailbox;

extern TestMailbox mailbox_open(int fd, TestMemory *memory, uint64_t bytes);
extern bool mailbox_put(const TestMailbox *mailbox, const void *head,
						size_t head_bytes, const void *tail,
						size_t tail_bytes, GvMailState state);
extern bool mailbox_sleep(const TestMailbox *mailbox);
extern const GvMessage *mailbox_answer(const TestMailbox *mailbox);

/* load.c: an index into the server. */
extern GvMirrorKey test_key(uint32_t relation);
extern int	load_begin(int fd, const GvMirrorKey *key,
					   const TestIndex *index);
extern int	load_array(int fd, const GvMirrorKey *key, GvArray array,
					   int64_t first, int64_t n, const void *values);
extern int	load_arrays(int fd, const GvMirrorKey *key,
						const TestIndex *index);
extern int	load_chunk(int fd, const GvMirrorKey *key, const TestIndex *index,
					   int32_t list, int32_t first, int32_t nblocks,
					   uint32_t flags);
extern int	load_lists(int fd, const GvMirrorKey *key,
					   const TestIndex *index);
extern int	load_records(int fd, const GvMirrorKey *key, Records *records);
extern int	load_ready(int fd, const GvMirrorKey *key);
extern int	load_drop(int fd, const GvMirrorKey *key);
extern int	load_all(int fd, const GvMirrorKey *key, const TestIndex *index);
extern GvStatusReply *load_status(int fd);	/* all 0 if there is none */
extern GvStatusReply load_totals(int fd);
extern GvMirrorStatus load_told(int fd, const GvMirrorKey *key);
extern GvStatusReply server_totals(const TestServer *server);

/* A chunk as it travels; the caller's to free. */
extern char *chunk_bytes(const TestIndex *index, int32_t list, int32_t first,
						 int32_t nblocks, uint32_t flags, size_t *bytes);

/* search.c: searches, and whether their answers are right. */
typedef struct TestSearch
{
	GvSearchRequest request;
	float	   *query;			/* [dims], unit_alloc */
	UnitCondition *made;		/* the condition, unit_alloc, or NULL */
	const Records *records;		/* that bounds must be of, or NULL */
	const float *asked;			/* [n][dims] the queries as they were asked,
								 * unit_alloc, or NULL */
	const Rows *rows;			/* that distances must be of, or NULL */
} TestSearch;

extern TestSearch make_search(const GvMirrorKey *key, const TestIndex *index);
extern void search_ask(TestSearch *search, const Rows *rows);
extern void free_search(TestSearch *search);
#define OwnSearch	UNIT_OWN(free_search) TestSearch
extern char *search_tail(const TestSearch *search, size_t *bytes);
extern bool search_send(int fd, const TestSearch *search);
extern bool search_is_answered(const TestIndex *index,
							   const TestSearch *search,
							   char *payload, size_t length);
extern int	search_receive(int fd, const TestIndex *index,
						   const TestSearch *search);
extern int	search_check(int fd, const GvMirrorKey *key,
						 const TestIndex *index);
extern bool search_same_head(const GvSearchReply *a, const GvSearchReply *b);
extern uint32_t search_compare(int other, const TestSearch *search,
							   const float *queries, const void *answers,
							   uint32_t length);
extern void search_many(int fd, int other, const TestSearch *search,
						const float *queries);

#define WRONG_ANSWER	1000	/* of search_receive and search_check */

/* Clients, each with a search under way. */
#define TEST_CROWD		100

typedef struct TestCrowd
{
	int			n;
	int			fds[TEST_CROWD];
	TestSearch	searches[TEST_CROWD];
} TestCrowd;

extern TestCrowd crowd_open(const TestServer *server, GvRole role, int n);
extern void crowd_close(TestCrowd *crowd);
#define OwnCrowd	UNIT_OWN(crowd_close) TestCrowd
extern void crowd_ask(TestCrowd *crowd, int i, const GvMirrorKey *key,
					  const TestIndex *index, const Records *records);
extern int	crowd_answer(TestCrowd *crowd, int i, const TestIndex *index);

/*
 * check_builders.c: a build of codes of m = 3, batches of up to 40 rows, and
 * the builder that the server must then have.
 */
#define TEST_BUILD_ROWS	90
#define TEST_BUILD_DIMS	6

extern GvBuilderSpec builder_spec(void);
extern int	builder_begin(int fd, uint64_t *id);
extern int	builder_reserve(int fd, int megabytes);
extern int	builder_prepare(int fd, const float *rows, uint64_t *id);
extern GvBuilder *builder_own(const float *rows, GvTrained *trained);
extern bool builder_send(int fd, GvMessageType type, int32_t kind,
						 const float *rows, int32_t n);
typedef void (*BuilderNeighbors) (void *arg, const GvEncoded *right,
								  const GvEncoded *found);
extern void builder_encode(int fd, const float *rows, int32_t n);
extern void builder_check(int fd, GvBuilder *own, const float *rows,
						  int32_t n, BuilderNeighbors neighbors, void *arg);
extern int	builder_join(const TestServer *server, uint64_t id);
extern void builder_unused(const TestServer *server, const char *what);

/* sets.c: work on sets. */
#define TEST_SETS		9		/* of all kinds */
#define TEST_LIKELY_SET 6		/* its outputs may differ between engines */
#define TEST_NEAR_SET	7		/* exact search with lists */
#define TEST_OWN_SET	8		/* exact search for the rows themselves */

typedef struct TestSet
{
	GvSetSpec	spec;
	void	   *items[GV_NSET_INPUTS];	/* unit_alloc, or NULL */
	int64_t		n[GV_NSET_INPUTS];
	const TestMemory *memory;	/* outputs go there, or NULL */
} TestSet;

extern GvSetSpec set_spec(int which);
extern TestSet set_make(int which);
extern void set_free(TestSet *set);
#define OwnSet		UNIT_OWN(set_free) TestSet
extern int	set_begin(int fd, const GvSetSpec *spec);
extern int	set_ask(int fd, const GvSetSpec *spec);
extern GvSetSpec set_keeper(const GvSetSpec *spec);
extern bool set_send(int fd, const TestSet *set, GvSetInput input,
					 int64_t first, int64_t n);
extern int	set_bring(int fd, const TestSet *set, GvSetInput input);
extern int	set_bring_all(int fd, const TestSet *set);
extern int	set_run(int fd, GvSetDone *reply);
extern int	set_finish(int fd, const TestSet *set);
extern int	set_check(int fd, const TestSet *set);

/* check_trials.c */
extern void check_calib_mirror(int fd, int helper, GvBuilder *own,
							   const GvTrained *trained,
							   const float *queries);
extern void check_crowded_calib_mirror(const TestServer *server,
									   const float *rows);

/* bench_divided.c: with each of n lists of devices */
extern void bench_divided(int n, char **devices);

/* bench_loop.c */
extern void bench_loop(int ms, int sessions, int hits);

/* The tests, one function a file. */
extern void test_rules(void);
extern void test_wrong(void);
extern void test_searches(void);
extern void test_loading(void);
extern void test_rows_sent(void);
extern void test_shared(void);
extern void test_mailboxes(void);
extern void test_following(void);
extern void test_versions(void);
extern void test_devices(void);
extern void test_parts(void);
extern void test_lost_devices(void);
extern void test_slots(void);
extern void test_placements(void);
extern void test_builders(void);
extern void test_joins(void);
extern void test_sets(void);
extern void test_divided(void);
extern void test_copies(void);
extern void test_life(void);
extern void test_incarnations(void);
extern void test_folders(void);
extern void test_lock_begin(void);
extern void test_lock_end(void);
extern void test_faults(void);
extern void test_starved(void);
extern void test_fuzz(void);

#endif							/* CLIENT_H */
