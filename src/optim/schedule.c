/* schedule.c: the share of the learning rate that each step takes. A schedule is a plain value and a function of the
 * step's number. */
#include <math.h>

#include "optim/handle.h"

#define PI 3.14159265358979323846

static bool check_ends(const char *function, const tarn_schedule *s)
{
    if (!(s->final_factor >= 0 && s->final_factor <= 1))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .final_factor is %g, outside 0 to 1", function, s->final_factor);
    return s->total_steps > s->warmup_steps ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: .total_steps is %lld, but must be above the %lld of .warmup_steps",
                       function, (long long)s->total_steps, (long long)s->warmup_steps);
}

static bool check_stairs(const char *function, const tarn_schedule *s)
{
    if (s->step_size < 1)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .step_size is %lld, but must be above 0", function,
                           (long long)s->step_size);
    return (s->gamma >= 0 && isfinite(s->gamma)) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: .gamma is %g, but must be 0 (for 0.1) or above", function, s->gamma);
}

bool tarn__schedule_check(const char *function, const tarn_schedule *s)
{
    if (tarn_failed())
        return false;
    if (!s)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the schedule is NULL", function);
    if (s->warmup_steps < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .warmup_steps is %lld, but must be 0 or above", function,
                           (long long)s->warmup_steps);
    switch (s->kind) {
    case TARN_SCHEDULE_CONSTANT: return true;
    case TARN_SCHEDULE_LINEAR:
    case TARN_SCHEDULE_COSINE: return check_ends(function, s);
    case TARN_SCHEDULE_STEP: return check_stairs(function, s);
    default: return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %d is no kind of schedule", function, (int)s->kind);
    }
}

double tarn__schedule_factor(const tarn_schedule *s, int64_t step)
{
    if (step < s->warmup_steps)
        return (double)(step + 1) / (double)s->warmup_steps;
    int64_t after = step - s->warmup_steps, length = s->total_steps - s->warmup_steps;
    if (s->kind == TARN_SCHEDULE_STEP)
        return pow(s->gamma != 0 ? s->gamma : 0.1, (double)(after / s->step_size));
    if (s->kind == TARN_SCHEDULE_CONSTANT)
        return 1;
    if (after >= length)
        return s->final_factor;
    double share = (double)after / (double)length;
    return s->kind == TARN_SCHEDULE_LINEAR ? 1 + (s->final_factor - 1) * share
                                           : s->final_factor + (1 - s->final_factor) * (1 + cos(PI * share)) / 2;
}

double tarn_schedule_at(const tarn_schedule *schedule, int64_t step)
{
    if (!tarn__schedule_check("schedule_at", schedule))
        return (double)NAN;
    if (step < 0) {
        tarn__raise(TARN_ERROR_ARGUMENT, "schedule_at: step %lld is below 0", (long long)step);
        return (double)NAN;
    }
    return tarn__schedule_factor(schedule, step);
}

bool tarn_optimizer_set_schedule(tarn_optimizer *optimizer, const tarn_schedule *schedule)
{
    if (tarn_failed() || !tarn__check_optimizer("optimizer_set_schedule", optimizer) ||
        (schedule && !tarn__schedule_check("optimizer_set_schedule", schedule)))
        return false;
    optimizer->schedule = schedule ? *schedule : (tarn_schedule){.kind = TARN_SCHEDULE_CONSTANT};
    return true;
}
