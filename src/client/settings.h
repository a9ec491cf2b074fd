/*
 * settings.h
 *		The settings of gpuvecd, functions that say whether to use gpuvecd, and
 *		the outcomes of requests to gpuvecd.
 *
 * Without preloading there is no gpuvecd, but the functions here may be
 * called.
 */
#ifndef IVFPQ_SETTINGS_H
#define IVFPQ_SETTINGS_H

typedef enum IvfpqEngineSetting
{
	IVFPQ_ENGINE_AUTO,			/* gpuvecd if it has a device */
	IVFPQ_ENGINE_CPU,			/* always the session itself */
	IVFPQ_ENGINE_GPU			/* gpuvecd, even if it has no device */
} IvfpqEngineSetting;

typedef enum IvfpqServerSetting
{
	IVFPQ_SERVER_AUTO,			/* cuda if there is a device, else off */
	IVFPQ_SERVER_CUDA,
	IVFPQ_SERVER_CPU,			/* test/oracle, in the test build only */
	IVFPQ_SERVER_EXTERNAL,		/* PostgreSQL does not start gpuvecd */
	IVFPQ_SERVER_OFF
} IvfpqServerSetting;

typedef enum IvfpqErrorSetting
{
	IVFPQ_ON_ERROR_FALLBACK,
	IVFPQ_ON_ERROR_ERROR
} IvfpqErrorSetting;

/* When a mirror stores the vectors of the table, too. */
typedef enum IvfpqMirrorRowsSetting
{
	IVFPQ_MIRROR_ROWS_AUTO,		/* if memory for them is free */
	IVFPQ_MIRROR_ROWS_ON,		/* also if others have to be evicted */
	IVFPQ_MIRROR_ROWS_OFF
} IvfpqMirrorRowsSetting;

typedef enum IvfpqMatmulSetting
{
	IVFPQ_MATMUL_AUTO,
	IVFPQ_MATMUL_OWN,
	IVFPQ_MATMUL_CUBLAS
} IvfpqMatmulSetting;

/* Settings of a session (gpuvec.c). */
extern int	ivfpq_engine;
extern int	ivfpq_on_gpu_error;
extern int	ivfpq_request_timeout;	/* ms */
extern int	ivfpq_server_timeout;	/* ms */
extern bool ivfpq_auto_mirror;
extern int	ivfpq_mirror_rows;

/* Settings fixed at server start; without preloading, the defaults. */
extern int	ivfpq_server;
extern int	ivfpq_gpu_memory;	/* MB, 0 = what the engine proposes */
extern char *ivfpq_devices;
extern int	ivfpq_replicas;		/* number of replicas of a mirror, each on
								 * other devices */
extern int	ivfpq_matmul;
extern int	ivfpq_simd;			/* a GvSimd, for gpuvecd and for sessions */

/*
 * If gpuvec.server is "external", the folder of the socket and the user that
 * runs gpuvecd.  An empty name means the server's own user.
 */
extern char *ivfpq_server_directory;
extern char *ivfpq_server_owner;

/*
 * Path of the program gpuvecd, for its next start.  If the path is empty, the
 * supervisor looks for the program (find_program in supervisor.c).
 */
extern char *ivfpq_server_path;

/* The outcome of a request to gpuvecd; gpuvec_stat counts searches by it. */
typedef enum IvfpqOutcome
{
	IVFPQ_ANSWERED,
	IVFPQ_NOT_ASKED,			/* because of the settings or the index */
	IVFPQ_DOWN,					/* gpuvecd is not running */
	IVFPQ_SUSPENDED,			/* gpuvecd did not answer sessions in time */
	IVFPQ_NOT_MIRRORED,			/* gpuvecd has no mirror of the index */
	IVFPQ_LOADING,				/* the mirror is not complete yet */
	IVFPQ_TIMED_OUT,
	IVFPQ_BROKEN,				/* the connection ended, or an answer was
								 * invalid */
	IVFPQ_REFUSED,				/* gpuvecd refused: wrong protocol version,
								 * too many connections, or too little memory */
	IVFPQ_ENGINE_FAILED,
	IVFPQ_STALE					/* the mirror's answer was too old to use */
} IvfpqOutcome;

#define IVFPQ_NOUTCOMES	11

/* for the check hooks of settings (serverconn.c) */
extern bool IvfpqFindUser(const char *name, uid_t *uid);
extern bool IvfpqFolderFits(const char *folder);

/* the choice between gpuvecd and the session (servershared.c) */
extern bool IvfpqServerIsWanted(void);
extern bool IvfpqServerHasDevice(void);
extern int64 IvfpqServerMemory(bool of_one);

/* statistics (servershared.c) */
extern void IvfpqCountScans(int64 scans, int64 out_of_order, bool full_pass);
extern const char *IvfpqOutcomeName(IvfpqOutcome served);

#endif							/* IVFPQ_SETTINGS_H */
