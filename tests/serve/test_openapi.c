/* test_openapi.c: the document of /openapi.json beside the server: the same routes and methods, the same members of
 * every body, their types and bounds; it comes without a key and while a model is loaded. */
#include "tarn_features.h"

#include "support/check.h"

#if TARN__HAVE_EVENT && TARN__HAVE_JANSSON

#include "serve/api/prepare.h"
#include "serve/api_server.h"
#include "serve/ollama/ollama.h"
#include "serve/pages/pages.h"

static json_t *document;

/* What a reference points to, else the value itself. Borrowed. */
static const json_t *resolved(const json_t *schema)
{
    const char *reference = json_string_value(json_object_get(schema, "$ref")), *name;
    if (!reference)
        return schema;
    name = strrchr(reference, '/') + 1;
    const json_t *found = json_object_get(json_object_get(json_object_get(document, "components"), "schemas"), name);
    if (!found)
        fail_msg("%s does not exist", reference);
    return found;
}

static const json_t *schema(const char *name)
{
    char reference[80];
    snprintf(reference, sizeof(reference), "#/components/schemas/%s", name);
    json_t *pointer = json_pack("{s:s}", "$ref", reference);
    const json_t *found = resolved(pointer);
    json_decref(pointer);
    return found;
}

/* ---- routes ------------------------------------------------------------------------------------------------------ */

static void every_route_is_documented(void **state)
{
    (void)state;
    json_t *paths = json_object_get(document, "paths");
    bool is_read;
    const char *path;
    int count = 0;
    for (; (path = tarn__api_route_path(count, &is_read)) != NULL; count++)
        if (!json_object_get(json_object_get(paths, path), is_read ? "get" : "post"))
            fail_msg("%s is not in openapi.json", path);
    assert_int_equal(json_object_size(paths), count + 3); /* two pages, and one model */
}

static void every_documented_route_is_served(void **state)
{
    (void)state;
    const char *path;
    json_t *methods;
    begin((tarn__api_options){0});
    json_object_foreach(json_object_get(document, "paths"), path, methods)
    {
        bool is_read = json_object_get(methods, "get") != NULL;
        const char *asked = strchr(path, '{') ? "/v1/models/bytes" : path;
        const char *heard = ask(is_read ? "GET" : "POST", asked, "", is_read ? "" : "{}");
        if (!strstr(heard, is_read ? "HTTP/1.1 200 " : "HTTP/1.1 400 "))
            fail_msg("%s: %.100s", path, heard);
        heard = ask(is_read ? "POST" : "GET", asked, "", "");
        if (!strstr(heard, "HTTP/1.1 405 ") || !strstr(heard, is_read ? "Allow: GET, HEAD\r\n" : "Allow: POST\r\n"))
            fail_msg("%s: %.100s", path, heard);
    }
    end(1);
}

static void the_document_needs_no_key(void **state)
{
    (void)state;
    char key[] = "sk-of-the-test", *keys[] = {key};
    const tarn__api_keys one = {keys, 1};
    begin((tarn__api_options){.keys = &one});
    json_t *root = body_of(ask("GET", "/openapi.json", "", ""), 200);
    assert_string_equal(member(json_object_get(root, "info"), "version"), tarn_version());
    json_decref(root);
    end(1);
}

/* ---- members ----------------------------------------------------------------------------------------------------- */

static tarn__api_model model;

/* A body of a route, prepared: its error, and the members that were read. */
typedef struct prepared {
    tarn__api_error error;
    tarn__body fields;
} prepared;

static prepared prepare(const char *path, const json_t *body)
{
    static const struct {
        const char *path;
        tarn__api_route route;
    } routes[] = {{"/v1/chat/completions", TARN__API_CHAT}, {"/v1/completions", TARN__API_COMPLETION},
                  {"/v1/embeddings", TARN__API_EMBEDDINGS}, {"/tokenize", TARN__API_TOKENIZE},
                  {"/detokenize", TARN__API_DETOKENIZE},    {"/apply-template", TARN__API_TEMPLATE},
                  {"/admin/load", TARN__API_LOAD},          {"/api/chat", TARN__API_CHAT},
                  {"/api/generate", TARN__API_COMPLETION},  {"/api/show", TARN__API_TEMPLATE}};
    char *bytes = json_dumps(body, JSON_ENCODE_ANY);
    size_t i = 0;
    while (strcmp(path, routes[i].path) != 0)
        i++;
    prepared result;
    tarn__api_job *job = tarn__api_job_new(routes[i].route, bytes, strlen(bytes));
    job->ollama = tarn__ollama_route_of(path);
    tarn__api_prepare_body(job, &model, &result.fields);
    result.error = job->error;
    tarn__api_job_free(job);
    free(bytes);
    return result;
}

static bool was_read(const tarn__body *fields, const char *name)
{
    for (int i = 0; i < fields->read_count; i++)
        if (strcmp(fields->read[i], name) == 0)
            return true;
    return false;
}

static bool has_type(const json_t *types, const char *name)
{
    size_t i;
    const json_t *one;
    if (json_is_string(types))
        return strcmp(json_string_value(types), name) == 0;
    json_array_foreach(types, i, one) if (strcmp(json_string_value(one), name) == 0) return true;
    return false;
}

/* The error of the body with another value of a member, which may be inside another one. Takes the value's reference.
 */
static tarn__api_error with(const char *path, const char *smallest, const char *outer, const char *name, json_t *value)
{
    json_t *body = json_loads(smallest, 0, NULL);
    json_t *owner = outer ? json_object() : body;
    json_object_set_new(owner, name, value);
    if (outer)
        json_object_set_new(body, outer, owner);
    tarn__api_error error = prepare(path, body).error;
    json_decref(body);
    return error;
}

static void expect_refused(const char *path, const char *smallest, const char *outer, const char *name, json_t *value)
{
    char *shown = json_dumps(value, JSON_ENCODE_ANY);
    tarn__api_error error = with(path, smallest, outer, name, value);
    if (error.status != 400 || strcmp(error.param, name) != 0 || strstr(error.message, "unknown"))
        fail_msg("%s: %s: %s: status %d, %s: %s", path, name, shown, error.status, error.param, error.message);
    free(shown);
}

/* Refused for no reason of its range; it may ask for more than the model has. */
static void expect_bound(const char *path, const char *smallest, const char *outer, const char *name, json_t *value)
{
    tarn__api_error error = with(path, smallest, outer, name, value);
    if (error.status == 400 && strcmp(error.param, name) == 0 && strstr(error.message, " from "))
        fail_msg("%s: %s: %s", path, name, error.message);
}

static void check_member(const char *path, const char *smallest, const char *outer, const char *name, const json_t *of)
{
    const json_t *types = json_object_get(of, "type"), *low = json_object_get(of, "minimum"),
                 *high = json_object_get(of, "maximum");
    bool is_text = has_type(types, "string");
    if (types && !has_type(types, "number") && !has_type(types, "integer"))
        expect_refused(path, smallest, outer, name, is_text ? json_integer(5) : json_string("x"));
    if (types && !is_text)
        expect_refused(path, smallest, outer, name, json_string("x"));
    if (has_type(types, "integer"))
        expect_refused(path, smallest, outer, name, json_real(1.5));
    if (has_type(types, "null"))
        expect_bound(path, smallest, outer, name, json_null());
    if (low) {
        double step = json_number_value(low) < -9e18 ? 1e4 : 1e-3;
        bool is_int = has_type(types, "integer");
        expect_bound(path, smallest, outer, name, json_deep_copy(low));
        expect_refused(path, smallest, outer, name,
                       json_real(json_number_value(low) - (is_int && step < 1 ? 1 : step)));
    }
    if (high) {
        expect_bound(path, smallest, outer, name, json_deep_copy(high));
        expect_refused(path, smallest, outer, name,
                       json_real(json_number_value(high) + (json_number_value(high) > 9e18 ? 1e4 : 1)));
    }
}

/* The members of a schema are those that the server reads of a body that is as small as can be, and they are checked
 * in one that asks for an answer. */
static void check_body(const char *path, const char *name, const char *smallest, const char *whole_body)
{
    const json_t *properties = json_object_get(schema(name), "properties"), *property;
    json_t *body = json_loads(smallest, 0, NULL);
    prepared whole = prepare(path, body);
    if (whole.error.status)
        fail_msg("%s: %s: %s", path, smallest, whole.error.message);
    for (int i = 0; i < whole.fields.read_count; i++)
        if (!json_object_get(properties, whole.fields.read[i]))
            fail_msg("%s: %s is not in openapi.json", path, whole.fields.read[i]);
    const char *member_name;
    json_object_foreach((json_t *)properties, member_name, property)
    {
        if (!was_read(&whole.fields, member_name))
            fail_msg("%s: %s is documented, but not read", path, member_name);
        check_member(path, whole_body, NULL, member_name, resolved(property));
    }
    json_decref(body);
    tarn__api_error error = with(path, smallest, NULL, "surprise", json_true());
    assert_string_equal(error.code, "unknown_parameter");
}

static void members_are_those_that_are_read(void **state)
{
    (void)state;
    static const char messages[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}",
                      named[] = "{\"model\":\"m\"}", prompt[] = "{\"prompt\":\"a\"}", input[] = "{\"input\":\"a\"}",
                      content[] = "{\"content\":\"a\"}", tokens[] = "{\"tokens\":[65]}";
    check_body("/v1/chat/completions", "Chat", messages, messages);
    check_body("/v1/completions", "Completion", prompt, prompt);
    check_body("/v1/embeddings", "Embeddings", input, input);
    check_body("/tokenize", "Tokenize", content, content);
    check_body("/detokenize", "Detokenize", tokens, tokens);
    check_body("/apply-template", "ApplyTemplate", messages, messages);
    check_body("/admin/load", "Load", named, named);
    check_body("/api/chat", "OllamaChat", named,
               "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}");
    check_body("/api/generate", "OllamaGenerate", named, "{\"model\":\"m\",\"prompt\":\"a\"}");
    check_body("/api/show", "OllamaShow", named, named);
}

static void members_of_members_are_read(void **state)
{
    (void)state;
    const char *name;
    const json_t *property;
    json_object_foreach(json_object_get(schema("OllamaOptions"), "properties"), name, property)
    {
        tarn__api_error error = with("/api/chat", "{\"model\":\"m\"}", "options", name, json_null());
        if (error.status)
            fail_msg("%s: %s", name, error.message);
        if (strcmp(name, "num_predict") != 0 && !json_object_get(resolved(property), "anyOf"))
            check_member("/api/generate", "{\"model\":\"m\",\"prompt\":\"a\"}", "options", name, resolved(property));
    }
    static const char streamed[] = "{\"prompt\":\"a\",\"stream\":true}";
    json_object_foreach(json_object_get(schema("StreamOptions"), "properties"), name, property)
    {
        check_member("/v1/completions", streamed, "stream_options", name, resolved(property));
        assert_int_equal(with("/v1/completions", streamed, "stream_options", name, json_true()).status, 0);
    }
}

/* The limit at a path of names and indices below the schemas. */
static int64_t limit(const char *name, const char *first, int second, const char *last)
{
    const json_t *at = schema(name);
    if (first)
        at = json_object_get(json_object_get(at, "properties"), first);
    if (second >= 0)
        at = json_array_get(json_object_get(at, "anyOf"), (size_t)second);
    return json_integer_value(json_object_get(at, last));
}

static void limits_are_those_of_the_server(void **state)
{
    (void)state;
    assert_int_equal(limit("Stop", NULL, 2, "maxItems"), TARN__API_STOPS_MAX);
    assert_int_equal(limit("LogitBias", NULL, -1, "maxProperties"), TARN__API_BIASES_MAX);
    assert_int_equal(limit("Messages", NULL, -1, "maxItems"), TARN__API_MESSAGES_MAX);
    assert_int_equal(limit("OllamaChat", "messages", -1, "maxItems"), TARN__API_MESSAGES_MAX);
    assert_int_equal(limit("Completion", "prompt", 2, "maxItems"), TARN__API_PROMPTS_MAX);
    assert_int_equal(limit("Embeddings", "input", 2, "maxItems"), TARN__API_INPUTS_MAX);
    assert_int_equal(limit("Chat", "n", -1, "maximum"), TARN__API_N_MAX);
    assert_int_equal(limit("Chat", "top_logprobs", -1, "maximum"), TARN__API_TOP_MAX);
}

static int open_document(void **state)
{
    static const char *const names[] = {"m"};
    const tarn__page *file = tarn__page_find("openapi.json");
    (void)state;
    document = json_loadb((const char *)file->bytes, file->size, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(document);
    model = (tarn__api_model){.name = "m",
                              .names = names,
                              .name_count = 1,
                              .tokenizer = make_tokenizer(),
                              .info = {.vocab_size = VOCAB, .hidden_size = 32, .type = "llama"},
                              .context = CONTEXT,
                              .eot = 257,
                              .has_template = true};
    model.vocab = tarn_grammar_vocab_new(model.tokenizer, &(tarn_grammar_vocab_options){.vocab_size = VOCAB});
    assert_ok();
    return 0;
}

static int close_document(void **state)
{
    (void)state;
    tarn_grammar_vocab_free(model.vocab);
    tarn_tokenizer_free(model.tokenizer);
    json_decref(document);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_route_is_documented),   cmocka_unit_test(every_documented_route_is_served),
        cmocka_unit_test(the_document_needs_no_key),   cmocka_unit_test(members_are_those_that_are_read),
        cmocka_unit_test(members_of_members_are_read), cmocka_unit_test(limits_are_those_of_the_server),
    };
    return cmocka_run_group_tests(tests, open_document, close_document);
}

#else

int main(void)
{
    printf("libevent or jansson is missing: the API is not built\n");
    return 0;
}

#endif
