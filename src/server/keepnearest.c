/*
 * keepnearest.c
 *		Which hits a session needs, if it has asked for the nearest rows.
 *
 * A search for the nearest hundred rows finds thousands of hits, since scores
 * are approximate.  Where the engine has told the distances of their rows, the
 * session needs few of them.  The rest need not be sent, received and sorted.
 *
 * The hits of a row, at most one for each list that has it, are next to each
 * other only by chance, so rows are looked up in a hash table.  The nearest of
 * them are found by a histogram of their distances, in two passes, without
 * sorting.  So the answer may have some more rows than were asked for, but
 * never leaves out a row that is nearer than one that it has.
 */
#include "server/server.h"

#include <math.h>
#include <string.h>

#define MOST_HITS		(1 << 15)	/* of an answer that is cut */
#define TABLE_SIZE		(2 * MOST_HITS)
#define NBINS			512

/*
 * An answer is cut only if it has at least this many hits, and at least this
 * multiple of `keep` rows: otherwise to send all takes the loop no longer.
 */
#define LEAST_HITS		256
#define WORTH_CUTTING	2

/*
 * The loop's thread answers all sessions.  An entry of the table is a row id,
 * and the round in which it was entered; entries of other rounds are free.
 */
static struct
{
	uint64_t	table[TABLE_SIZE];
	uint16_t	round;
	int32_t		hits[MOST_HITS];	/* [nrows] the best hit of each row */
	int32_t		nrows;
	uint16_t	bins[MOST_HITS];	/* [nrows] by distance; ALWAYS */
	int32_t		counts[NBINS];	/* number of rows in each bin */
}			work;

/* The bin of rows that are sent anyway: no distance is known, or it is NaN. */
#define ALWAYS			UINT16_MAX

/* Sets work.hits to the best hits of the first `most` different rows. */
static void
find_rows(const GvSearch *found, int32_t most)
{
	uint64_t	mask = 1;
	int32_t		i;

	while (mask < 2 * (uint64_t) found->nhits)
		mask *= 2;
	mask--;
	if (++work.round == 0)
	{
		memset(work.table, 0, sizeof(work.table));
		work.round = 1;
	}
	work.nrows = 0;
	for (i = 0; i < found->nhits && work.nrows < most; i++)
	{
		uint64_t	entry = work.round;
		uint64_t	at;

		memcpy((char *) &entry + 2, found->hits[i].rowid,
			   sizeof(found->hits[i].rowid));
		at = (entry * UINT64_C(0x9E3779B97F4A7C15)) >> 40 & mask;
		while ((uint16_t) work.table[at] == work.round &&
			   work.table[at] != entry)
			at = (at + 1) & mask;
		if (work.table[at] == entry)
			continue;
		work.table[at] = entry;
		work.hits[work.nrows++] = i;
	}
}

/* Returns a number that ascends with the distance, which is not NaN. */
static inline int64_t
ascending(double distance)
{
	float		rounded = (float) distance;
	int32_t		bits;

	memcpy(&bits, &rounded, sizeof(bits));
	return bits >= 0 ? bits : -(int64_t) (bits & INT32_MAX);
}

/*
 * Sorts the rows into bins by their distances.  A bin has an equal share of the
 * range of ascending(), so that a few huge distances do no harm.  Returns the
 * number of the last bin that is needed for `keep` rows, or NBINS if all are
 * needed.
 */
static int32_t
find_last_bin(const GvSearch *found, int32_t keep)
{
	int64_t		least = INT64_MAX;
	int64_t		most = INT64_MIN;
	double		scale;
	int32_t		nalways = 0;
	int32_t		n = 0;
	int32_t		bin;
	int32_t		i;

	for (i = 0; i < work.nrows; i++)
	{
		const GvRowDistance *row = &found->distances[work.hits[i]];
		int64_t		key;

		work.bins[i] = ALWAYS;
		if (!row->known || isnan(row->distance))
		{
			nalways++;
			continue;
		}
		key = ascending(row->distance);
		work.bins[i] = 0;
		least = key < least ? key : least;
		most = key > most ? key : most;
	}
	/* if few distances are known, the session orders rows by other means */
	if (nalways > keep || least >= most)
		return NBINS;
	scale = (NBINS - 0.5) / (double) (most - least);
	memset(work.counts, 0, sizeof(work.counts));
	for (i = 0; i < work.nrows; i++)
		if (work.bins[i] != ALWAYS)
		{
			double		distance = found->distances[work.hits[i]].distance;

			work.bins[i] = (uint16_t)
				((double) (ascending(distance) - least) * scale);
			work.counts[work.bins[i]]++;
		}
	for (bin = 0; bin < NBINS; bin++)
	{
		n += work.counts[bin];
		if (n >= keep)
			return bin;
	}
	return NBINS;
}

const int32_t *
gv_keep_nearest(const GvSearch *found, const GvSearchRequest *request,
				GvSearchReply *head)
{
	int32_t		keep = request->keep;
	int32_t		last;
	int32_t		kept = 0;
	int32_t		i;

	if (keep == 0 || head->ndistances == 0 || found->nhits < LEAST_HITS ||
		found->nhits > MOST_HITS)
		return NULL;
	find_rows(found, request->rows);
	if (work.nrows / WORTH_CUTTING < keep)
		return NULL;

	/*
	 * with tests the session decides which rows are candidates, unless all
	 * are
	 */
	if (request->ntests > 0 && (work.nrows == request->rows ||
								found->nhits == request->capacity))
		return NULL;
	last = find_last_bin(found, keep);
	if (last == NBINS)
		return NULL;
	head->omitted.distance = INFINITY;
	for (i = 0; i < work.nrows; i++)
	{
		const GvRowDistance *row = &found->distances[work.hits[i]];

		if (work.bins[i] <= last || work.bins[i] == ALWAYS)
		{
			work.hits[kept++] = work.hits[i];
			continue;
		}
		if (row->distance < head->omitted.distance)
			head->omitted.distance = row->distance;
		if (row->magnitude > head->omitted.magnitude)
			head->omitted.magnitude = row->magnitude;
	}
	head->omitted.n = work.nrows - kept;
	if (head->omitted.n == 0)
		return NULL;
	head->nhits = kept;
	head->ndistances = (uint32_t) kept;
	return work.hits;
}
