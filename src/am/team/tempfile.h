/*
 * tempfile.h
 *		Records on their way between participants, in temporary files
 *		(tempfile.c).
 */
#ifndef IVFPQ_TEMPFILE_H
#define IVFPQ_TEMPFILE_H

#include "storage/buffile.h"

#include "am/team/team.h"

typedef struct IvfpqTempFile
{
	SharedFileSet *files;		/* NULL: the leader is alone */
	const char *what;			/* name of its files */
	int			me;				/* participant */
	int			nranges;
	BufFile   **ranges;			/* [nranges] own files; NULL: nothing came */
} IvfpqTempFile;

extern void IvfpqTempFileBegin(IvfpqTempFile *temp, IvfpqParallel *parallel,
							   const char *what, int nranges);
extern void IvfpqTempFilePut(IvfpqTempFile *temp, int range, void *record,
							 Size bytes);
extern void IvfpqTempFileDone(IvfpqTempFile *temp);
extern BufFile *IvfpqTempFileOpen(IvfpqTempFile *temp, int range, int from);
extern bool IvfpqTempFileRead(BufFile *file, void *bytes, Size n);
extern void IvfpqTempFileClose(IvfpqTempFile *temp, BufFile *file);
extern void IvfpqTempFileEnd(IvfpqTempFile *temp);

/* Of n things, divided into ranges, returns the range that holds thing i. */
static inline int
IvfpqTempFileRange(const IvfpqTempFile *temp, int i, int n)
{
	return (int) ((int64) i * temp->nranges / n);
}

/* Returns the first thing of a range, or n behind the last range. */
static inline int
IvfpqTempFileFirst(const IvfpqTempFile *temp, int range, int n)
{
	return (int) (((int64) range * n + temp->nranges - 1) / temp->nranges);
}

#endif							/* IVFPQ_TEMPFILE_H */
