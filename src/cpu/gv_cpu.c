/*
 * gv_cpu.c
 *		The table of the CPU backend.
 *
 * It is complete, always built, and with the portable kernels the oracle of
 * every other engine: those must give the same answers, row for row.
 */
#include "cpu/gv_cpu.h"

const GvBackend gv_cpu_backend = {
	.name = "cpu",
	.kmeans_scratch = gv_cpu_kmeans_scratch,
	.kmeans = gv_cpu_kmeans,
	.codebooks_scratch = gv_cpu_codebooks_scratch,
	.codebooks = gv_cpu_codebooks,
	.assign = gv_cpu_assign,
	.place_scratch = gv_cpu_place_scratch,
	.place = gv_cpu_place,
	.soar = gv_cpu_soar,
	.encode = gv_cpu_encode,
	.coarse = gv_cpu_coarse,
	.table = gv_cpu_table,
	.scan_scratch = gv_cpu_scan_scratch,
	.scan_begin = gv_cpu_scan_begin,
	.scan = gv_cpu_scan,
	.scan_finish = gv_cpu_scan_finish,
	.exact = gv_cpu_exact,
	.refine_encode = gv_cpu_refine_encode,
	.refine_bound = gv_cpu_refine_bound,
};
