/* test_models.c: several models of a server: their names on every route, the change by drain and swap, requests
 * meanwhile, models that cannot be loaded, keys and metrics. */
#include "tarn_features.h"

#include "support/check.h"

#if TARN__HAVE_EVENT && TARN__HAVE_JANSSON

#include "serve/api_server.h"
#include "support/files.h"

static const char *const model_names[] = {"first", "org/the second", "broken"};
static atomic_bool first_is_gone;

/* The models differ in their context; the third has none, and the first one may be lost. */
static bool load_one(int index, tarn_module **model, tarn_tokenizer **tokenizer, tarn_engine_options *engine,
                     char *error, size_t error_size, void *ctx)
{
    if (index == 2 || (index == 0 && first_is_gone)) {
        snprintf(error, error_size, "there is no model '%s'", model_names[index]);
        return false;
    }
    engine->context = index == 0 ? 256 : 128;
    return load(index, model, tokenizer, engine, error, error_size, ctx);
}

static void count_loaded(const tarn__api_model *model, void *ctx)
{
    (void)model;
    ++*(atomic_int *)ctx;
}

static void begin_models(tarn__api_options options)
{
    options.names = model_names;
    options.name_count = 3;
    options.load = load_one;
    options.drain_seconds = options.drain_seconds ? options.drain_seconds : 20;
    begin(options);
}

static json_t *load_model(const char *name, int status)
{
    char body[128];
    snprintf(body, sizeof(body), "{\"model\":\"%s\"}", name);
    return post("/admin/load", body, status);
}

/* The names of /v1/models that are loaded, joined. */
static const char *loaded_names(void)
{
    static char names[256];
    json_t *root = body_of(ask("GET", "/v1/models", "", ""), 200), *entry;
    size_t i, length = 0;
    names[0] = 0;
    assert_int_equal(json_array_size(json_object_get(root, "data")), 3);
    json_array_foreach(json_object_get(root, "data"), i, entry)
    {
        assert_string_equal(member(entry, "id"), model_names[i]);
        bool is_loaded = json_is_true(json_object_get(entry, "loaded"));
        assert_int_equal(json_object_get(entry, "max_model_len") != NULL, is_loaded);
        if (is_loaded)
            length += (size_t)snprintf(names + length, sizeof(names) - length, "%s;", member(entry, "id"));
    }
    json_decref(root);
    return names;
}

static void the_model_is_changed(void **state)
{
    (void)state;
    atomic_int loads = 0;
    begin_models((tarn__api_options){.loaded = count_loaded, .ctx = &loads});
    assert_string_equal(loaded_names(), "first;");
    json_decref(post("/v1/completions", "{\"model\":\"first\",\"prompt\":\"Once\",\"max_tokens\":5}", 200));
    expect_error("/v1/completions", "{\"model\":\"org/the second\",\"prompt\":\"Once\"}", 409, "model",
                 "'org/the second' is not loaded, 'first' is");
    expect_error("/v1/completions", "{\"model\":\"third\",\"prompt\":\"Once\"}", 404, "model", "does not exist");
    json_t *root = load_model("org/the second", 200);
    assert_string_equal(member(root, "id"), "org/the second");
    assert_int_equal(json_integer_value(json_object_get(root, "max_model_len")), 128);
    json_decref(root);
    assert_string_equal(loaded_names(), "org/the second;");
    expect_error("/v1/completions", "{\"model\":\"first\",\"prompt\":\"Once\"}", 409, "model", "'first' is not loaded");
    json_decref(post("/v1/completions", "{\"model\":\"org/the second\",\"prompt\":\"Once\",\"max_tokens\":6}", 200));
    json_decref(post("/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":7,\"logprobs\":2}", 200));
    json_decref(post("/v1/embeddings", "{\"input\":\"Once\"}", 200));
    assert_int_equal(metric("model_loads_total"), 2);
    assert_int_equal(metric("new_tokens_total"), 5 + 6 + 7); /* never less than before */
    json_decref(load_model("org/the second", 200));          /* it is loaded */
    json_decref(load_model("first", 200));
    assert_int_equal(metric("new_tokens_total"), 5 + 6 + 7);
    assert_int_equal(metric("model_loads_total"), 3);
    json_decref(post("/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":7,\"logprobs\":2}", 200));
    assert_int_equal(loads, 3);
    end(1);
}

static void all_models_have_their_names(void **state)
{
    (void)state;
    begin_models((tarn__api_options){0});
    json_t *root = body_of(ask("GET", "/v1/models/org%2fthe%20second", "", ""), 200);
    assert_string_equal(member(root, "id"), "org/the second");
    assert_true(json_is_false(json_object_get(root, "loaded")));
    json_decref(root);
    json_decref(body_of(ask("GET", "/v1/models/org/the%20second", "", ""), 200));
    assert_contains(ask("GET", "/v1/models/fourth", "", ""), "404 Not Found");
    assert_contains(ask("GET", "/v1/models/first%", "", ""), "404 Not Found");
    root = body_of(ask("GET", "/props", "", ""), 200);
    assert_string_equal(member(root, "model"), "first");
    assert_int_equal(json_array_size(json_object_get(root, "models")), 3);
    json_decref(root);
    root = body_of(ask("GET", "/api/tags", "", ""), 200);
    assert_int_equal(json_array_size(json_object_get(root, "models")), 3);
    json_decref(root);
    root = body_of(ask("GET", "/api/ps", "", ""), 200);
    assert_int_equal(json_array_size(json_object_get(root, "models")), 1);
    json_decref(root);
    root =
        post("/api/chat", "{\"model\":\"org/the second\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", 409);
    assert_contains(member(root, "error"), "is not loaded");
    json_decref(root);
    end(1);
}

static void wrong_requests_change_nothing(void **state)
{
    (void)state;
    begin_models((tarn__api_options){0});
    expect_error("/admin/load", "{}", 400, "model", "model is missing");
    expect_error("/admin/load", "{\"model\":7}", 400, "model", "must be a string");
    expect_error("/admin/load", "{\"model\":\"first\",\"force\":true}", 400, "force", "unknown field");
    expect_error("/admin/load", "{\"model\":\"/etc/passwd\"}", 404, "model", "GET /v1/models lists all");
    expect_error("/admin/load", "{\"model\":\"broken\"}", 500, "model", "there is no model 'broken'");
    assert_contains(ask("GET", "/admin/load", "", ""), "405 Method Not Allowed");
    assert_contains(ask("POST", "/admin/load", "Content-Type: text/plain\r\n", "{\"model\":\"first\"}"), "415 ");
    assert_string_equal(loaded_names(), "first;"); /* again, after the broken one */
    json_decref(post("/v1/completions", "{\"model\":\"first\",\"prompt\":\"Once\",\"max_tokens\":5}", 200));
    end(1);
}

/* A stream that goes on for `tokens`; returns once it has begun. */
static int begin_stream(int tokens)
{
    char body[128];
    int s = dial();
    snprintf(body, sizeof(body), "{\"prompt\":\"Once\",\"stream\":true,\"ignore_eos\":true,\"max_tokens\":%d}", tokens);
    say(s, "POST", "/v1/completions", "", body);
    await(s, "data: ");
    return s;
}

static void running_requests_end_first(void **state)
{
    (void)state;
    char reason[16];
    begin_models((tarn__api_options){0});
    load_is_held = true; /* requests are refused until then, however late this one is */
    int stream = begin_stream(250), change = dial();
    say(change, "POST", "/admin/load", "", "{\"model\":\"org/the second\"}");
    const char *refused = "";
    for (int i = 0; i < 3000 && !strstr(refused, "503 "); i++)
        refused = ask("POST", "/tokenize", "", "{\"content\":\"a\"}");
    assert_contains(refused, "Retry-After: 1\r\n");
    assert_contains(refused, "\"code\":\"loading\"");
    load_is_held = false;
    text streamed = joined(hear(stream, NULL), false, reason);
    assert_string_equal(reason, "length");
    assert_true(streamed.length >= 200);
    free(streamed.bytes);
    assert_contains(hear(change, NULL), "\"id\":\"org/the second\"");
    close(stream), close(change);
    assert_string_equal(loaded_names(), "org/the second;");
    end(1);
}

/* A stream, and a change that does not wait for it. False: the stream had ended before. */
static bool change_beside_stream(void)
{
    int stream = begin_stream(250), change = dial();
    say(change, "POST", "/admin/load", "", "{\"model\":\"org/the second\"}");
    const char *heard = hear(stream, NULL);
    bool is_cut = strstr(heard, "\"code\":\"model_changed\"") != NULL;
    assert_true(is_cut != (strstr(heard, "[DONE]") != NULL));
    if (!is_cut)
        assert_contains(hear(change, NULL), "\"id\":\"org/the second\"");
    close(change);
    close(stream);
    return is_cut;
}

/* A request that would take longer than the drain ends with an error; the change goes on without its client. */
static void long_requests_are_ended(void **state)
{
    (void)state;
    begin_models((tarn__api_options){.drain_seconds = -1});
    int attempts = 0;
    for (; attempts < 50 && !change_beside_stream(); attempts++)
        json_decref(load_model("first", 200));
    assert_true(attempts < 50);
    for (int i = 0; i < 3000 && !strstr(ask("GET", "/health", "", ""), "200 OK"); i++)
        nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
    assert_string_equal(loaded_names(), "org/the second;");
    end(1);
}

static void a_server_without_a_model_ends(void **state)
{
    (void)state;
    begin_models((tarn__api_options){0});
    first_is_gone = true;
    json_decref(load_model("broken", 500));
    pthread_join(thread, NULL);
    assert_true(has_failed);
    assert_string_equal(failure, "there is no model 'first'");
    tarn__api_free(api);
    first_is_gone = false;
}

/* The answer of a connection that is kept open goes out before the server ends. */
static void the_last_answer_is_sent(void **state)
{
    (void)state;
    begin_models((tarn__api_options){0});
    first_is_gone = true;
    const char request[] = "POST /admin/load HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           "Content-Length: 18\r\n\r\n{\"model\":\"broken\"}";
    int s = dial();
    assert_int_equal(send(s, request, sizeof(request) - 1, MSG_NOSIGNAL), sizeof(request) - 1);
    assert_contains(hear(s, NULL), "\"code\":\"load_failed\"");
    close(s);
    pthread_join(thread, NULL);
    tarn__api_free(api);
    first_is_gone = false;
}

/* Two requests for models are prepared at once, behind others that keep the pool busy: both are answered, and one of
 * them, or both in turn, load a model. */
static void two_changes_at_once_are_answered(void **state)
{
    (void)state;
    enum { BYTES = 300000, BUSY = 2 };
    char *long_text = malloc(BYTES + 64);
    int length = snprintf(long_text, 64, "{\"content\":\"");
    memset(long_text + length, 'a', BYTES);
    snprintf(long_text + length + BYTES, 8, "\"}");
    begin_models((tarn__api_options){0});
    for (int round = 0; round < 4; round++) {
        int busy[BUSY], change[2];
        for (int i = 0; i < BUSY; i++)
            say(busy[i] = dial(), "POST", "/tokenize", "", long_text);
        for (int i = 0; i < 2; i++)
            say(change[i] = dial(), "POST", "/admin/load", "",
                (i + round) % 2 ? "{\"model\":\"first\"}" : "{\"model\":\"org/the second\"}");
        int loaded = 0;
        for (int i = 0; i < 2; i++) {
            const char *heard = hear(change[i], NULL);
            loaded += strstr(heard, "\"loaded\":true") != NULL;
            assert_true(strstr(heard, "\"loaded\":true") || strstr(heard, "\"code\":\"loading\""));
            close(change[i]);
        }
        assert_true(loaded > 0);
        for (int i = 0; i < BUSY; i++)
            close(busy[i]);
        for (int i = 0; i < 3000 && !strstr(ask("GET", "/health", "", ""), "200 OK"); i++)
            nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
    }
    free(long_text);
    end(1);
}

static void a_stop_ends_a_change(void **state)
{
    (void)state;
    begin_models((tarn__api_options){0});
    load_is_held = true;
    int change = dial();
    say(change, "POST", "/admin/load", "", "{\"model\":\"org/the second\"}");
    for (int i = 0; i < 500 && !strstr(ask("GET", "/health", "", ""), "503 "); i++)
        ;
    assert_contains(ask("GET", "/openapi.json", "", ""), "200 OK"); /* as the pages do */
    end(20);
    assert_contains(hear(change, NULL), "\"id\":\"org/the second\"");
    close(change);
}

static void a_change_needs_a_key(void **state)
{
    (void)state;
    tarn__api_keys keys = {0};
    char error[256];
    assert_true(tarn__api_keys_read(&keys, write_text("keys", "sk-of-the-test\n"), error, sizeof(error)));
    begin_models((tarn__api_options){.keys = &keys});
    const char *body = "{\"model\":\"org/the second\"}";
    assert_contains(ask("POST", "/admin/load", "", body), "401 Unauthorized");
    assert_contains(ask("POST", "/admin/load", "Authorization: Bearer sk-of-the-test\r\n", body), "200 OK");
    assert_contains(ask("POST", "/admin/load", "Origin: https://example.org\r\n", body), "403 Forbidden");
    end(1);
    tarn__api_keys_free(&keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_model_is_changed),          cmocka_unit_test(all_models_have_their_names),
        cmocka_unit_test(wrong_requests_change_nothing), cmocka_unit_test(running_requests_end_first),
        cmocka_unit_test(long_requests_are_ended),       cmocka_unit_test(a_server_without_a_model_ends),
        cmocka_unit_test(a_stop_ends_a_change),          cmocka_unit_test(a_change_needs_a_key),
        cmocka_unit_test(the_last_answer_is_sent),       cmocka_unit_test(two_changes_at_once_are_answered),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

#else

int main(void)
{
    printf("libevent or jansson is missing: the API is not built\n");
    return 0;
}

#endif
