/* files.h: files that are read through a map, and files that appear whole or not at all. */
#ifndef TARN__FILE_H
#define TARN__FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/xxh64.h"

/* A file's bytes, to be read. Whoever makes the file shorter while it is mapped ends the program at the next touch. */
typedef struct tarn__map {
    const char *memory; /* NULL: an empty file */
    size_t bytes;
} tarn__map;

/* Maps a regular file. False with an error that names `function`, the file and the system's reason. */
bool tarn__map_open(tarn__map *map, const char *function, const char *path);

/* The same; what is written into the map stays in memory and never reaches the file. */
bool tarn__map_open_private(tarn__map *map, const char *function, const char *path);
void tarn__map_close(tarn__map *map); /* all zero is allowed */

/* Opens a regular file to be read as a stream. Never waits: NULL, with errno, for what is no regular file (EINVAL) and
 * what cannot be opened. */
FILE *tarn__file_open(const char *path);

typedef struct tarn__memfile tarn__memfile;

/* A file being written under a temporary name in the folder of `path`. A link is followed: what it points to is
 * replaced. */
typedef struct tarn__output {
    const char *function; /* for errors; borrowed */
    char *path;           /* what it will be called; owned */
    char *temporary;      /* what it is called until then; owned */
    int file;             /* -1: closed */
    int64_t bytes;        /* appended so far */
    tarn__xxh64 *sum;     /* not NULL: takes what is appended; borrowed */
    int64_t sum_start;    /* bytes before the first that it takes */
    tarn__memfile *kept;  /* not NULL: it goes there, and to no file */
} tarn__output;

/* Makes the temporary file. Either tarn__output_commit() or tarn__output_discard() must follow a success. */
bool tarn__output_open(tarn__output *output, const char *function, const char *path);

/* Appends bytes. False with an error: then discard. */
bool tarn__output_write(tarn__output *output, const void *bytes, size_t count);

/* Appends `count` bytes that the caller will put there, if the output is one in memory; NULL otherwise. NULL with an
 * error: then discard. */
char *tarn__output_extend(tarn__output *output, size_t count);

/* Overwrites bytes from a place on: for a head that is known at the end. False with an error: then discard. */
bool tarn__output_write_at(tarn__output *output, int64_t position, const void *bytes, size_t count);

/* The checksum of what is appended between the two calls; `sum` is borrowed meanwhile. */
void tarn__output_sum_begin(tarn__output *output, tarn__xxh64 *sum);
uint64_t tarn__output_sum_end(tarn__output *output);

/* Brings the file to the disk and gives it its name, replacing what had it. On failure, with an error, nothing is left
 * of it. */
bool tarn__output_commit(tarn__output *output);

/* Removes the temporary file. Works while an error is pending. */
void tarn__output_discard(tarn__output *output);

/* ---- folders ----------------------------------------------------------------------------------------------------- */

/* A folder that replaces another one as a whole. Files are written into `temporary`. */
typedef struct tarn__staging {
    const char *function; /* for errors; borrowed */
    char *path;           /* what it will be called; owned */
    char *temporary;      /* what it is called until then; owned */
    bool is_inside;       /* in the folder that it replaces the files of, since there is no place beside it */
} tarn__staging;

/* Makes the temporary folder. Either tarn__staging_commit() or tarn__staging_discard() must follow a success. */
bool tarn__staging_open(tarn__staging *staging, const char *function, const char *path);

/* Gives the folder its name. A folder of that name is replaced: it keeps the files and folders whose names are not in
 * the new one. At every instant the path has all that was there, or all that is new. On failure, with an error, it has
 * what was there. */
bool tarn__staging_commit(tarn__staging *staging);

/* Removes the temporary folder. Works while an error is pending. */
void tarn__staging_discard(tarn__staging *staging);

/* Removes a folder and the files in it; where it holds folders, these stay. */
void tarn__staging_remove(const char *folder);

/* ---- later ------------------------------------------------------------------------------------------------------- */

#define TARN__MAX_MEMFILES 8

/* Files in memory. All zero at first. */
typedef struct tarn__memfiles {
    struct tarn__memfile {
        const char *function; /* for errors; borrowed */
        char *path;           /* owned */
        char *bytes;          /* owned */
        size_t count, room;
        bool is_whole; /* was committed */
    } file[TARN__MAX_MEMFILES];
    int count;
} tarn__memfiles;

/* From here on, what this thread writes by tarn__output_…() is kept in memory, in the order in which it is opened; up
 * to tarn__memfiles_close(). What was there is dropped, but its memory is used again. */
void tarn__memfiles_open(tarn__memfiles *kept);
void tarn__memfiles_close(void);

/* Writes it all, on any thread. False with an error; files before the one that failed have been written. */
bool tarn__memfiles_write(const tarn__memfiles *kept);
void tarn__memfiles_free(tarn__memfiles *kept);

/* For files.c: whether files are kept; one more of them; more bytes at its end. NULL with an error. */
bool tarn__memfiles_is_open(void);
tarn__memfile *tarn__memfiles_add(const char *function, const char *path);
char *tarn__memfile_extend(tarn__memfile *file, size_t count);

/* ---- lines and names --------------------------------------------------------------------------------------------- */

/* Adds a line, which ends in a new line, to a file that is made if it is not there: all of it or nothing, also when
 * several programs do so at once. What a stopped program left of a line before gets an end first. False with an error.
 */
bool tarn__file_append(const char *function, const char *path, const char *line, size_t length);

/* True when something has that name. */
bool tarn__path_exists(const char *path);

/* Makes a folder that is not there yet, and those above it. False with an error. */
bool tarn__folder_make(const char *function, const char *path);

/* Sees an entry of a folder; a link to one is none. False ends the visit. */
typedef bool (*tarn__folder_fn)(const char *name, bool is_folder, void *ctx);

/* Calls `visit` for every entry of a folder but "." and "..", in any order. False when it was ended, or with an error.
 */
bool tarn__folder_each(const char *function, const char *path, tarn__folder_fn visit, void *ctx);

/* Removes a folder that holds nothing; false: it stays. */
bool tarn__folder_remove(const char *path);

/* The folder that relative paths begin in; false where it has no name that fits. */
bool tarn__folder_current(char *path, size_t size);

/* True when a path is a folder, or lies in it, once links are followed; false when one of them does not exist. */
bool tarn__path_is_within(const char *path, const char *folder);

/* A folder that no other claim can have meanwhile, in this program or another one; all zero: none. The system gives up
 * those of a program that ends. */
typedef struct tarn__lock {
    bool is_taken;
    int file;
} tarn__lock;

/* Claims a folder that is there. False with an error when it is another's; where the file system knows no claims it is
 * granted. */
bool tarn__folder_lock(tarn__lock *claim, const char *function, const char *path);
void tarn__folder_unlock(tarn__lock *claim); /* all zero is allowed; works while an error is pending */

/* The name of a file while it is written, beside the one that it will have; the caller owns it. NULL with an error. */
char *tarn__temporary_name(const char *path);

/* True for a name that tarn__temporary_name() gave in a program that is gone. */
bool tarn__temporary_is_stale(const char *name);

/* Removes what programs that were killed left of writing to `path`: files and folders of such names, unless their
 * program, perhaps on another machine, still has them locked. What cannot be removed stays. */
void tarn__temporary_sweep(const char *path);

/* Removes such files from a folder and from those in it, of programs that were killed. What cannot be removed stays. */
void tarn__folder_sweep(const char *path);

/* Gives a file another name, replacing what had it, and brings the change to the disk. False with an error. */
bool tarn__file_rename(const char *function, const char *from, const char *to);

/* Removes a file, if it is there. */
void tarn__file_remove(const char *path);

#endif
