/* autotune.c: candidates timed on the device, and choices kept on disk, so that later runs choose the same and get the
 * same bits. Those that a run has used are kept with its checkpoints, too, and count before the ones on disk. */
#include "backends/cuda/runtime/autotune.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/platform.h"

#define MOST_BYTES 1024 /* of one key and its value */
#define MOST_FAMILIES 16

bool tarn__cuda_autotune_enabled(void)
{
    const char *text = getenv("TARN_TUNE");
    return !text || strcmp(text, "off") != 0;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows, and the files of all families */
static tarn__cuda_tuning *families[MOST_FAMILIES];       /* that have read a file */
static int family_count;
static struct given {
    int index;
    char *line;
} * given; /* by tarn__cuda_tuning_import() */
static int given_count;

static void name_file(const tarn__cuda_tuning *choices, int index, struct tarn__cuda_tuning_file *file)
{
    char folder[640], name[300];
    struct cudaDeviceProp properties;
    file->name[0] = file->path[0] = 0;
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess)
        return;
    snprintf(name, sizeof(name), "%s", properties.name);
    for (char *c = name; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9')))
            *c = '-';
    snprintf(file->name, sizeof(file->name), "%.16s-%s-%zu", choices->family, name, choices->version);
    if (tarn__platform_cache_folder(NULL, folder, sizeof(folder)))
        snprintf(file->path, sizeof(file->path), "%s/%s", folder, file->name);
}

/* Bytes as hexadecimal digits, and back. */
static void write_hex(const void *bytes, size_t count, char *text)
{
    for (size_t i = 0; i < count; i++)
        snprintf(text + 2 * i, 3, "%02x", ((const unsigned char *)bytes)[i]);
}

static bool read_hex(const char *text, void *bytes, size_t count)
{
    if (strspn(text, "0123456789abcdef") != 2 * count)
        return false;
    for (size_t i = 0; i < count; i++) {
        unsigned value;
        if (sscanf(text + 2 * i, "%2x", &value) != 1)
            return false;
        ((unsigned char *)bytes)[i] = (unsigned char)value;
    }
    return text[2 * count] == '\n' || text[2 * count] == 0;
}

static size_t bytes_of(const tarn__cuda_tuning *choices)
{
    return choices->key_bytes + choices->value_bytes;
}

static char *record_at(const tarn__cuda_tuning *choices, const struct tarn__cuda_tuning_file *file, int i)
{
    return file->records + (bytes_of(choices) + 1) * (size_t)i;
}

/* The last record with a key, NULL where there is none: one that could not be used any more has been made again behind
 * it. */
static char *find_record(const tarn__cuda_tuning *choices, const struct tarn__cuda_tuning_file *file, const void *key)
{
    for (int i = file->count - 1; i >= 0; i--)
        if (memcmp(record_at(choices, file, i), key, choices->key_bytes) == 0)
            return record_at(choices, file, i);
    return NULL;
}

/* One that there is no memory for is chosen again by the next program. */
static void add_record(const tarn__cuda_tuning *choices, struct tarn__cuda_tuning_file *file, const void *record,
                       bool is_used)
{
    size_t bytes = bytes_of(choices);
    char *more = realloc(file->records, (bytes + 1) * (size_t)(file->count + 1));
    if (!more)
        return;
    file->records = more;
    char *at = record_at(choices, file, file->count++);
    memcpy(at, record, bytes);
    at[bytes] = is_used;
}

/* A line that is not a whole choice (another version's, or cut off) is passed over. */
static void read_file(const tarn__cuda_tuning *choices, struct tarn__cuda_tuning_file *file)
{
    char line[2 * MOST_BYTES + 16], record[MOST_BYTES];
    FILE *from = file->path[0] ? fopen(file->path, "re") : NULL;
    while (from && fgets(line, sizeof(line), from))
        if (read_hex(line, record, bytes_of(choices)))
            add_record(choices, file, record, false);
    if (from)
        fclose(from);
}

/* Takes a line that was given, if it is of this file. */
static void take_given(const tarn__cuda_tuning *choices, struct tarn__cuda_tuning_file *file, const char *line)
{
    char record[MOST_BYTES];
    size_t length = strlen(file->name);
    if (length == 0 || strncmp(line, file->name, length) != 0 || line[length] != ' ' ||
        !read_hex(line + length + 1, record, bytes_of(choices)))
        return;
    const char *known = find_record(choices, file, record);
    if (!known || memcmp(known, record, bytes_of(choices)) != 0)
        add_record(choices, file, record, false);
}

static struct tarn__cuda_tuning_file *file_of(tarn__cuda_tuning *choices, int index)
{
    struct tarn__cuda_tuning_file *file = &choices->files[index];
    bool is_known = false;
    if (file->is_read)
        return file;
    name_file(choices, index, file);
    read_file(choices, file);
    file->is_read = true;
    for (int i = 0; i < given_count; i++)
        if (given[i].index == index)
            take_given(choices, file, given[i].line);
    for (int i = 0; i < family_count; i++)
        is_known = is_known || families[i] == choices;
    if (!is_known && family_count < MOST_FAMILIES)
        families[family_count++] = choices;
    return file;
}

bool tarn__cuda_tuning_find(tarn__cuda_tuning *choices, int index, const void *key, void *value)
{
    pthread_mutex_lock(&lock);
    char *record = find_record(choices, file_of(choices, index), key);
    if (record) {
        memcpy(value, record + choices->key_bytes, choices->value_bytes);
        record[bytes_of(choices)] = true;
    }
    pthread_mutex_unlock(&lock);
    return record != NULL;
}

/* One write of one line: two programs that choose at once both keep theirs. */
static void append_line(const char *path, const char *line)
{
    int file = path[0] ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (file >= 0) {
        ssize_t written = write(file, line, strlen(line));
        (void)written; /* a choice that is not kept is made again */
        close(file);
    }
}

void tarn__cuda_tuning_store(tarn__cuda_tuning *choices, int index, const void *key, const void *value)
{
    char line[2 * MOST_BYTES + 2], record[MOST_BYTES];
    memcpy(record, key, choices->key_bytes);
    memcpy(record + choices->key_bytes, value, choices->value_bytes);
    write_hex(record, bytes_of(choices), line);
    strcat(line, "\n");
    pthread_mutex_lock(&lock);
    struct tarn__cuda_tuning_file *file = file_of(choices, index);
    add_record(choices, file, record, true);
    append_line(file->path, line);
    pthread_mutex_unlock(&lock);
}

/* ---- with a run -------------------------------------------------------------------------------------------------- */

void tarn__cuda_tuning_export(int index, void (*take)(void *ctx, const char *line), void *ctx)
{
    char line[sizeof(families[0]->files[0].name) + 2 * MOST_BYTES + 2];
    pthread_mutex_lock(&lock);
    for (int k = 0; k < family_count; k++) {
        const struct tarn__cuda_tuning_file *file = &families[k]->files[index];
        for (int i = 0; i < file->count; i++) {
            const char *record = record_at(families[k], file, i);
            if (!record[bytes_of(families[k])] || !file->name[0] || find_record(families[k], file, record) != record)
                continue;
            int length = snprintf(line, sizeof(line), "%s ", file->name);
            write_hex(record, bytes_of(families[k]), line + length);
            take(ctx, line);
        }
    }
    pthread_mutex_unlock(&lock);
}

void tarn__cuda_tuning_import(int index, const char *line)
{
    pthread_mutex_lock(&lock);
    struct given *more = realloc(given, sizeof(*given) * (size_t)(given_count + 1));
    char *copy = more ? strdup(line) : NULL;
    given = more ? more : given;
    if (copy)
        given[given_count++] = (struct given){index, copy};
    for (int k = 0; k < family_count; k++)
        if (families[k]->files[index].is_read)
            take_given(families[k], &families[k]->files[index], line);
    pthread_mutex_unlock(&lock);
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

#define NEVER 1e30f

typedef struct watch {
    cudaEvent_t begin, end;
} watch;

/* Milliseconds of one of `count` runs in a row; NEVER for a candidate that fails. */
static float time_runs(const tarn__cuda_autotune *race, const watch *w, int candidate, int count)
{
    float took = 0;
    cudaEventRecord(w->begin, race->stream);
    for (int i = 0; i < count; i++)
        if (!race->run(race->context, candidate, 0))
            return NEVER;
    cudaEventRecord(w->end, race->stream);
    if (cudaEventSynchronize(w->end) != cudaSuccess || cudaEventElapsedTime(&took, w->begin, w->end) != cudaSuccess)
        return NEVER;
    return took / (float)count;
}

/* The better of two measurements of about a millisecond; a candidate far behind the best one is left at a first, short
 * one. Before that one run that does not count: kernels are loaded when they are first run, which takes longer than
 * most of them do. */
static float time_candidate(const tarn__cuda_autotune *race, const watch *w, int candidate, float best)
{
    if (time_runs(race, w, candidate, 1) >= NEVER)
        return NEVER;
    float first = time_runs(race, w, candidate, 2);
    if (first > 2 * best)
        return first;
    int count = (int)(1.0f / (first > 0.02f ? first : 0.02f)) + 1;
    float a = time_runs(race, w, candidate, count), b = time_runs(race, w, candidate, count);
    return a < b ? a : b;
}

/* Runs it twice, into two results that must be equal. */
static bool repeats_itself(const tarn__cuda_autotune *race, int candidate)
{
    int differ = 1;
    for (int i = 0; i < 2; i++) {
        cudaMemsetAsync(race->results[i], 0, race->result_bytes, race->stream);
        if (!race->run(race->context, candidate, i))
            return false;
    }
    return tarn__cuda_differs(race->results[0], race->results[1], race->result_bytes, race->differ, race->stream) &&
           cudaMemcpyAsync(&differ, race->differ, sizeof(differ), cudaMemcpyDeviceToHost, race->stream) ==
               cudaSuccess &&
           cudaStreamSynchronize(race->stream) == cudaSuccess && differ == 0;
}

/* A candidate must be faster by 1 % to pass one that the library itself puts before it. */
static int fastest(const tarn__cuda_autotune *race, const watch *w)
{
    float time[TARN__CUDA_MAX_CANDIDATES];
    int best = 0, count = race->count < TARN__CUDA_MAX_CANDIDATES ? race->count : TARN__CUDA_MAX_CANDIDATES;
    for (int i = 0; i < count; i++) {
        time[i] = time_candidate(race, w, i, i ? time[best] : NEVER);
        if (time[i] < 0.99f * time[best])
            best = i;
    }
    while (time[best] < NEVER && !repeats_itself(race, best)) {
        time[best] = NEVER;
        for (int i = 0; i < count; i++)
            best = time[i] < time[best] ? i : best;
    }
    return time[best] < NEVER ? best : -1;
}

int tarn__cuda_autotune_run(const tarn__cuda_autotune *race)
{
    watch w = {0};
    int best = -1;
    if (race->count > 0 && cudaEventCreate(&w.begin) == cudaSuccess && cudaEventCreate(&w.end) == cudaSuccess)
        best = fastest(race, &w);
    if (w.begin)
        cudaEventDestroy(w.begin);
    if (w.end)
        cudaEventDestroy(w.end);
    return best;
}
