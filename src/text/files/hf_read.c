/* hf_read.c: tokenizer.json, the file of Hugging Face's tokenizers.
 *
 * Byte-level BPE, SentencePiece's BPE (byte fallback) and the forms in which tarn writes characters and bytes have code
 * of their own, which is read first. What they do not support is read again as a pipeline (hf_read_models.c), which has
 * every step but is slower. */
#include <string.h>

#include "base/error.h"
#include "text/files/hf_read_common.h"

/* The split pattern with which tarn writes a tokenizer of characters: every character is a word. */
#define ANY_CHARACTER "[\\s\\S]"

/* Missing, null and "" mean the same in these files. */
static bool is_empty(const json_t *value)
{
    return !value || json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0);
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* Merges are pairs ["a", "b"], or in older files strings "a b". */
bool tarn__hf_read_merges(const tarn__hf_reader *reader, json_t *merges)
{
    size_t index;
    json_t *merge;
    if (!json_is_array(merges))
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "\"merges\" is missing, or not an array");
    json_array_foreach(merges, index, merge)
    {
        json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
        const char *text = json_string_value(merge), *space = text ? strchr(text, ' ') : NULL;
        size_t length = json_string_length(merge);
        bool is_pair = json_array_size(merge) == 2 && json_is_string(left) && json_is_string(right);
        if (!is_pair && (!space || strchr(space + 1, ' ')))
            return tarn__hf_raise(reader, TARN_ERROR_FORMAT,
                                  "merge %zu is neither two strings nor a string with one space", index + 1);
        if (is_pair ? !tarn__hf_read_merge(reader, index + 1, json_string_value(left), json_string_length(left),
                                           json_string_value(right), json_string_length(right))
                    : !tarn__hf_read_merge(reader, index + 1, text, (size_t)(space - text), space + 1,
                                           length - (size_t)(space - text) - 1))
            return false;
    }
    return true;
}

/* Finds the id of "unk_token"; -1: none. */
static bool read_unknown(const tarn__hf_reader *reader, json_t *model, int32_t *unknown)
{
    json_t *name = json_object_get(model, "unk_token");
    if (!is_empty(name) && !json_is_string(name))
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "\"unk_token\" is not a string");
    *unknown = is_empty(name) ? -1
                              : tarn__vocab_find_escaped(&reader->tokenizer->vocab, json_string_value(name),
                                                         json_string_length(name));
    return !tarn_failed();
}

/* ---- normalizer and decoder -------------------------------------------------------------------------------------- */

/* NFC, alone or as a sequence of one. */
static bool read_normalizer(const tarn__hf_reader *reader, json_t *normalizer)
{
    json_t *list = json_object_get(normalizer, "normalizers");
    if (is_empty(normalizer))
        return true;
    const char *type = tarn__hf_string(reader, normalizer, "type");
    if (!type)
        return false;
    if (strcmp(type, "Sequence") == 0 && json_is_array(list) && json_array_size(list) <= 1)
        return json_array_size(list) == 0 || read_normalizer(reader, json_array_get(list, 0));
    reader->tokenizer->nfc = strcmp(type, "NFC") == 0;
    return reader->tokenizer->nfc ||
           tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED, "the normalizer '%.60s' is not supported", type);
}

/* The decoder must be the one that belongs to the model: decoding has no other form here. */
static bool check_decoder(const tarn__hf_reader *reader, json_t *decoder, const char *wanted)
{
    const char *type = is_empty(decoder) ? wanted : tarn__hf_string(reader, decoder, "type");
    if (!type)
        return false;
    return strcmp(type, wanted) == 0 ||
           tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED,
                          "the decoder '%.60s' is not supported with this model; it must be '%s'", type, wanted);
}

/* Reads a BPE: byte-level, or SentencePiece's with byte_fallback. */
static bool read_bpe(const tarn__hf_reader *reader, json_t *root, json_t *model)
{
    tarn__bpe *bpe = &reader->tokenizer->bpe;
    bool fuse, fall_back;
    json_t *dropout = json_object_get(model, "dropout");
    if (!tarn__hf_bool(reader, model, "fuse_unk", false, &fuse) ||
        !tarn__hf_bool(reader, model, "byte_fallback", false, &fall_back) ||
        !tarn__hf_bool(reader, model, "ignore_merges", false, &bpe->ignore_merges))
        return false;
    if (!is_empty(json_object_get(model, "continuing_subword_prefix")) ||
        !is_empty(json_object_get(model, "end_of_word_suffix")))
        return tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED,
                              "a BPE with continuing_subword_prefix or end_of_word_suffix is not supported");
    if (!is_empty(dropout) && json_number_value(dropout) != 0) /* BPE dropout: random merges */
        return tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED, "a BPE with dropout gives other ids every time");
    if (fall_back)
        return tarn__hf_read_spm(reader, root, model) && read_unknown(reader, model, &bpe->unknown);
    if (!tarn__hf_read_vocab(reader, json_object_get(model, "vocab"), true) ||
        !tarn__hf_read_merges(reader, json_object_get(model, "merges")) || !read_unknown(reader, model, &bpe->unknown))
        return false;
    if (fuse && bpe->unknown >= 0)
        return tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED, "a BPE with fuse_unk is not supported");
    return tarn__hf_read_pre_tokenizer(reader, json_object_get(root, "pre_tokenizer")) &&
           check_decoder(reader, json_object_get(root, "decoder"), "ByteLevel") &&
           read_normalizer(reader, json_object_get(root, "normalizer"));
}

/* ---- characters and bytes ---------------------------------------------------------------------------------------- */

/* Reads a tokenizer of characters: a WordLevel model split into single characters. */
static bool read_characters(const tarn__hf_reader *reader, json_t *root, json_t *model)
{
    tarn_tokenizer *t = reader->tokenizer;
    json_t *split = json_object_get(root, "pre_tokenizer"),
           *pattern = json_object_get(json_object_get(split, "pattern"), "Regex");
    t->kind = &tarn__kind_characters;
    if (!json_is_string(pattern) || strcmp(json_string_value(pattern), ANY_CHARACTER) != 0)
        return tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED,
                              "a WordLevel model whose words are not single characters is not supported");
    if (!tarn__hf_read_vocab(reader, json_object_get(model, "vocab"), false))
        return false;
    return read_unknown(reader, model, &t->unknown);
}

/* True for a tokenizer of bytes, which is written as a byte-level BPE without merges. */
static bool is_bytes(const tarn_tokenizer *t)
{
    const tarn__bpe *bpe = &t->bpe;
    if (t->kind != &tarn__kind_bpe || t->pipeline.is_used || bpe->merges.count || bpe->ignore_merges ||
        bpe->regex_count || bpe->prefix_space || t->nfc)
        return false;
    for (int i = 0; i < 256; i++)
        if (!tarn__vocab_has(&t->vocab, i) || t->vocab.piece[i].literal ||
            tarn__vocab_find(&t->vocab, &(char){(char)i}, 1) != i)
            return false;
    for (int32_t id = 256; id < t->vocab.count; id++)
        if (tarn__vocab_has(&t->vocab, id) && !t->vocab.piece[id].outside)
            return false;
    return true;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* User pieces of SentencePiece are listed among the added tokens for other readers; tarn has their types and skips them
 * there. */
static bool is_user_piece(const tarn_tokenizer *t, json_t *id)
{
    return t->spm.types && json_is_integer(id) && json_integer_value(id) >= 0 &&
           (uint64_t)json_integer_value(id) < t->spm.count && t->spm.types[json_integer_value(id)] == TARN__TOKEN_USER;
}

/* Adds the tokens of "added_tokens", after the vocabulary: a token may be in both, with one id. */
static bool read_added_tokens(const tarn__hf_reader *reader, json_t *list)
{
    size_t index;
    json_t *about;
    if (!is_empty(list) && !json_is_array(list))
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "\"added_tokens\" is not an array");
    json_array_foreach(list, index, about)
    {
        json_t *id = json_object_get(about, "id");
        if (is_user_piece(reader->tokenizer, id))
            continue;
        if (!tarn__hf_read_added_token(reader, about, json_is_integer(id) ? json_integer_value(id) : -1))
            return false;
    }
    return true;
}

/* Selects the reader by the model's type; files without one are BPE if they have merges. */
static bool read_model(const tarn__hf_reader *reader, json_t *root, json_t *model)
{
    json_t *named = json_object_get(model, "type"), *merges = json_object_get(model, "merges");
    const char *type = json_is_string(named) ? json_string_value(named) : merges ? "BPE" : "";
    if (strcmp(type, "BPE") == 0)
        return read_bpe(reader, root, model);
    if (strcmp(type, "WordLevel") == 0)
        return read_characters(reader, root, model) &&
               check_decoder(reader, json_object_get(root, "decoder"), "Fuse") &&
               read_normalizer(reader, json_object_get(root, "normalizer"));
    return tarn__hf_read_general(reader, root, model);
}

/* Checks the version of the format; a missing one means 1.0. */
static bool check_version(const tarn__hf_reader *reader, json_t *version)
{
    const char *text = json_string_value(version);
    if (!version || (text && strcmp(text, "1.0") == 0))
        return true;
    return text ? tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED,
                                 "version '%.60s' of the format is not supported; it must be 1.0", text)
                : tarn__hf_raise(reader, TARN_ERROR_FORMAT, "\"version\" is not a string");
}

/* Reads the parts in the order in which they depend on each other: the post-processor refers to added tokens. */
static bool read_root(tarn__hf_reader *reader, json_t *root, bool is_general)
{
    tarn_tokenizer *t = reader->tokenizer;
    json_t *model = json_object_get(root, "model");
    if (!check_version(reader, json_object_get(root, "version")) ||
        !(is_general ? tarn__hf_read_general(reader, root, model) : read_model(reader, root, model)) ||
        !read_added_tokens(reader, json_object_get(root, "added_tokens")) ||
        !tarn__hf_read_post_processor(reader, json_object_get(root, "post_processor")))
        return false;
    if (is_bytes(t)) /* after added tokens: they may lie outside of the 256 bytes */
        t->kind = &tarn__kind_bytes;
    return tarn__tokenizer_finish(t, "tokenizer_open", reader->name);
}

/* Raises an error for JSON without "model", perhaps a vocab.json under another name. Returns NULL. */
static tarn_tokenizer *raise_no_model(const char *path)
{
    tarn__raise(TARN_ERROR_FORMAT,
                "tokenizer_open: '%s' is not a tokenizer.json: it has no \"model\"; for a vocabulary with merges give "
                "the folder",
                path);
    return NULL;
}

/* Builds a tokenizer from a parsed file, which is freed: everything is copied out of it. */
static tarn_tokenizer *build(const char *name, json_t *root)
{
    if (!root)
        return NULL;
    if (!json_is_object(json_object_get(root, "model"))) {
        json_decref(root);
        return raise_no_model(name);
    }
    tarn__hf_reader reader = {tarn__tokenizer_new(&tarn__kind_bpe), name};
    bool good = reader.tokenizer && read_root(&reader, root, false);
    if (!good && tarn_error_code() == TARN_ERROR_UNSUPPORTED && !reader.tokenizer->pipeline.is_used) {
        tarn_clear_error();
        tarn_tokenizer_free(reader.tokenizer);
        reader.tokenizer = tarn__tokenizer_new(&tarn__kind_bpe);
        good = reader.tokenizer && read_root(&reader, root, true);
    }
    json_decref(root);
    if (good)
        return reader.tokenizer;
    tarn_tokenizer_free(reader.tokenizer);
    return NULL;
}

tarn_tokenizer *tarn__tokenizer_read_json(const char *path)
{
    return build(path, tarn__hf_load_json(path));
}

tarn_tokenizer *tarn__tokenizer_parse_json(const char *name, const char *text, size_t length)
{
    json_error_t error;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (root && json_is_object(root))
        return build(name, root);
    json_decref(root);
    tarn__raise(TARN_ERROR_FORMAT, "tokenizer_open: '%s': the tokenizer.json in the file is damaged", name);
    return NULL;
}
