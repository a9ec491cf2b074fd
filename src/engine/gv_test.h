/*
 * gv_test.h
 *		Numbers that tests set, and what is done for tests alone.
 *
 * GV_TUNABLE stands before the type of a number that functions of the test
 * build set (make TEST_BUILD=1 defines GV_TEST_BUILD).  The release has its
 * first value as a constant.  GV_TEST_ONLY(statement;) is in the test build.
 */
#ifndef GV_TEST_H
#define GV_TEST_H

#ifdef GV_TEST_BUILD
#define GV_TUNABLE
#define GV_TEST_ONLY(...) __VA_ARGS__
#else
#define GV_TUNABLE const
#define GV_TEST_ONLY(...)
#endif

#endif							/* GV_TEST_H */
