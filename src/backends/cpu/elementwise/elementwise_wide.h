/* elementwise_wide.h: the tiles of the element-wise kernels in f64 and i64, by kernel. */
#ifndef TARN__ELEMENTWISE_WIDE_H
#define TARN__ELEMENTWISE_WIDE_H

#include "base/kernel/kernels.h"

#include "backends/cpu/elementwise/elementwise_loops.h"

typedef struct tarn__f64_tile {
    tarn__tile_fn f64, i64; /* i64 is NULL where a kernel has no integers */
} tarn__f64_tile;

#define tarn__f64_tiles TARN__AT_F64_LEVEL(tarn__f64_tiles_of)
extern const tarn__f64_tile tarn__f64_tiles[TARN__KERNEL_COUNT];

#endif
