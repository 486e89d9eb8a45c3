/* safetensors_file.h: an open file, for the parts of its reader.
 *
 * A file opened by an index has no data of its own: its parts are the files that the index names, and its entries are
 * copies of theirs. Immutable once open, but for `is_checked`: threads may read at the same time. */
#ifndef TARN__SAFETENSORS_FILE_H
#define TARN__SAFETENSORS_FILE_H

#include <jansson.h>
#include <stdatomic.h>

#include "base/error.h"
#include "base/os/files.h"
#include "formats/safetensors.h"

#define TARN__NAME_SHOWN 200 /* bytes of a name shown in errors */

typedef struct tarn__safetensors_entry {
    const char *name; /* borrowed from the header */
    const tarn__safetensors_type *type;
    tarn_shape shape;             /* row-major */
    int64_t begin, end;           /* offsets in the part's data */
    const tarn_safetensors *part; /* the file of the data */
    uint64_t sum;                 /* checksum of its elements, if has_sum */
    bool has_sum;                 /* the file has checksums */
    atomic_bool is_checked;       /* verified before */
} tarn__safetensors_entry;

/* Owned unless said otherwise. */
struct tarn_safetensors {
    char *path;
    tarn__map map;
    int64_t data;                   /* offset of the data in the map */
    json_t *header;                 /* owns the names and the metadata */
    json_t *metadata;               /* borrowed from the header; NULL: none */
    tarn__safetensors_entry *entry; /* in the order of the data */
    size_t capacity;                /* of `entry` */
    int *by_name;                   /* indices of entries, sorted by name */
    int count;
    tarn_safetensors **part; /* files that an index names, owned */
    int parts, part_capacity;
};

/* True when a path ends in ".safetensors.index.json". */
bool tarn__is_safetensors_index(const char *path);

/* Opens the files named by the index at file->path and collects their entries. False with an error. */
bool tarn__safetensors_read_index(tarn_safetensors *file);

/* Builds file->by_name. False with an error. */
bool tarn__safetensors_sort_names(tarn_safetensors *file);

#endif
