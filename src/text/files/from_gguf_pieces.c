/* from_gguf_pieces.c: Unigram and WordPiece from the metadata of a GGUF file ("t5" and "bert"). The format has no
 * normalizer and no pre-tokenizer: Unigram encodes as SentencePiece, WordPiece has BERT's steps, in lower case, as
 * llama.cpp reads both. A file with tokenizer.huggingface.json has them; that is used instead (from_gguf.c). */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/files/gguf_tokenizer.h"

#define CHARSMAP "tokenizer.ggml.precompiled_charsmap"
#define MAX_CHARSMAP ((int64_t)1 << 26)

/* ---- Unigram ----------------------------------------------------------------------------------------------------- */

/* Copies the normalization rules, an array of bytes; *map is NULL without any. The caller frees it. */
static bool read_charsmap(const tarn__gguf_pieces *g, char **map, size_t *bytes)
{
    tarn_gguf_value array;
    *map = NULL;
    *bytes = 0;
    if (!tarn_gguf_has(g->file, CHARSMAP, &array) || array.count == 0)
        return true;
    if (array.type != TARN_GGUF_ARRAY || array.count > MAX_CHARSMAP)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': " CHARSMAP " is not an array, or too long", g->function,
                           g->path);
    size_t count = (size_t)array.count;
    int64_t *values = tarn__alloc(count * sizeof(*values));
    *map = values ? tarn__alloc(count) : NULL;
    *bytes = *map ? count : 0;
    bool good = *map && tarn_gguf_ints(g->file, CHARSMAP, values, array.count);
    for (size_t i = 0; good && i < count; i++)
        (*map)[i] = (char)values[i];
    tarn__release(values, values ? count * sizeof(*values) : 0);
    return good;
}

/* A flag that the file may lack: then it is true. */
static bool read_bool(const tarn__gguf_pieces *g, const char *key, bool *value)
{
    *value = true;
    return !tarn_gguf_has(g->file, key, NULL) || tarn_gguf_bool(g->file, key, value);
}

/* The pieces are borrowed from the file; scores and types as in tokenizer.model. */
tarn_tokenizer *tarn__gguf_unigram(const tarn__gguf_pieces *g, int64_t bos, int64_t eos, int64_t unknown)
{
    tarn__spm_spec spec = {.function = g->function,
                           .name = g->path,
                           .pieces = g->pieces,
                           .lengths = g->lengths,
                           .scores = g->scores,
                           .types = g->types,
                           .count = g->count,
                           .bos = bos,
                           .eos = eos,
                           .unknown = unknown};
    char *map = NULL;
    bool prepends;
    tarn_tokenizer *t = NULL;
    if (read_charsmap(g, &map, &spec.map_bytes) && read_bool(g, "tokenizer.ggml.add_space_prefix", &prepends) &&
        read_bool(g, "tokenizer.ggml.remove_extra_whitespaces", &spec.settings.remove_extra_spaces)) {
        spec.map = map;
        spec.settings.prepend = prepends ? TARN__PREPEND_ALWAYS : TARN__PREPEND_NEVER;
        for (int64_t i = 0; i < g->count && !spec.has_bytes; i++)
            spec.has_bytes = g->types[i] == TARN__TOKEN_BYTE;
        t = tarn__unigram_build(&spec);
    }
    tarn__release(map, spec.map_bytes);
    return t;
}

/* ---- WordPiece --------------------------------------------------------------------------------------------------- */

/* Adds a token in BERT's own spelling: the file marks the beginning of a word by U+2581, BERT its continuation by ##.
 * Control tokens are written as they are. */
static bool add_token(tarn_tokenizer *t, const tarn__gguf_pieces *g, int32_t id, tarn__buffer *scratch)
{
    const char *text = g->pieces[id];
    size_t length = g->lengths[id];
    bool is_special = g->types[id] == TARN__TOKEN_CONTROL || g->types[id] == TARN__TOKEN_UNKNOWN;
    bool begins = length > TARN__METASPACE_BYTES && memcmp(text, TARN__METASPACE, TARN__METASPACE_BYTES) == 0;
    /* "[unused1]" and the like are whole words of BERT's file, whatever their type. */
    bool is_plain = is_special || g->types[id] == TARN__TOKEN_UNUSED || (length > 0 && text[0] == '[');
    if (length == 0 || length > TARN__MAX_PIECE_BYTES || g->types[id] < TARN__TOKEN_NORMAL ||
        tarn__utf8_prefix(text, length) != length || memchr(text, 0, length))
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: '%s': token %d is empty, too long, not valid UTF-8, or of an unknown type", g->function,
                           g->path, (int)id);
    scratch->count = 0;
    size_t skipped = begins ? TARN__METASPACE_BYTES : 0;
    if ((!begins && !is_plain && !tarn__buffer_add(scratch, "##", 2, 1)) ||
        !tarn__buffer_add(scratch, text + skipped, length - skipped, 1) || !tarn__buffer_add(scratch, "", 1, 1))
        return false;
    const tarn__added_token token = {
        .text = scratch->data, .length = scratch->count - 1, .id = id, .special = is_special};
    if (token.length == 0)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': token %d is empty", g->function, g->path, (int)id);
    return tarn__vocab_add(&t->vocab, id, token.text, token.length, true) &&
           (!is_special || tarn__added_add(t, g->function, g->path, &token));
}

/* The settings of bert-base-uncased. */
static bool add_bert_steps(tarn_tokenizer *t, const tarn__gguf_pieces *g)
{
    tarn__pipeline *p = &t->pipeline;
    tarn__pipeline_step decoder = {.type = TARN__STEP_WORDPIECE_DECODER, .cleanup = true};
    p->is_used = true;
    t->wordpiece.max_characters = 100;
    return tarn__step_copy(&t->wordpiece.prefix, &t->wordpiece.prefix_length, "##", 2) &&
           tarn__step_copy(&decoder.text, &decoder.text_length, "##", 2) &&
           tarn__steps_add(&p->decoders, decoder, g->function, g->path) &&
           tarn__steps_add(&p->normalizers,
                           (tarn__pipeline_step){.type = TARN__STEP_BERT_NORMALIZER,
                                                 .clean_text = true,
                                                 .chinese = true,
                                                 .lowercase = true,
                                                 .strip_accents = true},
                           g->function, g->path) &&
           tarn__steps_add(&p->pre_tokenizers, (tarn__pipeline_step){.type = TARN__STEP_BERT_PRE_TOKENIZER},
                           g->function, g->path);
}

/* NULL with an error; what was built is freed. */
tarn_tokenizer *tarn__gguf_wordpiece(const tarn__gguf_pieces *g, int64_t bos, int64_t eos, int64_t unknown)
{
    tarn_tokenizer *t = tarn__tokenizer_new(&tarn__kind_wordpiece);
    tarn__buffer scratch = {0};
    bool good = t != NULL;
    for (int64_t id = 0; good && id < g->count; id++)
        good = add_token(t, g, (int32_t)id, &scratch);
    tarn__buffer_free(&scratch, 1);
    if (good) {
        t->unknown = (int32_t)unknown;
        t->bos = (int32_t)bos;
        t->eos = (int32_t)eos;
    }
    if (good && add_bert_steps(t, g) && tarn__tokenizer_finish(t, g->function, g->path))
        return t;
    tarn_tokenizer_free(t);
    return NULL;
}
