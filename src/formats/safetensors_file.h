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

/* ---- checksums (safetensors_checksum.c) -------------------------------------------------------------------------- */

/* A checksum per tensor and one of the header, in a file's metadata.
 *
 *   "tarn.checksum": "xxh64", "tarn.checksum.values": "HEADER TENSOR TENSOR …"
 *
 * Each value is 16 hexadecimal digits; tensors are in the order of the data. The header's covers the 8 bytes of its
 * length and its text, with zeros for its own digits: it covers the other values too. One key without the other is an
 * error, so that damage to a key cannot disable the checks. */

#define TARN__CHECKSUM_KEY "tarn.checksum"
#define TARN__CHECKSUM_VALUES "tarn.checksum.values"

enum { TARN__CHECKSUM_DIGITS = 16, TARN__CHECKSUM_PITCH = TARN__CHECKSUM_DIGITS + 1 };

/* Adds both keys, with zeros as the values of `tensors` tensors and the header. False: no memory. */
bool tarn__checksums_reserve(json_t *metadata, int tensors);

/* Writes value `index` into the text of all values; 0 is the header's, i + 1 that of entry i. */
void tarn__checksum_put(char *values, int index, uint64_t sum);

/* The checksum of a header, including the 8 bytes of its length; its own digits begin at offset `digits`. */
uint64_t tarn__checksum_of_header(const char *header, size_t length, size_t digits);

/* Verifies the header of an open file and fills in the entries' checksums; true for a file without any. False with an
 * error. */
bool tarn__checksums_read(tarn_safetensors *file);

/* Verifies the elements of an entry, once per open file; safe from several threads. False with an error that names
 * tensor and file. */
bool tarn__checksum_check(const char *function, tarn__safetensors_entry *entry);

#endif
