/* channel_finalize.cl: numbers of sets from what their chunks gave, in an order fixed by how many there are: see
 * channel_stats.cl. */
#include "backends/opencl/norm/channel_stats.cl"

#ifdef SETTLE_MOMENTS
/* A group for each of the sets that share a mean: their numbers, and the statistics that are kept. Without `training`
 * the mean and the variance are given. */
__kernel void settle_moments(channel_set c, OPERAND(parts), OPERAND(numbers), VECTOR(weight), VECTOR(bias),
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
    const real inverse = 1 / sqrt(variance + epsilon);
    for (long i = MY_PLACE; i < c.members; i += GROUP) {
        const long set = first + i, channel = set % c.channels;
        NUMBER(MEAN, set) = middle;
        NUMBER(SCALE, set) = weight ? inverse * (real)LOAD(T_W, weight, weight_at + channel * weight_step) : inverse;
        NUMBER(BIAS, set) = bias ? (real)LOAD(T_B, bias, bias_at + channel * bias_step) : (real)0;
    }
    if (MY_PLACE != 0)
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

#ifdef SETTLE_SUMS
/* A group for each set: its sums. Where a set is all of a channel they are gradients, of bias and weight, and where it
 * shares its mean with no other, too, they become what the gradient of x is made with. */
__kernel void settle_sums(channel_set c, OPERAND(parts), OPERAND(numbers), STATISTICS, VECTOR(gweight), VECTOR(gbias),
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
    if (MY_PLACE != 0)
        return;
    const real by = c.members == 1 && is_whole ? SCALE_OF(set) / values : (real)1;
    NUMBER(FIRST, set) = sum * by;
    NUMBER(SECOND, set) = product * by;
    if (is_whole && gweight)
        STORE_REAL(T_GW, gweight, gweight_at + set * gweight_step, product);
    if (is_whole && gbias)
        STORE_REAL(T_GB, gbias, gbias_at + set * gbias_step, sum);
}
#endif

#ifdef ADD_PARTS
/* A work-item for each channel: the gradients of weight and bias from the sums of all parts, in order. */
__kernel void add_parts(channel_set c, OPERAND(numbers), VECTOR(gweight), VECTOR(gbias))
{
    const long channel = get_global_id(0);
    if (channel >= c.channels)
        return;
    real sum = 0, product = 0;
    for (long set = channel; set < c.sets; set += c.channels)
        sum += NUMBER(FIRST, set), product += NUMBER(SECOND, set);
    if (gweight)
        STORE_REAL(T_GW, gweight, gweight_at + channel * gweight_step, product);
    if (gbias)
        STORE_REAL(T_GB, gbias, gbias_at + channel * gbias_step, sum);
}
#endif

#ifdef AVERAGE
/* A work-item for each of the sets that share a mean: their sums, times scale, become averages. */
__kernel void average_sums(channel_set c, OPERAND(numbers), STATISTICS, real values)
{
    const long first_set = get_global_id(0) * c.members;
    if (first_set >= c.sets)
        return;
    real sum = 0, product = 0;
    for (long set = first_set; set < first_set + c.members; set++)
        sum += NUMBER(FIRST, set) * SCALE_OF(set), product += NUMBER(SECOND, set) * SCALE_OF(set);
    for (long set = first_set; set < first_set + c.members; set++)
        NUMBER(FIRST, set) = sum / values, NUMBER(SECOND, set) = product / values;
}
#endif
