/* cross_entropy.cl: the cross entropy of rows of logits (MAKE_LOSS), its gradient with respect to them (MAKE_SLOPES),
 * or both while the row is in a cache. The gradient makes softmax again from the logits and the logarithm of their sum
 * of exponentials. */
#include "backends/opencl/softmax/exp_sum.cl"

enum { LOGITS, TARGET, LOSS, LOG_SUM, GRADIENT, SLOPES };

/* A row for each group. Bytes: logits read, slopes written; each row is read again from a cache. Slopes may take the
 * logits' place: a work-item reads no element that another writes. */
__kernel void cross_entropy(row_set rows, OPERAND(logits), OPERAND(targets), OPERAND(losses), OPERAND(log_sums),
                            OPERAND(gradients), OPERAND(slopes), real smoothing, real scale, long ignore,
                            int has_ignore, FAULT_PARAMETERS)
{
    __local real space[GROUP];
    const long row = MY_ROW;
    END_BEYOND(rows.count)
    const INDEX length = (INDEX)rows.length, step = ALONG(rows, LOGITS);
    const long from = logits_at + nest_at(&rows.others, row, LOGITS),
               target = LOAD(T_TARGET, targets, targets_at + nest_at(&rows.others, row, TARGET));
    const bool is_ignored = has_ignore && target == ignore, counts = !is_ignored && target >= 0 && target < length;
    const bool has_target = counts && is_mine((INDEX)target), is_first = MY_PLACE == 0;
    const real here = has_target ? (real)LOAD(T_X, logits, from + target * step) : (real)0;
    real log_sum = 0, loss = 0;
#ifdef MAKE_LOSS
    if (!counts && !is_ignored && is_first)
        report_fault(fault, target, rows.length);
    C largest;
    /* of a row that does not count, too: a group meets in it */
    const real sum_log = log(row_exps(logits, from, step, length, &largest, space)), most = (real)largest;
    real all = 0;
    if (smoothing > 0) {
#define ADD(at, lane) all += (real)LOAD(T_X, logits, from + (at)*step);
        EACH(ADD, 0, length)
#undef ADD
    }
    all = group_sum(all, space);
    if (counts) {
        loss = sum_log - (here - most);
        if (smoothing > 0)
            loss = (1 - smoothing) * loss + smoothing * (sum_log - (all / (real)length - most));
        log_sum = most + sum_log;
    }
    if (has_target || (!counts && is_first)) {
        STORE_REAL(T_LOSS, losses, losses_at + nest_at(&rows.others, row, LOSS), loss);
        if (log_sums)
            store_stat(log_sums, log_sums_at + nest_at(&rows.others, row, LOG_SUM), log_sum);
    }
#else
    if (counts)
        log_sum = load_stat(log_sums, log_sums_at + nest_at(&rows.others, row, LOG_SUM));
#endif
#ifdef MAKE_SLOPES
    /* g · (softmax - smoothing / C), and at the target 1 - smoothing less. The logarithm is subtracted in two parts, as
     * f32 holds only one. */
    const real g = (real)LOAD(T_G, gradients, gradients_at + nest_at(&rows.others, row, GRADIENT)) * scale,
               even = smoothing / (real)length;
    const C shift = (C)log_sum, by = (C)exp((real)shift - log_sum), less = (C)even, up = (C)g;
    const long to = slopes_at + nest_at(&rows.others, row, SLOPES);
    for (INDEX at = MY_PLACE * LANES; at < length; at += GROUP * LANES) {
        C made[LANES];
        fetch_lanes(logits, from + at * step, step, length - at, made);
#pragma unroll
        for (int k = 0; k < LANES; k++)
            made[k] -= shift;
        exp_lanes(made);
#pragma unroll
        for (int k = 0; k < LANES; k++)
            made[k] = counts ? (made[k] * by - less) * up : (C)0;
        STORE_LANES(T_SLOPES, slopes, to + at * ALONG(rows, SLOPES), ALONG(rows, SLOPES), length - at, made)
    }
    if (has_target)
        STORE_REAL(T_SLOPES, slopes, to + target * ALONG(rows, SLOPES),
                   (exp(here - log_sum) - even - (1 - smoothing)) * g);
#endif
}
