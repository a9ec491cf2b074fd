/*
 * queries.h
 *		Queries that a user passes to a function (queries.c).
 */
#ifndef IVFPQ_QUERIES_H
#define IVFPQ_QUERIES_H

#include "fmgr.h"
#include "utils/array.h"

#include "am/types/vector.h"

typedef struct IvfpqQueries
{
	const float *vectors;		/* [n][dims] */
	int			n;
	int			dims;			/* 0 if there are no queries */
} IvfpqQueries;

extern IvfpqQueries IvfpqQueriesOfArray(ArrayType *array);
extern bool IvfpqQueriesArgument(FunctionCallInfo fcinfo, int first, int most,
								 IvfpqQueries *queries);
extern void IvfpqQueriesFit(IvfpqQueries *queries, const IvfpqType *type,
							int dims);
extern void IvfpqQueriesDraw(IvfpqQueries *queries, int most);

#endif							/* IVFPQ_QUERIES_H */
