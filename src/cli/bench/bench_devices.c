/* bench_devices.c: `tarn bench ops --device cpu,cuda`: the same rows on two devices, from a few rows of 1024 elements,
 * where the overhead of a call dominates, to many, where throughput does.
 *
 * Devices are measured one after the other, row by row, without a copy as baseline. Square matmuls follow, with BLAS
 * and a naive loop on the CPU as further baselines. */
#include <string.h>

#include "cli/bench/bench_case.h"

static const int64_t sizes[] = {16, 128, 1024}; /* rows */
#define SIZES ((int)(sizeof(sizes) / sizeof(sizes[0])))

/* One row per kind of operation, unless --only names others. */
static const char *const default_rows[] = {
    "add",      "mul",       "exp",           "tanh",    "gelu",      "add-broadcast-row",
    "sum-last", "sum-first", "max-last",      "softmax", "layernorm", "permute-copy",
    "concat",   "embedding", "cross_entropy", "linear",  "matmul"};
#define DEFAULT_ROWS ((int)(sizeof(default_rows) / sizeof(default_rows[0])))

/* A name of --only selects any row that has a case, also one that is not a default. */
static bool is_wanted(const tarn__options *options, const tarn__case *one)
{
    if (tarn__is_selected(options, one->bench, one->operation))
        return true;
    for (int i = 0; options->only_count == 0 && i < DEFAULT_ROWS; i++)
        if (strcmp(default_rows[i], one->bench) == 0)
            return true;
    return false;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Two times in microseconds and their ratio a / b: the speed-up of the second device. NaN becomes null. */
static void write_pair(tarn__json *json, const char *key, const char *ratio_key, double a, double b)
{
    tarn__json_open(json, key, '[');
    tarn__json_real(json, NULL, a, 3);
    tarn__json_real(json, NULL, b, 3);
    tarn__json_close(json, ']');
    tarn__json_real(json, ratio_key, a / b, 3);
}

/* The members that all rows share. */
static void open_row(tarn__json *json, const tarn__options *options)
{
    char name[32];
    tarn__json_open(json, NULL, '{');
    tarn__json_open(json, "devices", '[');
    for (int i = 0; i < 2; i++)
        tarn__json_string(json, NULL, tarn_device_name(options->devices[i], name, sizeof(name)));
    tarn__json_close(json, ']');
}

/* pair[0] is of the first device. Rows without a backward print "-". */
static void print_pair(const tarn__bench_row *pair, const tarn__options *options)
{
    const tarn__bench_row *a = &pair[0], *b = &pair[1];
    tarn__json json = {stdout, false};
    if (!options->json) {
        printf("%-18s %-5s %-19s %12.2f %12.2f %8.2f %12s %12s %8s\n", a->one.bench, tarn__element_name(a->element),
               tarn__shape_string(tarn__row_shape(&a->one)), a->forward.median, b->forward.median,
               a->forward.median / b->forward.median, tarn__cell(a->backward.median, 2),
               tarn__cell(b->backward.median, 2), tarn__cell(a->backward.median / b->backward.median, 2));
        fflush(stdout);
        return;
    }
    open_row(&json, options);
    tarn__json_string(&json, "op", a->one.bench);
    tarn__json_string(&json, "dtype", tarn__element_name(a->element));
    tarn__json_row_shape(&json, &a->one);
    write_pair(&json, "fwd_us", "fwd_ratio", a->forward.median, b->forward.median);
    write_pair(&json, "bwd_us", "bwd_ratio", a->backward.median, b->backward.median);
    tarn__json_end(&json);
}

/* TF32 applies to matmuls only: other rows would repeat f32. False with an error. */
static bool compare_rows(int64_t rows, tarn__element element, const tarn__options *options)
{
    for (int i = 0; i < tarn__case_count(); i++) {
        const tarn__case *letters = tarn__case_at(i);
        tarn__bench_row pair[2];
        if (!letters->bench || !is_wanted(options, letters) || (element.tf32 && !tarn__case_is_compute_bound(letters)))
            continue;
        for (int d = 0; d < 2; d++)
            if (!tarn__bench_case_measure(
                    &(tarn__bench_case){.letters = letters,
                                        .scale = tarn__scale_rows(rows),
                                        .element = element,
                                        .runs = options->runs,
                                        .size = rows * 1024 * (int64_t)tarn_dtype_size(element.dtype),
                                        .device = options->devices[d],
                                        .baseline = TARN__BASELINE_NONE},
                    &pair[d]))
                return false;
        print_pair(pair, options);
    }
    return true;
}

/* ---- square matmuls ---------------------------------------------------------------------------------------------- */

/* `tarn` has the times of both devices. FLOPs over microseconds over 1e3 is GFLOP/s. */
static void print_matmul(int64_t n, const double *tarn, const tarn__matmul_times *cpu_times,
                         const tarn__options *options)
{
    double flops = 2.0 * (double)n * (double)n * (double)n / 1e3;
    tarn__json json = {stdout, false};
    if (!options->json) {
        printf("%6lld %12s %12s %12.1f %12.1f %10.2f %10s %10s\n", (long long)n,
               tarn__cell(flops / cpu_times->naive, 2), tarn__cell(flops / cpu_times->blas, 1), flops / tarn[0],
               flops / tarn[1], tarn[0] / tarn[1], tarn__cell(cpu_times->blas / tarn[1], 2),
               tarn__cell(cpu_times->naive / tarn[1], 1));
        fflush(stdout);
        return;
    }
    open_row(&json, options);
    tarn__json_string(&json, "op", "matmul");
    tarn__json_string(&json, "dtype", "f32");
    tarn__json_shape(&json, "shape", TARN_SHAPE(n, n, n));
    write_pair(&json, "fwd_us", "fwd_ratio", tarn[0], tarn[1]);
    tarn__json_real(&json, "blas_us", cpu_times->blas, 3);
    tarn__json_real(&json, "naive_us", cpu_times->naive, 3);
    tarn__json_end(&json);
}

/* In f32: tarn on both devices, and on the CPU BLAS called directly and the naive loop. */
static bool compare_matmuls(const tarn__options *options)
{
    char first[32], second[32];
    tarn_device cpu = tarn_device_cpu();
    tarn_device_name(options->devices[0], first, sizeof(first));
    tarn_device_name(options->devices[1], second, sizeof(second));
    if (!options->json) {
        printf("\n");
        tarn__heading("%6s %12s %12s %12s %12s %10s %10s %10s   square matmuls, f32, GFLOP/s; last the speed-up of %s",
                      "size", "naive loop", "BLAS", first, second, first, "BLAS", "loop", second);
    }
    for (int s = 0; s < SIZES; s++) {
        tarn__matmul_times cpu_times, found;
        double tarn[2];
        if (!tarn__measure_matmul(sizes[s], TARN_F32, cpu, options->runs, &cpu_times))
            return false;
        for (int d = 0; d < 2; d++) {
            bool is_cpu = tarn_device_equal(options->devices[d], cpu);
            if (!is_cpu && !tarn__measure_matmul(sizes[s], TARN_F32, options->devices[d], options->runs, &found))
                return false;
            tarn[d] = is_cpu ? cpu_times.tarn : found.tarn;
        }
        print_matmul(sizes[s], tarn, &cpu_times, options);
    }
    return true;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* Sizes outermost, so that a table has one size. */
static bool compare(const tarn__options *options)
{
    char first[32], second[32];
    tarn_device_name(options->devices[0], first, sizeof(first));
    tarn_device_name(options->devices[1], second, sizeof(second));
    for (int s = 0; s < SIZES; s++) {
        if (!options->json) {
            char title[32];
            snprintf(title, sizeof(title), "%lld rows of 1024", (long long)sizes[s]);
            printf("\n");
            tarn__heading("%-18s %-5s %-19s %12s %12s %8s %12s %12s %8s", title, "dtype", "shape", first, second,
                          "ratio", first, second, "ratio");
        }
        for (int d = 0; d < options->dtype_count; d++)
            if (!compare_rows(sizes[s], options->dtypes[d], options))
                return false;
    }
    bool with_matmuls = options->only_count == 0 || tarn__is_selected(options, "matmul", "matmul");
    return !with_matmuls || compare_matmuls(options);
}

int tarn__bench_devices(const tarn__options *options)
{
    char first[32], second[32];
    if (!options->json)
        printf("operations on %s with %d threads and on %s: forward, then backward; median of %lld runs in "
               "microseconds, and the speed-up of the second\n",
               tarn_device_name(options->devices[0], first, sizeof(first)), tarn_threads(),
               tarn_device_name(options->devices[1], second, sizeof(second)), (long long)options->runs);
    return compare(options) ? TARN__DONE : tarn__print_error("bench ops");
}
