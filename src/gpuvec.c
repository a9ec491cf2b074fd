/*
 * gpuvec.c
 *		The library's entry: _PG_init, and the definitions of all settings.
 *
 * A setting's variable stands with the code that reads it, but for those of
 * gpuvecd and its clients, which stand here.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/guc.h"

#include "am/common/options.h"
#include "am/maintain/maintain.h"
#include "am/scan/querylog.h"
#include "am/scan/scan.h"
#include "am/scan/scanstats.h"
#include "am/search/params.h"
#include "client/client.h"
#include "inspect/inspect.h"
#include "page/injection.h"
#include "planner/planner.h"

#ifdef PG_MODULE_MAGIC_EXT
PG_MODULE_MAGIC_EXT(.name = "gpuvec", .version = GPUVEC_RELEASE);
#else
PG_MODULE_MAGIC;
#endif

int			ivfpq_engine = IVFPQ_ENGINE_AUTO;
int			ivfpq_on_gpu_error = IVFPQ_ON_ERROR_FALLBACK;
int			ivfpq_request_timeout = 1000;
int			ivfpq_server_timeout = 1000;
bool		ivfpq_auto_mirror = true;

int			ivfpq_server = IVFPQ_SERVER_AUTO;
int			ivfpq_gpu_memory = 0;
char	   *ivfpq_devices = "";
int			ivfpq_replicas = 1;
char	   *ivfpq_server_path = "";
char	   *ivfpq_server_directory = "";
char	   *ivfpq_server_owner = "";
int			ivfpq_matmul = IVFPQ_MATMUL_AUTO;
int			ivfpq_simd = GV_SIMD_AUTO;

static const struct config_enum_entry order_options[] = {
	{"strict", IVFPQ_ORDER_STRICT, false},
	{"relaxed", IVFPQ_ORDER_RELAXED, false},
	{NULL, 0, false}
};

static const struct config_enum_entry use_options[] = {
	{"auto", IVFPQ_USE_AUTO, false},
	{"always", IVFPQ_USE_ALWAYS, false},
	{"never", IVFPQ_USE_NEVER, false},
	{NULL, 0, false}
};

static const struct config_enum_entry engine_options[] = {
	{"auto", IVFPQ_ENGINE_AUTO, false},
	{"cpu", IVFPQ_ENGINE_CPU, false},
	{"gpu", IVFPQ_ENGINE_GPU, false},
	{NULL, 0, false}
};

static const struct config_enum_entry server_options[] = {
	{"auto", IVFPQ_SERVER_AUTO, false},
	{"cuda", IVFPQ_SERVER_CUDA, false},
#ifdef GV_TEST_BUILD
	{"cpu", IVFPQ_SERVER_CPU, false},
#endif
	{"external", IVFPQ_SERVER_EXTERNAL, false},
	{"off", IVFPQ_SERVER_OFF, false},
	{NULL, 0, false}
};

static const struct config_enum_entry matmul_options[] = {
	{"auto", IVFPQ_MATMUL_AUTO, false},
	{"own", IVFPQ_MATMUL_OWN, false},
	{"cublas", IVFPQ_MATMUL_CUBLAS, false},
	{NULL, 0, false}
};

static const struct config_enum_entry simd_options[] = {
	{"auto", GV_SIMD_AUTO, false},
	{"portable", GV_SIMD_PORTABLE, false},
	{"avx2", GV_SIMD_AVX2, false},
	{"avx512", GV_SIMD_AVX512, false},
	{"neon", GV_SIMD_NEON, false},
	{NULL, 0, false}
};

static const struct config_enum_entry error_options[] = {
	{"fallback", IVFPQ_ON_ERROR_FALLBACK, false},
	{"error", IVFPQ_ON_ERROR_ERROR, false},
	{NULL, 0, false}
};

void		_PG_init(void);

#ifdef GV_TEST_BUILD

/*
 * Assign hook of gpuvec.fault.  Its values are injection points of page/, or
 * "failed 3 engine" and "memory 3 engine", which make the third call of the
 * engine from now on fail.
 */
static void
assign_fault(const char *newval, void *extra)
{
	char		action[16];
	int			n = 0;
	int			end = 0;

	IvfpqInjectionPointReset();
	if (newval == NULL ||
		sscanf(newval, "%15s %d engine%n", action, &n, &end) != 2 || end == 0)
		n = 0;
	gv_engine_fault(n, n > 0 && strcmp(action, "memory") == 0 ?
					GV_NO_MEMORY : GV_FAILED);
}

#endif

static bool
check_simd(int *newval, void **extra, GucSource source)
{
	if (gv_simd_has(*newval))
		return true;
	GUC_check_errdetail("This processor lacks these instructions.");
	GUC_check_errhint("\"auto\" takes the best that it has.");
	return false;
}

static void
assign_simd(int newval, void *extra)
{
	gv_simd_use(newval);
}

/* Rejects relative paths, which would start from the data directory. */
static bool
check_server_path(char **newval, void **extra, GucSource source)
{
	if ((*newval)[0] == '\0' || is_absolute_path(*newval))
		return true;
	GUC_check_errdetail("It has to be an absolute path.");
	return false;
}

/*
 * Rejects relative paths, and those too long for the address of a socket in
 * that directory.
 */
static bool
check_server_directory(char **newval, void **extra, GucSource source)
{
	if (!check_server_path(newval, extra, source))
		return false;
	if (IvfpqFolderFits(*newval))
		return true;
	GUC_check_errdetail("It is too long for a socket's path.");
	return false;
}

static bool
check_server_owner(char **newval, void **extra, GucSource source)
{
	uid_t		uid;

	if (IvfpqFindUser(*newval, &uid))
		return true;
	GUC_check_errdetail("There is no such user of the system.");
	return false;
}

/*
 * Defines an integer setting that any user may change, from 0, its default, to
 * max.
 */
static void
define_count(const char *name, const char *summary, const char *details,
			 int *variable, int max)
{
	DefineCustomIntVariable(name, summary, details, variable, 0, 0, max,
							PGC_USERSET, 0, NULL, NULL, NULL);
}

/* Defines settings of scans, and of the log of their queries. */
static void
define_scan_settings(void)
{
	define_count("gpuvec.probes",
				 "Sets the number of lists that a scan reads first.",
				 "0 takes the index's option probes or, without one, a "
				 "default.",
				 &ivfpq_probes, IVFPQ_MAX_LISTS);
	define_count("gpuvec.candidates",
				 "Sets the number of rows whose exact distance a scan "
				 "computes first.",
				 "0 takes the index's option candidates or, without one, a "
				 "default.",
				 &ivfpq_candidates, IVFPQ_MAX_CANDIDATES);
	DefineCustomEnumVariable("gpuvec.scan_order",
							 "Sets whether rows come out strictly in order.",
							 "strict leaves out a row that is found out of "
							 "order; relaxed returns it.",
							 &ivfpq_order, IVFPQ_ORDER_STRICT, order_options,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("gpuvec.use_index",
							 "Sets whether plans use gpuivfpq indexes.",
							 "auto: where they cost least; always: in the "
							 "place of other methods' indexes that bring the "
							 "same order, such as hnsw; never: not at all.",
							 &ivfpq_use_index, IVFPQ_USE_AUTO, use_options,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	define_count("gpuvec.max_probes",
				 "Sets the number of lists after which a scan reads no more.",
				 "0 means no limit.",
				 &ivfpq_max_probes, IVFPQ_MAX_LISTS);
	DefineCustomRealVariable("gpuvec.recall",
							 "Sets the share of the nearest rows that a scan "
							 "is to find.",
							 "Calibration knows what .80, .90, .95, .98, .99, "
							 ".995 and .999 take; what lies between and "
							 "beyond follows from these, and 1 reads "
							 "everything.",
							 &ivfpq_recall, 0.95, 0.0, 1.0, PGC_USERSET, 0,
							 NULL, NULL, NULL);
	DefineCustomRealVariable("gpuvec.radius_recall",
							 "Sets the share of the rows within a distance "
							 "that a scan is to find.",
							 "Of conditions on the distance without ORDER BY; "
							 "1 uses no index for these.",
							 &ivfpq_radius_recall, 1.0, 0.0, 1.0, PGC_USERSET,
							 GUC_EXPLAIN, NULL, NULL, NULL);
	DefineCustomBoolVariable("gpuvec.enable_custom_scan",
							 "Lets scans look at conditions before they "
							 "rerank rows.",
							 "off: the executor filters rows after the "
							 "index has returned them.",
							 &ivfpq_enable_custom_scan, true, PGC_USERSET,
							 GUC_EXPLAIN, NULL, NULL, NULL);
	DefineCustomBoolVariable("gpuvec.keep_queries",
							 "Keeps the last 1,000 queries of each index in "
							 "memory.",
							 "Owners of tables see them by "
							 "gpuvec_live_queries.  It takes effect where "
							 "gpuvec is preloaded.",
							 &ivfpq_keep_queries, false, PGC_SUSET, 0, NULL,
							 NULL, NULL);
}

/* Defines settings of the workers that train indexes. */
static void
define_training_settings(void)
{
	DefineCustomIntVariable("gpuvec.max_training_workers",
							"Sets how many background workers may train "
							"indexes at once.",
							"There is one a database.  0: VACUUM starts none.",
							&ivfpq_max_training_workers, 2, 0, 1024,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("gpuvec.training_timeout",
							"Sets how long a background worker lets an "
							"index's functions compute a row.",
							"It is asked of functions that are not in C.  "
							"0: without limit.",
							&ivfpq_training_timeout, 60000, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
}

/* Defines settings of sessions as gpuvecd's clients. */
static void
define_client_settings(void)
{
	DefineCustomEnumVariable("gpuvec.engine",
							 "Sets where indexes are searched.",
							 "cpu: in the session; gpu: by gpuvecd, whatever "
							 "it runs on; auto: by gpuvecd when it has a "
							 "card.",
							 &ivfpq_engine, IVFPQ_ENGINE_AUTO, engine_options,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("gpuvec.on_gpu_error",
							 "Sets what a scan does when gpuvecd fails.",
							 "fallback searches in the session; error ends "
							 "the statement.",
							 &ivfpq_on_gpu_error, IVFPQ_ON_ERROR_FALLBACK,
							 error_options, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("gpuvec.request_timeout",
							"Sets how long a scan waits for gpuvecd.",
							NULL, &ivfpq_request_timeout, 1000, 1, 600000,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("gpuvec.server_timeout",
							"Sets after how long without an answer gpuvecd "
							"counts as silent for all sessions.",
							"A session that waits less for it gives up for "
							"itself alone.",
							&ivfpq_server_timeout, 1000, 10, 600000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomBoolVariable("gpuvec.auto_mirror",
							 "Lets a scan ask for a mirror of its index.",
							 NULL, &ivfpq_auto_mirror, true, PGC_USERSET, 0,
							 NULL, NULL, NULL);
}

/*
 * Defines settings of gpuvecd, which starts with the server.  If the library
 * is not preloaded they have no effect, but they are known, so that
 * pg_settings has those of postgresql.conf.
 */
static void
define_server_settings(void)
{
	/* once the server runs it refuses to define PGC_POSTMASTER settings */
	GucContext	context = process_shared_preload_libraries_in_progress ?
	PGC_POSTMASTER : PGC_SIGHUP;

	DefineCustomEnumVariable("gpuvec.server",
							 "Sets the engine that gpuvecd runs.",
							 "auto: cuda if there is a card, else there is "
							 "no gpuvecd; external: others start it; off: "
							 "there is none.",
							 &ivfpq_server, IVFPQ_SERVER_AUTO, server_options,
							 context, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("gpuvec.server_path",
							   "Sets the program that is started as gpuvecd.",
							   "Empty: it is looked for beside the library, "
							   "beside postgres, and in PATH.",
							   &ivfpq_server_path, "", PGC_SIGHUP, 0,
							   check_server_path, NULL, NULL);
	DefineCustomStringVariable("gpuvec.server_directory",
							   "Sets the folder where a gpuvecd that others "
							   "start has its socket.",
							   "With gpuvec.server = external only.",
							   &ivfpq_server_directory, "", context, 0,
							   check_server_directory, NULL, NULL);
	DefineCustomStringVariable("gpuvec.server_owner",
							   "Sets which user of the system runs that "
							   "gpuvecd.",
							   "A name or number; empty: the server's own.",
							   &ivfpq_server_owner, "", context, 0,
							   check_server_owner, NULL, NULL);
	DefineCustomIntVariable("gpuvec.gpu_memory",
							"Sets how much memory mirrors may have on each card.",
							"0 is what the engine proposes.",
							&ivfpq_gpu_memory, 0, 0, INT_MAX, context,
							GUC_UNIT_MB, NULL, NULL, NULL);
	DefineCustomStringVariable("gpuvec.devices",
							   "Sets the cards that gpuvecd uses.",
							   "Their numbers, with commas; empty is all.",
							   &ivfpq_devices, "", context, 0, NULL, NULL,
							   NULL);
	DefineCustomIntVariable("gpuvec.replicas",
							"Sets how many replicas of a mirror gpuvecd has.",
							"Each is on one card or, in shards, on several; "
							"fewer where not so many have room for it.",
							&ivfpq_replicas, 1, 1, GV_MAX_DEVICES, context, 0,
							NULL, NULL, NULL);
	DefineCustomEnumVariable("gpuvec.matmul",
							 "Sets who multiplies matrices on cards.",
							 "own: gpuvecd itself; cublas: cuBLAS; auto: "
							 "whichever is faster there, as far as is known.",
							 &ivfpq_matmul, IVFPQ_MATMUL_AUTO,
							 matmul_options, context, 0, NULL, NULL, NULL);
}

/*
 * Defines settings for measurements and tests.  This also sets the engine's
 * instructions, by assign_simd.
 */
static void
define_developer_settings(void)
{
	DefineCustomEnumVariable("gpuvec.simd",
							 "Sets the instructions of the engine that runs "
							 "on processors.",
							 "auto: the best that there are.  Answers are "
							 "the same with all of them.",
							 &ivfpq_simd, GV_SIMD_AUTO, simd_options,
							 PGC_USERSET, GUC_NOT_IN_SAMPLE, check_simd,
							 assign_simd, NULL);
#ifdef GV_TEST_BUILD
	DefineCustomStringVariable("gpuvec.fault",
							   "Sets where tests make a backend stop.",
							   NULL, &ivfpq_injection_point, NULL, PGC_SUSET,
							   GUC_NOT_IN_SAMPLE, NULL, assign_fault, NULL);
	/* counts down, so it shows how many allocations are left */
	DefineCustomIntVariable("gpuvec.fault_allocation",
							"Sets which allocation from now on fails.",
							"0: none.  Below 0: in parallel workers only.",
							&gv_allocations.due, 0, -INT_MAX, INT_MAX,
							PGC_SUSET, GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
	DefineCustomBoolVariable("gpuvec.fault_after",
							 "Sets whether all after it fail, too.", NULL,
							 &gv_allocations.after, false, PGC_SUSET,
							 GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
	DefineCustomIntVariable("gpuvec.fault_live",
							"Shows what the engine has not freed.", NULL,
							&gv_allocations.live, 0, -INT_MAX, INT_MAX,
							PGC_SUSET, GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
#endif
}

/* Called by PostgreSQL once a process, when it loads the library. */
void
_PG_init(void)
{
	IvfpqInitOptions();
	IvfpqInitPlanner();
	IvfpqInitFilter();
#ifdef GV_TEST_BUILD
	IvfpqInitPlanCheck();
#endif
	IvfpqInitInspect();
	IvfpqInitLimit();
	define_scan_settings();
	define_training_settings();
	define_client_settings();
	define_server_settings();
	define_developer_settings();
	MarkGUCPrefixReserved("gpuvec");
	if (process_shared_preload_libraries_in_progress)
	{
		IvfpqClientInit();
		IvfpqQueryLogInit();
		IvfpqCountersInit();
	}
}
