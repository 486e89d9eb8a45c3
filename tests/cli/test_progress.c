/* test_progress.c: the progress line of `tarn train` on a terminal, and Ctrl-C. */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "support/command.h"
#include "support/files.h"
#include "support/terminal.h"
#include "tarn_features.h"

static const char *make_text(void)
{
    static char path[600];
    char text[3001];
    for (int i = 0; i < 3000; i++)
        text[i] = "one two three four five; \n"[i % 26];
    text[3000] = 0;
    snprintf(path, sizeof(path), "%s", write_text("numbers.txt", text));
    return path;
}

static int tear_down(void **state)
{
    terminal_end();
    return remove_scratch(state);
}

/* Starts a run of a small model on a terminal of so many columns. */
static terminal *start(int columns, const char *folder, const char *flags)
{
    char command[4096];
    snprintf(command, sizeof(command),
             "exec \"$TARN_COMMAND\" train --data text:%s --layers 1 --heads 1 --device cpu "
             "--out %s %s < /dev/null",
             make_text(), folder, flags);
    return terminal_start(columns, command);
}

/* A step of 65,536 micro-batches takes a minute, and more. */
static void the_line_moves_within_a_step_and_an_interrupt_is_answered_at_once(void **state)
{
    (void)state;
    char folder[600];
    snprintf(folder, sizeof(folder), "%s", scratch("slow"));
    terminal *t = start(80, folder, "--hidden-size 64 --context 64 --batch-size 65536 --micro-batch 1 --steps 2");
    terminal_wait_for(t, "step 1 of 2", 5);
    terminal_wait_for(t, " left", 1); /* seconds or, on a slow machine, minutes; known after some micro-batches */
    assert_contains(t->text, "tokenizing "); /* before there is a step */
    assert_contains(t->text, " [");
    assert_true(occurrences(t->text, "| [") && occurrences(t->text, "/ [") && occurrences(t->text, "- ["));
    assert_null(strstr(t->text, "loss "));
    kill(t->child, SIGINT);
    terminal_wait_for(t, "stopping after this step; press again to stop now", 1);
    terminal_wait_for(t, "  stopping  step 1 of 2", 2);
    nanosleep(&(struct timespec){0, 400000000}, NULL); /* longer than the debounce of Ctrl-C */
    kill(t->child, SIGINT);
    int status = terminal_finish(t, NULL);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGINT);
    assert_null(strstr(t->text, "step 2 of 2"));
    char again[800];
    snprintf(again, sizeof(again), "train --resume %s --dry-run", folder);
    expect_command(again, 0, "steps       0 to 2");
}

/* Endings of the fields, or whole fields. */
static bool is_whole_field(const char *field, size_t length)
{
    static const char *const ends[] = {" %",   " left",     " s",         " tokens/s", " B",      " KiB",
                                       " MiB", "preparing", "evaluating", "saving",    "stopping"};
    int steps[2], used = 0;
    char text[64];
    double value;
    if (length >= sizeof(text))
        return false;
    memcpy(text, field, length);
    text[length] = 0;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        if (length >= strlen(ends[i]) && strcmp(text + length - strlen(ends[i]), ends[i]) == 0)
            return true;
    const char *dot = strchr(text, '.');
    if (sscanf(text, "step %d of %d%n", &steps[0], &steps[1], &used) == 2 && (size_t)used == length)
        return steps[1] == 150;
    if (sscanf(text, "loss %lf%n", &value, &used) == 1 || sscanf(text, "validation %lf%n", &value, &used) == 1)
        return (size_t)used == length && dot && strlen(dot) == 5;
    if (sscanf(text, "norm %lf%n", &value, &used) == 1)
        return (size_t)used == length && dot && strlen(dot) == 3;
    return sscanf(text, "lr %lf%n", &value, &used) == 1 && (size_t)used == length;
}

/* One line that was drawn, without the carriage return before it. */
static void check_line(const char *drawn, size_t length, int columns)
{
    const char *bar = memchr(drawn, '[', length), *end = bar ? memchr(bar, ']', length - (size_t)(bar - drawn)) : NULL;
    assert_true((int)length < columns);
    if (!bar || bar != drawn + 2)
        return; /* before there is a run */
    if (!end)
        fail_msg("no bar in '%.*s'", (int)length, drawn);
    int fields = 0;
    for (const char *at = end + 1, *stop = drawn + length; at < stop; fields++) {
        const char *next = at + 2;
        while (next < stop && !(next[0] == ' ' && next + 1 < stop && next[1] == ' '))
            next++;
        if (strncmp(at, "  ", 2) != 0 || !is_whole_field(at + 2, (size_t)(next - at) - 2))
            fail_msg("a field is cut in '%.*s'", (int)length, drawn);
        at = next;
    }
    assert_true(fields >= 2); /* percent and time, always */
}

/* Lines of the plan, which begin with two spaces, are broken where the terminal would break them. */
static void check_plan(const char *text, int columns)
{
    int lines = 0;
    for (const char *at = strstr(text, "\n  "); at; at = strstr(at + 1, "\n  "), lines++) {
        int length = 0;
        for (const char *c = at + 1; *c && *c != '\r' && *c != '\n'; c++)
            length += ((unsigned char)*c & 0xC0) != 0x80;
        if (length > columns)
            fail_msg("a line of the plan has %d columns of %d:%.200s", length, columns, at);
    }
    assert_true(lines > 7);
}

static void no_field_is_cut_at_any_width(void **state)
{
    (void)state;
    static const int widths[] = {40, 80, 120};
    static const char *const wanted[] = {" %", " left", "step "};
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof(name), "width%d", widths[i]);
        terminal *t = start(
            widths[i], scratch(name),
            "--hidden-size 8 --context 8 --batch-size 8 --steps 150 --eval-every 10 --eval-batches 2 --log-every 5");
        int lines = 0, status = terminal_finish(t, NULL);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        check_plan(t->text, widths[i]);
        for (char *at = strchr(t->text, '\r'); at; at = strchr(at + 1, '\r')) {
            char *end = strstr(at, "\033[K"), *next = strchr(at + 1, '\r');
            if (!end || (next && end > next) || end == at + 1 || at[1] == '\n')
                continue;
            lines += memchr(at, '[', (size_t)(end - at)) != NULL;
            check_line(at + 1, (size_t)(end - at) - 1, widths[i]);
        }
        assert_true(lines >= 15); /* after each evaluation, if not more */
        for (int k = 0; k < (widths[i] < 80 ? 2 : 3); k++)
            assert_contains(t->text, wanted[k]);
        if (widths[i] >= 80)
            assert_contains(t->text, " tokens/s");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(the_line_moves_within_a_step_and_an_interrupt_is_answered_at_once),
        in_scope(no_field_is_cut_at_any_width),
    };
    return TARN__HAVE_JANSSON ? cmocka_run_group_tests(tests, make_scratch, tear_down) : 0;
}
