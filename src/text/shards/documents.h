/* documents.h: the documents of files: a text file is one; in JSON lines each line is one, by the text under a field.
 */
#ifndef TARN__DOCUMENTS_H
#define TARN__DOCUMENTS_H

#include "text/tokenizer/buffer.h"

/* Whether a file has JSON lines: all have, or its name ends in .jsonl. */
bool tarn__is_jsonl(const char *path, bool all);

/* Bytes up to the end of a line, without it; and whether a line has nothing but spaces. */
size_t tarn__line_length(const char *text, size_t length);
bool tarn__is_blank_line(const char *line, size_t length);

/* The text in a line of JSON, under a field. False with an error that names the file and the line. Without jansson an
 * error says so. */
bool tarn__jsonl_text(const char *function, tarn__buffer *text, const char *line, size_t length, const char *field,
                      const char *path, int64_t number);

/* Hands every document of a file to `take`, until that is false. `field` may be NULL: "text". */
typedef bool (*tarn__document_fn)(void *ctx, const char *text, size_t length);
bool tarn__each_document(const char *function, const char *path, const char *field, bool all_lines,
                         tarn__document_fn take, void *ctx);

#endif
