/* test_error.c: errors are sticky, per thread, and have a code and a message; the log goes to the callback. */
#include <pthread.h>

#include "base/error.h"
#include "support/check.h"

static void the_first_error_stays(void **state)
{
    (void)state;
    assert_false(tarn_failed());
    assert_string_equal(tarn_error(), "");
    assert_int_equal(tarn_error_code(), TARN_OK);
    assert_false(tarn_set_error(TARN_ERROR_IO, "first: %d", 1));
    assert_false(tarn_set_error(TARN_ERROR_SHAPE, "second"));
    assert_true(tarn_failed());
    assert_string_equal(tarn_error(), "tarn: first: 1");
    assert_int_equal(tarn_error_code(), TARN_ERROR_IO);
    tarn_clear_error();
    assert_false(tarn_failed());
    assert_string_equal(tarn_error(), "");
    assert_int_equal(tarn_error_code(), TARN_OK);
}

static void operations_do_nothing_while_an_error_is_pending(void **state)
{
    (void)state;
    tarn_tensor *x = good(vector(1, 2));
    tarn_set_error(TARN_ERROR_FORMAT, "mine");
    assert_null(tarn_add(x, x));
    assert_null(tarn_zeros(TARN_SHAPE(2), TARN_F32, tarn_device_cpu()));
    assert_true(isnan(tarn_item(x)));
    assert_null(tarn_scope_open());
    assert_string_equal(tarn_error(), "tarn: mine");
    tarn_clear_error();
    assert_values(tarn_add(x, x), 0, 2, 4);
}

/* As it is shown. */
static const char *escaped(const char *text, bool keep_lines)
{
    static char shown[128];
    size_t bytes = tarn_string_escape(shown, sizeof(shown), text, strlen(text), keep_lines);
    assert_int_equal(bytes, strlen(shown));
    return shown;
}

static void texts_from_outside_are_escaped(void **state)
{
    (void)state;
    assert_string_equal(escaped("plain \\ h\xC3\xA9 \xE6\xBC\xA2 \xF0\x9F\x98\x80", false),
                        "plain \\ h\xC3\xA9 \xE6\xBC\xA2 \xF0\x9F\x98\x80");
    assert_string_equal(escaped("\x1b[2J\n\t\r\x7F\x01", false), "\\x1b[2J\\n\\t\\r\\x7f\\x01");
    assert_string_equal(escaped("one\n\ttwo\r\n", true), "one\n\ttwo\\r\n");
    assert_string_equal(escaped("\xC2\x9B\xC2\xA0\xE2\x80\xAE\xE2\x80\xA8\xE2\x81\xA7", false),
                        "\\u009b\xC2\xA0\\u202e\\u2028\\u2067");
    assert_string_equal(escaped("\xFF\xC0\xAF\xED\xA0\x80\xE2\x82", false), "\\xff\\xc0\\xaf\\xed\\xa0\\x80\\xe2\\x82");
    assert_string_equal(escaped(escaped("\x1b\xFF", false), false), "\\x1b\\xff");
    char few[6];
    assert_int_equal(tarn_string_escape(few, sizeof(few),
                                        "ab\x1b"
                                        "c",
                                        4, false),
                     7);
    assert_string_equal(few, "ab");
    assert_int_equal(tarn_string_escape(few, sizeof(few), "\0x", 2, false), 5);
    assert_string_equal(few, "\\x00x");
    assert_int_equal(tarn_string_escape(NULL, 0, "abc", 3, false), 3);
    assert_int_equal(tarn_string_escape(few, sizeof(few), NULL, 0, false), 0);
    assert_string_equal(few, "");
}

static void keep_line(tarn_log_level level, const char *text, void *ctx)
{
    (void)level;
    snprintf(ctx, 64, "%s", text);
}

static void messages_contain_no_terminal_escapes(void **state)
{
    (void)state;
    char line[64] = "";
    tarn__raise(TARN_ERROR_IO, "open: '%s' is missing", "\x1b[31m\nname");
    assert_string_equal(tarn_error(), "tarn: open: '\\x1b[31m\\nname' is missing");
    tarn__raise_within("load");
    assert_string_equal(tarn_error(), "tarn: load: open: '\\x1b[31m\\nname' is missing");
    tarn_clear_error();
    tarn__raise(TARN_ERROR_IO, "a table:\n%s", "\x1b one\n");
    tarn__raise_within("load");
    assert_string_equal(tarn_error(), "tarn: load: a table:\n\\x1b one\n");
    tarn_clear_error();
    tarn_set_log(keep_line, line);
    tarn__log(TARN_LOG_WARNING, "'%s'", "\x1b[31m\n");
    tarn_set_log(tarn_log_stderr, NULL);
    assert_string_equal(line, "'\\x1b[31m\\n'");
}

static void a_strange_code_counts_as_a_defect(void **state)
{
    (void)state;
    tarn_set_error(TARN_OK, "a code that is none");
    assert_error(TARN_ERROR_INTERNAL, "a code that is none");
    tarn_set_error((tarn_code)99, "a code that is none");
    assert_error(TARN_ERROR_INTERNAL, "a code that is none");
    tarn_set_error((tarn_code)-1, "a code that is none");
    assert_error(TARN_ERROR_INTERNAL, "a code that is none");
}

static void an_error_always_has_a_message(void **state)
{
    (void)state;
    const char *nothing = "";
    tarn_set_error(TARN_ERROR_DTYPE, "%s", nothing);
    assert_error(TARN_ERROR_DTYPE, "without a message");
    /* the compiler would not let a NULL format pass */
    bool (*unchecked)(tarn_code, const char *, ...) = tarn_set_error;
    unchecked(TARN_ERROR_DTYPE, NULL);
    assert_error(TARN_ERROR_ARGUMENT, "set_error");
}

static void a_long_message_is_truncated(void **state)
{
    (void)state;
    char text[4000];
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = 0;
    tarn_set_error(TARN_ERROR_ARGUMENT, "%s", text);
    assert_true(strlen(tarn_error()) > 500 && strlen(tarn_error()) < 2000);
    tarn_clear_error();
    tarn_shape longest = {.rank = 8};
    for (int i = 0; i < 8; i++)
        longest.size[i] = INT64_MAX - i;
    assert_null(tarn_zeros(longest, TARN_F32, tarn_device_cpu()));
    assert_error(TARN_ERROR_SHAPE, "9223372036854775800]");
}

static void every_code_has_a_name(void **state)
{
    (void)state;
    static const char *const names[] = {"ok",     "argument", "shape",  "dtype",       "device",
                                        "memory", "io",       "format", "unsupported", "internal"};
    for (int i = 0; i <= TARN_ERROR_INTERNAL; i++)
        assert_string_equal(tarn_code_name((tarn_code)i), names[i]);
    assert_string_equal(tarn_code_name((tarn_code)(TARN_ERROR_INTERNAL + 1)), "?");
    assert_string_equal(tarn_code_name((tarn_code)-1), "?");
}

static void *other_thread(void *argument)
{
    bool *clean = argument;
    *clean = !tarn_failed() && tarn_error()[0] == 0;
    tarn_set_error(TARN_ERROR_DEVICE, "of the other thread");
    *clean = *clean && tarn_error_code() == TARN_ERROR_DEVICE;
    return NULL;
}

static void each_thread_has_its_own_error(void **state)
{
    (void)state;
    bool clean = false;
    pthread_t thread;
    tarn_set_error(TARN_ERROR_IO, "of this thread");
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &clean), 0);
    pthread_join(thread, NULL);
    assert_true(clean);
    assert_error(TARN_ERROR_IO, "of this thread");
}

static void an_error_can_be_set_aside(void **state)
{
    (void)state;
    tarn__error_record saved;
    tarn_set_error(TARN_ERROR_IO, "set aside");
    tarn__error_save(&saved);
    assert_false(tarn_failed());
    tarn__error_restore(&saved);
    assert_error(TARN_ERROR_IO, "set aside");
    tarn__error_save(&saved); /* none */
    tarn_set_error(TARN_ERROR_SHAPE, "later");
    tarn__error_restore(&saved);
    assert_error(TARN_ERROR_SHAPE, "later");
}

static void an_error_is_raised_within_a_function(void **state)
{
    (void)state;
    tarn__raise(TARN_ERROR_MEMORY, "out of %s", "it");
    assert_false(tarn__raise_within("zeros"));
    assert_string_equal(tarn_error(), "tarn: zeros: out of it");
    assert_false(tarn__raise_within("zeros")); /* once is enough */
    assert_string_equal(tarn_error(), "tarn: zeros: out of it");
    assert_false(tarn__raise_within("zero"));
    assert_string_equal(tarn_error(), "tarn: zero: zeros: out of it");
    assert_error(TARN_ERROR_MEMORY, "zeros");
}

typedef struct heard {
    int count;
    tarn_log_level level;
    char text[256];
} heard;

static void listen(tarn_log_level level, const char *text, void *ctx)
{
    heard *h = ctx;
    h->count++;
    h->level = level;
    snprintf(h->text, sizeof(h->text), "%s", text);
}

static void the_log_goes_to_the_callback(void **state)
{
    (void)state;
    heard h = {0};
    tarn_set_log(listen, &h);
    tarn__log(TARN_LOG_WARNING, "number %d", 7);
    assert_int_equal(h.count, 1);
    assert_int_equal(h.level, TARN_LOG_WARNING);
    assert_string_equal(h.text, "number 7");
    tarn_set_log(NULL, NULL);
    tarn__log(TARN_LOG_WARNING, "nobody hears this");
    assert_int_equal(h.count, 1);
    tarn_set_log(tarn_log_stderr, NULL);
    tarn__log(TARN_LOG_INFO, "dropped by the default");
    tarn_log_stderr(TARN_LOG_WARNING, NULL, NULL);
}

static void the_version_is_the_headers(void **state)
{
    (void)state;
    char text[32];
    snprintf(text, sizeof(text), "%d.%d.%d", TARN_VERSION_MAJOR, TARN_VERSION_MINOR, TARN_VERSION_PATCH);
    assert_string_equal(tarn_version(), text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(the_first_error_stays),
        in_scope(operations_do_nothing_while_an_error_is_pending),
        in_scope(texts_from_outside_are_escaped),
        in_scope(messages_contain_no_terminal_escapes),
        in_scope(a_strange_code_counts_as_a_defect),
        in_scope(an_error_always_has_a_message),
        in_scope(a_long_message_is_truncated),
        in_scope(every_code_has_a_name),
        in_scope(each_thread_has_its_own_error),
        in_scope(an_error_can_be_set_aside),
        in_scope(an_error_is_raised_within_a_function),
        in_scope(the_log_goes_to_the_callback),
        in_scope(the_version_is_the_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
