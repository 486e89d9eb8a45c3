/* test_importance.c: importance matrices from files: they change how weights are quantized; damaged ones are refused.
 * tests/parity/gguf_files.py compares those of a text with transformers' activations. */
#include <string.h>

#include "support/check.h"
#include "support/files.h"

#define COLUMNS 256

static const char *write_weights(void)
{
    const char *path = scratch("model.gguf");
    tarn_scope *scope = tarn_scope_open();
    tarn_gguf_writer *w = tarn_gguf_create(path);
    assert_true(tarn_gguf_add_string(w, "general.architecture", "any", 3) &&
                tarn_gguf_add(w, "a.weight", tarn_normal(TARN_SHAPE(4, COLUMNS), 0, 1, TARN_F32, tarn_device_cpu())) &&
                tarn_gguf_add(w, "b.weight", tarn_normal(TARN_SHAPE(4, COLUMNS), 0, 1, TARN_F32, tarn_device_cpu())) &&
                tarn_gguf_finish(w));
    tarn_scope_close(scope);
    return path;
}

/* llama.cpp's older file with one entry; returns its bytes. */
static size_t make_file(char *to, const char *name, int32_t columns)
{
    const int32_t head[] = {1, (int32_t)strlen(name)}, tail[] = {1, columns};
    size_t at = 0;
    memcpy(to, head, sizeof(head)), at += sizeof(head);
    memcpy(to + at, name, strlen(name)), at += strlen(name);
    memcpy(to + at, tail, sizeof(tail)), at += sizeof(tail);
    for (int i = 0; i < COLUMNS; i++, at += sizeof(float))
        memcpy(to + at, &(float){i % 16 == 0 ? 100 : 0.01f}, sizeof(float));
    return at;
}

static bool quantize(const char *to, const char *importance)
{
    return tarn_model_convert(
        scratch("model.gguf"), to, NULL,
        &(tarn_convert_options){.quantize = true, .type = TARN_Q4_K, .replace = true, .importance = importance});
}

/* Elements of a weight in a file. */
static void read_weight(const char *path, const char *name, float *values)
{
    tarn_gguf *file = tarn_gguf_open(path);
    tarn_scope *scope = tarn_scope_open();
    assert_non_null(file);
    assert_true(tarn_read_f32(good(tarn_gguf_tensor(file, tarn_gguf_find(file, name), tarn_device_cpu())), values,
                              4 * COLUMNS));
    tarn_scope_close(scope);
    tarn_gguf_close(file);
}

static void important_columns_come_out_closer(void **state)
{
    (void)state;
    static float exact[4 * COLUMNS], with[4 * COLUMNS], without[4 * COLUMNS], other[2][4 * COLUMNS];
    char file[4096];
    write_weights();
    size_t count = make_file(file, "a.weight", COLUMNS);
    write_file("imatrix.dat", file, count);
    assert_true(quantize(scratch("with.gguf"), scratch("imatrix.dat")) && quantize(scratch("without.gguf"), NULL));
    read_weight(scratch("model.gguf"), "a.weight", exact);
    read_weight(scratch("with.gguf"), "a.weight", with);
    read_weight(scratch("without.gguf"), "a.weight", without);
    double errors[2] = {0};
    for (int i = 0; i < 4 * COLUMNS; i += 16) {
        errors[0] += ((double)with[i] - exact[i]) * ((double)with[i] - exact[i]);
        errors[1] += ((double)without[i] - exact[i]) * ((double)without[i] - exact[i]);
    }
    assert_true(errors[0] < 0.5 * errors[1]);
    /* a weight without an entry is quantized as ever */
    read_weight(scratch("with.gguf"), "b.weight", other[0]);
    read_weight(scratch("without.gguf"), "b.weight", other[1]);
    assert_memory_equal(other[0], other[1], sizeof(other[0]));
}

static void damaged_files_are_refused(void **state)
{
    (void)state;
    char file[4096];
    write_weights();
    size_t count = make_file(file, "a.weight", COLUMNS);
    for (size_t length = 0; length < count; length += length < 40 ? 1 : 97) {
        write_file("short.dat", file, length);
        assert_false(quantize(scratch("no.gguf"), scratch("short.dat")));
        assert_error_about(TARN_ERROR_FORMAT, "short.dat", "is no importance matrix");
    }
    static const int32_t lengths[] = {-1, 0, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        count = make_file(file, "a.weight", lengths[i]);
        write_file("columns.dat", file, count);
        assert_false(quantize(scratch("no.gguf"), scratch("columns.dat")));
        assert_error(TARN_ERROR_FORMAT, "is no importance matrix");
        count = make_file(file, "a.weight", COLUMNS);
        memcpy(file + 4, &lengths[i], sizeof(lengths[i]));
        write_file("name.dat", file, count);
        assert_false(quantize(scratch("no.gguf"), scratch("name.dat")));
        assert_error(TARN_ERROR_FORMAT, "is no importance matrix");
    }
    assert_false(quantize(scratch("no.gguf"), scratch("model.gguf")));
    assert_error(TARN_ERROR_FORMAT, "has no tensors");
    assert_false(quantize(scratch("no.gguf"), scratch("missing")));
    assert_error(TARN_ERROR_IO, "missing");
    assert_false(quantize(scratch("no.gguf"), "text:/does/not/exist"));
    assert_error(TARN_ERROR_IO, "/does/not/exist");
    assert_false(tarn_model_convert(scratch("model.gguf"), scratch("folder"), NULL,
                                    &(tarn_convert_options){.importance = "text:x"}));
    assert_error(TARN_ERROR_ARGUMENT, ".importance is for .quantize");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(important_columns_come_out_closer),
        cmocka_unit_test(damaged_files_are_refused),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
