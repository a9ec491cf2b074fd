/*
 * streams.cpp
 *		Devices, and streams in an order of their own.
 *
 * Blocks run one after the other, but for those that begin early: as soon as a
 * block of a grid lets the next grid begin, some blocks of that run until they
 * wait for the grid before them or are over, whatever is left to do of that;
 * they go on when it is done.  Not with the address sanitizer, which watches
 * what is declared __shared__ only where that stays in its place.
 */
#include <pthread.h>
#include <unistd.h>

#include "runner.h"

#define LOOK_US			1000	/* between looks at a device that hangs */

#define EARLY_BLOCKS	2		/* of a grid that begins early */
#define EARLY_GRIDS		2		/* behind one that is under way */

int64_t		gv_emulated_fault;
int64_t		gv_emulated_refusal;
unsigned	gv_emulated_hung;
int64_t		gv_emulated_unrecorded;
thread_local int gv_emulated_device;
thread_local cudaError_t gv_emulated_error;

static int
from_environment(const char *name, int otherwise)
{
	const char *value = getenv(name);

	return value == NULL ? otherwise : atoi(value);
}

size_t		gv_emulated_memory =
	(size_t) from_environment("GPUVEC_EMULATED_MEMORY_MB", 1024) << 20;
int			gv_emulated_capability = from_environment("GPUVEC_EMULATED_CARD", 90);
int			gv_emulated_code = from_environment("GPUVEC_EMULATED_CODE",
												gv_emulated_capability);

/* A driver's thread, which takes signals that others do not. */
static void *
wait_for_events(void *)
{
	for (;;)
		pause();
	return NULL;
}

static void
start_driver()
{
	pthread_t	thread;

	if (pthread_create(&thread, NULL, wait_for_events, NULL) == 0)
		pthread_detach(thread);
}

void
gv_emulated_start_driver()
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, start_driver);
}

void
gv_break_rule(const char *what)
{
	fprintf(stderr, "device %d: %s\n", gv_emulated_device, what);
	abort();
}

cudaError_t
gv_emulated_fail(cudaError_t error)
{
	if (error != cudaSuccess)
		gv_emulated_error = error;
	return error;
}

/* Memory of a device, or pinned, by where it begins. */
struct Taken
{
	size_t		bytes;
	int			device;
};

static std::mutex devices;		/* protects these two */
static std::map<const char *, Taken> taken;
static std::map<std::pair<const void *, int>, size_t> allowed;

static std::mutex busy;			/* one step of any stream at a time */
/*
 * Protected by it, with their steps.  Never freed, because a thread that waits
 * for a device that hangs looks at them until the process is over.
 */
static std::vector<cudaStream_t> &streams = *new std::vector<cudaStream_t>;

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

/* Bytes that are taken of a device's memory. */
extern "C" size_t
gv_emulated_used(int device)
{
	std::lock_guard<std::mutex> lock(devices);
	size_t		bytes = 0;

	for (const auto &one : taken)
		if (one.second.device == device)
			bytes += one.second.bytes;
	return bytes;
}

/* The memory that a pointer points into; NULL: it was not allocated here. */
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
		gv_break_rule("work in another device's stream");

	std::lock_guard<std::mutex> lock(busy);

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
			gv_break_rule("work with another device's memory");
	}
}

void
gv_emulated_allow(const void *kernel, size_t shared_bytes)
{
	std::lock_guard<std::mutex> lock(devices);

	allowed[{kernel, gv_emulated_device}] = shared_bytes;
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

/* The result of every call that chooses or asks about a device. */
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

/* Some blocks of the grid behind this one begin, if that may be early. */
static void
begin_next(gv_emulated_grid *grid)
{
#if !defined(__SANITIZE_ADDRESS__)
	cudaStream_t stream = grid->stream;
	size_t		behind = 0;

	while (stream->grids[behind].get() != grid)
		behind++;
	/* grids[0] is no longer among the steps */
	if (behind == EARLY_GRIDS || behind + 1 < stream->grids.size() ||
		behind >= stream->steps.size() || stream->steps[behind].kernel == NULL ||
		!stream->steps[behind].kernel->early)
		return;
	stream->grids.push_back(std::make_shared<gv_emulated_grid>
							(gv_emulated_grid {stream->steps[behind].kernel,
							stream, false, {}}));

	gv_emulated_grid *next = stream->grids.back().get();
	unsigned	nblocks = next->kernel->grid.x * next->kernel->grid.y;

	for (int i = 0; i < EARLY_BLOCKS; i++)
	{
		unsigned	number = (unsigned) (next_random() % nblocks);

		if (next->begun.count(number) > 0)
			continue;
		next->begun[number] = gv_take_runner(next, number);
		next->begun[number]->early = true;
		gv_run_block(next->begun[number]);
	}
#endif
}

static void
trigger(gv_emulated_grid *grid)
{
	if (!grid->triggered)
	{
		grid->triggered = true;
		begin_next(grid);
	}
}

/* By a thread: the next grid may begin. */
void
gv_emulated_let_next_begin()
{
	if (gv_emulated_code >= 90)
		trigger(gv_running->grid);
}

/* By a thread: what the grids before have done is there. */
void
gv_emulated_wait_for_grids()
{
	if (gv_emulated_code < 90)
		return;
	gv_running->waits |= gv_running->early;
	gv_emulated_wait_until([] { return !gv_running->early; });
}

/*
 * All blocks of a grid.  One that never says that the next may begin says so
 * in the end: what its last block does the next one's do not see for certain.
 */
static void
run_grid(gv_emulated_grid *grid)
{
	unsigned	nblocks = grid->kernel->grid.x * grid->kernel->grid.y;

	/* it said so when too many others had begun */
	if (grid->triggered)
		begin_next(grid);
	for (unsigned number = 0; number < nblocks; number++)
	{
		auto		begun = grid->begun.find(number);
		GvRunner	   *runner = begun != grid->begun.end() ? begun->second :
			gv_take_runner(grid, number);

		if (number == nblocks - 1)
			trigger(grid);
		runner->early = false;
		if (!runner->over)
			gv_run_block(runner);
		gv_give_runner(runner);
	}
}

/* Do a stream's next step. */
static void
do_first_step(cudaStream_t stream)
{
	gv_emulated_step step = std::move(stream->steps[0]);

	stream->steps.pop_front();
	if (step.kernel == NULL)
	{
		step.work();
		return;
	}
	if (stream->grids.empty())
		stream->grids.push_back(std::make_shared<gv_emulated_grid>
								(gv_emulated_grid {step.kernel, stream, false,
								{}}));
	run_grid(stream->grids[0].get());
	stream->grids.pop_front();
}

/*
 * One step of a stream that has one and need not wait; false: those that could
 * go on are of devices that hang.
 */
static bool
do_step()
{
	std::vector<cudaStream_t> ready;
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
		gv_break_rule("streams wait for each other for ever");
	do_first_step(ready[next_random() % ready.size()]);
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
					  NULL, {}, {}});
	return streams.back();
}

void
gv_emulated_tell(cudaStream_t stream, const gv_emulated_step &step)
{
	std::lock_guard<std::mutex> lock(busy);

	if (stream->capture == NULL)
		stream->steps.push_back(step);
	else if (step.kernel != NULL)
		stream->capture->push_back(step.kernel);
	else
		gv_break_rule("what graphs do not hold here");
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

/* As a device refuses launches; others are as they were. */
cudaError_t
gv_emulated_check_kernel(const gv_emulated_kernel &kernel)
{
	size_t		most = GV_EMULATED_UNASKED;

	if (gv_emulated_refusal > 0 && --gv_emulated_refusal == 0)
		return cudaErrorLaunchOutOfResources;
	if (kernel.threads.y != 1 || kernel.threads.z != 1 ||
		kernel.threads.x % WARP != 0)
		abort();
	if (kernel.early && gv_emulated_capability < 90)
		return cudaErrorNotSupported;
	if (kernel.grid.x == 0 || kernel.grid.y == 0 ||
		kernel.threads.x > 1024)
		return cudaErrorInvalidConfiguration;

	std::lock_guard<std::mutex> lock(devices);
	auto		asked = allowed.find({kernel.code, gv_emulated_device});

	if (asked != allowed.end())
		most = asked->second;
	return kernel.shared_bytes > most ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t
gv_emulated_launch(cudaStream_t stream,
				   std::shared_ptr<gv_emulated_kernel> launch)
{
	cudaError_t error = gv_emulated_check_kernel(*launch);

	if (error == cudaSuccess)
		gv_emulated_tell(stream, {[] {}, NULL, 0, launch});
	return gv_emulated_fail(error);
}
