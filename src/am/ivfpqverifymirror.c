/*
 * ivfpqverifymirror.c
 *		Is gpuvecd's mirror of an index what the index's pages are?
 *
 * A mirror may be behind, and that is no fault: of a list that was rewritten,
 * or in which copies died, since the mirror got it nothing can be said, of
 * one that only grew the copies that the mirror has are compared.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "am/ivfpq.h"
#include "client/ivfpqclient.h"

/* Lists asked for at once; gpuvecd sends as many of them as it likes. */
#define LISTS_AT_ONCE	4096

typedef struct MirrorCheck
{
	Relation	index;
	const IvfpqMetaData *meta;
	IvfpqListReader reader;
	int			code_bytes;
	void	   *arg;
	IvfpqProblem report;
} MirrorCheck;

/* Is copy i of the view the one of block b of the piece? */
static bool
same_copy(const MirrorCheck *check, const IvfpqBlockView *view,
		  const GvListPiece *piece, int b, int i)
{
	const ItemPointerData *rowids = view->refine ? view->refine : view->tids;
	const uint8 *codes = piece->codes +
		(Size) b * check->code_bytes * GV_BLOCK;
	Size		at = (Size) b * GV_BLOCK + i;

	if (memcmp(&rowids[i], piece->rowids + 3 * at,
			   sizeof(ItemPointerData)) != 0 ||
		memcmp(&view->t[i], &piece->t[at], sizeof(float)) != 0)
		return false;
	for (int p = 0; p < check->code_bytes; p++)
		if (view->codes[p * GV_BLOCK + i] != codes[p * GV_BLOCK + i])
			return false;
	return true;
}

/*
 * Copies, the first `count` of the block, that are not in block b of the piece
 * as they are on the page.
 */
static int
count_differences(const MirrorCheck *check, const IvfpqBlockView *view,
				  int count, const GvListPiece *piece, int b)
{
	int			differences = 0;

	for (int i = 0; i < count; i++)
	{
		bool		live = (view->live >> i & 1) != 0;

		if (live != ((piece->live[b] >> i & 1) != 0) ||
			(live && !same_copy(check, view, piece, b, i)))
			differences++;
	}
	return differences;
}

/*
 * Compare a piece with its list.  What is found counts only if no copy of the
 * list died and nobody rewrote it until the end.
 */
static void
check_piece(MirrorCheck *check, const GvListPiece *piece,
			const GvListState *state)
{
	IvfpqListReader *reader = &check->reader;
	IvfpqBlockView view;
	IvfpqListEntry entry;
	int			differences = 0;
	char		problem[128];

	IvfpqListOpen(reader, (uint32) piece->list);
	if (reader->entry.gen != state->gen ||
		reader->entry.del_seq != state->del_seq)
		return;
	if (state->nitems > reader->entry.nitems)
		differences = (int) (state->nitems - reader->entry.nitems);
	while (IvfpqListNext(reader, &view) && !reader->reread)
	{
		int			b = (int) (reader->nleft / GV_BLOCK) - piece->first;

		if (b >= 0 && b < piece->nblocks && reader->nleft < state->nitems)
			differences += count_differences(check, &view,
											 Min(state->nitems - reader->nleft,
												 GV_BLOCK), piece, b);
	}
	IvfpqListEntryRead(check->index, check->meta, (uint32) piece->list,
					   &entry);
	if (differences == 0 || entry.gen != state->gen ||
		entry.del_seq != state->del_seq)
		return;
	snprintf(problem, sizeof(problem),
			 "%d copies of the list are not in gpuvecd's mirror as they are on pages",
			 differences);
	check->report(check->arg, true, InvalidBlockNumber, (uint32) piece->list,
				  problem);
}

/* Check the lists from `first` on that one answer holds; the next one. */
static int
check_lists(MirrorCheck *check, int first)
{
	int			nlists = check->meta->nlists;
	IvfpqMirrorPieces pieces;
	GvListPiece piece;
	GvListState state;
	const char *reason;
	int			next = first;
	char		problem[320];

	if (IvfpqMirrorRead(check->index, check->meta, first,
						Min(nlists - first, LISTS_AT_ONCE), &pieces,
						&reason) != IVFPQ_SERVED)
	{
		snprintf(problem, sizeof(problem),
				 "gpuvecd's mirror is not compared: %s", reason);
		check->report(check->arg, false, InvalidBlockNumber, IVFPQ_NO_LIST,
					  problem);
		return nlists;
	}
	while (IvfpqMirrorNext(&pieces, &piece, &state))
	{
		CHECK_FOR_INTERRUPTS();
		if (piece.list < first || piece.list >= nlists)
			break;
		check_piece(check, &piece, &state);
		next = Max(next, piece.list + 1);
	}
	if (next == first || pieces.next != pieces.end)
	{
		check->report(check->arg, true, InvalidBlockNumber, (uint32) next,
					  "gpuvecd's answer makes no sense");
		return nlists;
	}
	return next;
}

/* Report what of the index's mirror is not as the pages are. */
void
IvfpqVerifyMirror(Relation index, IvfpqProblem report, void *arg)
{
	IvfpqModel *model = IvfpqModelGet(index);
	MirrorCheck check = {
		.index = index,
		.meta = &model->meta,
		.code_bytes = gv_code_bytes(model->meta.pq_dim),
		.arg = arg,
		.report = report
	};

	if (model->meta.nlists == 0)
		return;					/* it has none */
	IvfpqListReaderInit(&check.reader, index, &model->meta, NULL);
	for (int next = 0; next < model->meta.nlists;)
		next = check_lists(&check, next);
	IvfpqListReaderFree(&check.reader);
}
