/*
 * options.c
 *		Options of CREATE INDEX, the defaults and limits that follow from them,
 *		and the variables of settings, which gpuvec.c defines for PostgreSQL.
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
 * An index with fewer rows than this stays untrained, unless option train_rows
 * or lists is smaller.
 */
#define LEAST_ROWS		1000

/*
 * By default, an index has one list for every ROWS_A_LIST rows, but at most
 * MANY_LISTS lists.  This maximum holds up to VERY_MANY_ROWS rows, and beyond
 * that grows as the square root of the number of rows.
 */
#define ROWS_A_LIST		100.0
#define MANY_LISTS		1e5
#define VERY_MANY_ROWS	1e8

/* Default of train_rows: with that many rows, an index trains itself. */
#define TRAIN_ROWS		10000

/* An entry in the table of options: an option named like its field. */
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
bool		ivfpq_auto_calibrate = true;

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
 * Registers the options of CREATE INDEX.  Call this once in each process.  An
 * option that takes effect without a rebuild can be changed under a lock that
 * does not block queries.
 */
void
IvfpqInitOptions(void)
{
	ivfpq_relopt_kind = add_reloption_kind();

	add_int_reloption(ivfpq_relopt_kind, "lists",
					  "Number of inverted lists (0 derives it from the number of rows)",
					  0, 0, IVFPQ_MAX_LISTS, AccessExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "pq_dim",
					  "Number of sub-quantizers (0 derives it from the number of dimensions)",
					  0, 0, IVFPQ_MAX_DIMS, AccessExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "probes",
					  "Number of lists that a scan reads first (0 uses the calibrated number)",
					  0, 0, IVFPQ_MAX_LISTS, ShareUpdateExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "candidates",
					  "Number of candidates that a scan reranks first (0 uses the calibrated number)",
					  0, 0, IVFPQ_MAX_CANDIDATES, ShareUpdateExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "dims",
					  "Number of dimensions of the vectors (0 derives it from the type or the rows)",
					  0, 0, IVFPQ_MAX_DIMS, AccessExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "spill",
					  "Store each row in a second list (-1 uses the default)",
					  -1, -1, 1, AccessExclusiveLock);
	add_int_reloption(ivfpq_relopt_kind, "train_rows",
					  "Number of rows from which VACUUM trains an untrained index",
					  TRAIN_ROWS, 1, PG_INT32_MAX,
					  ShareUpdateExclusiveLock);
	add_enum_reloption(ivfpq_relopt_kind, "refine",
					   "Compact copies of vectors, with which scans fetch fewer rows",
					   refine_values, IVFPQ_REFINE_NONE,
					   "Valid values are \"none\", \"sq8\" and \"half\".",
					   AccessExclusiveLock);
	add_bool_reloption(ivfpq_relopt_kind, "rotate",
					   "Rotate vectors before encoding, which makes codes more precise", false, AccessExclusiveLock);
	add_bool_reloption(ivfpq_relopt_kind, "auto_calibrate",
					   "Calibrate the index with its queries if their recall is too low", true,
					   ShareUpdateExclusiveLock);
	add_enum_reloption(ivfpq_relopt_kind, "calibrated_for",
					   "Kind of queries that recall targets hold for, as set by gpuvec_calibrate",
					   calibrated_for_values, IVFPQ_FOR_ROWS,
					   "Valid values are \"rows\" and \"queries\".",
					   ShareUpdateExclusiveLock);
}

/*
 * amoptions callback.  Parses options.  If `validate` is true, checks that
 * they are consistent with each other.  Core checks the range of each option.
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
		{.optname = "auto_calibrate", .opttype = RELOPT_TYPE_BOOL,
		.offset = offsetof(IvfpqOptions, auto_calibrate)},
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
				 errmsg("option \"pq_dim\" (%d) must not exceed option \"dims\" (%d)",
						options->pq_dim, options->dims),
				 errhint("A sub-quantizer requires at least one dimension.  Omit \"pq_dim\" to choose it automatically.")));
	return (bytea *) options;
}

/* Returns whether an index is ours: only gpuivfpq has ivfpqoptions. */
bool
IvfpqIsOurs(Relation index)
{
	return index->rd_indam != NULL &&
		index->rd_indam->amoptions == ivfpqoptions;
}

/*
 * Like IvfpqIsOurs, for the OID of an index that the planner has locked.
 * Returns false for a hypothetical index, which is in no catalog, because an
 * extension has made it up for EXPLAIN.
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

/* Returns the index's options, or defaults if CREATE INDEX specified none. */
const IvfpqOptions *
IvfpqGetOptions(Relation index)
{
	static const IvfpqOptions defaults = {.spill = -1, .train_rows = TRAIN_ROWS,
	.auto_calibrate = true};

	return index->rd_options ? (const IvfpqOptions *) index->rd_options :
		&defaults;
}

/* Returns the least number of rows with which an index can be trained. */
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
 * Returns the number of rows with which an index trains itself.  This is at
 * least the number of its lists.
 */
int
IvfpqTrainRows(Relation index)
{
	const IvfpqOptions *options = IvfpqGetOptions(index);

	return Max(options->train_rows, options->lists);
}

/* Returns the default number of lists (am/README, "Defaults"). */
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
