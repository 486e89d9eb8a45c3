/* train_plan.h: what a run is going to do. */
#ifndef TARN__TRAIN_PLAN_H
#define TARN__TRAIN_PLAN_H

#include <tarn/train.h>

/* Prints it in lines that fit the terminal; `is_auto`: the device was not named. */
void tarn__train_plan_print(const tarn_train_plan *plan, bool is_auto);

/* The same as one JSON object. */
void tarn__train_plan_print_json(const tarn_train_plan *plan);

#endif
