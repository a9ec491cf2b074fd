/*
 * selections.c
 *		See selections.h.
 */
#include "selections.h"

static float
from_bits(uint32_t bits)
{
	float		value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static float
special(void)
{
	static const uint32_t bits[] = {0x7FC00000, 0xFFC00000, 0x7F800001,
		0xFFFFFFFF, 0x7F800000, 0xFF800000, 0x00000000, 0x80000000, 0x00000001,
	0x80000001, 0x7F7FFFFF, 0xFF7FFFFF};

	return from_bits(bits[unit_random() % 12]);
}

static float
value_at(Input input, int64_t i, int64_t n)
{
	uint32_t	random = (uint32_t) unit_random();

	switch (input)
	{
		case IN_SORTED:
			return (float) i / 3;
		case IN_REVERSED:
			return (float) (n - i) / 3;
		case IN_ALL_EQUAL:
			return -1.5f;
		case IN_FEW_VALUES:
			return (float) (random % 5);
		case IN_ZEROS:
			return random % 2 ? 0.0f : -0.0f;
		case IN_SPECIAL:
			return random % 2 ? special() : unit_float();
		case IN_ALL_NAN:
			return from_bits(0x7F800001 | (random & 0x80400FF0));
		case IN_PIPE:
			return (float) (i < n / 2 ? i : n - i);
		case IN_SAW:
			return (float) (i % 1000);
		case IN_ALIKE:
			return from_bits(0x3F800000 | (random & 0xFF));
		case IN_SPREAD:
			return from_bits(random & 0xFFFF0000);
		default:
			return unit_float();
	}
}

/*
 * Each level's sample gets smaller values than the other items, so only items
 * below the last splitter leave the range.  That it works shows where the
 * range is divided evenly in the end.
 */
static void
make_sample_hostile(float *x, int64_t n)
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
			x[left[gv_sample_place(&state, j, nleft)]] = (float) (first + j);
		for (i = 0; i < nleft; i++)
			if (x[left[i]] >= (float) (first + last))
				left[nkept++] = left[i];
		nleft = nkept;
	}
}

static uint64_t
median_of(uint64_t a, uint64_t b, uint64_t c)
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
make_pivot_hostile(float *x, int64_t n)
{
	FREED uint64_t *items = malloc(sizeof(uint64_t) * n);
	uint64_t   *left = items;
	int64_t		nleft = n;
	int64_t		i;
	int			next = 0;
	int			round;

	for (i = 0; i < n; i++)
		items[i] = gv_item(x[i] = 1e7f, i);
	for (round = 0; round < 12 && nleft > 100; round++)
	{
		uint64_t	nine[9];
		uint64_t	pivot;
		int64_t		nbefore = 0;

		for (i = 0; i < 9; i++)
		{
			uint64_t   *item = &left[i * ((nleft - 1) / 8)];
			int64_t		position = gv_item_position(*item);

			if (x[position] == 1e7f)
				*item = gv_item(x[position] = (float) next++, position);
			nine[i] = *item;
		}
		pivot = median_of(median_of(nine[0], nine[1], nine[2]),
						  median_of(nine[3], nine[4], nine[5]),
						  median_of(nine[6], nine[7], nine[8]));
		for (i = 0; i < nleft; i++)
		{
			uint64_t	item = left[i];

			left[i] = left[nbefore];
			left[nbefore] = item;
			nbefore += item < pivot;
		}
		left += nbefore;
		nleft -= nbefore;
	}
}

float *
input_values(Input input, int64_t n)
{
	float	   *x = unit_alloc(sizeof(float) * n);
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
sort_row(const float *row, int64_t n)
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
			sorted[i].value = from_bits(0x7FC00000);
	}
	qsort(sorted, n, sizeof(Sorted), compare_sorted);
	return sorted;
}

/* One call. */
static void
check_method(SelectRows select_rows, Input input, const GvSelect *spec,
			 const float *values, Sorted *const *sorted)
{
	int64_t		n = spec->rows * spec->k;
	OWN uint32_t *positions = unit_alloc(sizeof(uint32_t) * n);
	OWN float  *selected = unit_alloc(sizeof(float) * n);
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
check_ks(SelectRows select_rows, Input input, const float *values,
		 int64_t rows, int64_t columns, Sorted *const *sorted,
		 const int64_t *ks, int nks)
{
	GvSelect	spec = {.rows = rows,.columns = columns};
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
check_matrix(SelectRows select_rows, Input input, const float *values,
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
				const float *quantiles, const int64_t *errors, int32_t nranks,
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
