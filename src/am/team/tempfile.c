/*
 * tempfile.c
 *		Records on their way between participants, cut into ranges, in
 *		temporary files.
 *
 * Each participant has a file of its own for each range, which others may read
 * when all participants have put their records.  A leader that is alone needs
 * no shared memory for its files.
 */
#include "postgres.h"

#include "am/team/exchange.h"
#include "am/team/tempfile.h"

/* Begin with nothing; memory from the current context. */
void
IvfpqTempFileBegin(IvfpqTempFile *temp, IvfpqTeam *team, const char *what,
				   int nranges)
{
	temp->files = team->parallel ? &team->shared->files : NULL;
	temp->what = what;
	temp->me = team->me;
	temp->nranges = nranges;
	temp->ranges = palloc0(nranges * sizeof(BufFile *));
}

/* Put a record into a range. */
void
IvfpqTempFilePut(IvfpqTempFile *temp, int range, void *record, Size bytes)
{
	if (temp->ranges[range] == NULL)
		temp->ranges[range] = temp->files == NULL ?
			BufFileCreateTemp(false) :
			IvfpqExchangeCreate(temp->files, temp->what, range, temp->me);
	BufFileWrite(temp->ranges[range], record, bytes);
}

/* All records of this participant have been put: others may read them. */
void
IvfpqTempFileDone(IvfpqTempFile *temp)
{
	if (temp->files == NULL)
		return;
	for (int range = 0; range < temp->nranges; range++)
		if (temp->ranges[range] != NULL)
			IvfpqExchangeClose(temp->ranges[range]);
}

/*
 * A participant's records of a range, from the first one on; NULL: there are
 * none.  By IvfpqExchangeRead; one reader at a time where the leader is alone.
 */
BufFile *
IvfpqTempFileOpen(IvfpqTempFile *temp, int range, int from)
{
	BufFile    *file;

	if (temp->files != NULL)
		return IvfpqExchangeOpen(temp->files, temp->what, range, from);
	file = temp->ranges[range];
	if (file != NULL && BufFileSeek(file, 0, 0, SEEK_SET) != 0)
		elog(ERROR, "could not rewind a temporary file");
	return file;
}

/* They have been read; the file stays. */
void
IvfpqTempFileClose(IvfpqTempFile *temp, BufFile *file)
{
	if (temp->files != NULL)
		BufFileClose(file);
}

/* They are not needed any more; shared files end with the segment. */
void
IvfpqTempFileEnd(IvfpqTempFile *temp)
{
	for (int range = 0; range < temp->nranges; range++)
		if (temp->files == NULL && temp->ranges[range] != NULL)
			BufFileClose(temp->ranges[range]);
	pfree(temp->ranges);
}
