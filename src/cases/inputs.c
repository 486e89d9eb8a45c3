/* inputs.c: inputs of a case: values of the requested kind, from a seed, in the requested memory layout.
 *
 * A tensor is uploaded with the gaps of its layout, which are filled with values no case expects (NaN, an index
 * outside every axis), and then viewed: a kernel that reads between the elements gives wrong results.
 *
 * All randomness is from SplitMix64 with the given seed: the same case has the same inputs on every device and in
 * every dtype, up to rounding. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tarn/autograd.h>

#include "cases/cases.h"

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* SplitMix64: deterministic, and independent of the library's own generator. */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Uniform in [0, 1). */
static double draw_unit(uint64_t *state)
{
    return (double)(draw(state) >> 11) * 0x1p-53;
}

/* Box-Muller; one value per pair of uniforms. */
static double draw_normal(uint64_t *state)
{
    double radius = sqrt(-2 * log(1 - draw_unit(state)));
    return radius * cos(6.283185307179586 * draw_unit(state));
}

/* Log-uniform: every octave of the index is equally likely, close to Zipf's law of token frequencies. */
static double draw_zipf(int64_t below, uint64_t *state)
{
    return below > 1 ? floor(exp(draw_unit(state) * log((double)below))) : 0;
}

/* One value of the requested kind. */
static double draw_value(const tarn__case_input *input, uint64_t *state)
{
    switch (input->values) {
    case TARN__NORMAL: return draw_normal(state);
    case TARN__POSITIVE: return 0.5 + draw_unit(state);
    case TARN__UNIT: return 0.05 + 0.9 * draw_unit(state);
    case TARN__SMOOTH: {
        double size = 0.2 * (double)(draw(state) % 10) + 0.06 + 0.08 * draw_unit(state);
        return draw(state) & 1 ? size : -size;
    }
    case TARN__TIES: return (double)(draw(state) % 5) - 2;
    case TARN__INDEX: return (double)(draw(state) % (uint64_t)(input->below > 0 ? input->below : 1));
    case TARN__ZIPF: return draw_zipf(input->below, state);
    case TARN__BOOLS: return (double)(draw(state) & 1);
    default: return 0;
    }
}

/* Evenly spaced values from -2 to 2, shuffled. */
static void draw_distinct(double *values, int64_t count, uint64_t *state)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = 4 * ((double)i + 0.5) / (double)count - 2;
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t other = (int64_t)(draw(state) % (uint64_t)(i + 1));
        double kept = values[i];
        values[i] = values[other];
        values[other] = kept;
    }
}

static void draw_values(const tarn__case_input *input, double *values, int64_t count, uint64_t seed)
{
    uint64_t state = seed;
    if (input->values == TARN__DISTINCT)
        draw_distinct(values, count, &state);
    else if (input->values == TARN__STEPS)
        for (int64_t i = 0; i < count; i++)
            values[i] = (double)(i * input->below);
    else
        for (int64_t i = 0; i < count; i++)
            values[i] = draw_value(input, &state);
}

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

const char *tarn__layout_name(tarn__layout layout)
{
    static const char *const names[TARN__LAYOUTS] = {"contiguous", "last axis contiguous", "general", "zero stride"};
    return names[layout];
}

/* NHWC images are created as [N, H, W, C] and viewed as [N, C, H, W]. */
static tarn_shape channels_moved(tarn_shape shape)
{
    return TARN_SHAPE(shape.size[0], shape.size[2], shape.size[3], shape.size[1]);
}

static tarn_tensor *channels_back(tarn_tensor *made)
{
    return tarn_permute(made, TARN_AXES(0, 3, 1, 2));
}

/* The uploaded memory, and the position of the view's elements in it. */
typedef struct placement {
    tarn_shape whole;
    int64_t stride[TARN_MAX_RANK]; /* of the view's axes, in elements of the whole */
    int64_t offset;
} placement;

static int64_t count_of(tarn_shape shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape.rank; i++)
        count *= shape.size[i];
    return count;
}

/* The stride of an axis of a row-major shape. */
static int64_t step_of(tarn_shape shape, int axis)
{
    int64_t step = 1;
    for (int i = axis + 1; i < shape.rank; i++)
        step *= shape.size[i];
    return step;
}

/* The axis to expand; -1: all sizes are 1. */
static int repeated_axis(tarn_shape shape)
{
    for (int i = 0; i < shape.rank; i++)
        if (shape.size[i] > 1)
            return i;
    return -1;
}

#define GAP 3 /* elements between rows of TARN__LAST_CONTIGUOUS, one of them before the row */

/* Shape, strides and offset of the memory for a layout. */
static placement placement_of(tarn_shape shape, tarn__layout layout)
{
    placement p = {.whole = shape};
    int rank = shape.rank, last = rank - 1;
    if (layout == TARN__LAST_CONTIGUOUS) {
        p.whole.size[last] += GAP;
        p.offset = 1;
    } else if (layout == TARN__ZERO_STRIDE) {
        p.whole.size[repeated_axis(shape)] = 1;
    } else if (layout == TARN__GENERAL) {
        for (int i = 0; i < rank; i++)
            p.whole.size[i] = shape.size[last - i];
        p.whole.size[0] *= 2;
    }
    for (int i = 0; i < rank; i++)
        p.stride[i] = step_of(p.whole, layout == TARN__GENERAL ? last - i : i);
    if (layout == TARN__ZERO_STRIDE)
        p.stride[repeated_axis(shape)] = 0;
    if (layout == TARN__GENERAL) {
        p.stride[last] *= 2;
        p.offset = (shape.size[0] - 1) * p.stride[0];
        p.stride[0] = -p.stride[0];
    }
    return p;
}

/* The view of the uploaded memory, made by the library's own movement operations. */
static tarn_tensor *view_of(tarn_tensor *whole, tarn_shape shape, tarn__layout layout)
{
    int last = shape.rank - 1;
    if (layout == TARN__LAST_CONTIGUOUS)
        return tarn_slice(whole, last, 1, 1 + shape.size[last]);
    if (layout == TARN__ZERO_STRIDE)
        return tarn_expand(whole, shape);
    if (layout == TARN__CONTIGUOUS)
        return whole;
    tarn_shape steps = {shape.rank, {2}};
    tarn_axes reversed = {shape.rank, {0}};
    for (int i = 0; i < shape.rank; i++) {
        steps.size[i] = i == 0 ? 2 : 1;
        reversed.axis[i] = last - i;
    }
    return tarn_flip(tarn_permute(tarn_stride(whole, steps), reversed), TARN_AXES(0));
}

/* ---- uploading --------------------------------------------------------------------------------------------------- */

/* The dtype in which values are uploaded. */
static tarn_dtype host_dtype(tarn__values values)
{
    bool is_index = values == TARN__INDEX || values == TARN__ZIPF || values == TARN__STEPS;
    return is_index ? TARN_I64 : values == TARN__BOOLS ? TARN_BOOL : TARN_F32;
}

static void put(void *memory, tarn_dtype dtype, int64_t at, double value)
{
    if (dtype == TARN_I64)
        ((int64_t *)memory)[at] = (int64_t)value;
    else if (dtype == TARN_BOOL)
        ((uint8_t *)memory)[at] = value != 0;
    else
        ((float *)memory)[at] = (float)value;
}

/* Writes the values to their positions; every gap keeps the poison value. */
static void scatter(const double *values, tarn_shape shape, const placement *p, void *memory, tarn_dtype dtype)
{
    int64_t at[TARN_MAX_RANK] = {0}, count = count_of(shape), whole = count_of(p->whole);
    for (int64_t i = 0; i < whole; i++)
        put(memory, dtype, i, dtype == TARN_F32 ? NAN : -1e12);
    for (int64_t n = 0, offset = p->offset; n < count; n++) {
        put(memory, dtype, offset, values[n]);
        for (int i = shape.rank - 1; i >= 0; i--) {
            offset += p->stride[i];
            if (++at[i] < shape.size[i])
                break;
            offset -= at[i] * p->stride[i];
            at[i] = 0;
        }
    }
}

/* Uploads as f32, i64 or bool, then casts floats to `dtype` on the device. */
static tarn_tensor *make_input(const tarn__case_input *input, tarn_dtype dtype, tarn__layout layout, tarn_device device,
                               uint64_t seed)
{
    if (input->channels_last && layout == TARN__CONTIGUOUS) {
        tarn__case_input moved = {
            .values = input->values, .shape = channels_moved(input->shape), .below = input->below};
        return channels_back(make_input(&moved, dtype, layout, device, seed));
    }
    tarn_shape shape = input->shape;
    if (shape.rank == 0 || count_of(shape) == 0 ||
        (layout == TARN__ZERO_STRIDE && (input->values == TARN__DISTINCT || repeated_axis(shape) < 0)))
        layout = TARN__CONTIGUOUS;
    placement p = placement_of(shape, layout);
    int64_t count = count_of(shape), whole = count_of(p.whole);
    tarn_dtype held = host_dtype(input->values);
    double *values = malloc(sizeof(double) * (size_t)(count + 1));
    void *memory = malloc(sizeof(int64_t) * (size_t)(whole + 1));
    tarn_tensor *made = NULL;
    if (values && memory) {
        draw_values(input, values, count, seed);
        scatter(values, shape, &p, memory, held);
        made = tarn_from(memory, p.whole, held, device);
        made = held == TARN_F32 ? tarn_cast(made, dtype) : made;
        made = made ? view_of(made, shape, layout) : NULL;
    } else {
        tarn_set_error(TARN_ERROR_MEMORY, "no memory for an input of %lld elements", (long long)count);
    }
    free(memory);
    free(values);
    return made;
}

bool tarn__case_inputs(const tarn__case *one, tarn_dtype dtype, tarn__layout layout, tarn_device device, uint64_t seed,
                       tarn_tensor **inputs)
{
    tarn_no_grad_open();
    for (int i = 0; i < one->inputs; i++)
        inputs[i] = make_input(&one->input[i], dtype, layout, device, seed * 8 + (uint64_t)i);
    tarn_no_grad_close();
    return !tarn_failed();
}

/* ---- for measuring ----------------------------------------------------------------------------------------------- */

/* Cheap values on the device; only indices need care. */
static tarn_tensor *draw_input(const tarn__case_input *input, tarn_dtype dtype, tarn_device device)
{
    if (input->channels_last) {
        tarn__case_input moved = {
            .values = input->values, .shape = channels_moved(input->shape), .below = input->below};
        return channels_back(draw_input(&moved, dtype, device));
    }
    switch (input->values) {
    case TARN__INDEX:
    case TARN__ZIPF:
    case TARN__STEPS: return make_input(input, dtype, TARN__CONTIGUOUS, device, 1);
    case TARN__BOOLS: return tarn_gt(tarn_uniform(input->shape, -1, 1, TARN_F32, device), tarn_scalar(0));
    case TARN__POSITIVE:
    case TARN__UNIT: return tarn_uniform(input->shape, 0.5, 1.5, dtype, device);
    default: return tarn_normal(input->shape, 0, 1, dtype, device);
    }
}

bool tarn__case_random_inputs(const tarn__case *one, tarn_dtype dtype, tarn_device device, tarn_tensor **inputs)
{
    for (int i = 0; i < one->inputs; i++)
        inputs[i] = draw_input(&one->input[i], dtype, device);
    return !tarn_failed();
}
