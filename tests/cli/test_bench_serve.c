/* test_bench_serve.c: `tarn bench serve`: the requests it counts as done on a real server, at a rate and in a closed
 * loop; and every failure of a server that breaks its answers, none of which is done. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/bench/histogram.c" /* the command is no library */
#include "support/check.h"
#include "support/command.h"
#include "support/files.h"
#include "tarn_features.h"

enum { NEW_TOKENS = 6 };

static bool has_command(void)
{
    return getenv("TARN_COMMAND") && TARN__HAVE_EVENT && TARN__HAVE_JANSSON;
}

/* A random Llama whose tokens are letters. */
static void write_model(void)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz .";
    tarn_tokenizer *tokenizer = tarn_tokenizer_characters(letters, strlen(letters));
    const tarn_llama_config config = {.vocab_size = tarn_tokenizer_count(tokenizer),
                                      .context = 128,
                                      .layers = 1,
                                      .heads = 2,
                                      .hidden_size = 16,
                                      .ffn_size = 32};
    tarn_module *model = tarn_model_llama(&config, tarn_device_cpu(), 3);
    assert_true(tarn_model_write(model, scratch("letters")));
    assert_true(tarn_tokenizer_save(tokenizer, scratch("letters")));
    tarn_module_free(model);
    tarn_tokenizer_free(tokenizer);
    assert_ok();
}

/* ---- a real server ----------------------------------------------------------------------------------------------- */

static void all_requests_of_a_closed_loop_are_done(void **state)
{
    (void)state;
    if (!has_command())
        skip();
    write_model();
    const char *line = command_line("bench serve %s --device cpu --clients 5 --requests 23 --prompt-tokens 40 "
                                    "--new-tokens 7 --json",
                                    scratch("letters"));
    expect_command(line, 0, "\"done\": 23, \"failed\": 0");
    assert_contains(command_output, "\"new_tokens\": 161, \"prompt_tokens\": 920");
    assert_contains(command_output, "\"first_token_ms\": {\"count\": 23");
    assert_contains(command_output, "\"between_tokens_ms\": {\"count\": 138");
    assert_contains(command_output, "\"max_open\": 5");
    assert_contains(command_output, "\"errors\": {}");
}

/* The same prompts as for a server, on an engine in the process. */
static void an_engine_alone_takes_the_same_load(void **state)
{
    (void)state;
    if (!has_command())
        skip();
    const char *line = command_line("bench serve %s --device cpu --engine --clients 5 --requests 23 --prompt-tokens 40 "
                                    "--new-tokens 7 --json",
                                    scratch("letters"));
    expect_command(line, 0, "\"url\": \"engine\"");
    assert_contains(command_output, "\"done\": 23, \"failed\": 0");
    assert_contains(command_output, "\"new_tokens\": 161, \"prompt_tokens\": 920");
    assert_contains(command_output, "\"first_token_ms\": {\"count\": 23");
    assert_contains(command_output, "\"between_tokens_ms\": {\"count\": 138");
    assert_contains(command_output, "\"max_open\": 5");
}

static void requests_arrive_at_the_rate(void **state)
{
    (void)state;
    if (!has_command())
        skip();
    const char *line = command_line("bench serve %s --device cpu --rate 200 --requests 100 --prompt-tokens 8 "
                                    "--new-tokens 2 --seed 4 --json",
                                    scratch("letters"));
    expect_command(line, 0, "\"done\": 100, \"failed\": 0");
    const char *found = strstr(command_output, "\"seconds\": ");
    assert_non_null(found);
    double seconds = atof(found + 11); /* 0.5 s by the mean of the gaps, which are drawn by the seed */
    assert_true(seconds > 0.3 && seconds < 20);
}

static void a_full_server_refuses_and_the_refused_are_not_done(void **state)
{
    (void)state;
    if (!has_command())
        skip();
    const char *line = command_line("bench serve %s --device cpu --clients 24 --requests 24 --prompt-tokens 8 "
                                    "--new-tokens 100 --sequences 1 --queue 1 2>&1",
                                    scratch("letters"));
    assert_int_equal(run_command(line), 0);
    int done = 0, failed = 0, refused = 0;
    const char *requests = strstr(command_output, "requests   "), *errors = strstr(command_output, "429: ");
    assert_non_null(requests);
    assert_non_null(errors);
    assert_int_equal(sscanf(requests, "requests %d done, %d failed", &done, &failed), 2);
    assert_int_equal(sscanf(errors, "429: %d", &refused), 1);
    assert_true(done >= 1 && refused >= 1);
    assert_int_equal(done + failed, 24);
    assert_int_equal(refused, failed);
}

/* ---- a server that breaks ---------------------------------------------------------------------------------------- */

static int listener;
static const char *const *answers; /* to completions, one after the other */

static void answer(int s)
{
    static const char props[] = "{\"model\":\"broken\",\"vocab_size\":10,\"context\":100}";
    char request[8192] = "", text[512];
    size_t count = 0;
    ssize_t part;
    while (count + 1 < sizeof(request) && !strstr(request, "include_usage") && !strstr(request, "GET /props") &&
           (part = recv(s, request + count, sizeof(request) - 1 - count, 0)) > 0)
        request[count += (size_t)part] = 0;
    if (strstr(request, "GET /props")) {
        snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
                 strlen(props), props);
        send(s, text, strlen(text), MSG_NOSIGNAL);
    } else if (*answers) {
        send(s, *answers, strlen(*answers), MSG_NOSIGNAL);
        answers++;
    }
    shutdown(s, SHUT_WR);
    while (recv(s, request, sizeof(request), 0) > 0)
        continue;
    close(s);
}

static void *accept_all(void *ctx)
{
    (void)ctx;
    for (int s; (s = accept(listener, NULL, NULL)) >= 0;)
        answer(s);
    return NULL;
}

/* Loads a server that gives these answers, by one client. */
static void expect_load(const char *const *given, int count, int status, const char *text)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof(at);
    pthread_t thread;
    answers = given;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(listener, 16), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &size), 0);
    assert_int_equal(pthread_create(&thread, NULL, accept_all, NULL), 0);
    int found = run_command(command_line("bench serve http://127.0.0.1:%d --requests %d --clients 1 --prompt-tokens 3 "
                                         "--new-tokens %d --json 2>&1",
                                         ntohs(at.sin_port), count, NEW_TOKENS));
    shutdown(listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(listener);
    assert_contains(command_output, text);
    assert_int_equal(found, status);
}

#define STREAM "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
#define TOKENS "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"text\":\"b\"}]}\n\n"
#define USAGE(n) "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":" #n "}}\n\n"
#define DONE "data: [DONE]\n\n"
#define CHUNKED "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"

static void a_broken_answer_is_never_done(void **state)
{
    static const char *const broken[] = {
        "",
        "HTTP/1.1 200 OK\r\nContent-Type: text/event",
        "HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\n{}",
        "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
        "SSH-2.0-OpenSSH_9.9\r\n",
        STREAM TOKENS,
        STREAM TOKENS USAGE(6),
        STREAM TOKENS USAGE(5) DONE,
        STREAM TOKENS DONE,
        STREAM TOKENS "data: {\"error\":{\"message\":\"x\"}}\n\n",
        CHUNKED "\r\n5\r\ndata:\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        NULL};
    (void)state;
    if (!has_command())
        skip();
    expect_load(broken, 12, 1,
                "\"errors\": {\"closed\": 2, \"500\": 1, \"503\": 1, \"not HTTP\": 2, \"no [DONE]\": 3, "
                "\"wrong token count\": 2, \"error event\": 1}");
    assert_contains(command_output, "\"done\": 0, \"failed\": 12");
    assert_contains(command_output, "\"first_token_ms\": {\"count\": 0");
    assert_contains(command_output, "no request was completed");
}

static void whole_answers_are_done_in_any_framing(void **state)
{
    static const char *const whole[] = {
        STREAM TOKENS USAGE(6) DONE,
        CHUNKED "Connection: close\r\n\r\n10\r\ndata: {\"choices\"\r\n15\r\n:[{\"text\":\"a\"}]}\n\ndat\r\n51\r\n"
                "a: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":6}}\n\ndata: [DONE]\r\n"
                "2\r\n\n\n\r\n0\r\n\r\n",
        "HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", NULL};
    (void)state;
    if (!has_command())
        skip();
    expect_load(whole, 3, 0, "\"done\": 2, \"failed\": 1");
    assert_contains(command_output, "\"first_token_ms\": {\"count\": 2");
    assert_contains(command_output, "\"errors\": {\"500\": 1}");
}

/* ---- percentiles and options ------------------------------------------------------------------------------------- */

static void percentiles_are_within_one_percent(void **state)
{
    static tarn__histogram h;
    (void)state;
    assert_true(tarn__histogram_percentile(&h, 0.5) != tarn__histogram_percentile(&h, 0.5));
    for (int i = 1; i <= 1000; i++)
        tarn__histogram_add(&h, i * 1e-3);
    assert_true(tarn__histogram_percentile(&h, 0.5) >= 0.5 && tarn__histogram_percentile(&h, 0.5) <= 0.505);
    assert_true(tarn__histogram_percentile(&h, 0.99) >= 0.99 && tarn__histogram_percentile(&h, 0.99) <= 1.0);
    assert_true(tarn__histogram_percentile(&h, 1) == 1.0 && h.max == 1.0 && h.count == 1000);
    tarn__histogram_add(&h, 1e9);
    tarn__histogram_add(&h, 0);
    assert_true(tarn__histogram_percentile(&h, 1) == 1e9);
}

static void options_that_have_no_meaning_are_refused(void **state)
{
    (void)state;
    if (!getenv("TARN_COMMAND"))
        skip();
    expect_command("bench serve 2>&1", 2, "a URL, a model folder or a .gguf file is missing");
    if (!has_command()) {
        expect_command("bench serve m 2>&1", 1, "this build has no HTTP client");
        return;
    }
    expect_command("bench serve http://127.0.0.1:1 2>&1", 1, "does not answer");
    expect_command("bench serve http://127.0.0.1:1/v1 2>&1", 1, "must be a URL such as");
    expect_command("bench serve http://:80 2>&1", 1, "must be a URL such as");
    expect_command("bench serve https://127.0.0.1 2>&1", 2, "TLS is not supported");
    expect_command("bench serve http://127.0.0.1:1 --sequences 4 2>&1", 2, "--sequences is for a MODEL");
    expect_command("bench serve m --clients 2 --rate 3 2>&1", 2, "--clients and --rate exclude each other");
    expect_command("bench serve m --requests 2 --seconds 3 2>&1", 2, "--requests and --seconds exclude each other");
    expect_command("bench serve m --engine --rate 3 2>&1", 2, "--engine and --rate exclude each other");
    expect_command("bench serve m --engine --queue 3 2>&1", 2, "--engine and --queue exclude each other");
    expect_command("bench serve http://127.0.0.1:1 --engine 2>&1", 2, "--engine needs a MODEL");
    expect_command("bench serve m --api-key-file k 2>&1", 2, "--api-key-file is for the server of a URL");
    expect_command("bench serve /no/such/model 2>&1", 1, "/no/such/model");
    const char *line =
        command_line("bench serve %s --device cpu --prompt-tokens 100 --new-tokens 29 2>&1", scratch("letters"));
    expect_command(line, 1, "exceed the server's context of 128");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(all_requests_of_a_closed_loop_are_done),
        cmocka_unit_test(an_engine_alone_takes_the_same_load),
        cmocka_unit_test(requests_arrive_at_the_rate),
        cmocka_unit_test(a_full_server_refuses_and_the_refused_are_not_done),
        cmocka_unit_test(a_broken_answer_is_never_done),
        cmocka_unit_test(whole_answers_are_done_in_any_framing),
        cmocka_unit_test(percentiles_are_within_one_percent),
        cmocka_unit_test(options_that_have_no_meaning_are_refused),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
