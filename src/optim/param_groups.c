/* param_groups.c: weight decay and learning rate scale of each parameter: groups selected by patterns over names.
 *
 * The first group whose pattern matches wins; parameters of no group have the optimizer's own rates. */
#include "optim/optimizer.h"

#include <math.h>

/* Glob match of the whole name: '*' is any number of characters, '?' is one. Linear in practice: only the last '*'
 * is retried, which is enough for globs. "*.bias" matches "layers.0.q.bias", and not "bias" or "a.bias.b". */
static bool matches(const char *pattern, const char *name)
{
    const char *star = NULL, *retry = NULL; /* after the last '*', and where its match is extended to next */
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
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: group %d has no .names; expected a pattern such as \"*.bias\"",
                               function, i);
        if (!(group->lr_scale >= 0) || !isfinite(group->lr_scale))
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "%s: .lr_scale of group '%s' is %g; must be a finite number, at least 0 (0: default, 1)",
                               function, group->names, (double)group->lr_scale);
        if (!(group->weight_decay >= 0) || !isfinite(group->weight_decay) ||
            (group->no_decay && group->weight_decay != 0))
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .weight_decay of group '%s' is %g%s", function, group->names,
                               (double)group->weight_decay,
                               group->no_decay ? ", and .no_decay is set" : "; must be a finite number, at least 0");
    }
    return true;
}

/* -1: no pattern matches. */
int tarn__param_group_of(const tarn_parameter_group *groups, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (matches(groups[i].names, name))
            return i;
    return -1;
}

/* Vectors (biases, the scales of norms) have no decay by default, as is usual; a group may give them one. A zero in
 * a group means its default, so no decay needs a switch of its own, .no_decay. */
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
