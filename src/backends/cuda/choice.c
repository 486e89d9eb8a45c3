/* choice.c: candidates timed on the device, and choices kept on disk, so that later runs choose the same and get the same bits. */
#include "backends/cuda/choice.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES 1024 /* of one key and its value */

bool tarn__cuda_may_measure(void)
{
    const char *text = getenv("TARN_TUNE");
    return !text || strcmp(text, "off") != 0;
}

/* ---- the file -------------------------------------------------------------------------------------------------------------- */

/* The folder, made where it is missing; false when there is no place for it. */
static bool cache_folder(char *folder, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && cache[0] == '/')
        snprintf(folder, size, "%s", cache);
    else if (home && home[0] == '/')
        snprintf(folder, size, "%s/.cache", home);
    else
        return false;
    mkdir(folder, 0777);
    snprintf(folder + strlen(folder), size - strlen(folder), "/tarn");
    return mkdir(folder, 0777) == 0 || errno == EEXIST;
}

static void name_file(const tarn__cuda_choices *choices, int index, char *path, size_t size)
{
    char folder[640], name[300];
    struct cudaDeviceProp properties;
    path[0] = 0;
    if (!cache_folder(folder, sizeof(folder)) || cudaGetDeviceProperties(&properties, index) != cudaSuccess)
        return;
    snprintf(name, sizeof(name), "%s", properties.name);
    for (char *c = name; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9')))
            *c = '-';
    snprintf(path, size, "%s/%.16s-%s-%zu", folder, choices->family, name, choices->version);
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

/* A line that is not a whole choice (another version's, or cut off) is passed over. */
static void read_file(struct tarn__cuda_choice_file *memory, size_t bytes)
{
    char line[2 * MOST_BYTES + 16], record[MOST_BYTES];
    FILE *file = memory->path[0] ? fopen(memory->path, "re") : NULL;
    while (file && fgets(line, sizeof(line), file)) {
        if (!read_hex(line, record, bytes))
            continue;
        char *more = realloc(memory->records, bytes * (size_t)(memory->count + 1));
        if (!more)
            break;
        memory->records = more;
        memcpy(memory->records + bytes * (size_t)memory->count++, record, bytes);
    }
    if (file)
        fclose(file);
}

static struct tarn__cuda_choice_file *file_of(tarn__cuda_choices *choices, int index)
{
    struct tarn__cuda_choice_file *file = &choices->files[index];
    if (!file->is_read) {
        name_file(choices, index, file->path, sizeof(file->path));
        read_file(file, choices->key_bytes + choices->value_bytes);
        file->is_read = true;
    }
    return file;
}

bool tarn__cuda_choice_find(tarn__cuda_choices *choices, int index, const void *key, void *value)
{
    const struct tarn__cuda_choice_file *file = file_of(choices, index);
    size_t bytes = choices->key_bytes + choices->value_bytes;
    for (int i = file->count - 1; i >= 0; i--) /* one that could not be used any more has been made again */
        if (memcmp(file->records + bytes * (size_t)i, key, choices->key_bytes) == 0) {
            memcpy(value, file->records + bytes * (size_t)i + choices->key_bytes, choices->value_bytes);
            return true;
        }
    return false;
}

/* One write of one line: two programs that choose at once both keep theirs. */
void tarn__cuda_choice_keep(tarn__cuda_choices *choices, int index, const void *key, const void *value)
{
    const char *path = file_of(choices, index)->path;
    char line[2 * MOST_BYTES + 2];
    write_hex(key, choices->key_bytes, line);
    write_hex(value, choices->value_bytes, line + 2 * choices->key_bytes);
    strcat(line, "\n");
    int file = path[0] ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (file >= 0) {
        ssize_t written = write(file, line, strlen(line));
        (void)written; /* a choice that is not kept is made again */
        close(file);
    }
}

/* ---- measuring ------------------------------------------------------------------------------------------------------------- */

#define NEVER 1e30f

typedef struct watch {
    cudaEvent_t begin, end;
} watch;

/* Milliseconds of one of `count` runs in a row; NEVER for a candidate that fails. */
static float time_runs(const tarn__cuda_race *race, const watch *w, int candidate, int count)
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

/* The better of two measurements of about a millisecond; a candidate far behind the best one is left at a first, short one. Before that one run that
 * does not count: kernels are loaded when they are first run, which takes longer than most of them do. */
static float time_candidate(const tarn__cuda_race *race, const watch *w, int candidate, float best)
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
static bool repeats_itself(const tarn__cuda_race *race, int candidate)
{
    int differ = 1;
    for (int i = 0; i < 2; i++) {
        cudaMemsetAsync(race->results[i], 0, race->result_bytes, race->stream);
        if (!race->run(race->context, candidate, i))
            return false;
    }
    return tarn__cuda_differs(race->results[0], race->results[1], race->result_bytes, race->differ, race->stream) &&
           cudaMemcpyAsync(&differ, race->differ, sizeof(differ), cudaMemcpyDeviceToHost, race->stream) == cudaSuccess &&
           cudaStreamSynchronize(race->stream) == cudaSuccess && differ == 0;
}

/* A candidate must be faster by 1 % to pass one that the library itself puts before it. */
static int fastest(const tarn__cuda_race *race, const watch *w)
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

int tarn__cuda_race_run(const tarn__cuda_race *race)
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
