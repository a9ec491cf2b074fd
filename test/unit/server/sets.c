/*
 * sets.c
 *		Work on sets, as clients hand it to gpuvecd, and whether what comes
 *		back is what the engine of this program makes of it.
 */
#include <unistd.h>

#include "client.h"

/* Inputs are sent in so many messages, ahead of their answers. */
#define PARTS		3

static const GvSetInput in_order[] = {GV_SET_QUERIES, GV_SET_SELF,
GV_SET_RANKS, GV_SET_SEEDS, GV_SET_LISTS, GV_SET_ROWS};

#define EXACT(set_metric, neighbors) \
	.kind = GV_SET_EXACT, .metric = set_metric, .dims = 7, .k = neighbors, \
	.nqueries = 20, .nrows = 400
#define KMEANS \
	.kind = GV_SET_KMEANS, .dims = 7, .k = 9, .iterations = 4, .nrows = 300
#define QUANTILES \
	.kind = GV_SET_QUANTILES, .dims = 1, .nqueries = 11, .nrows = 5000

static const GvSetSpec specs[TEST_SETS] = {
	{EXACT(GV_SET_L2, 5), .self = 1},
	{EXACT(GV_SET_PEARSON, 500)},
	{KMEANS},
	{KMEANS, .balanced = 1},
	{.kind = GV_SET_SELECT, .dims = 1, .k = 37, .method = GV_SELECT_SAMPLE,
	.nrows = 5000},
	{QUANTILES},
	[TEST_LIKELY_SET] = {QUANTILES, .approximate = 1},
	[TEST_NEAR_SET] = {EXACT(GV_SET_COSINE, 5), .self = 1, .nlists = 12,
	.probes = 3},
	[TEST_OWN_SET] = {EXACT(GV_SET_COSINE, 5), .nlists = 12, .probes = 3,
	.own = 1, .first = 30},
};

/* The spec of test set `which`, 0 .. TEST_SETS - 1. */
GvSetSpec
set_spec(int which)
{
	return specs[which];
}

/* Items of an input; rows of an exact search are fewer than there may be. */
static int64_t
count_items(const GvSetSpec *spec, GvSetInput input)
{
	if (gv_set_input_bytes(spec, input) == 0)
		return 0;
	if (input == GV_SET_ROWS)
		return spec->nrows - (spec->kind == GV_SET_EXACT ? 10 : 0);
	if (input == GV_SET_LISTS)
		return spec->nlists;
	return input == GV_SET_SEEDS ? spec->k : spec->nqueries;
}

/* A set with random inputs. */
TestSet
set_make(int which)
{
	TestSet		set = {.spec = set_spec(which)};
	int			input;
	int64_t		i;

	for (input = 0; input < GV_NSET_INPUTS; input++)
	{
		bool		numbers = input == GV_SET_SELF || input == GV_SET_RANKS;

		set.n[input] = count_items(&set.spec, (GvSetInput) input);
		if (set.n[input] == 0)
			continue;
		if (!numbers)
		{
			set.items[input] = unit_floats((size_t) (set.n[input] *
													 set.spec.dims), 1.0f);
			continue;
		}
		set.items[input] = unit_alloc(8 * (size_t) set.n[input]);
		for (i = 0; i < set.n[input]; i++)
			((int64_t *) set.items[input])[i] = 13 * i;
	}
	/* of selections values may be anything */
	if (set.spec.kind == GV_SET_SELECT)
	{
		((float *) set.items[GV_SET_ROWS])[7] = NAN;
		((float *) set.items[GV_SET_ROWS])[8] = -INFINITY;
	}
	return set;
}

void
set_free(TestSet *set)
{
	int			input;

	for (input = 0; input < GV_NSET_INPUTS; input++)
		if (set->items[input] != NULL)
			unit_free(set->items[input]);
}

int
set_begin(int fd, const GvSetSpec *spec)
{
	return ASK(fd, GV_MSG_SET, *spec);
}

int
set_ask(int fd, const GvSetSpec *spec)
{
	return ASK(fd, GV_MSG_ASK, *spec);
}

/* Of a set that keeps such rows, and is asked nothing yet. */
GvSetSpec
set_keeper(const GvSetSpec *spec)
{
	GvSetSpec	keeper = {.kind = GV_SET_EXACT,.metric = GV_SET_L2,
		.dims = spec->dims,.k = 1,.own = 1,.nrows = spec->nrows};

	return keeper;
}

/* Send items of an input, and do not wait. */
bool
set_send(int fd, const TestSet *set, GvSetInput input, int64_t first,
		 int64_t n)
{
	GvPutRequest request = {input, 0, n};
	int64_t		item = gv_set_input_bytes(&set->spec, input);

	return client_message(fd, GV_MSG_PUT, &request, sizeof(request),
						  (const char *) set->items[input] + first * item,
						  (size_t) (n * item));
}

/* Bring an input; the first refusal, 0 or -1. */
int
set_bring(int fd, const TestSet *set, GvSetInput input)
{
	int64_t		step = (set->n[input] + PARTS - 1) / PARTS;
	int64_t		first;
	int			got = 0;

	if (set->n[input] == 0)
		return 0;
	for (first = 0; first < set->n[input]; first += step)
		(void) set_send(fd, set, input, first,
						step < set->n[input] - first ? step :
						set->n[input] - first);
	for (first = 0; first < set->n[input] && got == 0; first += step)
		got = client_receive(fd, GV_MSG_PUT, NULL, NULL);
	return got;
}

/* All inputs, rows last; the first refusal, 0 or -1. */
int
set_bring_all(int fd, const TestSet *set)
{
	int			got = 0;
	int			i;

	for (i = 0; i < GV_NSET_INPUTS && got == 0; i++)
		got = set_bring(fd, set, in_order[i]);
	return got;
}

int
set_run(int fd, GvSetDone *reply)
{
	FREED void *payload = NULL;
	uint32_t	length = 0;
	int			got = client_ask(fd, GV_MSG_RUN, NULL, 0, NULL, 0, &payload,
								 &length);

	if (got == 0)
	{
		CHECK(length == sizeof(*reply), "%u bytes", length);
		memcpy(reply, payload, sizeof(*reply));
	}
	return got;
}

/* The same work, in this program. */
static GvSet *
make_own(const TestSet *set, GvSetDone *done)
{
	GvSet	   *own = NULL;
	int			i;

	memset(done, 0, sizeof(*done));
	CHECK(gv_set_create(&set->spec, &own) == GV_OK, "create");
	while (!done->finished)
	{
		for (i = 0; i < GV_NSET_INPUTS; i++)
			if (set->n[in_order[i]] > 0 &&
				(done->passes == 0 || in_order[i] == GV_SET_ROWS))
				CHECK(gv_set_put(own, in_order[i], set->items[in_order[i]],
								 set->n[in_order[i]], NULL) == GV_OK, "put");
		if (gv_set_run(own, done, NULL) != GV_OK)
			break;
	}
	CHECK(done->finished, "own work");
	return own;
}

/* NaN's bits are any. */
static bool
same_items(GvSetOutput output, const void *a, const void *b, size_t bytes)
{
	const double *x = a;
	const double *y = b;
	size_t		i;

	if (output != GV_SET_DISTANCES)
		return memcmp(a, b, bytes) == 0;
	for (i = 0; i < bytes / 8; i++)
		if (memcmp(&x[i], &y[i], 8) != 0 && !(isnan(x[i]) && isnan(y[i])))
			return false;
	return true;
}

/* Has memory been let alone but for so many bytes at a place? */
static bool
unchanged(const TestMemory *memory, size_t place, size_t bytes)
{
	size_t		i;

	for (i = 0; i < MEMORY_BYTES; i++)
		if ((i < place || i >= place + bytes) && memory->bytes[i] != 77)
			return false;
	return true;
}

/*
 * Get items of an output and compare them with what they must be.  In memory
 * they end where it ends, or as near to that as they may, and nothing else
 * changes.
 */
static int
check_part(int fd, const TestSet *set, GvSetOutput output, int64_t first,
		   int64_t n, const char *right)
{
	int64_t		item = gv_set_output_bytes(&set->spec, output);
	size_t		bytes = (size_t) (n * item);
	size_t		place = (MEMORY_BYTES - bytes) / 8 * 8;
	GvGetRequest request = {output, 0, first, n,
	set->memory == NULL ? -1 : (int64_t) place};
	FREED void *payload = NULL;
	uint32_t	length = 0;
	int			got;

	if (set->memory != NULL)
		memset(set->memory->bytes, 77, MEMORY_BYTES);
	got = client_ask(fd, GV_MSG_GET, &request, sizeof(request), NULL, 0,
					 &payload, &length);
	if (got == 0 && (length != (set->memory == NULL ? bytes : 0) ||
					 !same_items(output, set->memory == NULL ? payload :
								 set->memory->bytes + place,
								 right + first * item, bytes)))
		got = WRONG_ANSWER;
	if (set->memory != NULL && !unchanged(set->memory, place, bytes))
		got = WRONG_ANSWER;
	return got;
}

/* An output, in two parts. */
static int
check_output(int fd, const TestSet *set, GvSet *own, GvSetOutput output,
			 int32_t found)
{
	int64_t		n = gv_set_output_length(&set->spec, output, found);
	int64_t		half = n / 2;
	char	   *right;
	int			got;

	if (n == 0)
		return 0;
	right = unit_alloc((size_t) (n * gv_set_output_bytes(&set->spec, output)));
	CHECK(gv_set_get(own, output, 0, n, right) == GV_OK, "own output");
	got = half == 0 ? 0 : check_part(fd, set, output, 0, half, right);
	if (got == 0)
		got = check_part(fd, set, output, half, n - half, right);
	unit_free(right);
	return got;
}

/* All is there: run, bring rows again, and compare; see search_check. */
int
set_finish(int fd, const TestSet *set)
{
	GvSetDone	right;
	GvSet	   *own = make_own(set, &right);
	GvSetDone	reply = {0};
	int			got = set_run(fd, &reply);
	int			output;

	while (got == 0 && !reply.finished)
	{
		if (reply.again)
			got = set_bring(fd, set, GV_SET_ROWS);
		if (got == 0)
			got = set_run(fd, &reply);
	}
	if (got == 0 && (reply.passes != right.passes ||
					 reply.found != right.found ||
					 memcmp(&reply.error, &right.error, 8) != 0))
		got = WRONG_ANSWER;
	for (output = 0; output < GV_NSET_OUTPUTS && got == 0; output++)
		got = check_output(fd, set, own, (GvSetOutput) output, right.found);
	gv_set_drop(own);
	return got;
}

/* A whole conversation about it; see search_check. */
int
set_check(int fd, const TestSet *set)
{
	int			got = fd < 0 ? -1 : set_begin(fd, &set->spec);

	if (got == 0)
		got = set_bring_all(fd, set);
	if (got == 0)
		got = set_finish(fd, set);
	return got;
}
