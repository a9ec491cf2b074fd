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
int			ivfpq_mirror_rows = IVFPQ_MIRROR_ROWS_AUTO;

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

static const struct config_enum_entry mirror_rows_options[] = {
	{"auto", IVFPQ_MIRROR_ROWS_AUTO, false},
	{"on", IVFPQ_MIRROR_ROWS_ON, false},
	{"off", IVFPQ_MIRROR_ROWS_OFF, false},
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
	GUC_check_errdetail("The processor does not support these instructions.");
	GUC_check_errhint("Use \"auto\" to select the best instructions of the processor.");
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
	GUC_check_errdetail("The path must be absolute.");
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
	GUC_check_errdetail("The path is too long for a socket.");
	return false;
}

static bool
check_server_owner(char **newval, void **extra, GucSource source)
{
	uid_t		uid;

	if (IvfpqFindUser(*newval, &uid))
		return true;
	GUC_check_errdetail("The operating system has no such user.");
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
				 "Sets the number of lists that an index scan reads first.",
				 "0 uses the option \"probes\" of the index or, if that is not set, the calibrated number.",
				 &ivfpq_probes, IVFPQ_MAX_LISTS);
	define_count("gpuvec.candidates",
				 "Sets the number of candidates that an index scan reranks first.",
				 "0 uses the option \"candidates\" of the index or, if that is not set, the calibrated number.",
				 &ivfpq_candidates, IVFPQ_MAX_CANDIDATES);
	DefineCustomEnumVariable("gpuvec.scan_order",
							 "Sets whether index scans may return rows out of order.",
							 "\"strict\" drops rows that are found out of order, \"relaxed\" returns them.",
							 &ivfpq_order, IVFPQ_ORDER_STRICT, order_options,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("gpuvec.use_index",
							 "Controls the planner's use of gpuivfpq indexes.",
							 "\"auto\" uses them if they cost least, \"always\" prefers them to other indexes with the same order, such as hnsw, and \"never\" does not use them.",
							 &ivfpq_use_index, IVFPQ_USE_AUTO, use_options,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	define_count("gpuvec.max_probes",
				 "Sets the maximum number of lists that an index scan reads.",
				 "0 means no limit.",
				 &ivfpq_max_probes, IVFPQ_MAX_LISTS);
	DefineCustomRealVariable("gpuvec.recall",
							 "Sets the target recall of index scans.",
							 "Indexes are calibrated for 0.80, 0.90, 0.95, 0.98, 0.99, 0.995 and 0.999, from which other values are derived.  1 reads the whole index.",
							 &ivfpq_recall, 0.95, 0.0, 1.0, PGC_USERSET, 0,
							 NULL, NULL, NULL);
	DefineCustomRealVariable("gpuvec.radius_recall",
							 "Sets the target recall of distance conditions without ORDER BY.",
							 "1 gives exact results without an index.",
							 &ivfpq_radius_recall, 1.0, 0.0, 1.0, PGC_USERSET,
							 GUC_EXPLAIN, NULL, NULL, NULL);
	DefineCustomBoolVariable("gpuvec.enable_custom_scan",
							 "Enables the planner's use of GpuvecScan nodes.",
							 "They check conditions before rows are reranked.",
							 &ivfpq_enable_custom_scan, true, PGC_USERSET,
							 GUC_EXPLAIN, NULL, NULL, NULL);
	DefineCustomBoolVariable("gpuvec.keep_queries",
							 "Keeps the last 1,000 queries of each index in shared memory.",
							 "The owner of a table can read them with gpuvec_live_queries.  This has no effect unless gpuvec is preloaded.",
							 &ivfpq_keep_queries, false, PGC_SUSET, 0, NULL,
							 NULL, NULL);
}

/* Defines settings of the workers that train and calibrate indexes. */
static void
define_training_settings(void)
{
	DefineCustomIntVariable("gpuvec.max_training_workers",
							"Sets the maximum number of background workers that train indexes.",
							"Each database has at most one.  0 disables training by VACUUM, and automatic calibration.",
							&ivfpq_max_training_workers, 2, 0, 1024,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("gpuvec.training_timeout",
							"Sets the maximum time that functions of an index may take for a row in a training worker.",
							"This applies to functions that are not written in C.  0 disables the timeout.",
							&ivfpq_training_timeout, 60000, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomBoolVariable("gpuvec.auto_calibrate",
							 "Calibrates indexes with their queries if recall is below a target.",
							 "This keeps a sample of the queries of each index in shared memory.  It has no effect unless gpuvec is preloaded.",
							 &ivfpq_auto_calibrate, true, PGC_SIGHUP, 0, NULL,
							 NULL, NULL);
	DefineCustomRealVariable("gpuvec.auto_calibrate_budget",
							 "Sets the processor time a day for automatic calibration.",
							 "This is for all databases together.  0 disables automatic calibration.",
							 &ivfpq_auto_calibrate_budget, 600, 0, 86400,
							 PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
}

/* Defines settings of sessions as gpuvecd's clients. */
static void
define_client_settings(void)
{
	DefineCustomEnumVariable("gpuvec.engine",
							 "Selects where index searches and builds run.",
							 "\"cpu\" uses the session, \"gpu\" uses gpuvecd, and \"auto\" uses gpuvecd if it has a GPU.",
							 &ivfpq_engine, IVFPQ_ENGINE_AUTO, engine_options,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("gpuvec.on_gpu_error",
							 "Selects what a scan does when gpuvecd fails.",
							 "\"fallback\" searches in the session, \"error\" raises an error.",
							 &ivfpq_on_gpu_error, IVFPQ_ON_ERROR_FALLBACK,
							 error_options, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("gpuvec.request_timeout",
							"Sets the maximum time to wait for a response of gpuvecd.",
							NULL, &ivfpq_request_timeout, 1000, 1, 600000,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("gpuvec.server_timeout",
							"Sets the time after which all sessions bypass an unresponsive gpuvecd.",
							"If \"gpuvec.request_timeout\" is shorter, only the waiting session bypasses gpuvecd.",
							&ivfpq_server_timeout, 1000, 10, 600000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomBoolVariable("gpuvec.auto_mirror",
							 "Loads an index into gpuvecd when it is searched.",
							 NULL, &ivfpq_auto_mirror, true, PGC_USERSET, 0,
							 NULL, NULL, NULL);
	DefineCustomEnumVariable("gpuvec.mirror_rows",
							 "Selects whether GPUs also hold the vectors of the table's rows.",
							 "\"auto\" loads them if memory is free, \"on\" also evicts other indexes.  A session that sets it to \"off\" does not use them.",
							 &ivfpq_mirror_rows, IVFPQ_MIRROR_ROWS_AUTO,
							 mirror_rows_options, PGC_USERSET, 0,
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
							 "Selects how gpuvecd is run.",
							 "\"auto\" starts gpuvecd if there is a GPU, \"cuda\" always starts it, \"external\" uses a gpuvecd that was started otherwise, and \"off\" uses none.",
							 &ivfpq_server, IVFPQ_SERVER_AUTO, server_options,
							 context, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("gpuvec.server_path",
							   "Sets the path of the gpuvecd executable.",
							   "If empty, it is searched for near the library, in the directory of postgres, and in PATH.",
							   &ivfpq_server_path, "", PGC_SIGHUP, 0,
							   check_server_path, NULL, NULL);
	DefineCustomStringVariable("gpuvec.server_directory",
							   "Sets the directory of the socket of an external gpuvecd.",
							   "This applies only if \"gpuvec.server\" is \"external\".",
							   &ivfpq_server_directory, "", context, 0,
							   check_server_directory, NULL, NULL);
	DefineCustomStringVariable("gpuvec.server_owner",
							   "Sets the operating system user that runs an external gpuvecd.",
							   "This is a name or a number.  If empty, it is the user that runs the server.",
							   &ivfpq_server_owner, "", context, 0,
							   check_server_owner, NULL, NULL);
	DefineCustomIntVariable("gpuvec.gpu_memory",
							"Sets the maximum memory for mirrors on each GPU.",
							"0 means nine tenths of the GPU's memory.",
							&ivfpq_gpu_memory, 0, 0, INT_MAX, context,
							GUC_UNIT_MB, NULL, NULL, NULL);
	DefineCustomStringVariable("gpuvec.devices",
							   "Sets the GPUs that gpuvecd uses.",
							   "This is a comma-separated list of numbers.  If empty, gpuvecd uses all GPUs.",
							   &ivfpq_devices, "", context, 0, NULL, NULL,
							   NULL);
	DefineCustomIntVariable("gpuvec.replicas",
							"Sets the number of replicas of each mirror in gpuvecd.",
							"A replica is on one GPU or, in shards, on several.  A mirror has fewer replicas if GPUs lack memory.",
							&ivfpq_replicas, 1, 1, GV_MAX_DEVICES, context, 0,
							NULL, NULL, NULL);
	DefineCustomEnumVariable("gpuvec.matmul",
							 "Selects the implementation of matrix multiplication on GPUs.",
							 "\"own\" uses kernels of gpuvecd, \"cublas\" uses cuBLAS, and \"auto\" uses the faster one.",
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
							 "Selects the instructions of the CPU engine.",
							 "\"auto\" selects the best instructions of the processor.  Results do not depend on them.",
							 &ivfpq_simd, GV_SIMD_AUTO, simd_options,
							 PGC_USERSET, GUC_NOT_IN_SAMPLE, check_simd,
							 assign_simd, NULL);
#ifdef GV_TEST_BUILD
	DefineCustomStringVariable("gpuvec.fault",
							   "Sets the injection point at which a backend stops.",
							   NULL, &ivfpq_injection_point, NULL, PGC_SUSET,
							   GUC_NOT_IN_SAMPLE, NULL, assign_fault, NULL);
	DefineCustomIntVariable("gpuvec.fault_interval",
							"Sets the time between two automatic calibrations.",
							NULL, &ivfpq_calibrate_interval,
							IVFPQ_CALIBRATE_INTERVAL, 0, INT_MAX, PGC_SIGHUP,
							GUC_NOT_IN_SAMPLE | GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomRealVariable("gpuvec.fault_load",
							 "Sets the load of a processor that automatic calibration sees.",
							 "-1 means the load of the machine.",
							 &ivfpq_forced_load, -1, -1, 1000, PGC_SIGHUP,
							 GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
	/* counts down, so it shows how many allocations are left */
	DefineCustomIntVariable("gpuvec.fault_allocation",
							"Sets the number of the allocation that fails.",
							"0 means none.  A negative number applies to parallel workers only.",
							&gv_allocations.due, 0, -INT_MAX, INT_MAX,
							PGC_SUSET, GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
	DefineCustomBoolVariable("gpuvec.fault_after",
							 "Sets whether later allocations fail, too.", NULL,
							 &gv_allocations.after, false, PGC_SUSET,
							 GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
	DefineCustomIntVariable("gpuvec.fault_live",
							"Shows the number of allocations that the engine has not freed.", NULL,
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
	ivfpq_row_source = &ivfpq_rows_of_tables;
	ivfpq_ask_for_calibration = IvfpqAskForCalibration;
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
		IvfpqAutoCalibrateInit();
		IvfpqCountersInit();
	}
}
