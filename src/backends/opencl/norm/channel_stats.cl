/* channel_stats.cl: what the kernels of batchnorm and groupnorm share: sets, their numbers, and where both are kept.
 * channel_stats.h says how elements are shared out.
 *
 * A set is a channel of a tensor [N, C, ...], of all parts or of one. Its elements are taken in chunks, whose moments
 * or sums go to scratch; a group for each set puts them together in an order fixed by their number. A mean is used as
 * two numbers of the type computed in, so that what is left of an element after it is exact to f32 even where the mean
 * is much larger than the deviation. */
#pragma OPENCL FP_CONTRACT OFF /* backward makes the result again: with the same roundings */
#include "backends/opencl/common/rows.cl"

enum { X, TO, UP, BESIDE, PASSED, OPERANDS };

typedef struct channel_set {
    nest outer; /* over all axes but the channel's, the one taken in lines and, with parts, the first */
    long channels, sets, members;  /* members: neighbouring sets that share a mean */
    long inner, segment, segments; /* elements of the axis taken in lines; of a line at most; lines of that axis */
    long lines, chunk, chunks;     /* lines of a set; of a chunk; chunks of a set. By columns a chunk has positions */
    long along[OPERANDS], channel_step[OPERANDS], part_step[OPERANDS];
} channel_set;

/* Arrays of a number for each set, in scratch: forward has the first three, result (x - mean) · scale + bias, backward
 * the others, gradient scale · g - first - (x - mean) · rstd · second. */
enum { MEAN, SCALE, BIAS, FIRST = 0, SECOND };
#define NUMBERS(name) ((__global real *)((__global char *)name + name##_at))
#define NUMBER(which, set) NUMBERS(numbers)[(which)*c.sets + (set)]
#define PARTS ((__global real *)((__global char *)parts + parts_at))

/* Backward makes the others from what forward has kept. */
#define STATISTICS VECTOR(weight), VECTOR(bias), OPERAND(mean), OPERAND(rstd)
#define CHANNEL_OF(set) ((INDEX)(set) % (INDEX)c.channels)
#define MEAN_OF(set) load_stat(mean, mean_at + (INDEX)(set) / (INDEX)c.members)
#define RSTD_OF(set) load_stat(rstd, rstd_at + (INDEX)(set) / (INDEX)c.members)
#define SCALE_OF(set) \
    (weight ? RSTD_OF(set) * (real)LOAD(T_W, weight, weight_at + CHANNEL_OF(set) * weight_step) : RSTD_OF(set))
#define BIAS_OF(set) (bias ? (real)LOAD(T_B, bias, bias_at + CHANNEL_OF(set) * bias_step) : (real)0)

/* What is left of an element when the mean is taken off. */
#define CENTRED(x) (((x)-high) - low)

/* A result, with relu. */
#ifdef RELU
#define CUT(y) ((y) < 0 ? (C)0 : (y))
#else
#define CUT(y) (y)
#endif

/* What of g goes through relu: where its result is above `least`. What is not a number goes through, as its value does.
 * Where something was ADDED before it the result is given, else it is made again. */
#ifdef ADDED
#define RELU_OF(at) ELEMENT(T_BESIDE, beside, at, BESIDE)
#else
#define RELU_OF(at) (CENTRED(ELEMENT(T_X, x, at, X)) * scale + plus)
#endif
#ifdef RELU
#define PASS(at) const C up = RELU_OF(at) <= least ? (C)0 : ELEMENT(T_G, g, at, UP);
#else
#define PASS(at) const C up = ELEMENT(T_G, g, at, UP);
#endif

/* The gradient of x: with FIXED the statistics were given, and do not count. */
#ifdef FIXED
#define SLOPE(at) (up * scale)
#else
#define SLOPE(at) (up * scale - first - CENTRED(ELEMENT(T_X, x, at, X)) * rstd_ * second)
#endif
