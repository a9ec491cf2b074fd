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
 *		short		it has more postings, gen and del_seq are the same:
 *					postings found are kept, the others are scanned here
 *		stale		anything else: postings found are dropped, the list is
 *					scanned here
 *
 * The best of all these are the session's own result, pair for pair, if
 * nothing was dropped.  Otherwise postings of the lists that stand may be
 * missing, those behind the last pair of the answer, whose places the dropped
 * ones had.  None of them is before that pair; so if, even so, there are as
 * many pairs as were wanted, and all no later than that one, no missing one
 * would have come among them.  If not, the answer is of no use.
 *
 * A search under a condition wants many lists.  So it takes the version of the
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

/*
 * An answer is given up when more postings would have to be scanned than these
 * and half of the probed lists have: to search it all here is then no more
 * work worth the name.
 */
#define FEW_POSTINGS		4096

enum
{
	LIST_CURRENT,
	LIST_SHORT,
	LIST_STALE
};

/* Returns whether a list of the mirror is current, short or stale. */
static uint8
list_age(const GvListState *mirrored, const IvfpqDirEntry *entry)
{
	if (mirrored->gen != entry->gen || mirrored->del_seq != entry->del_seq ||
		mirrored->nitems > entry->nitems)
		return LIST_STALE;
	return mirrored->nitems < entry->nitems ? LIST_SHORT : LIST_CURRENT;
}

/* Reserves memory for the notes on each list. */
static void
ensure_capacity(IvfpqRemote *remote, int nlists)
{
	if (nlists <= remote->capacity)
		return;
	if (remote->capacity > 0)
	{
		pfree(remote->entries);
		pfree(remote->ages);
	}
	remote->entries = palloc_extended(nlists * sizeof(IvfpqDirEntry),
									  MCXT_ALLOC_HUGE);
	remote->ages = palloc(nlists);
	remote->capacity = nlists;
}

/* The probed lists become search->lists. */
static void
take_lists(IvfpqSearch *search, const IvfpqAnswer *answer)
{
	int			n = answer->head.nprobed;

	IvfpqTopKResize(&search->lists, Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		search->lists.ids[i] = (uint64) answer->probed[i].list;
		search->lists.scores[i] = answer->probed[i].base;
	}
	search->lists.count = n;
}

/*
 * Compare the mirror's lists with the index's.  False when too many postings
 * would have to be scanned; *behind tells whether there are any.
 */
static bool
compare_states(IvfpqSearch *search, const IvfpqAnswer *answer, bool *behind)
{
	IvfpqRemote *remote = &search->remote;
	int			n = answer->head.nprobed;
	int64		postings = 0;
	int64		missing = 0;

	take_lists(search, answer);
	ensure_capacity(remote, n);
	IvfpqDirEntriesRead(search->index, &search->model->meta,
						search->lists.ids, n, remote->entries);
	*behind = false;
	for (int i = 0; i < n; i++)
	{
		const GvListState *mirrored = &answer->probed[i].state;
		const IvfpqDirEntry *entry = &remote->entries[i];

		remote->ages[i] = list_age(mirrored, entry);
		*behind |= remote->ages[i] != LIST_CURRENT;
		postings += entry->nitems;
		if (remote->ages[i] == LIST_STALE)
			missing += entry->nitems;
		else
			missing += entry->nitems - mirrored->nitems;
	}
	return missing <= FEW_POSTINGS || missing <= postings / 2;
}

/*
 * How many postings of a list that is being read stand as the mirror has them.
 * Once stale it stays so.
 */
static uint32
standing(const GvListState *mirrored, const IvfpqListReader *reader,
		 uint8 *age)
{
	if (list_age(mirrored, &reader->entry) == LIST_STALE)
		*age = LIST_STALE;
	return *age == LIST_STALE ? 0 : mirrored->nitems;
}

/*
 * The number of the mirror's postings in the i-th list, and how many of these
 * satisfy the condition.
 */
static IvfpqListCount
mirrored_count(const IvfpqAnswer *answer, int i)
{
	IvfpqListCount count = {answer->probed[i].state.nitems,
	answer->probed[i].state.nitems};

	if (answer->matches != NULL)
		count.matched = answer->matches[i];
	return count;
}

/*
 * Note how many postings of the i-th list there are, and satisfy the
 * condition, of which `more` were scanned here.
 */
static void
note_count(IvfpqSearch *search, const IvfpqAnswer *answer, int i,
		   IvfpqListCount more)
{
	IvfpqListCount count = {0};

	if (search->condition == NULL)
		return;
	if (search->remote.ages[i] != LIST_STALE)
		count = mirrored_count(answer, i);
	search->matched += count.matched;
	count.postings += more.postings;
	count.matched += more.matched;
	search->counts[i] = count;
	search->ncounts = i + 1;
}

/*
 * Offer the postings of the i-th list that the mirror does not have to the
 * search.  The list may become stale after its entry was read,
 * even in the midst of this, when the reader starts anew: then all postings
 * are offered, some maybe twice, which the reader tells and the heap unites.
 */
static void
scan_rest(IvfpqSearch *search, int i, const IvfpqAnswer *answer)
{
	const GvListState *mirrored = &answer->probed[i].state;
	IvfpqListReader *reader = &search->reader;
	IvfpqRemote *remote = &search->remote;
	uint8	   *age = &remote->ages[i];
	int64		before = search->postings_read;
	int64		matched = search->scan.matched;
	IvfpqListCount more;
	uint32		have;
	IvfpqBlockView view;

	IvfpqListOpen(reader, (uint32) search->lists.ids[i]);
	have = standing(mirrored, reader, age);
	while (reader->nleft > have && IvfpqListNext(reader, &view))
	{
		have = standing(mirrored, reader, age);
		if (reader->nleft < have)	/* it begins with postings that stand */
			view.live &= PG_UINT32_MAX << (have - reader->nleft);
		IvfpqSearchBlock(search, i, &view, reader->reread);
	}
	(void) standing(mirrored, reader, age);
	more.postings = search->postings_read - before;
	more.matched = search->scan.matched - matched;
	note_count(search, answer, i, more);
	if (*age == LIST_STALE)
		remote->report.stale_lists++;
	else
		remote->report.tail_postings += more.postings;
}

/*
 * Note what the answer says of the refine records of its hits, in their order.
 * Not if postings were scanned here: VACUUM frees the slot of a dead row's
 * record before it marks the row's postings, and a new row may take it, so
 * that one address stands in a mirrored list for the dead row and in a newer
 * posting for the new one.  The page tells which row it belongs to.
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

/* The answer as it is, which is all there is to find. */
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
 * Merge what stands of the answer with what was scanned here; false when pairs
 * that the answer does not have may belong among them.
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
		if (search->remote.ages[hit->probe] == LIST_STALE)
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

/* Takes the counts of the mirror's sample up to that rank. */
static void
take_sample(IvfpqSearch *search, const GvSearchReply *head, int rank)
{
	search->near_count.matched = head->nearer > 0 ? rank : 0;
	search->near_count.nearer = head->nearer;
	search->near_count.variance = head->nearer_squares;
}

/* A brief answer: all lists are as the mirror has them. */
static void
take_brief(IvfpqSearch *search, const IvfpqAnswer *answer)
{
	const GvSearchReply *head = &answer->head;

	search->ncounts = head->nprobed;
	search->matched += head->matches;
	search->sums.postings = head->nitems;
	search->sums.matched = head->matches;
	search->sums.weighted_postings = head->weighted_nitems;
	search->sums.weighted_matched = head->weighted_matches;
	take_hits(search, answer);
	take_records(search, answer);
}

/*
 * A full one, whose lists have been compared: false when pairs that it does
 * not have may belong among the best.
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
		if (search->remote.ages[i] != LIST_CURRENT)
			scan_rest(search, i, answer);
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
 * The best postings by an answer and by what it lacks; false when that cannot
 * be told from it.  If it might have been brief it will be, when the mirror
 * has caught up.
 */
static bool
use_answer(IvfpqSearch *search, const IvfpqAnswer *answer,
		   const IvfpqQuestion *question)
{
	bool		behind = false;
	bool		useful = answer->head.is_brief ||
	compare_states(search, answer, &behind);

	search->remote.nearest = (uint32) answer->head.nearest;
	if (useful)
	{
		IvfpqSearchOpen(search, question->capacity);
		search->lists_read += answer->head.nprobed;
		search->postings_read += answer->head.postings;
		take_sample(search, &answer->head, question->rank);
		if (answer->head.is_brief)
			take_brief(search, answer);
		else
			useful = take_full(search, answer, behind, question->part);
	}
	if (!useful || behind || (question->version != 0 && !answer->head.is_brief))
		IvfpqAskStale(search->index, &search->model->meta, !useful);
	return useful;
}

/* Note what answered, for gpuvec_last_scan. */
void
IvfpqReportEngine(IvfpqRemoteReport *report, const char *engine)
{
	if (report->engine[0] != '\0' && strcmp(report->engine, engine) != 0)
		engine = "mixed";
	strlcpy(report->engine, engine, sizeof(report->engine));
}

/* Note what became of a message of many searches. */
static void
report_bulk(IvfpqRemoteReport *report, IvfpqServed served,
			const IvfpqAnswers *answers, instr_time began)
{
	const GvSearchReply *head = (const GvSearchReply *) answers->next;
	instr_time	took;

	INSTR_TIME_SET_CURRENT(took);
	INSTR_TIME_SUBTRACT(took, began);
	IvfpqReportEngine(report, served == IVFPQ_SERVED ? answers->engine :
					  "session");
	report->fallback = NULL;
	if (served == IVFPQ_NOT_ASKED)
		return;
	report->asked = true;
	report->trip_us += INSTR_TIME_GET_MICROSEC(took);
	if (served != IVFPQ_SERVED)
	{
		report->fallback = IvfpqServedName(served);
		return;
	}
	report->answered = true;
	report->batch_size = answers->nleft;
	report->queued_us += head->queued_us;
	report->engine_us += head->engine_us;
}

/* gpuvecd is not asked, for this reason. */
void
IvfpqSearchAlone(IvfpqSearch *search, const char *reason)
{
	IvfpqRemoteReport *report = &search->remote.report;

	search->remote.nknown = 0;
	IvfpqReportEngine(report, "session");
	report->fallback = IvfpqServerIsWanted() ? reason : NULL;
}

/*
 * The version of the directory, for an answer that needs no look at the
 * entries of lists: where that is less work.
 */
static uint64
get_version(const IvfpqSearch *search, int probes)
{
	const IvfpqMetaData *meta = &search->model->meta;

	if (search->condition == NULL ||
		(BlockNumber) probes < IvfpqDirectoryPages(meta))
		return 0;
	return IvfpqDirectoryVersion(search->index, meta);
}

/*
 * Answers of gpuvecd to many queries [n][dims], transformed, as IvfpqSearchRun
 * has one for each.  `take` gets each query's number, and true if the search's
 * candidates are those of its `probes` nearest lists: the session has to find
 * those of the others.  The versions of the directory and of the mirror tell
 * whether they are the same, since pending rows were read before.
 */
void
IvfpqSearchBulkRemote(IvfpqSearch *search, const float *queries, int n,
					  int probes, int candidates,
					  void (*take) (void *arg, IvfpqSearch *search,
									int number, bool found),
					  void *arg)
{
	const IvfpqMetaData *meta = &search->model->meta;
	IvfpqRemoteReport *report = &search->remote.report;
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
		report_bulk(report, served, &answers, began);
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

/*
 * The best `capacity` postings of the `probes` nearest lists by gpuvecd, as
 * the session's engine would find them, in search->candidates; with a
 * condition on keys those that satisfy it, search->ncounts, search->sums, for
 * which lists count as `part` says, and search->near_count, of the postings
 * up to that rank. False when the session has to find them.
 */
bool
IvfpqSearchRemote(IvfpqSearch *search, int probes, int capacity, double part,
				  int rank)
{
	const IvfpqMetaData *meta = &search->model->meta;
	IvfpqRemoteReport *report = &search->remote.report;
	IvfpqQuestion question = {
		.query = search->query.vector,
		.condition = search->condition,
		.probes = probes,
		.compare = IvfpqListsToCompare(meta, probes, search->query.deep),
		.capacity = capacity,
		.version = get_version(search, probes),
		.part = part,
		.rank = rank
	};
	IvfpqAnswer answer;
	IvfpqServed served;
	instr_time	began;
	instr_time	took;

	/* mirrors name postings as scans do */
	search->remote.nknown = 0;
	Assert(search->addresses == (meta->refine != IVFPQ_REFINE_NONE));
	INSTR_TIME_SET_CURRENT(began);
	served = IvfpqAskSearch(search->index, meta, &question, &answer);
	INSTR_TIME_SET_CURRENT(took);
	INSTR_TIME_SUBTRACT(took, began);

	if (served == IVFPQ_SERVED)
	{
		report->answered = true;
		report->batch_size = answer.head.batch;
		report->queued_us += answer.head.queued_us;
		report->engine_us += answer.head.engine_us;
		if (!use_answer(search, &answer, &question))
			served = IVFPQ_STALE;
	}
	IvfpqReportEngine(report, served == IVFPQ_SERVED ? answer.engine : "session");
	report->fallback = NULL;
	if (served != IVFPQ_NOT_ASKED)
	{
		report->asked = true;
		report->trip_us += INSTR_TIME_GET_MICROSEC(took);
		if (served != IVFPQ_SERVED)
			report->fallback = IvfpqServedName(served);
	}
	return served == IVFPQ_SERVED;
}
