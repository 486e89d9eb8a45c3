/* level.h: kernel files are compiled once for each instruction level; what they share with other files carries the
 * level in its name. */
#ifndef TARN__CPU_LEVEL_H
#define TARN__CPU_LEVEL_H

#include "base/kernel/backend.h"
#include "base/os/thread.h"

#ifndef TARN__LEVEL
#define TARN__LEVEL base
#endif

#define TARN__PASTE_(a, b) a##_##b
#define TARN__PASTE(a, b) TARN__PASTE_(a, b)
#define TARN__AT_LEVEL(name) TARN__PASTE(name, TARN__LEVEL)

/* Files named *_wide.c compute in f64 and i64, which serve checks and counts: levels share them, where the narrower one
 * gives the same bits. The build names the level they come from. */
#ifndef TARN__F64_LEVEL
#define TARN__F64_LEVEL TARN__LEVEL
#endif
#define TARN__AT_F64_LEVEL(name) TARN__PASTE(name, TARN__F64_LEVEL)

/* The level's vectors. */
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

/* Each family puts its kernels into the table. */
void TARN__AT_LEVEL(tarn__cpu_elementwise)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_copy)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_random)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_reduce)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_var_grad)(tarn__kernel_row *rows);
/* these two move and compare elements: shared by levels in the same way */
void TARN__AT_F64_LEVEL(tarn__cpu_gather)(tarn__kernel_row *rows);
void TARN__AT_F64_LEVEL(tarn__cpu_scatter)(tarn__kernel_row *rows);
void TARN__AT_F64_LEVEL(tarn__cpu_sort)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_matmul)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_quant)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_kv_q8)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_fused)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_scale_grad)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_conv)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_pool)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_softmax)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_layernorm)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_batchnorm)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_groupnorm)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_attention)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_rope)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_cross_entropy)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_optimizer)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_clip)(tarn__kernel_row *rows);

/* All of them. */
void TARN__AT_LEVEL(tarn__cpu_table)(tarn__kernel_row *rows);

/* What the compiler computes in: [dtype][compute] of convert.h. */
enum { COMPUTE_F32, COMPUTE_F64, COMPUTE_I64 };

static inline int tarn__compute_of(tarn_dtype dtype)
{
    return dtype == TARN_F64 ? COMPUTE_F64 : tarn__is_float(dtype) ? COMPUTE_F32 : COMPUTE_I64;
}

/* Before a loop whose iterations do not depend on each other even where input and output are the same memory. */
#if defined(__clang__)
#define TARN__INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define TARN__INDEPENDENT _Pragma("GCC ivdep")
#else
#define TARN__INDEPENDENT
#endif

#endif
