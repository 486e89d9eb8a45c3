/* test_matmul_amx.c: matmul kernels of the level amx, called by its tables: bf16 against f64 in all layouts, quantized
 * weights bitwise against the level avx512. Skipped where the build or this processor lacks AMX. */
#include <math.h>

#include "backends/cpu/runtime/amx.h"
#include "backends/cpu/runtime/level.h"
#include "support/quant.h"

#if defined(TARN__HAVE_AMX)

void tarn__cpu_table_avx512(tarn__kernel_row *rows);
void tarn__cpu_register_matmul_amx(tarn__kernel_row *rows, tarn__kernel_row *avx512);
void tarn__cpu_register_quant_matmul_amx(tarn__kernel_row *rows);

static tarn__kernel_row lower[TARN__KERNEL_COUNT], amx[TARN__KERNEL_COUNT], lower_matmul;

static int fill_tables(void **state)
{
    (void)state;
    if (!tarn__cpu_amx_usable())
        return 0;
    tarn__cpu_table_avx512(lower);
    tarn__cpu_table_avx512(amx);
    tarn__cpu_register_matmul_amx(amx, &lower_matmul);
    tarn__cpu_register_quant_matmul_amx(amx);
    return 0;
}

/* Runs a call by the rows of a table and returns the variant that ran. */
static const char *run(const tarn__kernel_row *rows, tarn__call *call)
{
    tarn__plan_buffer memory;
    tarn__plan *plan = tarn__plan_begin(&memory);
    tarn__plan_status status;
    const tarn__kernel_row *row = tarn__prepare(rows, call, plan, &status);
    assert_int_equal(status, TARN__PLAN_READY);
    tarn_tensor *scratch = good(tarn_empty(TARN_SHAPE((int64_t)plan->scratch_bytes + 1), TARN_U8, tarn_device_cpu()));
    call->plan = plan;
    call->scratch = tarn_data(scratch);
    call->scratch_bytes = plan->scratch_bytes;
    row->run(call);
    return row->variant ? row->variant : "";
}

static tarn__view view_of(tarn_tensor *x, bool transposed)
{
    tarn__view view = {.rank = tarn_rank(x), .dtype = tarn_dtype_of(x), .memory = tarn_data(x)};
    for (int i = 0; i < view.rank; i++)
        view.shape[i] = tarn_size(x, i);
    tarn__view_set_row_major(&view);
    if (transposed) {
        int64_t rows = view.shape[0], stride = view.stride[0];
        view.shape[0] = view.shape[1], view.shape[1] = rows;
        view.stride[0] = view.stride[1], view.stride[1] = stride;
    }
    return view;
}

/* ---- bf16 -------------------------------------------------------------------------------------------------------- */

/* a (m, k) and b (k, n), each stored transposed or not; c holds what beta multiplies. */
typedef struct product {
    tarn_tensor *a, *b, *bias, *c;
    bool a_transposed, b_transposed, is_invariant;
    double beta;
} product;

static const char *multiply(const product *p, tarn_tensor *c)
{
    tarn__view a = view_of(p->a, p->a_transposed), b = view_of(p->b, p->b_transposed), to = view_of(c, false), bias;
    if (p->bias)
        bias = view_of(p->bias, false);
    tarn__matmul params = {.alpha = 1, .beta = p->beta, .batch_invariant = p->is_invariant};
    tarn__call call = {
        .inputs = 3, .outputs = 1, .in = {&a, &b, p->bias ? &bias : NULL}, .out = {&to}, .params = &params};
    return run(&amx[TARN__K_matmul], &call);
}

/* Sums in f32, in an order of the instruction's own; then the rounding of the result. */
static void assert_product(const product *p, tarn_tensor *c)
{
    int64_t m = tarn_size(c, 0), n = tarn_size(c, 1), k = tarn_size(p->a, !p->a_transposed);
    double *a = values_of(p->a), *b = values_of(p->b), *old = values_of(p->c), *got = values_of(c);
    double *bias = p->bias ? values_of(p->bias) : NULL;
    double unit = tarn_dtype_of(c) == TARN_BF16 ? 0x1p-8 : tarn_dtype_of(c) == TARN_F16 ? 0x1p-11 : 0x1p-23;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = p->beta * old[i * n + j] + (bias ? bias[j] : 0), size = fabs(sum);
            for (int64_t l = 0; l < k; l++) {
                double term = a[p->a_transposed ? l * m + i : i * k + l] * b[p->b_transposed ? j * k + l : l * n + j];
                sum += term, size += fabs(term);
            }
            if (!(fabs(got[i * n + j] - sum) <= unit * fabs(sum) + 1.5e-6 * size))
                fail_msg("[%d, %d] by [%d, %d]: row %d, column %d is %g, not %g", (int)m, (int)k, (int)k, (int)n,
                         (int)i, (int)j, got[i * n + j], sum);
        }
    free(a), free(b), free(old), free(got), free(bias);
}

static tarn_tensor *random_tensor(int64_t rows, int64_t columns, bool transposed, tarn_dtype dtype)
{
    return good(tarn_normal(transposed ? TARN_SHAPE(columns, rows) : TARN_SHAPE(rows, columns), 0, 1, dtype,
                            tarn_device_cpu()));
}

static void bf16_matmul_is_accurate_in_every_layout(void **state)
{
    (void)state;
    if (!tarn__cpu_amx_usable())
        skip();
    static const int64_t sizes[][3] = {{33, 70, 515}, {5, 129, 256}, {130, 31, 64}, {16, 16, 1100},
                                       {270, 40, 33}, {48, 64, 31},  {7, 300, 97},  {17, 33, 1030}};
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_BF16, TARN_F16};
    uint64_t random = test_seed(7);
    tarn_seed(random);
    for (int round = 0; round < 32; round++) {
        tarn_scope *scope = tarn_scope_open();
        const int64_t *size = sizes[round % 8];
        product p = {
            .a_transposed = round / 8 & 1, .b_transposed = round / 16, .beta = random_below(&random, 2) ? 1 : 0};
        tarn_dtype dtype = dtypes[random_below(&random, 3)];
        p.a = random_tensor(size[0], size[2], p.a_transposed, TARN_BF16);
        p.b = random_tensor(size[2], size[1], p.b_transposed, TARN_BF16);
        p.c = random_tensor(size[0], size[1], false, dtype);
        p.bias =
            random_below(&random, 2) ? good(tarn_normal(TARN_SHAPE(size[1]), 0, 1, TARN_F32, tarn_device_cpu())) : NULL;
        int before = tarn_threads();
        tarn_tensor *c = good(tarn_clone(p.c)), *again = good(tarn_clone(p.c));
        assert_string_equal(multiply(&p, c), "amx");
        assert_product(&p, c);
        assert_true(tarn_set_threads(3));
        multiply(&p, again);
        assert_true(tarn_set_threads(before));
        assert_close(again, c, 0);
        tarn_scope_close(scope);
    }
}

/* Invariant or not, alone or among others, as the rows of an operand or, transposed, as its columns. */
static void bits_of_a_result_depend_on_its_row_and_column_alone(void **state)
{
    (void)state;
    if (!tarn__cpu_amx_usable())
        skip();
    test_seed(8);
    product p = {.b_transposed = true, .is_invariant = true};
    p.a = random_tensor(70, 700, false, TARN_BF16);
    p.b = random_tensor(700, 101, true, TARN_BF16);
    tarn_tensor *a = p.a, *whole = good(tarn_zeros(TARN_SHAPE(70, 101), TARN_F32, tarn_device_cpu()));
    multiply(&p, whole);
    for (int64_t count = 1; count < 70; count += count < 6 ? 1 : 11) {
        p.a = good(tarn_contiguous(tarn_slice(a, 0, 70 - count, 70)));
        tarn_tensor *part = good(tarn_zeros(TARN_SHAPE(count, 101), TARN_F32, tarn_device_cpu()));
        assert_string_equal(multiply(&p, part), "amx");
        assert_close(part, good(tarn_slice(whole, 0, 70 - count, 70)), 0);
    }
    tarn_tensor *columns = good(tarn_contiguous(tarn_transpose(p.b, 0, 1))),
                *swapped = good(tarn_zeros(TARN_SHAPE(101, 70), TARN_F32, tarn_device_cpu()));
    product q = {.a = columns, .b = a, .a_transposed = true, .b_transposed = true, .is_invariant = true};
    multiply(&q, swapped);
    assert_close(good(tarn_contiguous(tarn_transpose(swapped, 0, 1))), whole, 0);
}

static void other_operands_fall_back(void **state)
{
    (void)state;
    if (!tarn__cpu_amx_usable())
        skip();
    test_seed(9);
    product few = {.a = random_tensor(4, 600, false, TARN_BF16), .b = random_tensor(600, 90, true, TARN_BF16)},
            wide = {.a = random_tensor(64, 64, false, TARN_F32), .b = random_tensor(64, 64, true, TARN_F32)};
    few.b_transposed = wide.b_transposed = true;
    assert_string_equal(multiply(&few, good(tarn_zeros(TARN_SHAPE(4, 90), TARN_F32, tarn_device_cpu()))), "");
    assert_string_equal(multiply(&wide, good(tarn_zeros(TARN_SHAPE(64, 64), TARN_F32, tarn_device_cpu()))), "");
}

static void non_finite_values_stay_in_their_row(void **state)
{
    (void)state;
    if (!tarn__cpu_amx_usable())
        skip();
    test_seed(10);
    product p = {.a = random_tensor(40, 70, false, TARN_F32), .b = random_tensor(70, 50, true, TARN_BF16)};
    p.b_transposed = true;
    assert_true(tarn_write(good(tarn_slice(tarn_slice(p.a, 0, 3, 4), 1, 69, 70)), &(float){NAN}, 4));
    assert_true(tarn_write(good(tarn_slice(tarn_slice(p.a, 0, 39, 40), 1, 0, 1)), &(float){INFINITY}, 4));
    p.a = good(tarn_cast(p.a, TARN_BF16));
    tarn_tensor *c = good(tarn_zeros(TARN_SHAPE(40, 50), TARN_F32, tarn_device_cpu()));
    assert_string_equal(multiply(&p, c), "amx");
    double *y = values_of(c), *w = values_of(p.b);
    for (int i = 0; i < 40; i++)
        for (int j = 0; j < 50; j++)
            if (i == 39 && w[j * 70] != 0)
                assert_true(isinf(y[i * 50 + j]) && signbit(y[i * 50 + j]) == signbit(w[j * 70]));
            else
                assert_true(i == 3 ? isnan(y[i * 50 + j]) : isfinite(y[i * 50 + j]));
    free(y), free(w);
}

/* ---- quantized weights ------------------------------------------------------------------------------------------- */

static tarn_tensor *linear(const tarn__kernel_row *rows, tarn_tensor *x, tarn_tensor *w, tarn_tensor *bias)
{
    tarn_tensor *y = good(tarn_zeros(TARN_SHAPE(tarn_size(x, 0), tarn_size(w, 0)), TARN_F32, tarn_device_cpu()));
    tarn__view vx = view_of(x, false), vw = view_of(w, false), vb = view_of(bias, false), vy = view_of(y, false);
    tarn__matmul params = {.alpha = 1};
    tarn__call call = {.inputs = 3, .outputs = 1, .in = {&vx, &vw, &vb}, .out = {&vy}, .params = &params};
    run(&rows[TARN__K_matmul_quant], &call);
    return y;
}

static void quantized_matmuls_are_bitwise_those_of_avx512(void **state)
{
    (void)state;
    if (!tarn__cpu_amx_usable())
        skip();
    static const int64_t rows[] = {31, 32, 33, 47, 64, 161};
    uint64_t random = test_seed(11);
    tarn_seed(random);
    int before = tarn_threads();
    for (tarn_dtype kind = TARN_Q8_0; kind < TARN_DTYPE_COUNT; kind++)
        for (int round = 0; round < 6; round++) {
            tarn_scope *scope = tarn_scope_open();
            /* less than a chunk, partial chunks, more than a segment of eight */
            int64_t step = TARN__BIT(kind) & (TARN__BIT(TARN_Q8_0) | TARN__BIT(TARN_Q4_0) | TARN__BIT(TARN_Q4_1) |
                                              TARN__BIT(TARN_Q5_0) | TARN__BIT(TARN_Q5_1) | TARN__BIT(TARN_IQ4_NL))
                               ? 32
                               : 256,
                    in = step * (int64_t)(1 + random_below(&random, 2600 / (uint64_t)step)),
                    out = 16 + 21 * (round % 2);
            tarn_tensor *w = (round < 4 ? random_quant_blocks : extreme_quant_blocks)(kind, out, in, &random),
                        *x = good(tarn_normal(TARN_SHAPE(rows[round], in), 0, 1, TARN_F32, tarn_device_cpu())),
                        *bias = good(tarn_normal(TARN_SHAPE(out), 0, 1, TARN_F32, tarn_device_cpu()));
            if (round == 2)
                assert_true(tarn_write(good(tarn_slice(tarn_slice(x, 0, 17, 18), 1, 5, 6)), &(float){NAN}, 4));
            assert_true(tarn_set_threads(1 + round % 3));
            tarn_tensor *got = linear(amx, x, w, bias);
            assert_true(tarn_set_threads(before));
            assert_memory_equal(tarn_data(got), tarn_data(linear(lower, x, w, bias)),
                                sizeof(float) * (size_t)(rows[round] * out));
            tarn_scope_close(scope);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(bf16_matmul_is_accurate_in_every_layout),
        in_scope(bits_of_a_result_depend_on_its_row_and_column_alone),
        in_scope(other_operands_fall_back),
        in_scope(non_finite_values_stay_in_their_row),
        in_scope(quantized_matmuls_are_bitwise_those_of_avx512),
    };
    return cmocka_run_group_tests(tests, fill_tables, NULL);
}

#else

static void this_build_has_no_amx(void **state)
{
    (void)state;
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(this_build_has_no_amx)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
