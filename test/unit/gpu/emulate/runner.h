/*
 * runner.h
 *		Blocks that run, and their threads: what emulate.cpp and hopper.cpp
 *		share.
 */
#ifndef RUNNER_H
#define RUNNER_H

#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>
#include <ucontext.h>

#include "cuda_runtime.h"

#define WARP			32

/* Where threads wait for each other. */
struct GvGate
{
	unsigned	passed;			/* times that all have come */
	int			arrived;
	int			needed;
	uint64_t	values[2][WARP];	/* of this time and of the one before */
};

/* A product that is not made yet. */
struct GvToMultiply
{
	float	  (*sums)[4];
	int			n;
	uint64_t	a;
	uint64_t	b;
};

/* Bytes on their way to shared memory. */
struct GvSent
{
	void	   *shared;
	std::vector<char> bytes;
	uint64_t   *barrier;
};

struct GvFiber
{
	ucontext_t	context;		/* where it begins */
	std::unique_ptr<char[]> stack;	/* not touched before it is used */
	std::deque<std::vector<GvToMultiply>> products;	/* group by group */
};

/* The part of a fiber that a switch reads and writes, one line of a cache. */
struct alignas(64) GvState
{
	void	   *place[5];		/* where it goes on */
	const GvGate *gate;			/* that holds it, or NULL */
	unsigned	turn;			/* until it has passed more often than this */
	bool		begun;			/* its fiber has, in whatever block */
	bool		done;
};

/* A grid that is under way. */
struct gv_emulated_grid
{
	std::shared_ptr<gv_emulated_kernel> kernel;
	cudaStream_t stream;
	bool		triggered;		/* the next one may begin */
	std::map<unsigned, struct GvRunner *> begun;	/* blocks that were
													 * early */
};

/* A block that runs, or waits for its turn. */
struct GvRunner
{
	std::deque<GvFiber> fibers;	/* they never move */
	std::vector<GvState> states;	/* of the fibers */
	std::vector<GvGate> warps;
	GvGate		block;
	GvGate		turns[16];		/* barriers by number */
	std::vector<GvSent> sent;
	std::vector<uint4> shared;
	std::vector<char> statics;	/* __shared__ variables, while others run */
	gv_emulated_grid *grid;
	unsigned	number;			/* of the block */
	bool		early;			/* the grid's turn has not come */
	bool		waits;			/* a thread wants that turn */
	bool		over;
	bool		multiplies;		/* some fiber has had products */
	void	   *scheduler_place[5];
	int			current;
	int			left;			/* fibers that are not done */
	bool		progress;
	const void *scheduler_stack;
	size_t		scheduler_bytes;
	void	   *scheduler_fake;
};

/* The block whose fibers run. */
extern GvRunner *gv_running;

/* emulate.cpp: a block that has not begun, run until it is over or waits. */
extern GvRunner *gv_take_runner(gv_emulated_grid *grid, unsigned number);
extern void gv_run_block(GvRunner *runner);
extern void gv_give_runner(GvRunner *runner);

/* A thread waits until a gate has passed more than `turn` times. */
extern void gv_emulated_wait_for_gate(const GvGate *gate, unsigned turn);

/* streams.cpp: CUDA has rules, and the program has broken one. */
extern void gv_break_rule(const char *what);

#endif							/* RUNNER_H */
