/* test_kernel_rows.c: the choice among the rows of a kernel: dtypes first, then `fits`, best first. */
#include "base/kernel/backend.h"
#include "support/check.h"

static void run_none(const tarn__call *call)
{
    (void)call;
}

static bool fits_even(const tarn__call *call)
{
    return call->in[0]->shape[0] % 2 == 0;
}

static bool fits_four(const tarn__call *call)
{
    return call->in[0]->shape[0] % 4 == 0;
}

static tarn__view view_1d(tarn_dtype dtype, int64_t count)
{
    return (tarn__view){.rank = 1, .dtype = dtype, .shape = {count}, .stride = {1}};
}

/* The variant of the row that runs for x; "none" without one. */
static const char *variant_for(const tarn__kernel_row *rows, tarn__view x)
{
    tarn__call call = {.inputs = 1, .in = {&x}};
    const tarn__kernel_row *row = tarn__find_row(rows, &call);
    return row ? row->variant : "none";
}

static void the_first_row_that_fits_runs(void **state)
{
    (void)state;
    static tarn__kernel_row rows[TARN__KERNEL_COUNT], any, even;
    rows[TARN__K_copy] = tarn__row(run_none, TARN__FLOATS, NULL);
    rows[TARN__K_copy].variant = "any";
    tarn__kernel_row row = tarn__row_fits(tarn__row(run_none, TARN__FLOATS | TARN__BIT(TARN_U8), NULL), fits_even);
    row.variant = "even";
    tarn__push_row(rows, TARN__K_copy, row, &any);
    row = tarn__row_fits(tarn__row(run_none, TARN__BIT(TARN_BF16), NULL), fits_four);
    row.variant = "four";
    tarn__push_row(rows, TARN__K_copy, row, &even);
    const tarn__kernel_row *copy = &rows[TARN__K_copy];
    assert_string_equal(variant_for(copy, view_1d(TARN_BF16, 8)), "four");
    assert_string_equal(variant_for(copy, view_1d(TARN_BF16, 6)), "even");
    assert_string_equal(variant_for(copy, view_1d(TARN_BF16, 5)), "any");
    assert_string_equal(variant_for(copy, view_1d(TARN_F32, 8)), "even");
    assert_string_equal(variant_for(copy, view_1d(TARN_U8, 8)), "even");
    assert_string_equal(variant_for(copy, view_1d(TARN_U8, 7)), "none");
    assert_string_equal(variant_for(copy, view_1d(TARN_I64, 8)), "none");
    assert_null(tarn__find_row(&rows[TARN__K_fill], &(tarn__call){.inputs = 0}));
}

/* A kernel that does not list a quantized dtype would read its blocks as elements, whichever operand it is. */
static void every_quantized_operand_must_be_listed(void **state)
{
    (void)state;
    tarn__kernel_row row = tarn__row(run_none, TARN__FLOATS, NULL);
    tarn__view x = view_1d(TARN_F32, 32), w = view_1d(TARN_Q8_0, 32);
    tarn__call call = {.inputs = 2, .in = {&x, &w}}, output = {.inputs = 1, .outputs = 1, .in = {&x}, .out = {&w}};
    assert_null(tarn__find_row(&row, &call));
    assert_null(tarn__find_row(&row, &output));
    row.dtypes |= TARN__BIT(TARN_Q8_0);
    assert_ptr_equal(tarn__find_row(&row, &call), &row);
    assert_ptr_equal(tarn__find_row(&row, &output), &row);
}

/* The mask is about the first operand that is present: other inputs may be indices. */
static void the_first_operand_decides(void **state)
{
    (void)state;
    tarn__kernel_row row = tarn__row(run_none, TARN__FLOATS, NULL);
    tarn__view x = view_1d(TARN_F32, 4), index = view_1d(TARN_I64, 4);
    tarn__call call = {.inputs = 2, .in = {&x, &index}}, late = {.inputs = 2, .in = {NULL, &x}},
               only_output = {.outputs = 1, .out = {&x}}, wrong = {.inputs = 2, .in = {&index, &x}};
    assert_ptr_equal(tarn__find_row(&row, &call), &row);
    assert_ptr_equal(tarn__find_row(&row, &late), &row);
    assert_ptr_equal(tarn__find_row(&row, &only_output), &row);
    assert_null(tarn__find_row(&row, &wrong));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_row_that_fits_runs),
        cmocka_unit_test(every_quantized_operand_must_be_listed),
        cmocka_unit_test(the_first_operand_decides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
