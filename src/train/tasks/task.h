/* task.h: training tasks: what a run of a classifier, of a regression, of a language model on text, and of one on
 * chats does differently.
 *
 * A run's task is chosen once, when its data is known. The rest of train/ calls its row and knows no task by name: a
 * new task is a row here, a file next to it, and a bit in the option table (options.h).
 *
 * Functions borrow the trainer. `function` is the public function that an error names; functions that return bool are
 * false with an error, those that return a pointer NULL. */
#ifndef TARN__TASK_H
#define TARN__TASK_H

#include <tarn/predict.h>

#include "train/options.h"
#include "train/trainer.h"

/* A metric of a report, in metrics.jsonl and TensorBoard. */
typedef struct tarn__metric {
    const char *key;         /* of metrics.jsonl; NULL ends a list */
    const char *tag;         /* of TensorBoard; NULL: not written */
    size_t offset;           /* of its field in tarn_train_report */
    int digits;              /* significant ones of a double; 0: the field is an int64_t */
    bool is_speed;           /* all names follow the report's unit: "images" and "_per_second" */
    tarn_train_metric shown; /* as the report has it, without its value; no name: not in reports */
} tarn__metric;

/* Metrics of several tasks. */
#define TARN__METRIC_LOSS \
    { \
        .key = "loss", .tag = "loss/training", .offset = offsetof(tarn_train_report, loss), .digits = 9, .shown = { \
            .name = "loss", \
            .label = "loss", \
            .decimals = 4, \
            .json_decimals = 6 \
        } \
    }
#define TARN__METRIC_LR \
    { \
        .key = "lr", .tag = "learning rate", .offset = offsetof(tarn_train_report, lr), .digits = 9, .shown = { \
            .name = "lr", \
            .label = "lr", \
            .decimals = -3, \
            .json_decimals = 9, \
            .rank = 2 \
        } \
    }
#define TARN__METRIC_SPEED(field) \
    { \
        .key = "_per_second", .tag = " per second", .offset = offsetof(tarn_train_report, field), .digits = 6, \
        .is_speed = true, .shown = { \
            .name = "_per_second", \
            .unit = "/s", \
            .json_decimals = 1, \
            .rank = 1, \
            .higher_is_better = true \
        } \
    }
#define TARN__METRIC_VAL_LOSS \
    { \
        .key = "val_loss", .tag = "loss/validation", .offset = offsetof(tarn_train_report, loss), .digits = 9, \
        .shown = { \
            .name = "loss", \
            .label = "validation loss", \
            .decimals = 4, \
            .json_decimals = 6 \
        } \
    }

/* Data of a language model's evaluation. What is opened belongs to the caller: tarn__eval_data_free(). */
typedef struct tarn__eval_data {
    const char *function;
    const tarn_train_options *options; /* of the run */
    const char *folder;                /* of the model, with its tokenizer */
    const char *data;                  /* NULL: the run's validation set */
    int64_t context;                   /* tokens of a window */
    tarn__corpus corpus;               /* opened */
    tarn__chat_dataset *chats;
} tarn__eval_data;

struct tarn__task {
    const char *name;
    tarn__task_set bit;
    const char *sample_name;            /* what a batch consists of: "sample" or "sequence" */
    bool prefers_bf16;                  /* precision auto, where the device has it */
    bool has_accuracy, has_norm;        /* metrics of a step besides its loss */
    bool has_perplexity;                /* the loss is a cross-entropy per token */
    const tarn__metric *training_lines; /* metrics of a report, in order; at most TARN_TRAIN_METRICS */
    const tarn__metric
        *evaluation_lines; /* the last decides which evaluation is the best, those before it break ties */
    double sample_temperature;
    const char *random_data; /* name of the data of open_random */

    /* ---- data and model ---- */
    bool (*accepts)(const char *data); /* by its name; NULL: all others */
    /* Opens the data of a new run and completes its options: datasets, data spec, batch sizes, model. */
    bool (*open)(const char *function, tarn_trainer *trainer);
    /* Same for a resumed run, whose data must match its data spec. */
    bool (*reopen)(const char *function, tarn_trainer *trainer, const char *folder);
    /* Same with random data, for measuring. NULL: not supported. */
    bool (*open_random)(const char *function, tarn_trainer *trainer);
    /* Sets batch and model sizes anew after a change of options; the data stays. */
    bool (*resize)(const char *function, tarn_trainer *trainer);
    tarn_module *(*create_model)(const char *function, const tarn_trainer *trainer); /* owned by the caller */
    tarn_loader *(*create_loader)(const tarn_trainer *trainer);                      /* owned by the caller */

    /* ---- a step ---- */
    /* The next micro-batch of the loader; after the end of an epoch the first of the next one. */
    bool (*next_batch)(tarn_trainer *trainer, tarn_tensor **fields);
    /* A micro-batch of `count` samples without values, for planning. Belongs to the open scope. */
    bool (*create_batch)(const tarn_trainer *trainer, int64_t count, tarn_tensor **fields);
    /* Gradients of a step, accumulated over its micro-batches; pure, as tarn__step(). */
    bool (*gradients)(const tarn__step_ctx *step, tarn_tensor *const *batch, tarn__step_metrics *metrics);
    /* Weight of a micro-batch in the step's mean, [] on its device. Belongs to the open scope. NULL: equal shares. */
    tarn_tensor *(*weight)(tarn_tensor *const *fields);
    double (*step_flops)(const tarn_trainer *trainer); /* as for MFU; 0: unknown. NULL: always */

    /* ---- results ---- */
    /* Opens the windows of an evaluation outside a run's training. NULL with an error. NULL: not supported. */
    tarn_dataset *(*open_windows)(tarn__eval_data *data);
    bool (*evaluate)(tarn_trainer *trainer, tarn__evaluation *result); /* on the validation set */
    bool (*save_best)(const tarn_trainer *trainer);
    /* Gives the model's prediction for each sample of the validation set. NULL: not supported. */
    bool (*predict)(const tarn_trainer *trainer, tarn_prediction_fn receive, void *ctx);
    /* Keeps a numbered checkpoint, as --keep asks. NULL: not supported. */
    bool (*keep_checkpoint)(tarn_trainer *trainer);
    /* Generates a sample; the caller frees it with tarn_tokenizer_release(). NULL: not supported. */
    char *(*sample)(tarn_trainer *trainer, size_t *length);
    /* Token ids that a sample starts with, at most `max_count`. Returns their number; -1 with an error. */
    int64_t (*prompt)(const tarn_trainer *trainer, int32_t *ids, int64_t max_count);
    /* Writes what a new run folder has besides its config.json. NULL: nothing. */
    bool (*write_files)(const char *function, const tarn_trainer *trainer, const char *folder);
    /* Writes the model to config.json. */
    bool (*write_model)(const char *function, const tarn_trainer *trainer, tarn__json_file *document);
    void (*describe)(const tarn_trainer *trainer, tarn_train_plan *plan);
    const char *(*unit)(const tarn_trainer *trainer); /* plural, of throughput: "tokens". A literal. */
    void (*set_speed)(const tarn_trainer *trainer, double samples_per_second, tarn_train_report *report);
};

extern const tarn__task tarn__task_classify, tarn__task_regress, tarn__task_lm, tarn__task_chat;

/* The task of that name; NULL: unknown. */
const tarn__task *tarn__task_named(const char *name);

/* The task of a new run's data; a classifier's for unknown data, which it names in an error, and for a table, whose
 * target may then choose the regression. */
const tarn__task *tarn__task_of_data(const char *data);

/* The task of a resumed run: its data spec is of tokens or of samples, its data is text or chats. */
const tarn__task *tarn__task_of_spec(const tarn__data_spec *spec, const char *data);

/* The task of a language model's data: chats or text, which names unknown data in an error. */
const tarn__task *tarn__task_of_text(const char *data);

/* The task that measures a model on random data. */
const tarn__task *tarn__task_of_model(const char *model);

/* Fills in the metrics of a report from its fields. */
void tarn__task_set_metrics(const tarn__task *task, tarn_train_report *report);

/* A report with the metrics of an evaluation. */
tarn_train_report tarn__report_of_evaluation(const tarn__evaluation *evaluation);

/* True if evaluation `a` is better than `b`, by the metrics of the task. */
bool tarn__task_is_better(const tarn__task *task, const tarn__evaluation *a, const tarn__evaluation *b);

void tarn__eval_data_free(tarn__eval_data *data);

/* Raises an error for options, or a model, that do not apply to the task. */
bool tarn__task_check(const char *function, const tarn__task *task, const tarn_train_options *options);

/* Resolves the precision auto: bf16 for a task that prefers it, on a device with fast bf16 matmuls, else f32. NULL: a
 * resumed run, whose config.json names none. */
void tarn__precision_resolve(tarn_train_options *options, tarn_device device, const tarn__task *task);

/* tarn_evaluate() of ranks that share the batches; checks nothing (classify.c). `ranks` NULL: one. */
bool tarn__classify_evaluate(const tarn__ranks *ranks, tarn_module *model, tarn_loader *loader, int64_t classes,
                             tarn_evaluation *evaluation, int64_t *class_samples, int64_t *class_correct);

#endif
