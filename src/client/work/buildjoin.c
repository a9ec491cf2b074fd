/*
 * buildjoin.c
 *		What the participants of a build by gpuvecd share: how to join it, and
 *		who has which rows of the sample encoded.
 *
 * gpuvecd has the rows of the sample from training.  So a pass over the table
 * leaves them out, and participants claim batches of them instead, by their
 * numbers.  Batches that got no answer are lost; another pass over
 * the table finds their rows.
 */
#include "postgres.h"

#include "client/work/remotebuild.h"
#include "page/page.h"
#include "storage/shmem.h"

static int64
count_batches(int64 nsample, int batch_rows)
{
	return (nsample + batch_rows - 1) / batch_rows;
}

/* Bytes for what participants share of the leader's build. */
Size
IvfpqSharingSize(const IvfpqBuilder *builder)
{
	int64		n = builder->nsample;

	return add_size(offsetof(IvfpqSharing, ids),
					add_size(mul_size(2 * sizeof(uint64), n),
							 count_batches(n, builder->spec.batch_rows)));
}

/* The batches' flags, behind both arrays of ids. */
static bool *
answered_flags(IvfpqSharing *sharing)
{
	return (bool *) (sharing->ids + 2 * sharing->nsample);
}

/*
 * Fill it in.  From now on the leader and who joins claim rows of the sample,
 * so that these are not to be added.
 */
void
IvfpqSharingInit(IvfpqSharing *sharing, IvfpqBuilder *builder)
{
	int64		n = builder->nsample;

	memset(sharing, 0, offsetof(IvfpqSharing, ids));
	sharing->ticket = IvfpqBuilderTicket(builder);
	pg_atomic_init_u32(&sharing->failed, 0);
	pg_atomic_init_u64(&sharing->next, 0);
	sharing->nsample = n;
	sharing->npassed = n;
	memcpy(sharing->ids, builder->sample_ids, n * sizeof(uint64));
	memcpy(sharing->ids + n, builder->sample_ids, n * sizeof(uint64));
	IvfpqSortNumbers(sharing->ids + n, n);
	memset(answered_flags(sharing), 0,
		   count_batches(n, builder->spec.batch_rows));
	builder->sharing = sharing;
}

/* Claim a batch of the sample; returns how many rows, 0: there is none. */
int
IvfpqSharingClaim(IvfpqSharing *sharing, int64 *first)
{
	int			batch_rows = sharing->ticket.spec.batch_rows;

	*first = (int64) pg_atomic_fetch_add_u64(&sharing->next, batch_rows);
	return (int) Max(0, Min(sharing->nsample - *first, batch_rows));
}

/* A participant has the answer to the batch that begins with this row. */
void
IvfpqSharingAnswered(IvfpqSharing *sharing, int64 first)
{
	answered_flags(sharing)[first / sharing->ticket.spec.batch_rows] = true;
}

/*
 * All participants have done what they could: are rows of the sample lost?
 * Then the next pass over the table is for these only.
 */
bool
IvfpqSharingRecover(IvfpqSharing *sharing)
{
	const bool *answered = answered_flags(sharing);
	uint64	   *lost = sharing->ids + sharing->nsample;
	int64		nlost = 0;

	for (int64 i = 0; i < sharing->nsample; i++)
		if (!answered[i / sharing->ticket.spec.batch_rows])
			lost[nlost++] = sharing->ids[i];
	IvfpqSortNumbers(lost, nlost);
	sharing->npassed = nlost;
	sharing->recovering = nlost > 0;
	return sharing->recovering;
}

/*
 * Is a row that a pass over the table comes to to be added?  *at, 0 when the
 * pass begins, is where the last one was looked for.
 */
bool
IvfpqSharingWants(const IvfpqSharing *sharing, uint64 id, int64 *at)
{
	const uint64 *ids = sharing->ids + sharing->nsample;
	int64		n = sharing->npassed;
	int64		low = *at;

	/* rows come in the order of the table, by and large */
	if (low > 0 && ids[low - 1] >= id)
	{
		int64		high = low - 1;

		for (low = 0; low < high;)
		{
			int64		middle = low + (high - low) / 2;

			if (ids[middle] < id)
				low = middle + 1;
			else
				high = middle;
		}
	}
	while (low < n && ids[low] < id)
		low++;
	*at = low;
	return (low < n && ids[low] == id) == sharing->recovering;
}
