/*
 * bench.h
 *		What the files of the scanner benchmark share.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdio.h>
#include <stdlib.h>

#include "../measure.h"
#include "engine/mirror/gv_mirror.h"
#include "protocol/gv_protocol.h"

#define BENCH_QUERIES	10000	/* at most */
#define BENCH_K			10		/* of recall */

/* A refine record: what its address is, whose it is, how far off it may be. */
typedef struct BenchRecord
{
	uint64_t	address;
	uint64_t	rowid;
	float		error;
} BenchRecord;

/* The objects measured: an engine's copy of a mirror, and queries for it. */
typedef struct Bench
{
	GvMirrorStatus status;		/* of gpuvecd's mirror */
	GvMirrorSpec spec;
	GvMirror   *mirror;
	GvSearcher *searcher;
	GvModel		model;			/* mean and scale from bench_fit only */
	float	   *centroids;		/* [nlists][dims] */
	BenchRecord *records;		/* [nrecords], ascending by address */
	int64_t		nrecords;
	float	   *queries;		/* [nqueries][dims], transformed */
	int32_t		nqueries;
} Bench;

/* The rows of the index's table, and which of them are right answers. */
typedef struct BenchTruth
{
	int32_t		width;			/* of truth */
	int32_t    *ground_truth;			/* [nqueries][width], row numbers */
	uint64_t   *rowids;			/* [nrows], ascending */
	int32_t    *rows;			/* [nrows], the row number of each */
	int64_t		nrows;
} BenchTruth;

static inline uint64_t
bench_id(const uint16_t *words)
{
	return (uint64_t) words[0] << 32 | (uint64_t) words[1] << 16 | words[2];
}

/* copy.c: all of these end the program when they fail */
extern void bench_fail(const char *what);
extern void bench_connect(const char *datadir);
extern void bench_copy(Bench *bench, uint32_t index);
extern float *bench_decode(const Bench *bench, const BenchRecord *records,
						   int32_t n);

/* data.c */
extern void bench_read_rows(BenchTruth *truth, const char *file);
extern void bench_read_queries(Bench *bench, BenchTruth *truth,
							   const char *set);
extern const BenchRecord *bench_record(const Bench *bench, uint64_t address);
extern int32_t bench_row(const BenchTruth *truth, uint64_t rowid);

#endif							/* BENCH_H */
