/* run_folder.h: the folder of a run: its default name, replacing it, removing its subfolders, finding its weights. Only
 * files that runs write are removed, by name. */
#ifndef TARN__RUN_FOLDER_H
#define TARN__RUN_FOLDER_H

#include "train/trainer.h"

#define TARN__RUN_FOLDER_NEW ".new" /* suffix of a folder that is being written */

/* Sets the default folder of a run: "runs/" with model, adapters, data, shape and device, and a number from 2 on if
 * that exists; with `overwrite` no number. */
void tarn__run_folder_name(tarn_trainer *trainer);

/* True when the run may use its folder: it does not exist, or, with `overwrite`, it is an unlocked run with nothing but
 * a run's files, none of which the new run reads. Then the folder is locked. False with an error. No file is changed.
 */
bool tarn__run_folder_check(const char *function, tarn_trainer *trainer);

/* Renames the folder of the old run as a backup; then removes it, or restores it in place of the new run's files.
 * No-ops without an old run. */
bool tarn__run_folder_back_up(const char *function, tarn_trainer *trainer);
void tarn__run_folder_remove_backup(tarn_trainer *trainer);
void tarn__run_folder_restore_backup(tarn_trainer *trainer);

/* Removes a subfolder with the files of a run: renamed first, so that a partly removed one does not look like a
 * checkpoint. */
void tarn__run_folder_drop(const char *folder, const char *name);

/* Removes leftovers of a killed process: subfolders it was writing or removing. */
void tarn__run_folder_drop_leftovers(const char *folder);

/* ---- weights (run_weights.c) ------------------------------------------------------------------------------------- */

/* Finds the best or last weights of a run. The folder is only read; a run may be training in it. */

/* tarn_run_weights_find() under another function's name. */
bool tarn__run_weights_find(const char *function, const char *folder, tarn_run_checkpoint checkpoint,
                            tarn_run_weights *weights);

#endif
