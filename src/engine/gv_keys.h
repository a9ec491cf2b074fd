/*
 * gv_keys.h
 *		The engine API's part for keys: conditions that postings of a block
 *		satisfy.
 *
 * Besides its codes a block may have, columnwise, each posting's abbreviated
 * keys: unsigned integers of 1, 2, 4 or 8 bytes.  Those of ordered keys ascend
 * as the values do; hashes only tell values apart; signatures are sets of
 * bits.  Callers make abbreviated keys of values; the engine compares them.
 *
 * A condition may be true of abbreviated keys whose values do not satisfy it,
 * because they say less than values; callers then check the row.  It is never
 * false of one whose value satisfies it.
 *
 * A block's keys, 8-byte aligned:
 *		GvKeyHead [nkeys]
 *		abbrevs of key 0 [GV_BLOCK], abbrevs of key 1 [GV_BLOCK], ...
 *
 * A head sums up its key.  It may say too much, since it is not narrowed when
 * a posting dies; never too little.
 */
#ifndef GV_GV_KEYS_H
#define GV_GV_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define GV_MAX_KEYS		7
#define GV_MAX_TESTS	32		/* of a condition */

typedef enum GvKeyKind
{
	GV_KEY_ORDERED = 1,
	GV_KEY_HASH,				/* equal or not */
	GV_KEY_SIGNATURE			/* a set of bits */
} GvKeyKind;

/* Which keys the blocks of an index have.  It travels, so it has no holes. */
typedef struct GvKeyForm
{
	int32_t		nkeys;			/* 0 .. GV_MAX_KEYS */
	uint8_t		kind[GV_MAX_KEYS + 1];	/* GvKeyKind; 0 = no more */
	uint8_t		width[GV_MAX_KEYS + 1]; /* bytes of an abbreviated key: 1, 2,
										 * 4 or 8; 0 = no more */
} GvKeyForm;

static inline bool
gv_same_form(const GvKeyForm *a, const GvKeyForm *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

/*
 * Sums up one key of all postings of a block, dead ones included, whose key is
 * not NULL: of an ordered key the least and greatest; of hashes, in `low`, one
 * bit for each: number (hash % 64); of signatures, in `low`, all their bits.
 * Without such a posting `low` is above `high`, or 0.
 */
typedef struct GvKeyHead
{
	uint64_t	low;
	uint64_t	high;			/* 0 but for ordered keys */
	uint32_t	nulls;			/* bit i: posting i's key is NULL, abbreviated
								 * to 0 */
	uint32_t	unused;			/* 0 */
} GvKeyHead;

/* Bytes that keys take in a block; a multiple of 8. */
static inline size_t
gv_keys_bytes(const GvKeyForm *form)
{
	size_t		bytes = sizeof(GvKeyHead) * (size_t) form->nkeys;

	for (int32_t k = 0; k < form->nkeys; k++)
		bytes += (size_t) 32 * form->width[k];
	return bytes;
}

/* Returns where key k's abbreviated keys begin. */
static inline size_t
gv_keys_at(const GvKeyForm *form, int32_t k)
{
	size_t		at = sizeof(GvKeyHead) * (size_t) form->nkeys;

	while (--k >= 0)
		at += (size_t) 32 * form->width[k];
	return at;
}

typedef enum GvTestKind
{
	GV_TEST_RANGE = 1,			/* low <= abbrev <= high */
	GV_TEST_SET,				/* abbrev is one of values, ascending */
	GV_TEST_ANY_BIT,			/* (abbrev & low) != 0 */
	GV_TEST_ALL_BITS,			/* (abbrev & low) == low */
	GV_TEST_NULL,				/* the key is NULL */
	GV_TEST_NOT_NULL
} GvTestKind;

/*
 * A test of one key.  All but GV_TEST_NULL are false of NULL.  Hashes are
 * tested by GV_TEST_SET, or by GV_TEST_RANGE with low == high; a range with
 * low above high is true of nothing.  Tests of bits are for signatures, and
 * they have no others but those of NULL.
 */
typedef struct GvKeyTest
{
	int32_t		key;
	GvTestKind	kind;
	uint64_t	low;			/* no more than `width` bytes of the key hold */
	uint64_t	high;
	int32_t		nvalues;		/* >= 0 */
	const uint64_t *values;		/* [nvalues], ascending, none twice */
} GvKeyTest;

/* All of these tests. */
typedef struct GvCondition
{
	GvKeyForm	form;
	int32_t		ntests;			/* 0 .. GV_MAX_TESTS */
	const GvKeyTest *tests;
} GvCondition;

/*
 * gv_form_valid, gv_condition_valid: return whether it is within the contract.
 *
 * gv_may_match: false only where heads [nkeys] show that no posting of the
 * block satisfies the condition.
 *
 * gv_match: bit i: posting i of a block with these keys satisfies the
 * condition.  Bits of postings that are not there are undefined.
 */
extern bool gv_form_valid(const GvKeyForm *form);
extern bool gv_condition_valid(const GvCondition *condition);
extern bool gv_may_match(const GvCondition *condition, const void *keys);
extern uint32_t gv_match(const GvCondition *condition, const void *keys);

/* ----
 * Which blocks of an index's lists are its sample: one of
 * GV_SAMPLED_ONE_OF, the same for all that ask, backends and engines.
 */

#define GV_SAMPLED_ONE_OF	32	/* a power of two */

/* Kernels ask, too. */
#ifdef __CUDACC__
#define GV_SAMPLE_INLINE	static __host__ __device__ inline
#else
#define GV_SAMPLE_INLINE	static inline
#endif

/*
 * Is a block of a list one of the sample?  Blocks of a list are numbered from
 * 0, the oldest.  A hash (the end of MurmurHash3) of both numbers, so that no
 * pattern of lists is taken.
 */
GV_SAMPLE_INLINE bool
gv_sampled(uint32_t list, uint32_t block)
{
	uint32_t	hash = list ^ block * UINT32_C(0x9E3779B1);

	hash ^= hash >> 16;
	hash *= UINT32_C(0x85EBCA6B);
	hash ^= hash >> 13;
	hash *= UINT32_C(0xC2B2AE35);
	hash ^= hash >> 16;
	return hash % GV_SAMPLED_ONE_OF == 0;
}

#endif							/* GV_GV_KEYS_H */
