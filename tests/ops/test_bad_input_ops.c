/* test_bad_input_ops.c: invalid arguments to the other operations, and to calls by name. */
#include "support/operands.h"

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
    tarn_tensor *pair[] = {f, f}, *mixed[] = {f, d}, *unlike[] = {f, f23}, *missing[] = {f, NULL},
                *far[] = {f, elsewhere}, *none[] = {scalar, scalar};
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
    tarn_tensor *beyond = tarn_from_i64((const int64_t[]){0, 3}, TARN_SHAPE(2), cpu),
                *below = tarn_from_i64((const int64_t[]){-4}, TARN_SHAPE(1), cpu);
    tarn_tensor *index23 = tarn_zeros(TARN_SHAPE(2, 3), TARN_I64, cpu),
                *far = tarn_zeros(TARN_SHAPE(3), TARN_I64, mirror), *values, *indices;
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
    tarn_tensor *f33 = tarn_ones(TARN_SHAPE(3, 3), TARN_F32, cpu), *f2 = vector(1, 2),
                *classes = tarn_from_i64((const int64_t[]){0, 5}, TARN_SHAPE(2), cpu);
    tarn_tensor *target = tarn_zeros(TARN_SHAPE(2), TARN_I64, cpu);
    REFUSE(tarn_matmul, tarn_matmul(NULL, f33));
    REFUSE(tarn_matmul, tarn_matmul(f33, NULL));
    REFUSE(tarn_matmul, tarn_matmul(f23, f23));
    REFUSE(tarn_matmul, tarn_matmul(scalar, f33));
    REFUSE(tarn_matmul, tarn_matmul(f33, d));
    REFUSE(tarn_matmul, tarn_matmul(f33, elsewhere));
    REFUSE(tarn_matmul,
           tarn_matmul(tarn_ones(TARN_SHAPE(2, 3, 3), TARN_F32, cpu), tarn_ones(TARN_SHAPE(4, 3, 3), TARN_F32, cpu)));
    REFUSE(tarn_swiglu, tarn_swiglu(NULL, f33));
    REFUSE(tarn_swiglu, tarn_swiglu(f33, NULL));
    REFUSE(tarn_swiglu, tarn_swiglu(f33, f23));
    REFUSE(tarn_swiglu, tarn_swiglu(f33, f));
    REFUSE(tarn_swiglu, tarn_swiglu(f33, tarn_scalar(2)));
    REFUSE(tarn_swiglu, tarn_swiglu(f, d));
    REFUSE(tarn_swiglu, tarn_swiglu(f, elsewhere));
    REFUSE(tarn_swiglu, tarn_swiglu(target, target));
    REFUSE(tarn_gated, tarn_gated(f33, NULL, TARN_GELU));
    REFUSE(tarn_gated, tarn_gated(f33, f23, TARN_GELU));
    REFUSE(tarn_gated, tarn_gated(f33, f33, TARN_TANH));
    REFUSE(tarn_gated, tarn_gated(f33, f33, (tarn_activation_kind)-1));
    REFUSE(tarn_mlp_with, tarn_mlp_with(f, f33, f33, f, f, TARN_SOFTPLUS));
    REFUSE(tarn_mlp_with, tarn_mlp_with(f, f33, NULL, f, f, TARN_SILU));
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
    REFUSE(tarn_rmsnorm_offset, tarn_rmsnorm_offset(f, f2, 1, 1e-5));
    REFUSE(tarn_rmsnorm_offset, tarn_rmsnorm_offset(f, f, INFINITY, 1e-5));
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
    REFUSE(tarn_cross_entropy_sized,
           tarn_cross_entropy(f23, target, &(tarn_cross_entropy_options){.label_smoothing = -1}));
    REFUSE(tarn_cross_entropy_sized,
           tarn_cross_entropy(f23, target, &(tarn_cross_entropy_options){.label_smoothing = NAN}));
    REFUSE(tarn_cross_entropy_sized,
           tarn_cross_entropy(f23, target, &(tarn_cross_entropy_options){.reduction = (tarn_reduction)9}));
    static const struct {
        const char *name;
        tarn_tensor *(*call)(tarn_tensor *x, tarn_tensor *target);
    } losses[] = {{"tarn_mse_loss", tarn_mse_loss},
                  {"tarn_l1_loss", tarn_l1_loss},
                  {"tarn_bce_with_logits_loss", tarn_bce_with_logits_loss}};
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
    REFUSE(tarn_apply_host_backward, tarn_apply_host_backward(NULL, cpu, arrays, 2, NULL, 0, arrays, 1, 0, results));
    REFUSE(tarn_apply_host_backward, tarn_apply_host_backward("add", cpu, NULL, 2, NULL, 0, arrays, 1, 0, results));
    REFUSE(tarn_apply_host_backward, tarn_apply_host_backward("add", cpu, arrays, 2, NULL, 0, NULL, 1, 0, results));
    REFUSE(tarn_apply_host_backward, tarn_apply_host_backward("add", cpu, arrays, 2, NULL, 0, arrays, 1, 0, NULL));
    REFUSE(tarn_apply_host_backward,
           tarn_apply_host_backward("add", nowhere, arrays, 2, NULL, 0, arrays, 1, 0, results));
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
    tarn_kernel_variant variant;
    ACCEPT(tarn_kernel_count());
    REFUSE(tarn_kernel_name, tarn_kernel_name(-1));
    REFUSE(tarn_kernel_name, tarn_kernel_name(tarn_kernel_count()));
    REFUSE(tarn_kernel_variant_at, tarn_kernel_variant_at(-1, "cpu", 0, &variant));
    REFUSE(tarn_kernel_variant_at, tarn_kernel_variant_at(tarn_kernel_count(), "cpu", 0, &variant));
    REFUSE(tarn_kernel_variant_at, tarn_kernel_variant_at(0, "cpu", 0, NULL));
    ACCEPT(tarn_kernel_variant_at(0, "cpu", -1, &variant));
    ACCEPT(tarn_kernel_variant_at(0, "nosuch", 0, &variant));
    ACCEPT(tarn_kernel_variant_at(0, NULL, 0, &variant));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_operands(movement),
        with_operands(indexing_and_sorting),
        with_operands(products_norms_and_losses),
        with_operands(operations_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
