/* channel_layout.c: where the elements of channels lie, and how they are shared out: see channel_stats.h. */
#include "backends/opencl/norm/channel_stats.h"

#include <stdio.h>
#include <string.h>

#define FEW_VALUES 32  /* that share a mean are computed in `real`: their gradient is what little normalising leaves */
#define LINE 1024      /* elements of a line at most */
#define LONG_LINE 4096 /* where a group has it in fours */
#define LONE_LINE 64   /* where a work-item has it alone, in few lanes */
#define LONE_LANES 4   /* sums in f32 of more than 16 numbers would lose digits */
#define CHUNK 4096     /* elements of a chunk, at least, if there are so many */
#define MANY_LANES 16  /* where elements lie side by side, and a work-item has them alone */
#define AT_ONCE 4      /* fours of a line that a work-item has, about */
#define LONE_CHUNK 256
#define MOST_CHUNKS 512 /* of a set */
#define MOST_ACROSS 32  /* by columns: work-items side by side, */
#define FEW_POSITIONS 8 /* positions of a work-item, at least, */
#define GROUPS_A_UNIT 4 /* and groups for each compute unit, about */
#define SMALL (INT64_C(1) << 30)

enum {
    X = TARN__CL_X,
    TO = TARN__CL_Y,
    UP = TARN__CL_GRAD_Y,
    BESIDE = TARN__CL_RESIDUAL,
    PASSED = TARN__CL_GRAD_RESIDUAL,
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

/* ---- where elements lie ------------------------------------------------------------------------------------------ */

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
    /* a line has inner / segments elements on average */
    s->chunk = s->inner > 0 ? ceiling(chunk * s->segments, s->inner) : 1;
    if (ceiling(s->lines, s->chunk) > MOST_CHUNKS)
        s->chunk = ceiling(s->lines, MOST_CHUNKS);
    s->chunks = ceiling(s->lines, s->chunk);
}

/* By columns: even chunks of positions, as many as keep the device busy, unless work-items then had too few. */
static void cut_columns(tarn__cl_channel_job *c, const tarn__cl_device *device)
{
    tarn__cl_channel_set *s = &c->set;
    const int64_t across = (int64_t)tarn__cl_channels_width(c, c->group), rows = (int64_t)c->group / across,
                  tiles = ceiling(c->steps, across);
    const int64_t positions = s->outer.count * s->inner,
                  turns = ceiling(positions * tiles * (s->sets / s->channels), rows);
    const int64_t each = ceiling(turns, GROUPS_A_UNIT * (int64_t)device->units);
    s->segment = s->inner;
    s->segments = 1;
    s->lines = s->outer.count;
    s->chunk = rows * (each < FEW_POSITIONS ? FEW_POSITIONS : each);
    s->chunks = ceiling(positions, s->chunk);
}

size_t tarn__cl_channels_width(const tarn__cl_channel_job *c, size_t group)
{
    const size_t most = c->by_columns && group > MOST_ACROSS ? MOST_ACROSS : group;
    size_t width = c->by_columns ? 1 : most < 8 ? most : 8;
    while (width < most && (int64_t)width < c->steps)
        width *= 2;
    return width;
}

/* ---- forms ------------------------------------------------------------------------------------------------------- */

static bool is_contiguous(const tarn__cl_channel_job *c)
{
    for (int k = 0; k < OPERANDS; k++)
        if (c->view[k] && c->set.inner != 1 && c->set.along[k] != 1)
            return false;
    return true;
}

/* True when every line of every operand, or by columns the channels of every position, lie in fours of f32 or 16 bits.
 */
static bool is_in_fours(const tarn__cl_channel_job *c)
{
    const tarn__cl_channel_set *s = &c->set;
    bool is_good = c->by_columns ? s->channels % 4 == 0 : is_contiguous(c) && s->inner % 4 == 0;
    for (int k = 0; k < OPERANDS && is_good; k++) {
        const tarn__view *view = c->view[k];
        if (!view)
            continue;
        is_good = view->dtype != TARN_F64 && view->offset % 4 == 0 && s->part_step[k] % 4 == 0 &&
                  (c->by_columns ? s->channel_step[k] == 1 && s->along[k] % 4 == 0 : s->channel_step[k] % 4 == 0);
        for (int i = 0; i < s->outer.rank; i++)
            is_good = is_good && s->outer.stride[k][i] % 4 == 0;
    }
    return is_good;
}

static bool is_small(const tarn__cl_channel_job *c)
{
    int64_t elements = 2 * c->set.sets * (c->set.lines + 1) * c->set.segment;
    for (int k = 0; k < OPERANDS; k++)
        if (c->view[k] && distance(c->set.along[k]) >= SMALL / (c->set.segment + 1))
            return false;
    return elements < SMALL;
}

static void option(tarn__cl_channel_job *c, const char *text)
{
    const size_t length = strlen(c->options), more = strlen(text);
    if (length + more < sizeof(c->options))
        memcpy(c->options + length, text, more + 1);
}

static void option_type(tarn__cl_channel_job *c, const char *name, const tarn__view *view)
{
    option(c, name);
    option(c, tarn__cl_dtype_name(view ? view->dtype : c->view[X]->dtype));
}

/* Lines that are whole axes a step apart; a chunk that a group can keep of them, or of one line, is read once. Few
 * programs: of up to 2048 elements, 4096, and so on. */
static void name_lines(tarn__cl_channel_job *c)
{
    static const int64_t held[] = {2048, 4096, 5120, 8192};
    const tarn__cl_channel_set *s = &c->set;
    const bool are_whole = s->segments == 1 && s->outer.rank <= 1;
    const int64_t length = (s->chunk < s->lines ? s->chunk : s->lines) * s->segment;
    char text[32];
    if (s->outer.rank <= 1)
        option(c, are_whole ? " -DWHOLE_LINES" : " -DONE_STEP");
    if (!c->quads || length <= 1024 || !(are_whole || s->chunk == 1))
        return;
    for (size_t i = 0; i < sizeof(held) / sizeof(held[0]); i++)
        if (length <= held[i]) {
            snprintf(text, sizeof(text), " -DCHUNK_FOURS=%d", (int)held[i] / 4);
            option(c, text);
            return;
        }
}

/* Where a group has channels side by side, or a line, or a work-item has it alone. */
static void choose_form(tarn__cl_channel_job *c, const tarn__cl_device *device)
{
    tarn__cl_channel_set *s = &c->set;
    const bool is_last = s->channels > 1 && distance(s->channel_step[X]) < distance(s->along[X]),
               is_lone = is_last && !device->has_local_memory;
    c->by_columns = is_last && !is_lone;
    c->group = device->has_local_memory
                   ? tarn__cl_group_size(device, s->outer.count * s->inner >= 2048 || c->by_columns ? 256 : 64)
                   : 1;
    c->local = is_lone || c->by_columns ? tarn__cl_group_size(device, 64) : c->group;
    c->quads = c->group > 1 && c->values > FEW_VALUES && is_in_fours(c);
    c->lanes = is_lone                                         ? LONE_LANES
               : !device->has_local_memory && is_contiguous(c) ? MANY_LANES
               : c->quads && !c->by_columns                    ? 4
                                                               : 1;
    c->steps = ceiling(s->channels, c->quads ? 4 : 1);
    if (c->by_columns) {
        cut_columns(c, device);
    } else {
        cut(s, is_lone ? LONE_LINE : c->quads ? LONG_LINE : LINE, is_lone ? LONE_CHUNK : CHUNK);
        c->steps = c->quads ? ceiling(s->segment, 4 * AT_ONCE) : s->segment;
    }
}

void tarn__cl_channels_write_options(tarn__cl_channel_job *c)
{
    snprintf(c->options, sizeof(c->options), "-DLANES=%d", c->lanes);
    option(c, is_small(c) ? " -DINDEX=int" : " -DINDEX=long");
    option(c, c->quads ? " -DQUADS" : "");
    option(c, c->values <= FEW_VALUES ? " -DWIDE" : "");
    if (c->by_columns) {
        option(c, c->set.outer.rank == 0 ? " -DSTRAIGHT" : "");
    } else {
        name_lines(c);
        option(c, is_contiguous(c) ? " -DDENSE" : "");
    }
    option_type(c, " -DT_X=", c->view[X]);
    option_type(c, " -DT_TO=", c->view[TO]);
    option_type(c, " -DT_G=", c->view[UP]);
    option_type(c, " -DT_BESIDE=", c->view[BESIDE]);
    option_type(c, " -DT_PASSED=", c->view[PASSED]);
}

void tarn__cl_channels_describe(tarn__cl_channel_job *c, const tarn__call *call, const tarn__view *const *views,
                                bool with_parts, int64_t members, bool has_relu)
{
    const tarn__view *x = views[X];
    tarn__cl_channel_set *s = &c->set;
    *c = (tarn__cl_channel_job){.has_relu = has_relu};
    for (int k = 0; k < OPERANDS; k++)
        c->view[k] = views[k];
    s->channels = x->shape[1];
    s->sets = s->channels * (with_parts ? x->shape[0] : 1);
    s->members = members;
    describe_places(s, views, with_parts);
    c->values = s->outer.count * s->inner * members;
    choose_form(c, tarn__cl_device_at(call->device));
}
