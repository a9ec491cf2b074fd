/*
 * check_doubles.c
 *		The checks of selections and quantiles, of doubles.
 */
#define GV_DOUBLES
#define check_input		check_select_input
#define check_stop		check_select_stop
#define check_invalid	check_select_invalid
#define test_select		test_select_doubles
#include "selections.c"
#include "check_select.c"
#undef check_input
#undef check_stop
#undef check_invalid
#undef BAD
#define test_quantiles	test_quantiles_doubles
#include "check_quantiles.c"

void
test_doubles(void)
{
	Input		input;

	test_select();
	test_quantiles();
	for (input = 0; input < NINPUTS; input++)
	{
		check_selection_set(input, 3000, 100, GV_SELECT_AUTO);
		check_quantiles_set(input, 20000, 50, false);
		check_quantiles_set(input, 20000, 50, true);
	}
}
