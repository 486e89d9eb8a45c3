/* test_temp_files.c: temporary files, and those that killed processes left behind. */
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/os/files.h"
#include "support/files.h"

static bool is_there(const char *name)
{
    struct stat about;
    return stat(scratch(name), &about) == 0;
}

/* The number of a process that has ended. */
static long ended(void)
{
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    return (long)child;
}

/* "NAME.PROCESS-NUMBER.tmp" */
static const char *name_of(const char *name, long process, unsigned number)
{
    static char text[256];
    snprintf(text, sizeof(text), "%s.%ld-%u.tmp", name, process, number);
    return text;
}

static void what_killed_programs_left_is_swept_away(void **state)
{
    (void)state;
    static const char *const others[] = {"sweep/notes.tmp", "sweep/a.1x-2.tmp", "sweep/a.12-2.tmp.bak",
                                         "sweep/a.0-1.tmp", "sweep/.12-2.tmp",  "sweep/model.safetensors"};
    const long gone = ended();
    mkdir(scratch("sweep"), 0777);
    mkdir(scratch("sweep/best"), 0777);
    mkdir(scratch("sweep/best/deep"), 0777);
    mkdir(scratch(name_of("sweep/folder", gone, 1)), 0777);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        write_text(others[i], "x");
    write_text(name_of("sweep/model.safetensors.next", gone, 3), "x");
    write_text(name_of("sweep/best/model.safetensors", gone, 0), "x");
    write_text(name_of("sweep/best/deep/model.safetensors", gone, 0), "x");
    write_text(name_of("sweep/written", (long)getppid(), 0), "x");         /* it lives */
    write_text(name_of("sweep/earlier", (long)getpid(), 4000000000), "x"); /* of one that had this one's number */
    char *own = tarn__temporary_name("sweep/own");
    write_text(own, "x");
    tarn__folder_sweep(scratch("sweep"));
    assert_false(is_there(name_of("sweep/model.safetensors.next", gone, 3)));
    assert_false(is_there(name_of("sweep/best/model.safetensors", gone, 0)));
    assert_false(is_there(name_of("sweep/earlier", (long)getpid(), 4000000000)));
    assert_true(is_there(name_of("sweep/best/deep/model.safetensors", gone, 0)));
    assert_true(is_there(name_of("sweep/written", (long)getppid(), 0)));
    assert_true(is_there(name_of("sweep/folder", gone, 1)));
    assert_true(is_there(own));
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_true(is_there(others[i]));
    tarn__string_free(own);
    tarn__folder_sweep(scratch("nosuch"));
    assert_ok();
}

/* In a container a program has the same number every time. */
static void a_name_that_is_taken_is_skipped(void **state)
{
    (void)state;
    tarn__output output;
    char path[1200], *last = tarn__temporary_name("x");
    unsigned from;
    assert_int_equal(sscanf(strrchr(last, '-'), "-%u.tmp", &from), 1);
    tarn__string_free(last);
    for (unsigned i = 1; i <= 20; i++)
        write_text(name_of("taken", (long)getpid(), from + i), "x");
    snprintf(path, sizeof(path), "%s", scratch("taken"));
    assert_true(tarn__output_open(&output, "test", path));
    assert_true(tarn__output_write(&output, "good", 4) && tarn__output_commit(&output));
    size_t count;
    char *text = get_file(path, &count);
    assert_memory_equal(text, "good", 4);
    free(text);
    assert_ok();
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(what_killed_programs_left_is_swept_away),
                                       in_scope(a_name_that_is_taken_is_skipped)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
