/* targets_text.c: tokenizer and token files. */
#include <sys/stat.h>
#include <tarn/text.h>
#include <tarn/train.h>

#include "fuzz/targets.h"
#include "support/files.h"
#include "support/small_model.h"
#include "support/small_tokenizer.h"
#include "text/jinja/jinja.h"

/* ---- tokenizers -------------------------------------------------------------------------------------------------- */

/* Encodes and decodes; frees the tokenizer. */
static bool used(tarn_tokenizer *t)
{
    static const char text[] = "ab a <e> hello w\xC3\xA9\xFF b\n<|endoftext|>e\xCC\x81";
    int64_t count;
    size_t length;
    if (!t)
        return false;
    int32_t *ids =
        tarn_tokenizer_encode(t, text, sizeof(text) - 1, &(tarn_encode_options){.add_special = true}, &count);
    fuzz_must(ids || tarn_error_code() == TARN_ERROR_ARGUMENT || tarn_error_code() == TARN_ERROR_UNSUPPORTED,
              "a text is encoded, but for a byte that the vocabulary lacks, or a pattern without end");
    tarn_clear_error();
    char *back = ids ? tarn_tokenizer_decode(t, ids, count, &length) : NULL;
    fuzz_must(!ids || back, "what was encoded is decoded");
    tarn_tokenizer_release(ids);
    tarn_tokenizer_release(back);
    for (int32_t id = 0; id < tarn_tokenizer_count(t) && id < 1000; id++)
        tarn_tokenizer_piece(t, id, &length);
    tarn_tokenizer_free(t);
    return true;
}

static bool take_tokenizer(const void *from, size_t count)
{
    return used(tarn_tokenizer_open(fuzz_write("fuzz.json", from, count)));
}

static void tokenizer_seeds(fuzz_seed_fn use, void *ctx)
{
    static const char template[] = "{\"added_tokens\":[{\"id\":5,\"content\":\"<e>\",\"special\":true,\"lstrip\":true},"
                                   "{\"id\":6,\"content\":\"ab \"}],"
                                   "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\","
                                   "\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
                                   "\" "
                                   "?[a-b]+|\\\\s+\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"add_prefix_"
                                   "space\":false,\"use_regex\":false}]},"
                                   "\"decoder\":{\"type\":\"ByteLevel\"},\"post_processor\":{\"type\":"
                                   "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<e>\"}},"
                                   "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<e>\":{\"ids\":[5]}}},"
                                   "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,"
                                   "\"\xC4\xA0\":3,\"\xC4\xA0"
                                   "ab\":4},\"merges\":[\"a b\",[\"\xC4\xA0\",\"ab\"]]}}";
    use(template, sizeof(template) - 1, ctx);
    use(small_tokenizer_text(), strlen(small_tokenizer_text()), ctx);
    tarn_tokenizer *t = tarn_tokenizer_characters("abc \xC3\xA9\n", 7);
    fuzz_must(tarn_tokenizer_save(t, scratch("characters")), "a tokenizer of characters is saved");
    tarn_tokenizer_free(t);
    fuzz_seed_file("characters/tokenizer.json", use, ctx);
    char model[8192];
    t = tarn_tokenizer_open(fuzz_write("seed.model", model, small_model(model, &(small_model_options){0})));
    fuzz_must(tarn_tokenizer_save(t, scratch("pieces")), "a tokenizer of SentencePiece is saved");
    tarn_tokenizer_free(t);
    fuzz_seed_file("pieces/tokenizer.json", use, ctx);
    for (int i = 0; i < SMALL_PIPELINES; i++)
        use(small_pipeline_text(i), strlen(small_pipeline_text(i)), ctx);
}

/* Saves what a model of SentencePiece gave, now and then: that waits for the disk. */
static bool take_model(const void *from, size_t count)
{
    static int taken;
    tarn_tokenizer *t = tarn_tokenizer_open(fuzz_write("fuzz.model", from, count));
    if (t && taken++ % 16 == 0 && !tarn_tokenizer_save(t, scratch("model"))) {
        fuzz_must(tarn_error_code() == TARN_ERROR_UNSUPPORTED, "a model is saved, but for one without bytes");
        tarn_clear_error();
    }
    return used(t);
}

static void model_seeds(fuzz_seed_fn use, void *ctx)
{
    static const small_model_options kinds[] = {{0},
                                                {.squeezes = true, .more = "hell", .more_type = 4},
                                                {.no_bytes = true},
                                                {.type = 1},
                                                {.type = 1, .squeezes = true, .more = "hell", .more_type = 4},
                                                {.type = 1, .no_bytes = true}};
    char model[8192];
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        use(model, small_model(model, &kinds[i]), ctx);
}

/* A tokenizer.model of tiktoken or a vocab.txt, and tokenizer_config.json, with a 0 between them. */
static bool take_parts(const char *name, const void *from, size_t count)
{
    const char *at = from, *stop = count ? memchr(at, 0, count) : NULL;
    size_t first = stop ? (size_t)(stop - at) : count;
    mkdir(scratch("lines"), 0777);
    fuzz_write(name, at, first);
    fuzz_write("lines/tokenizer_config.json", stop ? stop + 1 : "{}", stop ? count - first - 1 : 2);
    return used(tarn_tokenizer_open(scratch(name)));
}

static bool take_tiktoken(const void *from, size_t count)
{
    return take_parts("lines/tokenizer.tiktoken", from, count);
}

static void tiktoken_seeds(fuzz_seed_fn use, void *ctx)
{
    static const char parts[] = "YQ== 0\nYg== 1\nYWI= 2\nIA== 3\nIGFi 4\n\0{\"pattern\": \"gpt-4o\", "
                                "\"added_tokens_decoder\": {\"5\": {\"content\": \"<e>\", \"special\": true}}}";
    use(parts, sizeof(parts) - 1, ctx);
    use(parts, strlen(parts), ctx);
}

static bool take_bert(const void *from, size_t count)
{
    return take_parts("lines/vocab.txt", from, count);
}

static void bert_seeds(fuzz_seed_fn use, void *ctx)
{
    static const char parts[] = "[UNK]\n[CLS]\n[SEP]\na\n##b\nab\nhe\n##llo\n\0{\"do_lower_case\": true, "
                                "\"strip_accents\": false, \"unk_token\": {\"content\": \"[UNK]\"}}";
    use(parts, sizeof(parts) - 1, ctx);
}

/* vocab.json, merges.txt and tokenizer_config.json, with a 0 between them. */
static bool take_vocabulary(const void *from, size_t count)
{
    static const char *const names[] = {"parts/vocab.json", "parts/merges.txt", "parts/tokenizer_config.json"};
    const char *at = from, *end = at + count;
    mkdir(scratch("parts"), 0777);
    for (int i = 0; i < 3; i++) {
        const char *stop = i < 2 && at < end ? memchr(at, 0, (size_t)(end - at)) : NULL;
        fuzz_write(names[i], at, (size_t)((stop ? stop : end) - at));
        at = stop ? stop + 1 : end;
    }
    return used(tarn_tokenizer_open(scratch(names[0])));
}

static void vocabulary_seeds(fuzz_seed_fn use, void *ctx)
{
    static const char parts[] = "{\"a\": 0, \"b\": 1, \"ab\": 2, \"\xC4\xA0\": 3, \"<|endoftext|>\": 4}\0#version: "
                                "0.2\na b\n\0{\"tokenizer_class\": \"Qwen2Tokenizer\", "
                                "\"add_prefix_space\": false, \"added_tokens_decoder\": {\"4\": {\"content\": "
                                "\"<|endoftext|>\", \"special\": true}, \"5\": {\"content\": "
                                "\"<e>\", \"special\": true}}}";
    use(parts, sizeof(parts) - 1, ctx);
}

/* ---- chat templates ---------------------------------------------------------------------------------------------- */

/* A template beside a small model; what is taken puts a conversation together. */
static bool take_chat(const void *from, size_t count)
{
    static const tarn_chat_message talk[] = {
        {"system", "be brief"}, {"user", " hello<s> "}, {"assistant", "<think>w\n</think>\nhe"}, {"user", "</s>"}};
    static const char json[] = "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
                               "\"<s>b\", \"tool_calls\": [{\"function\": {\"name\": \"f\"}}]}]";
    char model[8192];
    int64_t id_count;
    size_t length;
    mkdir(scratch("chat"), 0777);
    fuzz_write("chat/tokenizer.model", model, small_model(model, &(small_model_options){0}));
    fuzz_write("chat/chat_template.jinja", from, count);
    tarn_tokenizer *t = tarn_tokenizer_open(scratch("chat"));
    bool taken = t && tarn_chat_name(t);
    for (int i = 0; taken && i < 2; i++) {
        tarn_tokenizer_release(tarn_chat_render(t, talk + i, 4 - i, i, &length));
        tarn_tokenizer_release(tarn_chat_encode(t, talk + i, 4 - i, i, &id_count));
        fuzz_must(!tarn_failed() || tarn_error_code() == TARN_ERROR_ARGUMENT || tarn_error_code() == TARN_ERROR_MEMORY,
                  "messages are put together, or the template refuses them or is too large");
        tarn_clear_error();
    }
    if (taken) {
        uint8_t *mask = NULL;
        tarn_tokenizer_release(tarn_chat_encode_json(t, json, strlen(json), NULL, &mask, &id_count));
        tarn_tokenizer_release(mask);
        tarn_clear_error();
        tarn_chat_eot(t);
        tarn_clear_error();
    }
    tarn_tokenizer_free(t);
    return taken;
}

static void chat_seeds(fuzz_seed_fn use, void *ctx)
{
    static const char *const templates[] = {
        "{% for m in messages %}{% if loop.first %}{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif "
        "%}{{'<|im_start|>' + message['role'] + '\\n' + "
        "message.content + '<|im_end|>'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% "
        "endif %}",
        "{{'<|im_start|>' + message.role + '\\n' + content + '<|im_end|>'}}{{ content.split('</think>')[0] }}{{ "
        "last_query_index }}{{ '<|im_start|>assistant\\n' }}",
        "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{{ ' ' + content.strip() + ' ' + eos_token }}{{ "
        "'<<SYS>>\\n' + system_message + "
        "'\\n<</SYS>>\\n\\n' + message['content'] }}",
        "{{ bos_token }}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | "
        "trim + '<|eot_id|>' }}{% set date_string = \"26 Jul "
        "2024\" %}{{ \"Cutting Knowledge Date: December 2023\\n\" }}{{ \"Today Date: \" + date_string + \"\\n\\n\" "
        "}}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}",
        "{{ bos_token }}{% if loop.first and system_message is defined %}{{ ' [INST] ' + system_message + '\\n\\n' + "
        "message['content'] + ' [/INST]' }}{% else %}{{ ' [INST] ' + "
        "message['content'] + ' [/INST]' }}{% endif %}{{ ' ' + message['content'] | trim + eos_token + ' ' }}"};
    for (size_t i = 0; i < sizeof(templates) / sizeof(templates[0]); i++)
        use(templates[i], strlen(templates[i]), ctx);
}

/* A template that is run: bounded, with output or an error that names its line. */
static bool take_jinja(const void *from, size_t count)
{
    static const char json[] =
        "{\"messages\": [{\"role\": \"system\", \"content\": \"be brief\"}, {\"role\": \"user\", \"content\": "
        "\" h\\u00e9llo \"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"name\": \"f\", "
        "\"arguments\": {\"x\": [1, 2.5, true]}}]}], \"add_generation_prompt\": true, \"bos_token\": \"<s>\"}";
    tarn__buffer output = {0};
    tarn__jinja_masks masks = {{0}};
    tarn__jinja_program *program = tarn__jinja_compile("fuzz", "template", from, count);
    tarn__jinja_context *context = program ? tarn__jinja_context_json("fuzz", json, sizeof(json) - 1) : NULL;
    bool taken = context && tarn__jinja_render(program, context, &output, &masks);
    fuzz_must(!taken || output.count == masks.origins.count, "every byte has an origin");
    fuzz_must(!program || context, "a context of JSON is made");
    tarn__buffer_free(&output, 1);
    tarn__buffer_free(&masks.origins, 1);
    tarn__jinja_context_free(context);
    tarn__jinja_program_free(program);
    return taken;
}

static void jinja_seeds(fuzz_seed_fn use, void *ctx)
{
    static const char *const templates[] = {
        "{%- macro f(m, d=2) -%}\n{{ m.role|upper ~ ': ' }}{{ (m.content or '')|trim|indent(d) }}{{ caller() if caller "
        "}}"
        "{%- endmacro %}\n{% for m in messages if m %}{{ f(m, d=loop.index) }}{% if loop.last %}{% break %}{% endif %}"
        "{% else %}none{% endfor %}{% call f({'role': 'x'}) %}!{% endcall %}",
        "{% set ns = namespace(i=0, s='a') %}{% for x in range(5)|list + [1.5, 'b'] %}{% set ns.i = ns.i + 1 %}{% set "
        "ns.s "
        "= ns.s * 2 %}{% endfor %}{{ ns.i ** 2 // 3 % 5 }}{{ ns.s[1:-1:2] }}{{ messages|tojson(indent=2) }}",
        "{{ bos_token }}{% generation %}{{ '%s %5.2f %d' % ('a', 2.5, 3) }}{{ '{:>5}{!r}'.format(1, 'b') }}{% "
        "endgeneration "
        "%}{{ messages|map(attribute='role')|map('title')|join(', ') }}{{ messages|selectattr('content')|list|length }}"
        "{{ ('a b c'.split(' ', 1) | sort(reverse=true)) == ['b c', 'a'] }}{{ strftime_now('%Y-%m-%d')|length }}",
        "{%- set x | trim -%} {# note #} {% raw %}{{{% endraw %} \n{% endset -%}{% filter upper %}{{ x }}{% endfilter "
        "%}"
        "{% with a = [1, [2]] %}{% for i in a recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}{% endwith "
        "%}"};
    for (size_t i = 0; i < sizeof(templates) / sizeof(templates[0]); i++)
        use(templates[i], strlen(templates[i]), ctx);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static bool used_tokens(tarn_tokens *tokens)
{
    int32_t ids[64];
    int64_t count = tokens ? tarn_tokens_count(tokens) : 0;
    if (tokens && !tarn_tokens_read(tokens, 0, count < 64 ? count : 64, ids)) {
        fuzz_must(tarn_error_code() == TARN_ERROR_FORMAT, "tokens are read, but for those outside the vocabulary");
        tarn_clear_error();
    }
    tarn_tokens_close(tokens);
    return tokens != NULL;
}

static bool take_shard(const void *from, size_t count)
{
    return used_tokens(tarn_tokens_open(fuzz_write("fuzz.bin", from, count), NULL));
}

static bool take_index(const void *from, size_t count)
{
    fuzz_write("tokens/index.json", from, count);
    return used_tokens(tarn_tokens_open(scratch("tokens"), "train"));
}

static void make_tokens(void)
{
    const char *input = write_text("text.txt", "some text to be bytes");
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    fuzz_must(tarn_shards_prepare(&input, 1, t, scratch("tokens"), NULL, NULL), "tokens are prepared");
    tarn_tokenizer_free(t);
}

static void shard_seeds(fuzz_seed_fn use, void *ctx)
{
    make_tokens();
    fuzz_seed_file("tokens/train-00000.bin", use, ctx);
    remove(scratch("tokens/index.json"));
}

static void index_seeds(fuzz_seed_fn use, void *ctx)
{
    make_tokens();
    fuzz_seed_file("tokens/index.json", use, ctx);
}

static bool take_lines(const void *from, size_t count)
{
    const char *path = fuzz_write("fuzz.jsonl", from, count);
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    bool taken = tarn_shards_prepare(&path, 1, t, scratch("prepared"), NULL,
                                     &(tarn_shards_options){.json_lines = true, .val_fraction = 0.3});
    remove(scratch("prepared/index.json"));
    tarn_tokenizer_free(t);
    return taken;
}

static void line_seeds(fuzz_seed_fn use, void *ctx)
{
    static const char lines[] = "{\"text\": \"one\\u00e9\", \"n\": [1, 2.5e3, null]}\n{\"text\": \"\\ud83d\\ude00 "
                                "two\"}\n\n{\"more\": {\"a\": true}, "
                                "\"text\": \"\"}\n";
    use(lines, sizeof(lines) - 1, ctx);
}

/* ---- tools ------------------------------------------------------------------------------------------------------- */

/* A list of functions, in which calls are searched, too, as in an answer. */
static bool take_tools(const void *from, size_t count)
{
    static const char tools[] = "[{\"name\": \"add\"}]";
    char *text = malloc(count + 1);
    tarn_tool_call call;
    fuzz_must(text != NULL, "there is memory");
    memcpy(text, from, count);
    text[count] = 0;
    for (size_t at = 0; tarn_chat_find_call(tools, text + at, count - at, &call); at += call.end)
        fuzz_must(call.begin < call.end && call.end <= count - at && call.arguments_length > 0,
                  "a call is in the answer");
    bool taken = tarn_chat_check_tools(text);
    if (taken)
        tarn_chat_find_call(text, text, count, &call);
    free(text);
    return taken;
}

static void tools_seeds(fuzz_seed_fn use, void *ctx)
{
    static const char *const seeds[] = {
        "[{\"type\": \"function\", \"function\": {\"name\": \"add\", \"parameters\": {\"x\": [1, -2.5e3, null]}}}]",
        "[{\"name\": \"add\", \"arguments\": {\"a\": \"\\u00e9\\\"}\"}}, {\"name\": \"look\"}]"};
    for (int i = 0; i < 2; i++)
        use(seeds[i], strlen(seeds[i]), ctx);
}

/* Conversations of any format, packed into rows. */
static bool take_conversations(const void *from, size_t count)
{
    tarn_tokenizer *t = tarn_tokenizer_open(scratch("talker"));
    int32_t row[4][512];
    tarn_chat_dataset *chats = tarn_chat_dataset_open(&(tarn_chat_dataset_options){
        .path = fuzz_write("fuzz.json", from, count), .tokenizer = t, .template_name = "mistral", .context = 512});
    bool taken = chats != NULL;
    fuzz_must(!taken || tarn_chat_dataset_batch(chats, TARN_CHAT_DATASET_TRAINING, 0, 1,
                                                &(tarn_chat_dataset_rows){row[0], row[1], row[2], row[3]}),
              "a row of good conversations is read");
    tarn_chat_dataset_close(chats);
    tarn_tokenizer_free(t);
    return taken;
}

static void conversation_seeds(fuzz_seed_fn use, void *ctx)
{
    static const char *const files[] = {
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"b\"}]}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
        "\"b\"}]}\n\n{\"question\": \"a\", \"answer\": \"b\"}\n{\"text\": \"a\"}\n",
        "[\n {\"instruction\": \"a]\\\"\", \"input\": \"b\", \"output\": \"c\", \"system\": \"d\",\n \"history\": "
        "[[\"e\", \"f\"]]}, {\"prompt\": \"\", \"completion\": \"g\"}]\n"};
    mkdir(scratch("talker"), 0777);
    write_text("talker/tokenizer.json", small_tokenizer_text());
    write_text("talker/tokenizer_config.json", "{\"bos_token\": \"<|endoftext|>\", \"eos_token\": \"<tag>\"}");
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        use(files[i], strlen(files[i]), ctx);
}

const fuzz_target fuzz_text_targets[] = {
    {"tokenizer", fuzz_has_bpe, tokenizer_seeds, take_tokenizer},
    {"tokenizer_model", NULL, model_seeds, take_model},
    {"tiktoken", fuzz_has_bpe, tiktoken_seeds, take_tiktoken},
    {"bert_vocabulary", fuzz_has_bpe, bert_seeds, take_bert},
    {"chat_template", fuzz_has_json, chat_seeds, take_chat},
    {"jinja", NULL, jinja_seeds, take_jinja},
    {"chat_tools", NULL, tools_seeds, take_tools},
    {"vocabulary", fuzz_has_bpe, vocabulary_seeds, take_vocabulary},
    {"shard", fuzz_has_json, shard_seeds, take_shard},
    {"shard_index", fuzz_has_json, index_seeds, take_index},
    {"json_lines", fuzz_has_json, line_seeds, take_lines},
    {"conversations", fuzz_has_bpe, conversation_seeds, take_conversations},
    {0},
};
