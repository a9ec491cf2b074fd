/*
 * check_wrong.c
 *		Messages with one thing wrong, in conversations that are right up to
 *		them: who sends one is refused, and nobody else notices.
 *
 * A row takes a message of a conversation and changes one thing in it, or its
 * place.  That the message without the change is taken is seen where it comes
 * before that of another row.  How long messages may be, and which roles may
 * send them, is check_rules.c's.
 */
#include <fcntl.h>
#include <unistd.h>

#include "scripts.h"

/* Conversations; those of sets are named after their inputs. */
typedef enum Talk
{
	SESSION,					/* a search */
	BULK,						/* of four queries */
	IN_SET,						/* with the condition that a key is in a set */
	IN_RANGE,
	LOADER,						/* the last of its lists has three blocks */
	ROWS_LOADER,				/* of a mirror with rows */
	BUILDER,
	JOINER,						/* of that one's build, once it is trained */
	EXACT,
	NEAR,
	OWN_ROWS,
	CLUSTERS,
	SELECTION,
	RANKS
} Talk;

#define NTALKS	(RANKS + 1)

/* Which test set it is (sets.c). */
static const int set_of[NTALKS] = {
	[EXACT] = 0,[NEAR] = TEST_NEAR_SET,[OWN_ROWS] = TEST_OWN_SET,
	[CLUSTERS] = 2,[SELECTION] = 4,[RANKS] = 5
};

#define TAKEN	(-2)			/* the code of an answer, which is 0 */

typedef struct Row
{
	int			line;			/* of this file */
	Talk		talk;
	int			message;		/* NTH(n, TYPE), from 0 on; one that a joiner
								 * has not got is its owner's */
	size_t		at;				/* bytes of it from here on, behind its header
								 * or of its last chunk ... */
	bool		in_chunk;
	size_t		width;			/* ... so many of them become each of these */
	int			nvalues;		/* 0: they stay */
	int64_t		values[6];
	double		reals[6];
	bool		is_real;
	int			items;			/* has so many items, unless 0 */
	int			more;			/* has so many bytes more */
	int			before;			/* in the place of this message ... */
	int			after;			/* ... or behind this one, unless 0 */
	int			code;			/* of the answer; 0: GV_REFUSED_PROTOCOL */
} Row;

#define NTH(n, type)	(GV_MSG_##type + 100 * (n))

#define WRONG(in_talk, n, type, ...) \
	{.line = __LINE__, .talk = in_talk, .message = NTH(n, type), __VA_ARGS__}

/* A search of one query, and one of four. */
#define SEARCHES(...) \
	WRONG(SESSION, 0, SEARCH, __VA_ARGS__), WRONG(BULK, 0, SEARCH, __VA_ARGS__)

/* Some bytes become each of these, one message after another. */
#define BYTES(place, bytes, ...) \
	.at = place, .width = bytes, \
	.nvalues = sizeof((int64_t[]) {__VA_ARGS__}) / sizeof(int64_t), \
	.values = {__VA_ARGS__}
#define REALS(place, bytes, ...) \
	.at = place, .width = bytes, \
	.nvalues = sizeof((double[]) {__VA_ARGS__}) / sizeof(double), \
	.reals = {__VA_ARGS__}, .is_real = true
#define WIDTH(type, field)	sizeof(((type *) 0)->field)
#define FIELD(type, field, ...) \
	BYTES(offsetof(type, field), WIDTH(type, field), __VA_ARGS__)
#define CHUNK(field, ...) \
	.in_chunk = true, FIELD(GvChunk, field, __VA_ARGS__)
#define REAL(type, field, ...) \
	REALS(offsetof(type, field), sizeof(double), __VA_ARGS__)

/* Likewise of what stands behind the head of a message. */
#define BEHIND(type, offset, bytes, ...) \
	BYTES(sizeof(type) + (offset), bytes, __VA_ARGS__)
#define FLOAT_BEHIND(type, offset, ...) \
	REALS(sizeof(type) + (offset), sizeof(float), __VA_ARGS__)
#define TEST_FIELD(field, ...) \
	BEHIND(GvSearchRequest, offsetof(GvTestRequest, field), \
		   WIDTH(GvTestRequest, field), __VA_ARGS__)

static const Row rows[] = {
	SEARCHES(.code = TAKEN),
	WRONG(SESSION, 0, SEARCH, FIELD(GvSearchRequest, probes, GV_MAX_PROBES),
		  .code = TAKEN),
	SEARCHES(FIELD(GvSearchRequest, compare, INT32_MAX), .code = TAKEN),
	WRONG(SESSION, 0, SEARCH, FIELD(GvSearchRequest, capacity, GV_MAX_HITS),
		  .code = TAKEN),
	SEARCHES(FIELD(GvSearchRequest, key.relation, 99),
			 .code = GV_REFUSED_NO_MIRROR),
	/* the message is as long as that says, but the mirror has 4 */
	WRONG(SESSION, 0, SEARCH, FIELD(GvSearchRequest, dims, 3), .more = -4),
	WRONG(BULK, 0, SEARCH, FIELD(GvSearchRequest, dims, 3), .more = -16),
	WRONG(BULK, 0, SEARCH, FIELD(GvSearchRequest, dims, 8), .more = 64),
	SEARCHES(.more = -4),
	SEARCHES(.more = 4),
	WRONG(BULK, 0, SEARCH, .more = -16),
	WRONG(BULK, 0, SEARCH, .more = 16),
	SEARCHES(FIELD(GvSearchRequest, dims, 0, -1, INT32_MIN)),
	/* as many bytes modulo 2^32 */
	SEARCHES(FIELD(GvSearchRequest, dims, 0x40000004)),
	WRONG(SESSION, 0, SEARCH, FIELD(GvSearchRequest, dims, GV_MAX_DIMS + 1),
		  .more = 4 * (GV_MAX_DIMS - 3)),
	SEARCHES(FIELD(GvSearchRequest, probes, 0, -5, GV_MAX_PROBES + 1)),
	SEARCHES(FIELD(GvSearchRequest, compare, 0)),
	SEARCHES(FIELD(GvSearchRequest, capacity, 0, -1, GV_MAX_HITS + 1)),
	SEARCHES(REAL(GvSearchRequest, part, -0.01, 1, NAN)),
	SEARCHES(FIELD(GvSearchRequest, rank, -1)),
	/* without a condition */
	SEARCHES(FIELD(GvSearchRequest, rank, 1)),
	SEARCHES(FIELD(GvSearchRequest, ntests, 1)),
	SEARCHES(FIELD(GvSearchRequest, nvalues, 2), .more = 16),
	SEARCHES(FIELD(GvSearchRequest, n, 0, -1)),
	WRONG(SESSION, 0, SEARCH, FIELD(GvSearchRequest, n, 0x40000001)),
	WRONG(BULK, 0, SEARCH, FIELD(GvSearchRequest, n, 0x40000004)),
	SEARCHES(FIELD(GvSearchRequest, n, GV_MAX_QUERIES + 1)),
	/* the queries as they were asked */
	WRONG(SESSION, 0, SEARCH, FIELD(GvSearchRequest, asked, 1), .more = 16,
		  .code = TAKEN),
	WRONG(BULK, 0, SEARCH, FIELD(GvSearchRequest, asked, 1), .more = 64,
		  .code = TAKEN),
	SEARCHES(FIELD(GvSearchRequest, asked, 1)),
	SEARCHES(FIELD(GvSearchRequest, asked, 1), .more = 4),
	WRONG(SESSION, 0, SEARCH, FIELD(GvSearchRequest, asked, 0), .more = 16),
	WRONG(SESSION, 0, SEARCH, FIELD(GvSearchRequest, asked, -1, 2),
		  .more = 32),
	WRONG(BULK, 0, SEARCH, FIELD(GvSearchRequest, asked, -1, 2), .more = 128),
	SEARCHES(FIELD(GvSearchRequest, shared, -1, 2)),
	/* many queries, of a session */
	WRONG(SESSION, 0, SEARCH, FIELD(GvSearchRequest, n, 2), .more = 16),
	/* answers that no message holds */
	WRONG(BULK, 0, SEARCH, FIELD(GvSearchRequest, probes, GV_MAX_PROBES)),

	WRONG(IN_SET, 0, SEARCH, .code = TAKEN),
	WRONG(IN_SET, 0, SEARCH,
		  FIELD(GvSearchRequest, ntests, 0, -1, 2, GV_MAX_TESTS + 1,
				INT32_MAX)),
	WRONG(IN_SET, 0, SEARCH, FIELD(GvSearchRequest, nvalues, -1)),
	WRONG(IN_SET, 0, SEARCH, FIELD(GvSearchRequest, nvalues, 1), .more = -8),
	WRONG(IN_SET, 0, SEARCH, FIELD(GvSearchRequest, nvalues, 3), .more = 8),
	WRONG(IN_SET, 0, SEARCH,
		  FIELD(GvSearchRequest, nvalues, GV_MAX_VALUES + 1)),
	/* values that do not ascend */
	WRONG(IN_SET, 0, SEARCH,
		  BEHIND(GvSearchRequest, sizeof(GvTestRequest) + 8, 8, 3, 1)),
	WRONG(IN_SET, 0, SEARCH, TEST_FIELD(key, 1, -1)),
	WRONG(IN_SET, 0, SEARCH, TEST_FIELD(kind, 0, 7, GV_TEST_ANY_BIT)),
	WRONG(IN_SET, 0, SEARCH, TEST_FIELD(nvalues, -1, 1, INT32_MAX)),
	WRONG(IN_SET, 0, SEARCH, TEST_FIELD(unused, 1)),
	WRONG(IN_RANGE, 0, SEARCH, .code = TAKEN),
	WRONG(IN_RANGE, 0, SEARCH, TEST_FIELD(high, INT64_C(1) << 32)),

	WRONG(LOADER, 0, DROP, .code = TAKEN),
	/* the engine refuses what a mirror cannot have (check_mirror.c) */
	WRONG(LOADER, 0, BEGIN, FIELD(GvBeginRequest, spec.dims, 0)),
	WRONG(LOADER, 0, BEGIN, FIELD(GvBeginRequest, spec.nlists, (1 << 24) + 1)),
	WRONG(LOADER, 0, BEGIN, FIELD(GvBeginRequest, spec.metric, 4)),
	WRONG(LOADER, 0, BEGIN, FIELD(GvBeginRequest, spec.refine_slots, -1)),
	WRONG(LOADER, 0, BEGIN, FIELD(GvBeginRequest, spec.device, 1)),
	/* as builds have it */
	WRONG(LOADER, 0, BEGIN, FIELD(GvBeginRequest, key.relation, 0)),
	WRONG(LOADER, 0, BEGIN, .after = NTH(0, READY), .code = GV_REFUSED_EXISTS),
	WRONG(LOADER, 1, ARRAY, FIELD(GvArrayRequest, array, -1, GV_NARRAYS)),
	WRONG(LOADER, 1, ARRAY, FIELD(GvArrayRequest, unused, 1)),
	WRONG(LOADER, 1, ARRAY, FIELD(GvArrayRequest, first, -1)),
	WRONG(LOADER, 1, ARRAY, FIELD(GvArrayRequest, first, 1), .items = 1),
	WRONG(LOADER, 1, ARRAY, FIELD(GvArrayRequest, first, INT64_MAX)),
	WRONG(LOADER, 1, ARRAY, FIELD(GvArrayRequest, count, 2, INT64_MAX)),
	WRONG(LOADER, 1, ARRAY, .items = 13),
	/* offsets of parents, which are 0, 1, 3, 5 */
	WRONG(LOADER, 2, ARRAY, BEHIND(GvArrayRequest, 0, 4, 1)),
	WRONG(LOADER, 2, ARRAY, BEHIND(GvArrayRequest, 8, 4, 1)),
	WRONG(LOADER, 2, ARRAY, BEHIND(GvArrayRequest, 12, 4, 6)),
	WRONG(LOADER, 2, ARRAY, .after = NTH(3, ARRAY)),
	WRONG(LOADER, 1, ARRAY, .after = NTH(0, READY)),
	WRONG(LOADER, 0, READY, .before = NTH(3, ARRAY)),
	WRONG(LOADER, 0, READY, .after = NTH(0, READY)),
	WRONG(LOADER, 0, LISTS, .before = NTH(0, BEGIN),
		  .code = GV_REFUSED_NO_MIRROR),
	/* chunks that nothing could make right */
	WRONG(LOADER, 0, LISTS, CHUNK(list, -1, 1000)),
	WRONG(LOADER, 0, LISTS, CHUNK(first, -1, 1, 3, INT32_MAX)),
	WRONG(LOADER, 0, LISTS, CHUNK(nblocks, -1, 0, 2, INT32_MAX)),
	WRONG(LOADER, 0, LISTS, CHUNK(flags, 2, GV_CHUNK_LIVE)),
	WRONG(LOADER, 0, LISTS, CHUNK(state.nitems, 0, 64, 97, UINT32_MAX)),
	/* live beyond nitems */
	WRONG(LOADER, 0, LISTS, .in_chunk = true, BEHIND(GvChunk, 0, 4, 1 << 20)),
	WRONG(LOADER, 0, LISTS, FIELD(GvListsRequest, nchunks, -1, 0, 5, 7)),
	WRONG(LOADER, 0, LISTS, FIELD(GvListsRequest, unused, 1)),
	WRONG(LOADER, 0, LISTS, .more = -4),
	WRONG(LOADER, 0, LISTS, .more = 4),
	/* chunks that do not follow what the list holds */
	WRONG(LOADER, 0, LISTS, CHUNK(list, 0)),
	WRONG(LOADER, 0, LISTS, CHUNK(state.gen, 1)),
	WRONG(LOADER, 0, LISTS, CHUNK(state.del_seq, 1)),
	WRONG(LOADER, 1, LISTS, CHUNK(state.gen, 1)),
	WRONG(LOADER, 1, LISTS, CHUNK(state.nitems, 81)),
	WRONG(LOADER, 0, REFINE, FIELD(GvListsRequest, unused, 1)),
	WRONG(LOADER, 0, REFINE, FIELD(GvListsRequest, nchunks, 1, -1)),
	/* there are two slots */
	WRONG(LOADER, 0, REFINE,
		  BEHIND(GvListsRequest, offsetof(GvRefineItem, address) + 4, 2, 3)),
	WRONG(LOADER, 0, LIST_STATES, FIELD(GvRangeRequest, first, -1, 5)),
	WRONG(LOADER, 0, LIST_STATES, FIELD(GvRangeRequest, count, 0, 6)),
	WRONG(LOADER, 0, LIST_STATES, FIELD(GvRangeRequest, block, 1)),
	WRONG(LOADER, 0, LIST_STATES, FIELD(GvRangeRequest, unused, 1)),
	WRONG(LOADER, 0, READ_LISTS, FIELD(GvRangeRequest, first, 5)),
	WRONG(LOADER, 0, READ_LISTS, FIELD(GvRangeRequest, count, 6)),
	WRONG(LOADER, 0, READ_LISTS, FIELD(GvRangeRequest, block, -1)),
	WRONG(LOADER, 0, READ_LISTS, FIELD(GvRangeRequest, unused, 1)),
	WRONG(LOADER, 0, READ_ARRAY, FIELD(GvArrayRequest, array, GV_NARRAYS)),
	WRONG(LOADER, 0, READ_ARRAY, FIELD(GvArrayRequest, first, 1)),
	WRONG(LOADER, 0, READ_ARRAY, FIELD(GvArrayRequest, count, -1)),
	WRONG(LOADER, 0, READ_REFINE, .more = -6),
	WRONG(LOADER, 0, MARK_CURRENT, FIELD(GvCurrentRequest, version, 0)),

	WRONG(ROWS_LOADER, 1, DROP, .code = TAKEN),
	WRONG(ROWS_LOADER, 0, BEGIN, FIELD(GvBeginRequest, spec.rows, -1, 3)),
	WRONG(ROWS_LOADER, 0, BEGIN, FIELD(GvBeginRequest, spec.refine_slots, 1)),
	WRONG(ROWS_LOADER, 0, BEGIN, FIELD(GvBeginRequest, must, 1),
		  .code = TAKEN),
	WRONG(ROWS_LOADER, 0, BEGIN, FIELD(GvBeginRequest, must, -1, 2)),
	WRONG(ROWS_LOADER, 0, BEGIN, FIELD(GvBeginRequest, unused, 1)),
	WRONG(ROWS_LOADER, 0, ROWS, .before = NTH(0, BEGIN),
		  .code = GV_REFUSED_NO_MIRROR),
	WRONG(ROWS_LOADER, 0, ROWS, FIELD(GvListsRequest, unused, 1)),
	WRONG(ROWS_LOADER, 0, ROWS,
		  FIELD(GvListsRequest, nchunks, -1, 0, 1, 3, INT32_MAX)),
	WRONG(ROWS_LOADER, 0, ROWS, .more = -8),
	WRONG(ROWS_LOADER, 0, ROWS, .more = 8),
	WRONG(ROWS_LOADER, 1, ROWS, .more = -1),
	/* the rows are numbers 1 and 2 of a page */
	WRONG(ROWS_LOADER, 0, ROWS,
		  BEHIND(GvListsRequest, offsetof(GvRowItem, rowid) + 4, 2, 0, 2, 3)),
	WRONG(ROWS_LOADER, 1, ROWS,
		  BEHIND(GvListsRequest, offsetof(GvRowItem, rowid), 2, 1)),
	WRONG(ROWS_LOADER, 0, READ_ROWS, FIELD(GvListsRequest, unused, 1)),
	WRONG(ROWS_LOADER, 0, READ_ROWS,
		  FIELD(GvListsRequest, nchunks, -1, 0, 1, 3, INT32_MAX)),
	WRONG(ROWS_LOADER, 0, READ_ROWS, .more = -6),
	WRONG(ROWS_LOADER, 0, READ_ROWS, .more = 6),

	WRONG(BUILDER, 0, SEARCH, .code = TAKEN),
	WRONG(BUILDER, 0, BUILD, FIELD(GvBuilderSpec, dims, 5, -1)),
	WRONG(BUILDER, 0, BUILD, FIELD(GvBuilderSpec, device, 1)),
	WRONG(BUILDER, 0, BUILD, FIELD(GvBuilderSpec, unused, 1)),
	WRONG(BUILDER, 0, BUILD, FIELD(GvBuilderSpec, m, 0)),
	WRONG(BUILDER, 0, BUILD, FIELD(GvBuilderSpec, nlists, 1 << 25)),
	WRONG(BUILDER, 0, BUILD, FIELD(GvBuilderSpec, nqueries, -1)),
	WRONG(BUILDER, 0, BUILD, FIELD(GvBuilderSpec, depth, 1000)),
	WRONG(BUILDER, 0, BUILD, FIELD(GvBuilderSpec, batch_rows, 0)),
	WRONG(BUILDER, 0, BUILD, REAL(GvBuilderSpec, max_imbalance, NAN)),
	WRONG(BUILDER, 0, BUILD, FIELD(GvBuilderSpec, sample_rows, INT64_MIN)),
	WRONG(BUILDER, 0, BUILD, .after = NTH(0, BUILD)),
	WRONG(BUILDER, 0, TRAIN_ROWS, FIELD(GvRowsRequest, kind, 7)),
	WRONG(BUILDER, 0, TRAIN_ROWS, .before = NTH(0, BUILD)),
	WRONG(BUILDER, 1, TRAIN_ROWS, .after = NTH(0, TRAIN)),
	WRONG(BUILDER, 0, TRAIN, .before = NTH(0, BUILD)),
	WRONG(BUILDER, 0, TRAIN, .after = NTH(0, TRAIN)),
	WRONG(BUILDER, 0, GET_MODEL, .before = NTH(0, BUILD)),
	WRONG(BUILDER, 0, GET_MODEL, FIELD(GvGetModelRequest, array, GV_NARRAYS)),
	WRONG(BUILDER, 0, GET_MODEL, FIELD(GvGetModelRequest, unused, 1)),
	WRONG(BUILDER, 0, GET_MODEL, FIELD(GvGetModelRequest, first, -1, 5)),
	WRONG(BUILDER, 0, GET_MODEL,
		  FIELD(GvGetModelRequest, count, 9, INT64_MAX)),
	WRONG(BUILDER, 0, ENCODE_ROWS, .before = NTH(0, BUILD)),
	WRONG(BUILDER, 0, ENCODE_ROWS, .before = NTH(0, TRAIN)),
	WRONG(BUILDER, 0, ENCODE_ROWS, .more = -4),
	WRONG(BUILDER, 0, ENCODE_ROWS, .more = 4),
	WRONG(BUILDER, 0, ENCODE_ROWS, FLOAT_BEHIND(GvRowsRequest, 4, NAN)),
	WRONG(BUILDER, 0, ENCODE_ROWS, FIELD(GvRowsRequest, n, 0, -1)),
	WRONG(BUILDER, 0, ENCODE_ROWS, FIELD(GvRowsRequest, n, 6), .more = 16),
	WRONG(BUILDER, 0, ENCODE_ROWS, FIELD(GvRowsRequest, kind, 7)),
	WRONG(BUILDER, 0, ENCODE_SAMPLE, .before = NTH(0, BUILD)),
	WRONG(BUILDER, 0, ENCODE_SAMPLE,
		  FIELD(GvEncodeSampleRequest, first, 4, -1)),
	WRONG(BUILDER, 0, ENCODE_SAMPLE, FIELD(GvEncodeSampleRequest, n, 0, 6)),
	WRONG(BUILDER, 0, ENCODE_SAMPLE, FIELD(GvEncodeSampleRequest, unused, 1)),
	WRONG(BUILDER, 0, CALIB_MIRROR, .before = NTH(0, BUILD)),
	WRONG(BUILDER, 0, CALIB_MIRROR, FIELD(GvCalibMirrorRequest, postings, -1)),
	WRONG(BUILDER, 0, LISTS, .before = NTH(0, BUILD)),
	WRONG(BUILDER, 0, LISTS, .before = NTH(0, CALIB_MIRROR),
		  .code = GV_REFUSED_NO_MIRROR),
	WRONG(BUILDER, 0, SEARCH, .before = NTH(0, BUILD)),
	WRONG(BUILDER, 0, SEARCH, .before = NTH(0, CALIB_MIRROR),
		  .code = GV_REFUSED_NO_MIRROR),
	WRONG(BUILDER, 0, SEARCH, FIELD(GvSearchRequest, n, 0, 2)),
	WRONG(BUILDER, 0, SEARCH, FIELD(GvSearchRequest, key.relation, 1)),
	WRONG(BUILDER, 0, SEARCH, FIELD(GvSearchRequest, dims, 3)),

	WRONG(JOINER, 0, ENCODE_SAMPLE, .code = TAKEN),
	WRONG(JOINER, 0, JOIN, FIELD(GvJoinRequest, id, 0)),
	WRONG(JOINER, 0, JOIN, .after = NTH(0, JOIN)),
	WRONG(JOINER, 0, BUILD, .after = NTH(0, JOIN)),
	WRONG(JOINER, 1, TRAIN_ROWS, .after = NTH(0, JOIN)),
	WRONG(JOINER, 0, TRAIN, .after = NTH(0, JOIN)),
	WRONG(JOINER, 0, GET_MODEL, .after = NTH(0, JOIN)),
	WRONG(JOINER, 0, CALIB_MIRROR, .after = NTH(0, JOIN)),
	WRONG(JOINER, 0, SEARCH, .after = NTH(0, JOIN)),
	WRONG(JOINER, 0, LISTS, .after = NTH(0, JOIN),
		  .code = GV_REFUSED_NO_MIRROR),
	WRONG(JOINER, 0, ENCODE_ROWS, FIELD(GvRowsRequest, n, 6), .more = 80),
	WRONG(JOINER, 0, ENCODE_SAMPLE, FIELD(GvEncodeSampleRequest, first, 5)),

	/* the engine refuses these (check_setcalls.c), which shows it is asked */
	WRONG(EXACT, 1, SET, .code = TAKEN),
	WRONG(NEAR, 1, SET, .code = TAKEN),
	WRONG(CLUSTERS, 1, SET, .code = TAKEN),
	WRONG(EXACT, 0, SET, FIELD(GvSetSpec, kind, -1, GV_NSETS)),
	WRONG(EXACT, 0, SET, FIELD(GvSetSpec, dims, GV_MAX_DIMS + 1)),
	WRONG(EXACT, 0, SET, FIELD(GvSetSpec, nqueries, INT64_MIN)),
	WRONG(EXACT, 0, SET, FIELD(GvSetSpec, nrows, INT64_MAX)),
	WRONG(EXACT, 0, SET, FIELD(GvSetSpec, device, 1)),
	WRONG(EXACT, 1, SET, FIELD(GvSetSpec, k, 0)),
	WRONG(NEAR, 0, SET, FIELD(GvSetSpec, probes, 13)),
	WRONG(CLUSTERS, 0, SET, FIELD(GvSetSpec, iterations, GV_SET_MAX_PASSES)),
	WRONG(SELECTION, 0, SET, FIELD(GvSetSpec, nrows, GV_SELECT_MAX_N + 1)),
	WRONG(RANKS, 0, SET, FIELD(GvSetSpec, k, 1)),
	/* 20 numbers of rows, 20 queries, 390 of 400 rows */
	WRONG(EXACT, 1, PUT, .before = NTH(0, SET)),
	WRONG(EXACT, 2, PUT, .before = NTH(0, PUT)),
	WRONG(EXACT, 1, PUT,
		  FIELD(GvPutRequest, input, -1, GV_NSET_INPUTS, INT32_MIN,
				GV_SET_SEEDS, GV_SET_LISTS)),
	WRONG(EXACT, 0, PUT, FIELD(GvPutRequest, input, GV_SET_RANKS)),
	WRONG(EXACT, 1, PUT, FIELD(GvPutRequest, n, 0, -1, 19, 21)),
	WRONG(EXACT, 1, PUT, .more = -1),
	WRONG(EXACT, 1, PUT, FIELD(GvPutRequest, n, INT64_MAX)),
	/* as many bytes modulo 2^64 */
	WRONG(EXACT, 1, PUT, FIELD(GvPutRequest, n, INT64_C(0x4000000000000014))),
	WRONG(EXACT, 1, PUT, .items = 21),
	WRONG(EXACT, 1, PUT, FLOAT_BEHIND(GvPutRequest, 12, NAN)),
	WRONG(EXACT, 1, PUT, .items = 1, .after = NTH(1, PUT)),
	WRONG(EXACT, 0, PUT, .items = 1, .after = NTH(2, PUT)),
	WRONG(EXACT, 2, PUT, FLOAT_BEHIND(GvPutRequest, 12, NAN)),
	WRONG(EXACT, 2, PUT, FIELD(GvPutRequest, unused, 1)),
	WRONG(EXACT, 2, PUT, .items = 11, .after = NTH(2, PUT)),
	WRONG(EXACT, 2, PUT, .items = 1, .after = NTH(0, RUN)),
	WRONG(NEAR, 0, PUT, .items = 13),
	WRONG(NEAR, 0, PUT, .items = 1, .after = NTH(0, PUT)),
	WRONG(NEAR, 0, PUT, FLOAT_BEHIND(GvPutRequest, 12, NAN)),
	WRONG(CLUSTERS, 0, PUT, FLOAT_BEHIND(GvPutRequest, 12, -INFINITY)),
	WRONG(CLUSTERS, 1, PUT, FLOAT_BEHIND(GvPutRequest, 12, -INFINITY)),
	WRONG(CLUSTERS, 1, PUT, .items = 1, .after = NTH(1, PUT)),
	WRONG(RANKS, 0, PUT, BEHIND(GvPutRequest, 0, 8, 5000, -1)),
	WRONG(EXACT, 0, RUN, .before = NTH(0, SET)),
	WRONG(EXACT, 0, RUN, .before = NTH(0, PUT)),
	WRONG(EXACT, 0, RUN, .after = NTH(0, RUN)),
	WRONG(CLUSTERS, 0, RUN, .before = NTH(0, PUT)),
	WRONG(CLUSTERS, 0, RUN, .before = NTH(1, PUT)),
	WRONG(RANKS, 0, RUN, .before = NTH(1, PUT)),
	/* 100 positions and distances */
	WRONG(EXACT, 0, GET, .before = NTH(0, SET)),
	WRONG(EXACT, 0, GET, .before = NTH(0, PUT)),
	WRONG(EXACT, 0, GET, .before = NTH(0, RUN)),
	WRONG(EXACT, 0, GET,
		  FIELD(GvGetRequest, output, -1, GV_NSET_OUTPUTS, GV_SET_VALUES)),
	WRONG(EXACT, 0, GET, FIELD(GvGetRequest, unused, 1)),
	WRONG(EXACT, 0, GET, FIELD(GvGetRequest, first, -1, 100)),
	WRONG(EXACT, 0, GET, FIELD(GvGetRequest, n, 0, -1, 101)),
	WRONG(EXACT, 1, GET, FIELD(GvGetRequest, first, INT64_MAX)),
	WRONG(EXACT, 1, GET, FIELD(GvGetRequest, n, INT64_MAX)),
	/* 9 clusters at most */
	WRONG(CLUSTERS, 0, GET, FIELD(GvGetRequest, n, 10)),
	/* it shares no memory */
	WRONG(EXACT, 0, GET, FIELD(GvGetRequest, offset, 0)),
	WRONG(EXACT, 0, ASK, .before = NTH(0, SET)),
	WRONG(EXACT, 0, ASK, .before = NTH(0, PUT)),
	/* begun with queries, though it would keep its rows */
	WRONG(OWN_ROWS, 0, ASK, .after = NTH(0, RUN)),
};

#define NROWS	((int) (sizeof(rows) / sizeof(rows[0])))

/* The place of the message NTH(n, TYPE) in a conversation, or -1. */
static int
find_message(const Script *script, int message)
{
	int			n = message / 100;
	int			i;

	for (i = 0; i < script->n; i++)
		if (((GvMessage *) script->messages[i])->type == message % 100 &&
			n-- == 0)
			return i;
	return -1;
}

/* Where the last chunk begins in a message of the loader. */
static size_t
last_chunk(const char *message, size_t bytes, int32_t m)
{
	size_t		at = sizeof(GvMessage) + sizeof(GvListsRequest);
	size_t		next = at;

	while (next < bytes)
	{
		at = next;
		next += (size_t) gv_chunk_bytes((const GvChunk *) (message + at),
										gv_code_bytes(m), 0);
	}
	return at;
}

/* A message with the v-th thing wrong in it; the caller's to free. */
static char *
make_wrong(const Row *row, int v, const char *right, size_t *bytes, int32_t m)
{
	GvMessage	header;
	size_t		head = sizeof(header);
	size_t		base = sizeof(header);
	size_t		wrong_bytes = *bytes;
	char	   *wrong;
	int64_t		count = row->items;

	memcpy(&header, right, sizeof(header));
	if (count > 0)
	{
		int64_t		before;

		/* how many they are is last in both heads */
		head += header.type == GV_MSG_PUT ? sizeof(GvPutRequest) :
			sizeof(GvArrayRequest);
		memcpy(&before, right + head - sizeof(before), sizeof(before));
		wrong_bytes = head + (*bytes - head) / (size_t) before *
			(size_t) count;
	}
	wrong_bytes = (size_t) ((int64_t) wrong_bytes + row->more);
	wrong = calloc(1, wrong_bytes);
	memcpy(wrong, right, wrong_bytes < *bytes ? wrong_bytes : *bytes);
	header.length = (uint32_t) (wrong_bytes - sizeof(header));
	memcpy(wrong, &header, sizeof(header));
	if (count > 0)
		memcpy(wrong + head - sizeof(count), &count, sizeof(count));
	if (row->in_chunk)
		base = last_chunk(right, *bytes, m);
	if (row->is_real && row->width == sizeof(float))
	{
		float		number = (float) row->reals[v];

		memcpy(wrong + base + row->at, &number, sizeof(number));
	}
	else if (row->nvalues > 0)
		memcpy(wrong + base + row->at, row->is_real ?
			   (const void *) &row->reals[v] : &row->values[v], row->width);
	*bytes = wrong_bytes;
	return wrong;
}

/* A new connection on which the first n messages have been taken. */
static int
hold(const TestServer *server, const Script *script, int n)
{
	int			fd = client_socket(server);
	int			i;

	for (i = 0; i < n; i++)
		OK(script_say(fd, script, i));
	return fd;
}

static void
check_row(const TestServer *server, const Script *talks, const Row *row, int v,
		  int32_t m)
{
	const Script *script = &talks[row->talk];
	const Script *source = script;
	int			place = find_message(script, row->message);
	int			which = place;
	int			code = row->code == 0 ? GV_REFUSED_PROTOCOL :
		row->code == TAKEN ? 0 : row->code;
	/* builders and sets do not go on after a refusal */
	bool		ends = code == GV_REFUSED_PROTOCOL ||
		(code != 0 && row->talk >= BUILDER);
	size_t		bytes;
	FREED char *wrong = NULL;
	OwnFd		fd = -1;
	int			got;

	if (row->talk == JOINER && which < 0)
	{
		source = &talks[BUILDER];
		which = find_message(source, row->message);
	}
	if (row->before != 0)
		place = find_message(script, row->before);
	if (row->after != 0)
		place = find_message(script, row->after) + 1;
	CHECK(which >= 0 && place > 0, "line %d: no such message", row->line);
	bytes = source->bytes[which];
	wrong = make_wrong(row, v, source->messages[which], &bytes, m);
	fd = hold(server, script, place);
	(void) client_send(fd, wrong, bytes);
	got = client_receive(fd, (GvMessageType) (row->message % 100), NULL, NULL);
	CHECK(got == code, "line %d, value %d: %d", row->line, v, got);
	CHECK(ends ? client_ended(fd) : client_ping(fd) == 0,
		  "line %d, value %d: afterwards", row->line, v);
}

/* The searches that rows of searches are about. */
static void
make_searches(Script *talks, const GvMirrorKey *plain,
			  const GvMirrorKey *keyed)
{
	static const float queries[4 * 4] = {0};
	GvSearchRequest request = {.key = *plain,.n = 1,.dims = 4,.probes = 1,
	.compare = 1,.capacity = 1};
	struct
	{
		GvTestRequest test;
		uint64_t	values[2];
		float		query[4];
	}			in_set = {{0, GV_TEST_SET, 0, 0, 2, 0}, {3, 7}, {0}};
	struct
	{
		GvTestRequest test;
		float		query[4];
	}			in_range = {{0, GV_TEST_RANGE, 1, UINT32_MAX, 0, 0}, {0}};

	script_hello(&talks[SESSION], GV_ROLE_SESSION);
	SAY_MORE(&talks[SESSION], SEARCH, request, queries, 16);
	request.n = 4;
	script_hello(&talks[BULK], GV_ROLE_BULK);
	SAY_MORE(&talks[BULK], SEARCH, request, queries, sizeof(queries));
	request.n = 1;
	request.key = *keyed;
	request.ntests = 1;
	script_hello(&talks[IN_RANGE], GV_ROLE_SESSION);
	SAY_MORE(&talks[IN_RANGE], SEARCH, request, &in_range, sizeof(in_range));
	request.nvalues = 2;
	script_hello(&talks[IN_SET], GV_ROLE_SESSION);
	SAY_MORE(&talks[IN_SET], SEARCH, request, &in_set, sizeof(in_set));
}

/*
 * A build goes on up to its training, and gets one who joins; its owner's
 * connection.
 */
static int
open_build(const TestServer *server, Script *talks, const TestIndex *index)
{
	const Script *owner = &talks[BUILDER];
	Script	   *joiner = &talks[JOINER];
	size_t		row = 4 * (size_t) index->spec.dims;
	GvRowsRequest encode = {0, 1};
	GvEncodeSampleRequest sampled = {0, 1, 0};
	GvJoinRequest join = {0};
	FREED void *reply = NULL;
	int			fd = hold(server, owner, 1);
	int			i;

	(void) client_send(fd, owner->messages[1], owner->bytes[1]);
	OK(client_receive(fd, GV_MSG_BUILD, &reply, NULL));
	if (reply != NULL)
		join.id = ((GvBuildReply *) reply)->id;
	for (i = 2; i <= find_message(owner, NTH(0, TRAIN)); i++)
		OK(script_say(fd, owner, i));
	script_hello(joiner, GV_ROLE_BUILDER);
	SAY(joiner, JOIN, join);
	SAY_MORE(joiner, ENCODE_ROWS, encode, index->centroids, row);
	SAY(joiner, ENCODE_SAMPLE, sampled);
	return fd;
}

/* Finished, n positions to go to this offset of memory. */
static void
check_place(const TestServer *server, const Script *exact,
			const TestMemory *memory, int64_t n, int64_t offset,
			const char *what)
{
	GvGetRequest request = {GV_SET_POSITIONS, 0, 0, n, offset};
	int			fd = hold(server, exact, find_message(exact, NTH(0, GET)));

	CHECK(memory_pass(fd, MEMORY_BYTES, &memory->fd, 1) == 0, "memory");
	client_cut(fd, ASK(fd, GV_MSG_GET, request), what);
}

/* Places for outputs that are none; nothing is written anywhere. */
static void
check_places(const TestServer *server, const Script *exact)
{
	OwnMemory	memory = memory_make(F_SEAL_SHRINK);
	OwnMemory	constant = memory_make(F_SEAL_SHRINK);
	int64_t		end = (int64_t) MEMORY_BYTES;
	OwnFd		fd = client_open(server, GV_ROLE_SET);
	size_t		i;

	check_place(server, exact, &memory, 1, -2, "before it");
	check_place(server, exact, &memory, 1, -8, "eight before it");
	check_place(server, exact, &memory, 1, INT64_MIN, "far before it");
	check_place(server, exact, &memory, 1, end, "behind it");
	check_place(server, exact, &memory, 100, end - 792, "beyond its end");
	check_place(server, exact, &memory, 1, INT64_MAX - 7, "far behind it");
	check_place(server, exact, &memory, 1, 4, "not aligned");
	check_place(server, exact, &memory, 1, end - 12, "at an odd end");
	check_place(server, exact, &memory, 101, 0, "too many");
	for (i = 0; i < MEMORY_BYTES && memory.bytes[i] == 0; i++)
		;
	CHECK(i == MEMORY_BYTES, "byte %zu was written", i);
	CHECK(fcntl(constant.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0 &&
		  memory_pass(fd, MEMORY_BYTES, &constant.fd, 1) ==
		  GV_REFUSED_NO_MEMORY, "memory that cannot be written");
}

/* Of rows that are kept what cannot be is asked. */
static void
check_asks(const TestServer *server)
{
	OwnSet		own = set_make(TEST_OWN_SET);
	GvSetSpec	keeper = set_keeper(&own.spec);
	GvSetSpec	wrong[] = {own.spec, own.spec, own.spec, keeper};
	int			fd;
	int			i;

	wrong[0].device = 1;
	wrong[1].first = own.n[GV_SET_ROWS] - 5;
	wrong[2].nrows--;
	for (i = 0; i < 4; i++)
	{
		fd = client_open(server, GV_ROLE_SET);
		CHECK(set_begin(fd, &keeper) == 0 &&
			  set_bring(fd, &own, GV_SET_ROWS) == 0, "keep");
		client_cut(fd, set_ask(fd, &wrong[i]), "asked");
	}
	fd = client_open(server, GV_ROLE_SET);
	CHECK(set_begin(fd, &keeper) == 0, "keep");
	client_cut(fd, ASK_PLAIN(fd, GV_MSG_RUN), "run what was not asked");
}

void
test_wrong(void)
{
	TestServer	server = server_start(NULL);
	OwnIndex	index = make_index(GV_L2, 4, 2, 5, 3, 0, false);
	OwnIndex	keyed = make_index(GV_L2, 4, 2, 6, 2, 9, false);
	GvMirrorKey keys[3] = {test_key(1), test_key(2), test_key(3)};
	int			loader = client_open(&server, GV_ROLE_LOADER);
	int			session = client_open(&server, GV_ROLE_SESSION);
	int			bystander = client_open(&server, GV_ROLE_SET);
	OwnSet		exact = set_make(set_of[EXACT]);
	Script		talks[NTALKS] = {0};
	GvStatusReply totals;
	int64_t		nabsent = 0;
	int			owner = -1;
	int			i;
	int			v;

	resize_list(&index, &index.lists[4], 80, 0);
	give_form(&keyed, (GvKeyForm) {1, {GV_KEY_ORDERED}, {4}});
	CHECK(load_all(loader, &keys[0], &index) == 0 &&
		  load_all(loader, &keys[1], &keyed) == 0, "load");
	CHECK(set_begin(bystander, &exact.spec) == 0 &&
		  set_bring_all(bystander, &exact) == 0, "a bystander");
	make_searches(talks, &keys[0], &keys[1]);
	loader_script(&talks[LOADER], &keys[2], &index);
	rows_script(&talks[ROWS_LOADER], &keys[2], &index);
	builder_script(&talks[BUILDER], &index);
	/* of a device what depends on the engine is not asked */
	if (!test_device)
		owner = open_build(&server, talks, &index);
	for (i = EXACT; i < NTALKS; i++)
		set_script(&talks[i], set_of[i]);
	for (i = 0; i < NROWS; i++)
	{
		int			nvalues = rows[i].nvalues > 0 ? rows[i].nvalues : 1;

		for (v = 0; v < nvalues && !(test_device && rows[i].talk >= BUILDER);
			 v++)
		{
			check_row(&server, talks, &rows[i], v, index.spec.m);
			if (rows[i].talk == LOADER || rows[i].talk == ROWS_LOADER)
				OK(load_drop(loader, &keys[2]));
			nabsent += rows[i].code == GV_REFUSED_NO_MIRROR;
		}
	}
	totals = load_totals(session);
	CHECK(totals.refusals[GV_REFUSED_NO_MIRROR] == nabsent &&
		  totals.refusals[GV_REFUSED_PROTOCOL] > 50, "counters");
	if (!test_device)
	{
		check_places(&server, &talks[EXACT]);
		check_asks(&server);
		CHECK(client_ping(owner) == 0, "the owner of a build");
	}
	OK(search_check(session, &keys[0], &index));
	OK(set_finish(bystander, &exact));
	for (i = 0; i < 2; i++)
		OK(load_drop(loader, &keys[i]));
	for (i = 0; i < NTALKS; i++)
		free_script(&talks[i]);
	client_close(&owner);
	close(bystander);
	close(session);
	close(loader);
	if (!test_device)
		builder_unused(&server, "after all that");
	server_end(&server);
}
