/* test_serve.c: `tarn serve` as a process: the tokens of `tarn generate`, chats, SIGTERM, and what it refuses. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/check.h"
#include "support/command.h"
#include "support/files.h"
#include "tarn_features.h"

static pid_t server;
static int port;
static FILE *said; /* what the server prints */

/* A random Llama whose tokens are letters, with a chat template. */
static void write_model(void)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ \n.";
    tarn_tokenizer *tokenizer = tarn_tokenizer_characters(letters, strlen(letters));
    assert_true(tarn_tokenizer_add_tokens(tokenizer, "<|im_start|>,<|im_end|>") == 2);
    assert_true(tarn_tokenizer_set_chat(tokenizer, "chatml"));
    const tarn_llama_config config = {.vocab_size = tarn_tokenizer_count(tokenizer),
                                      .context = 256,
                                      .layers = 2,
                                      .heads = 2,
                                      .hidden_size = 32,
                                      .ffn_size = 64};
    tarn_module *model = tarn_model_llama(&config, tarn_device_cpu(), 3);
    tarn_seed(5);
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        tarn_copy(p, tarn_add(tarn_detach(p), tarn_normal_like(p, 0, 0.2)));
    }
    assert_true(tarn_model_write(model, scratch("letters")));
    assert_true(tarn_tokenizer_save(tokenizer, scratch("letters")));
    tarn_module_free(model);
    tarn_tokenizer_free(tokenizer);
    assert_ok();
}

/* Starts the server on any free port, which its first line names, and waits for its second: the model is loaded. */
static void start_on(const char *device, const char *option)
{
    int pipes[2];
    char line[512] = "", ready[256], *colon;
    if (!getenv("TARN_COMMAND") || !TARN__HAVE_EVENT || !TARN__HAVE_JANSSON)
        skip();
    write_model();
    assert_int_equal(pipe(pipes), 0);
    server = fork();
    assert_true(server >= 0);
    if (server == 0) {
        dup2(pipes[1], 1);
        close(pipes[0]);
        execl(getenv("TARN_COMMAND"), "tarn", "serve", scratch("letters"), "--port", "0", "--device", device, option,
              (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    said = fdopen(pipes[0], "r");
    assert_non_null(fgets(line, sizeof(line), said));
    colon = strstr(line, "127.0.0.1:");
    assert_non_null(colon);
    port = atoi(colon + strlen("127.0.0.1:"));
    assert_non_null(fgets(line, sizeof(line), said));
    snprintf(ready, sizeof(ready), "ready: letters on %s, context of 256 tokens; Ctrl-C stops the server", device);
    assert_contains(line, ready);
    assert_non_null(fgets(line, sizeof(line), said));
    if (option && strstr(option, "--draft-model")) {
        assert_contains(line, "  draft model ");
        assert_non_null(fgets(line, sizeof(line), said));
    }
    assert_contains(line, "chat page: http://127.0.0.1:");
}

static void start(void)
{
    start_on("cpu", NULL);
}

static int clean_up(void **state)
{
    if (server > 0) { /* a test that failed has left it behind */
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
        server = 0;
    }
    return remove_scratch(state);
}

static int dial_for(const char *method, const char *path, const char *body)
{
    char request[2048];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(s, (struct sockaddr *)&to, sizeof(to)), 0);
    int length = snprintf(request, sizeof(request),
                          "%s %s HTTP/1.1\r\nHost: localhost:%d\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
                          method, path, port, strlen(body), body);
    assert_int_equal(send(s, request, (size_t)length, MSG_NOSIGNAL), length);
    return s;
}

static int dial(const char *path, const char *body)
{
    return dial_for("POST", path, body);
}

static const char *hear(int s)
{
    static char heard[1 << 18];
    size_t count = 0;
    ssize_t part;
    while (count + 1 < sizeof(heard) && (part = recv(s, heard + count, sizeof(heard) - 1 - count, 0)) > 0)
        count += (size_t)part;
    heard[count] = 0;
    close(s);
    return heard;
}

/* The member "text" of a JSON text, quotes included. The caller frees it. */
static char *text_of(const char *json)
{
    const char *found = strstr(json, "\"text\":");
    assert_non_null(found);
    found += 7 + strspn(found + 7, " ");
    const char *end = found + 1;
    while (*end && *end != '"')
        end += end[0] == '\\' ? 2 : 1;
    return strndup(found, (size_t)(end - found));
}

static void a_server_gives_the_tokens_of_generate(void **state)
{
    (void)state;
    static const char *const ways[][2] = {{"--temperature 0", "\"temperature\":0"},
                                          {"--temperature 0.9 --top-k 0 --seed 5", "\"temperature\":0.9,\"seed\":5"},
                                          {"--temperature 0.7 --top-k 8 --top-p 0.9 --seed 1",
                                           "\"temperature\":0.7,\"top_k\":8,\"top_p\":0.9,\"seed\":1"}};
    char body[512];
    start();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(run_command(command_line("generate %s Once --max-tokens 50 --json --device cpu %s",
                                                  scratch("letters"), ways[i][0])),
                         0);
        char *expected = text_of(command_output);
        snprintf(body, sizeof(body), "{\"prompt\":\"Once\",\"max_tokens\":50,%s}", ways[i][1]);
        char *text = text_of(hear(dial("/v1/completions", body)));
        assert_string_equal(text, expected);
        free(text), free(expected);
    }
    assert_contains(hear(dial("/v1/chat/completions",
                              "{\"model\":\"letters\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],"
                              "\"max_tokens\":9,\"ignore_eos\":true}")),
                    "\"completion_tokens\":9");
}

/* Writes line breaks as the server does. */
static void shorten_breaks(char *text)
{
    for (char *at; (at = strstr(text, "\\u000a"));) {
        memcpy(at, "\\n", 2);
        memmove(at + 2, at + 6, strlen(at + 6) + 1);
    }
}

/* Three sequences of a prompt of two pages: the answers of a request with n 3, and the prompt is computed once. */
static void several_sequences_are_those_of_a_request(void **state)
{
    (void)state;
    char prompt[140] = "", body[512], *expected[3], *line;
    if (server <= 0)
        skip();
    for (int i = 0; i < 130; i++)
        prompt[i] = (char)('a' + i * i % 26);
    assert_int_equal(
        run_command(command_line(
            "generate %s %s --n 3 --seed 5 --temperature 0.9 --top-k 0 --max-tokens 50 --json --device cpu",
            scratch("letters"), prompt)),
        0);
    line = command_output;
    for (int i = 0; i < 3; i++, line = strchr(line, '\n') + 1) {
        expected[i] = text_of(line);
        shorten_breaks(expected[i]);
        *strchr(line, '}') = 0;
        assert_contains(line, i == 0 ? "\"cached_tokens\": 0" : "\"cached_tokens\": 128");
        *strchr(line, 0) = '}';
    }
    snprintf(body, sizeof(body), "{\"prompt\":\"%s\",\"n\":3,\"max_tokens\":50,\"temperature\":0.9,\"seed\":5}",
             prompt);
    const char *heard = hear(dial("/v1/completions", body));
    for (int i = 0; i < 3; i++) {
        assert_true(strlen(expected[i]) > 20 && strcmp(expected[i], expected[(i + 1) % 3]) != 0);
        assert_contains(heard, expected[i]);
    }
    for (int i = 0; i < 3; i++)
        free(expected[i]);
}

static void sigterm_lets_a_stream_finish(void **state)
{
    int status;
    (void)state;
    if (server <= 0)
        skip();
    int s = dial("/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":200,\"stream\":true,\"ignore_eos\":true}");
    char first;
    assert_int_equal(recv(s, &first, 1, 0), 1); /* it has begun */
    kill(server, SIGTERM);
    const char *heard = hear(s);
    assert_contains(heard, "\"finish_reason\":\"length\"");
    assert_contains(heard, "data: [DONE]");
    assert_int_equal(waitpid(server, &status, 0), server);
    server = 0;
    fclose(said);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void check_speculation(const char *option)
{
    start_on("cpu", option);
    const char *prompt = "abcdabcdabcdabcdabcdabcd";
    assert_int_equal(run_command(command_line("generate %s %s --max-tokens 150 --temperature 0 --json --device cpu",
                                              scratch("letters"), prompt)),
                     0);
    char *expected = text_of(command_output), body[256];
    shorten_breaks(expected);
    snprintf(body, sizeof(body), "{\"prompt\":\"%s\",\"max_tokens\":150,\"temperature\":0}", prompt);
    for (int i = 0; i < 2; i++) { /* the second with times of steps from the first */
        const char *heard = hear(dial("/v1/completions", body));
        assert_contains(heard, "\"proposed_tokens\":");
        assert_null(strstr(heard, "\"proposed_tokens\":0,"));
        char *text = text_of(heard);
        assert_string_equal(text, expected);
        free(text);
    }
    free(expected);
    bool has_slot = false;
    for (int i = 0; i < 200 && !has_slot; i++) { /* a sequence that has not ended yet has the counters, too */
        int s = dial("/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":250,\"stream\":true,\"ignore_eos\":true}");
        char first;
        assert_int_equal(recv(s, &first, 1, 0), 1);
        const char *slots = hear(dial_for("GET", "/slots", ""));
        has_slot = strstr(slots, "\"proposed_tokens\":") && strstr(slots, "\"accepted_tokens\":");
        close(s);
    }
    assert_true(has_slot);
    const char *metrics = hear(dial_for("GET", "/metrics", ""));
    assert_contains(metrics, "# TYPE tarn_accepted_tokens_total counter");
    assert_contains(metrics, "\ntarn_proposed_tokens_total ");
    assert_null(strstr(metrics, "\ntarn_proposed_tokens_total 0\n"));
    kill(server, SIGTERM);
    assert_int_equal(waitpid(server, NULL, 0), server);
    server = 0;
    fclose(said);
}

static void speculation_changes_no_token(void **state)
{
    (void)state;
    char option[1024];
    check_speculation("--speculate=ngram");
    snprintf(option, sizeof(option), "--draft-model=%s", scratch("letters")); /* the model itself */
    check_speculation(option);
}

/* One of the two layers on the mirror device, the other one on the CPU: the text of the CPU alone. */
static void offloaded_layers_change_no_token(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    start_on("mirror:0", "--gpu-layers=1");
    assert_int_equal(run_command(command_line("generate %s abc --max-tokens 100 --temperature 0 --json --device cpu",
                                              scratch("letters"))),
                     0);
    char *expected = text_of(command_output);
    shorten_breaks(expected);
    char *text = text_of(hear(dial("/v1/completions", "{\"prompt\":\"abc\",\"max_tokens\":100,\"temperature\":0}")));
    assert_string_equal(text, expected);
    free(text), free(expected);
    kill(server, SIGTERM);
    assert_int_equal(waitpid(server, NULL, 0), server);
    server = 0;
    fclose(said);
}

static void what_cannot_be_served_is_refused(void **state)
{
    (void)state;
    if (!getenv("TARN_COMMAND"))
        skip();
    expect_command("serve 2>&1", 2, "a model folder or .gguf file is missing");
    if (!TARN__HAVE_EVENT || !TARN__HAVE_JANSSON) {
        expect_command("serve /no/such/model 2>&1", 1, "this build has no HTTP server");
        return;
    }
    expect_command("serve /no/such/model --port 0 2>&1", 1, "/no/such/model");
    expect_command("serve m --host 0.0.0.0 2>&1", 2, "needs --api-key-file");
    expect_command("serve m --host :: 2>&1", 2, "needs --api-key-file");
    expect_command("serve m --host localhost 2>&1", 2, "numeric IPv4 or IPv6 address");
    expect_command("serve m --port 65536 2>&1", 2, "--port");
    expect_command("serve m --origin example.org 2>&1", 2, "a scheme and a host");
    expect_command("serve m --kv-type q3 2>&1", 2, "--kv-type");
    expect_command(command_line("serve %s --api-key-file /no/such/keys 2>&1", scratch("letters")), 1, "--api-key-file");
    expect_command("serve m --json 2>&1", 2, "--json");
    expect_command("serve m --gpu-layers 2 --device cpu 2>&1", 2, "--gpu-layers needs a GPU, and the device is cpu");
    expect_command("serve m --speculate lookup 2>&1", 2, "--speculate: 'lookup' must be off, ngram or draft");
    expect_command("serve m --speculate draft 2>&1", 2, "--speculate draft needs --draft-model");
    expect_command("serve m --draft-tokens 3 --speculate off 2>&1", 2, "--draft-tokens needs --speculate ngram");
    expect_command("serve m n --draft-model d 2>&1", 2, "--draft-model d belongs to one model, and several are given");
    expect_command(command_line("serve %s --draft-model /no/such/draft 2>&1", scratch("letters")), 1, "/no/such/draft");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_server_gives_the_tokens_of_generate), cmocka_unit_test(several_sequences_are_those_of_a_request),
        cmocka_unit_test(sigterm_lets_a_stream_finish),  in_scope(speculation_changes_no_token),
        in_scope(offloaded_layers_change_no_token),      cmocka_unit_test(what_cannot_be_served_is_refused),
    };
    return cmocka_run_group_tests(tests, make_scratch, clean_up);
}
