/*
 * fuzz.h
 *		What a fuzz target gives, and how it says that it found a fault.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* libFuzzer's entry, which replay.c calls as well. */
extern int	LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/*
 * Hand inputs to begin with to `keep`, each with a name; replay.c writes them
 * to files.
 */
typedef void (*FuzzKeep) (const char *name, const void *data, size_t size);
extern void fuzz_seeds(FuzzKeep keep);

/*
 * How far the last input came: how many of its messages were taken, or 1 where
 * there is nothing to count.  replay.c wants 1, or what stands behind an @ in the
 * file's name: an input that no longer comes so far tests nothing.
 */
extern int	fuzz_taken(void);

/* A fault: both libFuzzer and replay.c take the end for one. */
#define FAULT(...) \
	do { \
		fprintf(stderr, "FAULT %s:%d: ", __func__, __LINE__); \
		fprintf(stderr, __VA_ARGS__); \
		fprintf(stderr, "\n"); \
		abort(); \
	} while (0)

/* A function that is linked and not reached, and one that does nothing here. */
#define UNREACHED(...) __VA_ARGS__ { FAULT("it is called"); }
#define NO_OP(...) __VA_ARGS__ {}

#endif							/* FUZZ_H */
