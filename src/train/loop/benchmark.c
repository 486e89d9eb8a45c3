/* benchmark.c: times of a training step (tarn_train_measure()).
 *
 * Whole steps are timed without any other measurement, one after the other as in a run, between two events in the
 * device's stream. Host time, utilization and phases are measured on further steps, so that the measurement does not
 * change the step time. Data is random; the trainer is created here and freed at the end. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/platform.h"
#include "core/profile/profiler.h"
#include "models/lm/arch.h"
#include "train/tasks/task.h"

/* steps that can be timed; EXTRA_STEPS: steps for each of the other measurements */
enum { MAX_STEPS = 100000, EXTRA_STEPS = 5 };

/* ---- statistics -------------------------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values in place, so that values[0] is the minimum afterwards. */
static double median(double *ms, int64_t count)
{
    qsort(ms, (size_t)count, sizeof(*ms), compare_doubles);
    return (ms[(count - 1) / 2] + ms[count / 2]) / 2;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static bool step_once(tarn_trainer *t)
{
    t->unread_steps = 0; /* the metrics are not read: overwrite the same slot */
    return tarn__take_step(t);
}

/* Milliseconds per step. Events are read at the end only: reading one waits for the device. */
static bool time_steps(tarn_trainer *t, int64_t steps, double *ms)
{
    size_t bytes = sizeof(tarn_event *) * (size_t)(steps + 1);
    tarn_event **event = tarn__alloc(bytes);
    bool good = event && tarn_synchronize(t->device) && (event[0] = tarn_event_record(t->device)) != NULL;
    for (int64_t i = 0; good && i < steps; i++)
        good = step_once(t) && (event[i + 1] = tarn_event_record(t->device)) != NULL;
    for (int64_t i = 0; good && i < steps; i++)
        ms[i] = tarn_event_elapsed(event[i], event[i + 1]) / 1e3;
    for (int64_t i = 0; event && i <= steps; i++)
        tarn_event_free(event[i]);
    tarn__release(event, bytes);
    return good && !tarn_failed();
}

/* The device is idle when the host starts, so that the host never waits for a full queue. */
static bool time_host(tarn_trainer *t, int64_t steps, double *ms)
{
    for (int64_t i = 0; i < steps; i++) {
        if (!tarn_synchronize(t->device))
            return false;
        double before = tarn__platform_seconds();
        if (!step_once(t))
            return false;
        ms[i] = 1e3 * (tarn__platform_seconds() - before);
    }
    return true;
}

/* With the phase timer open, steps run eagerly (tarn__step_graph_is_due()). */
static bool time_phases(tarn_trainer *t, int64_t steps, double (*ms)[EXTRA_STEPS])
{
    bool good = tarn__phase_timer_open(t);
    for (int64_t i = 0; good && i < steps; i++) {
        double phases[TARN__PHASES];
        good = step_once(t) && tarn__phase_timer_read(t, phases);
        for (int k = 0; good && k < TARN__PHASES; k++)
            ms[k][i] = phases[k];
    }
    tarn__phase_timer_close(t);
    return good;
}

/* Milliseconds that the device works per step, by the profiler; compared with the time of unprofiled steps. */
static bool time_device(tarn_trainer *t, int64_t steps, double *ms)
{
    for (int64_t i = 0; i < steps; i++) {
        if (!tarn__sample_start(t->device))
            return !tarn_failed() &&
                   tarn__raise(TARN_ERROR_ARGUMENT, "train_measure: a profile is being recorded; stop it first");
        bool good = step_once(t);
        good = tarn__sample_stop(&ms[i]) && good;
        if (!good)
            return false;
        ms[i] /= 1e3;
    }
    return true;
}

static bool time_all(tarn_trainer *t, int64_t warmup, int64_t steps, double *ms, tarn_train_timing *timing)
{
    double host[EXTRA_STEPS], utilization[EXTRA_STEPS], phases[TARN__PHASES][EXTRA_STEPS];
    int64_t extra = steps < EXTRA_STEPS ? steps : EXTRA_STEPS;
    for (int64_t i = 0; i < warmup; i++)
        if (!step_once(t))
            return false;
    tarn_stats_reset(); /* peak memory is that of steady steps, without the warm-up */
    if (!time_steps(t, steps, ms))
        return false;
    /* read here: some of the steps below run eagerly */
    timing->memory = tarn_memory_kinds_of(t->device);
    timing->is_captured = t->step_graph.graph != NULL;
    if (!time_host(t, extra, host) || !time_device(t, extra, utilization) || !time_phases(t, extra, phases))
        return false;
    timing->step_ms = median(ms, steps);
    timing->min_step_ms = ms[0];
    timing->host_ms = median(host, extra);
    timing->utilization = fmin(median(utilization, extra) / timing->step_ms, 1);
    timing->batch_ms = median(phases[TARN__PHASE_BATCH], extra);
    timing->forward_ms = median(phases[TARN__PHASE_FORWARD], extra);
    timing->backward_ms = median(phases[TARN__PHASE_BACKWARD], extra);
    timing->update_ms = median(phases[TARN__PHASE_UPDATE], extra);
    return !tarn_failed();
}

/* ---- the measurement --------------------------------------------------------------------------------------------- */

/* Parameters, FLOPs and tokens per step; the options are those with defaults resolved. */
static void describe(const tarn_trainer *t, tarn_train_timing *timing)
{
    timing->options = t->options;
    timing->samples = t->batch_size;
    timing->tokens = t->batch_size * t->options.context; /* context is 0 without tokens */
    tarn__weight_counts counts = tarn__count_weights(t->model);
    timing->parameters = counts.trained;
    timing->frozen = counts.frozen;
    timing->flops = t->task->step_flops ? t->task->step_flops(t) : 0;
}

/* The random state and TF32 setting of the caller's thread are restored. */
static bool measure(const tarn_train_options *options, int64_t warmup, int64_t steps, tarn_train_timing *timing)
{
    tarn__thread_settings callers;
    size_t bytes = sizeof(double) * (size_t)steps;
    double *ms = tarn__alloc(bytes);
    tarn_trainer *t = ms ? tarn__trainer_on_random_data("train_measure", options) : NULL;
    bool good = t != NULL;
    if (good) {
        describe(t, timing);
        tarn__trainer_enter(t, &callers);
        good = time_all(t, warmup, steps, ms, timing);
        tarn__step_graph_reset(t);
        tarn__trainer_leave(t, &callers);
    }
    tarn_trainer_free(t);
    tarn__release(ms, bytes);
    return good || tarn__raise_within("train_measure");
}

bool tarn_train_measure_sized(int64_t warmup, int64_t steps, tarn_train_timing *timing, size_t timing_size,
                              const tarn_train_options *options, size_t options_size)
{
    const char *function = "train_measure";
    tarn_train_options own = {0};
    tarn_train_timing result = {0};
    if (options)
        memcpy(&own, options, options_size < sizeof(own) ? options_size : sizeof(own));
    if (tarn_failed() || !tarn__train_options_check(function, &own))
        return false;
    if (!timing)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the result is NULL", function);
    if (warmup < 0 || warmup > MAX_STEPS || steps < 1 || steps > MAX_STEPS)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: steps is %lld and warmup %lld; must be from 1 to %d and from 0 to %d", function,
                           (long long)steps, (long long)warmup, MAX_STEPS, MAX_STEPS);
    const char *name = tarn__train_options_of_run(&own);
    if (name)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: %s applies to a whole run; only steps on random data are measured here", function,
                           name);
    if (!own.model[0])
        memcpy(own.model, "gpt2-124m", sizeof("gpt2-124m"));
    own.batch_size = own.batch_size ? own.batch_size : tarn__arch_find_trainable(own.model) ? 32 : 128;
    own.steps = warmup + steps + 3 * EXTRA_STEPS;
    memcpy(own.schedule, "constant", sizeof("constant"));
    bool good = measure(&own, warmup, steps, &result);
    if (good) {
        memset(timing, 0, timing_size);
        memcpy(timing, &result, timing_size < sizeof(result) ? timing_size : sizeof(result));
    }
    return good;
}
