/*
 * lengths.h
 *		Counts lists by their length, and bounds how many blocks a number of
 *		lists have together.
 *
 * A search needs memory for the scores of all postings that it may meet.  A
 * search that probes p lists meets at most the postings of the p longest
 * lists.  The number of probes times the length of the longest list would be
 * too much: if one list is very long, there would be memory for only a few
 * searches.  Lists change one at a time, so we count them by classes of
 * length, eight classes for each power of two, and add up the longest
 * classes.
 */
#ifndef GV_LENGTHS_H
#define GV_LENGTHS_H

/* Lengths below this have a class each. */
#define GV_SHORT_LENGTHS	16
#define GV_LENGTH_CLASSES	(GV_SHORT_LENGTHS + 28 * 8)

/* The lists of each class. */
struct GvLengths
{
	int64_t		nlists[GV_LENGTH_CLASSES];
	int64_t		nblocks[GV_LENGTH_CLASSES];
};

/*
 * Returns the class of a length, which is given by its highest bit and the
 * three bits below.
 */
static inline int
gv_length_class(uint32_t length)
{
	int			shift;

	if (length < GV_SHORT_LENGTHS)
		return (int) length;
	shift = 28 - __builtin_clz(length);
	return GV_SHORT_LENGTHS + (shift - 1) * 8 + (int) (length >> shift) - 8;
}

/* Returns the greatest length of a class. */
static inline int64_t
gv_class_most(int c)
{
	int			shift;

	if (c < GV_SHORT_LENGTHS)
		return c;
	c -= GV_SHORT_LENGTHS;
	shift = c / 8 + 1;
	return ((int64_t) (8 + c % 8 + 1) << shift) - 1;
}

/*
 * Adds a list of n blocks to the counts (times = 1), or removes it (times =
 * -1).
 */
static inline void
gv_lengths_count(struct GvLengths *lengths, uint32_t n, int times)
{
	int			c = gv_length_class(n);

	lengths->nlists[c] += times;
	lengths->nblocks[c] += (int64_t) times * n;
}

/*
 * Returns an upper bound of the blocks that any nlists lists have together.
 * It adds up the longest lists.  If only some lists of a class are needed,
 * each of these counts with the greatest length of the class.
 */
static inline int64_t
gv_lengths_most(const struct GvLengths *lengths, int64_t nlists)
{
	int64_t		nblocks = 0;

	for (int c = GV_LENGTH_CLASSES - 1; c > 0 && nlists > 0; c--)
	{
		int64_t		n = lengths->nlists[c];

		nblocks += n <= nlists ? lengths->nblocks[c] :
			nlists * gv_class_most(c);
		nlists -= n <= nlists ? n : nlists;
	}
	return nblocks;
}

#endif							/* GV_LENGTHS_H */
