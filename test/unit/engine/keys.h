/*
 * keys.h
 *		Random keys of blocks and conditions on them, and what these mean, by
 *		naive loops.
 */
#ifndef KEYS_H
#define KEYS_H

#include "unit.h"

#define UNIT_MAX_VALUES	700		/* of a set */

static const int unit_widths[] = {1, 2, 4, 8};

/* A condition, which is its first member, and the memory of its parts. */
typedef struct UnitCondition
{
	GvCondition condition;
	GvKeyTest	tests[GV_MAX_TESTS];
	uint64_t   *values[GV_MAX_TESTS];
} UnitCondition;

static inline uint64_t
unit_most(int width)
{
	return UINT64_MAX >> (64 - 8 * width);
}

/* An abbreviated key: most are one of a few, some are extremes. */
static inline uint64_t
unit_abbrev(int width)
{
	uint64_t	most = unit_most(width);

	switch (unit_random() % 8)
	{
		case 0:
			return unit_random() % 2 ? most : 0;
		case 1:
			return most / 2 + unit_random() % 2;
		case 2:
			return unit_random() & most;
		default:
			return most / 16 * (unit_random() % 16);
	}
}

static inline GvKeyForm
unit_form(int nkeys)
{
	GvKeyForm	form = {.nkeys = nkeys};
	int			k;

	for (k = 0; k < nkeys; k++)
	{
		form.kind[k] = (uint8_t) (1 + unit_random() % 3);
		form.width[k] = (uint8_t) unit_widths[unit_random() % 4];
	}
	return form;
}

/* Posting i's abbreviated key k. */
static inline uint64_t
unit_abbrev_of(const GvKeyForm *form, const void *keys, int k, int i)
{
	const char *abbrevs = (const char *) keys + gv_keys_at(form, k);
	uint64_t	abbrev = 0;

	memcpy(&abbrev, abbrevs + (size_t) i * form->width[k], form->width[k]);
	return abbrev;
}

/*
 * Keys of a block: `among` random abbreviated keys, or all kinds of them if
 * that is 0.
 */
static inline void
unit_make_keys(const GvKeyForm *form, int among, void *keys)
{
	GvKeyHead  *heads = keys;
	int			k;
	int			i;

	memset(keys, 0, gv_keys_bytes(form));
	for (k = 0; k < form->nkeys; k++)
	{
		bool		ordered = form->kind[k] == GV_KEY_ORDERED;
		char	   *abbrevs = (char *) keys + gv_keys_at(form, k);
		int			how_null = (int) (unit_random() % 8);

		heads[k] = (GvKeyHead) {.low = ordered ? UINT64_MAX : 0};
		for (i = 0; i < GV_BLOCK; i++)
		{
			uint64_t	abbrev = among > 0 ? unit_random() % among :
				unit_abbrev(form->width[k]);

			if (how_null == 0 || (how_null < 3 && unit_random() % 4 == 0))
			{
				heads[k].nulls |= 1U << i;
				continue;
			}
			memcpy(abbrevs + i * form->width[k], &abbrev, form->width[k]);
			if (form->kind[k] == GV_KEY_HASH)
				heads[k].low |= UINT64_C(1) << abbrev % 64;
			else if (!ordered)
				heads[k].low |= abbrev;
			else
			{
				heads[k].low = abbrev < heads[k].low ? abbrev : heads[k].low;
				heads[k].high = abbrev > heads[k].high ? abbrev :
					heads[k].high;
			}
		}
	}
}

static inline int
unit_compare_abbrevs(const void *a, const void *b)
{
	uint64_t	x = *(const uint64_t *) a;
	uint64_t	y = *(const uint64_t *) b;

	return x < y ? -1 : x > y;
}

/* A set of up to n random abbreviated keys. */
static inline void
unit_make_set(GvKeyTest *test, int width, int n, uint64_t **memory)
{
	uint64_t   *values = unit_alloc(sizeof(uint64_t) * (n + 1));
	int			count = 0;
	int			i;

	for (i = 0; i < n; i++)
		values[i] = unit_random() % 2 ? unit_abbrev(width) :
			unit_random() & unit_most(width);
	qsort(values, n, sizeof(uint64_t), unit_compare_abbrevs);
	for (i = 0; i < n; i++)
		if (count == 0 || values[count - 1] != values[i])
			values[count++] = values[i];
	*memory = values;
	test->values = values;
	test->nvalues = count;
}

/* A test that a key of this kind can be given. */
static inline void
unit_make_test(GvKeyTest *test, GvKeyKind kind, int width, uint64_t **memory)
{
	int			which = (int) (unit_random() % 8);

	test->low = unit_abbrev(width);
	test->high = kind == GV_KEY_ORDERED ? unit_abbrev(width) : test->low;
	if (test->low > test->high && unit_random() % 4 > 0)
	{
		uint64_t	low = test->high;

		test->high = test->low;
		test->low = low;
	}
	if (which == 0)
		test->kind = unit_random() % 2 ? GV_TEST_NULL : GV_TEST_NOT_NULL;
	else if (kind == GV_KEY_SIGNATURE)
		test->kind = unit_random() % 2 ? GV_TEST_ANY_BIT : GV_TEST_ALL_BITS;
	else if (which < 4)
		test->kind = GV_TEST_RANGE;
	else
	{
		test->kind = GV_TEST_SET;
		unit_make_set(test, width, (int) (unit_random() %
										  (which == 7 ? UNIT_MAX_VALUES : 20)),
					  memory);
	}
}

static inline void
unit_make_condition(UnitCondition *made, const GvKeyForm *form, int ntests)
{
	int			i;

	memset(made, 0, sizeof(*made));
	made->condition.form = *form;
	made->condition.ntests = form->nkeys > 0 ? ntests : 0;
	made->condition.tests = made->tests;
	for (i = 0; i < made->condition.ntests; i++)
	{
		int			k = (int) (unit_random() % form->nkeys);

		made->tests[i].key = k;
		unit_make_test(&made->tests[i], (GvKeyKind) form->kind[k],
					   form->width[k], &made->values[i]);
	}
}

static inline void
unit_free_condition(UnitCondition *made)
{
	int			i;

	for (i = 0; i < GV_MAX_TESTS; i++)
		if (made->values[i] != NULL)
			unit_free(made->values[i]);
}

/* Is a test true of a key? */
static inline bool
naive_test(const GvKeyTest *test, uint64_t abbrev, bool null)
{
	int			v;

	switch (test->kind)
	{
		case GV_TEST_RANGE:
			return !null && abbrev >= test->low && abbrev <= test->high;
		case GV_TEST_SET:
			for (v = 0; v < test->nvalues; v++)
				if (!null && abbrev == test->values[v])
					return true;
			return false;
		case GV_TEST_ANY_BIT:
			return !null && (abbrev & test->low) != 0;
		case GV_TEST_ALL_BITS:
			return !null && (abbrev | test->low) == abbrev;
		case GV_TEST_NULL:
			return null;
		case GV_TEST_NOT_NULL:
			return !null;
	}
	abort();
}

static inline uint32_t
naive_match(const GvCondition *condition, const void *keys)
{
	const GvKeyHead *heads = keys;
	uint32_t	bits = 0;
	int			i;
	int			t;

	for (i = 0; i < GV_BLOCK; i++)
	{
		bool		all = true;

		for (t = 0; t < condition->ntests; t++)
		{
			const GvKeyTest *test = &condition->tests[t];

			all = all && naive_test(test,
									unit_abbrev_of(&condition->form, keys,
												  test->key, i),
									heads[test->key].nulls >> i & 1);
		}
		bits |= (uint32_t) all << i;
	}
	return bits;
}

/* A list, whose memory lies anywhere, and a query's table. */
typedef struct UnitList
{
	GvModel		model;
	float	   *query;
	float	   *books;
	float	   *table;
	int32_t		nblocks;
	GvBlock    *blocks;
	char	   *memory;
	uint16_t   *rowids;
	char	   *keys;
} UnitList;

/* With keys of a form, or NULL. */
static inline UnitList
unit_list(int32_t m, int32_t nblocks, float size, const GvKeyForm *form)
{
	size_t		keys_bytes = form == NULL ? 0 : gv_keys_bytes(form);
	UnitList	list;
	size_t		codes_bytes = (size_t) gv_code_bytes(m) * GV_BLOCK;
	size_t		stride = codes_bytes + sizeof(float) * GV_BLOCK + 4;
	int			dead = (int) (unit_random() % 3);
	char	   *next;
	size_t		i;
	int32_t		b;

	list.query = unit_floats(m, size);
	list.books = unit_floats((size_t) GV_CODEWORDS * m, size);
	list.model = (GvModel) {.metric = (GvMetric) (1 + unit_random() % 3),
	.dims = m,.m = m,.codebooks = list.books};
	list.table = unit_alloc(gv_table_bytes(m));
	(void) gv_table(&list.model, list.query, list.table);
	list.nblocks = nblocks;
	list.blocks = unit_alloc(sizeof(GvBlock) * (nblocks + 1));
	list.rowids = unit_alloc(sizeof(uint16_t) * 3 * GV_BLOCK * (nblocks + 1));
	for (i = 0; i < (size_t) 3 * GV_BLOCK * nblocks; i++)
		list.rowids[i] = (uint16_t) (unit_random() % 64);
	list.memory = unit_alloc(stride * nblocks);
	list.keys = unit_alloc(keys_bytes * nblocks + 1);
	next = list.memory;
	for (b = 0; b < nblocks; b++)
	{
		/* codes at any byte, T at any float */
		float	   *t = (float *) next;
		uint8_t    *codes = (uint8_t *) (t + GV_BLOCK) + unit_random() % 5;

		for (i = 0; i < GV_BLOCK; i++)
			t[i] = unit_float() * size * 3.0f;
		for (i = 0; i < codes_bytes; i++)
			codes[i] = (uint8_t) unit_random();
		list.blocks[b] = (GvBlock) {
			.codes = codes,.t = t,
			.rowids = b % 3 == 2 ? NULL : list.rowids + 96 * b,
			.first_id = GV_BLOCK * b,
			.live = dead == 0 ? UINT32_MAX : (uint32_t) unit_random(),
			/* not to be read, so it may be anywhere */
			.ahead = b % 2 == 0 ? NULL : (const uint8_t *) (uintptr_t) 4096
		};
		if (dead == 2 && unit_random() % 2 == 0)
			list.blocks[b].live = 0;
		if (form != NULL)
		{
			list.blocks[b].keys = list.keys + keys_bytes * b;
			unit_make_keys(form, (int) (unit_random() % 3),
						   list.keys + keys_bytes * b);
		}
		next += stride;
	}
	return list;
}

static inline void
unit_free_list(UnitList *list)
{
	unit_free(list->query);
	unit_free(list->books);
	unit_free(list->table);
	unit_free(list->blocks);
	unit_free(list->memory);
	unit_free(list->rowids);
	unit_free(list->keys);
}

/*
 * check_level_scans.c: a scan finds what sorting all postings of the list that
 * satisfy a condition, or NULL, finds.
 */
extern void check_scan(const UnitList *list, float base,
					   const GvCondition *condition);

#endif							/* KEYS_H */
