/* weights.h: a model's weights from safetensors files, where nothing may be lost in silence. */
#ifndef TARN__WEIGHTS_H
#define TARN__WEIGHTS_H

#include <tarn/safetensors.h>

#include "nn/module.h"

/* True when a text ends so. */
bool tarn__ends_with(const char *text, const char *end);

/* Room for the name of a file in a folder. */
typedef struct tarn__model_path {
    char text[4096];
} tarn__model_path;

/* "FOLDER/name", in `to`; NULL with an error. */
const char *tarn__model_path_in(const char *function, const char *folder, const char *name, tarn__model_path *to);

/* Loads all of an open file into a module. Names for which `ignores` is true are passed over; any other that the module
 * lacks is an error: it is something that `what` of this config.json does not have. */
bool tarn__weights_load(const char *function, tarn_module *module, const tarn_safetensors *file, const char *path,
                        const char *what, bool (*ignores)(const char *name));

/* The one dtype of all tensors of a file but those that are passed over. False with an error, also where they are of
 * several. */
bool tarn__weights_dtype(const char *function, const char *path, bool (*ignores)(const char *name), tarn_dtype *dtype);

/* The blocks of a name, "q8_0", "q4_0", "q4_k" or "q6_k"; f32 stands for none. */
tarn_dtype tarn__quant_type_named(const char *name);

/* What weights of type `from` with rows of so many elements become where `wanted` is asked for: that, where rows are
 * whole blocks of it; else q8_0, where they are whole blocks of that and `from` is none; else they stay. */
tarn_dtype tarn__quant_type_for_row(int64_t row, tarn_dtype wanted, tarn_dtype from);

/* Weights that do not become what was asked for: how many, of how many, and what became of the first. */
typedef struct tarn__fallback {
    int count, all;
    int64_t row; /* elements of the first one's rows */
    tarn_dtype instead;
} tarn__fallback;

/* Counts a weight, and logs a notice of those that were counted, if there are any. */
void tarn__fallback_add(tarn__fallback *fallback, int64_t row, tarn_dtype wanted, tarn_dtype chosen);
void tarn__fallback_log(const tarn__fallback *fallback, tarn_dtype wanted);

#endif
