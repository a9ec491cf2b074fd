/*
 * check_bytes_card.c
 *		What mirrors take of a device, beside the model of bytes.c; that what
 *		comes beyond what was expected takes little more; and what room
 *		searches of lists of any lengths have.
 */
#include <stdlib.h>
#include <string.h>

#include "../engine/mirrors.h"
#include "bytes.h"
#include "card.h"
#include "gpu/mirror/lengths.h"

#define TOLERANCE	0.03

/* With rows for 40 MB or more on each device. */
static const struct
{
	int32_t		dims;
	int32_t		m;
	bool		records;
	int			lists_per_row;			/* of a row */
	int64_t		rows;
	int32_t		devices;
	GvRowForm	stored;
	int32_t		page_rows;
}			forms[] = {
	{768, 384, true, 2, 40000, 1, GV_ROWS_NONE, 0},
	{384, 148, false, 1, 30000, 1, GV_ROWS_FLOAT, 5},
	{768, 384, false, 1, 210000, 1, GV_ROWS_NONE, 0},
	{128, 50, true, 1, 220000, 1, GV_ROWS_NONE, 0},
	{128, 62, false, 2, 440000, 1, GV_ROWS_NONE, 0},
	{128, 62, false, 1, 880000, 1, GV_ROWS_NONE, 0},
	{384, 148, false, 2, 240000, 1, GV_ROWS_NONE, 0},
	{384, 136, true, 1, 80000, 1, GV_ROWS_NONE, 0},
	{384, 136, true, 2, 160000, 2, GV_ROWS_NONE, 0},
	{768, 384, false, 2, 220000, 2, GV_ROWS_NONE, 0},
	{128, 62, false, 1, 200000, 1, GV_ROWS_FLOAT, 15},
	{128, 62, false, 1, 400000, 1, GV_ROWS_HALF, 27},
	{768, 384, false, 1, 60000, 2, GV_ROWS_HALF, 5},
	{2000, 384, false, 1, 12000, 1, GV_ROWS_FLOAT, 226},
};

/* Of the device that has most of it. */
static int64_t
most_bytes(const GvMirror *mirror)
{
	GvDeviceUsage		usage[GV_MAX_DEVICES];
	int32_t		n = gv_mirror_usage(mirror, usage);
	int64_t		most = 0;

	for (int32_t i = 0; i < n; i++)
		most = usage[i].bytes > most ? usage[i].bytes : most;
	return most;
}

static void
test_model(void)
{
	size_t		nforms = unit_small ? 2 : sizeof(forms) / sizeof(forms[0]);

	for (size_t i = 0; i < nforms; i++)
	{
		int64_t		rows = forms[i].rows;
		DeviceIndex	index = {.rows = rows,.dims = forms[i].dims,
			.m = forms[i].m,.lists = (int32_t) (rows / 100),
			.postings = rows *
				forms[i].lists_per_row,.records = forms[i].records,
		.stored = forms[i].stored,.page_rows = forms[i].page_rows,
		.devices = forms[i].devices};
		OwnMirror	mirror = NULL;
		double		ratio;

		if (index.devices > gv_ndevices())
			continue;
		mirror = device_mirror(&index);
		CHECK(mirror != NULL, "form %zu", i);
		if (mirror == NULL)
			continue;
		ratio = (double) device_bytes(&index) / (double) most_bytes(mirror);
		CHECK(ratio > 1 - TOLERANCE && ratio < 1 + TOLERANCE,
			  "form %zu: the model says %.3f of %lld bytes", i, ratio,
			  (long long) most_bytes(mirror));
	}
}

/* Records of one page more than was expected, where pages fill segments. */
static void
test_beyond(void)
{
	DeviceIndex	index = {.rows = 40000,.dims = 768,.m = 384,.lists = 400,
	.postings = 40000,.records = true,.devices = 1};
	int64_t		slots = device_record_slots(768);
	OwnMirror	mirror = device_mirror(&index);
	FREED GvRefineItem *item = calloc(1, gv_refine_stride(768));
	int64_t		bytes;

	CHECK(mirror != NULL, "no mirror");
	bytes = gv_mirror_bytes(mirror);
	for (int64_t row = index.rows; row < index.rows + 20 * slots; row += slots)
	{
		item->address[1] = (uint16_t) (20000 + row / slots);
		item->address[2] = item->rowid[2] = 1;
		CHECK(gv_mirror_put_refine(mirror, item, 1) == GV_OK, "put");
	}
	CHECK(gv_mirror_bytes(mirror) > bytes &&
		  gv_mirror_bytes(mirror) < bytes + bytes / 25,
		  "20 pages more took %lld bytes of %lld",
		  (long long) (gv_mirror_bytes(mirror) - bytes), (long long) bytes);
}

#define NLENGTHS	300			/* lists */
#define NCHANGES	3000

static int
longer_first(const void *a, const void *b)
{
	uint32_t	x = *(const uint32_t *) a;
	uint32_t	y = *(const uint32_t *) b;

	return x < y ? 1 : x > y ? -1 : 0;
}

/* Is there memory for any lists [NLENGTHS], and for an eighth more at most? */
static void
check_capacity(const struct GvLengths *lengths, const uint32_t *of)
{
	uint32_t	sorted[NLENGTHS];
	int64_t		longest = 0;

	memcpy(sorted, of, sizeof(sorted));
	qsort(sorted, NLENGTHS, sizeof(uint32_t), longer_first);
	for (int32_t i = 0; i < NLENGTHS; i++)
	{
		int64_t		bytes = gv_lengths_most(lengths, i + 1);

		longest += sorted[i];
		CHECK(bytes >= longest && bytes <= longest + longest / 8,
			  "room for %lld blocks, of the %d longest lists are %lld",
			  (long long) bytes, (int) i + 1, (long long) longest);
	}
}

/*
 * Lists of all lengths, which change; and one that is a thousand times as long
 * as others, which are to have their own room and not its.
 */
static void
test_lengths(void)
{
	static struct GvLengths lengths;
	static uint32_t of[NLENGTHS];
	int64_t		bytes;

	for (int32_t i = 0; i < NCHANGES; i++)
	{
		int32_t		list = (int32_t) (unit_random() % NLENGTHS);
		uint32_t	n = (uint32_t) unit_random() >> unit_random() % 32;

		if (of[list] > 0)
			gv_lengths_count(&lengths, of[list], -1);
		of[list] = n;
		if (n > 0)
			gv_lengths_count(&lengths, n, 1);
		if (i % 100 == 0 || i == NCHANGES - 1)
			check_capacity(&lengths, of);
	}
	memset(&lengths, 0, sizeof(lengths));
	gv_lengths_count(&lengths, 3125, 1);
	for (int32_t i = 1; i < NLENGTHS; i++)
		gv_lengths_count(&lengths, 3, 1);
	bytes = gv_lengths_most(&lengths, 32);
	CHECK(bytes == 3125 + 31 * 3, "%lld blocks", (long long) bytes);
}

void
test_bytes_card(void)
{
	test_lengths();
	test_model();
	test_beyond();
}
