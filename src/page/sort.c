/*
 * sort.c
 *		Some hundred numbers sorted: a search does so with those of lists, of
 *		pages and of rows, four times.
 *
 * Comparisons of numbers in no order are such as no processor predicts.  But the
 * numbers of a search differ in two or three bytes, by which so many are sorted
 * in a third of the time.
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

/* So many are sorted by bytes, where no more of these differ. */
#define LEAST_BY_BYTES	20
#define MOST_BY_BYTES	512
#define MOST_BYTES		3

/* See page.h. */
int
IvfpqCompareNumbers(const void *a, const void *b)
{
	uint64		x = *(const uint64 *) a;
	uint64		y = *(const uint64 *) b;

	return (x > y) - (x < y);
}

/* Numbers `from` [n] go to where they belong by a byte, equal ones as they come. */
static void
sort_byte(const uint64 *from, uint64 *to, int n, int bit)
{
	uint16		places[256] = {0};
	uint16		next = 0;

	for (int i = 0; i < n; i++)
		places[from[i] >> bit & 0xFF]++;
	for (int byte = 0; byte < 256; byte++)
	{
		uint16		count = places[byte];

		places[byte] = next;
		next += count;
	}
	for (int i = 0; i < n; i++)
		to[places[from[i] >> bit & 0xFF]++] = from[i];
}

/*
 * Sort numbers [n] by the bytes in which they differ, as `varying` has it, the
 * last one first.
 */
static void
sort_by_bytes(uint64 *numbers, int n, uint64 varying)
{
	uint64		room[MOST_BY_BYTES];
	uint64	   *from = numbers;
	uint64	   *to = room;

	for (int bit = 0; bit < 64; bit += 8)
		if ((varying >> bit & 0xFF) != 0)
		{
			uint64	   *sorted = to;

			sort_byte(from, to, n, bit);
			to = from;
			from = sorted;
		}
	if (from != numbers)
		memcpy(numbers, from, n * sizeof(uint64));
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
	uint64		varying = 0;

	if (n >= LEAST_BY_BYTES && n <= MOST_BY_BYTES)
	{
		for (Size i = 1; i < n; i++)
			varying |= numbers[i] ^ numbers[0];
		if (count_bytes(varying) <= MOST_BYTES)
		{
			sort_by_bytes(numbers, (int) n, varying);
			return;
		}
	}
	sort_numbers(numbers, n);
}
