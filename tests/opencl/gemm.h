/* gemm.h: GEMM, quantized weights, images_are_convolved and attention, compared as in compare.h. test_gemm.c tests the
 * kernels for the device at hand, test_gemm_local_mem.c those for devices with local memory. */
#ifndef TESTS_OPENCL_GEMM_H
#define TESTS_OPENCL_GEMM_H

#include "opencl/compare.h"
#include "support/quant.h"

/* ---- products ---------------------------------------------------------------------------------------------------- */

static tarn_tensor *product(tarn_tensor **x, const void *options)
{
    (void)options;
    return tarn_matmul(x[0], x[1]);
}

/* One row and one column, fewer rows than a tile has, sums that are cut in parts, rows and columns that no tile
 * divides. */
static void matrices_of_every_shape_are_multiplied(void **state)
{
    NEEDS_OPENCL();
    static const int64_t sizes[][3] = {{1, 70, 300}, {70, 1, 300},   {3, 33, 65},
                                       {13, 33, 1},  {37, 45, 6001}, {130, 70, 33}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
        compare(TARN_F32, product, (tarn_tensor *[]){random_of(TARN_SHAPE(m, k)), random_of(TARN_SHAPE(k, n))}, 2, NULL,
                2e-5);
        compare(TARN_F32, product,
                (tarn_tensor *[]){random_of(TARN_SHAPE(m, k)), tarn_transpose(random_of(TARN_SHAPE(n, k)), 0, 1)}, 2,
                NULL, 2e-5);
    }
    compare(TARN_F64, product, (tarn_tensor *[]){random_of(TARN_SHAPE(19, 40)), random_of(TARN_SHAPE(40, 23))}, 2, NULL,
            1e-13);
    compare(TARN_F32, product, (tarn_tensor *[]){random_of(TARN_SHAPE(3, 1, 19, 40)), random_of(TARN_SHAPE(2, 40, 23))},
            2, NULL, 2e-5);
}

/* Contiguous terms, as linear layers have them: tiles of tensor cores where there are any. Partial tiles and
 * stages, split-K, batches. */
static void products_of_16_bits_are_exact_sums(void **state)
{
    NEEDS_OPENCL();
    static const int64_t sizes[][3] = {{20, 33, 64}, {130, 200, 264}, {37, 45, 6000}};
    for (int i = 0; i < 6; i++) {
        int64_t m = sizes[i % 3][0], n = sizes[i % 3][1], k = sizes[i % 3][2];
        compare(i < 3 ? TARN_BF16 : TARN_F16, product,
                (tarn_tensor *[]){random_of(TARN_SHAPE(m, k)), tarn_transpose(random_of(TARN_SHAPE(n, k)), 0, 1)}, 2,
                NULL, i < 3 ? 1e-2 : 2e-3);
    }
    compare(
        TARN_BF16, product,
        (tarn_tensor *[]){random_of(TARN_SHAPE(3, 1, 19, 40)), tarn_transpose(random_of(TARN_SHAPE(2, 23, 40)), 1, 2)},
        2, NULL, 1e-2);
}

/* ---- weights of blocks ------------------------------------------------------------------------------------------- */

/* Few rows are multiplied by the bytes, many by elements made of them; either way by what the blocks stand for.
 * Dtypes after the first four differ in their unpacking alone: fewer variants, since drivers compile each. */
static void quantized_weights_are_multiplied(void **state)
{
    NEEDS_OPENCL();
    static const int64_t rows[] = {1, 3, 20};
    uint64_t random = test_seed(5);
    for (tarn_dtype dtype = TARN_Q8_0; dtype < TARN_DTYPE_COUNT; dtype++)
        for (int r = 0; r<3; r += dtype> TARN_Q6_K ? 2 : 1) {
            tarn_tensor *w = random_quant_blocks(dtype, 37, 768, &random), *x = random_of(TARN_SHAPE(rows[r], 768)),
                        *bias = random_of(TARN_SHAPE(37));
            tarn_stats_reset();
            tarn_tensor *there =
                good(tarn_linear_apply(tarn_to(x, opencl), tarn_to(w, opencl), r == 1 ? NULL : tarn_to(bias, opencl)));
            assert_int_equal(tarn_stats().fallbacks, 0);
            tarn_tensor *plain = tarn_cast(tarn_cast(w, TARN_F32), TARN_F64);
            tarn_tensor *here =
                good(tarn_linear_apply(tarn_cast(x, TARN_F64), plain, r == 1 ? NULL : tarn_cast(bias, TARN_F64)));
            assert_close_for_size(tarn_cast(tarn_to(there, CPU), TARN_F64), here, 1e-5);
            if (dtype > TARN_Q6_K)
                continue;
            tarn_tensor *narrow =
                good(tarn_linear_apply(tarn_to(tarn_cast(x, TARN_BF16), opencl), tarn_to(w, opencl), NULL));
            here = good(tarn_linear_apply(tarn_cast(tarn_cast(x, TARN_BF16), TARN_F64), plain, NULL));
            assert_close_for_size(tarn_cast(tarn_to(narrow, CPU), TARN_F64), here, 1e-2);
        }
}

/* ---- images_are_convolved -------------
 * ---------------------------------------------------------------------------------- */

static tarn_tensor *convolution(tarn_tensor **x, const void *options)
{
    return tarn_conv2d(x[0], x[1], x[2], (const tarn_conv2d_options *)options);
}

static void images_are_convolved(void **state)
{
    NEEDS_OPENCL();
    static const tarn_conv2d_options options[] = {
        {.padding = {2, 2}}, {.stride = {2, 3}, .padding = {1, 0}}, {.dilation = {2, 1}, .groups = 2}};
    for (int i = 0; i < 3; i++) {
        int64_t groups = options[i].groups ? options[i].groups : 1;
        compare(TARN_F32, convolution,
                (tarn_tensor *[]){random_of(TARN_SHAPE(3, 4, 14, 11)), random_of(TARN_SHAPE(6, 4 / groups, 5, 3)),
                                  random_of(TARN_SHAPE(6))},
                3, &options[i], 2e-5);
    }
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static tarn_tensor *attended(tarn_tensor **x, const void *options)
{
    return tarn_attention(x[0], x[1], x[2], (const tarn_attention_options *)options);
}

/* Two heads of q for each of k and v; rows and keys that no tile divides, a D of whole fours and one that is not. */
static void attention(void **state)
{
    NEEDS_OPENCL();
    const tarn_attention_options options = {.causal = true};
    for (int64_t depth = 24; depth >= 21; depth -= 3)
        compare(TARN_F32, attended,
                (tarn_tensor *[]){random_of(TARN_SHAPE(2, 4, 70, depth)), random_of(TARN_SHAPE(2, 2, 90, depth)),
                                  random_of(TARN_SHAPE(2, 2, 90, depth))},
                3, &options, 2e-5);
}

/* A window that begins in another tile from row to row, and a soft cap: a program of their own. */
static void attention_has_windows_and_soft_caps(void **state)
{
    NEEDS_OPENCL();
    const tarn_attention_options options = {.causal = true, .window = 70, .softcap = 2};
    compare(TARN_F32, attended,
            (tarn_tensor *[]){random_of(TARN_SHAPE(2, 4, 70, 24)), random_of(TARN_SHAPE(2, 2, 170, 24)),
                              random_of(TARN_SHAPE(2, 2, 170, 24))},
            3, &options, 2e-5);
}

enum { DOCUMENT_ROWS = 150, DOCUMENT_KEYS = 170, DOCUMENT = 40 };

/* Documents beside each other in the first batch, starts in no order in the second: some rows of it attend to nothing.
 */
static tarn_tensor *attended_from_starts(tarn_tensor **x, const void *options)
{
    int32_t document_starts[2 * DOCUMENT_ROWS];
    tarn_attention_options own = *(const tarn_attention_options *)options;
    for (int32_t t = 0; t < DOCUMENT_ROWS; t++) {
        document_starts[t] = DOCUMENT_KEYS - DOCUMENT_ROWS + t / DOCUMENT * DOCUMENT;
        document_starts[DOCUMENT_ROWS + t] = t * 37 % (DOCUMENT_KEYS + 1);
    }
    own.document_starts = tarn_from_i32(document_starts, TARN_SHAPE(2, DOCUMENT_ROWS), tarn_device_of(x[0]));
    return tarn_attention(x[0], x[1], x[2], &own);
}

static void attention_respects_document_starts(void **state)
{
    NEEDS_OPENCL();
    for (int causal = 0; causal < 2; causal++) {
        const tarn_attention_options options = {.causal = causal};
        tarn_tensor *x[] = {random_of(TARN_SHAPE(2, 2, DOCUMENT_ROWS, 12)),
                            random_of(TARN_SHAPE(2, 1, DOCUMENT_KEYS, 12)),
                            random_of(TARN_SHAPE(2, 1, DOCUMENT_KEYS, 12))};
        compare(TARN_F32, attended_from_starts, x, 3, &options, 2e-5);
        compare(TARN_BF16, attended_from_starts, x, 3, &options, 4e-3);
        if (causal)
            compare(TARN_F32, attended_from_starts, x, 3,
                    &(tarn_attention_options){.causal = true, .window = 25, .softcap = 2}, 2e-5);
    }
}

#define PRODUCT_TESTS \
    ON_OPENCL(matrices_of_every_shape_are_multiplied), ON_OPENCL(products_of_16_bits_are_exact_sums), \
        ON_OPENCL(quantized_weights_are_multiplied), ON_OPENCL(images_are_convolved), ON_OPENCL(attention), \
        ON_OPENCL(attention_has_windows_and_soft_caps), ON_OPENCL(attention_respects_document_starts)

#endif
