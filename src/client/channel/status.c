/*
 * status.c
 *		What gpuvecd says of itself.
 */
#include "postgres.h"

#include "client/channel/channel.h"
#include "utils/memutils.h"

/*
 * Ask for the status: *head, and *mirrors [head->nmirrors] in the current
 * memory context.
 */
IvfpqServed
IvfpqAskStatus(IvfpqChannel *channel, GvStatusReply *head,
			   GvMirrorStatus **mirrors)
{
	IvfpqServed served = IvfpqChannelAsk(channel, GV_MSG_STATUS, NULL, 0,
										 NULL, 0, GV_MAX_MESSAGE);
	const char *body;
	uint32		length;
	Size		size;

	if (served != IVFPQ_SERVED)
		return served;
	body = IvfpqAnswerBody(channel);
	length = IvfpqAnswerLength(channel);
	if (length >= sizeof(*head))
		memcpy(head, body, sizeof(*head));
	if (length < sizeof(*head) || head->nmirrors < 0 ||
		length - sizeof(*head) != head->nmirrors * sizeof(GvMirrorStatus))
		return IvfpqChannelReject(channel);
	head->device[sizeof(head->device) - 1] = '\0';
	size = head->nmirrors * sizeof(GvMirrorStatus);
	*mirrors = palloc(Max(size, 1));
	memcpy(*mirrors, body + sizeof(*head), size);
	return IVFPQ_SERVED;
}
