/* convert.h: a model on its way from one kind of file to another. */
#ifndef TARN__CONVERT_H
#define TARN__CONVERT_H

#include <tarn/convert.h>
#include <tarn/model.h>

#include "models/gguf/gguf_arch.h"
#include "models/hf/weights.h"

/* One tensor on its way. */
typedef struct tarn__convert_job {
    tarn__weight_rows rows;
    char *name; /* in the new file; owned */
    struct tarn__conversion *conversion;
} tarn__convert_job;

typedef struct tarn__conversion {
    const char *function, *from, *to;
    /* the folder of tokenizer and chat template: that of the adapters where it has them, else `from` */
    const char *text;
    tarn_convert_options options;
    tarn_convert_summary summary;
    tarn__fallback fallback;     /* weights whose rows are no whole blocks of .type */
    const tarn__gguf_arch *kind; /* of the model, and what it is, once its configuration was read */
    tarn__gguf_traits traits;
    tarn__convert_job *job;
    int jobs, capacity;
    int64_t done, all; /* bytes of what is written */
} tarn__conversion;

/* Adds a tensor. `rows` has all but the new type, which is chosen here by the options and the name in GGUF files; that
 * is copied. False with an error. */
bool tarn__convert_add(tarn__conversion *conversion, const char *name, const tarn__weight_rows *rows, bool is_head);

/* The same with the new type chosen: rows->to. */
bool tarn__convert_add_as(tarn__conversion *conversion, const char *name, const tarn__weight_rows *rows);

/* True when a tensor of GGUF's name is the head, or the table of tokens that the head shares. */
bool tarn__convert_is_head(const tarn__gguf_traits *traits, const char *name);

/* Raises that a tensor is of a type that cannot be read. Is false. */
bool tarn__convert_unknown(const tarn__conversion *conversion, const char *name, const char *type);

/* Writes the tensor of a job, `ctx`, when it is its turn. */
bool tarn__convert_write(tarn__output *output, void *ctx);

/* Raises unless the tensors that were added are those of the model: the first that is missing, or that it does not
 * have, is named, as it is where they come from. `in_folder`: they go to a folder, and have its names; else those of
 * GGUF files (convert_check.c). */
bool tarn__convert_check_names(const tarn__conversion *conversion, bool in_folder);

/* Adds all tensors to a GGUF file that is being written, and says in its metadata what they are. */
bool tarn__convert_put(tarn__conversion *conversion, tarn_gguf_writer *writer);

/* The tokenizer and the chat template of a folder as metadata, where it has one, and back (convert_tokenizer.c). */
bool tarn__convert_has_tokenizer(const tarn__conversion *conversion);
bool tarn__convert_put_tokenizer(tarn__conversion *conversion, tarn_gguf_writer *writer);
bool tarn__convert_get_tokenizer(tarn__conversion *conversion, const tarn_gguf *file);

/* The chat template of the adapters' folder, with which they were trained, where it has one; its key, or NULL. */
bool tarn__convert_put_chat(const tarn__conversion *conversion, tarn_gguf_writer *writer, const char **key);

/* All that a GGUF file says, but for the type of its weights and a key (NULL: none), into one that is being written. */
bool tarn__convert_copy_metadata(const tarn_gguf *file, const char *but, tarn_gguf_writer *writer);

/* Folders (convert_hf.c). The last writes a GGUF file of a configuration and the tensors that were added, with the
 * tokenizer of the folder it comes from. */
bool tarn__convert_from_hf(tarn__conversion *conversion);
bool tarn__convert_to_hf(tarn__conversion *conversion);
bool tarn__convert_write_gguf(tarn__conversion *conversion, const void *config, tarn_gguf_writer *writer);

/* Models with the adapters of .adapter merged into their weights (convert_merged.c). */
bool tarn__convert_merged(tarn__conversion *conversion);

#endif
