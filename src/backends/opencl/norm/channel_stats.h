/* channel_stats.h: the engine of batchnorm and groupnorm: statistics per channel of (N, C, ...), or per channel of each
 * sample, and the passes that use them.
 *
 * A set is a channel over all samples (batchnorm) or of one sample (groupnorm). Two layouts:
 *   NCHW  elements of a set are closer than channels: taken in lines along the closest axis, lines in chunks of a few
 *         thousand elements (channel_nchw.cl); a work-group has a chunk, or without local memory a work-item
 *   NHWC  channels are closer than elements of one: a work-group has a chunk of positions of some adjacent channels
 *         (channel_nhwc.cl); without local memory a work-item has a short chunk of one channel, by the NCHW kernels
 * Chunk statistics go to scratch and are finalized in order (channel_finalize.cl). All cuts depend on shapes and
 * device, so results are deterministic. */
#ifndef TARN__OPENCL_CHANNEL_STATS_H
#define TARN__OPENCL_CHANNEL_STATS_H

#include "backends/opencl/common/rows.h"

/* x; y or gx; gy; with relu the residual added before it or, in backward, its output; and the gradient of the residual.
 */
enum { TARN__CL_X, TARN__CL_Y, TARN__CL_GRAD_Y, TARN__CL_RESIDUAL, TARN__CL_GRAD_RESIDUAL, TARN__CL_CHANNEL_OPERANDS };

/* The struct `channel_set` of channel_stats.cl, whose comments explain the fields. */
typedef struct tarn__cl_channel_set {
    tarn__nest outer;
    int64_t channels, sets, members;
    int64_t inner, segment, segments;
    int64_t lines, chunk, chunks;
    int64_t along[TARN__CL_CHANNEL_OPERANDS], channel_step[TARN__CL_CHANNEL_OPERANDS], /* strides: along lines, */
        sample_step[TARN__CL_CHANNEL_OPERANDS]; /* between channels, between samples */
} tarn__cl_channel_set;

/* Operands of a call; borrowed. Vectors are per channel, or per set of channels that share a mean; NULL: absent. */
typedef struct tarn__cl_channel_operands {
    const tarn__view *view[TARN__CL_CHANNEL_OPERANDS]; /* of one shape, of rank 2 or more; x is never absent */
    const tarn__view *weight, *bias;
    const tarn__view *given_mean, *given_variance;     /* instead of x's own */
    const tarn__view *mean, *rstd;                     /* f64, contiguous: written by forward, read by backward */
    const tarn__view *running_mean, *running_variance; /* also read */
    const tarn__view *gweight, *gbias;                 /* written by backward */
    double epsilon, momentum;
    double min_output; /* relu outputs up to this were rounded to 0 in x's dtype */
    bool training;     /* x's own statistics are used, and count in the gradient */
    bool has_relu;
    bool per_sample; /* a set belongs to one sample */
    int64_t members; /* adjacent channels that share a mean */
} tarn__cl_channel_operands;

/* The launches of a call, in order: passes over elements, and reductions over sets. */
enum {
    TARN__CL_MOMENTS,
    TARN__CL_FINALIZE_MOMENTS,
    TARN__CL_NORMALIZE,
    TARN__CL_SUMS = 0,
    TARN__CL_FINALIZE_SUMS,
    TARN__CL_ADD_SAMPLES,
    TARN__CL_AVERAGE,
    TARN__CL_GRAD,
    TARN__CL_CHANNEL_PASSES
};

/* A launch with a chunk or set per work-group, or per work-item. */
typedef struct tarn__cl_channel_pass {
    const tarn__cl_kernel *kernel; /* NULL: the call has no such launch */
    size_t group;
} tarn__cl_channel_pass;

/* A call described for launch. */
typedef struct tarn__cl_channel_job {
    tarn__cl_channel_set set;
    int64_t values;      /* elements that share a mean */
    bool is_nhwc, vec4;  /* vec4: all operands are aligned vec4s */
    int lanes;           /* elements per step of a work-item */
    size_t group, local; /* work-items per chunk; work-group size */
    /* NCHW: steps that a line would take one work-item; NHWC: work-items across all channels */
    int64_t steps;
    tarn__cl_channel_pass pass[TARN__CL_CHANNEL_PASSES];
} tarn__cl_channel_job;

/* Chooses layout, group and chunks. */
void tarn__cl_channels_describe(tarn__cl_channel_job *c, const tarn__cl_device *device,
                                const tarn__cl_channel_operands *o);

/* Work-items along a line (NCHW), or across channels (NHWC): a power of two. */
size_t tarn__cl_channels_width(const tarn__cl_channel_job *c, size_t group);

/* Options of passes over elements, but for those of the work-group. */
typedef struct tarn__cl_channel_options {
    char text[320];
} tarn__cl_channel_options;
void tarn__cl_channels_write_options(const tarn__cl_channel_job *c, const tarn__cl_channel_operands *o,
                                     tarn__cl_channel_options *options);

/* Forward: y, statistics and running statistics. Backward: gradients of x, weight, bias and residual. */
tarn__plan_status tarn__cl_channels_prepare_forward(const tarn__call *call, const tarn__cl_channel_operands *o,
                                                    tarn__plan *plan);
void tarn__cl_channels_forward(const tarn__call *call, const tarn__cl_channel_operands *o);
tarn__plan_status tarn__cl_channels_prepare_backward(const tarn__call *call, const tarn__cl_channel_operands *o,
                                                     tarn__plan *plan);
void tarn__cl_channels_backward(const tarn__call *call, const tarn__cl_channel_operands *o);

#endif
