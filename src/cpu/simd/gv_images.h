/*
 * gv_images.h
 *		Sets of values among a block's images, for levels whose registers
 *		compare 32 bytes or more.
 *
 * Included by a level's file, which has LEVEL, compare_images, compare_values
 * for sets of few values, and find_images for those of many.
 */

/* Values that are compared with all images, one after another. */
#define FEW_VALUES(width)	((width) == 8 ? 24 : 64)

/* Images, each in 64 bits. */
static inline LEVEL void
widen(const void *images, int width, uint64_t *wide)
{
	int			i;

	if (width == 2)
		for (i = 0; i < GV_BLOCK; i++)
			wide[i] = ((const uint16_t *) images)[i];
	else if (width == 4)
		for (i = 0; i < GV_BLOCK; i++)
			wide[i] = ((const uint32_t *) images)[i];
	else
		memcpy(wide, images, sizeof(uint64_t) * GV_BLOCK);
}

/* Images of more than a byte, looked for in values [n], n >= 1. */
static LEVEL uint32_t
images_in_many(const void *images, int width, const uint64_t *values,
			   int32_t n)
{
	uint64_t	wide[GV_BLOCK] GV_CPU_ALIGNED;

	widen(images, width, wide);
	return find_images(wide, values, n);
}

/* An image of one byte has 256 values: a bit for each. */
static LEVEL uint32_t
bytes_in_many(const uint8_t *images, const uint64_t *values, int32_t n)
{
	uint8_t		is_value[256] = {0};
	uint32_t	bits = 0;
	int			i;

	for (i = 0; i < n; i++)
		is_value[values[i]] = 1;
	for (i = 0; i < GV_BLOCK; i++)
		bits |= (uint32_t) is_value[images[i]] << i;
	return bits;
}

static LEVEL uint32_t
images_among(const void *images, int width, const uint64_t *values, int32_t n)
{
	switch (width)
	{
		case 1:
			return compare_values(images, 1, values, n);
		case 2:
			return compare_values(images, 2, values, n);
		case 4:
			return compare_values(images, 4, values, n);
		default:
			return compare_values(images, 8, values, n);
	}
}

static LEVEL uint32_t
images_in(const void *images, int width, const uint64_t *values, int32_t n)
{
	if (n <= FEW_VALUES(width))
		return images_among(images, width, values, n);
	if (width == 1)
		return bytes_in_many(images, values, n);
	return images_in_many(images, width, values, n);
}

/* Widths are constants where images are compared. */
static LEVEL uint32_t
match(const GvKeyTest *test, int width, const void *images)
{
	if (test->kind == GV_TEST_SET)
		return images_in(images, width, test->values, test->nvalues);
	if (test->kind == GV_TEST_RANGE && test->low > test->high)
		return 0;
	switch (width)
	{
		case 1:
			return compare_images(test, 1, images);
		case 2:
			return compare_images(test, 2, images);
		case 4:
			return compare_images(test, 4, images);
		default:
			return compare_images(test, 8, images);
	}
}
