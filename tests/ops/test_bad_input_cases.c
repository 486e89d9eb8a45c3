/* test_bad_input_cases.c: every operation of the registry with the inputs of its first case, one of them replaced:
 * missing, or of another dtype, shape or device. A missing input is an error; what an operation cannot use must be an
 * error that names it, never a crash. Calls go past tarn_apply(), whose own check would hide a missing one. */
#include "cases/cases.h"
#include "ops/op.h"
#include "support/operands.h"

static const tarn__case *first_case(const char *operation)
{
    for (int i = 0; i < tarn__case_count(); i++)
        if (strcmp(tarn__case_at(i)->operation, operation) == 0)
            return tarn__case_at(i);
    return NULL;
}

/* Calls the function behind the row; true when an error is pending. */
static bool fails(const tarn__op_row *row, const tarn__case *one, tarn_tensor *const *inputs)
{
    tarn_tensor *in[TARN__MAX_OP_INPUTS] = {0}, *out[TARN__MAX_OP_OUTPUTS] = {0};
    for (int i = 0; i < one->inputs; i++)
        in[i] = inputs[i];
    row->apply(&(tarn__invocation){row->name, in, one->inputs, one->attribute, one->attributes}, out);
    return tarn_failed();
}

static void try_operation(const tarn__op_row *row, const tarn__case *letters)
{
    tarn__scale small = tarn__scale_small();
    tarn__case one = tarn__case_resolve(letters, &small, TARN_F32);
    tarn_tensor *in[TARN__CASE_INPUTS], *const others[] = {d,     i64,    boolean,   f23,           expanded,
                                                           empty, scalar, elsewhere, tarn_scalar(1)};
    char name[80];
    /* tarn_linear() makes a layer */
    snprintf(name, sizeof(name), "tarn_%s%s", row->name, strcmp(row->name, "linear") == 0 ? "_apply" : "");
    if (!tarn__case_inputs(&one, TARN_F32, TARN__CONTIGUOUS, cpu, 7, in))
        fail_msg("%s: %s", row->name, tarn_error());
    for (int i = 0; i < one.inputs; i++) {
        tarn_tensor *given = in[i];
        in[i] = NULL;
        bool failed = fails(row, &one, in);
        if (failed || i < row->min_inputs)
            check_refused(name, "an input that is NULL", i);
        EACH(others)
        {
            in[i] = others[n];
            if (fails(row, &one, in))
                check_refused(name, "an input of another dtype, shape or device", i);
            else
                check_accepted(name, i);
        }
        in[i] = given;
    }
}

static void operations_name_themselves_in_errors(void **state)
{
    (void)state;
    for (int op = 0; op < tarn_op_count(); op++) {
        const tarn__op_row *row = tarn__op_row_at(op);
        const tarn__case *letters = first_case(row->name);
        tarn_scope *scope = tarn_scope_open();
        if (!letters)
            fail_msg("%s has no case in src/cases/list.c", row->name);
        try_operation(row, letters);
        tarn_scope_close(scope);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_operands(operations_name_themselves_in_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
