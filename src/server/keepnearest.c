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
#define NBINS			1024
#define AHEAD			12		/* rows looked up ahead: nothing is in caches */

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
	int32_t		keys[MOST_HITS];	/* [nrows] by distance; ALWAYS */
	int32_t		nrows;
	int32_t		nalways;
	int32_t		least;			/* of the keys that are not ALWAYS */
	int32_t		most;
	int32_t		counts[NBINS];	/* number of rows in each bin */
}			work;

/* The key of rows that are sent anyway: no distance is known, or it is NaN. */
#define ALWAYS			INT32_MIN

/* Returns a number that ascends with the distance, or ALWAYS. */
static inline int32_t
row_key(const GvRowDistance *row)
{
	float		rounded = (float) row->distance;
	int32_t		bits;

	if (!row->known || isnan(rounded))
		return ALWAYS;
	memcpy(&bits, &rounded, sizeof(bits));
	return bits >= 0 ? bits : -(bits & INT32_MAX);
}

/* Returns the table's entry for a hit's row, in this round. */
static inline uint64_t
entry_of(const GvHit *hit)
{
	uint32_t	low;

	memcpy(&low, hit->rowid, sizeof(low));
	return work.round | (uint64_t) low << 16 | (uint64_t) hit->rowid[2] << 48;
}

static inline uint64_t
place_of(uint64_t entry)
{
	return entry * UINT64_C(0x9E3779B97F4A7C15) >> 40;
}

/*
 * Sets work.hits to the best hits of the first `most` different rows, and
 * work.keys to their keys.  That a row was met before is not predictable, so
 * there is no branch for it.
 */
static void
find_rows(const GvSearch *found, int32_t most)
{
	uint64_t	mask = 1;
	int32_t		n = 0;
	int32_t		i;

	while (mask < 2 * (uint64_t) found->nhits)
		mask *= 2;
	mask--;
	if (++work.round == 0)
	{
		memset(work.table, 0, sizeof(work.table));
		work.round = 1;
	}
	work.nalways = 0;
	work.least = INT32_MAX;
	work.most = ALWAYS;
	for (i = 0; i < found->nhits && n < most; i++)
	{
		uint64_t	entry = entry_of(&found->hits[i]);
		uint64_t	at = place_of(entry) & mask;
		int32_t		key = row_key(&found->distances[i]);
		bool		is_new;

		if (i + AHEAD < found->nhits)
			__builtin_prefetch(&work.table[place_of(entry_of(&found->hits[i + AHEAD])) & mask],
							   1);
		while (((uint16_t) work.table[at] == work.round) &
			   (work.table[at] != entry))
			at = (at + 1) & mask;
		is_new = work.table[at] != entry;
		work.table[at] = entry;
		work.hits[n] = i;
		work.keys[n] = key;
		n += is_new;
		if (key == ALWAYS)
		{
			work.nalways += is_new;
			continue;
		}
		work.least = key < work.least ? key : work.least;
		work.most = key > work.most ? key : work.most;
	}
	work.nrows = n;
}

/*
 * Returns the greatest key that is needed for `keep` rows, or INT32_MAX if all
 * are needed.  Rows are counted in bins.  A bin has an equal share of the range
 * of the keys, so that a few huge distances do no harm.
 */
static int32_t
find_last_key(int32_t keep)
{
	uint32_t	least = (uint32_t) work.least;
	uint32_t	range = (uint32_t) work.most - least;
	int32_t		n = 0;
	int			shift = 0;
	uint32_t	bin;
	int32_t		i;

	/* if few distances are known, the session orders rows by other means */
	if (work.nalways > keep || work.least >= work.most)
		return INT32_MAX;
	while (range >> shift >= NBINS)
		shift++;
	memset(work.counts, 0, sizeof(work.counts));
	for (i = 0; i < work.nrows; i++)
		if (work.keys[i] != ALWAYS)
			work.counts[((uint32_t) work.keys[i] - least) >> shift]++;
	for (bin = 0; bin < range >> shift; bin++)
	{
		n += work.counts[bin];
		if (n >= keep)
			return (int32_t) (least + ((bin + 1) << shift) - 1);
	}
	return INT32_MAX;
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
	last = find_last_key(keep);
	if (last == INT32_MAX)
		return NULL;
	head->omitted.distance = INFINITY;
	for (i = 0; i < work.nrows; i++)
	{
		const GvRowDistance *row = &found->distances[work.hits[i]];

		if (work.keys[i] <= last)	/* or ALWAYS, which is less */
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
