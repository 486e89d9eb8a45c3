/* platform_sweep.c: temporary files (platform_files.c) of programs that were stopped while they wrote, on POSIX systems. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

/* Where the digits before a place begin. */
static const char *digits_before(const char *name, const char *at)
{
    while (at > name && at[-1] >= '0' && at[-1] <= '9')
        at--;
    return at;
}

/* "model.safetensors.4711-0.tmp", where no process 4711 runs. */
static bool is_left_over(const char *name)
{
    const char *end = name + strlen(name) - strlen(".tmp");
    if (end <= name || strcmp(end, ".tmp") != 0)
        return false;
    const char *number = digits_before(name, end);
    if (number == end || number == name || number[-1] != '-')
        return false;
    const char *process = digits_before(name, number - 1);
    if (process == number - 1 || process == name || process[-1] != '.')
        return false;
    long id = strtol(process, NULL, 10);
    return id > 0 && id <= INT_MAX && kill((pid_t)id, 0) != 0 && errno == ESRCH;
}

static void sweep(const char *folder, int deeper)
{
    struct stat about;
    char path[PATH_MAX];
    DIR *entries = opendir(folder);
    for (struct dirent *entry; entries && (entry = readdir(entries)) != NULL;) {
        const char *name = entry->d_name;
        bool is_inside = strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
        if (!is_inside || (size_t)snprintf(path, sizeof(path), "%s/%s", folder, name) >= sizeof(path) || lstat(path, &about) != 0)
            continue;
        if (S_ISDIR(about.st_mode) && deeper > 0)
            sweep(path, deeper - 1);
        else if (S_ISREG(about.st_mode) && is_left_over(name))
            unlink(path);
    }
    if (entries)
        closedir(entries);
}

void tarn__folder_sweep(const char *folder)
{
    sweep(folder, 1);
}
