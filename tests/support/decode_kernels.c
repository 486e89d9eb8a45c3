/* decode_kernels.c: kernels of a decode step compared with the CPU (decode_kernels.h). */
#include "support/decode_kernels.h"

#include <math.h>
#include <stdlib.h>

#include "models/lm/kv_cache.h"
#include "ops/internal.h"
#include "support/check.h"

#define CPU tarn_device_cpu()

int64_t runs_of(tarn__kernel kernel)
{
    int64_t runs = 0;
    for (int slot = 0; slot < TARN__MAX_BACKENDS; slot++)
        runs += tarn__kernel_runs(slot, kernel);
    return runs;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* Fills a cache with some tokens, the same on both devices. */
static void fill_past(tarn__kv_cache *cache, const past *p)
{
    for (int part = 0; part < 2; part++) {
        tarn_shape shape = TARN_SHAPE(p->batch, p->kv_heads, p->length + 2, p->depth),
                   scales = TARN_SHAPE(p->batch, p->kv_heads, p->length + 2, tarn__kv_q8_scales(p->depth));
        bool is_coded = p->stored == TARN_U8;
        tarn_tensor *rows =
            is_coded ? tarn_uniform(shape, 0, 255.9, TARN_F32, CPU) : tarn_normal(shape, 0, 1, p->stored, CPU);
        tarn_tensor *scale =
            is_coded ? good(tarn_cast(tarn_uniform(scales, 0.005, 0.02, TARN_F32, CPU), TARN_F16)) : NULL;
        rows = good(tarn_cast(rows, p->stored));
        for (int i = 0; i < 2; i++)
            assert_true(tarn_copy(cache[i].rows[part].rows, rows) &&
                        (!scale || tarn_copy(cache[i].rows[part].scale, scale)));
    }
    for (int i = 0; i < 2; i++)
        for (int64_t b = 0; b < p->batch; b++) {
            /* sequences of different lengths */
            tarn__kv_cache_advance(&cache[i], b, 1, p->length + 1 - b % 2 * (p->length > 5 ? 4 : 0));
            assert_true(tarn__kv_cache_rewind(&cache[i], b, cache[i].length[b] - 1));
        }
}

void tokens_attend(const past *p, const tarn_rope_options *rope, tarn_device device)
{
    const tarn__kv_cache_shape shape = {.layers = 1,
                                        .batch = p->batch,
                                        .heads = p->kv_heads,
                                        .capacity = p->length + 2,
                                        .head_dim = p->depth,
                                        .dtype = p->stored};
    const double tolerance = p->dtype != TARN_F32    ? 3e-2
                             : p->stored == TARN_F32 ? 2e-5
                             : p->stored == TARN_F16 ? 2e-3
                                                     : 2e-2;
    tarn__kv_cache cache[2];
    tarn_device devices[] = {CPU, device};
    for (int i = 0; i < 2; i++) {
        tarn__kv_cache_shape own = shape;
        own.map = tarn__device_map_one(devices[i]);
        assert_true(tarn__kv_cache_open("test", &cache[i], &own));
    }
    fill_past(cache, p);
    for (int step = 0; step < 2; step++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *part[3], *y[2];
        for (int i = 0; i < 3; i++)
            part[i] =
                good(tarn_normal(TARN_SHAPE(p->batch, 1, i ? p->kv_heads : p->heads, p->depth), 0, 1, p->dtype, CPU));
        tarn_stats_reset();
        for (int i = 0; i < 2; i++) {
            const tarn__decode_attention_options how = {.rope = rope, .window = p->window, .softcap = p->softcap};
            assert_true(tarn__kv_cache_begin_step(&cache[i], 0, p->batch, 1, step ? shape.capacity : 0));
            y[i] = good(tarn__kv_cache_rotate_and_attend(&cache[i], 0, tarn_to(part[0], devices[i]),
                                                         tarn_to(part[1], devices[i]), tarn_to(part[2], devices[i]),
                                                         &how));
            assert_true(tarn__kv_cache_end_step(&cache[i]));
            tarn__kv_cache_advance(&cache[i], 0, p->batch, 1);
        }
        assert_int_equal(runs_of(TARN__K_attention_decode), 1);
        assert_close_for_size(good(tarn_to(y[1], CPU)), y[0], tolerance);
        tarn_scope_close(scope);
    }
    for (int part = 0; part < 2; part++) /* the appended row */
        assert_close(good(tarn_to(cache[1].rows[part].rows, CPU)), cache[0].rows[part].rows,
                     p->stored == TARN_U8                            ? 1.0 / 64
                     : p->stored == p->dtype && p->dtype == TARN_F32 ? 1e-5
                                                                     : 2e-2);
    for (int part = 0; part < 2 && p->stored == TARN_U8; part++)
        assert_close(good(tarn_to(cache[1].rows[part].scale, CPU)), cache[0].rows[part].scale,
                     p->dtype == TARN_F32 ? 2e-3 : 2e-2);
    for (int i = 0; i < 2; i++)
        tarn__kv_cache_close(&cache[i]);
}

/* ---- argmax ------------------------------------------------------------------------------------------------------ */

void argmax_matches(int64_t n, tarn_dtype dtype, tarn_device device)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(5, n), 0, 1, dtype, CPU)),
                *middle = good(tarn_slice(x, 1, n / 2, n / 2 + 1));
    assert_true(tarn_fill_inplace(tarn_slice(middle, 0, 1, 2), NAN) &&
                tarn_fill_inplace(tarn_slice(middle, 0, 2, 3), INFINITY));
    /* the first of equal elements */
    assert_true(tarn_fill_inplace(tarn_slice(x, 0, 3, 4), -INFINITY) && tarn_fill_inplace(tarn_slice(x, 0, 4, 5), 0.5));
    tarn_stats_reset();
    tarn_tensor *found = good(tarn__argmax_finite(tarn_to(x, device)));
    assert_int_equal(runs_of(TARN__K_argmax_finite), 1);
    assert_close(good(tarn_to(found, CPU)), good(tarn__argmax_finite(x)), 0);
    double *values = values_of(good(tarn_to(found, CPU)));
    assert_true(values[0] >= 0 && values[1] == -1 && values[2] == -1 && values[3] == -1 && values[4] == 0);
    free(values);
    tarn_scope_close(scope);
}
