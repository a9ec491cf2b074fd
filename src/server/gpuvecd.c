/*
 * gpuvecd.c
 *		Lines for the parent of gpuvecd: "LEVEL: text" on standard error.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/gv_fault.h"
#include "engine/mirror/gv_engines.h"
#include "server/server.h"

/* Print a line; a reader that does not read loses it, and delays nothing. */
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
	/* one write, which a pipe takes whole when there is room at all */
	if (poll(&out, 1, 0) == 1 && (out.revents & POLLOUT) != 0 &&
		write(STDERR_FILENO, line, (size_t) length) < 0)
		return;
}

/* The system has refused something: the end. */
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

/* ----
 * The server's program: options, engine, and how it ends.
 *
 * It works in a PostgreSQL data directory, or in a folder of its own, but
 * reads nothing there: its lock and its socket are all that it touches.
 */

#define PATIENCE_S		60		/* the heaviest batch takes a GPU some 40 */

/*
 * When work is worth another device.  Such a task of a set, in products, takes
 * a GPU 9 ms, and a processor .1 s.  To begin on another device takes 10 ms or
 * so.
 */
#define LEAST_TASK	2e12
#define LEAST_CPU_TASK 2e9
#define WORTH_NS		20000000
#define AT_ONCE_CPU		64		/* GvServer.at_once of an engine that makes
								 * one search after another */
#define SPARE_FILES		64		/* descriptors that are no connections */

typedef struct Options
{
	const char *engine;
	const char *data;
	const char *socket;			/* NULL: in the data directory */
	const char *owner;			/* NULL: who we are */
	const char *devices;
	GvMatmulSetting matmul;
	GvSimd		simd;
	int64_t		memory_mb;
	int			max_connections;
	int			replicas;
	int			keep_s;
	int			patience_s;		/* -1: as the engine is */
	int			message_s;
	int			parent;			/* 0: no process's end is ours */
#ifdef GV_TEST_BUILD
	int64_t		fault_call;
	int			fault_status;
	int64_t		build_fault_call;
	int			build_fault_status;
	int64_t		set_fault_call;
	int			set_fault_status;
	int			memory_fault;
	bool		memory_faults;
#endif
} Options;

GvServer	gv_server;

#define MOST_REJECTIONS	8		/* that the log tells of */

static bool told;				/* the log, that the engine failed */
static bool failed;

static const char usage[] =
"gpuvecd " GPUVEC_RELEASE ", the search server of gpuvec\n"
"\n"
"usage: gpuvecd [OPTION]...\n"
"\n"
#ifdef GV_TEST_BUILD
"  --engine cpu|cuda|auto  what searches; auto, the default: cuda or nothing\n"
#else
"  --engine cuda|auto      what searches; auto, the default: cuda or nothing\n"
#endif
"  --data DIR              for socket and lock: PostgreSQL's data directory\n"
"                          (the current one)\n"
"  --socket DIR            in its place, where PostgreSQL does not start gpuvecd\n"
"                          (gpuvec.server = external): a folder of gpuvecd's own,\n"
"                          which gpuvec.server_directory names; it is made if need\n"
"                          be\n"
"  --owner USER            whom PostgreSQL runs as, a name or number, where that\n"
"                          is not who runs gpuvecd; nobody else may connect\n"
"  --memory MB             for mirrors on each card (0: what the engine\n"
"                          proposes)\n"
"  --devices LIST          numbers of the cards to use, with commas (all)\n"
"  --replicas N            cards that have a mirror, each all of it, where there is\n"
"                          room for that (1)\n"
"  --matmul own|cublas|auto\n"
"                          who multiplies matrices on a card: gpuvecd itself, or\n"
"                          cuBLAS; auto, the default: cuBLAS from 512 dimensions\n"
"                          on, but not on cards of compute capability 9.0\n"
"  --simd LEVEL            instructions of the processor: portable, avx2,\n"
"                          avx512, neon, or auto: the best of them (auto)\n"
"  --max-connections N     clients at a time (1000)\n"
"  --keep SECONDS          what was used since is not evicted (10)\n"
"  --patience SECONDS      end when the engine has not finished a batch in this\n"
"                          time (0: never; 60)\n"
"  --message SECONDS       a client has for a message from its first byte to its\n"
"                          last (60)\n"
"  --parent PID            end when this process, which started us, ends\n"
#ifdef GV_TEST_BUILD
"  --fault N:STATUS        the N-th call of the engine reports 2 (invalid), 3 (no\n"
"                          memory), 4 (failed) or 5 (rejected), or never ends (6)\n"
"  --build-fault N:STATUS  the same for calls that builds make\n"
"  --set-fault N:STATUS    the same for calls that work on sets makes\n"
"  --memory-fault N        the N-th allocation fails\n"
"  --memory-faults N       so do all after it\n"
#endif
"  --help, --version\n"
"\n"
#ifdef GV_TEST_BUILD
"This is a test build.  With GPUVEC_DIVIDE in the environment work is divided\n"
"among cards however little it is.  The engine cpu is what tests compare others\n"
"with; its --patience is 0 by default.\n"
"\n"
#endif
"Usually PostgreSQL starts it, with shared_preload_libraries = 'gpuvec'.  With\n"
"--socket it serves the one cluster that connects there, and begins anew when\n"
"that does.\n"
"Exit status: 0 ended by a signal; 2 wrong usage; 3 no such engine or card;\n"
"4 another gpuvecd runs there; 5 the engine failed, start again; 6 system.\n";

/* ---- the engine's statuses */

bool
gv_server_failed(void)
{
	return __atomic_load_n(&failed, __ATOMIC_ACQUIRE);
}

/*
 * A call was rejected: say which, once.  Whoever asked for it asks again, in
 * vain perhaps for ever.
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
		gv_log("WARNING", "the device rejected a call%s%s; what it was for is "
			   "refused, or done in parts", reason[0] ? ": " : "", reason);
	}
	pthread_mutex_unlock(&lock);
}

/* How to refuse what the engine could not do; GV_FAILED ends the process. */
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
			/* the loop may end the process as soon as it knows */
			if (!__atomic_exchange_n(&told, true, __ATOMIC_ACQ_REL))
			{
				gv_log("FATAL", "the engine failed; a new process is needed");
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
	fprintf(stderr, "gpuvecd: bad value for --%s: \"%s\"\n"
			"Try gpuvecd --help.\n", option, value);
	exit(GV_EXIT_USAGE);
}

/* A whole number from least to most, or the end. */
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

/* One of the levels of instructions, which this processor has. */
static GvSimd
parse_simd(const char *name, const char *value)
{
	GvSimd		level = GV_SIMD_AUTO;

	while (strcmp(value, gv_simd_name(level)) != 0)
		if (++level == GV_NSIMD)
			bad_option(name, value);
	if (!gv_simd_has(level))
	{
		fprintf(stderr, "gpuvecd: this processor has no %s\n", value);
		exit(GV_EXIT_USAGE);
	}
	return level;
}

static GvMatmulSetting
parse_matmul(const char *name, const char *value)
{
	static const char *const names[] = {
		[GV_MATMUL_AUTO] = "auto",
		[GV_MATMUL_OWN] = "own",
		[GV_MATMUL_CUBLAS] = "cublas"
	};
	GvMatmulSetting matmul = GV_MATMUL_AUTO;

	while (strcmp(value, names[matmul]) != 0)
		if (matmul++ == GV_MATMUL_CUBLAS)
			bad_option(name, value);
	return matmul;
}

#ifdef GV_TEST_BUILD

/* "N:STATUS" */
static void
parse_fault(const char *name, const char *value, int64_t *fault_call,
			int *fault_status)
{
	char		call[24];
	const char *colon = strchr(value, ':');

	if (colon == NULL || colon - value >= (long) sizeof(call))
		bad_option(name, value);
	snprintf(call, sizeof(call), "%.*s", (int) (colon - value), value);
	*fault_call = number(name, call, 1, INT64_MAX);
	*fault_status = (int) number(name, colon + 1, GV_INVALID,
								 strcmp(name, "fault") == 0 ? GV_HANGS :
								 GV_FAILED);
}

/* Those that the test build has besides. */
static void
set_test_option(Options *options, const char *name, const char *value)
{
	if (strcmp(name, "fault") == 0)
		parse_fault(name, value, &options->fault_call,
					&options->fault_status);
	else if (strcmp(name, "build-fault") == 0)
		parse_fault(name, value, &options->build_fault_call,
					&options->build_fault_status);
	else if (strncmp(name, "memory-fault", 12) == 0)
	{
		options->memory_fault = (int) number(name, value, 1, INT32_MAX);
		options->memory_faults = name[12] == 's';
	}
	else
		parse_fault(name, value, &options->set_fault_call,
					&options->set_fault_status);
}

#endif

/* A folder that is named, and where a socket's path is not too long. */
static void
check_folder_path(const char *path)
{
	if (path[0] == '\0')
		bad_option("socket", path);
	if (gv_folder_fits(path))
		return;
	fprintf(stderr, "gpuvecd: the path of a socket in the folder \"%s\" would be "
			"too long\nTry gpuvecd --help.\n", path);
	exit(GV_EXIT_USAGE);
}

static void
set_option(Options *options, const char *name, const char *value)
{
	if (strcmp(name, "help") == 0 || strcmp(name, "version") == 0)
	{
		printf("%s", name[0] == 'h' ? usage : "gpuvecd " GPUVEC_RELEASE "\n");
		exit(0);
	}
	else if (strcmp(name, "engine") == 0)
		options->engine = value;
	else if (strcmp(name, "data") == 0)
		options->data = value;
	else if (strcmp(name, "socket") == 0)
	{
		check_folder_path(value);
		options->socket = value;
	}
	else if (strcmp(name, "owner") == 0)
		options->owner = value;
	else if (strcmp(name, "devices") == 0)
		options->devices = value;
	else if (strcmp(name, "matmul") == 0)
		options->matmul = parse_matmul(name, value);
	else if (strcmp(name, "simd") == 0)
		options->simd = parse_simd(name, value);
	else if (strcmp(name, "memory") == 0)
		options->memory_mb = number(name, value, 0, INT64_C(1) << 40);
	else if (strcmp(name, "max-connections") == 0)
		options->max_connections = (int) number(name, value, 1, 1 << 20);
	else if (strcmp(name, "replicas") == 0)
		options->replicas = (int) number(name, value, 1, GV_MAX_DEVICES);
	else if (strcmp(name, "keep") == 0)
		options->keep_s = (int) number(name, value, 0, 1 << 30);
	else if (strcmp(name, "patience") == 0)
		options->patience_s = (int) number(name, value, 0, 1 << 30);
	else if (strcmp(name, "message") == 0)
		options->message_s = (int) number(name, value, 1, 1 << 20);
	else if (strcmp(name, "parent") == 0)
		options->parent = (int) number(name, value, 1, INT32_MAX);
#ifdef GV_TEST_BUILD
	else
		set_test_option(options, name, value);
#endif
}

/* Returns the engine of that name; NULL: this program has none. */
static const GvEngine *
find_engine(const char *name)
{
	const GvEngine *engine;

	for (engine = gv_engines; engine->mirrors != NULL; engine++)
		if (strcmp(engine->mirrors->name, name) == 0)
			return engine;
	return NULL;
}

static Options
parse_options(int argc, char **argv)
{
	static const struct option known[] = {
		{"engine", required_argument, NULL, 1},
		{"data", required_argument, NULL, 1},
		{"socket", required_argument, NULL, 1},
		{"owner", required_argument, NULL, 1},
		{"memory", required_argument, NULL, 1},
		{"devices", required_argument, NULL, 1},
		{"matmul", required_argument, NULL, 1},
		{"simd", required_argument, NULL, 1},
		{"max-connections", required_argument, NULL, 1},
		{"replicas", required_argument, NULL, 1},
		{"keep", required_argument, NULL, 1},
		{"patience", required_argument, NULL, 1},
		{"message", required_argument, NULL, 1},
		{"parent", required_argument, NULL, 1},
#ifdef GV_TEST_BUILD
		{"fault", required_argument, NULL, 1},
		{"build-fault", required_argument, NULL, 1},
		{"set-fault", required_argument, NULL, 1},
		{"memory-fault", required_argument, NULL, 1},
		{"memory-faults", required_argument, NULL, 1},
#endif
		{"help", no_argument, NULL, 1},
		{"version", no_argument, NULL, 1},
		{NULL, 0, NULL, 0}
	};
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
	int			c;

	while ((c = getopt_long(argc, argv, "", known, &which)) == 1)
		set_option(&options, known[which].name, optarg);
	if (c != -1 || optind < argc)
	{
		if (c == -1)
			fprintf(stderr, "gpuvecd: unexpected \"%s\"\n", argv[optind]);
		fprintf(stderr, "Try gpuvecd --help.\n");
		exit(GV_EXIT_USAGE);
	}
	if (strcmp(options.engine, "cuda") != 0 &&
		strcmp(options.engine, "auto") != 0 &&
		find_engine(options.engine) == NULL)
		bad_option("engine", options.engine);
	return options;
}

/* ---- start */

/* Die with the process that started us; do it now if that is gone already. */
static void
follow_parent(int parent)
{
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
	{
		gv_log("LOG", "process %d, which should have started us, is gone",
			   parent);
		exit(0);
	}
}

/* The engine that the option asks for; not in this program: the end. */
static const GvEngine *
choose_engine(const char *name)
{
	const GvEngine *engine =
	find_engine(strcmp(name, "auto") == 0 ? "cuda" : name);

	if (engine == NULL)
	{
		gv_log("FATAL", "this gpuvecd was built without CUDA");
		exit(GV_EXIT_NO_ENGINE);
	}
	return engine;
}

/*
 * The names of all devices, and behind each the numbers of those
 * that are called so, where there are several devices.
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

/* Take over what was found. */
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
	gv_mirrors_init(devices, budgets, n, options->keep_s);
}

/* Of those that cannot be used: why; the others do their work. */
static void
warn_of_devices(const GvDevice *devices, int32_t n)
{
	for (; n < GV_MAX_DEVICES && devices[n].name[0] != '\0'; n++)
		gv_log("WARNING", "left out: %s", devices[n].name);
}

/* When work is worth another device. */
static void
set_worth(bool on_cpu)
{
#ifdef GV_TEST_BUILD
	if (getenv("GPUVEC_DIVIDE") != NULL)
		return;
#endif
	gv_server.least_task = on_cpu ? LEAST_CPU_TASK : LEAST_TASK;
	gv_server.worth_ns = WORTH_NS;
}

static void
open_engine(const GvEngine *engine, const Options *options)
{
	GvDevice	devices[GV_MAX_DEVICES];
	int32_t		ndevices;
	GvStatus	status;

	gv_simd_use(options->simd);
	gv_matmul_use(options->matmul);
#ifdef GV_TEST_BUILD
	gv_mirror_fault(options->fault_call, (GvStatus) options->fault_status);
	gv_builder_fault(options->build_fault_call,
					 (GvStatus) options->build_fault_status);
	gv_set_fault(options->set_fault_call, (GvStatus) options->set_fault_status);
	gv_allocations.after = options->memory_faults;
	gv_allocations.due = options->memory_fault;
#endif
	status = gv_mirrors_open(engine->mirrors, options->devices, devices,
							 &ndevices);
	if (status == GV_OK)
		warn_of_devices(devices, ndevices);
	if (status == GV_OK)
		status = gv_builders_open(engine->builders);
	if (status == GV_OK)
		status = gv_sets_open(engine->sets);
	if (status != GV_OK)
	{
		gv_log("FATAL", "no engine: %s", devices[0].name);
		/* a device may be free, well or back in a while */
		exit(status == GV_INVALID ? GV_EXIT_NO_ENGINE : GV_EXIT_FAILED);
	}
	gv_server.engine = engine->mirrors->name;
	gv_server.replicas = options->replicas;
	/* a processor does not hang, and a batch may take it minutes */
	gv_server.message_s = options->message_s;
	gv_server.patience_s = options->patience_s >= 0 ? options->patience_s :
		engine->on_cpu ? 0 : PATIENCE_S;
	gv_server.at_once = engine->on_cpu ? AT_ONCE_CPU : GV_MAX_AT_ONCE;
	set_worth(engine->on_cpu);
	use_devices(devices, ndevices, options);
}

/* As many connections as asked for, or as there may be open files. */
static void
limit_connections(int wanted)
{
	struct rlimit limit;
	int64_t		most = wanted;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
	{
		if (limit.rlim_cur < limit.rlim_max)
		{
			limit.rlim_cur = limit.rlim_max;
			setrlimit(RLIMIT_NOFILE, &limit);
			getrlimit(RLIMIT_NOFILE, &limit);
		}
		if (limit.rlim_cur != RLIM_INFINITY &&
			(int64_t) limit.rlim_cur < most + SPARE_FILES)
		{
			most = (int64_t) limit.rlim_cur - SPARE_FILES;
			most = most < 1 ? 1 : most;
			gv_log("WARNING", "only %lld connections, because there may be "
				   "only %llu open files", (long long) most,
				   (unsigned long long) limit.rlim_cur);
		}
	}
	gv_server.max_connections = (int) most;
}

/* Whom the options name, or who we are. */
static uid_t
choose_owner(const Options *options)
{
	uid_t		owner = geteuid();

	if (options->owner != NULL && options->socket == NULL)
	{
		fprintf(stderr, "gpuvecd: --owner is for --socket\n"
				"Try gpuvecd --help.\n");
		exit(GV_EXIT_USAGE);
	}
	if (options->owner != NULL && !gv_folder_user(options->owner, &owner))
		bad_option("owner", options->owner);
	return owner;
}

/* Who and where we are. */
static void
settle(const Options *options)
{
	if (options->parent != 0)
		follow_parent(options->parent);
	gv_server.pid = getpid();
	gv_server.owner = choose_owner(options);
	gv_server.release = GPUVEC_RELEASE;
	if (getrandom(&gv_server.instance, sizeof(gv_server.instance), 0) !=
		(ssize_t) sizeof(gv_server.instance))
		gv_system_error("get random numbers");
	gv_folder_enter(options->socket != NULL ? options->socket :
					options->data, options->socket != NULL);
}

int
main(int argc, char **argv)
{
	Options		options = parse_options(argc, argv);
	const GvEngine *engine = choose_engine(options.engine);
	int			home = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int			listener;
	int			status;

	gv_restart_heed_signals(SIG_UNBLOCK);
	settle(&options);
	open_engine(engine, &options);
	limit_connections(options.max_connections);
	listener = gv_folder_listen();
	if (listener < 0)
		gv_system_error("listen at " GV_SOCKET_PATH);
	status = gv_loop_run(listener);
#ifdef GV_TEST_BUILD
	if (options.memory_fault > 0)
		gv_log("LOG", "allocations left: %d",
			   __atomic_load_n(&gv_allocations.due, __ATOMIC_RELAXED));
#endif
	gv_folder_leave();
	if (gv_incarnation_is_over() && status == 0)
		_exit(gv_restart(home, argv));

	/*
	 * Tidy up only if that is safe: a broken engine might never return, and
	 * other threads may still be at work, with a device that hangs: to give
	 * its memory back would wait for that, and keep the lock.
	 */
	if (status == GV_EXIT_FAILED ||
		__atomic_load_n(&gv_server.loaders, __ATOMIC_ACQUIRE) > 0)
		_exit(status);
	gv_batches_close();
	return status;
}
