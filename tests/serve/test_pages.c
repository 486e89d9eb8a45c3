/* test_pages.c: the pages of the server: their headers, what they load, and who gets them. What they do is tested in a
 * browser (page_client.py). */
#include "tarn_features.h"

#include "support/check.h"

#if TARN__HAVE_EVENT && TARN__HAVE_JANSSON

#include "serve/api_server.h"
#include "serve/pages/pages.h"
#include "support/files.h"

#define POLICY \
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src " \
    "data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"

static const char *const pages[] = {"/", "/status"};
enum { PAGES = sizeof(pages) / sizeof(pages[0]) };

static void expect_headers(const char *heard, const char *type)
{
    assert_contains(heard, "HTTP/1.1 200 OK\r\n");
    assert_contains(heard, POLICY);
    assert_contains(heard, "X-Content-Type-Options: nosniff\r\n");
    assert_contains(heard, "Referrer-Policy: no-referrer\r\n");
    assert_contains(heard, "Cache-Control: no-store\r\n");
    assert_contains(heard, type);
}

static void assert_without(const char *page, const char *way)
{
    if (strstr(page, way))
        fail_msg("'%s' is in: %.80s", way, strstr(page, way));
}

/* Everything that a page names with src or href is one of the server's own files, and has the page's headers. */
static void expect_files(const char *page)
{
    static const char *const attributes[] = {" src=\"", " href=\""};
    int count = 0;
    for (int i = 0; i < 2; i++)
        for (const char *at = page; (at = strstr(at, attributes[i])) != NULL;) {
            char path[128];
            at += strlen(attributes[i]);
            snprintf(path, sizeof(path), "%.*s", (int)strcspn(at, "\""), at);
            if (path[0] == '#' || strcmp(path, "data:,") == 0)
                continue;
            expect_headers(ask("GET", path, "", ""), strstr(path, ".css")  ? "Content-Type: text/css; charset=utf-8\r\n"
                                                     : strstr(path, ".js") ? "Content-Type: text/javascript; charset"
                                                                           : "Content-Type: text/html; charset");
            count++;
        }
    assert_true(count >= 3);
}

static void pages_have_a_strict_policy(void **state)
{
    (void)state;
    begin((tarn__api_options){0});
    for (int i = 0; i < PAGES; i++) {
        char *page = strdup(ask("GET", pages[i], "", ""));
        expect_headers(page, "Content-Type: text/html; charset=utf-8\r\n");
        assert_contains(page, "<!doctype html>");
        assert_without(page, "<script>");
        assert_without(page, "<style");
        assert_without(page, " style=");
        assert_without(page, " onclick=");
        assert_without(page, "http:");
        assert_without(page, "https:");
        expect_files(page);
        const char *head = ask("HEAD", pages[i], "", "");
        expect_headers(head, "Content-Type: text/html; charset=utf-8\r\n");
        assert_without(head, "<!doctype html>");
        free(page);
    }
    end(1);
}

/* Scripts make nodes, never markup, and evaluate no strings. */
static void scripts_have_no_markup(void **state)
{
    static const char *const ways[] = {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                                       "Function(", "srcdoc",    "javascript:"};
    (void)state;
    assert_true(tarn__page_count > 3);
    for (int i = 0; i < tarn__page_count; i++) {
        char *file = strndup((const char *)tarn__pages[i].bytes, tarn__pages[i].size);
        for (size_t k = 0; k < sizeof(ways) / sizeof(ways[0]); k++)
            assert_without(file, ways[k]);
        free(file);
    }
    assert_null(tarn__page_find("chat"));
}

static void pages_need_no_key_but_access(void **state)
{
    tarn__api_keys keys = {0};
    char error[256];
    (void)state;
    assert_true(tarn__api_keys_read(&keys, write_text("keys", "sk-of-the-test\n"), error, sizeof(error)));
    begin((tarn__api_options){.keys = &keys});
    expect_headers(ask("GET", "/", "", ""), "text/html");
    assert_contains(ask("GET", "/v1/models", "", ""), "401 Unauthorized");
    assert_contains(ask("POST", "/", "", "{}"), "401 Unauthorized");
    assert_contains(ask("POST", "/", "Authorization: Bearer sk-of-the-test\r\n", "{}"), "405 Method Not Allowed");
    assert_contains(ask("GET", "/", "Origin: https://example.org\r\n", ""), "403 Forbidden");
    assert_contains(ask("GET", "/board.js", "Authorization: Bearer sk-of-the-test\r\n", ""), "404 Not Found");
    end(1);
    tarn__api_keys_free(&keys);
}

static void pages_come_while_the_model_is_loaded(void **state)
{
    (void)state;
    load_is_held = true;
    begin((tarn__api_options){0});
    expect_headers(ask("GET", "/", "", ""), "text/html");
    assert_contains(ask("GET", "/v1/models", "", ""), "503 Service Unavailable");
    end(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_have_a_strict_policy), cmocka_unit_test(scripts_have_no_markup),
        cmocka_unit_test(pages_need_no_key_but_access), cmocka_unit_test(pages_come_while_the_model_is_loaded)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

#else

int main(void)
{
    printf("libevent or jansson is missing: the API is not built\n");
    return 0;
}

#endif
