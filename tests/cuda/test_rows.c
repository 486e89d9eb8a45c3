/* test_rows.c: kernels along rows and columns on a CUDA device against the CPU, results and gradients, at lengths,
 * counts and layouts that select the fast kernels and just beyond: norms and losses with asynchronous loads, RoPE of
 * several batches, long columns, max and min with and without ties. Skipped without a device. */
#include "support/gpu.h"

static const tarn_dtype dtypes[] = {TARN_F32, TARN_BF16, TARN_F16, TARN_F64};
static const double tolerances[] = {1e-5, 1e-2, 2e-3, 1e-12};
enum { F64 = 3, DTYPES, MOST = 4 };

/* The largest difference, relative to the largest value; infinite if one of the two is NaN. */
static double apart(tarn_tensor *a, tarn_tensor *b)
{
    double *x = values_of(a), *y = values_of(b), most = 0, size = 1e-30;
    for (int64_t i = 0; i < tarn_count(a); i++) {
        if (isnan(x[i]) && isnan(y[i]))
            continue;
        most = isnan(x[i]) != isnan(y[i]) ? INFINITY : fmax(most, fabs(x[i] - y[i]));
        size = fmax(size, fabs(y[i]));
    }
    free(x);
    free(y);
    return most / size;
}

/* ---- one comparison ---------------------------------------------------------------------------------------------- */

/* The operation on the leaves; NULL: none. Indices are i64. */
typedef tarn_tensor *apply_fn(tarn_tensor *const *leaf, const void *options);

static void agrees_with_the_cpu(apply_fn *apply, tarn_tensor **here, const void *options, double tolerance)
{
    tarn_tensor *there[MOST] = {0};
    for (int i = 0; i < MOST; i++)
        if (here[i]) {
            there[i] = good(tarn_to(here[i], gpu));
            if (tarn_dtype_of(here[i]) != TARN_I64) {
                tarn_requires_grad(here[i], true);
                tarn_requires_grad(there[i], true);
            }
        }
    tarn_tensor *wanted = good(apply(here, options)), *found = good(apply(there, options));
    assert_true(apart(found, wanted) <= tolerance);
    tarn_tensor *g = good(tarn_normal_like(wanted, 0, 1));
    assert_true(tarn_backward_from(wanted, g, NULL) && tarn_backward_from(found, good(tarn_to(g, gpu)), NULL));
    for (int i = 0; i < MOST; i++)
        if (here[i] && tarn_grad(here[i]))
            assert_true(apart(good(tarn_grad(there[i])), tarn_grad(here[i])) <= tolerance);
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

enum { LAYERNORM, RMSNORM, RESIDUAL, OFFSET, NORMS };

static tarn_tensor *normalise(tarn_tensor *const *leaf, const void *options)
{
    int norm = *(const int *)options;
    if (norm == LAYERNORM)
        return tarn_layernorm(leaf[0], leaf[1], leaf[2], 1e-5);
    if (norm == RMSNORM)
        return tarn_rmsnorm(leaf[0], leaf[1], 1e-5);
    if (norm == OFFSET)
        return tarn_rmsnorm_offset(leaf[0], leaf[1], 1, 1e-5);
    tarn_tensor *sum = NULL, *y = tarn_residual_norm(leaf[0], leaf[3], leaf[1], leaf[2], false, 1e-5, &sum);
    return y ? tarn_add(y, sum) : NULL; /* both have a gradient */
}

/* Rows that fill a warp's vectors and rows that do not; fewer rows than warps, and enough to wrap a warp's ring. */
static void norms_match_the_cpu(void **state)
{
    NEEDS_GPU();
    static const int64_t lengths[] = {768, 1024, 264, 40, 776, 770}, rows[] = {3, 37, 2113};
    for (int d = 0; d < DTYPES; d++)
        for (int l = 0; l < 6; l++)
            for (int r = 0; r < 3; r++)
                for (int norm = 0; norm < NORMS; norm++) {
                    tarn_scope *scope = tarn_scope_open();
                    tarn_shape shape = TARN_SHAPE(rows[r], lengths[l]), along = TARN_SHAPE(lengths[l]);
                    bool is_plain = (l + r) % 3 == 0;
                    tarn_tensor *leaf[MOST] = {
                        good(tarn_normal(shape, 0.3, 1, dtypes[d], CPU)),
                        is_plain ? NULL : good(tarn_normal(along, 1, 0.3, dtypes[d], CPU)),
                        is_plain || norm == RMSNORM || norm == OFFSET ? NULL
                                                                      : good(tarn_normal(along, 0, 1, dtypes[d], CPU)),
                        norm == RESIDUAL ? good(tarn_normal(shape, 0, 1, dtypes[d], CPU)) : NULL};
                    agrees_with_the_cpu(normalise, leaf, &norm, tolerances[d] * (d == 0 ? 4 : 1));
                    tarn_scope_close(scope);
                }
}

/* Gradients so large that f32 sums of a row overflow; compared to f64, since the CPU's own sums of 16-bit rows are f32
 * too. */
static void gradients_of_norms_keep_f32_range(void **state)
{
    NEEDS_GPU();
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(9, 768), 0, 1, TARN_BF16, CPU)), *made[2];
    tarn_tensor *g = good(tarn_mul(tarn_normal(TARN_SHAPE(9, 768), 1, 0.5, TARN_BF16, CPU), tarn_scalar(5e36)));
    for (int i = 0; i < 2; i++) {
        tarn_tensor *leaf = tarn_requires_grad(good(i ? tarn_to(x, gpu) : tarn_cast(x, TARN_F64)), true);
        assert_true(tarn_backward_from(good(tarn_layernorm(leaf, NULL, NULL, 1e-5)),
                                       good(i ? tarn_to(g, gpu) : tarn_cast(g, TARN_F64)), NULL));
        made[i] = good(tarn_grad(leaf));
    }
    assert_true(apart(made[1], made[0]) < 1e-2);
}

/* ---- RoPE -------------------------------------------------------------------------------------------------------- */

typedef struct turning {
    tarn_rope_options options;
    bool has_positions, is_heads_first;
} turning;

static tarn_tensor *turn(tarn_tensor *const *leaf, const void *options)
{
    const turning *t = options;
    tarn_tensor *x = t->is_heads_first ? tarn_permute(leaf[0], TARN_AXES(0, 2, 1, 3)) : leaf[0];
    return tarn_rope(x, leaf[1], &t->options);
}

static tarn_tensor *positions(int64_t batches, int64_t rows, bool are_shared)
{
    tarn_tensor *p = good(tarn_arange(0, (double)(are_shared ? rows : batches * rows), 1, TARN_I64, CPU));
    return are_shared ? p : good(tarn_reshape(p, TARN_SHAPE(batches, rows)));
}

static void rope_matches_the_cpu(void **state)
{
    NEEDS_GPU();
    uint64_t bits = test_seed(5);
    static const int64_t depths[] = {64, 128, 48, 20};
    for (int trial = 0; trial < 120; trial++) {
        tarn_scope *scope = tarn_scope_open();
        int64_t d = random_below(&bits, DTYPES), depth = depths[random_below(&bits, 4)],
                batches = 1 + random_below(&bits, 21);
        int64_t rows = 1 + random_below(&bits, 300), heads = 1 + random_below(&bits, 6);
        turning t = {.options = {.interleaved = random_below(&bits, 2) != 0, .dims = random_below(&bits, 3) ? 0 : 16},
                     .has_positions = random_below(&bits, 2) != 0,
                     .is_heads_first = random_below(&bits, 2) != 0};
        t.options.axis = t.is_heads_first ? 2 : 1;
        tarn_tensor *leaf[MOST] = {good(tarn_normal(TARN_SHAPE(batches, rows, heads, depth), 0, 1, dtypes[d], CPU)),
                                   t.has_positions ? positions(batches, rows, random_below(&bits, 2) != 0) : NULL};
        agrees_with_the_cpu(turn, leaf, &t, tolerances[d]);
        tarn_scope_close(scope);
    }
}

/* ---- max and min ------------------------------------------------------------------------------------------------- */

enum { FIRST, LAST, ALL, WAYS };

typedef struct extreme {
    int way;
    bool is_min;
} extreme;

static tarn_tensor *take(tarn_tensor *const *leaf, const void *options)
{
    const extreme *e = options;
    tarn_axes axes = e->way == FIRST ? TARN_AXES(0) : e->way == LAST ? TARN_AXES(1) : (tarn_axes){0};
    return e->is_min ? tarn_min(leaf[0], axes, false) : tarn_max(leaf[0], axes, false);
}

/* Without ties; with few; where all elements are equal; and with a few NaN. */
static void gradients_of_max_and_min_match_the_cpu(void **state)
{
    NEEDS_GPU();
    static const int64_t sizes[][2] = {{4096, 96}, {700, 1030}, {70000, 8}, {33, 5000}};
    for (int d = 0; d < DTYPES; d++)
        for (int i = 0; i < 4; i++)
            for (int values = 0; values < 4; values++)
                for (int way = 0; way < WAYS; way++) {
                    tarn_scope *scope = tarn_scope_open();
                    extreme e = {way, (d + i + values) % 2 != 0};
                    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(sizes[i][0], sizes[i][1]), 0, 1, TARN_F32, CPU));
                    if (values == 1 || values == 2)
                        x = good(tarn_clamp(x, values == 1 ? -2.9 : 0, values == 1 ? 2.9 : 0));
                    if (values == 3)
                        x = good(tarn_log(tarn_add(x, tarn_scalar(3.3))));
                    tarn_tensor *leaf[MOST] = {good(tarn_cast(x, dtypes[d]))};
                    agrees_with_the_cpu(take, leaf, &e, tolerances[d]);
                    tarn_scope_close(scope);
                }
}

/* ---- long columns ------------------------------------------------------------------------------------------------ */

static tarn_tensor *reduce_first(tarn_tensor *const *leaf, const void *options)
{
    int how = *(const int *)options;
    return how == 0   ? tarn_sum(leaf[0], TARN_AXES(0, 1), false)
           : how == 1 ? tarn_mean(leaf[0], TARN_AXES(0, 1), false)
                      : tarn_max(leaf[0], TARN_AXES(1, 0), false);
}

/* Widths that fill a wave of blocks well and badly; row counts that are not a multiple of a block's, and too few. */
static void long_columns_match_the_cpu(void **state)
{
    NEEDS_GPU();
    static const int64_t sizes[][3] = {{8, 4096, 96},   {1, 5003, 768},  {3, 701, 2304}, {1, 70001, 8},
                                       {1, 2049, 5120}, {1, 513, 12800}, {1, 511, 64},   {2, 600, 1030}};
    for (int d = 0; d < DTYPES; d++)
        for (int i = 0; i < 8; i++)
            for (int how = 0; how < 3; how++) {
                tarn_scope *scope = tarn_scope_open();
                tarn_shape shape = TARN_SHAPE(sizes[i][0], sizes[i][1], sizes[i][2]);
                tarn_tensor *leaf[MOST] = {good(tarn_normal(shape, 0.1, 1, dtypes[d], CPU))};
                agrees_with_the_cpu(reduce_first, leaf, &how, tolerances[d]);
                tarn_scope_close(scope);
            }
}

/* ---- losses ------------------------------------------------------------------------------------------------------ */

static tarn_tensor *next_token_loss(tarn_tensor *const *leaf, const void *options)
{
    return tarn_linear_cross_entropy_sized(leaf[0], leaf[1], leaf[2], options, sizeof(tarn_cross_entropy_options));
}

/* Half of the targets are 0. */
static tarn_tensor *uneven_targets(int64_t rows, int64_t classes)
{
    tarn_tensor *where = good(tarn_uniform(TARN_SHAPE(rows), -(double)classes, (double)classes, TARN_F64, CPU));
    return good(tarn_cast(tarn_maximum(where, tarn_scalar(0)), TARN_I64));
}

/* Classes whose rows are fetched ahead, and those just below and above; fewer rows than blocks, and several per
 * block. */
static void losses_of_long_rows_match_the_cpu(void **state)
{
    NEEDS_GPU();
    static const int64_t classes[] = {50304, 16384, 16376, 8200, 53248, 53256, 26624}, rows[] = {1, 133, 601};
    const int64_t ignored = 0;
    for (int d = 0; d < F64; d++)
        for (int c = 0; c < 7; c++)
            for (int r = 0; r < 3; r++) {
                tarn_scope *scope = tarn_scope_open();
                tarn_cross_entropy_options options = {.label_smoothing = (c + r) % 2 ? 0.1 : 0,
                                                      .ignore_index = (c + r + d) % 3 ? &ignored : NULL,
                                                      .reduction = r == 1 ? TARN_REDUCE_SUM : TARN_REDUCE_MEAN};
                tarn_tensor *leaf[MOST] = {good(tarn_normal(TARN_SHAPE(rows[r], 8), 0, 0.5, dtypes[d], CPU)),
                                           good(tarn_normal(TARN_SHAPE(classes[c], 8), 0, 1, dtypes[d], CPU)),
                                           uneven_targets(rows[r], classes[c])};
                agrees_with_the_cpu(next_token_loss, leaf, &options, tolerances[d]);
                tarn_scope_close(scope);
            }
}

/* Gradients of x for rows in many blocks. */
static void losses_of_long_rows_are_deterministic(void **state)
{
    NEEDS_GPU();
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(1201, 16), 0, 1, TARN_BF16, gpu)),
                *weight = good(tarn_normal(TARN_SHAPE(50304, 16), 0, 1, TARN_BF16, gpu)),
                *target = good(tarn_to(uneven_targets(1201, 50304), gpu));
    double *bits[2];
    for (int i = 0; i < 2; i++) {
        tarn_tensor *leaf = tarn_requires_grad(good(tarn_clone(x)), true);
        assert_true(tarn_backward(good(tarn_linear_cross_entropy(leaf, weight, target, NULL))));
        bits[i] = values_of(good(tarn_grad(leaf)));
    }
    assert_memory_equal(bits[0], bits[1], sizeof(double) * 1201 * 16);
    free(bits[0]);
    free(bits[1]);
}

/* ---- embeddings -------------------------------------------------------------------------------------------------- */

static tarn_tensor *look_up(tarn_tensor *const *leaf, const void *options)
{
    (void)options;
    return tarn_embedding(leaf[0], leaf[1]);
}

/* More indices than are compared pairwise: all over the table, and mostly equal. */
static void gradients_of_embeddings_match_the_cpu(void **state)
{
    NEEDS_GPU();
    static const int64_t sizes[][2] = {{3000, 64}, {70000, 24}, {50, 768}, {5, 10}};
    for (int d = 0; d < DTYPES; d++)
        for (int i = 0; i < 4; i++)
            for (int values = 0; values < 2; values++) {
                tarn_scope *scope = tarn_scope_open();
                tarn_tensor *where = good(tarn_uniform(TARN_SHAPE(9000), 0, 1, TARN_F64, CPU));
                if (values == 1)
                    where = good(tarn_mul(tarn_square(tarn_square(where)), where));
                where = good(tarn_mul(where, tarn_scalar((double)sizes[i][0])));
                tarn_tensor *leaf[MOST] = {
                    good(tarn_normal(TARN_SHAPE(sizes[i][0], sizes[i][1]), 0, 1, dtypes[d], CPU)),
                    good(tarn_cast(where, TARN_I64))};
                agrees_with_the_cpu(look_up, leaf, NULL, tolerances[d]);
                tarn_scope_close(scope);
            }
}

/* ---- matmul of flipped batches ----------------------------------------------------------------------------------- */

static tarn_tensor *multiply(tarn_tensor *const *leaf, const void *options)
{
    int which = *(const int *)options;
    tarn_tensor *a = which & 1 ? tarn_flip(leaf[0], TARN_AXES(0)) : leaf[0],
                *b = which & 2 ? tarn_flip(leaf[1], TARN_AXES(0)) : leaf[1];
    return tarn_matmul(a, b);
}

static void matmul_of_flipped_batches_matches_the_cpu(void **state)
{
    NEEDS_GPU();
    for (int d = 0; d < DTYPES; d++)
        for (int which = 0; which < 4; which++) {
            tarn_scope *scope = tarn_scope_open();
            tarn_tensor *leaf[MOST] = {good(tarn_normal(TARN_SHAPE(5, 24, 40), 0, 1, dtypes[d], CPU)),
                                       good(tarn_normal(TARN_SHAPE(5, 40, 16), 0, 1, dtypes[d], CPU))};
            agrees_with_the_cpu(multiply, leaf, &which, tolerances[d]);
            tarn_scope_close(scope);
        }
}

int main(void)
{
#define ON_GPU(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)
    const struct CMUnitTest tests[] = {
        ON_GPU(norms_match_the_cpu),
        ON_GPU(gradients_of_norms_keep_f32_range),
        ON_GPU(rope_matches_the_cpu),
        ON_GPU(gradients_of_max_and_min_match_the_cpu),
        ON_GPU(long_columns_match_the_cpu),
        ON_GPU(losses_of_long_rows_match_the_cpu),
        ON_GPU(losses_of_long_rows_are_deterministic),
        ON_GPU(gradients_of_embeddings_match_the_cpu),
        ON_GPU(matmul_of_flipped_batches_matches_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
