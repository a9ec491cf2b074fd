/*
 * others.c
 *		What the files under test ask of those that are not linked, because
 *		they need a table, a planner or gpuvecd.
 */
#include "backend/backend.h"

#include "access/genam.h"
#include "access/htup_details.h"

#include "am/common/identity.h"
#include "am/common/options.h"
#include "am/maintain/maintain.h"
#include "am/search/heaptids.h"
#include "am/search/search.h"
#include "am/types/vector.h"

int			ivfpq_probes;
int			ivfpq_candidates;

const IvfpqOptions *
IvfpqGetOptions(Relation index)
{
	static const IvfpqOptions defaults = {.spill = -1, .train_rows = 10000};

	return &defaults;
}

/* There is no gpuvecd. */
bool
IvfpqSearchRemote(IvfpqSearch *search, int probes, int candidates, double part,
				  int rank)
{
	return false;
}

UNREACHED(void IvfpqSearchBulkRemote(IvfpqSearch *search, const float *asked,
									 int n, int probes, int candidates,
									 double part, int rank,
									 const IvfpqBulkTaker *taker))

NO_OP(void IvfpqSearchNoServer(IvfpqSearch *search, const char *reason))
NO_OP(void IvfpqReportEngine(IvfpqScanReport *report, const char *engine))
NO_OP(void IvfpqAskForWorker(IndexVacuumInfo *info))
NO_OP(void IvfpqFreeRetired(Relation index, BufferAccessStrategy strategy))

bool
IvfpqMayFreeRetired(Relation index)
{
	return true;
}

/* Values of rows: what inserts these tests make has no table. */
UNREACHED(void IvfpqTypeInit(IvfpqType *type, Relation index))
UNREACHED(const float *IvfpqValueFloats(IvfpqType *type, Datum value, int *dims))
UNREACHED(void IvfpqCheckDims(int expected, int dims))
UNREACHED(bool IvfpqIsPlaceable(const IvfpqType *type, const float *vector,
								int dims))
UNREACHED(bool IvfpqIsBoundable(const IvfpqType *type, const float *vector,
								int dims))
UNREACHED(int IvfpqRowDims(Relation heap, Relation index,
						   const IvfpqMetaData *meta))
UNREACHED(bool heap_attisnull(HeapTuple tuple, int attnum, TupleDesc desc))
UNREACHED(bool IvfpqMayAct(Relation table, Relation index))
UNREACHED(bool IvfpqFreeDims(Relation heap, Relation index,
							 const IvfpqMetaData *meta, ItemPointer tid))
UNREACHED(void IvfpqKeysInit(IvfpqKeys *keys, Relation index))
UNREACHED(void IvfpqKeysMake(IvfpqKeys *keys, const Datum *values,
							 const bool *isnull, IvfpqKeyAbbrevs *abbrevs))
