/*
 * gv_protocol.c
 *		What both ends of the protocol have to agree on in code.
 *
 * In gpuvecd and in the extension alike.
 */
#include "protocol/gv_protocol.h"

#include <stddef.h>

/* Structs travel as they are, so they must have no holes. */
#define SIZE_IS(type, bytes) \
	_Static_assert(sizeof(type) == (bytes), #type " has padding")

SIZE_IS(GvMessage, 8);
SIZE_IS(GvHello, 16);
SIZE_IS(GvWelcome, 48);
SIZE_IS(GvRefusal, 256);
SIZE_IS(GvMirrorKey, 24);
SIZE_IS(GvListState, 12);
SIZE_IS(GvSearchRequest, 40);
SIZE_IS(GvSearchReply, 32);
SIZE_IS(GvProbeReply, 20);
SIZE_IS(GvMirrorSpec, 48);
SIZE_IS(GvBeginRequest, 72);
SIZE_IS(GvArrayRequest, 48);
SIZE_IS(GvListsRequest, 32);
SIZE_IS(GvPiece, 28);
SIZE_IS(GvKeyRequest, 24);
SIZE_IS(GvRangeRequest, 40);
SIZE_IS(GvMemoryRequest, 8);
SIZE_IS(GvHereRequest, 8);
SIZE_IS(GvBuilderSpec, 80);
SIZE_IS(GvBuildReply, 8);
SIZE_IS(GvJoinRequest, 8);
SIZE_IS(GvRowsRequest, 8);
SIZE_IS(GvRowsReply, 8);
SIZE_IS(GvSampledRequest, 16);
SIZE_IS(GvTrainReply, 8);
SIZE_IS(GvTrainedRequest, 24);
SIZE_IS(GvEncodeReply, 8);
SIZE_IS(GvTrialRequest, 8);
SIZE_IS(GvTryRequest, 16);
SIZE_IS(GvSetSpec, 56);
SIZE_IS(GvPutRequest, 16);
SIZE_IS(GvSetDone, 24);
SIZE_IS(GvGetRequest, 24);
SIZE_IS(GvStatusReply, 296);
SIZE_IS(GvMirrorStatus, 96);

/* A refusal's name, for views and logs. */
const char *
gv_refusal_name(uint32_t code)
{
	static const char *const names[GV_NREFUSALS] = {
		[0] = "none",
		[GV_REFUSED_PROTOCOL] = "protocol",
		[GV_REFUSED_VERSION] = "version",
		[GV_REFUSED_FULL] = "full",
		[GV_REFUSED_NO_MIRROR] = "no mirror",
		[GV_REFUSED_LOADING] = "loading",
		[GV_REFUSED_EXISTS] = "exists",
		[GV_REFUSED_NO_MEMORY] = "no memory",
		[GV_REFUSED_FAILED] = "failed",
	};

	return code < GV_NREFUSALS ? names[code] : "unknown";
}

/* See gv_protocol.h. */
int
gv_length_allowed(uint32_t type, uint32_t length)
{
	switch (type)
	{
		case GV_MSG_HELLO:
			return length == sizeof(GvHello);
		case GV_MSG_PING:
		case GV_MSG_STATUS:
		case GV_MSG_TRAIN:
		case GV_MSG_RUN:
			return length == 0;
		case GV_MSG_SEARCH:
			return length > sizeof(GvSearchRequest) &&
				length <= sizeof(GvSearchRequest) + 4 * GV_MAX_DIMS;
		case GV_MSG_BEGIN:
			return length == sizeof(GvBeginRequest);
		case GV_MSG_VALUES:
			return length == sizeof(GvArrayRequest);
		case GV_MSG_RECORDS:
			return length >= sizeof(GvListsRequest) &&
				length <= GV_MAX_MESSAGE;
		case GV_MSG_ARRAY:
			return length >= sizeof(GvArrayRequest) &&
				length <= GV_MAX_MESSAGE;
		case GV_MSG_LISTS:
		case GV_MSG_REFINE:
		case GV_MSG_PIECES:
			return length >= sizeof(GvListsRequest) &&
				length <= GV_MAX_MESSAGE;
		case GV_MSG_READY:
		case GV_MSG_DROP:
			return length == sizeof(GvKeyRequest);
		case GV_MSG_STATES:
		case GV_MSG_BLOCKS:
			return length == sizeof(GvRangeRequest);
		case GV_MSG_MEMORY:
			return length == sizeof(GvMemoryRequest);
		case GV_MSG_HERE:
			return length == sizeof(GvHereRequest);
		case GV_MSG_BUILD:
			return length > sizeof(GvBuilderSpec) &&
				length <= sizeof(GvBuilderSpec) + 4 * GV_MAX_DIMS;
		case GV_MSG_ROWS:
		case GV_MSG_ENCODE:
			return length > sizeof(GvRowsRequest) && length <= GV_MAX_MESSAGE;
		case GV_MSG_TRAINED:
			return length == sizeof(GvTrainedRequest);
		case GV_MSG_SAMPLED:
			return length == sizeof(GvSampledRequest);
		case GV_MSG_TRIAL:
			return length == sizeof(GvTrialRequest);
		case GV_MSG_TRY:
			return length > sizeof(GvTryRequest) && length <= GV_MAX_MESSAGE;
		case GV_MSG_JOIN:
			return length == sizeof(GvJoinRequest);
		case GV_MSG_SET:
			return length == sizeof(GvSetSpec);
		case GV_MSG_PUT:
			return length > sizeof(GvPutRequest) && length <= GV_MAX_MESSAGE;
		case GV_MSG_GET:
			return length == sizeof(GvGetRequest);
		default:
			return 0;
	}
}
