/* test_chat.c: conversations rendered by the common chat templates; message contents stay text; other templates are
 * rejected. make parity compares with transformers. */
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
#define LLAMA2 \
    "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% endif %}{% for " \
    "message in loop_messages " \
    "%}{% set content = " \
    "'<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% if message['role'] == 'user' %}{{ " \
    "bos_token + '[INST] " \
    "' + content.strip() + ' " \
    "[/INST]' }}{% else %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
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

/* With a part for tools, which nobody gives, in which anything may stand: texts with both quotes, braces, loops. */
#define WITH_TOOLS \
    "{%- if tools %}{{- '<|im_start|>system\\n' }}{{- \"It's {\\\"x\\\": 1}}\" }}{%- for tool in tools %}{{- tool | " \
    "tojson }}{%- endfor %}{%- else %}{%- if messages[0].role == 'system' %}" \
    "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}{%- endif %}{%- for message " \
    "in messages %}" \
    "{%- if (message.role == \"user\") or (message.role == \"system\" and not loop.first) or (message.role == " \
    "\"assistant\" and not message.tool_calls) %}" \
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}{%- elif message.role == " \
    "\"assistant\" %}{{- 'calls' }}" \
    "{%- elif message.role == \"tool\" %}{{- message.content }}{%- endif %}{%- endfor %}{%- if add_generation_prompt " \
    "%}{{- '<|im_start|>assistant\\n' }}{%- endif %}"

/* A folder whose tokenizer is the small one, with some tokens of templates: 263 <|im_start|>, 264 <|im_end|>. It begins
 * with
 * <|endoftext|>, and ends with <tag>. */
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
    write_text("chat/tokenizer_config.json", "{\"bos_token\": \"<|endoftext|>\", \"eos_token\": \"<tag>\"}");
    write_text("chat/chat_template.jinja", template);
    tarn_tokenizer *t = tarn_tokenizer_open(scratch("chat"));
    assert_ok();
    return t;
}

static const tarn_chat_message talk[] = {
    {"system", " Be brief. "}, {"user", " he "}, {"assistant", "llo "}, {"user", "<|im_end|>"}};

static void expect_chat(const char *template, const char *name, int first, int count, bool prompt, const char *expected)
{
    size_t length;
    int64_t id_count;
    tarn_tokenizer *t = open_with(template);
    assert_string_equal(tarn_chat_name(t), name);
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
    expect_chat(CHATML, "chatml", 0, 2, true,
                "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\n he <|im_end|>\n<|im_start|>assistant\n");
    expect_chat(CHATML, "chatml", 1, 2, false,
                "<|im_start|>user\n he <|im_end|>\n<|im_start|>assistant\nllo <|im_end|>\n");
    expect_chat("{{ bos_token }}" CHATML, "chatml", 1, 1, false, "<|endoftext|><|im_start|>user\n he <|im_end|>\n");
    expect_chat(QWEN2, "chatml", 1, 1, false,
                "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n he <|im_end|>\n");
    expect_chat("{# spaces that are left out #}\n{%- set x = '%}' -%}\n\n {{- '' }}\n  {%- set y = 1 %}\n  " CHATML
                "\n",
                "chatml", 0, 1, false, "<|im_start|>system\n Be brief. <|im_end|>\n");
    expect_chat(QWEN2, "chatml", 0, 1, false, "<|im_start|>system\n Be brief. <|im_end|>\n");
    expect_chat(WITH_TOOLS, "chatml", 0, 2, true,
                "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\n he <|im_end|>\n<|im_start|>assistant\n");
    expect_chat(LLAMA2, "llama2", 0, 4, true,
                "<|endoftext|>[INST] <<SYS>>\n Be brief. \n<</SYS>>\n\n he [/INST] llo <tag><|endoftext|>[INST] "
                "<|im_end|> [/INST]");
    expect_chat(LLAMA3, "llama3", 0, 2, true,
                "<|endoftext|><|start_header_id|>system<|end_header_id|>\n\nBe "
                "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nhe<|eot_id|>"
                "<|start_header_id|>assistant<|end_header_id|>\n\n");
    expect_chat(MISTRAL, "mistral", 1, 3, true, "<|endoftext|>[INST]  he  [/INST]llo <tag>[INST] <|im_end|> [/INST]");
}

static void message_contents_stay_text(void **state)
{
    (void)state;
    int64_t count;
    tarn_tokenizer *t = open_with(CHATML);
    int32_t *ids = tarn_chat_encode(t, talk + 3, 1, false, &count); /* "<|im_end|>" */
    assert_ok();
    int marks = 0;
    for (int64_t i = 0; i < count; i++)
        marks += ids[i] >= 263;
    assert_int_equal(ids[0], 263);
    assert_int_equal(ids[count - 2], 264);
    assert_int_equal(marks, 2);
    assert_int_equal(tarn_chat_eot(t), 264);
    tarn_tokenizer_release(ids);
    tarn_tokenizer_free(t);
    t = open_with(MISTRAL);
    assert_int_equal(tarn_chat_eot(t), 262);
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

static void other_templates_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"{{ 'hello' }}", "{{ 'hello' }}"},
        {"", "Mistral as published"},
        {"<|im_start|>", "ChatML"},
        {"{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'].upper() + "
         "'<|im_end|>'}}",
         "Mistral as published"},
        {"{{ bos_token + '[INST] ' + content + ' [/INST]' }}<<SYS>>", "Llama 2"},
        {"{{ '[INST] ' + message['content'] + ' [/INST]' }}", "Mistral"},
        {"{{ '<|start_header_id|>' + message['role'] }}", "Llama 3"},
        {"{{ '<|user|>' + message['content'] }}", "<|user|>"},
        {"{{ '", "Mistral as published"},
        {CHATML "{{ eos_token }}", "Mistral as published"},
        {"{% for message in messages %}{{ bos_token }}{% endfor %}" CHATML, "Mistral as published"},
        {"{% set s = 'Be kind.' %}{{ '<|im_start|>system\\n' + s + '<|im_end|>\\n' }}" CHATML, "Mistral as published"},
        {"{{ \"<|im_start|>system\\nYou're kind.<|im_end|>\\n\" }}" CHATML, "Mistral as published"},
        {CHATML " x", "Mistral as published"}, /* text that is printed as it stands */
        {"\n" CHATML, "Mistral as published"},
        {"{{ '' }} " CHATML, "Mistral as published"},
        {"{{ '' }}\n" CHATML, "Mistral as published"},
        {CHATML "\n\n\n", "Mistral as published"},
    };
    size_t length;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        tarn_tokenizer *t = open_with(wrong[i][0]);
        assert_null(tarn_chat_name(t));
        assert_error_about(TARN_ERROR_UNSUPPORTED, "chat_name", wrong[i][1]);
        assert_null(tarn_chat_render(t, talk, 2, true, &length));
        assert_error_about(TARN_ERROR_UNSUPPORTED, "chat_render", wrong[i][1]);
        tarn_tokenizer_free(t);
    }
}

#define TURN "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
#define PROMPT "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define LOOP "{% for message in messages %}"
#define DEFAULT "{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}"

/* They have all that a family's have, and something else. */
static void templates_that_do_more_are_refused(void **state)
{
    (void)state;
    static const char *const more[] = {
        "{{ 'Before: ' }}" CHATML,
        CHATML "{{ 'Answer:' }}",
        LOOP TURN "{{ 'x' }}{% endfor %}" PROMPT,
        LOOP TURN
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{{ '<think>\\n' }}{% endif %}",
        "{% for message in messages[::-1] %}" TURN "{% endfor %}" PROMPT,
        "{% for message in messages[-1:] %}" TURN "{% endfor %}" PROMPT,
        LOOP "{% if message['role'] != 'system' %}" TURN
             "{% endif %}{% endfor %}" PROMPT, /* a system's text is left out */
        "{% set messages = messages[1:] %}" CHATML,
        "{% set messages = [{'role': 'system', 'content': 'Be kind.'}] + messages %}" CHATML,
        DEFAULT CHATML, /* also where there is one */
        "{% if messages|length < 2 %}" DEFAULT "{% endif %}" CHATML,
        "{% if not tools %}{{ 'none' }}{% endif %}" CHATML,
        "{% if tools %}{% else %}{{ 'none' }}{% endif %}" CHATML,
        "{% if true %}{% for message in messages %}" TURN "{% endfor %}" PROMPT, /* never ends */
        LOOP "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'}}{% endfor %}" PROMPT,
        LOOP TURN "{% endfor %}{% if messages|length < 2 %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        "{{ 'Before: ' }}" LLAMA3,
        "{{ bos_token }}{{ 'Before: ' }}" MISTRAL,
        LLAMA2 "{{ ' ' }}",
        MISTRAL "{{ ' ' }}",
        ("{% for message in messages %}{{ bos_token }}{% if message['role'] == 'user' %}{{ '[INST] ' + "
         "message['content'] + ' [/INST]' }}{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"),
    };
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        tarn_tokenizer *t = open_with(more[i]);
        if (tarn_chat_name(t))
            fail_msg("taken: %s", more[i]);
        assert_error_about(TARN_ERROR_UNSUPPORTED, "chat_name", "Mistral as published");
        tarn_tokenizer_free(t);
    }
}

static void templates_that_are_not_utf8_are_refused(void **state)
{
    (void)state;
    tarn_tokenizer_free(open_with(CHATML));
    write_text("chat/chat_template.jinja", "{{ '\xFF' }}");
    assert_null(tarn_tokenizer_open(scratch("chat")));
    assert_error_about(TARN_ERROR_FORMAT, "chat_template.jinja", "UTF-8");
}

static void roles_out_of_order_are_refused(void **state)
{
    (void)state;
    size_t length;
    static const tarn_chat_message twice[] = {{"user", "a"}, {"user", "b"}}, tool[] = {{"user", "a"}, {"tool", "b"}};
    static const char *const templates[] = {LLAMA2, MISTRAL};
    for (int i = 0; i < 2; i++) {
        tarn_tokenizer *t = open_with(templates[i]);
        assert_null(tarn_chat_render(t, twice, 2, false, &length));
        assert_error_about(TARN_ERROR_ARGUMENT, "chat_render", "take turns");
        assert_null(tarn_chat_render(t, tool, 2, false, &length));
        assert_error_about(TARN_ERROR_ARGUMENT, "'tool'", "take turns");
        tarn_tokenizer_free(t);
    }
    tarn_tokenizer *t = open_with(MISTRAL); /* this one has no place for a system's text */
    assert_null(tarn_chat_render(t, talk, 2, false, &length));
    assert_error_about(TARN_ERROR_ARGUMENT, "a 'system' message is out of place", "take turns");
    tarn_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(templates_are_followed),
                                       in_scope(message_contents_stay_text),
                                       in_scope(templates_are_saved),
                                       in_scope(other_templates_are_refused_by_name),
                                       in_scope(roles_out_of_order_are_refused),
                                       in_scope(templates_that_are_not_utf8_are_refused),
                                       in_scope(templates_that_do_more_are_refused)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
