/* test_decode_rows.c: the linear layers of a decode step with several rows of x on a CUDA device, where tensor cores
 * multiply: against composed operations on the CPU; a row is bitwise identical whatever the other rows are; and a model
 * that decodes more sequences than other kernels support. Skipped without a device. */
#include <math.h>

#include "ops/internal.h"
#include "support/decode_kernels.h"
#include "support/gpu.h"

enum { DTYPES = 5, MAX_ROWS = 16 };

static const tarn_dtype dtypes[DTYPES] = {TARN_BF16, TARN_F16, TARN_Q8_0, TARN_Q4_K, TARN_Q6_K};

static tarn_tensor *here(tarn_tensor *x)
{
    return good(tarn_to(good(x), CPU));
}

/* f16 goes with f16, all others with bf16. */
static tarn_dtype dtype_of_x(tarn_dtype weight)
{
    return weight == TARN_F16 ? TARN_F16 : TARN_BF16;
}

/* Tolerance for the rounding of x, of the norm's result and of y, and of quantized x. */
static double tolerance_of(tarn_dtype weight)
{
    return (weight == TARN_F16 ? 4e-3 : 3e-2) + (tarn_dtype_block_size(weight) > 1 ? 8e-3 : 0);
}

/* The operands of a layer, on one device. */
typedef struct operands {
    tarn_tensor *x, *weight[3], *bias, *sum;
    tarn__decode_norm norm;
} operands;

typedef struct shape {
    tarn_dtype weight;
    int64_t in, out[3];
    bool has_norm, is_layernorm;
} shape;

static operands operands_of(const shape *s)
{
    const tarn_dtype dtype = dtype_of_x(s->weight);
    operands o = {.x = good(tarn_normal(TARN_SHAPE(MAX_ROWS, 1, s->in), 0.2, 2, dtype, CPU)),
                  .bias = good(tarn_normal(TARN_SHAPE(s->out[0]), 0, 1, dtype, CPU)),
                  .sum = good(tarn_normal(TARN_SHAPE(MAX_ROWS, 1, s->out[0]), 0, 1, dtype, CPU)),
                  .norm = {.epsilon = 1e-5, .is_layernorm = s->is_layernorm}};
    for (int i = 0; i < 3; i++)
        o.weight[i] = good(
            tarn_cast(tarn_normal(TARN_SHAPE(s->out[i], s->in), 0, 1 / sqrt((double)s->in), TARN_F32, CPU), s->weight));
    if (s->has_norm)
        o.norm.weight = good(tarn_normal(TARN_SHAPE(s->in), 1, 0.3, dtype, CPU));
    if (s->has_norm && s->is_layernorm)
        o.norm.bias = good(tarn_normal(TARN_SHAPE(s->in), 0, 1, dtype, CPU));
    return o;
}

static operands operands_there(const operands *o)
{
    operands far = *o;
    far.x = there(o->x), far.bias = there(o->bias), far.sum = there(o->sum);
    for (int i = 0; i < 3; i++)
        far.weight[i] = there(o->weight[i]);
    far.norm.weight = there(o->norm.weight), far.norm.bias = there(o->norm.bias);
    return far;
}

enum { RESULTS = 5 };

/* Layers of the first rows: three weights at once; the first of them as gate and as up; a projection that is added. */
static void run(const operands *o, int64_t rows, tarn_tensor **y)
{
    tarn_tensor *x = good(tarn_slice(o->x, 0, 0, rows)), *sum = good(tarn_slice(o->sum, 0, 0, rows)),
                *biases[] = {o->bias, NULL, NULL};
    assert_true(tarn__norm_linear(x, &o->norm, (tarn_tensor **)o->weight, biases, 3, y));
    y[3] = good(tarn__norm_gate_up(x, &o->norm, o->weight[0], o->weight[0], TARN_SILU));
    y[4] = good(tarn__linear_residual(x, o->weight[0], o->bias, sum, 0.5));
}

static void rows_agree(const shape *s)
{
    static const int64_t counts[] = {2, 3, 5, 8, 9, 16};
    tarn_scope *scope = tarn_scope_open();
    const operands near = operands_of(s), far = operands_there(&near);
    tarn_tensor *y[RESULTS];
    run(&near, MAX_ROWS, y);
    for (int i = 0; i < 6; i++) {
        tarn_tensor *z[RESULTS];
        tarn_stats_reset();
        run(&far, counts[i], z);
        assert_int_equal(runs_of(TARN__K_norm_linear), 1);
        assert_int_equal(runs_of(TARN__K_norm_gate_up), 1);
        assert_int_equal(runs_of(TARN__K_linear_residual), 1);
        for (int k = 0; k < RESULTS; k++)
            assert_close_for_size(here(z[k]), good(tarn_slice(y[k], 0, 0, counts[i])),
                                  (k == 3 ? 2 : 1) * tolerance_of(s->weight));
    }
    tarn_scope_close(scope);
}

/* One slice of a row and many, partial tiles, layernorm, x in shared memory and straight from device memory. Rows of
 * Q6_K are whole vectors, except every second one with 3,072 elements, where all tiles are whole. */
static void rows_match_the_cpu(void **state)
{
    NEEDS_GPU();
    static const int64_t lengths[] = {256, 1024, 2048, 2304, 3072};
    for (int d = 0; d < DTYPES; d++)
        for (int i = is_quick() ? 4 : 0; i < 5; i++) {
            const bool is_whole = lengths[i] == 3072, is_q6_k = dtypes[d] == TARN_Q6_K;
            if (is_q6_k && lengths[i] != 2048 && lengths[i] != 3072)
                continue;
            rows_agree(&(shape){.weight = dtypes[d],
                                .in = lengths[i],
                                .out = {is_whole ? 48 : 40 + 2 * i, is_whole ? 16 : 6, is_whole ? 32 : 24},
                                .has_norm = (d + i) % 3 != 0,
                                .is_layernorm = (d + i) % 3 == 2});
        }
}

/* Rows that are too long to stage as floats have no norm. */
static void long_rows_match_the_cpu(void **state)
{
    NEEDS_GPU();
    for (int d = 0; d < DTYPES; d++)
        rows_agree(&(shape){.weight = dtypes[d], .in = 8192, .out = {24, 16, 8}});
}

/* More tiles than blocks: each block has several at a time. */
static void many_tiles_match_the_cpu(void **state)
{
    NEEDS_GPU();
    for (int d = 0; d < DTYPES; d++)
        rows_agree(&(shape){
            .weight = dtypes[d], .in = dtypes[d] == TARN_Q6_K ? 2048 : 1024, .out = {9002, 514, 2}, .has_norm = true});
}

/* With two rows or sixteen. */
static void a_row_is_bitwise_identical_with_any_others(void **state)
{
    NEEDS_GPU();
    for (int d = 0; d < 3 * DTYPES; d++) {
        tarn_scope *scope = tarn_scope_open();
        const shape s = {.weight = dtypes[d / 3],
                         .in = d % 3 == 0 ? 2048 : 3072,
                         .out = {d % 3 == 1 ? 8992 : 96, 16, 32},
                         .has_norm = true,
                         .is_layernorm = d % 3 == 2};
        const operands near = operands_of(&s), far = operands_there(&near);
        tarn_tensor *all[RESULTS];
        run(&far, MAX_ROWS, all);
        for (int64_t rows = 2; rows <= MAX_ROWS; rows++) {
            tarn_tensor *y[RESULTS];
            run(&far, rows, y);
            for (int k = 0; k < RESULTS; k++)
                assert_close(here(y[k]), here(tarn_slice(all[k], 0, 0, rows)), 0);
        }
        tarn_scope_close(scope);
    }
}

/* NaN in a row does not affect other rows. */
static void nan_stays_in_its_row(void **state)
{
    NEEDS_GPU();
    for (int d = 0; d < DTYPES; d++) {
        tarn_scope *scope = tarn_scope_open();
        const shape s = {.weight = dtypes[d], .in = 2048, .out = {40, 8, 8}, .has_norm = true};
        const operands near = operands_of(&s);
        operands far = operands_there(&near);
        tarn_tensor *y[RESULTS], *with_nan[RESULTS];
        run(&far, 10, y);
        assert_true(tarn_fill_inplace(tarn_slice(tarn_slice(far.x, 0, 3, 4), 2, 100, 101), NAN));
        run(&far, 10, with_nan);
        for (int k = 0; k < RESULTS; k++) {
            assert_close(here(tarn_slice(with_nan[k], 0, 4, 10)), here(tarn_slice(y[k], 0, 4, 10)), 0);
            assert_close(here(tarn_slice(with_nan[k], 0, 0, 3)), here(tarn_slice(y[k], 0, 0, 3)), 0);
            assert_true(isnan(tarn_item(
                tarn_sum(tarn_cast(here(tarn_slice(with_nan[k], 0, 3, 4)), TARN_F32), TARN_ALL_AXES, false))));
        }
        tarn_scope_close(scope);
    }
}

/* Formats and numbers of rows that no kernel supports are composed. */
static void other_rows_are_composed(void **state)
{
    NEEDS_GPU();
    static const tarn_dtype others[] = {TARN_F32, TARN_Q4_0};
    for (int d = 0; d < 2; d++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *x = good(tarn_normal(TARN_SHAPE(9, 1, 512), 0, 1, TARN_F32, CPU)),
                    *w = good(tarn_cast(tarn_normal(TARN_SHAPE(40, 512), 0, 0.05, TARN_F32, CPU), others[d])), *y, *far,
                    *far_w = there(w);
        tarn_stats_reset();
        assert_true(tarn__norm_linear(there(x), &(tarn__decode_norm){0}, &far_w, NULL, 1, &far));
        assert_int_equal(runs_of(TARN__K_norm_linear), 0);
        assert_true(tarn__norm_linear(x, &(tarn__decode_norm){0}, &w, NULL, 1, &y));
        assert_close_for_size(here(far), y, 2e-2);
        tarn_scope_close(scope);
    }
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

enum { SEQUENCES = 12, PROMPT = 20, STEPS = 6, VOCAB = 320 };

/* Logits of some tokens of each sequence after a prompt. */
static void decode(tarn_module *model, tarn_device device, bool no_capture, tarn_tensor **logits)
{
    int64_t tokens[SEQUENCES * (PROMPT + STEPS)];
    for (int i = 0; i < SEQUENCES * (PROMPT + STEPS); i++)
        tokens[i] = i * 37 % VOCAB;
    tarn_decoder *decoder =
        tarn_decoder_new(model, &(tarn_decoder_options){.batch = SEQUENCES, .no_capture = no_capture});
    tarn_tensor *all = good(tarn_from_i64(tokens, TARN_SHAPE(SEQUENCES, PROMPT + STEPS), device));
    good(tarn_decoder_feed(decoder, tarn_slice(all, 1, 0, PROMPT)));
    tarn_stats_reset();
    for (int i = 0; i < STEPS; i++)
        logits[i] = here(tarn_decoder_feed(decoder, tarn_slice(all, 1, PROMPT + i, PROMPT + i + 1)));
    tarn_decoder_free(decoder);
}

static void many_sequences_take_the_fused_step(void **state)
{
    NEEDS_GPU();
    const tarn_llama_config config = {.vocab_size = VOCAB,
                                      .context = 64,
                                      .layers = 3,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .hidden_size = 256,
                                      .ffn_size = 512,
                                      .dtype = TARN_BF16,
                                      .arch = "llama"};
    tarn_module *model = tarn_model_llama(&config, CPU, 5);
    tarn_tensor *expected[STEPS], *captured[STEPS], *eager[STEPS];
    assert_ok();
    decode(model, CPU, true, expected);
    assert_true(tarn_module_to(model, gpu));
    decode(model, gpu, false, captured);
    decode(model, gpu, true, eager);
    assert_int_equal(runs_of(TARN__K_norm_gate_up), 3 * STEPS);
    for (int t = 0; t < STEPS; t++) {
        assert_close(captured[t], eager[t], 0);
        assert_close_for_size(captured[t], expected[t], 8e-2);
    }
    tarn_module_free(model);
}

#define on_gpu(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)

int main(void)
{
    cmocka_set_test_filter(getenv("TARN_TEST_ONLY"));
    const struct CMUnitTest tests[] = {
        on_gpu(rows_match_the_cpu),
        on_gpu(long_rows_match_the_cpu),
        on_gpu(many_tiles_match_the_cpu),
        on_gpu(a_row_is_bitwise_identical_with_any_others),
        on_gpu(nan_stays_in_its_row),
        on_gpu(other_rows_are_composed),
        on_gpu(many_sequences_take_the_fused_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
