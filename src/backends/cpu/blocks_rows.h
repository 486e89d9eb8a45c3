/* blocks_rows.h: rows of blocks, unpacked and multiplied, of one engine. Included after the engine's header, with NAMED(x) and ENGINE as there.
 *
 * A row of few elements more than whole chunks ends in a chunk of its own, filled up with blocks of scale 0. */

/* Walks over the chunks of a row of `blocks`: `work` sees each as `at`. */
#define FOR_CHUNKS(blocks, in, bytes, at, index, work)                                                                                    \
    do {                                                                                                                                  \
        int64_t whole_ = (in) / CHUNK, index = 0;                                                                                         \
        const char *at = (blocks);                                                                                                        \
        for (; index < whole_; index++, at += (bytes)) {                                                                                  \
            for (int line_ = 0; line_ < (int)(bytes); line_ += 64)                                                                        \
                __builtin_prefetch(at + AHEAD + line_);                                                                                   \
            work;                                                                                                                         \
        }                                                                                                                                 \
        if ((in) % CHUNK != 0) {                                                                                                          \
            _Alignas(64) char last_[BLOCKS_OF_32 * sizeof(tarn__q8_0)] = {0};                                                             \
            memcpy(last_, at, (size_t)((in) % CHUNK * (bytes) / CHUNK));                                                                  \
            at = last_;                                                                                                                   \
            work;                                                                                                                         \
        }                                                                                                                                 \
    } while (0)

#define ROW_OF(type, bytes, has_least)                                                                                                    \
    static ENGINE float NAMED(multiply_##type)(const char *blocks, int64_t in, const x_chunk *x)                                          \
    {                                                                                                                                     \
        NAMED(sums) sums = {0};                                                                                                           \
        NAMED(chunk) w;                                                                                                                   \
        float result = 0;                                                                                                                 \
        FOR_CHUNKS(blocks, in, bytes, at, i, {                                                                                            \
            NAMED(unpack_##type)(at, &w);                                                                                                 \
            NAMED(add)(&sums, &w, &x[i], has_least);                                                                                      \
            if (i % STRETCH == STRETCH - 1) {                                                                                             \
                result += NAMED(total)(&sums);                                                                                            \
                sums = (NAMED(sums)){0};                                                                                                  \
            }                                                                                                                             \
        });                                                                                                                               \
        return result + NAMED(total)(&sums);                                                                                              \
    }                                                                                                                                     \
                                                                                                                                          \
    static ENGINE void NAMED(open_##type)(const char *blocks, int64_t in, w_chunk *to)                                                    \
    {                                                                                                                                     \
        NAMED(chunk) w;                                                                                                                   \
        FOR_CHUNKS(blocks, in, bytes, at, i, {                                                                                            \
            NAMED(unpack_##type)(at, &w);                                                                                                 \
            NAMED(save)(&w, &to[i]);                                                                                                      \
        });                                                                                                                               \
    }

ROW_OF(q8_0, BLOCKS_OF_32 * (int64_t)sizeof(tarn__q8_0), false)
ROW_OF(q4_0, BLOCKS_OF_32 * (int64_t)sizeof(tarn__q4_0), false)
ROW_OF(q4_k, (int64_t)sizeof(tarn__q4_k), true)
ROW_OF(q6_k, (int64_t)sizeof(tarn__q6_k), false)

/* Adds `rows` rows of x, `step` chunks apart, by a stretch of one that was unpacked. */
static inline ENGINE void NAMED(multiply_rows)(const w_chunk *w, int64_t chunks, const x_chunk *x, int64_t step, int rows, float *to)
{
    NAMED(sums) sums[ROWS_AT_ONCE] = {0};
    NAMED(chunk) held;
    for (int64_t i = 0; i < chunks; i++) {
        NAMED(load)(&w[i], &held);
        for (int r = 0; r < rows; r++)
            NAMED(add)(&sums[r], &held, &x[r * step + i], true);
    }
    for (int r = 0; r < rows; r++)
        to[r] += NAMED(total)(&sums[r]);
}

static ENGINE void NAMED(multiply_opened)(const w_chunk *w, int64_t chunks, const x_chunk *x, int64_t step, int64_t rows, float *to)
{
    if (rows == ROWS_AT_ONCE)
        NAMED(multiply_rows)(w, chunks, x, step, ROWS_AT_ONCE, to);
    else
        for (int64_t r = 0; r < rows; r++)
            NAMED(multiply_rows)(w, chunks, x + r * step, step, 1, to + r);
}

static const engine NAMED(engine) = {
    .multiply = {NAMED(multiply_q8_0), NAMED(multiply_q4_0), NAMED(multiply_q4_k), NAMED(multiply_q6_k)},
    .open = {NAMED(open_q8_0), NAMED(open_q4_0), NAMED(open_q4_k), NAMED(open_q6_k)},
    .multiply_opened = NAMED(multiply_opened),
    .unsigned_only = UNSIGNED_ONLY,
};

#undef FOR_CHUNKS
#undef ROW_OF
