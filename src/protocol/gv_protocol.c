/*
 * gv_protocol.c
 *		Code that both ends of the protocol, gpuvecd and the extension, share.
 */
#include "protocol/gv_protocol.h"

#include <stddef.h>

/* Structs are sent as they are in memory, so they must have no holes. */
#define SIZE_IS(type, bytes) \
	_Static_assert(sizeof(type) == (bytes), #type " has padding")

SIZE_IS(GvMessage, 8);
SIZE_IS(GvHello, 24);
SIZE_IS(GvWelcome, 48);
SIZE_IS(GvRefusal, 256);
SIZE_IS(GvMirrorKey, 24);
SIZE_IS(GvListState, 12);
SIZE_IS(GvSearchRequest, 72);
SIZE_IS(GvTestRequest, 32);
SIZE_IS(GvSearchReply, 88);
SIZE_IS(GvProbeReply, 20);
SIZE_IS(GvKeyForm, 20);
SIZE_IS(GvMirrorSpec, 64);
SIZE_IS(GvBeginRequest, 88);
SIZE_IS(GvArrayRequest, 48);
SIZE_IS(GvListsRequest, 32);
SIZE_IS(GvChunk, 28);
SIZE_IS(GvKeyRequest, 24);
SIZE_IS(GvCurrentRequest, 32);
SIZE_IS(GvRangeRequest, 40);
SIZE_IS(GvAttachShmRequest, 8);
SIZE_IS(GvInShmRequest, 8);
SIZE_IS(GvBuilderSpec, 80);
SIZE_IS(GvBuildReply, 8);
SIZE_IS(GvJoinRequest, 8);
SIZE_IS(GvRowsRequest, 8);
SIZE_IS(GvRowsReply, 8);
SIZE_IS(GvEncodeSampleRequest, 16);
SIZE_IS(GvTrainReply, 8);
SIZE_IS(GvGetModelRequest, 24);
SIZE_IS(GvEncodeReply, 8);
SIZE_IS(GvCalibMirrorRequest, 8);
SIZE_IS(GvSetSpec, 64);
SIZE_IS(GvPutRequest, 16);
SIZE_IS(GvSetDone, 24);
SIZE_IS(GvGetRequest, 32);
SIZE_IS(GvStatusReply, 312);
SIZE_IS(GvMirrorStatus, 104);

/* Returns a refusal's name, for views and logs. */
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
		[GV_REFUSED_INCARNATION] = "other life",
	};

	return code < GV_NREFUSALS ? names[code] : "unknown";
}
