/*
 * doubles.c
 *		The functions of items.h for doubles.
 */
#define GV_DOUBLES
#include "cpu/select/multiselect.c"
#include "cpu/select/rows.c"
#include "cpu/select/sampleselect.c"
