/* tensorboard.h: metrics as TensorBoard event files: events.out.tfevents.SECONDS.HOST in the run folder. One thread
 * writes a file. */
#ifndef TARN__TENSORBOARD_H
#define TARN__TENSORBOARD_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tarn__tensorboard tarn__tensorboard;

/* Creates a new file in an existing folder; files of earlier segments stay. The caller owns the result. NULL with an
 * error. */
tarn__tensorboard *tarn__tensorboard_open(const char *folder);

/* Marks a resumed run: viewers drop the points of earlier files at `step` and later. */
bool tarn__tensorboard_resume(tarn__tensorboard *events, int64_t step);

/* Adds a point to the series `tag` ("loss/train"; a slash separates group and name). Values are stored in f32; NaN and
 * infinity are allowed. */
bool tarn__tensorboard_scalar(tarn__tensorboard *events, const char *tag, int64_t step, double value);

/* Flushes added points to the file, where viewers see them. */
bool tarn__tensorboard_flush(tarn__tensorboard *events);

/* Flushes, closes and frees; false with an error if the last points could not be written. NULL is allowed; works while
 * an error is pending. */
bool tarn__tensorboard_close(tarn__tensorboard *events);

#endif
