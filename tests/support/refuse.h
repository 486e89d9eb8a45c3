/* refuse.h: calls with bad input: NULL, wrong ranks, shapes that do not fit, wrong dtypes and devices, sizes that
 * overflow, numbers that make no sense. Each must raise an error that names its function, and an operation must work
 * afterwards. Functions that take anything are called too, and must not raise. The tests are in
 * tests/<folder>/test_bad_input*.c; tests/project/bad_input.sh fails when a public function stands in none of them. */
#ifndef TESTS_REFUSE_H
#define TESTS_REFUSE_H

#include "support/check.h"

/* The call must raise an error that names the function. A failure is printed and counted; the test goes on. */
#define REFUSE(function, ...) \
    do { \
        (void)(__VA_ARGS__); \
        check_refused(#function, #__VA_ARGS__, __LINE__); \
    } while (0)

/* The call takes anything, and must not raise. */
#define ACCEPT(...) \
    do { \
        (void)(__VA_ARGS__); \
        check_accepted(#__VA_ARGS__, __LINE__); \
    } while (0)

void check_refused(const char *function, const char *expression, int line);
void check_accepted(const char *expression, int line);

/* How many calls went wrong since it was set to 0. */
extern int refuse_failures;

/* cmocka setup and teardown: open_test() and close_test(), and a test with a call that went wrong has failed. */
int open_refusals(void **state);
int close_refusals(void **state);

#endif
