/*
 * exchange.c
 *		Copies on their way from the participant that placed the row to the one
 *		that writes the list.
 *
 * Lists are cut into ranges.  Each participant of a build puts the copies that
 * it makes into a temporary file for each range.  When all have done so, the
 * writer of a range reads its files of all participants.  These are files
 * because shared memory may be small (containers have 64 MB); what is written
 * here is read at once, from the system's cache.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "am/team/exchange.h"

#define NAME_BYTES		64

static void
make_name(char *name, const char *what, int number, int from)
{
	snprintf(name, NAME_BYTES, "%s.%d.%d", what, number, from);
}

/* A file to write to; after IvfpqExchangeClose other participants read it. */
BufFile *
IvfpqExchangeCreate(SharedFileSet *files, const char *what, int number,
					int from)
{
	char		name[NAME_BYTES];

	make_name(name, what, number, from);
	return BufFileCreateFileSet(&files->fs, name);
}

void
IvfpqExchangeClose(BufFile *file)
{
	BufFileExportFileSet(file);
	BufFileClose(file);
}

/* A participant's file; NULL: it has made none. */
BufFile *
IvfpqExchangeOpen(SharedFileSet *files, const char *what, int number,
				  int from)
{
	char		name[NAME_BYTES];

	make_name(name, what, number, from);
	return BufFileOpenFileSet(&files->fs, name, O_RDONLY, true);
}

/* Read so many bytes; false: the file was at its end. */
bool
IvfpqExchangeRead(BufFile *file, void *bytes, Size n)
{
	Size		got = BufFileRead(file, bytes, n);

	if (got != 0 && got != n)
		elog(ERROR, "a temporary file of the build ends early");
	return got != 0;
}

/*
 * Begin, as participant `me`, with about nranges ranges; memory from the
 * current context.
 */
void
IvfpqExchangeBegin(IvfpqExchange *exchange, SharedFileSet *files, int me,
				   int nranges, int nlists, int code_bytes)
{
	exchange->files = files;
	exchange->me = me;
	exchange->nlists = nlists;
	exchange->code_bytes = code_bytes;
	exchange->range_lists = (nlists + nranges - 1) / nranges;
	exchange->nranges = (nlists + exchange->range_lists - 1) /
		exchange->range_lists;
	exchange->ranges = palloc0(exchange->nranges * sizeof(BufFile *));
	exchange->item = palloc(sizeof(IvfpqStoredCopy) + code_bytes);
}

/* Put a copy that belongs to a list. */
void
IvfpqExchangePut(IvfpqExchange *exchange, uint32 list, const IvfpqCopy *copy)
{
	int			range = (int) list / exchange->range_lists;

	if (exchange->ranges[range] == NULL)
		exchange->ranges[range] = IvfpqExchangeCreate(exchange->files, "range",
													  range, exchange->me);
	IvfpqStoreCopy(exchange->item, list, copy, exchange->code_bytes);
	BufFileWrite(exchange->ranges[range], exchange->item,
				 sizeof(IvfpqStoredCopy) + exchange->code_bytes);
}

/* All copies of this participant have been put: others may read them. */
void
IvfpqExchangeDone(IvfpqExchange *exchange)
{
	for (int range = 0; range < exchange->nranges; range++)
		if (exchange->ranges[range] != NULL)
			IvfpqExchangeClose(exchange->ranges[range]);
}

/*
 * Get a range's copies, of all participants, into *copies, which has begun and
 * counts lists from the range's first on.
 */
void
IvfpqExchangeGet(IvfpqExchange *exchange, int nparticipants, int range,
				 IvfpqCopies *copies)
{
	Size		bytes = sizeof(IvfpqStoredCopy) + exchange->code_bytes;
	int			first = IvfpqExchangeFirst(exchange, range);

	for (int from = 0; from < nparticipants; from++)
	{
		BufFile    *file = IvfpqExchangeOpen(exchange->files, "range", range,
											 from);

		if (file == NULL)
			continue;
		while (IvfpqExchangeRead(file, exchange->item, bytes))
		{
			IvfpqCopy	copy;

			CHECK_FOR_INTERRUPTS();
			IvfpqTakeCopy(exchange->item, exchange->item + 1, &copy);
			IvfpqCopiesPut(copies, exchange->item->list - first, &copy);
		}
		BufFileClose(file);
	}
}
