/*
 * emulated_mma.h
 *		The functions of gpu/device/mma.cuh, computed from what all lanes hold;
 *		see there what each does.
 */
#ifndef EMULATED_MMA_H
#define EMULATED_MMA_H

static inline uint32_t
gv_shared_address(const void *shared)
{
	return (uint32_t) (uintptr_t) shared;
}

static inline float
gv_half_at(const uint64_t *values, int lane, int half)
{
	return gv_from_half((uint16_t) (values[lane] >> 16 * half));
}

/* A lane's a of rows g and g + 8, and its columns, as all lanes bring them. */
static inline void
gv_emulated_operands(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
					 uint64_t (&rows)[2][32], uint64_t (&columns)[32])
{
	gv_emulated_share(a[0] | (uint64_t) a[2] << 32, rows[0]);
	gv_emulated_share(a[1] | (uint64_t) a[3] << 32, rows[1]);
	gv_emulated_share(b0 | (uint64_t) b1 << 32, columns);
}

static inline void
gv_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	int			lane = threadIdx.x % 32;
	uint64_t	rows[2][32];	/* a lane's columns of rows g and g + 8 */
	uint64_t	columns[32];

	gv_emulated_operands(a, b0, b1, rows, columns);
	for (int i = 0; i < 4; i++)
		for (int t = 0; t < 4; t++)
			for (int half = 0; half < 4; half++)
				d[i] += gv_half_at(rows[i / 2], lane / 4 * 4 + t, half) *
					gv_half_at(columns, (lane % 4 * 2 + i % 2) * 4 + t, half);
}

static inline int32_t
gv_dot_bytes(uint32_t a, uint32_t b)
{
	int32_t		sum = 0;

	for (int shift = 0; shift < 32; shift += 8)
		sum += (int8_t) (a >> shift) * (int8_t) (b >> shift);
	return sum;
}

static inline void
gv_mma_bytes(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	int			lane = threadIdx.x % 32;
	uint64_t	rows[2][32];	/* a lane's columns of rows g and g + 8 */
	uint64_t	columns[32];

	gv_emulated_operands(a, b0, b1, rows, columns);
	for (int i = 0; i < 4; i++)
		for (int t = 0; t < 4; t++)
			for (int shift = 0; shift < 64; shift += 32)
				d[i] += gv_dot_bytes((uint32_t) (rows[i / 2][lane / 4 * 4 + t] >>
												 shift),
									 (uint32_t) (columns[(lane % 4 * 2 +
														  i % 2) * 4 + t] >>
												 shift));
}

static inline void
gv_load_matrices(uint32_t (&words)[4], const void *shared_row)
{
	int			lane = threadIdx.x % 32;
	uint64_t	rows[32];

	gv_emulated_share((uint64_t) (uintptr_t) shared_row, rows);
	for (int m = 0; m < 4; m++)
	{
		const uint32_t *row = (const uint32_t *) (uintptr_t)
			rows[8 * m + lane / 4];

		words[m] = row[lane % 4];
	}
}

static inline void
gv_copy_async(void *shared, const void *global, bool there)
{
	if (there)
		memcpy(shared, global, 16);
	else
		memset(shared, 0, 16);
}

static inline void gv_commit_copies() {}
template <int LEFT> static inline void gv_wait_copies() {}

#endif							/* EMULATED_MMA_H */
