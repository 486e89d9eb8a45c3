/* test_chat_dataset.c: JSON lines to fine-tune on: ids and loss mask, by hand; bad lines by file and number; packed
 * rows, splits, and batches by number. make parity compares with transformers. */
#include <sys/stat.h>

#include "base/memory.h"
#include "models/lm/arch.h"
#include "support/files.h"
#include "support/small_model.h"
#include "support/small_tokenizer.h"
#include "tarn_features.h"
#include "train/data/chat_dataset.h"

#define CHATML \
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + " \
    "'\\n'}}{% endfor %}" \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

enum { END = 260, TAG = 262, OPEN = 263, CLOSE = 264, NO = TARN__IGNORE_INDEX, MOST = 4096 };

/* The small tokenizer in a folder, with 263 <|im_start|> and 264 <|im_end|>; a text begins with <|endoftext|>, 260, and
 * ends with <tag>, 262. */
static tarn_tokenizer *open_tokenizer(const char *template)
{
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    mkdir(scratch("model"), 0777);
    char *text = replaced(small_tokenizer_text(), "{\"added_tokens\": [",
                          "{\"added_tokens\": [{\"id\": 263, \"content\": \"<|im_start|>\", \"special\": true}, "
                          "{\"id\": 264, \"content\": \"<|im_end|>\", "
                          "\"special\": true}, ");
    write_text("model/tokenizer.json", text);
    free(text);
    write_text("model/tokenizer_config.json", "{\"bos_token\": \"<|endoftext|>\", \"eos_token\": \"<tag>\"}");
    write_text("model/chat_template.jinja", template ? template : CHATML);
    if (!template)
        remove(scratch("model/chat_template.jinja"));
    tarn_tokenizer *t = tarn_tokenizer_open(scratch("model"));
    assert_ok();
    return t;
}

static tarn__chat_dataset *open_chats(const char *path, const tarn_tokenizer *t, int64_t context)
{
    return tarn__chat_dataset_open(&(tarn__chat_dataset_options){
        .function = "chats", .path = path, .tokenizer = t, .context = context, .seed = 3});
}

typedef struct batch {
    int32_t ids[MOST], targets[MOST], positions[MOST], document_starts[MOST];
} batch;

static batch batch_of(tarn__chat_dataset *c, int split, int64_t number, int64_t rows)
{
    batch b;
    assert_true(tarn__chat_dataset_batch(c, split, number, rows,
                                         &(tarn__chat_dataset_rows){b.ids, b.targets, b.positions, b.document_starts}));
    return b;
}

/* One line in a row of just its tokens: ids, and the target of each. */
static void expect_line(const tarn_tokenizer *t, const char *line, const int32_t *ids, const int32_t *targets,
                        int64_t count)
{
    tarn__chat_dataset *c = open_chats(write_text("one.jsonl", line), t, count);
    tarn__chat_dataset_summary s;
    assert_ok();
    tarn__chat_dataset_counts(c, &s);
    assert_int_equal(s.truncated, 0);
    assert_int_equal(s.tokens[0], count);
    batch b = batch_of(c, TARN__CHAT_TRAINING, 0, 1);
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(b.ids[i], ids[i]);
        assert_int_equal(b.targets[i], targets[i]);
        assert_int_equal(b.positions[i], i);
        assert_int_equal(b.document_starts[i], 0);
    }
    tarn__chat_dataset_close(c);
}
#define IDS(...) ((const int32_t[]){__VA_ARGS__})

/* ---- loss mask --------------------------------------------------------------------------------------------------- */

static void answers_of_a_conversation_are_in_the_loss_with_their_ends(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_tokenizer(CHATML);
    expect_line(
        t,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"he\"}, {\"role\": \"assistant\", \"content\": \"llo\"}]}",
        IDS(OPEN, 'u', 's', 'e', 'r', '\n', 256, CLOSE, '\n', OPEN, 'a', 's', 's', 'i', 's', 't', 'a', 'n', 't', '\n',
            258, CLOSE, '\n'),
        IDS(NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, 258, CLOSE, NO, NO), 23);
    tarn_tokenizer_free(t);
}

static void every_answer_of_several_is_in_the_loss(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_tokenizer(CHATML);
    tarn__chat_dataset *c = open_chats(
        write_text(
            "two.jsonl",
            "{\"messages\": [{\"role\": \"system\", \"content\": \"ab\"}, {\"role\": \"user\", \"content\": \"c\"}, "
            "{\"role\": "
            "\"assistant\", \"content\": \"XY\"}, {\"role\": \"user\", \"content\": \"d\"}, {\"role\": \"assistant\", "
            "\"content\": \"Z\"}]}"),
        t, 100);
    assert_ok();
    batch b = batch_of(c, TARN__CHAT_TRAINING, 0, 1);
    int32_t trained[8], count = 0;
    for (int64_t i = 0; i < 100; i++)
        if (b.targets[i] != NO) {
            assert_int_equal(b.targets[i], b.ids[i + 1]);
            assert_true(count < 8);
            trained[count++] = b.targets[i];
        }
    assert_int_equal(count, 5);
    assert_memory_equal(trained, IDS('X', 'Y', CLOSE, 'Z', CLOSE), sizeof(int32_t) * 5);
    tarn__chat_dataset_close(c);
    tarn_tokenizer_free(t);
}

/* What people write is text, whatever it looks like. */
static void special_tokens_in_messages_stay_text(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_tokenizer(CHATML);
    tarn__chat_dataset *c =
        open_chats(write_text("s.jsonl", "{\"prompt\": \"<|im_end|>\", \"completion\": \"<|im_start|>\"}"), t, 100);
    assert_ok();
    batch b = batch_of(c, TARN__CHAT_TRAINING, 0, 1);
    int opens = 0, closes = 0;
    for (int i = 0; i < 100; i++)
        opens += b.ids[i] == OPEN, closes += b.ids[i] == CLOSE;
    assert_int_equal(opens, 2);
    assert_int_equal(closes, 2);
    tarn__chat_dataset_close(c);
    tarn_tokenizer_free(t);
}

static void without_a_template_a_completion_follows_its_prompt(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_tokenizer(NULL);
    expect_line(t, "{\"prompt\": \"ab\", \"completion\": \"cd\", \"source\": \"any\"}",
                IDS(END, 'a', 'b', 'c', 'd', TAG), IDS(NO, NO, 'c', 'd', TAG, NO), 6);
    expect_line(t, "{\"text\": \"abc\"}\r", IDS(END, 'a', 'b', 'c', TAG), IDS('a', 'b', 'c', TAG, NO), 5);
    /* an id that holds the last byte of the prompt and the first of the completion is in the loss */
    expect_line(t, "{\"prompt\": \"ah\", \"completion\": \"ed\"}", IDS(END, 'a', 256, 'd', TAG),
                IDS(NO, 256, 'd', TAG, NO), 5);
    assert_null(open_chats(write_text("m.jsonl", "\n{\"messages\": [{\"role\": \"assistant\", \"content\": \"llo\"}]}"),
                           t, 100));
    assert_error_about(TARN_ERROR_UNSUPPORTED, "m.jsonl', line 2: \"messages\" need a chat template",
                       "chatml, llama2, llama3 or mistral");
    tarn_tokenizer_free(t);
}

/* SentencePiece puts a space before the text, which belongs to the prompt, and writes what it has no piece for in
 * bytes. */
static void pieces_of_sentencepiece_add_up_too(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    char model[8192];
    size_t length = small_model(model, &(small_model_options){0});
    tarn_tokenizer *t = tarn_tokenizer_open(write_file("tokenizer.model", model, length));
    tarn__chat_dataset *c =
        open_chats(write_text("spm.jsonl", "{\"prompt\": \"w\", \"completion\": \"llo \u00e9x\"}"), t, 16);
    assert_ok();
    enum { SPACE = 259, LLO = 268, SPACE_W = 270, E = 272, X = 3 + 'x', END_OF_TEXT = 2 };
    batch b = batch_of(c, TARN__CHAT_TRAINING, 0, 1);
    const int32_t *at = b.ids + (b.ids[0] == 1), *targets = b.targets + (b.ids[0] == 1);
    assert_memory_equal(at, IDS(SPACE_W, LLO, SPACE, E, X, END_OF_TEXT), sizeof(int32_t) * 6);
    assert_memory_equal(targets, IDS(LLO, SPACE, E, X, END_OF_TEXT, NO), sizeof(int32_t) * 6);
    assert_true(b.ids[0] != 1 || b.targets[0] == NO);
    tarn__chat_dataset_close(c);
    tarn_tokenizer_free(t);
}

static void a_template_goes_by_its_name(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_tokenizer(NULL);
    const char *path = write_text("n.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}");
    tarn__chat_dataset_options o = {
        .function = "chats", .path = path, .tokenizer = t, .template_name = "mistral", .context = 32};
    tarn__chat_dataset *c = tarn__chat_dataset_open(&o);
    assert_ok();
    batch b = batch_of(c, TARN__CHAT_TRAINING, 0, 1); /* <s>[INST] a [/INST] b</s> */
    assert_memory_equal(
        b.ids, IDS(END, '[', 'I', 'N', 'S', 'T', ']', ' ', 'a', ' ', '[', '/', 'I', 'N', 'S', 'T', ']', ' ', 'b', TAG),
        sizeof(int32_t) * 20);
    assert_memory_equal(b.targets + 15, IDS(NO, ' ', 'b', TAG, NO), sizeof(int32_t) * 5);
    tarn__chat_dataset_close(c);
    o.template_name = "llama3";
    assert_null(tarn__chat_dataset_open(&o));
    assert_error(TARN_ERROR_ARGUMENT,
                 "the template llama3 has the token '<|start_header_id|>', which the tokenizer lacks");
    o.template_name = "vicuna";
    assert_null(tarn__chat_dataset_open(&o));
    assert_error(TARN_ERROR_ARGUMENT, "template 'vicuna' not found; it must be chatml, llama2, llama3 or mistral");
    assert_true(tarn_tokenizer_set_chat(t, "chatml"));
    assert_string_equal(tarn_chat_name(t), "chatml");
    tarn_tokenizer_free(t);
}

/* OpenAI's format has arguments as strings; a template that writes JSON itself gets an object. */
static void arguments_of_calls_are_what_the_template_needs(void **state)
{
    (void)state;
    static const char *const templates[] = {"{% for m in messages %}{% for c in m.tool_calls or [] %}"
                                            "{{ c.function.arguments | tojson }}{% endfor %}{{ m.content }}<|im_end|>"
                                            "{% endfor %}",
                                            "{% for m in messages %}{% for c in m.tool_calls or [] %}"
                                            "{{ c.function.arguments }}{% endfor %}{{ m.content }}<|im_end|>"
                                            "{% endfor %}"};
    for (int i = 0; i < 2; i++) {
        tarn_tokenizer *t = open_tokenizer(templates[i]);
        tarn__chat_dataset *c = open_chats(
            write_text("calls.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}, {\"role\": "
                                      "\"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": {\"name\": "
                                      "\"f\", \"arguments\": \"{\\\"a\\\": 1}\"}}]}]}"),
            t, 32);
        assert_ok();
        batch b = batch_of(c, TARN__CHAT_TRAINING, 0, 1); /* u<|im_end|>{"a": 1}<|im_end|> */
        assert_memory_equal(b.ids, IDS('u', CLOSE, '{', '"', 'a', '"', ':', ' ', '1', '}', CLOSE),
                            sizeof(int32_t) * 11);
        assert_memory_equal(b.targets + 1, IDS('{', '"', 'a', '"', ':', ' ', '1', '}', CLOSE, NO),
                            sizeof(int32_t) * 10);
        tarn__chat_dataset_close(c);
        tarn_tokenizer_free(t);
    }
}

static void data_is_chats_by_its_name(void **state)
{
    (void)state;
    assert_true(tarn__data_is_chats("a.jsonl") && tarn__data_is_chats("/x/y.jsonl") && tarn__data_is_chats("a.json") &&
                tarn__data_is_chats("chats:a.txt"));
    assert_false(tarn__data_is_chats("text:a.jsonl") || tarn__data_is_chats(".json") ||
                 tarn__data_is_chats("csv:a.jsonl") || tarn__data_is_chats(".jsonl"));
}

/* ---- formats ----------------------------------------------------------------------------------------------------- */

/* Opens both texts: they must give the same documents. The first is of the format that is named. */
static void expect_same(const tarn_tokenizer *t, const char *text, const char *messages, const char *format)
{
    tarn__chat_dataset *c = open_chats(write_text("one.json", text), t, 64);
    if (!c)
        fail_msg("%s", tarn_error());
    tarn__chat_dataset *d = open_chats(write_text("two.jsonl", messages), t, 64);
    tarn__chat_dataset_summary s, other;
    assert_ok();
    tarn__chat_dataset_counts(c, &s);
    tarn__chat_dataset_counts(d, &other);
    assert_int_equal(s.hash, other.hash);
    assert_string_equal(s.formats, format);
    tarn__chat_dataset_close(c);
    tarn__chat_dataset_close(d);
}

#define MESSAGE(role, content) "{\"role\": \"" role "\", \"content\": \"" content "\"}"
#define PAIR "{\"messages\": [" MESSAGE("user", "he") ", " MESSAGE("assistant", "llo") "]}\n"

static void formats_are_recognized_by_their_fields(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_tokenizer(CHATML);
    expect_same(t, PAIR PAIR, PAIR PAIR, "OpenAI messages, 2 conversations");
    expect_same(t,
                "{\"id\": 1, \"conversations\": [{\"from\": \"human\", \"value\": \"he\"}, {\"from\": \"gpt\", "
                "\"value\": \"llo\"}]}",
                PAIR, "ShareGPT, 1 conversations");
    expect_same(
        t,
        "{\"system\": \"s\", \"conversations\": [{\"from\": \"user\", \"value\": \"he\"}, {\"from\": "
        "\"assistant\", \"value\": \"llo\"}]}",
        "{\"messages\": [" MESSAGE("system", "s") ", " MESSAGE("user", "he") ", " MESSAGE("assistant", "llo") "]}",
        "ShareGPT, 1 conversations");
    expect_same(t, "{\"conversations\": [" MESSAGE("user", "he") ", " MESSAGE("assistant", "llo") "]}", PAIR,
                "OpenAI messages, 1 conversations");
    expect_same(t, "[\n  {\"instruction\": \"he\", \"input\": \"\", \"output\": \"llo\", \"text\": \"x\"}\n]\n", PAIR,
                "Alpaca, 1 instructions");
    expect_same(t, "[{\"instruction\": \"he\", \"input\": \"l]\\\"{\", \"output\": \"llo\"}]",
                "{\"prompt\": \"he\\nl]\\\"{\", \"completion\": \"llo\"}", "Alpaca, 1 instructions");
    expect_same(t, "{\"instruction\": \"he\", \"output\": \"llo\", \"history\": [[\"a\", \"b\"]]}",
                "{\"messages\": [" MESSAGE("user", "a") ", " MESSAGE("assistant", "b") ", " MESSAGE(
                    "user", "he") ", " MESSAGE("assistant", "llo") "]}",
                "Alpaca, 1 instructions");
    expect_same(t, "[{\"question\": \"he\", \"answer\": \"llo\"}, {\"question\": \"he\", \"answer\": \"llo\"}]",
                PAIR PAIR, "questions and answers, 2 pairs");
    expect_same(
        t, PAIR "\n{\"prompt\": \"he\", \"completion\": \"llo\"}\n", PAIR PAIR,
        "OpenAI messages, 1 conversations (the first in line 1); prompts and completions, 1 pairs (the first in "
        "line 3)");
    tarn_tokenizer_free(t);
}

static void a_bad_array_is_named_by_line(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"[{\"text\": \"a\"},\n{\"text\": \"b\"}\n", "line 2: the array is not closed"},
        {"[{\"text\": \"a\"},\n\n{\"texts\": \"b\"}]", "line 3: a line has none of"},
        {"[{\"text\": \"a\"}]\nx", "line 2: text after the array"},
        {"[{\"text\": \"a\"}\n{\"text\": \"b\"}]", "line 1: column 1: not JSON"},
        {"[{\"text\": \"a\"},]", "line 1: column"},
        {"[]", "has no documents"}};
    tarn_tokenizer *t = open_tokenizer(CHATML);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_null(open_chats(write_text("bad.json", bad[i][0]), t, 40));
        if (!strstr(tarn_error(), bad[i][1]))
            print_error("case %zu: %s\n", i, tarn_error());
        assert_non_null(strstr(tarn_error(), bad[i][1]));
        tarn_clear_error();
    }
    tarn_tokenizer_free(t);
}

/* ---- bad lines --------------------------------------------------------------------------------------------------- */

#define TALK(more) "{\"messages\": [{\"role\": \"user\", \"content\": \"he\"}" more "]}"

static void a_bad_line_is_named_and_explained(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"{\"text\": \"a\"", "not JSON"},
        {"{\"text\": \"a\"} x", "not JSON"},
        {"{\"text\": \"a\", \"text\": \"b\"}", "not JSON: duplicate"},
        {"{\"text\": \"a\\u0000b\"}", "not JSON"},
        {"{\"text\": \"\xC3\"}", "byte 11 of the line (0xC3) is not UTF-8"},
        {"7", "the line is not a JSON object"},
        {"[]", "the line is not a JSON object"},
        {"{}", "none of \"messages\""},
        {"{\"text\": \"a\", \"prompt\": \"b\"}", "more than one of \"messages\""},
        {"{\"conversations\": [{\"from\": \"human\"}]}", "message 1 has no strings \"from\" and \"value\""},
        {"{\"conversations\": [{\"from\": \"tool\", \"value\": \"a\"}]}", "message 1 is from 'tool', which is not"},
        {"{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}]}", "no message has the role assistant"},
        {"{\"conversations\": 5}", "\"conversations\" must be an array"},
        {"{\"conversations\": [], \"text\": \"a\"}", "more than one of \"messages\", \"conversations\" (ShareGPT)"},
        {"{\"instruction\": \"a\", \"output\": \" \"}", "\"output\" is empty"},
        {"{\"instruction\": \"a\"}", "\"output\" is missing"},
        {"{\"instruction\": \"a\", \"output\": \"b\", \"input\": 5}", "\"input\" is not a string"},
        {"{\"instruction\": \"a\", \"output\": \"b\", \"history\": [[\"c\"]]}", "pair 1 of \"history\" must be two"},
        {"{\"question\": \"a\"}", "\"answer\" is missing"},
        {"{\"text\": 5}", "\"text\" is not a string"},
        {"{\"text\": \" \\n\"}", "\"text\" is empty"},
        {"{\"prompt\": \"a\"}", "\"completion\" is missing"},
        {"{\"completion\": \"a\"}", "\"prompt\" is missing"},
        {"{\"prompt\": \"a\", \"completion\": \" \\u3000\"}", "\"completion\" is empty"},
        {"{\"prompt\": [], \"completion\": \"b\"}", "\"prompt\" is not a string"},
        {"{\"messages\": []}", "\"messages\" must be an array"},
        {"{\"messages\": \"a\"}", "\"messages\" must be an array"},
        {"{\"messages\": [\"a\"]}", "message 1 is not an object"},
        {TALK(", {\"content\": \"a\"}"), "message 2 has no string \"role\""},
        {TALK(", {\"role\": \"assistant\"}"), "message 2 has no \"content\""},
        {TALK(", {\"role\": \"assistant\", \"content\": [{\"type\": \"text\"}]}"), "part 1 of message 2"},
        {TALK(", {\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}"),
         "part 1 of message 2 has the type 'image_url'"},
        {TALK(", {\"role\": \"\", \"content\": \"a\"}"), "message 2 has no string \"role\""},
        {TALK(", {\"role\": \"bot\", \"content\": \"a\"}"), "no message has the role assistant"},
        {TALK(", {\"role\": \"assistant\", \"content\": []}"), "message 2 is an empty completion"},
        {TALK(", {\"role\": \"assistant\", \"content\": \"\\n \"}"), "message 2 is an empty completion"},
        {TALK(", {\"role\": \"assistant\", \"content\": \"a\", \"tool_calls\": [1]}"),
         "\"tool_calls\" of message 2 must be an array of objects"},
        {TALK(", {\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0.5}"), "message 2 has a \"weight\""},
        {TALK(", {\"role\": \"assistant\", \"content\": \"a\", \"function_call\": {\"name\": \"f\"}}"),
         "message 2 has \"function_call\""},
        {"{\"tools\": 5, \"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}",
         "\"tools\" must be an array of objects"},
        {TALK(""), "no message has the role assistant"},
        {"{\"tools\": [{}], \"prompt\": \"a\", \"completion\": \"b\"}", "the line has tools"},
        {"{\"prompt\": \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\", \"completion\": \"b\"}",
         "no completion token within the context of 40 tokens; the document has 82"},
    };
    tarn_tokenizer *t = open_tokenizer(CHATML);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char text[1024];
        snprintf(text, sizeof(text), "{\"text\": \"good\"}\n\n%s\n{\"text\": \"good\"}\n", bad[i][0]);
        assert_null(open_chats(write_text("bad.jsonl", text), t, 40));
        assert_error_about(TARN_ERROR_FORMAT, "bad.jsonl', line 3: ", bad[i][1]);
    }
    tarn_tokenizer_free(t);
}

/* Messages that a template cannot have are the line's mistake too. */
static void what_the_template_refuses_is_named_too(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_tokenizer(NULL);
    assert_true(tarn_tokenizer_set_chat(t, "llama2"));
    assert_null(open_chats(
        write_text("turns.jsonl",
                   TALK(", {\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}")),
        t, 99));
    assert_error_about(TARN_ERROR_ARGUMENT, "chats: '",
                       "turns.jsonl', line 1: chat template 'llama2', line 1: the template says: user and assistant");
    tarn_tokenizer_free(t);
    t = open_tokenizer("{{ messages[0].content }}");
    const char *path = write_text("unknown.jsonl", "{\"text\": \"a\"}\n{\"prompt\": \"a\", \"completion\": \"b\"}\n");
    assert_null(open_chats(path, t, 99));
    assert_error_about(TARN_ERROR_FORMAT, "unknown.jsonl', line 2: chat template", "nothing of message 2");
    tarn__chat_dataset *c = open_chats(write_text("texts.jsonl", "{\"text\": \"a\"}\n"), t, 99); /* texts need none */
    assert_ok();
    tarn__chat_dataset_close(c);
    tarn_tokenizer_free(t);
}

static void a_file_without_documents_is_refused(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_tokenizer(CHATML);
    assert_null(open_chats(write_text("empty.jsonl", ""), t, 9));
    assert_error(TARN_ERROR_FORMAT, "empty.jsonl' has no documents");
    assert_null(open_chats(write_text("blank.jsonl", "\n \r\n"), t, 9));
    assert_error(TARN_ERROR_FORMAT, "blank.jsonl' has no documents");
    assert_null(open_chats(scratch("none.jsonl"), t, 9));
    assert_error(TARN_ERROR_IO, "none.jsonl");
    tarn_tokenizer_free(t);
}

static int warnings;
static char last_warning[256];

static void listen(tarn_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    warnings += level == TARN_LOG_WARNING;
    snprintf(last_warning, sizeof(last_warning), "%s", text);
}

static void what_is_too_long_is_cut_and_counted_once(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_tokenizer(NULL);
    tarn__chat_dataset_summary s;
    warnings = 0;
    tarn_set_log(listen, NULL);
    tarn__chat_dataset *c = open_chats(
        write_text("long.jsonl", "{\"text\": \"abcdefghij\"}\n{\"text\": \"ab\"}\n{\"text\": \"abcdefghijk\"}\n"), t,
        6);
    tarn_set_log(NULL, NULL);
    assert_ok();
    assert_int_equal(warnings, 1);
    assert_contains(last_warning, "2 of 3 documents are longer than the context of 6 tokens");
    tarn__chat_dataset_counts(c, &s);
    assert_int_equal(s.truncated, 2);
    assert_int_equal(s.tokens[0], 6 + 4 + 6);
    assert_int_equal(s.completion_tokens[0], 5 + 3 + 5);
    tarn__chat_dataset_close(c);
    tarn_tokenizer_free(t);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Texts of random lengths, each with its number in three letters, so that it can be told again. */
static const char *write_texts(const char *name, int count, int longest, uint64_t seed)
{
    char *text = malloc((size_t)count * (size_t)(longest + 32)), *at = text;
    assert_non_null(text);
    for (int i = 0; i < count; i++) {
        int64_t length = random_below(&seed, longest - 2);
        at += sprintf(at, "{\"text\": \"%c%c%c", 'A' + i / 676, 'A' + i / 26 % 26, 'A' + i % 26);
        for (int64_t k = 0; k < length; k++)
            *at++ = '.';
        at += sprintf(at, "\"}\n");
    }
    const char *path = write_file(name, text, (size_t)(at - text));
    free(text);
    return path;
}

/* Counts how often each text is in the rows of a batch, and checks how rows are made. Returns how many tokens are in
 * documents. */
static int64_t count_texts(const batch *b, int64_t rows, int64_t context, int *seen)
{
    int64_t filled = 0;
    for (int64_t at = 0, end; at < rows * context; at = end) {
        int64_t row = at / context * context, begin = at - row;
        for (end = at; end < row + context && b->document_starts[end] == begin; end++)
            assert_int_equal(b->positions[end], end - at);
        assert_int_equal(b->targets[end - 1], NO); /* nothing of the next document is foretold */
        if (b->ids[at] != END) {                   /* what fills the row: only at its end, and without loss */
            assert_int_equal(end, row + context);
            for (int64_t i = at; i < end; i++)
                assert_int_equal(b->targets[i], NO);
            continue;
        }
        assert_int_equal(b->ids[end - 1], TAG); /* whole */
        for (int64_t i = at; i + 1 < end; i++)
            assert_int_equal(b->targets[i], b->ids[i + 1]);
        seen[(b->ids[at + 1] - 'A') * 676 + (b->ids[at + 2] - 'A') * 26 + b->ids[at + 3] - 'A']++;
        filled += end - at;
    }
    return filled;
}

static void rows_hold_every_document_once_and_are_full(void **state)
{
    (void)state;
    enum { TEXTS = 700, CONTEXT = 64 };
    tarn_tokenizer *t = open_tokenizer(NULL);
    tarn__chat_dataset *c = open_chats(write_texts("many.jsonl", TEXTS, 50, 9), t, CONTEXT);
    tarn__chat_dataset_summary s;
    assert_ok();
    tarn__chat_dataset_counts(c, &s);
    assert_int_equal(s.documents[0], TEXTS);
    int64_t epochs = 2, filled = 0;
    int seen[26 * 676] = {0};
    for (int64_t row = 0; row < epochs * s.rows[0]; row++) {
        batch b = batch_of(c, TARN__CHAT_TRAINING, row, 1);
        filled += count_texts(&b, 1, CONTEXT, seen);
    }
    for (int i = 0; i < TEXTS; i++)
        assert_int_equal(seen[i], epochs);
    assert_int_equal(filled, epochs * s.tokens[0]);
    assert_true((double)s.tokens[0] > 0.98 * (double)(s.rows[0] * CONTEXT));
    tarn__chat_dataset_close(c);
    tarn_tokenizer_free(t);
}

/* Batches of any size, asked for in any order, cut the same stream of rows; another seed has another, and so has the
 * next epoch. */
static void a_batch_is_a_function_of_its_number(void **state)
{
    (void)state;
    enum { CONTEXT = 32 };
    tarn_tokenizer *t = open_tokenizer(NULL);
    const char *path = write_texts("some.jsonl", 60, 20, 4);
    tarn__chat_dataset *c = open_chats(path, t, CONTEXT), *again = open_chats(path, t, CONTEXT);
    tarn__chat_dataset *other = tarn__chat_dataset_open(&(tarn__chat_dataset_options){
        .function = "chats", .path = path, .tokenizer = t, .context = CONTEXT, .seed = 4});
    tarn__chat_dataset_summary s, same, differs;
    assert_ok();
    tarn__chat_dataset_counts(c, &s);
    tarn__chat_dataset_counts(again, &same);
    tarn__chat_dataset_counts(other, &differs);
    assert_true(s.hash == same.hash && s.hash != differs.hash);
    int64_t rows = s.rows[0];
    const size_t whole = sizeof(int32_t) * 4 * CONTEXT;
    bool all_equal = true, epochs_equal = true;
    for (int64_t number = 3 * rows / 4; number >= 0; number--) { /* of four rows, over the end of three epochs */
        batch four = batch_of(c, TARN__CHAT_TRAINING, number, 4),
              from_other = batch_of(other, TARN__CHAT_TRAINING, number, 4);
        for (int64_t i = 0; i < 4; i++) {
            batch one = batch_of(again, TARN__CHAT_TRAINING, 4 * number + i, 1),
                  next = batch_of(again, TARN__CHAT_TRAINING, 4 * number + i + rows, 1);
            assert_memory_equal(one.ids, four.ids + i * CONTEXT, whole / 4);
            assert_memory_equal(one.targets, four.targets + i * CONTEXT, whole / 4);
            assert_memory_equal(one.document_starts, four.document_starts + i * CONTEXT, whole / 4);
            epochs_equal &= memcmp(one.ids, next.ids, whole / 4) == 0;
        }
        all_equal &= memcmp(four.ids, from_other.ids, whole) == 0;
    }
    assert_false(all_equal || epochs_equal);
    tarn__chat_dataset_close(c);
    tarn__chat_dataset_close(again);
    tarn__chat_dataset_close(other);
    tarn_tokenizer_free(t);
}

static void a_share_is_for_validation_and_nothing_is_in_both(void **state)
{
    (void)state;
    enum { TEXTS = 100, CONTEXT = 64 };
    tarn_tokenizer *t = open_tokenizer(NULL);
    int seen[2][26 * 676] = {0};
    tarn__chat_dataset *c =
        tarn__chat_dataset_open(&(tarn__chat_dataset_options){.function = "chats",
                                                              .path = write_texts("split.jsonl", TEXTS, 30, 1),
                                                              .tokenizer = t,
                                                              .context = CONTEXT,
                                                              .val_fraction = 0.2});
    tarn__chat_dataset_summary s;
    assert_ok();
    tarn__chat_dataset_counts(c, &s);
    assert_int_equal(s.documents[0], 80);
    assert_int_equal(s.documents[1], 20);
    for (int split = 0; split < 2; split++) {
        int64_t batches = (s.rows[split] + 2) / 3;
        /* validation by threes: the last rows are empty */
        for (int64_t i = 0; i < (split ? batches : s.rows[split]); i++) {
            batch b = batch_of(c, split, i, split ? 3 : 1);
            count_texts(&b, split ? 3 : 1, CONTEXT, seen[split]);
        }
    }
    for (int i = 0; i < TEXTS; i++)
        assert_int_equal(seen[0][i] + seen[1][i], 1);
    tarn__chat_dataset_close(c);
    tarn_tokenizer_free(t);
}

static void a_file_of_its_own_is_for_validation(void **state)
{
    (void)state;
    enum { CONTEXT = 64 };
    tarn_tokenizer *t = open_tokenizer(NULL);
    char path[512];
    snprintf(path, sizeof(path), "chats:%s", write_texts("train.jsonl", 30, 30, 1));
    tarn__chat_dataset_options o = {.function = "chats",
                                    .path = path,
                                    .val_path = write_text("val.jsonl", "{\"text\": \"VAL\"}\n"),
                                    .tokenizer = t,
                                    .context = CONTEXT};
    tarn__chat_dataset *c = tarn__chat_dataset_open(&o);
    tarn__chat_dataset_summary s;
    assert_ok();
    tarn__chat_dataset_counts(c, &s);
    assert_int_equal(s.documents[0], 30);
    assert_int_equal(s.documents[1], 1);
    batch b = batch_of(c, TARN__CHAT_VALIDATION, 0, 1);
    assert_memory_equal(b.ids, IDS(END, 'V', 'A', 'L', TAG), sizeof(int32_t) * 5);
    tarn__chat_dataset_close(c);
    o.val_path = NULL;
    c = tarn__chat_dataset_open(&o);
    assert_ok();
    assert_false(tarn__chat_dataset_batch(
        c, TARN__CHAT_VALIDATION, 0, 1, &(tarn__chat_dataset_rows){b.ids, b.targets, b.positions, b.document_starts}));
    assert_error(TARN_ERROR_ARGUMENT, "no documents for validation");
    tarn__chat_dataset_close(c);
    o.path = write_text("single.jsonl", "{\"text\": \"one\"}\n");
    o.val_fraction = 0.5;
    assert_null(tarn__chat_dataset_open(&o));
    assert_error(TARN_ERROR_FORMAT, "the data has one document; val_fraction needs at least 2");
    tarn_tokenizer_free(t);
}

/* ---- with a model ------------------------------------------------------------------------------------------------ */

static tarn_tensor *tensor_of(const int32_t *values, int64_t rows, int64_t columns)
{
    return good(tarn_from_i32(values, TARN_SHAPE(rows, columns), tarn_device_cpu()));
}

/* The loss of packed rows is that of the lines one by one, in rows of just their size. */
static void a_model_learns_from_rows_what_it_would_from_lines(void **state)
{
    (void)state;
    enum { CONTEXT = 48, LINES = 4 };
    static const char *const lines[LINES] = {
        "{\"prompt\": \"ab\", \"completion\": \"cde\"}", "{\"prompt\": \"hello w\", \"completion\": \"ho\"}",
        "{\"text\": \"he llo he llo he llo\"}", "{\"prompt\": \"\", \"completion\": \"x\"}"};
    tarn_tokenizer *t = open_tokenizer(NULL);
    const tarn_gpt2_config config = {
        .vocab_size = 265, .context = CONTEXT, .layers = 2, .heads = 2, .hidden_size = 8, .dtype = TARN_F64};
    tarn_module *model = tarn_model_gpt2(&config, tarn_device_cpu(), 1);
    char all[512] = "";
    double sum = 0, count = 0;
    for (int i = 0; i < LINES; i++) {
        tarn__chat_dataset *c = open_chats(write_text("line.jsonl", lines[i]), t, CONTEXT);
        tarn__chat_dataset_summary s;
        assert_ok();
        tarn__chat_dataset_counts(c, &s);
        batch b = batch_of(c, TARN__CHAT_TRAINING, 0, 1);
        double loss = tarn_item(
            good(tarn_model_loss(model, tensor_of(b.ids, 1, s.tokens[0]), tensor_of(b.targets, 1, s.tokens[0]))));
        sum += loss * (double)s.completion_tokens[0];
        count += (double)s.completion_tokens[0];
        strcat(strcat(all, lines[i]), "\n");
        tarn__chat_dataset_close(c);
    }
    tarn__chat_dataset *c = open_chats(write_text("lines.jsonl", all), t, CONTEXT);
    tarn__chat_dataset_summary s;
    assert_ok();
    tarn__chat_dataset_counts(c, &s);
    assert_int_equal(s.rows[0], 1);
    batch b = batch_of(c, TARN__CHAT_TRAINING, 0, 2); /* twice the same row: the mean does not change */
    tarn__documents documents = {tensor_of(b.positions, 2, CONTEXT), tensor_of(b.document_starts, 2, CONTEXT)};
    tarn_tensor *loss = good(tarn__model_loss_of("chats", model, tensor_of(b.ids, 2, CONTEXT),
                                                 tensor_of(b.targets, 2, CONTEXT), &documents));
    assert_true(fabs(tarn_item(loss) - sum / count) < 1e-12);
    tarn__chat_dataset_close(c);
    tarn_module_free(model);
    tarn_tokenizer_free(t);
}

/* Wherever memory runs out, there is an error, and nothing is lost. */
static void memory_may_run_out(void **state)
{
    (void)state;
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    tarn_empty_cache(tarn_device_cpu());
    allocations_left = 1 << 20;
    assert_true(tarn_set_allocator(&scarce_allocator));
    tarn_tokenizer *t = open_tokenizer(CHATML);
    const char *path =
        write_text("memory.jsonl", TALK(", {\"role\": \"assistant\", \"content\": \"a\"}") "\n{\"text\": \"b\"}\n");
    tarn__chat_dataset *c = NULL;
    int tries = 0;
    int64_t held = tarn__memory_in_use();
    for (; !c && tries < 1000; tries++) {
        allocations_left = tries;
        c = tarn__chat_dataset_open(&(tarn__chat_dataset_options){
            .function = "chats", .path = path, .tokenizer = t, .context = 40, .val_fraction = 0.5});
        allocations_left = 1 << 20;
        if (!c) {
            assert_error(TARN_ERROR_MEMORY, "memory");
            assert_int_equal(tarn__memory_in_use(), held);
        }
    }
    assert_in_range(tries, 10, 999);
    tarn__chat_dataset_close(c);
    tarn_tokenizer_free(t);
    tarn_empty_cache(tarn_device_cpu());
    assert_true(tarn_set_allocator(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(answers_of_a_conversation_are_in_the_loss_with_their_ends),
        in_scope(every_answer_of_several_is_in_the_loss),
        in_scope(special_tokens_in_messages_stay_text),
        in_scope(without_a_template_a_completion_follows_its_prompt),
        in_scope(pieces_of_sentencepiece_add_up_too),
        in_scope(a_template_goes_by_its_name),
        in_scope(arguments_of_calls_are_what_the_template_needs),
        in_scope(data_is_chats_by_its_name),
        in_scope(formats_are_recognized_by_their_fields),
        in_scope(a_bad_array_is_named_by_line),
        in_scope(a_bad_line_is_named_and_explained),
        in_scope(what_the_template_refuses_is_named_too),
        in_scope(a_file_without_documents_is_refused),
        in_scope(what_is_too_long_is_cut_and_counted_once),
        in_scope(rows_hold_every_document_once_and_are_full),
        in_scope(a_batch_is_a_function_of_its_number),
        in_scope(a_share_is_for_validation_and_nothing_is_in_both),
        in_scope(a_file_of_its_own_is_for_validation),
        in_scope(a_model_learns_from_rows_what_it_would_from_lines),
        cmocka_unit_test_setup(memory_may_run_out, clear_error),
    };
    return cmocka_run_group_tests_name("train/chats", tests, make_scratch, remove_scratch);
}
