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
IvfpqSearchRemote(IvfpqSearch *search, int probes, int capacity, double part,
				  int rank)
{
	return false;
}

void
IvfpqSearchNoServer(IvfpqSearch *search, const char *reason)
{
}

void
IvfpqAskForWorker(IndexVacuumInfo *info)
{
}

/* Values of rows: what inserts these tests make has no table. */
#define NO_TABLE() FAULT("a row of the table is asked for")

void
IvfpqTypeInit(IvfpqType *type, Relation index)
{
	NO_TABLE();
}

const float *
IvfpqValueFloats(IvfpqType *type, Datum value, int *dims)
{
	NO_TABLE();
}

void
IvfpqCheckDims(int expected, int dims)
{
	NO_TABLE();
}

bool
IvfpqIsPlaceable(const IvfpqType *type, const float *vector, int dims)
{
	NO_TABLE();
}

bool
IvfpqIsBoundable(const IvfpqType *type, const float *vector, int dims)
{
	NO_TABLE();
}

int
IvfpqRowDims(Relation heap, Relation index, const IvfpqMetaData *meta)
{
	NO_TABLE();
}

bool
heap_attisnull(HeapTuple tuple, int attnum, TupleDesc desc)
{
	NO_TABLE();
}

bool
IvfpqMayAct(Relation table, Relation index)
{
	NO_TABLE();
}

bool
IvfpqFreeDims(Relation heap, Relation index, const IvfpqMetaData *meta,
			  ItemPointer tid)
{
	NO_TABLE();
}

void
IvfpqKeysInit(IvfpqKeys *keys, Relation index)
{
	NO_TABLE();
}

void
IvfpqKeysMake(IvfpqKeys *keys, const Datum *values, const bool *isnull,
			  IvfpqKeyAbbrevs *abbrevs)
{
	NO_TABLE();
}
