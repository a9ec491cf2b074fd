/*
 * check_products_card.c
 *		Products of halves, by cuBLAS and by our loops: every sum is there
 *		once, and as near to the true one as the proofs of all filters count on
 *		(gpu/product/product.h).
 */
#include "card.h"
#include "../engine/mirrors.h"

/* matmul.cu */
extern GvStatus matmul_sums(const uint16_t *rows, int32_t nrows,
								const uint16_t *columns, int32_t ncolumns,
								int32_t half_dims, bool whole, float *sums,
								uint32_t *runs);

extern GvStatus gv_blas_open(GvDevice *devices, int32_t n); /* gpu/product */

/* Numbers that are added. */
typedef enum Numbers
{
	NUMBERS_SIGNED,				/* which mostly cancel */
	NUMBERS_FULL,				/* all digits set, none cancels: every cut
								 * shows */
	NUMBERS_WIDE,				/* of all sizes that a half has */
	NUMBERS_LOST,				/* one product, beside which others are just
								 * not a unit of its last digit: what is cut is
								 * all */
	NNUMBERS
} Numbers;

/* The bits of a half, which dimension d of a row or a column has. */
static uint16_t
make_number(Numbers numbers, int32_t d, bool row)
{
	uint16_t	bits = (uint16_t) (unit_random() & 0x3FF);

	switch (numbers)
	{
		case NUMBERS_SIGNED:
			return (uint16_t) (0x3C00 | bits | (unit_random() & 1) << 15);
		case NUMBERS_FULL:
			return (uint16_t) (0x3C00 | bits | 0x3F0);
		case NUMBERS_LOST:		/* 2^14 and .9995 2^-9 */
			return d == 0 ? 0x5800 : row ? 0x2BFF : 0x2800;
		default:				/* some are subnormal; none overflows a sum */
			return (uint16_t) (bits | unit_random() % 24 << 10 |
							   (unit_random() & 1) << 15);
	}
}

/*
 * How much of what a sum of dims products may be off by it is; the exact sum
 * fits double, but for numbers of all sizes, which it is near enough.
 */
static double
error_of(float sum, const uint16_t *x, const uint16_t *y, int32_t dims,
		 int32_t half_dims)
{
	double		exact = 0.0;
	double		xx = 0.0;
	double		yy = 0.0;
	int32_t		d;

	for (d = 0; d < half_dims; d++)
	{
		exact += half_value(x[d]) * half_value(y[d]);
		xx += half_value(x[d]) * half_value(x[d]);
		yy += half_value(y[d]) * half_value(y[d]);
	}
	return fabs(sum - exact) / ((dims + 32) * 0x1p-22 * sqrt(xx * yy));
}

static uint16_t *
make_matrix(Numbers numbers, bool row, int32_t n, int32_t dims,
			int32_t half_dims)
{
	uint16_t   *matrix = unit_alloc(sizeof(uint16_t) * n * half_dims);
	int32_t		i;

	for (i = 0; i < n * half_dims; i++)
		matrix[i] = i % half_dims < dims ?
			make_number(numbers, i % half_dims, row) : 0;
	return matrix;
}

/* Returns the largest error, as a fraction of what is allowed. */
static double
check_matmul(Numbers numbers, int32_t nrows, int32_t ncolumns, int32_t dims,
			  bool whole)
{
	int32_t		half_dims = (dims + 15) / 16 * 16;
	OWN uint16_t *rows = make_matrix(numbers, true, nrows, dims, half_dims);
	uint16_t   *columns = make_matrix(numbers, false, ncolumns, dims, half_dims);
	OWN float  *sums = unit_alloc(sizeof(float) * nrows * ncolumns);
	OWN uint32_t *runs = unit_alloc(sizeof(uint32_t) * nrows);
	double		largest = 0.0;
	bool		taken = true;
	int32_t		i;
	int32_t		j;

	CHECK(matmul_sums(rows, nrows, columns, ncolumns, half_dims, whole,
						  sums, runs) == GV_OK, "product");
	for (i = 0; i < nrows; i++)
	{
		taken &= !whole || runs[i] == (uint32_t) (ncolumns + 31) / 32;
		for (j = 0; j < ncolumns; j++)
			largest = fmax(largest, error_of(sums[i * ncolumns + j],
											 rows + i * half_dims,
											 columns + j * half_dims, dims,
											 half_dims));
	}
	CHECK(taken, "%d x %d x %d: runs", nrows, ncolumns, dims);
	CHECK(largest < 1.0, "%d x %d x %d, numbers %d: %.2f of what a sum may be "
		  "off by", nrows, ncolumns, dims, numbers, largest);
	unit_free(columns);
	return largest;
}

/* Shapes of all tiles, and their ends. */
static double
check_matmuls(void)
{
	static const int32_t shapes[][3] = {
		{1, 1, 1}, {33, 31, 16}, {31, 65, 47}, {128, 64, 100}, {129, 300, 20},
		{130, 129, 200}, {260, 70, 33}, {20, 1500, 40}, {9, 65, 600},
		{4100, 257, 5}, {4097, 80, 130}
	};
	double		largest = 0.0;
	int			i;

	for (i = 0; i < (unit_small ? 10 : 11); i++)
		largest = fmax(largest, check_matmul(i % NNUMBERS, shapes[i][0],
											  shapes[i][1], shapes[i][2],
											  i % 2 != 0 || shapes[i][0] >
											  4096));
	for (i = 0; i < NNUMBERS; i++)
		largest = fmax(largest, check_matmul(i, 40, 50, 513, i % 2 == 0));
	return largest;
}

/* An engine was opened; who multiplies is chosen anew. */
void
test_products_card(void)
{
	GvMatmulSetting	before = gv_matmul_used();
	GvDevice	device[1] = {{.name = "card"}};
	double		largest;

	unit_seed = 3;
	gv_matmul_use(GV_MATMUL_OWN);
	CHECK(gv_blas_open(device, 1) == GV_OK, "%s", device->name);
	if (gv_has_hopper(0))
	{
		largest = check_matmuls();
		printf("card: products: sums of 9.0 are off by %.2f of what they may\n",
			   largest);
	}
	gv_matmul_width = 0;
	largest = check_matmuls();
	gv_matmul_width = -1;
	printf("card: products: the loop's sums are off by %.2f of what they may\n",
		   largest);
	gv_matmul_use(GV_MATMUL_CUBLAS);
	CHECK(gv_blas_open(device, 1) == GV_OK, "%s", device->name);
	largest = check_matmuls();
	printf("card: products: cuBLAS's by %.2f\n", largest);
	/* the stand-in is to be as bad as allowed, or it proves little */
	CHECK(!device_is_emulated() || largest > 0.25, "%.2f", largest);
	gv_matmul_use(before);
	CHECK(gv_blas_open(device, 1) == GV_OK, "%s", device->name);
}
