/* from_gguf.c: a tokenizer from the metadata of a GGUF file. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/files/gguf_tokenizer.h"

/* Pre-tokenizers by the names that GGUF files have for them. A name that is not here is refused, never guessed. */
const tarn__gguf_pre_tokenizer tarn__gguf_pre_tokenizers[] = {
    {"gpt-2", {"gpt2"}, {TARN__REGEX_GPT2}, .uses_regex = true},
    {"llama-bpe", {"llama3", "llama-v3"}, {TARN__REGEX_LLAMA3}, .ignore_merges = true, .begins = true},
    {"qwen2", {"deepseek-r1-qwen"}, {TARN__REGEX_QWEN2}, .nfc = true},
    {"smollm", {0}, {"\\p{N}", TARN__REGEX_GPT2}, .uses_regex = true},
    {0},
};

#define TOKENS "tokenizer.ggml.tokens"
#define SCORES "tokenizer.ggml.scores"
#define TYPES "tokenizer.ggml.token_type"
#define MERGES "tokenizer.ggml.merges"
#define CHAT "tokenizer.chat_template"
#define MOST_TOKENS ((int64_t)1 << 24)

/* A file that is being read, with what its lists hold. */
typedef struct source {
    const char *function, *path;
    const tarn_gguf *file;
    int64_t count;
    const char **pieces; /* borrowed from the file */
    size_t *lengths;
    float *scores; /* NULL: none */
    int32_t *types;
} source;

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static bool wrong(const source *s, tarn_code code, const char *problem, const char *name)
{
    return tarn__raise(code, "%s: '%s': %s '%.60s'", s->function, s->path, problem, name);
}

/* An id that may be missing. */
static bool read_id(const source *s, const char *key, int64_t otherwise, int64_t *id)
{
    *id = otherwise < s->count ? otherwise : -1;
    return !tarn_gguf_has(s->file, key, NULL) || tarn_gguf_int(s->file, key, 0, s->count - 1, id);
}

static bool read_flag(const source *s, const char *key, bool otherwise, bool *value)
{
    *value = otherwise;
    return !tarn_gguf_has(s->file, key, NULL) || tarn_gguf_bool(s->file, key, value);
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

static void release_lists(source *s)
{
    size_t count = (size_t)s->count;
    tarn__release(s->pieces, count * sizeof(*s->pieces));
    tarn__release(s->lengths, count * sizeof(*s->lengths));
    tarn__release(s->scores, count * sizeof(*s->scores));
    tarn__release(s->types, count * sizeof(*s->types));
}

static bool read_pieces(source *s)
{
    size_t count = (size_t)s->count;
    s->pieces = tarn__alloc(count * sizeof(*s->pieces));
    s->lengths = s->pieces ? tarn__alloc(count * sizeof(*s->lengths)) : NULL;
    for (int64_t i = 0; s->lengths && i < s->count; i++)
        if (!(s->pieces[i] = tarn_gguf_string_at(s->file, TOKENS, i, &s->lengths[i])))
            return false;
    return s->lengths != NULL;
}

static bool read_types(source *s)
{
    int64_t *types = tarn__alloc((size_t)s->count * sizeof(*types));
    s->types = types ? tarn__alloc((size_t)s->count * sizeof(*s->types)) : NULL;
    bool good = s->types && (!tarn_gguf_has(s->file, TYPES, NULL) || tarn_gguf_ints(s->file, TYPES, types, s->count));
    for (int64_t i = 0; good && i < s->count; i++)
        s->types[i] = types[i] >= 0 && types[i] <= TARN__TOKEN_BYTE ? (int32_t)types[i] : -1;
    for (int64_t i = 0; good && i < s->count && !tarn_gguf_has(s->file, TYPES, NULL); i++)
        s->types[i] = TARN__TOKEN_NORMAL;
    tarn__release(types, (size_t)s->count * sizeof(*types));
    return good;
}

static bool read_scores(source *s)
{
    double *scores = tarn__alloc((size_t)s->count * sizeof(*scores));
    s->scores = scores ? tarn__alloc((size_t)s->count * sizeof(*s->scores)) : NULL;
    bool good = s->scores && tarn_gguf_reals(s->file, SCORES, scores, s->count);
    for (int64_t i = 0; good && i < s->count; i++)
        s->scores[i] = (float)scores[i];
    tarn__release(scores, (size_t)s->count * sizeof(*scores));
    return good;
}

/* ---- SentencePiece ----------------------------------------------------------------------------------------------- */

/* What tarn writes where a file of the format could not say it: spaces as the pre-tokenizer Metaspace puts them. */
static bool read_spaces(const source *s, tarn__spm *spm)
{
    bool has_prefix;
    if (!read_flag(s, "tokenizer.ggml.add_space_prefix", true, &has_prefix) ||
        !read_flag(s, "tokenizer.ggml.remove_extra_whitespaces", false, &spm->squeezes))
        return false;
    spm->prefix = has_prefix ? TARN__PREPEND_ALWAYS : TARN__PREPEND_NEVER;
    spm->strips = has_prefix;
    if (!tarn_gguf_has(s->file, TARN__GGUF_METASPACE, NULL))
        return true;
    const char *scheme = tarn_gguf_string(s->file, TARN__GGUF_METASPACE, NULL);
    if (!scheme)
        return false;
    bool is_first = strcmp(scheme, "first") == 0;
    if (!is_first && strcmp(scheme, "always") != 0 && strcmp(scheme, "never") != 0)
        return wrong(s, TARN_ERROR_FORMAT,
                     "the key " TARN__GGUF_METASPACE " is neither first, always nor never:", scheme);
    spm->is_late = spm->prefix_if_missing = true;
    spm->prefix = is_first                        ? TARN__PREPEND_FIRST
                  : strcmp(scheme, "always") == 0 ? TARN__PREPEND_ALWAYS
                                                  : TARN__PREPEND_NEVER;
    return true;
}

static tarn_tokenizer *make_spm(source *s)
{
    tarn__spm_spec parts = {.function = s->function, .name = s->path, .count = s->count, .user_is_added = true};
    if (!read_scores(s) || !read_id(s, "tokenizer.ggml.bos_token_id", 1, &parts.begin) ||
        !read_id(s, "tokenizer.ggml.eos_token_id", 2, &parts.end) ||
        !read_id(s, "tokenizer.ggml.unknown_token_id", 0, &parts.unknown) || !read_spaces(s, &parts.settings))
        return NULL;
    parts.pieces = s->pieces;
    parts.lengths = s->lengths;
    parts.scores = s->scores;
    parts.types = s->types;
    for (int64_t i = 0; i < s->count && !parts.has_bytes; i++)
        parts.has_bytes = s->types[i] == TARN__TOKEN_BYTE;
    return tarn__spm_build(&parts);
}

/* ---- BPE on bytes ------------------------------------------------------------------------------------------------ */

static const tarn__gguf_pre_tokenizer *find_words(const source *s)
{
    const char *name = tarn_gguf_has(s->file, "tokenizer.ggml.pre", NULL)
                           ? tarn_gguf_string(s->file, "tokenizer.ggml.pre", NULL)
                           : "(none)";
    char known[128] = "";
    for (const tarn__gguf_pre_tokenizer *words = tarn__gguf_pre_tokenizers; name && words->name; words++) {
        bool is_it = strcmp(words->name, name) == 0;
        for (int i = 0; i < 3 && words->others[i]; i++)
            is_it = is_it || strcmp(words->others[i], name) == 0;
        if (is_it)
            return words;
        snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s", known[0] ? ", " : "", words->name);
    }
    if (name)
        tarn__raise(
            TARN_ERROR_UNSUPPORTED,
            "%s: '%s': how text falls into words is not known: tokenizer.ggml.pre is '%.60s', and tarn has %s; use the "
            "tokenizer.json of the model",
            s->function, s->path, name, known);
    return NULL;
}

static bool add_token(tarn_tokenizer *t, const source *s, int32_t id)
{
    size_t length = s->lengths[id], count;
    const char *text = s->pieces[id];
    bool is_found =
        s->types[id] == TARN__TOKEN_CONTROL || s->types[id] == TARN__TOKEN_UNKNOWN || s->types[id] == TARN__TOKEN_USER;
    bool is_text = tarn__utf8_prefix(text, length) == length && !memchr(text, 0, length);
    if (length == 0 || length > TARN__MAX_PIECE_BYTES || s->types[id] < TARN__TOKEN_NORMAL || !is_text)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: '%s': token %d is empty, too long, no valid UTF-8, or of a type that is none",
                           s->function, s->path, (int)id);
    if (is_found) {
        const tarn__added_token token = {
            .text = (char *)(uintptr_t)text, .length = length, .id = id, .special = s->types[id] != TARN__TOKEN_USER};
        return tarn__vocab_add(&t->pieces, id, text, length, true) && tarn__added_add(t, s->function, s->path, &token);
    }
    char few[256], *bytes = length <= sizeof(few) ? few : tarn__alloc(length);
    if (!bytes)
        return false;
    bool letters = s->types[id] == TARN__TOKEN_NORMAL && tarn__unicode_to_bytes(bytes, &count, text, length);
    bool good = tarn__vocab_add(&t->pieces, id, letters ? bytes : text, letters ? count : length, !letters);
    if (bytes != few)
        tarn__release(bytes, length);
    return good;
}

static bool add_merges(tarn_tokenizer *t, const source *s)
{
    tarn_gguf_value list;
    if (!tarn_gguf_has(s->file, MERGES, &list) || list.type != TARN_GGUF_ARRAY || list.element != TARN_GGUF_STRING)
        return wrong(s, TARN_ERROR_FORMAT, "there is no list of texts", MERGES);
    for (int64_t i = 0; i < list.count; i++) {
        size_t length;
        const char *text = tarn_gguf_string_at(s->file, MERGES, i, &length);
        const char *space = text && length > 1 ? memchr(text + 1, ' ', length - 1) : NULL;
        if (!text)
            return false;
        if (!space)
            return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': merge %lld is not two pieces with a space between them",
                               s->function, s->path, (long long)i + 1);
        size_t left = (size_t)(space - text);
        if (!tarn__bpe_add_escaped(t, s->function, s->path, (size_t)i + 1, text, left, space + 1, length - left - 1))
            return false;
    }
    return true;
}

static bool fill_bpe(tarn_tokenizer *t, const source *s, const tarn__gguf_pre_tokenizer *words)
{
    int64_t begin, end;
    for (int32_t id = 0; id < (int32_t)s->count; id++)
        if (!add_token(t, s, id))
            return false;
    t->nfc = words->nfc;
    t->bpe.ignore_merges = words->ignore_merges;
    t->bpe.uses_regex = words->uses_regex;
    for (int i = 0; i < 2 && words->pattern[i]; i++) {
        t->bpe.pattern[i] = tarn__regex_new(s->function, s->path, words->pattern[i]);
        t->bpe.pattern_count += t->bpe.pattern[i] != NULL;
    }
    if (tarn_failed() || !add_merges(t, s) || !read_id(s, "tokenizer.ggml.bos_token_id", INT64_MAX, &begin) ||
        !read_id(s, "tokenizer.ggml.eos_token_id", INT64_MAX, &end))
        return false;
    t->begin = (int32_t)begin;
    t->end = (int32_t)end;
    return tarn__tokenizer_finish(t, s->function, s->path);
}

static tarn_tokenizer *make_bpe(source *s, const tarn__gguf_pre_tokenizer *words)
{
    tarn_tokenizer *t = words ? tarn__tokenizer_new(&tarn__kind_bpe) : NULL;
    if (t && fill_bpe(t, s, words))
        return t;
    tarn_tokenizer_free(t);
    return NULL;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static bool add_rest(tarn_tokenizer *t, const source *s, bool usually_begins)
{
    bool begins, ends;
    size_t length;
    if (!read_flag(s, "tokenizer.ggml.add_bos_token", usually_begins, &begins) ||
        !read_flag(s, "tokenizer.ggml.add_eos_token", false, &ends))
        return false;
    const char *chat = tarn_gguf_has(s->file, CHAT, NULL) ? tarn_gguf_string(s->file, CHAT, &length) : NULL;
    if (chat && (strlen(chat) != length || tarn__utf8_prefix(chat, length) != length))
        return wrong(s, TARN_ERROR_FORMAT, "the chat template is no valid UTF-8, or has a NUL in it:", CHAT);
    if (tarn_failed() || (chat && !(t->chat = tarn__string_copy(chat))))
        return false;
    return tarn__tokenizer_set_add_bos_eos(t, begins, ends);
}

tarn_tokenizer *tarn__tokenizer_from_gguf(const char *function, const char *path, const tarn_gguf *file)
{
    source s = {.function = function, .path = path, .file = file};
    tarn_gguf_value list;
    tarn_tokenizer *t = NULL;
    const tarn__gguf_pre_tokenizer *words = NULL;
    const char *model = tarn_gguf_string(file, TARN__GGUF_TOKENIZER, NULL);
    bool is_spm = model && strcmp(model, "llama") == 0, is_bpe = model && strcmp(model, "gpt2") == 0;
    if (model && strcmp(model, TARN__GGUF_NO_TOKENIZER) == 0)
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' holds a model without a tokenizer", function, path);
    else if (model && !is_spm && !is_bpe)
        wrong(&s, TARN_ERROR_UNSUPPORTED,
              "tarn has the tokenizers 'llama' (SentencePiece's BPE) and 'gpt2' (BPE on bytes), not", model);
    else if (model && (!tarn_gguf_has(file, TOKENS, &list) || list.element != TARN_GGUF_STRING || list.count < 1 ||
                       list.count > MOST_TOKENS))
        wrong(&s, TARN_ERROR_FORMAT, "there is no list of texts, of a number that can be,", TOKENS);
    if (tarn_failed())
        return NULL;
    s.count = list.count;
    if (read_pieces(&s) && read_types(&s) && (is_spm || (words = find_words(&s)) != NULL))
        t = is_spm ? make_spm(&s) : make_bpe(&s, words);
    release_lists(&s);
    if (t && add_rest(t, &s, is_spm || words->begins))
        return t;
    tarn_tokenizer_free(t);
    return NULL;
}
