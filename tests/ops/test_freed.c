/* test_freed.c: use after free is an error in every operation. */
#include <string.h>

#include "base/error.h"
#include "cases/cases.h"
#include "ops/op.h"
#include "support/check.h"

static tarn_tensor *freed_like(tarn_tensor *x)
{
    tarn_tensor *handle = tarn_keep(x);
    tarn_free(handle);
    return handle;
}

/* The row's own function, as tarn_apply() calls it after its own check. */
static bool call(const tarn__case *one, tarn_tensor **inputs)
{
    tarn_tensor *outputs[TARN__CASE_OUTPUTS] = {0};
    tarn__invocation v = {one->operation, inputs, one->inputs, one->attribute, one->attributes};
    return tarn__op_row_at(tarn_op_find(one->operation))->apply(&v, outputs);
}

static void every_operation_names_an_operand_that_was_freed(void **state)
{
    (void)state;
    int wrong = 0;
    const tarn__scale scale = tarn__scale_small();
    for (int c = 0; c < tarn__case_count(); c++) {
        const tarn__case one = tarn__case_resolve(tarn__case_at(c), &scale, TARN_F32);
        for (int i = 0; i < one.inputs; i++) {
            tarn_scope *scope = tarn_scope_open();
            tarn_tensor *inputs[64] = {0};
            assert_true(tarn__case_inputs(&one, TARN_F32, TARN__CONTIGUOUS, tarn_device_cpu(), 1, inputs));
            inputs[i] = freed_like(tarn_set_name(inputs[i], "gone"));
            if (call(&one, inputs) || !strstr(tarn_error(), "was freed: 'gone' ")) {
                print_error("%s %s, input %d: %s\n", one.operation, one.variant ? one.variant : "", i, tarn_error());
                wrong++;
            }
            tarn_clear_error();
            tarn_scope_close(scope);
        }
    }
    assert_int_equal(wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_names_an_operand_that_was_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
