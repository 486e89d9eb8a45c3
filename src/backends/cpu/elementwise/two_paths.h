/* two_paths.h: elementwise kernels with two implementations: a fast path, valid for almost every element, and a
 * range path for the others. A tile without such elements takes the fast path. In any other tile each element takes
 * its own, so that no result depends on its neighbors.
 *
 * Both paths see operands at the same offsets and with the same count, a multiple of TARN__TILE_MULTIPLE or the rest
 * of a tile, so that compilers treat them alike. */
#ifndef TARN__CPU_TWO_PATHS_H
#define TARN__CPU_TWO_PATHS_H

#include "backends/cpu/elementwise/elementwise_loops.h"

/* Code that few tiles need: compiled for size. */
#if defined(__GNUC__)
#define TARN__COLD __attribute__((noinline, cold))
#else
#define TARN__COLD
#endif

#define PATH_CHUNK 256 /* elements computed on both paths at once: a multiple of TARN__TILE_MULTIPLE */

/* Marks which of n elements need the range path. */
typedef void (*tarn__mark_fn)(int64_t n, const void *const *in, unsigned char *range);

/* Both paths of a kernel, with operand counts. */
typedef struct tarn__two_paths {
    int inputs, outputs;
    tarn__tile_fn fast, range;
    tarn__mark_fn mark;
} tarn__two_paths;

/* A tile with such elements. Results are written after both paths have read their operands, which may alias.
 * Computes both paths for PATH_CHUNK elements in local buffers and selects per element. */
#define DEFINE_BLEND(real, t) \
    TARN__COLD TARN__UNUSED static void blend_chunk_##t(const tarn__two_paths *f, int64_t n, const void *const *in, \
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
    TARN__COLD TARN__UNUSED static void blend_##t(const tarn__two_paths *f, int64_t n, const void *const *in, \
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

/* A kernel with fast_tile and range_tile; `needs_range` is a condition on element i of X, the first operand, and Z,
 * the second. */
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
        static const tarn__two_paths paths = {inputs, outputs, fast_tile, range_tile, mark_##name}; \
        const real *X = in[0], *Z = in[(inputs) > 1]; \
        int any = 0; \
        (void)Z; \
        for (int64_t i = 0; i < n; i++) \
            any |= (needs_range); \
        if (any) \
            blend_##t(&paths, n, in, out, params); \
        else \
            fast_tile(n, in, out, params); \
    }

/* A path of one result, from element i of X and Z; G is the last operand. */
#define PATH_TILE(name, real, inputs, value) \
    static void name(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params) \
    { \
        const real *X = in[0], *Z = in[(inputs) > 1], *G = in[(inputs)-1]; \
        real *Y = out[0]; \
        (void)Z, (void)G, (void)params; \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) Y[i] = (value); \
    }

/* The same where it calls the C library, or computes in long double. */
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
