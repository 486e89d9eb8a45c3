/* optimizer.c: making, stepping and freeing an optimizer, whatever its method. */
#include "optim/optimizer.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "core/graph.h"
#include "core/launch.h"
#include "optim/flat.h"

struct tarn_optimizer {
    tarn__trainer trainer; /* first: what tensor->trainer points to */
    tarn__method method;
    tarn__flats flats;
};

bool tarn__check_lr(const char *function, double lr)
{
    if (tarn_failed())
        return false;
    return (lr > 0 && isfinite(lr)) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: the learning rate is %g; .lr is required and must be above 0", function, lr);
}

bool tarn__check_rate(const char *function, const char *what, double value, double low, double high)
{
    return (value >= low && value < high) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: .%s is %g, but must be at least %g and below %g", function, what, value, low, high);
}

static bool check_optimizer(const char *function, const tarn_optimizer *optimizer)
{
    return optimizer || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the optimizer is NULL", function);
}

/* ---- making ---------------------------------------------------------------------------------------------------------------- */

/* Moves parameters between devices by laying all of them out anew. */
static bool move(tarn__trainer *trainer, const tarn__tensors *list, tarn_device device)
{
    tarn_optimizer *o = (tarn_optimizer *)trainer;
    int count = o->flats.segments;
    tarn_device *devices = tarn__alloc(sizeof(*devices) * (size_t)count);
    if (!devices)
        return false;
    for (int i = 0; i < count; i++) {
        devices[i] = tarn__device(o->flats.segment[i].parameter);
        for (int k = 0; k < list->count; k++)
            if (list->tensor[k] == o->flats.segment[i].parameter)
                devices[i] = device;
    }
    tarn__flats moved;
    bool good = tarn__flats_build(&moved, &o->method, o->flats.segment, devices, count, &o->flats);
    if (good)
        o->flats = moved;
    tarn__release(devices, sizeof(*devices) * (size_t)count);
    return good;
}

static bool decays(const tarn__method *method, const tarn_tensor *parameter)
{
    return method->decay_all || method->rates.decay == 0 || parameter->view.rank >= 2;
}

/* The parameters to train, as segments without a place yet. */
static int choose(const tarn__method *method, const tarn__tensors *all, tarn__segment *list, tarn_device *device)
{
    int count = 0;
    for (int i = 0; i < all->count; i++) {
        tarn_tensor *parameter = all->tensor[i];
        if (!parameter->requires_grad)
            continue;
        if (parameter->trainer) {
            tarn__raise(TARN_ERROR_ARGUMENT, "%s: parameter '%s' is trained by another optimizer; free that one first", method->name,
                        tarn_name(parameter));
            return 0;
        }
        list[count] = (tarn__segment){.parameter = parameter, .decays = decays(method, parameter)};
        device[count++] = tarn__device(parameter);
    }
    if (count == 0)
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: there is nothing to train: %s", method->name,
                    all->count ? "all parameters of the module are frozen" : "the module has no parameters");
    return count;
}

static bool flatten(tarn_optimizer *o, const tarn__tensors *all)
{
    size_t list_bytes = sizeof(tarn__segment) * (size_t)all->count, device_bytes = sizeof(tarn_device) * (size_t)all->count;
    tarn__segment *list = tarn__alloc(list_bytes);
    tarn_device *device = list ? tarn__alloc(device_bytes) : NULL;
    int count = device ? choose(&o->method, all, list, device) : 0;
    bool good = count > 0 && tarn__flats_build(&o->flats, &o->method, list, device, count, NULL);
    for (int i = 0; good && i < count; i++) {
        tarn__hold(list[i].parameter);
        list[i].parameter->trainer = &o->trainer;
    }
    tarn__release(device, device_bytes);
    tarn__release(list, list_bytes);
    return good;
}

tarn_optimizer *tarn__optimizer_new(const tarn__method *method, const tarn_module *module)
{
    tarn__tensors all;
    if (tarn_failed() || !tarn__check_module(method->name, module) || !tarn__module_tensors(module, &all))
        return NULL;
    tarn_optimizer *o = tarn__alloc(sizeof(*o));
    if (o) {
        o->trainer.move = move;
        o->method = *method;
        if (!flatten(o, &all)) {
            tarn__release(o, sizeof(*o));
            o = NULL;
        }
    }
    tarn__tensors_release(&all);
    return o;
}

void tarn_optimizer_free(tarn_optimizer *optimizer)
{
    if (!optimizer)
        return;
    for (int i = 0; i < optimizer->flats.segments; i++) {
        tarn_tensor *parameter = optimizer->flats.segment[i].parameter;
        parameter->trainer = NULL;
        if (!parameter->grad_is_set) { /* an empty place would keep the whole gradient buffer alive */
            tarn__drop(parameter->grad);
            parameter->grad = NULL;
        }
        tarn__drop(parameter);
    }
    tarn__flats_release(&optimizer->flats);
    tarn__release(optimizer, sizeof(*optimizer));
}

/* ---- stepping -------------------------------------------------------------------------------------------------------------- */

/* True when one kernel call can update both: the same decay, and the same place in the optimizer's history. */
static bool go_together(const tarn__method *method, const tarn__segment *a, const tarn__segment *b)
{
    return a->decays == b->decays && (method->counts_steps ? a->steps == b->steps : (a->steps == 0) == (b->steps == 0));
}

/* A captured update: each run counts a step for its segments and reads the learning rate of the moment. */
typedef struct captured_update {
    const tarn__method *method;
    tarn__segment *first, *last;
} captured_update;

/* The numbers of a segment's step number `step`. */
static tarn__step_now numbers_at(const tarn__method *method, const tarn__segment *segment, int64_t step)
{
    const tarn__optimizer_step *rates = &method->rates;
    double lr = rates->now.lr, first_left = 1 - pow(rates->beta1, (double)step), second_left = 1 - pow(rates->beta2, (double)step);
    return (tarn__step_now){.lr = lr, .keep = 1 - lr * (segment->decays ? rates->decay : 0), .size = lr / first_left,
                            .scale = 1 / sqrt(second_left), .step = step};
}

static void refresh_update(void *ctx, void *values)
{
    captured_update u;
    memcpy(&u, ctx, sizeof(u));
    for (tarn__segment *s = u.first; s <= u.last; s++)
        s->steps++;
    tarn__step_now now = numbers_at(u.method, u.first, u.first->steps);
    memcpy(values, &now, sizeof(now));
}

/* Updates neighbours, from one segment to another, with one kernel. */
static bool update(const tarn__method *method, const tarn__group *group, tarn__segment *first, tarn__segment *last)
{
    int64_t begin = first->begin, end = last->begin + last->count;
    if (end == begin)
        return true;
    tarn_tensor *range[TARN__BUFFERS] = {0};
    for (int b = 0; b < TARN__BUFFERS; b++)
        if (group->buffer[b] && !(range[b] = tarn__flat_range(group->buffer[b], begin, end)))
            return false;
    tarn__optimizer_step step = method->rates;
    step.now = numbers_at(method, first, first->steps + 1);
    step.decay = first->decays ? step.decay : 0;
    tarn_device device = tarn__device(range[TARN__GRADIENT]);
    if (tarn__is_capturing(device) &&
        !(step.live = tarn__graph_live(sizeof(tarn__step_now), refresh_update, &(captured_update){method, first, last}, sizeof(captured_update))))
        return false;
    bool mixed = range[TARN__MASTER] != NULL;
    tarn__launch launch = {.kernel = method->kernel,
                           .function = method->name,
                           .inputs = 1,
                           .in = {range[TARN__GRADIENT]},
                           .outputs = 1 + method->states,
                           .out = {range[mixed ? TARN__MASTER : TARN__PARAMETER], range[TARN__STATE], range[TARN__STATE + 1]},
                           .reads_output = (1u << (1 + method->states)) - 1,
                           .params = &step,
                           .params_bytes = sizeof(step)};
    return tarn__run(&launch) && (!mixed || tarn__copy_elements(method->name, range[TARN__PARAMETER], range[TARN__MASTER]));
}

/* Cuts a group into runs of neighbours that have a gradient and go together, and updates each. */
static bool step_group(const tarn__method *method, const tarn__group *group, tarn__segment *segment)
{
    for (int i = 0; i < group->segments;) {
        if (!segment[i].parameter->grad_is_set) {
            i++;
            continue;
        }
        int end = i + 1;
        while (end < group->segments && segment[end].parameter->grad_is_set && go_together(method, &segment[i], &segment[end]))
            end++;
        if (!update(method, group, &segment[i], &segment[end - 1]))
            return false;
        for (; i < end; i++) {
            if (!tarn__is_capturing(tarn__device(segment[i].parameter))) /* else a run of the graph counts it */
                segment[i].steps++;
            tarn__touch(segment[i].parameter);
            segment[i].version = segment[i].parameter->storage->version;
            segment[i].parameter->grad_is_set = false;
        }
    }
    return true;
}

bool tarn_optimizer_step(tarn_optimizer *optimizer)
{
    if (tarn_failed() || !check_optimizer("optimizer_step", optimizer))
        return false;
    tarn_scope *scope = tarn_scope_open();
    tarn__flats *flats = &optimizer->flats;
    bool good = scope && tarn__flats_refresh(&optimizer->method, flats);
    for (int g = 0; good && g < flats->groups; g++)
        good = step_group(&optimizer->method, &flats->group[g], &flats->segment[flats->group[g].first]);
    tarn_scope_close(scope);
    return good;
}

void tarn_optimizer_zero_grad(tarn_optimizer *optimizer)
{
    if (!check_optimizer("optimizer_zero_grad", optimizer))
        return;
    for (int i = 0; i < optimizer->flats.segments; i++)
        optimizer->flats.segment[i].parameter->grad_is_set = false;
}

/* ---- the learning rate ----------------------------------------------------------------------------------------------------- */

bool tarn_optimizer_set_lr(tarn_optimizer *optimizer, double lr)
{
    if (tarn_failed() || !check_optimizer("optimizer_set_lr", optimizer))
        return false;
    if (!(lr >= 0) || !isfinite(lr)) /* a schedule may begin or end at 0 */
        return tarn__raise(TARN_ERROR_ARGUMENT, "optimizer_set_lr: the learning rate is %g, but must be 0 or above", lr);
    optimizer->method.rates.now.lr = lr;
    return true;
}

double tarn_optimizer_lr(const tarn_optimizer *optimizer)
{
    return check_optimizer("optimizer_lr", optimizer) ? optimizer->method.rates.now.lr : (double)NAN;
}
