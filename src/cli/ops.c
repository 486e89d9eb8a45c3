/* ops.c: `tarn ops`: every operation, whether it has a gradient, and the backends that run it; with --variants every
 * kernel and its variants.
 *
 * Read from the table that the library dispatches by, so it cannot disagree with what runs. Kernels are listed even if
 * their backend finds no device. */
#include <string.h>

#include "cli/cli.h"
#include <tarn/ops.h>

/* Index of the words in print_row(). */
typedef enum support { NOWHERE, FORWARD_ONLY, WHOLE } support;

/* FORWARD_ONLY: differentiable, but the backend lacks the backward kernel. */
static support supported(int index, const tarn_op_info *info, const char *backend)
{
    if (!tarn_op_on(index, backend, false))
        return NOWHERE;
    return !info->differentiable || tarn_op_on(index, backend, true) ? WHOLE : FORWARD_ONLY;
}

static void print_row(int index, const tarn_op_info *info)
{
    static const char *const words[] = {"-", "forward", "yes"};
    printf("%-22s %-8s %-9s", info->name, "yes", info->differentiable ? "yes" : "-");
    const char *backend;
    for (int b = 0; (backend = tarn_backend_name(b)) != NULL; b++)
        printf(tarn_backend_name(b + 1) ? " %-8s" : " %s", words[supported(index, info, backend)]);
    printf("\n");
}

/* true only if all of the operation runs, forward and backward. */
static void print_json(int index, const tarn_op_info *info)
{
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "name", info->name);
    tarn__json_bool(&json, "differentiable", info->differentiable);
    const char *backend;
    for (int b = 0; (backend = tarn_backend_name(b)) != NULL; b++)
        tarn__json_bool(&json, backend, supported(index, info, backend) == WHOLE);
    tarn__json_end(&json);
}

/* True when the backend is part of the build: it has at least one kernel. */
static bool is_built(const char *backend)
{
    for (int i = 0; i < tarn_op_count(); i++)
        if (tarn_op_on(i, backend, false))
            return true;
    return false;
}

/* Prints which backends cannot run and why: their kernels exist, a device does not. */
static void print_missing(void)
{
    const char *backend;
    for (int b = 1; (backend = tarn_backend_name(b)) != NULL; b++) {
        const char *why = tarn_backend_missing(backend);
        if (why[0])
            printf("%s: %s: %s\n", backend, is_built(backend) ? "built, but no device can be used" : "not available",
                   why);
    }
}

/* A column per backend. */
static void print_heading(void)
{
    char columns[256] = "";
    const char *backend;
    for (int b = 0; (backend = tarn_backend_name(b)) != NULL; b++) {
        size_t used = strlen(columns);
        snprintf(columns + used, sizeof(columns) - used, tarn_backend_name(b + 1) ? " %-8s" : " %s", backend);
    }
    tarn__heading("%-22s %-8s %-9s%s", "operation", "forward", "backward", columns);
}

/* ---- variants ---------------------------------------------------------------------------------------------------- */

/* A variant, and its number in the order of its kernel's: "1 of 2". */
typedef struct variant_row {
    const char *kernel, *backend;
    int number, count;
    tarn_kernel_variant variant;
} variant_row;

static void print_variant(const variant_row *r)
{
    char order[32];
    snprintf(order, sizeof(order), "%d of %d", r->number + 1, r->count);
    printf("%-28s %-8s %-8s %-10s %-10s", r->kernel, r->backend, order, r->variant.name[0] ? r->variant.name : "-",
           r->variant.fits_all ? "all" : "that fit");
    for (int d = 0; d < TARN_DTYPE_COUNT; d++)
        if (r->variant.dtypes >> d & 1)
            printf(" %s", tarn_dtype_name((tarn_dtype)d));
    printf("\n");
}

/* An unnamed variant has the name null. */
static void print_variant_json(const variant_row *r)
{
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "kernel", r->kernel);
    tarn__json_string(&json, "backend", r->backend);
    tarn__json_int(&json, "number", r->number + 1);
    tarn__json_int(&json, "count", r->count);
    if (r->variant.name[0])
        tarn__json_string(&json, "variant", r->variant.name);
    else
        tarn__json_null(&json, "variant");
    tarn__json_bool(&json, "fits_all", r->variant.fits_all);
    tarn__json_open(&json, "dtypes", '[');
    for (int d = 0; d < TARN_DTYPE_COUNT; d++)
        if (r->variant.dtypes >> d & 1)
            tarn__json_string(&json, NULL, tarn_dtype_name((tarn_dtype)d));
    tarn__json_close(&json, ']');
    tarn__json_end(&json);
}

/* Every kernel of every backend that could be loaded; calls that no variant fits are composed or run on the CPU. */
static void print_variants(bool json)
{
    variant_row r;
    if (!json)
        tarn__heading("%-28s %-8s %-8s %-10s %-10s %s", "kernel", "backend", "order", "variant", "calls", "dtypes");
    for (int i = 0; i < tarn_kernel_count(); i++)
        for (int b = 0; (r.backend = tarn_backend_name(b)) != NULL; b++) {
            r.kernel = tarn_kernel_name(i);
            for (r.count = 0; tarn_kernel_variant_at(i, r.backend, r.count, &r.variant);)
                r.count++;
            for (r.number = 0; tarn_kernel_variant_at(i, r.backend, r.number, &r.variant); r.number++)
                (json ? print_variant_json : print_variant)(&r);
        }
    if (!json)
        print_missing();
}

int tarn__ops(const tarn__options *options)
{
    if (options->variants) {
        print_variants(options->json);
        return TARN__DONE;
    }
    if (!options->json)
        print_heading();
    for (int i = 0; i < tarn_op_count(); i++) {
        tarn_op_info info;
        if (!tarn_op_at(i, &info))
            return tarn__print_error("ops");
        if (options->json)
            print_json(i, &info);
        else
            print_row(i, &info);
    }
    if (!options->json)
        print_missing();
    return TARN__DONE;
}
