/* optimizer.h: the optimizer, its flat buffers, parameter groups, clipping and schedules, for the files of optim.
 *
 * The parameters of one dtype on one device form a flat group. Each of its buffers (parameters, gradients, master
 * weights, state) is one storage of count elements, in which every parameter has its segment at the same element
 * offset, a multiple of 256 bytes in all of them. Within a group, segments with the same rates are adjacent, those with
 * weight decay first. Gaps between segments are zero and stay zero, so that one kernel can run over any number of
 * adjacent segments.
 *
 * Parameter tensors are views into the flat storage, and so are their gradients: backward accumulates there. 16-bit
 * parameters have f32 master weights; the kernel updates those, and the parameters are rounded from them. */
#ifndef TARN__OPTIMIZER_H
#define TARN__OPTIMIZER_H

#include <tarn/optim.h>

#include "formats/safetensors.h"
#include "nn/module.h"
#include "parallel/shard.h"

/* ---- methods ----------------------------------------------------------------------------------------------------- */

/* What distinguishes one optimizer from another. */
typedef struct tarn__method {
    const char *name; /* "adamw"; for errors and files */
    tarn__kernel kernel;
    int states;                /* state buffers, 0 to 2 */
    const char *state_name[2]; /* in files */
    bool counts_steps; /* the update depends on the number of earlier steps, not only on whether there were any */
    bool decay_all;    /* weight decay applies to vectors too */
    bool decoupled;    /* weight decay shrinks the parameter instead of adding to the gradient (AdamW) */
    tarn__optimizer_step rates;
} tarn__method;

/* Flattens the module's parameters that are not frozen. Borrows all and retains the parameters; the caller owns the
 * optimizer. Shards its state over the ranks of `comm`; NULL: one rank. NULL with an error. */
tarn_optimizer *tarn__optimizer_new(const tarn__method *method, const tarn_module *module,
                                    const tarn_parameter_group *groups, int group_count, tarn_comm *comm);

/* Raises unless the learning rate is a positive number. */
bool tarn__check_lr(const char *function, double lr);

/* Raises unless low <= value < high. `what` is the name of the option. */
bool tarn__check_rate(const char *function, const char *what, double value, double low, double high);

/* ---- parameter groups (param_groups.c) --------------------------------------------------------------------------- */

/* Rates that differ between the parameters of one optimizer. */
typedef struct tarn__rates {
    double lr_scale; /* factor of the learning rate */
    double decay;    /* weight decay; 0: none */
} tarn__rates;

static inline bool tarn__same_rates(tarn__rates a, tarn__rates b)
{
    return a.lr_scale == b.lr_scale && a.decay == b.decay;
}

/* Raises unless the groups of an optimizer's options are valid. */
bool tarn__param_groups_check(const char *function, const tarn_parameter_group *groups, int count);

/* Index of the first group whose pattern matches a name; -1: none. */
int tarn__param_group_of(const tarn_parameter_group *groups, int count, const char *name);

/* The rates of a parameter; `group` is NULL where no group matches. */
tarn__rates tarn__rates_of(const tarn__method *method, const tarn_parameter_group *group, const tarn_tensor *parameter);

/* ---- flat buffers (flat.c) --------------------------------------------------------------------------------------- */

/* A sharded optimizer (ZeRO-1) has of MASTER and STATE the elements [begin, end) of its group alone; parameters and
 * gradients are whole on every rank. */

/* The buffers of a group. Groups of 16-bit parameters have MASTER; of the last two a method has as many as states. */
enum { TARN__PARAMETER, TARN__GRADIENT, TARN__MASTER, TARN__STATE, TARN__BUFFERS = TARN__STATE + 2 };

/* One parameter's part of a group. */
typedef struct tarn__flat_segment {
    tarn_tensor *parameter;   /* retained by the optimizer */
    int64_t begin, count;     /* elements [begin, begin + count) of every buffer */
    int64_t steps;            /* updates so far: fewer than the optimizer's where steps lacked a gradient */
    int64_t saved_steps;      /* the same from a file, until all of it is read */
    uint32_t version;         /* of the parameter when it last equalled its master weights */
    uint32_t clipped_version; /* of the gradient when it was last clipped */
    int order;                /* index among the module's parameters */
    tarn__rates rates;
} tarn__flat_segment;

typedef struct tarn__flat_group {
    tarn_tensor *buffer[TARN__BUFFERS]; /* (count), retained; NULL: not needed */
    tarn_device device;
    int first, segments;                   /* its range of the segments */
    int64_t count;                         /* elements of each buffer */
    int64_t begin, end;                    /* those that MASTER and STATE have: 0 and count, or a shard */
    tarn_tensor *chunks, *firsts, *factor; /* of clip.c, retained; NULL until the first norm */
} tarn__flat_group;

/* All groups, and all segments ordered by group, decay before no decay, and rates. */
typedef struct tarn__flat_buffers {
    tarn__flat_group *group;
    tarn__flat_segment *segment;
    int groups, segments;
    int capacity;    /* of both arrays */
    tarn_comm *comm; /* over whose ranks state is sharded; borrowed; NULL: not */
} tarn__flat_buffers;

/* Lays parameters out anew: `list` names them, `device` has the target of each, and `old` (NULL: the first time) is the
 * source of gradients, master weights, state and step counts. On success `flats` has replaced `old`, whose buffers are
 * released, and the parameters are views into the new ones. On failure, with an error: with `old` nothing has changed;
 * without it parameters may already be views into a flat buffer, with their values. State is sharded over `comm`, which
 * excludes `old`; NULL: not. */
bool tarn__flat_build(tarn__flat_buffers *flats, const tarn__method *method, tarn_comm *comm,
                      const tarn__flat_segment *list, const tarn_device *device, int count, tarn__flat_buffers *old);

/* Releases the buffers; parameters and gradients keep their own storage alive. */
void tarn__flat_release(tarn__flat_buffers *flats);

/* Elements [begin, end) of a buffer as a view of the open scope; the buffer itself where that is all of it. */
tarn_tensor *tarn__flat_range(tarn_tensor *buffer, int64_t begin, int64_t end);

/* A segment of a buffer in its parameter's shape, as a view of the open scope. */
tarn_tensor *tarn__flat_shaped(tarn_tensor *buffer, const tarn__flat_segment *segment);

/* Elements [begin, end) of a group in its buffer `b`, as a view of the open scope; of state those of the own shard. */
tarn_tensor *tarn__flat_elements(const tarn__flat_group *group, int b, int64_t begin, int64_t end);

/* Narrows elements of a group to those of the own shard. False: none. */
bool tarn__flat_narrow(const tarn__flat_group *group, int64_t *begin, int64_t *end);

/* The own elements of a segment in `state`, which has those of the own shard of its group: whole and in the parameter's
 * shape where it is not sharded. In the open scope. */
bool tarn__flat_part(const tarn__flat_buffers *flats, const tarn__flat_group *group, const tarn__flat_segment *segment,
                     tarn_tensor *state, tarn__tensor_part *part);

/* Rounds the own parameters of a group from their master weights, or from `state` that has as many elements, and gives
 * them to all ranks. */
bool tarn__flat_round(const char *function, const tarn__flat_buffers *flats, const tarn__flat_group *group,
                      tarn_tensor *state);

/* Gives all ranks the parameters of all shards. No-op where state is not sharded. */
bool tarn__flat_gather(const char *function, const tarn__flat_buffers *flats, const tarn__flat_group *group);

/* Copies parameters that were written outside of a step (a load, the user) to their master weights. In the open scope.
 */
bool tarn__flat_refresh_master(const tarn__method *method, tarn__flat_buffers *flats);

/* ---- the optimizer (optimizer.c) --------------------------------------------------------------------------------- */

/* Clipping by norm stays on the device: the next step's kernels multiply gradients by a factor there. The tensors are
 * created for the first norm. */
typedef struct tarn__clipping {
    tarn_tensor *sums;   /* (segments) f64, sums of squares, on the device of the first group; retained */
    tarn_tensor *factor; /* () f64, on that device; retained */
    bool is_pending;     /* the next step applies the factor */
    bool is_captured;    /* the pending factor belongs to a step that is being captured */
} tarn__clipping;

struct tarn_optimizer {
    tarn__optimizer_base base; /* first: tensor->optimizer points here */
    tarn__method method;
    tarn__flat_buffers flats;
    tarn_schedule schedule;
    int64_t steps; /* taken so far */
    tarn__clipping clipping;
    const tarn_ema *averaged; /* whose averages the parameters are, from tarn_ema_apply() to its restore; NULL: none */
};

bool tarn__check_optimizer(const char *function, const tarn_optimizer *optimizer);

/* The next run of adjacent segments of a group that have a gradient, from *begin on, as [*begin, *end), counted within
 * the group; false: none is left. */
bool tarn__next_run(const tarn_optimizer *optimizer, const tarn__flat_group *group, int *begin, int *end);

/* True when the state is sharded over several ranks. */
bool tarn__optimizer_is_sharded(const tarn_optimizer *optimizer);

/* Finishes a file of the optimizer's state: on all ranks together where it is sharded. */
bool tarn__optimizer_finish_file(const tarn_optimizer *optimizer, tarn_safetensors_writer *writer);

/* ---- averages (ema.c) -------------------------------------------------------------------------------------------- */

/* Bytes of all averages. */
int64_t tarn__ema_bytes(const tarn_ema *ema);

/* ---- schedules (schedule.c) -------------------------------------------------------------------------------------- */

/* Raises unless the schedule is valid. */
bool tarn__schedule_check(const char *function, const tarn_schedule *schedule);

/* Factor of the learning rate at a step; the schedule has been checked. */
double tarn__schedule_factor(const tarn_schedule *schedule, int64_t step);

/* ---- clipping (clip.c) ------------------------------------------------------------------------------------------- */

/* Applies a pending factor to the gradients in place instead of leaving it to the step. In the open scope. */
bool tarn__clip_now(tarn_optimizer *optimizer, const char *function);

/* Raises when a gradient has changed since the pending factor was computed, or when only one of clipping and step is
 * captured. */
bool tarn__clip_is_current(const tarn_optimizer *optimizer, const char *function);

/* Releases the tensors of clipping. */
void tarn__clip_release(tarn_optimizer *optimizer);

#endif
