/*
 * setargs.c
 *		Arguments of whole-table functions, and their progress.
 *
 * A session reports progress in the slot that PostgreSQL has for the progress
 * of its command, and gpuvec_progress reads the slots.  A slot identifies the
 * command by a number.  PostgreSQL does not use our number, so its own
 * progress views do not show our commands.
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "commands/dbcommands.h"
#include "commands/progress.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/backend_progress.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "pgcompat.h"
#include "set/set.h"

static const char *const metric_names[] = {
	[GV_SET_L2] = "l2",
	[GV_SET_IP] = "ip",
	[GV_SET_COSINE] = "cosine",
	[GV_SET_PEARSON] = "pearson",
};

/* Our command's number: "GVEC" in ASCII. */
#define SET_COMMAND		((ProgressCommandType) 0x47564543)

/* Numbers of the parameters in the slot. */
enum
{
	PARAM_COMMAND,
	PARAM_PHASE,
	PARAM_DONE,
	PARAM_TOTAL
};

static const char *const command_names[] = {
	[IVFPQ_PROGRESS_EXACT] = "exact search",
	[IVFPQ_PROGRESS_GRAPH] = "k-NN graph",
	[IVFPQ_PROGRESS_JOIN] = "k-NN join",
	[IVFPQ_PROGRESS_KMEANS] = "k-means",
	[IVFPQ_PROGRESS_PATH] = "smoothest path",
	[IVFPQ_PROGRESS_PERCENTILES] = "percentiles",
};

static const char *const phase_names[] = {
	[IVFPQ_PROGRESS_KEYS] = "reading keys",
	[IVFPQ_PROGRESS_ROWS] = "reading rows",
	[IVFPQ_PROGRESS_SEARCHING] = "searching",
	[IVFPQ_PROGRESS_RECALL] = "measuring recall",
	[IVFPQ_PROGRESS_CLUSTERING] = "clustering",
	[IVFPQ_PROGRESS_JOINING] = "joining edges",
	[IVFPQ_PROGRESS_WALKING] = "finding the path",
};

/*
 * True while this session's slot shows one of our commands.  After an error
 * PostgreSQL clears the slot but not this flag.  That does no harm, because
 * the next command sets the flag first.
 */
static bool is_shown = false;

PG_FUNCTION_INFO_V1(gpuvec_progress);

GvSetMetric
IvfpqMetricArgument(const text *name)
{
	const char *string = text_to_cstring(name);

	for (int metric = GV_SET_L2; metric <= GV_SET_PEARSON; metric++)
		if (strcmp(string, metric_names[metric]) == 0)
			return (GvSetMetric) metric;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("unknown metric \"%s\"", string),
			 errhint("Use \"l2\", \"ip\", \"cosine\" or \"pearson\".")));
}

const char *
IvfpqMetricName(GvSetMetric metric)
{
	return metric_names[metric];
}

void
IvfpqCheckRange(const char *name, int value, int least, int most,
				const char *hint)
{
	if (value < least || value > most)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" must be between %d and %d, not %d", name, least,
						most, value),
				 errhint("%s", hint)));
}

void
IvfpqCheckSameDims(const char *one, int one_dims, const char *other,
				   int other_dims)
{
	if (one_dims != other_dims)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("vectors of %s have %d dimensions, but those of %s have %d",
						one, one_dims, other, other_dims),
				 errhint("Only vectors of the same number of dimensions can be compared.")));
}

void
IvfpqProgressBegin(IvfpqProgressCommand command, Oid relid)
{
	is_shown = MyBEEntry != NULL &&
		MyBEEntry->st_progress_command == PROGRESS_COMMAND_INVALID;
	if (!is_shown)
		return;
	pgstat_progress_start_command(SET_COMMAND, relid);
	pgstat_progress_update_param(PARAM_COMMAND, command);
}

void
IvfpqProgressPhaseOf(IvfpqProgressPhase phase, int64 total)
{
	const int	params[] = {PARAM_PHASE, PARAM_DONE, PARAM_TOTAL};
	const int64 values[] = {phase, 0, total};

	if (is_shown)
		pgstat_progress_update_multi_param(lengthof(params), params, values);
}

void
IvfpqProgressDone(int64 done)
{
	if (is_shown)
		pgstat_progress_update_param(PARAM_DONE, done);
}

void
IvfpqProgressEnd(void)
{
	if (is_shown)
		pgstat_progress_end_command();
	is_shown = false;
}

/*
 * Sets a column to the name that belongs to a number.  Sets the column to NULL
 * if no name belongs to the number.  This happens if the session has not set
 * the number yet, or if it runs another release of gpuvec, whose numbers are
 * different.
 */
static void
put_name(Datum *value, bool *isnull, const char *const *names, int n,
		 int64 number)
{
	*isnull = number < 0 || number >= n || names[number] == NULL;
	if (!*isnull)
		*value = CStringGetTextDatum(names[number]);
}

/*
 * Sets the columns of a row of gpuvec_progress.  As in PostgreSQL's views,
 * columns that the user may not see are NULL.
 */
static void
fill_row(const PgBackendStatus *entry, Datum *values, bool *nulls)
{
	const int64 *params = entry->st_progress_param;
	char	   *database = get_database_name(entry->st_databaseid);

	memset(nulls, true, 7 * sizeof(bool));
	nulls[0] = false;
	values[0] = Int32GetDatum(entry->st_procpid);
	nulls[1] = database == NULL;
	if (database != NULL)
		values[1] = DirectFunctionCall1(namein, CStringGetDatum(database));
	if (!has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) &&
		!has_privs_of_role(GetUserId(), entry->st_userid))
		return;
	/* in another database the OID may belong to another table */
	nulls[2] = entry->st_databaseid != MyDatabaseId;
	values[2] = ObjectIdGetDatum(entry->st_progress_command_target);
	put_name(&values[3], &nulls[3], command_names, lengthof(command_names),
			 params[PARAM_COMMAND]);
	put_name(&values[4], &nulls[4], phase_names, lengthof(phase_names),
			 params[PARAM_PHASE]);
	nulls[5] = false;
	values[5] = Int64GetDatum(params[PARAM_DONE]);
	nulls[6] = params[PARAM_TOTAL] == 0;
	values[6] = Int64GetDatum(params[PARAM_TOTAL]);
}

/* gpuvec_progress() */
Datum
gpuvec_progress(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			n = pgstat_fetch_stat_numbackends();

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 1; i <= n; i++)
	{
		LocalPgBackendStatus *entry = IvfpqBackendEntry(i);
		Datum		values[7] = {0};
		bool		nulls[7];

		if (entry == NULL ||
			entry->backendStatus.st_progress_command != SET_COMMAND)
			continue;
		fill_row(&entry->backendStatus, values, nulls);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 nulls);
	}
	return (Datum) 0;
}
