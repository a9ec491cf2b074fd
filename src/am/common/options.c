/*
 * options.c
 *		Options of CREATE INDEX, and the defaults and limits that follow from
 *		them; the values of settings, which gpuvec.c defines for PostgreSQL.
 */
#include "postgres.h"

#include <math.h>

#include "access/amapi.h"
#include "access/genam.h"
#include "access/reloptions.h"
#include "miscadmin.h"
#include "storage/lockdefs.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "am/common/options.h"
#include "page/page.h"

/*
 * With fewer rows an index stays untrained, unless option train_rows or lists
 * is smaller.
 */
#define LEAST_ROWS		1000

/*
 * Lists have ROWS_A_LIST rows each until there are MANY_LISTS.  From
 * VERY_MANY_ROWS on their number grows as the square root of rows.
 */
#define ROWS_A_LIST		100.0
#define MANY_LISTS		1e5
#define VERY_MANY_ROWS	1e8

/*
 * Default of option train_rows, the number of rows with which an index trains
 * itself.
 */
#define TRAIN_ROWS		10000

/* An entry of ivfpqoptions' table: an option named like its field. */
#define INT_OPTION(name) \
	{.optname = #name, .opttype = RELOPT_TYPE_INT, \
	 .offset = offsetof(IvfpqOptions, name)}

int			ivfpq_probes = 0;
int			ivfpq_candidates = 0;
int			ivfpq_order = IVFPQ_ORDER_STRICT;
int			ivfpq_use_index = IVFPQ_USE_AUTO;
int			ivfpq_max_probes = 0;
double		ivfpq_recall = 0.95;
int			ivfpq_max_training_workers = 2;
bool		ivfpq_keep_queries = false;

static relopt_kind ivfpq_relopt_kind;

static relopt_enum_elt_def refine_values[] = {
	{"none", IVFPQ_REFINE_NONE},
	{"sq8", IVFPQ_REFINE_SQ8},
	{"half", IVFPQ_REFINE_HALF},
	{NULL, 0}
};

static relopt_enum_elt_def calibrated_for_values[] = {
	{"rows", IVFPQ_FOR_ROWS},
	{"queries", IVFPQ_FOR_QUERIES},
	{NULL, 0}
};

/*
 * Registers the options of CREATE INDEX.  Call once a process.  Options that
 * only scans read take a lock under which queries go on.
 */
void
IvfpqInitOptions(void)
{
	ivfpq_relopt_kind = add_reloption_kind();

	add_int_reloption(ivfpq_relopt_kind, "lists",
					  "Number of inverted lists, 0 = from the row count",
					  0, 0, IVFPQ_MAX_LISTS, AccessExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "pq_dim",
					  "Number of sub-quantizers, 0 = from the dimension",
					  0, 0, IVFPQ_MAX_DIMS, AccessExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "probes",
					  "Lists that a scan reads first, 0 = default",
					  0, 0, IVFPQ_MAX_LISTS, ShareUpdateExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "candidates",
					  "Rows whose exact distance a scan computes first, "
					  "0 = default",
					  0, 0, IVFPQ_MAX_CANDIDATES, ShareUpdateExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "dims",
					  "Dimensions of the vectors, 0 = from type or rows",
					  0, 0, IVFPQ_MAX_DIMS, AccessExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "spill",
					  "Second lists of rows, each to make up for the "
					  "first, -1 = default",
					  -1, -1, 1, AccessExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "train_rows",
					  "Rows with which an untrained index trains itself",
					  TRAIN_ROWS, 1, PG_INT32_MAX,
					  ShareUpdateExclusiveLock);
	add_enum_reloption(ivfpq_relopt_kind, "refine",
					   "Compact copies of rows, by which a scan knows which "
					   "rows it need not fetch",
					   refine_values, IVFPQ_REFINE_NONE,
					   "Valid values are \"none\", \"sq8\" and \"half\".",
					   AccessExclusiveLock);
	add_bool_reloption(ivfpq_relopt_kind, "rotate",
					   "Rotate vectors before they are encoded, so that codes "
					   "lose less", false, AccessExclusiveLock);
	add_enum_reloption(ivfpq_relopt_kind, "calibrated_for",
					   "Queries that recall targets are to be for; "
					   "gpuvec_calibrate sets it",
					   calibrated_for_values, IVFPQ_FOR_ROWS,
					   "Valid values are \"rows\" and \"queries\".",
					   ShareUpdateExclusiveLock);
}

/*
 * amoptions: parses options and, if validate, checks how they go together.
 * Core checks their ranges.
 */
bytea *
ivfpqoptions(Datum reloptions, bool validate)
{
	static const relopt_parse_elt table[] = {
		INT_OPTION(lists),
		INT_OPTION(pq_dim),
		INT_OPTION(probes),
		INT_OPTION(candidates),
		INT_OPTION(dims),
		INT_OPTION(spill),
		INT_OPTION(train_rows),
		{.optname = "refine", .opttype = RELOPT_TYPE_ENUM,
		.offset = offsetof(IvfpqOptions, refine)},
		{.optname = "rotate", .opttype = RELOPT_TYPE_BOOL,
		.offset = offsetof(IvfpqOptions, rotate)},
		{.optname = "calibrated_for", .opttype = RELOPT_TYPE_ENUM,
		.offset = offsetof(IvfpqOptions, calibrated_for)},
	};
	IvfpqOptions *options;

	options = build_reloptions(reloptions, validate, ivfpq_relopt_kind,
							   sizeof(IvfpqOptions), table, lengthof(table));

	if (validate && options != NULL && options->dims > 0 &&
		options->pq_dim > options->dims)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("pq_dim %d is larger than dims %d",
						options->pq_dim, options->dims),
				 errhint("A sub-quantizer needs at least one dimension; "
						 "leave pq_dim out to have it chosen.")));
	return (bytea *) options;
}

/*
 * Returns whether the index is of this access method.  No other one has
 * ivfpqoptions.
 */
bool
IvfpqIsOurs(Relation index)
{
	return index->rd_indam != NULL &&
		index->rd_indam->amoptions == ivfpqoptions;
}

/*
 * Returns the same for an index that the planner has locked.  A hypothetical
 * index, which an extension shows to EXPLAIN, is in no catalog: false.
 */
bool
IvfpqIsOursByOid(Oid indexoid)
{
	Relation	index;
	bool		ours;

	if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(indexoid)))
		return false;
	index = index_open(indexoid, AccessShareLock);
	ours = IvfpqIsOurs(index);
	index_close(index, AccessShareLock);
	return ours;
}

/* Returns the index's options, or defaults if CREATE INDEX named none. */
const IvfpqOptions *
IvfpqGetOptions(Relation index)
{
	static const IvfpqOptions defaults = {.spill = -1, .train_rows = TRAIN_ROWS};

	return index->rd_options ? (const IvfpqOptions *) index->rd_options :
		&defaults;
}

/*
 * Returns the number of rows below which an index is not trained, not even by
 * request.
 */
int
IvfpqLeastRows(Relation index)
{
	const IvfpqOptions *options = IvfpqGetOptions(index);
	int			rows = Min(LEAST_ROWS, options->train_rows);

	if (options->lists > 0)
		rows = Min(rows, options->lists);
	return rows;
}

/*
 * Returns the number of rows with which an index trains itself, enough for all
 * its lists.
 */
int
IvfpqTrainRows(Relation index)
{
	const IvfpqOptions *options = IvfpqGetOptions(index);

	return Max(options->train_rows, options->lists);
}

/*
 * Returns the default number of lists for a number of rows; see am/README,
 * "Defaults".
 */
int
IvfpqDefaultLists(double rows)
{
	double		most = MANY_LISTS * Max(1.0, sqrt(rows / VERY_MANY_ROWS));

	return (int) Max(1, Min(Min(rows / ROWS_A_LIST, most), IVFPQ_MAX_LISTS));
}

/* Returns the bytes of memory that building an index may take. */
Size
IvfpqMemoryLimit(void)
{
	return (Size) maintenance_work_mem * 1024;
}
