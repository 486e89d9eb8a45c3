/* direct_calls.c: the measured cases as direct calls of the public functions: looking an operation up by name takes
 * longer than running it on a few elements, and a benchmark should not measure that.
 *
 * One line per operation: CALL(name, expression). Operations without a line are measured by name only. */
#include <math.h>
#include <string.h>

#include "cases/cases.h"

/* The attribute of that name, NULL if the case does not set it. */
static const tarn_attribute *attribute(const tarn__case *one, const char *name)
{
    for (int i = 0; i < one->attributes; i++)
        if (strcmp(one->attribute[i].name, name) == 0)
            return &one->attribute[i];
    return NULL;
}

/* The attribute "axes" as the public type. */
static tarn_axes axes(const tarn__case *one)
{
    const tarn_attribute *given = attribute(one, "axes");
    tarn_axes list = {given ? given->count : 0, {0}};
    for (int i = 0; i < list.count; i++)
        list.axis[i] = (int)given->list[i];
    return list;
}

/* A list attribute as a shape. */
static tarn_shape sizes(const tarn__case *one, const char *name)
{
    const tarn_attribute *given = attribute(one, name);
    tarn_shape shape = {given ? given->count : 0, {0}};
    for (int i = 0; i < shape.rank; i++)
        shape.size[i] = given->list[i];
    return shape;
}

static int64_t integer(const tarn__case *one, const char *name, int64_t default_value)
{
    const tarn_attribute *given = attribute(one, name);
    return given ? given->integer : default_value;
}

static double real(const tarn__case *one, const char *name, double default_value)
{
    const tarn_attribute *given = attribute(one, name);
    return given ? given->number : default_value;
}

/* Two values of a list attribute, or zeros: of height, then width. */
static void pair(const tarn__case *one, const char *name, int64_t *to)
{
    const tarn_attribute *given = attribute(one, name);
    for (int i = 0; i < 2; i++)
        to[i] = given ? given->list[i] : 0;
}

/* Missing attributes are 0, which the options treat as defaults. */
static tarn_tensor *convolve(const tarn__case *one, tarn_tensor *const *in)
{
    tarn_conv2d_options o = {.groups = integer(one, "groups", 1)};
    pair(one, "stride", o.stride);
    pair(one, "padding", o.padding);
    pair(one, "dilation", o.dilation);
    return tarn_conv2d(in[0], in[1], one->inputs > 2 ? in[2] : NULL, &o);
}

/* The residual is the last input. */
static tarn_tensor *relu_of_batchnorm(const tarn__case *one, tarn_tensor *const *in)
{
    int vectors = one->inputs - (integer(one, "residual", 0) != 0 ? 1 : 0);
    return tarn_batchnorm_relu(
        in[0], vectors < one->inputs ? in[vectors] : NULL, vectors > 1 ? in[1] : NULL, vectors > 2 ? in[2] : NULL,
        vectors > 3 ? in[3] : NULL, vectors > 4 ? in[4] : NULL,
        &(tarn_batchnorm_options){.training = integer(one, "training", 0) != 0, .epsilon = real(one, "epsilon", 0)});
}

static tarn_pool2d_options pooling(const tarn__case *one)
{
    tarn_pool2d_options o = {.ceil_mode = integer(one, "ceil_mode", 0),
                             .exclude_padding = integer(one, "exclude_padding", 0)};
    pair(one, "kernel", o.kernel);
    pair(one, "stride", o.stride);
    pair(one, "padding", o.padding);
    pair(one, "dilation", o.dilation);
    return o;
}

#define CALL(operation, ...) \
    static tarn_tensor *call_##operation(const tarn__case *one, tarn_tensor *const *in) \
    { \
        (void)one, (void)in; \
        return __VA_ARGS__; \
    }
#define UNARY(name, ...) CALL(name, tarn_##name(in[0]))
#define UNARY_P(name, ...)
#define BINARY(name, ...) CALL(name, tarn_##name(in[0], in[1]))
#define COMPARE(name, ...) CALL(name, tarn_##name(in[0], in[1]))
#include "base/kernel/elementwise.def"
CALL(leaky_relu, tarn_leaky_relu(in[0], real(one, "slope", 0.01)))
CALL(clamp, tarn_clamp(in[0], real(one, "low", -INFINITY), real(one, "high", INFINITY)))
CALL(where, tarn_where(in[0], in[1], in[2]))
CALL(swiglu, tarn_swiglu(in[0], in[1]))
CALL(gated, tarn_gated(in[0], in[1], (tarn_activation_kind)integer(one, "activation", TARN_SILU)))
CALL(cast, tarn_cast(in[0], (tarn_dtype)integer(one, "dtype", TARN_F32)))
CALL(sum, tarn_sum(in[0], axes(one), integer(one, "keep", 0)))
CALL(mean, tarn_mean(in[0], axes(one), integer(one, "keep", 0)))
CALL(prod, tarn_prod(in[0], axes(one), integer(one, "keep", 0)))
CALL(max, tarn_max(in[0], axes(one), integer(one, "keep", 0)))
CALL(min, tarn_min(in[0], axes(one), integer(one, "keep", 0)))
CALL(var, tarn_var(in[0], axes(one), real(one, "correction", 1), integer(one, "keep", 0)))
CALL(argmax, tarn_argmax(in[0], (int)integer(one, "axis", 0), integer(one, "keep", 0)))
CALL(cumsum, tarn_cumsum(in[0], (int)integer(one, "axis", 0)))
CALL(permute, tarn_permute(in[0], axes(one)))
CALL(expand, tarn_expand(in[0], sizes(one, "shape")))
CALL(pad, tarn_pad(in[0], sizes(one, "before"), sizes(one, "after"), real(one, "value", 0)))
CALL(shrink, tarn_shrink(in[0], sizes(one, "begin"), sizes(one, "end")))
CALL(stride, tarn_stride(in[0], sizes(one, "steps")))
CALL(flip, tarn_flip(in[0], axes(one)))
CALL(clone, tarn_clone(in[0]))
CALL(concat, tarn_concat(in, one->inputs, (int)integer(one, "axis", 0)))
CALL(embedding, tarn_embedding(in[0], in[1]))
CALL(matmul, tarn_matmul(in[0], in[1]))
CALL(linear, tarn_linear_apply(in[0], in[1], one->inputs > 2 ? in[2] : NULL))
CALL(conv2d, convolve(one, in))
CALL(max_pool2d, tarn_max_pool2d(in[0], (tarn_pool2d_options[]){pooling(one)}))
CALL(avg_pool2d, tarn_avg_pool2d(in[0], (tarn_pool2d_options[]){pooling(one)}))
CALL(softmax, tarn_softmax(in[0], (int)integer(one, "axis", -1)))
CALL(log_softmax, tarn_log_softmax(in[0], (int)integer(one, "axis", -1)))
CALL(layernorm,
     tarn_layernorm(in[0], one->inputs > 1 ? in[1] : NULL, one->inputs > 2 ? in[2] : NULL, real(one, "epsilon", 1e-5)))
CALL(rmsnorm,
     tarn_rmsnorm_offset(in[0], one->inputs > 1 ? in[1] : NULL, real(one, "offset", 0), real(one, "epsilon", 1e-5)))
CALL(residual_norm,
     tarn_residual_norm(in[0], in[1], one->inputs > 2 ? in[2] : NULL, one->inputs > 3 ? in[3] : NULL,
                        integer(one, "rms", 0) != 0, real(one, "epsilon", 1e-5), (tarn_tensor *[]){NULL}))
CALL(attention,
     tarn_attention(in[0], in[1], in[2], &(tarn_attention_options){.causal = integer(one, "causal", 0) != 0}))
CALL(attention_packed, tarn_attention_packed(in[0], integer(one, "heads", 1), integer(one, "kv_heads", 0), NULL))
CALL(rope, tarn_rope(in[0], NULL, NULL))
CALL(linear_cross_entropy, tarn_linear_cross_entropy(in[0], in[1], in[2], NULL))
CALL(batchnorm, tarn_batchnorm(in[0], one->inputs > 1 ? in[1] : NULL, one->inputs > 2 ? in[2] : NULL,
                               one->inputs > 3 ? in[3] : NULL, one->inputs > 4 ? in[4] : NULL,
                               &(tarn_batchnorm_options){.training = integer(one, "training", 0) != 0,
                                                         .epsilon = real(one, "epsilon", 0)}))
CALL(batchnorm_relu, relu_of_batchnorm(one, in))
CALL(groupnorm, tarn_groupnorm(in[0], integer(one, "groups", 1), one->inputs > 1 ? in[1] : NULL,
                               one->inputs > 2 ? in[2] : NULL, real(one, "epsilon", 1e-5)))
CALL(cross_entropy, tarn_cross_entropy(in[0], in[1], NULL))
#undef UNARY
#undef UNARY_P
#undef BINARY
#undef COMPARE
#undef CALL

static const struct {
    const char *name;
    tarn__case_fn call;
} calls[] = {
#define CALL(operation) {#operation, call_##operation},
#define UNARY(name, ...) CALL(name)
#define BINARY(name, ...) CALL(name)
#define COMPARE(name, ...) CALL(name)
#include "base/kernel/elementwise.def"
    CALL(where) CALL(swiglu) CALL(gated) CALL(cast) CALL(sum) CALL(mean) CALL(prod) CALL(max) CALL(min) CALL(var)
        CALL(argmax) CALL(cumsum) CALL(permute) CALL(expand) CALL(pad) CALL(shrink) CALL(stride) CALL(flip) CALL(clone)
            CALL(concat) CALL(embedding) CALL(matmul) CALL(linear) CALL(conv2d) CALL(max_pool2d) CALL(avg_pool2d)
                CALL(softmax) CALL(log_softmax) CALL(layernorm) CALL(rmsnorm) CALL(batchnorm) CALL(batchnorm_relu)
                    CALL(groupnorm) CALL(residual_norm) CALL(attention) CALL(attention_packed) CALL(rope)
                        CALL(cross_entropy) CALL(linear_cross_entropy)};

/* By the operation's name. */
tarn__case_fn tarn__case_direct(const tarn__case *one)
{
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (strcmp(calls[i].name, one->operation) == 0)
            return calls[i].call;
    return NULL;
}
