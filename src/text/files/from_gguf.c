/* from_gguf.c: a tokenizer from the metadata of a GGUF file. The reader has checked types and sizes of all keys; their
 * values are checked here. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/files/gguf_tokenizer.h"

#define TOKENS "tokenizer.ggml.tokens"
#define SCORES "tokenizer.ggml.scores"
#define TYPES "tokenizer.ggml.token_type"
#define MERGES "tokenizer.ggml.merges"
#define MAX_TOKENS ((int64_t)1 << 24)

/* A file being read, and its arrays; owned but for the pieces' bytes. */
typedef struct gguf_source {
    const char *function, *path; /* for errors */
    const tarn_gguf *file;       /* borrowed */
    int64_t count;               /* of tokens, and of each array below */
    const char **pieces;         /* bytes are borrowed from the file, not terminated */
    size_t *lengths;
    float *scores; /* NULL: none */
    int32_t *types;
} gguf_source;

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* Raises an error about a key. Returns false. */
static bool raise_key(const gguf_source *s, tarn_code code, const char *problem, const char *name)
{
    return tarn__raise(code, "%s: '%s': %s '%.60s'", s->function, s->path, problem, name);
}

/* Reads an id; without the key it is the default, if that is in the vocabulary. */
static bool read_id(const gguf_source *s, const char *key, int64_t default_value, int64_t *id)
{
    *id = default_value < s->count ? default_value : -1;
    return !tarn_gguf_has(s->file, key, NULL) || tarn_gguf_int(s->file, key, 0, s->count - 1, id);
}

/* Prefixes the pending error with the file and a key. Returns false. */
static bool raise_within_key(const gguf_source *s, const char *key)
{
    char where[1200];
    snprintf(where, sizeof(where), "%s: '%.1000s': '%.100s'", s->function, s->path, key);
    return tarn__raise_within(where);
}

static bool read_bool(const gguf_source *s, const char *key, bool default_value, bool *value)
{
    *value = default_value;
    return !tarn_gguf_has(s->file, key, NULL) || tarn_gguf_bool(s->file, key, value);
}

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

/* Frees the arrays; NULL ones too, after a failure. */
static void release_arrays(gguf_source *s)
{
    size_t count = (size_t)s->count;
    tarn__release(s->pieces, count * sizeof(*s->pieces));
    tarn__release(s->lengths, count * sizeof(*s->lengths));
    tarn__release(s->scores, count * sizeof(*s->scores));
    tarn__release(s->types, count * sizeof(*s->types));
}

/* Borrows the tokens' bytes from the map: they are copied once, into the vocabulary. */
static bool read_pieces(gguf_source *s)
{
    size_t count = (size_t)s->count;
    s->pieces = tarn__alloc(count * sizeof(*s->pieces));
    s->lengths = s->pieces ? tarn__alloc(count * sizeof(*s->lengths)) : NULL;
    for (int64_t i = 0; s->lengths && i < s->count; i++)
        if (!(s->pieces[i] = tarn_gguf_string_at(s->file, TOKENS, i, &s->lengths[i])))
            return false;
    return s->lengths != NULL;
}

/* Without the key all tokens are normal. Unknown types become -1, which is an error where they are used. */
static bool read_types(gguf_source *s)
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

/* Reads the scores as f32, the precision of SentencePiece. */
static bool read_scores(gguf_source *s)
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

/* Reads how spaces are changed; TARN__GGUF_METASPACE, written by tarn alone, overrides add_space_prefix. */
static bool read_spaces(const gguf_source *s, tarn__spm *spm)
{
    bool has_prefix;
    if (!read_bool(s, "tokenizer.ggml.add_space_prefix", true, &has_prefix) ||
        !read_bool(s, "tokenizer.ggml.remove_extra_whitespaces", false, &spm->remove_extra_spaces))
        return false;
    spm->prepend = has_prefix ? TARN__PREPEND_ALWAYS : TARN__PREPEND_NEVER;
    spm->strip_prefix = has_prefix;
    if (!tarn_gguf_has(s->file, TARN__GGUF_METASPACE, NULL))
        return true;
    const char *scheme = tarn_gguf_string(s->file, TARN__GGUF_METASPACE, NULL);
    if (!scheme)
        return false;
    bool is_first = strcmp(scheme, "first") == 0;
    if (!is_first && strcmp(scheme, "always") != 0 && strcmp(scheme, "never") != 0)
        return raise_key(s, TARN_ERROR_FORMAT,
                         "the key " TARN__GGUF_METASPACE " is neither first, always nor never:", scheme);
    spm->in_pre_tokenizer = spm->prepend_if_missing = true;
    spm->prepend = is_first                        ? TARN__PREPEND_FIRST
                   : strcmp(scheme, "always") == 0 ? TARN__PREPEND_ALWAYS
                                                   : TARN__PREPEND_NEVER;
    return true;
}

/* Builds a SentencePiece tokenizer. llama.cpp's defaults of BOS, EOS and unknown apply where keys are missing. Byte
 * fallback is on if there is any byte piece. */
static tarn_tokenizer *build_spm(gguf_source *s)
{
    tarn__spm_spec spec = {.function = s->function, .name = s->path, .count = s->count, .user_is_added = true};
    if (!read_scores(s) || !read_id(s, "tokenizer.ggml.bos_token_id", 1, &spec.bos) ||
        !read_id(s, "tokenizer.ggml.eos_token_id", 2, &spec.eos) ||
        !read_id(s, "tokenizer.ggml.unknown_token_id", 0, &spec.unknown) || !read_spaces(s, &spec.settings))
        return NULL;
    spec.pieces = s->pieces;
    spec.lengths = s->lengths;
    spec.scores = s->scores;
    spec.types = s->types;
    for (int64_t i = 0; i < s->count && !spec.has_bytes; i++)
        spec.has_bytes = s->types[i] == TARN__TOKEN_BYTE;
    return tarn__spm_build(&spec);
}

/* ---- BPE on bytes ------------------------------------------------------------------------------------------------ */

/* The pre-tokenizer named by the file. NULL with an error that lists the supported ones. */
static const tarn__gguf_pre_tokenizer *find_pre_tokenizer(const gguf_source *s)
{
    const char *name = tarn_gguf_has(s->file, "tokenizer.ggml.pre", NULL)
                           ? tarn_gguf_string(s->file, "tokenizer.ggml.pre", NULL)
                           : "(none)";
    char known[256] = "";
    for (const tarn__gguf_pre_tokenizer *pre = tarn__gguf_pre_tokenizers; name && pre->name; pre++) {
        bool is_it = strcmp(pre->name, name) == 0;
        for (int i = 0; i < TARN__GGUF_PRE_ALIASES && pre->aliases[i]; i++)
            is_it = is_it || strcmp(pre->aliases[i], name) == 0;
        if (is_it)
            return pre;
        snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s", known[0] ? ", " : "", pre->name);
    }
    if (name)
        tarn__raise(TARN_ERROR_UNSUPPORTED,
                    "%s: '%s': unknown pre-tokenizer: tokenizer.ggml.pre is '%.60s'; supported are %s; use the model's "
                    "tokenizer.json",
                    s->function, s->path, name, known);
    return NULL;
}

/* Adds a token of a byte-level vocabulary: control and user tokens as added tokens, the others unescaped. */
static bool add_token(tarn_tokenizer *t, const gguf_source *s, int32_t id)
{
    size_t length = s->lengths[id], count;
    const char *text = s->pieces[id];
    bool is_added =
        s->types[id] == TARN__TOKEN_CONTROL || s->types[id] == TARN__TOKEN_UNKNOWN || s->types[id] == TARN__TOKEN_USER;
    bool is_text = tarn__utf8_prefix(text, length) == length && !memchr(text, 0, length);
    if (length == 0 || length > TARN__MAX_PIECE_BYTES || s->types[id] < TARN__TOKEN_NORMAL || !is_text)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: '%s': token %d is empty, too long, not valid UTF-8, or of an unknown type", s->function,
                           s->path, (int)id);
    if (is_added) {
        const tarn__added_token token = {
            .text = (char *)(uintptr_t)text, .length = length, .id = id, .special = s->types[id] != TARN__TOKEN_USER};
        return tarn__vocab_add(&t->vocab, id, text, length, true) && tarn__added_add(t, s->function, s->path, &token);
    }
    char small[256], *bytes = length <= sizeof(small) ? small : tarn__alloc(length);
    if (!bytes)
        return false;
    bool is_escaped = s->types[id] == TARN__TOKEN_NORMAL && tarn__unicode_to_bytes(bytes, &count, text, length);
    bool good = tarn__vocab_add(&t->vocab, id, is_escaped ? bytes : text, is_escaped ? count : length, !is_escaped);
    if (bytes != small)
        tarn__release(bytes, length);
    return good;
}

/* Merges are "left right"; the left part may begin with a space. */
static bool add_merges(tarn_tokenizer *t, const gguf_source *s)
{
    tarn_gguf_value array;
    if (!tarn_gguf_has(s->file, MERGES, &array) || array.type != TARN_GGUF_ARRAY || array.element != TARN_GGUF_STRING)
        return raise_key(s, TARN_ERROR_FORMAT, "missing array of strings", MERGES);
    for (int64_t i = 0; i < array.count; i++) {
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

/* Adds the steps of a pre-tokenizer that is a pipeline. */
static bool add_steps(tarn_tokenizer *t, const gguf_source *s, const tarn__gguf_pre_tokenizer *pre)
{
    tarn__pipeline *p = &t->pipeline;
    p->is_used = pre->steps != NULL;
    for (int i = 0; i < pre->step_count; i++) {
        tarn__pipeline_step step = pre->steps[i];
        if ((step.text && !tarn__step_copy(&step.text, &step.text_length, step.text, step.text_length)) ||
            !tarn__steps_add(&p->pre_tokenizers, step, s->function, s->path))
            return false;
    }
    return !p->is_used ||
           tarn__steps_add(&p->decoders, (tarn__pipeline_step){.type = TARN__STEP_BYTE_LEVEL}, s->function, s->path);
}

/* Fills a byte-level BPE: tokens, regexes, then merges, which refer to tokens. */
static bool fill_bpe(tarn_tokenizer *t, const gguf_source *s, const tarn__gguf_pre_tokenizer *pre)
{
    int64_t begin, end;
    for (int32_t id = 0; id < (int32_t)s->count; id++)
        if (!add_token(t, s, id))
            return false;
    t->nfc = pre->nfc;
    t->bpe.ignore_merges = pre->ignore_merges;
    t->bpe.uses_regex = pre->uses_regex;
    if (!add_steps(t, s, pre))
        return false;
    for (int i = 0; i < TARN__GGUF_PRE_REGEXES && pre->regex[i]; i++) {
        t->bpe.regex[i] = tarn__regex_new(s->function, s->path, pre->regex[i]);
        t->bpe.regex_count += t->bpe.regex[i] != NULL;
    }
    if (tarn_failed() || !add_merges(t, s) || !read_id(s, "tokenizer.ggml.bos_token_id", INT64_MAX, &begin) ||
        !read_id(s, "tokenizer.ggml.eos_token_id", INT64_MAX, &end))
        return false;
    t->bos = (int32_t)begin;
    t->eos = (int32_t)end;
    return tarn__tokenizer_finish(t, s->function, s->path);
}

/* Builds a byte-level BPE. NULL with an error. */
static tarn_tokenizer *build_bpe(gguf_source *s, const tarn__gguf_pre_tokenizer *pre)
{
    tarn_tokenizer *t = pre ? tarn__tokenizer_new(&tarn__kind_bpe) : NULL;
    if (t && fill_bpe(t, s, pre))
        return t;
    tarn_tokenizer_free(t);
    return NULL;
}

/* ---- Unigram and WordPiece --------------------------------------------------------------------------------------- */

/* Builds them with llama.cpp's defaults of BOS, EOS and unknown. */
static tarn_tokenizer *build_pieces(gguf_source *s, bool is_unigram)
{
    int64_t bos, eos, unknown;
    if ((is_unigram && !read_scores(s)) ||
        !read_id(s, "tokenizer.ggml.bos_token_id", is_unigram ? INT64_MAX : 101, &bos) ||
        !read_id(s, "tokenizer.ggml.eos_token_id", is_unigram ? 1 : INT64_MAX, &eos) ||
        !read_id(s, "tokenizer.ggml.unknown_token_id", is_unigram ? 2 : 100, &unknown))
        return NULL;
    /* BERT ends a text with [SEP], for which the format has a key of its own. */
    if (!is_unigram && eos < 0 && !read_id(s, "tokenizer.ggml.seperator_token_id", 102, &eos))
        return NULL;
    const tarn__gguf_pieces pieces = {.function = s->function,
                                      .path = s->path,
                                      .file = s->file,
                                      .count = s->count,
                                      .pieces = s->pieces,
                                      .lengths = s->lengths,
                                      .scores = s->scores,
                                      .types = s->types};
    return is_unigram ? tarn__gguf_unigram(&pieces, bos, eos, unknown)
                      : tarn__gguf_wordpiece(&pieces, bos, eos, unknown);
}

/* ---- the tokenizer ----------------------------------------------------------------------------------------------- */

/* Reads a chat template, if the file has the key. */
static bool read_template(tarn_tokenizer *t, const gguf_source *s, const char *name, const char *key)
{
    size_t length;
    if (!tarn_gguf_has(s->file, key, NULL))
        return !tarn_failed();
    const char *text = tarn_gguf_string(s->file, key, &length);
    return text && (tarn__tokenizer_add_chat(t, name, text, length) || raise_within_key(s, key));
}

/* Reads tokenizer.chat_template, and those that tokenizer.chat_templates names. */
static bool read_templates(tarn_tokenizer *t, const gguf_source *s)
{
    tarn_gguf_value names;
    bool good = read_template(t, s, "default", TARN__GGUF_CHAT);
    if (!good || !tarn_gguf_has(s->file, TARN__GGUF_CHAT_NAMES, &names))
        return good && !tarn_failed();
    for (int64_t i = 0; good && i < names.count; i++) {
        char name[101], key[160];
        size_t length;
        const char *text = tarn_gguf_string_at(s->file, TARN__GGUF_CHAT_NAMES, i, &length);
        snprintf(name, sizeof(name), "%.*s", (int)(text && length < sizeof(name) ? length : 0), text ? text : "");
        snprintf(key, sizeof(key), TARN__GGUF_CHAT ".%s", name);
        good = text && read_template(t, s, name, key);
    }
    return good;
}

/* Reads the special tokens for which the format has keys, for the chat templates. */
static bool read_special(tarn_tokenizer *t, const gguf_source *s)
{
    bool good = true;
    for (const tarn__gguf_special *special = tarn__gguf_specials; good && special->name; special++) {
        int64_t id;
        good = read_id(s, special->key, INT64_MAX, &id) &&
               (tarn__tokenizer_name_special_id(t, special->name, id) || raise_within_key(s, special->key));
    }
    return good;
}

/* Reads what add_special adds and the chat templates. `is_whole`: the tokenizer comes from a tokenizer.json. */
static bool add_settings(tarn_tokenizer *t, const gguf_source *s, bool default_bos, bool default_eos, bool is_whole)
{
    int64_t bos, eos;
    bool adds_bos, adds_eos;
    if (!read_bool(s, "tokenizer.ggml.add_bos_token", default_bos, &adds_bos) ||
        !read_bool(s, "tokenizer.ggml.add_eos_token", default_eos, &adds_eos) ||
        !read_id(s, "tokenizer.ggml.bos_token_id", t->bos < 0 ? INT64_MAX : t->bos, &bos) ||
        !read_id(s, "tokenizer.ggml.eos_token_id", t->eos < 0 ? INT64_MAX : t->eos, &eos))
        return false;
    if (!read_templates(t, s) || !read_special(t, s))
        return false;
    t->bos = is_whole ? (int32_t)bos : t->bos;
    t->eos = is_whole ? (int32_t)eos : t->eos;
    return is_whole || tarn__tokenizer_set_add_bos_eos(t, adds_bos, adds_eos); /* a whole one has a post-processor */
}

/* The tokenizer.json that a file holds. NULL with an error. */
static tarn_tokenizer *read_whole(const gguf_source *s)
{
    size_t length;
    const char *text = tarn_gguf_string(s->file, TARN__GGUF_HUGGINGFACE, &length);
    return text ? tarn__tokenizer_parse_json(s->path, text, length) : NULL;
}

/* Kinds by tokenizer.ggml.model. */
static const struct kind {
    const char *name;
    bool adds_bos, adds_eos; /* llama.cpp's defaults */
} kinds[] = {{"llama", true, false}, {"gpt2", false, false}, {"t5", false, true}, {"bert", true, true}};
enum { LLAMA, GPT2, T5, BERT, KINDS };

static int find_kind(const char *model)
{
    int kind = 0;
    while (model && kind < KINDS && strcmp(model, kinds[kind].name) != 0)
        kind++;
    return kind;
}

static tarn_tokenizer *build(gguf_source *s, int kind, const tarn__gguf_pre_tokenizer **pre)
{
    if (!read_pieces(s) || !read_types(s))
        return NULL;
    if (kind == GPT2)
        return (*pre = find_pre_tokenizer(s)) != NULL ? build_bpe(s, *pre) : NULL;
    return kind == LLAMA ? build_spm(s) : build_pieces(s, kind == T5);
}

/* tokenizer.ggml.model names the kind: "llama" is SentencePiece's BPE, "gpt2" byte-level BPE, "t5" Unigram, "bert"
 * WordPiece. Of the last two a whole tokenizer.json says more. */
tarn_tokenizer *tarn__tokenizer_from_gguf(const char *function, const char *path, const tarn_gguf *file)
{
    gguf_source s = {.function = function, .path = path, .file = file};
    tarn_gguf_value array = {0};
    const tarn__gguf_pre_tokenizer *pre = NULL;
    const char *model = tarn_gguf_string(file, TARN__GGUF_TOKENIZER, NULL);
    int kind = find_kind(model);
    bool is_whole = kind >= T5 && tarn_gguf_has(file, TARN__GGUF_HUGGINGFACE, NULL);
    if (model && strcmp(model, TARN__GGUF_NO_TOKENIZER) == 0)
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has a model without a tokenizer", function, path);
    else if (model && kind == KINDS)
        raise_key(&s, TARN_ERROR_UNSUPPORTED,
                  "the tokenizer must be 'llama' (SentencePiece's BPE), 'gpt2' (byte-level BPE), 't5' (Unigram) or "
                  "'bert' (WordPiece), not",
                  model);
    else if (model && (!tarn_gguf_has(file, TOKENS, &array) || array.element != TARN_GGUF_STRING || array.count < 1 ||
                       array.count > MAX_TOKENS))
        raise_key(&s, TARN_ERROR_FORMAT, "missing, empty or too long array of strings", TOKENS);
    if (tarn_failed())
        return NULL;
    s.count = array.count;
    tarn_tokenizer *t = is_whole ? read_whole(&s) : build(&s, kind, &pre);
    release_arrays(&s);
    if (t && add_settings(t, &s, kinds[kind].adds_bos || (pre && pre->adds_bos), kinds[kind].adds_eos, is_whole))
        return t;
    tarn_tokenizer_free(t);
    return NULL;
}
