/*
 * client.h
 *		PostgreSQL's side of gpuvecd: who starts it, who talks to it, who brings
 *		it mirrors, and what all processes know of it.
 *
 * Nothing here is needed to answer a query: whatever goes wrong, the session's
 * own engine answers.  No function waits for gpuvecd with a lock of a relation
 * or a page held that the session did not hold before.
 */
#ifndef IVFPQ_CLIENT_H
#define IVFPQ_CLIENT_H

#include "port/atomics.h"
#include "utils/rel.h"

#include "engine/gv_set.h"
#include "engine/mirror/gv_builder.h"
#include "page/page.h"
#include "protocol/gv_protocol.h"

/* Settings (gpuvec.c). */
typedef enum IvfpqEngineSetting
{
	IVFPQ_ENGINE_AUTO,			/* gpuvecd when it has a card */
	IVFPQ_ENGINE_CPU,			/* always in the session */
	IVFPQ_ENGINE_GPU			/* gpuvecd whatever it runs */
} IvfpqEngineSetting;

typedef enum IvfpqServerSetting
{
	IVFPQ_SERVER_AUTO,			/* cuda if there is a card, else no server */
	IVFPQ_SERVER_CUDA,
	IVFPQ_SERVER_CPU,
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

/* At server start only; they have their defaults without preloading. */
extern int	ivfpq_server;
extern int	ivfpq_gpu_memory;	/* MB, 0 = what the engine proposes */
extern char *ivfpq_devices;
extern int	ivfpq_simd;			/* a GvSimd, of sessions as well */

/*
 * What became of a search that gpuvecd might have done.  The names are
 * counters of gpuvec_stat.
 */
typedef enum IvfpqServed
{
	IVFPQ_SERVED,
	IVFPQ_NOT_ASKED,			/* engine, server or index are not for it */
	IVFPQ_DOWN,					/* it is not there */
	IVFPQ_SUSPENDED,			/* it did not answer somebody in time */
	IVFPQ_NOT_MIRRORED,			/* it has no mirror of the index */
	IVFPQ_LOADING,				/* it has not all of it yet */
	IVFPQ_TIMED_OUT,
	IVFPQ_BROKEN,				/* the connection ended, or made no sense */
	IVFPQ_REFUSED,				/* version, connections, memory */
	IVFPQ_ENGINE_FAILED,
	IVFPQ_STALE					/* the mirror was too old to be of use */
} IvfpqServed;

#define IVFPQ_NSERVED	11

/* state.c: for _PG_init, while the library is preloaded. */
extern void IvfpqClientInit(void);

/*
 * ask.c: a search.  Pointers are good until the next one.
 */
typedef struct IvfpqAnswer
{
	GvSearchReply head;
	const char *engine;			/* gpuvecd's: "cpu", "cuda" */
	const GvProbeReply *probed; /* [head.nprobed] */
	const GvHit *hits;			/* [head.nhits] ascending by (S, row id);
								 * their probes are in range */
	const GvBound *bounds;		/* [head.nhits], or NULL of an index without
								 * refine records */
} IvfpqAnswer;

extern IvfpqServed IvfpqAskSearch(Relation index, const IvfpqMetaData *meta,
								  const float *query, int probes, int compare,
								  int capacity, IvfpqAnswer *answer);
extern void IvfpqAskStale(Relation index, const IvfpqMetaData *meta,
						  bool useless);
extern GvMirrorKey IvfpqMirrorKey(Relation index, const IvfpqMetaData *meta);
extern bool IvfpqCanMirror(Relation index, const IvfpqMetaData *meta);

/* Is gpuvecd, as it is or should be, the engine of choice? */
extern bool IvfpqServerIsWanted(void);

/* Bytes that it said it has, on all its devices; 0: it is not known. */
extern int64 IvfpqServerMemory(void);

/* A cause in a word, as gpuvec_stat names it. */
extern const char *IvfpqServedName(IvfpqServed served);

/* wait.c: for gpuvec_prewarm */
extern int64 IvfpqPrewarm(const GvMirrorKey *key);

/*
 * remotebuild.c, buildopen.c: gpuvecd trains an index and encodes its
 * rows.  Functions that return false have failed for the rest of the build.
 * Encoded rows go to the sink in the order in which they were added.
 */
typedef struct IvfpqBuilder IvfpqBuilder;

/* What others need to join a build. */
typedef struct IvfpqTicket
{
	uint64		id;				/* in gpuvecd */
	GvBuilderSpec spec;
	GvTrained	trained;		/* nlists 0: not yet */
} IvfpqTicket;

/*
 * What participants of a build share, in memory that all of them see
 * (buildjoin.c).
 */
typedef struct IvfpqSharing
{
	IvfpqTicket ticket;
	pg_atomic_uint32 failed;	/* 1: it did not do all for somebody */
	pg_atomic_uint64 next;		/* row of the sample that nobody has claimed */
	int64		nsample;
	bool		recovering;		/* a pass is for the rows below only, else for
								 * all others */
	int64		npassed;
	uint64		ids[FLEXIBLE_ARRAY_MEMBER]; /* [nsample] TIDs of the sample, in
											 * its order; [nsample], of which
											 * npassed, ascending; then a flag
											 * for each batch */
} IvfpqSharing;

extern Size IvfpqSharingSize(const IvfpqBuilder *builder);
extern void IvfpqSharingInit(IvfpqSharing *sharing, IvfpqBuilder *builder);
extern bool IvfpqSharingWants(const IvfpqSharing *sharing, uint64 id,
							  int64 *at);
extern bool IvfpqSharingRecover(IvfpqSharing *sharing);

typedef void (*IvfpqEncodedSink) (void *arg, const uint64 *ids,
								  const GvEncoded *encoded, int n);

extern IvfpqBuilder *IvfpqBuilderBegin(Relation index,
									   const GvBuilderSpec *spec,
									   const float *mean);
extern IvfpqTicket IvfpqBuilderTicket(const IvfpqBuilder *builder);
extern IvfpqBuilder *IvfpqBuilderJoin(const IvfpqTicket *ticket,
									  IvfpqSharing *sharing);
extern bool IvfpqBuilderIsOpen(const IvfpqBuilder *builder);
extern void IvfpqBuilderSample(IvfpqBuilder *builder, uint64 *ids);
extern void IvfpqBuilderSampled(IvfpqBuilder *builder, const uint64 *ids,
								int64 n);
extern bool IvfpqBuilderTrainOn(IvfpqBuilder *builder, GvRows kind,
								const float *rows, const uint64 *ids,
								int64 n);
extern bool IvfpqBuilderTrainEnd(IvfpqBuilder *builder, GvRows kind);
extern bool IvfpqBuilderTrain(IvfpqBuilder *builder, GvTrained *trained);
extern bool IvfpqBuilderArray(IvfpqBuilder *builder, GvArray array,
							  void *values);
extern void IvfpqBuilderTo(IvfpqBuilder *builder, IvfpqEncodedSink sink,
						   void *sink_arg);
extern bool IvfpqBuilderAdd(IvfpqBuilder *builder, const float *row,
							uint64 id);
extern bool IvfpqBuilderFlush(IvfpqBuilder *builder);
extern bool IvfpqBuilderUnanswered(IvfpqBuilder *builder,
								   const float **rows, const uint64 **ids,
								   int *n);
extern bool IvfpqBuilderTrial(IvfpqBuilder *builder, int64 copies);
extern bool IvfpqBuilderPieces(IvfpqBuilder *builder, const char *message,
							   Size bytes);
extern bool IvfpqBuilderTry(IvfpqBuilder *builder,
							const GvTryRequest *request, const float *queries,
							Size bytes, const int32 **nhits,
							const char **rowids);
extern const char *IvfpqBuilderReason(const IvfpqBuilder *builder);
extern void IvfpqBuilderFailed(Relation index, const char *reason,
							   bool partly);
extern void IvfpqBuilderLose(IvfpqBuilder *builder, const char *reason);
extern void IvfpqBuilderEnd(IvfpqBuilder *builder);

/*
 * remoteset.c: gpuvecd does what gv_set.h describes; inputs and outputs
 * are as there, of any length.  NULL: it is not to be asked, or cannot.
 * Functions that return false have failed for good, and _Reason says why: the
 * caller starts anew with his own engine, and ends the set in any case.  With
 * gpuvec.on_gpu_error = error, all this is an error instead where gpuvecd
 * should have done it.  The set lives in the context in which it was begun,
 * which ends it as well.  While it waits it heeds interrupts.
 */
typedef struct IvfpqRemoteSet IvfpqRemoteSet;

extern IvfpqRemoteSet *IvfpqRemoteSetBegin(const GvSetSpec *spec);
extern bool IvfpqRemoteSetPut(IvfpqRemoteSet *set, GvSetInput input,
							  const void *items, int64 n);
extern bool IvfpqRemoteSetRun(IvfpqRemoteSet *set, GvSetDone *done);
extern bool IvfpqRemoteSetGet(IvfpqRemoteSet *set, GvSetOutput output,
							  int64 first, int64 n, void *items);
extern void IvfpqRemoteSetEnd(IvfpqRemoteSet *set);
extern const char *IvfpqRemoteSetReason(const IvfpqRemoteSet *set);

/*
 * readmirror.c: what gpuvecd holds of an index, for checks.
 */
typedef struct IvfpqMirrorPieces
{
	const char *next;			/* a GvPiece and its arrays */
	const char *end;
	int32		code_bytes;
} IvfpqMirrorPieces;

extern IvfpqServed IvfpqMirrorRead(Relation index, const IvfpqMetaData *meta,
								   int first, int count, int block,
								   IvfpqMirrorPieces *pieces,
								   const char **reason);
extern IvfpqServed IvfpqMirrorValues(Relation index, const IvfpqMetaData *meta,
									 GvArray array, int64 first, int64 count,
									 const char **values, const char **reason);
extern IvfpqServed IvfpqMirrorRecords(Relation index,
									  const IvfpqMetaData *meta,
									  const ItemPointerData *addresses, int n,
									  const char **items, const char **reason);
extern bool IvfpqMirrorNext(IvfpqMirrorPieces *pieces, GvListPiece *piece,
							GvListState *state);

#endif							/* IVFPQ_CLIENT_H */
