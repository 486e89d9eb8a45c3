/* test_demo.c: `tarn demo --chat`: the story model is trained, stored, found again, and answers. */
#include <unistd.h>

#include "support/command.h"
#include "support/files.h"
#include "tarn_features.h"

/* Lines of a file that are the same as another one in it, or do not fit `check`; the number of lines is returned. */
static int count_lines(const char *path, int *repeated)
{
    size_t length;
    int count = 0;
    char *text = get_file(path, &length), *lines[1200];
    *repeated = 0;
    for (size_t at = 0; at < length; count++) {
        char *end = memchr(text + at, '\n', length - at);
        assert_true(end && count < 1200);
        *end = 0;
        lines[count] = text + at;
        for (int i = 0; i < count; i++)
            *repeated += strcmp(lines[i], lines[count]) == 0;
        at = (size_t)(end + 1 - text);
    }
    free(text);
    return count;
}

/* The model is trained, stored and answers; the next command finds it, and --out trains it again into a folder. */
static void the_demo_answers(void **state)
{
    (void)state;
    int repeated;
    char command[2048];
    snprintf(
        command, sizeof(command),
        "version > /dev/null; printf 'Tell me a story.\\n' | XDG_CACHE_HOME=%s \"$TARN_COMMAND\" demo --chat --steps 2 "
        "--device cpu 2>&1",
        scratch("cache"));
    expect_command(command, 0, "training a story model, 2 + 1 steps");
    assert_contains(command_output, "step 2 of 2");
    assert_contains(command_output, "1000 stories and 1000 conversations");
    assert_contains(command_output, "story model: ");
    assert_true(access(scratch("cache/tarn/models/stories/model.safetensors"), F_OK) == 0);
    assert_true(access(scratch("cache/tarn/models/stories-training"), F_OK) != 0);
    expect_command(command, 0, "story model: ");
    assert_null(strstr(command_output, "training"));

    snprintf(command, sizeof(command), "demo --chat --steps 2 --device cpu --out %s < /dev/null 2>&1", scratch("kept"));
    expect_command(command, 0, "step 1 of 1");
    size_t kept, cached;
    char *one = get_file(scratch("kept/model.safetensors"), &kept),
         *two = get_file(scratch("cache/tarn/models/stories/model.safetensors"), &cached);
    assert_true(kept == cached && memcmp(one, two, kept) == 0); /* bitwise identical wherever it is made */
    free(one);
    free(two);
    assert_int_equal(count_lines(scratch("kept-training/stories.txt"), &repeated), 1000);
    assert_int_equal(repeated, 0);
    assert_int_equal(count_lines(scratch("kept-training/conversations.jsonl"), &repeated), 1000);
    assert_int_equal(repeated, 0);
    expect_command(command, 1, "already exists");
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(the_demo_answers)};
    return TARN__HAVE_JANSSON && TARN__HAVE_PCRE2 ? cmocka_run_group_tests(tests, make_scratch, remove_scratch) : 0;
}
