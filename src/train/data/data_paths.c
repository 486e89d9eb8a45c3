/* data_paths.c: relative paths of a run, resolved from another working directory.
 *
 * Paths are stored as typed, with the working directory of that time next to them in config.json. A path that exists
 * from here is used as it is, so a moved run folder with its data keeps working; only a missing one is tried from the
 * old directory. */
#include "train/data/data_source.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/os/files.h"

#define KEY "directory" /* in config.json */

bool tarn__data_paths_write(tarn__json_file *document)
{
    char here[1024];
    return !tarn__folder_current(here, sizeof(here)) || tarn__json_file_set_string(document, KEY, here);
}

/* Start of the paths in a data name: "text:FILE", "idx:IMAGES,LABELS", "FILE.jsonl". NULL: it has none. */
static const char *paths_in(const char *data)
{
    static const char *const kinds[] = {"images", "mnist", "cifar10", "idx", "csv", "npy", "text", "shards", "chats"};
    if (strncmp(data, "digits", strlen("digits")) == 0 && (!data[6] || data[6] == ':'))
        return NULL;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strncmp(data, kinds[i], strlen(kinds[i])) == 0 && data[strlen(kinds[i])] == ':')
            return data + strlen(kinds[i]) + 1;
    return data;
}

/* Appends one path, resolved if needed. One that does not fit is truncated: it is then not found, and the error names
 * it. */
static void append_path(char *to, size_t size, const char *path, size_t length, const char *folder)
{
    char own[1024], moved[2100];
    snprintf(own, sizeof(own), "%.*s", (int)length, path);
    snprintf(moved, sizeof(moved), "%s/%s", folder, own);
    bool is_moved = own[0] && own[0] != '/' && !tarn__path_exists(own) && tarn__path_exists(moved);
    size_t used = strlen(to);
    snprintf(to + used, size - used, "%s", is_moved ? moved : own);
}

/* Resolves each path of a comma-separated list, in place; unchanged if the result does not fit. */
static void move_paths(char *data, size_t size, const char *folder)
{
    char moved[2048] = "";
    const char *at = paths_in(data);
    if (!at || !at[0])
        return;
    snprintf(moved, sizeof(moved), "%.*s", (int)(at - data), data);
    for (;;) {
        size_t length = strcspn(at, ",");
        append_path(moved, sizeof(moved), at, length, folder);
        if (!at[length])
            break;
        snprintf(moved + strlen(moved), sizeof(moved) - strlen(moved), ",");
        at += length + 1;
    }
    if (strlen(moved) < size)
        snprintf(data, size, "%s", moved);
}

bool tarn__data_paths_read(const tarn__json_file *document, tarn_train_options *o)
{
    if (!tarn__json_file_has(document, KEY))
        return true;
    const char *folder = tarn__json_file_string(document, KEY);
    if (!folder)
        return false;
    move_paths(o->data, sizeof(o->data), folder);
    move_paths(o->val, sizeof(o->val), folder);
    move_paths(o->base, sizeof(o->base), folder);
    move_paths(o->finetune, sizeof(o->finetune), folder);
    return true;
}

bool tarn__data_paths_hint(const char *function, const char *data)
{
    tarn__error_record why;
    tarn__error_save(&why);
    const char *text = why.text + strlen("tarn: ");
    if (strncmp(text, function, strlen(function)) == 0)
        text += strlen(function) + strlen(": ");
    if (why.code == TARN_ERROR_IO)
        return tarn__raise(TARN_ERROR_IO,
                           "%s: the data of the run, '%.300s', was not found; give its new path with .data (%.300s)",
                           function, data, text);
    tarn__error_restore(&why);
    return false;
}
