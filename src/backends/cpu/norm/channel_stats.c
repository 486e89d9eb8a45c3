/* channel_stats.c: the engine of channel_stats.h: where elements lie, and passes over chunks of them. */
#include "backends/cpu/norm/channel_stats.h"

#include "backends/cpu/common/rows.h"

#define TILE 256           /* elements of a row that are worked on at once by columns */
#define GROUP 16           /* rows of them */
#define CHUNK (16 * BLOCK) /* elements of a chunk, at least */
#define MOST_CHUNKS 256    /* by columns */

enum {
    X = TARN__CHANNEL_X,
    TO = TARN__CHANNEL_OUT,
    G = TARN__CHANNEL_G,
    BESIDE = TARN__CHANNEL_RELU,
    PASSED = TARN__CHANNEL_RELU_GRAD
};

/* Blocks of one type; see channel_stats.inc. */
typedef struct blocks {
    void (*row_moments)(const void *x, int64_t n, double *mean, double *squares);
    void (*row_normalise)(const void *x, void *y, int64_t n, double mean, double scale, double bias);
    void (*row_sums)(const void *x, const void *g, int64_t n, double mean, double rstd, double *sums);
    void (*row_grad)(const void *x, const void *g, void *gx, int64_t n, const double *numbers);
    void (*row_scale)(const void *g, void *gx, int64_t n, double scale);
    void (*fetch_tile)(void *tile, const tarn__channel_stats *numbers, int64_t at, int64_t n, int64_t fold);
    void (*column_moments)(const void *const *row, int rows, int64_t n, double *mean, double *squares);
    void (*column_normalise)(const void *x, void *y, int64_t n, const void *tile);
    void (*column_sums)(const void *const *x, const void *const *g, int rows, int64_t n, const void *tile, double *sum,
                        double *product);
    void (*column_grad)(const void *x, const void *g, void *gx, int64_t n, const void *tile);
    void (*column_scale)(const void *g, void *gx, int64_t n, const void *tile);
    void (*add_and_cut)(void *y, const void *beside, int64_t n);
    void (*let_through)(const void *y, const void *g, void *up, int64_t n, double least);
    void (*row_let_through)(const void *x, const void *g, void *up, int64_t n, double mean, double scale, double bias,
                            double least);
} blocks;

#define EACH TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)

#define T float
#define NAMED(x) x##_f32
#include "backends/cpu/norm/channel_stats.inc"

#define T double
#define NAMED(x) x##_f64
#include "backends/cpu/norm/channel_stats.inc"

/* ---- where elements lie ------------------------------------------------------------------------------------------ */

static int64_t distance(int64_t stride)
{
    return stride < 0 ? -stride : stride;
}

/* The stride of the axis that is taken in blocks. */
static int64_t along(const tarn__channel_plan *c, int k)
{
    return c->by_rows ? c->nest.stride[k][c->nest.rank - 1] : c->view[k]->stride[1];
}

/* The address of position `at` (an element of the nest) of a channel. */
static char *address(const tarn__channel_plan *c, int k, int64_t batch, int64_t channel, int64_t at)
{
    const tarn__view *view = c->view[k];
    int64_t offset = channel * view->stride[1] + batch * view->stride[0];
    if (c->nest.rank == 1) {
        offset += at * c->nest.stride[k][0];
        at = 0;
    }
    for (int i = c->nest.rank - 1; i >= 0; i--) {
        offset += at % c->nest.shape[i] * c->nest.stride[k][i];
        at /= c->nest.shape[i];
    }
    return (char *)tarn__view_at(view) + offset * (int64_t)tarn__dtype_bytes(view->dtype);
}

static bool lies_ready(const tarn__channel_plan *c, int k)
{
    return along(c, k) == 1 && c->view[k]->dtype == (c->compute == COMPUTE_F64 ? TARN_F64 : TARN_F32);
}

/* n elements in the type computed in: where they lie, or in `buffer`. */
static const void *bring(const tarn__channel_plan *c, int k, const char *from, int64_t n, void *buffer)
{
    if (lies_ready(c, k))
        return from;
    tarn__load[c->view[k]->dtype][c->compute](from, along(c, k), buffer, n);
    return buffer;
}

static void take_away(const tarn__channel_plan *c, int k, const void *made, char *to, int64_t n)
{
    if (made != to)
        tarn__store[c->view[k]->dtype][c->compute](made, to, along(c, k), n);
}

static const blocks *blocks_of(const tarn__channel_plan *c)
{
    return c->compute == COMPUTE_F64 ? &blocks_f64 : &blocks_f32;
}

/* How many positions make a row by columns: those of few channels lie one behind the other in memory without gaps. */
static int64_t choose_fold(const tarn__channel_plan *c)
{
    if (c->by_rows || c->nest.rank != 1 || c->channels > TILE / 2)
        return 1;
    for (int k = 0; k < TARN__CHANNEL_OPERANDS; k++)
        if (c->view[k] && (c->view[k]->stride[1] != 1 || c->nest.stride[k][0] != c->channels))
            return 1;
    return TILE / c->channels;
}

/* Elements of a chunk by rows of `length`. Rows as chunks lie one behind the other in memory, channel after channel;
 * AArch64 gains by that. */
static int64_t rows_chunk(int64_t length)
{
#if defined(__aarch64__)
    if (length >= BLOCK / 4 && length < CHUNK)
        return length;
#else
    (void)length;
#endif
    return CHUNK;
}

void TARN__AT_LEVEL(tarn__channel_plan_make)(tarn__channel_plan *c, bool with_batches, int compute,
                                             const tarn__view *const *views)
{
    tarn__view held[TARN__CHANNEL_OPERANDS];
    const tarn__view *x = views[X], *rest[TARN__CHANNEL_OPERANDS] = {0};
    *c = (tarn__channel_plan){.batches = with_batches ? x->shape[0] : 1, .channels = x->shape[1], .compute = compute};
    for (int k = 0; k < TARN__CHANNEL_OPERANDS; k++) {
        c->view[k] = views[k];
        if (!views[k])
            continue;
        held[k] = *views[k];
        held[k].shape[1] = 1;
        if (with_batches)
            held[k].shape[0] = 1;
        rest[k] = &held[k];
    }
    tarn__nest_make(&c->nest, TARN__CHANNEL_OPERANDS, rest);
    c->count = c->nest.count;
    c->by_rows = c->nest.rank > 0 && distance(c->nest.stride[X][c->nest.rank - 1]) <= distance(x->stride[1]);
    if (c->by_rows) {
        c->chunk = rows_chunk(c->nest.shape[c->nest.rank - 1]);
    } else {
        int64_t least = 4 * CHUNK / (c->channels > 0 ? c->channels : 1),
                even = (c->count + MOST_CHUNKS - 1) / MOST_CHUNKS;
        c->chunk = ((least > even ? least : even) + GROUP) / GROUP * GROUP;
    }
    c->chunks = (c->count + c->chunk - 1) / c->chunk;
    c->fold = choose_fold(c);
}

int64_t TARN__AT_LEVEL(tarn__channel_scratch)(const tarn__channel_plan *c)
{
    return 2 * c->batches * c->chunks * c->channels;
}

/* ---- a pass ------------------------------------------------------------------------------------------------------ */

typedef struct pass {
    const tarn__channel_plan *c;
    const blocks *blocks;
    const tarn__channel_stats *numbers;
    double *one, *two;           /* results, (batches, channels) */
    double *part_one, *part_two; /* those of chunks, (batches, chunks, channels) */
} pass;

/* One chunk: of a channel by rows, of a tile of channels by columns. */
typedef struct piece {
    /* `end` is after the last element or position; `part` is where its numbers go */
    int64_t batch, channel, begin, end, part;
    int64_t width; /* channels */
} piece;

static int64_t tiles_of(const tarn__channel_plan *c)
{
    return (c->channels + TILE - 1) / TILE;
}

static piece piece_at(const tarn__channel_plan *c, int64_t task)
{
    int64_t inner = c->by_rows ? c->channels : tiles_of(c), chunk = task / inner % c->chunks;
    piece p = {.batch = task / inner / c->chunks,
               .channel = task % inner * (c->by_rows ? 1 : TILE),
               .begin = chunk * c->chunk};
    p.end = p.begin + c->chunk < c->count ? p.begin + c->chunk : c->count;
    p.part = (p.batch * c->chunks + chunk) * c->channels + p.channel;
    p.width = c->channels - p.channel < TILE ? c->channels - p.channel : TILE;
    return p;
}

static void for_pieces(const pass *job, void (*function)(int64_t begin, int64_t end, void *ctx))
{
    const tarn__channel_plan *c = job->c;
    pass kept = *job;
    int64_t tasks = c->batches * c->chunks * (c->by_rows ? c->channels : tiles_of(c)),
            most = c->count < c->chunk ? c->count : c->chunk, each = most < CHUNK ? CHUNK / (most + 1) + 1 : 1;
    tarn__parallel_for(tasks, c->by_rows ? each : 1, function, &kept);
}

/* Block by block of a piece by rows: `at` runs over elements, `n` is how many lie in one row from there. For results.
 */
#define EACH_BLOCK_OF_ROWS(c, p, at, n) \
    for (int64_t at = (p).begin, n; at < (p).end && (n = block_at(c, at, (p).end), true); at += n)

static int64_t block_at(const tarn__channel_plan *c, int64_t at, int64_t end)
{
    int64_t length = c->nest.shape[c->nest.rank - 1], left = length - at % length;
    left = left < end - at ? left : end - at;
    return left < BLOCK ? left : BLOCK;
}

#define SHORT (BLOCK / 4) /* rows of fewer elements are put together before something is summed over them */

/* Up to BLOCK elements of a channel from `at` on, for sums over them, in the type computed in; *n says how many. */
static const void *gather(const tarn__channel_plan *c, int k, const piece *p, int64_t at, int64_t *n, char *buffer)
{
    int64_t size = c->compute == COMPUTE_F64 ? 8 : 4, room = p->end - at < BLOCK ? p->end - at : BLOCK;
    *n = block_at(c, at, p->end);
    if (c->nest.shape[c->nest.rank - 1] >= SHORT || *n == room)
        return bring(c, k, address(c, k, p->batch, p->channel, at), *n, buffer);
    for (int64_t done = 0, here; done < room; done += here) {
        here = block_at(c, at + done, at + room);
        tarn__load[c->view[k]->dtype][c->compute](address(c, k, p->batch, p->channel, at + done), along(c, k),
                                                  buffer + done * size, here);
    }
    *n = room;
    return buffer;
}

/* Adds up what the chunks of each channel gave, in order. */
static void combine_sums(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    for (; begin < end; begin++) {
        int64_t at = begin / c->channels * c->chunks * c->channels + begin % c->channels;
        j->one[begin] = j->two[begin] = 0;
        for (int64_t k = 0; k < c->chunks; k++, at += c->channels) {
            j->one[begin] += j->part_one[at];
            j->two[begin] += j->part_two[at];
        }
    }
}

static void combine_moments(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    for (; begin < end; begin++) {
        int64_t at = begin / c->channels * c->chunks * c->channels + begin % c->channels;
        j->one[begin] = j->two[begin] = 0;
        for (int64_t k = 0; k < c->chunks; k++, at += c->channels) {
            int64_t first = k * c->chunk, n = c->count - first < c->chunk ? c->count - first : c->chunk;
            tarn__merge_moments(&j->one[begin], &j->two[begin], (double)first, j->part_one[at], j->part_two[at],
                                (double)n);
        }
    }
}

/* ---- mean and deviation ------------------------------------------------------------------------------------------ */

static void measure_rows(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    _Alignas(64) char buffer[BLOCK * 8];
    for (; begin < end; begin++) {
        piece p = piece_at(c, begin);
        double *mean = &j->part_one[p.part], *squares = &j->part_two[p.part];
        *mean = *squares = 0;
        for (int64_t at = p.begin, n; at < p.end; at += n) {
            double mean_here, squares_here;
            const void *x = gather(c, X, &p, at, &n, buffer);
            j->blocks->row_moments(x, n, &mean_here, &squares_here);
            tarn__merge_moments(mean, squares, (double)(at - p.begin), mean_here, squares_here, (double)n);
        }
    }
}

/* Rows of a tile, a few at a time, in the type computed in. */
typedef struct rows_buffer {
    _Alignas(64) char at[GROUP][TILE * 8];
    const void *row[GROUP];
} rows_buffer;

/* Up to GROUP of `left` rows of n elements, from position `at` on; returns how many. */
static int bring_rows(const tarn__channel_plan *c, int k, const piece *p, int64_t at, int64_t left, int64_t n,
                      rows_buffer *buffer)
{
    int rows = left < GROUP ? (int)left : GROUP;
    for (int r = 0; r < rows; r++)
        buffer->row[r] = bring(c, k, address(c, k, p->batch, p->channel, at + r * c->fold), n, buffer->at[r]);
    return rows;
}

/* A row may hold several positions: whole rows, and what is left of a last one. */
typedef struct extent {
    int64_t width, whole, left; /* elements of a row, whole rows, elements of the last one */
} extent;

static extent extent_of(const tarn__channel_plan *c, const piece *p)
{
    int64_t positions = p->end - p->begin;
    return (extent){p->width * c->fold, positions / c->fold, positions % c->fold * p->width};
}

static void merge_row(double *mean, double *squares, int64_t n, int64_t count, const double *mean_b,
                      const double *squares_b, int64_t count_b)
{
    double share = (double)count_b / (double)(count + count_b), weight = (double)count * share;
    EACH
    {
        double delta = mean_b[i] - mean[i];
        mean[i] += delta * share;
        squares[i] += squares_b[i] + delta * delta * weight;
    }
}

static void measure_columns(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    rows_buffer buffer;
    for (; begin < end; begin++) {
        piece p = piece_at(c, begin);
        extent e = extent_of(c, &p);
        double mean_here[TILE], squares_here[TILE], mean[TILE] = {0}, squares[TILE] = {0};
        for (int64_t row = 0, rows; row < e.whole; row += rows) {
            rows = bring_rows(c, X, &p, p.begin + row * c->fold, e.whole - row, e.width, &buffer);
            j->blocks->column_moments(buffer.row, (int)rows, e.width, mean_here, squares_here);
            merge_row(mean, squares, e.width, row, mean_here, squares_here, rows);
        }
        if (e.left > 0) {
            bring_rows(c, X, &p, p.begin + e.whole * c->fold, 1, e.left, &buffer);
            j->blocks->column_moments(buffer.row, 1, e.left, mean_here, squares_here);
            merge_row(mean, squares, e.left, e.whole, mean_here, squares_here, 1);
        }
        memset(&j->part_one[p.part], 0, sizeof(double) * (size_t)p.width);
        memset(&j->part_two[p.part], 0, sizeof(double) * (size_t)p.width);
        for (int64_t at = 0, count = 0, own; at < e.width; at += p.width, count += own) {
            own = e.whole + (at < e.left);
            if (own > 0)
                merge_row(&j->part_one[p.part], &j->part_two[p.part], p.width, count, mean + at, squares + at, own);
        }
    }
}

void TARN__AT_LEVEL(tarn__channel_moments)(const tarn__channel_plan *c, double *mean, double *squares, double *scratch)
{
    pass job = {.c = c,
                .blocks = blocks_of(c),
                .one = mean,
                .two = squares,
                .part_one = scratch,
                .part_two = scratch + TARN__AT_LEVEL(tarn__channel_scratch)(c) / 2};
    for_pieces(&job, c->by_rows ? measure_rows : measure_columns);
    tarn__parallel_for(c->batches * c->channels, 64, combine_moments, &job);
}

/* ---- sums of gradients ------------------------------------------------------------------------------------------- */

/* What goes through relu of a block of g by rows, where its result is made again from x. */
static void let_row_through(const pass *j, const void *x, const void *g, void *up, int64_t n, int64_t channel)
{
    const tarn__channel_stats *m = j->numbers;
    j->blocks->row_let_through(x, g, up, n, m->mean[channel], m->scale[channel], m->bias[channel], j->c->least);
}

static void sum_rows(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    _Alignas(64) char x[BLOCK * 8];
    _Alignas(64) char g[BLOCK * 8];
    _Alignas(64) char y[BLOCK * 8];
    for (; begin < end; begin++) {
        piece p = piece_at(c, begin);
        int64_t channel = p.batch * c->channels + p.channel;
        double sums[2] = {0, 0};
        for (int64_t at = p.begin, n; at < p.end; at += n) {
            const void *these = gather(c, X, &p, at, &n, x), *up = gather(c, G, &p, at, &n, g);
            if (c->has_relu) {
                if (c->view[BESIDE])
                    j->blocks->let_through(gather(c, BESIDE, &p, at, &n, y), up, g, n, c->least);
                else
                    let_row_through(j, these, up, g, n, channel);
                up = g;
            }
            j->blocks->row_sums(these, up, n, j->numbers->mean[channel], j->numbers->rstd[channel], sums);
        }
        j->part_one[p.part] = sums[0];
        j->part_two[p.part] = sums[1];
    }
}

/* relu's result for a row of x by columns, as forward made it. */
static const void *remake_columns(const pass *j, const void *x, int64_t n, const void *tile, void *buffer)
{
    j->blocks->column_normalise(x, buffer, n, tile);
    return buffer;
}

/* Rows of g, from position `at` on, become what goes through relu. */
static void let_rows_through(const pass *j, const piece *p, int64_t at, int rows, int64_t n, const void *tile,
                             const rows_buffer *x, rows_buffer *g)
{
    const tarn__channel_plan *c = j->c;
    _Alignas(64) char y[TILE * 8];
    for (int r = 0; c->has_relu && r < rows; r++) {
        const void *made = c->view[BESIDE]
                               ? bring(c, BESIDE, address(c, BESIDE, p->batch, p->channel, at + r * c->fold), n, y)
                               : remake_columns(j, x->row[r], n, tile, y);
        j->blocks->let_through(made, g->row[r], g->at[r], n, c->least);
        g->row[r] = g->at[r];
    }
}

static void sum_columns(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    rows_buffer x, g;
    _Alignas(64) char tile[sizeof(tile_f64)];
    for (; begin < end; begin++) {
        piece p = piece_at(c, begin);
        extent e = extent_of(c, &p);
        double sum[TILE] = {0}, product[TILE] = {0};
        j->blocks->fetch_tile(tile, j->numbers, p.batch * c->channels + p.channel, p.width, c->fold);
        for (int64_t row = 0, rows; row < e.whole; row += rows) {
            rows = bring_rows(c, X, &p, p.begin + row * c->fold, e.whole - row, e.width, &x);
            bring_rows(c, G, &p, p.begin + row * c->fold, e.whole - row, e.width, &g);
            let_rows_through(j, &p, p.begin + row * c->fold, (int)rows, e.width, tile, &x, &g);
            j->blocks->column_sums(x.row, g.row, (int)rows, e.width, tile, sum, product);
        }
        if (e.left > 0) {
            bring_rows(c, X, &p, p.begin + e.whole * c->fold, 1, e.left, &x);
            bring_rows(c, G, &p, p.begin + e.whole * c->fold, 1, e.left, &g);
            let_rows_through(j, &p, p.begin + e.whole * c->fold, 1, e.left, tile, &x, &g);
            j->blocks->column_sums(x.row, g.row, 1, e.left, tile, sum, product);
        }
        for (int64_t i = 0; i < p.width; i++) {
            j->part_one[p.part + i] = j->part_two[p.part + i] = 0;
            for (int64_t at = i; at < e.width; at += p.width) {
                j->part_one[p.part + i] += sum[at];
                j->part_two[p.part + i] += product[at];
            }
        }
    }
}

void TARN__AT_LEVEL(tarn__channel_grad_sums)(const tarn__channel_plan *c, const tarn__channel_stats *numbers,
                                             double *sum, double *product, double *scratch)
{
    pass job = {.c = c,
                .blocks = blocks_of(c),
                .numbers = numbers,
                .one = sum,
                .two = product,
                .part_one = scratch,
                .part_two = scratch + TARN__AT_LEVEL(tarn__channel_scratch)(c) / 2};
    for_pieces(&job, c->by_rows ? sum_rows : sum_columns);
    tarn__parallel_for(c->batches * c->channels, 64, combine_sums, &job);
}

/* ---- element by element ------------------------------------------------------------------------------------------ */

/* n results: what is added to them, and relu, where there is one. */
static void finish(const pass *j, const piece *p, int64_t at, void *made, int64_t n)
{
    const tarn__channel_plan *c = j->c;
    _Alignas(64) char buffer[BLOCK * 8];
    if (!c->has_relu)
        return;
    const void *beside =
        c->view[BESIDE] ? bring(c, BESIDE, address(c, BESIDE, p->batch, p->channel, at), n, buffer) : NULL;
    j->blocks->add_and_cut(made, beside, n);
}

static void normalise_rows(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    _Alignas(64) char buffer[BLOCK * 8];
    for (; begin < end; begin++) {
        piece p = piece_at(c, begin);
        int64_t channel = p.batch * c->channels + p.channel;
        EACH_BLOCK_OF_ROWS(c, p, at, n)
        {
            char *to = address(c, TO, p.batch, p.channel, at);
            void *made = lies_ready(c, TO) ? (void *)to : buffer;
            j->blocks->row_normalise(bring(c, X, address(c, X, p.batch, p.channel, at), n, buffer), made, n,
                                     j->numbers->mean[channel], j->numbers->scale[channel], j->numbers->bias[channel]);
            finish(j, &p, at, made, n);
            take_away(c, TO, made, to, n);
        }
    }
}

static void normalise_columns(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    _Alignas(64) char buffer[TILE * 8];
    _Alignas(64) char tile[sizeof(tile_f64)];
    for (; begin < end; begin++) {
        piece p = piece_at(c, begin);
        j->blocks->fetch_tile(tile, j->numbers, p.batch * c->channels + p.channel, p.width, c->fold);
        for (int64_t at = p.begin, n; at < p.end; at += c->fold) {
            n = (p.end - at < c->fold ? p.end - at : c->fold) * p.width;
            char *to = address(c, TO, p.batch, p.channel, at);
            void *made = lies_ready(c, TO) ? (void *)to : buffer;
            j->blocks->column_normalise(bring(c, X, address(c, X, p.batch, p.channel, at), n, buffer), made, n, tile);
            finish(j, &p, at, made, n);
            take_away(c, TO, made, to, n);
        }
    }
}

void TARN__AT_LEVEL(tarn__channel_normalize)(const tarn__channel_plan *c, const tarn__channel_stats *numbers)
{
    for_pieces(&(pass){.c = c, .blocks = blocks_of(c), .numbers = numbers},
               c->by_rows ? normalise_rows : normalise_columns);
}

/* n elements of g become, in `buffer`, what goes through relu, and are put where that is wanted. x is in the type
 * computed in, or NULL where BESIDE is given; `tile` is NULL by rows. */
static const void *let_block_through(const pass *j, const piece *p, int64_t at, int64_t n, const void *x,
                                     const void *tile, const void *g, void *buffer)
{
    const tarn__channel_plan *c = j->c;
    _Alignas(64) char room[BLOCK * 8];
    if (!c->has_relu)
        return g;
    if (c->view[BESIDE])
        j->blocks->let_through(bring(c, BESIDE, address(c, BESIDE, p->batch, p->channel, at), n, room), g, buffer, n,
                               c->least);
    else if (tile)
        j->blocks->let_through(remake_columns(j, x, n, tile, room), g, buffer, n, c->least);
    else
        let_row_through(j, x, g, buffer, n, p->batch * c->channels + p->channel);
    if (c->view[PASSED])
        take_away(c, PASSED, buffer, address(c, PASSED, p->batch, p->channel, at), n);
    return buffer;
}

/* True when a block of the gradient needs x. */
static bool needs_x(const pass *j)
{
    return j->numbers->first || (j->c->has_relu && !j->c->view[BESIDE]);
}

static void grad_rows(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    const tarn__channel_stats *m = j->numbers;
    _Alignas(64) char x[BLOCK * 8];
    _Alignas(64) char g[BLOCK * 8];
    for (; begin < end; begin++) {
        piece p = piece_at(c, begin);
        int64_t at_channel = p.batch * c->channels + p.channel;
        double numbers[] = {m->mean[at_channel], m->rstd[at_channel], m->scale[at_channel],
                            m->first ? m->first[at_channel] : 0, m->first ? m->second[at_channel] : 0};
        EACH_BLOCK_OF_ROWS(c, p, at, n)
        {
            const void *these = needs_x(j) ? bring(c, X, address(c, X, p.batch, p.channel, at), n, x) : NULL;
            const void *up = bring(c, G, address(c, G, p.batch, p.channel, at), n, g);
            up = let_block_through(j, &p, at, n, these, NULL, up, g);
            if (!c->view[TO])
                continue;
            char *to = address(c, TO, p.batch, p.channel, at);
            void *made = lies_ready(c, TO) ? (void *)to : g;
            if (m->first)
                j->blocks->row_grad(these, up, made, n, numbers);
            else
                j->blocks->row_scale(up, made, n, numbers[2]);
            take_away(c, TO, made, to, n);
        }
    }
}

static void grad_columns(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    _Alignas(64) char x[TILE * 8];
    _Alignas(64) char g[TILE * 8];
    _Alignas(64) char tile[sizeof(tile_f64)];
    for (; begin < end; begin++) {
        piece p = piece_at(c, begin);
        j->blocks->fetch_tile(tile, j->numbers, p.batch * c->channels + p.channel, p.width, c->fold);
        for (int64_t at = p.begin, n; at < p.end; at += c->fold) {
            n = (p.end - at < c->fold ? p.end - at : c->fold) * p.width;
            const void *these = needs_x(j) ? bring(c, X, address(c, X, p.batch, p.channel, at), n, x) : NULL;
            const void *up = bring(c, G, address(c, G, p.batch, p.channel, at), n, g);
            up = let_block_through(j, &p, at, n, these, tile, up, g);
            if (!c->view[TO])
                continue;
            char *to = address(c, TO, p.batch, p.channel, at);
            void *made = lies_ready(c, TO) ? (void *)to : g;
            if (j->numbers->first)
                j->blocks->column_grad(these, up, made, n, tile);
            else
                j->blocks->column_scale(up, made, n, tile);
            take_away(c, TO, made, to, n);
        }
    }
}

void TARN__AT_LEVEL(tarn__channel_grad)(const tarn__channel_plan *c, const tarn__channel_stats *numbers)
{
    for_pieces(&(pass){.c = c, .blocks = blocks_of(c), .numbers = numbers}, c->by_rows ? grad_rows : grad_columns);
}
