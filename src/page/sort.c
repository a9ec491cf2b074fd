/*
 * sort.c
 *		Numbers of lists, of pages, of rows in order: some hundred, which a
 *		search sorts four times, or very many.
 *
 * Comparisons of numbers in no order are such as no processor predicts, and of
 * a hundred thousand each takes part in 17.  But such numbers differ in few of
 * their bits, by which some hundred are sorted in a third of the time.
 */
#include "postgres.h"

#include "page/page.h"

/* qsort, with comparisons that are no calls */
#define ST_SORT sort_numbers
#define ST_ELEMENT_TYPE uint64
#define ST_COMPARE(a, b) (*(a) < *(b) ? -1 : *(a) > *(b))
#define ST_SCOPE static
#define ST_DEFINE
#include "lib/sort_template.h"

/* Limits of the numbers sorted by bytes, where no more of these differ. */
#define LEAST_BY_BYTES	20
#define MOST_BY_BYTES	512
#define MOST_BYTES		3

#define MOST_DIGIT_BITS	11		/* of very many numbers' digits */

/* See page.h. */
int
IvfpqCompareNumbers(const void *a, const void *b)
{
	uint64		x = *(const uint64 *) a;
	uint64		y = *(const uint64 *) b;

	return (x > y) - (x < y);
}

/*
 * Numbers `from` [n] to where they belong by a digit, equal ones as they come.
 */
static pg_attribute_always_inline void
sort_digit(const uint64 *from, uint64 *to, int64 n, int bit, int digit_bits)
{
	int64		places[1 << MOST_DIGIT_BITS];	/* the first 2^digit_bits */
	const uint64 mask = (UINT64CONST(1) << digit_bits) - 1;
	int64		next = 0;

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
}

/*
 * Sort numbers [n] by their bits from number `bit` on, digit by digit, the
 * last one first, of which those that do not vary are passed over; scratch [n]
 * is overwritten.
 */
static pg_attribute_always_inline void
sort_digits(uint64 *numbers, uint64 *scratch, int64 n, int bit, int digit_bits,
			uint64 varying)
{
	uint64	   *from = numbers;
	uint64	   *to = scratch;

	for (; bit < 64; bit += digit_bits)
		if ((varying >> bit & ((UINT64CONST(1) << digit_bits) - 1)) != 0)
		{
			uint64	   *sorted = to;

			sort_digit(from, to, n, bit, digit_bits);
			to = from;
			from = sorted;
		}
	if (from != numbers)
		memcpy(numbers, from, n * sizeof(uint64));
}

/* The bits in which numbers [n] differ. */
static uint64
varying_bits(const uint64 *numbers, int64 n)
{
	uint64		varying = 0;

	for (int64 i = 1; i < n; i++)
		varying |= numbers[i] ^ numbers[0];
	return varying;
}

/*
 * Sort numbers [n], of which there are very many, by their bits from number
 * `bit` on; those that are equal in these stay in their order.  scratch [n] is
 * overwritten.
 */
void
IvfpqSortBits(uint64 *numbers, uint64 *scratch, int64 n, int bit)
{
	sort_digits(numbers, scratch, n, bit, MOST_DIGIT_BITS,
				varying_bits(numbers, n));
}

/* In how many bytes do numbers differ, as `varying` has it? */
static int
count_bytes(uint64 varying)
{
	int			count = 0;

	for (; varying != 0; varying >>= 8)
		count += (varying & 0xFF) != 0;
	return count;
}

/* Sort numbers [n]. */
void
IvfpqSortNumbers(uint64 *numbers, Size n)
{
	if (n >= LEAST_BY_BYTES && n <= MOST_BY_BYTES)
	{
		uint64		scratch[MOST_BY_BYTES];
		uint64		varying = varying_bits(numbers, n);

		if (count_bytes(varying) <= MOST_BYTES)
		{
			sort_digits(numbers, scratch, n, 0, 8, varying);
			return;
		}
	}
	sort_numbers(numbers, n);
}
