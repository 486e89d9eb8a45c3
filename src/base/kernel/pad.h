/* pad.h: the axes of a padded copy, for backends that write the whole result in one pass. */
#ifndef TARN__PAD_H
#define TARN__PAD_H

#include "base/kernel/call.h"

/* An axis of the target and of the source in it: element i of the source goes to begin + i · step. A plain copy covers
 * every axis. */
typedef struct tarn__pad_axis {
    int64_t size;               /* of the target */
    int64_t begin, count, step; /* of the source in it */
    int64_t to, from;           /* strides */
} tarn__pad_axis;

/* True when the source covers the axis without padding. */
static inline bool tarn__pad_covers(const tarn__pad_axis *axis)
{
    return axis->begin == 0 && axis->step == 1 && axis->count == axis->size;
}

/* The axes of a pad call: those of size 1 dropped, adjacent ones merged where the source covers both and the strides
 * allow it. The step of a single element is 1. Returns their number, at least 1. */
static inline int tarn__pad_axes(const tarn__call *call, tarn__pad_axis *axis)
{
    const tarn__pad *pad = (const tarn__pad *)call->params;
    const tarn__view *x = call->in[0], *y = call->out[0];
    int rank = 0;
    for (int i = 0; i < y->rank; i++) {
        tarn__pad_axis here = {y->shape[i],  pad->begin[i], x->shape[i], x->shape[i] == 1 ? 1 : pad->step[i],
                               y->stride[i], x->stride[i]};
        tarn__pad_axis *before = rank > 0 ? &axis[rank - 1] : NULL;
        if (here.size == 1 && here.count == 1)
            continue;
        if (before && tarn__pad_covers(&here) && tarn__pad_covers(before) && before->to == here.to * here.size &&
            before->from == here.from * here.size) {
            before->size *= here.size;
            before->count = before->size;
            before->to = here.to;
            before->from = here.from;
        } else {
            axis[rank++] = here;
        }
    }
    if (rank == 0) {
        tarn__pad_axis one = {1, 0, 1, 1, 1, 1};
        axis[rank++] = one;
    }
    return rank;
}

#endif
