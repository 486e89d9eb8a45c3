/* test_chat.c: conversations rendered by chat templates; message contents stay text; loss masks; messages in JSON. make
 * parity compares with transformers. */
#include <sys/stat.h>

#include "support/files.h"
#include "support/small_tokenizer.h"
#include "tarn_features.h"

#define CHATML \
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + " \
    "'\\n'}}{% endfor %}" \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define QWEN2 \
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe " \
    "kind.<|im_end|>\\n' " \
    "}}" \
    "{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}" \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define LLAMA3 \
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + " \
    "'<|end_header_id|>\n\n'+ message['content'] " \
    "| trim + " \
    "'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% " \
    "endfor %}{% if " \
    "add_generation_prompt %}{{ " \
    "'<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
#define MISTRAL \
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] " \
    "+ ' [/INST]' }}{% " \
    "else %}{{ " \
    "message['content'] + eos_token }}{% endif %}{% endfor %}"

/* A folder whose tokenizer is the small one, with some tokens of templates: 263 <|im_start|>, 264 <|im_end|>. It begins
 * with <|endoftext|>, 260, and ends with <tag>, 262. */
static tarn_tokenizer *open_with(const char *template)
{
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    mkdir(scratch("chat"), 0777);
    char *text = replaced(small_tokenizer_text(), "{\"added_tokens\": [",
                          "{\"added_tokens\": [{\"id\": 263, \"content\": \"<|im_start|>\", \"special\": true}, "
                          "{\"id\": 264, \"content\": "
                          "\"<|im_end|>\", \"special\": "
                          "true}, ");
    write_text("chat/tokenizer.json", text);
    free(text);
    write_text("chat/tokenizer_config.json", "{\"bos_token\": \"<|endoftext|>\", \"eos_token\": \"<tag>\", "
                                             "\"model_max_length\": 1000000000000000019884624838656}");
    write_text("chat/chat_template.jinja", template);
    tarn_tokenizer *t = tarn_tokenizer_open(scratch("chat"));
    assert_ok();
    return t;
}

static const tarn_chat_message talk[] = {
    {"system", " Be brief. "}, {"user", " he "}, {"assistant", "llo "}, {"user", "<|im_end|>"}};

static void expect_chat(const char *template, int first, int count, bool prompt, const char *expected)
{
    size_t length;
    int64_t id_count;
    tarn_tokenizer *t = open_with(template);
    assert_string_equal(tarn_chat_name(t), "model");
    char *text = tarn_chat_render(t, talk + first, count, prompt, &length);
    assert_ok();
    assert_string_equal(text, expected);
    assert_int_equal(length, strlen(expected));
    int32_t *ids = tarn_chat_encode(t, talk + first, count, prompt, &id_count);
    assert_ok();
    char *back = tarn_tokenizer_decode(t, ids, id_count, &length);
    assert_string_equal(back, expected);
    tarn_tokenizer_release(ids);
    tarn_tokenizer_release(back);
    tarn_tokenizer_release(text);
    tarn_tokenizer_free(t);
}

static void templates_are_followed(void **state)
{
    (void)state;
    expect_chat(CHATML, 0, 2, true,
                "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\n he <|im_end|>\n<|im_start|>assistant\n");
    expect_chat(CHATML, 1, 2, false, "<|im_start|>user\n he <|im_end|>\n<|im_start|>assistant\nllo <|im_end|>\n");
    expect_chat("{{ bos_token }}" CHATML, 1, 1, false, "<|endoftext|><|im_start|>user\n he <|im_end|>\n");
    expect_chat(QWEN2, 1, 1, false, "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n he <|im_end|>\n");
    expect_chat(QWEN2, 0, 1, false, "<|im_start|>system\n Be brief. <|im_end|>\n");
    expect_chat(LLAMA3, 0, 2, true,
                "<|endoftext|><|start_header_id|>system<|end_header_id|>\n\nBe "
                "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nhe<|eot_id|>"
                "<|start_header_id|>assistant<|end_header_id|>\n\n");
    expect_chat(MISTRAL, 1, 3, true, "<|endoftext|>[INST]  he  [/INST]llo <tag>[INST] <|im_end|> [/INST]");
    expect_chat(
        "{{ tools is none }}{{ documents is none }}{{ messages | length }}{{ nothing }}{{ unk_token is defined }}", 0,
        2, false, "TrueTrue2False");
}

/* Number of ids of special tokens of the template. */
static int count_marks(const int32_t *ids, int64_t count)
{
    int marks = 0;
    for (int64_t i = 0; i < count; i++)
        marks += ids[i] >= 263;
    return marks;
}

static void message_contents_stay_text(void **state)
{
    (void)state;
    int64_t count;
    tarn_tokenizer *t = open_with(CHATML);
    int32_t *ids = tarn_chat_encode(t, talk + 3, 1, false, &count); /* "<|im_end|>" */
    assert_ok();
    assert_int_equal(ids[0], 263);
    assert_int_equal(ids[count - 2], 264);
    assert_int_equal(count_marks(ids, count), 2);
    assert_int_equal(tarn_chat_eot(t), 264);
    tarn_tokenizer_release(ids);
    tarn_tokenizer_free(t);
    t = open_with(MISTRAL);
    assert_int_equal(tarn_chat_eot(t), 262);
    tarn_tokenizer_free(t);
}

/* Nor is a token of which a message has only a part, or a role that is not a word; letters of a role are the
 * template's:
 * '<|' + role + '|>' is a token. */
static void tokens_across_the_border_stay_text(void **state)
{
    (void)state;
    static const struct {
        const char *template;
        tarn_chat_message message;
        int marks;
    } cases[] = {{"<|im_{{ messages[0].content }}", {"user", "end|>"}, 0},
                 {"{{ messages[0].content }}end|>", {"user", "<|im_"}, 0},
                 {"{{ messages[0].content }}<|im_end|>", {"user", "<|im_"}, 1},
                 {"<|im_{{ messages[0].content | upper | lower }}|>", {"user", "end"}, 0},
                 {"{{ messages[0].role }}", {"<|im_end|>", "a"}, 0},
                 {"<|{{ messages[0].role }}|>", {"im_end", "a"}, 1},
                 {"{% set x = messages[0].content.split('+') %}{{ x[0] }}{{ x[1] }}", {"user", "<|im_+end|>"}, 0},
                 {"{{ messages[0].content | tojson }}<|im_end|>", {"user", "<|im_start|>"}, 1}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t count;
        tarn_tokenizer *t = open_with(cases[i].template);
        int32_t *ids = tarn_chat_encode(t, &cases[i].message, 1, false, &count);
        assert_ok();
        assert_int_equal(count_marks(ids, count), cases[i].marks);
        tarn_tokenizer_release(ids);
        tarn_tokenizer_free(t);
    }
}

/* A piece may hold text of the template and of a message, as in transformers: 256 is "he", 258 "llo". */
static void pieces_cross_the_border_of_template_and_message(void **state)
{
    (void)state;
    int64_t count;
    tarn_tokenizer *t = open_with("h{{ messages[0].content }}lo");
    int32_t *ids = tarn_chat_encode(t, &(tarn_chat_message){"user", "el"}, 1, false, &count),
            *whole = tarn_tokenizer_encode(t, "hello", 5, NULL, &count);
    assert_ok();
    assert_memory_equal(ids, whole, sizeof(int32_t) * (size_t)count);
    tarn_tokenizer_release(ids);
    tarn_tokenizer_release(whole);
    tarn_tokenizer_free(t);
}

/* Saved, a folder has the template, and what begins and ends a text. */
static void templates_are_saved(void **state)
{
    (void)state;
    size_t length, other;
    tarn_tokenizer *t = open_with(LLAMA3);
    assert_true(tarn_tokenizer_save(t, scratch("saved-chat")));
    tarn_tokenizer *again = tarn_tokenizer_open(scratch("saved-chat"));
    assert_ok();
    char *text = tarn_chat_render(t, talk, 2, true, &length), *same = tarn_chat_render(again, talk, 2, true, &other);
    assert_ok();
    assert_string_equal(text, same);
    assert_int_equal(tarn_tokenizer_bos(again), 260);
    assert_int_equal(tarn_tokenizer_eos(again), 262);
    assert_true(tarn_tokenizer_hash(t) == tarn_tokenizer_hash(again));
    tarn_tokenizer_release(text);
    tarn_tokenizer_release(same);
    tarn_tokenizer_free(again);
    tarn_tokenizer_free(t);
}

/* ---- messages in JSON -------------------------------------------------------------------------------------------- */

#define TOOLS \
    "{% for tool in tools or [] %}{{ tool.name }};{% endfor %}{% for m in messages %}{{ m.role }}:" \
    "{{ m.content if m.content is string else m.content | map(attribute='text') | join('+') if m.content else '-' }}" \
    "{% for call in m.tool_calls or [] %}!{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}" \
    "{{ m.reasoning_content }}{{ m.name }}\n{% endfor %}{{ mood }}"

static void expect_json(const tarn_tokenizer *t, const char *messages, const tarn_chat_options *options,
                        const char *expected)
{
    size_t length;
    char *text = tarn_chat_render_json(t, messages, strlen(messages), options, &length);
    assert_ok();
    assert_string_equal(text, expected);
    tarn_tokenizer_release(text);
}

static void messages_in_json_have_tools_and_parts(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_with(TOOLS);
    expect_json(t,
                "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, "
                "{\"type\": \"text\", \"text\": \"b\"}]}]",
                NULL, "user:a+b\n");
    expect_json(t,
                "[{\"role\": \"assistant\", \"content\": null, \"thinking\": \"hm\", \"tool_calls\": "
                "[{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1.5}}}]}, "
                "{\"role\": \"tool\", \"name\": \"f\", \"content\": \"\"}]",
                &(tarn_chat_options){.tools = "[{\"name\": \"f\"}]", .variables = "{\"mood\": \"good\"}"},
                "f;assistant:-!f{\"x\": 1.5}hm\ntool:f\ngood");
    tarn_tokenizer_free(t);
}

static void bad_messages_in_json_are_named(void **state)
{
    (void)state;
    static const char *const bad[][2] = {{"[", "messages, line 1: byte 1"},
                                         {"{}", "messages must be an array"},
                                         {"[]", "messages must be an array"},
                                         {"[1]", "message 1 is not an object"},
                                         {"[{\"content\": \"a\"}]", "message 1 is not an object"},
                                         {"[{\"role\": 1}]", "\"role\""}};
    tarn_tokenizer *t = open_with(TOOLS);
    size_t length;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_null(tarn_chat_render_json(t, bad[i][0], strlen(bad[i][0]), NULL, &length));
        assert_error_about(TARN_ERROR_FORMAT, "chat_render_json", bad[i][1]);
    }
    const tarn_chat_options options = {.tools = "[1"};
    assert_null(tarn_chat_render_json(t, "[{\"role\": \"user\"}]", 18, &options, &length));
    assert_error_about(TARN_ERROR_FORMAT, "chat_render_json", "tools");
    tarn_tokenizer_free(t);
}

/* ---- loss masks -------------------------------------------------------------------------------------------------- */

/* The ids with loss, as text, with a bar where others are between them. */
static void expect_loss(const char *template, const char *messages, const char *expected)
{
    tarn_tokenizer *t = open_with(template);
    uint8_t *mask;
    int64_t count;
    char found[1024] = "";
    int32_t *ids = tarn_chat_encode_json(t, messages, strlen(messages), NULL, &mask, &count);
    assert_ok();
    for (int64_t i = 0; i < count; i++) {
        if (mask[i] && i > 0 && !mask[i - 1] && found[0])
            strcat(found, "|");
        if (mask[i])
            strcat(found, tarn_tokenizer_piece(t, ids[i], NULL));
    }
    assert_string_equal(found, expected);
    tarn_tokenizer_release(ids);
    tarn_tokenizer_release(mask);
    tarn_tokenizer_free(t);
}

#define USER "{\"role\": \"user\", \"content\": \"a\"}"
#define ASSISTANT(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"
/* Thoughts are dropped but for the last answer, which has a block of them in any case. */
#define THINKING \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% if loop.last %}[T]{% endif %}" \
    "{{ m.content.split(']')[-1] | trim }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}" \
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
/* Answers end with text only, and the prompt goes on where answers do not. */
#define TEXT_ONLY \
    "{% for m in messages %}{{ 'Q:' if m.role == 'user' else 'A:' }}{{ m.content }}{{ '.' if m.role == 'assistant' " \
    "}}\n" \
    "{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
#define BLOCKS \
    "{% for m in messages %}{{ m.role }}:{% generation %}{% if m.role == 'assistant' %}{{ m.content }}<|im_end|>" \
    "{% endif %}{% endgeneration %}{% if m.role != 'assistant' %}{{ m.content }}{% endif %}\n{% endfor %}"

static void the_loss_is_on_answers_and_their_ends(void **state)
{
    (void)state;
    expect_loss(CHATML, "[" USER ", " ASSISTANT(" b ") ", " USER ", " ASSISTANT("c") "]", " b <|im_end|>|c<|im_end|>");
    expect_loss(CHATML, "[" ASSISTANT("b") "]", "b<|im_end|>");
    expect_loss(CHATML,
                "[" USER ", {\"role\": \"assistant\", \"content\": \"b\", \"weight\": 0}, " USER
                ", " ASSISTANT("c") "]",
                "c<|im_end|>");
    expect_loss(MISTRAL, "[" USER ", " ASSISTANT("b") ", " USER ", " ASSISTANT("c") "]", "b<tag>|c<tag>");
    expect_loss(THINKING, "[" USER ", " ASSISTANT("[t]b ") ", " USER ", " ASSISTANT("[t]c") "]",
                "b<|im_end|>|[T]c<|im_end|>");
    expect_loss(THINKING, "[" USER ", " ASSISTANT("[t]") ", " USER ", " ASSISTANT("c") "]",
                "<|im_end|>|[T]c<|im_end|>");
    expect_loss(TEXT_ONLY, "[" USER ", " ASSISTANT("b") ", " USER ", " ASSISTANT("c") "]", "b.|c.");
    expect_loss(BLOCKS, "[" USER ", " ASSISTANT("b") ", " USER ", " ASSISTANT("c") "]", "b<|im_end|>|c<|im_end|>");
}

static void answers_that_are_not_rendered_are_an_error(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_with("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}");
    static const char lost[] = "[" USER ", " ASSISTANT("b") "]";
    uint8_t *mask;
    int64_t count;
    assert_null(tarn_chat_encode_json(t, lost, strlen(lost), NULL, &mask, &count));
    assert_error_about(TARN_ERROR_FORMAT, "chat_encode_json: chat template", "message 2");
    assert_null(mask);
    assert_null(tarn_chat_encode_json(t, lost, strlen(lost), &(tarn_chat_options){.add_generation_prompt = true}, &mask,
                                      &count));
    assert_error_about(TARN_ERROR_ARGUMENT, "chat_encode_json", "exclude each other");
    tarn_tokenizer_free(t);
}

/* ---- named templates --------------------------------------------------------------------------------------------- */

static void templates_have_names(void **state)
{
    (void)state;
    size_t length;
    tarn_tokenizer_free(open_with("default"));
    remove(scratch("chat/chat_template.jinja"));
    write_text("chat/tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\", \"template\": \"d\"}, "
                                             "{\"name\": \"tool_use\", \"template\": \"t\"}, "
                                             "{\"name\": \"rag\", \"template\": \"r\"}]}");
    tarn_tokenizer *t = tarn_tokenizer_open(scratch("chat"));
    const tarn_chat_options options = {.tools = "[{}]"};
    expect_json(t, "[" USER "]", NULL, "d");
    expect_json(t, "[" USER "]", &options, "t");
    assert_true(tarn_tokenizer_save(t, scratch("saved-names")));
    tarn_tokenizer *again = tarn_tokenizer_open(scratch("saved-names"));
    assert_ok();
    expect_json(again, "[" USER "]", &options, "t");
    assert_true(tarn_tokenizer_set_chat(again, "rag"));
    expect_json(again, "[" USER "]", &options, "r");
    assert_true(tarn_tokenizer_set_chat(again, "chatml"));
    assert_string_equal(tarn_chat_name(again), "chatml");
    tarn_tokenizer_free(again);
    tarn_tokenizer_free(t);
    write_text("chat/tokenizer_config.json", "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"r\"}]}");
    t = tarn_tokenizer_open(scratch("chat"));
    assert_null(tarn_chat_render(t, talk, 1, false, &length));
    assert_error_about(TARN_ERROR_UNSUPPORTED, "no default", "'rag'");
    tarn_tokenizer_free(t);
    remove(scratch("chat/tokenizer_config.json"));
    write_text("chat/chat_template.json", "{\"chat_template\": \"from json\"}");
    t = tarn_tokenizer_open(scratch("chat"));
    expect_json(t, "[" USER "]", NULL, "from json");
    remove(scratch("chat/chat_template.json"));
    tarn_tokenizer_free(t);
}

/* Files of additional_chat_templates have any name. */
static void templates_have_files(void **state)
{
    (void)state;
    tarn_tokenizer_free(open_with("default"));
    mkdir(scratch("chat/additional_chat_templates"), 0777);
    write_text("chat/additional_chat_templates/my-own.1.jinja", "mine");
    write_text("chat/additional_chat_templates/tool_use.jinja", "t");
    write_text("chat/additional_chat_templates/readme.txt", "no template");
    tarn_tokenizer *t = tarn_tokenizer_open(scratch("chat"));
    expect_json(t, "[" USER "]", NULL, "default");
    expect_json(t, "[" USER "]", &(tarn_chat_options){.tools = "[{}]"}, "t");
    assert_true(tarn_tokenizer_set_chat(t, "my-own.1"));
    expect_json(t, "[" USER "]", NULL, "mine");
    tarn_tokenizer_free(t);
    remove(scratch("chat/additional_chat_templates/my-own.1.jinja"));
    remove(scratch("chat/additional_chat_templates/tool_use.jinja"));
}

/* ---- special tokens ---------------------------------------------------------------------------------------------- */

/* tests/parity/chat.py compares more files with transformers. */
static void templates_see_the_special_tokens(void **state)
{
    (void)state;
    tarn_tokenizer_free(open_with("{{ pad_token }},{{ image_token }},{{ boi }},{{ mask_token }},{{ unk_token }}"));
    write_text("chat/tokenizer_config.json",
               "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"pad_token\": {\"content\": \"<tag>\"}, "
               "\"image_token\": \"<image>\", \"mask_token\": null, \"add_bos_token\": false, "
               "\"extra_special_tokens\": {\"boi\": \"<b>\", \"messages\": \"no\"}}");
    tarn_tokenizer *t = tarn_tokenizer_open(scratch("chat"));
    expect_json(t, "[" USER "]", NULL, "<tag>,<image>,<b>,,");
    expect_json(t, "[" USER "]", &(tarn_chat_options){.variables = "{\"boi\": 7}"}, "<tag>,<image>,7,,");
    assert_true(tarn_tokenizer_save(t, scratch("saved-special")));
    tarn_tokenizer *again = tarn_tokenizer_open(scratch("saved-special"));
    assert_ok();
    expect_json(again, "[" USER "]", NULL, "<tag>,<image>,<b>,,");
    tarn_tokenizer_free(again);
    tarn_tokenizer_free(t);
    write_text("chat/special_tokens_map.json", "{\"pad_token\": \"<p>\", \"image_token\": \"<i>\"}");
    t = tarn_tokenizer_open(scratch("chat"));
    expect_json(t, "[" USER "]", NULL, "<p>,<image>,<b>,,");
    tarn_tokenizer_free(t);
    write_text("chat/special_tokens_map.json", "{\"pad_token\": \"a\\u0000b\"}");
    assert_null(tarn_tokenizer_open(scratch("chat")));
    assert_error_about(TARN_ERROR_FORMAT, "special_tokens_map.json", "\"pad_token\"");
    remove(scratch("chat/special_tokens_map.json"));
}

/* ---- tools ------------------------------------------------------------------------------------------------------- */

#define FUNCTIONS \
    "[{\"name\": \"look\"}, {\"type\": \"function\", \"function\": {\"name\": \"add\", \"parameters\": " \
    "{\"properties\": {\"name\": {\"type\": \"string\"}}}}}]"

/* The calls in an answer as "name arguments;". */
static void expect_calls(const char *answer, const char *expected)
{
    char found[200] = "";
    tarn_tool_call call;
    for (const char *at = answer; tarn_chat_find_call(FUNCTIONS, at, strlen(at), &call); at += call.end)
        snprintf(found + strlen(found), sizeof(found) - strlen(found), "%.*s %.*s;", (int)call.name_length, call.name,
                 (int)call.arguments_length, call.arguments);
    assert_string_equal(found, expected);
}

static void calls_are_found_in_answers(void **state)
{
    (void)state;
    assert_true(tarn_chat_check_tools(FUNCTIONS));
    expect_calls(
        "Yes.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": [1, {\"b\": \"}\\\"\"}]}}\n</tool_call>",
        "add {\"a\": [1, {\"b\": \"}\\\"\"}]};");
    expect_calls("[TOOL_CALLS][{\"name\":\"look\",\"arguments\":{}},{\"name\":\"add\",\"arguments\":\"{}\"}]",
                 "look {};add \"{}\";");
    expect_calls("{\"type\": \"function\", \"function\": {\"name\": \"add\", \"parameters\": {}}}", "add {};");
    expect_calls("{\"name\": \"other\", \"arguments\": {}}", "");
    expect_calls("{\"name\": \"add\", \"arguments\": {}", "");
    expect_calls("{\"name\": \"add\", \"arguments\": 5}", "");
    expect_calls("{{{[\"name\"", "");
    assert_false(tarn_chat_find_call(NULL, "x", 1, &(tarn_tool_call){0}));
    static const struct {
        const char *before;
        size_t length;
    } contents[] = {{"Sure. <tool_call>\n", 5},
                    {"Sure.\n[TOOL_CALLS] [", 5},
                    {"Sure.<|python_tag|>", 5},
                    {"Sure. <function=add>", 5},
                    {"see [1]", 7},
                    {"a <b> ", 5},
                    {"x > y", 5},
                    {"[", 0},
                    {"", 0},
                    {"<TOOL>[<tool_call>", 0},
                    {"a tool] ", 7}};
    for (size_t i = 0; i < sizeof(contents) / sizeof(contents[0]); i++)
        if (tarn_chat_content_length(contents[i].before, strlen(contents[i].before)) != contents[i].length)
            fail_msg("'%s': %zu bytes", contents[i].before,
                     tarn_chat_content_length(contents[i].before, strlen(contents[i].before)));
    assert_false(tarn_chat_check_tools("[{\"name\": \"f\"},]"));
    assert_error_about(TARN_ERROR_FORMAT, "chat_check_tools", "tools");
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static void what_a_template_says_is_the_error(void **state)
{
    (void)state;
    size_t length;
    static const tarn_chat_message twice[] = {{"user", "a"}, {"user", "b"}};
    tarn_tokenizer *t = open_with("{% for m in messages %}\n{% if m.role != ('user', 'assistant')[loop.index0 % 2] %}"
                                  "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}");
    assert_null(tarn_chat_render(t, twice, 2, false, &length));
    assert_error_about(TARN_ERROR_ARGUMENT, "chat_render: chat template, line 2: the template says",
                       "roles must alternate");
    tarn_tokenizer_free(t);
    t = open_with("{% if x %}");
    assert_null(tarn_chat_name(t));
    assert_error_about(TARN_ERROR_FORMAT, "chat_name: chat template, line 1", "endif");
    tarn_tokenizer_free(t);
}

static void templates_that_are_not_utf8_are_refused(void **state)
{
    (void)state;
    tarn_tokenizer_free(open_with(CHATML));
    write_text("chat/chat_template.jinja", "{{ '\xFF' }}");
    assert_null(tarn_tokenizer_open(scratch("chat")));
    assert_error_about(TARN_ERROR_FORMAT, "chat_template.jinja", "UTF-8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(templates_are_followed),
                                       in_scope(message_contents_stay_text),
                                       in_scope(tokens_across_the_border_stay_text),
                                       in_scope(pieces_cross_the_border_of_template_and_message),
                                       in_scope(templates_are_saved),
                                       in_scope(messages_in_json_have_tools_and_parts),
                                       in_scope(bad_messages_in_json_are_named),
                                       in_scope(the_loss_is_on_answers_and_their_ends),
                                       in_scope(answers_that_are_not_rendered_are_an_error),
                                       in_scope(templates_have_names),
                                       in_scope(templates_have_files),
                                       in_scope(templates_see_the_special_tokens),
                                       in_scope(calls_are_found_in_answers),
                                       in_scope(what_a_template_says_is_the_error),
                                       in_scope(templates_that_are_not_utf8_are_refused)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
