/*
 * engine.h
 *		Calls of the engine: status, interrupts, memory, keys (engine.c).
 */
#ifndef IVFPQ_ENGINE_H
#define IVFPQ_ENGINE_H

#include "engine/gv_engine.h"
#include "page/format.h"

extern const GvStop ivfpq_stop;

extern void IvfpqCheckStatus(GvStatus status);
extern void *IvfpqAllocScratch(Size size, void **chunk);
extern void IvfpqTopKResize(GvTopK *top, int capacity);
extern bool IvfpqWantsBlock(const void *condition,
							const IvfpqSlotHeader *header,
							const char *keys);

#endif							/* IVFPQ_ENGINE_H */
