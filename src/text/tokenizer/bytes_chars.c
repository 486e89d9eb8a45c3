/* bytes_chars.c: tokenizers without merges: bytes, and characters for small experiments. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/shards/shards.h"
#include "text/tokenizer/tokenizer.h"

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* Ids are the bytes themselves. */
static bool encode_bytes(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *text, size_t length,
                         tarn__buffer *ids)
{
    (void)tokenizer, (void)encoder;
    if (!tarn__buffer_reserve(ids, length, sizeof(int32_t)))
        return false;
    for (size_t i = 0; i < length; i++)
        tarn__ids_add(ids, (unsigned char)text[i]);
    return true;
}

const tarn__tokenizer_kind tarn__kind_bytes = {"bytes", encode_bytes, NULL};

/* Created like any other, with a vocabulary: queries and decoding need no special case. */
tarn_tokenizer *tarn_tokenizer_bytes(void)
{
    tarn_tokenizer *tokenizer = tarn_failed() ? NULL : tarn__tokenizer_new(&tarn__kind_bytes);
    if (!tokenizer)
        return NULL;
    for (int i = 0; i < 256; i++)
        if (!tarn__vocab_add(&tokenizer->vocab, i, &(char){(char)i}, 1, false))
            break;
    if (tarn__tokenizer_finish(tokenizer, "tokenizer_bytes", ""))
        return tokenizer;
    tarn_tokenizer_free(tokenizer);
    return NULL;
}

/* ---- characters -------------------------------------------------------------------------------------------------- */

/* Raises an error for invalid UTF-8 at byte `at`. `path`: the text's file; NULL: none. Returns false. */
static bool raise_utf8(const char *function, const char *path, const char *text, size_t at)
{
    const char *quote = path ? "'" : "";
    return tarn__raise(
        TARN_ERROR_ARGUMENT,
        "%s: %s%s%s%sbyte %zu, 0x%02X, is not valid UTF-8; the tokenizer of bytes, tarn_tokenizer_bytes(), accepts any",
        function, quote, path ? path : "", quote, path ? ": " : "", at, (unsigned char)text[at]);
}

/* One id per code point; a missing one is the unknown token, or an error that names it. */
static bool encode_characters(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *text, size_t length,
                              tarn__buffer *ids)
{
    (void)encoder;
    for (size_t at = 0, bytes; at < length; at += bytes) {
        uint32_t code;
        if ((bytes = tarn__utf8_decode(text + at, length - at, &code)) == 0)
            return raise_utf8("tokenizer_encode", NULL, text, at);
        int32_t id = tarn__vocab_find(&tokenizer->vocab, text + at, bytes);
        id = id < 0 ? tokenizer->unknown : id;
        if (id < 0)
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "tokenizer_encode: byte %zu of a text: the character U+%04X '%.*s' is not in this "
                               "tokenizer's vocabulary of %d",
                               at, (unsigned)code, (int)bytes, text + at, (int)tokenizer->vocab.count);
        if (!tarn__ids_add(ids, id))
            return false;
    }
    return true;
}

const tarn__tokenizer_kind tarn__kind_characters = {"characters", encode_characters, NULL};

/* All of Unicode, surrogates included. */
#define CODE_POINTS 0x110000

/* The set of code points in texts: one bit each, 136 KiB, instead of a hash table. */
typedef struct alphabet {
    const char *function, *path; /* for errors */
    uint8_t *seen;
} alphabet;

/* Adds the characters of a text to the set (tarn__document_fn). */
static bool add_characters(void *ctx, const char *text, size_t length)
{
    const alphabet *a = ctx;
    for (size_t at = 0, bytes; at < length; at += bytes) {
        uint32_t code;
        if ((bytes = tarn__utf8_decode(text + at, length - at, &code)) == 0)
            return raise_utf8(a->function, a->path, text, at);
        a->seen[code / 8] |= (uint8_t)(1 << code % 8);
    }
    return true;
}

/* Ids in the order of code points. */
static bool fill_vocab(tarn_tokenizer *tokenizer, const uint8_t *seen)
{
    for (uint32_t code = 0; code < CODE_POINTS; code++)
        if (seen[code / 8] >> code % 8 & 1) {
            char bytes[4];
            size_t length = tarn__utf8_encode(bytes, code);
            if (!tarn__vocab_add(&tokenizer->vocab, tokenizer->vocab.count, bytes, length, true))
                return false;
        }
    return true;
}

/* Allocates the empty set. */
static bool init_alphabet(alphabet *a)
{
    a->seen = tarn__alloc(CODE_POINTS / 8);
    return a->seen != NULL;
}

/* Creates the tokenizer of a set of characters and frees the set. NULL with an error. */
static tarn_tokenizer *finish_alphabet(alphabet *a, bool good)
{
    tarn_tokenizer *tokenizer = good ? tarn__tokenizer_new(&tarn__kind_characters) : NULL;
    good = tokenizer && fill_vocab(tokenizer, a->seen) &&
           (tokenizer->vocab.count > 0 ||
            tarn__raise(TARN_ERROR_ARGUMENT, "%s: a text with at least one character is required", a->function)) &&
           tarn__tokenizer_finish(tokenizer, a->function, "");
    tarn__release(a->seen, CODE_POINTS / 8);
    if (good)
        return tokenizer;
    tarn_tokenizer_free(tokenizer);
    return NULL;
}

/* The text must be valid UTF-8: invalid bytes have no code point to number. */
tarn_tokenizer *tarn_tokenizer_characters(const char *text, size_t length)
{
    alphabet a = {.function = "tokenizer_characters"};
    if (tarn_failed())
        return NULL;
    if (!text) {
        tarn__raise(TARN_ERROR_ARGUMENT, "tokenizer_characters: text is NULL");
        return NULL;
    }
    return finish_alphabet(&a, init_alphabet(&a) && add_characters(&a, text, length));
}

/* Documents are read one at a time: only the set of characters stays. */
tarn_tokenizer *tarn_tokenizer_characters_files(const char *const *paths, int count, const char *field, bool json_lines)
{
    alphabet a = {.function = "tokenizer_characters_files"};
    if (tarn_failed())
        return NULL;
    if (!paths || count < 1) {
        tarn__raise(TARN_ERROR_ARGUMENT, "tokenizer_characters_files: at least one path is required");
        return NULL;
    }
    bool good = init_alphabet(&a);
    for (int i = 0; good && i < count; i++) {
        a.path = paths[i];
        good = paths[i] && paths[i][0]
                   ? tarn__each_document(a.function, paths[i], field, json_lines, add_characters, &a)
                   : tarn__raise(TARN_ERROR_ARGUMENT, "tokenizer_characters_files: path %d is NULL or empty", i);
    }
    return finish_alphabet(&a, good);
}
