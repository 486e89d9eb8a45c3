/* keys.c: API keys: their file, and the comparison in constant time.
 *
 * A comparison that ended at the first character that differs would tell, by its time, how many were right. */
#include "serve/http/keys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/types.h>

/* A sentence about a key that cannot be one; NULL: it can. */
static const char *key_problem(const char *key)
{
    size_t length = strlen(key);
    if (length < TARN__API_KEY_MIN || length > TARN__API_KEY_MAX)
        return "a key must have 8 to 512 characters";
    for (const char *c = key; *c; c++)
        if (*c <= ' ' || *c >= 0x7f)
            return "a key must be of printable ASCII characters without spaces";
    return NULL;
}

static bool add_key(tarn__api_keys *keys, const char *key)
{
    char **grown = realloc(keys->keys, (size_t)(keys->count + 1) * sizeof(*grown));
    if (!grown)
        return false;
    keys->keys = grown;
    grown[keys->count] = strdup(key);
    return grown[keys->count] && ++keys->count;
}

bool tarn__api_keys_read(tarn__api_keys *keys, const char *path, char *error, size_t error_size)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    const char *problem = NULL;
    int number = 0;
    FILE *file = fopen(path, "rb");
    if (!file) {
        snprintf(error, error_size, "'%s' cannot be opened: %s", path, strerror(errno));
        return false;
    }
    while (!problem && (length = getline(&line, &capacity, file)) >= 0) {
        number++;
        /* also the \r of a file written on Windows; strlen() below finds a 0 byte in the middle */
        while (length > 0 && strchr("\r\n \t", line[length - 1]))
            line[--length] = 0;
        if (!length || line[0] == '#')
            continue;
        problem = keys->count == TARN__API_KEYS_MAX ? "there are more than 10000 keys"
                  : strlen(line) != (size_t)length  ? "a key must not have a 0 byte"
                                                    : key_problem(line);
        if (!problem && !add_key(keys, line))
            problem = "no memory for the key";
    }
    if (!problem && ferror(file))
        problem = strerror(errno);
    fclose(file);
    free(line);
    if (problem)
        snprintf(error, error_size, "'%s', line %d: %s", path, number, problem);
    else if (!keys->count)
        snprintf(error, error_size, "'%s' has no key; expected one per line", path);
    if (!problem && keys->count)
        return true;
    tarn__api_keys_free(keys);
    return false;
}

/* Compares as many characters as were given, whatever the key. */
static unsigned differs(const char *given, size_t length, const char *key)
{
    size_t own = strlen(key);
    unsigned difference = own != length;
    for (size_t i = 0; i < length; i++)
        difference |= (unsigned char)given[i] ^ (unsigned char)key[i % own];
    return difference;
}

bool tarn__api_keys_allow(const tarn__api_keys *keys, const char *authorization)
{
    unsigned is_one = 0;
    /* the scheme's name has no case (RFC 9110), the key has */
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
        return false;
    const char *given = authorization + 7;
    size_t length = strlen(given);
    if (length > TARN__API_KEY_MAX)
        return false;
    for (int i = 0; i < keys->count; i++)
        /* all of them, whichever is the right one */
        is_one |= differs(given, length, keys->keys[i]) == 0;
    return is_one;
}

void tarn__api_keys_free(tarn__api_keys *keys)
{
    for (int i = 0; i < keys->count; i++)
        free(keys->keys[i]);
    free(keys->keys);
    *keys = (tarn__api_keys){0};
}
