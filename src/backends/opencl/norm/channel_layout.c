/* channel_layout.c: layout of the elements of channels, and their distribution over work-items: see channel_stats.h. */
#include "backends/opencl/norm/channel_stats.h"

#include <stdio.h>
#include <string.h>

#define FEW_VALUES 32  /* sharing a mean are computed in `real`: normalizing cancels most of their gradient */
#define LINE 1024      /* elements per line, at most */
#define LONG_LINE 4096 /* in vec4s */
#define LONE_LINE 64   /* of one work-item */
#define LONE_LANES 4   /* f32 sums of more than 16 elements would lose precision */
#define CHUNK 4096     /* elements per chunk, at least, if there are as many */
#define MANY_LANES 16  /* of one work-item with contiguous elements */
#define AT_ONCE 4      /* vec4s of a line per work-item, about */
#define LONE_CHUNK 256
#define MAX_CHUNKS 512  /* per set */
#define MAX_ACROSS 32   /* NHWC: work-items across channels, */
#define MIN_POSITIONS 8 /* positions per work-item, at least, */
#define GROUPS_A_UNIT 4 /* and groups per compute unit, about */
#define SMALL (INT64_C(1) << 30)

enum {
    X = TARN__CL_X,
    Y = TARN__CL_Y,
    GY = TARN__CL_GRAD_Y,
    RESIDUAL = TARN__CL_RESIDUAL,
    GRES = TARN__CL_GRAD_RESIDUAL,
    OPERANDS = TARN__CL_CHANNEL_OPERANDS
};

static int64_t distance(int64_t stride)
{
    return stride < 0 ? -stride : stride;
}

static int64_t ceiling(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* ---- axes -------------------------------------------------------------------------------------------------------- */

/* The nest over all axes but the channel's and, per sample, the first; its last axis is taken out as the one of lines.
 */
static void describe_axes(tarn__cl_channel_set *s, const tarn__view *const *views, bool per_sample)
{
    tarn__view view[OPERANDS];
    const tarn__view *views_without[OPERANDS];
    for (int k = 0; k < OPERANDS; k++) {
        views_without[k] = NULL;
        if (!views[k])
            continue;
        view[k] = *views[k];
        s->channel_step[k] = view[k].stride[1];
        s->sample_step[k] = per_sample ? view[k].stride[0] : 0;
        view[k].shape[1] = 1;
        view[k].shape[0] = per_sample && view[k].shape[0] > 0 ? 1 : view[k].shape[0];
        views_without[k] = &view[k];
    }
    tarn__nest_make(&s->outer, OPERANDS, views_without);
    /* the nest orders axes by stride: its last one is the closest */
    s->inner = s->outer.rank > 0 ? s->outer.shape[s->outer.rank - 1] : s->outer.count;
    for (int k = 0; k < OPERANDS && s->outer.rank > 0; k++)
        s->along[k] = s->outer.stride[k][s->outer.rank - 1];
    s->outer.count = s->inner > 0 ? s->outer.count / s->inner : 0;
    s->outer.rank -= s->outer.rank > 0;
}

/* Lines of at most `line` elements, chunks of about `chunk` elements, at most MAX_CHUNKS of them. */
static void cut_lines(tarn__cl_channel_set *s, int64_t line, int64_t chunk)
{
    s->segment = s->inner < line ? s->inner : line;
    s->segments = s->inner > 0 ? ceiling(s->inner, s->segment) : 0;
    s->lines = s->outer.count * s->segments;
    /* a line has inner / segments elements on average */
    s->chunk = s->inner > 0 ? ceiling(chunk * s->segments, s->inner) : 1;
    if (ceiling(s->lines, s->chunk) > MAX_CHUNKS)
        s->chunk = ceiling(s->lines, MAX_CHUNKS);
    s->chunks = ceiling(s->lines, s->chunk);
}

/* NHWC: even chunks of positions, about GROUPS_A_UNIT groups per compute unit, unless work-items had too few then. */
static void cut_positions(tarn__cl_channel_job *c, const tarn__cl_device *device)
{
    tarn__cl_channel_set *s = &c->set;
    const int64_t across = (int64_t)tarn__cl_channels_width(c, c->group), rows = (int64_t)c->group / across,
                  tiles = ceiling(c->steps, across);
    const int64_t positions = s->outer.count * s->inner,
                  turns = ceiling(positions * tiles * (s->sets / s->channels), rows);
    const int64_t each = ceiling(turns, GROUPS_A_UNIT * (int64_t)device->compute_units);
    s->segment = s->inner;
    s->segments = 1;
    s->lines = s->outer.count;
    s->chunk = rows * (each < MIN_POSITIONS ? MIN_POSITIONS : each);
    s->chunks = ceiling(positions, s->chunk);
}

size_t tarn__cl_channels_width(const tarn__cl_channel_job *c, size_t group)
{
    const size_t most = c->is_nhwc && group > MAX_ACROSS ? MAX_ACROSS : group;
    size_t width = c->is_nhwc ? 1 : most < 8 ? most : 8;
    while (width < most && (int64_t)width < c->steps)
        width *= 2;
    return width;
}

/* ---- forms ------------------------------------------------------------------------------------------------------- */

/* All operands have unit stride along lines. */
static bool is_contiguous(const tarn__cl_channel_job *c, const tarn__cl_channel_operands *o)
{
    for (int k = 0; k < OPERANDS; k++)
        if (o->view[k] && c->set.inner != 1 && c->set.along[k] != 1)
            return false;
    return true;
}

/* True when lines of every operand, or for NHWC the channels of every position, are aligned vec4s of f32 or 16 bits. */
static bool is_vec4(const tarn__cl_channel_job *c, const tarn__cl_channel_operands *o)
{
    const tarn__cl_channel_set *s = &c->set;
    bool is_good = c->is_nhwc ? s->channels % 4 == 0 : is_contiguous(c, o) && s->inner % 4 == 0;
    for (int k = 0; k < OPERANDS && is_good; k++) {
        const tarn__view *view = o->view[k];
        if (!view)
            continue;
        is_good = view->dtype != TARN_F64 && view->offset % 4 == 0 && s->sample_step[k] % 4 == 0 &&
                  (c->is_nhwc ? s->channel_step[k] == 1 && s->along[k] % 4 == 0 : s->channel_step[k] % 4 == 0);
        for (int i = 0; i < s->outer.rank; i++)
            is_good = is_good && s->outer.stride[k][i] % 4 == 0;
    }
    return is_good;
}

/* 32-bit offsets within a set are enough. */
static bool is_small(const tarn__cl_channel_job *c, const tarn__cl_channel_operands *o)
{
    int64_t elements = 2 * c->set.sets * (c->set.lines + 1) * c->set.segment;
    for (int k = 0; k < OPERANDS; k++)
        if (o->view[k] && distance(c->set.along[k]) >= SMALL / (c->set.segment + 1))
            return false;
    return elements < SMALL;
}

/* Appends without snprintf(), which would cost more than a small kernel. */
static void option(tarn__cl_channel_options *options, const char *text)
{
    const size_t length = strlen(options->text), more = strlen(text);
    if (length + more < sizeof(options->text))
        memcpy(options->text + length, text, more + 1);
}

/* An absent operand has x's type. */
static void option_type(tarn__cl_channel_options *options, const char *name, const tarn__view *view,
                        const tarn__view *x)
{
    option(options, name);
    option(options, tarn__cl_dtype_name(view ? view->dtype : x->dtype));
}

/* Lines that are whole axes a constant step apart need less arithmetic; a chunk that fits the registers of a work-group
 * is read once. Sizes are rounded up to few classes, for few programs. */
static void option_lines(const tarn__cl_channel_job *c, tarn__cl_channel_options *options)
{
    static const int64_t sizes[] = {2048, 4096, 5120, 8192};
    const tarn__cl_channel_set *s = &c->set;
    const bool are_whole = s->segments == 1 && s->outer.rank <= 1;
    const int64_t length = (s->chunk < s->lines ? s->chunk : s->lines) * s->segment;
    char text[32];
    if (s->outer.rank <= 1)
        option(options, are_whole ? " -DWHOLE_LINES" : " -DONE_STEP");
    if (!c->vec4 || length <= 1024 || !(are_whole || s->chunk == 1))
        return;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (length <= sizes[i]) {
            snprintf(text, sizeof(text), " -DCHUNK_VECS=%d", (int)sizes[i] / 4);
            option(options, text);
            return;
        }
}

/* Chooses between NHWC groups, NCHW groups, and one work-item per chunk. */
static void choose_layout(tarn__cl_channel_job *c, const tarn__cl_device *device, const tarn__cl_channel_operands *o)
{
    tarn__cl_channel_set *s = &c->set;
    const bool is_last = s->channels > 1 && distance(s->channel_step[X]) < distance(s->along[X]),
               is_lone = is_last && !device->has_local_memory;
    c->is_nhwc = is_last && !is_lone;
    c->group = device->has_local_memory
                   ? tarn__cl_group_size(device, s->outer.count * s->inner >= 2048 || c->is_nhwc ? 256 : 64)
                   : 1;
    c->local = is_lone || c->is_nhwc ? tarn__cl_group_size(device, 64) : c->group;
    c->vec4 = c->group > 1 && c->values > FEW_VALUES && is_vec4(c, o);
    c->lanes = is_lone                                            ? LONE_LANES
               : !device->has_local_memory && is_contiguous(c, o) ? MANY_LANES
               : c->vec4 && !c->is_nhwc                           ? 4
                                                                  : 1;
    c->steps = ceiling(s->channels, c->vec4 ? 4 : 1);
    if (c->is_nhwc) {
        cut_positions(c, device);
    } else {
        cut_lines(s, is_lone ? LONE_LINE : c->vec4 ? LONG_LINE : LINE, is_lone ? LONE_CHUNK : CHUNK);
        c->steps = c->vec4 ? ceiling(s->segment, 4 * AT_ONCE) : s->segment;
    }
}

void tarn__cl_channels_write_options(const tarn__cl_channel_job *c, const tarn__cl_channel_operands *o,
                                     tarn__cl_channel_options *options)
{
    const tarn__view *x = o->view[X];
    snprintf(options->text, sizeof(options->text), "-DLANES=%d", c->lanes);
    option(options, is_small(c, o) ? " -DINDEX=int" : " -DINDEX=long");
    option(options, c->vec4 ? " -DVEC4" : "");
    option(options, c->values <= FEW_VALUES ? " -DUSE_REAL" : "");
    if (c->is_nhwc) {
        option(options, c->set.outer.rank == 0 ? " -DSTRAIGHT" : "");
    } else {
        option_lines(c, options);
        option(options, is_contiguous(c, o) ? " -DCONTIGUOUS" : "");
    }
    option_type(options, " -DT_X=", x, x);
    option_type(options, " -DT_Y=", o->view[Y], x);
    option_type(options, " -DT_G=", o->view[GY], x);
    option_type(options, " -DT_RESIDUAL=", o->view[RESIDUAL], x);
    option_type(options, " -DT_GRES=", o->view[GRES], x);
}

void tarn__cl_channels_describe(tarn__cl_channel_job *c, const tarn__cl_device *device,
                                const tarn__cl_channel_operands *o)
{
    const tarn__view *x = o->view[X];
    tarn__cl_channel_set *s = &c->set;
    *c = (tarn__cl_channel_job){.group = 1};
    s->channels = x->shape[1];
    s->sets = s->channels * (o->per_sample ? x->shape[0] : 1);
    s->members = o->members;
    describe_axes(s, o->view, o->per_sample);
    c->values = s->outer.count * s->inner * o->members;
    choose_layout(c, device, o);
}
