/* load_server.c: the server under load: its URL, and what it says about its model.
 *
 * Asked once before the load, with plain blocking calls: the vocabulary for prompts, the context for their length.
 * The address is resolved here as well, so the measurement has no resolver in it. */
#include "cli/bench/load.h"

#include "tarn_features.h"

#if TARN__HAVE_EVENT && TARN__HAVE_JANSSON

#include <errno.h>
#include <jansson.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define ANSWER_SECONDS 30

/* Splits "http://HOST:PORT/"; HOST may be an IPv6 address in brackets. "http://[::1]:8080" is "::1" and "8080"; the
 * port is 80 without one, and a path other than "/" is refused. */
static bool split_url(const char *url, char host[256], char port[8])
{
    const char *authority = url + strlen("http://");
    size_t length = strcspn(authority, "/");
    if (authority[length] && authority[length + 1])
        return false;
    const char *end = authority + length, *close = authority[0] == '[' ? memchr(authority, ']', length) : NULL;
    const char *from = authority + (close != NULL), *rest = close ? close : authority;
    const char *colon = memchr(rest, ':', (size_t)(end - rest));
    const char *until = close ? close : colon ? colon : end;
    if (until == from || until - from > 255 || (colon && (end - colon < 2 || end - colon > 6)))
        return false;
    snprintf(host, 256, "%.*s", (int)(until - from), from);
    snprintf(port, 8, "%.*s", colon ? (int)(end - colon - 1) : 2, colon ? colon + 1 : "80");
    return strspn(port, "0123456789") == strlen(port);
}

bool tarn__load_server_open(tarn__load_server *server, const char *url, char *error, size_t error_size)
{
    char host[256], port[8];
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM};
    if (!split_url(url, host, port)) {
        snprintf(error, error_size, "'%s' must be a URL such as http://127.0.0.1:8080", tarn__escaped(url));
        return false;
    }
    int status = getaddrinfo(host, port, &hints, &found);
    if (status != 0) {
        snprintf(error, error_size, "%s: %s", tarn__escaped(host), gai_strerror(status));
        return false;
    }
    /* the first address, if there are several */
    memcpy(&server->address, found->ai_addr, found->ai_addrlen);
    server->address_size = found->ai_addrlen;
    snprintf(server->host, sizeof(server->host), strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    freeaddrinfo(found);
    return true;
}

/* All that the server sends until it closes. False with errno. At most about 1 MiB: /props is small. */
static bool read_answer(int s, tarn__input *answer)
{
    char bytes[4096];
    ssize_t count;
    while ((count = recv(s, bytes, sizeof(bytes), 0)) > 0)
        if (answer->length > 1 << 20 || !tarn__input_add(answer, bytes, (size_t)count)) {
            errno = ENOMEM;
            return false;
        }
    return count == 0 && tarn__input_add(answer, "", 0);
}

/* GET of a path, whole. False with errno. */
static bool fetch(const tarn__load_server *server, const char *path, tarn__input *answer)
{
    char request[2048];
    const struct timeval most = {ANSWER_SECONDS, 0};
    int s = socket(server->address.ss_family, SOCK_STREAM, 0);
    if (s < 0)
        return false;
    int length = snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n%s%s%s\r\n",
                          path, server->host, server->key ? "Authorization: Bearer " : "",
                          server->key ? server->key : "", server->key ? "\r\n" : "");
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most));
    setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof(most));
    bool good = connect(s, (const struct sockaddr *)&server->address, server->address_size) == 0 &&
                send(s, request, (size_t)length, MSG_NOSIGNAL) == length && read_answer(s, answer);
    /* close() may set another */
    int reason = errno;
    close(s);
    errno = reason;
    return good;
}

/* The members of /props that matter. */
static bool read_props(tarn__load_model *model, const char *body)
{
    json_t *root = json_loads(body, 0, NULL);
    const char *name = json_string_value(json_object_get(root, "model"));
    model->vocab_size = json_integer_value(json_object_get(root, "vocab_size"));
    model->context = json_integer_value(json_object_get(root, "context"));
    snprintf(model->name, sizeof(model->name), "%s", name ? name : "");
    json_decref(root);
    return name && model->vocab_size > 0 && model->context > 0;
}

bool tarn__load_server_query(const tarn__load_server *server, tarn__load_model *model, char *error, size_t error_size)
{
    tarn__input answer = {0};
    bool good = fetch(server, "/props", &answer);
    const char *body = good ? strstr(answer.text, "\r\n\r\n") : NULL;
    /* "HTTP/1.1 200 OK": the status begins at the tenth character */
    int status = body && strncmp(answer.text, "HTTP/1.", 7) == 0 ? atoi(answer.text + 9) : 0;
    if (!good)
        snprintf(error, error_size, "%s does not answer: %s", tarn__escaped(server->host), strerror(errno));
    else if (status == 401)
        snprintf(error, error_size, "%s needs an API key: give --api-key-file", tarn__escaped(server->host));
    else if (status == 503)
        snprintf(error, error_size, "%s is still loading its model; try again later", tarn__escaped(server->host));
    else if (status != 200 || !read_props(model, body + 4))
        snprintf(error, error_size, "%s is no tarn serve: GET /props has status %d and no model",
                 tarn__escaped(server->host), status);
    else
        error[0] = 0;
    free(answer.text);
    return !error[0];
}

#endif
