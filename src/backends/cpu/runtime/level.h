/* level.h: kernel sources are compiled once per instruction level (base, avx2, avx512); every symbol with external
 * linkage carries the level in its name.
 *
 * TARN__AT_LEVEL(f) is f_avx2 in the objects compiled for AVX2. Static functions need no suffix. Nothing compiled
 * for a level may run before backend.c has checked that the processor has it: no constructors. Shared headers define
 * static functions only, so that the linker cannot merge an AVX-512 copy into the base level. */
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

/* Sources named *_f64.c compute in f64 and i64, which serve checks and counts rather than training. Levels with the
 * same arithmetic share one copy of them: the build names the level that provides it. */
#ifndef TARN__F64_LEVEL
#define TARN__F64_LEVEL TARN__LEVEL
#endif
#define TARN__AT_F64_LEVEL(name) TARN__PASTE(name, TARN__F64_LEVEL)

/* Bytes of the widest vector of the level. */
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

/* Registration: each unit of families.def writes its kernels into the table of its level. Rows not written keep the
 * previous level's kernel. */
#define TARN__CPU_PROTOTYPE_YES(unit) void TARN__AT_LEVEL(tarn__cpu_register_##unit)(tarn__kernel_row * rows);
#define TARN__CPU_PROTOTYPE_F64(unit) void TARN__AT_F64_LEVEL(tarn__cpu_register_##unit)(tarn__kernel_row * rows);
#define TARN__CPU_PROTOTYPE_NO(unit)
#define UNIT(family, unit, cpu, cuda, opencl) TARN__CPU_PROTOTYPE_##cpu(unit)
#include "base/kernel/families.def"
#undef UNIT

/* Registers all units. */
void TARN__AT_LEVEL(tarn__cpu_table)(tarn__kernel_row *rows);

/* The type a kernel computes in, second index of the tables in convert.h: f16 and bf16 compute in f32, every integer
 * in i64. */
enum { COMPUTE_F32, COMPUTE_F64, COMPUTE_I64 };

/* The compute type of a dtype. */
static inline int tarn__compute_of(tarn_dtype dtype)
{
    return dtype == TARN_F64 ? COMPUTE_F64 : tarn__is_float(dtype) ? COMPUTE_F32 : COMPUTE_I64;
}

/* Precedes a loop whose iterations are independent even where input and output are the same memory (in-place
 * operations): the compiler may vectorize without an alias check. */
#if defined(__clang__)
#define TARN__INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define TARN__INDEPENDENT _Pragma("GCC ivdep")
#else
#define TARN__INDEPENDENT
#endif

#endif
