/* safetensors_file.h: an open file, for the parts of its reader.
 *
 * One that was opened by an index has no data of its own: its parts are the files that the index names, and its entries
 * theirs. */
#ifndef TARN__SAFETENSORS_FILE_H
#define TARN__SAFETENSORS_FILE_H

#include <jansson.h>
#include <stdatomic.h>

#include "base/error.h"
#include "base/os/files.h"
#include "formats/safetensors.h"

#define TARN__NAME_SHOWN 200 /* bytes of a name that an error shows */

typedef struct tarn__safetensors_entry {
    const char *name; /* the header's */
    const tarn__safetensors_type *type;
    tarn_shape shape;
    int64_t begin, end;           /* in the data */
    const tarn_safetensors *part; /* that the data is in */
    uint64_t sum;                 /* the checksum of its elements, if the file has one */
    bool has_sum;
    atomic_bool is_checked; /* the elements have it */
} tarn__safetensors_entry;

struct tarn_safetensors {
    char *path;
    tarn__map map;
    int64_t data;                   /* where the data begins in the map */
    json_t *header;                 /* owns the names and the metadata */
    json_t *metadata;               /* borrowed from the header; NULL: none */
    tarn__safetensors_entry *entry; /* in the order of the data */
    size_t room;                    /* for entries */
    int *by_name;                   /* numbers of entries, sorted by name */
    int count;
    tarn_safetensors **part; /* files that an index names, owned */
    int parts, part_room;
};

/* True when a path is that of an index: it ends in ".safetensors.index.json". */
bool tarn__is_safetensors_index(const char *path);

/* Opens the files that the index at file->path names, and takes over their entries. False with an error. */
bool tarn__safetensors_read_index(tarn_safetensors *file);

/* Makes the list by which names are found. */
bool tarn__safetensors_sort_names(tarn_safetensors *file);

#endif
