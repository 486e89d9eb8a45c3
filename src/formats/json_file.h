/* json_file.h: small JSON files of ours: settings and places of runs. Keys with dots reach into objects: "model.kind".
 *
 * Files are not trusted: what is missing, of another kind or out of bounds is an error that names file and key. Built
 * on jansson; without it every function raises an error that says so. */
#ifndef TARN__JSON_FILE_H
#define TARN__JSON_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tarn__json_file tarn__json_file;

/* An empty document, one from a file, and one from a text (`name` stands for it in errors). `function` begins the
 * errors and is borrowed. The caller owns the document. NULL with an error. */
tarn__json_file *tarn__json_file_new(const char *function);
tarn__json_file *tarn__json_file_open(const char *function, const char *path);
tarn__json_file *tarn__json_file_parse(const char *function, const char *name, const char *text, size_t length);
void tarn__json_file_free(tarn__json_file *document); /* NULL is allowed */

/* Writes the document, so that the file appears whole or not at all. */
bool tarn__json_file_save(const tarn__json_file *document, const char *path);

/* Adds the member "checksum": the file that tarn__json_file_save() writes carries its own checksum. */
bool tarn__json_file_add_checksum(tarn__json_file *document);

/* True when the text that a document was read from has a checksum, and the right one. False with an error that ends in
 * `advice`. Members that are out of bounds raise better errors: this comes after reading them. */
bool tarn__json_file_verify(const tarn__json_file *document, const char *advice);

/* Adds the document as one line to a file of lines, all of it or nothing. */
bool tarn__json_file_append(const tarn__json_file *document, const char *path);

/* Adds a member, making the objects on its way; with add_*, an element at the end of a list. NaN and infinity become
 * null. */
bool tarn__json_file_set_string(tarn__json_file *document, const char *key, const char *text);
bool tarn__json_file_set_int(tarn__json_file *document, const char *key, int64_t value);
bool tarn__json_file_set_real(tarn__json_file *document, const char *key, double value);
bool tarn__json_file_set_bool(tarn__json_file *document, const char *key, bool value);
bool tarn__json_file_add_string(tarn__json_file *document, const char *key, const char *text);
bool tarn__json_file_add_int(tarn__json_file *document, const char *key, int64_t value);
bool tarn__json_file_add_real(tarn__json_file *document, const char *key, double value);

/* True when the key is there. Never an error. */
bool tarn__json_file_has(const tarn__json_file *document, const char *key);

/* What stands under a key. Never an error. */
typedef enum tarn__member_kind {
    TARN__MEMBER_MISSING,
    TARN__MEMBER_NULL,
    TARN__MEMBER_BOOL,
    TARN__MEMBER_NUMBER,
    TARN__MEMBER_STRING,
    TARN__MEMBER_ARRAY,
    TARN__MEMBER_OBJECT
} tarn__member_kind;
tarn__member_kind tarn__json_file_kind(const tarn__json_file *document, const char *key);

/* Reads a member; with *_at, an element of a list. Texts belong to the document. NULL or false with an error. */
const char *tarn__json_file_string(const tarn__json_file *document, const char *key);
bool tarn__json_file_int(const tarn__json_file *document, const char *key, int64_t low, int64_t high, int64_t *value);
bool tarn__json_file_real(const tarn__json_file *document, const char *key, double *value); /* null gives NaN */
bool tarn__json_file_bool(const tarn__json_file *document, const char *key, bool *value);
const char *tarn__json_file_string_at(const tarn__json_file *document, const char *key, size_t index);
bool tarn__json_file_int_at(const tarn__json_file *document, const char *key, size_t index, int64_t low, int64_t high,
                            int64_t *value);
bool tarn__json_file_real_at(const tarn__json_file *document, const char *key, size_t index, double *value);

/* How many elements a list has, from 0 to `most`; false with an error. */
bool tarn__json_file_count(const tarn__json_file *document, const char *key, size_t most, size_t *count);

/* Sees a member of an object: its value as it would be typed: 0.5, lenet, true, 128,64. False ends the visit. */
typedef bool (*tarn__member_fn)(const char *name, const char *text, void *ctx);

/* Calls `visit` for every member of the object under a key ("": the whole document), in the file's order. False when it
 * was ended, or with an error. */
bool tarn__json_file_each(const tarn__json_file *document, const char *key, tarn__member_fn visit, void *ctx);

/* The same for members of any kind: `is_off` says that the value is null, false, or a text, a list or an object without
 * anything in it. */
typedef bool (*tarn__member_name_fn)(const char *name, bool is_off, void *ctx);
bool tarn__json_file_each_name(const tarn__json_file *document, const char *key, tarn__member_name_fn visit, void *ctx);

#endif
