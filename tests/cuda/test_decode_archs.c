/* test_decode_archs.c: the decode step of every architecture on a CUDA device: GEMV of weights stored as [in, out],
 * post-norms, and whole models against the CPU, with the kernels that a layer takes. Skipped without a device. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/internal.h"
#include "support/arch_models.h"
#include "support/decode_kernels.h"
#include "support/gpu.h"

/* Rounding of x, of the norm's result and of y. */
static double tolerance_of(tarn_dtype x)
{
    return x == TARN_F32 ? 1e-5 : x == TARN_F16 ? 4e-3 : 3e-2;
}

/* ---- weights [in, out] ------------------------------------------------------------------------------------------- */

typedef struct product {
    tarn_dtype x, weight;
    int64_t rows, in, out;
    bool is_layernorm, has_bias;
} product;

static void products_agree(const product *p)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(p->rows, 1, p->in), 0, 2, p->x, CPU)),
                *w = good(tarn_normal(TARN_SHAPE(p->in, p->out), 0, 1 / sqrt((double)p->in), p->weight, CPU)),
                *bias = p->has_bias ? good(tarn_normal(TARN_SHAPE(p->out), 0, 1, p->x, CPU)) : NULL,
                *sum = good(tarn_normal(TARN_SHAPE(p->rows, 1, p->out), 0, 1, p->x, CPU)), *view = tarn__transposed(w),
                *far_view = tarn__transposed(there(w)), *far_bias = there(bias), *y, *far, *again;
    tarn__decode_norm norm = {.weight = good(tarn_normal(TARN_SHAPE(p->in), 1, 0.3, p->x, CPU)),
                              .epsilon = 1e-5,
                              .is_layernorm = p->is_layernorm},
                      far_norm;
    norm.bias = p->is_layernorm ? good(tarn_normal(TARN_SHAPE(p->in), 0, 1, p->x, CPU)) : NULL;
    far_norm = norm, far_norm.weight = there(norm.weight), far_norm.bias = there(norm.bias);
    tarn_stats_reset();
    assert_true(tarn__norm_linear(there(x), &far_norm, &far_view, &far_bias, 1, &far));
    assert_true(tarn__norm_linear(there(x), &far_norm, &far_view, &far_bias, 1, &again));
    assert_int_equal(runs_of(TARN__K_norm_linear), 2);
    assert_true(tarn__norm_linear(x, &norm, &view, &bias, 1, &y));
    assert_close_for_size(good(tarn_to(far, CPU)), y, tolerance_of(p->x));
    assert_close(good(tarn_to(far, CPU)), good(tarn_to(again, CPU)), 0);
    far = good(tarn__norm_up(there(x), &far_norm, far_view, far_bias, TARN_GELU));
    assert_close_for_size(good(tarn_to(far, CPU)), good(tarn__norm_up(x, &norm, view, bias, TARN_GELU)),
                          2 * tolerance_of(p->x));
    far = good(tarn__linear_residual(there(x), far_view, far_bias, there(sum), 0.5));
    assert_int_equal(runs_of(TARN__K_linear_residual), 1);
    assert_close_for_size(good(tarn_to(far, CPU)), good(tarn__linear_residual(x, view, bias, sum, 0.5)),
                          tolerance_of(p->x));
    tarn_scope_close(scope);
}

/* Shorter than the threads of a block, several batches of rows, tiles that end early, all widths of a tile. */
static void weights_in_out_match_the_cpu(void **state)
{
    NEEDS_GPU();
    static const int64_t in[] = {8, 64, 768, 3072, 8192}, out[] = {8, 104, 768, 2304, 12808};
    static const tarn_dtype dtypes[][2] = {
        {TARN_F32, TARN_F32}, {TARN_BF16, TARN_BF16}, {TARN_F16, TARN_F16}, {TARN_F32, TARN_BF16}};
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 5; k++)
            for (int d = 0; d < 4; d++)
                products_agree(&(product){.x = dtypes[d][0],
                                          .weight = dtypes[d][1],
                                          .rows = 1 + (i + k + d) % 3 * 3,
                                          .in = in[i],
                                          .out = out[k],
                                          .is_layernorm = (i + d) % 2 == 0,
                                          .has_bias = k % 2 == 0});
}

/* Three weights in one launch; the composed form where columns are not whole vectors. */
static void several_and_odd_weights_in_out_work(void **state)
{
    NEEDS_GPU();
    static const int64_t out[] = {40, 1024, 7};
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(2, 96), 0, 1, TARN_F32, CPU)), *w[3], *far_w[3], *y[3], *far[3];
    for (int i = 0; i < 3; i++) {
        tarn_tensor *weight = good(tarn_normal(TARN_SHAPE(96, out[i]), 0, 0.1, TARN_F32, CPU));
        w[i] = good(tarn__transposed(weight)), far_w[i] = good(tarn__transposed(there(weight)));
    }
    for (int count = 2; count <= 3; count++) {
        tarn_stats_reset();
        assert_true(tarn__norm_linear(there(x), &(tarn__decode_norm){0}, far_w, NULL, count, far));
        assert_int_equal(runs_of(TARN__K_norm_linear), count == 2);
        assert_true(tarn__norm_linear(x, &(tarn__decode_norm){0}, w, NULL, count, y));
        for (int i = 0; i < count; i++)
            assert_close_for_size(good(tarn_to(far[i], CPU)), y[i], 1e-5);
    }
}

/* ---- post-norms -------------------------------------------------------------------------------------------------- */

static void post_norms_match_the_cpu(void **state)
{
    NEEDS_GPU();
    static const tarn_dtype floats[] = {TARN_F32, TARN_BF16, TARN_F16};
    static const int64_t sizes[] = {8, 64, 2304, 4096, 5120, 8192};
    for (int i = 0; i < 6 * 3 * 3; i++) {
        tarn_scope *scope = tarn_scope_open();
        const tarn_dtype dtype = floats[i % 3];
        const int64_t n = sizes[i / 9], rows = 1 + i % 8;
        tarn_tensor *x = good(tarn_normal(TARN_SHAPE(rows, 1, n), 0.5, 2, dtype, CPU)),
                    *sum = good(tarn_normal(TARN_SHAPE(rows, 1, n), 0, 1, dtype, CPU));
        tarn__decode_norm norm = {.weight = good(tarn_normal(TARN_SHAPE(n), 1, 0.3, dtype, CPU)),
                                  .epsilon = 1e-5,
                                  .offset = i / 3 % 3 == 1,
                                  .is_layernorm = i / 3 % 3 == 2},
                          far_norm;
        norm.bias = norm.is_layernorm ? good(tarn_normal(TARN_SHAPE(n), 0, 1, dtype, CPU)) : NULL;
        far_norm = norm, far_norm.weight = there(norm.weight), far_norm.bias = there(norm.bias);
        const double scale = i % 2 ? 0.22 : 1;
        tarn_stats_reset();
        tarn_tensor *far = good(tarn__norm_residual(there(x), &far_norm, there(sum), scale));
        assert_int_equal(runs_of(TARN__K_norm_residual), 1);
        assert_close_for_size(good(tarn_to(far, CPU)), good(tarn__norm_residual(x, &norm, sum, scale)),
                              tolerance_of(dtype));
        tarn_scope_close(scope);
    }
}

/* A branch with a post-norm, a norm, and weights, on one device. */
typedef struct branch {
    tarn__decode_stream stream;
    tarn__decode_norm norm;
    tarn_tensor *weight[2];
} branch;

static branch branch_of(tarn_dtype dtype, tarn_dtype weight, int64_t rows, int64_t n, int i)
{
    const double offset = i % 2, scale = i % 3 ? 0.22 : 1;
    branch b = {.stream = {.sum = good(tarn_normal(TARN_SHAPE(rows, 1, n), 0, 1, dtype, CPU)),
                           .branch = good(tarn_normal(TARN_SHAPE(rows, 1, n), 0.5, 2, dtype, CPU)),
                           .post = {.weight = good(tarn_normal(TARN_SHAPE(n), 1, 0.3, dtype, CPU)),
                                    .epsilon = 1e-5,
                                    .offset = offset},
                           .scale = scale},
                .norm = {.epsilon = 1e-6, .offset = offset}};
    b.norm.weight = i % 4 ? good(tarn_normal(TARN_SHAPE(n), 1, 0.3, dtype, CPU)) : NULL;
    for (int k = 0; k < 2; k++)
        b.weight[k] = good(tarn_cast(tarn_normal(TARN_SHAPE(129, n), 0, 1 / sqrt((double)n), TARN_F32, CPU), weight));
    return b;
}

static branch branch_there(const branch *b)
{
    branch far = *b;
    far.stream.sum = there(b->stream.sum), far.stream.branch = there(b->stream.branch);
    far.stream.post.weight = there(b->stream.post.weight), far.norm.weight = there(b->norm.weight);
    for (int k = 0; k < 2; k++)
        far.weight[k] = there(b->weight[k]);
    return far;
}

/* One kernel adds the branch and multiplies; the new sum is bitwise that of norm_residual. */
static void branch_joins(tarn_dtype dtype, tarn_dtype weight, int64_t rows, int64_t n, int i)
{
    tarn_scope *scope = tarn_scope_open();
    const branch near = branch_of(dtype, weight, rows, n, i), far = branch_there(&near);
    const double tolerance = 2 * tolerance_of(dtype) + (tarn_dtype_block_size(weight) > 1 ? 2e-2 : 0);
    tarn_tensor *sum =
        good(tarn_to(tarn__norm_residual(far.stream.branch, &far.stream.post, far.stream.sum, far.stream.scale), CPU));
    for (int form = 0; form < 3; form++) {
        tarn__decode_stream streams[2] = {near.stream, far.stream};
        const branch *side[2] = {&near, &far};
        tarn_tensor *y[2][2] = {{0}};
        tarn_stats_reset();
        for (int k = 0; k < 2; k++) {
            tarn_tensor *const *w = side[k]->weight;
            if (form == 0)
                assert_true(tarn__stream_norm_linear(&streams[k], &side[k]->norm, w, NULL, 2, y[k]));
            else
                y[k][0] = good(form == 1 ? tarn__stream_norm_gate_up(&streams[k], &side[k]->norm, w[0], w[1], TARN_GELU)
                                         : tarn__stream_logits(&streams[k], &side[k]->norm, w[0], NULL, 0.5, 2));
            assert_null(streams[k].branch);
        }
        assert_int_equal(runs_of(form == 1 ? TARN__K_norm_gate_up : TARN__K_norm_linear), 1);
        assert_int_equal(runs_of(TARN__K_norm_residual), 0);
        assert_close(good(tarn_to(streams[1].sum, CPU)), sum, 0);
        for (int k = 0; k < 2 && y[0][k]; k++)
            assert_close_for_size(good(tarn_to(y[1][k], CPU)), y[0][k], tolerance);
    }
    tarn_scope_close(scope);
}

static void branches_join_the_stream(void **state)
{
    NEEDS_GPU();
    static const tarn_dtype floats[] = {TARN_F32, TARN_BF16, TARN_F16}, quantized[] = {TARN_Q8_0, TARN_Q4_K, TARN_Q6_K};
    static const int64_t sizes[] = {8, 64, 2304, 4096};
    for (int i = 0; i < 4 * 3 * 2; i++)
        branch_joins(floats[i % 3], floats[i % 3], i % 2 ? 1 : 1 + i % 8, sizes[i / 3 % 4], i);
    for (int i = 0; i < 2 * 3 * 3; i++)
        branch_joins(floats[i % 3], quantized[i / 3 % 3], i % 2 ? 1 : 1 + i % 8, i / 9 ? 2304 : 512, i);
}

/* A row that a block does not normalize in one batch of loads, and layernorms: norm_residual runs first. */
static void other_branches_are_added_first(void **state)
{
    NEEDS_GPU();
    for (int i = 0; i < 3; i++) {
        branch near = branch_of(TARN_F32, TARN_F32, 2, i ? 64 : 8192, 2), far;
        near.stream.post.is_layernorm = i == 1, near.norm.is_layernorm = i == 2;
        far = branch_there(&near);
        tarn_tensor *y[2][2];
        tarn_stats_reset();
        assert_true(tarn__stream_norm_linear(&near.stream, &near.norm, near.weight, NULL, 2, y[0]) &&
                    tarn__stream_norm_linear(&far.stream, &far.norm, far.weight, NULL, 2, y[1]));
        assert_int_equal(runs_of(TARN__K_norm_residual), 1);
        for (int k = 0; k < 2; k++)
            assert_close_for_size(good(tarn_to(y[1][k], CPU)), y[0][k], 2e-5);
    }
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

enum { PROMPT = 12, STEPS = 8 };

/* Logits of some tokens after a prompt, of two sequences. */
static void decode(tarn_module *model, tarn_device device, bool no_capture, tarn_tensor **logits)
{
    tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.batch = 2, .no_capture = no_capture});
    tarn_tensor *tokens = good(tarn_to(arch_tokens(2, PROMPT + STEPS), device));
    good(tarn_decoder_feed(decoder, tarn_slice(tokens, 1, 0, PROMPT)));
    for (int i = 0; i < STEPS; i++)
        logits[i] = good(tarn_to(tarn_decoder_feed(decoder, tarn_slice(tokens, 1, PROMPT + i, PROMPT + i + 1)), CPU));
    tarn_decoder_free(decoder);
}

static void every_architecture_decodes_as_on_the_cpu(void **state)
{
    NEEDS_GPU();
    for (int i = 0; i < ARCH_CASES; i++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *expected[STEPS], *captured[STEPS], *eager[STEPS];
        tarn_module *model = arch_model(&arch_cases[i], 3);
        decode(model, CPU, true, expected);
        assert_true(tarn_module_to(model, gpu));
        int64_t before = tarn_stats().fallbacks;
        decode(model, gpu, false, captured);
        decode(model, gpu, true, eager);
        assert_int_equal(tarn_stats().fallbacks, before);
        for (int t = 0; t < STEPS; t++) {
            assert_close(captured[t], eager[t], 0);
            assert_close_for_size(captured[t], expected[t], 5e-4);
        }
        tarn_module_free(model);
        tarn_scope_close(scope);
    }
}

/* Kernels of a step of two and of four layers. */
static void a_layer_takes_few_kernels(void **state)
{
    NEEDS_GPU();
    for (int i = 0; i < ARCH_CASES; i++) {
        int64_t runs[2] = {0};
        for (int k = 0; k < 2; k++) {
            tarn_scope *scope = tarn_scope_open();
            tarn_module *model = arch_model(&arch_cases[i], 2 + 2 * k);
            assert_true(tarn_module_to(model, gpu));
            tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.no_capture = true});
            good(tarn_decoder_feed(decoder, there(arch_tokens(1, PROMPT))));
            tarn_tensor *token = good(tarn_zeros(TARN_SHAPE(1, 1), TARN_I64, gpu));
            tarn_stats_reset();
            good(tarn_decoder_feed(decoder, token));
            for (int kernel = 0; kernel < TARN__KERNEL_COUNT; kernel++)
                runs[k] += runs_of((tarn__kernel)kernel);
            tarn_decoder_free(decoder);
            tarn_module_free(model);
            tarn_scope_close(scope);
        }
        if (runs[1] - runs[0] != 2 * arch_cases[i].kernels)
            fail_msg("%s: two layers take %d kernels, not %d", arch_cases[i].arch, (int)(runs[1] - runs[0]),
                     2 * arch_cases[i].kernels);
    }
}

#define on_gpu(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)

int main(void)
{
    cmocka_set_test_filter(getenv("TARN_TEST_ONLY"));
    const struct CMUnitTest tests[] = {
        on_gpu(weights_in_out_match_the_cpu),   on_gpu(several_and_odd_weights_in_out_work),
        on_gpu(post_norms_match_the_cpu),       on_gpu(branches_join_the_stream),
        on_gpu(other_branches_are_added_first), on_gpu(every_architecture_decodes_as_on_the_cpu),
        on_gpu(a_layer_takes_few_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
