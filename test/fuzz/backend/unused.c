/*
 * unused.c
 *		Functions that headers of a server mention in code that is not reached:
 *		the file of the index is always open.  Without those headers, since they
 *		differ between versions.
 */
#include "fuzz.h"

extern void smgropen(void);
extern void smgrsetowner(void);
extern void smgrpin(void);

void
smgropen(void)
{
	FAULT("a file is opened");
}

void
smgrsetowner(void)
{
	FAULT("a file is opened");
}

void
smgrpin(void)
{
	FAULT("a file is opened");
}
