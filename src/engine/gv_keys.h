/*
 * gv_keys.h
 *		The engine API's part for keys: the keys of a block's postings,
 *		conditions on keys, and the choice of an index's sample of blocks.
 *
 * Besides its codes a block may have the abbreviated keys of its postings,
 * stored columnwise: unsigned integers of 1, 2, 4 or 8 bytes.  Abbreviated
 * keys of ordered keys ascend as the values do; hashes only tell values apart;
 * signatures are sets of bits.  Callers compute abbreviated keys from values;
 * the engine compares them.
 *
 * An abbreviated key has less information than the value.  So a condition may
 * be true of an abbreviated key although the value does not satisfy the
 * condition, and callers then check the row.  A condition is never false of an
 * abbreviated key whose value satisfies it.
 *
 * A block's keys, 8-byte aligned:
 *	GvKeyHead [nkeys]
 *	abbrevs of key 0 [GV_BLOCK], abbrevs of key 1 [GV_BLOCK], ...
 *
 * A head summarizes one key of all postings.  The head may cover too much,
 * because it is not narrowed when a posting dies, but never too little.
 *
 * The sample consists of about one in GV_SAMPLED_ONE_OF of the blocks of an
 * index's lists.  Backends and engines all choose the same blocks.
 */
#ifndef GV_GV_KEYS_H
#define GV_GV_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define GV_MAX_KEYS		7
#define GV_MAX_TESTS	32		/* tests of a condition, at most */
#define GV_SAMPLED_ONE_OF	32	/* one block in this many is in the sample; a
								 * power of two */

typedef enum GvKeyKind
{
	GV_KEY_ORDERED = 1,
	GV_KEY_HASH,				/* values are only equal or not */
	GV_KEY_SIGNATURE			/* a set of bits */
} GvKeyKind;

/*
 * The keys that the blocks of an index have.  The struct travels in messages
 * and is compared by memcmp, so it has no holes.
 */
typedef struct GvKeyForm
{
	int32_t		nkeys;			/* 0 .. GV_MAX_KEYS */
	uint8_t		kind[GV_MAX_KEYS + 1];	/* GvKeyKind; 0 after the last key */
	uint8_t		width[GV_MAX_KEYS + 1]; /* bytes of an abbreviated key: 1, 2,
										 * 4 or 8; 0 after the last key */
} GvKeyForm;

static inline bool
gv_same_form(const GvKeyForm *a, const GvKeyForm *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

/*
 * Summary of one key over all postings of a block whose key is not NULL,
 * including dead postings.
 *	ordered keys	the least and the greatest key
 *	hashes			in `low`, bit (hash % 64) of each hash
 *	signatures		in `low`, the bits of all signatures
 * If the keys of all postings are NULL, `low` is above `high` for ordered
 * keys, and 0 for hashes and signatures.
 */
typedef struct GvKeyHead
{
	uint64_t	low;
	uint64_t	high;			/* 0 except for ordered keys */
	uint32_t	nulls;			/* bit i: posting i's key is NULL, and its
								 * abbreviated key is 0 */
	uint32_t	unused;			/* 0 */
} GvKeyHead;

/* Returns the offset of key k's abbreviated keys in a block's keys. */
static inline size_t
gv_keys_at(const GvKeyForm *form, int32_t k)
{
	size_t		at = sizeof(GvKeyHead) * (size_t) form->nkeys;

	while (--k >= 0)
		at += (size_t) 32 * form->width[k];
	return at;
}

/* Returns the bytes that the keys take in a block, a multiple of 8. */
static inline size_t
gv_keys_bytes(const GvKeyForm *form)
{
	return gv_keys_at(form, form->nkeys);
}

typedef enum GvTestKind
{
	GV_TEST_RANGE = 1,			/* low <= abbrev <= high */
	GV_TEST_SET,				/* abbrev is one of `values` */
	GV_TEST_ANY_BIT,			/* (abbrev & low) != 0 */
	GV_TEST_ALL_BITS,			/* (abbrev & low) == low */
	GV_TEST_NULL,				/* the key is NULL */
	GV_TEST_NOT_NULL
} GvTestKind;

/*
 * A test of one key.  If the key is NULL, only GV_TEST_NULL is true.  Hashes
 * are tested by GV_TEST_SET, or by GV_TEST_RANGE with low == high.  If low is
 * above high, GV_TEST_RANGE is never true.  Signatures are tested by
 * GV_TEST_ANY_BIT and GV_TEST_ALL_BITS, which are not for other keys.  All
 * keys may be tested for NULL.
 */
typedef struct GvKeyTest
{
	int32_t		key;
	GvTestKind	kind;
	uint64_t	low;			/* low and high fit into the key's `width`
								 * bytes */
	uint64_t	high;
	int32_t		nvalues;		/* >= 0 */
	const uint64_t *values;		/* [nvalues], ascending, without duplicates */
} GvKeyTest;

/* A conjunction: all tests must be true. */
typedef struct GvCondition
{
	GvKeyForm	form;
	int32_t		ntests;			/* 0 .. GV_MAX_TESTS */
	const GvKeyTest *tests;
} GvCondition;

/* Return whether a form or a condition meets the contract. */
extern bool gv_form_valid(const GvKeyForm *form);
extern bool gv_condition_valid(const GvCondition *condition);

/*
 * Returns false only if the heads in `keys` show that no posting of the block
 * satisfies the condition.
 */
extern bool gv_may_match(const GvCondition *condition, const void *keys);

/*
 * Tests all postings of a block with these keys.  Bit i of the result says
 * whether posting i satisfies the condition.  Bits of postings that do not
 * exist are undefined.
 */
extern uint32_t gv_match(const GvCondition *condition, const void *keys);

/* CUDA kernels call gv_sampled, too. */
#ifdef __CUDACC__
#define GV_SAMPLE_INLINE	static __host__ __device__ inline
#else
#define GV_SAMPLE_INLINE	static inline
#endif

/*
 * Returns whether a block of a list is in the sample.  Blocks of a list are
 * numbered from 0, the oldest.  Both numbers are hashed by the final step of
 * MurmurHash3, so that the sample does not follow any pattern of the lists.
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
