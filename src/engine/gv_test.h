/*
 * gv_test.h
 *		Numbers that tests can change, and code for tests only.
 *
 * GV_TUNABLE stands before the type of a number that functions of the test
 * build can change (make TEST_BUILD=1 defines GV_TEST_BUILD).  In the release
 * the number is a constant, its initial value.  GV_TEST_ONLY(statement;) is
 * compiled in the test build only.
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
