/* json_file.h: small JSON files: settings and state of runs, configs of models. Keys with dots reach into objects:
 * "model.kind".
 *
 * Files are not trusted: a member that is missing, of another type or out of range is an error that names file and key.
 * Built on jansson; without it every function raises an error that says so. Errors begin with the `function` given when
 * the file was opened. A file is used by one thread at a time. */
#ifndef TARN__JSON_FILE_H
#define TARN__JSON_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tarn__json_file tarn__json_file; /* a tree of JSON values with the name of its file */

/* An empty object, one read from a file, and one parsed from a string (`name` stands for the file in errors).
 * `function` is borrowed and must outlive the result. The caller owns the result. NULL with an error. */
tarn__json_file *tarn__json_file_new(const char *function);
tarn__json_file *tarn__json_file_open(const char *function, const char *path);
tarn__json_file *tarn__json_file_parse(const char *function, const char *name, const char *text, size_t length);
void tarn__json_file_free(tarn__json_file *file); /* NULL is allowed */

/* Writes the file atomically: reals with 17 digits at most, so that they read back as the same doubles. */
bool tarn__json_file_save(const tarn__json_file *file, const char *path);

/* Adds the member "checksum": tarn__json_file_save() then fills in the checksum of the file it writes. */
bool tarn__json_file_add_checksum(tarn__json_file *file);

/* Verifies the checksum of the bytes that the file was read from; a missing one is an error too. The error ends in
 * `advice`. Call it after reading the members: an error about a member out of range tells more. */
bool tarn__json_file_verify(const tarn__json_file *file, const char *advice);

/* Appends the object as one line to a file of JSON lines, completely or not at all. Reals have 9 digits at most. */
bool tarn__json_file_append(const tarn__json_file *file, const char *path);

/* set_*: sets a member, creating the objects on its path. add_*: appends an element to an array. JSON has no NaN and no
 * infinity: both become null. Strings are copied and must be UTF-8. */
bool tarn__json_file_set_string(tarn__json_file *file, const char *key, const char *text);
bool tarn__json_file_set_int(tarn__json_file *file, const char *key, int64_t value);
bool tarn__json_file_set_real(tarn__json_file *file, const char *key, double value);
bool tarn__json_file_set_bool(tarn__json_file *file, const char *key, bool value);
bool tarn__json_file_add_string(tarn__json_file *file, const char *key, const char *text);
bool tarn__json_file_add_int(tarn__json_file *file, const char *key, int64_t value);
bool tarn__json_file_add_real(tarn__json_file *file, const char *key, double value);

/* Appends an object of two strings to the array under a key of the root. */
bool tarn__json_file_add_pair(tarn__json_file *file, const char *key, const char *name, const char *text,
                              const char *other_name, const char *other_text);

/* Sets a number in the object under a key of the root, by a name that may have dots. */
bool tarn__json_file_put_number(tarn__json_file *file, const char *key, const char *name, double value);

/* Sets an array of integers under a key of the root, or with a name, which may have dots, in the object there. */
bool tarn__json_file_put_ints(tarn__json_file *file, const char *key, const char *name, const int64_t *values,
                              size_t count);

/* True when the key exists. Never an error. */
bool tarn__json_file_has(const tarn__json_file *file, const char *key);

/* The type of a member. Never an error. */
typedef enum tarn__member_kind {
    TARN__MEMBER_MISSING, /* no such key */
    TARN__MEMBER_NULL,
    TARN__MEMBER_BOOL,
    TARN__MEMBER_NUMBER,
    TARN__MEMBER_STRING,
    TARN__MEMBER_ARRAY,
    TARN__MEMBER_OBJECT
} tarn__member_kind;
tarn__member_kind tarn__json_file_kind(const tarn__json_file *file, const char *key);

/* Reads a member; *_at: an element of an array. Strings are borrowed from the file. NULL or false with an error. */
const char *tarn__json_file_string(const tarn__json_file *file, const char *key);
bool tarn__json_file_int(const tarn__json_file *file, const char *key, int64_t low, int64_t high, int64_t *value);
bool tarn__json_file_real(const tarn__json_file *file, const char *key, double *value); /* null gives NaN */
bool tarn__json_file_bool(const tarn__json_file *file, const char *key, bool *value);
const char *tarn__json_file_string_at(const tarn__json_file *file, const char *key, size_t index);
bool tarn__json_file_int_at(const tarn__json_file *file, const char *key, size_t index, int64_t low, int64_t high,
                            int64_t *value);
bool tarn__json_file_real_at(const tarn__json_file *file, const char *key, size_t index, double *value);

/* The number of elements of an array, at most `max`. False with an error. */
bool tarn__json_file_count(const tarn__json_file *file, const char *key, size_t max, size_t *count);

/* The integers of an array as tarn__json_file_put_ints() writes it, at most `max`, each from low to high. The caller
 * releases the array of *count; none gives NULL. False with an error. */
bool tarn__json_file_ints(const tarn__json_file *file, const char *key, const char *name, size_t max, int64_t low,
                          int64_t high, int64_t **values, size_t *count);

/* Visits a member of an object; `text` is its value as an option is typed: 0.5, lenet, true, 128,64. False ends the
 * visit. */
typedef bool (*tarn__member_fn)(const char *name, const char *text, void *ctx);

/* Calls `visit` for every member of the object under a key ("": the root), in the file's order. False when a visit was
 * ended, or with an error. */
bool tarn__json_file_each(const tarn__json_file *file, const char *key, tarn__member_fn visit, void *ctx);

/* The same for members of any type, by name alone: `is_off` tells that the value is null, false or an empty string,
 * array or object. */
typedef bool (*tarn__member_name_fn)(const char *name, bool is_off, void *ctx);
bool tarn__json_file_each_name(const tarn__json_file *file, const char *key, tarn__member_name_fn visit, void *ctx);

#endif
