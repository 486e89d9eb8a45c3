/* train_show.h: how a training run goes, as it is shown. */
#ifndef TARN__TRAIN_SHOW_H
#define TARN__TRAIN_SHOW_H

#include <tarn/train.h>

typedef struct tarn__display {
    bool json, quiet, terminal;
} tarn__display;

/* Shows one report; `ctx` is a tarn__display. */
void tarn__print_report(const tarn_train_report *report, void *ctx);

#endif
