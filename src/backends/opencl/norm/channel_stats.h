/* channel_stats.h: the engine under batchnorm and groupnorm: numbers for each channel of a tensor [N, C, ...], or for
 * each channel of each of its N parts, and the passes that use them.
 *
 * The elements of a set, a channel of all parts or of one, are taken in lines along the axis on which they lie closest,
 * and lines in chunks of a few thousand elements (channel_nchw.cl). A group has a chunk, neighbours have neighbouring
 * elements; where local memory is not real a work-item alone has it, with many lanes if elements lie side by side.
 * Where channels lie closer than the elements of one, a group has a chunk of positions of some neighbouring channels
 * (channel_nhwc.cl); where local memory is not real a work-item has a short chunk of one, and its neighbours those of
 * the neighbouring channels. All cuts depend on shapes and the device. */
#ifndef TARN__CL_CHANNEL_STATS_H
#define TARN__CL_CHANNEL_STATS_H

#include "backends/opencl/common/rows.h"

/* x; y or gx; the gradient of y; with relu what is added before it, or in backward its result; and the gradient that it
 * lets through. */
enum { TARN__CL_X, TARN__CL_Y, TARN__CL_GRAD_Y, TARN__CL_RESIDUAL, TARN__CL_GRAD_RESIDUAL, TARN__CL_CHANNEL_OPERANDS };

/* As channel_stats.cl has it. */
typedef struct tarn__cl_channel_set {
    tarn__nest outer;
    int64_t channels, sets, members;
    int64_t inner, segment, segments;
    int64_t lines, chunk, chunks;
    int64_t along[TARN__CL_CHANNEL_OPERANDS], channel_step[TARN__CL_CHANNEL_OPERANDS],
        part_step[TARN__CL_CHANNEL_OPERANDS];
} tarn__cl_channel_set;

typedef struct tarn__cl_channel_job {
    tarn__cl_channel_set set;
    const tarn__view *view[TARN__CL_CHANNEL_OPERANDS]; /* of one shape; NULL where there is none, but never x */
    int64_t values;                                    /* that share a mean */
    bool has_relu, by_columns, quads;
    int lanes;
    size_t group, local;
    /* of a work-item in a line, if it had it alone; by columns, work-items side by side that have all channels */
    int64_t steps;
    char options[320]; /* but for those of the group */
} tarn__cl_channel_job;

/* Vectors of a number for each channel, or of each of the sets that share a mean; NULL where there is none. */
typedef struct tarn__cl_channel_vectors {
    const tarn__view *weight, *bias;
    const tarn__view *given_mean, *given_variance;     /* instead of x's own */
    const tarn__view *mean, *rstd;                     /* f64, dense: written by forward, read by backward */
    const tarn__view *running_mean, *running_variance; /* also read */
    const tarn__view *gweight, *gbias;
    double epsilon, momentum;
    double least;  /* what is not above this is 0 in x's dtype */
    bool training; /* x's own statistics are used, and count in the gradient */
} tarn__cl_channel_vectors;

/* Describes operands of rank 2 or more. `with_parts`: a set is of one part. `members` channels share a mean. Borrows
 * the views. */
void tarn__cl_channels_describe(tarn__cl_channel_job *c, const tarn__call *call, const tarn__view *const *views,
                                bool with_parts, int64_t members, bool has_relu);

/* Work-items along a line, or by columns side by side: a power of two. */
size_t tarn__cl_channels_width(const tarn__cl_channel_job *c, size_t group);

/* Bytes of scratch that either direction needs. */
size_t tarn__cl_channels_scratch(const tarn__cl_channel_job *c);

/* Writes the options: not before a kernel is started, since strings take longer than all else. */
void tarn__cl_channels_write_options(tarn__cl_channel_job *c);

/* Result, statistics and running statistics; the gradients of x, weight, bias and of what was added. */
void tarn__cl_channels_forward(const tarn__call *call, tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v);
void tarn__cl_channels_backward(const tarn__call *call, tarn__cl_channel_job *c, const tarn__cl_channel_vectors *v);

#endif
