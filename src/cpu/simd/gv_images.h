/*
 * gv_images.h
 *		Looks for a block's abbreviated keys in sets of values, for levels
 *		whose registers compare 32 bytes or more.
 *
 * Included by a level's file, which defines LEVEL, compare_abbrevs,
 * compare_values for sets of few values, and find_abbrevs for sets of many.
 */

/*
 * Number of values, at most, that are compared with all abbreviated keys, one
 * value after another.
 */
#define FEW_VALUES(width)	((width) == 8 ? 24 : 64)

/* Converts abbreviated keys to 64 bits each. */
static inline LEVEL void
widen(const void *abbrevs, int width, uint64_t *wide)
{
	int			i;

	if (width == 2)
		for (i = 0; i < GV_BLOCK; i++)
			wide[i] = ((const uint16_t *) abbrevs)[i];
	else if (width == 4)
		for (i = 0; i < GV_BLOCK; i++)
			wide[i] = ((const uint32_t *) abbrevs)[i];
	else
		memcpy(wide, abbrevs, sizeof(uint64_t) * GV_BLOCK);
}

/* Looks for abbreviated keys of more than a byte among values [n], n >= 1. */
static LEVEL uint32_t
abbrevs_in_many(const void *abbrevs, int width, const uint64_t *values,
				int32_t n)
{
	uint64_t	wide[GV_BLOCK] GV_CPU_ALIGNED;

	widen(abbrevs, width, wide);
	return find_abbrevs(wide, values, n);
}

/*
 * Looks for abbreviated keys of one byte among values.  Such keys have only
 * 256 values, so an array says which of these are in the set.
 */
static LEVEL uint32_t
bytes_in_many(const uint8_t *abbrevs, const uint64_t *values, int32_t n)
{
	uint8_t		is_value[256] = {0};
	uint32_t	bits = 0;
	int			i;

	for (i = 0; i < n; i++)
		is_value[values[i]] = 1;
	for (i = 0; i < GV_BLOCK; i++)
		bits |= (uint32_t) is_value[abbrevs[i]] << i;
	return bits;
}

static LEVEL uint32_t
abbrevs_among(const void *abbrevs, int width, const uint64_t *values,
			  int32_t n)
{
	switch (width)
	{
		case 1:
			return compare_values(abbrevs, 1, values, n);
		case 2:
			return compare_values(abbrevs, 2, values, n);
		case 4:
			return compare_values(abbrevs, 4, values, n);
		default:
			return compare_values(abbrevs, 8, values, n);
	}
}

static LEVEL uint32_t
abbrevs_in(const void *abbrevs, int width, const uint64_t *values, int32_t n)
{
	if (n <= FEW_VALUES(width))
		return abbrevs_among(abbrevs, width, values, n);
	if (width == 1)
		return bytes_in_many(abbrevs, values, n);
	return abbrevs_in_many(abbrevs, width, values, n);
}

/*
 * Applies a test.  Calls the functions that compare keys with constant widths,
 * so that the compiler makes a version for each width.
 */
static LEVEL uint32_t
match(const GvKeyTest *test, int width, const void *abbrevs)
{
	if (test->kind == GV_TEST_SET)
		return abbrevs_in(abbrevs, width, test->values, test->nvalues);
	if (test->kind == GV_TEST_RANGE && test->low > test->high)
		return 0;
	switch (width)
	{
		case 1:
			return compare_abbrevs(test, 1, abbrevs);
		case 2:
			return compare_abbrevs(test, 2, abbrevs);
		case 4:
			return compare_abbrevs(test, 4, abbrevs);
		default:
			return compare_abbrevs(test, 8, abbrevs);
	}
}
