/* copy_rows.h: moving rows of elements of one size, many at a time. Image rows are short: a call per row, or a loop
 * prepared for any length, costs more than the bytes. So the kind of row is decided once, and each kind has its own
 * loop.
 *
 * Alignment is never required, except for non-temporal stores, which check it per row. Nothing outside a row is read
 * or written. */
#ifndef TARN__CPU_COPY_ROWS_H
#define TARN__CPU_COPY_ROWS_H

#include <string.h>

#include "backends/cpu/common/nt_store.h"
#include "backends/cpu/common/vector_ext.h"
#include "backends/cpu/runtime/level.h"

#define INLINED_BYTES 512 /* longer rows are worth a call of memcpy() */

/* Equally spaced rows of equal length. */
typedef struct row_moves {
    char *to;
    const char *from;
    int64_t rows, n, size;          /* rows; elements per row; bytes per element */
    int64_t to_stride, from_stride; /* within a row, in elements */
    int64_t to_row, from_row;       /* from row to row, in bytes */
    bool nontemporal;               /* non-temporal stores where rows are aligned */
} row_moves;

/* Each kind stays a function of its own: inlined into one, their loops would run out of registers. They take the
 * struct by value, so that no store into a row can alias it. */
#define ROW_KIND __attribute__((noinline)) static void

/* Runs `run` with the unsigned type of the element size. */
#define BY_SIZE(size, run) \
    if ((size) == 4) { \
        run(uint32_t) \
    } else if ((size) == 2) { \
        run(uint16_t) \
    } else if ((size) == 8) { \
        run(uint64_t) \
    } else { \
        run(uint8_t) \
    }

/* ---- contiguous rows --------------------------------------------------------------------------------------------- */

/* One unaligned vector. */
#define MOVE_BYTES(vector, to, from) \
    do { \
        vector vec_; \
        memcpy(&vec_, from, sizeof(vec_)); \
        memcpy(to, &vec_, sizeof(vec_)); \
    } while (0)

/* At least one vector: whole vectors from the start, and one that ends with the row, overlapping its predecessor. */
#define COPY_BY(vector) \
    for (int64_t r = 0; r < m.rows; r++) { \
        char *to = m.to + r * m.to_row; \
        const char *from = m.from + r * m.from_row; \
        const int64_t last = bytes - (int64_t)sizeof(vector); \
        for (int64_t i = 0; i < last; i += (int64_t)sizeof(vector)) \
            MOVE_BYTES(vector, to + i, from + i); \
        MOVE_BYTES(vector, to + last, from + last); \
    }

#if defined(__aarch64__)
/* Whole vectors, and the remainder in 8, 4, 2 and 1 bytes: bytes written twice keep AArch64 from writing whole lines
 * without reading them first, and rows beyond the caches would take three times as long. */
ROW_KIND copy_vector_rows(row_moves m)
{
    const int64_t bytes = m.n * m.size, vector_bytes = bytes & ~INT64_C(15);
    for (int64_t r = 0; r < m.rows; r++) {
        char *to = m.to + r * m.to_row;
        const char *from = m.from + r * m.from_row;
        int64_t i = 0;
        for (; i < vector_bytes; i += 16)
            MOVE_BYTES(tarn__u32v, to + i, from + i);
#define PART(type) \
    if (bytes & (int64_t)sizeof(type)) { \
        MOVE_BYTES(type, to + i, from + i); \
        i += (int64_t)sizeof(type); \
    }
        PART(uint64_t) PART(uint32_t) PART(uint16_t) PART(uint8_t)
#undef PART
    }
}
#endif

/* By length: memcpy() or non-temporal stores for long rows, whole vectors, 16 bytes, 4 bytes, single bytes. */
ROW_KIND copy_dense_rows(row_moves m)
{
    const int64_t bytes = m.n * m.size;
    if (bytes > INLINED_BYTES || m.nontemporal) {
        for (int64_t r = 0; r < m.rows; r++) {
            char *to = m.to + r * m.to_row;
            if (m.nontemporal && ((uintptr_t)to & 63) == 0)
                tarn__nt_store(to, m.from + r * m.from_row, bytes);
            else
                memcpy(to, m.from + r * m.from_row, (size_t)bytes);
        }
#if defined(__aarch64__)
    } else if (bytes >= VECTOR_BYTES) {
        copy_vector_rows(m);
#else
    } else if (bytes >= VECTOR_BYTES) {
        COPY_BY(tarn__u32v)
#endif
    } else if (bytes >= 16) {
        typedef uint64_t two_words __attribute__((vector_size(16)));
        COPY_BY(two_words)
    } else if (bytes >= 4) {
        COPY_BY(uint32_t)
    } else {
        COPY_BY(uint8_t)
    }
}

/* ---- broadcast of one element ------------------------------------------------------------------------------------ */

/* A 64-byte line of copies, written non-temporally after an aligned start; else a plain loop. The line is built once
 * per row. */
static void repeat_element(char *to, const char *from, int64_t n, int64_t size, bool nontemporal)
{
    _Alignas(64) char line[64];
#define REPEAT(type) \
    for (size_t i = 0; i < 64 / sizeof(type); i++) \
        ((type *)(void *)line)[i] = *(const type *)(const void *)from; \
    if (!nontemporal) \
        for (int64_t i = 0; i < n; i++) \
            ((type *)(void *)to)[i] = ((type *)(void *)line)[0];
    BY_SIZE(size, REPEAT)
#undef REPEAT
    if (!nontemporal)
        return;
    /* Bytes up to the first aligned line are copied from the same pattern: a 64-byte line of any element size
     * repeats. */
    int64_t bytes = n * size, head = (int64_t)(-(uintptr_t)to & 63);
    head = head < bytes ? head : bytes;
    memcpy(to, line, (size_t)head);
    tarn__nt_fill(to + head, line, bytes - head);
}

/* ---- 4-byte elements with stride 2 or reversed ------------------------------------------------------------------- */

#if defined(__clang__)
#define CHOOSE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define CHOOSE(a, b, ...) __builtin_shuffle(a, b, (tarn__u32v){__VA_ARGS__})
#endif

/* The even elements of a, then the odd ones of b; and a reversed. */
#if VECTOR_BYTES == 64
#define EVEN_AND_ODD(a, b) CHOOSE(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31)
#define REVERSED(a) CHOOSE(a, a, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#elif VECTOR_BYTES == 32
#define EVEN_AND_ODD(a, b) CHOOSE(a, b, 0, 2, 4, 6, 9, 11, 13, 15)
#define REVERSED(a) CHOOSE(a, a, 7, 6, 5, 4, 3, 2, 1, 0)
#else
#define EVEN_AND_ODD(a, b) CHOOSE(a, b, 0, 2, 5, 7)
#define REVERSED(a) CHOOSE(a, a, 3, 2, 1, 0)
#endif

/* 4-byte elements per vector. */
enum { WORDS = VECTOR_BYTES / 4 };

/* The second vector begins one element early: the element after the last one of a row may not exist. */
static inline void pick_2(uint32_t *to, const uint32_t *from, int64_t i)
{
    tarn__u32v a, b, y;
    memcpy(&a, from + 2 * i, sizeof(a));
    memcpy(&b, from + 2 * i + WORDS - 1, sizeof(b));
    y = EVEN_AND_ODD(a, b);
    memcpy(to + i, &y, sizeof(y));
}

/* One vector of `to` from `from` reversed: element i of `to` is from[-i]. Loads the vector that ends at from[-i]:
 * WORDS - 1 elements before it. */
static inline void pick_back(uint32_t *to, const uint32_t *from, int64_t i)
{
    tarn__u32v a, y;
    memcpy(&a, from - i - (WORDS - 1), sizeof(a));
    y = REVERSED(a);
    memcpy(to + i, &y, sizeof(y));
}

/* Vectors from the start, and one that ends with the row, overlapping its predecessor. Rows of 4-byte elements with
 * a constant source stride. */
#define PICK_ROWS(name, from_by) \
    ROW_KIND name##_rows(row_moves m) \
    { \
        for (int64_t r = 0; r < m.rows; r++) { \
            uint32_t *to = (uint32_t *)(void *)(m.to + r * m.to_row); \
            const uint32_t *from = (const uint32_t *)(const void *)(m.from + r * m.from_row); \
            int64_t i = 0; \
            for (; i + WORDS <= m.n; i += WORDS) \
                name(to, from, i); \
            if (i < m.n && m.n >= WORDS) \
                name(to, from, m.n - WORDS); \
            else \
                for (; i < m.n; i++) \
                    to[i] = from[i * (from_by)]; \
        } \
    }
PICK_ROWS(pick_2, 2)
PICK_ROWS(pick_back, -1)

/* ---- any rows ---------------------------------------------------------------------------------------------------- */

/* Constant strides become vector code. Others stay scalar loops: gathers and scatters are slower. */
ROW_KIND move_strided_rows(row_moves m)
{
#define MOVE_BY(type, from_by) \
    for (int64_t r = 0; r < m.rows; r++) { \
        type *restrict to = (type *)(void *)(m.to + r * m.to_row); \
        const type *restrict from = (const type *)(const void *)(m.from + r * m.from_row); \
        for (int64_t i = 0; i < m.n; i++) \
            to[i] = from[i * (from_by)]; \
    }
#define MOVE(type) \
    if (m.to_stride == 1 && m.from_stride == 2) { \
        MOVE_BY(type, 2) \
    } else if (m.to_stride == 1 && m.from_stride == -1) { \
        MOVE_BY(type, -1) \
    } else { \
        for (int64_t r = 0; r < m.rows; r++) \
            for (int64_t i = 0; i < m.n; i++) \
                ((type *)(void *)(m.to + r * m.to_row))[i * m.to_stride] = \
                    ((const type *)(const void *)(m.from + r * m.from_row))[i * m.from_stride]; \
    }
    BY_SIZE(m.size, MOVE)
#undef MOVE
#undef MOVE_BY
}

/* Dispatch by strides; everything without a special form takes the strided loop. */
static void move_rows(const row_moves *m)
{
    if (m->to_stride == 1 && m->from_stride == 1)
        copy_dense_rows(*m);
    else if (m->to_stride == 1 && m->from_stride == 0)
        for (int64_t r = 0; r < m->rows; r++)
            repeat_element(m->to + r * m->to_row, m->from + r * m->from_row, m->n, m->size, m->nontemporal);
    else if (m->to_stride == 1 && m->from_stride == 2 && m->size == 4)
        pick_2_rows(*m);
    else if (m->to_stride == 1 && m->from_stride == -1 && m->size == 4)
        pick_back_rows(*m);
    else
        move_strided_rows(*m);
}

#endif
