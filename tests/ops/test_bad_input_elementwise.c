/* test_bad_input_elementwise.c: invalid arguments to elementwise operations and reductions. */
#include "support/operands.h"

typedef tarn_tensor *(*unary_fn)(tarn_tensor *x);
typedef tarn_tensor *(*binary_fn)(tarn_tensor *a, tarn_tensor *b);
typedef tarn_tensor *(*reduce_fn)(tarn_tensor *x, tarn_axes axes, bool keepdim);

enum { FLOATS, NUMBERS, ALL };

#define ROW(function, kinds) \
    { \
#function, function, kinds \
    }

static const struct {
    const char *name;
    unary_fn call;
    int kinds;
} unary[] =
    {
        ROW(tarn_neg, NUMBERS),     ROW(tarn_abs, NUMBERS),    ROW(tarn_sign, NUMBERS),    ROW(tarn_square, NUMBERS),
        ROW(tarn_sqrt, FLOATS),     ROW(tarn_rsqrt, FLOATS),   ROW(tarn_recip, FLOATS),    ROW(tarn_exp, FLOATS),
        ROW(tarn_exp2, FLOATS),     ROW(tarn_log, FLOATS),     ROW(tarn_log2, FLOATS),     ROW(tarn_sin, FLOATS),
        ROW(tarn_cos, FLOATS),      ROW(tarn_tanh, FLOATS),    ROW(tarn_erf, FLOATS),      ROW(tarn_sigmoid, FLOATS),
        ROW(tarn_relu, NUMBERS),    ROW(tarn_gelu, FLOATS),    ROW(tarn_gelu_erf, FLOATS), ROW(tarn_silu, FLOATS),
        ROW(tarn_softplus, FLOATS), ROW(tarn_contiguous, ALL), ROW(tarn_clone, ALL),       ROW(tarn_detach, ALL),
},
  unary_inplace[] = {
      ROW(tarn_neg_inplace, NUMBERS),     ROW(tarn_abs_inplace, NUMBERS),  ROW(tarn_sign_inplace, NUMBERS),
      ROW(tarn_square_inplace, NUMBERS),  ROW(tarn_sqrt_inplace, FLOATS),  ROW(tarn_rsqrt_inplace, FLOATS),
      ROW(tarn_recip_inplace, FLOATS),    ROW(tarn_exp_inplace, FLOATS),   ROW(tarn_exp2_inplace, FLOATS),
      ROW(tarn_log_inplace, FLOATS),      ROW(tarn_log2_inplace, FLOATS),  ROW(tarn_sin_inplace, FLOATS),
      ROW(tarn_cos_inplace, FLOATS),      ROW(tarn_tanh_inplace, FLOATS),  ROW(tarn_erf_inplace, FLOATS),
      ROW(tarn_sigmoid_inplace, FLOATS),  ROW(tarn_relu_inplace, NUMBERS), ROW(tarn_gelu_inplace, FLOATS),
      ROW(tarn_gelu_erf_inplace, FLOATS), ROW(tarn_silu_inplace, FLOATS),  ROW(tarn_softplus_inplace, FLOATS),
};

static const struct {
    const char *name;
    binary_fn call;
    int kinds;
} binary[] =
    {
        ROW(tarn_add, NUMBERS),     ROW(tarn_sub, NUMBERS),     ROW(tarn_mul, NUMBERS), ROW(tarn_div, FLOATS),
        ROW(tarn_maximum, NUMBERS), ROW(tarn_minimum, NUMBERS), ROW(tarn_mod, NUMBERS), ROW(tarn_pow, FLOATS),
        ROW(tarn_eq, ALL),          ROW(tarn_ne, ALL),          ROW(tarn_lt, ALL),      ROW(tarn_le, ALL),
        ROW(tarn_gt, ALL),          ROW(tarn_ge, ALL),
},
  binary_inplace[] = {
      ROW(tarn_add_inplace, NUMBERS), ROW(tarn_sub_inplace, NUMBERS),     ROW(tarn_mul_inplace, NUMBERS),
      ROW(tarn_div_inplace, FLOATS),  ROW(tarn_maximum_inplace, NUMBERS), ROW(tarn_minimum_inplace, NUMBERS),
      ROW(tarn_mod_inplace, NUMBERS), ROW(tarn_pow_inplace, FLOATS),
};

static const struct {
    const char *name;
    reduce_fn call;
    int kinds;
} reduce[] = {
    ROW(tarn_sum, ALL), ROW(tarn_mean, FLOATS), ROW(tarn_prod, ALL), ROW(tarn_max, ALL), ROW(tarn_min, ALL),
};

static void operations_of_one_operand(void **state)
{
    (void)state;
    EACH(unary)
    {
        REFUSE_ROW(unary[n], NULL);
        if (unary[n].kinds != ALL)
            REFUSE_ROW(unary[n], boolean);
        if (unary[n].kinds == FLOATS)
            REFUSE_ROW(unary[n], i64);
    }
    EACH(unary_inplace)
    {
        REFUSE_ROW(unary_inplace[n], NULL);
        REFUSE_ROW(unary_inplace[n], boolean);
        REFUSE_ROW(unary_inplace[n], expanded);
        REFUSE_ROW(unary_inplace[n], recorded);
        REFUSE_ROW(unary_inplace[n], tarn_scalar(1));
        if (unary_inplace[n].kinds == FLOATS)
            REFUSE_ROW(unary_inplace[n], i64);
    }
    REFUSE(tarn_leaky_relu, tarn_leaky_relu(NULL, 0.1));
    REFUSE(tarn_leaky_relu, tarn_leaky_relu(i64, 0.1));
    REFUSE(tarn_leaky_relu_inplace, tarn_leaky_relu_inplace(NULL, 0.1));
    REFUSE(tarn_leaky_relu_inplace, tarn_leaky_relu_inplace(expanded, 0.1));
    REFUSE(tarn_clamp, tarn_clamp(NULL, 0, 1));
    REFUSE(tarn_clamp, tarn_clamp(f, 1, 0));
    REFUSE(tarn_clamp, tarn_clamp(f, NAN, 1));
    REFUSE(tarn_clamp, tarn_clamp(i64, 0.5, 1));
    REFUSE(tarn_clamp_inplace, tarn_clamp_inplace(NULL, 0, 1));
    REFUSE(tarn_clamp_inplace, tarn_clamp_inplace(f, 1, 0));
    REFUSE(tarn_clamp_inplace, tarn_clamp_inplace(recorded, 0, 1));
    REFUSE(tarn_fill_inplace, tarn_fill_inplace(NULL, 0));
    REFUSE(tarn_fill_inplace, tarn_fill_inplace(expanded, 0));
    REFUSE(tarn_fill_inplace, tarn_fill_inplace(tarn_scalar(1), 0));
    REFUSE(tarn_cast, tarn_cast(NULL, TARN_F32));
    REFUSE(tarn_cast, tarn_cast(f, BAD_DTYPE));
    REFUSE(tarn_cast, tarn_cast(f, (tarn_dtype)-1));
}

static void operations_of_two_operands(void **state)
{
    (void)state;
    tarn_tensor *f2 = vector(1, 2);
    EACH(binary)
    {
        REFUSE_ROW(binary[n], NULL, f);
        REFUSE_ROW(binary[n], f, NULL);
        REFUSE_ROW(binary[n], f, f2);
        REFUSE_ROW(binary[n], f, d);
        REFUSE_ROW(binary[n], f, i64);
        REFUSE_ROW(binary[n], f, elsewhere);
        REFUSE_ROW(binary[n], i64, tarn_scalar(0.5));
        if (binary[n].kinds != ALL)
            REFUSE_ROW(binary[n], boolean, boolean);
        if (binary[n].kinds == FLOATS)
            REFUSE_ROW(binary[n], i64, i64);
    }
    EACH(binary_inplace)
    {
        REFUSE_ROW(binary_inplace[n], NULL, f);
        REFUSE_ROW(binary_inplace[n], f, NULL);
        REFUSE_ROW(binary_inplace[n], f, f2);
        REFUSE_ROW(binary_inplace[n], f, f23);
        REFUSE_ROW(binary_inplace[n], f, d);
        REFUSE_ROW(binary_inplace[n], f, elsewhere);
        REFUSE_ROW(binary_inplace[n], expanded, f23);
        REFUSE_ROW(binary_inplace[n], recorded, f);
        REFUSE_ROW(binary_inplace[n], tarn_scalar(1), f);
        REFUSE_ROW(binary_inplace[n], boolean, boolean);
    }
    REFUSE(tarn_where, tarn_where(NULL, f, f));
    REFUSE(tarn_where, tarn_where(boolean, NULL, f));
    REFUSE(tarn_where, tarn_where(boolean, f, NULL));
    REFUSE(tarn_where, tarn_where(f, f, f));
    REFUSE(tarn_where, tarn_where(tarn_scalar(1), f, f));
    REFUSE(tarn_where, tarn_where(boolean, f, d));
    REFUSE(tarn_where, tarn_where(boolean, f, f2));
    REFUSE(tarn_where, tarn_where(boolean, f, elsewhere));
    REFUSE(tarn_where, tarn_where(boolean, elsewhere, elsewhere));
}

static void reductions(void **state)
{
    (void)state;
    EACH(reduce)
    {
        REFUSE_ROW(reduce[n], NULL, TARN_ALL_AXES, false);
        REFUSE_ROW(reduce[n], f, TARN_AXES(1), false);
        REFUSE_ROW(reduce[n], f, TARN_AXES(-2), false);
        REFUSE_ROW(reduce[n], f23, TARN_AXES(0, -2), false);
        REFUSE_ROW(reduce[n], f, ((tarn_axes){.count = -1}), false);
        REFUSE_ROW(reduce[n], f, ((tarn_axes){.count = 9}), false);
        if (reduce[n].kinds == FLOATS)
            REFUSE_ROW(reduce[n], i64, TARN_ALL_AXES, false);
    }
    REFUSE(tarn_max, tarn_max(empty, TARN_AXES(0), false));
    REFUSE(tarn_min, tarn_min(empty, TARN_ALL_AXES, false));
    REFUSE(tarn_argmax, tarn_argmax(NULL, 0, false));
    REFUSE(tarn_argmax, tarn_argmax(f, 1, false));
    REFUSE(tarn_argmax, tarn_argmax(empty, 0, false));
    REFUSE(tarn_argmin, tarn_argmin(NULL, 0, false));
    REFUSE(tarn_argmin, tarn_argmin(f, -2, false));
    REFUSE(tarn_var, tarn_var(NULL, TARN_ALL_AXES, 1, false));
    REFUSE(tarn_var, tarn_var(i64, TARN_ALL_AXES, 1, false));
    REFUSE(tarn_var, tarn_var(f, TARN_AXES(3), 1, false));
    ACCEPT(tarn_var(f, TARN_ALL_AXES, NAN, false)); /* NaN, as arithmetic gives */
    REFUSE(tarn_cumsum, tarn_cumsum(NULL, 0));
    REFUSE(tarn_cumsum, tarn_cumsum(f, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_operands(operations_of_one_operand),
        with_operands(operations_of_two_operands),
        with_operands(reductions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
