/* test_leaks.c: tests of what a program leaks under the address sanitizer, in spite of support/leaks.c, which spares
 * the search where nothing can have leaked: this program starts itself, and loses a block or keeps it. */
#include <stdio.h>
#include <unistd.h>

#include "support/check.h"

static void *volatile kept;

static int lose_or_keep(const char *what)
{
    void **outer = malloc(64), **inner = malloc(48);
    if (!outer || !inner)
        return 2;
    outer[3] = inner; /* reachable by way of the other alone */
    inner[0] = NULL;
    kept = outer;
    if (strcmp(what, "both") == 0)
        kept = NULL;
    if (strcmp(what, "inner") == 0)
        outer[3] = NULL;
    /* What the stack and the registers still hold is overwritten. */
    outer = inner = NULL;
    volatile char stack[4096];
    for (size_t i = 0; i < sizeof(stack); i++)
        stack[i] = 0;
    return 0;
}

static char output[16384];

/* The exit status of this program with that argument; what it prints is in `output`. */
static int run_self(const char *argument)
{
    char command[4200], path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    assert_true(length > 0);
    path[length] = '\0';
    snprintf(command, sizeof(command), "'%s' %s 2>&1", path, argument);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t count = fread(output, 1, sizeof(output) - 1, pipe);
    output[count] = '\0';
    return pclose(pipe);
}

static void require_leak_check(void)
{
    const char *options = getenv("ASAN_OPTIONS");
#ifndef __SANITIZE_ADDRESS__
    skip();
#endif
    if (!options || !strstr(options, "detect_leaks=1"))
        skip();
}

static void blocks_that_are_kept_are_no_leak(void **state)
{
    (void)state;
    require_leak_check();
    assert_int_equal(run_self("neither"), 0);
    assert_string_equal(output, "");
}

static void a_lost_block_is_a_leak(void **state)
{
    (void)state;
    require_leak_check();
    assert_int_not_equal(run_self("inner"), 0);
    assert_contains(output, "48 byte(s) leaked in 1 allocation(s)");
}

static void a_block_behind_a_lost_one_is_a_leak(void **state)
{
    (void)state;
    require_leak_check();
    assert_int_not_equal(run_self("both"), 0);
    assert_contains(output, "112 byte(s) leaked in 2 allocation(s)");
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return lose_or_keep(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_that_are_kept_are_no_leak),
        cmocka_unit_test(a_lost_block_is_a_leak),
        cmocka_unit_test(a_block_behind_a_lost_one_is_a_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
