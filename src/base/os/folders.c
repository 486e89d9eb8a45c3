/* folders.c: listing, removing and comparing folders, on POSIX systems. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/os/files.h"

/* Calls `visit` for each entry; true when it has seen all of them. */
static bool visit_all(DIR *stream, const char *path, tarn__folder_fn visit, void *ctx)
{
    char below[PATH_MAX];
    struct stat about;
    for (struct dirent *entry = readdir(stream); entry; entry = readdir(stream)) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        bool fits = (size_t)snprintf(below, sizeof(below), "%s/%s", path, entry->d_name) < sizeof(below);
        bool is_folder = fits && lstat(below, &about) == 0 && S_ISDIR(about.st_mode);
        if (!visit(entry->d_name, is_folder, ctx))
            return false;
    }
    return true;
}

bool tarn__folder_each(const char *function, const char *path, tarn__folder_fn visit, void *ctx)
{
    DIR *stream = opendir(path);
    if (!stream)
        return tarn__raise(TARN_ERROR_IO, "%s: '%s' cannot be listed: %s", function, path, strerror(errno));
    bool good = visit_all(stream, path, visit, ctx);
    closedir(stream);
    return good;
}

void tarn__folder_names(const char *path, tarn__folder_name_fn visit, void *ctx)
{
    DIR *stream = opendir(path);
    for (struct dirent *entry = stream ? readdir(stream) : NULL; entry && visit(entry->d_name, ctx);)
        entry = readdir(stream);
    if (stream)
        closedir(stream);
}

bool tarn__folder_remove(const char *path)
{
    return rmdir(path) == 0;
}

bool tarn__folder_current(char *path, size_t size)
{
    return getcwd(path, size) != NULL;
}

bool tarn__path_is_within(const char *path, const char *folder)
{
    char *inner = realpath(path, NULL), *outer = realpath(folder, NULL);
    size_t length = outer ? strlen(outer) : 0;
    bool is = inner && outer && strncmp(inner, outer, length) == 0 && (inner[length] == 0 || inner[length] == '/');
    free(inner);
    free(outer);
    return is;
}
