/*
 * gpuvec.c
 *		Module entry: what the server calls when it loads the library, and
 *		the settings.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/guc.h"

#include "am/ivfpq.h"
#include "page/ivfpqfault.h"

#ifdef PG_MODULE_MAGIC_EXT
PG_MODULE_MAGIC_EXT(.name = "gpuvec", .version = "0.2.0");
#else
PG_MODULE_MAGIC;
#endif

int			ivfpq_probes = 0;
int			ivfpq_candidates = 0;
int			ivfpq_order = IVFPQ_ORDER_STRICT;
int			ivfpq_max_probes = 0;
double		ivfpq_recall = 0.95;

static const struct config_enum_entry order_options[] = {
	{"strict", IVFPQ_ORDER_STRICT, false},
	{"relaxed", IVFPQ_ORDER_RELAXED, false},
	{NULL, 0, false}
};

void		_PG_init(void);

/*
 * Define a setting that any user may change: an integer from 0, its default,
 * to max.
 */
static void
DefineCount(const char *name, const char *summary, const char *details,
			int *variable, int max)
{
	DefineCustomIntVariable(name, summary, details, variable, 0, 0, max,
							PGC_USERSET, 0, NULL, NULL, NULL);
}

static void
assign_fault(const char *newval, void *extra)
{
	IvfpqFaultReset();
}

/* Called once a process, when the library is loaded. */
void
_PG_init(void)
{
	IvfpqInitOptions();

	DefineCount("gpuvec.probes",
				"Sets the number of lists that a scan reads first.",
				"0 takes the index's option probes or, without one, a "
				"default.",
				&ivfpq_probes, IVFPQ_MAX_LISTS);
	DefineCount("gpuvec.candidates",
				"Sets the number of rows whose exact distance a scan "
				"computes first.",
				"0 takes the index's option candidates or, without one, a "
				"default.",
				&ivfpq_candidates, IVFPQ_MAX_CANDIDATES);
	DefineCustomEnumVariable("gpuvec.order",
							 "Sets whether rows come out strictly in order.",
							 "strict leaves out a row that is found late; "
							 "relaxed returns it out of order.",
							 &ivfpq_order, IVFPQ_ORDER_STRICT, order_options,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCount("gpuvec.max_probes",
				"Sets the number of lists after which a scan reads no more.",
				"0 means no limit.",
				&ivfpq_max_probes, IVFPQ_MAX_LISTS);
	DefineCustomRealVariable("gpuvec.recall",
							 "Sets the share of the nearest rows that a scan "
							 "is to find.",
							 "Calibration knows what .80, .90, .95, .98 and "
							 ".99 take; beyond that everything is read.",
							 &ivfpq_recall, 0.95, 0.0, 1.0, PGC_USERSET, 0,
							 NULL, NULL, NULL);
	if (getenv("GPUVEC_FAULTS") != NULL)
		DefineCustomStringVariable("gpuvec.fault",
								   "Sets where tests make a backend stop.",
								   NULL, &ivfpq_fault, NULL, PGC_SUSET,
								   GUC_NOT_IN_SAMPLE, NULL, assign_fault, NULL);
	MarkGUCPrefixReserved("gpuvec");
}
