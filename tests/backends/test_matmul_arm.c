/* test_matmul_arm.c: matmul kernels of AArch64's own levels, called level by level: bf16 against f64, quantized weights
 * against each other, bitwise. Levels that the build or this processor lacks are skipped. */
#include <math.h>

#include "backends/cpu/runtime/level.h"
#include "support/quant.h"

#if defined(TARN__HAVE_DOTPROD) || defined(TARN__HAVE_I8MM) || defined(TARN__HAVE_BF16)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define HAS(word, bit) ((getauxval(word) & (bit)) != 0)
#endif

void tarn__cpu_table_base(tarn__kernel_row *rows);
void tarn__cpu_register_quant_matmul_dotprod(tarn__kernel_row *rows);
void tarn__cpu_register_quant_matmul_i8mm(tarn__kernel_row *rows);
void tarn__cpu_register_matmul_bf16(tarn__kernel_row *rows);

static tarn_device cpu(void)
{
    return tarn_device_cpu();
}

#if defined(TARN__HAVE_BF16) || (defined(TARN__HAVE_DOTPROD) && defined(TARN__HAVE_I8MM))

static void run(const tarn__kernel_row *rows, tarn__call *call)
{
    tarn__plan_buffer memory;
    tarn__plan *plan = tarn__plan_begin(&memory);
    tarn__plan_status status;
    const tarn__kernel_row *row = tarn__prepare(rows, call, plan, &status);
    assert_int_equal(status, TARN__PLAN_READY);
    tarn_tensor *scratch = good(tarn_empty(TARN_SHAPE((int64_t)plan->scratch_bytes + 1), TARN_U8, cpu()));
    call->plan = plan;
    call->scratch = tarn_data(scratch);
    call->scratch_bytes = plan->scratch_bytes;
    row->run(call);
}

static tarn__view view_of(tarn_tensor *x)
{
    tarn__view view = {.rank = tarn_rank(x), .dtype = tarn_dtype_of(x), .memory = tarn_data(x)};
    for (int i = 0; i < view.rank; i++)
        view.shape[i] = tarn_size(x, i);
    tarn__view_set_row_major(&view);
    return view;
}

#endif

/* ---- bf16 -------------------------------------------------------------------------------------------------------- */

#if defined(TARN__HAVE_BF16)

/* x (m, k) @ wᵀ, w (n, k), plus a bias or NULL. */
static tarn_tensor *matmul_of(const tarn__kernel_row *row, tarn_tensor *x, tarn_tensor *w, tarn_tensor *bias,
                              tarn_dtype dtype)
{
    tarn_tensor *y = good(tarn_empty(TARN_SHAPE(tarn_size(x, 0), tarn_size(w, 0)), dtype, cpu()));
    tarn__view vx = view_of(x), vw = view_of(w), vy = view_of(y), vb = {0};
    tarn__view transposed = vw;
    transposed.shape[0] = vw.shape[1], transposed.shape[1] = vw.shape[0], transposed.stride[0] = 1,
    transposed.stride[1] = vw.stride[0];
    if (bias)
        vb = view_of(bias);
    tarn__matmul params = {.alpha = 1};
    tarn__call call = {
        .inputs = 3, .outputs = 1, .in = {&vx, &transposed, bias ? &vb : NULL}, .out = {&vy}, .params = &params};
    run(row, &call);
    return y;
}

/* f32 sums rounded to odd instead of to nearest at each step: twice the usual error; plus the rounding of the result.
 */
static void assert_matmul(tarn_tensor *x, tarn_tensor *w, tarn_tensor *bias, tarn_tensor *y)
{
    int64_t m = tarn_size(x, 0), n = tarn_size(w, 0), k = tarn_size(x, 1);
    double *vx = values_of(x), *vw = values_of(w), *vy = values_of(y), *vb = bias ? values_of(bias) : NULL;
    double unit = tarn_dtype_of(y) == TARN_BF16 ? 0x1p-8 : tarn_dtype_of(y) == TARN_F16 ? 0x1p-11 : 0x1p-23;
    for (int64_t r = 0; r < m; r++)
        for (int64_t c = 0; c < n; c++) {
            double sum = vb ? vb[c] : 0, size = fabs(sum);
            for (int64_t i = 0; i < k; i++) {
                double term = vx[r * k + i] * vw[c * k + i];
                sum += term, size += fabs(term);
            }
            if (!(fabs(vy[r * n + c] - sum) <= unit * fabs(sum) + 3e-6 * size))
                fail_msg("[%d, %d] by [%d, %d]: row %d, column %d is %g, not %g", (int)m, (int)k, (int)n, (int)k,
                         (int)r, (int)c, vy[r * n + c], sum);
        }
    free(vx), free(vw), free(vy), free(vb);
}

static void bf16_matmul_is_accurate(void **state)
{
    (void)state;
    if (!HAS(AT_HWCAP2, HWCAP2_BF16))
        skip();
    static const int64_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 129}, columns[] = {64, 65, 70, 96, 101},
                         lengths[] = {1, 7, 8, 16, 23, 31, 515, 1100};
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_BF16, TARN_F16};
    static tarn__kernel_row table[TARN__KERNEL_COUNT];
    tarn__cpu_table_base(table);
    tarn__cpu_register_matmul_bf16(table);
    uint64_t random = test_seed(7);
    for (int round = 0; round < 80; round++) {
        tarn_scope *scope = tarn_scope_open();
        int64_t m = rows[round % 10], n = columns[random_below(&random, 5)], k = lengths[round / 10];
        tarn_tensor *x = good(tarn_normal(TARN_SHAPE(m, k), 0, 1, TARN_BF16, cpu())),
                    *w = good(tarn_normal(TARN_SHAPE(n, k), 0, 1, TARN_BF16, cpu()));
        tarn_tensor *bias =
            random_below(&random, 2)
                ? good(tarn_normal(TARN_SHAPE(n), 0, 1, random_below(&random, 2) ? TARN_F32 : TARN_BF16, cpu()))
                : NULL;
        assert_matmul(x, w, bias, matmul_of(&table[TARN__K_matmul], x, w, bias, dtypes[random_below(&random, 3)]));
        tarn_scope_close(scope);
    }
}

static void unsupported_operands_fall_back_to_the_base_kernel(void **state)
{
    (void)state;
    if (!HAS(AT_HWCAP2, HWCAP2_BF16))
        skip();
    static tarn__kernel_row base[TARN__KERNEL_COUNT], table[TARN__KERNEL_COUNT];
    tarn__cpu_table_base(base);
    tarn__cpu_table_base(table);
    tarn__cpu_register_matmul_bf16(table);
    tarn_tensor *wide = good(tarn_normal(TARN_SHAPE(9, 40), 0, 1, TARN_F32, cpu())),
                *narrow = good(tarn_cast(wide, TARN_BF16));
    tarn_tensor *w = good(tarn_normal(TARN_SHAPE(80, 40), 0, 1, TARN_BF16, cpu())),
                *few = good(tarn_contiguous(tarn_slice(w, 0, 0, 20)));
    tarn_tensor *pairs[][2] = {{wide, w}, {narrow, few}};
    for (int i = 0; i < 2; i++)
        assert_close(matmul_of(&table[TARN__K_matmul], pairs[i][0], pairs[i][1], NULL, TARN_F32),
                     matmul_of(&base[TARN__K_matmul], pairs[i][0], pairs[i][1], NULL, TARN_F32), 0);
}

static void non_finite_values_stay_in_their_row(void **state)
{
    (void)state;
    if (!HAS(AT_HWCAP2, HWCAP2_BF16))
        skip();
    static tarn__kernel_row table[TARN__KERNEL_COUNT];
    tarn__cpu_table_base(table);
    tarn__cpu_register_matmul_bf16(table);
    for (int64_t m = 3; m <= 9; m += 6) {
        tarn_tensor *x = good(tarn_ones(TARN_SHAPE(m, 21), TARN_F32, cpu())),
                    *w = good(tarn_ones(TARN_SHAPE(64, 21), TARN_BF16, cpu()));
        assert_true(tarn_write(good(tarn_slice(tarn_slice(x, 0, 0, 1), 1, 20, 21)), &(float){NAN}, 4));
        assert_true(tarn_write(good(tarn_slice(tarn_slice(x, 0, 1, 2), 1, 0, 1)), &(float){-INFINITY}, 4));
        double *y = values_of(matmul_of(&table[TARN__K_matmul], good(tarn_cast(x, TARN_BF16)), w, NULL, TARN_F32));
        for (int64_t i = 0; i < m * 64; i++)
            assert_true(i < 64 ? isnan(y[i]) : y[i] == (i < 128 ? -INFINITY : 21));
        free(y);
    }
}

static void bf16_matmul_does_not_depend_on_threads(void **state)
{
    (void)state;
    int before = tarn_threads();
    for (int64_t m = 1; m <= 140; m += 139) {
        tarn_tensor *x = good(tarn_normal(TARN_SHAPE(m, 300), 0, 1, TARN_BF16, cpu())),
                    *w = good(tarn_normal(TARN_SHAPE(900, 300), 0, 1, TARN_BF16, cpu()));
        tarn_tensor *y = good(tarn_linear_apply(x, w, NULL));
        for (int threads = 1; threads <= 3; threads++) {
            assert_true(tarn_set_threads(threads));
            assert_close(good(tarn_linear_apply(x, w, NULL)), y, 0);
        }
        assert_true(tarn_set_threads(before));
    }
}

#endif

/* ---- quantized weights ------------------------------------------------------------------------------------------- */

#if defined(TARN__HAVE_DOTPROD) && defined(TARN__HAVE_I8MM)

static tarn_tensor *quant_matmul_of(const tarn__kernel_row *row, tarn_tensor *x, tarn_tensor *w)
{
    tarn_tensor *y = good(tarn_empty(TARN_SHAPE(tarn_size(x, 0), tarn_size(w, 0)), TARN_F32, cpu()));
    tarn__view vx = view_of(x), vw = view_of(w), vy = view_of(y);
    tarn__call call = {.inputs = 2, .outputs = 1, .in = {&vx, &vw}, .out = {&vy}};
    run(row, &call);
    return y;
}

/* One row and many, at either level, are the same sums. The quant tests check them against references. */
static void both_levels_multiply_quantized_weights_bitwise_identically(void **state)
{
    (void)state;
    if (!HAS(AT_HWCAP, HWCAP_ASIMDDP) || !HAS(AT_HWCAP2, HWCAP2_I8MM))
        skip();
    static tarn__kernel_row dots[TARN__KERNEL_COUNT], matrices[TARN__KERNEL_COUNT];
    tarn__cpu_table_base(dots), tarn__cpu_table_base(matrices);
    tarn__cpu_register_quant_matmul_dotprod(dots), tarn__cpu_register_quant_matmul_i8mm(matrices);
    uint64_t random = test_seed(9);
    for (tarn_dtype kind = TARN_Q8_0; kind < TARN_DTYPE_COUNT; kind++)
        for (int64_t in = 256; in <= 2304; in += 2048)
            for (int64_t rows = 1; rows <= 12; rows++) {
                tarn_scope *scope = tarn_scope_open();
                tarn_tensor *w = random_quant_blocks(kind, 67, in, &random);
                tarn_tensor *x = good(tarn_normal(TARN_SHAPE(rows, in), 0, 2, TARN_F32, cpu())),
                            *y = quant_matmul_of(&matrices[TARN__K_matmul_quant], x, w);
                assert_close(quant_matmul_of(&dots[TARN__K_matmul_quant], x, w), y, 0);
                tarn_tensor *last = good(tarn_contiguous(tarn_slice(x, 0, rows - 1, rows)));
                assert_close(quant_matmul_of(&dots[TARN__K_matmul_quant], last, w),
                             good(tarn_slice(y, 0, rows - 1, rows)), 0);
                tarn_scope_close(scope);
            }
}

#endif

static void levels_of_this_build_are_named(void **state)
{
    (void)state;
    tarn_device_info info;
    assert_true(tarn_device_query(cpu(), &info));
    print_message("%s\n", info.detail);
    assert_non_null(strstr(info.detail, " kernels"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#if defined(TARN__HAVE_BF16)
        in_scope(bf16_matmul_is_accurate),
        in_scope(unsupported_operands_fall_back_to_the_base_kernel),
        in_scope(non_finite_values_stay_in_their_row),
        in_scope(bf16_matmul_does_not_depend_on_threads),
#endif
#if defined(TARN__HAVE_DOTPROD) && defined(TARN__HAVE_I8MM)
        in_scope(both_levels_multiply_quantized_weights_bitwise_identically),
#endif
        in_scope(levels_of_this_build_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
