/*
 * keys.h
 *		Keys: the columns of an index behind the vector, and the key quals of a
 *		scan (keys.c).
 */
#ifndef IVFPQ_KEYS_H
#define IVFPQ_KEYS_H

#include "access/skey.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "utils/relcache.h"

#include "engine/gv_engine.h"
#include "page/layout.h"

/* Strategies of keys' classes: btree's, and those of sets. */
#define IVFPQ_OVERLAP_STRATEGY	6	/* && */
#define IVFPQ_CONTAINS_STRATEGY	7	/* @> */
#define IVFPQ_NKEY_STRATEGIES	7

/* Support functions of keys' classes. */
#define IVFPQ_HASH_PROC			2	/* (type) -> int4 */
#define IVFPQ_SIGNATURE_PROC	3	/* (type) -> int8 */
#define IVFPQ_NPROCS			3

/*
 * One key of an open index.  Its operator class determines its abbreviated
 * key.  A class of an ordered type has btree's strategy numbers and, but for
 * enums, abbreviated keys that ascend as the values do.  A class with support
 * function 2 has only an equality, and the abbreviated key is the type's own
 * hash.  A class with support function 3 has sets, and the abbreviated key is
 * a signature of 64 bits.
 */
typedef struct IvfpqKey
{
	Oid			type;			/* the class's input type, or the enum */
	Oid			family;
	Oid			collation;
	IvfpqKeyKind kind;
	int			width;			/* bytes of an abbreviated key */
	bool		is_exact;		/* abbreviated keys tell values apart */
	bool		is_integer;		/* ordered: an integer, or stored as one */
	int64		least;			/* of integers */
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

/* One scan key, to be checked on rows. */
typedef struct IvfpqRowQual
{
	ScanKey		scan_key;
	int			narguments;		/* those of its array that are not NULL */
	Datum	   *arguments;		/* [narguments] */
	uint64	   *abbrevs;		/* [narguments], ascending: equality with
								 * arguments that have one abbreviated key
								 * each; else NULL */
} IvfpqRowQual;

/* The key quals of a scan: tests of abbreviated keys, and of rows. */
typedef struct IvfpqKeyQuals
{
	GvCondition condition;		/* of abbreviated keys; tests [GV_MAX_TESTS] */
	bool		never;			/* no row can satisfy them */
	int			nrechecks;		/* scan keys that abbreviated keys do not
								 * decide */
	int			nrows;
	IvfpqRowQual *rows;			/* [nrows], those to be rechecked first */
	IvfpqKeys  *keys;
} IvfpqKeyQuals;

extern void IvfpqKeyQualsMake(IvfpqKeyQuals *quals, IvfpqKeys *keys,
							  ScanKey scan_keys, int n);
extern bool IvfpqKeyQualsMatch(const IvfpqKeyQuals *quals,
							   const Datum *values, const bool *isnull,
							   bool only_rechecks);

#endif							/* IVFPQ_KEYS_H */
