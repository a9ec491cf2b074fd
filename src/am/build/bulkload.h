/*
 * bulkload.h
 *		From rows to inverted lists, in bulk (bulkload.c).
 */
#ifndef IVFPQ_BULKLOAD_H
#define IVFPQ_BULKLOAD_H

#include "am/build/parallel.h"
#include "am/build/recallgrid.h"
#include "am/build/train.h"
#include "am/common/util.h"
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

/* Postings of some lists, put in any order, returned list by list. */
typedef struct IvfpqPostings
{
	int			nlists;
	Size		limit;			/* bytes of memory to be used */
	uint32	   *counts;			/* [nlists] postings of each list */
	int64		n;				/* of all */

	/* as long as they fit into memory */
	Size		item_bytes;
	char	  **chunks;			/* [nchunks] of CHUNK_ITEMS items each */
	int			nchunks;
	int			max_chunks;
	uint32	   *order;			/* [n] once they are sorted */
	int64		next;			/* to return */

	IvfpqSort	sort;			/* begun when they do not */
	IvfpqKeyAbbrevs abbrevs;	/* of the posting returned last */
} IvfpqPostings;

/* A participant's state. */
typedef struct IvfpqBulkLoad
{
	Relation	index;
	const IvfpqTraining *training;
	IvfpqParallel *parallel;
	IvfpqMetaData *meta;		/* of the index that is written */
	bool		shared;			/* others use the index meanwhile */
	int64		rows;			/* placed by all participants; set last */

	/* placing rows */
	IvfpqType	type;
	IvfpqRefine refine;
	IvfpqBuilder *builder;		/* of gpuvecd; NULL: rows are placed here */
	IvfpqSharing *sharing;		/* rows that it has from training; or NULL */
	int64		at;				/* place of these in a pass over the table */
	IvfpqCalibration *calibration;	/* NULL: too few rows */
	MemoryContext placing;		/* which has the following */

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
	GvGroups	groups;
	void	   *scratch;		/* of gv_place */
	GvEncoded	encoded;		/* arrays for batch_rows rows */

	/* refine records, if there are to be any */
	IvfpqRecord *record;		/* or NULL */
	IvfpqRecordBuilder records;

	/* postings on their way to the pages, */
	IvfpqStoredForm form;
	int64		npostings;		/* of this participant */
	IvfpqPostings postings;
	IvfpqTempFile ranges;		/* with workers by way of these files:
								 * IvfpqStoredPosting, by ranges of lists */
	IvfpqStoredPosting *item;	/* one that is put or read */
	IvfpqCalibMirror calib_mirror;	/* to calibrate with, if gpuvecd builds */
} IvfpqBulkLoad;

extern void IvfpqBulkLoadBegin(IvfpqBulkLoad *load, Relation index,
							   const IvfpqTraining *training,
							   IvfpqParallel *parallel, IvfpqMetaData *meta,
							   bool shared);
extern IvfpqRowUse IvfpqBulkLoadWants(IvfpqBulkLoad *load, uint64 id);
extern void IvfpqBulkLoadRow(IvfpqBulkLoad *load, const float *row, uint64 id,
							 const IvfpqKeyAbbrevs *keys, IvfpqRowUse use);
extern void IvfpqBulkLoadEndPass(IvfpqBulkLoad *load);
extern void IvfpqBulkLoadWrite(IvfpqBulkLoad *load);
extern void IvfpqBulkLoadFinish(IvfpqBulkLoad *load);
extern void IvfpqBulkLoadHelp(IvfpqBulkLoad *load);

#endif							/* IVFPQ_BULKLOAD_H */
