/* conv_wgrad.h: the gradient of a convolution's weight on tensor cores, without columns: how the work is cut, and the
 * kernels that do it.
 *
 * dW (O, taps, C) = Σ over pixels of results of g (pixel, O) · x (the pixel's window, C). A block has one tile (outs,
 * taps of a group, a slice of channels) of dW, and adds up what a run of tiles of pixels brings; a second kernel adds
 * the blocks' parts up, in order. */
#ifndef TARN__CUDA_CONV_WEIGHT_H
#define TARN__CUDA_CONV_WEIGHT_H

#include "backends/cuda/runtime/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TARN__WGRAD_WARPS 12
#define TARN__WGRAD_UNITS 3  /* of a warp, each one tap of 16 channels */
#define TARN__WGRAD_STAGES 3 /* tiles of pixels in shared memory: one is worked on while the next two come */
#define TARN__WGRAD_GAP \
    8 /* elements behind each pixel's: pixels are an odd number of 16-byte packs apart, on different banks */
#define TARN__WGRAD_ZEROS \
    64 /* bytes of shared memory before all else; then tables: for each result 4 and 8, for each pixel of x 8 */

/* How pixels of a tile are copied: a thread has the same 16 bytes of some of them. */
typedef struct tarn__wgrad_copies {
    int packs;         /* of 16 bytes a pixel */
    int pixels, apart; /* from one of a thread's pixels to the next, and bytes of shared memory between them */
    int count, bytes;  /* of a tile: pixels, and bytes of shared memory */
} tarn__wgrad_copies;

/* Images are (images, rows, columns, channels), dense. Sizes of two are rows and columns. */
typedef struct tarn__wgrad_plan {
    bool is_wide; /* f32, multiplied in TF32; else bf16 */
    int images, in, out;
    int size[2], result[2], kernel[2], padding[2], dilation[2];
    int stride[2]; /* of windows, in pixels of x */
    /* every how manieth row and column of x is in a tile: the stride's of kernels of size 1, else 1 */
    int load[2];
    int outs, slice, taps; /* of a block: rows of dW, channels of x, taps */
    /* warps beside each other, with different units; the others of a block take other pixels */
    int across;
    /* images, rows and columns of results in a tile; rows and columns of x that their windows see */
    int tile[3], halo[2];
    int tiles[3];               /* of all pixels: over images, rows and columns */
    int slices, groups, blocks; /* over channels of x, taps, and rows of dW */
    /* blocks that share the tiles of pixels, how many each of them has, and how many have one more */
    int parts, each, more;
    tarn__wgrad_copies x, g; /* results of a tile are rounded up to whole products */
    int shared_bytes;
} tarn__wgrad_plan;

/* Where tiles begin in shared memory. */
#define TARN__WGRAD_TILES(p) (TARN__WGRAD_ZEROS + ((p).g.count * 12 + (p).x.count * 8 + 15) / 16 * 16)

/* Bytes of scratch: the parts of all blocks, f32. */
static inline size_t tarn__wgrad_scratch(const tarn__wgrad_plan *p)
{
    return sizeof(float) * (size_t)p->parts * (size_t)p->out * (size_t)p->in * (size_t)(p->kernel[0] * p->kernel[1]);
}

/* conv_wgrad.cu: from x and g, 16-byte aligned, to dW, a view (O, C, rows, columns) of any strides; what lies there is
 * added where beta is not 0. False where the device refuses the kernel: see tarn__cuda_failure(). */
bool tarn__cuda_conv_wgrad(const tarn__call *call, const tarn__wgrad_plan *plan, const void *x, const void *g,
                           void *scratch);

#ifdef __cplusplus
}
#endif
#endif
