/* bench_ops.c: `tarn bench ops`: selection of rows, sizes and element types.
 *
 * Rows come from the table of cases (cases/cases.h), so that a new operation is measured as soon as it has a case. At a
 * size in bytes all rows are scaled to it; at model sizes each row has the shapes of a language model. A failed row
 * ends the command. */
#include <string.h>

#include "cli/bench/bench_case.h"

/* Microseconds. */
#define WARM_UP_US 500e3

/* ---- selection --------------------------------------------------------------------------------------------------- */

bool tarn__is_selected(const tarn__options *options, const char *row, const char *operation)
{
    for (int i = 0; i < options->only_count; i++)
        if (strcmp(options->only[i], row) == 0 || strcmp(options->only[i], operation) == 0)
            return true;
    return false;
}

/* Without --only every row is selected. */
static bool is_selected_or_all(const tarn__options *options, const char *row, const char *operation)
{
    return options->only_count == 0 || tarn__is_selected(options, row, operation);
}

/* Rows without a case, AdamW and the 4 GiB copy, are measured at model sizes only. */
static bool has_model(const tarn__options *options)
{
    for (int i = 0; i < options->size_count; i++)
        if (options->sizes[i] == TARN__MODEL_SIZE)
            return true;
    return false;
}

/* Every name after --only must be a row or an operation. */
static int check_names(const tarn__options *options)
{
    /* borrowed literals; an upper bound of all rows, checked below */
    const char *names[640];
    int count = 0;
    if (options->device_count == 1)
        names[count++] = "tiny";
    if (has_model(options)) {
        names[count++] = "adamw";
        names[count++] = "copy";
    }
    for (int i = 0; i < tarn__case_count() && count < 500; i++)
        if (tarn__case_at(i)->bench) {
            names[count++] = tarn__case_at(i)->bench;
            names[count++] = tarn__case_at(i)->operation;
        }
    for (int i = 0; has_model(options) && i < tarn__model_count() && count < 640; i++) {
        tarn__scale scale;
        names[count++] = tarn__model_at(i, &scale)->bench;
    }
    for (int i = 0; i < options->only_count; i++) {
        bool found = false;
        for (int k = 0; k < count && !found; k++)
            found = strcmp(options->only[i], names[k]) == 0;
        if (found)
            continue;
        const char *near = tarn_suggest(options->only[i], names, count);
        fprintf(stderr, "tarn bench ops: --only: row or operation '%s' not found%s%s%s\n", options->only[i],
                near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
        return TARN__MISUSED;
    }
    return TARN__DONE;
}

/* Default sizes and element types: model sizes on a GPU, with TF32 as well where it has it; a CPU counts as a CPU
 * through any backend. Two devices are compared at fixed sizes. */
static void fill_in(tarn__options *options)
{
    static const int64_t sizes[] = {4 << 10, 1 << 20, 64 << 20};
    static const tarn__element elements[] = {{TARN_F32, false}, {TARN_BF16, false}, {TARN_F32, true}};
    tarn_device_info info = {0};
    tarn_device_query(options->device, &info);
    bool on_cpu = strcmp(info.type, "cpu") == 0, is_one = options->device_count == 1;
    if (options->size_count == 0 && is_one && on_cpu)
        for (int i = 0; i < 3; i++)
            options->sizes[options->size_count++] = sizes[i];
    else if (options->size_count == 0 && is_one)
        options->sizes[options->size_count++] = TARN__MODEL_SIZE;
    if (options->dtype_count == 0)
        for (int i = 0; i < (!is_one ? 1 : info.has_tf32 ? 3 : 2); i++)
            options->dtypes[options->dtype_count++] = elements[i];
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Measures and prints a selected row; in TF32 only matmuls are measured. */
static bool bench_row(tarn__bench_case *plan, const tarn__options *options)
{
    tarn__bench_row row;
    if (!plan->letters->bench || !is_selected_or_all(options, plan->letters->bench, plan->letters->operation) ||
        (plan->element.tf32 && !tarn__case_is_compute_bound(plan->letters)))
        return true;
    if (!tarn__bench_case_measure(plan, &row))
        return false;
    tarn__print_row(&row, options->json);
    return true;
}

/* All rows at one size in bytes, each with a copy of its own as the baseline. */
static bool bench_size(int64_t size, tarn__element element, const tarn__options *options)
{
    tarn__bench_case plan = {.element = element,
                             .device = options->device,
                             .runs = options->runs,
                             .size = size,
                             .baseline = TARN__BASELINE_COPY};
    plan.scale = tarn__scale_of(size / (int64_t)tarn_dtype_size(element.dtype));
    bool good = true;
    for (int i = 0; good && i < tarn__case_count(); i++) {
        plan.letters = tarn__case_at(i);
        good = bench_row(&plan, options);
    }
    return good;
}

/* A row may fill most of the device's memory, and its buffers do not fit the next row: the cache is emptied between. */
static bool bench_model(tarn__element element, const tarn__options *options, tarn__copy_times *copies)
{
    tarn__bench_case plan = {.element = element,
                             .device = options->device,
                             .runs = options->runs,
                             .size = TARN__MODEL_SIZE,
                             .baseline = TARN__BASELINE_SHARED,
                             .copies = copies};
    bool good = true;
    for (int i = 0; good && i < tarn__model_count(); i++) {
        plan.letters = tarn__model_at(i, &plan.scale);
        good = bench_row(&plan, options) && tarn_empty_cache(options->device);
    }
    return good;
}

/* New threads share a core for a while, and clocks rise slowly: the first row would pay for both. */
static bool warm_up(tarn_device device)
{
    double begin = tarn__clock();
    while (tarn__clock() - begin < WARM_UP_US && !tarn_failed()) {
        tarn_scope *scope = tarn_scope_open();
        tarn_neg(tarn_zeros(TARN_SHAPE(512, 512), TARN_F32, device));
        tarn_synchronize(device);
        tarn_scope_close(scope);
    }
    return !tarn_failed();
}

/* The copies outlive the rows: rows with as many bytes share a time. */
static bool bench_all(const tarn__options *options)
{
    tarn__copy_times copies = {.device = options->device, .runs = options->runs};
    bool good = warm_up(options->device);
    for (int s = 0; s < options->size_count; s++) {
        int64_t size = options->sizes[s];
        if (!options->json)
            tarn__print_heading(size);
        for (int d = 0; good && d < options->dtype_count; d++)
            good = size == TARN__MODEL_SIZE ? bench_model(options->dtypes[d], options, &copies)
                                            : bench_size(size, options->dtypes[d], options);
    }
    if (has_model(options)) {
        good = good && (!is_selected_or_all(options, "adamw", "adamw") || tarn__bench_adamw(options, &copies));
        good = good && tarn_empty_cache(options->device);
        good = good && (!is_selected_or_all(options, "copy", "copy") || tarn__bench_copy(options, &copies));
    }
    return good && (!is_selected_or_all(options, "tiny", "tiny") || tarn__bench_tiny(options));
}

int tarn__bench_ops(const tarn__options *given)
{
    char name[32];
    tarn__options options = *given;
    if (options.device_count > 1 && options.size_count > 0) {
        fprintf(stderr,
                "tarn bench ops: --sizes needs one device; two are compared at 16, 128 and 1024 rows of 1024\n");
        return TARN__MISUSED;
    }
    fill_in(&options);
    int status = check_names(&options);
    if (status != TARN__DONE)
        return status;
    if (options.device_count > 1)
        return tarn__bench_devices(&options);
    if (!options.json)
        printf("operations on %s, %d threads; median of %lld runs in microseconds, and the speed relative to a copy "
               "of the same bytes\n",
               tarn_device_name(options.device, name, sizeof(name)), tarn_threads(), (long long)options.runs);
    return bench_all(&options) ? TARN__DONE : tarn__print_error("bench ops");
}
