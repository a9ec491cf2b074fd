/*
 * tempfile.h
 *		Records on their way between participants, in temporary files
 *		(tempfile.c).
 */
#ifndef IVFPQ_TEMPFILE_H
#define IVFPQ_TEMPFILE_H

#include "storage/buffile.h"

#include "am/team/team.h"

typedef struct IvfpqSpill
{
	SharedFileSet *files;		/* NULL: the leader is alone */
	const char *what;			/* name of its files */
	int			me;				/* participant */
	int			nranges;
	BufFile   **ranges;			/* [nranges] own files; NULL: nothing came */
} IvfpqSpill;

extern void IvfpqSpillBegin(IvfpqSpill *spill, IvfpqTeam *team,
							const char *what, int nranges);
extern void IvfpqSpillPut(IvfpqSpill *spill, int range, void *record,
						  Size bytes);
extern void IvfpqSpillDone(IvfpqSpill *spill);
extern BufFile *IvfpqSpillOpen(IvfpqSpill *spill, int range, int from);
extern void IvfpqSpillClose(IvfpqSpill *spill, BufFile *file);
extern void IvfpqSpillEnd(IvfpqSpill *spill);

/* n things are cut into ranges: the one that holds thing i, */
static inline int
IvfpqSpillRange(const IvfpqSpill *spill, int i, int n)
{
	return (int) ((int64) i * spill->nranges / n);
}

/* and the first thing of a range, or n behind the last one. */
static inline int
IvfpqSpillFirst(const IvfpqSpill *spill, int range, int n)
{
	return (int) (((int64) range * n + spill->nranges - 1) / spill->nranges);
}

#endif							/* IVFPQ_TEMPFILE_H */
