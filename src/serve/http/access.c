/* access.c: the Host and Origin headers of a request, or the host of its target in place of the first.
 *
 * Both headers are written by the browser and cannot be set by a page's script, which is what makes them proof.
 * Programs other than browsers may send anything, and are kept out by API keys instead. A request without Host is
 * one of HTTP/1.0, which no browser sends. */
#include "serve/http/access.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

/* Splits "name:port" and "[::1]:port"; the name is copied without brackets. False: not well-formed. The port is not
 * compared: a tunnel or a container may show this server under another one. */
static bool read_host(const char *host, char *name, size_t size)
{
    const char *begin = host, *end;
    if (*host == '[') {
        begin = host + 1;
        end = strchr(begin, ']');
        if (!end)
            return false;
        host = end + 1;
    } else {
        end = begin + strcspn(begin, ":");
        host = end;
    }
    size_t length = (size_t)(end - begin);
    if (!length || length >= size || (*host && *host != ':'))
        return false;
    if (*host == ':' && strspn(host + 1, "0123456789") != strlen(host + 1))
        return false;
    memcpy(name, begin, length);
    name[length] = 0;
    return true;
}

static bool is_loopback(const char *name)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (strcasecmp(name, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, name, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, name, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

static bool is_own(const tarn__http_access *a, const char *name)
{
    if (is_loopback(name) || strcasecmp(name, a->address) == 0)
        return true;
    for (int i = 0; i < a->name_count; i++)
        if (strcasecmp(name, a->names[i]) == 0)
            return true;
    return false;
}

/* Byte by byte: browsers write origins in lower case and without a default port. */
bool tarn__http_access_is_foreign(const tarn__http_access *a, const char *origin)
{
    for (int i = 0; origin && i < a->origin_count; i++)
        if (strcmp(origin, a->origins[i]) == 0)
            return true;
    return false;
}

const char *tarn__http_access_refusal(const tarn__http_access *a, const tarn__http_request *request)
{
    const char *host = tarn__http_request_host(request), *origin = tarn__http_request_header(request, "Origin");
    char name[256];
    if (host && (!read_host(host, name, sizeof(name)) || !(a->any_host || is_own(a, name))))
        return request->authority ? "the request's target names another server"
                                  : "the Host header names another server";
    if (!origin || tarn__http_access_is_foreign(a, origin))
        return NULL;
    /* "http://localhost:8080" is of the server that Host names as "localhost:8080". The scheme is left out of it,
     * since a proxy before this server may speak https; "null", of a sandboxed page or a file, has no authority. */
    const char *authority = strstr(origin, "://");
    if (!host || !authority || strcasecmp(authority + 3, host) != 0)
        return "the page that sends this request is of another origin";
    return NULL;
}
