/*
 * tidset.h
 *		Sets of TIDs (IvfpqTidToId), by PostgreSQL's simplehash.
 */
#ifndef IVFPQ_TIDSET_H
#define IVFPQ_TIDSET_H

#include "common/hashfn.h"

typedef struct TidSetEntry
{
	uint64		id;
	char		status;
	bool		matched;		/* a scan's filter; see depth.c */
	bool		invisible;		/* the snapshot does not see it */
} TidSetEntry;

#define SH_PREFIX			tidset
#define SH_ELEMENT_TYPE		TidSetEntry
#define SH_KEY_TYPE			uint64
#define SH_KEY				id
#define SH_HASH_KEY(tb, key) \
	murmurhash32((uint32) (key) ^ murmurhash32((uint32) ((key) >> 32)))
#define SH_EQUAL(tb, a, b)	((a) == (b))
#define SH_SCOPE			static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

#endif							/* IVFPQ_TIDSET_H */
