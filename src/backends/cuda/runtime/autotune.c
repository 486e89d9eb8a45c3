/* autotune.c: times candidates on the device, and keeps the results in files (autotune.h).
 *
 * One lock guards all files and the imported lines. Files are only appended to; the last record of a key wins. A line
 * that cannot be read is ignored: the candidates are timed again. */
#include "backends/cuda/runtime/autotune.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/platform.h"

#define MAX_BYTES 1024 /* of a key and its value */
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
static void name_file(const tarn__cuda_tuning *tuning, int index, struct tarn__cuda_tuning_file *file)
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
    snprintf(file->name, sizeof(file->name), "%.16s-%s-%zu", tuning->family, name, tuning->version);
    if (tarn__platform_cache_folder(NULL, folder, sizeof(folder)))
        snprintf(file->path, sizeof(file->path), "%s/%s", folder, file->name);
}

/* Bytes to hexadecimal digits, and back. */
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

/* Bytes of a record, without its used flag. */
static size_t bytes_of(const tarn__cuda_tuning *tuning)
{
    return tuning->key_bytes + tuning->value_bytes;
}

static char *record_at(const tarn__cuda_tuning *tuning, const struct tarn__cuda_tuning_file *file, int i)
{
    return file->records + (bytes_of(tuning) + 1) * (size_t)i;
}

/* The last record of a key, or NULL. A choice that became unusable has a newer record after it. */
static char *find_record(const tarn__cuda_tuning *tuning, const struct tarn__cuda_tuning_file *file, const void *key)
{
    for (int i = file->count - 1; i >= 0; i--)
        if (memcmp(record_at(tuning, file, i), key, tuning->key_bytes) == 0)
            return record_at(tuning, file, i);
    return NULL;
}

/* Out of memory: not kept, so the next process chooses again. By realloc() and not tarn__array_reserve(), here and for
 * `imported`: a failure must raise no error, and the records outlive a caller's allocator. */
static void add_record(const tarn__cuda_tuning *tuning, struct tarn__cuda_tuning_file *file, const void *record,
                       bool is_used)
{
    size_t bytes = bytes_of(tuning);
    char *more = realloc(file->records, (bytes + 1) * (size_t)(file->count + 1));
    if (!more)
        return;
    file->records = more;
    char *at = record_at(tuning, file, file->count++);
    memcpy(at, record, bytes);
    at[bytes] = is_used;
}

/* Skips lines that are no whole record: another version's, or truncated. */
static void read_file(const tarn__cuda_tuning *tuning, struct tarn__cuda_tuning_file *file)
{
    char line[2 * MAX_BYTES + 16], record[MAX_BYTES];
    FILE *from = file->path[0] ? fopen(file->path, "re") : NULL;
    while (from && fgets(line, sizeof(line), from))
        if (read_hex(line, record, bytes_of(tuning)))
            add_record(tuning, file, record, false);
    if (from)
        fclose(from);
}

/* Adds an imported line to the file it belongs to, unless the same value is known. */
static void import_line(const tarn__cuda_tuning *tuning, struct tarn__cuda_tuning_file *file, const char *line)
{
    char record[MAX_BYTES];
    size_t length = strlen(file->name);
    if (length == 0 || strncmp(line, file->name, length) != 0 || line[length] != ' ' ||
        !read_hex(line + length + 1, record, bytes_of(tuning)))
        return;
    const char *known = find_record(tuning, file, record);
    if (!known || memcmp(known, record, bytes_of(tuning)) != 0)
        add_record(tuning, file, record, false);
}

/* Reads the file on first use, then the imported lines on top. Call with the lock held. */
static struct tarn__cuda_tuning_file *file_of(tarn__cuda_tuning *tuning, int index)
{
    struct tarn__cuda_tuning_file *file = &tuning->files[index];
    bool is_known = false;
    if (file->is_read)
        return file;
    name_file(tuning, index, file);
    read_file(tuning, file);
    file->is_read = true;
    for (int i = 0; i < imported_count; i++)
        if (imported[i].index == index)
            import_line(tuning, file, imported[i].line);
    for (int i = 0; i < family_count; i++)
        is_known = is_known || families[i] == tuning;
    if (!is_known && family_count < MAX_FAMILIES)
        families[family_count++] = tuning;
    return file;
}

static bool find_value(tarn__cuda_tuning *tuning, int index, const void *key, void *value, bool marks)
{
    pthread_mutex_lock(&lock);
    char *record = find_record(tuning, file_of(tuning, index), key);
    if (record)
        memcpy(value, record + tuning->key_bytes, tuning->value_bytes);
    if (record && marks)
        record[bytes_of(tuning)] = true;
    pthread_mutex_unlock(&lock);
    return record != NULL;
}

bool tarn__cuda_tuning_find(tarn__cuda_tuning *tuning, int index, const void *key, void *value)
{
    return find_value(tuning, index, key, value, true);
}

bool tarn__cuda_tuning_peek(tarn__cuda_tuning *tuning, int index, const void *key, void *value)
{
    return find_value(tuning, index, key, value, false);
}

/* One write per line: of two processes that append at once, both lines survive. */
static void append_line(const char *path, const char *line)
{
    int file = path[0] ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (file >= 0) {
        ssize_t written = write(file, line, strlen(line));
        (void)written; /* candidates whose result is not written are timed again */
        close(file);
    }
}

void tarn__cuda_tuning_store(tarn__cuda_tuning *tuning, int index, const void *key, const void *value)
{
    char line[2 * MAX_BYTES + 2], record[MAX_BYTES];
    memcpy(record, key, tuning->key_bytes);
    memcpy(record + tuning->key_bytes, value, tuning->value_bytes);
    write_hex(record, bytes_of(tuning), line);
    strcat(line, "\n");
    pthread_mutex_lock(&lock);
    struct tarn__cuda_tuning_file *file = file_of(tuning, index);
    add_record(tuning, file, record, true);
    append_line(file->path, line);
    pthread_mutex_unlock(&lock);
}

/* ---- export and import, for checkpoints -------------------------------------------------------------------------- */

/* Reports the records that this process has used, the newest of each key. */
void tarn__cuda_tuning_export(int index, void (*take)(void *ctx, const char *line), void *ctx)
{
    char line[sizeof(families[0]->files[0].name) + 2 * MAX_BYTES + 2];
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

/* The line is copied. Files that were read before get it at once, others when they are. */
void tarn__cuda_tuning_import(int index, const char *line)
{
    pthread_mutex_lock(&lock);
    struct imported *more = realloc(imported, sizeof(*imported) * (size_t)(imported_count + 1));
    char *copy = more ? strdup(line) : NULL;
    imported = more ? more : imported;
    if (copy)
        imported[imported_count++] = (struct imported){index, copy};
    for (int k = 0; k < family_count; k++)
        if (families[k]->files[index].is_read)
            import_line(families[k], &families[k]->files[index], line);
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
