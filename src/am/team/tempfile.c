/*
 * tempfile.c
 *		Records on their way from who makes them to who takes them, cut into
 *		ranges, in temporary files.
 *
 * Each participant has a file of its own for each range, which others may
 * read when all have put what they have.  The files of a leader who is alone
 * are nobody else's, and need no shared memory.
 */
#include "postgres.h"

#include "am/team/exchange.h"
#include "am/team/tempfile.h"

/* Begin with nothing; memory from the current context. */
void
IvfpqSpillBegin(IvfpqSpill *spill, IvfpqTeam *team, const char *what,
				int nranges)
{
	spill->files = team->parallel ? &team->shared->files : NULL;
	spill->what = what;
	spill->me = team->me;
	spill->nranges = nranges;
	spill->ranges = palloc0(nranges * sizeof(BufFile *));
}

/* Put a record into a range. */
void
IvfpqSpillPut(IvfpqSpill *spill, int range, void *record, Size bytes)
{
	if (spill->ranges[range] == NULL)
		spill->ranges[range] = spill->files == NULL ?
			BufFileCreateTemp(false) :
			IvfpqExchangeCreate(spill->files, spill->what, range, spill->me);
	BufFileWrite(spill->ranges[range], record, bytes);
}

/* All that come from here have been put: others may have them. */
void
IvfpqSpillDone(IvfpqSpill *spill)
{
	if (spill->files == NULL)
		return;
	for (int range = 0; range < spill->nranges; range++)
		if (spill->ranges[range] != NULL)
			IvfpqExchangeClose(spill->ranges[range]);
}

/*
 * A participant's records of a range, from the first one on; NULL: there are
 * none.  By IvfpqExchangeRead; one reader at a time where the leader is alone.
 */
BufFile *
IvfpqSpillOpen(IvfpqSpill *spill, int range, int from)
{
	BufFile    *file;

	if (spill->files != NULL)
		return IvfpqExchangeOpen(spill->files, spill->what, range, from);
	file = spill->ranges[range];
	if (file != NULL && BufFileSeek(file, 0, 0, SEEK_SET) != 0)
		elog(ERROR, "could not rewind a temporary file");
	return file;
}

/* They have been read; the file stays. */
void
IvfpqSpillClose(IvfpqSpill *spill, BufFile *file)
{
	if (spill->files != NULL)
		BufFileClose(file);
}

/* Nobody needs them any more; shared files end with the segment. */
void
IvfpqSpillEnd(IvfpqSpill *spill)
{
	for (int range = 0; range < spill->nranges; range++)
		if (spill->files == NULL && spill->ranges[range] != NULL)
			BufFileClose(spill->ranges[range]);
	pfree(spill->ranges);
}
