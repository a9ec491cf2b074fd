/*
 * gpuvecd.c
 *		The program: its options, its log, its engine, and how it ends.
 *
 * The current folder of gpuvecd is a PostgreSQL data directory or a folder of
 * its own.  It uses only its lock file and its socket there.  It logs lines
 * "LEVEL: text" to standard error, which its parent reads.
 */
#include "server/server.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/gv_fault.h"
#include "engine/mirror/gv_engines.h"

#define PATIENCE_S		60		/* the heaviest batch takes a GPU some 40 s */

/*
 * Values of GvServer.min_products_per_device, for GPUs and processors, and of
 * copy_builder_after_ns, which decide when work is worth another device.  A
 * GPU takes 9 ms for MIN_PRODUCTS products, and a processor 0.1 s for
 * MIN_CPU_PRODUCTS products.  Beginning work on another device takes about 10
 * ms.
 */
#define MIN_PRODUCTS		2e12
#define MIN_CPU_PRODUCTS	2e9
#define COPY_BUILDER_AFTER_NS		20000000

#define AT_ONCE			4096	/* GvServer.at_once */
#define AT_ONCE_CPU		64		/* the same for an engine that searches for
								 * one query after another */
#define SPARE_FILES		64		/* descriptors not used for connections */
#define MOST_REJECTIONS	8		/* different rejected calls that are logged */

typedef struct Options
{
	const char *engine;
	const char *data;
	const char *socket;			/* NULL: in the data directory */
	const char *owner;			/* NULL: the effective user */
	const char *devices;
	GvMatmulSetting matmul;
	GvSimd		simd;
	int64_t		memory_mb;
	int64_t		max_connections;
	int64_t		replicas;
	int64_t		keep_s;
	int64_t		patience_s;		/* -1: the engine's default */
	int64_t		message_s;
	int64_t		parent;			/* we end with this process; 0: none */

	/* of the test build only */
	int64_t		memory_fault;
	int64_t		memory_faults;
} Options;

GvServer	gv_server;

/* Both are atomic. */
static bool failed;				/* the engine has failed */
static bool told;				/* a thread has logged the failure, or is
								 * about to do so */

static const char usage[] =
"gpuvecd " GPUVEC_RELEASE " is the search server of gpuvec.\n"
"\n"
"Usage:\n"
"  gpuvecd [OPTION]...\n"
"\n"
"Options:\n"
#ifdef GV_TEST_BUILD
"  --engine cpu|cuda|auto  engine to run; auto (the default) runs cuda if there\n"
"                          is a GPU\n"
#else
"  --engine cuda|auto      engine to run; auto (the default) runs cuda if there\n"
"                          is a GPU\n"
#endif
"  --data DIR              PostgreSQL's data directory, for the socket and the\n"
"                          lock file (default: current directory)\n"
"  --socket DIR            directory for the socket of an external gpuvecd\n"
"                          (gpuvec.server = external), as set by\n"
"                          gpuvec.server_directory; created if necessary\n"
"  --owner USER            name or number of the user that runs PostgreSQL, who\n"
"                          alone may connect (default: user of gpuvecd)\n"
"  --memory MB             memory for mirrors on each GPU (default: 0, nine tenths\n"
"                          of it)\n"
"  --devices LIST          comma-separated numbers of the GPUs to use (default:\n"
"                          all)\n"
"  --replicas N            replicas of a mirror, each on one GPU or, in shards, on\n"
"                          several, as far as memory allows (default: 1)\n"
"  --matmul own|cublas|auto\n"
"                          implementation of matrix multiplication on GPUs: own\n"
"                          kernels or cuBLAS; auto (the default) uses cuBLAS from\n"
"                          512 dimensions on, except on compute capability 9.0\n"
"  --simd LEVEL            instructions of the processor: portable, avx2, avx512,\n"
"                          neon, or auto for the best of them (default: auto)\n"
"  --max-connections N     maximum number of clients (default: 1000)\n"
"  --keep SECONDS          time for which a mirror is not evicted after its use\n"
"                          (default: 10)\n"
"  --patience SECONDS      exit if the engine does not finish a batch in this time\n"
"                          (default: 60; 0 means never)\n"
"  --message SECONDS       time that a client has to send a message (default: 60)\n"
"  --parent PID            exit when this parent process exits\n"
#ifdef GV_TEST_BUILD
"  --fault N:STATUS        let the N-th call of the engine report 2 (invalid), 3\n"
"                          (no memory), 4 (failed) or 5 (rejected), or hang (6)\n"
"  --build-fault N:STATUS  the same for calls of builds\n"
"  --set-fault N:STATUS    the same for calls of whole-table jobs\n"
"  --memory-fault N        let the N-th allocation fail\n"
"  --memory-faults N       let the N-th and all later allocations fail\n"
#endif
"  --help, --version\n"
"\n"
#ifdef GV_TEST_BUILD
"This is a test build.  If GPUVEC_DIVIDE is set in the environment, even small\n"
"jobs are divided among GPUs.  The engine cpu is the reference for tests; its\n"
"--patience is 0 by default.\n"
"\n"
#endif
"PostgreSQL starts gpuvecd if shared_preload_libraries contains gpuvec.  With\n"
"--socket, gpuvecd serves the cluster that connects to it, and restarts when the\n"
"cluster restarts.\n"
"Exit status: 0 terminated by a signal; 2 wrong usage; 3 engine or GPU not\n"
"available; 4 another gpuvecd is running; 5 engine failed, restart gpuvecd;\n"
"6 system error; 7 without --socket, the cluster has restarted.\n";

/* ---- the log, and the engine's statuses */

/*
 * If nobody reads what we print, the line is lost, because we do not wait for
 * a reader.
 */
void
gv_log(const char *level, const char *format,...)
{
	struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
	char		line[512];
	va_list		args;
	int			length;
	int			more;

	length = snprintf(line, sizeof(line) - 1, "%s: ", level);
	va_start(args, format);
	more = vsnprintf(line + length, sizeof(line) - 1 - (size_t) length,
					 format, args);
	va_end(args);
	length += more < 0 ? 0 : more;
	if (length > (int) sizeof(line) - 2)
		length = sizeof(line) - 2;
	line[length++] = '\n';
	/* one write, because a pipe takes a line as a whole or not at all */
	if (poll(&out, 1, 0) == 1 && (out.revents & POLLOUT) != 0 &&
		write(STDERR_FILENO, line, (size_t) length) < 0)
		return;
}

void
gv_system_error(const char *format,...)
{
	int			saved_errno = errno;
	char		what[400];
	va_list		args;

	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	gv_log("FATAL", "could not %s: %s", what, strerror(saved_errno));
	exit(GV_EXIT_SYSTEM);
}

bool
gv_server_failed(void)
{
	return __atomic_load_n(&failed, __ATOMIC_ACQUIRE);
}

/*
 * Logs which call the device rejected.  Logs each call only once, because the
 * client that requested it may repeat the request for ever.
 */
static void
tell_rejection(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static char told_of[MOST_REJECTIONS][200];
	static int	n;
	char		reason[200];
	int			i;

	gv_rejection(reason, sizeof(reason));
	pthread_mutex_lock(&lock);
	for (i = 0; i < n && strcmp(told_of[i], reason) != 0; i++)
		;
	if (i == n && n < MOST_REJECTIONS)
	{
		memcpy(told_of[n++], reason, sizeof(reason));
		gv_log("WARNING", "device rejected a call%s%s; the request is refused or split",
			   reason[0] ? ": " : "", reason);
	}
	pthread_mutex_unlock(&lock);
}

GvRefusalCode
gv_status_refusal(GvStatus status)
{
	switch (status)
	{
		case GV_OK:
			return 0;
		case GV_NO_MEMORY:
			return GV_REFUSED_NO_MEMORY;
		case GV_REJECTED:
			tell_rejection();
			return GV_REFUSED_FAILED;
		case GV_FAILED:
			/* log first: the loop may end the process once `failed` is set */
			if (!__atomic_exchange_n(&told, true, __ATOMIC_ACQ_REL))
			{
				gv_log("FATAL", "engine failed, so a new process is needed");
				__atomic_store_n(&failed, true, __ATOMIC_RELEASE);
				gv_loop_wake();
			}
			return GV_REFUSED_FAILED;
		default:
			return GV_REFUSED_PROTOCOL;
	}
}

/* ---- options */

static void
bad_option(const char *option, const char *value)
{
	fprintf(stderr, "gpuvecd: invalid value for option --%s: \"%s\"\nTry \"gpuvecd --help\" for more information.\n", option, value);
	exit(GV_EXIT_USAGE);
}

/* Returns an option's value, an integer from least to most, or exits. */
static int64_t
number(const char *option, const char *value, int64_t least, int64_t most)
{
	char	   *end;
	long long	n;

	errno = 0;
	n = strtoll(value, &end, 10);
	if (errno != 0 || end == value || *end != '\0' || n < least || n > most)
		bad_option(option, value);
	return n;
}

/* An option, and the field of Options that its value sets. */
typedef struct Option
{
	const char *name;
	void		(*parse) (const struct Option *option, const char *value,
						  void *field);
	size_t		offset;			/* of the field */
	int64_t		min;			/* of a number */
	int64_t		max;			/* of a number, or of a fault's status */
	void		(*inject) (int64_t n, GvStatus status); /* a fault */
} Option;

static void
parse_text(const Option *option, const char *value, void *field)
{
	*(const char **) field = value;
}

static void
parse_number(const Option *option, const char *value, void *field)
{
	*(int64_t *) field = number(option->name, value, option->min, option->max);
}

/* Exits if the processor does not have the level. */
static void
parse_simd(const Option *option, const char *value, void *field)
{
	GvSimd		level = GV_SIMD_AUTO;

	while (strcmp(value, gv_simd_name(level)) != 0)
		if (++level == GV_NSIMD)
			bad_option(option->name, value);
	*(GvSimd *) field = level;
	if (gv_simd_has(level))
		return;
	fprintf(stderr, "gpuvecd: this processor does not support %s\n", value);
	exit(GV_EXIT_USAGE);
}

static void
parse_matmul(const Option *option, const char *value, void *field)
{
	static const char *const names[] = {
		[GV_MATMUL_AUTO] = "auto",
		[GV_MATMUL_OWN] = "own",
		[GV_MATMUL_CUBLAS] = "cublas"
	};
	GvMatmulSetting matmul = GV_MATMUL_AUTO;

	while (strcmp(value, names[matmul]) != 0)
		if (matmul++ == GV_MATMUL_CUBLAS)
			bad_option(option->name, value);
	*(GvMatmulSetting *) field = matmul;
}

/* Exits if the folder's name is empty or too long for a socket's path. */
static void
parse_socket(const Option *option, const char *value, void *field)
{
	if (value[0] == '\0')
		bad_option(option->name, value);
	*(const char **) field = value;
	if (strlen(value) + sizeof("/" GV_SOCKET_PATH) <=
		sizeof(((struct sockaddr_un *) NULL)->sun_path))
		return;
	fprintf(stderr, "gpuvecd: path of a socket in directory \"%s\" would be too long\nTry \"gpuvecd --help\" for more information.\n", value);
	exit(GV_EXIT_USAGE);
}

#ifdef GV_TEST_BUILD

/*
 * Parses a value of the form "N:STATUS": the N-th call of the engine, counted
 * from 1, reports this status.
 */
static void
parse_fault(const Option *option, const char *value, void *field)
{
	char		n[24];
	const char *colon = strchr(value, ':');

	if (colon == NULL || colon - value >= (long) sizeof(n))
		bad_option(option->name, value);
	snprintf(n, sizeof(n), "%.*s", (int) (colon - value), value);
	option->inject(number(option->name, n, 1, INT64_MAX),
				   (GvStatus) number(option->name, colon + 1, GV_INVALID,
									 option->max));
}

#endif

static void
print_and_exit(const Option *option, const char *value, void *field)
{
	printf("%s", option->name[0] == 'h' ? usage :
		   "gpuvecd " GPUVEC_RELEASE "\n");
	exit(0);
}

#define TEXT_AT(field)		.parse = parse_text, .offset = offsetof(Options, field)
#define NUMBER_AT(field, least, most) \
	.parse = parse_number, .offset = offsetof(Options, field), .min = least, \
	.max = most
#define INJECT(function, most) \
	.parse = parse_fault, .max = most, .inject = function

static const Option known[] = {
	{"engine", TEXT_AT(engine)},
	{"data", TEXT_AT(data)},
	{"socket", .parse = parse_socket, .offset = offsetof(Options, socket)},
	{"owner", TEXT_AT(owner)},
	{"memory", NUMBER_AT(memory_mb, 0, INT64_C(1) << 40)},
	{"devices", TEXT_AT(devices)},
	{"replicas", NUMBER_AT(replicas, 1, GV_MAX_DEVICES)},
	{"matmul", .parse = parse_matmul, .offset = offsetof(Options, matmul)},
	{"simd", .parse = parse_simd, .offset = offsetof(Options, simd)},
	{"max-connections", NUMBER_AT(max_connections, 1, 1 << 20)},
	{"keep", NUMBER_AT(keep_s, 0, 1 << 30)},
	{"patience", NUMBER_AT(patience_s, 0, 1 << 30)},
	{"message", NUMBER_AT(message_s, 1, 1 << 20)},
	{"parent", NUMBER_AT(parent, 1, INT32_MAX)},
#ifdef GV_TEST_BUILD
	{"fault", INJECT(gv_mirror_fault, GV_HANGS)},
	{"build-fault", INJECT(gv_builder_fault, GV_FAILED)},
	{"set-fault", INJECT(gv_set_fault, GV_FAILED)},
	{"memory-fault", NUMBER_AT(memory_fault, 1, INT32_MAX)},
	{"memory-faults", NUMBER_AT(memory_faults, 1, INT32_MAX)},
#endif
	{"help", .parse = print_and_exit},
	{"version", .parse = print_and_exit},
};

#define NKNOWN	(sizeof(known) / sizeof(known[0]))

static Options
parse_options(int argc, char **argv)
{
	struct option names[NKNOWN + 1] = {0};
	Options		options = {
		.engine = "auto",
		.data = ".",
		.devices = "",
		.max_connections = 1000,
		.replicas = 1,
		.keep_s = 10,
		.patience_s = -1,
		.message_s = 60
	};
	int			which;
	size_t		i;
	int			c;

	for (i = 0; i < NKNOWN; i++)
	{
		names[i].name = known[i].name;
		names[i].has_arg = known[i].parse == print_and_exit ? no_argument :
			required_argument;
		names[i].val = 1;
	}
	while ((c = getopt_long(argc, argv, "", names, &which)) == 1)
		known[which].parse(&known[which], optarg,
						   (char *) &options + known[which].offset);
	if (c != -1 || optind < argc)
	{
		if (c == -1)
			fprintf(stderr, "gpuvecd: unexpected argument \"%s\"\n", argv[optind]);
		fprintf(stderr, "Try \"gpuvecd --help\" for more information.\n");
		exit(GV_EXIT_USAGE);
	}
	return options;
}

/* ---- start */

/*
 * Arranges that this process gets a signal when its parent ends.  Exits if the
 * parent has ended already.
 */
static void
follow_parent(int parent, int signal)
{
	prctl(PR_SET_PDEATHSIG, signal);
	if (getppid() != parent)
	{
		gv_log("LOG", "parent process %d has exited",
			   parent);
		exit(0);
	}
}

/*
 * Handles the signals that end this process.  The first process of a container
 * ignores signals that it does not handle.  The signals may be blocked, because
 * a process inherits the mask of the process that starts it.  The parent of
 * fork_server() ignores SIGHUP and SIGPIPE, too, because it must not end before
 * the server.
 */
static void
heed_signals(void)
{
	sigset_t	signals;

	(void) signal(SIGHUP, SIG_IGN);
	(void) signal(SIGPIPE, SIG_IGN);
	(void) signal(SIGTERM, gv_loop_on_signal);
	(void) signal(SIGINT, gv_loop_on_signal);
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigprocmask(SIG_UNBLOCK, &signals, NULL);
}

/*
 * Forks, and returns in the child, which serves one incarnation of the cluster
 * (server/README, "Incarnations").  The parent blocks the signals that end
 * gpuvecd, and waits for them, so that none is lost.  If a signal comes after a
 * child has ended and before the next child is forked, the parent passes the
 * signal on to the next child.
 */
static void
fork_server(void)
{
	sigset_t	signals;
	bool		stops = false;	/* a signal was passed on */
	int			status;

	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGCHLD);
	/* if this process ignored SIGCHLD, it could not wait */
	(void) signal(SIGCHLD, SIG_DFL);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	do
	{
		pid_t		server = fork();

		if (server < 0)
			gv_system_error("start a process");
		if (server == 0)
		{
			follow_parent(gv_server.pid, SIGKILL);
			sigprocmask(SIG_UNBLOCK, &signals, NULL);
			return;
		}
		status = 0;
		while (waitpid(server, &status, WNOHANG) == 0)
		{
			int			got = sigwaitinfo(&signals, NULL);

			if (got != SIGTERM && got != SIGINT)
				continue;
			stops = true;
			(void) kill(server, got);
		}
		if (WIFSIGNALED(status))
		{
			gv_log("FATAL", "terminated by signal %d",
				   WTERMSIG(status));
			exit(128 + WTERMSIG(status));
		}
	} while (WEXITSTATUS(status) == GV_EXIT_INCARNATION && !stops);
	/* if the next incarnation has come, a signal ends us all the same */
	exit(WEXITSTATUS(status) == GV_EXIT_INCARNATION ? 0 :
		 WEXITSTATUS(status));
}

/* Returns the engine that the option asks for, or exits. */
static const GvEngine *
choose_engine(const char *option)
{
	const char *name = strcmp(option, "auto") == 0 ? "cuda" : option;
	const GvEngine *engine = gv_engines;

	while (engine->mirrors != NULL &&
		   strcmp(engine->mirrors->name, name) != 0)
		engine++;
	if (engine->mirrors != NULL)
		return engine;
	if (strcmp(name, "cuda") != 0)
		bad_option("engine", option);
	gv_log("FATAL", "this gpuvecd was built without CUDA");
	exit(GV_EXIT_NO_ENGINE);
}

/*
 * Writes the names and numbers of the devices, such as "A (0, 1), B (2)".
 * Adjacent devices of the same name share the name.  A single device has no
 * number.
 */
static void
name_devices(const GvDevice *devices, int32_t n, char *names, size_t size)
{
	size_t		used = 0;
	int32_t		i;

	for (i = 0; i < n && used < size; i++)
	{
		bool		same = i > 0 &&
		strcmp(devices[i].name, devices[i - 1].name) == 0;

		used += (size_t) snprintf(names + used, size - used, "%s%s%s",
								  i == 0 ? "" : same ? ", " : "), ",
								  same ? "" : devices[i].name,
								  same || n == 1 ? "" : " (");
		if (n > 1 && used < size)
			used += (size_t) snprintf(names + used, size - used, "%d%s",
									  devices[i].number,
									  i == n - 1 ? ")" : "");
	}
}

/* Sets up budgets, numbers and names of the devices. */
static void
use_devices(const GvDevice *devices, int32_t n, const Options *options)
{
	int64_t		budgets[GV_MAX_DEVICES];
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		budgets[i] = options->memory_mb > 0 ? options->memory_mb << 20 :
			devices[i].memory;
		gv_server.numbers[i] = devices[i].number;
	}
	name_devices(devices, n, gv_server.device, sizeof(gv_server.device));
	gv_mirrors_init(devices, budgets, n, (int) options->keep_s);
}

/*
 * Opens the engine and its devices, and sets the fields of gv_server that
 * depend on them.  Exits if that fails.
 */
static void
open_engine(const GvEngine *engine, const Options *options)
{
	GvDevice	devices[GV_MAX_DEVICES];
	int32_t		ndevices;
	int32_t		i;
	bool		divides_always = false;
	GvStatus	status;

	gv_simd_use(options->simd);
	gv_matmul_use(options->matmul);
#ifdef GV_TEST_BUILD
	gv_allocations.after = options->memory_faults > 0;
	gv_allocations.due = (int) (options->memory_faults > 0 ?
								options->memory_faults : options->memory_fault);
#endif
	status = gv_mirrors_open(engine->mirrors, options->devices, devices,
							 &ndevices);
	if (status == GV_OK)
	{
		/*
		 * the devices that were left out follow the others, with the reasons
		 * as names
		 */
		for (i = ndevices; i < GV_MAX_DEVICES && devices[i].name[0] != '\0';
			 i++)
			gv_log("WARNING", "skipping device: %s", devices[i].name);
		status = gv_builders_open(engine->builders);
	}
	if (status == GV_OK)
		status = gv_setjob_open(engine->sets);
	if (status != GV_OK)
	{
		gv_log("FATAL", "could not start engine: %s", devices[0].name);

		/*
		 * GV_EXIT_FAILED means: try again, because a device may be free or
		 * work later
		 */
		exit(status == GV_INVALID ? GV_EXIT_NO_ENGINE : GV_EXIT_FAILED);
	}
	gv_server.engine = engine->mirrors->name;
	gv_server.replicas = (int32_t) options->replicas;
	gv_server.message_s = (int) options->message_s;
	/* a processor does not hang, but may take minutes for a batch */
	gv_server.batch_timeout_s = options->patience_s >= 0 ?
		(int) options->patience_s : engine->on_cpu ? 0 : PATIENCE_S;
	gv_server.at_once = engine->on_cpu ? AT_ONCE_CPU : AT_ONCE;
#ifdef GV_TEST_BUILD
	divides_always = getenv("GPUVEC_DIVIDE") != NULL;
#endif
	if (!divides_always)
	{
		gv_server.min_products_per_device = engine->on_cpu ?
			MIN_CPU_PRODUCTS : MIN_PRODUCTS;
		gv_server.copy_builder_after_ns = COPY_BUILDER_AFTER_NS;
	}
	use_devices(devices, ndevices, options);
}

/*
 * Limits connections by the option and by the limit of open files, of which a
 * session has two, a socket and an eventfd.
 */
static void
limit_connections(int64_t wanted)
{
	struct rlimit limit;
	int64_t		most = wanted;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
	{
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
		getrlimit(RLIMIT_NOFILE, &limit);
		/* RLIM_INFINITY is the largest number */
		if (limit.rlim_cur < (rlim_t) (2 * most) + SPARE_FILES)
		{
			most = ((int64_t) limit.rlim_cur - SPARE_FILES) / 2;
			most = most < 1 ? 1 : most;
			gv_log("WARNING", "limiting connections to %lld, because only %llu files may be open",
				   (long long) most,
				   (unsigned long long) limit.rlim_cur);
		}
	}
	gv_server.max_connections = (int) most;
}

/* Finds a user by name or number.  Returns false if there is none. */
static bool
find_user(const char *name, uid_t *uid)
{
	struct passwd *user;
	char	   *end;
	unsigned long long number;

	errno = 0;
	number = strtoull(name, &end, 10);
	if (name[0] >= '0' && name[0] <= '9' && *end == '\0')
	{
		*uid = (uid_t) number;
		/* system calls take UINT32_MAX for no user */
		return errno == 0 && number < UINT32_MAX;
	}
	user = getpwnam(name);
	if (user == NULL)
		return false;
	*uid = user->pw_uid;
	return true;
}

/* Returns the user that may connect: --owner or the effective user. */
static uid_t
choose_owner(const Options *options)
{
	uid_t		owner = geteuid();

	if (options->owner != NULL && options->socket == NULL)
	{
		fprintf(stderr, "gpuvecd: option --owner requires --socket\nTry \"gpuvecd --help\" for more information.\n");
		exit(GV_EXIT_USAGE);
	}
	if (options->owner != NULL && !find_user(options->owner, &owner))
		bad_option("owner", options->owner);
	return owner;
}

int
main(int argc, char **argv)
{
	Options		options = parse_options(argc, argv);
	const GvEngine *engine = choose_engine(options.engine);
	int			listener;
	int			status;

	gv_server.pid = getpid();
	heed_signals();
	if (options.parent != 0)
		follow_parent((int) options.parent, SIGTERM);
	if (options.socket != NULL)
		fork_server();
	gv_server.owner = choose_owner(&options);
	gv_server.release = GPUVEC_RELEASE;
	if (getrandom(&gv_server.instance, sizeof(gv_server.instance), 0) !=
		(ssize_t) sizeof(gv_server.instance))
		gv_system_error("get random numbers");
	gv_folder_enter(options.socket != NULL ? options.socket : options.data,
					options.socket != NULL);
	open_engine(engine, &options);
	limit_connections(options.max_connections);
	listener = gv_folder_listen();
	if (listener < 0)
		gv_system_error("listen at " GV_SOCKET_PATH);
	status = gv_loop_run(listener);
#ifdef GV_TEST_BUILD
	if (options.memory_fault > 0 || options.memory_faults > 0)
		gv_log("LOG", "allocations left: %d",
			   __atomic_load_n(&gv_allocations.due, __ATOMIC_RELAXED));
#endif
	gv_folder_leave();

	/*
	 * Tidy up only if that is safe.  A broken engine might never return.  If
	 * another thread still uses a device that hangs, freeing the device's
	 * memory might never return either, and we would keep the lock.
	 */
	if (status != 0 ||
		__atomic_load_n(&gv_server.client_threads, __ATOMIC_ACQUIRE) > 0)
		_exit(status);
	gv_batches_close();
	return 0;
}
