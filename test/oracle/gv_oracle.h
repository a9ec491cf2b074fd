/*
 * gv_oracle.h
 *		The portable engine's mirrors and builders, with which tests compare
 *		those of other engines.
 */
#ifndef GV_ORACLE_H
#define GV_ORACLE_H

#include "engine/mirror/gv_builder.h"

extern const GvMirrorBackend gv_cpu_mirrors;
extern const GvBuilderBackend gv_cpu_builders;

#endif							/* GV_ORACLE_H */
