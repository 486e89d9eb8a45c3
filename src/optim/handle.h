/* handle.h: the optimizer itself, for the files that work on it. */
#ifndef TARN__HANDLE_H
#define TARN__HANDLE_H

#include "optim/flat.h"

/* Clipping by the norm happens on the device: a factor lies there that the next step's kernels multiply gradients with.
 * The tensors are made when a norm is first asked for. */
typedef struct tarn__clipping {
    tarn_tensor *sums;   /* of squares, one for each segment, f64, on the device of the first group; held */
    tarn_tensor *factor; /* f64, rank 0, there too; held */
    bool is_pending;     /* the next step uses the factor */
    bool is_captured;    /* the pending factor belongs to a step that is being captured */
} tarn__clipping;

struct tarn_optimizer {
    tarn__trainer trainer; /* first: what tensor->trainer points to */
    tarn__method method;
    tarn__flat_buffers flats;
    tarn_schedule schedule;
    int64_t steps; /* taken so far */
    tarn__clipping clipping;
};

bool tarn__check_optimizer(const char *function, const tarn_optimizer *optimizer);

/* The next run of neighbours in a group that have a gradient, from segment *begin on, as [*begin, *end); false: there
 * is none. Segments count within the group. */
bool tarn__next_run(const tarn_optimizer *optimizer, const tarn__flat_group *group, int *begin, int *end);

/* Raises unless the schedule makes sense. */
bool tarn__schedule_check(const char *function, const tarn_schedule *schedule);

/* What a schedule that was checked says for a step. */
double tarn__schedule_factor(const tarn_schedule *schedule, int64_t step);

/* Scales the gradients by the pending factor, where one is pending, instead of leaving that to the step. In the open
 * scope. */
bool tarn__clip_now(tarn_optimizer *optimizer, const char *function);

/* Raises when a gradient has changed since the pending factor was found, or the step it was meant for was another one.
 */
bool tarn__clip_is_current(const tarn_optimizer *optimizer, const char *function);

/* Lets go of the tensors that clipping has made. */
void tarn__clip_release(tarn_optimizer *optimizer);

#endif
