/* channel_finalize.cl: statistics of sets from those of their chunks, combined in an order fixed by their number: see
 * channel_stats.cl. */
#include "backends/opencl/norm/channel_stats.cl"

#ifdef FINALIZE_MOMENTS
/* A group per set, or per sets that share a mean: scale and shift of forward, and the saved statistics. Chunk means are
 * combined relative to the first, chunk variances around the common mean (Chan). Without `training` mean and variance
 * are given. */
__kernel void finalize_moments(channel_set c, OPERAND(parts), OPERAND(stats), VECTOR(weight), VECTOR(bias),
                               VECTOR(given_mean), VECTOR(given_variance), OPERAND(mean), OPERAND(rstd),
                               VECTOR(running_mean), VECTOR(running_variance), real epsilon, real momentum, real values,
                               int training)
{
    __local real space[GROUP];
    const long group = MY_ROW, first = group * c.members, count = c.members * c.chunks;
    END_BEYOND(c.sets / c.members)
    const __global real *from = PARTS + 3 * first * c.chunks;
    real middle = 0, squares = 0, variance;
    if (training) {
        /* means of chunks relative to the first: they are close to each other */
        const real start = count > 0 ? from[1] : (real)0;
#define ADD(i) middle += from[3 * i] * (from[3 * i + 1] - start);
        EACH_OF(ADD, 0, count)
#undef ADD
        middle = start + (count > 0 ? group_sum(middle, space) / values : (real)0);
#define ADD(i) \
    const real d = from[3 * i + 1] - middle; \
    squares += from[3 * i + 2] + from[3 * i] * d * d;
        EACH_OF(ADD, 0, count)
#undef ADD
        squares = group_sum(squares, space);
        variance = squares / values;
    } else {
        middle = (real)LOAD(T_GM, given_mean, given_mean_at + group * given_mean_step);
        variance = (real)LOAD(T_GV, given_variance, given_variance_at + group * given_variance_step);
    }
    /* every set of the group gets the same mean and rstd, but its own weight and bias */
    const real inverse = 1 / sqrt(variance + epsilon);
    for (long i = MY_ITEM; i < c.members; i += GROUP) {
        const long set = first + i, channel = set % c.channels;
        STAT(MEAN, set) = middle;
        STAT(SCALE, set) = weight ? inverse * (real)LOAD(T_W, weight, weight_at + channel * weight_step) : inverse;
        STAT(BIAS, set) = bias ? (real)LOAD(T_B, bias, bias_at + channel * bias_step) : (real)0;
    }
    if (MY_ITEM != 0)
        return;
    if (mean)
        store_stat(mean, mean_at + group, middle);
    if (rstd)
        store_stat(rstd, rstd_at + group, inverse);
    if (training && running_mean) {
        const long at = running_mean_at + group * running_mean_step;
        STORE_REAL(T_RM, running_mean, at, (1 - momentum) * (real)LOAD(T_RM, running_mean, at) + momentum * middle);
    }
    if (training && running_variance) {
        const long at = running_variance_at + group * running_variance_step;
        STORE_REAL(T_RV, running_variance, at,
                   (1 - momentum) * (real)LOAD(T_RV, running_variance, at) + momentum * squares / (values - 1));
    }
}
#endif

#ifdef FINALIZE_SUMS
/* A work-group per set: Σ gy and Σ gy · x̂. Where a set is a whole channel these are the gradients of bias and weight;
 * where it shares its mean with no other set, they are scaled for the gradient of x. */
__kernel void finalize_sums(channel_set c, OPERAND(parts), OPERAND(stats), STATISTICS, VECTOR(gweight), VECTOR(gbias),
                            real values)
{
    __local real space[GROUP];
    const long set = MY_ROW;
    END_BEYOND(c.sets)
    const __global real *from = PARTS + 2 * set * c.chunks;
    real sum = 0, product = 0;
#define ADD(i) sum += from[2 * i], product += from[2 * i + 1];
    EACH_OF(ADD, 0, c.chunks)
#undef ADD
    sum = group_sum(sum, space);
    product = group_sum(product, space);
    const bool is_whole = c.sets == c.channels;
    if (MY_ITEM != 0)
        return;
    const real by = c.members == 1 && is_whole ? SCALE_OF(set) / values : (real)1;
    STAT(FIRST, set) = sum * by;
    STAT(SECOND, set) = product * by;
    if (is_whole && gweight)
        STORE_REAL(T_GW, gweight, gweight_at + set * gweight_step, product);
    if (is_whole && gbias)
        STORE_REAL(T_GB, gbias, gbias_at + set * gbias_step, sum);
}
#endif

#ifdef ADD_SAMPLES
/* A work-item per channel: gradients of weight and bias from the sums of all samples, in order. */
__kernel void add_samples(channel_set c, OPERAND(stats), VECTOR(gweight), VECTOR(gbias))
{
    const long channel = get_global_id(0);
    if (channel >= c.channels)
        return;
    real sum = 0, product = 0;
    for (long set = channel; set < c.sets; set += c.channels)
        sum += STAT(FIRST, set), product += STAT(SECOND, set);
    if (gweight)
        STORE_REAL(T_GW, gweight, gweight_at + channel * gweight_step, product);
    if (gbias)
        STORE_REAL(T_GB, gbias, gbias_at + channel * gbias_step, sum);
}
#endif

#ifdef AVERAGE
/* A work-item per group of sets that share a mean: their sums, times scale, become averages. */
__kernel void average_sums(channel_set c, OPERAND(stats), STATISTICS, real values)
{
    const long first_set = get_global_id(0) * c.members;
    if (first_set >= c.sets)
        return;
    real sum = 0, product = 0;
    for (long set = first_set; set < first_set + c.members; set++)
        sum += STAT(FIRST, set) * SCALE_OF(set), product += STAT(SECOND, set) * SCALE_OF(set);
    for (long set = first_set; set < first_set + c.members; set++)
        STAT(FIRST, set) = sum / values, STAT(SECOND, set) = product / values;
}
#endif
