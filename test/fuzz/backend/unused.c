/*
 * unused.c
 *		Functions that headers of a server mention in code that is not reached:
 *		the file of the index is always open.  Without those headers, since they
 *		differ between versions.
 */
#include "fuzz.h"

UNREACHED(void smgropen(void))
UNREACHED(void smgrsetowner(void))
UNREACHED(void smgrpin(void))
UNREACHED(void XLogBeginInsert(void))
UNREACHED(void XLogRegisterData(void))
UNREACHED(void XLogInsert(void))
