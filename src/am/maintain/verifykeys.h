/*
 * verifykeys.h
 *		Images of keys compared with the table's values (verifykeys.c).
 */
#ifndef IVFPQ_VERIFYKEYS_H
#define IVFPQ_VERIFYKEYS_H

#include "am/common/util.h"
#include "am/types/keys.h"
#include "page/pagecheck.h"

typedef struct IvfpqVerifyKeys
{
	IvfpqKeys	keys;			/* if there are none, all calls do nothing */
	IvfpqPairSort sort;			/* place, digest */
} IvfpqVerifyKeys;

extern void IvfpqVerifyKeysBegin(IvfpqVerifyKeys *verify, Relation index);
extern void IvfpqVerifyKeysPosting(IvfpqVerifyKeys *verify,
								   const IvfpqFound *found);
extern void IvfpqVerifyKeysRow(IvfpqVerifyKeys *verify, ItemPointer tid,
							   const Datum *values, const bool *isnull);
extern void IvfpqVerifyKeysCompare(IvfpqVerifyKeys *verify,
								   void (*report) (void *arg, uint64 id),
								   void *arg);
extern void IvfpqVerifyKeysEnd(IvfpqVerifyKeys *verify);

#endif							/* IVFPQ_VERIFYKEYS_H */
