/* test_memfile.c: in-memory files, written to disk later by another thread. */
#include <pthread.h>

#include "base/os/files.h"
#include "support/files.h"

static const char *path_of(const char *name)
{
    static char path[1200];
    snprintf(path, sizeof(path), "%s", scratch(name));
    return path;
}

/* A file of `count` bytes of one letter, by pieces of 1000. */
static bool write_letters(const char *path, char letter, size_t count)
{
    tarn__output output;
    char piece[1000];
    memset(piece, letter, sizeof(piece));
    if (!tarn__output_open(&output, "test", path))
        return false;
    for (size_t done = 0; done < count; done += sizeof(piece))
        if (!tarn__output_write(&output, piece, count - done < sizeof(piece) ? count - done : sizeof(piece))) {
            tarn__output_discard(&output);
            return false;
        }
    return tarn__output_commit(&output);
}

static void assert_letters(const char *path, char letter, size_t count)
{
    size_t found;
    char *text = get_file(path, &found);
    assert_int_equal(found, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(text[i], letter);
    free(text);
}

static void *write_files(void *files)
{
    static bool good;
    good = tarn__memfiles_write(files);
    return &good;
}

static bool write_by_a_thread(tarn__memfiles *files)
{
    pthread_t thread;
    void *good;
    assert_int_equal(pthread_create(&thread, NULL, write_files, files), 0);
    assert_int_equal(pthread_join(thread, &good), 0);
    return *(bool *)good;
}

static void files_are_there_when_they_are_written(void **state)
{
    tarn__memfiles files = {0};
    char one[1200], other[1200];
    (void)state;
    snprintf(one, sizeof(one), "%s", path_of("files-one"));
    snprintf(other, sizeof(other), "%s", path_of("files-other"));
    tarn__memfiles_open(&files);
    assert_true(write_letters(one, 'a', 200001) && write_letters(other, 'b', 0));
    tarn__memfiles_close();
    assert_false(tarn__path_exists(one));
    assert_true(write_by_a_thread(&files));
    assert_letters(one, 'a', 200001);
    assert_letters(other, 'b', 0);

    const char *memory = files.file[0].bytes; /* the next ones, not larger, take no more */
    tarn__memfiles_open(&files);
    assert_true(write_letters(other, 'c', 150000));
    tarn__memfiles_close();
    assert_ptr_equal(files.file[0].bytes, memory);
    assert_letters(other, 'b', 0);
    assert_true(write_by_a_thread(&files));
    assert_letters(one, 'a', 200001);
    assert_letters(other, 'c', 150000);
    assert_true(write_letters(one, 'd', 10)); /* and this thread's go to the disk again */
    assert_letters(one, 'd', 10);
    tarn__memfiles_free(&files);
}

static void places_are_filled_and_overwritten(void **state)
{
    tarn__memfiles files = {0};
    tarn__output output;
    const char *path = path_of("files-places");
    (void)state;
    tarn__memfiles_open(&files);
    assert_true(tarn__output_open(&output, "test", path) && tarn__output_write(&output, "head", 4));
    char *at = tarn__output_extend(&output, 70000);
    assert_non_null(at);
    memset(at, 'x', 70000);
    assert_int_equal(output.bytes, 70004);
    assert_true(tarn__output_write_at(&output, 1, "EA", 2) && tarn__output_commit(&output));
    tarn__memfiles_close();
    assert_true(tarn__memfiles_write(&files));
    size_t count;
    char *text = get_file(path, &count);
    assert_int_equal(count, 70004);
    assert_memory_equal(text, "hEAdx", 5);
    assert_int_equal(text[70003], 'x');
    free(text);
    tarn__memfiles_free(&files);

    assert_true(tarn__output_open(&output, "test", path));
    assert_null(tarn__output_extend(&output, 1)); /* of a file on the disk there is none */
    assert_ok();
    tarn__output_discard(&output);
}

static void what_was_discarded_is_not_written(void **state)
{
    tarn__memfiles files = {0};
    tarn__output output;
    const char *path = path_of("files-discarded");
    (void)state;
    tarn__memfiles_open(&files);
    assert_true(tarn__output_open(&output, "test", path) && tarn__output_write(&output, "x", 1));
    tarn__output_discard(&output);
    tarn__memfiles_close();
    assert_true(tarn__memfiles_write(&files));
    assert_false(tarn__path_exists(path));
    tarn__memfiles_free(&files);
}

static void what_cannot_be_written_says_so(void **state)
{
    tarn__memfiles files = {0};
    char first[1200], last[1200];
    (void)state;
    snprintf(first, sizeof(first), "%s", path_of("files-first"));
    snprintf(last, sizeof(last), "%s", path_of("files-last"));
    tarn__memfiles_open(&files);
    assert_true(write_letters(first, 'a', 5) && write_letters("/nowhere/at/all", 'b', 5) &&
                write_letters(last, 'c', 5));
    tarn__memfiles_close();
    assert_false(tarn__memfiles_write(&files));
    assert_error_about(TARN_ERROR_IO, "/nowhere/at/all", "cannot be written");
    assert_letters(first, 'a', 5);
    assert_false(tarn__path_exists(last));

    tarn__memfiles_open(&files);
    for (int i = 0; i < TARN__MAX_MEMFILES; i++)
        assert_true(write_letters(first, 'a', 5));
    assert_false(write_letters(first, 'a', 5));
    tarn__memfiles_close();
    assert_error_about(TARN_ERROR_UNSUPPORTED, "number 9", "at most 8");
    tarn__memfiles_free(&files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(files_are_there_when_they_are_written),
        in_scope(places_are_filled_and_overwritten),
        in_scope(what_was_discarded_is_not_written),
        in_scope(what_cannot_be_written_says_so),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
