/* convert.h: the internals of tarn_model_convert(): jobs, one per tensor, and the conversions between folders and
 * GGUF files.
 *
 * Tensors are collected as jobs first, without reading their elements, so that names are checked and types are
 * chosen before anything is written; then each is converted while it is written. */
#ifndef TARN__CONVERT_H
#define TARN__CONVERT_H

#include <tarn/convert.h>
#include <tarn/model.h>

#include "models/convert/importance.h"
#include "models/gguf/gguf_arch.h"
#include "models/hf/weights.h"

/* A mixture of types by llama.cpp's name (mixture.c). */
typedef struct tarn__mixture {
    const char *name;
    uint32_t file_type; /* general.file_type */
    tarn_dtype base;
} tarn__mixture;

/* One tensor to convert. */
typedef struct tarn__convert_job {
    tarn__weight_rows rows;
    char *name; /* in the new file; owned */
    struct tarn__conversion *conversion;
} tarn__convert_job;

/* State of one conversion. */
typedef struct tarn__conversion {
    const char *function, *from, *to;
    /* folder of tokenizer and chat template: the adapters' if it has them, else `from` */
    const char *text;
    tarn_convert_options options;
    tarn_convert_summary summary;
    tarn__importance importance;  /* of .importance; empty: none */
    const tarn__mixture *mixture; /* of .mixture; NULL: .type */
    tarn__fallback fallback;      /* weights whose rows do not fit blocks of .type */
    const tarn__arch *arch;       /* and configuration: of the model, once that was read */
    tarn_lm_config config;
    tarn__convert_job *job;
    int jobs, capacity;
    int64_t done, all; /* bytes written, and of all tensors */
} tarn__conversion;

/* The mixture of a name, in any case; NULL: unknown. */
const tarn__mixture *tarn__mixture_named(const char *name);

/* The type of a matrix, by its name in GGUF files and the traits' layers, heads and kv_heads. */
tarn_dtype tarn__mixture_type(const tarn__mixture *mixture, const tarn_lm_config *traits, const char *name,
                              bool is_head, bool has_importance);

/* The type instead for rows of `row` elements that are no multiple of the block size: one with blocks of 32, and not
 * fewer bits. */
tarn_dtype tarn__mixture_fallback(tarn_dtype dtype, int64_t row);

/* general.file_type of a file whose matrices mostly have a type. */
uint32_t tarn__file_type_of(tarn_dtype dtype);

/* Adds a tensor. `rows` lacks the new type, which is chosen by the options and the name in GGUF files. Copies its
 * arguments. False with an error. */
bool tarn__convert_add(tarn__conversion *conversion, const char *name, const tarn__weight_rows *rows, bool is_head);

/* The same with a given type: rows->to. */
bool tarn__convert_add_as(tarn__conversion *conversion, const char *name, const tarn__weight_rows *rows);

/* True if a tensor, by its GGUF name, is the head, or the token embedding that is tied to it. */
bool tarn__convert_is_head(const tarn_lm_config *config, const char *name);

/* Raises a tensor of an unsupported type. Always false. */
bool tarn__convert_unknown(const tarn__conversion *conversion, const char *name, const char *type);

/* Converts and writes the tensor of a job, `ctx`. */
bool tarn__convert_write(tarn__output *output, void *ctx);

/* Raises unless the tensors are exactly those of the model; names the first that is missing or unknown, as in the
 * source. `in_folder`: jobs have folder names; else GGUF names (convert.c). */
bool tarn__convert_check_names(const tarn__conversion *conversion, bool in_folder);

/* Adds all tensors to a GGUF writer, and the metadata about their types. */
bool tarn__convert_put(tarn__conversion *conversion, tarn_gguf_writer *writer);

/* Tokenizer and chat template of a folder as metadata, and back (convert_tokenizer.c). */
bool tarn__convert_has_tokenizer(const tarn__conversion *conversion);
bool tarn__convert_put_tokenizer(tarn__conversion *conversion, tarn_gguf_writer *writer);
bool tarn__convert_get_tokenizer(tarn__conversion *conversion, const tarn_gguf *file);

/* Writes the chat template of the adapters' folder, if it has one; *key is its key, or NULL. */
bool tarn__convert_put_chat(const tarn__conversion *conversion, tarn_gguf_writer *writer, const char **key);

/* Copies the metadata of a GGUF file, except the weight types and keys that begin with `but` (NULL: none). */
bool tarn__convert_copy_metadata(const tarn_gguf *file, const char *but, tarn_gguf_writer *writer);

/* Folders (convert_hf.c). The last one writes a GGUF file of a configuration and the collected tensors, with the
 * tokenizer of their folder. */
bool tarn__convert_from_hf(tarn__conversion *conversion);
bool tarn__convert_to_hf(tarn__conversion *conversion);
bool tarn__convert_write_gguf(tarn__conversion *conversion, tarn_gguf_writer *writer);

/* Models with the adapters of .adapter merged into their weights (convert_merged.c). */
bool tarn__convert_merged(tarn__conversion *conversion);

#endif
