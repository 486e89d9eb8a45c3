/* test_gguf.c: GGUF files: round trips of tensors and metadata of every type; a tensor is a view of the file and
 * outlives its closing; violations of the format are errors that name file and byte. tests/parity/gguf.py compares with
 * the gguf package. */
#include "base/dtype.h"
#include "base/memory.h"
#include "support/check.h"
#include "support/files.h"

#define CPU tarn_device_cpu()

static const tarn_dtype loadable[] = {TARN_F32,  TARN_F16,  TARN_BF16, TARN_Q8_0,   TARN_Q4_0,
                                      TARN_Q4_K, TARN_Q6_K, TARN_Q4_1, TARN_Q5_0,   TARN_Q5_1,
                                      TARN_Q2_K, TARN_Q3_K, TARN_Q5_K, TARN_IQ4_NL, TARN_IQ4_XS};

/* ---- round trips ------------------------------------------------------------------------------------------------- */

static void add_metadata(tarn_gguf_writer *w)
{
    const uint8_t u8 = 255, yes = 1, bools[] = {1, 0, 1};
    const int8_t i8 = -128;
    const uint16_t u16 = 65535;
    const int16_t i16 = -32768;
    const uint32_t u32 = 4294967295u;
    const int32_t i32 = INT32_MIN, wholes[] = {-1, 2, 3};
    const uint64_t u64 = UINT64_MAX;
    const int64_t i64 = INT64_MIN;
    const float f32 = 0.1f, reals[] = {0.5f, -2};
    const double f64 = 1e300;
    const char *const texts[] = {"one", "", "zwei\xc3\xa4", "a\0b"};
    const size_t lengths[] = {3, 0, 6, 3};
    const struct {
        const char *key;
        tarn_gguf_type type;
        const void *value;
    } values[] = {{"x.u8", TARN_GGUF_U8, &u8},    {"x.i8", TARN_GGUF_I8, &i8},     {"x.u16", TARN_GGUF_U16, &u16},
                  {"x.i16", TARN_GGUF_I16, &i16}, {"x.u32", TARN_GGUF_U32, &u32},  {"x.i32", TARN_GGUF_I32, &i32},
                  {"x.u64", TARN_GGUF_U64, &u64}, {"x.i64", TARN_GGUF_I64, &i64},  {"x.f32", TARN_GGUF_F32, &f32},
                  {"x.f64", TARN_GGUF_F64, &f64}, {"x.bool", TARN_GGUF_BOOL, &yes}};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        assert_true(tarn_gguf_add_value(w, values[i].key, values[i].type, values[i].value));
    assert_true(tarn_gguf_add_string(w, "general.architecture", "llama", 5));
    assert_true(tarn_gguf_add_string(w, "x.empty", NULL, 0));
    assert_true(tarn_gguf_add_array(w, "x.bools", TARN_GGUF_BOOL, bools, 3));
    assert_true(tarn_gguf_add_array(w, "x.wholes", TARN_GGUF_I32, wholes, 3));
    assert_true(tarn_gguf_add_array(w, "x.reals", TARN_GGUF_F32, reals, 2));
    assert_true(tarn_gguf_add_array(w, "x.none", TARN_GGUF_U64, NULL, 0));
    assert_true(tarn_gguf_add_strings(w, "x.texts", texts, lengths, 4));
    assert_true(tarn_gguf_add_strings(w, "x.no_texts", NULL, NULL, 0));
}

static void check_metadata(const tarn_gguf *file)
{
    int64_t whole, wholes[3];
    double real, reals[2];
    bool yes = false;
    size_t length;
    tarn_gguf_value value;
    assert_true(tarn_gguf_int(file, "x.u8", 0, 255, &whole) && whole == 255);
    assert_true(tarn_gguf_int(file, "x.i8", -128, 0, &whole) && whole == -128);
    assert_true(tarn_gguf_int(file, "x.u16", 0, 65535, &whole) && whole == 65535);
    assert_true(tarn_gguf_int(file, "x.i16", INT64_MIN, 0, &whole) && whole == -32768);
    assert_true(tarn_gguf_int(file, "x.u32", 0, INT64_MAX, &whole) && whole == 4294967295);
    assert_true(tarn_gguf_int(file, "x.i32", INT64_MIN, 0, &whole) && whole == INT32_MIN);
    assert_true(tarn_gguf_int(file, "x.i64", INT64_MIN, 0, &whole) && whole == INT64_MIN);
    assert_true(tarn_gguf_real(file, "x.u64", &real) && real == (double)UINT64_MAX);
    assert_true(tarn_gguf_real(file, "x.f32", &real) && real == (double)0.1f);
    assert_true(tarn_gguf_real(file, "x.f64", &real) && real == 1e300);
    assert_true(tarn_gguf_bool(file, "x.bool", &yes) && yes);
    assert_string_equal(tarn_gguf_string(file, "general.architecture", NULL), "llama");
    assert_true(tarn_gguf_ints(file, "x.bools", wholes, 3) && wholes[0] == 1 && wholes[1] == 0);
    assert_true(tarn_gguf_ints(file, "x.wholes", wholes, 3) && wholes[0] == -1 && wholes[2] == 3);
    assert_true(tarn_gguf_reals(file, "x.reals", reals, 2) && reals[0] == 0.5 && reals[1] == -2);
    assert_true(tarn_gguf_ints(file, "x.none", wholes, 0));
    assert_memory_equal(tarn_gguf_string_at(file, "x.texts", 3, &length), "a\0b", 3);
    assert_int_equal(length, 3);
    assert_true(tarn_gguf_has(file, "x.texts", &value) && value.type == TARN_GGUF_ARRAY &&
                value.element == TARN_GGUF_STRING && value.count == 4);
    assert_false(tarn_gguf_has(file, "x", NULL));
    assert_ok();
}

/* A tensor of blocks or plain numbers with bytes of all kinds. */
static tarn_tensor *pattern(tarn_shape shape, tarn_dtype dtype, tarn_device device)
{
    int64_t count = 1;
    for (int i = 0; i < shape.rank; i++)
        count *= shape.size[i];
    size_t size = (size_t)tarn__bytes_of(dtype, count);
    unsigned char *values = malloc(size + 1);
    for (size_t i = 0; i < size; i++)
        values[i] = (unsigned char)(i * 7 + (size_t)dtype);
    tarn_tensor *tensor = good(tarn_from(values, shape, dtype, device));
    free(values);
    return tensor;
}

static void check_same_bits(const tarn_tensor *a, const tarn_tensor *b)
{
    assert_int_equal(tarn_dtype_of(a), tarn_dtype_of(b));
    check_shape(a, tarn_shape_of(b), __FILE__, __LINE__);
    size_t count = (size_t)tarn_bytes(a);
    char *left = malloc(count + 1), *right = malloc(count + 1);
    assert_true(tarn_read(a, left, count) && tarn_read(b, right, count));
    assert_memory_equal(left, right, count);
    free(left);
    free(right);
}

static void write_all(const char *path, tarn_device device)
{
    char name[32];
    tarn_gguf_writer *w = tarn_gguf_create(path);
    add_metadata(w);
    for (int i = 0; i < 7; i++) {
        snprintf(name, sizeof(name), "t.%s", tarn_dtype_name(loadable[i]));
        assert_true(tarn_gguf_add(w, name, pattern(TARN_SHAPE(3, 256), loadable[i], device)));
    }
    assert_true(tarn_gguf_add(w, "one", tarn_to(vector(1, 2, 3), device)));
    assert_true(tarn_gguf_add(w, "number", tarn_to(tarn_full(TARN_SCALAR, 7, TARN_F32, CPU), device)));
    assert_true(tarn_gguf_add(w, "nothing", tarn_zeros(TARN_SHAPE(2, 0), TARN_F32, device)));
    assert_true(tarn_gguf_finish(w));
}

static void round_trip(tarn_device from, tarn_device to)
{
    char name[32];
    tarn_gguf_entry entry;
    write_all(scratch("all.gguf"), from);
    tarn_gguf *file = tarn_gguf_open(scratch("all.gguf"));
    assert_ok();
    check_metadata(file);
    assert_int_equal(tarn_gguf_count(file), 10);
    for (int i = 0; i < 7; i++) {
        snprintf(name, sizeof(name), "t.%s", tarn_dtype_name(loadable[i]));
        assert_int_equal(tarn_gguf_find(file, name), i);
        assert_true(tarn_gguf_info(file, i, &entry));
        assert_true(entry.dtype == loadable[i] && entry.position % 32 == 0 && entry.shape.size[0] == 3 &&
                    entry.shape.size[1] == 256);
        check_same_bits(good(tarn_gguf_tensor(file, i, to)), pattern(TARN_SHAPE(3, 256), loadable[i], CPU));
    }
    expect(tarn_gguf_tensor(file, 7, to), TARN_SHAPE(3), VALUES(1, 2, 3));
    expect(tarn_gguf_tensor(file, 8, to), TARN_SCALAR, VALUES(7));
    assert_shape(tarn_gguf_tensor(file, 9, to), 2, 0);
    assert_int_equal(tarn_gguf_find(file, "x"), -1);
    tarn_gguf_close(file);
}

static void every_type_comes_back_bit_for_bit(void **state)
{
    (void)state;
    round_trip(CPU, CPU);
}

static void so_it_does_from_and_to_another_device(void **state)
{
    (void)state;
    tarn_device device = tarn_device_parse("mirror:1");
    round_trip(device, device);
    round_trip(CPU, device);
}

/* Whatever a file has as metadata, nested lists among it, is handed on byte for byte. */
static void metadata_is_handed_on_unchanged(void **state)
{
    (void)state;
    size_t count, again;
    write_all(scratch("from.gguf"), CPU);
    tarn_gguf *file = tarn_gguf_open(scratch("from.gguf"));
    tarn_gguf_writer *w = tarn_gguf_create(scratch("to.gguf"));
    for (int i = 0; i < tarn_gguf_metadata_count(file); i++)
        assert_true(tarn_gguf_add_from(w, file, i));
    for (int i = 0; i < tarn_gguf_count(file); i++)
        assert_true(tarn_gguf_add(w, tarn_gguf_name(file, i), tarn_gguf_tensor(file, i, CPU)));
    tarn_gguf_close(file);
    assert_true(tarn_gguf_finish(w));
    char *one = get_file(scratch("from.gguf"), &count), *two = get_file(scratch("to.gguf"), &again);
    assert_int_equal(count, again);
    assert_memory_equal(one, two, count);
    free(one);
    free(two);
}

static void a_tensor_is_a_view_of_the_file_and_outlives_it(void **state)
{
    (void)state;
    write_all(scratch("map.gguf"), CPU);
    size_t count, after;
    char *before = get_file(scratch("map.gguf"), &count);
    int64_t held = tarn_memory_of(CPU).used;
    tarn_gguf *file = tarn_gguf_open(scratch("map.gguf"));
    tarn_tensor *x = good(tarn_gguf_tensor(file, tarn_gguf_find(file, "one"), CPU));
    assert_int_equal(tarn_memory_of(CPU).used, held); /* none of it was copied */
    tarn_gguf_close(file);
    expect(x, TARN_SHAPE(3), VALUES(1, 2, 3));
    assert_true(tarn_write(x, (const float[]){4, 5, 6}, 12)); /* stays in memory */
    expect(tarn_mul(x, tarn_scalar(2)), TARN_SHAPE(3), VALUES(8, 10, 12));
    char *now = get_file(scratch("map.gguf"), &after);
    assert_memory_equal(before, now, count);
    free(before);
    free(now);
}

static void another_alignment_is_used(void **state)
{
    (void)state;
    const uint32_t wide = 4096;
    tarn_gguf_entry entry;
    tarn_gguf_writer *w = tarn_gguf_create(scratch("wide.gguf"));
    assert_true(tarn_gguf_add_value(w, "general.alignment", TARN_GGUF_U32, &wide));
    assert_true(tarn_gguf_add(w, "a", vector(1)) && tarn_gguf_add(w, "b", vector(2, 3)) && tarn_gguf_finish(w));
    tarn_gguf *file = tarn_gguf_open(scratch("wide.gguf"));
    assert_true(tarn_gguf_info(file, 1, &entry) && entry.position == 8192);
    expect(tarn_gguf_tensor(file, 1, CPU), TARN_SHAPE(2), VALUES(2, 3));
    tarn_gguf_close(file);
}

static void a_query_of_another_type_is_an_error(void **state)
{
    (void)state;
    int64_t whole;
    double real;
    bool yes;
    write_all(scratch("ask.gguf"), CPU);
    tarn_gguf *file = tarn_gguf_open(scratch("ask.gguf"));
    assert_false(tarn_gguf_int(file, "x.f32", 0, 9, &whole));
    assert_error_about(TARN_ERROR_FORMAT, "ask.gguf", "'x.f32' is of type f32, not an integer");
    assert_false(tarn_gguf_int(file, "x.u8", 0, 9, &whole));
    assert_error(TARN_ERROR_FORMAT, "'x.u8' is 255; it must be from 0 to 9");
    assert_false(tarn_gguf_int(file, "x.u64", 0, INT64_MAX, &whole));
    assert_error(TARN_ERROR_FORMAT, "18446744073709551615");
    assert_false(tarn_gguf_int(file, "x.i8", 0, 9, &whole));
    assert_error(TARN_ERROR_FORMAT, "128 below zero");
    assert_false(tarn_gguf_bool(file, "x.u8", &yes));
    assert_error(TARN_ERROR_FORMAT, "not a bool");
    assert_false(tarn_gguf_real(file, "x.bools", &real));
    assert_error(TARN_ERROR_FORMAT, "is an array of bool");
    assert_null(tarn_gguf_string(file, "x.u8", NULL));
    assert_error(TARN_ERROR_FORMAT, "not a string");
    assert_false(tarn_gguf_ints(file, "x.reals", &whole, 2));
    assert_error(TARN_ERROR_FORMAT, "an array of f32, not an array of integers");
    assert_false(tarn_gguf_ints(file, "x.wholes", &whole, 1));
    assert_error(TARN_ERROR_FORMAT, "has 3 values, not 1");
    assert_false(tarn_gguf_real(file, "no.such", &real));
    assert_error(TARN_ERROR_FORMAT, "has no key 'no.such'");
    tarn_gguf_close(file);
}

/* ---- malformed files --------------------------------------------------------------------------------------------- */

/* A file of one key "k" of a type, with these bytes as its value. */
static const char *with_key(bytes *b, uint32_t type, const void *value, size_t count)
{
    b->count = 0;
    put(b, "GGUF", 4);
    put(b, &(uint32_t){3}, 4);
    put(b, &(uint64_t){0}, 8);
    put(b, &(uint64_t){1}, 8);
    put(b, &(uint64_t){1}, 8);
    put(b, "k", 1);
    put(b, &type, 4);
    put(b, value, count);
    put_file(scratch("bad.gguf"), b->data, b->count);
    return scratch("bad.gguf");
}

/* A file of two tensors of f32; what is said of the second can be chosen. */
typedef struct second {
    const char *name;
    uint32_t rank, type;
    uint64_t size[5], offset;
    size_t data;
} second;

static const char *with_tensors(bytes *b, second s)
{
    b->count = 0;
    put(b, "GGUF", 4);
    put(b, &(uint32_t){3}, 4);
    put(b, &(uint64_t){2}, 8);
    put(b, &(uint64_t){0}, 8);
    put(b, &(uint64_t){1}, 8);
    put(b, "a", 1);
    put(b, &(uint32_t){1}, 4);
    put(b, &(uint64_t){4}, 8);
    put(b, &(uint32_t){0}, 4);
    put(b, &(uint64_t){0}, 8);
    put(b, &(uint64_t){strlen(s.name)}, 8);
    put(b, s.name, strlen(s.name));
    put(b, &s.rank, 4);
    put(b, s.size, 8 * (s.rank < 5 ? s.rank : 5));
    put(b, &s.type, 4);
    put(b, &s.offset, 8);
    while (b->count % 32)
        put(b, "", 1);
    for (size_t i = 0; i < s.data; i++)
        put(b, "", 1);
    put_file(scratch("bad.gguf"), b->data, b->count);
    return scratch("bad.gguf");
}

static void refused(const char *path, tarn_code code, const char *says)
{
    assert_null(tarn_gguf_open(path));
    assert_error_about(code, "bad.gguf", says);
}

static void malformed_headers_are_refused(void **state)
{
    (void)state;
    static bytes b;
    put_file(scratch("bad.gguf"), "", 0);
    refused(scratch("bad.gguf"), TARN_ERROR_FORMAT, "is an empty file, not a GGUF file");
    put_file(scratch("bad.gguf"), "PK\3\4....", 8);
    refused(scratch("bad.gguf"), TARN_ERROR_FORMAT, "is a zip archive, not a GGUF file");
    put_file(scratch("bad.gguf"), "GGUF\0\0\0\3........................", 32);
    refused(scratch("bad.gguf"), TARN_ERROR_UNSUPPORTED, "byte 4: the file is big-endian");
    put_file(scratch("bad.gguf"), "GGUF\1\0\0\0........................", 32);
    refused(scratch("bad.gguf"), TARN_ERROR_UNSUPPORTED, "version 1 of the format");
    put_file(scratch("bad.gguf"), "GGUF\3\0\0\0\377\377\377\377\377\377\377\377\0\0\0\0\0\0\0\0", 24);
    refused(scratch("bad.gguf"), TARN_ERROR_FORMAT,
            "18446744073709551615 tensors and 0 keys do not fit in the 0 bytes");
    with_key(&b, 99, "", 1);
    refused(scratch("bad.gguf"), TARN_ERROR_FORMAT, "byte 33: 99 is not a metadata type");
    with_key(&b, TARN_GGUF_BOOL, "\2", 1);
    refused(scratch("bad.gguf"), TARN_ERROR_FORMAT, "byte 37: 2 is not a bool");
    with_key(&b, TARN_GGUF_STRING, "\377\377\377\377\377\377\377\377", 8);
    refused(scratch("bad.gguf"), TARN_ERROR_FORMAT,
            "byte 45: a string needs 18446744073709551615 bytes, but only 0 follow");
    with_key(&b, TARN_GGUF_ARRAY, "\6\0\0\0\377\377\377\377\377\377\377\77....", 16);
    refused(scratch("bad.gguf"), TARN_ERROR_FORMAT, "an array of 4611686018427387903 values of f32 does not fit");
    with_key(&b, TARN_GGUF_ARRAY, "\6\0\0\0\3\0\0\0\0\0\0\0....", 16);
    refused(scratch("bad.gguf"), TARN_ERROR_FORMAT, "3 values of f32 do not fit in the 4 bytes");
    char deep[12 * 6];
    for (int i = 0; i < 6; i++)
        memcpy(deep + 12 * i, i < 5 ? "\11\0\0\0\1\0\0\0\0\0\0\0" : "\0\0\0\0\0\0\0\0\0\0\0\0", 12);
    with_key(&b, TARN_GGUF_ARRAY, deep + 24, 48); /* four deep */
    tarn_gguf *file = tarn_gguf_open(scratch("bad.gguf"));
    assert_ok();
    tarn_gguf_close(file);
    with_key(&b, TARN_GGUF_ARRAY, deep, 72);
    refused(scratch("bad.gguf"), TARN_ERROR_FORMAT, "arrays are nested more than 4 deep");
}

static void malformed_tensors_are_refused(void **state)
{
    (void)state;
    static bytes b;
    static const struct {
        second s;
        const char *says;
    } rows[] = {
        {{"a", 1, 0, {4}, 32, 64}, "duplicate tensor 'a'"},
        {{"", 1, 0, {4}, 32, 64}, "a tensor's name has 0 bytes"},
        {{"\xff", 1, 0, {4}, 32, 64}, "is not valid UTF-8"},
        {{"b", 5, 0, {1, 1, 1, 1, 1}, 32, 64}, "tensor 'b' has 5 axes; at most 4"},
        {{"b", 1, 4, {4}, 32, 64}, "unknown element type 4"},
        {{"b", 1, 77, {4}, 32, 64}, "element type 77"},
        {{"b", 1, 0, {UINT64_MAX}, 32, 64}, "the size 18446744073709551615"},
        {{"b", 2, 0, {(uint64_t)1 << 40, (uint64_t)1 << 40}, 32, 64}, "not a valid number of bytes"},
        {{"b", 1, 8, {33}, 32, 64}, "rows of 33 elements are not a multiple of Q8_0's block size 32"},
        {{"b", 1, 0, {4}, 33, 64}, "the offset 33; it must be a multiple of the alignment, 32"},
        {{"b", 1, 0, {4}, 0, 64}, "begins before 'a' ends"},
        {{"b", 1, 0, {4}, 32, 47}, "but the file ends at byte"},
        {{"b", 1, 0, {4}, 1 << 20, 64}, "is it truncated?"},
        {{"b", 1, 0, {4}, UINT64_MAX - 31, 64}, "the offset 18446744073709551584, beyond any file"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        refused(with_tensors(&b, rows[i].s), TARN_ERROR_FORMAT, rows[i].says);
    /* i64: known, but not loaded */
    tarn_gguf *file = tarn_gguf_open(with_tensors(&b, (second){"b", 1, 27, {4}, 32, 64}));
    assert_ok();
    assert_null(tarn_gguf_tensor(file, 1, CPU));
    assert_error_about(TARN_ERROR_UNSUPPORTED, "tensor 'b' is I64, which tarn cannot load", "Q6_K");
    tarn_gguf_close(file);
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    size_t count;
    tarn_gguf_writer *w = tarn_gguf_create(scratch("small.gguf"));
    add_metadata(w);
    assert_true(tarn_gguf_add(w, "a", vector(1, 2, 3)) &&
                tarn_gguf_add(w, "b", pattern(TARN_SHAPE(2, 32), TARN_Q8_0, CPU)) && tarn_gguf_finish(w));
    char *whole = get_file(scratch("small.gguf"), &count);
    size_t end = count - (32 - 68 % 32); /* without the filling behind the last tensor */
    for (size_t i = 0; i < count; i++) {
        put_file(scratch("bad.gguf"), whole, i);
        tarn_gguf *file = tarn_gguf_open(scratch("bad.gguf"));
        if ((file != NULL) != (i >= end))
            fail_msg("a file cut to %zu of %zu bytes was %s", i, count, file ? "opened" : "refused");
        tarn_gguf_close(file);
        tarn_clear_error();
    }
    free(whole);
}

static void open_without_memory(int allowed)
{
    allocations_left = allowed;
    tarn_gguf *file = tarn_gguf_open(scratch("scarce.gguf"));
    assert_true((file != NULL) != tarn_failed());
    if (!file)
        assert_int_equal(tarn_error_code(), TARN_ERROR_MEMORY);
    tarn_gguf_close(file);
    tarn_clear_error();
    assert_int_equal(tarn__memory_in_use(), 0);
}

static void without_memory_nothing_is_opened_or_lost(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    write_all(scratch("scarce.gguf"), CPU);
    tarn_scope_close(scope);
    tarn_empty_cache(CPU);
    assert_true(tarn_set_allocator(&scarce_allocator));
    for (int i = 0; i < 60; i++)
        open_without_memory(i);
    allocations_left = 1000000;
    assert_true(tarn_set_allocator(NULL));
}

static void the_writer_refuses_what_the_format_cannot_store(void **state)
{
    (void)state;
    tarn_gguf_writer *w = tarn_gguf_create(scratch("never.gguf"));
    assert_false(tarn_gguf_add(w, "i", tarn_zeros(TARN_SHAPE(2), TARN_I32, CPU)));
    assert_error(TARN_ERROR_DTYPE, "tensor 'i' is i32, which cannot be written to GGUF");
    assert_false(tarn_gguf_add(w, "deep", tarn_zeros(TARN_SHAPE(1, 1, 1, 1, 1), TARN_F32, CPU)));
    assert_error(TARN_ERROR_SHAPE, "has 5 axes");
    assert_true(tarn_gguf_add(w, "x", vector(1)));
    assert_false(tarn_gguf_add(w, "x", vector(1)));
    assert_error(TARN_ERROR_ARGUMENT, "tensor 'x' already exists");
    tarn_gguf_cancel(w);
    assert_null(tarn_gguf_open(scratch("never.gguf")));
    assert_error(TARN_ERROR_IO, "never.gguf");
}

/* ---- a real file ------------------------------------------------------------------------------------------------- */

static void the_vocabulary_of_llama_is_read(void **state)
{
    (void)state;
    const char *path = real_data("llama-spm/vocab.gguf");
    size_t length;
    int64_t id;
    tarn_gguf_value tokens;
    if (!path) {
        print_message("skipped: TARN_TEST_DATA names no folder\n");
        skip();
    }
    tarn_gguf *file = tarn_gguf_open(path);
    assert_ok();
    assert_string_equal(tarn_gguf_string(file, "tokenizer.ggml.model", NULL), "llama");
    assert_true(tarn_gguf_has(file, "tokenizer.ggml.tokens", &tokens) && tokens.count == 32000);
    assert_memory_equal(tarn_gguf_string_at(file, "tokenizer.ggml.tokens", 3, &length), "<0x00>", 6);
    assert_true(tarn_gguf_int(file, "tokenizer.ggml.bos_token_id", 0, 31999, &id) && id == 1);
    assert_int_equal(tarn_gguf_count(file), 0);
    tarn_gguf_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_memory_nothing_is_opened_or_lost), /* first: no other device holds memory yet */
        in_scope(every_type_comes_back_bit_for_bit),
        in_scope(so_it_does_from_and_to_another_device),
        in_scope(metadata_is_handed_on_unchanged),
        in_scope(a_tensor_is_a_view_of_the_file_and_outlives_it),
        in_scope(another_alignment_is_used),
        in_scope(a_query_of_another_type_is_an_error),
        in_scope(malformed_headers_are_refused),
        in_scope(malformed_tensors_are_refused),
        in_scope(every_truncation_is_refused),
        in_scope(the_writer_refuses_what_the_format_cannot_store),
        in_scope(the_vocabulary_of_llama_is_read),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
