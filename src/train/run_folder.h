/* run_folder.h: the folder of a run: its default name, replacing it, and removing its subfolders. */
#ifndef TARN__TRAIN_FOLDER_H
#define TARN__TRAIN_FOLDER_H

#include "train/trainer.h"

#define TARN__RUN_FOLDER_NEW ".new" /* suffix of a folder that is being written */

/* Gives the run a folder where none was named: "runs/" and what sets it apart: model, adapters, data, shape and device,
 * and a number from 2 on where that name is taken; with `overwrite` no number. */
void tarn__run_folder_name(tarn_trainer *trainer);

/* True when the run may have its folder: nothing is there, or, with `overwrite`, a run that no program uses, nothing
 * but a run, and nothing that the new run reads. False with an error. Nothing is changed. */
bool tarn__run_folder_check(const char *function, tarn_trainer *trainer);

/* Moves a run that is in the folder aside; after that removes it, or puts it back in the place of what the new run
 * wrote. Without one they do nothing. */
bool tarn__run_folder_set_aside(const char *function, tarn_trainer *trainer);
void tarn__run_folder_remove_old(tarn_trainer *trainer);
void tarn__run_folder_restore_old(tarn_trainer *trainer);

/* Removes a folder below the run's with what runs write into such: under another name first, so that what cannot be
 * removed is no checkpoint. */
void tarn__run_folder_drop(const char *folder, const char *name);

/* Removes what a killed program left of folders that it wrote or dropped. */
void tarn__run_folder_drop_leftovers(const char *folder);

#endif
