/*
 * gv_test.h
 *		Numbers that tests set.
 *
 * GV_TUNABLE stands before the type of a number, or before a pointer's name,
 * that functions of the test build set (make TEST_BUILD=1 defines
 * GV_TEST_BUILD).  The release has its first value as a constant.
 */
#ifndef GV_TEST_H
#define GV_TEST_H

#ifdef GV_TEST_BUILD
#define GV_TUNABLE
#else
#define GV_TUNABLE const
#endif

#endif							/* GV_TEST_H */
