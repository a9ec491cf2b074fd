/*
 * exchange.h
 *		Copies on their way between the participants of a build
 *		(exchange.c).
 */
#ifndef IVFPQ_EXCHANGE_H
#define IVFPQ_EXCHANGE_H

#include "storage/buffile.h"
#include "storage/sharedfileset.h"

#include "am/team/copies.h"

typedef struct IvfpqExchange
{
	SharedFileSet *files;
	int			me;				/* participant */
	int			nlists;
	int			code_bytes;
	int			range_lists;	/* lists of a range; the last one may have
								 * fewer */
	int			nranges;
	BufFile   **ranges;			/* [nranges] of copies; NULL: none came */
	IvfpqStoredCopy *item;		/* with room for its code */
} IvfpqExchange;

extern void IvfpqExchangeBegin(IvfpqExchange *exchange, SharedFileSet *files,
							   int me, int nranges, int nlists,
							   int code_bytes);
extern void IvfpqExchangePut(IvfpqExchange *exchange, uint32 list,
							 const IvfpqCopy *copy);
extern void IvfpqExchangeDone(IvfpqExchange *exchange);
extern void IvfpqExchangeGet(IvfpqExchange *exchange, int nparticipants,
							 int range, IvfpqCopies *copies);

/* Files of other things from one participant to another. */
extern BufFile *IvfpqExchangeCreate(SharedFileSet *files, const char *what,
									int number, int from);
extern void IvfpqExchangeClose(BufFile *file);
extern BufFile *IvfpqExchangeOpen(SharedFileSet *files, const char *what,
								  int number, int from);
extern bool IvfpqExchangeRead(BufFile *file, void *bytes, Size n);

/* The first list of a range, or behind the last range. */
static inline int
IvfpqExchangeFirst(const IvfpqExchange *exchange, int range)
{
	return Min(range * exchange->range_lists, exchange->nlists);
}

#endif							/* IVFPQ_EXCHANGE_H */
