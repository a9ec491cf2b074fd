/*
 * hopper.cpp
 *		Barriers, copies and products of emulated_hopper.h.
 */
#include "runner.h"
#include "gpu/product/wgmma.cuh"

void
gv_emulated_send(void *shared, std::vector<char> &&bytes, uint64_t *barrier)
{
	gv_running->sent.push_back({shared, std::move(bytes), barrier});
	gv_running->progress = true;
}

void
gv_emulated_barrier_count(uint64_t *barrier, int arrivals, int bytes)
{
	gv_emulated_barrier *it = gv_emulated_barrier_of(barrier);

	if (it->missing < arrivals)
		gv_break_rule("more arrivals than a barrier was made for");
	it->missing -= (uint8_t) arrivals;
	it->bytes += bytes;
	if (it->missing == 0 && it->bytes == 0)
	{
		it->missing = it->arrivals;
		it->phases++;
	}
	gv_running->progress = true;
}

/* Bytes that count for a barrier arrive. */
static void
receive(uint64_t *barrier)
{
	std::vector<GvSent> all = std::move(gv_running->sent);

	gv_running->sent.clear();
	for (GvSent &sent : all)
		if (sent.barrier == barrier)
		{
			memcpy(sent.shared, sent.bytes.data(), sent.bytes.size());
			gv_emulated_barrier_count(barrier, 0, -(int) sent.bytes.size());
		}
		else
			gv_running->sent.push_back(std::move(sent));
}

void
gv_emulated_barrier_wait(uint64_t *barrier, int odd)
{
	const gv_emulated_barrier *it = gv_emulated_barrier_of(barrier);

	gv_emulated_wait_until([=]
	{
		if (it->phases % 2 == odd)
			receive(barrier);
		return it->phases % 2 != odd;
	});
}

void
gv_emulated_product(float (*sums)[4], int n, uint64_t a, uint64_t b)
{
	gv_running->multiplies = true;
	gv_running->fibers[gv_running->current].products.back().push_back({sums, n, a, b});
}

void
gv_emulated_products_commit()
{
	gv_running->multiplies = true;
	gv_running->fibers[gv_running->current].products.emplace_back();
}

/* 16 halves of a row of an operand, from its begin on. */
static void
take_halves(uint64_t operand, int row, float halves[GV_HOPPER_DEPTH])
{
	static const std::vector<float> all = []
	{
		std::vector<float> made(1 << 16);

		for (size_t i = 0; i < made.size(); i++)
			made[i] = __half2float(__ushort_as_half((uint16_t) i));
		return made;
	}();

	for (int piece = 0; piece < 2; piece++)
	{
		const uint16_t *from = (const uint16_t *)
			gv_emulated_swizzle(operand * 16 + row * GV_HOPPER_ROW +
								piece * 16);

		for (int i = 0; i < 8; i++)
			halves[piece * 8 + i] = all[from[i]];
	}
}

/* This thread's part. */
static void
multiply(const GvToMultiply &product)
{
	int			lane = threadIdx.x % WARP;
	int			first = threadIdx.x % GV_WARPGROUP / WARP * 16 + lane / 4;
	float		rows[2][GV_HOPPER_DEPTH];

	for (int h = 0; h < 2; h++)
		take_halves(product.a, first + 8 * h, rows[h]);
	for (int j = 0; j < product.n; j++)
		for (int c = 0; c < 2; c++)
		{
			float		column[GV_HOPPER_DEPTH];

			take_halves(product.b, j * 8 + lane % 4 * 2 + c, column);
			for (int h = 0; h < 2; h++)
				for (int k = 0; k < GV_HOPPER_DEPTH; k++)
					product.sums[j][2 * h + c] += rows[h][k] * column[k];
		}
}

void
gv_emulated_products_wait(int left)
{
	std::deque<std::vector<GvToMultiply>> &groups =
		gv_running->fibers[gv_running->current].products;

	/* the last one is not committed */
	while ((int) groups.size() > left + 1)
	{
		for (const GvToMultiply &product : groups.front())
			multiply(product);
		groups.pop_front();
	}
}

static void
come(int number, int nthreads)
{
	GvGate	   *gate = &gv_running->turns[number];

	gv_running->progress = true;
	if (++gate->arrived == nthreads)
	{
		gate->arrived = 0;
		gate->passed++;
	}
}

void
gv_emulated_arrive(int number, int nthreads)
{
	come(number, nthreads);
}

void
gv_emulated_meet(int number, int nthreads)
{
	const GvGate *gate = &gv_running->turns[number];
	unsigned	turn = gate->passed;

	come(number, nthreads);
	gv_emulated_wait_for_gate(gate, turn);
}
