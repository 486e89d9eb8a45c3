/* memfile.c: files that are written into memory first and to disk later: checkpoints, whose bytes are collected on
 * the training thread and written by another one while training continues.
 *
 * Each thread has at most one open set. Buffers are kept from one checkpoint to the next, because fresh pages for
 * gigabytes of parameters would cost more than copying them. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"

#define MIN_CAPACITY ((size_t)64 << 10)

static _Thread_local tarn__memfiles *current; /* NULL: this thread writes to disk */

void tarn__memfiles_open(tarn__memfiles *files)
{
    for (int i = 0; i < files->count; i++) {
        tarn__string_free(files->file[i].path);
        files->file[i] = (tarn__memfile){.bytes = files->file[i].bytes, .capacity = files->file[i].capacity};
    }
    files->count = 0;
    current = files;
}

void tarn__memfiles_close(void)
{
    current = NULL;
}

bool tarn__memfiles_is_open(void)
{
    return current != NULL;
}

tarn__memfile *tarn__memfiles_add(const char *function, const char *path)
{
    if (current->count == TARN__MAX_MEMFILES) {
        tarn__raise(TARN_ERROR_UNSUPPORTED,
                    "%s: too many files in one checkpoint: '%s' is number %d; at most %d are supported", function, path,
                    current->count + 1, TARN__MAX_MEMFILES);
        return NULL;
    }
    tarn__memfile *file = &current->file[current->count];
    file->function = function;
    file->path = tarn__string_copy(path);
    current->count += file->path != NULL;
    return file->path ? file : NULL;
}

/* Grows the buffer at least twofold, so that appending is linear. Returns the start of the new bytes, borrowed. Not by
 * tarn__array_reserve(): the bytes are aligned and not zeroed, and the error names the file. */
char *tarn__memfile_extend(tarn__memfile *file, size_t count)
{
    if (count > file->capacity - file->count) {
        size_t capacity = file->capacity > MIN_CAPACITY ? 2 * file->capacity : MIN_CAPACITY;
        capacity = capacity < file->count + count ? file->count + count : capacity;
        char *bytes = tarn__alloc_aligned(capacity); /* not zeroed: unused pages take no memory */
        if (!bytes) {
            tarn__raise(TARN_ERROR_MEMORY, "%s: out of host memory for '%s'", file->function, file->path);
            return NULL;
        }
        if (file->count > 0)
            memcpy(bytes, file->bytes, file->count);
        tarn__release(file->bytes, file->capacity);
        file->bytes = bytes;
        file->capacity = capacity;
    }
    file->count += count;
    return file->bytes + file->count - count;
}

static bool write_one(const tarn__memfile *file)
{
    tarn__output output;
    if (!tarn__output_open(&output, file->function, file->path))
        return false;
    if (tarn__output_write(&output, file->bytes, file->count))
        return tarn__output_commit(&output);
    tarn__output_discard(&output);
    return false;
}

bool tarn__memfiles_write(const tarn__memfiles *files)
{
    for (int i = 0; i < files->count; i++)
        if (files->file[i].is_committed && !write_one(&files->file[i]))
            return false;
    return true;
}

void tarn__memfiles_free(tarn__memfiles *files)
{
    for (int i = 0; i < TARN__MAX_MEMFILES; i++) {
        tarn__string_free(files->file[i].path);
        tarn__release(files->file[i].bytes, files->file[i].capacity);
    }
    *files = (tarn__memfiles){0};
}
