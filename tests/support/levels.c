#include "support/levels.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tarn/tarn.h>

/* As src/backends/cpu/runtime/backend.c has them. */
static const char *const names[] = {
#if defined(__x86_64__)
    "base",
    "avx2",
    "avx512",
    "amx",
#elif defined(__aarch64__)
    "base",
    "dotprod",
    "i8mm",
    "bf16",
#else
    "base",
#endif
};

enum { NAMES = sizeof(names) / sizeof(names[0]), NOT_HERE = 254, CRASHED = 255 };

int level_count(void)
{
    return NAMES;
}

const char *level_name(int level)
{
    return names[level];
}

int current_level(void)
{
    tarn_device_info info;
    if (tarn_device_query(tarn_device_cpu(), &info))
        for (int i = 0; i < NAMES; i++)
            if (!strncmp(info.detail, names[i], strlen(names[i])) && info.detail[strlen(names[i])] == ' ')
                return i;
    return 0;
}

/* In a process of its own, whose status is the number of failures. */
static void run_alone(int (*tests)(void), int level)
{
    setenv("TARN_CPU_LEVEL", names[level], 1);
    if (current_level() != level) {
        printf("level %s: not on this processor\n", names[level]);
        fflush(stdout);
        _exit(NOT_HERE);
    }
    printf("level %s\n", names[level]);
    fflush(stdout);
    int failures = tests();
    exit(failures < NOT_HERE ? failures : NOT_HERE - 1);
}

int run_at_every_level(int (*tests)(void))
{
    if (getenv("TARN_CPU_LEVEL"))
        return tests();
    int failures = 0, runs = 0;
    for (int level = 0; level < NAMES; level++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0)
            run_alone(tests, level);
        int status, code = CRASHED;
        if (child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status))
            code = WEXITSTATUS(status);
        if (code == CRASHED)
            printf("level %s: the tests did not come to their end\n", names[level]);
        runs += code != NOT_HERE;
        failures += code == NOT_HERE ? 0 : code;
    }
    return runs == 0 ? 1 : failures;
}

bool is_emulated(void)
{
    const char *value = getenv("TARN_TEST_EMULATED");
    return value && *value && strcmp(value, "0") != 0;
}

bool is_nan_of(const void *value, int size)
{
    uint64_t wide = 0;
    uint32_t narrow = 0;
    uint16_t half = 0;
    if (size == 8) {
        memcpy(&wide, value, 8);
        return (wide & UINT64_C(0x7fffffffffffffff)) > UINT64_C(0x7ff0000000000000);
    }
    if (size == 4) {
        memcpy(&narrow, value, 4);
        return (narrow & UINT32_C(0x7fffffff)) > UINT32_C(0x7f800000);
    }
    memcpy(&half, value, 2);
    return (half & 0x7fff) > (size == -2 ? 0x7f80 : 0x7c00);
}

bool is_same_float(const void *a, const void *b, int size)
{
    return !memcmp(a, b, (size_t)abs(size)) || (is_emulated() && is_nan_of(a, size) && is_nan_of(b, size));
}
