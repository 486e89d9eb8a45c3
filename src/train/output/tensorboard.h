/* tensorboard.h: a run's numbers in the files that TensorBoard reads: events.out.tfevents.SECONDS.HOST in the run's
 * folder. */
#ifndef TARN__EVENTS_H
#define TARN__EVENTS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tarn__tensorboard tarn__tensorboard;

/* Begins a new file in a folder that is there; files of earlier runs stay as they are. The caller owns the result. NULL
 * with an error. */
tarn__tensorboard *tarn__tensorboard_open(const char *folder);

/* Says that the run goes on from a checkpoint: what earlier files hold for `step` and later did not last, and viewers
 * drop it. */
bool tarn__tensorboard_resume(tarn__tensorboard *events, int64_t step);

/* Adds a point to the curve `tag` ("loss/train": a slash makes a group). The format holds values in f32; NaN and
 * infinity are allowed. */
bool tarn__tensorboard_scalar(tarn__tensorboard *events, const char *tag, int64_t step, double value);

/* Brings what was added to the file: a viewer sees it from then on. */
bool tarn__tensorboard_flush(tarn__tensorboard *events);

/* Flushes, closes and frees; false with an error when the last points could not be written. NULL is allowed; works
 * while an error is pending. */
bool tarn__tensorboard_close(tarn__tensorboard *events);

#endif
