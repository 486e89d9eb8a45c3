/* settings.c: where the hub is and where its models are kept, by the environment variables of Hugging Face's tools.
 *
 * Each is read once per command, and a value that cannot be used is an error rather than ignored: a misspelt endpoint
 * must not send a token elsewhere. The order is huggingface_hub's:
 *   cache   HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub
 *   token   HF_TOKEN, the file HF_TOKEN_PATH, and `token` where `hub` is without HF_HUB_CACHE */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <tarn/base.h>

#include "hub/hub.h"

#define DEFAULT_ENDPOINT "https://huggingface.co"
enum { DEFAULT_TIMEOUT = 30, MAX_TIMEOUT = 3600 };

/* A variable that is set and not empty, or NULL. */
static const char *variable(const char *name)
{
    const char *text = getenv(name);
    return text && text[0] ? text : NULL;
}

/* Joins two parts, with "~/" at the beginning as the home folder. False with an error that names the variable. */
static bool join(char *to, size_t size, const char *name, const char *head, const char *tail)
{
    const char *home = variable("HOME");
    bool is_home = head[0] == '~' && (head[1] == '/' || !head[1]);
    if (is_home && !home)
        return tarn_set_error(TARN_ERROR_ARGUMENT, "%s is '%s', and HOME is not set; expected an absolute path", name,
                              head);
    int length = snprintf(to, size, "%s%s%s", is_home ? home : "", is_home ? head + 1 : head, tail);
    if (length < 0 || (size_t)length >= size)
        return tarn_set_error(TARN_ERROR_ARGUMENT, "%s is too long: %d bytes; expected at most %d", name, length,
                              (int)size - 1);
    return true;
}

/* HF_HOME, or its default in the user's cache folder, and `tail`. */
static bool in_home(char *to, size_t size, const char *tail)
{
    char rest[64];
    const char *home = variable("HF_HOME"), *cache = variable("XDG_CACHE_HOME");
    if (home)
        return join(to, size, "HF_HOME", home, tail);
    snprintf(rest, sizeof(rest), "/huggingface%s", tail);
    return cache ? join(to, size, "XDG_CACHE_HOME", cache, rest) : join(to, size, "the cache folder", "~/.cache", rest);
}

/* Without slashes at the end, but "/" itself. */
bool tarn__hub_cache(char cache[TARN__HUB_PATH])
{
    const char *given = variable("HF_HUB_CACHE");
    bool good = given ? join(cache, TARN__HUB_PATH, "HF_HUB_CACHE", given, "") : in_home(cache, TARN__HUB_PATH, "/hub");
    for (size_t length = strlen(cache); good && length > 1 && cache[length - 1] == '/'; length--)
        cache[length - 1] = 0;
    return good;
}

/* The file of `hf auth login`. No file is no token. One that cannot be read is an error: the pull of a private model
 * would fail with a less useful one. */
static bool read_token_file(char *token, size_t size)
{
    char path[TARN__HUB_PATH];
    const char *given = variable("HF_TOKEN_PATH");
    if (!(given ? join(path, sizeof(path), "HF_TOKEN_PATH", given, "") : in_home(path, sizeof(path), "/token")))
        return false;
    FILE *file = fopen(path, "r");
    token[0] = 0;
    if (!file)
        return errno == ENOENT || errno == ENOTDIR ||
               tarn_set_error(TARN_ERROR_IO, "cannot read the token in '%s': %s", path, strerror(errno));
    token[fread(token, 1, size - 1, file)] = 0;
    bool is_whole = feof(file);
    fclose(file);
    return is_whole ||
           tarn_set_error(TARN_ERROR_FORMAT, "'%s' is no token: it has more than %d bytes", path, (int)size - 2);
}

/* White space around it is removed; anything inside but visible ASCII would break the header that carries it. */
static bool read_token(char *token, size_t size)
{
    const char *given = variable("HF_TOKEN");
    if (!given && !read_token_file(token, size))
        return false;
    if (given && strlen(given) >= size)
        return tarn_set_error(TARN_ERROR_ARGUMENT, "HF_TOKEN is too long: %zu bytes; expected at most %d",
                              strlen(given), (int)size - 1);
    if (given)
        snprintf(token, size, "%s", given);
    size_t begin = strspn(token, " \t\r\n"), end = strlen(token);
    while (end > begin && strchr(" \t\r\n", token[end - 1]))
        end--;
    memmove(token, token + begin, end - begin);
    token[end - begin] = 0;
    for (const char *c = token; *c; c++)
        if (*c <= ' ' || *c >= 0x7F)
            return tarn_set_error(TARN_ERROR_ARGUMENT,
                                  "the token of the hub (%s) has a space or a character that is not ASCII; expected "
                                  "one word, as hf_...",
                                  given ? "HF_TOKEN" : "its file");
    return true;
}

/* A mirror may have a path, "https://host/hf". User and password ('@'), queries and fragments are refused: they
 * would end up in messages, or in the middle of the URLs made from it. */
static bool read_endpoint(char *endpoint, size_t size)
{
    const char *given = variable("HF_ENDPOINT");
    given = given ? given : DEFAULT_ENDPOINT;
    bool is_url = strncasecmp(given, "https://", 8) == 0 || strncasecmp(given, "http://", 7) == 0;
    if (!is_url || strlen(given) >= size || strpbrk(given, "?#@ \t\r\n"))
        return tarn_set_error(TARN_ERROR_ARGUMENT,
                              "HF_ENDPOINT is '%.200s'; expected http:// or https://, a host and perhaps a path",
                              given);
    snprintf(endpoint, size, "%s", given);
    for (size_t length = strlen(endpoint); endpoint[length - 1] == '/'; length--)
        endpoint[length - 1] = 0;
    return true;
}

/* As huggingface_hub reads it: 1, ON, YES and TRUE in any case. */
static bool is_true(const char *text)
{
    return text && (strcmp(text, "1") == 0 || strcasecmp(text, "on") == 0 || strcasecmp(text, "yes") == 0 ||
                    strcasecmp(text, "true") == 0);
}

bool tarn__hub_settings_read(tarn__hub_settings *settings)
{
    const char *timeout = variable("HF_HUB_DOWNLOAD_TIMEOUT");
    char *end = NULL;
    *settings = (tarn__hub_settings){.offline = is_true(variable("HF_HUB_OFFLINE")), .timeout = DEFAULT_TIMEOUT};
    if (timeout) {
        settings->timeout = strtol(timeout, &end, 10);
        /* a number out of strtol()'s range is LONG_MAX, and so above the bound */
        if (*end || settings->timeout < 1 || settings->timeout > MAX_TIMEOUT)
            return tarn_set_error(TARN_ERROR_ARGUMENT, "HF_HUB_DOWNLOAD_TIMEOUT is '%.50s'; expected 1 to %d seconds",
                                  timeout, MAX_TIMEOUT);
    }
    return read_endpoint(settings->endpoint, sizeof(settings->endpoint)) && tarn__hub_cache(settings->cache) &&
           read_token(settings->token, sizeof(settings->token));
}
