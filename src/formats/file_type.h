/* file_type.h: what a file is that is not what was expected: by its first bytes, for errors. */
#ifndef TARN__RECOGNIZE_H
#define TARN__RECOGNIZE_H

#include <stdbool.h>
#include <stddef.h>

/* Raises that a file is no `expected` ("GGUF file"), but a pickle, a zip archive or whatever its first bytes say, and
 * what to do about it. True, and nothing is raised, when they say nothing: then the caller knows better. */
bool tarn__not_recognized(const char *function, const char *path, const char *bytes, size_t count,
                          const char *expected);

/* The same for a path that should be a model, or as `expected` has it ("a model's folder or .gguf file"): true for a
 * folder, and for a GGUF file by its name. A path that does not exist, one that looks like a name from a model hub, and
 * a file that is no model are errors. */
bool tarn__check_model_path(const char *function, const char *path, const char *expected);

#endif
