/* conv_wgrad.h: wgrad on tensor cores without im2col: the plan, and the kernels.
 *
 * dW (O, taps, C) = Σ over result pixels of g (pixel, O) · x (the pixel's window, C). A thread block owns one tile of
 * dW (outs, taps of a group, a slice of channels) and sums over a run of pixel tiles; a second kernel adds the blocks'
 * partial sums in order (split-K). */
#ifndef TARN__CUDA_CONV_WGRAD_H
#define TARN__CUDA_CONV_WGRAD_H

#include "backends/cuda/runtime/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Per thread block: 12 warps leave 168 registers per thread with one block per multiprocessor. */
#define TARN__WGRAD_WARPS 12
#define TARN__WGRAD_UNITS 3  /* per warp, each one tap of 16 channels */
#define TARN__WGRAD_STAGES 3 /* pixel tiles in shared memory: one in use, two in flight */
/* padding elements per pixel: the pitch is an odd number of 16-byte vectors, so pixels hit different banks */
#define TARN__WGRAD_GAP 8
/* zero bytes at the start of shared memory; then tables: 4 and 8 bytes per result, 8 per pixel of x */
#define TARN__WGRAD_ZEROS 64

/* How a pixel tile is copied: a thread always copies the same 16 bytes of its pixels. */
typedef struct tarn__wgrad_copies {
    int vecs;          /* 16-byte vectors per pixel */
    int pixels, apart; /* from a thread's pixel to its next, and the same in bytes of shared memory */
    int count, bytes;  /* of a tile: pixels, and bytes of shared memory */
} tarn__wgrad_copies;

/* Images are contiguous NHWC. Pairs are rows and columns. */
typedef struct tarn__wgrad_plan {
    bool is_tf32; /* f32 operands in TF32; else bf16 */
    int images, in, out;
    int size[2], result[2], kernel[2], padding[2], dilation[2];
    int stride[2]; /* of windows, in pixels of x */
    /* step between loaded rows and columns of x: the stride for 1×1 kernels, else 1 */
    int load[2];
    int outs, slice, taps; /* per block: rows of dW, channels of x, taps */
    /* warps with different units; the remaining warps take other pixels */
    int across;
    /* images, rows and columns of results in a tile; rows and columns of x that their windows cover */
    int tile[3], halo[2];
    int tiles[3];               /* tile counts over images, rows and columns */
    int slices, groups, blocks; /* block counts over channels of x, taps, and rows of dW */
    /* blocks that share the pixel tiles (split-K), tiles of each, and how many get one more */
    int parts, each, more;
    tarn__wgrad_copies x, g; /* a tile's result count is rounded up to whole mma steps */
    int shared_bytes;
} tarn__wgrad_plan;

/* Offset of the tiles in shared memory. */
#define TARN__WGRAD_TILES(p) (TARN__WGRAD_ZEROS + ((p).g.count * 12 + (p).x.count * 8 + 15) / 16 * 16)

/* Bytes of scratch: f32 partial sums of all splits, (parts, O, taps, C). */
static inline size_t tarn__wgrad_scratch(const tarn__wgrad_plan *p)
{
    return sizeof(float) * (size_t)p->parts * (size_t)p->out * (size_t)p->in * (size_t)(p->kernel[0] * p->kernel[1]);
}

/* conv_wgrad.cu: x and g, 16-byte aligned, to dW, a view (O, C, rows, columns) of any strides, accumulated if beta is
 * not 0. False if the device rejects the kernel: see tarn__cuda_failure(). */
bool tarn__cuda_conv_wgrad(const tarn__call *call, const tarn__wgrad_plan *plan, const void *x, const void *g,
                           void *scratch);

#ifdef __cplusplus
}
#endif
#endif
