/* safetensors_index.c: a model's tensors in several files, as an index next to them describes:
 *
 *   {"metadata": {…}, "weight_map": {"name": "model-00001-of-00002.safetensors", …}}
 *
 * The index is trusted no more than the files: every tensor must be in the file it is mapped to, no file may have
 * another tensor, and names may not leave the folder. "metadata" is ignored: programs count its sizes in different
 * ways. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "formats/safetensors_file.h"

#define MAX_PARTS 4096
#define ENDING ".safetensors.index.json"

static const char function[] = "safetensors_open";

/* By name alone: an index is ordinary JSON. */
bool tarn__is_safetensors_index(const char *path)
{
    size_t length = strlen(path), tail = strlen(ENDING);
    return length >= tail && strcmp(path + length - tail, ENDING) == 0;
}

/* ---- the index --------------------------------------------------------------------------------------------------- */

/* The weight_map, borrowed from *root, which the caller releases, on failure too. NULL with an error. */
static json_t *read_map(const tarn_safetensors *file, json_t **root)
{
    tarn__map map;
    json_error_t error;
    if (!tarn__map_open(&map, function, file->path))
        return NULL;
    bool is_short = map.bytes <= TARN__SAFETENSORS_MAX_HEADER;
    *root = is_short ? json_loadb(map.bytes ? map.memory : "", map.bytes, JSON_REJECT_DUPLICATES, &error) : NULL;
    tarn__map_close(&map);
    json_t *names = json_object_get(*root, "weight_map");
    if (json_is_object(names) && json_object_size(names) > 0)
        return names;
    if (!is_short)
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' is longer than the %d bytes of an index", function, file->path,
                    TARN__SAFETENSORS_MAX_HEADER);
    else if (!*root)
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s', line %d, column %d: %s", function, file->path, error.line,
                    error.column, error.text);
    else
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no object \"weight_map\" with names of tensors", function,
                    file->path);
    return NULL;
}

/* Checks that a name is a file in the index's folder: no separators, no "..", no zero byte. */
static bool check_part_name(const tarn_safetensors *file, const char *tensor, const json_t *value)
{
    const char *name = json_string_value(value);
    if (!name)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': the file of tensor '%.*s' is not a string", function,
                           file->path, TARN__NAME_SHOWN, tensor);
    if (!name[0] || strlen(name) != json_string_length(value) || strchr(name, '/') || strchr(name, '\\') ||
        strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: '%s': tensor '%.*s' is mapped to '%.*s', which is not a file name next to the index",
                           function, file->path, TARN__NAME_SHOWN, tensor, TARN__NAME_SHOWN, name);
    return true;
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* The path of a file in the index's folder. The caller releases it. NULL with an error. */
static char *path_in_folder(const tarn_safetensors *file, const char *name)
{
    const char *slash = strrchr(file->path, '/');
    size_t folder = slash ? (size_t)(slash - file->path) + 1 : 0, bytes = folder + strlen(name) + 1;
    char *path = tarn__alloc(bytes);
    if (path) {
        memcpy(path, file->path, folder);
        memcpy(path + folder, name, bytes - folder);
    }
    return path;
}

/* The file name of a part, without its folder. */
static const char *part_name(const tarn_safetensors *part)
{
    const char *slash = strrchr(part->path, '/');
    return slash ? slash + 1 : part->path;
}

/* Opens a part unless it is open already. An index may not name another index. */
static bool open_part(tarn_safetensors *file, const char *name)
{
    for (int i = 0; i < file->parts; i++)
        if (strcmp(part_name(file->part[i]), name) == 0)
            return true;
    /* The capacity is the number of tensors, which is reached only if every one has a file of its own, or MAX_PARTS. */
    if (file->parts == file->part_capacity)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' names more than %d files", function, file->path, MAX_PARTS);
    char *path = tarn__is_safetensors_index(name) ? NULL : path_in_folder(file, name);
    if (!path)
        return tarn_failed() ? false
                             : tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' names another index, '%.*s'", function,
                                           file->path, TARN__NAME_SHOWN, name);
    tarn_safetensors *part = tarn_safetensors_open(path);
    tarn__release(path, strlen(path) + 1);
    if (part)
        file->part[file->parts++] = part;
    return part != NULL;
}

/* Opens every file that the index names, once. The array of parts has a fixed capacity: entries point to their part. */
static bool open_parts(tarn_safetensors *file, json_t *names)
{
    const char *tensor;
    json_t *value;
    size_t count = json_object_size(names);
    file->part_capacity = count < MAX_PARTS ? (int)count : MAX_PARTS;
    file->part = tarn__alloc(sizeof(*file->part) * (size_t)file->part_capacity);
    if (!file->part)
        return false;
    json_object_foreach(names, tensor, value)
    {
        if (!check_part_name(file, tensor, value) || !open_part(file, json_string_value(value)))
            return false;
    }
    return true;
}

/* ---- entries ----------------------------------------------------------------------------------------------------- */

/* Checks that the tensors of a part are those that the index maps to it. */
static bool check_part(const tarn_safetensors *file, const tarn_safetensors *part, json_t *names)
{
    for (int i = 0; i < part->count; i++) {
        const char *tensor = part->entry[i].name, *wanted = json_string_value(json_object_get(names, tensor));
        if (!wanted)
            return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has '%.*s', which the index '%s' does not name", function,
                               part->path, TARN__NAME_SHOWN, tensor, file->path);
        if (strcmp(wanted, part_name(part)) != 0)
            return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has '%.*s', which the index places in '%.*s'", function,
                               part->path, TARN__NAME_SHOWN, tensor, TARN__NAME_SHOWN, wanted);
    }
    return true;
}

/* Checks that every tensor of the index is in its part. */
static bool check_complete(const tarn_safetensors *file, json_t *names)
{
    const char *tensor;
    json_t *value;
    json_object_foreach(names, tensor, value)
    {
        bool found = false;
        for (int i = 0; !found && i < file->parts; i++)
            found = strcmp(part_name(file->part[i]), json_string_value(value)) == 0 &&
                    tarn_safetensors_find(file->part[i], tensor) >= 0;
        if (!found)
            return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': tensor '%.*s' is not in '%.*s', where the index places it",
                               function, file->path, TARN__NAME_SHOWN, tensor, TARN__NAME_SHOWN,
                               json_string_value(value));
    }
    return true;
}

/* By path, so that the order of tensors does not depend on the order in the index. */
static int compare_parts(const void *left, const void *right)
{
    return strcmp((*(tarn_safetensors *const *)left)->path, (*(tarn_safetensors *const *)right)->path);
}

/* Collects the entries of all parts, in the order of the parts' names: the order of the index does not matter. */
static bool gather(tarn_safetensors *file)
{
    for (int i = 0; i < file->parts; i++)
        file->capacity += (size_t)file->part[i]->count;
    file->entry = tarn__alloc(sizeof(tarn__safetensors_entry) * file->capacity);
    for (int i = 0; file->entry && i < file->parts; i++)
        for (int k = 0; k < file->part[i]->count; k++)
            file->entry[file->count++] = file->part[i]->entry[k];
    return file->entry != NULL;
}

/* Parts are opened as they come up in the index, checked, then sorted, before entries are copied from them. */
bool tarn__safetensors_read_index(tarn_safetensors *file)
{
    json_t *root = NULL, *names = read_map(file, &root);
    bool good = names && open_parts(file, names);
    for (int i = 0; good && i < file->parts; i++)
        good = check_part(file, file->part[i], names);
    good = good && check_complete(file, names);
    json_decref(root);
    if (!good)
        return false;
    qsort(file->part, (size_t)file->parts, sizeof(*file->part), compare_parts);
    return gather(file);
}
