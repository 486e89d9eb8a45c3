/* cache.c: compiled programs on disk, in $XDG_CACHE_HOME/tarn/opencl (or ~/.cache/tarn/opencl), one file per program.
 *
 * A file is named by a hash of its key: everything its content depends on: device name, driver version, options and
 * source. It holds a header, the key, and the bytes (a program's binary). A damaged file, or one of another
 * key with the same hash, is ignored and rewritten. Writes are atomic: a temporary file is renamed, so that concurrent
 * processes never read half of one. A failing write is logged once. TARN_OPENCL_CACHE=off disables the cache. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/opencl/runtime/opencl.h"
#include "base/os/platform.h"

#define MAX_BYTES ((uint64_t)256 << 20) /* of a plausible binary */
#define QUIET_SECONDS 2                 /* of compiling before a notice is logged */

/* The file's header; key and bytes follow. */
typedef struct head {
    char magic[16];
    uint64_t key_length, binary_length, check;
} head;

static const char magic[16] = "tarn opencl 1\n";

/* FNV-1a. */
static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

#define HASH_START 0xcbf29ce484222325u

/* ---- names ------------------------------------------------------------------------------------------------------- */

static bool is_enabled(void)
{
    const char *value = getenv("TARN_OPENCL_CACHE");
    return !(value && strcmp(value, "off") == 0);
}

/* False when the cache is off, or no folder can be created. */
static bool get_cache_folder(char *folder, size_t size)
{
    return is_enabled() && tarn__platform_cache_folder("opencl", folder, size);
}

/* The key of a program; the caller frees it. The source enters by length and hash. */
static char *key_of(const tarn__cl_device *d, const char *text, const char *options)
{
    size_t length = strlen(text), size = sizeof(d->name) + sizeof(d->driver) + strlen(options) + 64;
    char *key = malloc(size);
    if (key)
        snprintf(key, size, "%s\n%s\n%s\n%zu %016llx", d->name, d->driver, options, length,
                 (unsigned long long)hash_bytes(HASH_START, text, length));
    return key;
}

/* False without a folder: then the path is the folder that cannot be created, or empty. */
static bool get_path(const char *key, char *path, size_t size)
{
    char folder[640] = "";
    if (!get_cache_folder(folder, sizeof(folder))) {
        snprintf(path, size, "%s", folder);
        return false;
    }
    snprintf(path, size, "%s/%016llx", folder, (unsigned long long)hash_bytes(HASH_START, key, strlen(key)));
    return true;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* The bytes of an intact file with this key; the caller frees them. NULL for any other file. */
static unsigned char *read_binary(FILE *file, const char *key, size_t *length)
{
    head h;
    if (fread(&h, sizeof(h), 1, file) != 1 || memcmp(h.magic, magic, sizeof(magic)) != 0 ||
        h.key_length != strlen(key) || h.binary_length == 0 || h.binary_length > MAX_BYTES)
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

/* NULL where the driver rejects the binary; the caller then compiles the source. */
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

static unsigned char *read_entry(const char *key, size_t *length)
{
    char path[704];
    FILE *file = get_path(key, path, sizeof(path)) ? fopen(path, "rbe") : NULL;
    unsigned char *bytes = file ? read_binary(file, key, length) : NULL;
    if (file)
        fclose(file);
    return bytes;
}

cl_program tarn__cl_cache_find(tarn__cl_device *d, const char *text, const char *options)
{
    size_t length = 0;
    char *key = key_of(d, text, options);
    unsigned char *binary = key ? read_entry(key, &length) : NULL;
    cl_program program = binary ? load(d, binary, length, options) : NULL;
    free(binary);
    free(key);
    return program;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* The program's binary; the caller frees it. NULL where the driver has none. */
static unsigned char *binary_of(cl_program program, size_t *length)
{
    *length = 0;
    if (clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(*length), length, NULL) != CL_SUCCESS ||
        *length == 0 || *length > MAX_BYTES)
        return NULL;
    unsigned char *binary = malloc(*length);
    if (binary && clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(binary), &binary, NULL) == CL_SUCCESS)
        return binary;
    free(binary);
    return NULL;
}

/* False with errno. */
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

/* Once per process. `error` is an errno. */
static void warn_not_cached(const char *path, int error)
{
    static bool warned;
    if (__atomic_exchange_n(&warned, true, __ATOMIC_RELAXED))
        return;
    if (*path)
        tarn__cl_host->log(TARN_LOG_WARNING,
                           "opencl: compiled kernels cannot be cached, every run compiles them again: %s: %s "
                           "(TARN_OPENCL_CACHE=off silences this)",
                           path, strerror(error));
    else
        tarn__cl_host->log(TARN_LOG_WARNING,
                           "opencl: compiled kernels cannot be cached, every run compiles them again: "
                           "neither XDG_CACHE_HOME nor HOME is an absolute path "
                           "(TARN_OPENCL_CACHE=off silences this)");
}

/* The temporary name has process and thread, so that concurrent writers do not collide. */
static void write_entry(const char *key, const void *bytes, size_t length)
{
    char path[704], next[768];
    if (!is_enabled())
        return;
    if (!get_path(key, path, sizeof(path))) {
        warn_not_cached(path, errno);
        return;
    }
    snprintf(next, sizeof(next), "%s.%ld.%lx", path, (long)getpid(), (unsigned long)pthread_self());
    if (!write_file(next, key, bytes, length) || rename(next, path) != 0) {
        warn_not_cached(path, errno);
        remove(next);
    }
}

void tarn__cl_cache_store(tarn__cl_device *d, const char *text, const char *options, cl_program program)
{
    size_t length = 0;
    char *key = key_of(d, text, options);
    unsigned char *binary = key ? binary_of(program, &length) : NULL;
    if (binary)
        write_entry(key, binary, length);
    free(binary);
    free(key);
}

bool tarn__cl_cache_is_on(void)
{
    char folder[640];
    return get_cache_folder(folder, sizeof(folder));
}

void tarn__cl_log_compiling(const tarn__cl_device *d, double seconds)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static double spent;
    static bool logged;
    char folder[640];
    pthread_mutex_lock(&lock);
    spent += seconds;
    const bool is_slow = !logged && spent > QUIET_SECONDS;
    logged = logged || is_slow;
    pthread_mutex_unlock(&lock);
    if (is_slow && get_cache_folder(folder, sizeof(folder)))
        tarn__cl_host->log(TARN_LOG_NOTICE, "opencl:%d: compiling kernels, once; later runs load them from %s",
                           d->index, folder);
}
