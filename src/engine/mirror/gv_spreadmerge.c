/*
 * gv_spreadmerge.c
 *		What shards are asked, and one answer of theirs.
 *
 * All shards choose the same lists, in the same order, so a probe has one number
 * on all of them, and a list is empty but where it is kept.  Hits of shards are
 * merged as an engine orders its own: by (S, row id) and, of equal pairs, the
 * earlier probe first.  Answers lie in the searcher's memory, because the next
 * step overwrites those of the parts.
 */
#include "engine/mirror/gv_spread.h"

#include <stdlib.h>
#include <string.h>

/* Is a before b in the order of hits? */
static bool
before(const GvHit *a, const GvHit *b)
{
	int			i;

	if (a->score != b->score)
		return a->score < b->score;
	for (i = 0; i < 3; i++)
		if (a->rowid[i] != b->rowid[i])
			return a->rowid[i] < b->rowid[i];
	return a->probe < b->probe;
}

/* What parts found of the i-th of n searches, in all. */
static int32_t
count_hits(const GvSpreadMirror *mirror, const GvSearch *asked,
		   int32_t n, int32_t i)
{
	int64_t		nhits = 0;
	int32_t		p;

	for (p = 0; p < mirror->spread.nparts; p++)
		nhits += asked[(size_t) p * (size_t) n + (size_t) i].nhits;
	return nhits < asked[i].capacity ? (int32_t) nhits : asked[i].capacity;
}

/* Memory for answers; all of it is of 4-byte elements. */
static GvStatus
need_answers(GvSpreadAnswers *answers, size_t bytes)
{
	if (bytes <= answers->bytes)
		return GV_OK;
	free(answers->memory);
	answers->bytes = bytes + bytes / 4;
	answers->memory = malloc(answers->bytes);
	if (answers->memory == NULL)
		answers->bytes = 0;
	return answers->memory != NULL ? GV_OK : GV_NO_MEMORY;
}

/* Room for so many bytes of answers at *next. */
static void *
take(char **next, size_t bytes)
{
	void	   *place = *next;

	*next += bytes;
	return place;
}

/* The first nhits hits of all parts, in order. */
static void
merge_hits(const GvSpreadMirror *mirror, const GvSearch *asked, int32_t n,
		   GvHit *hits, int32_t nhits)
{
	const GvHit *heads[GV_MAX_DEVICES];
	const GvHit *ends[GV_MAX_DEVICES];
	int32_t		p;
	int32_t		i;

	for (p = 0; p < mirror->spread.nparts; p++)
	{
		const GvSearch *part = &asked[(size_t) p * (size_t) n];

		heads[p] = part->hits;
		ends[p] = heads[p] + part->nhits;
	}
	for (i = 0; i < nhits; i++)
	{
		int32_t		best = -1;

		for (p = 0; p < mirror->spread.nparts; p++)
			if (heads[p] < ends[p] &&
				(best < 0 || before(heads[p], heads[best])))
				best = p;
		hits[i] = *heads[best]++;
	}
}

/* What parts say of the lists of a search, and of the sample, is added up. */
static void
add_up(const GvSpreadMirror *mirror, const GvSearch *asked, int32_t n,
	   GvSearch *search)
{
	int32_t		p;
	int32_t		i;

	search->copies = 0;
	search->nearer = 0;
	search->nearer_squares = 0;
	if (search->matches != NULL)
		memset(search->matches, 0, (size_t) search->nprobed * sizeof(int32_t));
	for (p = 0; p < mirror->spread.nparts; p++)
	{
		const GvSearch *part = &asked[(size_t) p * (size_t) n];

		search->copies += part->copies;
		search->nearer += part->nearer;
		search->nearer_squares += part->nearer_squares;
		for (i = 0; search->matches != NULL && i < search->nprobed; i++)
			search->matches[i] += part->matches[i];
	}
}

/* What n searches found, from what each part found. */
GvStatus
gv_spread_merge(const GvSpreadMirror *mirror, const GvSearch *asked,
				GvSearch *searches, int32_t n, GvSpreadAnswers *answers)
{
	size_t		bytes = 0;
	size_t		total = 0;
	char	   *next;
	GvStatus	status;
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		size_t		nhits = (size_t) count_hits(mirror, asked, n, i);

		bytes += (size_t) asked[i].nprobed *
			(sizeof(GvProbe) + sizeof(int32_t)) +
			nhits * (sizeof(GvHit) + sizeof(GvBound));
		total += nhits;
	}
	status = need_answers(answers, bytes + total * sizeof(GvHit));
	if (status != GV_OK)
		return status;
	next = answers->memory;
	for (i = 0; i < n; i++)
	{
		GvSearch   *search = &searches[i];
		size_t		nprobed = (size_t) asked[i].nprobed;

		search->nprobed = asked[i].nprobed;
		search->nhits = count_hits(mirror, asked, n, i);
		search->probed = take(&next, nprobed * sizeof(GvProbe));
		search->hits = take(&next, (size_t) search->nhits * sizeof(GvHit));
		search->bounds = search->bounded ?
			take(&next, (size_t) search->nhits * sizeof(GvBound)) : NULL;
		search->matches = search->condition != NULL ?
			take(&next, nprobed * sizeof(int32_t)) : NULL;
		if (nprobed > 0)
			memcpy(search->probed, asked[i].probed,
				   nprobed * sizeof(GvProbe));
		merge_hits(mirror, &asked[i], n, search->hits, search->nhits);
		add_up(mirror, &asked[i], n, search);
	}
	answers->sorted = (GvHit *) next;
	return GV_OK;
}

/* Does a search wait for what is near the merged hit number `rank`? */
static bool
asks_nearer(const GvSearch *search)
{
	return search->rank > 0 && !search->limited &&
		search->nhits >= search->rank;
}

/*
 * The searches that ask for the sample, with the score it is measured by: so
 * many, for each part.
 */
int32_t
gv_spread_ask_nearer(const GvSpreadMirror *mirror, const GvSearch *searches,
					 int32_t n, GvSearch *asked)
{
	int32_t		nasked = 0;
	int32_t		p;
	int32_t		i;

	for (i = 0; i < n; i++)
		if (asks_nearer(&searches[i]))
		{
			GvSearch   *one = &asked[nasked++];

			*one = searches[i];
			one->limit = one->hits[one->rank - 1].score;
			one->limited = true;
			one->rank = 1;
			one->capacity = 1;
			one->bounded = false;
		}
	for (p = 1; p < mirror->spread.nparts; p++)
		memcpy(&asked[(size_t) p * (size_t) nasked], asked,
			   (size_t) nasked * sizeof(GvSearch));
	return nasked;
}

/* What parts have answered to that. */
void
gv_spread_add_nearer(const GvSpreadMirror *mirror, const GvSearch *asked,
					 GvSearch *searches, int32_t n)
{
	int32_t		nasked = 0;
	int32_t		at = 0;
	int32_t		p;
	int32_t		i;

	for (i = 0; i < n; i++)
		nasked += asks_nearer(&searches[i]);
	for (i = 0; i < n; i++)
	{
		if (!asks_nearer(&searches[i]))
			continue;
		for (p = 0; p < mirror->spread.nparts; p++)
		{
			const GvSearch *part = &asked[p * nasked + at];

			searches[i].nearer += part->nearer;
			searches[i].nearer_squares += part->nearer_squares;
		}
		at++;
	}
}

/* The hits of a search to those who have their records, at *sorted. */
static void
sort_hits(const GvSpreadMirror *mirror, const GvSearch *search,
		  GvSearch *asked, int32_t n, GvHit **sorted, int64_t *nhits)
{
	GvSearch	one = {.query = search->query, .bounded = true, .given = true};
	int32_t		wanted = search->bounded ? search->nhits : 0;
	int32_t		p;
	int32_t		i;

	for (p = 0; p < mirror->spread.nparts; p++)
		asked[(size_t) p * (size_t) n] = one;
	for (i = 0; i < wanted; i++)
		asked[(size_t) gv_record_owner(mirror, search->hits[i].rowid) *
			  (size_t) n].nhits++;
	for (p = 0; p < mirror->spread.nparts; p++)
	{
		GvSearch   *part = &asked[(size_t) p * (size_t) n];

		part->hits = *sorted;
		*sorted += part->nhits;
		nhits[p] += part->nhits;
		part->nhits = 0;
	}
	for (i = 0; i < wanted; i++)
	{
		GvSearch   *part = &asked[(size_t) gv_record_owner
								  (mirror, search->hits[i].rowid) *
								  (size_t) n];

		part->hits[part->nhits++] = search->hits[i];
	}
}

/*
 * The bounds of all hits, of those who have their records, so many of each part.
 * Hits that were given have room neither for bounds nor in another order yet.
 */
GvStatus
gv_spread_ask_bounds(const GvSpreadMirror *mirror, GvSearch *searches,
					 int32_t n, GvSearch *asked, GvSpreadAnswers *answers,
					 int64_t *nhits)
{
	GvHit	   *sorted;
	int32_t		i;

	memset(nhits, 0, GV_MAX_DEVICES * sizeof(*nhits));
	if (searches[0].given)
	{
		size_t		total = 1;
		char	   *next;
		GvStatus	status;

		for (i = 0; i < n; i++)
			total += (size_t) searches[i].nhits;
		status = need_answers(answers, total *
							  (sizeof(GvBound) + sizeof(GvHit)));
		if (status != GV_OK)
			return status;
		next = answers->memory;
		for (i = 0; i < n; i++)
			searches[i].bounds = take(&next, (size_t) searches[i].nhits *
									  sizeof(GvBound));
		answers->sorted = (GvHit *) next;
	}
	sorted = answers->sorted;
	for (i = 0; i < n; i++)
		sort_hits(mirror, &searches[i], &asked[i], n, &sorted, nhits);
	return GV_OK;
}

/* What parts have answered to that, in the order of the hits. */
void
gv_spread_take_bounds(const GvSpreadMirror *mirror, const GvSearch *asked,
					  GvSearch *searches, int32_t n)
{
	int32_t		s;
	int32_t		i;

	for (s = 0; s < n; s++)
	{
		int32_t		taken[GV_MAX_DEVICES] = {0};
		GvSearch   *search = &searches[s];

		for (i = 0; search->bounded && i < search->nhits; i++)
		{
			int32_t		owner = gv_record_owner(mirror,
												search->hits[i].rowid);
			const GvSearch *part = &asked[(size_t) owner * (size_t) n +
										  (size_t) s];

			search->bounds[i] = part->bounds[taken[owner]++];
		}
	}
}
