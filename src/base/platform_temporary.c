/* platform_temporary.c: what files are called while they are written, on POSIX systems, and what is left of those whose program was killed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

static _Atomic unsigned next_number;

/* "model.safetensors" → "model.safetensors.4711-0.tmp" */
char *tarn__temporary_name(const char *path)
{
    char ending[64];
    snprintf(ending, sizeof(ending), ".%ld-%u.tmp", (long)getpid(), atomic_fetch_add(&next_number, 1));
    char *name = tarn__alloc(strlen(path) + strlen(ending) + 1);
    if (name)
        strcat(strcpy(name, path), ending);
    return name;
}

/* A name that was given by a program that is gone: its number is no process', or this one's, which has not come so far yet. */
static bool is_left(const char *name)
{
    static const char end[] = ".tmp";
    size_t length = strlen(name);
    char head[NAME_MAX + 1];
    long process;
    unsigned number;
    int used = 0;
    if (length <= strlen(end) || length > NAME_MAX || strcmp(name + length - strlen(end), end) != 0)
        return false;
    snprintf(head, sizeof(head), "%.*s", (int)(length - strlen(end)), name);
    const char *dot = strrchr(head, '.');
    if (!dot || dot == head || sscanf(dot, ".%ld-%u%n", &process, &number, &used) != 2 || dot[used] || process < 1)
        return false;
    return process == (long)getpid() ? number >= atomic_load(&next_number) : kill((pid_t)process, 0) != 0 && errno == ESRCH;
}

static void sweep(int folder, int depth)
{
    DIR *stream = folder >= 0 ? fdopendir(folder) : NULL;
    if (!stream) {
        if (folder >= 0)
            close(folder);
        return;
    }
    for (struct dirent *entry = readdir(stream); entry; entry = readdir(stream)) {
        struct stat about;
        bool is_own = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
        if (is_own || fstatat(folder, entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (S_ISREG(about.st_mode) && is_left(entry->d_name))
            unlinkat(folder, entry->d_name, 0);
        else if (S_ISDIR(about.st_mode) && depth > 0)
            sweep(openat(folder, entry->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW), depth - 1);
    }
    closedir(stream);
}

void tarn__folder_sweep(const char *path)
{
    sweep(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), 1);
}
