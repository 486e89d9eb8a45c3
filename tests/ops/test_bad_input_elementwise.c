/* test_bad_input_elementwise.c: invalid arguments to elementwise operations and reductions. */
#include "support/operands.h"

typedef tarn_tensor *(*unary_fn)(tarn_tensor *x);
typedef tarn_tensor *(*binary_fn)(tarn_tensor *a, tarn_tensor *b);
typedef tarn_tensor *(*reduce_fn)(tarn_tensor *x, tarn_axes axes, bool keepdim);

/* Dtypes of a row, by the names that elementwise.def uses; comparisons support all. */
enum { FLOAT, NUMBER, ALL };

#define ROW(function, kinds) \
    { \
#function, function, kinds \
    }

/* Functions of elementwise.def, so that a new row is called with bad input at once. Rows with parameters are called
 * below. */
#define UNARY_P(name, ...)

static const struct {
    const char *name;
    unary_fn call;
    int kinds;
} unary[] =
    {
#define UNARY(name, kinds, ...) ROW(tarn_##name, kinds),
#define BINARY(name, ...)
#define COMPARE(name, ...)
#include "base/kernel/elementwise.def"
#undef UNARY
        ROW(tarn_contiguous, ALL),
        ROW(tarn_clone, ALL),
        ROW(tarn_detach, ALL),
},
  unary_inplace[] = {
#define UNARY(name, kinds, ...) ROW(tarn_##name##_inplace, kinds),
#include "base/kernel/elementwise.def"
#undef UNARY
#undef BINARY
#undef COMPARE
};

static const struct {
    const char *name;
    binary_fn call;
    int kinds;
} binary[] =
    {
#define UNARY(name, ...)
#define BINARY(name, kinds, ...) ROW(tarn_##name, kinds),
#define COMPARE(name, ...) ROW(tarn_##name, ALL),
#include "base/kernel/elementwise.def"
#undef BINARY
#undef COMPARE
},
  binary_inplace[] = {
#define BINARY(name, kinds, ...) ROW(tarn_##name##_inplace, kinds),
#define COMPARE(name, ...)
#include "base/kernel/elementwise.def"
#undef UNARY
#undef BINARY
#undef COMPARE
};

static const struct {
    const char *name;
    reduce_fn call;
    int kinds;
} reduce[] = {
    ROW(tarn_sum, ALL), ROW(tarn_mean, FLOAT), ROW(tarn_prod, ALL), ROW(tarn_max, ALL), ROW(tarn_min, ALL),
};

static void operations_of_one_operand(void **state)
{
    (void)state;
    EACH(unary)
    {
        REFUSE_ROW(unary[n], NULL);
        if (unary[n].kinds != ALL)
            REFUSE_ROW(unary[n], boolean);
        if (unary[n].kinds == FLOAT)
            REFUSE_ROW(unary[n], i64);
    }
    EACH(unary_inplace)
    {
        REFUSE_ROW(unary_inplace[n], NULL);
        REFUSE_ROW(unary_inplace[n], boolean);
        REFUSE_ROW(unary_inplace[n], expanded);
        REFUSE_ROW(unary_inplace[n], recorded);
        REFUSE_ROW(unary_inplace[n], tarn_scalar(1));
        if (unary_inplace[n].kinds == FLOAT)
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
        if (binary[n].kinds == FLOAT)
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
        if (reduce[n].kinds == FLOAT)
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
