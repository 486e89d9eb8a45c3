/* listing.c: the JSON of a repository, by jansson. All of it is untrusted.
 *
 * No name becomes part of a path before tarn__hub_check_file() has seen it, and one that fails it fails the whole
 * listing: leaving it out would give a model that is not the hub's. The order by name makes the choice of files, the
 * plan and the progress the same on every run. */
#include "hub/listing.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <tarn/base.h>

/* Of a repository; the largest of models have a few thousand. */
enum { MAX_FILES = 100000 };

void tarn__hub_listing_free(tarn__hub_listing *listing)
{
    for (size_t i = 0; i < listing->count; i++)
        free(listing->files[i].name);
    free(listing->files);
    *listing = (tarn__hub_listing){.count = 0};
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const tarn__hub_file *)a)->name, ((const tarn__hub_file *)b)->name);
}

static bool raise_json(const char *repo, const char *what)
{
    return tarn_set_error(TARN_ERROR_FORMAT, "the hub's answer about '%s' %s; expected the API of a Hugging Face hub",
                          repo, what);
}

/* A size is a hint for messages here: the one that counts comes with the headers of the file. */
static bool add_file(const char *repo, const json_t *sibling, tarn__hub_listing *listing)
{
    tarn__hub_file *file = &listing->files[listing->count];
    const json_t *bytes = json_object_get(sibling, "size");
    const char *name = json_string_value(json_object_get(sibling, "rfilename"));
    if (!name)
        return raise_json(repo, "has a file without a name");
    if (!tarn__hub_check_file(repo, name))
        return false;
    *file = (tarn__hub_file){.name = strdup(name), .bytes = -1};
    if (!file->name)
        return tarn_set_error(TARN_ERROR_MEMORY, "out of memory for the files of '%s'", repo);
    if (json_is_integer(bytes) && json_integer_value(bytes) >= 0)
        file->bytes = json_integer_value(bytes);
    listing->count++;
    return true;
}

static bool read_files(const char *repo, const json_t *root, tarn__hub_listing *listing)
{
    const json_t *siblings = json_object_get(root, "siblings");
    const char *commit = json_string_value(json_object_get(root, "sha"));
    size_t count = json_array_size(siblings);
    if (!commit || !tarn__hub_is_sha1(commit))
        return raise_json(repo, "has no commit of 40 hexadecimal digits (\"sha\")");
    if (!json_is_array(siblings) || count > MAX_FILES)
        return raise_json(repo, "has no list of at most 100000 files (\"siblings\")");
    memcpy(listing->commit, commit, strlen(commit) + 1);
    /* files are counted one by one as they are read, so that a listing that fails half-way can be freed */
    listing->files = calloc(count ? count : 1, sizeof(*listing->files));
    if (!listing->files)
        return tarn_set_error(TARN_ERROR_MEMORY, "out of memory for the files of '%s'", repo);
    for (size_t i = 0; i < count; i++)
        if (!add_file(repo, json_array_get(siblings, i), listing))
            return false;
    qsort(listing->files, listing->count, sizeof(*listing->files), by_name);
    for (size_t i = 1; i < listing->count; i++)
        if (by_name(&listing->files[i - 1], &listing->files[i]) == 0)
            return raise_json(repo, "has the same file twice");
    return true;
}

/* A name with a 0 byte would be cut by the functions of C, so it is an error of the parser. */
bool tarn__hub_listing_read(const char *repo, const char *json, size_t length, tarn__hub_listing *listing)
{
    *listing = (tarn__hub_listing){.count = 0};
    json_error_t error;
    json_t *root = json_loadb(json, length, JSON_REJECT_DUPLICATES, &error);
    bool good = root ? read_files(repo, root, listing) : raise_json(repo, "is not JSON");
    json_decref(root);
    return good;
}
