/*
 * sort.c
 *		Sorting uint64 numbers, which stand for lists, pages or TIDs.
 *
 * To sort n numbers by comparisons takes log2(n) comparisons of each number,
 * and no processor can predict their results if the numbers are in random
 * order.  But the numbers of lists, of pages and of rows differ in only a few
 * of their bits.  A radix sort by these bits takes a third of the time of a
 * comparison sort for some hundred numbers.  A search sorts some hundred
 * numbers four times (IvfpqSortNumbers); other callers sort very many numbers
 * (IvfpqSortBits).
 */
#include "postgres.h"

#include "page/sort.h"

/* qsort with inlined comparisons */
#define ST_SORT sort_numbers
#define ST_ELEMENT_TYPE uint64
#define ST_COMPARE(a, b) (*(a) < *(b) ? -1 : *(a) > *(b))
#define ST_SCOPE static
#define ST_DEFINE
#include "lib/sort_template.h"

/*
 * IvfpqSortNumbers sorts by bytes if there are LEAST_BY_BYTES to MOST_BY_BYTES
 * numbers and they differ in no more than MOST_BYTES of their bytes.
 */
#define LEAST_BY_BYTES	20
#define MOST_BY_BYTES	512
#define MOST_BYTES		3

/* Number of bits of a digit when very many numbers are sorted. */
#define MOST_DIGIT_BITS	11

/* Compares two uint64, for qsort. */
int
IvfpqCompareNumbers(const void *a, const void *b)
{
	uint64		x = *(const uint64 *) a;
	uint64		y = *(const uint64 *) b;

	return (x > y) - (x < y);
}

/*
 * Sorts numbers [n] by their bits from `bit` on, one digit of digit_bits bits
 * after another, beginning with the lowest digit.  `varying` has the bits in
 * which the numbers differ; digits that have none of these bits are skipped.
 * scratch [n] is overwritten.
 */
static pg_attribute_always_inline void
sort_digits(uint64 *numbers, uint64 *scratch, int64 n, int bit, int digit_bits,
			uint64 varying)
{
	int64		places[1 << MOST_DIGIT_BITS];	/* 2^digit_bits in use */
	const uint64 mask = (UINT64CONST(1) << digit_bits) - 1;
	uint64	   *from = numbers;
	uint64	   *to = scratch;

	for (; bit < 64; bit += digit_bits)
	{
		uint64	   *sorted = to;
		int64		next = 0;

		if ((varying >> bit & mask) == 0)
			continue;

		/* numbers with the same digit keep their order */
		memset(places, 0, sizeof(int64) << digit_bits);
		for (int64 i = 0; i < n; i++)
			places[from[i] >> bit & mask]++;
		for (uint64 digit = 0; digit <= mask; digit++)
		{
			int64		count = places[digit];

			places[digit] = next;
			next += count;
		}
		for (int64 i = 0; i < n; i++)
			to[places[from[i] >> bit & mask]++] = from[i];
		to = from;
		from = sorted;
	}
	if (from != numbers)
		memcpy(numbers, from, n * sizeof(uint64));
}

/* Returns a mask of the bits in which numbers [n] differ. */
static uint64
varying_bits(const uint64 *numbers, int64 n)
{
	uint64		varying = 0;

	for (int64 i = 1; i < n; i++)
		varying |= numbers[i] ^ numbers[0];
	return varying;
}

/* Sorts numbers [n] in ascending order. */
void
IvfpqSortNumbers(uint64 *numbers, Size n)
{
	if (n >= LEAST_BY_BYTES && n <= MOST_BY_BYTES)
	{
		uint64		scratch[MOST_BY_BYTES];
		uint64		varying = varying_bits(numbers, n);
		int			nbytes = 0;

		for (uint64 left = varying; left != 0; left >>= 8)
			nbytes += (left & 0xFF) != 0;
		if (nbytes <= MOST_BYTES)
		{
			sort_digits(numbers, scratch, n, 0, 8, varying);
			return;
		}
	}
	sort_numbers(numbers, n);
}

/*
 * Sorts very many numbers [n] by their bits from `bit` on.  Numbers that are
 * equal in these bits keep their order.  scratch [n] is overwritten.
 */
void
IvfpqSortBits(uint64 *numbers, uint64 *scratch, int64 n, int bit)
{
	sort_digits(numbers, scratch, n, bit, MOST_DIGIT_BITS,
				varying_bits(numbers, n));
}
