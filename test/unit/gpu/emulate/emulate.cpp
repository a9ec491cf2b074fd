/*
 * emulate.cpp
 *		Runs the blocks of a kernel on the host, every thread a fiber.
 *
 * A fiber runs until it needs others: at a shuffle or vote the 32 of its warp,
 * at __syncthreads all of its block.  When no fiber can go on, a kernel has
 * broken CUDA's rules (a thread missed a barrier), and the program aborts.
 */
#include "runner.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define STACK_BYTES		(128 * 1024)
#define STACK_STEP		192		/* stacks' ends are not all in the same set of
								 * a cache */
#define WARP_ROUNDS		64

dim3		threadIdx;
dim3		blockIdx;
dim3		blockDim;
dim3		gridDim;
/* Blocks' memory, to be used again; what looks for leaks finds it here. */
static std::vector<GvRunner *> &spare = *new std::vector<GvRunner *>;
GvRunner   *gv_running;

/* All that is declared __shared__. */
extern char __start_gv_shared[] __attribute__((weak));
extern char __stop_gv_shared[] __attribute__((weak));

static void
begin_switch(void **fake_stack, const void *stack, size_t bytes)
{
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_start_switch_fiber(fake_stack, stack, bytes);
#endif
}

static void
end_switch(void *fake_stack, const void **stack, size_t *bytes)
{
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(fake_stack, stack, bytes);
#endif
}

/*
 * A function of its own: a compiler may think that no jump comes back.  No
 * frame is left by it, so the sanitizer has nothing to forget, which would be
 * a system call and the whole stack's shadow each time.
 */
static void __attribute__((noipa, no_sanitize("address")))
go_to(void **place)
{
	__builtin_longjmp(place, 1);
}

/* To the scheduler or another fiber; returns when one comes back to this. */
static void __attribute__((noipa))
leave(GvState *me, void **place)
{
	if (__builtin_setjmp(me->place) == 0)
		go_to(place);
}

/* From the scheduler to a fiber; returns when that leaves. */
static void __attribute__((noipa))
enter(GvState *state)
{
	if (__builtin_setjmp(gv_running->scheduler_place) != 0)
		return;
	if (state->begun)
		go_to(state->place);
	state->begun = true;
	setcontext(&gv_running->fibers[gv_running->current].context);
}

static inline bool
can_run(const GvState *state)
{
	return !state->done &&
		(state->gate == NULL || state->gate->passed != state->turn);
}

/*
 * Where the current fiber, which cannot go on, goes: to the next one of its
 * warp that can or, at the end of the warp, to the scheduler.  Each way is a
 * jump that a processor does not foresee, so one is better than two.
 */
static inline void **
next_place()
{
#if !defined(__SANITIZE_ADDRESS__)
	GvRunner   *runner = gv_running;
	int			nthreads = (int) runner->grid->kernel->threads.x;
	int			next;

	for (next = runner->current + 1; next % WARP != 0 && next < nthreads;
		 next++)
		if (can_run(&runner->states[next]))
		{
			if (!runner->states[next].begun)
				break;
			runner->current = next;
			threadIdx.x = next;
			return runner->states[next].place;
		}
#endif
	return gv_running->scheduler_place;
}

/*
 * Let others run.  It is a part of its callers, and these of theirs, because a
 * processor foresees no return after a switch.
 */
static inline void __attribute__((always_inline))
yield()
{
	GvState    *me = &gv_running->states[gv_running->current];
	void	   *fake_stack = NULL;

	begin_switch(&fake_stack, gv_running->scheduler_stack,
				 gv_running->scheduler_bytes);
	leave(me, next_place());
	end_switch(fake_stack, &gv_running->scheduler_stack,
			   &gv_running->scheduler_bytes);
}

/* A fiber's life: the same thread of one block after another. */
static void
fiber_main()
{
	end_switch(NULL, &gv_running->scheduler_stack,
			   &gv_running->scheduler_bytes);
	for (;;)
	{
		gv_running->grid->kernel->work();
		gv_running->states[gv_running->current].done = true;
		gv_running->left--;
		gv_running->progress = true;
		yield();
	}
}

/* Wait until the gate has passed more than `turn` times. */
static inline void __attribute__((always_inline))
hold(const GvGate *gate, unsigned turn)
{
	if (gate->passed == turn)
	{
		GvState    *me = &gv_running->states[gv_running->current];

		me->gate = gate;
		me->turn = turn;
		yield();
		me->gate = NULL;
	}
	gv_running->progress = true;
}

void
gv_emulated_wait_for_gate(const GvGate *gate, unsigned turn)
{
	hold(gate, turn);
}

/* Wait until all have come; returns how many times they had before. */
static inline unsigned __attribute__((always_inline))
pass(GvGate *gate)
{
	unsigned	turn = gate->passed;

	gv_running->progress = true;
	if (++gate->arrived == gate->needed)
	{
		gate->arrived = 0;
		gate->passed++;
	}
	hold(gate, turn);
	return turn;
}

/* The value that lane `lane` of the warp brings to the same exchange. */
uint64_t
gv_emulated_exchange(uint64_t value, int lane)
{
	GvGate	   *gate = &gv_running->warps[threadIdx.x / WARP];

	gate->values[gate->passed % 2][threadIdx.x % WARP] = value;
	return gate->values[pass(gate) % 2][lane];
}

/* The values that all lanes of the warp bring to the same exchange. */
void
gv_emulated_share(uint64_t value, uint64_t values[WARP])
{
	GvGate	   *gate = &gv_running->warps[threadIdx.x / WARP];

	gate->values[gate->passed % 2][threadIdx.x % WARP] = value;
	memcpy(values, gate->values[pass(gate) % 2], sizeof(gate->values[0]));
}

void
__syncthreads()
{
	(void) pass(&gv_running->block);
}

uint4 *
gv_emulated_shared()
{
	return gv_running->shared.data();
}

/* Wait for what another thread will say. */
void
gv_emulated_wait_until(const std::function<bool()> &said)
{
	while (!said())
		yield();
	gv_running->progress = true;
}

/* Copies __shared__ variables, to or from where they stay while others run. */
static void
keep_statics(std::vector<char> *kept)
{
	kept->assign(__start_gv_shared, __stop_gv_shared);
}

static void
bring_statics(std::vector<char> *kept)
{
	std::copy(kept->begin(), kept->end(), __start_gv_shared);
	kept->clear();
}

/* The current fiber, until it leaves. */
static void
run_fiber(GvRunner *runner)
{
#if defined(__SANITIZE_ADDRESS__)
	begin_switch(&runner->scheduler_fake,
				 runner->fibers[runner->current].stack.get(), STACK_BYTES);
#endif
	threadIdx = dim3(runner->current, 0, 0);
	enter(&runner->states[runner->current]);
	end_switch(runner->scheduler_fake, NULL, NULL);
}

/*
 * A warp's fibers in turn as long as one gets on; false if none did.  Most
 * wait for others most of the time: those that a gate holds are not entered.
 * Not for ever: they may ask each other what another warp is to say.  A fiber
 * may hand on to later ones, so `current` is where to go on.
 */
static bool
run_warp(GvRunner *runner, int first, int end)
{
	bool		progress = false;
	int			round;

	for (round = 0; round < WARP_ROUNDS && (round == 0 || runner->progress);
		 round++)
	{
		runner->progress = false;
		for (runner->current = first; runner->current < end; runner->current++)
			if (can_run(&runner->states[runner->current]))
				run_fiber(runner);
		progress |= runner->progress;
	}
	return progress;
}

/*
 * A block's warps in turn until all are done, or have to wait for the grid.
 * Each goes as far as it can, so that its stacks stay in the cache.
 */
static void
run_fibers(GvRunner *runner)
{
	int			nthreads = (int) runner->grid->kernel->threads.x;

	while (runner->left > 0)
	{
		bool		progress = false;
		int			first;

		for (first = 0; first < nthreads; first += WARP)
			progress |= run_warp(runner, first,
								 std::min(first + WARP, nthreads));
		if (runner->left == 0 || progress)
			continue;
		if (runner->early && runner->waits)
			return;
		fprintf(stderr, "threads of a block wait for each other for ever\n");
		abort();
	}
	runner->over = true;
}

/* The same, in the midst of another block perhaps. */
void
gv_run_block(GvRunner *runner)
{
	const gv_emulated_kernel &kernel = *runner->grid->kernel;
	GvRunner	   *before = gv_running;
	dim3		its_thread = threadIdx;
	dim3		its_block = blockIdx;

	if (before != NULL)
		keep_statics(&before->statics);
	if (!runner->statics.empty())
		bring_statics(&runner->statics);
	gv_running = runner;
	blockIdx = dim3(runner->number % kernel.grid.x,
					runner->number / kernel.grid.x, 0);
	blockDim = kernel.threads;
	gridDim = kernel.grid;
	run_fibers(runner);
	gv_running = before;
	if (!runner->over)
		keep_statics(&runner->statics);
	if (before != NULL)
	{
		bring_statics(&before->statics);
		blockDim = before->grid->kernel->threads;
		gridDim = before->grid->kernel->grid;
	}
	threadIdx = its_thread;
	blockIdx = its_block;
}

/* One fiber more, for the thread after those that there are. */
static void
add_fiber(GvRunner *runner)
{
	GvFiber	   *fiber = &runner->fibers.emplace_back();

	fiber->products.assign(1, {});
	fiber->stack.reset(new char[STACK_BYTES]);
	getcontext(&fiber->context);
	fiber->context.uc_stack.ss_sp = fiber->stack.get();
	fiber->context.uc_stack.ss_size = STACK_BYTES -
		runner->fibers.size() % 64 * STACK_STEP;
	fiber->context.uc_link = NULL;
	makecontext(&fiber->context, fiber_main, 0);
}

/* A block that has not begun. */
GvRunner *
gv_take_runner(gv_emulated_grid *grid, unsigned number)
{
	int			nthreads = (int) grid->kernel->threads.x;
	GvRunner	   *runner;

	if (spare.empty())
		spare.push_back(new GvRunner());
	runner = spare.back();
	spare.pop_back();
	while ((int) runner->fibers.size() < nthreads)
		add_fiber(runner);
	runner->states.resize(runner->fibers.size());
	for (int i = 0; i < nthreads; i++)
	{
		runner->states[i].gate = NULL;
		runner->states[i].done = false;
	}
	/* few kernels have products, and fibers are many lines of a cache */
	if (runner->multiplies)
		for (GvFiber &fiber : runner->fibers)
			fiber.products.assign(1, {});
	runner->multiplies = false;
	runner->sent.clear();
	std::fill_n(runner->turns, 16, GvGate {});
	runner->warps.assign(nthreads / WARP, GvGate {0, 0, WARP, {}});
	runner->block = {0, 0, nthreads, {}};
	runner->shared.assign(grid->kernel->shared_bytes / sizeof(uint4) + 1,
						  uint4 {0xA5A5A5A5, 0xA5A5A5A5, 0xA5A5A5A5,
						  0xA5A5A5A5});
	runner->left = nthreads;
	runner->grid = grid;
	runner->number = number;
	runner->early = runner->waits = runner->over = false;
	return runner;
}

/* It is over. */
void
gv_give_runner(GvRunner *runner)
{
	spare.push_back(runner);
}
