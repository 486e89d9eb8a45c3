/* train_profile.c: `tarn train --profile`: the time of a step by operation and kernel, as a table and as profile.json.
 *
 * Times are device time, divided by the number of profiled steps. Each row is compared with a roofline that is measured
 * here, after the run: a copy for bytes, a large matmul in the run's precision for FLOPs. profile.json is an atomic
 * write. Rows come sorted by time from tarn_profile_summarize(). */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "cli/bench/timer.h"
#include "cli/cli.h"

/* Rows beyond MAX_ROWS are dropped; rows beyond PRINTED_ROWS are summed up as "others" in the table. */
enum { MAX_ROWS = 512, PRINTED_ROWS = 24 };

/* Strings of the rows are borrowed from the profiler. */
typedef struct report {
    tarn_profile_summary sum;
    tarn_profile_row row[MAX_ROWS];
    int64_t rows;
    double steps;
    tarn__roofline roofline;
    tarn_memory_kinds memory;
} report;

/* Microseconds of all profiled steps as milliseconds per step. */
static double ms_of(const report *r, double microseconds)
{
    return microseconds / 1e3 / r->steps;
}

/* Fraction of the roofline reached: the time that it needs for the row's bytes or FLOPs, whichever is longer, over the
 * time taken. NaN if either is unknown. */
static double of_roofline(const report *r, const tarn_profile_row *row)
{
    double min_us = fmax(row->bytes / r->roofline.copy, row->flops / r->roofline.matmul) * 1e6;
    return row->device_microseconds > 0 && min_us > 0 ? min_us / row->device_microseconds : (double)NAN;
}

/* "forward" or "backward" for kernels; copies and waits have no direction. */
static const char *direction_of(const tarn_profile_row *row)
{
    return row->kind > TARN_PROFILE_KERNEL ? "" : row->is_backward ? "backward" : "forward";
}

static const char *function_of(const tarn_profile_row *row)
{
    return row->function ? row->function : "";
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* "matmul", or "matmul/bf16" where the device has several implementations. */
static const char *kernel_of(const tarn_profile_row *row, char *buffer, size_t size)
{
    snprintf(buffer, size, "%s%s%s", row->name, row->variant ? "/" : "", row->variant ? row->variant : "");
    return buffer;
}

static void print_row(const report *r, const tarn_profile_row *row)
{
    char kernel[48];
    double seconds = row->device_microseconds / 1e6;
    bool is_known = seconds > 0;
    printf("  %-20.20s %-20.20s %-8s %7.0f %10.3f %6.1f %% %9s %9s %9s\n", function_of(row),
           kernel_of(row, kernel, sizeof(kernel)), direction_of(row), (double)row->calls / r->steps,
           ms_of(r, row->device_microseconds), 100 * row->device_microseconds / r->sum.microseconds,
           tarn__cell(is_known ? row->bytes / seconds / 1e9 : (double)NAN, 0),
           tarn__cell(is_known && row->flops > 0 ? row->flops / seconds / 1e12 : (double)NAN, 2),
           tarn__cell(of_roofline(r, row), 2));
}

/* Waits are not shown: they are time in which the device did nothing. */
static void print_rows(const report *r)
{
    tarn_profile_row others = {.name = "", .function = "others"};
    tarn__heading("  %-20s %-20s %-8s %7s %10s %8s %9s %9s %9s", "operation", "kernel", "", "calls", "ms", "time",
                  "GB/s", "TFLOP/s", "roofline");
    for (int64_t i = 0; i < r->rows; i++) {
        const tarn_profile_row *row = &r->row[i];
        if (row->kind == TARN_PROFILE_WAIT || !(row->device_microseconds > 0))
            continue;
        if (i < PRINTED_ROWS) {
            print_row(r, row);
            continue;
        }
        others.calls += row->calls;
        others.device_microseconds += row->device_microseconds;
    }
    if (others.calls)
        printf("  %-50s %7.0f %10.3f %6.1f %%\n", "others", (double)others.calls / r->steps,
               ms_of(r, others.device_microseconds), 100 * others.device_microseconds / r->sum.microseconds);
}

/* Phases first, then operations by time, the roofline, memory by kind, and the path of the trace. */
static void print_table(const report *r, const tarn_train_plan *plan)
{
    tarn__heading("profile of %.0f steps: %.3f ms per step, device utilization %.1f %%", r->steps,
                  ms_of(r, r->sum.microseconds), 100 * r->sum.utilization);
    for (int i = 0; i < TARN_PARTS; i++)
        if (r->sum.part[i] > 0)
            printf("  %-20s %10.3f ms %6.1f %%\n", tarn_profile_part_name((tarn_profile_part)i),
                   ms_of(r, r->sum.part[i] * r->sum.microseconds), 100 * r->sum.part[i]);
    print_rows(r);
    printf("  %-10s copy %s GB/s, matmul of %lld rows %s TFLOP/s\n", "roofline", tarn__cell(r->roofline.copy / 1e9, 0),
           (long long)r->roofline.rows, tarn__cell(r->roofline.matmul / 1e12, 2));
    tarn__print_memory_kinds(&r->memory);
    if (r->sum.lost)
        printf("  %lld records were lost: profile fewer steps\n", (long long)r->sum.lost);
    printf("  %-10s %s/trace.json, for chrome://tracing or ui.perfetto.dev\n", "trace", tarn__escaped(plan->folder));
}

/* ---- profile.json ------------------------------------------------------------------------------------------------ */

/* All rows are written, waits included. Values that are not finite become null. */
static void write_row(tarn__json *json, const report *r, const tarn_profile_row *row)
{
    static const char *const kinds[TARN_PROFILE_KINDS] = {
        "matmul", "convolution", "attention", "kernel", "captured step", "copy", "loader copy", "wait", "span"};
    tarn__json_open(json, NULL, '{');
    tarn__json_string(json, "operation", row->function);
    tarn__json_string(json, "name", row->name);
    if (row->variant)
        tarn__json_string(json, "variant", row->variant);
    tarn__json_string(json, "kind", kinds[row->kind]);
    tarn__json_bool(json, "backward", row->is_backward);
    tarn__json_real(json, "calls", (double)row->calls / r->steps, 3);
    tarn__json_real(json, "device_ms", ms_of(r, row->device_microseconds), 6);
    tarn__json_real(json, "host_ms", ms_of(r, row->host_microseconds), 6);
    tarn__json_real(json, "fraction", row->device_microseconds / r->sum.microseconds, 6);
    tarn__json_real(json, "bytes", row->bytes / r->steps, 0);
    tarn__json_real(json, "flops", row->flops / r->steps, 0);
    tarn__json_real(json, "gbps", row->bytes / row->device_microseconds / 1e3, 3);
    tarn__json_real(json, "tflops", row->flops / row->device_microseconds / 1e6, 4);
    tarn__json_real(json, "of_roofline", of_roofline(r, row), 4);
    tarn__json_close(json, '}');
}

/* Times per step, so that profiles of different lengths compare. */
static void write_report(FILE *to, const report *r, const tarn_train_plan *plan)
{
    tarn__json json = {to, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "model", plan->options.model);
    tarn__json_string(&json, "device", plan->device);
    tarn__json_string(&json, "precision", plan->options.precision);
    tarn__json_int(&json, "steps", (int64_t)r->steps);
    tarn__json_real(&json, "step_ms", ms_of(r, r->sum.microseconds), 4);
    tarn__json_real(&json, "utilization", r->sum.utilization, 6);
    tarn__json_int(&json, "records", r->sum.records);
    tarn__json_int(&json, "lost", r->sum.lost);
    tarn__json_open(&json, "parts", '{');
    for (int i = 0; i < TARN_PARTS; i++)
        tarn__json_real(&json, tarn_profile_part_name((tarn_profile_part)i), r->sum.part[i], 9);
    tarn__json_close(&json, '}');
    tarn__json_real(&json, "copy_gbps", r->roofline.copy / 1e9, 1);
    tarn__json_real(&json, "matmul_tflops", r->roofline.matmul / 1e12, 3);
    tarn__json_memory_kinds(&json, &r->memory);
    tarn__json_open(&json, "rows", '[');
    for (int64_t i = 0; i < r->rows; i++)
        write_row(&json, r, &r->row[i]);
    tarn__json_close(&json, ']');
    tarn__json_end(&json);
}

/* Atomic write: to profile.json.new, which is then renamed. errno is the failed call's, and the new file is removed. */
static int write_file(const report *r, const tarn_train_plan *plan)
{
    char path[1100], unfinished[1110];
    snprintf(path, sizeof(path), "%s/profile.json", plan->folder);
    snprintf(unfinished, sizeof(unfinished), "%s.new", path);
    FILE *to = fopen(unfinished, "w");
    if (to)
        write_report(to, r, plan);
    bool good = to && !ferror(to);
    good = to && fclose(to) == 0 && good && rename(unfinished, path) == 0;
    if (good)
        return TARN__DONE;
    fprintf(stderr, "tarn train: '%s' could not be written: %s\n", tarn__escaped(path), strerror(errno));
    if (to)
        remove(unfinished);
    return TARN__FAILED;
}

/* Measures the roofline next to the run's memory. If that fails, for lack of memory for example, a notice is printed
 * and the columns that compare with it stay empty. */
static void measure_roofline(report *r, const tarn_train_plan *plan)
{
    if (tarn__roofline_measure(tarn_device_parse(plan->device), plan->options.precision, &r->roofline))
        return;
    char why[TARN__MESSAGE_MAX];
    fprintf(stderr, "tarn train: the roofline could not be measured: %s\n",
            tarn__user_error("train", why, sizeof(why)));
}

/* `steps` is the number of profiled steps; 0 if the run ended too early. */
int tarn__train_profile(const tarn_train_plan *plan, int64_t steps, bool prints)
{
    static report r; /* too large for the stack */
    if (steps == 0) {
        fprintf(stderr, "tarn train: the run ended before a profile was recorded\n");
        return TARN__FAILED;
    }
    r = (report){.steps = (double)steps, .roofline = {.matmul = (double)NAN, .copy = (double)NAN, .peak = (double)NAN}};
    r.memory = tarn_memory_kinds_of(tarn_device_parse(plan->device)); /* before the roofline allocates its buffers */
    if (!tarn_profile_summarize(&r.sum, r.row, MAX_ROWS))
        return tarn__print_error("train");
    r.rows = r.sum.rows < MAX_ROWS ? r.sum.rows : MAX_ROWS;
    measure_roofline(&r, plan);
    if (prints)
        print_table(&r, plan);
    return write_file(&r, plan);
}
