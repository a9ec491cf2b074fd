/*
 * check_rules.c
 *		Who may come in, and what ends a connection, that one alone.
 */
#include <math.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

/* Say hello with these words; what is refused must be cut off. */
static void
check_hello(const TestServer *server, uint32_t magic, uint32_t version,
			uint32_t role, int expected)
{
	GvHello		hello = {magic, version, role, 1, TEST_INCARNATION};
	OwnFd		fd = client_socket(server);
	int			got = ASK(fd, GV_MSG_HELLO, hello);

	CHECK(got == expected, "%x %u %u: %d", magic, version, role, got);
	CHECK(expected == 0 || client_ended(fd), "%x %u %u", magic, version,
		  role);
}

static void
test_hello(const TestServer *server)
{
	GvHello		hello = {GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION,
	GV_ROLE_SESSION, 1, TEST_INCARNATION};
	int			fd = client_socket(server);
	void	   *payload = NULL;
	uint32_t	length = 0;
	uint32_t	role;

	CHECK(client_ask(fd, GV_MSG_HELLO, &hello, sizeof(hello), NULL, 0,
					 &payload, &length) == 0, "hello");
	CHECK(length == sizeof(GvWelcome), "%u", length);
	if (payload != NULL)
	{
		GvWelcome  *welcome = payload;

		CHECK(welcome->pid == (uint32_t) server->pid &&
			  welcome->instance != 0 && strcmp(welcome->engine, test_engine) == 0 &&
			  welcome->release[0] != '\0', "welcome");
		free(payload);
	}
	close(fd);
	check_hello(server, GV_PROTOCOL_MAGIC + 1, GV_PROTOCOL_VERSION, 1,
				GV_REFUSED_PROTOCOL);
	check_hello(server, GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION + 1, 1,
				GV_REFUSED_VERSION);
	for (role = 0; role <= GV_ROLE_SUPERVISOR + 1; role++)
		check_hello(server, GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION, role,
					role >= GV_ROLE_SESSION && role <= GV_ROLE_SUPERVISOR ? 0 :
					GV_REFUSED_PROTOCOL);
}

/* A message that is wrong by its header, on a new connection of this role. */
static void
check_header(const TestServer *server, uint32_t role, uint32_t length,
			 uint16_t type, uint16_t request)
{
	static const char zeros[4096];
	GvMessage	header = {length, type, request};
	GvMessage	answer = {0};
	GvRefusal  *refusal;
	OwnFd		fd = role == 0 ? client_socket(server) :
		client_open(server, (GvRole) role);

	(void) (client_send(fd, &header, sizeof(header)) &&
			client_send(fd, zeros, length < 4096 ? length : 4096));
	refusal = client_answer(fd, &answer);
	CHECK(refusal != NULL && answer.type == GV_MSG_REFUSED &&
		  answer.length == sizeof(GvRefusal) && answer.request == type &&
		  refusal->code == GV_REFUSED_PROTOCOL && refusal->reason[0] != '\0',
		  "role %u, length %u, type %u", role, length, type);
	free(refusal);
	CHECK(client_ended(fd), "role %u, length %u, type %u", role, length,
		  type);
}

#define BY(role)	(1U << GV_ROLE_##role)

/* Messages, as short as they may be, and who may send them. */
static const struct
{
	uint16_t	type;
	uint32_t	length;
	uint32_t	roles;			/* bit 0: who has not said hello */
}			messages[] = {
	{GV_MSG_HELLO, sizeof(GvHello), 1},
	{GV_MSG_PING, 0, ~1U},
	{GV_MSG_STATUS, 0, BY(SESSION) | BY(LOADER) | BY(SUPERVISOR)},
	{GV_MSG_SEARCH, sizeof(GvSearchRequest) + 4,
	BY(SESSION) | BY(BULK) | BY(BUILDER)},
	{GV_MSG_BEGIN, sizeof(GvBeginRequest), BY(LOADER)},
	{GV_MSG_ARRAY, sizeof(GvArrayRequest) + 4, BY(LOADER)},
	{GV_MSG_LISTS, sizeof(GvListsRequest), BY(LOADER) | BY(BUILDER)},
	{GV_MSG_REFINE, sizeof(GvListsRequest), BY(LOADER)},
	{GV_MSG_READY, sizeof(GvKeyRequest), BY(LOADER)},
	{GV_MSG_MARK_CURRENT, sizeof(GvCurrentRequest), BY(LOADER)},
	{GV_MSG_LIST_STATES, sizeof(GvRangeRequest), BY(LOADER)},
	{GV_MSG_READ_LISTS, sizeof(GvRangeRequest), BY(LOADER)},
	{GV_MSG_READ_ARRAY, sizeof(GvArrayRequest), BY(LOADER)},
	{GV_MSG_READ_REFINE, sizeof(GvListsRequest), BY(LOADER)},
	{GV_MSG_DROP, sizeof(GvKeyRequest), BY(LOADER) | BY(SUPERVISOR)},
	{GV_MSG_ATTACH_SHM, sizeof(GvAttachShmRequest), BY(LOADER) | BY(SET)},
	{GV_MSG_IN_SHM, sizeof(GvInShmRequest), BY(LOADER) | BY(SET)},
	{GV_MSG_BUILD, sizeof(GvBuilderSpec) + 4, BY(BUILDER)},
	{GV_MSG_JOIN, sizeof(GvJoinRequest), BY(BUILDER)},
	{GV_MSG_TRAIN_ROWS, sizeof(GvRowsRequest) + 4, BY(BUILDER)},
	{GV_MSG_TRAIN, 0, BY(BUILDER)},
	{GV_MSG_GET_MODEL, sizeof(GvGetModelRequest), BY(BUILDER)},
	{GV_MSG_ENCODE_ROWS, sizeof(GvRowsRequest) + 4, BY(BUILDER)},
	{GV_MSG_ENCODE_SAMPLE, sizeof(GvEncodeSampleRequest), BY(BUILDER)},
	{GV_MSG_CALIB_MIRROR, sizeof(GvCalibMirrorRequest), BY(BUILDER)},
	{GV_MSG_SET, sizeof(GvSetSpec), BY(SET)},
	{GV_MSG_PUT, sizeof(GvPutRequest) + 8, BY(SET)},
	{GV_MSG_RUN, 0, BY(SET)},
	{GV_MSG_GET, sizeof(GvGetRequest), BY(SET)},
	{GV_MSG_ASK, sizeof(GvSetSpec), BY(SET)},
};

static void
test_headers(const TestServer *server)
{
	/* of no type, or of types whose length varies beyond what they may have */
	static const uint32_t wrong[] = {1, 7, 31, GV_MAX_MESSAGE + 1, 0x80000000,
	UINT32_MAX};
	uint32_t	role;
	int			type;
	int			i;

	for (role = 0; role <= GV_ROLE_SUPERVISOR; role++)
	{
		check_header(server, role, 0, 0, 0);
		check_header(server, role, 0, GV_MSG_DROP + 1, 0);
		check_header(server, role, 0, GV_MSG_OK, 0);
		check_header(server, role, sizeof(GvRefusal), GV_MSG_REFUSED, 0);
		check_header(server, role, 0, UINT16_MAX, 0);
		check_header(server, role, 0, GV_MSG_PING, GV_MSG_PING);
		for (type = GV_MSG_HELLO; type < GV_MSG_OK; type++)
			for (i = 0; i < 6; i++)
				check_header(server, role, wrong[i], (uint16_t) type, 0);
		check_header(server, role, sizeof(GvSearchRequest), GV_MSG_SEARCH,
					 0);
	}
	/* longer than a session's search may be */
	check_header(server, GV_ROLE_SESSION, sizeof(GvSearchRequest) +
				 sizeof(GvTestRequest) * GV_MAX_TESTS +
				 sizeof(uint64_t) * GV_MAX_VALUES + 4 * GV_MAX_DIMS + 4,
				 GV_MSG_SEARCH, 0);
	/* right messages at the wrong time, or from the wrong client */
	for (i = 0; i < (int) (sizeof(messages) / sizeof(messages[0])); i++)
		for (role = 0; role <= GV_ROLE_SUPERVISOR; role++)
			if ((messages[i].roles >> role & 1) == 0)
				check_header(server, role, messages[i].length,
							 messages[i].type, 0);
}

/* One search with something wrong; on both kinds of connection. */
static void
check_search(const TestServer *server, GvSearchRequest request,
			 uint32_t floats, int expected)
{
	static const GvRole roles[] = {GV_ROLE_SESSION, GV_ROLE_BULK};
	FREED float *query = calloc(GV_MAX_DIMS + 1, sizeof(float));
	int			i;

	for (i = 0; i < 2; i++)
	{
		OwnFd		fd = client_open(server, roles[i]);
		int			got = ASK_MORE(fd, GV_MSG_SEARCH, request, query, 4 *
								   floats);

		CHECK(got == expected, "dims %d probes %d compare %d capacity %d, "
			  "%u floats: %d", request.dims, request.probes, request.compare,
			  request.capacity, floats, got);
		CHECK(client_ping(fd) == (expected == GV_REFUSED_PROTOCOL ? -1 : 0),
			  "afterwards");
	}
}

static GvSearchRequest
asking(GvMirrorKey key, int32_t dims, int32_t probes, int32_t compare,
	   int32_t capacity)
{
	return (GvSearchRequest) {.key = key,.n = 1,.dims = dims,.probes = probes,
	.compare = compare,.capacity = capacity};
}

static void
test_search_fields(const TestServer *server)
{
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnIndex	index = make_index(GV_L2, 4, 2, 6, 2, 9, false);
	GvMirrorKey key = test_key(1);
	GvMirrorKey other = test_key(2);
	GvSearchRequest request;
	int			bad = GV_REFUSED_PROTOCOL;
	int			fd;

#define BAD_FIELD(change) \
	(request = asking(key, 4, 1, 1, 1), request.change, \
	 check_search(server, request, 4, bad))
	CHECK(load_all(loader, &key, &index) == 0, "load");
	check_search(server, asking(key, 4, 1, 1, 1), 4, 0);
	check_search(server, asking(key, 4, GV_MAX_PROBES, INT32_MAX, GV_MAX_HITS), 4, 0);
	check_search(server, asking(other, 4, 1, 1, 1), 4,
				 GV_REFUSED_NO_MIRROR);
	check_search(server, asking(key, 3, 1, 1, 1), 3, bad);
	check_search(server, asking(key, 4, 1, 1, 1), 3, bad);
	check_search(server, asking(key, 4, 1, 1, 1), 5, bad);
	check_search(server, asking(key, 0, 1, 1, 1), 1, bad);
	check_search(server, asking(key, -1, 1, 1, 1), 1, bad);
	check_search(server, asking(key, INT32_MIN, 1, 1, 1), 1, bad);
	check_search(server, asking(key, 0x40000004, 1, 1, 1), 4, bad);
	check_search(server, asking(key, 16001, 1, 1, 1), 16001, bad);
	BAD_FIELD(probes = 0);
	BAD_FIELD(probes = -5);
	BAD_FIELD(probes = GV_MAX_PROBES + 1);
	BAD_FIELD(compare = 0);
	BAD_FIELD(capacity = 0);
	BAD_FIELD(capacity = -1);
	BAD_FIELD(capacity = GV_MAX_HITS + 1);
	BAD_FIELD(part = -0.01);
	BAD_FIELD(part = 1);
	BAD_FIELD(part = NAN);
	BAD_FIELD(rank = -1);
	BAD_FIELD(rank = 1);		/* without a condition */
	BAD_FIELD(n = 0);
	BAD_FIELD(n = -1);
	BAD_FIELD(n = 0x40000001);	/* 4 bytes of queries, modulo 2^32 */
	BAD_FIELD(n = GV_MAX_QUERIES + 1);
#undef BAD_FIELD
	/* many queries, of a session */
	request = asking(key, 4, 1, 1, 1);
	request.n = 2;
	fd = client_open(server, GV_ROLE_SESSION);
	client_cut(fd, ASK_MORE(fd, GV_MSG_SEARCH, request, index.centroids, 32),
			   "two queries of a session");
	CHECK(load_drop(loader, &key) == 0, "drop");
}

/* A search with a condition that has something wrong. */
static void
check_tests(const TestServer *server, const GvMirrorKey *key, int32_t ntests,
			const GvTestRequest *tests, int32_t nvalues,
			const uint64_t *values, int expected)
{
	GvSearchRequest request = asking(*key, 4, 1, 1, 1);
	char		tail[8 * sizeof(GvTestRequest)] = {0};
	size_t		bytes = 0;
	OwnFd		fd = client_open(server, GV_ROLE_SESSION);
	int			got;

	request.ntests = ntests;
	request.nvalues = nvalues;
	if (ntests > 0 && ntests < 3)
		memcpy(tail, tests, bytes = (size_t) ntests * sizeof(*tests));
	if (nvalues > 0 && nvalues < 5)
		memcpy(tail + bytes, values, (size_t) nvalues * sizeof(*values));
	if (nvalues > 0 && nvalues < 5)
		bytes += (size_t) nvalues * sizeof(*values);
	got = ASK_MORE(fd, GV_MSG_SEARCH, request, tail, bytes + 4 *
				   sizeof(float));
	CHECK(got == expected, "%d tests, %d values, first of kind %d: %d",
		  ntests, nvalues, tests->kind, got);
	CHECK(client_ping(fd) == (expected == 0 ? 0 : -1), "afterwards");
}

static void
test_condition_fields(const TestServer *server)
{
	static const uint64_t values[] = {3, 7, 7, 1};
	OwnFd		loader = client_open(server, GV_ROLE_LOADER);
	OwnIndex	index = make_index(GV_L2, 4, 2, 6, 2, 9, false);
	GvMirrorKey key = test_key(1);
	GvTestRequest set = {0, GV_TEST_SET, 0, 0, 2, 0};
	GvTestRequest two[2] = {set, set};
	GvTestRequest test;
	int			bad = GV_REFUSED_PROTOCOL;

#define BAD_TEST(change, n) \
	(test = set, test.change, \
	 check_tests(server, &key, 1, &test, n, values, bad))
	give_form(&index, (GvKeyForm) {1, {GV_KEY_ORDERED}, {4}});
	CHECK(load_all(loader, &key, &index) == 0, "load");
	check_tests(server, &key, 1, &set, 2, values, 0);
	check_tests(server, &key, 0, &set, 0, values, 0);
	check_tests(server, &key, 0, &set, 2, values, bad);
	check_tests(server, &key, -1, &set, 0, values, bad);
	check_tests(server, &key, GV_MAX_TESTS + 1, &set, 0, values, bad);
	check_tests(server, &key, INT32_MAX, &set, 0, values, bad);
	check_tests(server, &key, 1, &set, -1, values, bad);
	check_tests(server, &key, 1, &set, GV_MAX_VALUES + 1, values, bad);
	check_tests(server, &key, 1, &set, 1, values, bad);
	check_tests(server, &key, 1, &set, 3, values, bad);
	check_tests(server, &key, 2, two, 4, values, bad);	/* 7, 1 */
	BAD_TEST(key = 1, 2);
	BAD_TEST(key = -1, 2);
	BAD_TEST(kind = 0, 2);
	BAD_TEST(kind = 7, 2);
	BAD_TEST(kind = GV_TEST_ANY_BIT, 2);
	BAD_TEST(nvalues = -1, 2);
	BAD_TEST(nvalues = INT32_MAX, 2);
	BAD_TEST(nvalues = 3, 3);
	BAD_TEST(unused = 1, 2);
	test = (GvTestRequest) {0, GV_TEST_RANGE, 1, UINT32_MAX, 0, 0};
	check_tests(server, &key, 1, &test, 0, values, 0);
	test.high++;
	check_tests(server, &key, 1, &test, 0, values, bad);
	CHECK(load_drop(loader, &key) == 0, "drop");
}

/* Two messages at once are one too many. */
static void
test_haste(const TestServer *server)
{
	GvMessage	pings[2] = {{0, GV_MSG_PING, 0}, {0, GV_MSG_PING, 0}};
	GvMessage	answer;
	OwnFd		fd = client_open(server, GV_ROLE_SESSION);
	GvRefusal  *refusal;

	CHECK(client_send(fd, pings, sizeof(pings)), "send");
	refusal = client_answer(fd, &answer);
	CHECK(refusal != NULL && answer.type == GV_MSG_REFUSED &&
		  refusal->code == GV_REFUSED_PROTOCOL, "two messages");
	free(refusal);
	CHECK(client_ended(fd), "two messages");
}

/* Another user, even where the files would let him in. */
static void
test_user(const TestServer *server)
{
	char		path[128];
	struct stat file;
	int			client;
	int			status;

	snprintf(path, sizeof(path), "%s/%s", server->folder, GV_SOCKET_PATH);
	CHECK(stat(path, &file) == 0 && S_ISSOCK(file.st_mode) &&
		  (file.st_mode & 0777) == 0600, "mode %o", file.st_mode);
	snprintf(path, sizeof(path), "%s/%s", server->folder, GV_LOCK_PATH);
	CHECK(stat(path, &file) == 0 && (file.st_mode & 0777) == 0600, "mode %o",
		  file.st_mode);
	if (geteuid() != 0)
		return;
	snprintf(path, sizeof(path), "%s/%s", server->folder, GV_SOCKET_PATH);
	CHECK(chmod(path, 0666) == 0 && chmod(server->folder, 0755) == 0,
		  "chmod");
	client = fork();
	if (client == 0)
	{
		int			fd;

		if (setgid(65534) != 0 || setuid(65534) != 0)
			_exit(2);
		fd = client_socket(server);
		_exit(fd >= 0 && client_ended(fd) ? 0 : 1);
	}
	CHECK(waitpid(client, &status, 0) > 0 && status == 0, "another user: %x",
		  status);
}

static void
test_crowded(void)
{
	TestServer	server = server_start("--max-connections", "3", NULL);
	GvHello		hello = {GV_PROTOCOL_MAGIC, GV_PROTOCOL_VERSION,
	GV_ROLE_SESSION, 1, TEST_INCARNATION};
	int			clients[4];
	int			i;
	int			got;

	for (i = 0; i < 4; i++)
	{
		clients[i] = client_socket(&server);
		got = ASK(clients[i], GV_MSG_HELLO, hello);
		CHECK(got == (i < 3 ? 0 : GV_REFUSED_FULL), "client %d: %d", i, got);
	}
	CHECK(client_ended(clients[3]), "one too many");
	close(clients[3]);
	close(clients[1]);
	CHECK(client_ping(clients[0]) == 0, "one of three");
	clients[1] = client_open(&server, GV_ROLE_LOADER);
	CHECK(client_ping(clients[1]) == 0, "after another has left");
	/* a supervisor that comes again is none of them */
	close(server.supervisor);
	server.supervisor = client_open(&server, GV_ROLE_SUPERVISOR);
	CHECK(server.supervisor >= 0, "no supervisor among three clients");
	clients[3] = client_socket(&server);
	CHECK(client_hello(clients[3], GV_ROLE_SESSION, TEST_INCARNATION) ==
		  GV_REFUSED_FULL, "a fourth");
	close(clients[3]);
	for (i = 0; i < 3; i++)
		close(clients[i]);
	server_end(&server);
}

void
test_rules(void)
{
	TestServer	server = server_start(NULL);
	int			session = client_open(&server, GV_ROLE_SESSION);
	GvStatusReply *status;

	test_hello(&server);
	test_headers(&server);
	test_search_fields(&server);
	test_condition_fields(&server);
	test_haste(&server);
	test_user(&server);
	CHECK(client_ping(session) == 0, "a bystander");
	status = load_status(session);
	CHECK(status->refusals[GV_REFUSED_PROTOCOL] > 100 &&
		  status->refusals[GV_REFUSED_VERSION] == 1 &&
		  status->refusals[GV_REFUSED_NO_MIRROR] == 2 &&
		  status->refusals[0] == 0, "counters");
	free(status);
	close(session);
	server_end(&server);
	test_crowded();
}
