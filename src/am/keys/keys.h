/*
 * keys.h
 *		Keys: the columns of an index behind the vector (images.c), and the
 *		conditions on them that a scan is given (tests.c).
 *
 * A key's operator class says what its image is.  A class of an ordered type
 * has btree's strategy numbers and, but for enums, images that ascend as the
 * values do.  A class with support function 2 has only an equality: the image
 * is the type's own hash.  A class with support function 3 has sets: the image
 * is a signature of 64 bits.
 */
#ifndef IVFPQ_KEYS_H
#define IVFPQ_KEYS_H

#include "access/skey.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "utils/relcache.h"

#include "engine/gv_engine.h"
#include "page/format/layout.h"

/* Strategies of keys' classes: btree's, and those of sets. */
#define IVFPQ_OVERLAP_STRATEGY	6	/* && */
#define IVFPQ_CONTAINS_STRATEGY	7	/* @> */
#define IVFPQ_NKEY_STRATEGIES	7

/* Support functions of keys' classes. */
#define IVFPQ_HASH_PROC			2	/* (type) -> int4 */
#define IVFPQ_SIGNATURE_PROC	3	/* (type) -> int8 */
#define IVFPQ_NPROCS			3

/* One key of an open index. */
typedef struct IvfpqKey
{
	Oid			type;			/* the class's input type, or the enum */
	Oid			family;
	Oid			collation;
	IvfpqKeyKind kind;
	int			width;			/* bytes of an image */
	bool		is_exact;		/* images tell values apart */
	bool		is_integer;		/* ordered: an integer, or stored as one, */
	int64		least;			/* between these */
	int64		greatest;
	FmgrInfo	function;		/* hash or signature */
} IvfpqKey;

typedef struct IvfpqKeys
{
	int			nkeys;
	IvfpqKey	keys[IVFPQ_MAX_KEYS];
	IvfpqKeyForm form;
} IvfpqKeys;

/* images.c */
extern bool IvfpqIsOrderedKey(Oid type);
extern void IvfpqKeysInit(IvfpqKeys *keys, Relation index);
extern void IvfpqKeysMake(IvfpqKeys *keys, const Datum *values,
						  const bool *isnull, IvfpqKeyAbbrevs *abbrevs);
extern uint64 IvfpqKeyAbbrev(IvfpqKey *key, Datum value);
extern int64 IvfpqKeyInteger(Oid type, Datum value);
extern uint64 IvfpqKeyIntegerAbbrev(const IvfpqKey *key, int64 value);
extern uint64 IvfpqKeyFloat4Abbrev(float4 value);
extern uint64 IvfpqKeyFloat8Abbrev(float8 value);

/* One scan key, as a row is asked. */
typedef struct IvfpqRowQual
{
	ScanKey		scan_key;
	int			narguments;		/* of its array those that are not NULL */
	Datum	   *arguments;
	uint64	   *abbrevs;		/* where these ascend: equality with arguments
								 * that have one image each; else NULL */
} IvfpqRowQual;

/* Images low .. high of a key; none where low is above high. */
typedef struct IvfpqKeyRange
{
	uint64		low;
	uint64		high;
	bool		is_exact;		/* every value that has one fulfills it */
} IvfpqKeyRange;

/*
 * spans.c.  IvfpqKeyEverything: all images.  IvfpqKeyRangeOf: those for which
 * the strategy holds with a value, not NULL, of this type.
 */
extern IvfpqKeyRange IvfpqKeyEverything(const IvfpqKey *key, bool is_exact);
extern IvfpqKeyRange IvfpqKeyRangeOf(IvfpqKey *key, int strategy, Oid subtype,
									 Datum value);

/*
 * tests.c.  What scan keys [n] ask: as tests of images, and of rows.
 */
typedef struct IvfpqKeyQuals
{
	GvCondition condition;		/* of images; tests [GV_MAX_TESTS] */
	bool		never;			/* no row can fulfill it */
	int			nrechecks;		/* scan keys that images do not decide */
	int			nrows;
	IvfpqRowQual *rows;			/* [nrows], those to be rechecked first */
	IvfpqKeys  *keys;
} IvfpqKeyQuals;

/*
 * IvfpqKeyQualsMake: from the scan's keys, which are not copied, nor are their
 * arguments; memory from the current context.
 *
 * IvfpqKeyQualsMatch: does a row with these values of the index's columns
 * fulfill all of the scan's keys; or, with only_rechecks, those that images do
 * not decide?  Uses memory: call in a context that is reset between rows.
 */
extern void IvfpqKeyQualsMake(IvfpqKeyQuals *quals, IvfpqKeys *keys,
							  ScanKey scan_keys, int n);
extern bool IvfpqKeyQualsMatch(const IvfpqKeyQuals *quals,
							   const Datum *values, const bool *isnull,
							   bool only_rechecks);

#endif							/* IVFPQ_KEYS_H */
