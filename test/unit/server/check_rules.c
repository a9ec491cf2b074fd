/*
 * check_rules.c
 *		Who may come in, which messages a role may send, and how long they may
 *		be: what breaks these rules ends its connection, and that one alone.
 */
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
	{GV_MSG_SEARCH, sizeof(GvSearchRequest),
	BY(SESSION) | BY(BULK) | BY(BUILDER)},
	{GV_MSG_BEGIN, sizeof(GvBeginRequest), BY(LOADER)},
	{GV_MSG_ARRAY, sizeof(GvArrayRequest) + 4, BY(LOADER)},
	{GV_MSG_LISTS, sizeof(GvListsRequest), BY(LOADER) | BY(BUILDER)},
	{GV_MSG_REFINE, sizeof(GvListsRequest), BY(LOADER)},
	{GV_MSG_ROWS, sizeof(GvListsRequest), BY(LOADER)},
	{GV_MSG_READY, sizeof(GvKeyRequest), BY(LOADER)},
	{GV_MSG_MARK_CURRENT, sizeof(GvCurrentRequest), BY(LOADER)},
	{GV_MSG_LIST_STATES, sizeof(GvRangeRequest), BY(LOADER)},
	{GV_MSG_READ_LISTS, sizeof(GvRangeRequest), BY(LOADER)},
	{GV_MSG_READ_ARRAY, sizeof(GvArrayRequest), BY(LOADER)},
	{GV_MSG_READ_REFINE, sizeof(GvListsRequest), BY(LOADER)},
	{GV_MSG_READ_ROWS, sizeof(GvListsRequest), BY(LOADER)},
	{GV_MSG_DROP, sizeof(GvKeyRequest), BY(LOADER) | BY(SUPERVISOR)},
	{GV_MSG_ATTACH_SHM, sizeof(GvAttachShmRequest),
	BY(SESSION) | BY(LOADER) | BY(SET) | BY(BULK)},
	{GV_MSG_LOOK, 0, BY(SESSION)},
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
	int			client;
	int			status;

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
	int			clients[4];
	int			i;
	int			got;

	for (i = 0; i < 4; i++)
	{
		clients[i] = client_socket(&server);
		got = client_hello(clients[i], GV_ROLE_SESSION, TEST_INCARNATION);
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
	GvStatusReply totals;

	test_hello(&server);
	test_headers(&server);
	test_haste(&server);
	test_user(&server);
	CHECK(client_ping(session) == 0, "a bystander");
	totals = load_totals(session);
	CHECK(totals.refusals[GV_REFUSED_PROTOCOL] > 100 &&
		  totals.refusals[GV_REFUSED_VERSION] == 1 &&
		  totals.refusals[0] == 0, "counters");
	close(session);
	server_end(&server);
	test_crowded();
}
