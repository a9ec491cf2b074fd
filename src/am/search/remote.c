/*
 * remote.c
 *		From a query to candidates, by gpuvecd and its mirror of the index.
 *
 * At times a mirror is behind its index.  An answer says which lists were
 * probed and in what state the mirror had each: (gen, nitems, del_seq).  When
 * a full answer has come, the directory entries of these lists are read.  At
 * that time the scan's snapshot has been taken and the pending rows have been
 * read, so all rows that the snapshot sees are in the lists as these entries
 * show them.  A list is
 *
 *		current		the entry equals the state: postings found are kept
 *		grown		the entry has more postings, and the same gen and del_seq:
 *					postings found are kept, new postings are scanned here
 *		stale		in all other cases: postings found are dropped, the list is
 *					scanned here
 *
 * If nothing was dropped, the best of all these postings are exactly the
 * postings that the session's own search would find.  If postings were
 * dropped, the answer also lacks postings of the other lists, which gpuvecd
 * would have returned instead.  All missing postings rank after the answer's
 * last posting.  So they do not matter if enough of the postings that are left
 * rank no later than that posting.  Otherwise the answer cannot be used.
 *
 * A search with a condition, or for many rows, needs many lists.  To avoid
 * reading their entries, the search reads the version of the directory
 * (page/metapage.c), also after its snapshot was taken and the pending rows
 * were read, and sends it along.
 * If the mirror was known to be of this version when it was searched, the
 * answer is brief: all lists are current, and the answer has only sums over
 * them.  README, "Coherence", has the proof.
 */
#include "postgres.h"

#include <math.h>

#include "portability/instr_time.h"

#include "am/common/enginecall.h"
#include "am/search/search.h"
#include "client/client.h"
#include "page/injection.h"
#include "page/metapage.h"

/*
 * An answer is not worth using if the postings left to scan are more than
 * FEW_POSTINGS and more than half of the probed lists' postings.
 */
#define FEW_POSTINGS		4096

/*
 * A search without a condition reads the version if it reads this many lists
 * for each page of the directory.  With fewer lists, it would ask for a mirror
 * that has caught up more often than it needs one.
 */
#define MANY_ENTRIES		16

/* Status of a list in the mirror, compared with the list's directory entry. */
enum
{
	LIST_CURRENT,
	LIST_GREW,
	LIST_STALE
};

/* Returns a list's status; `mirrored` is the list's state in the mirror. */
static uint8
get_list_status(const GvListState *mirrored, const IvfpqDirEntry *entry)
{
	if (mirrored->gen != entry->gen || mirrored->del_seq != entry->del_seq ||
		mirrored->nitems > entry->nitems)
		return LIST_STALE;
	return mirrored->nitems < entry->nitems ? LIST_GREW : LIST_CURRENT;
}

/*
 * Sets search->lists to the probed lists, and compares their states in the
 * mirror with their directory entries.  *behind says whether some list is not
 * current.  Returns false if too many postings would have to be scanned here.
 */
static bool
compare_states(IvfpqSearch *search, const IvfpqRemoteResult *answer,
			   bool *behind)
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
 * Returns how many of the first postings of the reader's open list are in the
 * mirror, and so need not be scanned here.  If the list has become stale, sets
 * *status and returns 0.  A stale list stays stale.
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
 * Notes how many postings the i-th list has, and how many of them satisfy the
 * condition.  `more` counts the postings that were scanned here.
 */
static void
note_count(IvfpqSearch *search, const IvfpqRemoteResult *answer, int i,
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
 * Scans the postings of the i-th list that the mirror lacks.
 *
 * The list may become stale after its entry was read, even while it is scanned
 * here.  Then the reader starts over, and all postings are offered, some
 * perhaps twice.  The reader says when postings may be repeats, and the heap
 * then keeps each posting only once.
 */
static void
scan_missing(IvfpqSearch *search, int i, const IvfpqRemoteResult *answer)
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
		if (reader->nleft < have)	/* the mirror has the block's first
									 * postings */
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
 * Notes what the answer says about the refine records of its hits, in the
 * order of the hits.
 *
 * This must not be called if postings were scanned here.  VACUUM frees the
 * slot of a dead row's record before it marks the row's postings, and a new
 * row may take the slot.  Then a mirrored list has the address for the dead
 * row, and a newer posting has the same address for the new row.  Only the
 * page shows to which row the record belongs.
 */
static void
take_records(IvfpqSearch *search, const IvfpqRemoteResult *answer)
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

/*
 * Notes the distances that the answer tells, in the order of its hits, except
 * those of hits in stale lists.  README, "Rows in a mirror", says why they hold
 * even if postings were scanned here.
 */
static void
take_distances(IvfpqSearch *search, const IvfpqRemoteResult *answer)
{
	IvfpqRemote *remote = &search->remote;
	int			n = answer->head.nhits;

	if (answer->distances == NULL)
		return;
	if (n > remote->distances_capacity)
	{
		if (remote->distances)
			pfree(remote->distances);
		remote->distances = palloc_extended(n * sizeof(IvfpqKnownDistance),
											MCXT_ALLOC_HUGE);
		remote->distances_capacity = n;
	}
	for (int i = 0; i < n; i++)
	{
		const GvRowDistance *row = &answer->distances[i];
		const GvHit *hit = &answer->hits[i];

		if (!answer->head.is_brief &&
			remote->list_status[hit->probe] == LIST_STALE)
			continue;
		if (!row->known)
		{
			if (remote->nlacking < IVFPQ_LACKING)
				remote->lacking[remote->nlacking++] =
					IvfpqWordsToId(hit->rowid);
			continue;
		}
		remote->distances[remote->ndistances++] = (IvfpqKnownDistance)
		{
			hit->score, row->magnitude, IvfpqWordsToId(hit->rowid),
				row->distance
		};
	}
}

/*
 * Adds the answer's hits, except those in stale lists, to the postings that
 * were scanned here.  Returns false if the answer may lack some of the best
 * postings.
 */
static bool
merge_hits(IvfpqSearch *search, const IvfpqRemoteResult *answer)
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
 * Returns whether the question has to be asked without `keep`, because which
 * candidates are the best depends on postings that the mirror lacks.
 */
static bool
lacks_candidates(const IvfpqSearch *search, const GvSearchReply *head)
{
	return search->remote.is_behind && head->omitted.n > 0;
}

/*
 * Sets the candidates from an answer, and from postings that the mirror lacks.
 * Returns false if the answer cannot be used.  Requests that the mirror catch
 * up if it is behind, if the answer cannot be used, or if the session sent a
 * version but the answer is not brief.  Once the mirror has caught up, answers
 * are brief.  An answer of a mirror that is behind cannot be merged if it leaves
 * candidates out (lacks_candidates), and sets none.
 */
static bool
use_answer(IvfpqSearch *search, const IvfpqRemoteResult *answer,
		   const IvfpqRemoteQuery *question)
{
	const GvSearchReply *head = &answer->head;
	GvTopK	   *top = &search->candidates;
	IvfpqListCount none = {0};
	bool		behind = false;
	bool		useful = head->is_brief ||
	compare_states(search, answer, &behind);

	search->remote.nearest = (uint32) head->nearest;
	search->remote.is_behind = behind;
	if (useful && !lacks_candidates(search, head))
	{
		search->remote.nleft_out = head->nfound - head->nhits;
		search->remote.omitted = head->omitted;
		/* without postings to scan, there is no need to open the search */
		if (behind)
			IvfpqSearchOpen(search, question->capacity);
		else
			IvfpqTopKResize(top, question->capacity);
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
		}
		else
		{
			/* scan the postings that the mirror lacks, and count all */
			search->ncounts = 0;
			if (search->condition != NULL)
				IvfpqCountsReserve(search, head->nprobed);
			for (int i = 0; i < search->lists.count; i++)
				if (search->remote.list_status[i] != LIST_CURRENT)
					scan_missing(search, i, answer);
				else
					note_count(search, answer, i, none);
			if (search->condition != NULL)
				search->sums = IvfpqSumCounts(search->counts, search->ncounts,
											  question->part);
		}
		if (behind)
		{
			IvfpqSearchSettle(search);
			useful = merge_hits(search, answer);
		}
		else
		{
			/* all probed lists are current, so the hits are the candidates */
			for (int i = 0; i < head->nhits; i++)
			{
				top->scores[i] = answer->hits[i].score;
				top->ids[i] = IvfpqWordsToId(answer->hits[i].rowid);
			}
			top->count = head->nhits;
			take_records(search, answer);
		}
		if (useful)
			take_distances(search, answer);
	}
	if (!useful || behind || (question->version != 0 && !head->is_brief))
		IvfpqMirrorMarkStale(search->index, &search->model->meta, !useful);
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

/* Notes that gpuvecd is not asked, and why. */
void
IvfpqSearchNoServer(IvfpqSearch *search, const char *reason)
{
	IvfpqScanReport *report = search->report;

	IvfpqSearchForgetAnswer(search);
	IvfpqReportEngine(report, "session");
	report->fallback = IvfpqServerIsWanted() ? reason : NULL;
}

/*
 * Adds a request to gpuvecd to the report: its outcome, its duration from
 * began to ended, and the times in the head of its first answer (NULL if no
 * answer came).  n is the number of searches that were answered together.
 */
static void
report_answer(IvfpqScanReport *report, IvfpqOutcome served, instr_time began,
			  instr_time ended, const char *engine, const GvSearchReply *head,
			  int n)
{
	IvfpqReportEngine(report, served == IVFPQ_ANSWERED ? engine : "session");
	report->fallback = NULL;
	if (served == IVFPQ_NOT_ASKED)
		return;
	report->asked = true;
	INSTR_TIME_SUBTRACT(ended, began);
	report->counts[IVFPQ_COUNT_TRIP_US] += INSTR_TIME_GET_MICROSEC(ended);
	if (served != IVFPQ_ANSWERED)
		report->fallback = IvfpqOutcomeName(served);
	if (head == NULL)
		return;
	report->answered = true;
	report->batch_size = n;
	report->counts[IVFPQ_COUNT_QUEUED_US] += head->queued_us;
	report->counts[IVFPQ_COUNT_ENGINE_US] += head->engine_us;
}

/*
 * Requests the best postings of the `probes` nearest lists from gpuvecd, enough
 * for `candidates` rows, and puts them into search->candidates.  They are the
 * postings that the session's engine would find.  Returns false if the session
 * has to find them.  Of an answer that has all candidates some may be left out
 * (IvfpqSearch.keep).
 *
 * With a condition on keys, finds only postings that satisfy it, and also sets
 * search->ncounts, search->sums (`part` gives the weights of lists), and
 * search->near_count (for the nearest `rank` postings).
 */
bool
IvfpqSearchRemote(IvfpqSearch *search, int probes, int candidates, double part,
				  int rank)
{
	const IvfpqMetaData *meta = &search->model->meta;
	IvfpqRemoteQuery question = {
		.queries = search->query.vector,
		.asked = search->asked,
		.n = 1,
		.condition = search->condition,
		.probes = probes,
		.compare = IvfpqListsToCompare(meta, probes, search->query.deep),
		.capacity = candidates * meta->lists_per_row,
		.rows = candidates,
		.part = part,
		.rank = rank
	};
	const GvSearchReply *head = NULL;
	IvfpqRemoteResult answer = {0};
	IvfpqOutcome served;
	instr_time	began;
	instr_time	ended;
	bool		again;

	if (search->asked != NULL && !IvfpqMirrorMayBeStale(search->index, meta))
		question.keep = search->keep;

	/* reading the version is less work than reading the lists' entries */
	if ((BlockNumber) probes >= IvfpqDirectoryPages(meta) *
		(search->condition != NULL ? 1 : MANY_ENTRIES))
		question.version = IvfpqDirectoryVersion(search->index, meta);

	/* ids of hits are addresses if there are refine records, else TIDs */
	IvfpqSearchForgetAnswer(search);
	Assert(search->addresses == (meta->refine != IVFPQ_REFINE_NONE));
	INSTR_TIME_SET_CURRENT(began);
	do
	{
		IvfpqInjectionPoint("remote: ask");
		again = false;
		head = NULL;
		served = IvfpqRemoteSearch(search->index, meta, &question, &answer);
		INSTR_TIME_SET_CURRENT(ended);
		if (served == IVFPQ_ANSWERED)
		{
			IvfpqInjectionPoint("remote: answered");
			head = &answer.head;
			if (!use_answer(search, &answer, &question))
				served = IVFPQ_STALE;
			else
				again = lacks_candidates(search, head);
			IvfpqInjectionPoint("remote: compared");
		}
		question.keep = 0;
	} while (again);
	report_answer(search->report, served, began, ended, answer.engine, head,
				  head != NULL ? head->batch : 0);
	return served == IVFPQ_ANSWERED;
}

/*
 * Requests a search for each of n queries from gpuvecd, like IvfpqSearchRun or,
 * with a condition on keys, like IvfpqSearchRemote.
 * `asked` [n][dims] are the queries as they were asked, or NULL if distances
 * are of no use.  Passes each query to taker->take_nearest or taker->take, or
 * to both.  The caller must have read the pending rows before, so that the
 * version of the directory that is read here tells whether the mirror has all
 * rows that the snapshot sees.
 *
 * Queries are transformed and answers taken message by message, so that both
 * are in the processor's cache, and in the same memory each time.  A query that
 * is passed to taker->take is transformed once more.
 */
void
IvfpqSearchBulkRemote(IvfpqSearch *search, const float *asked, int n,
					  int probes, int candidates, double part, int rank,
					  const IvfpqBulkTaker *taker)
{
	const IvfpqMetaData *meta = &search->model->meta;
	IvfpqRemoteQuery question = {
		.asked = asked,
		.n = n,
		.condition = search->condition,
		.probes = probes,
		.compare = IvfpqListsToCompare(meta, probes, search->query.deep),
		.capacity = candidates * meta->lists_per_row,
		.part = part,
		.rank = rank
	};
	IvfpqRemoteBulk *bulk = IvfpqRemoteBulkBegin(search->index, meta,
												 &question);
	int			size = IvfpqRemoteBulkSize(bulk);
	IvfpqRemoteResult *answers = palloc_extended(size *
												 sizeof(IvfpqRemoteResult),
												 MCXT_ALLOC_HUGE |
												 MCXT_ALLOC_ZERO);
	uint64	   *versions = palloc(((n - 1) / size + 1) * sizeof(uint64));
	float	   *vector = palloc(meta->dims * sizeof(float));
	int		   *left = palloc(size * sizeof(int));	/* queries of the message
													 * to be passed to `take` */
	IvfpqOutcome served = IVFPQ_ANSWERED;
	int			next = 0;		/* the first query that is not sent */

	for (int first = 0; first < n; first += size)
	{
		int			count = Min(size, n - first);
		int			nleft = 0;
		instr_time	began;
		instr_time	ended;

		INSTR_TIME_SET_CURRENT(began);
		while (served == IVFPQ_ANSWERED && next < n &&
			   IvfpqRemoteBulkMaySend(bulk))
		{
			question.n = Min(size, n - next);
			if (question.asked != NULL)
				question.asked = asked + (Size) next * meta->dims;
			question.version = versions[next / size] =
				IvfpqDirectoryVersion(search->index, meta);
			IvfpqRemoteBulkSend(bulk, &question, taker->transform, taker->arg,
								next);
			next += size;
		}
		if (served == IVFPQ_ANSWERED)
			served = IvfpqRemoteBulkTake(bulk, answers);
		INSTR_TIME_SET_CURRENT(ended);
		report_answer(search->report, served, began, ended, answers->engine,
					  served == IVFPQ_ANSWERED ? &answers->head : NULL,
					  count);
		/* do not send what the mirror has no use for */
		if (served == IVFPQ_ANSWERED && answers->head.nhits > 0 &&
			answers->distances == NULL)
			question.asked = NULL;
		question.version = versions[first / size];
		for (int i = 0; i < count; i++)
			if (served != IVFPQ_ANSWERED || !answers[i].head.is_brief ||
				answers[i].distances == NULL || search->condition != NULL ||
				!taker->take_nearest(taker->arg, &answers[i], first + i,
									 question.capacity))
				left[nleft++] = first + i;
		nleft += taker->settle(taker->arg, left + nleft);
		for (int l = 0; l < nleft; l++)
		{
			int			i = left[l] - first;
			bool		found = served == IVFPQ_ANSWERED;

			if (found)
			{
				taker->transform(taker->arg, left[l], 1, vector);
				IvfpqSearchQuery(search, vector);
				found = use_answer(search, &answers[i], &question);
			}
			if (found)
			{
				search->found_all = search->candidates.count <
					question.capacity;
				if (meta->lists_per_row > 1 && search->condition == NULL)
					IvfpqSearchDistinct(search, candidates);
			}
			taker->take(taker->arg, search, left[l], found);
		}
	}
	IvfpqRemoteBulkEnd(bulk);
	pfree(left);
	pfree(vector);
	pfree(versions);
	pfree(answers);
}
