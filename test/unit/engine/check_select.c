/*
 * check_select.c
 *		Selection of the k first of each row, by each method, against qsort.
 */
#include "selections.h"

static GvStatus
select_rows(const GvSelect *spec, const GvValue *values, uint32_t *positions,
			GvValue *selected)
{
	OWN void   *scratch = unit_alloc(gv_select_scratch(spec));

	return gv_select(spec, values, positions, selected, scratch, NULL);
}

static void
check_input(Input input, int64_t rows, int64_t columns, const int64_t *ks,
			int nks)
{
	OWN GvValue *values = input_values(input, rows * columns);

	check_matrix(select_rows, input, values, rows, columns, ks, nks);
}

static void
check_small_rows(void)
{
	int64_t		all[33];
	int64_t		n;
	Input		input;

	for (n = 1; n <= 33; n++)
	{
		all[n - 1] = n;
		for (input = 0; input < NINPUTS; input++)
			check_input(input, 3, n, all, (int) n);
	}
}

static void
check_rows(void)
{
	static const int64_t sizes[] = {63, 64, 65, 127, 129, 1000, 4095, 4097,
	10000, 65535, 65536, 65537};
	int			nsizes = unit_small ? 8 : 12;
	int			s;
	Input		input;

	for (s = 0; s < nsizes; s++)
		for (input = 0; input < NINPUTS; input++)
		{
			int64_t		n = sizes[s];
			const int64_t ks[] = {1, 2, 63, 100, 2047, 2048, 2049, n / 2, n};

			check_input(input, 1, n, n > 10000 ? ks + 4 : ks,
						n > 10000 ? 3 : 9);
		}
}

static void
check_long_rows(void)
{
	int64_t		n = unit_small ? 70000 : 200000;
	Input		input;

	for (input = 0; input < NINPUTS; input++)
	{
		const int64_t ks[] = {1 + (int64_t) (unit_random() % 2048),
		1 + (int64_t) (unit_random() % n)};

		check_input(input, 1, n, ks, 2);
	}
	if (!unit_small)
	{
		n = 1000000;
		check_input(IN_UNIFORM, 1, n, (const int64_t[]) {1, 1000, n}, 3);
		check_input(IN_SAMPLE_HOSTILE, 1, n, (const int64_t[]) {n / 2}, 1);
		check_input(IN_ALL_EQUAL, 1, n, (const int64_t[]) {n - 1}, 1);
	}
}

static void
check_many_rows(void)
{
	const int64_t ks[] = {1, 3, 7};

	check_input(IN_SPECIAL, unit_small ? 1000 : 100000, 7, ks, 3);
	check_input(IN_UNIFORM, 300, 300, ks, 3);
	check_input(IN_FEW_VALUES, 37, 5000, ks, 3);
}

/* Keys ascend with values, and give them back. */
static void
check_keys(void)
{
	int			i;

	for (i = 0; i < 10000; i++)
	{
		uint64_t	bits = unit_random();
		uint64_t	other = unit_random();
		GvValue		x[2];
		FREED Sorted *sorted = NULL;
		uint64_t	first;

		memcpy(&x[0], &bits, sizeof(x[0]));
		memcpy(&x[1], i % 2 ? &other : &bits, sizeof(x[1]));
		sorted = sort_row(x, 2);
		first = gv_item(x[0], 0) < gv_item(x[1], 1) ? 0 : 1;
		CHECK(first == sorted[0].position, "%lx %lx", (long) bits, (long) other);
		CHECK(same_bits(gv_key_value(gv_key(x[first])),
						sorted[0].value), "%lx", (long) bits);
	}
}

/* Where multiselect.c sorts, whatever the pivots. */
static void
check_sort(Input input, int64_t n)
{
	OWN GvValue *x = input_values(input, n);
	FREED Sorted *sorted = sort_row(x, n);
	OWN GvItem *items = unit_alloc(sizeof(GvItem) * n);
	GvPoll		poll = {NULL, 0};
	int64_t		nwrong = 0;
	int64_t		i;

	gv_items_load(x, n, 0, items);
	CHECK(gv_items_sort(items, n, &poll), "sort");
	for (i = 0; i < n; i++)
		nwrong += gv_item_position(items[i]) != sorted[i].position;
	CHECK(nwrong == 0, "%ld wrong, input %d", (long) nwrong, input);
	/* 2 steps an item and split: the range is halved where pivots are bad */
	CHECK(poll.work < 200 * n, "%ld steps for %ld, input %d",
		  (long) poll.work, (long) n, input);
}

/* Who asks for the end gets it, whenever that is. */
static void
check_stop(GvSelectMethod method, int64_t n, int32_t k, int nasked)
{
	GvSelect	spec = {1, n, k, method, DOUBLES};
	OWN GvValue *values = input_values(IN_REVERSED, n);
	OWN void   *scratch = unit_alloc(gv_select_scratch(&spec));
	OWN uint32_t *positions = unit_alloc(sizeof(uint32_t) * k);
	OWN GvValue *selected = unit_alloc(sizeof(GvValue) * k);
	Patience	patience = {0, 0};
	GvStop		stop = {lose_patience, &patience};
	GvStatus	status;

	do
	{
		patience.asked = 0;
		patience.last++;
		status = gv_select(&spec, values, positions, selected, scratch, &stop);
		CHECK((status == GV_OK) == (patience.asked < patience.last) &&
			  (status == GV_OK || status == GV_CANCELED),
			  "%s: status %d", gv_select_name(method), status);
	} while (status != GV_OK);
	CHECK(patience.asked >= nasked, "%s asked %d times",
		  gv_select_name(method), patience.asked);
}

#define BAD(change) (wrong = spec, wrong.change, \
	gv_select(&wrong, x, positions, out, scratch, NULL))

/* The methods that AUTO chooses. */
static void
check_choice(void)
{
	GvSelect	sparse = {1, 1000, 10, GV_SELECT_AUTO, DOUBLES};
	GvSelect	dense = {1, 1000, 500, GV_SELECT_AUTO, DOUBLES};
	GvSelect	long_row = {1, INT64_C(1) << 30, 5000, GV_SELECT_AUTO, DOUBLES};

	CHECK(gv_select_choose(&sparse) == GV_SELECT_WARP, "sparse");
	CHECK(gv_select_choose(&dense) == GV_SELECT_MULTI, "dense");
	CHECK(gv_select_choose(&long_row) == GV_SELECT_SAMPLE, "long");
	CHECK(gv_select_scratch(&long_row) < 2 << 20, "memory for a long row");
	dense.method = GV_SELECT_SAMPLE;
	CHECK(gv_select_choose(&dense) == GV_SELECT_SAMPLE, "chosen already");
	CHECK(strcmp(gv_select_name(GV_SELECT_WARP), "warp") == 0, "name");
}

static void
check_invalid(void)
{
	static char scratch[4096] __attribute__((aligned(64)));
	GvValue		x[8] = {0};
	GvValue		out[8];
	uint32_t	positions[8];
	GvStop		bad_stop = {NULL, NULL};
	GvSelect	spec = {2, 4, 2, GV_SELECT_AUTO, DOUBLES};
	GvSelect	wrong;

	INVALID(BAD(rows = 0));
	INVALID(BAD(rows = INT64_MAX / 8));
	INVALID(BAD(columns = 0));
	INVALID(BAD(columns = GV_SELECT_MAX_N + 1));
	INVALID(BAD(k = 0));
	INVALID(BAD(k = 5));
	INVALID(BAD(method = GV_NSELECT));
	CHECK(gv_select_scratch(&wrong) == 0, "scratch of an invalid spec");
	CHECK(gv_select_choose(&wrong) == GV_SELECT_AUTO, "method of one");
	wrong = (GvSelect) {1, 5000, GV_WARP_MAX_K + 1, GV_SELECT_WARP, DOUBLES};
	CHECK(gv_select_scratch(&wrong) == 0, "scratch of too large a k");
	INVALID(gv_select(NULL, x, positions, out, scratch, NULL));
	INVALID(gv_select(&spec, NULL, positions, out, scratch, NULL));
	INVALID(gv_select(&spec, x, NULL, out, scratch, NULL));
	INVALID(gv_select(&spec, x, positions, NULL, scratch, NULL));
	INVALID(gv_select(&spec, x, positions, out, NULL, NULL));
	INVALID(gv_select(&spec, x, positions, out, scratch + 4, NULL));
	INVALID(gv_select(&spec, x, positions, out, scratch, &bad_stop));
}

void
test_select(void)
{
	int64_t		n = unit_small ? 20000 : 100000;
	Input		input;

	check_keys();
	for (input = 0; input < NINPUTS; input++)
		check_sort(input, n);
	check_small_rows();
	check_rows();
	check_long_rows();
	check_many_rows();
	n = unit_small ? 1 << 20 : 1 << 22;
	check_stop(GV_SELECT_WARP, n, 1000, unit_small ? 0 : 1);
	check_stop(GV_SELECT_SAMPLE, n, (int32_t) (n / 4), unit_small ? 0 : 3);
	check_stop(GV_SELECT_MULTI, n, (int32_t) (n / 4), unit_small ? 0 : 3);
	check_choice();
	check_invalid();
}
