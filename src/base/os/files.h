/* files.h: files and folders: mapped input files, atomic writes, in-memory files, folder locks, temporary names.
 *
 * Errors name the calling function, the path and the system's reason. A path given here is borrowed unless stated. */
#ifndef TARN__FILES_H
#define TARN__FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/xxh64.h"

/* A read-only view of a file's bytes. If another program truncates the file while it is mapped, the next access
 * beyond its end kills this process (SIGBUS). */
typedef struct tarn__map {
    const char *memory; /* NULL for an empty file */
    size_t bytes;
} tarn__map;

/* Maps a regular file. False with an error. */
bool tarn__map_open(tarn__map *map, const char *function, const char *path);

/* The same, copy-on-write: writes stay in memory and never reach the file. */
bool tarn__map_open_private(tarn__map *map, const char *function, const char *path);
void tarn__map_close(tarn__map *map); /* {0} is allowed */

/* Opens a regular file for reading. Never blocks: NULL with errno for anything that is not a regular file (EINVAL)
 * or cannot be opened. The caller closes it with fclose(). */
FILE *tarn__file_open(const char *path);

typedef struct tarn__memfile tarn__memfile;

/* A file being written under a temporary name in the folder of `path`; tarn__output_commit() renames it. Symbolic
 * links are followed: their target is replaced. */
typedef struct tarn__output {
    const char *function;   /* for errors; borrowed */
    char *path;             /* its final name; owned */
    char *temporary;        /* its name until then; owned */
    int file;               /* -1: closed */
    int64_t bytes;          /* appended so far */
    tarn__xxh64 *sum;       /* not NULL: updated with the bytes appended; borrowed */
    int64_t sum_start;      /* bytes appended before `sum` was set */
    tarn__memfile *memfile; /* not NULL: an in-memory file, nothing goes to the disk */
} tarn__output;

/* Creates the temporary file. After success the caller must call tarn__output_commit() or tarn__output_discard(). */
bool tarn__output_open(tarn__output *output, const char *function, const char *path);

/* Opens the temporary file of another process, to write ranges of it: the other one commits it. The caller must call
 * tarn__output_close() or tarn__output_discard(), which leaves the file. */
bool tarn__output_join(tarn__output *output, const char *function, const char *temporary);

/* Continues at a position of a file on disk. */
bool tarn__output_seek(tarn__output *output, int64_t position);

/* Syncs and closes a file that is another process's; on failure, with an error, too. */
bool tarn__output_close(tarn__output *output);

/* Appends bytes. False with an error: then discard. */
bool tarn__output_write(tarn__output *output, const void *bytes, size_t count);

/* Reserves `count` bytes at the end of an in-memory file, which the caller fills; NULL without an error for a file
 * on disk. NULL with an error: discard. */
char *tarn__output_extend(tarn__output *output, size_t count);

/* Overwrites bytes at an offset: for a header known only at the end. False with an error: discard. */
bool tarn__output_write_at(tarn__output *output, int64_t position, const void *bytes, size_t count);

/* Checksum of the bytes appended between the two calls; `sum` is borrowed until the second. */
void tarn__output_sum_begin(tarn__output *output, tarn__xxh64 *sum);
uint64_t tarn__output_sum_end(tarn__output *output);

/* Atomic commit: syncs the file and renames it over `path`. On failure, with an error, the temporary file is removed
 * and `path` is unchanged. */
bool tarn__output_commit(tarn__output *output);

/* Removes the temporary file. Works while an error is pending. */
void tarn__output_discard(tarn__output *output);

/* ---- folders ----------------------------------------------------------------------------------------------------- */

/* A folder written under a temporary name that atomically replaces another one. The caller writes its files into
 * `temporary`. */
typedef struct tarn__staging {
    const char *function; /* for errors; borrowed */
    char *path;           /* its final name; owned */
    char *temporary;      /* its name until then; owned */
    bool is_inside;       /* created inside the folder it replaces, because its parent is not writable */
} tarn__staging;

/* Creates the temporary folder. After success the caller must call tarn__staging_commit() or
 * tarn__staging_discard(). */
bool tarn__staging_open(tarn__staging *staging, const char *function, const char *path);

/* Renames the folder to `path`. An existing folder is replaced; files and folders in it whose names are not in the
 * new one are kept. At every instant the path has either all old files or all new ones. On failure, with an error,
 * the old ones. */
bool tarn__staging_commit(tarn__staging *staging);

/* Removes the temporary folder. Works while an error is pending. */
void tarn__staging_discard(tarn__staging *staging);

/* Removes a folder and its files. Sub-folders stay, and so does a folder that has some. */
void tarn__staging_remove(const char *folder);

/* ---- in-memory files ----------------------------------------------------------------------------------------- */

#define TARN__MAX_MEMFILES 8

/* A set of in-memory files, for checkpoints that another thread writes to disk later. Initialized with {0}. */
typedef struct tarn__memfiles {
    struct tarn__memfile {
        const char *function; /* for errors; borrowed */
        char *path;           /* owned */
        char *bytes;          /* owned */
        size_t count, capacity;
        bool is_committed; /* committed */
    } file[TARN__MAX_MEMFILES];
    int count;
} tarn__memfiles;

/* Redirects this thread's tarn__output_…() calls to `files` until tarn__memfiles_close(): each opened file becomes an
 * in-memory file. Files of an earlier round are dropped, their buffers are reused. */
void tarn__memfiles_open(tarn__memfiles *files);
void tarn__memfiles_close(void);

/* Writes all committed files to disk, on any thread. False with an error; the files before the failed one were
 * written. */
bool tarn__memfiles_write(const tarn__memfiles *files);
void tarn__memfiles_free(tarn__memfiles *files);

/* For files.c: whether this thread writes to memory; one more in-memory file; more bytes at its end. NULL with an
 * error. */
bool tarn__memfiles_is_open(void);
tarn__memfile *tarn__memfiles_add(const char *function, const char *path);
char *tarn__memfile_extend(tarn__memfile *file, size_t count);

/* ---- lines and names --------------------------------------------------------------------------------------------- */

/* Appends a line, which must end in '\n', to a file, creating it if needed. All or nothing, even when several
 * processes append at once. A partial line left by a killed process is terminated first. False with an error. */
bool tarn__file_append(const char *function, const char *path, const char *line, size_t length);

/* True when the path exists, as a file, folder or link. */
bool tarn__path_exists(const char *path);

/* Creates a folder that must not exist, and its missing parents. False with an error. */
bool tarn__folder_make(const char *function, const char *path);

/* Visits one entry of a folder; a link to a folder does not count as one. False ends the visit. */
typedef bool (*tarn__folder_fn)(const char *name, bool is_folder, void *ctx);

/* Calls `visit` for every entry but "." and "..", in no particular order. False when the visitor ended it, or with
 * an error. */
bool tarn__folder_each(const char *function, const char *path, tarn__folder_fn visit, void *ctx);

/* Calls `visit` with the names in a folder until it returns false, in no particular order. No names and no error where
 * the folder cannot be read. */
typedef bool (*tarn__folder_name_fn)(const char *name, void *ctx);
void tarn__folder_names(const char *path, tarn__folder_name_fn visit, void *ctx);

/* Removes an empty folder; false: it stays. */
bool tarn__folder_remove(const char *path);

/* The current working directory; false where it does not fit. */
bool tarn__folder_current(char *path, size_t size);

/* True when a path is inside a folder or is the folder itself, links resolved; false when one of them does not
 * exist. */
bool tarn__path_is_within(const char *path, const char *folder);

/* An exclusive lock on a folder, across threads and processes; {0}: none. The system releases it when the process
 * ends. */
typedef struct tarn__lock {
    bool is_taken;
    int file;
} tarn__lock;

/* Locks an existing folder. False with an error when it is locked already; granted where the file system has no
 * locks. */
bool tarn__folder_lock(tarn__lock *claim, const char *function, const char *path);
void tarn__folder_unlock(tarn__lock *claim); /* {0} is allowed; works while an error is pending */

/* A temporary name next to `path`; the caller owns it. NULL with an error. */
char *tarn__temporary_name(const char *path);

/* True for a temporary name whose process no longer exists. */
bool tarn__temporary_is_stale(const char *name);

/* Removes stale temporary files and folders of `path`, left by killed processes, unless a process, perhaps on
 * another machine, still holds their lock. Entries that cannot be removed stay, silently. */
void tarn__temporary_sweep(const char *path);

/* Removes stale temporary files from a folder and its sub-folders. Entries that cannot be removed stay, silently. */
void tarn__folder_sweep(const char *path);

/* Renames a file, replacing the target, and syncs the folder. False with an error. */
bool tarn__file_rename(const char *function, const char *from, const char *to);

/* Removes a file if it exists. */
void tarn__file_remove(const char *path);

#endif
