/*
 * search.c
 *		Searches of gpuvecd, checked against sorting everything.
 */
#include <math.h>

#include "client.h"

/* A random search of an index. */
TestSearch
make_search(const GvMirrorKey *key, const TestIndex *index)
{
	const GvMirrorSpec *spec = &index->spec;
	TestSearch	search;

	search.request = (GvSearchRequest) {
		.key = *key,
		.n = 1,
		.dims = spec->dims,
		.probes = 1 + (int32_t) (unit_random() % (spec->nlists + 3)),
		.compare = 1 + (int32_t) (unit_random() % (spec->nlists + 3)),
		.capacity = 1 << unit_random() % 10,
		.part = (double) (unit_random() % 2 * (unit_random() % 1000)) / 1000
	};
	search.query = index_floats(spec->dims, index->ties);
	search.made = NULL;
	search.records = NULL;
	search.asked = NULL;
	search.rows = NULL;
	if (spec->keys.nkeys > 0)
	{
		int			i;

		search.made = unit_alloc(sizeof(UnitCondition));
		unit_make_condition(search.made, &spec->keys,
							(int) (unit_random() % 4));
		search.request.ntests = search.made->condition.ntests;
		for (i = 0; i < search.request.ntests; i++)
			search.request.nvalues += search.made->tests[i].nvalues;
		if (search.request.ntests > 0)
			search.request.rank = (int32_t)
				(unit_random() % (uint64_t) (search.request.capacity + 1));
	}
	return search;
}

/* The search asks for distances, of these rows. */
void
search_ask(TestSearch *search, const Rows *rows)
{
	search->request.asked = 1;
	search->asked = draw_asked(rows);
	search->rows = rows;
}

void
free_search(TestSearch *search)
{
	unit_free(search->query);
	if (search->asked != NULL)
		unit_free((void *) search->asked);
	if (search->made == NULL)
		return;
	unit_free_condition(search->made);
	unit_free(search->made);
}

/* The bytes behind a request of n queries; the caller frees them. */
char *
search_tail(const TestSearch *search, size_t *bytes)
{
	const GvSearchRequest *request = &search->request;
	size_t		query_bytes = sizeof(float) * (size_t) request->dims *
	(size_t) request->n;
	size_t		ntests = (size_t) request->ntests;
	GvTestRequest *tests;
	uint64_t   *values;
	size_t		i;

	*bytes = gv_tests_bytes(request) +
		query_bytes * (size_t) (1 + request->asked);
	tests = calloc(1, *bytes);
	values = (uint64_t *) (tests + ntests);
	for (i = 0; i < ntests; i++)
	{
		const GvKeyTest *test = &search->made->tests[i];

		tests[i] = (GvTestRequest) {test->key, test->kind, test->low,
		test->high, test->nvalues, 0};
		if (test->nvalues > 0)
			memcpy(values, test->values, sizeof(uint64_t) * test->nvalues);
		values += test->nvalues;
	}
	memcpy(values, search->query, query_bytes);
	if (request->asked)
		memcpy((char *) values + query_bytes, search->asked, query_bytes);
	return (char *) tests;
}

bool
search_send(int fd, const TestSearch *search)
{
	size_t		bytes;
	FREED char *tail = search_tail(search, &bytes);

	return client_message(fd, GV_MSG_SEARCH, &search->request,
						  sizeof(search->request), tail, bytes);
}

/* Do two sums of the same numbers differ by rounding at most? */
static bool
is_about(double a, double b)
{
	return fabs(a - b) <= 1e-9 * (fabs(a) + fabs(b));
}

/* Are an answer's sums those of its lists, of which so many postings match? */
static bool
sums_are_right(const GvSearchReply *reply, const GvProbeReply *probed,
			   const int32_t *matches, const GvSearchRequest *request)
{
	double		weighted[2] = {0};
	int64_t		plain[2] = {0};
	int32_t		i;

	for (i = 0; matches != NULL && i < reply->nprobed; i++)
	{
		double		weight = pow(1 - request->part,
								 (double) i / reply->nprobed);

		plain[0] += probed[i].state.nitems;
		plain[1] += matches[i];
		weighted[0] += weight * probed[i].state.nitems;
		weighted[1] += weight * matches[i];
	}
	return reply->nitems == plain[0] && reply->matches == plain[1] &&
		is_about(reply->weighted_nitems, weighted[0]) &&
		is_about(reply->weighted_matches, weighted[1]) &&
		reply->nearer >= 0 && reply->nearer_squares >= reply->nearer &&
		(reply->nearer == 0 || request->rank > 0);
}

/* Is the payload of an answer the right one? */
bool
search_is_answered(const TestIndex *index, const TestSearch *search,
				   char *payload, size_t length)
{
	GvSearchReply *reply = (GvSearchReply *) payload;
	/* a GPU may compare all lists */
	int32_t		compare = test_device ? index->spec.nlists :
		search->request.compare;
	GvAnswerArrays arrays;
	FREED GvProbe *probes = NULL;
	GvSearch	found = {0};
	bool		right;
	int32_t		i;

	if (length < sizeof(*reply) || reply->nprobed < 0 || reply->nhits < 0 ||
		reply->is_brief || reply->batch < 1 ||
		reply->nbounds != (search->records ? (uint32_t) reply->nhits : 0) ||
		reply->ndistances != (search->asked != NULL && search->rows != NULL ?
							  (uint32_t) reply->nhits : 0) ||
		(int64_t) length != gv_answer_bytes(&search->request, reply))
		return false;
	arrays = gv_answer_arrays(reply, reply);
	if (reply->nearest != (reply->nprobed > 0 ? arrays.probed[0].list : 0))
		return false;
	probes = calloc(reply->nprobed + 1, sizeof(GvProbe));
	for (i = 0; i < reply->nprobed; i++)
	{
		const GvProbeReply *probed = &arrays.probed[i];
		const TestList *list;

		if (probed->list < 0 || probed->list >= index->spec.nlists)
			return false;
		list = &index->lists[probed->list];
		if (probed->state.gen != list->gen ||
			probed->state.nitems != list->nitems ||
			probed->state.del_seq != list->del_seq)
			return false;
		probes[i] = (GvProbe) {probed->list, probed->base};
	}
	found.nprobed = reply->nprobed;
	found.probed = probes;
	found.nhits = reply->nhits;
	found.hits = arrays.hits;
	found.postings = reply->postings;
	if (search->request.ntests > 0)
	{
		found.condition = &search->made->condition;
		found.matched = reply->matches;
		found.matches = arrays.matches;
		found.by_number = search->request.part == 0 &&
			search->request.probes >= index->spec.nlists;
	}
	right = sums_are_right(reply, arrays.probed, found.matches,
						   &search->request) &&
		search_is_right(index, search->query, search->request.probes, compare,
						search->request.capacity, &found);
	for (i = 0; i < (int32_t) reply->nbounds; i++)
		right = right && bound_is_right(index, search->records, search->query,
										&arrays.hits[i], &arrays.bounds[i]);
	for (i = 0; i < (int32_t) reply->ndistances; i++)
		right = right && distance_is_right(search->rows, search->asked,
										   &arrays.hits[i],
										   &arrays.distances[i]);
	return right;
}

/* 0 for a right answer, WRONG_ANSWER, a refusal, or -1 at the end. */
int
search_receive(int fd, const TestIndex *index, const TestSearch *search)
{
	FREED char *payload = NULL;
	uint32_t	length = 0;
	int			got = client_receive(fd, GV_MSG_SEARCH, (void **) &payload,
									 &length);

	if (got == 0 && !search_is_answered(index, search, payload, length))
		got = WRONG_ANSWER;
	return got;
}

/* Ask one random search, likewise. */
int
search_check(int fd, const GvMirrorKey *key, const TestIndex *index)
{
	OwnSearch	search = make_search(key, index);

	/* who is cut off in mid-message may still read why */
	(void) search_send(fd, &search);
	return search_receive(fd, index, &search);
}

/* Do two heads of answers say the same, apart from batches and times? */
bool
search_same_head(const GvSearchReply *a, const GvSearchReply *b)
{
	GvSearchReply head = *a;

	head.batch = b->batch;
	head.queued_us = b->queued_us;
	head.engine_us = b->engine_us;
	return memcmp(&head, b, sizeof(head)) == 0;
}

/*
 * Compares the answers to a search of many queries with those that each query
 * has alone, on another connection or on the same.  Returns their bytes.
 */
uint32_t
search_compare(int other, const TestSearch *search, const float *queries,
			   const void *answers, uint32_t length)
{
	TestSearch	one = *search;
	uint32_t	used = 0;
	int			got = 0;
	int			i;

	one.request.n = 1;
	one.request.shared = 0;
	for (i = 0; got == 0 && i < search->request.n; i++)
	{
		const GvSearchReply *found = (const GvSearchReply *)
			((const char *) answers + used);
		FREED GvSearchReply *answer = NULL;
		uint32_t	bytes = 0;

		one.query = (float *) queries + (size_t) i * (size_t) one.request.dims;
		if (search->asked != NULL)
			one.asked = search->asked +
				(size_t) i * (size_t) one.request.dims;
		CHECK(search_send(other, &one), "send");
		got = client_receive(other, GV_MSG_SEARCH, (void **) &answer, &bytes);
		CHECK(got == 0, "search: %d", got);
		if (got == 0)
			CHECK(used + bytes <= length && search_same_head(found, answer) &&
				  memcmp(found + 1, answer + 1, bytes - sizeof(*found)) == 0,
				  "answer %d of %d", i, search->request.n);
		used += bytes;
	}
	return used;
}

/* Tests many queries of one message, likewise. */
void
search_many(int fd, int other, const TestSearch *search, const float *queries)
{
	TestSearch	many = *search;
	FREED void *answers = NULL;
	uint32_t	length = 0;
	uint32_t	used;
	int			got;

	many.query = (float *) queries;
	CHECK(search_send(fd, &many), "send");
	got = client_receive(fd, GV_MSG_SEARCH, &answers, &length);
	CHECK(got == 0, "searches: %d", got);
	if (got != 0)
		return;
	used = search_compare(other, search, queries, answers, length);
	CHECK(used == length, "%u bytes, not %u", length, used);
}

/* Clients of one role. */
TestCrowd
crowd_open(const TestServer *server, GvRole role, int n)
{
	TestCrowd	crowd = {.n = n};
	int			i;

	for (i = 0; i < n; i++)
		crowd.fds[i] = client_open(server, role);
	return crowd;
}

void
crowd_close(TestCrowd *crowd)
{
	int			i;

	for (i = 0; i < crowd->n; i++)
		client_close(&crowd->fds[i]);
}

/*
 * The i-th asks a random search, in an answer to which bounds are of these
 * records, unless that is NULL.
 */
void
crowd_ask(TestCrowd *crowd, int i, const GvMirrorKey *key,
		  const TestIndex *index, const Records *records)
{
	crowd->searches[i] = make_search(key, index);
	crowd->searches[i].records = records;
	CHECK(search_send(crowd->fds[i], &crowd->searches[i]), "client %d", i);
}

/* Its answer, as search_receive. */
int
crowd_answer(TestCrowd *crowd, int i, const TestIndex *index)
{
	int			got = search_receive(crowd->fds[i], index,
									 &crowd->searches[i]);

	free_search(&crowd->searches[i]);
	return got;
}
