/* safetensors_checksum.h: a checksum per tensor and one of the header, in a file's metadata.
 *
 *   "tarn.checksum": "xxh64", "tarn.checksum.values": "HEADER TENSOR TENSOR …"
 *
 * Each value is 16 hexadecimal digits; tensors are in the order of the data. The header's is computed over its 8 bytes
 * of length and its text, with zeros for its own digits: it covers the other values too. One key without the other is
 * an error, so that damage to a key cannot turn the checks off. */
#ifndef TARN__SAFETENSORS_CHECKSUM_H
#define TARN__SAFETENSORS_CHECKSUM_H

#include "formats/safetensors_file.h"

#define TARN__CHECKSUM_KEY "tarn.checksum"
#define TARN__CHECKSUM_VALUES "tarn.checksum.values"

enum { TARN__CHECKSUM_DIGITS = 16, TARN__CHECKSUM_PITCH = TARN__CHECKSUM_DIGITS + 1 };

/* Adds both keys, with zeros for values of `tensors` tensors. False: no memory. */
bool tarn__checksums_reserve(json_t *metadata, int tensors);

/* Writes value number `index`, 0 being the header's, into the text of all values. */
void tarn__checksum_put(char *values, int index, uint64_t sum);

/* The checksum of a header, its length's 8 bytes included, whose digits of its own begin at `digits`. */
uint64_t tarn__checksum_of_header(const char *header, size_t length, size_t digits);

/* Checks the header of an open file and gives every entry its checksum; a file without any is good. False with an
 * error. */
bool tarn__checksums_read(tarn_safetensors *file);

/* Checks the elements of an entry, once. False with an error that names tensor and file. */
bool tarn__checksum_check(const char *function, tarn__safetensors_entry *entry);

#endif
