/* cases.c: cases at a scale: letters resolved to sizes, which inputs get gradients, running a case, and its bytes
 * and FLOPs.
 *
 * A scale is a table of sizes; resolving a case copies it and replaces letters, so the list itself is constant.
 *
 * Bytes and FLOPs are lower bounds by the operation's definition, not measurements. */
#include "cases/cases.h"

#include <string.h>

/* ---- scales ------------------------------------------------------------------------------------------------------ */

/* A scale whose whole vocabulary is in use (U = V). */
static tarn__scale scale_with(int64_t b, int64_t s, int64_t r, int64_t c, int64_t k, int64_t t, int64_t v, int64_t h,
                              int64_t w)
{
    return (tarn__scale){{0, b, s, r, c, k, t, v, h, w, v}};
}

tarn__scale tarn__scale_small(void)
{
    return scale_with(2, 3, 7, 5, 4, 9, 6, 8, 5);
}

tarn__scale tarn__scale_chunked(void)
{
    return scale_with(7, 43, 301, 517, 65, 467, 331, 47, 11);
}

/* The smallest power of two whose square is at least n. */
static int64_t root_up(int64_t n)
{
    int64_t root = 1;
    while (root * root < n)
        root *= 2;
    return root;
}

/* Rows of up to 1024 elements, as in models; a large vocabulary where there are enough elements. */
tarn__scale tarn__scale_of(int64_t elements)
{
    int64_t columns = root_up(elements) < 1024 ? root_up(elements) : 1024;
    int64_t rows = elements < columns ? 1 : elements / columns;
    int64_t batch = rows < 16 ? rows : 16;
    int64_t words = elements >= 1 << 22 ? 32768 : columns;
    int64_t high = root_up(columns), inner = columns < 256 ? columns : 256;
    return scale_with(batch, rows / batch, rows, columns, inner, elements < words ? 1 : elements / words, words, high,
                      columns / high);
}

tarn__scale tarn__scale_rows(int64_t rows)
{
    int64_t batch = rows < 16 ? rows : 16;
    return scale_with(batch, rows / batch, rows, 1024, 1024, rows, 1024, 32, 32);
}

/* A size near a multiple of TARN__LETTER is that letter plus an offset. */
static int64_t resolve(int64_t size, const tarn__scale *scale)
{
    int64_t letter = (size + TARN__LETTER / 2) / TARN__LETTER;
    return letter <= 0 ? size : scale->size[letter] + (size - letter * TARN__LETTER);
}

/* Counts inputs and attributes on the way. */
tarn__case tarn__case_resolve(const tarn__case *letters, const tarn__scale *scale, tarn_dtype dtype)
{
    tarn__case one = *letters;
    for (; one.inputs < TARN__CASE_INPUTS && one.input[one.inputs].values != TARN__NO_INPUT; one.inputs++) {
        tarn__case_input *input = &one.input[one.inputs];
        input->below = resolve(input->below, scale);
        for (int i = 0; i < input->shape.rank; i++)
            input->shape.size[i] = resolve(input->shape.size[i], scale);
    }
    for (; one.attributes < TARN__CASE_ATTRIBUTES && one.attribute[one.attributes].name; one.attributes++) {
        tarn_attribute *attribute = &one.attribute[one.attributes];
        attribute->integer = resolve(attribute->integer, scale);
        if (attribute->integer == TARN__OTHER_DTYPE && strcmp(attribute->name, "dtype") == 0)
            attribute->integer = dtype == TARN_F32 ? TARN_BF16 : TARN_F32;
        for (int i = 0; i < attribute->count; i++)
            attribute->list[i] = resolve(attribute->list[i], scale);
    }
    return one;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* Differentiable by its registry row, and not excluded by the case. */
static bool is_smooth_operation(const tarn__case *one)
{
    tarn_op_info info;
    return tarn_op_at(tarn_op_find(one->operation), &info) && info.differentiable && one->smooth != TARN__NOT_SMOOTH;
}

bool tarn__case_flows(const tarn__case *one, int input)
{
    tarn__values values = one->input[input].values;
    return values != TARN__NO_INPUT && values < TARN__INDEX && !((one->fixed >> input) & 1) && is_smooth_operation(one);
}

bool tarn__case_checkable(const tarn__case *one, int input)
{
    return one->input[input].values != TARN__TIES && tarn__case_flows(one, input);
}

bool tarn__case_smooth(const tarn__case *one, int output)
{
    return ((one->smooth ? one->smooth : 1u) >> output & 1) && is_smooth_operation(one);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* The seed is fixed, so dropout draws the same mask in every run. */
bool tarn__case_run(const tarn__case *one, tarn_tensor *const *inputs, tarn_tensor **outputs)
{
    tarn_op_info info;
    for (int i = 0; i < TARN__CASE_OUTPUTS; i++)
        outputs[i] = NULL;
    tarn_seed(1);
    if (tarn_failed() || !tarn_op_at(tarn_op_find(one->operation), &info) ||
        !tarn_apply(one->operation, inputs, one->inputs, one->attribute, one->attributes, outputs, info.outputs))
        return false;
    if (one->copied)
        outputs[0] = tarn_contiguous(outputs[0]);
    return outputs[0] != NULL;
}

/* ---- costs ------------------------------------------------------------------------------------------------------- */

/* The unit of `forward` and `backward`. */
static int64_t largest_bytes(const tarn__case *one, tarn_tensor *const *inputs, tarn_tensor *const *outputs)
{
    int64_t largest = tarn_bytes(outputs[0]);
    for (int i = 0; i < one->inputs; i++)
        if (tarn_bytes(inputs[i]) > largest)
            largest = tarn_bytes(inputs[i]);
    return largest;
}

/* A lower bound: what an ideal kernel moves. `tarn bench ops` reports bandwidth against it. */
int64_t tarn__case_forward_bytes(const tarn__case *one, tarn_tensor *const *inputs, tarn_tensor *const *outputs)
{
    if (one->moves == TARN__MOVES_ROWS)
        return 2 * tarn_bytes(outputs[0]);
    if (one->forward > 0)
        return (int64_t)(one->forward * (double)largest_bytes(one, inputs, outputs));
    int64_t bytes = 0;
    for (int i = 0; i < one->inputs; i++)
        bytes += tarn_bytes(inputs[i]);
    for (int i = 0; i < TARN__CASE_OUTPUTS && outputs[i]; i++)
        bytes += tarn_bytes(outputs[i]);
    return bytes;
}

/* Gathers move their rows and the whole table's gradient. */
int64_t tarn__case_backward_bytes(const tarn__case *one, tarn_tensor *const *inputs, tarn_tensor *const *outputs)
{
    if (one->moves == TARN__MOVES_ROWS)
        return tarn_bytes(outputs[0]) + tarn_bytes(inputs[0]);
    return (int64_t)(one->backward * (double)largest_bytes(one, inputs, outputs));
}

bool tarn__case_is_compute_bound(const tarn__case *one)
{
    return strcmp(one->operation, "matmul") == 0 || strcmp(one->operation, "linear") == 0 ||
           strcmp(one->operation, "conv2d") == 0;
}

/* 2 · outputs · terms of each sum. */
double tarn__case_flops(const tarn__case *one, tarn_tensor *const *inputs, tarn_tensor *const *outputs)
{
    if (!tarn__case_is_compute_bound(one))
        return 0;
    bool convolves = strcmp(one->operation, "conv2d") == 0;
    int64_t terms = convolves ? tarn_count(inputs[1]) / tarn_size(inputs[1], 0) : tarn_size(inputs[0], -1);
    return 2.0 * (double)tarn_count(outputs[0]) * (double)terms;
}
