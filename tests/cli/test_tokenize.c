/* test_tokenize.c: `tarn tokenize`, end to end. */
#include "support/command.h"
#include "support/files.h"
#include "tarn_features.h"

/* Runs with the path of a scratch file or folder in place of each %s. */
static void expect_with(int status, const char *text, const char *format, const char *first, const char *second)
{
    char arguments[2048];
    snprintf(arguments, sizeof(arguments), format, first, second);
    expect_command(arguments, status, text);
}

static void text_becomes_ids_and_ids_text(void **state)
{
    (void)state;
    expect_command("tokenize --tokenizer bytes --text hé", 0, "104 195 169\n");
    expect_command("tokenize --tokenizer bytes --pieces --text 'a\\é'", 0, "97\ta\n92\t\\\\\n195\t\\xC3\n");
    expect_command("tokenize --tokenizer characters --text hello", 0, "1 0 2 2 3\n");
    expect_command("tokenize --tokenizer bytes --decode --text '72, 105 [33]'", 0, "Hi!");
    expect_command("tokenize --tokenizer bytes < /dev/null", 0, "\n");
    write_text("a.txt", "A\n");
    expect_with(0, "65 10\n65 10\n", "tokenize --tokenizer bytes %s %s", scratch("a.txt"), scratch("a.txt"));
    expect_with(0, "65 10\n", "tokenize %s --tokenizer bytes", scratch("a.txt"), "");
    expect_with(0, "65 10\n", "tokenize --tokenizer bytes < %s", scratch("a.txt"), "");
    assert_int_equal(command_objects("tokenize --json --pieces --tokenizer bytes --text 'é\"'"), 1);
    assert_contains(command_output, "\"ids\": [195, 169, 34], \"pieces\": [\"\\ufffd\", \"\\ufffd\", \"\\\"\"]");
    assert_int_equal(command_objects("tokenize --json --decode --tokenizer bytes --text '195 169 0 255'"), 1);
    assert_contains(command_output, "{\"text\": \"é\\u0000\\ufffd\"}");
}

static void a_tokenizer_is_trained_and_used(void **state)
{
    (void)state;
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    write_text("learn.txt", "ab ab ab abc abc");
    expect_with(0, "", "tokenize --train 259 --out %s %s", scratch("trained"), scratch("learn.txt"));
    expect_with(0, "257 258\n", "tokenize --tokenizer %s --text 'ab ab'", scratch("trained"), "");
    write_text("learn.jsonl", "{\"text\": \"\\u00e9\\u00e9\"}\n\n{\"text\": \"x\"}\n");
    expect_with(0, "", "tokenize --train 258 --out %s %s", scratch("lines"), scratch("learn.jsonl"));
    expect_with(0, "257\n", "tokenize --tokenizer %s --text é", scratch("lines"), "");
    expect_with(0, "", "tokenize --tokenizer characters --out %s %s", scratch("two"), scratch("learn.jsonl"));
    expect_with(0, "1 0\n", "tokenize --tokenizer %s --text éx", scratch("two"), "");
    expect_with(1, "line 1: no object with a string \"body\"", "tokenize --train 258 --field body --out %s %s 2>&1",
                scratch("none"), scratch("learn.jsonl"));
    expect_with(0, "257 0\n", "tokenize --tokenizer %s/tokenizer.json --text 'ab<|endoftext|>'", scratch("trained"),
                "");
    expect_with(0, "28\t<", "tokenize --special-as-text --pieces --tokenizer %s --text '<|endoftext|>'",
                scratch("trained"), "");
    expect_with(0, "no more than", "tokenize --train 5000 --out %s %s 2>&1", scratch("more"), scratch("learn.txt"));
    expect_with(0, "", "tokenize --tokenizer bytes --out %s", scratch("bytes"), "");
    expect_with(0, "65\n", "tokenize --tokenizer %s --text A", scratch("bytes"), "");
    expect_with(0, "", "tokenize --tokenizer characters --text hello --out %s", scratch("letters"), "");
    expect_with(0, "1 0\n", "tokenize --tokenizer %s --text he", scratch("letters"), "");
}

static void files_are_prepared(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    write_text("b.txt", "0123456789");
    expect_with(0, "8 training tokens, 2 validation tokens; 2 files",
                "tokenize --tokenizer bytes --prepare %s --val-fraction 0.2 %s", scratch("data"), scratch("b.txt"));
    expect_with(1, "already exists", "tokenize --tokenizer bytes --prepare %s %s 2>&1", scratch("data"),
                scratch("b.txt"));
    write_text("c.json", "{\"body\": \"ab\"}\n{\"body\": \"c\"}\n");
    expect_with(0, "\"documents\": 2",
                "tokenize --json --tokenizer bytes --json-lines --field body --separator x --prepare %s %s",
                scratch("lines"), scratch("c.json"));
    assert_contains(command_output, "\"train_tokens\": 5");
    tarn_tokens *tokens = tarn_tokens_open(scratch("lines"), "train");
    assert_int_equal(tarn_tokens_count(tokens), 5);
    tarn_tokens_close(tokens);
    expect_with(1, "line 1", "tokenize --tokenizer bytes --json-lines --prepare %s %s 2>&1", scratch("other"),
                scratch("c.json"));
}

static void wrong_calls_say_what_is_wrong(void **state)
{
    (void)state;
    expect_command("tokenize --text a 2>&1", 2, "--tokenizer is missing");
    expect_command("tokenize --tokenizer bytes --train 300 --out x y 2>&1", 2,
                   "--train and --tokenizer exclude each other");
    expect_command("tokenize --train 300 y 2>&1", 2, "--out or --prepare");
    expect_command("tokenize --train 300 --out x 2>&1", 2, "files are missing");
    expect_command("tokenize --train 30 --out x y 2>&1", 2, "must be from 256");
    expect_command("tokenize --tokenizer bytes --prepare x 2>&1", 2, "files are missing");
    expect_command("tokenize --tokenizer bytes --prepare x --decode y 2>&1", 2, "exclude --train, --out and --prepare");
    expect_command("tokenize --tokenizer bytes --val-fraction 0.5 --text a 2>&1", 2, "need --prepare");
    expect_command("tokenize --tokenizer bytes --field body --text a 2>&1", 2, "--json-lines and --field need files");
    expect_command("tokenize --tokenizer bytes --json-lines y 2>&1", 2, "--json-lines and --field need files");
    expect_command("tokenize --tokenizer bytes --prepare x --val-fraction 2 y 2>&1", 2, "must be from 0 to 1");
    expect_command("tokenize --tokenizer bytes --prepare x --val-fraction a y 2>&1", 2, "not a number");
    expect_command("tokenize --tokenizer bytes --decode --pieces --text 1 2>&1", 2, "exclude --decode");
    expect_command("tokenize --tokenizer bytes --out x --text a 2>&1", 2, "except with --tokenizer characters");
    expect_command("tokenize --tokenizer bytes --out x y 2>&1", 2, "except with --tokenizer characters");
    expect_command("tokenize --tokenizer bytes --out x --json 2>&1", 2, "--json with --out needs --prepare");
    expect_command("tokenize --train 300 --out x --json y 2>&1", 2, "--json with --out needs --prepare");
    expect_command("tokenize --tokenizer characters --out x --text a --pieces 2>&1", 2,
                   "exclude --train, --out and --prepare");
    expect_command("tokenize --tokenizer characters --out x --text a --decode 2>&1", 2,
                   "exclude --train, --out and --prepare");
    expect_command("tokenize --tokenizer characters --out x --text a --special-as-text 2>&1", 2, "exclude --train");
    expect_command("tokenize --tokenizer characters --prepare x --text a y 2>&1", 2, "--text excludes");
    expect_command("tokenize --tokenizer bytes --text a b 2>&1", 2, "exclude each other");
    expect_command("tokenize a --tokenizer bytes b 2>&1", 2, "unexpected argument 'b'");
    expect_command("tokenize --tokenizer bytes --decode --text '1 x' 2>&1", 1, "byte 2");
    expect_command("tokenize --tokenizer bytes --decode --text '99999999999' 2>&1", 1, "is not a token id");
    expect_command("tokenize --tokenizer bytes --decode --text 256 2>&1", 1, "outside the vocabulary");
    expect_command("tokenize --tokenizer bytes /nonexistent-file 2>&1", 1, "cannot be opened");
    expect_command("tokenize --tokenizer /nonexistent-folder --text a 2>&1", 1, "/nonexistent-folder");
    expect_command("tokenize --help", 0, "--prepare FOLDER");
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(text_becomes_ids_and_ids_text),
                                       in_scope(a_tokenizer_is_trained_and_used), in_scope(files_are_prepared),
                                       in_scope(wrong_calls_say_what_is_wrong)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
