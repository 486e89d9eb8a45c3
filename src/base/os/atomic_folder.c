/* atomic_folder.c: folders that are replaced atomically, on POSIX systems: a model's folder holds several files that
 * must match each other.
 *
 * The new folder is written next to the old one under a temporary name. Files that only the old one has are
 * hard-linked into it, and the two names are exchanged in one system call (RENAME_EXCHANGE): a process killed at any
 * point leaves the complete old or the complete new folder. Where the system cannot exchange names, or the parent
 * folder is not writable, files are moved one by one, and moved back when one of them fails. */
#define _GNU_SOURCE /* renameat2 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"

/* Moved in last and set aside first: without config.json a folder is not taken for a model. */
static const char last_file[] = "config.json";

/* Raises an I/O error with the system's reason. Returns false. */
static bool raise_io(const tarn__staging *s, const char *what, int error)
{
    char text[128];
    bool has_text = strerror_r(error, text, sizeof(text)) == 0;
    return tarn__raise(TARN_ERROR_IO, "%s: '%s' %s: %s", s->function, s->path, what,
                       has_text ? text : "unknown reason");
}

static void release_staging(tarn__staging *s)
{
    tarn__string_free(s->path);
    tarn__string_free(s->temporary);
    *s = (tarn__staging){0};
}

/* ---- entries of a folder ----------------------------------------------------------------------------------------- */

/* Calls visit(s, name) for each entry; false when one call returned false, or when the folder cannot be read. */
typedef bool (*visit_fn)(const tarn__staging *s, const char *name);

static bool each_entry(const tarn__staging *s, const char *folder, visit_fn visit)
{
    DIR *stream = opendir(folder);
    bool good = stream != NULL;
    for (struct dirent *entry = good ? readdir(stream) : NULL; good && entry; entry = readdir(stream))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            good = visit(s, entry->d_name);
    if (stream)
        closedir(stream);
    return good;
}

typedef struct path_text {
    char text[PATH_MAX];
} path_text;

static bool join(path_text *to, const char *folder, const char *name, const char *ending)
{
    return (size_t)snprintf(to->text, sizeof(to->text), "%s/%s%s", folder, name, ending) < sizeof(to->text);
}

static bool is_folder(const char *path)
{
    struct stat about;
    return lstat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

/* ---- exchange ---------------------------------------------------------------------------------------------------- */

/* Hard-links a file that only the old folder has into the new one. Folders cannot be linked; they are moved after
 * the exchange. */
static bool link_other(const tarn__staging *s, const char *name)
{
    path_text old, new;
    if (!join(&old, s->path, name, "") || !join(&new, s->temporary, name, ""))
        return false;
    return tarn__path_exists(new.text) || is_folder(old.text) || tarn__temporary_is_stale(name) ||
           linkat(AT_FDCWD, old.text, AT_FDCWD, new.text, 0) == 0;
}

/* Moves a sub-folder of the old folder, which has the temporary name after the exchange, to the new one. */
static bool move_folder(const tarn__staging *s, const char *name)
{
    path_text old, new;
    if (join(&old, s->temporary, name, "") && join(&new, s->path, name, "") && is_folder(old.text) &&
        !tarn__path_exists(new.text) && rename(old.text, new.text) != 0)
        tarn__log(TARN_LOG_WARNING, "'%s' could not be moved to '%s'", old.text, s->path);
    return true;
}

enum outcome { DONE, FAILED, IMPOSSIBLE };

static bool sync_path(const char *path)
{
    int file = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool good = file >= 0 && (fsync(file) == 0 || errno == EINVAL);
    if (file >= 0)
        close(file);
    return good;
}

/* Exchanges old and new folder in one step. IMPOSSIBLE: the system or the permissions do not allow it, nothing
 * changed. */
static enum outcome exchange(const tarn__staging *s)
{
#ifdef RENAME_EXCHANGE
    struct stat about;
    if (s->is_inside || !each_entry(s, s->path, link_other))
        return IMPOSSIBLE;
    if (stat(s->path, &about) == 0)
        chmod(s->temporary, about.st_mode & 07777);
    if (!sync_path(s->temporary))
        return FAILED;
    if (renameat2(AT_FDCWD, s->temporary, AT_FDCWD, s->path, RENAME_EXCHANGE) != 0)
        return errno == EINVAL || errno == ENOSYS || errno == EXDEV || errno == EBUSY || errno == EPERM ||
                       errno == EACCES
                   ? IMPOSSIBLE
                   : FAILED;
    each_entry(s, s->temporary, move_folder);
    tarn__staging_remove(s->temporary);
    return DONE;
#else
    (void)s;
    return IMPOSSIBLE;
#endif
}

/* ---- one by one -------------------------------------------------------------------------------------------------- */

enum { MAX_FILES = 64 };

typedef struct moves {
    int count;
    struct {
        char name[NAME_MAX + 1];
        bool is_aside, is_moved;
    } file[MAX_FILES];
} moves;

/* Lists the new files, config.json last. */
static bool list_new(const tarn__staging *s, moves *m)
{
    DIR *stream = opendir(s->temporary);
    bool good = stream != NULL, has_last = false;
    for (struct dirent *entry = good ? readdir(stream) : NULL; good && entry; entry = readdir(stream)) {
        if (strcmp(entry->d_name, last_file) == 0)
            has_last = true;
        else if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
                 (good = m->count < MAX_FILES - 1))
            snprintf(m->file[m->count++].name, sizeof(m->file[0].name), "%s", entry->d_name);
    }
    if (stream)
        closedir(stream);
    if (has_last)
        snprintf(m->file[m->count++].name, sizeof(m->file[0].name), "%s", last_file);
    return good;
}

/* Renames old files that will be replaced to NAME.replaced, config.json first. */
static bool set_aside(const tarn__staging *s, moves *m)
{
    for (int i = m->count - 1; i >= 0; i--) {
        path_text here, aside;
        if (!join(&here, s->path, m->file[i].name, "") || !join(&aside, s->path, m->file[i].name, ".replaced"))
            return false;
        if (tarn__path_exists(here.text) && rename(here.text, aside.text) != 0)
            return false;
        m->file[i].is_aside = tarn__path_exists(aside.text);
    }
    return true;
}

/* Moves the new files in, config.json last. */
static bool move_in(const tarn__staging *s, moves *m)
{
    for (int i = 0; i < m->count; i++) {
        path_text here, new;
        if (!join(&here, s->path, m->file[i].name, "") || !join(&new, s->temporary, m->file[i].name, "") ||
            rename(new.text, here.text) != 0)
            return false;
        m->file[i].is_moved = true;
    }
    return true;
}

/* After success removes the files set aside; after failure removes the files moved in and restores the old ones. */
static void settle(const tarn__staging *s, const moves *m, bool good)
{
    for (int i = 0; i < m->count; i++) {
        path_text here, aside;
        join(&here, s->path, m->file[i].name, "");
        join(&aside, s->path, m->file[i].name, ".replaced");
        if (!good && m->file[i].is_moved)
            unlink(here.text);
        if (m->file[i].is_aside && (good ? unlink(aside.text) : rename(aside.text, here.text)) != 0)
            tarn__log(TARN_LOG_WARNING, "'%s' could not be %s", aside.text, good ? "removed" : "renamed back");
    }
}

static bool move_files(const tarn__staging *s)
{
    moves *m = tarn__alloc(sizeof(*m));
    if (!m)
        return false;
    memset(m, 0, sizeof(*m));
    bool good = list_new(s, m) && set_aside(s, m) && move_in(s, m);
    int error = errno;
    settle(s, m, good);
    tarn__release(m, sizeof(*m));
    return good || raise_io(s, "could not be replaced", error);
}

/* ---- open, commit, discard ------------------------------------------------------------------------------------- */

/* The path with links resolved and without trailing slashes; the caller owns it. */
static char *resolve(const char *path)
{
    char *real = realpath(path, NULL), *copy = tarn__string_copy(real ? real : path);
    free(real);
    for (size_t length = copy ? strlen(copy) : 0; length > 1 && copy[length - 1] == '/'; length--)
        copy[length - 1] = 0;
    return copy;
}

/* Creates the temporary folder next to the path, or inside it where the parent is not writable. */
static bool make_temporary(tarn__staging *s)
{
    tarn__error_record why;
    s->temporary = tarn__temporary_name(s->path);
    if (!s->temporary || tarn__folder_make(s->function, s->temporary) || !is_folder(s->path))
        return s->temporary && !tarn_failed();
    tarn__error_save(&why);
    path_text inside;
    tarn__string_free(s->temporary);
    s->temporary = join(&inside, s->path, "model", "") ? tarn__temporary_name(inside.text) : NULL;
    s->is_inside = true;
    return s->temporary && tarn__folder_make(s->function, s->temporary);
}

bool tarn__staging_open(tarn__staging *s, const char *function, const char *path)
{
    *s = (tarn__staging){.function = function, .path = resolve(path)};
    if (!s->path)
        return false;
    if (tarn__path_exists(s->path) && !is_folder(s->path)) {
        tarn__raise(TARN_ERROR_IO, "%s: '%s' is a file, not a folder", function, path);
        release_staging(s);
        return false;
    }
    tarn__temporary_sweep(s->path);
    if (make_temporary(s))
        return true;
    release_staging(s);
    return false;
}

void tarn__staging_remove(const char *folder)
{
    DIR *stream = opendir(folder);
    for (struct dirent *entry = stream ? readdir(stream) : NULL; entry; entry = readdir(stream))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(stream), entry->d_name, 0); /* sub-folders stay, and so does the folder */
    if (stream)
        closedir(stream);
    rmdir(folder);
}

static bool sync_above(const tarn__staging *s)
{
    path_text above;
    const char *slash = strrchr(s->path, '/');
    snprintf(above.text, sizeof(above.text), "%.*s", slash ? (int)(slash - s->path) : 1, slash ? s->path : ".");
    return sync_path(above.text[0] ? above.text : "/") ||
           raise_io(s, "was written, but its folder could not be synced to disk", errno);
}

bool tarn__staging_commit(tarn__staging *s)
{
    bool good;
    if (!tarn__path_exists(s->path)) {
        good = (sync_path(s->temporary) && rename(s->temporary, s->path) == 0) ||
               raise_io(s, "could not be renamed", errno);
    } else {
        enum outcome outcome = exchange(s);
        good = outcome == DONE || (outcome == IMPOSSIBLE ? move_files(s) : raise_io(s, "could not be replaced", errno));
    }
    good = good && sync_above(s);
    tarn__staging_discard(s);
    return good;
}

void tarn__staging_discard(tarn__staging *s)
{
    if (s->temporary && is_folder(s->temporary))
        tarn__staging_remove(s->temporary);
    release_staging(s);
}
