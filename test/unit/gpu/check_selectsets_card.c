/*
 * check_selectsets_card.c
 *		Sets that are selected from, and whose quantiles are found, on a
 *		device.
 */
#include "engine/gv_set.h"

/* gpu/device/device.h */
extern const GvSetOps gv_gpu_select_set;
extern const GvSetOps gv_gpu_quantiles_set;
#include "../engine/selections.h"
#include "searches.h"

/* Checks a set's outputs for these inputs. */
static void
check_select_set(Input input, int64_t n, int32_t k)
{
	GvSetSpec	spec = {.kind = GV_SET_SELECT,.dims = 1,.k = k,.nrows = n};
	GvSetDone	done = {0};
	OWN float  *values = input_values(input, n);
	FREED Sorted *sorted = sort_row(values, n);
	OWN int64_t *positions = unit_alloc(sizeof(int64_t) * k);
	OWN float  *selected = unit_alloc(sizeof(float) * k);
	void	   *set = NULL;
	int64_t		nwrong = 0;
	int32_t		i;

	CHECK(gv_gpu_select_set.size(&spec) > 4 * n, "size");
	CHECK(gv_gpu_select_set.create(&spec, &set) == GV_OK, "create");
	OK(gv_gpu_select_set.put(set, GV_SET_ROWS, values, 0, n / 3, NULL));
	CHECK(gv_gpu_select_set.put(set, GV_SET_ROWS, values + n / 3, n / 3,
								n - n / 3, NULL) == GV_OK, "put the rest");
	CHECK(gv_gpu_select_set.run(set, &done, NULL) == GV_OK &&
		  done.finished && !done.again && done.passes == 1, "run");
	OK(gv_gpu_select_set.get(set, GV_SET_POSITIONS, 0, k, positions));
	OK(gv_gpu_select_set.get(set, GV_SET_VALUES, 0, k / 2, selected));
	CHECK(gv_gpu_select_set.get(set, GV_SET_VALUES, k / 2, k - k / 2,
								selected + k / 2) == GV_OK, "the rest");
	for (i = 0; i < k; i++)
		nwrong += positions[i] != sorted[i].position ||
			!same_bits(selected[i], sorted[i].value);
	CHECK(nwrong == 0, "%ld wrong, n %ld k %d", (long) nwrong, (long) n, k);
	gv_gpu_select_set.drop(set);
}

static void
check_quantiles_set(int64_t n, bool approximate)
{
	GvSetSpec	spec = {.kind = GV_SET_QUANTILES,.dims = 1,.nqueries = 3,
	.nrows = n,.approximate = approximate};
	GvSetDone	done = {0};
	OWN float  *values = input_values(IN_SPECIAL, n);
	FREED Sorted *sorted = sort_row(values, n);
	const int64_t ranks[] = {n / 2, 0, n - 1};
	int64_t		errors[3];
	float		quantiles[3];
	void	   *set = NULL;
	int			i;

	CHECK(gv_gpu_quantiles_set.size(&spec) > 4 * n, "size");
	CHECK(gv_gpu_quantiles_set.create(&spec, &set) == GV_OK, "create");
	OK(gv_gpu_quantiles_set.put(set, GV_SET_RANKS, ranks, 0, 3, NULL));
	OK(gv_gpu_quantiles_set.put(set, GV_SET_ROWS, values, 0, n, NULL));
	CHECK(gv_gpu_quantiles_set.run(set, &done, NULL) == GV_OK &&
		  done.finished, "run");
	OK(gv_gpu_quantiles_set.get(set, GV_SET_VALUES, 0, 3, quantiles));
	OK(gv_gpu_quantiles_set.get(set, GV_SET_RANK_ERRORS, 0, 3, errors));
	for (i = 0; i < 3; i++)
		CHECK((approximate || errors[i] == 0) &&
			  same_bits(quantiles[i], sorted[ranks[i] + errors[i]].value),
			  "rank %d, error %ld", i, (long) errors[i]);
	gv_gpu_quantiles_set.drop(set);
}

/*
 * Sets take no more memory than they say, sorts of half of the values, or of
 * all, included.
 */
static void
check_set_bytes(void)
{
	int64_t		n = device_is_emulated() ? 30000 : 30000000;
	const GvSetSpec specs[2] = {
		{.kind = GV_SET_SELECT,.dims = 1,.k = (int32_t) n / 2,.nrows = n},
		{.kind = GV_SET_QUANTILES,.dims = 1,.nqueries = 2000,.nrows = n}
	};
	const GvSetOps *kinds[2] = {&gv_gpu_select_set, &gv_gpu_quantiles_set};
	OWN float  *values = input_values(IN_UNIFORM, n);
	int64_t		ranks[2000];
	int			i;

	for (i = 0; i < 2000; i++)
		ranks[i] = n / 2000 * i;
	for (i = 0; i < 2; i++)
	{
		int64_t		before = device_used();
		int64_t		size = kinds[i]->size(&specs[i]);
		int64_t		taken;
		GvSetDone	done = {0};
		void	   *set = NULL;

		CHECK(kinds[i]->create(&specs[i], &set) == GV_OK &&
			  (i == 0 || kinds[i]->put(set, GV_SET_RANKS, ranks, 0, 2000,
									   NULL) == GV_OK) &&
			  kinds[i]->put(set, GV_SET_ROWS, values, 0, n, NULL) == GV_OK &&
			  kinds[i]->run(set, &done, NULL) == GV_OK, "run");
		taken = device_used() - before;
		CHECK(taken > 12 * n && taken <= size + DEVICE_PIECES,
			  "kind %d: %ld bytes of %ld", specs[i].kind, (long) taken,
			  (long) size);
		kinds[i]->drop(set);
	}
}

/* A stop is asked before rows are copied and before the device begins. */
static void
check_set_stop(void)
{
	GvSetSpec	spec = {.kind = GV_SET_SELECT,.dims = 1,.k = 1,.nrows = 3};
	const float values[] = {3, 1, 2};
	Patience	patience = {0, 2};
	GvStop		stop = {lose_patience, &patience};
	GvSetDone	done = {0};
	void	   *set = NULL;

	CHECK(gv_gpu_select_set.create(&spec, &set) == GV_OK, "create");
	OK(gv_gpu_select_set.put(set, GV_SET_ROWS, values, 0, 3, &stop));
	CHECK(gv_gpu_select_set.run(set, &done, &stop) == GV_CANCELED &&
		  !done.finished, "run");
	gv_gpu_select_set.drop(set);
}

/* Without memory there is no set, or no answer, and nothing is kept. */
static void
check_set_memory(void)
{
	GvSetSpec	spec = {.kind = GV_SET_SELECT,.dims = 1,.k = 5,.nrows = 9};
	const float values[] = {3, 1, 2, 6, 5, 4, 9, 8, 7};
	GvStatus	status = GV_NO_MEMORY;
	int			n;

	if (!device_is_emulated())
		return;
	for (spec.method = GV_SELECT_WARP; spec.method < GV_NSELECT;
		 spec.method++, status = GV_NO_MEMORY)
	{
		for (n = 1; n < 20 && status == GV_NO_MEMORY; n++)
		{
			GvSetDone	done = {0};
			void	   *set = NULL;

			gv_emulated_fault = n;
			status = gv_gpu_select_set.create(&spec, &set);
			if (status == GV_OK)
				status = gv_gpu_select_set.put(set, GV_SET_ROWS, values, 0, 9,
											   NULL);
			if (status == GV_OK)
				status = gv_gpu_select_set.run(set, &done, NULL);
			gv_emulated_fault = 0;
			if (set != NULL)
				gv_gpu_select_set.drop(set);
		}
		CHECK(status == GV_OK && n > (spec.method == GV_SELECT_SAMPLE ? 5 : 4),
			  "method %d, %d: %d", spec.method, n, status);
	}
}

void
test_select_sets_card(void)
{
	unit_seed = 1;
	check_select_set(IN_UNIFORM, unit_small ? 5000 : 3000000, 100);
	check_select_set(IN_SPECIAL, 100, 100);
	check_select_set(IN_ALL_EQUAL, 20000, unit_small ? 4 : 9000);
	check_quantiles_set(5001, false);
	check_quantiles_set(5001, true);
	check_set_bytes();
	check_set_stop();
	check_set_memory();
}
