/*
 * check_doubles_card.c
 *		The checks of selections on a device, of doubles.
 */
#define GV_DOUBLES
#define test_select_card	test_doubles_card
#include "../engine/selections.c"
#include "check_select_card.c"
