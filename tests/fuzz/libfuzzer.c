/* libfuzzer.c: runs a target ($TARN_FUZZ_TARGET) under clang's libFuzzer. Valid files are written to $TARN_FUZZ_SEEDS
 * first, which is passed as the corpus. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/targets.h"

int LLVMFuzzerInitialize(int *count, char ***words);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const fuzz_target *chosen;

static void write_seed(const void *bytes, size_t count, void *ctx)
{
    char path[4096];
    int *number = ctx;
    snprintf(path, sizeof(path), "%s/seed-%d", getenv("TARN_FUZZ_SEEDS"), (*number)++);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, count, file) != count || fclose(file) != 0)
        abort();
}

int LLVMFuzzerInitialize(int *count, char ***words)
{
    (void)count, (void)words;
    const char *name = getenv("TARN_FUZZ_TARGET");
    int seeds = 0;
    for (int i = 0; name && fuzz_target_at(i) && !chosen; i++)
        if (strcmp(fuzz_target_at(i)->name, name) == 0)
            chosen = fuzz_target_at(i);
    if (!chosen || !getenv("TARN_FUZZ_SEEDS")) {
        fprintf(stderr, "TARN_FUZZ_TARGET and TARN_FUZZ_SEEDS must be set; the targets are");
        for (int i = 0; fuzz_target_at(i); i++)
            fprintf(stderr, " %s", fuzz_target_at(i)->name);
        fprintf(stderr, "\n");
        exit(2);
    }
    fuzz_begin();
    chosen->seeds(write_seed, &seeds);
    atexit(fuzz_end);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_try(chosen, data, size, "input of libFuzzer");
    return 0;
}
