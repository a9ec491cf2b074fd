/*
 * memory.h
 *		Memory to share with gpuvecd.  Private to src/client.
 */
#ifndef IVFPQ_MEMORY_H
#define IVFPQ_MEMORY_H

extern int	IvfpqMakeMemory(Size bytes);

#endif							/* IVFPQ_MEMORY_H */
