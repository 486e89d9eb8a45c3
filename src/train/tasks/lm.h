/* lm.h: what the tasks that train a language model share, on text (lm.c) and on chats (chat.c), and its use by others:
 * sizes, loss, evaluation, samples, files. Conventions as in task.h. */
#ifndef TARN__LM_H
#define TARN__LM_H

#include "train/tasks/task.h"

/* ---- options, data and model ------------------------------------------------------------------------------------- */

/* Completes the options and sets batch sizes. `known_tokens`: of the training data; -1: not counted yet. */
bool tarn__lm_complete(const char *function, tarn_trainer *trainer, int64_t known_tokens);

/* Completes the sizes of the model only. A run with a base has opened its model. */
bool tarn__lm_sizes(const char *function, tarn_trainer *trainer);
bool tarn__lm_resize(const char *function, tarn_trainer *trainer);

/* Sets the data spec; of a resumed run it must be the one that the run has. */
bool tarn__lm_set_data_spec(const char *function, tarn_trainer *trainer, const tarn__data_spec *found);

/* Creates the model of complete options, with weights from the run's seed. The caller owns it. NULL with an error. */
tarn_module *tarn__lm_model(const char *function, const tarn_trainer *trainer);

/* Fraction of the documents of a chat dataset for validation: the option, its default, or 0 with a validation file. */
double tarn__val_fraction(const tarn_train_options *options);

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* Loss of a batch: fields are tokens and targets, for chats also positions and document starts, [B, T] each. Belongs to
 * the open scope. */
tarn_tensor *tarn__lm_loss(const char *function, tarn_module *model, tarn_tensor *const *fields, int field_count);

/* Number of targets under the loss mask, [] on their device. Belongs to the open scope. */
tarn_tensor *tarn__lm_target_count(tarn_tensor *targets, tarn_dtype dtype);

bool tarn__lm_create_batch(const tarn_trainer *trainer, int64_t count, tarn_tensor **fields);

bool tarn__lm_gradients(const tarn__step_ctx *step, tarn_tensor *const *batch, tarn__step_metrics *metrics);
double tarn__lm_step_flops(const tarn_trainer *trainer);

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Evaluates a language model on all windows of a dataset, in eval mode and without a tape; ranks share the batches.
 * `ranks` may be NULL. */
bool tarn__lm_evaluate(const char *function, const tarn__ranks *ranks, tarn_module *model, tarn_dataset *windows,
                       int64_t batch_size, int workers, tarn_text_evaluation *evaluation);
bool tarn__lm_evaluate_run(tarn_trainer *trainer, tarn__evaluation *result);

/* Generates a sample; the caller frees it with tarn_tokenizer_release(). NULL with an error. */
char *tarn__lm_sample(tarn_trainer *trainer, size_t *length);
int64_t tarn__lm_prompt(const tarn_trainer *trainer, int32_t *ids, int64_t max_count);

/* Writes the tokenizer to a folder in the form of transformers. */
bool tarn__lm_save_tokenizer(const char *function, const tarn_trainer *trainer, const char *folder);

/* Writes the current model, or its adapters, to the folder "best" of the run. */
bool tarn__lm_save_best(const tarn_trainer *trainer);

/* Writes a checkpoint to the folder "step-STEP" of the run, and removes the oldest one beyond --keep. */
bool tarn__lm_keep_checkpoint(tarn_trainer *trainer);

bool tarn__lm_write_model(const char *function, const tarn_trainer *trainer, tarn__json_file *document);
void tarn__lm_describe(const tarn_trainer *trainer, tarn_train_plan *plan);
const char *tarn__lm_unit(const tarn_trainer *trainer);
void tarn__lm_set_speed(const tarn_trainer *trainer, double samples_per_second, tarn_train_report *report);

extern const tarn__metric tarn__lm_training_lines[], tarn__lm_evaluation_lines[];

/* Members of a row that do not depend on the data. */
#define TARN__LM_ROW \
    .sample_name = "sequence", .prefers_bf16 = true, .has_norm = true, .has_perplexity = true, \
    .training_lines = tarn__lm_training_lines, .evaluation_lines = tarn__lm_evaluation_lines, \
    .resize = tarn__lm_resize, .create_model = tarn__lm_model, .create_batch = tarn__lm_create_batch, \
    .gradients = tarn__lm_gradients, .step_flops = tarn__lm_step_flops, .evaluate = tarn__lm_evaluate_run, \
    .save_best = tarn__lm_save_best, .keep_checkpoint = tarn__lm_keep_checkpoint, .sample = tarn__lm_sample, \
    .write_files = tarn__lm_save_tokenizer, .write_model = tarn__lm_write_model, .unit = tarn__lm_unit, \
    .set_speed = tarn__lm_set_speed

#endif
