/* ema.c: the exponential moving average of parameters, average ← average + (1 - decay) · (parameter - average).
 *
 * That is a step of SGD towards the parameter: with lr = 1 - decay, a weight decay of 1 and -parameter as the gradient.
 * So one launch of the sgd kernel updates a whole flat buffer of the optimizer, on every backend, and in a captured
 * step the decay of the warm-up is a live value as a learning rate is.
 *
 * Averages are f32 (f64 for f64 parameters), of the master weights where parameters are 16-bit. Float buffers of the
 * module (running statistics) are averaged too: those of the parameters would not belong to their average.
 *
 * Applying exchanges parameters and averages of equal dtype chunk by chunk, so that no second copy of the weights is
 * needed; 16-bit parameters are rounded from either, since both are kept apart from them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "core/launch/graph.h"
#include "core/launch/launch.h"
#include "formats/safetensors.h"
#include "optim/optimizer.h"

#define CHUNK (INT64_C(1) << 20) /* elements that are exchanged at once */
#define FORMAT "tarn ema 1"

/* What one launch averages: the own shard of a flat group of the optimizer, or a buffer of the module. */
typedef struct averaged {
    tarn_tensor *source, *average, *factor; /* owned: the shard, or the buffer; the same; () f64, -1 */
    int group;                              /* of the optimizer; -1: a buffer */
} averaged;

struct tarn_ema {
    tarn_optimizer *optimizer; /* borrowed */
    tarn_ema_options options;
    int64_t updates;
    averaged *list;
    int count, capacity;
};

/* ---- creating ---------------------------------------------------------------------------------------------------- */

/* In the open scope, where it is a view. */
static tarn_tensor *source_of(const tarn__flat_group *group)
{
    return group->buffer[TARN__MASTER] ? group->buffer[TARN__MASTER]
                                       : tarn__flat_elements(group, TARN__PARAMETER, group->begin, group->end);
}

/* -1 on the device of `like`, once per device; owned. */
static tarn_tensor *factor_for(const tarn_ema *ema, const tarn_tensor *like)
{
    static const double minus_one = -1;
    for (int i = 0; i < ema->count; i++)
        if (tarn__same_device(tarn__device(ema->list[i].factor), tarn__device(like)))
            return tarn__scope_take(ema->list[i].factor);
    return tarn__scope_take(tarn_from(&minus_one, TARN_SCALAR, TARN_F64, tarn__device(like)));
}

static bool add(tarn_ema *ema, tarn_tensor *source, int group)
{
    averaged *a = &ema->list[ema->count];
    *a = (averaged){.group = group, .factor = factor_for(ema, source), .source = tarn__scope_take(source)};
    tarn_tensor *average =
        tarn__tensor_new("ema_new", tarn__shape_of(source), source->view.dtype, tarn__device(source));
    a->average = tarn__scope_take(average);
    ema->count++;
    if (!a->factor || !average || !tarn__copy_elements("ema_new", average, source))
        return false;
    tarn__storage_set_name(average->storage, "ema: averages");
    average->storage->purpose = TARN__FOR_STATE;
    return true;
}

/* A shard may be empty; it has an average without elements. */
static bool add_group(tarn_ema *ema, int g)
{
    tarn_tensor *source = source_of(&ema->optimizer->flats.group[g]);
    return source && add(ema, source, g);
}

/* Integer buffers, as counts of batches, have no average: their own value is used. */
static bool add_buffer(const tarn__parameter *buffer, void *ctx)
{
    tarn_dtype dtype = buffer->tensor->view.dtype;
    return (dtype != TARN_F32 && dtype != TARN_F64) || add(ctx, buffer->tensor, -1);
}

static bool add_all(tarn_ema *ema, const tarn_module *module)
{
    const tarn__flat_buffers *flats = &ema->optimizer->flats;
    ema->capacity = flats->groups + tarn__module_count(module, TARN__MODULE_BUFFERS);
    ema->list = tarn__alloc(sizeof(*ema->list) * (size_t)ema->capacity);
    bool good = ema->list && tarn__flat_refresh_master(&ema->optimizer->method, &ema->optimizer->flats);
    for (int g = 0; good && g < flats->groups; g++)
        good = add_group(ema, g);
    if (good)
        tarn__module_walk_over(module, TARN__MODULE_BUFFERS, add_buffer, ema);
    return good && !tarn_failed();
}

typedef struct owned {
    const tarn_optimizer *optimizer;
    int count;
} owned;

static bool count_owned(const tarn__parameter *parameter, void *ctx)
{
    owned *o = ctx;
    o->count += parameter->tensor->optimizer == (const void *)o->optimizer;
    return true;
}

/* The optimizer trains parameters of the module alone, and they are not averages. */
static bool check_pair(const tarn_module *module, const tarn_optimizer *optimizer)
{
    owned o = {.optimizer = optimizer};
    tarn__module_walk_over(module, TARN__MODULE_PARAMETERS, count_owned, &o);
    if (o.count < optimizer->flats.segments)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "ema_new: the module has %d of the %d parameters that the optimizer trains; it must be the "
                           "optimizer's module",
                           o.count, optimizer->flats.segments);
    return !optimizer->averaged ||
           tarn__raise(TARN_ERROR_ARGUMENT, "ema_new: averages are applied; call tarn_ema_restore() first");
}

tarn_ema *tarn_ema_new_sized(tarn_module *module, tarn_optimizer *optimizer, const tarn_ema_options *options,
                             size_t options_size)
{
    tarn_ema_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (tarn_failed() || !tarn__check_module("ema_new", module) || !tarn__check_optimizer("ema_new", optimizer))
        return NULL;
    if (!(chosen.decay > 0 && chosen.decay < 1)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "ema_new: .decay is %g; required, must be above 0 and below 1", chosen.decay);
        return NULL;
    }
    if (!check_pair(module, optimizer))
        return NULL;
    tarn_ema *ema = tarn__alloc(sizeof(*ema));
    if (!ema)
        return NULL;
    *ema = (tarn_ema){.optimizer = optimizer, .options = chosen};
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && add_all(ema, module);
    tarn_scope_close(scope);
    if (good)
        return ema;
    tarn_ema_free(ema);
    return NULL;
}

/* Averages that are applied stay, as values of the parameters: master weights are read from them before the next
 * step. */
static void keep_applied(const tarn_ema *ema)
{
    tarn__flat_buffers *flats = &ema->optimizer->flats;
    if (ema->optimizer->averaged != ema)
        return;
    ema->optimizer->averaged = NULL;
    for (int i = 0; i < flats->segments; i++)
        flats->segment[i].version = flats->segment[i].parameter->storage->version - 1;
}

void tarn_ema_free(tarn_ema *ema)
{
    if (!ema)
        return;
    keep_applied(ema);
    for (int i = 0; i < ema->count; i++) {
        tarn_free(ema->list[i].source);
        tarn_free(ema->list[i].average);
        tarn_free(ema->list[i].factor);
    }
    tarn__release(ema->list, sizeof(*ema->list) * (size_t)ema->capacity);
    tarn__release(ema, sizeof(*ema));
}

int64_t tarn__ema_bytes(const tarn_ema *ema)
{
    int64_t bytes = 0;
    for (int i = 0; i < ema->count; i++)
        bytes += tarn_bytes(ema->list[i].average);
    return bytes;
}

/* ---- updating ---------------------------------------------------------------------------------------------------- */

static bool check(const char *function, const tarn_ema *ema)
{
    return ema || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the average is NULL", function);
}

/* Parameters that were moved have new flat buffers, and buffers another device; those of sharded state are never moved.
 */
static bool check_place(const char *function, const tarn_ema *ema)
{
    const tarn__flat_buffers *flats = &ema->optimizer->flats;
    for (int i = 0; i < ema->count; i++) {
        const averaged *a = &ema->list[i];
        bool is_same =
            a->group < 0 ? tarn__same_device(tarn__device(a->source), tarn__device(a->average))
                         : flats->comm || (a->group < flats->groups && source_of(&flats->group[a->group]) == a->source);
        if (!is_same)
            return tarn__raise(TARN_ERROR_DEVICE,
                               "%s: the module was moved to another device after tarn_ema_new(); create the average "
                               "where the module is trained",
                               function);
    }
    return true;
}

/* The decay of update number `update`, from 1. */
static double decay_at(const tarn_ema *ema, int64_t update)
{
    double rising = (1 + (double)update) / (10 + (double)update);
    return ema->options.warmup && rising < ema->options.decay ? rising : ema->options.decay;
}

static tarn__step_scalars scalars_at(const tarn_ema *ema, int64_t update)
{
    return (tarn__step_scalars){.lr = 1 - decay_at(ema, update), .keep = 1, .step = update};
}

/* Called before each replay of a captured step; ctx is a pointer to the average at any alignment. */
static void refresh_update(void *ctx, void *values)
{
    tarn_ema *ema;
    memcpy(&ema, ctx, sizeof(ema));
    tarn__step_scalars now = scalars_at(ema, ++ema->updates);
    memcpy(values, &now, sizeof(now));
}

static bool update_one(const averaged *a, const tarn__optimizer_step *step)
{
    return tarn_count(a->average) == 0 || tarn__run(&(tarn__launch){.kernel = TARN__K_sgd,
                                                                    .function = "ema_update",
                                                                    .inputs = 2,
                                                                    .in = {a->source, a->factor},
                                                                    .outputs = 1,
                                                                    .out = {a->average},
                                                                    .reads_output = 1,
                                                                    .params = step,
                                                                    .params_bytes = sizeof(*step)});
}

/* All launches share the scalars of the step: in a captured one a single live value. */
static bool update(tarn_ema *ema)
{
    tarn__optimizer_step step = {.decay = 1, .now = scalars_at(ema, ema->updates + 1)};
    bool is_captured = tarn__is_capturing(tarn__device(ema->list[0].average)), good = true;
    if (is_captured && !(step.live = tarn__graph_live(sizeof(step.now), refresh_update, &ema, sizeof(ema))))
        return false;
    for (int i = 0; good && i < ema->count; i++)
        good = update_one(&ema->list[i], &step);
    ema->updates += good && !is_captured; /* else each replay counts it */
    return good;
}

bool tarn_ema_update(tarn_ema *ema)
{
    static const char *const function = "ema_update";
    if (tarn_failed() || !check(function, ema) || !check_place(function, ema))
        return false;
    if (ema->optimizer->averaged)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: averages are applied; call tarn_ema_restore() first", function);
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && tarn__flat_refresh_master(&ema->optimizer->method, &ema->optimizer->flats) && update(ema);
    tarn_scope_close(scope);
    return good;
}

int64_t tarn_ema_updates(const tarn_ema *ema)
{
    return check("ema_updates", ema) ? ema->updates : -1;
}

/* ---- applying ---------------------------------------------------------------------------------------------------- */

static bool exchange(tarn_tensor *a, tarn_tensor *b)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *kept = scope ? tarn_clone(a) : NULL;
    bool good = kept && tarn__copy_elements("ema_apply", a, b) && tarn__copy_elements("ema_apply", b, kept);
    tarn_scope_close(scope);
    return good;
}

static bool exchange_chunks(tarn_tensor *a, tarn_tensor *b)
{
    int64_t count = a->view.shape[0];
    bool good = true;
    for (int64_t begin = 0, end; good && begin < count; begin = end) {
        end = count - begin < CHUNK ? count : begin + CHUNK;
        tarn_tensor *from = tarn__flat_range(a, begin, end), *to = from ? tarn__flat_range(b, begin, end) : NULL;
        good = to && exchange(from, to);
    }
    return good;
}

/* The parameters have other values now, and their master weights still belong to them. */
static void mark_written(tarn_optimizer *o, const tarn__flat_group *group)
{
    for (int i = group->first; i < group->first + group->segments; i++) {
        tarn__flat_segment *segment = &o->flats.segment[i];
        tarn__bump_version(segment->parameter);
        segment->version = segment->parameter->storage->version;
    }
}

static bool switch_one(tarn_ema *ema, const averaged *a)
{
    if (a->group < 0) {
        tarn__bump_version(a->source);
        return exchange(a->source, a->average);
    }
    const tarn__flat_buffers *flats = &ema->optimizer->flats;
    const tarn__flat_group *group = &flats->group[a->group];
    bool is_applied = ema->optimizer->averaged == ema,
         good = group->buffer[TARN__MASTER]
                    ? tarn__flat_round("ema_apply", flats, group, is_applied ? NULL : a->average)
                    : exchange_chunks(a->source, a->average) && tarn__flat_gather("ema_apply", flats, group);
    mark_written(ema->optimizer, group);
    return good;
}

static bool switch_all(const char *function, tarn_ema *ema)
{
    if (!check_place(function, ema))
        return false;
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && (ema->optimizer->averaged ||
                          tarn__flat_refresh_master(&ema->optimizer->method, &ema->optimizer->flats));
    for (int i = 0; good && i < ema->count; i++)
        good = switch_one(ema, &ema->list[i]);
    tarn_scope_close(scope);
    if (good)
        ema->optimizer->averaged = ema->optimizer->averaged ? NULL : ema;
    return good || tarn__raise_within(function);
}

bool tarn_ema_apply(tarn_ema *ema)
{
    static const char *const function = "ema_apply";
    if (tarn_failed() || !check(function, ema))
        return false;
    return !ema->optimizer->averaged
               ? switch_all(function, ema)
               : tarn__raise(TARN_ERROR_ARGUMENT, "%s: averages are applied already; call tarn_ema_restore() first",
                             function);
}

bool tarn_ema_restore(tarn_ema *ema)
{
    static const char *const function = "ema_restore";
    if (tarn_failed() || !check(function, ema))
        return false;
    return ema->optimizer->averaged == ema
               ? switch_all(function, ema)
               : tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s; call tarn_ema_apply() first", function,
                             ema->optimizer->averaged ? "the averages of another one are applied"
                                                      : "the averages are not applied");
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Calls `visit` for every average, by the name and in the shape of its parameter or buffer, until it returns false. */
typedef bool (*visit_fn)(const char *name, const tarn__tensor_part *part, void *ctx);

static bool walk(const tarn_ema *ema, visit_fn visit, void *ctx)
{
    const tarn__flat_buffers *flats = &ema->optimizer->flats;
    for (int i = 0; i < ema->count; i++) {
        const averaged *a = &ema->list[i];
        tarn__tensor_part part = {.dtype = a->average->view.dtype,
                                  .shape = tarn__shape_of(a->average),
                                  .elements = a->average,
                                  .is_whole = true};
        if (a->group < 0 && !visit(tarn_name(a->source), &part, ctx))
            return false;
        for (int k = 0; a->group >= 0 && k < flats->group[a->group].segments; k++) {
            const tarn__flat_segment *segment = &flats->segment[flats->group[a->group].first + k];
            if (!tarn__flat_part(flats, &flats->group[a->group], segment, a->average, &part) ||
                !visit(tarn_name(segment->parameter), &part, ctx))
                return false;
        }
    }
    return true;
}

static bool write_one(const char *name, const tarn__tensor_part *part, void *writer)
{
    return tarn__safetensors_add_part(writer, name, part);
}

/* Averages are in the parameters while they are applied. */
static bool check_file_use(const char *function, const tarn_ema *ema)
{
    if (tarn_failed() || !check(function, ema) || !check_place(function, ema))
        return false;
    return !ema->optimizer->averaged ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: averages are applied; call tarn_ema_restore() first", function);
}

bool tarn_ema_save(tarn_ema *ema, const char *path)
{
    static const char *const function = "ema_save";
    char updates[32];
    if (!check_file_use(function, ema))
        return false;
    snprintf(updates, sizeof(updates), "%" PRId64, ema->updates);
    tarn_scope *scope = tarn_scope_open();
    tarn_safetensors_writer *writer = scope ? tarn_safetensors_create(path) : NULL;
    bool good = writer && tarn_safetensors_add_metadata(writer, "format", FORMAT) &&
                tarn_safetensors_add_metadata(writer, "updates", updates) && tarn_safetensors_add_checksums(writer) &&
                walk(ema, write_one, writer);
    if (good)
        good = tarn__optimizer_finish_file(ema->optimizer, writer);
    else
        tarn_safetensors_cancel(writer);
    tarn_scope_close(scope);
    return good || tarn__raise_within(function);
}

/* A file while it is checked and read. */
typedef struct reading {
    const tarn_safetensors *file;
    const char *path;
    int count; /* tensors of the file that were matched */
} reading;

static bool check_one(const char *name, const tarn__tensor_part *part, void *ctx)
{
    reading *r = ctx;
    tarn_safetensors_entry entry;
    tarn__shape_buffer have, want;
    int index = tarn_safetensors_find(r->file, name);
    if (index < 0)
        return tarn__raise(TARN_ERROR_FORMAT, "'%s': tensor '%s' not found; the file is of another module", r->path,
                           name);
    if (!tarn_safetensors_info(r->file, index, &entry))
        return false;
    r->count++;
    bool same = entry.dtype == part->dtype && entry.shape.rank == part->shape.rank;
    for (int i = 0; same && i < entry.shape.rank; i++)
        same = entry.shape.size[i] == part->shape.size[i];
    return same ||
           tarn__raise(TARN_ERROR_SHAPE, "'%s' has '%s' as %s %s, not as %s %s", r->path, name, entry.dtype_name,
                       tarn__shape_string(entry.shape.size, entry.shape.rank, &have), tarn_dtype_name(part->dtype),
                       tarn__shape_string(part->shape.size, part->shape.rank, &want));
}

static bool read_one(const char *name, const tarn__tensor_part *part, void *ctx)
{
    return tarn__safetensors_read_part(((reading *)ctx)->file, name, part);
}

/* Everything is checked before anything changes. */
static bool load(tarn_ema *ema, reading *r)
{
    const char *format = tarn_safetensors_metadata(r->file, "format"),
               *updates = tarn_safetensors_metadata(r->file, "updates");
    if (!format || strcmp(format, FORMAT) != 0 || !updates || !updates[0] || strlen(updates) > 18 ||
        strspn(updates, "0123456789") != strlen(updates))
        return tarn__raise(TARN_ERROR_FORMAT, "'%s' is not a file of tarn_ema_save()", r->path);
    if (!walk(ema, check_one, r))
        return false;
    if (r->count != tarn_safetensors_count(r->file))
        return tarn__raise(TARN_ERROR_FORMAT, "'%s' has %d tensors, of which %d belong to this module", r->path,
                           tarn_safetensors_count(r->file), r->count);
    if (!tarn__safetensors_verify("ema_load", r->file) || !walk(ema, read_one, r))
        return false;
    ema->updates = strtoll(updates, NULL, 10);
    return true;
}

bool tarn_ema_load(tarn_ema *ema, const char *path)
{
    static const char *const function = "ema_load";
    if (!check_file_use(function, ema))
        return false;
    tarn_scope *scope = tarn_scope_open();
    tarn_safetensors *file = scope ? tarn_safetensors_open(path) : NULL;
    bool good = file && load(ema, &(reading){.file = file, .path = path});
    tarn_safetensors_close(file);
    tarn_scope_close(scope);
    return good || tarn__raise_within(function);
}
