/* rates.h: what differs between the parameters of one optimizer. */
#ifndef TARN__RATES_H
#define TARN__RATES_H

#include "optim/optimizer.h"

typedef struct tarn__rates {
    double lr_scale; /* of the learning rate */
    double decay;    /* 0: none */
} tarn__rates;

static inline bool tarn__same_rates(tarn__rates a, tarn__rates b)
{
    return a.lr_scale == b.lr_scale && a.decay == b.decay;
}

/* Raises unless the groups of an optimizer's options make sense. */
bool tarn__param_groups_check(const char *function, const tarn_parameter_group *groups, int count);

/* The first group whose pattern a name fits; -1: none. */
int tarn__param_group_of(const tarn_parameter_group *groups, int count, const char *name);

/* The rates of a parameter; `group` is NULL where it is in none. */
tarn__rates tarn__rates_of(const tarn__method *method, const tarn_parameter_group *group, const tarn_tensor *parameter);

#endif
