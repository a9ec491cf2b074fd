/*
 * gv_engines.h
 *		The table of the engines that a gpuvecd has.
 *
 * A program has the engines of the file that it is linked with, because that
 * file defines the table.  The release links server/engines.c, whose table has
 * CUDA or no engine.  The test build links test/oracle/oracle.c, which adds
 * the portable engine.
 */
#ifndef GV_ENGINES_H
#define GV_ENGINES_H

#include "engine/gv_set.h"
#include "engine/mirror/gv_builder.h"

/* One engine.  The option --engine selects an engine by mirrors->name. */
typedef struct GvEngine
{
	const GvMirrorBackend *mirrors; /* NULL in the element after the last
									 * engine */
	const GvBuilderBackend *builders;
	const GvSetBackend *sets;
	bool		on_cpu;
} GvEngine;

extern const GvEngine gv_engines[];

#endif							/* GV_ENGINES_H */
