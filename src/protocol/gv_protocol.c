/*
 * gv_protocol.c
 *		Code that both ends of the protocol, gpuvecd and the extension, share.
 */
#include "engine/gv_set.h"
#include "engine/mirror/gv_builder.h"

/* Structs are sent as they are in memory, so they must have no holes. */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
#include "protocol/gv_protocol.h"
#pragma GCC diagnostic pop

/* Structs of the engine that are sent, too. */
_Static_assert(sizeof(GvKeyForm) == 20 && sizeof(GvMirrorSpec) == 72 &&
			   sizeof(GvBuilderSpec) == 80 && sizeof(GvSetSpec) == 64 &&
			   sizeof(GvSetDone) == 24, "a struct of the engine has padding");

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
