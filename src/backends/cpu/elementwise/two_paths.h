/* two_paths.h: rows of elementwise.def that have two forms: one that holds for almost every element, and one for those
 * that are `far`. A tile without far elements takes the first. In any other each element has the form that is its
 * own, so that no result depends on its neighbours. */
#ifndef TARN__CPU_TWO_PATHS_H
#define TARN__CPU_TWO_PATHS_H

#include "backends/cpu/elementwise/elementwise_loops.h"

/* What few tiles need: compiled for size. */
#if defined(__GNUC__)
#define TARN__COLD __attribute__((noinline, cold))
#else
#define TARN__COLD
#endif

#define PATH_CHUNK 256 /* elements that are computed in both forms: a multiple of TARN__TILE_MULTIPLE */

/* Which of n elements are far. */
typedef void (*tarn__mark_fn)(int64_t n, const void *const *in, unsigned char *range);

typedef struct tarn__forms {
    int inputs, outputs;
    tarn__tile_fn fast, range;
    tarn__mark_fn mark;
} tarn__forms;

/* A tile with far elements. Results are written when both forms have read their operands, which may be the same
 * memory. */
#define DEFINE_BLEND(real, t) \
    TARN__COLD TARN__UNUSED static void blend_chunk_##t(const tarn__forms *f, int64_t n, const void *const *in, \
                                                        void *const *out, const unsigned char *needs_range, \
                                                        const tarn__elementwise *params) \
    { \
        _Alignas(64) real fast[2][PATH_CHUNK], range[2][PATH_CHUNK]; \
        f->fast(n, in, (void *[]){fast[0], fast[1]}, params); \
        f->range(n, in, (void *[]){range[0], range[1]}, params); \
        for (int k = 0; k < f->outputs; k++) { \
            real *to = out[k]; \
            for (int64_t i = 0; i < n; i++) \
                to[i] = needs_range[i] ? range[k][i] : fast[k][i]; \
        } \
    } \
    TARN__COLD TARN__UNUSED static void blend_##t(const tarn__forms *f, int64_t n, const void *const *in, \
                                                  void *const *out, const tarn__elementwise *params) \
    { \
        for (int64_t first = 0; first < n; first += PATH_CHUNK) { \
            const int64_t count = n - first < PATH_CHUNK ? n - first : PATH_CHUNK; \
            const void *from[3]; \
            void *to[2]; \
            unsigned char needs_range[PATH_CHUNK]; \
            for (int k = 0; k < f->inputs; k++) \
                from[k] = (const real *)in[k] + first; \
            for (int k = 0; k < f->outputs; k++) \
                to[k] = (real *)out[k] + first; \
            f->mark(count, from, needs_range); \
            blend_chunk_##t(f, count, from, to, needs_range, params); \
        } \
    }

/* A row in the forms near_tile and far_tile. `is_far` says it of element i of X, the first operand, and Z, the
 * second. */
#define TWO_PATHS(name, real, t, inputs, outputs, fast_tile, range_tile, needs_range) \
    TARN__COLD static void mark_##name(int64_t n, const void *const *in, unsigned char *range) \
    { \
        const real *X = in[0], *Z = in[(inputs) > 1]; \
        (void)Z; \
        for (int64_t i = 0; i < n; i++) \
            range[i] = (unsigned char)(needs_range); \
    } \
    static void name(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params) \
    { \
        static const tarn__forms forms = {inputs, outputs, fast_tile, range_tile, mark_##name}; \
        const real *X = in[0], *Z = in[(inputs) > 1]; \
        int any = 0; \
        (void)Z; \
        for (int64_t i = 0; i < n; i++) \
            any |= (needs_range); \
        if (any) \
            blend_##t(&forms, n, in, out, params); \
        else \
            fast_tile(n, in, out, params); \
    }

/* A form of one result, from element i of X and Z; G is the last operand. */
#define PATH_TILE(name, real, inputs, value) \
    static void name(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params) \
    { \
        const real *X = in[0], *Z = in[(inputs) > 1], *G = in[(inputs)-1]; \
        real *Y = out[0]; \
        (void)Z, (void)G, (void)params; \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) Y[i] = (value); \
    }

/* The same where it calls the C library, or runs in long double. */
#define COLD_PATH_TILE(name, real, inputs, value) \
    TARN__COLD static void name(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params) \
    { \
        const real *X = in[0], *Z = in[(inputs) > 1], *G = in[(inputs)-1]; \
        real *Y = out[0]; \
        (void)Z, (void)G, (void)params; \
        for (int64_t i = 0; i < n; i++) \
            Y[i] = (value); \
    }

#endif
