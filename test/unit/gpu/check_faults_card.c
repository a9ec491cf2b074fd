/*
 * check_faults_card.c
 *		What a card does wrong, on emulated threads alone: a device that hangs
 *		keeps what was asked of it, and others go on.
 */
#include "../engine/mirrors.h"

/* Of emulate/; not there on a card. */
extern unsigned gv_emulated_hung __attribute__((weak));

#define NSEARCHES	3
#define LOOKS		200			/* at a search that is never done */

/* A mirror on one of two devices, searched. */
typedef struct Searched
{
	TestIndex	index;
	GvMirror   *mirror;
	GvSearcher *searcher;
	GvSearch	searches[NSEARCHES];
} Searched;

static void
begin_searches(Searched *searched, int32_t device)
{
	int			i;

	searched->index = make_index(GV_L2, 8, 4, 9, 3, 40, false);
	searched->index.spec.device = device;
	searched->mirror = make_mirror(&searched->index);
	for (i = 0; i < NSEARCHES; i++)
		searched->searches[i] = new_search(&searched->index, 1 + i, 9, 5);
	CHECK(gv_searcher(device, &searched->searcher) == GV_OK, "searcher");
}

static void
end_searches(Searched *searched)
{
	gv_searcher_drop(searched->searcher);
	gv_mirror_drop(searched->mirror);
	free_searches(searched->searches, NSEARCHES);
	free_index(&searched->index);
}

static bool
is_done_soon(Searched *searched)
{
	int			looks;

	for (looks = 0; looks < LOOKS; looks++)
		if (gv_mirror_done(searched->searcher))
			return true;
	return false;
}

static void
test_hang(void)
{
	Searched	both[2];
	int			i;

	for (i = 0; i < 2; i++)
		begin_searches(&both[i], i);
	gv_emulated_hung = 1 << 1;
	for (i = 1; i >= 0; i--)
		CHECK(gv_mirror_begin(both[i].searcher, both[i].mirror,
							  both[i].searches, NSEARCHES) == GV_OK,
			  "device %d: begin", i);
	CHECK(is_done_soon(&both[0]), "the other device waits, too");
	CHECK(!is_done_soon(&both[1]), "a device that hangs goes on");
	gv_emulated_hung = 0;
	CHECK(is_done_soon(&both[1]), "a device hangs for ever");
	for (i = 0; i < 2; i++)
	{
		CHECK(gv_mirror_finish(both[i].searcher) == GV_OK, "finish");
		check_answers(&both[i].index, both[i].searches, NSEARCHES, "hang");
		end_searches(&both[i]);
	}
}

/* An engine was opened, on all devices. */
void
test_faults_card(void)
{
	if (&gv_emulated_hung == NULL)
		return;
	test_hang();
}
