/* plan.c: the plan of a run, known before it starts: its settings, and the memory that it needs.
 *
 * Memory is measured by a step on the meta device of the run's device: all tensors and all scratch that follow from
 * shapes, at their peak. A run is therefore planned without allocating anything, also when it does not fit. Peaks of a
 * meta device are those of all threads, so one plan is measured at a time. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <tarn/model.h>
#include <tarn/profile.h>

#include "autograd/tape.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/os/platform.h"
#include "core/device/device.h"
#include "core/memory/pool.h"
#include "models/lm/arch.h"
#include "optim/optimizer.h"
#include "train/tasks/finetune.h"
#include "train/tasks/task.h"

/* bytes: a loss is computed in chunks of logits, one by one; a step with more logits is extrapolated */
#define MAX_LOGITS (INT64_C(4) << 30)
#define SMALL_TENSORS (INT64_C(16) << 10) /* bytes of small tensors around a step */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the peak of a meta device is that of all threads */

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static bool count_one(const tarn__parameter *parameter, void *ctx)
{
    tarn__weight_counts *c = ctx;
    bool is_trained = !parameter->is_buffer && tarn_needs_grad(parameter->tensor);
    bool is_weight = !parameter->is_buffer || tarn__is_quantized(parameter->tensor->view.dtype);
    *(is_trained ? &c->trained : &c->frozen) += is_weight ? tarn_count(parameter->tensor) : 0;
    c->bytes += tarn_bytes(parameter->tensor);
    return true;
}

tarn__weight_counts tarn__count_weights(const tarn_module *model)
{
    tarn__weight_counts counts = {0};
    tarn__module_walk_over(model, TARN__MODULE_STATE, count_one, &counts);
    return counts;
}

/* Gradients and optimizer state are f32, as is the master weight of a 16-bit parameter. */
static void count_fixed_bytes(tarn_trainer *t, const tarn_module *model)
{
    const tarn_train_options *o = &t->options;
    tarn__weight_counts counts = tarn__count_weights(model);
    int64_t states = strcmp(o->optimizer, "sgd") == 0 ? o->momentum > 0 : 2,
            masters = strcmp(o->precision, "bf16") == 0;
    t->weight_bytes = counts.bytes;
    t->gradient_bytes = 4 * counts.trained;
    t->state_bytes = 4 * counts.trained * (states + masters);
    if (tarn__is_sharded(o)) /* a share of any rank, but for a few elements */
        t->state_bytes = (t->state_bytes + tarn_comm_size(o->comm) - 1) / tarn_comm_size(o->comm);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

typedef tarn__pool_peaks peaks;

/* A step holds all its micro-batches; gradients of two of them give the peak, since gradients exist by the second. The
 * others are one batch of their size: a plan with tens of thousands of micro-batches takes no longer. */
static bool run_step(tarn_trainer *p, int64_t batch)
{
    tarn__step_ctx s = tarn__step_ctx_of(p);
    tarn_tensor *fields[2 * TARN_MAX_FIELDS], *others[TARN_MAX_FIELDS];
    tarn__step_metrics metrics;
    int64_t unused = s.micro_batches > 2 ? s.micro_batches - 2 : 0;
    s.micro_batches -= (int)unused;
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && (unused == 0 || p->task->create_batch(p, unused * batch, others));
    for (int i = 0; good && i < s.micro_batches; i++)
        good = p->task->create_batch(p, batch, fields + i * s.fields);
    good = good && tarn__step(&s, fields, &metrics);
    tarn_scope_close(scope);
    return good;
}

/* Peaks of two steps above `before`. The second step finds the pool as the first has left it, as in a run. */
static bool measure_step(tarn_trainer *p, int64_t batch, peaks before, peaks *found)
{
    bool good =
        tarn_empty_cache(p->device) && tarn__pool_reset_peaks_of(p->device) && run_step(p, batch) && run_step(p, batch);
    *found = tarn__pool_peaks_of(p->device);
    found->tensors -= before.tensors;
    found->used -= before.used;
    found->reserved -= before.reserved;
    return good;
}

/* Linear in the batch: `low` is at `at` - `step` samples, `high` at `at`. */
static int64_t extrapolate(int64_t low, int64_t high, int64_t step, int64_t batch, int64_t at)
{
    return high + (high - low) / step * (batch - at);
}

/* The largest micro-batch that is measured; a larger one is extrapolated, since its peak grows linearly. */
static int64_t largest_measured(const tarn_trainer *p)
{
    int64_t window = 4 * p->options.context * p->options.vocab_size; /* bytes of logits; 0: not a language model */
    int64_t largest = window > 0 ? MAX_LOGITS / window / 2 * 2 : p->micro_batch;
    largest = largest < 2 ? 2 : largest;
    return p->micro_batch <= largest ? p->micro_batch : largest;
}

static bool measure_steps(tarn_trainer *p, peaks before, peaks *found)
{
    int64_t measured = largest_measured(p), rest = p->micro_batch - measured;
    peaks half = {0};
    if ((rest > 0 && !measure_step(p, measured / 2, before, &half)) || !measure_step(p, measured, before, found))
        return false;
    if (rest > 0)
        *found = (peaks){extrapolate(half.tensors, found->tensors, measured / 2, p->micro_batch, measured),
                         extrapolate(half.used, found->used, measured / 2, p->micro_batch, measured),
                         extrapolate(half.reserved, found->reserved, measured / 2, p->micro_batch, measured)};
    return true;
}

/* Creates model and optimizer on the meta device and measures steps. The peak of their creation is below that of any
 * step. */
static bool measure(const char *function, tarn_trainer *p, peaks *found)
{
    tarn_empty_cache(p->device);
    tarn_memory now = tarn_memory_of(p->device);
    peaks before = {now.used, now.used, now.used + now.cached};
    p->model = tarn__model_reopen(function, p);
    if (!p->model || !tarn__batchnorms_sync(&p->options, p->model) || !tarn__adapters_add(function, p))
        return false;
    tarn_module_train(p->model, true);
    count_fixed_bytes(p, p->model);
    p->optimizer = tarn__optimizer_create(&p->options, p->model);
    if (!p->optimizer || !tarn__ema_create(p))
        return false;
    p->state_bytes += p->ema ? tarn__ema_bytes(p->ema) : 0;
    return measure_steps(p, before, found);
}

/* Under the lock. Gradients are forced: the caller may have turned them off. TF32 as in the run: kernels that it
 * selects have other scratch. */
static bool measure_locked(const char *function, tarn_trainer *p, peaks *found)
{
    pthread_mutex_lock(&lock);
    int depth = tarn__grad_force();
    bool callers_tf32 = tarn__tf32();
    tarn_set_tf32(strcmp(p->options.precision, "tf32") == 0);
    bool good = measure(function, p, found);
    tarn_set_tf32(callers_tf32);
    tarn__grad_unforce(depth);
    tarn_ema_free(p->ema);
    tarn_optimizer_free(p->optimizer);
    tarn_module_free(p->model);
    tarn_empty_cache(p->device);
    pthread_mutex_unlock(&lock);
    return good || tarn__raise_within(function);
}

/* Memory reserved by the pool counts, except its last segment, which is seldom filled. Added: the batch, and metrics of
 * steps that are not read yet. */
static int64_t estimate(const tarn_train_options *o, const peaks *found)
{
    int64_t used = found->used + 16 * o->log_every + SMALL_TENSORS,
            reserved = found->reserved - (int64_t)TARN__POOL_SEGMENT;
    return used > reserved ? used : reserved;
}

/* Sums of gradients that a rank holds while its virtual ranks run: one per level of their tree, none of one virtual
 * rank or with a fast reduction. Then the shards of other ranks take as much as one. */
static int64_t tree_bytes(const tarn_trainer *t, int64_t gradient_bytes)
{
    int64_t share = t->ranks.is_fast ? 1 : t->ranks.virtual_ranks / (t->ranks.size ? t->ranks.size : 1), sums = 0;
    while (INT64_C(1) << sums < share)
        sums++;
    return t->ranks.virtual_ranks > 1 ? (sums + (t->ranks.size > 1)) * gradient_bytes : 0;
}

bool tarn__plan_memory(const char *function, tarn_trainer *t)
{
    tarn_trainer planned = {.options = t->options,
                            .task = t->task,
                            .data_spec = t->data_spec,
                            .corpus = t->corpus,
                            .training = t->training,
                            .micro_batch = t->micro_batch,
                            .batch_size = t->batch_size,
                            .device = tarn__meta_device_of(t->device),
                            .is_resumed = t->is_resumed,
                            .is_dry_run = true};
    peaks found = {0};
    if (!measure_locked(function, &planned, &found))
        return false;
    int64_t fixed_bytes = planned.weight_bytes + planned.gradient_bytes + planned.state_bytes;
    t->weight_bytes = planned.weight_bytes;
    int64_t tree = tree_bytes(t, planned.gradient_bytes);
    t->gradient_bytes = planned.gradient_bytes + tree;
    t->state_bytes = planned.state_bytes;
    t->memory_needed = estimate(&t->options, &found) + tree;
    t->memory_min = found.tensors + tree;
    t->activation_bytes = t->memory_needed - fixed_bytes - tree;
    return true;
}

/* The ranks on the machine of this one. */
static int ranks_of_machine(const tarn__ranks *r)
{
    int count = 0;
    for (int i = 0; i < r->size && r->size > 1; i++)
        count += strcmp(tarn_comm_host(r->comm, i), tarn_comm_host(r->comm, r->rank)) == 0;
    return count > 0 ? count : 1;
}

/* Free memory before the run allocates; memory cached by the pool counts as free. Ranks that compute on the CPU share
 * the memory of their machine equally. */
bool tarn__read_memory_free(const char *function, tarn_trainer *t)
{
    tarn_device device = tarn_device_parse(t->options.device); /* not its meta device */
    tarn_device_info info = {0};
    if (!tarn_device_query(device, &info))
        return tarn__raise_within(function);
    if (info.memory_free > 0 && t->memory_needed > info.memory_free && tarn_memory_of(device).cached > 0 &&
        tarn_empty_cache(device) && !tarn_device_query(device, &info))
        return tarn__raise_within(function);
    int ranks = ranks_of_machine(&t->ranks);
    t->memory_free = ranks > 1 && tarn__is_cpu(device) ? tarn__platform_memory_share(ranks) : info.memory_free;
    return true;
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

bool tarn_trainer_plan(const tarn_trainer *trainer, tarn_train_plan *plan)
{
    if (tarn_failed())
        return false;
    if (!trainer || !plan)
        return tarn__raise(TARN_ERROR_ARGUMENT, "trainer_plan: the %s is NULL", trainer ? "result" : "trainer");
    *plan = (tarn_train_plan){
        .options = trainer->options,
        .task = trainer->task->name,
        .sample_name = trainer->task->sample_name,
        .step_samples = trainer->batch_size,
        .input = trainer->data_spec.input,
        .training_samples = tarn_dataset_count(trainer->training),
        .validation_samples = tarn_dataset_count(trainer->validation),
        .memory_needed = trainer->memory_needed,
        .weight_bytes = trainer->weight_bytes,
        .gradient_bytes = trainer->gradient_bytes,
        .state_bytes = trainer->state_bytes,
        .activation_bytes = trainer->activation_bytes,
        .memory_min = trainer->memory_min,
        .memory_free = trainer->memory_free,
        .first_step = trainer->state.step,
        .steps = trainer->steps,
        .steps_in_epoch = trainer->steps_in_epoch,
        .captures = trainer->step_graph.is_wanted,
        .ranks = trainer->ranks.size,
        .virtual_ranks = trainer->ranks.virtual_ranks,
        .overlaps = trainer->ranks.overlaps,
        .is_sharded = tarn__is_sharded(&trainer->options),
    };
    tarn__weight_counts counts = tarn__count_weights(trainer->model);
    plan->trained = counts.trained;
    plan->frozen = counts.frozen;
    memcpy(plan->fits, trainer->fits, sizeof(plan->fits));
    plan->fit_count = trainer->fit_count;
    trainer->task->describe(trainer, plan);
    snprintf(plan->device, sizeof(plan->device), "%s", trainer->options.device);
    snprintf(plan->chosen, sizeof(plan->chosen), "%s", trainer->chosen);
    snprintf(plan->notes, sizeof(plan->notes), "%s", trainer->notes);
    snprintf(plan->folder, sizeof(plan->folder), "%s", trainer->options.out);
    return !tarn_failed();
}
