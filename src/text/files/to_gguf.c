/* to_gguf.c: a tokenizer as the metadata of a GGUF file. What the format cannot say is refused, so that the tokenizer
 * that is read back gives the same ids. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/files/gguf_tokenizer.h"

/* A tokenizer that is being written, with what its lists will hold. */
typedef struct target {
    const char *function;
    const tarn_tokenizer *tokenizer;
    tarn_gguf_writer *writer;
    size_t count;       /* of tokens, with those that only fill rows */
    tarn__buffer bytes; /* of all tokens */
    size_t *begins, *lengths;
    int32_t *types;
    float *scores;
} target;

static bool refuse(const target *g, const char *problem)
{
    return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: GGUF has no form for a tokenizer %s", g->function, problem);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static const tarn__added_token *find_added(const tarn_tokenizer *t, int32_t id)
{
    const tarn__added_token *tokens = (const tarn__added_token *)(const void *)t->added.tokens.data;
    for (size_t i = 0; i < t->added.tokens.count; i++)
        if (tokens[i].id == id)
            return &tokens[i];
    return NULL;
}

static int32_t type_of(const tarn_tokenizer *t, int32_t id)
{
    bool is_used = tarn__vocab_has(&t->pieces, id);
    if (!is_used)
        return TARN__TOKEN_UNUSED;
    if (t->pieces.piece[id].byte)
        return TARN__TOKEN_BYTE;
    if (t->kind == &tarn__kind_spm && id == t->bpe.unknown)
        return TARN__TOKEN_UNKNOWN;
    const tarn__added_token *added = find_added(t, id);
    if (added)
        return added->special ? TARN__TOKEN_CONTROL : TARN__TOKEN_USER;
    return t->spm.types && (size_t)id < t->spm.count ? t->spm.types[id] : TARN__TOKEN_NORMAL;
}

static bool list_token(target *g, int32_t id)
{
    char filler[32];
    g->begins[id] = g->bytes.count;
    g->types[id] = type_of(g->tokenizer, id);
    bool good =
        tarn__vocab_has(&g->tokenizer->pieces, id)
            ? tarn__vocab_escape(&g->tokenizer->pieces, id, &g->bytes)
            : tarn__buffer_add(&g->bytes, filler, (size_t)snprintf(filler, sizeof(filler), "[PAD%d]", (int)id), 1);
    g->lengths[id] = g->bytes.count - g->begins[id];
    return good;
}

static bool list_tokens(target *g)
{
    g->begins = tarn__alloc(g->count * sizeof(*g->begins));
    g->lengths = g->begins ? tarn__alloc(g->count * sizeof(*g->lengths)) : NULL;
    g->types = g->lengths ? tarn__alloc(g->count * sizeof(*g->types)) : NULL;
    g->scores = g->types ? tarn__alloc(g->count * sizeof(*g->scores)) : NULL;
    for (size_t id = 0; g->scores && id < g->count; id++)
        if (!list_token(g, (int32_t)id))
            return false;
    return g->scores != NULL;
}

static void release(target *g)
{
    tarn__buffer_free(&g->bytes, 1);
    tarn__release(g->begins, g->count * sizeof(*g->begins));
    tarn__release(g->lengths, g->count * sizeof(*g->lengths));
    tarn__release(g->types, g->count * sizeof(*g->types));
    tarn__release(g->scores, g->count * sizeof(*g->scores));
}

static bool put_tokens(const target *g)
{
    const char **texts = tarn__alloc(g->count * sizeof(*texts));
    if (!texts)
        return false;
    for (size_t id = 0; id < g->count; id++)
        texts[id] = g->bytes.data + g->begins[id];
    bool good = tarn_gguf_add_strings(g->writer, "tokenizer.ggml.tokens", texts, g->lengths, (int64_t)g->count) &&
                tarn_gguf_add_array(g->writer, "tokenizer.ggml.token_type", TARN_GGUF_I32, g->types, (int64_t)g->count);
    tarn__release(texts, g->count * sizeof(*texts));
    return good;
}

static bool put_text(const target *g, const char *key, const char *text)
{
    return tarn_gguf_add_string(g->writer, key, text, strlen(text));
}

static bool put_flag(const target *g, const char *key, bool value)
{
    return tarn_gguf_add_value(g->writer, key, TARN_GGUF_BOOL, &(uint8_t){value});
}

/* ---- SentencePiece ----------------------------------------------------------------------------------------------- */

/* Whether every pair of pieces that makes another is a merge, as it is where scores decide. */
static bool has_every_pair(const target *g, int32_t id)
{
    const tarn_tokenizer *t = g->tokenizer;
    size_t length;
    uint32_t code;
    const char *bytes = tarn__vocab_bytes(&t->pieces, id, &length);
    for (size_t at = tarn__utf8_decode(bytes, length, &code); at > 0 && at < length;
         at += tarn__utf8_decode(bytes + at, length - at, &code)) {
        int32_t left = tarn__vocab_find(&t->pieces, bytes, at),
                right = tarn__vocab_find(&t->pieces, bytes + at, length - at);
        bool is_pair =
            left >= 0 && right >= 0 && g->types[left] == TARN__TOKEN_NORMAL && g->types[right] == TARN__TOKEN_NORMAL;
        const tarn__merge_slot *merge = is_pair ? tarn__bpe_find(&t->bpe, left, right) : NULL;
        if (is_pair && (!merge || merge->made != id))
            return false;
    }
    return true;
}

/* Scores for merges that have ranks: those that make one piece must follow each other. */
static bool score_merges(target *g)
{
    const tarn_tokenizer *t = g->tokenizer;
    const tarn__merge *merge = (const tarn__merge *)(const void *)t->bpe.merges.data;
    float score = 0;
    for (size_t i = 0; i < t->bpe.merges.count; i++) {
        bool again = i > 0 && merge[i].made == merge[i - 1].made;
        if (!again && g->scores[merge[i].made] != 0)
            return refuse(g, "whose merges of one piece stand apart: they have no scores");
        score -= !again;
        g->scores[merge[i].made] = score;
    }
    for (int32_t id = 0; id < t->pieces.count; id++)
        if (g->types[id] == TARN__TOKEN_NORMAL && !has_every_pair(g, id))
            return refuse(g, "that has pieces without the merges that make them: by scores they would be made");
    return true;
}

static bool put_spm(target *g)
{
    static const char *const schemes[] = {"never", "first", "always"};
    const tarn_tokenizer *t = g->tokenizer;
    if (t->bpe.ignore_merges)
        return refuse(g, "of SentencePiece with ignore_merges");
    if (!t->spm.has_bytes && t->spm.byte_id[0] >= 0)
        return refuse(g, "of SentencePiece that has pieces for bytes and does not fall back to them");
    if (!t->spm.scores && !score_merges(g))
        return false;
    for (size_t i = 0; t->spm.scores && i < t->spm.count; i++)
        g->scores[i] = t->spm.scores[i];
    return put_text(g, TARN__GGUF_TOKENIZER, "llama") && put_text(g, "tokenizer.ggml.pre", "default") &&
           put_tokens(g) &&
           tarn_gguf_add_array(g->writer, "tokenizer.ggml.scores", TARN_GGUF_F32, g->scores, (int64_t)g->count) &&
           put_flag(g, "tokenizer.ggml.add_space_prefix", t->spm.prefix != TARN__PREPEND_NEVER) &&
           put_flag(g, "tokenizer.ggml.remove_extra_whitespaces", t->spm.squeezes) &&
           (!t->spm.is_late || put_text(g, TARN__GGUF_METASPACE, schemes[t->spm.prefix]));
}

/* ---- BPE on bytes ------------------------------------------------------------------------------------------------ */

/* The name for how a text falls into words, NULL: the format has none. */
static const char *words_of(const tarn_tokenizer *t)
{
    for (const tarn__gguf_pre_tokenizer *words = tarn__gguf_pre_tokenizers; words->name; words++) {
        bool is_it = words->nfc == t->nfc && words->ignore_merges == t->bpe.ignore_merges && !t->bpe.prefix_space;
        int count = 0;
        for (; count < 2 && words->pattern[count] && is_it; count++)
            is_it = count < t->bpe.pattern_count &&
                    strcmp(words->pattern[count], tarn__regex_source(t->bpe.pattern[count])) == 0;
        if (is_it && count == t->bpe.pattern_count)
            return words->name;
    }
    return NULL;
}

static bool put_merges(const target *g)
{
    const tarn_tokenizer *t = g->tokenizer;
    const tarn__merge *merge = (const tarn__merge *)(const void *)t->bpe.merges.data;
    size_t count = t->bpe.merges.count;
    tarn__buffer bytes = {0};
    size_t *begins = tarn__alloc((count + 1) * sizeof(*begins));
    const char **texts = begins ? tarn__alloc((count + 1) * sizeof(*texts)) : NULL;
    bool good = texts != NULL;
    for (size_t i = 0; good && i < count; i++) {
        begins[i] = bytes.count;
        good = tarn__vocab_escape(&t->pieces, merge[i].left, &bytes) && tarn__buffer_add(&bytes, " ", 1, 1) &&
               tarn__vocab_escape(&t->pieces, merge[i].right, &bytes) && tarn__buffer_add(&bytes, "", 1, 1);
    }
    for (size_t i = 0; good && i < count; i++)
        texts[i] = bytes.data + begins[i];
    good = good && tarn_gguf_add_strings(g->writer, "tokenizer.ggml.merges", texts, NULL, (int64_t)count);
    tarn__buffer_free(&bytes, 1);
    tarn__release(begins, (count + 1) * sizeof(*begins));
    tarn__release(texts, (count + 1) * sizeof(*texts));
    return good;
}

static bool put_bpe(target *g)
{
    const char *words = words_of(g->tokenizer);
    if (!words)
        return refuse(g, "that cuts text into words by these patterns, or with these settings (it has GPT-2's, Llama "
                         "3's, Qwen2's and SmolLM's)");
    if (g->tokenizer->bpe.unknown >= 0)
        return refuse(g, "of bytes with a token for unknown ones");
    return put_text(g, TARN__GGUF_TOKENIZER, "gpt2") && put_text(g, "tokenizer.ggml.pre", words) && put_tokens(g) &&
           put_merges(g);
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static bool put_id(const target *g, const char *key, int32_t id)
{
    return id < 0 || tarn_gguf_add_value(g->writer, key, TARN_GGUF_U32, &(uint32_t){(uint32_t)id});
}

/* What stands before or behind a text: nothing, or the one token of that kind, which may be known from there only, or
 * to the model only. Without the key llama.cpp takes token 11 for it. */
static bool put_side(const target *g, const tarn__buffer *ids, int32_t known, int32_t of_model, const char *key,
                     const char *flag)
{
    const int32_t *id = (const int32_t *)(const void *)ids->data;
    if (ids->count > 1 || (ids->count == 1 && known >= 0 && id[0] != known))
        return refuse(g, "that puts other tokens around a text than the one that begins it and the one that ends it");
    return put_id(g, key, ids->count ? id[0] : known >= 0 ? known : of_model) && put_flag(g, flag, ids->count > 0);
}

static bool check(const target *g)
{
    const tarn_tokenizer *t = g->tokenizer;
    const tarn__added_token *added = (const tarn__added_token *)(const void *)t->added.tokens.data;
    if (t->kind != &tarn__kind_spm && t->kind != &tarn__kind_bpe)
        return refuse(g, "of bytes or characters: use the model's folder, which all commands open; for a GGUF file "
                         "train with a BPE (tarn tokenize "
                         "FILES --train 1024 --out FOLDER, then tarn train --tokenizer FOLDER)");
    if (g->count < (size_t)t->pieces.count)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: a model of %zu rows is too small for a tokenizer of %d tokens",
                           g->function, g->count, (int)t->pieces.count);
    for (size_t i = 0; i < t->added.tokens.count; i++)
        if (added[i].strip_left || added[i].strip_right)
            return refuse(g, "with tokens that take the spaces beside them (lstrip, rstrip)");
    return true;
}

bool tarn__tokenizer_to_gguf(const char *function, const tarn_tokenizer *tokenizer, const tarn__gguf_model *model,
                             tarn_gguf_writer *writer)
{
    const tarn_tokenizer *t = tokenizer;
    target g = {.function = function,
                .tokenizer = t,
                .writer = writer,
                .count = model->rows > 0 ? (size_t)model->rows : (size_t)t->pieces.count};
    bool good =
        check(&g) && list_tokens(&g) && (t->kind == &tarn__kind_spm ? put_spm(&g) : put_bpe(&g)) &&
        put_side(&g, &t->before, t->begin, model->begin, "tokenizer.ggml.bos_token_id",
                 "tokenizer.ggml.add_bos_token") &&
        put_side(&g, &t->after, t->end, model->end, "tokenizer.ggml.eos_token_id", "tokenizer.ggml.add_eos_token") &&
        put_id(&g, "tokenizer.ggml.unknown_token_id", t->bpe.unknown) &&
        (!t->chat || put_text(&g, "tokenizer.chat_template", t->chat));
    release(&g);
    return good;
}
