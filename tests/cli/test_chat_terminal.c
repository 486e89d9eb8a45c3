/* test_chat_terminal.c: `tarn chat` on a terminal of 80 columns: line editing, history, messages of several lines,
 * Ctrl-C and Ctrl-D. TARN_COMMAND names the binary; without libedit there is nothing to edit with.
 *
 * The model writes the same letters whatever it is asked, so the messages are read from the files that /save writes. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/command.h"
#include "support/files.h"
#include "support/small_tokenizer.h"
#include "support/terminal.h"
#include "tarn_features.h"

enum { VOCAB = 265, CONTEXT = 2000 };

/* A model that writes 'a' for ever. */
static void write_model(void)
{
    tarn_scope *scope = tarn_scope_open();
    const tarn_gpt2_config config = {
        .vocab_size = VOCAB, .context = CONTEXT, .layers = 1, .heads = 1, .hidden_size = 4, .ffn_size = 1};
    tarn_module *model = tarn_model_gpt2(&config, tarn_device_cpu(), 1);
    for (int i = 0; i < tarn_module_parameter_count(model); i++)
        tarn_fill_inplace(tarn_requires_grad(tarn_module_parameter(model, i), false), 0);
    tarn_fill_inplace(tarn_module_find(model, "transformer.ln_f.bias"), 1);
    tarn_fill_inplace(tarn_slice(tarn_module_find(model, "transformer.wte.weight"), 0, 'a', 'b'), 50);
    assert_true(tarn_model_write(model, scratch("model")));
    tarn_module_free(model);
    tarn_scope_close(scope);
    write_text("model/tokenizer.json", small_tokenizer_text());
    write_text("model/tokenizer_config.json", "{\"eos_token\": \"<|endoftext|>\"}");
    write_text("model/chat_template.jinja", "{% for message in messages %}{{ message['content'] }}{% endfor %}");
    assert_ok();
}

/* Starts a conversation, and waits for its prompt. The state folder is the test's own. */
static terminal *start(const char *flags)
{
    char command[2048];
    snprintf(command, sizeof(command),
             "unset LC_ALL LANG; XDG_STATE_HOME='%s' HOME='%s' exec \"$TARN_COMMAND\" chat '%s' --device cpu "
             "--max-tokens 5 --temperature 0 %s",
             scratch("state"), scratch("home"), scratch("model"), flags);
    terminal *t = terminal_start(80, command);
    terminal_wait_for(t, "> ", 1);
    terminal_wait_for_editor(t);
    return t;
}

static void end(terminal *t, int status)
{
    terminal_wait_for_editor(t);
    int found = terminal_finish(t, "\004"); /* Ctrl-D */
    if (!WIFEXITED(found) || WEXITSTATUS(found) != status)
        fail_msg("status %x instead of %d:\n%s", found, status, t->text);
}

/* Saves the conversation to a new file of that name and returns its text, which the caller frees. */
static char *saved(terminal *t, const char *name)
{
    char keys[1200];
    size_t count;
    snprintf(keys, sizeof(keys), "/save %s\r", scratch(name));
    terminal_wait_for_editor(t);
    terminal_type(t, keys);
    terminal_wait_for(t, "messages saved to", occurrences(t->text, "messages saved to") + 1);
    char *text = get_file(scratch(name), &count);
    text = realloc(text, count + 1);
    text[count] = 0;
    return text;
}

/* Types a message and waits for the answer and its figures. */
static void ask(terminal *t, const char *keys)
{
    int before = occurrences(t->text, " s)\r\n");
    terminal_wait_for_editor(t);
    terminal_type(t, keys);
    terminal_wait_for(t, " s)\r\n", before + 1);
}

static void lines_are_edited_and_recalled(void **state)
{
    (void)state;
    terminal *t = start("");
    assert_contains(t->text, "/help lists commands");
    ask(t, "hXllo\002\002\002\010e\005 you\r"); /* back three, delete the X, type an e; to the end */
    assert_contains(t->text, "aaaaa");
    assert_contains(t->text, " tokens/s, first after 0.");
    ask(t, "gr\303\274\303\237e\177t\r"); /* UTF-8: one key deletes the e */
    ask(t, "\033[A\033[A!\r");            /* up, up: the first line again */
    char *text = saved(t, "edited.json");
    assert_contains(text, "\"content\": \"hello you\"}");
    assert_contains(text, "\"content\": \"gr\303\274\303\237t\"}");
    assert_contains(text, "\"content\": \"hello you!\"}");
    free(text);
    end(t, 0);
}

static void a_later_conversation_recalls_earlier_lines(void **state)
{
    (void)state;
    struct stat about;
    assert_int_equal(stat(scratch("state/tarn/history"), &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    terminal *t = start("");
    ask(t, "\033[A\033[A\033[A?\r"); /* /save, hello you!, grüßt: the one before /save is hello you! */
    ask(t, " secret\r");             /* begins with a space: not kept */
    char *text = saved(t, "recalled.json"), *history;
    size_t count;
    assert_contains(text, "gr\303\274\303\237t?");
    free(text);
    end(t, 0);
    history = get_file(scratch("state/tarn/history"), &count);
    history = realloc(history, count + 1);
    history[count] = 0;
    assert_contains(history, "hello you!\n");
    assert_null(strstr(history, "secret"));
    free(history);

    t = start("--no-history --quiet");
    assert_null(strstr(t->text, "/help"));
    terminal_type(t, "\033[Aonly\r");
    terminal_wait_for(t, "aaaaa", 1);
    text = saved(t, "unkept.json");
    assert_contains(text, "\"content\": \"only\"}");
    free(text);
    end(t, 0);
    assert_null(strstr(t->text, "tokens/s"));
    assert_true(stat(scratch("state/tarn/history"), &about) == 0 && (size_t)about.st_size == count);
}

static void messages_have_several_lines(void **state)
{
    (void)state;
    terminal *t = start("--no-history");
    terminal_type(t, "one \\\r");
    terminal_wait_for(t, ". ", 1);
    ask(t, "two\r");
    terminal_type(t, "\"\"\"\r/three\r");
    ask(t, "\\\r\"\"\"\r");
    ask(t, "four\033\rfive\r"); /* Alt-Enter */
    ask(t, "/edit\r six\r");    /* the question of two lines stands there to be changed */
    char *text = saved(t, "lines.json");
    assert_contains(text, "\"content\": \"one \\u000atwo\"}");
    assert_contains(text, "\"content\": \"/three\\u000a\\\\\"}");
    assert_contains(text, "\"content\": \"four\\u000afive six\"}");
    assert_null(strstr(text, "\"content\": \"four\\u000afive\"}"));
    free(text);
    end(t, 0);
}

static void ctrl_c_drops_a_line_or_ends_an_answer(void **state)
{
    (void)state;
    terminal *t = start("--no-history --max-tokens 0 --context 2000");
    terminal_type(t, "not this");
    terminal_wait_for(t, "not this", 1);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* until it reads the next key */
    terminal_type(t, "\003");
    terminal_wait_for(t, "(/exit ends the conversation)", 1);
    terminal_wait_for_editor(t);
    terminal_type(t, "hi\r");
    terminal_wait_for(t, "aaaaaaaaaaaaaaaa", 1);
    terminal_type(t, "\003");
    terminal_wait_for(t, " tokens/s, first", 1);
    char *text = saved(t, "cut.json");
    assert_null(strstr(text, "not this"));
    assert_contains(text, "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", ");
    free(text);
    end(t, 0);
}

/* Every line of the list fits. */
static void help_fits_80_columns(void **state)
{
    (void)state;
    terminal *t = start("--no-history");
    terminal_type(t, "/help\r");
    terminal_wait_for(t, "Ctrl-C ends an answer.", 1);
    for (const char *at = strstr(t->text, "  /help"); at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        assert_true(strcspn(at, "\r\n") <= 80);
    end(t, 0);
}

static int set_up(void **state)
{
    return make_scratch(state) == 0 && mkdir(scratch("home"), 0700) == 0 ? (write_model(), 0) : -1;
}

static int tear_down(void **state)
{
    terminal_end();
    return remove_scratch(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(lines_are_edited_and_recalled), in_scope(a_later_conversation_recalls_earlier_lines),
        in_scope(messages_have_several_lines),   in_scope(ctrl_c_drops_a_line_or_ends_an_answer),
        in_scope(help_fits_80_columns),
    };
    return TARN__HAVE_JANSSON && TARN__HAVE_PCRE2 && TARN__HAVE_EDIT ? cmocka_run_group_tests(tests, set_up, tear_down)
                                                                     : 0;
}
