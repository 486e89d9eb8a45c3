/* progress.h: the progress line at the bottom of a terminal: current activity and progress, redrawn by a thread. One
 * per process. Open and close are for the main thread; the other functions lock, but for tarn__progress_stopping(). */
#ifndef TARN__PROGRESS_H
#define TARN__PROGRESS_H

#include <tarn/train.h>

/* Starts the thread. It draws the line five times per second if `is_drawn` (standard output is a terminal), and
 * confirms requests to stop, unless `quiet`. */
void tarn__progress_open(bool is_drawn, bool quiet);

/* Sets the current activity, before there is a trainer. The string is copied. */
void tarn__progress_text(const char *what);

/* Shows the progress of a trainer from now on. It is borrowed until tarn__progress_close(). */
void tarn__progress_watch(const tarn_trainer *trainer);

/* Sets the metrics of the line; the report is copied. */
void tarn__progress_report(const tarn_train_report *report);

/* Around any other output: the line is removed and redrawn below it. The lock is held in between, so no other function
 * of this file may be called there. */
void tarn__progress_pause(void);
void tarn__progress_resume(void);

/* Lets the thread print that the run stops after this step. Async-signal-safe. */
void tarn__progress_stopping(void);

/* Removes the line and joins the thread. Without effect if not open. */
void tarn__progress_close(void);

#endif
