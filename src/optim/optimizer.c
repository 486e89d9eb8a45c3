/* optimizer.c: creating, stepping and freeing an optimizer of any method, and its learning rate.
 *
 * A step cuts each flat group into runs of adjacent segments with a gradient, equal rates and equal step counts, and
 * updates each run with one kernel: in the usual case two launches per group, with and without decay. Inside a captured
 * step the numbers that change (learning rate, step count) are read by the graph from memory that refresh_update()
 * rewrites before every replay. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "core/launch/graph.h"
#include "core/launch/launch.h"
#include "optim/optimizer.h"

bool tarn__check_lr(const char *function, double lr)
{
    if (tarn_failed())
        return false;
    return (lr > 0 && isfinite(lr)) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: .lr is %g; required, must be a finite number above 0", function, lr);
}

bool tarn__check_rate(const char *function, const char *what, double value, double low, double high)
{
    return (value >= low && value < high) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: .%s is %g; must be at least %g and below %g", function, what, value,
                       low, high);
}

bool tarn__check_optimizer(const char *function, const tarn_optimizer *optimizer)
{
    return optimizer || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the optimizer is NULL", function);
}

/* ---- creating ---------------------------------------------------------------------------------------------------- */

/* Before parameters move: applies a pending clipping and releases its tensors on the old devices. */
static bool finish_clipping(tarn_optimizer *o)
{
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && tarn__clip_now(o, "module_to");
    tarn_scope_close(scope);
    if (good)
        tarn__clip_release(o);
    return good;
}

/* tarn__optimizer_base.move: moves parameters between devices by building all flat buffers anew. */
static bool move(tarn__optimizer_base *base, const tarn__tensors *list, tarn_device device)
{
    tarn_optimizer *o = (tarn_optimizer *)base;
    int count = o->flats.segments;
    if (o->flats.comm)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "module_to: the state of the optimizer is sharded over %d ranks; move the module before the "
                           "optimizer is created",
                           o->flats.comm->size);
    tarn_device *devices = finish_clipping(o) ? tarn__alloc(sizeof(*devices) * (size_t)count) : NULL;
    if (!devices)
        return false;
    for (int i = 0; i < count; i++) {
        devices[i] = tarn__device(o->flats.segment[i].parameter);
        for (int k = 0; k < list->count; k++)
            if (list->tensor[k] == o->flats.segment[i].parameter)
                devices[i] = device;
    }
    tarn__flat_buffers moved;
    bool good = tarn__flat_build(&moved, &o->method, NULL, o->flats.segment, devices, count, &o->flats);
    if (good)
        o->flats = moved;
    tarn__release(devices, sizeof(*devices) * (size_t)count);
    return good;
}

/* The parameters of a module, and the groups of the options. */
typedef struct selection {
    const tarn_module *module;
    tarn__tensors all;
    const tarn_parameter_group *groups;
    int group_count;
} selection;

/* A pattern that selects nothing, or only what earlier patterns have selected, is a mistake of the user. */
static bool check_groups_used(const tarn__method *method, const selection *c)
{
    for (int g = 0; g < c->group_count; g++) {
        int i = 0;
        while (i < c->all.count &&
               tarn__param_group_of(c->groups, c->group_count, tarn_module_parameter_name(c->module, i)) != g)
            i++;
        if (i == c->all.count)
            return tarn__raise(
                TARN_ERROR_ARGUMENT,
                "%s: no parameter is in group '%s': none has such a name, or groups before it have them all",
                method->name, c->groups[g].names);
    }
    return true;
}

/* Lists the parameters to train as segments without an offset yet. Returns their number, 0 with an error. */
static int select_parameters(const tarn__method *method, const selection *c, tarn__flat_segment *list,
                             tarn_device *device)
{
    int count = 0;
    for (int i = 0; i < c->all.count; i++) {
        tarn_tensor *parameter = c->all.tensor[i];
        if (!parameter->requires_grad)
            continue;
        if (parameter->optimizer) {
            tarn__raise(TARN_ERROR_ARGUMENT, "%s: parameter '%s' is trained by another optimizer; free that one first",
                        method->name, tarn_name(parameter));
            return 0;
        }
        /* Building a name walks the whole tree, so it is skipped without groups. */
        int group = c->group_count
                        ? tarn__param_group_of(c->groups, c->group_count, tarn_module_parameter_name(c->module, i))
                        : -1;
        list[count] =
            (tarn__flat_segment){.parameter = parameter,
                                 .order = i,
                                 .rates = tarn__rates_of(method, group >= 0 ? &c->groups[group] : NULL, parameter)};
        device[count++] = tarn__device(parameter);
    }
    if (count == 0)
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: nothing to train: %s", method->name,
                    c->all.count ? "all parameters of the module are frozen" : "the module has no parameters");
    return count;
}

static bool flatten(tarn_optimizer *o, const selection *c, tarn_comm *comm)
{
    size_t list_bytes = sizeof(tarn__flat_segment) * (size_t)c->all.count,
           device_bytes = sizeof(tarn_device) * (size_t)c->all.count;
    tarn__flat_segment *list = tarn__alloc(list_bytes);
    tarn_device *device = list ? tarn__alloc(device_bytes) : NULL;
    int count = device && check_groups_used(&o->method, c) ? select_parameters(&o->method, c, list, device) : 0;
    bool good = count > 0 && tarn__flat_build(&o->flats, &o->method, comm, list, device, count, NULL);
    for (int i = 0; good && i < count; i++) {
        tarn__tensor_retain(list[i].parameter);
        list[i].parameter->optimizer = &o->base;
    }
    tarn__release(device, device_bytes);
    tarn__release(list, list_bytes);
    return good;
}

tarn_optimizer *tarn__optimizer_new(const tarn__method *method, const tarn_module *module,
                                    const tarn_parameter_group *groups, int group_count, tarn_comm *comm)
{
    selection c = {.module = module, .groups = groups, .group_count = group_count};
    if (tarn_failed() || !tarn__check_module(method->name, module) ||
        !tarn__param_groups_check(method->name, groups, group_count) || !tarn__module_tensors(module, &c.all))
        return NULL;
    tarn_optimizer *o = tarn__alloc(sizeof(*o));
    if (o) {
        o->base.move = move;
        o->method = *method;
        if (!flatten(o, &c, comm && comm->size > 1 ? comm : NULL)) {
            tarn__release(o, sizeof(*o));
            o = NULL;
        }
    }
    tarn__tensors_release(&c.all);
    return o;
}

/* Parameters outlive the optimizer: each keeps its part of the flat storage alive. */
void tarn_optimizer_free(tarn_optimizer *optimizer)
{
    if (!optimizer)
        return;
    tarn__clip_release(optimizer);
    for (int i = 0; i < optimizer->flats.segments; i++) {
        tarn_tensor *parameter = optimizer->flats.segment[i].parameter;
        parameter->optimizer = NULL;
        if (!parameter->grad_is_set) { /* an unset view would keep the whole gradient buffer alive */
            tarn__tensor_release(parameter->grad);
            parameter->grad = NULL;
        }
        tarn__tensor_release(parameter);
    }
    tarn__flat_release(&optimizer->flats);
    tarn__release(optimizer, sizeof(*optimizer));
}

/* ---- stepping ---------------------------------------------------------------------------------------------------- */

/* True when one kernel launch can update both: equal rates, and equal step counts as far as the method uses them. */
static bool can_share_launch(const tarn__method *method, const tarn__flat_segment *a, const tarn__flat_segment *b)
{
    return tarn__same_rates(a->rates, b->rates) &&
           (method->counts_steps ? a->steps == b->steps : (a->steps == 0) == (b->steps == 0));
}

/* A captured update: each replay counts a step for its segments and reads the current learning rate. The first update
 * of a step counts the optimizer's own step. */
typedef struct captured_update {
    tarn_optimizer *optimizer;
    tarn__flat_segment *first, *last;
    bool counts;
} captured_update;

/* The learning rate at step `step` of the optimizer, from 0. */
static double lr_at(const tarn_optimizer *o, int64_t step)
{
    return o->method.rates.now.lr * tarn__schedule_factor(&o->schedule, step);
}

/* The step-dependent numbers of a segment at its step `step`, from 1, in step `taken` of the optimizer, from 0. Bias
 * corrections are computed here in f64 and folded into `size` and `scale`. */
static tarn__step_scalars step_numbers(const tarn_optimizer *o, const tarn__flat_segment *segment, int64_t step,
                                       int64_t taken)
{
    const tarn__optimizer_step *rates = &o->method.rates;
    double lr = lr_at(o, taken) * segment->rates.lr_scale,
           keep = o->method.decoupled ? 1 - lr * segment->rates.decay : 1;
    return (tarn__step_scalars){.lr = lr,
                                .keep = keep,
                                .size = lr / (1 - pow(rates->beta1, (double)step)),
                                .scale = 1 / sqrt(1 - pow(rates->beta2, (double)step)),
                                .step = step};
}

/* Called before each replay of a captured step; ctx is a captured_update at any alignment. */
static void refresh_update(void *ctx, void *values)
{
    captured_update u;
    memcpy(&u, ctx, sizeof(u));
    for (tarn__flat_segment *s = u.first; s <= u.last; s++)
        s->steps++;
    u.optimizer->steps += u.counts;
    tarn__step_scalars now = step_numbers(u.optimizer, u.first, u.first->steps, u.optimizer->steps - 1);
    memcpy(values, &now, sizeof(now));
}

/* Updates the own elements of the adjacent segments first to last with one launch, then rounds parameters from their
 * master weights. *updates counts the launches of this step. */
static bool update(tarn_optimizer *o, const tarn__flat_group *group, tarn__flat_segment *first,
                   tarn__flat_segment *last, int *updates)
{
    const tarn__method *method = &o->method;
    int64_t begin = first->begin, end = last->begin + last->count;
    if (!tarn__flat_narrow(group, &begin, &end))
        return true;
    tarn_tensor *range[TARN__BUFFERS] = {0};
    for (int b = 0; b < TARN__BUFFERS; b++)
        if (group->buffer[b] && !(range[b] = tarn__flat_elements(group, b, begin, end)))
            return false;
    tarn__optimizer_step step = method->rates;
    step.now = step_numbers(o, first, first->steps + 1, o->steps);
    step.decay = method->decoupled ? 0 : first->rates.decay;
    tarn_device device = tarn__device(range[TARN__GRADIENT]);
    if (tarn__is_capturing(device) &&
        !(step.live = tarn__graph_live(sizeof(tarn__step_scalars), refresh_update,
                                       &(captured_update){o, first, last, (*updates)++ == 0}, sizeof(captured_update))))
        return false;
    bool mixed = range[TARN__MASTER] != NULL;
    tarn__launch launch = {
        .kernel = method->kernel,
        .function = method->name,
        .inputs = 2,
        .in = {range[TARN__GRADIENT], o->clipping.is_pending ? group->factor : NULL},
        .outputs = 1 + method->states,
        .out = {range[mixed ? TARN__MASTER : TARN__PARAMETER], range[TARN__STATE], range[TARN__STATE + 1]},
        .reads_output = (1u << (1 + method->states)) - 1,
        .params = &step,
        .params_bytes = sizeof(step)};
    return tarn__run(&launch) &&
           (!mixed || tarn__copy_elements(method->name, range[TARN__PARAMETER], range[TARN__MASTER]));
}

/* Cuts a group into runs of segments that can share a launch, and updates each. Gradients count as consumed then. */
static bool step_group(tarn_optimizer *o, const tarn__flat_group *group, int *updates)
{
    tarn__flat_segment *segment = &o->flats.segment[group->first];
    for (int i = 0, last; tarn__next_run(o, group, &i, &last);) {
        int end = i + 1;
        while (end < last && can_share_launch(&o->method, &segment[i], &segment[end]))
            end++;
        if (!update(o, group, &segment[i], &segment[end - 1], updates))
            return false;
        for (; i < end; i++) {
            if (!tarn__is_capturing(tarn__device(segment[i].parameter))) /* else the graph's replay counts it */
                segment[i].steps++;
            tarn__bump_version(segment[i].parameter);
            segment[i].version = segment[i].parameter->storage->version;
            segment[i].parameter->grad_is_set = false;
        }
    }
    return true;
}

/* Ranks exchange parameters through host memory, which a graph cannot. */
static bool check_sharded(const tarn_optimizer *o)
{
    return !o->flats.comm || !tarn__is_capturing(tarn__device(o->flats.segment[0].parameter)) ||
           tarn__raise(TARN_ERROR_UNSUPPORTED,
                       "optimizer_step: the step of an optimizer that is sharded over ranks cannot be captured");
}

bool tarn__optimizer_is_sharded(const tarn_optimizer *optimizer)
{
    return optimizer->flats.comm != NULL;
}

/* Gradients are consumed: after a step none is set. */
bool tarn_optimizer_step(tarn_optimizer *optimizer)
{
    if (tarn_failed() || !tarn__check_optimizer("optimizer_step", optimizer) ||
        (optimizer->clipping.is_pending && !tarn__clip_is_current(optimizer, "optimizer_step")))
        return false;
    if (optimizer->averaged)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "optimizer_step: the parameters are averages; call tarn_ema_restore() first");
    tarn_scope *scope = tarn_scope_open();
    tarn__flat_buffers *flats = &optimizer->flats;
    int updates = 0;
    bool good = scope && check_sharded(optimizer) && tarn__flat_refresh_master(&optimizer->method, flats);
    for (int g = 0; good && g < flats->groups; g++)
        good = step_group(optimizer, &flats->group[g], &updates) &&
               tarn__flat_gather("optimizer_step", flats, &flats->group[g]);
    tarn_scope_close(scope);
    if (good) {
        optimizer->clipping.is_pending = false;
        /* else the graph's replay counts it */
        optimizer->steps += !tarn__is_capturing(tarn__device(flats->segment[0].parameter));
    }
    return good;
}

/* Gradients are marked unset instead of filled with 0: the next backward pass overwrites them. */
void tarn_optimizer_zero_grad(tarn_optimizer *optimizer)
{
    if (!tarn__check_optimizer("optimizer_zero_grad", optimizer))
        return;
    optimizer->clipping.is_pending = false;
    for (int i = 0; i < optimizer->flats.segments; i++)
        optimizer->flats.segment[i].parameter->grad_is_set = false;
}

/* ---- the learning rate ------------------------------------------------------------------------------------------- */

bool tarn_optimizer_set_lr(tarn_optimizer *optimizer, double lr)
{
    if (tarn_failed() || !tarn__check_optimizer("optimizer_set_lr", optimizer))
        return false;
    if (!(lr >= 0) || !isfinite(lr)) /* 0 is allowed: a schedule of the caller may begin or end there */
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "optimizer_set_lr: the learning rate is %g; must be a finite number, at least 0", lr);
    optimizer->method.rates.now.lr = lr;
    return true;
}

double tarn_optimizer_lr(const tarn_optimizer *optimizer)
{
    return tarn__check_optimizer("optimizer_lr", optimizer) ? lr_at(optimizer, optimizer->steps) : (double)NAN;
}

int64_t tarn_optimizer_steps(const tarn_optimizer *optimizer)
{
    return tarn__check_optimizer("optimizer_steps", optimizer) ? optimizer->steps : -1;
}
