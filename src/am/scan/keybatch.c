/*
 * keybatch.c
 *		Conditions on keys, in a scan: how it begins and aims its batches.
 *
 * A scan with such conditions goes through batches as any other, but the rows
 * that it counts are those that satisfy them.
 */
#include "postgres.h"

#include "am/common/model.h"
#include "am/scan/scan.h"

/*
 * Is anything asked of keys?  That the vector is not NULL is true of all rows.
 */
static bool
asks_keys(IndexScanDesc scan)
{
	for (int i = 0; i < scan->numberOfKeys; i++)
	{
		ScanKey		scan_key = &scan->keyData[i];

		if (scan_key->sk_attno > 1 ||
			(scan_key->sk_flags & SK_SEARCHNOTNULL) == 0)
			return true;
	}
	return false;
}

/* Take the scan's conditions; false if no row satisfies them. */
bool
IvfpqScanBeginKeys(IndexScanDesc scan)
{
	IvfpqScan  *state = (IvfpqScan *) scan->opaque;

	state->asks_keys = asks_keys(scan);
	state->key_selectivity = 1;
	if (!state->asks_keys)
		return true;
	IvfpqKeysInit(&state->keys, state->index);
	IvfpqModelCheckKeys(state->index, state->model, &state->keys.form);
	IvfpqKeyQualsMake(&state->quals, &state->keys, scan->keyData,
					  scan->numberOfKeys);
	if (state->filter != NULL)
		state->key_selectivity = Min(Max(state->filter->key_selectivity,
										 IVFPQ_LEAST_SELECTIVITY), 1);
	return !state->quals.never;
}

/*
 * Is it told only by rows themselves which candidates may come up?  If so,
 * those count that passed.
 */
bool
IvfpqScanAsksRows(const IvfpqScan *state)
{
	return state->filter != NULL ||
		(state->asks_keys && state->quals.nrechecks > 0);
}

/*
 * Of all rows those that the planner expects to satisfy them; 0 = not known.
 */
static double
planned_selectivity(const IvfpqScan *state)
{
	double		rows = IvfpqRowsAbout(state->index, &state->model->meta);

	if (state->filter != NULL || state->planned <= 0 || rows <= 0)
		return 0;
	return Min(Max(state->planned / rows, IVFPQ_LEAST_SELECTIVITY), 1);
}

/*
 * Sets the goal of the next batch among rows that satisfy the conditions: as
 * the search parameters say or, in the last batch, all of them in most_probes
 * lists.
 */
void
IvfpqScanAimKeys(IvfpqScan *state, int most_probes, bool is_last)
{
	IvfpqKeyGoal *goal = &state->goal;

	goal->recall = state->recall;
	goal->rows = Max(state->params.quota, 1);
	goal->most_probes = most_probes;
	goal->selectivity = state->key_selectivity;
	goal->guess = planned_selectivity(state);
	goal->is_spread = IvfpqDepthIsSpread(state);
	goal->is_far = false;
	goal->by_keys = state->filter == NULL;
	goal->reads_all = is_last;
	state->wanted = is_last ? PG_INT32_MAX / 4 :
		IvfpqKeyCapacity(&state->search, goal);
	goal->candidates = IvfpqScanCandidates(state, most_probes);
	state->params.candidates = goal->candidates;
}
