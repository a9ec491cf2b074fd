/*
 * scripts.h
 *		What clients of every role say, as messages (scripts.c).
 */
#ifndef SCRIPTS_H
#define SCRIPTS_H

#include "client.h"

#define MAX_MESSAGES	24
#define NSCRIPTS		(5 + TEST_SETS)
#define LOADER_SCRIPT	2		/* of any_script */
#define ROWS_SCRIPT		3
#define BUILDER_SCRIPT	4
#define SET_SCRIPT		5		/* the first of TEST_SETS */

/* A conversation: messages with their headers. */
typedef struct Script
{
	int			n;
	char	   *messages[MAX_MESSAGES];
	size_t		bytes[MAX_MESSAGES];
}			Script;

extern void script_add(Script *script, GvMessageType type, const void *head,
					   size_t head_bytes, const void *tail,
					   size_t tail_bytes);
extern void script_hello(Script *script, GvRole role);
extern int	script_say(int fd, const Script *script, int i);

/* Add a message with a head, with a tail behind it, or with neither. */
#define SAY_MORE(script, type, head, tail, bytes) \
	script_add(script, GV_MSG_##type, &(head), sizeof(head), tail, bytes)
#define SAY(script, type, head)	SAY_MORE(script, type, head, NULL, 0)
#define SAY_PLAIN(script, type) \
	script_add(script, GV_MSG_##type, NULL, 0, NULL, 0)

/* What a client of some role says. */
extern void loader_script(Script *script, const GvMirrorKey *key,
						  const TestIndex *index);
extern void rows_script(Script *script, const GvMirrorKey *key,
						const TestIndex *index);
extern void builder_script(Script *script, const TestIndex *index);
extern void set_script(Script *script, int which);
extern void supervisor_script(Script *script, const GvMirrorKey *key);
extern void session_script(Script *script, const GvMirrorKey *key,
						   const TestIndex *index);
extern void bulk_script(Script *script, const GvMirrorKey *key,
						const TestIndex *index);
extern void any_script(Script *script, int which, const GvMirrorKey *loaded,
					   const GvMirrorKey *other, const TestIndex *index);
extern void free_script(Script *script);

#endif							/* SCRIPTS_H */
