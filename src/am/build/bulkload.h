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

/*
 * A posting in memory or in a file, followed by its code and abbreviated keys.
 */
typedef struct IvfpqStoredPosting
{
	uint32		list;
	float4		t;
	ItemPointerData tid;
	ItemPointerData refine;
	bool		secondary;
} IvfpqStoredPosting;

/*
 * The layout of a stored posting: IvfpqStoredPosting, the code and, if the
 * index has keys, a byte that says which keys are NULL and the abbreviated
 * keys.
 */
typedef struct IvfpqStoredForm
{
	int			code_bytes;
	IvfpqKeyForm keys;
	int			bytes;			/* bytes of the whole stored posting */
} IvfpqStoredForm;

/* Postings of some lists, added in any order and returned list by list. */
typedef struct IvfpqPostings
{
	int			nlists;
	Size		limit;			/* largest number of bytes of memory to use */
	uint32	   *counts;			/* [nlists] number of postings in each list */
	int64		n;				/* number of all postings */

	/* used as long as the postings fit into memory */
	Size		item_bytes;
	char	  **chunks;			/* [nchunks] each has CHUNK_ITEMS items */
	int			nchunks;
	int			max_chunks;
	uint32	   *order;			/* [n] positions of postings, by list */
	int64		next;			/* entry of `order` to return next */

	IvfpqSort	sort;			/* used if postings do not fit into memory */
	IvfpqKeyAbbrevs abbrevs;	/* keys of the posting returned last */
} IvfpqPostings;

/* A participant's state of a bulk load. */
typedef struct IvfpqBulkLoad
{
	Relation	index;
	const IvfpqTraining *training;
	IvfpqParallel *parallel;
	IvfpqMetaData *meta;		/* metadata of the index that is written */
	bool		shared;			/* other sessions use the index already */
	int64		rows;			/* number of rows that all participants have
								 * placed; set when all rows are placed */

	/* placing rows */
	IvfpqType	type;
	IvfpqRefine refine;
	IvfpqBuilder *builder;		/* sends rows to gpuvecd; NULL: rows are
								 * placed here */
	IvfpqBuildShared *sharing;	/* says which rows gpuvecd has from training;
								 * or NULL */
	int64		at;				/* position in the TIDs of `sharing`, during a
								 * pass over the table */
	IvfpqCalibration *calibration;	/* NULL: too few rows to calibrate */
	MemoryContext placing;		/* context of the fields down to `encoded` */

	/* keys of rows sent to gpuvecd, in the order in which they come back */
	IvfpqKeyAbbrevs *sent;		/* [max_sent]; first_sent .. end_sent - 1 are
								 * in use */
	int64		first_sent;
	int64		end_sent;
	int64		max_sent;

	/* rows that will be placed here, batch by batch */
	int			batch_rows;		/* capacity of a batch; 0: nothing is
								 * allocated */
	int			nbatch;
	float	   *batch;			/* [batch_rows][dims] transformed */
	uint64	   *ids;			/* [batch_rows] */
	IvfpqKeyAbbrevs *keys;		/* [batch_rows], if there are keys */
	bool	   *boundable;		/* [batch_rows], if there are refine records */
	GvGroups	groups;
	void	   *scratch;		/* scratch memory of gv_place */
	GvEncoded	encoded;		/* has arrays for batch_rows rows */

	/* refine records */
	IvfpqRecord *record;		/* NULL: the index has no refine records */
	IvfpqRecordBuilder records;

	/* postings that will be written to pages */
	IvfpqStoredForm form;
	int64		npostings;		/* postings added by this participant */
	IvfpqPostings postings;
	IvfpqTempFile ranges;		/* if there are workers: files of
								 * IvfpqStoredPosting, by ranges of lists */
	IvfpqStoredPosting *item;	/* posting that is being added or read */
	IvfpqCalibMirror calib_mirror;	/* used to calibrate if gpuvecd builds */
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
