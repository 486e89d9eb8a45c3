/* safetensors_checksum.h: a checksum per tensor and one of the header, in a file's metadata.
 *
 *   "tarn.checksum": "xxh64", "tarn.checksum.values": "HEADER TENSOR TENSOR …"
 *
 * Each value is 16 hexadecimal digits; tensors are in the order of the data. The header's covers the 8 bytes of its
 * length and its text, with zeros for its own digits: it covers the other values too. One key without the other is an
 * error, so that damage to a key cannot disable the checks. */
#ifndef TARN__SAFETENSORS_CHECKSUM_H
#define TARN__SAFETENSORS_CHECKSUM_H

#include "formats/safetensors_file.h"

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
