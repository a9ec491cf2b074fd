/*
 * engine.h
 *		Calls of the engine: status, interrupts, memory (engine.c).
 */
#ifndef IVFPQ_ENGINE_H
#define IVFPQ_ENGINE_H

#include "engine/gv_engine.h"

extern const GvStop ivfpq_stop;

extern void IvfpqCheckStatus(GvStatus status);
extern void *IvfpqAllocScratch(Size size, void **chunk);
extern void IvfpqTopKResize(GvTopK *top, int capacity);

#endif							/* IVFPQ_ENGINE_H */
