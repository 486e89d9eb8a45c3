/* targets_http.c: HTTP requests: the same verdict however the bytes are cut, within the limits. */
#include <stdint.h>
#include <string.h>
#include <tarn/base.h>

#include "fuzz/targets.h"
#include "serve/http/access.h"
#include "serve/http/request.h"

static const tarn__http_limits limits = {4096, 65536};

static size_t feed(tarn__http_request *r, const char *bytes, size_t count)
{
    size_t used = 0;
    while (used < count && r->state < TARN__HTTP_COMPLETE) {
        size_t part = tarn__http_request_feed(r, bytes + used, count - used, &limits);
        fuzz_must(part > 0 || r->state >= TARN__HTTP_COMPLETE, "every call makes progress");
        used += part;
    }
    return used;
}

static bool take_request(const void *from, size_t count)
{
    static const tarn__http_access access = {.address = "127.0.0.1"};
    tarn__http_request whole = {0}, cut = {0};
    size_t used = feed(&whole, from, count), first = feed(&cut, from, count / 2);
    first += feed(&cut, (const char *)from + first, count - first);
    fuzz_must(whole.state == cut.state && whole.status == cut.status, "a cut changes nothing");
    bool is_complete = whole.state == TARN__HTTP_COMPLETE;
    if (is_complete) {
        char value[64];
        fuzz_must(used == first && whole.body_size == cut.body_size && whole.body_size <= limits.body,
                  "both end at the same byte");
        fuzz_must(!whole.body_size || memcmp(whole.body, cut.body, whole.body_size) == 0, "bodies are equal");
        tarn__http_access_refusal(&access, &whole);
        tarn__http_request_parameter(&whole, "run", value, sizeof(value));
    }
    fuzz_must(whole.state != TARN__HTTP_REFUSED || (whole.reason && whole.status >= 400), "a refusal has its reason");
    tarn__http_request_clear(&whole);
    tarn__http_request_clear(&cut);
    /* the parser answers with a status; a target that refuses has an error */
    return is_complete || tarn_set_error(TARN_ERROR_FORMAT, "the request is refused, or not complete");
}

static void seed_requests(fuzz_seed_fn use, void *ctx)
{
    static const char get[] = "GET /api/metrics?run=a%20b&from=0 HTTP/1.1\r\nHost: localhost:6007\r\n"
                              "Origin: http://localhost:6007\r\n\r\n";
    static const char post[] = "POST /v1 HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 11\r\nExpect: 100-continue\r\n\r\n"
                               "{\"a\": true}";
    static const char chunked[] = "POST /v1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\n1234\r\n"
                                  "A\r\n0123456789\r\n0\r\nT: x\r\n\r\n";
    const char *const good[] = {get, post, chunked};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        use(good[i], strlen(good[i]), ctx);
}

const fuzz_target fuzz_http_targets[] = {{"http_request", NULL, seed_requests, take_request}, {0}};
