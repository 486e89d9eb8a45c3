/* finetune.h: fine-tuning: the base model of a run, the adapters trained next to its frozen weights, and their files.
 *
 * The trainer owns the model; functions here borrow the trainer. `function` is the public function that an error names.
 */
#ifndef TARN__FINETUNE_H
#define TARN__FINETUNE_H

#include "models/lm/arch.h"
#include "train/trainer.h"

/* Checks that options of fine-tuning fit together. `is_measured`: only steps are measured, on a model with random
 * weights; adapters then need no base. False with an error. */
bool tarn__finetune_check(const char *function, const tarn_train_options *options, bool is_measured);

/* Opens the model of a run with a base. A resumed run that trains all weights and has a checkpoint gets a model as its
 * config.json describes it, without values. A run folder as base means its best weights. False with an error. */
bool tarn__base_model_open(const char *function, tarn_trainer *trainer, tarn_device device);

/* Copies the sizes of the opened model to the options, and sets dropout and recompute. False with an error. */
bool tarn__base_model_complete(const char *function, tarn_trainer *trainer, const tarn__model_sizes *wanted);

/* Adds the adapters that the options ask for; none without --lora. */
bool tarn__adapters_add(const char *function, tarn_trainer *trainer);

/* Hashes all frozen tensors. A resumed run also compares them with the hashes of its start, in frozen.json. */
bool tarn__frozen_record(const char *function, tarn_trainer *trainer);

/* Raises an error if a frozen tensor has changed since tarn__frozen_record(). */
bool tarn__frozen_verify(const char *function, const tarn_trainer *trainer);

/* Writes frozen.json, adapter_config.json and the current adapters to the folder of a run with adapters. Does nothing
 * for other runs. */
bool tarn__adapters_write_files(const tarn_trainer *trainer);

/* Writes the adapters to a file with PEFT's names, and reads them into a model that has adapters of the same shapes. */
bool tarn__adapters_save(const tarn_trainer *trainer, const char *path);
bool tarn__adapters_load(const char *function, tarn_trainer *trainer, const char *path);

/* Raises an error if --merge cannot be honoured at the end: known before the first step. */
bool tarn__adapters_check_merge(const char *function, const tarn_trainer *trainer);

/* Writes the base with the best adapters merged to "merged" or "merged.gguf" in the run folder, if --merge is given. */
bool tarn__adapters_merge(const tarn_trainer *trainer);

#endif
