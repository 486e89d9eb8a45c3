/* hf_write.c: tokenizer.json and tokenizer_config.json, as Hugging Face's tokenizers reads them.
 *
 * Bytes are written as a byte-level BPE without merges; characters as a WordLevel model split into single characters.
 * The JSON is written by hand, without jansson: saving works in every build, and large vocabularies need no tree. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "text/files/hf_write.h"

#define MAX_PATH 4096

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

/* Callers keep below 512 bytes: names and texts of any length go through put_string(). */
bool tarn__hf_put(tarn__buffer *out, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return tarn__buffer_add(out, text, (size_t)length, 1);
}

/* Escapes quotes, backslashes and control characters; other bytes are copied in runs. */
bool tarn__hf_put_string(tarn__buffer *out, const char *text, size_t length)
{
    bool good = tarn__hf_put(out, "\"");
    for (size_t i = 0, plain; good && i < length; i += plain) {
        unsigned char c = (unsigned char)text[i];
        for (plain = 0; i + plain < length && (unsigned char)text[i + plain] >= 0x20 && text[i + plain] != '"' &&
                        text[i + plain] != '\\';)
            plain++;
        good = plain      ? tarn__buffer_add(out, text + i, plain, 1)
               : c < 0x20 ? tarn__hf_put(out, "\\u%04x", c)
                          : tarn__hf_put(out, "\\%c", c);
        plain = plain ? plain : 1;
    }
    return good && tarn__hf_put(out, "\"");
}

/* Escaped twice: first as the vocabulary's files do, then as JSON. */
bool tarn__hf_put_piece(tarn__buffer *out, const tarn_tokenizer *t, int32_t id)
{
    tarn__buffer text = {0};
    bool good = tarn__vocab_escape(&t->vocab, id, &text) && tarn__hf_put_string(out, text.data, text.count);
    tarn__buffer_free(&text, 1);
    return good;
}

/* ---- members ----------------------------------------------------------------------------------------------------- */

/* JSON's spelling. */
static const char *bool_text(bool value)
{
    return value ? "true" : "false";
}

/* qsort() order of added tokens. */
static int by_id(const void *a, const void *b)
{
    const tarn__added_token *one = *(const tarn__added_token *const *)a, *other = *(const tarn__added_token *const *)b;
    return (one->id > other->id) - (one->id < other->id);
}

/* One member of "added_tokens". */
static bool put_added_token(tarn__buffer *out, const tarn__added_token *a)
{
    return tarn__hf_put(out, "\n    {\"id\": %d, \"content\": ", (int)a->id) &&
           tarn__hf_put_string(out, a->text, a->length) &&
           tarn__hf_put(out,
                        ", \"single_word\": %s, \"lstrip\": %s, \"rstrip\": %s, \"normalized\": %s, \"special\": %s}",
                        bool_text(a->single_word), bool_text(a->strip_left), bool_text(a->strip_right),
                        bool_text(a->normalized), bool_text(a->special));
}

/* User pieces of SentencePiece as added tokens: other readers have no such type, but find added tokens first too. */
static bool put_user_pieces(tarn__buffer *out, const tarn_tokenizer *t, bool has_previous)
{
    bool good = true;
    for (size_t id = 0; good && t->spm.types && id < t->spm.count; id++)
        if (t->spm.types[id] == TARN__TOKEN_USER && !t->vocab.piece[id].literal) {
            tarn__buffer text = {0};
            good =
                tarn__vocab_escape(&t->vocab, (int32_t)id, &text) && tarn__hf_put(out, has_previous ? "," : "") &&
                put_added_token(out, &(tarn__added_token){.text = text.data, .length = text.count, .id = (int32_t)id});
            tarn__buffer_free(&text, 1);
            has_previous = true;
        }
    return good;
}

/* Added tokens, sorted by id: readers number those outside the vocabulary in the order of the file. */
static bool put_added(tarn__buffer *out, const tarn_tokenizer *t)
{
    size_t count = t->added.tokens.count;
    const tarn__added_token *tokens = (const tarn__added_token *)(const void *)t->added.tokens.data;
    const tarn__added_token **sorted = tarn__alloc(count * sizeof(*sorted));
    if (!sorted)
        return false;
    for (size_t i = 0; i < count; i++)
        sorted[i] = &tokens[i];
    /* Pointers are sorted: the tokenizer's own order is that of its search. */
    qsort(sorted, count, sizeof(*sorted), by_id);
    bool good = tarn__hf_put(out, "  \"added_tokens\": [");
    for (size_t i = 0; good && i < count; i++)
        good = tarn__hf_put(out, "%s", i ? "," : "") && put_added_token(out, sorted[i]);
    tarn__release(sorted, count * sizeof(*sorted));
    return good && put_user_pieces(out, t, count > 0) && tarn__hf_put(out, "%s],\n", count ? "\n  " : "");
}

/* A "Split" step that isolates the matches of a regex. */
static bool put_split(tarn__buffer *out, const char *pattern)
{
    return tarn__hf_put(out, "{\"type\": \"Split\", \"pattern\": {\"Regex\": ") &&
           tarn__hf_put_string(out, pattern, strlen(pattern)) &&
           tarn__hf_put(out, "}, \"behavior\": \"Isolated\", \"invert\": false}");
}

/* Regexes as "Split" steps before "ByteLevel", which implies GPT-2's with use_regex. */
static bool put_pre_tokenizer(tarn__buffer *out, const tarn_tokenizer *t)
{
    int splits = t->bpe.regex_count - t->bpe.uses_regex;
    bool good = tarn__hf_put(out, "  \"pre_tokenizer\": ");
    if (t->kind == &tarn__kind_characters)
        return good && put_split(out, "[\\s\\S]") && tarn__hf_put(out, ",\n");
    if (splits > 0)
        good = good && tarn__hf_put(out, "{\"type\": \"Sequence\", \"pretokenizers\": [");
    for (int i = 0; i < splits; i++)
        good = good && put_split(out, tarn__regex_source(t->bpe.regex[i])) && tarn__hf_put(out, ", ");
    return good &&
           tarn__hf_put(
               out,
               "{\"type\": \"ByteLevel\", \"add_prefix_space\": %s, \"trim_offsets\": true, \"use_regex\": %s}%s,\n",
               bool_text(t->bpe.prefix_space), bool_text(t->bpe.uses_regex), splits > 0 ? "]}" : "");
}

/* Special tokens of a template, separated by commas. */
static bool put_tokens(tarn__buffer *out, const tarn_tokenizer *t, const tarn__buffer *ids, const char *separator)
{
    const int32_t *id = (const int32_t *)(const void *)ids->data;
    bool good = true;
    for (size_t i = 0; good && i < ids->count; i++)
        good = tarn__hf_put(out, "%s{\"SpecialToken\": {\"id\": ", i ? ", " : separator) &&
               tarn__hf_put_piece(out, t, id[i]) && tarn__hf_put(out, ", \"type_id\": 0}}");
    return good;
}

/* "special_tokens": the ids of the tokens around a text, each once. */
static bool put_token_ids(tarn__buffer *out, const tarn_tokenizer *t)
{
    const int32_t *before = (const int32_t *)(const void *)t->before.data,
                  *after = (const int32_t *)(const void *)t->after.data;
    size_t first = t->before.count, count = first + t->after.count;
    bool good = true, has_previous = false;
    for (size_t i = 0; good && i < count; i++) {
        int32_t id = i < first ? before[i] : after[i - first];
        bool seen = false;
        for (size_t k = 0; k < i; k++)
            seen = seen || (k < first ? before[k] : after[k - first]) == id;
        if (seen)
            continue;
        good = tarn__hf_put(out, has_previous ? ", " : "") && tarn__hf_put_piece(out, t, id) &&
               tarn__hf_put(out, ": {\"id\": ") && tarn__hf_put_piece(out, t, id) &&
               tarn__hf_put(out, ", \"ids\": [%d], \"tokens\": [", (int)id) && tarn__hf_put_piece(out, t, id) &&
               tarn__hf_put(out, "]}");
        has_previous = true;
    }
    return good;
}

/* The tokens that add_special adds, as TemplateProcessing for one text and for pairs. */
static bool put_post_processor(tarn__buffer *out, const tarn_tokenizer *t)
{
    if (t->before.count + t->after.count == 0)
        return tarn__hf_put(out, "  \"post_processor\": null,\n");
    bool good = tarn__hf_put(out, "  \"post_processor\": {\"type\": \"TemplateProcessing\", ");
    for (int pair = 0; pair < 2 && good; pair++)
        good = tarn__hf_put(out, "\"%s\": [", pair ? "pair" : "single") && put_tokens(out, t, &t->before, "") &&
               tarn__hf_put(out, "%s{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}%s", t->before.count ? ", " : "",
                            pair ? ", {\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}" : "") &&
               put_tokens(out, t, &t->after, ", ") && tarn__hf_put(out, "], ");
    return good && tarn__hf_put(out, "\"special_tokens\": {") && put_token_ids(out, t) && tarn__hf_put(out, "}},\n");
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* "vocab", in the order of ids; added tokens outside of the model's vocabulary are not in it. */
bool tarn__hf_put_vocabulary(tarn__buffer *out, const tarn_tokenizer *t)
{
    bool good = tarn__hf_put(out, "    \"vocab\": {"), has_previous = false;
    for (int32_t id = 0; good && id < t->vocab.count; id++)
        if (tarn__vocab_has(&t->vocab, id) && !t->vocab.piece[id].outside) {
            good = tarn__hf_put(out, has_previous ? ",\n      " : "\n      ") && tarn__hf_put_piece(out, t, id) &&
                   tarn__hf_put(out, ": %d", (int)id);
            has_previous = true;
        }
    return good && tarn__hf_put(out, "\n    }");
}

/* "merges" as pairs: a piece may contain a space. */
bool tarn__hf_put_merges(tarn__buffer *out, const tarn_tokenizer *t)
{
    const tarn__merge *merge = (const tarn__merge *)(const void *)t->bpe.merges.data;
    bool good = tarn__hf_put(out, ",\n    \"merges\": [");
    for (size_t i = 0; good && i < t->bpe.merges.count; i++)
        good = tarn__hf_put(out, i ? ",\n      [" : "\n      [") && tarn__hf_put_piece(out, t, merge[i].left) &&
               tarn__hf_put(out, ", ") && tarn__hf_put_piece(out, t, merge[i].right) && tarn__hf_put(out, "]");
    return good && tarn__hf_put(out, "]");
}

/* "model". fuse_unk and byte_fallback are SentencePiece's. */
static bool put_model(tarn__buffer *out, const tarn_tokenizer *t)
{
    if (t->pipeline.is_used)
        return tarn__hf_put_pipeline_model(out, t);
    bool characters = t->kind == &tarn__kind_characters, spm = t->kind == &tarn__kind_spm;
    int32_t unknown = characters ? t->unknown : t->bpe.unknown;
    bool good = tarn__hf_put(out, "  \"model\": {\n    \"type\": \"%s\",\n", characters ? "WordLevel" : "BPE");
    if (!characters)
        good =
            good &&
            tarn__hf_put(
                out,
                "    \"dropout\": null,\n    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n"
                "    \"fuse_unk\": %s,\n    \"byte_fallback\": %s,\n    \"ignore_merges\": %s,\n",
                bool_text(spm), bool_text(spm), bool_text(t->bpe.ignore_merges));
    good =
        good && tarn__hf_put(out, "    \"unk_token\": ") &&
        (unknown >= 0 ? tarn__hf_put_piece(out, t, unknown) : tarn__hf_put(out, characters ? "\"<unk>\"" : "null")) &&
        tarn__hf_put(out, ",\n");
    return good && tarn__hf_put_vocabulary(out, t) &&
           (characters || (t->spm.scores ? tarn__hf_put_spm_merges(out, t) : tarn__hf_put_merges(out, t))) &&
           tarn__hf_put(out, "\n  }\n}\n");
}

/* Normalizer and pre-tokenizer. */
static bool put_normalizer(tarn__buffer *out, const tarn_tokenizer *t)
{
    if (t->pipeline.is_used)
        return tarn__hf_put_pipeline_steps(out, t);
    if (t->kind == &tarn__kind_spm)
        return tarn__hf_put_spm_normalizer(out, t);
    return tarn__hf_put(out, "  \"normalizer\": %s,\n", t->nfc ? "{\"type\": \"NFC\"}" : "null") &&
           put_pre_tokenizer(out, t);
}

/* "decoder": how pieces become text again. */
static bool put_decoder(tarn__buffer *out, const tarn_tokenizer *t)
{
    if (t->pipeline.is_used)
        return tarn__hf_put_pipeline_decoder(out, t);
    if (t->kind == &tarn__kind_spm)
        return tarn__hf_put_spm_decoder(out, t);
    return tarn__hf_put(
        out, "  \"decoder\": %s,\n",
        t->kind == &tarn__kind_characters
            ? "{\"type\": \"Fuse\"}"
            : "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true}");
}

bool tarn__hf_put_tokenizer(tarn__buffer *out, const tarn_tokenizer *t)
{
    return tarn__hf_put(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n") &&
           put_added(out, t) && put_normalizer(out, t) && put_post_processor(out, t) && put_decoder(out, t) &&
           put_model(out, t);
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

/* Writes a file atomically. */
static bool write_file(const tarn__buffer *text, const char *path)
{
    tarn__output output;
    if (!tarn__output_open(&output, "tokenizer_save", path))
        return false;
    if (tarn__output_write(&output, text->data, text->count))
        return tarn__output_commit(&output);
    tarn__output_discard(&output);
    return false;
}

/* Builds a file's text in memory and writes it. */
static bool save(const tarn_tokenizer *t, const char *folder, const char *name,
                 bool (*put_file)(tarn__buffer *, const tarn_tokenizer *))
{
    char path[MAX_PATH];
    tarn__buffer text = {0};
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    bool good = put_file(&text, t) && write_file(&text, path);
    tarn__buffer_free(&text, 1);
    return good;
}

/* tokenizer_config.json is written only if it has something to say. */
bool tarn_tokenizer_save(const tarn_tokenizer *tokenizer, const char *folder)
{
    if (tarn_failed())
        return false;
    if (!tokenizer || !folder || !folder[0] || strlen(folder) > MAX_PATH - 32)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "tokenizer_save: tokenizer is NULL, or folder is NULL, empty or too long");
    if (tokenizer->kind == &tarn__kind_characters && tarn__vocab_find(&tokenizer->vocab, "", 1) >= 0)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "tokenizer_save: the vocabulary contains NUL, which tokenizer.json cannot store");
    if (tokenizer->kind == &tarn__kind_spm && !tokenizer->spm.has_bytes)
        return tarn__raise(
            TARN_ERROR_UNSUPPORTED,
            "tokenizer_save: a SentencePiece model without byte pieces cannot be written as tokenizer.json");
    if (!tarn__path_exists(folder) && !tarn__folder_make("tokenizer_save", folder))
        return false;
    return save(tokenizer, folder, "tokenizer.json", tarn__hf_put_tokenizer) &&
           ((!tokenizer->chats.count && !tokenizer->special.count && tokenizer->bos < 0 && tokenizer->eos < 0) ||
            save(tokenizer, folder, "tokenizer_config.json", tarn__hf_put_config));
}

/* ---- tokenizer_config.json --------------------------------------------------------------------------------------- */

/* "key": a token's text, if there is one. */
static bool put_token(tarn__buffer *out, const tarn_tokenizer *t, const char *key, int32_t id)
{
    return id < 0 || (tarn__hf_put(out, ",\n  \"%s\": ", key) && tarn__hf_put_piece(out, t, id));
}

/* The special tokens that the files named but BOS and EOS: those of every tokenizer as members, a model's own in
 * extra_special_tokens. */
static bool put_special(tarn__buffer *out, const tarn_tokenizer *t)
{
    const tarn__special_token *tokens = (const tarn__special_token *)(const void *)t->special.data;
    bool good = true, has_own = false;
    for (int is_own = 0; is_own < 2; is_own++)
        for (size_t i = 0; good && i < t->special.count; i++) {
            if (tarn__is_special_name(tokens[i].name) == is_own ||
                (!is_own && ((t->bos >= 0 && strcmp(tokens[i].name, "bos_token") == 0) ||
                             (t->eos >= 0 && strcmp(tokens[i].name, "eos_token") == 0))))
                continue;
            good = tarn__hf_put(out, is_own && !has_own ? ",\n  \"extra_special_tokens\": {"
                                     : is_own           ? ", "
                                                        : ",\n  ") &&
                   tarn__hf_put_string(out, tokens[i].name, strlen(tokens[i].name)) && tarn__hf_put(out, ": ") &&
                   tarn__hf_put_string(out, tokens[i].text, strlen(tokens[i].text));
            has_own = has_own || is_own;
        }
    return good && (!has_own || tarn__hf_put(out, "}"));
}

/* "chat_template": the text of the only one, or an array of named ones. */
static bool put_templates(tarn__buffer *out, const tarn_tokenizer *t)
{
    const tarn__chat_source *sources = (const tarn__chat_source *)(const void *)t->chats.data;
    if (t->chats.count == 0)
        return true;
    if (t->chats.count == 1 && t->chat)
        return tarn__hf_put(out, ",\n  \"chat_template\": ") && tarn__hf_put_string(out, t->chat, strlen(t->chat));
    bool good = tarn__hf_put(out, ",\n  \"chat_template\": [");
    for (size_t i = 0; good && i < t->chats.count; i++)
        good = tarn__hf_put(out, "%s\n    {\"name\": ", i ? "," : "") &&
               tarn__hf_put_string(out, sources[i].name, strlen(sources[i].name)) &&
               tarn__hf_put(out, ", \"template\": ") &&
               tarn__hf_put_string(out, sources[i].text, strlen(sources[i].text)) && tarn__hf_put(out, "}");
    return good && tarn__hf_put(out, "\n  ]");
}

/* PreTrainedTokenizerFast takes everything from tokenizer.json; the config adds special tokens and chat templates. */
bool tarn__hf_put_config(tarn__buffer *out, const tarn_tokenizer *t)
{
    return tarn__hf_put(
               out,
               "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"clean_up_tokenization_spaces\": false") &&
           put_token(out, t, "bos_token", t->bos) && put_token(out, t, "eos_token", t->eos) && put_special(out, t) &&
           put_templates(out, t) && tarn__hf_put(out, "\n}\n");
}
