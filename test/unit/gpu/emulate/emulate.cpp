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

/* Back to the scheduler; returns when it resumes this fiber. */
static void __attribute__((noipa))
leave(GvFiber *me)
{
	if (__builtin_setjmp(me->place) == 0)
		go_to(gv_running->scheduler_place);
}

/* From the scheduler to a fiber; returns when that leaves. */
static void __attribute__((noipa))
enter(GvFiber *fiber)
{
	if (__builtin_setjmp(gv_running->scheduler_place) != 0)
		return;
	if (fiber->begun)
		go_to(fiber->place);
	fiber->begun = true;
	setcontext(&fiber->context);
}

/* Let others run. */
static void
yield()
{
	GvFiber	   &me = gv_running->fibers[gv_running->current];

	begin_switch(&me.fake_stack, gv_running->scheduler_stack,
				 gv_running->scheduler_bytes);
	leave(&me);
	end_switch(me.fake_stack, &gv_running->scheduler_stack,
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
		gv_running->fibers[gv_running->current].done = true;
		gv_running->progress = true;
		yield();
	}
}

/* Wait until all have come; returns how many times they had before. */
static unsigned
pass(GvGate *gate)
{
	unsigned	turn = gate->passed;

	gv_running->progress = true;
	if (++gate->arrived == gate->needed)
	{
		gate->arrived = 0;
		gate->passed++;
	}
	while (gate->passed == turn)
		yield();
	gv_running->progress = true;
	return turn;
}

/* What that lane of the warp brings to the same exchange. */
uint64_t
gv_emulated_exchange(uint64_t value, int lane)
{
	GvGate	   *gate = &gv_running->warps[threadIdx.x / WARP];

	gate->values[gate->passed % 2][threadIdx.x % WARP] = value;
	return gate->values[pass(gate) % 2][lane];
}

/* What all lanes of the warp bring to the same exchange. */
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

/* What is declared __shared__, to or from where it stays while others run. */
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

/* A block's fibers in turn until all are done, or have to wait for the grid. */
static void
run_fibers(GvRunner *runner)
{
	int			nthreads = (int) runner->grid->kernel->threads.x;
	int			left = nthreads;

	while (left > 0)
	{
		runner->progress = false;
		left = 0;
		for (runner->current = 0; runner->current < nthreads; runner->current++)
		{
			GvFiber	   &fiber = runner->fibers[runner->current];

			if (fiber.done)
				continue;
			threadIdx = dim3(runner->current, 0, 0);
			begin_switch(&runner->scheduler_fake, fiber.stack.get(),
						 STACK_BYTES);
			enter(&fiber);
			end_switch(runner->scheduler_fake, NULL, NULL);
			left += !fiber.done;
		}
		if (left == 0 || runner->progress)
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

	fiber->stack.reset(new char[STACK_BYTES]);
	getcontext(&fiber->context);
	fiber->context.uc_stack.ss_sp = fiber->stack.get();
	fiber->context.uc_stack.ss_size = STACK_BYTES;
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
	for (GvFiber &fiber : runner->fibers)
	{
		fiber.done = false;
		if (fiber.products.size() != 1 || !fiber.products[0].empty())
			fiber.products.assign(1, {});
	}
	runner->sent.clear();
	std::fill_n(runner->turns, 16, GvGate {});
	runner->warps.assign(nthreads / WARP, GvGate {0, 0, WARP, {}});
	runner->block = {0, 0, nthreads, {}};
	runner->shared.assign(grid->kernel->shared_bytes / sizeof(uint4) + 1,
						  uint4 {0xA5A5A5A5, 0xA5A5A5A5, 0xA5A5A5A5,
						  0xA5A5A5A5});
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
