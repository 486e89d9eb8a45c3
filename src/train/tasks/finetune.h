/* finetune.h: fine-tuning: the model that a run begins with, and the adapters that are trained beside its frozen
 * weights. */
#ifndef TARN__BASE_H
#define TARN__BASE_H

#include "models/lm/arch.h"
#include "train/trainer.h"

/* What options of fine-tuning do not go together, with each other or with data that is chats or not. `is_measured`:
 * only steps are measured, on a model that is drawn; then adapters need no model that is there. False with an error. */
bool tarn__finetune_check(const char *function, const tarn_train_options *options, bool is_chat, bool is_measured);

/* Opens the model of a run that has a base: from there, or, where all its weights are trained and a checkpoint has
 * them, as the run's config.json describes it, without values. A run's folder stands for its best weights. False with
 * an error. */
bool tarn__base_model_open(const char *function, tarn_trainer *trainer, tarn_device device);

/* Completes the sizes of the options by the model that was opened, and sets how it is trained. */
bool tarn__base_model_complete(const char *function, tarn_trainer *trainer, const tarn__model_sizes *wanted);

/* Gives the model adapters, where the options want them. */
bool tarn__adapters_add(const char *function, tarn_trainer *trainer);

/* Notes all that is frozen; of a run that goes on, holds it against what was noted when it began. */
bool tarn__frozen_record(const char *function, tarn_trainer *trainer);

/* Raises where something that is frozen has changed since. */
bool tarn__frozen_verify(const char *function, const tarn_trainer *trainer);

/* What the folder of a run with adapters holds beside its checkpoints: frozen.json, and adapter_config.json with the
 * adapters as they are now. Nothing for others. */
bool tarn__adapters_begin(const tarn_trainer *trainer);

/* Adapters to a file as PEFT names them, and back from one into a model that has them. */
bool tarn__adapters_save(const tarn_trainer *trainer, const char *path);
bool tarn__adapters_load(const char *function, tarn_trainer *trainer, const char *path);

/* Raises where what is wanted at the end cannot be made. */
bool tarn__adapters_check_merge(const char *function, const tarn_trainer *trainer);

/* Writes the best adapters added to the weights to "merged" or "merged.gguf" in the run's folder, where the options
 * want that. */
bool tarn__adapters_merge(const tarn_trainer *trainer);

#endif
