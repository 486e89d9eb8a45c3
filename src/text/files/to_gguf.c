/* to_gguf.c: a tokenizer as the metadata of a GGUF file. Whatever the format cannot express is an error, so that a
 * tokenizer read back gives the same ids. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/files/gguf_tokenizer.h"
#include "text/files/hf_write.h"

/* A tokenizer being written, and the arrays of its tokens; owned. */
typedef struct target {
    const char *function;            /* for errors */
    const tarn_tokenizer *tokenizer; /* borrowed */
    tarn_gguf_writer *writer;        /* borrowed */
    bool has_json;                   /* the caller writes TARN__GGUF_HUGGINGFACE */
    size_t count;                    /* of tokens, including padding for embedding rows */
    tarn__buffer bytes;              /* escaped text of all tokens */
    size_t *begins, *lengths;        /* [count]: offset and length in bytes */
    int32_t *types;                  /* [count], tarn__token_type */
    float *scores;                   /* [count]; 0 without merges */
} target;

/* Raises an error for a tokenizer that GGUF cannot express. Returns false. */
static bool raise_unsupported(const target *g, const char *problem)
{
    return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: GGUF cannot store a tokenizer %s", g->function, problem);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* The added token of an id; NULL: none. */
static const tarn__added_token *find_added(const tarn_tokenizer *t, int32_t id)
{
    const tarn__added_token *tokens = (const tarn__added_token *)(const void *)t->added.tokens.data;
    for (size_t i = 0; i < t->added.tokens.count; i++)
        if (tokens[i].id == id)
            return &tokens[i];
    return NULL;
}

/* The type of an id in GGUF. */
static int32_t type_of(const tarn_tokenizer *t, int32_t id)
{
    bool is_used = tarn__vocab_has(&t->vocab, id);
    if (!is_used)
        return TARN__TOKEN_UNUSED;
    if (t->vocab.piece[id].byte)
        return TARN__TOKEN_BYTE;
    if (t->kind == &tarn__kind_spm && id == t->bpe.unknown)
        return TARN__TOKEN_UNKNOWN;
    const tarn__added_token *added = find_added(t, id);
    if (added)
        return added->special ? TARN__TOKEN_CONTROL : TARN__TOKEN_USER;
    return t->spm.types && (size_t)id < t->spm.count ? t->spm.types[id] : TARN__TOKEN_NORMAL;
}

/* Appends a token's text and type; an unused id becomes [PADn], as llama.cpp's converter names it. */
static bool add_token(target *g, int32_t id)
{
    char filler[32];
    g->begins[id] = g->bytes.count;
    g->types[id] = type_of(g->tokenizer, id);
    bool good =
        tarn__vocab_has(&g->tokenizer->vocab, id)
            ? tarn__vocab_escape(&g->tokenizer->vocab, id, &g->bytes)
            : tarn__buffer_add(&g->bytes, filler, (size_t)snprintf(filler, sizeof(filler), "[PAD%d]", (int)id), 1);
    g->lengths[id] = g->bytes.count - g->begins[id];
    return good;
}

/* Collects texts, types and zero scores of all tokens. */
static bool add_tokens(target *g)
{
    g->begins = tarn__alloc(g->count * sizeof(*g->begins));
    g->lengths = g->begins ? tarn__alloc(g->count * sizeof(*g->lengths)) : NULL;
    g->types = g->lengths ? tarn__alloc(g->count * sizeof(*g->types)) : NULL;
    g->scores = g->types ? tarn__alloc(g->count * sizeof(*g->scores)) : NULL;
    for (size_t id = 0; g->scores && id < g->count; id++)
        if (!add_token(g, (int32_t)id))
            return false;
    return g->scores != NULL;
}

/* Frees the arrays; NULL ones too. */
static void release(target *g)
{
    tarn__buffer_free(&g->bytes, 1);
    tarn__release(g->begins, g->count * sizeof(*g->begins));
    tarn__release(g->lengths, g->count * sizeof(*g->lengths));
    tarn__release(g->types, g->count * sizeof(*g->types));
    tarn__release(g->scores, g->count * sizeof(*g->scores));
}

/* Writes the arrays of tokens and types. */
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

static bool put_string(const target *g, const char *key, const char *text)
{
    return tarn_gguf_add_string(g->writer, key, text, strlen(text));
}

static bool put_bool(const target *g, const char *key, bool value)
{
    return tarn_gguf_add_value(g->writer, key, TARN_GGUF_BOOL, &(uint8_t){value});
}

/* ---- SentencePiece ----------------------------------------------------------------------------------------------- */

/* True if every split of a piece into two pieces is a merge that forms it: by scores, which GGUF stores, all of them
 * would merge. */
static bool has_every_pair(const target *g, int32_t id)
{
    const tarn_tokenizer *t = g->tokenizer;
    size_t length;
    uint32_t code;
    const char *bytes = tarn__vocab_bytes(&t->vocab, id, &length);
    for (size_t at = tarn__utf8_decode(bytes, length, &code); at > 0 && at < length;
         at += tarn__utf8_decode(bytes + at, length - at, &code)) {
        int32_t left = tarn__vocab_find(&t->vocab, bytes, at),
                right = tarn__vocab_find(&t->vocab, bytes + at, length - at);
        bool is_pair =
            left >= 0 && right >= 0 && g->types[left] == TARN__TOKEN_NORMAL && g->types[right] == TARN__TOKEN_NORMAL;
        const tarn__merge_slot *merge = is_pair ? tarn__bpe_find(&t->bpe, left, right) : NULL;
        if (is_pair && (!merge || merge->merged != id))
            return false;
    }
    return true;
}

/* Derives scores from ranks: -1, -2, … in the order of merges. A piece has one score, so the merges that form it must
 * be adjacent. */
static bool score_merges(target *g)
{
    const tarn_tokenizer *t = g->tokenizer;
    const tarn__merge *merge = (const tarn__merge *)(const void *)t->bpe.merges.data;
    float score = 0;
    for (size_t i = 0; i < t->bpe.merges.count; i++) {
        bool is_same = i > 0 && merge[i].merged == merge[i - 1].merged;
        if (!is_same && g->scores[merge[i].merged] != 0)
            return raise_unsupported(g, "whose merges of one piece are not adjacent: they have no common score");
        score -= !is_same;
        g->scores[merge[i].merged] = score;
    }
    for (int32_t id = 0; id < t->vocab.count; id++)
        if (g->types[id] == TARN__TOKEN_NORMAL && !has_every_pair(g, id))
            return raise_unsupported(g, "that has pieces without merges: by scores they would be merged");
    return true;
}

/* Writes a SentencePiece tokenizer. Without scores they are derived from the merges. */
static bool put_spm(target *g)
{
    static const char *const schemes[] = {"never", "first", "always"};
    const tarn_tokenizer *t = g->tokenizer;
    if (t->bpe.ignore_merges)
        return raise_unsupported(g, "of SentencePiece with ignore_merges");
    if (!t->spm.has_bytes && t->spm.byte_id[0] >= 0)
        return raise_unsupported(g, "of SentencePiece that has byte pieces but no byte fallback");
    if (!t->spm.scores && !score_merges(g))
        return false;
    for (size_t i = 0; t->spm.scores && i < t->spm.count; i++)
        g->scores[i] = t->spm.scores[i];
    return put_string(g, TARN__GGUF_TOKENIZER, "llama") && put_string(g, "tokenizer.ggml.pre", "default") &&
           put_tokens(g) &&
           tarn_gguf_add_array(g->writer, "tokenizer.ggml.scores", TARN_GGUF_F32, g->scores, (int64_t)g->count) &&
           put_bool(g, "tokenizer.ggml.add_space_prefix", t->spm.prepend != TARN__PREPEND_NEVER) &&
           put_bool(g, "tokenizer.ggml.remove_extra_whitespaces", t->spm.remove_extra_spaces) &&
           (!t->spm.in_pre_tokenizer || put_string(g, TARN__GGUF_METASPACE, schemes[t->spm.prepend]));
}

/* ---- BPE on bytes ------------------------------------------------------------------------------------------------ */

/* Writes "left right" per merge. Offsets are turned into pointers only at the end: the buffer moves while it grows. */
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
        good = tarn__vocab_escape(&t->vocab, merge[i].left, &bytes) && tarn__buffer_add(&bytes, " ", 1, 1) &&
               tarn__vocab_escape(&t->vocab, merge[i].right, &bytes) && tarn__buffer_add(&bytes, "", 1, 1);
    }
    for (size_t i = 0; good && i < count; i++)
        texts[i] = bytes.data + begins[i];
    good = good && tarn_gguf_add_strings(g->writer, "tokenizer.ggml.merges", texts, NULL, (int64_t)count);
    tarn__buffer_free(&bytes, 1);
    tarn__release(begins, (count + 1) * sizeof(*begins));
    tarn__release(texts, (count + 1) * sizeof(*texts));
    return good;
}

/* Writes a byte-level BPE; its regexes must be those of a pre-tokenizer that GGUF has a name for. */
static bool put_bpe(target *g)
{
    const char *pre = tarn__gguf_pre_tokenizer_name(g->tokenizer);
    if (!pre)
        return raise_unsupported(g, "with this pre-tokenizer, for which the format has no name");
    if (g->tokenizer->bpe.unknown >= 0)
        return raise_unsupported(g, "of bytes with an unknown token");
    return put_string(g, TARN__GGUF_TOKENIZER, "gpt2") && put_string(g, "tokenizer.ggml.pre", pre) && put_tokens(g) &&
           put_merges(g);
}

/* ---- Unigram and WordPiece --------------------------------------------------------------------------------------- */

/* The whole tokenizer.json, whose steps no other key expresses. */
static bool put_whole(const target *g)
{
    tarn__buffer text = {0};
    if (g->has_json)
        return true;
    bool good = tarn__hf_put_tokenizer(&text, g->tokenizer) &&
                tarn_gguf_add_string(g->writer, TARN__GGUF_HUGGINGFACE, text.data, text.count);
    tarn__buffer_free(&text, 1);
    return good;
}

/* The first character map among the normalizers; NULL: none. */
static const tarn__pipeline_step *find_map(const tarn__pipeline *p)
{
    for (size_t i = 0; i < p->normalizers.count; i++)
        if (tarn__steps_at(&p->normalizers, i)->map)
            return tarn__steps_at(&p->normalizers, i);
    return NULL;
}

static bool put_unigram(target *g)
{
    const tarn_tokenizer *t = g->tokenizer;
    const tarn__pipeline *p = &t->pipeline;
    const tarn__pipeline_step *map = find_map(p);
    bool is_spm = t->unigram.is_spm, prepends = !is_spm, removes = !is_spm;
    for (size_t i = 0; is_spm && i < p->normalizers.count; i++) {
        prepends = prepends || tarn__steps_at(&p->normalizers, i)->prepend == TARN__PREPEND_ALWAYS;
        removes = removes || tarn__steps_at(&p->normalizers, i)->remove_extra_spaces;
    }
    for (size_t i = 0; i < t->unigram.count; i++) {
        g->scores[i] = (float)t->unigram.scores[i];
        if (is_spm && g->types[i] != TARN__TOKEN_CONTROL)
            g->types[i] = t->unigram.types[i];
    }
    return put_string(g, TARN__GGUF_TOKENIZER, "t5") && put_string(g, "tokenizer.ggml.pre", "default") &&
           put_tokens(g) &&
           tarn_gguf_add_array(g->writer, "tokenizer.ggml.scores", TARN_GGUF_F32, g->scores, (int64_t)g->count) &&
           put_bool(g, "tokenizer.ggml.add_space_prefix", prepends) &&
           put_bool(g, "tokenizer.ggml.remove_extra_whitespaces", removes) &&
           (!map || tarn_gguf_add_array(g->writer, "tokenizer.ggml.precompiled_charsmap", TARN_GGUF_U8, map->map,
                                        (int64_t)map->map_bytes)) &&
           (is_spm || put_whole(g));
}

/* The beginning of a word is marked by U+2581, a continuation by nothing, as llama.cpp expects. */
static bool mark_words(target *g)
{
    const tarn_tokenizer *t = g->tokenizer;
    tarn__buffer marked = {0};
    const char *prefix = t->wordpiece.prefix ? t->wordpiece.prefix : "";
    size_t size = t->wordpiece.prefix_length;
    bool good = true;
    for (size_t id = 0; good && id < g->count; id++) {
        const char *text = g->bytes.data + g->begins[id];
        size_t length = g->lengths[id], begin = marked.count;
        bool is_plain = g->types[id] != TARN__TOKEN_NORMAL || text[0] == '[';
        bool continues = !is_plain && size > 0 && length > size && memcmp(text, prefix, size) == 0;
        size_t skipped = continues ? size : 0;
        good = (is_plain || continues || tarn__buffer_add(&marked, TARN__METASPACE, TARN__METASPACE_BYTES, 1)) &&
               tarn__buffer_add(&marked, text + skipped, length - skipped, 1);
        g->begins[id] = begin;
        g->lengths[id] = marked.count - begin;
    }
    tarn__buffer_free(&g->bytes, 1);
    g->bytes = marked;
    return good;
}

static bool put_wordpiece(target *g)
{
    if (g->tokenizer->unknown >= 0)
        g->types[g->tokenizer->unknown] = TARN__TOKEN_UNKNOWN;
    return mark_words(g) && put_string(g, TARN__GGUF_TOKENIZER, "bert") &&
           put_string(g, "tokenizer.ggml.pre", "default") && put_tokens(g) && put_whole(g);
}

/* Writes the tokens of a kind. */
static bool put_kind(target *g)
{
    const tarn__tokenizer_kind *kind = g->tokenizer->kind;
    return kind == &tarn__kind_spm         ? put_spm(g)
           : kind == &tarn__kind_unigram   ? put_unigram(g)
           : kind == &tarn__kind_wordpiece ? put_wordpiece(g)
                                           : put_bpe(g);
}

/* ---- the metadata ------------------------------------------------------------------------------------------------ */

/* Writes an id as u32, the type that llama.cpp expects; nothing for -1. */
static bool put_id(const target *g, const char *key, int32_t id)
{
    return id < 0 || tarn_gguf_add_value(g->writer, key, TARN_GGUF_U32, &(uint32_t){(uint32_t)id});
}

/* Writes BOS or EOS and whether it is added. The id comes from the tokens around a text, the tokenizer's config, or the
 * model. It is always written if known: without the key llama.cpp assumes token 11. */
static bool put_special(const target *g, const tarn__buffer *ids, int32_t known, int32_t of_model, const char *key,
                        const char *flag)
{
    const int32_t *id = (const int32_t *)(const void *)ids->data;
    if (ids->count > 1 || (ids->count == 1 && known >= 0 && id[0] != known))
        return raise_unsupported(g, "that adds tokens other than BOS and EOS to a text");
    return put_id(g, key, ids->count ? id[0] : known >= 0 ? known : of_model) && put_bool(g, flag, ids->count > 0);
}

/* Writes the ids of named special tokens for which the format has keys. */
static bool put_named(const target *g)
{
    const tarn_tokenizer *t = g->tokenizer;
    bool good = true;
    for (const tarn__gguf_special *special = tarn__gguf_specials; good && special->name; special++) {
        const char *text = tarn__tokenizer_special(t, special->name);
        good = !text || put_id(g, special->key, tarn_tokenizer_find(t, text, strlen(text)));
    }
    return good;
}

/* The spelling of the second is the format's. */
const tarn__gguf_special tarn__gguf_specials[] = {{"pad_token", "tokenizer.ggml.padding_token_id"},
                                                  {"sep_token", "tokenizer.ggml.seperator_token_id"},
                                                  {"cls_token", "tokenizer.ggml.cls_token_id"},
                                                  {"mask_token", "tokenizer.ggml.mask_token_id"},
                                                  {NULL, NULL}};

bool tarn__gguf_put_templates(const tarn_tokenizer *t, tarn_gguf_writer *writer)
{
    const tarn__chat_source *sources = (const tarn__chat_source *)(const void *)t->chats.data;
    const char *names[64];
    int64_t count = 0;
    bool good = !t->chat || tarn_gguf_add_string(writer, TARN__GGUF_CHAT, t->chat, strlen(t->chat));
    for (size_t i = 0; good && i < t->chats.count && count < 64; i++) {
        char key[160];
        if (strcmp(sources[i].name, "default") == 0)
            continue;
        snprintf(key, sizeof(key), TARN__GGUF_CHAT ".%.100s", sources[i].name);
        names[count++] = sources[i].name;
        good = tarn_gguf_add_string(writer, key, sources[i].text, strlen(sources[i].text));
    }
    return good && (count == 0 || tarn_gguf_add_strings(writer, TARN__GGUF_CHAT_NAMES, names, NULL, count));
}

/* Checks what no kind can express. */
static bool check(const target *g)
{
    const tarn_tokenizer *t = g->tokenizer;
    const tarn__added_token *added = (const tarn__added_token *)(const void *)t->added.tokens.data;
    bool is_whole = t->kind == &tarn__kind_wordpiece || (t->kind == &tarn__kind_unigram && !t->unigram.is_spm);
    if (t->kind == &tarn__kind_bpe_chars || t->kind == &tarn__kind_words)
        return raise_unsupported(g, "of words, or with a BPE on characters");
    if (t->kind == &tarn__kind_bytes || t->kind == &tarn__kind_characters)
        return raise_unsupported(
            g, "of bytes or characters: use the model's folder, which all commands open; for a GGUF file train with a "
               "BPE (tarn tokenize FILES --train 1024 --out FOLDER, then tarn train --tokenizer FOLDER)");
    if (g->count < (size_t)t->vocab.count)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: a model of %zu rows is too small for a tokenizer of %d tokens",
                           g->function, g->count, (int)t->vocab.count);
    for (size_t i = 0; i < t->added.tokens.count; i++)
        if (!is_whole && (added[i].strip_left || added[i].strip_right || added[i].single_word))
            return raise_unsupported(g, "with tokens that absorb adjacent spaces (lstrip, rstrip), or are found only "
                                        "between words (single_word)");
    return true;
}

/* After a failure some keys are in the writer already: the caller cancels it. */
bool tarn__tokenizer_to_gguf(const char *function, const tarn_tokenizer *tokenizer, const tarn__gguf_model *model,
                             tarn_gguf_writer *writer)
{
    const tarn_tokenizer *t = tokenizer;
    target g = {.function = function,
                .tokenizer = t,
                .writer = writer,
                .has_json = model->has_json,
                .count = model->rows > 0 ? (size_t)model->rows : (size_t)t->vocab.count};
    bool good =
        check(&g) && add_tokens(&g) && put_kind(&g) &&
        put_special(&g, &t->before, t->bos, model->bos, "tokenizer.ggml.bos_token_id",
                    "tokenizer.ggml.add_bos_token") &&
        put_special(&g, &t->after, t->eos, model->eos, "tokenizer.ggml.eos_token_id", "tokenizer.ggml.add_eos_token") &&
        put_id(&g, "tokenizer.ggml.unknown_token_id", tarn__tokenizer_unknown(t)) && put_named(&g) &&
        tarn__gguf_put_templates(t, writer);
    release(&g);
    return good;
}
