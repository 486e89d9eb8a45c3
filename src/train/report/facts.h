/* facts.h: what a run is, in words, for its page. */
#ifndef TARN__FACTS_H
#define TARN__FACTS_H

#include "base/error.h"
#include "train/report/report.h"
#include "train/trainer.h"

#define TARN__MOST_FACTS 32

typedef struct tarn__facts {
    int count;
    tarn__curves_fact fact[TARN__MOST_FACTS]; /* names are literals, values lie in `text` */
    char text[TARN__MOST_FACTS][1100];
} tarn__facts;

/* The settings that mean something for this run. Borrows the trainer. False with an error. */
bool tarn__facts_of(const tarn_trainer *trainer, tarn__facts *facts);

#endif
