/* test_gguf_shards.c: a GGUF model in shards opens as one file by the path of any of them, its tensors are views of all
 * of them, and what does not belong together is an error that names the file. tests/parity/gguf_files.py opens shards
 * of the gguf package. */
#include <sys/stat.h>
#include <unistd.h>

#include "support/files.h"
#include "support/gguf_shards.h"

#define CPU tarn_device_cpu()
#define NAME "m"

/* What a shard says of itself. */
typedef struct shard {
    int no, count, tensors; /* its keys; count 0: none */
    const char *names;      /* of its tensors, a letter each */
    uint32_t alignment;     /* 0: the default */
} shard;

/* The tensor "a" is [0, 1, 2], "b" [1, 2, 3] … A key names the file. */
static void write_shard(const char *path, shard s)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_gguf_writer *w = tarn_gguf_create(path);
    assert_true(tarn_gguf_add_string(w, "x.file", s.no ? "other" : "first", 5));
    assert_true(!s.alignment || tarn_gguf_add_value(w, "general.alignment", TARN_GGUF_U32, &s.alignment));
    assert_true(!s.count || add_split_keys(w, s.no, s.count, s.tensors));
    for (const char *name = s.names; *name; name++) {
        float first = (float)(*name - 'a');
        assert_true(tarn_gguf_add(w, (const char[]){*name, 0}, vector(first, first + 1, first + 2)));
    }
    assert_true(tarn_gguf_finish(w));
    tarn_scope_close(scope);
}

static const char *path_of(int no)
{
    return shard_path(NAME, no, 3);
}

/* Three shards of the tensors a to d; the first has none, as llama.cpp's option --no-tensor-first-split makes it. */
static void write_shards(void)
{
    write_shard(path_of(0), (shard){0, 3, 4, "", 0});
    write_shard(path_of(1), (shard){1, 3, 4, "abc", 0});
    write_shard(path_of(2), (shard){2, 3, 4, "d", 4096});
}

/* ---- good ones --------------------------------------------------------------------------------------------------- */

static void check_model(const tarn_gguf *file, tarn_device device)
{
    tarn_gguf_entry entry;
    assert_ok();
    assert_int_equal(tarn_gguf_count(file), 4);
    assert_int_equal(tarn_gguf_metadata_count(file), 4);
    assert_string_equal(tarn_gguf_string(file, "x.file", NULL), "first");
    for (int i = 0; i < 4; i++) {
        const char name[] = {(char)('a' + i), 0};
        assert_string_equal(tarn_gguf_name(file, i), name);
        assert_int_equal(tarn_gguf_find(file, name), i);
        assert_true(tarn_gguf_info(file, i, &entry) && entry.bytes == 12 && entry.dtype == TARN_F32);
        expect(good(tarn_gguf_tensor(file, i, device)), TARN_SHAPE(3), VALUES(i, i + 1, i + 2));
    }
    assert_true(tarn_gguf_info(file, 3, &entry) && entry.position == 4096); /* in its own file */
    assert_int_equal(tarn_gguf_find(file, "e"), -1);
}

static void several_files_are_one(void **state)
{
    (void)state;
    write_shards();
    for (int i = 0; i < 3; i++) {
        tarn_gguf *file = tarn_gguf_open(path_of(i));
        check_model(file, CPU);
        check_model(file, tarn_device_parse("mirror:1"));
        tarn_gguf_close(file);
    }
}

static void shards_are_found_in_the_working_folder(void **state)
{
    (void)state;
    char before[4096];
    write_shards();
    assert_non_null(getcwd(before, sizeof(before)));
    assert_int_equal(chdir(scratch("")), 0);
    tarn_gguf *file = tarn_gguf_open(NAME "-00002-of-00003.gguf");
    check_model(file, CPU);
    tarn_gguf_close(file);
    assert_int_equal(chdir(before), 0);
}

static void tensors_are_views_of_all_files_and_outlive_them(void **state)
{
    (void)state;
    write_shards();
    int64_t held = tarn_memory_of(CPU).used;
    tarn_gguf *file = tarn_gguf_open(path_of(0));
    tarn_tensor *b = good(tarn_gguf_tensor(file, 1, CPU)), *d = good(tarn_gguf_tensor(file, 3, CPU));
    assert_int_equal(tarn_memory_of(CPU).used, held); /* none of them was copied */
    tarn_gguf_close(file);
    expect(b, TARN_SHAPE(3), VALUES(1, 2, 3));
    expect(d, TARN_SHAPE(3), VALUES(3, 4, 5));
}

/* All that was read makes one whole file. */
static void shards_are_handed_on_as_one_file(void **state)
{
    (void)state;
    write_shards();
    tarn_gguf *file = tarn_gguf_open(path_of(0));
    tarn_gguf_writer *w = tarn_gguf_create(scratch("whole.gguf"));
    for (int i = 0; i < tarn_gguf_metadata_count(file); i++)
        assert_true(tarn_gguf_add_from(w, file, i));
    for (int i = 0; i < tarn_gguf_count(file); i++)
        assert_true(tarn_gguf_add(w, tarn_gguf_name(file, i), tarn_gguf_tensor(file, i, CPU)));
    tarn_gguf_close(file);
    assert_true(tarn_gguf_finish(w));
    file = tarn_gguf_open(scratch("whole.gguf"));
    assert_ok();
    assert_int_equal(tarn_gguf_count(file), 4);
    assert_int_equal(tarn_gguf_metadata_count(file), 1);
    tarn_gguf_close(file);
}

/* A count of 0, which llama.cpp's merging leaves, or 1; and a file that is only named as a shard. */
static void a_file_of_one_shard_may_have_any_name(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int no, count;
    } files[] = {{"one.gguf", 0, 1}, {"one-00001-of-00001.gguf", 0, 1}, {"one-00002-of-00003.gguf", 0, 0}};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        write_shard(scratch(files[i].name), (shard){files[i].no, files[i].count, 2, "ab", 0});
        tarn_gguf *file = tarn_gguf_open(scratch(files[i].name));
        assert_ok();
        assert_int_equal(tarn_gguf_count(file), 2);
        tarn_gguf_close(file);
    }
    tarn_gguf_writer *w = tarn_gguf_create(scratch("merged.gguf"));
    assert_true(add_split_keys(w, 0, 0, 0) && tarn_gguf_add(w, "a", vector(1)) && tarn_gguf_finish(w));
    tarn_gguf *file = tarn_gguf_open(scratch("merged.gguf")), *again;
    w = tarn_gguf_create(scratch("again.gguf"));
    assert_true(tarn_gguf_add_from(w, file, 0) && tarn_gguf_add_from(w, file, 2) && tarn_gguf_finish(w));
    again = tarn_gguf_open(scratch("again.gguf")); /* such keys are handed on like any other */
    assert_true(tarn_gguf_has(again, "split.count", NULL) && tarn_gguf_metadata_count(again) == 2);
    tarn_gguf_close(file);
    tarn_gguf_close(again);
}

/* ---- bad ones ---------------------------------------------------------------------------------------------------- */

/* One shard is replaced: opening any fails with a sentence that has the name of a file and of what is wrong. */
static void every_inconsistency_is_an_error(void **state)
{
    (void)state;
    static const struct {
        int which; /* the shard that is replaced; its file has that number */
        shard with;
        const char *file, *says;
    } rows[] = {
        {0, {0, 4, 4, "", 0}, "m-00001-of-00003.gguf", "is shard 1 of 4; its name must end in '-00001-of-00004.gguf'"},
        {0, {1, 3, 4, "", 0}, "m-00001-of-00003.gguf", "is shard 2 of 3; its name must end in '-00002-of-00003.gguf'"},
        {0, {3, 3, 4, "", 0}, "m-00001-of-00003.gguf", "'split.no' is 3; it must be from 0 to 2"},
        {0, {0, 3, -1, "", 0}, "m-00001-of-00003.gguf", "'split.tensors.count' is 1 below zero"},
        {0, {0, 3, 5, "", 0}, "m-00002-of-00003.gguf", "'split.tensors.count' is 4; it must be 5"},
        {0, {0, 3, 4, "a", 0}, "m-00001-of-00003.gguf", "is 4, but its shards have at least 5 tensors"},
        {1, {1, 3, 4, "ab", 0}, "m-00001-of-00003.gguf", "'split.tensors.count' is 4, but its shards have 3 tensors"},
        {1, {0, 0, 0, "abc", 0}, "m-00002-of-00003.gguf", "'split.count' is 0; it must be 3"},
        {1, {1, 2, 4, "abc", 0}, "m-00002-of-00003.gguf", "'split.count' is 2; it must be 3"},
        {1, {2, 3, 4, "abc", 0}, "m-00002-of-00003.gguf", "'split.no' is 2; it must be 1"},
        {2, {2, 3, 9, "d", 0}, "m-00003-of-00003.gguf", "'split.tensors.count' is 9; it must be 4"},
        {2, {2, 3, 4, "b", 0}, "m-00003-of-00003.gguf", "both have a tensor 'b'"},
        {2, {2, 3, 4, "de", 0}, "m-00001-of-00003.gguf", "its shards have at least 5 tensors"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        write_shards();
        write_shard(path_of(rows[i].which), rows[i].with);
        assert_null(tarn_gguf_open(path_of(0)));
        assert_contains(tarn_error(), "gguf_open: ");
        assert_error_about(TARN_ERROR_FORMAT, rows[i].file, rows[i].says);
        assert_null(tarn_gguf_open(path_of(2)));
        tarn_clear_error();
    }
}

static void keys_that_are_missing_or_of_another_type(void **state)
{
    (void)state;
    const uint16_t three = 3, zero = 0;
    tarn_gguf_writer *w = tarn_gguf_create(path_of(0));
    assert_true(tarn_gguf_add_string(w, "split.count", "3", 1) && tarn_gguf_finish(w));
    assert_null(tarn_gguf_open(path_of(0)));
    assert_error_about(TARN_ERROR_FORMAT, "m-00001-of-00003.gguf", "'split.count' is of type text, not an integer");
    w = tarn_gguf_create(path_of(0));
    assert_true(tarn_gguf_add_value(w, "split.count", TARN_GGUF_U16, &three) && tarn_gguf_finish(w));
    assert_null(tarn_gguf_open(path_of(0)));
    assert_error_about(TARN_ERROR_FORMAT, "m-00001-of-00003.gguf", "has no key 'split.no'");
    w = tarn_gguf_create(path_of(0));
    assert_true(tarn_gguf_add_value(w, "split.count", TARN_GGUF_U16, &three) &&
                tarn_gguf_add_value(w, "split.no", TARN_GGUF_U16, &zero) && tarn_gguf_finish(w));
    assert_null(tarn_gguf_open(path_of(0)));
    assert_error_about(TARN_ERROR_FORMAT, "m-00001-of-00003.gguf", "has no key 'split.tensors.count'");
}

static void a_missing_shard_is_named(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        char missing[64];
        snprintf(missing, sizeof(missing), "m-%05d-of-00003.gguf' not found; it is shard %d of 3", i + 1, i + 1);
        write_shards();
        assert_int_equal(unlink(path_of(i)), 0);
        assert_null(tarn_gguf_open(path_of(i == 0)));
        assert_error_about(TARN_ERROR_IO, missing, i ? "m-00001-of-00003.gguf'" : "m-00002-of-00003.gguf'");
    }
    write_shards();
    unlink(path_of(1));
    mkdir(path_of(1), 0777);
    assert_null(tarn_gguf_open(path_of(0)));
    assert_error(TARN_ERROR_IO, "m-00002-of-00003.gguf");
    assert_int_equal(rmdir(path_of(1)), 0);
}

/* Names of other files come from the path and from numbers: a shard under another name opens nothing, whatever lies
 * beside it or above. */
static void a_shard_under_another_name_opens_nothing(void **state)
{
    (void)state;
    static const char *const names[] = {"m.gguf", "m-00001-of-00003.gguf.part", "m-0001-of-0003.gguf",
                                        "m-00001-of-00003-00002-of-00003.gguf"};
    write_shards();
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        write_shard(scratch(names[i]), (shard){0, 3, 4, "", 0});
        assert_null(tarn_gguf_open(scratch(names[i])));
        assert_error_about(TARN_ERROR_FORMAT, names[i], "its name must end in '-00001-of-00003.gguf'");
    }
    mkdir(scratch("below"), 0777);
    write_shard(scratch("below/m-00001-of-00003.gguf"), (shard){0, 3, 4, "", 0});
    assert_null(tarn_gguf_open(scratch("below/m-00001-of-00003.gguf")));
    assert_error(TARN_ERROR_IO, "below/m-00002-of-00003.gguf' not found");
    write_shard(scratch("many-00001-of-65535.gguf"), (shard){0, 65535, 4, "", 0});
    assert_null(tarn_gguf_open(scratch("many-00001-of-65535.gguf")));
    assert_error(TARN_ERROR_IO, "many-00002-of-65535.gguf' not found");
}

static void every_truncation_is_an_error_of_its_shard(void **state)
{
    (void)state;
    size_t count;
    write_shards();
    char *whole = get_file(path_of(1), &count);
    for (size_t i = 0; i < count - 20; i++) { /* the last tensor ends 20 bytes of padding before the end */
        put_file(path_of(1), whole, i);
        assert_null(tarn_gguf_open(path_of(0)));
        assert_error(TARN_ERROR_FORMAT, "m-00002-of-00003.gguf");
    }
    free(whole);
}

static void open_without_memory(int allowed)
{
    allocations_left = allowed;
    tarn_gguf *file = tarn_gguf_open(path_of(1));
    assert_true((file != NULL) != tarn_failed());
    if (!file)
        assert_int_equal(tarn_error_code(), TARN_ERROR_MEMORY);
    tarn_gguf_close(file);
    tarn_clear_error();
}

static void without_memory_nothing_is_opened_or_lost(void **state)
{
    (void)state;
    bool opened = false;
    tarn_scope *scope = tarn_scope_open();
    write_shards();
    tarn_scope_close(scope);
    tarn_empty_cache(CPU);
    assert_true(tarn_set_allocator(&scarce_allocator));
    for (int i = 0; !opened && i < 1000; i++) {
        open_without_memory(i);
        opened = allocations_left > 0;
    }
    assert_true(opened);
    allocations_left = 1000000;
    assert_true(tarn_set_allocator(NULL)); /* an error while any of its memory is held */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(without_memory_nothing_is_opened_or_lost, clear_error), /* first: nothing holds memory */
        in_scope(several_files_are_one),
        in_scope(shards_are_found_in_the_working_folder),
        in_scope(tensors_are_views_of_all_files_and_outlive_them),
        in_scope(shards_are_handed_on_as_one_file),
        in_scope(a_file_of_one_shard_may_have_any_name),
        in_scope(every_inconsistency_is_an_error),
        in_scope(keys_that_are_missing_or_of_another_type),
        in_scope(a_missing_shard_is_named),
        in_scope(a_shard_under_another_name_opens_nothing),
        in_scope(every_truncation_is_an_error_of_its_shard),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
