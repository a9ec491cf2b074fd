/*
 * doctor.c
 *		gpuvec_doctor(): how an installation is, and what to do about it.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "am/doctor/doctor.h"

PG_FUNCTION_INFO_V1(gpuvec_doctor);

/* Add a row. */
void
IvfpqFind(IvfpqFindings *findings, const char *subject, const char *state,
		  const char *advice)
{
	Datum		values[3];
	bool		nulls[3] = {false};

	values[0] = CStringGetTextDatum(subject);
	values[1] = CStringGetTextDatum(state);
	nulls[2] = advice == NULL;
	values[2] = advice ? CStringGetTextDatum(advice) : (Datum) 0;
	tuplestore_putvalues(findings->result->setResult,
						 findings->result->setDesc, values, nulls);
	findings->n++;
}

/* The name of a table or index, with its schema where that has to be. */
char *
IvfpqRelationName(Oid relid)
{
	return DatumGetCString(DirectFunctionCall1(regclassout,
											   ObjectIdGetDatum(relid)));
}

/* gpuvec_doctor() */
Datum
gpuvec_doctor(PG_FUNCTION_ARGS)
{
	IvfpqFindings findings = {(ReturnSetInfo *) fcinfo->resultinfo, 0};
	IvfpqServerStatus status;

	InitMaterializedSRF(fcinfo, 0);
	IvfpqGetServerStatus(&status);
	IvfpqFindVersions(&findings);
	IvfpqFindServer(&findings, &status);
	IvfpqFindMachine(&findings, &status);
	IvfpqFindContradictions(&findings, &status);
	IvfpqFindIndexes(&findings, &status);
	return (Datum) 0;
}
