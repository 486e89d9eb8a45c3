/* channel_stats.c: the per-channel passes declared in channel_stats.h, over chunks of elements (channel_access.inc).
 *
 * Three kinds of passes: moments (mean and squared deviations), gradient sums, and elementwise results. The first
 * two write one partial result per chunk to scratch, merged in order by a second pass. Chunks depend on shapes
 * alone, so results do not depend on the number of threads. */
#include "backends/cpu/norm/channel_stats.h"

#include "backends/cpu/common/int_math.h"
#include "backends/cpu/common/rows.h"

#define TILE 256           /* elements of a row processed at a time (NHWC) */
#define GROUP 16           /* rows per fetch (NHWC) */
#define CHUNK (16 * BLOCK) /* elements of a chunk, at least */
#define MAX_CHUNKS 256     /* NHWC */

enum {
    X = TARN__CHANNEL_X,
    OUT = TARN__CHANNEL_OUT,
    G = TARN__CHANNEL_G,
    RELU = TARN__CHANNEL_RELU,
    RELU_GRAD = TARN__CHANNEL_RELU_GRAD
};

/* Operations on one block, for one compute type: channel_stats.inc. Rows are NCHW, columns NHWC. */
typedef struct block_ops {
    void (*row_moments)(const void *x, int64_t n, double *mean, double *squares);
    void (*row_normalize)(const void *x, void *y, int64_t n, double mean, double scale, double bias);
    void (*row_sums)(const void *x, const void *g, int64_t n, double mean, double rstd, double *sums);
    void (*row_grad)(const void *x, const void *g, void *gx, int64_t n, const double *stats);
    void (*row_scale)(const void *g, void *gx, int64_t n, double scale);
    void (*fetch_tile)(void *tile, const tarn__channel_stats *stats, int64_t at, int64_t n, int64_t row_positions);
    void (*column_moments)(const void *const *row, int rows, int64_t n, double *mean, double *squares);
    void (*column_normalize)(const void *x, void *y, int64_t n, const void *tile);
    void (*column_sums)(const void *const *x, const void *const *g, int rows, int64_t n, const void *tile, double *sum,
                        double *g_xhat);
    void (*column_grad)(const void *x, const void *g, void *gx, int64_t n, const void *tile);
    void (*column_scale)(const void *g, void *gx, int64_t n, const void *tile);
    void (*add_relu)(void *y, const void *residual, int64_t n);
    void (*relu_grad)(const void *y, const void *g, void *out, int64_t n, double relu_min);
    void (*row_relu_grad)(const void *x, const void *g, void *out, int64_t n, double mean, double scale, double bias,
                          double relu_min);
} block_ops;

#define EACH TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)

#define T float
#define NAMED(x) x##_f32
#include "backends/cpu/norm/channel_stats.inc"

#define T double
#define NAMED(x) x##_f64
#include "backends/cpu/norm/channel_stats.inc"

#include "backends/cpu/norm/channel_access.inc"

/* ---- the plan -----------------------------------------------------------------------------------------------------
 */

static const block_ops *block_ops_of(const tarn__channel_plan *c)
{
    return c->compute == COMPUTE_F64 ? &block_ops_f64 : &block_ops_f32;
}

/* Positions per row (NHWC): with few channels, contiguous positions are joined into one row. */
static int64_t choose_row_positions(const tarn__channel_plan *c)
{
    if (c->is_nchw || c->nest.rank != 1 || c->channels > TILE / 2)
        return 1;
    for (int k = 0; k < TARN__CHANNEL_OPERANDS; k++)
        if (c->view[k] && (c->view[k]->stride[1] != 1 || c->nest.stride[k][0] != c->channels))
            return 1;
    return TILE / c->channels;
}

/* Elements per chunk for rows of `length` (NCHW). Whole rows as chunks are contiguous channel after channel, which
 * pays on AArch64. */
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

/* The layout is decided by x alone: whichever of the channel axis and the innermost other axis has the smaller
 * stride. All other operands are read in that order, whatever their strides. */
void TARN__AT_LEVEL(tarn__channel_plan_make)(tarn__channel_plan *c, bool with_batches, int compute,
                                             const tarn__view *const *views)
{
    tarn__view copy[TARN__CHANNEL_OPERANDS];
    const tarn__view *x = views[X], *remainder[TARN__CHANNEL_OPERANDS] = {0};
    *c = (tarn__channel_plan){.batches = with_batches ? x->shape[0] : 1, .channels = x->shape[1], .compute = compute};
    for (int k = 0; k < TARN__CHANNEL_OPERANDS; k++) {
        c->view[k] = views[k];
        if (!views[k])
            continue;
        copy[k] = *views[k];
        copy[k].shape[1] = 1;
        if (with_batches)
            copy[k].shape[0] = 1;
        remainder[k] = &copy[k];
    }
    tarn__nest_make(&c->nest, TARN__CHANNEL_OPERANDS, remainder);
    c->count = c->nest.count;
    c->is_nchw = c->nest.rank > 0 && abs_i64(c->nest.stride[X][c->nest.rank - 1]) <= abs_i64(x->stride[1]);
    if (c->is_nchw) {
        c->chunk = rows_chunk(c->nest.shape[c->nest.rank - 1]);
    } else {
        int64_t relu_min = 4 * CHUNK / (c->channels > 0 ? c->channels : 1),
                even = (c->count + MAX_CHUNKS - 1) / MAX_CHUNKS;
        c->chunk = ((relu_min > even ? relu_min : even) + GROUP) / GROUP * GROUP;
    }
    c->chunks = (c->count + c->chunk - 1) / c->chunk;
    c->row_positions = choose_row_positions(c);
}

/* Two partial results per (batch, chunk, channel). */
int64_t TARN__AT_LEVEL(tarn__channel_scratch)(const tarn__channel_plan *c)
{
    return 2 * c->batches * c->chunks * c->channels;
}

/* ---- merging chunks -----------------------------------------------------------------------------------------------
 */

/* Sums the partial results of each channel's chunks, in order. */
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

/* Merges the moments of each channel's chunks, in order; every chunk but the last has c->chunk elements. */
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

/* ---- mean and squared deviations --------------------------------------------------------------------------------- */

/* NCHW: moments block by block, merged in f64. */
static void measure_rows(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    _Alignas(64) char buffer[BLOCK * 8];
    for (; begin < end; begin++) {
        chunk_range p = chunk_at(c, begin);
        double *mean = &j->part_one[p.part], *squares = &j->part_two[p.part];
        *mean = *squares = 0;
        for (int64_t at = p.begin, n; at < p.end; at += n) {
            double mean_here, squares_here;
            const void *x = gather(c, X, &p, at, &n, buffer);
            j->block_ops->row_moments(x, n, &mean_here, &squares_here);
            tarn__merge_moments(mean, squares, (double)(at - p.begin), mean_here, squares_here, (double)n);
        }
    }
}

/* Merges count_b elements per column into count (Chan, Golub, LeVeque), n columns at once. */
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

/* NHWC: moments of GROUP rows at a time per column, merged in f64; at the end columns of the same channel are
 * merged. */
static void measure_columns(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    rows_buffer buffer;
    for (; begin < end; begin++) {
        chunk_range p = chunk_at(c, begin);
        extent e = extent_of(c, &p);
        double mean_here[TILE], squares_here[TILE], mean[TILE] = {0}, squares[TILE] = {0};
        for (int64_t row = 0, rows; row < e.whole; row += rows) {
            rows = fetch_rows(c, X, &p, p.begin + row * c->row_positions, e.whole - row, e.width, &buffer);
            j->block_ops->column_moments(buffer.row, (int)rows, e.width, mean_here, squares_here);
            merge_row(mean, squares, e.width, row, mean_here, squares_here, rows);
        }
        if (e.left > 0) {
            fetch_rows(c, X, &p, p.begin + e.whole * c->row_positions, 1, e.left, &buffer);
            j->block_ops->column_moments(buffer.row, 1, e.left, mean_here, squares_here);
            merge_row(mean, squares, e.left, e.whole, mean_here, squares_here, 1);
        }
        memset(&j->part_one[p.part], 0, sizeof(double) * (size_t)p.width);
        memset(&j->part_two[p.part], 0, sizeof(double) * (size_t)p.width);
        for (int64_t at = 0, count = 0, count_here; at < e.width; at += p.width, count += count_here) {
            count_here = e.whole + (at < e.left);
            if (count_here > 0)
                merge_row(&j->part_one[p.part], &j->part_two[p.part], p.width, count, mean + at, squares + at,
                          count_here);
        }
    }
}

/* Two parallel passes: chunks, then channels. */
void TARN__AT_LEVEL(tarn__channel_moments)(const tarn__channel_plan *c, double *mean, double *squares, double *scratch)
{
    pass job = {.c = c,
                .block_ops = block_ops_of(c),
                .one = mean,
                .two = squares,
                .part_one = scratch,
                .part_two = scratch + TARN__AT_LEVEL(tarn__channel_scratch)(c) / 2};
    for_chunks(&job, c->is_nchw ? measure_rows : measure_columns);
    tarn__parallel_for(c->batches * c->channels, 64, combine_moments, &job);
}

/* ---- gradient sums ----------------------------------------------------------------------------------------------- */

/* g masked by relu for one NCHW block, whose relu output is recomputed from x. */
static void relu_grad_row(const pass *j, const void *x, const void *g, void *out, int64_t n, int64_t channel)
{
    const tarn__channel_stats *m = j->stats;
    j->block_ops->row_relu_grad(x, g, out, n, m->mean[channel], m->scale[channel], m->bias[channel], j->c->relu_min);
}

/* NCHW: Σ g and Σ g · x̂ per chunk, g masked by relu first. */
static void sum_rows(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    _Alignas(64) char x[BLOCK * 8];
    _Alignas(64) char g[BLOCK * 8];
    _Alignas(64) char y[BLOCK * 8];
    for (; begin < end; begin++) {
        chunk_range p = chunk_at(c, begin);
        int64_t channel = p.batch * c->channels + p.channel;
        double sums[2] = {0, 0};
        for (int64_t at = p.begin, n; at < p.end; at += n) {
            const void *x_block = gather(c, X, &p, at, &n, x), *g_block = gather(c, G, &p, at, &n, g);
            if (c->has_relu) {
                if (c->view[RELU])
                    j->block_ops->relu_grad(gather(c, RELU, &p, at, &n, y), g_block, g, n, c->relu_min);
                else
                    relu_grad_row(j, x_block, g_block, g, n, channel);
                g_block = g;
            }
            j->block_ops->row_sums(x_block, g_block, n, j->stats->mean[channel], j->stats->rstd[channel], sums);
        }
        j->part_one[p.part] = sums[0];
        j->part_two[p.part] = sums[1];
    }
}

/* Recomputes relu's output for an NHWC row, exactly as forward did. */
static const void *recompute_columns(const pass *j, const void *x, int64_t n, const void *tile, void *buffer)
{
    j->block_ops->column_normalize(x, buffer, n, tile);
    return buffer;
}

/* Masks rows of g, from position `at`, by relu; results replace the rows in their buffers. */
static void relu_grad_rows(const pass *j, const chunk_range *p, int64_t at, int rows, int64_t n, const void *tile,
                           const rows_buffer *x, rows_buffer *g)
{
    const tarn__channel_plan *c = j->c;
    _Alignas(64) char y[TILE * 8];
    for (int r = 0; c->has_relu && r < rows; r++) {
        const void *block =
            c->view[RELU]
                ? fetch_block(c, RELU, address(c, RELU, p->batch, p->channel, at + r * c->row_positions), n, y)
                : recompute_columns(j, x->row[r], n, tile, y);
        j->block_ops->relu_grad(block, g->row[r], g->at[r], n, c->relu_min);
        g->row[r] = g->at[r];
    }
}

/* NHWC: the same per column, then columns of the same channel are added. */
static void sum_columns(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    rows_buffer x, g;
    _Alignas(64) char tile[sizeof(tile_f64)];
    for (; begin < end; begin++) {
        chunk_range p = chunk_at(c, begin);
        extent e = extent_of(c, &p);
        double sum[TILE] = {0}, g_xhat[TILE] = {0};
        j->block_ops->fetch_tile(tile, j->stats, p.batch * c->channels + p.channel, p.width, c->row_positions);
        for (int64_t row = 0, rows; row < e.whole; row += rows) {
            rows = fetch_rows(c, X, &p, p.begin + row * c->row_positions, e.whole - row, e.width, &x);
            fetch_rows(c, G, &p, p.begin + row * c->row_positions, e.whole - row, e.width, &g);
            relu_grad_rows(j, &p, p.begin + row * c->row_positions, (int)rows, e.width, tile, &x, &g);
            j->block_ops->column_sums(x.row, g.row, (int)rows, e.width, tile, sum, g_xhat);
        }
        if (e.left > 0) {
            fetch_rows(c, X, &p, p.begin + e.whole * c->row_positions, 1, e.left, &x);
            fetch_rows(c, G, &p, p.begin + e.whole * c->row_positions, 1, e.left, &g);
            relu_grad_rows(j, &p, p.begin + e.whole * c->row_positions, 1, e.left, tile, &x, &g);
            j->block_ops->column_sums(x.row, g.row, 1, e.left, tile, sum, g_xhat);
        }
        for (int64_t i = 0; i < p.width; i++) {
            j->part_one[p.part + i] = j->part_two[p.part + i] = 0;
            for (int64_t at = i; at < e.width; at += p.width) {
                j->part_one[p.part + i] += sum[at];
                j->part_two[p.part + i] += g_xhat[at];
            }
        }
    }
}

/* As tarn__channel_moments(), with sums instead of moments. */
void TARN__AT_LEVEL(tarn__channel_grad_sums)(const tarn__channel_plan *c, const tarn__channel_stats *stats, double *sum,
                                             double *g_xhat, double *scratch)
{
    pass job = {.c = c,
                .block_ops = block_ops_of(c),
                .stats = stats,
                .one = sum,
                .two = g_xhat,
                .part_one = scratch,
                .part_two = scratch + TARN__AT_LEVEL(tarn__channel_scratch)(c) / 2};
    for_chunks(&job, c->is_nchw ? sum_rows : sum_columns);
    tarn__parallel_for(c->batches * c->channels, 64, combine_sums, &job);
}

/* ---- elementwise results ----------------------------------------------------------------------------------------- */

/* Adds the residual and applies relu to n results, where the operation has them. */
static void finish(const pass *j, const chunk_range *p, int64_t at, void *block, int64_t n)
{
    const tarn__channel_plan *c = j->c;
    _Alignas(64) char buffer[BLOCK * 8];
    if (!c->has_relu)
        return;
    const void *residual =
        c->view[RELU] ? fetch_block(c, RELU, address(c, RELU, p->batch, p->channel, at), n, buffer) : NULL;
    j->block_ops->add_relu(block, residual, n);
}

/* NCHW: y = (x - mean) · scale + bias, then residual and relu, block by block while in cache. */
static void normalize_rows(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    _Alignas(64) char buffer[BLOCK * 8];
    for (; begin < end; begin++) {
        chunk_range p = chunk_at(c, begin);
        int64_t channel = p.batch * c->channels + p.channel;
        EACH_BLOCK_OF_ROWS(c, p, at, n)
        {
            char *to = address(c, OUT, p.batch, p.channel, at);
            void *block = is_block_in_place(c, OUT) ? (void *)to : buffer;
            j->block_ops->row_normalize(fetch_block(c, X, address(c, X, p.batch, p.channel, at), n, buffer), block, n,
                                        j->stats->mean[channel], j->stats->scale[channel], j->stats->bias[channel]);
            finish(j, &p, at, block, n);
            store_block(c, OUT, block, to, n);
        }
    }
}

/* NHWC: the same per row of TILE elements; per-channel values are fetched into a tile once per chunk. */
static void normalize_columns(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    _Alignas(64) char buffer[TILE * 8];
    _Alignas(64) char tile[sizeof(tile_f64)];
    for (; begin < end; begin++) {
        chunk_range p = chunk_at(c, begin);
        j->block_ops->fetch_tile(tile, j->stats, p.batch * c->channels + p.channel, p.width, c->row_positions);
        for (int64_t at = p.begin, n; at < p.end; at += c->row_positions) {
            n = (p.end - at < c->row_positions ? p.end - at : c->row_positions) * p.width;
            char *to = address(c, OUT, p.batch, p.channel, at);
            void *block = is_block_in_place(c, OUT) ? (void *)to : buffer;
            j->block_ops->column_normalize(fetch_block(c, X, address(c, X, p.batch, p.channel, at), n, buffer), block,
                                           n, tile);
            finish(j, &p, at, block, n);
            store_block(c, OUT, block, to, n);
        }
    }
}

void TARN__AT_LEVEL(tarn__channel_normalize)(const tarn__channel_plan *c, const tarn__channel_stats *stats)
{
    for_chunks(&(pass){.c = c, .block_ops = block_ops_of(c), .stats = stats},
               c->is_nchw ? normalize_rows : normalize_columns);
}

/* g masked by relu, in `buffer`; also stored where that gradient is wanted. x is in the compute type, or NULL where
 * relu's output is given; `tile` is NULL for NCHW. */
static const void *relu_grad_block(const pass *j, const chunk_range *p, int64_t at, int64_t n, const void *x,
                                   const void *tile, const void *g, void *buffer)
{
    const tarn__channel_plan *c = j->c;
    _Alignas(64) char y_buffer[BLOCK * 8];
    if (!c->has_relu)
        return g;
    if (c->view[RELU])
        j->block_ops->relu_grad(fetch_block(c, RELU, address(c, RELU, p->batch, p->channel, at), n, y_buffer), g,
                                buffer, n, c->relu_min);
    else if (tile)
        j->block_ops->relu_grad(recompute_columns(j, x, n, tile, y_buffer), g, buffer, n, c->relu_min);
    else
        relu_grad_row(j, x, g, buffer, n, p->batch * c->channels + p->channel);
    if (c->view[RELU_GRAD])
        store_block(c, RELU_GRAD, buffer, address(c, RELU_GRAD, p->batch, p->channel, at), n);
    return buffer;
}

/* True where a block of the gradient needs x. */
static bool needs_x(const pass *j)
{
    return j->stats->first || (j->c->has_relu && !j->c->view[RELU]);
}

/* NCHW: gx from x, g and the two means, or scale · g alone in evaluation mode. */
static void grad_rows(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    const tarn__channel_stats *m = j->stats;
    _Alignas(64) char x[BLOCK * 8];
    _Alignas(64) char g[BLOCK * 8];
    for (; begin < end; begin++) {
        chunk_range p = chunk_at(c, begin);
        int64_t at_channel = p.batch * c->channels + p.channel;
        double stats[] = {m->mean[at_channel], m->rstd[at_channel], m->scale[at_channel],
                          m->first ? m->first[at_channel] : 0, m->first ? m->second[at_channel] : 0};
        EACH_BLOCK_OF_ROWS(c, p, at, n)
        {
            const void *x_block = needs_x(j) ? fetch_block(c, X, address(c, X, p.batch, p.channel, at), n, x) : NULL;
            const void *g_block = fetch_block(c, G, address(c, G, p.batch, p.channel, at), n, g);
            g_block = relu_grad_block(j, &p, at, n, x_block, NULL, g_block, g);
            if (!c->view[OUT])
                continue;
            char *to = address(c, OUT, p.batch, p.channel, at);
            void *block = is_block_in_place(c, OUT) ? (void *)to : g;
            if (m->first)
                j->block_ops->row_grad(x_block, g_block, block, n, stats);
            else
                j->block_ops->row_scale(g_block, block, n, stats[2]);
            store_block(c, OUT, block, to, n);
        }
    }
}

/* NHWC: the same per row of TILE elements. */
static void grad_columns(int64_t begin, int64_t end, void *ctx)
{
    const pass *j = ctx;
    const tarn__channel_plan *c = j->c;
    _Alignas(64) char x[TILE * 8];
    _Alignas(64) char g[TILE * 8];
    _Alignas(64) char tile[sizeof(tile_f64)];
    for (; begin < end; begin++) {
        chunk_range p = chunk_at(c, begin);
        j->block_ops->fetch_tile(tile, j->stats, p.batch * c->channels + p.channel, p.width, c->row_positions);
        for (int64_t at = p.begin, n; at < p.end; at += c->row_positions) {
            n = (p.end - at < c->row_positions ? p.end - at : c->row_positions) * p.width;
            const void *x_block = needs_x(j) ? fetch_block(c, X, address(c, X, p.batch, p.channel, at), n, x) : NULL;
            const void *g_block = fetch_block(c, G, address(c, G, p.batch, p.channel, at), n, g);
            g_block = relu_grad_block(j, &p, at, n, x_block, tile, g_block, g);
            if (!c->view[OUT])
                continue;
            char *to = address(c, OUT, p.batch, p.channel, at);
            void *block = is_block_in_place(c, OUT) ? (void *)to : g;
            if (j->stats->first)
                j->block_ops->column_grad(x_block, g_block, block, n, tile);
            else
                j->block_ops->column_scale(g_block, block, n, tile);
            store_block(c, OUT, block, to, n);
        }
    }
}

/* One pass: nothing is merged. */
void TARN__AT_LEVEL(tarn__channel_grad)(const tarn__channel_plan *c, const tarn__channel_stats *stats)
{
    for_chunks(&(pass){.c = c, .block_ops = block_ops_of(c), .stats = stats}, c->is_nchw ? grad_rows : grad_columns);
}
