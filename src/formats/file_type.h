/* file_type.h: recognizing files by their first bytes, for errors that tell the user what a wrong file is. */
#ifndef TARN__FILE_TYPE_H
#define TARN__FILE_TYPE_H

#include <stdbool.h>
#include <stddef.h>

/* Raises an error that a file is not an `expected` ("GGUF file") but a pickle, a zip archive or another known type,
 * with advice. True, without an error, when the type is unknown or is the expected one: then the caller raises its own
 * error. */
bool tarn__not_recognized(const char *function, const char *path, const char *bytes, size_t count,
                          const char *expected);

/* Checks a path that should be a model (`expected`: "a model's folder or .gguf file"). True for a folder, and when the
 * file cannot be opened, which the reader reports. A path that does not exist, a URL or hub name, and a file that is
 * not a model are errors. */
bool tarn__check_model_path(const char *function, const char *path, const char *expected);

#endif
