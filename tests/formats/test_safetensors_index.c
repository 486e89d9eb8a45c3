/* test_safetensors_index.c: tensors in several files, opened by an index as one file; every inconsistency is an
 * error. */
#include <unistd.h>

#include "support/files.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()
#define INDEX "model.safetensors.index.json"

/* A file of tensors [2] with the given names; element 0 is `value`, and counts up from name to name. */
static void write_part(const char *name, float value, const char *const *names)
{
    tarn_safetensors_writer *writer = tarn_safetensors_create(scratch(name));
    for (; *names; names++, value += 1)
        tarn_safetensors_add(writer, *names, tarn_from_f32((const float[]){value, -value}, TARN_SHAPE(2), CPU));
    assert_true(tarn_safetensors_finish(writer));
}

static void write_parts(void)
{
    write_part("part-1.safetensors", 1, (const char *const[]){"a", "b", NULL});
    write_part("part-2.safetensors", 3, (const char *const[]){"c", NULL});
}

#define GOOD \
    "{\"metadata\": {\"total_size\": 24}, \"weight_map\": {\"b\": \"part-1.safetensors\", \"c\": " \
    "\"part-2.safetensors\", \"a\": " \
    "\"part-1.safetensors\"}}"

static void several_files_are_one(void **state)
{
    (void)state;
    write_parts();
    tarn_safetensors *file = tarn_safetensors_open(write_text(INDEX, GOOD));
    assert_ok();
    assert_int_equal(tarn_safetensors_count(file), 3);
    assert_int_equal(tarn_safetensors_metadata_count(file), 0);
    assert_null(tarn_safetensors_metadata(file, "total_size"));
    assert_int_equal(tarn_safetensors_find(file, "d"), -1);
    for (int i = 0; i < 3; i++) { /* part by part, in the order of their names */
        tarn_safetensors_entry entry;
        const char name[] = {(char)('a' + i), 0};
        assert_string_equal(tarn_safetensors_name(file, i), name);
        assert_int_equal(tarn_safetensors_find(file, name), i);
        assert_true(tarn_safetensors_info(file, i, &entry) && entry.bytes == 8 && entry.dtype == TARN_F32);
        assert_values(good(tarn_safetensors_read(file, name, CPU)), 0, i + 1, -(i + 1));
        tarn_tensor *there = tarn_zeros(TARN_SHAPE(2), TARN_F64, CPU);
        assert_true(tarn_safetensors_read_into(file, name, there));
        assert_values(there, 0, i + 1, -(i + 1));
    }
    tarn_safetensors_close(file);
}

static void a_module_is_loaded_from_several_files(void **state)
{
    (void)state;
    tarn_module *module = tarn_linear(2, 2, CPU);
    tarn_safetensors_writer *writer = tarn_safetensors_create(scratch("w.safetensors"));
    tarn_safetensors_add(writer, "weight", tarn_ones(TARN_SHAPE(2, 2), TARN_BF16, CPU));
    assert_true(tarn_safetensors_finish(writer));
    write_part("v.safetensors", 5, (const char *const[]){"bias", NULL});
    const char *index = write_text("linear.safetensors.index.json",
                                   "{\"weight_map\": {\"weight\": \"w.safetensors\", \"bias\": \"v.safetensors\"}}");
    assert_true(tarn_module_load(module, index, NULL));
    assert_values(tarn_module_find(module, "weight"), 0, 1, 1, 1, 1);
    assert_values(tarn_module_find(module, "bias"), 0, 5, -5);
    tarn_module_free(module);
}

#define MAP(members) "{\"weight_map\": {" members "}}"
#define ONE "\"part-1.safetensors\""
#define TWO "\"part-2.safetensors\""

static void every_wrong_index_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *sentence;
    } files[] = {
        {"", "line 1"},
        {"[]", "weight_map"},
        {"{}", "weight_map"},
        {"{\"weight_map\": []}", "weight_map"},
        {"{\"weight_map\": {}}", "weight_map"},
        {MAP("\"a\": " ONE ", \"a\": " ONE), "duplicate"},
        {MAP("\"a\": 1"), "tensor 'a' is not a string"},
        {MAP("\"a\": \"\""), "not a file name next to"},
        {MAP("\"a\": \"..\""), "not a file name next to"},
        {MAP("\"a\": \"../part-1.safetensors\""), "not a file name next to"},
        {MAP("\"a\": \"/etc/passwd\""), "not a file name next to"},
        {MAP("\"a\": \"x\\\\part-1.safetensors\""), "not a file name next to"},
        {MAP("\"a\": \"" INDEX "\""), "names another index"},
        {MAP("\"a\": \"part-9.safetensors\""), "part-9.safetensors"}, /* a missing file */
        {MAP("\"a\": " ONE), "has 'b', which the index"},             /* more than the index names */
        {MAP("\"a\": " ONE ", \"b\": " ONE ", \"c\": " TWO ", \"d\": " TWO), "'d' is not in 'part-2.safetensors'"},
        {MAP("\"a\": " ONE ", \"b\": " TWO ", \"c\": " TWO),
         "has 'b', which the index places in 'part-2.safetensors'"}, /* the wrong file */
        {MAP("\"a\": " ONE ", \"b\": " ONE ", \"c\": \"twice.safetensors\""),
         "which the index places in 'part-1.safetensors'"},
        {MAP("\"a\": " ONE ", \"b\": " ONE ", \"c\": \"text.safetensors\""), "text.safetensors"},
    };
    write_parts();
    write_part("twice.safetensors", 3, (const char *const[]){"b", "c", NULL});
    write_text("text.safetensors", "this is no file of tensors");
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        assert_null(tarn_safetensors_open(write_text(INDEX, files[i].text)));
        if (!strstr(tarn_error(), files[i].sentence) || !strstr(tarn_error(), "safetensors_open"))
            fail_msg("%s: '%s' and not '%s'", files[i].text, tarn_error(), files[i].sentence);
        tarn_clear_error();
    }
    assert_null(tarn_safetensors_open(scratch("nosuch/" INDEX)));
    assert_error(TARN_ERROR_IO, "nosuch");
}

/* Of an index cut anywhere, and with a byte changed anywhere, nothing but the whole one opens as it is. */
static void damaged_indexes_open_as_nothing_else(void **state)
{
    (void)state;
    write_parts();
    for (size_t length = 0; length < strlen(GOOD); length++) {
        assert_null(tarn_safetensors_open(write_file(INDEX, GOOD, length)));
        tarn_clear_error();
    }
    for (size_t at = 0; at < strlen(GOOD); at++) {
        char text[] = GOOD;
        text[at] = (char)(text[at] ^ 1);
        tarn_safetensors *file = tarn_safetensors_open(write_text(INDEX, text));
        if (file)
            assert_int_equal(tarn_safetensors_count(file), 3); /* a byte of the metadata */
        tarn_clear_error();
        tarn_safetensors_close(file);
    }
}

static void a_failed_allocation_leaves_nothing_behind(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    write_parts();
    tarn_scope_close(scope);
    const char *index = write_text(INDEX, GOOD);
    bool opened = false;
    tarn_empty_cache(CPU);
    if (!tarn_set_allocator(&scarce_allocator))
        fail_msg("%s", tarn_error());
    for (int room = 0; !opened && room < 1000; room++) {
        allocations_left = room;
        tarn_safetensors *file = tarn_safetensors_open(index);
        opened = file != NULL;
        assert_true(opened || tarn_error_code() == TARN_ERROR_MEMORY);
        allocations_left = 1000000;
        tarn_clear_error();
        tarn_safetensors_close(file);
    }
    assert_true(opened);
    if (!tarn_set_allocator(NULL))
        fail_msg("%s", tarn_error());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_failed_allocation_leaves_nothing_behind,
                               clear_error), /* first: nothing holds memory yet */
        in_scope(several_files_are_one),
        in_scope(a_module_is_loaded_from_several_files),
        in_scope(every_wrong_index_is_refused),
        in_scope(damaged_indexes_open_as_nothing_else),
    };
    return TARN__HAVE_JANSSON ? cmocka_run_group_tests(tests, make_scratch, remove_scratch) : 0;
}
