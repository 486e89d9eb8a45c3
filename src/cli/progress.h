/* progress.h: the line at the bottom of a terminal that says what is being done and how far it is, redrawn by time. One
 * at a time. */
#ifndef TARN__PROGRESS_H
#define TARN__PROGRESS_H

#include <tarn/train.h>

/* Begins: a thread draws the line five times a second, where standard output is a terminal (`is_drawn`). It also
 * answers requests to stop, unless `quiet`. */
void tarn__progress_open(bool is_drawn, bool quiet);

/* What is being done, before there is a trainer. */
void tarn__progress_text(const char *what);

/* The trainer whose progress is shown from here on. It is borrowed until tarn__progress_close(). */
void tarn__progress_watch(const tarn_trainer *trainer);

/* The last metrics of training; the line shows them. */
void tarn__progress_report(const tarn_train_report *report);

/* Around whatever else is printed meanwhile: the line is removed, and drawn again below it. */
void tarn__progress_pause(void);
void tarn__progress_resume(void);

/* Has the thread say that the run stops after this step. May be called from signal handlers. */
void tarn__progress_stopping(void);

/* Removes the line and ends the thread. */
void tarn__progress_close(void);

#endif
