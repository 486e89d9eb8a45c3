/* optim.h: optimizers. Parameters are kept in flat buffers, so that a step is one kernel. */
#ifndef TARN_OPTIM_H
#define TARN_OPTIM_H

#include <tarn/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tarn_optimizer tarn_optimizer;

/* Optimizers with `comm` in their options (tarn/parallel.h) are sharded (ZeRO-1): each rank has an equal share of
 * master weights, moments and averages, updates its share of the parameters and sends it to the others. All ranks
 * create the optimizer over the same parameters, with the same gradients in every step. Steps, averages, and writing
 * and reading files are then collective: all ranks call them in the same order. Results and files are bitwise identical
 * to those of an unsharded optimizer; all ranks write the files together, in a folder that they share. */

/* Parameters with rates of their own, selected by name: {.names = "*.bias", .no_decay = true}. A parameter belongs
 * to the first group whose pattern matches its full name (tarn_module_parameter_name(); '*' matches any characters,
 * '?' one); a group that matches no parameter is an error. Zero is every other field's default. */
typedef struct tarn_parameter_group {
    const char *names;
    float lr_scale;     /* factor of the optimizer's learning rate; default 1 */
    float weight_decay; /* default: the optimizer's; a value here applies to vectors too */
    bool no_decay;      /* no weight decay */
} tarn_parameter_group;

/* Options of tarn_sgd(). `lr` is required; zero is every other field's default. */
typedef struct tarn_sgd_options {
    float lr;
    float momentum;
    float dampening;
    float weight_decay;
    bool nesterov;
    const tarn_parameter_group *groups; /* read when the optimizer is created */
    int group_count;
    struct tarn_comm *comm; /* shards the state over its ranks; borrowed; default NULL: each rank has all of it */
} tarn_sgd_options;

/* Options of tarn_adam(). `lr` is required; zero is every other field's default. */
typedef struct tarn_adam_options {
    float lr;
    float beta1;                        /* default 0.9 */
    float beta2;                        /* default 0.999 */
    float epsilon;                      /* default 1e-8 */
    float weight_decay;                 /* default 0; added to the gradient, of all parameters */
    const tarn_parameter_group *groups; /* read when the optimizer is created */
    int group_count;
    struct tarn_comm *comm; /* shards the state over its ranks; borrowed; default NULL: each rank has all of it */
} tarn_adam_options;

/* Options of tarn_adamw(). `lr` is required; zero is every other field's default. */
typedef struct tarn_adamw_options {
    float lr;
    float beta1;                        /* default 0.9 */
    float beta2;                        /* default 0.999 */
    float epsilon;                      /* default 1e-8 */
    float weight_decay;                 /* default 0 */
    bool decay_all;                     /* decay vectors (biases, norms) too; default: rank 2 and up only */
    const tarn_parameter_group *groups; /* read when the optimizer is created */
    int group_count;
    struct tarn_comm *comm; /* shards the state over its ranks; borrowed; default NULL: each rank has all of it */
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

/* Clips the gradients to a global norm of `max_norm`, as torch.nn.utils.clip_grad_norm_: scales by max_norm / (norm
 * + 1e-6) where that is below 1. Returns the norm before clipping, rank 0, on the device; it belongs to the open
 * scope. Reading it waits; the call itself does not. The next step applies the scale without a pass of its own:
 * until then tarn_grad() shows unclipped gradients. Call it after the last backward of a step. INFINITY only
 * measures. */
TARN_API tarn_tensor *tarn_optimizer_clip_norm(tarn_optimizer *optimizer, double max_norm);

/* Clamps every element of the gradients to [-limit, limit]; NaN stays NaN. */
TARN_API bool tarn_optimizer_clip_value(tarn_optimizer *optimizer, double limit);

/* Name of the first parameter, in the module's order, whose gradient has a non-finite element, or squares beyond
 * f64's range; NULL, without an error, if there is none. Checks the current gradients or, after a step has cleared
 * them, those of the last tarn_optimizer_clip_norm(). Waits for the device. The string belongs to the parameter. */
TARN_API const char *tarn_optimizer_nonfinite(tarn_optimizer *optimizer);

/* ---- the learning rate ------------------------------------------------------------------------------------------- */

/* Sets the learning rate from the next step on; a schedule scales it. */
TARN_API bool tarn_optimizer_set_lr(tarn_optimizer *optimizer, double lr);
/* Learning rate of the next step, schedule included; NaN on error. */
TARN_API double tarn_optimizer_lr(const tarn_optimizer *optimizer);
/* Number of steps taken; -1 on error. */
TARN_API int64_t tarn_optimizer_steps(const tarn_optimizer *optimizer);

/* Learning rate after the warm-up. */
typedef enum tarn_schedule_kind {
    TARN_SCHEDULE_CONSTANT = 0,
    /* to final_factor at total_steps, then constant: torch's LinearLR(end_factor=final_factor) */
    TARN_SCHEDULE_LINEAR,
    /* along half a cosine: torch's CosineAnnealingLR(eta_min=final_factor * lr), up to T_max */
    TARN_SCHEDULE_COSINE,
    TARN_SCHEDULE_STEP, /* times gamma every step_size steps: torch's StepLR */
    /* along half a cosine from start_factor up to 1 in warmup_steps, and down to final_factor in step total_steps - 1,
     * then constant: torch's OneCycleLR(cycle_momentum=False) with pct_start = warmup_steps / total_steps */
    TARN_SCHEDULE_ONE_CYCLE
} tarn_schedule_kind;

/* Learning rate as a function of the step, a plain value. Over the first warmup_steps it rises linearly from 1 /
 * warmup_steps to 1 (torch's LinearLR(start_factor=1 / warmup_steps, total_iters=warmup_steps - 1)); the kind counts
 * its steps from there. ONE_CYCLE rises in its own way. */
typedef struct tarn_schedule {
    tarn_schedule_kind kind;
    int64_t warmup_steps; /* of ONE_CYCLE; 0: 0.3 of total_steps */
    int64_t total_steps;  /* of LINEAR, COSINE and ONE_CYCLE, warm-up included */
    double final_factor;  /* of these: 0 to 1, default 0 */
    int64_t step_size;    /* of STEP */
    double gamma;         /* of STEP; default 0.1 */
    double start_factor;  /* of ONE_CYCLE: 0 to 1; 0: default, 1 / 25 (torch's div_factor of 25) */
} tarn_schedule;

/* Factor of the learning rate in step number `step`, from 0; NaN on error. */
TARN_API double tarn_schedule_at(const tarn_schedule *schedule, int64_t step);

/* Sets a schedule, which is copied; NULL: constant. It counts all steps of the optimizer, earlier ones included. */
TARN_API bool tarn_optimizer_set_schedule(tarn_optimizer *optimizer, const tarn_schedule *schedule);

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Writes the optimizer's state to a safetensors file (atomic write): moments and master weights by parameter name,
 * step counts, learning rate and schedule. Parameters and gradients are not included. */
TARN_API bool tarn_optimizer_save(tarn_optimizer *optimizer, const char *path);

/* Restores the state, so that training resumes bitwise identical; load the parameters first. The file must be of the
 * same optimizer over the same parameters; else nothing changes. Learning rate and schedule come from the file, all
 * other options stay. */
TARN_API bool tarn_optimizer_load(tarn_optimizer *optimizer, const char *path);

/* Frees an optimizer; the parameters stay in place. NULL is allowed; works while an error is pending. */
TARN_API void tarn_optimizer_free(tarn_optimizer *optimizer);

/* ---- averaged weights -------------------------------------------------------------------------------------------- */

/* The exponential moving average (EMA) of the parameters that an optimizer trains, as torch.optim.swa_utils with
 * get_ema_multi_avg_fn(): average = decay · average + (1 - decay) · parameter. In f32 also where the parameters are
 * 16-bit, of their master weights then. Float buffers of the module, as the running statistics of a batchnorm, are
 * averaged too (AveragedModel with use_buffers=True); the other ones keep their own value. */
typedef struct tarn_ema tarn_ema;

/* Options of tarn_ema_new(). */
typedef struct tarn_ema_options {
    double decay; /* required: above 0, below 1 */
    bool warmup;  /* the decay of update number n, from 1, is at most (1 + n) / (10 + n) */
} tarn_ema_options;

/* Starts an average at the current values. Borrows module and optimizer, which must outlive it; a module is moved to
 * its device before. The caller owns the average. `...` is a const tarn_ema_options *. */
TARN_API tarn_ema *tarn_ema_new_sized(tarn_module *module, tarn_optimizer *optimizer, const tarn_ema_options *options,
                                      size_t options_size);
#define tarn_ema_new(module, optimizer, ...) \
    tarn_ema_new_sized(module, optimizer, __VA_ARGS__, sizeof(tarn_ema_options))

/* Adds the current parameters to the average: after each step of the optimizer, also inside a captured one. */
TARN_API bool tarn_ema_update(tarn_ema *ema);
/* Number of updates; -1 on error. */
TARN_API int64_t tarn_ema_updates(const tarn_ema *ema);

/* Puts the averages into the module, to evaluate or save it, and puts back its own values, bit for bit. Between both,
 * an optimizer step and an update are errors. No second copy of the weights is made. */
TARN_API bool tarn_ema_apply(tarn_ema *ema);
TARN_API bool tarn_ema_restore(tarn_ema *ema);

/* Writes the averages to a safetensors file (atomic write) by parameter name, with the number of updates, and restores
 * them, so that training resumes bitwise identical. A file of another module changes nothing. */
TARN_API bool tarn_ema_save(tarn_ema *ema, const char *path);
TARN_API bool tarn_ema_load(tarn_ema *ema, const char *path);

/* Frees an average; the module keeps the values that it has. NULL is allowed; works while an error is pending. */
TARN_API void tarn_ema_free(tarn_ema *ema);

#ifdef __cplusplus
}
#endif
#endif
