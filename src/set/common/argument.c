/*
 * argument.c
 *		Arguments of set functions, names of metrics and methods, ranges.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "set/common/common.h"

static const char *const metric_names[] = {
	[GV_SET_L2] = "l2",
	[GV_SET_IP] = "ip",
	[GV_SET_COSINE] = "cosine",
	[GV_SET_PEARSON] = "pearson",
};

static const char *const method_names[] = {
	[IVFPQ_METHOD_EXACT] = "exact",
	[IVFPQ_METHOD_INDEX] = "index",
};

/* Where a name stands among n names, or -1. */
static int
find_name(const char *name, const char *const *names, int n)
{
	for (int i = 0; i < n; i++)
		if (names[i] != NULL && strcmp(name, names[i]) == 0)
			return i;
	return -1;
}

GvSetMetric
IvfpqMetricArgument(const text *name)
{
	const char *string = text_to_cstring(name);
	int			metric = find_name(string, metric_names,
								   lengthof(metric_names));

	if (metric < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unknown metric \"%s\"", string),
				 errhint("Use l2, ip, cosine or pearson.")));
	return (GvSetMetric) metric;
}

const char *
IvfpqMetricName(GvSetMetric metric)
{
	return metric_names[metric];
}

IvfpqMethod
IvfpqMethodArgument(const text *name)
{
	const char *string = text_to_cstring(name);
	int			method = find_name(string, method_names,
								   lengthof(method_names));

	if (method < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unknown method \"%s\"", string),
				 errhint("Use exact or index.")));
	return (IvfpqMethod) method;
}

/* ERROR unless an argument is in its range. */
void
IvfpqCheckRange(const char *name, int value, int least, int most,
				const char *hint)
{
	if (value < least || value > most)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be between %d and %d, not %d", name, least,
						most, value),
				 errhint("%s", hint)));
}

/* ERROR unless two sets of vectors, as they are called, can be compared. */
void
IvfpqCheckSameDims(const char *one, int one_dims, const char *other,
				   int other_dims)
{
	if (one_dims != other_dims)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("vectors of %s have %d dimensions, those of %s %d",
						one, one_dims, other, other_dims),
				 errhint("Only vectors of the same number of dimensions can be compared.")));
}
