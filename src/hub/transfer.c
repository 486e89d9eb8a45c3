/* transfer.c: requests by libcurl.
 *
 * libcurl follows no redirect itself: each is a request of its own, whose origin is compared with the endpoint's before
 * the token is attached. The address of a redirect may hold a signature, so messages show no more than its host.
 *
 * A client belongs to one thread. During a request it borrows the request and the response; callbacks of libcurl get
 * the client as their context and never outlive tarn__hub_transfer(). */
#include "hub/transfer.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <tarn/base.h>

#include "hub/curl_library.h"

/* Of one request; and seconds until a connection must stand. What comes after has the user's own timeout. */
enum { MAX_REDIRECTS = 8, CONNECT_SECONDS = 20 };

struct tarn__hub_client {
    const tarn__hub_settings *settings;
    bool (*stopped)(void *ctx);
    void *ctx;
    const tarn__curl_library *library;
    CURL *curl;
    /* of the request that runs */
    const tarn__hub_request *request;
    tarn__hub_response *response;
    char error[CURL_ERROR_SIZE];
    bool has_begun, is_aborted;
};

tarn__hub_client *tarn__hub_client_new(const tarn__hub_settings *settings, bool (*stopped)(void *ctx), void *ctx)
{
    const tarn__curl_library *library = tarn__curl();
    tarn__hub_client *client = library ? calloc(1, sizeof(*client)) : NULL;
    if (client && (client->curl = library->easy_init()) != NULL) {
        client->library = library;
        client->settings = settings;
        client->stopped = stopped;
        client->ctx = ctx;
        return client;
    }
    free(client);
    if (library)
        tarn_set_error(TARN_ERROR_MEMORY, "cannot start libcurl: out of memory");
    return NULL;
}

void tarn__hub_client_free(tarn__hub_client *client)
{
    if (client)
        client->library->easy_cleanup(client->curl);
    free(client);
}

/* What RFC 3986 calls unreserved stays: "a b/ü" becomes "a%20b/%C3%BC" with its slashes kept. */
bool tarn__hub_add_quoted(char url[TARN__HUB_PATH], const char *text, bool keeps_slashes)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t used = strlen(url);
    for (; *text && used + 4 < TARN__HUB_PATH; text++) {
        unsigned char c = (unsigned char)*text;
        if ((c < 0x80 && isalnum(c)) || strchr("-_.~", c) || (c == '/' && keeps_slashes)) {
            url[used++] = (char)c;
            continue;
        }
        url[used++] = '%';
        url[used++] = digits[c >> 4];
        url[used++] = digits[c & 15];
    }
    url[used] = 0;
    return !*text ||
           tarn_set_error(TARN_ERROR_ARGUMENT, "a URL is too long; expected at most %d bytes", TARN__HUB_PATH - 4);
}

/* ---- origins ----------------------------------------------------------------------------------------------------- */

/* Scheme, host and port of a URL, in lower case, as https://host:443. False if it is none of http and https. */
static bool origin_of(const tarn__curl_library *curl, const char *url, char origin[TARN__HUB_PATH])
{
    CURLU *parts = curl->url();
    char *scheme = NULL, *host = NULL, *port = NULL;
    bool good = parts && curl->url_set(parts, CURLUPART_URL, url, 0) == CURLUE_OK &&
                curl->url_get(parts, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
                curl->url_get(parts, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
                curl->url_get(parts, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK &&
                (strcasecmp(scheme, "http") == 0 || strcasecmp(scheme, "https") == 0) &&
                snprintf(origin, TARN__HUB_PATH, "%s://%s:%s", scheme, host, port) < TARN__HUB_PATH;
    for (char *c = origin; good && *c; c++)
        *c = (char)tolower((unsigned char)*c);
    curl->free(scheme);
    curl->free(host);
    curl->free(port);
    curl->url_cleanup(parts);
    return good;
}

/* ---- callbacks of libcurl ---------------------------------------------------------------------------------------- */

/* Copies the value of a header `name` if the line has it. What does not fit is not taken. */
static bool take(const char *line, size_t length, const char *name, char *to, size_t size)
{
    size_t head = strlen(name);
    if (length <= head || strncasecmp(line, name, head) != 0 || line[head] != ':')
        return false;
    for (line += head + 1, length -= head + 1; length > 0 && isspace((unsigned char)line[0]); line++)
        length--;
    while (length > 0 && isspace((unsigned char)line[length - 1]))
        length--;
    if (length >= size)
        return false;
    memcpy(to, line, length);
    to[length] = 0;
    return true;
}

/* A count of bytes or seconds; -1: not one. */
static int64_t number(const char *text)
{
    return text[0] && strspn(text, "0123456789") == strlen(text) && strlen(text) < 18 ? strtoll(text, NULL, 10) : -1;
}

/* One call per line, status lines included; names in any case. Returning less than was given would end the transfer,
 * so what is malformed or too long is left out and missed later. */
static size_t on_header(char *line, size_t size, size_t count, void *ctx)
{
    tarn__hub_client *client = ctx;
    tarn__hub_response *r = client->response;
    size_t length = size * count;
    char text[64];
    if (length > 5 && strncmp(line, "HTTP/", 5) == 0) /* an interim response went before */
        *r = (tarn__hub_response){.length = -1, .linked_size = -1, .retry_after = -1, .is_elsewhere = r->is_elsewhere};
    take(line, length, "ETag", r->etag, sizeof(r->etag));
    take(line, length, "X-Linked-ETag", r->linked_etag, sizeof(r->linked_etag));
    take(line, length, "X-Repo-Commit", r->commit, sizeof(r->commit));
    take(line, length, "X-Error-Code", r->error_code, sizeof(r->error_code));
    take(line, length, "X-Error-Message", r->error_message, sizeof(r->error_message));
    take(line, length, "Content-Range", r->range, sizeof(r->range));
    if (take(line, length, "Content-Length", text, sizeof(text)))
        r->length = number(text);
    if (take(line, length, "X-Linked-Size", text, sizeof(text)))
        r->linked_size = number(text);
    if (take(line, length, "Retry-After", text, sizeof(text)))
        r->retry_after = number(text);
    return length;
}

/* The body of a redirect or an error is dropped. A status other than 2xx never reaches the caller's file. libcurl
 * knows the status before it passes the first byte on. */
static size_t on_body(char *bytes, size_t size, size_t count, void *ctx)
{
    tarn__hub_client *client = ctx;
    const tarn__hub_request *request = client->request;
    client->library->easy_getinfo(client->curl, CURLINFO_RESPONSE_CODE, &client->response->status);
    if (client->response->status / 100 != 2 || !request->body)
        return size * count;
    client->is_aborted = (!client->has_begun && request->begin && !request->begin(client->response, request->ctx)) ||
                         !request->body(bytes, size * count, request->ctx);
    client->has_begun = true;
    return client->is_aborted ? 0 : size * count;
}

/* libcurl calls this about once a second, also while nothing arrives; not zero ends the transfer. */
static int on_progress(void *ctx, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up_now)
{
    tarn__hub_client *client = ctx;
    (void)total, (void)now, (void)up_total, (void)up_now;
    client->is_aborted |= client->stopped(client->ctx);
    return client->is_aborted;
}

/* ---- a request --------------------------------------------------------------------------------------------------- */

static struct curl_slist *add_header(const tarn__curl_library *curl, struct curl_slist *headers, const char *name,
                                     const char *value)
{
    char line[1024];
    snprintf(line, sizeof(line), "%s: %s", name, value);
    struct curl_slist *more = curl->slist_append(headers, line);
    if (!more)
        curl->slist_free_all(headers);
    return more;
}

/* NULL without memory. */
static struct curl_slist *headers_for(const tarn__hub_client *client, bool is_elsewhere)
{
    char value[700];
    const char *token = client->settings->token;
    struct curl_slist *headers = add_header(client->library, NULL, "Accept-Encoding", "identity");
    if (headers && token[0] && !is_elsewhere) {
        snprintf(value, sizeof(value), "Bearer %s", token);
        headers = add_header(client->library, headers, "Authorization", value);
    }
    if (headers && client->request->if_range && client->request->from > 0 && !is_elsewhere)
        headers = add_header(client->library, headers, "If-Range", client->request->if_range);
    return headers;
}

static void set_options(tarn__hub_client *client, const char *url, const struct curl_slist *headers)
{
    const tarn__curl_library *library = client->library;
    CURL *curl = client->curl;
    const tarn__hub_request *request = client->request;
    char user_agent[64], range[32];
    snprintf(user_agent, sizeof(user_agent), "tarn/%s", tarn_version());
    snprintf(range, sizeof(range), "%lld-", (long long)request->from);
    /* every option is set anew, so nothing of the request before (a token, a range) can stay */
    library->easy_reset(curl); /* connections stay */
    library->easy_setopt(curl, CURLOPT_URL, url);
#if LIBCURL_VERSION_NUM >= 0x075500
    library->easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    library->easy_setopt(curl, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    library->easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 1L);
    library->easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 2L);
    library->easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    /* else libcurl may take SIGALRM for timeouts of the resolver */
    library->easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    library->easy_setopt(curl, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    library->easy_setopt(curl, CURLOPT_USERAGENT, user_agent);
    library->easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    library->easy_setopt(curl, CURLOPT_NOBODY, request->head ? 1L : 0L);
    if (request->from > 0)
        library->easy_setopt(curl, CURLOPT_RANGE, range);
    library->easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    /* less than 1 byte/s for `timeout` seconds: stalled, however large the file is */
    library->easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    library->easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, client->settings->timeout);
    library->easy_setopt(curl, CURLOPT_ERRORBUFFER, client->error);
    library->easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    library->easy_setopt(curl, CURLOPT_HEADERDATA, client);
    library->easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    library->easy_setopt(curl, CURLOPT_WRITEDATA, client);
    library->easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    library->easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    library->easy_setopt(curl, CURLOPT_XFERINFODATA, client);
}

/* What failed for good rather than for now. A certificate that is not trusted is not trusted on the next try either;
 * names that do not resolve and connections that break may be. */
static tarn__hub_outcome failure(const tarn__hub_client *client, CURLcode code, const char *origin, char why[400])
{
    const char *text = client->error[0] ? client->error : client->library->easy_strerror(code);
    if (client->is_aborted)
        return TARN__HUB_ABORTED;
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE || code == CURLE_SSL_ISSUER_ERROR) {
        tarn_set_error(TARN_ERROR_IO, "%s cannot be trusted: %s", origin, text);
        return TARN__HUB_REFUSED;
    }
    if (code == CURLE_OPERATION_TIMEDOUT && client->has_begun)
        snprintf(why, 400, "%s sent nothing for %ld s", origin, client->settings->timeout);
    else
        snprintf(why, 400, "%s: %s", origin, text);
    return TARN__HUB_BROKEN;
}

/* One request without redirects, to `url`; `base` is the endpoint's origin. */
static tarn__hub_outcome perform(tarn__hub_client *client, const char *url, const char *base, char why[400])
{
    char origin[TARN__HUB_PATH];
    tarn__hub_response *r = client->response;
    if (!origin_of(client->library, url, origin)) {
        tarn_set_error(TARN_ERROR_FORMAT, "the hub redirects to '%.100s'; only http and https are followed", url);
        return TARN__HUB_REFUSED;
    }
    if (strncmp(base, "https:", 6) == 0 && strncmp(origin, "https:", 6) != 0) {
        tarn_set_error(TARN_ERROR_FORMAT, "the hub redirects from https to %.300s, which is not encrypted", origin);
        return TARN__HUB_REFUSED;
    }
    *r = (tarn__hub_response){
        .length = -1, .linked_size = -1, .retry_after = -1, .is_elsewhere = strcmp(origin, base) != 0};
    client->has_begun = false;
    client->error[0] = 0;
    struct curl_slist *headers = headers_for(client, r->is_elsewhere);
    if (!headers) {
        tarn_set_error(TARN_ERROR_MEMORY, "out of memory for a request");
        return TARN__HUB_REFUSED;
    }
    set_options(client, url, headers);
    CURLcode code = client->library->easy_perform(client->curl);
    client->library->slist_free_all(headers);
    client->library->easy_getinfo(client->curl, CURLINFO_RESPONSE_CODE, &r->status);
    if (code != CURLE_OK)
        return failure(client, code, origin, why);
    /* a body without bytes never called on_body(), and its headers still count */
    bool is_empty = r->status / 100 == 2 && !client->has_begun && client->request->begin;
    return is_empty && !client->request->begin(r, client->request->ctx) ? TARN__HUB_ABORTED : TARN__HUB_ANSWERED;
}

static bool is_redirect(const tarn__hub_response *r)
{
    return (r->status >= 301 && r->status <= 303) || r->status == 307 || r->status == 308;
}

tarn__hub_outcome tarn__hub_transfer(tarn__hub_client *client, const tarn__hub_request *request,
                                     tarn__hub_response *response, char why[400])
{
    char url[TARN__HUB_PATH], base[TARN__HUB_PATH], next[TARN__HUB_PATH], *target = NULL;
    client->request = request;
    client->response = response;
    client->is_aborted = false;
    snprintf(url, sizeof(url), "%s", request->url);
    if (!origin_of(client->library, client->settings->endpoint, base)) {
        tarn_set_error(TARN_ERROR_ARGUMENT, "HF_ENDPOINT is '%.200s'; expected a URL of http or https",
                       client->settings->endpoint);
        return TARN__HUB_REFUSED;
    }
    for (int hop = 0; hop <= MAX_REDIRECTS; hop++) {
        tarn__hub_outcome outcome = perform(client, url, base, why);
        client->library->easy_getinfo(client->curl, CURLINFO_REDIRECT_URL, &target);
        if (outcome != TARN__HUB_ANSWERED || !is_redirect(response) || !target)
            return outcome;
        if (strlen(target) >= sizeof(url))
            break;
        /* What the endpoint says about a file that lies elsewhere is in the redirect itself. */
        if (request->head && (!origin_of(client->library, target, next) || strcmp(next, base) != 0))
            return TARN__HUB_ANSWERED;
        snprintf(url, sizeof(url), "%s", target);
    }
    tarn_set_error(TARN_ERROR_FORMAT, "the hub redirects more than %d times, or to an address of over %d bytes",
                   MAX_REDIRECTS, TARN__HUB_PATH - 1);
    return TARN__HUB_REFUSED;
}
