/* features.c: optional features of devices, probed before use, and the environment variables that override them.
 *
 * Beyond OpenCL 1.2 kernels use f16 arithmetic (cl_khr_fp16), subgroups with shuffles (cl_intel_subgroups,
 * cl_khr_subgroup_shuffle), and on NVIDIA GPUs tensor cores through inline PTX. Drivers may announce features that give
 * wrong results, so probe.cl is compiled and run once per device; where it fails the device is used as if it lacked the
 * feature. TARN_OPENCL_FP16=0, TARN_OPENCL_SUBGROUPS=0 and TARN_OPENCL_MMA=0 have the same effect.
 *
 * Variables are checked when the backend is opened. An invalid value is an error: ignoring it would silently test or
 * measure something else. An empty one counts as unset. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/opencl/runtime/opencl.h"

/* ---- environment variables --------------------------------------------------------------------------------------- */

/* Names of earlier versions, which still work; the current name wins where both are set. */
static const struct {
    const char *name, *old;
} renamed[] = {
    {"TARN_OPENCL_DISABLE", "TARN_OPENCL_WITHOUT"},
    {"TARN_OPENCL_WORKGROUP", "TARN_OPENCL_GROUP"},
    {"TARN_OPENCL_LOCAL_BYTES", "TARN_OPENCL_GROUP_MEMORY"},
    {"TARN_OPENCL_LOCAL_MEM", "TARN_OPENCL_LOCAL"},
    {"TARN_AUTOTUNE", "TARN_TUNE"},
};

/* The name under which a variable is set, for errors: the current one unless only the old one is. */
static const char *name_in_use(const char *name)
{
    const char *value = getenv(name);
    for (size_t i = 0; i < sizeof(renamed) / sizeof(renamed[0]) && !(value && *value); i++)
        if (strcmp(renamed[i].name, name) == 0 && getenv(renamed[i].old))
            return renamed[i].old;
    return name;
}

const char *tarn__cl_variable(const char *name)
{
    return getenv(name_in_use(name));
}

/* Valid values: one of two words or, without words, an integer from `min`. */
typedef struct variable {
    const char *name, *word, *other;
    unsigned long long min;
} variable;

static const variable variables[] = {
    {"TARN_OPENCL_CACHE", "off", "on", 0},      {"TARN_OPENCL_FP64", "0", "1", 0},
    {"TARN_OPENCL_FP16", "0", "1", 0},          {"TARN_OPENCL_SUBGROUPS", "0", "1", 0},
    {"TARN_OPENCL_MMA", "0", "1", 0},           {"TARN_OPENCL_LOCAL_MEM", "1", "0", 0},
    {"TARN_OPENCL_MEMORY", NULL, NULL, 1},      {"TARN_OPENCL_WORKGROUP", NULL, NULL, 1},
    {"TARN_OPENCL_LOCAL_BYTES", NULL, NULL, 1}, {"TARN_OPENCL_TILE", NULL, NULL, 0},
};

static bool is_integer(const char *text, unsigned long long min)
{
    char *end;
    errno = 0; /* strtoull() reports an overflow through it */
    return strspn(text, "0123456789") == strlen(text) && strtoull(text, &end, 10) >= min && errno == 0;
}

static bool check_variable(const variable *v, const char *text, char *why, size_t why_size)
{
    if (v->word) {
        snprintf(why, why_size, "%s is '%s'; must be '%s' or '%s'", name_in_use(v->name), text, v->word, v->other);
        return strcmp(text, v->word) == 0 || strcmp(text, v->other) == 0;
    }
    snprintf(why, why_size, "%s is '%s'; must be an integer, at least %llu", name_in_use(v->name), text, v->min);
    return is_integer(text, v->min);
}

bool tarn__cl_check_variables(char *why, size_t why_size)
{
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        const char *text = tarn__cl_variable(variables[i].name);
        if (text && *text && !check_variable(&variables[i], text, why, why_size))
            return false;
    }
    return tarn__cl_check_disabled(why, why_size);
}

/* ---- probes ------------------------------------------------------------------------------------------------------ */

#define ITEMS 64 /* work-items of a probe: several subgroups on every device */

/* Runs a kernel of probe.cl on `values`, in and out. It bypasses the launch API, which needs probed features. */
static bool run(tarn__cl_device *d, cl_program program, const char *function, void *values, size_t bytes)
{
    cl_int error;
    const size_t items = ITEMS;
    cl_kernel kernel = clCreateKernel(program, function, &error);
    cl_mem memory = error == CL_SUCCESS
                        ? clCreateBuffer(d->context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes, values, &error)
                        : NULL;
    bool good = error == CL_SUCCESS && clSetKernelArg(kernel, 0, sizeof(memory), &memory) == CL_SUCCESS &&
                clEnqueueNDRangeKernel(d->queue, kernel, 1, NULL, &items, &items, 0, NULL, NULL) == CL_SUCCESS &&
                clEnqueueReadBuffer(d->queue, memory, CL_TRUE, 0, bytes, values, 0, NULL, NULL) == CL_SUCCESS;
    if (memory)
        clReleaseMemObject(memory);
    if (kernel)
        clReleaseKernel(kernel);
    return good;
}

/* Compiles probe.cl with the device's current options and runs one kernel of it. */
static bool probe(tarn__cl_device *d, const char *function, void *values, size_t bytes)
{
    char options[256];
    cl_int error;
    char *text = tarn__cl_program_source("probe");
    snprintf(options, sizeof(options), "%s -DGROUP=%d", d->options, ITEMS);
    cl_program program = text ? clCreateProgramWithSource(d->context, 1, (const char **)&text, NULL, &error) : NULL;
    bool good = program && clBuildProgram(program, 1, &d->id, options, NULL, NULL) == CL_SUCCESS &&
                run(d, program, function, values, bytes);
    if (program)
        clReleaseProgram(program);
    free(text);
    return good;
}

/* Work-item i adds 2^(i % 8) · (1 + i / 8): a lost, repeated or misplaced lane changes the sum, 255 · 36. */
static bool probe_subgroups(tarn__cl_device *d)
{
    float values[ITEMS] = {0};
    bool good = probe(d, "subgroups", values, sizeof(values));
    for (int i = 0; i < ITEMS; i++)
        good = good && values[i] == 255 * 36 * ITEMS + ITEMS - 1;
    return good;
}

/* f16 to f32 and back must be exact. */
static bool probe_f16(tarn__cl_device *d)
{
    uint16_t values[ITEMS];
    for (int i = 0; i < ITEMS; i++)
        values[i] = (uint16_t)(i * 485); /* subnormals and normals, none infinite or NaN */
    bool good = probe(d, "halves", values, sizeof(values));
    for (int i = 0; i < ITEMS; i++)
        good = good && values[i] == (uint16_t)(i * 485);
    return good;
}

/* Work-item i has rows `line` and line + 8 of columns 2 · pair and 2 · pair + 1. Sums are exact in f32. */
static bool probe_mma(tarn__cl_device *d)
{
    float values[ITEMS] = {0};
    bool good = probe(d, "tensor_cores", values, sizeof(values));
    for (int i = 0; i < ITEMS; i++) {
        const int line = i % 32 / 4, pair = i % 4;
        const int first = 16 * (2 * pair + 1), second = 16 * (2 * pair + 2);
        good = good &&
               values[i] == (float)((line + 1) * (first + 3 * second) + (line + 9) * (5 * first + 7 * second) + pair);
    }
    return good;
}

static void log_unused(const tarn__cl_device *d, const char *feature)
{
    tarn__cl_host->log(TARN_LOG_INFO, "opencl:%d: %s failed the probe and are not used", d->index, feature);
}

void tarn__cl_probe_features(tarn__cl_device *d)
{
    const char *subgroups = d->subgroups;
    const bool has_mma = d->has_mma;
    d->subgroups = NULL; /* one feature at a time: a failure of one must not hide the other */
    d->has_mma = false;
    tarn__cl_set_build_options(d);
    if (d->has_f16 && !probe_f16(d)) {
        d->has_f16 = false;
        log_unused(d, "f16 loads and stores");
    }
    d->subgroups = subgroups;
    tarn__cl_set_build_options(d);
    if (subgroups && !probe_subgroups(d)) {
        d->subgroups = NULL;
        log_unused(d, "subgroups");
    }
    d->has_mma = has_mma;
    tarn__cl_set_build_options(d);
    if (has_mma && !d->emulates_mma && !probe_mma(d)) {
        d->has_mma = false;
        log_unused(d, "tensor cores");
    }
    tarn__cl_set_build_options(d);
}
