/* tokenizer.c: the parts shared by all kinds of tokenizers: creation, queries, encoding, decoding.
 *
 * Encoding: added tokens that match the original text are cut out; the text between them is normalized; added tokens
 * that match normalized text are cut out; the rest goes to the kind's encode(). This is the order of Hugging Face's
 * tokenizers. */
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
    tarn__string_free(tokenizer->chat);
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

/* The hash of a tokenizer. Anything that changes ids must be added here. */
static uint64_t hash_all(const tarn_tokenizer *t)
{
    const unsigned char flags[] = {t->bpe.ignore_merges, t->bpe.prefix_space, t->nfc};
    const uint64_t unknown =
        (uint64_t)(t->kind == &tarn__kind_bpe || t->kind == &tarn__kind_spm ? t->bpe.unknown : t->unknown) + 1;
    uint64_t hash = hash_pieces(&t->vocab, tarn__hash(t->kind->name, strlen(t->kind->name), unknown));
    hash = hash_spm(t, hash_ids(&t->bpe.merges, 3, tarn__hash(flags, sizeof(flags), hash)));
    for (int i = 0; i < t->bpe.regex_count; i++)
        hash = tarn__hash(tarn__regex_source(t->bpe.regex[i]), strlen(tarn__regex_source(t->bpe.regex[i])), hash);
    const tarn__added_token *added = (const tarn__added_token *)(const void *)t->added.tokens.data;
    for (size_t i = 0; i < t->added.tokens.count; i++) {
        const unsigned char how[] = {added[i].special, added[i].normalized, added[i].strip_left, added[i].strip_right};
        hash = tarn__hash(added[i].text, added[i].length, tarn__hash(how, sizeof(how), hash + (uint64_t)added[i].id));
    }
    return hash_ids(&t->after, 1, hash_ids(&t->before, 1, hash));
}

/* Appends the text in the form in which normalized added tokens are searched. False with an error. */
static bool normalize(const tarn_tokenizer *tokenizer, const tarn__encoder *encoder, const char *text, size_t length,
                      tarn__buffer *form)
{
    return tokenizer->nfc ? tarn__nfc(form, text, length)
                          : tarn__spm_normalize(&tokenizer->spm, encoder, text, length, form);
}

static bool normalizes(const tarn_tokenizer *tokenizer)
{
    return tokenizer->nfc || (tokenizer->kind == &tarn__kind_spm && !tokenizer->spm.in_pre_tokenizer);
}

/* Raises an error for a normalized added token that normalization would change: it could never be found. */
static bool check_normalized(const tarn_tokenizer *tokenizer, const char *function, const char *name)
{
    const tarn__added_token *added = (const tarn__added_token *)(const void *)tokenizer->added.tokens.data;
    const tarn__encoder encoder = {0};
    tarn__buffer form = {0};
    for (size_t i = 0; normalizes(tokenizer) && i < tokenizer->added.tokens.count && !tarn_failed(); i++) {
        form.count = 0;
        if (added[i].normalized && normalize(tokenizer, &encoder, added[i].text, added[i].length, &form) &&
            (form.count != added[i].length || memcmp(form.data, added[i].text, form.count) != 0))
            tarn__raise(TARN_ERROR_UNSUPPORTED,
                        "%s: '%s': the added token '%.100s' is searched in normalized text (\"normalized\"), but "
                        "normalization changes it: %s",
                        function, name, added[i].text, tokenizer->nfc ? "it is not NFC" : "it has spaces");
    }
    tarn__buffer_free(&form, 1);
    return !tarn_failed();
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

/* The order matters: normalization is checked on sorted tokens, byte tables need the vocabulary, the hash needs all. */
bool tarn__tokenizer_finish(tarn_tokenizer *tokenizer, const char *function, const char *name)
{
    if (tarn_failed())
        return false;
    if (!tarn__added_sort(&tokenizer->added))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': duplicate added token", function, name);
    if (!check_normalized(tokenizer, function, name) ||
        (tokenizer->kind == &tarn__kind_bpe && !find_bytes(tokenizer, function, name)) ||
        (tokenizer->kind == &tarn__kind_spm && !tarn__spm_finish(tokenizer, function, name)))
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

const char *tarn_tokenizer_kind(const tarn_tokenizer *tokenizer)
{
    return check_tokenizer(tokenizer, "tokenizer_kind") ? tokenizer->kind->name : NULL;
}

int64_t tarn_tokenizer_count(const tarn_tokenizer *tokenizer)
{
    return check_tokenizer(tokenizer, "tokenizer_count") ? tokenizer->vocab.count : -1;
}

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

/* ---- text to ids ------------------------------------------------------------------------------------------------- */

/* The arguments of one call of encode, shared by its steps. */
typedef struct job {
    const tarn_tokenizer *tokenizer;
    tarn__encoder *encoder;
    bool with_special;
    tarn__buffer *ids;
} job;

/* spaces_before: the beginning of the whitespace that ends at `at`, not before `from`. spaces_after: the end of the
 * whitespace that begins at `at`. For tokens with lstrip and rstrip. */
static size_t spaces_before(const char *text, size_t from, size_t at)
{
    while (at > from) {
        size_t begin = at - 1;
        uint32_t code;
        while (begin > from && ((unsigned char)text[begin] & 0xC0) == 0x80) /* back to the character's first byte */
            begin--;
        if (tarn__utf8_decode(text + begin, at - begin, &code) != at - begin || !tarn__is_space(code))
            break;
        at = begin;
    }
    return at;
}

static size_t spaces_after(const char *text, size_t length, size_t at)
{
    uint32_t code;
    for (size_t bytes; (bytes = tarn__utf8_decode(text + at, length - at, &code)) != 0 && tarn__is_space(code);)
        at += bytes;
    return at;
}

/* Appends the ids of added tokens found in the text; the text between them goes to `between`. */
static bool split_added(const job *j, bool normalized, const char *text, size_t length,
                        bool (*between)(const job *, const char *, size_t))
{
    size_t done = 0, from = 0, at;
    const tarn__added_token *token;
    while ((token = tarn__added_next(&j->tokenizer->added, normalized, j->with_special, text, length, from, &at)) !=
           NULL) {
        size_t begin = token->strip_left ? spaces_before(text, done, at) : at;
        /* The search continues right after the token: the whitespace it absorbs may belong to the next token too. */
        from = at + token->length;
        size_t end = token->strip_right ? spaces_after(text, length, from) : from;
        if ((done < begin && !between(j, text + done, begin - done)) || !tarn__ids_add(j->ids, token->id))
            return false;
        j->encoder->continues = false; /* the text after a token is a new beginning */
        j->encoder->is_inside = true;
        done = end;
    }
    return done >= length || between(j, text + done, length - done);
}

static bool encode_text(const job *j, const char *text, size_t length)
{
    return j->tokenizer->kind->encode(j->tokenizer, j->encoder, text, length, j->ids);
}

/* Normalizes text between added tokens and searches for the tokens that match normalized text. */
static bool encode_normalized(const job *j, const char *text, size_t length)
{
    if (normalizes(j->tokenizer)) {
        j->encoder->normal.count = 0;
        if (!normalize(j->tokenizer, j->encoder, text, length, &j->encoder->normal))
            return false;
        text = j->encoder->normal.data;
        length = j->encoder->normal.count;
    }
    return split_added(j, true, text, length, encode_text);
}

/* The first of the three steps; the others follow through `between`. */
bool tarn__tokenizer_append_section(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *text,
                                    size_t length, bool with_special, bool is_inside, tarn__buffer *ids)
{
    const job j = {tokenizer, encoder, with_special, ids};
    encoder->is_inside = is_inside;
    return split_added(&j, false, text, length, encode_normalized);
}

bool tarn__tokenizer_append(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *text, size_t length,
                            const tarn_encode_options *options, tarn__buffer *ids)
{
    bool adds = options->add_special;
    return (!adds || tarn__buffer_add(ids, tokenizer->before.data, tokenizer->before.count, sizeof(int32_t))) &&
           tarn__tokenizer_append_section(tokenizer, encoder, text, length, !options->special_as_text,
                                          encoder->continues, ids) &&
           (!adds || tarn__buffer_add(ids, tokenizer->after.data, tokenizer->after.count, sizeof(int32_t)));
}

/* A fresh encoder per call: its cache only pays off within one text. Callers with many texts use
 * tarn__tokenizer_append(). */
int32_t *tarn_tokenizer_encode_sized(const tarn_tokenizer *tokenizer, const char *text, size_t length,
                                     const tarn_encode_options *options, size_t options_size, int64_t *count)
{
    tarn_encode_options chosen = {0};
    if (count)
        *count = 0;
    if (!check_tokenizer(tokenizer, "tokenizer_encode"))
        return NULL;
    if ((!text && length) || !count) {
        tarn__raise(TARN_ERROR_ARGUMENT, "tokenizer_encode: %s is NULL", count ? "text" : "count");
        return NULL;
    }
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    tarn__encoder encoder = {0};
    tarn__buffer ids = {0};
    int32_t *result = NULL;
    if (tarn__tokenizer_append(tokenizer, &encoder, text ? text : "", length, &chosen, &ids) &&
        (result = tarn__result_new(ids.count * sizeof(int32_t))) != NULL) {
        if (ids.count)
            memcpy(result, ids.data, ids.count * sizeof(int32_t));
        *count = (int64_t)ids.count;
    }
    tarn__buffer_free(&ids, sizeof(int32_t));
    tarn__encoder_free(&encoder);
    return result;
}

/* ---- ids to text ------------------------------------------------------------------------------------------------- */

/* Sums up the bytes of tokens. Raises an error for an id without a token. */
static bool measure(const tarn_tokenizer *tokenizer, const int32_t *ids, int64_t count, size_t *bytes)
{
    *bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!has_id(tokenizer, "tokenizer_decode", ids[i]))
            return false;
        if (!tarn__vocab_has(&tokenizer->vocab, ids[i]))
            return tarn__raise(TARN_ERROR_ARGUMENT, "tokenizer_decode: the vocabulary has no token for the id %d",
                               (int)ids[i]);
        *bytes += tokenizer->vocab.piece[ids[i]].length;
    }
    return true;
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
    char *text = measure(tokenizer, ids, count, &bytes) ? tarn__result_new(bytes + 1) : NULL;
    if (!text)
        return NULL;
    for (int64_t i = 0; i < count; i++, at += piece_length) {
        const char *piece = tarn__vocab_bytes(&tokenizer->vocab, ids[i], &piece_length);
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
