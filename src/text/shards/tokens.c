/* tokens.c: reads token files through maps, as one sequence of tokens over all files of a split.
 *
 * Headers and sizes are checked when files are opened. Ids are checked as they are read: an id outside the vocabulary
 * would make an embedding read out of bounds. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/platform.h"
#include "formats/json_file.h"
#include "text/shards/shards.h"

struct tarn_tokens {
    tarn__map *map;            /* [count], owned */
    int64_t *begin;            /* [count + 1]: position of each file's first token; last: total */
    size_t capacity;           /* of map, in files */
    int count;                 /* files */
    uint64_t hash, vocabulary; /* of the tokenizer; equal in all files */
    uint32_t width;            /* bytes per id */
};

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static bool raise_file(const char *path, const char *problem)
{
    return tarn__raise(TARN_ERROR_FORMAT, "tokens_open: '%s': %s", path, problem);
}

/* Checks a header against the file's size, and against the files before it. */
static bool check_header(const tarn_tokens *tokens, const char *path, const tarn__map *map,
                         const tarn__shard_header *header)
{
    if (header->version != TARN__SHARD_VERSION)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "tokens_open: '%s': version %u of the format is not supported; it must be %d", path,
                           header->version, TARN__SHARD_VERSION);
    if ((header->width != 2 && header->width != 4) || header->vocabulary == 0 || header->vocabulary > INT32_MAX)
        return raise_file(path, "ids of neither 2 nor 4 bytes, or no vocabulary size");
    if (header->count > (uint64_t)INT64_MAX / 8 ||
        map->bytes - TARN__SHARD_HEADER_BYTES != header->count * header->width)
        return tarn__raise(
            TARN_ERROR_FORMAT,
            "tokens_open: '%s': the header has %llu ids of %u bytes, but %zu bytes follow; is the file incomplete?",
            path, (unsigned long long)header->count, header->width, map->bytes - TARN__SHARD_HEADER_BYTES);
    if (tokens->count > 0 &&
        (header->hash != tokens->hash || header->vocabulary != tokens->vocabulary || header->width != tokens->width))
        return raise_file(path, "written with another tokenizer than the files before it");
    return true;
}

/* Maps a file and appends it; there is capacity for it. */
static bool add_file(tarn_tokens *tokens, const char *path)
{
    tarn__map *map = &tokens->map[tokens->count];
    tarn__shard_header header;
    if (!tarn__map_open(map, "tokens_open", path))
        return false;
    bool good =
        map->bytes >= TARN__SHARD_HEADER_BYTES && tarn__shard_header_read((const unsigned char *)map->memory, &header);
    good = good ? check_header(tokens, path, map, &header)
                : raise_file(path, "not a token file: it does not begin with " TARN__SHARD_MAGIC);
    if (!good) {
        tarn__map_close(map);
        return false;
    }
    tokens->hash = header.hash;
    tokens->vocabulary = header.vocabulary;
    tokens->width = header.width;
    tokens->begin[tokens->count + 1] = tokens->begin[tokens->count] + (int64_t)header.count;
    tokens->count++;
    return true;
}

/* Allocates the arrays of `files` files; the caller closes the result. NULL with an error. */
static tarn_tokens *alloc_tokens(size_t files)
{
    tarn_tokens *tokens = tarn__alloc(sizeof(*tokens));
    if (!tokens)
        return NULL;
    tokens->capacity = files;
    tokens->map = tarn__alloc(files * sizeof(*tokens->map));
    tokens->begin = tarn__alloc((files + 1) * sizeof(*tokens->begin));
    if (tokens->map && tokens->begin)
        return tokens;
    tarn_tokens_close(tokens);
    return NULL;
}

/* Opens the files listed in the index. Names and counts must be as tarn writes them: a renamed or replaced file is an
 * error. */
static bool add_files(tarn_tokens *tokens, const tarn__json_file *index, const char *folder, const char *split)
{
    char path[8192], key[64], expected[64];
    for (size_t i = 0; i < tokens->capacity; i++) {
        int64_t count;
        tarn__shard_name(expected, sizeof(expected), NULL, split, (int)i);
        snprintf(key, sizeof(key), "%s.files", split);
        const char *name = tarn__json_file_string_at(index, key, i);
        snprintf(key, sizeof(key), "%s.counts", split);
        if (!name || !tarn__json_file_int_at(index, key, i, 0, INT64_MAX / 8, &count))
            return false;
        snprintf(path, sizeof(path), "%s/%s", folder, expected);
        if (strcmp(name, expected) != 0)
            return raise_file(path, "the index names another file here");
        if (!add_file(tokens, path))
            return false;
        if (tokens->begin[i + 1] - tokens->begin[i] != count)
            return raise_file(path, "has another number of tokens than in the index");
    }
    return true;
}

/* Opens a split by the folder's index. */
static tarn_tokens *open_folder(const char *folder, const char *split)
{
    char path[8192], key[64], hash[32];
    snprintf(path, sizeof(path), "%s/" TARN__SHARD_INDEX, folder);
    snprintf(key, sizeof(key), "%s.files", split);
    tarn__json_file *index = tarn__json_file_open("tokens_open", path);
    size_t files = 0;
    tarn_tokens *tokens = NULL;
    const char *named = index ? tarn__json_file_string(index, "tokenizer_hash") : NULL;
    if (named && !tarn__json_file_has(index, key))
        tarn__raise(TARN_ERROR_ARGUMENT, "tokens_open: '%s' has no tokens for '%s'%s", folder, split,
                    strcmp(split, "valid") == 0 ? "; prepare the files with a validation fraction" : "");
    if (named && tarn__json_file_count(index, key, TARN__MAX_SHARDS, &files) &&
        (tokens = alloc_tokens(files)) != NULL && add_files(tokens, index, folder, split)) {
        snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)tokens->hash);
        if (tokens->count == 0 || strcmp(hash, named) != 0)
            raise_file(path, "names another tokenizer than the files, or no files");
    }
    tarn__json_file_free(index);
    if (!tarn_failed())
        return tokens;
    tarn_tokens_close(tokens);
    return NULL;
}

/* Opens a single file as a split of its own. */
static tarn_tokens *open_file(const char *path)
{
    tarn_tokens *tokens = alloc_tokens(1);
    if (tokens && add_file(tokens, path))
        return tokens;
    tarn_tokens_close(tokens);
    return NULL;
}

/* A folder needs a split, a file must not have one. */
tarn_tokens *tarn_tokens_open(const char *path, const char *split)
{
    if (tarn_failed())
        return NULL;
    if (!path || !path[0] || strlen(path) > 4000) {
        tarn__raise(TARN_ERROR_ARGUMENT, "tokens_open: the path of a folder or file is required");
        return NULL;
    }
    bool exists = tarn__path_exists(path), is_folder = exists && tarn__platform_file_bytes(path) == -2;
    if (exists &&
        (is_folder ? !split || (strcmp(split, "train") != 0 && strcmp(split, "valid") != 0) : split != NULL)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "tokens_open: '%s' is %s: the split is %s, not '%s'", path,
                    is_folder ? "a folder" : "no folder", is_folder ? "train or valid" : "NULL",
                    split ? split : "NULL");
        return NULL;
    }
    return is_folder ? open_folder(path, split) : open_file(path);
}

void tarn_tokens_close(tarn_tokens *tokens)
{
    if (!tokens)
        return;
    for (int i = 0; i < tokens->count; i++)
        tarn__map_close(&tokens->map[i]);
    tarn__release(tokens->map, tokens->capacity * sizeof(*tokens->map));
    tarn__release(tokens->begin, (tokens->capacity + 1) * sizeof(*tokens->begin));
    tarn__release(tokens, sizeof(*tokens));
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool check_tokens(const tarn_tokens *tokens, const char *function)
{
    if (tarn_failed())
        return false;
    return tokens || tarn__raise(TARN_ERROR_ARGUMENT, "%s: tokens is NULL", function);
}

int64_t tarn_tokens_count(const tarn_tokens *tokens)
{
    return check_tokens(tokens, "tokens_count") ? tokens->begin[tokens->count] : -1;
}

int64_t tarn_tokens_vocab_size(const tarn_tokens *tokens)
{
    return check_tokens(tokens, "tokens_vocab_size") ? (int64_t)tokens->vocabulary : -1;
}

uint64_t tarn_tokens_hash(const tarn_tokens *tokens)
{
    return check_tokens(tokens, "tokens_hash") ? tokens->hash : 0;
}

/* The file of a token, by binary search. */
static int file_of(const tarn_tokens *tokens, int64_t position)
{
    int low = 0, high = tokens->count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        *(tokens->begin[middle] <= position ? &low : &high) = tokens->begin[middle] <= position ? middle : middle - 1;
    }
    return low;
}

/* Copies ids of one file and checks the largest against the vocabulary, once per call. */
static bool copy(const tarn_tokens *tokens, int file, int64_t from, int64_t count, int32_t *ids)
{
    const unsigned char *at =
        (const unsigned char *)tokens->map[file].memory + TARN__SHARD_HEADER_BYTES + from * tokens->width;
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++, at += tokens->width) {
        uint32_t id = (uint32_t)(at[0] | at[1] << 8);
        if (tokens->width == 4)
            id |= (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        largest = id > largest ? id : largest;
        ids[i] = (int32_t)id;
    }
    return largest < tokens->vocabulary ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "tokens_read: file %d has the id %u, outside its vocabulary of %llu; is it damaged?", file,
                       largest, (unsigned long long)tokens->vocabulary);
}

/* A range may span files: it is copied file by file. */
bool tarn_tokens_read(const tarn_tokens *tokens, int64_t position, int64_t count, int32_t *ids)
{
    if (!check_tokens(tokens, "tokens_read"))
        return false;
    int64_t total = tokens->begin[tokens->count];
    if (position < 0 || count < 0 || position > total || count > total - position || (!ids && count))
        return tarn__raise(
            TARN_ERROR_ARGUMENT,
            "tokens_read: %lld tokens from position %lld are out of range, or ids is NULL; there are %lld",
            (long long)count, (long long)position, (long long)total);
    while (count > 0) {
        int file = file_of(tokens, position);
        int64_t here = tokens->begin[file + 1] - position, now = here < count ? here : count;
        if (!copy(tokens, file, position - tokens->begin[file], now, ids))
            return false;
        position += now;
        ids += now;
        count -= now;
    }
    return true;
}
