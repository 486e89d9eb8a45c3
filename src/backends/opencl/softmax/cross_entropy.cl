/* cross_entropy.cl: cross entropy of rows of logits (MAKE_LOSS), its gradient (MAKE_GRAD), or both while the row is in
 * a cache. The gradient recomputes softmax from the logits and their logsumexp (LSE). */
#include "backends/opencl/softmax/exp_sum.cl"

enum {
    LOGITS,
    TARGET,
    LOSS,
    LSE,
    GRADIENT,
    GRAD
}; /* operands: (rows, C), then per row, and the gradient of the logits */

/* A row per work-group. Bytes: logits read, gradients written; the second pass reads from a cache. Gradients may
 * overwrite the logits: a work-item reads no element that another writes. */
__kernel void cross_entropy(row_set rows, OPERAND(logits), OPERAND(targets), OPERAND(losses), OPERAND(lse_out),
                            OPERAND(gradients), OPERAND(grads), real smoothing, real scale, long ignore, int has_ignore,
                            FAULT_PARAMETERS)
{
    __local real space[GROUP];
    const long row = MY_ROW;
    END_BEYOND(rows.count)
    const INDEX length = (INDEX)rows.length, step = ALONG(rows, LOGITS);
    const long from = logits_at + nest_at(&rows.others, row, LOGITS),
               target = LOAD(T_TARGET, targets, targets_at + nest_at(&rows.others, row, TARGET));
    /* a target that is neither valid nor ignored is reported, and gives a loss and gradient of 0 */
    const bool is_ignored = has_ignore && target == ignore, counts = !is_ignored && target >= 0 && target < length;
    const bool has_target = counts && is_mine((INDEX)target), is_first = MY_ITEM == 0;
    /* the work-item that has the target writes the loss */
    const real here = has_target ? (real)LOAD(T_X, logits, from + target * step) : (real)0;
    real lse = 0, loss = 0;
#ifdef MAKE_LOSS
    if (!counts && !is_ignored && is_first)
        report_fault(fault, target, rows.length);
    C row_max;
    /* of ignored rows too: the work-group meets at its barriers */
    const real log_sum = log(row_exp_sum(logits, from, step, length, &row_max, space)), max_value = (real)row_max;
    real all = 0;
    /* label smoothing needs the mean logit */
    if (smoothing > 0) {
#define ADD(at, lane) all += (real)LOAD(T_X, logits, from + (at)*step);
        EACH(ADD, 0, length)
#undef ADD
    }
    all = group_sum(all, space);
    if (counts) {
        loss = log_sum - (here - max_value);
        if (smoothing > 0)
            loss = (1 - smoothing) * loss + smoothing * (log_sum - (all / (real)length - max_value));
        lse = max_value + log_sum;
    }
    if (has_target || (!counts && is_first)) {
        STORE_REAL(T_LOSS, losses, losses_at + nest_at(&rows.others, row, LOSS), loss);
        if (lse_out)
            store_stat(lse_out, lse_out_at + nest_at(&rows.others, row, LSE), lse);
    }
#else
    if (counts)
        lse = load_stat(lse_out, lse_out_at + nest_at(&rows.others, row, LSE));
#endif
#ifdef MAKE_GRAD
    /* gy · (softmax - smoothing / C), and at the target 1 - smoothing less. LSE is subtracted in two parts, since f32
     * holds only one. */
    const real g = (real)LOAD(T_G, gradients, gradients_at + nest_at(&rows.others, row, GRADIENT)) * scale,
               even = smoothing / (real)length;
    const C shift = (C)lse, by = (C)exp((real)shift - lse), less = (C)even, gy = (C)g;
    const long to = grads_at + nest_at(&rows.others, row, GRAD);
    for (INDEX at = MY_ITEM * LANES; at < length; at += GROUP * LANES) {
        C result[LANES];
        fetch_lanes(logits, from + at * step, step, length - at, result);
#pragma unroll
        for (int k = 0; k < LANES; k++)
            result[k] -= shift;
        exp_lanes(result);
#pragma unroll
        for (int k = 0; k < LANES; k++)
            result[k] = counts ? (result[k] * by - less) * gy : (C)0;
        STORE_LANES(T_GRAD, grads, to + at * ALONG(rows, GRAD), ALONG(rows, GRAD), length - at, result)
    }
    if (has_target)
        STORE_REAL(T_GRAD, grads, to + target * ALONG(rows, GRAD), (exp(here - lse) - even - (1 - smoothing)) * g);
#endif
}
