/* features.c: what kernels may use of a device beyond OpenCL 1.2: halves (cl_khr_fp16), and subgroups that hand numbers
 * over (cl_intel_subgroups, cl_khr_subgroup_shuffle). What a device says it has is tried before it is used: probe.cl is
 * compiled and run, and where it fails the device is used as if it had none. TARN_OPENCL_FP16=0 and
 * TARN_OPENCL_SUBGROUPS=0 do so, too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/opencl/runtime/opencl.h"

#define ITEMS 64

/* Runs a kernel of probe.cl on `values`, which it changes. */
static bool run(tarn__cl_device *d, cl_program made, const char *function, void *values, size_t bytes)
{
    cl_int error;
    const size_t items = ITEMS;
    cl_kernel kernel = clCreateKernel(made, function, &error);
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

static bool try(tarn__cl_device *d, const char *function, void *values, size_t bytes)
{
    char options[256];
    cl_int error;
    char *text = tarn__cl_program_source("probe");
    snprintf(options, sizeof(options), "%s -DGROUP=%d", d->options, ITEMS);
    cl_program made = text ? clCreateProgramWithSource(d->context, 1, (const char **)&text, NULL, &error) : NULL;
    bool good = made && clBuildProgram(made, 1, &d->id, options, NULL, NULL) == CL_SUCCESS &&
                run(d, made, function, values, bytes);
    if (made)
        clReleaseProgram(made);
    free(text);
    return good;
}

static bool try_subgroups(tarn__cl_device *d)
{
    float values[ITEMS] = {0};
    bool good = try(d, "subgroups", values, sizeof(values));
    for (int i = 0; i < ITEMS; i++)
        good = good && values[i] == 255 * 36 * ITEMS + ITEMS - 1;
    return good;
}

static bool try_halves(tarn__cl_device *d)
{
    uint16_t values[ITEMS];
    for (int i = 0; i < ITEMS; i++)
        values[i] = (uint16_t)(i * 485); /* numbers of either sign, subnormal ones too */
    bool good = try(d, "halves", values, sizeof(values));
    for (int i = 0; i < ITEMS; i++)
        good = good && values[i] == (uint16_t)(i * 485);
    return good;
}

static void tell(const tarn__cl_device *d, const char *what)
{
    tarn__cl_host->log(TARN_LOG_INFO, "opencl:%d: %s do not work as the device says, and are not used", d->index, what);
}

void tarn__cl_probe_features(tarn__cl_device *d)
{
    const char *subgroups = d->subgroups;
    d->subgroups = NULL; /* one after the other */
    tarn__cl_set_build_options(d);
    if (d->has_f16 && !try_halves(d)) {
        d->has_f16 = false;
        tell(d, "halves");
    }
    d->subgroups = subgroups;
    tarn__cl_set_build_options(d);
    if (subgroups && !try_subgroups(d)) {
        d->subgroups = NULL;
        tell(d, "subgroups");
    }
    tarn__cl_set_build_options(d);
}
