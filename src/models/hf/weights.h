/* weights.h: weights of models from safetensors files; every tensor is used, or an error names it. */
#ifndef TARN__WEIGHTS_H
#define TARN__WEIGHTS_H

#include <tarn/safetensors.h>

#include "nn/module.h"

/* True if a string has that suffix. */
bool tarn__ends_with(const char *text, const char *end);

/* The same for one of a NULL-terminated list, which may be NULL. */
bool tarn__has_ending(const char *text, const char *const *ends);

/* A path. */
typedef struct tarn__model_path {
    char text[4096];
} tarn__model_path;

/* "FOLDER/name", in `to`; NULL with an error. */
const char *tarn__model_path_in(const char *function, const char *folder, const char *name, tarn__model_path *to);

/* Loads an open file into a module. Names that end with one of `ignored` are skipped; any other that the module lacks
 * is an error: `what` names the model in it. */
bool tarn__weights_load(const char *function, tarn_module *module, const tarn_safetensors *file, const char *path,
                        const char *what, const char *const *ignored);

/* The dtype of all tensors of a file that are not skipped. False with an error, also if they have several. */
bool tarn__weights_dtype(const char *function, const char *path, const char *const *ignored, tarn_dtype *dtype);

/* The quantized dtype of a name, "q8_0", "q4_0", "q4_k" or "q6_k"; TARN_F32: none. */
tarn_dtype tarn__quant_type_named(const char *name);

/* dtype of a weight with rows of `row` elements where `wanted` is asked for: `wanted` if its block size divides the
 * row; else q8_0 if that fits and `from` is not quantized; else `from`. */
tarn_dtype tarn__quant_type_for_row(int64_t row, tarn_dtype wanted, tarn_dtype from);

/* Weights that cannot have the wanted dtype: their number, the number of all, and the first of them. */
typedef struct tarn__fallback {
    int count, all;
    int64_t row; /* elements of the first one's rows */
    tarn_dtype instead;
} tarn__fallback;

/* Counts a weight; and logs a notice if any fell back. */
void tarn__fallback_add(tarn__fallback *fallback, int64_t row, tarn_dtype wanted, tarn_dtype chosen);
void tarn__fallback_log(const tarn__fallback *fallback, tarn_dtype wanted);

#endif
