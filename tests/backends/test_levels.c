/* test_levels.c: TARN_CPU_LEVEL caps the instruction level; a name that cannot be honored is a warning. The level is
 * chosen once per process, so every case runs in a child. */
#include <sys/wait.h>
#include <unistd.h>

#include "support/check.h"

#if defined(__aarch64__)
#define HIGHEST "bf16"
#define FOREIGN "avx2"
#define NAMES "base, dotprod, i8mm or bf16"
#elif defined(__x86_64__)
#define HIGHEST "amx"
#define FOREIGN "dotprod"
#define NAMES "base, avx2, avx512 or amx"
#else
#define HIGHEST "base"
#define FOREIGN "avx2"
#define NAMES "base"
#endif

static char warning[400];
static int warnings;
static char run_level[40]; /* TARN_CPU_LEVEL as it was at the start */

static void take_warning(tarn_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level != TARN_LOG_WARNING)
        return;
    snprintf(warning, sizeof(warning), "%s", text);
    warnings++;
}

/* In the child: compares the device's description and the warnings. Returns 0 where both match. */
static int ask(const char *limit, const char *detail, const char *warned)
{
    tarn_device_info info;
    tarn_set_log(take_warning, NULL);
    if (!limit)
        unsetenv("TARN_CPU_LEVEL");
    else
        setenv("TARN_CPU_LEVEL", limit, 1);
    if (!tarn_device_query(tarn_device_cpu(), &info) || !tarn_device_query(tarn_device_cpu(), &info))
        return 2;
    if (detail && strncmp(info.detail, detail, strlen(detail)) != 0)
        return 3;
    return warned ? (warnings == 1 && strstr(warning, warned) ? 0 : 4) : warnings;
}

static int status_of(const char *limit, const char *detail, const char *warned)
{
    int status = -1;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(ask(limit, detail, warned));
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void a_level_is_a_limit(void **state)
{
    (void)state;
    assert_int_equal(status_of(NULL, NULL, NULL), 0);
    assert_int_equal(status_of("", NULL, NULL), 0);
    assert_int_equal(status_of("base", "base kernels", NULL), 0);
}

static void an_unknown_level_is_warned_of(void **state)
{
    (void)state;
    assert_int_equal(status_of("fast", NULL, "TARN_CPU_LEVEL: unknown instruction level 'fast'; must be " NAMES), 0);
    assert_int_equal(status_of(FOREIGN, NULL, "'" FOREIGN "'; must be " NAMES), 0);
}

/* Used, or warned of: never neither. */
static void the_highest_level_is_used_or_warned_of(void **state)
{
    (void)state;
    if (status_of(HIGHEST, HIGHEST " kernels", NULL) != 0)
        assert_int_equal(status_of(HIGHEST, NULL, "not supported by this processor or build: " HIGHEST "; "), 0);
}

/* A level set for a run of the tests must be the one that runs. */
static void the_level_of_this_run_is_used(void **state)
{
    (void)state;
    char detail[64];
    if (!run_level[0])
        skip();
    snprintf(detail, sizeof(detail), "%s kernels", run_level);
    assert_int_equal(status_of(run_level, detail, NULL), 0);
}

int main(void)
{
    const char *limit = getenv("TARN_CPU_LEVEL");
    snprintf(run_level, sizeof(run_level), "%s", limit ? limit : "");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_level_is_a_limit),
        cmocka_unit_test(an_unknown_level_is_warned_of),
        cmocka_unit_test(the_highest_level_is_used_or_warned_of),
        cmocka_unit_test(the_level_of_this_run_is_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
