/* tuning_cache.h: tuning results that outlive the process: key → value, both of fixed size, in a text file of the
 * user's cache folder. The candidates, and measuring them, are the backend's.
 *
 * A line is a key and its value as hexadecimal bytes, so neither may have padding. Files are only appended to, a line
 * in one write: of two processes that append at once, both lines survive. The last line of a key wins. A line of
 * another size, or cut off, is ignored: its candidates are timed again. No function raises an error; callers lock. */
#ifndef TARN__TUNING_CACHE_H
#define TARN__TUNING_CACHE_H

#include <stdbool.h>
#include <stddef.h>

#define TARN__TUNING_MAX_BYTES 2048 /* of a key and its value */

/* Zero-initialized but for the sizes. */
typedef struct tarn__tuning_cache {
    size_t key_bytes, value_bytes;
    bool is_open;
    bool is_cut;     /* the file ends within a line */
    char name[400];  /* of the file, and in exported lines; empty: nothing is exported */
    char path[1100]; /* empty: no cache folder */
    char *records;   /* key, value, and a byte: used by this process */
    int count;
} tarn__tuning_cache;

/* Reads the file `name` in the cache folder, or in the folder `below` of it (NULL: none). */
void tarn__tuning_cache_open(tarn__tuning_cache *cache, const char *below, const char *name);
void tarn__tuning_cache_close(tarn__tuning_cache *cache);

/* Copies the value of a key; false if there is none. `marks`: it counts as used. */
bool tarn__tuning_cache_find(tarn__tuning_cache *cache, const void *key, void *value, bool marks);

/* Remembers a used value and appends it to the file. */
void tarn__tuning_cache_store(tarn__tuning_cache *cache, const void *key, const void *value);

/* Used values, the newest of each key, for checkpoints: a line is the file's name, a space, and the line of the file.
 * An imported line of this name wins over the file, into which it is not written. */
void tarn__tuning_cache_export(const tarn__tuning_cache *cache, void (*take)(void *ctx, const char *line), void *ctx);
void tarn__tuning_cache_import(tarn__tuning_cache *cache, const char *line);

#endif
