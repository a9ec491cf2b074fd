/*
 * vectors.h
 *		The vector types of GCC and clang that body.h uses, and a list of what
 *		the file of a level has to define for body.h.
 *
 * Included by the file of a level, which before that defines these:
 *	LEVEL				the attribute of the level's functions
 *	KERNELS				the name of the level's table
 *	Reg, REG			a register of floats, and the number of its floats
 *	Keys				the same register, for abbreviated keys
 *	Mask				the result of comparing keys: a register of lanes that
 *						are all ones or all zeros or, with HAS_MASKS, a bit for
 *						each key
 *	Comparisons			the results of comparing floats, or their bits
 *	KeyBits				the masks of a block's keys, or their bits
 *	HAS_MASKS			defined if the level compares into bit masks, and loads
 *						by bit masks
 *	Entries				the entries of a sub-quantizer, ready for look-ups
 *	ESTIMATE_REGS		number of registers of centroids that estimates use at
 *						a time
 *	SUM_AT_ONCE			maximum number of postings whose entries are added up
 *						at a time; a multiple of GV_BLOCK
 * After the inclusion, the file of the level defines the primitives: the
 * operations that have no operator, or for which compilers find no good
 * instructions.  Then the file includes body.h.  On x86 it includes avx.h
 * instead, which defines some of the primitives and includes body.h.
 *
 *	add_lanes(sums)		adds up the lanes: lane l takes lane l + 8, then l + 4,
 *						l + 2, l + 1
 *	fuse(x, y, sum)		x y + sum, rounded once
 *	add_comparison(found, value, limit, h, at)
 *						compares register h of values with their limits, and
 *						adds the results to *found, which begins with zeros.  A
 *						result is whether the value is not above its limit or,
 *						if `at`, neither at nor above its limit.  It is true of
 *						NaN
 *	take_comparisons(found, n)
 *						a bit for each value of registers 0 .. n - 1; n is
 *						PARTS or a multiple of BLOCK_REGS
 *	load_doubles(x)		REG / 2 floats, as doubles
 *	load_bytes(bytes), load_halves(halves)
 *						sixteen bytes, or numbers in half precision, as floats
 *	load_rest(x, n), bytes_rest(bytes, n), halves_rest(halves, n)
 *						the first n < 16 floats, bytes or numbers in half
 *						precision, followed by zeros; with HAS_MASKS only
 *	lanes_rest(x, n)	the first n lanes, followed by zeros; with HAS_MASKS
 *						only
 *	load_words(words, dims, d)
 *						dimension d of all words [GV_CODEWORDS][dims]
 *	load_pairs(words, first, second)
 *						both dimensions of all words [GV_CODEWORDS][2]
 *	least_lane(x)		the least of the lanes, in all lanes of a register
 *	find_range, put_bytes, gather
 *						like the functions of portable.c with these names
 *	load_entries(entries)
 *						the entries of a sub-quantizer
 *	add_entries(sums, entries, codes, upper)
 *						looks up the entries of sixteen postings, by the low
 *						four bits of their codes or, if `upper`, by the high
 *						ones, and adds the entries to sums [PARTS]
 *	add_columns(sums, columns, n, bytes)
 *						adds the bytes of n <= 2 columns of codes to sums [4]
 *						of 16 bits, which begin with zero; the level decides
 *						where a posting's sum is.  The bytes for the low
 *						nibbles of the first column are at `bytes`, and those
 *						for its high nibbles at bytes + 64.  The bytes for the
 *						second column are 32 bytes further on
 *	drain(sums, total)	adds the sums of at most DRAIN columns to total
 *						[BLOCK_REGS]
 *	load_abbrevs(abbrevs, r, width)
 *						register r of a block's abbreviated keys; with
 *						HAS_MASKS only
 *	equal_abbrevs(a, b, width), not_above(a, b, width)
 *						which keys of a equal the keys of b, or are not above
 *						the keys of b; equal_abbrevs with HAS_MASKS only
 *	keep_mask(bits, mask, r, width)
 *						adds the mask of register r to *bits, which begins with
 *						zeros
 *	take_bits(bits, width)
 *						a bit for each key of a block, after the masks of all
 *						registers have been added
 *	find_abbrevs(wide, values, n)
 *						which of the abbreviated keys wide [GV_BLOCK] are among
 *						values [n], n >= 2, by a binary search for all keys
 *						side by side; each step halves the values that are left
 *
 * All functions that have vectors as arguments are always inlined, because
 * levels have no common ABI for vectors.
 */
#include <string.h>

#include "cpu/simd/kernels.h"

#define ALWAYS		inline __attribute__((always_inline))
#define OUTSIDE		__attribute__((noinline))	/* so that callers need no
												 * stack */
#define FILTERS		true
#define LANES		GV_CPU_LANES
#define LANES64		GV_CPU_LANES64
#define CENTS		GV_CPU_TILE_CENTS
#define PARTS		(LANES / REG)	/* registers of sixteen floats */
#define BLOCK_REGS	(GV_BLOCK / REG)	/* registers of a block's floats */
#define MULTIPLY_REGS	2		/* registers of centroids that products take
								 * at a time */
#define DRAIN		128			/* columns that 16-bit sums can take */

/*
 * Types of registers.  Those of floats and keys may be loaded from any
 * address.
 */
typedef Reg __attribute__((aligned(4), may_alias))
RegAt;
typedef Keys __attribute__((aligned(1), may_alias))
KeysAt;
typedef double __attribute__((vector_size(4 * REG)))
Reg64;
typedef int32_t __attribute__((vector_size(4 * REG)))
RegInt;
typedef uint8_t __attribute__((vector_size(4 * REG)))
Keys8;
typedef uint16_t __attribute__((vector_size(4 * REG)))
Keys16;
typedef uint32_t __attribute__((vector_size(4 * REG)))
Keys32;
typedef uint64_t __attribute__((vector_size(4 * REG)))
Keys64;

/*
 * Sixteen floats: the partial sums of a distance, or the entries of a
 * sub-quantizer.
 */
typedef struct Wide
{
	Reg			part[PARTS];
} Wide;

static ALWAYS LEVEL Reg
load_reg(const float *x)
{
	return *(const RegAt *) x;
}

static ALWAYS LEVEL void
store_reg(float *x, Reg reg)
{
	*(RegAt *) x = reg;
}

/*
 * Returns a register that has the value in each lane, even if the value is -0.
 */
static ALWAYS LEVEL Reg
spread_float(float value)
{
	Reg			none = {0};

	return value - none;
}

static ALWAYS LEVEL Wide
zero(void)
{
	Wide		wide = {{{0}}};

	return wide;
}

static ALWAYS LEVEL Wide
load(const float *x)
{
	Wide		wide;
	int			h;

	for (h = 0; h < PARTS; h++)
		wide.part[h] = load_reg(x + h * REG);
	return wide;
}

static ALWAYS LEVEL void
store(float *x, Wide wide)
{
	int			h;

	for (h = 0; h < PARTS; h++)
		store_reg(x + h * REG, wide.part[h]);
}

/* Number of registers that a block's abbreviated keys fill, at least 1. */
#define KEY_REGS(width)	((width) * GV_BLOCK / (4 * REG) > 1 ? \
						 (width) * GV_BLOCK / (4 * REG) : 1)

/* Returns a register that has the value in each lane. */
static ALWAYS LEVEL Keys
spread(uint64_t value, int width)
{
	Keys		none = {0};

	return width == 1 ? (Keys) ((Keys8) none + (uint8_t) value) :
		width == 2 ? (Keys) ((Keys16) none + (uint16_t) value) :
		width == 4 ? (Keys) ((Keys32) none + (uint32_t) value) :
		(Keys) ((Keys64) none + value);
}

#ifndef HAS_MASKS
static ALWAYS LEVEL Keys
load_abbrevs(const void *abbrevs, int r, int width)
{
	return *((const KeysAt *) abbrevs + r);
}

static ALWAYS LEVEL Mask
equal_abbrevs(Keys a, Keys b, int width)
{
	return width == 1 ? (Mask) ((Keys8) a == (Keys8) b) :
		width == 2 ? (Mask) ((Keys16) a == (Keys16) b) :
		width == 4 ? (Mask) ((Keys32) a == (Keys32) b) :
		(Mask) ((Keys64) a == (Keys64) b);
}
#endif
