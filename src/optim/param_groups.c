/* param_groups.c: which parameter has which weight decay and which share of the learning rate: parameter groups, chosen
 * by patterns over names. */
#include "optim/rates.h"

#include <math.h>

/* True when the whole name fits the pattern: '*' stands for any number of characters, '?' for one. */
static bool fits(const char *pattern, const char *name)
{
    const char *star = NULL, *retry = NULL; /* the last '*', and where what follows it is tried next */
    while (*name) {
        if (*pattern == '*') {
            star = ++pattern;
            retry = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star;
            name = ++retry;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return !*pattern;
}

bool tarn__param_groups_check(const char *function, const tarn_parameter_group *groups, int count)
{
    if (count < 0 || (count > 0 && !groups))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .group_count is %d%s", function, count,
                           count > 0 ? ", but .groups is NULL" : "");
    for (int i = 0; i < count; i++) {
        const tarn_parameter_group *group = &groups[i];
        if (!group->names || !group->names[0])
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: group %d has no .names, a pattern such as \"*.bias\"",
                               function, i);
        if (!(group->lr_scale >= 0) || !isfinite(group->lr_scale))
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "%s: .lr_scale of group '%s' is %g, but must be above 0 (or 0 for 1)", function,
                               group->names, (double)group->lr_scale);
        if (!(group->weight_decay >= 0) || !isfinite(group->weight_decay) ||
            (group->no_decay && group->weight_decay != 0))
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .weight_decay of group '%s' is %g%s", function, group->names,
                               (double)group->weight_decay,
                               group->no_decay ? ", and .no_decay is set" : ", but must be 0 or above");
    }
    return true;
}

int tarn__param_group_of(const tarn_parameter_group *groups, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (fits(groups[i].names, name))
            return i;
    return -1;
}

tarn__rates tarn__rates_of(const tarn__method *method, const tarn_parameter_group *group, const tarn_tensor *parameter)
{
    bool decays = method->decay_all || parameter->view.rank >= 2;
    tarn__rates rates = {.lr_scale = 1, .decay = decays ? method->rates.decay : 0};
    if (!group)
        return rates;
    if (group->lr_scale != 0)
        rates.lr_scale = (double)group->lr_scale;
    if (group->weight_decay != 0 || group->no_decay)
        rates.decay = (double)group->weight_decay;
    return rates;
}
