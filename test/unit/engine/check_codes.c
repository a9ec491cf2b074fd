/*
 * check_codes.c
 *		Codes and look-up tables.
 */
#include "unit.h"

/* Rows in two lists or in none get what they get in one. */
static void
check_encode_lists(const GvModel *model, const float *x, const float *centroids,
				   int64_t n)
{
	size_t		nbytes = (size_t) gv_code_bytes(model->m);
	OWN uint8_t *codes = unit_alloc(2 * (size_t) n * nbytes);
	OWN float  *t = unit_alloc(sizeof(float) * 2 * n);
	OWN int32_t *lists = unit_alloc(sizeof(int32_t) * 2 * n);
	OWN uint8_t *code = unit_alloc(nbytes);
	int			nwrong = 0;
	int64_t		i;

	for (i = 0; i < 2 * n; i++)
		lists[i] = (int32_t) (unit_random() % 4) - 1;
	OK(gv_encode(model, x, centroids, lists, n, 2, codes, t));
	for (i = 0; i < 2 * n; i++)
	{
		float		own = 0.0f;

		(void) gv_encode(model, x + i / 2 * model->dims, centroids, &lists[i],
						 1, 1, code, &own);
		nwrong += memcmp(code, codes + (size_t) i * nbytes, nbytes) != 0 ||
			own != t[i];
	}
	CHECK(nwrong == 0, "%d wrong, dims %d m %d", nwrong, model->dims,
		  model->m);
}

static void
check_encode(const GvModel *model, const float *x, const float *centroid,
			 int64_t n)
{
	int32_t		nbytes = gv_code_bytes(model->m);
	OWN uint8_t *codes = unit_alloc((size_t) n * nbytes);
	OWN float  *t = unit_alloc(sizeof(float) * n);
	int32_t		zeros[40] = {0};
	int			nwrong = 0;
	int64_t		row;
	int32_t		j;
	int32_t		d;

	CHECK(n <= 40 && gv_encode(model, x, centroid, zeros, n, 1, codes, t) ==
		  GV_OK, "encode");
	for (row = 0; row < n; row++)
	{
		double		term = 0.0;
		double		size = 0.0;

		for (j = 0; j < model->m; j++)
		{
			int32_t		start = gv_sub_start(model, j);
			int32_t		width = gv_sub_start(model, j + 1) - start;
			int			code = codes[row * nbytes + j / 2] >> (j % 2 * 4) & 15;
			double		best = HUGE_VAL;
			double		mine = HUGE_VAL;
			int			k;

			for (k = 0; k < GV_CODEWORDS; k++)
			{
				const float *word = model->codebooks +
					GV_CODEWORDS * start + k * width;
				double		dist = 0.0;

				for (d = 0; d < width; d++)
				{
					double		r = (double) x[row * model->dims + start + d] -
						centroid[start + d] - word[d];

					dist += r * r;
					if (k == code)
					{
						double		rc = (double) word[d] *
							(word[d] + 2.0 * centroid[start + d]);

						term += rc;
						size += fabs(rc);
					}
				}
				best = dist < best ? dist : best;
				mine = k == code ? dist : mine;
			}
			nwrong += mine > best * (1 + 1e-4) + 1e-9;
		}
		if (model->metric == GV_IP)
			nwrong += t[row] != 0.0f;
		else
			nwrong += !(fabs(t[row] - term) <= 1e-6 * size);
		if (model->m % 2 != 0)
			nwrong += codes[(row + 1) * nbytes - 1] >> 4 != 0;
	}
	CHECK(nwrong == 0, "%d wrong, dims %d m %d", nwrong, model->dims,
		  model->m);
}

static void
test_tables(void)
{
	int			round;

	for (round = 0; round < 40 * NDIMS; round++)
	{
		int32_t		dims = all_dims[round % NDIMS];
		int32_t		m = round % 3 == 0 ? (dims + 1) / 2 :
			1 + (int32_t) (unit_random() % dims);
		float		factor = round % 11 == 10 ? 1e38f : 1.0f;
		OWN float  *books = unit_floats((size_t) GV_CODEWORDS * dims, factor);
		OWN float  *query = unit_floats(dims, factor);
		OWN float  *x = unit_floats((size_t) 40 * dims, 2.0f);
		OWN float  *centroid = unit_floats((size_t) 3 * dims, 1.0f);
		GvModel		model = {.metric = (GvMetric) (1 + round % 3),
		.dims = dims,.m = m,.codebooks = books};
		float	   *table = unit_alloc(gv_table_bytes(m));
		int			nwrong = 0;
		int32_t		j;
		int			k;

		if (dims > 2000 && round > 5 * NDIMS)
			m = model.m = 1 + unit_random() % 16000;
		unit_free(table);
		table = unit_alloc(gv_table_bytes(m));
		CHECK(gv_table(&model, query, table) == GV_OK, "table");
		for (j = 0; j < m; j++)
			for (k = 0; k < GV_CODEWORDS; k++)
			{
				int32_t		start = gv_sub_start(&model, j);
				int32_t		width = gv_sub_start(&model, j + 1) - start;
				float		want = 0.0f;
				float		got = table[j * GV_CODEWORDS + k];
				int32_t		d;

				for (d = 0; d < width; d++)
					want += query[start + d] *
						books[GV_CODEWORDS * start + k * width + d];
				want *= model.metric == GV_IP ? -1.0f : -2.0f;
				nwrong += !(got == want || (isnan(got) && isnan(want)));
			}
		CHECK(nwrong == 0, "%d table entries, dims %d m %d", nwrong, dims, m);
		if (factor == 1.0f)
		{
			int64_t		n = dims > 2000 ? 2 : 1 + unit_random() % 40;

			check_encode(&model, x, centroid, n);
			check_encode_lists(&model, x, centroid, n);
		}
		unit_free(table);
	}
}

/* T never leaves the range, whatever the vectors. */
static void
test_encode_huge(void)
{
	float		x[6] = {3e38f, -3e38f, 3e38f, 1e-45f, 0.0f, 1.0f};
	float		centroid[3] = {-3e38f, 3e38f, -3e38f};
	float		books[GV_CODEWORDS * 3];
	GvModel		model = {.metric = GV_L2,.dims = 3,.m = 3,.codebooks = books};
	int32_t		lists[2] = {0};
	uint8_t		codes[4];
	float		t[2];
	int			i;

	for (i = 0; i < GV_CODEWORDS * 3; i++)
		books[i] = i % 2 ? 3e38f : -3e38f;
	OK(gv_encode(&model, x, centroid, lists, 2, 1, codes, t));
	CHECK(fabsf(t[0]) <= GV_SCORE_MAX && fabsf(t[1]) <= GV_SCORE_MAX,
		  "%g %g", t[0], t[1]);
	CHECK(codes[1] >> 4 == 0 && codes[3] >> 4 == 0, "spare nibbles");
}

void
test_codes(void)
{
	test_tables();
	test_encode_huge();
}
