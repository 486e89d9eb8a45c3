/* test_http_request.c: requests however their bytes are cut, and what is refused; the Host and Origin checks. */
#include "serve/http/request.h"

#include <stdio.h>
#include <stdlib.h>

#include "serve/http/access.h"
#include "support/check.h"

static const tarn__http_limits limits = {512, 64};

static size_t feed(tarn__http_request *r, const char *text, size_t count)
{
    size_t used = 0;
    while (used < count && r->state < TARN__HTTP_COMPLETE)
        used += tarn__http_request_feed(r, text + used, count - used, &limits);
    return used;
}

/* The same request in every cut into two, and byte by byte. */
static tarn__http_request read_all(const char *text)
{
    size_t count = strlen(text), used;
    tarn__http_request whole = {0};
    used = feed(&whole, text, count);
    for (size_t cut = 0; cut <= count; cut++) {
        tarn__http_request r = {0};
        size_t first = feed(&r, text, cut);
        if (cut == count) { /* one at a time */
            tarn__http_request_clear(&r);
            first = 0;
            while (first < count && r.state < TARN__HTTP_COMPLETE)
                first += feed(&r, text + first, 1);
        } else
            first += feed(&r, text + first, count - first);
        assert_int_equal(r.state, whole.state);
        assert_int_equal(r.status, whole.status);
        if (whole.state == TARN__HTTP_COMPLETE) {
            assert_int_equal(first, used);
            assert_int_equal(r.body_size, whole.body_size);
            assert_int_equal(r.header_count, whole.header_count);
            if (whole.body_size)
                assert_memory_equal(r.body, whole.body, whole.body_size);
        }
        tarn__http_request_clear(&r);
    }
    return whole;
}

static void good_requests_are_read(void **state)
{
    (void)state;
    tarn__http_request r =
        read_all("\r\nGET /a/b?x=1&name=a%20b%2F+c&bad=%zz&zero=%00 HTTP/1.1\r\nHost:  localhost:80 \r\n"
                 "X-Empty:\r\nx-UTF: \xC3\xA9\r\n\r\n");
    char value[8];
    assert_int_equal(r.state, TARN__HTTP_COMPLETE);
    assert_string_equal(r.method, "GET");
    assert_string_equal(r.path, "/a/b");
    assert_string_equal(tarn__http_request_header(&r, "HOST"), "localhost:80");
    assert_string_equal(tarn__http_request_header(&r, "x-empty"), "");
    assert_string_equal(tarn__http_request_header(&r, "X-utf"), "\xC3\xA9");
    assert_null(tarn__http_request_header(&r, "Cookie"));
    assert_true(r.keeps_alive && !r.expects_continue && !r.body);
    assert_true(tarn__http_request_parameter(&r, "name", value, sizeof(value)));
    assert_string_equal(value, "a b/ c");
    assert_false(tarn__http_request_parameter(&r, "name", value, 6)); /* does not fit */
    assert_false(tarn__http_request_parameter(&r, "bad", value, sizeof(value)));
    assert_false(tarn__http_request_parameter(&r, "zero", value, sizeof(value)));
    assert_false(tarn__http_request_parameter(&r, "nam", value, sizeof(value)));
    tarn__http_request_clear(&r);

    r = read_all(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\nConnection: close\r\n\r\nhelloGET");
    assert_int_equal(r.state, TARN__HTTP_COMPLETE);
    assert_string_equal(r.body, "hello");
    assert_string_equal(r.query, "");
    assert_true(!r.keeps_alive && r.expects_continue);
    tarn__http_request_clear(&r);

    r = read_all(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n3;a=b\r\nabc\r\n0A\r\n0123456789\r\n0\r\n"
        "Trailer: x\r\n\r\n");
    assert_int_equal(r.state, TARN__HTTP_COMPLETE);
    assert_int_equal(r.body_size, 13);
    assert_string_equal(r.body, "abc0123456789");
    tarn__http_request_clear(&r);

    r = read_all("GET / HTTP/1.0\r\nConnection: foo, Keep-Alive\r\n\r\n");
    assert_int_equal(r.state, TARN__HTTP_COMPLETE);
    assert_true(r.keeps_alive && r.minor == 0);
    tarn__http_request_clear(&r);
}

static void bad_requests_are_refused(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *text;
    } bad[] = {
        {400, "GET\r\n\r\n"},
        {400, " GET / HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET  / HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET a HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET * HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET http:// HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET http:///a HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET http:/a HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET http://user@a/ HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET http://a\\b/ HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET http://a/#x HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET http://a/ HTTP/1.1\r\n\r\n"},
        {400, "GET http://a/ HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"},
        {421, "GET https://a/ HTTP/1.1\r\nHost: a\r\n\r\n"},
        {421, "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET /#x HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET / HTTP/1.1x\r\nHost: a\r\n\r\n"},
        {400, "GET / http/1.1\r\nHost: a\r\n\r\n"},
        {505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost : a\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\x01\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x2\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n"},
        {413, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 65\r\n\r\n"},
        {413, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999999999999999999\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {400, "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {417, "POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n+4\r\nabcd\r\n0\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x2\r\nab\r\n0\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n 2\r\nab\r\n0\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\nab\r\n0\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n;x\r\nabc\r\n0\r\n\r\n"},
        {413, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n41\r\n"},
        {413, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffffff\r\n"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tarn__http_request r = read_all(bad[i].text);
        if (r.state != TARN__HTTP_REFUSED || r.status != bad[i].status || !r.reason)
            fail_msg("state %d, status %d instead of %d: %s", r.state, r.status, bad[i].status, bad[i].text);
        tarn__http_request_clear(&r);
    }
}

static void sizes_are_limited(void **state)
{
    (void)state;
    char text[4096];
    int length = snprintf(text, sizeof(text), "GET / HTTP/1.1\r\nHost: a\r\nX: %0*d\r\n\r\n", 600, 0);
    tarn__http_request r = {0};
    feed(&r, text, (size_t)length);
    assert_int_equal(r.status, 431);
    tarn__http_request_clear(&r);

    length = snprintf(text, sizeof(text), "GET / HTTP/1.1\r\nHost: a\r\n");
    for (int i = 0; i < TARN__HTTP_HEADERS_MAX; i++)
        length += snprintf(text + length, sizeof(text) - (size_t)length, "a:b\r\n");
    length += snprintf(text + length, sizeof(text) - (size_t)length, "\r\n");
    feed(&r, text, (size_t)length);
    assert_int_equal(r.status, 431);
    tarn__http_request_clear(&r);

    length = snprintf(text, sizeof(text),
                      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: %0*d\r\n\r\n", 600, 0);
    feed(&r, text, (size_t)length);
    assert_int_equal(r.status, 431);
    tarn__http_request_clear(&r);
}

/* A target that is a URL has the path and the query of one that is not. */
static void targets_may_be_urls(void **state)
{
    (void)state;
    static const char *const good[][4] = {{"http://localhost:80/a/b?x=1", "localhost:80", "/a/b", "x=1"},
                                          {"HTTP://[::1]/", "[::1]", "/", ""},
                                          {"http://a", "a", "/", ""},
                                          {"http://a?x=/", "a", "/", "x=/"},
                                          {"http://a/http://b/?", "a", "/http://b/", ""},
                                          {"//a/b", NULL, "//a/b", ""}};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        char text[256];
        snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: other\r\n\r\n", good[i][0]);
        tarn__http_request r = read_all(text);
        assert_int_equal(r.state, TARN__HTTP_COMPLETE);
        assert_string_equal(r.path, good[i][2]);
        assert_string_equal(r.query, good[i][3]);
        assert_int_equal(r.authority != NULL, good[i][1] != NULL);
        assert_string_equal(tarn__http_request_host(&r), good[i][1] ? good[i][1] : "other");
        tarn__http_request_clear(&r);
    }
    tarn__http_request r = read_all("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_int_equal(r.state, TARN__HTTP_COMPLETE);
    assert_string_equal(r.path, "*");
    tarn__http_request_clear(&r);
}

/* By the host of the target, or, without one, by the Host header. */
static bool is_request_let_in(const char *target, const char *host, const char *origin)
{
    static const char *const names[] = {"box.example"}, *const origins[] = {"https://chat.example"};
    const tarn__http_access access = {
        .address = "192.0.2.7", .names = names, .origins = origins, .name_count = 1, .origin_count = 1};
    char text[512];
    int length = snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: %s\r\n%s%s%s\r\n", target, host,
                          origin ? "Origin: " : "", origin ? origin : "", origin ? "\r\n" : "");
    tarn__http_request r = {0};
    feed(&r, text, (size_t)length);
    assert_int_equal(r.state, TARN__HTTP_COMPLETE);
    bool is_in = tarn__http_access_refusal(&access, &r) == NULL;
    tarn__http_request_clear(&r);
    return is_in;
}

static bool is_let_in(const char *host, const char *origin)
{
    return is_request_let_in("/", host, origin);
}

static void other_hosts_and_origins_are_refused(void **state)
{
    (void)state;
    static const char *const own[] = {"localhost",  "LOCALHOST:8080", "127.0.0.1:1", "127.8.8.8",
                                      "[::1]:8080", "192.0.2.7:80",   "box.example", "Box.Example:443"};
    static const char *const others[] = {
        "example.org", "localhost.example.org", "box.example.evil", "192.0.2.8", "[::2]",
        "[::1",        "127.0.0.1.evil",        "localhost:80a",    "",          "::1",
        "1270.0.0.1"};
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (!is_let_in(own[i], NULL))
            fail_msg("%s was refused", own[i]);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (is_let_in(others[i], NULL))
            fail_msg("%s was let in", others[i]);
    assert_true(is_let_in("localhost:8080", "http://localhost:8080"));
    assert_true(is_let_in("localhost:8080", "https://chat.example"));
    assert_false(is_let_in("localhost:8080", "http://localhost:8081"));
    assert_false(is_let_in("localhost:8080", "http://localhost"));
    assert_false(is_let_in("localhost:8080", "https://evil.example"));
    assert_false(is_let_in("localhost:8080", "https://chat.example.evil"));
    assert_false(is_let_in("localhost:8080", "null"));
    /* the Host header is ignored where the target has one */
    assert_true(is_request_let_in("http://localhost:8080/", "evil.example", NULL));
    assert_true(is_request_let_in("http://localhost:8080/", "evil.example", "http://localhost:8080"));
    assert_false(is_request_let_in("http://localhost:8080/", "evil.example", "http://evil.example"));
    assert_false(is_request_let_in("http://evil.example/", "localhost:8080", NULL));
    assert_false(is_request_let_in("http://evil.example?/localhost", "localhost:8080", NULL));
    assert_false(is_request_let_in("http://localhost:80a/", "localhost:8080", NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_requests_are_read),
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(targets_may_be_urls),
        cmocka_unit_test(sizes_are_limited),
        cmocka_unit_test(other_hosts_and_origins_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
