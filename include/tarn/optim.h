/* optim.h: optimizers. One keeps what it trains in flat buffers, so that a step is one kernel. */
#ifndef TARN_OPTIM_H
#define TARN_OPTIM_H

#include <tarn/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tarn_optimizer tarn_optimizer;

/* Parameters that have rates of their own, chosen by name: {.names = "*.bias", .no_decay = true}. A parameter belongs
 * to the first group of the list whose pattern its whole name fits (the name that tarn_module_parameter_name() gives;
 * '*' stands for any characters, '?' for one); a group that gets no parameter is an error. Zero is every other field's
 * default. */
typedef struct tarn_parameter_group {
    const char *names;
    float lr_scale;     /* times the optimizer's learning rate; default 1 */
    float weight_decay; /* default: what the optimizer's own options say; a number here counts for vectors too */
    bool no_decay;      /* no weight decay */
} tarn_parameter_group;

/* Options of tarn_sgd(). `lr` is required; zero is every other field's default. */
typedef struct tarn_sgd_options {
    float lr;
    float momentum;
    float dampening;
    float weight_decay;
    bool nesterov;
    const tarn_parameter_group *groups; /* read while the optimizer is made */
    int group_count;
} tarn_sgd_options;

/* Options of tarn_adam(). `lr` is required; zero is every other field's default. */
typedef struct tarn_adam_options {
    float lr;
    float beta1;                        /* default 0.9 */
    float beta2;                        /* default 0.999 */
    float epsilon;                      /* default 1e-8 */
    float weight_decay;                 /* default 0: no decay; added to the gradient, of all parameters */
    const tarn_parameter_group *groups; /* read while the optimizer is made */
    int group_count;
} tarn_adam_options;

/* Options of tarn_adamw(). `lr` is required; zero is every other field's default. */
typedef struct tarn_adamw_options {
    float lr;
    float beta1;        /* default 0.9 */
    float beta2;        /* default 0.999 */
    float epsilon;      /* default 1e-8 */
    float weight_decay; /* default 0: no decay */
    bool decay_all;     /* decay vectors (biases, norms) too; default: parameters of rank 2 and up only */
    const tarn_parameter_group *groups; /* read while the optimizer is made */
    int group_count;
} tarn_adamw_options;

/* Stochastic gradient descent, as torch.optim.SGD, over the module's parameters that are not frozen. Borrows the
 * module, which must live until the optimizer is freed. The caller owns the optimizer. `...` is a const
 * tarn_sgd_options *. */
TARN_API tarn_optimizer *tarn_sgd_sized(tarn_module *module, const tarn_sgd_options *options, size_t options_size);
#define tarn_sgd(module, ...) tarn_sgd_sized(module, __VA_ARGS__, sizeof(tarn_sgd_options))

/* Adam, as torch.optim.Adam, over the module's parameters that are not frozen. Borrows the module, which must live
 * until the optimizer is freed. The caller owns the optimizer. `...` is a const tarn_adam_options *. */
TARN_API tarn_optimizer *tarn_adam_sized(tarn_module *module, const tarn_adam_options *options, size_t options_size);
#define tarn_adam(module, ...) tarn_adam_sized(module, __VA_ARGS__, sizeof(tarn_adam_options))

/* AdamW, as torch.optim.AdamW, over the module's parameters that are not frozen. Borrows the module, which must live
 * until the optimizer is freed. The caller owns the optimizer. `...` is a const tarn_adamw_options *. */
TARN_API tarn_optimizer *tarn_adamw_sized(tarn_module *module, const tarn_adamw_options *options, size_t options_size);
#define tarn_adamw(module, ...) tarn_adamw_sized(module, __VA_ARGS__, sizeof(tarn_adamw_options))

/* Updates the parameters from their gradients and clears the gradients. A parameter without a gradient is skipped. */
TARN_API bool tarn_optimizer_step(tarn_optimizer *optimizer);

/* Clears the gradients without a step. */
TARN_API void tarn_optimizer_zero_grad(tarn_optimizer *optimizer);

/* ---- clipping ---------------------------------------------------------------------------------------------------- */

/* Scales the gradients so that their norm, over all parameters together, is at most `max_norm`, as
 * torch.nn.utils.clip_grad_norm_: by max_norm / (norm + 1e-6) where that is below 1. Returns the norm before that, of
 * rank 0, on the device; it belongs to the open scope, and reading it is what waits. The scaling happens inside the
 * next step, without a pass of its own: until then tarn_grad() shows the gradients as they were. Call it after the last
 * backward before a step. INFINITY for `max_norm` only measures. */
TARN_API tarn_tensor *tarn_optimizer_clip_norm(tarn_optimizer *optimizer, double max_norm);

/* Holds every element of the gradients between -limit and limit; NaN stays NaN. */
TARN_API bool tarn_optimizer_clip_value(tarn_optimizer *optimizer, double limit);

/* The name of the first parameter, in the module's order, whose gradient has an element that is not finite, or whose
 * squares leave f64's range; NULL (no error) if there is none. Looks at the gradients that are there or, after a step
 * has cleared them, at those of the last tarn_optimizer_clip_norm(). Waits for the device. The text belongs to the
 * parameter. */
TARN_API const char *tarn_optimizer_nonfinite(tarn_optimizer *optimizer);

/* ---- the learning rate ------------------------------------------------------------------------------------------- */

/* Changes the learning rate from the next step on; a schedule scales it. */
TARN_API bool tarn_optimizer_set_lr(tarn_optimizer *optimizer, double lr);
/* The learning rate of the next step, as the schedule has it; NaN on error. */
TARN_API double tarn_optimizer_lr(const tarn_optimizer *optimizer);
/* How many steps were taken; -1 on error. */
TARN_API int64_t tarn_optimizer_steps(const tarn_optimizer *optimizer);

/* How the learning rate goes on after the warm-up. */
typedef enum tarn_schedule_kind {
    TARN_SCHEDULE_CONSTANT = 0,
    TARN_SCHEDULE_LINEAR, /* down to final_factor at total_steps, then constant: torch's
                             LinearLR(end_factor=final_factor) */
    TARN_SCHEDULE_COSINE, /* the same along half a cosine: torch's CosineAnnealingLR(eta_min=final_factor * lr), up to
                             its T_max */
    TARN_SCHEDULE_STEP    /* times gamma every step_size steps: torch's StepLR */
} tarn_schedule_kind;

/* A learning rate as a function of the step, a plain value. In the first warmup_steps it rises evenly from 1 /
 * warmup_steps to 1 (torch's LinearLR(start_factor=1 / warmup_steps, total_iters=warmup_steps - 1)); the kind counts
 * its steps from there. */
typedef struct tarn_schedule {
    tarn_schedule_kind kind;
    int64_t warmup_steps;
    int64_t total_steps; /* of LINEAR and COSINE, the warm-up included */
    double final_factor; /* of LINEAR and COSINE: 0 to 1, default 0 */
    int64_t step_size;   /* of STEP */
    double gamma;        /* of STEP; default 0.1 */
} tarn_schedule;

/* What the learning rate is multiplied with in step number `step`, counted from 0; NaN on error. */
TARN_API double tarn_schedule_at(const tarn_schedule *schedule, int64_t step);

/* Lets each step take its learning rate from a schedule, of which a copy is kept; NULL: a constant one. The schedule
 * counts the steps that the optimizer has taken, earlier ones included. */
TARN_API bool tarn_optimizer_set_schedule(tarn_optimizer *optimizer, const tarn_schedule *schedule);

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Writes the optimizer's state to a safetensors file, which appears whole or not at all: moments and master weights by
 * the names of their parameters, step counts, learning rate and schedule. Parameters and gradients are not in it. */
TARN_API bool tarn_optimizer_save(tarn_optimizer *optimizer, const char *path);

/* Takes the state back, so that training goes on bit for bit; load the parameters first. The file must be of the same
 * kind of optimizer over the same parameters; otherwise nothing has changed. Learning rate and schedule are the file's
 * then, all other options stay as they are. */
TARN_API bool tarn_optimizer_load(tarn_optimizer *optimizer, const char *path);

/* Frees an optimizer; the parameters stay where they are. NULL is allowed; works while an error is pending. */
TARN_API void tarn_optimizer_free(tarn_optimizer *optimizer);

#ifdef __cplusplus
}
#endif
#endif
