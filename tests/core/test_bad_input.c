/* test_bad_input.c: every public function is given what it does not take: NULL, wrong ranks, shapes that do not fit, wrong dtypes and
 * devices, sizes that overflow, numbers that make no sense. Each must raise an error that names it, and an operation must work afterwards.
 * Functions that take anything are called too, and must not raise. tests/project/bad_input.sh fails when a function is missing
 * here and in the other tests/<folder>/test_bad_input*.c. */
#include "support/refuse.h"

static tarn_tensor *f, *f23, *d, *i64, *u8, *boolean, *expanded, *empty, *scalar, *recorded, *elsewhere; /* operands of all kinds */
static tarn_device cpu, mirror;
static const tarn_device nowhere = {6, 0}, second_cpu = {0, 1}, negative = {0, -1};
static const tarn_shape rank_9 = {9, {1}}, rank_minus = {-1, {1}};

#define HUGE_SIZE ((int64_t)1 << 61)
#define BAD_DTYPE ((tarn_dtype)77)

static int make_operands(void **state)
{
    if (open_refusals(state) != 0)
        return -1;
    cpu = tarn_device_cpu();
    mirror = tarn_device_parse("mirror:1");
    f = vector(1, 2, 3);
    f23 = tarn_ones(TARN_SHAPE(2, 3), TARN_F32, cpu);
    d = tarn_ones(TARN_SHAPE(3), TARN_F64, cpu);
    i64 = tarn_arange(0, 3, 1, TARN_I64, cpu);
    u8 = tarn_cast(i64, TARN_U8);
    boolean = tarn_cast(f, TARN_BOOL);
    expanded = tarn_expand(tarn_ones(TARN_SHAPE(1, 3), TARN_F32, cpu), TARN_SHAPE(2, 3));
    empty = tarn_zeros(TARN_SHAPE(0, 3), TARN_F32, cpu);
    scalar = tarn_zeros(TARN_SCALAR, TARN_F32, cpu);
    recorded = tarn_square(tarn_requires_grad(vector(1, 2, 3), true));
    elsewhere = tarn_ones(TARN_SHAPE(3), TARN_F32, mirror);
    return tarn_failed() ? -1 : 0;
}

/* ---- tables of functions of one kind ------------------------------------------------------------------------------------------ */

typedef tarn_tensor *(*unary_fn)(tarn_tensor *x);
typedef tarn_tensor *(*binary_fn)(tarn_tensor *a, tarn_tensor *b);
typedef tarn_tensor *(*reduce_fn)(tarn_tensor *x, tarn_axes axes, bool keep);

enum { FLOATS, NUMBERS, ALL };

#define ROW(function, kinds) {#function, function, kinds}

static const struct {
    const char *name;
    unary_fn call;
    int kinds;
} unary[] = {
    ROW(tarn_neg, NUMBERS),        ROW(tarn_abs, NUMBERS),      ROW(tarn_sign, NUMBERS),        ROW(tarn_square, NUMBERS),
    ROW(tarn_sqrt, FLOATS),        ROW(tarn_rsqrt, FLOATS),     ROW(tarn_recip, FLOATS),        ROW(tarn_exp, FLOATS),
    ROW(tarn_exp2, FLOATS),        ROW(tarn_log, FLOATS),       ROW(tarn_log2, FLOATS),         ROW(tarn_sin, FLOATS),
    ROW(tarn_cos, FLOATS),         ROW(tarn_tanh, FLOATS),      ROW(tarn_erf, FLOATS),          ROW(tarn_sigmoid, FLOATS),
    ROW(tarn_relu, NUMBERS),       ROW(tarn_gelu, FLOATS),      ROW(tarn_gelu_erf, FLOATS),     ROW(tarn_silu, FLOATS),
    ROW(tarn_softplus, FLOATS),    ROW(tarn_contiguous, ALL),   ROW(tarn_clone, ALL),           ROW(tarn_detach, ALL),
}, unary_inplace[] = {
    ROW(tarn_neg_inplace, NUMBERS),     ROW(tarn_abs_inplace, NUMBERS),  ROW(tarn_sign_inplace, NUMBERS),  ROW(tarn_square_inplace, NUMBERS),
    ROW(tarn_sqrt_inplace, FLOATS),     ROW(tarn_rsqrt_inplace, FLOATS), ROW(tarn_recip_inplace, FLOATS),  ROW(tarn_exp_inplace, FLOATS),
    ROW(tarn_exp2_inplace, FLOATS),     ROW(tarn_log_inplace, FLOATS),   ROW(tarn_log2_inplace, FLOATS),   ROW(tarn_sin_inplace, FLOATS),
    ROW(tarn_cos_inplace, FLOATS),      ROW(tarn_tanh_inplace, FLOATS),  ROW(tarn_erf_inplace, FLOATS),    ROW(tarn_sigmoid_inplace, FLOATS),
    ROW(tarn_relu_inplace, NUMBERS),    ROW(tarn_gelu_inplace, FLOATS),  ROW(tarn_gelu_erf_inplace, FLOATS), ROW(tarn_silu_inplace, FLOATS),
    ROW(tarn_softplus_inplace, FLOATS),
};

static const struct {
    const char *name;
    binary_fn call;
    int kinds;
} binary[] = {
    ROW(tarn_add, NUMBERS), ROW(tarn_sub, NUMBERS), ROW(tarn_mul, NUMBERS), ROW(tarn_div, FLOATS), ROW(tarn_maximum, NUMBERS),
    ROW(tarn_minimum, NUMBERS), ROW(tarn_mod, NUMBERS), ROW(tarn_pow, FLOATS), ROW(tarn_eq, ALL), ROW(tarn_ne, ALL), ROW(tarn_lt, ALL),
    ROW(tarn_le, ALL), ROW(tarn_gt, ALL), ROW(tarn_ge, ALL),
}, binary_inplace[] = {
    ROW(tarn_add_inplace, NUMBERS), ROW(tarn_sub_inplace, NUMBERS), ROW(tarn_mul_inplace, NUMBERS), ROW(tarn_div_inplace, FLOATS),
    ROW(tarn_maximum_inplace, NUMBERS), ROW(tarn_minimum_inplace, NUMBERS), ROW(tarn_mod_inplace, NUMBERS), ROW(tarn_pow_inplace, FLOATS),
};

static const struct {
    const char *name;
    reduce_fn call;
    int kinds;
} reduce[] = {
    ROW(tarn_sum, ALL), ROW(tarn_mean, FLOATS), ROW(tarn_prod, ALL), ROW(tarn_max, ALL), ROW(tarn_min, ALL),
};

#define EACH(table) for (size_t n = 0; n < sizeof(table) / sizeof(table[0]); n++)
#define REFUSE_ROW(row, ...)                                                                                                              \
    do {                                                                                                                                  \
        (void)(row).call(__VA_ARGS__);                                                                                                    \
        check_refused((row).name, (row).name, __LINE__);                                                                                  \
    } while (0)

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

static void movement(void **state)
{
    (void)state;
    tarn_tensor *deep = tarn_zeros((tarn_shape){8, {1, 1, 1, 1, 1, 1, 1, 1}}, TARN_F32, cpu);
    REFUSE(tarn_reshape, tarn_reshape(NULL, TARN_SHAPE(3)));
    REFUSE(tarn_reshape, tarn_reshape(f, TARN_SHAPE(2)));
    REFUSE(tarn_reshape, tarn_reshape(f, TARN_SHAPE(-1, -1)));
    REFUSE(tarn_reshape, tarn_reshape(f, TARN_SHAPE(-2, 3)));
    REFUSE(tarn_reshape, tarn_reshape(f, TARN_SHAPE(2, -1)));
    REFUSE(tarn_reshape, tarn_reshape(f, TARN_SHAPE(0, -1)));
    REFUSE(tarn_reshape, tarn_reshape(empty, TARN_SHAPE(0, -1)));
    REFUSE(tarn_reshape, tarn_reshape(f, rank_9));
    REFUSE(tarn_reshape, tarn_reshape(f, rank_minus));
    REFUSE(tarn_reshape, tarn_reshape(empty, TARN_SHAPE(HUGE_SIZE, HUGE_SIZE, 0)));
    REFUSE(tarn_reshape, tarn_reshape(f, TARN_SHAPE(HUGE_SIZE, HUGE_SIZE)));
    REFUSE(tarn_permute, tarn_permute(NULL, TARN_AXES(0)));
    REFUSE(tarn_permute, tarn_permute(f23, TARN_AXES(0)));
    REFUSE(tarn_permute, tarn_permute(f23, TARN_AXES(0, 0)));
    REFUSE(tarn_permute, tarn_permute(f23, TARN_AXES(0, 2)));
    REFUSE(tarn_permute, tarn_permute(f23, (tarn_axes){.count = 9}));
    REFUSE(tarn_permute, tarn_permute(f23, (tarn_axes){.count = -1}));
    REFUSE(tarn_transpose, tarn_transpose(NULL, 0, 1));
    REFUSE(tarn_transpose, tarn_transpose(f23, 0, 2));
    REFUSE(tarn_transpose, tarn_transpose(f23, -3, 1));
    REFUSE(tarn_expand, tarn_expand(NULL, TARN_SHAPE(3)));
    REFUSE(tarn_expand, tarn_expand(f, TARN_SHAPE(4)));
    REFUSE(tarn_expand, tarn_expand(f23, TARN_SHAPE(3)));
    REFUSE(tarn_expand, tarn_expand(f, TARN_SHAPE(-1, 3)));
    REFUSE(tarn_expand, tarn_expand(f, TARN_SHAPE(-2)));
    REFUSE(tarn_expand, tarn_expand(f, TARN_SHAPE(HUGE_SIZE, HUGE_SIZE, 3)));
    REFUSE(tarn_expand, tarn_expand(f, rank_9));
    REFUSE(tarn_unsqueeze, tarn_unsqueeze(NULL, 0));
    REFUSE(tarn_unsqueeze, tarn_unsqueeze(f, 2));
    REFUSE(tarn_unsqueeze, tarn_unsqueeze(f, -3));
    REFUSE(tarn_unsqueeze, tarn_unsqueeze(deep, 0));
    REFUSE(tarn_squeeze, tarn_squeeze(NULL, 0));
    REFUSE(tarn_squeeze, tarn_squeeze(f, 1));
    REFUSE(tarn_pad, tarn_pad(NULL, TARN_SHAPE(1), TARN_SHAPE(1), 0));
    REFUSE(tarn_pad, tarn_pad(f, TARN_SHAPE(1, 1), TARN_SHAPE(1, 1), 0));
    REFUSE(tarn_pad, tarn_pad(f, TARN_SHAPE(-1), TARN_SHAPE(1), 0));
    REFUSE(tarn_pad, tarn_pad(f, TARN_SHAPE(INT64_MAX), TARN_SHAPE(INT64_MAX), 0));
    REFUSE(tarn_shrink, tarn_shrink(NULL, TARN_SHAPE(0), TARN_SHAPE(1)));
    REFUSE(tarn_shrink, tarn_shrink(f, TARN_SHAPE(2), TARN_SHAPE(1)));
    REFUSE(tarn_shrink, tarn_shrink(f, TARN_SHAPE(0), TARN_SHAPE(4)));
    REFUSE(tarn_shrink, tarn_shrink(f, TARN_SHAPE(INT64_MIN), TARN_SHAPE(INT64_MAX)));
    REFUSE(tarn_shrink, tarn_shrink(f, TARN_SHAPE(0, 0), TARN_SHAPE(1, 1)));
    REFUSE(tarn_slice, tarn_slice(NULL, 0, 0, 1));
    REFUSE(tarn_slice, tarn_slice(f, 1, 0, 1));
    REFUSE(tarn_slice, tarn_slice(f, 0, 0, 4));
    REFUSE(tarn_slice, tarn_slice(f, 0, 2, 1));
    REFUSE(tarn_slice, tarn_slice(scalar, 0, 0, 1));
    REFUSE(tarn_slice, tarn_slice(f, 0, INT64_MIN, INT64_MAX));
    REFUSE(tarn_stride, tarn_stride(NULL, TARN_SHAPE(1)));
    REFUSE(tarn_stride, tarn_stride(f, TARN_SHAPE(0)));
    REFUSE(tarn_stride, tarn_stride(f, TARN_SHAPE(-1)));
    REFUSE(tarn_stride, tarn_stride(f, TARN_SHAPE(1, 1)));
    ACCEPT(tarn_stride(f, TARN_SHAPE(INT64_MAX))); /* the first element */
    REFUSE(tarn_flip, tarn_flip(NULL, TARN_AXES(0)));
    REFUSE(tarn_flip, tarn_flip(f, TARN_AXES(1)));
    REFUSE(tarn_flip, tarn_flip(f23, TARN_AXES(1, -1)));
    tarn_tensor *pair[] = {f, f}, *mixed[] = {f, d}, *unlike[] = {f, f23}, *missing[] = {f, NULL}, *far[] = {f, elsewhere}, *none[] = {scalar, scalar};
    tarn_tensor *parts[64];
    REFUSE(tarn_concat, tarn_concat(NULL, 1, 0));
    REFUSE(tarn_concat, tarn_concat(pair, 0, 0));
    REFUSE(tarn_concat, tarn_concat(pair, -1, 0));
    REFUSE(tarn_concat, tarn_concat(pair, 2, 1));
    REFUSE(tarn_concat, tarn_concat(mixed, 2, 0));
    REFUSE(tarn_concat, tarn_concat(unlike, 2, 0));
    REFUSE(tarn_concat, tarn_concat(missing, 2, 0));
    REFUSE(tarn_concat, tarn_concat(far, 2, 0));
    REFUSE(tarn_concat, tarn_concat(none, 2, 0));
    REFUSE(tarn_stack, tarn_stack(NULL, 1, 0));
    REFUSE(tarn_stack, tarn_stack(pair, 0, 0));
    REFUSE(tarn_stack, tarn_stack(pair, 2, 2));
    REFUSE(tarn_stack, tarn_stack(mixed, 2, 0));
    REFUSE(tarn_stack, tarn_stack(unlike, 2, 0));
    REFUSE(tarn_stack, tarn_stack(missing, 2, 0));
    REFUSE(tarn_stack, tarn_stack(far, 2, 0));
    REFUSE(tarn_stack, tarn_stack(&deep, 1, 0));
    REFUSE(tarn_split, tarn_split(NULL, 0, (const int64_t[]){1, 2}, 2, parts));
    REFUSE(tarn_split, tarn_split(f, 0, NULL, 2, parts));
    REFUSE(tarn_split, tarn_split(f, 0, (const int64_t[]){1, 2}, 2, NULL));
    REFUSE(tarn_split, tarn_split(f, 0, (const int64_t[]){1, 1}, 2, parts));
    REFUSE(tarn_split, tarn_split(f, 0, (const int64_t[]){-1, 4}, 2, parts));
    REFUSE(tarn_split, tarn_split(f, 0, (const int64_t[]){INT64_MAX, INT64_MAX, 5}, 3, parts));
    REFUSE(tarn_split, tarn_split(f, 0, (const int64_t[]){3}, 0, parts));
    REFUSE(tarn_split, tarn_split(f, 0, (const int64_t[]){3}, -1, parts));
    REFUSE(tarn_split, tarn_split(f, 1, (const int64_t[]){3}, 1, parts));
}

static void indexing_and_sorting(void **state)
{
    (void)state;
    tarn_tensor *beyond = tarn_from_i64((const int64_t[]){0, 3}, TARN_SHAPE(2), cpu), *below = tarn_from_i64((const int64_t[]){-4}, TARN_SHAPE(1), cpu);
    tarn_tensor *index23 = tarn_zeros(TARN_SHAPE(2, 3), TARN_I64, cpu), *far = tarn_zeros(TARN_SHAPE(3), TARN_I64, mirror), *values, *indices;
    REFUSE(tarn_gather, tarn_gather(NULL, 0, i64));
    REFUSE(tarn_gather, tarn_gather(f, 0, NULL));
    REFUSE(tarn_gather, tarn_gather(f, 1, i64));
    REFUSE(tarn_gather, tarn_gather(f, 0, f));
    REFUSE(tarn_gather, tarn_gather(f, 0, index23));
    REFUSE(tarn_gather, tarn_gather(f, 0, beyond));
    REFUSE(tarn_gather, tarn_gather(f, 0, below));
    REFUSE(tarn_gather, tarn_gather(f, 0, far));
    REFUSE(tarn_gather, tarn_gather(f23, 0, tarn_zeros(TARN_SHAPE(2, 4), TARN_I64, cpu)));
    REFUSE(tarn_scatter_add, tarn_scatter_add(NULL, 0, i64, f));
    REFUSE(tarn_scatter_add, tarn_scatter_add(f, 0, NULL, f));
    REFUSE(tarn_scatter_add, tarn_scatter_add(f, 0, i64, NULL));
    REFUSE(tarn_scatter_add, tarn_scatter_add(f, 0, i64, d));
    REFUSE(tarn_scatter_add, tarn_scatter_add(f, 2, i64, f));
    REFUSE(tarn_scatter_add, tarn_scatter_add(f, 0, f, f));
    REFUSE(tarn_scatter_add, tarn_scatter_add(f, 0, beyond, f));
    REFUSE(tarn_scatter_add, tarn_scatter_add(f, 0, index23, f23));
    REFUSE(tarn_scatter_add, tarn_scatter_add(f, 0, i64, vector(1, 2)));
    REFUSE(tarn_index_select, tarn_index_select(NULL, 0, i64));
    REFUSE(tarn_index_select, tarn_index_select(f, 0, NULL));
    REFUSE(tarn_index_select, tarn_index_select(f, 1, i64));
    REFUSE(tarn_index_select, tarn_index_select(f, 0, index23));
    REFUSE(tarn_index_select, tarn_index_select(f, 0, f));
    REFUSE(tarn_index_select, tarn_index_select(f, 0, beyond));
    REFUSE(tarn_index_select, tarn_index_select(f, 0, below));
    REFUSE(tarn_index_select, tarn_index_select(f, 0, far));
    REFUSE(tarn_one_hot, tarn_one_hot(NULL, 3, TARN_F32));
    REFUSE(tarn_one_hot, tarn_one_hot(f, 3, TARN_F32));
    REFUSE(tarn_one_hot, tarn_one_hot(i64, 2, TARN_F32));
    REFUSE(tarn_one_hot, tarn_one_hot(i64, -1, TARN_F32));
    REFUSE(tarn_one_hot, tarn_one_hot(i64, HUGE_SIZE, TARN_F64));
    REFUSE(tarn_one_hot, tarn_one_hot(i64, 3, BAD_DTYPE));
    REFUSE(tarn_embedding, tarn_embedding(NULL, i64));
    REFUSE(tarn_embedding, tarn_embedding(f23, NULL));
    REFUSE(tarn_embedding, tarn_embedding(f, i64));
    REFUSE(tarn_embedding, tarn_embedding(f23, f));
    REFUSE(tarn_embedding, tarn_embedding(f23, beyond));
    REFUSE(tarn_embedding, tarn_embedding(f23, far));
    REFUSE(tarn_topk, tarn_topk(NULL, 1, 0, true, &values, &indices));
    REFUSE(tarn_topk, tarn_topk(f, 4, 0, true, &values, &indices));
    REFUSE(tarn_topk, tarn_topk(f, -1, 0, true, &values, &indices));
    REFUSE(tarn_topk, tarn_topk(f, 1, 1, true, &values, &indices));
    REFUSE(tarn_sort, tarn_sort(NULL, 0, false, &values, &indices));
    REFUSE(tarn_sort, tarn_sort(f, 1, false, &values, &indices));
    REFUSE(tarn_sort, tarn_sort(f, 0, false, NULL, NULL));
    REFUSE(tarn_topk, tarn_topk(f, 1, 0, true, NULL, NULL));
    ACCEPT(tarn_sort(f, 0, false, &values, NULL));
}

static void products_norms_and_losses(void **state)
{
    (void)state;
    tarn_tensor *f33 = tarn_ones(TARN_SHAPE(3, 3), TARN_F32, cpu), *f2 = vector(1, 2), *classes = tarn_from_i64((const int64_t[]){0, 5}, TARN_SHAPE(2), cpu);
    tarn_tensor *target = tarn_zeros(TARN_SHAPE(2), TARN_I64, cpu);
    REFUSE(tarn_matmul, tarn_matmul(NULL, f33));
    REFUSE(tarn_matmul, tarn_matmul(f33, NULL));
    REFUSE(tarn_matmul, tarn_matmul(f23, f23));
    REFUSE(tarn_matmul, tarn_matmul(scalar, f33));
    REFUSE(tarn_matmul, tarn_matmul(f33, d));
    REFUSE(tarn_matmul, tarn_matmul(f33, elsewhere));
    REFUSE(tarn_matmul, tarn_matmul(tarn_ones(TARN_SHAPE(2, 3, 3), TARN_F32, cpu), tarn_ones(TARN_SHAPE(4, 3, 3), TARN_F32, cpu)));
    REFUSE(tarn_swiglu, tarn_swiglu(NULL, f33));
    REFUSE(tarn_swiglu, tarn_swiglu(f33, NULL));
    REFUSE(tarn_swiglu, tarn_swiglu(f33, f23));
    REFUSE(tarn_swiglu, tarn_swiglu(f33, f));
    REFUSE(tarn_swiglu, tarn_swiglu(f33, tarn_scalar(2)));
    REFUSE(tarn_swiglu, tarn_swiglu(f, d));
    REFUSE(tarn_swiglu, tarn_swiglu(f, elsewhere));
    REFUSE(tarn_swiglu, tarn_swiglu(target, target));
    REFUSE(tarn_mlp, tarn_mlp(NULL, f33, f33, f, f));
    REFUSE(tarn_mlp, tarn_mlp(f, NULL, f33, f, f));
    REFUSE(tarn_mlp, tarn_mlp(f, f33, NULL, f, f));
    REFUSE(tarn_mlp, tarn_mlp(f2, f33, f33, f, f));
    REFUSE(tarn_mlp, tarn_mlp(f, f33, f, f, f));
    REFUSE(tarn_mlp, tarn_mlp(f, f33, f33, f2, f));
    REFUSE(tarn_mlp, tarn_mlp(f, f33, f33, f, f2));
    REFUSE(tarn_mlp, tarn_mlp(f, f33, f33, d, f));
    REFUSE(tarn_mlp, tarn_mlp(f, f33, elsewhere, f, f));
    REFUSE(tarn_linear_apply, tarn_linear_apply(NULL, f33, f));
    REFUSE(tarn_linear_apply, tarn_linear_apply(f, NULL, f));
    REFUSE(tarn_linear_apply, tarn_linear_apply(f2, f33, f));
    REFUSE(tarn_linear_apply, tarn_linear_apply(f, f33, f2));
    REFUSE(tarn_linear_apply, tarn_linear_apply(f, f, f));
    REFUSE(tarn_linear_apply, tarn_linear_apply(f, f33, d));
    REFUSE(tarn_linear_apply, tarn_linear_apply(f, f33, elsewhere));
    REFUSE(tarn_softmax, tarn_softmax(NULL, 0));
    REFUSE(tarn_softmax, tarn_softmax(f, 1));
    REFUSE(tarn_softmax, tarn_softmax(i64, 0));
    REFUSE(tarn_log_softmax, tarn_log_softmax(NULL, 0));
    REFUSE(tarn_log_softmax, tarn_log_softmax(f, -2));
    REFUSE(tarn_log_softmax, tarn_log_softmax(boolean, 0));
    REFUSE(tarn_layernorm, tarn_layernorm(NULL, f, f, 1e-5));
    REFUSE(tarn_layernorm, tarn_layernorm(f, f2, f, 1e-5));
    REFUSE(tarn_layernorm, tarn_layernorm(f, f, f23, 1e-5));
    REFUSE(tarn_layernorm, tarn_layernorm(f, d, f, 1e-5));
    REFUSE(tarn_layernorm, tarn_layernorm(f, elsewhere, f, 1e-5));
    REFUSE(tarn_layernorm, tarn_layernorm(f, f, f, -1));
    REFUSE(tarn_layernorm, tarn_layernorm(f, f, f, NAN));
    REFUSE(tarn_layernorm, tarn_layernorm(scalar, NULL, NULL, 1e-5));
    REFUSE(tarn_layernorm, tarn_layernorm(i64, NULL, NULL, 1e-5));
    REFUSE(tarn_rmsnorm, tarn_rmsnorm(NULL, f, 1e-5));
    REFUSE(tarn_rmsnorm, tarn_rmsnorm(f, f2, 1e-5));
    REFUSE(tarn_rmsnorm, tarn_rmsnorm(f, f, NAN));
    REFUSE(tarn_rmsnorm, tarn_rmsnorm(scalar, NULL, 1e-5));
    REFUSE(tarn_dropout, tarn_dropout(NULL, 0.5));
    REFUSE(tarn_dropout, tarn_dropout(f, -0.1));
    REFUSE(tarn_dropout, tarn_dropout(f, 1.1));
    REFUSE(tarn_dropout, tarn_dropout(f, NAN));
    REFUSE(tarn_dropout, tarn_dropout(i64, 0.5));
    REFUSE(tarn_cross_entropy_sized, tarn_cross_entropy(NULL, target, NULL));
    REFUSE(tarn_cross_entropy_sized, tarn_cross_entropy(f23, NULL, NULL));
    REFUSE(tarn_cross_entropy_sized, tarn_cross_entropy(f23, i64, NULL));
    REFUSE(tarn_cross_entropy_sized, tarn_cross_entropy(f23, f2, NULL));
    REFUSE(tarn_cross_entropy_sized, tarn_cross_entropy(f23, classes, NULL));
    REFUSE(tarn_cross_entropy_sized, tarn_cross_entropy(scalar, scalar, NULL));
    REFUSE(tarn_cross_entropy_sized, tarn_cross_entropy(f23, tarn_to(target, mirror), NULL));
    REFUSE(tarn_cross_entropy_sized, tarn_cross_entropy(f23, target, &(tarn_cross_entropy_options){.label_smoothing = -1}));
    REFUSE(tarn_cross_entropy_sized, tarn_cross_entropy(f23, target, &(tarn_cross_entropy_options){.label_smoothing = NAN}));
    REFUSE(tarn_cross_entropy_sized, tarn_cross_entropy(f23, target, &(tarn_cross_entropy_options){.reduction = (tarn_reduction)9}));
    static const struct {
        const char *name;
        binary_fn call;
    } losses[] = {{"tarn_mse_loss", tarn_mse_loss}, {"tarn_l1_loss", tarn_l1_loss}, {"tarn_bce_with_logits_loss", tarn_bce_with_logits_loss}};
    EACH(losses)
    {
        REFUSE_ROW(losses[n], NULL, f);
        REFUSE_ROW(losses[n], f, NULL);
        REFUSE_ROW(losses[n], f, f2);
        REFUSE_ROW(losses[n], f, d);
        REFUSE_ROW(losses[n], i64, i64);
        REFUSE_ROW(losses[n], f, elsewhere);
    }
    REFUSE(tarn_huber_loss, tarn_huber_loss(NULL, f, 1));
    REFUSE(tarn_huber_loss, tarn_huber_loss(f, NULL, 1));
    REFUSE(tarn_huber_loss, tarn_huber_loss(f, f2, 1));
    REFUSE(tarn_huber_loss, tarn_huber_loss(f, f, -1));
    REFUSE(tarn_huber_loss, tarn_huber_loss(f, f, NAN));
    REFUSE(tarn_huber_loss, tarn_huber_loss(f, elsewhere, 1));
}

static void operations_by_name(void **state)
{
    (void)state;
    tarn_tensor *in[] = {f, f}, *missing[] = {f, NULL}, *out[8];
    float data[3] = {1, 2, 3};
    tarn_array arrays[2] = {{data, TARN_SHAPE(3), TARN_F32}, {data, TARN_SHAPE(3), TARN_F32}}, results[8] = {{0}};
    tarn_attribute unknown = {.name = "nosuch"}, unnamed = {0}, overlong = {.name = "axes", .count = 9};
    tarn_op_info info;
    REFUSE(tarn_apply, tarn_apply(NULL, in, 2, NULL, 0, out, 1));
    REFUSE(tarn_apply, tarn_apply("nosuch", in, 2, NULL, 0, out, 1));
    REFUSE(tarn_apply, tarn_apply("add", NULL, 2, NULL, 0, out, 1));
    REFUSE(tarn_apply, tarn_apply("add", in, 1, NULL, 0, out, 1));
    REFUSE(tarn_apply, tarn_apply("add", in, -1, NULL, 0, out, 1));
    REFUSE(tarn_apply, tarn_apply("concat", in, 1000, NULL, 0, out, 1));
    REFUSE(tarn_apply, tarn_apply("add", in, 2, NULL, 0, NULL, 1));
    REFUSE(tarn_apply, tarn_apply("add", in, 2, NULL, 0, out, 2));
    REFUSE(tarn_apply, tarn_apply("add", in, 2, &unknown, 1, out, 1));
    REFUSE(tarn_apply, tarn_apply("sum", in, 1, &unnamed, 1, out, 1));
    REFUSE(tarn_apply, tarn_apply("sum", in, 1, &overlong, 1, out, 1));
    REFUSE(tarn_apply, tarn_apply("sum", in, 1, NULL, 1, out, 1));
    REFUSE(tarn_apply, tarn_apply("sum", in, 1, NULL, -1, out, 1));
    REFUSE(tarn_add, tarn_apply("add", missing, 2, NULL, 0, out, 1));
    REFUSE(tarn_apply_host, tarn_apply_host(NULL, cpu, arrays, 2, NULL, 0, results, 1));
    REFUSE(tarn_apply_host, tarn_apply_host("nosuch", cpu, arrays, 2, NULL, 0, results, 1));
    REFUSE(tarn_apply_host, tarn_apply_host("add", cpu, NULL, 2, NULL, 0, results, 1));
    REFUSE(tarn_apply_host, tarn_apply_host("add", cpu, arrays, 3, NULL, 0, results, 1));
    REFUSE(tarn_apply_host, tarn_apply_host("add", cpu, arrays, 2, NULL, 0, NULL, 1));
    REFUSE(tarn_apply_host, tarn_apply_host("add", cpu, arrays, 2, NULL, 0, results, 2));
    REFUSE(tarn_apply_host, tarn_apply_host("add", nowhere, arrays, 2, NULL, 0, results, 1));
    REFUSE(tarn_apply_host, tarn_apply_host("add", cpu, arrays, 2, &unknown, 1, results, 1));
    arrays[1].data = NULL;
    REFUSE(tarn_apply_host, tarn_apply_host("add", cpu, arrays, 2, NULL, 0, results, 1));
    arrays[1] = (tarn_array){data, rank_9, TARN_F32};
    REFUSE(tarn_apply_host, tarn_apply_host("add", cpu, arrays, 2, NULL, 0, results, 1));
    ACCEPT(tarn_array_free(NULL));
    ACCEPT(tarn_array_free(&results[0]));
    REFUSE(tarn_op_at, tarn_op_at(-1, &info));
    REFUSE(tarn_op_at, tarn_op_at(tarn_op_count(), &info));
    REFUSE(tarn_op_at, tarn_op_at(0, NULL));
    ACCEPT(tarn_op_find(NULL) == -1 && tarn_op_find("nosuch") == -1 && tarn_op_find("") == -1);
    REFUSE(tarn_op_on, tarn_op_on(-1, "cpu", false));
    REFUSE(tarn_op_on, tarn_op_on(1000000, "cpu", false));
    ACCEPT(tarn_op_on(0, NULL, false));
    ACCEPT(tarn_op_on(0, "nosuch", false));
}

/* ---- tensors --------------------------------------------------------------------------------------------------------------- */

static void making(void **state)
{
    (void)state;
    float value = 1;
    REFUSE(tarn_empty, tarn_empty(TARN_SHAPE(-1), TARN_F32, cpu));
    REFUSE(tarn_empty, tarn_empty(rank_9, TARN_F32, cpu));
    REFUSE(tarn_empty, tarn_empty(rank_minus, TARN_F32, cpu));
    REFUSE(tarn_empty, tarn_empty(TARN_SHAPE(INT64_MAX, INT64_MAX), TARN_F32, cpu));
    REFUSE(tarn_empty, tarn_empty(TARN_SHAPE(INT64_MAX), TARN_F64, cpu));
    REFUSE(tarn_empty, tarn_empty(TARN_SHAPE(HUGE_SIZE), TARN_U8, cpu));
    REFUSE(tarn_empty, tarn_empty(TARN_SHAPE(3), BAD_DTYPE, cpu));
    REFUSE(tarn_empty, tarn_empty(TARN_SHAPE(3), TARN_F32, nowhere));
    REFUSE(tarn_empty, tarn_empty(TARN_SHAPE(3), TARN_F32, second_cpu));
    REFUSE(tarn_empty, tarn_empty(TARN_SHAPE(3), TARN_F32, negative));
    REFUSE(tarn_zeros, tarn_zeros(TARN_SHAPE(2, -3), TARN_F32, cpu));
    REFUSE(tarn_zeros, tarn_zeros(TARN_SHAPE(2), TARN_F32, nowhere));
    REFUSE(tarn_zeros, tarn_zeros(TARN_SHAPE(2), (tarn_dtype)-1, cpu));
    REFUSE(tarn_ones, tarn_ones(rank_9, TARN_F32, cpu));
    REFUSE(tarn_ones, tarn_ones(TARN_SHAPE(2), TARN_F32, nowhere));
    REFUSE(tarn_full, tarn_full(TARN_SHAPE(HUGE_SIZE, HUGE_SIZE), 1, TARN_F32, cpu));
    REFUSE(tarn_full, tarn_full(TARN_SHAPE(2), 1, BAD_DTYPE, cpu));
    REFUSE(tarn_empty_like, tarn_empty_like(NULL));
    REFUSE(tarn_zeros_like, tarn_zeros_like(NULL));
    REFUSE(tarn_ones_like, tarn_ones_like(NULL));
    REFUSE(tarn_full_like, tarn_full_like(NULL, 1));
    REFUSE(tarn_uniform_like, tarn_uniform_like(NULL, 0, 1));
    REFUSE(tarn_uniform_like, tarn_uniform_like(i64, 0, 1));
    REFUSE(tarn_uniform_like, tarn_uniform_like(f, NAN, 1));
    REFUSE(tarn_normal_like, tarn_normal_like(NULL, 0, 1));
    REFUSE(tarn_normal_like, tarn_normal_like(boolean, 0, 1));
    REFUSE(tarn_normal_like, tarn_normal_like(f, 0, -1));
    REFUSE(tarn_arange, tarn_arange(0, 1, 0, TARN_F32, cpu));
    REFUSE(tarn_arange, tarn_arange(0, 1, NAN, TARN_F32, cpu));
    REFUSE(tarn_arange, tarn_arange(NAN, 1, 1, TARN_F32, cpu));
    REFUSE(tarn_arange, tarn_arange(0, INFINITY, 1, TARN_F32, cpu));
    REFUSE(tarn_arange, tarn_arange(0, 1e18, 1, TARN_F32, cpu));
    REFUSE(tarn_arange, tarn_arange(0, 8e15, 1, TARN_F64, cpu));
    REFUSE(tarn_arange, tarn_arange(1e300, 1e300, 1, TARN_I64, cpu));
    REFUSE(tarn_arange, tarn_arange(0, 3, 1, TARN_BOOL, cpu));
    REFUSE(tarn_arange, tarn_arange(0, 3, 1, BAD_DTYPE, cpu));
    REFUSE(tarn_arange, tarn_arange(0, 3, 1, TARN_F32, nowhere));
    REFUSE(tarn_eye, tarn_eye(-1, 2, TARN_F32, cpu));
    REFUSE(tarn_eye, tarn_eye(HUGE_SIZE, HUGE_SIZE, TARN_F32, cpu));
    REFUSE(tarn_eye, tarn_eye(2, 2, BAD_DTYPE, cpu));
    REFUSE(tarn_eye, tarn_eye(2, 2, TARN_F32, nowhere));
    REFUSE(tarn_uniform, tarn_uniform(TARN_SHAPE(2), 0, 1, TARN_I32, cpu));
    REFUSE(tarn_uniform, tarn_uniform(TARN_SHAPE(2), 0, INFINITY, TARN_F32, cpu));
    REFUSE(tarn_uniform, tarn_uniform(TARN_SHAPE(2), 2, 1, TARN_F32, cpu));
    REFUSE(tarn_uniform, tarn_uniform(rank_minus, 0, 1, TARN_F32, cpu));
    REFUSE(tarn_uniform, tarn_uniform(TARN_SHAPE(2), 0, 1, TARN_F32, nowhere));
    REFUSE(tarn_normal, tarn_normal(TARN_SHAPE(2), 0, 1, TARN_U8, cpu));
    REFUSE(tarn_normal, tarn_normal(TARN_SHAPE(2), 0, -1, TARN_F32, cpu));
    REFUSE(tarn_normal, tarn_normal(TARN_SHAPE(2), NAN, 1, TARN_F32, cpu));
    REFUSE(tarn_from, tarn_from(NULL, TARN_SHAPE(1), TARN_F32, cpu));
    REFUSE(tarn_from, tarn_from(&value, TARN_SHAPE(-1), TARN_F32, cpu));
    REFUSE(tarn_from, tarn_from(&value, TARN_SHAPE(1), BAD_DTYPE, cpu));
    REFUSE(tarn_from, tarn_from(&value, TARN_SHAPE(1), TARN_F32, nowhere));
    REFUSE(tarn_from, tarn_from_f32(NULL, TARN_SHAPE(1), cpu));
    REFUSE(tarn_from, tarn_from_f64(NULL, TARN_SHAPE(1), cpu));
    REFUSE(tarn_from, tarn_from_i32(NULL, TARN_SHAPE(1), cpu));
    REFUSE(tarn_from, tarn_from_i64(NULL, rank_9, cpu));
    REFUSE(tarn_from, tarn_from_u8(NULL, TARN_SHAPE(1), nowhere));
    ACCEPT(tarn_scalar(NAN));
    ACCEPT(tarn_seed(UINT64_MAX));
}

static void asking_and_reading(void **state)
{
    (void)state;
    float values[6] = {0};
    double wide[6];
    char text[16];
    REFUSE(tarn_dtype_of, tarn_dtype_of(NULL));
    REFUSE(tarn_rank, tarn_rank(NULL));
    REFUSE(tarn_shape_of, tarn_shape_of(NULL));
    REFUSE(tarn_size, tarn_size(NULL, 0));
    REFUSE(tarn_size, tarn_size(f, 1));
    REFUSE(tarn_size, tarn_size(scalar, 0));
    REFUSE(tarn_stride_of, tarn_stride_of(NULL, 0));
    REFUSE(tarn_stride_of, tarn_stride_of(f, -2));
    REFUSE(tarn_count, tarn_count(NULL));
    REFUSE(tarn_bytes, tarn_bytes(NULL));
    REFUSE(tarn_device_of, tarn_device_of(NULL));
    REFUSE(tarn_is_contiguous, tarn_is_contiguous(NULL));
    REFUSE(tarn_name, tarn_name(NULL));
    REFUSE(tarn_set_name, tarn_set_name(NULL, "x"));
    REFUSE(tarn_set_name, tarn_set_name(f, NULL));
    REFUSE(tarn_read, tarn_read(NULL, values, 12));
    REFUSE(tarn_read, tarn_read(f, NULL, 12));
    REFUSE(tarn_read, tarn_read(f, values, 11));
    REFUSE(tarn_read, tarn_read(f, values, 24));
    REFUSE(tarn_read_f32, tarn_read_f32(NULL, values, 3));
    REFUSE(tarn_read_f32, tarn_read_f32(f, NULL, 3));
    REFUSE(tarn_read_f32, tarn_read_f32(f, values, -3));
    REFUSE(tarn_read_f64, tarn_read_f64(NULL, wide, 3));
    REFUSE(tarn_read_f64, tarn_read_f64(f, NULL, 3));
    REFUSE(tarn_read_f64, tarn_read_f64(f, wide, 2));
    REFUSE(tarn_item, tarn_item(NULL));
    REFUSE(tarn_item, tarn_item(f));
    REFUSE(tarn_item, tarn_item(empty));
    REFUSE(tarn_item_at, tarn_item_at(NULL, TARN_SHAPE(0)));
    REFUSE(tarn_item_at, tarn_item_at(f, TARN_SHAPE(3)));
    REFUSE(tarn_item_at, tarn_item_at(f, TARN_SHAPE(INT64_MIN)));
    REFUSE(tarn_item_at, tarn_item_at(f, TARN_SCALAR));
    REFUSE(tarn_item_at, tarn_item_at(f, rank_9));
    REFUSE(tarn_write, tarn_write(NULL, values, 12));
    REFUSE(tarn_write, tarn_write(f, NULL, 12));
    REFUSE(tarn_write, tarn_write(f, values, 13));
    REFUSE(tarn_write, tarn_write(expanded, values, 24));
    REFUSE(tarn_write, tarn_write(recorded, values, 12));
    REFUSE(tarn_write, tarn_write(tarn_scalar(1), wide, 8));
    REFUSE(tarn_data, tarn_data(NULL));
    REFUSE(tarn_format, tarn_format(NULL, text, sizeof(text)));
    REFUSE(tarn_format, tarn_format(f, NULL, 3));
    REFUSE(tarn_print, tarn_print(NULL));
    REFUSE(tarn_to, tarn_to(NULL, cpu));
    REFUSE(tarn_to, tarn_to(f, nowhere));
    REFUSE(tarn_copy, tarn_copy(NULL, f));
    REFUSE(tarn_copy, tarn_copy(f, NULL));
    REFUSE(tarn_copy, tarn_copy(f, f23));
    REFUSE(tarn_copy, tarn_copy(expanded, f23));
    REFUSE(tarn_copy, tarn_copy(recorded, f));
    REFUSE(tarn_dtype_parse, tarn_dtype_parse(NULL));
    REFUSE(tarn_dtype_parse, tarn_dtype_parse("float"));
    ACCEPT(tarn_dtype_name(BAD_DTYPE));
    ACCEPT(tarn_dtype_size(BAD_DTYPE));
    ACCEPT(tarn_dtype_block(BAD_DTYPE));
}

static void scopes(void **state)
{
    (void)state;
    tarn_scope *closed = tarn_scope_open();
    tarn_scope_close(closed);
    ACCEPT(tarn_scope_close(NULL));
    REFUSE(tarn_scope_close, tarn_scope_close(closed));
    REFUSE(tarn_scope_return, tarn_scope_return(NULL, f));
    REFUSE(tarn_scope_return, tarn_scope_return(closed, f));
    tarn_scope *open = tarn_scope_open();
    REFUSE(tarn_scope_return, tarn_scope_return(open, NULL));
    tarn_scope_close(open);
    REFUSE(tarn_keep, tarn_keep(NULL));
    ACCEPT(tarn_free(NULL));
}

/* A step that cannot be done. */
static bool refuse_step(void *ctx)
{
    (void)ctx;
    return false;
}

static void devices_and_settings(void **state)
{
    (void)state;
    tarn_device_info info;
    char text[32];
    REFUSE(tarn_device_parse, tarn_device_parse(NULL));
    REFUSE(tarn_device_parse, tarn_device_parse("nosuch"));
    REFUSE(tarn_device_parse, tarn_device_parse("cpu:1"));
    REFUSE(tarn_device_query, tarn_device_query(cpu, NULL));
    REFUSE(tarn_device_query, tarn_device_query(nowhere, &info));
    REFUSE(tarn_device_query, tarn_device_query(negative, &info));
    REFUSE(tarn_synchronize, tarn_synchronize(nowhere));
    REFUSE(tarn_synchronize, tarn_synchronize(second_cpu));
    REFUSE(tarn_native_stream, tarn_native_stream(nowhere));
    tarn_set_tf32(false);
    tarn_event *event = tarn_event_record(cpu);
    REFUSE(tarn_event_record, tarn_event_record(nowhere));
    REFUSE(tarn_event_wait, tarn_event_wait(NULL));
    REFUSE(tarn_event_elapsed, tarn_event_elapsed(event, NULL));
    REFUSE(tarn_event_elapsed, tarn_event_elapsed(NULL, event));
    tarn_event_free(event);
    tarn_event_free(NULL);
    tarn_graph *graph = tarn_graph_capture(cpu, refuse_step, NULL); /* nothing runs before the first run */
    REFUSE(tarn_graph_capture, tarn_graph_capture(cpu, NULL, NULL));
    REFUSE(tarn_graph_capture, tarn_graph_capture(nowhere, refuse_step, NULL));
    REFUSE(tarn_graph_run, tarn_graph_run(NULL));
    REFUSE(tarn_graph_run, tarn_graph_run(graph));
    tarn_graph_free(graph);
    tarn_graph_free(NULL);
    REFUSE(tarn_empty_cache, tarn_empty_cache(nowhere));
    REFUSE(tarn_empty_cache, tarn_empty_cache((tarn_device){1000, 1000}));
    REFUSE(tarn_memory_of, tarn_memory_of(nowhere));
    REFUSE(tarn_memory_table, tarn_memory_table(nowhere, text, sizeof(text)));
    ACCEPT(tarn_memory_table(cpu, NULL, 0));
    REFUSE(tarn_set_backend_path, tarn_set_backend_path(NULL));
    REFUSE(tarn_set_threads, tarn_set_threads(-1));
    REFUSE(tarn_set_threads, tarn_set_threads(257));
    REFUSE(tarn_set_allocator, tarn_set_allocator(&(tarn_allocator){0}));
    REFUSE(tarn_set_allocator, tarn_set_allocator(NULL)); /* tensors are alive */
    bool (*unchecked)(tarn_code, const char *, ...) = tarn_set_error; /* the compiler would not let a NULL format pass */
    REFUSE(tarn_set_error, unchecked(TARN_ERROR_IO, NULL));
    ACCEPT(tarn_device_name(cpu, NULL, 0));
    ACCEPT(tarn_device_name(nowhere, text, 1));
    ACCEPT(tarn_device_count(NULL) == 0 && tarn_device_count("") == 0);
    ACCEPT(tarn_backend_missing(NULL));
    ACCEPT(tarn_device_equal(nowhere, negative));
    ACCEPT(tarn_device_cpu());
    ACCEPT(tarn_device_auto());
    ACCEPT(tarn_set_fallback((tarn_fallback)9));
    ACCEPT(tarn_set_fallback(TARN_FALLBACK_WARN));
    ACCEPT(tarn_set_mixed((tarn_mixed)9));
    ACCEPT(tarn_set_mixed(TARN_MIXED_ERROR));
    ACCEPT(tarn_set_pool(true));
    ACCEPT(tarn_set_log(NULL, NULL));
    ACCEPT(tarn_set_log(tarn_log_stderr, NULL));
    ACCEPT(tarn_log_stderr(TARN_LOG_WARNING, NULL, NULL));
    ACCEPT(tarn_code_name((tarn_code)-5));
    ACCEPT(tarn_version());
    ACCEPT(tarn_threads());
    ACCEPT(tarn_stats());
    ACCEPT(tarn_stats_reset());
    ACCEPT(tarn_clear_error());
    ACCEPT(tarn_error());
    ACCEPT(tarn_error_code());
    ACCEPT(tarn_failed());
}

/* ---- gradients, modules, optimizers ------------------------------------------------------------------------------------------ */

static tarn_tensor *identity(tarn_tensor *const *inputs, int count, void *ctx)
{
    (void)count, (void)ctx;
    return inputs[0];
}

static bool no_rule(tarn_tensor *const *output_grads, tarn_tensor **input_grads, void *ctx)
{
    (void)output_grads, (void)input_grads, (void)ctx;
    return true;
}

static void gradients(void **state)
{
    (void)state;
    tarn_tensor *in[] = {f}, *missing[] = {NULL}, *leaf = tarn_requires_grad(vector(1, 2, 3), true);
    REFUSE(tarn_requires_grad, tarn_requires_grad(NULL, true));
    REFUSE(tarn_requires_grad, tarn_requires_grad(i64, true));
    REFUSE(tarn_requires_grad, tarn_requires_grad(recorded, true));
    REFUSE(tarn_requires_grad, tarn_requires_grad(tarn_scalar(1), true));
    REFUSE(tarn_needs_grad, tarn_needs_grad(NULL));
    REFUSE(tarn_backward, tarn_backward(NULL));
    REFUSE(tarn_backward, tarn_backward(f));
    REFUSE(tarn_backward, tarn_backward(recorded));
    REFUSE(tarn_backward_from_sized, tarn_backward_from(NULL, NULL, NULL));
    REFUSE(tarn_backward_from_sized, tarn_backward_from(recorded, NULL, NULL));
    REFUSE(tarn_backward_from_sized, tarn_backward_from(recorded, f23, NULL));
    REFUSE(tarn_backward_from_sized, tarn_backward_from(recorded, d, NULL));
    REFUSE(tarn_backward_from_sized, tarn_backward_from(recorded, elsewhere, NULL));
    REFUSE(tarn_backward_from_sized, tarn_backward_from(tarn_mul(leaf, tarn_zeros(TARN_SHAPE(0, 3), TARN_F32, cpu)), NULL, NULL));
    REFUSE(tarn_grad, tarn_grad(NULL));
    ACCEPT(tarn_grad(f));
    REFUSE(tarn_zero_grad, tarn_zero_grad(NULL));
    ACCEPT(tarn_zero_grad(f));
    REFUSE(tarn_no_grad_close, tarn_no_grad_close());
    ACCEPT(tarn_no_grad_open(), tarn_no_grad_close());
    ACCEPT(tarn_grad_enabled());
    ACCEPT(tarn_set_anomaly(false));
    REFUSE(tarn_checkpoint, tarn_checkpoint(NULL, NULL, in, 1));
    REFUSE(tarn_checkpoint, tarn_checkpoint(identity, NULL, NULL, 1));
    REFUSE(tarn_checkpoint, tarn_checkpoint(identity, NULL, in, 0));
    REFUSE(tarn_checkpoint, tarn_checkpoint(identity, NULL, missing, 1));
    REFUSE(tarn_function, tarn_function(NULL, 1, in, 1, no_rule, NULL, NULL));
    REFUSE(tarn_function, tarn_function(in, -1, in, 1, no_rule, NULL, NULL));
    REFUSE(tarn_function, tarn_function(in, 1, missing, 1, no_rule, NULL, NULL));
    REFUSE(tarn_function, tarn_function(in, 1, in, 1, NULL, NULL, NULL));
    REFUSE(tarn_gradcheck_sized, tarn_gradcheck(NULL, NULL, in, 1, NULL));
    REFUSE(tarn_gradcheck_sized, tarn_gradcheck(identity, NULL, NULL, 1, NULL));
    REFUSE(tarn_gradcheck_sized, tarn_gradcheck(identity, NULL, in, 0, NULL));
    REFUSE(tarn_gradcheck_sized, tarn_gradcheck(identity, NULL, missing, 1, NULL));
    REFUSE(tarn_gradcheck_sized, tarn_gradcheck(identity, NULL, &leaf, 1, NULL)); /* not f64 */
}

static tarn_tensor *pass(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module, (void)ctx;
    return x;
}

static tarn_tensor *give_nothing(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module, (void)x, (void)ctx;
    return NULL;
}

static void modules(void **state)
{
    (void)state;
    tarn_module *linear = tarn_linear(3, 2, cpu), *own = tarn_module_new("own", pass, NULL, NULL), *empty_handed = tarn_module_new("none", give_nothing, NULL, NULL);
    assert_ok();
    REFUSE(tarn_linear, tarn_linear(0, 2, cpu));
    REFUSE(tarn_linear, tarn_linear(2, -1, cpu));
    REFUSE(tarn_linear, tarn_linear(HUGE_SIZE, HUGE_SIZE, cpu));
    REFUSE(tarn_linear, tarn_linear(2, 2, nowhere));
    REFUSE(tarn_linear, tarn_linear_with_sized(0, 2, cpu, NULL, 0));
    REFUSE(tarn_linear, tarn_linear_with(2, 2, cpu, &(tarn_linear_options){.dtype = TARN_I32}));
    REFUSE(tarn_linear, tarn_linear_with(2, 2, cpu, &(tarn_linear_options){.dtype = BAD_DTYPE}));
    REFUSE(tarn_activation, tarn_activation((tarn_activation_kind)99));
    REFUSE(tarn_activation, tarn_activation((tarn_activation_kind)-1));
    REFUSE(tarn_sequential, tarn_sequential_from(NULL, 2));
    REFUSE(tarn_sequential, tarn_sequential_from((tarn_module *[]){NULL, NULL}, 2)); /* one NULL at the end is taken */
    REFUSE(tarn_sequential, tarn_sequential_from((tarn_module *[]){NULL}, -1));
    REFUSE(tarn_module_new, tarn_module_new(NULL, pass, NULL, NULL));
    REFUSE(tarn_module_new, tarn_module_new("x", NULL, NULL, NULL));
    REFUSE(tarn_module_add_parameter, tarn_module_add_parameter(NULL, "w", tarn_clone(f)));
    REFUSE(tarn_module_add_parameter, tarn_module_add_parameter(own, NULL, tarn_clone(f)));
    REFUSE(tarn_module_add_parameter, tarn_module_add_parameter(own, "w", NULL));
    REFUSE(tarn_module_add_parameter, tarn_module_add_parameter(own, "w", tarn_clone(i64)));
    REFUSE(tarn_module_add_parameter, tarn_module_add_parameter(own, "a.b", tarn_clone(f)));
    REFUSE(tarn_module_add_child, tarn_module_add_child(NULL, "c", tarn_linear(1, 1, cpu)));
    REFUSE(tarn_module_add_child, tarn_module_add_child(own, NULL, tarn_linear(1, 1, cpu)));
    REFUSE(tarn_module_add_child, tarn_module_add_child(own, "c", NULL));
    REFUSE(tarn_forward, tarn_forward(NULL, f));
    REFUSE(tarn_forward, tarn_forward(linear, NULL));
    REFUSE(tarn_linear_apply, tarn_forward(linear, vector(1, 2)));
    REFUSE(tarn_linear_apply, tarn_forward(linear, d));
    REFUSE(tarn_linear_apply, tarn_forward(linear, elsewhere));
    REFUSE(tarn_forward, tarn_forward(empty_handed, f));
    REFUSE(tarn_module_parameter_count, tarn_module_parameter_count(NULL));
    REFUSE(tarn_module_element_count, tarn_module_element_count(NULL));
    REFUSE(tarn_module_parameter, tarn_module_parameter(NULL, 0));
    REFUSE(tarn_module_parameter, tarn_module_parameter(linear, 2));
    REFUSE(tarn_module_parameter, tarn_module_parameter(linear, -1));
    REFUSE(tarn_module_parameter_name, tarn_module_parameter_name(NULL, 0));
    REFUSE(tarn_module_parameter_name, tarn_module_parameter_name(linear, 2));
    REFUSE(tarn_module_find, tarn_module_find(NULL, "weight"));
    REFUSE(tarn_module_find, tarn_module_find(linear, NULL));
    REFUSE(tarn_module_find, tarn_module_find(linear, "wieght"));
    REFUSE(tarn_module_to, tarn_module_to(NULL, cpu));
    REFUSE(tarn_module_to, tarn_module_to(linear, nowhere));
    REFUSE(tarn_module_freeze, tarn_module_freeze(NULL, true));
    ACCEPT(tarn_module_free(NULL));
    tarn_module_free(linear);
    tarn_module_free(own);
    tarn_module_free(empty_handed);
}

static void optimizers(void **state)
{
    (void)state;
    tarn_module *linear = tarn_linear(3, 2, cpu), *nothing = tarn_activation(TARN_RELU);
    assert_ok();
    tarn_sgd_options rate = {.lr = 0.1f};
    REFUSE(tarn_sgd_sized, tarn_sgd(NULL, &rate));
    REFUSE(tarn_sgd_sized, tarn_sgd(linear, NULL));
    REFUSE(tarn_sgd_sized, tarn_sgd(linear, &(tarn_sgd_options){.lr = 0}));
    REFUSE(tarn_sgd_sized, tarn_sgd(linear, &(tarn_sgd_options){.lr = -1}));
    REFUSE(tarn_sgd_sized, tarn_sgd(linear, &(tarn_sgd_options){.lr = (float)NAN}));
    REFUSE(tarn_sgd_sized, tarn_sgd(linear, &(tarn_sgd_options){.lr = 1, .momentum = -1}));
    REFUSE(tarn_sgd_sized, tarn_sgd(linear, &(tarn_sgd_options){.lr = 1, .nesterov = true}));
    REFUSE(tarn_sgd_sized, tarn_sgd(nothing, &rate));
    REFUSE(tarn_adamw_sized, tarn_adamw(NULL, &(tarn_adamw_options){.lr = 1}));
    REFUSE(tarn_adamw_sized, tarn_adamw(linear, NULL));
    REFUSE(tarn_adamw_sized, tarn_adamw(linear, &(tarn_adamw_options){.lr = 0}));
    REFUSE(tarn_adamw_sized, tarn_adamw(linear, &(tarn_adamw_options){.lr = 1, .beta1 = 1}));
    REFUSE(tarn_adamw_sized, tarn_adamw(linear, &(tarn_adamw_options){.lr = 1, .beta2 = (float)NAN}));
    REFUSE(tarn_adamw_sized, tarn_adamw(linear, &(tarn_adamw_options){.lr = 1, .epsilon = -1}));
    tarn_optimizer *sgd = tarn_sgd(linear, &rate);
    assert_ok();
    REFUSE(tarn_adamw_sized, tarn_adamw(linear, &(tarn_adamw_options){.lr = 1})); /* it has an optimizer */
    REFUSE(tarn_optimizer_step, tarn_optimizer_step(NULL));
    REFUSE(tarn_optimizer_zero_grad, tarn_optimizer_zero_grad(NULL));
    REFUSE(tarn_optimizer_set_lr, tarn_optimizer_set_lr(NULL, 1));
    REFUSE(tarn_optimizer_set_lr, tarn_optimizer_set_lr(sgd, NAN));
    REFUSE(tarn_optimizer_set_lr, tarn_optimizer_set_lr(sgd, -1));
    REFUSE(tarn_optimizer_lr, tarn_optimizer_lr(NULL));
    ACCEPT(tarn_optimizer_step(sgd)); /* no gradients: nothing to do */
    ACCEPT(tarn_optimizer_free(NULL));
    tarn_optimizer_free(sgd);
    tarn_module_free(linear);
    tarn_module_free(nothing);
}

#define with_operands(test) cmocka_unit_test_setup_teardown(test, make_operands, close_refusals)

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_operands(operations_of_one_operand),
        with_operands(operations_of_two_operands),
        with_operands(reductions),
        with_operands(movement),
        with_operands(indexing_and_sorting),
        with_operands(products_norms_and_losses),
        with_operands(operations_by_name),
        with_operands(making),
        with_operands(asking_and_reading),
        with_operands(scopes),
        with_operands(devices_and_settings),
        with_operands(gradients),
        with_operands(modules),
        with_operands(optimizers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
