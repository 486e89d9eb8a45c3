/* channel_stats.c: the engine of channel_stats.h: the launches of channel_nchw.cl, channel_nhwc.cl and
 * channel_finalize.cl. */
#include "backends/opencl/norm/channel_stats.h"

#include <stdio.h>
#include <string.h>

#define NUMBERS 3 /* of a set: mean, scale, bias; backward has two */

enum {
    X = TARN__CL_X,
    TO = TARN__CL_Y,
    UP = TARN__CL_GRAD_Y,
    BESIDE = TARN__CL_RESIDUAL,
    PASSED = TARN__CL_GRAD_RESIDUAL,
    OPERANDS = TARN__CL_CHANNEL_OPERANDS
};

/* ---- scratch: the sets' numbers, then the chunks' parts. Room for f64, whatever `real` is ------------------------ */

static int64_t numbers_bytes(const tarn__cl_channel_job *c)
{
    return (int64_t)sizeof(double) * NUMBERS * c->set.sets;
}

size_t tarn__cl_channels_scratch(const tarn__cl_channel_job *c)
{
    return (size_t)numbers_bytes(c) + sizeof(double) * 3 * (size_t)(c->set.sets * c->set.chunks);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* A kernel with groups of `*group` work-items, or as many as it may have. `c` NULL: no stretch is shared. */
static tarn__cl_launch begin(const tarn__call *call, const char *source, const char *kernel, const char *own,
                             const tarn__cl_channel_job *c, size_t *group)
{
    char options[448];
    for (;;) {
        if (c)
            snprintf(options, sizeof(options), "-DGROUP=%zu -D%s=%zu %s %s", *group, c->by_columns ? "ACROSS" : "WIDTH",
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

/* The passes over all elements, by lines and by columns. */
enum { MOMENTS, NORMALISE, SUMS, SLOPES, PASSES };
static const char *const pass_names[2][PASSES] = {
    {"channel_moments", "channel_normalise", "channel_sums", "channel_slopes"},
    {"column_moments", "column_normalise", "column_sums", "column_slopes"}};
static const char *const pass_options[PASSES] = {"-DMOMENTS", "-DNORMALISE", "-DSUMS", "-DSLOPES"};

/* A chunk for each group, or for each work-item. */
typedef struct pass {
    tarn__cl_launch launch;
    size_t group;
} pass;

static const char *type_of(const tarn__view *vector)
{
    return tarn__cl_dtype_name(vector ? vector->dtype : TARN_F32);
}

/* `v` is given by backward, whose programs know whether statistics were given and the dtypes of vectors. */
static pass begin_pass(const tarn__call *call, const tarn__cl_channel_job *c, int which,
                       const tarn__cl_channel_vectors *v)
{
    char own[96];
    pass p = {.group = c->group};
    snprintf(own, sizeof(own), "%s%s%s", pass_options[which], c->has_relu ? " -DRELU" : "",
             c->has_relu && c->view[BESIDE] ? " -DADDED" : "");
    if (v)
        snprintf(own + strlen(own), sizeof(own) - strlen(own), "%s -DT_W=%s -DT_B=%s", v->training ? "" : " -DFIXED",
                 type_of(v->weight), type_of(v->bias));
    p.launch = begin(call, c->by_columns ? "channel_nhwc" : "channel_nchw", pass_names[c->by_columns][which], own, c,
                     &p.group);
    return p;
}

static void go_pass(pass *p, const tarn__cl_channel_job *c)
{
    const tarn__cl_channel_set *s = &c->set;
    const int64_t across = c->by_columns ? (int64_t)tarn__cl_channels_width(c, p->group) : 1;
    const int64_t tiles = c->by_columns ? (c->steps + across - 1) / across : s->channels;
    const size_t count = s->channels > 0 ? (size_t)(s->sets / s->channels * s->chunks * tiles) : 0;
    if (p->group > 1)
        tarn__cl_enqueue(&p->launch, 1, (size_t[]){count * p->group}, &p->group);
    else
        tarn__cl_enqueue_independent(&p->launch, 1, &count, c->group > 1 && !c->by_columns ? 1 : c->local);
}

static void put_set(tarn__cl_launch *launch, const tarn__cl_channel_job *c)
{
    tarn__cl_arg_value(launch, &c->set, sizeof(c->set));
}

static void put_numbers(tarn__cl_launch *launch, const tarn__call *call)
{
    tarn__cl_arg_scratch(launch, call, 0);
}

static void put_parts(tarn__cl_launch *launch, const tarn__call *call, const tarn__cl_channel_job *c)
{
    tarn__cl_arg_scratch(launch, call, numbers_bytes(c));
}

static void put_statistics(tarn__cl_launch *launch, const tarn__cl_channel_vectors *v)
{
    tarn__cl_arg_vector(launch, v->weight);
    tarn__cl_arg_vector(launch, v->bias);
    tarn__cl_arg_view(launch, v->mean);
    tarn__cl_arg_view(launch, v->rstd);
}

/* Kernels that go over sets, a work-item for each, or where they add up `parts` for each, on a device with real local
 * memory a group. */
static pass begin_settling(const tarn__call *call, const tarn__cl_channel_vectors *v, const char *kernel,
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

static void go_settling(pass *p, int64_t count)
{
    tarn__cl_enqueue(&p->launch, 1, (size_t[]){(size_t)count * p->group}, p->group > 1 ? &p->group : NULL);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static pass begin_moments(const tarn__call *call, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    return begin_settling(call, v, "settle_moments", "-DSETTLE_MOMENTS",
                          v->training ? c->set.members * c->set.chunks : 1);
}

static void settle_moments(const tarn__call *call, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_moments(call, c, v);
    tarn__cl_launch *launch = &p.launch;
    put_set(launch, c);
    put_parts(launch, call, c);
    put_numbers(launch, call);
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
    go_settling(&p, c->set.sets / c->set.members);
}

/* Running statistics must not be taken in by a call that the CPU then does again. */
static bool is_ready(const tarn__call *call, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    if (!v->running_mean && !v->running_variance)
        return true;
    pass moments = begin_pass(call, c, MOMENTS, NULL);
    bool is_good = tarn__cl_cancel(&moments.launch);
    pass settling = begin_moments(call, c, v);
    is_good = tarn__cl_cancel(&settling.launch) && is_good;
    pass normalise = begin_pass(call, c, NORMALISE, NULL);
    return tarn__cl_cancel(&normalise.launch) && is_good;
}

void tarn__cl_channels_forward(const tarn__call *call, tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    tarn__cl_channels_write_options(c);
    if (!is_ready(call, c, v))
        return;
    if (v->training) {
        pass p = begin_pass(call, c, MOMENTS, NULL);
        put_set(&p.launch, c);
        tarn__cl_arg_view(&p.launch, c->view[X]);
        put_parts(&p.launch, call, c);
        go_pass(&p, c);
    }
    settle_moments(call, c, v);
    pass p = begin_pass(call, c, NORMALISE, NULL);
    put_set(&p.launch, c);
    tarn__cl_arg_view(&p.launch, c->view[X]);
    tarn__cl_arg_view(&p.launch, c->view[TO]);
    tarn__cl_arg_view(&p.launch, c->view[BESIDE]);
    put_numbers(&p.launch, call);
    go_pass(&p, c);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static void put_operands(tarn__cl_launch *launch, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    put_set(launch, c);
    for (int k = 0; k < OPERANDS; k++)
        tarn__cl_arg_view(launch, c->view[k]);
    put_statistics(launch, v);
}

static void sum_chunks(const tarn__call *call, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_pass(call, c, SUMS, v);
    put_operands(&p.launch, c, v);
    put_parts(&p.launch, call, c);
    tarn__cl_arg_real(&p.launch, v->least);
    go_pass(&p, c);
}

static void settle_sums(const tarn__call *call, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_settling(call, v, "settle_sums", "-DSETTLE_SUMS", c->set.chunks);
    tarn__cl_launch *launch = &p.launch;
    put_set(launch, c);
    put_parts(launch, call, c);
    put_numbers(launch, call);
    put_statistics(launch, v);
    tarn__cl_arg_vector(launch, v->gweight);
    tarn__cl_arg_vector(launch, v->gbias);
    tarn__cl_arg_real(launch, (double)c->values);
    go_settling(&p, c->set.sets);
}

static void add_parts(const tarn__call *call, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_settling(call, v, "add_parts", "-DADD_PARTS", 0);
    put_set(&p.launch, c);
    put_numbers(&p.launch, call);
    tarn__cl_arg_vector(&p.launch, v->gweight);
    tarn__cl_arg_vector(&p.launch, v->gbias);
    go_settling(&p, c->set.channels);
}

static void average_sums(const tarn__call *call, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_settling(call, v, "average_sums", "-DAVERAGE", 0);
    put_set(&p.launch, c);
    put_numbers(&p.launch, call);
    put_statistics(&p.launch, v);
    tarn__cl_arg_real(&p.launch, (double)c->values);
    go_settling(&p, c->set.sets / c->set.members);
}

static void make_slopes(const tarn__call *call, const tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_pass(call, c, SLOPES, v);
    put_operands(&p.launch, c, v);
    put_numbers(&p.launch, call);
    tarn__cl_arg_real(&p.launch, v->least);
    go_pass(&p, c);
}

/* What relu lets through has been written: it is read instead of g and relu's result. */
static tarn__cl_channel_job behind_relu(const tarn__cl_channel_job *c)
{
    tarn__cl_channel_job behind = *c;
    tarn__cl_channel_set *s = &behind.set;
    behind.has_relu = false;
    behind.view[UP] = c->view[PASSED];
    behind.view[BESIDE] = behind.view[PASSED] = NULL;
    s->along[UP] = s->along[PASSED];
    s->channel_step[UP] = s->channel_step[PASSED];
    s->part_step[UP] = s->part_step[PASSED];
    memcpy(s->outer.stride[UP], s->outer.stride[PASSED], sizeof(s->outer.stride[UP]));
    return behind;
}

/* The pass of sums writes what relu lets through, and where statistics were given the gradient of x, too; without them,
 * that of x, from means that it gave. */
void tarn__cl_channels_backward(const tarn__call *call, tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v)
{
    const bool has_vectors = v->gweight || v->gbias, has_sums = v->training || has_vectors;
    const bool has_averages = c->set.members > 1 || c->set.sets != c->set.channels;
    tarn__cl_channels_write_options(c);
    tarn__cl_channel_job last = *c;
    if (has_sums) {
        sum_chunks(call, c, v);
        settle_sums(call, c, v);
    }
    if (has_vectors && c->set.sets != c->set.channels)
        add_parts(call, c, v);
    if (has_sums && c->view[PASSED]) {
        if (c->view[PASSED]->dtype == c->view[UP]->dtype)
            last = behind_relu(c);
        last.view[PASSED] = NULL;
    }
    if (has_sums && !v->training)
        return;
    if (c->view[TO] && has_averages)
        average_sums(call, c, v);
    if (last.view[TO] || last.view[PASSED])
        make_slopes(call, &last, v);
}
