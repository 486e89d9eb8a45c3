/* keys.h: API keys of a file, one per line; empty lines and those that begin with # are skipped. */
#ifndef TARN__KEYS_H
#define TARN__KEYS_H

#include <stdbool.h>
#include <stddef.h>

/* Characters of a key, and keys of a file. */
enum { TARN__API_KEY_MIN = 8, TARN__API_KEY_MAX = 512, TARN__API_KEYS_MAX = 10000 };

typedef struct tarn__api_keys {
    char **keys; /* owned */
    int count;
} tarn__api_keys;

/* Reads a file. False: `error` holds a sentence; a file without a key is one. */
bool tarn__api_keys_read(tarn__api_keys *keys, const char *path, char *error, size_t error_size);

/* True if an Authorization header, or NULL, is "Bearer KEY" with one of the keys. The time depends on the length of the
 * header and the number of keys alone. */
bool tarn__api_keys_allow(const tarn__api_keys *keys, const char *authorization);

void tarn__api_keys_free(tarn__api_keys *keys);

#endif
