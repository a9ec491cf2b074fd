/*
 * selections.c
 *		See selections.h.
 */
#include "sets.h"

/*
 * The float that has these bits or, for doubles, a double of the same kind: NaN,
 * infinite, zero, subnormal or with this sign and exponent.
 */
static GvValue
from_bits(uint32_t bits)
{
	GvValue		value;
#ifdef GV_DOUBLES
	uint64_t	number = bits & 0x7FFFFFFF;
	uint64_t	wide = (uint64_t) (bits >> 31) << 63 |
		(number >= 0x7F800000 ? UINT64_C(0x7FF) << 52 | (number & 0x7FFFFF) :
		 number >> 8 << 40 | (number & 0xFF));
#else
	uint32_t	wide = bits;
#endif

	memcpy(&value, &wide, sizeof(value));
	return value;
}

static GvValue
special(void)
{
	static const uint32_t bits[] = {0x7FC00000, 0xFFC00000, 0x7F800001,
		0xFFFFFFFF, 0x7F800000, 0xFF800000, 0x00000000, 0x80000000, 0x00000001,
	0x80000001, 0x7F7FFFFF, 0xFF7FFFFF};

	return from_bits(bits[unit_random() % 12]);
}

static GvValue
value_at(Input input, int64_t i, int64_t n)
{
	uint32_t	random = (uint32_t) unit_random();

	switch (input)
	{
		case IN_SORTED:
			return (GvValue) i / 3;
		case IN_REVERSED:
			return (GvValue) (n - i) / 3;
		case IN_ALL_EQUAL:
			return -1.5f;
		case IN_FEW_VALUES:
			return (GvValue) (random % 5);
		case IN_ZEROS:
			return random % 2 ? 0.0f : -0.0f;
		case IN_SPECIAL:
			return random % 2 ? special() : unit_float();
		case IN_ALL_NAN:
			return from_bits(0x7F800001 | (random & 0x80400FF0));
		case IN_PIPE:
			return (GvValue) (i < n / 2 ? i : n - i);
		case IN_SAW:
			return (GvValue) (i % 1000);
		case IN_ALIKE:
			return from_bits(0x3F800000 | (random & 0xFF));
		case IN_SPREAD:
			return from_bits(random & 0xFFFF0000);
		default:
			return unit_float() + unit_float() / (DOUBLES ? 1 << 30 : 1);
	}
}

/*
 * Each level's sample gets smaller values than the other items, so only items
 * below the last splitter leave the range.  That it works shows where the
 * range is divided evenly in the end.
 */
static void
make_sample_hostile(GvValue *x, int64_t n)
{
	FREED int64_t *left = malloc(sizeof(int64_t) * n);
	int64_t		nleft = n;
	int64_t		i;
	int			level;

	for (i = 0; i < n; i++)
	{
		left[i] = i;
		x[i] = 1e7f;
	}
	for (level = 0;
		 level < GV_SAMPLED_LEVELS && nleft > GV_UNDIVIDED_ITEMS; level++)
	{
		uint64_t	state = GV_SAMPLE_SEED(level);
		int			first = level * GV_SAMPLE_ITEMS;
		int			last = GV_NSPLITTERS * (GV_SAMPLE_ITEMS / GV_BUCKETS);
		int64_t		nkept = 0;
		int			j;

		for (j = 0; j < GV_SAMPLE_ITEMS; j++)
			x[left[gv_sample_place(&state, j, nleft)]] = (GvValue) (first + j);
		for (i = 0; i < nleft; i++)
			if (x[left[i]] >= (GvValue) (first + last))
				left[nkept++] = left[i];
		nleft = nkept;
	}
}

static GvItem
median_of(GvItem a, GvItem b, GvItem c)
{
	if ((a < b) != (a < c))
		return a;
	return (b < a) != (b < c) ? b : c;
}

/*
 * The pivots that multiselect.c takes, 12 splits in a row, are among the smallest
 * items left: its splits are repeated here.
 */
static void
make_pivot_hostile(GvValue *x, int64_t n)
{
	FREED GvItem *items = malloc(sizeof(GvItem) * n);
	GvItem	   *left = items;
	int64_t		nleft = n;
	int64_t		i;
	int			next = 0;
	int			round;

	for (i = 0; i < n; i++)
		items[i] = gv_item(x[i] = 1e7f, i);
	for (round = 0; round < 12 && nleft > 100; round++)
	{
		GvItem		nine[9];
		GvItem		pivot;
		int64_t		nbefore = 0;

		for (i = 0; i < 9; i++)
		{
			GvItem	   *item = &left[i * ((nleft - 1) / 8)];
			int64_t		position = gv_item_position(*item);

			if (x[position] == 1e7f)
				*item = gv_item(x[position] = (GvValue) next++, position);
			nine[i] = *item;
		}
		pivot = median_of(median_of(nine[0], nine[1], nine[2]),
						  median_of(nine[3], nine[4], nine[5]),
						  median_of(nine[6], nine[7], nine[8]));
		for (i = 0; i < nleft; i++)
		{
			GvItem		item = left[i];

			left[i] = left[nbefore];
			left[nbefore] = item;
			nbefore += item < pivot;
		}
		left += nbefore;
		nleft -= nbefore;
	}
}

GvValue *
input_values(Input input, int64_t n)
{
	GvValue    *x = unit_alloc(sizeof(GvValue) * n);
	int64_t		i;

	if (input == IN_SAMPLE_HOSTILE)
		make_sample_hostile(x, n);
	else if (input == IN_PIVOT_HOSTILE)
		make_pivot_hostile(x, n);
	else
		for (i = 0; i < n; i++)
			x[i] = value_at(input, i, n);
	return x;
}

static int
compare_sorted(const void *a, const void *b)
{
	const Sorted *x = a;
	const Sorted *y = b;

	if (isnan(x->value) != isnan(y->value))
		return isnan(x->value) ? 1 : -1;
	if (!isnan(x->value) && x->value != y->value)
		return x->value < y->value ? -1 : 1;
	return x->position < y->position ? -1 : x->position > y->position;
}

Sorted *
sort_row(const GvValue *row, int64_t n)
{
	Sorted	   *sorted = malloc(sizeof(Sorted) * n);
	int64_t		i;

	for (i = 0; i < n; i++)
	{
		sorted[i].position = (uint32_t) i;
		sorted[i].value = row[i];
		if (row[i] == 0)
			sorted[i].value = 0.0f;
		if (isnan(row[i]))
			sorted[i].value = NAN;
	}
	qsort(sorted, n, sizeof(Sorted), compare_sorted);
	return sorted;
}

/* One call. */
static void
check_method(SelectRows select_rows, Input input, const GvSelect *spec,
			 const GvValue *values, Sorted *const *sorted)
{
	int64_t		n = spec->rows * spec->k;
	OWN uint32_t *positions = unit_alloc(sizeof(uint32_t) * n);
	OWN GvValue *selected = unit_alloc(sizeof(GvValue) * n);
	GvStatus	status = select_rows(spec, values, positions, selected);
	int64_t		nwrong = 0;
	int64_t		i;

	for (i = 0; i < n; i++)
	{
		const Sorted *expected = &sorted[i / spec->k][i % spec->k];

		nwrong += positions[i] != expected->position ||
			!same_bits(selected[i], expected->value);
	}
	CHECK(status == GV_OK && nwrong == 0,
		  "%s: status %d, %ld wrong; rows %ld columns %ld k %d input %d",
		  gv_select_name(spec->method), status, (long) nwrong,
		  (long) spec->rows, (long) spec->columns, spec->k, input);
}

void
check_ks(SelectRows select_rows, Input input, const GvValue *values,
		 int64_t rows, int64_t columns, Sorted *const *sorted,
		 const int64_t *ks, int nks)
{
	GvSelect	spec = {.rows = rows,.columns = columns,.doubles = DOUBLES};
	int			i;

	for (i = 0; i < nks; i++)
		for (spec.method = GV_SELECT_WARP; spec.method < GV_NSELECT;
			 spec.method++)
		{
			spec.k = (int32_t) ks[i];
			if (ks[i] >= 1 && ks[i] <= columns &&
				(spec.method != GV_SELECT_WARP || ks[i] <= GV_WARP_MAX_K))
				check_method(select_rows, input, &spec, values, sorted);
		}
}

void
check_matrix(SelectRows select_rows, Input input, const GvValue *values,
			 int64_t rows, int64_t columns, const int64_t *ks, int nks)
{
	FREED Sorted **sorted = calloc(rows, sizeof(Sorted *));
	int64_t		row;

	for (row = 0; row < rows; row++)
		sorted[row] = sort_row(values + row * columns, columns);
	check_ks(select_rows, input, values, rows, columns, sorted, ks, nks);
	for (row = 0; row < rows; row++)
		free(sorted[row]);
}

void
check_quantiles(const Sorted *sorted, int64_t n, const int64_t *ranks,
				const GvValue *quantiles, const int64_t *errors, int32_t nranks,
				bool approximate, Input input)
{
	int64_t		bound = approximate && n > GV_SAMPLE_ITEMS ? n / 64 : 0;
	int64_t		worst = 0;
	int32_t		nwrong = 0;
	int32_t		i;

	for (i = 0; i < nranks; i++)
	{
		int64_t		rank = ranks[i] + errors[i];
		int64_t		size = errors[i] < 0 ? -errors[i] : errors[i];

		worst = size > worst ? size : worst;
		nwrong += rank < 0 || rank >= n ||
			!same_bits(quantiles[i], sorted[rank].value);
	}
	CHECK(nwrong == 0, "%d of %d wrong, n %ld input %d %d", nwrong, nranks,
		  (long) n, input, approximate);
	/* a sample that the input was made for has no bound */
	if (input != IN_SAMPLE_HOSTILE || !approximate)
		CHECK(worst <= bound, "error %ld, n %ld input %d", (long) worst,
			  (long) n, input);
}

void
check_selection_set(Input input, int64_t n, int32_t k, GvSelectMethod method)
{
	OWN GvValue *values = input_values(input, n);
	FREED Sorted *sorted = sort_row(values, n);
	GvSetSpec	spec = {.kind = GV_SET_SELECT,.dims = 1 + DOUBLES,.k = k,
	.method = method,.nrows = n};
	SetInputs	inputs = {NULL, NULL, (const float *) values, n,
	1 + (int64_t) (unit_random() % n), NULL};
	OWN int64_t *positions = unit_alloc(sizeof(int64_t) * k);
	OWN GvValue *selected = unit_alloc(sizeof(GvValue) * k);
	int64_t		nwrong = 0;
	GvSetDone	done;
	GvSet	   *set = finished_set(&spec, &inputs, &done, NULL);
	int32_t		i;

	CHECK(done.finished && !done.again && done.passes == 1, "done");
	OK(gv_set_get(set, GV_SET_POSITIONS, 0, k, positions));
	OK(gv_set_get(set, GV_SET_VALUES, 0, k / 2, selected));
	OK(gv_set_get(set, GV_SET_VALUES, k / 2, k - k / 2, selected + k / 2));
	for (i = 0; i < k; i++)
		nwrong += positions[i] != sorted[i].position ||
			!same_bits(selected[i], sorted[i].value);
	CHECK(nwrong == 0, "%ld wrong, n %ld k %d input %d", (long) nwrong,
		  (long) n, k, input);
	gv_set_drop(set);
}

void
check_quantiles_set(Input input, int64_t n, int32_t nranks, bool approximate)
{
	OWN GvValue *values = input_values(input, n);
	FREED Sorted *sorted = sort_row(values, n);
	OWN int64_t *ranks = unit_alloc(sizeof(int64_t) * nranks);
	GvSetSpec	spec = {.kind = GV_SET_QUANTILES,.dims = 1 + DOUBLES,
		.approximate = approximate,.nqueries = nranks,.nrows = n};
	SetInputs	inputs = {ranks, NULL, (const float *) values, n,
	1 + (int64_t) (unit_random() % n), NULL};
	OWN GvValue *quantiles = unit_alloc(sizeof(GvValue) * nranks);
	OWN int64_t *errors = unit_alloc(sizeof(int64_t) * nranks);
	GvSetDone	done;
	GvSet	   *set;
	int32_t		i;

	for (i = 0; i < nranks; i++)
		ranks[i] = (int64_t) (unit_random() % n);
	ranks[nranks / 2] = n - 1;
	ranks[nranks - 1] = 0;
	set = finished_set(&spec, &inputs, &done, NULL);
	OK(gv_set_get(set, GV_SET_VALUES, 0, nranks, quantiles));
	OK(gv_set_get(set, GV_SET_RANK_ERRORS, 0, nranks, errors));
	check_quantiles(sorted, n, ranks, quantiles, errors, nranks, approximate,
					input);
	gv_set_drop(set);
}
