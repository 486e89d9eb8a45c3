/* profile.c: profiles some steps of a run on request, and samples the utilization of the device now and then.
 *
 * A profile and a sample exclude each other. Profiled steps run eagerly and are written to trace.json. */
#include "base/error.h"
#include "base/os/platform.h"
#include "core/profile/profiler.h"
#include "train/trainer.h"

/* steps before the first sample of the utilization; before a profile; of a profile */
enum { SAMPLE_WARMUP = 5, PROFILE_WARMUP = 10, MAX_PROFILED = 10000 };
#define SAMPLE_EVERY 10.0 /* seconds: a sample costs the step its events, and a wait */

bool tarn_trainer_profile(tarn_trainer *trainer, int64_t steps)
{
    if (tarn_failed())
        return false;
    if (!trainer || trainer->metrics)
        return tarn__raise(TARN_ERROR_ARGUMENT, "trainer_profile: the trainer is %s",
                           trainer ? "already running" : "NULL");
    if (steps < 0 || steps > MAX_PROFILED)
        return tarn__raise(TARN_ERROR_ARGUMENT, "trainer_profile: steps is %lld; must be from 0 to %d",
                           (long long)steps, MAX_PROFILED);
    trainer->profile_wanted = steps;
    trainer->profile_taken = 0;
    return true;
}

/* Steps before the next evaluation or the end. */
static int64_t steps_until_eval(const tarn_trainer *t)
{
    int64_t to_evaluation = t->eval_every - t->state.step % t->eval_every, to_end = t->steps - t->state.step;
    return to_evaluation < to_end ? to_evaluation : to_end;
}

/* Due after the first steps, which autotune and fill the pool, in a segment with enough steps before the next
 * evaluation; if there is none, the profile gets the steps that exist. */
static bool profile_is_due(const tarn_trainer *t)
{
    int64_t ahead = steps_until_eval(t), left = t->steps - t->state.step;
    if (t->profile_wanted == 0 || t->profile_taken > 0)
        return false;
    if (left <= t->profile_wanted)
        return true;
    return t->steps_in_run >= PROFILE_WARMUP && (ahead >= t->profile_wanted || t->state.step % t->eval_every == 0);
}

/* The last step before a line of metrics, which waits for the device anyway. */
static bool sample_is_due(const tarn_trainer *t)
{
    bool is_last = t->unread_steps == t->options.log_every - 1 || steps_until_eval(t) == 1;
    return is_last && t->steps_in_run >= SAMPLE_WARMUP &&
           (t->utilization == 0 || tarn__platform_seconds() - t->sampled_at > SAMPLE_EVERY);
}

/* A profile that is due takes precedence over a sample. */
bool tarn__profile_before_step(tarn_trainer *t)
{
    if (!t->is_profiled && profile_is_due(t))
        return t->is_profiled = tarn_profile_start(t->device);
    if (!t->is_profiled && sample_is_due(t))
        t->is_sampled = tarn__sample_start(t->device);
    return !tarn_failed();
}

bool tarn__profile_after_step(tarn_trainer *t)
{
    double utilization;
    t->steps_in_run++;
    if (t->is_sampled) {
        t->is_sampled = false;
        if (!tarn__sample_stop(&utilization))
            return false;
        t->busy_seconds = utilization / 1e6;
        /* the first line includes autotuning: sample again at the next one */
        t->sampled_at = t->steps_in_run > t->options.log_every ? tarn__platform_seconds() : -SAMPLE_EVERY;
    }
    if (!t->is_profiled)
        return true;
    t->profile_taken++;
    return t->profile_taken < t->profile_wanted || tarn__profile_end(t);
}

/* A segment that ends early gives a shorter profile; profile_taken has its steps. */
bool tarn__profile_end(tarn_trainer *t)
{
    tarn__path path;
    if (!t->is_profiled)
        return true;
    t->is_profiled = false;
    return tarn_profile_stop() && (!tarn__ranks_is_first(&t->ranks) ||
                                   tarn_profile_write_trace(tarn__path_in(t->options.out, "trace.json", &path)));
}
