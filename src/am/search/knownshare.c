/*
 * knownshare.c
 *		The share of rows near a query that fulfils a condition on keys, as a
 *		session's earlier searches saw it.
 *
 * To ask gpuvecd a second time takes longer than its search.  So a session
 * remembers of each index and shape of condition what its searches saw: which
 * keys are asked what, and about how wide ranges are and how large sets.  Only
 * questions to gpuvecd go by it; what the session's own engine finds must not
 * depend on what was asked before.
 */
#include "postgres.h"

#include <math.h>

#include "common/hashfn.h"
#include "port/pg_bitutils.h"
#include "utils/rel.h"

#include "am/search/search.h"

/* Shapes that are remembered, at most. */
#define NMEMORIES		64

/* How fast the mean of what was seen follows. */
#define FOLLOWS			0.125

typedef struct Memory
{
	Oid			index;
	uint64		build_id;		/* 0: there is none */
	uint32		shape;
	double		mean;			/* of logarithms of shares */
} Memory;

static Memory memories[NMEMORIES];

/* The magnitude of a number. */
static uint32
magnitude(uint64 number)
{
	return number == 0 ? 0 : 1 + pg_leftmost_one_pos64(number);
}

/* What conditions alike have in common. */
static uint32
shape_of(const GvCondition *condition)
{
	uint32		shape = condition->ntests;

	for (int i = 0; i < condition->ntests; i++)
	{
		const GvKeyTest *test = &condition->tests[i];
		uint32		width = 0;

		if (test->kind == GV_TEST_RANGE)
			width = magnitude(test->high - test->low);
		else if (test->kind == GV_TEST_SET)
			width = magnitude(test->nvalues);
		shape = murmurhash32(shape ^ test->key);
		shape = murmurhash32(shape ^ test->kind << 8 ^ width);
	}
	return shape;
}

/*
 * Where what is known of such searches stands; *is_theirs: it does.  An older
 * memory gives way.
 */
static Memory *
recall(const IvfpqSearch *search, bool *is_theirs)
{
	Oid			index = RelationGetRelid(search->index);
	uint64		build_id = search->model->meta.build_id;
	uint32		shape = shape_of(search->condition);
	Memory	   *memory = &memories[(shape ^ index) % NMEMORIES];

	*is_theirs = memory->build_id == build_id && memory->index == index &&
		memory->shape == shape;
	if (!*is_theirs)
	{
		memory->index = index;
		memory->build_id = 0;
		memory->shape = shape;
	}
	return memory;
}

/* The share that searches under such a condition saw; 0: there were none. */
double
IvfpqShareKnown(const IvfpqSearch *search)
{
	bool		is_theirs;
	const Memory *memory = recall(search, &is_theirs);

	return is_theirs ? exp(memory->mean) : 0;
}

/* A search saw this share, greater than 0. */
void
IvfpqShareSeen(const IvfpqSearch *search, double share)
{
	bool		is_theirs;
	Memory	   *memory = recall(search, &is_theirs);

	if (is_theirs)
		memory->mean += FOLLOWS * (log(share) - memory->mean);
	else
		memory->mean = log(share);
	memory->build_id = search->model->meta.build_id;
}
