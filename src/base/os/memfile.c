/* memfile.c: files that are written into memory first, and to the disk later. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"

#define LEAST_ROOM ((size_t)64 << 10)

static _Thread_local tarn__memfiles *keeping; /* NULL: files go to the disk */

void tarn__memfiles_open(tarn__memfiles *kept)
{
    for (int i = 0; i < kept->count; i++) {
        tarn__string_free(kept->file[i].path);
        kept->file[i] = (tarn__memfile){.bytes = kept->file[i].bytes, .room = kept->file[i].room};
    }
    kept->count = 0;
    keeping = kept;
}

void tarn__memfiles_close(void)
{
    keeping = NULL;
}

bool tarn__memfiles_is_open(void)
{
    return keeping != NULL;
}

tarn__memfile *tarn__memfiles_add(const char *function, const char *path)
{
    if (keeping->count == TARN__MAX_MEMFILES) {
        tarn__raise(TARN_ERROR_UNSUPPORTED,
                    "%s: '%s' would be file %d of those that are written together; %d is the most", function, path,
                    keeping->count + 1, TARN__MAX_MEMFILES);
        return NULL;
    }
    tarn__memfile *file = &keeping->file[keeping->count];
    file->function = function;
    file->path = tarn__string_copy(path);
    keeping->count += file->path != NULL;
    return file->path ? file : NULL;
}

char *tarn__memfile_extend(tarn__memfile *file, size_t count)
{
    if (count > file->room - file->count) {
        size_t room = file->room > LEAST_ROOM ? 2 * file->room : LEAST_ROOM;
        room = room < file->count + count ? file->count + count : room;
        char *bytes = tarn__alloc_aligned(room); /* not zeroed: what is not used takes no memory */
        if (!bytes) {
            tarn__raise(TARN_ERROR_MEMORY, "%s: out of host memory for '%s'", file->function, file->path);
            return NULL;
        }
        if (file->count > 0)
            memcpy(bytes, file->bytes, file->count);
        tarn__release(file->bytes, file->room);
        file->bytes = bytes;
        file->room = room;
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

bool tarn__memfiles_write(const tarn__memfiles *kept)
{
    for (int i = 0; i < kept->count; i++)
        if (kept->file[i].is_whole && !write_one(&kept->file[i]))
            return false;
    return true;
}

void tarn__memfiles_free(tarn__memfiles *kept)
{
    for (int i = 0; i < TARN__MAX_MEMFILES; i++) {
        tarn__string_free(kept->file[i].path);
        tarn__release(kept->file[i].bytes, kept->file[i].room);
    }
    *kept = (tarn__memfiles){0};
}
