/* save.c: the state of an optimizer in a file: everything a step reads besides parameters and gradients.
 *
 * A safetensors file with NAME/steps for each parameter and, as the method has them, NAME/master, NAME/momentum,
 * NAME/first_moment and NAME/second_moment; and /steps, /lr and /schedule for all. Scalars are tensors too, so that no
 * bit is lost in text. A file is loaded completely or not at all: everything is checked before anything changes. */
#include <stdio.h>
#include <string.h>

#include "core/launch/launch.h"
#include "formats/safetensors.h"
#include "optim/optimizer.h"

#define MAX_NAME 1024
#define FORMAT "tarn optimizer 1"
/* The start is stored for schedules that have one; files of earlier versions end before it. */
enum { KIND, WARMUP, TOTAL, FINAL, SIZE, GAMMA, START, SCHEDULE_FIELDS };

/* Calls `visit` for every tensor of the state, in the open scope, until it returns false. */
typedef bool (*visit_fn)(const char *name, const tarn__tensor_part *part, void *ctx);

static bool name_of(char *name, const tarn_tensor *parameter, const char *what)
{
    return snprintf(name, MAX_NAME, "%s/%s", tarn_name(parameter), what) < MAX_NAME ||
           tarn__raise(TARN_ERROR_UNSUPPORTED, "the name '%.40s...' is too long for a file", tarn_name(parameter));
}

/* The own elements of one segment in the state buffers. */
static bool walk_segment(const tarn_optimizer *o, const tarn__flat_group *group, const tarn__flat_segment *segment,
                         visit_fn visit, void *ctx)
{
    const char *what[TARN__BUFFERS] = {
        [TARN__MASTER] = "master", [TARN__STATE] = o->method.state_name[0], o->method.state_name[1]};
    char name[MAX_NAME];
    for (int b = TARN__MASTER; b < TARN__BUFFERS; b++) {
        if (!group->buffer[b])
            continue;
        tarn__tensor_part part;
        if (!tarn__flat_part(&o->flats, group, segment, group->buffer[b], &part) ||
            !name_of(name, segment->parameter, what[b]) || !visit(name, &part, ctx))
            return false;
    }
    return true;
}

/* Writing, checking and reading walk the state in the same way, so that a buffer cannot be in one of them and not in
 * another. */
static bool walk(const tarn_optimizer *o, visit_fn visit, void *ctx)
{
    for (int g = 0; g < o->flats.groups; g++)
        for (int i = 0; i < o->flats.group[g].segments; i++)
            if (!walk_segment(o, &o->flats.group[g], &o->flats.segment[o->flats.group[g].first + i], visit, ctx))
                return false;
    return true;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static bool add(const char *name, tarn_tensor *tensor, void *writer)
{
    return tensor && tarn_safetensors_add(writer, name, tensor);
}

static bool add_part(const char *name, const tarn__tensor_part *part, void *writer)
{
    return tarn__safetensors_add_part(writer, name, part);
}

/* Schedules are saved by value: a resumed run continues with the one it was given. */
static bool add_scalars(const tarn_optimizer *o, tarn_safetensors_writer *writer)
{
    const tarn_schedule *s = &o->schedule;
    double schedule[SCHEDULE_FIELDS] = {
        [KIND] = (double)s->kind,  [WARMUP] = (double)s->warmup_steps, [TOTAL] = (double)s->total_steps,
        [FINAL] = s->final_factor, [SIZE] = (double)s->step_size,      [GAMMA] = s->gamma,
        [START] = s->start_factor};
    int fields = s->kind == TARN_SCHEDULE_ONE_CYCLE ? SCHEDULE_FIELDS : START;
    tarn_device cpu = tarn_device_cpu();
    char name[MAX_NAME];
    for (int i = 0; i < o->flats.segments; i++)
        if (!name_of(name, o->flats.segment[i].parameter, "steps") ||
            !add(name, tarn_from(&o->flats.segment[i].steps, TARN_SCALAR, TARN_I64, cpu), writer))
            return false;
    return add("/steps", tarn_from(&o->steps, TARN_SCALAR, TARN_I64, cpu), writer) &&
           add("/lr", tarn_from(&o->method.rates.now.lr, TARN_SCALAR, TARN_F64, cpu), writer) &&
           add("/schedule", tarn_from(schedule, TARN_SHAPE(fields), TARN_F64, cpu), writer);
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

static bool send(void *ctx, int to, const void *memory, size_t bytes)
{
    return tarn_comm_send(ctx, to, memory, bytes);
}

static bool receive(void *ctx, int from, void *memory, size_t bytes)
{
    return tarn_comm_receive(ctx, from, memory, bytes);
}

static bool broadcast(void *ctx, void *memory, size_t bytes)
{
    return tarn_comm_broadcast(ctx, 0, memory, bytes);
}

bool tarn__optimizer_finish_file(const tarn_optimizer *optimizer, tarn_safetensors_writer *writer)
{
    tarn_comm *comm = optimizer->flats.comm;
    return comm ? tarn__safetensors_finish_ranks(
                      writer, &(tarn__file_ranks){comm, comm->rank, comm->size, send, receive, broadcast})
                : tarn_safetensors_finish(writer);
}

bool tarn_optimizer_save(tarn_optimizer *optimizer, const char *path)
{
    static const char *const function = "optimizer_save";
    if (tarn_failed() || !tarn__check_optimizer(function, optimizer))
        return false;
    tarn_scope *scope = tarn_scope_open();
    /* parameters may have been written since the last step: their masters follow first */
    tarn_safetensors_writer *writer = scope && tarn__flat_refresh_master(&optimizer->method, &optimizer->flats)
                                          ? tarn_safetensors_create(path)
                                          : NULL;
    bool good = writer && tarn_safetensors_add_metadata(writer, "format", FORMAT) &&
                tarn_safetensors_add_metadata(writer, "optimizer", optimizer->method.name) &&
                tarn_safetensors_add_checksums(writer) && add_scalars(optimizer, writer) &&
                walk(optimizer, add_part, writer);
    if (good)
        good = tarn__optimizer_finish_file(optimizer, writer);
    else
        tarn_safetensors_cancel(writer);
    tarn_scope_close(scope);
    return good || tarn__raise_within(function);
}

/* ---- reading: everything is checked before anything changes ------------------------------------------------------ */

typedef struct reading {
    const tarn_safetensors *file;
    const char *path;
    int count; /* tensors of the file that were matched */
} reading;

/* One tensor of the file must have this name, shape and dtype. */
static bool check_entry(reading *r, const char *name, tarn_shape shape, tarn_dtype dtype)
{
    tarn_safetensors_entry entry;
    int index = tarn_safetensors_find(r->file, name);
    if (index < 0)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "'%s': tensor '%s' not found; the file was saved with other parameters or options", r->path,
                           name);
    if (!tarn_safetensors_info(r->file, index, &entry))
        return false;
    r->count++;
    bool same = entry.dtype == dtype && entry.shape.rank == shape.rank;
    for (int i = 0; same && i < shape.rank; i++)
        same = entry.shape.size[i] == shape.size[i];
    tarn__shape_buffer have, want;
    return same || tarn__raise(TARN_ERROR_SHAPE, "'%s' has '%s' as %s %s, not as %s %s", r->path, name,
                               entry.dtype_name, tarn__shape_string(entry.shape.size, entry.shape.rank, &have),
                               tarn_dtype_name(dtype), tarn__shape_string(shape.size, shape.rank, &want));
}

static bool check_tensor(const char *name, const tarn__tensor_part *part, void *ctx)
{
    return check_entry(ctx, name, part->shape, part->dtype);
}

/* How many numbers the schedule of a file has. A wrong shape counts as the shorter form, which the check of the
 * entry then refuses. */
static int schedule_fields(const reading *r)
{
    tarn_safetensors_entry entry;
    int index = tarn_safetensors_find(r->file, "/schedule");
    bool has_start = index >= 0 && tarn_safetensors_info(r->file, index, &entry) && entry.shape.rank == 1 &&
                     entry.shape.size[0] == SCHEDULE_FIELDS;
    return has_start ? SCHEDULE_FIELDS : START;
}

/* Every expected tensor is there, and no other. */
static bool check_file(const tarn_optimizer *o, reading *r)
{
    const char *format = tarn_safetensors_metadata(r->file, "format"),
               *method = tarn_safetensors_metadata(r->file, "optimizer");
    char name[MAX_NAME];
    if (!format || strcmp(format, FORMAT) != 0 || !method)
        return tarn__raise(TARN_ERROR_FORMAT, "'%s' is not a file of tarn_optimizer_save()", r->path);
    if (strcmp(method, o->method.name) != 0)
        return tarn__raise(TARN_ERROR_FORMAT, "'%s' is the state of %s, but the optimizer is %s", r->path, method,
                           o->method.name);
    for (int i = 0; i < o->flats.segments; i++)
        if (!name_of(name, o->flats.segment[i].parameter, "steps") || !check_entry(r, name, TARN_SCALAR, TARN_I64))
            return false;
    if (!check_entry(r, "/steps", TARN_SCALAR, TARN_I64) || !check_entry(r, "/lr", TARN_SCALAR, TARN_F64) ||
        !check_entry(r, "/schedule", TARN_SHAPE(schedule_fields(r)), TARN_F64) || !walk(o, check_tensor, r))
        return false;
    return r->count == tarn_safetensors_count(r->file) ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "'%s' has %d tensors, of which %d belong to this optimizer: it was saved with other parameters "
                       "or options",
                       r->path, tarn_safetensors_count(r->file), r->count);
}

/* The scalars of a file, and whether they make sense. */
typedef struct scalars {
    int64_t steps;
    double lr;
    tarn_schedule schedule;
} scalars;

static bool read_scalar(const reading *r, const char *name, void *to, size_t bytes)
{
    tarn_tensor *tensor = tarn_safetensors_read(r->file, name, tarn_device_cpu());
    return tensor && tarn_read(tensor, to, bytes);
}

static bool read_steps(const reading *r, const char *name, int64_t *steps)
{
    return read_scalar(r, name, steps, sizeof(*steps)) &&
           (*steps >= 0 || tarn__raise(TARN_ERROR_FORMAT, "'%s' has %lld as '%s'", r->path, (long long)*steps, name));
}

/* Doubles up to 2^53 hold the integers of a schedule exactly; anything else is a damaged file. */
static bool read_scalars(const reading *r, scalars *n)
{
    double s[SCHEDULE_FIELDS] = {0};
    if (!read_steps(r, "/steps", &n->steps) || !read_scalar(r, "/lr", &n->lr, sizeof(n->lr)) ||
        !read_scalar(r, "/schedule", s, sizeof(*s) * (size_t)schedule_fields(r)))
        return false;
    /* all fields are at least 0; comparisons with NaN are false, so it is refused, too */
    bool sound = n->lr >= 0 && n->lr < 1e300 && s[KIND] <= TARN_SCHEDULE_ONE_CYCLE;
    for (int i = 0; i < SCHEDULE_FIELDS; i++)
        sound = sound && s[i] >= 0 && s[i] < 0x1p53;
    if (!sound)
        return tarn__raise(TARN_ERROR_FORMAT, "'%s': invalid learning rate or schedule", r->path);
    n->schedule = (tarn_schedule){(tarn_schedule_kind)(int)s[KIND],
                                  (int64_t)s[WARMUP],
                                  (int64_t)s[TOTAL],
                                  s[FINAL],
                                  (int64_t)s[SIZE],
                                  s[GAMMA],
                                  s[START]};
    return tarn__schedule_check(r->path, &n->schedule);
}

static bool read_tensor(const char *name, const tarn__tensor_part *part, void *ctx)
{
    return tarn__safetensors_read_part(((reading *)ctx)->file, name, part);
}

/* 16-bit parameters are rounded from the master weights just read: the values they had when the file was saved. */
static bool round_parameters(tarn_optimizer *o)
{
    for (int g = 0; g < o->flats.groups; g++) {
        tarn__flat_group *group = &o->flats.group[g];
        if (group->buffer[TARN__MASTER] && !tarn__flat_round("optimizer_load", &o->flats, group, NULL))
            return false;
        for (int i = group->first; group->buffer[TARN__MASTER] && i < group->first + group->segments; i++) {
            tarn__bump_version(o->flats.segment[i].parameter);
            o->flats.segment[i].version = o->flats.segment[i].parameter->storage->version;
        }
    }
    return true;
}

/* Step counts are read to saved_steps first, so that a bad one among them changes nothing. */
static bool load(tarn_optimizer *o, reading *r)
{
    scalars n;
    char name[MAX_NAME];
    if (!check_file(o, r) || !tarn__safetensors_verify("optimizer_load", r->file) || !read_scalars(r, &n))
        return false;
    for (int i = 0; i < o->flats.segments; i++)
        if (!name_of(name, o->flats.segment[i].parameter, "steps") ||
            !read_steps(r, name, &o->flats.segment[i].saved_steps))
            return false;
    if (!walk(o, read_tensor, r) || !round_parameters(o))
        return false;
    for (int i = 0; i < o->flats.segments; i++)
        o->flats.segment[i].steps = o->flats.segment[i].saved_steps;
    o->steps = n.steps;
    o->method.rates.now.lr = n.lr;
    o->schedule = n.schedule;
    return true;
}

bool tarn_optimizer_load(tarn_optimizer *optimizer, const char *path)
{
    static const char *const function = "optimizer_load";
    if (tarn_failed() || !tarn__check_optimizer(function, optimizer))
        return false;
    tarn_scope *scope = tarn_scope_open();
    tarn_safetensors *file = scope ? tarn_safetensors_open(path) : NULL;
    bool good = file && load(optimizer, &(reading){.file = file, .path = path});
    tarn_safetensors_close(file);
    tarn_scope_close(scope);
    return good || tarn__raise_within(function);
}
