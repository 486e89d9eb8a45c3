/* gguf_shards.c: a model in several GGUF files, opened as one.
 *
 * Shard I of N is named PREFIX-0000I-of-0000N.gguf. Its keys have its number from 0 (split.no), N (split.count) and the
 * tensors of all shards (split.tensors.count). The first has the model's metadata and often no tensors; other metadata
 * of the others is ignored.
 *
 * Files are not trusted: names of the others come from the path that was given and from numbers, so that no file can
 * name one outside its folder. Their sum of tensors is bounded by the first shard's count before memory is allocated
 * for it. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "formats/gguf.h"

enum { DIGITS = 5, ENDING = sizeof("-00001-of-00001.gguf") - 1 };

static const char function[] = "gguf_open";

/* What a file says of its model's shards. */
typedef struct split {
    int64_t no, count, tensors;
} split;

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* A file without split.count, or with 0 or 1, is not sharded. */
static bool read_split(const tarn_gguf *file, split *s)
{
    *s = (split){0};
    if (!tarn_gguf_has(file, TARN__GGUF_SPLIT_COUNT, NULL))
        return !tarn_failed();
    bool good = tarn_gguf_int(file, TARN__GGUF_SPLIT_COUNT, 0, UINT16_MAX, &s->count) &&
                (s->count < 2 || (tarn_gguf_int(file, TARN__GGUF_SPLIT_NO, 0, s->count - 1, &s->no) &&
                                  tarn_gguf_int(file, TARN__GGUF_SPLIT_TENSORS, 0, TARN__GGUF_MAX_COUNT, &s->tensors)));
    return good || tarn__raise_within(function);
}

bool tarn__gguf_is_split_key(const tarn_gguf *file, const char *key)
{
    return file->shards > 0 && (strcmp(key, TARN__GGUF_SPLIT_NO) == 0 || strcmp(key, TARN__GGUF_SPLIT_COUNT) == 0 ||
                                strcmp(key, TARN__GGUF_SPLIT_TENSORS) == 0);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* Checks that a shard's name ends in its numbers: without that the others cannot be found. */
static bool check_name(const tarn_gguf *file, const split *s)
{
    char ending[64];
    snprintf(ending, sizeof(ending), "-%05lld-of-%05lld.gguf", (long long)s->no + 1, (long long)s->count);
    size_t length = strlen(file->path);
    return (length >= ENDING && strcmp(file->path + length - ENDING, ending) == 0) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' is shard %lld of %lld; its name must end in '%s'", function,
                       file->path, (long long)s->no + 1, (long long)s->count, ending);
}

/* The path of another shard, with its number in the place of this one's. The caller frees it. NULL with an error. */
static char *path_of(const tarn_gguf *file, int64_t no)
{
    char digits[24], *path = tarn__string_copy(file->path);
    snprintf(digits, sizeof(digits), "%05lld", (long long)no + 1);
    if (path)
        memcpy(path + strlen(path) - ENDING + 1, digits, DIGITS);
    return path;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Checks a number in a shard against that in the file it is opened for. */
static bool check_number(const tarn_gguf *shard, const tarn_gguf *file, const char *key, int64_t found, int64_t wanted)
{
    return found == wanted ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '%s' is %lld; it must be %lld to be a shard of the model of '%s'",
                       function, shard->path, key, (long long)found, (long long)wanted, file->path);
}

static bool check_shard(const tarn_gguf *shard, const tarn_gguf *file, const split *s, int64_t no)
{
    split found;
    return read_split(shard, &found) && check_number(shard, file, TARN__GGUF_SPLIT_COUNT, found.count, s->count) &&
           check_number(shard, file, TARN__GGUF_SPLIT_NO, found.no, no) &&
           check_number(shard, file, TARN__GGUF_SPLIT_TENSORS, found.tensors, s->tensors);
}

/* Opens shard `no` of the model that `file` is a shard of; NULL with an error. */
static tarn_gguf *open_shard(const tarn_gguf *file, const split *s, int64_t no)
{
    char *path = path_of(file, no);
    tarn_gguf *shard = NULL;
    if (path && !tarn__path_exists(path))
        tarn__raise(TARN_ERROR_IO, "%s: '%s' not found; it is shard %lld of %lld of the model of '%s'", function, path,
                    (long long)no + 1, (long long)s->count, file->path);
    else if (path)
        shard = tarn__gguf_open_file(path);
    tarn__string_free(path);
    if (!shard || check_shard(shard, file, s, no))
        return shard;
    tarn_gguf_close(shard);
    return NULL;
}

/* Opens all shards after the first, and counts the tensors of all. */
static bool open_others(tarn_gguf *file, const split *s)
{
    int64_t tensors = file->tensors;
    file->shard = tarn__alloc(sizeof(*file->shard) * (size_t)(s->count - 1));
    if (!file->shard)
        return false;
    file->shards = (int)s->count - 1;
    for (int i = 0; i < file->shards && tensors <= s->tensors; i++) {
        if (!(file->shard[i] = open_shard(file, s, i + 1)))
            return false;
        tensors += file->shard[i]->tensors;
    }
    return tensors == s->tensors ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '%s' is %lld, but its shards have %s%lld tensors", function,
                       file->path, TARN__GGUF_SPLIT_TENSORS, (long long)s->tensors,
                       tensors > s->tensors ? "at least " : "", (long long)tensors);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Moves the tensors of a file to `to`. It stays open for their elements. */
static int move_tensors(tarn_gguf *file, tarn__gguf_tensor *to)
{
    int count = file->tensors;
    if (count)
        memcpy(to, file->tensor, sizeof(*to) * (size_t)count);
    tarn__release(file->tensor, sizeof(*to) * (size_t)count);
    tarn__release(file->tensor_named, sizeof(tarn__gguf_named) * (size_t)count);
    file->tensor = NULL;
    file->tensor_named = NULL;
    file->tensors = 0;
    return count;
}

/* Gives the first shard the tensors of all, in the order of the shards. */
static bool gather(tarn_gguf *file, int64_t count)
{
    int at = 0;
    tarn__gguf_tensor *all = tarn__alloc(sizeof(*all) * (size_t)count);
    if (!all)
        return false;
    at += move_tensors(file, all);
    for (int i = 0; i < file->shards; i++)
        at += move_tensors(file->shard[i], all + at);
    file->tensor = all;
    file->tensors = at;
    return tarn__gguf_index_tensors(file);
}

bool tarn__gguf_open_shards(tarn_gguf **file)
{
    split s;
    if (!read_split(*file, &s))
        return false;
    if (s.count < 2)
        return true;
    if (!check_name(*file, &s))
        return false;
    if (s.no > 0) {
        tarn_gguf *first = open_shard(*file, &s, 0);
        tarn_gguf_close(*file);
        if (!(*file = first))
            return false;
    }
    return open_others(*file, &s) && gather(*file, s.tensors);
}
