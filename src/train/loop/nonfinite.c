/* nonfinite.c: finds the step and the layer that first gave a non-finite value.
 *
 * Losses are read late, some steps after the fact, and by then every weight may be lost. But a run is deterministic
 * from its checkpoint: the steps are repeated from there with every gradient checked, up to the bad one. They are
 * repeated once more up to the step before it, which gives a state worth saving, and then the bad step is watched layer
 * by layer. All steps here run eagerly. Every path ends with an error. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "nn/module.h"
#include "train/tasks/task.h"

/* Loads the last checkpoint and its random state. False with an error. */
static bool restore_checkpoint(tarn_trainer *t)
{
    tarn_optimizer_zero_grad(t->optimizer);
    if (!tarn__checkpoint_load("trainer_run", t))
        return false;
    tarn__random_restore(&t->random);
    return true;
}

/* True when the loss or a gradient of the next step is not finite. Computes gradients only; the optimizer step is the
 * caller's. */
static bool step_is_nonfinite(tarn_trainer *t)
{
    tarn__step_metrics metrics;
    tarn_scope *scope = tarn_scope_open();
    bool is_nonfinite = scope && tarn__train_gradients(t, &metrics) &&
                        (!isfinite(tarn_item(metrics.loss)) || tarn_optimizer_nonfinite(t->optimizer));
    tarn_scope_close(scope);
    return is_nonfinite;
}

/* Number of finite steps before the first non-finite one; `last` if there is none, which determinism rules out. */
static int64_t count_finite_steps(tarn_trainer *t, int64_t last)
{
    while (t->state.step < last && !tarn_failed() && !step_is_nonfinite(t)) {
        tarn_optimizer_step(t->optimizer);
        t->state.step++;
    }
    return t->state.step;
}

static bool repeat(tarn_trainer *t, int64_t steps)
{
    while (t->state.step < steps && !tarn_failed()) {
        tarn__step_metrics metrics;
        tarn_scope *scope = tarn_scope_open();
        tarn__train_step(t, &metrics);
        tarn_scope_close(scope);
    }
    return !tarn_failed();
}

/* ---- the layer --------------------------------------------------------------------------------------------------- */

typedef struct watch {
    tarn__observer observer; /* first member: cast back in on_output() */
    char found[256];         /* "the output of layer 'layer1.0.conv1' (conv2d)" */
} watch;

/* "layer1.0.conv1", appended to `text` from the root on. */
static void append_path(const tarn_module *module, char *text, size_t size)
{
    if (!module->parent)
        return;
    append_path(module->parent, text, size);
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", used ? "." : "", module->name);
}

/* 0 * x summed is 0, or NaN if any x is not finite: one value is read instead of the tensor. */
static bool is_finite(tarn_tensor *y)
{
    return isfinite(tarn_item(tarn_sum(tarn_mul(tarn_detach(y), tarn_scalar(0)), TARN_ALL_AXES, false)));
}

/* Leaves only, first one wins: later layers are non-finite because of it. */
static void on_output(tarn__observer *observer, tarn_module *module, const tarn_tensor *y)
{
    watch *w = (watch *)observer;
    if (w->found[0] || module->children > 0 || is_finite((tarn_tensor *)y))
        return;
    char path[128] = "";
    append_path(module, path, sizeof(path));
    snprintf(w->found, sizeof(w->found), "the output of layer '%s' (%s)", path, tarn_module_kind(module));
}

/* Computes the gradients of the bad step under observation and names the non-finite value: a layer's output, the loss,
 * or a gradient. */
static void find_layer(tarn_trainer *t, watch *w)
{
    tarn__step_metrics metrics;
    tarn_scope *scope = tarn_scope_open();
    w->observer.on_output = on_output;
    tarn__observer *before = tarn__observe_forward(&w->observer);
    bool good = scope && tarn__train_gradients(t, &metrics);
    tarn__observe_forward(before);
    if (good && !w->found[0]) {
        const char *name = isfinite(tarn_item(metrics.loss)) ? tarn_optimizer_nonfinite(t->optimizer) : NULL;
        snprintf(w->found, sizeof(w->found), name ? "the gradient of '%s'" : "the loss", name);
    }
    tarn_scope_close(scope);
}

/* The layer is known to the ranks whose samples reach it: the first of them names it. */
static bool choose_found(tarn_trainer *t, watch *w)
{
    const tarn__ranks *r = &t->ranks;
    if (r->size == 1)
        return true;
    bool good = true, is_found = false;
    for (int i = 0; good && i < r->size && !is_found; i++) {
        char text[sizeof(w->found)];
        memcpy(text, w->found, sizeof(text));
        good = tarn_comm_broadcast(r->comm, i, text, sizeof(text));
        is_found = good && strncmp(text, "the output", strlen("the output")) == 0;
        if (is_found)
            memcpy(w->found, text, sizeof(text));
    }
    return good;
}

/* Repeats the evaluation under observation. No steps are repeated: the weights after the step are still in memory. */
bool tarn__find_nonfinite_evaluation(tarn_trainer *t)
{
    tarn__evaluation again;
    watch w = {.observer.on_output = on_output, .found = ""};
    tarn__observer *before = tarn__observe_forward(&w.observer);
    t->task->evaluate(t, &again);
    tarn__observe_forward(before);
    if (tarn_failed() || !choose_found(t, &w))
        return false;
    return tarn__raise(TARN_ERROR_ARGUMENT,
                       "trainer_run: step %" PRId64 ": the validation loss is not finite%s%s; the last checkpoint is "
                       "in '%s'; a smaller learning rate, a warm-up or clip_norm may help",
                       t->state.step, w.found[0] ? ": first " : "", w.found, t->options.out);
}

bool tarn__find_nonfinite(tarn_trainer *t, int64_t last)
{
    watch w = {.found = ""};
    if (!restore_checkpoint(t))
        return false;
    int64_t good = count_finite_steps(t, last);
    if (tarn_failed() || !restore_checkpoint(t) || !repeat(t, good) || !tarn__checkpoint_save(t) ||
        !tarn__ranks_wait(t))
        return false;
    find_layer(t, &w);
    if (tarn_failed() || !choose_found(t, &w))
        return false;
    return tarn__raise(
        TARN_ERROR_ARGUMENT,
        "trainer_run: step %" PRId64
        ": %s is not finite; the state before that step is in '%s'; a smaller learning rate, a warm-up or "
        "clip_norm may help",
        good + 1, w.found, t->options.out);
}
