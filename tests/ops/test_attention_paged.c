/* test_attention_paged.c: attention over pages equals attention over the same keys and values without them, and a
 * row's bits depend on its own keys alone. TARN_TEST_DEVICE names the device; default: the CPU. */
#include "ops/internal.h"
#include "support/check.h"

#define CPU tarn_device_cpu()
#define PAGE TARN__KV_PAGE
#define MAX_SEQUENCES 5
/* Pages of a short sequence and of a long one, which kernels may split, and of two long ones or five short. */
#define SHORT_PAGES 4
#define LONG_PAGES 40
#define ALL_PAGES (2 * LONG_PAGES)

static tarn_device device;

/* ---- a paged cache ----------------------------------------------------------------------------------------------- */

/* Keys and values of some sequences: contiguous on the CPU, and in pages on the device. */
typedef struct cache {
    int64_t count, heads, kv_heads, D, max_pages;
    int64_t length[MAX_SEQUENCES];
    tarn_dtype stored;                                /* TARN_U8: quantized */
    tarn_tensor *k[MAX_SEQUENCES], *v[MAX_SEQUENCES]; /* f32 [length, KV, D], as they are stored */
    int32_t table[ALL_PAGES];                         /* [count, max_pages] */
    tarn__kv_page_rows keys, values;
} cache;

/* Pages whose rows are NaN where nothing is written. */
static tarn__kv_page_rows new_pages(const cache *c, int64_t pages)
{
    bool is_quantized = c->stored == TARN_U8;
    tarn_tensor *rows = tarn_full(TARN_SHAPE(pages, PAGE, c->kv_heads, c->D), is_quantized ? 255 : NAN, c->stored, CPU);
    tarn_tensor *scale =
        is_quantized ? tarn_full(TARN_SHAPE(pages, PAGE, c->kv_heads, tarn__kv_q8_scales(c->D)), NAN, TARN_F16, CPU)
                     : NULL;
    return (tarn__kv_page_rows){good(tarn_to(rows, device)), scale ? good(tarn_to(scale, device)) : NULL};
}

/* x as the pages hold it, in f32. */
static tarn_tensor *as_stored(const cache *c, tarn_tensor *x)
{
    tarn_tensor *scale;
    if (c->stored != TARN_U8)
        return good(tarn_cast(tarn_cast(x, c->stored), TARN_F32));
    tarn_tensor *q8 = tarn__quantize_kv(tarn_unsqueeze(x, 0), &scale);
    return good(tarn_squeeze(tarn__dequantize_kv(q8, scale, TARN_F32), 0));
}

/* Writes rows of one sequence to its slots. */
static void write_rows(const cache *c, int64_t sequence, const tarn__kv_page_rows *to, tarn_tensor *x)
{
    int64_t slots[LONG_PAGES * PAGE], count = c->length[sequence];
    for (int64_t i = 0; i < count; i++)
        slots[i] = c->table[sequence * c->max_pages + i / PAGE] * PAGE + i % PAGE;
    tarn_tensor *index = tarn_to(tarn_from_i64(slots, TARN_SHAPE(count), CPU), device);
    assert_true(tarn__write_pages(to, count % 2 ? tarn_cast(index, TARN_I32) : index, tarn_to(x, device)));
}

static int64_t draw_length(uint64_t *seed, bool is_long)
{
    static const int64_t lengths[2][6] = {{1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, SHORT_PAGES * PAGE},
                                          {1023, 1024, 1025, 2048, 2100, LONG_PAGES * PAGE}};
    return random_below(seed, 2) ? lengths[is_long][random_below(seed, 6)]
                                 : 1 + random_below(seed, (is_long ? LONG_PAGES : SHORT_PAGES) * PAGE);
}

/* Pages in a shuffled order, entries after the last page of a sequence out of range. */
static cache new_cache(uint64_t *seed, tarn_dtype stored, bool is_long)
{
    static const struct {
        int64_t heads, kv_heads, D;
    } shapes[] = {{4, 4, 64}, {8, 2, 64}, {6, 2, 24}, {2, 1, 128}, {3, 1, 40}, {4, 2, 80}, {1, 1, 256}};
    size_t shape = (size_t)random_below(seed, sizeof(shapes) / sizeof(shapes[0]));
    cache c = {.count = 1 + random_below(seed, is_long ? 2 : MAX_SEQUENCES),
               .heads = shapes[shape].heads,
               .kv_heads = shapes[shape].kv_heads,
               .D = shapes[shape].D,
               .max_pages = is_long ? LONG_PAGES : SHORT_PAGES,
               .stored = stored};
    int32_t order[ALL_PAGES], next = 0;
    for (int i = 0; i < ALL_PAGES; i++)
        order[i] = i;
    for (int i = ALL_PAGES - 1; i > 0; i--) {
        int other = (int)random_below(seed, i + 1), kept = order[i];
        order[i] = order[other], order[other] = kept;
    }
    c.keys = new_pages(&c, ALL_PAGES), c.values = new_pages(&c, ALL_PAGES);
    for (int64_t s = 0; s < c.count; s++) {
        c.length[s] = draw_length(seed, is_long);
        for (int64_t i = 0; i < c.max_pages; i++)
            c.table[s * c.max_pages + i] = i * PAGE < c.length[s] ? order[next++] : -7;
        tarn_shape rows = TARN_SHAPE(c.length[s], c.kv_heads, c.D);
        tarn_tensor *k = tarn_normal(rows, 0, 1, TARN_F32, CPU), *v = tarn_normal(rows, 0, 1, TARN_F32, CPU);
        write_rows(&c, s, &c.keys, k), write_rows(&c, s, &c.values, v);
        c.k[s] = as_stored(&c, k), c.v[s] = as_stored(&c, v);
    }
    return c;
}

static tarn_tensor *i32s(const int32_t *values, tarn_shape shape)
{
    return good(tarn_to(tarn_from(values, shape, TARN_I32, CPU), device));
}

/* The last rows[s] tokens of some sequences: q [tokens, H, D] in their order. `unused` rows follow. */
static tarn_tensor *attend(const cache *c, const int64_t *which, const int64_t *lengths, const int64_t *rows,
                           int64_t count, tarn_tensor *q, const tarn__paged_options *o)
{
    int32_t table[ALL_PAGES], starts[MAX_SEQUENCES + 1] = {0}, length[MAX_SEQUENCES];
    for (int64_t i = 0; i < count; i++) {
        memcpy(table + i * c->max_pages, c->table + which[i] * c->max_pages, sizeof(*table) * (size_t)c->max_pages);
        starts[i + 1] = starts[i] + (int32_t)rows[i];
        length[i] = (int32_t)lengths[i];
    }
    const tarn__packed_sequences s = {i32s(table, TARN_SHAPE(count, c->max_pages)), i32s(starts, TARN_SHAPE(count + 1)),
                                      i32s(length, TARN_SHAPE(count))};
    return good(tarn_to(tarn__attention_paged(tarn_to(q, device), &c->keys, &c->values, &s, o), CPU));
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* [T, H, D] as [1, H, T, D]. */
static tarn_tensor *heads_first(tarn_tensor *x)
{
    return good(tarn_unsqueeze(tarn_permute(x, TARN_AXES(1, 0, 2)), 0));
}

/* One sequence by tarn_attention() over its first `length` contiguous keys, in f32: [rows, H, D]. */
static tarn_tensor *expected(const cache *c, int64_t s, int64_t length, tarn_tensor *q, const tarn__paged_options *o)
{
    const tarn_attention_options options = {
        .causal = true, .scale = o->scale, .window = o->window, .softcap = o->softcap};
    tarn_tensor *y =
        good(tarn_attention(heads_first(tarn_cast(q, TARN_F32)), heads_first(tarn_slice(c->k[s], 0, 0, length)),
                            heads_first(tarn_slice(c->v[s], 0, 0, length)), &options));
    return good(tarn_permute(tarn_squeeze(y, 0), TARN_AXES(1, 0, 2)));
}

/* 0: none. */
static int64_t draw_window(uint64_t *seed, bool is_long)
{
    return random_below(seed, 2) ? 1 + random_below(seed, is_long ? 1200 : 3 * PAGE) : 0;
}

/* One batch of all sequences: decode rows, chunks and whole prompts. */
static void check_batch(uint64_t *seed, tarn_dtype stored, tarn_dtype dtype, bool is_long)
{
    cache c = new_cache(seed, stored, is_long);
    int64_t which[MAX_SEQUENCES], rows[MAX_SEQUENCES], tokens = 0;
    for (int64_t s = 0; s < c.count; s++) {
        which[s] = s;
        rows[s] = random_below(seed, 3) == 0 ? 1 : 1 + random_below(seed, c.length[s]);
        tokens += rows[s];
    }
    const tarn__paged_options o = {.scale = random_below(seed, 2) ? 0.1 : 0,
                                   .window = draw_window(seed, is_long),
                                   .softcap = random_below(seed, 3) ? 0 : 2};
    int64_t unused = random_below(seed, 3);
    tarn_tensor *q = good(tarn_normal(TARN_SHAPE(tokens + unused, c.heads, c.D), 0, 1, dtype, CPU));
    tarn_tensor *y = good(tarn_cast(attend(&c, which, c.length, rows, c.count, q, &o), TARN_F32));
    double tolerance = dtype == TARN_F32 ? 1e-5 : dtype == TARN_F16 ? 1e-3 : 8e-3;
    for (int64_t s = 0, first = 0; s < c.count; first += rows[s++])
        assert_close(tarn_slice(y, 0, first, first + rows[s]),
                     expected(&c, s, c.length[s], tarn_slice(q, 0, first, first + rows[s]), &o), tolerance);
    if (unused > 0)
        assert_close(tarn_slice(y, 0, tokens, tokens + unused),
                     tarn_zeros(TARN_SHAPE(unused, c.heads, c.D), TARN_F32, CPU), 0);
}

static void pages_attend_as_contiguous_keys_do(void **state)
{
    (void)state;
    static const tarn_dtype stored[] = {TARN_F32, TARN_F16, TARN_BF16, TARN_U8},
                            dtypes[] = {TARN_F32, TARN_F16, TARN_BF16};
    uint64_t seed = test_seed(27);
    for (int i = 0; i < 36; i++) {
        tarn_scope *scope = tarn_scope_open();
        check_batch(&seed, stored[i % 4], dtypes[i / 4 % 3], i % 5 == 4);
        tarn_scope_close(scope);
    }
}

/* ---- batch invariance -------------------------------------------------------------------------------------------- */

static void assert_same_bits(tarn_tensor *a, tarn_tensor *b)
{
    assert_close(a, b, 0);
}

/* Every row of a whole prompt equals the same row as a decode row, in a chunk of any cut, and among other sequences. */
static void check_invariance(uint64_t *seed, tarn_dtype stored, bool is_long)
{
    cache c = new_cache(seed, stored, is_long);
    const tarn__paged_options o = {.window = draw_window(seed, is_long), .softcap = random_below(seed, 3) ? 0 : 2};
    int64_t which[] = {0, 1, 2, 3, 4}, length = c.length[0], rows[MAX_SEQUENCES] = {length}, ends[MAX_SEQUENCES];
    tarn_tensor *q = good(tarn_normal(TARN_SHAPE(length, c.heads, c.D), 0, 1, TARN_BF16, CPU));
    tarn_tensor *whole = attend(&c, which, c.length, rows, 1, q, &o);
    for (int64_t first = 0, n; first < length; first += n) {
        n = random_below(seed, 2) ? 1 : 1 + random_below(seed, is_long ? 500 : 80);
        n = n < length - first ? n : length - first;
        int64_t at = random_below(seed, c.count), before = 0; /* its place among the others */
        tarn_tensor *part[MAX_SEQUENCES];
        for (int64_t i = 0; i < c.count; i++) {
            which[i] = i == at ? 0 : i < at ? i + 1 : i;
            ends[i] = i == at ? first + n : c.length[which[i]];
            rows[i] = i == at ? n : 1 + random_below(seed, random_below(seed, 2) ? 1 : ends[i]);
            before += i < at ? rows[i] : 0;
            part[i] = i == at ? tarn_slice(q, 0, first, first + n)
                              : tarn_normal(TARN_SHAPE(rows[i], c.heads, c.D), 0, 1, TARN_BF16, CPU);
        }
        tarn_tensor *y = attend(&c, which, ends, rows, c.count, good(tarn_concat(part, (int)c.count, 0)), &o);
        assert_same_bits(tarn_slice(y, 0, before, before + n), tarn_slice(whole, 0, first, first + n));
        int64_t alone = first + n;
        y = attend(&c, (const int64_t[]){0}, &alone, &n, 1, tarn_slice(q, 0, first, first + n), &o);
        assert_same_bits(y, tarn_slice(whole, 0, first, first + n));
    }
}

static void a_rows_bits_depend_on_its_own_keys_alone(void **state)
{
    (void)state;
    static const tarn_dtype stored[] = {TARN_F32, TARN_BF16, TARN_U8};
    uint64_t seed = test_seed(28);
    for (int i = 0; i < 9; i++) {
        tarn_scope *scope = tarn_scope_open();
        check_invariance(&seed, stored[i % 3], i % 4 == 1);
        tarn_scope_close(scope);
    }
}

/* ---- writing, and errors ----------------------------------------------------------------------------------------- */

static void rows_not_written_stay(void **state)
{
    (void)state;
    const int64_t slots[] = {PAGE + 3, 0};
    tarn_tensor *pages = good(tarn_to(tarn_zeros(TARN_SHAPE(2, PAGE, 1, 2), TARN_F32, CPU), device)),
                *x = good(tarn_to(tarn_ones(TARN_SHAPE(2, 1, 2), TARN_F32, CPU), device));
    tarn_tensor *index = good(tarn_to(tarn_from_i64(slots, TARN_SHAPE(2), CPU), device));
    assert_true(tarn__write_pages(&(tarn__kv_page_rows){.rows = pages}, index, x));
    tarn_tensor *there = good(tarn_to(pages, CPU));
    assert_true(tarn_item(tarn_sum(there, TARN_ALL_AXES, false)) == 4);
    assert_true(tarn_item_at(there, TARN_SHAPE(1, 3, 0, 1)) == 1 && tarn_item_at(there, TARN_SHAPE(0, 0, 0, 0)) == 1);
}

/* Attention of one row over one page, with the given table entry, row starts and length. */
static tarn_tensor *attend_one(int32_t page, int32_t start, int32_t length, int64_t KV, tarn_dtype table)
{
    tarn_tensor *pages = good(tarn_zeros(TARN_SHAPE(1, PAGE, KV, 8), TARN_F32, CPU)),
                *q = good(tarn_ones(TARN_SHAPE(1, 2, 8), TARN_F32, CPU));
    const int32_t starts[] = {start, 1};
    const tarn__packed_sequences s = {tarn_cast(tarn_from(&page, TARN_SHAPE(1, 1), TARN_I32, CPU), table),
                                      tarn_from(starts, TARN_SHAPE(2), TARN_I32, CPU),
                                      tarn_from(&length, TARN_SHAPE(1), TARN_I32, CPU)};
    return tarn__attention_paged(q, &(tarn__kv_page_rows){.rows = pages}, &(tarn__kv_page_rows){.rows = pages}, &s,
                                 &(tarn__paged_options){0});
}

static void bad_operands_are_errors(void **state)
{
    (void)state;
    assert_null(attend_one(1, 0, 5, 2, TARN_I32));
    assert_error(TARN_ERROR_ARGUMENT, "attention_paged: index 1 is outside");
    assert_null(attend_one(0, 2, 5, 2, TARN_I32));
    assert_error(TARN_ERROR_ARGUMENT, "attention_paged: index 2 is outside");
    assert_null(attend_one(0, 0, PAGE + 1, 2, TARN_I32));
    assert_error(TARN_ERROR_ARGUMENT, "attention_paged: index 65 is outside");
    assert_null(attend_one(0, 0, 5, 3, TARN_I32));
    assert_error(TARN_ERROR_SHAPE, "KV divides the heads of q");
    assert_null(attend_one(0, 0, 5, 2, TARN_F32));
    assert_error(TARN_ERROR_DTYPE, "table");
}

int main(void)
{
    device = test_device("cpu");
    const struct CMUnitTest tests[] = {
        in_scope(pages_attend_as_contiguous_keys_do),
        in_scope(a_rows_bits_depend_on_its_own_keys_alone),
        in_scope(rows_not_written_stay),
        in_scope(bad_operands_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
