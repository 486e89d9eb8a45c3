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

/* ---- scratch: statistics of sets, then parts of chunks; sized for f64, whatever `real` is --------------------------
 */

static int64_t stats_bytes(const tarn__cl_channel_job *c)
{
    return (int64_t)sizeof(double) * STATS * c->set.sets;
}

/* Three values per chunk, for the moments; backward needs two. */
size_t tarn__cl_channels_scratch(const tarn__cl_channel_job *c)
{
    return (size_t)stats_bytes(c) + sizeof(double) * 3 * (size_t)(c->set.sets * c->set.chunks);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* A kernel with `*group` work-items per work-group, or as many as the driver allows. `c` NULL: a kernel over sets,
 * without lines. */
static tarn__cl_launch begin(const tarn__call *call, const char *source, const char *kernel, const char *own,
                             const tarn__cl_channel_job *c, size_t *group)
{
    char options[448];
    for (;;) {
        if (c)
            snprintf(options, sizeof(options), "-DGROUP=%zu -D%s=%zu %s %s", *group, c->is_nhwc ? "ACROSS" : "WIDTH",
                     tarn__cl_channels_width(c, *group), own, c->options);
        else
            snprintf(options, sizeof(options), "-DGROUP=%zu %s", *group, own);
        if (*group == 1)
            return tarn__cl_begin(call, source, kernel, options);
        tarn__cl_launch launch = tarn__cl_try(call, source, kernel, options, *group);
        if (launch.good)
            return launch;
        *group = tarn__cl_max_group(&launch);
    }
}

/* The passes over all elements: NCHW and NHWC. */
enum { MOMENTS, NORMALIZE, SUMS, GRAD, PASSES };
static const char *const pass_names[2][PASSES] = {{"nchw_moments", "nchw_normalize", "nchw_sums", "nchw_grad"},
                                                  {"nhwc_moments", "nhwc_normalize", "nhwc_sums", "nhwc_grad"}};
static const char *const pass_options[PASSES] = {"-DMOMENTS", "-DNORMALIZE", "-DSUMS", "-DGRAD"};

/* A launch with a chunk per work-group, or per work-item. */
typedef struct pass {
    tarn__cl_launch launch;
    size_t group;
} pass;

/* An absent vector counts as f32: it is never read, and needs no program of its own. */
static const char *type_of(const tarn__view *vector)
{
    return tarn__cl_dtype_name(vector ? vector->dtype : TARN_F32);
}

/* Backward passes `v`: its programs depend on whether statistics were given, and on dtypes of vectors. */
static pass begin_pass(const tarn__call *call, const tarn__cl_channel_job *c, int which,
                       const tarn__cl_channel_vectors *v)
{
    char own[96];
    pass p = {.group = c->group};
    snprintf(own, sizeof(own), "%s%s%s", pass_options[which], c->has_relu ? " -DRELU" : "",
             c->has_relu && c->view[RESIDUAL] ? " -DADDED" : "");
    if (v)
        snprintf(own + strlen(own), sizeof(own) - strlen(own), "%s -DT_W=%s -DT_B=%s", v->training ? "" : " -DFIXED",
                 type_of(v->weight), type_of(v->bias));
    p.launch =
        begin(call, c->is_nhwc ? "channel_nhwc" : "channel_nchw", pass_names[c->is_nhwc][which], own, c, &p.group);
    return p;
}

/* Chunks times tiles of channels, or times channels. */
static void enqueue_pass(pass *p, const tarn__cl_channel_job *c)
{
    const tarn__cl_channel_set *s = &c->set;
    const int64_t across = c->is_nhwc ? (int64_t)tarn__cl_channels_width(c, p->group) : 1;
    const int64_t tiles = c->is_nhwc ? (c->steps + across - 1) / across : s->channels;
    const size_t count = s->channels > 0 ? (size_t)(s->sets / s->channels * s->chunks * tiles) : 0;
    if (p->group > 1)
        tarn__cl_enqueue(&p->launch, 1, (size_t[]){count * p->group}, &p->group);
    else
        tarn__cl_enqueue_independent(&p->launch, 1, &count, c->group > 1 && !c->is_nhwc ? 1 : c->local);
}

static void arg_set(tarn__cl_launch *launch, const tarn__cl_channel_job *c)
{
    tarn__cl_arg_value(launch, &c->set, sizeof(c->set));
}

static void arg_stats(tarn__cl_launch *launch, const tarn__call *call)
{
    tarn__cl_arg_scratch(launch, call, 0);
}

static void arg_parts(tarn__cl_launch *launch, const tarn__call *call, const tarn__cl_channel_job *c)
{
    tarn__cl_arg_scratch(launch, call, stats_bytes(c));
}

/* What backward derives scale and bias from. */
static void arg_statistics(tarn__cl_launch *launch, const tarn__cl_channel_vectors *v)
{
    tarn__cl_arg_vector(launch, v->weight);
    tarn__cl_arg_vector(launch, v->bias);
    tarn__cl_arg_view(launch, v->mean);
    tarn__cl_arg_view(launch, v->rstd);
}

/* Kernels over sets: a work-item per set or, where each has `parts` to add up and the device has local memory, a
 * work-group.
 */
static pass begin_finalize(const tarn__call *call, const tarn__cl_channel_vectors *v, const char *kernel,
                           const char *what, int64_t parts)
{
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    char own[192];
    pass p = {.group = parts > 0 && device->has_local_memory ? tarn__cl_group_size(device, parts > 128 ? 256 : 64) : 1};
    snprintf(own, sizeof(own),
             "%s -DLANES=1 -DT_X=f32 -DT_W=%s -DT_B=%s -DT_GM=%s -DT_GV=%s -DT_RM=%s -DT_RV=%s -DT_GW=%s -DT_GB=%s",
             what, type_of(v->weight), type_of(v->bias), type_of(v->given_mean), type_of(v->given_variance),
             type_of(v->running_mean), type_of(v->running_variance), type_of(v->gweight), type_of(v->gbias));
    p.launch = begin(call, "channel_finalize", kernel, own, NULL, &p.group);
    return p;
}

static void enqueue_finalize(pass *p, int64_t count)
{
    tarn__cl_enqueue(&p->launch, 1, (size_t[]){(size_t)count * p->group}, p->group > 1 ? &p->group : NULL);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* With given statistics there is nothing to add up: one work-item per set. */
static pass begin_moments(const tarn__call *call, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    return begin_finalize(call, v, "finalize_moments", "-DFINALIZE_MOMENTS",
                          v->training ? c->set.members * c->set.chunks : 1);
}

/* Statistics of sets from the moments of their chunks; updates running statistics in place. */
static void finalize_moments(const tarn__call *call, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_moments(call, c, v);
    tarn__cl_launch *launch = &p.launch;
    arg_set(launch, c);
    arg_parts(launch, call, c);
    arg_stats(launch, call);
    tarn__cl_arg_vector(launch, v->weight);
    tarn__cl_arg_vector(launch, v->bias);
    tarn__cl_arg_vector(launch, v->given_mean);
    tarn__cl_arg_vector(launch, v->given_variance);
    tarn__cl_arg_view(launch, v->mean);
    tarn__cl_arg_view(launch, v->rstd);
    tarn__cl_arg_vector(launch, v->running_mean);
    tarn__cl_arg_vector(launch, v->running_variance);
    tarn__cl_arg_real(launch, v->epsilon);
    tarn__cl_arg_real(launch, v->momentum);
    tarn__cl_arg_real(launch, (double)c->values);
    tarn__cl_arg_int(launch, v->training);
    enqueue_finalize(&p, c->set.sets / c->set.members);
}

/* True when all programs compile: a call that is declined half way would update running statistics twice, here and on
 * the CPU. */
static bool is_ready(const tarn__call *call, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    if (!v->running_mean && !v->running_variance)
        return true;
    pass moments = begin_pass(call, c, MOMENTS, NULL);
    bool is_good = tarn__cl_cancel(&moments.launch);
    pass finalize = begin_moments(call, c, v);
    is_good = tarn__cl_cancel(&finalize.launch) && is_good;
    pass normalize = begin_pass(call, c, NORMALIZE, NULL);
    return tarn__cl_cancel(&normalize.launch) && is_good;
}

/* Three launches: moments, finalize, normalize; two with given statistics. */
void tarn__cl_channels_forward(const tarn__call *call, tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    tarn__cl_channels_write_options(c);
    if (!is_ready(call, c, v))
        return;
    if (v->training) {
        pass p = begin_pass(call, c, MOMENTS, NULL);
        arg_set(&p.launch, c);
        tarn__cl_arg_view(&p.launch, c->view[X]);
        arg_parts(&p.launch, call, c);
        enqueue_pass(&p, c);
    }
    finalize_moments(call, c, v);
    pass p = begin_pass(call, c, NORMALIZE, NULL);
    arg_set(&p.launch, c);
    tarn__cl_arg_view(&p.launch, c->view[X]);
    tarn__cl_arg_view(&p.launch, c->view[Y]);
    tarn__cl_arg_view(&p.launch, c->view[RESIDUAL]);
    arg_stats(&p.launch, call);
    enqueue_pass(&p, c);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The first arguments of both passes of backward. */
static void arg_operands(tarn__cl_launch *launch, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    arg_set(launch, c);
    for (int k = 0; k < OPERANDS; k++)
        tarn__cl_arg_view(launch, c->view[k]);
    arg_statistics(launch, v);
}

/* First pass of backward. Reads x and gy. */
static void sum_chunks(const tarn__call *call, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_pass(call, c, SUMS, v);
    arg_operands(&p.launch, c, v);
    arg_parts(&p.launch, call, c);
    tarn__cl_arg_real(&p.launch, v->min_output);
    enqueue_pass(&p, c);
}

/* Sums of sets, and for batchnorm the gradients of weight and bias. */
static void finalize_sums(const tarn__call *call, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_finalize(call, v, "finalize_sums", "-DFINALIZE_SUMS", c->set.chunks);
    tarn__cl_launch *launch = &p.launch;
    arg_set(launch, c);
    arg_parts(launch, call, c);
    arg_stats(launch, call);
    arg_statistics(launch, v);
    tarn__cl_arg_vector(launch, v->gweight);
    tarn__cl_arg_vector(launch, v->gbias);
    tarn__cl_arg_real(launch, (double)c->values);
    enqueue_finalize(&p, c->set.sets);
}

/* groupnorm: gradients of weight and bias over samples. */
static void add_samples(const tarn__call *call, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_finalize(call, v, "add_samples", "-DADD_SAMPLES", 0);
    arg_set(&p.launch, c);
    arg_stats(&p.launch, call);
    tarn__cl_arg_vector(&p.launch, v->gweight);
    tarn__cl_arg_vector(&p.launch, v->gbias);
    enqueue_finalize(&p, c->set.channels);
}

/* groupnorm: averages over the channels that share a mean. */
static void average_sums(const tarn__call *call, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_finalize(call, v, "average_sums", "-DAVERAGE", 0);
    arg_set(&p.launch, c);
    arg_stats(&p.launch, call);
    arg_statistics(&p.launch, v);
    tarn__cl_arg_real(&p.launch, (double)c->values);
    enqueue_finalize(&p, c->set.sets / c->set.members);
}

/* Second pass of backward. Reads x and gy, writes gx. */
static void run_grad(const tarn__call *call, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_pass(call, c, GRAD, v);
    arg_operands(&p.launch, c, v);
    arg_stats(&p.launch, call);
    tarn__cl_arg_real(&p.launch, v->min_output);
    enqueue_pass(&p, c);
}

/* The gradient after relu has been written: it is read instead of gy and relu's output. */
static tarn__cl_channel_job without_relu(const tarn__cl_channel_job *c)
{
    tarn__cl_channel_job rest = *c;
    tarn__cl_channel_set *s = &rest.set;
    rest.has_relu = false;
    rest.view[GY] = c->view[GRES];
    rest.view[RESIDUAL] = rest.view[GRES] = NULL;
    s->along[GY] = s->along[GRES];
    s->channel_step[GY] = s->channel_step[GRES];
    s->sample_step[GY] = s->sample_step[GRES];
    memcpy(s->outer.stride[GY], s->outer.stride[GRES], sizeof(s->outer.stride[GY]));
    return rest;
}

/* Sums first, which also writes the gradient after relu and, with given statistics, gx. Otherwise gx needs the sums: a
 * second pass over x and gy. */
void tarn__cl_channels_backward(const tarn__call *call, tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    const bool has_vectors = v->gweight || v->gbias, has_sums = v->training || has_vectors;
    const bool has_averages = c->set.members > 1 || c->set.sets != c->set.channels;
    tarn__cl_channels_write_options(c);
    tarn__cl_channel_job last = *c;
    if (has_sums) {
        sum_chunks(call, c, v);
        finalize_sums(call, c, v);
    }
    if (has_vectors && c->set.sets != c->set.channels)
        add_samples(call, c, v);
    if (has_sums && c->view[GRES]) {
        if (c->view[GRES]->dtype == c->view[GY]->dtype)
            last = without_relu(c);
        last.view[GRES] = NULL;
    }
    if (has_sums && !v->training)
        return;
    if (c->view[Y] && has_averages)
        average_sums(call, c, v);
    if (last.view[Y] || last.view[GRES])
        run_grad(call, &last, v);
}
