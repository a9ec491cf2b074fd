/*
 * cardbytes.c
 *		What a mirror takes of a card's memory: the model of test/unit/gpu/bytes.c
 *		beside mirrors.
 *
 * usage, after make bench BENCH='cardbytes ...', on emulated threads, or
 *		test/gpu/run.sh bytes -- ...:
 *		cardbytes fill [ROWS[xDIMS]...]
 *		fills mirrors of so many rows (10^6 when left out) x 128, 384 and 768
 *		dimensions, with and without refine records, of one copy and of two, one
 *		after the other; of 10^7 the largest has 13 GB
 *		cardbytes mirrors
 *		reads lines of mirrors, which psql -AtF' ' prints of
 *		SELECT dims, pq_dim, m.lists, postings, rows,
 *			'refine=sq8' = ANY (coalesce(reloptions, '{}')), m.bytes
 *		FROM gpuvec_mirrors AS m JOIN pg_class AS c ON c.oid = index,
 *			gpuvec_index_info(index) WHERE state = 'ready'
 *		cardbytes table
 *		what an index of very many rows takes of each of several cards
 *
 * Status 1: a mirror is not within 3 % of the model.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure.h"
#include "test/unit/gpu/bytes.h"

#define TOLERANCE	0.03
#define GB			1e9
#define CAPACITY		0.9			/* of a card, that gpuvecd takes, */
#define LEAST_LEFT	2.7e9		/* and what it leaves of small ones */
/* lists as indexes choose them (src/am/common/options.c) */
#define ROWS_A_LIST	100
#define MANY_LISTS	1e5
#define VERY_MANY_ROWS	1e8

/* Dimensions, and what pq_dim follows from them: without refine, and with. */
static const int32_t shapes[][3] = {
	{96, 40, 48},
	{128, 62, 50},
	{384, 148, 136},
	{768, 384, 384},
};

static DeviceIndex
make_index(int64_t rows, const int32_t shape[3], bool records, int copies,
		   int cards)
{
	double		most = MANY_LISTS *
		fmax(1, sqrt((double) rows / VERY_MANY_ROWS));
	DeviceIndex	index = {.rows = rows,.dims = shape[0],.m = shape[1 + records],
	.lists = (int32_t) fmin((double) rows / ROWS_A_LIST, most),.postings = rows * copies,
	.records = records,.devices = cards};

	return index;
}

/* Print both; is the model good? */
static bool
compare(const DeviceIndex *index, int64_t bytes)
{
	int64_t		model = device_bytes(index);
	double		ratio = (double) model / (double) bytes;

	printf("%9lld x %4d  m %3d  %6d lists  %9lld copies  %-4s  %8.1f MB  "
		   "%6.1f a row  model %.4f\n", (long long) index->rows, index->dims,
		   index->m, index->lists, (long long) index->postings,
		   index->records ? "sq8" : "none", (double) bytes / 1e6,
		   (double) bytes / (double) index->rows, ratio);
	fflush(stdout);
	return ratio > 1 - TOLERANCE && ratio < 1 + TOLERANCE;
}

/* rows, perhaps with dimensions: "1000000x768" */
static bool
fill(const char *what)
{
	int64_t		rows = atoll(what);
	const char *dims = strchr(what, 'x');
	bool		good = true;

	for (size_t shape = 1; shape < sizeof(shapes) / sizeof(shapes[0]); shape++)
		for (int form = 0; form < 4; form++)
		{
			DeviceIndex	index;
			GvDeviceUsage usage[GV_MAX_DEVICES];
			GvMirror   *mirror;
			GvDeviceUsage usage[GV_MAX_DEVICES];

			if (dims != NULL && atoi(dims + 1) != shapes[shape][0])
				break;
			index = make_index(rows, shapes[shape], form / 2, form % 2 + 1, 1);
			mirror = device_mirror(&index);
			if (mirror == NULL)
			{
				fprintf(stderr, "cardbytes: no mirror\n");
				exit(1);
			}
			(void) gv_mirror_usage(mirror, usage);
			good &= compare(&index, usage[0].bytes);
			gv_mirror_drop(mirror);
		}
	return good;
}

static bool
compare_lines(void)
{
	DeviceIndex	index = {.devices = 1};
	long long	rows;
	long long	copies;
	long long	bytes;
	char		records;
	bool		good = true;

	while (scanf("%d %d %d %lld %lld %c %lld", &index.dims, &index.m,
				 &index.lists, &copies, &rows, &records, &bytes) == 7)
	{
		index.rows = rows;
		index.postings = copies;
		index.records = records == 't';
		good &= compare(&index, bytes);
	}
	return good;
}

/* The least card of these GB that has room for so many bytes; 0: none. */
static int
least_card(int64_t bytes)
{
	static const int cards[] = {24, 48, 80, 141};

	for (size_t i = 0; i < sizeof(cards) / sizeof(cards[0]); i++)
		if ((double) bytes <= CAPACITY * GB * cards[i] &&
			(double) bytes <= GB * cards[i] - LEAST_LEFT)
			return cards[i];
	return 0;
}

/* GB of each of 1, 2, 4 and 8 cards, and how large these have to be. */
static void
print_table(void)
{
	for (int64_t rows = 100000000; rows <= 1000000000; rows *= 10)
		for (int shape = 0; shape < 2; shape++)
			for (int form = 0; form < 4; form++)
			{
				printf("%10lld x %3d  %-4s  %d ", (long long) rows,
					   shapes[shape][0], form / 2 ? "sq8" : "none",
					   form % 2 + 1);
				for (int cards = 1; cards <= 8; cards *= 2)
				{
					DeviceIndex	index = make_index(rows, shapes[shape],
												   form / 2, form % 2 + 1,
												   cards);
					int64_t		bytes = device_bytes(&index);

					printf("  %5.1f (%3d)", (double) bytes / GB,
						   least_card(bytes));
				}
				printf("\n");
			}
}

int
main(int argc, char **argv)
{
	GvDevice	found[GV_MAX_DEVICES];
	int32_t		nfound;
	bool		good = true;

	if (argc == 2 && strcmp(argv[1], "table") == 0)
		print_table();
	else if (argc == 2 && strcmp(argv[1], "mirrors") == 0)
		good = compare_lines();
	else if (argc >= 2 && strcmp(argv[1], "fill") == 0)
	{
		CHECKED(gv_mirrors_open(&BENCH_ENGINE, "", found, &nfound));
		for (int i = 2; i < argc; i++)
			good &= fill(argv[i]);
		if (argc == 2)
			good = fill("1000000");
	}
	else
	{
		fprintf(stderr, "usage: cardbytes fill [ROWS[xDIMS]...] | mirrors | table\n");
		return 2;
	}
	return good ? 0 : 1;
}
