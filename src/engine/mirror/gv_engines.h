/*
 * gv_engines.h
 *		The engines of a gpuvecd.
 *
 * Which ones a program has is decided when it is linked, by the file that
 * defines the table: server/engines.c has CUDA or nothing, and is the
 * release's; test/oracle/oracle.c has the portable engine besides, and is the
 * test build's.
 */
#ifndef GV_ENGINES_H
#define GV_ENGINES_H

#include "engine/gv_set.h"
#include "engine/mirror/gv_builder.h"

/* mirrors->name is what the option --engine says. */
typedef struct GvEngine
{
	const GvMirrorBackend *mirrors; /* NULL behind the last engine */
	const GvBuilderBackend *builders;
	const GvSetBackend *sets;
	bool		on_cpu;
} GvEngine;

extern const GvEngine gv_engines[];

#endif							/* GV_ENGINES_H */
