/*
 * remote.c
 *		From a query to candidates, by gpuvecd and its mirror of the index.
 *
 * A mirror is behind at times.  An answer says which lists were probed and in
 * what state the mirror had each: (gen, nitems, del_seq).  Unless it is brief
 * (below) their directory entries are read when the answer is there, which is
 * after the scan's snapshot was taken and the pending rows were read; so all
 * rows that the snapshot sees are in the lists as these entries show them.  A
 * list is
 *
 *		current		the entry equals the state: postings found are kept
 *		grown		it has more postings, gen and del_seq are the same:
 *					postings found are kept, the others are scanned here
 *		stale		anything else: postings found are dropped, the list is
 *					scanned here
 *
 * The best of all these are the session's own result, pair for pair, if
 * nothing was dropped.  Otherwise postings of the lists that stand may be
 * missing, those behind the last pair of the answer, whose places the dropped
 * ones had.  None of them is before that pair; so if, even so, there are as
 * many pairs as were needed, and all no later than that one, no missing one
 * would have come among them.  If not, the answer is of no use.
 *
 * A search under a condition needs many lists.  So it takes the version of the
 * directory (page/metapage.c), after its snapshot and the pending rows as well,
 * and sends it along.  If that is what the mirror was known to be when it was
 * searched, the answer is brief: all lists are current, and it says of them no
 * more than sums.  README, "Coherence", has the proof.
 */
#include "postgres.h"

#include "portability/instr_time.h"

#include "am/common/enginecall.h"
#include "am/search/search.h"
#include "client/client.h"
#include "page/metapage.h"

/*
 * An answer is given up when more postings would have to be scanned than these
 * and half of the probed lists have: then it saves hardly any work.
 */
#define FEW_POSTINGS		4096

/* The mirror's state of a list, compared with the index's. */
enum
{
	LIST_CURRENT,
	LIST_GREW,
	LIST_STALE
};

/* Returns whether a list of the mirror is current, grown or stale. */
static uint8
get_list_status(const GvListState *mirrored, const IvfpqDirEntry *entry)
{
	if (mirrored->gen != entry->gen || mirrored->del_seq != entry->del_seq ||
		mirrored->nitems > entry->nitems)
		return LIST_STALE;
	return mirrored->nitems < entry->nitems ? LIST_GREW : LIST_CURRENT;
}

/*
 * Makes the probed lists search->lists, and compares the mirror's states of
 * them with the index's.  Returns false if too many postings would have to be
 * scanned; *behind tells whether there are any.
 */
static bool
compare_states(IvfpqSearch *search, const IvfpqAnswer *answer, bool *behind)
{
	IvfpqRemote *remote = &search->remote;
	int			n = answer->head.nprobed;
	int64		postings = 0;
	int64		missing = 0;

	IvfpqTopKResize(&search->lists, Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		search->lists.ids[i] = (uint64) answer->probed[i].list;
		search->lists.scores[i] = answer->probed[i].base;
	}
	search->lists.count = n;

	if (n > remote->capacity)
	{
		if (remote->capacity > 0)
		{
			pfree(remote->entries);
			pfree(remote->list_status);
		}
		remote->entries = palloc_extended(n * sizeof(IvfpqDirEntry),
										  MCXT_ALLOC_HUGE);
		remote->list_status = palloc(n);
		remote->capacity = n;
	}
	IvfpqDirEntriesRead(search->index, &search->model->meta,
						search->lists.ids, n, remote->entries);
	*behind = false;
	for (int i = 0; i < n; i++)
	{
		const GvListState *mirrored = &answer->probed[i].state;
		const IvfpqDirEntry *entry = &remote->entries[i];

		remote->list_status[i] = get_list_status(mirrored, entry);
		*behind |= remote->list_status[i] != LIST_CURRENT;
		postings += entry->nitems;
		if (remote->list_status[i] == LIST_STALE)
			missing += entry->nitems;
		else
			missing += entry->nitems - mirrored->nitems;
	}
	return missing <= FEW_POSTINGS || missing <= postings / 2;
}

/*
 * Returns how many of the mirror's postings of a list that is being read are
 * valid: the first ones, or none once the list is stale, which it stays.
 */
static uint32
valid_postings(const GvListState *mirrored, const IvfpqListReader *reader,
			   uint8 *status)
{
	if (get_list_status(mirrored, &reader->entry) == LIST_STALE)
		*status = LIST_STALE;
	return *status == LIST_STALE ? 0 : mirrored->nitems;
}

/*
 * Notes how many postings the i-th list has, and how many of these satisfy the
 * condition; `more` of them were scanned here.
 */
static void
note_count(IvfpqSearch *search, const IvfpqAnswer *answer, int i,
		   IvfpqListCount more)
{
	IvfpqListCount count = {0};

	if (search->condition == NULL)
		return;
	if (search->remote.list_status[i] != LIST_STALE)
	{
		count.postings = answer->probed[i].state.nitems;
		count.matched = answer->matches != NULL ? answer->matches[i] :
			count.postings;
	}
	search->matched += count.matched;
	count.postings += more.postings;
	count.matched += more.matched;
	search->counts[i] = count;
	search->ncounts = i + 1;
}

/*
 * Offers the postings of the i-th list that the mirror does not have to the
 * search.  The list may become stale after its entry was read, even in the
 * midst of this, when the reader starts anew: then all postings are offered,
 * some maybe twice, which the reader tells and the heap unites.
 */
static void
scan_missing(IvfpqSearch *search, int i, const IvfpqAnswer *answer)
{
	const GvListState *mirrored = &answer->probed[i].state;
	IvfpqListReader *reader = &search->reader;
	uint8	   *status = &search->remote.list_status[i];
	int64		before = search->postings_read;
	int64		matched = search->scan.matched;
	IvfpqListCount more;
	uint32		have;
	IvfpqBlockView view;

	IvfpqListOpen(reader, (uint32) search->lists.ids[i]);
	have = valid_postings(mirrored, reader, status);
	while (reader->nleft > have && IvfpqListNext(reader, &view))
	{
		have = valid_postings(mirrored, reader, status);
		if (reader->nleft < have)	/* it begins with postings that stand */
			view.live &= PG_UINT32_MAX << (have - reader->nleft);
		IvfpqSearchBlock(search, i, &view);
	}
	(void) valid_postings(mirrored, reader, status);
	more.postings = search->postings_read - before;
	more.matched = search->scan.matched - matched;
	note_count(search, answer, i, more);
	if (*status == LIST_STALE)
		search->report->counts[IVFPQ_COUNT_STALE_LISTS]++;
	else
		search->report->counts[IVFPQ_COUNT_TAIL_POSTINGS] += more.postings;
}

/*
 * Notes what the answer says of the refine records of its hits, in their order.
 * Not to be called if postings were scanned here: VACUUM frees the slot of a
 * dead row's record before it marks the row's postings, and a new row may take
 * it, so that one address stands in a mirrored list for the dead row and in a
 * newer posting for the new one.  The page tells which row it belongs to.
 */
static void
take_records(IvfpqSearch *search, const IvfpqAnswer *answer)
{
	IvfpqRemote *remote = &search->remote;
	int			n = answer->head.nhits;

	if (answer->bounds == NULL)
		return;
	if (n > remote->known_capacity)
	{
		if (remote->known)
			pfree(remote->known);
		remote->known = palloc_extended(n * sizeof(IvfpqKnownRecord),
										MCXT_ALLOC_HUGE);
		remote->known_capacity = n;
	}
	for (int i = 0; i < n; i++)
	{
		const GvBound *bound = &answer->bounds[i];
		IvfpqKnownRecord *known = &remote->known[i];
		ItemPointerData tid;

		memcpy(&tid, bound->rowid, sizeof(tid));
		known->address = IvfpqWordsToId(answer->hits[i].rowid);
		known->tid = IvfpqTidToId(&tid);
		known->bound = bound->bound;
		known->is_known = bound->known != 0;
	}
	remote->nknown = n;
}

/* Takes the answer's hits as they are: they are all that there is to find. */
static void
take_hits(IvfpqSearch *search, const IvfpqAnswer *answer)
{
	GvTopK	   *top = &search->candidates;

	for (int i = 0; i < answer->head.nhits; i++)
	{
		top->scores[i] = answer->hits[i].score;
		top->ids[i] = IvfpqWordsToId(answer->hits[i].rowid);
	}
	top->count = answer->head.nhits;
}

/*
 * Merges those hits of the answer that stand with what was scanned here.
 * Returns false if pairs that the answer does not have may belong among them.
 */
static bool
merge_hits(IvfpqSearch *search, const IvfpqAnswer *answer)
{
	GvTopK	   *top = &search->candidates;
	const GvHit *hit = answer->hits;
	const GvHit *end = hit + answer->head.nhits;
	bool		dropped = false;

	top->unique = false;
	for (; hit < end; hit++)
	{
		if (search->remote.list_status[hit->probe] == LIST_STALE)
			dropped = true;
		else
			gv_topk_push(top, hit->score, IvfpqWordsToId(hit->rowid));
	}
	gv_topk_sort(top);
	if (!dropped || answer->head.nhits < top->capacity)
		return true;
	hit = end - 1;
	if (top->count < top->capacity)
		return false;
	return top->scores[top->count - 1] < hit->score ||
		(top->scores[top->count - 1] == hit->score &&
		 top->ids[top->count - 1] <= IvfpqWordsToId(hit->rowid));
}

/*
 * Takes a full answer, whose lists have been compared.  Returns false if pairs
 * that it does not have may belong among the best.
 */
static bool
take_full(IvfpqSearch *search, const IvfpqAnswer *answer, bool behind,
		  double part)
{
	IvfpqListCount none = {0};
	bool		whole = true;

	search->ncounts = 0;
	if (search->condition != NULL)
		IvfpqCountsReserve(search, answer->head.nprobed);
	for (int i = 0; i < search->lists.count; i++)
		if (search->remote.list_status[i] != LIST_CURRENT)
			scan_missing(search, i, answer);
		else
			note_count(search, answer, i, none);
	if (behind)
	{
		IvfpqSearchSettle(search);
		whole = merge_hits(search, answer);
	}
	else
	{
		take_hits(search, answer);
		take_records(search, answer);
	}
	if (search->condition != NULL)
		search->sums = IvfpqSumCounts(search->counts, search->ncounts, part);
	return whole;
}

/*
 * Finds the best postings by an answer and by what it lacks.  Returns false if
 * the answer does not tell them.  Has the mirror catch up if it is behind, or
 * if the answer could have been brief, so that the next one will be.
 */
static bool
use_answer(IvfpqSearch *search, const IvfpqAnswer *answer,
		   const IvfpqQuestion *question)
{
	const GvSearchReply *head = &answer->head;
	bool		behind = false;
	bool		useful = head->is_brief ||
	compare_states(search, answer, &behind);

	search->remote.nearest = (uint32) head->nearest;
	if (useful)
	{
		IvfpqSearchOpen(search, question->capacity);
		search->lists_read += head->nprobed;
		search->postings_read += head->postings;
		search->near_count.matched = head->nearer > 0 ? question->rank : 0;
		search->near_count.nearer = head->nearer;
		search->near_count.variance = head->nearer_squares;
		if (head->is_brief)
		{
			search->ncounts = head->nprobed;
			search->matched += head->matches;
			search->sums.postings = head->nitems;
			search->sums.matched = head->matches;
			search->sums.weighted_postings = head->weighted_nitems;
			search->sums.weighted_matched = head->weighted_matches;
			take_hits(search, answer);
			take_records(search, answer);
		}
		else
			useful = take_full(search, answer, behind, question->part);
	}
	if (!useful || behind || (question->version != 0 && !head->is_brief))
		IvfpqAskStale(search->index, &search->model->meta, !useful);
	return useful;
}

/* Notes the engine that answered, for gpuvec_last_scan. */
void
IvfpqReportEngine(IvfpqScanReport *report, const char *engine)
{
	if (report->engine[0] != '\0' && strcmp(report->engine, engine) != 0)
		engine = "mixed";
	strlcpy(report->engine, engine, sizeof(report->engine));
}

/* Notes that gpuvecd is not asked, and the reason. */
void
IvfpqSearchNoServer(IvfpqSearch *search, const char *reason)
{
	IvfpqScanReport *report = search->report;

	search->remote.nknown = 0;
	IvfpqReportEngine(report, "session");
	report->fallback = IvfpqServerIsWanted() ? reason : NULL;
}

static int64
microseconds_since(instr_time began)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, began);
	return INSTR_TIME_GET_MICROSEC(now);
}

/*
 * Adds a message to gpuvecd to the report: what became of it, how long it took,
 * and the numbers of the answer, or of the first one.  n searches were answered
 * together.  If no answer came, head is NULL.
 */
static void
report_answer(IvfpqScanReport *report, IvfpqServed served, int64 trip_us,
			  const char *engine, const GvSearchReply *head, int n)
{
	IvfpqReportEngine(report, served == IVFPQ_SERVED ? engine : "session");
	report->fallback = NULL;
	if (served == IVFPQ_NOT_ASKED)
		return;
	report->asked = true;
	report->counts[IVFPQ_COUNT_TRIP_US] += trip_us;
	if (served != IVFPQ_SERVED)
		report->fallback = IvfpqServedName(served);
	if (head == NULL)
		return;
	report->answered = true;
	report->batch_size = n;
	report->counts[IVFPQ_COUNT_QUEUED_US] += head->queued_us;
	report->counts[IVFPQ_COUNT_ENGINE_US] += head->engine_us;
}

/*
 * Finds the best `capacity` postings of the `probes` nearest lists by gpuvecd,
 * as the session's engine would, and puts them into search->candidates.  With a
 * condition on keys these are postings that satisfy it; then the search gets
 * ncounts, sums, for which lists count as `part` says, and near_count, of the
 * postings up to that rank.  Returns false if the session has to find them.
 */
bool
IvfpqSearchRemote(IvfpqSearch *search, int probes, int capacity, double part,
				  int rank)
{
	const IvfpqMetaData *meta = &search->model->meta;
	IvfpqQuestion question = {
		.query = search->query.vector,
		.condition = search->condition,
		.probes = probes,
		.compare = IvfpqListsToCompare(meta, probes, search->query.deep),
		.capacity = capacity,
		.part = part,
		.rank = rank
	};
	const GvSearchReply *head = NULL;
	IvfpqAnswer answer = {0};
	IvfpqServed served;
	instr_time	began;
	int64		trip_us;

	/* to read the version is less work than to read the lists' entries */
	if (search->condition != NULL &&
		(BlockNumber) probes >= IvfpqDirectoryPages(meta))
		question.version = IvfpqDirectoryVersion(search->index, meta);

	/* mirrors name postings as scans do */
	search->remote.nknown = 0;
	Assert(search->addresses == (meta->refine != IVFPQ_REFINE_NONE));
	INSTR_TIME_SET_CURRENT(began);
	served = IvfpqAskSearch(search->index, meta, &question, &answer);
	trip_us = microseconds_since(began);

	if (served == IVFPQ_SERVED)
	{
		head = &answer.head;
		if (!use_answer(search, &answer, &question))
			served = IVFPQ_STALE;
	}
	report_answer(search->report, served, trip_us, answer.engine, head,
				  head != NULL ? head->batch : 0);
	return served == IVFPQ_SERVED;
}

/*
 * Has gpuvecd search for many queries [n][dims], transformed, for each of them
 * as IvfpqSearchRun does.  Calls `take` with each query's number, and with true
 * if the search's candidates are those of its `probes` nearest lists: the
 * session has to find those of the others.  The versions of the directory and
 * of the mirror tell whether they are the same, since pending rows were read
 * before.
 */
void
IvfpqSearchBulkRemote(IvfpqSearch *search, const float *queries, int n,
					  int probes, int candidates,
					  void (*take) (void *arg, IvfpqSearch *search,
									int number, bool found),
					  void *arg)
{
	const IvfpqMetaData *meta = &search->model->meta;
	IvfpqQuestion question = {
		.probes = probes,
		.compare = IvfpqListsToCompare(meta, probes, search->query.deep),
		.capacity = candidates * meta->lists_per_row,
	};
	IvfpqServed served;
	int			batch = IvfpqAskBulkCapacity(search->index, meta, &question,
											 &served);

	for (int first = 0; first < n; first += batch)
	{
		const GvSearchReply *head = NULL;
		IvfpqAnswers answers = {0};
		IvfpqAnswer answer;
		instr_time	began;

		INSTR_TIME_SET_CURRENT(began);
		if (batch == 0)
			batch = n;
		else if (served == IVFPQ_SERVED)
		{
			question.version = IvfpqDirectoryVersion(search->index, meta);
			served = IvfpqAskBulk(search->index, meta, &question,
								  queries + (Size) first * meta->dims,
								  Min(batch, n - first), &answers);
		}
		if (served == IVFPQ_SERVED)
			head = (const GvSearchReply *) answers.next;
		report_answer(search->report, served, microseconds_since(began),
					  answers.engine, head, answers.nleft);
		for (int i = first; i < Min(first + batch, n); i++)
		{
			bool		found = answers.nleft > 0 &&
			IvfpqNextAnswer(&answers, meta, &answer);

			IvfpqSearchQuery(search, queries + (Size) i * meta->dims);
			if (found)
				found = use_answer(search, &answer, &question);
			if (found)
			{
				search->found_all = search->candidates.count <
					question.capacity;
				if (meta->lists_per_row > 1)
					IvfpqSearchDistinct(search, candidates);
			}
			take(arg, search, i, found);
		}
	}
}
