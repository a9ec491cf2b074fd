/*
 * settings.h
 *		The settings of gpuvecd, whether it is wanted, and what became of what
 *		it was asked.
 */
#ifndef IVFPQ_SETTINGS_H
#define IVFPQ_SETTINGS_H

/* Settings (gpuvec.c). */
typedef enum IvfpqEngineSetting
{
	IVFPQ_ENGINE_AUTO,			/* gpuvecd when it has a device */
	IVFPQ_ENGINE_CPU,			/* always in the session */
	IVFPQ_ENGINE_GPU			/* gpuvecd, be it the oracle */
} IvfpqEngineSetting;

typedef enum IvfpqServerSetting
{
	IVFPQ_SERVER_AUTO,			/* cuda if there is a device, else no server */
	IVFPQ_SERVER_CUDA,
	IVFPQ_SERVER_CPU,			/* the test build's: test/oracle */
	IVFPQ_SERVER_EXTERNAL,		/* others start it */
	IVFPQ_SERVER_OFF
} IvfpqServerSetting;

typedef enum IvfpqErrorSetting
{
	IVFPQ_ON_ERROR_FALLBACK,
	IVFPQ_ON_ERROR_ERROR
} IvfpqErrorSetting;

extern int	ivfpq_engine;
extern int	ivfpq_on_gpu_error;
extern int	ivfpq_request_timeout;	/* ms */
extern int	ivfpq_server_timeout;	/* ms */
extern bool ivfpq_auto_mirror;

typedef enum IvfpqMatmulSetting
{
	IVFPQ_MATMUL_AUTO,
	IVFPQ_MATMUL_OWN,
	IVFPQ_MATMUL_CUBLAS
} IvfpqMatmulSetting;

/* At server start only; they have their defaults without preloading. */
extern int	ivfpq_server;
extern int	ivfpq_gpu_memory;	/* MB, 0 = what the engine proposes */
extern char *ivfpq_devices;
extern int	ivfpq_replicas;		/* of a mirror, each on a device */
extern int	ivfpq_matmul;
extern int	ivfpq_simd;			/* a GvSimd, of sessions as well */

/* Of one that others start: its folder, and who runs it; empty: as we are. */
extern char *ivfpq_server_directory;
extern char *ivfpq_server_owner;

/* When it starts next; empty: where IvfpqFindProgram() finds it. */
extern char *ivfpq_server_path;

/*
 * A user by name or number, or who we are if it is empty; false: there is
 * none.  And whether the path of a socket in a folder is not too long.
 */
extern bool IvfpqFindUser(const char *name, uid_t *uid);
extern bool IvfpqFolderFits(const char *folder);

/*
 * The outcome of a search that gpuvecd might have done.  The names are
 * counters of gpuvec_stat.
 */
typedef enum IvfpqServed
{
	IVFPQ_SERVED,
	IVFPQ_NOT_ASKED,			/* engine, server or index are not for it */
	IVFPQ_DOWN,					/* it is not there */
	IVFPQ_SUSPENDED,			/* it did not answer a session in time */
	IVFPQ_NOT_MIRRORED,			/* it has no mirror of the index */
	IVFPQ_LOADING,				/* it has not all of it yet */
	IVFPQ_TIMED_OUT,
	IVFPQ_BROKEN,				/* the connection ended, or made no sense */
	IVFPQ_REFUSED,				/* version, connections, memory */
	IVFPQ_ENGINE_FAILED,
	IVFPQ_STALE					/* the mirror was too old to be of use */
} IvfpqServed;

#define IVFPQ_NSERVED	11

/* Returns whether gpuvecd, as it is or should be, is the engine of choice. */
extern bool IvfpqServerIsWanted(void);

/* Returns whether it is that, answers, and runs on a device. */
extern bool IvfpqServerHasDevice(void);

/*
 * Bytes that it said it has, on all its devices, or on the one that has most;
 * 0: it is not known.
 */
extern int64 IvfpqServerMemory(bool of_one);

/*
 * Count scans of an index for gpuvec_stat: rows that came out of
 * order, and whether one ended with a full pass.
 */
extern void IvfpqCountScans(int64 scans, int64 out_of_order, bool full_pass);

/* A cause in a word, as gpuvec_stat names it. */
extern const char *IvfpqServedName(IvfpqServed served);

#endif							/* IVFPQ_SETTINGS_H */
