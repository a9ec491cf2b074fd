/*
 * emulated_hopper.h
 *		What gpu/product/wgmma.cuh has of devices of compute capability 9.0, by
 *		plain loops; see there what each does.
 *
 * A copy reads its bytes when it is asked for, and they are there when
 * somebody waits for it; a product reads its inputs when somebody waits for
 * it.  So to wait too late, or to leave a place too early, shows.
 */
#ifndef EMULATED_HOPPER_H
#define EMULATED_HOPPER_H

/* Rows of 64 halves of an array [nrows][half_dims], swizzled. */
struct CUtensorMap
{
	const uint16_t *array;
	int64_t		nrows;
	int			half_dims;
	int			box_rows;
};

/* In the place of a barrier's 64 bits. */
struct __attribute__((may_alias)) gv_emulated_barrier
{
	int32_t		bytes;			/* on their way */
	uint8_t		arrivals;		/* of a phase */
	uint8_t		missing;		/* of this one */
	uint16_t	phases;			/* that are over */
};

static inline bool gv_gpu_hopper_multiplies() { return true; }

static inline GvStatus
gv_gpu_hopper_map(CUtensorMap *map, const uint16_t *array, int64_t nrows,
				  int half_dims, int box_rows)
{
	*map = {array, nrows, half_dims, box_rows};
	return GV_OK;
}

static_assert(sizeof(gv_emulated_barrier) == sizeof(uint64_t), "64 bits");

static inline gv_emulated_barrier *
gv_emulated_barrier_of(uint64_t *barrier)
{
	return (gv_emulated_barrier *) barrier;
}

/* emulate.cpp: bytes for shared memory, which count for a barrier. */
extern void gv_emulated_send(void *shared, std::vector<char> &&bytes,
							 uint64_t *barrier);
extern void gv_emulated_barrier_wait(uint64_t *barrier, int odd);
extern void gv_emulated_barrier_count(uint64_t *barrier, int arrivals,
									  int bytes);

/* emulate.cpp: products of a thread: sums [n][4] as mma.cuh has D. */
extern void gv_emulated_product(float (*sums)[4], int n, uint64_t a,
								uint64_t b);
extern void gv_emulated_products_commit();
extern void gv_emulated_products_wait(int left);

/* emulate.cpp: barriers by number, of nthreads threads. */
extern void gv_emulated_arrive(int number, int nthreads);
extern void gv_emulated_meet(int number, int nthreads);

template <int COUNT> static inline void gv_registers_give() {}
template <int COUNT> static inline void gv_registers_take() {}

static inline void
gv_barrier_init(uint64_t *barrier, int arrivals)
{
	*gv_emulated_barrier_of(barrier) = {0, (uint8_t) arrivals,
	(uint8_t) arrivals, 0};
}

static inline void gv_barriers_ready() {}

static inline void
gv_barrier_arrive(uint64_t *barrier)
{
	gv_emulated_barrier_count(barrier, 1, 0);
}

static inline void
gv_barrier_expect(uint64_t *barrier, int bytes)
{
	gv_emulated_barrier_count(barrier, 1, bytes);
}

static inline void
gv_barrier_wait(uint64_t *barrier, int odd)
{
	gv_emulated_barrier_wait(barrier, odd);
}

static inline void
gv_named_sync(int number, int nthreads)
{
	gv_emulated_meet(number, nthreads);
}

static inline void
gv_named_arrive(int number, int nthreads)
{
	gv_emulated_arrive(number, nthreads);
}

/* 16-byte piece c of a row of 128 bytes stands at c ^ (row % 8). */
static inline uintptr_t
gv_emulated_swizzle(uintptr_t address)
{
	return address ^ (address >> 7 & 7) << 4;
}

static inline void
gv_copy_box(void *shared, const CUtensorMap *map, int d, int row,
			uint64_t *barrier)
{
	std::vector<char> box(map->box_rows * GV_HOPPER_ROW, 0);

	if ((uintptr_t) shared % (8 * GV_HOPPER_ROW) != 0)
		abort();
	for (int r = 0; r < map->box_rows && row + r < map->nrows; r++)
		for (int i = 0; i < GV_HOPPER_ROW / 2 && d + i < map->half_dims; i++)
			memcpy(&box[gv_emulated_swizzle(r * GV_HOPPER_ROW + i * 2)],
				   map->array + (row + r) * (int64_t) map->half_dims + d + i,
				   2);
	gv_emulated_send(shared, std::move(box), barrier);
}

static inline void
gv_copy_bytes(void *shared, const void *global, int bytes, uint64_t *barrier)
{
	if (((uintptr_t) shared | (uintptr_t) global | (unsigned) bytes) % 16 != 0)
		abort();
	gv_emulated_send(shared, std::vector<char>((const char *) global,
											   (const char *) global + bytes),
					 barrier);
}

static inline uint64_t
gv_operand(const void *shared)
{
	return (uintptr_t) shared / 16;
}

static inline uint64_t
gv_operand_at(uint64_t operand, int k)
{
	return operand + k * (GV_HOPPER_DEPTH * 2 / 16);
}

static inline void gv_products_begin() {}
static inline void gv_products_commit() { gv_emulated_products_commit(); }

template <int LEFT>
static inline void
gv_products_wait()
{
	gv_emulated_products_wait(LEFT);
}

template <int N> static inline void gv_sums_settle(float (&sums)[N][4]) {}

template <int N>
static inline void
gv_product(float (&sums)[N][4], uint64_t a, uint64_t b)
{
	gv_emulated_product(sums, N, a, b);
}

#endif							/* EMULATED_HOPPER_H */
