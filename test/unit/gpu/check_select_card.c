/*
 * check_select_card.c
 *		k-selection on a device (gpu/select/select.h), by every method, and the
 *		sets that are made of it, against qsort, on the inputs of check_select.c.
 */
#include "gpu/select/select.h"
#include "card.h"

/* hostrows.cu */
extern GvStatus select_host(GvSelector *selector, const GvSelect *spec,
							const void *values, uint32_t *positions,
							void *selected);
extern GvStatus quantiles_host(GvSelector *selector, const GvQuantiles *spec,
							   const void *values, const int64_t *ranks,
							   void *quantiles, int64_t *rank_errors);

static GvSelector *selector;

static GvStatus
select_rows(const GvSelect *spec, const GvValue *values, uint32_t *positions,
			GvValue *selected)
{
	GvSelect	any = *spec;
	GvSelectMethod method;

	any.method = GV_SELECT_AUTO;
	method = gv_gpu_select_choose(&any);
	CHECK(method != GV_SELECT_AUTO &&
		  (method != GV_SELECT_WARP || spec->k <= GV_WARP_MAX_K),
		  "auto is %d", method);
	return select_host(selector, spec, values, positions, selected);
}

/* Begins `shift` values behind what is aligned. */
static void
check_input(Input input, int64_t rows, int64_t columns, int shift,
			const int64_t *ks, int nks)
{
	OWN GvValue *values = input_values(input, rows * columns);
	OWN GvValue *shifted = unit_alloc(sizeof(GvValue) * (rows * columns + shift));

	memcpy(shifted + shift, values, sizeof(GvValue) * rows * columns);
	check_matrix(select_rows, input, shifted + shift, rows, columns, ks, nks);
}

static void
check_short_rows(void)
{
	static const int64_t sizes[] = {1, 2, 5, 31, 32, 33, 127, 129, 255, 257};
	int			nsizes = unit_small ? 7 : 10;
	Input		input;
	int			s;

	for (s = 0; s < nsizes; s++)
		for (input = 0; input < NINPUTS; input++)
		{
			int64_t		n = sizes[s];
			const int64_t ks[] = {1, 10, n};

			check_input(input, 3, n, (int) (unit_random() % 4), ks, 3);
		}
}

static void
check_rows(void)
{
	static const int64_t sizes[] = {1000, 4099, 16385, 1025, 4096, 16384,
	65537, 200000};
	int			nsizes = unit_small ? 3 : device_is_emulated() ? 5 : 8;
	Input		input;
	int			s;

	for (s = 0; s < nsizes; s++)
		for (input = 0; input < NINPUTS; input++)
		{
			int64_t		n = sizes[s];
			const int64_t some[] = {100, 129 + unit_random() % 1000};
			const int64_t ks[] = {1, 100, 128, 129, 300, 600, 2048, 2049,
			5000, n / 2, n};

			if (unit_small)
				check_input(input, 1, n, 1, some, n < 2000 ? 2 : 1);
			else
				check_input(input, 2, n, s % 4, ks, 11);
		}
}

/* Rows and ks of any length: a block's, and such as must be divided. */
static void
check_any_rows(void)
{
	int			n = unit_small ? 30 : 400;
	int			i;

	for (i = 0; i < n; i++)
	{
		Input		input = i % 3 == 0 ? IN_UNIFORM : unit_random() % NINPUTS;
		int64_t		columns = i % 5 < 3 ? 1 + unit_random() % 1030 :
			i % 5 < 4 ? (INT64_C(1024) << i / 5 % 4) +
			unit_random() % (unit_small ? 40 : 1024) :
			8192 + unit_random() % 40000;
		const int64_t ks[] = {1 + unit_random() % 512, 1 + unit_random() % 40,
		columns / (24 + unit_random() % 40)};

		check_input(input, unit_small ? 2 : 5, columns, unit_random() % 4, ks,
					i % 5 < 4 ? 2 : 3);
	}
}

/* The values of a row; the rest of it is `last`. */
typedef struct Zeros
{
	int64_t		rows;
	int64_t		columns;
	int32_t		k;
	int32_t		nfirst;			/* of `first` in the first row */
	int32_t		step;			/* more of them in each next row */
	int32_t		nminus;			/* -0 */
	int32_t		nplus;			/* +0 */
	GvValue		first;
	GvValue		last;
} Zeros;

/* The first row in order, others in none. */
static GvValue *
zeros_values(const Zeros *zeros)
{
	GvValue    *values = unit_alloc(sizeof(GvValue) * zeros->rows *
									zeros->columns);
	int64_t		row;
	int64_t		i;

	for (row = 0; row < zeros->rows; row++)
	{
		GvValue    *own = values + row * zeros->columns;
		int64_t		nfirst = zeros->nfirst + row * zeros->step;

		for (i = 0; i < zeros->columns; i++)
		{
			int64_t		other = i;

			if (row > 0)
				other = (int64_t) (unit_random() % (i + 1));
			own[i] = own[other];
			own[other] = i < nfirst ? zeros->first :
				i < nfirst + zeros->nminus ? -0.0f :
				i < nfirst + zeros->nminus + zeros->nplus ? 0.0f : zeros->last;
		}
	}
	return values;
}

/*
 * Pivots of exactly 0, estimated between two values, among zeros of both
 * signs.
 */
static void
check_zeros(void)
{
	static const Zeros all[] = {
		{2, 516, 56, 30, 0, 30, 0, -7, 57},
		{3, 516, 56, 30, 0, 20, 20, -7, 57},
		{2, 516, 40, 30, 0, 0, 30, -7, 57},
		{4, 516, 56, 26, 2, 40, 1, -7, 57},
		{2, 1024, 56, 30, 0, 30, 0, -15, 241},
		{2, 200, 20, 10, 0, 30, 30, -1e-45f, 3e-45f},
		{2, 200, 100, 10, 0, 100, 80, -1e-45f, 1e-45f}
	};
	size_t		i;

	for (i = 0; i < sizeof(all) / sizeof(all[0]); i++)
	{
		OWN GvValue *values = zeros_values(&all[i]);
		int64_t		k = all[i].k;

		check_matrix(select_rows, IN_ZEROS, values, all[i].rows,
					 all[i].columns, &k, 1);
	}
}

/* Ks that need more memory than a block has. */
static void
check_many_wanted(void)
{
	int64_t		n = unit_small ? 9001 : device_is_emulated() ? 100003 :
		1000003;
	const int64_t ks[] = {n - 1, 4097, n / 2, n / 10};

	check_input(IN_UNIFORM, 1, n, 3, ks, unit_small ? 1 : 4);
	check_input(IN_ALL_EQUAL, 2, n, 0, ks, 1);
	check_input(IN_SPECIAL, 1, n, 0, ks, unit_small ? 1 : 4);
}

/*
 * A row as long as they get, of which the processor says the first 1 % once:
 * what comes first of all are the first of these.
 */
static void
check_long_row(Input input, int64_t n)
{
	const int64_t ks[] = {1, 10, 2048 < n / 100 ? 2048 : 0, n / 100};
	GvSelect	spec = {1, n, (int32_t) (n / 100), GV_SELECT_SAMPLE, DOUBLES};
	OWN GvValue *values = input_values(input, n);
	OWN uint32_t *positions = unit_alloc(sizeof(uint32_t) * spec.k);
	OWN GvValue *selected = unit_alloc(sizeof(GvValue) * spec.k);
	FREED Sorted *first = malloc(sizeof(Sorted) * spec.k);
	OWN void   *scratch = unit_alloc(gv_select_scratch(&spec));
	int32_t		i;

	OK(gv_select(&spec, values, positions, selected, scratch, NULL));
	for (i = 0; i < spec.k; i++)
		first[i] = (Sorted) {selected[i], positions[i]};
	check_ks(select_rows, input, values, 1, n, &first, ks, 4);
}

static void
check_long_rows(void)
{
	int64_t		n = unit_small ? 30011 : device_is_emulated() ? 300007 : 100000000;

	check_long_row(IN_SORTED, n);
	check_long_row(IN_ALL_EQUAL, n);
	check_long_row(IN_SPREAD, n);	/* one in 130 is NaN */
}

static void
check_many_rows(void)
{
	const int64_t ks[] = {1, 3, 7};
	const int64_t more[] = {10, 257, 1000};

	check_input(IN_SPECIAL, unit_small ? 40 : device_is_emulated() ? 4000 : 100000,
				7, 0, ks, unit_small ? 1 : 3);
	check_input(IN_UNIFORM, unit_small ? 9 : 300, 300, 0, ks, 3);
	check_input(IN_FEW_VALUES, unit_small ? 3 : 37, 5000, 0, more, 3);
	if (!unit_small)
	{
		check_input(IN_UNIFORM, device_is_emulated() ? 100 : 70000, 1024, 0, more, 2);
		check_input(IN_SAW, device_is_emulated() ? 20 : 1000, 20000, 0, more,
					3);
	}
}

/* Exact and approximate ranks, repeated, in no order, and at both ends. */
static void
check_ranks(Input input, int64_t n, int32_t nranks)
{
	OWN GvValue *values = input_values(input, n);
	FREED Sorted *sorted = sort_row(values, n);
	OWN int64_t *ranks = unit_alloc(sizeof(int64_t) * nranks);
	OWN int64_t *errors = unit_alloc(sizeof(int64_t) * nranks);
	OWN GvValue *quantiles = unit_alloc(sizeof(GvValue) * nranks);
	int			approximate;
	int32_t		i;

	for (i = 0; i < nranks; i++)
		ranks[i] = (int64_t) (unit_random() % n);
	ranks[nranks / 2] = n - 1;
	ranks[nranks - 1] = 0;
	for (approximate = 0; approximate < 2; approximate++)
	{
		GvQuantiles spec = {n, nranks, approximate, DOUBLES};

		CHECK(quantiles_host(selector, &spec, values, ranks, quantiles,
							 errors) == GV_OK, "quantiles");
		check_quantiles(sorted, n, ranks, quantiles, errors, nranks,
						approximate, input);
	}
}

static void
check_quantiles_device(void)
{
	Input		input;

	for (input = 0; input < NINPUTS; input++)
	{
		check_ranks(input, 1 + (int64_t) (unit_random() % 50), 3);
		check_ranks(input, unit_small ? 5000 : 100000, 40);
	}
	check_ranks(IN_UNIFORM, 4096, 100);
	check_ranks(IN_UNIFORM, unit_small ? 4097 : 1000000,
				unit_small ? 9 : 3000);
}

/* Sorts of half of the values, or of all, are included in what sets take. */
static void
check_sets(void)
{
	int64_t		n = device_is_emulated() ? 30000 : 30000000;
	const GvSetSpec specs[] = {
		{.kind = GV_SET_SELECT,.dims = 1 + DOUBLES,.k = (int32_t) n / 2,
		.nrows = n},
		{.kind = GV_SET_QUANTILES,.dims = 1 + DOUBLES,.nqueries = 2000,
		.nrows = n},
		{.kind = GV_SET_SELECT,.dims = 1 + DOUBLES,.k = 1,.nrows = 3}
	};

	check_selection_set(IN_UNIFORM, unit_small ? 5000 : 3000000, 100,
						GV_SELECT_AUTO);
	check_selection_set(IN_SPECIAL, 100, 100, GV_SELECT_AUTO);
	check_selection_set(IN_ALL_EQUAL, 20000, unit_small ? 4 : 9000,
						GV_SELECT_AUTO);
	check_quantiles_set(IN_SPECIAL, 5001, 3, false);
	check_quantiles_set(IN_SPECIAL, 5001, 3, true);
	check_set_bytes(&specs[0], (1 + DOUBLES) * 12 * n);
	check_set_bytes(&specs[1], (1 + DOUBLES) * 12 * n);
	check_set_stops(&specs[2], 2);
}

void
test_select_card(void)
{
	unit_seed = 1;
	CHECK(gv_gpu_selector(&selector) == GV_OK, "selector");
	check_short_rows();
	check_rows();
	check_any_rows();
	check_zeros();
	check_many_wanted();
	check_many_rows();
	check_long_rows();
	check_quantiles_device();
	check_sets();
	gv_gpu_selector_drop(selector);
}
