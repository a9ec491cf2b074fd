/*
 * tempfile.c
 *		Records on their way between participants, cut into ranges, in
 *		temporary files.
 *
 * Each participant has a file of its own for each range, which others may read
 * when all participants have put their records.  These are files because
 * shared memory may be small (containers have 64 MB); what is written here is
 * read at once, from the system's cache.  A leader that is alone needs no
 * shared memory for its files.
 */
#include "postgres.h"

#include "am/team/tempfile.h"

#define NAME_BYTES		64

/* The name of a participant's file. */
static const char *
name_of(const IvfpqTempFile *temp, char *name, int range, int from)
{
	snprintf(name, NAME_BYTES, "%s.%d.%d", temp->what, range, from);
	return name;
}

/* Begin with nothing; memory from the current context. */
void
IvfpqTempFileBegin(IvfpqTempFile *temp, IvfpqParallel *parallel,
				   const char *what,
				   int nranges)
{
	temp->files = parallel->has_workers ? &parallel->shared->files : NULL;
	temp->what = what;
	temp->me = parallel->me;
	temp->nranges = nranges;
	temp->ranges = palloc0(nranges * sizeof(BufFile *));
}

/* Put a record into a range. */
void
IvfpqTempFilePut(IvfpqTempFile *temp, int range, void *record,
				 Size bytes)
{
	char		name[NAME_BYTES];

	if (temp->ranges[range] == NULL)
		temp->ranges[range] = temp->files == NULL ?
			BufFileCreateTemp(false) :
			BufFileCreateFileSet(&temp->files->fs,
								 name_of(temp, name, range, temp->me));
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
		{
			BufFileExportFileSet(temp->ranges[range]);
			BufFileClose(temp->ranges[range]);
		}
}

/*
 * A participant's records of a range, from the first one on; NULL: there are
 * none.  By IvfpqTempFileRead; one reader at a time where the leader is alone.
 */
BufFile *
IvfpqTempFileOpen(IvfpqTempFile *temp, int range, int from)
{
	char		name[NAME_BYTES];
	BufFile    *file;

	if (temp->files != NULL)
		return BufFileOpenFileSet(&temp->files->fs,
								  name_of(temp, name, range, from), O_RDONLY,
								  true);
	file = temp->ranges[range];
	if (file != NULL && BufFileSeek(file, 0, 0, SEEK_SET) != 0)
		elog(ERROR, "could not rewind a temporary file");
	return file;
}

/* Read n bytes; false: the file was at its end. */
bool
IvfpqTempFileRead(BufFile *file, void *bytes, Size n)
{
	Size		got = BufFileRead(file, bytes, n);

	if (got != 0 && got != n)
		elog(ERROR, "a temporary file of the build ends early");
	return got != 0;
}

/* They have been read; the file stays. */
void
IvfpqTempFileClose(IvfpqTempFile *temp, BufFile *file)
{
	if (temp->files != NULL)
		BufFileClose(file);
}

/* All have read what this participant has put: its files go. */
void
IvfpqTempFileEnd(IvfpqTempFile *temp)
{
	char		name[NAME_BYTES];

	for (int range = 0; range < temp->nranges; range++)
		if (temp->ranges[range] == NULL)
			continue;
		else if (temp->files == NULL)
			BufFileClose(temp->ranges[range]);
		else
			BufFileDeleteFileSet(&temp->files->fs,
								 name_of(temp, name, range, temp->me), false);
	pfree(temp->ranges);
}
