/* train.h: training as a whole: a run is described by options, lives in a folder, and can be stopped and gone on with
 * at any step.
 *
 * Classifiers learn from samples with labels, language models (gpt2, llama and their like) from text. What a run is
 * follows from its data.
 *
 * A run's folder holds config.json (what the run is), model.safetensors (the last weights), best.safetensors (the best
 * ones), optimizer.safetensors and trainer.json (where it stands), metrics.jsonl (one JSON object a line), report.html
 * and events for TensorBoard. That of a language model is a Hugging Face model folder, with tokenizer.json, and "best"
 * in it is another one, of the best weights. Fine-tuning begins with a model that is there (the option `base`). Where
 * adapters alone are trained, the folder and its "best" are folders of adapters, as PEFT has them: adapter_config.json
 * and adapter_model.safetensors in the place of the weights, and frozen.json, by which what is frozen is known again.
 * Whoever stops the program at any instant leaves a whole checkpoint there, and a run that goes on from it gives the
 * bits of one that was never stopped. */
#ifndef TARN_TRAIN_H
#define TARN_TRAIN_H

#include <tarn/data.h>
#include <tarn/nn.h>
#include <tarn/profile.h>
#include <tarn/text.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- options ----------------------------------------------------------------------------------------------------- */

#define TARN_TRAIN_HIDDEN 8

/* What a run is. Zero, or an empty text, is every field's default. The fields are the options of `tarn train`: its
 * --help explains them. */
typedef struct tarn_train_options {
    char model[16];  /* "mlp", "lenet", "resnet20", "gpt2", "llama" or another language model, which --help lists;
                        default: gpt2 for text, lenet for images, mlp otherwise */
    char data[1024]; /* "digits" (the default), "mnist:FOLDER", "cifar10:FOLDER", "idx:IMAGES,LABELS", "csv:FILE",
                        "npy:IMAGES,LABELS", "text:FILE", "shards:FOLDER", or of fine-tuning "chats:FILE" and
                        "FILE.jsonl" */
    int64_t hidden[TARN_TRAIN_HIDDEN]; /* sizes of an mlp's hidden layers; default 128 */
    int hidden_count;
    int64_t epochs;     /* default 5 */
    int64_t steps;      /* ends the run after so many steps, whatever the epochs; default: none */
    int64_t batch_size; /* default 64 */
    char optimizer[16]; /* "sgd", "adam" or "adamw" (the default) */
    double lr;          /* default 0.001; of sgd 0.05 */
    double weight_decay;
    double momentum;   /* of sgd */
    char schedule[16]; /* "constant", "linear" or "cosine" (the default), down to min_lr at the last step; or "step", in
                          stairs: see drop_every */
    int64_t warmup;    /* steps over which the learning rate rises */
    double clip_norm;  /* default: no clipping */
    bool augment;      /* moves images at random, and mirrors those of CIFAR-10 */
    double label_smoothing;
    int64_t seed;
    char device[32]; /* default auto */
    int64_t workers; /* threads that read samples; default: none */
    /* the run's folder; default by model, data, shape and device: runs/lenet-digits-1x28x28-cpu, and then …-cpu-2 */
    char out[1024];
    int64_t patience; /* ends the run after so many evaluations without a better one; default: never */
    /* steps between evaluations and checkpoints; default: an epoch's; short epochs, of fewer than log_every or a 50th
     * of the run, together */
    int64_t eval_every;
    int64_t log_every; /* steps between two lines of metrics; default 20 */
    double min_lr;     /* where the schedule ends; default 0 */
    double beta2;      /* of adam and adamw; default 0.999 */

    /* Of language models. The sizes are by default those of the model that is named; of an architecture (gpt2, llama,
     * mistral, qwen2, qwen3) they are, with the batch size and the length of the run, what the device trains in
     * minutes: see `chosen` of tarn_train_plan. */
    char tokenizer[1024]; /* "characters" (the default), "bytes", or the path of one that tarn_tokenizer_open() takes;
                             shards have their own */
    int64_t layers, heads, width, context;
    int64_t vocab;  /* at least what the tokenizer has, which is the default */
    double dropout; /* default 0 */
    /* windows that go through the model at once; a step adds up the gradients of its batch; default: the batch */
    int64_t micro_batch;
    int64_t eval_batches; /* batches of an evaluation, spread over the validation data; default: all */
    int64_t sample;       /* tokens of a sample at each evaluation; default: none */
    /* evaluations, the last ones, whose checkpoints stay in folders of their own, to be used or gone on from: step-500;
     * default: none */
    int64_t keep;
    char precision[8]; /* "auto" (the default: bf16 for language models on GPUs that have it, else f32), "f32", "tf32"
                          or "bf16": bf16 parameters with f32 master weights */
    char recompute[8]; /* "none" (the default), "cheap" (that with lora) or "block": norms and what an mlp has between
                        * its layers, or all of a block, are computed again in backward instead of being stored */

    /* "auto" (the default), "on" or "off": a step is recorded once and then repeated as a whole, which spares the host
     * its work for each operation; the bits are the same. It keeps its memory: auto records where the device can, a
     * sixteenth of its free memory holds what training takes, and a step has few micro-batches. On is an error where
     * the device cannot. */
    char capture[8];

    /* Of the schedule "step", which needs one of the first two: after each so many steps, or epochs, behind the warm-up
     * the learning rate is multiplied by drop_factor. */
    int64_t drop_every, drop_epochs;
    double drop_factor; /* default 0.1 */

    /* Of language models, too. */
    int64_t kv_heads; /* heads of keys and values, of Llama models; default: the model's, or as many as heads */
    /* numbers for each token inside an mlp; default: the model's; of GPT-2 4 · width, of a llama 8/3 · width in whole
     * 32s */
    int64_t inner;

    /* Of fine-tuning: a run that begins with the weights and the tokenizer of a model that is there. Its sizes are the
     * model's; `context` is the width of a window, at most the model's own. */
    /* a Hugging Face folder, a run's folder (its best weights) or a .gguf file; the option `model` takes such a path,
     * too; default: none */
    char base[1024];
    /* the rank of adapters, which are all that is trained then; default: none, and all weights are trained */
    int64_t lora;
    double lora_alpha;      /* what they add is multiplied by lora_alpha / lora; default: twice the rank */
    double lora_dropout;    /* the share of what enters an adapter that is left out while training; default 0 */
    char lora_targets[256]; /* names of the linear layers that get one, "q_proj,v_proj"; default: all but the head */
    char quantize[8]; /* "q8_0", "q4_0", "q4_k" or "q6_k": the frozen linear layers of a folder become blocks when they
                         are read; default: they do not */
    char merge[8];    /* what is written at the end with the best adapters added to the weights: "folder" (merged) or
                         "gguf" (merged.gguf); default: nothing */

    /* Of chats: JSON lines with prompt and completion, messages, or text. */
    char chat_template[16]; /* option `template`: "chatml", "llama2", "llama3" or "mistral"; default: the model's own */
    char val[1024];         /* JSON lines to judge by; default: a share of the data */
    double val_share;       /* the share of the documents that is to judge by; default 0.1, and none with `val` */

    /* a run in the folder is replaced, when the new one has its first checkpoint; nothing but a run is ever removed */
    bool overwrite;
    bool ignore_memory; /* starts a run although it needs more memory than is free by its plan */
} tarn_train_options;

/* What kind of value an option takes. */
typedef enum tarn_option_type {
    TARN_OPTION_FLAG = 0, /* true or false */
    TARN_OPTION_INT,      /* a whole number */
    TARN_OPTION_INTS,     /* whole numbers, separated by commas */
    TARN_OPTION_REAL,     /* a number */
    TARN_OPTION_WORD,     /* one of the words in `value`, which are separated by | */
    TARN_OPTION_STRING
} tarn_option_type;

/* One row of the table of options, for those who make flags or forms of it. Texts live as long as the program. */
typedef struct tarn_option {
    const char *name; /* "batch_size"; a flag is written --batch-size */
    tarn_option_type type;
    double low, high;          /* of numbers */
    const char *default_value; /* the default, as it would be typed; "" where it depends */
    const char *value;         /* what stands for the value in a list of flags */
    const char *help;
    bool resumable; /* may be changed when a run is gone on with */
} tarn_option;

/* How many options there are, and option number `index`. */
TARN_API int tarn_train_option_count(void);
TARN_API bool tarn_train_option(int index, tarn_option *option);

/* Sets an option by its name from a text; an unknown name, a value of another kind or out of bounds is an error that
 * says so, and changes nothing. `...` is the name and the text. */
TARN_API bool tarn_train_options_set_sized(tarn_train_options *options, size_t options_size, const char *name,
                                           const char *text);
#define tarn_train_options_set(options, ...) \
    tarn_train_options_set_sized(options, sizeof(tarn_train_options), __VA_ARGS__)

/* Sets options from a JSON file: {"model": "lenet", "epochs": 3}, or the config.json of a run. Others stay as they are;
 * on an error nothing has changed. `...` is the path. */
TARN_API bool tarn_train_options_load_sized(tarn_train_options *options, size_t options_size, const char *path);
#define tarn_train_options_load(options, ...) \
    tarn_train_options_load_sized(options, sizeof(tarn_train_options), __VA_ARGS__)

/* ---- training ---------------------------------------------------------------------------------------------------- */

typedef struct tarn_trainer tarn_trainer;

/* Makes ready to train: opens the data, makes the model on its device, looks whether they fit. Writes nothing yet. A
 * folder that already exists is an error, unless it holds a run and `overwrite` is set. A run that needs more memory
 * than is free, by the lower bound of its plan, is an error (TARN_ERROR_MEMORY) before anything large is allocated,
 * which lists settings that would fit; `ignore_memory` starts it all the same. The caller owns the trainer and uses it
 * from one thread. `...` is a const tarn_train_options *. */
TARN_API tarn_trainer *tarn_trainer_new_sized(const tarn_train_options *options, size_t options_size);
#define tarn_trainer_new(...) tarn_trainer_new_sized(__VA_ARGS__, sizeof(tarn_train_options))

/* Makes ready to go on with the run in a folder, from its last checkpoint, with the options it has there; `changes`
 * (may be NULL) gives new values to those that may be changed, of which tarn_option says `when_resumed`. A folder in
 * which another trainer is at work is an error.
 * `...` is the folder and a const tarn_train_options * or NULL. */
TARN_API tarn_trainer *tarn_trainer_resume_sized(const char *folder, const tarn_train_options *changes,
                                                 size_t changes_size);
#define tarn_trainer_resume(folder, ...) tarn_trainer_resume_sized(folder, __VA_ARGS__, sizeof(tarn_train_options))

/* Makes a trainer that has a plan and cannot run: of a new run, where `folder` is NULL, or of going on with one. Its
 * model has shapes and no memory, so that even one that does not fit is ready in a moment: compare memory_needed and
 * memory_free of its plan. What such a run would be refused for is an error here, too. `...` is the folder and a const
 * tarn_train_options *. */
TARN_API tarn_trainer *tarn_trainer_dry_run_sized(const char *folder, const tarn_train_options *options,
                                                  size_t options_size);
#define tarn_trainer_dry_run(folder, ...) tarn_trainer_dry_run_sized(folder, __VA_ARGS__, sizeof(tarn_train_options))

#define TARN_TRAIN_FITS 6

/* Settings with which a run that does not fit would, each as planned. */
typedef struct tarn_train_fit {
    char settings[96]; /* options by name: "recompute=block micro_batch=4" */
    int64_t memory_needed;
} tarn_train_fit;

/* What a trainer is going to do. */
typedef struct tarn_train_plan {
    tarn_train_options options; /* all defaults filled in */
    char device[32], folder[1024];
    tarn_shape input; /* of one sample */
    int64_t classes, training_samples, validation_samples;
    int64_t trained, frozen;            /* parameters */
    int64_t memory_needed, memory_free; /* bytes on the device: needed by estimate; free 0 when unknown */
    int64_t first_step, steps, steps_in_epoch;
    /* a language model's run: samples are windows, classes the vocabulary */
    bool is_text;
    int64_t training_tokens, validation_tokens; /* of one */
    bool captures;                              /* steps are recorded, after the first ones */

    /* What memory_needed is made of: the model, trained and frozen; the gradients of what is trained; the optimizer's
     * state and master weights; and what the steps make, with what backward takes while it runs. */
    int64_t weight_bytes, gradient_bytes, state_bytes, activation_bytes;
    /* of chats: tokens to train on that are learnt, and documents that were too long */
    int64_t training_documents, validation_documents, completion_tokens, documents_truncated;
    bool is_chat;
    char chosen[256]; /* sizes of a new language model that was given none, and why these: "to train in minutes on a CPU
                         with 1003854 tokens: layers 4, width 128 …"; "": none was chosen */
    int64_t memory_min;                   /* lower bound of memory_needed: tensors that a step holds at once */
    tarn_train_fit fits[TARN_TRAIN_FITS]; /* where memory_needed is more than memory_free */
    int fit_count;
} tarn_train_plan;

/* Says what a trainer is going to do. */
TARN_API bool tarn_trainer_plan(const tarn_trainer *trainer, tarn_train_plan *plan);

/* What a report is about. */
typedef enum tarn_report_kind {
    TARN_REPORT_TRAINING = 0, /* the mean over the steps since the last report */
    TARN_REPORT_EVALUATION,   /* the validation data, after this step */
    TARN_REPORT_SAMPLE        /* what a language model writes after this step: `text` */
} tarn_report_kind;

/* What a trainer tells on the way. */
typedef struct tarn_train_report {
    tarn_report_kind kind;
    int64_t step, steps, epoch, epochs; /* epochs count from 1 */
    double loss, accuracy;              /* accuracy: 0 to 1 */
    /* samples per second, of images or not: see `unit`; seconds: of the run so far, all its parts together */
    double lr, images_per_second, seconds;
    bool is_best; /* of an evaluation: no other was better */
    /* a language model's: these count, and accuracy and images_per_second do not */
    bool is_text;
    double tokens_per_second, gradient_norm; /* the norm is from before clipping */
    int64_t memory;                          /* the most bytes of the device that tensors had at once */
    /* the share of the time in which the device ran kernels, from the last step that was looked at; 0: none was yet */
    double utilization;
    double mfu;        /* of a language model: of tarn_device_peak_flops(); 0: not known */
    double validation; /* the loss of the last evaluation of this run; NaN: there was none */
    double eta;        /* of training, at the speed since the last report */
    const char *text;  /* of a sample; a 0 follows */
    size_t text_length;
    const char *unit; /* of the speed: "tokens", "images" or "rows" */
} tarn_train_report;

/* Is told how the run goes; `report` is valid during the call. It may call tarn_trainer_stop(). */
typedef void (*tarn_report_fn)(const tarn_train_report *report, void *ctx);

/* How a run ended. */
typedef enum tarn_train_end {
    TARN_TRAIN_FINISHED = 0,
    TARN_TRAIN_STOPPED, /* by tarn_trainer_stop(); it can be gone on with */
    TARN_TRAIN_PATIENCE /* no evaluation was better for `patience` times */
} tarn_train_end;

/* What came of a run. */
typedef struct tarn_train_result {
    tarn_train_end end;
    int64_t step, best_step; /* best_step: 0 when there was no evaluation */
    double best_loss, best_accuracy;
    double seconds;
    int64_t profiled; /* steps that tarn_profile_summarize() sums up now; 0: no profile was taken */
} tarn_train_result;

/* Trains to the end, or until it is stopped, and leaves a checkpoint. The first loss or gradient that is not finite is
 * an error that names step and layer; the checkpoint is then the state before that step. `report` and `result` may be
 * NULL. */
TARN_API bool tarn_trainer_run(tarn_trainer *trainer, tarn_report_fn report, void *ctx, tarn_train_result *result);

/* Lets the next run take a profile of so many steps (0: of none), one behind the other without an evaluation in
 * between, after its first ten where there are enough; of fewer, where there are not. They are taken operation by
 * operation, whether the others are recorded or not. It is written to trace.json in the run's folder, and can be read
 * as that of tarn_profile_stop(). */
TARN_API bool tarn_trainer_profile(tarn_trainer *trainer, int64_t steps);

/* What a run is doing. */
typedef enum tarn_train_phase {
    TARN_TRAIN_PREPARING = 0, /* the folder and its first checkpoint */
    TARN_TRAIN_STEPS,
    TARN_TRAIN_EVALUATION, /* with saving the best weights, where these are */
    TARN_TRAIN_SAMPLE,
    TARN_TRAIN_CHECKPOINT
} tarn_train_phase;

/* How far a run is. */
typedef struct tarn_train_progress {
    tarn_train_phase phase;
    int64_t step, steps; /* steps taken, and those of the run */
    double fraction;     /* of the step under way, by micro-batches: 0 to 1 */
} tarn_train_progress;

/* Tells how far a run is, for a display that is redrawn by time. May be called from any thread while tarn_trainer_run()
 * runs. */
TARN_API bool tarn_trainer_progress(const tarn_trainer *trainer, tarn_train_progress *progress);

/* Lets a run stop after the step it is at. May be called from any thread and from signal handlers. */
TARN_API void tarn_trainer_stop(tarn_trainer *trainer);

/* The model that is trained. Borrowed from the trainer. */
TARN_API tarn_module *tarn_trainer_model(const tarn_trainer *trainer);

/* Frees a trainer; the folder stays. NULL is allowed; works while an error is pending. */
TARN_API void tarn_trainer_free(tarn_trainer *trainer);

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* How long a step of training takes. Times are medians, in milliseconds, of the device's clock where it has one. */
typedef struct tarn_train_timing {
    tarn_train_options options; /* all defaults filled in */
    int64_t samples, tokens;    /* in a step: windows or images, and tokens of a language model */
    int64_t parameters;         /* trained ones */
    double flops;     /* of a step's products, as they are commonly counted: a token takes 6 for each parameter and 12
                              · layers · width · context for attention; 0: not known */
    bool is_captured; /* the steps were recorded and repeated as a whole, as the option `capture` has it */
    double step_ms, min_step_ms;
    /* of steps that are taken operation by operation; update: clipping and optimizer */
    double batch_ms, forward_ms, backward_ms, update_ms;
    /* until the host has handed a step over to a device that waits for it */
    double host_ms;
    /* the share of a step's time in which the device runs kernels */
    double utilization;
    tarn_memory_kinds memory;
    int64_t frozen; /* parameters beside adapters, which hand gradients on: a token takes 4 operations for each */
} tarn_train_timing;

/* Trains a model on random tokens or images for a while, with the steps of tarn_trainer_run(), and says how long they
 * take; nothing is written. Sets the counters of tarn_stats() to zero. `warmup` steps come first, `steps` are measured.
 * Options name the model and the step; data, and all that is about a whole run, must be left out.
 * `...` is a const tarn_train_options *. */
TARN_API bool tarn_train_measure_sized(int64_t warmup, int64_t steps, tarn_train_timing *timing, size_t timing_size,
                                       const tarn_train_options *options, size_t options_size);
#define tarn_train_measure(warmup, steps, timing, ...) \
    tarn_train_measure_sized(warmup, steps, timing, sizeof(tarn_train_timing), __VA_ARGS__, sizeof(tarn_train_options))

/* ---- the log of runs --------------------------------------------------------------------------------------------- */

/* One time that a run ended: it finished, was stopped, or failed; one that is gone on with ends again. Texts are valid
 * during the call that gets it. Numbers that there are none of are NaN. */
typedef struct tarn_logged_run {
    const char *date; /* when it ended, "2026-11-15T13:25:00Z" */
    const char *end;  /* "finished", "stopped", "patience" or "failed" */
    const char *folder, *model, *data, *device, *precision;
    const char *processor; /* the device in words */
    const char *version;   /* of tarn */
    int64_t parameters, batch_size, steps_in_epoch;
    int64_t first_step, step, steps; /* where this part of the run began and ended, and where the run would */
    double seconds;                  /* of this part, evaluations among them */
    double seconds_per_1000_steps, seconds_per_epoch;
    double loss, val_loss; /* the last ones of this part */
    int64_t best_step;     /* 0: no evaluation yet */
    double best_loss, best_accuracy;
} tarn_logged_run;

/* Is told of one of them. */
typedef void (*tarn_logged_run_fn)(const tarn_logged_run *run, void *ctx);

/* Reads log.jsonl of the folder that runs lie in ("runs"), the earliest first. It gets a line whenever
 * tarn_trainer_run() ends. A folder without one, and a line that is none, are errors; a last line that was cut is left
 * out. */
TARN_API bool tarn_runs_read(const char *folder, tarn_logged_run_fn visit, void *ctx);

/* ---- using what was trained -------------------------------------------------------------------------------------- */

/* How well a classifier does on data. */
typedef struct tarn_evaluation {
    int64_t samples;
    double loss, accuracy; /* the mean cross entropy; the share of samples whose class is right, 0 to 1 */
} tarn_evaluation;

/* Applies a classifier to all batches of a loader, which must be at the beginning of an epoch and gives inputs and
 * labels, outside training mode and without a record; a model that was in training mode is so again afterwards.
 * `class_samples` and `class_right` (both may be NULL) have room for `classes` counts: samples of each class, and those
 * that were right. What is counted stays on the device until the end. */
TARN_API bool tarn_evaluate(tarn_module *model, tarn_loader *loader, int64_t classes, tarn_evaluation *evaluation,
                            int64_t *class_samples, int64_t *class_correct);

/* How well a language model foretells text. */
typedef struct tarn_text_evaluation {
    int64_t tokens;          /* that were to be foretold */
    double loss, perplexity; /* the mean cross entropy in nats; its exponential */
} tarn_text_evaluation;

typedef struct tarn_run tarn_run;

/* Opens a run's folder to use its best weights (its last ones where there are no best ones), any Hugging Face folder of
 * a language model, or a GGUF file with its tokenizer, by a name that ends in ".gguf". The caller owns the run. */
TARN_API tarn_run *tarn_run_open(const char *folder, tarn_device device);

/* Which weights of a run: those of its best evaluation, or the last ones. */
typedef enum tarn_run_checkpoint { TARN_RUN_BEST, TARN_RUN_LAST } tarn_run_checkpoint;

typedef struct tarn_run_weights {
    /* false: the folder of a model that no run of tarn's wrote, or a file; its only weights are meant */
    bool is_run;
    tarn_run_checkpoint checkpoint; /* the last one where there is no best one yet */
    int64_t step;                   /* at which it is; 0: not known */
    /* of adapters: as which their base was read (tarn_model_open_options); TARN_F32: not in blocks */
    tarn_dtype blocks;
    char path[1100]; /* of a language model: the folder to open with tarn_model_open() */
} tarn_run_weights;

/* Finds the weights of a run: all commands use the best ones unless --checkpoint last is given. */
TARN_API bool tarn_run_weights_find(const char *folder, tarn_run_checkpoint checkpoint, tarn_run_weights *weights);

/* Options of tarn_run_open_with(); zero is every field's default. */
typedef struct tarn_run_open_options {
    int64_t device_layers; /* of a language model: as tarn_model_open() has it; of other networks it is an error */
    const char
        *chat_template; /* of a language model: "chatml", "llama2", "llama3" or "mistral" instead of its own, for
                         * tarn_run_evaluate_text() on JSON lines, and an error there on other data; NULL: its own */
    tarn_run_checkpoint checkpoint; /* which weights of a run; default the best ones */
} tarn_run_open_options;

/* The same with options. `...` is a const tarn_run_open_options *, or NULL. */
TARN_API tarn_run *tarn_run_open_with_sized(const char *folder, tarn_device device,
                                            const tarn_run_open_options *options, size_t options_size);
#define tarn_run_open_with(folder, device, ...) \
    tarn_run_open_with_sized(folder, device, __VA_ARGS__, sizeof(tarn_run_open_options))

/* The model, outside training mode, its kind ("lenet"), and the data it was trained on ("mnist:FOLDER"; "" where a
 * language model's folder does not say). Borrowed from the run. */
TARN_API tarn_module *tarn_run_model(const tarn_run *run);
TARN_API const char *tarn_run_kind(const tarn_run *run);
TARN_API const char *tarn_run_data(const tarn_run *run);

/* True when the model is one of language: then the functions for classes and their samples are errors. */
TARN_API bool tarn_run_is_text(const tarn_run *run);

/* The tokenizer in a language model's folder. Borrowed from the run. */
TARN_API const tarn_tokenizer *tarn_run_tokenizer(const tarn_run *run);

/* The shape of one sample. */
TARN_API bool tarn_run_input(const tarn_run *run, tarn_shape *input);

/* How many classes there are, and the name of one of them. Borrowed from the run. */
TARN_API int64_t tarn_run_classes(const tarn_run *run);
TARN_API const char *tarn_run_class_name(const tarn_run *run, int64_t index);

/* Evaluates the model on data, named as for training; NULL: the run's own validation data. Of data that has a part for
 * testing that part is used, of other data all. The counts are those of tarn_evaluate(). */
TARN_API bool tarn_run_evaluate(tarn_run *run, const char *data, int64_t batch_size, tarn_evaluation *evaluation,
                                int64_t *class_samples, int64_t *class_correct);

/* Evaluates a language model on text, named as for training: a whole file, or the part of shards for validation; NULL:
 * the run's own validation data. Windows of the model's context, one behind the other, go through it `batch_size` at a
 * time: all tokens but the first are foretold, each from those before it in its window. A loss that is not finite is an
 * error. */
TARN_API bool tarn_run_evaluate_text(tarn_run *run, const char *data, int64_t batch_size,
                                     tarn_text_evaluation *evaluation);

/* The probability of each class for one sample, u8 or f32, of the run's input shape; `probabilities` has room for one
 * number for each class. Of a run that was trained on u8 an f32 sample, too, has numbers from 0 to 255; one that was
 * trained on f32 or f64 takes no u8. */
TARN_API bool tarn_run_predict(tarn_run *run, const tarn_array *sample, double *probabilities);

/* Frees a run; the folder stays. NULL is allowed; works while an error is pending. */
TARN_API void tarn_run_close(tarn_run *run);

/* ---- documents to fine-tune on ----------------------------------------------------------------------------------- */

/* JSON lines as rows of tokens, of which only answers carry loss. A line is {"messages": [{"role", "content"} …]},
 * {"prompt", "completion"} or {"text"}; see docs/guide/fine-tune.md. A row holds whole documents beside each other:
 * positions begin at 0 in each, and `starts` says where the document of a token begins, so that attention stays within
 * it (tarn_attention_options). What is behind the last document of a row is a document of its own without loss. Which
 * documents are for validation, and which share a row, depends on the files, the tokenizer and the options alone. */
typedef struct tarn_chat_dataset tarn_chat_dataset;

enum { TARN_CHAT_DATASET_TRAINING, TARN_CHAT_DATASET_VALIDATION };

/* Zero is the default of all but the first two. Texts are borrowed for the call; the tokenizer must outlive the chats.
 */
typedef struct tarn_chat_dataset_options {
    const char *path;                /* the JSON lines; "chats:" before it is allowed */
    const tarn_tokenizer *tokenizer; /* with its chat template, where the model has one */
    const char *template_name;       /* "chatml", "llama2", "llama3" or "mistral" instead of that; NULL or "": none */
    const char *val_path;            /* JSON lines for validation alone; NULL or "": none */
    /* the share of documents that is for validation, from 0 to below 1; not with val_path */
    double val_share;
    int64_t context; /* tokens of a row, at least 2; 0: 1024 */
    uint64_t seed;   /* of the split and of the order */
} tarn_chat_dataset_options;

/* What is there, by split. */
typedef struct tarn_chat_dataset_counts {
    int64_t documents[2];
    int64_t tokens[2];  /* of all documents, as they were cut */
    int64_t answers[2]; /* of these, the tokens that are learnt */
    int64_t rows[2];    /* after packing */
    int64_t cut;        /* documents that were longer than the context, in both splits */
    uint64_t hash;      /* of all tokens, what is learnt, and the places in rows: a run goes on with the same */
} tarn_chat_dataset_counts;

/* Arrays [rows, context] of the caller's. The target of a token without loss is -100, which tarn_model_loss() ignores.
 */
typedef struct tarn_chat_dataset_rows {
    int32_t *ids, *targets, *positions, *document_starts;
} tarn_chat_dataset_rows;

/* Reads all documents; an error names file and line and what is wrong there. Documents longer than the context are cut,
 * which a warning counts; one of which no answer would be left is an error. The caller owns the chats. */
TARN_API tarn_chat_dataset *tarn_chat_dataset_open_sized(const tarn_chat_dataset_options *options, size_t options_size);
#define tarn_chat_dataset_open(...) tarn_chat_dataset_open_sized(__VA_ARGS__, sizeof(tarn_chat_dataset_options))

/* Says what is there. */
TARN_API bool tarn_chat_dataset_counts_of(const tarn_chat_dataset *chats, tarn_chat_dataset_counts *counts);

/* Fills the rows of a batch. Training: batches are numbered from 0 without end; every row is there once before any
 * comes again, each time in another order, so that a run goes on by asking for the next number. Validation: in order;
 * rows behind the last are without loss. One thread asks at a time. */
TARN_API bool tarn_chat_dataset_batch(tarn_chat_dataset *chats, int split, int64_t batch_number, int64_t rows,
                                      tarn_chat_dataset_rows *out);

/* Frees chats. NULL is allowed; works while an error is pending. */
TARN_API void tarn_chat_dataset_close(tarn_chat_dataset *chats);

#ifdef __cplusplus
}
#endif
#endif
