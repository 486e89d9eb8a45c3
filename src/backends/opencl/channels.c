/* channels.c: the engine of channels.h: how elements are shared out, and the launches of channels.cl. */
#include "backends/opencl/channels.h"

#include <stdio.h>
#include <string.h>

#define FEW_VALUES 32     /* that share a mean are computed in `real`: their gradient is what little normalising leaves */
#define LINE 1024         /* elements of a line at most */
#define LONG_LINE 4096    /* where a group has it in fours */
#define LONE_LINE 64      /* where a work-item has it alone, in one lane */
#define CHUNK 4096        /* elements of a chunk, at least, if there are so many */
#define LONE_CHUNK 256
#define MOST_CHUNKS 512   /* of a set */
#define NUMBERS 6         /* of a set: mean, 1 / deviation, scale, bias, first, second */
#define SMALL (INT64_C(1) << 30)

enum { X = TARN__CL_X, TO = TARN__CL_TO, UP = TARN__CL_UP, BESIDE = TARN__CL_BESIDE, PASSED = TARN__CL_PASSED, OPERANDS = TARN__CL_CHANNEL_OPERANDS };

static int64_t distance(int64_t stride)
{
    return stride < 0 ? -stride : stride;
}

static int64_t ceiling(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* ---- where elements lie ---------------------------------------------------------------------------------------------------- */

/* The nest over all axes but the channel's and, with parts, the first, and its last axis taken out of it. */
static void describe_places(tarn__cl_channel_set *s, const tarn__view *const *views, bool with_parts)
{
    tarn__view held[OPERANDS];
    const tarn__view *without[OPERANDS];
    for (int k = 0; k < OPERANDS; k++) {
        without[k] = NULL;
        if (!views[k])
            continue;
        held[k] = *views[k];
        s->channel_step[k] = held[k].stride[1];
        s->part_step[k] = with_parts ? held[k].stride[0] : 0;
        held[k].shape[1] = 1;
        held[k].shape[0] = with_parts && held[k].shape[0] > 0 ? 1 : held[k].shape[0];
        without[k] = &held[k];
    }
    tarn__nest_make(&s->outer, OPERANDS, without);
    s->inner = s->outer.rank > 0 ? s->outer.shape[s->outer.rank - 1] : s->outer.count;
    for (int k = 0; k < OPERANDS && s->outer.rank > 0; k++)
        s->along[k] = s->outer.stride[k][s->outer.rank - 1];
    s->outer.count = s->inner > 0 ? s->outer.count / s->inner : 0;
    s->outer.rank -= s->outer.rank > 0;
}

static void cut(tarn__cl_channel_set *s, int64_t line, int64_t chunk)
{
    s->segment = s->inner < line ? s->inner : line;
    s->segments = s->inner > 0 ? ceiling(s->inner, s->segment) : 0;
    s->lines = s->outer.count * s->segments;
    s->chunk = s->inner > 0 ? ceiling(chunk * s->segments, s->inner) : 1; /* a line has inner / segments elements on average */
    if (ceiling(s->lines, s->chunk) > MOST_CHUNKS)
        s->chunk = ceiling(s->lines, MOST_CHUNKS);
    s->chunks = ceiling(s->lines, s->chunk);
}

/* Work-items along a line: a power of two. */
static size_t width_of(size_t group, int64_t segment)
{
    size_t width = group < 8 ? group : 8;
    while (width < group && (int64_t)width < segment)
        width *= 2;
    return width;
}

static const char *type_of(const tarn__view *view, const tarn__view *otherwise)
{
    return tarn__cl_type(view ? view->dtype : otherwise->dtype);
}

static bool is_dense(const tarn__cl_channels *c)
{
    for (int k = 0; k < OPERANDS; k++)
        if (c->view[k] && c->set.inner != 1 && c->set.along[k] != 1)
            return false;
    return true;
}

/* True when every line of every operand lies in fours of f32 or 16 bits. */
static bool is_in_fours(const tarn__cl_channels *c)
{
    const tarn__cl_channel_set *s = &c->set;
    bool is_good = is_dense(c) && s->inner % 4 == 0;
    for (int k = 0; k < OPERANDS && is_good; k++) {
        const tarn__view *view = c->view[k];
        if (!view)
            continue;
        is_good = view->dtype != TARN_F64 && view->offset % 4 == 0 && s->channel_step[k] % 4 == 0 && s->part_step[k] % 4 == 0;
        for (int i = 0; i < s->outer.rank; i++)
            is_good = is_good && s->outer.stride[k][i] % 4 == 0;
    }
    return is_good;
}

static bool is_small(const tarn__cl_channels *c)
{
    int64_t elements = 2 * c->set.sets * (c->set.lines + 1) * c->set.segment;
    for (int k = 0; k < OPERANDS; k++)
        if (c->view[k] && distance(c->set.along[k]) >= SMALL / (c->set.segment + 1))
            return false;
    return elements < SMALL;
}

void tarn__cl_channels_of(tarn__cl_channels *c, const tarn__call *call, const tarn__view *const *views, bool with_parts, int64_t members, bool has_relu)
{
    const tarn__cl_device *device = tarn__cl_at(call->device);
    const tarn__view *x = views[X];
    tarn__cl_channel_set *s = &c->set;
    *c = (tarn__cl_channels){.members = members, .has_relu = has_relu};
    for (int k = 0; k < OPERANDS; k++)
        c->view[k] = views[k];
    s->channels = x->shape[1];
    s->sets = s->channels * (with_parts ? x->shape[0] : 1);
    describe_places(s, views, with_parts);
    c->values = s->outer.count * s->inner * members;
    bool is_lone = s->channels > 1 && distance(s->channel_step[X]) < distance(s->along[X]), has_lanes = !is_lone && !device->local_is_real && is_dense(c);
    c->group = is_lone || !device->local_is_real ? 1 : tarn__cl_group_of(device, s->outer.count * s->inner >= 2048 ? 256 : 64);
    c->local = is_lone ? tarn__cl_group_of(device, 64) : c->group;
    const bool quads = c->group > 1 && c->values > FEW_VALUES && is_in_fours(c);
    cut(s, is_lone ? LONE_LINE : quads ? LONG_LINE : LINE, is_lone ? LONE_CHUNK : CHUNK);
    c->steps = quads ? s->segment / 4 : s->segment;
    snprintf(c->options, sizeof(c->options), "-DLANES=%d -DINDEX=%s%s%s%s%s -DT_X=%s -DT_TO=%s -DT_G=%s -DT_BESIDE=%s -DT_PASSED=%s",
             has_lanes ? 16 : quads ? 4 : 1, is_small(c) ? "int" : "long", is_dense(c) ? " -DDENSE" : "", quads ? " -DQUADS" : "",
             c->values <= FEW_VALUES ? " -DWIDE" : "", has_relu ? " -DRELU" : "", type_of(x, x), type_of(views[TO], x), type_of(views[UP], x),
             type_of(views[BESIDE], x), type_of(views[PASSED], x));
    if (quads && s->chunk == 1 && s->segment > LONG_LINE / 4) /* few programs: of lines up to 2048 and 4096 elements */
        snprintf(c->options + strlen(c->options), sizeof(c->options) - strlen(c->options), " -DLINE_FOURS=%d", s->segment <= LONG_LINE / 2 ? LONG_LINE / 8 : LONG_LINE / 4);
}

/* ---- scratch: the sets' numbers, then the chunks' parts. Room for f64, whatever `real` is ------------------------------------------ */

static int64_t numbers_bytes(const tarn__cl_channels *c)
{
    return (int64_t)sizeof(double) * NUMBERS * c->set.sets;
}

size_t tarn__cl_channels_scratch(const tarn__cl_channels *c)
{
    return (size_t)numbers_bytes(c) + sizeof(double) * 3 * (size_t)(c->set.sets * c->set.chunks);
}

/* ---- launches -------------------------------------------------------------------------------------------------------------- */

/* A kernel with groups of `*group` work-items, or as many as it may have. `steps` 0: no stretch is shared. */
static tarn__cl_launch begin(const tarn__call *call, const char *kernel, const char *what, const char *own, int64_t steps, size_t *group)
{
    char options[384], width[32] = "";
    for (;;) {
        if (steps > 0)
            snprintf(width, sizeof(width), " -DWIDTH=%zu", width_of(*group, steps));
        snprintf(options, sizeof(options), "-DGROUP=%zu%s -D%s %s", *group, width, what, own);
        if (*group == 1)
            return tarn__cl_begin(call, "channels", kernel, options);
        tarn__cl_launch launch = tarn__cl_try(call, "channels", kernel, options, *group);
        if (launch.good)
            return launch;
        *group = tarn__cl_group_left(&launch);
    }
}

static bool is_ready(const tarn__call *call, const tarn__cl_channels *c, const char *kernel, const char *what)
{
    size_t group = c->group;
    tarn__cl_launch launch = begin(call, kernel, what, c->options, c->steps, &group);
    return tarn__cl_leave(&launch);
}

/* A pass over all elements: a chunk for each group, or for each work-item. */
typedef struct pass {
    tarn__cl_launch launch;
    size_t group;
} pass;

static pass begin_pass(const tarn__call *call, const tarn__cl_channels *c, const char *kernel, const char *what)
{
    pass p = {.group = c->group};
    p.launch = begin(call, kernel, what, c->options, c->steps, &p.group);
    tarn__cl_value(&p.launch, &c->set, sizeof(c->set));
    return p;
}

static void go_pass(pass *p, const tarn__cl_channels *c)
{
    const size_t count = (size_t)(c->set.sets * c->set.chunks);
    if (p->group > 1)
        tarn__cl_go(&p->launch, 1, (size_t[]){count * p->group}, &p->group);
    else
        tarn__cl_go_apart(&p->launch, 1, &count, c->group > 1 ? 1 : c->local);
}

static void put_scratch(tarn__cl_launch *launch, const tarn__call *call, const tarn__cl_channels *c, bool has_numbers, bool has_parts)
{
    if (has_parts)
        tarn__cl_scratch(launch, call, numbers_bytes(c));
    if (has_numbers)
        tarn__cl_scratch(launch, call, 0);
}

/* Kernels that go over sets, a work-item for each, or where they add up chunks, on a device with real local memory a group. */
static pass begin_settling(const tarn__call *call, const tarn__cl_channels *c, const tarn__cl_channel_vectors *v, const char *kernel, const char *what, bool has_tree)
{
    const tarn__cl_device *device = tarn__cl_at(call->device);
    const tarn__view *x = c->view[X];
    char own[192];
    pass p = {.group = has_tree && device->local_is_real ? tarn__cl_group_of(device, 64) : 1};
    snprintf(own, sizeof(own), "-DLANES=1 -DT_X=f32 -DT_W=%s -DT_B=%s -DT_GM=%s -DT_GV=%s -DT_RM=%s -DT_RV=%s -DT_GW=%s -DT_GB=%s", type_of(v->weight, x),
             type_of(v->bias, x), type_of(v->given_mean, x), type_of(v->given_variance, x), type_of(v->running_mean, x), type_of(v->running_variance, x),
             type_of(v->gweight, x), type_of(v->gbias, x));
    p.launch = begin(call, kernel, what, own, 0, &p.group);
    tarn__cl_value(&p.launch, &c->set, sizeof(c->set));
    return p;
}

static void go_settling(pass *p, int64_t count)
{
    tarn__cl_go(&p->launch, 1, (size_t[]){(size_t)count * p->group}, p->group > 1 ? &p->group : NULL);
}

/* ---- forward --------------------------------------------------------------------------------------------------------------- */

static pass begin_moments(const tarn__call *call, const tarn__cl_channels *c, const tarn__cl_channel_vectors *v)
{
    return begin_settling(call, c, v, "settle_moments", "SETTLE_MOMENTS", true);
}

static void settle_moments(const tarn__call *call, const tarn__cl_channels *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_moments(call, c, v);
    tarn__cl_launch *launch = &p.launch;
    tarn__cl_long(launch, c->members);
    put_scratch(launch, call, c, true, true);
    tarn__cl_vector(launch, v->weight);
    tarn__cl_vector(launch, v->bias);
    tarn__cl_vector(launch, v->given_mean);
    tarn__cl_vector(launch, v->given_variance);
    tarn__cl_view(launch, v->mean);
    tarn__cl_view(launch, v->rstd);
    tarn__cl_vector(launch, v->running_mean);
    tarn__cl_vector(launch, v->running_variance);
    tarn__cl_real(launch, v->epsilon);
    tarn__cl_real(launch, v->momentum);
    tarn__cl_real(launch, (double)c->values);
    tarn__cl_int(launch, v->training);
    go_settling(&p, c->set.sets / c->members);
}

void tarn__cl_channels_forward(const tarn__call *call, const tarn__cl_channels *c, const tarn__cl_channel_vectors *v)
{
    pass settling = begin_moments(call, c, v);
    /* running statistics must not be taken in by a call that the CPU then does again */
    if (!tarn__cl_leave(&settling.launch) || !is_ready(call, c, "channel_normalise", "NORMALISE") ||
        (v->training && !is_ready(call, c, "channel_moments", "MOMENTS")))
        return;
    if (v->training) {
        pass p = begin_pass(call, c, "channel_moments", "MOMENTS");
        tarn__cl_launch *launch = &p.launch;
        tarn__cl_view(launch, c->view[X]);
        put_scratch(launch, call, c, false, true);
        go_pass(&p, c);
    }
    settle_moments(call, c, v);
    pass p = begin_pass(call, c, "channel_normalise", "NORMALISE");
    tarn__cl_launch *launch = &p.launch;
    tarn__cl_view(launch, c->view[X]);
    tarn__cl_view(launch, c->view[TO]);
    tarn__cl_view(launch, c->view[BESIDE]);
    put_scratch(launch, call, c, true, false);
    go_pass(&p, c);
}

/* ---- backward -------------------------------------------------------------------------------------------------------------- */

static void fetch_numbers(const tarn__call *call, const tarn__cl_channels *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_settling(call, c, v, "fetch_numbers", "FETCH", false);
    tarn__cl_launch *launch = &p.launch;
    tarn__cl_long(launch, c->members);
    put_scratch(launch, call, c, true, false);
    tarn__cl_vector(launch, v->weight);
    tarn__cl_vector(launch, v->bias);
    tarn__cl_view(launch, v->mean);
    tarn__cl_view(launch, v->rstd);
    go_settling(&p, c->set.sets);
}

static void sum_chunks(const tarn__call *call, const tarn__cl_channels *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_pass(call, c, "channel_sums", "SUMS");
    tarn__cl_launch *launch = &p.launch;
    tarn__cl_view(launch, c->view[X]);
    tarn__cl_view(launch, c->view[UP]);
    tarn__cl_view(launch, c->view[BESIDE]);
    tarn__cl_scratch(launch, call, 0);
    tarn__cl_scratch(launch, call, numbers_bytes(c));
    tarn__cl_real(launch, v->least);
    go_pass(&p, c);
}

static void settle_sums(const tarn__call *call, const tarn__cl_channels *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_settling(call, c, v, "settle_sums", "SETTLE_SUMS", true);
    tarn__cl_launch *launch = &p.launch;
    tarn__cl_long(launch, c->members);
    put_scratch(launch, call, c, true, true);
    tarn__cl_vector(launch, v->gweight);
    tarn__cl_vector(launch, v->gbias);
    tarn__cl_real(launch, (double)c->values);
    go_settling(&p, c->set.sets);
}

static void add_parts(const tarn__call *call, const tarn__cl_channels *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_settling(call, c, v, "add_parts", "ADD_PARTS", false);
    tarn__cl_launch *launch = &p.launch;
    put_scratch(launch, call, c, true, false);
    tarn__cl_vector(launch, v->gweight);
    tarn__cl_vector(launch, v->gbias);
    go_settling(&p, c->set.channels);
}

static void average_sums(const tarn__call *call, const tarn__cl_channels *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_settling(call, c, v, "average_sums", "AVERAGE", false);
    tarn__cl_launch *launch = &p.launch;
    tarn__cl_long(launch, c->members);
    put_scratch(launch, call, c, true, false);
    tarn__cl_real(launch, (double)c->values);
    go_settling(&p, c->set.sets / c->members);
}

static void make_slopes(const tarn__call *call, const tarn__cl_channels *c, const tarn__cl_channel_vectors *v)
{
    pass p = begin_pass(call, c, "channel_slopes", "SLOPES");
    tarn__cl_launch *launch = &p.launch;
    for (int k = 0; k < OPERANDS; k++)
        tarn__cl_view(launch, c->view[k]);
    put_scratch(launch, call, c, true, false);
    tarn__cl_real(launch, v->least);
    tarn__cl_int(launch, v->training);
    go_pass(&p, c);
}

void tarn__cl_channels_backward(const tarn__call *call, const tarn__cl_channels *c, const tarn__cl_channel_vectors *v)
{
    const bool has_vectors = v->gweight || v->gbias, has_slopes = c->view[TO] || c->view[PASSED];
    fetch_numbers(call, c, v);
    if (v->training || has_vectors) {
        sum_chunks(call, c, v);
        settle_sums(call, c, v);
    }
    if (has_vectors && c->set.sets != c->set.channels)
        add_parts(call, c, v);
    if (has_slopes && (c->members > 1 || c->set.sets != c->set.channels))
        average_sums(call, c, v);
    if (has_slopes)
        make_slopes(call, c, v);
}
