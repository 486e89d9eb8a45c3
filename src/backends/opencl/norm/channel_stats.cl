/* channel_stats.cl: shared by the kernels of batchnorm and groupnorm: sets, their statistics, and where both are
 * stored. channel_stats.h explains how elements are distributed.
 *
 * A set is a channel of (N, C, ...) over all samples or of one. Its elements are taken in chunks, whose moments or sums
 * go to scratch; a work-group per set combines them in order. A mean is used as two stats of the compute type (high,
 * low), so that x - mean is exact to f32 even where the mean is much larger than the std. */
#pragma OPENCL FP_CONTRACT OFF /* backward recomputes the result: with the same roundings */
#include "backends/opencl/common/rows.cl"

enum { X, Y, GY, RESIDUAL, GRES, OPERANDS };

/* tarn__cl_channel_set of channel_stats.h, passed by value. Strides: along lines, between channels, between samples. */
typedef struct channel_set {
    nest outer;                    /* all axes but the channel's, that of lines and, per sample, the first */
    long channels, sets, members;  /* members: adjacent sets that share a mean */
    long inner, segment, segments; /* elements of the axis of lines; of a line, at most; lines of the axis */
    long lines, chunk, chunks;     /* lines of a set; of a chunk; chunks of a set. NHWC: positions of a chunk */
    long along[OPERANDS], channel_step[OPERANDS], sample_step[OPERANDS];
} channel_set;

/* Statistics per set, in scratch: forward y = (x - mean) · scale + bias; backward gx = scale · gy - first - (x - mean)
 * · rstd · second. */
enum { MEAN, SCALE, BIAS, FIRST = 0, SECOND };
#define SCRATCH_REALS(name) ((__global real *)((__global char *)name + name##_at))
#define STAT(which, set) SCRATCH_REALS(stats)[(which)*c.sets + (set)]
#define PARTS ((__global real *)((__global char *)parts + parts_at))

/* Backward derives scale and bias from what forward saved. */
#define STATISTICS VECTOR(weight), VECTOR(bias), OPERAND(mean), OPERAND(rstd)
#define CHANNEL_OF(set) ((INDEX)(set) % (INDEX)c.channels)
#define MEAN_OF(set) load_stat(mean, mean_at + (INDEX)(set) / (INDEX)c.members)
#define RSTD_OF(set) load_stat(rstd, rstd_at + (INDEX)(set) / (INDEX)c.members)
#define SCALE_OF(set) \
    (weight ? RSTD_OF(set) * (real)LOAD(T_W, weight, weight_at + CHANNEL_OF(set) * weight_step) : RSTD_OF(set))
#define BIAS_OF(set) (bias ? (real)LOAD(T_B, bias, bias_at + CHANNEL_OF(set) * bias_step) : (real)0)

/* x - mean, with the mean in two parts. */
#define CENTRED(x) (((x)-high) - low)

/* The output, through relu where it is fused. */
#ifdef RELU
#define RELU_OUT(y) ((y) < 0 ? (C)0 : (y))
#else
#define RELU_OUT(y) (y)
#endif

/* The gradient after relu: gy where relu's output is above `min_output`, else 0. NaN passes, as its value does. With a
 * residual (ADDED) the output is given, else it is recomputed. */
#ifdef ADDED
#define RELU_OF(at) ELEMENT(T_RESIDUAL, residual, at, RESIDUAL)
#else
#define RELU_OF(at) (CENTRED(ELEMENT(T_X, x, at, X)) * scale + plus)
#endif
#ifdef RELU
#define LOAD_GRAD(at) const C gy = RELU_OF(at) <= min_output ? (C)0 : ELEMENT(T_G, g, at, GY);
#else
#define LOAD_GRAD(at) const C gy = ELEMENT(T_G, g, at, GY);
#endif

/* gx; with FIXED the statistics were given, and have no gradient. */
#ifdef FIXED
#define GRAD_X(at) (gy * scale)
#else
#define GRAD_X(at) (gy * scale - first - CENTRED(ELEMENT(T_X, x, at, X)) * rstd_ * second)
#endif
