/*
 * check_quantiles.c
 *		Several ranks of one array at once, against qsort.
 */
#include "selections.h"

static void
check_ranks(const float *values, const Sorted *sorted, int64_t n,
			const int64_t *ranks, int32_t nranks, bool approximate,
			Input input)
{
	OWN void   *scratch = unit_alloc(gv_quantiles_scratch(n, nranks,
														  approximate));
	OWN float  *quantiles = unit_alloc(sizeof(float) * nranks);
	OWN int64_t *errors = unit_alloc(sizeof(int64_t) * nranks);

	CHECK(gv_quantiles(values, n, ranks, nranks, approximate, quantiles,
					   errors, scratch, NULL) == GV_OK, "quantiles");
	check_quantiles(sorted, n, ranks, quantiles, errors, nranks, approximate,
				  input);
}

/* Both kinds of answer, for ranks in random order, repeated, and at ends. */
static void
check_input(Input input, int64_t n, int32_t nranks)
{
	OWN float  *values = input_values(input, n);
	FREED Sorted *sorted = sort_row(values, n);
	OWN int64_t *ranks = unit_alloc(sizeof(int64_t) * nranks);
	int32_t		i;

	for (i = 0; i < nranks; i++)
		ranks[i] = (int64_t) (unit_random() % n);
	ranks[nranks / 2] = n - 1;
	ranks[nranks - 1] = 0;
	check_ranks(values, sorted, n, ranks, nranks, false, input);
	check_ranks(values, sorted, n, ranks, nranks, true, input);
}

/* Every rank there is, backwards. */
static void
check_all_ranks(Input input, int64_t n)
{
	OWN float  *values = input_values(input, n);
	FREED Sorted *sorted = sort_row(values, n);
	OWN int64_t *ranks = unit_alloc(sizeof(int64_t) * n);
	int64_t		i;

	for (i = 0; i < n; i++)
		ranks[i] = n - 1 - i;
	check_ranks(values, sorted, n, ranks, (int32_t) n, false, input);
	check_ranks(values, sorted, n, ranks, (int32_t) n, true, input);
}

static void
check_stop(int64_t n, bool approximate)
{
	const int64_t ranks[] = {n / 2, 5, n / 3};
	OWN float  *values = input_values(IN_UNIFORM, n);
	OWN void   *scratch = unit_alloc(gv_quantiles_scratch(n, 3, approximate));
	float		quantiles[3];
	int64_t		errors[3];
	Patience	patience = {0, 0};
	GvStop		stop = {lose_patience, &patience};
	GvStatus	status;

	do
	{
		patience.asked = 0;
		patience.last++;
		status = gv_quantiles(values, n, ranks, 3, approximate, quantiles,
							  errors, scratch, &stop);
		CHECK((status == GV_OK) == (patience.asked < patience.last) &&
			  (status == GV_OK || status == GV_CANCELED),
			  "status %d", status);
	} while (status != GV_OK);
	CHECK(patience.asked > 0, "asked %d times", patience.asked);
}

static void
check_invalid(void)
{
	static char scratch[16384] __attribute__((aligned(64)));
	float		x[4] = {0};
	int64_t		ranks[2] = {0, 3};
	const int64_t too_high[2] = {0, 4};
	const int64_t too_low[2] = {-1, 0};
	float		out[2];
	int64_t		errors[2];
	GvStop		bad_stop = {NULL, NULL};

	INVALID(gv_quantiles(NULL, 4, ranks, 2, 0, out, errors, scratch, NULL));
	INVALID(gv_quantiles(x, 0, ranks, 2, 0, out, errors, scratch, NULL));
	INVALID(gv_quantiles(x, GV_SELECT_MAX_N + 1, ranks, 2, 0, out, errors,
						 scratch, NULL));
	INVALID(gv_quantiles(x, 4, NULL, 2, 0, out, errors, scratch, NULL));
	INVALID(gv_quantiles(x, 4, ranks, 0, 0, out, errors, scratch, NULL));
	INVALID(gv_quantiles(x, 4, too_high, 2, 0, out, errors, scratch, NULL));
	INVALID(gv_quantiles(x, 4, too_low, 2, 0, out, errors, scratch, NULL));
	INVALID(gv_quantiles(x, 4, ranks, 2, 0, NULL, errors, scratch, NULL));
	INVALID(gv_quantiles(x, 4, ranks, 2, 0, out, NULL, scratch, NULL));
	INVALID(gv_quantiles(x, 4, ranks, 2, 0, out, errors, NULL, NULL));
	INVALID(gv_quantiles(x, 4, ranks, 2, 0, out, errors, scratch + 4, NULL));
	INVALID(gv_quantiles(x, 4, ranks, 2, 0, out, errors, scratch, &bad_stop));
	CHECK(gv_quantiles_scratch(0, 1, false) == 0, "scratch of nothing");
	CHECK(gv_quantiles_scratch(4, 0, false) == 0, "scratch for nothing");
}

void
test_quantiles(void)
{
	static const int64_t sizes[] = {1, 2, 17, 1000, 4096, 4097, 50000, 65537};
	int			nsizes = unit_small ? 6 : 8;
	int			s;
	Input		input;

	for (input = 0; input < NINPUTS; input++)
	{
		for (s = 0; s < nsizes; s++)
			check_input(input, sizes[s], 1 + (int32_t) (unit_random() % 50));
		check_all_ranks(input, 300);
		check_input(input, unit_small ? 70000 : 200000, 1000);
	}
	check_all_ranks(IN_UNIFORM, 70000);
	check_stop(1 << 21, false);
	check_stop(1 << 22, true);
	check_invalid();
}
