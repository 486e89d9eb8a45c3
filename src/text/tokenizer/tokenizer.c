/* tokenizer.c: the parts shared by all kinds of tokenizers: creation, queries, decoding. Encoding is in encode.c. */
#include "text/tokenizer/tokenizer.h"

#include <stdalign.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"

/* ---- creation ---------------------------------------------------------------------------------------------------- */

/* All special ids begin as -1: none. SentencePiece's files escape spaces, the others bytes. */
tarn_tokenizer *tarn__tokenizer_new(const tarn__tokenizer_kind *kind)
{
    tarn_tokenizer *tokenizer = tarn__alloc(sizeof(*tokenizer));
    if (tokenizer) {
        tokenizer->kind = kind;
        tokenizer->unknown = tokenizer->bpe.unknown = tokenizer->bos = tokenizer->eos = -1;
        tokenizer->unigram.unknown = -1;
        tokenizer->vocab.metaspaced = kind == &tarn__kind_spm;
    }
    return tokenizer;
}

/* Also frees the remains of a failed load. */
void tarn_tokenizer_free(tarn_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    tarn__vocab_free(&tokenizer->vocab);
    tarn__added_free(&tokenizer->added);
    tarn__bpe_free(&tokenizer->bpe);
    tarn__spm_free(&tokenizer->spm);
    tarn__steps_free(&tokenizer->pipeline.normalizers);
    tarn__steps_free(&tokenizer->pipeline.pre_tokenizers);
    tarn__steps_free(&tokenizer->pipeline.decoders);
    tarn__unigram_free(&tokenizer->unigram);
    tarn__wordpiece_free(&tokenizer->wordpiece);
    tarn__bpe_chars_free(&tokenizer->bpe_chars);
    tarn__tokenizer_clear_chats(tokenizer);
    tarn__buffer_free(&tokenizer->chats, sizeof(tarn__chat_source));
    tarn__tokenizer_free_special(tokenizer);
    tarn__buffer_free(&tokenizer->before, sizeof(int32_t));
    tarn__buffer_free(&tokenizer->after, sizeof(int32_t));
    tarn__release(tokenizer, sizeof(*tokenizer));
}

/* The hash covers everything that decides ids, and nothing else: it is stored in token files and compared when a run
 * resumes. Bytes are fed in a fixed order and endianness, so that it is the same on every machine. */
static uint64_t hash_pieces(const tarn__vocab *vocab, uint64_t hash)
{
    for (int32_t id = 0; id < vocab->count; id++) {
        size_t length;
        const char *bytes = tarn__vocab_bytes(vocab, id, &length);
        hash = tarn__hash(bytes, vocab->piece[id].used ? length : 0, hash + vocab->piece[id].used);
    }
    return hash;
}

/* `each` int32_t per element, little-endian. */
static uint64_t hash_ids(const tarn__buffer *ids, size_t each, uint64_t hash)
{
    const int32_t *id = (const int32_t *)(const void *)ids->data;
    for (size_t i = 0; i < each * ids->count; i++) {
        unsigned char bytes[4];
        for (int k = 0; k < 4; k++)
            bytes[k] = (unsigned char)((uint32_t)id[i] >> (8 * k));
        hash = tarn__hash(bytes, 4, hash);
    }
    return hash;
}

/* SentencePiece's settings and scores. Scores enter by rank: only their order decides ids. */
static uint64_t hash_spm(const tarn_tokenizer *t, uint64_t hash)
{
    const tarn__spm *spm = &t->spm;
    const unsigned char flags[] = {(unsigned char)spm->prepend, spm->prepend_if_missing, spm->remove_extra_spaces,
                                   spm->in_pre_tokenizer, spm->has_bytes};
    if (t->kind != &tarn__kind_spm)
        return hash;
    hash = tarn__hash(flags, sizeof(flags), hash);
    for (size_t i = 0; spm->rank && i < spm->count; i++) {
        uint32_t rank = (uint32_t)spm->rank[i];
        const unsigned char bytes[] = {(unsigned char)rank, (unsigned char)(rank >> 8), (unsigned char)(rank >> 16),
                                       (unsigned char)(rank >> 24), spm->types[i] == TARN__TOKEN_USER};
        hash = tarn__hash(bytes, sizeof(bytes), hash);
    }
    return hash;
}

/* The steps and the model of a pipeline. Scores of Unigram enter with their bits. */
static uint64_t hash_pipeline(const tarn_tokenizer *t, uint64_t hash)
{
    const tarn__unigram *u = &t->unigram;
    const tarn__bpe_chars *c = &t->bpe_chars;
    const unsigned char flags[] = {u->byte_fallback, u->is_spm, c->fuse_unknown, c->byte_fallback};
    if (!t->pipeline.is_used)
        return hash;
    hash = tarn__pipeline_hash(&t->pipeline, tarn__hash(flags, sizeof(flags), hash + t->wordpiece.max_characters));
    hash = tarn__hash(t->wordpiece.prefix ? t->wordpiece.prefix : "", t->wordpiece.prefix_length, hash);
    hash = tarn__hash(c->prefix ? c->prefix : "", c->prefix_length, hash);
    hash = tarn__hash(c->suffix ? c->suffix : "", c->suffix_length, hash);
    for (size_t i = 0; i < u->count; i++) {
        uint64_t bits;
        unsigned char bytes[9] = {(unsigned char)(u->is_spm && u->types[i] == TARN__TOKEN_USER)};
        memcpy(&bits, &u->scores[i], sizeof(bits));
        for (int k = 0; k < 8; k++)
            bytes[1 + k] = (unsigned char)(bits >> (8 * k));
        hash = tarn__hash(bytes, sizeof(bytes), hash);
    }
    return hash;
}

/* The unknown token of a kind; -1: none. */
static int32_t unknown_of(const tarn_tokenizer *t)
{
    return t->kind == &tarn__kind_bpe || t->kind == &tarn__kind_spm || t->kind == &tarn__kind_bpe_chars ? t->bpe.unknown
           : t->kind == &tarn__kind_unigram ? t->unigram.unknown
                                            : t->unknown;
}

/* The hash of a tokenizer. Anything that changes ids must be added here. */
static uint64_t hash_all(const tarn_tokenizer *t)
{
    const unsigned char flags[] = {t->bpe.ignore_merges, t->bpe.prefix_space, t->nfc};
    const uint64_t unknown = (uint64_t)unknown_of(t) + 1;
    uint64_t hash = hash_pieces(&t->vocab, tarn__hash(t->kind->name, strlen(t->kind->name), unknown));
    hash = hash_pipeline(t, hash_spm(t, hash_ids(&t->bpe.merges, 3, tarn__hash(flags, sizeof(flags), hash))));
    for (int i = 0; i < t->bpe.regex_count; i++)
        hash = tarn__hash(tarn__regex_source(t->bpe.regex[i]), strlen(tarn__regex_source(t->bpe.regex[i])), hash);
    const tarn__added_token *added = (const tarn__added_token *)(const void *)t->added.tokens.data;
    for (size_t i = 0; i < t->added.tokens.count; i++) {
        const unsigned char how[] = {added[i].special, added[i].normalized, added[i].strip_left, added[i].strip_right};
        hash = tarn__hash(added[i].text, added[i].length, tarn__hash(how, sizeof(how), hash + (uint64_t)added[i].id));
        hash = added[i].single_word ? tarn__hash("word", 4, hash) : hash;
    }
    return hash_ids(&t->after, 1, hash_ids(&t->before, 1, hash));
}

/* Appends to `form`. Only what tarn__tokenizer_normalizes() says is normalized is passed here. */
bool tarn__tokenizer_normalize(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *text, size_t length,
                               tarn__buffer *form)
{
    if (tokenizer->pipeline.is_used)
        return tarn__pipeline_normalize(tokenizer, encoder, text, length, form);
    return tokenizer->nfc ? tarn__nfc(form, text, length)
                          : tarn__spm_normalize(&tokenizer->spm, encoder, text, length, form);
}

/* False where the text is encoded as it is, or spaces are the pre-tokenizer's part. */
bool tarn__tokenizer_normalizes(const tarn_tokenizer *tokenizer)
{
    return tokenizer->nfc || tokenizer->pipeline.is_used ||
           (tokenizer->kind == &tarn__kind_spm && !tokenizer->spm.in_pre_tokenizer);
}

/* Computes the form of an added token that is searched in normalized text, where normalization changes it. */
static bool set_form(tarn_tokenizer *t, tarn__encoder *encoder, tarn__added_token *token, const char *function,
                     const char *name)
{
    tarn__buffer form = {0};
    tarn__release(token->form, token->form_length + 1);
    token->form = NULL;
    bool good = !token->normalized || !tarn__tokenizer_normalizes(t) ||
                tarn__tokenizer_normalize(t, encoder, token->text, token->length, &form);
    bool is_changed = token->normalized && tarn__tokenizer_normalizes(t) &&
                      (form.count != token->length || memcmp(form.data, token->text, form.count) != 0);
    if (good && is_changed && form.count == 0)
        good = tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "%s: '%s': normalization leaves nothing of the added token '%.100s', which is searched in "
                           "normalized text (\"normalized\")",
                           function, name, token->text);
    else if (good && is_changed)
        good = tarn__step_copy(&token->form, &token->form_length, form.data, form.count);
    tarn__buffer_free(&form, 1);
    return good;
}

/* Prepares the search for added tokens: forms, and the regex of words if a token needs it. */
static bool set_forms(tarn_tokenizer *t, const char *function, const char *name)
{
    tarn__added_token *added = (tarn__added_token *)(void *)t->added.tokens.data;
    tarn__encoder encoder = {0};
    bool good = true, has_single = false;
    t->added.has_forms = false;
    for (size_t i = 0; good && i < t->added.tokens.count; i++) {
        good = set_form(t, &encoder, &added[i], function, name);
        has_single = has_single || added[i].single_word;
        t->added.has_forms = t->added.has_forms || added[i].form;
    }
    tarn__encoder_free(&encoder);
    if (good && has_single && !t->added.word)
        good = (t->added.word = tarn__regex_new(function, name, TARN__REGEX_WORD)) != NULL;
    return good;
}

/* Fills in the ids of single bytes. BPE may lack some; a vocabulary without any is not byte-level. */
static bool find_bytes(tarn_tokenizer *tokenizer, const char *function, const char *name)
{
    int missing = 0;
    for (int i = 0; i < 256; i++) {
        int32_t id = tarn__vocab_find(&tokenizer->vocab, &(char){(char)i}, 1);
        bool is_byte = id >= 0 && !tokenizer->vocab.piece[id].literal;
        tokenizer->bpe.byte_id[i] = is_byte ? id : tokenizer->bpe.unknown;
        missing += !is_byte;
    }
    return missing < 256 ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': the vocabulary has no token of a single byte; is it byte-level?",
                       function, name);
}

/* Tables of the kind's model. */
static bool finish_model(tarn_tokenizer *t, const char *function, const char *name)
{
    if (t->kind == &tarn__kind_bpe_chars)
        tarn__bpe_chars_finish(t);
    return (t->kind != &tarn__kind_bpe || find_bytes(t, function, name)) &&
           (t->kind != &tarn__kind_spm || tarn__spm_finish(t, function, name)) &&
           (t->kind != &tarn__kind_unigram || tarn__unigram_finish(t, function, name)) &&
           (t->kind != &tarn__kind_wordpiece || tarn__wordpiece_finish(t));
}

/* The order matters: tokens are sorted by their forms, tables need the vocabulary, the hash needs all. */
bool tarn__tokenizer_finish(tarn_tokenizer *tokenizer, const char *function, const char *name)
{
    if (tarn_failed())
        return false;
    if (!set_forms(tokenizer, function, name))
        return false;
    if (!tarn__added_sort(&tokenizer->added))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': duplicate added token", function, name);
    if (!finish_model(tokenizer, function, name))
        return false;
    tokenizer->hash = hash_all(tokenizer);
    return true;
}

/* The tokens around a text are part of the hash. */
bool tarn__tokenizer_set_add_bos_eos(tarn_tokenizer *tokenizer, bool begins, bool ends)
{
    tokenizer->before.count = tokenizer->after.count = 0;
    bool good = (!begins || tokenizer->bos < 0 || tarn__ids_add(&tokenizer->before, tokenizer->bos)) &&
                (!ends || tokenizer->eos < 0 || tarn__ids_add(&tokenizer->after, tokenizer->eos));
    tokenizer->hash = hash_all(tokenizer);
    return good;
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

/* False while an error is pending; raises one when the tokenizer is NULL. */
static bool check_tokenizer(const tarn_tokenizer *tokenizer, const char *function)
{
    if (tarn_failed())
        return false;
    return tokenizer || tarn__raise(TARN_ERROR_ARGUMENT, "%s: tokenizer is NULL", function);
}

/* Raises an error for an id outside of the vocabulary. */
static bool has_id(const tarn_tokenizer *tokenizer, const char *function, int64_t id)
{
    if (id >= 0 && id < tokenizer->vocab.count)
        return true;
    return tarn__raise(TARN_ERROR_ARGUMENT, "%s: id %lld is outside the vocabulary, 0 to %d", function, (long long)id,
                       (int)tokenizer->vocab.count - 1);
}

/* "bpe", "spm", "unigram", …: static. */
const char *tarn_tokenizer_kind(const tarn_tokenizer *tokenizer)
{
    return check_tokenizer(tokenizer, "tokenizer_kind") ? tokenizer->kind->name : NULL;
}

int64_t tarn_tokenizer_count(const tarn_tokenizer *tokenizer)
{
    return check_tokenizer(tokenizer, "tokenizer_count") ? tokenizer->vocab.count : -1;
}

/* Two tokenizers of one hash give the same ids for every text. */
uint64_t tarn_tokenizer_hash(const tarn_tokenizer *tokenizer)
{
    return check_tokenizer(tokenizer, "tokenizer_hash") ? tokenizer->hash : 0;
}

/* An unused id gives NULL without an error: vocabularies have gaps. */
const char *tarn_tokenizer_piece(const tarn_tokenizer *tokenizer, int32_t id, size_t *length)
{
    size_t bytes;
    if (!check_tokenizer(tokenizer, "tokenizer_piece") || !has_id(tokenizer, "tokenizer_piece", id) ||
        !tarn__vocab_has(&tokenizer->vocab, id))
        return NULL;
    return tarn__vocab_bytes(&tokenizer->vocab, id, length ? length : &bytes);
}

/* In the order of tarn__added_sort(), not of ids. */
static const tarn__added_token *added_of(const tarn_tokenizer *tokenizer, size_t *count)
{
    *count = tokenizer->added.tokens.count;
    return (const tarn__added_token *)(const void *)tokenizer->added.tokens.data;
}

/* Added tokens first: the vocabulary may have the same text as an ordinary piece. */
static int32_t find(const tarn_tokenizer *tokenizer, const char *piece, size_t length)
{
    size_t count;
    const tarn__added_token *added = added_of(tokenizer, &count);
    for (size_t i = 0; i < count; i++)
        if (added[i].length == length && memcmp(added[i].text, piece, length) == 0)
            return added[i].id;
    return tarn__vocab_find(&tokenizer->vocab, piece, length);
}

/* -1 without an error for a piece that does not exist. */
int32_t tarn_tokenizer_find(const tarn_tokenizer *tokenizer, const char *piece, size_t length)
{
    if (!check_tokenizer(tokenizer, "tokenizer_find"))
        return -1;
    if (!piece) {
        tarn__raise(TARN_ERROR_ARGUMENT, "tokenizer_find: piece is NULL");
        return -1;
    }
    return find(tokenizer, piece, length);
}

/* A linear search: there are few added tokens, and this is no inner loop. */
bool tarn_tokenizer_is_special(const tarn_tokenizer *tokenizer, int32_t id)
{
    size_t count;
    if (!check_tokenizer(tokenizer, "tokenizer_is_special") || !has_id(tokenizer, "tokenizer_is_special", id))
        return false;
    const tarn__added_token *added = added_of(tokenizer, &count);
    for (size_t i = 0; i < count; i++)
        if (added[i].id == id && added[i].special)
            return true;
    return false;
}

/* The id of the first name that is a token; -1: none. */
static int32_t find_any(const tarn_tokenizer *tokenizer, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int32_t id = find(tokenizer, names[i], strlen(names[i]));
        if (id >= 0)
            return id;
    }
    return -1;
}

/* By name, in order of preference: GPT-2's, Llama 3's, SentencePiece's, Gemma's. */
int32_t tarn_tokenizer_end_of_text(const tarn_tokenizer *tokenizer)
{
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
    return check_tokenizer(tokenizer, "tokenizer_end_of_text")
               ? find_any(tokenizer, names, sizeof(names) / sizeof(names[0]))
               : -1;
}

/* As the file says; else by the tokens it adds; else by name. */
int32_t tarn_tokenizer_bos(const tarn_tokenizer *tokenizer)
{
    static const char *const names[] = {"<s>", "<|begin_of_text|>", "<bos>"};
    if (!check_tokenizer(tokenizer, "tokenizer_bos"))
        return -1;
    if (tokenizer->bos < 0 && tokenizer->before.count == 1) /* not named by the file, but added by its post-processor */
        return *(const int32_t *)(const void *)tokenizer->before.data;
    return tokenizer->bos >= 0 ? tokenizer->bos : find_any(tokenizer, names, sizeof(names) / sizeof(names[0]));
}

/* EOS of a chat model may differ from the end of a document: it ends a turn. */
int32_t tarn_tokenizer_eos(const tarn_tokenizer *tokenizer)
{
    if (!check_tokenizer(tokenizer, "tokenizer_eos"))
        return -1;
    if (tokenizer->eos < 0 && tokenizer->after.count == 1)
        return *(const int32_t *)(const void *)tokenizer->after.data;
    return tokenizer->eos >= 0 ? tokenizer->eos : tarn_tokenizer_end_of_text(tokenizer);
}

/* ---- ids to text ------------------------------------------------------------------------------------------------- */

/* Forms are rare, and so are added tokens: a search is enough. */
const char *tarn__decoded_bytes(const tarn_tokenizer *t, int32_t id, size_t *length)
{
    const tarn__added_token *added = (const tarn__added_token *)(const void *)t->added.tokens.data;
    for (size_t i = 0; t->added.has_forms && i < t->added.tokens.count; i++)
        if (added[i].id == id)
            return tarn__added_form(&added[i], length);
    return tarn__vocab_bytes(&t->vocab, id, length);
}

/* Sums up the bytes of tokens. Raises an error for an id without a token. */
static bool measure(const tarn_tokenizer *tokenizer, const int32_t *ids, int64_t count, size_t *bytes)
{
    size_t length;
    *bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!has_id(tokenizer, "tokenizer_decode", ids[i]))
            return false;
        if (!tarn__vocab_has(&tokenizer->vocab, ids[i]))
            return tarn__raise(TARN_ERROR_ARGUMENT, "tokenizer_decode: the vocabulary has no token for the id %d",
                               (int)ids[i]);
        tarn__decoded_bytes(tokenizer, ids[i], &length);
        *bytes += length;
    }
    return true;
}

/* The text of a pipeline's ids, as a result; NULL with an error. */
static char *decode_pipeline(const tarn_tokenizer *t, const int32_t *ids, int64_t count, size_t *length)
{
    tarn__decode_state state = {0};
    tarn__buffer text = {0};
    bool good = true;
    for (int64_t i = 0; good && i < count; i++)
        good = tarn__pipeline_decode(t, &state, ids[i], &text);
    char *result = good ? tarn__result_new(text.count + 1) : NULL;
    if (result && text.count)
        memcpy(result, text.data, text.count);
    if (result)
        *length = text.count;
    tarn__buffer_free(&text, 1);
    tarn__decode_state_free(&state);
    return result;
}

/* Pieces are bytes, joined as they are. */
bool tarn__decodes_pieces(const tarn_tokenizer *t)
{
    return !t->pipeline.is_used || t->kind == &tarn__kind_bpe;
}

/* Two passes: the exact size first, then the bytes. */
char *tarn_tokenizer_decode(const tarn_tokenizer *tokenizer, const int32_t *ids, int64_t count, size_t *length)
{
    size_t bytes, at = 0, piece_length;
    if (length)
        *length = 0;
    if (!check_tokenizer(tokenizer, "tokenizer_decode"))
        return NULL;
    if (count < 0 || (!ids && count) || !length) {
        tarn__raise(TARN_ERROR_ARGUMENT, "tokenizer_decode: ids or length is NULL, or count is negative");
        return NULL;
    }
    if (!measure(tokenizer, ids, count, &bytes))
        return NULL;
    if (!tarn__decodes_pieces(tokenizer))
        return decode_pipeline(tokenizer, ids, count, length);
    char *text = tarn__result_new(bytes + 1);
    if (!text)
        return NULL;
    for (int64_t i = 0; i < count; i++, at += piece_length) {
        const char *piece = tarn__decoded_bytes(tokenizer, ids[i], &piece_length);
        memcpy(text + at, piece, piece_length);
    }
    bool strips = tokenizer->spm.strip_prefix && bytes > 0 && text[0] == ' '; /* the space that encoding prepends */
    if (strips)
        memmove(text, text + 1, bytes); /* including the terminator */
    *length = bytes - strips;
    return text;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Keeps the result aligned for any type. */
#define HEADER_BYTES (sizeof(max_align_t) > sizeof(size_t) ? sizeof(max_align_t) : sizeof(size_t))

void *tarn__result_new(size_t bytes)
{
    char *memory = tarn__alloc(HEADER_BYTES + bytes);
    if (!memory)
        return NULL;
    memcpy(memory, &bytes, sizeof(bytes));
    return memory + HEADER_BYTES;
}

void tarn_tokenizer_release(void *result)
{
    size_t bytes;
    if (!result)
        return;
    char *memory = (char *)result - HEADER_BYTES;
    memcpy(&bytes, memory, sizeof(bytes));
    tarn__release(memory, HEADER_BYTES + bytes);
}
