/* backend.c: the CPU as a backend: host memory, and the kernel table of the best instruction level this processor has.
 *
 * The table is filled once per process, under pthread_once: the base level first, then every better level that both
 * the build and the processor have overwrites its rows. So a level that lacks a kernel keeps the row of the level
 * below. There are no streams: a kernel has finished when it returns, upload and download are memcpy(), and
 * synchronize() has nothing to wait for. Memory belongs to the caller of alloc() and is 64-byte aligned
 * (tarn__alloc_aligned()). */
#include "base/kernel/backend.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/runtime/amx.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/os/platform.h"

#if defined(TARN__HAVE_DOTPROD) || defined(TARN__HAVE_I8MM) || defined(TARN__HAVE_BF16)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

void tarn__cpu_table_base(tarn__kernel_row *rows);
void tarn__cpu_table_avx2(tarn__kernel_row *rows);
void tarn__cpu_table_avx512(tarn__kernel_row *rows);
/* each replaces one kernel of the base table */
void tarn__cpu_register_quant_matmul_dotprod(tarn__kernel_row *rows);
void tarn__cpu_register_quant_matmul_i8mm(tarn__kernel_row *rows);
void tarn__cpu_register_matmul_bf16(tarn__kernel_row *rows);
/* each replaces kernels of the avx512 table, or puts a row ahead of theirs */
void tarn__cpu_register_matmul_amx(tarn__kernel_row *rows, tarn__kernel_row *avx512);
void tarn__cpu_register_fused_amx(tarn__kernel_row *rows);
void tarn__cpu_register_quant_matmul_amx(tarn__kernel_row *rows);

/* Written by fill_table() alone, read-only afterwards: no lock. */
static tarn__kernel_row rows[TARN__KERNEL_COUNT];
static const char *level = "base";

#if defined(__aarch64__)
static const char *const level_names[] = {"base", "dotprod", "i8mm", "bf16"};
#define LEVEL_TEXT "base, dotprod, i8mm or bf16"
#elif defined(__x86_64__)
static const char *const level_names[] = {"base", "avx2", "avx512", "amx"};
#define LEVEL_TEXT "base, avx2, avx512 or amx"
#else
static const char *const level_names[] = {"base"};
#define LEVEL_TEXT "base"
#endif
#define LEVELS ((int)(sizeof(level_names) / sizeof(level_names[0])))

/* The index of a level in level_names; LEVELS where no level has that name. */
static int level_index(const char *name)
{
    int i = 0;
    while (i < LEVELS && strcmp(name, level_names[i]) != 0)
        i++;
    return i;
}

/* TARN_CPU_LEVEL caps the level, for tests and for comparing levels on one machine. */
static bool level_allowed(const char *name)
{
    const char *limit = getenv("TARN_CPU_LEVEL");
    return !limit || !limit[0] || level_index(name) <= level_index(limit);
}

/* A level that was asked for and cannot be honored is a warning, not an error: results are bitwise identical where
 * levels share their arithmetic, and within the documented error bounds everywhere else. */
static void warn_of_level(void)
{
    const char *limit = getenv("TARN_CPU_LEVEL");
    if (!limit || !limit[0] || strcmp(limit, level) == 0)
        return;
    if (level_index(limit) == LEVELS)
        tarn__log(TARN_LOG_WARNING, "TARN_CPU_LEVEL: unknown instruction level '%s'; must be " LEVEL_TEXT "; using %s",
                  limit, level);
    else
        tarn__log(TARN_LOG_WARNING, "TARN_CPU_LEVEL: not supported by this processor or build: %s; using %s", limit,
                  level);
}

/* Levels in ascending order; getauxval() (AArch64) or CPUID (x86) tells what the processor has. AVX2 needs FMA and
 * BMI2 with it, AVX-512 the five subsets of x86-64-v4: the compiler may use any of them at that level. AMX stands on
 * AVX-512 and is asked for last, since that changes the process: its threads' tiles are saved from then on. */
static void fill_table(void)
{
    tarn__cpu_table_base(rows);
    (void)level_allowed;
#if defined(TARN__HAVE_DOTPROD)
    if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) && level_allowed("dotprod")) {
        level = "dotprod";
        tarn__cpu_register_quant_matmul_dotprod(rows);
    }
#endif
#if defined(TARN__HAVE_I8MM)
    if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) && level_allowed("i8mm")) {
        level = "i8mm";
        tarn__cpu_register_quant_matmul_i8mm(rows);
    }
#endif
#if defined(TARN__HAVE_BF16)
    if ((getauxval(AT_HWCAP2) & HWCAP2_BF16) && level_allowed("bf16")) {
        level = "bf16";
        tarn__cpu_register_matmul_bf16(rows);
    }
#endif
#if defined(__x86_64__)
    /* Required where this runs before constructors, harmless after them. */
    __builtin_cpu_init();
#if defined(TARN__HAVE_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
        level_allowed("avx2")) {
        level = "avx2";
        tarn__cpu_table_avx2(rows);
    }
#endif
#if defined(TARN__HAVE_AVX512)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd") && level_allowed("avx512")) {
        level = "avx512";
        tarn__cpu_table_avx512(rows);
    }
#endif
#if defined(TARN__HAVE_AMX)
    if (strcmp(level, "avx512") == 0 && level_allowed("amx") && tarn__cpu_amx_usable()) {
        static tarn__kernel_row avx512_matmul;
        level = "amx";
        tarn__cpu_register_matmul_amx(rows, &avx512_matmul);
        tarn__cpu_register_fused_amx(rows);
        tarn__cpu_register_quant_matmul_amx(rows);
    }
#endif
#endif
    warn_of_level();
}

static int device_count(void)
{
    return 1;
}

/* Fills in *info, which the caller owns. */
static bool device_query(int index, tarn_device_info *info)
{
    (void)index;
    snprintf(info->type, sizeof(info->type), "cpu");
    tarn__platform_cpu_name(info->description, sizeof(info->description));
    snprintf(info->detail, sizeof(info->detail), "%s kernels, %d threads", level, tarn_threads());
    info->memory_total = tarn__platform_memory_total();
    info->memory_free = tarn__platform_memory_free();
    return true;
}

static void *alloc(int index, size_t bytes)
{
    (void)index;
    return tarn__alloc_aligned(bytes);
}

static void release(int index, void *memory, size_t bytes)
{
    (void)index;
    tarn__release(memory, bytes);
}

/* Host memory: transfers are plain copies, complete on return. */
static bool upload(int index, void *memory, int64_t offset, const void *host, size_t bytes, void *stream)
{
    (void)index, (void)stream;
    memcpy((char *)memory + offset, host, bytes);
    return true;
}

static bool download(int index, const void *memory, int64_t offset, void *host, size_t bytes, void *stream)
{
    (void)index, (void)stream;
    memcpy(host, (const char *)memory + offset, bytes);
    return true;
}

static bool synchronize(int index)
{
    (void)index;
    return true;
}

static const char *failure(void)
{
    return "";
}

const tarn__backend *tarn__cpu_backend(void)
{
    static tarn__backend backend = {
        .name = "cpu",
        .plain_addresses = true,
        .on_host = true,
        .dlpack_memory = 1,
        .device_count = device_count,
        .device_query = device_query,
        .alloc = alloc,
        .release = release,
        .upload = upload,
        .download = download,
        .synchronize = synchronize,
        .failure = failure,
        .kernels = rows,
    };
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_table);
    return &backend;
}
