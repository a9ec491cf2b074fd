/*
 * keys.h
 *		Keys, the index columns after the vector, and key quals (keys.c).
 */
#ifndef IVFPQ_KEYS_H
#define IVFPQ_KEYS_H

#include "access/skey.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "utils/relcache.h"

#include "engine/gv_engine.h"
#include "page/layout.h"

/* Strategy numbers of key operators: 1 to 5 as in btree, others for sets. */
#define IVFPQ_OVERLAP_STRATEGY	6	/* && */
#define IVFPQ_CONTAINS_STRATEGY	7	/* @> */
#define IVFPQ_NKEY_STRATEGIES	7

/* Support functions of the operator classes of keys. */
#define IVFPQ_HASH_PROC			2	/* (type) -> int4 */
#define IVFPQ_SIGNATURE_PROC	3	/* (type) -> int8 */
#define IVFPQ_NPROCS			3

/*
 * One key of an open index.  Its operator class determines its abbreviated
 * keys.  A class of an ordered type has btree's strategy numbers, and its
 * abbreviated keys ascend as the values do, except for enums.  A class with
 * support function 2 has equality only, and its abbreviated keys are hashes,
 * computed by the type's own hash function.  A class with support function 3
 * is for sets, and its abbreviated keys are signatures of 64 bits.
 */
typedef struct IvfpqKey
{
	Oid			type;			/* the class's input type, or the enum type */
	Oid			family;
	Oid			collation;
	IvfpqKeyKind kind;
	int			width;			/* bytes of an abbreviated key */
	bool		is_exact;		/* different values have different abbreviated
								 * keys */
	bool		is_integer;		/* the type is ordered, and is an integer or
								 * stored as one */
	int64		least;			/* least value, of integer types */
	int64		greatest;
	FmgrInfo	function;		/* hash or signature */
} IvfpqKey;

typedef struct IvfpqKeys
{
	int			nkeys;
	IvfpqKey	keys[IVFPQ_MAX_KEYS];
	IvfpqKeyForm form;
} IvfpqKeys;

extern bool IvfpqIsOrderedKey(Oid type);
extern void IvfpqKeysInit(IvfpqKeys *keys, Relation index);
extern void IvfpqKeysMake(IvfpqKeys *keys, const Datum *values,
						  const bool *isnull, IvfpqKeyAbbrevs *abbrevs);

/* One scan key, which can be checked on rows. */
typedef struct IvfpqRowQual
{
	ScanKey		scan_key;
	int			narguments;		/* number of arguments that are not NULL */
	Datum	   *arguments;		/* [narguments] */
	uint64	   *abbrevs;		/* [narguments], ascending; NULL unless the
								 * condition is equality and each argument has
								 * a single abbreviated key */
} IvfpqRowQual;

/* Key quals of a scan, as tests of abbreviated keys and as tests of rows. */
typedef struct IvfpqKeyQuals
{
	GvCondition condition;		/* conditions on abbreviated keys; tests
								 * [GV_MAX_TESTS] */
	bool		never;			/* no row can satisfy the key quals */
	int			nrechecks;		/* number of scan keys for which abbreviated
								 * keys are not enough */
	int			nrows;
	IvfpqRowQual *rows;			/* [nrows]; the first nrechecks must be
								 * rechecked */
	IvfpqKeys  *keys;
} IvfpqKeyQuals;

extern void IvfpqKeyQualsMake(IvfpqKeyQuals *quals, IvfpqKeys *keys,
							  ScanKey scan_keys, int n);
extern bool IvfpqKeyQualsMatch(const IvfpqKeyQuals *quals,
							   const Datum *values, const bool *isnull,
							   bool only_rechecks);

#endif							/* IVFPQ_KEYS_H */
