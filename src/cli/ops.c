/* ops.c: `tarn ops`: every operation, whether it has a gradient, and the backends that run it.
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
            printf("%s: %s: %s\n", backend,
                   is_built(backend) ? "built, but no device can be used" : "not built or not found", why);
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

int tarn__ops(const tarn__options *options)
{
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
