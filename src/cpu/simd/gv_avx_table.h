/*
 * gv_avx_table.h
 *		Functions that AVX2 and AVX-512 share: for a query's table and for
 *		gathering postings, in registers of 32 bytes.
 *
 * Included by the files of these levels, which define LEVEL, the attribute of
 * their functions.
 */
/* Loads one dimension of eight words, which are `dims` apart. */
static inline LEVEL __m256
load_words(const float *words, int32_t dims)
{
	__m256i		eight = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
	__m256i		places = _mm256_mullo_epi32(eight, _mm256_set1_epi32(dims));

	return dims == 1 ? _mm256_loadu_ps(words) :
		_mm256_i32gather_ps(words, places, sizeof(float));
}

/* Loads both dimensions of eight words that have two dimensions. */
static inline LEVEL void
load_pairs(const float *words, __m256 *first, __m256 *second)
{
	__m256		a = _mm256_loadu_ps(words);
	__m256		b = _mm256_loadu_ps(words + 8);
	__m256		low = _mm256_permute2f128_ps(a, b, 0x20);
	__m256		high = _mm256_permute2f128_ps(a, b, 0x31);

	*first = _mm256_shuffle_ps(low, high, 0x88);
	*second = _mm256_shuffle_ps(low, high, 0xDD);
}

/* Like find_entries in portable.c, but computes eight entries at a time. */
static inline LEVEL void
find_entries(const float *query, const float *words, int32_t dims,
			 float weight, float *entries)
{
	int32_t		d;
	int			k;

	for (k = 0; k < GV_CODEWORDS; k += 8)
	{
		const float *from = words + (size_t) k * dims;
		__m256		sum = _mm256_setzero_ps();
		__m256		word[2];

		if (dims == 2)
			load_pairs(from, &word[0], &word[1]);
		for (d = 0; d < dims; d++)
		{
			__m256		some = dims == 2 ? word[d] : load_words(from + d, dims);

			some = _mm256_mul_ps(_mm256_set1_ps(query[d]), some);
			sum = _mm256_add_ps(sum, some);
		}
		_mm256_storeu_ps(entries + k,
						 _mm256_mul_ps(_mm256_set1_ps(weight), sum));
	}
}

/* Like find_range in portable.c. */
static inline LEVEL void
find_range(const float *entries, float *least, float *most)
{
	__m256		a = _mm256_loadu_ps(entries);
	__m256		b = _mm256_loadu_ps(entries + 8);
	__m256		low = _mm256_min_ps(b, a);
	__m256		high = _mm256_max_ps(b, a);
	__m128		low4 = _mm_min_ps(_mm256_extractf128_ps(low, 1),
								  _mm256_castps256_ps128(low));
	__m128		high4 = _mm_max_ps(_mm256_extractf128_ps(high, 1),
								   _mm256_castps256_ps128(high));

	low4 = _mm_min_ps(_mm_movehl_ps(low4, low4), low4);
	high4 = _mm_max_ps(_mm_movehl_ps(high4, high4), high4);
	*least = _mm_cvtss_f32(_mm_min_ss(_mm_shuffle_ps(low4, low4, 1), low4));
	*most = _mm_cvtss_f32(_mm_max_ss(_mm_shuffle_ps(high4, high4, 1), high4));
}

/* Computes the levels of eight entries.  They may be above the last level. */
static inline LEVEL __m256i
find_levels(const float *entries, float least, float inverse)
{
	__m256		above = _mm256_sub_ps(_mm256_loadu_ps(entries),
									  _mm256_set1_ps(least));

	return _mm256_cvttps_epi32(_mm256_mul_ps(above, _mm256_set1_ps(inverse)));
}

/* Like put_bytes in portable.c.  Packing limits the levels to 255. */
static inline LEVEL void
put_bytes(const float *entries, float least, float inverse, uint8_t *bytes)
{
	__m256i		low = find_levels(entries, least, inverse);
	__m256i		high = find_levels(entries + 8, least, inverse);
	__m256i		words = _mm256_packus_epi32(low, high);
	__m256i		packed = _mm256_packus_epi16(words, words);
	__m256i		order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);

	_mm256_storeu_si256((__m256i *) bytes,
						_mm256_permutevar8x32_epi32(packed, order));
}

/* Like gv_take_places, but returns a register. */
static inline LEVEL __m128i
take_places(uint32_t *bits)
{
	uint64_t	places[2];

	gv_take_places(bits, places);
	return _mm_set_epi64x((long long) places[1], (long long) places[0]);
}

/*
 * Stores in chosen [16] the bytes of a column that `places` selects.  Each
 * half of `places` is for a half of the column.  A posting's number is in one
 * half; in the other half its highest bit is set, so that the shuffle gives 0.
 */
static inline LEVEL void
choose(const uint8_t *column, __m256i places, uint8_t *chosen)
{
	__m256i		all = _mm256_loadu_si256((const __m256i *) column);
	__m256i		both = _mm256_shuffle_epi8(all, places);

	_mm_storeu_si128((__m128i *) chosen,
					 _mm_or_si128(_mm256_castsi256_si128(both),
								  _mm256_extracti128_si256(both, 1)));
}

/*
 * Gathers sixteen postings at a time.  `low` and `high` have the postings'
 * numbers in the two halves of a column.  The highest bit is set in the
 * numbers of postings that are in the other half.
 */
static LEVEL void
gather(const uint8_t *codes, int32_t code_bytes, uint32_t wanted,
	   uint8_t *gathered)
{
	for (; wanted != 0; gathered += 16)
	{
		__m128i		numbers = take_places(&wanted);
		__m128i		low = _mm_add_epi8(numbers, _mm_set1_epi8(0x70));
		__m128i		high = _mm_sub_epi8(numbers, _mm_set1_epi8(16));
		__m256i		places = _mm256_set_m128i(high, low);
		int32_t		p;

		for (p = 0; p + 4 <= code_bytes; p += 4)
		{
			const uint8_t *from = codes + p * GV_BLOCK;
			uint8_t    *to = gathered + p * GV_GATHERED_STRIDE;

			choose(from, places, to);
			choose(from + GV_BLOCK, places, to + GV_GATHERED_STRIDE);
			choose(from + 2 * GV_BLOCK, places, to + 2 * GV_GATHERED_STRIDE);
			choose(from + 3 * GV_BLOCK, places, to + 3 * GV_GATHERED_STRIDE);
		}
		for (; p < code_bytes; p++)
			choose(codes + p * GV_BLOCK, places,
				   gathered + p * GV_GATHERED_STRIDE);
	}
}
