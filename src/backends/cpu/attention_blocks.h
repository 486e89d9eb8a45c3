/* attention_blocks.h: what attention does to a piece of work, for one compute type: attention.c includes it with T, EXP, COMPUTE, NATIVE, SQUARE and
 * NAMED(x). */

#include "backends/cpu/attention_parts.h"

/* ---- a piece's memory ------------------------------------------------------------------------------------------------------ */

typedef struct NAMED(room) {
    T *keys_turned, *values_turned; /* (keys / NR, D, NR): the operands of q · kᵀ and g · vᵀ */
    T *keys, *values;               /* (keys, wide) */
    T *gk, *gv;                     /* (keys, wide) and a tile's rows: sums */
    T *decoded;                     /* (NR, D): a panel of keys that are codes */
    T *q, *g, *sums;                /* (rows, wide) */
    T *weights, *slopes;            /* (rows, line) */
    float *factor;                  /* (chunk): dropout's, of one row */
    double *most, *total, *dot;     /* (rows) */
} NAMED(room);

static NAMED(room) NAMED(furnish)(const job *j, carver *c)
{
    NAMED(room) r = {0};
    int64_t rows = j->row_block, packed = j->thin ? 1 : j->keys; /* few rows need room for one key */
    int64_t turned = rounded_up(packed, NR) * j->depth, plain = packed * j->wide, lines = rows * j->wide;
    r.keys_turned = carve(c, sizeof(T) * (size_t)turned);
    r.values = carve(c, sizeof(T) * (size_t)plain);
    if (j->backward) {
        r.values_turned = carve(c, sizeof(T) * (size_t)turned);
        r.keys = carve(c, sizeof(T) * (size_t)plain);
        r.gk = carve(c, j->parts > 1 ? 0 : sizeof(T) * (size_t)(plain + TILE_ROWS * j->wide));
        r.gv = carve(c, j->parts > 1 ? 0 : sizeof(T) * (size_t)(plain + TILE_ROWS * j->wide));
        r.g = carve(c, sizeof(T) * (size_t)lines);
        r.slopes = carve(c, sizeof(T) * (size_t)(rows * j->line));
        r.dot = carve(c, sizeof(double) * (size_t)rows);
    }
    r.decoded = carve(c, j->k.scale ? sizeof(T) * (size_t)(NR * j->depth) : 0);
    r.q = carve(c, sizeof(T) * (size_t)lines);
    r.sums = carve(c, sizeof(T) * (size_t)lines);
    r.weights = carve(c, sizeof(T) * (size_t)(rows * j->line));
    r.factor = carve(c, sizeof(float) * (size_t)j->line);
    r.most = carve(c, sizeof(double) * (size_t)rows);
    r.total = carve(c, sizeof(double) * (size_t)rows);
    return r;
}

static size_t NAMED(slot_bytes)(const job *j)
{
    carver c = {0};
    NAMED(furnish)(j, &c);
    return c.used;
}

/* One row of a tensor; codes become numbers. */
static void NAMED(load_row)(const job *j, const cube *from, int64_t batch, int64_t head, int64_t row, T *to)
{
    int64_t n = j->depth;
    const char *at = row_of(from, batch, head, row);
    if (!from->scale) {
        tarn__load[from->dtype][COMPUTE](at, from->stride[3], to, n);
        return;
    }
    const char *scales = scales_of(from, batch, head, row);
    uint8_t held[TARN__CODES_GROUP];
    for (int64_t begin = 0; begin < j->depth; begin += TARN__CODES_GROUP, to += TARN__CODES_GROUP) {
        n = least(j->depth - begin, TARN__CODES_GROUP);
        T scale = (T)scale_of(from, scales, begin / TARN__CODES_GROUP);
        const uint8_t *code = codes_of(at + begin * from->stride[3], from->stride[3], held, n);
        EACH to[i] = (T)((int)code[i] - TARN__CODES_ZERO) * scale;
    }
}

/* n rows of a tensor, times a factor, each filled up with zeros. */
static void NAMED(load_rows)(const job *j, const cube *from, int64_t batch, int64_t head, int64_t first, int64_t rows, T factor, T *to)
{
    int64_t n = j->depth;
    for (int64_t r = 0; r < rows; r++, to += j->wide) {
        NAMED(load_row)(j, from, batch, head, first + r, to);
        if (factor != 1)
            EACH to[i] *= factor;
        memset(to + n, 0, sizeof(T) * (size_t)(j->wide - n));
    }
}

static void NAMED(turn_rows)(const job *j, const cube *from, int64_t batch, int64_t head, int64_t keys, T *to)
{
    for (int64_t s = 0; s < keys; s += NR)
        NAMED(interleave)(row_of(from, batch, head, s), from->dtype, from->stride[2], from->stride[3], (int)least(keys - s, NR), NR, j->depth,
                          to + s * j->depth);
}

/* The same of codes: a panel at a time becomes numbers first. */
static void NAMED(turn_codes)(const job *j, const cube *from, int64_t batch, int64_t head, int64_t keys, T *decoded, T *to)
{
    for (int64_t s = 0; s < keys; s += NR) {
        int width = (int)least(keys - s, NR);
        for (int i = 0; i < width; i++)
            NAMED(load_row)(j, from, batch, head, s + i, decoded + i * j->depth);
        NAMED(interleave)((const char *)decoded, NATIVE, j->depth, 1, width, NR, j->depth, to + s * j->depth);
    }
}

/* Keys and values of a piece, as far as any of its rows attends. */
static void NAMED(pack)(const job *j, int64_t unit, int64_t keys, const NAMED(room) *r)
{
    int64_t batch = unit / j->kv_heads, head = unit % j->kv_heads;
    if (j->k.scale)
        NAMED(turn_codes)(j, &j->k, batch, head, keys, r->decoded, r->keys_turned);
    else
        NAMED(turn_rows)(j, &j->k, batch, head, keys, r->keys_turned);
    NAMED(load_rows)(j, &j->v, batch, head, 0, keys, 1, r->values);
    if (j->backward) {
        NAMED(turn_rows)(j, &j->v, batch, head, keys, r->values_turned);
        NAMED(load_rows)(j, &j->k, batch, head, 0, keys, 1, r->keys);
    }
}

static int64_t NAMED(keys_of_piece)(const job *j, int64_t unit, int64_t begin, int64_t end)
{
    int64_t most = 0;
    for (int64_t at = begin; at < end; at++) {
        int64_t keys = block_of(j, unit, at).keys;
        most = keys > most ? keys : most;
    }
    return most;
}

/* A block's rows times n keys (or values) from `begin`, to (rows, line). */
static void NAMED(scores)(const job *j, int64_t rows, const T *left, const T *turned, int64_t begin, int64_t n, T *to)
{
    NAMED(lines) a = {left, j->wide, 1};
    NAMED(panels) b = {turned + begin * j->depth, j->depth * NR, NR};
    NAMED(multiply)(rows, n, j->depth, a, b, to, j->line, false);
}

/* What lies behind the last of n weights, up to the end of any tile, is 0. */
static void NAMED(clear_tail)(const job *j, T *line, int64_t n, int64_t chunk)
{
    int64_t end = least(rounded_up(chunk, NR) + NR, j->line);
    memset(line + n, 0, sizeof(T) * (size_t)(end - n));
}

/* Fills the last of the vectors that hold n scores, whose number it gives: rows of every length are worked on in whole vectors. */
static int64_t NAMED(fill_up)(T *line, int64_t n, T with)
{
    int64_t whole = rounded_up(n, LANES);
    for (; n < whole; n++)
        line[n] = with;
    return whole;
}

/* The same for the scores before the first that counts. */
static void NAMED(fill_before)(T *line, int64_t n, T with)
{
    EACH line[i] = with;
}

/* ---- forward --------------------------------------------------------------------------------------------------------------- */

/* The weights of row i for a chunk, relative to the largest so far; where that has risen, what was summed before is scaled down. */
static void NAMED(weigh)(const job *j, const block *b, int64_t i, int64_t begin, int64_t chunk, const NAMED(room) *r)
{
    T *line = r->weights + i * j->line;
    reach keys = reach_of(j, b, i, begin, chunk);
    int64_t n = keys.end;
    if (n == 0) {
        NAMED(clear_tail)(j, line, 0, chunk);
        return;
    }
    int64_t whole = NAMED(fill_up)(line, n, line[keys.first]); /* nothing that is larger, or whose exponential is slow to make */
    NAMED(fill_before)(line, keys.first, line[keys.first]);
    double most = (double)NAMED(most_of)(line, whole), before = r->most[i];
    most = before > most ? before : most;
    if (begin > b->from && most > before) {
        double factor = before == -(double)INFINITY ? 0 : exp(before - most);
        r->total[i] *= factor;
        NAMED(scale)(r->sums + i * j->wide, (T)factor, j->wide);
    }
    r->most[i] = most;
    NAMED(exponents)(line, most == -(double)INFINITY ? 0 : (T)most, whole);
    NAMED(fill_before)(line, keys.first, 0);
    NAMED(clear_tail)(j, line, n, chunk);
    r->total[i] += NAMED(sum_of)(line, whole);
    if (j->random) {
        draw_factors(j, b, i, begin, n, r->factor);
        NAMED(drop)(line, r->factor, n);
    }
}

/* The result of row i, and its logarithm. */
static void NAMED(store_row)(const job *j, const block *b, int64_t i, const NAMED(room) *r)
{
    T *line = r->sums + i * j->wide;
    bool none = r->total[i] == 0; /* no keys, or scores that are all -infinity: exponentials of others are at least one 1 */
    if (attends_to_none(j, b, i))
        memset(line, 0, sizeof(T) * (size_t)j->depth);
    else
        NAMED(scale)(line, none ? 0 : (T)(1 / r->total[i]), j->depth);
    tarn__store[j->y.dtype][COMPUTE](line, row_of(&j->y, b->batch, b->head, b->first + i), j->y.stride[3], j->depth);
    if (!j->log_sum.base)
        return;
    double log_sum = none ? -(double)INFINITY : r->most[i] + log(r->total[i]);
    tarn__store[j->log_sum.dtype][COMPUTE_F64](&log_sum, row_of(&j->log_sum, b->batch, b->head, b->first + i), 1, 1);
}

/* A row of keys or values: where it lies, or in `buffer`. */
static const T *NAMED(row_as_is)(const job *j, const cube *from, const block *b, int64_t key, T *buffer)
{
    int64_t head = b->head / j->group;
    if (from->dtype == NATIVE && from->stride[3] == 1)
        return (const T *)(const void *)row_of(from, b->batch, head, key);
    NAMED(load_row)(j, from, b->batch, head, key, buffer);
    return buffer;
}

static T NAMED(thin_dot)(const T *x, const T *y, int64_t n)
{
    int64_t whole = n / LANES * LANES;
    T sum = (T)NAMED(dot_of)(x, y, whole);
    for (int64_t i = whole; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* A few rows, as when a text is being written: each key and each value is read once, where it lies. */
static void NAMED(thin_scores)(const job *j, const block *b, int64_t begin, int64_t n, const NAMED(room) *r)
{
    for (int64_t s = 0; s < n; s++) {
        const T *key = NAMED(row_as_is)(j, &j->k, b, begin + s, r->keys_turned);
        for (int64_t i = 0; i < b->rows; i++)
            r->weights[i * j->line + s] = NAMED(thin_dot)(r->q + i * j->wide, key, j->depth);
    }
}

static void NAMED(thin_sums)(const job *j, const block *b, int64_t begin, int64_t keys, const NAMED(room) *r)
{
    int64_t n = j->depth;
    if (begin == b->from)
        memset(r->sums, 0, sizeof(T) * (size_t)(b->rows * j->wide));
    for (int64_t s = 0; s < keys; s++) {
        const T *value = NAMED(row_as_is)(j, &j->v, b, begin + s, r->values);
        for (int64_t row = 0; row < b->rows; row++) {
            T *sum = r->sums + row * j->wide, weight = r->weights[row * j->line + s];
            EACH sum[i] += weight * value[i];
        }
    }
}

static void NAMED(forward_block)(const job *j, const block *b, const NAMED(room) *r)
{
    NAMED(load_rows)(j, &j->q, b->batch, b->head, b->first, b->rows, (T)j->scale, r->q);
    for (int64_t i = 0; i < b->rows; i++)
        r->most[i] = -(double)INFINITY, r->total[i] = 0;
    for (int64_t begin = b->from; begin < b->keys; begin += j->chunk) {
        int64_t n = least(b->keys - begin, j->chunk);
        if (j->thin)
            NAMED(thin_scores)(j, b, begin, n, r);
        else
            NAMED(scores)(j, b->rows, r->q, r->keys_turned, begin, n, r->weights);
        for (int64_t i = 0; i < b->rows; i++)
            NAMED(weigh)(j, b, i, begin, n, r);
        if (j->thin) {
            NAMED(thin_sums)(j, b, begin, n, r);
            continue;
        }
        NAMED(lines) weights = {r->weights, j->line, 1};
        NAMED(panels) values = {r->values + begin * j->wide, NR, j->wide};
        NAMED(multiply)(b->rows, j->wide, n, weights, values, r->sums, j->wide, begin > b->from);
    }
    for (int64_t i = 0; i < b->rows; i++)
        NAMED(store_row)(j, b, i, r);
}

static void NAMED(forward_pieces)(int64_t piece, int64_t last, void *ctx)
{
    const job *j = ctx;
    int which;
    carver c = {.memory = slot_take(&j->slots, &which, NULL)};
    NAMED(room) r = NAMED(furnish)(j, &c);
    for (; piece < last; piece++) {
        int64_t unit = piece / j->parts, begin, end;
        blocks_of(j, piece, &begin, &end);
        if (!j->thin)
            NAMED(pack)(j, unit, NAMED(keys_of_piece)(j, unit, begin, end), &r);
        for (; begin < end; begin++) {
            block b = block_of(j, unit, begin);
            NAMED(forward_block)(j, &b, &r);
        }
    }
    slot_give(&j->slots, which);
}

/* ---- backward -------------------------------------------------------------------------------------------------------------- */

/* For the keys of a chunk from `begin`: exponentials of the scores to `weights`, g · vᵀ to `slopes`; the first time their sum, and that of their products,
 * are added up. */
static void NAMED(remake)(const job *j, const block *b, int64_t begin, int64_t chunk, const NAMED(room) *r, bool first)
{
    NAMED(scores)(j, b->rows, r->q, r->keys_turned, begin, chunk, r->weights);
    NAMED(scores)(j, b->rows, r->g, r->values_turned, begin, chunk, r->slopes);
    for (int64_t i = 0; i < b->rows; i++) {
        T *weight = r->weights + i * j->line, *slope = r->slopes + i * j->line;
        reach keys = reach_of(j, b, i, begin, chunk);
        int64_t n = keys.end, whole = NAMED(fill_up)(weight, n, weight[keys.first]);
        NAMED(fill_before)(weight, keys.first, weight[keys.first]);
        NAMED(exponents)(weight, (T)r->most[i], whole);
        NAMED(fill_up)(weight, n, 0);
        NAMED(fill_up)(slope, n, 0);
        NAMED(fill_before)(weight, keys.first, 0);
        NAMED(fill_before)(slope, keys.first, 0);
        if (j->random) {
            draw_factors(j, b, i, begin, n, r->factor);
            NAMED(drop)(slope, r->factor, n);
        }
        r->total[i] += first ? NAMED(sum_of)(weight, whole) : 0;
        r->dot[i] += first ? NAMED(dot_of)(weight, slope, whole) : 0;
    }
}

/* The weights, and in place of g · vᵀ the gradients of the scores: p · (g · vᵀ - Σ p g · vᵀ). */
static void NAMED(finish_row)(const job *j, const block *b, int64_t row, int64_t begin, int64_t chunk, const NAMED(room) *r)
{
    T *weight = r->weights + row * j->line, *slope = r->slopes + row * j->line;
    int64_t keys = reach_of(j, b, row, begin, chunk).end, n = rounded_up(keys, LANES);
    bool none = r->total[row] == 0;
    T factor = none ? 0 : (T)(1 / r->total[row]), mean = none ? 0 : (T)(r->dot[row] / r->total[row]);
    EACH {
        weight[i] *= factor;
        slope[i] = weight[i] * (slope[i] - mean);
    }
    NAMED(clear_tail)(j, weight, keys, chunk);
    NAMED(clear_tail)(j, slope, keys, chunk);
    if (j->random && j->gv.base) {
        draw_factors(j, b, row, begin, keys, r->factor);
        NAMED(drop)(weight, r->factor, keys);
    }
}

/* gv += pᵀ · g, gk += dsᵀ · q, gq += ds · k, for the rows of a block and n keys from `begin`. */
static void NAMED(finish)(const job *j, const block *b, int64_t begin, int64_t n, const NAMED(room) *r)
{
    for (int64_t i = 0; i < b->rows; i++)
        NAMED(finish_row)(j, b, i, begin, n, r);
    NAMED(lines) weights = {r->weights, 1, j->line}, slopes = {r->slopes, 1, j->line}, rows = {r->slopes, j->line, 1};
    NAMED(panels) g = {r->g, NR, j->wide}, q = {r->q, NR, j->wide}, keys = {r->keys + begin * j->wide, NR, j->wide};
    if (j->gv.base)
        NAMED(multiply)(n, j->wide, b->rows, weights, g, r->gv + begin * j->wide, j->wide, true);
    if (j->gk.base)
        NAMED(multiply)(n, j->wide, b->rows, slopes, q, r->gk + begin * j->wide, j->wide, true);
    if (j->gq.base)
        NAMED(multiply)(b->rows, j->wide, n, rows, keys, r->sums, j->wide, begin > b->from);
}

static void NAMED(begin_block)(const job *j, const block *b, const NAMED(room) *r)
{
    NAMED(load_rows)(j, &j->q, b->batch, b->head, b->first, b->rows, (T)j->scale, r->q);
    NAMED(load_rows)(j, &j->g, b->batch, b->head, b->first, b->rows, 1, r->g);
    for (int64_t i = 0; i < b->rows; i++) {
        tarn__load[j->log_sum.dtype][COMPUTE_F64](row_of(&j->log_sum, b->batch, b->head, b->first + i), 1, &r->most[i], 1);
        r->most[i] = r->most[i] == -(double)INFINITY ? 0 : r->most[i]; /* of scores that are all -infinity: weights of 0, not NaN */
        r->total[i] = r->dot[i] = 0;
    }
}

static void NAMED(backward_block)(const job *j, const block *b, const NAMED(room) *r)
{
    NAMED(begin_block)(j, b, r);
    for (int64_t begin = b->from; begin < b->keys; begin += j->chunk)
        NAMED(remake)(j, b, begin, least(b->keys - begin, j->chunk), r, true);
    bool several = b->keys - b->from > j->chunk; /* then the weights of the first chunk are gone */
    for (int64_t begin = b->from; begin < b->keys; begin += j->chunk) {
        int64_t n = least(b->keys - begin, j->chunk);
        if (several)
            NAMED(remake)(j, b, begin, n, r, false);
        NAMED(finish)(j, b, begin, n, r);
    }
    for (int64_t i = 0; j->gq.base && i < b->rows; i++) {
        T *line = r->sums + i * j->wide;
        if (b->from >= b->keys)
            memset(line, 0, sizeof(T) * (size_t)j->depth);
        NAMED(scale)(line, (T)j->scale, j->depth);
        tarn__store[j->gq.dtype][COMPUTE](line, row_of(&j->gq, b->batch, b->head, b->first + i), j->gq.stride[3], j->depth);
    }
}

/* The sums of gk and gv of a piece: its own, or those that combine() adds up. */
static void NAMED(clear_sums)(const job *j, int64_t piece, NAMED(room) *r)
{
    int64_t count = (j->keys + TILE_ROWS) * j->wide;
    if (j->parts > 1) {
        r->gk = (T *)(void *)j->partial + 2 * piece * count;
        r->gv = r->gk + count;
    }
    memset(r->gk, 0, sizeof(T) * (size_t)count);
    memset(r->gv, 0, sizeof(T) * (size_t)count);
}

/* Row `key` of gk or gv of a unit. */
static void NAMED(store_sum)(const job *j, const cube *to, int64_t unit, int64_t key, const T *line)
{
    if (to->base)
        tarn__store[to->dtype][COMPUTE](line, row_of(to, unit / j->kv_heads, unit % j->kv_heads, key), to->stride[3], j->depth);
}

static void NAMED(backward_pieces)(int64_t piece, int64_t last, void *ctx)
{
    const job *j = ctx;
    int which;
    carver c = {.memory = slot_take(&j->slots, &which, NULL)};
    NAMED(room) r = NAMED(furnish)(j, &c);
    for (; piece < last; piece++) {
        int64_t unit = piece / j->parts, begin, end;
        blocks_of(j, piece, &begin, &end);
        NAMED(pack)(j, unit, NAMED(keys_of_piece)(j, unit, begin, end), &r);
        NAMED(clear_sums)(j, piece, &r);
        for (; begin < end; begin++) {
            block b = block_of(j, unit, begin);
            NAMED(backward_block)(j, &b, &r);
        }
        for (int64_t key = 0; j->parts == 1 && key < j->keys; key++) {
            NAMED(store_sum)(j, &j->gk, unit, key, r.gk + key * j->wide);
            NAMED(store_sum)(j, &j->gv, unit, key, r.gv + key * j->wide);
        }
    }
    slot_give(&j->slots, which);
}

/* Adds up the parts of some keys, in order, in the first part's place. */
static void NAMED(combine)(int64_t at, int64_t last, void *ctx)
{
    const job *j = ctx;
    int64_t count = (j->keys + TILE_ROWS) * j->wide, n = j->wide;
    for (; at < last; at++) {
        int64_t unit = at / j->keys, key = at % j->keys;
        for (int which = 0; which < 2; which++) {
            T *sum = (T *)(void *)j->partial + (2 * unit * j->parts + which) * count + key * n;
            for (int64_t part = 1; part < j->parts; part++) {
                const T *more = sum + 2 * part * count;
                EACH sum[i] += more[i];
            }
            NAMED(store_sum)(j, which ? &j->gv : &j->gk, unit, key, sum);
        }
    }
}

#undef LANES
#undef NR
#undef SIDE_BY_SIDE
#undef T
#undef EXP
#undef COMPUTE
#undef NATIVE
#undef SQUARE
#undef NAMED
