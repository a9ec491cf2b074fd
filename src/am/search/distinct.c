/*
 * distinct.c
 *		Which of some numbers have not come before.
 *
 * A search asks that of its candidates, a hundred or so, and would spend more
 * time with making a set of them than with anything else that it does to them.
 * So this is no set: a table of places, in which each number is looked for
 * from where its hash is on.
 */
#include "postgres.h"

#include "port/pg_bitutils.h"

#include "am/search/search.h"

#define GOLDEN_RATIO	UINT64CONST(0x9E3779B97F4A7C15)

/*
 * Which of numbers [n] come for the first time, no more than `most`: their
 * places, ascending, to first [n]; returns how many.
 */
int
IvfpqDistinct(const uint64 *numbers, int n, int most, int *first)
{
	int			bits = pg_ceil_log2_32(Max(n, 1)) + 1;
	uint32		mask = ((uint32) 1 << bits) - 1;
	int		   *table;			/* a place and 1, or 0 */
	int			count = 0;

	if (n == 0)
		return 0;
	table = palloc_extended(((Size) mask + 1) * sizeof(int),
							MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	for (int i = 0; i < n && count < most; i++)
	{
		uint32		at = (uint32) (numbers[i] * GOLDEN_RATIO >> (64 - bits));

		while (table[at] != 0 && numbers[table[at] - 1] != numbers[i])
			at = (at + 1) & mask;
		if (table[at] != 0)
			continue;
		table[at] = i + 1;
		first[count++] = i;
	}
	pfree(table);
	return count;
}
