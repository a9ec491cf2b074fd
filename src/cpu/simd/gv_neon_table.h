/*
 * gv_neon_table.h
 *		Codewords in NEON: the nearest one, a query's table, and gathering
 *		postings.  Included by neon.c.
 */
/* Loads one dimension of four words, which are `dims` apart. */
static inline float32x4_t
load_words(const float *words, int32_t dims)
{
	float32x4_t four;

	if (dims == 1)
		return vld1q_f32(words);
	four = vld1q_dup_f32(words);
	four = vld1q_lane_f32(words + dims, four, 1);
	four = vld1q_lane_f32(words + 2 * dims, four, 2);
	return vld1q_lane_f32(words + 3 * dims, four, 3);
}

static int32_t
nearest_word(const float *x, const float *words, int32_t dims)
{
	Wide		sums = zero();
	uint32x4_t	above[NFOURS];
	uint8x16_t	places;
	float32x4_t least;
	int32_t		d;
	int			h;

	for (d = 0; d < dims; d++)
	{
		Wide		all;
		Wide		word;

		for (h = 0; h < NFOURS; h++)
		{
			all.fours[h] = vdupq_n_f32(x[d]);
			word.fours[h] = load_words(words + h * FOUR * dims + d, dims);
		}
		add_terms(&sums, all, word, false);
	}
	least = vminq_f32(vminq_f32(sums.fours[0], sums.fours[1]),
					  vminq_f32(sums.fours[2], sums.fours[3]));
	least = vdupq_n_f32(vminvq_f32(least));
	for (h = 0; h < NFOURS; h++)
		above[h] = vcgtq_f32(sums.fours[h], least);
	places = narrow(above);
	return __builtin_ctz(~bits_of_pair(places, places));
}

/* Like find_entries in portable.c, but computes four entries at a time. */
static inline void
find_entries(const float *query, const float *words, int32_t dims,
			 float weight, float *entries)
{
	int32_t		d;
	int			k;

	for (k = 0; k < GV_CODEWORDS; k += FOUR)
	{
		const float *from = words + (size_t) k * dims;
		float32x4_t sum = vdupq_n_f32(0.0f);

		if (dims == 2)
		{
			float32x4x2_t pairs = vld2q_f32(from);

			sum = vaddq_f32(sum, vmulq_n_f32(pairs.val[0], query[0]));
			sum = vaddq_f32(sum, vmulq_n_f32(pairs.val[1], query[1]));
		}
		else
			for (d = 0; d < dims; d++)
				sum = vaddq_f32(sum, vmulq_n_f32(load_words(from + d, dims),
												 query[d]));
		vst1q_f32(entries + k, vmulq_n_f32(sum, weight));
	}
}

/* Returns b where it is less than a, else a. */
static inline float32x4_t
lesser(float32x4_t a, float32x4_t b)
{
	return vbslq_f32(vcltq_f32(b, a), b, a);
}

static inline float32x4_t
greater(float32x4_t a, float32x4_t b)
{
	return vbslq_f32(vcgtq_f32(b, a), b, a);
}

/* Like find_range in portable.c. */
static inline void
find_range(const float *entries, float *least, float *most)
{
	Wide		wide = load(entries);
	float32x4_t low = lesser(lesser(wide.fours[0], wide.fours[2]),
							 lesser(wide.fours[1], wide.fours[3]));
	float32x4_t high = greater(greater(wide.fours[0], wide.fours[2]),
							   greater(wide.fours[1], wide.fours[3]));

	low = lesser(low, vextq_f32(low, low, 2));
	high = greater(high, vextq_f32(high, high, 2));
	*least = vgetq_lane_f32(lesser(low, vextq_f32(low, low, 1)), 0);
	*most = vgetq_lane_f32(greater(high, vextq_f32(high, high, 1)), 0);
}

/*
 * Like put_bytes in portable.c.  The conversion turns negative numbers and NaN
 * into 0, and narrowing limits the levels to 255.
 */
static inline void
put_bytes(const float *entries, float least, float inverse, uint8_t *bytes)
{
	uint16x4_t	levels[NFOURS];
	uint8x8_t	low;
	uint8x8_t	high;
	int			h;

	for (h = 0; h < NFOURS; h++)
	{
		float32x4_t above = vsubq_f32(vld1q_f32(entries + h * FOUR),
									  vdupq_n_f32(least));

		levels[h] = vqmovn_u32(vcvtq_u32_f32(vmulq_n_f32(above, inverse)));
	}
	low = vqmovn_u16(vcombine_u16(levels[0], levels[1]));
	high = vqmovn_u16(vcombine_u16(levels[2], levels[3]));
	vst1q_u8(bytes, vcombine_u8(low, high));
	vst1q_u8(bytes + GV_CODEWORDS, vcombine_u8(low, high));
}

/* Gathers sixteen postings at a time.  One look-up covers a whole column. */
static void
gather(const uint8_t *codes, int32_t code_bytes, uint32_t wanted,
	   uint8_t *gathered)
{
	for (; wanted != 0; gathered += 16)
	{
		uint64_t	places[2];
		uint8x16_t	numbers;
		int32_t		p;

		gv_take_places(&wanted, places);
		numbers = vcombine_u8(vcreate_u8(places[0]), vcreate_u8(places[1]));
		for (p = 0; p < code_bytes; p++)
		{
			const uint8_t *column = codes + (size_t) p * GV_BLOCK;
			uint8x16x2_t both = {{vld1q_u8(column), vld1q_u8(column + 16)}};

			vst1q_u8(gathered + (size_t) p * GV_GATHERED_STRIDE,
					 vqtbl2q_u8(both, numbers));
		}
	}
}
