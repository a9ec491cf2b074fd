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

/*
 * Memory for the answers to n searches, with so many hits in all, and for so many
 * bytes of what they have besides, to which *next is set.
 */
static GvStatus
need_answers(GvSpreadAnswers *answers, const GvSpreadMirror *mirror, int32_t n,
			 size_t nhits, size_t bytes, char **next)
{
	size_t		ncounts = (size_t) n * (size_t) mirror->spread.nparts;

	/* one more: there may be none */
	bytes += nhits * (sizeof(GvHit) + sizeof(uint8_t)) +
		ncounts * sizeof(int32_t) + 1;
	if (bytes > answers->bytes)
	{
		free(answers->memory);
		answers->bytes = bytes + bytes / 4;
		answers->memory = malloc(answers->bytes);
		if (answers->memory == NULL)
		{
			answers->bytes = 0;
			return GV_NO_MEMORY;
		}
	}
	answers->sorted = (GvHit *) answers->memory;
	answers->counts = (int32_t *) (answers->sorted + nhits);
	*next = (char *) (answers->counts + ncounts);
	answers->owners = (uint8_t *) answers->memory + bytes - nhits - 1;
	return GV_OK;
}

/* Room for so many bytes of answers at *next; all of it is of 4-byte elements. */
static void *
take(char **next, size_t bytes)
{
	void	   *place = *next;

	*next += bytes;
	return place;
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

/* The i-th search's hits, of which so many are before, by their owners. */
static void
sort_hits(const GvSpreadMirror *mirror, const GvSearch *search,
		  GvSpreadAnswers *answers, int32_t i, size_t before)
{
	gv_spread_sort_hits(mirror, search->hits,
						search->bounded ? search->nhits : 0,
						answers->sorted + before, answers->owners + before,
						answers->counts +
						(size_t) i * (size_t) mirror->spread.nparts);
}

/* What n searches found, from what each part found. */
GvStatus
gv_spread_merge(const GvSpreadMirror *mirror, const GvSearch *asked,
				GvSearch *searches, int32_t n, GvSpreadAnswers *answers)
{
	size_t		bytes = 0;
	size_t		total = 0;
	size_t		first = 0;
	char	   *next;
	GvStatus	status;
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		GvSearch   *search = &searches[i];

		search->nprobed = asked[i].nprobed;
		search->nhits = count_hits(mirror, asked, n, i);
		bytes += (size_t) search->nprobed *
			(sizeof(GvProbe) + sizeof(int32_t)) +
			(size_t) search->nhits * (sizeof(GvHit) + sizeof(GvBound));
		total += (size_t) search->nhits;
	}
	status = need_answers(answers, mirror, n, total, bytes, &next);
	if (status != GV_OK)
		return status;
	for (i = 0; i < n; i++)
	{
		GvSearch   *search = &searches[i];
		size_t		nprobed = (size_t) search->nprobed;

		search->probed = take(&next, nprobed * sizeof(GvProbe));
		search->hits = take(&next, (size_t) search->nhits * sizeof(GvHit));
		search->bounds = search->bounded ?
			take(&next, (size_t) search->nhits * sizeof(GvBound)) : NULL;
		search->matches = search->condition != NULL ?
			take(&next, nprobed * sizeof(int32_t)) : NULL;
		if (nprobed > 0)
			memcpy(search->probed, asked[i].probed,
				   nprobed * sizeof(GvProbe));
		if (i + 1 < n)
			gv_spread_expect_hits(&asked[i + 1], n, mirror->spread.nparts,
								  searches[i + 1].nhits);
		gv_spread_merge_hits(&asked[i], n, mirror->spread.nparts, search->hits,
							 search->nhits, answers->sorted + first);
		add_up(mirror, &asked[i], n, search);
		sort_hits(mirror, search, answers, i, first);
		first += (size_t) search->nhits;
	}
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

/* Room for the bounds of hits that were given, and these by their owners. */
static GvStatus
sort_given(const GvSpreadMirror *mirror, GvSearch *searches, int32_t n,
		   GvSpreadAnswers *answers)
{
	size_t		total = 0;
	size_t		first = 0;
	char	   *next;
	GvStatus	status;
	int32_t		i;

	for (i = 0; i < n; i++)
		total += (size_t) searches[i].nhits;
	status = need_answers(answers, mirror, n, total, total * sizeof(GvBound),
						  &next);
	for (i = 0; i < n && status == GV_OK; i++)
	{
		searches[i].bounds = take(&next, (size_t) searches[i].nhits *
								  sizeof(GvBound));
		sort_hits(mirror, &searches[i], answers, i, first);
		first += (size_t) searches[i].nhits;
	}
	return status;
}

/*
 * The bounds of all hits, of those who have their records, so many of each part.
 * Hits that were given are not sorted yet.
 */
GvStatus
gv_spread_ask_bounds(const GvSpreadMirror *mirror, GvSearch *searches,
					 int32_t n, GvSearch *asked, GvSpreadAnswers *answers,
					 int64_t *nhits)
{
	int32_t		nparts = mirror->spread.nparts;
	GvHit	   *sorted;
	int32_t		i;
	int32_t		p;

	memset(nhits, 0, GV_MAX_DEVICES * sizeof(*nhits));
	if (searches[0].given)
	{
		GvStatus	status = sort_given(mirror, searches, n, answers);

		if (status != GV_OK)
			return status;
	}
	sorted = answers->sorted;
	for (i = 0; i < n; i++)
	{
		const int32_t *counts = answers->counts + (size_t) i * (size_t) nparts;
		GvHit	   *hits = sorted;

		for (p = 0; p < nparts; p++)
		{
			asked[(size_t) p * (size_t) n + (size_t) i] = (GvSearch)
			{
				.query = searches[i].query, .bounded = true, .given = true,
					.nhits = counts[p], .hits = hits
			};
			hits += counts[p];
			nhits[p] += counts[p];
		}
		sorted += searches[i].nhits;
	}
	return GV_OK;
}

/* What parts have answered to that, in the order of the hits. */
void
gv_spread_take_bounds(const GvSpreadMirror *mirror, const GvSearch *asked,
					  GvSearch *searches, int32_t n,
					  const GvSpreadAnswers *answers)
{
	const uint8_t *owners = answers->owners;
	int32_t		s;
	int32_t		p;
	int32_t		i;

	for (s = 0; s < n; s++)
	{
		const GvBound *next[GV_MAX_DEVICES];
		GvSearch   *search = &searches[s];

		for (p = 0; p < mirror->spread.nparts; p++)
			next[p] = asked[(size_t) p * (size_t) n + (size_t) s].bounds;
		for (i = 0; search->bounded && i < search->nhits; i++)
			search->bounds[i] = *next[owners[i]]++;
		owners += search->nhits;
	}
}
