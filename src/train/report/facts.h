/* facts.h: what a run is, in words, for its page. */
#ifndef TARN__FACTS_H
#define TARN__FACTS_H

#include "base/error.h"
#include "train/report/report.h"
#include "train/trainer.h"

#define TARN__MAX_SETTINGS 32

typedef struct tarn__report_settings {
    int count;
    tarn__report_setting fact[TARN__MAX_SETTINGS]; /* names are literals, values lie in `text` */
    char text[TARN__MAX_SETTINGS][1100];
} tarn__report_settings;

/* The settings that mean something for this run. Borrows the trainer. False with an error. */
bool tarn__report_settings_collect(const tarn_trainer *trainer, tarn__report_settings *facts);

#endif
