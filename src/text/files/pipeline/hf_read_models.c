/* hf_read_models.c: the models of tokenizer.json that words of a pipeline go to: Unigram, WordPiece, WordLevel, and BPE
 * with steps or settings that byte-level BPE and SentencePiece's BPE in their common forms do not have.
 *
 *     {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁the", -3.2], …], "byte_fallback": false}
 *     {"type": "WordPiece", "vocab": {"[UNK]": 100, "##s": 1055, …}, "max_input_chars_per_word": 100}
 *     {"type": "WordLevel", "vocab": {"the": 5, …}, "unk_token": "<unk>"}
 *     {"type": "BPE", "vocab": {…}, "merges": ["t h", …], "end_of_word_suffix": "</w>", "fuse_unk": true}
 *
 * Members that are missing have the defaults of Hugging Face's tokenizers. Pieces are stored as the file writes
 * them. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/files/hf_read_common.h"

/* Files write null, "" or nothing for what is not set. */
static bool is_empty(const json_t *value)
{
    return !value || json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0);
}

/* Copies a string that may be missing. */
static bool read_optional(const tarn__hf_reader *reader, json_t *model, const char *key, char **field, size_t *length)
{
    if (is_empty(json_object_get(model, key)))
        return true;
    const char *text = tarn__hf_string(reader, model, key);
    return text && tarn__step_copy(field, length, text, strlen(text));
}

/* ---- Unigram ----------------------------------------------------------------------------------------------------- */

/* Adds one entry of "vocab": ["piece", score]. The id of a piece is its index. */
static bool read_entry(const tarn__hf_reader *reader, json_t *entry, size_t index)
{
    tarn_tokenizer *t = reader->tokenizer;
    json_t *piece = json_array_get(entry, 0), *score = json_array_get(entry, 1);
    const char *text = json_string_value(piece);
    size_t length = json_string_length(piece);
    if (!text || !json_is_number(score) || !isfinite(json_number_value(score)) || length == 0 ||
        length > TARN__MAX_PIECE_BYTES)
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT,
                              "entry %zu of \"vocab\" is not a string of 1 to %zu bytes with a finite score", index,
                              TARN__MAX_PIECE_BYTES);
    if (tarn__vocab_find(&t->vocab, text, length) >= 0)
        return tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED, "entry %zu of \"vocab\", '%.100s', is a duplicate", index,
                              text);
    t->unigram.scores[index] = json_number_value(score);
    t->unigram.types[index] = TARN__TOKEN_NORMAL;
    return tarn__vocab_add(&t->vocab, (int32_t)index, text, length, true);
}

/* What a tokenizer.model said, which Hugging Face's file has no member for. add_dummy_prefix and
 * remove_extra_whitespaces are SentencePiece's names. */
static bool read_own(const tarn__hf_reader *reader, json_t *own)
{
    tarn_tokenizer *t = reader->tokenizer;
    json_t *types = json_object_get(own, "types"), *prepend = json_object_get(own, "add_dummy_prefix"),
           *removes = json_object_get(own, "remove_extra_whitespaces");
    if (!json_is_array(types) || json_array_size(types) != t->unigram.count || !json_is_boolean(prepend) ||
        !json_is_boolean(removes))
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT,
                              "\"tarn\" has no \"types\" for each of %zu tokens, "
                              "\"add_dummy_prefix\" and \"remove_extra_whitespaces\"",
                              t->unigram.count);
    for (size_t i = 0; i < t->unigram.count; i++) {
        json_t *type = json_array_get(types, i);
        json_int_t number = json_is_integer(type) ? json_integer_value(type) : 0;
        if (number < TARN__TOKEN_NORMAL || number > TARN__TOKEN_BYTE)
            return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "\"tarn\": token %zu has an unknown type", i);
        t->unigram.types[i] = (uint8_t)number;
    }
    return tarn__unigram_set_spm(t, json_is_true(prepend), json_is_true(removes), "tokenizer_open", reader->name);
}

/* The member "tarn" is of our own saved files (hf_write_pipeline.c); other readers ignore it. */
static bool read_unigram(const tarn__hf_reader *reader, json_t *model)
{
    tarn__unigram *u = &reader->tokenizer->unigram;
    json_t *list = json_object_get(model, "vocab"), *unknown = json_object_get(model, "unk_id"), *entry,
           *own = json_object_get(model, "tarn");
    size_t index;
    reader->tokenizer->kind = &tarn__kind_unigram;
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) >= INT32_MAX)
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "the vocabulary is missing, empty, or not an array");
    u->count = json_array_size(list);
    u->scores = tarn__alloc(u->count * sizeof(*u->scores));
    u->types = u->scores ? tarn__alloc(u->count * sizeof(*u->types)) : NULL;
    if (!u->types || !tarn__hf_bool(reader, model, "byte_fallback", false, &u->byte_fallback))
        return false;
    json_array_foreach(list, index, entry) if (!read_entry(reader, entry, index)) return false;
    if (!is_empty(unknown) && (!json_is_integer(unknown) || json_integer_value(unknown) < 0 ||
                               (uint64_t)json_integer_value(unknown) >= u->count))
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "\"unk_id\" is not an id of the vocabulary");
    u->unknown = is_empty(unknown) ? -1 : (int32_t)json_integer_value(unknown);
    return !json_is_object(own) || read_own(reader, own);
}

/* ---- WordPiece, WordLevel ---------------------------------------------------------------------------------------- */

/* -1 where the token is not named or not in the vocabulary: then a text that needs it is an error when it is
 * encoded. */
static bool read_unknown(const tarn__hf_reader *reader, json_t *model, const char *default_value, int32_t *unknown)
{
    json_t *value = json_object_get(model, "unk_token");
    const char *name = json_is_string(value) ? json_string_value(value) : default_value;
    if (!is_empty(value) && !json_is_string(value))
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "\"unk_token\" is not a string");
    int32_t id = name && name[0] ? tarn__vocab_find_escaped(&reader->tokenizer->vocab, name, strlen(name)) : -1;
    *unknown = id;
    return !tarn_failed();
}

/* A file without a prefix has "##"; an empty one means that pieces within a word look like others. */
static bool read_wordpiece(const tarn__hf_reader *reader, json_t *model)
{
    tarn__wordpiece *wp = &reader->tokenizer->wordpiece;
    json_t *most = json_object_get(model, "max_input_chars_per_word"),
           *prefix = json_object_get(model, "continuing_subword_prefix");
    reader->tokenizer->kind = &tarn__kind_wordpiece;
    if (most && (!json_is_integer(most) || json_integer_value(most) < 0))
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT,
                              "\"max_input_chars_per_word\" is not an integer of at least 0");
    wp->max_characters = most ? (size_t)json_integer_value(most) : 100;
    return (prefix ? read_optional(reader, model, "continuing_subword_prefix", &wp->prefix, &wp->prefix_length)
                   : tarn__step_copy(&wp->prefix, &wp->prefix_length, "##", 2)) &&
           tarn__hf_read_vocab(reader, json_object_get(model, "vocab"), false) &&
           read_unknown(reader, model, "[UNK]", &reader->tokenizer->unknown);
}

static bool read_words(const tarn__hf_reader *reader, json_t *model)
{
    reader->tokenizer->kind = &tarn__kind_words;
    return tarn__hf_read_vocab(reader, json_object_get(model, "vocab"), false) &&
           read_unknown(reader, model, "<unk>", &reader->tokenizer->unknown);
}

/* ---- BPE --------------------------------------------------------------------------------------------------------- */

/* True if all words are bytes and decoding joins them: one ByteLevel, no Metaspace, and its decoder. */
static bool is_byte_level(const tarn__pipeline *p)
{
    int levels = 0, others = 0;
    for (size_t i = 0; i < p->pre_tokenizers.count; i++) {
        tarn__step_type type = tarn__steps_at(&p->pre_tokenizers, i)->type;
        levels += type == TARN__STEP_BYTE_LEVEL;
        others += type == TARN__STEP_METASPACE;
    }
    bool is_decoder = p->decoders.count == 1 && tarn__steps_at(&p->decoders, 0)->type == TARN__STEP_BYTE_LEVEL;
    return levels == 1 && others == 0 && is_decoder;
}

/* True if every byte has a piece: a byte without one vanishes in Hugging Face's tokenizers, as characters do. */
static bool has_every_byte(json_t *vocabulary)
{
    for (int i = 0; i < 256; i++) {
        char text[5] = {0};
        tarn__utf8_encode(text, tarn__byte_to_unicode((unsigned char)i));
        if (!json_object_get(vocabulary, text))
            return false;
    }
    return true;
}

/* Byte-level BPE has faster code of its own, which gives the same ids where every byte has a piece and nothing
 * distinguishes the position in a word. Dropout leaves merges out at random. */
static bool read_bpe(const tarn__hf_reader *reader, json_t *model)
{
    tarn_tokenizer *t = reader->tokenizer;
    tarn__bpe_chars *c = &t->bpe_chars;
    json_t *dropout = json_object_get(model, "dropout");
    if (!tarn__hf_bool(reader, model, "fuse_unk", false, &c->fuse_unknown) ||
        !tarn__hf_bool(reader, model, "byte_fallback", false, &c->byte_fallback) ||
        !tarn__hf_bool(reader, model, "ignore_merges", false, &t->bpe.ignore_merges) ||
        !read_optional(reader, model, "continuing_subword_prefix", &c->prefix, &c->prefix_length) ||
        !read_optional(reader, model, "end_of_word_suffix", &c->suffix, &c->suffix_length))
        return false;
    if (!is_empty(dropout) && json_number_value(dropout) != 0)
        return tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED, "a BPE with dropout gives other ids every time");
    bool is_bytes = is_byte_level(&t->pipeline) && !c->prefix && !c->suffix && !c->byte_fallback &&
                    (is_empty(json_object_get(model, "unk_token")) ? has_every_byte(json_object_get(model, "vocab"))
                                                                   : !c->fuse_unknown);
    /* An unknown token among bytes can never be needed, if they all have pieces. */
    t->kind = is_bytes ? &tarn__kind_bpe : &tarn__kind_bpe_chars;
    /* Nothing is unknown among bytes. */
    if (is_bytes)
        c->fuse_unknown = false;
    return tarn__hf_read_vocab(reader, json_object_get(model, "vocab"), is_bytes) &&
           tarn__hf_read_merges(reader, json_object_get(model, "merges")) &&
           read_unknown(reader, model, NULL, &t->bpe.unknown);
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* The type of a file without one follows from its members. */
static const char *type_of(json_t *model)
{
    json_t *type = json_object_get(model, "type");
    if (json_is_string(type))
        return json_string_value(type);
    return json_object_get(model, "merges")                      ? "BPE"
           : json_is_array(json_object_get(model, "vocab"))      ? "Unigram"
           : json_object_get(model, "continuing_subword_prefix") ? "WordPiece"
                                                                 : "";
}

/* The steps come first: they decide which kind of BPE it is. */
bool tarn__hf_read_general(const tarn__hf_reader *reader, json_t *root, json_t *model)
{
    const char *type = type_of(model);
    if (!tarn__hf_read_pipeline(reader, root))
        return false;
    return strcmp(type, "BPE") == 0         ? read_bpe(reader, model)
           : strcmp(type, "Unigram") == 0   ? read_unigram(reader, model)
           : strcmp(type, "WordPiece") == 0 ? read_wordpiece(reader, model)
           : strcmp(type, "WordLevel") == 0
               ? read_words(reader, model)
               : tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED,
                                "the model '%.60s' is not supported; it must be BPE, Unigram, WordPiece or WordLevel",
                                type);
}
