/*
 * loader.h
 *		Bringing a mirror to gpuvecd.  Private to src/client.
 *
 * The rhythm is: lock the index, recheck that it is the one, copy a message's
 * worth into memory, unlock; then send.  So a session that waits for the index
 * waits for milliseconds, and never for gpuvecd.
 */
#ifndef IVFPQ_LOADER_H
#define IVFPQ_LOADER_H

#include "client/mirrorqueue.h"
#include "client/msgring.h"
#include "storage/bufmgr.h"

#include "page/listread.h"

typedef enum IvfpqLoadResult
{
	IVFPQ_LOAD_DONE,
	IVFPQ_LOAD_GONE,			/* there is no such index any more */
	IVFPQ_LOAD_ABSENT,			/* catch-up: there is no such mirror any more */
	IVFPQ_LOAD_YIELD,			/* a session wants the database for itself */
	IVFPQ_LOAD_LOCKED,			/* nothing is begun, the index is locked */
	IVFPQ_LOAD_NO_MEMORY,		/* gpuvecd has no memory */
	IVFPQ_LOAD_FAILED			/* see `error` */
} IvfpqLoadResult;

typedef struct IvfpqLoad
{
	GvMirrorKey key;
	char		name[NAMEDATALEN];	/* of the index */
	char		error[160];		/* when it did not work */
	bool		fresh;			/* it brought a whole mirror */
	int64		postings;		/* brought, or found there, in this pass */
	int64		expected;		/* of a whole pass */

	/* while the index is locked */
	Relation	index;			/* NULL: it is not */
	IvfpqMetaData meta;

	/* as long as the load */
	MemoryContext context;
	BufferAccessStrategy strategy;
	IvfpqListReader reader;
	int			code_bytes;
	Size		keys_bytes;		/* of a block */
	IvfpqChannel *channel;
	IvfpqRing	ring;			/* two slots: one is filled while gpuvecd
								 * takes in the other */

	/* GvListsRequest and chunks, values of an array, or refine records */
	Size		capacity;		/* bytes of a message: what is copied under
								 * one lock */
	char	   *message;		/* [capacity] in the slot at hand */
	Size		used;
	int			nchunks;

	/* refine records of the postings in the message */
	bool		note_records;	/* they are to be sent */
	ItemPointerData *addresses; /* [addresses_capacity] */
	int64		naddresses;
	int64		addresses_capacity;
	char	   *records;		/* [naddresses] GvRefineItem, once read */
} IvfpqLoad;

/* load.c */

/* loader.c */

/* loader.c */
typedef enum IvfpqChunkResult
{
	IVFPQ_CHUNK_DONE,			/* in the message, or nothing to do */
	IVFPQ_CHUNK_FULL,			/* it does not fit into the message */
	IVFPQ_CHUNK_CHANGED			/* the list was rewritten meanwhile */
} IvfpqChunkResult;

/* A list that is longer than a message, on its way. */
typedef struct IvfpqLongList
{
	int32		list;
	GvListState state;			/* as when it was begun */
	uint32		nblocks;
	uint32		next;			/* block to send next */
	IvfpqAddress *addresses;	/* [nblocks] */
} IvfpqLongList;


/* loader.c */

#endif							/* IVFPQ_LOADER_H */
