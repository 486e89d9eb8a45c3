/* train.h: training runs: described by options, written to a folder, stopped and resumed at any step.
 *
 * Classifiers train on labelled samples, regressions on tables, language models on text; the data decides which.
 *
 * A run folder holds config.json (the options), model.safetensors (last weights), best.safetensors (best weights),
 * optimizer.safetensors and trainer.json (state to resume from; with `ema` also ema.safetensors), metrics.jsonl (one
 * JSON object per line), report.html and TensorBoard events. That of a language model is a Hugging Face model folder,
 * with tokenizer.json and a sub-folder "best" of the best weights. Fine-tuning starts from a base model (option
 * `base`). With LoRA the folder and its "best" are PEFT folders: adapter_config.json and adapter_model.safetensors
 * instead of weights, and frozen.json, a hash of the frozen weights.
 *
 * A kill at any moment leaves a complete checkpoint; a resumed run is bitwise identical to an uninterrupted one. */
#ifndef TARN_TRAIN_H
#define TARN_TRAIN_H

#include <tarn/data.h>
#include <tarn/model.h>
#include <tarn/nn.h>
#include <tarn/profile.h>
#include <tarn/runs.h>
#include <tarn/text.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* Maximum number of hidden layers of an MLP. */
#define TARN_TRAIN_MAX_MLP_SIZES 8

/* Options of a run. Zero, or an empty string, is every field's default. The fields are the options of `tarn train`;
 * its --help describes them. */
typedef struct tarn_train_options {
    /* "mlp", "lenet", "resnet20", "resnet18", "resnet34", "resnet50", "gpt2", "llama" or another language model listed
     * by --help; default: gpt2 for text, resnet20 for image files, lenet for other images, else mlp */
    char model[16];
    /* "digits" (the default), "images:FOLDER", "mnist:FOLDER", "cifar10:FOLDER", "idx:IMAGES,LABELS", "FILE.csv" or
     * "csv:FILE" (a table), "npy:IMAGES,LABELS", "text:FILE", "shards:FOLDER"; to fine-tune "chats:FILE", "FILE.jsonl"
     */
    char data[1024];
    int64_t mlp_sizes[TARN_TRAIN_MAX_MLP_SIZES]; /* hidden layer sizes of an mlp; default 128 */
    int mlp_size_count;
    int64_t epochs;     /* default 5 */
    int64_t steps;      /* end the run after this many steps, whatever the epochs; default: none */
    int64_t batch_size; /* default 64 */
    char optimizer[16]; /* "sgd", "adam" or "adamw" (the default) */
    double lr;          /* default 0.001; of sgd 0.05 */
    double weight_decay;
    double momentum; /* of sgd */
    /* "constant", "linear" or "cosine" (the default) to min_lr at the last step; or "step": see lr_step */
    char schedule[16];
    int64_t warmup;   /* steps of linear learning rate warm-up */
    double clip_norm; /* maximum gradient norm; default: no clipping */
    bool augment;     /* random shifts of images, and flips of CIFAR-10; of image files random crops and flips */
    double label_smoothing;
    int64_t seed;
    char device[32]; /* default auto */
    int64_t workers; /* prefetch threads; default: none, for image files one per core, at most 8 */
    /* run folder; default by model, data, shape and device: runs/lenet-digits-1x28x28-cpu, then …-cpu-2 */
    char out[1024];
    int64_t patience; /* evaluations without improvement before the run ends; default: never */
    /* steps between evaluations, each with a checkpoint; default: an epoch; epochs shorter than log_every or 1/50 of
     * the run are combined */
    int64_t eval_every;
    int64_t log_every; /* steps between lines of metrics; default 20 */
    double min_lr;     /* final learning rate of the schedule; default 0 */
    double beta2;      /* of adam and adamw; default 0.999 */

    /* Language models. Default sizes are those of the named model; of an architecture alone (gpt2, llama, mistral,
     * qwen2, qwen3) sizes, batch size and run length are chosen so that the device trains in minutes: see `chosen` of
     * tarn_train_plan. */

    /* "characters" (the default), "bytes", or a path for tarn_tokenizer_open(); shards have their own */
    char tokenizer[1024];
    int64_t layers, heads, hidden_size, context;
    int64_t vocab_size; /* vocabulary size, at least the tokenizer's, which is the default; above a base's: adds rows */
    double dropout;     /* default 0 */
    /* sequences per forward pass; gradients accumulate over the batch; default: the batch */
    int64_t micro_batch;
    int64_t eval_batches; /* batches per evaluation, spread over the validation set; default: all */
    int64_t sample;       /* tokens to generate at each evaluation; default: none */
    /* number of recent evaluations whose checkpoints are kept, in folders such as step-500; default: none */
    int64_t keep;
    /* "auto" (the default: bf16 for language models on GPUs that support it, else f32), "f32", "tf32" or "bf16":
     * bf16 parameters with f32 master weights */
    char precision[8];
    /* activation recomputation: "none" (the default), "selective" (the default with lora) or "full" */
    char recompute[16];

    /* "auto" (the default), "on" or "off": capture a step as a graph, which saves host work per operation; results
     * are bitwise identical, and it takes no more memory. With virtual_ranks the passes of one virtual rank are
     * captured. auto captures where that is possible and a graph has at most 16 micro-batches. "on" is an error where
     * it is not: on devices without graphs, and with virtual_ranks if ranks are threads, with sync_batchnorm, with
     * `overlap` "on", or with `reduce` "fast" and several virtual ranks per rank. */
    char capture[8];

    /* of the schedule "step", which needs one of both: steps, or epochs, after the warm-up between decays by
     * lr_gamma */
    int64_t lr_step, lr_step_epochs;
    double lr_gamma; /* default 0.1 */

    /* key and value heads of Llama models; default: the model's, or as many as heads */
    int64_t kv_heads;
    /* FFN size; default: the model's; of GPT-2 4 · hidden_size, of a llama 8/3 · hidden_size, rounded to 32 */
    int64_t ffn_size;

    /* Fine-tuning: the run starts with the weights and tokenizer of a base model and has its sizes; `context` is the
     * sequence length, at most the model's. */

    /* base model: Hugging Face folder, run folder (its best weights) or .gguf file; `model` takes such a path too;
     * default: none */
    char base[1024];
    /* rank of LoRA adapters, which alone are trained; default: none, all weights are trained */
    int64_t lora;
    double lora_alpha;      /* scale is lora_alpha / lora; default: twice the rank */
    double lora_dropout;    /* dropout of an adapter's input; default 0 */
    char lora_targets[256]; /* layers with an adapter, "q_proj,v_proj"; default: all linear ones but the head */
    /* modules that are trained whole and saved with the adapters, "embed_tokens,lm_head"; default: none */
    char lora_modules_to_save[256];
    /* "q8_0", "q4_0", "q4_k" or "q6_k": quantize the frozen linear layers of a folder on load; default: none */
    char quantize[8];
    /* write the model with its best adapters merged at the end: "folder" (merged) or "gguf" (merged.gguf); default:
     * none */
    char merge[8];

    /* Chat data: JSON lines with prompt and completion, messages, or text. */

    /* option `template`: "chatml", "llama2", "llama3" or "mistral"; default: the model's own */
    char chat_template[16];
    char val[1024]; /* validation set, JSON lines; default: a fraction of the data */
    /* fraction of documents, of rows of a table, or of image files per class; default 0.1, none with `val` */
    double val_fraction;

    /* replace the run in the folder once the new one has its first checkpoint; nothing but a run is removed */
    bool overwrite;
    bool ignore_memory; /* start a run although its plan exceeds the free memory */

    /* Image files: images:FOLDER. */
    int64_t image_size; /* side in pixels that files are resized and cropped to; default 64; of resnet18 … 50 224 */
    bool grey;          /* one channel; default: red, green and blue */
    double crop_scale;  /* random crops of at least this fraction of the area; default: none, 0.25 with `augment` */
    double jitter;      /* random brightness, contrast and saturation: factors from 1 - jitter to 1 + jitter */

    /* Data-parallel training: all ranks of `comm` (tarn/parallel.h) create a trainer with the same options and run it.
     * The batch is divided among `virtual_ranks`, a multiple of the ranks that is stored with the run: the run is
     * bitwise identical for every number of ranks that divides it, and can be resumed on another. Rank 0 alone
     * reports, generates samples and writes the folder, which all ranks can read. The communicator is borrowed; NULL:
     * one rank. */
    int64_t virtual_ranks;
    char zero[16];       /* "1": ZeRO-1, the optimizer's state is divided among the ranks; default "off" */
    bool sync_batchnorm; /* batchnorms use statistics of all ranks; the run then depends on their number */
    double rank_timeout; /* seconds; default 120 */
    /* Gradients are summed in buckets of `bucket_size` MiB, default 25; with `overlap` "on" during the backward pass,
     * with "auto", the default, only where they go through host memory, from GPUs or between machines. Neither option
     * changes a bit of the result. */
    char overlap[16];
    /* "fast": a rank accumulates the gradients of its virtual ranks, and the sums of ranks are added by the transport's
     * own all-reduce, if it has one: the run is then bitwise identical for one number of ranks only. The default of
     * `virtual_ranks` is then the number of ranks, and it need not be a multiple of it. Default "tree" */
    char reduce[16];
    double bucket_size;
    struct tarn_comm *comm;

    /* Fine-tuning a classifier: safetensors file, or folder of one or of a run, whose weights the run starts with; a
     * head of another shape is drawn anew; default: none */
    char finetune[1024];
    bool freeze; /* train the head only */

    /* Chat data: special tokens to add to the tokenizer, and rows for them to embedding and head, as for
     * tarn_tokenizer_add_tokens(); with `lora` these rows are trained next to the adapters; default: none */
    char add_tokens[1024];

    /* Tables; see tarn_table_options and tarn_table_encoder_options; the words are those of --help. */
    char target[256], drop[1024], task[16], delimiter[16], decimal[8], header[8];

    /* decay of an exponential moving average of the weights (tarn_ema_new(), with its warm-up), updated after each
     * step; evaluations, samples and best weights are of the average; default: none */
    double ema;
} tarn_train_options;

/* Type of an option's value. */
typedef enum tarn_option_type {
    TARN_OPTION_FLAG = 0, /* true or false */
    TARN_OPTION_INT,
    TARN_OPTION_INTS, /* integers, separated by commas */
    TARN_OPTION_REAL,
    TARN_OPTION_WORD, /* one of the words in `value`, separated by | */
    TARN_OPTION_STRING
} tarn_option_type;

/* One row of the option table, to build flags or forms from. Static storage. */
typedef struct tarn_option {
    const char *name; /* "batch_size"; as a flag --batch-size */
    tarn_option_type type;
    double low, high;          /* bounds of a number */
    const char *default_value; /* as it would be typed; "" if it depends on other options */
    const char *value;         /* placeholder of the value in --help */
    const char *help;
    bool resumable;    /* may change when a run is resumed */
    const char *alias; /* name in earlier versions, still accepted; NULL: none */
    bool in_bench;     /* sets up a step: an option of tarn bench train too */
} tarn_option;

/* Number of options, and option number `index`. */
TARN_API int tarn_train_option_count(void);
TARN_API bool tarn_train_option(int index, tarn_option *option);

/* True if an option applies to a training task: "classify", "regress", "lm" or "chat". Unknown names are errors. */
TARN_API bool tarn_train_option_applies(const char *name, const char *task);

/* Sets an option by name from a string; an unknown name and an invalid value are errors that change nothing. `...`
 * is the name and the string. */
TARN_API bool tarn_train_options_set_sized(tarn_train_options *options, size_t options_size, const char *name,
                                           const char *text);
#define tarn_train_options_set(options, ...) \
    tarn_train_options_set_sized(options, sizeof(tarn_train_options), __VA_ARGS__)

/* Sets options from a JSON file: {"model": "lenet", "epochs": 3}, or the config.json of a run. Other options stay;
 * an error changes nothing. `...` is the path. */
TARN_API bool tarn_train_options_load_sized(tarn_train_options *options, size_t options_size, const char *path);
#define tarn_train_options_load(options, ...) \
    tarn_train_options_load_sized(options, sizeof(tarn_train_options), __VA_ARGS__)

/* ---- training ---------------------------------------------------------------------------------------------------- */

typedef struct tarn_trainer tarn_trainer;

/* Prepares a run: opens the data, creates the model on its device, and checks that they match. Writes nothing yet.
 * An existing folder is an error, unless it holds a run and `overwrite` is set. If the lower bound of the plan
 * exceeds the free memory, that is an error (TARN_ERROR_MEMORY) before any large allocation, with settings that
 * would fit; `ignore_memory` starts it anyway. The caller owns the trainer and uses it from one thread. `...` is a
 * const tarn_train_options *. */
TARN_API tarn_trainer *tarn_trainer_new_sized(const tarn_train_options *options, size_t options_size);
#define tarn_trainer_new(...) tarn_trainer_new_sized(__VA_ARGS__, sizeof(tarn_train_options))

/* Prepares to resume the run in a folder from its last checkpoint, with its saved options; `changes` (may be NULL)
 * overrides those that are `resumable` in tarn_option. A folder in use by another trainer is an error. `...` is the
 * folder and a const tarn_train_options *, or NULL. */
TARN_API tarn_trainer *tarn_trainer_resume_sized(const char *folder, const tarn_train_options *changes,
                                                 size_t changes_size);
#define tarn_trainer_resume(folder, ...) tarn_trainer_resume_sized(folder, __VA_ARGS__, sizeof(tarn_train_options))

/* Prepares a trainer that has a plan and cannot run: of a new run, if `folder` is NULL, or of a resumed one. Its
 * model has shapes and no storage, so that even one that does not fit is ready at once: compare memory_needed and
 * memory_free of its plan. All other errors of such a run are raised here too. `...` is the folder and a const
 * tarn_train_options *. */
TARN_API tarn_trainer *tarn_trainer_dry_run_sized(const char *folder, const tarn_train_options *options,
                                                  size_t options_size);
#define tarn_trainer_dry_run(folder, ...) tarn_trainer_dry_run_sized(folder, __VA_ARGS__, sizeof(tarn_train_options))

/* Maximum number of suggested settings. */
#define TARN_TRAIN_FITS 6

/* Settings with which a run would fit, as planned. */
typedef struct tarn_train_fit {
    char settings[96]; /* options by name: "recompute=full micro_batch=4" */
    int64_t memory_needed;
} tarn_train_fit;

/* Plan of a run. */
typedef struct tarn_train_plan {
    tarn_train_options options; /* with defaults resolved */
    char device[32], folder[1024];
    tarn_shape input; /* of one sample */
    int64_t classes, training_samples, validation_samples;
    int64_t trained, frozen; /* parameters */
    /* bytes on the device: estimated need; free memory, 0 if unknown. Ranks on the CPUs of one machine need as much
     * each, and have an equal share of what is free. */
    int64_t memory_needed, memory_free;
    int64_t first_step, steps, steps_in_epoch;
    const char *task;        /* "classify", "regress", "lm" or "chat" */
    const char *sample_name; /* what a batch consists of: "sample"; of a language model "sequence" */
    int64_t step_samples;    /* per step, over all micro-batches */
    /* of a language model, whose classes are the vocabulary; 0 for a classifier */
    int64_t training_tokens, validation_tokens;
    bool captures; /* steps are captured as a graph, after the first ones */

    /* Parts of memory_needed: weights, trained and frozen; gradients; optimizer state, master weights and averages;
     * activations, with the workspace of backward. */
    int64_t weight_bytes, gradient_bytes, state_bytes, activation_bytes;
    /* of chats: documents, training tokens with loss, and documents longer than the context; 0 for other tasks */
    int64_t training_documents, validation_documents, completion_tokens, documents_truncated;
    /* sizes chosen for a new language model, and why: "to train in minutes on a CPU with 1003854 tokens: layers 4,
     * hidden_size 128 …"; of a classifier with `finetune` which weights were loaded and which drawn anew; "": none */
    char chosen[256];
    int64_t memory_min;                   /* lower bound of memory_needed: tensors that a step needs at once */
    tarn_train_fit fits[TARN_TRAIN_FITS]; /* if memory_needed exceeds memory_free */
    int fit_count;
    int64_t skipped_files; /* image files that cannot be read; the log names them */
    int ranks;             /* of a data-parallel run; 1: none */
    int64_t virtual_ranks; /* the ranks that can resume the run divide it */
    bool is_sharded;       /* state_bytes are a rank's share: ZeRO-1 */
    bool overlaps;         /* gradients are summed during the backward pass */
    char notes[2048];      /* what was found about the data and decided, one sentence per line; "": nothing */
} tarn_train_plan;

/* Fills in the plan of a trainer. */
TARN_API bool tarn_trainer_plan(const tarn_trainer *trainer, tarn_train_plan *plan);

/* A metric of a training task, and how it is printed. */
typedef struct tarn_train_metric {
    char name[32];  /* key in JSON: "loss", "accuracy", "tokens_per_second" */
    char label[32]; /* in a line of text: "loss", "norm"; "": the unit is enough */
    char unit[16];  /* in a line of text: "tokens/s"; "%": value is a fraction, 0 to 1; "": none */
    /* printed ones, in a line of text (negative: significant digits) and in JSON */
    int decimals, json_decimals;
    int rank; /* importance, 0 the highest: for displays with little space */
    bool higher_is_better;
    double value;
} tarn_train_metric;

/* Maximum number of metrics of a report. */
#define TARN_TRAIN_METRICS 8

/* Mean over the steps since the last report; validation set, after this step; generated text: `text`. */
typedef enum tarn_report_kind { TARN_REPORT_TRAINING = 0, TARN_REPORT_EVALUATION, TARN_REPORT_SAMPLE } tarn_report_kind;

/* Progress report of a run. */
typedef struct tarn_train_report {
    tarn_report_kind kind;
    int64_t step, steps, epoch, epochs; /* epochs count from 1 */
    /* The task, and its metrics in the order of printing; none for a sample. The fields below have the same values; a
     * metric that the task lacks is 0. */
    const char *task;
    tarn_train_metric metrics[TARN_TRAIN_METRICS];
    int metric_count;
    double loss, accuracy; /* accuracy of a classifier: 0 to 1 */
    /* samples per second of a classifier, see `unit`; seconds of the whole run, earlier segments included */
    double lr, images_per_second, seconds;
    bool is_best;                            /* of an evaluation: the best so far */
    double tokens_per_second, gradient_norm; /* of a language model; gradient_norm: before clipping */
    int64_t memory;                          /* peak bytes of tensors on the device */
    /* fraction of the time in which the device ran kernels, in the last sampled step; 0: not sampled yet */
    double utilization;
    /* model FLOPs utilization of a language model, by tarn_device_peak_flops(); 0: unknown */
    double mfu;
    double val_loss;  /* of the last evaluation; NaN: none yet */
    double eta;       /* remaining seconds of training, at the speed since the last report */
    const char *text; /* of a sample; terminated by 0 */
    size_t text_length;
    const char *unit;     /* of the speed: "tokens", "images" or "rows" */
    double rmse, mae, r2; /* of a regression's evaluation, in units of the target; r2 NaN: the target is constant */
} tarn_train_report;

/* Receives reports; `report` is valid during the call. May call tarn_trainer_stop(). */
typedef void (*tarn_report_fn)(const tarn_train_report *report, void *ctx);

/* How a run ended. */
typedef enum tarn_train_end {
    TARN_TRAIN_FINISHED = 0,
    TARN_TRAIN_STOPPED, /* by tarn_trainer_stop(); can be resumed */
    TARN_TRAIN_PATIENCE /* no improvement in `patience` evaluations */
} tarn_train_end;

/* Result of a run. */
typedef struct tarn_train_result {
    tarn_train_end end;
    int64_t step, best_step; /* best_step: 0 without an evaluation */
    double best_loss, best_accuracy, seconds;
    int64_t profiled; /* steps covered by tarn_profile_summarize(); 0: no profile */
    /* Metrics of the best evaluation; NaN without one. The last metric decides which evaluation is the best, those
     * before it break ties. */
    tarn_train_metric best[TARN_TRAIN_METRICS];
    int best_count;
} tarn_train_result;

/* Trains to the end, or until stopped, and leaves a checkpoint. The first non-finite loss or gradient is an error
 * that names step and layer; the checkpoint is then the state before that step. `report` and `result` may be NULL. */
TARN_API bool tarn_trainer_run(tarn_trainer *trainer, tarn_report_fn report, void *ctx, tarn_train_result *result);

/* Profiles `steps` consecutive steps of the next run (0: none), without an evaluation in between, after its first
 * ten if the run is long enough; fewer in a shorter run. They run uncaptured. The trace is written to trace.json in
 * the run folder; the records can be read as after tarn_profile_stop(). */
TARN_API bool tarn_trainer_profile(tarn_trainer *trainer, int64_t steps);

/* Phase of a run. */
typedef enum tarn_train_phase {
    TARN_TRAIN_PREPARING = 0, /* folder and first checkpoint */
    TARN_TRAIN_STEPS,
    TARN_TRAIN_EVALUATION, /* includes saving the best weights */
    TARN_TRAIN_SAMPLE,
    TARN_TRAIN_CHECKPOINT
} tarn_train_phase;

/* Progress of a run. */
typedef struct tarn_train_progress {
    tarn_train_phase phase;
    int64_t step, steps; /* steps taken, and total */
    double fraction;     /* of the current step, by micro-batches: 0 to 1 */
} tarn_train_progress;

/* Reads the progress of a run, for a display on a timer. Thread-safe while tarn_trainer_run() runs. */
TARN_API bool tarn_trainer_progress(const tarn_trainer *trainer, tarn_train_progress *progress);

/* Stops a run after the current step. Safe in any thread and in signal handlers. */
TARN_API void tarn_trainer_stop(tarn_trainer *trainer);

/* The model in training. Borrowed from the trainer. */
TARN_API tarn_module *tarn_trainer_model(const tarn_trainer *trainer);

/* Frees a trainer; the folder stays. NULL is allowed; works while an error is pending. */
TARN_API void tarn_trainer_free(tarn_trainer *trainer);

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* Timing of a training step. Times are medians, in milliseconds, by the device's clock if it has one. */
typedef struct tarn_train_timing {
    tarn_train_options options; /* with defaults resolved */
    int64_t samples, tokens;    /* per step: sequences or images, and tokens of a language model */
    int64_t parameters;         /* trained ones */
    /* per step, by the usual count: 6 per parameter and token, plus 12 · layers · hidden_size · context per token
     * for attention; 0: unknown */
    double flops;
    bool is_captured;            /* the steps ran as a captured graph, by the option `capture` */
    double step_ms, min_step_ms; /* median and minimum */
    /* of uncaptured steps; update: clipping and optimizer */
    double batch_ms, forward_ms, backward_ms, update_ms;
    double host_ms;     /* host time to enqueue a step on an idle device */
    double utilization; /* fraction of a step in which the device runs kernels */
    tarn_memory_kinds memory;
    int64_t frozen; /* frozen parameters that gradients pass through: 4 FLOPs per token each */
} tarn_train_timing;

/* Measures training steps of tarn_trainer_run() on random tokens or images; writes nothing. Resets the counters of
 * tarn_stats(). Runs `warmup` steps first, then measures `steps`. Options select the model and the step; data and
 * options of a whole run are errors. `...` is a const tarn_train_options *. */
TARN_API bool tarn_train_measure_sized(int64_t warmup, int64_t steps, tarn_train_timing *timing, size_t timing_size,
                                       const tarn_train_options *options, size_t options_size);
#define tarn_train_measure(warmup, steps, timing, ...) \
    tarn_train_measure_sized(warmup, steps, timing, sizeof(tarn_train_timing), __VA_ARGS__, sizeof(tarn_train_options))

/* ---- using what was trained -------------------------------------------------------------------------------------- */

/* Evaluation of a classifier. */
typedef struct tarn_evaluation {
    int64_t samples;
    double loss, accuracy; /* mean cross entropy; fraction of correct samples, 0 to 1 */
} tarn_evaluation;

/* Evaluates a classifier on all batches of a loader, which must be at the beginning of an epoch and yield inputs and
 * labels, outside training mode and without a tape; restores training mode. `class_samples` and `class_correct`
 * (both may be NULL) have capacity for `classes` counts: samples per class, and correct ones. Counts stay on the
 * device until the end. */
TARN_API bool tarn_evaluate(tarn_module *model, tarn_loader *loader, int64_t classes, tarn_evaluation *evaluation,
                            int64_t *class_samples, int64_t *class_correct);

/* Evaluation of a language model. */
typedef struct tarn_text_evaluation {
    int64_t tokens;          /* predicted */
    double loss, perplexity; /* mean cross entropy in nats; its exponential */
} tarn_text_evaluation;

typedef struct tarn_run tarn_run;

/* Opens the best weights of a run folder (the last ones if there are no best ones), any Hugging Face folder of a
 * language model, or a GGUF file with its tokenizer, by the suffix ".gguf". The caller owns the run. */
TARN_API tarn_run *tarn_run_open(const char *folder, tarn_device device);

/* Checkpoint of a run: best evaluation, or last. */
typedef enum tarn_run_checkpoint { TARN_RUN_BEST, TARN_RUN_LAST } tarn_run_checkpoint;

/* Location of a checkpoint. */
typedef struct tarn_run_weights {
    bool is_run;                    /* false: a model folder that is not a run, or a file, with its only weights */
    tarn_run_checkpoint checkpoint; /* the last one if there is no best one yet */
    int64_t step;                   /* of the checkpoint; 0: unknown */
    /* of adapters: quantization of their base model (tarn_model_open_options); TARN_F32: none */
    tarn_dtype quantize;
    char path[1100]; /* of a language model: the folder for tarn_model_open() */
    double ema;      /* decay of the moving average that the weights are; 0: they are the run's own */
} tarn_run_weights;

/* Finds a checkpoint of a run. Commands use the best one unless --checkpoint last is given. */
TARN_API bool tarn_run_weights_find(const char *folder, tarn_run_checkpoint checkpoint, tarn_run_weights *weights);

/* Options of tarn_run_open_with(); zero is every field's default. */
typedef struct tarn_run_open_options {
    /* of a language model: see tarn_model_open_options; an error for other networks */
    int64_t device_layers;
    /* of a language model: "chatml", "llama2", "llama3" or "mistral" instead of its own, for
     * tarn_run_evaluate_text() on JSON lines; an error on other data; NULL: its own */
    const char *chat_template;
    tarn_run_checkpoint checkpoint; /* which weights of a run; default: best */
    const tarn_model_split *split;  /* of a language model, as device_layers. Borrowed for the call */
    /* N ranks that share evaluations: each opens the run, calls the same tarn_run_evaluate…() and takes every N-th
     * batch; all get the result that one rank would get. Borrowed until the run is closed. NULL: one rank */
    struct tarn_comm *comm;
} tarn_run_open_options;

/* The same with options. `...` is a const tarn_run_open_options *, or NULL. */
TARN_API tarn_run *tarn_run_open_with_sized(const char *folder, tarn_device device,
                                            const tarn_run_open_options *options, size_t options_size);
#define tarn_run_open_with(folder, device, ...) \
    tarn_run_open_with_sized(folder, device, __VA_ARGS__, sizeof(tarn_run_open_options))

/* The model, outside training mode, its kind ("lenet"), and its training data ("mnist:FOLDER"; "" where a language
 * model's folder does not say). Borrowed from the run. */
TARN_API tarn_module *tarn_run_model(const tarn_run *run);
TARN_API const char *tarn_run_kind(const tarn_run *run);
TARN_API const char *tarn_run_data(const tarn_run *run);

/* Training task: "classify", "regress", or of a language model "lm" (text, or no data named) or "chat". Functions for
 * classes and samples are errors for language models, those for text are errors for classifiers. A literal; NULL with
 * an error. */
TARN_API const char *tarn_run_task(const tarn_run *run);

/* Tokenizer of a language model's folder. Borrowed from the run. */
TARN_API const tarn_tokenizer *tarn_run_tokenizer(const tarn_run *run);

/* Shape of one sample. */
TARN_API bool tarn_run_input(const tarn_run *run, tarn_shape *input);

/* Number of classes, and name of one. Borrowed from the run. */
TARN_API int64_t tarn_run_classes(const tarn_run *run);
TARN_API const char *tarn_run_class_name(const tarn_run *run, int64_t index);

/* Evaluates the model on data, named as for training; NULL: the run's validation set. Uses the test set of the data
 * if there is one, else all of it. Counts are those of tarn_evaluate(). */
TARN_API bool tarn_run_evaluate(tarn_run *run, const char *data, int64_t batch_size, tarn_evaluation *evaluation,
                                int64_t *class_samples, int64_t *class_correct);

/* Evaluates a language model on text, named as for training: a whole file, or the validation part of shards; NULL:
 * the run's validation set. Consecutive windows of the model's context are evaluated `batch_size` at a time: every
 * token but the first is predicted from those before it in its window. A non-finite loss is an error. */
TARN_API bool tarn_run_evaluate_text(tarn_run *run, const char *data, int64_t batch_size,
                                     tarn_text_evaluation *evaluation);

/* Class probabilities of one sample, u8 or f32, of the run's input shape; `probabilities` has capacity for one value
 * per class. A sample of a table has one value per feature: numbers as they are, 0 and 1 for categories and
 * indicators. For a run trained on u8, f32 samples also range from 0 to 255; one trained on f32 or f64 does not
 * accept u8. */
TARN_API bool tarn_run_predict(tarn_run *run, const tarn_array *sample, double *probabilities);

/* Frees a run; the folder stays. NULL is allowed; works while an error is pending. */
TARN_API void tarn_run_close(tarn_run *run);

/* ---- documents to fine-tune on ----------------------------------------------------------------------------------- */

/* JSON lines packed into rows of tokens, with loss on completions only. Lines, or elements of
 * a JSON array, are in the formats of OpenAI, ShareGPT or Alpaca, prompts and completions, questions and answers, or
 * texts, recognized by their fields; see docs/guide/fine-tune.md. A row packs whole documents: positions
 * restart at 0 in each, and `document_starts` holds the first index of each token's document, so that attention stays
 * within it (tarn_attention_options). Padding after the last document is a document without loss. Split and packing
 * depend on the files, the tokenizer and the options alone. */
typedef struct tarn_chat_dataset tarn_chat_dataset;

enum { TARN_CHAT_DATASET_TRAINING, TARN_CHAT_DATASET_VALIDATION };

/* Options of tarn_chat_dataset_open(); zero is the default of all but the first two. Strings are borrowed for the
 * call; the tokenizer must outlive the dataset. */
typedef struct tarn_chat_dataset_options {
    const char *path;                /* JSON lines; the prefix "chats:" is allowed */
    const tarn_tokenizer *tokenizer; /* with its chat template, if the model has one */
    const char *template_name;       /* "chatml", "llama2", "llama3" or "mistral" instead; NULL or "": its own */
    const char *val_path;            /* JSON lines for validation; NULL or "": none */
    double val_fraction;             /* fraction of documents for validation, in [0, 1); not with val_path */
    int64_t context;                 /* tokens per row, at least 2; 0: 1024 */
    uint64_t seed;                   /* of split and order */
} tarn_chat_dataset_options;

/* Counts per split. */
typedef struct tarn_chat_dataset_counts {
    int64_t documents[2];
    int64_t tokens[2];            /* of all documents, after truncation */
    int64_t completion_tokens[2]; /* of these, tokens with loss */
    int64_t rows[2];              /* after packing */
    int64_t truncated;            /* documents longer than the context, in both splits */
    uint64_t hash;                /* of tokens, loss masks and packing, to check that a resumed run has the same data */
    char formats[256];            /* what the files hold: "ShareGPT, 1,204 conversations" */
} tarn_chat_dataset_counts;

/* Arrays [rows, context] of the caller. The target of a token without loss is -100, which tarn_model_loss() ignores. */
typedef struct tarn_chat_dataset_rows {
    int32_t *ids, *targets, *positions, *document_starts;
} tarn_chat_dataset_rows;

/* Reads all documents; an error names file, line and cause. Documents longer than the context are truncated, with a
 * warning that counts them; one without a remaining completion is an error. The caller owns the dataset. */
TARN_API tarn_chat_dataset *tarn_chat_dataset_open_sized(const tarn_chat_dataset_options *options, size_t options_size);
#define tarn_chat_dataset_open(...) tarn_chat_dataset_open_sized(__VA_ARGS__, sizeof(tarn_chat_dataset_options))

/* Fills in the counts. */
TARN_API bool tarn_chat_dataset_counts_of(const tarn_chat_dataset *chats, tarn_chat_dataset_counts *counts);

/* Fills a batch of rows. Training: batches are numbered from 0 without end; every row appears once per epoch, in a
 * new order each time, so that a run resumes by number. Validation: in order; rows beyond the last have no loss. One
 * thread at a time. */
TARN_API bool tarn_chat_dataset_batch(tarn_chat_dataset *chats, int split, int64_t batch_number, int64_t rows,
                                      tarn_chat_dataset_rows *out);

/* Frees a dataset. NULL is allowed; works while an error is pending. */
TARN_API void tarn_chat_dataset_close(tarn_chat_dataset *chats);

#ifdef __cplusplus
}
#endif
#endif
