/* test_chat.c: `tarn chat` through a pipe, end to end. TARN_COMMAND names the binary. */
#include "support/command.h"
#include "support/files.h"
#include "support/small_tokenizer.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()
#define TEMPLATE \
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + " \
    "'\\n'}}{% endfor %}" \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
enum { VOCAB = 265, END = 264, PERIOD = 12, CONTEXT = 240 };

/* A model that depends on positions only: it repeats 'a' to 'k' followed by the end-of-turn token. */
static void write_model_that_ends(const char *template, bool ends)
{
    const tarn_gpt2_config config = {
        .vocab_size = VOCAB, .context = CONTEXT, .layers = 1, .heads = 1, .hidden_size = VOCAB, .ffn_size = 1};
    tarn_module *model = tarn_model_gpt2(&config, CPU, 1);
    for (int i = 0; i < tarn_module_parameter_count(model); i++)
        tarn_fill_inplace(tarn_requires_grad(tarn_module_parameter(model, i), false), 0);
    tarn_fill_inplace(tarn_module_find(model, "transformer.ln_f.weight"), 1);
    tarn_copy(tarn_module_find(model, "transformer.wte.weight"), tarn_eye(VOCAB, VOCAB, TARN_F32, CPU));
    for (int i = 0; i < CONTEXT; i++) {
        int token = i % PERIOD == PERIOD - 1 && ends ? END : 'a' + i % PERIOD;
        tarn_tensor *place = tarn_slice(tarn_module_find(model, "transformer.wpe.weight"), 0, i, i + 1);
        tarn_fill_inplace(tarn_slice(place, 1, token, token + 1), 50);
    }
    assert_true(tarn_model_write(model, scratch("model")));
    tarn_module_free(model);
    char *text = replaced(small_tokenizer_text(), "{\"added_tokens\": [",
                          "{\"added_tokens\": [{\"id\": 263, \"content\": \"<|im_start|>\", \"special\": true}, "
                          "{\"id\": 264, \"content\": "
                          "\"<|im_end|>\", \"special\": true}, ");
    write_text("model/tokenizer.json", text);
    free(text);
    write_text("model/tokenizer_config.json", "{\"bos_token\": \"<|endoftext|>\", \"eos_token\": \"<|im_end|>\"}");
    if (template)
        write_text("model/chat_template.jinja", template);
    else
        remove(scratch("model/chat_template.jinja"));
}

static void write_model(const char *template)
{
    write_model_that_ends(template, true);
}

/* Pipes lines to the command; returns its output, with 2>&1 also standard error. */
static int chat(const char *lines, const char *more)
{
    char command[1024];
    write_text("lines.txt", lines);
    snprintf(command, sizeof(command), "chat %s --device cpu --temperature 0 %s < %s", scratch("model"), more,
             scratch("lines.txt"));
    return run_command(command);
}

/* The n-th line of the output, without its end. */
static const char *line_of(int n, char *to)
{
    const char *at = command_output;
    for (; n > 0 && (at = strchr(at, '\n')) != NULL; n--)
        at++;
    assert_non_null(at);
    size_t length = strcspn(at, "\n");
    assert_true(length < 64);
    memcpy(to, at, length);
    to[length] = 0;
    return to;
}

/* Consecutive letters up to k: the answer starts at the position where the question ended. */
static void assert_answer(const char *line)
{
    size_t length = strlen(line);
    assert_true(length > 0 && length < PERIOD && line[length - 1] == 'k');
    for (size_t i = 1; i < length; i++)
        assert_int_equal(line[i], line[i - 1] + 1);
}

static void questions_are_answered_and_history_counts(void **state)
{
    (void)state;
    char first[64], second[64], third[64], fourth[64];
    write_model(TEMPLATE);
    assert_int_equal(chat("hi\n\nhow are you?\n/reset\nhi\n/system Be brief.\nhi\n/exit\nnot this\n", ""), 0);
    assert_answer(line_of(0, first));
    assert_answer(line_of(1, second));
    assert_answer(line_of(2, third));
    assert_answer(line_of(3, fourth));
    assert_string_equal(first, third);      /* as in a new conversation */
    assert_string_not_equal(first, fourth); /* the system message shifts the positions */
    assert_string_equal(line_of(4, third), "");
    char with_system[64];
    assert_int_equal(chat("hi\n", "--system 'Be brief.' --kv-type q8_0 --prefill-chunk 3"), 0);
    assert_string_equal(line_of(0, with_system), fourth);
}

static void chat_loads_an_adapter_and_its_template(void **state)
{
    (void)state;
    char without[64], with[64], more[600];
    write_model(TEMPLATE);
    assert_int_equal(chat("hi\n", ""), 0);
    line_of(0, without);
    tarn_module *model = tarn_model_open(scratch("model"), CPU, NULL);
    assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 2}) &&
                tarn_lora_save(model, scratch("adapter"), NULL));
    tarn_module_free(model);
    snprintf(more, sizeof(more), "--adapter %s",
             scratch("adapter")); /* new adapters: B is zero, so they change nothing */
    assert_int_equal(chat("hi\n", more), 0);
    assert_string_equal(line_of(0, with), without);
    write_model(NULL); /* the template is stored with the adapters */
    char *tokenizer = get_file(scratch("model/tokenizer.json"), &(size_t){0});
    write_text("adapter/tokenizer.json", tokenizer);
    write_text("adapter/tokenizer_config.json", "{\"bos_token\": \"<|endoftext|>\", \"eos_token\": \"<|im_end|>\"}");
    write_text("adapter/chat_template.jinja", TEMPLATE);
    free(tokenizer);
    assert_int_equal(chat("hi\n", more), 0);
    assert_string_equal(line_of(0, with), without);
}

/* A message with the text of a special token stays text: the conversation continues. */
static void words_are_words(void **state)
{
    (void)state;
    char answer[64];
    write_model(TEMPLATE);
    assert_int_equal(chat("<|im_end|>\nagain", ""), 0);
    assert_answer(line_of(0, answer));
    assert_answer(line_of(1, answer));
    assert_int_equal(chat("hello\n", "--max-tokens 1"), 0);
    assert_int_equal(strlen(line_of(0, answer)), 1);
}

/* A command that cannot be used is reported, changes nothing, and sets the status of a pipe. */
static void commands_change_the_conversation(void **state)
{
    (void)state;
    char first[64], second[64], third[64], lines[2048];
    write_model(TEMPLATE);
    assert_int_equal(chat("/nothing\nhello\n", "2>&1"), 1);
    assert_contains(command_output, "tarn chat: /nothing: unknown command; /help lists them");
    assert_int_equal(chat("/retyr\n/exit now\n/retry\n/edit\n", "2>&1"), 1);
    assert_contains(command_output, "/retyr: unknown command; did you mean /retry?");
    assert_contains(command_output, "/exit takes no argument: 'now'");
    assert_contains(command_output, "/retry: there is no question yet");
    assert_contains(command_output, "/edit: there is no question yet");
    assert_int_equal(chat("/help\n", "2>&1"), 0);
    assert_contains(command_output, "/set [NAME VALUE]    show or change sampling settings");

    assert_int_equal(chat("hi\n/retry\n/edit hi there\n/reset\nhi there\n", ""), 0);
    assert_string_equal(line_of(0, first), line_of(1, second));
    assert_string_equal(line_of(2, second), line_of(3, third));
    assert_string_not_equal(first, second);

    assert_int_equal(chat("one\\\ntwo\n\"\"\"\n/exit\n\n\"\"\"\n/reset\nlast\n", ""), 0);
    line_of(2, third);
    assert_answer(third);
    assert_int_equal(chat("\"\"\"\nhi\n", "2>&1"), 1);
    assert_contains(command_output, "does not end with \"\"\"; it was skipped");

    snprintf(lines, sizeof(lines), "/save\nhi\n/save %s\nmore\n/save\n/reset\nhi\n/load %s\nagain\n", scratch("a.json"),
             scratch("a.json"));
    assert_int_equal(chat(lines, "2>&1"), 1); /* the first /save has no name */
    assert_contains(command_output, "/save: needs a file name");
    assert_contains(command_output, "(4 messages saved to ");
    assert_contains(command_output, "(4 messages loaded from ");
    snprintf(lines, sizeof(lines), "hi\n/save %s\n/load %s\nagain\n", scratch("a.json"), scratch("model/config.json"));
    assert_int_equal(chat(lines, "2>&1"), 1);
    assert_contains(command_output, "File exists; choose another name");
    assert_contains(command_output, "is not a conversation: it has no messages; expected {\"messages\": [...]}");
}

/* Settings are options: names, bounds and messages are theirs. */
static void settings_hold_for_the_next_answer(void **state)
{
    (void)state;
    char answer[64];
    write_model(TEMPLATE);
    assert_int_equal(chat("hi\n/set max-tokens 1\n/reset\nhi\n/set max_tokens=2\n/reset\nhi\n", ""), 0);
    assert_answer(line_of(0, answer));
    assert_int_equal(strlen(line_of(1, answer)), 1);
    assert_int_equal(strlen(line_of(2, answer)), 2);
    assert_int_equal(chat("/set\n/set top-k 7\n/set top-k\n", "2>&1"), 0);
    assert_contains(command_output, "  temperature       0\n");
    assert_contains(command_output, "  top-k             40\n");
    assert_contains(command_output, "  top-k             7\n");
    assert_int_equal(chat("/set tempreature 1\n/set top-p 2\n/set repeat-last-n 5\n/set context 5\n", "2>&1"), 1);
    assert_contains(command_output, "/set: unknown setting 'tempreature'; did you mean temperature?");
    assert_contains(command_output, "--top-p");
    assert_contains(command_output, "/set: repeat-last-n needs a repeat-penalty other than 1");
    assert_contains(command_output, "/set: unknown setting 'context'");
}

static void a_full_context_is_said(void **state)
{
    (void)state;
    write_model(TEMPLATE);
    const char *lines = "one one one one\ntwo two two two\nthree three three\nfour four four\nfive five five\n";
    assert_int_equal(chat(lines, "--context 90 --on-full refuse 2>&1"), 1);
    assert_contains(command_output, "and the context is 90: no capacity left for an answer; the question was skipped");
    assert_int_equal(chat(lines, "--context 90 --no-slide 2>&1"), 1);
    assert_contains(command_output, "and the context is 90: no capacity left for an answer; the question was skipped");
    assert_int_equal(chat(lines, "--context 90 2>&1"), 0);
    assert_contains(command_output, "(the context of 90 tokens was full: the oldest");
    assert_int_equal(chat(lines, "--context 90 --on-full forget 2>&1"), 0);
    assert_contains(command_output, "(the context of 90 tokens was full: the oldest");
    assert_int_equal(chat("a question that is far too long for a context of so very few tokens as there are here\n",
                          "--context 60 --on-full forget 2>&1"),
                     1);
    assert_contains(command_output, "the question alone takes");
    assert_contains(command_output, "no capacity left for an answer; the question was skipped. Ask a shorter one");
}

/* An answer that does not end slides the context; the system message stays in it. */
static void an_answer_slides_past_the_context(void **state)
{
    (void)state;
    write_model_that_ends(TEMPLATE, false);
    assert_int_equal(chat("hi\n", "--context 60 --max-tokens 150"), 0);
    assert_int_equal(strlen(command_output), 151);
    assert_int_equal(chat("hi\n", "--context 60 --max-tokens 150 2>&1"), 0);
    assert_contains(command_output, "(the context of 60 tokens was full: the answer continues from its last 30)");
    assert_int_equal(chat("hi\n", "--context 60 --max-tokens 150 --system ab 2>&1"), 0);
    assert_contains(command_output, "its last 30 and the system message)");
    assert_int_equal(chat("hi\n", "--context 60 2>&1"), 0);
    assert_contains(command_output, "(the answer ends at 60 tokens; --max-tokens allows more)");
    assert_int_equal(chat("hi\n", "--context 60 --no-slide 2>&1"), 0);
    assert_contains(command_output, "(the context of 60 tokens is full: the answer ends here)");
    assert_int_equal(chat("", "--no-slide --on-full forget 2>&1"), 2);
    assert_contains(command_output, "exclude each other");
}

static void a_template_is_given_by_name(void **state)
{
    (void)state;
    char own[64], given[64], data[600], command[2048];
    write_model(TEMPLATE);
    assert_int_equal(chat("hi\n", ""), 0);
    line_of(0, own);
    write_model(NULL);
    assert_int_equal(chat("hi\n", "--template chatml"), 0);
    assert_string_equal(line_of(0, given), own);
    assert_int_equal(chat("hi\n", "--template nothing 2>&1"), 2);
    assert_contains(command_output, "template 'nothing' not found");

    snprintf(data, sizeof(data), "%s",
             write_text("asked.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": "
                                       "\"assistant\", \"content\": \"abc\"}]}\n"));
    snprintf(command, sizeof(command), "eval %s --device cpu --data %s 2>&1", scratch("model"), data);
    expect_command(command, 1, "need a chat template, and the model has none; choose one with --template");
    snprintf(command, sizeof(command), "eval %s --device cpu --data %s --template chatml", scratch("model"), data);
    expect_command(command, 0, "over 4 tokens"); /* a, b, c and the end */
    if (tarn_device_count("mirror") > 1) {
        char alone[256];
        snprintf(alone, sizeof(alone), "%s", command_output);
        snprintf(command, sizeof(command),
                 "eval %s --device cpu,mirror:0 --tensor-split 1,1 --data %s --template chatml", scratch("model"),
                 data);
        expect_command(command, 0, "over 4 tokens");
        assert_string_equal(command_output, alone);
    }
    snprintf(command, sizeof(command), "eval %s --device cpu --data %s --template nothing 2>&1", scratch("model"),
             data);
    expect_command(command, 2, "'nothing' must be one of chatml");
    snprintf(command, sizeof(command), "eval %s --device cpu --data text:%s --template chatml 2>&1", scratch("model"),
             data);
    expect_command(command, 2, "template applies to chats (FILE.jsonl) only; the data is 'text:");
}

static void a_question_with_a_zero_byte_is_left_out(void **state)
{
    (void)state;
    char command[2048], answer[64];
    write_model(TEMPLATE);
    snprintf(
        command, sizeof(command),
        "version > /dev/null; printf 'a\\000b\\nhi\\n' | \"$TARN_COMMAND\" chat %s --device cpu --temperature 0 2>&1",
        scratch("model"));
    expect_command(command, 1, "the message has a zero byte and was skipped\n");
    assert_answer(line_of(1, answer));
}

static void an_interrupt_ends_an_answer_not_the_program(void **state)
{
    (void)state;
    char command[2048];
    write_model(TEMPLATE);
    if (!getenv("TARN_COMMAND"))
        skip();
    snprintf(command, sizeof(command),
             "version > /dev/null; (sleep 0.5; echo hi; sleep 0.5; echo hi) | \"$TARN_COMMAND\" chat %s --device cpu "
             "--temperature 0 & pid=$!; sleep 0.8; "
             "kill -INT $pid; wait $pid; echo status $?",
             scratch("model"));
    assert_int_equal(run_command(command), 0);
    assert_contains(command_output, "k\n");
    assert_contains(command_output, "status 0\n");
}

/* The answers, not the whole conversation. */
static void every_answer_follows_the_grammar(void **state)
{
    (void)state;
    char line[64];
    write_model(TEMPLATE);
    assert_int_equal(chat("hi\nhow are you?\n", "--regex '[a-k]{2}!'"), 0);
    for (int i = 0; i < 2; i++) {
        line_of(i, line);
        assert_true(strlen(line) == 3 && line[0] >= 'a' && line[1] <= 'k' && line[2] == '!');
    }
    assert_int_equal(chat("hi\n", "--regex a --json-object 2>&1"), 2);
    assert_contains(command_output, "more than one grammar");
    assert_int_equal(chat("hi\n", "--grammar /nonexistent 2>&1"), 1);
}

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    write_model(TEMPLATE);
    expect_command("chat 2>&1", 2, "a model folder or .gguf file is missing");
    expect_command("chat /nonexistent 2>&1", 1, "/nonexistent");
    expect_command("chat --help", 0, "usage: tarn chat MODEL");
    assert_int_equal(chat("", "--on-full explode 2>&1"), 2);
    assert_contains(command_output, "'explode' must be refuse or forget");
    assert_int_equal(chat("", "--kv-type f64 2>&1"), 2);
    assert_int_equal(chat("", "--context 1000 2>&1"), 2);
    assert_contains(command_output, "it must be from 1 to the model's 240");
    assert_int_equal(chat("", "--json 2>&1"), 2);
    write_model(NULL);
    assert_int_equal(chat("hi\n", "2>&1"), 1);
    assert_contains(command_output, "the model has no chat template");
    assert_contains(command_output, "--template sets one");
    write_model("{{ raise_exception('no ' + messages[0].content) }}");
    assert_int_equal(chat("hi\n", "2>&1"), 1);
    assert_contains(command_output, "the template says: no hi");
    write_model("{% if %}");
    assert_int_equal(chat("hi\n", "2>&1"), 1);
    assert_contains(command_output, "chat template, line 1");
}

/* ---- tools ------------------------------------------------------------------------------------------------------- */

#define TOOLS "[{\"type\": \"function\", \"function\": {\"name\": \"add\", \"parameters\": {}}}]"
#define LONG "forty two, which is longer than the call that it answers" /* positions must not overlap */
#define WITH_TOOLS \
    "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}" \
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}" \
    "{% for c in m.tool_calls or [] %}!{{ c.id }}{{ c.function.arguments.x }}{% endfor %}" \
    "{% if m.tool_call_id is defined %}={{ m.name }}{{ m.tool_call_id }}{% endif %}<|im_end|>{% endfor %}" \
    "{% if add_generation_prompt %}>{% endif %}"

/* Ids of a conversation with the tools. */
static int64_t count_tokens(const char *messages)
{
    int64_t count = 0;
    tarn_tokenizer *t = tarn_tokenizer_open(scratch("model"));
    const tarn_chat_options options = {.add_generation_prompt = true, .tools = TOOLS};
    tarn_tokenizer_release(tarn_chat_encode_json(t, messages, strlen(messages), &options, NULL, &count));
    assert_ok();
    tarn_tokenizer_free(t);
    return count;
}

/* Makes the model say a text at a position. */
static void teach(tarn_module *model, int64_t position, const char *text)
{
    tarn_tensor *rows = tarn_module_find(model, "transformer.wpe.weight");
    for (size_t i = 0; i <= strlen(text); i++) {
        int token = text[i] ? text[i] : END;
        tarn_tensor *row = tarn_slice(rows, 0, position + (int64_t)i, position + (int64_t)i + 1);
        tarn_fill_inplace(row, 0);
        tarn_fill_inplace(tarn_slice(row, 1, token, token + 1), 50);
    }
}

/* The call is shown, its result goes to the template with name and id, and the model continues. */
static void tools_are_called_and_answered(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    char more[600], answer[64];
    write_model(WITH_TOOLS);
    int64_t first = count_tokens("[{\"role\": \"user\", \"content\": \"hi\"}]"),
            second = count_tokens(
                "[{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \"So\", "
                "\"tool_calls\": [{\"id\": \"call00000\", \"type\": \"function\", \"function\": "
                "{\"name\": \"add\", \"arguments\": {\"x\": 7}}}]}, {\"role\": \"tool\", \"name\": "
                "\"add\", \"tool_call_id\": \"call00000\", \"content\": \"" LONG "\"}]");
    tarn_module *model = tarn_model_open(scratch("model"), CPU, NULL);
    tarn_no_grad_open();
    teach(model, first - 1, "So <tool>{\"name\":\"add\",\"arguments\":{\"x\":7}}</tool>");
    teach(model, second - 1, "done");
    tarn_no_grad_close();
    assert_true(tarn_model_write(model, scratch("model")));
    tarn_module_free(model);
    write_text("tools.json", TOOLS);
    snprintf(more, sizeof(more), "--tools %s 2>%s", scratch("tools.json"), scratch("notes.txt"));
    assert_int_equal(chat("hi\n/tool " LONG "\n", more), 0);
    assert_contains(command_output, "So <tool>{\"name\":\"add\",\"arguments\":{\"x\":7}}</tool>\n");
    assert_string_equal(line_of(1, answer), "done");
    char *notes = get_file(scratch("notes.txt"), &(size_t){0});
    assert_contains(notes, "(tool call: add {\"x\":7})");
    assert_contains(notes, "(/tool RESULT answers the call)");
    free(notes);
    assert_int_equal(chat("/tool 4\n", "2>&1"), 1);
    assert_contains(command_output, "/tool: no tools were given; use --tools FILE");
}

static void bad_tools_are_named(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    static const char *const wrong[][2] = {{"{}", "tools must be a JSON array of functions"},
                                           {"[", "tools"},
                                           {"[]", "tools is an empty array"},
                                           {"[{\"name\": \"f\"}, 5]", "element 2 of tools is not a function"},
                                           {"[{\"type\": \"function\", \"function\": {}}]", "element 1 of tools"},
                                           {"", "tools"}};
    char more[600];
    write_model(TEMPLATE);
    snprintf(more, sizeof(more), "--tools %s 2>&1", scratch("bad.json"));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        write_text("bad.json", wrong[i][0]);
        assert_int_equal(chat("hi\n", more), 1);
        assert_contains(command_output, "tarn chat: --tools '");
        assert_contains(command_output, wrong[i][1]);
        assert_null(strchr(strchr(command_output, '\n') + 1, '\n')); /* one line */
    }
    assert_int_equal(chat("hi\n", "--tools /no/such/file 2>&1"), 1);
    assert_contains(command_output, "/no/such/file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(questions_are_answered_and_history_counts),
        in_scope(chat_loads_an_adapter_and_its_template),
        in_scope(words_are_words),
        in_scope(commands_change_the_conversation),
        in_scope(settings_hold_for_the_next_answer),
        in_scope(a_full_context_is_said),
        in_scope(an_answer_slides_past_the_context),
        in_scope(a_template_is_given_by_name),
        in_scope(a_question_with_a_zero_byte_is_left_out),
        in_scope(an_interrupt_ends_an_answer_not_the_program),
        in_scope(every_answer_follows_the_grammar),
        in_scope(wrong_calls_are_refused),
        in_scope(tools_are_called_and_answered),
        in_scope(bad_tools_are_named),
    };
    return TARN__HAVE_JANSSON && TARN__HAVE_PCRE2 ? cmocka_run_group_tests(tests, make_scratch, remove_scratch) : 0;
}
