/*
 * emulate.cpp
 *		Runs the blocks of a kernel on the host, every thread a fiber, and
 *		streams in an order of its own.
 *
 * A fiber runs until it needs others: at a shuffle or vote the 32 of its warp,
 * at __syncthreads all of its block.  When no fiber can go on, a kernel has
 * broken CUDA's rules (a thread missed a barrier), and the program aborts.
 */
#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <vector>
#include <ucontext.h>
#include <unistd.h>

#include "cuda_runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define WARP			32
#define STACK_BYTES		(128 * 1024)
#define LOOK_US			1000	/* between looks at a device that hangs */

dim3		threadIdx;
dim3		blockIdx;
dim3		blockDim;
dim3		gridDim;
int64_t		gv_emulated_fault;
unsigned	gv_emulated_hung;
int64_t		gv_emulated_unrecorded;
thread_local int gv_emulated_device;
thread_local cudaError_t gv_emulated_error;
cudaGraph_t	gv_emulated_capture;

/* Memory of a device, or pinned, by where it begins. */
struct Taken
{
	size_t		bytes;
	int			device;
};

static std::mutex devices;		/* protects these two */
static std::map<const char *, Taken> taken;
static std::map<std::pair<const void *, int>, size_t> allowed;

/* Where threads wait for each other. */
struct Gate
{
	unsigned	passed;			/* times that all have come */
	int			arrived;
	int			needed;
	uint64_t	values[2][WARP];	/* of this time and of the one before */
};

struct Fiber
{
	ucontext_t	context;		/* where it begins */
	void	   *place[5];		/* where it goes on */
	bool		begun;
	std::vector<char> stack;
	bool		done;
	void	   *fake_stack;
};

static std::mutex busy;			/* one step of any stream at a time */
/*
 * Protected by it, with their steps.  Never freed, because a thread that waits
 * for a device that hangs looks at them until the process is over.
 */
static std::vector<cudaStream_t> &streams = *new std::vector<cudaStream_t>;
static std::deque<Fiber> fibers;	/* they never move */
static std::vector<Gate> warps;
static Gate block;
static std::vector<uint4> shared;
static const std::function<void()> *running;
static void *scheduler_place[5];
static int	current;
static bool progress;
static const void *scheduler_stack;
static size_t scheduler_bytes;
static void *scheduler_fake;

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
leave(Fiber *me)
{
	if (__builtin_setjmp(me->place) == 0)
		go_to(scheduler_place);
}

/* From the scheduler to a fiber; returns when that leaves. */
static void __attribute__((noipa))
enter(Fiber *fiber)
{
	if (__builtin_setjmp(scheduler_place) != 0)
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
	Fiber	   &me = fibers[current];

	begin_switch(&me.fake_stack, scheduler_stack, scheduler_bytes);
	leave(&me);
	end_switch(me.fake_stack, &scheduler_stack, &scheduler_bytes);
}

/* A fiber's life: the same thread of one block after another. */
static void
fiber_main()
{
	end_switch(NULL, &scheduler_stack, &scheduler_bytes);
	for (;;)
	{
		(*running)();
		fibers[current].done = true;
		progress = true;
		yield();
	}
}

/* Wait until all have come; returns how many times they had before. */
static unsigned
pass(Gate *gate)
{
	unsigned	turn = gate->passed;

	progress = true;
	if (++gate->arrived == gate->needed)
	{
		gate->arrived = 0;
		gate->passed++;
	}
	while (gate->passed == turn)
		yield();
	progress = true;
	return turn;
}

/* What that lane of the warp brings to the same exchange. */
uint64_t
gv_emulated_exchange(uint64_t value, int lane)
{
	Gate	   *gate = &warps[threadIdx.x / WARP];

	gate->values[gate->passed % 2][threadIdx.x % WARP] = value;
	return gate->values[pass(gate) % 2][lane];
}

/* What all lanes of the warp bring to the same exchange. */
void
gv_emulated_share(uint64_t value, uint64_t values[WARP])
{
	Gate	   *gate = &warps[threadIdx.x / WARP];

	gate->values[gate->passed % 2][threadIdx.x % WARP] = value;
	memcpy(values, gate->values[pass(gate) % 2], sizeof(gate->values[0]));
}

void
__syncthreads()
{
	(void) pass(&block);
}

uint4 *
gv_emulated_shared()
{
	return shared.data();
}

/* One block: its fibers in turn until all are done. */
static void
run_block(int nthreads)
{
	int			left = nthreads;

	for (Gate &warp : warps)
		warp = {0, 0, WARP, {}};
	block = {0, 0, nthreads, {}};
	for (int i = 0; i < nthreads; i++)
		fibers[i].done = false;
	while (left > 0)
	{
		progress = false;
		left = 0;
		for (current = 0; current < nthreads; current++)
		{
			if (fibers[current].done)
				continue;
			threadIdx = dim3(current, 0, 0);
			begin_switch(&scheduler_fake, fibers[current].stack.data(),
						 STACK_BYTES);
			enter(&fibers[current]);
			end_switch(scheduler_fake, NULL, NULL);
			left += !fibers[current].done;
		}
		if (left > 0 && !progress)
		{
			fprintf(stderr, "threads of a block wait for each other for ever\n");
			abort();
		}
	}
}

/* One fiber more, for the thread after those that there are. */
static void
add_fiber()
{
	Fiber	   *fiber = &fibers.emplace_back();

	fiber->stack.resize(STACK_BYTES);
	getcontext(&fiber->context);
	fiber->context.uc_stack.ss_sp = fiber->stack.data();
	fiber->context.uc_stack.ss_size = STACK_BYTES;
	fiber->context.uc_link = NULL;
	makecontext(&fiber->context, fiber_main, 0);
}

/* -- devices */

static void
break_rule(const char *what)
{
	fprintf(stderr, "device %d: %s\n", gv_emulated_device, what);
	abort();
}

void
gv_emulated_take(void *memory, size_t bytes, int device)
{
	std::lock_guard<std::mutex> lock(devices);

	taken[(const char *) memory] = {bytes, device};
}

void
gv_emulated_give(void *memory)
{
	std::lock_guard<std::mutex> lock(devices);

	taken.erase((const char *) memory);
}

/* What a pointer points into; NULL: memory that nobody was told of. */
static const Taken *
find_taken(const void *memory)
{
	auto		next = taken.upper_bound((const char *) memory);

	if (next == taken.begin())
		return NULL;
	--next;
	return (const char *) memory < next->first + next->second.bytes ?
		&next->second : NULL;
}

bool
gv_emulated_pinned(const void *memory)
{
	std::lock_guard<std::mutex> lock(devices);
	const Taken *found = find_taken(memory);

	return found != NULL && found->device == GV_EMULATED_HOST;
}

void
gv_emulated_check_stream(cudaStream_t stream)
{
	if (stream == NULL)
		return;
	if (stream->device != gv_emulated_device)
		break_rule("work in another device's stream");
	stream->unrecorded += stream->records;
	gv_emulated_unrecorded += stream->records;
}

void
gv_emulated_check_words(const void *words, size_t bytes)
{
	std::lock_guard<std::mutex> lock(devices);

	for (size_t i = 0; i + sizeof(char *) <= bytes; i += sizeof(char *))
	{
		const char *word;

		memcpy(&word, (const char *) words + i, sizeof(word));
		const Taken *found = find_taken(word);

		if (found != NULL && found->device != GV_EMULATED_HOST &&
			found->device != gv_emulated_device)
			break_rule("work with another device's memory");
	}
}

void
gv_emulated_allow(const void *kernel, size_t shared_bytes)
{
	std::lock_guard<std::mutex> lock(devices);

	allowed[{kernel, gv_emulated_device}] = shared_bytes;
}

void
gv_emulated_check_shared(const void *kernel, size_t shared_bytes)
{
	std::lock_guard<std::mutex> lock(devices);
	auto		most = allowed.find({kernel, gv_emulated_device});

	/* beside what kernels declare themselves, which nobody knows here: 1 KB */
	if (shared_bytes > 47 * 1024 &&
		(most == allowed.end() || shared_bytes > most->second))
		break_rule("a launch with more shared memory than was asked for");
}

/*
 * Has GPUVEC_EMULATED_FAULTS a line of this fault of a device?  Its last
 * number, if it has one, is put in place of the one given.
 */
static bool
find_fault(const char *fault, int device, int *number)
{
	static const char *name = getenv("GPUVEC_EMULATED_FAULTS");
	FILE	   *file = name == NULL ? NULL : fopen(name, "r");
	char		line[80];
	bool		found = false;

	while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL)
	{
		char		what[80];
		int			which;
		int			last = *number;

		found = sscanf(line, "%79s %d %d", what, &which, &last) >= 2 &&
			strcmp(what, fault) == 0 && which == device;
		if (found)
			*number = last;
	}
	if (file != NULL)
		fclose(file);
	return found;
}

static bool
hangs(int device)
{
	int			unused = 0;

	return (gv_emulated_hung >> device & 1) != 0 ||
		find_fault("hang", device, &unused);
}

/* What every call that chooses or asks about a device returns. */
cudaError_t
gv_emulated_device_error(int device)
{
	int			error = cudaErrorDevicesUnavailable;

	if (device < 0 || device >= GV_EMULATED_DEVICES)
		return cudaErrorInvalidDevice;
	return find_fault("lost", device, &error) ? (cudaError_t) error :
		cudaSuccess;
}

/* -- streams; next_random and do_step are called under `busy` */

static uint64_t
next_random()
{
	static const char *seed = getenv("GPUVEC_EMULATED_SEED");
	static uint64_t state = (seed == NULL ? 1 : strtoull(seed, NULL, 10)) *
		UINT64_C(0x9E3779B97F4A7C15) | 1;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state >> 16;
}

/*
 * One step of a stream that has one and need not wait; false: those that could
 * go on are of devices that hang.
 */
static bool
do_step()
{
	std::vector<cudaStream_t> ready;
	gv_emulated_step step;
	bool		hung[GV_EMULATED_DEVICES];
	bool		any = false;

	for (int i = 0; i < GV_EMULATED_DEVICES; i++)
		any |= hung[i] = hangs(i);
	for (cudaStream_t stream : streams)
		if (!stream->steps.empty() && !hung[stream->device] &&
			(stream->steps[0].passed == NULL ||
			 *stream->steps[0].passed >= stream->steps[0].needed))
			ready.push_back(stream);
	if (ready.empty() && any)
		return false;
	if (ready.empty())
		break_rule("streams wait for each other for ever");

	cudaStream_t stream = ready[next_random() % ready.size()];

	step = std::move(stream->steps[0]);
	stream->steps.pop_front();
	step.work();
	return true;
}

/* Do steps until there are no more of a stream, or of the chosen device. */
static void
do_all(cudaStream_t stream)
{
	for (;; usleep(LOOK_US))
	{
		std::lock_guard<std::mutex> lock(busy);
		bool		goes_on = true;
		bool		left = false;

		for (size_t i = 0; i < streams.size() && goes_on; i++)
			if (stream == NULL ? streams[i]->device == gv_emulated_device :
				streams[i] == stream)
			{
				while (!streams[i]->steps.empty() && goes_on)
					goes_on = do_step();
				left |= !streams[i]->steps.empty();
			}
		if (!left)
			return;
	}
}

cudaStream_t
gv_emulated_begin()
{
	std::lock_guard<std::mutex> lock(busy);

	streams.push_back(new gv_emulated_stream {gv_emulated_device, false, 0,
					  {}});
	return streams.back();
}

void
gv_emulated_tell(cudaStream_t stream, const gv_emulated_step &step)
{
	std::lock_guard<std::mutex> lock(busy);

	stream->steps.push_back(step);
}

void
gv_emulated_catch_up(cudaStream_t stream)
{
	do_all(stream);
}

/* Has it, after a few steps of any? */
bool
gv_emulated_catches_up(cudaStream_t stream)
{
	std::lock_guard<std::mutex> lock(busy);

	for (uint64_t n = next_random() % 8; n > 0 && !stream->steps.empty(); n--)
		if (!do_step())
			break;
	return stream->steps.empty();
}

/* All streams of the device that is chosen. */
void
gv_emulated_catch_up_device()
{
	do_all(NULL);
}

void
gv_emulated_end(cudaStream_t stream)
{
	gv_emulated_catch_up(stream);

	std::lock_guard<std::mutex> lock(busy);

	streams.erase(std::find(streams.begin(), streams.end(), stream));
	delete stream;
}

/* A launch, when a stream has come to it. */
void
gv_emulate(dim3 grid, dim3 threads, size_t shared_bytes,
		   const std::function<void()> &kernel)
{
	int			nthreads = (int) threads.x;

	if (threads.y != 1 || threads.z != 1 || nthreads % WARP != 0)
		abort();
	while ((int) fibers.size() < nthreads)
		add_fiber();
	warps.resize(nthreads / WARP);
	shared.assign(shared_bytes / sizeof(uint4) + 1,
				  uint4 {0xA5A5A5A5, 0xA5A5A5A5, 0xA5A5A5A5, 0xA5A5A5A5});
	running = &kernel;
	gridDim = grid;
	blockDim = threads;
	for (unsigned y = 0; y < grid.y; y++)
		for (unsigned x = 0; x < grid.x; x++)
		{
			blockIdx = dim3(x, y, 0);
			run_block(nthreads);
		}
}
