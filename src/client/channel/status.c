/*
 * status.c
 *		What gpuvecd says of itself.
 */
#include "postgres.h"

#include "client/channel/status.h"
#include "utils/memutils.h"

/*
 * Ask for the status: *head, and *mirrors [head->nmirrors] in the current
 * memory context.
 */
IvfpqServed
IvfpqAskStatus(GvRole role, int64 deadline, GvStatusReply *head,
			   GvMirrorStatus **mirrors, IvfpqReply *reply)
{
	IvfpqServed served = IvfpqExchange(role, GV_MSG_STATUS, NULL, 0,
									   GV_MAX_MESSAGE, deadline, reply);
	Size		size;

	if (served != IVFPQ_SERVED)
		return served;
	if (reply->length >= sizeof(*head))
		memcpy(head, reply->body, sizeof(*head));
	if (reply->length < sizeof(*head) || head->nmirrors < 0 ||
		reply->length - sizeof(*head) !=
		head->nmirrors * sizeof(GvMirrorStatus))
	{
		IvfpqDisconnect();
		reply->reason = "its answer makes no sense";
		return IVFPQ_BROKEN;
	}
	head->device[sizeof(head->device) - 1] = '\0';
	size = head->nmirrors * sizeof(GvMirrorStatus);
	*mirrors = palloc(Max(size, 1));
	memcpy(*mirrors, reply->body + sizeof(*head), size);
	return IVFPQ_SERVED;
}
