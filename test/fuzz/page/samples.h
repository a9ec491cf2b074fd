/*
 * samples.h
 *		Small indexes of every layout, written by page/ itself (samples.c), and
 *		damage done to them (damage.c).
 */
#ifndef SAMPLES_H
#define SAMPLES_H

#include "backend/backend.h"

#include "page/page.h"

#define NSAMPLES	9

/* A kind of index.  Its rows come first to lists, then to the pending list. */
typedef struct SampleKind
{
	const char *name;
	int			dims;
	int			pq_dim;
	int			nlists;			/* 0: untrained */
	int			nparents;
	int			lists_per_row;
	int			refine;			/* IvfpqRefine */
	int			nrows;			/* in lists */
	int			npending;
	IvfpqKeyForm keys;
} SampleKind;

extern const SampleKind sample_kinds[NSAMPLES];

/* A row's vector; all rows of an index differ. */
extern void sample_vector(int dims, int row, float *vector);
extern ItemPointerData sample_tid(int row);
extern int	sample_row(const ItemPointerData *tid);
extern void sample_abbrevs(const IvfpqKeyForm *form, int row,
						   IvfpqKeyAbbrevs *abbrevs);

/* Put a sample's pages where the session finds its index. */
extern void sample_open(int sample);
extern void sample_close(void);

/*
 * conditions.c.  BackendAct: search under conditions on keys; arg:
 * Conditions.
 */
typedef struct Conditions
{
	int			sample;
	bool		sound;			/* rows found have to be those that fulfill it */
} Conditions;

extern void search_conditions(void *arg);

/* One change of an index's pages. */
typedef enum DamageKind
{
	DAMAGE_BYTE,				/* `value` to offset `at` */
	DAMAGE_SHORT,
	DAMAGE_LONG,
	DAMAGE_ADD,					/* `value` is added to 4 bytes at `at` */
	DAMAGE_BIT,					/* bit `value` of the byte at `at` */
	DAMAGE_COPY,				/* the page `value` in its place */
	DAMAGE_SWAP,				/* both change places */
	DAMAGE_ZERO,
	DAMAGE_TEAR,				/* from `at` on it is page `value` */
	DAMAGE_CUT,					/* it is the first that is missing */
	DAMAGE_FREE,				/* the map says that `at` bytes of it are free */
	NDAMAGES
}			DamageKind;

typedef struct Damage
{
	uint8		page;
	uint8		kind;			/* DamageKind */
	uint16		at;
	uint32		value;
}			Damage;

#define MOST_DAMAGES	64

extern void damage_index(const Damage *damages, int n);

#endif							/* SAMPLES_H */
