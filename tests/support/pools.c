/* pools.c: max_pool2d, and averages of windows side by side, against plain references. Images and gradients are small
 * whole numbers, so that sums are exact in any order. */
#include <math.h>
#include <stdlib.h>

#include "support/pools.h"

typedef struct windows {
    int64_t images, channels, size[2];
    tarn_pool2d_options options;
} windows;

static const windows cases[] = {
    {2, 8, {12, 16}, {.kernel = {2, 2}}},
    {2, 8, {13, 15}, {.kernel = {2, 2}, .ceil_mode = true}},
    {2, 16, {12, 15}, {.kernel = {3, 3}}},
    {2, 8, {12, 16}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}},
    {1, 3, {11, 9}, {.kernel = {3, 2}, .stride = {1, 2}, .padding = {1, 0}}},
    {2, 8, {19, 17}, {.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}, .dilation = {2, 2}}},
    {2, 5, {20, 21}, {.kernel = {2, 4}, .stride = {2, 3}, .padding = {1, 2}, .dilation = {3, 2}}},
    {1, 8, {18, 24}, {.kernel = {3, 3}, .dilation = {3, 3}}},
    {2, 8, {30, 34}, {.kernel = {15, 17}}},
    {1, 8, {33, 40}, {.kernel = {15, 17}, .stride = {4, 5}, .padding = {7, 8}}},
    {2, 8, {32, 48}, {.kernel = {16, 16}}},
    {1, 8, {33, 40}, {.kernel = {16, 16}, .stride = {5, 4}, .padding = {8, 8}}},
    {1, 3, {40, 33}, {.kernel = {16, 16}, .stride = {9, 16}, .padding = {8, 3}, .dilation = {2, 2}}},
    {1, 8, {70, 20}, {.kernel = {64, 4}, .stride = {3, 1}, .padding = {30, 2}, .dilation = {1, 3}}},
    {1, 8, {5, 6}, {.kernel = {2, 2}, .stride = {1 << 22, 1 << 22}}},
    {2, 8, {1, 1}, {.kernel = {2, 2}, .padding = {1, 1}, .dilation = {2, 2}}},
    {1, 8, {1, 70}, {.kernel = {2, 128}, .stride = {1, 2}, .padding = {1, 64}, .dilation = {2, 1}}},
};

static int64_t step_of(const tarn_pool2d_options *o, int axis)
{
    return o->stride[axis] ? o->stride[axis] : o->kernel[axis];
}

/* Where the largest element of a window lies in its plane: the last NaN, else the first of equal ones; -1 where there
 * is none. */
static int64_t place_of_largest(const windows *w, const double *plane, int64_t row, int64_t column)
{
    const tarn_pool2d_options *o = &w->options;
    int64_t best = -1, gap[2] = {o->dilation[0] ? o->dilation[0] : 1, o->dilation[1] ? o->dilation[1] : 1};
    for (int64_t i = 0; i < o->kernel[0]; i++)
        for (int64_t j = 0; j < o->kernel[1]; j++) {
            int64_t y = row * step_of(o, 0) - o->padding[0] + i * gap[0],
                    x = column * step_of(o, 1) - o->padding[1] + j * gap[1];
            if (y < 0 || y >= w->size[0] || x < 0 || x >= w->size[1])
                continue;
            double value = plane[y * w->size[1] + x];
            if (best < 0 || value > plane[best] || isnan(value))
                best = y * w->size[1] + x;
        }
    return best;
}

static void pool_plainly(const windows *w, const double *x, tarn_shape results, const double *g, double *y, double *gx)
{
    int64_t rows = results.size[2], columns = results.size[3], area = w->size[0] * w->size[1];
    for (int64_t plane = 0; plane < w->images * w->channels; plane++)
        for (int64_t i = 0; i < rows * columns; i++) {
            int64_t place = place_of_largest(w, x + plane * area, i / columns, i % columns),
                    to = plane * rows * columns + i;
            y[to] = place < 0 ? -INFINITY : x[plane * area + place];
            if (place >= 0)
                gx[plane * area + place] += g[to];
        }
}

/* Whole numbers around 0, many of them equal; images also have NaN and -inf. */
static double *draw(uint64_t *bits, int64_t count, bool is_image)
{
    double *values = malloc(sizeof(double) * (size_t)count);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) {
        int64_t kind = is_image ? random_below(bits, 40) : 40;
        values[i] = kind == 0 ? (double)NAN : kind < 6 ? -(double)INFINITY : (double)(random_below(bits, 9) - 4);
    }
    return values;
}

static tarn_tensor *laid_out(tarn_tensor *x, bool channels_last)
{
    return channels_last
               ? good(tarn_permute(tarn_contiguous(tarn_permute(x, TARN_AXES(0, 2, 3, 1))), TARN_AXES(0, 3, 1, 2)))
               : x;
}

static void check_case(const windows *w, uint64_t *bits, tarn_dtype dtype, bool channels_last, tarn_device device)
{
    const tarn_shape shape = TARN_SHAPE(w->images, w->channels, w->size[0], w->size[1]);
    const int64_t count = w->images * w->channels * w->size[0] * w->size[1], area = w->size[0] * w->size[1];
    double *values = draw(bits, count, true), *gradient = calloc((size_t)count, sizeof(double));
    assert_non_null(gradient);
    for (int64_t i = count - area; i < count; i++)
        values[i] = -(double)INFINITY;
    tarn_tensor *leaf = tarn_requires_grad(good(tarn_cast(tarn_from_f64(values, shape, device), TARN_F32)), true);
    tarn_tensor *y = good(tarn_max_pool2d(laid_out(good(tarn_cast(leaf, dtype)), channels_last), &w->options));
    const int64_t results = tarn_count(y);
    double *given = draw(bits, results, false), *largest = calloc((size_t)results, sizeof(double));
    assert_non_null(largest);
    pool_plainly(w, values, tarn_shape_of(y), given, largest, gradient);
    expect(y, tarn_shape_of(y), largest);
    assert_true(tarn_backward_from(
        y, laid_out(good(tarn_cast(tarn_from_f64(given, tarn_shape_of(y), device), dtype)), channels_last), NULL));
    expect(tarn_grad(leaf), shape, gradient);
    free(values), free(gradient), free(given), free(largest);
}

void check_windows(tarn_device device, bool all_dtypes)
{
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_BF16, TARN_F16, TARN_F64};
    uint64_t bits = test_seed(3);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (size_t k = 0; k < 8; k++) {
            const size_t which = k / 2, channels_last = k % 2;
            if (!all_dtypes && which != (i + channels_last) % 4)
                continue;
            tarn_scope *scope = tarn_scope_open();
            check_case(&cases[i], &bits, dtypes[which], channels_last, device);
            tarn_scope_close(scope);
        }
}

/* ---- averages ---------------------------------------------------------------------------------------------------- */

/* Windows side by side, which take all of the image but for what is left of its last rows and columns. */
static const windows sides[] = {
    {2, 8, {12, 16}, {.kernel = {2, 2}}}, {2, 8, {13, 15}, {.kernel = {2, 2}}}, {1, 16, {12, 15}, {.kernel = {3, 3}}},
    {2, 3, {9, 6}, {.kernel = {3, 3}}},   {2, 8, {12, 14}, {.kernel = {3, 2}}}, {1, 24, {8, 16}, {.kernel = {4, 4}}},
};

/* Gradients are whole numbers times the elements of a window, so that their shares are whole, too. */
static void check_sides(const windows *w, uint64_t *bits, tarn_dtype dtype, bool channels_last, tarn_device device)
{
    const tarn_shape shape = TARN_SHAPE(w->images, w->channels, w->size[0], w->size[1]);
    const int64_t high = w->options.kernel[0], broad = w->options.kernel[1], rows = w->size[0] / high,
                  columns = w->size[1] / broad;
    const int64_t planes = w->images * w->channels, area = w->size[0] * w->size[1], results = planes * rows * columns;
    double *share = draw(bits, results, false), *given = calloc((size_t)results, sizeof(double)),
           *average = calloc((size_t)results, sizeof(double));
    double *values = calloc((size_t)(planes * area), sizeof(double)),
           *gradient = calloc((size_t)(planes * area), sizeof(double));
    assert_true(given && average && values && gradient);
    for (int64_t i = 0; i < results; i++)
        given[i] = share[i] * (double)(high * broad);
    for (int64_t i = 0; i < planes * area; i++) {
        int64_t row = i % area / w->size[1] / high, column = i % w->size[1] / broad,
                window = (i / area * rows + row) * columns + column;
        if (row >= rows || column >= columns)
            continue;
        values[i] = average[window] = share[window]; /* all elements of a window are alike */
        gradient[i] = share[window];
    }
    tarn_tensor *leaf = tarn_requires_grad(good(tarn_cast(tarn_from_f64(values, shape, device), TARN_F32)), true);
    tarn_tensor *y = good(tarn_avg_pool2d(laid_out(good(tarn_cast(leaf, dtype)), channels_last), &w->options));
    expect(y, TARN_SHAPE(w->images, w->channels, rows, columns), average);
    assert_true(tarn_backward_from(
        y, laid_out(good(tarn_cast(tarn_from_f64(given, tarn_shape_of(y), device), dtype)), channels_last), NULL));
    expect(tarn_grad(leaf), shape, gradient);
    free(share), free(given), free(average), free(values), free(gradient);
}

void check_averages(tarn_device device, bool all_dtypes)
{
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_BF16, TARN_F16, TARN_F64};
    uint64_t bits = test_seed(4);
    for (size_t i = 0; i < sizeof(sides) / sizeof(sides[0]); i++)
        for (size_t k = 0; k < 8; k++) {
            if (!all_dtypes && k / 2 != (i + k % 2) % 4)
                continue;
            tarn_scope *scope = tarn_scope_open();
            check_sides(&sides[i], &bits, dtypes[k / 2], k % 2, device);
            tarn_scope_close(scope);
        }
}
