/* test_conv_geometry.c: chunks of convolutions, and the rows that a band needs, against every window of it. */
#include "base/kernel/conv_geometry.h"
#include "support/check.h"

/* Kernel, stride, padding and dilation along the rows, and sizes that fit each other. */
static tarn__conv_geometry random_geometry(uint64_t *seed)
{
    for (;;) {
        tarn__conv_geometry g = {.kernel = {1 + random_below(seed, 5), 1},
                                 .stride = {1 + random_below(seed, 4), 1},
                                 .padding = {random_below(seed, 7), 0},
                                 .dilation = {1 + random_below(seed, 3), 1},
                                 .image = {1 + random_below(seed, 20), 1},
                                 .result = {0, 1}};
        int64_t room = g.image[0] + 2 * g.padding[0] - (g.kernel[0] - 1) * g.dilation[0] - 1;
        if (room < 0)
            continue;
        g.result[0] = room / g.stride[0] + 1;
        return g;
    }
}

/* True when a row of the result reads an image row of [first, end). */
static bool touches(const tarn__conv_geometry *g, int64_t row, int64_t first, int64_t end)
{
    for (int64_t k = 0; k < g->kernel[0]; k++) {
        int64_t at = row * g->stride[0] - g->padding[0] + k * g->dilation[0];
        if (at >= first && at < end)
            return true;
    }
    return false;
}

static void every_window_of_a_band_is_in_its_rows(void **state)
{
    (void)state;
    uint64_t seed = test_seed(1);
    for (int i = 0; i < 2000; i++) {
        tarn__conv_geometry g = random_geometry(&seed);
        for (int64_t band = 1; band <= g.image[0]; band++)
            for (int64_t first = 0; first < g.image[0]; first += band) {
                int64_t here = first + band > g.image[0] ? g.image[0] - first : band, row, rows;
                tarn__conv_result_rows(&g, first, here, &row, &rows);
                assert_true(row >= 0 && rows >= 0 && row + rows <= g.result[0]);
                assert_true(rows <= tarn__conv_max_result_rows(&g, band));
                for (int64_t r = 0; r < g.result[0]; r++)
                    assert_true((r >= row && r < row + rows) || !touches(&g, r, first, first + here));
                if (here == g.image[0])
                    assert_true(row == 0 && rows == g.result[0]);
            }
    }
}

static void bands_need_no_more_rows_than_allowed(void **state)
{
    (void)state;
    uint64_t seed = test_seed(2);
    for (int i = 0; i < 2000; i++) {
        tarn__conv_geometry g = random_geometry(&seed);
        int64_t rows = 1 + random_below(&seed, g.result[0]), reach = (g.kernel[0] - 1) * g.dilation[0];
        int64_t band = tarn__conv_band_rows(&g, rows);
        assert_true(band >= 1 && band <= g.image[0]);
        if (band < g.image[0] && band == (rows - 1) * g.stride[0] - reach)
            assert_true(tarn__conv_max_result_rows(&g, band) <= rows);
    }
}

static void chunks_cover_all_items_evenly(void **state)
{
    (void)state;
    for (int64_t count = 0; count < 40; count++)
        for (int64_t limit = 1; limit < 45; limit++) {
            int64_t size = tarn__conv_even_chunk(count, limit), least = (count + limit - 1) / limit;
            assert_true(size >= 1 && size <= limit);
            assert_int_equal((count + size - 1) / size, least);
        }
    assert_int_equal(tarn__conv_items_in(100, 30), 3);
    assert_int_equal(tarn__conv_items_in(100, 200), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_window_of_a_band_is_in_its_rows),
        cmocka_unit_test(bands_need_no_more_rows_than_allowed),
        cmocka_unit_test(chunks_cover_all_items_evenly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
