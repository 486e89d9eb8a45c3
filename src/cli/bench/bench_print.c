/* bench_print.c: a row of `tarn bench ops` as JSON and as text. Keys are stable: bench/ compares files of them. Times
 * are in microseconds; values that were not measured are NaN, printed as null or "-". */
#include <math.h>
#include <string.h>

#include "cli/bench/bench_case.h"

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

/* 1, the default, if the case has no such attribute. */
static int64_t stride_of(const tarn__case *one)
{
    for (int i = 0; i < one->attributes; i++)
        if (strcmp(one->attribute[i].name, "stride") == 0)
            return one->attribute[i].list[0];
    return 1;
}

/* Shape that identifies a row. Convolution: [N, C, H, out channels, kernel, stride]; gather: with the number of
 * indices; matmul: with the columns of the result. */
tarn_shape tarn__row_shape(const tarn__case *one)
{
    tarn_shape shape = one->input[0].shape, second = one->input[1].shape;
    if (strcmp(one->operation, "conv2d") == 0) /* measured ones have square images, kernels and strides */
        return TARN_SHAPE(shape.size[0], shape.size[1], shape.size[2], second.size[0], second.size[2], stride_of(one));
    if (one->moves == TARN__MOVES_ROWS) {
        int64_t indices = 1;
        for (int i = 0; i < second.rank; i++)
            indices *= second.size[i];
        shape.size[shape.rank++] = indices;
    } else if (tarn__case_is_compute_bound(one)) {
        shape.size[shape.rank++] =
            strcmp(one->operation, "linear") == 0 ? second.size[0] : second.size[second.rank - 1];
    }
    return shape;
}

/* Both shapes for a broadcast. */
void tarn__json_row_shape(tarn__json *json, const tarn__case *one)
{
    if (!strstr(one->bench, "broadcast")) {
        tarn__json_shape(json, "shape", tarn__row_shape(one));
        return;
    }
    tarn__json_open(json, "shape", '[');
    tarn__json_shape(json, NULL, one->input[0].shape);
    tarn__json_shape(json, NULL, one->input[1].shape);
    tarn__json_close(json, ']');
}

const char *tarn__shape_string(tarn_shape shape)
{
    /* rotating: several shapes in one printf() */
    static char buffers[4][96];
    static int turn;
    char *text = buffers[turn++ % 4];
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < shape.rank && used < sizeof(buffers[0]); i++)
        used +=
            (size_t)snprintf(text + used, sizeof(buffers[0]) - used, "%s%lld", i ? "x" : "", (long long)shape.size[i]);
    return text;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

/* Members of the baseline are omitted for compute-bound rows, which have none. */
static void print_json(const tarn__bench_row *row)
{
    char name[32];
    double forward = row->forward.median, backward = row->backward.median;
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "op", row->one.bench);
    tarn__json_string(&json, "dtype", tarn__element_name(row->element));
    tarn__json_row_shape(&json, &row->one);
    tarn__json_shape(&json, "result", row->result);
    if (row->size != TARN__MODEL_SIZE)
        tarn__json_int(&json, "size", row->size);
    tarn__json_string(&json, "device", tarn_device_name(row->device, name, sizeof(name)));
    tarn__json_int(&json, "threads", tarn_threads());
    tarn__json_real(&json, "fwd_us", forward, 3);
    tarn__json_real(&json, "bwd_us", backward, 3);
    tarn__json_real(&json, "both_us", row->both.median, 3);
    tarn__json_real(&json, "host_us", row->host, 3);
    tarn__json_real(&json, "fwd_spread", row->forward.spread, 3);
    tarn__json_real(&json, "bwd_spread", row->backward.spread, 3);
    if (row->flops > 0)
        tarn__json_real(&json, "tflops", row->flops / forward / 1e6, 4);
    if (row->forward_bytes) {
        tarn__json_int(&json, "fwd_bytes", row->forward_bytes);
        tarn__json_real(&json, "gbps", (double)row->forward_bytes / forward / 1e3, 2);
        tarn__json_real(&json, "fwd_copy_us", row->forward_copy, 3);
        tarn__json_real(&json, "fwd_of_copy", row->forward_copy / forward, 3);
    }
    if (row->backward_bytes) {
        tarn__json_int(&json, "bwd_bytes", row->backward_bytes);
        tarn__json_real(&json, "bwd_copy_us", row->backward_copy, 3);
        tarn__json_real(&json, "bwd_of_copy", row->backward_copy / backward, 3);
    }
    tarn__json_end(&json);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

void tarn__print_heading(int64_t size)
{
    printf("\n");
    tarn__heading("%-18s %-5s %-19s %11s %7s %9s %8s %11s %7s %8s %11s %8s",
                  size == TARN__MODEL_SIZE ? "a model's sizes" : tarn__bytes_text(size), "dtype", "shape", "forward",
                  "spread", "rate", "of copy", "backward", "spread", "of copy", "both", "host");
}

/* TFLOP/s of a matmul, GB/s of other rows. */
static const char *rate_text(const tarn__bench_row *row, char *text, size_t size)
{
    if (row->flops > 0)
        snprintf(text, size, "%.2f T", row->flops / row->forward.median / 1e6);
    else
        snprintf(text, size, "%.1f G", (double)row->forward_bytes / row->forward.median / 1e3);
    return text;
}

/* Returns `text`. */
static const char *percent(double share, char *text, size_t size)
{
    snprintf(text, size, isnan(share) ? "-" : "%.0f%%", 100 * share);
    return text;
}

void tarn__print_row(const tarn__bench_row *row, bool json)
{
    char rate[24], spread[24];
    if (json) {
        print_json(row);
        return;
    }
    printf("%-18s %-5s %-19s %11.2f %7s %9s %8s", row->one.bench, tarn__element_name(row->element),
           tarn__shape_string(tarn__row_shape(&row->one)), row->forward.median,
           percent(row->forward.spread, spread, sizeof(spread)), rate_text(row, rate, sizeof(rate)),
           tarn__cell(row->forward_copy / row->forward.median, 2));
    printf(" %11s %7s %8s %11s %8s\n", tarn__cell(row->backward.median, 2),
           percent(row->backward.spread, spread, sizeof(spread)),
           tarn__cell(row->backward_copy / row->backward.median, 2), tarn__cell(row->both.median, 2),
           tarn__cell(row->host, 2));
    fflush(stdout);
}
