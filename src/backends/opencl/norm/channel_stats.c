/* channel_stats.c: the launches of the channel engine: passes over elements (channel_nchw.cl, channel_nhwc.cl) and
 * reductions of their chunks (channel_finalize.cl). See channel_stats.h. */
#include "backends/opencl/norm/channel_stats.h"

#include <stdio.h>
#include <string.h>

#define STATS 3 /* per set: mean, scale, bias; backward uses two */

enum {
    X = TARN__CL_X,
    Y = TARN__CL_Y,
    GY = TARN__CL_GRAD_Y,
    RESIDUAL = TARN__CL_RESIDUAL,
    GRES = TARN__CL_GRAD_RESIDUAL,
    OPERANDS = TARN__CL_CHANNEL_OPERANDS
};

typedef tarn__cl_channel_job job;
typedef tarn__cl_channel_operands operands;

/* ---- scratch: statistics of sets, then parts of chunks; sized for f64, whatever `real` is --------------------------
 */

static int64_t stats_bytes(const job *c)
{
    return (int64_t)sizeof(double) * STATS * c->set.sets;
}

/* For either direction: three values per chunk, for the moments; backward needs two. */
static size_t scratch_bytes(const job *c)
{
    return (size_t)stats_bytes(c) + sizeof(double) * 3 * (size_t)(c->set.sets * c->set.chunks);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Finds a kernel with `group` work-items per work-group, or as many as the driver allows. `c` NULL: a kernel over sets,
 * without lines. False: it does not compile. */
static bool find(const tarn__call *call, const char *source, const char *kernel, const char *own, const job *c,
                 const char *shared, size_t group, tarn__cl_channel_pass *pass)
{
    char options[448];
    for (;;) {
        if (c)
            snprintf(options, sizeof(options), "-DGROUP=%zu -D%s=%zu %s %s", group, c->is_nhwc ? "ACROSS" : "WIDTH",
                     tarn__cl_channels_width(c, group), own, shared);
        else
            snprintf(options, sizeof(options), "-DGROUP=%zu %s", group, own);
        *pass = (tarn__cl_channel_pass){tarn__cl_find(call, source, kernel, options), group};
        if (group == 1 || tarn__cl_allows(pass->kernel, group))
            return tarn__cl_allows(pass->kernel, 1);
        group = tarn__cl_group_of(pass->kernel);
    }
}

/* An absent vector counts as f32: it is never read, and needs no program of its own. */
static const char *type_of(const tarn__view *vector)
{
    return tarn__cl_dtype_name(vector ? vector->dtype : TARN_F32);
}

/* A pass over all elements. `name` is the kernel's without the layout; `backward`: its program also depends on whether
 * statistics were given, and on dtypes of vectors. */
static bool find_pass(const tarn__call *call, job *c, const operands *o, const tarn__cl_channel_options *options,
                      int which, const char *name, const char *option, bool backward)
{
    char own[96], kernel[24];
    snprintf(kernel, sizeof(kernel), "%s_%s", c->is_nhwc ? "nhwc" : "nchw", name);
    snprintf(own, sizeof(own), "%s%s%s", option, o->has_relu ? " -DRELU" : "",
             o->has_relu && o->view[RESIDUAL] ? " -DADDED" : "");
    if (backward)
        snprintf(own + strlen(own), sizeof(own) - strlen(own), "%s -DT_W=%s -DT_B=%s", o->training ? "" : " -DFIXED",
                 type_of(o->weight), type_of(o->bias));
    return find(call, c->is_nhwc ? "channel_nhwc" : "channel_nchw", kernel, own, c, options->text, c->group,
                &c->pass[which]);
}

/* Kernels over sets: a work-item per set or, where each has `parts` to add up and the device has local memory, a
 * work-group.
 */
static bool find_finalize(const tarn__call *call, job *c, const operands *o, int which, const char *kernel,
                          const char *option, int64_t parts)
{
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    const size_t group =
        parts > 0 && device->has_local_memory ? tarn__cl_group_size(device, parts > 128 ? 256 : 64) : 1;
    char own[192];
    snprintf(own, sizeof(own),
             "%s -DLANES=1 -DT_X=f32 -DT_W=%s -DT_B=%s -DT_GM=%s -DT_GV=%s -DT_RM=%s -DT_RV=%s -DT_GW=%s -DT_GB=%s",
             option, type_of(o->weight), type_of(o->bias), type_of(o->given_mean), type_of(o->given_variance),
             type_of(o->running_mean), type_of(o->running_variance), type_of(o->gweight), type_of(o->gbias));
    return find(call, "channel_finalize", kernel, own, NULL, NULL, group, &c->pass[which]);
}

/* Describes a call into its plan. NULL: FAILED. */
static job *describe(const tarn__call *call, const operands *o, tarn__plan *plan)
{
    job *c = tarn__cl_reserve_job(call, plan, sizeof(*c));
    if (!c)
        return NULL;
    tarn__cl_channels_describe(c, tarn__cl_device_at(call->device), o);
    plan->scratch_bytes = scratch_bytes(c);
    return c;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* Chunks times tiles of channels, or times channels. */
static void enqueue_pass(tarn__cl_launch *launch, const job *c, int which)
{
    const tarn__cl_channel_set *s = &c->set;
    const size_t group = c->pass[which].group;
    const int64_t across = c->is_nhwc ? (int64_t)tarn__cl_channels_width(c, group) : 1;
    const int64_t tiles = c->is_nhwc ? (c->steps + across - 1) / across : s->channels;
    const size_t count = s->channels > 0 ? (size_t)(s->sets / s->channels * s->chunks * tiles) : 0;
    if (group > 1)
        tarn__cl_enqueue(launch, 1, (size_t[]){count * group}, &group);
    else
        tarn__cl_enqueue_independent(launch, 1, &count, c->group > 1 && !c->is_nhwc ? 1 : c->local);
}

static void enqueue_finalize(tarn__cl_launch *launch, const job *c, int which, int64_t count)
{
    const size_t group = c->pass[which].group;
    tarn__cl_enqueue(launch, 1, (size_t[]){(size_t)count * group}, group > 1 ? &group : NULL);
}

static void arg_set(tarn__cl_launch *launch, const tarn__cl_channel_set *set)
{
    tarn__cl_arg_value(launch, set, sizeof(*set));
}

static void arg_stats(tarn__cl_launch *launch, const tarn__call *call)
{
    tarn__cl_arg_scratch(launch, call, 0);
}

static void arg_parts(tarn__cl_launch *launch, const tarn__call *call, const job *c)
{
    tarn__cl_arg_scratch(launch, call, stats_bytes(c));
}

/* What backward derives scale and bias from. */
static void arg_statistics(tarn__cl_launch *launch, const operands *o)
{
    tarn__cl_arg_vector(launch, o->weight);
    tarn__cl_arg_vector(launch, o->bias);
    tarn__cl_arg_view(launch, o->mean);
    tarn__cl_arg_view(launch, o->rstd);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* groupnorm has no statistics of an empty tensor; batchnorm updates the running ones. */
static bool is_empty(const job *c, const operands *o)
{
    return o->per_sample && c->values == 0;
}

/* Three launches: moments, finalize, normalize; two with given statistics, which leave nothing to add up. All are found
 * here: a call that is declined half way would update running statistics twice, here and on the CPU. */
tarn__plan_status tarn__cl_channels_prepare_forward(const tarn__call *call, const operands *o, tarn__plan *plan)
{
    job *c = describe(call, o, plan);
    tarn__cl_channel_options options;
    bool found = true;
    if (!c)
        return TARN__PLAN_FAILED;
    if (call->is_meta || is_empty(c, o))
        return TARN__PLAN_READY;
    tarn__cl_channels_write_options(c, o, &options);
    if (o->training)
        found = find_pass(call, c, o, &options, TARN__CL_MOMENTS, "moments", "-DMOMENTS", false);
    found = find_finalize(call, c, o, TARN__CL_FINALIZE_MOMENTS, "finalize_moments", "-DFINALIZE_MOMENTS",
                          o->training ? c->set.members * c->set.chunks : 1) &&
            found;
    found = find_pass(call, c, o, &options, TARN__CL_NORMALIZE, "normalize", "-DNORMALIZE", false) && found;
    return tarn__cl_ready(call, found);
}

static void run_moments(const tarn__call *call, const job *c, const operands *o)
{
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, c->pass[TARN__CL_MOMENTS].kernel);
    arg_set(&launch, &c->set);
    tarn__cl_arg_view(&launch, o->view[X]);
    arg_parts(&launch, call, c);
    enqueue_pass(&launch, c, TARN__CL_MOMENTS);
}

/* Statistics of sets from the moments of their chunks; updates running statistics in place. */
static void finalize_moments(const tarn__call *call, const job *c, const operands *o)
{
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, c->pass[TARN__CL_FINALIZE_MOMENTS].kernel);
    arg_set(&launch, &c->set);
    arg_parts(&launch, call, c);
    arg_stats(&launch, call);
    tarn__cl_arg_vector(&launch, o->weight);
    tarn__cl_arg_vector(&launch, o->bias);
    tarn__cl_arg_vector(&launch, o->given_mean);
    tarn__cl_arg_vector(&launch, o->given_variance);
    tarn__cl_arg_view(&launch, o->mean);
    tarn__cl_arg_view(&launch, o->rstd);
    tarn__cl_arg_vector(&launch, o->running_mean);
    tarn__cl_arg_vector(&launch, o->running_variance);
    tarn__cl_arg_real(&launch, o->epsilon);
    tarn__cl_arg_real(&launch, o->momentum);
    tarn__cl_arg_real(&launch, (double)c->values);
    tarn__cl_arg_int(&launch, o->training);
    enqueue_finalize(&launch, c, TARN__CL_FINALIZE_MOMENTS, c->set.sets / c->set.members);
}

static void normalize(const tarn__call *call, const job *c, const operands *o)
{
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, c->pass[TARN__CL_NORMALIZE].kernel);
    arg_set(&launch, &c->set);
    tarn__cl_arg_view(&launch, o->view[X]);
    tarn__cl_arg_view(&launch, o->view[Y]);
    tarn__cl_arg_view(&launch, o->view[RESIDUAL]);
    arg_stats(&launch, call);
    enqueue_pass(&launch, c, TARN__CL_NORMALIZE);
}

void tarn__cl_channels_forward(const tarn__call *call, const operands *o)
{
    const job *c = tarn__plan_job(call->plan);
    if (is_empty(c, o))
        return;
    if (o->training)
        run_moments(call, c, o);
    finalize_moments(call, c, o);
    normalize(call, c, o);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The second pass, after one that has written the gradient after relu: where its dtype is gy's it is read instead of gy
 * and relu's output. */
static bool reads_residual_grad(const operands *o)
{
    return o->view[GRES] && o->view[GRES]->dtype == o->view[GY]->dtype;
}

/* Operands of the second pass, after sums. */
static operands after_sums(const operands *o)
{
    operands rest = *o;
    if (reads_residual_grad(o)) {
        rest.has_relu = false;
        rest.view[GY] = o->view[GRES];
        rest.view[RESIDUAL] = NULL;
    }
    rest.view[GRES] = NULL;
    return rest;
}

/* The set whose operand gy is the gradient after relu. */
static tarn__cl_channel_set without_relu(const tarn__cl_channel_set *set)
{
    tarn__cl_channel_set s = *set;
    s.along[GY] = s.along[GRES];
    s.channel_step[GY] = s.channel_step[GRES];
    s.sample_step[GY] = s.sample_step[GRES];
    memcpy(s.outer.stride[GY], s.outer.stride[GRES], sizeof(s.outer.stride[GY]));
    return s;
}

/* Sums first, which also writes the gradient after relu and, with given statistics, gx. Otherwise gx needs the sums: a
 * second pass over x and gy. */
tarn__plan_status tarn__cl_channels_prepare_backward(const tarn__call *call, const operands *o, tarn__plan *plan)
{
    job *c = describe(call, o, plan);
    tarn__cl_channel_options options;
    const bool has_vectors = o->gweight || o->gbias, has_sums = o->training || has_vectors;
    bool found = true;
    if (!c)
        return TARN__PLAN_FAILED;
    if (call->is_meta)
        return TARN__PLAN_READY;
    const bool has_samples = c->set.sets != c->set.channels, has_averages = c->set.members > 1 || has_samples;
    tarn__cl_channels_write_options(c, o, &options);
    if (has_sums) {
        found = find_pass(call, c, o, &options, TARN__CL_SUMS, "sums", "-DSUMS", true);
        found = find_finalize(call, c, o, TARN__CL_FINALIZE_SUMS, "finalize_sums", "-DFINALIZE_SUMS", c->set.chunks) &&
                found;
    }
    if (has_vectors && has_samples)
        found = find_finalize(call, c, o, TARN__CL_ADD_SAMPLES, "add_samples", "-DADD_SAMPLES", 0) && found;
    if (has_sums && !o->training)
        return tarn__cl_ready(call, found);
    if (o->view[Y] && has_averages)
        found = find_finalize(call, c, o, TARN__CL_AVERAGE, "average_sums", "-DAVERAGE", 0) && found;
    const operands last = has_sums ? after_sums(o) : *o;
    if (last.view[Y] || last.view[GRES])
        found = find_pass(call, c, &last, &options, TARN__CL_GRAD, "grad", "-DGRAD", true) && found;
    return tarn__cl_ready(call, found);
}

/* The first arguments of both passes of backward. */
static void arg_operands(tarn__cl_launch *launch, const tarn__cl_channel_set *set, const operands *o)
{
    arg_set(launch, set);
    for (int k = 0; k < OPERANDS; k++)
        tarn__cl_arg_view(launch, o->view[k]);
    arg_statistics(launch, o);
}

/* First pass of backward. Reads x and gy. */
static void sum_chunks(const tarn__call *call, const job *c, const operands *o)
{
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, c->pass[TARN__CL_SUMS].kernel);
    arg_operands(&launch, &c->set, o);
    arg_parts(&launch, call, c);
    tarn__cl_arg_real(&launch, o->min_output);
    enqueue_pass(&launch, c, TARN__CL_SUMS);
}

/* Sums of sets, and for batchnorm the gradients of weight and bias. */
static void finalize_sums(const tarn__call *call, const job *c, const operands *o)
{
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, c->pass[TARN__CL_FINALIZE_SUMS].kernel);
    arg_set(&launch, &c->set);
    arg_parts(&launch, call, c);
    arg_stats(&launch, call);
    arg_statistics(&launch, o);
    tarn__cl_arg_vector(&launch, o->gweight);
    tarn__cl_arg_vector(&launch, o->gbias);
    tarn__cl_arg_real(&launch, (double)c->values);
    enqueue_finalize(&launch, c, TARN__CL_FINALIZE_SUMS, c->set.sets);
}

/* groupnorm: gradients of weight and bias over samples. */
static void add_samples(const tarn__call *call, const job *c, const operands *o)
{
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, c->pass[TARN__CL_ADD_SAMPLES].kernel);
    arg_set(&launch, &c->set);
    arg_stats(&launch, call);
    tarn__cl_arg_vector(&launch, o->gweight);
    tarn__cl_arg_vector(&launch, o->gbias);
    enqueue_finalize(&launch, c, TARN__CL_ADD_SAMPLES, c->set.channels);
}

/* groupnorm: averages over the channels that share a mean. */
static void average_sums(const tarn__call *call, const job *c, const operands *o)
{
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, c->pass[TARN__CL_AVERAGE].kernel);
    arg_set(&launch, &c->set);
    arg_stats(&launch, call);
    arg_statistics(&launch, o);
    tarn__cl_arg_real(&launch, (double)c->values);
    enqueue_finalize(&launch, c, TARN__CL_AVERAGE, c->set.sets / c->set.members);
}

/* Second pass of backward. Reads x and gy, writes gx. */
static void run_grad(const tarn__call *call, const job *c, const operands *o)
{
    const bool has_sums = c->pass[TARN__CL_SUMS].kernel != NULL;
    const operands last = has_sums ? after_sums(o) : *o;
    const tarn__cl_channel_set set = has_sums && reads_residual_grad(o) ? without_relu(&c->set) : c->set;
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, c->pass[TARN__CL_GRAD].kernel);
    arg_operands(&launch, &set, &last);
    arg_stats(&launch, call);
    tarn__cl_arg_real(&launch, last.min_output);
    enqueue_pass(&launch, c, TARN__CL_GRAD);
}

/* The launches that were found, in order. */
void tarn__cl_channels_backward(const tarn__call *call, const operands *o)
{
    const job *c = tarn__plan_job(call->plan);
    if (c->pass[TARN__CL_SUMS].kernel) {
        sum_chunks(call, c, o);
        finalize_sums(call, c, o);
    }
    if (c->pass[TARN__CL_ADD_SAMPLES].kernel)
        add_samples(call, c, o);
    if (c->pass[TARN__CL_AVERAGE].kernel)
        average_sums(call, c, o);
    if (c->pass[TARN__CL_GRAD].kernel)
        run_grad(call, c, o);
}
