/*
 * bulkload.h
 *		From rows to inverted lists, in bulk (bulkload.c).
 */
#ifndef IVFPQ_BULKLOAD_H
#define IVFPQ_BULKLOAD_H

#include "utils/tuplesort.h"

#include "am/build/parallel.h"
#include "am/build/recallgrid.h"
#include "am/build/train.h"
#include "am/types/vector.h"
#include "client/client.h"
#include "page/page.h"
#include "page/refinepage.h"

/* How a row of the table is used; flags. */
typedef enum IvfpqRowUse
{
	IVFPQ_ROW_NONE = 0,
	IVFPQ_ROW_PLACED = 1,
	IVFPQ_ROW_SAMPLED = 2,		/* offered to calibration's later levels */
	IVFPQ_ROW_BOTH = 3
} IvfpqRowUse;

/* A posting in memory or in a file; its code and abbreviated keys follow. */
typedef struct IvfpqStoredPosting
{
	uint32		list;
	float4		t;
	ItemPointerData tid;
	ItemPointerData refine;
	bool		secondary;
} IvfpqStoredPosting;

/*
 * The form of what follows an IvfpqStoredPosting: a code and, with keys, a
 * byte that tells which keys are NULL, then the abbreviated keys.
 */
typedef struct IvfpqStoredForm
{
	int			code_bytes;
	IvfpqKeyForm keys;
	int			bytes;			/* with the IvfpqStoredPosting */
} IvfpqStoredForm;

/* Postings, put in any order, returned list by list. */
typedef struct IvfpqPostings
{
	int			nlists;
	IvfpqStoredForm form;
	Size		limit;			/* bytes of memory to be used */
	uint32	   *counts;			/* [nlists] postings of each list */
	int64		n;				/* of all */

	/* as long as they fit into memory */
	Size		item_bytes;
	char	  **chunks;			/* [nchunks] of CHUNK_ITEMS items each */
	int			nchunks;
	uint32	   *order;			/* [n] once they are sorted */
	int64		next;			/* to return */

	/* when they do not */
	Tuplesortstate *sort;		/* NULL: they do */
	TupleTableSlot *slot;
	bytea	   *item;			/* column of the sort */

	IvfpqKeyAbbrevs abbrevs;	/* of the posting returned last */
} IvfpqPostings;

/* Takes rows [n] with their lists and codes; keys [n] or NULL. */
typedef void (*IvfpqPlacedSink) (void *arg, const uint64 *ids,
								 const IvfpqKeyAbbrevs *keys,
								 const GvEncoded *encoded, int n);

/* Rows get lists, codes and refine records, in batches. */
typedef struct IvfpqPlacer
{
	Relation	index;
	IvfpqType	type;
	const IvfpqTraining *training;
	IvfpqBuilder *builder;		/* of gpuvecd; NULL: rows are placed here */
	IvfpqSharing *sharing;		/* rows that it has from training; or NULL */
	int64		at;				/* place of these in a pass over the table */
	IvfpqCalibration *calibration;	/* NULL: too few rows */
	IvfpqRefine refine;
	IvfpqPlacedSink sink;
	void	   *sink_arg;

	/* keys of rows that gpuvecd has, in the order in which they come back */
	IvfpqKeyAbbrevs *sent;		/* [max_sent], of which first_sent .. end_sent
								 * - 1 */
	int64		first_sent;
	int64		end_sent;
	int64		max_sent;

	/* rows that wait to be placed here */
	int			batch_rows;		/* capacity; 0 = nothing is allocated */
	int			nbatch;
	float	   *batch;			/* [batch_rows][dims] */
	uint64	   *ids;			/* [batch_rows] */
	IvfpqKeyAbbrevs *keys;		/* [batch_rows], if there are keys */
	bool	   *boundable;		/* [batch_rows], if refine */
	int			nparts;			/* participants that share the memory */
	GvGroups	groups;
	void	   *scratch;		/* of gv_place */
	GvEncoded	encoded;		/* arrays for batch_rows rows */
	MemoryContext context;		/* that has all this */
} IvfpqPlacer;

/* A participant's state. */
typedef struct IvfpqBulkLoad
{
	const IvfpqTraining *training;
	IvfpqParallel *parallel;
	int64		rows;			/* placed by all participants; set last */
	IvfpqStoredForm form;		/* of postings on their way */
	IvfpqPlacer placer;
	IvfpqPostings postings;		/* on their way to the pages, */
	IvfpqTempFile ranges;		/* with workers by way of these files:
								 * IvfpqStoredPosting, by ranges of lists */
	IvfpqStoredPosting *item;	/* one of them */
	int64		npostings;		/* of this participant */
	IvfpqCalibration *calibration;	/* NULL: too few rows */
	IvfpqCalibMirror calib_mirror;	/* searched for it, if gpuvecd builds */

	/* refine records, if there are to be any */
	IvfpqRecord *record;		/* or NULL */
	IvfpqRecordBuilder refine;
} IvfpqBulkLoad;

extern void IvfpqBulkLoadPrepare(IvfpqParallel *parallel,
								 const IvfpqTraining *training);
extern void IvfpqBulkLoadBegin(IvfpqBulkLoad *load, Relation index,
							   const IvfpqTraining *training,
							   IvfpqParallel *parallel,
							   const IvfpqMetaData *meta, bool log);
extern IvfpqRowUse IvfpqBulkLoadWants(IvfpqBulkLoad *load, uint64 id);
extern void IvfpqBulkLoadRow(IvfpqBulkLoad *load, const float *row, uint64 id,
							 const IvfpqKeyAbbrevs *keys, IvfpqRowUse use);
extern void IvfpqPlacerFlush(IvfpqPlacer *placer);
extern void IvfpqBulkLoadWrite(IvfpqBulkLoad *load, Relation index,
							   IvfpqMetaData *meta, bool shared);
extern void IvfpqBulkLoadFinish(IvfpqBulkLoad *load, Relation index,
								IvfpqMetaData *meta, bool shared);
extern void IvfpqBulkLoadHelp(IvfpqBulkLoad *load, Relation index);

#endif							/* IVFPQ_BULKLOAD_H */
