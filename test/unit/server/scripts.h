/*
 * scripts.h
 *		What clients of every role say, as messages (scripts.c).
 */
#ifndef SCRIPTS_H
#define SCRIPTS_H

#include "client.h"

#define MAX_MESSAGES	16

/* A conversation: messages with their headers. */
typedef struct Script
{
	int			n;
	char	   *messages[MAX_MESSAGES];
	size_t		bytes[MAX_MESSAGES];
}			Script;

extern void loader_script(Script *script, const GvMirrorKey *key,
						  const TestIndex *index);
extern void builder_script(Script *script, const TestIndex *index);
extern void set_script(Script *script, int which);
extern void supervisor_script(Script *script, const GvMirrorKey *key);
extern void session_script(Script *script, const GvMirrorKey *key,
						   const TestIndex *index);
extern void bulk_script(Script *script, const GvMirrorKey *key,
						const TestIndex *index);
extern void free_script(Script *script);

#endif							/* SCRIPTS_H */
