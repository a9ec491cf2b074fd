/*
 * check_keep.c
 *		What a scan keeps until it is finished, against a sort of all pairs.
 */
#include "cpu/pq/scan.h"
#include "unit.h"

typedef enum Shape
{
	UNIFORM,
	ASCENDING,
	DESCENDING,					/* each pair is better than all before */
	FEW_VALUES,
	ALL_EQUAL,
	HUGE_VALUES,				/* overflows and infinities among others */
	TINY_VALUES,
	FAR_FROM_ZERO,				/* a few floats apart */
	ENDING_LOW,					/* the best come last, far below the others */
	NSHAPES
} Shape;

static float
score_at(Shape shape, int i, int n)
{
	static const float huge[] = {GV_SCORE_MAX, -GV_SCORE_MAX, -HUGE_VALF, 1e38f,
	-1e38f, 0.0f, -0.0f, 1.0f};
	float		x = unit_float();

	switch (shape)
	{
		case ASCENDING:
			return (float) i + x / 4;
		case DESCENDING:
			return (float) (n - i) * 1e-3f;
		case FEW_VALUES:
			return (float) (unit_random() % 5);
		case ALL_EQUAL:
			return -1.5f;
		case HUGE_VALUES:
			return unit_random() % 2 ? x : huge[unit_random() % 8];
		case TINY_VALUES:
			return x * 1e-38f;
		case FAR_FROM_ZERO:
			return 1e6f + x;
		case ENDING_LOW:
			return i < n * 9 / 10 ? 1e9f + x : x;
		default:
			return x;
	}
}

/* The best of n pairs, offered a few at a time and now and then moved. */
static void
check_shape(Shape shape, int32_t capacity, int n, float reach)
{
	int32_t		allocated = gv_kept_allocation(capacity);
	OwnTopK		best = new_topk(capacity, false);
	OWN Pair   *pairs = unit_alloc(sizeof(Pair) * (n + 1));
	GvKept		kept = {.capacity = capacity,.allocated = allocated};
	int			npairs = 0;
	int			i;

	kept.scores = unit_alloc(sizeof(float) * allocated);
	kept.ids = unit_alloc(sizeof(uint64_t) * allocated);
	gv_kept_reset(&kept, reach);
	for (i = 0; i < n;)
	{
		float		scores[GV_KEPT_MOST];
		uint64_t	ids[GV_KEPT_MOST];
		int			some = (int) (unit_random() % (GV_KEPT_MOST + 1));
		int			j;

		some = some < n - i ? some : n - i;
		for (j = 0; j < some; j++, i++)
		{
			scores[j] = score_at(shape, i, n);
			ids[j] = unit_random() % 1000;
			if (scores[j] <= reach)
				pairs[npairs++] = (Pair) {scores[j], ids[j]};
		}
		gv_keep(&kept, scores, ids, some, &best);
		if (unit_random() % 200 == 0)
			gv_kept_give(&kept, &best);
	}
	gv_kept_give(&kept, &best);
	check_topk(&best, pairs, npairs);
	unit_free(kept.scores);
	unit_free(kept.ids);
}

/* Where one pair in many is needed, few get as far as a heap. */
static void
check_few_given(void)
{
	int32_t		capacity = 200;
	int32_t		allocated = gv_kept_allocation(capacity);
	OwnTopK		best = new_topk(allocated, false);
	GvKept		kept = {.capacity = capacity,.allocated = allocated};
	int			i;

	kept.scores = unit_alloc(sizeof(float) * allocated);
	kept.ids = unit_alloc(sizeof(uint64_t) * allocated);
	gv_kept_reset(&kept, GV_SCORE_MAX);
	for (i = 0; i < 100000; i++)
	{
		float		score = unit_float() + unit_float() + unit_float();
		uint64_t	id = (uint64_t) i;

		gv_keep(&kept, &score, &id, 1, &best);
	}
	CHECK(best.count == 0, "%d given early", best.count);
	gv_kept_give(&kept, &best);
	CHECK(best.count >= capacity && best.count < capacity * 3 / 2,
		  "%d given", best.count);
	unit_free(kept.scores);
	unit_free(kept.ids);
}

void
test_keep(void)
{
	static const int32_t capacities[] = {1, 2, 10, 31, 80, 200, 1000, 5000};
	int			rounds = unit_small ? 1 : 5;
	int			round;
	int			c;
	Shape		shape;

	for (round = 0; round < rounds; round++)
		for (c = 0; c < 8; c++)
			for (shape = UNIFORM; shape < NSHAPES; shape++)
			{
				int			n = (int) (unit_random() % 20000);

				check_shape(shape, capacities[c], n, GV_SCORE_MAX);
				check_shape(shape, capacities[c], n / 4, unit_float());
			}
	CHECK(gv_kept_allocation(INT32_MAX) == INT32_MAX, "room");
	check_few_given();
}
