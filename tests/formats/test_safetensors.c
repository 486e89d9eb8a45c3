/* test_safetensors.c: safetensors files: bitwise round trips; violations of the format are errors; writes are atomic.
 * tests/parity/formats.py compares with the safetensors package. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "support/check.h"
#include "support/scratch.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

/* ---- round trips ------------------------------------------------------------------------------------------------- */

/* A tensor of any dtype with bytes of all kinds. */
static tarn_tensor *pattern(tarn_shape shape, tarn_dtype dtype, uint64_t *random, tarn_device device)
{
    int64_t count = 1;
    for (int i = 0; i < shape.rank; i++)
        count *= shape.size[i];
    size_t bytes = (size_t)count * tarn_dtype_size(dtype);
    unsigned char *values = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        values[i] = (unsigned char)(random_bits(random) >> 32) & (dtype == TARN_BOOL ? 1 : 255);
    tarn_tensor *tensor = good(tarn_from(values, shape, dtype, device));
    free(values);
    return tensor;
}

static void assert_same_bits(const tarn_tensor *a, const tarn_tensor *b)
{
    assert_int_equal(tarn_dtype_of(a), tarn_dtype_of(b));
    check_shape(a, tarn_shape_of(b), __FILE__, __LINE__);
    size_t bytes = (size_t)tarn_bytes(a);
    char *left = malloc(bytes + 1), *right = malloc(bytes + 1);
    assert_true(tarn_read(a, left, bytes) && tarn_read(b, right, bytes));
    assert_memory_equal(left, right, bytes);
    free(left);
    free(right);
}

static void round_trip(tarn_device from, tarn_device to)
{
    const tarn_shape shapes[] = {TARN_SCALAR,   TARN_SHAPE(0),    TARN_SHAPE(3, 0, 2),
                                 TARN_SHAPE(5), TARN_SHAPE(3, 7), {8, {1, 2, 1, 3, 1, 2, 1, 2}}};
    uint64_t random = test_seed(1);
    tarn_tensor *kept[8][6];
    char name[32];
    tarn_safetensors_writer *writer = tarn_safetensors_create(scratch("round.safetensors"));
    for (int dtype = 0; dtype <= TARN_BOOL; dtype++)
        for (int i = 0; i < 6; i++) {
            snprintf(name, sizeof(name), "t.%d.%d", i, dtype);
            kept[dtype][i] = pattern(shapes[i], (tarn_dtype)dtype, &random, from);
            assert_true(tarn_safetensors_add(writer, name, kept[dtype][i]));
        }
    assert_true(tarn_safetensors_finish(writer));
    tarn_safetensors *file = tarn_safetensors_open(scratch("round.safetensors"));
    assert_ok();
    assert_int_equal(tarn_safetensors_count(file), 48);
    for (int dtype = 0; dtype <= TARN_BOOL; dtype++)
        for (int i = 0; i < 6; i++) {
            snprintf(name, sizeof(name), "t.%d.%d", i, dtype);
            tarn_tensor *read = good(tarn_safetensors_read(file, name, to));
            assert_same_bits(read, kept[dtype][i]);
            assert_true(tarn_device_equal(tarn_device_of(read), to));
        }
    tarn_safetensors_close(file);
}

static void every_dtype_and_shape_comes_back_bit_for_bit(void **state)
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
    tarn_stats_reset();
    tarn_safetensors *file = tarn_safetensors_open(scratch("round.safetensors"));
    good(tarn_safetensors_read(file, "t.4.0", device));
    assert_int_equal(tarn_stats().uploads, 1);
    tarn_safetensors_close(file);
}

static void views_are_written_as_they_read(void **state)
{
    (void)state;
    tarn_tensor *x = count_up(TARN_SHAPE(3, 4));
    tarn_safetensors_writer *writer = tarn_safetensors_create(scratch("views.safetensors"));
    assert_true(tarn_safetensors_add(writer, "turned", tarn_transpose(x, 0, 1)));
    assert_true(tarn_safetensors_add(writer, "part", tarn_slice(x, 0, 1, 2)));
    assert_true(tarn_safetensors_add(writer, "number", tarn_scalar(7)));
    tarn_scope *scope = tarn_scope_open();
    assert_true(tarn_safetensors_add(writer, "gone", vector(1, 2, 3))); /* its scope closes before the end */
    tarn_scope_close(scope);
    assert_true(tarn_safetensors_finish(writer));
    tarn_safetensors *file = tarn_safetensors_open(scratch("views.safetensors"));
    expect(tarn_safetensors_read(file, "turned", CPU), TARN_SHAPE(4, 3), VALUES(0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11));
    expect(tarn_safetensors_read(file, "part", CPU), TARN_SHAPE(1, 4), VALUES(4, 5, 6, 7));
    expect(tarn_safetensors_read(file, "number", CPU), TARN_SCALAR, VALUES(7));
    expect(tarn_safetensors_read(file, "gone", CPU), TARN_SHAPE(3), VALUES(1, 2, 3));
    tarn_safetensors_close(file);
}

static void the_bytes_are_those_of_the_reference_implementation(void **state)
{
    (void)state;
    tarn_safetensors_writer *writer = tarn_safetensors_create(scratch("bytes.safetensors"));
    assert_true(tarn_safetensors_add(writer, "b", tarn_from_u8((const uint8_t[]){7}, TARN_SHAPE(1), CPU)));
    assert_true(tarn_safetensors_add(writer, "z", vector(1)));
    assert_true(tarn_safetensors_add(writer, "a", vector(2)));
    assert_true(tarn_safetensors_add_metadata(writer, "format", "a \"text\"\n"));
    assert_true(tarn_safetensors_finish(writer));
    const char *header = "{\"__metadata__\":{\"format\":\"a "
                         "\\\"text\\\"\\n\"},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                         "\"z\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]},\"b\":{\"dtype\":\"U8\","
                         "\"shape\":[1],\"data_offsets\":[8,9]}}";
    size_t count, length = (strlen(header) + 7) / 8 * 8;
    char *bytes = get_file(scratch("bytes.safetensors"), &count);
    uint64_t said;
    memcpy(&said, bytes, 8);
    assert_int_equal(said, length);
    assert_int_equal(count, 8 + length + 9);
    assert_memory_equal(bytes + 8, header, strlen(header));
    for (size_t i = strlen(header); i < length; i++)
        assert_int_equal(bytes[8 + i], ' ');
    float values[2];
    memcpy(values, bytes + 8 + length, 8);
    assert_true(values[0] == 2 && values[1] == 1 && bytes[8 + length + 8] == 7);
    free(bytes);
}

static void names_and_metadata_are_queried(void **state)
{
    (void)state;
    const char *key, *value;
    tarn_safetensors_entry entry;
    tarn_safetensors *file = tarn_safetensors_open(scratch("bytes.safetensors"));
    assert_string_equal(tarn_safetensors_name(file, 1), "z");
    assert_int_equal(tarn_safetensors_find(file, "b"), 2);
    assert_int_equal(tarn_safetensors_find(file, "c"), -1);
    assert_true(tarn_safetensors_info(file, 2, &entry));
    assert_string_equal(entry.dtype_name, "U8");
    assert_true(entry.dtype == TARN_U8 && entry.bytes == 1 && entry.shape.rank == 1);
    assert_string_equal(tarn_safetensors_metadata(file, "format"), "a \"text\"\n");
    assert_null(tarn_safetensors_metadata(file, "other"));
    assert_int_equal(tarn_safetensors_metadata_count(file), 1);
    assert_true(tarn_safetensors_metadata_at(file, 0, &key, &value));
    assert_string_equal(key, "format");
    assert_ok();
    tarn_safetensors_close(file);
}

static void reading_into_a_tensor_converts_floats_and_nothing_else(void **state)
{
    (void)state;
    tarn_safetensors *file = tarn_safetensors_open(scratch("bytes.safetensors"));
    tarn_tensor *half = tarn_zeros(TARN_SHAPE(1), TARN_BF16, CPU), *same = tarn_zeros(TARN_SHAPE(2), TARN_F32, CPU);
    assert_true(tarn_safetensors_read_into(file, "a", half));
    expect(half, TARN_SHAPE(1), VALUES(2));
    assert_true(tarn_safetensors_read_into(file, "z", tarn_slice(same, 0, 1, 2)));
    expect(same, TARN_SHAPE(2), VALUES(0, 1));
    assert_false(tarn_safetensors_read_into(file, "a", same));
    assert_error_about(TARN_ERROR_SHAPE, "safetensors_read_into", "'a' is [1], but the destination is [2]");
    assert_false(tarn_safetensors_read_into(file, "b", half));
    assert_error_about(TARN_ERROR_DTYPE, "'b' is u8", "bf16");
    assert_false(tarn_safetensors_read_into(file, "c", half));
    assert_error_about(TARN_ERROR_ARGUMENT, "no tensor 'c'", "bytes.safetensors");
    tarn_safetensors_close(file);
}

static void an_empty_file_of_tensors_is_a_file(void **state)
{
    (void)state;
    assert_true(tarn_safetensors_finish(tarn_safetensors_create(scratch("none.safetensors"))));
    tarn_safetensors *file = tarn_safetensors_open(scratch("none.safetensors"));
    assert_int_equal(tarn_safetensors_count(file), 0);
    assert_ok();
    tarn_safetensors_close(file);
}

/* ---- malformed files --------------------------------------------------------------------------------------------- */

static const char *put(const char *header, size_t data)
{
    char bytes[4096] = {0};
    uint64_t length = strlen(header);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    put_file(scratch("bad.safetensors"), bytes, 8 + length + data);
    return scratch("bad.safetensors");
}

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
    const char *header;
    size_t data;
    const char *says;
} malformed[] = {
    {"", 0, "byte 8: the header does not begin with '{'"},
    {" {}", 0, "does not begin with '{'"},
    {"[]", 0, "does not begin with '{'"},
    {"{", 0, "not valid JSON"},
    {"{} x", 0, "not valid JSON"},
    {"{\"a\xff\":1}", 0, "not valid JSON"},
    {"{}", 1, "the last tensor ends at byte 10, but the file ends at byte 11"},
    {"{\"a\":1}", 0, "tensor 'a' is not an object"},
    {"{\"a\":{}}", 0, "tensor 'a' has no string \"dtype\""},
    {"{\"a\":{\"dtype\":1}}", 0, "has no string \"dtype\""},
    {"{\"a\":" T("Q9", "[1]", "[0,1]") "}", 1, "tensor 'a' has the unknown dtype 'Q9'"},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "has no array \"shape\""},
    {"{\"a\":" T("U8", "3", "[0,1]") "}", 1, "has no array \"shape\""},
    {"{\"a\":" T("U8", "[-1]", "[0,1]") "}", 1, "size 0 of its shape"},
    {"{\"a\":" T("U8", "[1,1.0]", "[0,1]") "}", 1, "size 1 of its shape"},
    {"{\"a\":" T("U8", "[\"1\"]", "[0,1]") "}", 1, "size 0 of its shape"},
    {"{\"a\":" T("U8", "[99999999999999999999]", "[0,1]") "}", 1, "not valid JSON"},
    {"{\"a\":" T("F64", "[4611686018427387904,4]", "[0,1]") "}", 1, "is not a valid number of bytes"},
    {"{\"a\":" T("F64", "[9223372036854775807,0]", "[0,0]") "}", 0, "is not a valid number of bytes"},
    {"{\"a\":" T("F4", "[3]", "[0,1]") "}", 1, "is not a valid number of bytes"},
    {"{\"a\":" T("U8", "[1]", "[0]") "}", 1, "\"data_offsets\" of two integers"},
    {"{\"a\":" T("U8", "[1]", "[0,1,2]") "}", 1, "\"data_offsets\" of two integers"},
    {"{\"a\":" T("U8", "[1]", "[0,1.5]") "}", 1, "\"data_offsets\" of two integers"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "\"data_offsets\" of two integers"},
    {"{\"a\":" T("U8", "[1]", "[-1,0]") "}", 1, "has offsets -1 to 0, outside"},
    {"{\"a\":" T("U8", "[1]", "[1,0]") "}", 1, "has offsets 1 to 0, outside"},
    {"{\"a\":" T("U8", "[2]", "[0,2]") "}", 1, "has offsets 0 to 2, outside the 1 bytes"},
    {"{\"a\":" T("U8", "[1]", "[0,9223372036854775807]") "}", 1, "outside"},
    {"{\"a\":" T("F32", "[2]", "[0,4]") "}", 4, "its shape [2] of F32 needs 8 bytes, but it has 4"},
    {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"a\":" T("U8", "[1]", "[1,2]") "}", 2, "not valid JSON: duplicate"},
    {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[1,3]") "}", 3, "they overlap"},
    {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"b\":" T("U8", "[1]", "[2,3]") "}", 3, "tensor 'b' begins at byte"},
    {"{\"a\":" T("U8", "[1]", "[1,2]") "}", 2, "there is a gap"},
    {"{\"a\":" T("U8", "[1]", "[0,1]") "}", 5, "the last tensor ends at byte"},
    {"{\"__metadata__\":1}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "the value of 'a' is not a string"},
};

static void a_malformed_header_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(malformed) / sizeof(malformed[0]); i++) {
        const char *path = put(malformed[i].header, malformed[i].data);
        assert_null(tarn_safetensors_open(path));
        assert_contains(tarn_error(), "safetensors_open: '");
        assert_contains(tarn_error(), "bad.safetensors': ");
        assert_error(TARN_ERROR_FORMAT, malformed[i].says);
    }
    assert_null(tarn_safetensors_open(put("{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1)));
    assert_error(TARN_ERROR_UNSUPPORTED, "tensor 'a' has 9 axes; tarn's tensors have at most 8");
}

static void a_length_beyond_the_file_is_refused(void **state)
{
    (void)state;
    const uint64_t lengths[] = {3, 4096, 100000000, 100000001, (uint64_t)1 << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        char bytes[10] = "........{}";
        memcpy(bytes, &lengths[i], 8);
        put_file(scratch("bad.safetensors"), bytes, sizeof(bytes));
        assert_null(tarn_safetensors_open(scratch("bad.safetensors")));
        assert_error(TARN_ERROR_FORMAT,
                     lengths[i] > 100000000 ? "is longer than 100000000" : "only 2 follow; is the file truncated?");
    }
}

static void a_dtype_that_tarn_lacks_is_listed_and_not_loaded(void **state)
{
    (void)state;
    tarn_safetensors_entry entry;
    tarn_safetensors *file =
        tarn_safetensors_open(put("{\"a\":" T("F8_E4M3", "[4]", "[0,4]") ",\"b\":" T("U8", "[1]", "[4,5]") "}", 5));
    assert_ok();
    assert_true(tarn_safetensors_info(file, 0, &entry));
    assert_true(entry.dtype == TARN_DTYPE_COUNT && strcmp(entry.dtype_name, "F8_E4M3") == 0);
    assert_null(tarn_safetensors_read(file, "a", CPU));
    assert_error(TARN_ERROR_UNSUPPORTED, "tensor 'a' is F8_E4M3, which tarn cannot load");
    good(tarn_safetensors_read(file, "b", CPU));
    tarn_safetensors_close(file);
}

static void a_bool_is_zero_or_one(void **state)
{
    (void)state;
    const char *path = put("{\"a\":" T("BOOL", "[2]", "[0,2]") "}", 2);
    size_t count;
    char *bytes = get_file(path, &count);
    bytes[count - 1] = 2;
    put_file(path, bytes, count);
    free(bytes);
    tarn_safetensors *file = tarn_safetensors_open(path);
    assert_null(tarn_safetensors_read(file, "a", CPU));
    assert_error(TARN_ERROR_FORMAT, "2 is not a bool");
    tarn_safetensors_close(file);
}

/* A small good file with a bit of everything; the caller frees it. */
static char *sample(size_t *count)
{
    uint64_t random = 5;
    tarn_safetensors_writer *writer = tarn_safetensors_create(scratch("sample.safetensors"));
    tarn_safetensors_add_metadata(writer, "format", "pt");
    tarn_safetensors_add(writer, "layer.0.weight", pattern(TARN_SHAPE(2, 3), TARN_F32, &random, CPU));
    tarn_safetensors_add(writer, "layer.0.bias", pattern(TARN_SHAPE(3), TARN_BF16, &random, CPU));
    tarn_safetensors_add(writer, "flags", pattern(TARN_SHAPE(4), TARN_BOOL, &random, CPU));
    tarn_safetensors_add(writer, "steps", pattern(TARN_SCALAR, TARN_I64, &random, CPU));
    assert_true(tarn_safetensors_finish(writer));
    return get_file(scratch("sample.safetensors"), count);
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    size_t count;
    char *bytes = sample(&count);
    for (size_t length = 0; length < count; length++) {
        put_file(scratch("cut.safetensors"), bytes, length);
        assert_null(tarn_safetensors_open(scratch("cut.safetensors")));
        assert_error_about(TARN_ERROR_FORMAT, "safetensors_open: '", "cut.safetensors'");
    }
    free(bytes);
}

/* Reads all that can be read; every error must be one of a bad file. True when the file opened. */
static bool try_file(const char *path)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_safetensors *file = tarn_safetensors_open(path);
    bool opened = file != NULL;
    assert_true(opened != tarn_failed());
    for (int i = 0; file && i < tarn_safetensors_count(file); i++) {
        tarn_safetensors_entry entry;
        assert_true(tarn_safetensors_info(file, i, &entry));
        assert_int_equal(tarn_safetensors_find(file, entry.name), i);
        if (!tarn_safetensors_read(file, entry.name, CPU)) {
            assert_true(tarn_error_code() == TARN_ERROR_FORMAT || tarn_error_code() == TARN_ERROR_UNSUPPORTED);
            tarn_clear_error();
        }
    }
    if (!opened && tarn_error_code() != TARN_ERROR_UNSUPPORTED && tarn_error_code() != TARN_ERROR_FORMAT)
        fail_msg("an error of another kind: %s", tarn_error());
    tarn_clear_error();
    tarn_safetensors_close(file);
    tarn_scope_close(scope);
    return opened;
}

/* One to four changes: a byte, a digit, a piece taken out, a piece doubled, another length. */
static size_t mutate(char *bytes, size_t count, size_t room, uint64_t *random)
{
    for (int64_t changes = 1 + random_below(random, 4); changes > 0; changes--) {
        size_t at = (size_t)random_below(random, (int64_t)count), piece = 1 + (size_t)random_below(random, 12);
        switch (random_below(random, 5)) {
        case 0: bytes[at] = (char)random_bits(random); break;
        case 1: bytes[at] = "0123456789-.,:[]{}\"e \\"[random_below(random, 22)]; break;
        case 2:
            if (at + piece < count) {
                memmove(bytes + at, bytes + at + piece, count - at - piece);
                count -= piece;
            }
            break;
        case 3:
            if (at + piece < count && count + piece <= room) {
                memmove(bytes + at + piece, bytes + at, count - at);
                count += piece;
            }
            break;
        default: bytes[random_below(random, 8)] = (char)random_below(random, 256); break;
        }
    }
    return count;
}

static void changed_files_are_read_or_refused_and_never_more(void **state)
{
    (void)state;
    size_t count;
    uint64_t random = test_seed(20240607);
    char *bytes = sample(&count), *copy = malloc(count + 64);
    int rounds = getenv("TARN_TEST_LONG") ? 300000 : 200, opened = 0;
    for (int i = 0; i < rounds; i++) {
        memcpy(copy, bytes, count);
        put_file(scratch("changed.safetensors"), copy, mutate(copy, count, count + 64, &random));
        opened += try_file(scratch("changed.safetensors"));
    }
    print_message("%d of %d changed files opened\n", opened, rounds);
    assert_true(opened < rounds);
    free(bytes);
    free(copy);
}

/* ---- writing that fails ------------------------------------------------------------------------------------------ */

static bool write_to(const char *path, tarn_tensor *tensor)
{
    tarn_safetensors_writer *writer = tarn_safetensors_create(path);
    return tarn_safetensors_add(writer, "x", tensor) && tarn_safetensors_finish(writer);
}

static void a_path_that_cannot_be_written_is_an_error_and_leaves_nothing(void **state)
{
    (void)state;
    int before = scratch_count();
    tarn_tensor *x = vector(1, 2);
    assert_false(write_to("/nonexistent-folder/x.safetensors", x));
    assert_error(
        TARN_ERROR_IO,
        "safetensors_finish: '/nonexistent-folder/x.safetensors' cannot be written: No such file or directory");
    put_file(scratch("plain"), "x", 1);
    assert_false(write_to(scratch("plain/x.safetensors"), x));
    assert_error(TARN_ERROR_IO, "Not a directory");
    assert_int_equal(mkdir(scratch("folder"), 0777), 0);
    assert_false(write_to(scratch("folder"), x));
    assert_error(TARN_ERROR_IO, "is a folder; expected a file name");
    assert_false(write_to("/dev/null", x));
    assert_error(TARN_ERROR_IO, "is a device or pipe");
    assert_null(tarn_safetensors_open(scratch("folder")));
    assert_error(TARN_ERROR_IO, "is a folder, not a file");
    assert_null(tarn_safetensors_open(scratch("nosuch")));
    assert_error(TARN_ERROR_IO, "cannot be opened: No such file or directory");
    assert_int_equal(scratch_count(), before + 2);
}

/* A limit on the size of files stands for a full disk: the write that would cross it fails. */
static void a_full_disk_is_an_error_and_the_old_file_stays(void **state)
{
    (void)state;
    const char *path = scratch("full.safetensors");
    tarn_tensor *small = vector(1, 2), *large = tarn_ones(TARN_SHAPE(1 << 16), TARN_F32, CPU);
    assert_true(write_to(path, small));
    int before = scratch_count();
    struct rlimit limit, tight;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    tight = (struct rlimit){4096, limit.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    bool written = write_to(path, large);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_false(written);
    assert_error_about(TARN_ERROR_IO, "full.safetensors' could not be written", "File too large");
    assert_int_equal(scratch_count(), before);
    tarn_safetensors *file = tarn_safetensors_open(path);
    expect(tarn_safetensors_read(file, "x", CPU), TARN_SHAPE(2), VALUES(1, 2));
    tarn_safetensors_close(file);
    assert_true(write_to(path, large));
}

static void an_open_file_may_be_replaced_and_links_are_followed(void **state)
{
    (void)state;
    char path[600], link[600];
    snprintf(path, sizeof(path), "%s", scratch("target.safetensors"));
    snprintf(link, sizeof(link), "%s", scratch("link.safetensors"));
    assert_true(write_to(path, vector(1, 2)));
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(symlink(path, link), 0);
    tarn_safetensors *before = tarn_safetensors_open(path);
    assert_true(write_to(link, vector(3, 4)));
    expect(tarn_safetensors_read(before, "x", CPU), TARN_SHAPE(2), VALUES(1, 2));
    tarn_safetensors_close(before);
    struct stat about;
    assert_int_equal(lstat(link, &about), 0);
    assert_true(S_ISLNK(about.st_mode));
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0640);
    tarn_safetensors *after = tarn_safetensors_open(path);
    expect(tarn_safetensors_read(after, "x", CPU), TARN_SHAPE(2), VALUES(3, 4));
    tarn_safetensors_close(after);
}

/* ---- checksums --------------------------------------------------------------------------------------------------- */

static void write_checked(void)
{
    tarn_safetensors_writer *writer = tarn_safetensors_create(scratch("sums.safetensors"));
    tarn_safetensors_add(writer, "first", vector(1, 2, 3));
    tarn_safetensors_add(writer, "none", tarn_zeros(TARN_SHAPE(0), TARN_F32, CPU));
    tarn_safetensors_add(writer, "second", vector(4, 5));
    tarn_safetensors_add_checksums(writer);
    assert_true(tarn_safetensors_finish(writer));
}

static void put_in(const char *text, const char *other)
{
    size_t count;
    write_checked();
    char *content = get_file(scratch("sums.safetensors"), &count);
    for (size_t at = 0; at + strlen(text) <= count; at++)
        if (memcmp(content + at, text, strlen(text)) == 0) {
            memcpy(content + at, other, strlen(text));
            break;
        }
    put_file(scratch("sums.safetensors"), content, count);
    free(content);
}

static void a_damaged_tensor_is_refused_by_name_and_others_are_read(void **state)
{
    (void)state;
    put_in("\x80\x40", "\x81\x40"); /* the 4 */
    tarn_safetensors *file = tarn_safetensors_open(scratch("sums.safetensors"));
    expect(tarn_safetensors_read(file, "first", CPU), TARN_SHAPE(3), VALUES(1, 2, 3));
    expect(tarn_safetensors_read(file, "none", CPU), TARN_SHAPE(0), VALUES(0));
    assert_null(tarn_safetensors_read(file, "second", CPU));
    assert_error_about(TARN_ERROR_FORMAT, "sums.safetensors", "tensor 'second' is damaged");
    assert_false(tarn_safetensors_read_into(file, "second", vector(0, 0)));
    assert_error(TARN_ERROR_FORMAT, "tensor 'second' is damaged");
    tarn_safetensors_close(file);
}

static void a_damaged_header_or_list_of_checksums_is_refused(void **state)
{
    (void)state;
    static const char *const bad[][3] = {
        {"\"first\"", "\"fjrst\"", "its checksum is"},
        {"\"tarn.checksum\"", "\"tarn.checksun\"", "'tarn.checksum.values' but not 'tarn.checksum'"},
        {"\"tarn.checksum.values\"", "\"tarn.checksum.valuer\"", "'tarn.checksum' but not 'tarn.checksum.values'"},
        {"\"xxh64\"", "\"xxh46\"", "'tarn.checksum' is 'xxh46'"},
        {"ef46db3751d8e999", "ef46db3751d8e99g", "16 hexadecimal digits"},
        {"ef46db3751d8e999", "ef46db3751d8e998", "its checksum is"},
        {" ef46db3751d8e999", "\",\"k\":\"0123456789", "'tarn.checksum.values' has"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        put_in(bad[i][0], bad[i][1]);
        assert_null(tarn_safetensors_open(scratch("sums.safetensors")));
        assert_error_about(TARN_ERROR_FORMAT, "the header is damaged", bad[i][2]);
    }
}

/* ---- scarce memory ----------------------------------------------------------------------------------------------- */

static void write_and_read(void)
{
    tarn_tensor *x = tarn_ones(TARN_SHAPE(3, 4), TARN_F32, CPU);
    tarn_safetensors_writer *writer = tarn_safetensors_create(scratch("scarce.safetensors"));
    tarn_safetensors_add(writer, "x", tarn_transpose(x, 0, 1));
    tarn_safetensors_add(writer, "y", x);
    tarn_safetensors_add_checksums(writer);
    tarn_safetensors_finish(writer);
    tarn_safetensors *file = tarn_safetensors_open(scratch("scarce.safetensors"));
    tarn_safetensors_read(file, "x", CPU);
    tarn_safetensors_read_into(file, "y", tarn_zeros(TARN_SHAPE(3, 4), TARN_F64, CPU));
    tarn_safetensors_close(file);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    int files = scratch_count() + 1, rounds = 0;
    tarn_set_pool(false);
    for (bool done = false; !done; rounds++) {
        allocations_left = 1 << 20;
        tarn_scope *scope = tarn_scope_open();
        allocations_left = rounds;
        write_and_read();
        done = !tarn_failed();
        assert_true(done || tarn_error_code() == TARN_ERROR_MEMORY);
        tarn_clear_error();
        allocations_left = 1 << 20;
        tarn_scope_close(scope);
        assert_int_equal(tarn__memory_in_use(), 0);
    }
    assert_true(rounds > 20);
    assert_int_equal(scratch_count(), files);
    tarn_set_pool(true);
}

static int take_over(void **state)
{
    tarn_clear_error();
    return make_scratch(state) == 0 && tarn_empty_cache(CPU) && tarn_set_allocator(&scarce_allocator) ? 0 : -1;
}

static int hand_back(void **state)
{
    return remove_scratch(state) == 0 && tarn_empty_cache(CPU) && tarn_set_allocator(NULL) ? 0 : -1;
}

static void without_jansson_the_error_names_the_package(void **state)
{
    (void)state;
    assert_null(tarn_safetensors_open("x.safetensors"));
    assert_error_about(TARN_ERROR_UNSUPPORTED, "safetensors_open", "libjansson-dev");
    assert_null(tarn_safetensors_create("x.safetensors"));
    assert_error_about(TARN_ERROR_UNSUPPORTED, "safetensors_create", "libjansson-dev");
}

int main(void)
{
    const struct CMUnitTest missing[] = {in_scope(without_jansson_the_error_names_the_package)};
    if (!TARN__HAVE_JANSSON)
        return cmocka_run_group_tests(missing, NULL, NULL);
    const struct CMUnitTest scarce[] = {cmocka_unit_test(every_allocation_may_fail)};
    const struct CMUnitTest tests[] = {
        in_scope(every_dtype_and_shape_comes_back_bit_for_bit),
        in_scope(so_it_does_from_and_to_another_device),
        in_scope(views_are_written_as_they_read),
        in_scope(the_bytes_are_those_of_the_reference_implementation),
        in_scope(names_and_metadata_are_queried),
        in_scope(reading_into_a_tensor_converts_floats_and_nothing_else),
        in_scope(an_empty_file_of_tensors_is_a_file),
        in_scope(a_damaged_tensor_is_refused_by_name_and_others_are_read),
        in_scope(a_damaged_header_or_list_of_checksums_is_refused),
        in_scope(a_malformed_header_is_refused),
        in_scope(a_length_beyond_the_file_is_refused),
        in_scope(a_dtype_that_tarn_lacks_is_listed_and_not_loaded),
        in_scope(a_bool_is_zero_or_one),
        in_scope(a_file_cut_anywhere_is_refused),
        in_scope(changed_files_are_read_or_refused_and_never_more),
        in_scope(a_path_that_cannot_be_written_is_an_error_and_leaves_nothing),
        in_scope(a_full_disk_is_an_error_and_the_old_file_stays),
        in_scope(an_open_file_may_be_replaced_and_links_are_followed),
    };
    int failures = cmocka_run_group_tests_name("memory", scarce, take_over, hand_back);
    return failures + cmocka_run_group_tests_name("files", tests, make_scratch, remove_scratch);
}
