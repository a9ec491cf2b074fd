/*
 * thresholdplan.cu
 *		How a row is sampled for a threshold, and which of the sample it is.
 *
 * A row is s times as long as its sample, so of the k first about m = k / s
 * are in it, and more than r - 1 of them only with a probability of less than
 * 10^-7 if r is chosen by Poisson's distribution: then the r-th of the sample
 * is not before the k-th of the row.  About r s items are not after it.
 *
 * Sources: thresholds from samples: Floyd, Rivest, "Expected time bounds for
 * selection", 1975.
 */
#include <math.h>

#include "gpu/select/groups.cuh"

#define RARE			1e-7	/* how often a threshold is too low */
#define SCARCE			256		/* k, for which half a sample does */

static GV_TUNABLE int32_t misled = 0;	/* see gv_gpu_rows_mislead */

/* The least r that a Poisson variable of mean m reaches rarely. */
static int
rare_rank(double m)
{
	double		term = exp(-m);
	double		beyond = 1.0 - term;	/* P(X >= r) */
	int			r = 1;

	while (beyond > RARE || r <= m)
	{
		term *= m / r;
		beyond -= term;
		r++;
	}
	return r;
}

/* Where the lines of a sample lie in a row, however that is aligned. */
static void
plan_lines(GvGroupPlan *plan, int64_t columns)
{
	int64_t		nvectors = (columns - 3) / 4;
	int64_t		nlines = (int64_t) plan->samplers * GV_GROUP_WARPS *
		GV_WARP_LINES * plan->vectors;

	plan->stretch = (nvectors << 32) / nlines;
	plan->gap = (uint32_t) (nvectors / nlines) - GV_LINE;
}

/* See groups.cuh. */
GvGroupPlan
gv_threshold_plan(int64_t columns, int64_t k)
{
	int64_t		wanted = k <= SCARCE ? columns / 64 : columns / 32;
	int64_t		least = 4096;
	int64_t		most = k <= SCARCE ? 1 << 19 : 1 << 20;
	int64_t		groups;
	double		survivors;
	GvGroupPlan plan;
	int			r;

	wanted = wanted < least ? least : wanted > most ? most : wanted;
	if (wanted > columns / 5)
		wanted = columns / 5;
	r = rare_rank((double) wanted * k / columns);
	groups = gv_power(8 * r, 256);
	if (groups > GV_MOST_GROUPS)
		groups = GV_MOST_GROUPS;

	plan.samplers = 1;
	while (plan.samplers * GV_GROUP_THREADS * 4 * GV_MOST_VECTORS < wanted)
		plan.samplers *= 2;
	plan.groups = (int) (groups / plan.samplers);
	if (plan.groups < GV_LEAST_GROUPS)
		plan.groups = GV_LEAST_GROUPS;
	if (plan.groups > GV_BLOCK_GROUPS)
		plan.groups = GV_BLOCK_GROUPS;
	plan.lanes = GV_LINE;
	while (GV_GROUP_WARPS * plan.lanes * 4 < plan.groups)
		plan.lanes *= 2;
	plan.vectors = (int) (wanted / (plan.samplers * GV_GROUP_THREADS * 4));
	plan.vectors = plan.vectors < 1 ? 1 : plan.vectors;
	plan_lines(&plan, columns);

	/* of the sample that it has become */
	wanted = (int64_t) plan.samplers * GV_GROUP_THREADS * 4 * plan.vectors;
	r = rare_rank((double) wanted * k / columns);
	groups = plan.samplers * plan.groups;
	if (r > groups / 2)
		r = (int) groups / 2;
	plan.rank = r - 1;
	/* sorted as quickly where they are few */
	plan.spare = groups > GV_GROUP_THREADS ? r / 16 : 0;
	r += plan.spare;
	/* as many are not after it if each group has so many of the sample */
	survivors = 1 - pow(1 - (r + 5.5 * sqrt(r) + 12) / (double) groups,
					(double) groups / (double) wanted);
	survivors *= (double) columns;
	if (!(survivors > 0 && survivors < GV_ROWS_CAPACITY))
		survivors = GV_ROWS_CAPACITY;
	if (survivors < 2 * k)
		survivors =
			(double) (2 * k < GV_ROWS_CAPACITY ? 2 * k : GV_ROWS_CAPACITY);
	plan.capacity = (uint32_t) survivors < 1024 ? 1024 :
		((uint32_t) survivors + 255) / 256 * 256;
	plan.rank -= misled;
	plan.rank = plan.rank < 0 ? 0 : plan.rank;
	if (plan.rank >= groups)
		plan.rank = (int) groups - 1;
	return plan;
}

#ifdef GV_TEST_BUILD
extern "C" void
gv_gpu_rows_mislead(int32_t ranks)
{
	misled = ranks;
}
#endif
