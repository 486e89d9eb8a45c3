/* test_tuning_cache.c: values by key in a file: kept between processes, the last wins, and a damaged line is ignored
 * and not in the way of the next. */
#include "base/os/tuning_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include "support/check.h"

static char folder[64], path[128];

static tarn__tuning_cache opened(void)
{
    tarn__tuning_cache cache = {.key_bytes = 4, .value_bytes = 2};
    tarn__tuning_cache_open(&cache, NULL, "tiles-1");
    return cache;
}

/* The value of a key, in a process that only reads; -1: none. */
static int value_of(const char *key)
{
    tarn__tuning_cache cache = opened();
    char value[2];
    int found = tarn__tuning_cache_find(&cache, key, value, false) ? value[0] : -1;
    tarn__tuning_cache_close(&cache);
    return found;
}

static void store(const char *key, char value)
{
    tarn__tuning_cache cache = opened();
    tarn__tuning_cache_store(&cache, key, (char[]){value, 0});
    tarn__tuning_cache_close(&cache);
}

static void cut(off_t bytes)
{
    struct stat before;
    assert_true(stat(path, &before) == 0 && truncate(path, before.st_size - bytes) == 0);
}

static void append(const char *text)
{
    FILE *file = fopen(path, "a");
    assert_true(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void the_last_value_of_a_key_is_found(void **state)
{
    (void)state;
    assert_int_equal(value_of("abcd"), -1);
    store("abcd", 1);
    store("efgh", 2);
    store("abcd", 3);
    assert_int_equal(value_of("abcd"), 3);
    assert_int_equal(value_of("efgh"), 2);
    assert_int_equal(value_of("abce"), -1);
}

static void damaged_lines_are_ignored(void **state)
{
    (void)state;
    store("abcd", 1);
    for (off_t bytes = 1; bytes < 12; bytes++) {
        store("efgh", 2);
        assert_int_equal(value_of("efgh"), 2);
        cut(bytes);
        store("ijkl", (char)bytes); /* after the rest of a line */
        assert_int_equal(value_of("ijkl"), bytes);
        assert_int_equal(value_of("abcd"), 1);
    }
    append("61626364xx00\n61626364\n616263640900ff\n\n");
    assert_int_equal(value_of("abcd"), 1);
    append("616263640900\n");
    assert_int_equal(value_of("abcd"), 9);
}

static void a_cut_line_is_no_value(void **state)
{
    (void)state;
    store("abcd", 1);
    cut(1);
    assert_int_equal(value_of("abcd"), -1);
    store("abcd", 4);
    assert_int_equal(value_of("abcd"), 4);
}

static void keep_line(void *ctx, const char *line)
{
    char *lines = ctx;
    strcat(strcat(lines, line), "\n");
}

static void used_values_are_exported_and_win_when_imported(void **state)
{
    (void)state;
    char lines[256] = "", value[2];
    store("abcd", 1);
    store("efgh", 2);
    tarn__tuning_cache cache = opened();
    assert_true(tarn__tuning_cache_find(&cache, "efgh", value, false));
    tarn__tuning_cache_export(&cache, keep_line, lines);
    assert_string_equal(lines, "");
    assert_true(tarn__tuning_cache_find(&cache, "abcd", value, true));
    tarn__tuning_cache_store(&cache, "ijkl", (char[]){5, 0});
    tarn__tuning_cache_store(&cache, "ijkl", (char[]){6, 0});
    tarn__tuning_cache_export(&cache, keep_line, lines);
    assert_string_equal(lines, "tiles-1 616263640100\ntiles-1 696a6b6c0600\n");
    tarn__tuning_cache_import(&cache, "tiles-1 616263640800");
    tarn__tuning_cache_import(&cache, "tiles-2 616263640900");
    tarn__tuning_cache_import(&cache, "tiles-1 6162636409");
    assert_true(tarn__tuning_cache_find(&cache, "abcd", value, false) && value[0] == 8);
    tarn__tuning_cache_close(&cache);
    assert_int_equal(value_of("abcd"), 1);
}

static void without_a_folder_values_last_as_long_as_the_process(void **state)
{
    (void)state;
    setenv("XDG_CACHE_HOME", "/dev/null", 1);
    tarn__tuning_cache cache = opened();
    char value[2];
    tarn__tuning_cache_store(&cache, "abcd", (char[]){7, 0});
    assert_true(tarn__tuning_cache_find(&cache, "abcd", value, true) && value[0] == 7);
    tarn__tuning_cache_close(&cache);
    assert_int_equal(value_of("abcd"), -1);
    setenv("XDG_CACHE_HOME", folder, 1);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/tarn-test-tuning-XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof(path), "%s/tarn/tiles-1", folder);
    return setenv("XDG_CACHE_HOME", folder, 1);
}

static int remove_folder(void **state)
{
    (void)state;
    char below[128];
    snprintf(below, sizeof(below), "%s/tarn", folder);
    unlink(path);
    rmdir(below); /* not there without a value */
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_last_value_of_a_key_is_found, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(damaged_lines_are_ignored, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_cut_line_is_no_value, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(used_values_are_exported_and_win_when_imported, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(without_a_folder_values_last_as_long_as_the_process, make_folder,
                                        remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
