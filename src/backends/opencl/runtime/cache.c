/* cache.c: compiled programs and choices on disk, in $XDG_CACHE_HOME/tarn/opencl (or ~/.cache/tarn/opencl), one file
 * for each.
 *
 * A file is named by a hash of everything that what it holds depends on, its key: of a program the device's name, the
 * driver's version, the options and the text. It holds a head, the key, and the bytes, a program's binary. A file that
 * is damaged, or another key's of the same hash, is passed over and written again. Files are written under another name
 * and moved, so that no other process sees half of one. Where none can be written a warning says so, once.
 * TARN_OPENCL_CACHE=off does without. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/opencl/runtime/opencl.h"
#include "base/os/platform.h"

#define MOST_BYTES ((uint64_t)256 << 20) /* of a binary that is believed */
#define PATIENCE 2                       /* seconds of compiling that nobody is told of */

typedef struct head {
    char magic[16];
    uint64_t key_length, binary_length, check;
} head;

static const char magic[16] = "tarn opencl 1\n";

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

#define HASH_START 0xcbf29ce484222325u

/* ---- names ------------------------------------------------------------------------------------------------------- */

static bool is_wanted(void)
{
    const char *wish = getenv("TARN_OPENCL_CACHE");
    return !(wish && strcmp(wish, "off") == 0);
}

/* False when there is no place for it, or none is wanted. */
static bool cache_folder(char *folder, size_t size)
{
    return is_wanted() && tarn__platform_cache_folder("opencl", folder, size);
}

/* The key; the caller frees it. */
static char *key_of(const tarn__cl_device *d, const char *text, const char *options)
{
    size_t length = strlen(text), room = sizeof(d->name) + sizeof(d->driver) + strlen(options) + 64;
    char *key = malloc(room);
    if (key)
        snprintf(key, room, "%s\n%s\n%s\n%zu %016llx", d->name, d->driver, options, length,
                 (unsigned long long)hash_bytes(HASH_START, text, length));
    return key;
}

/* Without a folder the path is the one that cannot be made, or empty. */
static bool file_of(const char *key, char *path, size_t size)
{
    char folder[640] = "";
    if (!cache_folder(folder, sizeof(folder))) {
        snprintf(path, size, "%s", folder);
        return false;
    }
    snprintf(path, size, "%s/%016llx", folder, (unsigned long long)hash_bytes(HASH_START, key, strlen(key)));
    return true;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* The binary of a file that is whole and has this key; the caller frees it. */
static unsigned char *read_binary(FILE *file, const char *key, size_t *length)
{
    head h;
    if (fread(&h, sizeof(h), 1, file) != 1 || memcmp(h.magic, magic, sizeof(magic)) != 0 ||
        h.key_length != strlen(key) || h.binary_length == 0 || h.binary_length > MOST_BYTES)
        return NULL;
    size_t whole = (size_t)(h.key_length + h.binary_length);
    unsigned char *bytes = malloc(whole);
    if (bytes && fread(bytes, 1, whole, file) == whole && memcmp(bytes, key, (size_t)h.key_length) == 0 &&
        fgetc(file) == EOF && hash_bytes(HASH_START, bytes + h.key_length, (size_t)h.binary_length) == h.check) {
        *length = (size_t)h.binary_length;
        memmove(bytes, bytes + h.key_length, *length);
        return bytes;
    }
    free(bytes);
    return NULL;
}

/* A driver may refuse a binary: then the text is compiled. */
static cl_program load(tarn__cl_device *d, const unsigned char *binary, size_t length, const char *options)
{
    cl_int status = CL_SUCCESS, error = CL_SUCCESS;
    cl_program program = clCreateProgramWithBinary(d->context, 1, &d->id, &length, &binary, &status, &error);
    if (program && error == CL_SUCCESS && status == CL_SUCCESS &&
        clBuildProgram(program, 1, &d->id, options, NULL, NULL) == CL_SUCCESS)
        return program;
    if (program)
        clReleaseProgram(program);
    return NULL;
}

unsigned char *tarn__cl_cache_read(const char *key, size_t *length)
{
    char path[704];
    FILE *file = file_of(key, path, sizeof(path)) ? fopen(path, "rbe") : NULL;
    unsigned char *bytes = file ? read_binary(file, key, length) : NULL;
    if (file)
        fclose(file);
    return bytes;
}

cl_program tarn__cl_cache_find(tarn__cl_device *d, const char *text, const char *options)
{
    size_t length = 0;
    char *key = key_of(d, text, options);
    unsigned char *binary = key ? tarn__cl_cache_read(key, &length) : NULL;
    cl_program program = binary ? load(d, binary, length, options) : NULL;
    free(binary);
    free(key);
    return program;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* The driver's binary; the caller frees it. NULL where the driver gives none. */
static unsigned char *binary_of(cl_program program, size_t *length)
{
    *length = 0;
    if (clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(*length), length, NULL) != CL_SUCCESS ||
        *length == 0 || *length > MOST_BYTES)
        return NULL;
    unsigned char *binary = malloc(*length);
    if (binary && clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(binary), &binary, NULL) == CL_SUCCESS)
        return binary;
    free(binary);
    return NULL;
}

static bool write_file(const char *path, const char *key, const void *binary, size_t length)
{
    head h = {.key_length = strlen(key), .binary_length = length, .check = hash_bytes(HASH_START, binary, length)};
    memcpy(h.magic, magic, sizeof(magic));
    FILE *file = fopen(path, "wbe");
    if (!file)
        return false;
    bool good = fwrite(&h, sizeof(h), 1, file) == 1 && fwrite(key, 1, strlen(key), file) == strlen(key) &&
                fwrite(binary, 1, length, file) == length;
    return fclose(file) == 0 && good;
}

/* `error` is what errno says of it. */
static void tell_lost(const char *path, int error)
{
    static bool told;
    if (__atomic_exchange_n(&told, true, __ATOMIC_RELAXED))
        return;
    if (*path)
        tarn__cl_host->log(TARN_LOG_WARNING,
                           "opencl: compiled kernels are not kept, and every run compiles its own: %s: %s "
                           "(TARN_OPENCL_CACHE=off does so without a word)",
                           path, strerror(error));
    else
        tarn__cl_host->log(TARN_LOG_WARNING, "opencl: compiled kernels are not kept, and every run compiles its own: "
                                             "neither XDG_CACHE_HOME nor HOME names a folder from / on "
                                             "(TARN_OPENCL_CACHE=off does so without a word)");
}

void tarn__cl_cache_write(const char *key, const void *bytes, size_t length)
{
    char path[704], next[768];
    if (!is_wanted())
        return;
    if (!file_of(key, path, sizeof(path))) {
        tell_lost(path, errno);
        return;
    }
    snprintf(next, sizeof(next), "%s.%ld.%lx", path, (long)getpid(), (unsigned long)pthread_self());
    if (!write_file(next, key, bytes, length) || rename(next, path) != 0) {
        tell_lost(path, errno);
        remove(next);
    }
}

void tarn__cl_cache_store(tarn__cl_device *d, const char *text, const char *options, cl_program program)
{
    size_t length = 0;
    char *key = key_of(d, text, options);
    unsigned char *binary = key ? binary_of(program, &length) : NULL;
    if (binary)
        tarn__cl_cache_write(key, binary, length);
    free(binary);
    free(key);
}

bool tarn__cl_cache_is_on(void)
{
    char folder[640];
    return cache_folder(folder, sizeof(folder));
}

void tarn__cl_log_compiling(const tarn__cl_device *d, double seconds)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static double spent;
    static bool told;
    char folder[640];
    pthread_mutex_lock(&lock);
    spent += seconds;
    const bool is_due = !told && spent > PATIENCE;
    told = told || is_due;
    pthread_mutex_unlock(&lock);
    if (is_due && cache_folder(folder, sizeof(folder)))
        tarn__cl_host->log(TARN_LOG_NOTICE,
                           "opencl:%d compiles its kernels, which takes a while; later runs find them in %s", d->index,
                           folder);
}
