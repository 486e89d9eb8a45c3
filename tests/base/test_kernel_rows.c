/* test_kernel_rows.c: the choice among the rows of a kernel: dtypes first, then `fits`, then `prepare`, best first; and
 * plans. */
#include <string.h>

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
    rows[TARN__K_copy] = tarn__row(run_none, TARN__FLOATS);
    rows[TARN__K_copy].variant = "any";
    tarn__kernel_row row = tarn__row_fits(tarn__row(run_none, TARN__FLOATS | TARN__BIT(TARN_U8)), fits_even);
    row.variant = "even";
    tarn__push_row(rows, TARN__K_copy, row, &any);
    row = tarn__row_fits(tarn__row(run_none, TARN__BIT(TARN_BF16)), fits_four);
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
    tarn__kernel_row row = tarn__row(run_none, TARN__FLOATS);
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
    tarn__kernel_row row = tarn__row(run_none, TARN__FLOATS);
    tarn__view x = view_1d(TARN_F32, 4), index = view_1d(TARN_I64, 4);
    tarn__call call = {.inputs = 2, .in = {&x, &index}}, late = {.inputs = 2, .in = {NULL, &x}},
               only_output = {.outputs = 1, .out = {&x}}, wrong = {.inputs = 2, .in = {&index, &x}};
    assert_ptr_equal(tarn__find_row(&row, &call), &row);
    assert_ptr_equal(tarn__find_row(&row, &late), &row);
    assert_ptr_equal(tarn__find_row(&row, &only_output), &row);
    assert_null(tarn__find_row(&row, &wrong));
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

typedef struct plan_job {
    int64_t count;
} plan_job;

static int64_t ran; /* what the last run found in its plan */
static const char *ran_variant;

static tarn__plan_status prepare_count(const tarn__call *call, tarn__plan *plan)
{
    plan_job *job = tarn__plan_reserve(plan, sizeof(*job));
    job->count = call->in[0]->shape[0];
    plan->scratch_bytes = 8 * (size_t)job->count;
    return job->count > 100 ? TARN__PLAN_FAILED : TARN__PLAN_READY;
}

/* Leaves traces that must be gone when the next row is tried. */
static tarn__plan_status prepare_declined(const tarn__call *call, tarn__plan *plan)
{
    (void)call;
    tarn__plan_reserve(plan, 1000);
    plan->scratch_bytes = 1;
    plan->shared = &ran;
    return TARN__PLAN_DECLINED;
}

static void run_count(const tarn__call *call)
{
    const plan_job *job = tarn__plan_job(call->plan);
    ran = job->count;
    assert_int_equal(call->scratch_bytes, 8 * (size_t)job->count);
}

static void a_declined_row_leaves_the_plan_to_the_next(void **state)
{
    (void)state;
    static tarn__kernel_row second;
    second = tarn__row_named(tarn__row_planned(prepare_count, run_count, TARN__FLOATS), "count");
    tarn__kernel_row first = tarn__row_planned(prepare_declined, run_none, TARN__FLOATS);
    first.next = &second;
    tarn__view x = view_1d(TARN_F32, 6), bad = view_1d(TARN_F32, 101), other = view_1d(TARN_I64, 6);
    tarn__call call = {.inputs = 1, .in = {&x}};
    tarn__plan_buffer memory;
    tarn__plan *plan = tarn__plan_begin(&memory);
    tarn__plan_status status;
    assert_ptr_equal(tarn__prepare(&first, &call, plan, &status), &second);
    assert_int_equal(status, TARN__PLAN_READY);
    assert_null(plan->shared);
    assert_int_equal(plan->used, sizeof(plan_job));
    assert_int_equal(plan->scratch_bytes, 48);
    call.in[0] = &bad;
    assert_ptr_equal(tarn__prepare(&first, &call, tarn__plan_begin(&memory), &status), &second);
    assert_int_equal(status, TARN__PLAN_FAILED);
    call.in[0] = &other;
    assert_null(tarn__prepare(&first, &call, tarn__plan_begin(&memory), &status));
    assert_int_equal(status, TARN__PLAN_DECLINED);
}

/* Composed: two parts behind one job. */
typedef struct composed_job {
    int64_t marker;
    tarn__part parts[2];
} composed_job;

static const tarn__kernel_row count_row = {.run = run_count, .dtypes = TARN__FLOATS, .prepare = prepare_count};

static tarn__plan_status prepare_composed(const tarn__call *call, tarn__plan *plan)
{
    composed_job *job = tarn__plan_reserve(plan, sizeof(*job));
    job->marker = 7;
    for (int i = 0; i < 2; i++) {
        tarn__call part = {.inputs = 1, .in = {call->in[i]}};
        tarn__plan_status status = tarn__part_prepare(plan, &job->parts[i], &count_row, &part);
        if (status != TARN__PLAN_READY)
            return status;
        if (job->parts[i].scratch_bytes > plan->scratch_bytes)
            plan->scratch_bytes = job->parts[i].scratch_bytes;
    }
    return TARN__PLAN_READY;
}

static void run_composed(const tarn__call *call)
{
    const composed_job *job = tarn__plan_job(call->plan);
    assert_int_equal(job->marker, 7);
    for (int i = 0; i < 2; i++) {
        tarn__call part = {.inputs = 1, .in = {call->in[i]}};
        tarn__part_run(call, &job->parts[i], &part);
        assert_int_equal(ran, call->in[i]->shape[0]);
    }
    ran_variant = "composed";
}

/* A plan is plain data: its copy runs where the original is gone. */
static void parts_share_one_plan_that_can_be_copied(void **state)
{
    (void)state;
    tarn__kernel_row row = tarn__row_planned(prepare_composed, run_composed, TARN__FLOATS);
    tarn__view x = view_1d(TARN_F32, 6), y = view_1d(TARN_F32, 9);
    tarn__call call = {.inputs = 2, .in = {&x, &y}};
    tarn__plan_buffer memory, copy;
    tarn__plan *plan = tarn__plan_begin(&memory);
    tarn__plan_status status;
    assert_ptr_equal(tarn__prepare(&row, &call, plan, &status), &row);
    assert_int_equal(status, TARN__PLAN_READY);
    assert_int_equal(plan->scratch_bytes, 72);
    memcpy(&copy, plan, sizeof(*plan) + plan->used);
    memset(&memory, 0xa5, sizeof(memory));
    call.plan = &copy.plan;
    row.run(&call);
    assert_string_equal(ran_variant, "composed");
}

static void a_plan_without_room_fails(void **state)
{
    (void)state;
    tarn__plan_buffer memory;
    tarn__plan *plan = tarn__plan_begin(&memory);
    tarn__part part;
    tarn__view x = view_1d(TARN_F32, 6);
    tarn__call call = {.inputs = 1, .in = {&x}};
    assert_non_null(tarn__plan_reserve(plan, plan->room - 16));
    assert_int_equal(tarn__part_prepare(plan, &part, &count_row, &call), TARN__PLAN_FAILED);
    assert_non_null(tarn__plan_reserve(plan, 16));
    assert_null(tarn__plan_reserve(plan, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_row_that_fits_runs),
        cmocka_unit_test(every_quantized_operand_must_be_listed),
        cmocka_unit_test(the_first_operand_decides),
        cmocka_unit_test(a_declined_row_leaves_the_plan_to_the_next),
        cmocka_unit_test(parts_share_one_plan_that_can_be_copied),
        cmocka_unit_test(a_plan_without_room_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
