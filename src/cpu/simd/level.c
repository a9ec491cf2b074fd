/*
 * level.c
 *		The choice among the tables of kernels.
 *
 * A processor never executes instructions that it lacks.  Only their own table
 * names the functions that have these instructions, and that table is used
 * only if the processor has them and the system saves their registers.
 */
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "cpu/simd/gv_kernels.h"

const GvKernels *gv_kernels = &gv_portable_kernels;

#ifdef __x86_64__
/*
 * Returns whether the processor converts half precision to floats.  clang has
 * no name for this feature that __builtin_cpu_supports would accept.
 */
static bool
has_f16c(void)
{
	unsigned int eax;
	unsigned int ebx;
	unsigned int ecx = 0;
	unsigned int edx;

	return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
		(ecx & bit_F16C) != 0;
}
#endif

/* Returns the kernels of a level, or NULL if the processor lacks the level. */
static const GvKernels *
kernels_of(GvSimd level)
{
#ifdef __x86_64__
	__builtin_cpu_init();
	if (level == GV_SIMD_AVX512 && __builtin_cpu_supports("avx512f") &&
		__builtin_cpu_supports("avx512bw"))
		return &gv_avx512_kernels;
	if (level == GV_SIMD_AVX2 && __builtin_cpu_supports("avx2") &&
		__builtin_cpu_supports("fma") && has_f16c())
		return &gv_avx2_kernels;
#endif
#ifdef GV_HAS_NEON
	if (level == GV_SIMD_NEON)
		return &gv_neon_kernels;
#endif
	return level == GV_SIMD_PORTABLE ? &gv_portable_kernels : NULL;
}

const char *
gv_simd_name(GvSimd level)
{
	static const char *const names[GV_NSIMD] = {
		[GV_SIMD_AUTO] = "auto",
		[GV_SIMD_PORTABLE] = "portable",
		[GV_SIMD_AVX2] = "avx2",
		[GV_SIMD_AVX512] = "avx512",
		[GV_SIMD_NEON] = "neon"
	};

	return names[level];
}

bool
gv_simd_has(GvSimd level)
{
	return level == GV_SIMD_AUTO || kernels_of(level) != NULL;
}

void
gv_simd_use(GvSimd level)
{
	const GvKernels *kernels = NULL;

	if (level != GV_SIMD_AUTO)
		kernels = kernels_of(level);
	else
		for (level = GV_NSIMD - 1; kernels == NULL; level--)
			kernels = kernels_of(level);
	if (kernels != NULL)
		gv_kernels = kernels;
}
