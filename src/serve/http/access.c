/* access.c: the Host and Origin headers of a request. */
#include "serve/http/access.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

/* Splits "name:port" and "[::1]:port"; the name is copied without brackets. False: not well-formed. */
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

bool tarn__http_access_is_foreign(const tarn__http_access *a, const char *origin)
{
    for (int i = 0; origin && i < a->origin_count; i++)
        if (strcmp(origin, a->origins[i]) == 0)
            return true;
    return false;
}

const char *tarn__http_access_refusal(const tarn__http_access *a, const tarn__http_request *request)
{
    const char *host = tarn__http_request_header(request, "Host"),
               *origin = tarn__http_request_header(request, "Origin");
    char name[256];
    if (host && (!read_host(host, name, sizeof(name)) || !(a->any_host || is_own(a, name))))
        return "the Host header names another server";
    if (!origin || tarn__http_access_is_foreign(a, origin))
        return NULL;
    const char *authority = strstr(origin, "://");
    if (!host || !authority || strcasecmp(authority + 3, host) != 0)
        return "the page that sends this request is of another origin";
    return NULL;
}
