/* program.c: kernels by file, function and options: compiled when first used, then cached.
 *
 * A device has a hash table of kernels, keyed by those three strings, and a list of programs: kernels of one file with
 * the same options share a program. Failures are cached too, so that a program that does not compile is tried once per
 * process. Everything here runs under the device's lock; nothing is freed before the process ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/opencl/runtime/opencl.h"
#include "base/os/platform.h"

typedef struct tarn__cl_program {
    char *source, *options;
    cl_program program; /* NULL: it does not compile */
    struct tarn__cl_program *next;
} program;

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

/* On the path of every launch, so eight characters at a time. The length is mixed in to separate the strings. */
static uint64_t hash_string(uint64_t hash, const char *text)
{
    const size_t length = strlen(text);
    uint64_t word = 0;
    for (size_t at = 0; at + sizeof(word) <= length; at += sizeof(word)) {
        memcpy(&word, text + at, sizeof(word));
        hash = mix(hash, word);
    }
    word = 0;
    memcpy(&word, text + length / sizeof(word) * sizeof(word), length % sizeof(word));
    return mix(mix(hash, word), length);
}

/* ---- program source ---------------------------------------------------------------------------------------------- */

/* A growing string; once an allocation fails it stays as it is, not good. By realloc() and not tarn__array_reserve(): a
 * failure must raise no error, because probing and tuning go on without the program. */
typedef struct text {
    char *at;
    size_t length, capacity;
    bool good;
} text;

static void append(text *t, const char *bytes, size_t length)
{
    if (t->good && t->length + length + 1 > t->capacity) {
        size_t capacity = 2 * (t->length + length + 1);
        char *more = realloc(t->at, capacity);
        t->good = more != NULL;
        t->at = more ? more : t->at;
        t->capacity = more ? capacity : t->capacity;
    }
    if (!t->good)
        return;
    memcpy(t->at + t->length, bytes, length);
    t->length += length;
    t->at[t->length] = 0;
}

/* Extracts the base name from a line `#include "folder/name"`; false for other lines. Base names are unique. */
static bool included(const char *line, size_t length, char *name, size_t size)
{
    static const char start[] = "#include \"";
    const char *begin = line + sizeof(start) - 1, *end;
    if (length < sizeof(start) || memcmp(line, start, sizeof(start) - 1) != 0 ||
        !(end = memchr(begin, '"', length - sizeof(start) + 1)))
        return false;
    for (const char *slash; (slash = memchr(begin, '/', (size_t)(end - begin))) != NULL;)
        begin = slash + 1;
    snprintf(name, size, "%.*s", (int)(end - begin), begin);
    return true;
}

#define MAX_INCLUDES 8 /* nested */

/* Expands includes recursively. Conditionals are left to the compiler, so a file behind #ifdef is expanded too. */
static void append_file(text *t, const char *name, int depth)
{
    char inner[64];
    const tarn__cl_file *file = NULL;
    for (int i = 0; i < tarn__cl_file_count && !file; i++)
        file = strcmp(tarn__cl_files[i].name, name) == 0 ? &tarn__cl_files[i] : NULL;
    t->good = t->good && file && depth < MAX_INCLUDES;
    for (size_t at = 0; t->good && at < file->length;) {
        const char *line = (const char *)file->bytes + at, *end = memchr(line, '\n', file->length - at);
        size_t length = end ? (size_t)(end - line) + 1 : file->length - at;
        if (included(line, length, inner, sizeof(inner)))
            append_file(t, inner, depth + 1);
        else
            append(t, line, length);
        at += length;
    }
}

char *tarn__cl_program_source(const char *source)
{
    text t = {.good = true};
    char name[64];
    snprintf(name, sizeof(name), "%s.cl", source);
    append_file(&t, "prelude.cl", 0);
    append_file(&t, name, 0);
    if (t.good)
        return t.at;
    free(t.at);
    return NULL;
}

/* ---- disabled kernels, for tests --------------------------------------------------------------------------------- */

bool tarn__cl_is_disabled(const char *name)
{
    size_t length = strlen(name);
    for (const char *at = tarn__cl_variable("TARN_OPENCL_DISABLE"); at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == length && strncmp(at, name, length) == 0)
            return true;
    return false;
}

/* A kernel of the table, or a .cl file. */
static bool is_known(const char *word, size_t length)
{
    for (int k = 0; k < TARN__KERNEL_COUNT; k++)
        if (strlen(tarn__kernel_names[k]) == length && strncmp(tarn__kernel_names[k], word, length) == 0)
            return true;
    for (int i = 0; i < tarn__cl_file_count; i++)
        if (strncmp(tarn__cl_files[i].name, word, length) == 0 && strcmp(tarn__cl_files[i].name + length, ".cl") == 0)
            return true;
    return false;
}

bool tarn__cl_check_disabled(char *why, size_t why_size)
{
    for (const char *at = tarn__cl_variable("TARN_OPENCL_DISABLE"); at && *at;
         at += strcspn(at, ","), at += *at == ',') {
        int length = (int)strcspn(at, ",");
        if (!is_known(at, (size_t)length)) {
            snprintf(
                why, why_size,
                "TARN_OPENCL_DISABLE: unknown name '%.*s'; must be a kernel (tanh) or a file of kernels (gemm_panels)",
                length, at);
            return false;
        }
    }
    return true;
}

/* ---- compiling --------------------------------------------------------------------------------------------------- */

static void log_build_failure(const tarn__cl_device *d, const char *source, const char *options, cl_program built)
{
    size_t length = 0;
    clGetProgramBuildInfo(built, d->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &length);
    char *log = calloc(1, length + 1);
    if (log)
        clGetProgramBuildInfo(built, d->id, CL_PROGRAM_BUILD_LOG, length, log, NULL);
    tarn__cl_host->log(TARN_LOG_INFO, "opencl:%d: %s.cl does not compile with %s: %s", d->index, source, options,
                       log ? log : "");
    free(log);
}

/* From source. NULL when it does not compile, with the driver's log at level info. */
static cl_program compile(const tarn__cl_device *d, const char *source, const char *options, const char *source_text)
{
    cl_int error;
    cl_program built = clCreateProgramWithSource(d->context, 1, &source_text, NULL, &error);
    if (!tarn__cl_check(error, "creating a program"))
        return NULL;
    if (clBuildProgram(built, 1, &d->id, options, NULL, NULL) == CL_SUCCESS) {
        tarn__cl_host->log(TARN_LOG_INFO, "opencl:%d: compiled %s.cl with %s", d->index, source, options);
        return built;
    }
    log_build_failure(d, source, options, built);
    clReleaseProgram(built);
    return NULL;
}

/* From the disk cache, or compiled and stored there. */
static cl_program find_or_compile(tarn__cl_device *d, const char *source, const char *options)
{
    char *source_text = tarn__cl_program_source(tarn__cl_is_disabled(source) ? "disabled" : source);
    if (!source_text)
        return NULL;
    cl_program built = tarn__cl_cache_find(d, source_text, options);
    if (!built) {
        const double begin = tarn__platform_seconds();
        built = compile(d, source, options, source_text);
        tarn__cl_log_compiling(d, tarn__platform_seconds() - begin);
        if (built)
            tarn__cl_cache_store(d, source_text, options, built);
    }
    free(source_text);
    return built;
}

/* Borrowed; NULL only without host memory. A program that does not compile is an entry too. */
static const program *program_of(tarn__cl_device *d, const char *source, const char *options)
{
    for (const program *p = d->programs; p; p = p->next)
        if (strcmp(p->source, source) == 0 && strcmp(p->options, options) == 0)
            return p;
    program *p = calloc(1, sizeof(*p));
    size_t size = strlen(d->options) + strlen(options) + 2;
    char *all = malloc(size);
    if (!p || !all || !(p->source = strdup(source)) || !(p->options = strdup(options))) {
        free(p ? p->source : NULL);
        free(p);
        free(all);
        return NULL;
    }
    snprintf(all, size, "%s %s", d->options, options);
    p->program = find_or_compile(d, source, all);
    p->next = d->programs;
    d->programs = p;
    free(all);
    return p;
}

/* ---- kernel table ------------------------------------------------------------------------------------------------ */

/* The slot of a kernel, or the empty one where it belongs: linear probing over a power of two. `source` NULL: any free
 * slot for the hash. */
static tarn__cl_kernel **slot_of(tarn__cl_kernel **table, size_t capacity, uint64_t hash, const char *source,
                                 const char *function, const char *options)
{
    size_t at = (size_t)hash & (capacity - 1);
    for (; table[at]; at = (at + 1) & (capacity - 1))
        if (table[at]->hash == hash && source && strcmp(table[at]->source, source) == 0 &&
            strcmp(table[at]->function, function) == 0 && strcmp(table[at]->options, options) == 0)
            break;
    return &table[at];
}

/* Grows the table before it is more than half full. */
static bool reserve_kernel(tarn__cl_device *d)
{
    if (2 * (d->kernel_count + 1) <= d->kernel_capacity)
        return true;
    size_t capacity = d->kernel_capacity ? 2 * d->kernel_capacity : 256;
    tarn__cl_kernel **table = calloc(capacity, sizeof(*table));
    if (!table)
        return false;
    for (size_t i = 0; i < d->kernel_capacity; i++)
        if (d->kernels[i])
            *slot_of(table, capacity, d->kernels[i]->hash, NULL, NULL, NULL) = d->kernels[i];
    free(d->kernels);
    d->kernels = table;
    d->kernel_capacity = capacity;
    return true;
}

/* Work-items per work-group of this kernel: registers may limit it below the device's maximum. 0 where its local memory
 * exceeds the device's. */
static size_t max_items(const tarn__cl_device *d, cl_kernel kernel)
{
    size_t items = 0;
    cl_ulong bytes = 0;
    if (clGetKernelWorkGroupInfo(kernel, d->id, CL_KERNEL_WORK_GROUP_SIZE, sizeof(items), &items, NULL) != CL_SUCCESS)
        items = d->max_group;
    if (clGetKernelWorkGroupInfo(kernel, d->id, CL_KERNEL_LOCAL_MEM_SIZE, sizeof(bytes), &bytes, NULL) == CL_SUCCESS &&
        bytes > d->local_bytes)
        return 0;
    return items < d->group_limit ? items : d->group_limit;
}

static void create_kernel(tarn__cl_device *d, tarn__cl_kernel *k)
{
    const program *p = program_of(d, k->source, k->options);
    cl_int error;
    if (!p || !p->program)
        return;
    k->kernel = clCreateKernel(p->program, k->function, &error);
    if (error != CL_SUCCESS)
        tarn__cl_host->log(TARN_LOG_INFO, "opencl:%d: %s.cl has no kernel '%s' with %s: %s", d->index, k->source,
                           k->function, k->options, tarn__cl_error_name(error));
    else
        k->max_items = max_items(d, k->kernel);
}

static tarn__cl_kernel *add_kernel(tarn__cl_device *d, uint64_t hash, const char *source, const char *function,
                                   const char *options)
{
    tarn__cl_kernel *k = reserve_kernel(d) ? calloc(1, sizeof(*k)) : NULL;
    if (!k)
        return NULL;
    *k = (tarn__cl_kernel){
        .hash = hash, .source = strdup(source), .function = strdup(function), .options = strdup(options)};
    if (!k->source || !k->function || !k->options) {
        free(k->source);
        free(k->function);
        free(k->options);
        free(k);
        return NULL;
    }
    create_kernel(d, k);
    *slot_of(d->kernels, d->kernel_capacity, hash, source, function, options) = k;
    d->kernel_count++;
    return k;
}

/* On the path of every launch: one hash and one lookup once the kernel exists. */
const tarn__cl_kernel *tarn__cl_get_kernel(tarn__cl_device *d, const char *source, const char *function,
                                           const char *options)
{
    uint64_t hash = hash_string(hash_string(hash_string(0xcbf29ce484222325u, source), function), options);
    const tarn__cl_kernel *k =
        d->kernel_capacity ? *slot_of(d->kernels, d->kernel_capacity, hash, source, function, options) : NULL;
    if (!k)
        k = add_kernel(d, hash, source, function, options);
    return k && k->kernel ? k : NULL;
}
