/* json_file.h: small JSON files of ours: settings and places of runs. Keys with dots reach into objects: "model.kind".
 *
 * Files are not trusted: what is missing, of another kind or out of bounds is an error that names file and key. Built
 * on jansson; without it every function raises an error that says so. */
#ifndef TARN__DOCUMENT_H
#define TARN__DOCUMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tarn__document tarn__document;

/* An empty document, one from a file, and one from a text (`name` stands for it in errors). `function` begins the
 * errors and is borrowed. The caller owns the document. NULL with an error. */
tarn__document *tarn__document_new(const char *function);
tarn__document *tarn__document_open(const char *function, const char *path);
tarn__document *tarn__document_parse(const char *function, const char *name, const char *text, size_t length);
void tarn__document_free(tarn__document *document); /* NULL is allowed */

/* Writes the document, so that the file appears whole or not at all. */
bool tarn__document_save(const tarn__document *document, const char *path);

/* Adds the member "checksum": the file that tarn__document_save() writes carries its own checksum. */
bool tarn__document_add_checksum(tarn__document *document);

/* True when the text that a document was read from has a checksum, and the right one. False with an error that ends in
 * `advice`. Members that are out of bounds raise better errors: this comes after reading them. */
bool tarn__document_verify(const tarn__document *document, const char *advice);

/* Adds the document as one line to a file of lines, all of it or nothing. */
bool tarn__document_append(const tarn__document *document, const char *path);

/* Adds a member, making the objects on its way; with add_*, an element at the end of a list. NaN and infinity become
 * null. */
bool tarn__document_set_text(tarn__document *document, const char *key, const char *text);
bool tarn__document_set_whole(tarn__document *document, const char *key, int64_t value);
bool tarn__document_set_real(tarn__document *document, const char *key, double value);
bool tarn__document_set_bool(tarn__document *document, const char *key, bool value);
bool tarn__document_add_text(tarn__document *document, const char *key, const char *text);
bool tarn__document_add_whole(tarn__document *document, const char *key, int64_t value);
bool tarn__document_add_real(tarn__document *document, const char *key, double value);

/* True when the key is there. Never an error. */
bool tarn__document_has(const tarn__document *document, const char *key);

/* What stands under a key. Never an error. */
typedef enum tarn__member_kind {
    TARN__MEMBER_MISSING,
    TARN__MEMBER_NULL,
    TARN__MEMBER_BOOL,
    TARN__MEMBER_NUMBER,
    TARN__MEMBER_TEXT,
    TARN__MEMBER_LIST,
    TARN__MEMBER_OBJECT
} tarn__member_kind;
tarn__member_kind tarn__document_kind(const tarn__document *document, const char *key);

/* Reads a member; with *_at, an element of a list. Texts belong to the document. NULL or false with an error. */
const char *tarn__document_text(const tarn__document *document, const char *key);
bool tarn__document_whole(const tarn__document *document, const char *key, int64_t low, int64_t high, int64_t *value);
bool tarn__document_real(const tarn__document *document, const char *key, double *value); /* null gives NaN */
bool tarn__document_bool(const tarn__document *document, const char *key, bool *value);
const char *tarn__document_text_at(const tarn__document *document, const char *key, size_t index);
bool tarn__document_whole_at(const tarn__document *document, const char *key, size_t index, int64_t low, int64_t high,
                             int64_t *value);
bool tarn__document_real_at(const tarn__document *document, const char *key, size_t index, double *value);

/* How many elements a list has, from 0 to `most`; false with an error. */
bool tarn__document_count(const tarn__document *document, const char *key, size_t most, size_t *count);

/* Sees a member of an object: its value as it would be typed: 0.5, lenet, true, 128,64. False ends the visit. */
typedef bool (*tarn__member_fn)(const char *name, const char *text, void *ctx);

/* Calls `visit` for every member of the object under a key ("": the whole document), in the file's order. False when it
 * was ended, or with an error. */
bool tarn__document_each(const tarn__document *document, const char *key, tarn__member_fn visit, void *ctx);

/* The same for members of any kind: `is_off` says that the value is null, false, or a text, a list or an object without
 * anything in it. */
typedef bool (*tarn__member_name_fn)(const char *name, bool is_off, void *ctx);
bool tarn__document_each_name(const tarn__document *document, const char *key, tarn__member_name_fn visit, void *ctx);

#endif
