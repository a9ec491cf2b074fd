/*
 * radix.c
 *		Very many numbers sorted by some of their bits, digit by digit.
 *
 * Comparisons of numbers in no order are such as no processor predicts, and of
 * a hundred thousand each takes part in 17.
 */
#include "postgres.h"

#include "am/search/search.h"

#define DIGIT_BITS	11
#define DIGITS		(1 << DIGIT_BITS)

#define DIGIT(number, bit)	((number) >> (bit) & (DIGITS - 1))

/* Numbers `from` [n] to where they belong by a digit, equal ones as they come. */
static void
sort_digit(const uint64 *from, uint64 *to, int64 n, int bit)
{
	int64		places[DIGITS] = {0};
	int64		next = 0;

	for (int64 i = 0; i < n; i++)
		places[DIGIT(from[i], bit)]++;
	for (int digit = 0; digit < DIGITS; digit++)
	{
		int64		count = places[digit];

		places[digit] = next;
		next += count;
	}
	for (int64 i = 0; i < n; i++)
		to[places[DIGIT(from[i], bit)]++] = from[i];
}

/*
 * Sort numbers [n] by their bits from number `bit` on; those that are equal in
 * these stay in their order.  room [n] is overwritten.
 */
void
IvfpqSortBits(uint64 *numbers, uint64 *room, int64 n, int bit)
{
	uint64	   *from = numbers;
	uint64	   *to = room;
	uint64		varying = 0;

	for (int64 i = 1; i < n; i++)
		varying |= numbers[i] ^ numbers[0];
	for (; bit < 64; bit += DIGIT_BITS)
		if (DIGIT(varying, bit) != 0)
		{
			uint64	   *sorted = to;

			sort_digit(from, to, n, bit);
			to = from;
			from = sorted;
		}
	if (from != numbers)
		memcpy(numbers, from, n * sizeof(uint64));
}
