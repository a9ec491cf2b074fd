/*
 * remotesearch.h
 *		What all ways of asking for searches have in common (remotesearch.c): whether to
 *		ask, what an answer may be, and what is remembered of it.  Private to
 *		src/client.
 */
#ifndef IVFPQ_REMOTESEARCH_H
#define IVFPQ_REMOTESEARCH_H

#include "client/client.h"


#endif							/* IVFPQ_REMOTESEARCH_H */
