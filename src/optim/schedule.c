/* schedule.c: learning rate schedules: constant, linear, cosine and step, each with a linear warm-up,
 * and one cycle.
 *
 * A schedule is a plain value and its factor a pure function of the step, so that a resumed run continues it from the
 * step count alone. Steps count from 0; the warm-up reaches factor 1 at step warmup_steps - 1. */
#include <math.h>

#include "optim/optimizer.h"

#define PI 3.14159265358979323846

/* Linear, cosine and one-cycle schedules end at total_steps with final_factor. */
static bool check_ends(const char *function, const tarn_schedule *s)
{
    if (!(s->final_factor >= 0 && s->final_factor <= 1))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .final_factor is %g; must be from 0 to 1", function,
                           s->final_factor);
    return s->total_steps > s->warmup_steps ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: .total_steps is %lld; must be above .warmup_steps, %lld", function,
                       (long long)s->total_steps, (long long)s->warmup_steps);
}

static bool check_step(const char *function, const tarn_schedule *s)
{
    if (s->step_size < 1)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .step_size is %lld; must be at least 1", function,
                           (long long)s->step_size);
    return (s->gamma >= 0 && isfinite(s->gamma)) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: .gamma is %g; must be a finite number, at least 0 (0: default, 0.1)",
                       function, s->gamma);
}

static bool check_start(const char *function, const tarn_schedule *s)
{
    return (s->start_factor >= 0 && s->start_factor <= 1) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: .start_factor is %g; must be from 0 to 1 (0: default, 1/25)", function,
                       s->start_factor);
}

bool tarn__schedule_check(const char *function, const tarn_schedule *s)
{
    if (tarn_failed())
        return false;
    if (!s)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the schedule is NULL", function);
    if (s->warmup_steps < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .warmup_steps is %lld; must be at least 0", function,
                           (long long)s->warmup_steps);
    switch (s->kind) {
    case TARN_SCHEDULE_CONSTANT: return true;
    case TARN_SCHEDULE_LINEAR:
    case TARN_SCHEDULE_COSINE: return check_ends(function, s);
    case TARN_SCHEDULE_STEP: return check_step(function, s);
    case TARN_SCHEDULE_ONE_CYCLE: return check_ends(function, s) && check_start(function, s);
    default: return tarn__raise(TARN_ERROR_ARGUMENT, "%s: unknown kind of schedule: %d", function, (int)s->kind);
    }
}

/* Half a cosine from one factor to another. Progress 0 is `from`, 1 is `to`, and both ends are flat. */
static double cosine_between(double from, double to, double progress)
{
    return to + (from - to) * (1 + cos(PI * progress)) / 2;
}

/* The peak is in step warmup_steps - 1, or between two steps where the default is not a whole number. That default
 * is 30 % of all steps, as PyTorch's OneCycleLR has it. */
static double one_cycle_factor(const tarn_schedule *s, double step)
{
    double peak = (s->warmup_steps ? (double)s->warmup_steps : 0.3 * (double)s->total_steps) - 1;
    double end = (double)(s->total_steps - 1), start_factor = s->start_factor != 0 ? s->start_factor : 1.0 / 25;
    if (peak < 0)
        peak = 0;
    if (step < peak)
        return cosine_between(start_factor, 1, step / peak);
    return step < end ? cosine_between(1, s->final_factor, (step - peak) / (end - peak)) : s->final_factor;
}

/* Times the learning rate. Integer division makes the stairs of a step schedule; past the last step the final factor
 * stays. */
double tarn__schedule_factor(const tarn_schedule *s, int64_t step)
{
    if (s->kind == TARN_SCHEDULE_ONE_CYCLE)
        return one_cycle_factor(s, (double)step);
    if (step < s->warmup_steps)
        return (double)(step + 1) / (double)s->warmup_steps;
    int64_t after = step - s->warmup_steps, length = s->total_steps - s->warmup_steps;
    if (s->kind == TARN_SCHEDULE_STEP)
        return pow(s->gamma != 0 ? s->gamma : 0.1, (double)(after / s->step_size));
    if (s->kind == TARN_SCHEDULE_CONSTANT)
        return 1;
    if (after >= length)
        return s->final_factor;
    double progress = (double)after / (double)length;
    return s->kind == TARN_SCHEDULE_LINEAR ? 1 + (s->final_factor - 1) * progress
                                           : cosine_between(1, s->final_factor, progress);
}

double tarn_schedule_at(const tarn_schedule *schedule, int64_t step)
{
    if (!tarn__schedule_check("schedule_at", schedule))
        return (double)NAN;
    if (step < 0) {
        tarn__raise(TARN_ERROR_ARGUMENT, "schedule_at: step is %lld; must be at least 0", (long long)step);
        return (double)NAN;
    }
    return tarn__schedule_factor(schedule, step);
}

/* NULL: back to a constant learning rate. */
bool tarn_optimizer_set_schedule(tarn_optimizer *optimizer, const tarn_schedule *schedule)
{
    if (tarn_failed() || !tarn__check_optimizer("optimizer_set_schedule", optimizer) ||
        (schedule && !tarn__schedule_check("optimizer_set_schedule", schedule)))
        return false;
    optimizer->schedule = schedule ? *schedule : (tarn_schedule){.kind = TARN_SCHEDULE_CONSTANT};
    return true;
}
