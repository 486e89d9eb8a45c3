/* temp_files.c: names of files while they are written, and removal of those left by killed processes, on POSIX
 * systems.
 *
 * A temporary name holds the pid and a counter of its process. It is stale when that pid no longer exists here, or
 * is ours with a number not yet given out. A pid says nothing about a process on another machine that shares the
 * folder; the lock on the file does. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/os/files.h"

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

/* Parses NAME.PID-NUMBER.tmp and applies the rule at the head of this file. */
bool tarn__temporary_is_stale(const char *name)
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
    return process == (long)getpid() ? number >= atomic_load(&next_number)
                                     : kill((pid_t)process, 0) != 0 && errno == ESRCH;
}

/* Removes a file unless another process holds its lock. */
static void remove_stale(int folder, const char *name)
{
    int file = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0 || flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        unlinkat(folder, name, 0);
    if (file >= 0)
        close(file);
}

/* True for "model.gguf.4711-0.tmp" with name "model.gguf": exactly one suffix, and stale. */
static bool is_stale_copy_of(const char *name, const char *entry)
{
    size_t length = strlen(name);
    return strncmp(entry, name, length) == 0 && entry[length] == '.' &&
           strchr(entry + length + 1, '.') == strrchr(entry, '.') && tarn__temporary_is_stale(entry);
}

void tarn__temporary_sweep(const char *path)
{
    char folder[PATH_MAX], there[PATH_MAX + NAME_MAX + 2];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (strlen(path) >= sizeof(folder))
        return;
    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path) + 1 : 2, slash ? path : "./");
    DIR *stream = opendir(folder);
    for (struct dirent *entry = stream ? readdir(stream) : NULL; entry; entry = readdir(stream)) {
        struct stat about;
        if (!is_stale_copy_of(name, entry->d_name) ||
            fstatat(dirfd(stream), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        snprintf(there, sizeof(there), "%s%s", folder, entry->d_name);
        if (S_ISREG(about.st_mode))
            remove_stale(dirfd(stream), entry->d_name);
        else if (S_ISDIR(about.st_mode))
            tarn__staging_remove(there);
    }
    if (stream)
        closedir(stream);
}

/* Takes ownership of the descriptor `folder`. Links are not followed. */
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
        if (S_ISREG(about.st_mode) && tarn__temporary_is_stale(entry->d_name))
            remove_stale(folder, entry->d_name);
        else if (S_ISDIR(about.st_mode) && depth > 0)
            sweep(openat(folder, entry->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW), depth - 1);
    }
    closedir(stream);
}

void tarn__folder_sweep(const char *path)
{
    sweep(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), 1);
}
