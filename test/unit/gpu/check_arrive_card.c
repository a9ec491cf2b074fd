/*
 * check_arrive_card.c
 *		Answers are noticed when all of their words are there, in whatever
 *		order these come, and not before.
 */
#include <string.h>

#include "engine/mirror/gv_mirror.h"

#include "card.h"

#define NPROBED		3
#define NHITS		4
#define CAPACITY		6			/* for more of both, which stays empty */
#define NROUNDS		200
#define FOUND_WORDS	7			/* and one that nobody writes */
#define MOST_WORDS	(FOUND_WORDS + CAPACITY * (2 + 4 + 4))

/* gpu/search/search.h */
typedef struct GvFound
{
	int32_t		nprobed;
	int32_t		nlisted;
	int32_t		nhits;
	uint32_t	nblocks;
	int64_t		postings;
	uint32_t	matched;
} GvFound;

typedef struct GvAnswer
{
	const GvFound *found;
	const GvProbe *probed;
	const GvHit *hits;
	const GvBound *bounds;
	const GvRowDistance *distances;
} GvAnswer;

extern bool gv_answer_is_complete(const GvAnswer *answer, int64_t *words);

/* Where an answer comes. */
typedef struct Answer
{
	GvFound		found;
	GvProbe		probed[CAPACITY];
	GvHit		hits[CAPACITY];
	GvBound		bounds[CAPACITY];
	GvRowDistance distances[CAPACITY];
} Answer;

/* What comes with the hits. */
typedef enum Last
{
	HITS_ALONE,
	BOUNDS,
	DISTANCES,
	NLASTS
} Last;

/* The words that count, in a random order; returns how many. */
static int
shuffle_words(Answer *answer, int nhits, Last last, uint32_t **words)
{
	int			n = 0;
	int			i;

	for (i = 0; i < FOUND_WORDS; i++)
		words[n++] = (uint32_t *) &answer->found + i;
	for (i = 0; i < NPROBED * 2; i++)
		words[n++] = (uint32_t *) answer->probed + i;
	for (i = 0; i < nhits * 4; i++)
		words[n++] = (uint32_t *) answer->hits + i;
	for (i = 0; last == BOUNDS && i < nhits * 3; i++)
		words[n++] = (uint32_t *) answer->bounds + i;
	for (i = 0; last == DISTANCES && i < nhits * 4; i++)
		words[n++] = (uint32_t *) answer->distances + i;
	for (i = n - 1; i > 0; i--)
	{
		int			j = unit_random() % (i + 1);
		uint32_t   *word = words[i];

		words[i] = words[j];
		words[j] = word;
	}
	return n;
}

/* A search's answer, of so many hits, word by word. */
static void
test_answer(int nhits, Last last)
{
	Answer		whole;
	Answer		answer;
	GvAnswer	where = {&answer.found, answer.probed, answer.hits,
	last == BOUNDS ? answer.bounds : NULL,
	last == DISTANCES ? answer.distances : NULL};
	uint32_t   *words[MOST_WORDS];
	int64_t		count = 0;
	int			n = shuffle_words(&answer, nhits, last, words);
	int			early = 0;
	int			i;

	memset(&answer, 0xFF, sizeof(answer));
	for (i = 0; i < (int) (sizeof(whole) / 4); i++)
		((uint32_t *) &whole)[i] = unit_random() % 1000;
	whole.found.nlisted = NPROBED;
	whole.found.nhits = nhits;
	for (i = 0; i < n; i++)
	{
		early += gv_answer_is_complete(&where, &count);
		*words[i] = *(uint32_t *) ((char *) &whole +
								   ((char *) words[i] - (char *) &answer));
	}
	CHECK(early == 0, "%d hits: there %d words too early", nhits, early);
	CHECK(gv_answer_is_complete(&where, &count), "%d hits: never there",
		  nhits);
	count = 0;
	CHECK(gv_answer_is_complete(&where, &count), "%d hits: not at once",
		  nhits);
}

void
test_arrive_card(void)
{
	int			round;

	for (round = 0; round < NROUNDS; round++)
		test_answer(round % (NHITS + 1), (Last) (round % NLASTS));
}
