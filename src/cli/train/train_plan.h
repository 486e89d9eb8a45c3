/* train_plan.h: the plan of a run on standard output, before the first step. The plan is borrowed. */
#ifndef TARN__TRAIN_PLAN_H
#define TARN__TRAIN_PLAN_H

#include <tarn/train.h>

/* Prints the plan in lines that fit the terminal; `is_auto`: the device was chosen automatically. */
void tarn__train_plan_print(const tarn_train_plan *plan, bool is_auto);

/* Prints the plan as one JSON object, with the event "plan". */
void tarn__train_plan_print_json(const tarn_train_plan *plan);

#endif
