/* conv_geometry.c: integer arithmetic on the sizes of a convolution; see conv_geometry.h. */
#include "base/kernel/conv_geometry.h"

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Rows from the first to the last tap of a window. */
static int64_t reach_of(const tarn__conv_geometry *g)
{
    return (g->kernel[0] - 1) * g->dilation[0];
}

tarn__conv_geometry tarn__conv_geometry_of(const tarn__conv2d *params, const tarn__view *image,
                                           const tarn__view *result, const tarn__view *weight)
{
    tarn__conv_geometry g;
    for (int i = 0; i < 2; i++) {
        g.kernel[i] = weight->shape[2 + i];
        g.stride[i] = params->stride[i];
        g.padding[i] = params->padding[i];
        g.dilation[i] = params->dilation[i];
        g.image[i] = image->shape[2 + i];
        g.result[i] = result->shape[2 + i];
    }
    return g;
}

int64_t tarn__conv_items_in(int64_t limit, int64_t bytes)
{
    return max_i64(1, limit / bytes);
}

int64_t tarn__conv_even_chunk(int64_t count, int64_t limit)
{
    count = max_i64(count, 1);
    return ceil_div(count, ceil_div(count, limit));
}

void tarn__conv_result_rows(const tarn__conv_geometry *g, int64_t image_row, int64_t image_rows, int64_t *row,
                            int64_t *rows)
{
    int64_t first = ceil_div(max_i64(0, image_row + g->padding[0] - reach_of(g)), g->stride[0]);
    int64_t end = min_i64(g->result[0], (image_row + image_rows - 1 + g->padding[0]) / g->stride[0] + 1);
    /* a chunk of several images has all rows, also those whose windows lie in the padding */
    bool is_whole = image_rows == g->image[0];
    *row = is_whole ? 0 : min_i64(first, end);
    *rows = (is_whole ? g->result[0] : end) - *row;
}

int64_t tarn__conv_max_result_rows(const tarn__conv_geometry *g, int64_t image_rows)
{
    if (image_rows == g->image[0])
        return g->result[0];
    return min_i64(g->result[0], (image_rows - 1 + reach_of(g)) / g->stride[0] + 1);
}

int64_t tarn__conv_band_rows(const tarn__conv_geometry *g, int64_t rows)
{
    int64_t reach = reach_of(g);
    return max_i64(1, min_i64(g->image[0], max_i64((rows - 1) * g->stride[0] - reach, reach)));
}
