/* checkpoint.c: saves and loads a checkpoint: everything that the next step depends on.
 *
 * A checkpoint is files that change together: weights (or adapters), optimizer state, the moving average of a run that
 * has one, and trainer.json. New files
 * are written next to the old ones with the suffix ".next", trainer.json.next last, after the others are on disk: from
 * then on the new checkpoint is the valid one, and the files are renamed. A kill before that moment leaves the old
 * checkpoint; after it, the next start completes the renames. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/os/files.h"
#include "core/device/device.h"
#include "train/output/async_checkpoint.h"
#include "train/tasks/finetune.h"

#define FORMAT 2     /* of trainer.json: with a checksum */
#define MIN_FORMAT 1 /* without one */
#define MAX_TUNING 100000

enum { MODEL, OPTIMIZER, AVERAGE, STATE, FILES = TARN__CHECKPOINT_FILES };

/* With LoRA only the adapters are in the checkpoint, under PEFT's name; the base model stays in its own folder. */
static const char *name_of(const tarn_trainer *t, int which)
{
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "ema.safetensors",
                                        "trainer.json"};
    return which == MODEL && t->options.lora ? "adapter_model.safetensors" : names[which];
}

static const char *path_of(const tarn_trainer *t, int which, tarn__path *path)
{
    return tarn__path_in(t->options.out, name_of(t, which), path);
}

/* The name of a file until the checkpoint is committed. */
static const char *next_of(const tarn_trainer *t, int which, tarn__path *path)
{
    snprintf(path->text, sizeof(path->text), "%s/%s.next", t->options.out, name_of(t, which));
    return path->text;
}

/* Renames the files of a complete new checkpoint; trainer.json, which commits it, last. */
static bool commit_files(const char *function, const tarn_trainer *t)
{
    tarn__path from, to;
    for (int i = 0; i < FILES; i++)
        if (tarn__path_exists(next_of(t, i, &from)) && !tarn__file_rename(function, from.text, path_of(t, i, &to)))
            return false;
    return true;
}

/* Completes the renames of a killed program, or removes an incomplete checkpoint. */
static bool recover(const char *function, const tarn_trainer *t)
{
    tarn__path path;
    if (tarn__path_exists(next_of(t, STATE, &path)))
        return commit_files(function, t);
    for (int i = 0; i < STATE; i++)
        tarn__file_remove(next_of(t, i, &path));
    return true;
}

/* ---- trainer.json ------------------------------------------------------------------------------------------------ */

/* Random numbers depend on the seed and on the number drawn so far, on the CPU and on the run's device. */
static bool write_random(const tarn_trainer *t, const tarn__rng_state *random, tarn__json_file *document)
{
    return tarn__json_file_set_int(document, "random.seed", (int64_t)random->seed) &&
           tarn__json_file_set_int(document, "random.cpu", (int64_t)random->offset[0][0]) &&
           tarn__json_file_set_int(document, "random.device",
                                   (int64_t)random->offset[t->device.backend][t->device.index]);
}

/* One hash of all frozen weights; frozen.json has one per tensor. */
static bool write_frozen(const tarn_trainer *t, tarn__json_file *document)
{
    char text[24];
    snprintf(text, sizeof(text), "%016" PRIx64, t->frozen.all);
    return !t->frozen.count || tarn__json_file_set_string(document, "frozen", text);
}

/* A checkpoint of adapters is valid for its base only. */
static bool read_frozen(const char *function, const tarn_trainer *t, const tarn__json_file *document, const char *path)
{
    char text[24];
    snprintf(text, sizeof(text), "%016" PRIx64, t->frozen.all);
    const char *saved = t->frozen.count ? tarn__json_file_string(document, "frozen") : text;
    return saved && (strcmp(saved, text) == 0 ||
                     tarn__raise(TARN_ERROR_FORMAT,
                                 "%s: '%s' belongs to frozen weights with the hash %.32s, but '%s' has the hash %s",
                                 function, path, saved, t->options.base, text));
}

/* Autotuning results of the device: other algorithms would give other bits, so a resumed run imports them. Earlier
 * versions wrote them as "choices". */
#define TUNING_KEY "autotune"
#define OLD_TUNING_KEY "choices"

typedef struct tuning_sink {
    tarn__json_file *document;
    bool is_good;
} tuning_sink;

static void add_tuning(void *ctx, const char *line)
{
    tuning_sink *to = ctx;
    to->is_good = to->is_good && tarn__json_file_add_string(to->document, TUNING_KEY, line);
}

static bool write_tuning(const tarn_trainer *t, tarn__json_file *document)
{
    const tarn__backend *backend = tarn__backend_of(t->device, "trainer_run");
    tuning_sink to = {document, backend != NULL};
    if (backend && backend->tuning_export)
        backend->tuning_export(t->device.index, add_tuning, &to);
    return to.is_good;
}

/* Backends without autotuning ignore the lines. */
static bool read_tuning(const char *function, const tarn_trainer *t, const tarn__json_file *document)
{
    const tarn__backend *backend = tarn__backend_of(t->device, function);
    const char *key = tarn__json_file_has(document, OLD_TUNING_KEY) ? OLD_TUNING_KEY : TUNING_KEY;
    size_t count = 0;
    if (!backend || (tarn__json_file_has(document, key) && !tarn__json_file_count(document, key, MAX_TUNING, &count)))
        return false;
    for (size_t i = 0; i < count; i++) {
        const char *line = tarn__json_file_string_at(document, key, i);
        if (!line)
            return false;
        if (backend->tuning_import)
            backend->tuning_import(t->device.index, line);
    }
    return true;
}

bool tarn__instruction_level(const tarn_trainer *t, char *text, size_t size)
{
    tarn_device_info info;
#if defined(__x86_64__)
    static const char architecture[] = "x86-64";
#elif defined(__aarch64__)
    static const char architecture[] = "aarch64";
#else
    static const char architecture[] = "other";
#endif
    if (!tarn_device_equal(t->device, tarn_device_cpu()) || !tarn_device_query(t->device, &info))
        return false;
    snprintf(text, size, "%s %.*s", architecture, (int)strcspn(info.detail, " "), info.detail);
    return true;
}

static bool write_instructions(const tarn_trainer *t, tarn__json_file *document)
{
    char text[160];
    return tarn__instruction_level(t, text, sizeof(text)) ? tarn__json_file_set_string(document, "instructions", text)
                                                          : !tarn_failed();
}

/* A warning only: the run can be resumed, but is not bitwise identical. */
static bool read_instructions(const tarn_trainer *t, const tarn__json_file *document)
{
    char text[160];
    if (!tarn__json_file_has(document, "instructions") || !tarn__instruction_level(t, text, sizeof(text)))
        return !tarn_failed();
    const char *saved = tarn__json_file_string(document, "instructions");
    if (saved && strcmp(saved, text) != 0)
        tarn__log(TARN_LOG_WARNING,
                  "the run in '%s' was started at the instruction level %.64s and is resumed at %s: it will not be "
                  "bitwise identical to an uninterrupted run",
                  t->options.out, saved, text);
    return saved != NULL;
}

/* Of a run whose sums depend on the number of ranks. */
static bool write_ranks(const tarn_trainer *t, tarn__json_file *document)
{
    return !t->ranks.is_fast || tarn__json_file_set_int(document, "ranks", t->ranks.size);
}

/* A warning only, as above. */
static bool read_ranks(const tarn_trainer *t, const tarn__json_file *document)
{
    int64_t ranks;
    if (!tarn__json_file_has(document, "ranks"))
        return !tarn_failed();
    if (!tarn__json_file_int(document, "ranks", 1, INT32_MAX, &ranks))
        return false;
    if (t->ranks.is_fast && ranks != t->ranks.size)
        tarn__log(TARN_LOG_WARNING,
                  "the run in '%s' has reduce fast and was on %" PRId64
                  " rank%s; on %d it will not be bitwise identical "
                  "to an uninterrupted run",
                  t->options.out, ranks, ranks == 1 ? "" : "s", t->ranks.size);
    return true;
}

static bool write_regression(const tarn_trainer *t, tarn__json_file *document)
{
    return !tarn__data_spec_is_regression(&t->data_spec) ||
           (tarn__json_file_set_real(document, "best.rmse", t->state.best_rmse) &&
            tarn__json_file_set_real(document, "best.mae", t->state.best_mae) &&
            tarn__json_file_set_real(document, "best.r2", t->state.best_r2));
}

static bool read_regression(const tarn_trainer *t, const tarn__json_file *document, tarn__run_state *p)
{
    return !tarn__data_spec_is_regression(&t->data_spec) ||
           (tarn__json_file_real(document, "best.rmse", &p->best_rmse) &&
            tarn__json_file_real(document, "best.mae", &p->best_mae) &&
            tarn__json_file_real(document, "best.r2", &p->best_r2));
}

/* Field order is that of the file; the checksum covers all fields. */
static bool write_state(const tarn_trainer *t, const tarn__rng_state *random, const char *path)
{
    const tarn__run_state *p = &t->state;
    tarn__json_file *document = tarn__json_file_new("trainer_run");
    bool good = document && tarn__json_file_set_int(document, "format", FORMAT) &&
                tarn__json_file_add_checksum(document) && tarn__json_file_set_int(document, "step", p->step) &&
                tarn__json_file_set_int(document, "epoch", p->loader.epoch) &&
                tarn__json_file_set_int(document, "batch", p->loader.batch) && write_random(t, random, document) &&
                tarn__json_file_set_int(document, "best.step", p->best_step) &&
                tarn__json_file_set_real(document, "best.loss", p->best_loss) &&
                tarn__json_file_set_real(document, "best.accuracy", p->best_accuracy) &&
                write_regression(t, document) &&
                tarn__json_file_set_int(document, "evaluations_since_best", p->stale) &&
                tarn__json_file_set_real(document, "learning_rate", tarn_optimizer_lr(t->optimizer)) &&
                write_frozen(t, document) && write_tuning(t, document) && write_instructions(t, document) &&
                write_ranks(t, document) && tarn__json_file_set_real(document, "seconds", p->seconds) &&
                tarn__json_file_set_bool(document, "finished", p->finished) && tarn__json_file_save(document, path);
    tarn__json_file_free(document);
    return good;
}

/* Only the run's device has an offset: another one has drawn nothing. */
static bool read_random(tarn_trainer *t, const tarn__json_file *document)
{
    int64_t seed, cpu, device;
    if (!tarn__json_file_int(document, "random.seed", INT64_MIN, INT64_MAX, &seed) ||
        !tarn__json_file_int(document, "random.cpu", 0, INT64_MAX, &cpu) ||
        !tarn__json_file_int(document, "random.device", 0, INT64_MAX, &device))
        return false;
    t->random = (tarn__rng_state){.seed = (uint64_t)seed};
    t->random.offset[0][0] = (uint64_t)cpu;
    t->random.offset[t->device.backend][t->device.index] = (uint64_t)device;
    return true;
}

/* t->state changes only after all of the file was read and verified; t->random also where that fails, which ends the
 * run. */
static bool read_state(const char *function, tarn_trainer *t, const char *path)
{
    int64_t format;
    tarn__run_state p = {0};
    tarn__json_file *document = tarn__json_file_open(function, path);
    bool good =
        document && tarn__json_file_int(document, "format", MIN_FORMAT, FORMAT, &format) &&
        tarn__json_file_int(document, "step", 0, INT64_MAX, &p.step) &&
        tarn__json_file_int(document, "epoch", 0, INT64_MAX, &p.loader.epoch) &&
        tarn__json_file_int(document, "batch", 0, tarn_loader_batches(t->loader), &p.loader.batch) &&
        read_random(t, document) && tarn__json_file_int(document, "best.step", 0, p.step, &p.best_step) &&
        tarn__json_file_real(document, "best.loss", &p.best_loss) &&
        tarn__json_file_real(document, "best.accuracy", &p.best_accuracy) && read_regression(t, document, &p) &&
        tarn__json_file_int(document, "evaluations_since_best", 0, INT64_MAX, &p.stale) &&
        tarn__json_file_real(document, "seconds", &p.seconds) &&
        tarn__json_file_bool(document, "finished", &p.finished) &&
        (format == MIN_FORMAT ||
         tarn__json_file_verify(document, "restore the file from a copy, or resume an older checkpoint (step-N/)")) &&
        read_frozen(function, t, document, path) && read_tuning(function, t, document) &&
        read_instructions(t, document) && read_ranks(t, document);
    tarn__json_file_free(document);
    if (good)
        t->state = p;
    return good;
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

/* Writes the files with the suffix ".next". */
static bool write_next(tarn_trainer *t)
{
    tarn__path path;
    tarn__rng_state random = tarn__random_save(); /* during a run the thread's generator is the run's */
    if (tarn_failed() || !tarn_loader_tell(t->loader, &t->state.loader))
        return false;
    next_of(t, MODEL, &path);
    return (t->options.lora ? tarn__adapters_save(t, path.text) : tarn_module_save(t->model, path.text)) &&
           tarn_optimizer_save(t->optimizer, next_of(t, OPTIMIZER, &path)) &&
           (!t->ema || tarn_ema_save(t->ema, next_of(t, AVERAGE, &path))) &&
           write_state(t, &random, next_of(t, STATE, &path));
}

/* The files that all ranks write together, in the order of write_next(). */
static bool join_writing(tarn_trainer *t)
{
    tarn__path path;
    return tarn_optimizer_save(t->optimizer, next_of(t, OPTIMIZER, &path)) &&
           (!t->ema || tarn_ema_save(t->ema, next_of(t, AVERAGE, &path)));
}

/* Rank 0 may need more time for the weights than a rank otherwise waits. */
bool tarn__checkpoint_save(tarn_trainer *t)
{
    bool is_first = tarn__ranks_is_first(&t->ranks), is_sharded = tarn__is_sharded(&t->options);
    if (!is_first && !is_sharded)
        return true;
    double timeout = tarn__ranks_extend_timeout(&t->ranks, TARN__WRITING_TIME);
    bool good = is_first ? write_next(t) && commit_files("trainer_run", t) : join_writing(t);
    tarn__ranks_set_timeout(&t->ranks, timeout);
    return good;
}

bool tarn__checkpoint_snapshot(tarn_trainer *t, tarn__memfiles *files, tarn__checkpoint_renames *renames)
{
    tarn__memfiles_open(files);
    bool good = write_next(t);
    tarn__memfiles_close();
    for (int i = 0; i < FILES; i++) {
        next_of(t, i, &renames->from[i]);
        path_of(t, i, &renames->to[i]);
        if (i == AVERAGE && !t->ema)
            renames->from[i].text[0] = 0;
    }
    return good;
}

/* The files belong together if trainer.json, the optimizer and the average are at the same step. */
static bool check_same_step(const char *function, const tarn_trainer *t)
{
    int64_t steps = tarn_optimizer_steps(t->optimizer), updates = t->ema ? tarn_ema_updates(t->ema) : steps;
    int which = steps == t->state.step ? AVERAGE : OPTIMIZER;
    return (steps == t->state.step && updates == steps) ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "%s: '%s' is not a complete checkpoint: trainer.json is at step %" PRId64
                       ", %s at step %" PRId64,
                       function, t->options.out, t->state.step, name_of(t, which), which == AVERAGE ? updates : steps);
}

/* A run never starts its average anew: that would give other weights than the uninterrupted run. */
static bool load_average(const char *function, const tarn_trainer *t)
{
    tarn__path path;
    if (!t->ema)
        return true;
    if (!tarn__path_exists(path_of(t, AVERAGE, &path)))
        return tarn__raise(TARN_ERROR_IO,
                           "%s: '%s' has no ema.safetensors with the averaged weights of its run (ema is %g); restore "
                           "the file from a copy, or start a new run",
                           function, t->options.out, t->options.ema);
    return tarn_ema_load(t->ema, path.text);
}

/* Without trainer.json a run has not started, or the file is lost: then there are weights, which the first step would
 * overwrite. Adapters are no sign of that: they are saved before the first checkpoint. */
static bool check_not_started(const char *function, const tarn_trainer *t)
{
    const char *const names[] = {"optimizer.safetensors", "best.safetensors", "best",
                                 t->options.lora ? "optimizer.safetensors" : "model.safetensors"};
    tarn__path path;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (tarn__path_exists(tarn__path_in(t->options.out, names[i], &path)))
            return tarn__raise(TARN_ERROR_IO,
                               "%s: '%s' has no trainer.json with the step of its weights; restore the file from a "
                               "copy, resume a numbered checkpoint (%s/step-N), or start a new run in another folder",
                               function, t->options.out, t->options.out);
    return true;
}

/* Waits for a pending write first: its renames must not race with recover(). Weights, optimizer and loader are then at
 * t->state. */
bool tarn__checkpoint_load(const char *function, tarn_trainer *t)
{
    tarn__path path;
    if (tarn_failed() || !tarn__async_checkpoint_wait(t->async_checkpoint) ||
        (tarn__ranks_is_first(&t->ranks) && !recover(function, t)) || !tarn__ranks_wait(t))
        return false;
    if (!tarn__path_exists(path_of(t, STATE, &path)))
        return check_not_started(function, t);
    if (!read_state(function, t, path.text))
        return false;
    path_of(t, MODEL, &path);
    bool good =
        (t->options.lora ? tarn__adapters_load(function, t, path.text) : tarn_module_load(t->model, path.text, NULL)) &&
        tarn_optimizer_load(t->optimizer, path_of(t, OPTIMIZER, &path)) && load_average(function, t) &&
        tarn_loader_seek(t->loader, t->state.loader);
    return good ? check_same_step(function, t) : tarn__raise_within(function);
}
