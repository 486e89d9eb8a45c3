/* hf_read_bert.c: BERT's vocab.txt, a piece per line, whose number is its id, and the settings of BertTokenizer in
 * tokenizer_config.json. */
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "text/files/hf_read_common.h"

/* The number of a line, from 0, is the piece's id. */
static bool read_pieces(const tarn__hf_reader *reader, const tarn__map *map)
{
    tarn__vocab *vocab = &reader->tokenizer->vocab;
    for (size_t at = 0, next; at < map->bytes; at = next) {
        const char *line = map->memory + at;
        size_t length = tarn__hf_line_at(map, at, &next);
        if (length == 0 || length > TARN__MAX_PIECE_BYTES || tarn__utf8_prefix(line, length) != length ||
            memchr(line, 0, length) || tarn__vocab_find(vocab, line, length) >= 0)
            return tarn__hf_raise(reader, TARN_ERROR_FORMAT,
                                  "line %d is empty, not valid UTF-8, too long, or a duplicate", (int)vocab->count + 1);
        if (vocab->count == INT32_MAX || !tarn__vocab_add(vocab, vocab->count, line, length, true))
            return false;
    }
    return vocab->count > 0 || tarn__hf_raise(reader, TARN_ERROR_FORMAT, "the vocabulary is empty");
}

/* The text of a special token of the config, a string or an object with "content". */
static const char *token_text(json_t *config, const char *key, const char *default_value)
{
    json_t *value = json_object_get(config, key);
    value = json_is_object(value) ? json_object_get(value, "content") : value;
    return json_is_string(value) ? json_string_value(value) : default_value;
}

/* Adds the special tokens that the vocabulary has; [CLS] and [SEP] go around a text. */
static bool add_special(const tarn__hf_reader *reader, json_t *config)
{
    static const char *const tokens[][2] = {{"unk_token", "[UNK]"},
                                            {"sep_token", "[SEP]"},
                                            {"pad_token", "[PAD]"},
                                            {"cls_token", "[CLS]"},
                                            {"mask_token", "[MASK]"}};
    tarn_tokenizer *t = reader->tokenizer;
    for (int i = 0; i < 5; i++) {
        const char *text = token_text(config, tokens[i][0], tokens[i][1]);
        int32_t id = tarn__vocab_find(&t->vocab, text, strlen(text));
        const tarn__added_token token = {
            .text = (char *)(uintptr_t)text, .length = strlen(text), .id = id, .special = true};
        if (id < 0)
            continue;
        t->unknown = i == 0 ? id : t->unknown;
        if (!tarn__added_add(t, "tokenizer_open", reader->name, &token) || (i == 3 && !tarn__ids_add(&t->before, id)) ||
            (i == 1 && !tarn__ids_add(&t->after, id)))
            return false;
    }
    return true;
}

/* BertTokenizer's defaults: lower case, accents stripped with it, spaces around ideographs. */
static bool add_steps(const tarn__hf_reader *reader, json_t *config)
{
    tarn__pipeline *p = &reader->tokenizer->pipeline;
    tarn__wordpiece *wp = &reader->tokenizer->wordpiece;
    tarn__pipeline_step bert = {.type = TARN__STEP_BERT_NORMALIZER, .clean_text = true};
    tarn__pipeline_step decoder = {.type = TARN__STEP_WORDPIECE_DECODER, .cleanup = true};
    bert.has_strip_accents = json_is_boolean(json_object_get(config, "strip_accents"));
    p->is_used = true;
    wp->max_characters = 100;
    return tarn__hf_bool(reader, config, "do_lower_case", true, &bert.lowercase) &&
           tarn__hf_bool(reader, config, "tokenize_chinese_chars", true, &bert.chinese) &&
           tarn__hf_bool(reader, config, "strip_accents", bert.lowercase, &bert.strip_accents) &&
           tarn__step_copy(&wp->prefix, &wp->prefix_length, "##", 2) &&
           tarn__step_copy(&decoder.text, &decoder.text_length, "##", 2) &&
           tarn__steps_add(&p->decoders, decoder, "tokenizer_open", reader->name) &&
           tarn__steps_add(&p->normalizers, bert, "tokenizer_open", reader->name) &&
           tarn__steps_add(&p->pre_tokenizers, (tarn__pipeline_step){.type = TARN__STEP_BERT_PRE_TOKENIZER},
                           "tokenizer_open", reader->name);
}

/* The class must be BERT's, or one that only inherits from it. */
static bool check_class(const tarn__hf_reader *reader, json_t *config)
{
    static const char *const known[] = {"BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer",
                                        "DistilBertTokenizerFast", "PreTrainedTokenizerFast"};
    const char *name = json_string_value(json_object_get(config, "tokenizer_class"));
    for (size_t i = 0; name && i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(name, known[i]) == 0)
            return true;
    return !name || tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED,
                                   "the class '%.60s' is not supported with a vocab.txt; it must be BertTokenizer; use "
                                   "a tokenizer.json",
                                   name);
}

static bool read_all(const tarn__hf_reader *reader, const tarn__map *map, const char *config, json_t *settings)
{
    (void)config;
    return check_class(reader, settings) && read_pieces(reader, map) && add_steps(reader, settings) &&
           add_special(reader, settings);
}

/* `config` may be NULL: then all settings are the defaults. */
tarn_tokenizer *tarn__tokenizer_read_bert(const char *path, const char *config)
{
    return tarn__hf_read_lines(&tarn__kind_wordpiece, path, config, read_all);
}
