/* files.c: mapped files, atomic writes, and folders, on POSIX systems.
 *
 * A write is atomic in four steps: create a temporary file in the same folder, fsync it, rename it, fsync the
 * folder. A process killed at any point leaves either the old or the new file under the name, and at worst a stray
 * temporary file, which the next writer of the same name removes. A temporary file is locked (flock) for as long as
 * it is written, so that another machine sharing the folder does not remove it as stale. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"

static const char *reason(int error, char *text, size_t size)
{
    return strerror_r(error, text, size) == 0 ? text : "unknown reason";
}

/* Raises an I/O error with the system's reason. Returns false. */
static bool raise_io(const char *function, const char *path, const char *what, int error)
{
    char text[128];
    return tarn__raise(TARN_ERROR_IO, "%s: '%s' %s: %s", function, path, what, reason(error, text, sizeof(text)));
}

/* ---- maps -------------------------------------------------------------------------------------------------------- */

/* A `writable` map is private and reserves no memory (MAP_NORESERVE): few of its pages are ever written. */
static bool map_file(tarn__map *map, const char *function, const char *path, int file, bool writable)
{
    struct stat about;
    if (fstat(file, &about) != 0)
        return raise_io(function, path, "cannot be examined", errno);
    if (!S_ISREG(about.st_mode))
        return tarn__raise(TARN_ERROR_IO, "%s: '%s' is %s, not a file", function, path,
                           S_ISDIR(about.st_mode) ? "a folder" : "a device or pipe");
    if (about.st_size == 0)
        return true;
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ,
        flags = writable ? MAP_PRIVATE | MAP_NORESERVE : MAP_PRIVATE;
    void *memory = mmap(NULL, (size_t)about.st_size, protection, flags, file, 0);
    if (memory == MAP_FAILED)
        return raise_io(function, path, "cannot be mapped into memory", errno);
    *map = (tarn__map){memory, (size_t)about.st_size};
    return true;
}

static bool open_map(tarn__map *map, const char *function, const char *path, bool writable)
{
    *map = (tarn__map){0};
    /* a pipe without a writer would block */
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return raise_io(function, path, "cannot be opened", errno);
    bool good = map_file(map, function, path, file, writable);
    close(file); /* the map stays valid */
    return good;
}

bool tarn__map_open(tarn__map *map, const char *function, const char *path)
{
    return open_map(map, function, path, false);
}

bool tarn__map_open_private(tarn__map *map, const char *function, const char *path)
{
    return open_map(map, function, path, true);
}

void tarn__map_close(tarn__map *map)
{
    if (map->memory)
        munmap((void *)map->memory, map->bytes);
    *map = (tarn__map){0};
}

FILE *tarn__file_open(const char *path)
{
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return NULL;
    bool is_regular = fstat(file, &about) == 0 && S_ISREG(about.st_mode);
    FILE *stream = is_regular ? fdopen(file, "rb") : NULL;
    if (!stream) {
        close(file);
        errno = is_regular ? ENOMEM : EINVAL;
    }
    return stream;
}

/* ---- writes ------------------------------------------------------------------------------------------------------ */

/* The path with links resolved, owned by the caller, and the permissions of the existing file (0: none). NULL with
 * an error. */
static char *resolve(const char *function, const char *path, mode_t *mode)
{
    struct stat about;
    *mode = 0;
    if (stat(path, &about) != 0)
        return tarn__string_copy(path);
    if (!S_ISREG(about.st_mode)) {
        tarn__raise(TARN_ERROR_IO, "%s: '%s' is %s; expected a file name", function, path,
                    S_ISDIR(about.st_mode) ? "a folder" : "a device or pipe");
        return NULL;
    }
    *mode = about.st_mode & 0777;
    char *real = realpath(path, NULL), *copy = tarn__string_copy(real ? real : path);
    free(real);
    return copy;
}

/* Creates a file under a name not in use: a killed process with the same pid may have left some. Returns -1 with
 * errno, and the last name tried. */
static int make_temporary(const char *path, mode_t mode, char **name)
{
    enum { MAX_TRIES = 10000 };
    int file = -1;
    for (int i = 0; file < 0 && i < MAX_TRIES; i++) {
        tarn__string_free(*name);
        *name = tarn__temporary_name(path);
        file = *name ? open(*name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode) : -1;
        if (!*name || (file < 0 && errno != EEXIST))
            break;
    }
    if (file >= 0)
        flock(file, LOCK_EX | LOCK_NB); /* held while it is open, so that no other process removes it as stale */
    return file;
}

/* Frees the names; the output is closed. */
static void release_output(tarn__output *output)
{
    tarn__string_free(output->temporary);
    tarn__string_free(output->path);
    *output = (tarn__output){.file = -1};
}

bool tarn__output_open(tarn__output *output, const char *function, const char *path)
{
    mode_t mode;
    *output = (tarn__output){.function = function, .file = -1};
    if (tarn__memfiles_is_open())
        return (output->memfile = tarn__memfiles_add(function, path)) != NULL;
    output->path = resolve(function, path, &mode);
    if (output->path)
        tarn__temporary_sweep(output->path);
    output->file = output->path ? make_temporary(output->path, mode ? mode : 0666, &output->temporary) : -1;
    if (output->file >= 0)
        return true;
    if (output->temporary)
        raise_io(function, path, "cannot be written", errno);
    release_output(output);
    return false;
}

bool tarn__output_join(tarn__output *output, const char *function, const char *temporary)
{
    *output = (tarn__output){.function = function, .file = open(temporary, O_WRONLY | O_CLOEXEC)};
    int error = errno;
    output->path = output->file >= 0 ? tarn__string_copy(temporary) : NULL;
    if (output->path)
        return true;
    if (output->file < 0)
        tarn__raise(TARN_ERROR_IO,
                    "%s: '%s', which another rank has created, cannot be opened: %s; all ranks must share the "
                    "folder",
                    function, temporary, reason(error, (char[128]){0}, 128));
    tarn__output_discard(output);
    return false;
}

bool tarn__output_seek(tarn__output *output, int64_t position)
{
    return lseek(output->file, (off_t)position, SEEK_SET) >= 0 ||
           raise_io(output->function, output->path, "cannot be written at a position", errno);
}

bool tarn__output_close(tarn__output *output)
{
    bool is_synced = fsync(output->file) == 0;
    int error = errno;
    bool is_closed = close(output->file) == 0;
    error = is_synced ? errno : error;
    output->file = -1;
    bool good =
        (is_synced && is_closed) || raise_io(output->function, output->path, "could not be synced to disk", error);
    release_output(output);
    return good;
}

char *tarn__output_extend(tarn__output *output, size_t count)
{
    char *at = output->memfile ? tarn__memfile_extend(output->memfile, count) : NULL;
    if (at)
        output->bytes += (int64_t)count;
    return at;
}

static bool append_to_memory(tarn__output *output, const void *bytes, size_t count)
{
    char *at = tarn__output_extend(output, count);
    if (at)
        memcpy(at, bytes, count);
    return at != NULL;
}

bool tarn__output_write(tarn__output *output, const void *bytes, size_t count)
{
    const char *at = bytes;
    if (output->memfile)
        return count == 0 || append_to_memory(output, bytes, count);
    while (count > 0) {
        ssize_t written = write(output->file, at, count < (size_t)1 << 30 ? count : (size_t)1 << 30);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return raise_io(output->function, output->path, "could not be written", written < 0 ? errno : ENOSPC);
        if (output->sum)
            tarn__xxh64_add(output->sum, at, (size_t)written);
        at += written;
        count -= (size_t)written;
        output->bytes += written;
    }
    return true;
}

bool tarn__output_write_at(tarn__output *output, int64_t position, const void *bytes, size_t count)
{
    const char *at = bytes;
    if (output->memfile) {
        memcpy(output->memfile->bytes + position, bytes, count);
        return true;
    }
    while (count > 0) {
        ssize_t written = pwrite(output->file, at, count, (off_t)position);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return raise_io(output->function, output->path, "could not be written", written < 0 ? errno : ENOSPC);
        at += written;
        position += written;
        count -= (size_t)written;
    }
    return true;
}

void tarn__output_sum_begin(tarn__output *output, tarn__xxh64 *sum)
{
    tarn__xxh64_begin(sum);
    output->sum = sum;
    output->sum_start = output->bytes;
}

/* An in-memory file may be filled after tarn__output_extend(), so its bytes are summed here instead of as they come. */
uint64_t tarn__output_sum_end(tarn__output *output)
{
    if (output->memfile && output->bytes > output->sum_start)
        tarn__xxh64_add(output->sum, output->memfile->bytes + output->sum_start,
                        (size_t)(output->bytes - output->sum_start));
    uint64_t value = tarn__xxh64_end(output->sum);
    output->sum = NULL;
    return value;
}

/* Syncs the folder that holds `path`, so that the rename survives a crash. Some file systems do not support fsync of
 * a folder (EINVAL), which is not an error. */
static bool sync_folder(const char *function, const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (strlen(path) >= sizeof(folder))
        return raise_io(function, path, "is too long a path", ENAMETOOLONG);
    snprintf(folder, sizeof(folder), "%.*s", (int)(slash ? slash - path : 0), path);
    int file = open(folder[0] ? folder : slash ? "/" : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = file < 0 || (fsync(file) != 0 && errno != EINVAL) ? errno : 0;
    if (file >= 0)
        close(file);
    return error == 0 || raise_io(function, path, "was written, but its folder could not be synced to disk", error);
}

bool tarn__output_commit(tarn__output *output)
{
    const char *what = NULL;
    if (output->memfile) {
        output->memfile->is_committed = true;
        release_output(output);
        return true;
    }
    if (fsync(output->file) != 0)
        what = "could not be synced to disk";
    int error = errno;
    if (close(output->file) != 0 && !what) {
        what = "could not be closed";
        error = errno;
    }
    output->file = -1;
    if (!what && rename(output->temporary, output->path) != 0) {
        what = "could not be renamed";
        error = errno;
    }
    if (what) {
        raise_io(output->function, output->path, what, error);
        tarn__output_discard(output);
        return false;
    }
    bool good = sync_folder(output->function, output->path);
    release_output(output);
    return good;
}

void tarn__output_discard(tarn__output *output)
{
    if (output->file >= 0)
        close(output->file);
    if (output->temporary)
        unlink(output->temporary);
    release_output(output);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* Appends a line; returns 0 or an errno. On failure, as on a full disk, the file is truncated to its old size. */
static int append(int file, const char *line, size_t length)
{
    struct stat about;
    char last = '\n';
    if (fstat(file, &about) != 0)
        return errno;
    if (!S_ISREG(about.st_mode))
        return EINVAL;
    if (about.st_size > 0 && pread(file, &last, 1, about.st_size - 1) != 1)
        return errno ? errno : EIO;
    if (last != '\n' && write(file, "\n", 1) != 1)
        return errno ? errno : ENOSPC;
    ssize_t written;
    do
        written = write(file, line, length);
    while (written < 0 && errno == EINTR);
    int error = written == (ssize_t)length ? (fsync(file) != 0 ? errno : 0) : written < 0 ? errno : ENOSPC;
    if (error && ftruncate(file, about.st_size) != 0)
        return errno;
    return error;
}

bool tarn__file_append(const char *function, const char *path, const char *line, size_t length)
{
    int file = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (file < 0)
        return raise_io(function, path, "cannot be opened", errno);
    flock(file, LOCK_EX); /* where locks are not supported, a single write() is still atomic enough */
    int error = append(file, line, length);
    close(file);
    return error == 0 || raise_io(function, path, "could not be written", error);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

bool tarn__path_exists(const char *path)
{
    struct stat about;
    return lstat(path, &about) == 0;
}

bool tarn__folder_make(const char *function, const char *path)
{
    char part[PATH_MAX];
    if (strlen(path) >= sizeof(part))
        return raise_io(function, path, "is too long a path", ENAMETOOLONG);
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof(part), "%.*s", (int)(slash - path), path);
        if (slash[1] && mkdir(part, 0777) != 0 && errno != EEXIST)
            return raise_io(function, part, "cannot be created", errno);
    }
    return mkdir(path, 0777) == 0 || raise_io(function, path, "cannot be created", errno);
}

bool tarn__folder_lock(tarn__lock *lock, const char *function, const char *path)
{
    int file = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0)
        return raise_io(function, path, "cannot be opened", errno);
    if (flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(file);
        return tarn__raise(
            TARN_ERROR_IO,
            "%s: '%s' is in use by another run, in this process or another; wait for it to end, or stop it", function,
            path);
    }
    *lock = (tarn__lock){true, file};
    return true;
}

void tarn__folder_unlock(tarn__lock *lock)
{
    if (lock->is_taken)
        close(lock->file);
    *lock = (tarn__lock){0};
}

bool tarn__file_rename(const char *function, const char *from, const char *to)
{
    return (rename(from, to) == 0 || raise_io(function, from, "could not be renamed", errno)) &&
           sync_folder(function, to);
}

void tarn__file_remove(const char *path)
{
    unlink(path);
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

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
