/*
 * messages.c
 *		What clients may say: who says it, how long it is, when it has its
 *		turn, and which function answers it.
 *
 * The table is all that validation (connection.c, shared.c) and dispatch know
 * of messages; protocol/gv_protocol.h says what they mean.
 */
#include "server/gv_server.h"

/* Who sends it. */
#define STRANGER	(1U << 0)
#define SESSION		(1U << GV_ROLE_SESSION)
#define LOADER		(1U << GV_ROLE_LOADER)
#define BUILDER		(1U << GV_ROLE_BUILDER)
#define SET			(1U << GV_ROLE_SET)
#define BULK		(1U << GV_ROLE_BULK)
#define SUPERVISOR	(1U << GV_ROLE_SUPERVISOR)

/*
 * Its length: none, that of a struct, or of one and more; of a hello those of
 * other versions, too, so that these can be told.
 */
#define NONE		0, 0
#define IS(type)	sizeof(type), sizeof(type)
#define FROM(type)	sizeof(type), GV_MAX_MESSAGE
#define HELLO		offsetof(GvHello, role), 4 * sizeof(GvHello)
#define BEYOND(type) sizeof(type) + 1, GV_MAX_MESSAGE
#define VECTOR(type) sizeof(type) + 1, sizeof(type) + 4 * GV_MAX_DIMS
#define SEARCH		sizeof(GvSearchRequest) + 1, \
	sizeof(GvSearchRequest) + sizeof(GvTestRequest) * GV_MAX_TESTS + \
	sizeof(uint64_t) * GV_MAX_VALUES + 4 * GV_MAX_DIMS

static const GvMessageKind kinds[GV_MSG_OK] = {
	[GV_MSG_HELLO] = {STRANGER, HELLO, GV_ANY_TIME, false, gv_session_hello},
	[GV_MSG_PING] = {SESSION | LOADER | BUILDER | SET | BULK | SUPERVISOR, NONE,
	GV_ANY_TIME, false, gv_session_ping},
	[GV_MSG_STATUS] = {SESSION | LOADER | SUPERVISOR, NONE, GV_ANY_TIME, false,
	gv_session_status},
	[GV_MSG_SEARCH] = {SESSION | LOADER, SEARCH, GV_ANY_TIME, false,
	gv_session_search},

	[GV_MSG_BEGIN] = {LOADER, IS(GvBeginRequest), GV_ANY_TIME, false,
	gv_loader_begin},
	[GV_MSG_ARRAY] = {LOADER, FROM(GvArrayRequest), GV_ANY_TIME, true,
	gv_chunks_array},
	[GV_MSG_LISTS] = {LOADER, FROM(GvListsRequest), GV_ANY_TIME, true,
	gv_chunks_lists},
	[GV_MSG_READY] = {LOADER, IS(GvKeyRequest), GV_ANY_TIME, false,
	gv_chunks_ready},
	[GV_MSG_CURRENT] = {LOADER, IS(GvCurrentRequest), GV_ANY_TIME, false,
	gv_chunks_current},
	[GV_MSG_STATES] = {LOADER, IS(GvRangeRequest), GV_ANY_TIME, false,
	gv_read_states},
	[GV_MSG_BLOCKS] = {LOADER, IS(GvRangeRequest), GV_ANY_TIME, false,
	gv_read_blocks},
	[GV_MSG_REFINE] = {LOADER, FROM(GvListsRequest), GV_ANY_TIME, true,
	gv_chunks_refine},
	[GV_MSG_DROP] = {LOADER | SUPERVISOR, IS(GvKeyRequest), GV_ANY_TIME, false,
	gv_loader_drop},
	[GV_MSG_VALUES] = {LOADER, IS(GvArrayRequest), GV_ANY_TIME, false,
	gv_read_values},
	[GV_MSG_RECORDS] = {LOADER, FROM(GvListsRequest), GV_ANY_TIME, false,
	gv_read_records},

	[GV_MSG_MEMORY] = {LOADER | SET, IS(GvMemoryRequest), GV_ANY_TIME, false,
	gv_shared_take},
	[GV_MSG_HERE] = {LOADER | SET, IS(GvHereRequest), GV_ANY_TIME, false,
	NULL},

	[GV_MSG_BUILD] = {BUILDER, VECTOR(GvBuilderSpec), GV_BEFORE_WORK, false,
	gv_build_begin},
	[GV_MSG_ROWS] = {BUILDER, BEYOND(GvRowsRequest), GV_DURING_WORK, false,
	gv_build_rows},
	[GV_MSG_TRAIN] = {BUILDER, NONE, GV_OWN_WORK, false, gv_build_train},
	[GV_MSG_TRAINED] = {BUILDER, IS(GvTrainedRequest), GV_OWN_WORK, false,
	gv_build_trained},
	[GV_MSG_ENCODE] = {BUILDER, BEYOND(GvRowsRequest), GV_DURING_WORK, false,
	gv_build_encoded},
	[GV_MSG_SAMPLED] = {BUILDER, IS(GvSampledRequest), GV_DURING_WORK, false,
	gv_build_sampled},
	[GV_MSG_CALIB_MIRROR] =
	{BUILDER, IS(GvCalibMirrorRequest), GV_OWN_WORK, false,
	gv_build_calib_mirror},
	[GV_MSG_CHUNKS] = {BUILDER, FROM(GvListsRequest), GV_DURING_WORK, false,
	gv_build_chunks},
	[GV_MSG_TRY] = {BUILDER, BEYOND(GvTryRequest), GV_OWN_WORK, false,
	gv_build_try},
	[GV_MSG_JOIN] = {BUILDER, IS(GvJoinRequest), GV_BEFORE_WORK, false,
	gv_build_join},

	[GV_MSG_SET] = {SET, IS(GvSetSpec), GV_ANY_TIME, false,
	gv_setwork_begin},
	[GV_MSG_PUT] = {SET, BEYOND(GvPutRequest), GV_DURING_WORK, true,
	gv_setwork_put},
	[GV_MSG_RUN] = {SET, NONE, GV_DURING_WORK, false, gv_setwork_run},
	[GV_MSG_GET] = {SET, IS(GvGetRequest), GV_DURING_WORK, false,
	gv_setwork_get},

	[GV_MSG_ASK] = {SET, IS(GvSetSpec), GV_DURING_WORK, false,
	gv_setwork_ask},

	[GV_MSG_SEARCHES] = {BULK, BEYOND(GvSearchesRequest), GV_ANY_TIME, false,
	gv_bulk_search},
};

/* See gv_server.h. */
const GvMessageKind *
gv_message_kind(const GvMessage *message)
{
	const GvMessageKind *kind;

	if (message->type >= GV_MSG_OK)
		return NULL;
	kind = &kinds[message->type];
	return kind->roles != 0 && message->length >= kind->least &&
		message->length <= kind->most ? kind : NULL;
}
