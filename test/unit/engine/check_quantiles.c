/*
 * check_quantiles.c
 *		Several ranks of one array at once, against qsort.
 */
#include "selections.h"

static void
check_ranks(const GvValue *values, const Sorted *sorted, int64_t n,
			const int64_t *ranks, int32_t nranks, bool approximate,
			Input input)
{
	GvQuantiles spec = {n, nranks, approximate, DOUBLES};
	OWN void   *scratch = unit_alloc(gv_quantiles_scratch(&spec));
	OWN GvValue *quantiles = unit_alloc(sizeof(GvValue) * nranks);
	OWN int64_t *errors = unit_alloc(sizeof(int64_t) * nranks);

	CHECK(gv_quantiles(&spec, values, ranks, quantiles, errors, scratch,
					   NULL) == GV_OK, "quantiles");
	check_quantiles(sorted, n, ranks, quantiles, errors, nranks, approximate,
				  input);
}

/* Both kinds of answer, for ranks in random order, repeated, and at ends. */
static void
check_input(Input input, int64_t n, int32_t nranks)
{
	OWN GvValue *values = input_values(input, n);
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
	OWN GvValue *values = input_values(input, n);
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
	OWN GvValue *values = input_values(IN_UNIFORM, n);
	GvQuantiles spec = {n, 3, approximate, DOUBLES};
	OWN void   *scratch = unit_alloc(gv_quantiles_scratch(&spec));
	GvValue		quantiles[3];
	int64_t		errors[3];
	Patience	patience = {0, 0};
	GvStop		stop = {lose_patience, &patience};
	GvStatus	status;

	do
	{
		patience.asked = 0;
		patience.last++;
		status = gv_quantiles(&spec, values, ranks, quantiles, errors, scratch,
							  &stop);
		CHECK((status == GV_OK) == (patience.asked < patience.last) &&
			  (status == GV_OK || status == GV_CANCELED),
			  "status %d", status);
	} while (status != GV_OK);
	CHECK(patience.asked > 0, "asked %d times", patience.asked);
}

#define BAD(change) (wrong = spec, wrong.change, \
	gv_quantiles(&wrong, x, ranks, out, errors, scratch, NULL))

static void
check_invalid(void)
{
	static char scratch[16384] __attribute__((aligned(64)));
	GvQuantiles spec = {4, 2, false, DOUBLES};
	GvQuantiles wrong;
	GvValue		x[4] = {0};
	int64_t		ranks[2] = {0, 3};
	const int64_t too_high[2] = {0, 4};
	const int64_t too_low[2] = {-1, 0};
	GvValue		out[2];
	int64_t		errors[2];
	GvStop		bad_stop = {NULL, NULL};

	INVALID(BAD(n = 0));
	CHECK(gv_quantiles_scratch(&wrong) == 0, "scratch of nothing");
	INVALID(BAD(n = GV_SELECT_MAX_N + 1));
	INVALID(BAD(nranks = 0));
	CHECK(gv_quantiles_scratch(&wrong) == 0, "scratch for nothing");
	INVALID(gv_quantiles(NULL, x, ranks, out, errors, scratch, NULL));
	INVALID(gv_quantiles(&spec, NULL, ranks, out, errors, scratch, NULL));
	INVALID(gv_quantiles(&spec, x, NULL, out, errors, scratch, NULL));
	INVALID(gv_quantiles(&spec, x, too_high, out, errors, scratch, NULL));
	INVALID(gv_quantiles(&spec, x, too_low, out, errors, scratch, NULL));
	INVALID(gv_quantiles(&spec, x, ranks, NULL, errors, scratch, NULL));
	INVALID(gv_quantiles(&spec, x, ranks, out, NULL, scratch, NULL));
	INVALID(gv_quantiles(&spec, x, ranks, out, errors, NULL, NULL));
	INVALID(gv_quantiles(&spec, x, ranks, out, errors, scratch + 4, NULL));
	INVALID(gv_quantiles(&spec, x, ranks, out, errors, scratch, &bad_stop));
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
		check_input(input, 70000, 8);
		check_input(input, unit_small ? 70000 : 200000, 1000);
	}
	check_all_ranks(IN_UNIFORM, 70000);
	check_stop(1 << 21, false);
	check_stop(1 << 22, true);
	check_invalid();
}
