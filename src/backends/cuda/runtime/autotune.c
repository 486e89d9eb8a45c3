/* autotune.c: times candidates on the device, and keeps the results in files (base/os/tuning_cache.h). One lock guards
 * all files and the imported lines. */
#include "backends/cuda/runtime/autotune.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FAMILIES 16

bool tarn__cuda_autotune_enabled(void)
{
    const char *text = tarn__cuda_env("TARN_AUTOTUNE", "TARN_TUNE");
    return !text || strcmp(text, "off") != 0;
}

/* ---- tuning files ------------------------------------------------------------------------------------------------ */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the following, and the files of all families */
static tarn__cuda_tuning *families[MAX_FAMILIES];        /* families that have read a file */
static int family_count;
static struct imported {
    int index;
    char *line;
} * imported; /* lines from a checkpoint, in the order of import */
static int imported_count;

/* FAMILY-DEVICE-VERSION, with everything but letters and digits of the device's name replaced. */
static void name_file(const tarn__cuda_tuning *tuning, int index, char *name, size_t size)
{
    char device[300];
    struct cudaDeviceProp properties;
    name[0] = 0;
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess)
        return;
    snprintf(device, sizeof(device), "%s", properties.name);
    for (char *c = device; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9')))
            *c = '-';
    snprintf(name, size, "%.16s-%s-%zu", tuning->family, device, tuning->version);
}

/* Reads the file on first use, then the imported lines on top. Call with the lock held. */
static tarn__tuning_cache *file_of(tarn__cuda_tuning *tuning, int index)
{
    tarn__tuning_cache *file = &tuning->files[index];
    char name[sizeof(file->name)];
    bool is_known = false;
    if (file->is_open)
        return file;
    file->key_bytes = tuning->key_bytes;
    file->value_bytes = tuning->value_bytes;
    name_file(tuning, index, name, sizeof(name));
    tarn__tuning_cache_open(file, NULL, name);
    for (int i = 0; i < imported_count; i++)
        if (imported[i].index == index)
            tarn__tuning_cache_import(file, imported[i].line);
    for (int i = 0; i < family_count; i++)
        is_known = is_known || families[i] == tuning;
    if (!is_known && family_count < MAX_FAMILIES)
        families[family_count++] = tuning;
    return file;
}

static bool find_value(tarn__cuda_tuning *tuning, int index, const void *key, void *value, bool marks)
{
    pthread_mutex_lock(&lock);
    bool is_found = tarn__tuning_cache_find(file_of(tuning, index), key, value, marks);
    pthread_mutex_unlock(&lock);
    return is_found;
}

bool tarn__cuda_tuning_find(tarn__cuda_tuning *tuning, int index, const void *key, void *value)
{
    return find_value(tuning, index, key, value, true);
}

bool tarn__cuda_tuning_peek(tarn__cuda_tuning *tuning, int index, const void *key, void *value)
{
    return find_value(tuning, index, key, value, false);
}

void tarn__cuda_tuning_store(tarn__cuda_tuning *tuning, int index, const void *key, const void *value)
{
    pthread_mutex_lock(&lock);
    tarn__tuning_cache_store(file_of(tuning, index), key, value);
    pthread_mutex_unlock(&lock);
}

/* ---- export and import, for checkpoints -------------------------------------------------------------------------- */

void tarn__cuda_tuning_export(int index, void (*take)(void *ctx, const char *line), void *ctx)
{
    pthread_mutex_lock(&lock);
    for (int k = 0; k < family_count; k++)
        tarn__tuning_cache_export(&families[k]->files[index], take, ctx);
    pthread_mutex_unlock(&lock);
}

/* The line is copied. Files that were read before get it at once, others when they are. By realloc(): a failure must
 * raise no error, and the lines outlive a caller's allocator. */
void tarn__cuda_tuning_import(int index, const char *line)
{
    pthread_mutex_lock(&lock);
    struct imported *more = realloc(imported, sizeof(*imported) * (size_t)(imported_count + 1));
    char *copy = more ? strdup(line) : NULL;
    imported = more ? more : imported;
    if (copy)
        imported[imported_count++] = (struct imported){index, copy};
    for (int k = 0; k < family_count; k++)
        if (families[k]->files[index].is_open)
            tarn__tuning_cache_import(&families[k]->files[index], line);
    pthread_mutex_unlock(&lock);
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

#define NEVER 1e30f

typedef struct timer {
    cudaEvent_t begin, end;
} timer;

/* Milliseconds per run over `count` runs; NEVER if the candidate fails. */
static float time_runs(const tarn__cuda_autotune *tune, const timer *w, int candidate, int count)
{
    float took = 0;
    cudaEventRecord(w->begin, tune->stream);
    for (int i = 0; i < count; i++)
        if (!tune->run(tune->context, candidate, 0))
            return NEVER;
    cudaEventRecord(w->end, tune->stream);
    if (cudaEventSynchronize(w->end) != cudaSuccess || cudaEventElapsedTime(&took, w->begin, w->end) != cudaSuccess)
        return NEVER;
    return took / (float)count;
}

/* The better of two measurements of about 1 ms; a candidate twice as slow as the best stops after a first, short one.
 * An untimed run comes first: the first launch of a kernel loads its code. */
static float time_candidate(const tarn__cuda_autotune *tune, const timer *w, int candidate, float best)
{
    if (time_runs(tune, w, candidate, 1) >= NEVER)
        return NEVER;
    float first = time_runs(tune, w, candidate, 2);
    if (first > 2 * best)
        return first;
    int count = (int)(1.0f / (first > 0.02f ? first : 0.02f)) + 1;
    float a = time_runs(tune, w, candidate, count), b = time_runs(tune, w, candidate, count);
    return a < b ? a : b;
}

/* Runs the candidate twice, from cleared results: they must be bitwise equal. */
static bool is_deterministic(const tarn__cuda_autotune *tune, int candidate)
{
    int differ = 1;
    for (int i = 0; i < 2; i++) {
        cudaMemsetAsync(tune->results[i], 0, tune->result_bytes, tune->stream);
        if (!tune->run(tune->context, candidate, i))
            return false;
    }
    return tarn__cuda_differs(tune->results[0], tune->results[1], tune->result_bytes, tune->differ, tune->stream) &&
           cudaMemcpyAsync(&differ, tune->differ, sizeof(differ), cudaMemcpyDeviceToHost, tune->stream) ==
               cudaSuccess &&
           cudaStreamSynchronize(tune->stream) == cudaSuccess && differ == 0;
}

/* A later candidate must be 1 % faster: noise must not override the library's order. If the winner is not
 * deterministic, the next fastest is tried. */
static int fastest(const tarn__cuda_autotune *tune, const timer *w)
{
    float time[TARN__CUDA_MAX_CANDIDATES];
    int best = 0, count = tune->count < TARN__CUDA_MAX_CANDIDATES ? tune->count : TARN__CUDA_MAX_CANDIDATES;
    for (int i = 0; i < count; i++) {
        time[i] = time_candidate(tune, w, i, i ? time[best] : NEVER);
        if (time[i] < 0.99f * time[best])
            best = i;
    }
    while (time[best] < NEVER && !is_deterministic(tune, best)) {
        time[best] = NEVER;
        for (int i = 0; i < count; i++)
            best = time[i] < time[best] ? i : best;
    }
    return time[best] < NEVER ? best : -1;
}

int tarn__cuda_autotune_run(const tarn__cuda_autotune *tune)
{
    timer w = {0};
    int best = -1;
    if (tune->count > 0 && cudaEventCreate(&w.begin) == cudaSuccess && cudaEventCreate(&w.end) == cudaSuccess)
        best = fastest(tune, &w);
    if (w.begin)
        cudaEventDestroy(w.begin);
    if (w.end)
        cudaEventDestroy(w.end);
    return best;
}
