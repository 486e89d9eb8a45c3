/* test_write_rows.c: rows written at positions known on the device only, as KV caches need them. TARN_TEST_DEVICE
 * names the device; default: the CPU. */
#include "ops/internal.h"
#include "support/check.h"

#define CPU tarn_device_cpu()

static tarn_device device;

/* x [B, H, T, D] in another order in memory, written into y [B, H, S, D]: what is not written stays. */
static void put_random(uint64_t *seed, tarn_dtype dtype)
{
    int64_t B = 1 + random_below(seed, 3), H = 1 + random_below(seed, 3), T = 1 + random_below(seed, 3),
            D = 1 + random_below(seed, 20), S = T + random_below(seed, 9);
    int64_t place[3];
    for (int64_t b = 0; b < B; b++)
        place[b] = random_below(seed, S - T + 1);
    tarn_tensor *x = tarn_permute(
        tarn_cast(tarn_reshape(tarn_arange(1, (double)(B * H * T * D + 1), 1, TARN_F32, CPU), TARN_SHAPE(B, T, H, D)),
                  dtype),
        TARN_AXES(0, 2, 1, 3));
    tarn_tensor *y = tarn_zeros(TARN_SHAPE(B, H, S, D), dtype, CPU), *expected = tarn_clone(y);
    for (int64_t b = 0; b < B; b++)
        tarn_copy(tarn_slice(tarn_slice(expected, 0, b, b + 1), 2, place[b], place[b] + T), tarn_slice(x, 0, b, b + 1));
    tarn_tensor *there = tarn_to(y, device), *index = tarn_to(tarn_from_i64(place, TARN_SHAPE(B), CPU), device);
    if (random_below(seed, 2))
        index = tarn_cast(index, TARN_I32);
    assert_true(tarn__write_rows("put", there, 2, index, tarn_to(x, device)));
    assert_close(tarn_to(there, CPU), expected, 0);
}

static void rows_go_to_their_places(void **state)
{
    (void)state;
    uint64_t seed = test_seed(12);
    const tarn_dtype dtypes[] = {TARN_F32, TARN_F64, TARN_BF16, TARN_F16, TARN_U8, TARN_I64};
    for (int i = 0; i < 120; i++)
        put_random(&seed, dtypes[i % 6]);
}

static void a_place_outside_is_an_error(void **state)
{
    (void)state;
    const int64_t places[] = {0, 3};
    tarn_tensor *y = tarn_zeros(TARN_SHAPE(2, 1, 4, 2), TARN_F32, CPU),
                *x = tarn_ones(TARN_SHAPE(2, 1, 2, 2), TARN_F32, CPU);
    assert_false(tarn__write_rows("put", y, 2, tarn_from_i64(places, TARN_SHAPE(2), CPU), x));
    assert_error(TARN_ERROR_ARGUMENT, "put: index 3 is outside the axis");
}

int main(void)
{
    device = test_device("cpu");
    const struct CMUnitTest tests[] = {in_scope(rows_go_to_their_places), in_scope(a_place_outside_is_an_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
