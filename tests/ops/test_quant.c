/* test_quant.c: quantized tensors: bytes are copied unchanged, they dequantize to known values, rows are gathered
 * and multiplied, at every instruction level of this processor and with any number of threads; all other operations
 * reject them. */
#include <math.h>
#include <string.h>

#include "backends/cpu/runtime/level.h"
#include "base/quant/quant.h"
#include "support/quant.h"
#include "support/scratch.h"

#if defined(TARN__HAVE_DOTPROD) || defined(TARN__HAVE_I8MM)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

static const tarn_dtype kinds[] = {TARN_Q8_0, TARN_Q4_0, TARN_Q4_K, TARN_Q6_K, TARN_Q4_1,   TARN_Q5_0,
                                   TARN_Q5_1, TARN_Q2_K, TARN_Q3_K, TARN_Q5_K, TARN_IQ4_NL, TARN_IQ4_XS};
#define KINDS (int)(sizeof(kinds) / sizeof(kinds[0]))

static tarn_device cpu(void)
{
    return tarn_device_cpu();
}

/* A weight of blocks, normal numbers with some large ones among them. */
static tarn_tensor *weight_of(tarn_dtype dtype, int64_t out, int64_t in)
{
    tarn_tensor *plain = tarn_mul(tarn_normal(TARN_SHAPE(out, in), 0, 1, TARN_F32, cpu()),
                                  tarn_exp(tarn_normal(TARN_SHAPE(out, in), 0, 1, TARN_F32, cpu())));
    return good(tarn_cast(plain, dtype));
}

/* A length of the last axis: whole chunks, less than one, and some more. */
static int64_t length_of(tarn_dtype dtype, int which)
{
    static const int64_t in_32s[] = {32, 96, 256, 288, 512, 1056}, in_256s[] = {256, 512, 768, 1024, 1280, 2048};
    return tarn_dtype_block_size(dtype) == 32 ? in_32s[which] : in_256s[which];
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static void assert_same_bytes(const tarn_tensor *a, const tarn_tensor *b)
{
    assert_ok();
    int64_t bytes = tarn_bytes(a);
    assert_int_equal(bytes, tarn_bytes(b));
    assert_int_equal(tarn_dtype_of(a), tarn_dtype_of(b));
    char *in_a = malloc((size_t)bytes + 1), *in_b = malloc((size_t)bytes + 1);
    assert_true(tarn_read(a, in_a, (size_t)bytes) && tarn_read(b, in_b, (size_t)bytes));
    assert_memory_equal(in_a, in_b, (size_t)bytes);
    free(in_a), free(in_b);
}

static void bytes_travel_unchanged(void **state)
{
    (void)state;
    uint64_t random = test_seed(3);
    tarn_device mirror = tarn_device_parse("mirror:0");
    for (int k = 0; k < KINDS; k++) {
        int64_t in = 3 * tarn_dtype_block_size(kinds[k]),
                bytes = 5 * in / tarn_dtype_block_size(kinds[k]) * (int64_t)tarn_dtype_size(kinds[k]);
        unsigned char given[15 * 210], back[15 * 210];
        for (int64_t i = 0; i < bytes; i++)
            given[i] = (unsigned char)random_bits(&random);
        tarn_tensor *w = good(tarn_from(given, TARN_SHAPE(5, in), kinds[k], cpu()));
        assert_int_equal(tarn_bytes(w), bytes);
        assert_true(tarn_read(w, back, (size_t)bytes));
        assert_memory_equal(back, given, (size_t)bytes);
        tarn_tensor *away = good(tarn_to(w, mirror));
        assert_same_bytes(away, w);
        assert_same_bytes(good(tarn_to(away, cpu())), w);
        assert_same_bytes(good(tarn_clone(away)), w);
        tarn_tensor *other = good(tarn_empty_like(away));
        assert_true(tarn_copy(other, w));
        assert_same_bytes(other, w);
        assert_true(tarn_write(good(tarn_slice(other, 0, 1, 3)), given, (size_t)bytes / 5 * 2));
        assert_same_bytes(good(tarn_slice(other, 0, 1, 2)), good(tarn_slice(w, 0, 0, 1)));
    }
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

static float *decoded(const tarn_tensor *w)
{
    int64_t bytes = tarn_bytes(w), count = tarn_count(w);
    char *blocks = malloc((size_t)bytes + 1);
    float *values = malloc(sizeof(float) * (size_t)(count + 1));
    assert_true(tarn_read(w, blocks, (size_t)bytes));
    tarn__dequantize_blocks(tarn_dtype_of(w), blocks, count, values);
    free(blocks);
    return values;
}

static void blocks_dequantize_to_their_elements(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        int64_t in = length_of(kinds[k], 3), count = 7 * in;
        tarn_tensor *w = weight_of(kinds[k], 7, in), *away = good(tarn_to(w, tarn_device_parse("mirror:1")));
        float *expected = decoded(w), *values = malloc(sizeof(float) * (size_t)count);
        assert_true(tarn_read_f32(w, values, count));
        assert_memory_equal(values, expected, sizeof(float) * (size_t)count);
        assert_true(tarn_read_f32(good(tarn_cast(away, TARN_F32)), values, count));
        assert_memory_equal(values, expected, sizeof(float) * (size_t)count);
        tarn_tensor *plain = good(tarn_from_f32(expected, TARN_SHAPE(7, in), cpu()));
        for (tarn_dtype dtype = TARN_F32; dtype <= TARN_F16; dtype++)
            assert_close(good(tarn_cast(w, dtype)), good(tarn_cast(plain, dtype)), 0);
        tarn_tensor *turned = good(tarn_empty(TARN_SHAPE(in, 7), TARN_F32, cpu()));
        assert_true(tarn_copy(good(tarn_transpose(turned, 0, 1)), w));
        assert_close(turned, good(tarn_contiguous(tarn_transpose(plain, 0, 1))), 0);
        char *blocks = malloc((size_t)tarn_bytes(w));
        tarn__quantize_blocks(kinds[k], expected, count, blocks);
        assert_same_bytes(good(tarn_cast(plain, kinds[k])),
                          good(tarn_from(blocks, TARN_SHAPE(7, in), kinds[k], cpu())));
        free(expected), free(values), free(blocks);
    }
}

static void views_along_outer_axes_stay_quantized(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        int64_t in = length_of(kinds[k], 2), block = tarn_dtype_block_size(kinds[k]);
        tarn_tensor *w = good(tarn_reshape(weight_of(kinds[k], 24, in), TARN_SHAPE(4, 6, in))),
                    *plain = good(tarn_cast(w, TARN_F32));
        tarn_tensor *views[] = {tarn_slice(w, 1, 2, 5),
                                tarn_transpose(w, 0, 1),
                                tarn_flip(w, TARN_AXES(0)),
                                tarn_stride(w, TARN_SHAPE(2, 3, 1)),
                                tarn_reshape(w, TARN_SHAPE(2, 12, -1)),
                                tarn_unsqueeze(w, 1),
                                tarn_slice(w, 0, 4, 4)};
        tarn_tensor *same[] = {tarn_slice(plain, 1, 2, 5),
                               tarn_transpose(plain, 0, 1),
                               tarn_flip(plain, TARN_AXES(0)),
                               tarn_stride(plain, TARN_SHAPE(2, 3, 1)),
                               tarn_reshape(plain, TARN_SHAPE(2, 12, in)),
                               tarn_unsqueeze(plain, 1),
                               tarn_slice(plain, 0, 4, 4)};
        for (int i = 0; i < 7; i++) {
            assert_close(good(tarn_cast(views[i], TARN_F32)), good(same[i]), 0);
            assert_same_bytes(good(tarn_contiguous(views[i])), views[i]);
        }
        assert_close(good(tarn_cast(tarn_reshape(tarn_transpose(w, 0, 1), TARN_SHAPE(24, in)), TARN_F32)),
                     good(tarn_reshape(tarn_transpose(plain, 0, 1), TARN_SHAPE(24, in))), 0);
        tarn_transpose(w, 1, 2);
        assert_error(TARN_ERROR_SHAPE, "transpose: x is");
        tarn_slice(w, 2, 0, block / 2);
        assert_error(TARN_ERROR_SHAPE, "slice: x is");
        tarn_flip(w, TARN_AXES(-1));
        assert_error(TARN_ERROR_SHAPE, "flip: x is");
        tarn_unsqueeze(w, 3);
        assert_error(TARN_ERROR_SHAPE, "unsqueeze: x is");
        tarn_reshape(w, TARN_SHAPE(-1, block / 4));
        assert_error(TARN_ERROR_SHAPE, "reshape: the last axis of");
    }
}

static void rows_are_gathered(void **state)
{
    (void)state;
    int64_t list[] = {5, 0, 5, 2, 8, 1};
    for (int k = 0; k < KINDS; k++)
        for (int away = 0; away < 2; away++) {
            tarn_device device = away ? tarn_device_parse("mirror:0") : cpu();
            tarn_tensor *w = good(tarn_to(weight_of(kinds[k], 9, length_of(kinds[k], 1)), device)),
                        *plain = good(tarn_cast(w, TARN_F32));
            tarn_tensor *index = good(tarn_from_i64(list, TARN_SHAPE(2, 3), device)),
                        *flat = good(tarn_reshape(index, TARN_SHAPE(6)));
            assert_close(good(tarn_embedding(w, index)), good(tarn_embedding(plain, index)), 0);
            tarn_tensor *rows = good(tarn_index_select(w, 0, flat));
            assert_int_equal(tarn_dtype_of(rows), kinds[k]);
            assert_close(good(tarn_cast(rows, TARN_F32)), good(tarn_index_select(plain, 0, flat)), 0);
            tarn_embedding(w, good(tarn_add(index, index)));
            assert_error(TARN_ERROR_ARGUMENT, "embedding: index 10 is outside");
            tarn_index_select(w, 1, flat);
            assert_error(TARN_ERROR_SHAPE, "index_select: the last axis");
        }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static void products_are_right_up_to_the_rounding_of_x(void **state)
{
    (void)state;
    static const int64_t outs[] = {1, 5, 16, 33, 70}, rows[] = {1, 2, 4, 7, 130};
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_BF16, TARN_F16};
    uint64_t random = test_seed(5);
    for (int round = 0; round < 15 * KINDS; round++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_dtype kind = kinds[round % KINDS], dtype = dtypes[random_below(&random, 3)];
        int64_t out = outs[random_below(&random, 5)], in = length_of(kind, (int)random_below(&random, 6)),
                many = rows[round / KINDS % 5];
        tarn_tensor *w = random_quant_blocks(kind, out, in, &random),
                    *x = good(tarn_normal(TARN_SHAPE(many, in), 0, 2, dtype, cpu()));
        tarn_tensor *bias =
            random_below(&random, 2)
                ? good(tarn_normal(TARN_SHAPE(out), 0, 1, random_below(&random, 2) ? TARN_F32 : dtype, cpu()))
                : NULL;
        tarn_tensor *y = good(tarn_linear_apply(x, w, bias));
        assert_int_equal(tarn_dtype_of(y), dtype);
        assert_quant_matmul(x, w, bias, y);
        tarn_device device = tarn_device_parse("mirror:1");
        tarn_tensor *there =
            good(tarn_linear_apply(tarn_to(x, device), tarn_to(w, device), bias ? tarn_to(bias, device) : NULL));
        assert_close(good(tarn_to(there, cpu())), y, 0);
        tarn_scope_close(scope);
    }
}

static void strides_of_x_and_of_the_weight_do_not_matter(void **state)
{
    (void)state;
    uint64_t random = test_seed(6);
    for (tarn_dtype kind = TARN_Q8_0; kind < TARN_DTYPE_COUNT; kind++) {
        int64_t in = length_of(kind, 3);
        tarn_tensor *w = random_quant_blocks(kind, 40, in, &random),
                    *part = good(tarn_stride(tarn_slice(w, 0, 3, 40), TARN_SHAPE(3, 1)));
        tarn_tensor *x = good(tarn_transpose(tarn_normal(TARN_SHAPE(in, 6), 0, 1, TARN_F32, cpu()), 0, 1));
        assert_close(good(tarn_linear_apply(x, part, NULL)),
                     good(tarn_linear_apply(tarn_contiguous(x), tarn_contiguous(part), NULL)), 0);
        tarn_tensor *deep = good(tarn_reshape(tarn_contiguous(x), TARN_SHAPE(2, 3, in))),
                    *line = good(tarn_slice(deep, 0, 1, 2));
        assert_shape(good(tarn_linear_apply(deep, part, NULL)), 2, 3, 13);
        assert_shape(good(tarn_linear_apply(tarn_reshape(tarn_slice(line, 1, 0, 1), TARN_SHAPE(in)), part, NULL)), 13);
        assert_shape(good(tarn_linear_apply(tarn_slice(deep, 0, 0, 0), part, NULL)), 0, 3, 13);
    }
}

static void a_row_is_bitwise_identical_alone_and_among_others_and_with_any_number_of_threads(void **state)
{
    (void)state;
    uint64_t random = test_seed(6);
    int before = tarn_threads();
    for (tarn_dtype kind = TARN_Q8_0; kind < TARN_DTYPE_COUNT; kind++) {
        int64_t in = length_of(kind, 5);
        tarn_tensor *w = random_quant_blocks(kind, 700, in, &random),
                    *x = good(tarn_normal(TARN_SHAPE(9, in), 0, 1, TARN_F32, cpu()));
        tarn_tensor *y = good(tarn_linear_apply(x, w, NULL));
        for (int threads = 1; threads <= 3; threads++) {
            assert_true(tarn_set_threads(threads));
            assert_close(good(tarn_linear_apply(x, w, NULL)), y, 0);
            for (int64_t r = 0; r < 9; r += 4)
                assert_close(good(tarn_linear_apply(tarn_slice(x, 0, r, r + 1), w, NULL)),
                             good(tarn_slice(y, 0, r, r + 1)), 0);
        }
        assert_true(tarn_set_threads(before));
    }
}

static void numbers_that_are_not_finite_stay_so_in_their_row(void **state)
{
    (void)state;
    uint64_t random = test_seed(6);
    for (tarn_dtype kind = TARN_Q8_0; kind < TARN_DTYPE_COUNT; kind++) {
        int64_t in = length_of(kind, 2);
        tarn_tensor *w = random_quant_blocks(kind, 3, in, &random),
                    *x = good(tarn_zeros(TARN_SHAPE(3, in), TARN_F32, cpu()));
        assert_true(tarn_write(good(tarn_slice(tarn_slice(x, 0, 0, 1), 1, 5, 6)), &(float){NAN}, 4));
        assert_true(tarn_write(good(tarn_slice(tarn_slice(x, 0, 1, 2), 1, 9, 10)), &(float){-INFINITY}, 4));
        double *y = values_of(good(tarn_linear_apply(x, w, NULL)));
        for (int i = 0; i < 9; i++)
            assert_true(i < 6 ? isnan(y[i]) : y[i] == 0);
        free(y);
    }
}

/* A weight of 16 bits by an x of f32: no rounding but the sum's. */
static void a_frozen_weight_of_16_bits_meets_f32(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 3, 40};
    for (int k = 0; k < 12; k++) {
        tarn_dtype dtype = k % 2 ? TARN_F16 : TARN_BF16;
        tarn_device device = k < 6 ? cpu() : tarn_device_parse("mirror:0");
        tarn_tensor *w = good(tarn_normal(TARN_SHAPE(67, 515), 0, 0.05, dtype, device)),
                    *bias = good(tarn_normal(TARN_SHAPE(67), 0, 1, TARN_F32, device));
        tarn_tensor *x =
            good(tarn_requires_grad(tarn_normal(TARN_SHAPE(rows[k / 2 % 3], 515), 0, 1, TARN_F32, device), true));
        tarn_tensor *y = good(tarn_linear_apply(x, w, bias)), *g = good(tarn_uniform_like(y, -1, 1)),
                    *wide = good(tarn_cast(w, TARN_F64));
        assert_int_equal(tarn_dtype_of(y), TARN_F32);
        assert_close(good(tarn_cast(y, TARN_F64)),
                     good(tarn_linear_apply(tarn_cast(x, TARN_F64), wide, tarn_cast(bias, TARN_F64))), 3e-6);
        assert_true(tarn_backward_from(y, g, NULL));
        assert_close(good(tarn_cast(tarn_grad(x), TARN_F64)), good(tarn_matmul(tarn_cast(g, TARN_F64), wide)), 3e-6);
        tarn_linear_apply(x, good(tarn_requires_grad(w, true)), bias);
        assert_error(TARN_ERROR_DTYPE, "linear_apply: operands are f32 and");
    }
}

/* The table of one level, called without the library around it. Returns a hash of the results. */
static uint64_t check_level(const char *name, void (*fill)(tarn__kernel_row *rows))
{
    static tarn__kernel_row rows[TARN__KERNEL_COUNT];
    uint64_t random = test_seed(11), hash = 0;
    tarn_seed(random);
    fill(rows);
    for (int round = 0; round < 6 * KINDS; round++) {
        tarn_dtype kind = kinds[round % KINDS];
        int64_t many = 1 + round / KINDS % 3 * 5, in = length_of(kind, 3 + many % 3);
        tarn_tensor *w = (round < 3 * KINDS ? random_quant_blocks : extreme_quant_blocks)(kind, 37, in, &random),
                    *x = good(tarn_normal(TARN_SHAPE(many, in), 0, 1, TARN_F32, cpu()));
        tarn_tensor *y = good(tarn_empty(TARN_SHAPE(many, 37), TARN_F32, cpu()));
        tarn__view views[3] = {{.rank = 2, .dtype = TARN_F32, .memory = tarn_data(x), .shape = {many, in}},
                               {.rank = 2, .dtype = kind, .memory = tarn_data(w), .shape = {37, in}},
                               {.rank = 2, .dtype = TARN_F32, .memory = tarn_data(y), .shape = {many, 37}}};
        for (int i = 0; i < 3; i++)
            tarn__view_set_row_major(&views[i]);
        tarn__call call = {.inputs = 2, .outputs = 1, .in = {&views[0], &views[1]}, .out = {&views[2]}};
        tarn__plan_buffer memory;
        tarn__plan *plan = tarn__plan_begin(&memory);
        tarn__plan_status status;
        const tarn__kernel_row *row = tarn__prepare(&rows[TARN__K_matmul_quant], &call, plan, &status);
        assert_int_equal(status, TARN__PLAN_READY);
        tarn_tensor *scratch = good(tarn_empty(TARN_SHAPE((int64_t)plan->scratch_bytes), TARN_U8, cpu()));
        call.plan = plan;
        call.scratch = tarn_data(scratch);
        call.scratch_bytes = plan->scratch_bytes;
        row->run(&call);
        assert_quant_matmul(x, w, NULL, y);
        for (int64_t i = 0; i < tarn_count(y); i++)
            hash = hash * 31 + ((const uint32_t *)tarn_data(y))[i];
    }
    print_message("level %s\n", name);
    return hash;
}

void tarn__cpu_table_base(tarn__kernel_row *rows);
void tarn__cpu_table_avx2(tarn__kernel_row *rows);
void tarn__cpu_table_avx512(tarn__kernel_row *rows);
void tarn__cpu_register_quant_matmul_dotprod(tarn__kernel_row *rows);
void tarn__cpu_register_quant_matmul_i8mm(tarn__kernel_row *rows);

static void every_instruction_level_multiplies_right(void **state)
{
    (void)state;
    check_level("base", tarn__cpu_table_base);
#if defined(__x86_64__) && defined(TARN__HAVE_AVX2)
    uint64_t avx2 = 0;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        avx2 = check_level("avx2", tarn__cpu_table_avx2);
#endif
#if defined(__x86_64__) && defined(TARN__HAVE_AVX512)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        assert_true(check_level("avx512", tarn__cpu_table_avx512) == avx2);
#endif
#if defined(TARN__HAVE_DOTPROD)
    if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP)
        check_level("dotprod", tarn__cpu_register_quant_matmul_dotprod);
#endif
#if defined(TARN__HAVE_I8MM)
    if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) && (getauxval(AT_HWCAP2) & HWCAP2_I8MM))
        check_level("i8mm", tarn__cpu_register_quant_matmul_i8mm);
#endif
}

static void the_gradient_of_x_is_that_of_the_elements(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (int half = 0; half < 2; half++) {
            tarn_dtype dtype = half ? TARN_BF16 : TARN_F32;
            int64_t in = length_of(kinds[k], 2);
            tarn_tensor *w = weight_of(kinds[k], 21, in), *plain = good(tarn_cast(w, TARN_F64));
            tarn_tensor *x = good(tarn_requires_grad(tarn_normal(TARN_SHAPE(2, 3, in), 0, 1, dtype, cpu()), true));
            tarn_tensor *bias = good(tarn_requires_grad(tarn_normal(TARN_SHAPE(21), 0, 1, TARN_F32, cpu()), true));
            tarn_tensor *g = good(tarn_normal(TARN_SHAPE(2, 3, 21), 0, 1, dtype, cpu())),
                        *wide = good(tarn_cast(g, TARN_F64));
            assert_true(tarn_backward_from(good(tarn_linear_apply(x, w, bias)), g, NULL));
            assert_close(good(tarn_cast(tarn_grad(x), TARN_F64)), good(tarn_matmul(wide, plain)), half ? 2e-2 : 1e-5);
            assert_close(good(tarn_cast(tarn_grad(bias), TARN_F64)), good(tarn_sum(wide, TARN_AXES(0, 1), false)),
                         half ? 2e-2 : 1e-5);
        }
}

/* ---- modules and files ------------------------------------------------------------------------------------------- */

static void a_module_keeps_quantized_weights(void **state)
{
    (void)state;
    tarn_module *module = tarn_module_new("layer", unchanged, NULL, NULL);
    tarn_tensor *w = tarn_keep(weight_of(TARN_Q4_K, 6, 512)), *copy = good(tarn_clone(w));
    tarn_tensor *own = good(tarn_module_add_parameter(module, "weight", w));
    assert_false(tarn_needs_grad(own));
    assert_true(tarn_module_freeze(module, false));
    assert_false(tarn_needs_grad(own));
    assert_true(tarn_module_to(module, tarn_device_parse("mirror:1")));
    assert_same_bytes(own, copy);
    assert_false(tarn_module_save(module, scratch("blocks.safetensors")));
    assert_error_about(TARN_ERROR_DTYPE, "'weight' is q4_k", "GGUF");
    tarn_module_free(module);
}

/* ---- everything else --------------------------------------------------------------------------------------------- */

static void other_operations_reject_quantized_tensors(void **state)
{
    (void)state;
    static const char sentence[] = "a quantized dtype; convert it with tarn_cast() first";
    for (int k = 0; k < KINDS; k++) {
        tarn_tensor *w = weight_of(kinds[k], 4, 256), *x = good(tarn_ones(TARN_SHAPE(4, 256), TARN_F32, cpu()));
        char text[8];
        tarn_add(w, w);
        assert_error_about(TARN_ERROR_DTYPE, "add: ", sentence);
        tarn_relu(w);
        assert_error_about(TARN_ERROR_DTYPE, "relu: ", sentence);
        tarn_matmul(x, w);
        assert_error_about(TARN_ERROR_DTYPE, "matmul: ", sentence);
        tarn_linear_apply(w, w, NULL);
        assert_error_about(TARN_ERROR_DTYPE, "linear_apply: ", sentence);
        tarn_sum(w, TARN_ALL_AXES, false);
        assert_error_about(TARN_ERROR_DTYPE, "sum: ", sentence);
        tarn_concat((tarn_tensor *[]){w, w}, 2, 0);
        assert_error_about(TARN_ERROR_DTYPE, "concat: ", sentence);
        tarn_fill_inplace(w, 0);
        assert_error_about(TARN_ERROR_DTYPE, "fill_inplace: ", sentence);
        tarn_format(w, text, sizeof(text));
        assert_error_about(TARN_ERROR_DTYPE, "format: ", sentence);
        tarn_item_at(w, TARN_SHAPE(0, 0));
        assert_error_about(TARN_ERROR_DTYPE, "item_at: ", sentence);
        tarn_zeros(TARN_SHAPE(4, 256), kinds[k], cpu());
        assert_error_about(TARN_ERROR_DTYPE, "zeros: ", "convert with tarn_cast()");
        tarn_requires_grad(w, true);
        assert_error(TARN_ERROR_DTYPE, "requires_grad: the tensor is ");
        tarn_cast(w, TARN_I32);
        assert_error_about(TARN_ERROR_DTYPE, "cast: quantized ", "converts to floats");
        tarn_copy(w, x);
        assert_error_about(TARN_ERROR_DTYPE, "copy: f32 cannot be copied into quantized", "tarn_cast()");
    }
}

static void bad_input_is_refused(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        int64_t block = tarn_dtype_block_size(kinds[k]);
        tarn_tensor *w = weight_of(kinds[k], 4, 256), *x = good(tarn_ones(TARN_SHAPE(2, 256), TARN_F32, cpu()));
        tarn_empty(TARN_SHAPE(256, block + 1), kinds[k], cpu());
        assert_error(TARN_ERROR_SHAPE, "empty: the last axis of [256, ");
        tarn_empty(TARN_SCALAR, kinds[k], cpu());
        assert_error(TARN_ERROR_SHAPE, "empty: the last axis of []");
        tarn_cast(tarn_ones(TARN_SHAPE(block, 3), TARN_F32, cpu()), kinds[k]);
        assert_error(TARN_ERROR_SHAPE, "cast: the last axis of [");
        tarn_cast(tarn_ones(TARN_SHAPE(256), TARN_I32, cpu()), kinds[k]);
        assert_error(TARN_ERROR_DTYPE, "cast: x is i32");
        tarn_cast(tarn_full(TARN_SHAPE(256), INFINITY, TARN_F32, cpu()), kinds[k]);
        assert_error(TARN_ERROR_ARGUMENT, "cast: 256 elements of x are not finite");
        tarn_cast(tarn_full(TARN_SHAPE(256), -262144, TARN_F32, cpu()), kinds[k]);
        assert_error(TARN_ERROR_ARGUMENT, "cast: 256 elements of x are not finite, or 262144 and beyond");
        tarn_linear_apply(tarn_cast(x, TARN_F64), w, NULL);
        assert_error(TARN_ERROR_DTYPE, "linear_apply: x is f64");
        tarn_linear_apply(tarn_ones(TARN_SHAPE(2, 255), TARN_F32, cpu()), w, NULL);
        assert_error(TARN_ERROR_SHAPE, "linear_apply: x [2, 255] and weight [4, 256] do not fit");
        tarn_linear_apply(x, w, tarn_ones(TARN_SHAPE(3), TARN_F32, cpu()));
        assert_error(TARN_ERROR_SHAPE, "linear_apply: bias [3] and weight [4, 256] do not fit");
        tarn_linear_apply(tarn_to(x, tarn_device_parse("mirror:0")), w, NULL);
        assert_error(TARN_ERROR_DEVICE, "linear_apply: operands are on");
        tarn_linear_apply(NULL, w, NULL);
        assert_error(TARN_ERROR_ARGUMENT, "linear_apply: x is NULL");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(bytes_travel_unchanged),
        in_scope(blocks_dequantize_to_their_elements),
        in_scope(views_along_outer_axes_stay_quantized),
        in_scope(rows_are_gathered),
        in_scope(products_are_right_up_to_the_rounding_of_x),
        in_scope(strides_of_x_and_of_the_weight_do_not_matter),
        in_scope(a_row_is_bitwise_identical_alone_and_among_others_and_with_any_number_of_threads),
        in_scope(numbers_that_are_not_finite_stay_so_in_their_row),
        in_scope(a_frozen_weight_of_16_bits_meets_f32),
        in_scope(every_instruction_level_multiplies_right),
        in_scope(the_gradient_of_x_is_that_of_the_elements),
        in_scope(a_module_keeps_quantized_weights),
        in_scope(other_operations_reject_quantized_tensors),
        in_scope(bad_input_is_refused),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
