/*
 * card.h
 *		What the checks of a device share.
 */
#ifndef CARD_H
#define CARD_H

#include "../engine/sets.h"

/* Of emulate/; not there on a device. */
extern int64_t gv_emulated_fault __attribute__((weak));
extern int64_t gv_emulated_refusal __attribute__((weak));
extern int64_t gv_emulated_unrecorded __attribute__((weak));
extern unsigned gv_emulated_hung __attribute__((weak));
extern size_t gv_emulated_memory __attribute__((weak));
extern size_t gv_emulated_used(int device) __attribute__((weak));
extern int	gv_emulated_capability __attribute__((weak));
extern int	gv_emulated_code __attribute__((weak));

/* gpu/kmeans, gpu/product, gpu/device */
extern int32_t gv_kmeans_piece;
extern int32_t gv_kmeans_columns;
extern int32_t gv_kmeans_early;
extern bool gv_kmeans_reassigns_all;
extern int32_t gv_matmul_width;
extern bool gv_has_hopper(int32_t device);

/* A step of a thread takes a processor a hundred times as long as its own. */
static inline bool
device_is_emulated(void)
{
	return &gv_emulated_fault != NULL;
}

/*
 * check_card.c: the engine of sets, gv_cuda_sets, in whose place a check can
 * put gv_cpu_sets for sets that it then creates
 */
extern GvSetBackend unit_sets;

/* check_card.c: checks that a set takes from `least` bytes to what it says. */
extern void check_set_bytes(const GvSetSpec *spec, int64_t least);

/* One function a file, or a part of check_card. */
extern void test_arrive_card(void);
extern void test_bytes_card(void);
extern void test_doubles_card(void);
extern void test_exact_card(void);
extern void test_faults_card(void);
extern void test_kmeans_card(void);
extern void test_lists_card(void);
extern void test_open_card(void);
extern void test_products_card(void);
extern void test_select_card(void);

#endif							/* CARD_H */
